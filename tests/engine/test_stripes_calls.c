/*
 * test_stripes_calls.c - calls of ranks whose answer comes later: RESERVEs that wait, EVENTs of
 * WAIT and of loads; and what becomes of them when a rank goes on, ends, or all are taken back.
 */
#include "tests/engine/ranks.h"

#define MS     1000000ull
#define SECOND 1000000000ull

static struct world *const w = &ranks.w;

/* `slots` above 16 of the host; a copy takes 1 ms, one at a time. */
static void begin_tiered(uint32_t n, uint32_t slots)
{
	ranks_config();
	ranks.config.engine.pool_blocks = slots;
	ranks.config.engine.limits.prefill_ns_per_token = 0; /* loading is always worth it */
	ranks.config.tiers.host_blocks = 16;
	ranks.config.tiers.copy.bytes_per_s = 64 * 1000;
	ranks_begin(n);
}

struct later {
	uint64_t seq;
	uint8_t runs[64];
	uint32_t n, n_runs;
};

/* RESERVE; -EINPROGRESS, or its status. */
static int reserve(uint32_t rank, uint64_t lease, uint32_t n, struct later *ret)
{
	struct proto_reserve_req m = { .lease = lease, .n = n };
	struct proto_reserve_rep rep = { 0 };
	int status = world_reserve(ranks.at[rank].c, &m, &rep);

	*ret = (struct later){ .seq = ranks.at[rank].c->seq, .n = rep.n, .n_runs = rep.runs.n };
	if (status == PROTO_STATUS_OK)
		memcpy(ret->runs, rep.runs.p, rep.runs.n * 8);
	return status;
}

static int reply(uint32_t rank, struct later *l)
{
	struct proto_reserve_rep rep = { 0 };
	int status = world_reserve_reply(ranks.at[rank].c, l->seq, &rep);

	l->n = rep.n;
	l->n_runs = rep.runs.n;
	if (status == PROTO_STATUS_OK)
		memcpy(l->runs, rep.runs.p, rep.runs.n * 8);
	return status;
}

static void put_waiting(uint32_t first, uint32_t n)
{
	uint64_t d = ++ranks.decision + 1000000, lease = 0;
	struct later l[2];

	for (uint32_t i = 0; i < 2; i++)
		lease = ranks_match(i, d, first, n).lease;
	for (uint32_t i = 0; i < 2; i++)
		if (reserve(i, lease, n, &l[i]) == -EINPROGRESS) {
			world_run_until_idle(w);
			ck_assert_int_eq(reply(i, &l[i]), PROTO_STATUS_OK);
		}
	for (uint32_t i = 0; i < 2; i++)
		ranks_commit(i, lease, n);
	for (uint32_t i = 0; i < 2; i++)
		ranks_release(i, lease);
}

START_TEST(all_wait_for_one_answer)
{
	uint64_t lease = 0;
	struct later l[3];

	begin_tiered(3, 8);
	ranks_put(1000, 6);
	for (uint32_t i = 0; i < 2; i++) {
		lease = ranks_match(i, 1, 5000, 8).lease;
		ck_assert_int_eq(reserve(i, lease, 2, &l[i]), PROTO_STATUS_OK);
	}
	/* Two are reserved; the rest waits until blocks have moved down. */
	ck_assert_int_eq(reserve(0, lease, 4, &l[0]), -EINPROGRESS);
	ranks_commit(0, lease, 1); /* meanwhile */
	ck_assert_int_eq(reserve(1, lease, 4, &l[1]), -EINPROGRESS);
	ck_assert_int_eq(ranks_try_reserve(1, lease, 4), PROTO_STATUS_WRONG_STATE);
	ranks_commit(1, lease, 2);
	world_run_until_idle(w);
	ck_assert_int_eq(reply(0, &l[0]), PROTO_STATUS_OK);
	ck_assert_int_eq(reply(1, &l[1]), PROTO_STATUS_OK);
	ck_assert_uint_eq(l[0].n, 4);
	ck_assert_mem_eq(l[0].runs, l[1].runs, sizeof(l[0].runs));
	/* Who comes last does not wait. */
	ck_assert_uint_eq(ranks_match(2, 1, 5000, 8).lease, lease);
	ck_assert_int_eq(reserve(2, lease, 2, &l[2]), PROTO_STATUS_OK);
	ck_assert_int_eq(reserve(2, lease, 4, &l[2]), PROTO_STATUS_OK);
	ck_assert_mem_eq(l[2].runs, l[0].runs, sizeof(l[0].runs));
	ranks_commit(0, lease, 5);
	ranks_commit(1, lease, 4);
	ck_assert_uint_eq(ranks_commit(2, lease, 6).n_stored, 6);
	ck_assert_uint_eq(world_counters(w).deferred_reserves, 1);
	world_deinit(w);
}
END_TEST

