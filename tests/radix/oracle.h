/*
 * oracle.h - what the index must do, written so naively that it is plainly right.
 *
 * A flat array of slots; a member block is one slot with a parent slot and a key.  Every question
 * is a scan over all slots: a child is the member with that parent and that key, a victim is the
 * member without children and without a pin below it whose tick is oldest, one block at a time.
 * Pins are a plain list of blocks; what they protect is found by walking up.  No hashes, no edges,
 * no queues: nothing is shared with radix/ but the names of the states.
 */
#pragma once

#include "radix/index.h"

enum {
	ORACLE_ROOT = -1,   /* the parent of a prompt's first block */
	ORACLE_ISLAND = -2, /* the parent of an island's first block (digest mode) */
	ORACLE_NONE = -3,
	ORACLE_MAX_PINS = 256,
};

struct oracle_slot {
	enum radix_slot_state state;
	uint32_t owner;  /* RESERVED, OWN, QUARANTINED */
	int parent;      /* READY: a slot, ORACLE_ROOT or ORACLE_ISLAND */
	uint32_t root;   /* READY */
	uint64_t tick;   /* READY: last use */
	uint8_t *key;    /* READY: key_len bytes, own copy */
	uint64_t gen_at; /* G when the slot was last granted */
};

struct oracle {
	struct oracle_slot *slots;
	uint32_t n_slots;
	uint32_t key_len;
	int pins[ORACLE_MAX_PINS]; /* blocks; a block may be pinned several times */
	uint32_t n_pins;
};

void oracle_init(struct oracle *o, uint32_t n_slots, uint32_t key_len);
void oracle_deinit(struct oracle *o);

uint32_t oracle_count(const struct oracle *o, enum radix_slot_state s);
bool oracle_is_leaf(const struct oracle *o, int slot);
/* The member below `parent` with that key, or ORACLE_NONE. */
int oracle_child(const struct oracle *o, uint32_t root, int parent, const void *key);
/* The member of that root with that key, wherever it hangs (digest mode), or ORACLE_NONE. */
int oracle_find(const struct oracle *o, uint32_t root, const void *key);
/* The deepest block reached from `from` by keys; *ret_n of them were members. */
int oracle_match(const struct oracle *o, uint32_t root, int from, const void *keys, uint32_t n_keys,
		 uint32_t *ret_n);
/* Blocks from the start of the path down to `slot`, it included; the start's parent. */
uint32_t oracle_depth(const struct oracle *o, int slot, int *ret_start);

void oracle_pin(struct oracle *o, int slot);
void oracle_unpin(struct oracle *o, int slot);
bool oracle_pinned(const struct oracle *o, int slot);
void oracle_touch(struct oracle *o, int slot, uint64_t tick);

void oracle_commit(struct oracle *o, uint32_t slot, uint32_t root, int parent, const void *key,
		   uint64_t tick);
/* True when hanging the island that starts with `slot` below `parent` would make a circle. */
bool oracle_is_circle(const struct oracle *o, int slot, int parent);

/* Remove up to n victims, block by block, coldest first; their slots become FREE. */
uint32_t oracle_evict(struct oracle *o, uint32_t n);
/* Remove every unpinned block of a root. */
uint32_t oracle_flush(struct oracle *o, uint32_t root);
