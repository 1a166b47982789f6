/*
 * test_client.c - libprefixd against daemons that are silent, slow, wrong, or gone.
 *
 * Deadlines are checked from both sides: a call that gets no answer comes back, and not before its
 * time; how long it took beyond that is bounded only generously, since machines are shared.
 */
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fake fake;

static pfx_client *client_of(struct fake *f, int expected)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = f->path, .name = "test", .deadline_ms = 5000
	};
	pfx_client *c = NULL;
	int r = pfx_connect(&o, &c);

	ck_assert_msg(r == expected, "%s: %s", pfx_status_to_string(r), pfx_error(c));
	ck_assert_ptr_nonnull(c);
	return c;
}

static unsigned n_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void expect(pfx_client *c, int r, int expected)
{
	ck_assert_msg(r == expected, "%s instead of %s: %s", pfx_status_to_string(r),
		      pfx_status_to_string(expected), pfx_error(c));
}

/* ---- nobody there ---------------------------------------------------------------------------- */

START_TEST(nobody)
{
	pfx_connect_options o = { .struct_size = sizeof(o), .socket = "/nonexistent/sock" };
	pfx_client *c = NULL;
	uint8_t boot[16];

	ck_assert_int_eq(pfx_connect(&o, &c), PFX_GONE);
	ck_assert_ptr_nonnull(c);
	ck_assert_ptr_nonnull(strstr(pfx_error(c), "/nonexistent/sock"));
	/* Inside the back-off nothing is even tried, and the text says so. */
	expect(c, pfx_ping(c, 0), PFX_GONE);
	ck_assert_ptr_nonnull(strstr(pfx_error(c), "trying again"));
	expect(c, pfx_boot_id(c, boot), PFX_GONE);
	pfx_close(c);
}
END_TEST

/* What is wrong with the path is said; a file that nobody can listen at is no absent daemon. */
START_TEST(no_socket)
{
	pfx_connect_options o = { .struct_size = sizeof(o), .socket = "/proc/self/exe" };
	pfx_client *c = NULL;

	ck_assert_int_eq(pfx_connect(&o, &c), PFX_GONE);
	ck_assert_msg(strstr(pfx_error(c), "not a socket"), "%s", pfx_error(c));
	pfx_close(c);
}
END_TEST

/* Without a path: root looks in /run/prefixd, others look where a daemon of their own listens,
 * unless the machine has one. */
