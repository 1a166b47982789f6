/*
 * test_keep_systemd.c - memory in the hands of a service manager: what goes into his store comes
 * back with the next life, and what he cannot or does not do is said.
 *
 * Called with "--next-life ..." it is that life.
 */
#include "tests/e2e/keep_kit.h"
#include "tests/e2e/service_manager.h"

#include "daemon/log.h"
#include "daemon/notify.h"

#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define LEN    70000u

static struct manager m;
static struct event_base *base;
static char why[512], log_text[8192];

static void log_write(void *ctx, const char *line, size_t len)
{
	size_t at = strlen(log_text);

	(void)!write(STDERR_FILENO, line, len);
	if (at + len < sizeof(log_text))
		memcpy(log_text + at, line, len);
}

static void setup(uint32_t max)
{
	static const struct prefixd_log_sink sink = { .write = log_write };
	const struct rlimit rl = { .rlim_cur = 4096, .rlim_max = 4096 };
	char path[108];

	(void)setrlimit(RLIMIT_NOFILE, &rl);
	base = event_base_new();
	ck_assert_ptr_nonnull(base);
	prefixd_log_set_sink(&sink);
	memset(log_text, 0, sizeof(log_text));
	snprintf(path, sizeof(path), "%s/notify", kit.dir);
	manager_start(&m, path, max);
}

static int try_start(enum prefixd_keeper keeper, struct prefixd_keep **ret)
{
	struct prefixd_keep_config c = { .keeper = keeper,
					 .admin_socket = kit.admin,
					 .program = kit_holder_binary(),
					 .timeout_ns = 20 * SECOND,
					 .version = "1.2.3",
					 .base = base };

	return prefixd_keep_start(ret, &c, why, sizeof(why));
}

static struct prefixd_keep *start(void)
{
	struct prefixd_keep *k = NULL;
	int r = try_start(PREFIXD_KEEPER_SYSTEMD, &k);

	ck_assert_msg(r == 0, "%d: %s", r, why);
	return k;
}

static int put(struct prefixd_keep *k, const char *name, uint32_t seed)
{
	int fd = kit_file(seed, LEN), r;

	r = prefixd_keep_put(k, name, fd);
	close(fd);
	return r;
}

/* ---- the next life: no test runs in it ----------------------------------------------------- */

/*
 * argv: --next-life KEEPER WANT ADMIN [NAME=SEED]...  It takes the names and looks at their bytes;
 * WANT is what prefixd_keep_n_found() must say.  Return: 0, or what went wrong.
 */
static int next_life(int argc, char **argv)
{
	const char *handed = getenv("HANDED");
	struct prefixd_keep_config c = { .keeper = strcmp(argv[2], "systemd") == 0
							   ? PREFIXD_KEEPER_SYSTEMD
						   : strcmp(argv[2], "auto") == 0
							   ? PREFIXD_KEEPER_AUTO
							   : PREFIXD_KEEPER_NONE,
					 .admin_socket = argv[4],
					 .program = kit_holder_binary(),
					 .handed = handed };
	struct prefixd_keep *k = NULL;
	int listener = prefixd_keep_listener("prefixd"), r;

	r = prefixd_keep_start(&k, &c, why, sizeof(why));
	if (r < 0) {
		fprintf(stderr, "%s\n", why);
		return 10;
	}
	if (getenv("LISTEN_FDS") || getenv("LISTEN_PID") || getenv("LISTEN_FDNAMES"))
		return 11;
	if (prefixd_keep_n_found(k) != (uint32_t)strtoul(argv[3], NULL, 10))
		return 12;
	for (int i = 5; i < argc; i++) {
		char name[64] = "";
		unsigned seed = 0;
		int fd;

		if (sscanf(argv[i], "%63[^=]=%u", name, &seed) != 2)
			return 13;
		fd = prefixd_keep_take(k, name);
		if (fd < 0 || !kit_is_file(fd, seed, LEN))
			return 14;
		if (fcntl(fd, F_GETFD) != FD_CLOEXEC)
			return 15;
		close(fd);
	}
	if (listener >= 0 && !kit_is_file(listener, 4711, LEN)) /* any file serves */
		return 16;
	if (prefixd_keep_listener("prefixd") >= 0)
		return 17; /* the environment said so only once */
	prefixd_keep_drop_rest(k);
	prefixd_keep_stop(k, false);
	return 0;
}

