/*
 * test_cache_faults.c - each call of the driver that opening a namespace and moving a cache's
 * blocks take fails once, and streams that die.
 *
 * A worker opens, or stores and loads, again and again, each time in a process of its own and with
 * another call failing.  Whatever comes: the call is told in a sentence and goes well when it is
 * made again, or it makes no difference; no byte is wrong, nothing of the driver is held in the
 * end, and none of its rules is broken.
 *
 * Runs on the look-alike driver (E2E_DEVICE=cuda); CACHE_KERNELS names the kernels that it runs,
 * and without it there are none.
 */
#include "tests/driver/census.h"
#include "tests/e2e/cache_kit.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct e2e_daemon d;

static void setup(void)
{
	static const char *const args[] = { "--pool-blocks", "64", NULL };

	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&d);
}

struct call {
	const char *field, *symbol;
	bool harmless; /* all goes well all the same */
};

/* What device.c calls, and the calls' names in sentences... */
static const struct call opening_calls[] = {
	{ "device_count", "cuDeviceGetCount", false },
	{ "device_get", "cuDeviceGet", false },
	{ "device_uuid", "cuDeviceGetUuid", false },
	{ "address_reserve", "cuMemAddressReserve", false },
	{ "address_free", "cuMemAddressFree", true },
	{ "mem_import", "cuMemImportFromShareableHandle", false },
	{ "mem_map", "cuMemMap", false },
	{ "mem_release", "cuMemRelease", true },
	{ "mem_access", "cuMemSetAccess", false },
	{ "mem_unmap", "cuMemUnmap", true },
	{ "host_register", "cuMemHostRegister", false },
	{ "host_pointer", "cuMemHostGetDevicePointer", false },
	{ "host_unregister", "cuMemHostUnregister", true },
	{ "stream_write", "cuStreamWriteValue64", false },
};
/* ...and what launch.c does, by itself or by device.c. */
static const struct call calls[] = {
	{ "module_load", "cuModuleLoadData", true },
	{ "module_function", "cuModuleGetFunction", true },
	{ "module_unload", "cuModuleUnload", true },
	{ "device_attribute", "cuDeviceGetAttribute", true },
	{ "mem_granularity", "cuMemGetAllocationGranularity", false },
	{ "mem_create", "cuMemCreate", false },
	{ "address_reserve", "cuMemAddressReserve", false },
	{ "mem_map", "cuMemMap", false },
	{ "mem_access", "cuMemSetAccess", false },
	{ "mem_release", "cuMemRelease", true },
	{ "mem_unmap", "cuMemUnmap", true },
	{ "address_free", "cuMemAddressFree", true },
	{ "host_register", "cuMemHostRegister", false },
	{ "host_pointer", "cuMemHostGetDevicePointer", false },
	{ "host_unregister", "cuMemHostUnregister", true },
	{ "copy", "cuMemcpyAsync", false },
	{ "launch", "cuLaunchKernel", false },
	{ "stream_write", "cuStreamWriteValue64", true },
};
/* Where a word was refused: what_is_not_known_to_end_is_kept. */
static const struct call calls_apart[] = { { "stream_sync", "cuStreamSynchronize", true } };
#define N_CALLS   (sizeof(calls) / sizeof(calls[0]))
#define N_OPENING (sizeof(opening_calls) / sizeof(opening_calls[0]))

enum outcome {
	WELL = 0,
	TOLD = 40, /* a call of the library failed, as it should, and went well the second time */
	OTHER,     /* not the library's call, or one before the cache's */
	NOT_MET,   /* there is no such call */
	WRONG
};

static void other(const char *call, int r)
{
	_exit(OTHER);
}

static const char *symbol_planned;
static bool told;
static bool keeps; /* it is not known what runs, so the cache's memory has to stay */

static void must(bool right, const char *what, const struct kit_worker *w)
{
	if (right)
		return;
	fprintf(stderr, "%s: %s: %s\n", symbol_planned, what, w ? pfx_error(w->client) : "");
	_exit(WRONG);
}

