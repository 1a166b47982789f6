/*
 * test_stripes.c - leases that the ranks of a model share: one answer for all, stored when all have
 * written, over when all are.
 */
#include "tests/engine/ranks.h"

#include "daemon/stripe_sum.h"

#define SECOND 1000000000ull

static struct world *const w = &ranks.w;

/* ---- OPEN ------------------------------------------------------------------------------------ */

static int try_open(struct world_client *c, struct proto_open_req *o, const char *field)
{
	struct proto_open_rep rep;
	int status = world_open(c, o, &rep);

	if (field)
		ck_assert_str_eq(c->error_field, field);
	return status;
}

START_TEST(all_ranks_open_one_namespace)
{
	struct proto_open_req o;
	struct proto_open_rep rep[3];

	ranks_config();
	ranks_begin(2);
	ck_assert_uint_eq(ranks.at[0].ns.ns, ranks.at[1].ns.ns);
	ck_assert_uint_eq(ranks.at[0].ns.group, ranks.at[1].ns.group);
	ck_assert_uint_eq(ranks.at[0].ns.n_ranks, 2);
	ck_assert(!proto_id_equal(&ranks.at[0].ns.pool, &ranks.at[1].ns.pool));
	ck_assert_uint_eq(ranks.at[0].c->fds_rank, 0);
	ck_assert_uint_eq(ranks.at[1].c->fds_rank, 1);
	/* One rank, or another number of them, is another namespace and another pool. */
	o = world_open_req("m");
	ck_assert_int_eq(world_open(world_worker(w, 300, 1000), &o, &rep[0]), PROTO_STATUS_OK);
	o = ranks_open_req(3, 0);
	ck_assert_int_eq(world_open(world_worker(w, 301, 1000), &o, &rep[1]), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep[0].n_ranks, 1);
	ck_assert_uint_ne(rep[0].group, ranks.at[0].ns.group);
	ck_assert_uint_ne(rep[1].group, ranks.at[0].ns.group);
	ck_assert_uint_ne(rep[1].ns, ranks.at[0].ns.ns);
	/* A session is one rank, wherever it is one. */
	o = ranks_open_req(2, 1);
	o.adapter = world_text("a");
	ck_assert_int_eq(try_open(ranks.at[0].c, &o, "tp_rank"), PROTO_STATUS_BAD_NAMESPACE);
	o.tp_rank = 0;
	ck_assert_int_eq(try_open(ranks.at[0].c, &o, NULL), PROTO_STATUS_OK);
	world_deinit(w);
}
END_TEST

START_TEST(ranks_are_checked)
{
	struct world_client *c;
	struct proto_open_req o;

	ranks_config();
	ranks.config.engine.max_ranks = 4;
	ranks_begin(0);
	c = world_worker(w, 100, 1000);
	for (uint32_t n = 0; n < 6; n++) {
		o = ranks_open_req(n, 0);
		if (n < 2 || n > 4)
			ck_assert_int_eq(try_open(c, &o, "tp_size"), PROTO_STATUS_BAD_NAMESPACE);
	}
	o = ranks_open_req(2, 2);
	ck_assert_int_eq(try_open(c, &o, "tp_rank"), PROTO_STATUS_BAD_NAMESPACE);
	o = ranks_open_req(2, 0);
	o.flags = 0;
	ck_assert_int_eq(try_open(c, &o, "tp_size"), PROTO_STATUS_BAD_NAMESPACE);
	world_deinit(w);
	/* Where the shell makes one pool for a group there are none. */
	ranks_config();
	ranks.config.engine.max_ranks = 0;
	ranks_begin(0);
	c = world_worker(w, 100, 1000);
	o = ranks_open_req(2, 0);
	ck_assert_int_eq(try_open(c, &o, "flags"), PROTO_STATUS_BAD_NAMESPACE);
	world_deinit(w);
}
END_TEST

