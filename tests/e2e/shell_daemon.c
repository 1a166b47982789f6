/*
 * shell_daemon.c - the real binary, spoken to in raw frames: sockets, descriptors, processes,
 * signals, admin requests, and everything rude that a peer may do.
 *
 * With an argument only the test case of that name runs.
 */
#include "tests/e2e/harness.h"
#include "tests/e2e/shell_raw.h"
#include "tests/lib/rng.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct e2e_daemon d;

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&d);
}

static void start(const char *const args[])
{
	int r = e2e_daemon_start(&d, args);

	if (r != 0) {
		char *log = e2e_daemon_log(&d);

		ck_abort_msg("the daemon did not start: %d: %s", r, log);
	}
}

#define START(...) start((const char *const[]){ __VA_ARGS__, NULL })

/* ---- requests ---------------------------------------------------------------------------------- */

#define BLOCK 16u

/* A MATCH of n_blocks blocks whose tokens count up from `first`; returns the body's length. */
static size_t match_body(uint8_t *out, size_t cap, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	uint32_t *tokens = malloc((size_t)n_blocks * BLOCK * 4 + 1);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = ns,
				     .n_tokens = (uint64_t)n_blocks * BLOCK,
				     .keys = { .p = tokens, .n = n_blocks * BLOCK * 4 } };
	struct proto_writer w = { .p = out, .cap = cap };

	ck_assert_ptr_nonnull(tokens);
	for (uint32_t i = 0; i < n_blocks * BLOCK; i++)
		tokens[i] = first + i;
	proto_match_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	free(tokens);
	return w.len;
}

static struct proto_match_rep match(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	static uint8_t body[1 << 16];
	struct proto_match_rep rep;
	const char *bad;

	ck_assert(raw_call(r, PROTO_OP_MATCH, body,
			   match_body(body, sizeof(body), ns, first, n_blocks)));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	ck_assert_int_eq(proto_match_rep_decode(r->body, r->h.len, &rep, &bad), 0);
	return rep;
}

