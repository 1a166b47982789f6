/*
 * random_age.c - the random workers' leases that grow too old: those of workers that copy are taken
 * back, at the moment that the limit names and in the order in which they began.
 */
#include "tests/engine/random_internal.h"

static uint64_t due_of(const struct run *r, const struct session *s, const struct lease *l)
{
	if (!r->config.max_age_ns || !s->c || !s->copies || !l->used)
		return UINT64_MAX;
	return l->begun_ns + r->config.max_age_ns;
}

/* The lease whose time is over first; NULL: none has a limit. */
static struct lease *oldest(struct run *r, struct session **ret_s, uint64_t *ret_due)
{
	struct lease *first = NULL;

	*ret_due = UINT64_MAX;
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		for (uint32_t k = 0; k < N_LEASES; k++) {
			struct lease *l = &r->sessions[i].leases[k];
			uint64_t due = due_of(r, &r->sessions[i], l);

			if (due == UINT64_MAX || due > *ret_due ||
			    (due == *ret_due && first && l->id >> 20 > first->id >> 20))
				continue;
			*ret_s = &r->sessions[i];
			*ret_due = due;
			first = l;
		}
	}
	return first;
}

uint32_t random_revoked_slots(const struct run *r, const struct session *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_kept; i++)
		if (r->kept[i].due_ns == UINT64_MAX && &r->sessions[r->kept[i].session] == s)
			n += r->kept[i].n;
	return n;
}

static bool heard_of(const struct session *s, uint64_t lease)
{
	for (uint32_t i = 0; i < N_LEASES; i++)
		if (s->leases[i].revoked && s->leases[i].id == lease)
			return false;
	return true;
}

uint32_t random_quiesce(struct run *r, const struct session *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_kept;) {
		if (r->kept[i].due_ns != UINT64_MAX || &r->sessions[r->kept[i].session] != s ||
		    !heard_of(s, r->kept[i].lease)) {
			i++;
			continue;
		}
		n += r->kept[i].n;
		r->kept[i] = r->kept[--r->n_kept];
	}
	r->m.n_taken -= n;
	return n;
}

static void revoke(struct run *r, struct session *s, struct lease *l)
{
	bool holds = false;

	flight_fail(&r->flight, &l->f);
	random_lease_over(r, s, l, RANDOM_REVOKED);
	l->revoked = !s->orphan;
	r->result.n_revoked++;
	if (!s->orphan)
		return;
	for (uint32_t i = 0; i < N_LEASES; i++)
		holds |= s->leases[i].used;
	if (holds || random_revoked_slots(r, s))
		return;
	world_check(&r->w, !s->c->used); /* an orphan that holds nothing is forgotten */
	s->c = NULL;
	s->orphan = false;
}

void random_pass(struct run *r, uint64_t ns)
{
	struct session *s = NULL;
	struct lease *l;
	uint64_t due;

	world_advance(&r->w, ns);
	while ((l = oldest(r, &s, &due)) != NULL && due <= r->w.now_ns) {
		uint64_t now = due;

		/* What was due before; then all of that moment, as one step of the engine. */
		if (now > r->flight.now)
			flight_time(&r->flight, now - 1);
		while (l && due == now) {
			revoke(r, s, l);
			l = oldest(r, &s, &due);
		}
		flight_time(&r->flight, now);
		flight_settle(&r->flight);
	}
	flight_time(&r->flight, r->w.now_ns);
}

void random_hear_of(struct run *r, struct session *s, struct lease *l)
{
	struct proto_release_req m = { .lease = l->id };
	struct proto_release_rep rep;
	bool slots = l->n_res + l->n_own > 0;
	int status = world_release(s->c, &m, &rep);

	world_check(&r->w, status == PROTO_STATUS_REVOKED);
	if (!slots) /* with slots it stays known until QUIESCED */
		world_check(&r->w, world_release(s->c, &m, &rep) == PROTO_STATUS_UNKNOWN_LEASE);
	l->revoked = false;
}
