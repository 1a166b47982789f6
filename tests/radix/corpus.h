/*
 * corpus.h - prompts for tests of the index, as block keys, in shapes that break trees.
 *
 * A corpus is a fixed set of prompts made from a seed.  In digest mode each key is a digest of the
 * whole path up to it, so that equal keys mean equal prefixes, as engines' own digests do.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CORPUS_SHAPES(X)        \
	X(RANDOM, "random")     \
	X(ALPHABET, "alphabet") \
	X(CHAIN, "chain")       \
	X(COMB, "comb")         \
	X(STEMS, "stems")       \
	X(NEAR, "near")         \
	X(PREFIX, "prefix")

enum corpus_shape {
#define X(sym, text) CORPUS_##sym,
	CORPUS_SHAPES(X)
#undef X
	CORPUS_N_SHAPES
};

const char *corpus_shape_to_string(enum corpus_shape s);

struct corpus_prompt {
	uint8_t *keys; /* n x key_len */
	uint32_t n;
};

struct corpus {
	struct corpus_prompt *prompts;
	uint32_t n_prompts;
	uint32_t max_blocks;
	uint32_t key_len;
};

void corpus_init(struct corpus *c, enum corpus_shape shape, bool digests, uint32_t key_len,
		 uint64_t seed);
void corpus_deinit(struct corpus *c);

static inline const uint8_t *corpus_key(const struct corpus *c, uint32_t prompt, uint32_t i)
{
	return c->prompts[prompt].keys + (size_t)i * c->key_len;
}