static void release(struct raw *r, uint64_t lease)
{
	const struct proto_release_req m = { .lease = lease };
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_release_req_encode(&w, &m);
	ck_assert(raw_call(r, PROTO_OP_RELEASE, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
}

/* Fills what a match did not find: RESERVE, COMMIT, RELEASE. */
static void store(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	const struct proto_match_rep rep = match(r, ns, first, n_blocks);
	const struct proto_reserve_req reserve = { .lease = rep.lease, .n = n_blocks };
	const struct proto_commit_req commit = { .lease = rep.lease, .n = n_blocks };
	uint64_t lease = rep.lease;
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_reserve_req_encode(&w, &reserve);
	ck_assert(raw_call(r, PROTO_OP_RESERVE, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
	proto_commit_req_encode(&w, &commit);
	ck_assert(raw_call(r, PROTO_OP_COMMIT, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	release(r, lease);
}

/* One admin request on a connection of its own; the parsed answer, for json_decref. */
static json_t *admin(const char *request)
{
	struct raw r;
	json_t *j;

	raw_connect(&r, d.admin);
	j = json_loads(raw_admin(&r, request), 0, NULL);
	ck_assert_msg(json_is_object(j), "%s: no object", request);
	raw_close(&r);
	return j;
}

static json_int_t number(const json_t *j, const char *name)
{
	const json_t *v = json_object_get(j, name);

	ck_assert_msg(json_is_integer(v), "no number %s", name);
	return json_integer_value(v);
}

static json_int_t admin_number(const char *request, const char *name)
{
	json_t *j = admin(request);
	json_int_t n = number(j, name);

	json_decref(j);
	return n;
}

static void expect_clean(void)
{
	json_t *j = admin("{\"op\":\"audit\"}");

	ck_assert(json_is_true(json_object_get(j, "ok")));
	ck_assert(json_is_true(json_object_get(j, "clean")));
	json_decref(j);
}

/* Waits until `name` of stat is n, two seconds at most. */
static void wait_stat(const char *name, json_int_t n)
{
	unsigned long end = e2e_now_ms() + 2000;
	json_int_t have;

	while ((have = admin_number("{\"op\":\"stat\"}", name)) != n) {
		ck_assert_msg(e2e_now_ms() < end, "%s is %lld, not %lld", name, (long long)have,
			      (long long)n);
		e2e_sleep_ms(5);
	}
}

/* ---- open: descriptors and shared memory ------------------------------------------------------- */

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

/* ---- framing over the real socket -------------------------------------------------------------- */

START_TEST(split_at_every_offset)
{
	static uint8_t bytes[1 << 15];
	struct proto_open_rep o;
	struct raw r;
	size_t len;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	for (size_t cut = 1;; cut++) {
		uint8_t body[512];
		size_t n = match_body(body, sizeof(body), o.ns, 7, 3);
		uint64_t first = r.seq + 1;

		len = raw_frame(&r, bytes, PROTO_OP_PING, NULL, 0);
		len += raw_frame(&r, bytes + len, PROTO_OP_PROBE, body, 0); /* a body too short */
		len += raw_frame(&r, bytes + len, PROTO_OP_MATCH, body, n);
		len += raw_frame(&r, bytes + len, PROTO_OP_PING, NULL, 0);
		if (cut >= len)
			break;
		ck_assert(raw_write(&r, bytes, cut));
		usleep(200); /* so that the daemon reads the first part alone */
		ck_assert(raw_write(&r, bytes + cut, len - cut));
		for (uint64_t i = 0; i < 4; i++) {
			static const uint16_t status[] = { PROTO_STATUS_OK, PROTO_STATUS_BAD_BODY,
							   PROTO_STATUS_OK, PROTO_STATUS_OK };

			ck_assert(raw_read(&r));
			ck_assert_uint_eq(r.h.seq, first + i);
			ck_assert_uint_eq(r.h.status, status[i]);
			if (i == 2) {
				struct proto_match_rep rep;
				const char *bad;

				ck_assert_int_eq(
					proto_match_rep_decode(r.body, r.h.len, &rep, &bad), 0);
				ck_assert_uint_ne(rep.lease, 0);
			}
		}
		if (cut % 64 == 0) { /* leases of the matches go with their session */
			raw_close(&r);
			raw_connect(&r, d.socket);
			raw_hello(&r);
			o = raw_open(&r, "m", 4096);
		}
	}
	raw_close(&r);
	expect_clean();
}
END_TEST

/* Kilobytes from /proc/PID/status. */
static long status_kb(pid_t pid, const char *name)
{
	char path[64], line[256];
	long kb = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, name, strlen(name)) == 0)
			kb = strtol(line + strlen(name) + 1, NULL, 10);
	fclose(f);
	ck_assert_int_ge(kb, 0);
	return kb;
}

START_TEST(ten_thousand_pipelined)
{
	enum {
		N = 10000
	};
	uint8_t body[2048];
	struct proto_open_rep o;
	uint8_t *bytes;
	struct raw r;
	size_t len = 0, n;
	long before, after;
	uint64_t first;
	pid_t writer;
	int status;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	store(&r, o.ns, 1, 8);
	n = match_body(body, sizeof(body), o.ns, 1, 8);
	bytes = malloc((size_t)N * (PROTO_HEADER_LEN + n));
	ck_assert_ptr_nonnull(bytes);
	/* MATCH has replies with runs; its leases are left, so most of them meet the limit of leases:
	 * every frame is answered all the same. */
	first = r.seq + 1;
	for (int i = 0; i < N; i++)
		len += raw_frame(&r, bytes + len, i % 2 ? PROTO_OP_MATCH : PROTO_OP_PING, body,
				 i % 2 ? n : 0);
	before = status_kb(d.pid, "VmRSS:");
	writer = fork();
	ck_assert_int_ge(writer, 0);
	if (writer == 0) /* sends everything before anybody reads; the socket is shared */
		_exit(raw_write(&r, bytes, len) ? 0 : 1);
	e2e_sleep_ms(300); /* the daemon has work for longer than its limits allow to queue */
	after = status_kb(d.pid, "VmHWM:");
	for (uint64_t i = 0; i < N; i++) {
		ck_assert_msg(raw_read(&r), "closed at frame %llu", (unsigned long long)i);
		ck_assert_uint_eq(r.h.seq, first + i);
		ck_assert_uint_eq(r.h.op, i % 2 ? PROTO_OP_MATCH : PROTO_OP_PING);
	}
	ck_assert_int_eq(waitpid(writer, &status, 0), writer);
	ck_assert_int_eq(status, 0);
	ck_assert_msg(after - before < 16 * 1024, "grew by %ld KiB", after - before);
	after = status_kb(d.pid, "VmHWM:");
	ck_assert_msg(after - before < 16 * 1024, "grew by %ld KiB in the end", after - before);
	raw_close(&r);
	free(bytes);
	expect_clean();
}
END_TEST

/* ---- processes --------------------------------------------------------------------------------- */

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
	wait_stat("sessions", 0);
	expect_clean();
}
END_TEST

/* What a process said before it died counts: RELEASE and exit at once is a release, not a death. */
START_TEST(last_words_count)
{
	START("--pool-blocks", "64");
	for (int i = 0; i < 20; i++) {
		pid_t worker = fork();

		ck_assert_int_ge(worker, 0);
		if (worker == 0) {
			struct proto_release_req m = { 0 };
			struct proto_open_rep o;
			uint8_t body[64], frame[128];
			struct proto_writer w = { .p = body, .cap = sizeof(body) };
			struct raw r;

			raw_connect(&r, d.socket);
			raw_hello(&r);
			o = raw_open(&r, "m", 4096);
			m.lease = match(&r, o.ns, 1, 4).lease;
			proto_release_req_encode(&w, &m);
			(void)raw_write(&r, frame,
					raw_frame(&r, frame, PROTO_OP_RELEASE, body, w.len));
			_exit(0);
		}
		ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
	}
	wait_stat("leases", 0);
	{
		json_t *j = admin("{\"op\":\"status\"}");
		const json_t *c = json_object_get(j, "counters");

		ck_assert_int_eq(number(c, "leases_released"), 20);
		ck_assert_int_eq(number(c, "leases_died"), 0);
		json_decref(j);
	}
}
END_TEST

/* ---- one daemon per socket --------------------------------------------------------------------- */

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
	ck_assert_int_eq(admin_number("{\"op\":\"stat\"}", "sessions"),
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
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--pool-block", "8", NULL }),
			 2);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--device", "cuda", NULL }),
			 1);
	ck_assert_int_eq(
		e2e_daemon_start(&d, (const char *const[]){ "--redis", "unix:///x", NULL }), 2);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--naming-key-file",
								     "/nonexistent/k", NULL }),
			 1);
}
END_TEST

