/*
 * engine_stripe.c - who has a seat at a lease that ranks share, what all of them have written, and
 * how it ends.
 *
 * What it guarantees.  A block is stored when every rank has committed it, and never when one of
 * them ended before.  The shared lease holds its path as long as any rank may read it, and its
 * slots as long as the process of any rank may write them: a rank that released it writes no more,
 * one that died does so until the grace is over.  A lease that every rank which came has released
 * waits a while for those that have not come, so that they are told the same.
 *
 * What it relies on.  A seat is a lease of its session, and ends as those do: engine_lease.c and
 * engine_session.c call prefixd_seat_*() where the end of one is decided.
 */
#include "daemon/engine_internal.h"
#include "daemon/stripe_sum.h"

#include <stdio.h>

#define JOIN_NS 10000000000u /* how long who has not come is waited for */

static struct prefixd_seat *seat_of(const struct prefixd_lease *l)
{
	return &l->stripe->seats[l->rank];
}

/* ---- life ------------------------------------------------------------------------------------ */

struct prefixd_stripe *prefixd_stripe_new(struct prefixd_engine *e, uint32_t n_ranks)
{
	struct prefixd_stripe *st = prefixd_take0(e->alloc, sizeof(*st));

	if (!st)
		return NULL;
	st->n_ranks = n_ranks;
	st->asking = RADIX_NONE;
	st->how = PREFIXD_END_RELEASED;
	st->join_due_ns = e->now_ns + JOIN_NS;
	radix_list_init(&st->open);
	radix_list_init(&st->due);
	radix_list_add_tail(&e->stripes_open, &st->open);
	return st;
}

void prefixd_stripe_free(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	radix_list_remove(&st->open);
	prefixd_calls_deinit(e, st);
	radix_give(e->alloc, st->sums, (size_t)st->sums_cap * st->n_ranks * sizeof(*st->sums));
	radix_give(e->alloc, st, sizeof(*st));
}

struct prefixd_lease *prefixd_seat_find(const struct prefixd_lease *l,
					const struct prefixd_session *s)
{
	for (uint32_t i = 0; prefixd_is_shared(l) && i < l->stripe->n_ranks; i++) {
		struct prefixd_lease *seat = l->stripe->seats[i].lease;

		if (seat && seat->session == s)
			return seat;
	}
	return NULL;
}

struct prefixd_lease *prefixd_seat_new(struct prefixd_engine *e, struct prefixd_session *s)
{
	return prefixd_note_session(e, s) < 0 ? NULL : prefixd_lease_new(e);
}

void prefixd_seat_begin(struct prefixd_engine *e, struct prefixd_stripe *st, uint32_t rank,
			struct prefixd_lease *l, struct prefixd_session *s)
{
	bool all = true;

	l->state = PREFIXD_LEASE_SEAT;
	l->seat = true;
	l->id = e->next_serial++ << PREFIXD_LEASE_IDX_BITS | l->idx;
	l->stripe = st;
	l->rank = rank;
	l->group = st->lease->group;
	l->session = s;
	l->begun_ns = e->now_ns;
	l->uid = s->peer.uid;
	l->pid = s->peer.pid;
	l->instance = s->instance;
	l->boot = s->boot;
	radix_list_add_tail(&s->leases, &l->link);
	s->n_leases++;
	st->seats[rank].lease = l;
	st->seats[rank].came = true;
	if (!s->copies) /* it cannot give blocks back, so nobody is asked to */
		radix_list_remove(&st->lease->aging);
	for (uint32_t i = 0; i < st->n_ranks; i++)
		all = all && st->seats[i].came;
	if (all)
		radix_list_remove(&st->open);
	prefixd_note_lease(e, l);
}

struct prefixd_session *prefixd_stripe_choose(const struct prefixd_stripe *st,
					      const struct prefixd_session *except)
{
	struct prefixd_session *any = NULL;

	for (uint32_t i = 0; i < st->n_ranks; i++) {
		const struct prefixd_lease *l = st->seats[i].lease;

		if (!l || !l->session || l->state == PREFIXD_LEASE_REVOKED)
			continue;
		any = l->session;
		if (any != except && any->state == PREFIXD_SESSION_READY)
			break;
	}
	return any;
}

void prefixd_stripe_speaks(struct prefixd_stripe *st, struct prefixd_session *s)
{
	struct prefixd_lease *l = st->lease;

	l->session = s;
	if (!s)
		return;
	l->uid = s->peer.uid;
	l->pid = s->peer.pid;
	l->instance = s->instance;
	l->boot = s->boot;
}

/* ---- what is decided when a rank ends -------------------------------------------------------- */

