/*
 * ghost.h - which blocks were here before: fingerprints of members that left, the last so many.
 *
 * A ring of fingerprints, oldest first, and a table from a fingerprint to its place there (open
 * addressing, linear probing, deletion shifts back).  It takes 8 bytes a fingerprint and 5 to 11 of
 * the table.  One that is remembered again is as young as a new one.  After it was made nothing can
 * fail.
 *
 * A fingerprint is 64 bits, keyed and well mixed, of the block and all before it.  Two blocks that
 * share one are taken for each other: that decides whether a copy is made, never what is served.
 */
#pragma once

#include "radix/base.h"

struct radix_ghost {
	const struct radix_alloc *alloc;
	uint64_t *ring;  /* [cap]; 0: nothing, or it was taken */
	uint32_t *table; /* [mask + 1]; place in the ring + 1; 0: nothing */
	uint32_t cap;    /* 0: nothing is remembered */
	uint32_t next;   /* where the ring goes on */
	uint32_t n;      /* fingerprints in it */
	uint32_t mask;
	uint32_t shift; /* a fingerprint belongs at fingerprint >> shift */
};

/* For the last `cap` (1..2^30) fingerprints.  Return: 0, -ENOMEM (nothing is held). */
radix_nodiscard int radix_ghost_init(struct radix_ghost *g, const struct radix_alloc *alloc,
				     uint32_t cap);
/* Idempotent; accepts a zeroed one. */
void radix_ghost_deinit(struct radix_ghost *g);
void radix_ghost_add(struct radix_ghost *g, uint64_t fingerprint);
/* True: it was remembered, and is not any more. */
bool radix_ghost_take(struct radix_ghost *g, uint64_t fingerprint);
/* Memory that it holds. */
uint64_t radix_ghost_bytes(const struct radix_ghost *g);
