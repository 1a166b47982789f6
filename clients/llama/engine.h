/*
 * engine.h - the decoding side of the worker: slots, prefill, decode, sampling.
 *
 * One thread owns the model, all contexts and the cache.  Each slot has a context of its own (the
 * weights are shared), so what a request computes depends on its own tokens alone: not on who else
 * is served, nor on how cells of a common cache happened to lie.  The thread goes round the busy
 * slots and does one step for each: one chunk of prefill, or one token.
 *
 * Requests come in from other threads by engine_submit(); what they produce goes out by the
 * callbacks, called on the engine's thread.  A callback must not call back into the engine.
 */
#ifndef LLAMA_ENGINE_H
#define LLAMA_ENGINE_H

#include "clients/llama/cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;

struct engine_options {
	const char *model_path;
	const char *model_name; /* shown to operators of prefixd */
	const char *libraries;  /* folder of libllama's back ends; NULL: those it is linked with */
	const char *lora_path;  /* NULL: none */
	double lora_scale;
	uint32_t n_ctx; /* tokens of one slot */
	uint32_t n_slots;
	uint32_t n_queue; /* requests that may wait when all slots are busy */
	uint32_t n_threads;
	uint32_t chunk; /* tokens of prefill per step */
	uint32_t block_tokens;
	const char *type_k, *type_v;
	const char *socket; /* prefixd's; NULL: libprefixd's default; "off": no cache */
	const char *tenant, *salt;
	uint32_t cache_deadline_ms, cache_load_ms, cache_wait_ms;
};

/* Called on the engine's thread, once: the model is there, or `error` says why it never will be. */
struct engine_hooks {
	void (*on_ready)(void *data, const char *error);
	void *data;
};

enum engine_finish {
	ENGINE_FINISH_STOP,   /* the model ended its answer, or a stop word came */
	ENGINE_FINISH_LENGTH, /* max_tokens, or the context is full */
	ENGINE_FINISH_ABORT,  /* the asker went away, or the engine ends */
	ENGINE_FINISH_ERROR,
	ENGINE_N_FINISH
};

/* All times in microseconds; those that begin, begin with engine_submit(). */
struct engine_usage {
	uint32_t prompt_tokens, cached_tokens, completion_tokens;
	uint64_t queued_us;  /* until a slot took it */
	uint64_t cache_us;   /* asking prefixd and taking its blocks in */
	uint64_t prefill_us; /* decoding the rest of the prompt, and storing its blocks */
	uint64_t ttft_us;    /* until the first token; 0: none came */
	uint64_t total_us;
};

struct engine_result {
	enum engine_finish finish;
	struct engine_usage usage;
	const char *text; /* what was held back until now; valid during the call */
	size_t text_len;
	const char *error; /* a sentence, with ENGINE_FINISH_ERROR; else NULL */
};

/* temperature 0 is the most probable token, whatever the others are. */
struct engine_sampling {
	float temperature;
	float top_p, min_p; /* 1 and 0: off */
	int32_t top_k;      /* 0: off */
	uint32_t seed;
};

struct engine_request {
	int32_t *prompt; /* at least one token, at most n_ctx */
	size_t n_prompt;
	uint32_t max_tokens; /* at least 1 */
	bool use_cache;      /* false: neither reads nor fills prefixd */
	bool ignore_eos;     /* go on to max_tokens */
	uint32_t *splits;    /* ascending positions at which prefill is cut; may be NULL */
	size_t n_splits;
	void *salt; /* beside the worker's own; may be NULL */
	size_t salt_len;
	char **stops; /* none is empty; may be NULL */
	size_t n_stops;
	struct engine_sampling sampling;
	/*
	 * A token, and the text that is certain since: whole characters, and nothing that may still
	 * turn out to be (a part of) a stop word; not terminated.
	 */
	void (*on_token)(void *data, int32_t token, const char *text, size_t len);
	/* Exactly once, last.  The engine has forgotten the request then. */
	void (*on_end)(void *data, const struct engine_result *result);
	void *data;
};

struct engine_stats {
	uint32_t n_slots, n_busy, n_waiting;
	uint64_t finished[ENGINE_N_FINISH];
	uint64_t refused; /* too many waited */
	uint64_t prompt_tokens, cached_tokens, prefill_tokens, completion_tokens;
	uint64_t prefill_steps; /* decodes that the prefilled tokens took */
	bool cache_on;
	struct cache_counters cache;
};

/* Copies the options.  Starts the thread, which loads the model.  0; negative errno. */
int engine_new(const struct engine_options *options, const struct engine_hooks *hooks,
	       struct engine **ret);
/* Ends what runs (ENGINE_FINISH_ABORT) and waits for the thread. */
struct engine *engine_free(struct engine *engine);
/*
 * From any thread, once ready.  0: the engine copied *request and took over what it points to.
 * -EBUSY: too many wait; -ESHUTDOWN; -ENOMEM: everything is still the caller's.
 */
int engine_submit(struct engine *engine, const struct engine_request *request, uint64_t *ret_id);
/* Frees what a request that was not taken over points to. */
void engine_request_deinit(struct engine_request *request);
/* From any thread; on_end follows with ENGINE_FINISH_ABORT unless it ended meanwhile. */
void engine_abort(struct engine *engine, uint64_t id);
/* From any thread. */
void engine_get_stats(struct engine *engine, struct engine_stats *ret);

/* ---- the vocabulary: from any thread, once ready (engine_vocab.c) --------------------------- */

uint32_t engine_n_vocab(const struct engine *engine);
/* Bytes of text that one token stands for at most; at least 1. */
size_t engine_longest_token(const struct engine *engine);
/* NULL: the model has none. */
const char *engine_chat_template(const struct engine *engine);
/* *ret_tokens is malloc'd, also for none.  0; -ENOMEM; -E2BIG: more than an int32_t counts. */
int engine_tokenize(const struct engine *engine, const char *text, size_t len, bool add_special,
		    bool parse_special, int32_t **ret_tokens, size_t *ret_n);
/* Tokens are in range.  *ret_text is malloc'd: bytes, UTF-8 only if the tokens make it. */
int engine_detokenize(const struct engine *engine, const int32_t *tokens, size_t n, char **ret_text,
		      size_t *ret_len);

#endif
