/*
 * members.c - members by number, those that vanish below, and those that Redis was found to hold.
 * See tiers.h.
 */
#include "radix/internal.h"
#include "radix/recover.h"

struct radix_entry *radix_member(const struct radix_index *ix, struct radix_member block)
{
	struct radix_entry *e;

	if (block.entry >= ix->table.n_used)
		return NULL;
	e = &ix->table.v[block.entry];
	return e->state == RADIX_ENTRY_READY && e->generation == block.generation ? e : NULL;
}

uint32_t radix_path_members(const struct radix_index *ix, const struct radix_place *end, uint32_t n,
			    struct radix_member *ret)
{
	uint32_t node = end->node, idx = end->idx, left = n;

	while (left && node < RADIX_NODE_ISLAND) {
		for (; idx && left; left--) {
			uint32_t entry = radix_entry_at(ix, node, --idx);

			ret[left - 1] = (struct radix_member){
				.entry = entry, .generation = ix->table.v[entry].generation
			};
		}
		node = radix_node(ix, node)->parent;
		if (node < RADIX_NODE_ISLAND)
			idx = radix_node(ix, node)->n_blocks;
	}
	if (left && left < n)
		memmove(ret, ret + left, (n - left) * sizeof(*ret));
	return n - left;
}

int radix_member_tier(const struct radix_index *ix, struct radix_member block,
		      enum radix_tier *ret_tier)
{
	const struct radix_entry *e = radix_member(ix, block);

	if (!e)
		return RADIX_E_NOTFOUND;
	*ret_tier = radix_tier_of(e);
	return 0;
}

int radix_member_root(const struct radix_index *ix, struct radix_member block, uint32_t *ret_root,
		      uint32_t *ret_n_tokens)
{
	const struct radix_entry *e = radix_member(ix, block);

	if (!e)
		return RADIX_E_NOTFOUND;
	*ret_root = e->root;
	*ret_n_tokens = e->n_tokens;
	return 0;
}

int radix_member_key(const struct radix_index *ix, struct radix_member block, const void **ret_key,
		     uint32_t *ret_key_len)
{
	const struct radix_entry *e = radix_member(ix, block);

	if (!e)
		return RADIX_E_NOTFOUND;
	*ret_key = radix_table_key(&ix->table, block.entry);
	*ret_key_len = e->key_len;
	return 0;
}

int radix_member_checksum(const struct radix_index *ix, struct radix_member block,
			  uint8_t *ret_kind, uint8_t ret_checksum[16])
{
	const struct radix_entry *e = radix_member(ix, block);

	if (!e)
		return RADIX_E_NOTFOUND;
	*ret_kind = e->checksum_kind;
	memcpy(ret_checksum, e->checksum, sizeof(e->checksum));
	return 0;
}

/* Where a member lies; RADIX_NONE without what finds it. */
static uint32_t node_of(const struct radix_index *ix, uint32_t entry)
{
	enum radix_key_mode mode = ix->roots[ix->table.v[entry].root].config.mode;

	if (!ix->where_node || (mode != RADIX_KEYS_DIGEST && !radix_has_tiers(ix) && !ix->placing))
		return RADIX_NONE;
	return ix->where_node[entry];
}

int radix_member_place(const struct radix_index *ix, struct radix_member block,
		       struct radix_place *ret_place)
{
	const struct radix_entry *e = radix_member(ix, block);
	uint32_t node = e ? node_of(ix, block.entry) : RADIX_NONE;
	struct radix_place p;

	if (node == RADIX_NONE)
		return RADIX_E_NOTFOUND;
	p = (struct radix_place){ .root = e->root,
				  .node = node,
				  .idx = ix->where_idx[block.entry] + 1 };
	p.depth = p.idx;
	while ((node = radix_node(ix, node)->parent) != RADIX_NODE_NONE)
		p.depth += radix_node(ix, node)->n_blocks;
	*ret_place = p;
	return 0;
}