/* The pools of all ranks are of one budget. */
START_TEST(every_pool_is_paid_for)
{
	struct proto_open_req o = ranks_open_req(4, 0);

	ranks_config();
	ranks.config.engine.pool_bytes = 32 * 64 * 4 - 1;
	ranks_begin(0);
	ck_assert_int_eq(try_open(world_worker(w, 100, 1000), &o, "block_bytes"),
			 PROTO_STATUS_NO_BUDGET);
	world_deinit(w);
	ranks_config();
	ranks.config.engine.pool_bytes = 32 * 64 * 4;
	ranks_begin(4);
	world_deinit(w);
}
END_TEST

/* ---- one answer for all ---------------------------------------------------------------------- */

START_TEST(a_decision_is_named)
{
	struct proto_match_req m;
	struct proto_match_rep rep;

	ranks_config();
	ranks_begin(2);
	m = ranks_match_req(&ranks.at[0], 1, 1000, 4);
	m.decision_id = (struct proto_id){ { 0 } };
	ck_assert_int_eq(world_match(ranks.at[0].c, &m, &rep), PROTO_STATUS_MISSING_FIELD);
	ck_assert_str_eq(ranks.at[0].c->error_field, "decision_id");
	world_deinit(w);
}
END_TEST

/* Between the first rank's MATCH and the last one's blocks go, come, and are stored by others. */
START_TEST(same_answer_whatever_happens)
{
	struct proto_match_rep first, m;
	struct proto_span runs;
	uint8_t bytes[256];

	ranks_config();
	ranks_begin(4);
	ranks_put(1000, 6);
	ranks_put(9000, 20);
	first = ranks_match(0, 1, 1000, 10);
	ck_assert_uint_eq(first.n_device, 6);
	ck_assert_uint_le(first.runs.n * 8, sizeof(bytes));
	memcpy(bytes, first.runs.p, first.runs.n * 8);
	runs = first.runs;
	for (uint32_t i = 1; i < 4; i++) {
		world_evict(w, 0, 32); /* all that nobody holds */
		if (i == 2) {          /* another request stores what this one lacks */
			ranks_put(1000, 10);
			ck_assert_uint_eq(ranks_find(1000, 10), 10);
		}
		m = ranks_match(i, 1, 1000, 10);
		ck_assert_uint_eq(m.lease, first.lease);
		ck_assert_uint_eq(m.n_device, 6);
		ck_assert_uint_eq(m.reuse, first.reuse);
		ck_assert_uint_eq(m.runs.n, runs.n);
		ck_assert_mem_eq(m.runs.p, bytes, runs.n * 8);
	}
	ck_assert_uint_eq(ranks_find(1000, 10), 6);
	for (uint32_t i = 0; i < 4; i++)
		ranks_release(i, first.lease);
	ck_assert_uint_eq(world_counters(w).leases_released, world_counters(w).lookups);
	world_deinit(w);
}
END_TEST

