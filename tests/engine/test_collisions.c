/*
 * test_collisions.c - T09: the engine over an index whose tags were cut to 8 bits.
 *
 * Linked with that build of radix/: addresses collide all the time, and every collision must be
 * found out by comparing keys.
 */
#include "tests/engine/scene.h"

#include <stdio.h>

enum {
	N_PROMPTS = 10000,
	BT = 4
};

static struct world w;

/* Prompts of one to three blocks, half of them sharing their first block with others. */
static uint32_t make(uint64_t seed, uint32_t i, uint32_t tokens[12])
{
	uint64_t rng = seed * 1000003 + i;
	uint32_t n = 1 + test_rng_below(&rng, 3);

	for (uint32_t k = 0; k < 12; k++)
		tokens[k] = (uint32_t)test_rng(&rng);
	if (i % 2) {
		uint64_t shared = seed * 77 + i % 64;

		for (uint32_t k = 0; k < BT; k++)
			tokens[k] = (uint32_t)test_rng(&shared);
	}
	return n;
}

/* What a block of this prompt must hold: made of its whole path. */
static void content(const uint32_t *tokens, uint32_t block, uint8_t out[64])
{
	uint64_t h = 1;

	for (uint32_t k = 0; k < (block + 1) * BT; k++)
		h = (h ^ tokens[k]) * 0x9e3779b97f4a7c15u, h ^= h >> 31;
	test_rng_fill(&h, out, 64);
}

static uint32_t slot_at(struct proto_span runs, uint32_t i)
{
	for (uint32_t k = 0; k < runs.n; k++) {
		struct radix_run run = proto_run_at(runs, k);

		if (i < run.len)
			return run.start + i;
		i -= run.len;
	}
	ck_abort_msg("runs too short");
}

static void put(const struct scene_place *at, const uint32_t *tokens, uint32_t n)
{
	struct scene_prompt p = scene_tokens(at, tokens, n * BT);
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = n };
	struct proto_reserve_rep got;
	struct proto_commit_req c = { 0 };
	struct proto_commit_rep done;

	scene_match(at, &p, &m);
	r.lease = c.lease = m.lease;
	if (m.n_device < n) {
		ck_assert_int_eq(world_reserve(at->c, &r, &got), PROTO_STATUS_OK);
		c.n = got.n;
		for (uint32_t i = 0; i < got.n; i++) {
			uint8_t bytes[64];

			content(tokens, got.first + i, bytes);
			world_write(at->c->w, 0, slot_at(got.runs, i), bytes, 64);
		}
		ck_assert_int_eq(world_commit(at->c, &c, &done), PROTO_STATUS_OK);
		ck_assert_uint_eq(done.n_duplicate, 0);
	}
	scene_release(at, m.lease, NULL);
}

/* Returns blocks found; every one must hold what this path asks for. */
static uint32_t look(const struct scene_place *at, const uint32_t *tokens, uint32_t n)
{
	struct scene_prompt p = scene_tokens(at, tokens, n * BT);
	struct proto_match_rep m;
	uint32_t found;

	scene_match(at, &p, &m);
	found = m.n_device;
	for (uint32_t i = 0; i < found; i++) {
		uint8_t want[64], seen[64];

		content(tokens, i, want);
		world_read(at->c->w, 0, slot_at(m.runs, i), seen, 64);
		ck_assert_msg(memcmp(want, seen, 64) == 0, "a false hit");
	}
	scene_release(at, m.lease, NULL);
	return found;
}

START_TEST(no_false_hit)
{
	struct proto_open_req o = world_open_req("m");
	struct world_config config;
	struct scene_place at;
	struct radix_stats st;
	uint32_t tokens[12], n, hits = 0, false_hits = 0;

	world_config_init(&config);
	config.no_verify = true;
	config.engine.pool_blocks = 32768;
	ck_assert_int_eq(world_init(&w, &config), 0);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < N_PROMPTS; i++) {
		n = make(1, i, tokens);
		put(&at, tokens, n);
	}
	for (uint32_t i = 0; i < N_PROMPTS; i++) {
		n = make(1, i, tokens);
		hits += look(&at, tokens, n) == n;
		n = make(2, i, tokens);
		false_hits += look(&at, tokens, n) != 0;
	}
	ck_assert_uint_eq(hits, N_PROMPTS);
	ck_assert_uint_eq(false_hits, 0);
	world_stats(&w, 0, &st);
	fprintf(stderr, "collisions caught: %llu\n", (unsigned long long)st.verify_mismatch);
	ck_assert_uint_gt(st.verify_mismatch, 0);
	ck_assert_int_eq(prefixd_engine_verify(w.engine, w.clients[0].error_text, 100), 0);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("collisions");

	scene_case(s, "T09", no_false_hit);
	return scene_main(s);
}
