/*
 * test_tiers.c - moves between the tiers under pressure, aborts, slow and frozen links: T16 T19 T28
 * T48 T52.
 */
#include "tests/engine/tiers_scene.h"

#include <stdlib.h>

/* ---- T16: a load whose request is given up --------------------------------------------------- */

enum abort_by {
	BY_RELEASE,
	BY_DEATH,
	BY_EOF_AND_DEATH,
	BY_RESERVE,
	N_ABORTS
};

static void give_up(const struct scene_place *other, uint64_t lease, enum abort_by how)
{
	struct proto_reserve_req r = { .lease = lease, .n = 1 };
	struct proto_reserve_rep reserved;
	struct proto_event e;
	uint64_t seq;
	int status;

	switch (how) {
	case BY_RELEASE:
		scene_release(other, lease, NULL);
		break;
	case BY_EOF_AND_DEATH:
		world_eof(other->c);
		world_gone(other->c);
		break;
	case BY_RESERVE: /* it would rather compute */
		status = world_reserve_wait(other->c, &r, &reserved);
		ck_assert(status == PROTO_STATUS_OK || status == PROTO_STATUS_BUSY);
		scene_release(other, lease, NULL);
		break;
	case BY_DEATH:
	case N_ABORTS:
		world_gone(other->c);
		break;
	}
	world_advance(&tiers.w, 1000000000);
	ck_assert(!world_event(other->c, &seq, &e));
}

static void abort_load(bool redis, enum abort_by how, uint64_t after_ns)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at, other;
	struct scene_prompt x;
	struct proto_match_rep m;
	uint64_t lease;

	tiers_configure(2 * BLOCKS, redis ? 0 : 4 * BLOCKS, redis);
	tiers.config.tiers.copy.latency_ns = 200000;
	tiers.config.tiers.jitter_ns = 100000;
	at = tiers_begin();
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	tiers_check_at(&at, 0, 0, redis ? 0 : BLOCKS, redis ? BLOCKS : 0);
	other = scene_place(&tiers.w, 200, 1000, &o);
	x = tiers_prompt(&other, 0);
	scene_match_with(&other, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_host + m.n_redis, BLOCKS);
	world_advance(&tiers.w, after_ns);
	give_up(&other, m.lease, how);
	tiers_check_quiet();
	/* What was on its way has landed, or never left; it is all still there. */
	scene_look(&at, &x, &m);
	ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis, BLOCKS);
	ck_assert_uint_eq(scene_bring_up(&at, &x, 1, &lease), BLOCKS);
	scene_release(&at, lease, NULL);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}

START_TEST(abort_during_restore)
{
	static const uint64_t times[] = { 0, 100000, 250000, 450000 };

	for (uint32_t how = 0; how < N_ABORTS; how++)
		for (uint32_t i = 0; i < radix_array_size(times); i++) {
			abort_load(false, how, times[i]);
			abort_load(true, how, times[i]);
		}
}
END_TEST

/* ---- T19: a slot is not used again while it is copied ---------------------------------------- */

static void pressure(const struct scene_place *at, uint32_t p)
{
	struct scene_prompt x = tiers_prompt(at, p);
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = BLOCKS, .deadline_us = 1000 };
	struct proto_reserve_rep reserved;
	int status;

	scene_match(at, &x, &m);
	r.lease = m.lease;
	status = world_reserve_wait(at->c, &r, &reserved);
	ck_assert(status == PROTO_STATUS_OK || status == PROTO_STATUS_BUSY);
	scene_release(at, m.lease, NULL);
}

/* The world fails when the source or target of a move is granted, freed or written. */
START_TEST(no_eviction_under_copy)
{
	struct scene_place at;
	struct radix_stats st;
	uint64_t lease;
	struct scene_prompt x;

	for (uint32_t tier = 0; tier < 3; tier++) {
		tiers_configure(2 * BLOCKS, tier == 1 ? 0 : 2 * BLOCKS, tier > 0);
		tiers.config.tiers.deadline_ns = 0;
		at = tiers_begin();
		tiers_put(&at, 0);
		tiers_put(&at, 1);
		if (tier == 2) { /* host memory is full too: its blocks go on to Redis */
			tiers_put(&at, 2);
			tiers_put(&at, 3);
		}
		world_delay(&tiers.w, 1000000000, 1000); /* slow motion */
		for (uint32_t p = 4; p < 12; p++) {
			pressure(&at, p);
			world_evict(&tiers.w, 0, 2);
			ck_assert_uint_gt(world_in_flight(&tiers.w), 0);
		}
		world_flush(&tiers.w, RADIX_NONE);
		ck_assert_uint_gt(world_in_flight(&tiers.w), 0);
		world_delay(&tiers.w, 0, 0);
		world_run_until_idle(&tiers.w);
		tiers_check_quiet();
		world_stats(&tiers.w, 0, &st);
		ck_assert_uint_eq(st.n_blocks, 0);
		/* And it goes on. */
		for (uint32_t p = 0; p < 4; p++)
			ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
		x = tiers_prompt(&at, 1);
		ck_assert_uint_eq(scene_bring_up(&at, &x, 2, &lease), BLOCKS);
		world_deinit(&tiers.w);
	}
}
END_TEST

