/*
 * test_flight.c - single flight: who computes, who waits, and who takes over when a leader fails.
 */
#include "tests/engine/scene.h"

#include "daemon/engine_internal.h"

enum {
	MANY = 24
};

static struct world w;
static struct world_config config;
static struct proto_open_req o;
static uint32_t tokens[256];

static void begin(void)
{
	ck_assert_int_eq(world_init(&w, &config), 0);
	o = world_open_req("m");
	for (uint32_t i = 0; i < 256; i++)
		tokens[i] = i;
}

static void plain(void)
{
	world_config_init(&config);
	begin();
}

/* One worker with a lease of the prompt. */
struct actor {
	struct scene_place at;
	struct proto_match_rep m;
	uint64_t lease;
};

static struct actor actor(uint32_t pid, uint32_t n_tokens, uint32_t flags)
{
	struct actor a = { .at = scene_place(&w, pid, 1000, &o) };
	struct scene_prompt p = scene_tokens(&a.at, tokens, n_tokens);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = a.at.ns.ns,
				     .flags = flags,
				     .n_tokens = n_tokens,
				     .keys = { p.keys, p.n_keys * a.at.ns.key_len } };

	ck_assert_int_eq(world_match(a.at.c, &m, &a.m), PROTO_STATUS_OK);
	a.lease = a.m.lease;
	return a;
}

static int reserve(struct actor *a, uint32_t n)
{
	struct proto_reserve_req r = { .lease = a->lease, .n = n };
	struct proto_reserve_rep got;
	int status = world_reserve(a->at.c, &r, &got);

	ck_assert(status != PROTO_STATUS_OK || got.n == n);
	return status;
}

static uint32_t commit(struct actor *a, uint32_t n)
{
	struct proto_commit_req c = { .lease = a->lease, .n = n };
	struct proto_commit_rep done;

	ck_assert_int_eq(world_commit(a->at.c, &c, &done), PROTO_STATUS_OK);
	return done.n_stored;
}

static struct proto_match_rep extend(struct actor *a, uint32_t flags)
{
	struct proto_extend_req x = { .lease = a->lease, .flags = flags };
	struct proto_match_rep rep;

	ck_assert_int_eq(world_extend(a->at.c, &x, &rep), PROTO_STATUS_OK);
	return rep;
}

static struct proto_wait_rep wait_for(struct actor *a, uint32_t deadline_us)
{
	struct proto_wait_req m = { .lease = a->lease, .deadline_us = deadline_us };
	struct proto_wait_rep rep;

	ck_assert_int_eq(world_wait(a->at.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.lease, a->lease);
	return rep;
}

static void waits(struct actor *a, uint32_t n)
{
	struct proto_wait_rep rep = wait_for(a, 0);

	ck_assert_int_eq(rep.state, PROTO_WAIT_WAITING);
	ck_assert_uint_eq(rep.n, n);
	ck_assert_uint_gt(rep.leader_us, 0);
}

/* The next thing that the worker was told of its wait. */
static struct proto_event told(struct actor *a)
{
	struct proto_event e;
	uint64_t seq;

