/*
 * cache_internal.h - what the cache's two files share: its connection, and its requests.
 */
#ifndef LLAMA_CACHE_INTERNAL_H
#define LLAMA_CACHE_INTERNAL_H

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_restart.h"
#include "clients/llama/cache.h"
#include "clients/llama/kvstate.h"

#define CACHE_RUN_MAX 256u /* blocks stored by one round of calls */

struct cache {
	struct cache_options options; /* its strings are the cache's own */
	struct kvstate *state;
	const struct kvstate_shape *shape;
	char dtype[33], layout[65], engine[65];
	pfx_client *client;
	pfx_namespace *ns;
	uint64_t open_after_us;
	uint8_t boot[16]; /* the life in which the namespace was opened, and the pool's name then */
	uint8_t pool[16];
	uint8_t tenant_boot[16]; /* the life in which the tenant was last looked up */
	bool lost;  /* a call found nobody: leases of an earlier session may be held still */
	bool renew; /* the pool is another one: the old one is mapped still */
	uint32_t n_open;
	uint32_t n_late;         /* calls in a row that the daemon did not answer in time */
	uint64_t quiet_until_us; /* it was late too often: it is not asked before */
	struct cache_counters counters;
	char problem[256];
	uint32_t run_max; /* as many as the daemon gives at a time */
	void *run[CACHE_RUN_MAX];
	uint8_t sums[CACHE_RUN_MAX][16];
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

uint64_t cache_now_us(void);
/* Counts a failure and keeps the sentence. */
void cache_note(struct cache *c, const char *what, const char *why);
/* Counts the time of a call that began at `since`, and what went wrong.  Return: r. */
int cache_called(struct cache *c, uint64_t since, const char *what, int r);
/* A connection, a namespace, a tenant.  Return: 0 or a status. */
int cache_ready(struct cache *c, uint32_t *ret_tenant);
/*
 * After a call that named the tenant: an id is of one life of the daemon, and the call may have
 * been asked again in another, where the id can be another's.  False: what it gave is not ours.
 */
bool cache_tenant_holds(struct cache *c);
/* After a call that was answered: was there another connection, or another pool before? */
void cache_answered(struct cache *c);

#endif
