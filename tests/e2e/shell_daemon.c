/*
 * shell_daemon.c - the real binary, spoken to in raw frames: sockets, descriptors, processes,
 * signals, admin requests, and everything rude that a peer may do.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/shell_world.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- open: descriptors and shared memory ----------------------------------------------------- */

START_TEST(two_clients_share_one_memory)
{
	struct proto_open_rep oa, ob;
	struct raw a, b;
	uint8_t *ma, *mb;
	uint64_t *gen;

	START("--pool-blocks", "64");
	raw_connect(&a, d.socket);
	raw_hello(&a);
	oa = raw_open(&a, "m", 4096);
	ck_assert_uint_eq(oa.n_slots, 64);
	ck_assert_uint_eq(oa.n_pool_fds, 2);
	ck_assert_uint_eq(a.n_fds, 2);
	ma = mmap(NULL, oa.pool_len, PROT_READ | PROT_WRITE, MAP_SHARED, a.fds[0], 0);
	ck_assert_ptr_ne(ma, MAP_FAILED);
	gen = mmap(NULL, oa.n_slots * sizeof(*gen), PROT_READ, MAP_SHARED, a.fds[1], 0);
	ck_assert_ptr_ne(gen, MAP_FAILED);
	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, a.fds[1], 0),
			 MAP_FAILED);

	raw_connect(&b, d.socket);
	raw_hello(&b);
	ob = raw_open(&b, "m", 4096);
	ck_assert_uint_eq(ob.ns, oa.ns);
	ck_assert_uint_eq(b.n_fds, 2);
	mb = mmap(NULL, ob.pool_len, PROT_READ | PROT_WRITE, MAP_SHARED, b.fds[0], 0);
	ck_assert_ptr_ne(mb, MAP_FAILED);
	memset(ma + 5 * oa.slot_stride, 0x42, 4096);
	ck_assert_uint_eq(mb[5 * ob.slot_stride + 4095], 0x42);

	store(&a, oa.ns, 1000, 8);
	{
		struct proto_match_rep rep = match(&b, ob.ns, 1000, 8);
		struct radix_run run = proto_run_at(rep.runs, 0);

		ck_assert_uint_eq(rep.n_device, 8);
		ck_assert_uint_gt(gen[run.start], 0); /* the slots have been handed out */
		release(&b, rep.lease);
	}
	expect_clean();
	raw_close(&a);
	raw_close(&b);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* ---- processes ------------------------------------------------------------------------------- */

/* A worker dies while its forked child keeps the socket open: its lease goes all the same. */
START_TEST(a_child_with_the_socket_keeps_nobody_alive)
{
	int ready[2], hold[2];
	pid_t worker;
	char c;

	START("--pool-blocks", "64");
	ck_assert_int_eq(pipe(ready), 0);
	ck_assert_int_eq(pipe(hold), 0);
	worker = fork();
	ck_assert_int_ge(worker, 0);
	if (worker == 0) {
		struct proto_open_rep o;
		struct raw r;

		raw_connect(&r, d.socket);
		raw_hello(&r);
		o = raw_open(&r, "m", 4096);
		(void)match(&r, o.ns, 1, 4);
		if (fork() == 0) {
			close(hold[1]);
			(void)!read(hold[0], &c, 1); /* until the test is over */
			_exit(0);
		}
		(void)!write(ready[1], "x", 1);
		pause();
		_exit(0);
	}
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "leases"), 1);
	ck_assert_int_eq(kill(worker, SIGKILL), 0);
	ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
	wait_stat("leases", 0);
	expect_clean();
	close(hold[1]);
}
END_TEST

