/*
 * test_policy.c - what two tiers keep and move, beside a table of blocks that does the obvious.
 */
#include "tests/engine/policy.h"
#include "tests/engine/scene.h"

#include <stdio.h>
#include <stdlib.h>

enum {
	POOL = 64,
	HOST = 5 * POOL,
	BT = 4,
	MAX = 48, /* blocks of a request */
	CHATS = 1200,
	REQUESTS = 2500,
	BLOCKS = 60000,
};

/* A chat: a system prompt that others share, then turns that grow. */
struct chat {
	uint32_t system;
	uint32_t n; /* blocks so far */
	uint32_t ids[MAX];
};

static struct chat chats[CHATS];
static uint32_t n_chats, n_ids;
static uint32_t systems[6][8];

/* Live chats go on, new ones begin, and now and then an old one comes back. */
static struct chat *next_chat(uint64_t *rng)
{
	uint32_t dice = test_rng_below(rng, 100), back;

	if (n_chats < 4 || (dice < 35 && n_chats < CHATS)) {
		struct chat *c = &chats[n_chats++];

		c->system = test_rng_below(rng, 3) ? test_rng_below(rng, 2)
						   : test_rng_below(rng, 6);
		c->n = 2 + c->system;
		for (uint32_t i = 0; i < c->n; i++) {
			if (!systems[c->system][i])
				systems[c->system][i] = ++n_ids;
			c->ids[i] = systems[c->system][i];
		}
		return c;
	}
	back = dice < 75 ? 6 : dice < 95 ? 60 : n_chats;
	back = back > n_chats ? n_chats : back;
	return &chats[n_chats - 1 - test_rng_below(rng, back)];
}

static void grow(struct chat *c, uint64_t *rng)
{
	uint32_t more = 1 + test_rng_below(rng, 6);

	while (more-- && c->n < MAX)
		c->ids[c->n++] = ++n_ids;
}

/* One request through the engine, from MATCH to RELEASE. */
static void request(const struct scene_place *at, const struct chat *c,
		    struct policy_counts *counts)
{
	static uint32_t tokens[MAX * BT];
	struct scene_prompt x;
	struct proto_match_rep m, more = { 0 };
	struct proto_reserve_req rq;
	struct proto_reserve_rep reserved;
	struct proto_commit_req commit;
	struct proto_commit_rep committed;
	struct proto_release_rep end;
	struct proto_event e;
	uint64_t seq;

	for (uint32_t i = 0; i < c->n * BT; i++)
		tokens[i] = c->ids[i / BT];
	x = scene_tokens(at, tokens, c->n * BT);
	seq = scene_match_with(at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	if (m.n_host) {
		scene_loaded(at, seq, &e);
		scene_extend(at, m.lease, &more);
	}
	if (m.n_device + more.n_device < c->n) {
		rq = (struct proto_reserve_req){ .lease = m.lease, .n = c->n };
		ck_assert_int_eq(world_reserve_wait(at->c, &rq, &reserved), PROTO_STATUS_OK);
		commit = (struct proto_commit_req){ .lease = m.lease, .n = reserved.n };
		ck_assert_int_eq(world_commit(at->c, &commit, &committed), PROTO_STATUS_OK);
	}
	scene_release(at, m.lease, &end);
	world_run_until_idle(at->c->w);
	counts->device += end.hit_device_tokens / BT;
	counts->host += end.hit_host_tokens / BT;
}

START_TEST(keeps_the_copy)
{
	static struct world w;
	struct world_config config;
	struct proto_open_req o = world_open_req("m");
	struct policy *p = policy_new(POOL, HOST, BLOCKS);
	struct policy_counts want, got = { 0 };
	struct world_tiers_stats moved;
	struct scene_place at;
	uint64_t rng = 7;

	world_config_init(&config);
	config.engine.pool_blocks = POOL;
	config.engine.limits.reserve_ns = 1000000000000;
	config.tiers.host_blocks = HOST;
	config.tiers.copy.latency_ns = 1000;
	config.no_verify = true;
	ck_assert_int_eq(world_init(&w, &config), 0);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct chat *c = next_chat(&rng);

		grow(c, &rng);
		request(&at, c, &got);
		policy_request(p, c->ids, c->n);
	}
	ck_assert_uint_lt(n_ids, BLOCKS);
	policy_counts(p, &want);
	world_tiers_stats(&w, &moved);
	got.down = moved.moved[0][1];
	got.up = moved.moved[1][0];
	fprintf(stderr,
		"%d requests, %u blocks: the engine hits %llu + %llu and moves %llu down, %llu up; "
		"the table %llu + %llu, %llu, %llu\n",
		REQUESTS, n_ids, (unsigned long long)got.device, (unsigned long long)got.host,
		(unsigned long long)got.down, (unsigned long long)got.up,
		(unsigned long long)want.device, (unsigned long long)want.host,
		(unsigned long long)want.down, (unsigned long long)want.up);
	ck_assert_uint_eq(got.device, want.device);
	ck_assert_uint_ge(got.device + got.host, want.device + want.host);
	ck_assert_uint_le(10 * got.down, 11 * want.down);
	/* The workload needs the host tier, and more than it has. */
	ck_assert_uint_gt(want.host, want.device / 4);
	ck_assert_uint_gt(want.down, 20 * HOST);
	ck_assert_uint_gt(got.up, REQUESTS);
	policy_free(p);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("policy");

	scene_case(s, "policy", keeps_the_copy);
	return scene_main(s);
}
