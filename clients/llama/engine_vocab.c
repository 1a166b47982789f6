/*
 * engine_vocab.c - text to tokens and back, for any thread: libllama's vocabulary does not change.
 */
#include "clients/llama/engine_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t engine_n_vocab(const struct engine *engine)
{
	return (uint32_t)llama_vocab_n_tokens(engine->vocab);
}

size_t engine_longest_token(const struct engine *engine)
{
	int32_t n = llama_vocab_n_tokens(engine->vocab);
	size_t longest = 1;
	char none[1];

	for (int32_t i = 0; i < n; i++) {
		int32_t len = llama_token_to_piece(engine->vocab, i, none, 0, 0, true);

		if (len < 0 && (size_t) - (int64_t)len > longest) /* what it would need */
			longest = (size_t) - (int64_t)len;
	}
	return longest;
}

const char *engine_chat_template(const struct engine *engine)
{
	return llama_model_chat_template(engine->model, NULL);
}

int engine_tokenize(const struct engine *engine, const char *text, size_t len, bool add_special,
		    bool parse_special, int32_t **ret_tokens, size_t *ret_n)
{
	/* A token is a byte at least; the rest is room for what add_special adds. */
	size_t cap = len + 16;
	int32_t *tokens, n;

	if (cap > INT32_MAX)
		return -E2BIG;
	tokens = malloc(cap * sizeof(*tokens));
	if (!tokens)
		return -ENOMEM;
	n = llama_tokenize(engine->vocab, text, (int32_t)len, tokens, (int32_t)cap, add_special,
			   parse_special);
	if (n < 0) {
		free(tokens);
		return n == INT32_MIN ? -E2BIG : -ENOMEM;
	}
	*ret_tokens = tokens;
	*ret_n = (size_t)n;
	return 0;
}

int engine_detokenize(const struct engine *engine, const int32_t *tokens, size_t n, char **ret_text,
		      size_t *ret_len)
{
	size_t cap = n * 8 + 64;
	char *text;
	int32_t len;

	if (n > INT32_MAX / 16)
		return -E2BIG;
	for (;;) {
		text = malloc(cap);
		if (!text)
			return -ENOMEM;
		len = llama_detokenize(engine->vocab, tokens, (int32_t)n, text, (int32_t)cap, false,
				       true);
		if (len >= 0)
			break;
		free(text);
		cap = (size_t) - (int64_t)len;
	}
	*ret_text = text;
	*ret_len = (size_t)len;
	return 0;
}
