#!/bin/sh
# Install the library into an empty place, build the example against that alone, and run it: with a
# daemon (PREFIXD_BIN) twice, so that the second run finds what the first one stored; without one it
# must say that it computes alone.
# Usage: client_example.sh BUILD SOURCE c11|cxx     Exit: 0 passed, 77 no C++ compiler here.
set -eu
build=$1 source=$2 language=$3
dir=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true; rm -rf "$dir"' EXIT

case $language in
c11) compile='gcc -std=c11' ;;
cxx)
	command -v g++ >/dev/null || exit 77
	compile='g++ -std=c++11 -x c++'
	;;
esac

meson install -C "$build" --no-rebuild --tags devel,libprefixd --destdir "$dir" >"$dir/install.log"
pc=$(find "$dir" -name prefixd.pc)
export PKG_CONFIG_SYSROOT_DIR="$dir" PKG_CONFIG_PATH="${pc%/*}"
[ "$(pkg-config --modversion prefixd)" ] || exit 1
flags="-Wall -Wextra -Werror -pedantic $(pkg-config --cflags prefixd)"
libs=$(pkg-config --libs prefixd)

# shellcheck disable=SC2086 # flags are words
{
	printf '#include <prefixd.h>\nint main(void) { return PFX_OK; }\n' >"$dir/alone.c"
	$compile $flags -c "$dir/alone.c" -o "$dir/alone.o"
	printf '#include <prefixd.h>\n' >"$dir/all.c"
	for header in "$source"/clients/c/prefixd_*.h; do
		printf '#include <%s>\n' "${header##*/}" >>"$dir/all.c"
	done
	printf 'int main(void) { return pfx_cache_mover(NULL, NULL) == PFX_OK; }\n' >>"$dir/all.c"
	$compile $flags "$dir/all.c" -x none $libs -o "$dir/all"
	$compile $flags "$source/clients/c/example.c" -x none $libs -o "$dir/shared"
	static=$(find "$dir" -name libprefixd.a)
	$compile $flags "$source/clients/c/example.c" -x none "$static" -o "$dir/static"
}
so=$(find "$dir" -name 'libprefixd.so.0')
export LD_LIBRARY_PATH="${so%/*}"

out=$("$dir/shared" "$dir/none.sock" || true)
case $out in
"computing alone: no daemon at $dir/none.sock"*) ;;
*) echo "without a daemon: $out"; exit 1 ;;
esac

[ -x "${PREFIXD_BIN:-}" ] || exit 0
"$PREFIXD_BIN" --socket "$dir/s" --admin-socket "$dir/a" --device host --pool-blocks 64 \
	2>"$dir/log" &
daemon=$!
n=0
while [ ! -S "$dir/s" ]; do
	n=$((n + 1))
	[ $n -lt 2000 ] || { cat "$dir/log"; exit 1; }
	sleep 0.01
done
expect() {
	[ "$1" = "$2" ] || { echo "got: $1"; echo "not: $2"; cat "$dir/log"; exit 1; }
}
expect "$("$dir/shared" "$dir/s")" "0 of 4 blocks were there, 4 are new"
expect "$("$dir/static" "$dir/s")" "4 of 4 blocks were there, 0 are new"
