/*
 * slots.h - the pool's slots: state, owner, generation, and which block lies where.
 *
 * Free slots are bits in a three-level bitmap; taking them goes on where the last taking ended, so
 * that what is asked for together comes as long runs.  A slot's generation changes when it is
 * handed out again, never while it holds the same block.
 */
#pragma once

#include "radix/tiers.h"

struct radix_slots {
	const struct radix_alloc *alloc;
	uint32_t n;
	uint32_t next;  /* where the search for free slots goes on */
	uint64_t reuse; /* G */
	uint64_t count[RADIX_SLOT_N_STATES];
	uint64_t *generation;
	bool own_generation;
	uint32_t *owner;
	uint32_t *entry; /* of the block table, READY and LEAVING slots; else RADIX_NONE */
	uint8_t *state;
	uint32_t *reads;   /* moves that read the slot; NULL: the index has no lower tiers */
	uint64_t *bits[3]; /* free slots; a bit of level l+1 says that a word of level l is not 0 */
	uint32_t words[3];
};

radix_nodiscard int radix_slots_init(struct radix_slots *s, const struct radix_alloc *alloc,
				     uint32_t n, uint64_t *generations);
void radix_slots_deinit(struct radix_slots *s);
/* Take one free slot: RESERVED for owner, new generation.  RADIX_NONE when none is free. */
uint32_t radix_slots_take(struct radix_slots *s, uint32_t owner);
/* Any state to FREE (the slot is not free yet). */
void radix_slots_free(struct radix_slots *s, uint32_t slot);
/*
 * A member's copy goes: FREE, or QUARANTINED for the daemon while a move reads it.
 */
void radix_slots_release(struct radix_slots *s, uint32_t slot);
void radix_slots_read(struct radix_slots *s, uint32_t slot);
/* The end of a read; the last one frees a slot whose copy went meanwhile. */
void radix_slots_unread(struct radix_slots *s, uint32_t slot);
/* Count readers from now on.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_slots_count_reads(struct radix_slots *s);
void radix_slots_set(struct radix_slots *s, uint32_t slot, enum radix_slot_state state);
