/*
 * test_load.c - loads: how blocks come up, in which order, and who brings what several want.
 */
#include "tests/engine/lift.h"

/* ---- how blocks come up ---------------------------------------------------------------------- */

START_TEST(comes_up)
{
	struct proto_match_rep m;
	struct proto_release_rep r;
	uint64_t seq;

	for (uint32_t redis = 0; redis < 2; redis++) {
		lift_configure(2 * LIFT_BLOCKS, redis ? 0 : 2 * LIFT_BLOCKS, redis);
		lift_begin();
		lift_store(3);
		seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
		ck_assert_uint_eq(m.n_device, 0);
		ck_assert_uint_eq(redis ? m.n_redis : m.n_host, LIFT_BLOCKS);
		ck_assert_uint_eq(m.n_host + m.n_redis, LIFT_BLOCKS);
		ck_assert_uint_eq(m.miss_token, LIFT_BLOCKS * LIFT_BT);
		ck_assert_int_eq(m.reason, PROTO_REASON_NONE);
		ck_assert_int_eq(m.advice, 0);
		world_run_until_idle(lift_world);
		lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS,
				 PROTO_REASON_NONE);
		scene_extend(&lift_at, m.lease, &m);
		ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
		ck_assert_uint_eq(m.n_host + m.n_redis, 0);
		scene_release(&lift_at, m.lease, &r);
		ck_assert_uint_eq(redis ? r.hit_redis_tokens : r.hit_host_tokens,
				  LIFT_BLOCKS * LIFT_BT);
		ck_assert_uint_eq(r.miss_tokens, 0);
		ck_assert_uint_eq(world_counters(lift_world).loads, 1);
		ck_assert_uint_eq(world_counters(lift_world).loads_cut, 0);
		ck_assert_uint_eq(world_counters(lift_world).loaded_blocks, LIFT_BLOCKS);
		ck_assert_uint_eq(world_counters(lift_world).lookup_host_blocks,
				  redis ? 0 : LIFT_BLOCKS);
		ck_assert_uint_eq(world_counters(lift_world).lookup_redis_blocks,
				  redis ? LIFT_BLOCKS : 0);
		lift_end();
	}
}
END_TEST

/* What was brought up stays until it is taken, however much is wanted by others. */
START_TEST(stays_until_taken)
{
	struct proto_match_rep m;
	struct room_lease l;
	uint32_t n;

	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_run_until_idle(lift_world);
	ck_assert_uint_gt(world_evict(lift_world, 0, 1000), 0);
	l = room_match(&lift_at, 7, 2 * LIFT_BLOCKS);
	ck_assert_int_eq(room_reserve(&lift_at, &l, 2 * LIFT_BLOCKS, 1000, &n), PROTO_STATUS_OK);
	ck_assert_uint_eq(n, LIFT_BLOCKS); /* the others are the load's */
	room_release(&lift_at, &l);
	scene_extend(&lift_at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* The same where the rest is another branch, which lies lower still. */
START_TEST(beginning_stays)
{
	static uint32_t tokens[2][LIFT_BLOCKS * LIFT_BT];
	const uint32_t half = LIFT_BLOCKS / 2;
	struct scene_prompt p[2];
	struct proto_match_rep m;
	struct room_lease l;
	struct scene_place b;
	uint64_t seq;
	uint32_t n;

	lift_configure(LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	b = room_place(lift_world, 200);
	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t k = 0; k < LIFT_BLOCKS * LIFT_BT; k++)
			tokens[i][k] = 77000 + k + (k < half * LIFT_BT ? 0 : 1000 * i);
		p[i] = scene_tokens(&lift_at, tokens[i], LIFT_BLOCKS * LIFT_BT);
		scene_put(&lift_at, &p[i], 9);
	}
	lift_clear(LIFT_BLOCKS);
	l = room_match(&b, 7, LIFT_BLOCKS); /* leaves room for the beginning only */
	ck_assert_int_eq(room_reserve(&b, &l, LIFT_BLOCKS - half, 0, NULL), PROTO_STATUS_OK);
	seq = scene_match_with(&lift_at, &p[0], PROTO_MATCH_PROMOTE, 10000, &m);
	ck_assert_uint_eq(m.n_host, LIFT_BLOCKS);
	world_advance(lift_world, 10 * ROOM_MS);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, half, PROTO_REASON_NO_ROOM);
	world_evict(lift_world, 0, 1000);
	ck_assert_int_eq(room_reserve(&b, &l, half, 1000, &n), PROTO_STATUS_BUSY);
	world_run_until_idle(lift_world);
	scene_extend(&lift_at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, half);
	ck_assert_uint_eq(m.n_host, half);
	scene_release(&lift_at, m.lease, NULL);
	room_release(&b, &l);
	lift_end();
}
END_TEST

