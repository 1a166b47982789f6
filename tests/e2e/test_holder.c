/*
 * test_holder.c - prefixd-holder as a process, spoken to in raw frames: what it keeps and for how
 * long, whom it serves, what it is to the system, and what garbage does to it.
 */
#include "tests/e2e/keep_kit.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define NOBODY 65534
#define LEN    5000u

/* Starts one, and a daemon's connection to it. */
static int served(uint64_t timeout_ns, pid_t *ret_pid)
{
	char says[256];
	int fd;

	ck_assert_int_eq(kit_holder_start(timeout_ns, says, sizeof(says)), 0);
	ck_assert_str_eq(says, "ready\n");
	fd = kit_dial();
	*ret_pid = (pid_t)kit_hello(fd, PROTO_HOLDER_DAEMON, timeout_ns).holder_pid;
	return fd;
}

static uint32_t status_of(int socket, uint16_t op, const char *name, int fd)
{
	struct proto_holder_frame f = { .op = op }, reply;

	snprintf(f.name, sizeof(f.name), "%s", name);
	ck_assert(kit_call(socket, &f, fd, &reply, NULL));
	return reply.status;
}

static void expect_item(int socket, uint32_t index, const char *name, uint32_t seed)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_ITEM,
					.flags = PROTO_HOLDER_SEND,
					.index = index },
				  reply;
	int fd = -1;

	ck_assert(kit_call(socket, &f, -1, &reply, &fd));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_OK);
	ck_assert_str_eq(reply.name, name);
	ck_assert_uint_eq(reply.size, LEN);
	ck_assert_uint_eq(reply.held, 8192); /* two pages */
	kit_expect_file(fd, seed, LEN);
	close(fd);
}

/* ---- keeping ------------------------------------------------------------------------------- */

START_TEST(what_was_put_is_there_for_the_next_one)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_ITEM, .index = 2 }, reply;
	int one = kit_file(1, LEN), two = kit_file(2, LEN), three = kit_file(3, LEN);
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	kit_put(fd, "ledger", one);
	kit_put(fd, "g1.pool", two);
	kit_put(fd, "ledger", three); /* in place of the first */
	close(one);
	close(two);
	close(three);
	close(fd);
	fd = kit_dial();
	reply = kit_hello(fd, PROTO_HOLDER_DAEMON, 20 * SECOND);
	ck_assert_uint_eq(reply.n_items, 2);
	ck_assert_uint_eq(reply.holder_pid, (uint32_t)pid);
	ck_assert_uint_eq(reply.daemon_pid, (uint32_t)getpid());
	ck_assert_str_eq(reply.name, "7.7.7");
	ck_assert_uint_eq(reply.left_ns, UINT64_MAX);
	expect_item(fd, 0, "ledger", 3);
	expect_item(fd, 1, "g1.pool", 2);
	ck_assert(kit_call(fd, &f, -1, &reply, NULL));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_NO_ITEM);
	close(fd);
}
END_TEST

START_TEST(a_name_is_dropped_with_what_hangs_on_it)
{
	static const char *const names[] = { "g1.pool", "ledger", "g1.table", "g10.pool", "g1" };
	int file = kit_file(1, LEN);
	pid_t pid;
	int fd = served(20 * SECOND, &pid);
	unsigned before = kit_n_fds(pid);

	for (size_t i = 0; i < radix_array_size(names); i++)
		kit_put(fd, names[i], file);
	kit_wait_n_fds(pid, before + 5);
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_DROP, "g1", -1), PROTO_HOLDER_STATUS_OK);
	expect_item(fd, 0, "ledger", 1);
	expect_item(fd, 1, "g10.pool", 1);
	ck_assert_uint_eq(kit_look().n_items, 2);
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_DROP, "nobody", -1), PROTO_HOLDER_STATUS_OK);
	ck_assert_uint_eq(kit_look().n_items, 2);
	close(fd);
}
END_TEST

