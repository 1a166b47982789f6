/*
 * test_rules.c - each rule of the driver, broken once: the look-alike notices it, and answers as
 * a driver would.
 */
#include "tests/driver/util.h"
#include "tests/lib/run.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

/* ---- start, devices, contexts ---------------------------------------------------------------- */

START_TEST(nothing_before_init)
{
	int n;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*lookup)(const char *, void **, int, uint64_t);
	void *entry = NULL;

	ck_assert_ptr_nonnull(library);
	lookup = (int (*)(const char *, void **, int, uint64_t))dlsym(library, "cuGetProcAddress");
	ck_assert_int_eq(lookup("cuDeviceGetCount", &entry, 12000, 0), GPU_CU_SUCCESS);
	d.device_count = (gpu_cu_result(*)(int *))entry;
	breaks(d.device_count(&n), GPU_CU_NOT_INITIALIZED);
}
END_TEST

START_TEST(nothing_in_a_child)
{
	int status = -1;
	pid_t pid;

	start("");
	pid = fork();
	if (pid == 0)
		_exit(d.stream_query(stream) == GPU_CU_NOT_INITIALIZED && census().n_broken == 1
			      ? 0
			      : 1);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	stop();
}
END_TEST

START_TEST(devices_that_are_none)
{
	struct gpu_cu_uuid id;
	gpu_cu_context c;
	int value;

	start("");
	breaks(d.device_uuid(&id, 1), GPU_CU_INVALID_DEVICE);
	breaks(d.context_retain(&c, -1), GPU_CU_INVALID_DEVICE);
	breaks(d.device_attribute(&value, 9999, 0), GPU_CU_INVALID_VALUE);
	stop();
}
END_TEST

static gpu_cu_result result_of_thread;

static void *ask_without_context(void *arg)
{
	size_t n_free, total;

	result_of_thread = d.mem_info(&n_free, &total);
	return NULL;
}

START_TEST(a_context_is_current_for_a_thread)
{
	pthread_t t;

	start("");
	breaks((pthread_create(&t, NULL, ask_without_context, NULL), pthread_join(t, NULL)), 0);
	ck_assert_int_eq(result_of_thread, GPU_CU_INVALID_CONTEXT);
	ok(d.context_set(NULL));
	breaks(d.stream_query(stream), GPU_CU_INVALID_CONTEXT);
	breaks(d.copy(device, addr_of(host), 64, stream), GPU_CU_INVALID_CONTEXT);
	breaks(d.host_unregister(host), GPU_CU_INVALID_CONTEXT);
	breaks(d.context_set((gpu_cu_context)(void *)host), GPU_CU_INVALID_CONTEXT);
	ok(d.context_set(ctx));
	stop();
	breaks(d.context_release(0), GPU_CU_INVALID_CONTEXT);
	breaks(d.context_set(ctx), GPU_CU_INVALID_CONTEXT);
	breaks(d.stream_new(&stream, GPU_CU_STREAM_NON_BLOCKING, 0), GPU_CU_INVALID_CONTEXT);
}
END_TEST

