/*
 * session_world.c - see session_world.h.
 */
#include "tests/fuzz/session_world.h"

#include "tests/fuzz/session_replies.h"

static void *take(void *ctx, size_t size)
{
	struct session_world *w = ctx;
	void *p = aligned_alloc(64, (size + 63) & ~(size_t)63);

	must(p);
	memset(p, 0xa5, size);
	w->live_bytes += size;
	return p;
}

static void give(void *ctx, void *p, size_t size)
{
	struct session_world *w = ctx;

	w->live_bytes -= p ? size : 0;
	free(p);
}

/* ---- after a step ---------------------------------------------------------------------------- */

/* A wait ends once.  Whether it had to end is not known here: its lease may have moved on. */
static void on_event(struct session_world *w, uint32_t number, const struct proto_header *h,
		     const void *body)
{
	struct proto_event event;
	struct lease *l;
	const char *bad;

	must(proto_event_decode(body, h->len, &event, &bad) == 0);
	must(event.state != PROTO_WAIT_WAITING && event.state <= PROTO_WAIT_DEADLINE);
	l = session_lease_of(w, event.lease);
	if (w->sessions[number].rank && (!l || l->ns->striped))
		return; /* each rank has its own, and may hear it when the lease is over */
	must(l && l->wait_seq == h->seq);
	l->wait_seq = 0;
}

static void note_wait(struct session_world *w, const struct session *s,
		      const struct proto_header *h, const void *body)
{
	struct proto_wait_rep rep;
	struct lease *l;
	const char *bad;

	must(proto_wait_rep_decode(body, h->len, &rep, &bad) == 0);
	l = session_lease_of(w, rep.lease);
	must(l || s->rank);
	if (l)
		l->wait_seq = rep.state == PROTO_WAIT_WAITING ? h->seq : 0;
}

/* A frame of the stream: right in itself, one at a time.  Returns whether it is one. */
static bool on_changes(struct session_world *w, const struct prefixd_action *a)
{
	struct proto_change e;
	struct proto_changes m;
	struct proto_header h;
	enum proto_status status;
	uint64_t last = 0;
	const char *bad;

	if (!a->u.send.tell_ready)
		return false;
	must(w->sessions[a->session].used && w->sessions[a->session].open);
	must(!(w->ready_due & 1u << a->session));
	w->ready_due |= 1u << a->session;
	must(proto_header_decode(a->u.send.bytes, a->u.send.len, w->config.limits.max_frame, &h,
				 &status) == 0);
	must(h.op == PROTO_OP_CHANGES && h.status == PROTO_STATUS_OK);
	must(proto_changes_decode(a->u.send.bytes + PROTO_HEADER_LEN, h.len, &m, &bad) == 0);
	for (; m.n > 0; m.n--) {
		must(proto_change_next(&m.events, &e) == 0);
		must(e.kind == PROTO_CHANGE_RESYNC || e.number > last);
		last = e.number;
	}
	must(m.events.n == 0);
	return true;
}

/* What was sent has left, in all sockets that still exist. */
static void tell_ready(struct session_world *w)
{
	uint32_t due = w->ready_due;

	w->ready_due = 0;
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		struct prefixd_event event = { .type = PREFIXD_EVENT_SUBSCRIBER_READY,
					       .session = i };

		if ((due & 1u << i) && w->sessions[i].open)
			session_world_step(w, &event);
	}
}

/* The bit of the sequence says which keys an OPEN asked for: its answer does not. */
static void on_late(struct session_world *w, uint32_t number, const struct proto_header *h,
		    const void *body)
{
	struct session *s = &w->sessions[number];
	struct waiting was;
	uint32_t i = 0;

	while (i < s->n_waiting && s->waiting[i].seq != h->seq)
		i++;
	must(i < s->n_waiting && h->op == s->waiting[i].op);
	was = s->waiting[i];
	s->waiting[i] = s->waiting[--s->n_waiting];
	if (h->op == PROTO_OP_OPEN)
		session_note_open(w, s, h, body, h->seq & 1);
	else if (h->op == PROTO_OP_WAIT && h->status == PROTO_STATUS_OK)
		note_wait(w, s, h, body);
	else if (h->op == PROTO_OP_MATCH && h->status == PROTO_STATUS_OK)
		session_on_named(w, s, number, session_ns_find(w, was.ns), h, body);
}