START_TEST(there_is_room_for_256)
{
	char name[32];
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	for (uint32_t i = 0; i <= PROTO_HOLDER_ITEMS_MAX; i++) {
		int file = kit_file(i, LEN);

		snprintf(name, sizeof(name), "g%u.pool", i);
		ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_PUT, name, file),
				  i < PROTO_HOLDER_ITEMS_MAX ? PROTO_HOLDER_STATUS_OK
							     : PROTO_HOLDER_STATUS_FULL);
		close(file);
	}
	/* Full is full for new names only. */
	int file = kit_file(999, LEN);
	kit_put(fd, "g17.pool", file);
	close(file);
	close(fd);
	fd = kit_dial();
	ck_assert_uint_eq(kit_hello(fd, PROTO_HOLDER_DAEMON, 20 * SECOND).n_items, 256);
	for (uint32_t i = 0; i < PROTO_HOLDER_ITEMS_MAX; i++) {
		snprintf(name, sizeof(name), "g%u.pool", i);
		expect_item(fd, i, name, i == 17 ? 999 : i);
	}
	close(fd);
}
END_TEST

/* ---- leaving ------------------------------------------------------------------------------- */

START_TEST(it_leaves_when_no_daemon_comes_in_time)
{
	int file = kit_file(1, LEN);
	unsigned long since;
	struct proto_holder_frame reply;
	struct stat st;
	pid_t pid;
	int fd = served(3 * SECOND / 2, &pid);

	kit_put(fd, "ledger", file);
	e2e_sleep_ms(1800);
	ck_assert_msg(!kit_gone(pid), "it left although a daemon is there");
	since = e2e_now_ms();
	close(fd);
	e2e_sleep_ms(10);
	reply = kit_look();
	ck_assert_uint_eq(reply.daemon_pid, 0);
	ck_assert_uint_gt(reply.left_ns, 0);
	ck_assert_uint_le(reply.left_ns, 3 * SECOND / 2);
	kit_wait_gone(pid, 5000);
	ck_assert_uint_ge(e2e_now_ms() - since, 1490);
	ck_assert_int_ne(stat(kit.socket, &st), 0); /* it took its socket away */
}
END_TEST

START_TEST(a_daemon_in_time_starts_the_clock_anew)
{
	int file = kit_file(1, LEN);
	pid_t pid;
	int fd = served(3 * SECOND / 2, &pid);

	kit_put(fd, "ledger", file);
	for (int i = 0; i < 2; i++) {
		close(fd);
		e2e_sleep_ms(900);
		fd = kit_dial();
		ck_assert_uint_eq(kit_hello(fd, PROTO_HOLDER_DAEMON, 3 * SECOND / 2).n_items, 1);
	}
	close(fd);
	kit_wait_gone(pid, 5000);
}
END_TEST

START_TEST(whoever_only_looks_does_not_hold_it)
{
	int file = kit_file(1, LEN), looks;
	pid_t pid;
	int fd = served(SECOND / 2, &pid);

	kit_put(fd, "ledger", file);
	looks = kit_dial();
	(void)kit_hello(looks, 0, 0);
	close(fd);
	kit_wait_gone(pid, 5000);
	close(looks);
}
END_TEST

START_TEST(with_nothing_to_keep_it_leaves_at_once)
{
	pid_t pid;
	int file = kit_file(1, LEN), fd = served(3600 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_DROP, "ledger", -1), PROTO_HOLDER_STATUS_OK);
	close(fd);
	kit_wait_gone(pid, 5000);
}
END_TEST

START_TEST(a_daemon_may_release_it)
{
	int file = kit_file(1, LEN);
	pid_t pid;
	int fd = served(3600 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_RELEASE, "", -1), PROTO_HOLDER_STATUS_OK);
	kit_wait_gone(pid, 5000);
	close(fd);
}
END_TEST

