/*
 * engine_calls.c - what was decided for a lease that ranks share: once, and told to each of them.
 *
 * What it guarantees.  MATCH, EXTEND, RESERVE and WAIT of a shared lease are its calls.  The rank
 * that comes to one first has it carried out, and what came of it, a refusal too, is noted before
 * it is answered; every other rank gets the same answer in its turn, whatever happened meanwhile.
 * A rank that asks for something else than the first one did is refused.  Where the answer comes
 * later, or an EVENT follows it, each rank gets those too, under the number of its own request.
 *
 * What it relies on.  A request is carried out by the same function as one of a lease that nobody
 * shares, with `shared` set and the call's number for the request's: what would be sent is noted
 * instead, in room that was made before it took effect.
 */
#include "daemon/engine_internal.h"
#include "radix/hash.h"

#define CALLS_MAX   256u  /* that the slowest rank may be behind */
#define ANSWER_ROOM 1024u /* a refusal, or a small reply */
#define RETRY_NS    1000000u

static struct prefixd_call *call_at(const struct prefixd_stripe *st, uint64_t number)
{
	uint64_t i = number - st->first_call;

	return number >= st->first_call && i < st->n_calls ? &st->calls[i] : NULL;
}

static uint64_t calls_end(const struct prefixd_stripe *st)
{
	return st->first_call + st->n_calls;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* All that such leases keep is bounded as the keys of all leases are, and apart from them. */
static uint8_t *take_body(struct prefixd_engine *e, uint32_t cap)
{
	uint8_t *p;

	if (e->call_bytes + cap > e->config.lease_key_bytes)
		return NULL;
	p = radix_take(e->alloc, cap);
	if (p)
		e->call_bytes += cap;
	return p;
}

static void give_body(struct prefixd_engine *e, struct prefixd_call *call)
{
	radix_give(e->alloc, call->body, call->cap);
	e->call_bytes -= call->cap;
	call->body = NULL;
	call->cap = call->len = 0;
}

static int body_room(struct prefixd_engine *e, struct prefixd_call *call, uint32_t cap)
{
	uint8_t *body;

	if (call->cap >= cap)
		return 0;
	body = take_body(e, cap);
	if (!body)
		return -ENOMEM;
	give_body(e, call);
	call->body = body;
	call->cap = cap;
	return 0;
}

/* One more call, at the end.  NULL: no memory. */
static struct prefixd_call *call_new(struct prefixd_engine *e, struct prefixd_stripe *st,
				     const struct prefixd_asked *asked)
{
	uint32_t cap = st->calls_cap ? 2 * st->calls_cap : 4;
	struct prefixd_call *call, *v;

	if (st->n_calls == st->calls_cap) {
		v = prefixd_grow(e->alloc, st->calls, st->calls_cap * sizeof(*v), cap * sizeof(*v));
		if (!v)
			return NULL;
		st->calls = v;
		st->calls_cap = cap;
	}
	call = &st->calls[st->n_calls];
	memset(call, 0, sizeof(*call));
	if (body_room(e, call, ANSWER_ROOM) < 0)
		return NULL;
	call->op = asked->op;
	memcpy(call->fields, asked->fields, sizeof(call->fields));
	st->n_calls++;
	return call;
}

/* Has every rank that may still ask made this call, and been told all of it? */
static bool call_is_done(const struct prefixd_stripe *st, const struct prefixd_call *call,
			 uint64_t number)
{
	if (!call->answered || (call->tells && !call->event_known))
		return false;
	for (uint32_t i = 0; i < st->n_ranks; i++) {
		const struct prefixd_seat *seat = &st->seats[i];

		if ((seat->came && !seat->lease) ||
		    (seat->came && seat->cursor > number && (!call->tells || call->told & 1u << i)))
			continue;
		return false;
	}
	return true;
}

void prefixd_calls_trim(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	uint32_t n = 0;

	while (n < st->n_calls && call_is_done(st, &st->calls[n], st->first_call + n))
		give_body(e, &st->calls[n++]);
	if (n == 0)
		return;
	memmove(st->calls, st->calls + n, (st->n_calls - n) * sizeof(*st->calls));
	st->n_calls -= n;
	st->first_call += n;
}

void prefixd_calls_deinit(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	for (uint32_t i = 0; i < st->n_calls; i++)
		give_body(e, &st->calls[i]);
	radix_give(e->alloc, st->calls, st->calls_cap * sizeof(*st->calls));
	st->calls = NULL;
	st->n_calls = st->calls_cap = 0;
	radix_list_remove(&st->due);
}

/* ---- telling a rank -------------------------------------------------------------------------- */

static void stir(struct prefixd_engine *e, struct prefixd_stripe *st)
{
	if (!radix_list_linked(&st->due))
		radix_list_add_tail(&e->stripes_due, &st->due);
}

/* The answer of the call, to a rank's own request. */
static void send_answer(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct prefixd_call *call)
{
	struct prefixd_reply rp;

	prefixd_reply_begin(e, &rp, 0);
	memcpy(rp.w.p + rp.w.len, call->body, call->len);
	rp.w.len += call->len;
	rq->keep = rq->keep && call->status == PROTO_STATUS_OK;
	prefixd_reply_send_status(e, rq, &rp, call->status);
}

static bool can_send(struct prefixd_engine *e, uint32_t len)
{
	return prefixd_out_left(e) >= PROTO_HEADER_LEN + (size_t)len + 64 &&
	       prefixd_actions_room(e, 1) == 0;
}

/* False: there is no room in this step. */
static bool tell_answer(struct prefixd_engine *e, struct prefixd_stripe *st, uint32_t rank)
{
	struct prefixd_seat *seat = &st->seats[rank];
	struct prefixd_call *call = call_at(st, seat->cursor);
	struct proto_header h = { 0 };
	struct prefixd_request rq = {
		.s = seat->lease->session,
		.h = &h,
		.keep = seat->keep && e->config.limits.op_ids > 0,
		.op_id = seat->op_id,
		.body_hash = { seat->body_hash[0], seat->body_hash[1] },
	};

	if (!call->answered)
		return true;
	if (!can_send(e, call->len))
		return false;
	h.op = call->op;
	h.seq = call->seq[rank];
	send_answer(e, &rq, call);
	seat->waits = false;
	seat->cursor++;
	return true;
}

static bool tell_event(struct prefixd_engine *e, const struct prefixd_stripe *st, uint32_t rank,
		       struct prefixd_call *call)
{
	struct proto_header h = { .op = PROTO_OP_EVENT, .seq = call->seq[rank] };
	struct prefixd_request rq = { .s = st->seats[rank].lease->session, .h = &h };
	struct prefixd_reply rp;

	if (!can_send(e, PREFIXD_EVENT_ROOM))
		return false;
	prefixd_reply_begin(e, &rp, 0);
	proto_event_encode(&rp.w, &call->event);
	prefixd_reply_send(e, &rq, &rp);
	call->told |= (uint16_t)(1u << rank);
	return true;
}

static bool tell(struct prefixd_engine *e, struct prefixd_stripe *st, uint32_t rank)
{
	struct prefixd_seat *seat = &st->seats[rank];

	if (!seat->lease || !seat->lease->session ||
	    seat->lease->session->state != PREFIXD_SESSION_READY)
		return true; /* nobody listens any more */
	if (seat->waits && !tell_answer(e, st, rank))
		return false;
	for (uint32_t i = 0; i < st->n_calls && st->first_call + i < seat->cursor; i++) {
		struct prefixd_call *call = &st->calls[i];

		if (call->event_known && !(call->told & 1u << rank) &&
		    !tell_event(e, st, rank, call))
			return false;
	}
	return true;
}

void prefixd_call_tell(struct prefixd_engine *e, struct prefixd_stripe *st, uint32_t rank)
{
	if (!tell(e, st, rank))
		stir(e, st);
}

void prefixd_calls_settle(struct prefixd_engine *e)
{
	while (!radix_list_empty(&e->stripes_due)) {
		struct prefixd_stripe *st = radix_list_first(&e->stripes_due, struct prefixd_stripe,
							     due);

		for (uint32_t i = 0; i < st->n_ranks; i++) {
			if (tell(e, st, i))
				continue;
			/* The rest is told in the next step, or when there is memory again. */
			e->calls_again_ns = e->now_ns + (e->out_len ? 1 : RETRY_NS);
			return;
		}
		radix_list_remove(&st->due);
		prefixd_calls_trim(e, st);
	}
	e->calls_again_ns = UINT64_MAX;
}

uint64_t prefixd_calls_deadline(const struct prefixd_engine *e)
{
	return radix_list_empty(&e->stripes_due) ? UINT64_MAX : e->calls_again_ns;
}

/* ---- what came of a call --------------------------------------------------------------------- */

int prefixd_call_room(struct prefixd_engine *e, struct prefixd_request *rq,
		      const struct proto_id *op_id, uint32_t max_len)
{
	struct prefixd_call *call = call_at(rq->shared, rq->h->seq);

	max_len = radix_min_u32(max_len, e->config.limits.max_frame);
	if (body_room(e, call, max_len) < 0)
		return -ENOMEM;
	return prefixd_op_prepare(e, rq->asker, op_id, max_len);
}

void prefixd_call_answered(struct prefixd_engine *e, const struct prefixd_request *rq,
			   enum proto_status status, const uint8_t *body, uint32_t len)
{
	struct prefixd_stripe *st = rq->shared;
	struct prefixd_call *call = call_at(st, rq->h->seq);
	uint8_t *less;

	radix_assert(call && !call->answered && len <= call->cap);
	memcpy(call->body, body, len);
	call->len = len;
	call->status = (uint16_t)status;
	call->answered = true;
	if (call->cap > 2 * len && call->cap > ANSWER_ROOM) { /* as much as could have been */
		less = take_body(e, len);
		if (less) {
			memcpy(less, call->body, len);
			give_body(e, call);
			call->body = less;
			call->cap = call->len = len;
		}
	}
	for (uint32_t i = 0; i < st->n_ranks; i++)
		if (st->seats[i].waits)
			stir(e, st);
}

void prefixd_call_tells(struct prefixd_stripe *st, uint64_t call)
{
	call_at(st, call)->tells = true;
}

void prefixd_call_event(struct prefixd_engine *e, struct prefixd_stripe *st, uint64_t number,
			const struct proto_event *event)
{
	struct prefixd_call *call = call_at(st, number);

	radix_assert(call && call->tells && !call->event_known);
	call->event = *event;
	call->event_known = true;
	stir(e, st);
}

void prefixd_call_silent(struct prefixd_engine *e, struct prefixd_stripe *st, uint64_t number,
			 enum proto_wait_state state)
{
	const struct proto_event event = { .lease = st->lease->id, .state = (uint8_t)state };
	struct prefixd_call *call = call_at(st, number);

	if (!call || !call->tells || call->event_known)
		return;
	/* The rank that has gone on knows; the others wait until they are told. */
	if (st->asking != RADIX_NONE)
		call->told |= (uint16_t)(1u << st->asking);
	prefixd_call_event(e, st, number, &event);
}

/* ---- a rank's request ------------------------------------------------------------------------ */

static const char *field_name(uint16_t op, uint32_t i)
{
	static const char *const match[PREFIXD_CALL_FIELDS] = { "flags", "n_tokens", "parent",
								"keys",  "tail",     "salt" };

	return op == PROTO_OP_RESERVE ? "n" : match[i];
}

static bool agrees(struct prefixd_engine *e, struct prefixd_request *rq,
		   const struct prefixd_call *call, const struct prefixd_asked *asked)
{
	uint32_t i = 0;

	if (call->op != asked->op) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, NULL,
			       "another rank of this lease went on with %s; all ranks make the "
			       "same calls in the same order",
			       proto_op_to_string(call->op));
		return false;
	}
	while (i < PREFIXD_CALL_FIELDS && call->fields[i] == asked->fields[i])
		i++;
	if (i == PREFIXD_CALL_FIELDS)
		return true;
	prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, field_name(asked->op, i),
		       "another rank of this lease has said %s with another '%s'; all ranks make "
		       "the same calls in the same order",
		       proto_op_to_string(call->op), field_name(asked->op, i));
	return false;
}

