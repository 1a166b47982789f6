/*
 * paths.c - how much several paths hold together.
 *
 * Paths that begin alike share their upper edges.  Each edge is marked by the first path that goes
 * through its whole length and ends the walk of all later ones, so the cost is the number of
 * distinct edges, not the sum of the depths.  Where a path ends inside an edge that no other path
 * goes through, the deepest end counts.
 */
#include "radix/internal.h"
#include "radix/windows.h"

/* Of the first `to` blocks of the edge, those that count. */
static uint32_t counted(const struct radix_index *ix, uint32_t node, uint32_t to, bool hollow)
{
	uint32_t n = to;

	if (hollow || !radix_windowed(ix, node) || !radix_win(ix, node)->hollow)
		return to;
	if (to == radix_node(ix, node)->n_blocks)
		return to - radix_win(ix, node)->hollow;
	for (uint32_t i = 0; i < to; i++)
		n -= radix_device_slot(ix, node, i) == RADIX_HOLLOW;
	return n;
}

static uint64_t count(const struct radix_index *ix, const struct radix_place *at, uint32_t n,
		      bool hollow)
{
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t up = radix_place_is_edge(&at[i]) ? radix_node(ix, at[i].node)->parent
							  : RADIX_NODE_NONE;

		while (up < RADIX_NODE_ISLAND && !radix_node(ix, up)->mark) {
			radix_node(ix, up)->mark = 1;
			blocks += counted(ix, up, radix_node(ix, up)->n_blocks, hollow);
			up = radix_node(ix, up)->parent;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		if (radix_place_is_edge(&at[i]) && (i == 0 || at[i - 1].node != at[i].node) &&
		    !radix_node(ix, at[i].node)->mark)
			blocks += counted(ix, at[i].node, at[i].idx, hollow);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t up = radix_place_is_edge(&at[i]) ? radix_node(ix, at[i].node)->parent
							  : RADIX_NODE_NONE;

		for (; up < RADIX_NODE_ISLAND && radix_node(ix, up)->mark;
		     up = radix_node(ix, up)->parent)
			radix_node(ix, up)->mark = 0;
	}
	return blocks;
}

uint64_t radix_paths_blocks(const struct radix_index *ix, const struct radix_place *at, uint32_t n)
{
	return count(ix, at, n, true);
}

uint64_t radix_paths_held(const struct radix_index *ix, const struct radix_place *at, uint32_t n)
{
	return count(ix, at, n, false);
}
