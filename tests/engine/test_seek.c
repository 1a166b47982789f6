/*
 * test_seek.c - PREFETCH, and what Redis is asked in the background.
 */
#include "tests/engine/lift.h"

static int prefetch_until(const struct scene_place *who, uint32_t id, uint32_t n,
			  uint32_t deadline_us, struct proto_prefetch_rep *ret)
{
	struct scene_prompt p = room_prompt(id, n);
	struct proto_prefetch_req m = {
		.has = PROTO_HAS_ALL,
		.ns = who->ns.ns,
		.tenant = who->tenant,
		.salt = who->salt,
		.deadline_us = deadline_us,
		.n_tokens = (uint64_t)n * LIFT_BT,
		.keys = { p.keys, n * who->ns.key_len },
	};

	return world_prefetch(who->c, &m, ret);
}

static int prefetch(const struct scene_place *who, uint32_t id, uint32_t n,
		    struct proto_prefetch_rep *ret)
{
	return prefetch_until(who, id, n, 0, ret);
}

/* A world whose Redis holds prompts 0..n-1, and whose engine knows nothing of them. */
static void begin_anew(uint32_t n)
{
	struct world_redis *values;

	lift_configure(4 * LIFT_BLOCKS, 0, true);
	lift_begin();
	lift_store(n);
	for (uint32_t i = 0; i < 4; i++)
		room_put(&lift_at, 10 + i, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
	ck_assert_uint_ge(world_redis_values(lift_world), n * LIFT_BLOCKS);
	values = world_redis_detach(lift_world);
	world_deinit(lift_world);
	lift_config.tiers.values = values;
	lift_begin();
}

/* ---- PREFETCH -------------------------------------------------------------------------------- */

START_TEST(comes_up_unasked)
{
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	struct prefixd_counters before;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	before = world_counters(lift_world);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_device, 0);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	ck_assert_uint_eq(p.n_redis, 0);
	world_run_until_idle(lift_world);
	lift_check_silent(&lift_at);
	ck_assert_uint_eq(room_stats(lift_world).n_pins, 0);
	ck_assert_uint_eq(world_counters(lift_world).lookups, before.lookups);
	ck_assert_uint_eq(world_counters(lift_world).queried_tokens, before.queried_tokens);
	ck_assert_uint_eq(world_counters(lift_world).prefetches, 1);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	ck_assert_mem_eq(&m.root, &p.root, sizeof(p.root));
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* Clean slots are taken at once, and of dirty ones as many as are cold begin to move. */
START_TEST(takes_cold_slots)
{
	struct proto_prefetch_rep p;
	struct proto_match_rep m;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3); /* prompts 1 and 2 fill the pool and lie nowhere else */
	ck_assert_int_eq(prefetch_until(&lift_at, 0, LIFT_BLOCKS, 2 * LIFT_BLOCKS * 1000, &p),
			 PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	ck_assert_uint_eq(world_in_flight(lift_world), LIFT_BLOCKS); /* of prompt 1, down */
	world_advance(lift_world, 2 * LIFT_BLOCKS * ROOM_MS);
	ck_assert_uint_eq(world_in_flight(lift_world), 0);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_match(&lift_at, 1, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_host, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_match(&lift_at, 2, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	ck_assert_uint_eq(room_stats(lift_world).removed_total, 0);
	/* Prompt 0 is clean now and the coldest: it makes room without a move. */
	for (uint32_t i = 2; i > 0; i--) {
		ck_assert_int_eq(prefetch(&lift_at, i, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
		if (i == 1)
			ck_assert_uint_eq(world_in_flight(lift_world), LIFT_BLOCKS); /* up */
		ck_assert_uint_eq(room_stats(lift_world).moved[0][1], 2 * LIFT_BLOCKS);
	}
	world_run_until_idle(lift_world);
	lift_match(&lift_at, 1, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* It drops nothing: the tier below is down, or all is held there. */
START_TEST(drops_nothing)
{
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	struct room_lease held;
	struct scene_place b;

	lift_configure(LIFT_BLOCKS, 2 * LIFT_BLOCKS, true);
	lift_begin();
	lift_store(3); /* two of them fill the host */
	b = room_place(lift_world, 200);
	held = room_match(&b, 1, LIFT_BLOCKS);
	ck_assert_uint_eq(held.n_host, LIFT_BLOCKS);
	world_redis_up(lift_world, false);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	world_advance(lift_world, 100 * ROOM_MS);
	ck_assert_uint_eq(lift_world->engine->n_loads, 0); /* it does not hope for ever */
	ck_assert_uint_eq(room_stats(lift_world).removed_total, 0);
	ck_assert_uint_eq(lift_raised(), 0);
	lift_match(&lift_at, 2, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &held);
	lift_end();
}
END_TEST

/* It comes after those who wait, takes up nothing of what is freed for them, and goes on then. */
START_TEST(behind_all)
{
	struct scene_place b;
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	struct room_lease l;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	b = room_place(lift_world, 200);
	l = room_match(&b, 7, LIFT_BLOCKS);
	ck_assert_int_eq(room_reserve(&b, &l, LIFT_BLOCKS, 0, NULL), -EINPROGRESS);
	world_advance(lift_world, 3 * ROOM_MS); /* some are free, for him */
	ck_assert_uint_eq(room_stats(lift_world).slots[RADIX_SLOT_FREE], 3);
	ck_assert_int_eq(prefetch_until(&lift_at, 0, LIFT_BLOCKS, 50000, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	ck_assert_uint_eq(world_in_flight(lift_world), LIFT_BLOCKS - 3);
	world_advance(lift_world, (LIFT_BLOCKS - 3) * ROOM_MS - 1);
	ck_assert_int_eq(room_reply(&b, &l, NULL), -EINPROGRESS);
	world_advance(lift_world, 1); /* as if nobody else was there */
	ck_assert_int_eq(room_reply(&b, &l, NULL), PROTO_STATUS_OK);
	world_run_until_idle(lift_world);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &l);
	ck_assert_uint_eq(room_stats(lift_world).removed_total, 0);
	lift_end();
}
END_TEST

/* While others wait for longer than its deadline it gets nothing, and nothing is left of it. */
START_TEST(gives_up)
{
	struct scene_place b;
	struct proto_prefetch_rep p;
	struct room_lease l;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	b = room_place(lift_world, 200);
	l = room_match(&b, 7, LIFT_BLOCKS);
	world_delay(lift_world, 30 * ROOM_MS, 1);
	ck_assert_int_eq(room_reserve(&b, &l, LIFT_BLOCKS, 0, NULL), -EINPROGRESS);
	ck_assert_int_eq(prefetch_until(&lift_at, 0, LIFT_BLOCKS, 5000, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(lift_world->engine->n_loads, 1);
	world_advance(lift_world, 5 * ROOM_MS - 1);
	ck_assert_uint_eq(lift_world->engine->n_loads, 1);
	world_advance(lift_world, 1);
	ck_assert_uint_eq(lift_world->engine->n_loads, 0);
	world_run_until_idle(lift_world);
	ck_assert_int_eq(room_reply(&b, &l, NULL), PROTO_STATUS_OK);
	ck_assert_uint_eq(lift_raised(), 0);
	room_release(&b, &l);
	lift_end();
}
END_TEST

/* What it brought up so far is no one's: it is had by whoever would go without it. */
START_TEST(lets_go)
{
	struct scene_place b;
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	struct room_lease held, l;
	uint64_t seq;
	uint32_t n;

	for (uint32_t how = 0; how < 3; how++) {
		lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
		lift_begin();
		lift_store(3);
		b = room_place(lift_world, 200);
		held = room_match(&b, 7, LIFT_BLOCKS + 2);
		lift_clear(LIFT_BLOCKS + 2);
		ck_assert_int_eq(room_reserve(&b, &held, LIFT_BLOCKS + 2, 0, NULL),
				 PROTO_STATUS_OK);
		lift_match(&b, 2, LIFT_BLOCKS, &m); /* what is left of the pool is held, or free */
		ck_assert_uint_eq(m.n_device, LIFT_BLOCKS - 2);
		scene_release(&b, m.lease, NULL);
		ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
		/* First those of prompt 2 go down, then the others come, but two. */
		world_advance(lift_world, (how == 1 ? 8 : 12) * ROOM_MS);
		ck_assert_uint_eq(lift_raised(), how == 1 ? 2 : LIFT_BLOCKS - 2);
		ck_assert_uint_eq(lift_world->engine->n_loads, 1);
		l = room_match(&lift_at, 8, 4);
		if (how == 2) { /* so would a load of somebody */
			seq = lift_promote(&lift_at, 1, 4, 0, &m);
			ck_assert_uint_eq(m.n_host, 4);
			world_advance(lift_world, 4 * ROOM_MS);
			lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 4,
					 PROTO_REASON_NONE);
			scene_release(&lift_at, m.lease, NULL);
		} else if (how == 1) { /* those on their way land first */
			ck_assert_int_eq(room_reserve(&lift_at, &l, 4, 0, &n), -EINPROGRESS);
			ck_assert_uint_eq(lift_world->engine->n_loads, 1);
			world_advance(lift_world, 4 * ROOM_MS);
			ck_assert_int_eq(room_reply(&lift_at, &l, &n), PROTO_STATUS_OK);
			ck_assert_uint_eq(n, 4);
		} else {
			ck_assert_int_eq(room_reserve(&lift_at, &l, 4, 0, &n), PROTO_STATUS_OK);
			ck_assert_uint_eq(n, 4);
		}
		ck_assert_uint_eq(world_counters(lift_world).dropped_blocks, 0);
		ck_assert_uint_eq(room_stats(lift_world).removed_total, 0);
		room_release(&lift_at, &l);
		room_release(&b, &held);
		lift_end();
	}
}
END_TEST

/* Its moves count for nobody else's window. */
START_TEST(window_apart)
{
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	uint64_t seq;

	lift_configure(4 * LIFT_BLOCKS, 8 * LIFT_BLOCKS, false);
	lift_config.engine.move_window = 2;
	lift_begin();
	lift_store(6);
	lift_clear(2 * LIFT_BLOCKS);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_in_flight(lift_world), 2);
	seq = lift_promote(&lift_at, 1, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(world_in_flight(lift_world), 4);
	world_advance(lift_world,
		      ROOM_MS); /* what has ended is followed by one that is waited for */
	ck_assert_uint_le(world_in_flight(lift_world), 4);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_release(&lift_at, m.lease, NULL);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* A lease that wants what a PREFETCH brings takes over. */
START_TEST(makes_way)
{
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	uint64_t seq, before;

	lift_configure(4 * LIFT_BLOCKS, 8 * LIFT_BLOCKS, false);
	lift_config.engine.move_window = 2;
	lift_begin();
	lift_store(5);
	lift_clear(LIFT_BLOCKS);
	before = lift_raised();
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	world_advance(lift_world, ROOM_MS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_device, 1);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS - 1,
			 PROTO_REASON_NONE);
	ck_assert_uint_eq(lift_raised() - before, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* It writes recency: what was prefetched leaves after what was not. */
START_TEST(is_a_use)
{
	struct proto_prefetch_rep p;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(2);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_device, LIFT_BLOCKS);
	room_put(&lift_at, 2, LIFT_BLOCKS);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_device, LIFT_BLOCKS);
	ck_assert_int_eq(prefetch(&lift_at, 1, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_device, 0);
	lift_end();
}
END_TEST

START_TEST(refused)
{
	struct proto_prefetch_rep p;

	lift_configure(LIFT_BLOCKS, 0, false);
	lift_begin();
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_UNSUPPORTED);
	world_deinit(lift_world);
	lift_configure(LIFT_BLOCKS, LIFT_BLOCKS, false);
	lift_begin();
	lift_at.ns.ns++;
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_UNKNOWN_NAMESPACE);
	lift_at.ns.ns--;
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	world_drain(lift_world, 0);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_DRAINING);
	world_deinit(lift_world);
}
END_TEST

/* ---- LOOK ------------------------------------------------------------------------------------ */

/* A prompt that only Redis knows: the first MATCH asks, the next one is told. */
START_TEST(found_in_redis)
{
	struct proto_match_rep m;
	struct proto_release_rep r;
	uint64_t seq;

	begin_anew(1);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_redis, 0);
	ck_assert_int_eq(m.reason, PROTO_REASON_NEVER_SEEN);
	ck_assert_uint_eq(world_counters(lift_world).looks, 1);
	scene_release(&lift_at, m.lease, NULL);
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(world_counters(lift_world).found_blocks, LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_redis, LIFT_BLOCKS);
	ck_assert_int_eq(m.reason, PROTO_REASON_NONE);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_extend(&lift_at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.hit_redis_tokens, LIFT_BLOCKS * LIFT_BT);
	lift_end();
}
END_TEST

/* What is behind known blocks is named by them; what came to be meanwhile is passed over. */
START_TEST(found_behind)
{
	struct proto_match_rep m;
	uint64_t seq;

	begin_anew(1);
	room_put(&lift_at, 0, 3);
	world_run_until_idle(lift_world); /* its own MATCH asked already */
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, 3);
	scene_release(&lift_at, m.lease, NULL);
	room_put(&lift_at, 0, 5); /* before the answer comes */
	world_run_until_idle(lift_world);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, 5);
	ck_assert_uint_eq(m.n_redis, LIFT_BLOCKS - 5);
	scene_release(&lift_at, m.lease, NULL);
	/* All of it goes down, by the names that it got, and comes up by them. */
	lift_clear(4 * LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_redis, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* PREFETCH asks for what nobody knows of, and brings it up; a lease that found it first is told. */
START_TEST(prefetched_from_redis)
{
	struct proto_prefetch_rep p;
	struct proto_match_rep m;

	begin_anew(1);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_device + p.n_host + p.n_redis, 0);
	world_run_until_idle(lift_world);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	ck_assert_mem_eq(&m.root, &p.root, sizeof(p.root));
	scene_release(&lift_at, m.lease, NULL);
	/* One that is nowhere leaves nothing behind. */
	ck_assert_int_eq(prefetch(&lift_at, 9, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	world_run_until_idle(lift_world);
	lift_end();
}
END_TEST

static void ask_for(uint32_t first_token)
{
	uint32_t tokens[LIFT_BT];
	struct scene_prompt p;

	for (uint32_t k = 0; k < LIFT_BT; k++)
		tokens[k] = first_token;
	p = scene_tokens(&lift_at, tokens, LIFT_BT);
	scene_look(&lift_at, &p, NULL);
}

/* The same question is asked once at a time, and never too many per second. */
START_TEST(asked_rarely)
{
	struct prefixd_counters c;
	struct proto_match_rep m;

	lift_configure(LIFT_BLOCKS, 0, true);
	lift_begin();
	for (uint32_t i = 0; i < 3; i++) {
		lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
		scene_release(&lift_at, m.lease, NULL);
	}
	ck_assert_uint_eq(world_counters(lift_world).looks, 1);
	world_run_until_idle(lift_world);
	for (uint32_t i = 0; i < 100; i++) { /* each is answered before the next is asked */
		ask_for(5000 + i);
		world_run_until_idle(lift_world);
	}
	c = world_counters(lift_world);
	ck_assert_uint_gt(c.looks, 20);
	ck_assert_uint_le(c.looks, 1 + 32);
	ck_assert_uint_eq(c.looks + c.looks_skipped, 101);
	/* A thousand a second are earned. */
	world_advance(lift_world, 1000 * ROOM_MS);
	for (uint32_t i = 0; i < 100; i++) {
		ask_for(9000 + i);
		world_advance(lift_world, 2 * ROOM_MS);
	}
	ck_assert_uint_eq(world_counters(lift_world).looks - c.looks, 100);
	/* And none while Redis is down. */
	world_redis_up(lift_world, false);
	c = world_counters(lift_world);
	ask_for(1);
	ck_assert_uint_eq(world_counters(lift_world).looks, c.looks);
	lift_end();
}
END_TEST

/* However slow Redis is, only so many questions wait for it. */
START_TEST(asked_few_at_a_time)
{
	lift_configure(LIFT_BLOCKS, 0, true);
	lift_config.tiers.remote.latency_ns = 1000 * ROOM_MS;
	lift_begin();
	for (uint32_t i = 0; i < 100; i++) {
		ask_for(5000 + i);
		world_advance(lift_world, 2 * ROOM_MS);
	}
	ck_assert_uint_eq(world_in_flight(lift_world), 32);
	ck_assert_uint_eq(world_counters(lift_world).looks, 32);
	world_run_until_idle(lift_world);
	ask_for(9999);
	ck_assert_uint_eq(world_counters(lift_world).looks, 33);
	lift_end();
}
END_TEST

/* A worker that computes it will have it sooner than Redis. */
START_TEST(not_while_pending)
{
	struct scene_place b;
	struct room_lease l;
	struct proto_match_rep m;
	uint64_t looks;

	lift_configure(LIFT_BLOCKS, 0, true);
	lift_begin();
	b = room_place(lift_world, 200);
	l = room_match(&b, 0, LIFT_BLOCKS);
	ck_assert_int_eq(room_reserve(&b, &l, LIFT_BLOCKS, 0, NULL), PROTO_STATUS_OK);
	world_run_until_idle(lift_world);
	looks = world_counters(lift_world).looks;
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_pending, LIFT_BLOCKS);
	ck_assert_uint_eq(world_counters(lift_world).looks, looks);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &l);
	lift_end();
}
END_TEST

/* The answer comes when the namespace is of another epoch: nothing is added. */
START_TEST(answered_too_late)
{
	struct proto_match_rep m;

	begin_anew(1);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	scene_release(&lift_at, m.lease, NULL);
	world_invalidate(lift_world, lift_at.ns.ns);
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(world_counters(lift_world).found_blocks, 0);
	lift_end();
}
END_TEST

int main(void)
{
	const struct {
		const char *name;
		const TTest *test;
	} cases[] = {
		{ "comes-up-unasked", comes_up_unasked },
		{ "takes-cold-slots", takes_cold_slots },
		{ "drops-nothing", drops_nothing },
		{ "behind-all", behind_all },
		{ "gives-up", gives_up },
		{ "lets-go", lets_go },
		{ "window-apart", window_apart },
		{ "makes-way", makes_way },
		{ "is-a-use", is_a_use },
		{ "refused", refused },
		{ "found-in-redis", found_in_redis },
		{ "found-behind", found_behind },
		{ "prefetched-from-redis", prefetched_from_redis },
		{ "asked-rarely", asked_rarely },
		{ "asked-few-at-a-time", asked_few_at_a_time },
		{ "not-while-pending", not_while_pending },
		{ "answered-too-late", answered_too_late },
	};
	Suite *s = suite_create("seek");

	for (size_t i = 0; i < radix_array_size(cases); i++)
		scene_case(s, cases[i].name, cases[i].test);
	return scene_main(s);
}
