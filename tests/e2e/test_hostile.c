/*
 * test_hostile.c - the real binary among bad neighbours: who asks and never reads, who takes every
 * descriptor, who leaves sockets behind, who stops reading the log.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/shell_world.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- small things ---------------------------------------------------------------------------- */

/* One value of the metrics' text, by its name and labels. */
static double metric(const char *series)
{
	struct raw r;
	char path[128], *text = malloc(1 << 20), *at;
	static const char get[] = "GET /metrics HTTP/1.0\r\n\r\n";
	size_t len = 0;
	ssize_t n;
	double v;

	ck_assert_ptr_nonnull(text);
	snprintf(path, sizeof(path), "%s/http.sock", d.dir);
	raw_connect(&r, path);
	ck_assert(raw_write(&r, get, sizeof(get) - 1));
	while ((n = recv(r.fd, text + len, (1u << 20) - 1 - len, 0)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	for (at = strstr(text, series); at && at[-1] != '\n'; at = strstr(at + 1, series))
		;
	ck_assert_msg(at, "no %s in: %.200s", series, text);
	v = strtod(at + strlen(series), NULL);
	free(text);
	raw_close(&r);
	return v;
}

#define CLOSED(reason)   metric("prefixd_connections_closed_total{reason=\"" reason "\"}")
#define REJECTED(reason) metric("prefixd_connections_rejected_total{reason=\"" reason "\"}")

static const char *http_flag(void)
{
	static char flag[128];

	snprintf(flag, sizeof(flag), "unix://%s/http.sock", d.dir);
	return flag;
}

static void expect_log(const char *says)
{
	char *log = e2e_daemon_log(&d);

	ck_assert_msg(strstr(log, says), "no '%s' in: %s", says, log);
	free(log);
}

/* The daemon has closed it, within ten seconds; what came before is thrown away. */
static void expect_closed(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint8_t bytes[65536];

	while (poll(&p, 1, 10000) == 1)
		if (recv(fd, bytes, sizeof(bytes), 0) <= 0)
			return;
	ck_abort_msg("the connection is still open");
}

/*
 * A shell script that becomes the daemon, so that limits and redirections can be put before it.
 * It finds the binary in $prefixd and its arguments in "$@".
 */
static void daemon_through(const char *script)
{
	static char real[512];
	char path[128];
	FILE *f;

	if (!real[0])
		snprintf(real, sizeof(real), "%s", getenv("PREFIXD_BIN"));
	snprintf(path, sizeof(path), "%s/prefixd.sh", d.dir);
	f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	fprintf(f, "#!/bin/sh\nprefixd=%s\n%s\n", real, script);
	ck_assert_int_eq(fchmod(fileno(f), 0700), 0);
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(setenv("PREFIXD_BIN", path, 1), 0);
}

/* ---- F10: asks, and never reads -------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* A process that sends requests for as long as the socket takes them, and reads nothing. */
static pid_t glutton(uint32_t ns)
{
	enum {
		PINGS = 1000
	};
	static uint8_t body[1 << 16], frames[PINGS * PROTO_HEADER_LEN + sizeof(body) + 64];
	pid_t pid = fork();
	struct raw r;
	size_t n;

	ck_assert_int_ge(pid, 0);
	if (pid != 0)
		return pid;
	raw_connect(&r, d.socket);
	raw_hello(&r);
	(void)raw_open(&r, "m", 64);
	n = match_body(body, sizeof(body), ns, 1, 900);
	for (;;) {
		size_t len = raw_frame(&r, frames, PROTO_OP_MATCH, body, n);

		for (int i = 0; i < PINGS; i++)
			len += raw_frame(&r, frames + len, PROTO_OP_PING, NULL, 0);
		if (!raw_write(&r, frames, len))
			_exit(0); /* the daemon closed it */
	}
}

START_TEST(who_never_reads_is_closed)
{
	enum {
		OTHERS = 5,
		CALLS = 200
	};
	static uint64_t us[OTHERS * CALLS];
	struct proto_open_rep o;
	struct raw others[OTHERS];
	unsigned long end;
	size_t n_us = 0;
	pid_t pid;
	int status;

	START("--pool-blocks", "4096", "--slow-reader-timeout", "2s", "--http", http_flag());
	for (int i = 0; i < OTHERS; i++) {
		raw_connect(&others[i], d.socket);
		raw_hello(&others[i]);
		o = raw_open(&others[i], "m", 64);
	}
	store(&others[0], o.ns, 1, 900);
	pid = glutton(o.ns);
	/* The others' replies go on, all the time. */
	for (int k = 0; k < CALLS; k++) {
		for (int i = 0; i < OTHERS; i++) {
			uint64_t begun = now_us();
			struct proto_match_rep rep = match(&others[i], o.ns, 1, 100);

			ck_assert_uint_eq(rep.n_device, 100);
			us[n_us++] = now_us() - begun;
			release(&others[i], rep.lease);
		}
		e2e_sleep_ms(2);
	}
	qsort(us, n_us, sizeof(us[0]), by_size);
	fprintf(stderr, "others' MATCH: median %llu us, 99 %% %llu us, longest %llu us\n",
		(unsigned long long)us[n_us / 2], (unsigned long long)us[n_us * 99 / 100],
		(unsigned long long)us[n_us - 1]);
	ck_assert_uint_lt(us[n_us * 99 / 100], 1000000); /* liveness, not speed */
	end = e2e_now_ms() + 15000;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		ck_assert_msg(e2e_now_ms() < end, "it is still connected");
		e2e_sleep_ms(20);
	}
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0); /* its send failed */
	ck_assert(CLOSED("slow_reader") == 1);
	expect_log("left too many replies unread for too long");
	for (int i = 0; i < OTHERS; i++) {
		ck_assert(raw_call(&others[i], PROTO_OP_PING, NULL, 0));
		raw_close(&others[i]);
	}
	expect_clean();
}
END_TEST

