/*
 * cache.c - see cache.h.
 *
 * Blocks of the pool are read and written by the engine thread alone, inside one call each, so
 * between calls no slot is touched: that is why the client says that it copies (its reads may be
 * revoked), and why it may say QUIESCED at any time.  What was read is checked for staleness before
 * anything is computed from it.  A block in the pool carries no checksum that a reader could look
 * at; one that is held by a lease is trusted like any shared memory.
 */
#include "clients/llama/cache.h"

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_load.h"
#include "clients/llama/kvstate.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <llama.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define RUN_MAX    256u        /* blocks stored by one round of calls */
#define AGAIN_US   200000ull   /* between attempts at a daemon that is away */
#define WARM_US    10000000ull /* for a pool to be made, at a worker's start */
#define REFUSED_US 5000000ull  /* at one that refuses the namespace */
#define SALT_MAX   255u        /* the protocol's */
#define FLAGS      PFX_MATCH_NO_TAIL | PFX_MATCH_LEAD

struct cache {
	struct cache_options options; /* its strings are the cache's own */
	struct kvstate *state;
	const struct kvstate_shape *shape;
	char dtype[33], layout[65], engine[65];
	pfx_client *client;
	pfx_namespace *ns;
	uint64_t open_after_us;
	uint8_t boot[16];
	bool lost;  /* a call found nobody: leases of an earlier session may be held still */
	bool renew; /* the daemon is another one: the old one's pool is mapped still */
	uint32_t n_open;
	struct cache_counters counters;
	char problem[256];
	void *run[RUN_MAX];
	uint8_t sums[RUN_MAX][16];
};

struct cache_request {
	struct cache *cache;
	struct llama_context *ctx;
	uint64_t lease;  /* 0: none; nothing is stored */
	int32_t *tokens; /* the prompt and what followed */
	size_t n, cap, n_prompt;
	uint32_t n_keys; /* blocks that the daemon was told */
	uint32_t stored; /* leading blocks that it has */
	/* the leading ones until they are imported: slots, and what tells whether they are stale */
	uint32_t *slots, n_slots, slots_cap;
	uint64_t *reuse;
	bool loading, pending, failed, settled;
	uint64_t load_until_us, wait_until_us;
};

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void note(struct cache *c, const char *what, const char *why)
{
	c->counters.failures++;
	(void)snprintf(c->problem, sizeof(c->problem), "%s: %s", what, why);
}

/* Counts the time of a call that began at `since`, and what went wrong.  Return: r. */
static int called(struct cache *c, uint64_t since, const char *what, int r)
{
	c->counters.daemon_us += now_us() - since;
	if (r) {
		note(c, what, c->client ? pfx_error(c->client) : pfx_status_to_string(r));
		/* A lease that nobody knows was of a session that ended unnoticed. */
		if (r == PFX_GONE || r == PFX_PROTOCOL || r == PFX_DEADLINE ||
		    r == PFX_UNKNOWN_LEASE)
			c->lost = true;
	}
	return r;
}

static const char *plain_dtype(const char *type)
{
	if (strcmp(type, "f16") == 0)
		return "float16";
	return strcmp(type, "f32") == 0 ? "float32" : "bfloat16";
}

/* The namespace's fields that are put together from several things. */
static void describe(struct cache *c)
{
	const struct kvstate_shape *s = c->shape;
	const char *engine = c->options.engine;
	XXH128_canonical_t sum;
	char hex[33];

	if (s->plain)
		(void)snprintf(c->dtype, sizeof(c->dtype), "%s", plain_dtype(s->type_k));
	else
		(void)snprintf(c->dtype, sizeof(c->dtype), "%s/%s", s->type_k, s->type_v);
	(void)snprintf(c->layout, sizeof(c->layout), "llama-rows-1 k=%s/%u v=%s/%u", s->type_k,
		       s->rot_k, s->type_v, s->rot_v);
	if (strlen(engine) < sizeof(c->engine)) {
		(void)snprintf(c->engine, sizeof(c->engine), "%s", engine);
		return;
	}
	XXH128_canonicalFromHash(&sum, XXH3_128bits(engine, strlen(engine)));
	for (size_t i = 0; i < sizeof(sum.digest); i++)
		(void)snprintf(hex + 2 * i, 3, "%02x", sum.digest[i]);
	(void)snprintf(c->engine, sizeof(c->engine), "%.31s %s", engine, hex);
}

void cache_get_counters(const struct cache *c, struct cache_counters *ret)
{
	*ret = c->counters;
}