static void wait_for(struct prefixd_request *rq, struct prefixd_seat *seat)
{
	seat->waits = true;
	seat->keep = rq->keep;
	seat->op_id = rq->op_id;
	memcpy(seat->body_hash, rq->body_hash, sizeof(seat->body_hash));
	rq->deferred = true;
}

/* Answers the rank's next call, or lets it wait for that. */
static void answer(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_stripe *st,
		   uint32_t rank)
{
	struct prefixd_seat *seat = &st->seats[rank];
	const struct prefixd_call *call = call_at(st, seat->cursor);

	if (!call->answered || !can_send(e, call->len)) {
		wait_for(rq, seat);
		if (call->answered)
			stir(e, st);
		return;
	}
	seat->cursor++;
	send_answer(e, rq, call);
	stir(e, st);
}

/* It was made before, by another rank. */
static void again(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_stripe *st,
		  uint32_t rank, const struct prefixd_asked *asked)
{
	struct prefixd_call *call = call_at(st, st->seats[rank].cursor);

	radix_assert(call); /* it is kept until all ranks have made it */
	if (!agrees(e, rq, call, asked))
		return;
	if (prefixd_op_prepare(e, rq, &asked->op_id, call->answered ? call->len : call->cap) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	call->seq[rank] = rq->h->seq;
	answer(e, rq, st, rank);
}

/* It is made for the first time. */
static void anew(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_stripe *st,
		 uint32_t rank, const struct prefixd_asked *asked, prefixd_handler *handler)
{
	struct proto_header h = *rq->h;
	struct prefixd_request in = {
		.s = rq->s, .h = &h, .body = rq->body, .shared = st, .asker = rq
	};
	struct prefixd_call *call;

	prefixd_calls_trim(e, st);
	if (st->n_calls >= CALLS_MAX) {
		prefixd_refuse_busy(e, rq, 1000,
				    "another rank of this lease is too many calls behind; ask "
				    "again when it has come up");
		return;
	}
	call = call_new(e, st, asked);
	if (!call) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	h.seq = calls_end(st) - 1;
	call->seq[rank] = rq->h->seq;
	st->asking = rank;
	if (st->lease) /* in whose name it is carried out */
		prefixd_stripe_speaks(st, rq->s);
	handler(e, &in);
	st->asking = RADIX_NONE;
	answer(e, rq, st, rank);
}

void prefixd_call(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_stripe *st,
		  uint32_t rank, const struct prefixd_asked *asked, prefixd_handler *handler)
{
	struct prefixd_seat *seat = &st->seats[rank];

	if (seat->waits)
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "lease",
			       "a RESERVE of this lease waits for slots; take its reply first, or "
			       "RELEASE the lease");
	else if (seat->cursor < calls_end(st))
		again(e, rq, st, rank, asked);
	else if (st->closed)
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "lease",
			       "another rank has released this lease and will not go on with it; "
			       "RELEASE it too");
	else
		anew(e, rq, st, rank, asked, handler);
}
