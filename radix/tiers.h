/*
 * tiers.h - where the copies of a block lie, and how they move.
 *
 * A member has a device slot, a host slot, a value in Redis, or several of these.  Its tier is the
 * highest of them; the other copies are a bonus.  Along a path tiers never rise: device copies lie
 * only below device copies, and among blocks without one, host copies only below host copies.
 *
 *     path   [ d d d d d | h h h | r r r r ]
 *              slots        host    the index knows that Redis has them
 *
 * The index decides what moves and books it; the caller carries bytes.  A move is begun here,
 * copied there and ended here.  Meanwhile its source counts a reader and its target belongs to the
 * daemon: whatever happens to the block, neither slot is used for anything else before the move has
 * ended.
 *
 * Every move that was begun must be ended, once, in any order.
 */
#pragma once

#include "radix/index.h"

#define RADIX_TIERS(X)      \
	X(DEVICE, "device") \
	X(HOST, "host")     \
	X(REDIS, "redis")

enum radix_tier {
#define X(sym, text) RADIX_TIER_##sym,
	RADIX_TIERS(X)
#undef X
	RADIX_N_TIERS
};

const char *radix_tier_to_string(enum radix_tier t);

/* Owner of slots that the daemon itself fills. */
#define RADIX_OWNER_DAEMON (UINT32_MAX - 1)

/* A member by number; stale once the block is gone. */
struct radix_member {
	uint32_t entry;
	uint64_t generation;
};

/* One block on its way from a tier to another. */
struct radix_move {
	struct radix_member block;
	uint8_t from; /* enum radix_tier */
	uint8_t to;
	uint32_t src; /* slot; RADIX_NONE in Redis */
	uint32_t dst;
	uint64_t tick; /* the block's last use when the move began */
	uint8_t turn;  /* the index's own */
	/* Up, said before its end: the bytes that came are not those that were committed.  The
	   device copy counts as lossy (radix_member_lossy()) until exact bytes take its place. */
	bool lossy;
};

/* ---- making room ----------------------------------------------------------------------------- */

enum {
	/* dirty blocks go without a copy, with all that hangs below them (reason DROPPED) */
	RADIX_ROOM_DROP = 1,
	/* dirty blocks that were never hit again are not worth a copy: the same, reason CAPACITY */
	RADIX_ROOM_SECOND_USE = 2,
};

struct radix_room {
	uint32_t freed; /* slots of the tier that became FREE in this call */
	/* moves begun: that many become FREE when they end, unless their blocks are used again */
	uint32_t started;
	/* blocks that leave with no move of their own: with one that was begun earlier, or clean
	   behind others that must go first; they become FREE as those moves end */
	uint32_t coming;
	uint32_t dropped; /* members that went without a copy below */
	bool blocked; /* the next victim is dirty, and below is no free or clean slot; or cap 0 */
	bool dry;     /* no victim is left that is not held or leaving already */
};

/*
 * Frees up to `want` slots of `tier` (DEVICE or HOST), coldest unpinned leaves first, block by
 * block from the end: clean copies at once; dirty ones by beginning a move into `moves` (at most
 * `cap`; 0: none is begun, and the first dirty victim ends the call with `blocked`).  freed +
 * started + coming <= want, but that a dropped block takes along what hangs below it.  When it is
 * less, without `blocked` or `dry`, there are `cap` moves.
 *
 * A move down to HOST takes a host slot: a free one, else the older of the first bonus and of the
 * coldest host leaf, if that is clean.  A device block that only Redis has below, although there is
 * a host tier, is dirty; dropped, it stays as a Redis-only member if no host copy hangs below it.
 * Of a Redis-only member too many the coldest goes (reason CAPACITY).  Never fails.
 */
void radix_make_room(struct radix_index *ix, enum radix_tier tier, uint32_t want, uint32_t flags,
		     struct radix_move *moves, uint32_t cap, struct radix_room *ret);

/* Slots of the tier that are FREE now. */
uint32_t radix_free_slots(const struct radix_index *ix, enum radix_tier tier);
/* Slots whose block leaves the tier; FREE when its moves have ended, unless it stays after all. */
uint32_t radix_leaving_slots(const struct radix_index *ix, enum radix_tier tier);

/*
 * A copy ahead of need (write-through): begins a move from the block's highest copy to `to` without
 * making it leave.  Return: 0; RADIX_E_NOTFOUND (stale); RADIX_E_STATE (it has that copy, or one is
 * on its way; or `to` is not below it, or not there); RADIX_E_REFUSED (no free slot there; nothing
 * is evicted for it).
 */
radix_nodiscard int radix_copy_begin(struct radix_index *ix, struct radix_member block,
				     enum radix_tier to, struct radix_move *ret_move);

/* ---- going up -------------------------------------------------------------------------------- */

/* The last n blocks of the path that ends at `end`, in path order.  Returns how many (<= n). */
uint32_t radix_path_members(const struct radix_index *ix, const struct radix_place *end, uint32_t n,
			    struct radix_member *ret);

/* Highest tier of a member.  Return: 0, RADIX_E_NOTFOUND (stale). */
radix_nodiscard int radix_member_tier(const struct radix_index *ix, struct radix_member block,
				      enum radix_tier *ret_tier);

/* Root and tokens of a member.  Return: 0, RADIX_E_NOTFOUND (stale). */
radix_nodiscard int radix_member_root(const struct radix_index *ix, struct radix_member block,
				      uint32_t *ret_root, uint32_t *ret_n_tokens);