START_TEST(others_may_release_it_when_no_daemon_is_there_or_by_force)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_RELEASE }, reply;
	int file = kit_file(1, LEN), other;
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	pid_t pid;
	int fd = served(3600 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	other = kit_dial();
	ck_assert(kit_call(other, &f, -1, &reply, NULL));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_SERVED);
	ck_assert_uint_eq(reply.daemon_pid, (uint32_t)getpid());
	ck_assert_uint_eq(kit_look().n_items, 1);
	f.flags = PROTO_HOLDER_FORCE;
	ck_assert(kit_call(other, &f, -1, &reply, NULL));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_OK);
	ck_assert_uint_eq(reply.n_items, 0);
	kit_wait_gone(pid, 5000);
	/* The daemon was told so before it saw the end. */
	ck_assert_int_eq(recv(fd, bytes, sizeof(bytes), 0), PROTO_HOLDER_LEN);
	ck_assert_int_eq(proto_holder_decode(bytes, PROTO_HOLDER_LEN, &reply), 0);
	ck_assert_uint_eq(reply.op, PROTO_HOLDER_RELEASE);
	ck_assert_uint_eq(reply.seq, 0);
	ck_assert_int_eq(recv(fd, bytes, sizeof(bytes), 0), 0);
	close(fd);
	close(other);
	/* Without a daemon no force is needed, nor HELLO, nor even the same version. */
	fd = served(3600 * SECOND, &pid);
	kit_put(fd, "ledger", file);
	close(fd);
	fd = kit_dial();
	proto_holder_encode(
		&(struct proto_holder_frame){ .version = 99, .op = PROTO_HOLDER_RELEASE, .seq = 5 },
		bytes);
	ck_assert_uint_eq(kit_exchange(fd, bytes, PROTO_HOLDER_HEAD_LEN, NULL, 0, bytes),
			  PROTO_HOLDER_LEN);
	ck_assert_int_eq(proto_holder_decode(bytes, PROTO_HOLDER_LEN, &reply), 0);
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_OK);
	kit_wait_gone(pid, 5000);
	close(fd);
}
END_TEST

/* ---- whom it serves ------------------------------------------------------------------------ */

START_TEST(one_daemon_at_a_time)
{
	struct proto_holder_frame f = { .op = PROTO_HOLDER_HELLO, .flags = PROTO_HOLDER_DAEMON },
				  reply;
	pid_t pid;
	int fd = served(20 * SECOND, &pid), other = kit_dial();
	int file = kit_file(1, LEN);

	kit_put(fd, "ledger", file);
	ck_assert(kit_call(other, &f, -1, &reply, NULL));
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_SERVED);
	ck_assert_uint_eq(reply.daemon_pid, (uint32_t)getpid());
	ck_assert_uint_eq(reply.holder_pid, (uint32_t)pid);
	/* The refusal gives no rights. */
	ck_assert_uint_eq(status_of(other, PROTO_HOLDER_DROP, "ledger", -1),
			  PROTO_HOLDER_STATUS_ORDER);
	close(other);
	/* Who looks may look, and not touch. */
	other = kit_dial();
	(void)kit_hello(other, 0, 0);
	expect_item(other, 0, "ledger", 1);
	ck_assert_uint_eq(status_of(other, PROTO_HOLDER_PUT, "ledger", file),
			  PROTO_HOLDER_STATUS_ORDER);
	close(other);
	ck_assert_uint_eq(kit_look().n_items, 1);
	/* The moment the first has closed, the next is served. */
	for (int i = 0; i < 50; i++) {
		int next = kit_dial();

		close(fd);
		ck_assert_uint_eq(kit_hello(next, PROTO_HOLDER_DAEMON, 20 * SECOND).n_items, 1);
		fd = next;
	}
	close(fd);
}
END_TEST

