/*
 * test_watchdog.c - F29: the real daemon under a service manager: what he is told, and that life is
 * told by the loop that decides and by nobody else.
 */
#include "tests/e2e/service_manager.h"
#include "tests/e2e/shell_world.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALIVE "WATCHDOG=1\n"

static struct manager m;

static void start_managed(void)
{
	char path[108];

	snprintf(path, sizeof(path), "%s/notify", d.dir);
	manager_start(&m, path, 0);
	ck_assert_int_eq(setenv("WATCHDOG_USEC", "200000", 1), 0);
	START("--pool-blocks", "64", "--host-blocks", "64");
}

/* Life was told so many times more within so long. */
static bool alive(uint32_t times, unsigned ms)
{
	uint32_t before = manager_n_heard(&m, ALIVE);
	unsigned long end = e2e_now_ms() + ms;

	while (manager_n_heard(&m, ALIVE) < before + times) {
		if (e2e_now_ms() > end)
			return false;
		e2e_sleep_ms(5);
	}
	return true;
}

/* How many threads of the daemon are in this state. */
static unsigned threads_in(char state)
{
	char path[64], text[512];
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)d.pid);
	dir = opendir(path);
	ck_assert_ptr_nonnull(dir);
	for (struct dirent *e; (e = readdir(dir));) {
		char file[400];
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s/stat", path, e->d_name);
		f = fopen(file, "re");
		if (!f)
			continue;
		if (fgets(text, sizeof(text), f))
			n += strrchr(text, ')')[2] == state;
		fclose(f);
	}
	closedir(dir);
	return n;
}

START_TEST(a_manager_is_told_how_it_goes)
{
	start_managed();
	ck_assert(manager_hears(&m, "READY=1", 10000));
	ck_assert(alive(5, 20000));
	ck_assert_int_eq(kill(d.pid, SIGHUP), 0);
	ck_assert(manager_hears(&m, "RELOADING=1\nMONOTONIC_USEC=", 10000));
	for (int i = 0; i < 2000 && manager_n_heard(&m, "READY=1") < 2; i++)
		e2e_sleep_ms(5);
	ck_assert_uint_eq(manager_n_heard(&m, "READY=1"), 2);
	ck_assert_uint_eq(manager_n_heard(&m, "STOPPING=1"), 0);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	ck_assert(manager_hears(&m, "STOPPING=1", 10000));
	manager_stop(&m);
}
END_TEST

/* The loop's thread is held, all others go on: that is a loop that hangs. */
START_TEST(a_loop_that_stands_still_is_not_alive)
{
	uint32_t before;
	int status;

	start_managed();
	ck_assert(alive(3, 20000));
	if (ptrace(PTRACE_SEIZE, d.pid, NULL, NULL) != 0) {
		fprintf(stderr, "one thread cannot be held here (%s); all of them are\n",
			strerror(errno));
		ck_assert_int_eq(kill(d.pid, SIGSTOP), 0);
	} else {
		ck_assert_int_eq(ptrace(PTRACE_INTERRUPT, d.pid, NULL, NULL), 0);
		ck_assert_int_eq(waitpid(d.pid, &status, __WALL), d.pid);
		ck_assert_uint_eq(threads_in('t'), 1);
		ck_assert_uint_gt(threads_in('S'), 0);
	}
	(void)manager_n(&m); /* what was under way has arrived */
	before = manager_n_heard(&m, ALIVE);
	e2e_sleep_ms(1200);
	ck_assert_uint_eq(manager_n_heard(&m, ALIVE), before);
	(void)ptrace(PTRACE_DETACH, d.pid, NULL, NULL); /* or it was not held so */
	ck_assert_int_eq(kill(d.pid, SIGCONT), 0);
	ck_assert(alive(3, 20000));
	manager_stop(&m);
}
END_TEST

/* ---- with a store ---------------------------------------------------------------------------- */

