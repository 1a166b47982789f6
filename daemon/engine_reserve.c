/*
 * engine_reserve.c - RESERVE: slots for the blocks that a lease will store, now or later.
 *
 * What it guarantees.  A RESERVE is answered once: at once when slots are free or can be had
 * without a copy, else when blocks have moved down, at its deadline, or when its lease ends.  It
 * holds nothing while it waits.  It grants a prefix of what was asked for, or says BUSY.
 *
 * What it relies on.  Room for its list of slots, its reply in the memory of operation ids and a
 * refusal is made before it waits, so that its end needs no memory.  While it waits no other
 * request with its lease is taken, RELEASE apart: the place of its first block stays.
 */
#include "daemon/engine_internal.h"
#include "radix/crash.h"

/* Of what was asked for, what could be granted by and by: the rest is not for want of room. */
static uint32_t asked_now(const struct prefixd_session *s, const struct prefixd_lease *l,
			  uint32_t n)
{
	uint32_t left = prefixd_desk_left(s, l->group);

	n = radix_min_u32(n, l->n_keys - l->n_reserved);
	return left ? radix_min_u32(n, left) : n;
}

/* How many more blocks the session may reserve. */
static uint32_t may_reserve(const struct prefixd_engine *e, const struct prefixd_session *s,
			    const struct prefixd_group *g)
{
	return radix_min_u32(prefixd_guard_reserve(e, s, g), prefixd_desk_left(s, g));
}

