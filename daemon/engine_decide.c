/*
 * engine_decide.c - requests of ranks: who asks first with a decision id, who asks again, and who
 * comes too late.
 *
 * What it guarantees.  One decision id of a namespace and a tenant is one shared lease, for as long
 * as the engine remembers it: while the lease lives, and for a while afterwards.  Whoever asks with
 * it then is told that it is over, and never gets another answer.  A rank is told nothing of a
 * lease before it has shown that it may name the tenant, and asks for the same.
 *
 * What it relies on.  engine_calls.c carries out and repeats; engine_stripe.c keeps the seats.
 */
#include "daemon/engine_internal.h"
#include "radix/hash.h"

#define DECISIONS_OVER 4096u /* remembered; the oldest go */

/* ---- decisions ------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct prefixd_engine *e, const struct proto_id *id, uint32_t ns,
			uint32_t tenant)
{
	return radix_hash(id->b, sizeof(id->b),
			  e->config.secret[0] ^ ((uint64_t)ns << 32 | tenant));
}

static struct prefixd_decision *find(const struct prefixd_engine *e, const struct proto_id *id,
				     uint32_t ns, uint32_t tenant)
{
	struct prefixd_item *it = prefixd_set_at(&e->decisions, hash_of(e, id, ns, tenant));

	for (; it; it = it->next) {
		struct prefixd_decision *d = radix_container_of(it, struct prefixd_decision, item);

		if (d->ns == ns && d->tenant == tenant && proto_id_equal(&d->id, id))
			return d;
	}
	return NULL;
}

static void forget(struct prefixd_engine *e, struct prefixd_decision *d)
{
	e->n_decisions_over -= radix_list_linked(&d->link);
	radix_list_remove(&d->link);
	prefixd_set_del(&e->decisions, &d->item);
	radix_give(e->alloc, d, sizeof(*d));
}

static void expire(struct prefixd_engine *e)
{
	while (!radix_list_empty(&e->decisions_over)) {
		struct prefixd_decision *d = radix_list_first(&e->decisions_over,
							      struct prefixd_decision, link);

		if (e->n_decisions_over <= DECISIONS_OVER &&
		    e->now_ns - d->over_ns <= e->config.limits.op_id_ns)
			return;
		forget(e, d);
	}
}

static struct prefixd_decision *decision_new(struct prefixd_engine *e, const struct proto_id *id,
					     uint32_t ns, uint32_t tenant)
{
	struct prefixd_decision *d;

	if (prefixd_set_room(e->alloc, &e->decisions) < 0)
		return NULL;
	d = prefixd_take0(e->alloc, sizeof(*d));
	if (!d)
		return NULL;
	d->id = *id;
	d->ns = ns;
	d->tenant = tenant;
	radix_list_init(&d->link);
	prefixd_set_add(&e->decisions, &d->item, hash_of(e, id, ns, tenant));
	return d;
}

void prefixd_decision_over(struct prefixd_engine *e, struct prefixd_stripe *st,
			   enum prefixd_lease_end how)
{
	struct prefixd_decision *d = st->decision;

	if (!d)
		return;
	st->decision = NULL;
	d->stripe = NULL;
	d->how = how;
	d->over_ns = e->now_ns;
	radix_list_add_tail(&e->decisions_over, &d->link);
	e->n_decisions_over++;
}

void prefixd_decision_again(struct prefixd_engine *e, const struct proto_id *id, uint32_t ns,
			    uint32_t tenant)
{
	struct prefixd_decision *d = find(e, id, ns, tenant) ? NULL
							     : decision_new(e, id, ns, tenant);

	if (!d)
		return; /* without memory a rank that comes late decides anew */
	d->how = PREFIXD_END_DIED;
	d->over_ns = e->now_ns;
	radix_list_add_tail(&e->decisions_over, &d->link);
	e->n_decisions_over++;
}

void prefixd_decisions_deinit(struct prefixd_engine *e)
{
	while (e->decisions.n)
		forget(e, radix_container_of(e->decisions.v[0], struct prefixd_decision, item));
	prefixd_set_deinit(e->alloc, &e->decisions);
}

