/*
 * engine_events.c - SUBSCRIBE, and the stream that follows.
 *
 * What it guarantees.  Numbers rise over the engine's life; a loss is never silent.  A subscriber
 * has at most one frame under way, so what it does not read costs at most that frame; what comes
 * meanwhile stays in the ring, and is run over there.  Recording begins with the first subscriber
 * and ends when the ring has gone round once without any: before and after, an event costs nothing.
 *
 * What it relies on.  The shell answers each SEND that has `tell_ready` with SUBSCRIBER_READY once
 * the bytes are in the socket, or ends the session.  Frames leave in TIMER steps, which have the
 * output buffer to themselves but for what their own work sends.
 */
#include "daemon/engine_internal.h"

#define BATCH_NS   2000000u     /* events wait this long for others to go with */
#define FRAME_MAX  (256u << 10) /* of a frame of events: small beside the soft limit of output */
#define FRAME_MIN  4096u        /* with less room than this, next time */
#define CHANGE_MAX 256u         /* an event at its longest, encoded */
#define ACTS_LEFT  4u           /* places for actions that a step keeps for its end */

void prefixd_events_init(struct prefixd_engine *e)
{
	radix_list_init(&e->events.subscribers);
	e->events.due_ns = UINT64_MAX;
}

static void attach_all(struct prefixd_engine *e, struct radix_log *log)
{
	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct prefixd_group *g = e->groups[i];

		if (g && g->index)
			radix_index_log(g->index, log, g->id);
	}
}

/* Return: 0, -ENOMEM. */
static int record_begin(struct prefixd_engine *e)
{
	struct prefixd_events *ev = &e->events;
	uint32_t cap = 64;

	if (ev->log.v)
		return 0;
	while (cap < e->config.event_ring && cap < 1u << 30)
		cap *= 2;
	ev->log.v = prefixd_take0(e->alloc, (size_t)cap * sizeof(*ev->log.v));
	if (!ev->log.v)
		return -ENOMEM;
	ev->log.cap = cap;
	ev->log.n++; /* stands for all that was not recorded: whoever asks for it lost something */
	ev->first = ev->log.n + 1;
	attach_all(e, &ev->log);
	return 0;
}

static void record_end(struct prefixd_engine *e)
{
	struct prefixd_events *ev = &e->events;

	attach_all(e, NULL);
	radix_give(e->alloc, ev->log.v, (size_t)ev->log.cap * sizeof(*ev->log.v));
	ev->log.v = NULL;
	ev->log.cap = 0;
}

void prefixd_events_attach(struct prefixd_engine *e, struct prefixd_group *g)
{
	if (e->events.log.v)
		radix_index_log(g->index, &e->events.log, g->id);
}

void prefixd_events_mute(struct prefixd_engine *e, bool mute)
{
	if (e->events.log.v)
		attach_all(e, mute ? NULL : &e->events.log);
}

void prefixd_events_leave(struct prefixd_engine *e, struct prefixd_session *s)
{
	struct prefixd_subscriber *sub = s->subscriber;

	if (!sub)
		return;
	s->subscriber = NULL;
	radix_list_remove(&sub->link);
	radix_give(e->alloc, sub, sizeof(*sub));
	e->events.n_subscribers--;
	e->events.alone_at = e->events.log.n;
}

void prefixd_events_deinit(struct prefixd_engine *e)
{
	radix_assert(e->events.n_subscribers == 0); /* they went with their sessions */
	if (e->events.log.v)
		record_end(e);
}

void prefixd_events_cleared(struct prefixd_engine *e, uint32_t ns)
{
	struct radix_log *log = &e->events.log;

	for (uint32_t i = 0; i < e->namespaces.n; i++) {
		struct prefixd_namespace *n = radix_container_of(e->namespaces.v[i],
								 struct prefixd_namespace, item);
		struct radix_change *c;

		if (ns != RADIX_NONE && n->id != ns)
			continue;
		n->n_clears++;
		if (!log->v)
			continue;
		c = radix_log_add(log);
		c->kind = RADIX_CHANGE_CLEARED;
		c->ns = n->id;
		c->tenant = c->position = c->slot = RADIX_NONE;
		c->revision = n->n_clears;
		/* What leases held is still there. */
		for (uint32_t k = 0; k < e->roots.n; k++) {
			struct prefixd_root *r = radix_container_of(e->roots.v[k],
								    struct prefixd_root, item);

			if (r->ns == n)
				radix_log_members(n->group->index, r->index_root, log,
						  n->group->id);
		}
	}
}

