/*
 * tiers_world.h - an index with lower tiers and its oracle, side by side, and what must agree.
 */
#pragma once

#include "radix/internal.h"
#include "tests/lib/heap.h"
#include "tests/radix/kept.h"
#include "tests/radix/tiers_oracle.h"

enum {
	TW_KEY = 16,
	TW_N_LEASES = 5,
	TW_N_PROMPTS = 24,
	TW_PROMPT_MAX = 9,
	TW_MAX_MOVES = 20,
	TW_N_ROOTS = 2
};

/* Sizes of the pools. */
struct tw_shape {
	uint32_t n_slots, n_host, budget;
	bool redis;
};

struct tw_lease {
	bool open;
	uint32_t root, prompt, cursor;
	struct radix_pin pin, hold;
	int o_pin, o_hold;
	int at; /* where the pin was last seen; elsewhere: it was lifted */
	uint32_t reserved[16], n_reserved;
};

struct tiers_world {
	struct test_heap heap;
	struct kept kept; /* what a restart would find */
	struct radix_index *ix;
	struct tiers_oracle o;
	const struct tw_shape *shape;
	int shape_number; /* for messages */
	bool digests;
	uint32_t root[TW_N_ROOTS];
	struct tw_lease leases[TW_N_LEASES];
	struct {
		struct radix_move m;
		uint32_t turn;
	} moves[TW_MAX_MOVES];
	uint32_t n_moves;
	uint8_t prompts[TW_N_PROMPTS][TW_PROMPT_MAX][TW_KEY];
	uint32_t prompt_len[TW_N_PROMPTS];
	uint64_t seed, rng, tick;
	unsigned step;
	const char *op;
};

struct tw_expected {
	int end, device_end;
	uint32_t n_blocks, n_device, n_host;
	int slots[TW_PROMPT_MAX];
};

#define CHECK(w, cond)                                \
	do {                                          \
		if (!(cond))                          \
			tw_wrong(w, __LINE__, #cond); \
	} while (0)

void tw_wrong(const struct tiers_world *w, int line, const char *what);
uint32_t tw_below(struct tiers_world *w, uint32_t n);
bool tw_chance(struct tiers_world *w, uint32_t percent);
void tw_init(struct tiers_world *w, const struct tw_shape *shape, bool digests, uint64_t seed);
/* After everything else. */
void tw_deinit(struct tiers_world *w);
/* The oracle's block is that entry. */
void tw_name(struct tiers_world *w, int block, uint32_t entry);
/* Everything that can be compared is. */
void tw_check(struct tiers_world *w);
struct tw_expected tw_match_expected(const struct tiers_world *w, uint32_t root, int from,
				     const uint8_t *keys, uint32_t n);
/* Matches with and without runs, and compares. */
struct tw_expected tw_match(struct tiers_world *w, uint32_t root, const struct radix_place *from,
			    int o_from, const uint8_t *keys, uint32_t n, struct radix_match *ret_m);
/* With room for one run only, the match ends where the slots jump. */
void tw_match_cut(struct tiers_world *w, uint32_t p);
