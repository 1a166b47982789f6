/*
 * verify_tiers.c - the README's invariants about lower tiers, by their numbers.
 */
#include "radix/verify.h"

static uint32_t slot_state(const struct radix_slots *s, uint32_t slot)
{
	return s->state[slot];
}

int radix_verify_host_slots(struct radix_verify *v)
{
	const struct radix_index *ix = v->ix;
	uint32_t before = RADIX_NONE, n = 0;
	uint64_t tick = 0;

	for (uint32_t i = ix->bonus.first; i != RADIX_NONE; i = ix->bonus.next[i]) {
		if (i >= ix->host.n || ix->bonus.prev[i] != before || ix->bonus.tick[i] < tick ||
		    !ix->bonus.tick[i] || ++n > ix->bonus.count)
			return radix_verify_fail(v, 17, "bonus list is broken at slot", i, "behind",
						 before);
		tick = ix->bonus.tick[i];
		before = i;
	}
	if (n != ix->bonus.count || ix->bonus.last != before)
		return radix_verify_fail(v, 17, "bonuses listed", n, "but booked", ix->bonus.count);
	return radix_verify_slots(v, &ix->host);
}

/* 16, 17: where a block's copies are, and what its edge says of them. */
int radix_verify_copies(struct radix_verify *v, uint32_t node, uint32_t i, uint32_t entry)
{
	const struct radix_index *ix = v->ix;
	const struct radix_low *low = radix_low(ix, node);
	const struct radix_entry *e = &ix->table.v[entry];
	enum radix_tier t = radix_tier_of(e);
	bool bonus;

	v->tier[t]++;
	if (ix->where_node[entry] != node || ix->where_idx[entry] != i)
		return radix_verify_fail(v, 7, "member is not where it lies, entry", entry, "edge",
					 node);
	if (i < radix_low_start(low, t) || i >= radix_low_end(radix_node(ix, node), low, t))
		return radix_verify_fail(v, 16, "highest copy is not where the edge has it, entry",
					 entry, "tier", t);
	if (ix->fingerprint &&
	    ix->fingerprint[entry] != radix_fingerprint(ix, e->root, radix_entry_parent(e),
							radix_table_key(&ix->table, entry)))
		return radix_verify_fail(v, 23, "another fingerprint, entry", entry, NULL, 0);
	if (t == RADIX_TIER_REDIS && !radix_entry_redis(e))
		return radix_verify_fail(v, 16, "no copy at all, entry", entry, NULL, 0);
	if (radix_entry_host(e) == RADIX_NONE)
		return 0;
	if (radix_entry_host(e) >= ix->host.n || ix->host.entry[radix_entry_host(e)] != entry)
		return radix_verify_fail(v, 16, "host slot does not point back, entry", entry,
					 "slot", radix_entry_host(e));
	if (radix_entry_slot(e) == RADIX_HOLLOW)
		return radix_verify_fail(v, 28, "a hollow block has a host copy, entry", entry,
					 "slot", radix_entry_host(e));
	bonus = t == RADIX_TIER_DEVICE &&
		slot_state(&ix->slots, radix_entry_slot(e)) == RADIX_SLOT_READY;
	if (bonus != (ix->bonus.tick[radix_entry_host(e)] != 0))
		return radix_verify_fail(v, 17, "bonus or not, host slot", radix_entry_host(e),
					 "entry", entry);
	v->bonus += bonus;
	return 0;
}

static enum radix_tier below(const struct radix_index *ix, enum radix_tier t)
{
	return t == RADIX_TIER_DEVICE && ix->host.n ? RADIX_TIER_HOST : RADIX_TIER_REDIS;
}

/* 18: what leaves a tier. */
static int verify_leaving(struct radix_verify *v, uint32_t node, enum radix_tier t)
{
	const struct radix_index *ix = v->ix;
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low = radix_low(ix, node);
	uint32_t start = radix_low_start(low, t), end = low->end[t];
	const struct radix_slots *s = t == RADIX_TIER_DEVICE ? &ix->slots : &ix->host;
	enum radix_tier b = below(ix, t);

	if (low->leaving[t] > end - start)
		return radix_verify_fail(v, 18, "more leave than there are, edge", node, "tier", t);
	if (low->leaving[t] && (!radix_low_is_leaf(n, low, t) ||
				radix_low_protected(ix, node) > end - low->leaving[t]))
		return radix_verify_fail(v, 18, "blocks leave that may not, edge", node, "tier", t);
	for (uint32_t i = start; i < end; i++) {
		const struct radix_entry *e = &ix->table.v[radix_entry_at(ix, node, i)];
		bool leaves = radix_slot_in(e, t) < s->n &&
			      slot_state(s, radix_slot_in(e, t)) == RADIX_SLOT_LEAVING;
		bool clean = b == RADIX_TIER_HOST ? radix_entry_host(e) != RADIX_NONE
						  : radix_entry_redis(e);

		if (leaves != (i >= end - low->leaving[t]))
			return radix_verify_fail(v, 18, "leaving or not, edge", node, "block", i);
		if (!leaves)
			continue;
		if (clean ? i == end - 1 && radix_low_may_pop(n, low, t) : !(e->moving & 1u << b))
			return radix_verify_fail(v, 18, "nothing will end its leaving, edge", node,
						 "block", i);
	}
	return 0;
}

