#!/bin/sh
# The main job, to look at: a daemon on the host pool, four workers, requests, a table.
# Usage: demo.sh BIN [TRACE]
# Needs no rights.  Everything lives in one temporary directory and is gone at the end; the daemon is
# stopped by its process id, also when the demo is interrupted.
set -eu
bin=${1:?usage: demo.sh BIN [TRACE]}
trace=${2:-}
dir=$(mktemp -d "${TMPDIR:-/tmp}/prefixd-demo.XXXXXX")
export PREFIXD_KEEP=none # nothing is to survive the demo
daemon=

finish() {
	status=$?
	trap - EXIT
	if [ -n "$daemon" ]; then
		kill "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	rm -rf "$dir"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
trap 'exit 141' PIPE # as in `make demo | head`

say() {
	printf '\n%s\n' "$*"
}

# start BLOCKS: a fresh daemon, ready for workers.
start() {
	"$bin/prefixd" --socket "$dir/worker" --admin-socket "$dir/admin" --device host \
		--pool-blocks "$1" >"$dir/log" 2>&1 &
	daemon=$!
	tries=0
	until "$bin/prefixctl" --admin-socket "$dir/admin" ping >/dev/null 2>&1; do
		tries=$((tries + 1))
		if ! kill -0 "$daemon" 2>/dev/null || [ $tries -gt 100 ]; then
			echo "prefixd did not start:" >&2
			cat "$dir/log" >&2
			daemon=
			exit 1
		fi
		sleep 0.05
	done
}

stop() {
	kill "$daemon"
	wait "$daemon" || true
	daemon=
}

# replay BLOCKS WHAT...: one replay against a daemon of that size.
replay() {
	blocks=$1
	shift
	start "$blocks"
	"$bin/prefixd-replay" --socket "$dir/worker" --workers 4 --order concurrent "$@"
	echo "  what the daemon says (prefixctl status):"
	"$bin/prefixctl" --admin-socket "$dir/admin" status | head -n 12 | sed 's/^/    /'
	stop
}

if [ -n "$trace" ]; then
	if [ ! -r "$trace" ]; then
		echo "demo: cannot read $trace" >&2
		exit 2
	fi
	# The name says how many tokens a block has where it is not 512: NAME_16, NAME_256.
	tokens=$(basename "$trace" | sed -n 's/^[^.]*_\([0-9][0-9]*\)\..*$/\1/p')
	case $tokens in
	16 | 32 | 64 | 128 | 256 | 512 | 1024) ;;
	*) tokens=512 ;;
	esac
	say "Four workers replay $trace (blocks of $tokens tokens) through one pool of 128 MiB."
	replay 32768 --trace "$trace" --block-tokens "$tokens"
else
	say "Four workers, chats under shared system prompts, a pool of 128 MiB (4 KiB stand for a block's K/V)."
	say "Every block that is hit is compared byte for byte with what its prefix says."
	replay 32768 --workload chat
	say "RAG: questions over fixed documents, some of them far more often than others."
	replay 32768 --workload rag
	say "Agents with tools: long contexts that grow, are rewritten and fork."
	replay 32768 --workload agent --requests 4000 --block-tokens 256
fi

cat <<TEXT

  what to run next
    make demo TRACE=FILE            your own trace (clients/replay/README.md says what form it has)
    $bin/prefixd-replay --help      the same by hand, against any prefixd
    $bin/prefixd --help             the daemon's options
    make check                      the tests
TEXT
