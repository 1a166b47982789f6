/*
 * test_steering.c - what LOOKALIKE plans: calls and operations that fail, and the trace of calls.
 */
#include "tests/driver/util.h"

#include <signal.h>

static uint32_t n_calls;

static void count_call(void *arg)
{
	(void)__atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED);
}

/* ---- faults ---------------------------------------------------------------------------------- */

START_TEST(an_entry_fails_at_the_nth_call_and_at_no_other)
{
	gpu_cu_memory m;

	start("fail=mem_create:3:2+cuMemRelease:1:999");
	ok(d.mem_create(&m, UNIT, &prop, 0));
	ck_assert_int_eq(d.mem_release(m), GPU_CU_UNKNOWN);
	ok(d.mem_release(m));
	ck_assert_int_eq(d.mem_create(&m, UNIT, &prop, 0), GPU_CU_OUT_OF_MEMORY);
	ok(d.mem_create(&m, UNIT, &prop, 0));
	ok(d.mem_release(m));
	ck_assert_uint_eq(census().n_broken, 0);
	stop();
}
END_TEST

START_TEST(an_entry_fails_from_the_nth_call_on)
{
	size_t n_free, total;

	start("fail=mem_info:2-:999");
	ok(d.mem_info(&n_free, &total));
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(d.mem_info(&n_free, &total), GPU_CU_UNKNOWN);
	stop();
}
END_TEST

static const struct {
	const char *variable;
	gpu_cu_result result;
} ops[] = {
	{ "op=copy:1:719", GPU_CU_LAUNCH_FAILED },
	{ "op=set:1:700", GPU_CU_ILLEGAL_ADDRESS },
	{ "op=write:1:719", GPU_CU_LAUNCH_FAILED },
	{ "op=call:1:214", GPU_CU_ECC_UNCORRECTABLE },
};

/* The context may be down when the last of them is asked for. */
static void queue_one_of_each(gpu_cu_result or_else)
{
	const gpu_cu_result results[] = {
		d.copy(device, addr_of(host), 64, stream),
		d.set_bytes(device, 0x55, 64, stream),
		d.stream_write(stream, addr_of(host) + 4096, 1, 0),
		d.stream_call(stream, count_call, NULL),
		d.stream_write(stream, addr_of(host) + 4104, 1, 0),
	};

	for (size_t i = 0; i < radix_array_size(results); i++)
		ck_assert(results[i] == GPU_CU_SUCCESS || results[i] == or_else);
}

START_TEST(a_failed_operation_is_sticky_and_the_queue_is_silent)
{
	const gpu_cu_result wanted = ops[_i].result;
	gpu_cu_stream other;
	gpu_cu_result r;
	size_t n_free, total;

	start(ops[_i].variable);
	ok(d.stream_new(&other, GPU_CU_STREAM_NON_BLOCKING, 0));
	queue_one_of_each(wanted);
	while ((r = d.stream_query(stream)) == GPU_CU_NOT_READY)
		nap(1);
	ck_assert_int_eq(r, wanted);
	nap(20);
	ck_assert_uint_eq(host[4104], 0); /* nobody was told */
	ck_assert_uint_eq(n_calls, 0);    /* it comes after the failing one, or is it */
	/* All of the context says so, and goes on saying it. */
	ck_assert_int_eq(d.stream_query(other), wanted);
	ck_assert_int_eq(d.stream_sync(stream), wanted);
	ck_assert_int_eq(d.mem_info(&n_free, &total), wanted);
	ck_assert_int_eq(d.copy(device, addr_of(host), 64, other), wanted);
	/* What was taken can be given back. */
	ck_assert_int_eq(d.stream_free(other), wanted);
	ck_assert_int_eq(d.stream_free(stream), wanted);
	ck_assert_int_eq(d.host_unregister(host), wanted);
	ok(d.mem_unmap(device, LEN));
	ok(d.address_free(device, LEN));
	ok(d.mem_release(memory));
	ok(d.context_release(0));
	holds_nothing();
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

START_TEST(a_hanging_operation_never_ends)
{
	start("op=copy:2:hang");
	ok(d.copy(device, addr_of(host), 64, stream));
	ok(d.copy(device + 64, addr_of(host), 64, stream));
	ok(d.stream_write(stream, addr_of(host) + 4096, 1, 0));
	nap(100);
	ck_assert_int_eq(d.stream_query(stream), GPU_CU_NOT_READY);
	ck_assert_uint_eq(host[4096], 0);
	ok(d.stream_free(stream));
	nap(20);
	ck_assert_uint_eq(host[4096], 0);
	ok(d.mem_unmap(device, LEN));
	ok(d.address_free(device, LEN));
	ok(d.mem_release(memory));
	ok(d.host_unregister(host));
	ok(d.context_release(0));
	holds_nothing();
}
END_TEST

/* ---- its variable ------------------------------------------------------------------------------ */

static const char *const misspelt[] = {
	"device=1",         "devices",       "devices=x",        "poison=2",
	"fail=nothing:1:2", "fail=init:0:2", "fail=init:1:hang", "op=copies:1:2",
	"op=copy:1",        "op=copy:1:0",   "devices=17",       "granularity=3000"
};

START_TEST(a_misspelt_variable_ends_the_process)
{
	(void)load(misspelt[_i], "memory=65536");
}
END_TEST

/* ---- trace ----------------------------------------------------------------------------------- */

START_TEST(each_call_site_is_written_once)
{
	char path[] = "/tmp/lookalike-XXXXXX", variable[64], line[512];
	int fd = mkstemp(path), n = 0;
	FILE *f;

	ck_assert(fd >= 0);
	ck_assert_int_eq(close(fd), 0);
	(void)snprintf(variable, sizeof(variable), "trace=%s", path);
	start(variable);
	for (volatile int i = 0; i < 5; i++) /* one site: not unrolled */
		ck_assert_int_eq(d.stream_query(stream), 0);
	ck_assert_int_eq(d.stream_query(stream), 0);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		n += strncmp(line, "cuStreamQuery ", 14) == 0 && strstr(line, "test_steering+0x");
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(n, 2);
	stop();
}
END_TEST

/* ---- main ------------------------------------------------------------------------------------ */

static Suite *suite(void)
{
	Suite *s = suite_create("steering");
	TCase *t = tcase_create("all");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, an_entry_fails_at_the_nth_call_and_at_no_other);
	tcase_add_test(t, an_entry_fails_from_the_nth_call_on);
	tcase_add_loop_test(t, a_failed_operation_is_sticky_and_the_queue_is_silent, 0,
			    (int)radix_array_size(ops));
	tcase_add_test(t, a_hanging_operation_never_ends);
	tcase_add_loop_test_raise_signal(t, a_misspelt_variable_ends_the_process, SIGABRT, 0,
					 (int)radix_array_size(misspelt));
	tcase_add_test(t, each_call_site_is_written_once);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	SRunner *sr = srunner_create(suite());
	int failed;

	srunner_set_fork_status(sr, CK_FORK);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? 0 : 1;
}
