/*
 * engine_open.c - OPEN: namespaces, pool groups, budget.
 *
 * What it guarantees.  A namespace is the digest of every field that must agree for K/V to be
 * interchangeable; equal fields give the same namespace in every session, one different byte gives
 * another.  A refused OPEN names the field and what would be right, and leaves the session as it
 * was.  The pools never exceed the configured total.
 *
 * What it relies on.  POOL_READY or POOL_FAILED answers each POOL_CREATE; until then the OPENs of
 * that group wait, each holding a reference of its namespace and room for its reply.
 */
#include "daemon/engine_windows.h"

#include <stdio.h>

#define OPEN_ERROR_MAX 768u /* bytes of the longest answer to an OPEN that waited */

struct prefixd_namespace *prefixd_session_ns(const struct prefixd_engine *e,
					     const struct prefixd_session *s, uint32_t id)
{
	for (uint32_t i = 0; i < s->n_ns; i++)
		if (s->ns[i].ns->id == id && !s->ns[i].closed)
			return s->ns[i].ns;
	if (!s->peer.admin)
		return NULL;
	for (uint32_t i = 0; i < e->namespaces.n; i++) { /* an operator looks at any of them */
		struct prefixd_namespace *ns = radix_container_of(e->namespaces.v[i],
								  struct prefixd_namespace, item);

		if (ns->id == id && ns->group->state != PREFIXD_GROUP_CREATING)
			return ns;
	}
	return NULL;
}

static void namespace_free(struct prefixd_engine *e, struct prefixd_namespace *ns)
{
	radix_give(e->alloc, ns->text, ns->text_len);
	radix_give(e->alloc, ns, sizeof(*ns));
}

/* Of those that differ in the seed alone the oldest is what the others are measured by. */
static void family_lost(struct prefixd_engine *e, const struct prefixd_namespace *gone)
{
	struct prefixd_namespace *oldest = NULL;

	for (uint32_t i = 0; i < e->namespaces.n; i++) {
		struct prefixd_namespace *o = radix_container_of(e->namespaces.v[i],
								 struct prefixd_namespace, item);

		if (memcmp(o->family, gone->family, 32) == 0 && (!oldest || o->id < oldest->id))
			oldest = o;
	}
	if (oldest)
		oldest->seed_mismatch = false;
}

void prefixd_namespace_unref(struct prefixd_engine *e, struct prefixd_namespace *ns)
{
	radix_assert(ns->refs > 0);
	if (--ns->refs > 0)
		return;
	prefixd_set_del(&e->namespaces, &ns->item);
	prefixd_note_ns_gone(e, ns->record);
	if (ns->mode == RADIX_KEYS_DIGEST)
		family_lost(e, ns);
	namespace_free(e, ns);
}

void prefixd_namespaces_forget(struct prefixd_engine *e, const struct prefixd_group *g)
{
	for (uint32_t i = e->namespaces.n; i-- > 0;) {
		struct prefixd_namespace *ns = radix_container_of(e->namespaces.v[i],
								  struct prefixd_namespace, item);

		if (ns->group != g)
			continue;
		radix_assert(ns->refs == 1 && (ns->epoch.n || ns->epoch.nonce));
		prefixd_namespace_unref(e, ns);
	}
}

/* ---- checking the fields --------------------------------------------------------------------- */

