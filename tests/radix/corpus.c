/*
 * corpus.c - see corpus.h.
 *
 *     random    independent prompts: many edges at the root
 *     alphabet  keys out of three: a branch anywhere, long coincidences
 *     chain     one long prompt, cut anywhere: one edge, appended to and trimmed
 *     comb      a branch at every other block: edges of two blocks
 *     stems     few shared beginnings, then turns that grow: chat
 *     near      keys that differ in one bit of one byte, the first or the last
 *     prefix    each prompt is the one before, cut or made longer
 */
#include "tests/radix/corpus.h"

#include "radix/base.h"
#include "tests/lib/rng.h"

#include <stdlib.h>
#include <string.h>

enum {
	N_PROMPTS = 48,
	LONGEST = 40
};

const char *corpus_shape_to_string(enum corpus_shape s)
{
	static const char *const names[] = {
#define X(sym, text) [CORPUS_##sym] = text,
		CORPUS_SHAPES(X)
#undef X
	};

	return names[s];
}

/* The key with that number: equal numbers, equal keys. */
static void numbered_key(uint8_t *out, uint32_t key_len, uint64_t number)
{
	test_rng_fill(&number, out, key_len);
}

static void near_key(uint8_t *out, uint32_t key_len, uint32_t which)
{
	memset(out, 0x11, key_len);
	if (which & 1)
		out[key_len - 1] ^= (uint8_t)(1u << (which % 8));
	else
		out[0] ^= (uint8_t)(1u << (which % 8));
}

/* Keys of prompt p; returns their number. */
static uint32_t fill(uint8_t *keys, enum corpus_shape shape, uint32_t key_len, uint32_t p,
		     uint64_t *rng, const uint8_t *before, uint32_t n_before)
{
	uint32_t n = 1 + test_rng_below(rng, 24), stem = test_rng_below(rng, 4);
	uint32_t branch = 2 * test_rng_below(rng, 16), shared = test_rng_below(rng, n_before + 1);

	if (shape == CORPUS_CHAIN)
		n = 1 + test_rng_below(rng, LONGEST);
	if (shape == CORPUS_COMB)
		n = branch + 1 + test_rng_below(rng, 4);
	for (uint32_t i = 0; i < n; i++) {
		uint8_t *key = keys + (size_t)i * key_len;

		switch (shape) {
		case CORPUS_ALPHABET:
			numbered_key(key, key_len, 1000 + test_rng_below(rng, 3));
			break;
		case CORPUS_CHAIN:
			numbered_key(key, key_len, 2000 + i);
			break;
		case CORPUS_COMB:
			numbered_key(key, key_len, i < branch ? 3000 + i : test_rng(rng));
			break;
		case CORPUS_STEMS:
			numbered_key(key, key_len, i < 8 ? 4000 + stem * 100 + i : test_rng(rng));
			break;
		case CORPUS_NEAR:
			near_key(key, key_len, test_rng_below(rng, 4));
			break;
		case CORPUS_PREFIX:
			if (i < shared)
				memcpy(key, before + (size_t)i * key_len, key_len);
			else
				numbered_key(key, key_len, test_rng(rng));
			break;
		case CORPUS_RANDOM:
		case CORPUS_N_SHAPES:
			numbered_key(key, key_len, test_rng(rng) + p);
			break;
		}
	}
	return n;
}

/* key i := a hash of the keys 0..i.  Any hash does that does not collide among a few thousand. */
static void chain_digests(uint8_t *keys, uint32_t n, uint32_t key_len)
{
	uint64_t h = 0x243f6a8885a308d3u;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t *key = keys + (size_t)i * key_len;

		for (uint32_t j = 0; j < key_len; j++)
			h = (h ^ key[j]) * 0x100000001b3u;
		h ^= h >> 29;
		numbered_key(key, key_len, h);
	}
}

void corpus_init(struct corpus *c, enum corpus_shape shape, bool digests, uint32_t key_len,
		 uint64_t seed)
{
	uint64_t rng = seed;
	const uint8_t *before = NULL;
	uint32_t n_before = 0;

	*c = (struct corpus){ .n_prompts = N_PROMPTS, .max_blocks = LONGEST, .key_len = key_len };
	c->prompts = calloc(N_PROMPTS, sizeof(*c->prompts));
	radix_assert(c->prompts);
	for (uint32_t p = 0; p < N_PROMPTS; p++) {
		struct corpus_prompt *q = &c->prompts[p];

		q->keys = malloc((size_t)LONGEST * key_len);
		radix_assert(q->keys);
		q->n = fill(q->keys, shape, key_len, p, &rng, before, n_before);
		before = q->keys;
		n_before = q->n;
	}
	for (uint32_t p = 0; digests && p < N_PROMPTS; p++)
		chain_digests(c->prompts[p].keys, c->prompts[p].n, key_len);
}

void corpus_deinit(struct corpus *c)
{
	for (uint32_t p = 0; p < c->n_prompts; p++)
		free(c->prompts[p].keys);
	free(c->prompts);
	*c = (struct corpus){ 0 };
}
