/*
 * api_params.c - the fields of a request, each checked, each refused by its name.
 *
 * Two tables: what is read, and what OpenAI and others know but this worker does not do.  The
 * latter may stand there with the value that changes nothing; any other one would make the answer
 * another than the asker meant, and is refused.  Names in neither table are ignored.
 */
#include "clients/llama/api_internal.h"

#include "clients/llama/engine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPLETION 1u
#define CHAT       2u
#define BOTH       (COMPLETION | CHAT)

#define MAX_STOPS      16
#define MAX_STOP_BYTES 1024
#define MAX_SALT_BYTES 128

#define DEFAULT_MAX_TOKENS 16 /* of a completion, as OpenAI has it; a chat goes on to its end */

struct field {
	const char *name;
	unsigned kinds;
	int (*read)(struct api_params *params, const json_t *value, const struct field *field,
		    struct api_error *error);
	size_t offset;
	double min, max;
};

/* ---- values ---------------------------------------------------------------------------------- */

static void *member(struct api_params *p, const struct field *f)
{
	return (char *)p + f->offset;
}

static int read_bool(struct api_params *p, const json_t *value, const struct field *f,
		     struct api_error *error)
{
	if (!json_is_boolean(value))
		return api_refuse(error, f->name, "`%s` has to be true or false, not %s", f->name,
				  api_json_type(value));
	*(bool *)member(p, f) = json_is_true(value);
	return 0;
}

static int read_whole(const json_t *value, const struct field *f, json_int_t *ret,
		      struct api_error *error)
{
	*ret = json_integer_value(value);
	if (!json_is_integer(value))
		return api_refuse(error, f->name, "`%s` has to be an integer, not %s", f->name,
				  api_json_type(value));
	if ((double)*ret < f->min || (double)*ret > f->max)
		return api_refuse(error, f->name,
				  "`%s` has to be an integer from %.0f to %.0f, not %lld", f->name,
				  f->min, f->max, (long long)*ret);
	return 0;
}

static int read_max_tokens(struct api_params *p, const json_t *value, const struct field *f,
			   struct api_error *error)
{
	json_int_t n;

	if (read_whole(value, f, &n, error) < 0)
		return -EINVAL;
	if (p->request.max_tokens && p->request.max_tokens != (uint32_t)n)
		return api_refuse(error, f->name,
				  "`max_tokens` and `max_completion_tokens` say different things");
	p->request.max_tokens = (uint32_t)n;
	return 0;
}

static int read_int32(struct api_params *p, const json_t *value, const struct field *f,
		      struct api_error *error)
{
	json_int_t n;

	if (read_whole(value, f, &n, error) < 0)
		return -EINVAL;
	*(int32_t *)member(p, f) = n < 0 ? 0 : (int32_t)n; /* -1: off, as some say */
	return 0;
}

static int read_seed(struct api_params *p, const json_t *value, const struct field *f,
		     struct api_error *error)
{
	if (!json_is_integer(value))
		return api_refuse(error, f->name, "`%s` has to be an integer, not %s", f->name,
				  api_json_type(value));
	p->request.sampling.seed = (uint32_t)json_integer_value(value);
	return 0;
}

static int read_float(struct api_params *p, const json_t *value, const struct field *f,
		      struct api_error *error)
{
	double x = json_number_value(value);

	if (!json_is_number(value))
		return api_refuse(error, f->name, "`%s` has to be a number, not %s", f->name,
				  api_json_type(value));
	if (!(x >= f->min && x <= f->max))
		return api_refuse(error, f->name, "`%s` has to be a number from %g to %g, not %g",
				  f->name, f->min, f->max, x);
	*(float *)member(p, f) = (float)x;
	return 0;
}

/* ---- fields of their own --------------------------------------------------------------------- */

static int read_model(struct api_params *p, const json_t *value, const struct field *f,
		      struct api_error *error)
{
	if (!json_is_string(value))
		return api_refuse(error, f->name, "`model` has to be a string, not %s",
				  api_json_type(value));
	if (strcmp(json_string_value(value), p->api->options.model_name) == 0)
		return 0;
	(void)api_refuse(error, f->name, "this worker serves `%s` only; see /v1/models",
			 p->api->options.model_name);
	error->status = 404;
	error->code = "model_not_found";
	return -EINVAL;
}