void radix_recover_end(struct radix_index *ix)
{
	ix->placing = false;
	radix_cuts_free(ix);
	if (radix_has_tiers(ix) || ix->digests.slots)
		return;
	radix_give(ix->alloc, ix->where_node, ix->table.n * sizeof(uint32_t));
	radix_give(ix->alloc, ix->where_idx, ix->table.n * sizeof(uint32_t));
	ix->where_node = NULL;
	ix->where_idx = NULL;
}

uint32_t radix_sums_next(const struct radix_index *ix, uint8_t kind, uint32_t *it,
			 struct radix_sum *ret, uint32_t cap)
{
	uint32_t n = 0;

	for (; n < cap && *it < ix->table.n_used; ++*it) {
		const struct radix_entry *e = &ix->table.v[*it];

		if (e->state != RADIX_ENTRY_READY || e->checksum_kind != kind || !kind ||
		    radix_entry_slot(e) >= ix->slots.n || radix_lossy(ix, e))
			continue;
		ret[n].block = (struct radix_member){ *it, e->generation };
		ret[n].slot = radix_entry_slot(e);
		memcpy(ret[n].checksum, e->checksum, sizeof(ret[n].checksum));
		n++;
	}
	return n;
}

void radix_hit(struct radix_index *ix, const struct radix_place *at)
{
	uint32_t node = at->node, to = at->idx;

	if (!radix_has_tiers(ix))
		return;
	if (node < RADIX_NODE_ISLAND && to) /* for a restart, which finds all before it */
		ix->table.v[radix_entry_at(ix, node, to - 1)].use |= 1;
	while (node < RADIX_NODE_ISLAND) {
		struct radix_low *low = radix_low(ix, node);

		if (low->again >= to) /* and so are all before it */
			return;
		low->again = to;
		node = radix_node(ix, node)->parent;
		if (node < RADIX_NODE_ISLAND)
			to = radix_node(ix, node)->n_blocks;
	}
}

/* ---- removing a branch ----------------------------------------------------------------------- */

/* Where the pins of a branch go that begins with block idx of `node`; its depth is theirs. */
static struct radix_place last_that_stays(const struct radix_index *ix, uint32_t node, uint32_t idx)
{
	const struct radix_node *n = radix_node(ix, node);
	struct radix_place p = { .root = n->root, .node = node, .idx = idx };

	if (idx)
		return p;
	if (n->flags & RADIX_NODE_F_ISLAND)
		return radix_place_island(n->root);
	p.node = n->parent;
	if (p.node != RADIX_NODE_NONE)
		p.idx = radix_node(ix, p.node)->n_blocks;
	return p;
}

/* Pins behind the first `keep` blocks of the edge go to `to`; `above` blocks lie between. */
static void lift_pins(struct radix_index *ix, uint32_t node, uint32_t keep, uint32_t above,
		      struct radix_place to)
{
	struct radix_list *it, *next;

	radix_list_foreach_safe(it, next, &radix_node(ix, node)->pins) {
		struct radix_pin *pin = radix_list_entry(it, struct radix_pin, link);

		if (pin->at.idx <= keep)
			continue;
		to.depth = pin->at.depth - above - (pin->at.idx - keep);
		radix_pin_move(ix, pin, &to);
	}
}

uint32_t radix_branch_remove(struct radix_index *ix, uint32_t node, uint32_t idx,
			     enum radix_remove_reason reason)
{
	struct radix_place to = last_that_stays(ix, node, idx);
	uint32_t at = node, above = 0, removed = 0;
	bool no_merge = ix->no_merge;