static uint64_t both_wait(struct later l[2])
{
	uint64_t lease = 0;

	begin_tiered(2, 8);
	ranks_put(1000, 8);
	for (uint32_t i = 0; i < 2; i++)
		lease = ranks_match(i, 1, 5000, 4).lease;
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(reserve(i, lease, 4, &l[i]), -EINPROGRESS);
	return lease;
}

START_TEST(waiting_ends_with_a_rank)
{
	struct later l[2];
	uint64_t lease = both_wait(l);

	/* RELEASE of one ends it for all, but the lease of the others is not unknown by that. */
	ranks_release(0, lease);
	ck_assert_int_eq(reply(0, &l[0]), PROTO_STATUS_WRONG_STATE);
	ck_assert_int_eq(reply(1, &l[1]), PROTO_STATUS_WRONG_STATE);
	ranks_release(1, lease);
	world_run_until_idle(w);
	world_deinit(w);
	/* And so does the end of one. */
	lease = both_wait(l);
	world_gone(ranks.at[0].c);
	ck_assert_int_eq(reply(1, &l[1]), PROTO_STATUS_REVOKED);
	ck_assert_int_eq(ranks_try_reserve(1, lease, 1), PROTO_STATUS_REVOKED);
	ranks_release(1, lease);
	world_run_until_idle(w);
	world_deinit(w);
	/* The socket alone. */
	lease = both_wait(l);
	world_eof(ranks.at[1].c);
	ck_assert_int_eq(reply(0, &l[0]), PROTO_STATUS_REVOKED);
	ranks_release(0, lease);
	world_gone(ranks.at[1].c);
	world_run_until_idle(w);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 0);
	world_deinit(w);
}
END_TEST

/* ---- WAIT ------------------------------------------------------------------------------------ */

static int wait_for(uint32_t rank, uint64_t lease, uint32_t deadline_us)
{
	struct proto_wait_req m = { .lease = lease, .deadline_us = deadline_us };
	struct proto_wait_rep rep;

	ck_assert_int_eq(world_wait(ranks.at[rank].c, &m, &rep), PROTO_STATUS_OK);
	return rep.state;
}

static void expect_event(uint32_t rank, uint64_t lease, int state)
{
	struct proto_event e;
	uint64_t seq;

	ck_assert(world_event(ranks.at[rank].c, &seq, &e));
	ck_assert_uint_eq(e.lease, lease);
	ck_assert_int_eq(e.state, state);
	ck_assert_uint_eq(seq, ranks.at[rank].c->seq);
	ck_assert(!world_event(ranks.at[rank].c, &seq, &e));
}

static bool silent(uint32_t rank)
{
	struct proto_event e;
	uint64_t seq;

	return !world_event(ranks.at[rank].c, &seq, &e);
}

/* Decision 1 computes what decision 2 waits for. */
START_TEST(every_rank_gets_its_event)
{
	struct proto_extend_req x = { 0 };
	struct proto_match_rep m;
	uint64_t a = 0, b = 0;

	ranks_config();
	ranks_begin(2);
	for (uint32_t i = 0; i < 2; i++) {
		a = ranks_match(i, 1, 1000, 4).lease;
		ranks_reserve(i, a, 4);
		b = ranks_match(i, 2, 1000, 4).lease;
	}
	ck_assert_int_eq(wait_for(0, b, 0), PROTO_WAIT_WAITING);
	ranks_commit(1, a, 4);
	ck_assert(silent(0));
	ranks_commit(0, a, 4);
	ck_assert(silent(1)); /* it has not asked yet */
	{
		struct proto_event e;
		uint64_t seq;

		ck_assert(world_event(ranks.at[0].c, &seq, &e));
		ck_assert_int_eq(e.state, PROTO_WAIT_READY);
		ck_assert_uint_eq(e.n, 4);
	}
	ck_assert_int_eq(wait_for(1, b, 0), PROTO_WAIT_WAITING);
	expect_event(1, b, PROTO_WAIT_READY);
	x.lease = b;
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(world_extend(ranks.at[i].c, &x, &m), PROTO_STATUS_OK);
		ck_assert_uint_eq(m.n_device, 4);
	}
	ck_assert_uint_eq(world_counters(w).waits, 1);
	world_deinit(w);
}
END_TEST