/* `event` is what the step is about: the reply to its frame, or a reply that comes late. */
static void on_send(struct session_world *w, const struct prefixd_action *a,
		    const struct prefixd_event *event)
{
	struct session *s = &w->sessions[a->session];
	const uint8_t *body = a->u.send.bytes + PROTO_HEADER_LEN;
	enum proto_status status;
	struct proto_header h;
	bool now = false;

	must(a->session < N_SESSIONS && s->used && s->open);
	must(proto_header_decode(a->u.send.bytes, a->u.send.len, w->config.limits.max_frame, &h,
				 &status) == 0);
	must(h.len + PROTO_HEADER_LEN == a->u.send.len);
	must(h.version == (s->version ? s->version : PROTO_VERSION_HELLO));
	if (h.op == PROTO_OP_EVENT && h.status == PROTO_STATUS_OK) {
		on_event(w, a->session, &h, body);
		return;
	}
	if (h.op == PROTO_OP_LOST && h.status == PROTO_STATUS_DEVICE_LOST) {
		must(h.version >= 3 && h.seq < N_GROUPS && w->index[h.seq]);
		return;
	}
	if (a->session == event->session)
		now = event->type == PREFIXD_EVENT_FRAME_BAD ||
		      (event->type == PREFIXD_EVENT_FRAME && h.seq == s->seq);
	if (!now) {
		on_late(w, a->session, &h, body);
		return;
	}
	s->h = h;
	memcpy(s->body, body, h.len);
	s->n_replies++;
	if (h.op == PROTO_OP_HELLO && h.status == PROTO_STATUS_OK) {
		s->version = (uint16_t)proto_body_version(&h, body, true);
		w->newest_speaks = w->newest_speaks || s->version >= 3;
	}
	if (h.op == PROTO_OP_WAIT && h.status == PROTO_STATUS_OK)
		note_wait(w, s, &h, body);
}

static void leases_sync(struct session_world *w)
{
	struct prefixd_lease_info info;
	bool active[N_LEASES] = { false };
	uint64_t it = 0;

	while (prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info))
		for (uint32_t i = 0; i < N_LEASES; i++)
			if (w->leases[i].used && w->leases[i].id == info.id)
				active[i] = true;
	for (uint32_t i = 0; i < N_LEASES; i++) {
		struct lease *l = &w->leases[i];

		l->used = l->used && active[i];
		must(!l->used || l->lost || model_holds(&w->models[l->ns->group], l->at));
	}
}

