/*
 * recover_tree.c - which entries are members again, and the tree of those.  See recover_internal.h.
 *
 *   1. From every start down: an entry is a member if its parent is one and residency leaves it a
 *      copy.  In digest mode what hangs below one that is none begins an island.
 *   2. From the ends up: a block was used when it was, or anything below it.
 *   3. Each run of members that no branching cuts becomes an edge, whole at once.
 *
 * Nothing recurses: `order` has the members as a walk down meets them.
 */
#include "radix/recover_internal.h"

enum {
	AHEAD = 12
};

/* ---- 1. who is a member ---------------------------------------------------------------------- */

/* What residency leaves of its copies, below a block with those of `parent`. */
static uint16_t copies_below(uint16_t copies, uint16_t parent)
{
	if (!(parent & RADIX_R_DEVICE))
		copies &= (uint16_t) ~(RADIX_R_DEVICE | RADIX_R_HOLLOW);
	if (!(copies & RADIX_R_DEVICE) && !(parent & (RADIX_R_DEVICE | RADIX_R_HOST)))
		copies &= (uint16_t)~RADIX_R_HOST;
	return copies & (RADIX_R_COPIES | RADIX_R_HOLLOW);
}

/* What hangs below an entry that is no member begins islands, where there are such. */
static void orphans(struct radix_recovery *rc, uint32_t entry)
{
	uint32_t last = RADIX_NONE;

	if (!radix_r_digest(rc, entry))
		return;
	for (uint32_t i = rc->first[entry]; i != RADIX_NONE; i = rc->next[i]) {
		rc->parent[i] = RADIX_NONE;
		last = i;
	}
	if (last == RADIX_NONE)
		return;
	rc->next[last] = rc->islands;
	rc->islands = rc->first[entry];
	rc->first[entry] = RADIX_NONE;
}

static bool admit(struct radix_recovery *rc, uint32_t entry)
{
	uint32_t parent = rc->parent[entry];
	uint16_t *f = &rc->flags[entry];

	if (parent != RADIX_NONE) {
		uint16_t copies = copies_below(*f, rc->flags[parent]);

		if (copies != (*f & (RADIX_R_COPIES | RADIX_R_HOLLOW)))
			*f |= RADIX_R_MEND;
		*f = (uint16_t)((*f & ~(RADIX_R_COPIES | RADIX_R_HOLLOW)) | copies);
		if (!copies) {
			*f &= (uint16_t)~RADIX_R_WHOLE;
			radix_r_lose(rc, RADIX_DAMAGE_COPY);
			radix_cells_give(&rc->ix->table.cells, rc->ix->table.v[entry].key);
			orphans(rc, entry);
			return false;
		}
		rc->flags[parent] |= rc->flags[parent] & RADIX_R_PARENT ? RADIX_R_BRANCH
									: RADIX_R_PARENT;
	}
	*f |= RADIX_R_MEMBER;
	rc->order[rc->n_order++] = entry;
	return true;
}

static void walk(struct radix_recovery *rc, uint32_t start)
{
	uint32_t at = start;

	for (;;) {
		if (admit(rc, at) && rc->first[at] != RADIX_NONE) {
			at = rc->first[at];
			continue;
		}
		while (at != start && rc->next[at] == RADIX_NONE)
			at = rc->parent[at];
		if (at == start)
			return;
		at = rc->next[at];
	}
}

static void walk_starts(struct radix_recovery *rc, uint32_t *list, uint16_t flags)
{
	while (*list != RADIX_NONE) {
		uint32_t start = *list;

		*list = rc->next[start];
		rc->flags[start] |= flags;
		walk(rc, start);
	}
}

/* ---- 2. when they were used ------------------------------------------------------------------ */