/* In a child of another user: the status that a HELLO gets, or 1000 + errno of connect(). */
static int as_nobody(void)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct proto_holder_frame f = { .version = PROTO_HOLDER_VERSION,
						.op = PROTO_HOLDER_HELLO,
						.seq = 1,
						.flags = PROTO_HOLDER_DAEMON },
					  reply;
		struct sockaddr_un addr = { .sun_family = AF_UNIX };
		uint8_t bytes[PROTO_HOLDER_LEN + 1];
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		ssize_t n;

		if (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
			_exit(250);
		memcpy(addr.sun_path, kit.socket, strlen(kit.socket));
		if (connect(fd, (struct sockaddr *)(void *)&addr, sizeof(addr)) != 0)
			_exit(100 + errno);
		proto_holder_encode(&f, bytes);
		(void)send(fd, bytes, PROTO_HOLDER_LEN, MSG_NOSIGNAL);
		n = recv(fd, bytes, sizeof(bytes), 0);
		if (n <= 0 || proto_holder_decode(bytes, (size_t)n, &reply) != 0)
			_exit(251);
		_exit((int)reply.status);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

START_TEST(another_user_is_refused)
{
	int file = kit_file(1, LEN);
	struct stat st;
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	ck_assert_int_eq(stat(kit.socket, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	if (geteuid() == 0) {
		ck_assert_int_eq(chmod(kit.dir, 0755), 0); /* the folder stops nobody */
		ck_assert_int_eq(as_nobody(), 100 + EACCES);
		ck_assert_int_eq(chmod(kit.socket, 0666), 0); /* nor does the socket's mode */
		ck_assert_int_eq(as_nobody(), PROTO_HOLDER_STATUS_FORBIDDEN);
	} else {
		fprintf(stderr, "not root: nobody here can be another user\n");
	}
	close(fd);
	ck_assert_uint_eq(kit_look().n_items, 1);
}
END_TEST

START_TEST(silent_visitors_keep_nobody_out)
{
	int file = kit_file(1, LEN), silent[40];
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	for (size_t i = 0; i < radix_array_size(silent); i++) {
		silent[i] = kit_dial();
		if (i % 10 == 9)
			ck_assert_uint_eq(kit_look().n_items, 1);
	}
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_DROP, "x", -1), PROTO_HOLDER_STATUS_OK);
	close(fd);
	fd = kit_dial();
	ck_assert_uint_eq(kit_hello(fd, PROTO_HOLDER_DAEMON, 20 * SECOND).n_items, 1);
	for (size_t i = 0; i < radix_array_size(silent); i++)
		close(silent[i]);
	close(fd);
}
END_TEST

/* ---- what it is to the system -------------------------------------------------------------- */

/* A field of /proc/PID/stat, counted as proc(5) does. */
static long stat_field(pid_t pid, int field)
{
	char path[64], text[1024] = "", *p;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_gt(fread(text, 1, sizeof(text) - 1, f), 0);
	fclose(f);
	p = strrchr(text, ')');
	for (int i = 2; i < field && p; i++)
		p = strchr(p + 1, ' ');
	ck_assert_ptr_nonnull(p);
	return strtol(p + 1, NULL, 10);
}

static void expect_comm(pid_t pid)
{
	char path[64], text[64] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	ck_assert_ptr_nonnull(fgets(text, sizeof(text), f));
	fclose(f);
	ck_assert_str_eq(text, "prefixd-holder\n");
}

START_TEST(it_belongs_to_nobody_and_has_nothing_else)
{
	static const int signals[] = {
		SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTSTP, SIGUSR1, SIGUSR2
	};
	char path[128], to[256];
	int leaked = open("/", O_RDONLY), high = fcntl(leaked, F_DUPFD, 200); /* over exec */
	pid_t pid;
	int fd = served(20 * SECOND, &pid);
	struct stat st;
	ssize_t n;

	ck_assert_int_ge(high, 200);
	ck_assert_int_ne(stat_field(pid, 4), getpid());
	ck_assert_int_ne(stat_field(pid, 5), getpgrp());
	ck_assert_int_ne(stat_field(pid, 6), getsid(0));
	ck_assert_int_ne(stat_field(pid, 6), pid); /* no leader: it cannot get a terminal */
	ck_assert_int_eq(stat_field(pid, 7), 0);
	expect_comm(pid);
	snprintf(path, sizeof(path), "/proc/%d/cwd", (int)pid);
	n = readlink(path, to, sizeof(to));
	ck_assert(n == 1 && to[0] == '/');
	/* 0, 1, 2, the lock, the socket, and this connection. */
	ck_assert_uint_eq(kit_n_fds(pid), 6);
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, i);
		n = readlink(path, to, sizeof(to) - 1);
		ck_assert_int_gt(n, 0);
		to[n] = '\0';
		ck_assert_str_eq(to, "/dev/null");
	}
	for (size_t i = 0; i < radix_array_size(signals); i++)
		ck_assert_int_eq(kill(pid, signals[i]), 0);
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_DROP, "x", -1), PROTO_HOLDER_STATUS_OK);
	ck_assert_int_eq(kill(pid, SIGTERM), 0); /* the machine goes down */
	kit_wait_gone(pid, 5000);
	ck_assert_int_ne(stat(kit.socket, &st), 0);
	close(fd);
	close(leaked);
	close(high);
}
END_TEST

