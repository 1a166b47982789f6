/*
 * bench_restart_book.c - prompts, what their blocks must hold, and who was told what.
 */
#include "tests/bench/bench_restart.h"

#include "tests/lib/rng.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What a block's tokens and bytes are made of: its family and place in the stem, or its prompt. */
static uint64_t seed_of(const struct restart_book *b, uint32_t prompt, uint32_t i, uint64_t what)
{
	uint64_t whose = i < b->stem ? 1ull << 40 | prompt / RESTART_FAMILY : 2ull << 40 | prompt;
	uint64_t s = b->config.seed ^ whose << 20 ^ i ^ what << 62;

	return test_rng(&s);
}

uint32_t restart_path_len(const struct restart_book *b, uint32_t prompt)
{
	return prompt == 0 ? b->config.long_path : b->config.path;
}

uint64_t restart_n_blocks(const struct restart_book *b, uint32_t n)
{
	uint64_t families = (n + RESTART_FAMILY - 1) / RESTART_FAMILY;
	uint64_t own = (uint64_t)n * (b->config.path - b->stem);

	return families * b->stem + own + (n ? b->config.long_path - b->config.path : 0);
}

struct restart_book *restart_book_new(const struct restart_config *config)
{
	struct restart_book shape = { .config = *config, .stem = config->path / 8 }, *b;
	uint64_t own = config->path - shape.stem;
	uint32_t n_families;
	size_t len;

	while (restart_n_blocks(&shape, shape.n_base) < config->n_blocks)
		shape.n_base++;
	/* Prompts that are begun and not stored take a number as well. */
	shape.n_max = shape.n_base +
		      (uint32_t)((config->n_runs + 1) * (config->budget / own + 64) * 4);
	n_families = shape.n_max / RESTART_FAMILY + 1;
	len = sizeof(*b) + (size_t)(shape.n_max + n_families) * sizeof(b->progress[0]);
	b = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		return NULL;
	b->config = shape.config;
	b->stem = shape.stem;
	b->n_base = shape.n_base;
	b->n_max = shape.n_max;
	return b;
}

void restart_tokens(const struct restart_book *b, uint32_t prompt, uint32_t *ret_tokens)
{
	uint32_t n = restart_path_len(b, prompt);

	for (uint32_t i = 0; i < n; i++) {
		uint64_t s = seed_of(b, prompt, i, 1);

		for (uint32_t k = 0; k < RESTART_TOKENS; k++)
			ret_tokens[i * RESTART_TOKENS + k] = test_rng_below(&s, 128000);
	}
}

void restart_fill(const struct restart_book *b, uint32_t prompt, uint32_t i, void *ret_bytes)
{
	uint64_t s = seed_of(b, prompt, i, 2);

	test_rng_fill(&s, ret_bytes, b->config.block_bytes);
}

bool restart_right(const struct restart_book *b, uint32_t prompt, uint32_t i, const void *bytes)
{
	uint8_t want[RESTART_MAX_BLOCK];

	restart_fill(b, prompt, i, want);
	return bytes && memcmp(want, bytes, b->config.block_bytes) == 0;
}

static struct restart_progress *stem_of(struct restart_book *b, uint32_t prompt)
{
	return &b->progress[b->n_max + prompt / RESTART_FAMILY];
}

static uint32_t smaller(uint32_t x, uint32_t y)
{
	return x < y ? x : y;
}

static uint32_t larger(uint32_t x, uint32_t y)
{
	return x > y ? x : y;
}

static void raise_to(_Atomic uint32_t *at, uint32_t n)
{
	uint32_t now = atomic_load(at);

	while (now < n && !atomic_compare_exchange_weak(at, &now, n))
		continue;
}

void restart_sent(struct restart_book *b, uint32_t prompt, uint32_t n)
{
	raise_to(&b->progress[prompt].sent, n);
	raise_to(&stem_of(b, prompt)->sent, smaller(n, b->stem));
}

void restart_answered(struct restart_book *b, uint32_t prompt, uint32_t n)
{
	raise_to(&b->progress[prompt].answered, n);
	raise_to(&stem_of(b, prompt)->answered, smaller(n, b->stem));
}

uint32_t restart_at_least(struct restart_book *b, uint32_t prompt)
{
	return larger(b->progress[prompt].answered, stem_of(b, prompt)->answered);
}

uint32_t restart_at_most(struct restart_book *b, uint32_t prompt)
{
	return larger(b->progress[prompt].sent, stem_of(b, prompt)->sent);
}
