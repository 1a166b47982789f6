/*
 * map.h - open addressing from 64-bit hashes to 32-bit numbers.
 *
 * One word per slot: the hash's upper 32 bits and the number + 1.  The uppermost bits say where an
 * element belongs, so growing and deleting read the table alone and never the objects; all 32 are
 * compared before a key is.  A match of these bits is a candidate, never an answer: the caller
 * compares the key itself.  Linear probing; deletion shifts back (tombstones rot under long churn).
 *
 * RADIX_TAG_BITS (8..32) cuts what is compared, to let tests see many collisions.
 */
#pragma once

#include "radix/base.h"

#ifndef RADIX_TAG_BITS
#define RADIX_TAG_BITS 32
#endif

#define RADIX_MAP_TAG_MASK (UINT64_MAX << (64 - RADIX_TAG_BITS))

struct radix_map {
	uint64_t *slots;
	uint64_t mask;  /* number of slots - 1, at most 2^32 - 1 */
	uint32_t shift; /* a hash belongs at hash >> shift */
	uint64_t n;
	uint64_t mismatch; /* the tag agreed, the key did not: collisions that were caught */
	const struct radix_alloc *alloc;
};

radix_nodiscard int radix_map_init(struct radix_map *m, const struct radix_alloc *alloc,
				   uint64_t min_slots);
void radix_map_deinit(struct radix_map *m);
/* Make room for one more; then radix_map_put cannot fail.  Return: 0, -ENOMEM (unchanged). */
radix_nodiscard int radix_map_grow(struct radix_map *m);
/* An empty map gets room for n.  Return: 0, -ENOMEM (unchanged). */
radix_nodiscard int radix_map_reserve(struct radix_map *m, uint64_t n);
void radix_map_put(struct radix_map *m, uint64_t hash, uint32_t number);
void radix_map_delete(struct radix_map *m, uint64_t hash, uint32_t number);
/* The slot of `hash` that holds `from` now holds `to`. */
void radix_map_replace(struct radix_map *m, uint64_t hash, uint32_t from, uint32_t to);

/* Where looking for a hash begins. */
static inline uint64_t radix_map_home(const struct radix_map *m, uint64_t hash)
{
	return hash >> m->shift;
}

/*
 * Candidates for `hash` one after another: start with *cursor = radix_map_home().  False when there
 * are no more.
 */
static inline bool radix_map_next(const struct radix_map *m, uint64_t hash, uint64_t *cursor,
				  uint32_t *ret_number)
{
	for (;;) {
		uint64_t s = m->slots[*cursor];

		if (!s)
			return false;
		*cursor = (*cursor + 1) & m->mask;
		if (((s ^ hash) & RADIX_MAP_TAG_MASK) == 0) {
			*ret_number = (uint32_t)s - 1;
			return true;
		}
	}
}
