/*
 * test_clock.c - F30: the clock on the wall jumps by a year, and the monotonic one is smaller after
 * a restart than before it.
 *
 * Jumps come from libfaketime, preloaded into the daemon, which reads a file at each question for
 * the time; the other clock from a time namespace.  Where one of them cannot be had, its test says
 * so and is skipped.
 */
#include "tests/e2e/http_client.h"
#include "tests/e2e/keep_kit.h"
#include "tests/e2e/redis_server.h"
#include "tests/e2e/shell_world.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define YEAR   31536000.0
#define SECOND 1000000000ull

/* ---- a clock that jumps -------------------------------------------------------------------- */

static const char *faketime_library(void)
{
	static const char *const paths[] = {
		"/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
		"/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
	};

	for (size_t i = 0; i < radix_array_size(paths); i++)
		if (access(paths[i], R_OK) == 0)
			return paths[i];
	return NULL;
}

/* The wall clock of what was started under it says so much more from here on. */
static void jump(const char *by)
{
	char path[128], next[140];
	FILE *f;

	snprintf(path, sizeof(path), "%s/faketime", d.dir);
	snprintf(next, sizeof(next), "%s.next", path);
	f = fopen(next, "we");
	ck_assert_ptr_nonnull(f);
	fprintf(f, "%s\n", by);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(rename(next, path), 0);
}

/* What is started until fake_end() has a clock that jump() sets. */
static void fake_begin(void)
{
	char path[128];

	jump("+0");
	snprintf(path, sizeof(path), "%s/faketime", d.dir);
	ck_assert_int_eq(setenv("FAKETIME_TIMESTAMP_FILE", path, 1), 0);
	ck_assert_int_eq(setenv("FAKETIME_NO_CACHE", "1", 1), 0);
	ck_assert_int_eq(setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1), 0);
	ck_assert_int_eq(setenv("DONT_FAKE_MONOTONIC", "1", 1), 0);
	ck_assert_int_eq(setenv("LD_PRELOAD", faketime_library(), 1), 0);
}

static void fake_end(void)
{
	ck_assert_int_eq(unsetenv("LD_PRELOAD"), 0);
}

/*
 * The daemon's wall clock is so far ahead of ours, by the time at which it says to have read its
 * settings.
 */
static void expect_ahead(double seconds)
{
	unsigned long end = e2e_now_ms() + 10000;
	double off;

	ck_assert_int_eq(kill(d.pid, SIGHUP), 0);
	do {
		struct timespec now;

		e2e_sleep_ms(5);
		clock_gettime(CLOCK_REALTIME, &now);
		off = (double)http_value("prefixd_config_last_reload_success_timestamp_seconds") -
		      (double)now.tv_sec;
		ck_assert_msg(e2e_now_ms() < end, "ahead by %f, not %f", off, seconds);
	} while (off < seconds - 600 || off > seconds + 600);
}

static double admin_real(const char *request, const char *name)
{
	json_t *j = admin(request);
	double v = json_number_value(json_object_get(j, name));

	json_decref(j);
	return v;
}

/* Age of the one lease. */
static double pin_age(void)
{
	json_t *j = admin("{\"op\":\"pins\"}"), *pins = json_object_get(j, "pins");
	double age;

	ck_assert_uint_eq(json_array_size(pins), 1);
	age = json_number_value(json_object_get(json_array_get(pins, 0), "age_s"));
	json_decref(j);
	return age;
}

static const char *const jumps[] = { "+365d", "-365d", "+0" };
static const double ahead[] = { YEAR, -YEAR, 0 };

