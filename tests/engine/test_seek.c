/*
 * test_seek.c - PREFETCH, and what Redis is asked in the background.
 */
#include "tests/engine/lift.h"

static int prefetch(const struct scene_place *who, uint32_t id, uint32_t n,
		    struct proto_prefetch_rep *ret)
{
	struct scene_prompt p = room_prompt(id, n);
	struct proto_prefetch_req m = {
		.has = PROTO_HAS_ALL,
		.ns = who->ns.ns,
		.tenant = who->tenant,
		.salt = who->salt,
		.n_tokens = (uint64_t)n * LIFT_BT,
		.keys = { p.keys, n * who->ns.key_len },
	};

	return world_prefetch(who->c, &m, ret);
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

/* It takes clean slots, but moves nobody down, and nothing while somebody waits. */
START_TEST(takes_little)
{
	struct scene_place b;
	struct proto_prefetch_rep p;
	struct proto_match_rep m;
	struct room_lease l;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3); /* prompts 1 and 2 fill the pool and lie nowhere else */
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	ck_assert_uint_eq(world_in_flight(lift_world), 0);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, 0);
	scene_release(&lift_at, m.lease, NULL);
	/* Prompt 0 comes up for a lease, and so does another: their host copies make them clean. */
	for (uint32_t i = 0; i < 2; i++) {
		lift_promote(&lift_at, i, LIFT_BLOCKS, 0, &m);
		world_run_until_idle(lift_world);
		scene_release(&lift_at, m.lease, NULL);
	}
	world_run_until_idle(lift_world);
	ck_assert_int_eq(prefetch(&lift_at, 2, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_eq(p.n_host, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
	lift_match(&lift_at, 2, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	/* Somebody waits for slots that are dirty still: nothing is taken from him. */
	room_put(&lift_at, 5, LIFT_BLOCKS);
	room_put(&lift_at, 6, LIFT_BLOCKS);
	b = room_place(lift_world, 200);
	l = room_match(&b, 7, LIFT_BLOCKS);
	ck_assert_int_eq(room_reserve(&b, &l, LIFT_BLOCKS, 0, NULL), -EINPROGRESS);
	world_advance(lift_world, 3 * ROOM_MS); /* some are free, for him */
	ck_assert_uint_eq(room_stats(lift_world).slots[RADIX_SLOT_FREE], 3);
	ck_assert_int_eq(prefetch(&lift_at, 0, LIFT_BLOCKS, &p), PROTO_STATUS_OK);
	ck_assert_uint_gt(p.n_host, 0);
	world_run_until_idle(lift_world);
	ck_assert_int_eq(room_reply(&b, &l, NULL), PROTO_STATUS_OK);
	lift_match(&lift_at, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_device, p.n_device);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &l);
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
		{ "takes-little", takes_little },
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