static void uses(struct radix_recovery *rc)
{
	const struct radix_entry *v = rc->ix->table.v;

	for (uint32_t k = 0; k < rc->n_order; k++) {
		const struct radix_entry *e = &v[rc->order[k]];
		uint64_t use = e->use >> 1 <= rc->max_tick ? e->use : 0;

		if (k + AHEAD < rc->n_order)
			__builtin_prefetch(&v[rc->order[k + AHEAD]].use);
		rc->use[rc->order[k]] = use;
		if (use >> 1 > rc->r.tick)
			rc->r.tick = use >> 1;
	}
	for (uint32_t k = rc->n_order; k-- > 0;) {
		uint32_t entry = rc->order[k], parent = rc->parent[entry];

		if (parent != RADIX_NONE)
			rc->use[parent] = radix_use_both(rc->use[parent], rc->use[entry]);
	}
}

void radix_r_members(struct radix_recovery *rc)
{
	walk_starts(rc, &rc->prompts, RADIX_R_START);
	walk_starts(rc, &rc->islands, RADIX_R_START | RADIX_R_ISLAND);
	uses(rc);
}

/* ---- 3. the tree ----------------------------------------------------------------------------- */

/* Behind the last of a run that begins at `from` in the order. */
static uint32_t run_end(const struct radix_recovery *rc, uint32_t from)
{
	uint32_t k = from;

	while ((rc->flags[rc->order[k]] & (RADIX_R_PARENT | RADIX_R_BRANCH)) == RADIX_R_PARENT)
		k++;
	return k + 1;
}

static uint32_t n_edges(const struct radix_recovery *rc)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < rc->n_order; k = run_end(rc, k))
		n++;
	return n;
}

/* One block at the end of its edge. */
static int block_add(struct radix_recovery *rc, uint32_t node, uint32_t entry, uint32_t i)
{
	struct radix_index *ix = rc->ix;
	const struct radix_entry *e = &ix->table.v[entry];
	const struct radix_root *root = &ix->roots[e->root];
	uint16_t f = rc->flags[entry];
	const void *key = radix_table_key(&ix->table, entry);
	uint32_t ref = f & RADIX_R_DEVICE ? radix_entry_slot(e) : entry;

	if (f & RADIX_R_HOLLOW)
		ref = entry | RADIX_REF_HOLLOW;
	if (radix_edge_append(&ix->slab, radix_node(ix, node), root->g, key, ref,
			      rc->use[entry] >> 1) < 0)
		return -ENOMEM;
	if (f & RADIX_R_HOLLOW)
		radix_win_found(ix, node);
	ix->where_node[entry] = node;
	ix->where_idx[entry] = i;
	if (radix_has_tiers(ix)) {
		struct radix_low *low = radix_low(ix, node);

		if (f & RADIX_R_DEVICE)
			low->end[RADIX_TIER_DEVICE] = i + 1;
		if (f & (RADIX_R_DEVICE | RADIX_R_HOST))
			low->end[RADIX_TIER_HOST] = i + 1;
		if (rc->use[entry] & 1)
			low->again = i + 1;
		ix->tier[f & RADIX_R_DEVICE ? RADIX_TIER_DEVICE
			 : f & RADIX_R_HOST ? RADIX_TIER_HOST
					    : RADIX_TIER_REDIS]++;
	}
	if (ix->fingerprint)
		ix->fingerprint[entry] = radix_fingerprint(ix, e->root, rc->parent[entry], key);
	return 0;
}

/* Members [from, to) of the order become an edge, which hangs where the first one does. */
static int edge_add(struct radix_recovery *rc, uint32_t from, uint32_t to)
{
	struct radix_index *ix = rc->ix;
	uint32_t start = rc->order[from], above = rc->parent[start];
	uint32_t root = ix->table.v[start].root, node = radix_nodes_take(&ix->nodes, root);

	if (node == RADIX_NONE ||
	    radix_edge_start(&ix->slab, radix_node(ix, node), ix->roots[root].g, to - from) < 0)
		return -ENOMEM;
	for (uint32_t k = from; k < to; k++) {
		if (k + AHEAD < rc->n_order) { /* its line was sent for further back */
			__builtin_prefetch(&ix->table.v[rc->order[k + AHEAD]]);
			__builtin_prefetch(&ix->table.v[rc->order[k + AHEAD]].root);
		}
		if (k + AHEAD / 2 < rc->n_order)
			__builtin_prefetch(radix_table_key(&ix->table, rc->order[k + AHEAD / 2]));
		if (block_add(rc, node, rc->order[k], k - from) < 0)
			return -ENOMEM;
	}
	ix->roots[root].n_blocks += to - from;
	if (rc->flags[start] & RADIX_R_ISLAND)
		radix_node(ix, node)->flags |= RADIX_NODE_F_ISLAND;
	radix_child_hang(ix, node, above == RADIX_NONE ? RADIX_NODE_NONE : ix->where_node[above],
			 root);
	return 0;
}

