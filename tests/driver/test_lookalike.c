/*
 * test_lookalike.c - what the look-alike driver does with memory and queues.
 *
 * A program of two: called with a descriptor's number it is the second process, which imports it.
 */
#include "tests/driver/util.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static const char *self; /* path of this program */

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(memory_has_an_end)
{
	gpu_cu_memory a, b;
	size_t n_free = 0, total = 0;

	start_bare("memory=131072");
	ok(d.mem_create(&a, UNIT, &prop, 0));
	ok(d.mem_info(&n_free, &total));
	ck_assert_uint_eq(n_free, UNIT);
	ck_assert_uint_eq(total, LEN);
	ck_assert_int_eq(d.mem_create(&b, LEN, &prop, 0), GPU_CU_OUT_OF_MEMORY);
	ok(d.mem_create(&b, UNIT, &prop, 0));
	ok(d.mem_release(a));
	ok(d.mem_release(b));
	ok(d.mem_info(&n_free, &total));
	ck_assert_uint_eq(n_free, LEN);
	ok(d.context_release(0));
	holds_nothing();
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

/* A copy over the border of two allocations that lie side by side. */
START_TEST(allocations_side_by_side_are_one_range)
{
	gpu_cu_memory parts[2];
	uint8_t *p;

	start_bare("");
	ok(d.stream_new(&stream, GPU_CU_STREAM_NON_BLOCKING, 0));
	ok(d.address_reserve(&device, LEN, 0, 0, 0));
	for (uint32_t i = 0; i < 2; i++) {
		ok(d.mem_create(&parts[i], UNIT, &prop, 0));
		ok(d.mem_map(device + i * UNIT, UNIT, 0, parts[i], 0));
		ok(d.mem_release(parts[i])); /* mapped: it stays */
	}
	ok(d.mem_access(device, LEN, &access_all, 1));
	p = pages();
	ok(d.host_register(p, UNIT, both));
	memset(p, 0x3c, 4096);
	ok(d.copy(device + UNIT - 2048, addr_of(p), 4096, stream));
	ok(d.copy(addr_of(p) + 8192, device + UNIT - 2048, 4096, stream));
	ok(d.stream_sync(stream));
	ck_assert(all_are(p + 8192, 4096, 0x3c));
	ok(d.mem_unmap(device, LEN));
	ok(d.address_free(device, LEN));
	ok(d.host_unregister(p));
	ok(d.stream_free(stream));
	ok(d.context_release(0));
	holds_nothing();
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

/* Whether a load of the CPU through the device's address is a fault, asked of the kernel. */
static bool cpu_loads_fault(void)
{
	int fds[2];
	ssize_t n;

	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	n = write(fds[1], (const void *)(uintptr_t)device, 1);
	ck_assert(n == 1 || errno == EFAULT);
	ck_assert_int_eq(close(fds[0]), 0);
	ck_assert_int_eq(close(fds[1]), 0);
	return n != 1;
}

START_TEST(the_cpu_reaches_device_memory_unless_strict)
{
	start(_i == 0 ? "strict=0" : "strict=1");
	memset(host, 0x11, 64);
	ok(d.copy(device, addr_of(host), 64, stream));
	ok(d.copy(addr_of(host) + 4096, device, 64, stream));
	ok(d.stream_sync(stream));
	ck_assert(all_are(host + 4096, 64, 0x11));
	ck_assert(cpu_loads_fault() == (_i == 1));
	if (_i == 0)
		ck_assert_mem_eq((const void *)(uintptr_t)device, host, 64);
	stop();
}
END_TEST

static gpu_cu_memory import(int fd)
{
	gpu_cu_memory m = 0;

	ok(d.mem_import(&m, (void *)(intptr_t)fd, GPU_CU_MEM_HANDLE_POSIX_FD));
	return m;
}

/* A memfd that could pass for memory of a device but for one thing. */
static int nearly(const char *name, int seals)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert(fd >= 0);
	ck_assert_int_eq(ftruncate(fd, UNIT), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

START_TEST(what_is_no_memory_is_not_imported)
{
	const int both_seals = F_SEAL_SHRINK | F_SEAL_GROW;
	const int fds[] = { nearly("lookalike-7", both_seals), nearly("lookalike-0", F_SEAL_GROW),
			    nearly("something-0", both_seals), open("/dev/null", O_RDWR), 9999 };
	const int right = nearly("lookalike-0", both_seals);
	gpu_cu_memory m;

	start("");
	for (size_t i = 0; i < radix_array_size(fds); i++)
		ck_assert_int_eq(
			d.mem_import(&m, (void *)(intptr_t)fds[i], GPU_CU_MEM_HANDLE_POSIX_FD),
			GPU_CU_INVALID_VALUE);
	ok(d.mem_release(import(right)));
	/* A descriptor may come from anybody: that is no broken rule. */
	ck_assert_uint_eq(census().n_broken, 0);
	stop();
}
END_TEST

static int second_fd;

/* In the second process: sees 0x5a, leaves 0xa5. */
START_TEST(second)
{
	gpu_cu_memory m;

	start("");
	m = import(second_fd);
	ok(d.mem_unmap(device, LEN));
	ok(d.mem_map(device, LEN, 0, m, 0));
	ok(d.mem_access(device, LEN, &access_all, 1));
	ok(d.mem_release(m));
	ok(d.copy(addr_of(host), device + UNIT, UNIT, stream));
	ok(d.stream_sync(stream));
	ck_assert(all_are(host, UNIT, 0x5a));
	memset(host, 0xa5, UNIT);
	ok(d.copy(device + UNIT, addr_of(host), UNIT, stream));
	ok(d.stream_sync(stream));
	ck_assert_uint_eq(census().n_broken, 0);
	stop();
}
END_TEST

static int run_second(int fd)
{
	char number[16];
	int status = -1;
	pid_t pid;

	(void)snprintf(number, sizeof(number), "%d", fd);
	pid = fork();
	if (pid == 0) {
		(void)execl(self, self, number, NULL);
		_exit(127);
	}
	ck_assert(pid > 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}

START_TEST(another_process_imports_the_descriptor)
{
	uint8_t *p;
	int fd = -1;

	start("");
	memset(host, 0x5a, UNIT);
	ok(d.copy(device + UNIT, addr_of(host), UNIT, stream));
	ok(d.stream_sync(stream));
	ok(d.mem_export(&fd, memory, GPU_CU_MEM_HANDLE_POSIX_FD, 0));
	p = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert(p != MAP_FAILED);
	ck_assert(all_are(p + UNIT, UNIT, 0x5a));
	ck_assert_int_eq(run_second(fd), 0);
	ck_assert(all_are(p + UNIT, UNIT, 0xa5));
	ck_assert_int_eq(munmap(p, LEN), 0);
	ck_assert_int_eq(close(fd), 0);
	stop();
}
END_TEST

/* Opaque ones too, whoever closed the end that it was sent from; and they are no files. */
START_TEST(a_descriptor_keeps_the_memory)
{
	gpu_cu_memory m;
	struct stat st;
	int fd = -1;
	void *p;

	start(_i ? "opaque=1" : "");
	ok(d.set_bytes(device, 0x77, LEN, stream));
	ok(d.stream_sync(stream));
	ok(d.mem_export(&fd, memory, GPU_CU_MEM_HANDLE_POSIX_FD, 0));
	ok(d.mem_unmap(device, LEN));
	ok(d.mem_release(memory));
	ck_assert_uint_eq(census().n_memories, 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_eq(st.st_size, _i ? 0 : LEN);
	p = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_int_eq(p == MAP_FAILED, _i);
	if (p != MAP_FAILED)
		ck_assert_int_eq(munmap(p, LEN), 0);
	m = import(fd);
	ck_assert_int_eq(close(fd), 0);
	memory = m;
	ok(d.mem_map(device, LEN, 0, memory, 0));
	ok(d.mem_access(device, LEN, &access_all, 1));
	ok(d.copy(addr_of(host), device, UNIT, stream));
	ok(d.stream_sync(stream));
	ck_assert(all_are(host, UNIT, 0x77));
	stop();
}
END_TEST

/* ---- queues ---------------------------------------------------------------------------------- */

struct order {
	uint32_t n;
	uint32_t seen[8];
};

static struct order order;

/* Runs on the stream's thread; the test looks after it has waited for the stream. */
static void note(void *arg)
{
	order.seen[order.n++] = (uint32_t)(uintptr_t)arg;
}

START_TEST(a_queue_keeps_its_order)
{
	uint64_t *word;

	start("latency_us=200");
	word = (uint64_t *)(void *)(host + 32768);
	for (uintptr_t i = 0; i < 8; i++) {
		memset(host + i * 64, (int)i + 1, 64);
		ok(d.copy(device, addr_of(host) + i * 64, 64, stream));
		ok(d.copy(addr_of(host) + 4096 + i * 64, device, 64, stream));
		ok(d.stream_call(stream, note, (void *)i));
	}
	ok(d.stream_write(stream, addr_of(word), 99, 0));
	ck_assert_int_eq(d.stream_query(stream), GPU_CU_NOT_READY);
	ok(d.stream_sync(stream));
	ok(d.stream_query(stream));
	ck_assert_uint_eq(*word, 99);
	ck_assert_uint_eq(order.n, 8);
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_uint_eq(order.seen[i], i);
		ck_assert(all_are(host + 4096 + i * 64, 64, (uint8_t)(i + 1)));
	}
	ck_assert_uint_eq(census().n_broken, 0);
	stop();
}
END_TEST

START_TEST(a_word_comes_after_the_bytes_before_it)
{
	const uint64_t *word;

	start("latency_us=20000");
	word = (const uint64_t *)(const void *)(host + 32768);
	ok(d.set_bytes(device, 0x42, LEN, stream));
	ok(d.copy(addr_of(host), device, 4096, stream));
	ok(d.stream_write(stream, addr_of(word), 5, 0));
	ck_assert_uint_eq(__atomic_load_n(word, __ATOMIC_ACQUIRE), 0);
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 5)
		nap(1);
	ck_assert(all_are(host, 4096, 0x42));
	ok(d.stream_sync(stream));
	stop();
}
END_TEST

static uint64_t ms_now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

START_TEST(copies_take_their_time)
{
	const uint64_t begin = ms_now();

	start("latency_us=30000");
	ok(d.copy(device, addr_of(host), 64, stream));
	ok(d.copy(device, addr_of(host), 64, stream));
	ok(d.stream_sync(stream));
	ck_assert_uint_ge(ms_now() - begin, 59);
	stop();
}
END_TEST

/* Two queues share what moves bytes within a device: 64 MiB at 1 GB/s. */
START_TEST(bytes_take_their_time)
{
	const size_t half = 8u << 20;
	gpu_cu_stream other;
	gpu_cu_memory m;
	gpu_cu_ptr a;
	uint64_t begin;

	start("gbps=1");
	ok(d.stream_new(&other, GPU_CU_STREAM_NON_BLOCKING, 0));
	ok(d.mem_create(&m, 2 * half, &prop, 0));
	ok(d.address_reserve(&a, 2 * half, 0, 0, 0));
	ok(d.mem_map(a, 2 * half, 0, m, 0));
	ok(d.mem_release(m));
	ok(d.mem_access(a, 2 * half, &access_all, 1));
	begin = ms_now();
	for (int i = 0; i < 4; i++) {
		ok(d.set_bytes(a, 1, half, stream));
		ok(d.set_bytes(a + half, 1, half, other));
	}
	ok(d.stream_sync(stream));
	ok(d.stream_sync(other));
	ck_assert_uint_ge(ms_now() - begin, 8 * half / 1000000 - 1);
	ok(d.mem_unmap(a, 2 * half));
	ok(d.address_free(a, 2 * half));
	ok(d.stream_free(other));
	stop();
}
END_TEST

static void batch(gpu_cu_stream s, uint32_t n)
{
	struct gpu_cu_memcpy_attr attr = { .src_order = GPU_CU_MEMCPY_SRC_ORDER_STREAM };
	gpu_cu_ptr dsts[64], srcs[64];
	size_t lens[64], from = 0, failed = 0;

	for (uint32_t i = 0; i < n; i++) {
		dsts[i] = device + i * 512;
		srcs[i] = addr_of(host) + i * 512;
		lens[i] = 512;
	}
	ok(d.copy_batch(dsts, srcs, lens, n, &attr, &from, 1, &failed, s));
	ck_assert_uint_eq(failed, SIZE_MAX);
}

START_TEST(a_batch_moves_all_of_its_copies)
{
	start("reorder=42");
	for (uint32_t i = 0; i < UNIT; i++)
		host[i] = (uint8_t)(i / 512 * 3 + 1);
	batch(stream, 64);
	ok(d.stream_sync(stream));
	ck_assert_mem_eq((const void *)(uintptr_t)device, host, 64 * 512);
	ck_assert_uint_eq(census().n_batches, 1);
	ck_assert_uint_eq(census().n_copies, 64);
	stop();
}
END_TEST

/* The third copy never ends: what came before it in the queue's order is there, the rest is not. */
static uint32_t landed(const char *variable)
{
	uint32_t mask = 0;

	start(variable);
	memset(host, 1, UNIT);
	ok(d.set_bytes(device, 0, LEN, stream));
	ok(d.stream_sync(stream));
	batch(stream, 32);
	nap(50);
	for (uint32_t i = 0; i < 32; i++)
		mask |= (uint32_t)(*(volatile uint8_t *)(uintptr_t)(device + i * 512)) << i;
	return mask;
}

START_TEST(a_batch_has_an_order_without_a_seed)
{
	ck_assert_uint_eq(landed("op=copy:9:hang"), 0xff);
}
END_TEST

START_TEST(a_batch_has_no_order_with_a_seed)
{
	const uint32_t mask = landed("op=copy:20:hang,reorder=7");

	ck_assert_uint_ne(mask, 0);
	ck_assert_uint_ne(mask, 0x7ffff);
	ck_assert_uint_eq(mask & 0x80000, 0);
}
END_TEST

/* ---- poison ---------------------------------------------------------------------------------- */

START_TEST(poison_is_seen_before_and_gone_after)
{
	start("poison=1,latency_us=50000");
	memset(host, 0x33, 4096);
	ok(d.copy(device, addr_of(host), 4096, stream));
	ck_assert(all_are((const uint8_t *)(uintptr_t)device, 4096, 0xDB));
	ok(d.stream_sync(stream));
	ck_assert(all_are((const uint8_t *)(uintptr_t)device, 4096, 0x33));
	ok(d.copy(addr_of(host) + 8192, device, 4096, stream));
	ck_assert(all_are(host + 8192, 4096, 0xDB));
	ok(d.stream_sync(stream));
	ck_assert(all_are(host + 8192, 4096, 0x33));
	ck_assert_uint_eq(census().n_broken, 0);
	stop();
}
END_TEST

START_TEST(poison_leaves_what_the_queue_still_needs)
{
	start("poison=1,latency_us=5000");
	memset(host, 0x33, 4096);
	ok(d.copy(device, addr_of(host), 4096, stream));
	ok(d.stream_sync(stream));
	ok(d.copy(addr_of(host) + 8192, device, 4096, stream)); /* reads it */
	ok(d.set_bytes(device, 0x44, 4096, stream));            /* and then it is written again */
	ok(d.stream_sync(stream));
	ck_assert(all_are(host + 8192, 4096, 0x33));
	ck_assert(all_are((const uint8_t *)(uintptr_t)device, 4096, 0x44));
	stop();
}
END_TEST

#ifndef __SANITIZE_THREAD__
/* Whoever writes to what another queue still reads, without waiting for it, sees wrong bytes. */
START_TEST(poison_shows_a_queue_that_was_not_waited_for)
{
	gpu_cu_stream other;

	start("poison=1,latency_us=50000");
	ok(d.stream_new(&other, GPU_CU_STREAM_NON_BLOCKING, 0));
	memset(host, 0x33, 4096);
	ok(d.copy(device, addr_of(host), 4096, stream));
	ok(d.stream_sync(stream));
	ok(d.copy(addr_of(host) + 8192, device, 4096, stream));
	ok(d.copy(device, addr_of(host) + 4096, 4096, other));
	ok(d.stream_sync(stream));
	ck_assert(!all_are(host + 8192, 4096, 0x33));
	ok(d.stream_sync(other));
	ok(d.stream_free(other));
	stop();
}
END_TEST
#endif

START_TEST(new_memory_is_not_clean)
{
	start("poison=1");
	ok(d.copy(addr_of(host), device, 64, stream));
	ok(d.stream_sync(stream));
	ck_assert(all_are(host, 64, 0xA5));
	stop();
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

/* Each with a queue and a half of the memory of its own. */
static void *copy_to_and_fro(void *arg)
{
	const uint32_t at = (uint32_t)(uintptr_t)arg * 8192;
	gpu_cu_stream s;
	uintptr_t wrong = 0;

	wrong += d.context_set(ctx) != 0;
	for (uint32_t round = 0; wrong == 0 && round < 50; round++) {
		wrong += d.stream_new(&s, GPU_CU_STREAM_NON_BLOCKING, 0) != 0;
		memset(host + at, (int)round, 4096);
		wrong += d.copy(device + at, addr_of(host) + at, 4096, s) != 0;
		wrong += d.copy(addr_of(host) + at + 4096, device + at, 4096, s) != 0;
		wrong += d.stream_sync(s) != 0;
		wrong += !all_are(host + at + 4096, 4096, (uint8_t)round);
		wrong += d.stream_free(s) != 0;
	}
	return (void *)wrong;
}

START_TEST(threads_side_by_side)
{
	pthread_t threads[4];
	void *wrong;

	start("poison=1");
	for (uintptr_t i = 0; i < radix_array_size(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, copy_to_and_fro, (void *)i), 0);
	for (size_t i = 0; i < radix_array_size(threads); i++) {
		ck_assert_int_eq(pthread_join(threads[i], &wrong), 0);
		ck_assert_ptr_null(wrong);
	}
	ck_assert_uint_eq(census().n_broken, 0);
	stop();
}
END_TEST

/* ---- main ------------------------------------------------------------------------------------ */

static Suite *suite(void)
{
	Suite *s = suite_create("lookalike");
	TCase *t = tcase_create("all");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, memory_has_an_end);
	tcase_add_test(t, allocations_side_by_side_are_one_range);
	tcase_add_loop_test(t, the_cpu_reaches_device_memory_unless_strict, 0, 2);
	tcase_add_test(t, what_is_no_memory_is_not_imported);
	tcase_add_test(t, another_process_imports_the_descriptor);
	tcase_add_loop_test(t, a_descriptor_keeps_the_memory, 0, 2);
	tcase_add_test(t, a_queue_keeps_its_order);
	tcase_add_test(t, a_word_comes_after_the_bytes_before_it);
	tcase_add_test(t, copies_take_their_time);
	tcase_add_test(t, bytes_take_their_time);
	tcase_add_test(t, a_batch_moves_all_of_its_copies);
	tcase_add_test(t, a_batch_has_an_order_without_a_seed);
	tcase_add_test(t, a_batch_has_no_order_with_a_seed);
	tcase_add_test(t, poison_is_seen_before_and_gone_after);
	tcase_add_test(t, poison_leaves_what_the_queue_still_needs);
#ifndef __SANITIZE_THREAD__ /* which would find the race that this is about */
	tcase_add_test(t, poison_shows_a_queue_that_was_not_waited_for);
#endif
	tcase_add_test(t, new_memory_is_not_clean);
	tcase_add_test(t, threads_side_by_side);
	suite_add_tcase(s, t);
	return s;
}

/* The first process' protocol is not the second one's business. */
static Suite *suite_second(void)
{
	Suite *s = suite_create("second");
	TCase *t = tcase_create("all");

	(void)unsetenv("CK_TAP_LOG_FILE_NAME");
	tcase_add_test(t, second);
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	SRunner *sr;
	int failed;

	self = argv[0];
	if (argc == 2)
		second_fd = (int)strtol(argv[1], NULL, 10);
	sr = srunner_create(argc == 2 ? suite_second() : suite());
	srunner_set_fork_status(sr, CK_FORK);
	srunner_run_all(sr, argc == 2 ? CK_SILENT : CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? 0 : 1;
}
