/*
 * test_load_end.c - how a load ends: early, late, unheard; what it counts for, and what others see.
 */
#include "tests/engine/lift.h"

/* ---- how a load ends early ------------------------------------------------------------------- */

/* The third block does not come, the two before it do. */
static void third_fails(enum world_fault fault, bool redis, enum proto_reason reason, bool stays)
{
	struct proto_match_rep m, x;
	struct proto_release_rep r;
	struct prefixd_counters c;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, redis ? 0 : 2 * LIFT_BLOCKS, redis);
	lift_config.engine.move_window = 1;
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_host + m.n_redis, LIFT_BLOCKS);
	while (lift_raised() < 1)
		world_advance(lift_world, ROOM_MS);
	world_fault(lift_world, fault, 1); /* the second is under way already */
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 2, reason);
	ck_assert_uint_eq(world_counters(lift_world).loads_cut, 1);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, 2);
	ck_assert_uint_eq(x.n_host + x.n_redis, stays ? LIFT_BLOCKS - 2 : 0);
	c = world_counters(lift_world);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.hit_host_tokens + r.hit_redis_tokens, 2 * LIFT_BT);
	ck_assert_uint_eq(r.miss_tokens, (LIFT_BLOCKS - 2) * LIFT_BT);
	c.miss_tier_lost = world_counters(lift_world).miss_tier_lost - c.miss_tier_lost;
	c.miss_tier_down = world_counters(lift_world).miss_tier_down - c.miss_tier_down;
	c.miss_corrupt = world_counters(lift_world).miss_corrupt - c.miss_corrupt;
	ck_assert_uint_eq(c.miss_tier_lost,
			  reason == PROTO_REASON_TIER_LOST ? (LIFT_BLOCKS - 2) * LIFT_BT : 0);
	ck_assert_uint_eq(c.miss_tier_down,
			  reason == PROTO_REASON_TIER_DOWN ? (LIFT_BLOCKS - 2) * LIFT_BT : 0);
	ck_assert_uint_eq(c.miss_corrupt,
			  reason == PROTO_REASON_CORRUPT ? (LIFT_BLOCKS - 2) * LIFT_BT : 0);
	/* What stays can be brought up the next time. */
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_device, 2);
	world_run_until_idle(lift_world);
	if (stays)
		lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS - 2,
				 PROTO_REASON_NONE);
	else
		lift_check_silent(&lift_at);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}

START_TEST(fails_in_the_middle)
{
	third_fails(WORLD_FAULT_FETCH_LOST, true, PROTO_REASON_TIER_LOST, false);
	third_fails(WORLD_FAULT_FETCH_CORRUPT, true, PROTO_REASON_CORRUPT, false);
	third_fails(WORLD_FAULT_FETCH_DOWN, true, PROTO_REASON_TIER_DOWN, true);
	third_fails(WORLD_FAULT_COPY_CORRUPT, false, PROTO_REASON_CORRUPT, false);
	third_fails(WORLD_FAULT_COPY_FAILED, false, PROTO_REASON_TIER_DOWN, true);
}
END_TEST

/* The first is lost while all others have arrived: none of them may stay. */
START_TEST(first_is_lost)
{
	struct proto_match_rep m;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 0, true);
	lift_config.tiers.remote = (struct world_link){ .latency_ns = ROOM_MS };
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	world_fault(lift_world, WORLD_FAULT_FETCH_LOST, 1);
	world_delay(lift_world, 20 * ROOM_MS, 1);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_FAILED, 0, PROTO_REASON_TIER_LOST);
	scene_release(&lift_at, m.lease, NULL);
	ck_assert_uint_eq(
		scene_look(&lift_at,
			   &(struct scene_prompt){ room_prompt(0, LIFT_BLOCKS).keys, LIFT_BLOCKS },
			   &m),
		0);
	ck_assert_uint_eq(m.n_redis, 0);
	lift_end();
}
END_TEST

