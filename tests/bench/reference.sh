#!/bin/sh
# Replay the public traces against the daemon and compare with the reference results.
# Usage: reference.sh BIN TRACES [options of reference.py]
# BIN has prefixd and prefixd-replay; TRACES has the trace files (NAME.jsonl.zst, see clients/replay/README.md).
set -eu
here=$(dirname "$0")
bin=${1:?usage: reference.sh BIN TRACES}
traces=${2:-}
if [ -z "$traces" ]; then
	echo "say where the traces are: make bench-reference TRACES=DIR" >&2
	echo "(clients/replay/README.md says where they come from)" >&2
	exit 2
fi
shift 2
rc=0
python3 "$here/reference.py" --bin "$bin" --traces "$traces" "$@" || rc=$?
python3 "$here/tiers.py" --bin "$bin" --traces "$traces" || rc=$?
exit $rc