/* The first block arrives last: nothing is attached before it. */
START_TEST(in_path_order)
{
	struct proto_match_rep m, x;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_config.tiers.copy = (struct world_link){ .latency_ns = ROOM_MS };
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	world_delay(lift_world, 10 * ROOM_MS, 1);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_advance(lift_world, 10 * ROOM_MS);
	ck_assert_uint_eq(world_in_flight(lift_world), 1);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, 0);
	ck_assert_uint_eq(x.n_host, LIFT_BLOCKS);
	lift_check_silent(&lift_at);
	world_advance(lift_world, ROOM_MS);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, LIFT_BLOCKS);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* EXTEND takes what has come so far; LOADED still tells all that came. */
START_TEST(taken_in_parts)
{
	struct proto_match_rep m, x;
	struct proto_release_rep r;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	lift_clear(LIFT_BLOCKS);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_advance(lift_world, 3 * ROOM_MS);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, 3);
	ck_assert_uint_eq(x.n_host, LIFT_BLOCKS - 3);
	ck_assert_uint_eq(x.miss_token, LIFT_BLOCKS * LIFT_BT);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	scene_extend(&lift_at, m.lease, &x);
	ck_assert_uint_eq(x.n_device, LIFT_BLOCKS - 3);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.hit_host_tokens, LIFT_BLOCKS * LIFT_BT);
	lift_end();
}
END_TEST

/* A reply that is cut tells nothing of lower tiers; the parts add up all the same. */
START_TEST(cut_reply)
{
	const uint32_t n_blocks = 5 * LIFT_BLOCKS;
	struct prefixd_event reload = { .type = PREFIXD_EVENT_RELOAD };
	struct prefixd_limits limits;
	struct room_lease l[2];
	struct proto_match_rep m, x;
	struct proto_release_rep r;
	uint32_t n = 0, parts = 0;
	uint64_t seq;

	lift_configure(2 * n_blocks, 2 * n_blocks, false);
	limits = lift_config.engine.limits;
	lift_begin();
	room_put(&lift_at, 0, n_blocks);
	lift_clear(2 * n_blocks);
	for (uint32_t i = 0; i < 2; i++)
		l[i] = room_match(&lift_at, 1 + i, n_blocks);
	for (uint32_t i = 0; i < 2 * n_blocks; i++) /* every second slot is free then */
		ck_assert_int_eq(room_reserve(&lift_at, &l[i % 2], 1, 0, NULL), PROTO_STATUS_OK);
	room_release(&lift_at, &l[0]);
	seq = lift_promote(&lift_at, 0, n_blocks, 0, &m);
	ck_assert_uint_eq(m.n_host, n_blocks);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, n_blocks, PROTO_REASON_NONE);
	limits.max_frame = 280;
	reload.u.reload.limits = &limits;
	world_step(lift_world, &reload);
	do {
		scene_extend(&lift_at, m.lease, &x);
		n += x.n_device;
		ck_assert_uint_eq(x.n_host, 0);
		parts++;
	} while (x.more);
	ck_assert_uint_eq(n, n_blocks);
	ck_assert_uint_gt(parts, 1);
	scene_release(&lift_at, m.lease, &r);
	ck_assert_uint_eq(r.hit_host_tokens, n_blocks * LIFT_BT);
	room_release(&lift_at, &l[1]);
	lift_end();
}
END_TEST

/* Two moves at a time for all: every load ends. */
START_TEST(narrow_window)
{
	struct scene_place who[3];
	struct proto_match_rep m[3];
	uint64_t seq[3];

	lift_configure(4 * LIFT_BLOCKS, 8 * LIFT_BLOCKS, false);
	lift_config.engine.move_window = 2;
	lift_begin();
	lift_store(8);
	lift_clear(3 * LIFT_BLOCKS);
	for (uint32_t i = 0; i < 3; i++) {
		who[i] = room_place(lift_world, 200 + i);
		seq[i] = lift_promote(&who[i], i, LIFT_BLOCKS, 0, &m[i]);
		ck_assert_uint_eq(m[i].n_host, LIFT_BLOCKS);
		ck_assert_uint_eq(world_in_flight(lift_world), 2);
	}
	world_run_until_idle(lift_world);
	for (uint32_t i = 0; i < 3; i++) {
		lift_check_event(&who[i], seq[i], m[i].lease, PROTO_WAIT_LOADED, LIFT_BLOCKS,
				 PROTO_REASON_NONE);
		scene_release(&who[i], m[i].lease, NULL);
	}
	lift_end();
}
END_TEST