void session_world_step(struct session_world *w, struct prefixd_event *event)
{
	struct prefixd_actions actions = prefixd_engine_step(w->engine, event, w->now_ns);
	char why[256];

	for (uint32_t i = 0; i < actions.n; i++) {
		const struct prefixd_action *a = &actions.v[i];

		if (a->type == PREFIXD_ACTION_SEND && on_changes(w, a))
			continue;
		if (a->type == PREFIXD_ACTION_SEND) {
			on_send(w, a, event);
		} else if (a->type == PREFIXD_ACTION_CLOSE) {
			must(w->sessions[a->session].used);
			w->sessions[a->session].open = false;
		} else if (a->type == PREFIXD_ACTION_FORGET) {
			must(w->sessions[a->session].used);
			memset(&w->sessions[a->session], 0, offsetof(struct session, n_replies));
		} else if (a->type == PREFIXD_ACTION_POOL_CREATE) {
			must(a->group < N_GROUPS && !w->wanted[a->group]);
			must(a->u.pool.n_slots <= MODEL_SLOTS);
			w->wanted[a->group] = true;
			w->wanted_slots[a->group] = a->u.pool.n_slots;
		} else if (a->type == PREFIXD_ACTION_EXIT) {
			must(!w->exited);
			w->exited = true;
		}
	}
	must(prefixd_engine_verify(w->engine, why, sizeof(why)) == 0);
	for (uint32_t g = 0; g < N_GROUPS; g++)
		must(!w->index[g] || model_sync(&w->models[g], w->index[g]) || w->unknown[g]);
	leases_sync(w);
	tell_ready(w);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* What the body says now, whoever wrote it. */
union request {
	struct proto_open_req open;
	struct proto_match_req match;
	struct proto_extend_req extend;
	struct proto_reserve_req reserve;
	struct proto_commit_req commit;
	struct proto_release_req release;
	struct proto_probe_req probe;
	struct proto_quiesced_req quiesced;
};

static bool request_decode(uint32_t version, uint16_t op, const uint8_t *body, uint32_t n,
			   union request *ret)
{
	const char *bad;

	switch (op) {
	case PROTO_OP_OPEN:
		return proto_open_req_decode_as(version, body, n, &ret->open, &bad) == 0;
	case PROTO_OP_MATCH:
		return proto_match_req_decode(body, n, &ret->match, &bad) == 0;
	case PROTO_OP_EXTEND:
		return proto_extend_req_decode(body, n, &ret->extend, &bad) == 0;
	case PROTO_OP_RESERVE:
		return proto_reserve_req_decode(body, n, &ret->reserve, &bad) == 0;
	case PROTO_OP_COMMIT:
		return proto_commit_req_decode_as(version, body, n, &ret->commit, &bad) == 0;
	case PROTO_OP_RELEASE:
		return proto_release_req_decode_as(version, body, n, &ret->release, &bad) == 0;
	case PROTO_OP_PROBE:
		return proto_probe_req_decode(body, n, &ret->probe, &bad) == 0;
	case PROTO_OP_QUIESCED:
		return proto_quiesced_req_decode_as(version, body, n, &ret->quiesced, &bad) == 0;
	default:
		return false;
	}
}

/* Every block that is there was stored by a COMMIT that this world saw. */
static void check_members(const struct session_world *w)
{
	for (uint32_t g = 0; g < N_GROUPS; g++)
		for (uint32_t i = 0; w->index[g] && !w->lossy[g] && i < w->models[g].n_slots; i++)
			must(w->models[g].blocks[i].used ==
			     (radix_slot_state(w->index[g], i) == RADIX_SLOT_READY));
}

static uint64_t replays(const struct session_world *w)
{
	struct prefixd_counters c;

	prefixd_engine_counters(w->engine, &c);
	return c.op_replays;
}

/* The word that the request waits for: the shell does so, the engine counts what there is. */
static uint32_t word_of(uint16_t op, const union request *rq)
{
	return op == PROTO_OP_COMMIT     ? rq->commit.word
	       : op == PROTO_OP_RELEASE  ? rq->release.word
	       : op == PROTO_OP_QUIESCED ? rq->quiesced.word
					 : 0;
}

static void on_ok(struct session_world *w, uint32_t number, uint16_t op, const union request *rq,
		  const struct lease *before)
{
	struct session *s = &w->sessions[number];

	must(word_of(op, rq) <= s->n_words);
	if (op == PROTO_OP_OPEN)
		session_note_open(w, s, &s->h, s->body, rq->open.key_mode == PROTO_KEYS_DIGEST);
	else if (op == PROTO_OP_MATCH)
		session_on_match(w, s, number, &rq->match);
	else if (op == PROTO_OP_EXTEND)
		session_on_extend(w, s, &rq->extend);
	else if (op == PROTO_OP_RESERVE)
		session_on_reserve(w, s, &rq->reserve);
	else if (op == PROTO_OP_COMMIT)
		session_on_commit(w, s, &rq->commit);
	else if (op == PROTO_OP_RELEASE)
		session_on_release(s, before);
	else if (op == PROTO_OP_PROBE)
		session_on_probe(w, s, &rq->probe);
}

void session_world_send(struct session_world *w, uint32_t number, uint16_t op, const uint8_t *body,
			uint32_t n)
{
	struct session *s = &w->sessions[number];
	bool digest, known, was_open = s->open;
	struct proto_header h = { PROTO_MAGIC, s->version ? s->version : PROTO_VERSION_HELLO,
				  op,          n,
				  0,           0,
				  0,           { { 0 } } };
	struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME, .session = number };
	uint64_t n_replays = replays(w);
	struct lease before = { 0 }, *l;
	uint8_t *exact = malloc(n ? n : 1);
	union request rq = { 0 };

	must(exact);
	if (n)
		memcpy(exact, body, n);
	known = request_decode(s->version, op, exact, n, &rq);
	digest = known && op == PROTO_OP_OPEN && rq.open.key_mode == PROTO_KEYS_DIGEST;
	l = known && op == PROTO_OP_RELEASE ? session_lease_of(w, rq.release.lease) : NULL;
	if (l)
		before = *l;
	h.seq = s->seq = (s->seq | 1) + 1 + digest;
	s->n_replies = 0;
	event.u.frame.header = &h;
	event.u.frame.body = exact;
	session_world_step(w, &event);
	if (!was_open) {
		must(s->n_replies == 0);
	} else if (s->n_replies ==
		   0) { /* the session may be over, but then it was answered first */
		must(s->used && (op == PROTO_OP_OPEN || s->rank) && s->n_waiting < N_WAITING);
		s->waiting[s->n_waiting++] = (struct waiting){
			h.seq, known && op == PROTO_OP_MATCH ? rq.match.ns : 0, op
		};
	} else {
		must(s->n_replies == 1 && s->h.op == op && s->h.seq == h.seq);
		s->ready |= op == PROTO_OP_HELLO && s->h.status == PROTO_STATUS_OK;
		must(s->h.status != PROTO_STATUS_NO_MEMORY);
		if (known && s->h.status == PROTO_STATUS_OK && replays(w) == n_replays)
			on_ok(w, number, op, &rq, &before);
		else if (op == PROTO_OP_COMMIT && s->h.status == PROTO_STATUS_CONFLICT)
			session_on_commit_refused(w, &rq.commit);
	}
	check_members(w);
	free(exact);
}

