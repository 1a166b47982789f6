#!/bin/sh
# check_format.sh SOURCE_ROOT - every C file is laid out as .clang-format says.
#
# Other major versions lay out some lines differently, so only the one that the project formats with
# is asked.  `make format` repairs what this finds.

# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

wanted=14
tool=
for name in "clang-format-$wanted" clang-format; do
	if "$name" --version 2>/dev/null | grep -q "version $wanted\\."; then
		tool=$name
		break
	fi
done
if [ -z "$tool" ]; then
	echo "clang-format $wanted is not installed"
	exit 77
fi
[ -f .clang-format ] || { echo ".clang-format: missing"; exit 1; }
found=$(files c h | xargs -r "$tool" --dry-run -Werror 2>&1 | grep -E ': error: |: warning: ' | sort -u)
finish "$found"
