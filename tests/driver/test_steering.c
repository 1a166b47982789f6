/*
 * test_steering.c - what LOOKALIKE plans: versions, devices, calls and operations that fail, and
 * the trace of calls.
 */
#include "tests/driver/util.h"
#include "tests/lib/run.h"

#include <signal.h>

/* ---- finding it ------------------------------------------------------------------------------ */

static const struct {
	const char *variable;
	enum gpu_driver_state state;
} states[] = {
	{ "devices=1", GPU_DRIVER_OK },
	{ "devices=0", GPU_DRIVER_NO_DEVICE },
	{ "stub=1", GPU_DRIVER_STUB },
	{ "version=11060", GPU_DRIVER_TOO_OLD },
	{ "fail=init:1:999", GPU_DRIVER_FAILED },
	{ "fail=cuDriverGetVersion:1:999", GPU_DRIVER_FAILED },
	{ "fail=device_count:1:3", GPU_DRIVER_FAILED },
};

START_TEST(each_state_of_a_driver)
{
	ck_assert_int_eq((int)load(states[_i].variable, "memory=65536"), (int)states[_i].state);
}
END_TEST

START_TEST(entries_by_version)
{
	int (*lookup)(const char *, void **, int, uint64_t, int *);
	void *entry = NULL, *newer = NULL;
	int status = -1;

	ck_assert_int_eq((int)load("version=13010", ""), GPU_DRIVER_OK);
	ck_assert_ptr_nonnull(d.copy_batch);
	lookup = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(d.library,
									     "cuGetProcAddress_v2");
	ck_assert_ptr_nonnull(lookup);
	ck_assert_int_eq(lookup("cuMemCreate", &entry, 10010, 0, &status), GPU_CU_SUCCESS);
	ck_assert_ptr_null(entry);
	ck_assert_int_eq(status, 2);
	ck_assert_int_eq(lookup("cuMemCreatee", &entry, 13000, 0, &status), GPU_CU_SUCCESS);
	ck_assert_ptr_null(entry);
	ck_assert_int_eq(status, 1);
	ck_assert_int_eq(lookup("cuMemCreate", &entry, 10020, 0, &status), GPU_CU_SUCCESS);
	ck_assert_ptr_nonnull(entry);
	ck_assert_int_eq(status, 0);
	/* Above the driver's own. */
	ck_assert_int_eq(lookup("cuMemCreate", &entry, 13020, 0, &status), GPU_CU_INVALID_VALUE);
	/* Two interfaces under one name. */
	ck_assert_int_eq(lookup("cuMemcpyBatchAsync", &entry, 12080, 0, &status), GPU_CU_SUCCESS);
	ck_assert_int_eq(lookup("cuMemcpyBatchAsync", &newer, 13000, 0, &status), GPU_CU_SUCCESS);
	ck_assert(entry && newer && entry != newer);
}
END_TEST

START_TEST(a_driver_of_12_4_has_no_batches)
{
	start("version=12040");
	ck_assert_ptr_null(d.copy_batch);
	memset(host, 7, 16);
	ok(d.copy(device, addr_of(host), 16, stream));
	ok(d.stream_sync(stream));
	stop();
}
END_TEST

START_TEST(devices_and_their_names)
{
	struct gpu_cu_uuid a, b;
	char name[64] = "";
	int n = 0, device_b = -1, value = 0;

	ck_assert_int_eq((int)load("devices=3", ""), GPU_DRIVER_OK);
	ok(d.device_count(&n));
	ck_assert_int_eq(n, 3);
	ok(d.device_get(&device_b, 2));
	ck_assert_int_eq(d.device_get(&device_b, 3), GPU_CU_INVALID_DEVICE);
	ok(d.device_uuid(&a, 0));
	ok(d.device_uuid(&b, 2));
	ck_assert_mem_ne(&a, &b, sizeof(a));
	ok(d.device_name(name, sizeof(name), 1));
	ck_assert_str_eq(name, "Look-alike 1");
	ok(d.device_attribute(&value, GPU_CU_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
	ck_assert_int_eq(value, 1);
}
END_TEST

/* As where some devices are hidden from a process. */
START_TEST(a_device_keeps_its_uuid_under_another_number)
{
	struct gpu_cu_uuid id;

	ck_assert_int_eq((int)load("devices=1,first=2", ""), GPU_DRIVER_OK);
	ok(d.device_uuid(&id, 0));
	ck_assert_uint_eq(id.b[15], 2);
}
END_TEST

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

/* ---- its variable ---------------------------------------------------------------------------- */

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
	tcase_add_loop_test(t, each_state_of_a_driver, 0, (int)radix_array_size(states));
	tcase_add_test(t, entries_by_version);
	tcase_add_test(t, a_driver_of_12_4_has_no_batches);
	tcase_add_test(t, devices_and_their_names);
	tcase_add_test(t, a_device_keeps_its_uuid_under_another_number);
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
	return test_run_as(suite(), CK_FORK);
}
