/*
 * verify.c - the README's invariants, by their numbers.  Reads everything, changes nothing.
 */
#include "radix/internal.h"
#include "radix/text.h"

struct verify {
	const struct radix_index *ix;
	struct radix_text why;
	uint64_t blocks; /* found in edges */
	uint64_t edges;
	uint64_t queued;
	uint64_t edge_pins;
	uint64_t islands;
};

static int fail(struct verify *v, int number, const char *what, uint64_t a, const char *what_b,
		uint64_t b)
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

/* 1 to 3: every slot is in one state, the counts add up, free slots are found. */
static int verify_slots(struct verify *v)
{
	const struct radix_slots *s = &v->ix->slots;
	uint64_t count[RADIX_SLOT_N_STATES] = { 0 };

	for (uint32_t i = 0; i < s->n; i++) {
		bool free_bit = s->bits[0][i / 64] >> (i % 64) & 1;
		bool member = s->state[i] == RADIX_SLOT_READY || s->state[i] == RADIX_SLOT_LEAVING;

		if (s->state[i] >= RADIX_SLOT_N_STATES)
			return fail(v, 1, "unknown state of slot", i, NULL, 0);
		count[s->state[i]]++;
		if (free_bit != (s->state[i] == RADIX_SLOT_FREE))
			return fail(v, 2, "free bit and state disagree for slot", i, NULL, 0);
		if (member != (s->entry[i] != RADIX_NONE))
			return fail(v, 3, "entry and state disagree for slot", i, "state",
				    s->state[i]);
		if (s->generation[i] > s->reuse)
			return fail(v, 3, "generation beyond the reuse counter, slot", i, NULL, 0);
	}
	for (uint32_t l = 1; l < 3; l++) {
		for (uint32_t w = 0; w < s->words[l - 1]; w++) {
			if ((s->bits[l][w / 64] >> (w % 64) & 1) != (s->bits[l - 1][w] != 0))
				return fail(v, 2, "summary bit is wrong, level", l, "word", w);
		}
	}
	for (uint32_t i = 0; i < RADIX_SLOT_N_STATES; i++) {
		if (count[i] != s->count[i])
			return fail(v, 1, "slots counted", count[i], "but booked", s->count[i]);
	}
	return 0;
}

/* 4 to 6: one block of an edge, its slot and its table entry say the same. */
static int verify_block(struct verify *v, uint32_t node, uint32_t i, uint32_t before)
{
	const struct radix_index *ix = v->ix;
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_root *root = &ix->roots[n->root];
	uint32_t slot = *radix_edge_ref(n, root->g, i);
	const struct radix_entry *e;
	uint32_t entry;

	if (slot >= ix->slots.n || ix->slots.entry[slot] == RADIX_NONE)
		return fail(v, 4, "block without entry, edge", node, "block", i);
	entry = ix->slots.entry[slot];
	e = &ix->table.v[entry];
	if (e->state != RADIX_ENTRY_READY || e->slot != slot || e->root != n->root)
		return fail(v, 4, "entry does not point back, entry", entry, "slot", slot);
	if (e->check != radix_table_check(&ix->table, entry))
		return fail(v, 5, "check is wrong, entry", entry, "slot", slot);
	if (memcmp(radix_table_key(&ix->table, entry), radix_edge_key(n, root->g, i),
		   root->g.key_len) != 0)
		return fail(v, 5, "keys of table and tree differ, entry", entry, "edge", node);
	if (e->parent >> 32 != before ||
	    (before != RADIX_NONE &&
	     (uint32_t)e->parent != (uint32_t)ix->table.v[before].generation))
		return fail(v, 6, "parent is wrong, entry", entry, "should be", before);
	if (root->config.mode == RADIX_KEYS_DIGEST &&
	    (ix->where_node[entry] != node || ix->where_idx[entry] != i ||
	     radix_digest_entry(ix, n->root, radix_table_key(&ix->table, entry)) != entry))
		return fail(v, 7, "digest is not found where it lies, entry", entry, "edge", node);
	v->blocks++;
	return 0;
}

/* 9: steps cover the edge, in order, without two neighbours alike. */
static int verify_steps(struct verify *v, uint32_t node)
{
	const struct radix_node *n = radix_node(v->ix, node);
	uint32_t run, covered;

	if (!n->n_blocks || !n->n_steps || n->n_steps > n->n_blocks)
		return fail(v, 9, "empty edge or steps, edge", node, "steps", n->n_steps);
	(void)radix_edge_tail_tick(&v->ix->slab, n, &run);
	covered = n->n_steps == 1 ? run : n->n_blocks;
	if (run == 0 || covered != n->n_blocks)
		return fail(v, 9, "steps do not cover edge", node, "run", run);
	return 0;
}