static bool span_is(struct proto_span s, const char *text)
{
	return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

/* Bits per stored element; 0: not known here. */
static uint32_t dtype_bits(struct proto_span dtype)
{
	static const struct {
		const char *name;
		uint32_t bits;
	} known[] = {
		{ "float64", 64 },  { "float32", 32 }, { "float16", 16 },
		{ "bfloat16", 16 }, { "fp8_e4m3", 8 }, { "fp8_e5m2", 8 },
		{ "int8", 8 },      { "uint8", 8 },    { "int4", 4 },
	};

	for (uint32_t i = 0; i < radix_array_size(known); i++)
		if (span_is(dtype, known[i].name))
			return known[i].bits;
	return 0;
}

static bool bad(struct prefixd_engine *e, struct prefixd_request *rq, const char *field,
		const char *right)
{
	prefixd_refuse(e, rq, PROTO_STATUS_BAD_NAMESPACE, field, "'%s' is wrong: %s", field, right);
	return false;
}

static bool check_names(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct proto_open_req *m)
{
	if (m->model.n == 0)
		return bad(e, rq, "model", "it is empty; give the model's name");
	if (m->revision.n == 0)
		return bad(e, rq, "revision",
			   "it is empty; give the weights' commit or digest, names alone move");
	if (m->dtype.n == 0 || span_is(m->dtype, "auto"))
		return bad(e, rq, "dtype",
			   "give the type as stored (float16, bfloat16, fp8_e4m3, int8 ...), not "
			   "'auto' or nothing");
	if (m->engine.n == 0)
		return bad(e, rq, "engine", "it is empty; give the engine and its layout version");
	if (m->layout.n == 0)
		return bad(e, rq, "layout",
			   "it is empty; give the order of a block's bytes, e.g. "
			   "block-major, or opaque with the flag OPAQUE");
	return true;
}

static bool check_keys(struct prefixd_engine *e, struct prefixd_request *rq,
		       const struct proto_open_req *m)
{
	if (m->block_tokens == 0 || m->block_tokens > (RADIX_KEY_MAX - 32) / 4)
		return bad(e, rq, "block_tokens", "1 to 16376 tokens make a block");
	switch (m->key_mode) {
	case PROTO_KEYS_TOKENS:
		if (m->digest_len != 0)
			return bad(e, rq, "digest_len", "keys are token ids here; give 0");
		if (m->seed_probe.n != 0)
			return bad(e, rq, "seed_probe", "keys are token ids here; leave it empty");
		return true;
	case PROTO_KEYS_DIGEST:
		if (m->flags & PROTO_OPEN_EXTRA)
			return bad(e, rq, "flags",
				   "EXTRA goes with token keys; an engine's digest covers it");
		if (m->digest_len < 16 || m->digest_len > PROTO_DIGEST_MAX)
			return bad(e, rq, "digest_len", "16 to 64 bytes identify a block");
		if (m->seed_probe.n == 0)
			return bad(e, rq, "seed_probe",
				   "give the engine's hash of the canonical block, so that other "
				   "hash seeds are noticed");
		return true;
	default:
		return bad(e, rq, "key_mode", "1 (token ids) or 2 (the engine's digests)");
	}
}

/*
 * How blocks of the namespace lie below the device: as it says, or, where it leaves that open, as
 * the daemon was told to if it can.  Who speaks an older version cannot be told and gets none.
 */
static bool cold_of(struct prefixd_engine *e, struct prefixd_request *rq,
		    const struct proto_open_req *m, struct prefixd_cold *ret)
{
	const bool asked = m->cold_codec.n > 0;
	struct prefixd_cold c = {
		.codec = rq->s->version >= 3 ? e->config.cold_codec : GPU_CODEC_NONE,
		.layers = m->layers,
		.heads = m->kv_heads,
		.dim = m->head_dim,
		.tokens = m->block_tokens,
	};

	memset(ret, 0, sizeof(*ret));
	if (asked && !prefixd_cold_codec_parse(m->cold_codec.p, m->cold_codec.n, &c.codec))
		return bad(e, rq, "cold_codec", "none, int8 or fp8; or leave it empty");
	if (asked && c.codec == GPU_CODEC_NONE && m->exact_layers.n)
		return bad(e, rq, "exact_layers", "without a cold_codec every layer is exact");
	if (c.codec == GPU_CODEC_NONE)
		return true;
	if (m->flags & PROTO_OPEN_OPAQUE)
		return !asked || bad(e, rq, "cold_codec",
				     "of an OPAQUE block no codec knows the elements; give none");
	if (!prefixd_cold_element_parse(m->dtype.p, m->dtype.n, &c.element))
		return !asked || bad(e, rq, "dtype",
				     "float16 and bfloat16 can be coded; or give cold_codec none");
	if (!prefixd_cold_layout_parse(m->layout.p, m->layout.n, &c.order))
		return !asked || bad(e, rq, "layout",
				     "block-major and block-major-hnd can be coded; or give "
				     "cold_codec none");
	if (c.layers > PREFIXD_COLD_LAYERS_MAX)
		return !asked || bad(e, rq, "layers",
				     "of at most 256 layers it can be told which stay exact; or "
				     "give cold_codec none");
	if (!prefixd_cold_layers_parse(m->exact_layers.p, m->exact_layers.n, c.layers, c.exact))
		return bad(e, rq, "exact_layers",
			   "numbers and ranges of the model's layers, counted from 0: 0-1,31");
	if (!prefixd_cold_ok(&c, m->block_bytes))
		return !asked ||
		       bad(e, rq, "cold_codec", "coding makes these blocks no smaller; give none");
	*ret = c;
	return true;
}

/* The ranks of a model: one block is a piece in the pool of each. */
static bool check_stripe(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct proto_open_req *m)
{
	if (!(m->flags & PROTO_OPEN_STRIPE))
		return m->tp_size == 1 ||
		       bad(e, rq, "tp_size",
			   "more than one rank share blocks with the flag STRIPE; set it, or give "
			   "1 with each rank's share under an engine name of its own");
	if (e->config.staged)
		return bad(e, rq, "flags",
			   "STRIPE does not go with workers that write in memory of their own "
			   "(pool-write staged)");
	if (e->config.max_ranks < 2)
		return bad(e, rq, "flags", "STRIPE is not offered by this daemon");
	if (m->tp_size < 2 || m->tp_size > radix_min_u32(e->config.max_ranks, PREFIXD_RANKS_MAX)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_NAMESPACE, "tp_size",
			       "'tp_size' is %u; with STRIPE it is 2 to %u", m->tp_size,
			       radix_min_u32(e->config.max_ranks, PREFIXD_RANKS_MAX));
		return false;
	}
	if (rq->s->rank == RADIX_NONE || rq->s->rank == m->tp_rank)
		return true;
	prefixd_refuse(e, rq, PROTO_STATUS_BAD_NAMESPACE, "tp_rank",
		       "this session is rank %u already; each rank has a connection of its own",
		       rq->s->rank);
	return false;
}

