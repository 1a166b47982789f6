/*
 * windows.h - roots whose blocks are only read through a window of the last few.
 *
 * Attention over a sliding window needs the K/V of the last blocks before a position, however long
 * the prompt is.  In a root with a window of w blocks a match of p blocks needs the last min(p, w)
 * of them.  The others may be hollow: members that gave their slot back.  They stay where they are,
 * as blocks of the device without a copy, so that what lies behind them is still found.
 *
 *     path    [ . . . . . . | d d d d ]      w = 4
 *               hollow        slots
 *
 * Which blocks may become hollow: those that lie w or more before the end of their edge, since an
 * edge ends where prompts part, or where one ends, and matches end there; and that no pin keeps.
 * They are the first to go when the device needs room, before any block that a match needs, and
 * nothing is copied down for them.  A commit of a hollow block gives it a slot again.
 *
 * What it guarantees.  A hollow block has no copy in any tier.  Those of them that nothing hangs
 * below any more go when room is made.  What is hollow takes an entry of the block table and no
 * more, and there are at most so many as the table has room for beside what all slots can hold.
 */
#pragma once

#include "radix/index.h"

/* In place of a slot: the block has none, and is hollow. */
#define RADIX_HOLLOW (RADIX_NONE - 1)

/*
 * The root has a window of `n_blocks` from now on (at least 1; once).  Pins that were taken before
 * keep all of their paths.  Return: 0; -ENOMEM (unchanged).
 */
radix_nodiscard int radix_root_window(struct radix_index *ix, uint32_t root, uint32_t n_blocks);

/*
 * radix_match(), cut to what can be used.  `whole`: to before the first block without a copy.  Else
 * to the longest part whose last blocks, as many as the window has, all have copies; `runs` say
 * RADIX_NONE for those before them, whether they have slots or not, so that room for as many runs
 * as the window has blocks, and one, is enough.
 *
 * n_device: the longest part that can be used with device copies alone.  What follows it of the
 * whole counts as lower, in n_host, even where it has a device copy: it is of use only together
 * with what comes up behind it.  In a root without a window this is radix_match().
 */
void radix_match_window(const struct radix_index *ix, const struct radix_place *from,
			const void *keys, uint32_t n_keys, bool whole, struct radix_runs *runs,
			struct radix_match *ret_match);

/* True: block `idx` - 1 of the place is hollow. */
bool radix_place_hollow(const struct radix_index *ix, const struct radix_place *at);

/* radix_paths_blocks() without those that are hollow: what there is to hold. */
uint64_t radix_paths_held(const struct radix_index *ix, const struct radix_place *at, uint32_t n);

struct radix_window_stats {
	uint64_t n_hollow;       /* members that are hollow now */
	uint64_t max_hollow;     /* and may be */
	uint64_t hollowed_total; /* slots that were given back by such as went out of all windows */
	uint64_t refilled_total; /* commits that gave a hollow block a slot again */
};

void radix_window_stats(const struct radix_index *ix, struct radix_window_stats *ret);
