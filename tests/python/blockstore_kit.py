"""What tests of the block store share: keys, blocks whose bytes follow from their key, a live daemon."""

import hashlib
import os
import socket
import sys
import threading
import time
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "clients/python/src"))
sys.path.insert(0, str(TREE / "tests/lib"))

import numpy as np  # noqa: E402
from daemon import Daemon  # noqa: E402

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


class WithDaemon(unittest.TestCase):
    OPTIONS = {"pool_blocks": 256}

    def setUp(self):
        self.daemon = listening(Daemon(**self.OPTIONS).start())
        self.addCleanup(self.daemon.stop)
        self.store = store(self.daemon)
        self.addCleanup(self.store.close)

    def clean(self):
        check_clean(self, self.daemon)


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)


class Traffic:
    """Threads that put, get, insert and look up random keys on one store until told to stop.

    Bytes are checked against the key; `wrong` collects what was not right, `raised` what was raised.
    """

    def __init__(self, store_, n_threads=8, n_keys=400):
        self.store, self.n_keys = store_, n_keys
        self.stop = threading.Event()
        self.wrong, self.raised = [], []
        self.hits = self.misses = self.longest = 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(n_threads)]

    def run(self, n):
        rng = np.random.default_rng(n)
        try:
            while not self.stop.is_set():
                started = time.monotonic()
                hits, misses = self.flat(rng) if rng.random() < 0.5 else self.path(rng)
                with self.lock:
                    self.longest = max(self.longest, time.monotonic() - started)
                    self.hits += hits
                    self.misses += misses
        except BaseException as error:  # the test fails with it
            self.raised.append(error)

    def check(self, k, out):
        if not (out == block(k)).all():
            self.wrong.append(k)

    def flat(self, rng):
        keys = [key("traffic", int(i)) for i in rng.integers(0, self.n_keys, 6)]
        outs = room(6)
        there = self.store.get(keys, outs)
        for k, out, ok in zip(keys, outs, there):
            if ok:
                self.check(k, out)
        missing = [k for k, ok in zip(keys, there) if not ok]
        self.store.put(missing, [block(k) for k in missing])
        return sum(there), len(missing)

    def path(self, rng):
        keys = path(int(rng.integers(0, self.n_keys // 8)), 8)
        with self.store.lookup(keys) as hit:
            n = hit.n
            for i in range(n):
                out = room()[0]
                if hit.read(i, out):
                    self.check(keys[i], out)
        if n < 8:
            self.store.insert(keys, n, [block(k) for k in keys[n:]])
        return n, 8 - n

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def end(self, test):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        test.assertFalse(any(thread.is_alive() for thread in self.threads))
        test.assertEqual(self.raised, [])
        test.assertEqual(self.wrong, [])