/* Who catches up in time stays, however often he falls behind. */
START_TEST(who_reads_late_stays)
{
	uint8_t frame[PROTO_HEADER_LEN];
	unsigned behind = 0;
	struct raw r;

	START("--pool-blocks", "64", "--slow-reader-timeout", "1s", "--http", http_flag());
	raw_connect(&r, d.socket);
	raw_hello(&r);
	for (int round = 0; round < 3; round++) {
		uint64_t first = r.seq + 1, sent = 0;

		/* Until the daemon reads no more: its replies stand, and so do our requests. */
		for (;;) {
			struct pollfd p = { .fd = r.fd, .events = POLLOUT };
			size_t len;

			if (poll(&p, 1, 100) != 1)
				break;
			len = raw_frame(&r, frame, PROTO_OP_PING, NULL, 0);
			if (send(r.fd, frame, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len) {
				r.seq--;
				break;
			}
			sent++;
		}
		behind += sent > 10000;
		e2e_sleep_ms(300);
		for (uint64_t i = 0; i < sent; i++) {
			ck_assert_msg(raw_read(&r), "closed at reply %llu", (unsigned long long)i);
			ck_assert_uint_eq(r.h.seq, first + i);
		}
	}
	ck_assert_uint_eq(behind, 3);
	ck_assert(CLOSED("slow_reader") == 0);
	raw_close(&r);
}
END_TEST

/* ---- F11: one byte at a time ----------------------------------------------------------------- */

START_TEST(byte_by_byte)
{
	static uint8_t bytes[4096];
	uint8_t body[2048];
	struct proto_match_rep rep;
	struct proto_open_rep o;
	struct raw r;
	const char *bad;
	size_t len;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	store(&r, o.ns, 1, 8);
	len = raw_frame(&r, bytes, PROTO_OP_PING, NULL, 0);
	len += raw_frame(&r, bytes + len, PROTO_OP_MATCH, body,
			 match_body(body, sizeof(body), o.ns, 1, 8));
	for (size_t i = 0; i < len; i++) {
		ck_assert(raw_write(&r, bytes + i, 1));
		if (i % 4 == 0)
			usleep(100); /* so that it is read alone */
	}
	ck_assert(raw_read(&r));
	ck_assert_uint_eq(r.h.op, PROTO_OP_PING);
	ck_assert(raw_read(&r));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_OK);
	ck_assert_int_eq(proto_match_rep_decode(r.body, r.h.len, &rep, &bad), 0);
	ck_assert_uint_eq(rep.n_device, 8);
	raw_close(&r);
	expect_clean();
}
END_TEST

/* ---- F25: sockets of others, and of the dead ------------------------------------------------- */

START_TEST(stale_sockets_are_taken_over)
{
	struct stat st;

	START("--pool-blocks", "8");
	(void)e2e_daemon_stop(&d, SIGKILL);
	ck_assert_int_eq(stat(d.socket, &st), 0);
	ck_assert_int_eq(stat(d.admin, &st), 0);
	START("--pool-blocks", "8");
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 0);
}
END_TEST

