/*
 * test_lower.c - what lies lower and is lost, damaged, found again or wanted by several: T05 F42.
 */
#include "tests/engine/tiers_scene.h"

/* ---- F42: Redis evicts between the question and the fetch ------------------------------------ */

static void lost_between(uint32_t oldest, uint32_t want)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m, more;
	struct proto_event e;
	struct proto_release_rep end;
	struct radix_stats st;
	uint64_t seq;

	tiers_configure(BLOCKS, 0, true);
	at = tiers_begin();
	tiers_put(&at, 0);
	tiers_put(&at, 1);
	x = tiers_prompt(&at, 0);
	tiers_check_at(&at, 0, 0, 0, BLOCKS);
	/* Blocks went down from the end of the prompt. */
	world_redis_poke_one(&tiers.w, WORLD_POKE_LOSE, oldest);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS);
	scene_loaded(&at, seq, &e);
	ck_assert_uint_eq(e.n, want);
	ck_assert_uint_eq(e.state, want ? PROTO_WAIT_LOADED : PROTO_WAIT_FAILED);
	ck_assert_uint_eq(e.reason, PROTO_REASON_TIER_LOST);
	scene_extend(&at, m.lease, &more);
	ck_assert_uint_eq(more.n_device, want);
	ck_assert_uint_eq(scene_check_fill(&at, more.runs, 1), want);
	ck_assert_uint_eq(more.n_redis, 0);
	world_run_until_idle(&tiers.w);
	/* The rest was given back: it can be reserved and computed. */
	world_stats(&tiers.w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_RESERVED], 0);
	ck_assert_uint_gt(st.removed[RADIX_REMOVE_LOST], 0);
	scene_release(&at, m.lease, &end);
	ck_assert_uint_eq(end.hit_redis_tokens, want * BT);
	ck_assert_uint_eq(end.miss_tokens, (BLOCKS - want) * BT);
	ck_assert_uint_eq(scene_put(&at, &x, 1), BLOCKS - want);
	tiers_check_at(&at, 0, BLOCKS, 0, 0);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}

START_TEST(evicted_between)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		lost_between(i, BLOCKS - 1 - i);
}
END_TEST

/* What is gone is gone, even if nobody waits for it any more. */
START_TEST(lost_and_unwanted)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;

	tiers_configure(BLOCKS, 0, true);
	at = tiers_begin();
	tiers_put(&at, 0);
	tiers_put(&at, 1);
	x = tiers_prompt(&at, 0);
	world_redis_poke_one(&tiers.w, WORLD_POKE_LOSE, BLOCKS - 3); /* the third block */
	scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS);
	world_advance(&tiers.w, 300000); /* the others have gone down, and these are on their way */
	scene_release(&at, m.lease, NULL);
	world_run_until_idle(&tiers.w);
	scene_look(&at, &x, &m);
	ck_assert_uint_eq(m.n_device + m.n_redis, 2);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* A load is cut at its first block; what comes of the others is believed all the same. */
START_TEST(lost_behind_a_cut)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event e;
	uint64_t seq;

	tiers_configure(BLOCKS, 0, true);
	at = tiers_begin();
	tiers_put(&at, 0);
	tiers_put(&at, 1);
	x = tiers_prompt(&at, 0);
	world_redis_poke_one(&tiers.w, WORLD_POKE_LOSE, BLOCKS - 6); /* the sixth block */
	world_fault(&tiers.w, WORLD_FAULT_FETCH_DOWN, 1);            /* the first one */
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	scene_loaded(&at, seq, &e);
	ck_assert_uint_eq(e.state, PROTO_WAIT_FAILED);
	ck_assert_uint_eq(e.reason, PROTO_REASON_TIER_DOWN);
	scene_release(&at, m.lease, NULL);
	world_run_until_idle(&tiers.w);
	scene_look(&at, &x, &m);
	ck_assert_uint_eq(m.n_device + m.n_redis, 5);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/*
 * Redis is asked what it has behind the fourth block; before it says so, the second one turns out
 * to be lost.  What it has then hangs nowhere, least of all behind the first block.
 */
START_TEST(found_behind_what_was_lost)
{
	struct scene_place at;
	struct scene_prompt x, half;
	struct proto_match_rep m;
	struct world_redis *values;
	uint32_t spliced[5 * BT];

	tiers_configure(BLOCKS, 0, true);
	at = tiers_begin();
	tiers_put(&at, 0);
	tiers_put(&at, 1);
	values = world_redis_detach(&tiers.w);
	world_deinit(&tiers.w);
	tiers.config.tiers.values = values;
	at = tiers_begin();
	x = half = tiers_prompt(&at, 0);
	half.n_keys = BLOCKS / 2;
	half.n_tail = 0;
	scene_look(&at, &half, &m);
	world_run_until_idle(&tiers.w);
	scene_look(&at, &half, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS / 2);
	world_delay(&tiers.w, 10000000, 1);
	scene_look(&at, &x, &m); /* the rest is asked for, and takes its time */
	ck_assert_uint_eq(world_in_flight(&tiers.w), 1);
	world_redis_poke_one(&tiers.w, WORLD_POKE_LOSE, BLOCKS - 2);
	scene_match_with(&at, &half, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS / 2);
	world_run_until_idle(&tiers.w);
	scene_release(&at, m.lease, NULL);
	memcpy(spliced, tiers.tokens[0], BT * 4);
	memcpy(spliced + BT, tiers.tokens[0] + 4 * BT, 4 * BT * 4);
	x = scene_tokens(&at, spliced, 5 * BT);
	scene_look(&at, &x, &m);
	ck_assert_uint_eq(m.n_device + m.n_redis, 1);
	world_run_until_idle(&tiers.w);
	world_deinit(&tiers.w);
}
END_TEST

