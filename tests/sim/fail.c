/*
 * fail.c - see fail.h.
 */
#include "tests/sim/fail.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "radix/base.h"
#include "tests/sim/sim.h"

static uint64_t watched;

static void say_how(void)
{
	fprintf(stderr,
		"sim: seed %" PRIu64 ", operation %" PRIu64 "; again: make sim SEED=%" PRIu64
		" STEPS=%" PRIu64 "\n",
		watched, sim_at(), watched, sim_at() + 1);
	fflush(stderr);
}

/* The names that check.h gives them; this one notes where the test was. */
void _mark_point(const char *file, int line)
{
	(void)file;
	(void)line;
}

void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
{
	va_list ap;

	fprintf(stderr, "%s:%d: %s: ", file, line, expr);
	if (msg) {
		va_start(ap, msg);
		vfprintf(stderr, msg, ap);
		va_end(ap);
	}
	fprintf(stderr, "\n");
	say_how();
	_exit(1);
}

static void on_signal(int sig)
{
	fprintf(stderr, "sim: signal %d\n", sig);
	say_how();
	_exit(1);
}

void fail_watch(uint64_t seed, uint32_t limit_s)
{
	static const int signals[] = { SIGALRM, SIGABRT, SIGILL, SIGTRAP, SIGFPE, SIGBUS };

	watched = seed;
	for (size_t i = 0; i < radix_array_size(signals); i++)
		signal(signals[i], on_signal);
	alarm(limit_s);
}