/* r is that of a call in which the fault may have come about. */
static bool again(const struct kit_worker *w, int r)
{
	if (r == PFX_OK)
		return false;
	must(!told, "failed twice", w);
	must((r == PFX_UNSUPPORTED || r == PFX_NO_MEMORY) &&
		     strstr(pfx_error(w->client), symbol_planned),
	     "no good sentence", w);
	told = true;
	return true;
}

/* What of the driver the process holds. */
static bool same_held(const struct lookalike_census *before)
{
	struct lookalike_census now;

	return lookalike_census(&now) && now.n_memories == before->n_memories &&
	       now.n_handles == before->n_handles && now.n_reservations == before->n_reservations &&
	       now.n_mappings == before->n_mappings &&
	       now.n_registrations == before->n_registrations && now.n_modules == before->n_modules;
}

/* A worker stores, and loads what it stored into other blocks. */
static void life(void)
{
	const pfx_connect_options o = { .struct_size = sizeof(o),
					.socket = d.socket,
					.deadline_ms = keeps ? 1000 : 5000 };
	static const uint32_t from[KIT_PROMPT] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	static const uint32_t to[KIT_PROMPT] = { 15, 14, 13, 12, 11, 10, 9, 8 };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	struct lookalike_census before, census;
	uint32_t slots[KIT_PROMPT];
	pfx_namespace *ns = NULL;
	struct kit_worker w;
	pfx_client *c = NULL;

	kit_refused = other;
	if (pfx_connect(&o, &c) != PFX_OK || kit_open(c, 64, 1, &ns) != PFX_OK)
		_exit(OTHER);
	kit_worker_init(&w, c, ns, KIT_HALVES, 16, 64);
	must(lookalike_census(&before), "no look-alike", NULL);
	while (again(&w, pfx_cache_new(ns, &w.layout, &w.cache)))
		must(same_held(&before), "a failed call keeps something", NULL);
	must(pfx_match(ns, kit_prompt((uint32_t)getpid()), &m) == PFX_OK &&
		     pfx_reserve(ns, m.lease, KIT_PROMPT, 0, &v) == PFX_OK && v.n == KIT_PROMPT,
	     "reserve", &w);
	kit_slots(v.runs, v.n_runs, slots, KIT_PROMPT);
	for (uint32_t i = 0; i < KIT_PROMPT; i++)
		kit_fill(&w, from[i], 1, i);
	kit_send(&w);
	while (again(&w, pfx_cache_store(w.cache, w.stream, from, slots, KIT_PROMPT)))
		;
	while (again(&w, pfx_stream_word(c, w.stream, 1, 1)))
		;
	while (again(&w, pfx_cache_load(w.cache, w.stream, to, slots, KIT_PROMPT)))
		;
	kit_fetch(&w);
	for (uint32_t i = 0; i < KIT_PROMPT; i++)
		must(kit_holds(&w, to[i], 1, i), "wrong bytes", NULL);
	(void)pfx_release(ns, m.lease, 0, 0, 0, NULL);
	pfx_cache_free(w.cache);
	w.cache = NULL;
	before.n_registrations++; /* the words */
	must(same_held(&before) != keeps, "something is not given back, or too early", NULL);
	(void)lookalike_census(&census);
	must(census.n_broken == 0, "a rule of the driver was broken", NULL);
	if (!census.n_planned)
		_exit(NOT_MET);
	kit_worker_deinit(&w);
	_exit(told ? TOLD : WELL);
}

/* A worker opens the namespace, writes a word, and closes all. */
static void opening(void)
{
	const pfx_connect_options o = { .struct_size = sizeof(o),
					.socket = d.socket,
					.deadline_ms = 5000 };
	void *library = dlopen("libcuda.so.1", RTLD_NOW); /* it knows what is held in the end */
	struct lookalike_census census;
	struct kit_worker w = { 0 };
	gpu_cu_stream stream;
	const char *held;

	kit_refused = other;
	must(library && pfx_connect(&o, &w.client) == PFX_OK, "connect", NULL);
	while (again(&w, kit_open(w.client, 64, 1, &w.ns)))
		;
	kit_load();
	stream = kit_stream_new();
	while (again(&w, pfx_stream_word(w.client, stream, 1, 1)))
		;
	kit_stream_free(stream);
	pfx_close(w.client);
	kit_unload();
	must(lookalike_census(&census), "no look-alike", NULL);
	held = lookalike_held(&census);
	must(!held, held, NULL);
	must(census.n_broken == 0, "a rule of the driver was broken", NULL);
	if (!census.n_planned)
		_exit(NOT_MET);
	_exit(told ? TOLD : WELL);
}