/* A block that is leaving and is asked for stays, and its bytes are whole. */
START_TEST(leaving_and_wanted)
{
	struct scene_place at;
	struct proto_reserve_req r = { .n = BLOCKS };
	struct proto_reserve_rep reserved;
	struct scene_prompt x0, x1;
	struct proto_match_rep m, again;

	tiers_configure(BLOCKS, 2 * BLOCKS, false);
	at = tiers_begin();
	tiers_put(&at, 0);
	x0 = tiers_prompt(&at, 0);
	x1 = tiers_prompt(&at, 1);
	scene_match(&at, &x1, &m);
	r.lease = m.lease;
	ck_assert_int_eq(world_reserve(at.c, &r, &reserved), -EINPROGRESS);
	ck_assert_uint_eq(world_in_flight(&tiers.w), BLOCKS);
	scene_match(&at, &x0, &again);
	ck_assert_uint_eq(again.n_device, BLOCKS);
	world_run_until_idle(&tiers.w);
	ck_assert_uint_eq(scene_check_fill(&at, again.runs, 1), BLOCKS);
	scene_release(&at, again.lease, NULL);
	scene_release(&at, m.lease, NULL);
	tiers_check_at(&at, 0, BLOCKS, 0, 0);
	world_deinit(&tiers.w);
}
END_TEST

/* ---- T28, T48: a Redis that does not answer -------------------------------------------------- */

/* What the workers were told, byte by byte, with the step in which they were. */
struct told {
	uint8_t *bytes;
	size_t len, cap;
};

static void tell(struct told *t, const void *bytes, size_t len)
{
	if (t->cap - t->len < len) {
		t->cap = 2 * t->cap + len;
		t->bytes = realloc(t->bytes, t->cap);
		ck_assert_ptr_nonnull(t->bytes);
	}
	if (len)
		memcpy(t->bytes + t->len, bytes, len);
	t->len += len;
}

/* A request of `at` is answered in its own step, whatever else goes on. */
static void ask(const struct scene_place *at, struct told *t, const struct scene_prompt *x)
{
	struct proto_match_rep m;
	struct proto_match_rep more;
	struct proto_release_rep end;
	uint64_t before = tiers.w.n_steps;

	scene_match(at, x, &m);
	ck_assert_uint_eq(tiers.w.n_steps, before + 1);
	tell(t, at->c->body, at->c->h.len);
	scene_extend(at, m.lease, &more);
	tell(t, at->c->body, at->c->h.len);
	scene_release(at, m.lease, &end);
	tell(t, at->c->body, at->c->h.len);
	ck_assert_uint_eq(tiers.w.n_steps, before + 3);
}

enum redis_state {
	HEALTHY,
	SLOW,
	STALLED,
	N_STATES
};

static void conversation(enum redis_state state, struct told *t)
{
	struct scene_place at;
	struct scene_prompt x[4];

	tiers_configure(BLOCKS, BLOCKS, true);
	at = tiers_begin();
	for (uint32_t p = 0; p < 3; p++) {
		tiers_put(&at, p);
		x[p] = tiers_prompt(&at, p);
	}
	x[3] = tiers_prompt(&at, 3);
	tiers_check_at(&at, 0, 0, 0, BLOCKS);
	tiers_check_at(&at, 1, 0, BLOCKS, 0);
	tiers_check_at(&at, 2, BLOCKS, 0, 0);
	world_run_until_idle(&tiers.w);
	if (state == STALLED)
		world_redis_stall(&tiers.w, true);
	if (state == SLOW)
		world_delay(&tiers.w, 200000000, UINT32_MAX);
	for (uint32_t i = 0; i < 200; i++) {
		ask(&at, t, &x[i % 4]); /* of the last one nothing is known: Redis is asked */
		world_advance(&tiers.w, 100000);
	}
	world_redis_stall(&tiers.w, false);
	world_run_until_idle(&tiers.w);
	world_deinit(&tiers.w);
}