#define RUN(keeper, want, ...)                                                            \
	manager_run(&m,                                                                   \
		    (const char *const[]){ "/proc/self/exe", "--next-life", keeper, want, \
					   kit.admin, ##__VA_ARGS__, NULL },              \
		    NULL, 0)

/* ---- keeping ------------------------------------------------------------------------------- */

START_TEST(the_store_outlives_the_daemon)
{
	int p[2];
	char byte;
	pid_t pid;

	setup(512);
	ck_assert_int_eq(pipe(p), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct prefixd_keep *k = start();

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_SYSTEMD);
		ck_assert_int_eq(put(k, "ledger", 1), 0);
		ck_assert_int_eq(put(k, "g1.pool", 2), 0);
		ck_assert_int_eq(put(k, "g1.table", 3), 0);
		(void)!write(p[1], "x", 1);
		for (;;)
			pause();
	}
	ck_assert_int_eq(read(p[0], &byte, 1), 1);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_uint_eq(manager_n(&m), 3); /* and no probe is left */
	ck_assert_uint_eq(manager_n_named(&m, "keep.g1.pool"), 1);
	for (int life = 0; life < 3; life++) {
		ck_assert_int_eq(RUN("systemd", "3", "ledger=1", "g1.pool=2", "g1.table=3"), 0);
		ck_assert_uint_eq(manager_n(&m), 3);
	}
	/* The manager offers a store, so that is what `auto` is. */
	ck_assert_int_eq(RUN("auto", "3", "ledger=1", "g1.pool=2", "g1.table=3"), 0);
	/* What was not taken is dropped. */
	ck_assert_int_eq(RUN("systemd", "3", "ledger=1"), 0);
	ck_assert_uint_eq(manager_n(&m), 1);
	/* Who wants none of it has it forgotten. */
	ck_assert_int_eq(RUN("none", "0"), 0);
	ck_assert_uint_eq(manager_n(&m), 0);
	manager_stop(&m);
}
END_TEST

START_TEST(a_name_has_one_descriptor_and_never_none)
{
	struct prefixd_keep *k;
	int other;

	setup(512);
	k = start();
	for (uint32_t i = 0; i < 5; i++) {
		ck_assert_int_eq(put(k, "ledger", i), 0);
		ck_assert_uint_eq(manager_n(&m), 1);
	}
	ck_assert_uint_eq(manager_n_named(&m, "keep.ledger@4"), 1);
	other = kit_file(9, LEN);
	ck_assert_int_eq(prefixd_keep_put(k, "g1.pool", other), 0);
	ck_assert_int_eq(prefixd_keep_put(k, "g1.pool", other), 0); /* he has it */
	ck_assert_uint_eq(manager_n_named(&m, "keep.g1.pool"), 1);
	close(other);
	ck_assert_int_eq(RUN("systemd", "2", "ledger=4", "g1.pool=9"), 0);
	/* Killed before the older one was taken away: the later one counts, and the other goes. */
	pthread_mutex_lock(&m.lock);
	snprintf(m.store[m.n].name, sizeof(m.store[0].name), "keep.ledger@3");
	m.store[m.n++].fd = kit_file(3, LEN);
	snprintf(m.store[m.n].name, sizeof(m.store[0].name), "keep.ledger@12");
	m.store[m.n++].fd = kit_file(12, LEN);
	pthread_mutex_unlock(&m.lock);
	ck_assert_int_eq(RUN("systemd", "2", "ledger=12", "g1.pool=9"), 0);
	ck_assert_uint_eq(manager_n(&m), 2);
	ck_assert_uint_eq(manager_n_named(&m, "keep.ledger@12"), 1);
	prefixd_keep_stop(k, false);
	manager_stop(&m);
}
END_TEST

