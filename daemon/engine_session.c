/*
 * engine_session.c - who is connected: HELLO, the end of sockets and of processes, QUIESCED.
 *
 * What it guarantees.  A session ends once: its leases end, their slots come back (or wait for the
 * back end's grace), and FORGET tells the shell.  The end of a socket alone frees nothing while the
 * process may live: such a session is an orphan until PROCESS_GONE, or until a newer session of the
 * same process says QUIESCED.
 *
 * What it relies on.  The shell sends PROCESS_GONE for each session that was not forgotten when the
 * configuration says that it watches processes.  After CLOSE nothing of that socket is expected; a
 * late SESSION_EOF is ignored.
 */
#include "daemon/engine_internal.h"

struct prefixd_session *prefixd_session_find(const struct prefixd_engine *e, uint32_t number)
{
	struct prefixd_item *it = prefixd_set_at(&e->sessions, number);

	for (; it; it = it->next)
		if (it->hash == number)
			return radix_container_of(it, struct prefixd_session, item);
	return NULL;
}

void prefixd_session_opened(struct prefixd_engine *e, uint32_t number,
			    const struct prefixd_peer *peer)
{
	enum prefixd_guard over = PREFIXD_GUARD_NONE;
	struct prefixd_session *s = NULL;

	radix_assert(!prefixd_session_find(e, number));
	if (prefixd_guard_seat(e, peer, &over) && prefixd_set_room(e->alloc, &e->sessions) == 0)
		s = prefixd_take0(e->alloc, sizeof(*s));
	if (!s) {
		prefixd_act(e, PREFIXD_ACTION_CLOSE, number);
		prefixd_act(e, PREFIXD_ACTION_FORGET, number);
		prefixd_log(e, PREFIXD_LOG_WARN, "refused a connection of pid %u: no room",
			    peer->pid);
		return;
	}
	s->number = number;
	s->record = RADIX_NONE;
	s->rank = RADIX_NONE;
	s->peer = *peer;
	s->version = PROTO_VERSION_HELLO;
	s->boot = e->config.boot;
	s->begun_ns = e->now_ns;
	s->over = over;
	radix_list_init(&s->leases);
	radix_list_init(&s->desks);
	prefixd_set_add(&e->sessions, &s->item, number);
	e->counters.sessions_opened++;
}

/* Memory only; leases have ended. */
void prefixd_session_free(struct prefixd_engine *e, struct prefixd_session *s)
{
	prefixd_waiting_drop(e, s);
	prefixd_desks_part(e, s);
	prefixd_events_leave(e, s);
	for (uint32_t i = 0; i < s->n_ns; i++) {
		s->ns[i].ns->n_sessions--;
		prefixd_namespace_unref(e, s->ns[i].ns);
	}
	radix_give(e->alloc, s->ns, s->ns_cap * sizeof(*s->ns));
	prefixd_ops_deinit(e, &s->ops);
	prefixd_note_session_gone(e, s);
	e->n_orphans -= s->state == PREFIXD_SESSION_ORPHAN;
	prefixd_set_del(&e->sessions, &s->item);
	radix_give(e->alloc, s, sizeof(*s));
}

void prefixd_session_die(struct prefixd_engine *e, struct prefixd_session *s,
			 enum prefixd_lease_end how)
{
	uint32_t number = s->number;

	if (s->n_leases)
		prefixd_log(e, PREFIXD_LOG_INFO, "session %u of pid %u ended and held %u leases",
			    number, s->peer.pid, s->n_leases);
	while (!radix_list_empty(&s->leases))
		prefixd_lease_finish(e, radix_list_first(&s->leases, struct prefixd_lease, link),
				     how, NULL);
	prefixd_session_free(e, s);
	prefixd_act(e, PREFIXD_ACTION_FORGET, number);
}

