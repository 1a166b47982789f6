/*
 * lives.h - sessions over everything that an index can do, told call by call, for tests that end
 * the process in between.
 *
 * Keys are numbers that form a fixed tree: a number has one parent, so that it names its whole
 * prefix, as digests must.  The same seed makes the same calls.
 */
#pragma once

#include "radix/internal.h"
#include "tests/radix/kept.h"

enum {
	LIVES_KEYS = 40,
	LIVES_KEY_LEN = 16,
	LIVES_ROOTS = 2,
	LIVES_LEASES = 3,
	LIVES_SLOTS = 24, /* that a lease may reserve */
	LIVES_MOVES = 12,
};

struct lives_shape {
	enum radix_key_mode mode;
	uint32_t n_slots, n_host, budget;
	bool redis;
	uint32_t n_ghosts;
	bool coded;      /* half of what comes up has other bytes */
	uint32_t window; /* of the first root; 0: none.  Such shapes need a budget */
};

struct lives_lease {
	bool open;
	uint32_t root;
	uint32_t path[LIVES_KEYS], n; /* what it wants to store */
	struct radix_pin pin;
	uint32_t slots[LIVES_SLOTS], n_slots;
};

struct lives {
	const struct lives_shape *shape;
	struct kept *kept;
	struct radix_index *ix;
	uint32_t root[LIVES_ROOTS];
	uint32_t parent[LIVES_KEYS]; /* LIVES_KEYS: none */
	struct lives_lease leases[LIVES_LEASES];
	struct radix_move moves[LIVES_MOVES];
	uint32_t n_moves;
	uint64_t rng, tick;
	uint64_t n_calls;
	void (*called)(struct lives *l); /* after each call that may change something */
	void *ctx;
};

/* Numbers for kept_init(). */
struct radix_index_config lives_numbers(const struct lives_shape *shape,
					const struct radix_alloc *alloc);
/* A new index in `kept`, which is empty. */
void lives_init(struct lives *l, const struct lives_shape *shape, struct kept *kept, uint64_t seed);
/* One thing at random: some calls. */
void lives_step(struct lives *l);
/* All leases and moves end. */
void lives_quiet(struct lives *l);
void lives_key(uint32_t key, uint8_t *out);
/* The configuration of its roots; sorted. */
void lives_roots(const struct lives *l, struct radix_recover_root ret[LIVES_ROOTS]);
