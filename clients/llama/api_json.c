/*
 * api_json.c - replies as OpenAI's clients expect them, with this worker's own fields.
 *
 * json_pack() gives NULL when memory is short and takes what it was given in any case.
 */
#include "clients/llama/api_internal.h"

#include "clients/llama/engine.h"

static double ms(uint64_t us)
{
	return (double)us / 1000.0;
}

static json_t *token_array(const struct api_piece *p)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < p->n_tokens; i++)
		if (json_array_append_new(array, json_integer(p->tokens[i])) < 0) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *finish_reason(const struct api_piece *p)
{
	if (!p->result)
		return json_null();
	return json_string(p->result->finish == ENGINE_FINISH_LENGTH ? "length" : "stop");
}

static json_t *usage(const struct engine_usage *u)
{
	return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt_tokens,
			 "completion_tokens", (json_int_t)u->completion_tokens, "total_tokens",
			 (json_int_t)u->prompt_tokens + u->completion_tokens,
			 "prompt_tokens_details", "cached_tokens", (json_int_t)u->cached_tokens);
}

static json_t *timings(const struct engine_usage *u)
{
	uint32_t n = u->prompt_tokens - u->cached_tokens;
	double seconds = (double)u->prefill_us / 1e6;

	return json_pack("{s:f, s:f, s:f, s:f, s:I, s:f, s:f}", "queued_ms", ms(u->queued_us),
			 "cache_ms", ms(u->cache_us), "ttft_ms", ms(u->ttft_us), "prefill_ms",
			 ms(u->prefill_us), "prefill_tokens", (json_int_t)n,
			 "prefill_tokens_per_second", seconds > 0 ? n / seconds : 0.0, "total_ms",
			 ms(u->total_us));
}

/* The choice of a chunk or of a whole reply. */
static json_t *choice(const struct api_piece *p, bool whole)
{
	json_t *object;

	if (!p->chat)
		object = json_pack("{s:i, s:s%, s:n, s:o}", "index", 0, "text", p->text,
				   p->text_len, "logprobs", "finish_reason", finish_reason(p));
	else if (whole)
		object = json_pack("{s:i, s:{s:s, s:s%}, s:n, s:o}", "index", 0, "message", "role",
				   "assistant", "content", p->text, p->text_len, "logprobs",
				   "finish_reason", finish_reason(p));
	else if (p->first)
		object = json_pack("{s:i, s:{s:s, s:s%}, s:n, s:o}", "index", 0, "delta", "role",
				   "assistant", "content", p->text, p->text_len, "logprobs",
				   "finish_reason", finish_reason(p));
	else if (p->text_len)
		object = json_pack("{s:i, s:{s:s%}, s:n, s:o}", "index", 0, "delta", "content",
				   p->text, p->text_len, "logprobs", "finish_reason",
				   finish_reason(p));
	else
		object = json_pack("{s:i, s:{}, s:n, s:o}", "index", 0, "delta", "logprobs",
				   "finish_reason", finish_reason(p));
	if (object && p->return_ids &&
	    json_object_set_new(object, "token_ids", token_array(p)) < 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

static json_t *head(const struct api *api, const struct api_piece *p, bool whole, json_t *choices)
{
	const char *kind = !p->chat ? "text_completion"
			   : whole  ? "chat.completion"
				    : "chat.completion.chunk";

	return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", p->id, "object", kind, "created",
			 (json_int_t)p->created, "model", api->options.model_name, "choices",
			 choices);
}

/* Gives the object back with the member, or NULL. */
static json_t *with(json_t *object, const char *name, json_t *value)
{
	if (object && json_object_set_new(object, name, value) == 0)
		return object;
	if (!object)
		json_decref(value);
	json_decref(object);
	return NULL;
}

json_t *api_json_chunk(const struct api *api, const struct api_piece *p)
{
	json_t *object = head(api, p, false, json_pack("[o]", choice(p, false)));

	if (p->include_usage)
		object = with(object, "usage", json_null());
	if (p->result)
		object = with(object, "timings", timings(&p->result->usage));
	return object;
}

json_t *api_json_usage_chunk(const struct api *api, const struct api_piece *p)
{
	json_t *object = head(api, p, false, json_array());

	return with(object, "usage", usage(&p->result->usage));
}

json_t *api_json_whole(const struct api *api, const struct api_piece *p)
{
	json_t *object = head(api, p, true, json_pack("[o]", choice(p, true)));

	object = with(object, "usage", usage(&p->result->usage));
	return with(object, "timings", timings(&p->result->usage));
}