	ix->no_merge = true;
	for (;;) { /* down to a leaf, take it, and again from where it hung */
		const struct radix_node *n = radix_node(ix, at);
		uint32_t gone = at;

		if (n->first_child != RADIX_NONE) {
			above += at == node ? n->n_blocks - idx : n->n_blocks;
			at = n->first_child;
			continue;
		}
		lift_pins(ix, at, at == node ? idx : 0, above, to);
		if (at == node)
			break;
		at = n->parent;
		above -= at == node ? radix_node(ix, at)->n_blocks - idx
				    : radix_node(ix, at)->n_blocks;
		removed += n->n_blocks;
		radix_tail_remove(ix, gone, n->n_blocks, reason);
	}
	removed += radix_node(ix, node)->n_blocks - idx;
	radix_tail_remove(ix, node, radix_node(ix, node)->n_blocks - idx, reason);
	ix->no_merge = no_merge;
	if (!idx && radix_place_is_edge(&to))
		radix_merge(ix, to.node);
	return removed;
}

/* ---- what is lost, what is found ------------------------------------------------------------- */

/* A place among the Redis-only members; the coldest of them goes when there is none. */
static bool budget_for_one(struct radix_index *ix)
{
	return ix->tier[RADIX_TIER_REDIS] + ix->n_hollow < ix->redis_budget || radix_low_forget(ix);
}

/* A host block whose copy is no good, but Redis has one: may it be a Redis-only member now? */
static bool may_sink(struct radix_index *ix, uint32_t entry)
{
	const struct radix_low *low = radix_low(ix, ix->where_node[entry]);
	const struct radix_node *n = radix_node(ix, ix->where_node[entry]);
	uint32_t i = ix->where_idx[entry];

	if (!radix_entry_redis(&ix->table.v[entry]) || low->end[RADIX_TIER_HOST] != i + 1 ||
	    (i + 1 == n->n_blocks && low->kids[RADIX_TIER_HOST]))
		return false;
	return budget_for_one(ix);
}

static void lose_host(struct radix_index *ix, struct radix_entry *e)
{
	uint32_t slot = radix_entry_host(e);

	radix_table_host_clear(&ix->table, (uint32_t)(e - ix->table.v));
	radix_bonus_remove(&ix->bonus, slot);
	radix_slots_release(&ix->host, slot);
}

/* Block of the edge that has this entry; RADIX_NONE. */
static uint32_t index_in(const struct radix_index *ix, uint32_t node, uint32_t entry)
{
	for (uint32_t i = 0; i < radix_node(ix, node)->n_blocks; i++) {
		if (radix_entry_at(ix, node, i) == entry)
			return i;
	}
	return RADIX_NONE;
}

/* A pin stands behind block i of the edge, or on what hangs below it. */
static bool is_held(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	uint32_t at = radix_node(ix, node)->first_child;

	if (radix_pinned_to(radix_node(ix, node)) > i)
		return true;
	while (at != RADIX_NONE) {
		const struct radix_node *n = radix_node(ix, at);

		if (!radix_list_empty(&n->pins))
			return true;
		if (n->first_child != RADIX_NONE) {
			at = n->first_child;
			continue;
		}
		while (at != node && radix_node(ix, at)->next_sib == RADIX_NONE)
			at = radix_node(ix, at)->parent;
		at = at == node ? RADIX_NONE : radix_node(ix, at)->next_sib;
	}
	return false;
}

/*
 * Without lower tiers.  Where nothing finds the block by number it is looked for in all edges of
 * its root: that a device's memory is wrong is rare.
 */
static uint32_t lose_device(struct radix_index *ix, uint32_t entry, enum radix_remove_reason reason)
{
	uint32_t node = node_of(ix, entry), i = RADIX_NONE;

	if (node != RADIX_NONE)
		i = ix->where_idx[entry];
	for (uint32_t k = 0; node == RADIX_NONE && k < ix->nodes.n_used; k++) {
		const struct radix_node *n = radix_node(ix, k);

		if (!(n->flags & RADIX_NODE_F_LIVE) || n->root != ix->table.v[entry].root)
			continue;
		i = index_in(ix, k, entry);
		if (i != RADIX_NONE)
			node = k;
	}
	radix_assert(node != RADIX_NONE);
	return is_held(ix, node, i) ? 0 : radix_branch_remove(ix, node, i, reason);
}

