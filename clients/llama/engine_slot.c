/*
 * engine_slot.c - what one slot does: a prompt's rest in chunks, then token after token.
 *
 * Chunks end at multiples of `chunk` counted from the prompt's beginning, not from where the cache
 * left off, and at the positions the request names.  K/V of a token depends, in its last bits, on
 * how many were decoded with it; so two runs compute the same bits when they are cut alike, and a
 * run without cache can be cut where another one was by its hits.
 */
#include "clients/llama/engine_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MS 5

/* ---- begin and end --------------------------------------------------------------------------- */

/*
 * The worker's salt and the request's, told apart by the length of the first.  prefixd takes 255
 * bytes, which options.c and api_params.c see to.
 */
static int salt_join(const struct engine_slot *slot, void **ret, size_t *ret_len)
{
	const struct engine_request *request = &slot->job->request;
	const char *own = slot->engine->options.salt ? slot->engine->options.salt : "";
	uint8_t own_len = (uint8_t)strlen(own);
	char *p;

	*ret = NULL;
	*ret_len = 0;
	if (!own_len && !request->salt_len)
		return 0;
	p = malloc(sizeof(own_len) + own_len + request->salt_len);
	if (!p)
		return -ENOMEM;
	memcpy(p, &own_len, sizeof(own_len));
	memcpy(p + sizeof(own_len), own, own_len);
	if (request->salt_len)
		memcpy(p + sizeof(own_len) + own_len, request->salt, request->salt_len);
	*ret = p;
	*ret_len = sizeof(own_len) + own_len + request->salt_len;
	return 0;
}

/* The cache has answered: `hit` tokens of sequence 0 are there. */
static void take_hit(struct engine_slot *slot, uint32_t hit)
{
	struct engine *engine = slot->engine;

	slot->later = false;
	slot->n_done = hit;
	slot->job->usage.cached_tokens = hit;
	slot->job->usage.cache_us = engine_now_us() - slot->asked_us;
	pthread_mutex_lock(&engine->lock);
	engine->stats.cached_tokens += hit;
	pthread_mutex_unlock(&engine->lock);
}

static void ask_cache(struct engine_slot *slot)
{
	const struct engine_request *request = &slot->job->request;
	uint32_t hit = 0;
	void *salt;
	size_t salt_len;
	int r;

	slot->asked_us = engine_now_us();
	/* Without memory for it the request is computed: a miss, nothing worse. */
	if (salt_join(slot, &salt, &salt_len) < 0)
		return;
	r = cache_begin(slot->engine->cache, slot->ctx, request->prompt, request->n_prompt, salt,
			salt_len, &slot->lease, &hit);
	free(salt);
	if (r < 0)
		slot->lease = NULL;
	else if (r == CACHE_LATER)
		slot->later = true;
	else
		take_hit(slot, hit);
}

void engine_slot_begin(struct engine_slot *slot, struct engine_job *job)
{
	struct engine *engine = slot->engine;

	job->started_us = engine_now_us();
	job->usage.queued_us = job->started_us - job->submitted_us;
	slot->n_done = 0;
	slot->split = 0;
	slot->lease = NULL;
	slot->later = false;
	/* Its cells are free then; what they hold is never looked at, so it need not be zeroed. */
	llama_memory_clear(llama_get_memory(slot->ctx), false);
	if (engine->cache && job->request.use_cache)
		ask_cache(slot);
}

void engine_slot_end(struct engine_slot *slot, enum engine_finish finish, const char *error)
{
	struct engine *engine = slot->engine;
	struct engine_job *job = slot->job;

	cache_end(slot->lease);
	slot->lease = NULL;
	pthread_mutex_lock(&engine->lock);
	slot->job = NULL;
	engine->n_free++;
	pthread_mutex_unlock(&engine->lock);
	engine_job_end(engine, job, finish, error);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Decodes n tokens at the end of sequence 0.  Return: 0; 2: aborted; what libllama says else. */
static int decode(struct engine_slot *slot, const int32_t *tokens, uint32_t n, bool logits)
{
	struct llama_batch *batch = &slot->batch;
	int r;

	batch->n_tokens = (int32_t)n;
	for (uint32_t i = 0; i < n; i++) {
		batch->token[i] = tokens[i];
		batch->pos[i] = (llama_pos)(slot->n_done + i);
		batch->n_seq_id[i] = 1;
		batch->seq_id[i][0] = 0;
		batch->logits[i] = logits && i == n - 1;
	}
	r = llama_decode(slot->ctx, *batch);
	atomic_store(&slot->engine->aborting, false);
	if (r == 0)
		slot->n_done += n;
	return r;
}

/* The first of the most probable tokens; -1: the logits are no numbers. */
static int32_t sample_greedy(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	if (!logits)
		return -1;
	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best] || isnan(logits[best]))
			best = i;
	return isfinite(logits[best]) ? (int32_t)best : -1;
}

static int32_t sample(struct engine_slot *slot)
{
	if (slot->job->sampler)
		return llama_sampler_sample(slot->job->sampler, slot->ctx, -1);
	return sample_greedy(llama_get_logits_ith(slot->ctx, -1), engine_n_vocab(slot->engine));
}

/* The bytes of a token; control tokens have none.  0; -ENOMEM. */
static int piece(struct engine_slot *slot, int32_t token, const char **ret, size_t *ret_len)
{
	const struct llama_vocab *vocab = slot->engine->vocab;
	struct text *text = &slot->job->text;
	char small[256], *big;
	int32_t n = llama_token_to_piece(vocab, token, small, sizeof(small), 0, false);
	int r;

	if (n >= 0)
		return text_add(text, small, (size_t)n, false, ret, ret_len);
	big = malloc((size_t)-n);
	if (!big)
		return -ENOMEM;
	n = llama_token_to_piece(vocab, token, big, -n, 0, false);
	r = text_add(text, big, n > 0 ? (size_t)n : 0, false, ret, ret_len);
	free(big);
	return r;
}

