/*
 * test_room.c - who waits for slots, in which order, for how long, and what is dropped for whom.
 */
#include "tests/engine/room.h"

/* Cold blocks move down, and then the reply comes; nothing is lost. */
START_TEST(deferred)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	ck_assert_uint_eq(world_in_flight(w), 4);
	world_advance(w, 4 * ROOM_MS - 1);
	ck_assert_int_eq(room_reply(&at, &l, NULL), -EINPROGRESS);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 3); /* nothing is held meanwhile */
	world_advance(w, 1);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 4);
	ck_assert_uint_eq(world_counters(w).deferred_reserves, 1);
	ck_assert_uint_eq(world_counters(w).reserve_deadline, 0);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 4);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 4);
	room_commit(&at, &l, 4);
	room_release(&at, &l);
	l = room_match(&at, 0, 8);
	ck_assert_uint_eq(l.n_device, 4);
	ck_assert_uint_eq(l.n_host, 4);
	room_release(&at, &l);
	world_deinit(w);
}
END_TEST

/* Victims that have a copy below go at once. */
START_TEST(clean_at_once)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	config.engine.write = PREFIXD_WRITE_THROUGH;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).n_bonus, 8);
	l = room_match(&at, 1, 5);
	ck_assert_int_eq(room_reserve(&at, &l, 5, 0, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 5);
	ck_assert_uint_eq(world_counters(w).deferred_reserves, 0);
	ck_assert_uint_eq(room_stats(w).n_bonus, 3);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 5);
	world_deinit(w);
}
END_TEST

/* Nothing free, nothing cold, nothing on its way: BUSY in the same step. */
START_TEST(busy_at_once)
{
	struct world_config config;
	struct room_lease held, l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	held = room_match(&at, 0, 6);
	ck_assert_int_eq(room_reserve(&at, &held, 6, 0, NULL), PROTO_STATUS_OK);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 2);
	ck_assert_int_eq(room_reserve(&at, &l, 2, 0, NULL), PROTO_STATUS_BUSY);
	room_commit(&at, &held, 6);
	ck_assert_int_eq(room_reserve(&at, &l, 2, 0, NULL),
			 PROTO_STATUS_BUSY); /* pinned is not cold */
	room_release(&at, &held);
	ck_assert_int_eq(room_reserve(&at, &l, 2, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 2);
	world_deinit(w);
}
END_TEST

/* What is on its way may come too late: others are dropped, and only as many as are wanted. */
START_TEST(deadline)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	world_delay(w, 100 * ROOM_MS, 100);
	l = room_match(&at, 1, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 5000, NULL), -EINPROGRESS);
	world_advance(w, 5 * ROOM_MS - 1);
	ck_assert_int_eq(room_reply(&at, &l, NULL), -EINPROGRESS);
	world_advance(w, 1);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(world_counters(w).reserve_deadline, 1);
	ck_assert_uint_ge(world_counters(w).dropped_blocks, 3);
	ck_assert_uint_eq(room_stats(w).removed[RADIX_REMOVE_DROPPED],
			  world_counters(w).dropped_blocks);
	room_release(&at, &l);
	world_run_until_idle(w);
	/* Without a deadline of its own the daemon's holds. */
	room_put(&at, 2, 8);
	world_delay(w, 10000 * ROOM_MS, 100);
	l = room_match(&at, 3, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), -EINPROGRESS);
	world_advance(w, 2000 * ROOM_MS - 1);
	ck_assert_int_eq(room_reply(&at, &l, NULL), -EINPROGRESS);
	world_advance(w, 1);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	world_deinit(w);
}
END_TEST

/* All that is cold is on its way when the deadline comes: BUSY, and the slots stay untouched. */
START_TEST(deadline_for_nothing)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 4, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	world_delay(w, 100 * ROOM_MS, 100);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 5000, NULL), -EINPROGRESS);
	world_advance(w, 5 * ROOM_MS);
	ck_assert_int_eq(room_reply(&at, &l, NULL), PROTO_STATUS_BUSY);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	ck_assert_uint_eq(world_in_flight(w), 4);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 4);
	world_deinit(w);
}
END_TEST

