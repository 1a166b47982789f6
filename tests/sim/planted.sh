#!/bin/sh
# planted.sh [--applies | --share N [--turn T]] [NAME...] - does the simulation notice?
#
# Plants each fault of planted/ (some: without .patch) into a copy of the sources, builds the
# simulation there and runs up to 300 seeds (100 for the first three), without a look at the engine's
# invariants: it must come out.  A line for each says which seed noticed it; the last line is
# "planted: N caught, N missed", and one that is missed fails the run.  --applies: only whether they
# apply.  --share N: the first three, and of the others every N-th, by turns (T; the day).  The tree
# itself is only read; copies and objects lie in build-planted/, or in the folder that PLANTED names.
set -eu
cd "$(dirname "$0")/../.."
seeds=100 # without a fault
most=300  # with one: the rarest, but the first three, is noticed by two in a hundred
work=${PLANTED:-build-planted}
copy=$work/src
build=$work/build
applies=
share=1
turn=$(($(date +%s) / 86400))
if [ "${1:-}" = --applies ]; then
	applies=1
	shift
	copy=$(mktemp -d)
	trap 'rm -rf "$copy"' EXIT
fi
if [ "${1:-}" = --share ]; then
	share=$2
	shift 2
fi
if [ "${1:-}" = --turn ]; then
	turn=$2
	shift 2
fi
folder=$(pwd)/tests/sim/planted
# shellcheck disable=SC2046 # names without blanks
[ $# -gt 0 ] || set -- $(cd "$folder" && printf '%s\n' *.patch | sed 's,\.patch$,,' |
	awk -v n="$share" -v t="$turn" 'NR <= 3 || NR % n == t % n')

# All sources; where patches are only tried, those that they name.
sources() {
	if [ -n "$applies" ]; then
		for name in "$@"; do
			sed -n 's,^--- a/\([^	]*\).*,\1,p' "$folder/$name.patch"
		done | sort -u
	else
		git ls-files --cached --others --exclude-standard 2>/dev/null ||
			find . \( -name .git -o -name 'build*' \) -prune -o -type f -print
	fi
}

# Only what changed, so that no more is built anew than must be.
mkdir -p "$copy"
sources "$@" | while IFS= read -r file; do
	[ -f "$file" ] || continue
	cmp -s "$file" "$copy/$file" ||
		{ mkdir -p "$copy/$(dirname "$file")"; cp -p "$file" "$copy/$file"; }
done

if [ -z "$applies" ]; then
	[ -f "$build/build.ninja" ] || meson setup "$build" "$copy" >"$work"/setup.log 2>&1 ||
		{ tail -5 "$work"/setup.log; exit 1; }
	ninja -C "$build" --quiet tests/sim/sim >"$work"/make.log 2>&1 ||
		{ grep -m 3 error "$work"/make.log; exit 1; }
	"$build"/tests/sim/sim --blind --seeds $seeds >"$work"/sim.log 2>&1 ||
		{ tail -3 "$work"/sim.log; echo 'planted: the simulation fails without a fault'; exit 1; }
fi

caught=0
missed=0
for name in "$@"; do
	patch=$folder/$name.patch
	if ! patch -s -p1 -N --dry-run -d "$copy" <"$patch"; then
		echo "missed  $name: it does not apply"
		missed=$((missed + 1))
		continue
	fi
	[ -z "$applies" ] || continue
	patch -s -p1 -N --no-backup-if-mismatch -d "$copy" <"$patch"
	case $name in
	0[123]-*) n=100 ;;
	*) n=$most ;;
	esac
	if ! ninja -C "$build" --quiet tests/sim/sim >"$work"/make.log 2>&1; then
		echo "missed  $name: it does not build"
		grep -m 3 error "$work"/make.log || true
		missed=$((missed + 1))
	elif "$build"/tests/sim/sim --stop --blind --seeds $n >"$work"/sim.log 2>&1; then
		echo "missed  $name: $n seeds pass"
		missed=$((missed + 1))
	else
		echo "caught  $name: $(sed -n 's/.*sim: \(seed [0-9]*\) fails.*/\1/p' "$work"/sim.log | head -1)," \
			"$(sed -n 's/^seed [0-9]*, step [0-9]*: //p' "$work"/sim.log | head -1)"
		caught=$((caught + 1))
	fi
	patch -s -p1 -R --no-backup-if-mismatch -d "$copy" <"$patch"
done
[ -n "$applies" ] || echo "planted: $caught caught, $missed missed"
[ $missed = 0 ]
