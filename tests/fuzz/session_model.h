/*
 * session_model.h - which block lies in which slot, the slow and obvious way.
 *
 * What it is.  An array of blocks by slot, each with its key and the block before it; a path is
 * found by looking at every block.  It learns from requests and replies alone what was stored.
 * What was evicted it reads from the states of slots, and then checks that it may have gone: nobody
 * held it, and nothing stays behind it.  So it says exactly how long a match must be, without
 * knowing by which order blocks go.
 *
 * Where keys are digests a block may lie in an island, and a graft moves it; there only the content
 * of the slots is checked, not the length.
 */
#pragma once

#include "radix/index.h"

#define MODEL_SLOTS 64
#define MODEL_KEY   48
#define MODEL_NONE  (-1)

struct model_block {
	bool used;
	bool placed; /* its parent is known: token keys */
	int parent;  /* slot of the block before, or MODEL_NONE */
	uint32_t root;
	uint8_t key[MODEL_KEY];
};

struct model {
	uint32_t n_slots;
	struct model_block blocks[MODEL_SLOTS];
};

/* The slot of the block with this key below `parent`, or MODEL_NONE. */
int model_child(const struct model *m, uint32_t root, int parent, const uint8_t *key,
		uint32_t key_len);
/* Walks keys from `from` on; *ret_slots gets the slots.  Returns how many were found. */
uint32_t model_walk(const struct model *m, uint32_t root, int from, const uint8_t *keys, uint32_t n,
		    uint32_t key_len, uint32_t *ret_slots);
/* A slot that was reserved holds this block now; false when that cannot be. */
bool model_store(struct model *m, uint32_t slot, const struct model_block *block);
/* After a step: forgets what is READY no more.  False when a block stays behind one that went. */
bool model_sync(struct model *m, const struct radix_index *ix);
/* True when every block from `at` up to the root is still there. */
bool model_holds(const struct model *m, int at);
