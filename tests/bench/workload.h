/*
 * workload.h - prompts for bench_radix, made from (workload, prompt, position): nothing is kept.
 *
 *     chat    16 system prompts of 32..152 blocks; conversations of 60..460 own blocks
 *     long    documents of 1,000..7,000 blocks, eight questions of 20 blocks about each
 *     comb    a path of 512 blocks with a branch of one block at every other block
 *     8k      prompts of 512 blocks that share nothing
 *     128k    prompts of 8,192 blocks that share nothing
 */
#pragma once

#include "radix/index.h"

enum workload_kind {
	WORK_CHAT,
	WORK_LONG,
	WORK_COMB,
	WORK_8K,
	WORK_128K,
	WORK_N
};

enum {
	WORK_MAX_BLOCKS = 8192 + 64
};

struct workload {
	enum workload_kind kind;
	uint32_t key_len;
	uint32_t n_prompts;
	uint32_t n_blocks; /* all prompts together */
};

const char *workload_name(enum workload_kind k);
/* As many prompts as together have at most n_blocks blocks. */
void workload_init(struct workload *w, enum workload_kind kind, uint32_t key_len,
		   uint32_t n_blocks);
/* Keys of prompt p to `out`; returns their number. */
uint32_t workload_prompt(const struct workload *w, uint32_t p, uint8_t *out);
/* Blocks of prompt p that the index is given first, of all prompts in turn: 0 < part <= 4. */
uint32_t workload_part(const struct workload *w, uint32_t n, unsigned part);
/* WORK_COMB: the branch of prompt p behind block i. */
void workload_branch(const struct workload *w, uint32_t p, uint32_t i, uint8_t *out);
/* n keys that occur nowhere else; the same number, the same keys. */
void workload_fresh(const struct workload *w, uint64_t number, uint32_t n, uint8_t *out);
