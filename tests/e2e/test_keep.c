/*
 * test_keep.c - the daemon's side of kept memory, with a real prefixd-holder: over kill -9 of the
 * daemon and of the holder, when one of them is slow, when they do not understand each other, and
 * over exec.
 *
 * Called with "--next-life ..." it is the program that another one hands its memory over to.
 */
#include "tests/e2e/keep_kit.h"

#include "daemon/log.h"

#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define LEN    70000u

static struct event_base *base;
static char why[512];
static const char *self;

static struct prefixd_keep_config config_of(enum prefixd_keeper keeper)
{
	return (struct prefixd_keep_config){ .keeper = keeper,
					     .admin_socket = kit.admin,
					     .program = kit_holder_binary(),
					     .timeout_ns = 20 * SECOND,
					     .version = "1.2.3",
					     .base = base };
}

static struct prefixd_keep *start(void)
{
	struct prefixd_keep_config c = config_of(PREFIXD_KEEPER_HOLDER);
	struct prefixd_keep *k = NULL;
	int r = prefixd_keep_start(&k, &c, why, sizeof(why));

	ck_assert_msg(r == 0, "%d: %s", r, why);
	return k;
}

/* What the log was told, beside standard error. */
static char log_text[8192];

static void log_write(void *ctx, const char *line, size_t len)
{
	size_t at = strlen(log_text);

	(void)!write(STDERR_FILENO, line, len);
	if (at + len < sizeof(log_text))
		memcpy(log_text + at, line, len);
}

static void setup(void)
{
	static const struct prefixd_log_sink sink = { .write = log_write };

	base = event_base_new();
	ck_assert_ptr_nonnull(base);
	prefixd_log_set_sink(&sink);
	memset(log_text, 0, sizeof(log_text));
}

static void put(struct prefixd_keep *k, const char *name, uint32_t seed)
{
	int fd = kit_file(seed, LEN);

	ck_assert_int_eq(prefixd_keep_put(k, name, fd), 0);
	close(fd);
}

static void expect_taken(struct prefixd_keep *k, const char *name, uint32_t seed)
{
	int fd = prefixd_keep_take(k, name);

	kit_expect_file(fd, seed, LEN);
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	close(fd);
	ck_assert_int_eq(prefixd_keep_take(k, name), -1); /* it was given away */
}

/* A daemon of its own that puts `n` files and waits to be killed. */
static pid_t daemon_with(uint32_t n)
{
	int p[2];
	char byte = 0;
	pid_t pid;

	ck_assert_int_eq(pipe(p), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct prefixd_keep *k = start();

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint32_t i = 0; i < n; i++) {
			char name[32];

			snprintf(name, sizeof(name), "g%u.pool", i);
			put(k, name, i);
		}
		(void)!write(p[1], "x", 1);
		for (;;)
			pause();
	}
	close(p[1]);
	ck_assert_int_eq(read(p[0], &byte, 1), 1);
	close(p[0]);
	return pid;
}

static void kill_9(pid_t pid)
{
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

/* ---- the daemon is killed ------------------------------------------------------------------ */

START_TEST(kept_over_the_daemons_death)
{
	struct proto_holder_frame looks;
	struct prefixd_keep *k;

	setup();
	kill_9(daemon_with(5));
	k = start();
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_HOLDER);
	ck_assert_uint_eq(prefixd_keep_n_found(k), 5);
	ck_assert_int_eq(prefixd_keep_take(k, "g5.pool"), -1);
	expect_taken(k, "g0.pool", 0);
	expect_taken(k, "g3.pool", 3);
	put(k, "g4.pool", 44); /* of this life, in place of one that was not taken */
	prefixd_keep_drop_rest(k);
	looks = kit_look();
	ck_assert_uint_eq(looks.n_items, 3);
	ck_assert_uint_eq(looks.daemon_pid, (uint32_t)getpid());
	ck_assert_str_eq(looks.name, "1.2.3");
	prefixd_keep_drop(k, "g0");
	ck_assert_uint_eq(kit_look().n_items, 2);
	k = prefixd_keep_stop(k, false);
	ck_assert_ptr_null(k);
	k = start();
	ck_assert_uint_eq(prefixd_keep_n_found(k), 2);
	expect_taken(k, "g4.pool", 44);
	expect_taken(k, "g3.pool", 3);
	looks = kit_look();
	prefixd_keep_stop(k, true);
	kit_wait_gone((pid_t)looks.holder_pid, 5000);
}
END_TEST

