/*
 * compose.h - prompts as sequences of pieces, cut into blocks.
 *
 * A piece is a stretch of content: a system prompt, a document, a user's message, an answer.  Two
 * prompts that begin with the same pieces begin with the same tokens.  A block's name is a hash of
 * what lies in it and of the block before it, so it stands for the whole prefix.
 */
#pragma once

#include "clients/replay/trace.h"
#include "clients/replay/util.h"

struct replay_piece {
	uint64_t content; /* equal numbers are equal text */
	uint64_t len;     /* tokens */
};

struct replay_prompt {
	struct replay_piece *pieces;
	size_t n, cap;
	uint64_t len; /* tokens */
};

void replay_prompt_add(struct replay_prompt *prompt, uint64_t content, uint64_t len);
/* Forgets the end of the prompt, down to `len` tokens. */
void replay_prompt_cut(struct replay_prompt *prompt, uint64_t len);
/* Makes `to` a copy of `from`. */
void replay_prompt_copy(struct replay_prompt *to, const struct replay_prompt *from);
void replay_prompt_deinit(struct replay_prompt *prompt);

/* One more request of the trace.  partial: a last block shorter than the others has a name too. */
struct replay_request *replay_prompt_emit(const struct replay_prompt *prompt,
					  struct replay_trace *trace, bool partial);

/* A distribution by its quantiles, straight lines in between. */
struct replay_quantiles {
	struct {
		double p, value;
	} at[10];
};

double replay_draw(struct replay_rng *rng, const struct replay_quantiles *q);
/* An index in [0, n), smaller ones more often: p(i) falls with (i + 1)^-1. */
uint32_t replay_draw_popular(struct replay_rng *rng, uint32_t n);
