/*
 * tree.c - changing the shape: hang, cut, join, remove.
 *
 *     split at 3                              merge (after d,e were evicted)
 *
 *     [a b c d e]      [a b c]                [a b c]            [a b c f g]
 *      `-- children      |-- [d e]              `-- [f g]   =>
 *                        |     `-- children
 *                        `-- (room for a branch)
 *
 * A split makes a new edge of the upper part; the lower part keeps the edge's number, so that
 * children need no visit, and its segments, so that a long edge is cut in constant time.  A merge
 * keeps the upper one.  Pins and recency steps go where their blocks
 * go.  Everything that can fail is had before anything changes.
 */
#include "radix/internal.h"

enum {
	MERGE_BLOCKS = 64,
	MERGE_CHILDREN = 16,
	PREFETCH = 8
};

static uint32_t *child_list(struct radix_index *ix, struct radix_node *n)
{
	if (n->flags & RADIX_NODE_F_ISLAND)
		return &ix->roots[n->root].first_island;
	if (n->parent == RADIX_NODE_NONE)
		return &ix->roots[n->root].first_child;
	return &radix_node(ix, n->parent)->first_child;
}

static uint32_t *child_count(struct radix_index *ix, struct radix_node *n)
{
	if (n->flags & RADIX_NODE_F_ISLAND)
		return &ix->roots[n->root].n_islands;
	if (n->parent == RADIX_NODE_NONE)
		return &ix->roots[n->root].n_child;
	return &radix_node(ix, n->parent)->n_child;
}

static void list_add(struct radix_index *ix, uint32_t node)
{
	struct radix_node *n = radix_node(ix, node);
	uint32_t *first = child_list(ix, n);

	n->prev_sib = RADIX_NONE;
	n->next_sib = *first;
	if (*first != RADIX_NONE)
		radix_node(ix, *first)->prev_sib = node;
	*first = node;
	++*child_count(ix, n);
	if (radix_has_tiers(ix))
		radix_low_linked(ix, node, true);
}

static void list_remove(struct radix_index *ix, uint32_t node)
{
	struct radix_node *n = radix_node(ix, node);

	if (n->prev_sib != RADIX_NONE)
		radix_node(ix, n->prev_sib)->next_sib = n->next_sib;
	else
		*child_list(ix, n) = n->next_sib;
	if (n->next_sib != RADIX_NONE)
		radix_node(ix, n->next_sib)->prev_sib = n->prev_sib;
	--*child_count(ix, n);
	if (radix_has_tiers(ix))
		radix_low_linked(ix, node, false);
}

void radix_child_hang(struct radix_index *ix, uint32_t node, uint32_t parent, uint32_t root)
{
	struct radix_node *n = radix_node(ix, node);
	const struct radix_root *r = &ix->roots[root];
	uint64_t chain = r->chain;

	n->parent = parent;
	if (parent != RADIX_NODE_NONE)
		chain = radix_end_chain(ix, radix_node(ix, parent));
	n->address = radix_chain_next(r, chain, radix_local(ix, r, radix_edge_key(n, r->g, 0)));
	list_add(ix, node);
}

void radix_child_link(struct radix_index *ix, uint32_t node, uint32_t parent, uint32_t root)
{
	radix_child_hang(ix, node, parent, root);
	radix_map_put(&ix->children, radix_node(ix, node)->address, node);
	if (parent == RADIX_NODE_NONE)
		return;
	if (radix_has_tiers(ix))
		radix_low_settle(ix, parent);
	else
		radix_queue_remove(&ix->queue, &ix->nodes, parent);
}

void radix_island_link(struct radix_index *ix, uint32_t node)
{
	radix_node(ix, node)->flags |= RADIX_NODE_F_ISLAND;
	radix_child_link(ix, node, RADIX_NODE_NONE, radix_node(ix, node)->root);
}

void radix_child_unlink(struct radix_index *ix, uint32_t node)
{
	radix_map_delete(&ix->children, radix_node(ix, node)->address, node);
	list_remove(ix, node);
}

void radix_where_update(struct radix_index *ix, uint32_t node, uint32_t from)
{
	const struct radix_node *n = radix_node(ix, node);

	if (ix->roots[n->root].config.mode != RADIX_KEYS_DIGEST && !radix_has_tiers(ix) &&
	    !ix->placing)
		return;
	for (uint32_t i = from; i < n->n_blocks; i++) {
		uint32_t entry = radix_entry_at(ix, node, i);

		ix->where_node[entry] = node;
		ix->where_idx[entry] = i;
	}
}

void radix_leaf_queue(struct radix_index *ix, uint32_t node)
{
	struct radix_node *n = radix_node(ix, node);
	uint32_t run;

	if (radix_has_tiers(ix)) {
		radix_low_queue(ix, node);
		return;
	}
	if (n->n_child || n->heap_pos != RADIX_NONE)
		return;
	radix_queue_push(&ix->queue, &ix->nodes, node, radix_edge_tail_tick(&ix->slab, n, &run));
}