static bool check_sizes(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct proto_open_req *m)
{
	uint32_t bits = dtype_bits(m->dtype);
	unsigned __int128 want = 2;

	if (m->block_bytes == 0)
		return bad(e, rq, "block_bytes", "it is 0; give K and V of all layers of a block");
	if (m->block_bytes > 1ull << 40)
		return bad(e, rq, "block_bytes", "a block of more than 1 TiB is not believable");
	if (m->tp_size == 0)
		return bad(e, rq, "tp_size", "it is 0; 1 means no tensor parallelism");
	if (m->tp_rank >= m->tp_size)
		return bad(e, rq, "tp_rank", "it is not below tp_size");
	if (!check_stripe(e, rq, m))
		return false;
	if (m->flags & PROTO_OPEN_OPAQUE)
		return true;
	if (bits == 0)
		return bad(e, rq, "dtype",
			   "its element size is not known here; give float64, float32, float16, "
			   "bfloat16, fp8_e4m3, fp8_e5m2, int8, uint8 or int4, or set OPAQUE");
	if (m->layers == 0 || m->kv_heads == 0 || m->head_dim == 0)
		return bad(e, rq,
			   m->layers == 0     ? "layers"
			   : m->kv_heads == 0 ? "kv_heads"
					      : "head_dim",
			   "it is 0; give the model's, or set OPAQUE");
	/* Each factor is below 2^32 but the product of four may pass 128 bits: stop in time. */
	want *= (unsigned __int128)m->layers * m->kv_heads;
	if (want <= (unsigned __int128)1 << 64)
		want = want * m->head_dim;
	if (want <= (unsigned __int128)1 << 64)
		want = want * m->block_tokens * bits / 8;
	if (want == m->block_bytes)
		return true;
	if (want > 1ull << 40)
		return bad(e, rq, "block_bytes",
			   "layers, kv_heads, head_dim and block_tokens make more than 1 TiB of a "
			   "block; look for the wrong one, or set OPAQUE");
	prefixd_refuse(e, rq, PROTO_STATUS_BAD_NAMESPACE, "block_bytes",
		       "'block_bytes' is %llu, but 2 x %u layers x %u KV heads x %u head dim x %u "
		       "bits x %u tokens is %llu bytes; give that, or set OPAQUE",
		       (unsigned long long)m->block_bytes, m->layers, m->kv_heads, m->head_dim,
		       bits, m->block_tokens, (unsigned long long)want);
	return false;
}

