/*
 * low.h - what an edge knows of the tiers: where its device copies end, and its host copies.
 *
 *     blocks   0        end[DEVICE]      end[HOST]      n_blocks
 *              | d d d d | h h h h h h h | r r r r r r |
 *              ref: slot   ref: entry      ref: entry
 *                    ^^^           ^^^^^
 *                leaving[DEVICE]  leaving[HOST]
 *
 * An index without lower tiers has none of this: the array beside the nodes is not there, and every
 * block counts as one with a device copy.
 *
 * An edge is a leaf of a tier when blocks of it have their highest copy there and nothing behind
 * them, in this edge or in a child, has one as high, or only blocks that leave.  Each tier has a
 * queue of its leaves.  What leaves a tier is the end of a path there, across edges; whatever takes
 * away the reason (a pin, a use, a copy above that comes back) makes it and all before it stay, at
 * once.
 */
#pragma once

#include "radix/edge.h"
#include "radix/tiers.h"

struct radix_low {
	uint32_t end[2];      /* blocks before it have a device copy; a device or a host copy */
	uint32_t kids[2];     /* children whose first block has a device copy; either */
	uint32_t firm[2];     /* of those, children whose first block does not leave that tier */
	uint32_t leaving[2];  /* blocks before end[] that leave the tier */
	uint32_t heap_pos[2]; /* in the queues of the host and of Redis */
	uint32_t again;       /* blocks before it were hit by a lease that had not stored them */
	uint32_t held;        /* pins on edges below this one */
	uint32_t pad[4];
};

_Static_assert(sizeof(struct radix_low) == 64, "one cache line beside the edge's two");

struct radix_index;

/* Blocks of the edge whose highest copy is in `t` are [start, end); those before stop stay. */
uint32_t radix_low_start(const struct radix_low *low, enum radix_tier t);
uint32_t radix_low_end(const struct radix_node *n, const struct radix_low *low, enum radix_tier t);
uint32_t radix_low_stop(const struct radix_node *n, const struct radix_low *low, enum radix_tier t);
/* Its last block in `t` may leave: nothing behind it has a copy as high and stays. */
bool radix_low_is_leaf(const struct radix_node *n, const struct radix_low *low, enum radix_tier t);
/* It may go now: nothing behind it has a copy as high. */
bool radix_low_may_pop(const struct radix_node *n, const struct radix_low *low, enum radix_tier t);
/* A victim of `t` is left in the edge that is not leaving already. */
bool radix_low_has_victim(const struct radix_index *ix, uint32_t node, enum radix_tier t);
/* Blocks of the edge that a pin protects, here or below. */
uint32_t radix_low_protected(const struct radix_index *ix, uint32_t node);

/* Queue the edge where it is a leaf and is not queued: the pins that set it aside are gone. */
void radix_low_queue(struct radix_index *ix, uint32_t node);
/* After its ends, its leaving blocks or its children changed: queued exactly where it is a leaf. */
void radix_low_settle(struct radix_index *ix, uint32_t node);
/* Room in every queue for one more edge.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_low_reserve(struct radix_index *ix);
void radix_low_unqueue(struct radix_index *ix, uint32_t node);
/* The coldest edge with a block that may leave `t`, and that block's tick; RADIX_NONE. */
uint32_t radix_low_coldest(struct radix_index *ix, enum radix_tier t, uint64_t *ret_tick);

/* New ends of the edge; its parent's count of children follows. */
void radix_low_ends(struct radix_index *ix, uint32_t node, uint32_t device, uint32_t host);
/* The edge was hung below its parent, or is about to be taken away from there. */
void radix_low_linked(struct radix_index *ix, uint32_t node, bool linked);
/* An island was hung below a block: its pins and hits are those of its ancestors, too. */
void radix_low_grafted(struct radix_index *ix, uint32_t node);
/* Forget the blocks from `to` on. */
void radix_low_trim(struct radix_index *ix, uint32_t node, uint32_t to);
/* The edge was cut: the upper part gets its share, and keeps what leaves beside the lower part. */
void radix_low_cut(struct radix_index *ix, uint32_t node, uint32_t at, uint32_t upper);
/* The blocks of `child` were appended to the `before` of `node`, whose only child it was. */
void radix_low_join(struct radix_index *ix, uint32_t node, uint32_t child, uint32_t before);

/* The last block of `t` in the edge leaves it with those behind it. */
void radix_low_leave(struct radix_index *ix, uint32_t node, enum radix_tier t);
/* Blocks before `to` do not leave `t` after all. */
void radix_low_stay(struct radix_index *ix, uint32_t node, enum radix_tier t, uint32_t to);
/* Block i does not leave, if it does: what it or those before it waited for did not come. */
void radix_low_recall(struct radix_index *ix, uint32_t node, uint32_t i);
/* Blocks before `to` are used or held now. */
void radix_low_used(struct radix_index *ix, uint32_t node, uint32_t to);
/* `n` pins more, or less, stand on `node` or below it: its ancestors are held. */
void radix_low_hold(struct radix_index *ix, uint32_t node, uint32_t n, bool more);
/* Pins on the edge and below. */
uint32_t radix_low_pins(const struct radix_index *ix, uint32_t node);

/* Block i of the edge has no device copy, but the one before it has, or it is a first one. */
bool radix_low_can_attach(const struct radix_index *ix, uint32_t node, uint32_t i);
/* Such a block gets a device copy: the slot becomes READY. */
void radix_low_attach(struct radix_index *ix, uint32_t node, uint32_t i, uint32_t slot, bool exact);
/* The last block of `t`, which has a copy below, loses the one in `t`. */
void radix_low_pop(struct radix_index *ix, uint32_t node, enum radix_tier t);
/* A member with a device copy loses all others; what is on its way down does not arrive. */
void radix_low_forget_copies(struct radix_index *ix, uint32_t entry, bool redis);
/* Redis-only members beyond what the block table has room for go, coldest first. */
void radix_low_budget(struct radix_index *ix);
/* The coldest Redis-only leaf goes.  False when all are held. */
bool radix_low_forget(struct radix_index *ix);
