#!/bin/sh
# test_lints.sh - each lint catches what it is there for, and lets pass what only looks like it.
#
# Every case starts from a small clean tree in a temporary folder, plants one thing, and expects the
# lint to fail and to name the file; or, for the look-alikes, to pass.  Speaks TAP.

lint_dir=$(cd "$(dirname "$0")" && pwd) || exit 2
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/tree" && cd "$dir/tree" || exit 2
: >"$dir/tap"

# result ok|'not ok' NAME [MORE]: a line of TAP.  Kept in a file, since cases run in pipelines, and
# so in shells of their own.
result() {
	echo "$1 $(($(wc -l <"$dir/tap") + 1)) - $2" >>"$dir/tap"
	tail -n 1 "$dir/tap"
	[ -z "${3:-}" ] || printf '%s\n' "$3" | sed 's/^/# /'
}

# clean: the tree before something is planted.  The folder itself stays, as we are in it.
clean() {
	rm -rf "${dir:?}"/tree/*
	mkdir -p radix proto gpu daemon clients/c clients/ctl tests/bench
	cp "$lint_dir/../../.clang-format" .
	for d in radix proto gpu daemon clients clients/c clients/ctl tests tests/bench; do
		echo "names of files: a.c, a.h, engine.c, and b.[ch]" >$d/README.md
	done
	printf '#include <stdint.h>\n' >radix/a.h
	cp radix/a.h proto/a.h
	cp radix/a.h gpu/a.h
	printf '#include "radix/a.h"\n\n#include <string.h>\n' >radix/a.c
	printf '#include "proto/a.h"\n\n#include "radix/base.h"\n' >proto/a.c
	printf '#include "gpu/a.h"\n\n#include "radix/list.h"\n\n#include <sys/mman.h>\n' >gpu/a.c
	printf '#include "proto/a.h"\n#include "radix/a.h"\n\n#include <stdio.h>\n' >daemon/engine.c
	printf '#include "gpu/a.h"\n\n#include <event2/event.h>\n#include <hiredis/hiredis.h>\n' >daemon/a.c
	printf '#include "proto/a.h"\n\n#include <unistd.h>\n' >clients/c/a.c
	printf '#include "clients/c/a.h"\n\n#include <jansson.h>\n' >clients/ctl/a.c
}

# plant FILE: adds standard input to it.
plant() {
	mkdir -p "$(dirname "$1")"
	cat >>"$1"
}

# expect RC LINT NAME [FILE]: runs the lint over the tree; a failure has to name FILE.
expect() {
	out=$("$lint_dir/check_$2.sh" "$dir/tree" "$dir/prefixd" 2>&1)
	rc=$?
	if [ "$rc" = 77 ]; then
		result ok "$2: $3 # SKIP $out"
	elif [ "$rc" = "$1" ] && { [ "$rc" = 0 ] || printf '%s\n' "$out" | grep -q "^$4:[0-9]*:"; }; then
		result ok "$2: $3"
	else
		result 'not ok' "$2: $3" "expected $1, got $rc: $out"
	fi
	clean
}

# catch LINT FILE NAME and pass LINT FILE NAME: standard input, planted in FILE, is found or not.
catch() {
	plant "$2"
	expect 1 "$1" "$3" "$2"
}
pass() {
	plant "$2"
	expect 0 "$1" "$3 passes"
}

clean
for lint in includes sizes forbidden format readmes python; do
	expect 0 $lint "the clean tree passes"
done

# ---- includes: a layer per line -----------------------------------------------------------------
while IFS='|' read -r file include name; do
	printf '#include %s\n' "$include" | catch includes "$file" "$name"
done <<'END'
radix/a.c|<stdio.h>|streams in radix
radix/a.c|<stdlib.h>|the allocator in radix
radix/a.c|<time.h>|a clock in radix
radix/a.c|"proto/a.h"|proto in radix
radix/a.c|"gpu/a.h"|gpu in radix
proto/a.c|"radix/a.h"|the index in proto
proto/a.c|<sys/socket.h>|sockets in proto
proto/a.c|<xxhash.h>|hashes in proto
gpu/a.c|"daemon/a.h"|the daemon in gpu
gpu/a.c|"proto/a.h"|the wire in gpu
gpu/a.c|"radix/a.h"|the index in gpu
gpu/a.c|<event2/event.h>|libevent in gpu
gpu/a.c|<time.h>|a clock in gpu
daemon/engine.c|"gpu/a.h"|gpu in the engine
daemon/engine.c|"daemon/a.h"|the shell in the engine
daemon/engine_b.c|"daemon/log.h"|the log in a part of the engine
daemon/engine.c|<event2/event.h>|libevent in the engine
daemon/engine.c|<hiredis/hiredis.h>|Redis in the engine
daemon/engine.c|<unistd.h>|system calls in the engine
daemon/engine.c|<time.h>|a clock in the engine
daemon/engine.c|<stdlib.h>|the allocator in the engine
daemon/a.c|"clients/c/a.h"|a client in the daemon
daemon/a.c|"tests/lib/a.h"|tests in the daemon
clients/c/a.c|"radix/a.h"|the index in the client
clients/c/a.c|"daemon/a.h"|the daemon in the client
clients/c/a.c|<jansson.h>|JSON in the client library
clients/c/prefixd.h|"proto/a.h"|project headers in the installed header
clients/ctl/a.c|"daemon/a.h"|the daemon in prefixctl
clients/ctl/a.c|"clients/replay/a.h"|another program's header
clients/ctl/a.c|<event2/event.h>|libevent in a client
daemon/a.c|"../radix/a.h"|a way up
daemon/a.c|"a.h"|a bare name
tests/bench/a.c|"./a.h"|a relative name in tests
daemon/a.c|MACRO|a name behind a macro
END
printf '#include <errno.h>\n#include "radix/a.h"\n' >radix/a.c
expect 1 includes "the own header second" radix/a.c
printf '#include "radix/index_internal.h"\n' >radix/a.c
expect 0 includes "an internal header in its place passes"
printf '  #  include  <stdio.h>\n' | catch includes radix/a.c "odd spaces"
printf '// #include <stdio.h>\n' | pass includes radix/a.c "a comment"
printf '#include "daemon/engine_b.h"\n' | pass includes daemon/engine.c "the engine's own header"
printf '#include "clients/ctl/b.h"\n' | pass includes clients/ctl/a.c "the own folder"
printf '#include "daemon/engine.h"\n#include <check.h>\n' | pass includes tests/test_a.c "all in tests"

# ---- sizes --------------------------------------------------------------------------------------
lines() {
	i=0
	while [ $i -lt "$1" ]; do
		echo "$2"
		i=$((i + 1))
	done
}
lines 801 '' | catch sizes proto/long.c "801 lines of C"
lines 800 '' | pass sizes proto/long.c "800 lines of C"
lines 301 '' | catch sizes proto/long.h "a header of 301 lines"
lines 301 '' | pass sizes daemon/engine.h "an exception"
lines 401 '' | catch sizes daemon/engine.h "an exception that outgrew its limit"
{ echo 'int f(void)'; echo '{'; lines 99 '	g();'; echo '}'; } | catch sizes proto/f.c "a body of 101 lines"
{ echo 'int f(void)'; echo '{'; lines 98 '	g();'; echo '}'; } | pass sizes proto/f.c "a body of 100 lines"
{ echo 'START_TEST(f)'; echo '{'; lines 99 '	g();'; echo '}'; } | catch sizes tests/f.c "a long test"
{ echo 'static int f[] = {'; lines 200 '	1,'; echo '};'; } | pass sizes proto/f.c "a long table"
printf '\t%093d\n' 0 | catch sizes proto/w.c "a tab and 93 columns"
printf '\t%092d\n' 0 | pass sizes proto/w.c "a tab and 92 columns"
printf 'a\t%093d\n' 0 | catch sizes proto/w.c "a tab that is narrower"
printf '%098d\303\274\303\274\n' 0 | pass sizes proto/w.c "100 columns of more bytes"

# ---- forbidden ----------------------------------------------------------------------------------
for f in strcpy strcat sprintf vsprintf gets strtok atoi atol alloca system popen tmpnam mktemp; do
	printf '\tx = %s(y);\n' $f | catch forbidden daemon/a.c "$f"
done
printf '\texit(1);\n' | catch forbidden daemon/a.c "exit in a library"
printf 'int main(void)\n{\n\texit(1);\n}\n' | pass forbidden daemon/main.c "exit beside main"
printf '\texit(1);\n' | pass forbidden tests/a.c "exit in tests"
printf '\t_exit(1);\n\tpthread_exit(0);\n' | pass forbidden daemon/a.c "other exits"
for f in radix/a.c proto/a.c daemon/engine.c daemon/engine_b.c; do
	printf '\tp = malloc(n);\n' | catch forbidden $f "malloc in $f"
	printf '\tfree (p);\n' | catch forbidden $f "free in $f"
done
printf '\tp = malloc(n);\n' | pass forbidden daemon/a.c "malloc in the shell"
printf '\tradix_free(p);\n\ta->free(p);\n\ta.malloc(1);\n' | pass forbidden radix/a.c "names that end alike"
printf '/* system() and strcpy()\n * malloc() */\nchar *s = "a\\"system(x)"; // free(x)\n' |
	pass forbidden radix/a.c "comments and strings"
printf 'char c = '"'\"'"'; system("x");\n' | catch forbidden daemon/a.c "a call behind a quoted quote"
printf '/* a */ system("x"); /* b */\n' | catch forbidden daemon/a.c "a call between comments"
for w in TO""DO FIX""ME X""XX HA""CK; do
	printf '/* %s: later */\n' $w | catch forbidden proto/a.c "the word $w"
	printf 'A %s.\n' $w | catch forbidden proto/README.md "the word $w in a document"
done
printf 'mkdtemp("a-XXXXXX");\n' | pass forbidden tests/a.c "a template of six X"
printf 'int a; \n' | catch forbidden gpu/a.c "a space at the end"
printf 'text\t\n' | catch forbidden gpu/README.md "a tab at the end of a document's line"
printf 'p = "/%s/main";\n' work | catch forbidden gpu/a.c "a path of one machine"
printf 'cd /%s/x\n' tmp | catch forbidden tests/run.sh "a path in a script"
printf 'p = "/%s/fixed";\n' tmp | catch forbidden tests/a.c "a fixed name in the temporary folder"
printf 'p = "/%s/a-XXXXXX";\n' tmp | pass forbidden tests/a.c "a template in the temporary folder"
printf 'p = "net/%s/main";\n' work | pass forbidden gpu/a.c "a relative path"

# ---- format -------------------------------------------------------------------------------------
printf 'int  f( void ){return 1;}\n' | catch format gpu/b.c "a line laid out otherwise"
printf 'int f(void)\n{\n\treturn 1;\n}\n' | pass format gpu/b.c "a function as it should be"

# ---- readmes ------------------------------------------------------------------------------------
printf 'int x;\n' | plant gpu/new.c
expect 1 readmes "a file that is not mentioned" gpu/README.md
printf 'int x;\n' | plant gpu/b.c
expect 0 readmes "a file mentioned as one of a pair passes"
printf 'names_b.c and b.ctx\n' >gpu/README.md
printf 'int x;\n' | plant gpu/b.c
expect 1 readmes "a mention of names that only contain it" gpu/README.md
rm gpu/README.md
expect 1 readmes "a folder without README.md" gpu
printf 'int x;\n' | plant clients/new/a.c
expect 1 readmes "a new client without README.md" clients/new
printf '/* see gpu/NOTES.md */\n' | catch readmes gpu/a.c "a document that does not exist"
printf 'See https://example.org/NOTES.md and ../gpu/README.md.\n' |
	pass readmes proto/README.md "a document in the web, and one next door"

# ---- options ------------------------------------------------------------------------------------
cat >"$dir/prefixd" <<'END'
#!/bin/sh
printf 'usage: prefixd --name value\n\n  -h, --help    this text\n\n[s]\n  --pool-blocks N\n      slots\n'
END
chmod +x "$dir/prefixd"
echo 'Say --help, or set `pool-blocks`.' | pass options daemon/README.md "all are documented:"
echo 'Say --help. --pool-blocks-more is no word for it.' | catch options daemon/README.md "one that is not documented"
echo '`pool-blocks`, --help and --pool-slots.' | catch options daemon/README.md "a name that does not exist"
echo '`pool-blocks`, --help' | plant daemon/README.md
echo '    prefixd --pool-blocks 5 --slots 3' | catch options README.md "a command line that does not work"
echo '`pool-blocks`, --help' | plant daemon/README.md
echo '    prefixd-replay --workers 1' | pass options README.md "another program"

# ---- python -------------------------------------------------------------------------------------
export MYPY_CACHE_DIR="$dir/mypy" # it is asked often
py=clients/python/src/p/a.py
printf 'def f(:\n' | catch python clients/ctl/a.py "what does not compile"
printf 'match 1:\n    case _:\n        pass\n' | catch python $py "grammar of a later Python"
printf '# %0108d\n' 0 | pass python $py "110 columns"
printf '# %0109d\n' 0 | catch python $py "111 columns"
printf '# %0109d\n' 0 | pass python tests/a.py "111 columns of a test"
printf 'if True:\n\tpass\n' | catch python $py "a tab"
printf 'def f(a: int) -> int:\n    return a\n' | pass python $py "types that are right"
# Not as long as the one before: mypy tells files of one second apart by their length.
printf 'def f(a: int) -> "str":\n    return a\n' | catch python $py "a type that is wrong"
printf 'def f(a):\n    return a\n' | catch python $py "a type that is missing"

# ---- pure ---------------------------------------------------------------------------------------
pure() { # pure RC WHAT NAME: compiles standard input and looks at its symbols
	cat >"$dir/p.c"
	# shellcheck disable=SC2086 # flags are words
	${CC:-cc} -O2 -fno-builtin $pure_flags -c -o "$dir/p.o" "$dir/p.c" && rm -f "$dir/p.a" && ar rc "$dir/p.a" "$dir/p.o"
	out=$("$lint_dir/check_pure.sh" "$2" "$dir/p.a" 2>&1)
	rc=$?
	if [ "$rc" = "$1" ]; then
		result ok "pure: $3"
	else
		result 'not ok' "pure: $3" "expected $1, got $rc: $out"
	fi
}
pure_flags=
for what in radix proto engine; do
	echo 'void *memcpy(void *, const void *, unsigned long); void f(void *p) { memcpy(p, p, 1); }' |
		pure 0 $what "memcpy in $what passes"
	for f in malloc free printf time clock_gettime read pthread_create __errno_location getenv abort; do
		echo "void $f(void); void f(void) { $f(); }" | pure 1 $what "$f in $what"
	done
done
echo 'int snprintf(char *, unsigned long, const char *, ...); void f(char *p) { snprintf(p, 1, "a"); }' >"$dir/s"
pure 1 radix "snprintf in radix" <"$dir/s"
pure 0 engine "snprintf in the engine passes" <"$dir/s"
echo 'void crypto_shorthash(void); void f(void) { crypto_shorthash(); }' >"$dir/s"
pure 1 proto "keyed hashes in proto" <"$dir/s"
pure 0 engine "keyed hashes in the engine pass" <"$dir/s"
echo 'void randombytes_buf(void); void f(void) { randombytes_buf(); }' >"$dir/s"
pure 1 engine "randomness in the engine" <"$dir/s"
echo 'void radix_x(void); void f(void) { radix_x(); }' >"$dir/s"
pure 1 proto "the index in proto" <"$dir/s"
pure 0 engine "the index in the engine passes" <"$dir/s"
echo 'void g(void); void g(void) {} void f(void) { g(); }' | pure 0 radix "its own function passes"
pure_flags=-fsanitize=address
echo 'int f(int *p) { return *p; }' | pure 77 radix "an instrumented build is skipped"

echo "1..$(wc -l <"$dir/tap")"
! grep -q '^not ok' "$dir/tap"
