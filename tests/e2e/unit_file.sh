#!/bin/sh
# unit_file.sh SOURCE_ROOT - the example of a systemd unit is one that systemd takes, and fits the daemon.
#
# $PREFIXD_BIN is put in the place of the installed program.  Without systemd-analyze this is a skip.
set -u

root=${1:?usage: $0 SOURCE_ROOT}
unit=$root/daemon/prefixd.service

setting() {
	sed -n "s/^$1=//p" "$unit"
}

bad() {
	echo "daemon/prefixd.service: $*"
	exit 1
}

# What the code counts on, whoever has systemd or not.
[ "$(setting Type)" = notify ] || bad "the daemon says itself when it is ready"
[ "$(setting NotifyAccess)" = main ] || bad "the main process speaks to the manager"
[ "$(setting FileDescriptorStoreMax)" -ge 257 ] || bad "256 items and one to look for room"
[ "$(setting RuntimeDirectoryPreserve)" = restart ] || bad "the naming key has to outlive a restart"
[ "$(setting Restart)" = on-failure ] || bad "a daemon that was killed starts again"
[ -n "$(setting WatchdogSec)" ] && [ -n "$(setting OOMScoreAdjust)" ] || bad "a setting is missing"

args=$(setting ExecStart | sed 's/^[^ ]* //')
# shellcheck disable=SC2086 # word splitting is meant
"$PREFIXD_BIN" $args --check-config >/dev/null || bad "prefixd does not take $args"

command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
sed "s,^ExecStart=[^ ]*,ExecStart=$PREFIXD_BIN," "$unit" >"$dir/prefixd.service"
said=$(systemd-analyze verify "$dir/prefixd.service" 2>&1)
status=$?
# It reads all units that this one names; what it says of them is not ours.
ours=$(printf '%s\n' "$said" | grep -F prefixd)
[ $status = 0 ] && [ -z "$ours" ] || bad "systemd-analyze says: $said"