START_TEST(what_is_dropped_or_released_leaves_the_store)
{
	struct prefixd_keep *k;

	setup(512);
	k = start();
	ck_assert_int_eq(put(k, "ledger", 1), 0);
	ck_assert_int_eq(put(k, "g1.pool", 2), 0);
	ck_assert_int_eq(put(k, "g1.table", 3), 0);
	ck_assert_int_eq(put(k, "g1.table", 4), 0);
	ck_assert_int_eq(put(k, "g10.pool", 5), 0);
	prefixd_keep_drop(k, "g1");
	ck_assert_uint_eq(manager_n(&m), 2);
	prefixd_keep_stop(k, true);
	ck_assert_uint_eq(manager_n(&m), 0);
	manager_stop(&m);
}
END_TEST

START_TEST(all_256_go_in_and_come_back)
{
	struct prefixd_keep *k;

	setup(512);
	k = start();
	for (uint32_t i = 0; i < PREFIXD_KEEP_ITEMS_MAX; i++) {
		char name[32];

		snprintf(name, sizeof(name), "g%u.pool", i);
		ck_assert_int_eq(put(k, name, i), 0);
	}
	ck_assert_int_eq(put(k, "one.more", 1), -ENOSPC);
	prefixd_keep_stop(k, false);
	ck_assert_uint_eq(manager_n(&m), PREFIXD_KEEP_ITEMS_MAX);
	ck_assert_int_eq(RUN("systemd", "256", "g0.pool=0", "g255.pool=255", "g77.pool=77"), 0);
	manager_stop(&m);
}
END_TEST

/* ---- what he does not do ------------------------------------------------------------------- */

START_TEST(no_store_is_said_with_the_setting)
{
	struct prefixd_keep *k = NULL;

	setup(0);
	ck_assert_int_eq(try_start(PREFIXD_KEEPER_SYSTEMD, &k), -ENOSPC);
	ck_assert_msg(strstr(why, "FileDescriptorStoreMax="), "%s", why);
	ck_assert_ptr_null(k);
	if (kit_holder_binary()) { /* nobody insisted on him */
		ck_assert_int_eq(try_start(PREFIXD_KEEPER_AUTO, &k), 0);
		ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_HOLDER);
		ck_assert_ptr_nonnull(strstr(log_text, "FileDescriptorStoreMax="));
		ck_assert_ptr_nonnull(strstr(log_text, "control group"));
		prefixd_keep_stop(k, true);
	}
	manager_stop(&m);
	ck_assert_int_eq(try_start(PREFIXD_KEEPER_SYSTEMD, &k), -ENOTCONN);
	ck_assert_msg(strstr(why, "NOTIFY_SOCKET"), "%s", why);
	ck_assert_int_eq(setenv("NOTIFY_SOCKET", "vsock:1:2", 1), 0);
	ck_assert_int_lt(try_start(PREFIXD_KEEPER_SYSTEMD, &k), 0);
	ck_assert_msg(strstr(why, "vsock:1:2"), "%s", why);
}
END_TEST

START_TEST(a_full_store_is_said_and_what_is_in_stays)
{
	struct prefixd_keep *k;

	setup(2);
	k = start();
	ck_assert_int_eq(put(k, "ledger", 1), 0);
	ck_assert_int_eq(put(k, "g1.pool", 2), 0);
	ck_assert_int_eq(put(k, "g1.table", 3), -ENOSPC);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_SYSTEMD);
	event_base_loop(base, EVLOOP_NONBLOCK);
	ck_assert_ptr_nonnull(strstr(log_text, "raise FileDescriptorStoreMax="));
	ck_assert_uint_eq(manager_n(&m), 2);
	manager_set_max(&m, 3);
	ck_assert_int_eq(put(k, "g1.table", 4), 0);
	prefixd_keep_stop(k, false);
	/* What comes out of a store shows that there is one, be it full. */
	ck_assert_int_eq(RUN("systemd", "3", "ledger=1", "g1.pool=2", "g1.table=4"), 0);
	manager_stop(&m);
}
END_TEST

static bool works(void *ctx)
{
	return prefixd_keep_state(ctx) == PREFIXD_KEEPER_SYSTEMD;
}