START_TEST(default_path)
{
	bool own = access("/run/prefixd", F_OK) != 0;
	int status;
	pid_t pid;

	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		pfx_client *c = NULL;

		if ((geteuid() == 0 && setuid(65534)) || unsetenv("PREFIXD_SOCKET") ||
		    setenv("XDG_RUNTIME_DIR", "/nonexistent/run", 1))
			_exit(2);
		if (pfx_connect(NULL, &c) != PFX_GONE)
			_exit(own ? 3 : 0);
		_exit(strstr(pfx_error(c),
			     own ? "/nonexistent/run/prefixd.sock" : "/run/prefixd/prefixd.sock")
			      ? 0
			      : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}
END_TEST

static void serve_slamming(struct fake *f)
{
	while (fake_accept(f))
		(void)shutdown(f->fd, SHUT_RDWR);
}

/* A thousand calls on a daemon that cannot be talked to are a handful of attempts. */
START_TEST(backoff)
{
	pfx_client *c;
	unsigned long start = e2e_now_ms(), ms;
	unsigned n;

	fake_start(&fake, serve_slamming);
	c = client_of(&fake, PFX_GONE);
	for (int i = 0; i < 1000; i++)
		ck_assert_int_eq(pfx_ping(c, 100), PFX_GONE);
	ms = e2e_now_ms() - start;
	n = atomic_load(&fake.n_accepted);
	/* At most one attempt in every 5, 10, 20 ... 200 ms. */
	ck_assert_uint_ge(n, 1);
	ck_assert_uint_le(n, 8 + ms / 200);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* ---- silence --------------------------------------------------------------------------------- */

static void serve_late_ping(struct fake *f)
{
	struct fake_reply r;

	if (!fake_hello(f) || !fake_receive_op(f, PROTO_OP_PING))
		return;
	fake_step_wait(f, 1); /* the client has given up */
	(void)fake_reply_begin(f, &r);
	(void)fake_reply_send(f, &r);
	(void)fake_ping(f);
}

START_TEST(deadline_then_late_reply)
{
	unsigned long start, ms;
	pfx_client *c;

	fake_start(&fake, serve_late_ping);
	c = client_of(&fake, PFX_OK);
	start = e2e_now_ms();
	expect(c, pfx_ping(c, 50), PFX_DEADLINE);
	ms = e2e_now_ms() - start;
	ck_assert_uint_ge(ms, 49);
	ck_assert_uint_lt(ms, 5000);
	fake_step_set(&fake, 1);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 1);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_no_hello(struct fake *f)
{
	if (fake_accept(f) && fake_receive_op(f, PROTO_OP_HELLO))
		fake_step_wait(f, 1000);
}

START_TEST(deadline_in_hello)
{
	pfx_connect_options o = { .struct_size = sizeof(o), .deadline_ms = 30 };
	unsigned long start = e2e_now_ms();
	pfx_client *c = NULL;

	fake_start(&fake, serve_no_hello);
	o.socket = fake.path;
	ck_assert_int_eq(pfx_connect(&o, &c), PFX_DEADLINE);
	ck_assert_uint_lt(e2e_now_ms() - start, 5000);
	expect(c, pfx_ping(c, 30), PFX_GONE); /* the back-off: no second wait at once */
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_half_replies(struct fake *f)
{
	struct fake_reply r;

	if (!fake_hello(f))
		return;
	for (unsigned i = 1; fake_receive(f); i++) {
		(void)fake_reply_begin(f, &r);
		if (!fake_reply_end(f, &r) || !fake_send(f, r.bytes, i, NULL, 0))
			return;
		fake_step_wait(f, i);
		if (!fake_send(f, r.bytes + i, r.w.len - i, NULL, 0))
			return;
		if (!fake_ping(f))
			return;
	}
}

/* A reply that stops after any number of bytes costs its call, not the connection. */
START_TEST(reply_in_halves)
{
	pfx_client *c;

	fake_start(&fake, serve_half_replies);
	c = client_of(&fake, PFX_OK);
	for (unsigned i = 1; i < PROTO_HEADER_LEN; i++) {
		expect(c, pfx_ping(c, 2), PFX_DEADLINE);
		fake_step_set(&fake, i);
		expect(c, pfx_ping(c, 0), PFX_OK);
	}
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 1);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_stalled_reader(struct fake *f)
{
	unsigned n_match = 0, n_ping = 0;

	if (!fake_hello(f) || !fake_open(f))
		return;
	fake_step_wait(f, 1);
	/* Every frame that arrives is whole, although most calls gave up while they sent it. */
	while (n_ping == 0 && fake_receive(f)) {
		struct proto_match_req req;
		const char *bad;

		if (f->h.op == PROTO_OP_PING) {
			struct fake_reply r;

			(void)fake_reply_begin(f, &r);
			(void)fake_reply_send(f, &r);
			n_ping++;
			break;
		}
		if (!fake_expect(f,
				 f->h.op == PROTO_OP_MATCH &&
					 !proto_match_req_decode(f->body, f->h.len, &req, &bad),
				 "whole MATCH frames"))
			return;
		n_match++;
	}
	(void)fake_expect(f, n_match >= 1, "some MATCH frames came");
	(void)fake_expect(f, n_match < 40, "what had not begun to go was taken back");
}

static pfx_namespace *open_ns(pfx_client *c, int map, int expected)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .model = "m",
				    .revision = "r",
				    .dtype = "float16",
				    .block_tokens = 16,
				    .block_bytes = 4096,
				    .map = map };
	pfx_namespace *ns = NULL;

	expect(c, pfx_open(c, &o, &ns), expected);
	return ns;
}

START_TEST(daemon_does_not_read)
{
	static uint32_t keys[16 * 4096];
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4096, .deadline_ms = 3 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace *ns;
	pfx_client *c;

	fake_start(&fake, serve_stalled_reader);
	c = client_of(&fake, PFX_OK);
	ns = open_ns(c, 1, PFX_OK);
	for (int i = 0; i < 40; i++)
		expect(c, pfx_match(ns, &p, &m), PFX_DEADLINE);
	fake_step_set(&fake, 1);
	expect(c, pfx_ping(c, 0), PFX_OK);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_full_socket(struct fake *f)
{
	uint64_t seq = 0;
	int queued = 0;

	if (!fake_hello(f))
		return;
	fake_step_wait(f, 1); /* the socket is full, and calls have failed on it */
	if (!fake_expect(f, ioctl(f->fd, FIONREAD, &queued) == 0 && queued > 0, "PINGs wait"))
		return;
	for (int i = 0; i < queued / (int)PROTO_HEADER_LEN; i++) {
		if (!fake_receive_op(f, PROTO_OP_PING))
			return;
		seq = f->h.seq;
	}
	if (fake_ping(f))
		(void)fake_expect(f, f->h.seq > seq + 1, "the calls that found no room never came");
}

/* A request of which nothing had gone when its time was up is not sent behind its caller's back. */
START_TEST(unsent_is_taken_back)
{
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake_start(&fake, serve_full_socket);
	c = client_of(&fake, PFX_OK);
	for (int i = 0; i < 600; i++) /* a socket holds some 280 */
		expect(c, pfx_ping(c, 1), PFX_DEADLINE);
	fake_step_set(&fake, 1);
	expect(c, pfx_ping(c, 0), PFX_OK);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* ---- garbage --------------------------------------------------------------------------------- */

enum wrong {
	WRONG_NOISE,
	WRONG_MAGIC,
	WRONG_VERSION,
	WRONG_FLAGS,
	WRONG_LEN,
	WRONG_SEQ,
	WRONG_OP,
	WRONG_BODY,
	WRONG_N,
};

static void serve_wrong(struct fake *f)
{
	enum wrong how = (enum wrong)f->h.len; /* set by the test before the start */
	struct fake_reply r;

	if (!fake_hello(f) || !fake_receive_op(f, PROTO_OP_QUIESCED))
		return;
	proto_quiesced_rep_encode(fake_reply_begin(f, &r), &(struct proto_quiesced_rep){ 1, 2 });
	if (!fake_reply_end(f, &r))
		return;
	if (how == WRONG_SEQ)
		r.h.seq += 1;
	if (how == WRONG_OP)
		r.h.op = PROTO_OP_PING;
	if (how == WRONG_MAGIC)
		r.h.magic ^= 1;
	if (how == WRONG_VERSION)
		r.h.version = 77;
	if (how == WRONG_FLAGS)
		r.h.flags = 1;
	if (how == WRONG_LEN)
		r.h.len = UINT32_MAX;
	if (how == WRONG_BODY)
		r.h.len--;
	proto_header_encode(&r.h, r.bytes);
	for (size_t i = 0; how == WRONG_NOISE && i < r.w.len; i++)
		r.bytes[i] = (uint8_t)(i * 151 + 17);
	if (!fake_send(f, r.bytes, r.w.len - (how == WRONG_BODY), NULL, 0))
		return;
	/* Nothing of such a connection is believed: the next call makes another. */
	if (fake_hello(f))
		(void)fake_ping(f);
}

START_TEST(garbage)
{
	pfx_client *c;
	uint32_t n;

	memset(&fake, 0, sizeof(fake));
	fake.h.len = (uint32_t)_i;
	fake_start(&fake, serve_wrong);
	c = client_of(&fake, PFX_OK);
	expect(c, pfx_quiesced(c, &n), PFX_PROTOCOL);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 2);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_all(struct fake *f)
{
	if (fake_hello(f))
		fake_serve_well(f);
}

static void one_request(pfx_client *c, pfx_namespace *ns)
{
	uint32_t keys[4 * 16] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	pfx_release_result e = { .struct_size = sizeof(e) };

	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device, 2);
	ck_assert_uint_eq(m.n_runs, 1);
	ck_assert_uint_eq(m.runs[0].len, 2);
	expect(c, pfx_reserve(ns, m.lease, 2, 0, &v), PFX_OK);
	ck_assert_uint_eq(v.n, 2);
	ck_assert_uint_eq(v.first, 2);
	ck_assert_uint_eq(v.runs[0].start, 2);
	expect(c, pfx_commit(ns, m.lease, 2, NULL, 0, 0, &k), PFX_OK);
	ck_assert_uint_eq(k.n_stored, 2);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, &e), PFX_OK);
	ck_assert_uint_eq(e.queried_tokens, 64);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
}

