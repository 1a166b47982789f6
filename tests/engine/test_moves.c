/*
 * test_moves.c - what moves down, when, and what becomes of moves that fail, come late, or come
 * twice.
 */
#include "tests/engine/room.h"

#include <stdio.h>

/* Below the low mark, blocks move until the high one is reached; nobody waits for that. */
START_TEST(watermark)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 20, 40);
	config.engine.watermark_low = 20;  /* 4 slots */
	config.engine.watermark_high = 40; /* 8 slots */
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 16);
	ck_assert_uint_eq(world_in_flight(w), 0); /* 4 are free: that is not below low */
	l = room_match(&at, 1, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_in_flight(w), 5); /* 3 are free, 8 shall be */
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 8);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 5);
	ck_assert_uint_eq(world_counters(w).deferred_reserves, 0);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	world_deinit(w);
}
END_TEST

/* What can go at once goes step by step, so that nobody waits long meanwhile. */
START_TEST(watermark_steps)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 1000, 1000);
	config.tiers.copy.bytes_per_s = 0;
	config.engine.write = PREFIXD_WRITE_THROUGH;
	w = room_world(&config);
	at = room_place(w, 100);
	for (uint32_t i = 0; i < 4; i++) {
		room_put(&at, i, 250);
		world_run_until_idle(w);
	}
	ck_assert_uint_eq(room_stats(w).n_bonus, 1000);
	w->engine->config.watermark_low = 10;
	w->engine->config.watermark_high = 80;
	l = room_match(&at, 0, 1);
	room_release(&at, &l);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 256);
	world_advance(w, 1000);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 800);
	world_deinit(w);
}
END_TEST

/* Without a victim it rests, and the end of a lease wakes it. */
START_TEST(watermark_rests)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 10, 20);
	config.engine.watermark_low = 50;
	config.engine.watermark_high = 50;
	w = room_world(&config);
	at = room_place(w, 100);
	l = room_match(&at, 0, 8);
	ck_assert_int_eq(room_reserve(&at, &l, 8, 0, NULL), PROTO_STATUS_OK);
	room_commit(&at, &l, 8);
	ck_assert_uint_eq(world_in_flight(w), 0);
	ck_assert(w->engine->groups[0]->idle[RADIX_TIER_DEVICE]);
	ck_assert_uint_eq(prefixd_room_deadline(w->engine), UINT64_MAX); /* there is no timer */
	room_release(&at, &l);
	ck_assert_uint_eq(world_in_flight(w), 3);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_FREE], 5);
	world_deinit(w);
}
END_TEST

/* A block that is used again while it leaves stays; the copy below is a bonus. */
START_TEST(stays)
{
	struct world_config config;
	struct room_lease l, old;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	room_put(&at, 2, 4);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	old = room_match(&at, 0, 4);
	ck_assert_uint_eq(old.n_device, 4);
	/* The other ones go instead. */
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 4);
	room_release(&at, &old);
	ck_assert_uint_eq(room_stats(w).n_bonus, 4);
	old = room_match(&at, 0, 4);
	ck_assert_uint_eq(old.n_device, 4);
	old = room_match(&at, 2, 4);
	ck_assert_uint_eq(old.n_host, 4);
	world_deinit(w);
}
END_TEST

/* Copies at COMMIT go as far as the window and the host have room, and hold nobody up. */
START_TEST(through)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 16, 8);
	config.engine.write = PREFIXD_WRITE_THROUGH;
	config.engine.move_window = 5;
	w = room_world(&config);
	at = room_place(w, 100);
	l = room_match(&at, 0, 12);
	ck_assert_int_eq(room_reserve(&at, &l, 12, 0, NULL), PROTO_STATUS_OK);
	room_commit(&at, &l, 6);
	ck_assert_uint_eq(world_in_flight(w), 5);
	world_run_until_idle(w);
	room_commit(&at, &l, 2);
	world_run_until_idle(w);
	room_commit(&at, &l, 4); /* the host has one slot left */
	ck_assert_uint_eq(world_in_flight(w), 1);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).n_bonus, 8);
	ck_assert_uint_eq(room_stats(w).slots[RADIX_SLOT_READY], 12);
	world_deinit(w);
}
END_TEST

/* None is begun towards a Redis that is down. */
START_TEST(through_redis)
{
	struct world_config config;
	struct world *w;
	struct scene_place at;

	room_config(&config, 16, 0);
	config.tiers.redis = true;
	config.engine.write = PREFIXD_WRITE_THROUGH;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	ck_assert_uint_eq(w->engine->n_moves, 4);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_REDIS], 4);
	world_redis_up(w, false);
	room_put(&at, 1, 4);
	ck_assert_uint_eq(w->engine->n_moves, 0);
	world_deinit(w);
}
END_TEST