/* Others that were told of the lost blocks see them gone, and count them so. */
START_TEST(lost_for_others)
{
	struct scene_place b;
	struct proto_match_rep m, other, x;
	struct proto_release_rep r;
	uint64_t seq;

	lift_configure(4 * LIFT_BLOCKS, 0, true);
	lift_begin();
	lift_store(5);
	b = room_place(lift_world, 200);
	lift_match(&b, 0, LIFT_BLOCKS, &other);
	ck_assert_uint_eq(other.n_redis, LIFT_BLOCKS);
	world_fault(lift_world, WORLD_FAULT_FETCH_LOST, 1);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_FAILED, 0, PROTO_REASON_TIER_LOST);
	scene_release(&lift_at, m.lease, NULL);
	/* A third one stores them anew: for the second they count as that one's work. */
	room_put(&lift_at, 0, LIFT_BLOCKS);
	scene_extend(&b, other.lease, &x);
	ck_assert_uint_eq(x.n_device, LIFT_BLOCKS);
	scene_release(&b, other.lease, &r);
	ck_assert_uint_eq(r.hit_pending_tokens, LIFT_BLOCKS * LIFT_BT);
	ck_assert_uint_eq(r.hit_redis_tokens, 0);
	lift_end();
}
END_TEST

START_TEST(waits_for_a_slot)
{
	struct scene_place b;
	struct proto_match_rep m;
	struct room_lease held;
	uint64_t seq;
	uint32_t n;

	lift_configure(LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(2);
	b = room_place(lift_world, 200);
	held = room_match(&b, 1, LIFT_BLOCKS); /* all of the pool */
	ck_assert_uint_eq(held.n_device, LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 50000, &m);
	world_advance(lift_world, 20 * ROOM_MS);
	ck_assert_uint_eq(world_in_flight(lift_world), 0); /* it holds nothing while it waits */
	lift_check_silent(&lift_at);
	room_release(&b, &held);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_release(&lift_at, m.lease, NULL);
	/* And one that waits in vain ends at its deadline, not before, and holds nobody up. */
	held = room_match(&b, 0, LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 1, LIFT_BLOCKS, 50000, &m);
	world_advance(lift_world, 50 * ROOM_MS - 1);
	lift_check_silent(&lift_at);
	ck_assert_int_eq(room_reserve(&lift_at, &(struct room_lease){ .id = m.lease }, 1, 0, &n),
			 PROTO_STATUS_BUSY);
	world_advance(lift_world, 1);
	lift_check_silent(&lift_at); /* that RESERVE ended it */
	scene_release(&lift_at, m.lease, NULL);
	seq = lift_promote(&lift_at, 1, LIFT_BLOCKS, 50000, &m);
	world_advance(lift_world, 50 * ROOM_MS);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_FAILED, 0, PROTO_REASON_NO_ROOM);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &held);
	lift_end();
}
END_TEST

/* Some of the pool is free: the beginning of the prompt comes, the rest waits. */
START_TEST(prefix_first)
{
	struct scene_place b;
	struct proto_match_rep m, x;
	struct room_lease held;
	uint64_t seq;

	lift_configure(LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(2);
	b = room_place(lift_world, 200);
	held = room_match(&b, 1, LIFT_BLOCKS - 3);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 50000, &m);
	world_advance(lift_world, 50 * ROOM_MS);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 3, PROTO_REASON_NO_ROOM);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, 3);
	ck_assert_uint_eq(x.n_host, LIFT_BLOCKS - 3);
	ck_assert_uint_eq(room_stats(lift_world).slots[RADIX_SLOT_READY], LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &held);
	lift_end();
}
END_TEST

/*
 * All is held for good, by prompts that are running: who waits for the rest of the pool is told
 * long before his deadline, and computes.
 */
START_TEST(without_prospect)
{
	struct scene_place b, c;
	struct proto_match_rep m, x;
	struct room_lease held;
	uint64_t seq, other;

	lift_configure(LIFT_BLOCKS + 4, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	b = room_place(lift_world, 200);
	c = room_place(lift_world, 201);
	held = room_match(&b, 2, LIFT_BLOCKS);
	ck_assert_uint_eq(held.n_device, LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 10000000, &m);
	world_advance(lift_world, 8 * ROOM_MS); /* four of prompt 1 go down, four of 0 come up */
	ck_assert_uint_eq(world_in_flight(lift_world), 0);
	lift_check_silent(&lift_at);
	world_advance(lift_world, 50 * ROOM_MS); /* another one wants the same, and follows */
	other = lift_promote(&c, 0, LIFT_BLOCKS, 10000000, &x);
	ck_assert_uint_eq(x.n_device, 4);
	world_advance(lift_world, 50 * ROOM_MS - 1);
	lift_check_silent(&lift_at);
	world_advance(lift_world, 1);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 4, PROTO_REASON_NO_ROOM);
	world_advance(lift_world, 50 * ROOM_MS - 1);
	lift_check_silent(&c);
	world_advance(lift_world, 1);
	lift_check_event(&c, other, x.lease, PROTO_WAIT_FAILED, 0, PROTO_REASON_NO_ROOM);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, 4);
	scene_release(&lift_at, m.lease, NULL);
	world_gone(c.c);
	room_release(&b, &held);
	lift_end();
}
END_TEST