static uint64_t slots_of(uint32_t rank, uint64_t lease, uint32_t n, uint8_t *bytes, uint32_t cap)
{
	struct proto_reserve_req m = { .lease = lease, .n = n };
	struct proto_reserve_rep rep;

	ck_assert_int_eq(world_reserve(ranks.at[rank].c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_le(rep.runs.n * 8, cap);
	memset(bytes, 0, cap);
	memcpy(bytes, rep.runs.p, rep.runs.n * 8);
	return rep.n;
}

/* RESERVE, EXTEND, and the refusals among them. */
START_TEST(every_call_is_decided_once)
{
	uint8_t a[64], b[64];
	uint32_t more[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct proto_extend_req x = { .n_tokens = 24, .keys = { more, sizeof(more) } };
	struct proto_match_rep m;
	uint64_t lease;

	ranks_config();
	ranks.config.engine.pool_blocks = 4;
	ranks_begin(2);
	lease = x.lease = ranks_match(0, 1, 1000, 4).lease;
	ck_assert_uint_eq(slots_of(0, lease, 3, a, sizeof(a)), 3);
	ck_assert_int_eq(world_extend(ranks.at[0].c, &x, &m), PROTO_STATUS_OK);
	ck_assert_uint_eq(slots_of(0, lease, 9, b, sizeof(b)), 1);
	ck_assert_int_eq(ranks_try_reserve(0, lease, 1), PROTO_STATUS_BUSY);
	ck_assert_uint_eq(world_counters(w).reserve_busy, 1);
	/* The other rank comes much later. */
	world_advance(w, 5 * SECOND);
	ck_assert_uint_eq(ranks_match(1, 1, 1000, 4).lease, lease);
	{
		uint8_t c[64];

		ck_assert_uint_eq(slots_of(1, lease, 3, c, sizeof(c)), 3);
		ck_assert_mem_eq(c, a, sizeof(c));
		ck_assert_int_eq(world_extend(ranks.at[1].c, &x, &m), PROTO_STATUS_OK);
		ck_assert_uint_eq(slots_of(1, lease, 9, c, sizeof(c)), 1);
		ck_assert_mem_eq(c, b, sizeof(c));
	}
	ck_assert_int_eq(ranks_try_reserve(1, lease, 1), PROTO_STATUS_BUSY);
	ck_assert_uint_eq(world_counters(w).reserve_busy, 1);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 4);
	for (uint32_t i = 0; i < 2; i++)
		ranks_commit(i, lease, 4);
	for (uint32_t i = 0; i < 2; i++)
		ranks_release(i, lease);
	world_deinit(w);
}
END_TEST

static void wrong(int status, uint32_t rank, const char *field)
{
	ck_assert_int_eq(status, PROTO_STATUS_WRONG_STATE);
	ck_assert_str_eq(ranks.at[rank].c->error_field, field);
}

START_TEST(ranks_that_differ_are_refused)
{
	uint32_t more[4] = { 1, 2, 3, 4 };
	struct proto_extend_req x = { .n_tokens = 20, .keys = { more, sizeof(more) } };
	struct proto_match_req q;
	struct proto_match_rep m;
	uint64_t lease;

	ranks_config();
	ranks_begin(2);
	lease = x.lease = ranks_match(0, 1, 1000, 4).lease;
	q = ranks_match_req(&ranks.at[1], 1, 1000, 4);
	q.flags = PROTO_MATCH_NO_TAIL;
	wrong(world_match(ranks.at[1].c, &q, &m), 1, "flags");
	q = ranks_match_req(&ranks.at[1], 1, 1004, 4);
	wrong(world_match(ranks.at[1].c, &q, &m), 1, "keys");
	q = ranks_match_req(&ranks.at[1], 1, 1000, 4);
	q.n_tokens++;
	wrong(world_match(ranks.at[1].c, &q, &m), 1, "n_tokens");
	q.n_tokens--;
	q.salt = world_text("s");
	wrong(world_match(ranks.at[1].c, &q, &m), 1, "salt");
	/* Asked twice by one rank. */
	q = ranks_match_req(&ranks.at[0], 1, 1000, 4);
	wrong(world_match(ranks.at[0].c, &q, &m), 0, "decision_id");
	ck_assert_uint_eq(ranks_match(1, 1, 1000, 4).lease, lease);
	ck_assert_uint_eq(ranks_reserve(0, lease, 2), 2);
	wrong(ranks_try_reserve(1, lease, 3), 1, "n");
	wrong(world_extend(ranks.at[1].c, &x, &m), 1, "");
	ck_assert_uint_eq(ranks_reserve(1, lease, 2), 2);
	ck_assert_int_eq(world_extend(ranks.at[1].c, &x, &m), PROTO_STATUS_OK);
	x.n_tokens++;
	wrong(world_extend(ranks.at[0].c, &x, &m), 0, "n_tokens");
	world_deinit(w);
}
END_TEST

/* ---- COMMIT ---------------------------------------------------------------------------------- */

START_TEST(stored_when_all_have_written)
{
	struct proto_commit_rep rep;
	uint64_t lease = 0;

	ranks_config();
	ranks_begin(3);
	for (uint32_t i = 0; i < 3; i++) {
		lease = ranks_match(i, 1, 1000, 4).lease;
		ck_assert_uint_eq(ranks_reserve(i, lease, 4), 4);
	}
	rep = ranks_commit(2, lease, 4);
	ck_assert_uint_eq(rep.n_stored, 0);
	{
		struct prefixd_lease_info info;
		uint64_t it = 0;

		ck_assert(prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info));
		ck_assert_uint_eq(info.n_ranks, 3);
		ck_assert_uint_eq(prefixd_engine_rank(&info, 2).n_committed, 4);
		ck_assert_uint_eq(prefixd_engine_rank(&info, 2).pid, 102);
		ck_assert_uint_eq(prefixd_engine_rank(&info, 0).n_committed, 0);
		ck_assert(!prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info));
	}
	ck_assert_uint_eq(proto_run_at(rep.runs, 0).len, 4); /* its own */
	ck_assert_uint_eq(ranks_commit(0, lease, 1).n_stored, 0);
	ck_assert_uint_eq(ranks_find(1000, 4), 0);
	rep = ranks_commit(1, lease, 3);
	ck_assert_uint_eq(rep.n_stored, 1);
	ck_assert_uint_eq(proto_run_at(rep.runs, 0).len, 3);
	ck_assert_uint_eq(ranks_find(1000, 4), 1);
	ck_assert_int_eq(ranks_try_commit(2, lease, 1, NULL), PROTO_STATUS_WRONG_STATE);
	ck_assert_int_eq(ranks_try_commit(1, lease, 2, NULL), PROTO_STATUS_WRONG_STATE);
	ck_assert_uint_eq(ranks_commit(0, lease, 2).n_stored, 2);
	ck_assert_uint_eq(ranks_find(1000, 4), 3);
	ck_assert_uint_eq(ranks_commit(0, lease, 1).n_stored, 0);
	ck_assert_uint_eq(ranks_commit(1, lease, 1).n_stored, 1);
	ck_assert_uint_eq(ranks_find(1000, 4), 4);
	for (uint32_t i = 0; i < 3; i++)
		ranks_release(i, lease);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED) + ranks_slots(RADIX_SLOT_OWN), 0);
	world_deinit(w);
}
END_TEST