static void refuse_over(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct prefixd_decision *d)
{
	if (d->how == PREFIXD_END_RELEASED)
		prefixd_refuse(e, rq, PROTO_STATUS_UNKNOWN_LEASE, "decision_id",
			       "the lease of this decision is over: this rank came too late, or "
			       "the first one was refused; compute, and take a fresh id next time");
	else
		prefixd_refuse(e, rq, PROTO_STATUS_REVOKED, "decision_id",
			       "a rank of this decision's lease ended, or it was taken back; "
			       "compute, and take a fresh id next time");
}

/* ---- MATCH ----------------------------------------------------------------------------------- */

static uint64_t span_hash(const struct prefixd_engine *e, struct proto_span s)
{
	return radix_hash(s.n ? s.p : "", s.n, e->config.secret[1]);
}

static void asked_match(const struct prefixd_engine *e, const struct proto_match_req *m,
			struct prefixd_asked *ret)
{
	*ret = (struct prefixd_asked){
		.op = PROTO_OP_MATCH,
		.op_id = m->op_id,
		.fields = { m->flags, m->n_tokens, span_hash(e, m->parent), span_hash(e, m->keys),
			    span_hash(e, m->tail), span_hash(e, m->salt) },
	};
}

/* May this session sit at the lease as its rank?  False: answered. */
static bool join_check(struct prefixd_engine *e, struct prefixd_request *rq,
		       const struct prefixd_stripe *st)
{
	const struct prefixd_seat *seat = &st->seats[rq->s->rank];

	if (seat->came) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "decision_id",
			       "rank %u has asked with this id already; each request has an id of "
			       "its own, and each rank asks with it once",
			       rq->s->rank);
		return false;
	}
	if (rq->s->version != st->version) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, NULL,
			       "the ranks of a lease speak one version of the protocol; the first "
			       "one spoke %u",
			       st->version);
		return false;
	}
	prefixd_lease_place(e, rq->s);
	if (!prefixd_guard_match(e, rq))
		return false;
	if (rq->s->n_leases < e->config.limits.max_leases)
		return true;
	prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, NULL,
		       "this session holds %u leases, which is the limit; RELEASE some",
		       rq->s->n_leases);
	return false;
}

static void match_join(struct prefixd_engine *e, struct prefixd_request *rq,
		       struct prefixd_stripe *st, const struct prefixd_asked *asked)
{
	struct prefixd_seat *seat = &st->seats[rq->s->rank];
	struct prefixd_lease *l;

	if (!join_check(e, rq, st))
		return;
	l = prefixd_seat_new(e, rq->s);
	if (!l) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	prefixd_call(e, rq, st, rq->s->rank, asked, prefixd_op_match);
	if (seat->cursor == 0 && !seat->waits) { /* it was refused */
		prefixd_lease_cancel(e, l);
		return;
	}
	prefixd_seat_begin(e, st, rq->s->rank, l, rq->s);
	if (!st->lease->session) /* those that came before have released it */
		prefixd_stripe_speaks(st, rq->s);
}

static void match_first(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct proto_match_req *m, const struct prefixd_namespace *ns,
			const struct prefixd_asked *asked)
{
	struct prefixd_lease *l = prefixd_seat_new(e, rq->s);
	struct prefixd_stripe *st = l ? prefixd_stripe_new(e, ns->group->n_ranks) : NULL;
	struct prefixd_decision *d;

	if (st)
		st->decision = decision_new(e, &m->decision_id, m->ns, m->tenant);
	if (!st || !st->decision) {
		prefixd_lease_cancel(e, l);
		if (st)
			prefixd_stripe_free(e, st);
		prefixd_refuse_memory(e, rq);
		return;
	}
	st->decision->stripe = st;
	st->version = rq->s->version;
	prefixd_call(e, rq, st, rq->s->rank, asked, prefixd_op_match);
	if (st->lease) {
		prefixd_seat_begin(e, st, rq->s->rank, l, rq->s);
		return;
	}
	/* No lease came of it, nor will one for the others. */
	d = st->decision;
	prefixd_decision_over(e, st, PREFIXD_END_RELEASED);
	if (st->n_calls == 0 || st->calls[0].status == PROTO_STATUS_NO_MEMORY)
		forget(e, d); /* nothing was decided: they may ask again */
	prefixd_stripe_free(e, st);
	prefixd_lease_cancel(e, l);
}