static void unqueue(struct radix_index *ix, uint32_t node)
{
	if (radix_has_tiers(ix))
		radix_low_unqueue(ix, node);
	else
		radix_queue_remove(&ix->queue, &ix->nodes, node);
	if (ix->nodes.windows)
		radix_queue_remove(&ix->windows, &ix->nodes, node);
}

/* ---- split ----------------------------------------------------------------------------------- */

/* The new upper edge stands where `node` stood, with `node` as its only child. */
static void take_place(struct radix_index *ix, uint32_t upper, uint32_t node)
{
	struct radix_node *u = radix_node(ix, upper), *n = radix_node(ix, node);

	u->parent = n->parent;
	u->flags = n->flags;
	u->address = n->address;
	u->prev_sib = n->prev_sib;
	u->next_sib = n->next_sib;
	radix_map_replace(&ix->children, n->address, node, upper);
	if (n->prev_sib != RADIX_NONE)
		radix_node(ix, n->prev_sib)->next_sib = upper;
	else
		*child_list(ix, n) = upper;
	if (n->next_sib != RADIX_NONE)
		radix_node(ix, n->next_sib)->prev_sib = upper;
	n->flags = (uint8_t)(n->flags & ~RADIX_NODE_F_ISLAND);
	n->parent = upper;
}

static void split_pins(struct radix_node *u, uint32_t upper, struct radix_node *n, uint32_t at)
{
	struct radix_list *it, *next;

	radix_list_foreach_safe(it, next, &n->pins) {
		struct radix_pin *pin = radix_list_entry(it, struct radix_pin, link);

		if (pin->at.idx > at) {
			pin->at.idx -= at;
			continue;
		}
		radix_list_remove(&pin->link);
		radix_list_add_tail(&u->pins, &pin->link);
		pin->at.node = upper;
	}
}

int radix_split(struct radix_index *ix, uint32_t node, uint32_t at, uint32_t *ret_upper)
{
	struct radix_node *n = radix_node(ix, node), *u;
	struct radix_geometry g = ix->roots[n->root].g;
	uint32_t upper;

	radix_assert(at > 0 && at < n->n_blocks);
	if (radix_map_grow(&ix->children) < 0 || radix_low_reserve(ix) < 0)
		return -ENOMEM;
	upper = radix_nodes_take(&ix->nodes, n->root);
	if (upper == RADIX_NONE)
		return -ENOMEM;
	u = radix_node(ix, upper);
	if (radix_edge_cut(&ix->slab, n, at, u, g) < 0) {
		radix_edge_clear(&ix->slab, u, g);
		radix_nodes_give(&ix->nodes, upper);
		return -ENOMEM;
	}
	if (radix_has_tiers(ix))
		radix_low_cut(ix, node, at, upper);
	take_place(ix, upper, node);
	split_pins(u, upper, n, at);
	list_add(ix, node);
	n->address =
		radix_chain_next(&ix->roots[n->root], radix_end_chain(ix, u),
				 radix_local(ix, &ix->roots[n->root], radix_edge_key(n, g, 0)));
	radix_map_put(&ix->children, n->address, node);
	radix_where_update(ix, upper, 0);
	radix_where_update(ix, node, 0);
	if (radix_has_tiers(ix)) {
		radix_low(ix, upper)->held = radix_low_pins(ix, node);
		radix_low_settle(ix, upper);
		radix_low_settle(ix, node);
	}
	radix_win_cut(ix, node, at, upper);
	*ret_upper = upper;
	return 0;
}

/* ---- merge ----------------------------------------------------------------------------------- */

bool radix_merge(struct radix_index *ix, uint32_t node)
{
	struct radix_node *n = radix_node(ix, node), *c;
	struct radix_geometry g = ix->roots[n->root].g;
	uint32_t child = n->first_child, before = n->n_blocks;
	struct radix_list *it, *next;

	if (ix->no_merge || n->n_child != 1)
		return false;
	c = radix_node(ix, child);
	if (c->n_blocks > MERGE_BLOCKS || c->n_child > MERGE_CHILDREN)
		return false;
	radix_end_chain(ix, c);
	if (radix_edge_join(&ix->slab, n, c, g) < 0)
		return false; /* a longer path is no harm */
	unqueue(ix, child);
	radix_child_unlink(ix, child);
	if (radix_has_tiers(ix))
		radix_low_join(ix, node, child, before);
	radix_win_join(ix, node, child, before);
	n->first_child = c->first_child;
	n->n_child = c->n_child;
	for (uint32_t i = n->first_child; i != RADIX_NONE; i = radix_node(ix, i)->next_sib)
		radix_node(ix, i)->parent = node;
	radix_list_foreach_safe(it, next, &c->pins) {
		struct radix_pin *pin = radix_list_entry(it, struct radix_pin, link);

		radix_list_remove(&pin->link);
		radix_list_add_tail(&n->pins, &pin->link);
		pin->at.node = node;
		pin->at.idx += before;
	}
	radix_where_update(ix, node, before);
	radix_nodes_give(&ix->nodes, child);
	if (radix_has_tiers(ix))
		radix_low_settle(ix, node);
	else
		radix_leaf_queue(ix, node);
	radix_win_queue(ix, node);
	return true;
}

/* ---- remove ---------------------------------------------------------------------------------- */

