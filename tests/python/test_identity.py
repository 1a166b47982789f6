"""Identity: nothing that makes K/V different is forgotten, guessed, cut, or confused with its neighbour."""

import dataclasses
import pickle
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python/src"))

import numpy as np  # noqa: E402

import prefixd  # noqa: E402
from prefixd import Status  # noqa: E402
from prefixd.identity import DTYPE_BITS, Identity, IdentityError, dtype_name  # noqa: E402

GIVEN = {
    "model": "m",
    "revision": "r1",
    "dtype": "float16",
    "layout": "block-major",
    "engine": "test 1",
    "adapter": "",
    "tp_size": 1,
    "tp_rank": 0,
    "layers": 30,
    "kv_heads": 3,
    "head_dim": 64,
    "block_tokens": 16,
}
TEXTS = ("model", "revision", "dtype", "layout", "engine")
NUMBERS = ("tp_size", "tp_rank", "layers", "kv_heads", "head_dim", "block_tokens")


class Refusals(unittest.TestCase):
    def refused(self, field, status=None, **changes):
        with self.assertRaises(IdentityError) as caught:
            Identity(**{**GIVEN, **changes})
        self.assertEqual(caught.exception.field, field)
        self.assertIsInstance(caught.exception, prefixd.PrefixdError)
        self.assertIn("give ", caught.exception.text, "a refusal says what would be right")
        if status is not None:
            self.assertEqual(caught.exception.status, status)

    def test_each_required_field_is_missed_by_name(self):
        for field in GIVEN:
            given = {key: value for key, value in GIVEN.items() if key != field}
            with self.subTest(field=field), self.assertRaises(IdentityError) as caught:
                Identity(**given)
            self.assertEqual((caught.exception.field, caught.exception.status), (field, Status.MISSING_FIELD))

    def test_none_is_missing(self):
        for field in (*GIVEN, "windows", "scales"):
            with self.subTest(field=field):
                self.refused(field, Status.MISSING_FIELD, **{field: None})

    def test_empty_text_is_missing_but_where_it_says_something(self):
        for field in TEXTS:
            with self.subTest(field=field):
                self.refused(field, Status.MISSING_FIELD, **{field: ""})
                self.refused(field, Status.MISSING_FIELD, **{field: "  "})
        for field in ("adapter", "windows", "scales"):
            self.assertEqual(getattr(Identity(**{**GIVEN, field: ""}), field), "")

    def test_what_programs_write_for_nothing_is_refused(self):
        for field in (*TEXTS, "adapter", "windows", "scales"):
            for text in ("auto", "AUTO", "None", "null", " unknown "):
                with self.subTest(field=field, text=text):
                    self.refused(field, Status.BAD_NAMESPACE, **{field: text})

    def test_other_types_are_refused(self):
        for field in (*TEXTS, "adapter", "windows", "scales"):
            for value in (1, b"m", ["m"], np.dtype("float16")):
                with self.subTest(field=field, value=value):
                    self.refused(field, Status.BAD_NAMESPACE, **{field: value})
        for field in NUMBERS:
            for value in ("1", 1.0, True, float("nan")):
                with self.subTest(field=field, value=value):
                    self.refused(field, Status.BAD_NAMESPACE, **{field: value})

    def test_out_of_range(self):
        for field in ("tp_size", "layers", "kv_heads", "head_dim", "block_tokens"):
            with self.subTest(field=field):
                self.refused(field, Status.BAD_NAMESPACE, **{field: 0})
                self.refused(field, Status.BAD_NAMESPACE, **{field: -1})
                self.refused(field, Status.BAD_NAMESPACE, **{field: 1 << 32})
        self.refused("tp_rank", tp_rank=-1)
        self.refused("tp_rank", tp_rank=1)
        self.refused("tp_rank", tp_size=2, tp_rank=2)
        self.refused("block_tokens", block_tokens=16377)

    def test_bytes_that_the_wire_does_not_take(self):
        self.refused("model", model="a\0b")
        self.refused("model", model="\ud800")
        self.refused("layout", layout="block-major;tp=2/0")
        self.refused("dtype", dtype="x" * 33, opaque=True, block_bytes=64)

    def test_sizes(self):
        self.refused("dtype", dtype="fp6")
        self.refused("block_bytes", Status.MISSING_FIELD, dtype="fp6", opaque=True)
        self.refused("block_bytes", block_bytes=1)
        self.refused("block_bytes", opaque=True, block_bytes=0)
        self.refused("block_bytes", opaque=True, block_bytes=(1 << 40) + 1)
        self.refused("opaque", opaque=1, block_bytes=64)
        self.refused("layers", layers=1 << 31, kv_heads=1 << 10)
        # Every size that is computed is whole: 2 x int4 is a byte.
        self.assertEqual(
            Identity(
                **{**GIVEN, "dtype": "int4", "layers": 1, "kv_heads": 1, "head_dim": 1, "block_tokens": 1}
            ).block_bytes,
            1,
        )

    def test_digests(self):
        identity = Identity(**GIVEN)
        for digest_len in (0, 15, 65, None, "32", True):
            with self.subTest(digest_len=digest_len), self.assertRaises(IdentityError) as caught:
                identity.digests(digest_len, b"p")
            self.assertEqual(caught.exception.field, "digest_len")
        for probe in (b"", b"p" * 65, None, "p"):
            with self.subTest(probe=probe), self.assertRaises(IdentityError) as caught:
                identity.digests(32, probe)
            self.assertEqual(caught.exception.field, "seed_probe")


