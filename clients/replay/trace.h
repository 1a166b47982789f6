/*
 * trace.h - a sequence of requests, in memory, however it came about.
 *
 * A trace says for each request how long its prompt is and which blocks it consists of.  Blocks
 * have dense numbers (0, 1, 2 ... in order of first appearance): a number stands for a block *and
 * its whole prefix*, so equal numbers mean equal prompts up to the end of that block.  All
 * simulations here work on these numbers alone; what is sent to the daemon is made of `names` or
 * `tokens`.
 *
 * Built once, before the workers are forked; afterwards nobody writes it, so all processes share
 * it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPLAY_NO_BLOCK UINT32_MAX

struct replay_request {
	uint64_t first_block; /* index in replay_trace.blocks */
	uint64_t first_token; /* index in replay_trace.tokens, where there are any */
	uint64_t time_us;     /* arrival, since the trace's begin */
	uint64_t input_tokens;
	uint32_t output_tokens;
	uint32_t n_blocks;
	uint32_t session; /* 0 where the trace names none */
};

struct replay_trace {
	char name[64]; /* file name without folder and endings, or the workload's name */
	uint32_t block_tokens;
	bool has_tokens; /* real token ids: `tokens` is filled */

	struct replay_request *requests;
	size_t n_requests, requests_cap;
	uint32_t *blocks; /* the requests' blocks, one request after the other */
	size_t n_refs, refs_cap;
	uint32_t *tokens;
	size_t n_tokens, tokens_cap;

	/* By block number. */
	uint64_t *names;   /* the trace's own id, or a hash of the path */
	uint32_t *parents; /* REPLAY_NO_BLOCK: first block of a prompt */
	uint32_t *depths;  /* blocks from the root down to and including it */
	uint32_t n_blocks;
	size_t blocks_cap;

	/* Occurrences of a block under another parent than at first: 0 in a trace of prefixes. */
	size_t n_conflicts;

	uint32_t *table; /* hash of name -> block number + 1 */
	size_t table_len;
};

struct replay_trace *replay_trace_new(const char *name, uint32_t block_tokens);
struct replay_trace *replay_trace_free(struct replay_trace *trace);

/*
 * Reads a file of JSON lines, zstd-compressed or plain.  `limit`: at most so many requests, 0: all.
 * Return: 0, or a negative errno after a message that names file, line and field.
 */
int replay_trace_load(const char *path, uint32_t block_tokens, size_t limit,
		      struct replay_trace **ret_trace);

/*
 * Building: begin a request, add its blocks by name or its tokens, fill in the other members of
 * what `begin` returned (the pointer is valid until the next begin).
 */
struct replay_request *replay_trace_begin(struct replay_trace *trace);
void replay_trace_add_block(struct replay_trace *trace, uint64_t name);
void replay_trace_add_token(struct replay_trace *trace, uint32_t token);
/* Cuts the tokens of the current request into blocks; a rest shorter than a block has no number. */
void replay_trace_end_tokens(struct replay_trace *trace);

static inline const uint32_t *replay_trace_blocks(const struct replay_trace *trace,
						  const struct replay_request *request)
{
	return trace->blocks + request->first_block;
}

/*
 * Tokens that `n` leading blocks of a request cover.  The last block of a prompt may be a partial
 * one that has a number of its own; it never counts for more tokens than the prompt has.
 */
static inline uint64_t replay_trace_covered(const struct replay_trace *trace,
					    const struct replay_request *request, uint64_t n)
{
	uint64_t tokens = n * trace->block_tokens;

	return tokens < request->input_tokens ? tokens : request->input_tokens;
}
