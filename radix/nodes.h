/*
 * nodes.h - all edges of an index, by number.  Pages of 256 that never move; with lower tiers a
 * second page beside each, for what an edge knows of them, and a third with the first root that has
 * a window.
 */
#pragma once

#include "radix/low.h"
#include "radix/win.h"

enum {
	RADIX_NODE_PAGE_SHIFT = 8,
	RADIX_NODE_PAGE = 1 << RADIX_NODE_PAGE_SHIFT
};

struct radix_nodes {
	struct radix_node **pages;
	struct radix_low **low; /* [cap_pages] with lower tiers, else NULL */
	struct radix_win **win; /* [cap_pages] with windows, else NULL */
	bool tiers;             /* set once, before the first edge */
	bool windows;           /* a root has, or had, one */
	uint32_t n_pages;
	uint32_t cap_pages;
	uint32_t n_used;     /* numbers below were used at least once */
	uint32_t first_free; /* through next_sib */
	uint32_t n_live;
	const struct radix_alloc *alloc;
};

static inline struct radix_node *radix_node_at(const struct radix_nodes *s, uint32_t i)
{
	return &s->pages[i >> RADIX_NODE_PAGE_SHIFT][i & (RADIX_NODE_PAGE - 1)];
}

static inline struct radix_low *radix_low_at(const struct radix_nodes *s, uint32_t i)
{
	return &s->low[i >> RADIX_NODE_PAGE_SHIFT][i & (RADIX_NODE_PAGE - 1)];
}

static inline struct radix_win *radix_win_at(const struct radix_nodes *s, uint32_t i)
{
	return &s->win[i >> RADIX_NODE_PAGE_SHIFT][i & (RADIX_NODE_PAGE - 1)];
}

void radix_nodes_init(struct radix_nodes *s, const struct radix_alloc *alloc);
void radix_nodes_deinit(struct radix_nodes *s);
/* Number of a fresh edge, initialised for `root`; RADIX_NONE when there is no memory. */
uint32_t radix_nodes_take(struct radix_nodes *s, uint32_t root);
void radix_nodes_give(struct radix_nodes *s, uint32_t node);
/* Third pages for all edges, once.  Return: 0, -ENOMEM (unchanged). */
radix_nodiscard int radix_nodes_windows(struct radix_nodes *s);
/* Takes them away again: nobody has used them. */
void radix_nodes_no_windows(struct radix_nodes *s);
