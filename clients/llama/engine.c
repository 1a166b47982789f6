/*
 * engine.c - the engine's thread, its queue, and what other threads ask of it; see engine.h.
 *
 * A job is in exactly one place: in the queue (under the lock), or in a slot (the thread's).  An
 * abort only marks it; the thread looks at the marks once a turn, and libllama asks for them in
 * the middle of a decode (slot_aborted() in engine_model.c).
 */
#include "clients/llama/engine_internal.h"

#include "clients/llama/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TELL_US (30u * 1000000u) /* between two lines about prefixd */

uint64_t engine_now_us(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

void engine_request_deinit(struct engine_request *request)
{
	free(request->prompt);
	free(request->splits);
	free(request->salt);
	for (size_t i = 0; i < request->n_stops; i++)
		free(request->stops[i]);
	free(request->stops);
	*request = (struct engine_request){ 0 };
}

static struct engine_job *job_free(struct engine_job *job)
{
	if (job->sampler)
		llama_sampler_free(job->sampler);
	text_deinit(&job->text);
	engine_request_deinit(&job->request);
	free(job);
	return NULL;
}

void engine_job_end(struct engine *engine, struct engine_job *job, enum engine_finish finish,
		    const char *error)
{
	struct engine_result result = { .finish = finish, .usage = job->usage, .error = error };
	struct engine_stats *stats = &engine->stats;

	/* Without memory for it a few bytes that were held back are not shown: said as an error. */
	if (text_add(&job->text, NULL, 0, true, &result.text, &result.text_len) < 0) {
		result.finish = ENGINE_FINISH_ERROR;
		result.error = "out of memory";
	}
	result.usage.prompt_tokens = (uint32_t)job->request.n_prompt;
	result.usage.total_us = engine_now_us() - job->submitted_us;
	if (!job->started_us)
		result.usage.queued_us = result.usage.total_us;

	pthread_mutex_lock(&engine->lock);
	stats->finished[result.finish]++;
	stats->completion_tokens += result.usage.completion_tokens;
	pthread_mutex_unlock(&engine->lock);

	job->request.on_end(job->request.data, &result);
	job_free(job);
}

/* The sampler chain of a request that does not want the most probable token. */
static struct llama_sampler *sampler_new(const struct engine_sampling *s)
{
	struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
	struct llama_sampler *chain;

	params.no_perf = true;
	chain = llama_sampler_chain_init(params);
	if (s->top_k > 0)
		llama_sampler_chain_add(chain, llama_sampler_init_top_k(s->top_k));
	if (s->top_p < 1.0f)
		llama_sampler_chain_add(chain, llama_sampler_init_top_p(s->top_p, 1));
	if (s->min_p > 0.0f)
		llama_sampler_chain_add(chain, llama_sampler_init_min_p(s->min_p, 1));
	llama_sampler_chain_add(chain, llama_sampler_init_temp(s->temperature));
	llama_sampler_chain_add(chain, llama_sampler_init_dist(s->seed));
	return chain;
}

int engine_submit(struct engine *engine, const struct engine_request *request, uint64_t *ret_id)
{
	struct engine_job *job = calloc(1, sizeof(*job));
	int r = 0;

	if (!job)
		return -ENOMEM;
	job->submitted_us = engine_now_us();
	if (request->sampling.temperature > 0.0f)
		job->sampler = sampler_new(&request->sampling);

	pthread_mutex_lock(&engine->lock);
	if (atomic_load(&engine->stopping)) {
		r = -ESHUTDOWN;
	} else if (engine->n_waiting >= engine->options.n_queue + engine->n_free) {
		engine->stats.refused++;
		r = -EBUSY;
	} else {
		job->request = *request; /* ours from here */
		job->text.stops = (const char *const *)job->request.stops;
		job->text.n_stops = job->request.n_stops;
		*ret_id = job->id = ++engine->last_id;
		*engine->queue_tail = job;
		engine->queue_tail = &job->next;
		engine->n_waiting++;
		engine->stats.prompt_tokens += request->n_prompt;
		pthread_cond_signal(&engine->wake);
	}
	pthread_mutex_unlock(&engine->lock);
	if (r < 0)
		job_free(job);
	return r;
}

void engine_abort(struct engine *engine, uint64_t id)
{
	pthread_mutex_lock(&engine->lock);
	for (struct engine_job *job = engine->queue; job; job = job->next)
		if (job->id == id)
			atomic_store(&job->aborted, true);
	/* A slot's job changes under the lock only, and is freed after it left the slot. */
	for (uint32_t i = 0; engine->slots && i < engine->options.n_slots; i++)
		if (engine->slots[i].job && engine->slots[i].job->id == id)
			atomic_store(&engine->slots[i].job->aborted, true);
	pthread_cond_signal(&engine->wake);
	pthread_mutex_unlock(&engine->lock);
}

void engine_get_stats(struct engine *engine, struct engine_stats *ret)
{
	pthread_mutex_lock(&engine->lock);
	*ret = engine->stats;
	ret->n_slots = engine->options.n_slots;
	ret->n_waiting = engine->n_waiting;
	ret->n_busy = engine->slots ? engine->options.n_slots - engine->n_free : 0;
	pthread_mutex_unlock(&engine->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Takes the first job whose asker went away out of the queue. */
static struct engine_job *queue_take_aborted(struct engine *engine)
{
	for (struct engine_job **at = &engine->queue; *at; at = &(*at)->next) {
		struct engine_job *job = *at;

		if (!atomic_load(&job->aborted) && !atomic_load(&engine->stopping))
			continue;
		*at = job->next;
		if (!*at)
			engine->queue_tail = at;
		engine->n_waiting--;
		return job;
	}
	return NULL;
}

/* Gives waiting jobs the free slots.  Called with the lock, which it gives up for each. */
static void admit(struct engine *engine)
{
	struct engine_job *job;

	while ((job = queue_take_aborted(engine))) {
		pthread_mutex_unlock(&engine->lock);
		engine_job_end(engine, job, ENGINE_FINISH_ABORT, NULL);
		pthread_mutex_lock(&engine->lock);
	}
	for (uint32_t i = 0; i < engine->options.n_slots && engine->queue; i++) {
		struct engine_slot *slot = &engine->slots[i];

		if (slot->job)
			continue;
		job = engine->queue;
		engine->queue = job->next;
		if (!engine->queue)
			engine->queue_tail = &engine->queue;
		engine->n_waiting--;
		engine->n_free--;
		slot->job = job;
		pthread_mutex_unlock(&engine->lock);
		engine_slot_begin(slot, job);
		pthread_mutex_lock(&engine->lock);
	}
}

/* Slots that have a job; *ret_decoding: those of them that need not wait for prefixd first. */
static uint32_t count_busy(const struct engine *engine, uint32_t *ret_decoding)
{
	uint32_t n = 0;

	*ret_decoding = 0;
	for (uint32_t i = 0; i < engine->options.n_slots; i++) {
		n += engine->slots[i].job != NULL;
		*ret_decoding += engine->slots[i].job && !engine->slots[i].later;
	}
	return n;
}

/* Takes over the cache's counters; tells what went wrong, once in a while. */
static void look_at_cache(struct engine *engine)
{
	struct cache_counters counters;
	uint64_t now_us = engine_now_us();

	cache_get_counters(engine->cache, &counters);
	pthread_mutex_lock(&engine->lock);
	engine->stats.cache = counters;
	pthread_mutex_unlock(&engine->lock);
	if (counters.failures == engine->failures ||
	    (engine->told_us && now_us - engine->told_us < TELL_US))
		return;
	say("prefixd: %s (%llu failures so far; what it does not do is computed)",
	    cache_problem(engine->cache), (unsigned long long)counters.failures);
	engine->failures = counters.failures;
	engine->told_us = now_us;
}

static void serve(struct engine *engine)
{
	uint32_t decoding;

	pthread_mutex_lock(&engine->lock);
	for (;;) {
		admit(engine);
		if (!count_busy(engine, &decoding)) {
			if (engine->queue)
				continue;
			if (atomic_load(&engine->stopping))
				break;
			pthread_cond_wait(&engine->wake, &engine->lock);
			continue;
		}
		pthread_mutex_unlock(&engine->lock);
		for (uint32_t i = 0; i < engine->options.n_slots; i++)
			if (engine->slots[i].job)
				engine_slot_step(&engine->slots[i], decoding == 0);
		if (engine->cache)
			look_at_cache(engine);
		pthread_mutex_lock(&engine->lock);
	}
	pthread_mutex_unlock(&engine->lock);
}

static void *thread_main(void *data)
{
	struct engine *engine = data;
	char why[512];
	int r = engine_load(engine, why, sizeof(why));

	if (r == 0) {
		pthread_mutex_lock(&engine->lock);
		engine->n_free = engine->options.n_slots;
		engine->stats.cache_on = engine->cache != NULL;
		pthread_mutex_unlock(&engine->lock);
	}
	engine->hooks.on_ready(engine->hooks.data, r < 0 ? why : NULL);
	if (r == 0)
		serve(engine);
	/* Here and not in engine_free(): the threads that decode belong to this one. */
	engine_unload(engine);
	return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int copy(const char **text)
{
	if (*text)
		*text = strdup(*text);
	return *text ? 0 : -ENOMEM;
}

static void options_free(struct engine_options *options)
{
	const char *const mine[] = { options->model_path, options->model_name, options->libraries,
				     options->lora_path,  options->type_k,     options->type_v,
				     options->socket,     options->tenant,     options->salt };

	for (size_t i = 0; i < sizeof(mine) / sizeof(mine[0]); i++)
		free((void *)(uintptr_t)mine[i]);
}

/* Makes every string ours; on failure those not yet copied are NULL. */
static int options_copy(struct engine_options *options)
{
	const char **const all[] = { &options->model_path, &options->model_name,
				     &options->libraries,  &options->lora_path,
				     &options->type_k,     &options->type_v,
				     &options->socket,     &options->tenant,
				     &options->salt };
	int r = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (r < 0)
			*all[i] = NULL;
		else if (*all[i])
			r = copy(all[i]);
	}
	return r;
}

int engine_new(const struct engine_options *options, const struct engine_hooks *hooks,
	       struct engine **ret)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	int r;

	if (!engine)
		return -ENOMEM;
	engine->options = *options;
	engine->hooks = *hooks;
	engine->queue_tail = &engine->queue;
	r = options_copy(&engine->options);
	if (r == 0) {
		(void)pthread_mutex_init(&engine->lock, NULL); /* plain ones do not fail here */
		(void)pthread_cond_init(&engine->wake, NULL);
		r = -pthread_create(&engine->thread, NULL, thread_main, engine);
	}
	if (r < 0) {
		options_free(&engine->options);
		free(engine);
		return r;
	}
	*ret = engine;
	return 0;
}

struct engine *engine_free(struct engine *engine)
{
	if (!engine)
		return NULL;
	pthread_mutex_lock(&engine->lock);
	atomic_store(&engine->stopping, true);
	pthread_cond_signal(&engine->wake);
	pthread_mutex_unlock(&engine->lock);
	(void)pthread_join(engine->thread, NULL);
	pthread_cond_destroy(&engine->wake);
	pthread_mutex_destroy(&engine->lock);
	options_free(&engine->options);
	free(engine);
	return NULL;
}
