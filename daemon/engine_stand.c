/*
 * engine_stand.c - where the leases of a group stood when an earlier life ended.
 *
 * What it guarantees.  The places of a lease lead past every member that its worker may read: its
 * new place, if that came to be, else its old one; what is left of the way there, where blocks of
 * it were lost; and, where damage has made islands of what hung below it, what is before each.
 *
 * What it relies on.  The leases' records, read before the recovery of the index (stands_read) and
 * looked up after it, until radix_recover_end().
 */
#include "daemon/engine_internal.h"

enum {
	OF_LEASE = 4,       /* pin and donor of both halves */
	WITHOUT_DAMAGE = 6, /* places of a lease at most */
};

/* ---- what the records say -------------------------------------------------------------------- */

void prefixd_stands_deinit(struct prefixd_engine *e, struct prefixd_stands *stands)
{
	radix_give(e->alloc, stands->v, stands->cap * sizeof(*stands->v));
	radix_give(e->alloc, stands->places, stands->cap_places * sizeof(*stands->places));
	*stands = (struct prefixd_stands){ 0 };
}

static void stand_add(struct prefixd_stands *s, bool is, uint32_t entry, uint64_t generation)
{
	s->v[s->n++].block = (struct radix_member){ is ? entry : RADIX_NONE, generation };
}

int prefixd_stands_read(struct prefixd_engine *e, const struct prefixd_group *g,
			struct prefixd_stands *ret)
{
	struct prefixd_stands s = { .cap = 1 };

	for (uint32_t i = 0; i < e->n_leases; i++)
		s.cap += prefixd_is_kept(g, e->leases[i]) ? OF_LEASE : 0;
	s.v = prefixd_take0(e->alloc, s.cap * sizeof(*s.v));
	if (!s.v)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];
		struct prefixd_lease_half half[2];
		struct prefixd_lease_name name;
		bool damaged;

		if (!prefixd_is_kept(g, l))
			continue;
		(void)prefixd_ledger_lease_read(l->record, l->idx, &name, half, &damaged);
		for (uint32_t k = 0; k < 2; k++) {
			stand_add(&s, half[k].check, half[k].pin, half[k].pin_generation);
			stand_add(&s, half[k].check, half[k].donor, half[k].donor_generation);
		}
	}
	*ret = s;
	return 0;
}

int prefixd_stands_recovered(struct prefixd_engine *e, const struct radix_index *ix,
			     struct prefixd_stands *stands)
{
	stands->cap_places = WITHOUT_DAMAGE + radix_recover_cuts(ix);
	stands->places = radix_take(e->alloc, stands->cap_places * sizeof(*stands->places));
	if (stands->places)
		return 0;
	stands->cap_places = 0;
	return -ENOMEM;
}

/* ---- the places ------------------------------------------------------------------------------ */

struct places {
	const struct radix_index *ix;
	uint32_t root;
	struct radix_place *v;
	uint32_t n;
};

/*
 * Does who holds `pin` hold `at` with it?  Then it is no place of its own: it would take up the one
 * that a lease has beside its pin.
 */
static bool leads_past(const struct places *p, const struct radix_place *pin,
		       const struct radix_place *at)
{
	const struct radix_place both[2] = { *pin, *at };

	return pin->depth >= at->depth && radix_paths_blocks(p->ix, both, 2) == pin->depth;
}

static void add(struct places *p, const struct radix_place *at)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (leads_past(p, &p->v[i], at))
			return;
	p->v[p->n++] = *at;
}

/* Return: it is a member of this root. */
static bool add_member(struct places *p, struct radix_member block)
{
	struct radix_place at;

	if (radix_member_place(p->ix, block, &at) != 0 || at.root != p->root)
		return false;
	add(p, &at);
	return true;
}

/* The block, or what is left of the way there: who read it reads that too. */
static bool add_stand(struct places *p, const struct radix_stand *s)
{
	if (add_member(p, s->block))
		return true;
	(void)add_member(p, s->before);
	return false;
}

uint32_t prefixd_stand_places(const struct prefixd_stands *stands, uint32_t i,
			      const struct radix_index *ix, uint32_t root, bool digest,
			      const struct prefixd_lease_half half[2], bool *ret_other)
{
	const struct radix_stand *s = &stands->v[(size_t)i * OF_LEASE];
	struct places p = { .ix = ix, .root = root, .v = stands->places };
	struct radix_place at = radix_place_root(root);
	bool found = false, donor = false;
	uint32_t last = 0;

	radix_assert((i + 1) * OF_LEASE <= stands->n);
	/* At its new place, if that came to be, else at its old one. */
	for (uint32_t k = 0; k < 2 && !found; k++) {
		if (!half[k].check)
			continue;
		last = k;
		found = half[k].pin == RADIX_NONE || add_stand(&p, &s[2 * k]);
	}
	if (p.n == 0)
		p.v[p.n++] = at;
	for (uint32_t k = 0; k <= last && !donor; k++)
		donor = digest ? add_stand(&p, &s[2 * k + 1]) : add_member(&p, s[2 * k + 1].block);
	/* A new place that was an island already may not have come to hang at the old one. */
	if (digest && !last && half[0].check)
		(void)add_stand(&p, &s[2]);
	for (uint32_t k = 0; k < p.n; k++)
		if (radix_recover_above(ix, &p.v[k], &at) == 0)
			add(&p, &at);
	radix_assert(p.n <= stands->cap_places);
	*ret_other = last;
	return p.n;
}
