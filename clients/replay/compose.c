/*
 * compose.c - pieces to blocks, and drawing from distributions.
 *
 * Only additions, multiplications and comparisons are used on floating-point numbers, none of the
 * functions whose last bit differs between C libraries: the same seed gives the same trace
 * anywhere.
 */
#include "clients/replay/compose.h"

#include <stdlib.h>
#include <string.h>

void replay_prompt_add(struct replay_prompt *prompt, uint64_t content, uint64_t len)
{
	if (!len)
		return;
	prompt->pieces = replay_grow(prompt->pieces, &prompt->cap, prompt->n + 1,
				     sizeof(*prompt->pieces));
	prompt->pieces[prompt->n++] = (struct replay_piece){ content, len };
	prompt->len += len;
}

void replay_prompt_cut(struct replay_prompt *prompt, uint64_t len)
{
	while (prompt->len > len) {
		struct replay_piece *last = &prompt->pieces[prompt->n - 1];
		uint64_t over = replay_min(prompt->len - len, last->len);

		last->len -= over;
		prompt->len -= over;
		prompt->n -= last->len == 0;
	}
}

void replay_prompt_copy(struct replay_prompt *to, const struct replay_prompt *from)
{
	to->pieces = replay_grow(to->pieces, &to->cap, from->n, sizeof(*to->pieces));
	if (from->n)
		memcpy(to->pieces, from->pieces, from->n * sizeof(*to->pieces));
	to->n = from->n;
	to->len = from->len;
}

void replay_prompt_deinit(struct replay_prompt *prompt)
{
	free(prompt->pieces);
	*prompt = (struct replay_prompt){ 0 };
}

struct replay_request *replay_prompt_emit(const struct replay_prompt *prompt,
					  struct replay_trace *trace, bool partial)
{
	struct replay_request *request = replay_trace_begin(trace);
	uint64_t name = 0;
	uint64_t filled = 0; /* of the block being made */

	for (size_t i = 0; i < prompt->n; i++) {
		uint64_t at = 0;

		while (at < prompt->pieces[i].len) {
			uint64_t take = replay_min(prompt->pieces[i].len - at,
						   trace->block_tokens - filled);

			/* Which stretch of which content, after all that came before. */
			name = replay_mix(name ^ replay_mix(prompt->pieces[i].content + at)) + take;
			at += take;
			filled += take;
			if (filled == trace->block_tokens) {
				replay_trace_add_block(trace, replay_mix(name));
				filled = 0;
			}
		}
	}
	if (filled && partial)
		replay_trace_add_block(trace, replay_mix(~name));
	request->input_tokens = prompt->len;
	return request;
}

double replay_draw(struct replay_rng *rng, const struct replay_quantiles *q)
{
	double u = replay_rng_unit(rng);
	size_t i = 1;

	while (i + 1 < replay_array_size(q->at) && q->at[i].p < u && q->at[i + 1].p > 0)
		i++;
	return q->at[i - 1].value + (q->at[i].value - q->at[i - 1].value) * (u - q->at[i - 1].p) /
					    (q->at[i].p - q->at[i - 1].p);
}

uint32_t replay_draw_popular(struct replay_rng *rng, uint32_t n)
{
	double sum = 0.0;
	double u;

	for (uint32_t i = 0; i < n; i++)
		sum += 1.0 / (i + 1);
	u = replay_rng_unit(rng) * sum;
	for (uint32_t i = 0; i < n; i++) {
		u -= 1.0 / (i + 1);
		if (u < 0)
			return i;
	}
	return n - 1;
}
