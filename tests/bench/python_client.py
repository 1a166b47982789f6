#!/usr/bin/env python3
"""Calls per second of the Python client, beside libprefixd called from Python through ctypes.

    python3 tests/bench/python_client.py [--blocks 512] [--rounds 7] [--calls 300]

Each row is MATCH and RELEASE of a prompt that is there whole (512 blocks of 16 tokens), or PING.  Rows take
turns within a round; printed is the median of the rounds, and the least of them.  The daemon is
$PREFIXD_BIN, else build/daemon/prefixd; the library $LIBPREFIXD, else build/clients/c/libprefixd.so, and
without one its rows are left out.  Nothing fails here: the figures are to be read.
"""

import argparse
import asyncio
import ctypes
import os
import statistics
import sys
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "clients/python/src"), str(TREE / "tests/lib")]

import numpy as np  # noqa: E402
import prefixd  # noqa: E402
import prefixd.aio  # noqa: E402
from daemon import Daemon  # noqa: E402

OWNER = prefixd.Owner("default", b"")
TEXTS = ("model", "revision", "dtype", "scales", "layout", "windows", "adapter", "engine")


def options(**changes):
    fields = {
        "key_mode": prefixd.KEYS_TOKENS, "flags": prefixd.NS_OPAQUE, "model": "bench", "revision": "1",
        "dtype": "float16", "scales": "", "layers": 1, "kv_heads": 1, "head_dim": 64, "block_tokens": 16,
        "block_bytes": 4096, "layout": "opaque", "windows": "", "adapter": "", "tp_size": 1, "tp_rank": 0,
        "engine": "bench", "digest_len": 0, "seed_probe": b"",
    }  # fmt: skip
    return prefixd.NamespaceOptions(**{**fields, **changes})


def store(ns, **what):
    with ns.match(OWNER, **what) as lease:
        while lease.slots.size < lease._n_keys:
            lease.commit(lease.reserve(lease._n_keys - lease.slots.size).n)


class Library:
    """libprefixd's pfx_match and pfx_release, with structs as prefixd.h declares them."""

    u32, u64, size, ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p

    class Connect(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("socket", ctypes.c_char_p), ("name", ctypes.c_char_p),
                    ("deadline_ms", ctypes.c_uint32), ("copies", ctypes.c_int)]  # fmt: skip

    class Options(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("key_mode", ctypes.c_int), ("flags", ctypes.c_uint32),
                    *[(n, ctypes.c_char_p) for n in ("model", "revision", "dtype", "scales")],
                    *[(n, ctypes.c_uint32) for n in ("layers", "kv_heads", "head_dim", "block_tokens")],
                    ("block_bytes", ctypes.c_uint64),
                    *[(n, ctypes.c_char_p) for n in ("layout", "windows", "adapter")],
                    ("tp_size", ctypes.c_uint32), ("tp_rank", ctypes.c_uint32), ("engine", ctypes.c_char_p),
                    ("digest_len", ctypes.c_uint32), ("seed_probe", ctypes.c_void_p),
                    ("seed_probe_len", ctypes.c_uint32), ("map", ctypes.c_int)]  # fmt: skip

    class Prompt(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("tenant", ctypes.c_uint32), ("salt", ctypes.c_void_p),
                    ("salt_len", ctypes.c_uint32), ("keys", ctypes.c_void_p), ("n_keys", ctypes.c_uint32),
                    ("tail", ctypes.c_void_p), ("n_tail", ctypes.c_uint32), ("n_tokens", ctypes.c_uint64),
                    ("flags", ctypes.c_uint32), ("parent", ctypes.c_void_p), ("parent_len", ctypes.c_uint32),
                    ("decision_id", ctypes.c_uint8 * 16), ("deadline_ms", ctypes.c_uint32),
                    ("load_ms", ctypes.c_uint32)]  # fmt: skip

    class Result(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("lease", ctypes.c_uint64), ("root", ctypes.c_uint8 * 16),
                    ("n_device", ctypes.c_uint32), ("rest", ctypes.c_uint8 * 128)]  # fmt: skip

    def __init__(self, path, socket, blocks, tokens):
        self.so = ctypes.CDLL(path)
        self.client, self.ns = ctypes.c_void_p(), ctypes.c_void_p()
        connect = self.Connect(ctypes.sizeof(self.Connect), socket.encode(), b"bench", 5000, 0)
        assert self.so.pfx_connect(ctypes.byref(connect), ctypes.byref(self.client)) == 0
        given = vars(options())
        values = {k: v.encode() if k in TEXTS else v for k, v in given.items() if k != "seed_probe"}
        o = self.Options(struct_size=ctypes.sizeof(self.Options), map=1, **values)
        assert self.so.pfx_open(self.client, ctypes.byref(o), ctypes.byref(self.ns)) == 0
        tenant = ctypes.c_uint32()
        assert self.so.pfx_tenant(self.client, b"default", ctypes.byref(tenant)) == 0
        self.tokens = tokens
        self.prompt = self.Prompt(
            struct_size=ctypes.sizeof(self.Prompt), tenant=tenant.value, keys=tokens.ctypes.data, n_keys=blocks
        )
        self.result = self.Result(struct_size=48)  # up to n_device
        self.blocks = blocks
        self.so.pfx_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64, *[ctypes.c_uint32] * 3, ctypes.c_void_p]

    def match(self):
        assert self.so.pfx_match(self.ns, ctypes.byref(self.prompt), ctypes.byref(self.result)) == 0
        assert self.result.n_device == self.blocks
        assert self.so.pfx_release(self.ns, self.result.lease, 0, 0, 0, None) == 0

    def ping(self):
        assert self.so.pfx_ping(self.client, 0) == 0