const char *cache_problem(const struct cache *c)
{
	return c->problem;
}

static int open_namespace(struct cache *c)
{
	const struct kvstate_shape *s = c->shape;
	pfx_namespace_options o = { .struct_size = sizeof(o) };
	uint64_t since = now_us();
	int r;

	if (since < c->open_after_us)
		return PFX_GONE;
	o.key_mode = PFX_KEYS_TOKENS;
	o.flags = s->plain ? 0 : PFX_NS_OPAQUE;
	o.model = c->options.model;
	o.revision = c->options.revision;
	o.dtype = c->dtype;
	o.layers = s->n_layers;
	o.kv_heads = s->kv_heads;
	o.head_dim = s->head_dim;
	o.block_tokens = s->block_tokens;
	o.block_bytes = s->block_bytes;
	o.layout = c->layout;
	o.adapter = c->options.adapter;
	o.tp_size = 1;
	o.engine = c->engine;
	o.map = 1;
	r = called(c, since, "OPEN", pfx_open(c->client, &o, &c->ns));
	if (r) {
		c->ns = NULL;
		c->open_after_us = since +
				   (r == PFX_GONE || r == PFX_DEADLINE ? AGAIN_US : REFUSED_US);
		return r;
	}
	return called(c, since, "OPEN", pfx_boot_id(c->client, c->boot));
}

/* A connection, a namespace, a tenant.  Return: 0 or a status. */
static int ready(struct cache *c, uint32_t *ret_tenant)
{
	pfx_connect_options o = { .struct_size = sizeof(o) };
	uint64_t since = now_us();
	int r = 0;

	if (c->renew && !c->n_open) {
		pfx_close(c->client);
		c->client = NULL;
		c->ns = NULL;
		c->renew = c->lost = false;
	}
	if (!c->client) {
		o.socket = c->options.socket;
		o.name = "prefixd-llama";
		o.deadline_ms = c->options.deadline_ms;
		o.copies = 1;
		(void)pfx_connect(&o, &c->client);
		if (!c->client)
			return called(c, since, "HELLO", PFX_NO_MEMORY);
	}
	if (!c->ns)
		r = open_namespace(c);
	if (r)
		return r;
	*ret_tenant = 0;
	if (!c->options.tenant)
		return 0; /* the first of the daemon's list */
	since = now_us();
	return called(c, since, "HELLO", pfx_tenant(c->client, c->options.tenant, ret_tenant));
}

/* After a call that was answered: was there another connection, or another daemon before? */
static void answered(struct cache *c)
{
	uint8_t boot[16];
	uint64_t since = now_us();

	if (!c->lost || called(c, since, "HELLO", pfx_boot_id(c->client, boot)) != 0)
		return;
	if (memcmp(boot, c->boot, sizeof(boot)) != 0) {
		memcpy(c->boot, boot, sizeof(boot));
		c->renew = true;
		c->lost = false;
	} else if (called(c, since, "QUIESCED", pfx_quiesced(c->client, NULL)) == 0) {
		c->lost = false;
	}
}

/* One string of the options becomes the cache's own.  Return: false without memory. */
static bool own(const char **string)
{
	char *copy;

	if (!*string)
		return true;
	copy = strdup(*string);
	*string = copy;
	return copy != NULL;
}

static void disown(const char *string)
{
	char *p;

	memcpy(&p, &string, sizeof(p)); /* free takes no pointer to const */
	free(p);
}

/*
 * The daemon makes a pool's memory when the first namespace of a block size is opened, which may
 * take longer than one call may; nobody waits for an answer yet.
 */
static void warm(struct cache *c)
{
	uint64_t begun = now_us(), since = begun;
	bool there = false; /* somebody took the connection and let the deadline pass */
	uint32_t tenant;
	int r;

	for (;;) {
		c->open_after_us = 0;
		r = ready(c, &tenant);
		there |= now_us() - since >= 500ull * c->options.deadline_ms;
		if ((r != PFX_DEADLINE && r != PFX_GONE) || !there || now_us() - begun >= WARM_US)
			break;
		(void)poll(NULL, 0, 50); /* there is no more than an attempt in 200 ms */
		since = now_us();
	}
	if (!r)
		c->counters.failures = 0;
}