/* ---- single flight --------------------------------------------------------------------------- */

START_TEST(fetched_once)
{
	struct scene_place who[4];
	struct proto_match_rep m[4], x;
	uint64_t seq[4], before;

	lift_configure(4 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(5);
	before = lift_raised();
	for (uint32_t i = 0; i < 4; i++) {
		/* The third wants less; the last comes when some blocks are up already. */
		who[i] = room_place(lift_world, 200 + i);
		if (i == 3)
			world_advance(lift_world, 12 * ROOM_MS);
		seq[i] = lift_promote(&who[i], 0, i == 2 ? 3 : LIFT_BLOCKS, 0, &m[i]);
	}
	ck_assert_uint_gt(m[3].n_device, 0);
	ck_assert_uint_gt(m[3].n_host, 0);
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(lift_raised() - before, LIFT_BLOCKS);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t n = m[i].n_host;

		lift_check_event(&who[i], seq[i], m[i].lease, PROTO_WAIT_LOADED, n,
				 PROTO_REASON_NONE);
		scene_extend(&who[i], m[i].lease, &x);
		ck_assert_uint_eq(x.n_device, n);
		scene_release(&who[i], m[i].lease, NULL);
	}
	lift_end();
}
END_TEST

/* Who brings the blocks goes away: another one goes on, and nothing is fetched twice. */
START_TEST(handed_over)
{
	struct scene_place a, b;
	struct proto_match_rep m, x;
	uint64_t seq, before;

	for (uint32_t how = 0; how < 2; how++) {
		lift_configure(4 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
		lift_config.engine.move_window = 2;
		lift_begin();
		lift_store(5);
		a = room_place(lift_world, 200);
		b = room_place(lift_world, 201);
		before = lift_raised();
		lift_promote(&a, 0, LIFT_BLOCKS, 0, &m);
		world_advance(lift_world, 3 * ROOM_MS);
		seq = lift_promote(&b, 0, LIFT_BLOCKS, 0, &x);
		if (how)
			world_gone(a.c);
		else
			scene_release(&a, m.lease, NULL);
		world_run_until_idle(lift_world);
		ck_assert_uint_eq(lift_raised() - before, LIFT_BLOCKS);
		lift_check_event(&b, seq, x.lease, PROTO_WAIT_LOADED, x.n_host, PROTO_REASON_NONE);
		scene_release(&b, x.lease, NULL);
		lift_end();
	}
}
END_TEST

/* Prompts that part below what they share: each brings its own rest. */
START_TEST(shared_beginning)
{
	static uint32_t tokens[2][LIFT_BLOCKS * LIFT_BT];
	struct scene_prompt p[2];
	struct scene_place who[2];
	struct proto_match_rep m[2];
	uint64_t seq[2], before;

	lift_configure(4 * LIFT_BLOCKS, 8 * LIFT_BLOCKS, false);
	lift_begin();
	for (uint32_t i = 0; i < 2; i++) {
		for (uint32_t k = 0; k < LIFT_BLOCKS * LIFT_BT; k++)
			tokens[i][k] = 77000 + k + (k < LIFT_BLOCKS / 2 * LIFT_BT ? 0 : 1000 * i);
		p[i] = scene_tokens(&lift_at, tokens[i], LIFT_BLOCKS * LIFT_BT);
		scene_put(&lift_at, &p[i], 9);
	}
	for (uint32_t i = 0; i < 4; i++)
		room_put(&lift_at, i, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
	before = lift_raised();
	for (uint32_t i = 0; i < 2; i++) {
		who[i] = room_place(lift_world, 200 + i);
		seq[i] = scene_match_with(&who[i], &p[i], PROTO_MATCH_PROMOTE, 0, &m[i]);
		ck_assert_uint_eq(m[i].n_host, LIFT_BLOCKS);
	}
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(lift_raised() - before, LIFT_BLOCKS + LIFT_BLOCKS / 2);
	for (uint32_t i = 0; i < 2; i++) {
		lift_check_event(&who[i], seq[i], m[i].lease, PROTO_WAIT_LOADED, LIFT_BLOCKS,
				 PROTO_REASON_NONE);
		scene_extend(&who[i], m[i].lease, &m[i]);
		ck_assert_uint_eq(scene_check_fill(&who[i], m[i].runs, 9), LIFT_BLOCKS);
		scene_release(&who[i], m[i].lease, NULL);
	}
	lift_end();
}
END_TEST

/* PROMOTE while a load runs begins none: one EVENT, with the seq of the first. */
START_TEST(joined)
{
	struct proto_extend_req ext = { .flags = PROTO_MATCH_PROMOTE };
	struct proto_match_rep m, x;
	uint64_t seq;

	lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
	lift_begin();
	lift_store(3);
	seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
	world_advance(lift_world, 2 * ROOM_MS);
	ext.lease = m.lease;
	ck_assert_int_eq(world_extend(lift_at.c, &ext, &x), PROTO_STATUS_OK);
	ck_assert_int_eq(x.advice, 0);
	ck_assert_uint_eq(world_counters(lift_world).loads, 1);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, LIFT_BLOCKS, PROTO_REASON_NONE);
	lift_check_silent(&lift_at);
	/* What it brought is not taken yet; another PROMOTE finds nothing to bring. */
	ck_assert_int_eq(world_extend(lift_at.c, &ext, &x), PROTO_STATUS_OK);
	ck_assert_uint_eq(x.n_host, 0);
	world_run_until_idle(lift_world);
	lift_check_silent(&lift_at);
	scene_release(&lift_at, m.lease, NULL);
	lift_end();
}
END_TEST

/* An engine that has the beginning itself asks for the rest: what is before it comes up too. */
START_TEST(rest_of_a_prompt)
{
	static uint8_t digests[LIFT_BLOCKS * 16];
	struct proto_open_req o = world_open_req("digests");
	const uint32_t half = LIFT_BLOCKS / 2;
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep rep;
	struct proto_release_rep r;
	struct scene_prompt p = { .keys = digests, .n_keys = LIFT_BLOCKS };
	uint64_t seq;

	for (uint32_t i = 0; i < LIFT_BLOCKS; i++)
		memset(digests + 16 * i, (int)i + 1, 16);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("seed");
	lift_configure(2 * LIFT_BLOCKS, 4 * LIFT_BLOCKS, false);
	lift_begin();
	lift_at = scene_place(lift_world, 300, 1000, &o);
	ck_assert_uint_eq(scene_put(&lift_at, &p, 9), LIFT_BLOCKS);
	lift_clear(2 * LIFT_BLOCKS);
	m.ns = lift_at.ns.ns;
	m.flags = PROTO_MATCH_ISLAND | PROTO_MATCH_PROMOTE;
	m.n_tokens = half * LIFT_BT;
	m.keys = (struct proto_span){ digests + 16 * half, 16 * half };
	ck_assert_int_eq(world_match(lift_at.c, &m, &rep), PROTO_STATUS_OK);
	seq = lift_at.c->seq;
	ck_assert_uint_eq(rep.n_host, half);
	world_run_until_idle(lift_world);
	lift_check_event(&lift_at, seq, rep.lease, PROTO_WAIT_LOADED, half, PROTO_REASON_NONE);
	ck_assert_uint_eq(lift_raised(), LIFT_BLOCKS);
	scene_extend(&lift_at, rep.lease, &rep);
	ck_assert_uint_eq(rep.n_device, half);
	ck_assert_uint_eq(scene_check_fill(&lift_at, rep.runs, 9), half);
	scene_release(&lift_at, rep.lease, &r);
	ck_assert_uint_eq(r.hit_host_tokens, half * LIFT_BT);
	lift_end();
}
END_TEST

int main(void)
{
	const struct {
		const char *name;
		const TTest *test;
	} cases[] = {
		{ "comes-up", comes_up },
		{ "stays-until-taken", stays_until_taken },
		{ "beginning-stays", beginning_stays },
		{ "in-path-order", in_path_order },
		{ "taken-in-parts", taken_in_parts },
		{ "cut-reply", cut_reply },
		{ "narrow-window", narrow_window },
		{ "fetched-once", fetched_once },
		{ "handed-over", handed_over },
		{ "shared-beginning", shared_beginning },
		{ "joined", joined },
		{ "rest-of-a-prompt", rest_of_a_prompt },
	};
	Suite *s = suite_create("load");

	for (size_t i = 0; i < radix_array_size(cases); i++)
		scene_case(s, cases[i].name, cases[i].test);
	return scene_main(s);
}