/* Nothing more is decided, and what one rank does not commit will not be stored. */
static void close_calls(struct prefixd_engine *e, struct prefixd_stripe *st,
			const struct prefixd_seat *seat, enum prefixd_lease_end how)
{
	struct prefixd_lease *l = st->lease;

	st->closed = true;
	prefixd_reserve_end(e, l, how);
	prefixd_wait_stop(e, l);
	l->leads_rest = false;
	if (seat->n_committed < st->n_stored + l->n_reserved)
		prefixd_pending_resign(e, l);
	else
		prefixd_pending_changed(e, l);
}

static void break_up(struct prefixd_engine *e, struct prefixd_stripe *st,
		     enum prefixd_lease_end how)
{
	struct prefixd_lease *l = st->lease;

	if (st->broken || l->state != PREFIXD_LEASE_ACTIVE)
		return;
	st->broken = st->closed = true;
	st->how = how;
	prefixd_reserve_end(e, l, PREFIXD_END_REVOKED);
	prefixd_wait_stop(e, l);
	prefixd_load_orphan(e, l);
	prefixd_pending_resign(e, l);
	prefixd_decision_over(e, st, how);
	e->counters.stripes_broken++;
}

/* ---- the end of the shared lease ------------------------------------------------------------- */

struct standing {
	bool readers;   /* some rank may read what it was given */
	bool remaining; /* or write, at least */
	bool missing;   /* some rank has not come */
};

static struct standing standing_of(const struct prefixd_stripe *st)
{
	struct standing s = { 0 };

	for (uint32_t i = 0; i < st->n_ranks; i++) {
		const struct prefixd_lease *l = st->seats[i].lease;

		s.missing = s.missing || !st->seats[i].came;
		s.remaining = s.remaining || l;
		s.readers = s.readers || (l && l->state == PREFIXD_LEASE_SEAT);
	}
	return s;
}

/* Nobody may write its slots any more.  Returns how many became free. */
static uint32_t end_all(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	struct prefixd_lease *l = st->lease;

	prefixd_stripe_free(e, st);
	l->stripe = NULL;
	return prefixd_lease_unquarantine(e, l);
}

uint32_t prefixd_stripe_settle(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	struct standing s = standing_of(st);
	struct prefixd_lease *l = st->lease;
	uint32_t n = l->n_own + l->n_reserved;

	if (l->state == PREFIXD_LEASE_ACTIVE && s.readers) {
		prefixd_stripe_speaks(st, prefixd_stripe_choose(st, NULL));
		if (l->session->state == PREFIXD_SESSION_ORPHAN)
			prefixd_fence_left(l);
		prefixd_calls_trim(e, st);
		return 0;
	}
	if (l->state == PREFIXD_LEASE_ACTIVE && s.missing && !st->shut && !st->broken) {
		prefixd_pending_resign(e, l);
		prefixd_stripe_speaks(st, NULL); /* for those that have not come */
		return 0;
	}
	if (l->state == PREFIXD_LEASE_ACTIVE) {
		prefixd_decision_over(e, st, st->how);
		prefixd_lease_end_shared(e, l, st->how, s.remaining);
	}
	if (s.remaining)
		return 0;
	(void)end_all(e, st);
	return n;
}

/* ---- the end of a seat ----------------------------------------------------------------------- */

void prefixd_seat_left(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_stripe *st = l->stripe;
	struct prefixd_session *speaker;

	if (l->state != PREFIXD_LEASE_SEAT || st->lease->state != PREFIXD_LEASE_ACTIVE)
		return;
	seat_of(l)->waits = false;
	break_up(e, st, PREFIXD_END_DIED);
	speaker = prefixd_stripe_choose(st, l->session);
	prefixd_stripe_speaks(st, speaker);
	if (speaker == l->session || speaker->state == PREFIXD_SESSION_ORPHAN)
		prefixd_fence_left(st->lease);
}

uint32_t prefixd_seat_over(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_stripe *st = l->stripe;

	seat_of(l)->lease = NULL;
	seat_of(l)->waits = false;
	if (l->session)
		l->session->n_leases--;
	l->stripe = NULL;
	l->seat = false;
	prefixd_lease_put_away(e, l);
	return prefixd_stripe_settle(e, st);
}

uint32_t prefixd_seat_frees(const struct prefixd_lease *l)
{
	const struct prefixd_stripe *st = l->stripe;

	for (uint32_t i = 0; i < st->n_ranks; i++)
		if (st->seats[i].lease && st->seats[i].lease != l)
			return 0;
	return st->lease->n_own + st->lease->n_reserved;
}

void prefixd_seat_finish(struct prefixd_engine *e, struct prefixd_lease *l,
			 enum prefixd_lease_end how)
{
	struct prefixd_stripe *st = l->stripe;

