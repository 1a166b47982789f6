/*
 * nodes.h - all edges of an index, by number.  Pages of 256 that never move; with lower tiers a
 * second page beside each, for what an edge knows of them.
 */
#pragma once

#include "radix/low.h"

enum {
	RADIX_NODE_PAGE_SHIFT = 8,
	RADIX_NODE_PAGE = 1 << RADIX_NODE_PAGE_SHIFT
};

struct radix_nodes {
	struct radix_node **pages;
	struct radix_low **low; /* [cap_pages] with lower tiers, else NULL */
	bool tiers;             /* set once, before the first edge */
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

void radix_nodes_init(struct radix_nodes *s, const struct radix_alloc *alloc);
void radix_nodes_deinit(struct radix_nodes *s);
/* Number of a fresh edge, initialised for `root`; RADIX_NONE when there is no memory. */
uint32_t radix_nodes_take(struct radix_nodes *s, uint32_t root);
void radix_nodes_give(struct radix_nodes *s, uint32_t node);
