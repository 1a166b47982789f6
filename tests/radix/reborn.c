/*
 * reborn.c - see reborn.h.
 */
#include "tests/radix/reborn.h"

#include <check.h>
#include <stdlib.h>

/* Check writes a file at each of its own assertions, passed ones too: not for millions of them. */
#define SAME(cond, number)                                                                   \
	do {                                                                                 \
		if (!(cond))                                                                 \
			ck_abort_msg("line %d, number %u: %s", __LINE__, (unsigned)(number), \
				     #cond);                                                 \
	} while (0)

static bool everybody(void *ctx, uint32_t owner)
{
	(void)ctx;
	(void)owner;
	return true;
}

void reborn_init(struct reborn *b, const struct radix_index *ix, const struct kept *k)
{
	*b = (struct reborn){ .config = { .roots = b->roots, .holds = everybody } };
	test_heap_init(&b->heap);
	kept_copy(&b->kept, k);
	b->kept.config.alloc = &b->heap.alloc;
	for (uint32_t i = 0; i < ix->n_roots; i++) {
		if (!ix->roots[i].live)
			continue;
		SAME(b->config.n_roots < REBORN_MAX_ROOTS, i);
		b->roots[b->config.n_roots++] =
			(struct radix_recover_root){ .root = i, .config = ix->roots[i].config };
	}
}

void reborn_recover(struct reborn *b)
{
	char why[256] = "";
	struct radix_stats s;
	int r = radix_index_recover(&b->ix, &b->kept.config, &b->config, &b->r);
	uint64_t lost = 0;

	ck_assert_int_eq(r, 0);
	r = radix_verify(b->ix, why, sizeof(why));
	if (r)
		ck_abort_msg("invariant %d: %s", r, why);
	radix_index_stats(b->ix, &s);
	SAME(b->r.n_taken == s.n_blocks, b->r.n_taken);
	for (uint32_t d = 0; d < RADIX_N_DAMAGES; d++)
		lost += b->r.damaged[d];
	SAME(lost == b->r.n_lost, lost);
	SAME(s.slots[RADIX_SLOT_OWN] == b->r.n_kept, b->r.n_kept);
	SAME(s.slots[RADIX_SLOT_QUARANTINED] == b->r.n_quarantined, b->r.n_quarantined);
	SAME(!s.slots[RADIX_SLOT_LEAVING] && !s.slots[RADIX_SLOT_RESERVED], 0);
	for (uint32_t i = 0; i < b->ix->table.n_used; i++)
		SAME(b->ix->table.v[i].state == RADIX_ENTRY_FREE || !b->ix->table.v[i].moving, i);
}

void reborn_deinit(struct reborn *b)
{
	b->ix = radix_index_free(b->ix);
	ck_assert_uint_eq(b->heap.live_blocks, 0);
	kept_deinit(&b->kept);
}

/* ---- members and slots ----------------------------------------------------------------------- */

static void same_entry(const struct radix_index *a, const struct radix_index *b, uint32_t i)
{
	const struct radix_entry *x = &a->table.v[i], *y = &b->table.v[i];

	SAME(x->state == y->state, i);
	if (x->state != RADIX_ENTRY_READY)
		return;
	SAME(x->generation == y->generation && x->root == y->root, i);
	SAME(x->ns == y->ns && x->tenant == y->tenant && x->n_tokens == y->n_tokens, i);
	SAME(radix_entry_parent(x) == radix_entry_parent(y), i);
	SAME(radix_entry_slot(x) == radix_entry_slot(y), i);
	SAME(radix_entry_host(x) == radix_entry_host(y), i);
	SAME(radix_entry_slot(x) == RADIX_NONE || x->exact == y->exact, i);
	SAME(radix_entry_redis(x) == radix_entry_redis(y), i);
	SAME(x->key_len == y->key_len, i);
	SAME(memcmp(radix_table_key(&a->table, i), radix_table_key(&b->table, i), x->key_len) == 0,
	     i);
	SAME(x->checksum_kind == y->checksum_kind, i);
	SAME(!x->checksum_kind || memcmp(x->checksum, y->checksum, sizeof(x->checksum)) == 0, i);
}

static bool is_members(const struct radix_slots *s, uint32_t i)
{
	return s->state[i] == RADIX_SLOT_READY || s->state[i] == RADIX_SLOT_LEAVING;
}

static void same_slot(const struct radix_slots *a, const struct radix_slots *b, uint32_t i)
{
	SAME(is_members(a, i) == (b->state[i] == RADIX_SLOT_READY), i);
	SAME(!is_members(a, i) || a->entry[i] == b->entry[i], i);
	if (!is_members(a, i) &&
	    (a->state[i] == RADIX_SLOT_FREE || a->owner[i] == RADIX_OWNER_DAEMON)) {
		SAME(b->state[i] == RADIX_SLOT_FREE, i);
		SAME(!a->generation[i] || b->generation[i] > a->generation[i], i);
		return;
	}
	SAME(a->generation[i] == b->generation[i], i);
	SAME(is_members(a, i) || (b->state[i] == RADIX_SLOT_OWN && a->owner[i] == b->owner[i]), i);
}

void reborn_same(const struct reborn *r, const struct radix_index *a)
{
	const struct radix_index *b = r->ix;

	SAME(r->r.n_lost == 0, r->r.n_lost);
	SAME(r->r.n_copies_lost == 0 && r->r.n_sums_lost == 0 && r->r.n_islands == 0, 0);
	SAME(a->table.n_used == b->table.n_used, b->table.n_used);
	SAME(a->table.n_ready == b->table.n_ready, b->table.n_ready);
	SAME(a->table.key_bytes == b->table.key_bytes, b->table.key_bytes);
	SAME(memcmp(a->tier, b->tier, sizeof(a->tier)) == 0 || !radix_has_tiers(a), 0);
	for (uint32_t i = 0; i < a->table.n_used; i++)
		same_entry(a, b, i);
	for (uint32_t i = 0; i < a->slots.n; i++)
		same_slot(&a->slots, &b->slots, i);
	for (uint32_t i = 0; i < a->host.n; i++) {
		SAME(is_members(&a->host, i) == is_members(&b->host, i), i);
		SAME(!is_members(&a->host, i) || a->host.entry[i] == b->host.entry[i], i);
	}
	for (uint32_t i = 0; i < a->n_roots; i++) {
		SAME(a->roots[i].live == b->roots[i].live, i);
		SAME(!a->roots[i].live || a->roots[i].n_blocks == b->roots[i].n_blocks, i);
	}
}

/* ---- recency --------------------------------------------------------------------------------- */

static bool place_of(const struct radix_index *ix, uint32_t entry, uint32_t *ret_node,
		     uint32_t *ret_idx)
{
	for (uint32_t k = 0; k < ix->nodes.n_used; k++) {
		const struct radix_node *n = radix_node(ix, k);

		if (!(n->flags & RADIX_NODE_F_LIVE) || n->root != ix->table.v[entry].root)
			continue;
		for (uint32_t i = 0; i < n->n_blocks; i++) {
			if (radix_entry_at(ix, k, i) != entry)
				continue;
			*ret_node = k;
			*ret_idx = i;
			return true;
		}
	}
	return false;
}

uint64_t reborn_use(const struct radix_index *ix, uint32_t entry, bool *ret_hit)
{
	uint32_t node, i;

	SAME(place_of(ix, entry, &node, &i), entry);
	*ret_hit = radix_has_tiers(ix) && i < radix_low(ix, node)->again;
	return radix_edge_tick_at(&ix->slab, radix_node(ix, node), i);
}

void reborn_uses(const struct reborn *r, const struct radix_index *a, bool exact)
{
	const struct radix_index *b = r->ix;
	uint64_t *use = calloc(a->table.n_used + 1, sizeof(*use));

	ck_assert_ptr_nonnull(use);
	for (uint32_t i = 0; i < a->table.n_used; i++) {
		const struct radix_entry *e = &a->table.v[i];
		uint64_t tick;
		bool hit, hit_b;

		if (e->state != RADIX_ENTRY_READY)
			continue;
		tick = reborn_use(a, i, &hit);
		(void)reborn_use(b, i, &hit_b);
		SAME(hit == hit_b, i);
		for (uint32_t up = i; up != RADIX_NONE; up = radix_entry_parent(&a->table.v[up])) {
			if (use[up] < tick)
				use[up] = tick;
		}
	}
	for (uint32_t i = 0; i < a->table.n_used; i++) {
		uint64_t tick;
		bool hit;

		if (a->table.v[i].state != RADIX_ENTRY_READY)
			continue;
		tick = reborn_use(b, i, &hit);
		SAME(exact ? tick == use[i] : tick >= use[i] && tick <= a->now, i);
	}
	free(use);
}

void reborn_order(struct reborn *r, struct radix_index *a)
{
	struct radix_index *b = r->ix;

	for (uint32_t step = 0;; step++) {
		uint32_t n = radix_evict(a, 1, RADIX_REMOVE_EVICT);

		SAME(n == radix_evict(b, 1, RADIX_REMOVE_EVICT), step);
		for (uint32_t i = 0; i < a->table.n_used; i++)
			SAME(a->table.v[i].state == b->table.v[i].state, i);
		if (!n)
			return;
	}
}

void reborn_check(const struct radix_index *ix, const struct kept *k, bool exact)
{
	struct reborn b;

	reborn_init(&b, ix, k);
	reborn_recover(&b);
	reborn_same(&b, ix);
	reborn_uses(&b, ix, exact);
	reborn_deinit(&b);
}
