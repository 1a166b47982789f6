/*
 * universe.h - what random workers ask for: prompts that share beginnings, and the content of their
 * blocks.
 *
 * Five roots in three namespaces of one pool: plain token keys (under two salts, one tenant:
 * partial tails), token keys with an extra digest (two tenants: no tails), and digests.  Prompts
 * are walks in a small tree of choices, so that they differ in the middle of blocks and come back
 * after their blocks were evicted.
 */
#pragma once

#include <stdint.h>

#include "tests/engine/model.h"

enum {
	UNIVERSE_ROOTS = 5,
	UNIVERSE_NS = 3,
	UNIVERSE_MAX = 40, /* blocks of a prompt */
	UNIVERSE_BT = 4,   /* tokens per block */
	UNIVERSE_BYTES = 64
};

struct universe_root {
	uint32_t ns, tenant;
	const char *salt;
};

extern const struct universe_root universe_roots[UNIVERSE_ROOTS];

struct universe_prompt {
	uint32_t root;
	uint32_t n;    /* blocks */
	uint32_t skip; /* islands: blocks before the first key */
	uint8_t keys[UNIVERSE_MAX][MODEL_KEY];
	uint64_t chain[UNIVERSE_MAX + 1]; /* chain[i]: names the path before block i */
};

uint32_t universe_key_len(uint32_t root);
void universe_prompt(uint64_t *rng, struct universe_prompt *p, uint32_t root);
void universe_grow(uint64_t *rng, struct universe_prompt *p);
/* What a block's bytes must be, 16 for each token: a function of root and path up to that token. */
void universe_content(const struct universe_prompt *p, uint32_t block, uint8_t out[UNIVERSE_BYTES]);
