#!/usr/bin/env python3
"""First inputs for the fuzzers of sessions and of the configuration: seeds.py session|config DIR.

For a session the bytes mean what fuzz_session.c reads: each sentence here is one thing that happens.
"""
import pathlib
import random
import sys

STRAIGHT = [255]  # the frame goes out as it is


def connect(n, uid1000=True, admin=False):
    who = (2 if uid1000 else 0) + (n & 1)
    # 96..191 with a free number: connects and says HELLO
    return [96, n] + [248 if admin else who] + [n & 2] + STRAIGHT


def frame(kind, n):
    return [96 + kind, n]  # 96 is a multiple of 16


def open_ns(n, kind, bits=0):
    return frame(1, n) + [kind | bits] + STRAIGHT


def pools(ready=True):
    return [192, 0 if ready else 255]


def match(n, ns, letters, bits=0, more=0, skip=()):
    return frame(2, n) + [ns, bits, more, len(letters), 1] + list(skip) + list(letters) + STRAIGHT


def probe(n, ns, letters, explain=False):
    more = 2 if explain else 1
    return frame(5, n) + [ns, 0, more, len(letters), 0] + list(letters) + STRAIGHT


def lease_op(op, lease, b, letters=()):
    # an id for retries, then letters of further keys
    return [op, lease, b, 1] + list(letters) + STRAIGHT


def extend(lease, letters):
    return lease_op(0, lease, len(letters), letters)


def reserve(lease, n):
    return lease_op(1, lease, n - 1)


def commit(lease, n):
    return lease_op(2, lease, n)


def release(lease):
    return lease_op(3, lease, 0)


def wait(lease):
    return [0, lease, 201] + STRAIGHT


# ---- version 3 ----

STRIPE, WINDOWS, WORDS, CODEC = 2, 8, 1, 128


def connect3(n):
    return [96, n, 2 + (n & 1), 24 + (n & 2)] + STRAIGHT


def open3(n, kind, ask=0, more=0):
    return frame(1, n) + [kind, ask, more] + STRAIGHT


def match3(n, ns, letters, decision=None, more=0):
    out = match(n, ns, letters, 0, more)[:-1]
    return out + ([] if decision is None else [decision]) + STRAIGHT


def lease_op3(op, lease, b, rank=None, word=0, letters=()):
    who = [] if rank is None else [rank]
    return [op, lease, b] + who + [1] + list(letters) + ([word] if op in (2, 3) else []) + STRAIGHT


def again(n):
    return frame(15, n)


def end(n, process=False):
    return [255, n | (4 if process else 0)]


def event(b, *more):
    return [216, b] + list(more)


def store(n, ns, letters, bits=0):
    out = match(n, ns, letters, bits)
    return out + reserve(0, len(letters)) + commit(0, min(len(letters), 4)) + release(0)


