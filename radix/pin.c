/*
 * pin.c - who holds a path, and when it was last used.
 *
 * A pin sits on the list of the one edge where its path ends.  Ancestors need no mark: they have a
 * child and are no leaves.  Within the edge it protects the blocks before it only, so that what
 * another request left behind it can still go.
 *
 * With lower tiers an edge can be a leaf of the device although blocks hang below it, and a pin may
 * stand on those: there each edge counts the pins below it, which costs a walk to the root.
 */
#include "radix/internal.h"

uint32_t radix_pinned_to(const struct radix_node *n)
{
	const struct radix_list *it;
	uint32_t deepest = 0;

	radix_list_foreach(it, &n->pins) {
		const struct radix_pin *pin = (const struct radix_pin *)(const void *)it;

		if (pin->at.idx > deepest)
			deepest = pin->at.idx;
	}
	return deepest;
}

_Static_assert(offsetof(struct radix_pin, link) == 0, "a pin begins with its link");

static void attach(struct radix_index *ix, struct radix_pin *pin, const struct radix_place *at)
{
	pin->at = *at;
	radix_list_init(&pin->link);
	if (!radix_place_is_edge(at))
		return;
	radix_list_add_tail(&radix_node(ix, at->node)->pins, &pin->link);
	if (radix_has_tiers(ix)) {
		radix_low_used(ix, at->node, at->idx);
		radix_low_hold(ix, at->node, 1, true);
	}
	radix_win_hold(ix, pin, true);
}

static void detach(struct radix_index *ix, struct radix_pin *pin)
{
	radix_list_remove(&pin->link);
	if (!radix_place_is_edge(&pin->at))
		return;
	if (radix_has_tiers(ix))
		radix_low_hold(ix, pin->at.node, 1, false);
	radix_win_hold(ix, pin, false);
	radix_win_queue(ix, pin->at.node);
	radix_leaf_queue(ix, pin->at.node); /* it may have been set aside as pinned */
}

void radix_pin_take(struct radix_index *ix, struct radix_pin *pin, const struct radix_place *at)
{
	radix_root_ref(ix, at->root);
	ix->n_pins++;
	attach(ix, pin, at);
}

void radix_pin_move(struct radix_index *ix, struct radix_pin *pin, const struct radix_place *to)
{
	radix_assert(pin->link.next && pin->at.root == to->root);
	if (pin->at.node == to->node && to->idx >= pin->at.idx) {
		pin->at = *to; /* further along the same edge: nothing becomes evictable */
		if (radix_has_tiers(ix) && radix_place_is_edge(to))
			radix_low_used(ix, to->node, to->idx);
		if (radix_place_is_edge(to)) /* but out of its window */
			radix_win_queue(ix, to->node);
		return;
	}
	detach(ix, pin);
	attach(ix, pin, to);
}

void radix_pin_drop(struct radix_index *ix, struct radix_pin *pin)
{
	uint32_t root = pin->at.root;

	if (!pin->link.next)
		return;
	detach(ix, pin);
	pin->link = (struct radix_list){ 0 };
	ix->n_pins--;
	ix->roots[root].refs--;
	radix_root_settle(ix, root);
}

void radix_touch(struct radix_index *ix, const struct radix_place *at, uint64_t tick)
{
	uint32_t node = at->node, to = at->idx;

	radix_now(ix, tick);
	if (node < RADIX_NODE_ISLAND && to) /* for a restart, which finds all before it */
		radix_table_touch(&ix->table, radix_entry_at(ix, node, to - 1), tick);
	while (node < RADIX_NODE_ISLAND) {
		struct radix_node *n = radix_node(ix, node);

		if (to)
			radix_edge_touch(&ix->slab, n, to, tick);
		if (radix_has_tiers(ix))
			radix_low_used(ix, node, to);
		node = n->parent;
		if (node < RADIX_NODE_ISLAND)
			to = radix_node(ix, node)->n_blocks;
	}
}