START_TEST(a_second_instance_says_why_it_ends)
{
	struct e2e_daemon second;
	struct raw r;
	char *log;
	int status;

	START("--pool-blocks", "8");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	second = d;
	second.pid = 0;
	snprintf(second.log, sizeof(second.log), "%s/log2", d.dir);
	for (int i = 0; i < 2; i++) { /* once with the same sockets, once with the same first one */
		char other[128];

		snprintf(other, sizeof(other), "%s/other.sock", d.dir);
		if (i == 1)
			snprintf(second.admin, sizeof(second.admin), "%.95s", other);
		ck_assert_int_eq(e2e_daemon_spawn(&second, NULL), 0);
		ck_assert_int_eq(waitpid(second.pid, &status, 0), second.pid);
		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		log = e2e_daemon_log(&second);
		ck_assert_msg(strstr(log, "another prefixd serves") && strstr(log, ".lock"), "%s",
			      log);
		free(log);
		(void)unlink(second.log);
	}
	ck_assert(raw_call(&r, PROTO_OP_PING, NULL, 0)); /* the first one has not noticed */
	raw_close(&r);
}
END_TEST

/* Directories that others may change are refused, with the command that mends it. */
START_TEST(open_directories_are_refused)
{
	char sub[128], below[160], expect[320], path[224];
	char *log;

	snprintf(sub, sizeof(sub), "%s/open", d.dir);
	snprintf(below, sizeof(below), "%s/own", sub);
	ck_assert_int_eq(mkdir(sub, 0700), 0);
	ck_assert_int_eq(mkdir(below, 0700), 0);
	snprintf(path, sizeof(path), "%s/p.sock", below);
	ck_assert_int_eq(chmod(sub, 0777), 0); /* others can put another `own` in its place */
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--socket", path, NULL }), 1);
	snprintf(expect, sizeof(expect), "chmod o-w %s,", sub);
	log = e2e_daemon_log(&d);
	ck_assert_msg(strstr(log, expect), "no '%s' in: %s", expect, log);
	free(log);
	ck_assert_int_eq(chmod(sub, 0755), 0);
	{
		const char *const args[] = { "--socket", path, NULL };
		struct e2e_daemon there = d;

		snprintf(there.socket, sizeof(there.socket), "%.95s", path);
		ck_assert_int_eq(e2e_daemon_start(&there, args), 0);
		ck_assert(WIFEXITED(e2e_daemon_stop(&there, SIGTERM)));
	}
	snprintf(path, sizeof(path), "%s/p.sock.lock", below);
	(void)unlink(path);
	ck_assert_int_eq(rmdir(below), 0);
	ck_assert_int_eq(rmdir(sub), 0);
}
END_TEST

/* ---- F26: no descriptors --------------------------------------------------------------------- */

static double cpu_seconds(void)
{
	return metric("process_cpu_seconds_total ");
}

