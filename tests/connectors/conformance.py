"""What every connector's identity must do, as cases for its own test.

    class VllmIdentity(IdentityConformance, unittest.TestCase):
        FIELDS = {...}                     # what make() is called with when nothing is changed
        REFUSED = ("model", "revision")    # fields without which make() must raise, naming them

        def make(self, **fields):          # a worker of the engine, or of its identity code, on self.daemon
            return Worker(...)             # .put(prompt), .hit(prompt) -> blocks stored, found; .close()

A case changes one field and asserts, in the same run and on the same daemon, that the unchanged identity
gives reuse, that the changed one does not, that it does with itself, and that neither has disturbed the
other.  So a connector that never finds anything fails as surely as one that finds too much.

Fields are the words of prefixd.Identity with `tenant`, `salt` and `engine` beside them; the connector's
make() says how its engine is told them.  What an engine cannot be told is listed in UNTOLD with the
reason, and the case says so as its skip.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar, List, Mapping, Protocol, Sequence, Tuple

TREE = Path(__file__).resolve().parents[2]
for _folder in (
    "tests/lib",
    "clients/python/src",
    "clients/vllm/src",
    "clients/sglang/src",
    "clients/lmcache/src",
):
    if str(TREE / _folder) not in sys.path:
        sys.path.insert(0, str(TREE / _folder))

from daemon import Daemon  # noqa: E402
from prefixd import PrefixdError, Status  # noqa: E402
from prefixd.blockstore import BlockStore  # noqa: E402

TENANTS = ("default", "other")


class Worker(Protocol):
    """One instance of a connector: an engine process as far as the daemon can tell."""

    def put(self, prompt: Sequence[int]) -> int:
        """Stores all blocks of the prompt; -> how many are stored now, at least 1."""

    def hit(self, prompt: Sequence[int]) -> int:
        """How many leading blocks of the prompt are found, with the right bytes if it reads them."""

    def close(self) -> None:
        """Ends it; what it stored stays."""


class IdentityConformance:
    """Mixin for unittest.TestCase; see the module."""

    # Fields of make() and their values when nothing is changed.
    FIELDS: ClassVar[Mapping[str, Any]] = {
        "model": "m",
        "revision": "r1",
        "dtype": "float16",
        "layout": "block-major",
        "adapter": "",
        "salt": b"",
        "tenant": "default",
        "tp_size": 1,
        "tp_rank": 0,
    }
    # For each case the changes to try, each against the unchanged fields and against each other.
    CHANGES: ClassVar[Mapping[str, Sequence[Mapping[str, Any]]]] = {
        "model": ({"model": "n"},),
        "revision": ({"revision": "r2"},),
        "dtype": ({"dtype": "bfloat16"},),
        "layout": ({"layout": "token-major"},),
        "adapter": ({"adapter": "lora 1"}, {"adapter": "lora 2"}),
        "salt": ({"salt": b"secret"}, {"salt": b"another"}),
        "tenant": ({"tenant": "other"},),
        "tp_shape": (
            {"tp_size": 2, "tp_rank": 0},
            {"tp_size": 2, "tp_rank": 1},
            {"tp_size": 4, "tp_rank": 1},
        ),
    }
    # Fields without which make() must raise a PrefixdError that names them.
    REFUSED: ClassVar[Sequence[str]] = ("model", "revision", "dtype", "layout", "adapter")
    # How a refusal names a field, where the engine has another word for it.
    NAMES: ClassVar[Mapping[str, str]] = {}
    # Values of those, "empty" or "auto", that the engine itself never has, with the reason.
    CANNOT: ClassVar[Mapping[Tuple[str, str], str]] = {}
    # Cases that this engine cannot be asked, with the reason.
    UNTOLD: ClassVar[Mapping[str, str]] = {}
    # Tokens of the prompt; the connector cuts them into blocks.
    PROMPT_TOKENS: ClassVar[int] = 256
    DAEMON: ClassVar[Mapping[str, Any]] = {"pool_blocks": 256}

    daemon: Daemon

    def make(self, **fields: Any) -> Worker:
        """A worker with this identity, new in every call.  A field that is None was not given."""
        raise NotImplementedError

    # ---- what it runs on ----

    @classmethod
    def setUpClass(cls) -> None:
        cls._folder = tempfile.TemporaryDirectory(prefix="prefixd-test-")
        config = Path(cls._folder.name) / "prefixd.conf"
        config.write_text("[tenants]\n" + "".join(f"{name} = any\n" for name in TENANTS), encoding="utf-8")
        cls.daemon = Daemon(config=str(config), **cls.DAEMON).start()
        # The socket has a name a moment before it takes connections.
        until = time.monotonic() + 20
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            while s.connect_ex(cls.daemon.socket) and time.monotonic() < until:
                time.sleep(0.01)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.daemon.stop()
        cls._folder.cleanup()

    # ---- cases ----

    def test_same_identity_reuses(self) -> None:
        """Two workers of one identity, and a third after both have gone."""
        prompt = self.prompt("same")
        first = self._worker({})
        stored = first.put(prompt)
        self.assertGreater(stored, 0, "nothing was stored")
        self.assertEqual(self._hit({}, prompt), stored, "the same identity does not give reuse")
        first.close()
        self.assertEqual(self._hit({}, prompt), stored)
        # Another prompt that begins alike has what is alike, one that begins otherwise has nothing.
        half = [*prompt[: len(prompt) // 2], *self.prompt("other")[len(prompt) // 2 :]]
        self.assertEqual(self._hit({}, half), stored // 2)
        self.assertEqual(self._hit({}, self.prompt("other")), 0)

    def test_model(self) -> None:
        self._differs("model")

    def test_revision(self) -> None:
        self._differs("revision")

    def test_dtype(self) -> None:
        self._differs("dtype")

    def test_layout(self) -> None:
        self._differs("layout")

    def test_adapter(self) -> None:
        self._differs("adapter")

    def test_salt(self) -> None:
        self._differs("salt")

    def test_tenant(self) -> None:
        self._differs("tenant")

    def test_tp_shape(self) -> None:
        self._differs("tp_shape")

    def test_more_of_this_engine(self) -> None:
        """What this connector adds to CHANGES, each as above."""
        own = [name for name in self.CHANGES if name not in IdentityConformance.CHANGES]
        for name in own:
            with self.subTest(name):  # type: ignore[attr-defined]
                self._differs(name)

    def test_missing_fields_are_refused_by_name(self) -> None:
        self.assertTrue(self.REFUSED, "no field is refused")
        for field in self.REFUSED:
            for what, value in (("None", None), ("empty", ""), ("auto", "auto")):
                if what == "empty" and field in ("adapter", "salt", "windows", "scales"):
                    continue  # where it says that there is none
                if what == "auto" and field in ("salt", "tenant"):
                    continue  # a name like any other
                if (field, what) in self.CANNOT:
                    continue
                with self.subTest(field=field, given=what):  # type: ignore[attr-defined]
                    self._refused(field, value)
        # The same call with all fields is not refused: it is the field that was missed.
        self._worker({}).close()

    # ---- how ----

    def prompt(self, *words: Any) -> List[int]:
        """Token ids that follow from the words, other ones in every block for other words."""
        seed = hash_of((type(self).__name__, self._testMethodName, *words))  # type: ignore[attr-defined]
        return [(seed * (i + 1) + i * i * 7919) % 30011 + 1 for i in range(self.PROMPT_TOKENS)]

    def _worker(self, changes: Mapping[str, Any]) -> Worker:
        worker = self.make(**{**self.FIELDS, **changes})
        self.addCleanup(worker.close)  # type: ignore[attr-defined]
        return worker

    def _hit(self, changes: Mapping[str, Any], prompt: Sequence[int]) -> int:
        worker = self._worker(changes)
        try:
            return worker.hit(prompt)
        finally:
            worker.close()

    def _put(self, changes: Mapping[str, Any], prompt: Sequence[int]) -> int:
        worker = self._worker(changes)
        try:
            return worker.put(prompt)
        finally:
            worker.close()

    def _differs(self, case: str) -> None:
        if case in self.UNTOLD:
            self.skipTest(self.UNTOLD[case])  # type: ignore[attr-defined]
        prompt = self.prompt("differs")
        stored = self._put({}, prompt)
        self.assertGreater(stored, 0, "nothing was stored")
        self.assertEqual(self._hit({}, prompt), stored, "the same identity does not give reuse")
        before: List[Tuple[Mapping[str, Any], int]] = [({}, stored)]
        for changes in self.CHANGES[case]:
            for other, _ in before:
                self.assertNotEqual(
                    {**self.FIELDS, **changes}, {**self.FIELDS, **other}, "nothing is changed"
                )
            self.assertEqual(
                self._hit(changes, prompt), 0, f"{changes}: shared with {[b for b, _ in before]}"
            )
            own = self._put(changes, prompt)
            self.assertGreater(own, 0, f"{changes}: nothing was stored")
            before.append((changes, own))
            for other, n in before:
                self.assertEqual(self._hit(other, prompt), n, f"{other}: disturbed by {changes}, or no reuse")

    def _refused(self, field: str, value: Any) -> None:
        with self.assertRaises(PrefixdError) as caught:  # type: ignore[attr-defined]
            self.make(**{**self.FIELDS, field: value}).close()
        error = caught.exception
        self.assertIn(error.status, (Status.MISSING_FIELD, Status.BAD_NAMESPACE), error)
        names = (field, self.NAMES.get(field, field))
        self.assertIn(error.field, names, f"{field} = {value!r} was refused as something else: {error}")

    # unittest's, for those who read this class by itself
    assertEqual: Any
    assertNotEqual: Any
    assertGreater: Any
    assertIn: Any
    assertTrue: Any
    assertRaises: Any


def hash_of(words: Tuple[Any, ...]) -> int:
    """A number that follows from the words, the same in every process."""
    number = 17
    for byte in repr(words).encode():
        number = (number * 31 + byte) % 1000003
    return number


class StoreWorker:
    """A worker whose engine is the block store itself: for connectors of which only the identity runs here.

    `options` are an identity's digests(32, ...).  Blocks hold bytes that follow from their keys, and a hit
    counts only with the right ones.
    """

    def __init__(self, socket: str, options: Any, owner: Any) -> None:
        self.store = BlockStore(socket, options, owner, deadline=10.0)
        self.options = options

    def keys(self, prompt: Sequence[int]) -> List[bytes]:
        """Chained digests of the full blocks, of tokens alone: only the identity tells workers apart."""
        n, out, at = self.options.block_tokens, [], b""
        for i in range(0, len(prompt) - n + 1, n):
            at = hashlib.blake2b(at + repr(list(prompt[i : i + n])).encode(), digest_size=32).digest()
            out.append(at)
        return out

    def block(self, key: bytes) -> bytes:
        n = self.options.block_bytes
        return (key * (n // len(key) + 1))[:n]

    def put(self, prompt: Sequence[int]) -> int:
        keys = self.keys(prompt)
        return self.store.insert(keys, 0, [self.block(key) for key in keys])

    def hit(self, prompt: Sequence[int]) -> int:
        keys = self.keys(prompt)
        with self.store.lookup(keys) as hit:
            n = 0
            for i in range(hit.n):
                out = bytearray(self.options.block_bytes)
                if not hit.read(i, out) or bytes(out) != self.block(keys[i]):
                    break
                n += 1
            return n

    def close(self) -> None:
        self.store.close()
