/*
 * verify.c - the README's invariants, by their numbers.  Reads everything, changes nothing.
 */
#include "radix/verify.h"

int radix_verify_fail(struct radix_verify *v, int number, const char *what, uint64_t a,
		      const char *what_b, uint64_t b)
{
	v->why.n = 0;
	radix_text(&v->why, what);
	radix_text(&v->why, " ");
	radix_text_u64(&v->why, a);
	if (what_b) {
		radix_text(&v->why, ", ");
		radix_text(&v->why, what_b);
		radix_text(&v->why, " ");
		radix_text_u64(&v->why, b);
	}
	return number;
}

/* 1 to 3, 19: every slot is in one state, the counts add up, free slots are found, none is read. */
int radix_verify_slots(struct radix_verify *v, const struct radix_slots *s)
{
	uint64_t count[RADIX_SLOT_N_STATES] = { 0 };

	for (uint32_t i = 0; i < s->n; i++) {
		bool free_bit = s->bits[0][i / 64] >> (i % 64) & 1;
		bool member = s->state[i] == RADIX_SLOT_READY || s->state[i] == RADIX_SLOT_LEAVING;

		if (s->state[i] >= RADIX_SLOT_N_STATES)
			return radix_verify_fail(v, 1, "unknown state of slot", i, NULL, 0);
		count[s->state[i]]++;
		if (free_bit != (s->state[i] == RADIX_SLOT_FREE))
			return radix_verify_fail(v, 2, "free bit and state disagree for slot", i,
						 NULL, 0);
		if (member != (s->entry[i] != RADIX_NONE))
			return radix_verify_fail(v, 3, "entry and state disagree for slot", i,
						 "state", s->state[i]);
		if (s->generation[i] > s->reuse)
			return radix_verify_fail(v, 3, "generation beyond the reuse counter, slot",
						 i, NULL, 0);
		if (s->reads && s->reads[i] && !member && s->state[i] != RADIX_SLOT_QUARANTINED)
			return radix_verify_fail(v, 19, "a move reads slot", i, "state",
						 s->state[i]);
	}
	for (uint32_t l = 1; l < 3; l++) {
		for (uint32_t w = 0; w < s->words[l - 1]; w++) {
			if ((s->bits[l][w / 64] >> (w % 64) & 1) != (s->bits[l - 1][w] != 0))
				return radix_verify_fail(v, 2, "summary bit is wrong, level", l,
							 "word", w);
		}
	}
	for (uint32_t i = 0; i < RADIX_SLOT_N_STATES; i++) {
		if (count[i] != s->count[i])
			return radix_verify_fail(v, 1, "slots counted", count[i], "but booked",
						 s->count[i]);
	}
	return 0;
}

/* 4 to 6: one block of an edge, its slot and its table entry say the same. */
static int verify_block(struct radix_verify *v, uint32_t node, uint32_t i, uint32_t before)
{
	const struct radix_index *ix = v->ix;
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_root *root = &ix->roots[n->root];
	uint32_t ref = *radix_edge_ref(n, root->g, i), slot = radix_device_slot(ix, node, i);
	const struct radix_entry *e;
	uint32_t entry = ref;
	int bad;

	if (slot == RADIX_HOLLOW)
		entry = ref & ~RADIX_REF_HOLLOW;
	else if (slot != RADIX_NONE)
		entry = slot < ix->slots.n ? ix->slots.entry[slot] : RADIX_NONE;
	if (entry >= ix->table.n)
		return radix_verify_fail(v, 4, "block without entry, edge", node, "block", i);
	e = &ix->table.v[entry];
	if (e->state != RADIX_ENTRY_READY || radix_entry_slot(e) != slot || e->root != n->root)
		return radix_verify_fail(v, 4, "entry does not point back, entry", entry, "slot",
					 slot);
	if (e->check != radix_table_check(&ix->table, entry))
		return radix_verify_fail(v, 5, "check is wrong, entry", entry, "slot", slot);
	if (memcmp(radix_table_key(&ix->table, entry), radix_edge_key(n, root->g, i),
		   root->g.key_len) != 0)
		return radix_verify_fail(v, 5, "keys of table and tree differ, entry", entry,
					 "edge", node);
	if (e->parent !=
	    radix_table_parent(&ix->table, entry, before, n->flags & RADIX_NODE_F_ISLAND))
		return radix_verify_fail(v, 6, "parent is wrong, entry", entry, "should be",
					 before);
	if (root->config.mode == RADIX_KEYS_DIGEST &&
	    (ix->where_node[entry] != node || ix->where_idx[entry] != i ||
	     radix_digest_entry(ix, n->root, radix_table_key(&ix->table, entry)) != entry))
		return radix_verify_fail(v, 7, "digest is not found where it lies, entry", entry,
					 "edge", node);
	v->blocks++;
	bad = radix_verify_cell(v, entry);
	if (!bad && radix_has_tiers(ix))
		bad = radix_verify_copies(v, node, i, entry);
	return bad ? bad : radix_verify_words(v, entry);
}

