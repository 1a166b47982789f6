#!/usr/bin/env python3
"""Add up the test cases of meson's JUnit logs: names those that failed, then prints one line,
N passed, N failed, N skipped.

Exits 1 when a case failed or none passed, so that a run which tested nothing is not a success.
"""
import sys
import xml.etree.ElementTree as ElementTree


def main(paths):
    passed = failed = skipped = 0
    for path in paths:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                failed += 1
                print(f"failed: {case.get('classname', '')} {case.get('name', '')} ({path})")
            elif "skipped" in kinds:
                skipped += 1
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