def sessions():
    two = connect(0) + connect(1) + open_ns(0, 0) + pools() + open_ns(1, 0)
    yield [16] + two + store(0, 0, [1, 2, 3]) + match(1, 0, [1, 2, 3, 4]) + release(0)
    yield [16] + two + match(0, 0, [1, 2, 3]) + match(1, 0, [1, 2, 3]) + reserve(0, 3) + \
        reserve(1, 3) + commit(0, 3) + commit(1, 3) + release(0) + release(0)
    yield [24] + two + match(0, 0, [1, 2]) + reserve(0, 2) + end(0) + end(0, True) + event(0, 60)
    yield [8] + two + match(0, 0, [1, 2]) + reserve(0, 2) + end(0) + event(0, 60)
    yield [4] + connect(2) + open_ns(2, 0) + pools() + match(2, 0, [5, 6]) + reserve(0, 2) + \
        event(0, 250) + release(0) + frame(6, 2) + STRAIGHT
    yield [16] + two + store(0, 0, [1, 2, 3]) + match(1, 0, [1], more=4) + again(1) + release(0)
    yield [18] + two + [x for i in range(7) for x in store(0, 0, [i, 1, 2, 3])] + event(3 + 16 * 5)
    yield [16] + two + match(0, 0, [1, 2, 3], more=0x80) + match(1, 0, [1, 2, 3]) + wait(1) + \
        reserve(0, 3) + commit(0, 3) + extend(1, []) + release(0) + release(0)
    yield [16] + two + match(0, 0, [1, 2]) + reserve(0, 2) + match(1, 0, [1, 2]) + wait(1) + \
        end(0, True) + wait(1) + event(0, 120) + release(0)
    digests = [80] + connect(0) + open_ns(0, 2, 8) + pools() + open_ns(0, 2, 40)
    yield digests + store(0, 0, [1, 2, 3]) + match(0, 0, [4, 5], more=0x20 | 4 | 2, skip=[1, 2]) + \
        reserve(0, 2) + commit(0, 2) + match(0, 0, [1, 2, 4, 5]) + release(0)
    yield [16] + connect(0) + open_ns(0, 1) + open_ns(0, 0, 4) + pools(False) + open_ns(0, 0) + \
        pools() + store(0, 0, [1, 9]) + probe(0, 0, [1, 9]) + probe(0, 0, [1, 2], True)
    yield [16] + two + match(0, 0, [1, 2, 3]) + reserve(0, 3) + commit(0, 1) + extend(0, [4]) + \
        event(4 + 8) + event(5 + 8) + event(7 + 240) + release(0)
    three = connect3(0) + connect3(1)
    for word in (0, 192, 193, 194, 195):
        yield [16] + three + open3(0, 0, WORDS) + pools() + open3(1, 0) + match3(0, 0, [1, 2, 3]) + \
            lease_op3(1, 0, 2) + lease_op3(2, 0, 3, word=word) + lease_op3(3, 0, 0, word=word) + \
            match3(1, 0, [1, 2, 3]) + lease_op3(3, 0, 0, word=word)
    ranks = three + open3(0, 0, STRIPE) + pools() + open3(1, 0, STRIPE + 4)
    both = match3(0, 0, [1, 2, 3], 1) + match3(1, 0, [1, 2, 3], 1)
    yield [80] + ranks + both + lease_op3(1, 0, 2, 0) + lease_op3(1, 0, 2, 1) + lease_op3(2, 0, 3, 0) + \
        lease_op3(2, 0, 3, 1) + lease_op3(3, 0, 0, 0) + lease_op3(3, 0, 0, 1) + match3(1, 0, [1, 2, 3], 2) + \
        match3(0, 0, [1, 2, 3], 2) + lease_op3(0, 0, 1, 0, letters=[4]) + lease_op3(0, 0, 1, 1, letters=[4])
    yield [88] + ranks + both + lease_op3(1, 0, 2, 1) + end(0) + lease_op3(2, 0, 3, 1) + end(0, True) + \
        lease_op3(3, 0, 0, 1) + event(0, 60)
    yield [80] + ranks + match3(0, 0, [1, 2], 3, more=0x80) + lease_op3(1, 0, 1, 0) + event(15) + \
        match3(1, 0, [1, 2], 3, more=0x80) + pools() + open3(1, 0, STRIPE + 4) + match3(1, 0, [1, 2], 4)
    for ask in (WINDOWS, WINDOWS + 16, WINDOWS + STRIPE):
        yield [16] + three + open3(0, 0, ask) + pools() + open3(1, 0) + \
            [x for i in range(3) for x in match3(0, 0, [i, 1, 2, 3, 4, 5]) + lease_op3(1, 0, 5) +
             lease_op3(2, 0, 4) + lease_op3(2, 0, 2) + lease_op3(0, 0, 2, letters=[6, 7]) + lease_op3(3, 0, 0)] + \
            match3(1, 0, [0, 1, 2, 3, 4]) + match3(0, 0, [0, 1, 2, 3, 4]) + event(3 + 16 * 5)
    for codec in (1, 2, 3, 6):
        yield [16] + three + open3(0, 0, CODEC, codec) + pools() + match3(0, 0, [1, 2], more=8) + lease_op3(1, 0, 1) + \
            lease_op3(2, 0, 2) + lease_op3(3, 0, 0) + match3(0, 0, [1, 2, 3], more=8)
    yield [16] + three + connect(2) + open3(0, 0) + pools() + open_ns(2, 0) + match3(0, 0, [1, 2, 3]) + \
        lease_op3(1, 0, 2) + lease_op3(2, 0, 3) + event(7) + match3(0, 0, [1, 2]) + match(2, 0, [1]) + \
        pools(False) + event(0, 200) + pools() + open3(0, 0) + match3(0, 0, [1, 2, 3]) + open_ns(2, 0)
    yield [0] + connect(0, admin=True) + frame(8, 0) + STRAIGHT + frame(10 + 48, 0)


def configs():
    yield b'--socket\n/run/p.sock\n--pool-blocks=8\n\0\0'
    yield b'--pool-bytes\n8GiB\n--log-level\ndebug\n\0PREFIXD_MAX_KEYS=128\n\0'
    yield b'\0\0[memory]\npool-blocks = 16\n[tenants]\nred = uid:1,uid:2\nblue = any\n'
    yield b'--tenant\nred=any\n--tenant\nred=uid:7\n\0PREFIXD_TENANT=a=any b=uid:3\n\0[limits]\nop-id-age = 500ms\n'
    yield b'--help\n\0\0' b'[limits]\nmax-frame = 64KiB\n; comment\n# comment\n'
    yield b'--pool-block\n3\n\0PREFIXD_POLL_BLOCKS=9\n\0[sockets]\npool-blocks = 1\n'
    yield b'--version\n--print-config\n\0\0socket-mode = 0600\nsocket = /run/x.sock\nadmin-socket = /run/x.sock\n'
    yield b'\0\0[daemon]\ndrain-timeout = 2h\nlog-level = warn\n[limits]\nhello-timeout = 9s\nmax-pins-share = 50\n'


def main():
    what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    inputs = [bytes(i) for i in (sessions() if what == 'session' else configs())]
    if what == 'session':
        rng = random.Random(1)
        inputs += [bytes(rng.randrange(256) for _ in range(600)) for _ in range(20)]
    for i, data in enumerate(inputs):
        (folder / f'seed-{i:02}').write_bytes(data)
    print(len(inputs), 'inputs')


main()