/* Another request stores the same blocks first: what each rank wrote stays its own till the end. */
START_TEST(duplicates_stay_until_the_last_release)
{
	struct proto_commit_rep rep;
	uint64_t lease = 0;

	ranks_config();
	ranks_begin(2);
	for (uint32_t i = 0; i < 2; i++) {
		lease = ranks_match(i, 1, 1000, 2).lease;
		ranks_reserve(i, lease, 2);
	}
	rep = ranks_commit(0, lease, 2);
	ck_assert_uint_eq(proto_run_at(rep.runs, 0).start, 0);
	ranks_put(1000, 2);
	rep = ranks_commit(1, lease, 2);
	ck_assert_uint_eq(rep.n_duplicate, 2);
	ck_assert_uint_eq(proto_run_at(rep.runs, 0).start, 2);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_OWN), 2);
	ranks_release(1, lease);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_OWN), 2);
	ranks_release(0, lease);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_OWN), 0);
	world_deinit(w);
}
END_TEST

static int commit_summed(uint32_t rank, uint64_t lease, uint32_t n, const uint8_t (*sums)[16],
			 uint8_t kind)
{
	struct proto_commit_req m = {
		.lease = lease, .n = n, .checksum_kind = kind, .checksums = { sums, n * 16 }
	};
	struct proto_commit_rep rep;

	return world_commit(ranks.at[rank].c, &m, &rep);
}

