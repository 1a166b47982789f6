/*
 * commit.c - a filled slot becomes a member.
 *
 *   1. Is the block there already, below the pin?  Then ours is a duplicate: it stays the owner's
 *      until given back, the pin goes on over the canonical one.  Or it becomes the device copy of
 *      a member that had none.
 *   2. Digest mode: is the digest a member elsewhere?  An island that begins with it is hung here
 *      (a digest names its whole prefix, and the writer has just said what that is); anything else
 *      is a contradiction and is refused.
 *   3. Make sure of everything that can fail: the cut, the edge, the table's entry.
 *   4. The entry is whole before its slot is READY, the slot is READY before anyone hears of it.
 */
#include "radix/internal.h"

uint64_t radix_digest_hash_key(const struct radix_index *ix, uint32_t root, const void *digest)
{
	const struct radix_root *r = &ix->roots[root];

	return radix_fold(r->chain, radix_hash(digest, r->g.key_len, ix->secret[1]));
}

uint64_t radix_digest_hash(const struct radix_index *ix, uint32_t entry)
{
	return radix_digest_hash_key(ix, ix->table.v[entry].root,
				     radix_table_key(&ix->table, entry));
}

uint32_t radix_digest_entry(const struct radix_index *ix, uint32_t root, const void *digest)
{
	uint64_t hash = radix_digest_hash_key(ix, root, digest);
	uint64_t cursor = radix_map_home(&ix->digests, hash);
	uint32_t entry;

	while (radix_map_next(&ix->digests, hash, &cursor, &entry)) {
		const struct radix_entry *e = &ix->table.v[entry];

		if (e->root == root && memcmp(radix_table_key(&ix->table, entry), digest,
					      ix->roots[root].g.key_len) == 0)
			return entry;
		((struct radix_index *)(uintptr_t)ix)->digests.mismatch++;
	}
	return RADIX_NONE;
}

int radix_find_digest(const struct radix_index *ix, uint32_t root, const void *digest,
		      struct radix_place *ret_before, bool *ret_rooted)
{
	const struct radix_node *n;
	struct radix_place p = { .root = root };
	uint32_t entry, top;

	if (ix->roots[root].config.mode != RADIX_KEYS_DIGEST)
		return RADIX_E_NOTFOUND;
	entry = radix_digest_entry(ix, root, digest);
	if (entry == RADIX_NONE)
		return RADIX_E_NOTFOUND;
	p.node = ix->where_node[entry];
	p.idx = ix->where_idx[entry];
	p.depth = p.idx;
	n = radix_node(ix, p.node);
	if (p.idx == 0 && !(n->flags & RADIX_NODE_F_ISLAND)) {
		p.node = n->parent;
		if (p.node != RADIX_NODE_NONE)
			p.idx = radix_node(ix, p.node)->n_blocks;
	}
	for (top = ix->where_node[entry]; radix_node(ix, top)->parent != RADIX_NODE_NONE;) {
		top = radix_node(ix, top)->parent;
		p.depth += radix_node(ix, top)->n_blocks;
	}
	*ret_rooted = !(radix_node(ix, top)->flags & RADIX_NODE_F_ISLAND);
	*ret_before = p;
	return 0;
}

/* Step 1.  Place of the block behind `at` that has this key. */
static bool find_next(const struct radix_index *ix, const struct radix_place *at, const void *key,
		      struct radix_place *ret_place)
{
	struct radix_match m;

	if (radix_place_is_edge(at)) {
		const struct radix_node *n = radix_node(ix, at->node);

		if (at->idx == n->n_blocks && !n->n_child)
			return false; /* the common case: a prompt that goes on at a leaf's end */
	}
	radix_match(ix, at, key, 1, NULL, &m);
	if (!m.n_blocks)
		return false;
	*ret_place = m.end;
	return true;
}

/*
 * A member of a lower tier was computed again.  Its copies there stay as a bonus, unless the
 * checksums say that they are made of other bytes (the same tokens on another machine need not give
 * the same bits): a copy that nobody could tell from a corrupt one is worth nothing.  Without a
 * checksum of the new bytes that is so in host memory; a value in Redis bears its own.
 */
