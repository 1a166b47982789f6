/*
 * util.c - memory that never fails softly, and messages.
 */
#include "clients/replay/util.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* _exit and not exit: a forked worker must not flush its parent's stdio buffers. */
static __attribute__((noreturn)) void no_memory(size_t n, size_t size)
{
	replay_say("no memory for %zu objects of %zu bytes", n, size);
	_exit(1);
}

void *replay_alloc(size_t n, size_t size)
{
	void *ptr = calloc(n ? n : 1, size);

	if (!ptr)
		no_memory(n, size);
	return ptr;
}

void *replay_grow(void *ptr, size_t *cap, size_t need, size_t size)
{
	size_t want = *cap ? *cap : 64;
	size_t bytes;

	if (need <= *cap)
		return ptr;
	while (want < need)
		want += want / 2;
	if (__builtin_mul_overflow(want, size, &bytes))
		no_memory(want, size);
	ptr = realloc(ptr, bytes);
	if (!ptr)
		no_memory(want, size);
	*cap = want;
	return ptr;
}

void replay_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("prefixd-replay: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
}
