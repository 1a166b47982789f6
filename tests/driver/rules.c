/*
 * rules.c - broken rules, planned faults, and the trace of call sites.
 */
#include "tests/driver/lookalike.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_SITES 4096u

pthread_mutex_t lookalike_lock = PTHREAD_MUTEX_INITIALIZER;
struct lookalike_census lookalike_counts;

const struct lookalike_symbols lookalike_symbols = {
#define X(field, symbol, abi, required, args) .field = symbol,
	GPU_DRIVER_TABLE(X)
#undef X
};

static uint32_t n_broken;
static uint32_t n_planned;

/* Of faults and sites, since rules are broken with lookalike_lock held and without. */
static pthread_mutex_t small_lock = PTHREAD_MUTEX_INITIALIZER;

static struct site {
	const char *symbol;
	const void *caller;
} sites[MAX_SITES];
static uint32_t n_sites;

void lookalike_broken(const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)__atomic_add_fetch(&n_broken, 1, __ATOMIC_RELAXED);
	(void)fprintf(stderr, "lookalike: rule broken: %s\n", text);
	if (lookalike_config()->abort)
		abort();
}

uint32_t lookalike_n_planned(void)
{
	uint32_t n;

	(void)pthread_mutex_lock(&small_lock);
	n = n_planned;
	(void)pthread_mutex_unlock(&small_lock);
	return n;
}

uint32_t lookalike_n_broken(void)
{
	return __atomic_load_n(&n_broken, __ATOMIC_RELAXED);
}

static int planned(const char *what)
{
	uint32_t n;
	struct lookalike_fault *faults = lookalike_faults(&n);
	int result = 0;

	(void)pthread_mutex_lock(&small_lock);
	for (uint32_t i = 0; i < n; i++) {
		struct lookalike_fault *f = &faults[i];

		if (strcmp(f->what, what) != 0)
			continue;
		f->seen++;
		if (f->seen == f->nth || (f->onward && f->seen > f->nth))
			result = f->result;
	}
	n_planned += result != 0;
	(void)pthread_mutex_unlock(&small_lock);
	return result;
}

gpu_cu_result lookalike_planned(const char *symbol)
{
	return planned(symbol);
}

int lookalike_planned_op(const char *kind)
{
	return planned(kind);
}

/* false: it is in the table already. */
static bool site_is_new(const char *symbol, const void *caller)
{
	for (uint32_t i = 0; i < n_sites; i++)
		if (sites[i].caller == caller && sites[i].symbol == symbol)
			return false;
	if (n_sites == MAX_SITES)
		return false;
	sites[n_sites++] = (struct site){ symbol, caller };
	return true;
}

static void site_write(const char *symbol, const void *caller)
{
	Dl_info info = { 0 };
	char line[512];
	uintptr_t base = 0;
	int fd, n;

	if (dladdr(caller, &info) != 0)
		base = (uintptr_t)info.dli_fbase;
	n = snprintf(line, sizeof(line), "%s %s+%#lx\n", symbol,
		     info.dli_fname ? info.dli_fname : "?",
		     (unsigned long)((uintptr_t)caller - base));
	fd = open(lookalike_config()->trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	/* A line is one write, so that several processes may share the file. */
	if (fd < 0 || n < 0 || (size_t)n >= sizeof(line) || write(fd, line, (size_t)n) != n) {
		(void)fprintf(stderr, "lookalike: cannot write to %s\n", lookalike_config()->trace);
		abort();
	}
	(void)close(fd);
}

void lookalike_trace(const char *symbol, const void *caller)
{
	if (!lookalike_config()->trace)
		return;
	(void)pthread_mutex_lock(&small_lock);
	if (site_is_new(symbol, caller))
		site_write(symbol, caller);
	(void)pthread_mutex_unlock(&small_lock);
}

gpu_cu_result lookalike_enter(const char *symbol, unsigned flags, const void *caller)
{
	const pid_t pid = __atomic_load_n(&lookalike_started_in, __ATOMIC_ACQUIRE);

	/* The child of a process that has started the driver has none of its threads. */
	if (pid != 0 && pid != getpid())
		BROKEN(GPU_CU_NOT_INITIALIZED, "%s: in the child of a process that used the driver",
		       symbol);
	lookalike_trace(symbol, caller);
	if (lookalike_in_host_fn)
		BROKEN(GPU_CU_NOT_PERMITTED, "%s: called by a stream's host function", symbol);
	if (pid == 0 && !(flags & LOOKALIKE_ANYTIME))
		BROKEN(GPU_CU_NOT_INITIALIZED, "%s: before cuInit", symbol);
	return lookalike_planned(symbol);
}