static void attach(struct radix_index *ix, const struct radix_place *there,
		   const struct radix_block *block)
{
	uint32_t i = there->idx - 1, entry = radix_entry_at(ix, there->node, i);
	struct radix_entry *e = &ix->table.v[entry];
	bool above = radix_entry_slot(e) != RADIX_NONE; /* a device copy that a codec changed */
	bool known = e->checksum_kind != 0;
	bool same = e->checksum_kind == block->checksum_kind &&
		    memcmp(e->checksum, block->checksum, sizeof(e->checksum)) == 0;

	/* it tells of the lower copies as long as they are there, of ours never */
	if (known && !same)
		radix_table_checksum_below(&ix->table, entry);
	if (above)
		radix_lossy_replace(ix, there->node, i, block->slot);
	else
		radix_low_attach(ix, there->node, i, block->slot, true);
	ix->attached_total++;
	if (same)
		return;
	if (known)
		radix_low_forget_copies(ix, entry, block->checksum_kind != 0);
	radix_table_checksum(&ix->table, entry, block->checksum_kind, block->checksum);
}

/* A hollow one was: it has no copies, but its checksum may still be known. */
static void refill(struct radix_index *ix, const struct radix_place *there,
		   const struct radix_block *block)
{
	uint32_t i = there->idx - 1, entry = radix_entry_at(ix, there->node, i);

	radix_table_checksum(&ix->table, entry, 0, NULL);
	radix_win_refill(ix, there->node, i, block->slot);
	radix_table_checksum(&ix->table, entry, block->checksum_kind, block->checksum);
	ix->attached_total++;
}

/* The block is there: ours is one too many, or the (exact) device copy that it had not. */
static int become_member(struct radix_index *ix, struct radix_pin *pin,
			 const struct radix_place *there, const struct radix_block *block,
			 uint32_t *ret_slot, enum radix_commit_result *ret_result)
{
	uint32_t slot = radix_device_slot(ix, there->node, there->idx - 1);

	if (slot == RADIX_NONE && !radix_low_can_attach(ix, there->node, there->idx - 1))
		return RADIX_E_REFUSED;
	if (slot == RADIX_HOLLOW) {
		refill(ix, there, block);
		*ret_slot = block->slot;
		*ret_result = RADIX_COMMIT_ATTACHED;
	} else if (slot == RADIX_NONE || radix_lossy_may_go(ix, there->node, there->idx - 1)) {
		attach(ix, there, block);
		*ret_slot = block->slot;
		*ret_result = RADIX_COMMIT_ATTACHED;
	} else if (block->or_refuse &&
		   radix_lossy(ix, &ix->table.v[radix_entry_at(ix, there->node, there->idx - 1)])) {
		return RADIX_E_REFUSED;
	} else {
		radix_slots_set(&ix->slots, block->slot, RADIX_SLOT_OWN);
		ix->duplicate_total++;
		*ret_slot = slot;
		*ret_result = RADIX_COMMIT_DUPLICATE;
	}
	radix_pin_move(ix, pin, there);
	return 0;
}

/* An island becomes the beginning of a prompt. */
static void root_island(struct radix_index *ix, uint32_t island)
{
	struct radix_node *n = radix_node(ix, island);

	radix_child_unlink(ix, island);
	n->flags = (uint8_t)(n->flags & ~RADIX_NODE_F_ISLAND);
	radix_child_link(ix, island, RADIX_NODE_NONE, n->root);
	radix_table_reparent(&ix->table, radix_entry_at(ix, island, 0), RADIX_NONE, false);
}

/*
 * Step 2.  Return: 0 with *ret_there behind the block, or with its node RADIX_NODE_NONE when the
 * digest is no member; RADIX_E_CONFLICT; RADIX_E_CIRCLE; -ENOMEM.
 */
