/*
 * test_lost.c - a pool's device is lost, in every state that leases, moves, loads and waits may be
 * in: who held something is told, what lies lower stays, and new memory serves again.
 */
#include "tests/engine/lift.h"
#include "tests/engine/tiers_scene.h"

#define SECOND 1000000000ull

static int match_status(const struct scene_place *at, uint32_t id, uint32_t n,
			struct proto_match_rep *ret)
{
	struct scene_prompt p = room_prompt(id, n);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = at->ns.ns,
				     .n_tokens = n * LIFT_BT,
				     .keys = { p.keys, n * at->ns.key_len } };

	return world_match(at->c, &m, ret);
}

static int open_status(struct world_client *c, struct proto_open_rep *ret)
{
	struct proto_open_req o = world_open_req("m");

	return world_open(c, &o, ret);
}

/* A worker that speaks no version above `version`. */
static struct scene_place older(struct world *w, uint32_t pid, uint16_t version)
{
	struct scene_place at = { .c = world_connect(w, pid, 1000, false) };
	struct proto_hello_req m = world_hello_req(at.c);
	struct proto_hello_rep rep;

	m.version_max = version;
	ck_assert_int_eq(world_hello(at.c, &m, &rep), 0);
	ck_assert_int_eq(open_status(at.c, &at.ns), 0);
	return at;
}

/* Opens it again, and says what its pool is called. */
static struct proto_id pool_name(struct scene_place *at)
{
	ck_assert_int_eq(open_status(at->c, &at->ns), 0);
	ck_assert_uint_eq(at->ns.flags & PROTO_OPENED_KEPT, 0);
	return at->ns.pool;
}

/* Every slot is free or a block's; nothing is held. */
static void check_quiet(struct world *w)
{
	struct radix_stats st = room_stats(w);

	ck_assert_uint_eq(world_in_flight(w), 0);
	ck_assert_uint_eq(st.n_pins, 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], st.n_slots);
}

/* ---- who held something ---------------------------------------------------------------------- */

START_TEST(leases_end_and_say_so)
{
	struct world_config config;
	struct world *w;
	struct scene_place a, b;
	struct room_lease held, reserving, next;
	struct proto_commit_req c = { .n = 1 };
	struct proto_commit_rep crep;
	struct proto_match_rep m;
	struct proto_id before, after;
	struct radix_stats st;

	room_config(&config, 16, 0);
	config.hold_pools = false;
	w = room_world(&config);
	a = room_place(w, 100);
	b = older(w, 101, 2);
	before = pool_name(&a);
	room_put(&a, 0, 4);
	held = room_match(&a, 0, 4);
	reserving = room_match(&b, 1, 4);
	ck_assert_int_eq(room_reserve(&b, &reserving, 4, 0, NULL), 0);
	w->config.hold_pools = true;
	world_pool_lost(w, 0);
	/* The one is told at once, the other when it asks. */
	ck_assert_uint_eq(a.c->n_lost, 1);
	ck_assert_uint_eq(a.c->lost_seq, 0);
	ck_assert_uint_eq(b.c->n_lost, 0);
	c.lease = reserving.id;
	ck_assert_int_eq(world_commit(b.c, &c, &crep), PROTO_STATUS_REVOKED);
	ck_assert_int_eq(world_commit(b.c, &c, &crep), PROTO_STATUS_UNKNOWN_LEASE);
	c.lease = held.id;
	ck_assert_int_eq(world_commit(a.c, &c, &crep), PROTO_STATUS_DEVICE_LOST);
	ck_assert_uint_gt(a.c->retry_after_us, 0);
	ck_assert_int_eq(world_commit(a.c, &c, &crep), PROTO_STATUS_UNKNOWN_LEASE);
	/* Nothing is left of it, and nobody gets anything. */
	st = room_stats(w);
	ck_assert_uint_eq(st.n_blocks, 0);
	ck_assert_uint_eq(st.removed[RADIX_REMOVE_DEVICE], 4);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE], 16);
	ck_assert_int_eq(match_status(&a, 0, 4, &m), PROTO_STATUS_DEVICE_LOST);
	ck_assert_int_eq(match_status(&b, 0, 4, &m), PROTO_STATUS_BUSY);
	ck_assert_uint_gt(b.c->retry_after_us, 0);
	ck_assert_int_eq(open_status(a.c, &a.ns), PROTO_STATUS_DEVICE_LOST);
	ck_assert_int_eq(open_status(b.c, &b.ns), PROTO_STATUS_BUSY);
	/* New memory, with another name, serves as before. */
	world_pool_answer(w, true);
	/* What was mapped before is not the new memory: nobody is served before he opens it. */
	ck_assert_int_eq(match_status(&a, 0, 4, &m), PROTO_STATUS_UNKNOWN_NAMESPACE);
	ck_assert_int_eq(match_status(&b, 0, 4, &m), PROTO_STATUS_UNKNOWN_NAMESPACE);
	after = pool_name(&a);
	(void)pool_name(&b);
	ck_assert(!proto_id_equal(&before, &after));
	ck_assert_uint_eq(room_match(&a, 0, 4).n_device, 0);
	room_put(&b, 0, 4);
	next = room_match(&a, 0, 4);
	ck_assert_uint_eq(next.n_device, 4);
	ck_assert_uint_eq(world_counters(w).pools_lost, 1);
	ck_assert_uint_eq(world_counters(w).refused_lost, 4);
	world_kill(w, 100);
	world_kill(w, 101);
	check_quiet(w);
	world_deinit(w);
}
END_TEST