/* ---- signals ----------------------------------------------------------------------------------- */

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

/* ---- limits ------------------------------------------------------------------------------------ */

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

/* ---- admin ------------------------------------------------------------------------------------- */

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
	{ "{\"op\":\"pins\",\"older_s\":-1}", "older_s must be a number of seconds" },
	{ "{\"op\":\"log-level\",\"level\":\"loud\"}", "level must be error, warn, info or debug" },
	{ "{\"op\":\"explain\",\"model\":\"m\"}", "give an array of them" },
	{ "{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1,-2]}", "token 1 is not a number" },
	{ "{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1],\"tenant\":\"zz\"}",
	  "there is no such tenant" },
	{ "{\"op\":\"explain\",\"model\":\"m\",\"tokens\":[1],\"salt_hex\":\"abc\"}",
	  "give either salt" },
};

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
	struct raw r;
	json_t *j;

	START("--pool-blocks", "64");
	raw_connect(&r, d.socket);
	raw_hello(&r);
	o = raw_open(&r, "m", 4096);
	store(&r, o.ns, 100, 10);
	(void)match(&r, o.ns, 100, 10);

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

	j = admin("{\"op\":\"tree\",\"ns\":0}");
	ck_assert(json_is_array(json_object_get(j, "lines")));
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
	raw_close(&r);
	wait_stat("leases", 0);
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

/* ---- rude input -------------------------------------------------------------------------------- */