static int find_elsewhere(struct radix_index *ix, const struct radix_pin *pin, const void *digest,
			  struct radix_place *ret_there)
{
	uint8_t parent[RADIX_DIGEST_MAX];
	uint32_t entry = radix_digest_entry(ix, pin->at.root, digest);
	const struct radix_node *n;
	int r = 0;

	*ret_there = pin->at;
	ret_there->node = RADIX_NODE_NONE;
	if (entry == RADIX_NONE)
		return 0;
	n = radix_node(ix, ix->where_node[entry]);
	if (pin->at.node == RADIX_NODE_ISLAND) {
		r = 0; /* two writers began the same island: it is the same block */
	} else if (ix->where_idx[entry] || !(n->flags & RADIX_NODE_F_ISLAND)) {
		return RADIX_E_CONFLICT;
	} else if (pin->at.node == RADIX_NODE_NONE) {
		root_island(ix, ix->where_node[entry]);
	} else {
		uint32_t before = radix_entry_at(ix, pin->at.node, pin->at.idx - 1);

		memcpy(parent, radix_table_key(&ix->table, before),
		       ix->roots[pin->at.root].g.key_len);
		r = radix_graft(ix, pin->at.root, parent, digest);
	}
	if (r)
		return r;
	ret_there->node = ix->where_node[entry];
	ret_there->idx = ix->where_idx[entry] + 1;
	ret_there->depth = pin->at.depth + 1;
	return 0;
}

/* A branch in the middle of an edge: cut there, and the pin stands at an end. */
static int cut_at_pin(struct radix_index *ix, const struct radix_pin *pin)
{
	uint32_t upper;

	if (!radix_place_is_edge(&pin->at) || !pin->at.idx ||
	    pin->at.idx == radix_node(ix, pin->at.node)->n_blocks)
		return 0;
	return radix_split(ix, pin->at.node, pin->at.idx, &upper);
}

/* Step 3: the edge that takes the block, with room in every structure. */
static int prepare_edge(struct radix_index *ix, struct radix_pin *pin, uint32_t *ret_node,
			bool *ret_fresh)
{
	if (radix_place_is_edge(&pin->at)) {
		struct radix_node *n = radix_node(ix, pin->at.node);

		if (pin->at.idx == n->n_blocks && n->n_child == 0) {
			*ret_node = pin->at.node;
			*ret_fresh = false;
			return 0;
		}
	}
	if (radix_map_grow(&ix->children) < 0 || radix_low_reserve(ix) < 0)
		return -ENOMEM;
	*ret_node = radix_nodes_take(&ix->nodes, pin->at.root);
	*ret_fresh = true;
	return *ret_node == RADIX_NONE ? -ENOMEM : 0;
}

static uint32_t entry_before(const struct radix_index *ix, const struct radix_place *at)
{
	if (!radix_place_is_edge(at) || !at->idx)
		return RADIX_NONE;
	return radix_entry_at(ix, at->node, at->idx - 1);
}

/* Step 4. */
static void publish(struct radix_index *ix, struct radix_pin *pin, uint32_t node, bool fresh,
		    uint32_t entry, uint32_t slot)
{
	struct radix_node *n = radix_node(ix, node);
	struct radix_place to = pin->at;

	if (slot != RADIX_NONE) {
		ix->slots.entry[slot] = entry;
		radix_slots_set(&ix->slots, slot, RADIX_SLOT_READY);
		radix_crash_point("commit_ready");
	}
	if (ix->roots[n->root].config.mode == RADIX_KEYS_DIGEST)
		radix_map_put(&ix->digests, radix_digest_hash(ix, entry), entry);
	if (ix->where_node) {
		ix->where_node[entry] = node;
		ix->where_idx[entry] = n->n_blocks - 1;
	}
	if (radix_has_tiers(ix)) {
		ix->tier[radix_tier_of(&ix->table.v[entry])]++;
		if (slot != RADIX_NONE)
			radix_low_ends(ix, node, n->n_blocks, n->n_blocks);
		else if (radix_windowed(ix, node)) /* what was an end may have been hollow */
			radix_low_settle(ix, node);
	}
	if (fresh && pin->at.node == RADIX_NODE_ISLAND)
		radix_island_link(ix, node);
	else if (fresh)
		radix_child_link(ix, node, pin->at.node, pin->at.root);
	/* a leaf that grew is younger than the queue believes, which finds out by itself */
	if (fresh || radix_has_tiers(ix))
		radix_leaf_queue(ix, node);
	radix_win_queue(ix, node);
	ix->roots[n->root].n_blocks++;
	if (radix_unlikely(ix->log))
		radix_log_stored(ix, entry, pin->at.depth);
	to.node = node;
	to.idx = n->n_blocks;
	to.depth++;
	radix_pin_move(ix, pin, &to);
}