/* 20 descriptors, 100 connects: told by a close, no busy loop, and served when there is room. */
START_TEST(descriptors_run_out)
{
	struct raw many[100], r;
	unsigned n_open = 0;
	struct rusage before, after;
	double seconds;
	uint64_t begun, wall;
	json_t *j;
	int status;

	/* What Check has open is not the daemon's. */
	daemon_through("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-\nulimit -n 20\n"
		       "exec $prefixd \"$@\"");
	ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &before), 0);
	START("--pool-blocks", "8");
	begun = now_us();
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_connect(&many[i], d.socket);
	e2e_sleep_ms(3000);
	for (size_t i = 0; i < radix_array_size(many); i++) {
		uint8_t byte;

		n_open += recv(many[i].fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
	}
	ck_assert_uint_lt(n_open, 10); /* the others were told */
	/* An operator comes in all the same. */
	j = admin("{\"op\":\"ping\"}");
	json_decref(j);
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_close(&many[i]);
	e2e_sleep_ms(500);
	raw_connect(&r, d.socket);
	raw_hello(&r);
	raw_close(&r);
	expect_clean();
	expect_log("Too many open files");
	wall = now_us() - begun;
	status = e2e_daemon_stop(&d, SIGTERM);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &after), 0);
	seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
		  (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
		  (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6 +
		  (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
	fprintf(stderr, "%.3f s of processor time in %.3f s, %u of 100 stayed\n", seconds,
		(double)wall / 1e6, n_open);
	ck_assert_msg(seconds < 0.1 * (double)wall / 1e6, "%.3f s of processor time in %.3f s",
		      seconds, (double)wall / 1e6);
}
END_TEST

/* With more descriptors: workers get all but the last ones, and the counters say what happened. */
START_TEST(the_last_descriptors_are_for_operators)
{
	struct raw many[100];
	json_t *j;

	daemon_through("ulimit -n 80\nexec $prefixd \"$@\"");
	START("--pool-blocks", "8", "--http", http_flag());
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_connect(&many[i], d.socket);
	e2e_sleep_ms(1500);
	for (int i = 0; i < 3; i++) {
		j = admin("{\"op\":\"status\"}");
		ck_assert(json_is_true(json_object_get(j, "ok")));
		json_decref(j);
	}
	ck_assert(REJECTED("no_descriptor") > 50);
	ck_assert(cpu_seconds() < 1);
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_close(&many[i]);
	expect_clean();
}
END_TEST

/* ---- F32: the log ---------------------------------------------------------------------------- */

/* Much to say, and the daemon goes on answering. */
static void talkative(void)
{
	static const char words[] = "this is no frame of any kind, and long enough to be one";

	for (int i = 0; i < 200; i++) {
		struct raw r;

		ck_assert_int_eq(kill(d.pid, SIGUSR1), 0);
		raw_connect(&r, d.socket);
		ck_assert(raw_write(&r, words, sizeof(words) - 1));
		expect_closed(r.fd);
		raw_close(&r);
	}
	expect_clean();
}

START_TEST(a_reader_that_goes_after_one_line)
{
	daemon_through("fifo=${0%/*}/fifo; mkfifo $fifo\n"
		       "head -1 <$fifo >${0%/*}/first &\n"
		       "exec $prefixd --log-level debug \"$@\" >$fifo 2>&1");
	START("--pool-blocks", "8");
	talkative();
	{
		struct e2e_daemon first = d;
		char *text;

		snprintf(first.log, sizeof(first.log), "%s/first", d.dir);
		text = e2e_daemon_log(&first);
		ck_assert_msg(strchr(text, '\n') && strchr(text, '\n')[1] == '\0', "'%s'", text);
		free(text);
	}
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* Nobody reads, and the pipe is full: no line holds the daemon up. */
START_TEST(a_reader_that_stops)
{
	char path[128], *text = malloc(1 << 20);
	ssize_t n, len = 0;
	int fd;

	ck_assert_ptr_nonnull(text);
	snprintf(path, sizeof(path), "%s/fifo", d.dir);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK); /* keeps it open, reads nothing yet */
	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(fcntl(fd, F_SETPIPE_SZ, 4096), 0);
	memset(text, '.', 4096);
	ck_assert_int_eq(write(fd, text, 4096), 4096); /* full before it begins */
	daemon_through("exec $prefixd --log-level debug \"$@\" >${0%/*}/fifo 2>&1");
	START("--pool-blocks", "8");
	talkative();
	while ((n = read(fd, text + len, (size_t)((1 << 20) - 1 - len))) > 0)
		len += n;
	ck_assert_int_eq(len, 4096); /* not one line went in */
	/* Now there is room for the next line, whatever it is. */
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	n = read(fd, text, 4096);
	ck_assert_int_gt(n, 0);
	text[n] = '\0';
	ck_assert_msg(strstr(text, "lines of the log could not be written"), "%.800s", text);
	close(fd);
	free(text);
}
END_TEST

/* No room where the log goes. */
START_TEST(a_full_disk)
{
	daemon_through("exec $prefixd --log-level debug \"$@\" >/dev/full 2>&1");
	START("--pool-blocks", "8");
	talkative();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

START_TEST(no_log_at_all)
{
	char path[64], link[64];
	ssize_t n;

	daemon_through("exec $prefixd --log-level debug \"$@\" <&- >&- 2>&-");
	START("--pool-blocks", "8");
	talkative();
	for (int i = 0; i <= 2; i++) { /* no socket of ours has their numbers */
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)d.pid, i);
		n = readlink(path, link, sizeof(link) - 1);
		ck_assert_int_gt(n, 0);
		link[n] = '\0';
		ck_assert_str_eq(link, "/dev/null");
	}
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* The same on a real file system of 16 KiB, which needs a mount namespace of our own. */
START_TEST(a_full_tmpfs)
{
	char dir[128], path[160];
	static const char zeros[4096];
	ssize_t n, size = 0;
	struct stat st;
	int fd;

	snprintf(dir, sizeof(dir), "%s/tiny", d.dir);
	snprintf(path, sizeof(path), "%s/log", dir);
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("tmpfs", dir, "tmpfs", 0, "size=16k,mode=0700") != 0) {
		fprintf(stderr, "no mount namespace here: %s; /dev/full stands for it\n",
			strerror(errno));
		ck_assert_int_eq(rmdir(dir), 0);
		return;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	while ((n = write(fd, zeros, sizeof(zeros))) > 0)
		size += n;
	ck_assert_int_eq(errno, ENOSPC);
	close(fd);
	daemon_through("exec $prefixd --log-level debug \"$@\" >>${0%/*}/tiny/log 2>&1");
	START("--pool-blocks", "8");
	talkative();
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_size, size); /* not one line went in */
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	ck_assert_int_eq(umount(dir), 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* ---- reasons --------------------------------------------------------------------------------- */

/* Each way to lose a connection, and the reason under which it is counted. */
START_TEST(reasons_are_counted)
{
	static const char get[] = "GET / HTTP/1.1\r\nHost: what.is.this.port\r\n\r\n......";
	struct proto_hello_req m = { .version_min = 9, .version_max = 9 };
	uint8_t body[256];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	struct raw r;
	pid_t pid;

	START("--pool-blocks", "8", "--hello-timeout", "200ms", "--max-sessions-per-process", "2",
	      "--http", http_flag());
	raw_connect(&r, d.socket);
	raw_hello(&r);
	raw_close(&r);
	raw_connect(&r, d.socket); /* silent */
	expect_closed(r.fd);
	raw_close(&r);
	raw_connect(&r, d.socket); /* talks, and says nothing: the time runs until a whole HELLO */
	for (int i = 0; i < 100 && send(r.fd, "P", 1, MSG_NOSIGNAL) == 1; i++)
		e2e_sleep_ms(10);
	expect_closed(r.fd);
	raw_close(&r);
	raw_connect(&r, d.socket);
	ck_assert(raw_write(&r, get, sizeof(get) - 1));
	expect_closed(r.fd);
	raw_close(&r);
	raw_connect(&r, d.socket);
	proto_hello_req_encode(&w, &m);
	ck_assert(raw_call(&r, PROTO_OP_HELLO, body, w.len));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_VERSION);
	expect_closed(r.fd);
	raw_close(&r);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		raw_connect(&r, d.socket);
		raw_hello(&r);
		if (fork() == 0) { /* the socket outlives its process */
			e2e_sleep_ms(1000);
			_exit(0);
		}
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	{
		struct raw a, b;

		raw_connect(&a, d.socket);
		raw_hello(&a);
		raw_connect(&b, d.socket);
		raw_hello(&b);
		raw_connect(&r, d.socket);
		m = (struct proto_hello_req){ .version_min = PROTO_VERSION,
					      .version_max = PROTO_VERSION,
					      .self_test = proto_self_test(PROTO_VERSION) };
		w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
		proto_hello_req_encode(&w, &m);
		ck_assert(raw_call(&r, PROTO_OP_HELLO, body, w.len));
		ck_assert_uint_eq(r.h.status, PROTO_STATUS_LIMIT);
		expect_closed(r.fd);
		raw_close(&r);
		raw_close(&a);
		raw_close(&b);
	}
	e2e_sleep_ms(200);
	ck_assert(CLOSED("peer") >= 3);
	ck_assert(CLOSED("hello_timeout") == 2);
	ck_assert(CLOSED("bad_frame") == 1);
	ck_assert(CLOSED("refused") == 2);
	ck_assert(CLOSED("process_gone") == 1);
	ck_assert(CLOSED("slow_reader") + CLOSED("output_limit") + CLOSED("no_memory") == 0);
	ck_assert(REJECTED("version") == 1);
	ck_assert(REJECTED("max_sessions_per_process") == 1);
	ck_assert(REJECTED("max_sessions") == 0);
	expect_log("it has not said HELLO in time");
	expect_log("it sent a wrong header");
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "F10", TESTS(who_never_reads_is_closed, who_reads_late_stays) },
		{ "F11", TESTS(byte_by_byte) },
		{ "F25", TESTS(stale_sockets_are_taken_over, a_second_instance_says_why_it_ends,
			       open_directories_are_refused) },
		{ "F26", TESTS(descriptors_run_out, the_last_descriptors_are_for_operators) },
		{ "F32", TESTS(a_reader_that_goes_after_one_line, a_reader_that_stops, a_full_disk,
			       no_log_at_all, a_full_tmpfs) },
		{ "reasons", TESTS(reasons_are_counted) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
