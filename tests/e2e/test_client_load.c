/*
 * test_client_load.c - libprefixd's loads: their ends come at any time, are kept, are told once.
 *
 * The daemon's side is scripted (fake.h).
 */
#include "clients/c/prefixd_load.h"
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct fake fake;
static uint32_t keys[64 * 16];

static void expect(pfx_client *c, int r, int expected)
{
	ck_assert_msg(r == expected, "%s instead of %s: %s", pfx_status_to_string(r),
		      pfx_status_to_string(expected), pfx_error(c));
}

/* ---- the daemon's side ----------------------------------------------------------------------- */

struct below {
	uint32_t n_device, n_host, n_redis;
	uint8_t advice, more;
};

static bool answer_tiers(struct fake *f, uint64_t lease, struct below b)
{
	struct radix_run run = { 1, b.n_device };
	struct proto_match_rep rep = { .lease = lease,
				       .n_device = b.n_device,
				       .n_host = b.n_host,
				       .n_redis = b.n_redis,
				       .advice = b.advice,
				       .more = b.more,
				       .load_us = 100 * b.n_host + 1000 * b.n_redis,
				       .reuse = 5,
				       .runs = { &run, b.n_device ? 1 : 0 } };
	struct fake_reply r;

	proto_match_rep_encode_as(fake_reply_begin(f, &r), f->version, &rep);
	return fake_reply_send(f, &r);
}

static bool send_event(struct fake *f, uint64_t seq, uint64_t lease, uint32_t state, uint32_t n,
		       uint32_t reason)
{
	struct proto_event event = { lease, (uint8_t)state, n, 0, (uint8_t)reason };
	struct fake_reply r;

	(void)fake_reply_begin(f, &r);
	r.h.op = PROTO_OP_EVENT;
	r.h.seq = seq;
	proto_event_encode(&r.w, &event);
	return fake_reply_send(f, &r);
}

/* A MATCH or EXTEND with these flags, and as deadline at most this many microseconds. */
static bool receive_prompt(struct fake *f, int op, uint32_t flags, uint32_t n_keys,
			   uint32_t deadline_us)
{
	struct proto_extend_req extend;
	struct proto_match_req match;
	const char *bad;
	bool ok;

	if (!fake_receive_op(f, op))
		return false;
	if (op == PROTO_OP_MATCH)
		ok = !proto_match_req_decode(f->body, f->h.len, &match, &bad) &&
		     match.flags == flags && match.keys.n == n_keys * 64 && match.deadline_us &&
		     match.deadline_us <= deadline_us;
	else
		ok = !proto_extend_req_decode(f->body, f->h.len, &extend, &bad) &&
		     extend.flags == flags && extend.keys.n == n_keys * 64 && extend.deadline_us &&
		     extend.deadline_us <= deadline_us;
	return fake_expect(f, ok, "the flags, keys and deadline that are due");
}

static bool pong(struct fake *f)
{
	struct fake_reply r;

	(void)fake_reply_begin(f, &r);
	return fake_reply_send(f, &r);
}

/* ---- the worker's side ----------------------------------------------------------------------- */

static pfx_client *start(void (*serve)(struct fake *f), pfx_namespace **ret_ns)
{
	pfx_connect_options o = { .struct_size = sizeof(o), .name = "test", .deadline_ms = 5000 };
	pfx_namespace_options n = { .struct_size = sizeof(n),
				    .key_mode = PFX_KEYS_TOKENS,
				    .model = "m",
				    .block_tokens = 16,
				    .block_bytes = 4096,
				    .map = 1 };
	pfx_client *c = NULL;

	fake_start(&fake, serve);
	o.socket = fake.path;
	expect(c, pfx_connect(&o, &c), PFX_OK);
	expect(c, pfx_open(c, &n, ret_ns), PFX_OK);
	return c;
}

static void stop(pfx_client *c)
{
	pfx_close(c);
	fake_stop(&fake);
}

static pfx_match_result match(pfx_client *c, pfx_namespace *ns, uint32_t n_keys, uint32_t load_ms)
{
	pfx_prompt p = { .struct_size = sizeof(p),
			 .keys = keys,
			 .n_keys = n_keys,
			 .flags = PFX_MATCH_PROMOTE,
			 .load_ms = load_ms };
	pfx_match_result m = { .struct_size = sizeof(m) };

	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	return m;
}

static pfx_match_result extend(pfx_client *c, pfx_namespace *ns, uint64_t lease, uint32_t flags)
{
	pfx_prompt p = { .struct_size = sizeof(p), .flags = flags };
	pfx_match_result m = { .struct_size = sizeof(m) };

	expect(c, pfx_extend(ns, lease, &p, &m), PFX_OK);
	return m;
}