static int read_prompt(struct api_params *p, const json_t *value, const struct field *f,
		       struct api_error *error)
{
	return api_read_prompt(p, value, error);
}

static int read_messages(struct api_params *p, const json_t *value, const struct field *f,
			 struct api_error *error)
{
	return api_read_messages(p, value, error);
}

static int add_stop(struct api_params *p, const json_t *value, const char *where,
		    struct api_error *error)
{
	size_t len = json_string_length(value);

	if (!json_is_string(value))
		return api_refuse(error, where, "`%s` has to be a string, not %s", where,
				  api_json_type(value));
	if (len == 0 || len > MAX_STOP_BYTES)
		return api_refuse(error, where, "`%s` has to have 1 to %d bytes, not %zu", where,
				  MAX_STOP_BYTES, len);
	p->request.stops[p->request.n_stops] = strdup(json_string_value(value));
	if (!p->request.stops[p->request.n_stops])
		return api_no_memory(error);
	p->request.n_stops++;
	return 0;
}

static int read_stop(struct api_params *p, const json_t *value, const struct field *f,
		     struct api_error *error)
{
	size_t n = json_is_array(value) ? json_array_size(value) : 1;
	char where[32];

	if (!json_is_string(value) && !json_is_array(value))
		return api_refuse(error, f->name,
				  "`stop` has to be a string or an array of strings, not %s",
				  api_json_type(value));
	if (n > MAX_STOPS)
		return api_refuse(error, f->name, "`stop` has %zu strings, more than %d", n,
				  MAX_STOPS);
	p->request.stops = calloc(n ? n : 1, sizeof(*p->request.stops));
	if (!p->request.stops)
		return api_no_memory(error);
	if (json_is_string(value))
		return add_stop(p, value, f->name, error);
	for (size_t i = 0; i < n; i++) {
		snprintf(where, sizeof(where), "stop[%zu]", i);
		if (add_stop(p, json_array_get(value, i), where, error) < 0)
			return -EINVAL;
	}
	return 0;
}

static int read_splits(struct api_params *p, const json_t *value, const struct field *f,
		       struct api_error *error)
{
	size_t n = json_array_size(value);
	json_int_t last = 0;
	char where[48];

	if (!json_is_array(value))
		return api_refuse(error, f->name,
				  "`%s` has to be an array of ascending positions, not %s", f->name,
				  api_json_type(value));
	p->request.splits = malloc((n ? n : 1) * sizeof(*p->request.splits));
	if (!p->request.splits)
		return api_no_memory(error);
	for (size_t i = 0; i < n; i++) {
		const json_t *item = json_array_get(value, i);

		snprintf(where, sizeof(where), "%s[%zu]", f->name, i);
		if (!json_is_integer(item) || json_integer_value(item) <= last ||
		    json_integer_value(item) > (json_int_t)p->api->options.n_ctx)
			return api_refuse(error, where,
					  "`%s` has to be an integer from %lld to %u: positions "
					  "ascend and lie in the context",
					  where, (long long)last + 1, p->api->options.n_ctx);
		last = json_integer_value(item);
		p->request.splits[i] = (uint32_t)last;
	}
	p->request.n_splits = n;
	return 0;
}

static int read_salt(struct api_params *p, const json_t *value, const struct field *f,
		     struct api_error *error)
{
	size_t len = json_string_length(value);

	if (!json_is_string(value))
		return api_refuse(error, f->name, "`%s` has to be a string, not %s", f->name,
				  api_json_type(value));
	if (len == 0 || len > MAX_SALT_BYTES)
		return api_refuse(error, f->name, "`%s` has to have 1 to %d bytes, not %zu",
				  f->name, MAX_SALT_BYTES, len);
	if (p->request.salt)
		return api_refuse(error, f->name, "`cache_salt` and `salt` are the same field");
	p->request.salt = malloc(len);
	if (!p->request.salt)
		return api_no_memory(error);
	memcpy(p->request.salt, json_string_value(value), len);
	p->request.salt_len = len;
	return 0;
}

static int read_stream_options(struct api_params *p, const json_t *value, const struct field *f,
			       struct api_error *error)
{
	static const struct field inner = { "stream_options.include_usage",
					    BOTH,
					    NULL,
					    offsetof(struct api_params, include_usage),
					    0,
					    0 };
	const json_t *usage = json_object_get(value, "include_usage");