START_TEST(single_bytes)
{
	unsigned before = n_descriptors();
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake.split = true;
	fake_start(&fake, serve_all);
	c = client_of(&fake, PFX_OK);
	ns = open_ns(c, 1, PFX_OK);
	one_request(c, ns);
	memset(fake.pool.base, 0x5a, fake.block_bytes);
	ck_assert_uint_eq(*(uint8_t *)pfx_slot(ns, 0), 0x5a);
	pfx_close(c);
	fake_stop(&fake);
	ck_assert_uint_eq(n_descriptors(), before);
}
END_TEST

/* ---- lives ----------------------------------------------------------------------------------- */

static void serve_close_mid_reply(struct fake *f)
{
	struct fake_reply r;

	if (!fake_hello(f) || !fake_receive_op(f, PROTO_OP_PING))
		return;
	(void)fake_reply_begin(f, &r);
	if (!fake_reply_end(f, &r) || !fake_send(f, r.bytes, 17, NULL, 0))
		return;
	f->boot.b[0]++;
	if (fake_hello(f)) /* closes the first connection */
		(void)fake_ping(f);
}

/* A call that changes nothing is made again, once, on a new connection. */
START_TEST(close_mid_reply)
{
	uint8_t a[16], b[16];
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake_start(&fake, serve_close_mid_reply);
	c = client_of(&fake, PFX_OK);
	expect(c, pfx_boot_id(c, a), PFX_OK);
	expect(c, pfx_ping(c, 0), PFX_OK);
	expect(c, pfx_boot_id(c, b), PFX_OK);
	ck_assert_int_ne(memcmp(a, b, 16), 0);
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 2);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_two_lives(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !fake_answer_match(f, 99, 0, 2, 0))
		return;
	if (!fake_receive_op(f, PROTO_OP_RESERVE))
		return;
	f->boot.b[0]++; /* another daemon: another life, another pool */
	gpu_shm_free(&f->pool);
	if (!fake_expect(f,
			 gpu_shm_new(&f->pool, "fake-pool", (uint64_t)f->n_slots * f->block_bytes,
				     false, false) == 0,
			 "memory"))
		return;
	if (fake_hello(f) && fake_open(f))
		fake_serve_well(f);
}

