/*
 * universe.c - see universe.h.
 */
#include "tests/engine/universe.h"

#include "tests/lib/rng.h"

const struct universe_root universe_roots[UNIVERSE_ROOTS] = {
	{ 0, 0, "" }, { 0, 0, "s" }, { 1, 0, "" }, { 1, 1, "" }, { 2, 0, "" },
};

static uint64_t fold(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ (h >> 29);
}

uint32_t universe_key_len(uint32_t root)
{
	static const uint32_t by_ns[UNIVERSE_NS] = { 4 * UNIVERSE_BT, 4 * UNIVERSE_BT + 32, 16 };

	return by_ns[universe_roots[root].ns];
}

/* Block `j` under choice `b`: the first two tokens do not tell the choices apart. */
static void make_key(struct universe_prompt *p, uint32_t j, uint32_t b)
{
	uint32_t tokens[UNIVERSE_BT] = { 100 * j, 100 * j + 1, 1000 * b + j, b };
	uint64_t h = fold(p->chain[j], 0x1234);
	uint8_t *key = p->keys[j];

	memset(key, 0, MODEL_KEY);
	for (uint32_t i = 0; i < UNIVERSE_BT; i++)
		h = fold(h, tokens[i]);
	switch (universe_roots[p->root].ns) {
	case 0:
		memcpy(key, tokens, sizeof(tokens));
		break;
	case 1: /* the tokens are placeholders, the digest tells */
		tokens[2] = tokens[3] = 7;
		memcpy(key, tokens, sizeof(tokens));
		memcpy(key + sizeof(tokens), &b, sizeof(b));
		break;
	default:
		memcpy(key, &h, 8);
		memcpy(key + 8, &j, 4);
		break;
	}
	p->chain[j + 1] = h;
}

static bool one_in_eight(uint64_t *rng)
{
	return test_rng_below(rng, 8) == 0;
}

void universe_prompt(uint64_t *rng, struct universe_prompt *p, uint32_t root)
{
	uint32_t topic = test_rng_below(rng, 6);

	p->root = root;
	p->n = 1 + test_rng_below(rng, 18);
	p->skip = 0;
	p->chain[0] = fold(0xabc, root);
	for (uint32_t j = 0; j < p->n; j++)
		make_key(p, j, j == 0 ? topic : one_in_eight(rng) ? 1 + test_rng_below(rng, 2) : 0);
}

void universe_grow(uint64_t *rng, struct universe_prompt *p)
{
	uint32_t more = 1 + test_rng_below(rng, 6);

	for (; more && p->n < UNIVERSE_MAX - 1; more--, p->n++)
		make_key(p, p->n, one_in_eight(rng) ? 1 + test_rng_below(rng, 2) : 0);
}

void universe_content(const struct universe_prompt *p, uint32_t j, uint8_t out[UNIVERSE_BYTES])
{
	const uint8_t *key = p->keys[j];
	uint64_t h = fold(p->chain[j], 0x77);

	if (universe_roots[p->root].ns != 0)
		h = fold(h, p->chain[j + 1]);
	for (uint32_t i = 0; i < UNIVERSE_BT; i++) {
		uint32_t token = 0;

		if (universe_roots[p->root].ns == 0)
			memcpy(&token, key + 4 * i, 4);
		h = fold(h, token + 1);
		for (uint32_t k = 0; k < 2; k++) {
			uint64_t v = fold(h, k + 11);

			memcpy(out + 16 * i + 8 * k, &v, 8);
		}
	}
}