/* First come, first served, whatever fits sooner; and who is late gets only what nobody claims. */
START_TEST(order)
{
	struct world_config config;
	struct scene_place a, b, c;
	struct room_lease la, lb, lc;
	struct world *w;
	uint32_t n;

	room_config(&config, 8, 16);
	w = room_world(&config);
	a = room_place(w, 100);
	b = room_place(w, 101);
	c = room_place(w, 102);
	room_put(&a, 0, 8);
	la = room_match(&a, 1, 4);
	lb = room_match(&b, 2, 2);
	lc = room_match(&c, 3, 1);
	ck_assert_int_eq(room_reserve(&a, &la, 4, 0, NULL), -EINPROGRESS);
	ck_assert_int_eq(room_reserve(&b, &lb, 2, 0, NULL), -EINPROGRESS);
	ck_assert_int_eq(room_reserve(&c, &lc, 1, 0, NULL), -EINPROGRESS);
	ck_assert_uint_eq(world_in_flight(w), 7); /* room is made for all of them at once */
	world_advance(w, 3 * ROOM_MS);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 3);
	ck_assert_int_eq(room_reply(&b, &lb, NULL), -EINPROGRESS);
	ck_assert_int_eq(room_reply(&c, &lc, NULL), -EINPROGRESS);
	world_advance(w, ROOM_MS);
	ck_assert_int_eq(room_reply(&a, &la, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 4);
	world_advance(w, ROOM_MS);
	ck_assert_int_eq(room_reply(&b, &lb, NULL), -EINPROGRESS);
	ck_assert_int_eq(room_reply(&c, &lc, NULL), -EINPROGRESS);
	world_advance(w, ROOM_MS);
	ck_assert_int_eq(room_reply(&b, &lb, &n), PROTO_STATUS_OK);
	ck_assert_int_eq(room_reply(&c, &lc, NULL), -EINPROGRESS);
	world_advance(w, ROOM_MS);
	ck_assert_int_eq(room_reply(&c, &lc, &n), PROTO_STATUS_OK);
	world_deinit(w);
}
END_TEST

/* A later one may be in more of a hurry: what is dropped for it is its own, the rest is not. */
START_TEST(hurry)
{
	struct world_config config;
	struct scene_place a, b;
	struct room_lease la, lb;
	struct world *w;
	uint32_t n;

	room_config(&config, 8, 16);
	w = room_world(&config);
	a = room_place(w, 100);
	b = room_place(w, 101);
	room_put(&a, 0, 8);
	la = room_match(&a, 1, 5);
	lb = room_match(&b, 2, 1);
	ck_assert_int_eq(room_reserve(&a, &la, 5, 0, NULL), -EINPROGRESS);
	world_advance(w, 2 * ROOM_MS);
	world_delay(w, 50 * ROOM_MS, 1);
	ck_assert_int_eq(room_reserve(&b, &lb, 1, 1500, NULL), -EINPROGRESS);
	world_advance(w, 3 * ROOM_MS / 2);
	/* Three are free, which the first one claims; one of the last two cold ones was dropped. */
	ck_assert_int_eq(room_reply(&b, &lb, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_ge(world_counters(w).dropped_blocks, 1);
	ck_assert_int_eq(room_reply(&a, &la, NULL), -EINPROGRESS);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 3);
	world_advance(w, 2 * ROOM_MS);
	ck_assert_int_eq(room_reply(&a, &la, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 5);
	world_deinit(w);
}
END_TEST

/* Who dies, or loses its socket, is not answered; those behind go on. */
START_TEST(death)
{
	for (uint32_t orphan = 0; orphan < 2; orphan++) {
		struct world_config config;
		struct scene_place a, b;
		struct room_lease la, lb;
		struct world *w;
		uint32_t n;

		room_config(&config, 8, 16);
		w = room_world(&config);
		a = room_place(w, 100);
		b = room_place(w, 101);
		room_put(&a, 0, 8);
		la = room_match(&a, 1, 6);
		lb = room_match(&b, 2, 2);
		ck_assert_int_eq(room_reserve(&a, &la, 6, 0, NULL), -EINPROGRESS);
		ck_assert_int_eq(room_reserve(&b, &lb, 2, 0, NULL), -EINPROGRESS);
		world_advance(w, 2 * ROOM_MS);
		if (orphan)
			world_eof(a.c);
		else
			world_kill(w, 100);
		ck_assert_int_eq(room_reply(&b, &lb, &n), PROTO_STATUS_OK);
		ck_assert_uint_eq(n, 2);
		world_run_until_idle(w);
		world_kill(w, 100);
		ck_assert_uint_eq(w->engine->n_later, 0);
		world_deinit(w);
	}
}
END_TEST

static int wrong_state(const struct scene_place *at, uint64_t lease, int what)
{
	struct proto_commit_req c = { .lease = lease, .n = 1 };
	struct proto_extend_req x = { .lease = lease };
	struct proto_reserve_req r = { .lease = lease, .n = 1 };
	struct proto_wait_req wt = { .lease = lease };
	struct proto_commit_rep crep;
	struct proto_match_rep mrep;
	struct proto_reserve_rep rrep;
	struct proto_wait_rep wrep;

	switch (what) {
	case 0:
		return world_commit(at->c, &c, &crep);
	case 1:
		return world_extend(at->c, &x, &mrep);
	case 2:
		return world_reserve(at->c, &r, &rrep);
	default:
		return world_wait(at->c, &wt, &wrep);
	}
}

/* The lease of a RESERVE that waits takes nothing but RELEASE, which answers both. */
START_TEST(release)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 8, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(wrong_state(&at, l.id, i), PROTO_STATUS_WRONG_STATE);
		ck_assert_ptr_nonnull(strstr(at.c->error_text, "RELEASE"));
	}
	room_release(&at, &l);
	ck_assert_int_eq(room_reply(&at, &l, NULL), PROTO_STATUS_UNKNOWN_LEASE);
	ck_assert_uint_eq(w->engine->n_later, 0);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 4);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 4);
	world_deinit(w);
}
END_TEST