	if (how == PREFIXD_END_RELEASED) {
		close_calls(e, st, seat_of(l), how);
		if (seat_of(l)->waits) /* its RESERVE has just ended */
			prefixd_call_tell(e, st, l->rank);
	} else {
		break_up(e, st, how);
	}
	if (how == PREFIXD_END_DIED && e->config.grace_ns && prefixd_lease_keeps_slots(l)) {
		prefixd_lease_quarantine(e, l);
		(void)prefixd_stripe_settle(e, st);
		return;
	}
	(void)prefixd_seat_over(e, l);
}

void prefixd_stripe_revoke(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	struct prefixd_lease *seats[PREFIXD_RANKS_MAX];
	bool empty;
	uint32_t n = 0;

	st->broken = st->closed = true;
	st->how = PREFIXD_END_REVOKED;
	prefixd_decision_over(e, st, st->how);
	prefixd_lease_end_shared(e, st->lease, st->how, standing_of(st).remaining);
	empty = st->lease->n_own == 0;
	for (uint32_t i = 0; i < st->n_ranks; i++) {
		struct prefixd_lease *l = st->seats[i].lease;

		if (!l || l->state != PREFIXD_LEASE_SEAT)
			continue;
		if (st->seats[i].waits) { /* its RESERVE has just ended */
			prefixd_call_tell(e, st, i);
			l->told = !st->seats[i].waits;
			st->seats[i].waits = false;
		}
		l->state = PREFIXD_LEASE_REVOKED;
		seats[n++] = l;
	}
	if (!standing_of(st).remaining)
		(void)end_all(e, st);
	/* An orphan is not told that its reads are over; with the last of them it holds nothing. */
	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_session *s = seats[i]->session;

		if (!empty || s->state != PREFIXD_SESSION_ORPHAN)
			continue;
		(void)prefixd_seat_over(e, seats[i]);
		if (radix_list_empty(&s->leases) && prefixd_actions_room(e, 1) == 0)
			prefixd_session_die(e, s, PREFIXD_END_REVOKED);
	}
}

/* ---- time ------------------------------------------------------------------------------------ */

void prefixd_stripes_time(struct prefixd_engine *e, bool all)
{
	while (!radix_list_empty(&e->stripes_open)) {
		struct prefixd_stripe *st = radix_list_first(&e->stripes_open,
							     struct prefixd_stripe, open);

		if (!all && st->join_due_ns > e->now_ns)
			break;
		radix_list_remove(&st->open);
		st->shut = true;
		(void)prefixd_stripe_settle(e, st);
	}
}

uint64_t prefixd_stripes_deadline(const struct prefixd_engine *e)
{
	if (radix_list_empty(&e->stripes_open))
		return UINT64_MAX;
	return radix_list_first(&e->stripes_open, struct prefixd_stripe, open)->join_due_ns;
}

/* ---- COMMIT ---------------------------------------------------------------------------------- */

static struct prefixd_piece_sum *sums_at(const struct prefixd_lease *l, uint32_t place)
{
	return l->stripe->sums + (size_t)place * l->stripe->n_ranks;
}

/* Room for the sums of all places that the lease has.  Return: 0, -ENOMEM. */
static int sums_room(struct prefixd_engine *e, const struct prefixd_lease *l)
{
	struct prefixd_stripe *st = l->stripe;
	size_t each = st->n_ranks * sizeof(*st->sums);
	struct prefixd_piece_sum *v;

	if (st->sums_cap >= l->slots_cap)
		return 0;
	v = prefixd_take0(e->alloc, l->slots_cap * each);
	if (!v)
		return -ENOMEM;
	if (st->sums)
		memcpy(v, st->sums, st->sums_cap * each);
	radix_give(e->alloc, st->sums, st->sums_cap * each);
	st->sums = v;
	st->sums_cap = l->slots_cap;
	return 0;
}

/* What the slowest rank has committed; `rank` as if it had `n`. */
static uint32_t slowest(const struct prefixd_stripe *st, uint32_t rank, uint32_t n)
{
	uint32_t least = n;

	for (uint32_t i = 0; i < st->n_ranks; i++)
		if (i != rank)
			least = radix_min_u32(least, st->seats[i].n_committed);
	return least;
}

bool prefixd_stripe_commit(struct prefixd_engine *e, struct prefixd_request *rq,
			   struct prefixd_lease *l, const struct proto_commit_req *m,
			   uint32_t *ret_now)
{
	struct prefixd_stripe *st = l->stripe;
	const struct prefixd_seat *seat = seat_of(rq->seat);
	uint32_t ahead = seat->n_committed - st->n_stored;

	if (st->broken) {
		prefixd_refuse(e, rq, PROTO_STATUS_REVOKED, "lease",
			       "another rank of this lease ended before it was written: nothing of "
			       "it is stored any more; RELEASE it");
		return false;
	}
	if (m->n > l->n_reserved - ahead) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "n",
			       "%u blocks are to be committed, but %u are reserved and not "
			       "committed by this rank; RESERVE first",
			       m->n, l->n_reserved - ahead);
		return false;
	}
	if ((st->sums || m->checksum_kind) && sums_room(e, l) < 0) {
		prefixd_refuse_memory(e, rq);
		return false;
	}
	for (uint32_t i = 0; st->sums && i < m->n; i++) {
		struct prefixd_piece_sum *sum = sums_at(l, l->res_head + ahead + i) +
						rq->seat->rank;

		sum->kind = m->checksum_kind;
		if (m->checksum_kind)
			memcpy(sum->sum, (const uint8_t *)m->checksums.p + (size_t)i * 16, 16);
	}
	*ret_now = slowest(st, rq->seat->rank, seat->n_committed + m->n) - st->n_stored;
	return true;
}

