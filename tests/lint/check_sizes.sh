#!/bin/sh
# check_sizes.sh SOURCE_ROOT - files, functions and lines that have grown too long to be read.
#
# .c at most 800 lines, .h at most 300, a function's body at most 100, a line at most 100 columns
# with tabs of 8.  Exceptions are named here, with a limit and a reason.

# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

found=$(files c h | xargs -r awk '
BEGIN {
	# Contracts whose parts are read together: all messages of the protocol; all events, actions
	# and counters of the engine; all calls of the index.
	limit["proto/messages.h"] = 500
	limit["daemon/engine.h"] = 400
	limit["daemon/engine_types.h"] = 350 # all of the state in one place, and what each part means
	limit["radix/index.h"] = 350
}

function end_of_file() {
	max = file ~ /\.h$/ ? 300 : 800
	if (file in limit)
		max = limit[file]
	if (n > max)
		print file ":" n ": " n " lines, at most " max
}

FNR == 1 {
	if (file != "")
		end_of_file()
	file = FILENAME
	body = 0
}

{
	n = FNR
	columns = 0
	line = $0
	gsub(/[\200-\277]/, "", line) # continuation bytes of UTF-8
	while ((tab = index(line, "\t"))) {
		columns = int((columns + tab - 1) / 8) * 8 + 8
		line = substr(line, tab + 1)
	}
	columns += length(line)
	if (columns > 100)
		print file ":" FNR ": " columns " columns, at most 100"
}

/^\{[ \t]*$/ { body = FNR }

/^\}/ {
	if (body && FNR - body + 1 > 100)
		print file ":" body ": a function of " FNR - body + 1 " lines, at most 100"
	body = 0
}

END {
	if (file != "")
		end_of_file()
}
')
finish "$found"
