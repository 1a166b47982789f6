/*
 * ranks.c - see ranks.h.
 */
#include "tests/engine/ranks.h"

struct ranks ranks;

static uint32_t tokens[4 * 4096];

void ranks_config(void)
{
	memset(&ranks, 0, sizeof(ranks));
	world_config_init(&ranks.config);
	ranks.config.engine.pool_blocks = 32;
	ranks.config.engine.max_ranks = RANKS_MAX;
	ranks.config.record = true;
}

struct proto_open_req ranks_open_req(uint32_t n, uint32_t rank)
{
	struct proto_open_req o = world_open_req("m");

	o.flags = PROTO_OPEN_STRIPE;
	o.tp_size = n;
	o.tp_rank = rank;
	return o;
}

struct scene_place ranks_worker(uint32_t pid, uint32_t rank)
{
	struct proto_open_req o = ranks_open_req(ranks.n, rank);

	return scene_place(&ranks.w, pid, 1000, &o);
}

void ranks_begin(uint32_t n)
{
	ck_assert_int_eq(world_init(&ranks.w, &ranks.config), 0);
	ranks.n = n;
	for (uint32_t i = 0; i < n; i++)
		ranks.at[i] = ranks_worker(100 + i, i);
}

struct proto_id ranks_id(uint64_t n)
{
	struct proto_id id = { { 0xd1 } };

	memcpy(id.b + 8, &n, sizeof(n));
	return id;
}

struct proto_match_req ranks_match_req(const struct scene_place *at, uint64_t decision,
				       uint32_t first, uint32_t n_keys)
{
	for (uint32_t i = 0; i < 4 * n_keys; i++)
		tokens[i] = first + i;
	return (struct proto_match_req){
		.has = PROTO_HAS_ALL,
		.ns = at->ns.ns,
		.decision_id = ranks_id(decision),
		.n_tokens = 4ull * n_keys,
		.keys = { tokens, n_keys * 16 },
	};
}

struct proto_match_rep ranks_match(uint32_t rank, uint64_t decision, uint32_t first,
				   uint32_t n_keys)
{
	const struct scene_place *at = &ranks.at[rank];
	struct proto_match_req m = ranks_match_req(at, decision, first, n_keys);
	struct proto_match_rep rep;

	ck_assert_msg(world_match(at->c, &m, &rep) == PROTO_STATUS_OK, "MATCH of rank %u: %s", rank,
		      at->c->error_text);
	return rep;
}

int ranks_try_reserve(uint32_t rank, uint64_t lease, uint32_t n)
{
	struct proto_reserve_req m = { .lease = lease, .n = n };
	struct proto_reserve_rep rep;

	return world_reserve(ranks.at[rank].c, &m, &rep);
}

uint32_t ranks_reserve(uint32_t rank, uint64_t lease, uint32_t n)
{
	struct proto_reserve_req m = { .lease = lease, .n = n };
	struct proto_reserve_rep rep;

	ck_assert_msg(world_reserve(ranks.at[rank].c, &m, &rep) == PROTO_STATUS_OK,
		      "RESERVE of rank %u: %s", rank, ranks.at[rank].c->error_text);
	return rep.n;
}

int ranks_try_commit(uint32_t rank, uint64_t lease, uint32_t n, struct proto_commit_rep *ret)
{
	struct proto_commit_req m = { .lease = lease, .n = n };
	struct proto_commit_rep rep;

	return world_commit(ranks.at[rank].c, &m, ret ? ret : &rep);
}

struct proto_commit_rep ranks_commit(uint32_t rank, uint64_t lease, uint32_t n)
{
	struct proto_commit_rep rep;

	ck_assert_msg(ranks_try_commit(rank, lease, n, &rep) == PROTO_STATUS_OK,
		      "COMMIT of rank %u: %s", rank, ranks.at[rank].c->error_text);
	return rep;
}

void ranks_release(uint32_t rank, uint64_t lease)
{
	scene_release(&ranks.at[rank], lease, NULL);
}

void ranks_put(uint32_t first, uint32_t n_keys)
{
	uint64_t d = ++ranks.decision + 1000000, lease = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < ranks.n; i++) {
		struct proto_match_rep m = ranks_match(i, d, first, n_keys);

		ck_assert(i == 0 || m.lease == lease);
		lease = m.lease;
		n = ranks_reserve(i, lease, n_keys);
	}
	for (uint32_t i = 0; i < ranks.n; i++)
		ranks_commit(i, lease, n);
	for (uint32_t i = 0; i < ranks.n; i++)
		ranks_release(i, lease);
}

uint32_t ranks_find(uint32_t first, uint32_t n_keys)
{
	uint64_t d = ++ranks.decision + 1000000;
	struct proto_match_rep m = { 0 };

	for (uint32_t i = 0; i < ranks.n; i++)
		m = ranks_match(i, d, first, n_keys);
	for (uint32_t i = 0; i < ranks.n; i++)
		ranks_release(i, m.lease);
	return m.n_device;
}

uint64_t ranks_slots(enum radix_slot_state state)
{
	struct radix_stats st;

	world_stats(&ranks.w, 0, &st);
	return st.slots[state];
}