/* Every look into a large map is a miss: send for the places ahead. */
static void children_put(struct radix_index *ix)
{
	uint32_t n = ix->nodes.n_used;

	for (uint32_t i = 0; i < n; i++) {
		if (i + AHEAD < n) {
			uint64_t address = radix_node(ix, i + AHEAD)->address;

			__builtin_prefetch(
				&ix->children.slots[radix_map_home(&ix->children, address)], 1);
		}
		radix_map_put(&ix->children, radix_node(ix, i)->address, i);
		radix_leaf_queue(ix, i);
		radix_win_queue(ix, i);
	}
}

static int digests_add(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;
	uint64_t hash[AHEAD];

	if (!ix->digests.slots)
		return 0;
	if (radix_map_reserve(&ix->digests, rc->n_order) < 0)
		return -ENOMEM;
	for (uint32_t k = 0; k < rc->n_order + AHEAD; k++) {
		if (k >= AHEAD && radix_r_digest(rc, rc->order[k - AHEAD]))
			radix_map_put(&ix->digests, hash[k % AHEAD], rc->order[k - AHEAD]);
		if (k >= rc->n_order || !radix_r_digest(rc, rc->order[k]))
			continue;
		hash[k % AHEAD] = radix_digest_hash(ix, rc->order[k]);
		__builtin_prefetch(
			&ix->digests.slots[radix_map_home(&ix->digests, hash[k % AHEAD])], 1);
	}
	return 0;
}

int radix_r_tree(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;

	if (radix_map_reserve(&ix->children, n_edges(rc)) < 0)
		return -ENOMEM;
	for (uint32_t k = 0, end; k < rc->n_order; k = end) {
		end = run_end(rc, k);
		if (edge_add(rc, k, end) < 0)
			return -ENOMEM;
	}
	if (radix_low_reserve(ix) < 0)
		return -ENOMEM;
	children_put(ix);
	return digests_add(rc);
}

/* ---- bonuses --------------------------------------------------------------------------------- */

/*
 * Sorts by the use, stably, a byte at a time from the last one on; `parent` and `first` have no
 * other use any more.
 */
static uint32_t *sorted(struct radix_recovery *rc, uint32_t n)
{
	uint32_t *from = rc->parent, *to = rc->first;

	for (uint32_t shift = 1; shift < 64 && rc->r.tick >> (shift - 1); shift += 8) {
		uint32_t at[257] = { 0 }, *swap = from;

		for (uint32_t k = 0; k < n; k++)
			at[(rc->use[from[k]] >> shift & 0xff) + 1]++;
		for (uint32_t d = 0; d < 256; d++)
			at[d + 1] += at[d];
		for (uint32_t k = 0; k < n; k++)
			to[at[rc->use[from[k]] >> shift & 0xff]++] = from[k];
		from = to;
		to = swap;
	}
	return from;
}

void radix_r_bonuses(struct radix_recovery *rc)
{
	const uint16_t bonus = RADIX_R_DEVICE | RADIX_R_HOST;
	struct radix_index *ix = rc->ix;
	const uint32_t *v;
	uint32_t n = 0;

	if (!ix->host.n)
		return;
	for (uint32_t k = rc->n_order; k-- > 0;) { /* of one path the deepest goes first */
		if ((rc->flags[rc->order[k]] & bonus) == bonus)
			rc->parent[n++] = rc->order[k];
	}
	v = sorted(rc, n);
	for (uint32_t k = 0; k < n; k++)
		radix_bonus_add(&ix->bonus, radix_entry_host(&ix->table.v[v[k]]),
				rc->use[v[k]] >> 1);
}