void session_world_lose(struct session_world *w, uint32_t group)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_LOST };

	if (!w->index[group])
		return;
	for (uint32_t i = 0; i < N_LEASES; i++) {
		struct lease *l = &w->leases[i];

		if (!l->used || l->ns->group != group)
			continue;
		l->lost = true;
		l->n_reserved = 0;
	}
	event.u.pool.group = group;
	session_world_step(w, &event);
}

void session_world_renewed(struct session_world *w, uint32_t group)
{
	for (uint32_t i = 0; i < N_SESSIONS; i++)
		for (uint32_t k = 0; k < w->n_ns; k++)
			if (w->ns[k].group == group)
				w->sessions[i].opened[k] = false;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* `choices` picks what differs between daemons: how ends are noticed, grace, shares, ages. */
void session_world_init(struct session_world *w, uint8_t choices)
{
	static const struct prefixd_tenant tenants[2] = {
		{ .name = "red", .any_uid = true },
		{ .name = "blue", .uids = { 2000 }, .n_uids = 1 },
	};
	static const struct radix_alloc alloc = { .take = take, .give = give };
	int r;

	memset(w, 0, sizeof(*w));
	w->alloc = alloc;
	w->alloc.ctx = w;
	w->now_ns = 1000000000;
	prefixd_engine_config_init(&w->config);
	w->config.alloc = &w->alloc;
	memset(w->config.boot.b, 0xb0, sizeof(w->config.boot.b));
	w->config.tenants = tenants;
	w->config.n_tenants = 2;
	w->config.limits.max_frame = 65536;
	w->config.limits.max_keys = 24;
	w->config.limits.max_sessions = N_SESSIONS - 1;
	w->config.limits.max_namespaces = 4;
	w->config.limits.max_leases = N_LEASES / N_SESSIONS;
	w->config.limits.max_groups = N_GROUPS;
	w->config.event_ring = 64;
	w->config.max_ranks = 2;
	w->config.limits.op_ids = choices & 1 ? 3 : 64;
	w->config.limits.max_pins_share = choices & 2 ? 30 : 0;
	w->config.limits.max_reserved = choices & 2 ? 5 : 0;
	w->config.limits.max_sessions_per_process = choices & 128 ? 2 : 0;
	w->config.limits.max_sessions_per_user = choices & 128 ? 4 : 0;
	w->config.limits.lease_max_age_ns = choices & 4 ? 200000000 : 0;
	w->config.grace_ns = choices & 8 ? 50000000 : 0;
	w->config.watches_processes = choices & 16;
	w->config.pool_blocks = choices & 32 ? 0 : POOL_BLOCKS;
	w->config.pool_bytes = 64 * POOL_BLOCKS + (choices & 64 ? 128 * POOL_BLOCKS : 0);
	w->config.version = "fuzz";
	r = prefixd_engine_new(&w->engine, &w->config);
	must(r == 0);
}

void session_world_deinit(struct session_world *w)
{
	w->engine = prefixd_engine_free(w->engine);
	must(w->live_bytes == 0);
}