/* A life of the service, whose worker socket is the manager's. */
static void life(int listen_fd)
{
	const char *argv[] = { getenv("PREFIXD_BIN"),
			       "--keep",
			       "systemd",
			       "--socket",
			       d.socket,
			       "--admin-socket",
			       d.admin,
			       "--device",
			       "host",
			       "--pool-blocks",
			       "64",
			       "--drain-timeout",
			       "100ms",
			       NULL };
	const struct manager_passed sockets[] = { { "prefixd", listen_fd } };
	uint32_t before = manager_n_heard(&m, "READY=1");

	d.pid = manager_spawn(&m, argv, sockets, 1, d.log);
	for (int i = 0; i < 4000 && manager_n_heard(&m, "READY=1") == before; i++)
		e2e_sleep_ms(5);
	if (manager_n_heard(&m, "READY=1") == before) {
		char *log = e2e_daemon_log(&d);

		ck_abort_msg("not ready: %s", log);
	}
}

/* Another program in the same process: the manager sees one that reloads. */
static void upgrade(void)
{
	uint32_t stored = manager_n(&m), before = manager_n_heard(&m, "READY=1");

	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	for (int i = 0; i < 4000 && manager_n_heard(&m, "READY=1") == before; i++)
		e2e_sleep_ms(5);
	ck_assert_uint_eq(manager_n_heard(&m, "READY=1"), before + 1);
	ck_assert(manager_hears(&m, "RELOADING=1", 0));
	ck_assert_uint_eq(manager_n(&m), stored);
}

static int listening_socket(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	memcpy(addr.sun_path, d.socket, strlen(d.socket));
	ck_assert_int_eq(bind(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(fd, 64), 0);
	return fd;
}

/* All eight blocks, for whoever has connected; ends the connection. */
static void expect_hits(struct raw *r)
{
	struct proto_match_rep rep;
	uint32_t ns;

	raw_hello(r);
	ns = raw_open(r, "m", 4096).ns;
	rep = match(r, ns, 1, 8);
	ck_assert_uint_eq(rep.n_device, 8);
	release(r, rep.lease);
	expect_clean();
	raw_close(r);
}

/*
 * What a watchdog does: SIGABRT, and another start, with all of the store.  Whoever connects in
 * between is served by the next one, and finds what the last one had.
 */
START_TEST(a_daemon_that_a_watchdog_ended_goes_on_from_the_store)
{
	struct raw r, early;
	char path[108];
	uint32_t ns;
	int status, fd = listening_socket();

	snprintf(path, sizeof(path), "%s/notify", d.dir);
	manager_start(&m, path, 512);
	ck_assert_int_eq(setenv("WATCHDOG_USEC", "200000", 1), 0);
	life(fd);
	raw_connect(&r, d.socket);
	raw_hello(&r);
	ns = raw_open(&r, "m", 4096).ns;
	store(&r, ns, 1, 8);
	raw_close(&r);
	ck_assert_uint_ge(manager_n(&m), 4);
	for (int i = 0; i < 3; i++) {
		ck_assert(alive(1, 20000));
		ck_assert_int_eq(kill(d.pid, SIGSTOP), 0);
		ck_assert_int_eq(kill(d.pid, SIGABRT), 0);
		status = e2e_daemon_stop(&d, SIGCONT);
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
		raw_connect(&early, d.socket);
		life(fd);
		expect_hits(&early);
		upgrade(); /* which ends connections that were accepted */
		raw_connect(&r, d.socket);
		expect_hits(&r);
	}
	/* A stop leaves it in the store, which is the manager's to empty; Ctrl-C empties it. */
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	ck_assert_uint_ge(manager_n(&m), 4);
	life(fd);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGINT), 0);
	ck_assert_uint_eq(manager_n(&m), 0);
	manager_stop(&m);
	close(fd);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(void)
{
	const struct shell_case cases[] = {
		{ "F29", TESTS(a_manager_is_told_how_it_goes, a_loop_that_stands_still_is_not_alive,
			       a_daemon_that_a_watchdog_ended_goes_on_from_the_store) },
	};

	return shell_main(cases, radix_array_size(cases), NULL);
}