START_TEST(the_last_release_takes_what_belongs_to_the_context)
{
	start("");
	ok(d.context_retain(&ctx, 0));
	ok(d.context_release(0));
	ok(d.stream_query(stream));
	ok(d.context_release(0));
	ck_assert_uint_eq(census().n_streams, 0);
	ck_assert_uint_eq(census().n_registrations, 0);
	ck_assert_uint_eq(census().n_mappings, 1); /* the process' */
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(allocations)
{
	struct gpu_cu_alloc_prop wrong = prop;
	gpu_cu_memory m;
	size_t bytes;
	int fd;

	start("");
	breaks(d.mem_create(&m, UNIT + 4096, &prop, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_create(&m, 0, &prop, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_create(&m, UNIT, &prop, 1), GPU_CU_INVALID_VALUE);
	wrong.type = 0;
	breaks(d.mem_create(&m, UNIT, &wrong, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_granularity(&bytes, &wrong, 0), GPU_CU_INVALID_VALUE);
	wrong = prop;
	wrong.location.id = 1;
	breaks(d.mem_create(&m, UNIT, &wrong, 0), GPU_CU_INVALID_DEVICE);
	wrong = prop;
	wrong.flags.reserved[1] = 1;
	breaks(d.mem_create(&m, UNIT, &wrong, 0), GPU_CU_INVALID_VALUE);
	wrong = prop;
	wrong.handle_types = 8;
	ck_assert_int_eq(d.mem_create(&m, UNIT, &wrong, 0), GPU_CU_NOT_SUPPORTED);
	wrong.handle_types = 0;
	ok(d.mem_create(&m, UNIT, &wrong, 0));
	breaks(d.mem_export(&fd, m, GPU_CU_MEM_HANDLE_POSIX_FD, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_export(&fd, memory, 2, 0), GPU_CU_INVALID_VALUE);
	ok(d.mem_release(m));
	breaks(d.mem_release(m), GPU_CU_INVALID_VALUE);
	breaks(d.mem_export(&fd, m, GPU_CU_MEM_HANDLE_POSIX_FD, 0), GPU_CU_INVALID_VALUE);
	stop();
}
END_TEST

START_TEST(addresses)
{
	gpu_cu_ptr a;

	start("");
	breaks(d.address_reserve(&a, UNIT + 1, 0, 0, 0), GPU_CU_INVALID_VALUE);
	breaks(d.address_reserve(&a, UNIT, 3, 0, 0), GPU_CU_INVALID_VALUE);
	breaks(d.address_reserve(&a, UNIT, 0, 0, 1), GPU_CU_INVALID_VALUE);
	ok(d.address_reserve(&a, UNIT, 1 << 20, 0, 0));
	ck_assert_uint_eq(a % (1 << 20), 0);
	breaks(d.address_free(device, UNIT), GPU_CU_INVALID_VALUE); /* not all of it */
	breaks(d.address_free(device, LEN), GPU_CU_INVALID_VALUE);  /* mapped */
	ok(d.address_free(a, UNIT));
	breaks(d.address_free(a, UNIT), GPU_CU_INVALID_VALUE);
	stop();
}
END_TEST

START_TEST(mappings)
{
	struct gpu_cu_access_desc desc = access_all;
	gpu_cu_ptr a;

	start("");
	ok(d.address_reserve(&a, 2 * LEN, 0, 0, 0));
	breaks(d.mem_map(a, UNIT, UNIT, memory, 0), GPU_CU_INVALID_VALUE); /* offset */
	breaks(d.mem_map(a + 4096, UNIT, 0, memory, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_map(a, UNIT, 0, memory + 1, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_map(a + 2 * LEN, UNIT, 0, memory, 0), GPU_CU_INVALID_VALUE);
	breaks(d.mem_map(device, UNIT, 0, memory, 0), GPU_CU_INVALID_VALUE); /* taken */
	/* How long another's memory is, this is how one finds out. */
	ck_assert_int_eq(d.mem_map(a, 2 * LEN, 0, memory, 0), GPU_CU_INVALID_VALUE);
	ok(d.mem_map(a, LEN, 0, memory, 0));
	breaks(d.mem_access(a, UNIT, &access_all, 1), GPU_CU_INVALID_VALUE); /* a part */
	breaks(d.mem_access(a, 2 * LEN, &access_all, 1), GPU_CU_INVALID_VALUE);
	desc.flags = 2;
	breaks(d.mem_access(a, LEN, &desc, 1), GPU_CU_INVALID_VALUE);
	desc = access_all;
	desc.location.id = 5;
	breaks(d.mem_access(a, LEN, &desc, 1), GPU_CU_INVALID_DEVICE);
	breaks(d.mem_unmap(a, UNIT), GPU_CU_INVALID_VALUE);
	ok(d.mem_unmap(a, LEN));
	breaks(d.mem_unmap(a, LEN), GPU_CU_INVALID_VALUE);
	ok(d.address_free(a, 2 * LEN));
	stop();
}
END_TEST

START_TEST(registered_memory)
{
	gpu_cu_ptr a;
	uint8_t *p;

	start("");
	p = mmap(NULL, 2 * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert(p != MAP_FAILED);
	breaks(d.host_register(host, UNIT, both), GPU_CU_HOST_MEMORY_ALREADY_REGISTERED);
	breaks(d.host_register(host + 4096, 4096, both), GPU_CU_HOST_MEMORY_ALREADY_REGISTERED);
	breaks(d.host_register(p, 0, both), GPU_CU_INVALID_VALUE);
	breaks(d.host_register(p, UNIT, 0x100), GPU_CU_INVALID_VALUE);
	breaks(d.host_unregister(host + 4096), GPU_CU_HOST_MEMORY_NOT_REGISTERED);
	breaks(d.host_pointer(&a, p, 0), GPU_CU_INVALID_VALUE);
	/* Not for a device's own loads and stores. */
	ok(d.host_register(p, UNIT, GPU_CU_MEMHOSTREGISTER_PORTABLE));
	breaks(d.host_pointer(&a, p, 0), GPU_CU_INVALID_VALUE);
	breaks(d.stream_write(stream, addr_of(p), 1, 0), GPU_CU_INVALID_VALUE);
	/* One copy over two registrations that lie side by side. */
	ok(d.host_register(p + UNIT, UNIT, both));
	breaks(d.copy(device, addr_of(p) + UNIT - 64, 128, stream), GPU_CU_INVALID_VALUE);
	ok(d.host_unregister(p + UNIT));
	ok(d.host_unregister(p));
	breaks(d.host_unregister(p), GPU_CU_HOST_MEMORY_NOT_REGISTERED);
	ok(d.host_register(p, 2 * UNIT, both));
	ck_assert_int_eq(munmap(p, 2 * UNIT), 0);
	breaks(d.copy(device, addr_of(p), 128, stream), GPU_CU_INVALID_VALUE);
	ok(d.host_unregister(p));
	breaks(d.host_register(p, UNIT, both), GPU_CU_INVALID_VALUE); /* nothing is there */
	stop();
}
END_TEST

/* ---- queues ---------------------------------------------------------------------------------- */

START_TEST(streams)
{
	gpu_cu_stream s;

	start("");
	breaks(d.stream_new(&s, 2, 0), GPU_CU_INVALID_VALUE);
	breaks(d.stream_query(NULL), GPU_CU_INVALID_HANDLE);
	breaks(d.copy(device, addr_of(host), 64, NULL), GPU_CU_INVALID_HANDLE);
	breaks(d.stream_sync((gpu_cu_stream)(void *)host), GPU_CU_INVALID_HANDLE);
	ok(d.stream_new(&s, GPU_CU_STREAM_NON_BLOCKING, 0));
	ok(d.stream_free(s));
	breaks(d.stream_query(s), GPU_CU_INVALID_HANDLE);
	breaks(d.stream_free(s), GPU_CU_INVALID_HANDLE);
	stop();
}
END_TEST

/* Memory of the process right behind a device's addresses makes them no longer. */
START_TEST(what_lies_behind_device_addresses)
{
	const size_t room = 16u << 20;
	gpu_cu_ptr a;
	uint8_t *p, *hole;

	start("");
	hole = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert(hole != MAP_FAILED);
	ck_assert_int_eq(munmap(hole, room), 0);
	ok(d.address_reserve(&a, LEN, 0, addr_of(hole) + (4u << 20), 0));
	ok(d.mem_map(a, LEN, 0, memory, 0));
	ok(d.mem_access(a, LEN, &access_all, 1));
	p = mmap((void *)(uintptr_t)(a + LEN), UNIT, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_uint_eq(addr_of(p), a + LEN);
	ok(d.host_register(p, UNIT, both));
	breaks(d.copy(a + LEN - 32, addr_of(host), 64, stream), GPU_CU_INVALID_VALUE);
	ok(d.copy(a + LEN - 64, addr_of(host), 64, stream));
	ok(d.stream_sync(stream));
	ok(d.host_unregister(p));
	ok(d.mem_unmap(a, LEN));
	ok(d.address_free(a, LEN));
	stop();
}
END_TEST

START_TEST(what_an_operation_may_reach)
{
	struct gpu_cu_access_desc desc = access_all;
	uint8_t *p = pages();

	start("");
	breaks(d.copy(device, addr_of(p), 64, stream), GPU_CU_INVALID_VALUE);
	breaks(d.copy(addr_of(p), device, 64, stream), GPU_CU_INVALID_VALUE);
	breaks(d.copy(device + LEN - 32, addr_of(host), 64, stream), GPU_CU_INVALID_VALUE);
	breaks(d.copy(device, addr_of(host) + UNIT - 32, 64, stream), GPU_CU_INVALID_VALUE);
	breaks(d.set_bytes(addr_of(p), 0, 64, stream), GPU_CU_INVALID_VALUE);
	breaks(d.stream_write(stream, addr_of(p), 1, 0), GPU_CU_INVALID_VALUE);
	breaks(d.stream_write(stream, addr_of(host) + 4, 1, 0), GPU_CU_INVALID_VALUE);
	breaks(d.stream_call(stream, NULL, NULL), GPU_CU_INVALID_VALUE);
	desc.flags = GPU_CU_MEM_ACCESS_READ;
	ok(d.mem_access(device, LEN, &desc, 1));
	breaks(d.copy(device, addr_of(host), 64, stream), GPU_CU_INVALID_VALUE);
	ok(d.copy(addr_of(host), device, 64, stream));
	ok(d.stream_sync(stream));
	desc.flags = 0;
	ok(d.mem_access(device, LEN, &desc, 1));
	breaks(d.copy(addr_of(host), device, 64, stream), GPU_CU_INVALID_VALUE);
	stop();
}
END_TEST

/* Both are mapped for device 0 alone. */
START_TEST(another_device_has_no_access)
{
	const struct gpu_cu_access_desc for_second = { { GPU_CU_MEM_LOCATION_DEVICE, 1 },
						       GPU_CU_MEM_ACCESS_READWRITE };
	gpu_cu_context second;
	gpu_cu_stream s;

	start("devices=2");
	ok(d.context_retain(&second, 1));
	ok(d.context_set(second));
	breaks(d.copy(device, addr_of(host), 64, stream), GPU_CU_INVALID_HANDLE);
	ok(d.stream_new(&s, GPU_CU_STREAM_NON_BLOCKING, 0));
	breaks(d.copy(device, addr_of(host), 64, s), GPU_CU_INVALID_VALUE);
	ok(d.mem_access(device, LEN, &for_second, 1));
	ok(d.copy(device, addr_of(host), 64, s)); /* both have access now */
	ok(d.stream_sync(s));
	ok(d.copy(device, addr_of(host), 0, s));
	ok(d.stream_free(s));
	/* Memory that was registered for one context only. */
	ok(d.context_set(ctx));
	ok(d.host_unregister(host));
	ok(d.host_register(host, UNIT, GPU_CU_MEMHOSTREGISTER_DEVICEMAP));
	ok(d.copy(device, addr_of(host), 64, stream));
	ok(d.stream_sync(stream));
	ok(d.context_set(second));
	ok(d.stream_new(&s, GPU_CU_STREAM_NON_BLOCKING, 0));
	breaks(d.copy(device, addr_of(host), 64, s), GPU_CU_INVALID_VALUE);
	ok(d.context_set(ctx));
	ok(d.context_release(1));
	stop();
}
END_TEST

START_TEST(batches)
{
	struct gpu_cu_memcpy_attr attrs[2] = { { .src_order = 1 }, { .src_order = 1 } };
	gpu_cu_ptr dsts[] = { device, 0 }, srcs[] = { 0, 0 };
	size_t lens[] = { 64, 64 }, from[] = { 0, 0 }, failed;

	start("");
	dsts[0] = device;
	dsts[1] = device + 4096;
	srcs[0] = addr_of(host);
	srcs[1] = addr_of(host) + 64;
#define BATCH(n, n_attrs) d.copy_batch(dsts, srcs, lens, n, attrs, from, n_attrs, &failed, stream)
	breaks(BATCH(0, 1), GPU_CU_INVALID_VALUE);
	breaks(BATCH(2, 0), GPU_CU_INVALID_VALUE);
	breaks(BATCH(1, 2), GPU_CU_INVALID_VALUE);
	breaks(BATCH(2, 2), GPU_CU_INVALID_VALUE); /* both from copy 0 on */
	from[0] = 1;
	breaks(BATCH(2, 1), GPU_CU_INVALID_VALUE);
	from[0] = 0;
	attrs[0].src_order = 0;
	breaks(BATCH(2, 1), GPU_CU_INVALID_VALUE);
	attrs[0].src_order = 1;
	attrs[0].flags = 4;
	breaks(BATCH(2, 1), GPU_CU_INVALID_VALUE);
	attrs[0].flags = 0;
	srcs[1] = 64;
	breaks(BATCH(2, 1), GPU_CU_INVALID_VALUE);
	ck_assert_uint_eq(failed, 1);
	srcs[1] = addr_of(host) + 64;
	dsts[1] = device + 32; /* whichever comes last */
	breaks(BATCH(2, 1), GPU_CU_SUCCESS);
	dsts[1] = device + 64;
	ok(BATCH(2, 1));
#undef BATCH
	ok(d.stream_sync(stream));
	ck_assert_uint_eq(census().n_batches, 2);
	stop();
}
END_TEST

START_TEST(nothing_is_taken_from_under_an_operation)
{
	start("latency_us=100000");
	ok(d.copy(device, addr_of(host), 64, stream));
	breaks(d.host_unregister(host), GPU_CU_SUCCESS);
	ok(d.host_register(host, UNIT, both));
	breaks(d.mem_unmap(device, LEN), GPU_CU_SUCCESS);
	/* And then it is not there. */
	breaks(d.stream_sync(stream), GPU_CU_ILLEGAL_ADDRESS);
}
END_TEST

static void call_the_driver(void *arg)
{
	result_of_thread = d.stream_query(stream);
}

START_TEST(a_host_function_does_not_call_the_driver)
{
	start("");
	ok(d.stream_call(stream, call_the_driver, NULL));
	while (d.stream_query(stream) == GPU_CU_NOT_READY)
		nap(1);
	ck_assert_int_eq(result_of_thread, GPU_CU_NOT_PERMITTED);
	ck_assert_uint_eq(census().n_broken, 1);
	stop();
}
END_TEST

START_TEST(abort_ends_the_process)
{
	start("abort=1");
	(void)d.stream_query(NULL);
}
END_TEST

/* ---- kernels --------------------------------------------------------------------------------- */

START_TEST(without_kernels_there_is_no_binary)
{
	gpu_cu_module m;

	start("");
	ck_assert_int_eq(d.module_load(&m, "//"), GPU_CU_NO_BINARY_FOR_GPU);
	breaks(d.module_load(&m, NULL), GPU_CU_INVALID_VALUE);
	breaks(d.module_unload((gpu_cu_module)(void *)host), GPU_CU_INVALID_HANDLE);
	breaks(d.launch((gpu_cu_function)(void *)host, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL),
	       GPU_CU_INVALID_HANDLE);
	breaks(d.launch((gpu_cu_function)(void *)host, 0, 1, 1, 32, 1, 1, 0, stream, NULL, NULL),
	       GPU_CU_INVALID_VALUE);
	stop();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("rules");
	TCase *t = tcase_create("all");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, nothing_before_init);
	tcase_add_test(t, nothing_in_a_child);
	tcase_add_test(t, devices_that_are_none);
	tcase_add_test(t, a_context_is_current_for_a_thread);
	tcase_add_test(t, the_last_release_takes_what_belongs_to_the_context);
	tcase_add_test(t, allocations);
	tcase_add_test(t, addresses);
	tcase_add_test(t, mappings);
	tcase_add_test(t, registered_memory);
	tcase_add_test(t, streams);
	tcase_add_test(t, what_lies_behind_device_addresses);
	tcase_add_test(t, what_an_operation_may_reach);
	tcase_add_test(t, another_device_has_no_access);
	tcase_add_test(t, batches);
	tcase_add_test(t, nothing_is_taken_from_under_an_operation);
	tcase_add_test(t, a_host_function_does_not_call_the_driver);
	tcase_add_test_raise_signal(t, abort_ends_the_process, SIGABRT);
	tcase_add_test(t, without_kernels_there_is_no_binary);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return test_run_as(suite(), CK_FORK);
}
