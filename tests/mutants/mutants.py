#!/usr/bin/env python3
"""Do the tests notice?  Each *.patch beside this file is one small fault; its first line names the
rule that it breaks.

For each chosen patch: apply it to a copy of the sources, build the test programs of its folder, run
them from the fastest on, and take the patch out again.  The first test that fails has caught it.
A patch that no test notices, that does not apply or does not build is missed; one line per patch, and
the last one counts them.  The tree itself is only read: copies and objects live in build-mut/.

Before the first fault all these tests must pass without one, or catching would mean nothing.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Folder of the fault -> folders of tests that should notice, the second ones only if the first do not.
WATCHERS = {
    'radix': (('radix',), ('engine', 'fuzz')),
    'proto': (('proto', 'fuzz'), ('engine',)),
    'gpu': (('gpu',), ('kernels',)),
    'daemon': (('engine', 'fuzz'), ()),
    'daemon/redis': (('redis',), ('fuzz',)),
    'daemon/keep': (('keep',), ()),  # a suite of tests/e2e
    'daemon/words': (('words',), ()),  # likewise
    'clients/c': (('cache',), ()),  # likewise
}
KEPT = tuple('daemon/' + name for name in ('carrier', 'holder', 'inherit', 'keep', 'pools', 'region', 'restore', 'upgrade'))
E2E = {'keep', 'words', 'cache'}
SUITES = {'unit', 'fuzz'} | E2E
OPTIONS = ['-Doptimization=1', '-Ddebug=false', '-Dwerror=false']


class Patch:
    def __init__(self, path):
        self.path = path
        self.name = path.stem
        text = path.read_text()
        self.rule = text.split('\n', 1)[0]
        self.files = re.findall(r'^\+\+\+ b/(\S+)', text, re.M)
        folders = {self.folder_of(f) for f in self.files}
        if len(folders) != 1 or not folders <= set(WATCHERS):
            sys.exit(f'{path.name}: touches {sorted(folders)}; a fault lies in one of '
                     f'{sorted(WATCHERS)}')
        if self.rule.startswith(('---', 'diff')) or not self.rule:
            sys.exit(f'{path.name}: the first line has to say which rule it breaks')
        self.folder = folders.pop()

    @staticmethod
    def folder_of(name):
        if name.startswith('daemon/redis'):
            return 'daemon/redis'
        if name.startswith(KEPT):
            return 'daemon/keep'
        if name.startswith('daemon/words'):
            return 'daemon/words'
        if name.startswith(('clients/c/device', 'clients/c/kernels', 'clients/c/launch')):
            return 'clients/c'
        return name.split('/')[0]


def sources():
    """Files of the tree: what git knows and would know; without git, all but build folders."""
    top = subprocess.run(['git', '-C', ROOT, 'rev-parse', '--show-toplevel'], capture_output=True,
                         text=True)
    if top.returncode == 0 and pathlib.Path(top.stdout.strip()).resolve() == ROOT:
        git = subprocess.run(['git', '-C', ROOT, 'ls-files', '-co', '--exclude-standard', '-z'],
                             capture_output=True, check=True)
        names = [n for n in git.stdout.decode().split('\0') if n]
    else:
        names = []
        for top, folders, files in os.walk(ROOT):
            folders[:] = [d for d in folders if not d.startswith(('build', '.git'))]
            names += [os.path.relpath(os.path.join(top, f), ROOT) for f in files]
    return [n for n in names if (ROOT / n).is_file()]


def kill_session(number):
    """A program that hangs, with its children: Check gives each of them a group of its own."""
    for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
        try:
            fields = stat.read_text().rsplit(')', 1)[1].split()
            if int(fields[3]) == number:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, IndexError):
            pass  # it ended meanwhile


class Workshop:
    """One copy of the sources and one build folder, used again and again."""

    def __init__(self, base):
        self.src = base / 'src'
        self.obj = base / 'obj'

    def copy(self, names):
        # Only what differs is written, so that only that is compiled again.
        for name in names:
            to = self.src / name
            data = (ROOT / name).read_bytes()
            if not to.is_file() or to.read_bytes() != data:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(data)
                shutil.copymode(ROOT / name, to)
        known = set(names)
        for old in self.src.rglob('*'):
            if old.is_file() and str(old.relative_to(self.src)) not in known:
                old.unlink()

    def prepare(self, names, folders):
        self.copy(names)
        if not (self.obj / 'build.ninja').is_file():
            shutil.rmtree(self.obj, ignore_errors=True)
            self.must(['meson', 'setup', self.obj, self.src] + OPTIONS)
        self.must(['ninja', '-C', self.obj, 'build.ninja'])  # new tests of a changed meson.build
        plan = subprocess.run(['meson', 'introspect', self.obj, '--tests'], capture_output=True,
                              check=True).stdout
        programs = subprocess.run(['meson', 'introspect', self.obj, '--targets'], check=True,
                                  capture_output=True).stdout
        made = {t['id']: os.path.relpath(t['filename'][0], self.obj) for t in json.loads(programs)}
        self.tests = {}
        for t in json.loads(plan):
            suites = {s.split(':')[-1] for s in t['suite']}
            if not SUITES & suites:
                continue
            program = next((a for a in t['cmd'] if a.startswith(f'{self.obj}/tests/')), None)
            if not program:
                continue
            t['target'] = os.path.relpath(program, self.obj)
            t['also'] = [made[d] for d in t.get('depends', []) if d in made]
            t['folder'] = next((s for s in ('keep', 'words', 'cache') if s in suites), t['target'].split('/')[1])
            self.tests.setdefault(t['folder'], []).append(t)
        trouble = self.build(folders)
        if trouble:
            sys.exit(f'the sources do not build:\n{trouble}')

    def must(self, command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f'{" ".join(map(str, command))}\n{done.stdout}{done.stderr}')

    def build(self, folders):
        tests = [t for f in folders for t in self.tests.get(f, [])]
        targets = sorted({name for t in tests for name in [t['target']] + t['also']})
        if not targets:
            return None
        done = subprocess.run(['ninja', '-C', self.obj, '-j', '1'] + targets, capture_output=True,
                              text=True)
        return None if done.returncode == 0 else done.stdout[-2000:]

    def run(self, test, limit):
        """None when it passes, else what failed first."""
        env = {**os.environ, **test['env']}
        with subprocess.Popen(test['cmd'], env=env, cwd=test['workdir'] or self.obj,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, start_new_session=True) as done:
            try:
                out = done.communicate(timeout=limit)[0].decode(errors='replace')
            except subprocess.TimeoutExpired:
                kill_session(done.pid)
                done.communicate()
                return 'does not end'
        if done.returncode == 0:
            return None
        case = re.search(r'^not ok \d+ - [^:\n]*:[^:\n]*:([^:\n]*)', out, re.M)
        return case.group(1) if case else f'exit code {done.returncode}'

    def patch(self, patch, *more):
        command = ['patch', '-p1', '-s', '-f', '-r', '-', '--no-backup-if-mismatch', *more]
        with open(patch.path) as text:
            return subprocess.run(command, cwd=self.src, stdin=text,
                                  capture_output=True).returncode == 0


class Hunt:
    def __init__(self, shops, seconds):
        self.shops = shops
        self.seconds = seconds  # of each test without a fault
        self.lock = threading.Lock()
        self.caught = self.missed = 0

    def in_order(self, shop, folders):
        tests = [t for f in folders for t in shop.tests.get(f, [])]
        return sorted(tests, key=lambda t: self.seconds[t['name']])

    def notice(self, shop, patch):
        """(caught, text) for an applied patch."""
        for folders in WATCHERS[patch.folder]:
            trouble = shop.build(folders)
            if trouble:
                return False, f'DOES NOT BUILD\n{trouble}'
            for test in self.in_order(shop, folders):
                case = shop.run(test, 20 + 5 * self.seconds[test['name']])
                if case:
                    return True, f'caught by {test["name"]}: {case}'
        return False, 'MISSED: no test notices'

    def one(self, shop, patch):
        if not shop.patch(patch, '--dry-run'):
            return False, 'MISSED: does not apply to the sources as they are'
        shop.patch(patch)
        try:
            return self.notice(shop, patch)
        finally:
            for name in patch.files:  # from the tree, whatever the patch did
                (shop.src / name).write_bytes((ROOT / name).read_bytes())

    def work(self, shop, patches):
        while True:
            try:
                patch = patches.get_nowait()
            except queue.Empty:
                return
            caught, text = self.one(shop, patch)
            with self.lock:
                self.caught += caught
                self.missed += not caught
                print(f'{patch.name:34} {text}', flush=True)
                if not caught:
                    print(f'{"":34} rule: {patch.rule}', flush=True)


def baseline(shop, folders):
    seconds = {}
    for f in folders:
        for test in shop.tests.get(f, []):
            begin = time.monotonic()
            case = shop.run(test, 300)
            seconds[test['name']] = time.monotonic() - begin
            if case:  # a busy machine is not a fault: once more, and say so
                print(f'{test["name"]} failed without any fault: {case}', flush=True)
                case = shop.run(test, 300)
            if case:
                sys.exit(f'{test["name"]} fails without any fault: {case}')
    return seconds


def choose(args):
    patches = [Patch(p) for p in sorted(HERE.glob('*.patch'))]
    if args.quick:
        patches = [p for p in patches if not E2E & set(WATCHERS[p.folder][0])]
    if args.names:
        chosen = [p for p in patches if p.name in args.names]
        unknown = set(args.names) - {p.name for p in chosen} - {'all'}
        if unknown:
            sys.exit(f'no such patch: {" ".join(sorted(unknown))}')
        return patches if 'all' in args.names else chosen
    if args.share:
        seed = args.seed if args.seed is not None else random.randrange(1 << 32)
        print(f'a share of {args.share} %, seed {seed}')
        n = max(1, round(len(patches) * args.share / 100))
        return sorted(random.Random(seed).sample(patches, n), key=lambda p: p.name)
    return patches


def check_applies(patches):
    """Dry runs only: a test of the patches themselves."""
    bad = 0
    for patch in patches:
        with open(patch.path) as text:
            done = subprocess.run(['patch', '-p1', '-s', '-f', '-r', '-', '--dry-run'], cwd=ROOT,
                                  stdin=text, capture_output=True, text=True)
        if done.returncode:
            bad += 1
            print(f'{patch.name}: does not apply to the sources as they are\n{done.stdout}')
    print(f'{len(patches) - bad} of {len(patches)} patches apply')
    return 1 if bad or not patches else 0


def main():
    ap = argparse.ArgumentParser(description='Do the tests notice small faults?')
    ap.add_argument('names', nargs='*', help='patches by name, without .patch; none, or all: all')
    ap.add_argument('--share', type=int, help='only this many percent of them, by chance')
    ap.add_argument('--quick', action='store_true', help='none for which whole daemons must be run')
    ap.add_argument('--seed', type=int, help='of that choice; printed where it is not given')
    ap.add_argument('--jobs', type=int, default=os.cpu_count(), help='copies to work in')
    ap.add_argument('--applies', action='store_true', help='only see whether the patches apply')
    args = ap.parse_args()
    patches = choose(args)
    if args.applies:
        return check_applies(patches)
    begin = time.monotonic()
    names = sources()
    n = max(1, min(args.jobs, len(patches)))
    shops = [Workshop(ROOT / 'build-mut' / str(i)) for i in range(n)]
    folders = sorted({f for p in patches for some in WATCHERS[p.folder] for f in some})
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        list(pool.map(lambda s: s.prepare(names, folders), shops))
    hunt = Hunt(shops, baseline(shops[0], folders))
    print(f'{len(patches)} faults, {len(hunt.seconds)} tests that pass without one, '
          f'{time.monotonic() - begin:.0f} s to get ready', flush=True)
    todo = queue.Queue()
    for patch in patches:
        todo.put(patch)
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        list(pool.map(lambda s: hunt.work(s, todo), shops))
    print(f'{time.monotonic() - begin:.0f} s')
    print(f'mutants: {hunt.caught} caught, {hunt.missed} missed')
    return 1 if hunt.missed or hunt.caught + hunt.missed != len(patches) else 0


if __name__ == '__main__':
    sys.exit(main())
