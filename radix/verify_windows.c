/*
 * verify_windows.c - the README's invariants about roots with a window, by their numbers.
 */
#include "radix/verify.h"

/* 28, 29: which blocks of an edge are hollow, and who keeps the others. */
int radix_verify_window(struct radix_verify *v, uint32_t node)
{
	const struct radix_index *ix = v->ix;
	const struct radix_node *n = radix_node(ix, node);
	bool windowed = radix_windowed(ix, node), may = false;
	uint32_t hollow = 0, from = 0, limit = windowed ? radix_win_limit(ix, node) : 0;

	for (uint32_t i = 0; i < n->n_blocks; i++) {
		const struct radix_entry *e = &ix->table.v[radix_entry_at(ix, node, i)];
		bool is = radix_device_slot(ix, node, i) == RADIX_HOLLOW;

		if (is && (!windowed || radix_entry_slot(e) != RADIX_HOLLOW ||
			   radix_entry_host(e) != RADIX_NONE || radix_entry_redis(e)))
			return radix_verify_fail(v, 28, "a hollow block that may not be, edge",
						 node, "block", i);
		hollow += is;
		from += is && from == i;
		may = may || (!is && i < limit && radix_win_kept_to(ix, node, i) == i);
	}
	v->hollow += hollow;
	if (!windowed)
		return 0;
	if (hollow != radix_win(ix, node)->hollow || radix_win(ix, node)->from > from)
		return radix_verify_fail(v, 28, "hollow blocks counted", hollow, "but booked",
					 radix_win(ix, node)->hollow);
	if (may && radix_win(ix, node)->heap_pos == RADIX_NONE)
		return radix_verify_fail(v, 29,
					 "blocks outside of all windows are not queued, "
					 "edge",
					 node, NULL, 0);
	if (radix_win(ix, node)->heap_pos != RADIX_NONE)
		v->in_windows++;
	return 0;
}

/* 29: pins below that keep all of their path, counted from above. */
static int verify_whole(struct radix_verify *v, uint32_t node)
{
	const struct radix_index *ix = v->ix;
	uint32_t whole = 0;

	for (uint32_t c = radix_node(ix, node)->first_child; c != RADIX_NONE;
	     c = radix_node(ix, c)->next_sib) {
		const struct radix_list *it;

		whole += radix_win(ix, c)->whole;
		radix_list_foreach(it, &radix_node(ix, c)->pins)
			whole += !((const struct radix_pin *)(const void *)it)->window;
	}
	if (whole != radix_win(ix, node)->whole)
		return radix_verify_fail(v, 29, "pins below that keep everything", whole,
					 "but booked", radix_win(ix, node)->whole);
	return 0;
}

int radix_verify_windows(struct radix_verify *v)
{
	const struct radix_index *ix = v->ix;

	if (v->hollow != ix->n_hollow)
		return radix_verify_fail(v, 28, "hollow members", v->hollow, "but booked",
					 ix->n_hollow);
	if (v->in_windows != ix->windows.n)
		return radix_verify_fail(v, 29, "edges with blocks outside of all windows",
					 v->in_windows, "queue holds", ix->windows.n);
	for (uint32_t i = 0; ix->nodes.windows && i < ix->nodes.n_used; i++) {
		int bad = 0;

		if (radix_node(ix, i)->flags & RADIX_NODE_F_LIVE && radix_windowed(ix, i))
			bad = verify_whole(v, i);
		if (bad)
			return bad;
	}
	for (uint32_t i = 0; i < ix->windows.n; i++) {
		const struct radix_queue_item *item = &ix->windows.v[i];
		uint32_t run;

		if (!radix_windowed(ix, item->node) || radix_win(ix, item->node)->heap_pos != i ||
		    item->tick > radix_edge_tail_tick(&ix->slab, radix_node(ix, item->node), &run))
			return radix_verify_fail(v, 29, "queued wrongly for its window, edge",
						 item->node, NULL, 0);
	}
	return 0;
}
