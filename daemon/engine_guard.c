/*
 * engine_guard.c - what one peer may take from the others: seats at the table, slots of a pool.
 *
 * What it guarantees.  The sessions of one process are bounded, those that lost their socket and
 * still hold blocks by a number of their own, so that a worker that connects for ever, or lets go
 * of its socket for ever, fills neither the table nor the pool by it.  A worker whose orphans are
 * too many is still let in, for only so can it say QUIESCED; it gets no lease before it has.  A
 * limit of slots binds who met it, and never others.
 *
 * What it relies on.  The kernel says who a peer is.  Where it cannot tell (a peer of another pid
 * namespace has process number 0), the limits of one process do not apply; those of one user do.
 */
#include "daemon/engine_internal.h"
#include "radix/windows.h"

#define TOLD_TABLE 64u         /* so many beyond a limit may still connect, to be told why not */
#define TOLD_PEER  4u          /* of one process or user */
#define ASKS_NS    1000000000u /* "others ask": another session got nothing this recently */

/* ---- seats ----------------------------------------------------------------------------------- */

static bool same_process(const struct prefixd_peer *a, const struct prefixd_peer *b)
{
	return a->pid == b->pid && a->start_time == b->start_time && a->uid == b->uid;
}

struct company {
	uint32_t connected, orphans; /* of the same process */
	uint32_t user;               /* of the same user, orphans too */
};

/* Operators are no company: they come in at any time. */
static struct company company_of(const struct prefixd_engine *e, const struct prefixd_peer *peer)
{
	struct company c = { 0 };

	for (uint32_t i = 0; i < e->sessions.n; i++) {
		const struct prefixd_session *s = radix_container_of(e->sessions.v[i],
								     struct prefixd_session, item);

		if (s->peer.admin || s->peer.uid != peer->uid)
			continue;
		c.user++;
		if (!same_process(&s->peer, peer))
			continue;
		c.orphans += s->state == PREFIXD_SESSION_ORPHAN;
		c.connected += s->state != PREFIXD_SESSION_ORPHAN;
	}
	return c;
}

static void count_refused(struct prefixd_engine *e, enum prefixd_guard over)
{
	switch (over) {
	case PREFIXD_GUARD_NONE:
		break;
	case PREFIXD_GUARD_SESSIONS:
		e->counters.refused_sessions++;
		break;
	case PREFIXD_GUARD_PROCESS:
		e->counters.refused_process++;
		break;
	case PREFIXD_GUARD_USER:
		e->counters.refused_user++;
		break;
	}
}

bool prefixd_guard_seat(struct prefixd_engine *e, const struct prefixd_peer *peer,
			enum prefixd_guard *ret_over)
{
	const struct prefixd_limits *lim = &e->config.limits;
	uint64_t process = lim->max_sessions_per_process, user = lim->max_sessions_per_user;
	struct company c;
	bool told = true;

	*ret_over = PREFIXD_GUARD_NONE;
	if (peer->admin)
		return true;
	c = company_of(e, peer);
	if (process && peer->pid && c.connected >= process) {
		*ret_over = PREFIXD_GUARD_PROCESS;
		told = c.connected < process + TOLD_PEER;
	} else if (user && c.user >= user) {
		*ret_over = PREFIXD_GUARD_USER;
		told = c.user < user + TOLD_PEER;
	}
	if (e->sessions.n >= lim->max_sessions) {
		if (*ret_over == PREFIXD_GUARD_NONE)
			*ret_over = PREFIXD_GUARD_SESSIONS;
		told = told && e->sessions.n < (uint64_t)lim->max_sessions + TOLD_TABLE;
	}
	if (!told)
		count_refused(e, *ret_over);
	return told;
}

bool prefixd_guard_hello(struct prefixd_engine *e, struct prefixd_request *rq)
{
	const struct prefixd_limits *lim = &e->config.limits;
	const struct prefixd_peer *peer = &rq->s->peer;

	count_refused(e, rq->s->over);
	switch (rq->s->over) {
	case PREFIXD_GUARD_NONE:
		return true;
	case PREFIXD_GUARD_SESSIONS:
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, NULL,
			       "%u sessions are connected, which is the limit; end some or raise "
			       "max-sessions",
			       lim->max_sessions);
		return false;
	case PREFIXD_GUARD_PROCESS:
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, NULL,
			       "process %u has %u connections, which is the limit of one process; "
			       "end some or raise max-sessions-per-process",
			       peer->pid, lim->max_sessions_per_process);
		return false;
	case PREFIXD_GUARD_USER:
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, NULL,
			       "user %u has %u sessions, which is the limit of one user; end some "
			       "or raise max-sessions-per-user",
			       peer->uid, lim->max_sessions_per_user);
		return false;
	}
	radix_assert(false);
}

