#!/bin/sh
# check_forbidden.sh SOURCE_ROOT - functions, words and paths that do not belong into the sources.
#
# Functions: those that cannot be used safely (no bound, hidden state, a shell), an end of the process
# out of a library or a test's back (a test that calls exit(0) counts as passed), and the allocator in
# the folders that are handed theirs.  Words: notes to oneself.  Paths: those of one machine.

# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

code=$(files c h | xargs -r awk -f "$lint_dir/strip.awk")
mains=$(printf '%s\n' "$code" | sed -n 's/^\([^:]*\):[0-9]*:int main(.*/\1/p' | sort -u)

# calls REGEX: where a function of that name is called or declared; not members, not parts of names.
calls() {
	printf '%s\n' "$code" | grep -E "^[^:]*:[0-9]*:(.*[^A-Za-z0-9_.>])?($1)[[:space:]]*\\(" |
		sed -E 's/^([^:]*:[0-9]*):[[:space:]]*/\1: forbidden here: /'
}

found=$(
	calls 'strcpy|stpcpy|strcat|sprintf|vsprintf|gets|strtok|ato[ilf]|atoll|alloca|system|popen|tmpnam|tempnam|mktemp'

	# A program's own file may exit, and tests' programs may; libraries and the shell may not.
	calls 'exit' | grep -v '^tests/' | while IFS= read -r hit; do
		printf '%s\n' "$mains" | grep -qxF "${hit%%:*}" || printf '%s\n' "$hit"
	done

	calls 'malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|free|strdup|strndup|asprintf|vasprintf' |
		grep -E '^(radix/|proto/|daemon/(engine[^/]*|ledger\.[ch]):)'

	# Put together here, so that this file does not find itself.
	words="TO""DO|FIX""ME|X""XX|HA""CK"
	files c h sh py md build txt awk | xargs -r grep -nwE "$words" /dev/null | sed -E 's/^([^:]*:[0-9]*):/\1: a note to oneself: /'

	blank=$(printf '[ \t]+$')
	files c h sh py md build txt awk | xargs -r grep -nE "$blank" /dev/null | sed -E 's/^([^:]*:[0-9]*):.*/\1: trailing white space/'

	# Tests may make a folder of their own; the six X mark its template.
	machine="(^|[^A-Za-z0-9_.-])/(wo""rk|tm""p|ho""me|ro""ot)/"
	files c h sh py build awk | xargs -r grep -nE "$machine" /dev/null | grep -vE '^tests/[^:]*:.*XXXXXX' |
		sed -E 's/^([^:]*:[0-9]*):/\1: a path of one machine: /'
)
finish "$found"
