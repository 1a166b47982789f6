/*
 * test_client_calls.c - libprefixd: what each call sends, takes and refuses.
 *
 * The daemon's side is scripted (fake.h): limits can be tiny, and replies wrong in one place.
 */
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct fake fake;

static void expect(pfx_client *c, int r, int expected)
{
	ck_assert_msg(r == expected, "%s instead of %s: %s", pfx_status_to_string(r),
		      pfx_status_to_string(expected), pfx_error(c));
}

static pfx_client *start(void (*serve)(struct fake *f))
{
	pfx_connect_options o = { .struct_size = sizeof(o), .name = "test", .deadline_ms = 5000 };
	pfx_client *c = NULL;

	fake_start(&fake, serve);
	o.socket = fake.path;
	expect(c, pfx_connect(&o, &c), PFX_OK);
	return c;
}

static void stop(pfx_client *c)
{
	pfx_close(c);
	fake_stop(&fake);
}

static int open_mapped(pfx_client *c, int map, pfx_namespace **ret_ns)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .model = "m",
				    .block_tokens = 16,
				    .block_bytes = 4096,
				    .map = map };

	return pfx_open(c, &o, ret_ns);
}

static void serve_all(struct fake *f)
{
	if (fake_hello(f))
		fake_serve_well(f);
}

/* ---- prompts longer than a frame ------------------------------------------------------------- */

static bool received_part(struct fake *f, int op, uint32_t n_keys, uint32_t n_tail,
			  uint32_t first_token)
{
	struct proto_match_req m;
	struct proto_extend_req e;
	const char *bad;
	uint32_t token = 0;

	if (!fake_receive_op(f, op))
		return false;
	if (op == PROTO_OP_EXTEND) {
		if (!fake_expect(f, !proto_extend_req_decode(f->body, f->h.len, &e, &bad),
				 "EXTEND decodes") ||
		    !fake_expect(f, e.lease == 99 && !(e.flags & PROTO_MATCH_ISLAND),
				 "EXTEND names the lease and no island"))
			return false;
		m = (struct proto_match_req){ .n_tokens = e.n_tokens,
					      .keys = e.keys,
					      .tail = e.tail,
					      .deadline_us = e.deadline_us };
	} else if (!fake_expect(f, !proto_match_req_decode(f->body, f->h.len, &m, &bad),
				"MATCH decodes") ||
		   !fake_expect(f,
				m.has == PROTO_HAS_ALL && m.ns == 3 && m.tenant == 7 &&
					m.salt.n == 2 && memcmp(m.salt.p, "s1", 2) == 0,
				"MATCH names its root")) {
		return false;
	}
	if (m.keys.n)
		memcpy(&token, m.keys.p, 4);
	return fake_expect(f, m.keys.n == n_keys * 64, "keys of this part") &&
	       fake_expect(f, m.tail.n == n_tail * 4, "the tail goes with the last part") &&
	       fake_expect(f, !n_keys || token == first_token, "keys in their order") &&
	       fake_expect(f, m.n_tokens == 163, "every part names all tokens") &&
	       fake_expect(f, m.deadline_us > 0 && m.deadline_us <= 5000000,
			   "the time that is left");
}

static void serve_parts(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f))
		return;
	/* 10 keys and 3 tokens at 4 keys a frame; the second reply is cut. */
	if (received_part(f, PROTO_OP_MATCH, 4, 0, 0) && fake_answer_match(f, 99, 0, 4, 0) &&
	    received_part(f, PROTO_OP_EXTEND, 4, 0, 64) && fake_answer_match(f, 99, 4, 1, 1) &&
	    received_part(f, PROTO_OP_EXTEND, 0, 0, 0) && fake_answer_match(f, 99, 20, 3, 0) &&
	    received_part(f, PROTO_OP_EXTEND, 2, 3, 128) && fake_answer_match(f, 99, 0, 0, 0))
		fake_serve_well(f);
}