/* The socket ends, the process lives: an orphan, until the process ends too. */
START_TEST(orphan_until_the_process_ends)
{
	int go[2], done[2];
	pid_t worker;
	json_t *j, *pin;
	char c;

	START("--pool-blocks", "64");
	ck_assert_int_eq(pipe(go), 0);
	ck_assert_int_eq(pipe(done), 0);
	worker = fork();
	ck_assert_int_ge(worker, 0);
	if (worker == 0) {
		struct proto_open_rep o;
		struct raw r;

		raw_connect(&r, d.socket);
		raw_hello(&r);
		o = raw_open(&r, "m", 4096);
		(void)match(&r, o.ns, 1, 4);
		raw_close(&r);
		(void)!write(done[1], "x", 1);
		(void)!read(go[0], &c, 1);
		_exit(0);
	}
	ck_assert_int_eq(read(done[0], &c, 1), 1);
	for (int i = 0; i < 400; i++) { /* until the daemon has seen the end of the socket */
		j = admin("{\"op\":\"pins\"}");
		pin = json_array_get(json_object_get(j, "pins"), 0);
		ck_assert(json_is_object(pin));
		if (json_is_true(json_object_get(pin, "orphan")))
			break;
		json_decref(j);
		j = NULL;
		e2e_sleep_ms(5);
	}
	ck_assert_ptr_nonnull(j);
	ck_assert_int_eq(number(pin, "pid"), worker);
	json_decref(j);
	ck_assert_int_eq(write(go[1], "x", 1), 1);
	ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
	wait_stat("leases", 0);
	wait_stat("sessions", 1); /* the one that asks */
	expect_clean();
}
END_TEST

/* A worker that takes a lease, waits for a word, then says much and RELEASE last, and is gone. */
static void speak_and_exit(int ready, int go)
{
	enum {
		PINGS = 3 * 64
	}; /* more than a turn takes */
	static uint8_t frames[(PINGS + 2) * PROTO_HEADER_LEN + 64];
	struct proto_release_req m = { 0 };
	struct proto_open_rep o;
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	struct raw r;
	size_t len = 0;
	char c;

	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	m.lease = match(&r, o.ns, 1, 4).lease;
	proto_release_req_encode(&w, &m);
	for (int i = 0; i < PINGS; i++)
		len += raw_frame(&r, frames + len, PROTO_OP_PING, NULL, 0);
	len += raw_frame(&r, frames + len, PROTO_OP_RELEASE, body, w.len);
	(void)!write(ready, "x", 1);
	(void)!read(go, &c, 1);
	(void)raw_write(&r, frames, len);
	_exit(0);
}

/* What a process said before it died counts, however late the daemon hears it: a RELEASE is a
 * release and not a death. */
START_TEST(last_words_count)
{
	const json_t *counters;
	json_t *j;

	START("--pool-blocks", "64");
	for (int i = 0; i < 5; i++) {
		int ready[2], go[2];
		pid_t worker;
		char c;

		ck_assert_int_eq(pipe(ready), 0);
		ck_assert_int_eq(pipe(go), 0);
		worker = fork();
		ck_assert_int_ge(worker, 0);
		if (worker == 0)
			speak_and_exit(ready[1], go[0]);
		ck_assert_int_eq(read(ready[0], &c, 1), 1);
		ck_assert_int_eq(kill(d.pid, SIGSTOP), 0);
		ck_assert_int_eq(write(go[1], "x", 1), 1);
		ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
		ck_assert_int_eq(kill(d.pid, SIGCONT), 0);
		close(ready[0]);
		close(ready[1]);
		close(go[0]);
		close(go[1]);
	}
	wait_stat("leases", 0);
	j = admin("{\"op\":\"status\"}");
	counters = json_object_get(j, "counters");
	ck_assert_int_eq(number(counters, "leases_released"), 5);
	ck_assert_int_eq(number(counters, "leases_died"), 0);
	json_decref(j);
}
END_TEST

/* ---- one daemon per socket ------------------------------------------------------------------- */

START_TEST(second_daemon_refuses)
{
	struct e2e_daemon second;
	char *log;

	START("--pool-blocks", "8");
	second = d; /* the same paths */
	second.pid = 0;
	snprintf(second.log, sizeof(second.log), "%s/log2", d.dir);
	ck_assert_int_eq(e2e_daemon_spawn(&second, NULL), 0);
	{
		int status;

		ck_assert_int_eq(waitpid(second.pid, &status, 0), second.pid);
		ck_assert(WIFEXITED(status));
		ck_assert_int_eq(WEXITSTATUS(status), 1);
	}
	log = e2e_daemon_log(&second);
	ck_assert_msg(strstr(log, "another prefixd serves"), "%s", log);
	free(log);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "n_slots"),
			 0); /* the first is unharmed */
}
END_TEST

