#!/bin/sh
# check_readmes.sh SOURCE_ROOT - every folder explains itself.
#
# A folder has a README.md that names each of its .c and .h files; a pair of one name needs one of
# the two, or "file.[ch]".  A document that a text names exists.

# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

sources=$(files c h)
found=$(
	{
		printf '%s\n' clients tests tests/bench
		printf '%s\n' "$sources" | sed -nE 's,^((radix|proto|gpu|daemon|clients/[^/]+))/.*,\1,p'
	} | sort -u | while IFS= read -r dir; do
		[ -d "$dir" ] || continue
		if [ ! -f "$dir/README.md" ]; then
			echo "$dir:1: has no README.md"
			continue
		fi
		printf '%s\n' "$sources" | grep -E "^$dir/[^/]+\$" | while IFS= read -r file; do
			name=${file##*/}
			stem=$(printf '%s\n' "${name%.*}" | sed 's/[.+-]/[&]/g')
			grep -qE "(^|[^A-Za-z0-9_-])$stem\\.([ch]|\\[ch\\])([^A-Za-z0-9_]|\$)" "$dir/README.md" ||
				echo "$dir/README.md:1: does not mention $name"
		done
	done

	# Names of documents, but not those at the end of an address in the web.
	files c h md | xargs -r awk '{
		line = $0
		gsub(/[a-z]+:\/\/[^ )>]*/, "", line)
		while (match(line, /[A-Za-z0-9_.\/-]+\.md/)) {
			print FILENAME ":" FNR ":" substr(line, RSTART, RLENGTH)
			line = substr(line, RSTART + RLENGTH)
		}
	}' | while IFS=: read -r file line name; do
		case $file in
		*/*) dir=${file%/*} ;;
		*) dir=. ;;
		esac
		[ -f "$name" ] || [ -f "$dir/$name" ] || echo "$file:$line: there is no $name"
	done
)
finish "$found"
