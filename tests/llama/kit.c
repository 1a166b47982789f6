/*
 * kit.c - see kit.h.
 */
#include "tests/llama/kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
	if (level == GGML_LOG_LEVEL_ERROR && getenv("KIT_VERBOSE"))
		(void)fputs(text, stderr);
}

/* Where the models are made: beside this program. */
static const char *own_folder(char *buf, size_t len)
{
	ssize_t n = readlink("/proc/self/exe", buf, len - 1);

	buf[n > 0 ? n : 0] = 0;
	if (strrchr(buf, '/'))
		*strrchr(buf, '/') = 0;
	return buf;
}

const char *kit_model_path(const char *name, char *buf, size_t len)
{
	const char *dir = getenv("PREFIXD_LLAMA_MODELS");
	char own[256];

	(void)snprintf(buf, len, "%s/%s.gguf", dir ? dir : own_folder(own, sizeof(own)), name);
	return buf;
}

struct llama_model *kit_model(const char *name)
{
	struct llama_model_params p = llama_model_default_params();
	struct llama_model *model;
	char path[512];

	llama_log_set(quiet, NULL);
	model = llama_model_load_from_file(kit_model_path(name, path, sizeof(path)), p);
	ck_assert_msg(model != NULL, "no model %s", path);
	return model;
}

struct llama_context *kit_context(struct llama_model *model, const struct kit_context *how)
{
	struct llama_context_params p = llama_context_default_params();
	struct llama_context *ctx;

	p.n_ctx = how->n_ctx;
	p.n_batch = p.n_ubatch = 512;
	p.n_threads = p.n_threads_batch = 1;
	p.n_seq_max = how->n_seq ? how->n_seq : 2;
	p.kv_unified = !how->streams;
	p.type_k = how->type_k;
	p.type_v = how->type_v;
	p.flash_attn_type = how->no_flash ? LLAMA_FLASH_ATTN_TYPE_DISABLED
					  : LLAMA_FLASH_ATTN_TYPE_ENABLED;
	ctx = llama_init_from_model(model, p);
	ck_assert_msg(ctx != NULL, "no context of %u tokens", how->n_ctx);
	return ctx;
}

void kit_prompt(const struct llama_model *model, uint32_t seed, int32_t *ret, uint32_t n)
{
	uint32_t n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(model));

	for (uint32_t i = 0; i < n; i++) {
		uint32_t x = (i + 1) * 2654435761u + seed * 40503u;

		x ^= x >> 15;
		x *= 2246822519u;
		x ^= x >> 13;
		ret[i] = (int32_t)(x % n_vocab);
	}
}

static void decode(struct llama_context *ctx, const int32_t *tokens, uint32_t n)
{
	int32_t part[512];

	ck_assert_uint_le(n, 512);
	memcpy(part, tokens, n * sizeof(*tokens));
	ck_assert_int_eq(llama_decode(ctx, llama_batch_get_one(part, (int32_t)n)), 0);
}

void kit_prefill(struct llama_context *ctx, const int32_t *tokens, uint32_t from, uint32_t to,
		 uint32_t chunk, uint32_t split)
{
	while (from < to) {
		uint32_t end = to - from < chunk ? to : from + chunk;

		if (from < split && end > split)
			end = split;
		decode(ctx, tokens + from, end - from);
		from = end;
	}
}

void kit_answer(struct llama_context *ctx, const int32_t *tokens, uint32_t n_tokens, uint32_t n,
		struct kit_answer *ret)
{
	const struct llama_model *model = llama_get_model(ctx);
	uint32_t n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
	int32_t token = tokens[n_tokens - 1];

	*ret = (struct kit_answer){ .n = n, .n_vocab = n_vocab };
	ret->tokens = calloc(n, sizeof(*ret->tokens));
	ret->logits = calloc((size_t)n * n_vocab, sizeof(*ret->logits));
	ck_assert(ret->tokens && ret->logits);
	for (uint32_t i = 0; i < n; i++) {
		float *logits = ret->logits + (size_t)i * n_vocab;
		uint32_t best = 0;

		decode(ctx, &token, 1);
		memcpy(logits, llama_get_logits_ith(ctx, -1), n_vocab * sizeof(*logits));
		for (uint32_t j = 1; j < n_vocab; j++) {
			if (logits[j] > logits[best])
				best = j;
		}
		token = ret->tokens[i] = (int32_t)best;
	}
}

void kit_answer_free(struct kit_answer *answer)
{
	free(answer->tokens);
	free(answer->logits);
}

uint32_t kit_same(const struct kit_answer *a, const struct kit_answer *b)
{
	uint32_t n = a->n < b->n ? a->n : b->n, i;

	for (i = 0; i < n; i++) {
		if (a->tokens[i] != b->tokens[i] ||
		    memcmp(a->logits + (size_t)i * a->n_vocab, b->logits + (size_t)i * b->n_vocab,
			   a->n_vocab * sizeof(*a->logits)) != 0)
			break;
	}
	return i;
}

struct kvstate *kit_state(struct llama_context *ctx, uint32_t block_tokens)
{
	struct kvstate *state;
	char why[256] = "";
	int r = kvstate_new(ctx, block_tokens, &state, why, sizeof(why));

	ck_assert_msg(r == 0, "%d: %s", r, why);
	return state;
}

void **kit_blocks(const struct kvstate *state, uint32_t n)
{
	void **blocks = calloc(n, sizeof(*blocks));

	ck_assert_ptr_nonnull(blocks);
	for (uint32_t i = 0; i < n; i++) {
		blocks[i] = malloc(kvstate_shape(state)->block_bytes);
		ck_assert_ptr_nonnull(blocks[i]);
		memset(blocks[i], 0xa5, kvstate_shape(state)->block_bytes);
	}
	return blocks;
}

void kit_blocks_free(void **blocks, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(blocks[i]);
	free(blocks);
}
