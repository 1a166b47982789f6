/*
 * cache_request.c - a request's lease: matched, imported, lengthened, stored, released.
 *
 * Blocks of the pool are read and written by the engine thread alone, inside one call each, so
 * between calls no slot is touched: that is why the client says that it copies (its reads may be
 * revoked), and why it may say QUIESCED at any time.  What was read is checked for staleness before
 * anything is computed from it.  A block in the pool carries no checksum that a reader could look
 * at; one that is held by a lease is trusted like any shared memory.
 */
#include "clients/c/prefixd_load.h"
#include "clients/llama/cache_internal.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <llama.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SALT_MAX 255u /* the protocol's */
#define FLAGS    (PFX_MATCH_NO_TAIL | PFX_MATCH_LEAD)

static void release(struct cache_request *q)
{
	struct cache *c = q->cache;
	uint64_t since = cache_now_us();

	if (q->lease)
		(void)cache_called(
			c, since, "RELEASE",
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
		cache_note(q->cache, "MATCH", "no memory");
		q->failed = true; /* the path is longer than what we know of it */
	}
}

static void ask(struct cache_request *q, uint32_t tenant, const void *salt, size_t salt_len)
{
	struct cache *c = q->cache;
	pfx_prompt p = { .struct_size = sizeof(p) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint64_t since = cache_now_us();

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
	if (cache_called(c, since, "MATCH", pfx_match(c->ns, &p, &m)) != 0)
		return;
	q->lease = m.lease;
	take_reply(q, &m);
	if (!cache_tenant_holds(c)) {
		cache_note(c, "MATCH", "the daemon was restarted: the tenant is looked up again");
		q->failed = true;
		q->n_slots = 0;
	}
	cache_answered(c);
}

/* What has become usable behind the lease's path, and whether there is more to wait for. */
static void ask_more(struct cache_request *q)
{
	struct cache *c = q->cache;
	pfx_prompt p = { .struct_size = sizeof(p) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint64_t since = cache_now_us();

	p.n_tokens = q->n_prompt;
	p.flags = FLAGS;
	p.deadline_ms = c->options.deadline_ms;
	if (cache_called(c, since, "EXTEND", pfx_extend(c->ns, q->lease, &p, &m)) != 0) {
		q->failed = true;
		return;
	}
	take_reply(q, &m);
}

static bool unsettled(const struct cache_request *q)
{
	uint64_t now = cache_now_us();

	return q->lease && !q->failed &&
	       ((q->loading && now < q->load_until_us) || (q->pending && now < q->wait_until_us));
}

/* Sleeps until something has come, block_ms at most. */
static void block(struct cache_request *q, uint32_t block_ms)
{
	struct cache *c = q->cache;
	pfx_wait_result w = { .struct_size = sizeof(w) };
	pfx_load_result l = { .struct_size = sizeof(l) };
	uint64_t since = cache_now_us();
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
	(void)cache_called(c, since, "WAIT", r);
}

/* Blocks 0 ... n - 1 of the path to sequence 0.  Return: how many are there. */
static uint32_t import_blocks(struct cache_request *q, uint32_t n)
{
	struct cache *c = q->cache;
	llama_memory_t memory = llama_get_memory(q->ctx);
	const void **in = calloc(n ? n : 1, sizeof(*in));
	uint64_t since = cache_now_us();
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
	c->counters.import_us += cache_now_us() - since;
	if (r) {
		cache_note(c, "import", "libllama did not take the blocks");
		return 0;
	}
	while (fresh < n && !pfx_slot_stale(c->ns, q->slots[fresh], q->reuse[fresh]))
		fresh++;
	if (fresh < n) {
		cache_note(c, "import", "blocks were taken back while they were read");
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
		cache_note(c, "MATCH", "the salt is longer than 255 bytes");
	else if (cache_ready(c, &tenant) == 0)
		ask(q, tenant, salt, salt_len);
	c->n_open++;
	now = cache_now_us();
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
	uint64_t since = cache_now_us();
	int r;

	p.keys = q->tokens + (size_t)q->n_keys * bt;
	p.n_keys = full - q->n_keys;
	p.n_tokens = q->n;
	p.flags = PFX_MATCH_NO_TAIL;
	p.deadline_ms = c->options.deadline_ms;
	r = cache_called(c, since, "EXTEND", pfx_extend(c->ns, q->lease, &p, &m));
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
		for (uint32_t j = 0; j < res->runs[i].len && n < CACHE_RUN_MAX; j++) {
			c->run[n] = pfx_write_slot(c->ns, res->runs[i].start + j);
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
	uint64_t since = cache_now_us();
	int r = kvstate_export(c->state, q->ctx, q->stored, n, c->run);

	for (uint32_t i = 0; i < n && !r; i++) {
		XXH128_canonical_t sum;

		XXH128_canonicalFromHash(&sum, XXH3_128bits(c->run[i], c->shape->block_bytes));
		memcpy(c->sums[i], sum.digest, sizeof(c->sums[i]));
	}
	c->counters.export_us += cache_now_us() - since;
	if (r) {
		cache_note(c, "export", "libllama did not give the blocks");
		return false;
	}
	since = cache_now_us();
	if (cache_called(
		    c, since, "COMMIT",
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
		uint32_t want = full - q->stored < c->run_max ? full - q->stored : c->run_max;
		uint64_t since = cache_now_us();

		if (cache_called(c, since, "RESERVE",
				 pfx_reserve(c->ns, q->lease, want, c->options.deadline_ms, &res)))
			return false;
		if (res.first != q->stored || !run_addresses(c, &res)) {
			cache_note(c, "RESERVE", "other blocks than those that were computed");
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
		cache_note(q->cache, "EXTEND", "the tokens are not known");
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