/* Blocks that nobody asked for again are not worth a copy. */
START_TEST(second_use)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 8, 8);
	config.engine.write = PREFIXD_WRITE_SECOND_USE;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	room_put(&at, 1, 4);
	l = room_match(&at, 0, 3); /* three of four are hit again, and are younger then */
	room_release(&at, &l);
	l = room_match(&at, 2, 7);
	ck_assert_int_eq(room_reserve(&at, &l, 7, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 7);
	ck_assert_uint_eq(world_counters(w).unused_blocks, 5);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 2);
	/* A lease that stores behind what it found has hit what it found. */
	room_commit(&at, &l, 7);
	room_release(&at, &l);
	room_put(&at, 2, 8);
	l = room_match(&at, 3, 8);
	ck_assert_int_eq(room_reserve(&at, &l, 8, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 3 + 7);
	world_deinit(w);
}
END_TEST

/* Dropped once, and stored again: that was its second use. */
START_TEST(second_use_after_all)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 4, 8);
	config.engine.write = PREFIXD_WRITE_SECOND_USE;
	w = room_world(&config);
	at = room_place(w, 100);
	for (uint32_t i = 0; i < 3; i++)
		room_put(&at, i % 2, 4);
	ck_assert_uint_eq(world_counters(w).unused_blocks, 8);
	room_put(&at, 2, 4);
	world_run_until_idle(w);
	ck_assert_uint_eq(world_counters(w).unused_blocks, 8);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 4);
	l = room_match(&at, 0, 4);
	ck_assert_uint_eq(l.n_host, 4);
	room_release(&at, &l);
	/* Prompts 2 to 13 go: 48 blocks, four for each slot.  Prompt 1 is forgotten. */
	for (uint32_t i = 3; i < 15; i++)
		room_put(&at, i, 4);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 4);
	room_put(&at, 1, 4);
	room_put(&at, 15, 4);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 4);
	world_deinit(w);
}
END_TEST

/* A copy that fails is tried again, but not for ever. */
START_TEST(failing)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 4, 4);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	world_fault(w, WORLD_FAULT_COPY_FAILED, 2);
	l = room_match(&at, 1, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(w).moves_failed, 2);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	world_fault(w, WORLD_FAULT_COPY_FAILED, 1000);
	l = room_match(&at, 2, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(w).moves_failed, 5);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 2);    /* it, and the one below it */
	ck_assert_uint_lt(w->now_ns, 1000000000 + 1000 * ROOM_MS); /* and not at the deadline */
	world_deinit(w);
}
END_TEST

/* Commits n blocks with checksums that are not theirs. */
static void commit_wrong(const struct scene_place *at, const struct room_lease *l, uint32_t n)
{
	uint8_t sums[8][16] = { { 0 } };
	struct proto_commit_req c = { .lease = l->id,
				      .n = n,
				      .checksum_kind = PROTO_CHECKSUM_XXH3_128,
				      .checksums = { sums, n * 16 } };
	struct proto_commit_rep rep;

	ck_assert_int_eq(world_commit(at->c, &c, &rep), PROTO_STATUS_OK);
}

/* What the writer said of a block is not what lies there: it goes, and is served to nobody. */
START_TEST(corrupt)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 4, 8);
	w = room_world(&config);
	at = room_place(w, 100);
	l = room_match(&at, 0, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), PROTO_STATUS_OK);
	room_commit(&at, &l, 2);
	commit_wrong(&at, &l, 2);
	room_release(&at, &l);
	l = room_match(&at, 1, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(world_counters(w).corrupt_blocks, 2);
	ck_assert_uint_eq(room_stats(w).removed[RADIX_REMOVE_CORRUPT], 2);
	ck_assert_uint_eq(room_stats(w).moved[RADIX_TIER_DEVICE][RADIX_TIER_HOST], 1);
	l = room_match(&at, 0, 4);
	ck_assert_uint_eq(l.n_device + l.n_host, 2);
	world_deinit(w);
}
END_TEST

/* A lease holds the block when that is found: it goes with the lease. */
START_TEST(corrupt_held)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 8, 8);
	config.engine.write = PREFIXD_WRITE_THROUGH;
	w = room_world(&config);
	at = room_place(w, 100);
	l = room_match(&at, 0, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), PROTO_STATUS_OK);
	room_commit(&at, &l, 3);
	commit_wrong(&at, &l, 1);
	world_run_until_idle(w);
	ck_assert_uint_eq(world_counters(w).corrupt_blocks, 1);
	ck_assert_uint_eq(room_stats(w).removed[RADIX_REMOVE_CORRUPT], 0);
	room_release(&at, &l);
	ck_assert_uint_eq(room_stats(w).removed[RADIX_REMOVE_CORRUPT], 1);
	l = room_match(&at, 0, 4);
	ck_assert_uint_eq(l.n_device, 3);
	world_deinit(w);
}
END_TEST