/* Something in the stream fails, and with it all that comes. */
static void death(void)
{
	const pfx_connect_options o = { .struct_size = sizeof(o),
					.socket = d.socket,
					.deadline_ms = 500 };
	const uint32_t block = 1, slot = 2;
	unsigned long end = e2e_now_ms() + 20000;
	pfx_namespace *ns = NULL;
	struct kit_worker w;
	pfx_client *c = NULL;
	int r;

	if (pfx_connect(&o, &c) != PFX_OK || kit_open(c, 64, 1, &ns) != PFX_OK)
		_exit(WRONG);
	kit_worker_init(&w, c, ns, KIT_HALVES, 16, 64);
	must(pfx_cache_new(ns, &w.layout, &w.cache) == PFX_OK, "new", &w);
	/* It may die before all of the call is in it. */
	r = pfx_cache_load(w.cache, w.stream, &block, &slot, 1);
	must(r == PFX_OK || (r == PFX_UNSUPPORTED && strstr(pfx_error(c), "cu")), "load", &w);
	while (kit_driver.stream_query(w.stream) == GPU_CU_NOT_READY && e2e_now_ms() < end)
		e2e_sleep_ms(1);
	must(pfx_cache_load(w.cache, w.stream, &block, &slot, 1) == PFX_UNSUPPORTED &&
		     strstr(pfx_error(c), "cuMemcpyAsync"),
	     "a stream that is dead", &w);
	end = e2e_now_ms() + 10000;
	pfx_close(c);
	must(e2e_now_ms() < end, "the end takes too long", NULL);
	_exit(WELL);
}

static int life_with(void (*live)(void), const char *field, const char *symbol, uint32_t nth,
		     int result)
{
	const char *kernels = getenv("CACHE_KERNELS");
	char plan[512];
	int status;
	pid_t pid;

	snprintf(plan, sizeof(plan), "opaque=1,strict=1,poison=1,latency_us=200,%s%s,%s:%u:%d",
		 kernels ? "kernels=" : "devices=", kernels ? kernels : "1", field, nth, result);
	ck_assert_int_eq(setenv("LOOKALIKE", plan, 1), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		symbol_planned = symbol;
		live();
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status), "%s:%u: signal %d", field, nth, WTERMSIG(status));
	ck_assert_msg(WEXITSTATUS(status) != WRONG && WEXITSTATUS(status) != 1, "%s:%u", field,
		      nth);
	return WEXITSTATUS(status);
}

START_TEST(each_call_fails_once)
{
	const bool by_kernel = kit_mover_wanted() == PFX_CACHE_KERNEL;
	uint32_t n_told = 0, n_well = 0, n_other = 0;
	char field[64];
	int r = WELL;

	snprintf(field, sizeof(field), "fail=%s", calls[_i].field);
	for (uint32_t nth = 1; r != NOT_MET && nth < 200; nth++) {
		r = life_with(life, field, calls[_i].symbol, nth, GPU_CU_UNKNOWN);
		n_told += r == TOLD;
		n_well += r == WELL;
		n_other += r == OTHER;
	}
	ck_assert_int_eq(r, NOT_MET);
	fprintf(stderr, "%s: told %u, well %u, other %u\n", calls[_i].field, n_told, n_well,
		n_other);
	if (by_kernel)
		ck_assert_uint_gt(n_told + n_well, 0);
	if (!calls[_i].harmless && (by_kernel || strcmp(calls[_i].field, "copy") == 0))
		ck_assert_uint_gt(n_told, 0);
}
END_TEST

