/*
 * kit.h - a model, contexts and greedy decoding, for tests of the worker's lower half.
 *
 * Models are made by tests/engines/make_gguf.py at build time; $PREFIXD_LLAMA_MODELS is their
 * folder, else this program's own.  Each function fails the test when libllama refuses.
 */
#pragma once

#include "clients/llama/kvstate.h"

#include <llama.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kit_context {
	uint32_t n_ctx, chunk;
	enum ggml_type type_k, type_v;
	bool no_flash, streams; /* what kvstate refuses */
	uint32_t n_seq;         /* 0: 2 */
};

/* Greedy decoding: tokens and the logits of each step. */
struct kit_answer {
	uint32_t n, n_vocab;
	int32_t *tokens;
	float *logits;
};

struct llama_model *kit_model(const char *name);
const char *kit_model_path(const char *name, char *buf, size_t len);
struct llama_context *kit_context(struct llama_model *model, const struct kit_context *how);
/* A prompt in which every token depends on `seed`. */
void kit_prompt(const struct llama_model *model, uint32_t seed, int32_t *ret, uint32_t n);
/* Positions from ... to - 1 into sequence 0, `chunk` tokens at a time, none across a `split`. */
void kit_prefill(struct llama_context *ctx, const int32_t *tokens, uint32_t from, uint32_t to,
		 uint32_t chunk, uint32_t split);
/* Decodes the last token of the prompt, then n - 1 more, each the most likely one. */
void kit_answer(struct llama_context *ctx, const int32_t *tokens, uint32_t n_tokens, uint32_t n,
		struct kit_answer *ret);
void kit_answer_free(struct kit_answer *answer);
/* First step at which they differ in a bit of the logits; n when they do not. */
uint32_t kit_same(const struct kit_answer *a, const struct kit_answer *b);
struct kvstate *kit_state(struct llama_context *ctx, uint32_t block_tokens);
/* Room for n blocks, each in memory of its own. */
void **kit_blocks(const struct kvstate *state, uint32_t n);
void kit_blocks_free(void **blocks, uint32_t n);