/*
 * Takes the next token from the logits of the last one and tells the asker.  Return: whether the
 * job goes on; else *ret_finish and *ret_error say why not.
 */
static bool next_token(struct engine_slot *slot, enum engine_finish *ret_finish,
		       const char **ret_error)
{
	struct engine_job *job = slot->job;
	const char *shown = NULL;
	size_t len = 0;
	bool eog;

	*ret_error = NULL;
	*ret_finish = ENGINE_FINISH_ERROR;
	slot->token = sample(slot);
	if (slot->token < 0) {
		*ret_error = "the model's logits are not numbers";
		return false;
	}
	eog = llama_vocab_is_eog(slot->engine->vocab, slot->token);
	if (!(eog && !job->request.ignore_eos) && piece(slot, slot->token, &shown, &len) < 0) {
		*ret_error = "out of memory";
		return false;
	}
	job->usage.completion_tokens++;
	if (job->usage.completion_tokens == 1)
		job->usage.ttft_us = engine_now_us() - job->submitted_us;
	job->request.on_token(job->request.data, slot->token, shown, len);

	*ret_finish = ENGINE_FINISH_STOP;
	if ((eog && !job->request.ignore_eos) || job->text.stopped)
		return false;
	*ret_finish = ENGINE_FINISH_LENGTH;
	return job->usage.completion_tokens < job->request.max_tokens &&
	       slot->n_done < slot->engine->options.n_ctx;
}

/* Where the chunk that begins at n_done ends. */
static uint32_t chunk_end(struct engine_slot *slot)
{
	const struct engine_request *request = &slot->job->request;
	uint32_t chunk = slot->engine->options.chunk;
	uint64_t end = ((uint64_t)slot->n_done / chunk + 1) * chunk;

	while (slot->split < request->n_splits && request->splits[slot->split] <= slot->n_done)
		slot->split++;
	if (slot->split < request->n_splits && request->splits[slot->split] < end)
		end = request->splits[slot->split];
	return (uint32_t)(end < request->n_prompt ? end : request->n_prompt);
}

static void count_prefill(struct engine *engine, uint32_t n)
{
	pthread_mutex_lock(&engine->lock);
	engine->stats.prefill_tokens += n;
	engine->stats.prefill_steps++;
	pthread_mutex_unlock(&engine->lock);
}

/* Have the blocks come that this slot waits for? */
static void poll_cache(struct engine_slot *slot, bool alone)
{
	uint32_t hit = 0;

	if (atomic_load(&slot->job->aborted) || atomic_load(&slot->engine->stopping))
		engine_slot_end(slot, ENGINE_FINISH_ABORT, NULL);
	else if (cache_poll(slot->lease, alone ? POLL_MS : 0, &hit) != CACHE_LATER)
		take_hit(slot, hit);
}

/*
 * The last token of an answer needs no decoding for the answer's sake.  Where it would make a block
 * full it is decoded all the same, so that the next turn finds all full blocks of this one.
 */
static void fill_last_block(struct engine_slot *slot)
{
	const struct engine_options *options = &slot->engine->options;
	int32_t last = slot->token;

	if (!slot->lease || (slot->n_done + 1) % options->block_tokens ||
	    slot->n_done >= options->n_ctx)
		return;
	if (decode(slot, &last, 1, false) == 0)
		cache_computed(slot->lease, &last, 1, slot->n_done);
}

void engine_slot_step(struct engine_slot *slot, bool alone)
{
	struct engine_job *job = slot->job;
	const struct engine_request *request = &job->request;
	bool prefill = slot->n_done < request->n_prompt;
	enum engine_finish finish = ENGINE_FINISH_ERROR;
	const char *error = NULL;
	bool goes_on = true;
	uint64_t begun_us = engine_now_us();
	uint32_t n = prefill ? chunk_end(slot) - slot->n_done : 1;
	int r = 2;

	if (slot->later) {
		poll_cache(slot, alone);
		return;
	}
	if (!atomic_load(&job->aborted) && !atomic_load(&slot->engine->stopping))
		r = decode(slot, prefill ? request->prompt + slot->n_done : &slot->token, n,
			   slot->n_done + n >= request->n_prompt);
	if (r != 0) {
		engine_slot_end(slot, r == 2 ? ENGINE_FINISH_ABORT : ENGINE_FINISH_ERROR,
				r == 2   ? NULL
				: r == 1 ? "libllama found no room in the context"
					 : "libllama could not decode");
		return;
	}
	/* The asker first, prefixd after: what is stored is not waited for. */
	if (slot->n_done >= request->n_prompt) {
		int32_t decoded = slot->token;

		goes_on = next_token(slot, &finish, &error);
		if (slot->lease)
			cache_computed(slot->lease, &decoded, prefill ? 0 : 1, slot->n_done);
	} else if (slot->lease) {
		cache_computed(slot->lease, NULL, 0, slot->n_done);
	}
	if (prefill) {
		job->usage.prefill_us += engine_now_us() - begun_us;
		count_prefill(slot->engine, n);
	}
	if (!goes_on) {
		if (finish != ENGINE_FINISH_ERROR)
			fill_last_block(slot);
		engine_slot_end(slot, finish, error);
	}
}
