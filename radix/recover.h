/*
 * recover.h - an index out of what an earlier life of the daemon left in its store.
 *
 * The block table is the truth: entries, the keys that they name, the state and owner of every
 * device slot.  All else (tree, queues, addresses, counts, places, host slots) is made anew.
 *
 * What it guarantees.  A block is a member again exactly if its entry was published, everything
 * that identifies it agrees with its check, its parent is a member again and is the one it was
 * appended to, and a copy of it is left where residency allows one.  What is damaged costs itself
 * and what hangs below it (digest mode: what hangs below becomes islands).  Blocks keep entry,
 * generation and slot; every other device slot is FREE with a new generation, but for those that
 * somebody may still use.  Recency is what the last touches of each path left.
 *
 * What it relies on.  The store is as the last writer left it, at whatever instruction that was.
 * Cost: O(entries used + slots), some 0.2 us each.
 */
#pragma once

#include "radix/store.h"
#include "radix/tiers.h"

/*
 * A root as it was, with all that is in its configuration but `user`; blocks of others are not
 * taken.  It has one reference, the caller's.
 */
struct radix_recover_root {
	uint32_t root; /* its number */
	struct radix_root_config config;
};

/*
 * Where somebody stood, for what he read on the way there.  Blocks that are lost leave `before`
 * with the nearest member at or before it; entry RADIX_NONE: none.  For islands see
 * radix_recover_above().
 */
struct radix_stand {
	struct radix_member block;
	struct radix_member before; /* set by the recovery */
};

struct radix_recover_config {
	const struct radix_recover_root *roots; /* sorted by number, none twice */
	uint32_t n_roots;
	/*
	 * A device slot that was RESERVED, OWN or QUARANTINED for `owner`: may that one still use
	 * it?  True: it is OWN for this owner from now on, for radix_slot_discard() or
	 * radix_owner_discard().  Not asked about RADIX_OWNER_DAEMON, whose slots become FREE.
	 */
	bool (*holds)(void *ctx, uint32_t owner);
	void *ctx;
	/* Somebody may read blocks that he leased: slots of blocks that are not taken are
	   QUARANTINED for RADIX_OWNER_LOST, until radix_owner_discard(). */
	bool keep_lost;
	struct radix_stand *stands;
	uint32_t n_stands;
};

#define RADIX_OWNER_LOST (UINT32_MAX - 2)

/* Why entries were not taken; each counts once, under the first that applies. */
#define RADIX_DAMAGES(X)                                                            \
	X(CHECK, "check")   /* the entry does not agree with its check */           \
	X(ROOT, "root")     /* its root is not there, or another one */             \
	X(KEY, "key")       /* its key lies where none can be */                    \
	X(COPY, "copy")     /* no copy is left, or its slot is another block's */   \
	X(PARENT, "parent") /* its parent's number does not agree with its check */ \
	X(ORPHAN, "orphan") /* what it hung below was not taken */                  \
	X(ROOM, "room")     /* a Redis-only member, and too many of those are left */

enum radix_damage {
#define X(sym, text) RADIX_DAMAGE_##sym,
	RADIX_DAMAGES(X)
#undef X
	RADIX_N_DAMAGES
};

const char *radix_damage_to_string(enum radix_damage d);

struct radix_recovered {
	uint64_t n_taken;
	uint64_t n_lost; /* sum of the following */
	uint64_t damaged[RADIX_N_DAMAGES];
	uint64_t n_copies_lost; /* copies of members that went, damaged or not allowed */
	uint64_t n_sums_lost;   /* checksums that did not agree: unknown now */
	uint64_t n_islands;     /* made of what hung below damage */
	uint64_t n_kept;        /* slots that somebody may still use */
	uint64_t n_quarantined; /* slots of lost blocks, kept back */
	uint64_t n_freed;       /* slots that were in use and are FREE now */
	uint64_t tick;          /* the latest that anything was used at */
};

/* What a fresh store must be able to hold for this index, in bytes; most of it is never touched. */
uint64_t radix_store_len(const struct radix_index_config *config);

enum radix_store_content {
	RADIX_STORE_EMPTY,   /* nothing was ever written */
	RADIX_STORE_INDEX,   /* an index of the numbers given here */
	RADIX_STORE_OTHER,   /* an index of other numbers, which ret has; `redis` may differ */
	RADIX_STORE_VERSION, /* of a version that this program does not read */
	RADIX_STORE_FOREIGN, /* something else, or its head is damaged */
};

/* The numbers that a store says of itself. */
struct radix_store_info {
	uint32_t version;
	uint32_t n_slots, n_host, n_entries;
	bool redis;
};

/* Looks at the head of a store; `config` may be NULL: any numbers are right. */
enum radix_store_content radix_store_look(const struct radix_store *store,
					  const struct radix_index_config *config,
					  struct radix_store_info *ret_info);

/*
 * Makes the index; config->store has RADIX_STORE_INDEX, and config->generations, which must not be
 * NULL, those of the slots.  Return: 0; -ENOMEM: what the store says is as it was; -EINVAL as
 * radix_index_new().
 */
radix_nodiscard int radix_index_recover(struct radix_index **ret_ix,
					const struct radix_index_config *config,
					const struct radix_recover_config *recover,
					struct radix_recovered *ret);

/*
 * Where a member lies: the place behind it.  In an index without lower tiers and digests only until
 * radix_recover_end(), which gives back what finds it.  Return: 0, RADIX_E_NOTFOUND (stale).
 */
radix_nodiscard int radix_member_place(const struct radix_index *ix, struct radix_member block,
				       struct radix_place *ret_place);
void radix_recover_end(struct radix_index *ix);

/*
 * Digest mode, until radix_recover_end() or the next change: where the nearest member before the
 * damage lies, if damage has cut the path to `at` and made it one of an island.  Who reads the
 * island may read that too, and so on.  Return: 0, RADIX_E_NOTFOUND: this recovery did not cut it,
 * or nothing is left before the damage.
 */
radix_nodiscard int radix_recover_above(const struct radix_index *ix, const struct radix_place *at,
					struct radix_place *ret_above);
/* How many islands have something above them. */
uint32_t radix_recover_cuts(const struct radix_index *ix);

/*
 * What the next block that becomes a new member will be, so that somebody can note it beforehand;
 * entry RADIX_NONE: there is no room for one.  Until the next change.
 */
struct radix_member radix_next_member(const struct radix_index *ix);

/* Next device slot at or after *it that is RESERVED or OWN for `owner`; RADIX_NONE. O(slots). */
uint32_t radix_owner_next(const struct radix_index *ix, uint32_t owner, uint32_t *it);
/* Who holds a slot that is RESERVED, OWN or QUARANTINED; else nobody's number. */
uint32_t radix_slot_owner(const struct radix_index *ix, uint32_t slot);
/* All slots of the owner, in whatever state, become FREE.  Returns how many.  O(slots). */
uint32_t radix_owner_discard(struct radix_index *ix, uint32_t owner);

/*
 * The n-th entry and those behind it, for whoever checks payloads: up to `cap` READY members with a
 * device copy and a known checksum of `kind`.  *it starts at 0.  Returns how many; 0: no more.
 */
struct radix_sum {
	struct radix_member block;
	uint32_t slot;
	uint8_t checksum[16];
};
uint32_t radix_sums_next(const struct radix_index *ix, uint8_t kind, uint32_t *it,
			 struct radix_sum *ret, uint32_t cap);
