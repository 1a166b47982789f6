/*
 * test_holder_ctl.c - prefixctl holder, with the real daemon: what it shows while there is one and
 * when there is none, and when it gives the memory up.
 */
#include "tests/e2e/keep_kit.h"
#include "tests/e2e/shell_world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[8192];

/* prefixctl --admin-socket d.admin holder ARGS: its exit status, and what it said in `out`. */
static int ctl(const char *const args[])
{
	const char *argv[12] = { getenv("PREFIXCTL_BIN"), "--admin-socket", d.admin, "holder" };

	for (size_t i = 0; args[i] && i < 7; i++)
		argv[4 + i] = args[i];
	ck_assert_ptr_nonnull(argv[0]);
	return e2e_run(argv, out, sizeof(out));
}

#define CTL(...) ctl((const char *const[]){ __VA_ARGS__, NULL })

static json_t *status_json(void)
{
	json_t *j;

	ck_assert_msg(CTL("status", "--json") == 0, "%s", out);
	j = json_loads(out, 0, NULL);
	ck_assert_msg(json_is_object(j), "%s", out);
	return j;
}

static void start_kept(void)
{
	START("--pool-blocks", "8", "--keep", "holder", "--holder-program", kit_holder_binary(),
	      "--hold-timeout", "20s");
}

static void expect_sums(const json_t *j)
{
	const json_t *item;
	json_int_t size = 0, held = 0;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json_object_get(j, "items"), i, item)
	{
		ck_assert_ptr_nonnull(json_string_value(json_object_get(item, "name")));
		size += number(item, "size");
		held += number(item, "held");
	}
	ck_assert_int_eq(number(j, "size"), size);
	ck_assert_int_eq(number(j, "held"), held);
	ck_assert_int_gt(held, 0);
}

START_TEST(status_with_and_without_a_daemon)
{
	json_t *j;
	json_int_t pid;
	char path[64];
	struct raw r;

	ck_assert_int_eq(CTL("status"), 3);
	ck_assert_msg(strstr(out, "no prefixd-holder"), "%s", out);
	start_kept();
	raw_connect(&r, d.socket);
	raw_hello(&r);
	(void)raw_open(&r, "m", 4096);
	j = status_json();
	pid = number(j, "pid");
	ck_assert_int_gt(pid, 0);
	ck_assert_int_eq(number(json_object_get(j, "daemon"), "pid"), d.pid);
	ck_assert_str_eq(
		json_string_value(json_object_get(json_object_get(j, "daemon"), "version")),
		json_string_value(json_object_get(j, "version")));
	ck_assert(json_is_null(json_object_get(j, "leaves_in_s")));
	ck_assert(json_real_value(json_object_get(j, "timeout_s")) == 20.0);
	ck_assert_uint_ge(json_array_size(json_object_get(j, "items")), 4);
	expect_sums(j);
	json_decref(j);
	ck_assert_int_eq(ctl((const char *const[]){ NULL }), 0); /* status is what is meant */
	ck_assert_msg(strstr(out, "g0.pool") && strstr(out, "ledger") && strstr(out, "MEMORY"),
		      "%s", out);
	raw_close(&r);
	(void)e2e_daemon_stop(&d, SIGKILL);
	j = status_json();
	ck_assert_int_eq(number(j, "pid"), pid);
	ck_assert(json_is_null(json_object_get(j, "daemon")));
	ck_assert(json_real_value(json_object_get(j, "leaves_in_s")) > 0);
	ck_assert(json_real_value(json_object_get(j, "leaves_in_s")) <= 20.0);
	expect_sums(j);
	json_decref(j);
	ck_assert_int_eq(CTL("status"), 0);
	ck_assert_msg(strstr(out, "none, leaves in"), "%s", out);
	/* The next daemon finds the same one. */
	start_kept();
	j = status_json();
	ck_assert_int_eq(number(j, "pid"), pid);
	ck_assert_int_eq(number(json_object_get(j, "daemon"), "pid"), d.pid);
	json_decref(j);
	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0); /* which leaves the memory kept */
	ck_assert(!kit_gone((pid_t)pid));
	start_kept();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGINT), 0); /* which does not */
	kit_wait_gone((pid_t)pid, 10000);
	ck_assert_int_eq(CTL("status"), 3);
}
END_TEST