/* ---- the namespace --------------------------------------------------------------------------- */

/* A codec is part of it, so that who codes and who does not never read each other's blocks. */
static void name_namespace(const struct prefixd_engine *e, const struct proto_open_req *m,
			   const struct prefixd_cold *cold, bool with_seed, uint8_t ret[32])
{
	/* how a session reads is its own matter */
	uint32_t identity = m->flags & ~(uint32_t)PROTO_OPEN_WINDOWS;
	const uint8_t codec = (uint8_t)cold->codec;
	uint8_t num[8][8];
	const uint64_t values[8] = {
		m->key_mode, identity,        m->layers,      m->kv_heads,
		m->head_dim, m->block_tokens, m->block_bytes, m->digest_len,
	};
	/* Ranks that share blocks open one namespace. */
	uint32_t rank = m->flags & PROTO_OPEN_STRIPE ? 0 : m->tp_rank;
	uint64_t tp = (uint64_t)m->tp_size << 32 | rank;
	uint8_t tp_le[8];
	struct prefixd_field f[] = {
		{ 1, m->model.p, m->model.n },
		{ 2, m->revision.p, m->revision.n },
		{ 3, m->dtype.p, m->dtype.n },
		{ 4, m->scales.p, m->scales.n },
		{ 5, m->layout.p, m->layout.n },
		{ 6, m->windows.p, m->windows.n },
		{ 7, m->adapter.p, m->adapter.n },
		{ 8, m->engine.p, m->engine.n },
		{ 9, num, sizeof(num) },
		{ 10, tp_le, sizeof(tp_le) },
		{ 11, m->seed_probe.p, m->seed_probe.n },
		{ 0 },
		{ 0 },
	};
	uint32_t n = with_seed ? 11 : 10;

	for (uint32_t i = 0; i < 8; i++)
		for (uint32_t k = 0; k < 8; k++)
			num[i][k] = (uint8_t)(values[i] >> (8 * k));
	for (uint32_t k = 0; k < 8; k++)
		tp_le[k] = (uint8_t)(tp >> (8 * k));
	/* Without one, nothing: names are what they were before there were codecs. */
	if (cold->codec != GPU_CODEC_NONE) {
		f[n++] = (struct prefixd_field){ 12, &codec, sizeof(codec) };
		f[n++] = (struct prefixd_field){ 13, cold->exact, sizeof(cold->exact) };
	}
	prefixd_name_digest(e, with_seed ? "prefixd namespace" : "prefixd namespace family", f, n,
			    ret, 32);
}

struct prefixd_namespace *prefixd_namespace_find(const struct prefixd_engine *e,
						 const uint8_t digest[32])
{
	uint64_t hash;
	struct prefixd_item *it;

	memcpy(&hash, digest, sizeof(hash));
	for (it = prefixd_set_at(&e->namespaces, hash); it; it = it->next) {
		struct prefixd_namespace *ns = radix_container_of(it, struct prefixd_namespace,
								  item);

		if (memcmp(ns->digest, digest, 32) == 0)
			return ns;
	}
	return NULL;
}

static const char *text_add(struct prefixd_namespace *ns, size_t *at, struct proto_span s)
{
	char *p = ns->text + *at;

	if (s.n)
		memcpy(p, s.p, s.n);
	p[s.n] = '\0';
	*at += s.n + 1;
	return p;
}

