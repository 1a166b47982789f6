/*
 * win.h - what an edge of a root with a window knows of it, and what its changes mean there.
 *
 *     blocks   0     from               n - w          n
 *              | . . | d d . d d d d d d | w w w w w w |
 *                hollow                    the window of whoever ends here
 *
 * The block before `from` is hollow, and all before it; between there and n - w lie the next ones
 * to become so, hollow ones among them, if a commit gave one a slot or edges were joined.
 *
 * An index without such roots has none of this: the array beside the nodes is not there.
 */
#pragma once

#include "radix/base.h"

struct radix_win {
	uint32_t hollow;   /* blocks of the edge that are */
	uint32_t from;     /* all before it are */
	uint32_t whole;    /* pins below this edge that keep all of their path */
	uint32_t heap_pos; /* in the queue of edges with blocks outside of all windows */
};

/* Set in an edge's reference to a block: it is hollow, and the rest is its entry. */
#define RADIX_REF_HOLLOW 0x80000000u

struct radix_index;
struct radix_pin;

/* Queue the edge where it may have blocks outside of all windows and is not queued. */
void radix_win_queue(struct radix_index *ix, uint32_t node);
/* The same, and where it is queued, its last block may have been used earlier than it was known. */
void radix_win_settle(struct radix_index *ix, uint32_t node);
/* All blocks of the edge that may become hollow lie before it. */
uint32_t radix_win_limit(const struct radix_index *ix, uint32_t node);
/* The next block at or behind i that no pin keeps, if pins keep this one; `i` if none does. */
uint32_t radix_win_kept_to(const struct radix_index *ix, uint32_t node, uint32_t i);

/* Blocks become hollow until `want` slots are free that were not.  Returns how many are. */
uint32_t radix_win_free(struct radix_index *ix, uint32_t want);
/* Hollow blocks at the ends of paths go, where they would be the next to. */
void radix_win_sweep(struct radix_index *ix);
/* The last block of the edge is hollow and nothing hangs below it. */
bool radix_win_dead(const struct radix_index *ix, uint32_t node);

/* Of the last `n` blocks of the edge, how many at its end have a slot. */
uint32_t radix_win_full(const struct radix_index *ix, uint32_t node, uint32_t n);

/* What roots with windows need.  Return: 0, -ENOMEM (unchanged). */
radix_nodiscard int radix_win_enable(struct radix_index *ix);
/* Hollow blocks at the end of the edge, from `keep` on, go.  Returns how many. */
uint32_t radix_win_bury(struct radix_index *ix, uint32_t node, uint32_t keep);
/*
 * No block can leave the device, and hollow ones with copies of others behind them may be why: the
 * oldest such go with those.  Returns the members that went; 0: there are none, or they are held.
 */
uint32_t radix_win_squeeze(struct radix_index *ix, enum radix_remove_reason reason);
/* Members that may be hollow. */
uint64_t radix_win_max(const struct radix_index *ix);

/* ---- changes of the tree: no-ops in an edge of another root */

/* The pin stands on its edge, or is about to be taken away: its ancestors know. */
void radix_win_hold(struct radix_index *ix, const struct radix_pin *pin, bool more);
/* An island was hung below a block. */
void radix_win_grafted(struct radix_index *ix, uint32_t node);
/* The edge was cut, and pins have gone where their blocks went. */
void radix_win_cut(struct radix_index *ix, uint32_t node, uint32_t at, uint32_t upper);
/* The blocks of `child` were appended to the `before` of `node`, whose only child it was. */
void radix_win_join(struct radix_index *ix, uint32_t node, uint32_t child, uint32_t before);
/* The blocks from `to` on went, `hollow` of them hollow. */
void radix_win_trim(struct radix_index *ix, uint32_t node, uint32_t to, uint32_t hollow);
/* Block i is hollow, and gets this slot, which becomes READY. */
void radix_win_refill(struct radix_index *ix, uint32_t node, uint32_t i, uint32_t slot);
/* A recovery has appended a hollow block to its edge. */
void radix_win_found(struct radix_index *ix, uint32_t node);