void prefixd_session_eof(struct prefixd_engine *e, struct prefixd_session *s)
{
	struct radix_list *it;

	if (s->state == PREFIXD_SESSION_ORPHAN)
		return;
	prefixd_waiting_drop(e, s);
	prefixd_desks_leave(e, s);         /* it will not commit any more */
	while (prefixd_lease_forget(e, s)) /* nobody will be told any more that they were revoked */
		continue;
	/* A session that holds nothing has nothing to wait for. */
	if (!e->config.watches_processes || radix_list_empty(&s->leases)) {
		prefixd_session_die(e, s, PREFIXD_END_DIED);
		return;
	}
	prefixd_events_leave(e, s);
	radix_list_foreach(it, &s->leases) {
		struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		/* It cannot be told anything, and it will not commit any more. */
		prefixd_wait_stop(e, l);
		prefixd_reserve_stop(e, l);
		prefixd_pending_resign(e, l);
		prefixd_fence_left(l);
		if (prefixd_is_seat(l))
			prefixd_seat_left(e, l);
	}
	s->state = PREFIXD_SESSION_ORPHAN;
	e->n_orphans++;
	e->counters.sessions_orphaned++;
	prefixd_log(e, PREFIXD_LOG_INFO,
		    "session %u lost its socket and holds %u leases until pid %u is gone",
		    s->number, s->n_leases, s->peer.pid);
}

void prefixd_session_close(struct prefixd_engine *e, struct prefixd_session *s)
{
	prefixd_act(e, PREFIXD_ACTION_CLOSE, s->number);
	prefixd_session_eof(e, s);
}

void prefixd_session_gone(struct prefixd_engine *e, struct prefixd_session *s)
{
	/* A forked child may hold the socket open: it keeps nobody alive. */
	if (s->state != PREFIXD_SESSION_ORPHAN)
		prefixd_act(e, PREFIXD_ACTION_CLOSE, s->number);
	prefixd_session_die(e, s, PREFIXD_END_DIED);
}

void prefixd_session_revoke(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_session *s = l->session;

	if (prefixd_is_shared(l)) {
		prefixd_stripe_revoke(e, l->stripe);
		return;
	}
	prefixd_lease_finish(e, l, PREFIXD_END_REVOKED, NULL);
	/* An orphan is not told that its reads are over; with the last of them it holds nothing. */
	if (s->state != PREFIXD_SESSION_ORPHAN || l->n_own)
		return;
	(void)prefixd_lease_unquarantine(e, l);
	if (radix_list_empty(&s->leases) && prefixd_actions_room(e, 1) == 0)
		prefixd_session_die(e, s, PREFIXD_END_REVOKED);
}

/* ---- HELLO ----------------------------------------------------------------------------------- */

bool prefixd_session_may(const struct prefixd_engine *e, const struct prefixd_session *s,
			 uint32_t tenant)
{
	const struct prefixd_tenant *t;

	if (tenant >= e->n_tenants)
		return false;
	t = &e->tenants[tenant];
	if (t->any_uid || s->peer.admin)
		return true;
	for (uint32_t i = 0; i < t->n_uids; i++)
		if (t->uids[i] == s->peer.uid)
			return true;
	return false;
}

/* Writes {u32 id, u16 length, name} for each tenant that the peer may name. */
static uint32_t list_tenants(const struct prefixd_engine *e, const struct prefixd_session *s,
			     uint8_t *out, uint32_t cap)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->n_tenants; i++) {
		uint16_t len = (uint16_t)strnlen(e->tenants[i].name, PREFIXD_TENANT_NAME_MAX);

		if (!prefixd_session_may(e, s, i))
			continue;
		if (cap - n < 6u + len)
			break;
		memcpy(out + n, &i, 4);
		memcpy(out + n + 4, &len, 2);
		memcpy(out + n + 6, e->tenants[i].name, len);
		n += 6u + len;
	}
	return n;
}

/* Whether there is a version that both speak, and the client proves that it does. */
static bool hello_version(struct prefixd_engine *e, struct prefixd_request *rq,
			  const struct proto_hello_req *m)
{
	uint16_t lowest = m->version_min < PROTO_VERSION_MIN ? PROTO_VERSION_MIN : m->version_min;
	struct proto_id want;

	if (m->version_min > PROTO_VERSION || m->version_max < lowest) {
		e->counters.refused_version++;
		prefixd_refuse(e, rq, PROTO_STATUS_VERSION, "version_min",
			       "this daemon speaks versions %u to %u; the client offers %u to %u",
			       PROTO_VERSION_MIN, PROTO_VERSION, m->version_min, m->version_max);
		return false;
	}
	want = proto_self_test(lowest);
	if (!proto_id_equal(&m->self_test, &want)) {
		e->counters.self_test_failed++;
		prefixd_refuse(
			e, rq, PROTO_STATUS_SELF_TEST, "self_test",
			"self-test mismatch: this client lays out or hashes messages of version %u "
			"differently; use a client whose golden vectors pass",
			lowest);
		return false;
	}
	return true;
}

