/*
 * trace.c - building a trace: numbering of blocks, parents, depths.
 *
 * Names are 64-bit numbers: the ids of a trace file, or hashes of a whole path.  They are found
 * again in an open-addressed table of block numbers that is at most half full; numbers are handed
 * out in order of first appearance, so that the first n requests of a trace number their blocks the
 * same with and without a limit.
 */
#include "clients/replay/trace.h"

#include "clients/replay/util.h"

#define XXH_INLINE_ALL
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct replay_trace *replay_trace_new(const char *name, uint32_t block_tokens)
{
	struct replay_trace *trace = replay_alloc(1, sizeof(*trace));
	const char *slash = strrchr(name, '/');

	(void)snprintf(trace->name, sizeof(trace->name), "%s", slash ? slash + 1 : name);
	trace->name[strcspn(trace->name, ".")] = '\0';
	if (!trace->name[0])
		(void)snprintf(trace->name, sizeof(trace->name), "trace");
	trace->block_tokens = block_tokens;
	trace->table_len = 1024;
	trace->table = replay_alloc(trace->table_len, sizeof(*trace->table));
	return trace;
}

struct replay_trace *replay_trace_free(struct replay_trace *trace)
{
	if (!trace)
		return NULL;
	free(trace->requests);
	free(trace->blocks);
	free(trace->tokens);
	free(trace->names);
	free(trace->parents);
	free(trace->depths);
	free(trace->table);
	free(trace);
	return NULL;
}

static size_t table_slot(const struct replay_trace *trace, uint64_t name)
{
	size_t mask = trace->table_len - 1;
	size_t at = (size_t)replay_mix(name) & mask;

	while (trace->table[at] && trace->names[trace->table[at] - 1] != name)
		at = (at + 1) & mask;
	return at;
}

static void table_double(struct replay_trace *trace)
{
	free(trace->table);
	trace->table_len *= 2;
	trace->table = replay_alloc(trace->table_len, sizeof(*trace->table));
	for (uint32_t i = 0; i < trace->n_blocks; i++)
		trace->table[table_slot(trace, trace->names[i])] = i + 1;
}

static uint32_t number_new(struct replay_trace *trace, uint64_t name, uint32_t parent)
{
	uint32_t block = trace->n_blocks;
	size_t cap = trace->blocks_cap;

	/* Three arrays of one length: each is grown from the same old capacity. */
	trace->names = replay_grow(trace->names, &cap, block + 1ul, sizeof(*trace->names));
	cap = trace->blocks_cap;
	trace->parents = replay_grow(trace->parents, &cap, block + 1ul, sizeof(*trace->parents));
	trace->depths = replay_grow(trace->depths, &trace->blocks_cap, block + 1ul,
				    sizeof(*trace->depths));
	trace->names[block] = name;
	trace->parents[block] = parent;
	trace->depths[block] = parent == REPLAY_NO_BLOCK ? 1 : trace->depths[parent] + 1;
	trace->n_blocks++;
	return block;
}

struct replay_request *replay_trace_begin(struct replay_trace *trace)
{
	struct replay_request *request;

	trace->requests = replay_grow(trace->requests, &trace->requests_cap, trace->n_requests + 1,
				      sizeof(*trace->requests));
	request = &trace->requests[trace->n_requests++];
	*request = (struct replay_request){
		.first_block = trace->n_refs,
		.first_token = trace->n_tokens,
	};
	return request;
}

void replay_trace_add_block(struct replay_trace *trace, uint64_t name)
{
	struct replay_request *request = &trace->requests[trace->n_requests - 1];
	uint32_t parent = request->n_blocks ? trace->blocks[trace->n_refs - 1] : REPLAY_NO_BLOCK;
	size_t at = table_slot(trace, name);
	uint32_t block;

	if (trace->table[at]) {
		block = trace->table[at] - 1;
		trace->n_conflicts += trace->parents[block] != parent;
	} else {
		block = number_new(trace, name, parent);
		trace->table[at] = block + 1;
		if (2ul * trace->n_blocks > trace->table_len)
			table_double(trace);
	}
	trace->blocks = replay_grow(trace->blocks, &trace->refs_cap, trace->n_refs + 1,
				    sizeof(*trace->blocks));
	trace->blocks[trace->n_refs++] = block;
	request->n_blocks++;
}

void replay_trace_add_token(struct replay_trace *trace, uint32_t token)
{
	trace->tokens = replay_grow(trace->tokens, &trace->tokens_cap, trace->n_tokens + 1,
				    sizeof(*trace->tokens));
	trace->tokens[trace->n_tokens++] = token;
	trace->has_tokens = true;
}

void replay_trace_end_tokens(struct replay_trace *trace)
{
	const struct replay_request *request = &trace->requests[trace->n_requests - 1];
	const uint32_t *tokens = trace->tokens + request->first_token;
	size_t n = (trace->n_tokens - request->first_token) / trace->block_tokens;
	uint64_t name = 0;

	for (size_t i = 0; i < n; i++) {
		name = XXH3_64bits_withSeed(tokens + i * trace->block_tokens,
					    trace->block_tokens * sizeof(*tokens), name);
		replay_trace_add_block(trace, name);
	}
}