static void answer(struct world *w, uint32_t id, enum prefixd_move_result result)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_MOVED };

	event.u.moved.id = id;
	event.u.moved.result = result;
	world_step(w, &event);
}

/* Answers that name no move under way, or one that has ended, change nothing. */
START_TEST(stale)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	struct prefixd_engine *e;
	uint32_t n, first;

	room_config(&config, 4, 4);
	w = room_world(&config);
	e = w->engine;
	answer(w, 0, PREFIXD_MOVE_OK);
	at = room_place(w, 100);
	answer(w, 0, PREFIXD_MOVE_OK);
	answer(w, UINT32_MAX, PREFIXD_MOVE_CORRUPT);
	room_put(&at, 0, 4);
	l = room_match(&at, 1, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), -EINPROGRESS);
	ck_assert_uint_eq(e->n_moves, 1);
	first = e->moves[0].serial << 20;
	answer(w, first + 1, PREFIXD_MOVE_OK);
	answer(w, first + (1u << 20), PREFIXD_MOVE_FAILED);
	ck_assert_uint_eq(e->n_moves, 1);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	answer(w, first, PREFIXD_MOVE_OK);
	l = room_match(&at, 2, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), -EINPROGRESS);
	ck_assert(e->moves[0].used); /* the same place, used again */
	answer(w, first, PREFIXD_MOVE_CORRUPT);
	ck_assert_uint_eq(e->n_moves, 1);
	ck_assert_uint_eq(world_counters(w).corrupt_blocks, 0);
	ck_assert_uint_eq(world_counters(w).moves_failed, 0);
	world_deinit(w); /* with a move under way */
}
END_TEST

/* The block goes while it moves; its slots are used for nothing else until the end. */
START_TEST(flushed)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 4, 4);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	l = room_match(&at, 1, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), -EINPROGRESS);
	world_flush(w, RADIX_NONE);
	ck_assert_int_eq(room_reply(&at, &l, NULL), -EINPROGRESS); /* one is free, three are read */
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(room_stats(w).host[RADIX_SLOT_FREE], 4);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	world_deinit(w);
}
END_TEST

/* Draining begins no move and drops nothing; what moves arrives before EXIT. */
START_TEST(drain)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 4, 4);
	config.engine.watermark_low = 50;
	config.engine.watermark_high = 100;
	w = room_world(&config);
	at = room_place(w, 100);
	l = room_match(&at, 0, 3);
	ck_assert_int_eq(room_reserve(&at, &l, 3, 0, NULL), PROTO_STATUS_OK);
	room_commit(&at, &l, 3);
	room_release(&at, &l);
	ck_assert_uint_eq(world_in_flight(w), 3);
	world_advance(w, ROOM_MS);
	world_drain(w, 0);
	ck_assert_uint_eq(w->n_exits, 0);
	world_run_until_idle(w);
	ck_assert_uint_eq(w->n_exits, 1);
	ck_assert_uint_eq(room_stats(w).tier[RADIX_TIER_HOST], 3);
	world_deinit(w);
}
END_TEST

/* Who waits when draining begins is answered when what moves has arrived; the deadline is kept. */
START_TEST(drain_waiting)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;
	uint32_t n;

	room_config(&config, 4, 4);
	config.engine.move_window = 2;
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	world_drain(w, w->now_ns + 10 * ROOM_MS);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, 2); /* no third move was begun */
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	ck_assert_uint_eq(w->n_exits, 0);
	world_advance(w, 10 * ROOM_MS);
	ck_assert_uint_eq(w->n_exits, 1);
	world_deinit(w);
}
END_TEST

START_TEST(drain_busy)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 4, 4);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 4);
	world_fault(w, WORLD_FAULT_COPY_FAILED, 4);
	l = room_match(&at, 1, 4);
	ck_assert_int_eq(room_reserve(&at, &l, 4, 0, NULL), -EINPROGRESS);
	world_drain(w, 0);
	world_run_until_idle(w);
	ck_assert_int_eq(room_reply(&at, &l, NULL), PROTO_STATUS_DRAINING);
	world_deinit(w);
}
END_TEST

