/*
 * engine_internal.h - what the engine's own files share: jobs, slots, the loaded model.
 *
 * All of it belongs to the engine's thread, but for what `lock` guards and a job's `aborted`.
 */
#ifndef LLAMA_ENGINE_INTERNAL_H
#define LLAMA_ENGINE_INTERNAL_H

#include "clients/llama/engine.h"
#include "clients/llama/text.h"

#include <llama.h>
#include <pthread.h>
#include <stdatomic.h>

/* A request from engine_submit() to its on_end. */
struct engine_job {
	struct engine_job *next; /* in the queue */
	uint64_t id;
	struct engine_request request;
	atomic_bool aborted;
	uint64_t submitted_us, started_us; /* of CLOCK_MONOTONIC */
	struct engine_usage usage;
	struct text text;
	struct llama_sampler *sampler; /* NULL: greedy */
};

struct engine_slot {
	struct engine *engine;
	struct llama_context *ctx;
	struct llama_batch batch;    /* room for one chunk */
	struct engine_job *job;      /* NULL: free */
	struct cache_request *lease; /* of the job; may be NULL */
	bool later;                  /* the lease's blocks are still to come: nothing is decoded */
	uint64_t asked_us;           /* when prefixd was asked, while they are */
	uint32_t n_done;             /* tokens in sequence 0 */
	size_t split;                /* the next one of the job's */
	int32_t token;               /* sampled and not yet decoded, when the prompt is done */
};

struct engine {
	struct engine_options options; /* its strings are ours */
	struct engine_hooks hooks;
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct engine_job *queue, **queue_tail;
	uint32_t n_waiting, n_free;
	uint64_t last_id;
	struct engine_stats stats; /* counters that the thread adds to under the lock */
	atomic_bool stopping;
	atomic_bool aborting; /* libllama was told to leave off the decode it is at */

	/* Set before on_ready, constant after. */
	struct llama_model *model;
	const struct llama_vocab *vocab;
	struct llama_adapter_lora *lora;
	struct engine_slot *slots;
	struct kvstate *state;
	struct cache *cache; /* NULL: off */
	uint64_t failures;   /* of the cache when it was last looked at */
	uint64_t told_us;    /* when its last problem was told */
};

/* engine_model.c: everything that the slots stand on.  0; negative errno, `why` says what. */
int engine_load(struct engine *engine, char *why, size_t why_len);
void engine_unload(struct engine *engine);

/* engine_slot.c: the slot is free; it is the job's until the job ended. */
void engine_slot_begin(struct engine_slot *slot, struct engine_job *job);
/*
 * One chunk of prefill, or one token; ends the job when it is over.  `alone`: nobody has work to
 * do meanwhile, so blocks that are to come may be waited for here, a few milliseconds.
 */
void engine_slot_step(struct engine_slot *slot, bool alone);
/* Gives the lease back, reports and frees the job. */
void engine_slot_end(struct engine_slot *slot, enum engine_finish finish, const char *error);
/* Reports and frees a job that has or never had a slot. */
void engine_job_end(struct engine *engine, struct engine_job *job, enum engine_finish finish,
		    const char *error);

uint64_t engine_now_us(void);

#endif