START_TEST(long_prompt)
{
	uint32_t keys[160], tail[3] = { 1, 2, 3 };
	pfx_prompt p = { .struct_size = sizeof(p),
			 .tenant = 7,
			 .salt = "s1",
			 .salt_len = 2,
			 .keys = keys,
			 .n_keys = 10,
			 .tail = tail,
			 .n_tail = 3,
			 .flags = PFX_MATCH_ISLAND };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace *ns;
	pfx_client *c;

	for (uint32_t i = 0; i < 160; i++)
		keys[i] = i;
	memset(&fake, 0, sizeof(fake));
	fake.max_keys = 4;
	c = start(serve_parts);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device, 8);
	ck_assert_uint_eq(m.n_runs, 2); /* 0..4 and 20..22: the first two were neighbours */
	ck_assert_uint_eq(m.runs[0].start, 0);
	ck_assert_uint_eq(m.runs[0].len, 5);
	ck_assert_uint_eq(m.runs[1].start, 20);
	ck_assert_uint_eq(m.runs[1].len, 3);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	stop(c);
}
END_TEST

static bool received_release(struct fake *f, uint64_t lease)
{
	struct proto_release_req req;
	const char *bad;

	return fake_receive_op(f, PROTO_OP_RELEASE) &&
	       fake_expect(f,
			   !proto_release_req_decode(f->body, f->h.len, &req, &bad) &&
				   req.lease == lease,
			   "RELEASE of the lease that nobody holds");
}

static void serve_part_fails(struct fake *f)
{
	if (fake_hello(f) && fake_open(f) && fake_receive_op(f, PROTO_OP_MATCH) &&
	    fake_answer_match(f, 77, 0, 4, 0) && fake_receive_op(f, PROTO_OP_EXTEND) &&
	    fake_answer_error(f, PROTO_STATUS_LIMIT, "keys", "too many", 0) &&
	    received_release(f, 77)) {
		fake_step_set(f, 1); /* without waiting for another request */
		if (fake_answer_release(f))
			fake_serve_well(f);
	}
}

START_TEST(part_fails)
{
	uint32_t keys[160] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 10 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake.max_keys = 4;
	c = start(serve_part_fails);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_LIMIT);
	ck_assert_str_eq(pfx_error(c), "EXTEND: keys: too many");
	ck_assert_uint_eq(m.lease, 0);
	fake_step_wait(&fake, 1);
	ck_assert_uint_eq(atomic_load(&fake.step), 1);
	expect(c, pfx_ping(c, 0), PFX_OK); /* RELEASE's reply is skipped */
	stop(c);
}
END_TEST

/* ---- replies that come late ------------------------------------------------------------------ */

static void serve_late_match(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH))
		return;
	fake_step_wait(f, 1);
	if (!fake_answer_match(f, 55, 0, 2, 0) || !fake_ping(f))
		return;
	if (received_release(f, 55) && fake_answer_release(f))
		(void)fake_ping(f);
}

START_TEST(late_lease_is_released)
{
	uint32_t keys[32] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 2, .deadline_ms = 20 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_late_match);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_DEADLINE);
	fake_step_set(&fake, 1);
	expect(c, pfx_ping(c, 0), PFX_OK);
	expect(c, pfx_ping(c, 0), PFX_OK);
	stop(c);
}
END_TEST

static void serve_silent_reserve(struct fake *f)
{
	struct proto_reserve_req req;
	const char *bad;

	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH) ||
	    !fake_answer_match(f, 55, 0, 2, 0) || !fake_receive_op(f, PROTO_OP_RESERVE))
		return;
	if (fake_expect(f,
			!proto_reserve_req_decode(f->body, f->h.len, &req, &bad) &&
				req.deadline_us < 20000,
			"the daemon is told to answer in time") &&
	    received_release(f, 55) && fake_answer_release(f))
		fake_serve_well(f);
}