	if (!json_is_object(value))
		return api_refuse(error, f->name, "`%s` has to be an object, not %s", f->name,
				  api_json_type(value));
	return usage && !json_is_null(usage) ? read_bool(p, usage, &inner, error) : 0;
}

/* ---- what is not done ------------------------------------------------------------------------ */

enum neutral {
	IS_NULL,
	IS_ZERO,
	IS_ONE,
	IS_FALSE,
	IS_EMPTY,
	IS_TEXT_FORMAT,
	IS_NO_TOOL
};

static const struct {
	const char *name;
	unsigned kinds;
	enum neutral neutral;
	const char *right; /* what may stand there */
} undone[] = {
	{ "n", BOTH, IS_ONE, "1: a request gets one answer" },
	{ "best_of", BOTH, IS_ONE, "1: a request gets one answer" },
	{ "use_beam_search", BOTH, IS_FALSE, "false" },
	{ "echo", COMPLETION, IS_FALSE, "false: the prompt is not repeated" },
	{ "suffix", COMPLETION, IS_EMPTY, "empty: the worker only continues" },
	{ "logprobs", BOTH, IS_FALSE, "null or false: probabilities are not reported" },
	{ "top_logprobs", CHAT, IS_ZERO, "0: probabilities are not reported" },
	{ "prompt_logprobs", BOTH, IS_NULL, "null: probabilities are not reported" },
	{ "presence_penalty", BOTH, IS_ZERO, "0: there are no penalties" },
	{ "frequency_penalty", BOTH, IS_ZERO, "0: there are no penalties" },
	{ "repetition_penalty", BOTH, IS_ONE, "1: there are no penalties" },
	{ "repeat_penalty", BOTH, IS_ONE, "1: there are no penalties" },
	{ "logit_bias", BOTH, IS_EMPTY, "empty: there are no biases" },
	{ "bad_words", BOTH, IS_EMPTY, "empty: there are no biases" },
	{ "allowed_token_ids", BOTH, IS_NULL, "null: there are no biases" },
	{ "typical_p", BOTH, IS_ONE, "1: it is not done" },
	{ "mirostat", BOTH, IS_ZERO, "0: it is not done" },
	{ "min_tokens", BOTH, IS_ZERO, "0: the model ends where it ends, but for ignore_eos" },
	{ "stop_token_ids", BOTH, IS_EMPTY, "empty: use `stop`" },
	{ "include_stop_str_in_output", BOTH, IS_FALSE, "false" },
	{ "skip_special_tokens", BOTH, IS_NULL, "null: control tokens are never text" },
	{ "truncate_prompt_tokens", BOTH, IS_NULL, "null: prompts are taken whole or refused" },
	{ "response_format", BOTH, IS_TEXT_FORMAT, "{\"type\": \"text\"}" },
	{ "grammar", BOTH, IS_EMPTY, "empty: answers are free" },
	{ "json_schema", BOTH, IS_EMPTY, "empty: answers are free" },
	{ "guided_json", BOTH, IS_NULL, "null: answers are free" },
	{ "guided_regex", BOTH, IS_NULL, "null: answers are free" },
	{ "guided_choice", BOTH, IS_NULL, "null: answers are free" },
	{ "guided_grammar", BOTH, IS_NULL, "null: answers are free" },
	{ "structured_outputs", BOTH, IS_NULL, "null: answers are free" },
	{ "tools", CHAT, IS_EMPTY, "empty: this worker knows no tools" },
	{ "tool_choice", CHAT, IS_NO_TOOL, "none: this worker knows no tools" },
	{ "functions", CHAT, IS_EMPTY, "empty: this worker knows no tools" },
	{ "function_call", CHAT, IS_NO_TOOL, "none: this worker knows no tools" },
	{ "modalities", CHAT, IS_NULL, "null: this worker writes text only" },
	{ "audio", CHAT, IS_NULL, "null: this worker writes text only" },
	{ "chat_template", CHAT, IS_NULL, "null: the model's own is taken" },
	{ "chat_template_kwargs", CHAT, IS_EMPTY, "empty: the model's own is taken" },
	{ "continue_final_message", CHAT, IS_FALSE, "false: an answer is always a new message" },
};

static bool is_empty(const json_t *value)
{
	return (json_is_array(value) && json_array_size(value) == 0) ||
	       (json_is_object(value) && json_object_size(value) == 0) ||
	       (json_is_string(value) && json_string_length(value) == 0);
}

