/*
 * test_staged.c - blocks whose slots no CPU reaches, on their way to Redis and back: the simulated
 * device, a real Redis, and a replay that compares every byte.  And how the daemon gets into Redis.
 */
#include "tests/e2e/harness.h"
#include "tests/e2e/redis_server.h"
#include "tests/lib/run.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct e2e_daemon d;
static struct e2e_redis redis;

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_redis_init(&redis), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&d);
	e2e_redis_free(&redis);
}

/* status.a.b, or status.a.b.c. */
static json_int_t number(const char *a, const char *b, const char *c)
{
	char *text = e2e_admin(&d, "{\"op\":\"status\"}");
	json_t *j = json_loads(text, 0, NULL);
	const json_t *v = json_object_get(json_object_get(j, a), b);
	json_int_t n;

	if (c)
		v = json_object_get(v, c);
	ck_assert_msg(json_is_integer(v), "no number %s.%s", a, b);
	n = json_integer_value(v);
	json_decref(j);
	pfx_free_string(text);
	return n;
}

static void replay(const char *requests, const char *seed)
{
	const char *argv[] = { getenv("PREFIXD_REPLAY_BIN"),
			       "--socket",
			       d.socket,
			       "--admin-socket",
			       d.admin,
			       "--workload",
			       "agent",
			       "--block-bytes",
			       "4096",
			       "--requests",
			       requests,
			       "--seed",
			       seed,
			       "--workers",
			       "3",
			       "--order",
			       "concurrent",
			       "--progress",
			       "off",
			       NULL };
	char out[8192] = "";

	ck_assert_ptr_nonnull(argv[0]);
	ck_assert_msg(e2e_run(argv, out, sizeof(out)) == 0, "%s", out);
}

/* With a host tier and without one; every byte of every hit is compared by the replay. */
START_TEST(slots_that_no_cpu_reaches)
{
	const char *host = _i ? "0" : "128";
	json_t *j;
	char *text;

	e2e_redis_start(&redis, NULL);
	ck_assert_int_eq(
		e2e_daemon_start(&d, (const char *const[]){ "--device", "sim", "--pool-blocks",
							    "512", "--host-blocks", host, "--redis",
							    redis.url, "--reserve-wait", "60s",
							    "--redis-timeout", "10s", NULL }),
		0);
	replay("60", _i ? "3" : "131");
	replay("60", _i ? "4" : "132");
	replay("60", _i ? "3" : "131"); /* the first ones again, which have gone down meanwhile */
	ck_assert_int_gt(number("redis", "stored", NULL), 100);
	ck_assert_int_gt(number("redis", "fetched", NULL), 10);
	ck_assert_int_gt(number("promoted_blocks", "redis", "device"), 10);
	if (!_i)
		ck_assert_int_gt(number("demoted_blocks", "device", "host"), 100);
	text = e2e_admin(&d, "{\"op\":\"audit\"}");
	j = json_loads(text, 0, NULL);
	ck_assert_msg(json_is_true(json_object_get(j, "clean")), "%s", text);
	json_decref(j);
	pfx_free_string(text);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

static void log_says(const char *what)
{
	char *log = e2e_daemon_log(&d);

	ck_assert_msg(strstr(log, what), "no '%s' in: %s", what, log);
	ck_assert_msg(!strstr(log, "geheim"), "the password is in the log");
	free(log);
}

/* A password comes from a file that nobody else may read, and from nowhere else. */
START_TEST(password_from_a_private_file)
{
	char file[128];
	const char *args[] = { "--redis",
			       redis.url,
			       "--redis-user",
			       "prefixd",
			       "--redis-password-file",
			       file,
			       "--pool-blocks",
			       "8",
			       NULL };
	unsigned long end;
	int fd;

	e2e_redis_start(&redis, NULL);
	freeReplyObject(e2e_redis_do(&redis, "ACL SETUSER prefixd on >geheim ~* &* +@all"));
	freeReplyObject(e2e_redis_do(&redis, "ACL SETUSER default off"));
	snprintf(file, sizeof(file), "%s/password", d.dir);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 1);
	log_says("redis-password-file: cannot read");
	fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 1);
	log_says("must be a password of 1 to");
	ck_assert_int_eq(write(fd, "geheim\nrest\n", 12), 12);
	ck_assert_int_eq(fchmod(fd, 0640), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 1);
	log_says("chmod 600");
	ck_assert_int_eq(fchmod(fd, 0400), 0);
	close(fd);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	end = e2e_now_ms() + 10000;
	while (number("redis", "connects", NULL) == 0 ||
	       number("redis", "breaker_closed", NULL) == 0) {
		ck_assert_uint_lt(e2e_now_ms(), end);
		e2e_sleep_ms(10);
	}
	{
		char *text = e2e_admin(&d, "{\"op\":\"config\"}");

		ck_assert_ptr_null(strstr(text, "geheim"));
		pfx_free_string(text);
	}
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	log_says("is up");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("staged");
	TCase *tc = tcase_create("staged");

	if (!e2e_daemon_binary()) {
		puts("1..0 # SKIP no prefixd binary");
		return EXIT_SUCCESS;
	}
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 240);
	tcase_add_loop_test(tc, slots_that_no_cpu_reaches, 0, 2);
	tcase_add_test(tc, password_from_a_private_file);
	suite_add_tcase(s, tc);
	return test_run(s);
}
