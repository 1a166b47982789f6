/*
 * recover_stand.c - where somebody stood, after what he stood at was lost.
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

void radix_r_stands(struct radix_recovery *rc)
{
	for (uint32_t i = 0; i < rc->config->n_stands; i++) {
		struct radix_stand *s = &rc->config->stands[i];
		uint32_t at = RADIX_NONE;

		s->before = s->above = member_of(rc, RADIX_NONE);
		if (s->block.entry != RADIX_NONE && was_there(rc, s->block))
			at = nearest(rc, s->block.entry);
		s->before = member_of(rc, at);
		if (at == RADIX_NONE || !radix_r_digest(rc, at))
			continue;
		/* What hung below damage is an island now; what it hung at is read as well. */
		while (rc->parent[at] != RADIX_NONE)
			at = rc->parent[at];
		if (rc->flags[at] & RADIX_R_ISLAND)
			s->above = member_of(rc, nearest(rc, before(rc, at)));
	}
}
