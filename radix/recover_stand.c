/*
 * recover_stand.c - where somebody stood, after what he stood at, or what led there, was lost.
 *
 * A block that is not taken may have hung deep below others that are, and who leased it reads those
 * too.  Its entry still names the one before it: by a word that agrees with itself, or, where the
 * damage is in that word, as far as it can be made out.  A wrong guess costs nothing but a block
 * that is held for nobody.
 */
#include "radix/recover_internal.h"

/* When it was a block: a recovery that was stopped may have freed it. */
static uint64_t generation_of(const struct radix_table *t, uint32_t entry)
{
	const struct radix_entry *e = &t->v[entry];

	return e->state == RADIX_ENTRY_FREE ? e->generation - 1 : e->generation;
}

static uint64_t word_of(const struct radix_table *t, uint32_t entry, uint32_t parent,
			uint64_t start)
{
	return radix_word(radix_word_base(entry, generation_of(t, entry)), RADIX_WORD_PARENT,
			  parent, parent == RADIX_NONE ? start : generation_of(t, parent));
}

/* The entry before this one; RADIX_NONE: it begins a prompt or an island, or nobody can tell. */
static uint32_t before(const struct radix_recovery *rc, uint32_t entry)
{
	const struct radix_table *t = &rc->ix->table;
	uint64_t word = t->v[entry].parent;
	uint32_t parent = radix_word_number(word);

	if (word == word_of(t, entry, RADIX_NONE, RADIX_START_PROMPT) ||
	    word == word_of(t, entry, RADIX_NONE, RADIX_START_ISLAND))
		return RADIX_NONE;
	if (parent < rc->n && word == word_of(t, entry, parent, 0))
		return parent;
	/* Is it the number that is wrong, and the rest tells which one is right? */
	for (uint32_t i = 0; i < rc->n; i++)
		if (i != entry && (uint32_t)word == (uint32_t)word_of(t, entry, i, 0))
			return i;
	return parent < rc->n && parent != entry ? parent : RADIX_NONE;
}

/* A member is its own nearest one. */
static uint32_t nearest(const struct radix_recovery *rc, uint32_t entry)
{
	for (uint32_t n = 0; entry != RADIX_NONE && n <= rc->n; n++) {
		if (rc->flags[entry] & RADIX_R_MEMBER)
			return entry;
		entry = before(rc, entry);
	}
	return RADIX_NONE;
}

/* Was this block ever there? */
static bool was_there(const struct radix_recovery *rc, struct radix_member block)
{
	const struct radix_entry *e;

	if (block.entry >= rc->n)
		return false;
	e = &rc->ix->table.v[block.entry];
	if (rc->flags[block.entry] & RADIX_R_MEMBER)
		return e->generation == block.generation;
	return e->state != RADIX_ENTRY_FREE ||
	       generation_of(&rc->ix->table, block.entry) == block.generation;
}

static struct radix_member member_of(const struct radix_recovery *rc, uint32_t entry)
{
	struct radix_member m = { .entry = entry };

	if (entry != RADIX_NONE)
		m.generation = rc->ix->table.v[entry].generation;
	return m;
}

/* The entry before the damage, where what hung below damage is an island now; RADIX_NONE. */
static uint32_t above(const struct radix_recovery *rc, uint32_t start)
{
	if (!(rc->flags[start] & RADIX_R_MEMBER) || !(rc->flags[start] & RADIX_R_ISLAND))
		return RADIX_NONE;
	return nearest(rc, before(rc, start));
}

static int cuts(struct radix_recovery *rc)
{
	struct radix_index *ix = rc->ix;
	uint32_t n = 0;

	for (uint32_t i = 0; i < rc->n; i++)
		n += above(rc, i) != RADIX_NONE;
	if (n == 0)
		return 0;
	ix->cuts = radix_take(ix->alloc, n * sizeof(*ix->cuts));
	if (!ix->cuts)
		return -ENOMEM;
	for (uint32_t i = 0; i < rc->n; i++)
		if (above(rc, i) != RADIX_NONE)
			ix->cuts[ix->n_cuts++] = (struct radix_cut){ i, above(rc, i) };
	return 0;
}

int radix_r_stands(struct radix_recovery *rc)
{
	for (uint32_t i = 0; i < rc->config->n_stands; i++) {
		struct radix_stand *s = &rc->config->stands[i];
		uint32_t at = RADIX_NONE;

		if (s->block.entry != RADIX_NONE && was_there(rc, s->block))
			at = nearest(rc, s->block.entry);
		s->before = member_of(rc, at);
	}
	return cuts(rc);
}

/* ---- what the caller may ask ----------------------------------------------------------------- */

static uint32_t first_of(const struct radix_index *ix, const struct radix_place *at)
{
	uint32_t node = at->node;

	if (!radix_place_is_edge(at))
		return RADIX_NONE;
	while (radix_node(ix, node)->parent < RADIX_NODE_ISLAND)
		node = radix_node(ix, node)->parent;
	return radix_entry_at(ix, node, 0);
}

int radix_recover_above(const struct radix_index *ix, const struct radix_place *at,
			struct radix_place *ret_above)
{
	uint32_t first = ix->n_cuts ? first_of(ix, at) : RADIX_NONE, low = 0, n = ix->n_cuts;
	struct radix_member m;

	while (n > 0) { /* the first one that is not less */
		uint32_t half = n / 2;

		if (ix->cuts[low + half].start < first) {
			low += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	if (low == ix->n_cuts || ix->cuts[low].start != first)
		return RADIX_E_NOTFOUND;
	m.entry = ix->cuts[low].above;
	m.generation = ix->table.v[m.entry].generation;
	return radix_member_place(ix, m, ret_above);
}

uint32_t radix_recover_cuts(const struct radix_index *ix)
{
	return ix->n_cuts;
}

void radix_cuts_free(struct radix_index *ix)
{
	radix_give(ix->alloc, ix->cuts, ix->n_cuts * sizeof(*ix->cuts));
	ix->cuts = NULL;
	ix->n_cuts = 0;
}