/* Why this peer cannot come in.  True: it can. */
static bool hello_welcome(struct prefixd_engine *e, struct prefixd_request *rq,
			  const struct proto_hello_req *m)
{
	bool any = rq->s->peer.admin;

	if (!hello_version(e, rq, m))
		return false;
	if (any)
		return true; /* operators come in at any time */
	if (!prefixd_guard_hello(e, rq))
		return false;
	if (e->draining) {
		e->counters.refused_draining++;
		prefixd_refuse(e, rq, PROTO_STATUS_DRAINING, NULL, "the daemon is stopping");
		return false;
	}
	for (uint32_t i = 0; i < e->n_tenants && !any; i++)
		any = prefixd_session_may(e, rq->s, i);
	if (!any) {
		e->counters.forbidden++;
		e->counters.refused_forbidden++;
		prefixd_refuse(e, rq, PROTO_STATUS_FORBIDDEN, NULL,
			       "uid %u may name no tenant; ask the operator to add it to one",
			       rq->s->peer.uid);
	}
	return any;
}

struct owner {
	uint32_t uid, pid;
	uint64_t start_time;
	struct proto_id instance;
};

static bool session_is_of(const struct prefixd_session *s, const struct owner *o)
{
	return s->peer.uid == o->uid && s->peer.pid == o->pid &&
	       s->peer.start_time == o->start_time && proto_id_equal(&s->instance, &o->instance);
}

/* What earlier sessions of the same instance left, and the life of the one that came last. */
static void tell_orphans(const struct prefixd_engine *e, const struct prefixd_session *asking,
			 struct proto_hello_rep *rep)
{
	struct owner o = { asking->peer.uid, asking->peer.pid, asking->peer.start_time,
			   asking->instance };
	const struct prefixd_session *last = NULL;

	for (uint32_t i = 0; e->n_orphans && i < e->sessions.n; i++) {
		const struct prefixd_session *s = radix_container_of(e->sessions.v[i],
								     struct prefixd_session, item);

		if (s->state != PREFIXD_SESSION_ORPHAN || !session_is_of(s, &o) || !s->n_leases)
			continue;
		rep->n_orphans += s->n_leases;
		/* Numbers rise within a life; what was restored is older than all of this one. */
		if (!last || proto_id_equal(&s->boot, &e->config.boot) ||
		    !proto_id_equal(&last->boot, &e->config.boot))
			last = s;
	}
	if (last)
		rep->orphans_boot = last->boot;
}

void prefixd_op_hello(struct prefixd_engine *e, struct prefixd_request *rq)
{
	const struct prefixd_limits *lim = &e->config.limits;
	struct prefixd_session *s = rq->s;
	struct proto_hello_req m;
	struct proto_hello_rep rep = { 0 };
	struct prefixd_reply rp;
	const char *bad;
	uint8_t *tenants;
	uint16_t agreed;

	if (proto_hello_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		prefixd_session_close(e, s);
		return;
	}
	if (!hello_welcome(e, rq, &m)) {
		prefixd_session_close(e, s);
		return;
	}
	s->state = PREFIXD_SESSION_READY;
	s->copies = m.flags & PROTO_HELLO_COPIES;
	s->instance = m.instance;
	if (m.name.n)
		memcpy(s->name, m.name.p, radix_min_u32(m.name.n, sizeof(s->name) - 1));
	agreed = m.version_max < PROTO_VERSION ? m.version_max : PROTO_VERSION;
	rep.version = agreed;
	rep.session = s->number;
	rep.max_frame = lim->max_frame;
	rep.max_keys = lim->max_keys;
	rep.max_namespaces = lim->max_namespaces;
	rep.max_leases = lim->max_leases;
	rep.op_ids_kept = lim->op_ids;
	rep.op_ids_kept_ms = (uint32_t)radix_min_u64(lim->op_id_ns / 1000000, UINT32_MAX);
	rep.daemon.p = e->config.version;
	rep.daemon.n = radix_min_u32((uint32_t)strlen(e->config.version), 64);
	prefixd_reply_begin(e, &rp, 0);
	/* The list is made at the far end of the buffer and copied to its place by the encoder. */
	tenants = e->out + e->out_cap - 8192;
	rep.tenants.p = tenants;
	rep.tenants.n = list_tenants(e, s, tenants, 8192);
	tell_orphans(e, s, &rep);
	proto_hello_rep_encode_as(&rp.w, agreed, &rep);
	prefixd_reply_send(e, rq, &rp);
	s->staged = e->config.staged && agreed >= 3;
	s->version = agreed; /* of every later frame; HELLO's reply is still in HELLO's own */
}