static bool closed_within(int fd, unsigned ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint8_t byte;

	return poll(&p, 1, (int)ms) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

static void start_faked(const char *redis)
{
	char http[160];

	fake_begin();
	snprintf(http_path, sizeof(http_path), "%s/http.sock", d.dir);
	snprintf(http, sizeof(http), "unix://%s", http_path);
	START("--pool-blocks", "64", "--hello-timeout", "1s", "--drain-timeout", "1s", "--http",
	      http, "--redis", redis);
	fake_end();
}

START_TEST(a_year_more_or_less_during_pins)
{
	struct raw r, silent;
	uint64_t lease;
	uint32_t ns;
	unsigned long since;

	start_faked("");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	ns = raw_open(&r, "m", 4096).ns;
	store(&r, ns, 1, 4);
	lease = match(&r, ns, 1, 4).lease;
	ck_assert_uint_ne(lease, 0);
	for (size_t i = 0; i < radix_array_size(jumps); i++) {
		raw_connect(&silent, d.socket);
		since = e2e_now_ms();
		jump(jumps[i]);
		expect_ahead(ahead[i]);
		/* Ages, deadlines and what is held take no notice. */
		ck_assert(pin_age() >= 0 && pin_age() < 100);
		ck_assert(admin_real("{\"op\":\"ping\"}", "uptime_s") >= 0);
		ck_assert(admin_real("{\"op\":\"ping\"}", "uptime_s") < 100);
		ck_assert(!closed_within(silent.fd, 300) || e2e_now_ms() - since >= 1000);
		ck_assert(closed_within(silent.fd, 10000));
		ck_assert_uint_ge(e2e_now_ms() - since, 990);
		raw_close(&silent);
		ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 1);
		expect_clean();
	}
	/* A drain with a lease that does not end: its limit is a second, not a year. */
	since = e2e_now_ms();
	ck_assert_int_eq(kill(d.pid, SIGTERM), 0);
	jump("-365d");
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGCONT), 0);
	ck_assert_uint_ge(e2e_now_ms() - since, 990);
	raw_close(&r);
}
END_TEST

/* Clock ticks of processor time that the daemon has taken. */
static unsigned long cpu_ticks(void)
{
	char path[64], text[1024] = "", *p;
	unsigned long user = 0, system = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)d.pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	ck_assert_ptr_nonnull(fgets(text, sizeof(text), f));
	fclose(f);
	p = strrchr(text, ')') + 1;
	for (int field = 3; field < 14; field++)
		p = strchr(p + 1, ' ');
	ck_assert_int_eq(sscanf(p, "%lu %lu", &user, &system), 2);
	return user + system;
}

static bool connected(void)
{
	json_t *j = admin("{\"op\":\"status\"}");
	bool yes = json_is_true(json_object_get(json_object_get(j, "redis"), "connected"));

	json_decref(j);
	return yes;
}

static void expect_connected(bool yes)
{
	unsigned long end = e2e_now_ms() + 20000;

	while (connected() != yes) {
		ck_assert_msg(e2e_now_ms() < end, "redis is %sconnected", yes ? "not " : "");
		e2e_sleep_ms(10);
	}
}

START_TEST(a_year_more_or_less_while_redis_is_away)
{
	struct e2e_redis redis;
	unsigned long hz = (unsigned long)sysconf(_SC_CLK_TCK);

	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, NULL);
	start_faked(redis.url);
	expect_connected(true);
	for (size_t i = 0; i < radix_array_size(jumps); i++) {
		unsigned long ticks;

		e2e_redis_stop(&redis, SIGKILL);
		expect_connected(false);
		ticks = cpu_ticks();
		jump(jumps[i]);
		e2e_sleep_ms(1000);
		/* It neither tries without a pause nor waits for a year. */
		ck_assert_uint_lt(cpu_ticks() - ticks, hz / 2);
		e2e_redis_start(&redis, NULL);
		expect_connected(true);
		expect_clean();
	}
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	e2e_redis_free(&redis);
}
END_TEST