static struct prefixd_namespace *namespace_new(struct prefixd_engine *e,
					       const struct proto_open_req *m,
					       const struct prefixd_cold *cold,
					       const uint8_t digest[32])
{
	struct prefixd_namespace *ns;
	size_t at = 0;

	if (prefixd_set_room(e->alloc, &e->namespaces) < 0)
		return NULL;
	ns = prefixd_take0(e->alloc, sizeof(*ns));
	if (!ns)
		return NULL;
	ns->text_len = m->model.n + m->revision.n + m->dtype.n + m->adapter.n + m->engine.n + 5;
	ns->text = radix_take(e->alloc, ns->text_len);
	if (!ns->text || prefixd_note_ns_room(e, &ns->record) < 0) {
		namespace_free(e, ns);
		return NULL;
	}
	ns->model = text_add(ns, &at, m->model);
	ns->revision = text_add(ns, &at, m->revision);
	ns->dtype = text_add(ns, &at, m->dtype);
	ns->adapter = text_add(ns, &at, m->adapter);
	ns->engine = text_add(ns, &at, m->engine);
	memcpy(ns->digest, digest, 32);
	name_namespace(e, m, cold, false, ns->family);
	ns->mode = m->key_mode == PROTO_KEYS_TOKENS ? RADIX_KEYS_TOKENS : RADIX_KEYS_DIGEST;
	ns->extra = m->flags & PROTO_OPEN_EXTRA;
	ns->block_tokens = m->block_tokens;
	ns->token_bytes = ns->mode == RADIX_KEYS_TOKENS ? m->block_tokens * 4 : 0;
	ns->key_len = ns->mode == RADIX_KEYS_TOKENS ? ns->token_bytes + (ns->extra ? 32 : 0)
						    : m->digest_len;
	ns->tenant = RADIX_NONE;
	for (uint32_t i = 0; i < e->namespaces.n && ns->mode == RADIX_KEYS_DIGEST; i++) {
		const struct prefixd_namespace *o =
			radix_container_of(e->namespaces.v[i], struct prefixd_namespace, item);

		if (memcmp(o->family, ns->family, 32) == 0)
			ns->seed_mismatch = true;
	}
	return ns;
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

static void reply_open(struct prefixd_engine *e, struct prefixd_request *rq,
		       struct prefixd_namespace *ns)
{
	const struct prefixd_group *g = ns->group;
	uint32_t rank = g->n_ranks > 1 ? rq->s->rank : 0;
	const struct prefixd_desk *desk = prefixd_desk_of(rq->s, g);
	struct proto_open_rep rep = {
		.ns = ns->id,
		.flags = (ns->seed_mismatch ? PROTO_OPENED_SEED_MISMATCH : 0) |
			 (g->kept && !g->renewed ? PROTO_OPENED_KEPT : 0) |
			 (e->config.staged ? PROTO_OPENED_READ_ONLY : 0),
		.digest = { .p = ns->digest, .n = sizeof(ns->digest) },
		.key_len = ns->key_len,
		.block_tokens = ns->block_tokens,
		.block_bytes = g->slot_bytes,
		.group = g->id,
		.n_slots = g->n_slots,
		.slot_stride = g->slot_stride,
		.pool_len = g->pool_len,
		.n_pool_fds = g->n_fds,
		.pool = g->pool,
		.device = g->device,
		.device_id = g->device_ids[rank],
		.slab_len = g->slab_len,
		.n_ranks = g->n_ranks,
		.window = prefixd_windowed(rq->s, ns) ? ns->window : 0,
		.cold_bytes = prefixd_cold_bytes(&g->cold, g->slot_bytes),
		.n_write = desk ? desk->n_places : 0,
		.write_len = desk ? desk->len : 0,
	};
	struct prefixd_reply rp;
	struct prefixd_action *a;

	if (rq->words)
		rep.n_words = rq->s->n_words = PREFIXD_WORDS;
	if (ns->seed_mismatch)
		e->counters.seed_mismatch++;
	if (rq->s->version < 2)
		rep.flags &= PROTO_OPENED_ALL_1;
	rep.pool.b[sizeof(rep.pool.b) - 1] ^= (uint8_t)rank; /* the pools of ranks are not one */
	prefixd_reply_begin(e, &rp, 0);
	proto_open_rep_encode_as(&rp.w, rq->s->version, &rep);
	a = prefixd_reply_send(e, rq, &rp);
	a->u.send.with_fds = g->n_fds > 0;
	a->u.send.rank = rank;
	a->u.send.with_words = rq->words;
	a->u.send.read_only = e->config.staged;
	a->u.send.with_desk = desk != NULL;
	a->u.send.desk = desk ? desk->id : RADIX_NONE;
	a->group = g->id;
}

/* Adds the namespace to the session, once.  The array has room. */
static void session_add(struct prefixd_session *s, struct prefixd_namespace *ns, uint32_t rank,
			bool windowed)
{
	if (ns->group->n_ranks > 1)
		s->rank = rank;
	for (uint32_t i = 0; i < s->n_ns; i++) {
		if (s->ns[i].ns == ns) {
			s->ns[i].windowed = s->ns[i].windowed || windowed;
			s->ns[i].closed = false;
			return;
		}
	}
	s->ns[s->n_ns++] = (struct prefixd_opened){ ns, windowed, false };
	ns->refs++;
	ns->n_sessions++;
}

/* Room for one more, counting the OPENs that wait. */
static bool session_room(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_namespace *ns)
{
	struct prefixd_session *s = rq->s;
	uint32_t cap = s->ns_cap ? s->ns_cap : 4;
	void *v;

	for (uint32_t i = 0; ns && i < s->n_ns; i++)
		if (s->ns[i].ns == ns)
			return true;
	if (s->n_ns + s->n_waiting >= e->config.limits.max_namespaces) {
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, NULL,
			       "this session has opened %u namespaces, which is the limit",
			       s->n_ns + s->n_waiting);
		return false;
	}
	while (cap < s->n_ns + s->n_waiting + 1)
		cap *= 2;
	if (cap == s->ns_cap)
		return true;
	v = prefixd_grow(e->alloc, s->ns, s->ns_cap * sizeof(*s->ns), cap * sizeof(*s->ns));
	if (!v) {
		prefixd_refuse_memory(e, rq);
		return false;
	}
	s->ns = v;
	s->ns_cap = cap;
	return true;
}