/* ---- garbage ------------------------------------------------------------------------------- */

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* A frame that is right but for what `kind` does to it; returns its length. */
static size_t mangled(uint32_t kind, uint32_t *random, uint8_t bytes[512])
{
	struct proto_holder_frame f = { .version = PROTO_HOLDER_VERSION,
					.op = (uint16_t)(1 + next_random(random) % 4),
					.seq = next_random(random),
					.flags = next_random(random) % 8,
					.index = next_random(random),
					.name = "ledger" };

	proto_holder_encode(&f, bytes);
	switch (kind % 6) {
	case 0: /* any length, any bytes */
		for (size_t i = 0; i < 512; i++)
			bytes[i] = (uint8_t)next_random(random);
		return 1 + next_random(random) % 511;
	case 1: /* cut */
		return 1 + next_random(random) % (PROTO_HOLDER_LEN - 1);
	case 2: /* longer */
		return PROTO_HOLDER_LEN + 1 + next_random(random) % 100;
	case 3: /* a name without an end */
		memset(bytes + 80, 'x', PROTO_HOLDER_NAME_LEN);
		break;
	case 4: /* a name that goes on behind its end */
		bytes[80 + 7] = 'x';
		break;
	default: /* a bit somewhere */
		bytes[next_random(random) % PROTO_HOLDER_LEN] ^=
			(uint8_t)(1u << next_random(random) % 8);
		break;
	}
	return PROTO_HOLDER_LEN;
}

/* From visitors, so that no mangled frame happens to be a right one with consequences. */
START_TEST(garbage_costs_its_connection_only)
{
	uint8_t bytes[512], reply[PROTO_HOLDER_LEN + 1];
	int file = kit_file(1, LEN), fds[4] = { file, file, file, file };
	uint32_t random = 1;
	unsigned before;
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	before = kit_n_fds(pid);
	for (uint32_t i = 0; i < 3000; i++) {
		size_t len = mangled(i, &random, bytes);
		int other = kit_dial();

		if (i % 3 == 0)
			(void)kit_hello(other, 0, 0);
		(void)kit_exchange(other, bytes, len, fds, i % 5, reply);
		close(other);
	}
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_DROP, "x", -1), PROTO_HOLDER_STATUS_OK);
	ck_assert_uint_eq(kit_look().n_items, 1);
	kit_wait_n_fds(pid, before);
	expect_item(fd, 0, "ledger", 1);
	close(fd);
}
END_TEST

