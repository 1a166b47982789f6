/*
 * kvstate.h - the K/V of one sequence of a llama.cpp context, block by block.
 *
 * libllama hands out and takes back the state of a sequence as one blob (llama_state_seq_get_data,
 * llama_state_seq_set_data) whose layout has no version and no checks worth the name: a wrong cell
 * count takes the process down, a wrong position is accepted.  This file is the one place that
 * knows the layout.  It reads it with every length checked, and writes only what it can vouch for.
 *
 * In the pool a block is neutral: layer by layer the K rows of its tokens, then their V rows, in
 * token order, with nothing around them.  So blocks computed in any context of the same shape, at
 * any place of it, are interchangeable.
 */
#ifndef KVSTATE_H
#define KVSTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVSTATE_SETTINGS 65

struct llama_context;
struct llama_context_params;
struct kvstate;

enum {
	KVSTATE_OK,
	KVSTATE_UNSUPPORTED, /* this model's or context's state cannot be cut into blocks */
	KVSTATE_FOREIGN,     /* libllama gave a blob of another layout than this file knows */
	KVSTATE_NO_ROOM,     /* libllama did not take the blob; the sequence is empty */
};

/* What every block has; from a probe of the context, the same for all contexts of one process. */
struct kvstate_shape {
	uint32_t n_layers;
	uint32_t block_tokens;
	uint64_t block_bytes; /* K and V rows of all layers for block_tokens tokens */
	uint32_t kv_heads, head_dim;
	uint32_t rot_k, rot_v;       /* width of the rotation of quantized K and V; 0: none */
	int beyond;                  /* 1: the context is longer than the model's original one */
	int plain;                   /* 1: block_bytes follows from the five numbers and the type */
	char type_k[16], type_v[16]; /* ggml's names: f16, q8_0 ...; "mixed" by layer */
};

/* Whether the libllama that was loaded is the one of the header.  False: `why` says what is. */
bool kvstate_check_library(char *why, size_t why_len);
/*
 * What of libllama and of a context's parameters changes the bits of K/V, also what this processor
 * can, since another rounds otherwise: libllama's commit, flash attention, and a digest of the
 * rest.  At most KVSTATE_SETTINGS bytes with the 0.
 */
void kvstate_settings(const struct llama_context_params *params, char *ret, size_t len);

/*
 * All contexts must have been made with n_seq_max >= 2 (sequence 1 is this file's, and empty
 * between calls), kv_unified, and flash attention enabled; n_outputs_max, where it is
 * set, must not be below n_seq_max: libllama ends the process otherwise.
 *
 * Finds out the shape: decodes a few tokens into sequence 0 of the still empty context, looks at
 * their blob, and empties the sequence again.  Return: 0; -ENOMEM; a code of above, with a sentence
 * in `why` (why_len bytes).
 */
int kvstate_new(struct llama_context *ctx, uint32_t block_tokens, struct kvstate **ret, char *why,
		size_t why_len);
struct kvstate *kvstate_free(struct kvstate *state);
const struct kvstate_shape *kvstate_shape(const struct kvstate *state);

/*
 * Copies blocks first ... first + n - 1 of sequence 0 (positions first * block_tokens on) of `ctx`
 * to out[0 ... n - 1], block_bytes each.  The context must have the shape.  Return: 0; -ENOMEM;
 * KVSTATE_FOREIGN when what libllama gave is not these blocks: nothing is to be committed.
 */
int kvstate_export(struct kvstate *state, struct llama_context *ctx, uint32_t first, uint32_t n,
		   void *const *out);

/*
 * Makes in[0 ... n - 1] the first n blocks of sequence 0 of `ctx`, which must be empty; positions
 * 0 ... n * block_tokens - 1.  Return: 0; -ENOMEM; KVSTATE_NO_ROOM: libllama refused, sequence 0
 * is empty and the caller computes.
 */
int kvstate_import(struct kvstate *state, struct llama_context *ctx, uint32_t n,
		   const void *const *in);

#endif
