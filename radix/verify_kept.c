/*
 * verify_kept.c - the README's invariants about what a restart relies on, by their numbers.
 */
#include "radix/verify.h"

/* 24: a member's words are whole. */
int radix_verify_words(struct radix_verify *v, uint32_t entry)
{
	const struct radix_index *ix = v->ix;
	const struct radix_entry *e = &ix->table.v[entry];
	uint32_t slot = radix_entry_slot(e);
	uint64_t generation = slot < ix->slots.n ? ix->slots.generation[slot] : 0;

	if (e->device != radix_table_device(&ix->table, entry, slot, generation))
		return radix_verify_fail(v, 24, "device word is wrong, entry", entry, "slot", slot);
	if (e->host != radix_table_host(&ix->table, entry, radix_entry_host(e)))
		return radix_verify_fail(v, 24, "host word is wrong, entry", entry, "slot",
					 radix_entry_host(e));
	if (e->redis != RADIX_REDIS_YES && e->redis != RADIX_REDIS_NO)
		return radix_verify_fail(v, 24, "neither in Redis nor not, entry", entry, NULL, 0);
	if (e->checksum_kind && e->checksum_check != radix_table_checksum_check(&ix->table, entry))
		return radix_verify_fail(v, 24, "checksum is not whole, entry", entry, NULL, 0);
	if (e->use >> 1 > ix->now)
		return radix_verify_fail(v, 26, "used later than now, entry", entry, NULL, 0);
	return 0;
}

/* 25, 26: what is written of slots, and the numbers of the head. */
static int verify_head(struct radix_verify *v)
{
	const struct radix_index *ix = v->ix;
	const struct radix_head *h = ix->ground.head;
	enum radix_slot_state state;
	uint32_t owner;

	for (uint32_t i = 0; i < ix->slots.n; i++) {
		if (!radix_slot_word_read(i, ix->slots.kept[i], &state, &owner) ||
		    state != ix->slots.state[i] || owner != ix->slots.owner[i])
			return radix_verify_fail(v, 25, "what is kept of a slot differs, slot", i,
						 "state", ix->slots.state[i]);
	}
	if (h->magic != RADIX_MAGIC || h->check != radix_head_check(h))
		return radix_verify_fail(v, 26, "head is damaged, version", h->version, NULL, 0);
	if (h->n_used.v != ix->table.n_used || h->n_used.inverse != ~h->n_used.v)
		return radix_verify_fail(v, 26, "entries in the head", h->n_used.v, "in use",
					 ix->table.n_used);
	if (h->tick.v != ix->now || h->tick.inverse != ~h->tick.v)
		return radix_verify_fail(v, 26, "tick in the head", h->tick.v, "now", ix->now);
	if (h->reuse.v != ix->slots.reuse || h->reuse.inverse != ~h->reuse.v)
		return radix_verify_fail(v, 26, "reuse in the head", h->reuse.v, "is",
					 ix->slots.reuse);
	return 0;
}

/* 27: cells that are taken are as many as there are members, and each member's is. */
static int verify_cells(struct radix_verify *v)
{
	const struct radix_cells *c = &v->ix->table.cells;
	uint64_t taken = 0, listed = 0, open = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct radix_cell_page *p = &c->page[i];
		uint32_t n_free = 0;

		if (!p->used)
			continue;
		for (uint32_t w = 0; w < RADIX_CELL_WORDS; w++) {
			for (uint64_t bits = p->free[w]; bits; bits &= bits - 1)
				n_free++;
			if (w < p->word && p->free[w])
				return radix_verify_fail(v, 27, "free cells are not found, page", i,
							 "word", w);
		}
		if (n_free != p->n_free)
			return radix_verify_fail(v, 27, "free cells of page", i, "booked",
						 p->n_free);
		taken += p->n - n_free;
		open += n_free > 0;
	}
	for (uint32_t class = 0; class < RADIX_CELL_CLASSES; class ++) {
		for (uint32_t i = c->first[class]; i != RADIX_NONE; i = c->page[i].next) {
			if (c->page[i].class != class || !c->page[i].n_free || ++listed > open)
				return radix_verify_fail(v, 27, "list of pages, page", i, "size",
							 class);
		}
	}
	if (listed != open)
		return radix_verify_fail(v, 27, "pages with free cells", open, "listed", listed);
	if (taken != v->ix->table.n_ready)
		return radix_verify_fail(v, 27, "cells taken", taken, "members",
					 v->ix->table.n_ready);
	return 0;
}

int radix_verify_kept(struct radix_verify *v)
{
	int bad = verify_head(v);

	return bad ? bad : verify_cells(v);
}

int radix_verify_cell(struct radix_verify *v, uint32_t entry)
{
	const struct radix_cells *c = &v->ix->table.cells;
	uint64_t handle = v->ix->table.v[entry].key;
	const struct radix_cell_page *p = &c->page[handle >> RADIX_CELL_PAGE_SHIFT];
	uint32_t at = (uint32_t)(handle & (RADIX_CELL_PAGE - 1));
	uint32_t size = (uint32_t)radix_slab_class_size(p->class);

	if (!p->used || at % size || at / size >= p->n ||
	    p->free[at / size / 64] >> (at / size % 64) & 1)
		return radix_verify_fail(v, 27, "key in no cell that is taken, entry", entry,
					 "page", handle >> RADIX_CELL_PAGE_SHIFT);
	return 0;
}
