/*
 * engine.h - the decoding side of the worker: slots, prefill, decode, greedy sampling.
 *
 * One thread owns the model, all contexts and the cache.  Each slot has a context of its own (the
 * weights are shared), so what a request computes depends on its own tokens alone: not on who else
 * is served, nor on how cells of a common cache happened to lie.  The thread goes round the busy
 * slots and does one step for each: one chunk of prefill, or one token.
 *
 * Requests come in from other threads by engine_submit(); what they produce goes out by the
 * callbacks, called on the engine's thread.
 */
#ifndef LLAMA_ENGINE_H
#define LLAMA_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;

struct engine_options {
	const char *model_path;
	const char *libraries; /* folder of libllama's back ends; NULL: built in */
	const char *lora_path; /* NULL: none */
	float lora_scale;
	uint32_t n_ctx; /* tokens of one slot */
	uint32_t n_slots;
	uint32_t n_threads;
	uint32_t chunk; /* tokens of prefill per step */
	uint32_t block_tokens;
	const char *type_k, *type_v;
	const char *socket, *tenant, *salt; /* prefixd; socket "off": no cache */
	uint32_t cache_deadline_ms, cache_load_ms, cache_wait_ms;
};

enum engine_finish {
	ENGINE_FINISH_STOP,   /* the model ended its answer, or a stop word came */
	ENGINE_FINISH_LENGTH, /* max_tokens, or the context is full */
	ENGINE_FINISH_ABORT,  /* the asker went away */
	ENGINE_FINISH_ERROR
};

/* All times in microseconds, from engine_submit() on. */
struct engine_usage {
	uint32_t prompt_tokens, cached_tokens, completion_tokens;
	uint64_t queued_us, ttft_us, prefill_us, total_us;
};

struct engine_request {
	int32_t *prompt; /* the engine frees it */
	size_t n_prompt;
	uint32_t max_tokens;
	bool use_cache;   /* false: neither reads nor fills prefixd */
	bool ignore_eos;  /* go on to max_tokens */
	uint32_t *splits; /* ascending positions at which prefill must be cut; may be NULL; freed */
	size_t n_splits;
	void *salt; /* beside the worker's own; may be NULL; freed */
	size_t salt_len;
	/* One piece of text and its token; `text` is what the token adds, not terminated. */
	void (*on_token)(void *data, int32_t token, const char *text, size_t len);
	/* Exactly once, last.  The request is freed after it. */
	void (*on_end)(void *data, enum engine_finish finish, const struct engine_usage *usage,
		       const char *error);
	void *data;
};

int engine_new(const struct engine_options *options, struct engine **ret, char *why,
	       size_t why_len);
struct engine *engine_free(struct engine *engine);
/* Takes the request over.  0: its id; -EBUSY: too many wait (*ret_id unset, the request is still the caller's). */
int engine_submit(struct engine *engine, struct engine_request *request, uint64_t *ret_id);
/* From any thread; on_end follows with ENGINE_FINISH_ABORT unless it ended meanwhile. */
void engine_abort(struct engine *engine, uint64_t id);

#endif