/* ---- SUBSCRIBE ------------------------------------------------------------------------------- */

static uint64_t oldest(const struct prefixd_events *ev)
{
	uint64_t kept = ev->log.n > ev->log.cap ? ev->log.n - ev->log.cap + 1 : 1;

	return kept > ev->first ? kept : ev->first;
}

static bool namespace_known(const struct prefixd_engine *e, const struct prefixd_session *s,
			    uint32_t ns)
{
	if (ns == 0 || prefixd_session_ns(e, s, ns))
		return true;
	for (uint32_t i = 0; s->peer.admin && i < e->namespaces.n; i++)
		if (radix_container_of(e->namespaces.v[i], struct prefixd_namespace, item)->id ==
		    ns)
			return true;
	return false;
}

static bool subscribe_check(struct prefixd_engine *e, struct prefixd_request *rq,
			    const struct proto_subscribe_req *m)
{
	if (e->config.event_ring == 0) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNSUPPORTED, NULL,
			       "this daemon keeps no events (event-ring is 0); PROBE instead");
		return false;
	}
	if (rq->s->subscriber) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, NULL,
			       "this session is subscribed already; another stream needs a "
			       "connection of its own");
		return false;
	}
	if (!namespace_known(e, rq->s, m->ns)) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNKNOWN_NAMESPACE, "ns",
			       "this session has not opened namespace %u; OPEN it first, or say 0 "
			       "for all that it may see",
			       m->ns);
		return false;
	}
	return true;
}

/* Where the stream begins. */
static void subscribe_from(struct prefixd_engine *e, struct prefixd_subscriber *sub,
			   const struct proto_subscribe_req *m)
{
	const struct prefixd_events *ev = &e->events;
	bool ours = proto_id_equal(&m->life, &e->config.boot);

	sub->seen = ev->log.n;
	if (m->from == 0)
		return;
	if (ours && m->from >= oldest(ev) && m->from <= ev->log.n + 1) {
		sub->seen = m->from - 1;
		return;
	}
	sub->resync = true;
	if (ours && m->from <= ev->log.n)
		e->counters.events_dropped += ev->log.n + 1 - m->from;
}