int cache_new(const struct cache_options *options, struct kvstate *state, struct cache **ret)
{
	struct cache_options *o;
	struct cache *c;
	bool ok;

	*ret = NULL;
	if (!options || !state || !options->model || !options->revision || !options->engine ||
	    !*options->model || !*options->revision || !*options->engine)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	o = &c->options;
	*o = *options;
	if (!o->deadline_ms)
		o->deadline_ms = 1000; /* as libprefixd takes it */
	ok = own(&o->socket);
	ok = own(&o->tenant) && ok;
	ok = own(&o->model) && ok;
	ok = own(&o->revision) && ok;
	ok = own(&o->adapter) && ok;
	ok = own(&o->engine) && ok;
	if (!ok) {
		cache_free(c);
		return -ENOMEM;
	}
	c->state = state;
	c->shape = kvstate_shape(state);
	describe(c);
	warm(c);
	*ret = c;
	return 0;
}

struct cache *cache_free(struct cache *c)
{
	if (!c)
		return NULL;
	pfx_close(c->client);
	disown(c->options.socket);
	disown(c->options.tenant);
	disown(c->options.model);
	disown(c->options.revision);
	disown(c->options.adapter);
	disown(c->options.engine);
	free(c);
	return NULL;
}

/* ---- a request ------------------------------------------------------------------------------- */

static void release(struct cache_request *q)
{
	struct cache *c = q->cache;
	uint64_t since = now_us();

	if (q->lease)
		(void)called(c, since, "RELEASE",
			     pfx_release(c->ns, q->lease, 0, 0, c->options.deadline_ms, NULL));
	q->lease = 0;
}