START_TEST(stale_socket_is_replaced)
{
	struct raw r;
	struct stat st;

	START("--pool-blocks", "8");
	(void)e2e_daemon_stop(&d, SIGKILL);
	ck_assert_int_eq(stat(d.socket, &st), 0); /* left behind */
	START("--pool-blocks", "8", "--socket-mode", "0600");
	ck_assert_int_eq(stat(d.socket, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(stat(d.admin, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	raw_connect(&r, d.socket);
	raw_hello(&r);
	raw_close(&r);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	ck_assert_int_ne(stat(d.socket, &st), 0); /* a good end leaves no socket */
	ck_assert_int_ne(stat(d.admin, &st), 0);
}
END_TEST

START_TEST(other_files_are_not_removed)
{
	struct stat st;
	int fd = open(d.socket, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	char *log;

	ck_assert_int_ge(fd, 0);
	close(fd);
	ck_assert_int_eq(e2e_daemon_start(&d, NULL), 1);
	ck_assert_int_eq(stat(d.socket, &st), 0);
	log = e2e_daemon_log(&d);
	ck_assert_msg(strstr(log, "is not a socket; not removing it"), "%s", log);
	free(log);
}
END_TEST

START_TEST(exit_codes)
{
	char *log;

	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--pool-block", "8", NULL }),
			 2);
	/* No driver, or no device: one sentence, which says what was found. */
	ck_assert_int_eq(setenv("LOOKALIKE", "devices=0", 1), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--device", "cuda", NULL }),
			 1);
	log = e2e_daemon_log(&d);
	ck_assert_msg(strstr(log, "libcuda") || strstr(log, "device"), "%s", log);
	ck_assert_int_eq(unsetenv("LOOKALIKE"), 0);
	free(log);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--redis", "unix:x", NULL }),
			 2);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--naming-key-file",
								     "/nonexistent/k", NULL }),
			 1);
}
END_TEST

/* A mistyped variable is no error, since it may be a neighbour's; but who checks is told. */
START_TEST(check_config_names_what_it_does_not_know)
{
	const char *argv[] = { getenv("PREFIXD_BIN"), "--check-config", NULL };
	char out[1024] = "";

	ck_assert_int_eq(setenv("PREFIXD_POOL_BLOKS", "5", 1), 0);
	ck_assert_int_eq(e2e_run(argv, out, sizeof(out)), 0);
	ck_assert_msg(strstr(out, "PREFIXD_POOL_BLOKS") && strstr(out, "is valid"), "%s", out);
}
END_TEST

/* ---- signals --------------------------------------------------------------------------------- */

START_TEST(term_waits_for_leases)
{
	struct proto_open_rep o;
	struct proto_match_rep rep;
	unsigned long begun;
	uint64_t lease;
	struct raw r, late;
	int status;

	START("--pool-blocks", "64", "--drain-timeout", "20s");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	rep = match(&r, o.ns, 1, 4);
	lease = rep.lease;
	ck_assert_int_eq(kill(d.pid, SIGTERM), 0);
	for (begun = e2e_now_ms(); access(d.socket, F_OK) == 0; e2e_sleep_ms(1))
		ck_assert_uint_lt(e2e_now_ms() - begun, 5000);
	raw_connect(&late, d.admin); /* operators can still look */
	ck_assert_ptr_nonnull(strstr(raw_admin(&late, "{\"op\":\"ping\"}"), "\"draining\":true"));
	raw_close(&late);
	release(&r, lease);
	ck_assert_int_eq(waitpid(d.pid, &status, 0), d.pid);
	d.pid = 0;
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_assert_uint_lt(e2e_now_ms() - begun, 10000); /* not the whole timeout */
	raw_close(&r);
}
END_TEST

START_TEST(drain_ends_at_its_timeout)
{
	struct proto_open_rep o;
	struct raw r;
	int status;

	START("--pool-blocks", "64", "--drain-timeout", "100ms");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	(void)match(&r, o.ns, 1, 4);
	status = e2e_daemon_stop(&d, SIGTERM);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	raw_close(&r);
}
END_TEST

START_TEST(second_signal_is_immediate)
{
	struct proto_open_rep o;
	struct raw r;
	int status;

	START("--pool-blocks", "64", "--drain-timeout", "1h");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	(void)match(&r, o.ns, 1, 4);
	ck_assert_int_eq(kill(d.pid, SIGINT), 0);
	while (access(d.socket, F_OK) == 0)
		e2e_sleep_ms(1);
	status = e2e_daemon_stop(&d, SIGTERM);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 3);
	raw_close(&r);
}
END_TEST