/* A lease that is too old is taken back, and its RESERVE is told so. */
START_TEST(revoked)
{
	struct world_config config;
	struct proto_open_req o = world_open_req("m");
	struct scene_place at = { 0 };
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	struct room_lease l;
	struct world *w;

	room_config(&config, 8, 8);
	config.engine.limits.lease_max_age_ns = 20 * ROOM_MS;
	w = room_world(&config);
	at.c = world_connect(w, 100, 1000, false);
	hello = world_hello_req(at.c);
	hello.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(at.c, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(at.c, &o, &at.ns), PROTO_STATUS_OK);
	room_put(&at, 0, 8);
	world_delay(w, 1000 * ROOM_MS, 100);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	world_advance(w, 20 * ROOM_MS);
	ck_assert_int_eq(room_reply(&at, &l, NULL), PROTO_STATUS_REVOKED);
	world_run_until_idle(w);
	world_deinit(w);
}
END_TEST

/* A retry of a RESERVE that waited is answered from memory; one while it waits is refused. */
START_TEST(retry)
{
	struct proto_reserve_req r = { .op_id = { { 1, 2, 3 } }, .n = 4 };
	struct proto_reserve_rep rep, again;
	struct radix_run run;
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint64_t seq;

	room_config(&config, 8, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	l = room_match(&at, 1, 4);
	r.lease = l.id;
	ck_assert_int_eq(world_reserve(at.c, &r, &rep), -EINPROGRESS);
	seq = at.c->seq;
	ck_assert_int_eq(world_again(at.c), PROTO_STATUS_WRONG_STATE);
	world_run_until_idle(w);
	ck_assert_int_eq(world_reserve_reply(at.c, seq, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n, 4);
	run = proto_run_at(rep.runs, 0);
	ck_assert_int_eq(world_reserve(at.c, &r, &again), PROTO_STATUS_OK);
	ck_assert_uint_eq(again.n, 4);
	ck_assert_uint_eq(proto_run_at(again.runs, 0).start, run.start);
	ck_assert_uint_eq(world_counters(w).op_replays, 1);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_RESERVED], 4);
	world_deinit(w);
}
END_TEST