uint32_t radix_lose(struct radix_index *ix, struct radix_member block, enum radix_tier tier,
		    enum radix_remove_reason reason)
{
	struct radix_entry *e = radix_member(ix, block);
	uint32_t node, i;

	if (!e)
		return 0;
	if (!radix_has_tiers(ix))
		return tier == RADIX_TIER_DEVICE ? lose_device(ix, block.entry, reason) : 0;
	node = ix->where_node[block.entry];
	i = ix->where_idx[block.entry];
	if (tier == RADIX_TIER_DEVICE) {
		if (radix_entry_slot(e) >= ix->slots.n || radix_low_protected(ix, node) > i)
			return 0;
		radix_low_recall(ix, node, i);
		return radix_branch_remove(ix, node, i, reason);
	}
	if (tier == RADIX_TIER_HOST ? radix_entry_host(e) == RADIX_NONE : !radix_entry_redis(e))
		return 0;
	radix_low_recall(ix, node, i); /* it may be dirty now */
	if (tier == RADIX_TIER_HOST) { /* and what was read from there is no better */
		e->moving = 0;
		e->turn++;
	}
	if (radix_entry_slot(e) != RADIX_NONE) {
		if (tier == RADIX_TIER_HOST)
			lose_host(ix, e);
		else
			radix_table_redis_set(&ix->table, block.entry, false);
		return 0;
	}
	if (tier == RADIX_TIER_REDIS && radix_entry_host(e) != RADIX_NONE) {
		radix_table_redis_set(&ix->table, block.entry, false);
		return 0;
	}
	if (tier == RADIX_TIER_HOST && may_sink(ix, block.entry)) {
		radix_low_pop(ix, ix->where_node[block.entry], RADIX_TIER_HOST);
		return 0;
	}
	return radix_branch_remove(ix, ix->where_node[block.entry], ix->where_idx[block.entry],
				   reason);
}

uint32_t radix_add_lower(struct radix_index *ix, struct radix_pin *pin, const void *keys,
			 uint32_t n_keys, uint64_t tick, struct radix_member *ret)
{
	const struct radix_root *root = &ix->roots[pin->at.root];
	bool digest = root->config.mode == RADIX_KEYS_DIGEST;
	struct radix_pin end = { 0 }; /* holds what was added, while room is made for more */
	uint32_t n = 0, entry;

	if (!ix->redis || (radix_place_is_edge(&pin->at) && !pin->at.idx))
		return 0;
	radix_pin_take(ix, &end, &pin->at);
	for (; n < n_keys; n++) {
		struct radix_entry_init init = { .slot = RADIX_NONE, .tick = tick };
		struct radix_block block = {
			.key = (const uint8_t *)keys + (size_t)n * root->g.key_len,
			.n_tokens = root->config.block_tokens,
		};
		struct radix_match m;

		radix_match(ix, &end.at, block.key, 1, NULL, &m);
		if (m.n_blocks || !budget_for_one(ix))
			break;
		if (digest && (radix_digest_entry(ix, pin->at.root, block.key) != RADIX_NONE ||
			       radix_map_grow(&ix->digests) < 0))
			break;
		if (radix_append(ix, &end, &init, &block, &entry) < 0)
			break;
		ix->found_total++;
		ret[n] = (struct radix_member){ entry, ix->table.v[entry].generation };
	}
	radix_pin_drop(ix, &end);
	return n;
}

struct radix_member radix_next_member(const struct radix_index *ix)
{
	const struct radix_table *t = &ix->table;

	if (t->first_free != RADIX_NONE)
		return (struct radix_member){ t->first_free, t->v[t->first_free].generation + 1 };
	return (struct radix_member){ t->n_used < t->n ? t->n_used : RADIX_NONE, 1 };
}

uint32_t radix_slot_owner(const struct radix_index *ix, uint32_t slot)
{
	return ix->slots.owner[slot];
}