START_TEST(a_manager_that_is_late_costs_one_deadline)
{
	struct prefixd_keep *k = NULL;
	unsigned long since;

	setup(512);
	manager_pause(&m, true);
	ck_assert_int_eq(try_start(PREFIXD_KEEPER_SYSTEMD, &k), -ETIMEDOUT);
	ck_assert_msg(strstr(why, "does not answer"), "%s", why);
	manager_pause(&m, false);
	k = start();
	ck_assert_int_eq(put(k, "ledger", 1), 0);
	manager_pause(&m, true);
	since = e2e_now_ms();
	ck_assert_int_eq(put(k, "g1.pool", 2), -ETIMEDOUT);
	ck_assert_uint_ge(e2e_now_ms() - since, 990);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
	since = e2e_now_ms();
	for (int i = 0; i < 10; i++) {
		ck_assert_int_eq(put(k, "g1.table", 3), -ENOTCONN);
		event_base_loop(base, EVLOOP_NONBLOCK);
	}
	ck_assert_uint_lt(e2e_now_ms() - since, 5000); /* ten deadlines are ten seconds */
	ck_assert_ptr_nonnull(strstr(log_text, "does not answer"));
	manager_pause(&m, false);
	ck_assert(kit_loop_until(base, works, k, 5000));
	ck_assert_uint_eq(manager_n(&m), 3);
	ck_assert_ptr_nonnull(strstr(log_text, "keeps all 3 items"));
	prefixd_keep_stop(k, false);
	ck_assert_int_eq(RUN("systemd", "3", "ledger=1", "g1.pool=2", "g1.table=3"), 0);
	manager_stop(&m);
}
END_TEST

/* ---- what he passes on --------------------------------------------------------------------- */

START_TEST(sockets_and_strangers_among_what_is_passed_on)
{
	static const char *const argv[] = { "/proc/self/exe", "--next-life", "systemd", "1",
					    kit.admin,        "ledger=1",    NULL };
	struct manager_passed more[] = {
		{ "weird", kit_file(1, LEN) },         { "prefixd", kit_file(4711, LEN) },
		{ "prefixd-admin", kit_file(2, LEN) }, { "keep.", kit_file(3, LEN) },
		{ "keep.a b", kit_file(4, LEN) },      { "keep.x@y", kit_file(5, LEN) }
	};
	struct prefixd_keep *k;

	setup(512);
	k = start();
	ck_assert_int_eq(put(k, "ledger", 1), 0);
	prefixd_keep_stop(k, false);
	ck_assert_int_eq(manager_run(&m, argv, more, radix_array_size(more)), 0);
	ck_assert_uint_eq(manager_n(&m), 1);
	/* Meant for another process: nothing is touched. */
	ck_assert_int_eq(setenv("LISTEN_PID", "1", 1), 0);
	ck_assert_int_eq(setenv("LISTEN_FDS", "3", 1), 0);
	ck_assert_int_eq(setenv("LISTEN_FDNAMES", "prefixd:keep.a:keep.b", 1), 0);
	ck_assert_int_eq(prefixd_keep_listener("prefixd"), -1);
	k = start();
	ck_assert_uint_eq(prefixd_keep_n_found(k), 0);
	prefixd_keep_stop(k, false);
	manager_stop(&m);
	for (size_t i = 0; i < radix_array_size(more); i++)
		close(more[i].fd);
}
END_TEST

START_TEST(another_program_in_this_process_has_the_same_store)
{
	static char text[PREFIXD_KEEP_HANDED_MAX];
	int status;
	pid_t pid;

	setup(512);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct prefixd_keep *k = start();

		ck_assert_int_eq(put(k, "ledger", 1), 0);
		ck_assert_int_eq(put(k, "ledger", 2), 0);
		ck_assert_int_eq(put(k, "g1.pool", 3), 0);
		ck_assert_int_eq(prefixd_keep_hand_over(k, text, sizeof(text)), 0);
		(void)setenv("HANDED", text, 1);
		execl("/proc/self/exe", "next", "--next-life", "systemd", "2", kit.admin,
		      "ledger=2", "g1.pool=3", NULL);
		_exit(126);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_uint_eq(manager_n(&m), 2);
	ck_assert_int_eq(RUN("systemd", "2", "ledger=2", "g1.pool=3"), 0);
	manager_stop(&m);
}
END_TEST