	ck_assert(world_event(a->at.c, &seq, &e));
	ck_assert_uint_eq(e.lease, a->lease);
	return e;
}

static void is_told(struct actor *a, uint32_t state, uint32_t n)
{
	struct proto_event e = told(a);

	ck_assert_int_eq(e.state, state);
	ck_assert_uint_eq(e.n, n);
	ck_assert_uint_eq(e.leader_us, state == PROTO_WAIT_LEAD ? 10000000 : 0);
	ck_assert_uint_eq(a->at.c->n_events, 0);
}

static void hears_nothing(const struct actor *a)
{
	ck_assert_uint_eq(a->at.c->n_events, 0);
}

static void release(struct actor *a)
{
	scene_release(&a->at, a->lease, NULL);
}

static uint8_t explained(struct actor *a, uint32_t n_tokens, uint64_t *ret_lost)
{
	struct proto_explain_req m = { .has = PROTO_HAS_ALL,
				       .ns = a->at.ns.ns,
				       .n_tokens = n_tokens,
				       .keys = { tokens, 4 * n_tokens } };
	struct proto_explain_rep rep;

	ck_assert_int_eq(world_explain(a->at.c, &m, &rep), PROTO_STATUS_OK);
	*ret_lost = rep.lost_tokens;
	return rep.reason;
}

/* ---- what is pending ------------------------------------------------------------------------- */

/* Stored but not committed is a miss, and the reason says so; for the same root only. */
START_TEST(not_ready_is_pending)
{
	struct actor a, b, c;
	struct proto_release_rep end;
	uint64_t lost;

	plain();
	a = actor(1, 24, 0);
	ck_assert_int_eq(a.m.reason, PROTO_REASON_NEVER_SEEN);
	ck_assert_int_eq(reserve(&a, 4), PROTO_STATUS_OK); /* 16 of 24 tokens */
	b = actor(2, 24, 0);
	ck_assert(b.m.n_device == 0 && b.m.n_pending == 4);
	ck_assert_int_eq(b.m.reason, PROTO_REASON_PENDING);
	ck_assert_int_eq(explained(&b, 24, &lost), PROTO_REASON_PENDING);
	ck_assert_uint_eq(lost, 16);
	ck_assert_uint_eq(commit(&a, 1), 1);
	c = actor(3, 24, 0);
	ck_assert(c.m.n_device == 1 && c.m.n_pending == 3);
	ck_assert_int_eq(c.m.reason, PROTO_REASON_PENDING);
	scene_release(&c.at, c.lease, &end);
	ck_assert_uint_eq(end.miss_tokens, 20);
	ck_assert_uint_eq(world_counters(&w).miss_pending, 12);
	tokens[5] = 999; /* its second block is another one: what was computed is not its */
	c = actor(4, 24, 0);
	ck_assert(c.m.n_device == 1 && c.m.n_pending == 0);
	ck_assert_int_eq(c.m.reason, PROTO_REASON_NEVER_SEEN);
	tokens[5] = 5;
	o.adapter = world_text("lora"); /* and neither is another namespace's */
	c = actor(5, 24, 0);
	ck_assert(c.m.n_device == 0 && c.m.n_pending == 0);
	o.adapter.n = 0;
	ck_assert_uint_eq(commit(&a, 3), 3);
	ck_assert_uint_eq(extend(&b, 0).n_device, 4);
	scene_release(&b.at, b.lease, &end);
	ck_assert(end.hit_pending_tokens == 16 && end.miss_tokens == 8);
	world_deinit(&w);
}
END_TEST

/* Said with MATCH: pending from then on, before a slot is reserved; the second one is told. */
START_TEST(lead_by_match)
{
	struct actor a, b, c;

	plain();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	ck_assert_uint_eq(a.m.n_pending, 0);
	b = actor(2, 16, PROTO_MATCH_LEAD);
	ck_assert_uint_eq(b.m.n_pending, 4);
	c = actor(3, 24, PROTO_MATCH_LEAD); /* goes further, and leads no part of it */
	ck_assert_uint_eq(c.m.n_pending, 4);
	waits(&b, 4);
	waits(&c, 4);
	ck_assert_int_eq(wait_for(&a, 0).state, PROTO_WAIT_LEAD); /* it knows already */
	ck_assert_int_eq(reserve(&a, 4), PROTO_STATUS_OK);
	ck_assert_uint_eq(commit(&a, 3), 3);
	hears_nothing(&b); /* one frame, when all is there */
	ck_assert_uint_eq(commit(&a, 1), 1);
	is_told(&b, PROTO_WAIT_READY, 4);
	is_told(&c, PROTO_WAIT_READY, 4);
	ck_assert(extend(&c, PROTO_MATCH_LEAD).n_pending == 0);
	ck_assert_int_eq(reserve(&c, 2), PROTO_STATUS_OK);
	ck_assert_uint_eq(extend(&b, 0).n_device, 4);
	ck_assert_uint_eq(world_counters(&w).waits, 2);
	ck_assert_uint_eq(world_counters(&w).waits_ready, 2);
	world_deinit(&w);
}
END_TEST

/* A common stem with different tails: the stem is waited for, the tails are led by each. */
START_TEST(shared_stem)
{
	struct actor a, b, c;
	struct proto_match_rep rep;

	plain();
	a = actor(1, 32, PROTO_MATCH_LEAD);
	tokens[20] = 1000; /* the sixth block is another one */
	b = actor(2, 32, PROTO_MATCH_LEAD);
	ck_assert_uint_eq(b.m.n_pending, 5);
	c = actor(3, 32, PROTO_MATCH_LEAD);
	ck_assert_uint_eq(c.m.n_pending, 5);
	waits(&b, 5);
	waits(&c, 5);
	ck_assert_int_eq(reserve(&a, 8), PROTO_STATUS_OK);
	ck_assert_uint_eq(commit(&a, 5), 5); /* its own tail does not matter to them */
	is_told(&b, PROTO_WAIT_READY, 5);
	is_told(&c, PROTO_WAIT_READY, 5);
	rep = extend(&b, PROTO_MATCH_LEAD);
	ck_assert(rep.n_device == 5 && rep.n_pending == 0);
	rep = extend(&c, PROTO_MATCH_LEAD);
	ck_assert(rep.n_device == 5 && rep.n_pending == 3);
	waits(&c, 3);
	ck_assert_int_eq(reserve(&b, 3), PROTO_STATUS_OK);
	ck_assert_uint_eq(commit(&b, 3), 3);
	is_told(&c, PROTO_WAIT_READY, 3);
	world_deinit(&w);
}
END_TEST

/* ---- a leader fails -------------------------------------------------------------------------- */

enum failure {
	RELEASES,
	DIES,
	LOSES_ITS_SOCKET,
	IS_LATE,
	FINDS_NO_ROOM,
	N_FAILURES
};

static void let_fail(struct actor *a, enum failure how)
{
	struct actor hog;

	switch (how) {
	case RELEASES:
		release(a);
		break;
	case DIES:
		world_kill(&w, 1);
		break;
	case LOSES_ITS_SOCKET:
		world_eof(a->at.c);
		break;
	case IS_LATE:
		world_advance(&w, 10000000000 - 1);
		break;
	case FINDS_NO_ROOM:
		o.adapter = world_text("other");
		hog = actor(99, 256, 0);
		o.adapter.n = 0;
		ck_assert_int_eq(reserve(&hog, 60), PROTO_STATUS_OK);
		ck_assert_int_eq(reserve(a, 1), PROTO_STATUS_BUSY);
		world_kill(&w, 99);
		break;
	case N_FAILURES:
		break;
	}
}

/* Halfway: the longest waiting one leads, the others wait for it; each block is stored once. */
START_TEST(leader_fails_halfway)
{
	struct actor a, b, c;

	plain();
	a = actor(1, 32, PROTO_MATCH_LEAD);
	ck_assert_int_eq(reserve(&a, _i == FINDS_NO_ROOM ? 4 : 8), PROTO_STATUS_OK);
	b = actor(2, 32, PROTO_MATCH_LEAD);
	c = actor(3, 32, PROTO_MATCH_LEAD);
	waits(&b, 8);
	waits(&c, 8);
	ck_assert_uint_eq(commit(&a, 4), 4);
	hears_nothing(&b);
	if (_i == IS_LATE)
		ck_assert_uint_eq(wait_for(&c, 0).leader_us, 10000000);
	let_fail(&a, (enum failure)_i);
	if (_i == IS_LATE) {
		hears_nothing(&b);
		world_advance(&w, 1);
		ck_assert_uint_eq(world_counters(&w).leaders_late, 1);
	}
	is_told(&b, PROTO_WAIT_LEAD, 4);
	hears_nothing(&c);
	ck_assert_uint_eq(extend(&b, PROTO_MATCH_LEAD).n_device, 4);
	ck_assert_int_eq(reserve(&b, 4), PROTO_STATUS_OK);
	ck_assert_uint_eq(commit(&b, 4), 4);
	is_told(&c, PROTO_WAIT_READY, 8);
	ck_assert_uint_eq(extend(&c, PROTO_MATCH_LEAD).n_device, 8);
	ck_assert_uint_eq(world_counters(&w).committed_blocks, 8);
	ck_assert_uint_eq(world_counters(&w).duplicate_blocks, 0);
	if (_i == IS_LATE) { /* it may go on, and learns that others were faster */
		ck_assert_uint_eq(commit(&a, 4), 0);
		ck_assert_uint_eq(world_counters(&w).duplicate_blocks, 4);
	}
	world_deinit(&w);
}
END_TEST

/* Before anything: the same, with nothing there yet.  Who was told LEAD can fail too. */
START_TEST(leaders_fail_one_after_the_other)
{
	struct actor v[MANY];

	plain();
	v[0] = actor(1, 16, PROTO_MATCH_LEAD);
	for (uint32_t i = 1; i < MANY; i++) {
		v[i] = actor(i + 1, 16, PROTO_MATCH_LEAD);
		waits(&v[i], 4);
	}
	for (uint32_t i = 0; i + 1 < MANY; i++) {
		if (i % 3 == 0)
			release(&v[i]);
		else if (i % 3 == 1)
			world_kill(&w, i + 1);
		else
			world_advance(&w, 10000000000);
		is_told(&v[i + 1], PROTO_WAIT_LEAD, 0); /* in the order in which they came */
		for (uint32_t k = i + 2; k < MANY; k++)
			hears_nothing(&v[k]);
	}
	ck_assert_int_eq(reserve(&v[MANY - 1], 4), PROTO_STATUS_OK);
	ck_assert_uint_eq(commit(&v[MANY - 1], 4), 4);
	world_deinit(&w);
}
END_TEST

/* Two reserved the same: when the first fails, the second is waited for, without a word. */
START_TEST(next_reserver_leads)
{
	struct actor a, b, c, d;

	plain();
	a = actor(1, 16, 0);
	b = actor(2, 16, 0); /* nobody had reserved then: both compute */
	ck_assert_int_eq(reserve(&a, 4), PROTO_STATUS_OK);
	ck_assert_int_eq(reserve(&b, 4), PROTO_STATUS_OK);
	c = actor(3, 16, PROTO_MATCH_LEAD);
	d = actor(4, 16, PROTO_MATCH_LEAD);
	waits(&c, 4);
	waits(&d, 4);
	release(&a);
	hears_nothing(&c);
	ck_assert_uint_eq(commit(&b, 4), 4);
	is_told(&c, PROTO_WAIT_READY, 4);
	is_told(&d, PROTO_WAIT_READY, 4);
	world_deinit(&w);
}
END_TEST

/* The one that nobody waits for was faster: at the leader's end all is there. */
START_TEST(another_was_faster)
{
	struct actor a, b, c;

	plain();
	a = actor(1, 16, 0);
	b = actor(2, 16, 0);
	ck_assert_int_eq(reserve(&a, 4), PROTO_STATUS_OK);
	ck_assert_int_eq(reserve(&b, 4), PROTO_STATUS_OK);
	c = actor(3, 16, 0);
	waits(&c, 4);
	ck_assert_uint_eq(commit(&b, 4), 4);
	release(&b);
	hears_nothing(&c);
	release(&a);
	is_told(&c, PROTO_WAIT_READY, 4);
	ck_assert_int_eq(wait_for(&c, 0).state, PROTO_WAIT_READY); /* and asked again: at once */
	world_deinit(&w);
}
END_TEST

/* ---- a waiter leaves ------------------------------------------------------------------------- */

static void leave(struct actor *b, uint32_t how)
{
	switch (how) {
	case 0:
		release(b);
		break;
	case 1:
		world_kill(&w, 2);
		break;
	case 2:
		world_eof(b->at.c);
		break;
	case 3:
		(void)extend(b, 0);
		break;
	default:
		ck_assert_int_eq(reserve(b, 1), PROTO_STATUS_OK); /* it computes, in doubt */
		break;
	}
}

/* However it leaves: it hears nothing more, and the next one is promoted in its place. */
START_TEST(waiter_leaves)
{
	struct actor a, b, c;

	plain();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	b = actor(2, 16, 0);
	c = actor(3, 16, 0);
	waits(&b, 4);
	waits(&c, 4);
	leave(&b, (uint32_t)_i);
	release(&a);
	hears_nothing(&b);
	if (_i == 4) { /* what it reserved is waited for */
		hears_nothing(&c);
		ck_assert_uint_eq(commit(&b, 1), 1);
		is_told(&c, PROTO_WAIT_READY, 1);
	} else {
		is_told(&c, PROTO_WAIT_LEAD, 0);
	}
	world_deinit(&w);
}
END_TEST

/* Deadlines pass in their order; a WAIT anew takes the place of the older one. */
START_TEST(deadlines)
{
	static const uint32_t us[MANY] = { 70, 10, 50, 0, 30, 20, 60, 40, 80 };
	struct actor a, v[9];
	struct proto_event e;
	uint64_t seq, first;

	plain();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	for (uint32_t i = 0; i < 9; i++) {
		v[i] = actor(i + 2, 16, 0);
		ck_assert_int_eq(wait_for(&v[i], us[i]).state, PROTO_WAIT_WAITING);
	}
	first = v[8].at.c->seq;
	ck_assert_int_eq(wait_for(&v[8], 15).state, PROTO_WAIT_WAITING);
	for (uint32_t t = 5; t <= 75; t += 10) {
		world_advance(&w, t == 5 ? 5000 : 10000);
		for (uint32_t i = 0; i < 8; i++) {
			bool due = us[i] && us[i] < t && us[i] + 10 > t;

			ck_assert_uint_eq(v[i].at.c->n_events, due);
			if (due)
				is_told(&v[i], PROTO_WAIT_DEADLINE, 0);
		}
	}
	ck_assert(world_event(v[8].at.c, &seq, &e) && seq == first + 1);
	ck_assert_int_eq(e.state, PROTO_WAIT_DEADLINE);
	hears_nothing(&v[8]);
	hears_nothing(&v[3]); /* without a deadline of its own */
	release(&a);
	is_told(&v[3], PROTO_WAIT_LEAD, 0);
	world_deinit(&w);
}
END_TEST

/* ---- refusals, and the ends of everything ---------------------------------------------------- */

/* The same worker asks for the same prompt again, with another lease. */
static struct actor again(const struct actor *a, uint32_t n_tokens)
{
	struct scene_prompt p = scene_tokens(&a->at, tokens, n_tokens);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = a->at.ns.ns,
				     .n_tokens = n_tokens,
				     .keys = { p.keys, p.n_keys * a->at.ns.key_len } };
	struct actor b = *a;