/* In the pool's list, or the desk's.  Return: 0, -ENOMEM. */
static int wait_in(struct prefixd_engine *e, struct prefixd_request *rq,
		   struct prefixd_namespace *ns, struct radix_list *list, uint32_t rank,
		   bool windowed)
{
	struct prefixd_waiting *w = prefixd_take0(e->alloc, sizeof(*w));
	size_t out = (size_t)(e->n_waiting + 1) * OPEN_ERROR_MAX;

	if (!w)
		return -ENOMEM;
	if (prefixd_out_reserve(e, out, 2 * (e->n_waiting + 1)) < 0) {
		radix_give(e->alloc, w, sizeof(*w));
		return -ENOMEM;
	}
	w->session = rq->s;
	w->seq = rq->h->seq;
	w->ns = ns;
	w->rank = rank;
	w->words = rq->words;
	w->windowed = windowed;
	ns->refs++;
	radix_list_add_tail(list, &w->link);
	rq->s->n_waiting++;
	rq->deferred = true;
	e->n_waiting++;
	return 0;
}

/*
 * What the reply needs and is not there: the pool, then the session's desk.  Return: 0; -ENOMEM;
 * -EDQUOT: refused, and answered.
 */
static int wait_for_memory(struct prefixd_engine *e, struct prefixd_request *rq,
			   struct prefixd_namespace *ns, struct prefixd_group *g, uint32_t rank,
			   bool windowed)
{
	struct prefixd_desk *d;
	int r;

	if (g->state == PREFIXD_GROUP_CREATING)
		return wait_in(e, rq, ns, &g->waiting, rank, windowed);
	if (!rq->s->staged)
		return 0;
	r = prefixd_desk_get(e, rq, g, &d);
	if (r < 0 || d->state == PREFIXD_DESK_READY)
		return r;
	r = wait_in(e, rq, ns, &d->waiting, rank, windowed);
	if (r < 0)
		prefixd_desk_cancel(e, d);
	else
		prefixd_desk_ask(e, d);
	return r;
}