static bool on_match(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_root_name name;
	struct prefixd_decision *d;
	struct prefixd_asked asked;
	struct proto_match_req m;
	const char *bad;

	if (proto_match_req_decode_as(rq->s->version, rq->body, rq->h->len, &m, &bad))
		return false;
	name.ns = prefixd_session_ns(e, rq->s, m.ns);
	if (!name.ns || name.ns->group->n_ranks == 1)
		return false;
	if (prefixd_op_replayed(e, rq, &m.op_id) ||
	    !prefixd_root_name_check(e, rq, m.has, m.ns, m.tenant, m.salt, &name))
		return true;
	if (proto_id_is_zero(&m.decision_id)) {
		prefixd_refuse(e, rq, PROTO_STATUS_MISSING_FIELD, "decision_id",
			       "'decision_id' is zero; in a namespace with STRIPE all ranks send "
			       "one id for each request of the model");
		return true;
	}
	expire(e);
	asked_match(e, &m, &asked);
	d = find(e, &m.decision_id, m.ns, m.tenant);
	if (!d)
		match_first(e, rq, &m, name.ns, &asked);
	else if (!d->stripe)
		refuse_over(e, rq, d);
	else
		match_join(e, rq, d->stripe, &asked);
	return true;
}

/* ---- the others ------------------------------------------------------------------------------ */

/* What EXTEND, RESERVE and WAIT say.  False: the body does not decode. */
static bool read_asked(const struct prefixd_engine *e, const struct prefixd_request *rq,
		       struct prefixd_asked *ret)
{
	struct proto_extend_req extend;
	struct proto_reserve_req reserve;
	struct proto_wait_req wait;
	const char *bad;

	*ret = (struct prefixd_asked){ .op = rq->h->op };
	switch (rq->h->op) {
	case PROTO_OP_EXTEND:
		if (proto_extend_req_decode(rq->body, rq->h->len, &extend, &bad))
			return false;
		ret->lease = extend.lease;
		ret->op_id = extend.op_id;
		ret->fields[0] = extend.flags;
		ret->fields[1] = extend.n_tokens;
		ret->fields[2] = span_hash(e, extend.parent);
		ret->fields[3] = span_hash(e, extend.keys);
		ret->fields[4] = span_hash(e, extend.tail);
		return true;
	case PROTO_OP_RESERVE:
		if (proto_reserve_req_decode(rq->body, rq->h->len, &reserve, &bad))
			return false;
		ret->lease = reserve.lease;
		ret->op_id = reserve.op_id;
		ret->fields[0] = reserve.n;
		return true;
	default:
		if (proto_wait_req_decode(rq->body, rq->h->len, &wait, &bad))
			return false;
		ret->lease = wait.lease;
		return true;
	}
}

static struct prefixd_stripe *shared_at(const struct prefixd_engine *e, uint64_t id)
{
	uint32_t idx = (uint32_t)(id & ((1u << PREFIXD_LEASE_IDX_BITS) - 1));
	const struct prefixd_lease *l = idx < e->n_leases ? e->leases[idx] : NULL;

	return l && l->id == id && prefixd_is_shared(l) ? l->stripe : NULL;
}

static bool on_call(struct prefixd_engine *e, struct prefixd_request *rq, prefixd_handler *handler)
{
	struct prefixd_lease *seat;
	struct prefixd_stripe *st;
	struct prefixd_asked asked;

	if (!read_asked(e, rq, &asked))
		return false;
	st = shared_at(e, asked.lease);
	seat = st ? prefixd_seat_find(st->lease, rq->s) : NULL;
	/* Not its lease, or not any more: as with one that nobody shares. */
	if (!seat || seat->state != PREFIXD_LEASE_SEAT)
		return false;
	if (prefixd_op_replayed(e, rq, &asked.op_id))
		return true;
	if (st->broken)
		prefixd_refuse(e, rq, PROTO_STATUS_REVOKED, "lease",
			       "another rank of this lease has ended; compute, and RELEASE it when "
			       "its blocks are not read any more");
	else
		prefixd_call(e, rq, st, seat->rank, &asked, handler);
	return true;
}

bool prefixd_stripe_request(struct prefixd_engine *e, struct prefixd_request *rq)
{
	switch (rq->h->op) {
	case PROTO_OP_MATCH:
		return on_match(e, rq);
	case PROTO_OP_EXTEND:
		return on_call(e, rq, prefixd_op_extend);
	case PROTO_OP_RESERVE:
		return on_call(e, rq, prefixd_op_reserve);
	case PROTO_OP_WAIT:
		return on_call(e, rq, prefixd_op_wait);
	default:
		return false;
	}
}