/* 9: steps cover the edge, in order, without two neighbours alike. */
static int verify_steps(struct radix_verify *v, uint32_t node)
{
	const struct radix_node *n = radix_node(v->ix, node);
	uint32_t run, covered;

	if (!n->n_blocks || !n->n_steps || n->n_steps > n->n_blocks)
		return radix_verify_fail(v, 9, "empty edge or steps, edge", node, "steps",
					 n->n_steps);
	(void)radix_edge_tail_tick(&v->ix->slab, n, &run);
	covered = n->n_steps == 1 ? run : n->n_blocks;
	if (run == 0 || covered != n->n_blocks)
		return radix_verify_fail(v, 9, "steps do not cover edge", node, "run", run);
	return 0;
}

/* 22: what a match takes as one run is one. */
static int verify_runs(struct radix_verify *v, uint32_t node)
{
	const struct radix_node *n = radix_node(v->ix, node);

	for (uint32_t s = 0; s < n->n_segs; s++) {
		const struct radix_seg *seg = n->segs[s];

		if (seg->run > seg->cap)
			return radix_verify_fail(v, 22, "run beyond the segment, edge", node,
						 "segment", s);
		for (uint32_t i = 1; i < seg->run; i++) {
			if (seg->refs[i] != seg->refs[0] + i)
				return radix_verify_fail(v, 22, "a run that is none, edge", node,
							 "segment", s);
		}
	}
	return 0;
}

/* 12: in the queue of each tier of which it is a leaf. */
static int verify_queued(struct radix_verify *v, uint32_t node)
{
	struct radix_index *ix = (struct radix_index *)(uintptr_t)v->ix; /* only read */
	const struct radix_node *n = radix_node(ix, node);
	uint32_t run;

	for (enum radix_tier t = 0; t < (ix->nodes.tiers ? RADIX_N_TIERS : 1); t++) {
		const struct radix_queue *q = radix_queue_of(ix, t);
		const struct radix_low *low = radix_has_tiers(ix) ? radix_low(ix, node) : NULL;
		uint32_t at = radix_queue_pos(q, &ix->nodes, node);
		uint32_t stop = low ? radix_low_stop(n, low, t) : n->n_blocks;
		bool leaf = low ? radix_low_has_victim(ix, node, t) : !n->n_child;
		uint32_t held = low ? radix_low_protected(ix, node) : radix_pinned_to(n);
		uint64_t tick;

		if (at == RADIX_NONE && (!leaf || held >= stop))
			continue;
		if (at == RADIX_NONE)
			return radix_verify_fail(v, 12, "an evictable leaf is not queued, edge",
						 node, "tier", t);
		tick = stop == n->n_blocks ? radix_edge_tail_tick(&ix->slab, n, &run)
					   : radix_edge_tick_at(&ix->slab, n, stop - 1);
		if (!leaf || at >= q->n || q->v[at].node != node || q->v[at].tick > tick)
			return radix_verify_fail(v, 12, "queued wrongly, edge", node, "tier", t);
		v->queued[t]++;
	}
	return 0;
}

/* 11: the pins on an edge. */
static int verify_pins(struct radix_verify *v, uint32_t node)
{
	const struct radix_node *n = radix_node(v->ix, node);
	const struct radix_list *it;

	radix_list_foreach(it, &n->pins) {
		const struct radix_pin *pin = (const struct radix_pin *)(const void *)it;

		if (pin->at.node != node || pin->at.idx > n->n_blocks || pin->at.root != n->root)
			return radix_verify_fail(v, 11, "pin is on the wrong edge", node, "at",
						 pin->at.idx);
		v->edge_pins++;
	}
	return 0;
}

/* 8, 10: how an edge hangs; and all that is to be said of it. */
static int verify_edge(struct radix_verify *v, uint32_t node, uint32_t parent, uint32_t root)
{
	const struct radix_index *ix = v->ix;
	struct radix_node *n = radix_node(ix, node);
	const struct radix_root *r = &ix->roots[root];
	uint64_t chain = r->chain;
	uint32_t before = RADIX_NONE;
	int bad;

	if (!(n->flags & RADIX_NODE_F_LIVE) || n->parent != parent || n->root != root)
		return radix_verify_fail(v, 8, "edge hangs wrongly", node, "below", parent);
	bad = verify_steps(v, node);
	if (!bad && radix_has_tiers(ix))
		bad = radix_verify_ends(v, node);
	if (bad)
		return bad;
	if (parent != RADIX_NODE_NONE) {
		before = radix_entry_at(ix, parent, radix_node(ix, parent)->n_blocks - 1);
		chain = radix_end_chain(ix, radix_node(ix, parent));
	}
	if (n->address !=
	    radix_chain_next(r, chain, radix_local(ix, r, radix_edge_key(n, r->g, 0))))
		return radix_verify_fail(v, 10, "address is wrong, edge", node, NULL, 0);
	for (uint32_t i = 0; i < n->n_blocks; i++) {
		bad = verify_block(v, node, i, before);
		if (bad)
			return bad;
		before = radix_entry_at(ix, node, i);
	}
	v->edges++;
	bad = verify_runs(v, node);
	if (!bad)
		bad = radix_verify_window(v, node);
	if (!bad)
		bad = verify_pins(v, node);
	if (!bad && radix_has_tiers(ix))
		bad = radix_verify_kids(v, node);
	if (!bad)
		bad = verify_queued(v, node);
	return bad;
}