/* ---- QUIESCED, REPORT, PING ------------------------------------------------------------------ */

static bool lease_is_of(const struct prefixd_lease *l, const struct owner *o)
{
	return l->uid == o->uid && l->pid == o->pid && proto_id_equal(&l->instance, &o->instance);
}

/* Leases and slots of the orphaned sessions of this process, of one life or (NULL) of all. */
static void quiesce_orphans(struct prefixd_engine *e, const struct owner *o,
			    const struct proto_id *life, struct proto_quiesced_rep *rep)
{
	for (uint32_t i = 0; i < e->sessions.n;) {
		struct prefixd_session *s = radix_container_of(e->sessions.v[i],
							       struct prefixd_session, item);
		struct radix_list *it;

		if (s->state != PREFIXD_SESSION_ORPHAN || !session_is_of(s, o) ||
		    (life && !proto_id_equal(life, &s->boot))) {
			i++;
			continue;
		}
		radix_list_foreach(it, &s->leases) {
			const struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease,
									 link);

			rep->n_leases += l->state != PREFIXD_LEASE_REVOKED;
			rep->n_slots += prefixd_is_seat(l) ? prefixd_seat_frees(l)
							   : l->n_own + l->n_reserved;
		}
		/* The last session of the array takes this one's place. */
		prefixd_session_die(e, s, PREFIXD_END_QUIESCED);
	}
}

/* Slots of revoked leases in the asking session itself. */
static void quiesce_revoked(struct prefixd_engine *e, struct prefixd_session *s,
			    struct proto_quiesced_rep *rep)
{
	struct radix_list *it, *tmp;

	radix_list_foreach_safe(it, tmp, &s->leases) {
		struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		/* A worker that does not know may still write. */
		if (l->state == PREFIXD_LEASE_REVOKED && l->told)
			rep->n_slots += prefixd_lease_unquarantine(e, l);
	}
}

void prefixd_op_quiesced(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct proto_quiesced_rep rep = { 0 };
	struct proto_quiesced_req m;
	struct owner o = { .uid = rq->s->peer.uid,
			   .pid = rq->s->peer.pid,
			   .start_time = rq->s->peer.start_time };
	const struct proto_id *life = &m.old_boot;
	struct radix_list *it, *tmp;
	struct prefixd_reply rp;
	const char *bad;

	if (proto_quiesced_req_decode_as(rq->s->version, rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (!prefixd_word_check(e, rq, m.word))
		return;
	/* Each orphan that ends is one FORGET, and may end waits. */
	if (prefixd_out_reserve(e, 0, e->sessions.n + e->n_waits) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	o.instance = m.instance;
	if (rq->s->version >= 2 && proto_id_is_zero(life))
		life = NULL;
	quiesce_orphans(e, &o, life, &rep);
	if ((!life || proto_id_equal(life, &rq->s->boot)) && session_is_of(rq->s, &o))
		quiesce_revoked(e, rq->s, &rep);
	radix_list_foreach_safe(it, tmp, &e->quarantine) {
		struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		if (lease_is_of(l, &o) && (!life || proto_id_equal(life, &l->boot)))
			rep.n_slots += prefixd_lease_unquarantine(e, l);
	}
	prefixd_reply_begin(e, &rp, 0);
	proto_quiesced_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}

static void reply_empty(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_reply rp;
	struct proto_empty rep = {};

	prefixd_reply_begin(e, &rp, 0);
	proto_empty_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}

void prefixd_op_report(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_session *s = rq->s;
	struct proto_report_req m;
	const char *bad;

	if (proto_report_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (!prefixd_session_ns(e, s, m.ns)) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNKNOWN_NAMESPACE, "ns",
			       "this session has not opened namespace %u; OPEN it first", m.ns);
		return;
	}
	s->ttft_us = m.ttft_us;
	s->tpot_us = m.tpot_us;
	s->input_tokens = m.input_tokens;
	s->running = m.running;
	s->waiting = m.waiting;
	reply_empty(e, rq);
}

void prefixd_op_ping(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct proto_empty m;
	const char *bad;

	if (proto_empty_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	reply_empty(e, rq);
}
