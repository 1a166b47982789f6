/*
 * naive_lru.c - the definition: the least recently used block goes that has no cached child and
 * does not belong to the running request; when there is none, the request keeps what it has.
 */
#include "tests/e2e/naive_lru.h"

#include <stdlib.h>

struct block {
	bool cached;
	bool running; /* of the request that is being served */
	uint64_t used_at;
};

static bool has_cached_child(const struct replay_trace *trace, const struct block *all, uint32_t b)
{
	for (uint32_t i = 0; i < trace->n_blocks; i++)
		if (all[i].cached && trace->parents[i] == b)
			return true;
	return false;
}

static bool evict_one(const struct replay_trace *trace, struct block *all)
{
	uint32_t victim = REPLAY_NO_BLOCK;

	for (uint32_t i = 0; i < trace->n_blocks; i++)
		if (all[i].cached && !all[i].running &&
		    (victim == REPLAY_NO_BLOCK || all[i].used_at <= all[victim].used_at) &&
		    !has_cached_child(trace, all, i))
			victim = i;
	if (victim == REPLAY_NO_BLOCK)
		return false;
	all[victim].cached = false;
	return true;
}

static uint64_t count_cached(const struct replay_trace *trace, const struct block *all)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < trace->n_blocks; i++)
		n += all[i].cached;
	return n;
}

uint64_t naive_lru_run(const struct replay_trace *trace, uint64_t capacity, uint32_t *hits)
{
	struct block *all = calloc(trace->n_blocks, sizeof(*all));
	uint64_t tokens = 0;

	if (!all)
		abort();
	for (size_t r = 0; r < trace->n_requests; r++) {
		const struct replay_request *request = &trace->requests[r];
		const uint32_t *path = replay_trace_blocks(trace, request);
		uint64_t covered;
		uint32_t hit = 0;
		uint32_t n;

		while (hit < request->n_blocks && all[path[hit]].cached)
			all[path[hit++]].running = true;
		for (n = hit; n < request->n_blocks; n++) {
			if (count_cached(trace, all) >= capacity && !evict_one(trace, all))
				break;
			all[path[n]].cached = all[path[n]].running = true;
		}
		for (uint32_t i = 0; i < n; i++) {
			all[path[i]].running = false;
			all[path[i]].used_at = r + 1;
		}
		hits[r] = hit;
		covered = (uint64_t)hit * trace->block_tokens;
		tokens += covered < request->input_tokens ? covered : request->input_tokens;
	}
	free(all);
	return tokens;
}