/* Slots may be reserved that the worker never heard of: a COMMIT would publish them unfilled. */
START_TEST(doubtful_lease)
{
	uint32_t keys[64] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_silent_reserve);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	expect(c, pfx_reserve(ns, m.lease, 2, 20, &v), PFX_DEADLINE);
	expect(c, pfx_reserve(ns, m.lease, 2, 0, &v), PFX_WRONG_STATE);
	expect(c, pfx_commit(ns, m.lease, 2, NULL, 0, 0, &k), PFX_WRONG_STATE);
	expect(c, pfx_extend(ns, m.lease, &p, &m), PFX_WRONG_STATE);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	stop(c);
}
END_TEST

/* ---- errors and wrong replies ---------------------------------------------------------------- */

static void serve_errors(struct fake *f)
{
	if (!fake_hello(f) || !fake_open(f))
		return;
	while (fake_receive(f)) {
		if (f->h.op == PROTO_OP_RESERVE) {
			if (!fake_answer_error(f, PROTO_STATUS_BUSY, "", "no room", 1500))
				return;
		} else if (f->h.op == PROTO_OP_PING) {
			if (!fake_answer_error(f, PROTO_STATUS_DRAINING, "", "going", 0))
				return;
		} else if (!fake_answer_match(f, 55, 0, 2, 0)) {
			return;
		}
	}
}

START_TEST(errors)
{
	uint32_t keys[64] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_errors);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	expect(c, pfx_reserve(ns, m.lease, 2, 0, &v), PFX_BUSY);
	ck_assert_uint_eq(v.retry_after_us, 1500);
	expect(c, pfx_reserve(ns, m.lease, 2, 0, &v), PFX_BUSY); /* nothing is in doubt */
	expect(c, pfx_ping(c, 0), PFX_DRAINING);
	ck_assert_str_eq(pfx_error(c), "PING: DRAINING: going");
	stop(c);
}
END_TEST

static void serve_bad_match(struct fake *f)
{
	struct radix_run run = { 63, 2 }; /* past the pool's 64 slots */
	struct proto_match_rep rep = { .lease = 5, .n_device = 2, .runs = { &run, 1 } };
	struct fake_reply r;

	if (!fake_hello(f) || !fake_open(f) || !fake_receive_op(f, PROTO_OP_MATCH))
		return;
	if (f->block_bytes == 1) /* the other case: fewer blocks than it says */
		run = (struct radix_run){ 0, 1 };
	proto_match_rep_encode_as(fake_reply_begin(f, &r), f->version, &rep);
	(void)fake_reply_send(f, &r);
}

/* A worker would read outside its mapping: such a reply is not believed in any part. */
START_TEST(slots_outside)
{
	uint32_t keys[64] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_bad_match);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	if (_i)
		fake.block_bytes = 1;
	expect(c, pfx_match(ns, &p, &m), PFX_PROTOCOL);
	ck_assert_ptr_null(pfx_slot(ns, 64));
	ck_assert_int_eq(pfx_slot_stale(ns, 64, 0), 1);
	stop(c);
}
END_TEST

static void serve_bad_open(struct fake *f)
{
	uint32_t how = f->h.len;
	uint8_t digest[32] = { 0 };
	struct proto_open_rep rep = { .ns = 3,
				      .digest = { digest, 32 },
				      .key_len = 64,
				      .block_tokens = 16,
				      .block_bytes = 4096,
				      .n_slots = 64,
				      .slot_stride = 4096,
				      .pool_len = 64 * 4096,
				      .n_pool_fds = 2 };
	int fds[3] = { f->pool.fd, f->generations.fd, f->generations.fd };
	struct fake_reply r;

	if (!fake_hello(f) || !fake_receive_op(f, PROTO_OP_OPEN))
		return;
	rep.n_words = how == 6 ? 1 : how == 7 ? 513 : 0; /* two come; there are 512 */
	switch (how) {
	case 0:
		rep.pool_len = 63 * 4096; /* the last slot ends behind it */
		break;
	case 1:
		rep.slot_stride = 4095;
		break;
	case 2:
		rep.pool_len = 1ull << 40; /* the memory is shorter */
		break;
	case 3:
		rep.n_slots = 600; /* and so are the generations */
		rep.pool_len = 600 * 4096;
		break;
	case 4:
		rep.digest.n = 31;
		break;
	case 5:
		rep.n_pool_fds = 3; /* two come */
		break;
	case 8:
		rep.device = PROTO_DEVICE_N;
		break;
	default:
		break;
	}
	rep.slab_len = how == 9 ? 0 : rep.pool_len;
	proto_open_rep_encode(fake_reply_begin(f, &r), &rep);
	(void)(fake_reply_end(f, &r) && fake_send(f, r.bytes, r.w.len, fds, how == 7 ? 3 : 2));
}

