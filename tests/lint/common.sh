# shellcheck shell=sh
# common.sh - what the lints share.  Sourced with the source root as $1; changes into it.
#
# A lint prints one line per violation, "file:line: what is wrong", and exits 1 when there is one,
# 0 when there is none, 77 when it cannot check here.

LC_ALL=C
export LC_ALL
# shellcheck disable=SC2034 # for those that source this
lint_dir=$(cd "$(dirname "$0")" && pwd) || exit 2
cd "${1:?usage: $0 SOURCE_ROOT}" || exit 2

# files EXT...: the files of the project with these extensions, one a line, root-relative.  What git
# tracks; in an unpacked archive, everything outside folders called build*.
files() {
	pattern=
	for ext in "$@"; do
		pattern="$pattern${pattern:+|}\\.$ext"
	done
	if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
		git ls-files
	else
		find . \( -name .git -o -name 'build*' \) -type d -prune -o -type f -print | sed 's,^\./,,'
	fi | grep -E "($pattern)\$" | sort | while IFS= read -r file; do
		[ -f "$file" ] && printf '%s\n' "$file"
	done
	return 0
}

# finish TEXT: exit with the verdict; TEXT is everything that was found.
finish() {
	[ -n "$1" ] || exit 0
	printf '%s\n' "$1"
	exit 1
}