/* One block becomes free every 90 ms: that is slow, and goes on until the deadline. */
START_TEST(slow_but_sure)
{
	struct scene_place b;
	struct proto_match_rep m;
	struct room_lease held[LIFT_BLOCKS];
	uint64_t seq;

	lift_configure(LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(2);
	lift_clear(LIFT_BLOCKS);
	b = room_place(lift_world, 200);
	for (uint32_t i = 0; i < LIFT_BLOCKS; i++) {
		held[i] = room_match(&b, 3 + i, 1);
		ck_assert_int_eq(room_reserve(&b, &held[i], 1, 0, NULL), PROTO_STATUS_OK);
	}
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 500000, &m);
	for (uint32_t i = 0; i < 5; i++) {
		world_advance(lift_world, 90 * ROOM_MS);
		lift_check_silent(&lift_at);
		room_release(&b, &held[i]);
	}
	world_advance(lift_world, 50 * ROOM_MS - 1);
	lift_check_silent(&lift_at);
	world_advance(lift_world, 1);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 5, PROTO_REASON_NO_ROOM);
	scene_release(&lift_at, m.lease, NULL);
	for (uint32_t i = 5; i < LIFT_BLOCKS; i++)
		room_release(&b, &held[i]);
	lift_end();
}
END_TEST

/* A copy that takes long, or one that makes room, is a prospect; and so is one of Redis. */
START_TEST(patient_while_something_moves)
{
	struct proto_match_rep m;
	uint64_t seq;

	for (uint32_t down = 0; down < 2; down++) {
		lift_configure(LIFT_BLOCKS, 0, true);
		lift_begin();
		lift_store(2);
		if (!down)
			lift_clear(LIFT_BLOCKS);
		world_delay(lift_world, 300 * ROOM_MS, 1);
		seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 1000000, &m);
		ck_assert_uint_eq(m.n_redis, LIFT_BLOCKS);
		world_advance(lift_world, 300 * ROOM_MS);
		lift_check_silent(&lift_at);
		world_run_until_idle(lift_world);
		lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS,
				 PROTO_REASON_NONE);
		scene_release(&lift_at, m.lease, NULL);
		lift_end();
	}
}
END_TEST

/* The deadline comes while blocks are on their way: it is told what came, the rest lands. */
START_TEST(deadline)
{
	struct proto_match_rep m, x;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 3500, &m);
	world_advance(lift_world, 3500000);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 3, PROTO_REASON_TIER_DOWN);
	world_run_until_idle(lift_world);
	lift_check_silent(&lift_at);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/*
 * The first block does not come for an hour, the others have; their worker computes instead.  Who
 * looks after all loads gives their slots back, and loads that wait for slots get them at once.
 */
START_TEST(overtaken_while_it_lands)
{
	struct proto_reserve_req all = { .n = LIFT_BLOCKS };
	struct proto_reserve_rep rep;
	struct scene_place b, c;
	struct proto_match_rep m, waits, other;
	struct room_lease own;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	world_delay(lift_world, 3600000 * ROOM_MS, 1);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 3500, &m);
	world_advance(lift_world, 100 * ROOM_MS);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_FAILED, 0, PROTO_REASON_TIER_DOWN);
	ck_assert_uint_eq(world_in_flight(lift_world), 1);
	all.lease = m.lease;
	ck_assert_int_eq(world_reserve_wait(lift_at.c, &all, &rep), PROTO_STATUS_OK);
	b = room_place(lift_world, 200);
	c = room_place(lift_world, 300);
	lift_promote(&b, 2, LIFT_BLOCKS, 0, &waits);
	ck_assert_uint_eq(waits.n_host, LIFT_BLOCKS);
	own = (struct room_lease){ .id = m.lease };
	room_commit(&lift_at, &own, LIFT_BLOCKS);
	ck_assert_uint_eq(world_in_flight(lift_world), 1);
	lift_promote(&c, 2, LIFT_BLOCKS, 0, &other);
	ck_assert_uint_eq(world_in_flight(lift_world), LIFT_BLOCKS); /* the late one, and 7 */
	scene_release(&c, other.lease, NULL);
	scene_release(&b, waits.lease, NULL);
	room_release(&lift_at, &own);
	lift_end();
}
END_TEST

