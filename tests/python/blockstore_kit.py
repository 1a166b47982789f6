"""What tests of the block store share: keys, blocks whose bytes follow from their key, a live daemon."""

import hashlib
import os
import socket
import sys
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "clients/python/src"))
sys.path.insert(0, str(TREE / "tests/lib"))

import numpy as np  # noqa: E402

import prefixd  # noqa: E402
from prefixd.blockstore import BlockStore  # noqa: E402

IDENTITY = prefixd.Identity(
    model="m",
    revision="r1",
    dtype="float16",
    layout="block-major",
    engine="test 1",
    adapter="",
    tp_size=1,
    tp_rank=0,
    layers=2,
    kv_heads=2,
    head_dim=32,
    block_tokens=16,
)
OWNER = prefixd.Owner("default", b"")
N = IDENTITY.block_bytes


def store(daemon, *, deadline=5.0, identity=IDENTITY, owner=OWNER, **more):
    """A store whose deadline is far away: the tests that are about time give their own."""
    return BlockStore(daemon.socket, identity.digests(32, b"probe"), owner, deadline=deadline, **more)


def key(*words):
    return hashlib.blake2b(repr(words).encode(), digest_size=32).digest()


def path(name, n):
    """Digests of a prompt's blocks, each naming all before it."""
    out, at = [], b""
    for i in range(n):
        at = hashlib.blake2b(at + repr((name, i)).encode(), digest_size=32).digest()
        out.append(at)
    return out


def block(key_, n=N):
    """The bytes that belong to a key: every 64 of them say whose they are and where."""
    rows = np.empty((n // 64, 64), np.uint8)
    rows[:] = np.frombuffer(hashlib.blake2b(key_, digest_size=64).digest(), np.uint8)
    rows[:, :4] ^= np.arange(n // 64, dtype="<u4").view(np.uint8).reshape(-1, 4)
    return rows.reshape(-1)


def room(n=1):
    return [np.zeros(N, np.uint8) for _ in range(n)]


def listening(daemon):
    """The daemon once it takes connections: its socket has a name a moment before."""

    def connects():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            return s.connect_ex(daemon.socket) == 0

    assert eventually(connects), daemon.text()
    return daemon


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def eventually(what, seconds=10.0):
    """Whether it comes true: for what happens behind an answer that nobody waits for."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def check_clean(test, daemon):
    """No lease is held, and the daemon's books agree with each other."""
    test.assertTrue(eventually(lambda: daemon.ctl("pins", "--json")["total"] == 0), daemon.ctl("pins"))
    test.assertIn("clean", daemon.ctl("audit"))
