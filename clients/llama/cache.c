/*
 * cache.c - see cache.h.
 */
#include "clients/llama/cache.h"

#include "clients/c/prefixd.h"
#include "clients/llama/kvstate.h"

#include <errno.h>
#include <stdlib.h>

struct cache {
	struct cache_counters counters;
};

struct cache_request {
	struct cache *cache;
};

int cache_new(const struct cache_options *options, struct kvstate *state, struct cache **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

struct cache *cache_free(struct cache *cache)
{
	free(cache);
	return NULL;
}

void cache_get_counters(const struct cache *cache, struct cache_counters *ret)
{
	*ret = cache->counters;
}

int cache_begin(struct cache *cache, struct llama_context *ctx, const int32_t *tokens,
		size_t n_tokens, const void *salt, size_t salt_len, struct cache_request **ret,
		uint32_t *ret_hit)
{
	*ret_hit = 0;
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void cache_computed(struct cache_request *request, const int32_t *more, size_t n_more,
		    uint32_t n_tokens)
{
}

void cache_end(struct cache_request *request)
{
	free(request);
}

int cache_digest_file(const char *path, char ret_digest[33])
{
	return -ENOSYS;
}
