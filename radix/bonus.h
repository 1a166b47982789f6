/*
 * bonus.h - host slots of blocks that have a device copy too, in the order in which they go.
 *
 * A list through arrays, oldest first.  A copy joins it when its block comes up, or when it is made
 * ahead of need; it leaves when the device copy goes, because then it is an ordinary host block
 * with its edge's recency.  Copies of blocks that leave the device are not on it: they are needed.
 */
#pragma once

#include "radix/base.h"

struct radix_bonus {
	uint32_t *next; /* [n]; RADIX_NONE ends */
	uint32_t *prev;
	uint64_t *tick; /* when it joined; 0: it is not on the list */
	uint32_t n;
	uint32_t first, last;
	uint64_t count;
	const struct radix_alloc *alloc;
};

radix_nodiscard int radix_bonus_init(struct radix_bonus *b, const struct radix_alloc *alloc,
				     uint32_t n);
void radix_bonus_deinit(struct radix_bonus *b);
void radix_bonus_add(struct radix_bonus *b, uint32_t slot, uint64_t tick);
void radix_bonus_remove(struct radix_bonus *b, uint32_t slot); /* idempotent */