static void node_remove(struct radix_index *ix, uint32_t node)
{
	struct radix_node *n = radix_node(ix, node);
	bool island = n->flags & RADIX_NODE_F_ISLAND;
	uint32_t parent = n->parent;
	struct radix_list *it, *next;

	/* a pin before an island's first block protects none of it: it now stands at no block */
	radix_list_foreach_safe(it, next, &n->pins) {
		struct radix_pin *pin = radix_list_entry(it, struct radix_pin, link);

		radix_list_remove(&pin->link);
		pin->at.node = RADIX_NODE_ISLAND;
	}
	unqueue(ix, node);
	radix_child_unlink(ix, node);
	radix_edge_clear(&ix->slab, n, ix->roots[n->root].g);
	radix_nodes_give(&ix->nodes, node);
	if (island || parent == RADIX_NODE_NONE)
		return;
	radix_leaf_queue(ix, parent);
	radix_merge(ix, parent);
}

/*
 * Entries of one path lie anywhere: send for those of the blocks to come, and of the one that
 * stays; and where a digest has to be looked at, for its cell.
 */
static void remove_ahead(const struct radix_index *ix, const struct radix_node *n,
			 const struct radix_low *low, uint32_t i, uint32_t to, bool digest)
{
	uint32_t last = to ? to - 1 : 0;

	if (i >= last + 2 * PREFETCH)
		__builtin_prefetch(&ix->table.v[radix_entry_in(ix, n, low, i - 2 * PREFETCH)], 1);
	if (digest && i >= to + PREFETCH)
		__builtin_prefetch(
			radix_table_key(&ix->table, radix_entry_in(ix, n, low, i - PREFETCH)), 1);
}

/* The entry goes, then its copies, whatever tiers they are in. */
static void copies_remove(struct radix_index *ix, uint32_t entry, uint32_t key_len,
			  enum radix_remove_reason reason)
{
	const struct radix_entry *e = &ix->table.v[entry];
	uint32_t slot = radix_entry_slot(e), host_slot = radix_entry_host(e);
	enum radix_tier t = radix_tier_of(e);

	if (radix_unlikely(ix->fingerprint) &&
	    (reason == RADIX_REMOVE_CAPACITY || reason == RADIX_REMOVE_DROPPED))
		radix_ghost_add(&ix->ghost, ix->fingerprint[entry]);
	radix_table_remove(&ix->table, entry, key_len);
	if (slot < ix->slots.n)
		radix_slots_release(&ix->slots, slot);
	if (host_slot != RADIX_NONE) {
		radix_bonus_remove(&ix->bonus, host_slot);
		radix_slots_release(&ix->host, host_slot);
	}
	ix->tier[t]--;
	ix->removed_from[t][reason]++;
}

void radix_tail_remove(struct radix_index *ix, uint32_t node, uint32_t n_blocks,
		       enum radix_remove_reason reason)
{
	struct radix_node *n = radix_node(ix, node);
	struct radix_root *root = &ix->roots[n->root];
	uint32_t root_number = n->root;
	uint32_t to = n->n_blocks - n_blocks, run, hollow = 0;
	bool digest = root->config.mode == RADIX_KEYS_DIGEST;
	const struct radix_low *low = radix_has_tiers(ix) ? radix_low(ix, node) : NULL;
	uint32_t entry = radix_entry_in(ix, n, low, n->n_blocks - 1), before;

	radix_assert(n->n_child == 0 && n_blocks > 0);
	for (uint32_t i = n->n_blocks; i-- > to; entry = before) {
		uint32_t slot = *radix_edge_ref(n, root->g, i);

		hollow += slot >> 31;
		before = radix_entry_parent(&ix->table.v[entry]);
		remove_ahead(ix, n, low, i, to, digest);
		if (before != RADIX_NONE)
			radix_table_pass_on(&ix->table, entry, before);
		radix_crash_point("remove_passed_on");
		if (digest)
			radix_map_delete(&ix->digests, radix_digest_hash(ix, entry), entry);
		if (radix_unlikely(ix->log))
			radix_log_removed(ix, entry, reason);
		if (radix_unlikely(low)) {
			copies_remove(ix, entry, root->g.key_len, reason);
			continue;
		}
		radix_table_remove(&ix->table, entry, root->g.key_len);
		if (radix_likely(!(slot & RADIX_REF_HOLLOW)))
			radix_slots_free(&ix->slots, slot);
	}
	ix->removed[reason] += n_blocks;
	ix->removed_total += n_blocks;
	root->n_blocks -= n_blocks;
	radix_win_trim(ix, node, to, hollow);
	if (to == 0) {
		if (low)
			radix_low_trim(ix, node, 0);
		node_remove(ix, node);
		radix_root_settle(ix, root_number);
		return;
	}
	radix_edge_trim(&ix->slab, n, root->g, to);
	radix_win_settle(ix, node);
	if (low)
		radix_low_trim(ix, node, to);
	else if (n->heap_pos != RADIX_NONE)
		radix_queue_update(&ix->queue, &ix->nodes, node,
				   radix_edge_tail_tick(&ix->slab, n, &run));
}