START_TEST(bad_open)
{
	pfx_namespace *ns = NULL;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	fake.h.len = (uint32_t)_i;
	c = start(serve_bad_open);
	expect(c, open_mapped(c, 1, &ns), PFX_PROTOCOL);
	ck_assert_ptr_null(ns);
	stop(c);
}
END_TEST

/* ---- mappings -------------------------------------------------------------------------------- */

START_TEST(mappings)
{
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	pfx_namespace *a, *b, *ro, *none;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_all);
	expect(c, open_mapped(c, 1, &a), PFX_OK);
	expect(c, open_mapped(c, 1, &b), PFX_OK);
	expect(c, open_mapped(c, 2, &ro), PFX_OK);
	expect(c, open_mapped(c, 0, &none), PFX_OK);
	/* One pool is mapped once for each protection. */
	ck_assert_ptr_eq(pfx_slot(a, 5), pfx_slot(b, 5));
	ck_assert_ptr_ne(pfx_slot(a, 5), pfx_slot(ro, 5));
	ck_assert_ptr_null(pfx_slot(none, 5));
	memset(pfx_slot(a, 5), 0x77, 4096);
	ck_assert_uint_eq(((uint8_t *)pfx_slot(ro, 5))[4095], 0x77);
	ck_assert_uint_eq(((uint8_t *)fake.pool.base)[5 * 4096], 0x77);
	expect(c, pfx_namespace_get(a, &info), PFX_OK);
	ck_assert_uint_eq(info.n_slots, 64);
	ck_assert_uint_eq(info.key_len, 64);
	ck_assert_uint_eq(info.digest[0], 0xd1);
	stop(c);
}
END_TEST

START_TEST(stale_slots)
{
	uint32_t keys[64] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_all);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_OK); /* named under counter 5 */
	((uint64_t *)fake.generations.base)[1] = 5;
	ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 0);
	((uint64_t *)fake.generations.base)[1] = 6;
	ck_assert_int_eq(pfx_slot_stale(ns, 1, m.reuse), 1);
	ck_assert_int_eq(pfx_slot_stale(ns, 0, m.reuse), 0);
	stop(c);
}
END_TEST

/* ---- arguments ------------------------------------------------------------------------------- */