static bool is_neutral(const json_t *value, enum neutral neutral)
{
	const char *text = json_string_value(value);

	if (json_is_null(value))
		return true;
	switch (neutral) {
	case IS_ZERO:
	case IS_ONE:
		return json_is_number(value) &&
		       fabs(json_number_value(value) - (neutral == IS_ONE)) < 1e-12;
	case IS_FALSE:
		return json_is_false(value);
	case IS_EMPTY:
		return is_empty(value);
	case IS_TEXT_FORMAT:
		text = json_string_value(json_object_get(value, "type"));
		return text && strcmp(text, "text") == 0;
	case IS_NO_TOOL:
		return text && (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0);
	case IS_NULL:
	default:
		return false;
	}
}

/* ---- the tables ------------------------------------------------------------------------------ */

#define AT(member)      offsetof(struct api_params, member)
#define SAMPLING(which) offsetof(struct api_params, request.sampling.which)

/* The prompt comes last: what is cheap to refuse is refused first. */
static const struct field fields[] = {
	{ "model", BOTH, read_model, 0, 0, 0 },
	{ "stream", BOTH, read_bool, AT(stream), 0, 0 },
	{ "stream_options", BOTH, read_stream_options, 0, 0, 0 },
	{ "return_token_ids", BOTH, read_bool, AT(return_ids), 0, 0 },
	{ "max_tokens", BOTH, read_max_tokens, 0, 1, 2147483647 },
	{ "max_completion_tokens", CHAT, read_max_tokens, 0, 1, 2147483647 },
	{ "temperature", BOTH, read_float, SAMPLING(temperature), 0, 2 },
	{ "top_p", BOTH, read_float, SAMPLING(top_p), 0, 1 },
	{ "min_p", BOTH, read_float, SAMPLING(min_p), 0, 1 },
	{ "top_k", BOTH, read_int32, SAMPLING(top_k), -1, 2147483647 },
	{ "seed", BOTH, read_seed, 0, 0, 0 },
	{ "ignore_eos", BOTH, read_bool, AT(request.ignore_eos), 0, 0 },
	{ "cache_prompt", BOTH, read_bool, AT(request.use_cache), 0, 0 },
	{ "prefill_splits", BOTH, read_splits, 0, 0, 0 },
	{ "cache_salt", BOTH, read_salt, 0, 0, 0 },
	{ "salt", BOTH, read_salt, 0, 0, 0 },
	{ "stop", BOTH, read_stop, 0, 0, 0 },
	{ "prompt", COMPLETION, read_prompt, 0, 0, 0 },
	{ "messages", CHAT, read_messages, 0, 0, 0 },
};

static int check_undone(const json_t *body, unsigned kind, struct api_error *error)
{
	for (size_t i = 0; i < sizeof(undone) / sizeof(undone[0]); i++) {
		const json_t *value = json_object_get(body, undone[i].name);

		if (value && (undone[i].kinds & kind) && !is_neutral(value, undone[i].neutral))
			return api_refuse(error, undone[i].name, "`%s` has to be absent or %s",
					  undone[i].name, undone[i].right);
	}
	return 0;
}

int api_params_read(struct api_params *p, const json_t *body, struct api_error *error)
{
	unsigned kind = p->chat ? CHAT : COMPLETION;
	const char *what = p->chat ? "messages" : "prompt";
	int r;

	p->request = (struct engine_request){ .use_cache = true };
	p->request.sampling = (struct engine_sampling){ .top_p = 1.0f, .seed = UINT32_MAX };
	p->stream = p->include_usage = p->return_ids = false;
	r = check_undone(body, kind, error);
	for (size_t i = 0; r == 0 && i < sizeof(fields) / sizeof(fields[0]); i++) {
		const json_t *value = json_object_get(body, fields[i].name);

		/* null is what many clients send for a field they leave out */
		if (value && !json_is_null(value) && (fields[i].kinds & kind))
			r = fields[i].read(p, value, &fields[i], error);
	}
	if (r == 0 && !p->request.prompt)
		r = api_refuse(error, what, "`%s` is missing", what);
	if (r < 0) {
		engine_request_deinit(&p->request);
		return r;
	}
	if (!p->request.max_tokens)
		p->request.max_tokens = p->chat ? UINT32_MAX : DEFAULT_MAX_TOKENS;
	return 0;
}