START_TEST(release_wants_no_daemon_or_force)
{
	json_t *j;
	pid_t pid;

	start_kept();
	j = status_json();
	pid = (pid_t)number(j, "pid");
	json_decref(j);
	ck_assert_int_eq(CTL("release"), 1);
	ck_assert_msg(strstr(out, "a daemon is served") && strstr(out, "--force"), "%s", out);
	ck_assert_int_eq(CTL("release", "--json"), 1);
	ck_assert_msg(strstr(out, "\"ok\":false"), "%s", out);
	ck_assert(!kit_gone(pid));
	(void)e2e_daemon_stop(&d, SIGKILL);
	ck_assert_int_eq(CTL("release"), 0);
	ck_assert_msg(strstr(out, "given up"), "%s", out);
	kit_wait_gone(pid, 10000);
	ck_assert_int_eq(CTL("release"), 3);
	start_kept();
	j = status_json();
	pid = (pid_t)number(j, "pid");
	json_decref(j);
	ck_assert_int_eq(CTL("release", "--force", "--json"), 0);
	ck_assert_msg(strstr(out, "\"ok\":true"), "%s", out);
	kit_wait_gone(pid, 10000);
	/* The daemon goes on without, and starts nobody behind the operator's back. */
	e2e_sleep_ms(300);
	expect_clean();
	ck_assert_int_eq(CTL("status"), 3);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

START_TEST(what_is_no_command_is_refused)
{
	char path[128];

	ck_assert_int_eq(CTL("keep"), 2);
	ck_assert_int_eq(CTL("status", "--force"), 2);
	ck_assert_int_eq(CTL("status", "more"), 2);
	ck_assert_int_eq(CTL("status", "--timeout", "soon"), 2);
	memset(path, 'x', sizeof(path));
	path[104] = '\0';
	ck_assert_int_eq(CTL("status", "--admin-socket", path), 2);
	ck_assert_msg(strstr(out, "too long"), "%s", out);
}
END_TEST

START_TEST(a_holder_that_is_stopped_or_strange_costs_no_more_than_the_timeout)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	unsigned long since;
	json_t *j;
	pid_t pid;
	int fd;

	start_kept();
	j = status_json();
	pid = (pid_t)number(j, "pid");
	json_decref(j);
	ck_assert_int_eq(kill(pid, SIGSTOP), 0);
	since = e2e_now_ms();
	ck_assert_int_eq(CTL("status", "--timeout", "200ms"), 3);
	ck_assert_msg(strstr(out, "no answer"), "%s", out);
	ck_assert_int_eq(CTL("release", "--timeout", "200ms"), 3);
	ck_assert_uint_lt(e2e_now_ms() - since, 5000);
	ck_assert_int_eq(kill(pid, SIGCONT), 0);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGINT), 0);
	kit_wait_gone(pid, 10000);
	/* Somebody who takes connections and closes them. */
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s.holder", d.admin);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(fd, 4), 0);
	ck_assert_int_eq(CTL("status", "--timeout", "200ms"), 3);
	close(fd);
	ck_assert_int_eq(CTL("status"), 3);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(void)
{
	const struct shell_case cases[] = {
		{ "holder-ctl",
		  TESTS(status_with_and_without_a_daemon, release_wants_no_daemon_or_force,
			what_is_no_command_is_refused,
			a_holder_that_is_stopped_or_strange_costs_no_more_than_the_timeout) },
	};

	if (!kit_holder_binary() || !getenv("PREFIXCTL_BIN")) {
		puts("1..0 # SKIP no prefixd-holder, or no prefixctl");
		return 0;
	}
	return shell_main(cases, radix_array_size(cases), NULL);
}