static void config_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

/* Sends SIGHUP and waits for the line that it gives. */
static void reload(const char *expect)
{
	unsigned long end = e2e_now_ms() + 5000;

	ck_assert_int_eq(kill(d.pid, SIGHUP), 0);
	for (;; e2e_sleep_ms(5)) {
		char *log = e2e_daemon_log(&d);
		bool found = strstr(log, expect) != NULL;

		ck_assert_msg(found || e2e_now_ms() < end, "no '%s' in: %s", expect, log);
		free(log);
		if (found)
			return;
	}
}

START_TEST(hangup_reloads_what_may_change)
{
	char path[128], request[256];
	json_t *j;

	snprintf(path, sizeof(path), "%s/prefixd.conf", d.dir);
	config_write(path, "[limits]\nmax-leases = 10\n[tenants]\nred = any\nblue = any\n");
	START("--config", path, "--pool-blocks", "8");
	config_write(path, "[limits]\nmax-leases = ten\n");
	reload("reload refused, the old settings stay: ");
	config_write(path, "[limits]\nmax-leases = 20\nmax-frame = 2MiB\n[tenants]\nblue = any\n"
			   "green = any\n");
	reload("reloaded: changed: max-leases, tenant; needs a restart: max-frame");
	snprintf(request, sizeof(request), "{\"op\":\"config\"}");
	j = admin(request);
	{
		const json_t *t = json_object_get(j, "tenants");
		static const char *const names[] = { "red", "blue", "green" };
		static const char *const who[] = { "", "any", "any" }; /* red keeps its id alone */

		ck_assert_uint_eq(json_array_size(t), 3);
		for (size_t i = 0; i < 3; i++) {
			const json_t *one = json_array_get(t, i);

			ck_assert_str_eq(json_string_value(json_object_get(one, "name")), names[i]);
			ck_assert_str_eq(json_string_value(json_object_get(one, "who")), who[i]);
			ck_assert_int_eq(number(one, "id"), (json_int_t)i);
		}
	}
	json_decref(j);
	ck_assert_int_eq(kill(d.pid, SIGUSR1), 0);
	reload("counters: ");
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

START_TEST(silence_is_ended)
{
	struct raw r;
	uint8_t byte;

	START("--hello-timeout", "50ms", "--pool-blocks", "8");
	raw_connect(&r, d.socket);
	ck_assert_int_eq(recv(r.fd, &byte, 1, 0), 0);
	raw_close(&r);
	raw_connect(&r, d.socket); /* whoever has spoken may be silent for ever */
	raw_hello(&r);
	e2e_sleep_ms(150);
	ck_assert(raw_call(&r, PROTO_OP_PING, NULL, 0));
	raw_close(&r);
}
END_TEST

/* However many workers connect, an operator comes in and is answered in full. */
START_TEST(full_house_has_room_for_operators)
{
	struct raw many[100];
	uint8_t byte;
	json_t *j;

	START("--pool-blocks", "8", "--max-sessions", "4");
	raw_connect(&many[0], d.socket);
	raw_hello(&many[0]);
	(void)raw_open(&many[0], "m", 4096);
	for (size_t i = 1; i < radix_array_size(many); i++)
		raw_connect(&many[i], d.socket);
	e2e_sleep_ms(300); /* all are accepted, the last ones closed at once */
	ck_assert_int_eq(recv(many[99].fd, &byte, 1, 0), 0);
	j = admin("{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1]}");
	ck_assert(json_is_true(json_object_get(j, "ok")));
	json_decref(j);
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_close(&many[i]);
	expect_clean();
}
END_TEST

/* No descriptors left: some peers are closed, the daemon lives, and later ones are served. */
START_TEST(out_of_descriptors)
{
	struct rlimit rl = { .rlim_cur = 40, .rlim_max = 40 };
	struct raw many[64], r;

	START("--pool-blocks", "8");
	ck_assert_int_eq(prlimit(d.pid, RLIMIT_NOFILE, &rl, NULL), 0);
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_connect(&many[i], d.socket);
	e2e_sleep_ms(300);
	for (size_t i = 0; i < radix_array_size(many); i++)
		raw_close(&many[i]);
	e2e_sleep_ms(300);
	raw_connect(&r, d.socket);
	raw_hello(&r);
	raw_close(&r);
	expect_clean();
}
END_TEST

/* ---- admin ----------------------------------------------------------------------------------- */

static const struct {
	const char *request, *says;
} admin_refusals[] = {
	{ "{\"op\":\"pong\"}", "there is no such operation; known: ping status" },
	{ "{}", "there is no such operation" },
	{ "{\"op\":5}", "there is no such operation" },
	{ "{\"op\":\"ping\",\"x\":1}", "there is no argument x; known: none" },
	{ "{\"op\":\"evict\"}", "say how many blocks" },
	{ "{\"op\":\"evict\",\"n\":-1}", "n must be a number from 0" },
	{ "{\"op\":\"evict\",\"n\":1,\"group\":99}", "there is no group 99" },
	{ "{\"op\":\"flush\"}", "name one namespace" },
	{ "{\"op\":\"flush\",\"all\":false}", "give all: true alone" },
	{ "{\"op\":\"flush\",\"ns\":99}", "there is no such namespace" },
	{ "{\"op\":\"flush\",\"model\":\"zz\"}", "there is no such namespace" },
	{ "{\"op\":\"tree\",\"ns\":99}", "there is no such namespace" },
	{ "{\"op\":\"tree\",\"model\":\"zz\"}", "there is no such namespace" },
	{ "{\"op\":\"tree\",\"group\":99}", "there is no group 99" },
	{ "{\"op\":\"pins\",\"older_s\":-1}", "older_s must be a number of seconds" },
	{ "{\"op\":\"pins\",\"sort\":\"name\"}", "sort must be age or size" },
	{ "{\"op\":\"pins\",\"sort\":7}", "sort must be age or size" },
	{ "{\"op\":\"log-level\",\"level\":\"loud\"}", "level must be error, warn, info or debug" },
	{ "{\"op\":\"explain\",\"model\":\"m\"}", "give an array of them" },
	{ "{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1,-2]}", "token 1 is not a number" },
	{ "{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1],\"tenant\":\"zz\"}",
	  "there is no such tenant" },
	{ "{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1],\"salt_hex\":\"abc\"}",
	  "give either salt" },
};

/* HELLO names program and version, as the protocol's page has it. */
START_TEST(hello_names_the_daemon)
{
	struct proto_hello_rep rep;
	const char *bad;
	struct raw r;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	ck_assert_int_eq(proto_hello_rep_decode(r.body, r.h.len, &rep, &bad), 0);
	ck_assert_uint_gt(rep.daemon.n, 8);
	ck_assert_mem_eq(rep.daemon.p, "prefixd ", 8);
	raw_close(&r);
}
END_TEST

START_TEST(admin_refuses_and_says_why)
{
	struct raw r;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	(void)raw_open(&r, "m", 4096);
	for (size_t i = 0; i < radix_array_size(admin_refusals); i++) {
		json_t *j = admin(admin_refusals[i].request);
		const char *error = json_string_value(json_object_get(j, "error"));

		ck_assert(json_is_false(json_object_get(j, "ok")));
		ck_assert_msg(error && strstr(error, admin_refusals[i].says), "%s: %s",
			      admin_refusals[i].request, error);
		json_decref(j);
	}
	raw_close(&r);
}
END_TEST

START_TEST(admin_shows_and_does)
{
	struct proto_open_rep o;
	uint64_t lease;
	struct raw r;
	json_t *j;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	store(&r, o.ns, 100, 10);
	lease = match(&r, o.ns, 100, 10).lease;

	j = admin("{\"op\":\"status\"}");
	ck_assert_int_eq(number(json_object_get(j, "slots"), "ready"), 10);
	ck_assert_int_eq(number(json_object_get(j, "slots"), "free"), 54);
	ck_assert_int_eq(number(j, "n_slots"), 64);
	ck_assert_int_eq(number(j, "leases"), 1);
	ck_assert_int_eq(number(json_object_get(j, "counters"), "committed_blocks"), 10);
	ck_assert_str_eq(json_string_value(json_object_get(j, "device")), "host");
	ck_assert_uint_eq(json_array_size(json_object_get(j, "namespaces")), 1);
	ck_assert_uint_eq(json_array_size(json_object_get(j, "sessions")), 2); /* and this one */
	ck_assert_int_gt(number(json_object_get(j, "memory"), "index_bytes"), 0);
	json_decref(j);

	j = admin("{\"op\":\"pins\"}");
	ck_assert_int_eq(number(j, "total"), 1);
	ck_assert_int_eq(number(json_array_get(json_object_get(j, "pins"), 0), "blocks"), 10);
	json_decref(j);

	j = admin("{\"op\":\"tree\",\"ns\":1}");
	ck_assert_uint_gt(json_array_size(json_object_get(j, "lines")), 0);
	json_decref(j);
	j = admin("{\"op\":\"tree\",\"max_lines\":1}");
	ck_assert_uint_eq(json_array_size(json_object_get(j, "lines")), 1);
	ck_assert(json_is_true(json_object_get(j, "truncated")));
	json_decref(j);

	/* 20 tokens as stored, then another one: the operator sees what is there instead. */
	j = admin("{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[100,101,102,103,104,105,106,107,"
		  "108,109,110,111,112,113,114,115,116,117,118,119,7,7,7,7,7,7,7,7,7,7,7,7]}");
	ck_assert_int_eq(number(j, "matched_tokens"), 16);
	ck_assert_int_eq(number(j, "own_token"), 7);
	ck_assert_int_eq(number(j, "stored_token"), 120);
	json_decref(j);
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "sessions"), 2); /* it left no session */

	ck_assert_int_eq(admin_number("{\"op\":\"evict\",\"n\":5}", "evicted"), 0); /* all held */
	release(&r, lease);
	ck_assert_int_eq(admin_number("{\"op\":\"evict\",\"n\":4}", "evicted"), 4);
	ck_assert_int_eq(admin_number("{\"op\":\"flush\",\"model\":\"m\"}", "flushed"), 6);
	j = admin("{\"op\":\"status\"}");
	{
		const json_t *gone = json_object_get(json_object_get(j, "removed_blocks"),
						     "device");

		ck_assert_int_eq(number(gone, "evict"), 4);
		ck_assert_int_eq(number(gone, "flush"), 6);
	}
	json_decref(j);
	j = admin("{\"op\":\"log-level\",\"level\":\"debug\"}");
	ck_assert_str_eq(json_string_value(json_object_get(j, "level")), "debug");
	json_decref(j);
	expect_clean();
	raw_close(&r);
	j = admin("{\"op\":\"drain\",\"timeout_s\":1}");
	ck_assert(json_is_true(json_object_get(j, "draining")));
	json_decref(j);
	{
		int status;

		ck_assert_int_eq(waitpid(d.pid, &status, 0), d.pid);
		d.pid = 0;
		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
}
END_TEST