/* Key, and parent's entry (RADIX_NONE: none) of a member; until the next change.  0, NOTFOUND. */
radix_nodiscard int radix_member_key(const struct radix_index *ix, struct radix_member block,
				     const void **ret_key, uint32_t *ret_key_len);
/* Checksum as far as it is known: kind 0 none, 1 XXH3-128, 2 kernels'. */
radix_nodiscard int radix_member_checksum(const struct radix_index *ix, struct radix_member block,
					  uint8_t *ret_kind, uint8_t ret_checksum[16]);

/*
 * Would somebody who reads the member get bytes that a codec has changed?  True of a lossy device
 * copy, and of a member without one: what lies lower is coded.  False in an index that is not coded
 * (radix_index_config.coded), and of a member that is gone.
 */
bool radix_member_lossy(const struct radix_index *ix, struct radix_member block);
/*
 * How many of the last `n` blocks of the path that ends at `end` are so.  *ret_first: the first of
 * them, counted from the n-th last; n: none.  O(n) in a coded index, else O(1).
 */
uint32_t radix_path_lossy(const struct radix_index *ix, const struct radix_place *end, uint32_t n,
			  uint32_t *ret_first);
/*
 * The most of those `n` blocks, from the first on, of which the last `window`, or all where there
 * are no more, are there with the bytes that were committed; `n` in an index that is not coded.
 * O(n).
 */
uint32_t radix_path_exact(const struct radix_index *ix, const struct radix_place *end, uint32_t n,
			  uint32_t window);

/*
 * Begins to bring a member up into a device slot, which becomes RESERVED for RADIX_OWNER_DAEMON;
 * the source is its highest copy. Of two at once for one block the first to end is it, the other
 * gives its slot back and is answered 0. Return: 0; RADIX_E_NOTFOUND (stale); RADIX_E_STATE (it has
 * a device copy); RADIX_E_REFUSED (no free slot: make room).
 */
radix_nodiscard int radix_promote_begin(struct radix_index *ix, struct radix_member block,
					struct radix_move *ret_move);

/* ---- the end of a move ----------------------------------------------------------------------- */

/*
 * The bytes are there (ok) or not.  `checksum` (XXH3-128 of the block, or NULL) is kept if none
 * was known.
 *
 * Down: ok gives the block its lower copy; then the copies at its path's end that were leaving go,
 * as far as they are clean.  Those that a pin came to protect, that were touched, or got a device
 * copy below them do not leave any more: their lower copy is a bonus.  Not ok: the target is FREE,
 * the block is as before and does not leave.
 *
 * Up: ok makes the slot the block's device copy, and the source stays as a bonus.  Not ok: the
 * target is FREE again, the block is as before.
 *
 * Return: 0; RADIX_E_REFUSED: up, but the block before has no device copy yet: nothing was done,
 * end the move again when it has (or with ok = false); RADIX_E_NOTFOUND: the block went meanwhile;
 * RADIX_E_STATE: up and ok, but the copy that was read turned out bad meanwhile (radix_lose), and
 * the block has no device copy.  In the last two what the move held is free, and the move is over.
 * *ret_freed (may be NULL): slots of the source's tier that became FREE.
 */
radix_nodiscard int radix_move_end(struct radix_index *ix, const struct radix_move *m, bool ok,
				   const uint8_t *checksum, uint32_t *ret_freed);

/*
 * The block's copy in `tier` is no good (vanished, corrupt).  A member that has one above, or, its
 * host copy lost, one in Redis and no host copy below it, loses only that copy.  Otherwise it goes,
 * with all that hangs below it; pins there move up to the last block that stays.  With a host copy
 * goes what is being copied from it.  Returns the members that went.
 *
 * `tier` DEVICE: the bytes in its own slot are wrong.  It goes with all its copies and all that
 * hangs below it, unless a pin protects it: then nothing happens (0), try again when it is gone.
 */
uint32_t radix_lose(struct radix_index *ix, struct radix_member block, enum radix_tier tier,
		    enum radix_remove_reason reason);

/*
 * The device's memory is gone, with all that lay in it: every slot of a block is free afterwards,
 * and every member that is not whole below without its own goes, with all that hangs below it
 * (reason DEVICE).  What has its copies in lower tiers stays, as the rule of tiers along a path
 * allows; so do hollow blocks before those, and blocks outside of all windows become hollow where
 * others that are hollow stand behind them.  Nothing is pinned,
 * and no move from or to the device is under way.  Returns the members that went for that reason:
 * others may make way in the block table.
 */
uint64_t radix_device_lost(struct radix_index *ix);

/* ---- what Redis was found to hold ------------------------------------------------------------ */

/*
 * Appends n_keys members behind `pin`, which stays where it is; they have a value in Redis and
 * nothing else. Stops at the first that does not fit (no entry left after the coldest Redis-only
 * leaf went), that is a member already, or, in digest mode, hangs elsewhere.  Returns how many were
 * added; ret[i] names them (room for n_keys).
 */
uint32_t radix_add_lower(struct radix_index *ix, struct radix_pin *pin, const void *keys,
			 uint32_t n_keys, uint64_t tick, struct radix_member *ret);

/*
 * A lease that matched up to `at` but stored less is over: its blocks were hit again (second use).
 */
void radix_hit(struct radix_index *ix, const struct radix_place *at);
