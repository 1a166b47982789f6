/*
 * lru.h - what a cache of a given size would answer: the exact reference for a replay.
 *
 * Requests come one after the other, each an instant.  The cache holds at most `capacity` blocks;
 * when one more is needed, the least recently used block without a cached child goes (leaf LRU);
 * blocks of the running request never go.  A request longer than the cache is kept up to its size.
 * Capacity 0 means unbounded: nothing ever goes.
 */
#pragma once

#include "clients/replay/trace.h"

struct replay_lru_result {
	uint64_t queried_tokens;
	uint64_t hit_tokens;
	uint64_t hit_blocks;
	uint64_t hit_requests; /* with at least one hit block */
	uint64_t stored_blocks;
	uint64_t evicted_blocks;
};

/* hits: [n_requests] hit blocks of each request, or NULL. */
void replay_lru_run(const struct replay_trace *trace, uint64_t capacity, uint32_t *hits,
		    struct replay_lru_result *ret);
