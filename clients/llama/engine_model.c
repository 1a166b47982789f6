/*
 * engine_model.c - the model, one context per slot, and the cache under them.
 *
 * All of a process's contexts are made alike, as kvstate.h asks for.  The package's libggml hands
 * its work to OpenMP, whose threads belong to the thread that decodes: however many slots there
 * are, there is one pool of --threads.
 */
#include "clients/llama/engine_internal.h"

#include "clients/llama/kvstate.h"
#include "clients/llama/say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	enum ggml_type type;
} types[] = {
	{ "f16", GGML_TYPE_F16 },   { "bf16", GGML_TYPE_BF16 }, { "f32", GGML_TYPE_F32 },
	{ "q8_0", GGML_TYPE_Q8_0 }, { "q5_1", GGML_TYPE_Q5_1 }, { "q5_0", GGML_TYPE_Q5_0 },
	{ "q4_1", GGML_TYPE_Q4_1 }, { "q4_0", GGML_TYPE_Q4_0 },
};

static int type_find(const char *option, const char *name, enum ggml_type *ret, char *why,
		     size_t why_len)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(name, types[i].name) == 0) {
			*ret = types[i].type;
			return 0;
		}
	snprintf(why, why_len,
		 "%s has to be one of f16, bf16, f32, q8_0, q5_1, q5_0, q4_1, q4_0, not `%s`",
		 option, name);
	return -EINVAL;
}

/*
 * libllama's log, of which warnings and errors are ours to show; its lines may come in parts.  An
 * aborted decode is an error to it and an ordinary thing here, so what it says of one is left out.
 */
static void on_log(enum ggml_log_level level, const char *text, void *data)
{
	static enum ggml_log_level last = GGML_LOG_LEVEL_NONE;
	const struct engine *engine = data;

	if (level != GGML_LOG_LEVEL_CONT)
		last = level;
	if ((last == GGML_LOG_LEVEL_WARN || last == GGML_LOG_LEVEL_ERROR) &&
	    !atomic_load(&engine->aborting))
		fputs(text, stderr);
}

/* Called by libllama as it loads; false gives up. */
static bool on_progress(float progress, void *data)
{
	const struct engine *engine = data;

	return !atomic_load(&engine->stopping);
}

/* Asked between the operations of a decode: true ends it, llama_decode() returns 2. */
static bool slot_aborted(void *data)
{
	struct engine_slot *slot = data;
	bool aborted = atomic_load(&slot->engine->stopping) ||
		       (slot->job && atomic_load(&slot->job->aborted));

	if (aborted)
		atomic_store(&slot->engine->aborting, true);
	return aborted;
}

static int load_model(struct engine *engine, char *why, size_t why_len)
{
	struct llama_model_params params = llama_model_default_params();
	const struct engine_options *o = &engine->options;

	if (o->libraries)
		ggml_backend_load_all_from_path(o->libraries);
	llama_backend_init();
	params.n_gpu_layers = 0;
	params.progress_callback = on_progress;
	params.progress_callback_user_data = engine;
	engine->model = llama_model_load_from_file(o->model_path, params);
	if (!engine->model) {
		snprintf(why, why_len, "--model: %s cannot be loaded", o->model_path);
		return -EINVAL;
	}
	engine->vocab = llama_model_get_vocab(engine->model);
	if (llama_model_has_encoder(engine->model) || !llama_model_has_decoder(engine->model)) {
		snprintf(why, why_len, "--model: %s does not generate text from text alone",
			 o->model_path);
		return -EINVAL;
	}
	if (o->lora_path) {
		engine->lora = llama_adapter_lora_init(engine->model, o->lora_path);
		if (!engine->lora) {
			snprintf(why, why_len, "--lora: %s cannot be loaded for this model",
				 o->lora_path);
			return -EINVAL;
		}
	}
	return 0;
}

static int load_slot(struct engine *engine, struct engine_slot *slot,
		     const struct llama_context_params *shared, char *why, size_t why_len)
{
	struct llama_context_params params = *shared;
	float scale = (float)engine->options.lora_scale;

	slot->engine = engine;
	params.abort_callback = slot_aborted;
	params.abort_callback_data = slot;
	slot->ctx = llama_init_from_model(engine->model, params);
	if (!slot->ctx) {
		snprintf(why, why_len,
			 "no context of %u tokens, K %s and V %s can be made for this model",
			 engine->options.n_ctx, engine->options.type_k, engine->options.type_v);
		return -ENOMEM;
	}
	if (engine->lora && llama_set_adapters_lora(slot->ctx, &engine->lora, 1, &scale) != 0) {
		snprintf(why, why_len, "--lora: the adapter cannot be applied");
		return -EINVAL;
	}
	slot->batch = llama_batch_init((int32_t)engine->options.chunk, 0, 1);
	return 0;
}

/* As prefixd tells them apart. */
struct weights {
	char revision[33], adapter[64];
};