void prefixd_op_subscribe(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_events *ev = &e->events;
	struct proto_subscribe_req m;
	struct proto_subscribe_rep rep;
	struct prefixd_subscriber *sub;
	struct prefixd_reply rp;
	const char *bad;

	if (proto_subscribe_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (!subscribe_check(e, rq, &m))
		return;
	sub = prefixd_take0(e->alloc, sizeof(*sub));
	if (!sub || record_begin(e) < 0) {
		radix_give(e->alloc, sub, sizeof(*sub));
		prefixd_refuse_memory(e, rq);
		return;
	}
	sub->session = rq->s;
	sub->seq = rq->h->seq;
	sub->ns = m.ns;
	subscribe_from(e, sub, &m);
	rq->s->subscriber = sub;
	radix_list_add_tail(&ev->subscribers, &sub->link);
	ev->n_subscribers++;
	rep.last = ev->log.n;
	rep.oldest = oldest(ev);
	prefixd_reply_begin(e, &rp, 0);
	proto_subscribe_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}

void prefixd_events_ready(struct prefixd_engine *e, struct prefixd_session *s)
{
	if (s->subscriber)
		s->subscriber->busy = false;
}

/* ---- the stream ------------------------------------------------------------------------------ */

static bool has_opened(const struct prefixd_session *s, uint32_t ns)
{
	for (uint32_t i = 0; i < s->n_ns; i++)
		if (s->ns[i].ns->id == ns)
			return true;
	return false;
}

static bool visible(const struct prefixd_engine *e, const struct prefixd_subscriber *sub,
		    const struct radix_change *c)
{
	const struct prefixd_session *s = sub->session;

	if (sub->ns && c->ns != sub->ns)
		return false;
	if (s->peer.admin)
		return true;
	return has_opened(s, c->ns) &&
	       (c->kind == RADIX_CHANGE_CLEARED || prefixd_session_may(e, s, c->tenant));
}

static uint8_t removal(uint8_t reason)
{
	static const uint8_t wire[RADIX_REMOVE_N_REASONS] = {
		[RADIX_REMOVE_CAPACITY] = PROTO_REMOVAL_CAPACITY,
		[RADIX_REMOVE_FLUSH] = PROTO_REMOVAL_FLUSH,
		[RADIX_REMOVE_EVICT] = PROTO_REMOVAL_EVICT,
		[RADIX_REMOVE_CORRUPT] = PROTO_REMOVAL_CORRUPT,
		[RADIX_REMOVE_QUOTA] = PROTO_REMOVAL_QUOTA,
		[RADIX_REMOVE_LOST] = PROTO_REMOVAL_LOST,
		[RADIX_REMOVE_DROPPED] = PROTO_REMOVAL_DROPPED,
		[RADIX_REMOVE_DEVICE] = PROTO_REMOVAL_LOST,
	};

	return reason < RADIX_REMOVE_N_REASONS ? wire[reason] : PROTO_REMOVAL_NONE;
}

static void append(struct proto_writer *w, const struct radix_change *c, uint64_t number)
{
	struct proto_change m = {
		.kind = c->kind, /* the same numbers, see below */
		.tier = c->tier,
		.from_tier = c->from_tier,
		.reason = c->kind == RADIX_CHANGE_REMOVED ? removal(c->reason) : 0,
		.number = number,
		.ns = c->ns,
		.tenant = c->tenant,
		.position = c->position,
		.n_tokens = c->n_tokens,
		.slot = c->slot,
		.revision = c->revision,
		.block = { c->id, c->id_len },
		.parent = { c->parent, c->parent_len },
	};

	_Static_assert((int)RADIX_CHANGE_STORED == (int)PROTO_CHANGE_STORED &&
			       (int)RADIX_CHANGE_REMOVED == (int)PROTO_CHANGE_REMOVED &&
			       (int)RADIX_CHANGE_MOVED == (int)PROTO_CHANGE_MOVED &&
			       (int)RADIX_CHANGE_CLEARED == (int)PROTO_CHANGE_CLEARED,
		       "kinds of the log are those of the wire");
	_Static_assert((int)RADIX_TIER_DEVICE == (int)PROTO_TIER_DEVICE &&
			       (int)RADIX_TIER_HOST == (int)PROTO_TIER_HOST &&
			       (int)RADIX_TIER_REDIS == (int)PROTO_TIER_REDIS,
		       "and so are its tiers");
	memcpy(m.root.b, c->root, sizeof(m.root.b));
	proto_change_append(w, &m);
}

static void append_resync(struct proto_writer *w, uint64_t number)
{
	struct proto_change m = { .kind = PROTO_CHANGE_RESYNC,
				  .number = number,
				  .tenant = RADIX_NONE,
				  .position = RADIX_NONE,
				  .slot = RADIX_NONE };

	proto_change_append(w, &m);
}

/* As many of the subscriber's events as fit, up to `limit` bytes of frame; returns how many. */
static uint32_t fill(struct prefixd_engine *e, struct prefixd_subscriber *sub,
		     struct proto_writer *w, size_t limit)
{
	const struct radix_log *log = &e->events.log;
	uint32_t n = 0;

	if (sub->resync) {
		append_resync(w, sub->seen);
		sub->resync = false;
		e->counters.resyncs++;
		n++;
	}
	while (sub->seen < log->n && w->len + CHANGE_MAX <= limit) {
		const struct radix_change *c = radix_log_at(log, sub->seen + 1);

		sub->seen++;
		if (!visible(e, sub, c))
			continue;
		append(w, c, sub->seen);
		e->counters.events_emitted++;
		n++;
	}
	return n;
}

/* One frame for one subscriber, if it has something to hear.  False: no room in this step. */
static bool send_to(struct prefixd_engine *e, struct prefixd_subscriber *sub)
{
	struct proto_changes none = { 0 };
	struct proto_header h = { .version = sub->session->version,
				  .op = PROTO_OP_CHANGES,
				  .seq = sub->seq,
				  .boot = e->config.boot };
	size_t limit = radix_min_u64(FRAME_MAX, e->config.limits.max_frame);
	struct prefixd_action *a;
	struct prefixd_reply rp;
	uint32_t n, len;
	int r;

	if (e->out_cap - e->out_len < FRAME_MIN || e->actions_cap - e->n_actions < ACTS_LEFT)
		return false;
	prefixd_reply_begin(e, &rp, 0);
	limit = radix_min_u64(limit, rp.w.cap);
	proto_changes_encode(&rp.w, &none);
	n = fill(e, sub, &rp.w, limit);
	if (n == 0)
		return true;
	len = (uint32_t)(rp.w.len - PROTO_HEADER_LEN - 8);
	memcpy(rp.w.p + PROTO_HEADER_LEN, &n, 4); /* the body is n, the length, and the events */
	memcpy(rp.w.p + PROTO_HEADER_LEN + 4, &len, 4);
	r = proto_frame_end(&rp.w, rp.start, &h);
	radix_assert(r == 0 && proto_writer_ok(&rp.w));
	a = prefixd_act(e, PREFIXD_ACTION_SEND, sub->session->number);
	a->u.send.bytes = rp.w.p;
	a->u.send.len = rp.w.len;
	a->u.send.tell_ready = true;
	e->out_len = rp.base + rp.w.len;
	sub->busy = true;
	return true;
}

static bool wants(const struct prefixd_engine *e, const struct prefixd_subscriber *sub)
{
	return !sub->busy && (sub->resync || sub->seen < e->events.log.n);
}

void prefixd_events_send(struct prefixd_engine *e)
{
	struct prefixd_events *ev = &e->events;
	struct radix_list *it;

	if (e->now_ns < ev->due_ns)
		return;
	ev->due_ns = UINT64_MAX; /* settle() sets it again where something is left */
	radix_list_foreach(it, &ev->subscribers) {
		struct prefixd_subscriber *sub = radix_list_entry(it, struct prefixd_subscriber,
								  link);

		if (!wants(e, sub) || send_to(e, sub))
			continue;
		/* It comes first the next time. */
		radix_list_remove(&ev->subscribers);
		radix_list_add_tail(it, &ev->subscribers);
		break;
	}
}

void prefixd_events_settle(struct prefixd_engine *e)
{
	struct prefixd_events *ev = &e->events;
	struct radix_list *it;

	if (!ev->log.v)
		return;
	if (ev->n_subscribers == 0) {
		if (ev->log.n - ev->alone_at >= ev->log.cap)
			record_end(e);
		ev->due_ns = UINT64_MAX;
		return;
	}
	radix_list_foreach(it, &ev->subscribers) {
		struct prefixd_subscriber *sub = radix_list_entry(it, struct prefixd_subscriber,
								  link);

		if (ev->log.n - sub->seen > ev->log.cap) {
			e->counters.events_dropped += ev->log.n - sub->seen;
			sub->seen = ev->log.n;
			sub->resync = true;
		}
		if (ev->due_ns == UINT64_MAX && wants(e, sub))
			ev->due_ns = e->now_ns + BATCH_NS;
	}
}

const char *prefixd_events_verify(const struct prefixd_engine *e)
{
	const struct prefixd_events *ev = &e->events;
	struct radix_list *it;
	uint32_t n = 0;

	radix_list_foreach(it, &ev->subscribers) {
		const struct prefixd_subscriber *sub =
			radix_list_entry(it, struct prefixd_subscriber, link);

		n++;
		if (sub->session->subscriber != sub || sub->session->state != PREFIXD_SESSION_READY)
			return "a subscriber is not its session's";
		if (!ev->log.v || sub->seen > ev->log.n || ev->log.n - sub->seen > ev->log.cap)
			return "a subscriber stands outside the ring and was not told";
		if (wants(e, sub) && ev->due_ns == UINT64_MAX)
			return "events wait for a subscriber, and nothing is due";
	}
	return n == ev->n_subscribers ? NULL : "the number of subscribers is wrong";
}