/* 15, 21: an edge's ends, and how they fit its parent's. */
int radix_verify_ends(struct radix_verify *v, uint32_t node)
{
	const struct radix_index *ix = v->ix;
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low = radix_low(ix, node), *p = NULL;

	if (n->parent != RADIX_NODE_NONE)
		p = radix_low(ix, n->parent);
	if (low->end[0] > low->end[1] || low->end[1] > n->n_blocks)
		return radix_verify_fail(v, 15, "tiers rise in edge", node, NULL, 0);
	for (enum radix_tier t = 0; p && t < RADIX_TIER_REDIS; t++) {
		if (low->end[t] && p->end[t] != radix_node(ix, n->parent)->n_blocks)
			return radix_verify_fail(v, 15, "tiers rise to edge", node, "tier", t);
	}
	if (low->again > n->n_blocks ||
	    (p && low->again && p->again != radix_node(ix, n->parent)->n_blocks))
		return radix_verify_fail(v, 21, "hit without what is before it, edge", node,
					 "blocks", low->again);
	return 0;
}

/* 20: what an edge counts of its children; 18. */
int radix_verify_kids(struct radix_verify *v, uint32_t node)
{
	const struct radix_index *ix = v->ix;
	const struct radix_low *low = radix_low(ix, node);
	uint32_t kids[2] = { 0 }, firm[2] = { 0 }, held = 0;

	for (uint32_t c = radix_node(ix, node)->first_child; c != RADIX_NONE;
	     c = radix_node(ix, c)->next_sib) {
		for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
			kids[t] += radix_low(ix, c)->end[t] > 0;
			firm[t] += radix_low(ix, c)->end[t] > radix_low(ix, c)->leaving[t];
		}
		held += radix_low_pins(ix, c);
	}
	if (memcmp(kids, low->kids, sizeof(kids)) != 0 ||
	    memcmp(firm, low->firm, sizeof(firm)) != 0)
		return radix_verify_fail(v, 20, "children by tier, edge", node, "device", kids[0]);
	if (held != low->held)
		return radix_verify_fail(v, 20, "pins below", held, "but booked", low->held);
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		int bad = verify_leaving(v, node, t);

		if (bad)
			return bad;
	}
	return 0;
}

int radix_verify_tier_totals(struct radix_verify *v)
{
	const struct radix_index *ix = v->ix;
	uint64_t host = ix->host.count[RADIX_SLOT_READY] + ix->host.count[RADIX_SLOT_LEAVING];
	uint64_t removed = 0, host_copies = v->tier[RADIX_TIER_HOST];

	for (enum radix_tier t = 0; t < RADIX_N_TIERS; t++) {
		if (v->tier[t] != ix->tier[t])
			return radix_verify_fail(v, 16, "members in a tier", v->tier[t],
						 "but booked", ix->tier[t]);
		for (uint32_t r = 0; r < RADIX_REMOVE_N_REASONS; r++)
			removed += ix->removed_from[t][r];
	}
	for (uint32_t i = 0; i < ix->slots.n; i++) {
		if (ix->slots.state[i] == RADIX_SLOT_LEAVING)
			host_copies += radix_entry_host(&ix->table.v[ix->slots.entry[i]]) !=
				       RADIX_NONE;
	}
	if (v->bonus != ix->bonus.count)
		return radix_verify_fail(v, 17, "bonuses found", v->bonus, "but listed",
					 ix->bonus.count);
	if (host_copies + v->bonus != host)
		return radix_verify_fail(v, 16, "host copies found", host_copies + v->bonus,
					 "slots", host);
	if (removed != ix->removed_total)
		return radix_verify_fail(v, 14, "removals by tier", removed, "in all",
					 ix->removed_total);
	if (ix->tier[RADIX_TIER_REDIS] + ix->n_hollow > ix->redis_budget)
		return radix_verify_fail(v, 21, "Redis-only members", ix->tier[RADIX_TIER_REDIS],
					 "at most", ix->redis_budget);
	return 0;
}