/* ---- right ones ------------------------------------------------------------------------------ */

static void serve_loaded(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f) ||
	    !receive_prompt(f, PROTO_OP_MATCH, PFX_MATCH_PROMOTE, 9, 5000000) ||
	    !answer_tiers(f, 55, (struct below){ 2, 3, 4, 0, 0 }))
		return;
	e2e_sleep_ms(20);
	if (send_event(f, f->h.seq, 55, PROTO_WAIT_LOADED, 6, PROTO_REASON_TIER_LOST) &&
	    receive_prompt(f, PROTO_OP_EXTEND, 0, 0, 5000000) &&
	    answer_tiers(f, 55, (struct below){ 6, 0, 0, 0, 0 }))
		fake_serve_well(f);
}

/* What a worker does: match, wait, extend; whole frames and byte by byte. */
START_TEST(a_load_is_waited_for)
{
	pfx_load_result l = { .struct_size = sizeof(l) };
	pfx_match_result m;
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake.split = _i;
	c = start(serve_loaded, &ns);
	m = match(c, ns, 9, 0);
	ck_assert_uint_eq(m.n_device, 2);
	ck_assert_uint_eq(m.n_host, 3);
	ck_assert_uint_eq(m.n_redis, 4);
	ck_assert_uint_eq(m.load_us, 4300);
	ck_assert_int_eq(m.loading, 1);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 6);
	ck_assert_str_eq(pfx_reason_to_string(l.reason), "tier_lost");
	m = extend(c, ns, m.lease, 0);
	ck_assert_uint_eq(m.n_device, 6);
	ck_assert_int_eq(m.loading, 0);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_WRONG_STATE); /* told once */
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	stop(c);
}
END_TEST

static void serve_two(struct fake *f)
{
	uint64_t first, second;

	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 55, (struct below){ 0, 4, 0, 0, 0 }))
		return;
	first = f->h.seq;
	if (!fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 56, (struct below){ 0, 3, 0, 0, 0 }))
		return;
	second = f->h.seq;
	/* the second one's end comes first, between a request and its reply */
	if (fake_receive_op(f, PROTO_OP_PING) &&
	    send_event(f, second, 56, PROTO_WAIT_LOADED, 3, 0) && pong(f)) {
		fake_step_wait(f, 1);
		if (send_event(f, first, 55, PROTO_WAIT_FAILED, 0, PROTO_REASON_TIER_DOWN))
			fake_serve_well(f);
	}
}

/* Ends come in any order, and each is its own lease's. */
START_TEST(ends_of_other_leases_are_kept)
{
	pfx_load_result l = { .struct_size = sizeof(l) };
	pfx_namespace *ns;
	pfx_client *c;
	uint64_t a, b;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_two, &ns);
	a = match(c, ns, 4, 0).lease;
	b = match(c, ns, 4, 0).lease;
	expect(c, pfx_ping(c, 0), PFX_OK);
	expect(c, pfx_load_wait(ns, a, 20, &l), PFX_DEADLINE);
	fake_step_set(&fake, 1);
	expect(c, pfx_load_wait(ns, a, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 0);
	ck_assert_str_eq(pfx_reason_to_string(l.reason), "tier_down");
	expect(c, pfx_load_wait(ns, b, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 3);
	ck_assert_int_eq(l.reason, 0);
	stop(c);
}
END_TEST

static void serve_again(struct fake *f)
{
	uint64_t first;

	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 55, (struct below){ 0, 4, 0, 0, 0 }))
		return;
	first = f->h.seq;
	/* while it runs the daemon begins no other; afterwards it does */
	if (receive_prompt(f, PROTO_OP_EXTEND, PFX_MATCH_PROMOTE, 0, 5000000) &&
	    answer_tiers(f, 55, (struct below){ 1, 3, 0, 0, 0 }) &&
	    send_event(f, first, 55, PROTO_WAIT_LOADED, 2, PROTO_REASON_NO_ROOM) &&
	    receive_prompt(f, PROTO_OP_EXTEND, PFX_MATCH_PROMOTE, 0, 5000000) &&
	    answer_tiers(f, 55, (struct below){ 1, 2, 0, 0, 0 }) &&
	    send_event(f, f->h.seq, 55, PROTO_WAIT_LOADED, 2, 0))
		fake_serve_well(f);
}