/* One rank waits no longer: the others are told, each once; and at the deadline likewise. */
START_TEST(nobody_waits_in_vain)
{
	struct proto_extend_req x = { 0 };
	struct proto_match_rep m;
	uint64_t a = 0, b = 0;

	ranks_config();
	ranks_begin(3);
	for (uint32_t i = 0; i < 3; i++) {
		a = ranks_match(i, 1, 1000, 4).lease;
		ranks_reserve(i, a, 4);
		b = ranks_match(i, 2, 1000, 4).lease;
	}
	x.lease = b;
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(wait_for(i, b, 0), PROTO_WAIT_WAITING);
	ck_assert_int_eq(world_extend(ranks.at[0].c, &x, &m), PROTO_STATUS_OK);
	ck_assert(silent(0));
	expect_event(1, b, PROTO_WAIT_DEADLINE);
	ck_assert_int_eq(wait_for(2, b, 0), PROTO_WAIT_WAITING);
	expect_event(2, b, PROTO_WAIT_DEADLINE);
	for (uint32_t i = 1; i < 3; i++)
		ck_assert_int_eq(world_extend(ranks.at[i].c, &x, &m), PROTO_STATUS_OK);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(wait_for(i, b, 1000), PROTO_WAIT_WAITING);
	world_advance(w, MS);
	for (uint32_t i = 0; i < 3; i++)
		expect_event(i, b, PROTO_WAIT_DEADLINE);
	/* The one that computes ends: those that wait lead, all of them. */
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(wait_for(i, b, 0), PROTO_WAIT_WAITING);
	ranks_release(2, a);
	for (uint32_t i = 0; i < 2; i++)
		expect_event(i, b, PROTO_WAIT_LEAD);
	/* And when one of those that wait has ended the others need not wait. */
	world_gone(ranks.at[2].c);
	ck_assert(silent(0) && silent(1));
	ck_assert_int_eq(ranks_try_reserve(0, b, 1), PROTO_STATUS_REVOKED);
	world_deinit(w);
}
END_TEST

/* ---- loads ----------------------------------------------------------------------------------- */

START_TEST(loads_are_told_to_all)
{
	struct proto_match_req q;
	struct proto_match_rep m;
	struct proto_extend_req x = { 0 };
	uint64_t lease = 0;

	begin_tiered(2, 8);
	put_waiting(1000, 8);
	put_waiting(5000, 8);
	for (uint32_t i = 0; i < 2; i++) {
		q = ranks_match_req(&ranks.at[i], 1, 1000, 8);
		q.flags = PROTO_MATCH_PROMOTE;
		ck_assert_int_eq(world_match(ranks.at[i].c, &q, &m), PROTO_STATUS_OK);
		ck_assert_uint_eq(m.n_host, 8);
		ck_assert_uint_eq(m.advice, 0);
		lease = m.lease;
		if (i == 0)
			world_run_until_idle(w);
		expect_event(i, lease, PROTO_WAIT_LOADED);
	}
	x.lease = lease;
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(world_extend(ranks.at[i].c, &x, &m), PROTO_STATUS_OK);
		ck_assert_uint_eq(m.n_device, 8);
		ranks_release(i, lease);
	}
	ck_assert_uint_eq(world_counters(w).loads, 1);
	/* One rank computes after all: the other one is told that nothing comes. */
	put_waiting(9000, 8);
	for (uint32_t i = 0; i < 2; i++) {
		q = ranks_match_req(&ranks.at[i], 2, 1000, 8);
		q.flags = PROTO_MATCH_PROMOTE;
		ck_assert_int_eq(world_match(ranks.at[i].c, &q, &m), PROTO_STATUS_OK);
		lease = m.lease;
	}
	(void)ranks_try_reserve(0, lease, 1);
	expect_event(1, lease, PROTO_WAIT_FAILED);
	ck_assert(silent(0));
	world_run_until_idle(w);
	world_deinit(w);
}
END_TEST