/* ---- several that want the same -------------------------------------------------------------- */

/* None can begin, for every slot is held; their leader goes, and one of them takes its place. */
START_TEST(leaderless_loads)
{
	enum {
		N = 5
	};
	struct proto_open_req o = world_open_req("m");
	struct scene_place at, each[N];
	struct scene_prompt x, held;
	struct proto_match_rep m, holds, more;
	struct proto_event e;
	uint64_t seq[N], lease[N];

	tiers_configure(BLOCKS, 2 * BLOCKS, true);
	at = tiers_begin();
	tiers_put(&at, 0);
	tiers_put(&at, 1);
	held = tiers_prompt(&at, 1);
	scene_match(&at, &held, &holds);
	ck_assert_uint_eq(holds.n_device, BLOCKS);
	x = tiers_prompt(&at, 0);
	for (uint32_t i = 0; i < N; i++) {
		each[i] = scene_place(&tiers.w, 200 + i, 1000, &o);
		seq[i] = scene_match_with(&each[i], &x, PROTO_MATCH_PROMOTE, 1000000, &m);
		ck_assert_uint_eq(m.n_host, BLOCKS);
		lease[i] = m.lease;
	}
	scene_release(&each[0], lease[0], NULL);
	world_gone(each[1].c);
	scene_release(&at, holds.lease, NULL);
	for (uint32_t i = 2; i < N; i++) {
		scene_loaded(&each[i], seq[i], &e);
		ck_assert_uint_eq(e.state, PROTO_WAIT_LOADED);
		ck_assert_uint_eq(e.n, BLOCKS);
		scene_extend(&each[i], lease[i], &more);
		ck_assert_uint_eq(scene_check_fill(&each[i], more.runs, 1), BLOCKS);
		scene_release(&each[i], lease[i], NULL);
	}
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- host memory that does not keep what it was given ---------------------------------------- */

START_TEST(damaged_host_copy)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m, more;
	struct proto_event e;
	uint64_t seq;

	tiers_configure(BLOCKS, 2 * BLOCKS, false);
	at = tiers_begin();
	tiers_put(&at, 0);
	tiers_put(&at, 1);
	tiers_check_at(&at, 0, 0, BLOCKS, 0);
	ck_assert_uint_eq(world_host_damage(&tiers.w, 0, 100), BLOCKS);
	x = tiers_prompt(&at, 0);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	scene_loaded(&at, seq, &e);
	ck_assert_uint_eq(e.state, PROTO_WAIT_FAILED);
	ck_assert_uint_eq(e.reason, PROTO_REASON_CORRUPT);
	ck_assert_uint_gt(world_counters(&tiers.w).corrupt_blocks, 0);
	scene_extend(&at, m.lease, &more);
	ck_assert_uint_eq(more.n_device + more.n_host, 0);
	scene_release(&at, m.lease, NULL);
	world_run_until_idle(&tiers.w);
	ck_assert_uint_eq(scene_put(&at, &x, 1), BLOCKS);
	tiers_check_at(&at, 0, BLOCKS, 0, 0);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- T05: the same names in every tier ------------------------------------------------------- */

static uint32_t redis_of(struct scene_place *at, const char *salt, uint32_t p)
{
	struct scene_prompt x = tiers_prompt(at, p);
	struct proto_match_rep m;

	at->salt = world_text(salt);
	scene_look(at, &x, &m);
	ck_assert_uint_eq(m.n_device + m.n_host, 0);
	world_run_until_idle(&tiers.w); /* it asks in the background */
	scene_look(at, &x, &m);
	ck_assert_uint_eq(m.n_device + m.n_host, 0);
	return m.n_redis;
}

START_TEST(salted_everywhere)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at;
	struct scene_prompt x;
	struct world_redis *values;
	uint64_t lease;

	tiers_configure(BLOCKS, 0, true);
	at = tiers_begin();
	at.salt = world_text("s");
	tiers_put(&at, 0);
	at.salt = world_text("");
	tiers_put(&at, 1); /* pushes it down */
	ck_assert_uint_eq(world_redis_values(&tiers.w), BLOCKS);
	values = world_redis_detach(&tiers.w);
	world_deinit(&tiers.w);
	/* Another life of the daemon, which knows nothing. */
	tiers.config.tiers.values = values;
	at = tiers_begin();
	ck_assert_uint_eq(redis_of(&at, "", 0), 0);
	ck_assert_uint_eq(redis_of(&at, "t", 0), 0);
	ck_assert_uint_eq(redis_of(&at, "s", 1), 0);
	ck_assert_uint_eq(redis_of(&at, "s", 0), BLOCKS);
	at.salt = world_text("s");
	x = tiers_prompt(&at, 0);
	ck_assert_uint_eq(scene_bring_up(&at, &x, 1, &lease), BLOCKS);
	scene_release(&at, lease, NULL);
	world_run_until_idle(&tiers.w);
	/* Another adapter is another namespace. */
	o.adapter = world_text("lora");
	at = scene_place(&tiers.w, 300, 1000, &o);
	ck_assert_uint_eq(redis_of(&at, "s", 0), 0);
	world_deinit(&tiers.w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("lower");

	scene_case(s, "T05", salted_everywhere);
	scene_case(s, "F42", evicted_between);
	scene_case(s, "F42", lost_and_unwanted);
	scene_case(s, "F42", lost_behind_a_cut);
	scene_case(s, "F42", found_behind_what_was_lost);
	scene_case(s, "loads", leaderless_loads);
	scene_case(s, "corrupt", damaged_host_copy);
	return scene_main(s);
}
