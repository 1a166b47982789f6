"""What the tests of the Python client share: the package's path, options, and a daemon that answers wrongly."""

import os
import select
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "clients/python/src"), str(TREE / "tests/lib")]

import daemon  # noqa: E402
import prefixd  # noqa: E402
from prefixd import wire  # noqa: E402

OWNER = prefixd.Owner("default", b"s")
BLOCK = 16
BYTES = 4096


def options(**changes):
    """A namespace of tokens, 16 in a block of 4096 bytes."""
    fields = {
        "key_mode": prefixd.KEYS_TOKENS, "flags": prefixd.NS_OPAQUE, "model": "m", "revision": "r1",
        "dtype": "float16", "scales": "", "layers": 1, "kv_heads": 1, "head_dim": 64, "block_tokens": BLOCK,
        "block_bytes": BYTES, "layout": "opaque", "windows": "", "adapter": "", "tp_size": 1, "tp_rank": 0,
        "engine": "test", "digest_len": 0, "seed_probe": b"",
    }  # fmt: skip
    return prefixd.NamespaceOptions(**{**fields, **changes})


def digests(**changes):
    """A namespace of digests of 16 bytes."""
    return options(**{"key_mode": prefixd.KEYS_DIGEST, "digest_len": 16, "seed_probe": b"p", **changes})


def prompt(seed, n_tokens):
    """Token ids that differ from those of every other seed at once."""
    return [(seed * 1000003 + i * 7919) % 50000 for i in range(n_tokens)]


def fill(lease, todo, seed):
    """Bytes that tell which block of which prompt they are."""
    for i, slot in enumerate(todo.slots):
        lease.room[slot][:] = (seed * 31 + todo.first + i) % 251


def right(lease, slots, seed):
    """Whether these blocks hold what fill() wrote, each byte of them."""
    return all((lease.pool[s] == (seed * 31 + i) % 251).all() for i, s in enumerate(slots))


def store(ns, seed, n_blocks, owner=OWNER):
    """Puts a prompt of whole blocks; returns its tokens."""
    ids = prompt(seed, n_blocks * BLOCK)
    with ns.match(owner, tokens=ids) as lease:
        left = n_blocks - lease.result.n_device
        while left:
            todo = lease.reserve(left)
            fill(lease, todo, seed)
            lease.commit(todo.n)
            left -= todo.n
    return ids


def descriptors():
    """What this process has open: number -> what it is.  Without the directory that is being read."""
    out = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            out[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    return out


def wait_until(what, seconds=5.0):
    """Polls what() until it is true; returns its last value."""
    until = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() >= until:
            return value
        time.sleep(0.005)


class Daemon(daemon.Daemon):
    """A daemon that listens already: its socket's file is there a moment before anybody does."""

    def start(self):
        super().start()
        with socket.socket(socket.AF_UNIX) as s:
            wait_until(lambda: s.connect_ex(self.socket) == 0, 20)
        return self


class Fake:
    """A socket whose `answer(self, connection, header, body)` is the daemon; what it raises is kept.

    `with Fake(answer) as fake: Client(fake.path)`.  hello() and reply() make right frames, so that a test
    says only what is wrong about its own.
    """

    BOOT = b"B" * 16

    POOL = b"P" * 16

    def __init__(self, answer, boot=BOOT, speaks=wire.VERSION):
        self.answer = answer
        self.boot = boot
        self.speaks = speaks
        self.seen = []
        self.errors = []
        self.connections = 0

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="prefixd-test-")
        self.path = os.path.join(self.dir.name, "s")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.stop, self.wake = socket.socketpair()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.wake.close()
        self.thread.join(10)
        self.listener.close()
        self.stop.close()
        self.dir.cleanup()

    def serve(self):
        open_ones = {}
        while True:
            ready, _, _ = select.select([self.stop, self.listener, *open_ones], [], [])
            if self.stop in ready:
                break
            for s in ready:
                if s is self.listener:
                    connection = s.accept()[0]
                    self.connections += 1
                    open_ones[connection] = bytearray()
                    continue
                try:
                    self.take(s, open_ones)
                except OSError:
                    open_ones.pop(s).clear()
                    s.close()
                except Exception as error:  # shown by the test, whose assertions will miss an answer
                    self.errors.append(error)
                    open_ones.pop(s).clear()
                    s.close()
        for s in open_ones:
            s.close()

    def take(self, s, open_ones):
        data = s.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        held = open_ones[s]
        held += data
        while len(held) >= wire.HEADER_LEN:
            h = wire.header_decode(held, wire.MAX_FRAME_LIMIT)
            end = wire.HEADER_LEN + h.len
            if len(held) < end:
                return
            name = wire.OP_NAMES[h.op]
            body = wire.request_body(name, h.version).decode(bytes(held[wire.HEADER_LEN : end]))
            del held[:end]
            self.seen.append((name, body))
            self.answer(self, s, h, body)

    def reply(self, h, values, *, status=0, seq=None, op=None, boot=None):
        name = op or wire.OP_NAMES[h.op]
        version = self.speaks if name == "HELLO" and not status else h.version
        body = (wire.MESSAGES["error"] if status else wire.reply_body(name, version)).encode(values)
        seq = h.seq if seq is None else seq
        head = wire.Header(wire.OPS[name].code, len(body), status, seq, boot or self.boot, h.version)
        return wire.header_encode(head) + body

    def hello(self, h, **changes):
        tenants = b"\x01\x00\x00\x00\x07\x00default"
        fields = {
            "version": self.speaks, "session": 1, "max_frame": 1 << 20, "max_keys": 65536, "max_namespaces": 16,
            "max_leases": 100, "op_ids_kept": 10, "op_ids_kept_ms": 1000, "daemon": "fake", "tenants": tenants,
            "n_orphans": 0, "orphans_boot": wire.NO_ID,
        }  # fmt: skip
        return self.reply(h, {**fields, **changes}, op="HELLO")

    def opened(self, h, body, slots=4, **changes):
        """(frame, descriptors) of OPEN, with a pool of so many slots."""
        stride = (body["block_bytes"] + 63) // 64 * 64
        fields = {
            "ns": 1, "flags": 0, "digest": b"d" * 32, "key_len": 4 * body["block_tokens"],
            "block_tokens": body["block_tokens"], "block_bytes": body["block_bytes"], "group": 0, "n_slots": slots,
            "slot_stride": stride, "pool_len": slots * stride, "n_pool_fds": 2, "pool": self.POOL,
        }  # fmt: skip
        fds = []
        for size in (slots * stride, 4096):
            fd = os.memfd_create("fake")
            os.ftruncate(fd, size)
            fds.append(fd)
        return self.reply(h, {**fields, **changes}), fds

    @staticmethod
    def pass_fds(s, data, fds):
        socket.send_fds(s, [data], fds)
        for fd in fds:
            os.close(fd)
