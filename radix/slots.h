/*
 * slots.h - the pool's slots: state, owner, generation, and which block lies where.
 *
 * Free slots are bits in a three-level bitmap; taking them goes on where the last taking ended, so
 * that what is asked for together comes as long runs.  A slot's generation changes when it is
 * handed out again, never while it holds the same block.
 *
 * Of the device's slots, state and owner are also written, as one word, where a restart finds them:
 *
 *     owner << 32 | 29 bits mixed of slot, owner and state | state
 *
 * 0 is a slot that was never used.  A restart asks the block table which slots are members', and
 * these words who may use the others.
 */
#pragma once

#include "radix/head.h"

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
	uint64_t *kept;            /* [n] words as above; NULL: nobody will ask */
	struct radix_pair *latest; /* beside it: `reuse` */
	uint32_t *reads;   /* moves that read the slot; NULL: the index has no lower tiers */
	uint64_t *bits[3]; /* free slots; a bit of level l+1 says that a word of level l is not 0 */
	uint32_t words[3];
};

/*
 * All FREE, of generation 0; `ground` may be NULL.  Return: 0, -ENOMEM.
 */
radix_nodiscard int radix_slots_init(struct radix_slots *s, const struct radix_alloc *alloc,
				     uint32_t n, uint64_t *generations,
				     const struct radix_ground *ground);
/*
 * The same for slots of an earlier life, whose states are for radix_slots_adopt() to say, each
 * once, before anything else: generations are what they were, no slot is counted or FREE.
 */
radix_nodiscard int radix_slots_init_old(struct radix_slots *s, const struct radix_alloc *alloc,
					 uint32_t n, uint64_t *generations,
					 const struct radix_ground *ground);
/* Nothing is written for a restart yet. */
void radix_slots_adopt(struct radix_slots *s, uint32_t slot, enum radix_slot_state state,
		       uint32_t owner, uint32_t entry);
/* A FREE slot turns out to be a member's. */
void radix_slots_claim(struct radix_slots *s, uint32_t slot, uint32_t entry);
/* What a word says.  False: it is damaged. */
bool radix_slot_word_read(uint32_t slot, uint64_t word, enum radix_slot_state *ret_state,
			  uint32_t *ret_owner);
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
static inline uint64_t radix_slot_word(uint32_t slot, enum radix_slot_state state, uint32_t owner)
{
	uint64_t word = (uint64_t)owner << 32 | slot;

	word = (word ^ (state + 1) * 0x8a5cd789635d2dffu) * 0xaef17502108ef2d9u;
	return (uint64_t)owner << 32 | (word >> 32 & ~UINT64_C(7)) | state;
}

/* After its owner. */
static inline void radix_slots_set(struct radix_slots *s, uint32_t slot,
				   enum radix_slot_state state)
{
	s->count[s->state[slot]]--;
	s->count[state]++;
	s->state[slot] = (uint8_t)state;
	if (s->kept)
		radix_retract(&s->kept[slot], radix_slot_word(slot, state, s->owner[slot]));
}
