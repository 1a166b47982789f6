/*
 * tiers_oracle.h - what an index with lower tiers must do, written so naively that it is plainly
 * right.
 *
 * A flat array of blocks, each with its parent and its copies; a flat array of slots per pool.
 * Every question is a scan: a victim of a tier is the block with its highest copy there that is not
 * held, not leaving, has no child with a copy as high that stays, and was used least recently.  No
 * edges, no queues, no counts.  Slot numbers are not predicted: the index's own are told to it, and
 * it says whether they were free.
 */
#pragma once

#include "radix/tiers.h"

enum {
	TO_ROOT = -1,   /* the parent of a prompt's first block */
	TO_ISLAND = -2, /* the parent of an island's first block */
	TO_NONE = -3,
	TO_MAX_BLOCKS = 256,
	TO_MAX_SLOTS = 128,
	TO_MAX_PINS = 64,
	TO_MAX_KEY = 32,
};

struct to_block {
	bool used;
	int parent;
	uint32_t root;
	uint8_t key[TO_MAX_KEY];
	uint64_t tick;
	int slot[2]; /* device, host; TO_NONE */
	bool redis;
	bool leaving[2];
	uint8_t moving; /* bit t: on its way down to t */
	uint32_t turn;
	bool again;
	uint64_t bonus; /* its place in the order of bonuses, 0: none */
	uint64_t bonus_tick;
	uint8_t checksum_kind, checksum[16];
	struct radix_member name; /* the index's */
};

struct to_slot {
	enum radix_slot_state state;
	uint32_t owner;
	int reads;
};

struct tiers_oracle {
	struct to_block b[TO_MAX_BLOCKS];
	struct to_slot slots[2][TO_MAX_SLOTS];
	uint32_t n_slots[2];
	bool redis;
	uint32_t budget;
	uint64_t now, bonus_serial;
	struct {
		bool used;
		int at;
		uint32_t root;
	} pins[TO_MAX_PINS];
	uint64_t removed_from[3][RADIX_REMOVE_N_REASONS];
	uint64_t moved[3][3];
};

void to_init(struct tiers_oracle *o, uint32_t n_slots, uint32_t n_host, bool redis,
	     uint32_t budget);

/* ---- asking */
enum radix_tier to_tier(const struct to_block *b);
uint32_t to_count(const struct tiers_oracle *o, enum radix_tier pool, enum radix_slot_state s);
int to_child(const struct tiers_oracle *o, uint32_t root, int parent, const void *key,
	     uint32_t key_len);
/* The member with that key, wherever it hangs (digest mode). */
int to_find(const struct tiers_oracle *o, uint32_t root, const void *key, uint32_t key_len);
bool to_is_leaf(const struct tiers_oracle *o, int block);
bool to_protected(const struct tiers_oracle *o, int block);
bool to_is_above(const struct tiers_oracle *o, int above, int block);
/* Blocks from the start down to it, it included. */
uint32_t to_depth(const struct tiers_oracle *o, int block);
/* The block may have a device copy: its parent has one, or it has no parent. */
bool to_parent_ready(const struct tiers_oracle *o, int block);
int to_by_name(const struct tiers_oracle *o, struct radix_member name);

/* ---- changing */
int to_pin(struct tiers_oracle *o, uint32_t root, int at);
void to_pin_move(struct tiers_oracle *o, int pin, int at);
void to_unpin(struct tiers_oracle *o, int pin);
void to_touch(struct tiers_oracle *o, int block, uint64_t tick);
void to_hit(struct tiers_oracle *o, int block);
/* A new member; slot TO_NONE: in Redis only. */
int to_add(struct tiers_oracle *o, uint32_t root, int parent, const void *key, uint32_t key_len,
	   int slot, uint64_t tick);
/* An island hangs below `parent` now. */
void to_reparent(struct tiers_oracle *o, int block, int parent);
/* The block gets its device copy from a commit, with that checksum. */
void to_attach(struct tiers_oracle *o, int block, int slot, uint8_t kind, const uint8_t *checksum);
/* False: no place for one more Redis-only member, the coldest went if one could. */
bool to_budget_for_one(struct tiers_oracle *o);
void to_make_room(struct tiers_oracle *o, enum radix_tier tier, uint32_t want, uint32_t flags,
		  const struct radix_move *moves, uint32_t n_moves, uint32_t cap,
		  struct radix_room *ret);
/* What radix_move_end() must answer; *ret_freed as there. */
int to_move_end(struct tiers_oracle *o, const struct radix_move *m, uint32_t turn, bool ok,
		const uint8_t *checksum, uint32_t *ret_freed);
/* A move was begun outside of to_make_room(). */
void to_move_begin(struct tiers_oracle *o, int block, const struct radix_move *m);
uint32_t to_lose(struct tiers_oracle *o, int block, enum radix_tier tier,
		 enum radix_remove_reason reason);
uint64_t to_device_lost(struct tiers_oracle *o);
uint32_t to_evict(struct tiers_oracle *o, uint32_t n, enum radix_remove_reason reason);
uint64_t to_flush(struct tiers_oracle *o, uint32_t root, enum radix_remove_reason reason);
/* What went wrong in a call above, or NULL: a slot that was not free, a move of another block. */
const char *to_wrong(void);