bool prefixd_guard_match(struct prefixd_engine *e, struct prefixd_request *rq)
{
	uint32_t most = e->config.limits.max_sessions_per_process, orphans;

	/* Mostly there are not even so many orphans of all processes together. */
	if (most == 0 || e->n_orphans < most || rq->s->peer.pid == 0)
		return true;
	orphans = company_of(e, &rq->s->peer).orphans;
	if (orphans < most)
		return true;
	e->counters.refused_orphans++;
	prefixd_refuse(
		e, rq, PROTO_STATUS_LIMIT, NULL,
		"process %u left %u sessions behind that still hold blocks, and may leave %u; "
		"say QUIESCED when its device is done with them",
		rq->s->peer.pid, orphans, most);
	return false;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Places of one edge together, the deepest first, as radix_paths_held() wants them. */
static bool place_before(const struct radix_place *a, const struct radix_place *b)
{
	return a->node != b->node ? a->node < b->node : a->idx > b->idx;
}

/* Heap sort: no memory, no recursion, and a peer cannot make it slow. */
static void places_sort(struct radix_place *v, uint32_t n)
{
	for (uint32_t end = n, from = n / 2; end > 1;) {
		uint32_t i, child;
		struct radix_place it;

		if (from > 0) {
			it = v[--from];
		} else {
			it = v[--end];
			v[end] = v[0];
		}
		for (i = from; (child = 2 * i + 1) < end; i = child) {
			if (child + 1 < end && place_before(&v[child], &v[child + 1]))
				child++;
			if (!place_before(&it, &v[child]))
				break;
			v[i] = v[child];
		}
		v[i] = it;
	}
}

struct prefixd_holds prefixd_holds_begin(const struct prefixd_engine *e)
{
	/* What this step has not written of its output is room to sort in: a frame's worth. */
	size_t at = (e->out_len + 63) & ~(size_t)63;

	return (struct prefixd_holds){
		.places = (struct radix_place *)(void *)(e->out + at),
		.room = at < e->out_cap ? (e->out_cap - at) / sizeof(struct radix_place) : 0,
	};
}

void prefixd_holds_add(struct prefixd_holds *h, const struct prefixd_lease *l)
{
	h->held += l->n_own + l->n_reserved;
	if (l->state != PREFIXD_LEASE_ACTIVE)
		return;
	for (int i = 0; i < 1 + l->donor_held; i++) {
		const struct radix_place *at = i ? &l->donor.at : &l->pin.at;

		if (l->window) /* no more is kept, and not much of that is shared */
			h->held += radix_min_u32(at->depth, l->root->ns->window);
		else if (h->n < h->room)
			h->places[h->n++] = *at;
		else
			h->held += at->depth; /* as if nothing was shared */
	}
}

uint64_t prefixd_holds_end(struct prefixd_holds *h, const struct prefixd_group *g)
{
	places_sort(h->places, (uint32_t)h->n);
	return h->held + radix_paths_held(g->index, h->places, (uint32_t)h->n);
}

static uint64_t blocks_held(const struct prefixd_engine *e, const struct prefixd_session *s,
			    const struct prefixd_group *g)
{
	struct prefixd_holds h = prefixd_holds_begin(e);
	struct radix_list *it;

	radix_list_foreach(it, &s->leases) {
		const struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		l = prefixd_lease_counts(l);
		if (l && l->group == g)
			prefixd_holds_add(&h, l);
	}
	return prefixd_holds_end(&h, g);
}

/* Without a share, or while nobody else went away empty lately, as many as there are. */
static uint32_t share_left(const struct prefixd_engine *e, const struct prefixd_session *s,
			   const struct prefixd_group *g)
{
	uint64_t share = (uint64_t)g->n_slots * e->config.limits.max_pins_share / 100;
	uint64_t held;

	if (e->config.limits.max_pins_share == 0 || g->busy_session == RADIX_NONE ||
	    g->busy_session == s->number || e->now_ns - g->busy_ns > ASKS_NS)
		return UINT32_MAX;
	held = blocks_held(e, s, g);
	return held >= share ? 0 : (uint32_t)(share - held);
}

static uint32_t reserved_left(const struct prefixd_engine *e, const struct prefixd_session *s)
{
	uint32_t most = e->config.limits.max_reserved;
	struct radix_list *it;
	uint64_t reserved = 0;

	if (most == 0)
		return UINT32_MAX;
	radix_list_foreach(it, &s->leases) {
		const struct prefixd_lease *l =
			prefixd_lease_counts(radix_list_entry(it, struct prefixd_lease, link));

		reserved += l ? l->n_reserved : 0;
	}
	return reserved >= most ? 0 : most - (uint32_t)reserved;
}

uint32_t prefixd_guard_reserve(const struct prefixd_engine *e, const struct prefixd_session *s,
			       const struct prefixd_group *g)
{
	return radix_min_u32(reserved_left(e, s), share_left(e, s, g));
}
