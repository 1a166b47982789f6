/*
 * recover_internal.h - what the parts of a recovery share.
 *
 *   recover.c       which entries are whole; in the end, what the store and the slots say
 *   recover_tree.c  which of them are members again, and the tree of those
 *   recover_stand.c where somebody stood whose block is none any more
 *
 * Nothing is written to the store before nothing can fail any more.  A recovery that is stopped
 * after that is begun anew by the next one, and comes to the same.
 */
#pragma once

#include "radix/internal.h"
#include "radix/recover.h"

/* What is known of an entry. */
enum {
	RADIX_R_WHOLE = 1,  /* it and its key agree with its check */
	RADIX_R_DEVICE = 2, /* it has these copies */
	RADIX_R_HOST = 4,
	RADIX_R_REDIS = 8,
	RADIX_R_COPIES = 14,
	RADIX_R_MEMBER = 16,
	RADIX_R_START = 32, /* of a prompt or an island */
	RADIX_R_ISLAND = 64,
	RADIX_R_PARENT = 128,  /* of one member */
	RADIX_R_BRANCH = 256,  /* of several */
	RADIX_R_MEND = 512,    /* something beside what identifies it has to be written anew */
	RADIX_R_HOLLOW = 1024, /* with DEVICE: it lies there, but has no slot */
};

struct radix_recovery {
	struct radix_index *ix;
	const struct radix_recover_config *config;
	struct radix_recovered r;
	uint32_t n;        /* entries that were in use */
	uint64_t max_tick; /* of uses; what is beyond it is damage */
	uint16_t *flags;   /* [n] RADIX_R_* */
	uint32_t *parent;  /* [n] entry; RADIX_NONE: none */
	uint32_t *first;   /* [n] first of what hangs below an entry */
	uint32_t *next;    /* [n] and the others, and the lists of starts */
	uint32_t *order;   /* [n] members, each before what hangs below it */
	uint32_t n_order;
	uint64_t *use;             /* [n] of a member and what hangs below it, as in its entry */
	uint32_t prompts, islands; /* lists of starts */
};

static inline bool radix_r_digest(const struct radix_recovery *rc, uint32_t entry)
{
	const struct radix_index *ix = rc->ix;

	return ix->roots[ix->table.v[entry].root].config.mode == RADIX_KEYS_DIGEST;
}

static inline void radix_r_lose(struct radix_recovery *rc, enum radix_damage d)
{
	rc->r.damaged[d]++;
	rc->r.n_lost++;
}

/* Before entries that are no members become FREE.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_r_stands(struct radix_recovery *rc);
/* Members, their order and their recency; the tree of them.  Return: 0, -ENOMEM. */
void radix_r_members(struct radix_recovery *rc);
radix_nodiscard int radix_r_tree(struct radix_recovery *rc);
/* Host slots of members that have a device copy too, as old as the last use of their blocks. */
void radix_r_bonuses(struct radix_recovery *rc);
