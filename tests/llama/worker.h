/*
 * worker.h - a worker as tests see one: a context, its state, its own client of a real daemon.
 *
 * Every function fails the test when something does not hold that always must.
 */
#pragma once

#include "clients/llama/cache.h"
#include "tests/e2e/harness.h"
#include "tests/llama/kit.h"

#define BLOCK 16u
#define STEPS 64u
#define CHUNK 64u
#define N     400u /* tokens of the usual prompt: 25 blocks */

extern struct e2e_daemon worker_daemon;
extern struct llama_model *worker_model;
extern const struct cache_options worker_usual;

struct worker {
	struct llama_context *ctx;
	struct kvstate *state;
	struct cache *cache;
};

/* A directory for a daemon, and a model. */
void worker_setup(void);
void worker_teardown(void);
void worker_start(const char *const args[]);

void worker_new(struct worker *w, uint32_t n_ctx);
void worker_with(struct worker *w, struct llama_model *m, const struct kit_context *how,
		 const struct cache_options *options, uint32_t block_tokens);
void worker_free(struct worker *w);
void worker_empty(struct worker *w);
struct cache_counters worker_counters(const struct worker *w);

/* Begins a request, and waits for what is to come. */
struct cache_request *worker_begin(struct worker *w, const int32_t *tokens, uint32_t n,
				   uint32_t *ret_hit);
/* Prefill from ... to - 1, chunk by chunk, each told to the cache. */
void worker_prefill(struct worker *w, struct cache_request *q, const int32_t *tokens, uint32_t from,
		    uint32_t to);
/* The last token of the prompt and STEPS greedy steps, each told once it has been decoded. */
void worker_answer(struct worker *w, struct cache_request *q, const int32_t *tokens, uint32_t n,
		   struct kit_answer *ret);
/* All of it, and the context is empty again.  `ret` may be NULL.  Return: the hit. */
uint32_t worker_request(struct worker *w, const int32_t *tokens, uint32_t n,
			struct kit_answer *ret);

/* Ends of the batches in which a prompt was computed, by whomever. */
struct worker_cuts {
	uint32_t n, end[N + 200];
};

void worker_cut(struct worker_cuts *c, uint32_t from, uint32_t to, uint32_t chunk);
/*
 * `got` is the answer to the same prompt without any cache, in the same batches.  What is stored
 * may go on otherwise in its last batch: `stored` are the tokens of whoever computed the first
 * `hit` ones.
 */
void worker_expect(const int32_t *stored, const int32_t *tokens, uint32_t n, uint32_t hit,
		   const struct worker_cuts *cuts, const struct kit_answer *got);
/* The same for a prompt that was computed in chunks up to `hit` and from there on. */
void worker_expect_plain(const int32_t *tokens, uint32_t n, uint32_t hit,
			 const struct kit_answer *got);
/* No slot is lost, by the daemon's own check, and no lease is held. */
void worker_expect_clean(void);
