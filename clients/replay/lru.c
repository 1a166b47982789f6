/*
 * lru.c - exact leaf LRU in constant time per block.
 *
 * The cached blocks are in one list, least recently used first.  A request takes its hit blocks out
 * of the list, and at its end its whole path goes to the list's end, deepest block first.  Then the
 * head of the list is always the block that leaf LRU would take:
 *
 *     - whoever touches a block touches its parent too, so a parent is never less recent than its
 *       child, and of one request the deeper block lies first;
 *     - so no cached child of the head can exist: it would lie before the head.
 *
 * The blocks of the running request are not in the list while it runs, so they cannot be taken.
 * This shares nothing with the daemon: no tree, no edges, no clock.
 */
#include "clients/replay/lru.h"

#include "clients/replay/util.h"

#include <stdlib.h>

struct lru {
	uint32_t *next, *prev; /* by block; the list's end points stand at index n_blocks */
	bool *cached;
	uint32_t end; /* n_blocks: the sentinel */
	uint64_t n_cached;
};

static void list_remove(struct lru *lru, uint32_t block)
{
	lru->next[lru->prev[block]] = lru->next[block];
	lru->prev[lru->next[block]] = lru->prev[block];
}

static void list_append(struct lru *lru, uint32_t block)
{
	uint32_t last = lru->prev[lru->end];

	lru->next[last] = block;
	lru->prev[block] = last;
	lru->next[block] = lru->end;
	lru->prev[lru->end] = block;
}

/* Return: whether one more block may be cached now. */
static bool make_room(struct lru *lru, uint64_t capacity, struct replay_lru_result *ret)
{
	uint32_t victim = lru->next[lru->end];

	if (!capacity || lru->n_cached < capacity)
		return true;
	if (victim == lru->end)
		return false;
	list_remove(lru, victim);
	lru->cached[victim] = false;
	lru->n_cached--;
	ret->evicted_blocks++;
	return true;
}

/* Return: hit blocks. */
static uint32_t serve(struct lru *lru, const uint32_t *blocks, uint32_t n, uint64_t capacity,
		      struct replay_lru_result *ret)
{
	uint32_t hit = 0;
	uint32_t kept;

	for (; hit < n && lru->cached[blocks[hit]]; hit++)
		list_remove(lru, blocks[hit]);
	for (kept = hit; kept < n && make_room(lru, capacity, ret); kept++) {
		lru->cached[blocks[kept]] = true;
		lru->n_cached++;
		ret->stored_blocks++;
	}
	while (kept > 0)
		list_append(lru, blocks[--kept]);
	return hit;
}

void replay_lru_run(const struct replay_trace *trace, uint64_t capacity, uint32_t *hits,
		    struct replay_lru_result *ret)
{
	struct lru lru = {
		.next = replay_alloc(trace->n_blocks + 1ul, sizeof(*lru.next)),
		.prev = replay_alloc(trace->n_blocks + 1ul, sizeof(*lru.prev)),
		.cached = replay_alloc(trace->n_blocks, sizeof(*lru.cached)),
		.end = trace->n_blocks,
	};

	*ret = (struct replay_lru_result){ 0 };
	lru.next[lru.end] = lru.prev[lru.end] = lru.end;
	for (size_t i = 0; i < trace->n_requests; i++) {
		const struct replay_request *request = &trace->requests[i];
		uint32_t hit = serve(&lru, replay_trace_blocks(trace, request), request->n_blocks,
				     capacity, ret);

		ret->queried_tokens += request->input_tokens;
		ret->hit_tokens += replay_trace_covered(trace, request, hit);
		ret->hit_blocks += hit;
		ret->hit_requests += hit > 0;
		if (hits)
			hits[i] = hit;
	}
	free(lru.next);
	free(lru.prev);
	free(lru.cached);
}
