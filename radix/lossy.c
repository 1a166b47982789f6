/*
 * lossy.c - device copies that a codec has changed: who they are, and exact bytes in their place.
 *
 * What it guarantees.  A copy counts as exact only while its entry says so of this very copy
 * (radix_exact_mark()); what is damaged, unclear or was never said counts as lossy.  A lossy copy
 * makes way for exact bytes only when nobody holds its block and no move reads its slot.
 *
 * What it relies on.  Only an index that is coded asks: in others every copy is the committed one.
 */
#include "radix/internal.h"
#include "radix/windows.h"

bool radix_member_lossy(const struct radix_index *ix, struct radix_member block)
{
	const struct radix_entry *e = radix_member(ix, block);

	return e && radix_lossy(ix, e);
}

/* One block up the path from { *node, *i }. */
static uint32_t entry_before(const struct radix_index *ix, uint32_t *node, uint32_t *i)
{
	if (*i == 0) {
		*node = radix_node(ix, *node)->parent;
		*i = radix_node(ix, *node)->n_blocks;
	}
	return radix_entry_at(ix, *node, --*i);
}

uint32_t radix_path_lossy(const struct radix_index *ix, const struct radix_place *end, uint32_t n,
			  uint32_t *ret_first)
{
	uint32_t node = end->node, i = end->idx, lossy = 0;

	*ret_first = n;
	if (!ix->coded)
		return 0;
	for (uint32_t at = n; at-- > 0;) {
		if (!radix_lossy(ix, &ix->table.v[entry_before(ix, &node, &i)]))
			continue;
		*ret_first = at;
		lossy++;
	}
	return lossy;
}

uint32_t radix_path_exact(const struct radix_index *ix, const struct radix_place *end, uint32_t n,
			  uint32_t window)
{
	uint32_t node = end->node, i = end->idx, best = n;

	for (uint32_t at = n; ix->coded && at > 0 && best - at < window; at--) {
		const struct radix_entry *e = &ix->table.v[entry_before(ix, &node, &i)];

		if (radix_lossy(ix, e) || radix_entry_slot(e) == RADIX_HOLLOW)
			best = at - 1;
	}
	return best;
}

bool radix_lossy_may_go(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_entry *e = &ix->table.v[radix_entry_at(ix, node, i)];
	uint32_t slot = radix_entry_slot(e);

	return radix_lossy(ix, e) && slot != RADIX_NONE && radix_has_tiers(ix) &&
	       ix->slots.state[slot] == RADIX_SLOT_READY && !ix->slots.reads[slot] &&
	       radix_low_protected(ix, node) <= i;
}

void radix_lossy_replace(struct radix_index *ix, uint32_t node, uint32_t i, uint32_t slot)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t entry = radix_entry_at(ix, node, i);
	uint32_t old = radix_entry_slot(&ix->table.v[entry]);

	radix_edge_set_ref(n, ix->roots[n->root].g, i, slot);
	radix_table_device_set(&ix->table, entry, slot, ix->slots.generation[slot], true);
	ix->slots.entry[slot] = entry;
	radix_slots_set(&ix->slots, slot, RADIX_SLOT_READY);
	radix_slots_release(&ix->slots, old);
}