/* A daemon that errs is closed, and what it had put is there for the next one. */
START_TEST(a_daemon_that_errs_loses_its_connection)
{
	static const char *const names[] = { "", "a b", "a/b", "a:b", "a=b", "\x7f" };
	struct proto_holder_frame f = { .version = PROTO_HOLDER_VERSION,
					.op = PROTO_HOLDER_PUT,
					.name = "two" };
	int file = kit_file(1, LEN), two[2] = { file, file };
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	struct proto_holder_frame reply;
	unsigned before;
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	before = kit_n_fds(pid);
	/* This one is not even a mistake of the frame: nothing came along, or nothing could. */
	ck_assert_uint_eq(status_of(fd, PROTO_HOLDER_PUT, "one", -1),
			  PROTO_HOLDER_STATUS_NO_DESCRIPTOR);
	proto_holder_encode(&f, bytes);
	ck_assert_uint_eq(kit_exchange(fd, bytes, PROTO_HOLDER_LEN, two, 2, bytes),
			  PROTO_HOLDER_LEN);
	ck_assert_int_eq(proto_holder_decode(bytes, PROTO_HOLDER_LEN, &reply), 0);
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_BAD);
	ck_assert_int_eq(recv(fd, bytes, sizeof(bytes), 0), 0);
	close(fd);
	for (size_t i = 0; i < radix_array_size(names); i++) {
		fd = kit_dial();
		ck_assert_uint_eq(kit_hello(fd, PROTO_HOLDER_DAEMON, 20 * SECOND).n_items, 1);
		memset(f.name, 0, sizeof(f.name));
		memcpy(f.name, names[i], strlen(names[i]));
		proto_holder_encode(&f, bytes);
		ck_assert_uint_eq(kit_exchange(fd, bytes, PROTO_HOLDER_LEN, two, 1, bytes),
				  PROTO_HOLDER_LEN);
		ck_assert_int_eq(proto_holder_decode(bytes, PROTO_HOLDER_LEN, &reply), 0);
		ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_BAD);
		ck_assert_int_eq(recv(fd, bytes, sizeof(bytes), 0), 0);
		close(fd);
	}
	fd = kit_dial();
	ck_assert_uint_eq(kit_hello(fd, PROTO_HOLDER_DAEMON, 20 * SECOND).n_items, 1);
	kit_wait_n_fds(pid, before);
	expect_item(fd, 0, "ledger", 1);
	close(fd);
}
END_TEST

START_TEST(another_version_is_told_which_one_is_spoken)
{
	struct proto_holder_frame f = { .version = 2, .op = PROTO_HOLDER_HELLO, .seq = 77 }, reply;
	uint8_t bytes[PROTO_HOLDER_LEN + 1];
	pid_t pid;
	int fd = served(20 * SECOND, &pid), other = kit_dial();

	proto_holder_encode(&f, bytes);
	ck_assert_uint_eq(kit_exchange(other, bytes, PROTO_HOLDER_LEN, NULL, 0, bytes),
			  PROTO_HOLDER_LEN);
	ck_assert_int_eq(proto_holder_decode(bytes, PROTO_HOLDER_LEN, &reply), 0);
	ck_assert_uint_eq(reply.status, PROTO_HOLDER_STATUS_VERSION);
	ck_assert_uint_eq(reply.version, PROTO_HOLDER_VERSION);
	ck_assert_uint_eq(reply.seq, 77);
	ck_assert_int_eq(recv(other, bytes, sizeof(bytes), 0), 0);
	close(other);
	close(fd);
}
END_TEST

/* ---- F25: sockets of others, and of the dead ----------------------------------------------- */

START_TEST(a_stale_socket_is_taken_over)
{
	struct stat st;
	pid_t pid, second;
	int fd = served(20 * SECOND, &pid);

	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	kit_wait_gone(pid, 5000);
	close(fd);
	ck_assert_int_eq(stat(kit.socket, &st), 0); /* it had no time to remove it */
	fd = served(20 * SECOND, &second);
	ck_assert_int_ne(pid, second);
	close(fd);
}
END_TEST

