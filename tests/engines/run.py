#!/usr/bin/env python3
"""Run the engines' tests, each in its own virtual environment, and count all cases.

    run.py [--light] [--junit FILE] BUILD [ENGINE...]

BUILD/engines/ENGINE is made by .ci/engines/ENGINE.sh.  An engine that cannot be set up skips its tests
with the reason.  The cases named in must_show.txt may not be skipped, nor be missing: such a case fails.
The last line is `N passed, N failed, N skipped`.

--light is what CI runs: the API, a short conversation, the tests in C; an engine that is not there within
five minutes is skipped with a word, and nothing must be shown.  --junit also writes the cases in the form
that .ci/count.py reads.
"""
import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
SOURCES = ["clients/python/src", "clients/vllm/src", "clients/sglang/src", "clients/lmcache/src"]
ENGINES = ["llama", "vllm", "sglang", "lmcache"]
LIGHT = ["test_llama_api.py", "test_llama_conversation.py"]  # and llama.cpp's tests in C
LINE = re.compile(r"(not )?ok \d+ - (\S+)(?: # SKIP ?(.*))?$")


class Counts:
    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []

    def add(self, name, verdict, note=""):
        {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}[verdict].append(name)
        print(f"{verdict:8} {name}{'  (' + note + ')' if note else ''}", flush=True)

    def write_junit(self, path):
        top = ElementTree.Element("testsuites")
        suite = ElementTree.SubElement(top, "testsuite", name="engines")
        for names, child in ((self.passed, None), (self.failed, "failure"), (self.skipped, "skipped")):
            for name in names:
                case = ElementTree.SubElement(suite, "testcase", classname="engines", name=name)
                if child:
                    ElementTree.SubElement(case, child)
        ElementTree.ElementTree(top).write(path)


def must_show():
    """{file: [case, ...]} of must_show.txt."""
    wanted = {}
    for line in (HERE / "must_show.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            file, case = line.split()
            wanted.setdefault(file, []).append(case)
    return wanted


def set_up(engine, folder, seconds):
    """'' when the engine is there, else why not."""
    steps = [[str(TREE / ".ci/engines" / f"{engine}.sh"), str(folder)]]
    if engine == "llama":
        build = folder / "build"
        if not (build / "build.ninja").exists():
            steps.append(["meson", "setup", str(build), f"-Dllama={folder}"])
        steps.append(["ninja", "-C", str(build), "-j", str(os.cpu_count() or 1), "llama"])
    start = time.monotonic()
    log = folder.parent / f"{engine}.log"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        for step in steps:
            left = max(seconds - (time.monotonic() - start), 1)
            try:
                code = subprocess.run(step, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=False, cwd=TREE,
                                      timeout=left).returncode
            except subprocess.TimeoutExpired:
                code = f"not done within {seconds:.0f} s"
            if code:
                break
    print(f"==== {engine}: set up in {time.monotonic() - start:.0f} s{'' if code == 0 else ', FAILED'}", flush=True)
    if code == 0:
        return ""
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    return f"cannot set up {engine}: {code if isinstance(code, str) else last[0] if last else 'no output'} (whole log: {log})"


def environment(build, folder, engine, light):
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(str(TREE / source) for source in SOURCES)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["PREFIXD_BIN"] = str(build / "daemon/prefixd")
    env["PREFIXCTL_BIN"] = str(build / "clients/ctl/prefixctl")
    if light:
        env["PREFIXD_ENGINES_LIGHT"] = "1"
    if engine == "llama":
        env["PREFIXD_LLAMA_BIN"] = str(folder / "build/clients/llama/prefixd-llama")
        env["PREFIXD_LLAMA_MODEL"] = str(folder / "model.gguf")
        env["PREFIXD_LLAMA_DIR"] = str(folder)
    return env


def run_file(file, python, env, wanted, counts, only=""):
    start = time.monotonic()
    minutes = 30
    try:
        command = [python, str(TREE / "tests/lib/tap.py"), str(file)] + (["--only", only] if only else [])
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE,
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


def run_meson(folder, counts):
    """The tests in C of an engine's own build, as meson counts them."""
    log = folder / "build/meson-logs/testlog.junit.xml"
    log.unlink(missing_ok=True)
    code = subprocess.run(["meson", "test", "-C", str(folder / "build"), "--no-rebuild", "--print-errorlogs", "--quiet",
                           "--suite", "llama"], stdin=subprocess.DEVNULL, check=False).returncode
    bad = len(counts.failed)
    for case in ElementTree.parse(log).getroot().iter("testcase") if log.exists() else ():
        kinds = {child.tag for child in case}
        verdict = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts.add(f"{case.get('classname', '')} {case.get('name', '')}", verdict)
    if code and bad == len(counts.failed):
        counts.add("meson test --suite llama", "failed", f"exit {code}")


def run_engine(engine, args, wanted, counts):
    folder = args.build / "engines" / engine
    reason = set_up(engine, folder, 300 if args.light else 3600)
    python = sys.executable if engine == "llama" else str(folder / "bin/python")
    env = environment(args.build, folder, engine, args.light)
    for file in sorted(HERE.glob(f"test_{engine}*.py")):
        if args.light and file.name not in LIGHT:
            continue
        needed = wanted.get(file.name, [])
        if not reason:
            run_file(file, python, env, needed, counts)
            continue
        for case in needed:
            counts.add(f"{file.stem} {case}", "failed", f"may not be skipped: {reason}")
        if not needed:
            counts.add(f"{file.stem} (whole file)", "skipped", reason)
    if engine in ("vllm", "sglang", "lmcache") and not reason:
        # Is the interface that the connector was written for the one that is installed?
        run_file(TREE / "tests/connectors/test_signatures.py", python, env, [], counts, only=f"Signatures_{engine}.")
    if engine == "llama" and not reason:
        run_meson(folder, counts)
    for name in sorted(set(wanted) - {file.name for file in HERE.glob("test_*.py")}):
        if name.startswith(f"test_{engine}"):
            counts.add(name, "failed", "must_show.txt names a file that is not there")


def main():
    parser = argparse.ArgumentParser(description="run the engines' tests, each in its own environment")
    parser.add_argument("--light", action="store_true", help="the short part, for CI")
    parser.add_argument("--junit", help="write the cases to this file too")
    parser.add_argument("build", type=lambda text: Path(text).resolve(), help="build folder of the project")
    parser.add_argument("engines", nargs="*", default=ENGINES, metavar="ENGINE", help=", ".join(ENGINES))
    args = parser.parse_args()
    unknown = [engine for engine in args.engines if engine not in ENGINES]
    if unknown:
        parser.error(f"no engine is called {unknown[0]}; there are {', '.join(ENGINES)}")
    counts = Counts()
    wanted = {} if args.light else must_show()
    for engine in args.engines:
        run_engine(engine, args, wanted, counts)
    if args.junit:
        counts.write_junit(args.junit)
    print(f"{len(counts.passed)} passed, {len(counts.failed)} failed, {len(counts.skipped)} skipped")
    # A light run whose engine could not be had has skipped everything, and says so: that is no failure.
    return 1 if counts.failed or not (counts.passed or args.light) else 0


if __name__ == "__main__":
    sys.exit(main())
