/*
 * test_long.c - F34: prompts of a million tokens, given in parts, cut by others and joined again,
 * on the stack that the process has (the test runs it with 64 KiB).
 */
#include "tests/engine/scene.h"

#include <stdlib.h>

enum {
	BT = 16, /* tokens of a block */
	BLOCKS = (1000000 + BT - 1) / BT,
	PART = 15000, /* blocks of one frame */
	BRANCHES = 40
};

static struct world w;
static uint32_t *tokens; /* of BLOCKS blocks */

static struct proto_match_rep first_part(const struct scene_place *at)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = at->ns.ns,
				     .n_tokens = (uint64_t)BLOCKS * BT,
				     .flags = PROTO_MATCH_NO_TAIL,
				     .keys = { tokens, PART * BT * 4 } };
	struct proto_match_rep rep;

	ck_assert_msg(world_match(at->c, &m, &rep) == PROTO_STATUS_OK, "%s", at->c->error_text);
	return rep;
}

/* The whole prompt; how many of its blocks were there. */
static uint64_t look(const struct scene_place *at, uint32_t *ret_found)
{
	struct proto_match_rep rep = first_part(at);
	uint64_t lease = rep.lease;

	*ret_found = rep.n_device;
	for (uint32_t i = PART; i < BLOCKS; i += PART) {
		uint32_t n = BLOCKS - i < PART ? BLOCKS - i : PART;
		struct proto_extend_req x = { .lease = lease,
					      .n_tokens = (uint64_t)BLOCKS * BT,
					      .flags = PROTO_MATCH_NO_TAIL,
					      .keys = { tokens + (size_t)i * BT, n * BT * 4 } };

		ck_assert_msg(world_extend(at->c, &x, &rep) == PROTO_STATUS_OK, "%s",
			      at->c->error_text);
		*ret_found += rep.n_device;
	}
	return lease;
}

static void store_rest(const struct scene_place *at, uint64_t lease, uint32_t n)
{
	while (n > 0) {
		struct proto_reserve_req r = { .lease = lease, .n = n < PART ? n : PART };
		struct proto_commit_req c = { .lease = lease };
		struct proto_reserve_rep reserved;
		struct proto_commit_rep done;

		ck_assert_int_eq(world_reserve(at->c, &r, &reserved), PROTO_STATUS_OK);
		c.n = reserved.n;
		ck_assert_msg(world_commit(at->c, &c, &done) == PROTO_STATUS_OK, "%s",
			      at->c->error_text);
		ck_assert_uint_eq(done.n_stored, reserved.n);
		n -= reserved.n;
	}
}

/* One block that leaves the prompt behind `depth` blocks of its first part. */
static void branch(const struct scene_place *at, uint32_t depth)
{
	uint32_t kept[BT], *next = tokens + (size_t)depth * BT;
	struct scene_prompt p = { .keys = (const uint8_t *)tokens, .n_keys = depth + 1 };

	memcpy(kept, next, sizeof(kept));
	next[BT - 1] ^= 1;
	ck_assert_uint_eq(scene_put(at, &p, 1), 1);
	memcpy(next, kept, sizeof(kept));
}

START_TEST(a_million_tokens)
{
	struct proto_open_req o = world_open_req("m");
	struct world_config config;
	struct radix_stats st;
	struct scene_place a;
	char why[256] = "";
	uint32_t found;
	uint64_t lease;

	tokens = malloc((size_t)BLOCKS * BT * 4);
	ck_assert_ptr_nonnull(tokens);
	for (uint32_t i = 0; i < BLOCKS * BT; i++)
		tokens[i] = i * 7;
	world_config_init(&config);
	config.no_verify = true; /* once is enough, at the end */
	config.engine.pool_blocks = BLOCKS + BRANCHES;
	config.engine.limits.max_frame = 1u << 20;
	config.engine.limits.max_keys = 65536;
	ck_assert_int_eq(world_init(&w, &config), 0);
	o.block_tokens = BT;
	o.block_bytes = 256;
	a = scene_place(&w, 100, 1000, &o);
	for (int round = 0; round < 2; round++) {
		lease = look(&a, &found);
		ck_assert_uint_eq(found, 0);
		store_rest(&a, lease, BLOCKS);
		scene_release(&a, lease, NULL);
		lease = look(&a, &found);
		ck_assert_uint_eq(found, BLOCKS);
		for (uint32_t i = 0; i < BRANCHES; i++) /* each one cuts the edge */
			branch(&a, 1 + i * (PART - 2) / BRANCHES);
		world_stats(&w, 0, &st);
		ck_assert_uint_ge(st.n_nodes, 2 * BRANCHES);
		/* The branches go; joined is what is cheap to join; the prompt is held. */
		ck_assert_uint_eq(world_evict(&w, 0, UINT32_MAX), BRANCHES);
		world_stats(&w, 0, &st);
		ck_assert_uint_le(st.n_nodes, BRANCHES + 1);
		ck_assert_uint_eq(st.n_blocks, BLOCKS);
		scene_release(&a, lease, NULL);
		lease = look(&a, &found);
		ck_assert_uint_eq(found, BLOCKS);
		scene_release(&a, lease, NULL);
		ck_assert_msg(prefixd_engine_verify(w.engine, why, sizeof(why)) == 0, "%s", why);
		if (round == 0)
			ck_assert_uint_eq(world_evict(&w, 0, UINT32_MAX), BLOCKS);
		else
			ck_assert_uint_eq(world_flush(&w, a.ns.ns), BLOCKS);
	}
	world_deinit(&w);
	free(tokens);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("long");

	scene_case(s, "F34", a_million_tokens);
	return scene_main(s);
}
