/*
 * model.h - what a cache of blocks should hold, the slow and obvious way.
 *
 * An array of blocks, each with its parent.  Holders are walked from their block to the root, and
 * victims are found by looking at every block.  The engine and its index must agree with it on
 * every hit, every grant and every victim.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MODEL_SLOTS  256
#define MODEL_KEY    48
#define MODEL_HOLDS  512
#define MODEL_NOBODY (-1)

struct model_block {
	bool used;
	bool island; /* no parent is known */
	int parent;  /* block, or MODEL_NOBODY */
	uint32_t root;
	uint8_t key[MODEL_KEY];
	uint64_t tick;
};

/* Blocks are named by their slot, so that the engine's answers can be looked up. */
struct model {
	uint32_t n_slots;
	uint32_t key_len[8]; /* by root */
	struct model_block blocks[MODEL_SLOTS];
	int holds[MODEL_HOLDS]; /* blocks that are held, each with its path; MODEL_NOBODY: free */
	uint32_t n_taken;       /* slots reserved, own or kept back */
	uint64_t tick;
};

void model_init(struct model *m, uint32_t n_slots);
uint32_t model_n_blocks(const struct model *m);
/* The block below `parent` (MODEL_NOBODY: the root itself) with this key. */
int model_child(const struct model *m, uint32_t root, int parent, const uint8_t *key);
/* The block with this key wherever it lies (keys that name their whole prefix). */
int model_find(const struct model *m, uint32_t root, const uint8_t *key);
/* Tokens of 4 bytes that the best block below `parent` shares with `tokens`. */
uint32_t model_partial(const struct model *m, uint32_t root, int parent, const uint8_t *tokens,
		       uint32_t n_tokens);
/* Holds the path down to `block`; returns a handle. */
int model_hold(struct model *m, int block);
void model_drop(struct model *m, int hold);
/* The path down to `block` was used now. */
void model_touch(struct model *m, int block);
/* Slots for `want` blocks, by eviction where none is free; returns how many can be had. */
uint32_t model_reserve(struct model *m, uint32_t want);
uint32_t model_evict(struct model *m, uint32_t n);
uint32_t model_flush(struct model *m, uint32_t root);
/* A reserved slot becomes a block. */
void model_commit(struct model *m, uint32_t slot, uint32_t root, int parent, bool island,
		  const uint8_t *key);
