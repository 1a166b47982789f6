/*
 * test_stuck.c - F35: the real daemon, with a device that hangs while it takes memory back.
 *
 * $PREFIXD_HANGING_DEVICE is the library to preload.
 */
#include "tests/e2e/hanging_device.h"
#include "tests/e2e/shell_world.h"
#include "tests/lib/run.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS "65536" /* of 128 bytes: the pool and the index are large, and quick to make */

static struct hanging *device;

static void begin(void)
{
	char path[128];
	int fd;

	shell_setup();
	snprintf(path, sizeof(path), "%s/device", d.dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, sizeof(*device)), 0);
	device = mmap(NULL, sizeof(*device), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(device, MAP_FAILED);
	close(fd);
	ck_assert_int_eq(setenv("PREFIXD_TEST_DEVICE", path, 1), 0);
	ck_assert_int_eq(setenv("LD_PRELOAD", getenv("PREFIXD_HANGING_DEVICE"), 1), 0);
	START("--device", "host", "--pool-blocks", SLOTS, "--drain-timeout", "10ms");
	ck_assert_int_eq(unsetenv("LD_PRELOAD"), 0);
}

static void end(void)
{
	atomic_store(&device->stuck, 0);
	shell_teardown();
	munmap(device, sizeof(*device));
}

/* OPEN of blocks of that size, which is answered or not; its reply is not read. */
static void ask_for_pool(struct raw *r, uint64_t block_bytes)
{
	struct proto_open_req m = { .key_mode = PROTO_KEYS_TOKENS,
				    .flags = PROTO_OPEN_OPAQUE,
				    .model = { .p = "other", .n = 5 },
				    .revision = { .p = "r1", .n = 2 },
				    .dtype = { .p = "float16", .n = 7 },
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 64,
				    .block_tokens = 16,
				    .block_bytes = block_bytes,
				    .layout = { .p = "opaque", .n = 6 },
				    .tp_size = 1,
				    .engine = { .p = "raw", .n = 3 } };
	uint8_t body[1024], frame[1100];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_open_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	ck_assert(raw_write(r, frame, raw_frame(r, frame, PROTO_OP_OPEN, body, w.len)));
}

/* A worker with blocks in the first pool, and the device stuck over the second. */
static struct proto_open_rep stick(struct raw *good)
{
	unsigned long until = e2e_now_ms() + 10000;
	struct proto_open_rep o;
	struct raw bad;

	raw_connect(good, d.socket);
	raw_hello(good);
	o = raw_open(good, "m", 128);
	store(good, o.ns, 1, 100);
	atomic_store(&device->no_large, 1);
	atomic_store(&device->stuck, 1);
	raw_connect(&bad, d.socket);
	raw_hello(&bad);
	ask_for_pool(&bad, 256);
	ck_assert(raw_read(&bad));
	ck_assert_uint_eq(bad.h.status, PROTO_STATUS_NO_MEMORY); /* told at once */
	raw_close(&bad);
	atomic_store(&device->no_large, 0);
	while (atomic_load(&device->waiting) == 0) {
		ck_assert_msg(e2e_now_ms() < until, "the pool was not given back");
		e2e_sleep_ms(1);
	}
	return o;
}

/* Everybody else is served: on pools that are there, operators, and whoever comes. */
START_TEST(others_are_served)
{
	struct proto_open_rep o;
	struct raw good, late, more;
	unsigned long begun;

	o = stick(&good);
	for (uint32_t i = 0; i < 500; i++) {
		struct proto_match_rep rep = match(&good, o.ns, 1, 100);

		ck_assert_uint_eq(rep.n_device, 100);
		release(&good, rep.lease);
		store(&good, o.ns, 10000 + 1000 * i, 20);
	}
	raw_connect(&late, d.socket); /* who needs the device waits for it, alone */
	raw_hello(&late);
	ask_for_pool(&late, 512);
	raw_connect(&more, d.socket);
	raw_hello(&more);
	ck_assert_uint_eq(raw_open(&more, "m", 128).ns, o.ns);
	store(&more, o.ns, 5000000, 10);
	raw_close(&more);
	expect_clean();
	begun = e2e_now_ms(); /* the daemon tells that a thread is silent */
	for (;; e2e_sleep_ms(100)) {
		char *log = e2e_daemon_log(&d);
		bool told = strstr(log, "the thread copy has not been heard of") != NULL;

		free(log);
		if (told)
			break;
		ck_assert_msg(e2e_now_ms() - begun < 20000, "nobody told");
		ck_assert(raw_call(&good, PROTO_OP_PING, NULL, 0));
	}
	atomic_store(&device->stuck, 0);
	ck_assert(raw_read(&late)); /* and then gets what it waited for */
	ck_assert_uint_eq(late.h.status, PROTO_STATUS_OK);
	raw_close(&late);
	raw_close(&good);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* A device that never comes back does not keep the daemon from ending. */
START_TEST(the_end_comes_all_the_same)
{
	unsigned long begun;
	struct raw good;
	char *log;

	(void)stick(&good);
	begun = e2e_now_ms();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	ck_assert_uint_lt(e2e_now_ms() - begun, 18000);
	ck_assert_int_ne(access(d.socket, F_OK), 0);
	ck_assert_int_ne(access(d.admin, F_OK), 0);
	log = e2e_daemon_log(&d);
	ck_assert_msg(strstr(log, "leaving without it"), "%s", log);
	free(log);
	raw_close(&good);
}
END_TEST

/* The same when it hangs only in the very end, closing. */
START_TEST(hanging_in_close)
{
	struct proto_open_rep o;
	struct raw r;

	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 128);
	store(&r, o.ns, 1, 10);
	atomic_store(&device->stuck, 1);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	raw_close(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stuck");
	TCase *t = tcase_create("F35");

	if (!e2e_daemon_binary() || !getenv("PREFIXD_HANGING_DEVICE")) {
		puts("1..0 # SKIP no prefixd binary, or nothing to preload");
		return EXIT_SUCCESS;
	}
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, begin, end);
	tcase_add_test(t, others_are_served);
	tcase_add_test(t, the_end_comes_all_the_same);
	tcase_add_test(t, hanging_in_close);
	suite_add_tcase(s, t);
	return test_run(s);
}