/* 8, 10, 11: how an edge hangs. */
static int verify_edge(struct verify *v, uint32_t node, uint32_t parent, uint32_t root)
{
	const struct radix_index *ix = v->ix;
	struct radix_node *n = radix_node(ix, node);
	const struct radix_root *r = &ix->roots[root];
	const struct radix_list *it;
	uint64_t chain = r->chain;
	uint32_t before = RADIX_NONE, tail_tick_run;
	int bad;

	if (!(n->flags & RADIX_NODE_F_LIVE) || n->parent != parent || n->root != root)
		return fail(v, 8, "edge hangs wrongly", node, "below", parent);
	bad = verify_steps(v, node);
	if (bad)
		return bad;
	if (parent != RADIX_NODE_NONE) {
		const struct radix_node *p = radix_node(ix, parent);

		before = radix_entry_at(ix, p, p->n_blocks - 1);
		chain = radix_end_chain(ix, radix_node(ix, parent));
	}
	if (n->address !=
	    radix_chain_next(r, chain, radix_local(ix, r, radix_edge_key(n, r->g, 0))))
		return fail(v, 10, "address is wrong, edge", node, NULL, 0);
	for (uint32_t i = 0; i < n->n_blocks; i++) {
		bad = verify_block(v, node, i, before);
		if (bad)
			return bad;
		before = radix_entry_at(ix, n, i);
	}
	radix_list_foreach(it, &n->pins) {
		const struct radix_pin *pin = (const struct radix_pin *)(const void *)it;

		if (pin->at.node != node || pin->at.idx > n->n_blocks || pin->at.root != root)
			return fail(v, 11, "pin is on the wrong edge", node, "at", pin->at.idx);
		v->edge_pins++;
	}
	if (n->heap_pos != RADIX_NONE) {
		if (n->n_child || n->heap_pos >= ix->queue.n ||
		    ix->queue.v[n->heap_pos].node != node ||
		    ix->queue.v[n->heap_pos].tick >
			    radix_edge_tail_tick(&ix->slab, n, &tail_tick_run))
			return fail(v, 12, "queued wrongly, edge", node, "at", n->heap_pos);
		v->queued++;
	} else if (!n->n_child && radix_pinned_to(n) < n->n_blocks) {
		return fail(v, 12, "an evictable leaf is not queued, edge", node, NULL, 0);
	}
	v->edges++;
	return 0;
}

static int verify_list(struct verify *v, uint32_t root, uint32_t first, uint32_t n_top, bool island)
{
	const struct radix_index *ix = v->ix;
	uint32_t node = first, parent = RADIX_NODE_NONE, count = 0, top = 0;

	while (node != RADIX_NONE) {
		const struct radix_node *n = radix_node(ix, node);
		int bad = verify_edge(v, node, parent, root);

		if (bad)
			return bad;
		if (parent == RADIX_NODE_NONE) {
			top++;
			if (!(n->flags & RADIX_NODE_F_ISLAND) != !island)
				return fail(v, 8, "island flag is wrong, edge", node, NULL, 0);
		}
		count = 0;
		for (uint32_t c = n->first_child; c != RADIX_NONE; c = radix_node(ix, c)->next_sib)
			count++;
		if (count != n->n_child)
			return fail(v, 8, "children counted", count, "but booked", n->n_child);
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
		return fail(v, 8, "first edges counted", top, "but booked", n_top);
	return 0;
}

static int verify_totals(struct verify *v)
{
	const struct radix_index *ix = v->ix;
	uint64_t members = ix->slots.count[RADIX_SLOT_READY] + ix->slots.count[RADIX_SLOT_LEAVING];
	uint64_t removed = 0;

	if (v->blocks != members || v->blocks != ix->table.n_ready)
		return fail(v, 13, "blocks in the tree", v->blocks, "members", members);
	if (v->edges != ix->nodes.n_live || v->edges != ix->children.n)
		return fail(v, 13, "edges reached", v->edges, "alive", ix->nodes.n_live);
	if (v->queued != ix->queue.n)
		return fail(v, 12, "edges queued", v->queued, "queue holds", ix->queue.n);
	for (uint32_t i = 0; i < RADIX_REMOVE_N_REASONS; i++)
		removed += ix->removed[i];
	if (removed != ix->removed_total || ix->stored_total - removed != v->blocks)
		return fail(v, 14, "removals by reason", removed, "in all", ix->removed_total);
	if (v->edge_pins > ix->n_pins)
		return fail(v, 11, "pins on edges", v->edge_pins, "taken", ix->n_pins);
	return 0;
}

int radix_verify(const struct radix_index *ix, char *why, size_t why_len)
{
	struct verify v = { .ix = ix, .why = { .p = why, .cap = why_len } };
	int bad;

	if (why_len)
		why[0] = 0;
	bad = verify_slots(&v);
	for (uint32_t i = 0; !bad && i < ix->n_roots; i++) {
		const struct radix_root *r = &ix->roots[i];
		uint64_t before = v.blocks;

		if (!r->live)
			continue;
		bad = verify_list(&v, i, r->first_child, r->n_child, false);
		if (!bad)
			bad = verify_list(&v, i, r->first_island, r->n_islands, true);
		if (!bad && v.blocks - before != r->n_blocks)
			bad = fail(&v, 13, "blocks of the root", v.blocks - before, "booked",
				   r->n_blocks);
	}
	return bad ? bad : verify_totals(&v);
}