/* Its limit may have been reached by another lease while a RESERVE waited. */
START_TEST(limit)
{
	struct world_config config;
	struct room_lease la, lb;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	config.engine.limits.max_reserved = 5;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	room_put(&at, 1, 4);
	la = room_match(&at, 2, 4);
	lb = room_match(&at, 3, 4);
	ck_assert_int_eq(room_reserve(&at, &la, 4, 0, NULL), -EINPROGRESS);
	ck_assert_int_eq(room_reserve(&at, &lb, 4, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &la, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 4);
	ck_assert_int_eq(room_reply(&at, &lb, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 1);
	world_deinit(w);
}
END_TEST

/* The host has room for all, a lease holds all that is there, or it is cold in part. */
START_TEST(host_full)
{
	struct world_config config;
	struct scene_place at;
	struct room_lease held, l;
	struct world *w;
	uint32_t n;

	room_config(&config, 4, 4);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	room_put(&at, 1, 4); /* pushes 0 into the host */
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 4);
	room_put(&at, 2, 2); /* pushes two of 1 there, and two of 0 out */
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 4);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_DEVICE], 4);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	held = room_match(&at, 0, 4);
	ck_assert_uint_eq(held.n_host, 2);
	l = room_match(&at, 1, 4);
	ck_assert_uint_eq(l.n_device, 2);
	ck_assert_uint_eq(l.n_host, 2);
	/* All that lies in the host is held, and the two of 1 on the device too. */
	ck_assert_int_eq(room_reserve(&at, &held, 2, 0, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 2);
	ck_assert_uint_eq(world_counters(w).deferred_reserves, 2); /* those of room_put() */
	world_deinit(w);
}
END_TEST

/* Redis below the pool, without host memory; a round trip takes 1 ms. */
static void redis_config(struct world_config *config, uint32_t slots)
{
	room_config(config, slots, 0);
	config->tiers.redis = true;
	config->tiers.remote.bytes_per_s = 64 * 1000;
	config->engine.index_blocks = 64;
}

/* Redis is not there, and never was: cold blocks are dropped at once, and nobody waits. */
START_TEST(redis_down)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	redis_config(&config, 8);
	config.tiers.redis_down = true;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	l = room_match(&at, 1, 5);
	ck_assert_int_eq(room_reserve(&at, &l, 5, 0, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 5);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 5);
	ck_assert_uint_eq(room_stats(w).removed[RADIX_REMOVE_DROPPED], 5);
	ck_assert_uint_eq(world_counters(w).deferred_reserves, 0);
	world_deinit(w);
}
END_TEST

/* It goes down while somebody waits for it, and comes back. */
START_TEST(redis_goes)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	redis_config(&config, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	l = room_match(&at, 1, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), -EINPROGRESS);
	world_advance(w, ROOM_MS);
	world_redis_up(w, false);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_REDIS], 1);
	/* Two for their slots, what lay below them, and one whose slot was still being read. */
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 4);
	ck_assert_uint_eq(world_counters(w).moves_failed, 2);
	room_release(&at, &l);
	world_redis_up(w, true);
	room_put(&at, 1, 3);
	l = room_match(&at, 2, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 4);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_REDIS], 1 + 3);
	world_deinit(w);
}
END_TEST

/* An answer that it is not there, from one that is said to be: after a pause it is asked again. */
START_TEST(redis_pauses)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	redis_config(&config, 4);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	world_fault(w, WORLD_FAULT_STORE_DOWN, 1);
	l = room_match(&at, 1, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), -EINPROGRESS);
	world_advance(w, ROOM_MS);
	ck_assert_uint_eq(w->engine->n_moves, 0);
	ck_assert_int_eq(room_reply(&at, &l, NULL), -EINPROGRESS);
	world_advance(w, 10 * ROOM_MS - 1);
	ck_assert_uint_eq(w->engine->n_moves, 0);
	world_advance(w, 1);
	ck_assert_uint_eq(w->engine->n_moves, 1);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_REDIS], 1);
	world_deinit(w);
}
END_TEST

/* It is up and takes nothing, as one that is full does: nobody waits for it up to his deadline. */
START_TEST(redis_full)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint64_t dropped;
	uint32_t n;

	redis_config(&config, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 8);
	world_fault(w, WORLD_FAULT_STORE_DOWN, 3);
	l = room_match(&at, 1, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), -EINPROGRESS);
	world_advance(w, 4 * ROOM_MS);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	dropped = world_counters(w).dropped_blocks;
	ck_assert_uint_ge(dropped, 3);
	room_commit(&at, &l, 3);
	room_release(&at, &l);
	/* It is asked again all the same, and when it takes them nothing more is lost. */
	world_advance(w, 10 * ROOM_MS);
	room_put(&at, 2, 8);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, dropped);
	ck_assert_uint_gt(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_REDIS], 0);
	world_deinit(w);
}
END_TEST

