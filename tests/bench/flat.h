/*
 * flat.h - the peer: a flat table of chained hashes, as block stores and engines use it.
 *
 * A block's name is XXH3-128 over its parent's name and its tokens.  Matching hashes block after
 * block and looks each up until one is missing.  Open addressing, linear probing, deletion by
 * shifting back, at most half full; 16 bytes per slot (96 bits of the name, the block).  It is not
 * exact (names are compared, not tokens) and keeps no tree: as fast as this design gets.
 */
#pragma once

#include "tests/bench/arena.h"

struct flat_slot {
	uint64_t low;
	uint32_t high;
	uint32_t block; /* + 1; 0: empty */
};

struct flat_block {
	uint64_t low;
	uint32_t prev, next; /* least recently used first; by number + 1 */
};

struct flat {
	struct flat_slot *slots;
	struct flat_block *blocks;
	uint64_t mask;
	uint32_t n_max, n, first_free;
	uint32_t oldest, newest;
	uint32_t key_len;
	size_t bytes;
};

/* Room for n_max blocks.  Return: 0, -ENOMEM. */
int flat_init(struct flat *f, uint32_t n_max, uint32_t key_len);
void flat_deinit(struct flat *f);
/* Walk and insert what is missing; returns how many were new. */
uint32_t flat_insert(struct flat *f, const uint8_t *keys, uint32_t n);
/* Longest prefix; the blocks' numbers go to out.  One at a time, or 32 ahead with prefetch. */
uint32_t flat_match(const struct flat *f, const uint8_t *keys, uint32_t n, uint32_t *out);
uint32_t flat_match_ahead(const struct flat *f, const uint8_t *keys, uint32_t n, uint32_t *out);
/* Remove the n least recently inserted. */
uint32_t flat_evict(struct flat *f, uint32_t n);