static int verify_list(struct radix_verify *v, uint32_t root, uint32_t first, uint32_t n_top,
		       bool island)
{
	const struct radix_index *ix = v->ix;
	uint32_t node = first, parent = RADIX_NODE_NONE, count = 0, top = 0;

	while (node != RADIX_NONE) {
		const struct radix_node *n = radix_node(ix, node);
		int bad;

		if (parent == RADIX_NODE_NONE) {
			top++;
			if (!(n->flags & RADIX_NODE_F_ISLAND) != !island)
				return radix_verify_fail(v, 8, "island flag is wrong, edge", node,
							 NULL, 0);
		}
		bad = verify_edge(v, node, parent, root);
		if (bad)
			return bad;
		count = 0;
		for (uint32_t c = n->first_child; c != RADIX_NONE; c = radix_node(ix, c)->next_sib)
			count++;
		if (count != n->n_child)
			return radix_verify_fail(v, 8, "children counted", count, "but booked",
						 n->n_child);
		if (n->first_child != RADIX_NONE) {
			parent = node;
			node = n->first_child;
			continue;
		}
		while (n->next_sib == RADIX_NONE && n->parent != RADIX_NODE_NONE)
			n = radix_node(ix, n->parent);
		node = n->next_sib;
		parent = n->parent;
	}
	if (top != n_top)
		return radix_verify_fail(v, 8, "first edges counted", top, "but booked", n_top);
	return 0;
}

static int verify_totals(struct radix_verify *v)
{
	const struct radix_index *ix = v->ix;
	uint64_t members = ix->slots.count[RADIX_SLOT_READY] + ix->slots.count[RADIX_SLOT_LEAVING];
	uint64_t removed = 0;

	members += ix->n_hollow;
	if (radix_has_tiers(ix))
		members += ix->tier[RADIX_TIER_HOST] + ix->tier[RADIX_TIER_REDIS];
	if (v->blocks != members || v->blocks != ix->table.n_ready)
		return radix_verify_fail(v, 13, "blocks in the tree", v->blocks, "members",
					 members);
	if (v->edges != ix->nodes.n_live || v->edges != ix->children.n)
		return radix_verify_fail(v, 13, "edges reached", v->edges, "alive",
					 ix->nodes.n_live);
	for (enum radix_tier t = 0; t < RADIX_N_TIERS; t++) {
		uint32_t n = t == RADIX_TIER_DEVICE ? ix->queue.n : ix->lower[t - 1].n;

		if (v->queued[t] != n)
			return radix_verify_fail(v, 12, "edges queued", v->queued[t], "queue holds",
						 n);
	}
	for (uint32_t i = 0; i < RADIX_REMOVE_N_REASONS; i++)
		removed += ix->removed[i];
	if (removed != ix->removed_total ||
	    ix->restored_total + ix->stored_total + ix->found_total - removed != v->blocks)
		return radix_verify_fail(v, 14, "removals by reason", removed, "in all",
					 ix->removed_total);
	if (v->edge_pins > ix->n_pins)
		return radix_verify_fail(v, 11, "pins on edges", v->edge_pins, "taken", ix->n_pins);
	return 0;
}

int radix_verify(const struct radix_index *ix, char *why, size_t why_len)
{
	struct radix_verify v = { .ix = ix, .why = { .p = why, .cap = why_len } };
	int bad;

	if (why_len)
		why[0] = 0;
	bad = radix_verify_slots(&v, &ix->slots);
	if (!bad && ix->host.n)
		bad = radix_verify_host_slots(&v);
	for (uint32_t i = 0; !bad && i < ix->n_roots; i++) {
		const struct radix_root *r = &ix->roots[i];
		uint64_t before = v.blocks;

		if (!r->live)
			continue;
		bad = verify_list(&v, i, r->first_child, r->n_child, false);
		if (!bad)
			bad = verify_list(&v, i, r->first_island, r->n_islands, true);
		if (!bad && v.blocks - before != r->n_blocks)
			bad = radix_verify_fail(&v, 13, "blocks of the root", v.blocks - before,
						"booked", r->n_blocks);
	}
	if (!bad)
		bad = verify_totals(&v);
	if (!bad && radix_has_tiers(ix))
		bad = radix_verify_tier_totals(&v);
	if (!bad)
		bad = radix_verify_windows(&v);
	return bad ? bad : radix_verify_kept(&v);
}