	ck_assert_int_eq(world_match(b.at.c, &m, &b.m), PROTO_STATUS_OK);
	b.lease = b.m.lease;
	return b;
}

/*
 * A leader has at most 256 waiters: the next one is told to compute, and the others are not hurt.
 */
START_TEST(a_crowd_is_bounded)
{
	struct actor a, b;
	struct proto_wait_req m = { 0 };
	struct proto_wait_rep rep;

	plain();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	b = actor(2, 16, 0);
	for (uint32_t i = 0; i < 256; i++) {
		waits(&b, 4);
		b = again(&b, 16);
	}
	m.lease = b.lease;
	ck_assert_int_eq(world_wait(b.at.c, &m, &rep), PROTO_STATUS_BUSY);
	ck_assert_int_eq(reserve(&b, 4), PROTO_STATUS_OK);
	release(&a);
	ck_assert_uint_eq(b.at.c->n_events, 0); /* b registered next: they wait for it now */
	world_kill(&w, 2);
	world_deinit(&w);
}
END_TEST

START_TEST(wrong_state)
{
	struct actor a, b;
	struct proto_wait_req m = { 0 };
	struct proto_wait_rep rep;

	plain();
	a = actor(1, 16, 0);
	b = actor(2, 16, 0);
	ck_assert_int_eq(reserve(&a, 2), PROTO_STATUS_OK);
	m.lease = a.lease;
	ck_assert_int_eq(world_wait(a.at.c, &m, &rep), PROTO_STATUS_WRONG_STATE);
	ck_assert_str_eq(a.at.c->error_field, "lease");
	m.lease = b.lease;
	ck_assert_int_eq(world_wait(a.at.c, &m, &rep), PROTO_STATUS_UNKNOWN_LEASE);
	ck_assert_uint_eq(commit(&a, 2), 2);
	rep = wait_for(&a, 0); /* nothing is reserved any more, and nobody computes the rest */
	ck_assert(rep.state == PROTO_WAIT_LEAD && rep.n == 0 && rep.leader_us == 10000000);
	release(&b);
	b = actor(3, 8, 0);
	rep = wait_for(&b, 0); /* nothing is missing */
	ck_assert(rep.state == PROTO_WAIT_READY && rep.n == 0);
	world_deinit(&w);
}
END_TEST