static void open_namespace(struct prefixd_engine *e, struct prefixd_request *rq,
			   const struct proto_open_req *m, const struct prefixd_cold *cold,
			   uint32_t window)
{
	bool windowed = m->flags & PROTO_OPEN_WINDOWS;
	uint8_t digest[32];
	struct prefixd_namespace *ns, *made = NULL;
	struct prefixd_group *g, *new_group = NULL;
	uint64_t hash;
	int r;

	name_namespace(e, m, cold, true, digest);
	ns = prefixd_namespace_find(e, digest);
	if (!session_room(e, rq, ns))
		return;
	if (ns && prefixd_windows_begin(e, ns, window) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	g = ns ? ns->group : prefixd_group_find(e, m->block_bytes, m->tp_size, cold);
	if (g && prefixd_lost_refuse(e, rq, g))
		return;
	if (!g) {
		g = new_group = prefixd_group_new(e, rq, m->block_bytes, m->tp_size, cold);
		if (!g)
			return;
		g->windowed = window > 0;
	}
	if (!ns)
		ns = made = namespace_new(e, m, cold, digest);
	r = ns ? wait_for_memory(e, rq, ns, g, m->tp_rank, windowed) : -ENOMEM;
	if (r < 0) {
		if (made) {
			prefixd_note_ns_gone(e, made->record);
			namespace_free(e, made);
		}
		if (new_group)
			prefixd_group_free(e, new_group);
		if (r == -ENOMEM)
			prefixd_refuse_memory(e, rq);
		return;
	}
	if (made) {
		made->group = g;
		made->window = window;
		made->id = e->next_ns++;
		e->key_max = made->key_len > e->key_max ? made->key_len : e->key_max;
		memcpy(&hash, digest, sizeof(hash));
		prefixd_set_add(&e->namespaces, &made->item, hash);
		prefixd_note_ns(e, made);
	}
	if (made && made->seed_mismatch)
		prefixd_log(e, PREFIXD_LOG_WARN,
			    "namespace %u is open with another hash seed too, by pid %u: nothing "
			    "will be shared between them",
			    made->id, rq->s->peer.pid);
	if (new_group) { /* from here on it exists, and the shell makes its memory */
		prefixd_group_add(e, new_group, new_group->budget);
		prefixd_group_create(e, new_group);
	}
	if (made || ns->to_ask)
		prefixd_epoch_ask(e, ns);
	ns->to_ask = false;
	if (rq->deferred)
		return;
	session_add(rq->s, ns, m->tp_rank, windowed);
	reply_open(e, rq, ns);
}

/* Bits of a later version are met here: they do not decode. */
static void refuse_open_body(struct prefixd_engine *e, struct prefixd_request *rq,
			     const char *field)
{
	if (strcmp(field, "flags") != 0)
		prefixd_refuse_body(e, rq, field);
	else
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, field,
			       "'flags' is cut off, or has a bit that version %u of the protocol "
			       "does not know: 1 (OPAQUE) and 2 (EXTRA), from version 3 on also 4 "
			       "(STRIPE), 8 (WINDOWS) and 16 (WORDS)",
			       rq->s->version);
}

