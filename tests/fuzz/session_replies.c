/*
 * session_replies.c - see session_replies.h.
 */
#include "tests/fuzz/session_replies.h"

struct lease *session_lease_of(struct session_world *w, uint64_t id)
{
	for (uint32_t i = 0; i < N_LEASES; i++)
		if (w->leases[i].used && w->leases[i].id == id)
			return &w->leases[i];
	return NULL;
}

/* ---- where the model knows nothing -------------------------------------------------------- */

/* The group's blocks come and go by rules that the model does not know, from now on. */
static void model_gives_up(struct session_world *w, uint32_t group)
{
	w->unknown[group] = w->lossy[group] = true;
	for (uint32_t i = 0; i < N_LEASES; i++) {
		struct lease *l = &w->leases[i];

		if (!l->used || l->ns->group != group)
			continue;
		l->lost = true;
		l->n_reserved = 0;
	}
}

struct ns *session_ns_find(struct session_world *w, uint32_t id)
{
	for (uint32_t i = 0; i < w->n_ns; i++)
		if (w->ns[i].id == id)
			return &w->ns[i];
	return NULL;
}

void session_note_open(struct session_world *w, struct session *s, const struct proto_header *h,
		       const void *body, bool digest)
{
	struct proto_open_rep rep;
	const char *bad;
	struct ns *ns;

	if (h->status != PROTO_STATUS_OK)
		return;
	must(proto_open_rep_decode_as(h->version, body, h->len, &rep, &bad) == 0);
	must(rep.group < N_GROUPS && rep.n_slots <= MODEL_SLOTS);
	must(rep.n_words == 0 || rep.n_words == N_WORDS);
	must(h->version >= 3 || (!rep.n_words && !rep.window && rep.n_ranks < 2));
	ns = session_ns_find(w, rep.ns);
	if (!ns && (w->n_ns == N_NS || rep.key_len > MODEL_KEY)) {
		w->full = true;
		return;
	}
	if (!ns) {
		ns = &w->ns[w->n_ns++];
		*ns = (struct ns){ rep.ns,           rep.group, rep.key_len,
				   rep.block_tokens, digest,    rep.n_ranks > 1 };
	}
	must(ns->key_len == rep.key_len && ns->digest == digest && ns->group == rep.group);
	must(ns->striped == (rep.n_ranks > 1));
	if (rep.n_words)
		s->n_words = rep.n_words;
	s->rank = s->rank || ns->striped;
	s->window[ns - w->ns] = rep.window;
	s->opened[ns - w->ns] = true;
	if (ns->striped || rep.window)
		model_gives_up(w, ns->group);
}

/*
 * What a MATCH or EXTEND names where the model knows nothing: blocks of the group, and where the
 * session reads through a window, none for those before it.
 */
static void check_named(const struct session_world *w, const struct session *s, const struct ns *ns,
			const struct proto_match_rep *rep)
{
	const struct radix_index *ix = w->index[ns->group];
	uint32_t window = s->window[ns - w->ns], n_none = 0, n = 0;

	must(rep->n_host == 0 && rep->n_redis == 0);
	for (uint32_t i = 0; i < rep->runs.n; i++) {
		struct radix_run run = proto_run_at(rep->runs, i);

		must(run.len > 0);
		if (run.start == PROTO_SLOT_NONE) {
			must(i == 0 && window);
			n_none = run.len;
			continue;
		}
		for (uint32_t k = 0; k < run.len; k++, n++)
			must(radix_slot_state(ix, run.start + k) == RADIX_SLOT_READY);
	}
	must(n + n_none == rep->n_device);
	must(!n_none || n <= window);
	if (rep->tail_tokens)
		must(!ns->striped && radix_slot_state(ix, rep->tail_slot) == RADIX_SLOT_READY);
}

/* A lease of which no more is known than that it is there. */
static void note_lease(struct session_world *w, uint32_t number, const struct ns *ns, uint64_t id)
{
	struct lease *l = w->leases;

	while (l < w->leases + N_LEASES && l->used)
		l++;
	if (l == w->leases + N_LEASES) { /* ranks share some, so there may be more in all */
		w->full = true;
		return;
	}
	*l = (struct lease){ .used = true, .lost = true, .id = id, .session = number };
	l->ns = ns;
	l->at = MODEL_NONE;
}

