/*
 * cache.c - a worker's connection to prefixd and its namespace; see cache.h.
 *
 * A daemon that is away, refuses, or has restarted is met here; requests are cache_request.c's.
 */
#include "clients/llama/cache_internal.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#define AGAIN_US   200000ull   /* between attempts at a daemon that is away */
#define WARM_US    10000000ull /* for a pool to be made, at a worker's start */
#define REFUSED_US 5000000ull  /* at one that refuses the namespace */
#define LATE_MAX   3u          /* late answers in a row, then it is not asked */
#define QUIET_US   1000000ull  /* for so long */

uint64_t cache_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void cache_note(struct cache *c, const char *what, const char *why)
{
	c->counters.failures++;
	(void)snprintf(c->problem, sizeof(c->problem), "%s: %s", what, why);
}

int cache_called(struct cache *c, uint64_t since, const char *what, int r)
{
	c->counters.daemon_us += cache_now_us() - since;
	if (r) {
		cache_note(c, what, c->client ? pfx_error(c->client) : pfx_status_to_string(r));
		/* A lease that nobody knows was of a session that ended unnoticed. */
		if (r == PFX_GONE || r == PFX_PROTOCOL || r == PFX_DEADLINE ||
		    r == PFX_UNKNOWN_LEASE)
			c->lost = true;
	}
	if (r != PFX_DEADLINE)
		c->n_late = 0;
	else if (++c->n_late >= LATE_MAX)
		c->quiet_until_us = cache_now_us() + QUIET_US;
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
	(void)snprintf(c->layout, sizeof(c->layout), "llama-rows-1 k=%s/%u v=%s/%u%s", s->type_k,
		       s->rot_k, s->type_v, s->rot_v, s->beyond ? " beyond" : "");
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

/* Remembers the pool that the namespace has now.  Return: whether it is another one than before. */
static bool note_pool(struct cache *c)
{
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	bool other;

	if (pfx_namespace_get(c->ns, &info) != 0)
		return false;
	c->run_max = info.n_write && info.n_write < CACHE_RUN_MAX ? info.n_write : CACHE_RUN_MAX;
	other = memcmp(c->pool, info.pool, sizeof(c->pool)) != 0;
	memcpy(c->pool, info.pool, sizeof(c->pool));
	return other;
}

static int open_namespace(struct cache *c)
{
	const struct kvstate_shape *s = c->shape;
	pfx_namespace_options o = { .struct_size = sizeof(o) };
	uint64_t since = cache_now_us();
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
	r = cache_called(c, since, "OPEN", pfx_open(c->client, &o, &c->ns));
	if (r) {
		c->ns = NULL;
		c->open_after_us = since +
				   (r == PFX_GONE || r == PFX_DEADLINE ? AGAIN_US : REFUSED_US);
		return r;
	}
	note_pool(c);
	return cache_called(c, since, "OPEN", pfx_boot_id(c->client, c->boot));
}

int cache_ready(struct cache *c, uint32_t *ret_tenant)
{
	pfx_connect_options o = { .struct_size = sizeof(o) };
	uint64_t since = cache_now_us();
	int r = 0;

	/* One thread serves all slots: each would wait whenever one asks a daemon that hangs. */
	if (since < c->quiet_until_us)
		return PFX_DEADLINE;
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
			return cache_called(c, since, "HELLO", PFX_NO_MEMORY);
	}
	if (!c->ns)
		r = open_namespace(c);
	if (r)
		return r;
	*ret_tenant = 0;
	if (!c->options.tenant)
		return 0; /* the first of the daemon's list */
	/* A connection that has ended unnoticed shows it here: its ids are of no use. */
	since = cache_now_us();
	r = pfx_boot_id(c->client, c->tenant_boot);
	if (!r)
		r = pfx_tenant(c->client, c->options.tenant, ret_tenant);
	return cache_called(c, since, "HELLO", r);
}

bool cache_tenant_holds(struct cache *c)
{
	uint8_t boot[16];
	uint64_t since = cache_now_us();

	return !c->options.tenant ||
	       (cache_called(c, since, "HELLO", pfx_boot_id(c->client, boot)) == 0 &&
		memcmp(boot, c->tenant_boot, sizeof(boot)) == 0);
}

static bool named(const struct cache *c)
{
	static const uint8_t nothing[16];

	return memcmp(c->pool, nothing, sizeof(nothing)) != 0;
}

void cache_answered(struct cache *c)
{
	uint8_t boot[16];
	uint64_t since = cache_now_us();

	if (!c->lost || cache_called(c, since, "HELLO", pfx_boot_id(c->client, boot)) != 0)
		return;
	/* Between calls nothing here touches a slot, so what an earlier connection held may go at
	 * once; what older requests know of it is checked for staleness whenever it is read. */
	if (cache_called(c, since, "QUIESCED", pfx_quiesced(c->client, NULL)) != 0)
		return;
	c->lost = false;
	/* A daemon that kept no memory, or cannot name it, has another pool in each life. */
	if (note_pool(c) || (memcmp(boot, c->boot, sizeof(boot)) != 0 && !named(c)))
		c->renew = true;
	memcpy(c->boot, boot, sizeof(boot));
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
	uint64_t begun = cache_now_us(), since = begun;
	bool there = false; /* somebody took the connection and let the deadline pass */
	uint32_t tenant;
	int r;

	for (;;) {
		c->open_after_us = c->quiet_until_us = 0;
		r = cache_ready(c, &tenant);
		there |= cache_now_us() - since >= 500ull * c->options.deadline_ms;
		if ((r != PFX_DEADLINE && r != PFX_GONE) || !there ||
		    cache_now_us() - begun >= WARM_US)
			break;
		(void)poll(NULL, 0, 50); /* there is no more than an attempt in 200 ms */
		since = cache_now_us();
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
