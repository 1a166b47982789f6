#include "radix/nodes.h"

#include "radix/queue.h"

void radix_nodes_init(struct radix_nodes *s, const struct radix_alloc *alloc)
{
	*s = (struct radix_nodes){ .alloc = alloc, .first_free = RADIX_NONE };
}

void radix_nodes_deinit(struct radix_nodes *s)
{
	if (!s->alloc)
		return;
	for (uint32_t i = 0; i < s->n_pages; i++)
		radix_give(s->alloc, s->pages[i], RADIX_NODE_PAGE * sizeof(struct radix_node));
	radix_give(s->alloc, s->pages, s->cap_pages * sizeof(*s->pages));
	*s = (struct radix_nodes){ 0 };
}

static int page_add(struct radix_nodes *s)
{
	if (s->n_pages == s->cap_pages) {
		uint32_t cap = s->cap_pages ? s->cap_pages * 2 : 16;
		struct radix_node **pages = radix_take(s->alloc, cap * sizeof(*pages));

		if (!pages)
			return -ENOMEM;
		if (s->n_pages)
			memcpy(pages, s->pages, s->n_pages * sizeof(*pages));
		radix_give(s->alloc, s->pages, s->cap_pages * sizeof(*s->pages));
		s->pages = pages;
		s->cap_pages = cap;
	}
	s->pages[s->n_pages] = radix_take(s->alloc, RADIX_NODE_PAGE * sizeof(struct radix_node));
	if (!s->pages[s->n_pages])
		return -ENOMEM;
	s->n_pages++;
	return 0;
}

uint32_t radix_nodes_take(struct radix_nodes *s, uint32_t root)
{
	uint32_t i = s->first_free;

	if (i != RADIX_NONE) {
		s->first_free = radix_node_at(s, i)->next_sib;
	} else {
		if (s->n_used == s->n_pages << RADIX_NODE_PAGE_SHIFT && page_add(s) < 0)
			return RADIX_NONE;
		i = s->n_used++;
	}
	radix_edge_init(radix_node_at(s, i), root);
	s->n_live++;
	return i;
}

void radix_nodes_give(struct radix_nodes *s, uint32_t node)
{
	struct radix_node *n = radix_node_at(s, node);

	n->flags = 0;
	n->next_sib = s->first_free;
	s->first_free = node;
	s->n_live--;
}

/* ---- the leaf queue -------------------------------------------------------------------------- */

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

static void place(struct radix_queue *q, struct radix_nodes *nodes, uint32_t at,
		  struct radix_queue_item item)
{
	q->v[at] = item;
	radix_node_at(nodes, item.node)->heap_pos = at;
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
	struct radix_node *n = radix_node_at(nodes, node);
	uint32_t at = n->heap_pos;

	if (at == RADIX_NONE)
		return;
	n->heap_pos = RADIX_NONE;
	if (at == --q->n)
		return;
	place(q, nodes, at, q->v[q->n]);
	sift(q, nodes, at);
}

void radix_queue_update(struct radix_queue *q, struct radix_nodes *nodes, uint32_t node,
			uint64_t tick)
{
	uint32_t at = radix_node_at(nodes, node)->heap_pos;

	if (at == RADIX_NONE)
		return;
	q->v[at].tick = tick;
	sift(q, nodes, at);
}