START_TEST(arguments)
{
	uint32_t keys[64] = { 0 };
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 4 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_connect_options none = { 0 };
	pfx_namespace *ns, *other;
	uint32_t tenant, n;
	uint8_t bits[1];
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_all);
	ck_assert_int_eq(pfx_connect(&none, &(pfx_client *){ NULL }), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_connect(NULL, NULL), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_ping(NULL, 0), PFX_ARGUMENT);
	expect(c, open_mapped(c, 9, &ns), PFX_ARGUMENT);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	expect(c, open_mapped(c, 1, &other), PFX_OK);
	ck_assert_int_eq(pfx_match(NULL, &p, &m), PFX_ARGUMENT);
	expect(c, pfx_match(ns, NULL, &m), PFX_ARGUMENT);
	m.struct_size = 0;
	expect(c, pfx_match(ns, &p, &m), PFX_ARGUMENT);
	m.struct_size = sizeof(m);
	p.keys = NULL;
	expect(c, pfx_match(ns, &p, &m), PFX_ARGUMENT);
	p.keys = keys;
	p.n_tail = 16;
	p.tail = keys;
	expect(c, pfx_match(ns, &p, &m), PFX_ARGUMENT);
	p.n_tail = 0;
	p.salt = keys;
	p.salt_len = 256;
	expect(c, pfx_match(ns, &p, &m), PFX_ARGUMENT);
	p.salt_len = 0;
	p.n_keys = 9;
	expect(c, pfx_probe(ns, &p, &n, bits, 1), PFX_TOO_SMALL);
	p.n_keys = 4;
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	expect(c, pfx_release(other, m.lease, 0, 0, 0, NULL), PFX_ARGUMENT);
	expect(c, pfx_release(ns, m.lease ^ 1ull << 40, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_release(ns, 0, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	expect(c, pfx_tenant(c, "acme", &tenant), PFX_OK);
	ck_assert_uint_eq(tenant, 7);
	expect(c, pfx_tenant(c, "acm", &tenant), PFX_FORBIDDEN);
	stop(c);
}
END_TEST

/* A caller compiled against an older header has shorter structs; nothing behind them is written. */
START_TEST(older_structs)
{
	struct {
		pfx_match_result m;
		uint8_t behind[64];
	} s;
	uint32_t keys[64] = { 0 };
	pfx_prompt p = { .struct_size = offsetof(pfx_prompt, tail), .keys = keys, .n_keys = 4 };
	uint8_t *bytes = (uint8_t *)&s.m;
	size_t n = offsetof(pfx_match_result, advice);
	pfx_namespace *ns;
	pfx_client *c;

	memset(&fake, 0, sizeof(fake));
	c = start(serve_all);
	expect(c, open_mapped(c, 1, &ns), PFX_OK);
	memset(&s, 0xee, sizeof(s));
	memset((uint8_t *)&p + p.struct_size, 0xee, sizeof(p) - p.struct_size);
	s.m.struct_size = n;
	expect(c, pfx_match(ns, &p, &s.m), PFX_OK);
	ck_assert_uint_eq(s.m.n_device, 2);
	ck_assert_uint_eq(s.m.struct_size, n);
	for (size_t i = n; i < sizeof(s); i++)
		ck_assert_uint_eq(bytes[i], 0xee);
	stop(c);
}
END_TEST

START_TEST(words)
{
	ck_assert_str_eq(pfx_status_to_string(PFX_OK), "OK");
	ck_assert_str_eq(pfx_status_to_string(PFX_BUSY), "BUSY");
	ck_assert_str_eq(pfx_status_to_string(PFX_FORKED), "FORKED");
	ck_assert_ptr_nonnull(pfx_status_to_string(-1));
	ck_assert_ptr_nonnull(pfx_status_to_string(70000));
	ck_assert_str_eq(pfx_reason_to_string(1), "never_seen");
	ck_assert_ptr_nonnull(pfx_reason_to_string(-5));
	/* The public numbers are the protocol's. */
	ck_assert_int_eq(PFX_REVOKED, PROTO_STATUS_REVOKED);
	ck_assert_int_eq(PFX_BAD_BODY, PROTO_STATUS_BAD_BODY);
	ck_assert_int_eq(PFX_MATCH_NO_TAIL, PROTO_MATCH_NO_TAIL);
	ck_assert_int_eq(PFX_RELEASE_NEXT, PROTO_RELEASE_NEXT);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("client_calls");
	TCase *t = tcase_create("calls");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, long_prompt);
	tcase_add_test(t, part_fails);
	tcase_add_test(t, late_lease_is_released);
	tcase_add_test(t, doubtful_lease);
	tcase_add_test(t, errors);
	tcase_add_loop_test(t, slots_outside, 0, 2);
	tcase_add_loop_test(t, bad_open, 0, 10);
	tcase_add_test(t, mappings);
	tcase_add_test(t, stale_slots);
	tcase_add_test(t, arguments);
	tcase_add_test(t, older_structs);
	tcase_add_test(t, words);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return test_run(suite());
}
