#!/usr/bin/env python3
"""Replays the public traces against a fresh daemon for each cell of reference.tsv and compares.

A cell is a trace, a pool size and a number of workers.  It passes when
    - the token hit ratio is within 0.1 points of the reference, both signs (a pool that holds
      everything: equal to five digits), and the request hit ratio likewise,
    - no block was corrupt, no call failed, and every hit block was compared byte for byte.
Exit status: 0 when all cells pass, 1 otherwise, 2 when something cannot be run.
"""
import argparse
import concurrent.futures
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
POINTS = 0.1
SLACK = 64  # blocks beyond the unique ones, for a pool that holds everything


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--bin', required=True, help='folder of prefixd and prefixd-replay')
    p.add_argument('--traces', required=True, help='folder of the trace files')
    p.add_argument('--only', default='', help='only traces whose name contains this')
    p.add_argument('--workers', default='1,4', help='numbers of workers, with commas')
    p.add_argument('--jobs', type=int, default=2, help='daemons that run side by side')
    return p.parse_args()


def wait_for(path, daemon, log, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if daemon.poll() is not None:
            break
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.connect(path)
                return
            except OSError:
                time.sleep(0.01)
    with open(log, encoding='utf-8', errors='replace') as f:
        raise RuntimeError('prefixd did not come up: ' + f.read()[-2000:])


def run_daemon(args, row, workers, daemon_options, replay_options=('--order', 'trace')):
    """One daemon, one replay; the replay's JSON."""
    directory = tempfile.mkdtemp(prefix='prefixd-reference.')
    sock = os.path.join(directory, 's')
    admin = os.path.join(directory, 'a')
    log = os.path.join(directory, 'log')
    daemon = None
    try:
        with open(log, 'w', encoding='utf-8') as err:
            daemon = subprocess.Popen(
                [os.path.join(args.bin, 'prefixd'), '--socket', sock, '--admin-socket', admin,
                 '--device', 'host', '--keep', 'none', *daemon_options],
                stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        wait_for(sock, daemon, log, 60)
        replay = subprocess.run(
            [os.path.join(args.bin, 'prefixd-replay'), '--socket', sock,
             '--trace', os.path.join(args.traces, row['trace'] + '.jsonl.zst'),
             '--block-tokens', row['block_tokens'], '--block-bytes', '4096',
             '--workers', str(workers), '--progress', 'off', '--json', '-',
             *[o.replace('ADMIN', admin) for o in replay_options]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if not replay.stdout:
            raise RuntimeError('prefixd-replay: ' + replay.stderr[-2000:])
        return json.loads(replay.stdout) | {'exit': replay.returncode}
    finally:
        if daemon:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(directory, ignore_errors=True)


def run_cell(args, row, workers):
    """A cell of reference.tsv."""
    blocks = int(row['capacity_blocks']) + (SLACK if row['policy'] == 'INF' else 0)
    return run_daemon(args, row, workers, ['--pool-blocks', str(blocks), '--watermark', '0'])


def faults(row, got):
    """What is wrong with a cell, as a list of words."""
    wrong = []
    for name in ('token_hit_ratio', 'request_hit_ratio'):
        want = float(row[name])
        if row['policy'] == 'INF':
            if round(got[name], 5) != want:
                wrong.append(f'{name} is not equal to five digits')
        elif abs(got[name] - want) * 100 > POINTS:
            wrong.append(f'{name} is more than {POINTS} points off')
    if got['blocks_corrupt'] or got['errors'] or got['exit']:
        wrong.append(f'{got["blocks_corrupt"]} corrupt, {got["errors"]} errors: '
                     f'{got.get("first_error", "")}')
    if got['blocks_verified'] != got['hit_blocks']:
        wrong.append('not every hit block was compared')
    return wrong


def line(row, workers, got):
    want = float(row['token_hit_ratio'])
    size = 'all' if row['policy'] == 'INF' else f'{float(row["fraction"]) * 100:g} %'
    return (f'| {row["trace"]} | {size} | {row["capacity_blocks"]} | {workers} | {want:.5f} '
            f'| {got["token_hit_ratio"]:.5f} | {(got["token_hit_ratio"] - want) * 100:+.3f} '
            f'| {float(row["request_hit_ratio"]):.5f} | {got["request_hit_ratio"]:.5f} '
            f'| {got["hit_blocks"]} | {got["blocks_verified"]} | {got["blocks_corrupt"]} '
            f'| {got["elapsed_s"]:.1f} |')


def main():
    args = arguments()
    with open(os.path.join(HERE, 'reference.tsv'), encoding='utf-8') as f:
        rows = [r for r in csv.DictReader(f, delimiter='\t') if args.only in r['trace']]
    missing = sorted({r['trace'] for r in rows
                      if not os.path.exists(os.path.join(args.traces, r['trace'] + '.jsonl.zst'))})
    if missing or not rows:
        print(f'not in {args.traces}: {", ".join(missing) or args.only}; '
              'clients/replay/README.md says where they come from', file=sys.stderr)
        return 2
    print('| trace | pool, of all blocks | blocks | workers | reference | measured | points '
          '| requests with a hit: reference | measured | blocks hit | compared | corrupt | s |')
    print('|' + ' --- |' * 13, flush=True)
    bad = []
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        cells = [(row, int(w)) for row in rows for w in args.workers.split(',')]
        running = [pool.submit(run_cell, args, *cell) for cell in cells]
        for (row, workers), future in zip(cells, running):
            name = f'{row["trace"]}, {row["capacity_blocks"]} blocks, {workers} workers'
            try:
                got = future.result()
            except (RuntimeError, OSError) as error:
                bad.append(f'{name}: {error}')
                continue
            print(line(row, workers, got), flush=True)
            bad += [f'{name}: {fault}' for fault in faults(row, got)]
    print(f'\n{len(cells)} cells, {len(bad)} faults, {time.monotonic() - begin:.0f} s')
    for fault in bad:
        print(fault)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