/* Healthy, 200 ms away or frozen: the workers are told the same, in the same steps. */
START_TEST(match_never_remote)
{
	struct told healthy = { 0 }, other;

	conversation(HEALTHY, &healthy);
	ck_assert_uint_gt(healthy.len, 10000);
	for (uint32_t s = SLOW; s < N_STATES; s++) {
		memset(&other, 0, sizeof(other));
		conversation(s, &other);
		ck_assert_uint_eq(other.len, healthy.len);
		ck_assert_int_eq(memcmp(other.bytes, healthy.bytes, other.len), 0);
		free(other.bytes);
	}
	free(healthy.bytes);
}
END_TEST

/* With the connection gone too, what the tiers hold is told just so. */
START_TEST(match_while_down)
{
	struct scene_place at;

	tiers_configure(BLOCKS, BLOCKS, true);
	at = tiers_begin();
	for (uint32_t p = 0; p < 3; p++)
		tiers_put(&at, p);
	world_redis_up(&tiers.w, false);
	for (uint32_t i = 0; i < 20; i++) {
		tiers_check_at(&at, 0, 0, 0, BLOCKS);
		tiers_check_at(&at, 1, 0, BLOCKS, 0);
		tiers_check_at(&at, 2, BLOCKS, 0, 0);
		world_advance(&tiers.w, 1000000);
	}
	world_deinit(&tiers.w);
}
END_TEST

START_TEST(frozen_redis)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event e;
	struct prefixd_counters before;
	uint64_t seq, lease, begun;

	tiers_configure(BLOCKS, BLOCKS, true);
	tiers.config.engine.limits.reserve_ns = 100000000;
	at = tiers_begin();
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	tiers_check_at(&at, 0, 0, 0, BLOCKS);
	world_run_until_idle(&tiers.w);
	world_redis_stall(&tiers.w, true);
	/* A load says so at the operations' deadline. */
	x = tiers_prompt(&at, 0);
	begun = tiers.w.now_ns;
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS);
	scene_loaded(&at, seq, &e);
	ck_assert_uint_eq(e.state, PROTO_WAIT_FAILED);
	ck_assert_uint_eq(e.reason, PROTO_REASON_TIER_DOWN);
	ck_assert_uint_le(tiers.w.now_ns - begun, 1000000000);
	scene_release(&at, m.lease, NULL);
	/* What needs room below is put off until its deadline, then room is made without a copy. */
	before = world_counters(&tiers.w);
	for (uint32_t p = 3; p < 8; p++) {
		begun = tiers.w.now_ns;
		x = tiers_prompt(&at, p);
		ck_assert_uint_eq(scene_put(&at, &x, (uint8_t)(p + 1)), BLOCKS);
		ck_assert_uint_le(tiers.w.now_ns - begun,
				  2 * tiers.config.engine.limits.reserve_ns);
		tiers_check_at(&at, p, BLOCKS, 0, 0);
	}
	ck_assert_uint_gt(world_counters(&tiers.w).dropped_blocks, before.dropped_blocks);
	world_advance(&tiers.w, 1000000000);
	/* It answers again: blocks go down and come up as before. */
	world_redis_stall(&tiers.w, false);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	for (uint32_t p = 8; p < 11; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	tiers_check_at(&at, 8, 0, 0, BLOCKS);
	x = tiers_prompt(&at, 8);
	ck_assert_uint_eq(scene_bring_up(&at, &x, 9, &lease), BLOCKS);
	scene_release(&at, lease, NULL);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- T52: a tier that is slower than computing ----------------------------------------------- */

START_TEST(slow_tier_advice)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_event e;
	struct proto_release_rep end;
	struct prefixd_counters n;
	uint64_t lease, seq;

	tiers_configure(BLOCKS, 0, true);
	tiers.config.tiers.remote.bytes_per_s = 10000000;
	tiers.config.engine.limits.prefill_ns_per_token = 50000;
	/* 8 blocks of 64 KiB: 52 ms from Redis, 1.6 ms to compute. */
	o.flags = PROTO_OPEN_OPAQUE;
	o.block_bytes = 65536;
	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	for (uint32_t p = 0; p < 4; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	x = tiers_prompt(&at, 0);
	/* Once it is tried, nobody knows better. */
	ck_assert_uint_eq(scene_bring_up(&at, &x, 1, &lease), BLOCKS);
	scene_release(&at, lease, NULL);
	world_run_until_idle(&tiers.w);
	n = world_counters(&tiers.w);
	x = tiers_prompt(&at, 1);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS);
	ck_assert_uint_eq(m.advice, 1);
	ck_assert_uint_ge(m.load_us, 30000);
	ck_assert_uint_le(m.load_us, 200000);
	ck_assert_uint_eq(world_counters(&tiers.w).load_declined_slow - n.load_declined_slow,
			  BLOCKS);
	world_advance(&tiers.w, 1000000000);
	ck_assert(!world_event(at.c, &seq, &e)); /* no load was begun */
	scene_release(&at, m.lease, &end);
	ck_assert_uint_eq(end.miss_tokens, BLOCKS * BT);
	ck_assert_uint_eq(world_counters(&tiers.w).miss_declined - n.miss_declined, BLOCKS * BT);
	/* It computes, and its blocks are the device copies of what Redis had. */
	ck_assert_uint_eq(scene_put(&at, &x, 2), BLOCKS);
	ck_assert_uint_eq(world_counters(&tiers.w).attached_blocks - n.attached_blocks, BLOCKS);
	tiers_check_at(&at, 1, BLOCKS, 0, 0);
	world_deinit(&tiers.w);
}
END_TEST