/* The adapter as prefixd tells it apart: its bytes, and how strongly it is applied. */
static int adapter_name(const struct engine_options *o, char *ret, size_t len)
{
	char digest[33];
	int r;

	ret[0] = '\0';
	if (!o->lora_path)
		return 0;
	r = cache_digest_file(o->lora_path, digest);
	if (r == 0)
		snprintf(ret, len, "%s*%.9g", digest, o->lora_scale);
	return r;
}

/* Which weights: of the model's file and the adapter's, as they are now.  0; negative errno. */
static int name_weights(const struct engine_options *o, struct weights *ret)
{
	int r = cache_digest_file(o->model_path, ret->revision);

	return r ? r : adapter_name(o, ret->adapter, sizeof(ret->adapter));
}

static bool cache_wanted(const struct engine_options *o)
{
	return !o->socket || strcmp(o->socket, "off") != 0;
}

/*
 * `before`: the weights' names before they were loaded; what is read between two equal names has
 * that name.  0, also when the worker will do without; -ENOMEM.
 */
static int load_cache(struct engine *engine, const struct llama_context_params *params,
		      const struct weights *before)
{
	const struct engine_options *o = &engine->options;
	char why[256], settings[KVSTATE_SETTINGS];
	struct weights after;
	struct cache_options options = { .socket = o->socket,
					 .tenant = o->tenant,
					 .model = o->model_name,
					 .revision = after.revision,
					 .adapter = after.adapter,
					 .engine = settings,
					 .deadline_ms = o->cache_deadline_ms,
					 .load_ms = o->cache_load_ms,
					 .wait_ms = o->cache_wait_ms };
	int r;

	if (!cache_wanted(o))
		return 0;
	if (!kvstate_check_library(why, sizeof(why))) {
		say("prefixd is not used: %s", why);
		return 0;
	}
	r = kvstate_new(engine->slots[0].ctx, o->block_tokens, &engine->state, why, sizeof(why));
	if (r > 0) {
		say("prefixd is not used: %s", why);
		return 0;
	}
	if (r == 0)
		r = name_weights(o, &after);
	if (r < 0 && r != -ENOMEM) {
		say("prefixd is not used: a model file cannot be read: %s", strerror(-r));
		return 0;
	}
	if (r < 0)
		return r;
	if (strcmp(before->revision, after.revision) || strcmp(before->adapter, after.adapter)) {
		say("prefixd is not used: a model file was changed while it was loaded");
		return 0;
	}
	kvstate_settings(params, settings, sizeof(settings));
	r = cache_new(&options, engine->state, &engine->cache);
	if (r < 0 && r != -ENOMEM) {
		say("prefixd is not used: its options are not in order: %s", strerror(-r));
		return 0;
	}
	return r;
}

int engine_load(struct engine *engine, char *why, size_t why_len)
{
	const struct engine_options *o = &engine->options;
	struct llama_context_params params;
	struct weights weights = { 0 };
	struct engine_slot *slots;
	int r;

	if (cache_wanted(o))
		(void)name_weights(o, &weights); /* what cannot be read is said after loading */
	llama_log_set(on_log, engine);
	params = llama_context_default_params();
	r = type_find("--type-k", o->type_k, &params.type_k, why, why_len);
	if (r == 0)
		r = type_find("--type-v", o->type_v, &params.type_v, why, why_len);
	if (r == 0)
		r = load_model(engine, why, why_len);
	if (r < 0)
		return r;
	params.n_ctx = o->n_ctx;
	params.n_batch = params.n_ubatch = o->chunk; /* a chunk is computed as one */
	params.n_seq_max = 2;
	params.n_outputs_max = 2; /* logits of a last token are all we ask for; one a sequence */
	params.kv_unified = true;
	params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
	params.n_threads = params.n_threads_batch = (int32_t)o->n_threads;
	params.no_perf = true;

	snprintf(why, why_len, "out of memory");
	slots = calloc(o->n_slots, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	pthread_mutex_lock(&engine->lock);
	engine->slots = slots;
	pthread_mutex_unlock(&engine->lock);
	for (uint32_t i = 0; i < o->n_slots; i++) {
		r = load_slot(engine, &slots[i], &params, why, why_len);
		if (r < 0)
			return r;
	}
	snprintf(why, why_len, "out of memory");
	return load_cache(engine, &params, &weights);
}

void engine_unload(struct engine *engine)
{
	struct engine_slot *slots = engine->slots;

	engine->cache = cache_free(engine->cache);
	engine->state = kvstate_free(engine->state);
	pthread_mutex_lock(&engine->lock);
	engine->slots = NULL;
	pthread_mutex_unlock(&engine->lock);
	for (uint32_t i = 0; slots && i < engine->options.n_slots; i++) {
		if (slots[i].batch.token)
			llama_batch_free(slots[i].batch);
		if (slots[i].ctx)
			llama_free(slots[i].ctx);
	}
	free(slots);
	if (engine->lora)
		llama_adapter_lora_free(engine->lora);
	if (engine->model)
		llama_model_free(engine->model);
	llama_backend_free();
	llama_log_set(NULL, NULL);
}
