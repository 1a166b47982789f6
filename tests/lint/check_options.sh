#!/bin/sh
# check_options.sh SOURCE_ROOT PREFIXD - the options that exist are the options that are documented.
#
# Each option of `prefixd --help` stands in daemon/README.md or README.md, as --name or `name`.  Each
# --name in daemon/README.md, and in a command line of prefixd in README.md, is one that exists; lines
# that speak of another program are left alone.

prefixd=$(realpath "${2:?usage: $0 SOURCE_ROOT PREFIXD}") || exit 2
# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

help=$("$prefixd" --help) || { echo "$prefixd --help failed"; exit 1; }
options=$(printf '%s\n' "$help" | sed -nE 's/^  (-[A-Za-z], )?--([a-z][a-z0-9-]*).*/\2/p' | sort -u)
[ -n "$options" ] || { echo "$prefixd --help names no option"; exit 1; }

# Names after "--", one a line.
names() {
	grep -oE -e '--[a-z][a-z0-9-]*' | sed 's/^--//'
}

found=$(
	docs=$(cat daemon/README.md README.md 2>/dev/null)
	documented=$({
		printf '%s\n' "$docs" | names
		printf '%s\n' "$docs" | grep -oE '`[a-z][a-z0-9-]*`' | tr -d '`'
	} | sort -u)
	printf '%s\n' "$options" | while IFS= read -r name; do
		printf '%s\n' "$documented" | grep -qxF -e "$name" ||
			echo "daemon/README.md:1: --$name is not documented"
	done

	others='prefixctl|prefixd-replay|meson|ninja|redis|apt-get|git '
	{
		grep -nE -e '--[a-z]' /dev/null daemon/README.md | grep -vE "$others"
		[ ! -f README.md ] || grep -nE '(^|[^a-z-])prefixd( .*)? --[a-z]' /dev/null README.md | grep -vE "$others"
	} | while IFS=: read -r file line text; do
		printf '%s\n' "$text" | names | while IFS= read -r name; do
			printf '%s\n' "$options" | grep -qxF -e "$name" ||
				echo "$file:$line: prefixd has no --$name"
		done
	done
)
finish "$found"
