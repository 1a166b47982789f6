/*
 * test_mixed.c - what each has tests of its own for, two at a time: coded blocks of workers that
 * write in desks, through windows, of ranks, and on a device that is lost.
 *
 * The world's codec sets the highest bit of each byte.
 */
#include "radix/windows.h"
#include "tests/engine/ranks.h"
#include "tests/engine/tiers_scene.h"

enum {
	CODED = 0x80,
	BYTES = 2048,
	W = 4, /* blocks of the window */
};

static struct proto_open_req coded(uint32_t flags)
{
	struct proto_open_req o = world_open_req("m");

	o.layers = 2;
	o.head_dim = 64;
	o.block_bytes = BYTES;
	o.cold_codec = world_text("fp8");
	o.flags = flags;
	if (flags & PROTO_OPEN_WINDOWS)
		o.windows = world_text("0-1:16");
	return o;
}

static struct scene_place begin(uint32_t flags)
{
	struct proto_open_req o = coded(flags);

	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	return scene_place(&tiers.w, 100, 1000, &o);
}

/* What a MATCH with these flags tells of prompt 0; the lease is over. */
static void look(const struct scene_place *at, uint32_t flags, struct proto_match_rep *ret)
{
	struct scene_prompt x = tiers_prompt(at, 0);

	scene_match_with(at, &x, flags, 0, ret);
	scene_release(at, ret->lease, NULL);
}

static void bring_up(const struct scene_place *at, uint32_t p, uint8_t fill)
{
	struct scene_prompt x = tiers_prompt(at, p);
	uint64_t lease;

	ck_assert_uint_eq(scene_bring_up(at, &x, fill, &lease), BLOCKS);
	scene_release(at, lease, NULL);
	world_run_until_idle(&tiers.w);
}

