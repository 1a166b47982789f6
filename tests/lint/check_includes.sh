#!/bin/sh
# check_includes.sh SOURCE_ROOT - who may include whom.
#
# The folders are a graph of layers: radix/ stands alone, proto/ and gpu/ take its two header-only
# files, the daemon's engine is pure, and clients reach the daemon by the protocol only.  An include
# is where a layer is crossed first, so that is what is checked, for project and system headers.
# Includes are written from the root, and a file's own header comes first, which proves that the
# header stands by itself.

# shellcheck source=tests/lint/common.sh
. "$(dirname "$0")/common.sh"

found=$(files c h | xargs -r awk '
function bad(text) {
	print FILENAME ":" FNR ": " text
}

# One rule per layer: which project headers it may use, which system headers it may use (`only`) or
# may not (`never`), as patterns; the first rule whose path fits is taken.
function rules() {
	pure = "^(errno|limits|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|string)\\.h$"
	simd = "^(immintrin|x86intrin|arm_neon)\\.h$"
	shell = "^(event2/|event\\.h$|evhttp|hiredis/|cuda)"

	if (FILENAME ~ /^radix\//) {
		project = "^radix/"
		only = pure "|" simd "|^xxhash\\.h$"
	} else if (FILENAME ~ /^proto\//) {
		project = "^(proto/|radix/(base|list)\\.h$)"
		only = pure
	} else if (FILENAME ~ /^gpu\//) {
		project = "^(gpu/|radix/(base|list)\\.h$)"
		never = "^(event2/|event\\.h$|hiredis/|sodium|jansson\\.h$|ini\\.h$|zstd|time\\.h$|pthread\\.h$|sys/socket|netinet/)"
	} else if (FILENAME ~ /^daemon\/(engine[^\/]*|(ledger|stripe_sum)\.[ch])$/) {
		project = "^(radix/|proto/|daemon/(engine[^/]*|ledger|stripe_sum|cold)\\.h$)"
		only = pure "|^(inttypes|stdio|sodium|xxhash)\\.h$" # stdio for formatting into memory; see check_pure.sh
	} else if (FILENAME ~ /^daemon\//) {
		project = "^(radix|proto|gpu|daemon)/"
	} else if (FILENAME ~ /^clients\/c\/prefixd(_device)?\.h$/) {
		project = "^$" # installed alone
		only = pure "|^sys/types\\.h$"
	} else if (FILENAME ~ /^clients\/c\//) {
		project = "^(clients/c/|proto/|radix/(base|list)\\.h$)"
		if (FILENAME ~ /^clients\/c\/(device_internal\.h|launch\.c|kernels\.c)$/)
			project = "^(clients/c/|proto/|gpu/(codec|driver|fatbin|kernels)\\.h$|radix/(base|list)\\.h$)" # moves blocks there
		never = shell "|^(sodium|jansson\\.h$|ini\\.h$|zstd)"
	} else if (FILENAME ~ /^clients\/llama\//) {
		project = "^clients/(c|llama)/" # a worker on libprefixd, with a server of its own
		never = "^(hiredis/|cuda)"
	} else if (FILENAME ~ /^clients\//) {
		own = FILENAME
		sub(/\/[^\/]*$/, "/", own)
		project = "^(clients/c/|proto/|radix/base\\.h$|" own ")"
		if (FILENAME == "clients/replay/mover.c")
			project = "^(clients/(c|replay)/|gpu/driver\\.h$)" # a worker with a GPU
		never = shell
	} else {
		project = "."
	}
}

FNR == 1 {
	project = only = never = ""
	first = 1
	own_header = ""
	rules()
	if (FILENAME ~ /\.c$/) {
		own_header = FILENAME
		sub(/c$/, "h", own_header)
		# The list of files holds every header that exists.
		exists = 0
		for (i = 1; i < ARGC; i++)
			exists = exists || ARGV[i] == own_header
		if (!exists)
			own_header = ""
	}
}

/^[ \t]*#[ \t]*include/ {
	name = $0
	sub(/^[ \t]*#[ \t]*include[ \t]*/, "", name)
	kind = substr(name, 1, 1)
	name = substr(name, 2)
	sub(/[">].*$/, "", name)
	own_internal = FILENAME
	sub(/[^\/]*$/, "", own_internal) # an internal header includes the public one
	own_internal = "^" own_internal "([a-z_0-9]*_)?internal\\.h$"
	if (first && own_header != "" && name != own_header && name !~ own_internal)
		bad("its own header \"" own_header "\" comes first")
	first = 0
	if (kind == "\"") {
		if (name ~ /(^|\/)\.\.?\// || name !~ /\//)
			bad("write \"" name "\" from the root")
		else if (name !~ project)
			bad("this layer may not include \"" name "\"")
	} else if (kind == "<") {
		if (only != "" && name !~ only)
			bad("this layer may not include <" name ">")
		if (never != "" && name ~ never)
			bad("this layer may not include <" name ">")
	} else {
		bad("an include that cannot be checked: " $0)
	}
}
')
finish "$found"
