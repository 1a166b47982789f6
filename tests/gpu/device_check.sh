#!/bin/sh
# What only a machine with a GPU can show, in under three minutes: the contract of the back end,
# memory shared, kept and read only, words, late writes, and speeds.  Prints a table; its last line
# counts.  Needs libc and the driver; builds nothing.
#
#     tests/gpu/device_check.sh [--quick] [BUILD]
#
# BUILD: the folder of a build of this tree, which may come from another machine (default: build).
# --quick: small sizes, for a driver that only looks like a GPU's; its speeds say nothing.
set -u
quick=
if [ "${1:-}" = --quick ]; then
	quick=--quick
	shift
fi
here=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$here/build}
check=$build/tests/gpu/device_check
out=$(mktemp "${TMPDIR:-/tmp}/device_check.XXXXXX") || exit 2
trap 'rm -f "$out"' EXIT

if [ ! -x "$check" ]; then
	echo "device_check.sh: $check is not there; build it: ninja -C $build tests/gpu/device_check" >&2
	exit 2
fi
begun=$(date +%s)

# A part: its lines go to the table; one that does not end is one line.
part() {
	timeout -k 5 "$1" "$check" $quick "$2"
	code=$?
	[ $code -le 1 ] || echo "  FAILED   $2 ended with status $code"
}

# A suite of the back end's contract: its tests are one line each, of which the table shows the failed.
suite() {
	echo "$1: $2"
	text=$(CK_TAP_LOG_FILE_NAME=- CK_VERBOSITY=silent timeout -k 5 90 "$build/tests/gpu/device_$1" cuda 2>&1)
	code=$?
	good=$(printf '%s\n' "$text" | grep -c '^ok ')
	bad=$(printf '%s\n' "$text" | grep -c '^not ok ')
	printf '%s\n' "$text" | sed -n 's/^not ok [0-9]* - /  FAILED   /p'
	[ $((good + bad)) -gt 0 ] || echo "  FAILED   $1 ran no test"
	# A failed test is 1, and has its line.
	[ $code -le 1 ] || echo "  FAILED   $1 ended with status $code"
	[ "$code" -ne 1 ] || [ "$bad" -gt 0 ] || echo "  FAILED   $1 failed"
	[ "$good" -eq 0 ] || echo "  ok       $good tests"
	extra=$((extra + (good > 0 ? good - 1 : 0)))
}

extra=0
{
	part 20 driver
	suite contract "what every back end promises, on this device"
	suite adopt "memory of an earlier life taken up again"
	suite coded "blocks that the device encodes, decodes and sums"
	for p in share holder read_only words late; do
		part 30 $p
	done
	part 60 kernels
	part 60 moves
	part 60 coding
	echo "extra $extra"
} | tee "$out" | grep -v '^extra '
extra=$(sed -n 's/^extra //p' "$out")
passed=$(grep -c '^  ok ' "$out")
failed=$(grep -c '^  FAILED ' "$out")
skipped=$(grep -c '^  skipped ' "$out")
echo "took $(($(date +%s) - begun)) s"
echo "$((passed + extra)) passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
