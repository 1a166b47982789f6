/*
 * hash.h - hashes that find addresses; none of them identifies anything.
 *
 * A block's local hash depends on its key alone, so several can be computed at once; folding it
 * into the value of what stands before gives the chain value, one multiplication per block.  Both
 * are keyed per boot.
 */
#pragma once

#include "radix/base.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static inline uint64_t radix_hash(const void *p, size_t n, uint64_t seed)
{
	return XXH3_64bits_withSeed(p, n, seed);
}

/* Multiply and fold to 64 bits; the constant is an odd number with well mixed bits. */
static inline uint64_t radix_fold(uint64_t chain, uint64_t local)
{
	unsigned __int128 m = (unsigned __int128)(chain ^ local) * 0x9fb21c651e98df25u;
	uint64_t mixed = (uint64_t)m ^ (uint64_t)(m >> 64);

	return mixed + (local << 1 | local >> 63); /* a chain equal to `local` must not give 0 */
}
