#!/bin/sh
# check_python.sh SOURCE_ROOT - Python that compiles, fits the page, and whose types are right.
#
# Every .py file compiles under the oldest language that it promises (3.9's grammar); the
# client's have at most 110 columns and no tab, and its package is clean under mypy --strict.  Where mypy
# is not installed the rest alone is looked at, and that is a skip.

# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

python=
for name in /usr/bin/python3 python3; do
	if "$name" -c 'import ast' 2>/dev/null; then
		python=$name
		break
	fi
done
[ -n "$python" ] || { echo "python3 is not installed"; exit 77; }

found=$(
	files py | "$python" -c '
import ast, sys

for path in sys.stdin.read().split("\n"):
    if not path:
        continue
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        ast.parse(text, path, feature_version=(3, 9))
    except SyntaxError as error:
        print(f"{path}:{error.lineno or 1}: {error.msg}")
    if path.startswith("clients/python/"):
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > 110:
                print(f"{path}:{number}: {len(line)} columns, at most 110")
            if "\t" in line:
                print(f"{path}:{number}: a tab")
'
)
[ -z "$found" ] || finish "$found"

[ -d clients/python/src ] || exit 0
if ! "$python" -c 'import mypy, numpy' 2>/dev/null; then
	echo "mypy or numpy is not installed for $python"
	exit 77
fi
found=$("$python" -m mypy --strict --no-error-summary --cache-dir="${MYPY_CACHE_DIR:-/dev/null}" clients/python/src 2>&1)
finish "$found"