START_TEST(twenty_lives)
{
	struct prefixd_keep *k;
	unsigned before;
	pid_t holder = 0;

	setup();
	before = kit_n_fds(getpid());
	for (uint32_t life = 0; life < 20; life++) {
		struct proto_holder_frame looks;
		pid_t pid = fork();

		ck_assert_int_ge(pid, 0);
		if (pid == 0) {
			k = start();
			if (life > 0)
				expect_taken(k, "ledger", life - 1);
			put(k, "ledger", life);
			(void)kill(getpid(), SIGKILL);
		}
		ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
		looks = kit_look();
		ck_assert_uint_eq(looks.n_items, 1);
		ck_assert(holder == 0 || holder == (pid_t)looks.holder_pid);
		holder = (pid_t)looks.holder_pid;
	}
	kit_wait_n_fds(holder, 6); /* the item, and no connection */
	k = start();
	expect_taken(k, "ledger", 19);
	prefixd_keep_stop(k, true);
	ck_assert_uint_eq(kit_n_fds(getpid()), before);
}
END_TEST

START_TEST(all_256_come_back)
{
	struct prefixd_keep *k;
	char name[32];
	int fd;

	setup();
	kill_9(daemon_with(PREFIXD_KEEP_ITEMS_MAX));
	k = start();
	ck_assert_uint_eq(prefixd_keep_n_found(k), PREFIXD_KEEP_ITEMS_MAX);
	for (uint32_t i = 0; i < PREFIXD_KEEP_ITEMS_MAX; i++) {
		snprintf(name, sizeof(name), "g%u.pool", i);
		expect_taken(k, name, i);
	}
	fd = kit_file(1, LEN);
	ck_assert_int_eq(prefixd_keep_put(k, "one.more", fd), -ENOSPC);
	ck_assert_int_eq(prefixd_keep_put(k, "no good", fd), -EINVAL);
	ck_assert_int_eq(prefixd_keep_put(k, "g7.pool", fd), 0);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_HOLDER);
	close(fd);
	prefixd_keep_stop(k, true);
}
END_TEST

/* ---- the holder is killed, stopped, released ----------------------------------------------- */

static pid_t holder_now;

/* Another holder than holder_now, who has everything. */
static bool another_keeps(void *ctx)
{
	return prefixd_keep_state(ctx) == PREFIXD_KEEPER_HOLDER;
}

START_TEST(kept_over_the_holders_death)
{
	struct prefixd_keep *k;

	setup();
	kill_9(daemon_with(3));
	k = start();
	put(k, "ledger", 100);
	expect_taken(k, "g1.pool", 1);
	for (int i = 0; i < 3; i++) {
		int fd = kit_file(200 + (uint32_t)i, LEN);
		struct proto_holder_frame looks;

		holder_now = (pid_t)kit_look().holder_pid;
		ck_assert_int_eq(kill(holder_now, SIGKILL), 0);
		kit_wait_gone(holder_now, 5000);
		/* Whoever puts before the loop has seen it is told the truth. */
		ck_assert_int_lt(prefixd_keep_put(k, "late", fd), 0);
		ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
		close(fd);
		ck_assert(kit_loop_until(base, another_keeps, k, 5000));
		looks = kit_look();
		ck_assert_int_ne((pid_t)looks.holder_pid, holder_now);
		ck_assert_uint_eq(looks.n_items, 5);
	}
	ck_assert_ptr_nonnull(strstr(log_text, "has ended"));
	ck_assert_ptr_nonnull(strstr(log_text, "keeps all 5 items again"));
	prefixd_keep_stop(k, false);
	k = start(); /* what was found, taken or not, and what was put */
	expect_taken(k, "g0.pool", 0);
	expect_taken(k, "g1.pool", 1);
	expect_taken(k, "ledger", 100);
	expect_taken(k, "late", 202);
	prefixd_keep_stop(k, true);
}
END_TEST