/* Host blocks come, what lies in Redis does not; and nobody waits for a slot because of it. */
START_TEST(redis_is_down)
{
	struct proto_match_rep m;
	struct proto_release_rep r;
	struct prefixd_counters before, c;
	struct room_lease all;
	uint64_t seq;

	lift_configure(LIFT_BLOCKS, LIFT_BLOCKS + 4, true);
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	before = world_counters(lift_world);
	world_redis_up(lift_world, false);
	seq = lift_promote(&lift_at, 1, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_host, 4);
	ck_assert_uint_eq(m.n_redis, 4);
	ck_assert_int_eq(m.reason, PROTO_REASON_NONE);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 4, PROTO_REASON_TIER_DOWN);
	scene_extend(&lift_at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, 4);
	ck_assert_uint_eq(m.n_redis, 4);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.hit_host_tokens, 4 * LIFT_BT);
	ck_assert_uint_eq(r.miss_tokens, 4 * LIFT_BT);
	c = world_counters(lift_world);
	ck_assert_uint_eq(c.miss_tier_down, 4 * LIFT_BT);
	ck_assert_uint_eq(c.lookup_host_blocks, 4);
	ck_assert_uint_eq(c.lookup_redis_blocks, 0);
	ck_assert_uint_eq(c.lookup_device_blocks, 0);
	ck_assert_uint_eq(c.lookup_miss_blocks - before.lookup_miss_blocks, 4);
	ck_assert_uint_eq(c.queried_blocks - before.queried_blocks, LIFT_BLOCKS);
	all = room_match(&lift_at, 14, LIFT_BLOCKS); /* no slot is free */
	ck_assert_int_eq(room_reserve(&lift_at, &all, 4, 0, NULL), PROTO_STATUS_OK);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_redis, LIFT_BLOCKS);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_FAILED, 0, PROTO_REASON_TIER_DOWN);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&lift_at, &all);
	/* What nobody knows of might be there too. */
	scene_look(&lift_at,
		   &(struct scene_prompt){ room_prompt(9, LIFT_BLOCKS).keys, LIFT_BLOCKS }, &m);
	ck_assert_int_eq(m.reason, PROTO_REASON_TIER_DOWN);
	ck_assert_uint_ge(world_counters(lift_world).miss_tier_down,
			  (4 + LIFT_BLOCKS + LIFT_BLOCKS) * LIFT_BT);
	lift_end();
}
END_TEST

/* ---- who does not wait ----------------------------------------------------------------------- */

START_TEST(rather_computes)
{
	struct proto_match_rep m, x;
	struct proto_release_rep r;
	struct proto_reserve_req rq = { .n = LIFT_BLOCKS };
	struct proto_reserve_rep reserved;
	struct proto_commit_req cm = { 0 };
	struct proto_commit_rep committed;

	lift_configure(4 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(5);
	lift_clear(2 * LIFT_BLOCKS);
	lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_advance(lift_world, 3 * ROOM_MS);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, 3);
	world_advance(lift_world, ROOM_MS); /* one more, not taken */
	rq.lease = cm.lease = m.lease;
	ck_assert_int_eq(world_reserve_wait(lift_at.c, &rq, &reserved), PROTO_STATUS_OK);
	ck_assert_uint_eq(reserved.first, 3);
	ck_assert_uint_eq(reserved.n, LIFT_BLOCKS - 3);
	cm.n = 2; /* one that has come up, one that has not */
	ck_assert_int_eq(world_commit(lift_at.c, &cm, &committed), PROTO_STATUS_OK);
	ck_assert_uint_ge(committed.n_duplicate, 1);
	world_run_until_idle(lift_world);
	cm.n = LIFT_BLOCKS - 5;
	ck_assert_int_eq(world_commit(lift_at.c, &cm, &committed), PROTO_STATUS_OK);
	lift_check_silent(&lift_at);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.hit_host_tokens, 3 * LIFT_BT);
	ck_assert_uint_eq(r.miss_tokens, (LIFT_BLOCKS - 3) * LIFT_BT);
	ck_assert_uint_eq(world_counters(lift_world).miss_declined, (LIFT_BLOCKS - 3) * LIFT_BT);
	lift_end();
}
END_TEST

