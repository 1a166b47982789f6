/*
 * test_stripes_lives.c - leases that ranks share, over the end of the daemon: nothing that any rank
 * may still read or write is given to others before the last process of them has ended.
 */
#include "tests/engine/ranks.h"

#define SECOND 1000000000ull

static struct world *const w = &ranks.w;

static void begin_kept(uint32_t n, uint64_t grace_ns)
{
	ranks_config();
	ranks.config.keep = true;
	ranks.config.engine.grace_ns = grace_ns;
	ranks_begin(n);
}

static void restart(void)
{
	ck_assert_int_eq(world_life_restart(w), 0);
}

/* Three ranks read two blocks, have stored one, and reserved three more. */
static uint64_t under_way(void)
{
	uint64_t lease = 0;

	ranks_put(1000, 2);
	for (uint32_t i = 0; i < 3; i++) {
		lease = ranks_match(i, 1, 1000, 6).lease;
		ranks_reserve(i, lease, 4);
	}
	for (uint32_t i = 0; i < 3; i++)
		ranks_commit(i, lease, 1 + i);
	return lease;
}

static uint64_t not_free(void)
{
	return 32 - ranks_slots(RADIX_SLOT_FREE);
}

START_TEST(held_until_the_last_process_ends)
{
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep rep;
	struct proto_match_req m;
	struct proto_match_rep mr;

	begin_kept(3, 0);
	under_way();
	world_life_kill(w);
	restart();
	ck_assert_uint_eq(not_free(), 6);
	world_evict(w, 0, 32);
	ck_assert_uint_eq(not_free(), 6); /* the path is read still */
	world_kill(w, 101);
	ck_assert_uint_eq(not_free(), 6);
	ranks.at[0] = ranks_worker(100, 0); /* the same process, again */
	ck_assert_uint_eq(ranks.at[0].ns.n_ranks, 3);
	/* What was decided in the last life is not decided anew. */
	m = ranks_match_req(&ranks.at[0], 1, 1000, 6);
	ck_assert_int_eq(world_match(ranks.at[0].c, &m, &mr), PROTO_STATUS_REVOKED);
	q.instance = ranks.at[0].c->instance;
	ck_assert_int_eq(world_quiesced(ranks.at[0].c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases, 1);
	ck_assert_uint_eq(not_free(), 6);
	/* Another life, with one of them left. */
	world_life_kill(w);
	restart();
	ck_assert_uint_eq(not_free(), 6);
	world_kill(w, 102);
	ck_assert_uint_eq(not_free(), 3); /* the blocks that were stored */
	world_evict(w, 0, 32);
	ck_assert_uint_eq(not_free(), 0);
	world_deinit(w);
}
END_TEST

START_TEST(gone_before_the_memory_is_back)
{
	begin_kept(3, SECOND);
	under_way();
	world_life_kill(w);
	w->config.hold_pools = true;
	restart();
	world_kill(w, 100);
	world_kill(w, 102);
	world_pool_answer(w, true);
	ck_assert_uint_eq(not_free(), 6);
	world_advance(w, 2 * SECOND);
	ck_assert_uint_eq(not_free(), 6);
	world_kill(w, 101);
	ck_assert_uint_eq(not_free(), 6);
	world_advance(w, SECOND);
	ck_assert_uint_eq(not_free(), 3);
	world_deinit(w);
	/* All of them. */
	begin_kept(3, SECOND);
	under_way();
	world_life_kill(w);
	w->config.hold_pools = true;
	restart();
	for (uint32_t i = 0; i < 3; i++)
		world_kill(w, 100 + i);
	world_pool_answer(w, true);
	ck_assert_uint_eq(not_free(), 6);
	world_advance(w, 2 * SECOND);
	ck_assert_uint_eq(not_free(), 3);
	world_deinit(w);
	/* And without the memory nothing is left. */
	begin_kept(3, 0);
	under_way();
	world_life_kill(w);
	w->config.hold_pools = true;
	restart();
	world_kill(w, 100);
	world_pool_answer(w, false);
	world_deinit(w);
}
END_TEST

/* ---- killed anywhere ------------------------------------------------------------------------- */

static uint8_t told[32]; /* slots that some rank was told of and has not released */

static bool down(int status)
{
	return status == -ECONNRESET || world_life_down(w);
}

/* Two ranks store a prompt; false: the daemon was killed on the way. */
static bool script(void)
{
	struct proto_match_rep m = { 0 };
	struct proto_reserve_rep r;
	struct proto_commit_rep c;
	struct proto_release_rep end;
	struct proto_match_req mq;
	struct proto_reserve_req rq = { .n = 4 };
	struct proto_commit_req cq = { .n = 2 };
	struct proto_release_req eq = { 0 };

	for (uint32_t i = 0; i < 2; i++) {
		mq = ranks_match_req(&ranks.at[i], 7, 1000, 5);
		if (down(world_match(ranks.at[i].c, &mq, &m)))
			return false;
		rq.lease = cq.lease = eq.lease = m.lease;
		if (down(world_reserve(ranks.at[i].c, &rq, &r)))
			return false;
		for (uint32_t k = 0; k < r.runs.n; k++)
			for (uint32_t s = 0; s < proto_run_at(r.runs, k).len; s++)
				told[proto_run_at(r.runs, k).start + s] = 1;
	}
	for (uint32_t i = 0; i < 4; i++)
		if (down(world_commit(ranks.at[i % 2].c, &cq, &c)))
			return false;
	for (uint32_t i = 0; i < 2; i++)
		if (down(world_release(ranks.at[i].c, &eq, &end)))
			return false;
	return true;
}

START_TEST(killed_at_any_point)
{
	uint32_t n = 1;
	bool whole = false;

	for (; !whole; n++) {
		begin_kept(2, 0);
		ranks_put(1000, 1);
		memset(told, 0, sizeof(told));
		world_life_kill_at(w, n);
		whole = script();
		world_life_kill_at(w, 0);
		if (!world_life_down(w))
			world_life_kill(w);
		restart();
		for (uint32_t i = 0; i < 32 && !whole; i++)
			ck_assert_msg(!told[i] || radix_slot_state(world_index(w, 0), i) !=
							  RADIX_SLOT_FREE,
				      "killed at %u: slot %u is free", n, i);
		world_kill(w, 100);
		for (uint32_t i = 0; i < 32 && !whole; i++)
			ck_assert_msg(!told[i] ||
					      radix_slot_state(world_index(w, 0), i) !=
						      RADIX_SLOT_FREE ||
					      world_life_watches(w) == 0,
				      "killed at %u: slot %u is free early", n, i);
		world_kill(w, 101);
		ck_assert_uint_eq(ranks_slots(RADIX_SLOT_FREE) + ranks_slots(RADIX_SLOT_READY), 32);
		ck_assert_uint_ge(ranks_slots(RADIX_SLOT_READY), 1);
		world_deinit(w);
	}
	ck_assert_uint_gt(n, 60);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stripes-lives");

	scene_case(s, "held", held_until_the_last_process_ends);
	scene_case(s, "early", gone_before_the_memory_is_back);
	scene_case(s, "killed", killed_at_any_point);
	return scene_main(s);
}