static int slots_room(struct prefixd_engine *e, struct prefixd_lease *l, uint32_t n)
{
	uint32_t cap = l->slots_cap ? l->slots_cap : 64;
	uint32_t *v;

	if (l->n_reserved == 0)
		l->res_head = l->n_own;
	while (cap < l->res_head + l->n_reserved + n)
		cap *= 2;
	if (prefixd_places_room(e, l, cap) < 0)
		return -ENOMEM;
	if (cap == l->slots_cap)
		return 0;
	v = prefixd_grow(e->alloc, l->slots, l->slots_cap * sizeof(*v), cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	l->slots = v;
	l->slots_cap = cap;
	return 0;
}

static void reserve_busy(struct prefixd_engine *e, struct prefixd_request *rq,
			 struct prefixd_lease *l, uint32_t asked, bool of_pool)
{
	l->no_room = asked;
	l->leads_rest = false; /* others need not wait for what will not be stored */
	prefixd_pending_changed(e, l);
	l->root->busy_depth = l->n_path + l->n_reserved;
	if (of_pool) { /* who is held to his own limits does not bind others to theirs */
		l->group->busy_ns = e->now_ns;
		l->group->busy_session = rq->s->number;
	}
	e->counters.reserve_busy++;
	prefixd_refuse_busy(e, rq, 1000,
			    of_pool ? "every block of the pool is held by leases; compute without "
				      "storing, or ask again"
				    : "this session holds as many blocks as it may; RELEASE or "
				      "COMMIT some, or ask again");
}

static void reserve_on(struct prefixd_engine *e, struct prefixd_request *rq,
		       struct prefixd_lease *l, uint32_t want, uint32_t asked)
{
	struct proto_reserve_rep rep = { .first = l->n_path + l->n_reserved };
	struct prefixd_reply rp;
	struct radix_runs runs;
	uint32_t granted = 0, *to = l->slots + l->res_head + l->n_reserved;

	prefixd_reply_begin(e, &rp, e->reserve_fixed);
	runs = prefixd_reply_runs(e, &rp, e->reserve_fixed, 0, want);
	radix_reserve(l->group->index, l->idx, want, &runs, &granted);
	radix_crash_point("engine_reserved");
	l->group->reap = true;
	prefixd_room_taken(e, l->group);
	if (granted == 0) {
		reserve_busy(e, rq, l, asked, true);
		return;
	}
	l->no_room = asked - granted;
	if (l->no_room)
		l->root->busy_depth = rep.first + granted;
	for (uint32_t i = 0; i < runs.n; i++)
		for (uint32_t k = 0; k < runs.v[i].len; k++)
			*to++ = runs.v[i].start + k;
	prefixd_places_take(l, granted, &runs);
	l->n_reserved += granted;
	e->counters.reserved_blocks += granted;
	/* Where there was no room, another one need not wait for what will not be stored. */
	prefixd_pending_lead(e, l, l->leads_rest && l->no_room == 0);
	rep.n = granted;
	rep.reuse = radix_reuse_counter(l->group->index);
	proto_reserve_rep_encode(&rp.w, &rep);
	prefixd_reply_add_runs(&rp, runs.n);
	prefixd_reply_send(e, rq, &rp);
}

/* ---- later ----------------------------------------------------------------------------------- */

void prefixd_reserve_stop(struct prefixd_engine *e, struct prefixd_lease *l)
{
	if (!radix_list_linked(&l->room.link))
		return;
	prefixd_room_leave(&l->room);
	prefixd_room_stir(e, l->group);
	e->n_later--;
}

/* The request as it came; what its reply is kept under, unless nothing is kept any more. */
static struct prefixd_request request_of(const struct prefixd_engine *e,
					 const struct prefixd_lease *l,
					 const struct proto_header *h)
{
	return (struct prefixd_request){
		.s = l->session,
		.h = h,
		.shared = l->stripe,
		.keep = l->room_keep && e->config.limits.op_ids > 0,
		.op_id = l->room_op_id,
		.body_hash = { l->room_body_hash[0], l->room_body_hash[1] },
	};
}

void prefixd_reserve_end(struct prefixd_engine *e, struct prefixd_lease *l,
			 enum prefixd_lease_end how)
{
	struct proto_header h = { .op = PROTO_OP_RESERVE, .seq = l->room_seq };
	struct prefixd_request rq = request_of(e, l, &h);

	if (!radix_list_linked(&l->room.link))
		return;
	prefixd_reserve_stop(e, l);
	if (how == PREFIXD_END_RELEASED && l->stripe) /* which the others have still */
		prefixd_refuse(e, &rq, PROTO_STATUS_WRONG_STATE, "lease",
			       "a rank released this lease while its RESERVE waited, and will not "
			       "go on with it; nothing was reserved: RELEASE it too");
	else if (how == PREFIXD_END_RELEASED)
		prefixd_refuse(e, &rq, PROTO_STATUS_UNKNOWN_LEASE, "lease",
			       "the lease was released while this RESERVE waited; nothing was "
			       "reserved");
	if (how != PREFIXD_END_REVOKED)
		return;
	l->told = true;
	if (prefixd_group_lost(l->group))
		prefixd_refuse_lost(e, &rq, l->group, PROTO_STATUS_REVOKED);
	else
		prefixd_refuse(
			e, &rq, PROTO_STATUS_REVOKED, "lease",
			"the lease was taken back while this RESERVE waited; nothing was reserved");
}

static bool serve(struct prefixd_engine *e, struct prefixd_waiter *w, uint32_t n_free, bool last)
{
	struct prefixd_lease *l = radix_list_entry(w, struct prefixd_lease, room);
	struct proto_header h = { .op = PROTO_OP_RESERVE, .seq = l->room_seq };
	struct prefixd_request rq = request_of(e, l, &h);
	uint32_t want = radix_min_u32(w->want, n_free), may;

	if (want < w->want && !last)
		return false;
	if (last && l->room_waits && w->deadline_ns <= e->now_ns)
		e->counters.reserve_deadline++;
	prefixd_reserve_stop(e, l);
	may = may_reserve(e, l->session, l->group);
	if (want == 0 && e->draining)
		prefixd_refuse(e, &rq, PROTO_STATUS_DRAINING, NULL, "the daemon is stopping");
	else if (want && may == 0)
		reserve_busy(e, &rq, l, l->room_asked, false);
	else
		reserve_on(e, &rq, l, radix_min_u32(want, may), l->room_asked);
	return true;
}

/* Puts the request in line, where it may be answered before this returns. */
static void reserve_later(struct prefixd_engine *e, struct prefixd_request *rq,
			  struct prefixd_lease *l, uint32_t want, uint32_t asked,
			  uint32_t deadline_us)
{
	uint64_t ns = deadline_us ? (uint64_t)deadline_us * 1000 : e->config.limits.reserve_ns;

	if (prefixd_later_room(e) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	e->n_later++;
	l->room.want = want;
	l->room.out = PROTO_HEADER_LEN + e->reserve_fixed + 8 * want + PREFIXD_LATER_ROOM;
	l->room.deadline_ns = radix_min_u64(e->now_ns + ns, UINT64_MAX - 1);
	l->room.serve = serve;
	l->room_asked = asked;
	l->room_seq = rq->h->seq;
	l->room_keep = rq->keep;
	l->room_op_id = rq->op_id;
	memcpy(l->room_body_hash, rq->body_hash, sizeof(l->room_body_hash));
	l->room_waits = false;
	prefixd_room_ask(e, l->group, &l->room);
	if (!radix_list_linked(&l->room.link)) {
		rq->n_replies++; /* it was answered by the way */
		return;
	}
	l->room_waits = true;
	rq->deferred = true;
	e->counters.deferred_reserves++;
}

static void refuse_without_desk(struct prefixd_engine *e, struct prefixd_request *rq)
{
	if (rq->s->staged)
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "lease",
			       "what this session wrote in was lost with the device; OPEN the "
			       "namespace again");
	else
		prefixd_refuse(e, rq, PROTO_STATUS_UNSUPPORTED, NULL,
			       "workers write in memory of their own here (pool-write staged), of "
			       "which version %u does not tell; compute without storing",
			       rq->s->version);
}

/* ---- the request ----------------------------------------------------------------------------- */

void prefixd_op_reserve(struct prefixd_engine *e, struct prefixd_request *rq)
{
	uint32_t most = (e->config.limits.max_frame - PROTO_HEADER_LEN - e->reserve_fixed) / 8;
	struct proto_reserve_req m;
	struct prefixd_lease *l;
	const char *bad;
	uint32_t asked, want;

	if (proto_reserve_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (prefixd_op_replayed(e, rq, &m.op_id))
		return;
	if (e->draining) {
		prefixd_refuse(e, rq, PROTO_STATUS_DRAINING, NULL, "the daemon is stopping");
		return;
	}
	l = prefixd_lease_of(e, rq, m.lease);
	if (!l)
		return;
	if (m.n == 0) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "n",
			       "'n' is 0; ask for one block or more");
		return;
	}
	if (l->n_keys == l->n_reserved) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "n",
			       "every key of this lease is stored or reserved; EXTEND it with the "
			       "keys of the blocks to come");
		return;
	}
	if (e->config.staged && !prefixd_desk_of(rq->s, l->group)) {
		refuse_without_desk(e, rq);
		return;
	}
	asked = asked_now(rq->s, l, m.n);
	prefixd_wait_stop(e, l);
	prefixd_load_orphan(e, l); /* it recomputes */
	want = radix_min_u32(radix_min_u32(asked, most), may_reserve(e, rq->s, l->group));
	if (want == 0) {
		reserve_busy(e, rq, l, asked, false);
		return;
	}
	want = radix_min_u32(want, l->group->n_slots);
	if (slots_room(e, l, want) < 0 ||
	    prefixd_op_prepare(e, rq, &m.op_id, e->reserve_fixed + 8 * want) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	if (!prefixd_tiered(e, l->group) || prefixd_room_now(e, l->group, want))
		reserve_on(e, rq, l, want, asked);
	else
		reserve_later(e, rq, l, want, asked, m.deadline_us);
}
