/*
 * engine_stripe_kept.c - leases that ranks share, of an earlier life.
 *
 * What it guarantees.  Such a lease holds its path and its slots until the process of every rank
 * that had a seat at it has ended or said QUIESCED.  Nothing of it is committed any more, and who
 * asks with its decision id is told that it is over.
 *
 * What it relies on.  The shared lease was written down before its first seat, and each seat before
 * its rank was answered.  A record of a shared lease without seats was nobody's.
 */
#include "daemon/engine_internal.h"

int prefixd_stripe_again(struct prefixd_engine *e, const struct prefixd_lease_name *name)
{
	struct prefixd_lease *l = e->leases[name->idx];
	struct prefixd_group *g = e->groups[name->group];
	struct prefixd_stripe *st;

	if (name->n_ranks != g->n_ranks || g->n_ranks < 2)
		return 1;
	st = prefixd_stripe_new(e, name->n_ranks);
	if (!st)
		return -ENOMEM;
	radix_list_remove(&st->open);
	st->shut = st->closed = st->broken = true;
	st->how = PREFIXD_END_DIED;
	st->lease = l;
	st->was = name->decision;
	radix_list_remove(&l->link); /* it was free */
	l->state = PREFIXD_LEASE_KEPT;
	l->stripe = st;
	l->restored = true;
	l->id = name->id;
	l->group = g;
	l->begun_ns = e->now_ns;
	g->n_restored++;
	return 0;
}

int prefixd_seat_again(struct prefixd_engine *e, const struct prefixd_lease_name *name)
{
	uint32_t idx = (uint32_t)(name->shared & ((1u << PREFIXD_LEASE_IDX_BITS) - 1));
	struct prefixd_lease *shared = idx < e->n_leases ? e->leases[idx] : NULL;
	struct prefixd_lease *l = e->leases[name->idx];
	struct prefixd_seat *seat;

	if (!shared || shared->id != name->shared || !prefixd_is_shared(shared) ||
	    shared->group->id != name->group || name->rank >= shared->stripe->n_ranks)
		return 1;
	seat = &shared->stripe->seats[name->rank];
	if (seat->lease)
		return 1; /* two say that they are the same rank */
	l->stripe = shared->stripe;
	l->seat = true;
	l->rank = name->rank;
	seat->lease = l;
	seat->came = true;
	return 0;
}

static void shared_drop(struct prefixd_engine *e, struct prefixd_lease *l)
{
	prefixd_stripe_free(e, l->stripe);
	l->stripe = NULL;
	prefixd_lease_put_away(e, l);
}

void prefixd_stripes_lonely(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_leases; i++) {
		struct prefixd_lease *l = e->leases[i];

		if (l->state == PREFIXD_LEASE_KEPT && prefixd_is_shared(l) && !l->session)
			shared_drop(e, l);
	}
}

void prefixd_stripes_give_up(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_leases; i++) {
		e->leases[i]->seat = false;
		if (e->leases[i]->stripe && e->leases[i]->stripe->lease != e->leases[i])
			e->leases[i]->stripe = NULL; /* a seat goes as a lease of its session */
	}
	for (uint32_t i = 0; i < e->n_leases; i++)
		if (e->leases[i]->stripe)
			shared_drop(e, e->leases[i]);
}

void prefixd_seat_kept_over(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_lease *shared = l->stripe->lease;
	struct prefixd_session *s = prefixd_stripe_choose(l->stripe, NULL);

	(void)e;
	prefixd_stripe_speaks(l->stripe, s);
	if (s)
		return;
	shared->over = true; /* with its last seat */
	shared->how = l->how;
}

/* One seat of a lease whose group is there.  What it shares may be gone afterwards. */
static void seat_adopted(struct prefixd_engine *e, struct prefixd_lease *l, bool active)
{
	struct prefixd_session *s = l->session;

	if (!l->over && (active || prefixd_lease_keeps_slots(l))) {
		l->state = active ? PREFIXD_LEASE_SEAT : PREFIXD_LEASE_REVOKED;
		return;
	}
	if (l->over && l->how == PREFIXD_END_DIED && e->config.grace_ns &&
	    prefixd_lease_keeps_slots(l)) {
		l->state = PREFIXD_LEASE_QUARANTINE;
		l->due_ns = e->now_ns + e->config.grace_ns;
		radix_list_add_tail(&e->quarantine, &l->link);
		return;
	}
	l->state = PREFIXD_LEASE_REVOKED;
	(void)prefixd_seat_over(e, l);
	if (s && radix_list_empty(&s->leases))
		prefixd_session_die(e, s, PREFIXD_END_DIED);
}

void prefixd_stripe_adopted(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_lease *seats[PREFIXD_RANKS_MAX];
	bool active = l->state == PREFIXD_LEASE_ACTIVE;
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->stripe->n_ranks; i++)
		if (l->stripe->seats[i].lease)
			seats[n++] = l->stripe->seats[i].lease;
	if (active)
		prefixd_decision_again(e, &l->stripe->was, l->root->ns->id, l->root->tenant);
	else
		l->session = NULL;
	/* Those that stay first: the last that ends takes along what it shares. */
	for (uint32_t k = 0; k < 2; k++)
		for (uint32_t i = 0; i < n; i++)
			if (seats[i] && seats[i]->over == (k == 1)) {
				seat_adopted(e, seats[i], active);
				seats[i] = NULL;
			}
}

void prefixd_stripe_unadopted(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_lease *seats[PREFIXD_RANKS_MAX];
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->stripe->n_ranks; i++)
		if (l->stripe->seats[i].lease)
			seats[n++] = l->stripe->seats[i].lease;
	l->session = NULL;
	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_session *s = seats[i]->session;

		(void)prefixd_seat_over(e, seats[i]);
		if (s && radix_list_empty(&s->leases))
			prefixd_session_die(e, s, PREFIXD_END_DIED);
	}
}