void prefixd_op_open(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_cold cold;
	struct proto_open_req m;
	const char *field;
	uint32_t window;

	if (proto_open_req_decode_as(rq->s->version, rq->body, rq->h->len, &m, &field)) {
		refuse_open_body(e, rq, field);
		return;
	}
	if (e->draining) {
		prefixd_refuse(e, rq, PROTO_STATUS_DRAINING, NULL, "the daemon is stopping");
		return;
	}
	if (e->config.device == PROTO_DEVICE_CUDA && rq->s->version < 3) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNSUPPORTED, NULL,
			       "pools lie on a GPU, which takes version 3 of the protocol to map; "
			       "use a client that speaks it, or a daemon with --device host");
		return;
	}
	/* The session's own wish: it says nothing about what is in a block. */
	rq->words = m.flags & PROTO_OPEN_WORDS;
	m.flags &= ~(uint32_t)PROTO_OPEN_WORDS;
	if (check_names(e, rq, &m) && check_keys(e, rq, &m) && check_sizes(e, rq, &m) &&
	    cold_of(e, rq, &m, &cold) && prefixd_windows_check(e, rq, &m, &window))
		open_namespace(e, rq, &m, &cold, window);
}

/* ---- OPENs that waited ----------------------------------------------------------------------- */

static void waiting_free(struct prefixd_engine *e, struct prefixd_waiting *w)
{
	radix_list_remove(&w->link);
	w->session->n_waiting--;
	e->n_waiting--;
	prefixd_namespace_unref(e, w->ns);
	radix_give(e->alloc, w, sizeof(*w));
}

static void waiting_drop(struct prefixd_engine *e, const struct prefixd_session *s,
			 struct radix_list *list)
{
	struct radix_list *it, *tmp;

	radix_list_foreach_safe(it, tmp, list) {
		struct prefixd_waiting *w = radix_list_entry(it, struct prefixd_waiting, link);

		if (w->session == s)
			waiting_free(e, w);
	}
}

void prefixd_waiting_drop(struct prefixd_engine *e, struct prefixd_session *s)
{
	struct radix_list *it;

	for (uint32_t i = 0; i < e->n_groups && s->n_waiting; i++)
		if (e->groups[i])
			waiting_drop(e, s, &e->groups[i]->waiting);
	radix_list_foreach(it, &s->desks)
		waiting_drop(e, s, &radix_list_entry(it, struct prefixd_desk, link)->waiting);
}

/* The pool is there.  Return: true: what else the reply needs is not, and it waits for that. */
static bool waits_on(struct prefixd_engine *e, struct prefixd_request *rq,
		     struct prefixd_waiting *w)
{
	struct prefixd_desk *d;
	int r;

	if (!w->session->staged)
		return false;
	r = prefixd_desk_get(e, rq, w->ns->group, &d);
	if (r == 0 && d->state == PREFIXD_DESK_READY)
		return false;
	if (r == 0) {
		radix_list_remove(&w->link);
		radix_list_add_tail(&d->waiting, &w->link);
		prefixd_desk_ask(e, d);
		return true;
	}
	if (r == -ENOMEM)
		prefixd_refuse_memory(e, rq);
	waiting_free(e, w);
	return true;
}

void prefixd_open_answer(struct prefixd_engine *e, const struct prefixd_group *g,
			 struct radix_list *waiting, enum proto_status status, const char *why)
{
	while (!radix_list_empty(waiting)) {
		struct prefixd_waiting *w = radix_list_first(waiting, struct prefixd_waiting, link);
		struct proto_header h = { .op = PROTO_OP_OPEN, .seq = w->seq };
		struct prefixd_request rq = { .s = w->session, .h = &h, .words = w->words };

		if (status == PROTO_STATUS_DEVICE_LOST) {
			prefixd_refuse_lost(e, &rq, g, PROTO_STATUS_BUSY);
		} else if (why) {
			prefixd_refuse(e, &rq, status, "block_bytes", "%.300s", why);
		} else if (g->n_ranks > 1 && w->session->rank != RADIX_NONE &&
			   w->session->rank != w->rank) { /* two OPENs waited, of two ranks */
			prefixd_refuse(e, &rq, PROTO_STATUS_BAD_NAMESPACE, "tp_rank",
				       "this session is rank %u already", w->session->rank);
		} else if (waits_on(e, &rq, w)) {
			continue;
		} else {
			session_add(w->session, w->ns, w->rank, w->windowed);
			reply_open(e, &rq, w->ns);
		}
		waiting_free(e, w);
	}
}