void session_on_named(struct session_world *w, struct session *s, uint32_t number,
		      const struct ns *ns, const struct proto_header *h, const void *body)
{
	struct proto_match_rep rep;
	const char *bad;

	must(proto_match_rep_decode_as(h->version, body, h->len, &rep, &bad) == 0);
	check_named(w, s, ns, &rep);
	if (!session_lease_of(w, rep.lease))
		note_lease(w, number, ns, rep.lease);
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

/* An operator looks at everybody's. */
static void check_opened(struct session_world *w, const struct session *s, uint32_t id)
{
	const struct ns *ns = session_ns_find(w, id);

	must(!ns || s->peer.admin || s->opened[ns - w->ns]);
}

void session_on_match(struct session_world *w, struct session *s, uint32_t number,
		      const struct proto_match_req *m)
{
	struct proto_match_rep rep;
	struct lease *l = w->leases;
	const char *bad;

	must(proto_match_rep_decode_as(s->h.version, s->body, s->h.len, &rep, &bad) == 0);
	check_opened(w, s, m->ns);
	if (session_lease_of(w, rep.lease))
		return; /* a replay */
	while (l < w->leases + N_LEASES && l->used)
		l++;
	if (l == w->leases + N_LEASES) { /* but for ranks the limits of the sessions see to that */
		must(w->sessions[number].rank);
		w->full = true;
		return;
	}
	*l = (struct lease){ .used = true, .id = rep.lease, .session = number, .at = MODEL_NONE };
	l->ns = ns_of(w, m->ns);
	l->lost = w->unknown[l->ns->group];
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
	if (l->lost)
		check_named(w, s, l->ns, &rep);
	else
		advance(w, l, &rep);
}

void session_on_extend(struct session_world *w, const struct session *s,
		       const struct proto_extend_req *m)
{
	struct lease *l = session_lease_of(w, m->lease);
	struct proto_match_rep rep;
	const char *bad;

	must(proto_match_rep_decode_as(s->h.version, s->body, s->h.len, &rep, &bad) == 0);
	must(l && rep.lease == l->id);
	if (w->unknown[l->ns->group])
		check_named(w, s, l->ns, &rep);
	if (l->ns->striped)
		return;
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

void session_on_reserve(struct session_world *w, const struct session *s,
			const struct proto_reserve_req *m)
{
	struct lease *l = session_lease_of(w, m->lease);
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

void session_on_commit(struct session_world *w, const struct session *s,
		       const struct proto_commit_req *m)
{
	struct lease *l = session_lease_of(w, m->lease);
	struct proto_commit_rep rep;
	uint32_t got[KEYS_MAX], n, n_stored = 0;
	const char *bad;

	must(proto_commit_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	n = slots_of(rep.runs, got);
	must(l && n == m->n && n >= rep.n_stored + rep.n_duplicate);
	must(l->ns->striped || n == rep.n_stored + rep.n_duplicate);
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
void session_on_commit_refused(struct session_world *w, const struct proto_commit_req *m)
{
	struct lease *l = session_lease_of(w, m->lease);

	if (l && w->unknown[l->ns->group])
		return;
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

void session_on_release(const struct session *s, const struct lease *l)
{
	struct proto_release_rep rep;
	const char *bad;

	must(proto_release_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	must(l->ns->striped || rep.queried_tokens == l->n_tokens);
	must(rep.hit_device_tokens + rep.hit_host_tokens + rep.hit_redis_tokens +
		     rep.hit_pending_tokens + rep.miss_tokens ==
	     rep.queried_tokens);
}

void session_on_probe(struct session_world *w, const struct session *s,
		      const struct proto_probe_req *m)
{
	uint32_t slots[KEYS_MAX], root = root_of(w, m->ns, m->tenant, m->salt);
	const struct ns *ns = ns_of(w, m->ns);
	struct proto_probe_rep rep;
	const char *bad;

	must(proto_probe_rep_decode(s->body, s->h.len, &rep, &bad) == 0);
	check_opened(w, s, m->ns);
	if (!w->full && !ns->digest && !w->unknown[ns->group])
		must(rep.n_device == model_walk(&w->models[ns->group], root, MODEL_NONE, m->keys.p,
						m->keys.n / ns->key_len, ns->key_len, slots));
}