/* No room for the wait: refused, and nothing is changed. */
START_TEST(no_memory)
{
	struct actor a, b;
	struct proto_wait_req m = { 0 };
	struct proto_wait_rep rep;

	plain();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	b = actor(2, 16, 0);
	m.lease = b.lease;
	for (uint64_t n = 1; n <= 2; n++) {
		test_heap_fail_at(&w.heap, n);
		if (world_wait(b.at.c, &m, &rep) == PROTO_STATUS_OK)
			break;
		ck_assert_int_eq(b.at.c->h.status, PROTO_STATUS_NO_MEMORY);
		ck_assert_uint_eq(world_counters(&w).waits, 0);
		ck_assert_uint_lt(n, 3);
	}
	test_heap_fail_at(&w.heap, 0);
	waits(&b, 4);
	release(&a);
	is_told(&b, PROTO_WAIT_LEAD, 0);
	world_deinit(&w);
}
END_TEST

/* A daemon that stops wants no leaders; a lease that is taken back waits no more. */
START_TEST(draining_and_revoked)
{
	struct actor a, b, c;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	struct proto_open_rep opened;
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .n_tokens = 16, .keys = { tokens, 64 } };

	world_config_init(&config);
	config.engine.limits.lease_max_age_ns = 1000000;
	begin();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	b = actor(2, 16, 0);
	c.at.c = world_connect(&w, 3, 1000, false);
	hello = world_hello_req(c.at.c);
	hello.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(c.at.c, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(c.at.c, &o, &opened), PROTO_STATUS_OK);
	m.ns = opened.ns;
	ck_assert_int_eq(world_match(c.at.c, &m, &c.m), PROTO_STATUS_OK);
	c.lease = c.m.lease;
	waits(&b, 4);
	waits(&c, 4);
	world_advance(&w, 1000000);
	is_told(&c, PROTO_WAIT_FAILED, 0);
	hears_nothing(&b);
	world_drain(&w, 0);
	ck_assert_int_eq(wait_for(&b, 0).state, PROTO_WAIT_WAITING);
	release(&a);
	is_told(&b, PROTO_WAIT_FAILED, 0);
	ck_assert_int_eq(wait_for(&b, 0).state, PROTO_WAIT_FAILED);
	world_deinit(&w);
}
END_TEST

