/*
 * workload.c - see workload.h.
 */
#include "tests/bench/workload.h"

#include "tests/lib/rng.h"

const char *workload_name(enum workload_kind k)
{
	static const char *const names[] = { "chat", "long", "comb", "8k", "128k" };

	return names[k];
}

/* Run `run` of content, positions [from, from + n). */
static void fill(const struct workload *w, uint64_t run, uint32_t from, uint32_t n, uint8_t *out)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t s = (run + 1) * 0x9e3779b97f4a7c15u + (from + i) * 0xd1b54a32d192ed03u;

		test_rng_fill(&s, out + (size_t)i * w->key_len, w->key_len);
	}
}

static uint32_t chosen(uint64_t seed, uint32_t from, uint32_t n)
{
	return from + test_rng_below(&seed, n);
}

/* Blocks of prompt p that no earlier prompt has; *ret_shared: those before them. */
static uint32_t own_blocks(enum workload_kind kind, uint32_t p, uint32_t *ret_shared)
{
	*ret_shared = 0;
	switch (kind) {
	case WORK_CHAT:
		*ret_shared = 32 + p % 16 * 8;
		return chosen(p, 60, 400) + (p < 16 ? *ret_shared : 0);
	case WORK_LONG:
		*ret_shared = chosen(p / 8 + 1000000u, 1000, 6000);
		return 20 + (p % 8 ? 0 : *ret_shared);
	case WORK_COMB:
		return 512 + 255;
	case WORK_8K:
		return 512;
	case WORK_128K:
	case WORK_N:
		break;
	}
	return 8192;
}

void workload_init(struct workload *w, enum workload_kind kind, uint32_t key_len, uint32_t n_blocks)
{
	*w = (struct workload){ .kind = kind, .key_len = key_len };
	for (;;) {
		uint32_t shared, own = own_blocks(kind, w->n_prompts, &shared);

		if (w->n_blocks + own > n_blocks)
			return;
		w->n_blocks += own;
		w->n_prompts++;
	}
}

uint32_t workload_prompt(const struct workload *w, uint32_t p, uint8_t *out)
{
	uint32_t shared, own = own_blocks(w->kind, p, &shared), n;

	switch (w->kind) {
	case WORK_CHAT:
		n = p < 16 ? own - shared : own;
		fill(w, p % 16, 0, shared, out);
		fill(w, 1000 + p, 0, n, out + (size_t)shared * w->key_len);
		return shared + n;
	case WORK_LONG:
		fill(w, 2000000u + p / 8, 0, shared, out);
		fill(w, 4000000u + p, 0, 20, out + (size_t)shared * w->key_len);
		return shared + 20;
	case WORK_COMB:
		own = 512;
		break;
	case WORK_8K:
	case WORK_128K:
	case WORK_N:
		break;
	}
	fill(w, 6000000u + p, 0, own, out);
	return own;
}

uint32_t workload_part(const struct workload *w, uint32_t n, unsigned part)
{
	if (w->kind != WORK_CHAT)
		return part == 4 ? n : 0;
	return n * part / 4; /* a conversation grows by turns */
}

void workload_branch(const struct workload *w, uint32_t p, uint32_t i, uint8_t *out)
{
	fill(w, 0x100000000u + p, i, 1, out);
}

void workload_fresh(const struct workload *w, uint64_t number, uint32_t n, uint8_t *out)
{
	fill(w, 0x200000000u + number, 0, n, out);
}