/* The host is full of cold blocks: they go on to Redis first, and nothing is lost. */
START_TEST(three_tiers)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	redis_config(&config, 4);
	config.tiers.host_blocks = 4;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	room_put(&at, 1, 4);
	l = room_match(&at, 2, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), -EINPROGRESS);
	ck_assert_uint_eq(w->engine->n_moves, 3); /* to Redis */
	world_advance(w, ROOM_MS);
	ck_assert_uint_eq(w->engine->n_moves, 3); /* two, and one that has a host slot now */
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_HOST][RADIX_TIER_REDIS], 3);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 4 + 3);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	/* With Redis down the host's cold ones are dropped, and the device's still move. */
	world_redis_up(w, false);
	room_release(&at, &l);
	room_put(&at, 2, 4);
	/* One for its slot, and three that lay behind it in Redis. */
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 4);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 4 + 4);
	world_deinit(w);
}
END_TEST

/* Work is cut into steps, and goes on by itself. */
START_TEST(bounded)
{
	struct world_config config;
	struct world_tiers_stats ts;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 1000, 1000);
	config.tiers.copy.bytes_per_s = 0;
	config.engine.move_window = 400;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 1000);
	l = room_match(&at, 1, 900);
	ck_assert_int_eq(room_reserve(&at, &l, 900, 0, NULL), -EINPROGRESS);
	ck_assert_uint_eq(world_in_flight(w), 256);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 900);
	world_tiers_stats(w, &ts);
	ck_assert_uint_le(ts.max_in_flight, 400);
	ck_assert_uint_gt(ts.max_in_flight, 256);
	world_deinit(w);
}
END_TEST

/* A step that has much to say already leaves answers that can wait to the next one. */
START_TEST(much_to_say)
{
	struct world_config config;
	struct scene_place at;
	struct room_lease a, b;
	struct world *w;
	size_t cap;
	uint32_t n;

	room_config(&config, 64, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 64);
	world_delay(w, 1000 * ROOM_MS, 100);
	a = room_match(&at, 1, 30);
	b = room_match(&at, 2, 20);
	ck_assert_int_eq(room_reserve(&at, &a, 30, 0, NULL), -EINPROGRESS);
	ck_assert_int_eq(room_reserve(&at, &b, 20, 5000, NULL), -EINPROGRESS);
	cap = w->engine->out_cap;
	w->engine->out_cap = 1000; /* as if the rest was used */
	world_flush(w, RADIX_NONE);
	ck_assert_int_eq(room_reply(&at, &a, NULL), -EINPROGRESS);
	w->engine->out_cap = cap;
	world_advance(w, 1);
	ck_assert_int_eq(room_reply(&at, &a, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 30);
	ck_assert_int_eq(room_reply(&at, &b, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 20);
	/* The same at a deadline. */
	a = room_match(&at, 3, 30);
	ck_assert_int_eq(room_reserve(&at, &a, 6, 0, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 6); /* eight more are being read still */
	b = room_match(&at, 4, 4);
	ck_assert_int_eq(room_reserve(&at, &b, 4, 5000, NULL), -EINPROGRESS);
	w->engine->out_cap = 500;
	world_advance(w, 5 * ROOM_MS);
	ck_assert_int_eq(room_reply(&at, &b, NULL), -EINPROGRESS);
	w->engine->out_cap = cap;
	world_advance(w, 1);
	ck_assert_int_eq(room_reply(&at, &b, NULL), PROTO_STATUS_BUSY);
	ck_assert_uint_eq(world_counters(w).reserve_deadline, 1);
	world_deinit(w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("room");

	scene_case(s, "line", deferred);
	scene_case(s, "line", clean_at_once);
	scene_case(s, "line", busy_at_once);
	scene_case(s, "line", order);
	scene_case(s, "line", hurry);
	scene_case(s, "line", retry);
	scene_case(s, "line", limit);
	scene_case(s, "line", bounded);
	scene_case(s, "line", much_to_say);
	scene_case(s, "deadline", deadline);
	scene_case(s, "deadline", deadline_for_nothing);
	scene_case(s, "end", death);
	scene_case(s, "end", release);
	scene_case(s, "end", revoked);
	scene_case(s, "below", host_full);
	scene_case(s, "below", redis_down);
	scene_case(s, "below", redis_goes);
	scene_case(s, "below", redis_pauses);
	scene_case(s, "below", redis_full);
	scene_case(s, "below", three_tiers);
	return scene_main(s);
}
