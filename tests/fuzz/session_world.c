/*
 * session_world.c - see session_world.h.
 */
#include "tests/fuzz/session_world.h"

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

static struct lease *lease_of(struct session_world *w, uint64_t id)
{
	for (uint32_t i = 0; i < N_LEASES; i++)
		if (w->leases[i].used && w->leases[i].id == id)
			return &w->leases[i];
	return NULL;
}

/* A wait ends once.  Whether it had to end is not known here: its lease may have moved on. */
static void on_event(struct session_world *w, const struct proto_header *h, const void *body)
{
	struct proto_event event;
	struct lease *l;
	const char *bad;

	must(proto_event_decode(body, h->len, &event, &bad) == 0);
	must(event.state != PROTO_WAIT_WAITING && event.state <= PROTO_WAIT_DEADLINE);
	l = lease_of(w, event.lease);
	must(l && l->wait_seq == h->seq);
	l->wait_seq = 0;
}

static void note_wait(struct session_world *w, const struct session *s)
{
	struct proto_wait_rep rep;
	struct lease *l;
	const char *bad;

	must(proto_wait_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	l = lease_of(w, rep.lease);
	must(l);
	l->wait_seq = rep.state == PROTO_WAIT_WAITING ? s->h.seq : 0;
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

/* Return: false when it was no reply, but an event. */
static bool on_send(struct session_world *w, const struct prefixd_action *a)
{
	struct session *s = &w->sessions[a->session];
	const uint8_t *body = a->u.send.bytes + PROTO_HEADER_LEN;
	enum proto_status status;
	struct proto_header h;

	must(a->session < N_SESSIONS && s->used && s->open);
	must(proto_header_decode(a->u.send.bytes, a->u.send.len, w->config.limits.max_frame, &h,
				 &status) == 0);
	must(h.len + PROTO_HEADER_LEN == a->u.send.len);
	if (h.op == PROTO_OP_EVENT && h.status == PROTO_STATUS_OK) {
		on_event(w, &h, body);
		return false;
	}
	s->h = h;
	memcpy(s->body, body, h.len);
	s->n_replies++;
	must(h.version == (s->version ? s->version : PROTO_VERSION_HELLO));
	if (h.op == PROTO_OP_HELLO && h.status == PROTO_STATUS_OK)
		s->version = (uint16_t)proto_body_version(&h, body, true);
	if (h.op == PROTO_OP_WAIT && h.status == PROTO_STATUS_OK)
		note_wait(w, s);
	return true;
}

static void note_open(struct session_world *w, struct session *s, bool digest)
{
	struct proto_open_rep rep;
	const char *bad;

	if (s->h.status != PROTO_STATUS_OK)
		return;
	must(proto_open_rep_decode_as(s->h.version, s->body, s->h.len, &rep, &bad) == 0);
	must(rep.group < N_GROUPS && rep.n_slots <= MODEL_SLOTS);
	for (uint32_t i = 0; i < w->n_ns; i++)
		if (w->ns[i].id == rep.ns) {
			must(w->ns[i].key_len == rep.key_len && w->ns[i].digest == digest);
			return;
		}
	if (w->n_ns == N_NS || rep.key_len > MODEL_KEY) {
		w->full = true;
		return;
	}
	w->ns[w->n_ns++] = (struct ns){ rep.ns, rep.group, rep.key_len, rep.block_tokens, digest };
}

/* The bit of the sequence says which keys an OPEN asked for: its answer does not. */
static void on_late_open(struct session_world *w, struct session *s)
{
	uint32_t i = 0;

	while (i < s->n_waiting && s->waiting[i] != s->h.seq)
		i++;
	must(i < s->n_waiting && s->h.op == PROTO_OP_OPEN);
	s->waiting[i] = s->waiting[--s->n_waiting];
	note_open(w, s, s->h.seq & 1);
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
	bool in_frame = event->type == PREFIXD_EVENT_FRAME ||
			event->type == PREFIXD_EVENT_FRAME_BAD;
	struct prefixd_actions actions = prefixd_engine_step(w->engine, event, w->now_ns);
	char why[256];

	for (uint32_t i = 0; i < actions.n; i++) {
		const struct prefixd_action *a = &actions.v[i];

		if (a->type == PREFIXD_ACTION_SEND && on_changes(w, a))
			continue;
		if (a->type == PREFIXD_ACTION_SEND) {
			bool reply = on_send(w, a);

			must(!reply || !in_frame || a->session == event->session);
			if (reply && !in_frame)
				on_late_open(w, &w->sessions[a->session]);
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
		must(!w->index[g] || model_sync(&w->models[g], w->index[g]));
	leases_sync(w);
	tell_ready(w);
}

/* ---- what a frame that was answered with OK means -------------------------------------------- */

static uint32_t root_of(struct session_world *w, uint32_t ns, uint32_t tenant,
			struct proto_span salt)
{
	struct root *r = w->roots;

	for (; r < w->roots + w->n_roots; r++)
		if (r->ns == ns && r->tenant == tenant && r->salt_len == salt.n &&
		    (!salt.n || memcmp(r->salt, salt.p, salt.n) == 0))
			return (uint32_t)(r - w->roots);
	if (w->n_roots == N_ROOTS) {
		w->full = true;
		return 0;
	}
	*r = (struct root){ .ns = ns, .tenant = tenant, .salt_len = salt.n };
	if (salt.n)
		memcpy(r->salt, salt.p, salt.n);
	return w->n_roots++;
}

static const struct ns *ns_of(const struct session_world *w, uint32_t id)
{
	for (uint32_t i = 0; i < w->n_ns; i++)
		if (w->ns[i].id == id)
			return &w->ns[i];
	must(w->full);
	return NULL;
}

static uint32_t slots_of(struct proto_span runs, uint32_t slots[KEYS_MAX])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < runs.n; i++) {
		struct radix_run run = proto_run_at(runs, i);

		for (uint32_t k = 0; k < run.len; k++) {
			must(n < KEYS_MAX);
			slots[n++] = run.start + k;
		}
	}
	return n;
}

/* The lease goes on over the blocks that a reply of MATCH or EXTEND names. */
static void advance(struct session_world *w, struct lease *l, const struct proto_match_rep *rep)
{
	const struct model *m = &w->models[l->ns->group];
	const uint8_t *keys = l->keys + (size_t)l->n_path * l->ns->key_len;
	uint32_t got[KEYS_MAX], want[KEYS_MAX], n = slots_of(rep->runs, got), expect;

	must(n == rep->n_device && n <= l->n_keys - l->n_path);
	must(rep->n_host == 0 && rep->n_redis == 0);
	must(rep->n_pending <= l->n_keys - l->n_path - n);
	if (l->n_reserved) {
		must(n == 0);
		return;
	}
	expect = model_walk(m, l->root, l->at, keys, l->n_keys - l->n_path, l->ns->key_len, want);
	if (!l->ns->digest) {
		must(rep->more ? n <= expect : n == expect);
		must(memcmp(got, want, n * sizeof(*got)) == 0);
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct model_block *b = &m->blocks[got[i]];

		must(got[i] < m->n_slots && b->used && b->root == l->root);
		must(memcmp(b->key, keys + (size_t)i * l->ns->key_len, l->ns->key_len) == 0);
	}
	l->n_path += n;
	if (n)
		l->at = (int)got[n - 1];
	if (rep->tail_tokens) {
		must(rep->tail_slot < m->n_slots && m->blocks[rep->tail_slot].used);
		must(m->blocks[rep->tail_slot].parent == l->at);
		must(m->blocks[rep->tail_slot].root == l->root);
	}
}

static void on_match(struct session_world *w, struct session *s, uint32_t number,
		     const struct proto_match_req *m)
{
	struct proto_match_rep rep;
	struct lease *l = w->leases;
	const char *bad;

	must(proto_match_rep_decode_as(s->h.version, s->body, s->h.len, &rep, &bad) == 0);
	if (lease_of(w, rep.lease))
		return; /* a replay */
	while (l < w->leases + N_LEASES && l->used)
		l++;
	must(l < w->leases + N_LEASES); /* the limits of the sessions see to that */
	*l = (struct lease){ .used = true, .id = rep.lease, .session = number, .at = MODEL_NONE };
	l->ns = ns_of(w, m->ns);
	l->root = root_of(w, m->ns, m->tenant, m->salt);
	if (w->full) {
		l->lost = true;
		return;
	}
	l->n_keys = m->keys.n / l->ns->key_len;
	l->n_tokens = m->n_tokens;
	must(l->n_keys <= KEYS_MAX);
	if (m->keys.n)
		memcpy(l->keys, m->keys.p, m->keys.n);
	w->newest = (uint32_t)(l - w->leases);
	advance(w, l, &rep);
}

static void on_extend(struct session_world *w, const struct session *s,
		      const struct proto_extend_req *m)
{
	struct lease *l = lease_of(w, m->lease);
	struct proto_match_rep rep;
	const char *bad;

	must(proto_match_rep_decode_as(s->h.version, s->body, s->h.len, &rep, &bad) == 0);
	must(l && rep.lease == l->id);
	if (l->n_keys + m->keys.n / l->ns->key_len > KEYS_MAX) {
		w->full = true;
		return;
	}
	if (m->keys.n)
		memcpy(l->keys + (size_t)l->n_keys * l->ns->key_len, m->keys.p, m->keys.n);
	l->n_keys += m->keys.n / l->ns->key_len;
	l->n_tokens = m->n_tokens ? m->n_tokens : l->n_tokens;
	if (!l->lost)
		advance(w, l, &rep);
}

static void on_reserve(struct session_world *w, const struct session *s,
		       const struct proto_reserve_req *m)
{
	struct lease *l = lease_of(w, m->lease);
	struct proto_reserve_rep rep;
	uint32_t got[KEYS_MAX], n;
	const char *bad;

	must(proto_reserve_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	n = slots_of(rep.runs, got);
	must(l && n == rep.n && n >= 1 && n <= m->n);
	if (l->lost)
		return;
	must(rep.first == l->n_path + l->n_reserved && rep.first + n <= l->n_keys);
	for (uint32_t i = 0; i < n; i++) {
		must(got[i] < w->models[l->ns->group].n_slots);
		must(!w->models[l->ns->group].blocks[got[i]].used);
		must(radix_slot_state(w->index[l->ns->group], got[i]) == RADIX_SLOT_RESERVED);
		for (uint32_t k = 0; k < N_LEASES; k++) {
			const struct lease *o = &w->leases[k];

			for (uint32_t j = 0;
			     o->used && o->ns->group == l->ns->group && j < o->n_reserved; j++)
				must(o->reserved[j] != got[i]);
		}
		l->reserved[l->n_reserved++] = got[i];
	}
}

static void on_commit(struct session_world *w, const struct session *s,
		      const struct proto_commit_req *m)
{
	struct lease *l = lease_of(w, m->lease);
	struct proto_commit_rep rep;
	uint32_t got[KEYS_MAX], n, n_stored = 0;
	const char *bad;

	must(proto_commit_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	n = slots_of(rep.runs, got);
	must(l && n == m->n && n == rep.n_stored + rep.n_duplicate);
	if (l->lost)
		return;
	must(n <= l->n_reserved);
	for (uint32_t i = 0; i < n; i++) {
		struct model *mo = &w->models[l->ns->group];
		const uint8_t *key = l->keys + (size_t)l->n_path++ * l->ns->key_len;
		struct model_block b = { .used = true,
					 .placed = !l->ns->digest,
					 .parent = l->ns->digest ? MODEL_NONE : l->at,
					 .root = l->root };

		memcpy(b.key, key, l->ns->key_len);
		if (got[i] == l->reserved[i]) {
			must(model_child(mo, l->root, l->at, key, l->ns->key_len) == MODEL_NONE);
			must(model_store(mo, got[i], &b));
			n_stored++;
		} else if (!l->ns->digest) {
			must(model_child(mo, l->root, l->at, key, l->ns->key_len) == (int)got[i]);
		}
		l->at = (int)got[i];
	}
	must(n_stored == rep.n_stored);
	l->n_reserved -= n;
	memmove(l->reserved, l->reserved + n, l->n_reserved * sizeof(*l->reserved));
}

/* Some of its blocks may have been committed before the refusal; only digests can conflict. */
static void on_commit_refused(struct session_world *w, const struct proto_commit_req *m)
{
	struct lease *l = lease_of(w, m->lease);

	must(l && l->ns->digest);
	for (uint32_t i = 0; !l->lost && i < l->n_reserved; i++) {
		struct model *mo = &w->models[l->ns->group];
		struct model_block b = { .used = true, .parent = MODEL_NONE, .root = l->root };

		if (radix_slot_state(w->index[l->ns->group], l->reserved[i]) != RADIX_SLOT_READY)
			continue;
		memcpy(b.key, l->keys + (size_t)(l->n_path + i) * l->ns->key_len, l->ns->key_len);
		must(model_store(mo, l->reserved[i], &b));
	}
	l->lost = true;
	l->n_reserved = 0;
	w->lossy[l->ns->group] = true;
}

static void on_release(const struct session *s, const struct lease *l)
{
	struct proto_release_rep rep;
	const char *bad;

	must(proto_release_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	must(rep.queried_tokens == l->n_tokens);
	must(rep.hit_device_tokens + rep.hit_host_tokens + rep.hit_redis_tokens +
		     rep.hit_pending_tokens + rep.miss_tokens ==
	     rep.queried_tokens);
}

static void on_probe(struct session_world *w, const struct session *s,
		     const struct proto_probe_req *m)
{
	uint32_t slots[KEYS_MAX], root = root_of(w, m->ns, m->tenant, m->salt);
	const struct ns *ns = ns_of(w, m->ns);
	struct proto_probe_rep rep;
	const char *bad;

	must(proto_probe_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	if (!w->full && !ns->digest)
		must(rep.n_device == model_walk(&w->models[ns->group], root, MODEL_NONE, m->keys.p,
						m->keys.n / ns->key_len, ns->key_len, slots));
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

static void on_ok(struct session_world *w, uint32_t number, uint16_t op, const union request *rq,
		  const struct lease *before)
{
	struct session *s = &w->sessions[number];

	if (op == PROTO_OP_OPEN)
		note_open(w, s, rq->open.key_mode == PROTO_KEYS_DIGEST);
	else if (op == PROTO_OP_MATCH)
		on_match(w, s, number, &rq->match);
	else if (op == PROTO_OP_EXTEND)
		on_extend(w, s, &rq->extend);
	else if (op == PROTO_OP_RESERVE)
		on_reserve(w, s, &rq->reserve);
	else if (op == PROTO_OP_COMMIT)
		on_commit(w, s, &rq->commit);
	else if (op == PROTO_OP_RELEASE)
		on_release(s, before);
	else if (op == PROTO_OP_PROBE)
		on_probe(w, s, &rq->probe);
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
	l = known && op == PROTO_OP_RELEASE ? lease_of(w, rq.release.lease) : NULL;
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
		must(s->used && op == PROTO_OP_OPEN && s->n_waiting < radix_array_size(s->waiting));
		s->waiting[s->n_waiting++] = h.seq;
	} else {
		must(s->n_replies == 1 && s->h.op == op && s->h.seq == h.seq);
		s->ready |= op == PROTO_OP_HELLO && s->h.status == PROTO_STATUS_OK;
		must(s->h.status != PROTO_STATUS_NO_MEMORY);
		if (known && s->h.status == PROTO_STATUS_OK && replays(w) == n_replays)
			on_ok(w, number, op, &rq, &before);
		else if (op == PROTO_OP_COMMIT && s->h.status == PROTO_STATUS_CONFLICT)
			on_commit_refused(w, &rq.commit);
	}
	check_members(w);
	free(exact);
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