/* Slots that were kept back for who may still write them are of memory that is not used again. */
START_TEST(quarantine_and_orphans_end)
{
	struct world_config config;
	struct world *w;
	struct scene_place a, b, c;
	struct room_lease l;

	room_config(&config, 16, 0);
	config.engine.grace_ns = 5 * SECOND;
	w = room_world(&config);
	a = room_place(w, 100);
	b = room_place(w, 101);
	c = room_place(w, 102);
	l = room_match(&a, 0, 4);
	ck_assert_int_eq(room_reserve(&a, &l, 4, 0, NULL), 0);
	l = room_match(&b, 1, 4);
	ck_assert_int_eq(room_reserve(&b, &l, 4, 0, NULL), 0);
	world_kill(w, 100);
	world_eof(b.c);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_QUARANTINED], 4);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_RESERVED], 4);
	world_pool_lost(w, 0);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 16);
	ck_assert(!b.c->used); /* it held nothing else: nobody waits for its process */
	ck_assert_uint_eq(c.c->n_lost, 1);
	(void)pool_name(&c);
	room_put(&c, 2, 16);
	world_kill(w, 102);
	check_quiet(w);
	world_deinit(w);
}
END_TEST

/* A RESERVE, and a WAIT for another's blocks, that have no answer yet. */
START_TEST(who_waits_is_told)
{
	struct world_config config;
	struct world *w;
	struct scene_place a, b;
	struct room_lease l, leader, waiter;
	struct proto_wait_req wait = { 0 };
	struct proto_wait_rep wrep;
	struct proto_event e;
	uint64_t seq;

	room_config(&config, 8, 8);
	w = room_world(&config);
	a = room_place(w, 100);
	b = room_place(w, 101);
	room_put(&a, 0, 8);
	l = room_match(&a, 1, 4);
	ck_assert_int_eq(room_reserve(&a, &l, 4, 1000000, NULL), -EINPROGRESS);
	leader = room_match(&b, 2, 2);
	(void)leader;
	waiter = room_match(&a, 3, 2);
	wait.lease = waiter.id;
	(void)world_wait(a.c, &wait, &wrep);
	world_pool_lost(w, 0);
	ck_assert_int_eq(room_reply(&a, &l, NULL), PROTO_STATUS_DEVICE_LOST);
	while (world_event(a.c, &seq, &e))
		ck_assert_uint_eq(e.state, PROTO_WAIT_FAILED);
	world_run_until_idle(w);
	(void)pool_name(&b);
	room_put(&b, 4, 8);
	world_kill(w, 100);
	world_kill(w, 101);
	check_quiet(w);
	world_deinit(w);
}
END_TEST