uint64_t radix_fingerprint(const struct radix_index *ix, uint32_t root, uint32_t parent,
			   const void *key)
{
	const struct radix_root *r = &ix->roots[root];

	return radix_chain_next(r, parent == RADIX_NONE ? r->chain : ix->fingerprint[parent],
				radix_local(ix, r, key));
}

/*
 * Steps 3 and 4: the block becomes a member behind the pin, where none is, and the pin moves onto
 * it.  init->slot RADIX_NONE: it is in Redis only.  Return: 0, -ENOMEM (unchanged).
 */
int radix_append(struct radix_index *ix, struct radix_pin *pin, struct radix_entry_init *init,
		 const struct radix_block *block, uint32_t *ret_entry)
{
	const struct radix_root *root = &ix->roots[pin->at.root];
	uint32_t node, entry;
	bool fresh;
	int r = prepare_edge(ix, pin, &node, &fresh);

	if (r < 0)
		return r;
	init->root = pin->at.root;
	init->ns = root->config.ns;
	init->tenant = root->config.tenant;
	init->root_check = root->check;
	init->parent = entry_before(ix, &pin->at);
	init->island = pin->at.node == RADIX_NODE_ISLAND;
	init->slot_generation = init->slot == RADIX_NONE ? 0 : ix->slots.generation[init->slot];
	radix_now(ix, init->tick);
	entry = radix_table_add(&ix->table, init, block, root->g.key_len);
	if (entry == RADIX_NONE)
		goto no_entry;
	if (radix_edge_append(&ix->slab, radix_node(ix, node), root->g, block->key,
			      init->slot == RADIX_NONE ? entry : init->slot, init->tick) < 0)
		goto no_edge;
	if (fresh && cut_at_pin(ix, pin) < 0)
		goto no_edge;
	publish(ix, pin, node, fresh, entry, init->slot);
	if (radix_unlikely(ix->fingerprint))
		ix->fingerprint[entry] = radix_fingerprint(ix, pin->at.root, init->parent,
							   block->key);
	*ret_entry = entry;
	return 0;
no_edge:
	radix_table_remove(&ix->table, entry, root->g.key_len);
no_entry:
	if (fresh) {
		radix_edge_clear(&ix->slab, radix_node(ix, node), root->g);
		radix_nodes_give(&ix->nodes, node);
	}
	return -ENOMEM;
}

int radix_commit(struct radix_index *ix, struct radix_pin *pin, uint32_t owner,
		 const struct radix_block *block, uint64_t tick, uint32_t *ret_slot,
		 enum radix_commit_result *ret_result)
{
	struct radix_entry_init init = { .slot = block->slot, .tick = tick };
	struct radix_place there;
	uint32_t entry;
	int r;