START_TEST(one_load_at_a_time)
{
	pfx_load_result l = { .struct_size = sizeof(l) };
	pfx_match_result m;
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_again, &ns);
	m = match(c, ns, 4, 0);
	m = extend(c, ns, m.lease, PFX_MATCH_PROMOTE);
	ck_assert_int_eq(m.loading, 1);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_OK);
	ck_assert_str_eq(pfx_reason_to_string(l.reason), "no_room");
	m = extend(c, ns, m.lease, PFX_MATCH_PROMOTE);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 2);
	ck_assert_int_eq(l.reason, 0);
	stop(c);
}
END_TEST

static void serve_parts(struct fake *f)
{
	if (fake_hello(f) && fake_open(f) && receive_prompt(f, PROTO_OP_MATCH, 0, 4, 5000000) &&
	    answer_tiers(f, 55, (struct below){ 2, 2, 0, 0, 0 }) &&
	    receive_prompt(f, PROTO_OP_EXTEND, PFX_MATCH_PROMOTE, 3, 70000000) &&
	    answer_tiers(f, 55, (struct below){ 0, 0, 0, 0, 1 }) &&
	    receive_prompt(f, PROTO_OP_EXTEND, PFX_MATCH_PROMOTE, 0, 70000000) &&
	    answer_tiers(f, 55, (struct below){ 0, 2, 1, 0, 0 }) &&
	    send_event(f, f->h.seq, 55, PROTO_WAIT_LOADED, 3, 0))
		fake_serve_well(f);
}

/* The last part asks for the load, for as long as the caller says; counts are the last's. */
START_TEST(a_prompt_in_parts)
{
	pfx_load_result l = { .struct_size = sizeof(l) };
	pfx_match_result m;
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake.max_keys = 4;
	c = start(serve_parts, &ns);
	m = match(c, ns, 7, 70000);
	ck_assert_uint_eq(m.n_device, 2);
	ck_assert_uint_eq(m.n_host, 2);
	ck_assert_uint_eq(m.n_redis, 1);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 3);
	stop(c);
}
END_TEST

/* ---- none, and ended ones -------------------------------------------------------------------- */

static void serve_none(struct fake *f)
{
	struct radix_run run = { 2, 2 };
	struct proto_reserve_rep reserve = { 2, 0, 5, { &run, 1 } };
	uint64_t seq;
	struct fake_reply r;

	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 55, (struct below){ 0, 4, 0, 1, 0 }) ||
	    !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 56, (struct below){ 4, 0, 0, 0, 0 }) ||
	    !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 57, (struct below){ 0, 4, 0, 0, 0 }))
		return;
	seq = f->h.seq;
	if (!fake_receive_op(f, PROTO_OP_RESERVE))
		return;
	proto_reserve_rep_encode(fake_reply_begin(f, &r), &reserve);
	/* its end was on the way when RESERVE came; and one of another lease is no news */
	if (send_event(f, seq, 57, PROTO_WAIT_LOADED, 4, 0) && fake_reply_send(f, &r) &&
	    fake_receive_op(f, PROTO_OP_MATCH) &&
	    answer_tiers(f, 58, (struct below){ 0, 4, 0, 0, 0 }) &&
	    send_event(f, f->h.seq, 57, PROTO_WAIT_LOADED, 4, 0) &&
	    send_event(f, f->h.seq, 58, PROTO_WAIT_READY, 4, 0) &&
	    send_event(f, f->h.seq, 58, PROTO_WAIT_LOADED, 1, 0))
		fake_serve_well(f);
}

START_TEST(nothing_to_wait_for)
{
	pfx_load_result l = { .struct_size = sizeof(l) }, none = { 0 };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_match_result m;
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_none, &ns);
	m = match(c, ns, 4, 0); /* advised against */
	ck_assert_int_eq(m.advice, 1);
	ck_assert_int_eq(m.loading, 0);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_WRONG_STATE);
	m = match(c, ns, 4, 0); /* all there */
	ck_assert_int_eq(m.loading, 0);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_WRONG_STATE);
	m = match(c, ns, 4, 0); /* ended by RESERVE */
	ck_assert_int_eq(m.loading, 1);
	expect(c, pfx_load_wait(ns, m.lease, 0, NULL), PFX_ARGUMENT);
	expect(c, pfx_load_wait(ns, m.lease, 0, &none), PFX_ARGUMENT);
	expect(c, pfx_load_wait(ns, m.lease + 1, 0, &l), PFX_UNKNOWN_LEASE);
	ck_assert_int_eq(pfx_load_wait(NULL, m.lease, 0, &l), PFX_ARGUMENT);
	expect(c, pfx_reserve(ns, m.lease, 2, 0, &v), PFX_OK);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_WRONG_STATE);
	m = match(c, ns, 4, 0);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 1);
	stop(c);
}
END_TEST