START_TEST(restart)
{
	uint32_t keys[4 * 16] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_namespace *ns;
	pfx_client *c;
	uint32_t n = 0;
	uint8_t *old;

	memset(&fake, 0, sizeof(fake));
	fake_start(&fake, serve_two_lives);
	c = client_of(&fake, PFX_OK);
	ns = open_ns(c, 1, PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	old = pfx_slot(ns, 1);
	old[7] = 0x42;
	ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 0);
	expect(c, pfx_reserve(ns, m.lease, 2, 0, &v), PFX_UNKNOWN_LEASE);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	/* The old memory is still there; the slot's number means the new one. */
	ck_assert_uint_eq(old[7], 0x42);
	ck_assert_ptr_ne(pfx_slot(ns, 1), old);
	ck_assert_uint_eq(*((uint8_t *)pfx_slot(ns, 1) + 7), 0);
	ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 1);
	one_request(c, ns);
	expect(c, pfx_quiesced(c, &n), PFX_OK);
	ck_assert_uint_eq(n, 2);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static void serve_other_boot(struct fake *f)
{
	if (!fake_hello(f))
		return;
	f->boot.b[0]++;
	if (!fake_ping(f))
		return;
	if (fake_hello(f))
		(void)fake_ping(f);
}

START_TEST(boot_id_changes)
{
	uint8_t boot[16];
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake_start(&fake, serve_other_boot);
	c = client_of(&fake, PFX_OK);
	expect(c, pfx_ping(c, 0), PFX_OK);
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 2);
	expect(c, pfx_boot_id(c, boot), PFX_OK);
	ck_assert_uint_eq(boot[0], 0xb1);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

/* ---- fork ------------------------------------------------------------------------------------ */

START_TEST(forked)
{
	pfx_namespace *ns;
	pfx_client *c;
	int status;
	pid_t pid;

	memset(&fake, 0, sizeof(fake));
	fake_start(&fake, serve_all);
	c = client_of(&fake, PFX_OK);
	ns = open_ns(c, 1, PFX_OK);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		uint8_t boot[16];
		uint32_t key[16] = { 0 };
		pfx_prompt p = { .struct_size = sizeof(p), .keys = key, .n_keys = 1 };
		pfx_match_result m = { .struct_size = sizeof(m) };
		int ok = pfx_ping(c, 0) == PFX_FORKED && pfx_boot_id(c, boot) == PFX_FORKED &&
			 pfx_match(ns, &p, &m) == PFX_FORKED &&
			 pfx_release(ns, 1, 0, 0, 0, NULL) == PFX_FORKED;

		ok = ok && pfx_slot(ns, 0) != NULL; /* reading may go on */
		pfx_close(c);
		_exit(ok ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	one_request(c, ns);
	ck_assert_uint_eq(atomic_load(&fake.n_accepted), 1);
	pfx_close(c);
	fake_stop(&fake);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("client");
	TCase *t = tcase_create("silent");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, nobody);
	tcase_add_test(t, no_socket);
	tcase_add_test(t, default_path);
	tcase_add_test(t, backoff);
	tcase_add_test(t, deadline_then_late_reply);
	tcase_add_test(t, deadline_in_hello);
	tcase_add_test(t, reply_in_halves);
	tcase_add_test(t, daemon_does_not_read);
	tcase_add_test(t, unsent_is_taken_back);
	suite_add_tcase(s, t);

	t = tcase_create("wrong");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, garbage, 0, WRONG_N);
	tcase_add_test(t, single_bytes);
	suite_add_tcase(s, t);

	t = tcase_create("lives");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, close_mid_reply);
	tcase_add_test(t, restart);
	tcase_add_test(t, boot_id_changes);
	tcase_add_test(t, forked);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return test_run(suite());
}
