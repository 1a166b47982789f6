#!/usr/bin/env python3
"""Run unittest files and print TAP: one line per case, skips with their reason.

    tap.py FILE.py [FILE.py ...] [--only SUBSTRING]

Nothing but TAP goes to stdout, so that meson and tests/engines/run.py count the same cases; what the
code under test prints goes to stderr.  Exit status 1 when a case failed or none ran.
"""
import importlib.util
import os
import sys
import traceback
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


class Tap(unittest.TestResult):
    def __init__(self, out, number_from=1):
        super().__init__()
        self.out, self.number, self.bad = out, number_from - 1, False
        self.sub_failed = False

    def line(self, ok, test, note="", detail=""):
        self.number += 1
        self.bad |= not ok
        for text in detail.rstrip().splitlines():
            print("#", text, file=self.out)
        words = f"{type(test).__name__}.{test._testMethodName}" if hasattr(test, "_testMethodName") else str(test)
        print(f"{'ok' if ok else 'not ok'} {self.number} - {words}{note}", file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.sub_failed = False

    def addSuccess(self, test):
        if not self.sub_failed:
            self.line(True, test)

    def addSkip(self, test, reason):
        self.line(True, test, f" # SKIP {reason}")

    def addFailure(self, test, err):
        self.line(False, test, detail="".join(traceback.format_exception(*err)))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            first, self.sub_failed = not self.sub_failed, True
            detail = f"in {subtest}\n" + "".join(traceback.format_exception(*err))
            if first:
                self.line(False, test, detail=detail)
            else:
                for text in detail.rstrip().splitlines():
                    print("#", text, file=self.out, flush=True)

    def addExpectedFailure(self, test, err):
        self.line(False, test, detail="expected failures are not used here")

    def addUnexpectedSuccess(self, test):
        self.line(False, test, detail="expected failures are not used here")


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


def load(path):
    path = Path(path).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def main(args):
    only = args.pop(args.index("--only") + 1) if "--only" in args else ""
    files = [arg for arg in args if not arg.startswith("--")]
    # The code under test may print, and so may the processes it starts: stdout is TAP's alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    result = Tap(out)
    print("TAP version 13", file=out, flush=True)
    suite = unittest.TestSuite()
    for file in files:
        try:
            suite.addTests(case for case in cases(load(file)) if only in case.id())
        except unittest.SkipTest as skip:  # raised by the file itself: it needs what is not there
            result.line(True, Path(file).stem, f" # SKIP {skip}")
    suite.run(result)
    print(f"1..{result.number}", file=out, flush=True)
    sys.stdout.flush()
    return 1 if result.bad or not result.number else 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    sys.exit(code)