static int wrong; /* which */

static void serve_broken(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !answer_tiers(f, 55, (struct below){ 0, 4, 0, 0, 0 }))
		return;
	if (wrong == 0) /* of a request that was not made */
		(void)send_event(f, f->h.seq + 1, 55, PROTO_WAIT_LOADED, 4, 0);
	else
		(void)shutdown(f->fd, SHUT_RDWR);
	if (fake_accept(f))
		(void)(fake_receive_op(f, PROTO_OP_HELLO) && fake_answer_hello(f));
}

/* A daemon that says what was not asked for, or goes away: the lease is over. */
START_TEST(a_connection_ends_meanwhile)
{
	pfx_load_result l = { .struct_size = sizeof(l) };
	pfx_match_result m;
	pfx_namespace *ns;
	pfx_client *c;

	wrong = _i;
	memset(&fake, 0, sizeof(fake));
	c = start(serve_broken, &ns);
	m = match(c, ns, 4, 0);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), wrong ? PFX_UNKNOWN_LEASE : PFX_PROTOCOL);
	expect(c, pfx_load_wait(ns, m.lease, 0, &l), PFX_UNKNOWN_LEASE);
	fake.ended = true; /* what follows need not come */
	stop(c);
}
END_TEST

/* ---- PREFETCH -------------------------------------------------------------------------------- */

static bool receive_prefetch(struct fake *f, uint32_t n_keys, uint32_t deadline_us)
{
	struct proto_prefetch_req req;
	const char *bad;

	return fake_receive_op(f, PROTO_OP_PREFETCH) &&
	       fake_expect(f,
			   !proto_prefetch_req_decode(f->body, f->h.len, &req, &bad) &&
				   req.has == PROTO_HAS_ALL && req.ns == 3 && req.tenant == 7 &&
				   req.salt.n == 2 && req.keys.n == 64 * n_keys &&
				   req.n_tokens == 90 && req.deadline_us == deadline_us,
			   "PREFETCH says what was asked");
}

static bool answer_prefetch(struct fake *f)
{
	struct proto_prefetch_rep rep = { .n_device = 1, .n_host = 2, .n_redis = 3 };
	struct fake_reply r;

	proto_prefetch_rep_encode(fake_reply_begin(f, &r), &rep);
	return fake_reply_send(f, &r);
}

static void serve_prefetch(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f) || !receive_prefetch(f, 4, 250000) ||
	    !answer_prefetch(f) || !receive_prefetch(f, 4, 0))
		return;
	(void)shutdown(f->fd, SHUT_RDWR); /* it is sent again on the next connection */
	if (fake_hello(f) && fake_open(f) && receive_prefetch(f, 4, 0) && answer_prefetch(f) &&
	    receive_prefetch(f, 4, 0) &&
	    fake_answer_error(f, PROTO_STATUS_DRAINING, "", "it is stopping", 0))
		fake_serve_well(f);
}

START_TEST(prefetch)
{
	pfx_prefetch_result out = { .struct_size = sizeof(out) }, none = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p),
			 .tenant = 7,
			 .salt = "s3",
			 .salt_len = 2,
			 .keys = keys,
			 .n_keys = 5, /* one more than a frame takes */
			 .n_tokens = 90 };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake.max_keys = 4;
	c = start(serve_prefetch, &ns);
	expect(c, pfx_prefetch(ns, &p, 250, &out), PFX_OK);
	ck_assert(out.n_device == 1 && out.n_host == 2 && out.n_redis == 3);
	expect(c, pfx_prefetch(ns, &p, 0, NULL), PFX_OK);
	expect(c, pfx_prefetch(ns, &p, 0, &out), PFX_DRAINING);
	expect(c, pfx_prefetch(ns, NULL, 0, &out), PFX_ARGUMENT);
	expect(c, pfx_prefetch(ns, &p, 0, &none), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_prefetch(NULL, &p, 0, &out), PFX_ARGUMENT);
	stop(c);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("client_load");
	TCase *t = tcase_create("load");

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_load_is_waited_for, 0, 2);
	tcase_add_test(t, ends_of_other_leases_are_kept);
	tcase_add_test(t, one_load_at_a_time);
	tcase_add_test(t, a_prompt_in_parts);
	tcase_add_test(t, nothing_to_wait_for);
	tcase_add_loop_test(t, a_connection_ends_meanwhile, 0, 2);
	tcase_add_test(t, prefetch);
	suite_add_tcase(s, t);
	return test_run(s);
}