/* He ends while nothing is asked of him: the loop hears of it by itself. */
START_TEST(the_loop_notices_the_holders_end)
{
	struct prefixd_keep *k;

	setup();
	k = start();
	put(k, "ledger", 1);
	holder_now = (pid_t)kit_look().holder_pid;
	ck_assert_int_eq(kill(holder_now, SIGKILL), 0);
	kit_wait_gone(holder_now, 5000);
	for (int i = 0; i < 100 && !strstr(log_text, "again"); i++) {
		event_base_loop(base, EVLOOP_NONBLOCK);
		e2e_sleep_ms(10);
	}
	ck_assert_uint_eq(kit_look().n_items, 1);
	prefixd_keep_stop(k, true);
}
END_TEST

START_TEST(without_the_program_the_loop_tries_again)
{
	struct prefixd_keep_config c = config_of(PREFIXD_KEEPER_HOLDER);
	char program[128], target[512];
	struct prefixd_keep *k = NULL;
	unsigned long end;

	setup();
	c.base = base;
	snprintf(program, sizeof(program), "%s/prefixd-holder", kit.dir);
	snprintf(target, sizeof(target), "%s", c.program);
	ck_assert_int_eq(symlink(target, program), 0);
	c.program = program;
	ck_assert_int_eq(prefixd_keep_start(&k, &c, why, sizeof(why)), 0);
	put(k, "ledger", 1);
	ck_assert_int_eq(unlink(program), 0);
	holder_now = (pid_t)kit_look().holder_pid;
	ck_assert_int_eq(kill(holder_now, SIGKILL), 0);
	end = e2e_now_ms() + 350;
	while (e2e_now_ms() < end) {
		event_base_loop(base, EVLOOP_NONBLOCK);
		e2e_sleep_ms(1);
	}
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
	ck_assert_ptr_nonnull(strstr(log_text, "memory ends with this daemon"));
	ck_assert_ptr_nonnull(strstr(log_text, "trying again in 200 ms"));
	ck_assert_ptr_null(strstr(log_text, "trying again in 800 ms")); /* it waits in between */
	ck_assert_int_eq(symlink(target, program), 0);
	ck_assert(kit_loop_until(base, another_keeps, k, 5000));
	ck_assert_uint_eq(kit_look().n_items, 1);
	prefixd_keep_stop(k, true);
}
END_TEST

START_TEST(a_holder_that_is_late_costs_one_deadline)
{
	struct prefixd_keep *k;
	unsigned long since, took;
	int fd = kit_file(9, LEN);

	setup();
	k = start();
	put(k, "ledger", 1);
	holder_now = (pid_t)kit_look().holder_pid;
	ck_assert_int_eq(kill(holder_now, SIGSTOP), 0);
	since = e2e_now_ms();
	ck_assert_int_eq(prefixd_keep_put(k, "g1.pool", fd), -ETIMEDOUT);
	took = e2e_now_ms() - since;
	ck_assert_uint_ge(took, 990);
	ck_assert_uint_lt(took, 5000);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
	since = e2e_now_ms();
	for (int i = 0; i < 20; i++) {
		ck_assert_int_eq(prefixd_keep_put(k, "g2.pool", fd), -ENOTCONN);
		prefixd_keep_drop(k, "ledger");
		event_base_loop(base, EVLOOP_NONBLOCK);
	}
	ck_assert_uint_lt(e2e_now_ms() - since, 10000); /* twenty deadlines are twenty seconds */
	ck_assert_ptr_nonnull(strstr(log_text, "does not answer"));
	ck_assert_int_eq(kill(holder_now, SIGCONT), 0);
	ck_assert(kit_loop_until(base, another_keeps, k, 5000));
	/* What came in between is in line: two were put, one was dropped. */
	ck_assert_uint_eq(kit_look().n_items, 2);
	ck_assert_uint_eq(kit_look().holder_pid, (uint32_t)holder_now);
	prefixd_keep_stop(k, false);
	k = start();
	expect_taken(k, "g1.pool", 9);
	expect_taken(k, "g2.pool", 9);
	prefixd_keep_stop(k, true);
	close(fd);
}
END_TEST

