/*
 * queue.h - leaves in the order in which they go: a binary heap of edges by the tick of the last
 * block that may go.  One for each tier.
 *
 * Keys in the heap are lower bounds: a use makes an edge younger without telling the heap, and the
 * heap finds out when the edge comes to its top.  So a match or a release costs the heap nothing,
 * and a victim O(log leaves).  A node knows its position.
 */
#pragma once

#include "radix/edge.h"

struct radix_queue_item {
	uint64_t tick;
	uint32_t node;
	uint32_t pad;
};

struct radix_nodes;

/* Not of leaves: of edges with blocks outside of all windows. */
#define RADIX_QUEUE_WINDOWS UINT32_MAX

struct radix_queue {
	struct radix_queue_item *v;
	uint32_t n;
	uint32_t cap;
	uint32_t tier; /* whose leaves these are: where a node's position is kept; or as below */
	const struct radix_alloc *alloc;
};

uint32_t radix_queue_pos(const struct radix_queue *q, const struct radix_nodes *nodes,
			 uint32_t node);
void radix_queue_deinit(struct radix_queue *q);
/* Room for `want` items; pushing never fails afterwards.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_queue_reserve(struct radix_queue *q, uint32_t want);
void radix_queue_push(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node,
		      uint64_t tick);
void radix_queue_remove(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node);
/* The edge's key is now `tick`, higher or lower than it was. */
void radix_queue_update(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node,
			uint64_t tick);