class Values(unittest.TestCase):
    def test_block_bytes_of_known_types(self):
        self.assertEqual(Identity(**GIVEN).block_bytes, 2 * 30 * 3 * 64 * 2 * 16)
        for dtype, bits in DTYPE_BITS.items():
            self.assertEqual(
                Identity(**{**GIVEN, "dtype": dtype}).block_bytes, 2 * 30 * 3 * 64 * 16 * bits // 8
            )
        self.assertEqual(Identity(**GIVEN, block_bytes=368640).block_bytes, 368640)
        self.assertEqual(Identity(**{**GIVEN, "dtype": "fp6"}, opaque=True, block_bytes=100).block_bytes, 100)

    def test_frozen_equal_hashable_and_picklable(self):
        one, same, other = Identity(**GIVEN), Identity(**GIVEN), Identity(**{**GIVEN, "model": "n"})
        self.assertEqual(one, same)
        self.assertEqual(hash(one), hash(same))
        self.assertNotEqual(one, other)
        self.assertEqual(pickle.loads(pickle.dumps(one)), one)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            one.model = "n"

    def test_with_changes_one_thing_and_checks(self):
        one = Identity(**GIVEN)
        self.assertEqual(one.with_(), one)
        self.assertEqual(one.with_(layers=2).block_bytes, 2 * 2 * 3 * 64 * 2 * 16)
        opaque = one.with_(opaque=True, block_bytes=64)
        self.assertEqual(opaque.with_(layers=2).block_bytes, 64)
        with self.assertRaises(IdentityError) as caught:
            one.with_(dtype="auto")
        self.assertEqual(caught.exception.field, "dtype")

    def test_numbers_of_numpy_are_numbers(self):
        identity = Identity(**{**GIVEN, "layers": np.int64(30)})
        self.assertEqual(identity, Identity(**GIVEN))
        self.assertIs(type(identity.layers), int)

    def test_repr_says_what_a_log_needs(self):
        text = repr(Identity(**{**GIVEN, "adapter": "lora-7", "tp_size": 2, "tp_rank": 1}))
        for part in (
            "m@r1",
            "float16",
            "30x3x64",
            "16 tokens",
            "block-major;tp=2/1",
            "test 1",
            "adapter lora-7",
        ):
            self.assertIn(part, text)

    def test_names_of_types(self):
        for given, name in (
            ("torch.bfloat16", "bfloat16"),
            ("torch.half", "float16"),
            (np.dtype("float16"), "float16"),
            ("torch.float8_e4m3fn", "fp8_e4m3"),
            ("float32", "float32"),
        ):
            self.assertEqual(dtype_name(given), name)