START_TEST(what_an_operator_releases_stays_released)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_RELEASE, .flags = PROTO_HOLDER_FORCE },
				  reply;
	struct prefixd_keep *k;
	unsigned long end;
	struct stat st;
	int fd, file = kit_file(1, LEN);

	setup();
	k = start();
	put(k, "ledger", 1);
	holder_now = (pid_t)kit_look().holder_pid;
	fd = kit_dial();
	ck_assert(kit_call(fd, &f, -1, &reply, NULL));
	close(fd);
	kit_wait_gone(holder_now, 5000);
	for (end = e2e_now_ms() + 500; e2e_now_ms() < end; e2e_sleep_ms(1))
		event_base_loop(base, EVLOOP_NONBLOCK);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
	ck_assert_int_ne(stat(kit.socket, &st), 0); /* nobody new */
	ck_assert_ptr_nonnull(strstr(log_text, "an operator"));
	ck_assert_int_eq(prefixd_keep_put(k, "g1.pool", file), -ENOTCONN);
	prefixd_keep_stop(k, false);
	k = start(); /* the next life has a keeper again, and nothing */
	ck_assert_uint_eq(prefixd_keep_n_found(k), 0);
	prefixd_keep_stop(k, true);
	close(file);
}
END_TEST

/* ---- from threads -------------------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS  50

struct thread {
	pthread_t thread;
	struct prefixd_keep *keep;
	uint32_t number;
	int failed;
};

static void *putting(void *ctx)
{
	struct thread *t = ctx;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		char name[32];
		int fd = kit_file(t->number * 1000 + i, LEN);

		snprintf(name, sizeof(name), "g%u.pool", t->number);
		t->failed += prefixd_keep_put(t->keep, name, fd) != 0;
		close(fd);
		snprintf(name, sizeof(name), "t%u.pool", t->number);
		t->failed += prefixd_keep_put(t->keep, name, t->keep ? STDERR_FILENO : -1) != 0;
		prefixd_keep_drop(t->keep, name);
	}
	return NULL;
}

START_TEST(threads_put_while_the_loop_turns)
{
	struct thread t[THREADS];
	struct prefixd_keep *k;

	setup();
	k = start();
	for (uint32_t i = 0; i < THREADS; i++) {
		t[i] = (struct thread){ .keep = k, .number = i };
		ck_assert_int_eq(pthread_create(&t[i].thread, NULL, putting, &t[i]), 0);
	}
	for (unsigned long end = e2e_now_ms() + 200; e2e_now_ms() < end;)
		event_base_loop(base, EVLOOP_NONBLOCK);
	for (uint32_t i = 0; i < THREADS; i++) {
		ck_assert_int_eq(pthread_join(t[i].thread, NULL), 0);
		ck_assert_int_eq(t[i].failed, 0);
	}
	prefixd_keep_stop(k, false);
	k = start();
	ck_assert_uint_eq(prefixd_keep_n_found(k), THREADS);
	for (uint32_t i = 0; i < THREADS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "g%u.pool", i);
		expect_taken(k, name, i * 1000 + ROUNDS - 1);
	}
	prefixd_keep_stop(k, true);
}
END_TEST

/* ---- who does not fit ---------------------------------------------------------------------- */

START_TEST(a_second_daemon_is_refused_with_words)
{
	struct prefixd_keep_config c = config_of(PREFIXD_KEEPER_HOLDER);
	struct prefixd_keep *k, *second = NULL;
	char pid[32];

	setup();
	k = start();
	put(k, "ledger", 1);
	ck_assert_int_eq(prefixd_keep_start(&second, &c, why, sizeof(why)), -EBUSY);
	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	ck_assert_msg(strstr(why, "serves another") && strstr(why, pid), "%s", why);
	ck_assert_ptr_null(second);
	ck_assert_uint_eq(kit_look().n_items, 1);
	prefixd_keep_stop(k, true);
}
END_TEST

struct fake {
	pthread_t thread;
	int listen_fd;
	uint16_t version;
	uint32_t status;
};

/* Answers one HELLO as a holder of another kind would, or closes. */
static void *fake_holder(void *ctx)
{
	struct fake *fake = ctx;
	struct proto_holder_frame f = { 0 };
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	int fd = accept(fake->listen_fd, NULL, NULL);

	if (recv(fd, bytes, sizeof(bytes), 0) > 0) {
		(void)!proto_holder_decode(bytes, PROTO_HOLDER_LEN, &f);
		f.version = fake->version;
		f.status = fake->status;
		proto_holder_encode(&f, bytes);
		(void)send(fd, bytes, PROTO_HOLDER_LEN, MSG_NOSIGNAL);
		(void)recv(fd, bytes, sizeof(bytes), 0);
	}
	close(fd);
	return NULL;
}