/* ---- what he is told ----------------------------------------------------------------------- */

START_TEST(he_is_told_how_it_goes)
{
	struct prefixd_notify n;

	setup(0);
	manager_stop(&m);
	ck_assert_int_eq(prefixd_notify_init(&n, base, why, sizeof(why)), 0);
	ck_assert(!prefixd_notify_active(&n));
	prefixd_notify_ready(&n, "x"); /* nobody hears it */
	ck_assert_int_eq(prefixd_notify_send(&n, "x", -1, 0), -ENOTCONN);
	prefixd_notify_deinit(&n);
	for (int i = 0; i < 2; i++) {
		char path[108];

		snprintf(path, sizeof(path), "%s/notify%d", i ? "@prefixd-test" : kit.dir,
			 i ? (int)getpid() : 0);
		manager_start(&m, path, 0);
		ck_assert_int_eq(prefixd_notify_init(&n, base, why, sizeof(why)), 0);
		prefixd_notify_ready(&n, "serving\nSTOPPING=1");
		ck_assert(manager_hears(&m, "READY=1\nSTATUS=serving\n\n", 5000));
		prefixd_notify_reloading(&n);
		ck_assert(manager_hears(&m, "RELOADING=1\nMONOTONIC_USEC=", 5000));
		prefixd_notify_stopping(&n, 7 * SECOND);
		ck_assert(manager_hears(&m, "STOPPING=1\n", 5000));
		ck_assert(manager_hears(&m, "EXTEND_TIMEOUT_USEC=7000000\n", 5000));
		ck_assert_uint_eq(manager_n_heard(&m, "WATCHDOG"), 0);
		prefixd_notify_deinit(&n);
		manager_stop(&m);
	}
}
END_TEST

/* Turns the loop for so long. */
static void turn_for(unsigned ms)
{
	for (unsigned long end = e2e_now_ms() + ms; e2e_now_ms() < end; e2e_sleep_ms(1))
		event_base_loop(base, EVLOOP_NONBLOCK);
}

START_TEST(life_is_told_by_the_loop_alone)
{
	struct prefixd_notify n;
	uint32_t before;

	setup(0);
	ck_assert_int_eq(setenv("WATCHDOG_USEC", "100000", 1), 0);
	ck_assert_int_eq(setenv("WATCHDOG_PID", "1", 1), 0); /* not of us */
	ck_assert_int_eq(prefixd_notify_init(&n, base, why, sizeof(why)), 0);
	turn_for(200);
	ck_assert_uint_eq(manager_n_heard(&m, "WATCHDOG=1"), 0);
	prefixd_notify_deinit(&n);
	ck_assert_int_eq(unsetenv("WATCHDOG_PID"), 0);
	ck_assert_int_eq(prefixd_notify_init(&n, base, why, sizeof(why)), 0);
	turn_for(500);
	ck_assert_uint_ge(manager_n_heard(&m, "WATCHDOG=1"), 2);
	(void)manager_n(&m); /* what is under way has arrived */
	before = manager_n_heard(&m, "WATCHDOG=1");
	e2e_sleep_ms(400); /* the loop stands still */
	ck_assert_uint_eq(manager_n_heard(&m, "WATCHDOG=1"), before);
	turn_for(200);
	(void)manager_n(&m);
	ck_assert_uint_gt(manager_n_heard(&m, "WATCHDOG=1"), before);
	prefixd_notify_deinit(&n);
	manager_stop(&m);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	if (argc >= 5 && strcmp(argv[1], "--next-life") == 0)
		return next_life(argc, argv);
	return kit_main(
		"keep-systemd",
		TESTS(the_store_outlives_the_daemon, a_name_has_one_descriptor_and_never_none,
		      what_is_dropped_or_released_leaves_the_store, all_256_go_in_and_come_back,
		      no_store_is_said_with_the_setting, a_full_store_is_said_and_what_is_in_stays,
		      a_manager_that_is_late_costs_one_deadline,
		      sockets_and_strangers_among_what_is_passed_on,
		      another_program_in_this_process_has_the_same_store, he_is_told_how_it_goes,
		      life_is_told_by_the_loop_alone));
}
