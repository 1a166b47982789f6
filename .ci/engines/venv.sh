# shellcheck shell=bash
# venv.sh - what the set-ups of the Python engines share.  Sourced.
#
#   venv DIR LOCK     DIR becomes a virtual environment with exactly the packages of the file LOCK,
#                     one `name==version` a line; nothing is done when it has them already
#
# torch is 4.7 GB with the CUDA libraries that its wheel links to, GPU or not, so the engines share one:
# it lies beside DIR, in torch/, and each environment names it in a .pth file.  Everything is installed
# without dependencies: LOCK is whole, and what is missing from it was tried and is not needed.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

venv() {
	local dir=$1 lock=$2 base
	base=$(dirname "$dir")/torch
	[ "$(basename "$dir")" = torch ] || venv "$base" "$here/torch.txt" || return 1
	if cmp -s "$lock" "$dir/.installed"; then
		return 0
	fi
	rm -rf "$dir"
	python3 -m venv "$dir" || { echo "python3 -m venv failed: apt-get install python3-venv" >&2; return 1; }
	"$dir/bin/python" -m pip --disable-pip-version-check install --quiet --upgrade 'pip>=24' || return 1
	"$dir/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps -r "$lock" || return 1
	[ "$dir" = "$base" ] || [ "$(basename "$dir")" = torch ] ||
		(cd "$base/lib"/python3*/site-packages && pwd) >"$(echo "$dir/lib"/python3*/site-packages)/torch-beside.pth"
	cp "$lock" "$dir/.installed"
}
