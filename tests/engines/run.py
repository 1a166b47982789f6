#!/usr/bin/env python3
"""Run the engines' tests, each in its own virtual environment, and count all cases.

    run.py BUILD [ENGINE...]        BUILD/engines/ENGINE is made by .ci/engines/ENGINE.sh

An engine that cannot be set up skips its tests with the reason.  The cases named in must_show.txt may
not be skipped, nor be missing: such a case fails.  The last line is `N passed, N failed, N skipped`.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
SOURCES = ["clients/python/src", "clients/vllm/src", "clients/sglang/src", "clients/lmcache/src"]
ENGINES = ["llama", "vllm", "sglang", "lmcache"]
LINE = re.compile(r"(not )?ok \d+ - (\S+)(?: # SKIP ?(.*))?$")


class Counts:
    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []

    def add(self, name, verdict, note=""):
        {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}[verdict].append(name)
        print(f"{verdict:8} {name}{'  (' + note + ')' if note else ''}", flush=True)


def must_show():
    """{file: [case, ...]} of must_show.txt."""
    wanted = {}
    for line in (HERE / "must_show.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            file, case = line.split()
            wanted.setdefault(file, []).append(case)
    return wanted


def set_up(engine, folder):
    """'' when the engine is there, else why not."""
    script = TREE / ".ci/engines" / f"{engine}.sh"
    start = time.monotonic()
    log = folder.parent / f"{engine}.log"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        code = subprocess.run([str(script), str(folder)], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                              check=False).returncode
    print(f"==== {engine}: set up in {time.monotonic() - start:.0f} s{'' if code == 0 else ', FAILED'}", flush=True)
    if code == 0:
        return ""
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    return f"cannot set up {engine}: {last[0] if last else 'no output'} (whole log: {log})"


def environment(build, folder, engine):
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(str(TREE / source) for source in SOURCES)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["PREFIXD_BIN"] = str(build / "daemon/prefixd")
    env["PREFIXCTL_BIN"] = str(build / "clients/ctl/prefixctl")
    if engine == "llama":
        env["PREFIXD_LLAMA_BIN"] = str(folder / "build/clients/llama/prefixd-llama")
        env["PREFIXD_LLAMA_MODEL"] = str(folder / "model.gguf")
        env["PREFIXD_LLAMA_DIR"] = str(folder)
    return env


def run_file(file, python, env, wanted, counts):
    start = time.monotonic()
    minutes = 30
    try:
        done = subprocess.run([python, str(TREE / "tests/lib/tap.py"), str(file)], env=env, stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, timeout=minutes * 60, check=False, cwd=TREE)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        text, code = (late.stdout or b"").decode(errors="replace"), "later than allowed"
    seen, failed = set(), False
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            if line.startswith("#"):
                print(line)
            continue
        bad, case, reason = match.groups()
        seen.add(case)
        name = f"{file.stem} {case}"
        if bad:
            failed = True
            counts.add(name, "failed")
        elif reason is not None and case in wanted:
            counts.add(name, "failed", f"may not be skipped: {reason}")
        elif reason is not None:
            counts.add(name, "skipped", reason)
        else:
            counts.add(name, "passed")
    for case in wanted:
        if case not in seen:
            counts.add(f"{file.stem} {case}", "failed", "did not run")
    if code != 0 and not failed and not (set(wanted) - seen):
        counts.add(f"{file.stem} (whole file)", "failed", f"exit {code}")
    print(f"==== {file.name}: {time.monotonic() - start:.0f} s", flush=True)


def main(args):
    build = Path(args[0]).resolve()
    engines = args[1:] or ENGINES
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown:
        sys.exit(f"run.py: no engine is called {unknown[0]}; there are {', '.join(ENGINES)}")
    wanted, counts = must_show(), Counts()
    for engine in engines:
        folder = build / "engines" / engine
        reason = set_up(engine, folder)
        python = sys.executable if engine == "llama" else str(folder / "bin/python")
        for file in sorted(HERE.glob(f"test_{engine}*.py")):
            needed = wanted.get(file.name, [])
            if reason:
                for case in needed:
                    counts.add(f"{file.stem} {case}", "failed", f"may not be skipped: {reason}")
                if not needed:
                    counts.add(f"{file.stem} (whole file)", "skipped", reason)
                continue
            run_file(file, python, environment(build, folder, engine), needed, counts)
        for name in sorted(set(wanted) - {file.name for file in HERE.glob("test_*.py")}):
            if name.startswith(f"test_{engine}"):
                counts.add(name, "failed", "must_show.txt names a file that is not there")
    print(f"{len(counts.passed)} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped")
    return 1 if counts.failed or not counts.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
