#!/usr/bin/env python3
"""Times of the Python block store's calls, for small and large blocks.

    python3 tests/bench/python_blockstore.py [--rounds 9]

Rows are the least and the median of the rounds, in microseconds for one block or key, beside a plain copy of
as many bytes by numpy.  Every slot of the pool has been touched before.  The daemon is $PREFIXD_BIN, else
build/daemon/prefixd.  Nothing fails here: the figures are to be read.
"""

import argparse
import hashlib
import statistics
import sys
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "clients/python/src"), str(TREE / "tests/lib")]

import numpy as np  # noqa: E402
import prefixd  # noqa: E402
from daemon import Daemon  # noqa: E402

N = 64
SLOTS = 4 * N


def keys(*words):
    return [hashlib.blake2b(repr((words, i)).encode(), digest_size=32).digest() for i in range(N)]


def measure(name, rounds, n, call):
    times = []
    for i in range(rounds):
        started = time.perf_counter()
        call(i)
        times.append(1e6 * (time.perf_counter() - started) / n)
    print(f"  {name:<34}{min(times):>10.1f}{statistics.median(times):>10.1f}", flush=True)


def run(layers, rounds):
    identity = prefixd.Identity(
        model="bench", revision="1", dtype="float16", layout="block-major", engine="bench 1", adapter="",
        tp_size=1, tp_rank=0, layers=layers, kv_heads=4, head_dim=64, block_tokens=16,
    )  # fmt: skip
    size = identity.block_bytes
    with Daemon(pool_blocks=SLOTS) as daemon:
        owner = prefixd.Owner("default", b"")
        store = prefixd.BlockStore(daemon.socket, identity.digests(32, b"bench"), owner, deadline=30)
        while not store.connect(30):
            time.sleep(0.05)
        blocks = [np.full(size, i, np.uint8) for i in range(N)]
        outs = [np.zeros(size, np.uint8) for _ in range(N)]
        for i in range(SLOTS // N + 1):
            store.insert(keys("touch", i), 0, blocks)
        print(f"blocks of {size} bytes, {N} at a time   least us    median", flush=True)
        measure("plain copy", rounds, N, lambda i: [np.copyto(out, one) for out, one in zip(outs, blocks)])
        measure("insert", rounds, N, lambda i: store.insert(keys("insert", i), 0, blocks))
        path = keys("insert", rounds - 1)
        measure("lookup, close (a whole path)", rounds, 1, lambda i: store.lookup(path).close())

        def read(_):
            with store.lookup(path) as hit:
                assert all(hit.read_many(range(N), outs))

        measure("lookup, read, close", rounds, N, read)
        measure("put, flat keys", rounds, N, lambda i: store.put(keys("put", i), blocks))
        flat = keys("put", rounds - 1)
        measure("get, flat keys", rounds, N, lambda i: store.get(flat, outs))
        measure("contains, flat keys", rounds, N, lambda i: store.contains(flat))
        measure("get, one flat key", rounds, 1, lambda i: store.get(flat[:1], outs[:1]))
        assert not store.stats()["errors"], store.stats()
        store.close()


def main():
    parser = argparse.ArgumentParser(description="times of the Python block store's calls")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for layers in (4, 128):
        run(layers, args.rounds)


if __name__ == "__main__":
    main()