void prefixd_stripe_block_sum(const struct prefixd_lease *l, struct radix_block *b)
{
	const struct prefixd_stripe *st = l->stripe;
	const struct prefixd_piece_sum *sums = st->sums ? sums_at(l, l->res_head) : NULL;
	uint8_t all[PREFIXD_RANKS_MAX][16];

	b->checksum_kind = PROTO_CHECKSUM_NONE;
	for (uint32_t i = 0; sums && i < st->n_ranks; i++) {
		if (sums[i].kind != sums[0].kind || sums[i].kind == PROTO_CHECKSUM_NONE)
			return;
		memcpy(all[i], sums[i].sum, sizeof(all[i]));
	}
	if (!sums)
		return;
	b->checksum_kind = sums[0].kind;
	prefixd_stripe_sum((const uint8_t(*)[16])all, st->n_ranks, b->checksum);
}

void prefixd_stripe_committed(struct prefixd_lease *l, uint32_t rank, uint32_t n, uint32_t stored,
			      struct radix_runs *runs)
{
	struct prefixd_stripe *st = l->stripe;
	struct prefixd_seat *seat = &st->seats[rank];
	uint32_t at;

	seat->n_committed += n;
	st->n_stored += stored;
	at = l->res_head + seat->n_committed - st->n_stored - (n - stored);
	for (uint32_t i = 0; i < n - stored; i++)
		prefixd_runs_add(runs, l->slots[at + i]);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static const char *shared_wrong(const struct prefixd_engine *e, const struct prefixd_lease *l)
{
	const struct prefixd_stripe *st = l->stripe;
	struct standing s = standing_of(st);

	if (radix_list_linked(&l->link))
		return "is on a list of its own";
	if (l->state == PREFIXD_LEASE_ACTIVE &&
	    slowest(st, 0, st->seats[0].n_committed) != st->n_stored)
		return "is stored to another block than its slowest rank has come to";
	if (l->state == PREFIXD_LEASE_ACTIVE && s.readers != (l->session != NULL))
		return "has readers and nobody who speaks, or the other way round";
	if (l->state == PREFIXD_LEASE_ACTIVE && !s.readers && !radix_list_linked(&st->open))
		return "is nobody's and waits for nobody";
	if (l->state != PREFIXD_LEASE_ACTIVE && (s.readers || !s.remaining || st->decision))
		return "has ended in part";
	if (st->broken && (prefixd_leads(l) || l->wait_serial || l->load || st->decision))
		return "is broken and goes on";
	for (uint32_t i = 0; i < st->n_ranks; i++) {
		const struct prefixd_seat *seat = &st->seats[i];

		if (seat->lease && (!seat->came || seat->lease->rank != i ||
				    seat->lease->group != l->group || seat->lease->n_own))
			return "has a seat that is not its rank's";
		if (seat->cursor > st->first_call + st->n_calls ||
		    (!seat->came && st->first_call > 0))
			return "has a rank that is to make a call which is not kept";
		if (l->state == PREFIXD_LEASE_ACTIVE &&
		    seat->n_committed > st->n_stored + l->n_reserved)
			return "has a rank that committed more than was reserved";
	}
	return e->n_active == 0 && l->state == PREFIXD_LEASE_ACTIVE ? "is not counted" : NULL;
}

int prefixd_stripes_verify(const struct prefixd_engine *e, char *why, size_t why_len)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];
		const char *text = NULL;

		if (!l->stripe)
			continue;
		if (prefixd_is_shared(l)) {
			text = shared_wrong(e, l);
			for (uint32_t k = 0; k < l->stripe->n_calls; k++)
				bytes += l->stripe->calls[k].cap;
		} else if (l->stripe->seats[l->rank].lease != l) {
			text = "has another's seat";
		}
		if (!text)
			continue;
		snprintf(why, why_len, "lease %u, which ranks share, %s", i, text);
		return 25;
	}
	if (bytes == e->call_bytes)
		return 0;
	snprintf(why, why_len, "%llu bytes of calls are kept, %llu counted",
		 (unsigned long long)bytes, (unsigned long long)e->call_bytes);
	return 25;
}