/* ---- taken back ------------------------------------------------------------------------------ */

static struct scene_place copier(uint32_t pid, uint32_t rank)
{
	struct world_client *c = world_connect(w, pid, 1000, false);
	struct proto_hello_req m = world_hello_req(c);
	struct proto_open_req o = ranks_open_req(ranks.n, rank);
	struct scene_place at = { .c = c };
	struct proto_hello_rep rep;

	m.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(c, &o, &at.ns), PROTO_STATUS_OK);
	return at;
}

/* Only where all ranks copy; slots stay until each has said QUIESCED, or ended. */
START_TEST(taken_back_from_all)
{
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep rep;
	uint64_t lease = 0;

	ranks_config();
	ranks.config.engine.limits.lease_max_age_ns = SECOND;
	ranks_begin(2);
	ranks.at[0] = copier(200, 0);
	for (uint32_t i = 0; i < 2; i++)
		lease = ranks_match(i, 1, 1000, 4).lease;
	world_advance(w, 5 * SECOND);
	ck_assert_uint_eq(ranks_reserve(0, lease, 4), 4); /* rank 1 reads in place */
	ranks_release(0, lease);
	ranks_release(1, lease);
	ranks.at[1] = copier(201, 1);
	for (uint32_t i = 0; i < 2; i++) {
		lease = ranks_match(i, 2, 2000, 4).lease;
		ck_assert_uint_eq(ranks_reserve(i, lease, 4), 4);
	}
	world_advance(w, 2 * SECOND);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_QUARANTINED), 4);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(ranks_try_commit(i, lease, 4, NULL), PROTO_STATUS_REVOKED);
		q.instance = ranks.at[i].c->instance;
		ck_assert_int_eq(world_quiesced(ranks.at[i].c, &q, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(ranks_slots(RADIX_SLOT_QUARANTINED), i ? 0 : 4);
	}
	/* With nothing reserved each is told once. */
	for (uint32_t i = 0; i < 2; i++)
		lease = ranks_match(i, 3, 2000, 4).lease;
	world_advance(w, 2 * SECOND);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(ranks_try_reserve(i, lease, 4), PROTO_STATUS_REVOKED);
		ck_assert_int_eq(ranks_try_reserve(i, lease, 4), PROTO_STATUS_UNKNOWN_LEASE);
	}
	world_deinit(w);
}
END_TEST

START_TEST(lost_with_the_device)
{
	uint64_t lease = 0;

	ranks_config();
	ranks.config.engine.grace_ns = SECOND;
	ranks_begin(3);
	ranks_put(1000, 2);
	for (uint32_t i = 0; i < 3; i++) {
		lease = ranks_match(i, 1, 1000, 6).lease;
		ck_assert_uint_eq(ranks_reserve(i, lease, 4), 4);
	}
	lease = ranks_match(0, 2, 1000, 6).lease; /* of which the others never hear */
	world_gone(ranks.at[2].c);
	world_pool_lost(w, 0);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(ranks_try_commit(i, lease, 1, NULL),
				 i ? PROTO_STATUS_UNKNOWN_LEASE : PROTO_STATUS_DEVICE_LOST);
	world_advance(w, 5 * SECOND);
	world_deinit(w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stripes-calls");

	scene_case(s, "reserve", all_wait_for_one_answer);
	scene_case(s, "ends", waiting_ends_with_a_rank);
	scene_case(s, "wait", every_rank_gets_its_event);
	scene_case(s, "vain", nobody_waits_in_vain);
	scene_case(s, "loads", loads_are_told_to_all);
	scene_case(s, "age", taken_back_from_all);
	scene_case(s, "lost", lost_with_the_device);
	return scene_main(s);
}