static int append(struct cache_request *q, const int32_t *tokens, size_t n)
{
	if (n > q->cap - q->n) {
		size_t cap = q->n + n + 1024;
		int32_t *v = realloc(q->tokens, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		q->tokens = v;
		q->cap = cap;
	}
	if (n)
		memcpy(q->tokens + q->n, tokens, n * sizeof(*tokens));
	q->n += n;
	return 0;
}

static int slots_room(struct cache_request *q, uint32_t n)
{
	uint32_t cap = n > q->n_keys ? n : q->n_keys;
	uint32_t *slots;
	uint64_t *reuse;

	if (n <= q->slots_cap)
		return 0;
	slots = realloc(q->slots, cap * sizeof(*slots));
	if (slots)
		q->slots = slots;
	reuse = realloc(q->reuse, cap * sizeof(*reuse));
	if (reuse)
		q->reuse = reuse;
	if (!slots || !reuse)
		return -ENOMEM;
	q->slots_cap = cap;
	return 0;
}

/* Slots of a reply, which are valid until the next call. */
static int take_slots(struct cache_request *q, const pfx_match_result *m)
{
	if (slots_room(q, q->n_slots + m->n_device))
		return -ENOMEM;
	for (uint32_t i = 0; i < m->n_runs; i++) {
		for (uint32_t j = 0; j < m->runs[i].len; j++) {
			q->slots[q->n_slots] = m->runs[i].start + j;
			q->reuse[q->n_slots++] = m->reuse;
		}
	}
	return 0;
}

static void take_reply(struct cache_request *q, const pfx_match_result *m)
{
	q->loading = m->loading;
	q->pending = m->n_pending > 0;
	if (take_slots(q, m)) {
		note(q->cache, "MATCH", "no memory");
		q->failed = true; /* the path is longer than what we know of it */
	}
}

static void ask(struct cache_request *q, uint32_t tenant, const void *salt, size_t salt_len)
{
	struct cache *c = q->cache;
	pfx_prompt p = { .struct_size = sizeof(p) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint64_t since = now_us();

	p.tenant = tenant;
	p.salt = salt;
	p.salt_len = (uint32_t)salt_len;
	p.keys = q->tokens;
	p.n_keys = q->n_keys;
	p.n_tokens = q->n_prompt;
	p.flags = FLAGS;
	p.deadline_ms = c->options.deadline_ms;
	p.load_ms = c->options.load_ms;
	if (p.load_ms)
		p.flags |= PFX_MATCH_PROMOTE;
	if (called(c, since, "MATCH", pfx_match(c->ns, &p, &m)) != 0)
		return;
	q->lease = m.lease;
	take_reply(q, &m);
	answered(c);
}

/* What has become usable behind the lease's path, and whether there is more to wait for. */
static void ask_more(struct cache_request *q)
{
	struct cache *c = q->cache;
	pfx_prompt p = { .struct_size = sizeof(p) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint64_t since = now_us();

	p.n_tokens = q->n_prompt;
	p.flags = FLAGS;
	p.deadline_ms = c->options.deadline_ms;
	if (called(c, since, "EXTEND", pfx_extend(c->ns, q->lease, &p, &m)) != 0) {
		q->failed = true;
		return;
	}
	take_reply(q, &m);
}

static bool unsettled(const struct cache_request *q)
{
	uint64_t now = now_us();

	return q->lease && !q->failed &&
	       ((q->loading && now < q->load_until_us) || (q->pending && now < q->wait_until_us));
}

/* Sleeps until something has come, block_ms at most. */
static void block(struct cache_request *q, uint32_t block_ms)
{
	struct cache *c = q->cache;
	pfx_wait_result w = { .struct_size = sizeof(w) };
	pfx_load_result l = { .struct_size = sizeof(l) };
	uint64_t since = now_us();
	int r;

	if (q->loading) {
		r = pfx_load_wait(c->ns, q->lease, block_ms, &l);
	} else {
		r = pfx_wait(c->ns, q->lease, block_ms, &w);
		if (r == PFX_BUSY || (r == 0 && w.state == PFX_WAIT_FAILED))
			q->wait_until_us = 0; /* nobody is waited for any more */
	}
	if (r == PFX_DEADLINE || r == PFX_BUSY)
		r = 0;
	(void)called(c, since, "WAIT", r);
}

/* Blocks 0 ... n - 1 of the path to sequence 0.  Return: how many are there. */
static uint32_t import_blocks(struct cache_request *q, uint32_t n)
{
	struct cache *c = q->cache;
	llama_memory_t memory = llama_get_memory(q->ctx);
	const void **in = calloc(n ? n : 1, sizeof(*in));
	uint64_t since = now_us();
	uint32_t fresh = 0;
	int r;

	if (!in)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		in[i] = pfx_slot(c->ns, q->slots[i]);
		if (!in[i])
			n = i;
	}
	r = n ? kvstate_import(c->state, q->ctx, n, in) : 0;
	free(in);
	c->counters.import_us += now_us() - since;
	if (r) {
		note(c, "import", "libllama did not take the blocks");
		return 0;
	}
	while (fresh < n && !pfx_slot_stale(c->ns, q->slots[fresh], q->reuse[fresh]))
		fresh++;
	if (fresh < n) {
		note(c, "import", "blocks were taken back while they were read");
		q->failed = true;
		if (!llama_memory_seq_rm(memory, 0, (int32_t)(fresh * c->shape->block_tokens),
					 -1)) {
			llama_memory_seq_rm(memory, 0, -1, -1);
			fresh = 0;
		}
	}
	return fresh;
}

/* Ends the looking and begins the computing. */
static uint32_t settle(struct cache_request *q)
{
	struct cache *c = q->cache;
	uint32_t bt = c->shape->block_tokens, n = q->n_slots, hit;
	uint32_t most = q->n_prompt ? (uint32_t)((q->n_prompt - 1) / bt) : 0;

	if (n > most)
		n = most;
	if (n > llama_n_ctx(q->ctx) / bt)
		n = llama_n_ctx(q->ctx) / bt;
	hit = n ? import_blocks(q, n) * bt : 0;
	q->stored = q->n_slots;
	q->settled = true;
	c->counters.hit_tokens += hit;
	if (q->failed)
		release(q);
	return hit;
}

int cache_begin(struct cache *c, struct llama_context *ctx, const int32_t *tokens, size_t n_tokens,
		const void *salt, size_t salt_len, struct cache_request **ret, uint32_t *ret_hit)
{
	struct cache_request *q = calloc(1, sizeof(*q));
	uint32_t tenant;
	uint64_t now;

	*ret = NULL;
	*ret_hit = 0;
	if (!q)
		return -ENOMEM;
	q->cache = c;
	q->ctx = ctx;
	if (append(q, tokens, n_tokens)) {
		free(q);
		return -ENOMEM;
	}
	q->n_prompt = n_tokens;
	q->n_keys = (uint32_t)(n_tokens / c->shape->block_tokens);
	c->counters.requests++;
	c->counters.prompt_tokens += n_tokens;
	*ret = q;
	if (salt_len > SALT_MAX)
		note(c, "MATCH", "the salt is longer than 255 bytes");
	else if (ready(c, &tenant) == 0)
		ask(q, tenant, salt, salt_len);
	c->n_open++;
	now = now_us();
	q->load_until_us = now + 1000ull * c->options.load_ms;
	q->wait_until_us = now + 1000ull * c->options.wait_ms;
	if (unsettled(q)) {
		c->counters.waited++;
		return CACHE_LATER;
	}
	*ret_hit = settle(q);
	return 0;
}

int cache_poll(struct cache_request *q, uint32_t block_ms, uint32_t *ret_hit)
{
	*ret_hit = 0;
	if (q->settled)
		return 0;
	if (block_ms && unsettled(q))
		block(q, block_ms);
	if (unsettled(q))
		ask_more(q);
	if (unsettled(q))
		return CACHE_LATER;
	*ret_hit = settle(q);
	return 0;
}

/* ---- what was computed ----------------------------------------------------------------------- */

/* Tells the daemon of the path up to block `full`.  Return: 0 or a status. */
static int lengthen(struct cache_request *q, uint32_t full)
{
	struct cache *c = q->cache;
	pfx_prompt p = { .struct_size = sizeof(p) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint32_t bt = c->shape->block_tokens;
	uint64_t since = now_us();
	int r;

	p.keys = q->tokens + (size_t)q->n_keys * bt;
	p.n_keys = full - q->n_keys;
	p.n_tokens = q->n;
	p.flags = PFX_MATCH_NO_TAIL;
	p.deadline_ms = c->options.deadline_ms;
	r = called(c, since, "EXTEND", pfx_extend(c->ns, q->lease, &p, &m));
	if (r)
		return r;
	q->n_keys = full;
	q->stored += m.n_device; /* another had the same thought */
	return 0;
}

/* Addresses of reserved slots.  Return: false when one is not mapped. */
static bool run_addresses(struct cache *c, const pfx_reserve_result *res)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < res->n_runs; i++) {
		for (uint32_t j = 0; j < res->runs[i].len && n < RUN_MAX; j++) {
			c->run[n] = pfx_slot(c->ns, res->runs[i].start + j);
			if (!c->run[n++])
				return false;
		}
	}
	return n == res->n;
}

/* Reserved slots are filled and published.  Return: whether they were. */
static bool publish(struct cache_request *q, uint32_t n)
{
	struct cache *c = q->cache;
	pfx_commit_result stored = { .struct_size = sizeof(stored) };
	uint64_t since = now_us();
	int r = kvstate_export(c->state, q->ctx, q->stored, n, c->run);

	for (uint32_t i = 0; i < n && !r; i++) {
		XXH128_canonical_t sum;

		XXH128_canonicalFromHash(&sum, XXH3_128bits(c->run[i], c->shape->block_bytes));
		memcpy(c->sums[i], sum.digest, sizeof(c->sums[i]));
	}
	c->counters.export_us += now_us() - since;
	if (r) {
		note(c, "export", "libllama did not give the blocks");
		return false;
	}
	since = now_us();
	if (called(c, since, "COMMIT",
		   pfx_commit(c->ns, q->lease, n, c->sums, 0, c->options.deadline_ms, &stored)))
		return false;
	c->counters.stored_blocks += stored.n_stored;
	c->counters.duplicate_blocks += stored.n_duplicate;
	q->stored += n;
	return true;
}

/* Return: false when no more of this request is to be stored. */
static bool store(struct cache_request *q, uint32_t full)
{
	struct cache *c = q->cache;

	while (q->stored < full) {
		pfx_reserve_result res = { .struct_size = sizeof(res) };
		uint32_t want = full - q->stored < RUN_MAX ? full - q->stored : RUN_MAX;
		uint64_t since = now_us();

		if (called(c, since, "RESERVE",
			   pfx_reserve(c->ns, q->lease, want, c->options.deadline_ms, &res)))
			return false;
		if (res.first != q->stored || !run_addresses(c, &res)) {
			note(c, "RESERVE", "other blocks than those that were computed");
			return false;
		}
		if (!publish(q, res.n) || res.n < want)
			return false;
	}
	return true;
}

void cache_computed(struct cache_request *q, const int32_t *more, size_t n_more, uint32_t n_tokens)
{
	uint32_t full = n_tokens / q->cache->shape->block_tokens;

	if (!q->lease)
		return;
	if (!q->settled) { /* it did not wait: what has come since is computed too */
		q->stored = q->n_slots;
		q->settled = true;
	}
	if (append(q, more, n_more) || n_tokens > q->n) {
		note(q->cache, "EXTEND", "the tokens are not known");
		release(q);
		return;
	}
	if (full <= q->stored)
		return;
	if ((full > q->n_keys && lengthen(q, full)) || !store(q, full))
		release(q); /* so that nobody waits for blocks that will not come */
}

void cache_end(struct cache_request *q)
{
	if (!q)
		return;
	release(q);
	q->cache->n_open--;
	free(q->tokens);
	free(q->slots);
	free(q->reuse);
	free(q);
}