class Wire(unittest.TestCase):
    """What goes to the daemon: differs exactly when the identity does."""

    def test_fields_arrive_as_given(self):
        options = Identity(**GIVEN, windows="1024:5,0:1", scales="s1").digests(32, b"probe")
        for field in (
            "model",
            "revision",
            "dtype",
            "layers",
            "kv_heads",
            "head_dim",
            "block_tokens",
            "layout",
            "adapter",
            "tp_size",
            "tp_rank",
            "engine",
        ):
            self.assertEqual(getattr(options, field), GIVEN[field], field)
        self.assertEqual((options.windows, options.scales, options.block_bytes), ("1024:5,0:1", "s1", 368640))
        self.assertEqual((options.key_mode, options.digest_len, options.seed_probe), (2, 32, b"probe"))
        self.assertEqual(options.flags, 0)
        options = Identity(**GIVEN).tokens(extra=True)
        self.assertEqual((options.key_mode, options.digest_len, options.seed_probe), (1, 0, b""))
        self.assertEqual(options.flags, 2)
        self.assertEqual(Identity(**GIVEN, opaque=True, block_bytes=64).tokens(extra=True).flags, 1 | 2)

    def test_every_change_changes_the_options(self):
        base = Identity(**GIVEN)
        changes = [
            {"model": "n"},
            {"revision": "r2"},
            {"dtype": "bfloat16"},
            {"layout": "token-major"},
            {"engine": "test 2"},
            {"adapter": "a"},
            {"tp_size": 2},
            {"tp_size": 2, "tp_rank": 1},
            {"tp_size": 3, "tp_rank": 1},
            {"layers": 31},
            {"kv_heads": 4},
            {"head_dim": 65},
            {"block_tokens": 17},
            {"windows": "w"},
            {"scales": "s"},
            {"opaque": True, "block_bytes": base.block_bytes},
            {"opaque": True, "block_bytes": 64},
        ]
        options = [base.digests(32, b"p")] + [base.with_(**change).digests(32, b"p") for change in changes]
        options += [base.digests(16, b"p"), base.digests(32, b"q"), base.tokens(), base.tokens(extra=True)]
        said = [repr(dataclasses.astuple(o)) for o in options]
        self.assertEqual(len(set(said)), len(said))
        self.assertEqual(base.digests(32, b"p"), Identity(**GIVEN).digests(32, b"p"))

    def test_the_tensor_parallel_shape_is_in_the_layout(self):
        options = Identity(**{**GIVEN, "tp_size": 2, "tp_rank": 1}).tokens()
        self.assertEqual((options.layout, options.tp_size, options.tp_rank), ("block-major;tp=2/1", 1, 0))

    def test_long_texts_are_hashed_and_never_cut(self):
        limits = {
            "model": 255,
            "revision": 255,
            "adapter": 255,
            "windows": 255,
            "scales": 255,
            "layout": 64,
            "engine": 64,
        }
        for field, limit in limits.items():
            with self.subTest(field=field):
                fits = "é" * (limit // 2) + "x" * (limit % 2)
                on_wire = [
                    getattr(Identity(**{**GIVEN, field: text}).tokens(), field)
                    for text in (fits, fits + "a", fits + "b", fits + "a" * 5000)
                ]
                self.assertEqual(on_wire[0], fits)
                self.assertEqual(len(set(on_wire)), 4)
                self.assertTrue(all(len(text.encode()) <= limit for text in on_wire))
                # A name that looks like a hash is no way into the namespace of the hashed one.
                forged = getattr(Identity(**{**GIVEN, field: on_wire[1]}).tokens(), field)
                self.assertNotEqual(forged, on_wire[1])

    def test_a_long_layout_keeps_its_rank(self):
        long = {**GIVEN, "layout": "x" * 64, "tp_size": 2}
        layouts = {Identity(**{**long, "tp_rank": rank}).tokens().layout for rank in (0, 1)}
        self.assertEqual(len(layouts), 2)


if __name__ == "__main__":
    unittest.main()
