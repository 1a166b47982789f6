#!/bin/sh
# check_pure.sh radix|proto|engine LIBRARY|skip - what a pure library asks of the outside world.
#
# Headers can be included and not used, and functions declared by hand: the undefined symbols of the
# library tell the truth.  No I/O, no clock, no allocator, no thread, no errno may be among them.
# Instrumented and unoptimised builds (`skip`) add symbols of their own and cannot be checked.

what=${1:?usage: $0 radix|proto|engine LIBRARY|skip}
lib=${2:?usage: $0 radix|proto|engine LIBRARY|skip}
if [ "$lib" = skip ]; then
	echo "symbols are those of the sources only in an optimised build without instrumentation"
	exit 77
fi

# What the compiler may call by itself is in every list.
allowed='(__)?mem(cpy|move|set|cmp|chr|rchr)(_chk)?|bcmp|str(len|nlen|cmp|ncmp|chr|rchr|spn|cspn)|__stack_chk_fail|__popcountdi2|_GLOBAL_OFFSET_TABLE_'
case $what in
radix) ;;
proto) ;;
engine) allowed="$allowed|(__)?v?snprintf(_chk)?|crypto_(generic|short)hash[a-z0-9_]*|(radix|proto)_[a-z0-9_]*" ;;
*)
	echo "unknown library: $what"
	exit 2
	;;
esac

symbols=$(nm "$lib") || exit 2
if printf '%s\n' "$symbols" | grep -qE ' (__asan|__tsan|__ubsan|__sanitizer|__gcov|__llvm)_'; then
	echo "$lib is instrumented"
	exit 77
fi
# The whole library counts: what one file lacks another may define.
bad=$(printf '%s\n' "$symbols" | awk '
	NF == 2 && $1 == "U" { wanted[$2] = 1 }
	NF == 3 { defined[$3] = 1 }
	END { for (s in wanted) if (!(s in defined)) print s }' | grep -vxE "$allowed" | sort)
[ -n "$symbols" ] || { echo "$lib has no symbols"; exit 2; }
[ -z "$bad" ] && exit 0
printf '%s' "$bad" | sed "s,^,$what may not use ,"
echo
exit 1