START_TEST(each_call_of_opening_fails_once)
{
	const struct call *call = &opening_calls[_i];
	uint32_t n_told = 0, n_well = 0, n_other = 0;
	char field[64];
	int r = WELL;

	snprintf(field, sizeof(field), "fail=%s", call->field);
	for (uint32_t nth = 1; r != NOT_MET && nth < 200; nth++) {
		r = life_with(opening, field, call->symbol, nth, GPU_CU_UNKNOWN);
		n_told += r == TOLD;
		n_well += r == WELL;
		n_other += r == OTHER;
	}
	ck_assert_int_eq(r, NOT_MET);
	fprintf(stderr, "opening, %s: told %u, well %u, other %u\n", call->field, n_told, n_well,
		n_other);
	ck_assert_uint_gt(call->harmless ? n_well : n_told, 0);
}
END_TEST

static bool tried(const char *field, size_t len, const struct call *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(v[i].field) == len && memcmp(v[i].field, field, len) == 0)
			return true;
	return false;
}

/* The tables above say all that the sources call. */
START_TEST(no_call_is_left_out)
{
	static const char *const files[] = { "device.c", "launch.c" };

	for (int i = 0; i < 2; i++) {
		static char text[1 << 17];
		char path[512];
		uint32_t n = 0;
		FILE *f;

		snprintf(path, sizeof(path), "%s/%s", getenv("CLIENT_SOURCE"), files[i]);
		f = fopen(path, "re");
		ck_assert_msg(f != NULL, "%s: %m", path);
		text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
		fclose(f);
		for (const char *at = text; (at = strstr(at, "driver.")); n++) {
			size_t len = strspn(at += 7, "abcdefghijklmnopqrstuvwxyz_");

			ck_assert_msg(at[len] != '(' || tried(at, len, calls, N_CALLS) ||
					      tried(at, len, opening_calls, N_OPENING) ||
					      tried(at, len, calls_apart, 1),
				      "%s: %.*s is tried nowhere", files[i], (int)len, at);
		}
		ck_assert_uint_gt(n, 5);
	}
}
END_TEST

/* A driver that has no memory for the kernels is not taken for one that has no use for them. */
START_TEST(no_memory_is_told)
{
	ck_assert_int_eq(
		life_with(life, "fail=module_load", "cuModuleLoadData", 1, GPU_CU_OUT_OF_MEMORY),
		TOLD);
}
END_TEST

/* A launch whose word was refused and that could not be waited for either may run for ever. */
START_TEST(what_is_not_known_to_end_is_kept)
{
	if (kit_mover_wanted() != PFX_CACHE_KERNEL)
		return; /* there are no tables */
	keeps = true;
	/* The test itself waits twice before. */
	ck_assert_int_eq(life_with(life, "fail=stream_write:1:999+stream_sync",
				   "cuStreamSynchronize", 3, GPU_CU_UNKNOWN),
			 TOLD);
}
END_TEST

/* The copy of the cache's picture is the first; the next is that of a table, or of a piece. */
START_TEST(the_stream_dies)
{
	ck_assert_int_eq(life_with(death, "op=copy", "copy", 2, GPU_CU_ILLEGAL_ADDRESS), WELL);
	if (kit_mover_wanted() != PFX_CACHE_KERNEL)
		return;
	ck_assert_int_eq(life_with(death, "op=kernel", "kernel", 1, GPU_CU_LAUNCH_FAILED), WELL);
	ck_assert_int_eq(life_with(death, "op=write", "write", 1, GPU_CU_ILLEGAL_ADDRESS), WELL);
}
END_TEST

/* "opening": that alone; life() reads what is not committed, which in a desk is nowhere else. */
int main(int argc, char **argv)
{
	Suite *suite = suite_create("cache faults");
	TCase *t = tcase_create("faults");

	if (!e2e_daemon_binary()) {
		puts("1..0 # SKIP no prefixd binary");
		return EXIT_SUCCESS;
	}
	tcase_set_timeout(t, 240);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, each_call_of_opening_fails_once, 0, N_OPENING);
	if (argc == 1) {
		tcase_add_loop_test(t, each_call_fails_once, 0, N_CALLS);
		tcase_add_test(t, no_call_is_left_out);
		tcase_add_test(t, no_memory_is_told);
		tcase_add_test(t, what_is_not_known_to_end_is_kept);
		tcase_add_test(t, the_stream_dies);
	}
	suite_add_tcase(suite, t);
	return test_run(suite);
}
