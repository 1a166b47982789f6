#include "radix/queue.h"

#include "radix/nodes.h"

void radix_queue_deinit(struct radix_queue *q)
{
	if (q->alloc)
		radix_give(q->alloc, q->v, q->cap * sizeof(*q->v));
	*q = (struct radix_queue){ 0 };
}

int radix_queue_reserve(struct radix_queue *q, uint32_t want)
{
	uint32_t cap = q->cap ? q->cap : 64;
	struct radix_queue_item *v;

	if (want <= q->cap)
		return 0;
	while (cap < want)
		cap *= 2;
	v = radix_take(q->alloc, cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	if (q->n)
		memcpy(v, q->v, q->n * sizeof(*v));
	radix_give(q->alloc, q->v, q->cap * sizeof(*q->v));
	q->v = v;
	q->cap = cap;
	return 0;
}

uint32_t radix_queue_pos(const struct radix_queue *q, const struct radix_nodes *nodes,
			 uint32_t node)
{
	if (q->tier == RADIX_QUEUE_WINDOWS)
		return radix_win_at(nodes, node)->heap_pos;
	if (q->tier)
		return radix_low_at(nodes, node)->heap_pos[q->tier - 1];
	return radix_node_at(nodes, node)->heap_pos;
}

static void pos_set(const struct radix_queue *q, struct radix_nodes *nodes, uint32_t node,
		    uint32_t at)
{
	if (q->tier == RADIX_QUEUE_WINDOWS)
		radix_win_at(nodes, node)->heap_pos = at;
	else if (q->tier)
		radix_low_at(nodes, node)->heap_pos[q->tier - 1] = at;
	else
		radix_node_at(nodes, node)->heap_pos = at;
}

static void place(struct radix_queue *q, struct radix_nodes *nodes, uint32_t at,
		  struct radix_queue_item item)
{
	q->v[at] = item;
	pos_set(q, nodes, item.node, at);
}

static void sift(struct radix_queue *q, struct radix_nodes *nodes, uint32_t at)
{
	struct radix_queue_item item = q->v[at];

	while (at && item.tick < q->v[(at - 1) / 2].tick) {
		place(q, nodes, at, q->v[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= q->n)
			break;
		if (child + 1 < q->n && q->v[child + 1].tick < q->v[child].tick)
			child++;
		if (q->v[child].tick >= item.tick)
			break;
		place(q, nodes, at, q->v[child]);
		at = child;
	}
	place(q, nodes, at, item);
}

void radix_queue_push(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node,
		      uint64_t tick)
{
	radix_assert(q->n < q->cap);
	q->v[q->n] = (struct radix_queue_item){ .tick = tick, .node = node };
	sift(q, nodes, q->n++);
}

void radix_queue_remove(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node)
{
	uint32_t at = radix_queue_pos(q, nodes, node);

	if (at == RADIX_NONE)
		return;
	pos_set(q, nodes, node, RADIX_NONE);
	if (at == --q->n)
		return;
	place(q, nodes, at, q->v[q->n]);
	sift(q, nodes, at);
}

void radix_queue_update(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node,
			uint64_t tick)
{
	uint32_t at = radix_queue_pos(q, nodes, node);

	if (at == RADIX_NONE)
		return;
	q->v[at].tick = tick;
	sift(q, nodes, at);
}
