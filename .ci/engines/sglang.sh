#!/bin/bash
# Make the virtual environment DIR with what tests/engines/test_sglang*.py need.  Usage: .ci/engines/sglang.sh DIR
set -eu
# shellcheck source=.ci/engines/venv.sh
. "$(dirname "$0")/venv.sh"
venv "$1" "$here/sglang.txt"
"$1/bin/python" -c 'import sglang; print("sglang", sglang.__version__)'