START_TEST(a_holder_of_another_kind_is_refused_with_the_way_out)
{
	static const struct {
		uint16_t version;
		uint32_t status;
		const char *says;
	} kinds[] = { { 2, PROTO_HOLDER_STATUS_OK, "speaks version 2" },
		      { 2, PROTO_HOLDER_STATUS_VERSION, "holder release" },
		      { 1, PROTO_HOLDER_STATUS_FORBIDDEN, "its own user and root only" },
		      { 1, 77, "does not know" } };
	struct prefixd_keep_config c = config_of(PREFIXD_KEEPER_AUTO);
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	setup();
	memcpy(addr.sun_path, kit.socket, strlen(kit.socket));
	for (size_t i = 0; i < radix_array_size(kinds); i++) {
		struct fake fake = { .version = kinds[i].version, .status = kinds[i].status };
		struct prefixd_keep *k = NULL;
		int r;

		fake.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		ck_assert_int_eq(
			bind(fake.listen_fd, (struct sockaddr *)(void *)&addr, sizeof(addr)), 0);
		ck_assert_int_eq(listen(fake.listen_fd, 4), 0);
		ck_assert_int_eq(pthread_create(&fake.thread, NULL, fake_holder, &fake), 0);
		r = prefixd_keep_start(&k, &c, why, sizeof(why));
		ck_assert_int_lt(r, 0);
		ck_assert_msg(strstr(why, kinds[i].says), "%s", why);
		ck_assert_ptr_null(k);
		ck_assert_int_eq(pthread_join(fake.thread, NULL), 0);
		close(fake.listen_fd);
		ck_assert_int_eq(unlink(kit.socket), 0);
	}
}
END_TEST

START_TEST(no_program_no_holder)
{
	struct prefixd_keep_config c = config_of(PREFIXD_KEEPER_HOLDER);
	struct prefixd_keep *k = NULL;
	char program[128], admin[128];
	int fd = kit_file(1, LEN);

	setup();
	snprintf(program, sizeof(program), "%s/missing", kit.dir);
	c.program = program;
	ck_assert_int_eq(prefixd_keep_start(&k, &c, why, sizeof(why)), -ENOENT);
	ck_assert_msg(strstr(why, program), "%s", why);
	/* Nobody insisted: the daemon goes on, and says so. */
	c.keeper = PREFIXD_KEEPER_AUTO;
	ck_assert_int_eq(prefixd_keep_start(&k, &c, why, sizeof(why)), 0);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
	ck_assert_ptr_nonnull(strstr(log_text, "memory will end with this daemon"));
	ck_assert_int_eq(prefixd_keep_put(k, "ledger", fd), 0);
	k = prefixd_keep_stop(k, true);
	/* A path that has no room for the holder's. */
	memset(admin, 0, sizeof(admin));
	memset(admin, 'x', 105);
	c.admin_socket = admin;
	c.program = kit_holder_binary();
	ck_assert_int_eq(prefixd_keep_start(&k, &c, why, sizeof(why)), 0);
	ck_assert_int_eq((int)prefixd_keep_state(k), PREFIXD_KEEPER_NONE);
	k = prefixd_keep_stop(k, true);
	c.keeper = PREFIXD_KEEPER_HOLDER;
	ck_assert_int_eq(prefixd_keep_start(&k, &c, why, sizeof(why)), -ENAMETOOLONG);
	ck_assert_msg(strstr(why, "shorter"), "%s", why);
	close(fd);
}
END_TEST

/* ---- exec ---------------------------------------------------------------------------------- */

static enum prefixd_keeper keeper_of(const char *name)
{
	return strcmp(name, "none") == 0 ? PREFIXD_KEEPER_NONE : PREFIXD_KEEPER_HOLDER;
}