/* Without PROMOTE nothing moves; what was told and not taken is declined. */
START_TEST(declined)
{
	struct proto_match_rep m;
	struct proto_release_rep r;
	uint64_t before;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	before = lift_raised();
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_host, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(lift_raised(), before);
	lift_check_silent(&lift_at);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.miss_tokens, LIFT_BLOCKS * LIFT_BT);
	ck_assert_uint_eq(world_counters(lift_world).miss_declined, LIFT_BLOCKS * LIFT_BT);
	lift_end();
}
END_TEST

/* A lease without a socket is told nothing; its load lands all the same. */
START_TEST(lost_socket)
{
	struct scene_place b;
	struct proto_match_rep m;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	b = room_place(lift_world, 200);
	lift_promote(&b, 0, LIFT_BLOCKS, 0, &m);
	world_eof(b.c);
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(lift_raised(), LIFT_BLOCKS);
	world_gone(b.c);
	lift_end();
}
END_TEST

START_TEST(while_draining)
{
	struct proto_match_rep m;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_drain(lift_world, 0);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_release(&lift_at, m.lease, NULL);
	world_deinit(lift_world);
}
END_TEST

/* ---- what others see ------------------------------------------------------------------------- */

START_TEST(probe_and_explain)
{
	struct scene_prompt p = room_prompt(0, LIFT_BLOCKS);
	struct proto_span keys = { p.keys, LIFT_BLOCKS * 16 };
	struct proto_probe_req pr = { .has = PROTO_HAS_ALL,
				      .keys = keys,
				      .n_tokens = LIFT_BLOCKS * LIFT_BT };
	struct proto_explain_req er = { .has = PROTO_HAS_ALL,
					.keys = keys,
					.n_tokens = LIFT_BLOCKS * LIFT_BT };
	struct proto_probe_rep probe;
	struct proto_explain_rep explain;
	char text[513] = "";

	lift_configure(2 * LIFT_BLOCKS, LIFT_BLOCKS, true);
	lift_begin();
	lift_store(4);
	pr.ns = er.ns = lift_at.ns.ns;
	ck_assert_int_eq(world_probe(lift_at.c, &pr, &probe), PROTO_STATUS_OK);
	ck_assert_uint_eq(probe.n_device + probe.n_host + probe.n_redis, LIFT_BLOCKS);
	ck_assert_uint_gt(probe.n_redis, 0);
	ck_assert_int_eq(world_explain(lift_at.c, &er, &explain), PROTO_STATUS_OK);
	ck_assert_uint_eq(explain.matched_tokens, LIFT_BLOCKS * LIFT_BT);
	ck_assert_int_eq(explain.reason, PROTO_REASON_NONE);
	memcpy(text, explain.text.p, explain.text.n);
	ck_assert_msg(strstr(text, "in Redis"), "%s", text);
	ck_assert_uint_eq(lift_raised(), 0);
	lift_end();
}
END_TEST

int main(void)
{
	const struct {
		const char *name;
		const TTest *test;
	} cases[] = {
		{ "fails-in-the-middle", fails_in_the_middle },
		{ "first-is-lost", first_is_lost },
		{ "lost-for-others", lost_for_others },
		{ "waits-for-a-slot", waits_for_a_slot },
		{ "prefix-first", prefix_first },
		{ "without-prospect", without_prospect },
		{ "slow-but-sure", slow_but_sure },
		{ "patient-while-something-moves", patient_while_something_moves },
		{ "deadline", deadline },
		{ "overtaken-while-it-lands", overtaken_while_it_lands },
		{ "redis-is-down", redis_is_down },
		{ "rather-computes", rather_computes },
		{ "declined", declined },
		{ "lost-socket", lost_socket },
		{ "while-draining", while_draining },
		{ "probe-and-explain", probe_and_explain },
	};
	Suite *s = suite_create("load end");

	for (size_t i = 0; i < radix_array_size(cases); i++)
		scene_case(s, cases[i].name, cases[i].test);
	return scene_main(s);
}