/* Switched off: nothing is pending, whoever asks may compute. */
START_TEST(switched_off)
{
	struct actor a, b;

	world_config_init(&config);
	config.engine.limits.pending_ns = 0;
	begin();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	ck_assert_int_eq(reserve(&a, 4), PROTO_STATUS_OK);
	b = actor(2, 16, PROTO_MATCH_LEAD);
	ck_assert_uint_eq(b.m.n_pending, 0);
	ck_assert_int_eq(wait_for(&b, 0).state, PROTO_WAIT_LEAD);
	ck_assert_uint_eq(prefixd_engine_deadline(w.engine), UINT64_MAX);
	world_deinit(&w);
}
END_TEST

/* Islands that begin with the same key wait for each other; a rooted lease does not see them. */
START_TEST(islands)
{
	struct actor a, b;
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .flags = PROTO_MATCH_ISLAND | PROTO_MATCH_LEAD,
				     .n_tokens = 16,
				     .keys = { tokens, 64 } };

	plain();
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("seed");
	a.at = scene_place(&w, 1, 1000, &o);
	b.at = scene_place(&w, 2, 1000, &o);
	m.ns = a.at.ns.ns;
	ck_assert_int_eq(world_match(a.at.c, &m, &a.m), PROTO_STATUS_OK);
	ck_assert_int_eq(world_match(b.at.c, &m, &b.m), PROTO_STATUS_OK);
	a.lease = a.m.lease;
	b.lease = b.m.lease;
	ck_assert_uint_eq(b.m.n_pending, 4);
	waits(&b, 4);
	ck_assert_int_eq(reserve(&a, 4), PROTO_STATUS_OK);
	m.flags = 0;
	ck_assert_int_eq(world_match(b.at.c, &m, &b.m), PROTO_STATUS_OK);
	ck_assert_uint_eq(b.m.n_pending, 0);
	ck_assert_uint_eq(commit(&a, 4), 4);
	is_told(&b, PROTO_WAIT_READY, 4);
	ck_assert_uint_eq(extend(&b, 0).n_device, 4);
	world_deinit(&w);
}
END_TEST