START_TEST(admin_only_on_its_socket)
{
	struct raw r;

	START("--pool-blocks", "8");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	ck_assert(raw_call(&r, PROTO_OP_ADMIN, "\x02\0\0\0{}", 6));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_UNKNOWN_OP);
	raw_close(&r);
	raw_connect(&r, d.admin);
	ck_assert(raw_call(&r, PROTO_OP_ADMIN, "\x02\0\0\0[]", 6));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_BAD_BODY);
	ck_assert(raw_call(&r, PROTO_OP_ADMIN, "\x03\0\0\0{}", 6));
	ck_assert_uint_eq(r.h.status, PROTO_STATUS_BAD_BODY);
	raw_hello(&r); /* it speaks the workers' protocol too */
	(void)raw_open(&r, "m", 4096);
	raw_close(&r);
}
END_TEST

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const struct shell_case cases[] = {
		{ "shell",
		  TESTS(two_clients_share_one_memory, a_child_with_the_socket_keeps_nobody_alive,
			orphan_until_the_process_ends, last_words_count, second_daemon_refuses,
			stale_socket_is_replaced, other_files_are_not_removed, exit_codes,
			check_config_names_what_it_does_not_know, term_waits_for_leases,
			drain_ends_at_its_timeout, second_signal_is_immediate,
			hangup_reloads_what_may_change, silence_is_ended,
			full_house_has_room_for_operators, out_of_descriptors) },
		{ "admin", TESTS(hello_names_the_daemon, admin_refuses_and_says_why,
				 admin_shows_and_does, admin_only_on_its_socket) },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