def rows(socket, library, blocks):
    """Name -> a call."""
    client = prefixd.Client(socket, deadline=5)
    tokens = np.arange(blocks * 16, dtype=np.uint32)
    given = tokens.tolist()
    ns, digests = client.open(options()), client.open(options(key_mode=2, digest_len=32, seed_probe=b"p"))
    keys = np.random.default_rng(1).integers(0, 256, (blocks, 32), np.uint8).tobytes()
    store(ns, tokens=tokens)
    store(digests, digests=keys)

    def match(ns, **what):
        def call():
            with ns.match(OWNER, **what) as lease:
                assert lease.slots.size == blocks

        return call

    out = {
        "ping": client.ping,
        "match, tokens as an array": match(ns, tokens=tokens),
        "match, tokens as a list": match(ns, tokens=given),
        "match, digests of 32 bytes": match(digests, digests=keys),
    }
    loop = asyncio.new_event_loop()
    other = prefixd.aio.Client(socket, deadline=5)
    their = loop.run_until_complete(other.open(options()))

    async def one():
        async with their.match(OWNER, tokens=tokens) as lease:
            assert lease.slots.size == blocks

    async def several():
        await asyncio.gather(*(one() for _ in range(8)))

    out["match, asyncio"] = lambda n: loop.run_until_complete(repeat(one, n))
    out["match, asyncio, 8 tasks"] = lambda n: loop.run_until_complete(repeat(several, n // 8))
    if library:
        theirs = Library(library, socket, blocks, tokens)
        out["libprefixd: ping"] = theirs.ping
        out["libprefixd: match"] = theirs.match
    return out


async def repeat(call, n):
    for _ in range(n):
        await call()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=320)
    args = parser.parse_args()
    library = os.environ.get("LIBPREFIXD", str(TREE / "build/clients/c/libprefixd.so"))
    library = library if os.path.exists(library) else None
    with Daemon(pool_blocks=4 * args.blocks) as daemon:
        calls = rows(daemon.socket, library, args.blocks)
        took = {name: [] for name in calls}
        for _ in range(args.rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                if "asyncio" in name:
                    call(args.calls)
                else:
                    for _ in range(args.calls):
                        call()
                took[name].append((time.perf_counter() - start) / args.calls)
    print(f"{args.blocks} blocks of 16 tokens, a match with its release; {args.rounds} rounds of {args.calls}")
    print(f"{'':32}{'median us':>12}{'least us':>12}{'per second':>12}")
    for name, times in took.items():
        middle = statistics.median(times)
        print(f"{name:32}{1e6 * middle:12.1f}{1e6 * min(times):12.1f}{1 / middle:12.0f}")


if __name__ == "__main__":
    main()