/* One checksum of the pieces' checksums, in rank order; none where a rank gave none. */
START_TEST(checksums_become_one)
{
	uint8_t sums[2][3][16], want[16];
	struct radix_sum got[8];
	uint64_t lease = 0;
	uint32_t at = 0, n;

	ranks_config();
	ranks_begin(2);
	for (uint32_t i = 0; i < 96; i++)
		((uint8_t *)sums)[i] = (uint8_t)(i * 7 + 1);
	for (uint32_t i = 0; i < 2; i++) {
		lease = ranks_match(i, 1, 1000, 4).lease;
		ranks_reserve(i, lease, 4);
	}
	ck_assert_int_eq(commit_summed(1, lease, 3, sums[1], 1), PROTO_STATUS_OK);
	ranks_commit(1, lease, 1);
	ck_assert_int_eq(commit_summed(0, lease, 2, sums[0], 1), PROTO_STATUS_OK);
	ranks_commit(0, lease, 1); /* without, though the other one gave one */
	ck_assert_int_eq(commit_summed(0, lease, 1, sums[0], 1), PROTO_STATUS_OK);
	n = radix_sums_next(world_index(w, 0), 1, &at, got, 8);
	ck_assert_uint_eq(n, 2);
	for (uint32_t i = 0; i < 2; i++) {
		uint8_t v[2][16];

		memcpy(v[0], sums[0][i], 16);
		memcpy(v[1], sums[1][i], 16);
		prefixd_stripe_sum((const uint8_t(*)[16])v, 2, want);
		ck_assert_mem_eq(got[i].checksum, want, 16);
	}
	world_deinit(w);
}
END_TEST

/* ---- the end --------------------------------------------------------------------------------- */

/* A rank that comes when the others have released it is told the same; one that comes after that,
 * that it is too late. */
START_TEST(late_ranks)
{
	struct proto_match_req q;
	struct proto_match_rep m;
	uint64_t lease;

	ranks_config();
	ranks_begin(3);
	ranks_put(1000, 4);
	lease = ranks_match(0, 1, 1000, 4).lease;
	ck_assert_uint_eq(ranks_match(1, 1, 1000, 4).lease, lease);
	ranks_release(0, lease);
	ranks_release(1, lease);
	world_evict(w, 0, 32);
	m = ranks_match(2, 1, 1000, 4);
	ck_assert_uint_eq(m.lease, lease);
	ck_assert_uint_eq(m.n_device, 4);
	ranks_release(2, lease);
	q = ranks_match_req(&ranks.at[2], 1, 1000, 4);
	ck_assert_int_eq(world_match(ranks.at[2].c, &q, &m), PROTO_STATUS_UNKNOWN_LEASE);
	/* Nobody waits for ever. */
	lease = ranks_match(0, 2, 1000, 4).lease;
	ranks_release(0, lease);
	ck_assert_uint_eq(world_counters(w).leases_released, 2);
	world_advance(w, 11 * SECOND);
	ck_assert_uint_eq(world_counters(w).leases_released, 3);
	q = ranks_match_req(&ranks.at[1], 2, 1000, 4);
	ck_assert_int_eq(world_match(ranks.at[1].c, &q, &m), PROTO_STATUS_UNKNOWN_LEASE);
	ck_assert_str_eq(ranks.at[1].c->error_field, "decision_id");
	/* Who has come in time may take his time. */
	lease = ranks_match(0, 3, 1000, 4).lease;
	world_advance(w, 11 * SECOND);
	ck_assert_uint_eq(ranks_match(1, 3, 1000, 4).lease, lease);
	ranks_release(0, lease);
	ranks_release(1, lease);
	ck_assert_uint_eq(world_counters(w).leases_released, 4);
	/* In the end it is forgotten, and a number like any other. */
	world_advance(w, 120 * SECOND);
	ck_assert_uint_ne(ranks_match(1, 2, 1000, 4).lease, 0);
	world_deinit(w);
}
END_TEST

/* One of four writers dies before it has committed: nothing of its block is ever stored, and the
 * slots come back when no other rank may write them. */