/* The same when a third one stored the block meanwhile, and it lies in host memory by now. */
START_TEST(islands_that_sank)
{
	struct proto_reserve_req all = { .n = 2 };
	struct proto_reserve_rep rep;
	struct actor a[4];
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .flags = PROTO_MATCH_ISLAND,
				     .n_tokens = 4,
				     .keys = { tokens, 16 } };

	world_config_init(&config);
	config.engine.pool_blocks = 2;
	config.tiers.host_blocks = 4;
	begin();
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("seed");
	for (uint32_t i = 0; i < 4; i++) {
		a[i].at = scene_place(&w, 1 + i, 1000, &o);
		m.ns = a[i].at.ns.ns;
		if (i == 3) {
			m.keys = (struct proto_span){ tokens + 16, 32 };
			m.n_tokens = 8;
		}
		ck_assert_int_eq(world_match(a[i].at.c, &m, &a[i].m), PROTO_STATUS_OK);
		a[i].lease = a[i].m.lease;
	}
	ck_assert_int_eq(reserve(&a[2], 1), PROTO_STATUS_OK);
	ck_assert_uint_eq(commit(&a[2], 1), 1);
	scene_release(&a[2].at, a[2].lease, NULL);
	all.lease = a[3].lease;
	ck_assert_int_eq(world_reserve_wait(a[3].at.c, &all, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n, 2);
	scene_release(&a[3].at, a[3].lease, NULL);
	ck_assert_int_eq(reserve(&a[0], 1), PROTO_STATUS_OK);
	waits(&a[1], 1);
	world_deinit(&w);
}
END_TEST