/* ---- what lies lower ------------------------------------------------------------------------- */

static uint64_t members(void)
{
	struct radix_stats st;

	world_stats(&tiers.w, 0, &st);
	return st.n_blocks;
}

/* Waits until all moves have ended, and gives the pool memory again. */
static void lose_and_renew(struct scene_place *at)
{
	tiers.w.config.hold_pools = true;
	world_pool_lost(&tiers.w, 0);
	world_run_until_idle(&tiers.w);
	ck_assert_uint_eq(tiers.w.n_wanted, 1);
	world_pool_answer(&tiers.w, true);
	tiers.w.config.hold_pools = false;
	if (at)
		(void)pool_name(at);
}

static void check_comes_up(const struct scene_place *at, uint32_t p)
{
	struct scene_prompt x = tiers_prompt(at, p);
	uint64_t lease;

	ck_assert_uint_eq(scene_bring_up(at, &x, (uint8_t)(p + 1), &lease), BLOCKS);
	scene_release(at, lease, NULL);
	world_run_until_idle(&tiers.w);
}

/* _i: with a host tier, with Redis alone, with both. */
START_TEST(lower_copies_serve)
{
	struct scene_place at;

	tiers_configure(2 * BLOCKS, _i == 1 ? 0 : 8 * BLOCKS, _i > 0);
	tiers.config.engine.write = PREFIXD_WRITE_THROUGH;
	at = tiers_begin();
	for (uint32_t p = 0; p < 4; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	ck_assert_uint_eq(members(), 4 * BLOCKS);
	lose_and_renew(&at);
	ck_assert_uint_eq(at.c->n_lost, 1);
	ck_assert_uint_eq(members(), 4 * BLOCKS);
	for (uint32_t p = 0; p < 4; p++) {
		tiers_check_at(&at, p, 0, _i == 1 ? 0 : BLOCKS, _i == 1 ? BLOCKS : 0);
		check_comes_up(&at, p);
	}
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* The beginning of a path was on the device alone: what hangs below it has nothing to stand on. */
START_TEST(path_without_beginning_goes)
{
	struct scene_place at;
	struct radix_stats st;

	tiers_configure(BLOCKS + 4, 4 * BLOCKS, false);
	at = tiers_begin();
	ck_assert_uint_eq(tiers_put(&at, 0), BLOCKS);
	ck_assert_uint_eq(tiers_put(&at, 1), BLOCKS);
	tiers_check_at(&at, 0, 4, 4, 0);
	lose_and_renew(&at);
	world_stats(&tiers.w, 0, &st);
	ck_assert_uint_eq(st.n_blocks, 0);
	ck_assert_uint_eq(st.removed[RADIX_REMOVE_DEVICE], 2 * BLOCKS);
	ck_assert_uint_eq(st.host[RADIX_SLOT_FREE], st.n_host);
	ck_assert_uint_eq(tiers_put(&at, 0), BLOCKS);
	check_comes_up(&at, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- what is under way ----------------------------------------------------------------------- */

/* Copies down, up, and a question to Redis: the pool is lost with them, and waits for their end. */
START_TEST(moves_end_first)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event e;
	uint64_t seq, got;

	tiers_configure(2 * BLOCKS, 8 * BLOCKS, true);
	tiers.config.engine.write = PREFIXD_WRITE_THROUGH;
	tiers.config.tiers.copy.latency_ns = 1000000;
	at = tiers_begin();
	for (uint32_t p = 0; p < 4; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	x = tiers_prompt(&at, 0);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_host, BLOCKS);
	x = tiers_prompt(&at, 5);
	ck_assert_uint_eq(scene_put(&at, &x, 6), BLOCKS); /* writes down meanwhile */
	ck_assert_uint_gt(world_in_flight(&tiers.w), 0);
	tiers.w.config.hold_pools = true;
	world_pool_lost(&tiers.w, 0);
	ck_assert(world_event(at.c, &got, &e));
	ck_assert_uint_eq(got, seq);
	ck_assert_int_eq(e.state, PROTO_WAIT_FAILED);
	ck_assert_uint_eq(tiers.w.n_wanted, 0); /* not before what is under way has ended */
	ck_assert_int_eq(open_status(at.c, &at.ns), PROTO_STATUS_DEVICE_LOST);
	world_run_until_idle(&tiers.w);
	ck_assert_uint_eq(tiers.w.n_wanted, 1);
	world_pool_lost(&tiers.w, 0); /* it is known: nothing changes */
	ck_assert_uint_eq(tiers.w.n_wanted, 1);
	world_pool_answer(&tiers.w, true);
	ck_assert_int_eq(open_status(at.c, &at.ns), PROTO_STATUS_OK);
	for (uint32_t p = 0; p < 4; p++)
		check_comes_up(&at, p);
	tiers_check_at(&at, 5, 0, 0, 0); /* its copies failed with the device */
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	ck_assert_uint_eq(at.c->n_lost, 1);
	world_deinit(&tiers.w);
}
END_TEST

/* Some blocks of a load came up before, to memory that is gone: it brought nothing. */
START_TEST(what_came_up_is_lost_too)
{
	struct world_tiers_stats st = { 0 };
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event e;
	uint64_t seq, got;

	tiers_configure(2 * BLOCKS, 8 * BLOCKS, false);
	tiers.config.engine.write = PREFIXD_WRITE_THROUGH;
	tiers.config.tiers.copy.bytes_per_s = 10000;
	at = tiers_begin();
	for (uint32_t p = 0; p < 4; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	x = tiers_prompt(&at, 0);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_host, BLOCKS);
	while (st.moved[RADIX_TIER_HOST][RADIX_TIER_DEVICE] < BLOCKS / 2) {
		world_advance(&tiers.w, 1000000);
		world_tiers_stats(&tiers.w, &st);
	}
	ck_assert_uint_lt(st.moved[RADIX_TIER_HOST][RADIX_TIER_DEVICE], BLOCKS);
	ck_assert(!world_event(at.c, &got, &e));
	tiers.w.config.hold_pools = true;
	world_pool_lost(&tiers.w, 0);
	ck_assert(world_event(at.c, &got, &e));
	ck_assert_uint_eq(got, seq);
	ck_assert_int_eq(e.state, PROTO_WAIT_FAILED);
	ck_assert_uint_eq(e.n, 0);
	ck_assert_int_eq(e.reason, PROTO_REASON_TIER_DOWN);
	world_run_until_idle(&tiers.w);
	world_pool_answer(&tiers.w, true);
	(void)pool_name(&at);
	tiers_check_at(&at, 0, 0, BLOCKS, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* Without memory it is asked for again, later each time, up to a minute. */
START_TEST(asks_later_each_time)
{
	static const uint64_t waits[] = { 1, 2, 4, 8, 16, 32, 60, 60 };
	struct scene_place at;
	struct proto_match_rep m;

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, false);
	tiers.config.engine.write = PREFIXD_WRITE_THROUGH;
	at = tiers_begin();
	ck_assert_uint_eq(tiers_put(&at, 0), BLOCKS);
	tiers.w.config.hold_pools = true;
	world_pool_lost(&tiers.w, 0);
	for (uint32_t i = 0; i < radix_array_size(waits); i++) {
		ck_assert_uint_eq(tiers.w.n_wanted, 1);
		world_pool_answer(&tiers.w, false);
		ck_assert_int_eq(match_status(&at, 0, BLOCKS, &m), PROTO_STATUS_DEVICE_LOST);
		ck_assert_uint_eq(at.c->retry_after_us, waits[i] * 1000000);
		world_advance(&tiers.w, waits[i] * SECOND - 1);
		ck_assert_uint_eq(tiers.w.n_wanted, 0);
		world_advance(&tiers.w, 1);
	}
	world_pool_answer(&tiers.w, true);
	(void)pool_name(&at);
	check_comes_up(&at, 0);
	/* The next loss begins anew. */
	world_pool_lost(&tiers.w, 0);
	world_pool_answer(&tiers.w, false);
	world_advance(&tiers.w, SECOND);
	ck_assert_uint_eq(tiers.w.n_wanted, 1);
	world_pool_answer(&tiers.w, true);
	(void)pool_name(&at);
	check_comes_up(&at, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- any state ------------------------------------------------------------------------------- */

/*
 * Everything that two workers may do, one call after the other; the pool is lost before call
 * number `at`, and its memory comes two calls later.  No call fails but for that.
 */
struct story {
	uint32_t at, n;
	bool grace;
	struct scene_place a, b;
	uint64_t leases[16];
	uint32_t n_leases;
};

static bool told_lost(int status)
{
	return status == PROTO_STATUS_OK || status == PROTO_STATUS_DEVICE_LOST ||
	       status == PROTO_STATUS_BUSY || status == PROTO_STATUS_UNKNOWN_LEASE ||
	       status == PROTO_STATUS_WRONG_STATE || status == -EINPROGRESS;
}

static void turn(struct story *s)
{
	s->n++;
	if (s->n == s->at) {
		tiers.w.config.hold_pools = true;
		world_pool_lost(&tiers.w, 0);
	}
	if (s->n == s->at + 2) {
		world_run_until_idle(&tiers.w);
		world_pool_answer(&tiers.w, true);
		tiers.w.config.hold_pools = false;
		if (s->a.c->open)
			(void)pool_name(&s->a);
		if (s->b.c->open)
			(void)pool_name(&s->b);
	}
}

static uint64_t do_match(struct story *s, const struct scene_place *at, uint32_t p, uint32_t flags)
{
	struct scene_prompt x = tiers_prompt(at, p);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = at->ns.ns,
				     .flags = flags,
				     .n_tokens = BLOCKS * BT,
				     .keys = { x.keys, x.n_keys * at->ns.key_len } };
	struct proto_match_rep rep = { 0 };

	turn(s);
	m.ns = at->ns.ns; /* it may have been opened again */
	ck_assert(told_lost(world_match(at->c, &m, &rep)));
	if (rep.lease)
		s->leases[s->n_leases++] = rep.lease;
	return rep.lease;
}

static void do_reserve(struct story *s, const struct scene_place *at, uint64_t lease, uint32_t n)
{
	struct proto_reserve_req r = { .lease = lease, .n = n };
	struct proto_reserve_rep rep;

	turn(s);
	ck_assert(told_lost(world_reserve(at->c, &r, &rep)));
}

static void do_commit(struct story *s, const struct scene_place *at, uint64_t lease, uint32_t n)
{
	struct proto_commit_req c = { .lease = lease, .n = n };
	struct proto_commit_rep rep;

	turn(s);
	ck_assert(told_lost(world_commit(at->c, &c, &rep)));
}

static void do_pass(struct story *s, uint64_t ns)
{
	turn(s);
	world_advance(&tiers.w, ns);
}

static void do_prefetch(struct story *s, const struct scene_place *at, uint32_t p)
{
	struct scene_prompt x = tiers_prompt(at, p);
	struct proto_prefetch_req m = { .has = PROTO_HAS_ALL,
					.ns = at->ns.ns,
					.n_tokens = BLOCKS * BT,
					.keys = { x.keys, x.n_keys * at->ns.key_len } };
	struct proto_prefetch_rep rep;

	turn(s);
	m.ns = at->ns.ns;
	ck_assert(told_lost(world_prefetch(at->c, &m, &rep)));
}

static void do_wait(struct story *s, const struct scene_place *at, uint64_t lease)
{
	struct proto_wait_req m = { .lease = lease, .deadline_us = 50000 };
	struct proto_wait_rep rep;

	turn(s);
	ck_assert(told_lost(world_wait(at->c, &m, &rep)));
}

static void do_release(struct story *s, const struct scene_place *at, uint64_t lease)
{
	struct proto_release_req m = { .lease = lease };
	struct proto_release_rep rep;

	turn(s);
	ck_assert(told_lost(world_release(at->c, &m, &rep)));
}

static void do_put(struct story *s, const struct scene_place *at, uint32_t p)
{
	uint64_t l = do_match(s, at, p, 0);

	do_reserve(s, at, l, BLOCKS);
	do_commit(s, at, l, BLOCKS / 2);
	do_pass(s, 2000000);
	do_commit(s, at, l, BLOCKS / 2);
	do_release(s, at, l);
}

static void tell(struct story *s)
{
	uint64_t l, k;

	for (uint32_t p = 0; p < 4; p++)
		do_put(s, &s->a, p);
	l = do_match(s, &s->b, 0, PROTO_MATCH_PROMOTE);
	do_pass(s, 15000);
	do_prefetch(s, &s->a, 1);
	k = do_match(s, &s->a, 6, PROTO_MATCH_LEAD);
	do_reserve(s, &s->a, k, BLOCKS);
	do_commit(s, &s->a, k, 2);
	l = do_match(s, &s->b, 6, 0);
	do_wait(s, &s->b, l);
	do_pass(s, 100000);
	l = do_match(s, &s->a, 7, 0);
	do_reserve(s, &s->a, l, BLOCKS);
	do_match(s, &s->b, 9, 0); /* Redis is asked */
	turn(s);
	world_eof(s->a.c);
	do_pass(s, 10000);
	turn(s);
	world_kill(&tiers.w, 100);
	do_pass(s, 10000);
	turn(s);
}

static void end_story(struct story *s)
{
	struct proto_match_rep m;

	while (s->n < s->at + 2)
		turn(s);
	world_run_until_idle(&tiers.w);
	world_kill(&tiers.w, 101);
	world_run_until_idle(&tiers.w);
	world_advance(&tiers.w, 10 * SECOND);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	s->a = room_place(&tiers.w, 103);
	for (uint32_t p = 10; p < 12; p++) {
		ck_assert_uint_eq(tiers_put(&s->a, p), BLOCKS);
		check_comes_up(&s->a, p);
	}
	ck_assert_int_eq(match_status(&s->a, 0, 1, &m), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&tiers.w).pools_lost, s->at > 0);
	world_deinit(&tiers.w);
}

/* _i & 1: with grace; & 2: written through. */
START_TEST(in_every_state)
{
	uint32_t longest = 0;

	for (uint32_t at = 0; at <= longest; at++) {
		struct story s = { .at = at };

		tiers_configure(2 * BLOCKS, 3 * BLOCKS, true);
		tiers.config.engine.grace_ns = _i & 1 ? SECOND : 0;
		tiers.config.engine.write = _i & 2 ? PREFIXD_WRITE_THROUGH : PREFIXD_WRITE_BACK;
		tiers.config.engine.limits.pending_ns = SECOND;
		s.a = tiers_begin();
		s.b = room_place(&tiers.w, 101);
		tell(&s);
		longest = at == 0 ? s.n : longest;
		end_story(&s);
	}
	ck_assert_uint_gt(longest, 40);
}
END_TEST

/* ---- other lives ----------------------------------------------------------------------------- */

static struct scene_place kept_begin(void)
{
	struct scene_place at;

	tiers_configure(2 * BLOCKS, 8 * BLOCKS, false);
	tiers.config.engine.write = PREFIXD_WRITE_THROUGH;
	tiers.config.keep = true;
	at = tiers_begin();
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	return at;
}

/* What an earlier life left is being compared with its checksums; _i: before anybody is served. */
START_TEST(lost_while_compared)
{
	struct scene_place at;
	struct proto_open_rep o;

	(void)kept_begin();
	world_life_kill(&tiers.w);
	tiers.w.config.engine.verify = _i ? PREFIXD_VERIFY_FULL : PREFIXD_VERIFY_BACKGROUND;
	tiers.w.life.check_ns = 10000000;
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	ck_assert_uint_gt(tiers.w.life.n_checks, 0);
	at.c = world_worker(&tiers.w, 101, 1000);
	if (_i) {
		struct proto_open_req q = world_open_req("m");

		ck_assert_int_eq(world_open(at.c, &q, &o), -EINPROGRESS);
	}
	lose_and_renew(NULL);
	if (_i)
		ck_assert_int_eq(world_open_reply(at.c, &o), PROTO_STATUS_DEVICE_LOST);
	at = room_place(&tiers.w, 102);
	for (uint32_t p = 0; p < 3; p++)
		check_comes_up(&at, p);
	world_advance(&tiers.w, SECOND);
	world_kill(&tiers.w, 100);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* The daemon ends while the pool has no memory; the next one makes it, and has what lay lower. */
START_TEST(next_life_makes_it)
{
	struct scene_place at = kept_begin();
	struct proto_id before = pool_name(&at), after;

	tiers.w.config.hold_pools = true;
	world_pool_lost(&tiers.w, 0);
	ck_assert_uint_eq(tiers.w.n_wanted, 1);
	world_life_kill(&tiers.w);
	tiers.w.config.hold_pools = false;
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at = room_place(&tiers.w, 102);
	after = at.ns.pool;
	ck_assert(!proto_id_equal(&before, &after));
	for (uint32_t p = 0; p < 3; p++)
		check_comes_up(&at, p);
	world_kill(&tiers.w, 100);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/*
 * The device was lost while no daemon was there to hear of it, or before it could say so, and
 * nothing lay in the pool but what somebody was to fill: the memory is another one all the same.
 */
START_TEST(new_memory_for_nothing)
{
	struct scene_place at;
	struct room_lease l;
	struct proto_id before;

	tiers_configure(2 * BLOCKS, 8 * BLOCKS, false);
	tiers.config.keep = true;
	at = tiers_begin();
	before = at.ns.pool;
	l = room_match(&at, 0, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), 0);
	world_life_kill(&tiers.w);
	if (_i)
		world_pool_lost(&tiers.w, 0);
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at.c = world_worker(&tiers.w, 100, 1000);
	ck_assert_int_eq(open_status(at.c, &at.ns), 0);
	ck_assert_int_eq(proto_id_equal(&before, &at.ns.pool), !_i);
	ck_assert_int_eq(at.ns.flags & PROTO_OPENED_KEPT, _i ? 0 : PROTO_OPENED_KEPT);
	before = at.ns.pool;
	/* The name stays with it. */
	world_life_kill(&tiers.w);
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at = room_place(&tiers.w, 102);
	ck_assert(proto_id_equal(&before, &at.ns.pool));
	ck_assert_uint_ne(at.ns.flags & PROTO_OPENED_KEPT, 0);
	world_kill(&tiers.w, 100);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("lost");
	TCase *lives = tcase_create("lives");
	TCase *lower = tcase_create("lower"), *any = tcase_create("any");

	scene_case(s, "leases", leases_end_and_say_so);
	scene_case(s, "kept-back", quarantine_and_orphans_end);
	scene_case(s, "waits", who_waits_is_told);
	tcase_add_loop_test(lower, lower_copies_serve, 0, 3);
	suite_add_tcase(s, lower);
	scene_case(s, "no-beginning", path_without_beginning_goes);
	scene_case(s, "moves", moves_end_first);
	scene_case(s, "came-up", what_came_up_is_lost_too);
	scene_case(s, "later", asks_later_each_time);
	tcase_set_timeout(any, 120);
	tcase_add_loop_test(any, in_every_state, 0, 4);
	suite_add_tcase(s, any);
	tcase_add_loop_test(lives, lost_while_compared, 0, 2);
	tcase_add_test(lives, next_life_makes_it);
	tcase_add_loop_test(lives, new_memory_for_nothing, 0, 2);
	suite_add_tcase(s, lives);
	return scene_main(s);
}