START_TEST(a_second_holder_says_that_there_is_one)
{
	char says[256];
	int file = kit_file(1, LEN);
	pid_t pid;
	int fd = served(20 * SECOND, &pid);

	kit_put(fd, "ledger", file);
	ck_assert_int_eq(kit_holder_start(SECOND, says, sizeof(says)), 3);
	ck_assert_str_eq(says, "busy\n");
	/* Not even when its socket was removed under it: the lock counts. */
	ck_assert_int_eq(unlink(kit.socket), 0);
	ck_assert_int_eq(kit_holder_start(SECOND, says, sizeof(says)), 3);
	expect_item(fd, 0, "ledger", 1);
	close(fd);
	kill(pid, SIGTERM); /* nobody can dial it any more */
}
END_TEST

START_TEST(what_is_not_ours_is_left_alone)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char says[512];
	struct stat st;
	FILE *f = fopen(kit.socket, "we");

	ck_assert_ptr_nonnull(f);
	fclose(f);
	ck_assert_int_eq(kit_holder_start(SECOND, says, sizeof(says)), 1);
	ck_assert_msg(strstr(says, "not a socket"), "%s", says);
	ck_assert_int_eq(stat(kit.socket, &st), 0);
	ck_assert_int_eq(unlink(kit.socket), 0);
	/* Somebody's socket who holds no lock. */
	memcpy(addr.sun_path, kit.socket, strlen(kit.socket));
	ck_assert_int_eq(bind(other, (struct sockaddr *)(void *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(other, 1), 0);
	ck_assert_int_eq(kit_holder_start(SECOND, says, sizeof(says)), 1);
	ck_assert_msg(strstr(says, "somebody"), "%s", says);
	ck_assert_int_eq(stat(kit.socket, &st), 0);
	close(other);
}
END_TEST

/* It works in the root, wherever it was started. */
START_TEST(a_path_may_be_relative)
{
	const char *argv[] = { kit_holder_binary(), "--socket", "admin.sock.holder", NULL };
	char says[256];
	struct stat st;
	pid_t pid;

	ck_assert_int_eq(chdir(kit.dir), 0);
	ck_assert_int_eq(e2e_run(argv, says, sizeof(says)), 0);
	ck_assert_str_eq(says, "ready\n");
	pid = (pid_t)kit_look().holder_pid;
	ck_assert_int_eq(kill(pid, SIGTERM), 0);
	kit_wait_gone(pid, 5000);
	ck_assert_int_ne(stat(kit.socket, &st), 0);
	ck_assert_int_eq(stat("admin.sock.holder.lock", &st), 0);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	if (!kit_holder_binary()) {
		puts("1..0 # SKIP no prefixd-holder");
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "F25") == 0)
		return kit_main("F25",
				TESTS(a_stale_socket_is_taken_over,
				      a_second_holder_says_that_there_is_one,
				      what_is_not_ours_is_left_alone, a_path_may_be_relative));
	return kit_main(
		"holder",
		TESTS(what_was_put_is_there_for_the_next_one,
		      a_name_is_dropped_with_what_hangs_on_it, there_is_room_for_256,
		      it_leaves_when_no_daemon_comes_in_time,
		      a_daemon_in_time_starts_the_clock_anew, whoever_only_looks_does_not_hold_it,
		      with_nothing_to_keep_it_leaves_at_once, a_daemon_may_release_it,
		      others_may_release_it_when_no_daemon_is_there_or_by_force,
		      one_daemon_at_a_time, another_user_is_refused,
		      silent_visitors_keep_nobody_out, it_belongs_to_nobody_and_has_nothing_else,
		      garbage_costs_its_connection_only, a_daemon_that_errs_loses_its_connection,
		      another_version_is_told_which_one_is_spoken));
}