START_TEST(fast_tier_advice)
{
	struct scene_place at;
	struct scene_prompt x;
	struct proto_match_rep m;
	uint64_t lease;

	tiers_configure(BLOCKS, 4 * BLOCKS, true);
	tiers.config.engine.limits.prefill_ns_per_token = 50000;
	at = tiers_begin();
	for (uint32_t p = 0; p < 3; p++)
		tiers_put(&at, p);
	x = tiers_prompt(&at, 0);
	ck_assert_uint_eq(scene_bring_up(&at, &x, 1, &lease), BLOCKS);
	scene_release(&at, lease, NULL);
	world_run_until_idle(&tiers.w);
	x = tiers_prompt(&at, 1);
	scene_look(&at, &x, &m);
	ck_assert_uint_eq(m.n_host, BLOCKS);
	ck_assert_uint_eq(m.advice, 0);
	ck_assert_uint_gt(m.load_us, 0);
	ck_assert_uint_eq(world_counters(&tiers.w).load_declined_slow, 0);
	world_deinit(&tiers.w);
}
END_TEST

/* One load in eight is begun against the advice, so that a tier that got faster is noticed. */
START_TEST(faster_tier_is_noticed)
{
	struct proto_open_req o = world_open_req("m");
	uint32_t n_loaded = 0, n_last = 0;
	struct scene_place at;
	struct proto_event e;
	uint64_t lease, seq;

	tiers_configure(BLOCKS, 0, true);
	tiers.config.tiers.remote.bytes_per_s = 10000000;
	tiers.config.engine.limits.prefill_ns_per_token = 50000;
	o.flags = PROTO_OPEN_OPAQUE;
	o.block_bytes = 65536;
	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	for (uint32_t p = 0; p < 4; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	for (uint32_t i = 0; i < 200; i++) {
		struct scene_prompt x = tiers_prompt(&at, i % 4);
		struct proto_match_rep m;

		(void)scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
		lease = m.lease;
		if (m.n_redis) {
			n_loaded += m.advice == 0;
			n_last += m.advice == 0 && i >= 180;
		}
		world_run_until_idle(&tiers.w);
		while (world_event(at.c, &seq, &e))
			continue;
		scene_release(&at, lease, NULL);
		if (i == 40) {
			/* the first without a sample, and one in eight of the others */
			ck_assert_uint_ge(n_loaded, 3);
			ck_assert_uint_le(n_loaded, 10);
			tiers.w.config.tiers.remote.bytes_per_s = 100000000000;
			tiers.w.config.tiers.remote.latency_ns = 1000;
		}
	}
	ck_assert_uint_ge(n_last, 10);
	world_deinit(&tiers.w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tiers");

	scene_case(s, "T16", abort_during_restore);
	scene_case(s, "T19", no_eviction_under_copy);
	scene_case(s, "T19", leaving_and_wanted);
	scene_case(s, "T28", frozen_redis);
	scene_case(s, "T48", match_never_remote);
	scene_case(s, "T48", match_while_down);
	scene_case(s, "T52", slow_tier_advice);
	scene_case(s, "T52", fast_tier_advice);
	scene_case(s, "T52", faster_tier_is_noticed);
	return scene_main(s);
}