/* The program after exec.  argv: --next-life KEEPER ADMIN HANDED */
static int next_life(char **argv)
{
	struct prefixd_keep_config c;
	struct prefixd_keep *k = NULL;
	int fd;

	snprintf(kit.admin, sizeof(kit.admin), "%s", argv[3]);
	snprintf(kit.socket, sizeof(kit.socket), "%s%s", kit.admin, PROTO_HOLDER_SUFFIX);
	c = config_of(keeper_of(argv[2]));
	c.handed = argv[4];
	if (prefixd_keep_start(&k, &c, why, sizeof(why)) < 0) {
		fprintf(stderr, "%s\n", why);
		return 1;
	}
	if (prefixd_keep_n_found(k) != 3)
		return 2;
	if (prefixd_keep_state(k) != c.keeper)
		return 3;
	for (uint32_t i = 0; i < 3; i++) {
		char name[32];

		snprintf(name, sizeof(name), "g%u.pool", i);
		fd = prefixd_keep_take(k, name);
		if (fd < 0 || !kit_is_file(fd, i, LEN))
			return 4;
		close(fd);
	}
	prefixd_keep_stop(k, false);
	return 0;
}

static void exec_with(const char *keeper)
{
	static char text[PREFIXD_KEEP_HANDED_MAX];
	struct prefixd_keep_config c = config_of(keeper_of(keeper));
	int status;
	pid_t pid;

	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct prefixd_keep *k = NULL;

		c.base = base = event_base_new();
		ck_assert_int_eq(prefixd_keep_start(&k, &c, why, sizeof(why)), 0);
		for (uint32_t i = 0; i < 3; i++) {
			char name[32];

			snprintf(name, sizeof(name), "g%u.pool", i);
			put(k, name, i);
		}
		ck_assert_int_eq(prefixd_keep_hand_over(k, text, 10), -ENOSPC);
		ck_assert_int_eq(prefixd_keep_hand_over(k, text, sizeof(text)), 0);
		prefixd_keep_stay(k);
		put(k, "g1.pool", 1); /* exec failed once, and life went on */
		ck_assert_int_eq(prefixd_keep_hand_over(k, text, sizeof(text)), 0);
		execl("/proc/self/exe", self, "--next-life", keeper, kit.admin, text, NULL);
		_exit(126);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", (unsigned)status);
}

START_TEST(another_program_in_this_process_gets_everything)
{
	struct prefixd_keep *k;

	exec_with("none");
	exec_with("holder");
	setup();
	k = start();
	ck_assert_uint_eq(prefixd_keep_n_found(k), 3);
	expect_taken(k, "g2.pool", 2);
	prefixd_keep_stop(k, true);
}
END_TEST

START_TEST(what_is_handed_over_is_looked_at)
{
	static const char *const texts[] = { "x",       "a@0=",        "a@0=1",  "a@0=999",
					     "a b@0=9", "@0=9",        "a@0=9,", "a@0=9;b@0=9",
					     "a@-1=9 ", "a@0=9,a@0=9", "a@0=9,b" };
	struct prefixd_keep_config c = config_of(PREFIXD_KEEPER_NONE);
	struct prefixd_keep *k = NULL;

	setup();
	for (size_t i = 0; i < radix_array_size(texts); i++) {
		if (fcntl(9, F_GETFD) < 0)
			ck_assert_int_eq(dup2(2, 9), 9);
		c.handed = texts[i];
		if (strcmp(texts[i], "a@0=9,") == 0)
			continue; /* an empty end is no more than that */
		ck_assert_msg(prefixd_keep_start(&k, &c, why, sizeof(why)) < 0, "%s", texts[i]);
		ck_assert_msg(strstr(why, "handed over"), "%s", why);
	}
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 5 && strcmp(argv[1], "--next-life") == 0)
		return next_life(argv);
	if (!kit_holder_binary()) {
		puts("1..0 # SKIP no prefixd-holder");
		return 0;
	}
	return kit_main("keep",
			TESTS(kept_over_the_daemons_death, twenty_lives, all_256_come_back,
			      kept_over_the_holders_death, the_loop_notices_the_holders_end,
			      without_the_program_the_loop_tries_again,
			      a_holder_that_is_late_costs_one_deadline,
			      what_an_operator_releases_stays_released,
			      threads_put_while_the_loop_turns,
			      a_second_daemon_is_refused_with_words,
			      a_holder_of_another_kind_is_refused_with_the_way_out,
			      no_program_no_holder, another_program_in_this_process_gets_everything,
			      what_is_handed_over_is_looked_at));
}