static void one_of_four_ends(void (*end)(struct world_client *c), bool orphan)
{
	struct proto_match_rep m;
	struct proto_match_req q;
	uint64_t lease = 0;

	ranks_config();
	ranks_begin(4);
	ranks_put(1000, 2);
	for (uint32_t i = 0; i < 4; i++) {
		lease = ranks_match(i, 1, 1000, 6).lease;
		ranks_reserve(i, lease, 4);
	}
	for (uint32_t i = 0; i < 3; i++)
		ranks_commit(i, lease, 3);
	ck_assert_uint_eq(ranks_commit(3, lease, 1).n_stored, 1);
	end(ranks.at[3].c);
	ck_assert_uint_eq(world_counters(w).stripes_broken, 1);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(ranks_try_commit(i, lease, 1, NULL), PROTO_STATUS_REVOKED);
		ck_assert_int_eq(ranks_try_reserve(i, lease, 1), PROTO_STATUS_REVOKED);
	}
	q = ranks_match_req(&ranks.at[0], 1, 1000, 6);
	ck_assert_int_eq(world_match(ranks.at[0].c, &q, &m), PROTO_STATUS_REVOKED);
	world_evict(w, 0, 32); /* what the living ranks read stays */
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_READY), 3);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 3);
		ranks_release(i, lease);
	}
	if (orphan) {
		ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 3);
		ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 6);
		world_gone(ranks.at[3].c);
	}
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 0);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_QUARANTINED), 0);
	ck_assert_uint_eq(world_counters(w).leases_died, 1);
	ranks.at[3] = ranks_worker(900, 3);
	ck_assert_uint_eq(ranks_find(1000, 6), 3);
	world_deinit(w);
}

START_TEST(one_of_four_dies)
{
	one_of_four_ends(world_gone, false);
}
END_TEST

START_TEST(one_of_four_loses_its_socket)
{
	one_of_four_ends(world_eof, true);
}
END_TEST

/* Back ends with a grace: the last slot is free when the grace of every rank is over. */
START_TEST(graces_of_all_ranks)
{
	uint64_t lease = 0;

	ranks_config();
	ranks.config.engine.grace_ns = SECOND;
	ranks_begin(3);
	for (uint32_t i = 0; i < 3; i++) {
		lease = ranks_match(i, 1, 1000, 6).lease;
		ranks_reserve(i, lease, 6);
	}
	world_gone(ranks.at[0].c);
	world_advance(w, 2 * SECOND);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 6); /* two may write on */
	world_gone(ranks.at[1].c);
	world_advance(w, SECOND / 2);
	ranks_release(2, lease);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 0);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_QUARANTINED), 6);
	world_advance(w, SECOND / 2 - 1);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_QUARANTINED), 6);
	world_advance(w, 1);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_QUARANTINED), 0);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_FREE), 32);
	world_deinit(w);
}
END_TEST

/* QUIESCED of one rank ends its part alone. */
START_TEST(quiesced_rank_by_rank)
{
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep rep;
	uint64_t lease = 0;

	ranks_config();
	ranks_begin(2);
	for (uint32_t i = 0; i < 2; i++) {
		lease = ranks_match(i, 1, 1000, 5).lease;
		ranks_reserve(i, lease, 5);
	}
	for (uint32_t i = 0; i < 2; i++) {
		world_eof(ranks.at[i].c);
		ranks.at[i] = ranks_worker(100 + i, i);
	}
	ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 5);
	q.instance = ranks.at[1].c->instance;
	ck_assert_int_eq(world_quiesced(ranks.at[1].c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases, 1);
	ck_assert_uint_eq(rep.n_slots, 0);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_RESERVED), 5);
	q.instance = ranks.at[0].c->instance;
	ck_assert_int_eq(world_quiesced(ranks.at[0].c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_slots, 5);
	ck_assert_uint_eq(ranks_slots(RADIX_SLOT_FREE), 32);
	world_deinit(w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stripes");

	scene_case(s, "open", all_ranks_open_one_namespace);
	scene_case(s, "checked", ranks_are_checked);
	scene_case(s, "budget", every_pool_is_paid_for);
	scene_case(s, "named", a_decision_is_named);
	scene_case(s, "T31", same_answer_whatever_happens);
	scene_case(s, "calls", every_call_is_decided_once);
	scene_case(s, "differ", ranks_that_differ_are_refused);
	scene_case(s, "commit", stored_when_all_have_written);
	scene_case(s, "duplicates", duplicates_stay_until_the_last_release);
	scene_case(s, "sums", checksums_become_one);
	scene_case(s, "late", late_ranks);
	scene_case(s, "F06", one_of_four_dies);
	scene_case(s, "F06", one_of_four_loses_its_socket);
	scene_case(s, "grace", graces_of_all_ranks);
	scene_case(s, "quiesced", quiesced_rank_by_rank);
	return scene_main(s);
}