	if (block->slot >= ix->slots.n || ix->slots.state[block->slot] != RADIX_SLOT_RESERVED ||
	    ix->slots.owner[block->slot] != owner)
		return RADIX_E_STATE;
	if (radix_place_is_edge(&pin->at) && pin->at.idx &&
	    radix_device_slot(ix, pin->at.node, pin->at.idx - 1) == RADIX_NONE)
		return RADIX_E_REFUSED;
	if (find_next(ix, &pin->at, block->key, &there))
		return become_member(ix, pin, &there, block, ret_slot, ret_result);
	if (radix_place_is_edge(&pin->at) && !pin->at.idx) {
		/* before an island's first block, and it is another one: that begins an island */
		there = radix_place_island(pin->at.root);
		radix_pin_move(ix, pin, &there);
	}
	if (ix->roots[pin->at.root].config.mode == RADIX_KEYS_DIGEST) {
		r = find_elsewhere(ix, pin, block->key, &there);
		if (r)
			return r;
		if (radix_place_is_edge(&there))
			return become_member(ix, pin, &there, block, ret_slot, ret_result);
		if (radix_map_grow(&ix->digests) < 0)
			return -ENOMEM;
	}
	r = radix_append(ix, pin, &init, block, &entry);
	if (r < 0)
		return r;
	ix->stored_total++;
	/* It was here before: that was its first use, and one of all before it. */
	if (radix_unlikely(ix->fingerprint) && radix_ghost_take(&ix->ghost, ix->fingerprint[entry]))
		radix_hit(ix, &pin->at);
	*ret_slot = block->slot;
	*ret_result = RADIX_COMMIT_STORED;
	return 0;
}

/* ---- islands --------------------------------------------------------------------------------- */

/* True when `node` lies in the path from `below` up to its start. */
static bool hangs_below(const struct radix_index *ix, uint32_t below, uint32_t node)
{
	for (; below != RADIX_NODE_NONE; below = radix_node(ix, below)->parent) {
		if (below == node)
			return true;
	}
	return false;
}

int radix_graft(struct radix_index *ix, uint32_t root, const void *parent, const void *digest)
{
	uint32_t key_len = ix->roots[root].g.key_len;
	uint32_t child_entry, parent_entry, island, node, upper;
	struct radix_node *n;

	if (ix->roots[root].config.mode != RADIX_KEYS_DIGEST)
		return RADIX_E_NOTFOUND;
	child_entry = radix_digest_entry(ix, root, digest);
	parent_entry = radix_digest_entry(ix, root, parent);
	if (child_entry == RADIX_NONE || parent_entry == RADIX_NONE)
		return RADIX_E_NOTFOUND;
	island = ix->where_node[child_entry];
	n = radix_node(ix, island);
	if (ix->where_idx[child_entry] || !(n->flags & RADIX_NODE_F_ISLAND)) {
		uint32_t now = radix_entry_parent(&ix->table.v[child_entry]);

		return now != RADIX_NONE && memcmp(radix_table_key(&ix->table, now), parent,
						   key_len) == 0
			       ? 0
			       : RADIX_E_CONFLICT;
	}
	node = ix->where_node[parent_entry];
	if (hangs_below(ix, node, island))
		return RADIX_E_CIRCLE;
	if (radix_tier_of(&ix->table.v[parent_entry]) > radix_tier_of(&ix->table.v[child_entry]))
		return RADIX_E_REFUSED;
	if (ix->where_idx[parent_entry] + 1 < radix_node(ix, node)->n_blocks) {
		if (radix_split(ix, node, ix->where_idx[parent_entry] + 1, &upper) < 0)
			return -ENOMEM;
		node = upper;
	}
	radix_child_unlink(ix, island);
	n->flags = (uint8_t)(n->flags & ~RADIX_NODE_F_ISLAND);
	radix_child_link(ix, island, node, root);
	if (radix_has_tiers(ix))
		radix_low_grafted(ix, island);
	radix_win_grafted(ix, island);
	radix_table_reparent(&ix->table, child_entry, parent_entry, false);
	/* a pin before the island's first block now stands behind its parent's last */
	for (struct radix_list *it = n->pins.next, *next = it->next; it != &n->pins;
	     it = next, next = it->next) {
		struct radix_pin *pin = radix_list_entry(it, struct radix_pin, link);
		struct radix_place to = pin->at;

		if (to.idx)
			continue;
		to.node = node;
		to.idx = radix_node(ix, node)->n_blocks;
		radix_pin_move(ix, pin, &to);
	}
	radix_merge(ix, node);
	return 0;
}
