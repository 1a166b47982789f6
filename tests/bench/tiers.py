#!/usr/bin/env python3
"""Replays public traces over two and three tiers and compares with tiers.tsv.

Two tiers (pool and host memory): a block that comes up keeps its copy in host memory, and is not
written again while it has one.  A cell passes when its hits are at least those of the reference
(a simulation of that rule) and the blocks moved down per request at most a tenth more.

Three tiers (a redis-server that nothing limits): nothing is ever lost, so the hit ratio equals that
of an unbounded cache to five digits; of the blocks stored at least half went from the pool to host
memory and at least half from there to Redis; more than 5 % of the hits come from Redis.  The same
once more with four workers at once: hits and tokens taken over from another worker within 0.1
points of the unbounded cache, and at most one block in a thousand stored twice.

In each: no block corrupt, no call failed, every hit block compared byte for byte.
Exit status: 0 when all cells pass, 1 otherwise, 2 when something cannot be run.
"""
import argparse
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import reference

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--bin', required=True, help='folder of prefixd and prefixd-replay')
    p.add_argument('--traces', required=True, help='folder of the trace files')
    p.add_argument('--only', default='', help='only traces whose name contains this')
    p.add_argument('--tiers', default='2,3', help='numbers of tiers, with commas')
    return p.parse_args()


class Redis:
    """A redis-server on a unix socket, without disk and without limit."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix='prefixd-redis.')
        self.socket = os.path.join(self.dir, 'r')

    def __enter__(self):
        self.server = subprocess.Popen(
            ['redis-server', '--port', '0', '--unixsocket', self.socket, '--save', '',
             '--appendonly', 'no', '--dir', self.dir],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while not os.path.exists(self.socket) and time.monotonic() < end:
            time.sleep(0.01)
        return self

    def __exit__(self, *exc):
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def moved(got, which, a, b):
    return got.get(which, {}).get(a, {}).get(b, 0)


def common_faults(got):
    wrong = []
    if got['blocks_corrupt'] or got['errors'] or got['exit']:
        wrong.append(f'{got["blocks_corrupt"]} corrupt, {got["errors"]} errors: '
                     f'{got.get("first_error", "")}')
    if got['blocks_verified'] != got['hit_blocks'] + got['pending_blocks']:
        wrong.append('not every hit block was compared')
    return wrong


def two_tiers(args, row):
    got = reference.run_daemon(
        args, row, 1,
        ['--pool-blocks', row['device_blocks'], '--host-blocks', row['host_blocks'],
         '--watermark', '0'],
        ['--order', 'trace', '--admin-socket', 'ADMIN'])
    down = moved(got, 'demoted_blocks', 'device', 'host') / got['requests']
    wrong = common_faults(got)
    if got['token_hit_ratio'] < float(row['hit']) - 0.0001:  # given to a hundredth of a point
        wrong.append('fewer hits than the reference')
    if down > float(row['down_per_request']) * 1.1:
        wrong.append('more blocks moved down than the reference and a tenth')
    print(f'| {row["trace"]} | {row["device_blocks"]} | {row["host_blocks"]} '
          f'| {row["hit"]} | {got["token_hit_ratio"]:.5f} '
          f'| {row["down_per_request"]} | {down:.1f} '
          f'| {moved(got, "promoted_blocks", "host", "device") / got["requests"]:.1f} '
          f'| {got["blocks_corrupt"]} | {got["elapsed_s"]:.1f} |', flush=True)
    return wrong


def three_tiers(args, row, workers):
    order = 'trace' if workers == 1 else 'concurrent'
    with Redis() as redis:
        got = reference.run_daemon(
            args, row, workers,
            ['--pool-blocks', row['device_blocks'], '--host-blocks', row['host_blocks'],
             '--redis', 'unix:' + redis.socket, '--index-blocks', '1000000', '--redis-ttl', '0',
             '--watermark', '5:10'],
            ['--order', order, '--admin-socket', 'ADMIN'])
    stored = got['blocks_committed']
    to_host = moved(got, 'demoted_blocks', 'device', 'host')
    to_redis = moved(got, 'demoted_blocks', 'host', 'redis')
    hits = got['hit_tokens']
    from_redis = hits['redis'] / max(1, sum(hits.values()))
    ratio = got['token_hit_ratio_with_pending']
    wrong = common_faults(got)
    if workers == 1 and round(got['token_hit_ratio'], 5) != float(row['hit']):
        wrong.append('the hit ratio is not that of an unbounded cache')
    if workers > 1 and abs(ratio - float(row['hit'])) > 0.001:
        wrong.append('the hit ratio is more than 0.1 points off an unbounded cache')
    if workers > 1 and got['blocks_duplicate'] > stored / 1000:
        wrong.append('more than one block in a thousand was stored twice')
    if 2 * to_host < stored or 2 * to_redis < stored:
        wrong.append('less than half of the stored blocks moved down')
    if from_redis <= 0.05:
        wrong.append('5 % of the hits or less came from Redis')
    print(f'| {row["trace"]} | {row["device_blocks"]} | {row["host_blocks"]} | {workers}, {order} '
          f'| {row["hit"]} | {got["token_hit_ratio"]:.5f} | {ratio:.5f} | {stored} '
          f'| {to_host} | {to_redis} | {from_redis * 100:.1f} % | {got["blocks_duplicate"]} '
          f'| {got["blocks_corrupt"]} | {got["elapsed_s"]:.1f} |', flush=True)
    return wrong


def main():
    args = arguments()
    with open(os.path.join(HERE, 'tiers.tsv'), encoding='utf-8') as f:
        rows = [r for r in csv.DictReader(f, delimiter='\t') if args.only in r['trace']]
    missing = sorted({r['trace'] for r in rows
                      if not os.path.exists(os.path.join(args.traces, r['trace'] + '.jsonl.zst'))})
    if missing or not rows:
        print(f'not in {args.traces}: {", ".join(missing) or args.only}; '
              'clients/replay/README.md says where they come from', file=sys.stderr)
        return 2
    bad = []
    if '2' in args.tiers:
        print('| trace | pool | host | hits: at least | measured | down per request: reference '
              '| measured | up per request | corrupt | s |\n|' + ' --- |' * 10, flush=True)
        for row in (r for r in rows if r['redis'] == 'no'):
            bad += [f'{row["trace"]} {row["device_blocks"]}+{row["host_blocks"]}: {fault}'
                    for fault in two_tiers(args, row)]
    if '3' in args.tiers:
        print('\n| trace | pool | host | workers | unbounded | hits | with pending | stored '
              '| pool to host | host to Redis | hits from Redis | twice | corrupt | s |\n|' +
              ' --- |' * 14, flush=True)
        for row in (r for r in rows if r['redis'] == 'yes'):
            for workers in (1, 4):
                bad += [f'{row["trace"]} with Redis, {workers} workers: {fault}'
                        for fault in three_tiers(args, row, workers)]
    print(f'\n{len(bad)} faults')
    for fault in bad:
        print(fault)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
