#!/bin/bash
# Make the virtual environment DIR with what tests/engines/test_lmcache*.py need.  Usage: .ci/engines/lmcache.sh DIR
set -eu
# shellcheck source=.ci/engines/venv.sh
. "$(dirname "$0")/venv.sh"
venv "$1" "$here/lmcache.txt"
"$1/bin/python" -c 'import lmcache; print("lmcache", lmcache.__version__)'