/* A holder whose wall clock jumps leaves when its time is over, not before and not a year later. */
START_TEST(a_year_more_or_less_while_nobody_is_held_for)
{
	for (size_t i = 0; i < radix_array_size(jumps); i++) {
		int file = kit_file(1, 5000), fd;
		unsigned long since;
		char says[256];
		pid_t pid;

		snprintf(kit.socket, sizeof(kit.socket), "%s/h%zu", d.dir, i);
		fake_begin();
		ck_assert_int_eq(kit_holder_start(3 * SECOND, says, sizeof(says)), 0);
		fake_end();
		fd = kit_dial();
		pid = (pid_t)kit_hello(fd, PROTO_HOLDER_DAEMON, 3 * SECOND).holder_pid;
		kit_put(fd, "ledger", file);
		since = e2e_now_ms();
		close(fd);
		jump(jumps[i]);
		e2e_sleep_ms(300);
		ck_assert_uint_eq(kit_look().n_items, 1);
		kit_wait_gone(pid, 10000);
		ck_assert_uint_ge(e2e_now_ms() - since, 2990);
		close(file);
	}
}
END_TEST

/* ---- a monotonic clock that began later ---------------------------------------------------- */

#define UNSHARE "unshare -T --monotonic 1000000"

static bool namespaces_work(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		(void)close(2); /* what it complains of is said below */
		execl("/bin/sh", "sh", "-c", UNSHARE " true", NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void start_kept(void)
{
	START("--pool-blocks", "8", "--keep", "holder", "--holder-program", kit_holder_binary(),
	      "--hold-timeout", "20s", "--drain-timeout", "100ms");
}

/* A script in the binary's place that gives it a monotonic clock of eleven days more. */
static void daemon_with_more_time(void)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/prefixd.sh", d.dir);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fprintf(f, "#!/bin/sh\nexec " UNSHARE " %s \"$@\"\n", getenv("PREFIXD_BIN"));
	ck_assert_int_eq(fchmod(fileno(f), 0700), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(setenv("PREFIXD_BIN", path, 1), 0);
}

static uint32_t hits(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	struct proto_match_rep rep = match(r, ns, first, n_blocks);

	release(r, rep.lease);
	return rep.n_device;
}

START_TEST(a_monotonic_clock_that_is_smaller_than_before)
{
	char *real = strdup(getenv("PREFIXD_BIN"));
	struct raw r, holds;
	uint32_t ns;

	daemon_with_more_time();
	start_kept();
	raw_connect(&holds, d.socket);
	raw_hello(&holds);
	ns = raw_open(&holds, "m", 4096).ns;
	store(&holds, ns, 1, 4);
	store(&holds, ns, 1001, 2);
	ck_assert_uint_ne(match(&holds, ns, 1001, 2).lease, 0); /* held on over the restart */
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	ck_assert_int_eq(setenv("PREFIXD_BIN", real, 1), 0);
	start_kept();
	raw_connect(&r, d.socket);
	raw_hello(&r);
	ns = raw_open(&r, "m", 4096).ns;
	expect_clean();
	/* The lease of the earlier life is held, and young. */
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 1);
	ck_assert_msg(pin_age() >= 0 && pin_age() < 100, "%f", pin_age());
	/* What is used now is younger than what was used then, so the old one goes first. */
	store(&r, ns, 2001, 2);
	store(&r, ns, 3001, 2); /* in the place of the first prompt's last two */
	ck_assert_uint_eq(hits(&r, ns, 2001, 2), 2);
	ck_assert_uint_eq(hits(&r, ns, 3001, 2), 2);
	ck_assert_uint_eq(hits(&r, ns, 1, 4), 2);
	expect_clean();
	raw_close(&r);
	raw_close(&holds);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGINT), 0);
	free(real);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "F30-wall",
		  TESTS(a_year_more_or_less_during_pins, a_year_more_or_less_while_redis_is_away,
			a_year_more_or_less_while_nobody_is_held_for) },
		{ "F30-monotonic", TESTS(a_monotonic_clock_that_is_smaller_than_before) },
	};
	const char *name = argc > 1 ? argv[1] : "F30-wall";

	if (!kit_holder_binary())
		puts("1..0 # SKIP no prefixd-holder");
	else if (strcmp(name, "F30-wall") == 0 && !faketime_library())
		puts("1..0 # SKIP libfaketime is not installed");
	else if (strcmp(name, "F30-monotonic") == 0 && !namespaces_work())
		puts("1..0 # SKIP no time namespace may be made here");
	else
		return shell_main(cases, radix_array_size(cases), name);
	return 0;
}