/* One connection that says something wrong, and maybe reads, and maybe leaves in the middle. */
static void be_rude(struct test_rng *rng, const struct proto_open_rep *o)
{
	static uint8_t bytes[1 << 16];
	struct raw r;
	size_t len = 0;

	raw_connect(&r, test_rng_below(rng, 4) ? d.socket : d.admin);
	if (test_rng_below(rng, 4)) {
		raw_hello(&r);
		if (test_rng_below(rng, 2))
			(void)raw_open(&r, "m", 4096);
	}
	for (uint32_t i = 0, n = 1 + (uint32_t)test_rng_below(rng, 8); i < n; i++) {
		uint8_t body[4096];
		size_t body_len = test_rng_below(rng, 300);
		uint16_t op = (uint16_t)test_rng_below(rng, 34);
		size_t at = len;

		for (size_t k = 0; k < body_len; k++)
			body[k] = test_rng_below(rng, 3) ? 0 : (uint8_t)test_rng_below(rng, 256);
		if (test_rng_below(rng, 3) == 0) {
			op = PROTO_OP_MATCH;
			body_len = match_body(body, sizeof(body), o->ns,
					      (uint32_t)test_rng_below(rng, 1000),
					      (uint32_t)test_rng_below(rng, 8));
			if (test_rng_below(rng, 2)) /* one bit off */
				body[test_rng_below(rng, body_len)] ^=
					(uint8_t)(1u << test_rng_below(rng, 8));
		}
		len += raw_frame(&r, bytes + len, op, body, body_len);
		if (test_rng_below(rng, 8) == 0) /* a header with a bit off */
			bytes[at + test_rng_below(rng, PROTO_HEADER_LEN)] ^=
				(uint8_t)(1u << test_rng_below(rng, 8));
	}
	if (test_rng_below(rng, 4) == 0)
		len -= test_rng_below(rng, PROTO_HEADER_LEN);
	(void)raw_write(&r, bytes, len); /* the daemon may have closed already */
	if (test_rng_below(rng, 2)) {
		uint8_t got[4096];

		(void)shutdown(r.fd, SHUT_WR);
		while (recv(r.fd, got, sizeof(got), 0) > 0)
			;
	}
	raw_close(&r);
}

START_TEST(rude_input_harms_nobody)
{
	unsigned rounds = getenv("PREFIXD_NIGHTLY") ? 50000 : 1500;
	struct proto_open_rep o;
	struct test_rng rng;
	struct raw good;

	START("--pool-blocks", "64", "--log-level", "error");
	raw_connect(&good, d.socket);
	raw_hello(&good);
	o = raw_open(&good, "m", 4096);
	store(&good, o.ns, 1, 20);
	test_rng_init(&rng, 20240607);
	for (unsigned i = 0; i < rounds; i++) {
		be_rude(&rng, &o);
		if (i % 100 == 0)
			expect_clean();
	}
	ck_assert_uint_eq(match(&good, o.ns, 1, 20).n_device, 20); /* the good one is undisturbed */
	raw_close(&good);
	expect_clean();
	wait_stat("leases", 1); /* of this very process, which lives: an orphan */
	ck_assert(WIFEXITED(e2e_daemon_stop(&d, SIGINT)));
}
END_TEST

static void add(Suite *s, const char *name, const char *only, const TTest *const tests[])
{
	TCase *tc;

	if (only && strcmp(only, name) != 0)
		return;
	tc = tcase_create(name);
	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	for (; *tests; tests++)
		tcase_add_test(tc, *tests);
	suite_add_tcase(s, tc);
}

#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;
	Suite *s = suite_create("shell");
	SRunner *sr;
	int failed;

	if (!e2e_daemon_binary()) {
		puts("1..0 # SKIP no prefixd binary");
		return 0;
	}
	add(s, "split-every-offset", only, TESTS(split_at_every_offset));
	add(s, "pipeline-10000", only, TESTS(ten_thousand_pipelined));
	add(s, "rude", only, TESTS(rude_input_harms_nobody));
	add(s, "shell", only,
	    TESTS(two_clients_share_one_memory, a_child_with_the_socket_keeps_nobody_alive,
		  orphan_until_the_process_ends, last_words_count, second_daemon_refuses,
		  stale_socket_is_replaced, other_files_are_not_removed, exit_codes,
		  term_waits_for_leases, drain_ends_at_its_timeout, second_signal_is_immediate,
		  hangup_reloads_what_may_change, silence_is_ended, out_of_descriptors));
	add(s, "admin", only,
	    TESTS(admin_refuses_and_says_why, admin_shows_and_does, admin_only_on_its_socket));
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