/* All of prompt 0 with the bytes that were committed, and their checksums. */
static void make_exact(const struct scene_place *at)
{
	struct scene_prompt x = tiers_prompt(at, 0);
	struct proto_reserve_req r = { .n = BLOCKS };
	struct proto_commit_req c = { .n = BLOCKS, .checksum_kind = PROTO_CHECKSUM_XXH3_128 };
	uint8_t block[BYTES], sums[BLOCKS][16];
	struct proto_reserve_rep reserved;
	struct proto_commit_rep committed;
	struct proto_match_rep m;

	memset(block, 1, sizeof(block));
	scene_match_with(at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis, 0);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
	c.lease = r.lease = m.lease;
	ck_assert_int_eq(world_reserve_wait(at->c, &r, &reserved), 0);
	ck_assert_uint_eq(reserved.n, BLOCKS);
	for (uint32_t i = 0; i < reserved.runs.n; i++) {
		struct radix_run run = proto_run_at(reserved.runs, i);

		for (uint32_t k = 0; k < run.len; k++)
			if (at->ns.n_write)
				world_desk_write(at->c, run.start + k, block, BYTES);
			else
				world_write(&tiers.w, at->ns.group, run.start + k, block, BYTES);
	}
	for (uint32_t i = 0; i < BLOCKS; i++)
		world_sum(block, BYTES, sums[i]);
	c.checksums = (struct proto_span){ sums, sizeof(sums) };
	ck_assert_int_eq(world_commit(at->c, &c, &committed), 0);
	ck_assert_uint_eq(committed.n_stored, BLOCKS);
	scene_release(at, m.lease, NULL);
	world_run_until_idle(&tiers.w);
	look(at, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
}

/* Workers write in memory of their own: what lies below is coded, and made exact, all the same. */
START_TEST(coded_from_a_desk)
{
	struct scene_place at;
	struct proto_match_rep m;

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, _i);
	tiers.config.engine.staged = true;
	tiers.config.engine.write_blocks = BLOCKS;
	at = begin(0);
	ck_assert_uint_eq(at.ns.n_write, BLOCKS);
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	bring_up(&at, 0, 1 | CODED);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	make_exact(&at);
	bring_up(&at, 0, 1);
	bring_up(&at, 1, 2 | CODED);
	ck_assert_uint_eq(world_counters(&tiers.w).take_corrupt, 0);
	ck_assert_uint_eq(world_counters(&tiers.w).corrupt_blocks, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/*
 * Somebody holds the changed copies, and who wrote exact ones in a desk has no slot of his own that
 * he could read them from: he is not told of a slot that is free, nor of the changed ones.
 */
START_TEST(coded_and_held_by_another)
{
	struct proto_open_req o = coded(0);
	struct proto_reserve_req r = { .n = 2 };
	struct proto_commit_req c = { .n = 2 };
	struct proto_reserve_rep reserved;
	struct proto_commit_rep committed;
	struct scene_place at, other;
	struct proto_match_rep held, m;
	struct scene_prompt x;
	uint8_t block[BYTES];

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, false);
	tiers.config.engine.staged = true;
	tiers.config.engine.write_blocks = BLOCKS;
	at = begin(0);
	other = scene_place(&tiers.w, 101, 1000, &o);
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	bring_up(&at, 0, 1 | CODED);
	x = tiers_prompt(&at, 0);
	scene_match(&other, &x, &held);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	c.lease = r.lease = m.lease;
	ck_assert_int_eq(world_reserve_wait(at.c, &r, &reserved), 0);
	memset(block, 1, sizeof(block));
	for (uint32_t i = 0; i < reserved.runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(reserved.runs, i).len; k++)
			world_desk_write(at.c, proto_run_at(reserved.runs, i).start + k, block,
					 BYTES);
	ck_assert_int_eq(world_commit(at.c, &c, &committed), PROTO_STATUS_CONFLICT);
	scene_release(&at, m.lease, NULL);
	/* when nobody holds them any more they make way */
	scene_release(&other, held.lease, NULL);
	make_exact(&at);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/*
 * The device is lost: what comes up after that is coded, whatever lay above it.  _i & 1: Redis is
 * there, too; & 2: workers write in desks.
 */
START_TEST(coded_on_a_lost_device)
{
	struct proto_open_req o = coded(0);
	struct scene_place at;
	struct proto_match_rep m;

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, _i & 1);
	tiers.config.engine.staged = _i & 2;
	tiers.config.engine.write_blocks = BLOCKS;
	at = begin(0);
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	bring_up(&at, 0, 1 | CODED);
	make_exact(&at);
	world_pool_lost(&tiers.w, at.ns.group);
	world_run_until_idle(&tiers.w);
	ck_assert_int_eq(world_open(at.c, &o, &at.ns), 0);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.n_host + m.n_redis, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	bring_up(&at, 0, 1 | CODED);
	make_exact(&at);
	ck_assert_uint_eq(world_counters(&tiers.w).corrupt_blocks, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- windows --------------------------------------------------------------------------------- */

/* The window of prompt 0 comes up: hidden blocks, and changed ones behind them. */
static void window_comes_up(const struct scene_place *at)
{
	struct scene_prompt x = tiers_prompt(at, 0);
	struct proto_match_rep m;
	struct proto_event event;
	struct radix_run run;
	uint64_t seq;

	seq = scene_match_with(at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.n_host + m.n_redis, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, W); /* those before the window have no bytes */
	ck_assert_uint_eq(m.first_lossy, BLOCKS - W);
	scene_loaded(at, seq, &event);
	ck_assert_uint_eq(event.state, PROTO_WAIT_LOADED);
	scene_extend(at, m.lease, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, W);
	run = proto_run_at(m.runs, 0);
	ck_assert_uint_eq(run.start, PROTO_SLOT_NONE);
	ck_assert_uint_eq(run.len, BLOCKS - W);
	for (uint32_t i = 1; i < m.runs.n; i++) {
		uint8_t block[BYTES];

		run = proto_run_at(m.runs, i);
		for (uint32_t k = 0; k < run.len; k++) {
			world_read(&tiers.w, at->ns.group, run.start + k, block, BYTES);
			for (uint32_t b = 0; b < BYTES; b++)
				world_check(&tiers.w, block[b] == (1 | CODED));
		}
	}
	scene_release(at, m.lease, NULL);
	look(at, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
}

/* _i: over a restart. */
START_TEST(coded_through_a_window)
{
	struct radix_window_stats st;
	struct scene_place at;

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, true);
	tiers.config.keep = true;
	tiers.config.engine.verify = PREFIXD_VERIFY_FULL;
	at = begin(PROTO_OPEN_WINDOWS);
	ck_assert_uint_eq(at.ns.window, W);
	for (uint32_t p = 0; p < 5; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	if (_i) {
		struct proto_open_req o = coded(PROTO_OPEN_WINDOWS);

		world_life_kill(&tiers.w);
		world_kill(&tiers.w, 100);
		ck_assert_int_eq(world_life_restart(&tiers.w), 0);
		at = scene_place(&tiers.w, 101, 1000, &o);
		ck_assert(at.ns.flags & PROTO_OPENED_KEPT);
		ck_assert_uint_eq(at.ns.window, W);
	}
	radix_window_stats(world_index(&tiers.w, 0), &st);
	ck_assert_uint_gt(st.n_hollow, 0);
	window_comes_up(&at);
	ck_assert_uint_eq(world_counters(&tiers.w).corrupt_blocks, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- ranks ----------------------------------------------------------------------------------- */

static struct proto_match_rep rank_look(uint32_t rank, uint64_t decision, uint32_t flags)
{
	struct proto_match_req q = ranks_match_req(&ranks.at[rank], decision, 1000, 8);
	struct proto_match_rep m;

	q.flags = flags;
	ck_assert_int_eq(world_match(ranks.at[rank].c, &q, &m), PROTO_STATUS_OK);
	return m;
}

/* Every rank is told the same of blocks that a codec has changed. */
static void ranks_are_told(uint64_t decision, uint32_t flags, uint32_t n_device, uint32_t n_host,
			   uint32_t n_lossy)
{
	uint64_t lease = 0;

	for (uint32_t i = 0; i < ranks.n; i++) {
		struct proto_match_rep m = rank_look(i, decision, flags);

		ck_assert_uint_eq(m.n_device, n_device);
		ck_assert_uint_eq(m.n_host, n_host);
		ck_assert_uint_eq(m.n_lossy, n_lossy);
		lease = m.lease;
	}
	world_run_until_idle(&ranks.w);
	for (uint32_t i = 0; i < ranks.n; i++)
		ranks_release(i, lease);
}

static void ranks_open_all(void)
{
	for (uint32_t i = 0; i < ranks.n; i++) {
		struct proto_open_req o = coded(PROTO_OPEN_STRIPE);

		o.tp_size = ranks.n;
		o.tp_rank = i;
		ck_assert_int_eq(world_open(ranks.at[i].c, &o, &ranks.at[i].ns), 0);
	}
}

static void ranks_put_later(uint32_t first)
{
	uint64_t d = ++ranks.decision + 1000000, lease = 0;

	for (uint32_t i = 0; i < ranks.n; i++) {
		struct proto_reserve_req r = { .n = 8 };
		struct proto_reserve_rep rep;

		r.lease = lease = ranks_match(i, d, first, 8).lease;
		ck_assert_int_eq(world_reserve_wait(ranks.at[i].c, &r, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.n, 8);
	}
	for (uint32_t i = 0; i < ranks.n; i++)
		ranks_commit(i, lease, 8);
	for (uint32_t i = 0; i < ranks.n; i++)
		ranks_release(i, lease);
	world_run_until_idle(&ranks.w);
}

START_TEST(coded_pieces_of_ranks)
{
	const uint32_t n = 3;

	ranks_config();
	ranks.config.engine.pool_blocks = 16;
	ranks.config.engine.limits.reserve_ns = 1000000000;
	ranks.config.tiers.host_blocks = 32;
	ranks.config.tiers.copy.latency_ns = 10000;
	ck_assert_int_eq(world_init(&ranks.w, &ranks.config), 0);
	ranks.n = n;
	for (uint32_t i = 0; i < n; i++)
		ranks.at[i].c = world_worker(&ranks.w, 100 + i, 1000);
	ranks_open_all();
	for (uint32_t p = 0; p < 3; p++)
		ranks_put_later(1000 + 1000 * p);
	ranks_are_told(1, 0, 0, 8, 8);
	ranks_are_told(2, PROTO_MATCH_EXACT, 0, 0, 0);
	ranks_are_told(3, PROTO_MATCH_PROMOTE, 0, 8, 8);
	ranks_are_told(4, 0, 8, 0, 8);
	world_pool_lost(&ranks.w, 0);
	world_run_until_idle(&ranks.w);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_uint_eq(ranks.at[i].c->n_lost, 1);
	ranks_open_all();
	ranks_are_told(5, PROTO_MATCH_PROMOTE, 0, 8, 8);
	ranks_are_told(6, PROTO_MATCH_EXACT, 0, 0, 0);
	ranks_are_told(7, 0, 8, 0, 8);
	world_deinit(&ranks.w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mixed");
	TCase *tc = tcase_create("mixed");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, coded_from_a_desk, 0, 2);
	tcase_add_test(tc, coded_and_held_by_another);
	tcase_add_loop_test(tc, coded_on_a_lost_device, 0, 4);
	tcase_add_loop_test(tc, coded_through_a_window, 0, 2);
	tcase_add_test(tc, coded_pieces_of_ranks);
	suite_add_tcase(s, tc);
	return scene_main(s);
}