/* What the invariants say of leaders and waiters is noticed when it is not so. */
START_TEST(broken_ones_are_reported)
{
	struct prefixd_engine *e;
	struct prefixd_lease *l, *x;
	struct actor a, b, c;
	char why[200];

	world_config_init(&config);
	config.no_verify = true;
	begin();
	a = actor(1, 16, PROTO_MATCH_LEAD);
	b = actor(2, 16, 0);
	c = actor(3, 16, 0);
	ck_assert_int_eq(wait_for(&b, 50).state, PROTO_WAIT_WAITING);
	ck_assert_int_eq(wait_for(&c, 90).state, PROTO_WAIT_WAITING);
	e = w.engine;
	l = e->leases[a.lease & ((1u << PREFIXD_LEASE_IDX_BITS) - 1)];
	x = e->leases[b.lease & ((1u << PREFIXD_LEASE_IDX_BITS) - 1)];
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);
#define BREAK(number, statement, undo)                                                  \
	do {                                                                            \
		statement;                                                              \
		why[0] = '\0';                                                          \
		ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), (number)); \
		ck_assert_str_ne(why, "");                                              \
		undo;                                                                   \
		ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);        \
	} while (0)
	BREAK(14, l->leads_rest = false, l->leads_rest = true);
	BREAK(14, radix_list_remove(&l->lead_due), radix_list_add_tail(&e->lead_due, &l->lead_due));
	BREAK(14, radix_list_remove(&l->leading),
	      radix_list_add_tail(&l->root->leaders, &l->leading));
	BREAK(14, l->session->state = PREFIXD_SESSION_ORPHAN,
	      l->session->state = PREFIXD_SESSION_READY);
	BREAK(15, x->wait_serial = 0, x->wait_serial = 1);
	BREAK(15, x->waits_on = x, x->waits_on = l);
	BREAK(15, x->wait_until = 5, x->wait_until = 4);
	BREAK(15, x->wait_until = 0, x->wait_until = 4);
	BREAK(15, x->wait_serial = 9, x->wait_serial = 1);
	BREAK(16, x->wait_due_ns = UINT64_MAX, x->wait_due_ns = w.now_ns + 50000);
	BREAK(16, x->wait_pos = 1, x->wait_pos = 0);
	BREAK(16, e->n_waits--, e->n_waits++);
#undef BREAK
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("flight");
	TCase *t = tcase_create("flight");

	scene_case(s, "T12", not_ready_is_pending);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, lead_by_match);
	tcase_add_test(t, shared_stem);
	tcase_add_loop_test(t, leader_fails_halfway, 0, N_FAILURES);
	tcase_add_test(t, leaders_fail_one_after_the_other);
	tcase_add_test(t, next_reserver_leads);
	tcase_add_test(t, another_was_faster);
	tcase_add_loop_test(t, waiter_leaves, 0, 5);
	tcase_add_test(t, deadlines);
	tcase_add_test(t, a_crowd_is_bounded);
	tcase_add_test(t, wrong_state);
	tcase_add_test(t, no_memory);
	tcase_add_test(t, draining_and_revoked);
	tcase_add_test(t, switched_off);
	tcase_add_test(t, islands);
	tcase_add_test(t, islands_that_sank);
	tcase_add_test(t, broken_ones_are_reported);
	suite_add_tcase(s, t);
	return scene_main(s);
}