/* What moves took is remembered per pool and direction. */
START_TEST(pace)
{
	struct world_config config;
	const struct prefixd_pace *p;
	struct room_lease l;
	struct world *w;
	struct scene_place at;

	room_config(&config, 64, 64);
	w = room_world(&config);
	at = room_place(w, 100);
	room_put(&at, 0, 64);
	p = &w->engine->groups[0]->pace[RADIX_TIER_DEVICE][RADIX_TIER_HOST];
	ck_assert_uint_eq(p->latency_ns, 0);
	l = room_match(&at, 1, 1);
	ck_assert_int_eq(room_reserve(&at, &l, 1, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_uint_eq(p->latency_ns, ROOM_MS);
	ck_assert_uint_eq(p->block_ns, 0); /* one alone says nothing of two */
	l = room_match(&at, 2, 40);
	ck_assert_int_eq(room_reserve(&at, &l, 40, 0, NULL), -EINPROGRESS);
	world_run_until_idle(w);
	ck_assert_uint_eq(p->latency_ns, ROOM_MS); /* what waited in line says nothing of one */
	ck_assert_uint_eq(p->block_ns, ROOM_MS);
	ck_assert_uint_eq(prefixd_load_estimate(w->engine, w->engine->groups[0], 8, 0), 0);
	world_deinit(w);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* RESERVE, again after NO_MEMORY. */
static uint32_t reserve(struct world *w, const struct scene_place *at, struct room_lease *l,
			uint32_t want)
{
	uint32_t n = 0;
	int r = room_reserve(at, l, want, 0, &n);

	if (r == PROTO_STATUS_NO_MEMORY) {
		ck_assert_uint_eq(w->heap.n_failed, 1);
		r = room_reserve(at, l, want, 0, &n);
	}
	if (r == -EINPROGRESS) {
		/* Memory that is missing for moves is missed for a moment only. */
		for (int i = 0; i < 100 && r == -EINPROGRESS; i++) {
			world_advance(w, ROOM_MS);
			r = room_reply(at, l, &n);
		}
	}
	ck_assert_int_eq(r, PROTO_STATUS_OK);
	return n;
}

/* The n-th allocation from here fails; false: there was none. */
static bool fails(uint64_t n)
{
	struct world_config config;
	struct room_lease l;
	struct world *w;
	struct scene_place a, b;
	bool failed;

	room_config(&config, 128, 256);
	config.engine.watermark_low = 10;
	config.engine.watermark_high = 20;
	w = room_world(&config);
	a = room_place(w, 100);
	b = room_place(w, 101);
	room_put(&a, 0, 80);
	test_heap_fail_at(&w->heap, n);
	for (uint32_t i = 1; i < 4; i++) {
		const struct scene_place *at = i & 1 ? &b : &a;
		struct scene_prompt p = room_prompt(i, 100);
		struct proto_match_req m = { .has = PROTO_HAS_ALL,
					     .ns = at->ns.ns,
					     .n_tokens = 400,
					     .keys = { p.keys, 1600 } };
		struct proto_match_rep rep;
		int r = world_match(at->c, &m, &rep);

		if (r == PROTO_STATUS_NO_MEMORY)
			r = world_match(at->c, &m, &rep);
		ck_assert_int_eq(r, PROTO_STATUS_OK);
		l = (struct room_lease){ .id = rep.lease };
		ck_assert_uint_eq(reserve(w, at, &l, 100), 100);
		room_release(at, &l);
	}
	world_run_until_idle(w);
	ck_assert_uint_eq(world_counters(w).dropped_blocks, 0);
	ck_assert_uint_eq(w->engine->n_moves, 0);
	failed = w->heap.n_failed > 0;
	test_heap_fail_at(&w->heap, 0);
	world_deinit(w);
	return failed;
}

START_TEST(each_allocation)
{
	uint64_t n = 1;

	while (fails(n))
		n++;
	fprintf(stderr, "%llu allocations failed, one per run\n", (unsigned long long)n - 1);
	ck_assert_uint_gt(n, 4);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("moves");

	scene_case(s, "ahead", watermark);
	scene_case(s, "ahead", watermark_steps);
	scene_case(s, "ahead", watermark_rests);
	scene_case(s, "ahead", stays);
	scene_case(s, "policy", through);
	scene_case(s, "policy", through_redis);
	scene_case(s, "policy", second_use);
	scene_case(s, "policy", second_use_after_all);
	scene_case(s, "failure", failing);
	scene_case(s, "failure", corrupt);
	scene_case(s, "failure", corrupt_held);
	scene_case(s, "failure", stale);
	scene_case(s, "failure", flushed);
	scene_case(s, "drain", drain);
	scene_case(s, "drain", drain_waiting);
	scene_case(s, "drain", drain_busy);
	scene_case(s, "pace", pace);
	scene_case(s, "memory", each_allocation);
	return scene_main(s);
}
