/*
 * api_prompt.c - the fields that become the prompt: text, token ids, or a conversation.
 */
#include "clients/llama/api_internal.h"

#include "clients/llama/chat.h"
#include "clients/llama/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MESSAGES 4096

const char *api_json_type(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number that is not an integer";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_NULL:
	default:
		return "null";
	}
}

int api_read_tokens(const struct api *api, const json_t *array, const char *name, int32_t **ret,
		    size_t *ret_n, struct api_error *error)
{
	size_t n = json_array_size(array);
	uint32_t n_vocab = engine_n_vocab(api->engine);
	int32_t *tokens = malloc((n ? n : 1) * sizeof(*tokens));
	char where[64];

	if (!tokens)
		return api_no_memory(error);
	for (size_t i = 0; i < n; i++) {
		const json_t *item = json_array_get(array, i);
		json_int_t token = json_integer_value(item);

		if (!json_is_integer(item) || token < 0 || token >= (json_int_t)n_vocab) {
			free(tokens);
			snprintf(where, sizeof(where), "%s[%zu]", name, i);
			if (!json_is_integer(item))
				return api_refuse(error, where, "`%s` has to be a token id, not %s",
						  where, api_json_type(item));
			return api_refuse(error, where,
					  "`%s` has to be a token id from 0 to %u, not %lld", where,
					  n_vocab - 1, (long long)token);
		}
		tokens[i] = (int32_t)token;
	}
	*ret = tokens;
	*ret_n = n;
	return 0;
}

/* One way to say it for all prompts that are too long. */
static int refuse_length(const struct api_params *p, const char *param, bool at_least, size_t n,
			 struct api_error *error)
{
	error->code = "context_length_exceeded";
	return api_refuse(error, param,
			  "the prompt has %s%zu tokens, and this worker's context holds %u (--ctx)",
			  at_least ? "at least " : "", n, p->api->options.n_ctx);
}

static int check_length(const struct api_params *p, const char *param, struct api_error *error)
{
	if (p->request.n_prompt == 0)
		return api_refuse(error, param, "the prompt is empty: it needs one token at least");
	if (p->request.n_prompt > p->api->options.n_ctx)
		return refuse_length(p, param, false, p->request.n_prompt, error);
	return 0;
}

static int tokenize(struct api_params *p, const char *param, const char *text, size_t len,
		    struct api_error *error)
{
	/* So long that it cannot fit: not worth the time, which all streams would wait for. */
	size_t least = len / p->api->longest_token;
	int r;

	if (least > p->api->options.n_ctx)
		return refuse_length(p, param, true, least, error);
	r = engine_tokenize(p->api->engine, text, len, true, true, &p->request.prompt,
			    &p->request.n_prompt);
	return r < 0 ? api_no_memory(error) : check_length(p, param, error);
}

int api_read_prompt(struct api_params *p, const json_t *value, struct api_error *error)
{
	int r;

	if (json_is_string(value))
		return tokenize(p, "prompt", json_string_value(value), json_string_length(value),
				error);
	if (!json_is_array(value))
		return api_refuse(error, "prompt",
				  "`prompt` has to be a string or an array of token ids, not %s",
				  api_json_type(value));
	if (json_is_string(json_array_get(value, 0)) || json_is_array(json_array_get(value, 0)))
		return api_refuse(
			error, "prompt",
			"`prompt` is an array of prompts; this worker takes one a request");
	r = api_read_tokens(p->api, value, "prompt", &p->request.prompt, &p->request.n_prompt,
			    error);
	return r < 0 ? r : check_length(p, "prompt", error);
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Text parts in a row are one text; malloc'd. */
static int read_parts(const json_t *parts, const char *where, char **ret, struct api_error *error)
{
	size_t len = 0, at = 0;
	char part[96], *text;

	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *item = json_array_get(parts, i);
		const char *type = json_string_value(json_object_get(item, "type"));

		snprintf(part, sizeof(part), "%s[%zu]", where, i);
		if (!type || strcmp(type, "text") != 0)
			return api_refuse(
				error, part,
				"`%s` has to be {\"type\": \"text\", \"text\": ...}: this "
				"worker reads text only",
				part);
		if (!json_is_string(json_object_get(item, "text")))
			return api_refuse(error, part, "`%s.text` has to be a string", part);
		len += json_string_length(json_object_get(item, "text"));
	}
	text = malloc(len + 1);
	if (!text)
		return api_no_memory(error);
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *item = json_object_get(json_array_get(parts, i), "text");

		memcpy(text + at, json_string_value(item), json_string_length(item));
		at += json_string_length(item);
	}
	text[at] = '\0';
	*ret = text;
	return 0;
}

static int read_content(const json_t *content, const char *where, char **ret,
			struct api_error *error)
{
	if (json_is_string(content)) {
		*ret = strdup(json_string_value(content));
		return *ret ? 0 : api_no_memory(error);
	}
	if (json_is_array(content))
		return read_parts(content, where, ret, error);
	return api_refuse(error, where, "`%s` has to be a string or an array of text parts, not %s",
			  where, content ? api_json_type(content) : "absent");
}

static int read_message(const json_t *item, size_t i, struct chat_message *ret, char **ret_content,
			struct api_error *error)
{
	static const char *const roles[] = { "system", "user", "assistant" };
	static const char *const refused[] = { "tool_calls", "function_call", "tool_call_id" };
	const char *role;
	char where[64];

	snprintf(where, sizeof(where), "messages[%zu]", i);
	if (!json_is_object(item))
		return api_refuse(error, where, "`%s` has to be an object, not %s", where,
				  api_json_type(item));
	for (size_t k = 0; k < sizeof(refused) / sizeof(refused[0]); k++) {
		const json_t *value = json_object_get(item, refused[k]);

		snprintf(where, sizeof(where), "messages[%zu].%s", i, refused[k]);
		if (value && !json_is_null(value))
			return api_refuse(error, where, "`%s`: this worker knows no tools", where);
	}
	snprintf(where, sizeof(where), "messages[%zu].role", i);
	role = json_string_value(json_object_get(item, "role"));
	ret->role = NULL;
	for (size_t k = 0; role && k < sizeof(roles) / sizeof(roles[0]); k++)
		if (strcmp(role, roles[k]) == 0)
			ret->role = roles[k];
	if (!ret->role)
		return api_refuse(error, where, "`%s` has to be system, user or assistant", where);
	snprintf(where, sizeof(where), "messages[%zu].content", i);
	if (read_content(json_object_get(item, "content"), where, ret_content, error) < 0)
		return -EINVAL;
	ret->content = *ret_content;
	return 0;
}

static int render(struct api_params *p, const struct chat_message *messages, size_t n,
		  struct api_error *error)
{
	const char *template = engine_chat_template(p->api->engine);
	size_t len;
	char *text;
	int r;

	error->code = "no_chat_template";
	if (!template)
		return api_refuse(error, "messages",
				  "this model has no chat template: use /v1/completions with a "
				  "prompt of your own");
	r = chat_render(template, messages, n, &text, &len);
	if (r == -ENOTSUP)
		return api_refuse(error, "messages",
				  "libllama does not know this model's chat template: use "
				  "/v1/completions with a prompt of your own");
	error->code = NULL;
	if (r < 0)
		return api_no_memory(error);
	r = tokenize(p, "messages", text, len, error);
	free(text);
	return r;
}

int api_read_messages(struct api_params *p, const json_t *value, struct api_error *error)
{
	size_t n = json_array_size(value);
	struct chat_message *messages;
	char **contents;
	int r = 0;

	if (!json_is_array(value) || n == 0)
		return api_refuse(error, "messages",
				  "`messages` has to be an array of one message at least, not %s",
				  json_is_array(value) ? "empty" : api_json_type(value));
	if (n > MAX_MESSAGES)
		return api_refuse(error, "messages", "`messages` has %zu messages, more than %d", n,
				  MAX_MESSAGES);
	messages = calloc(n, sizeof(*messages));
	contents = calloc(n, sizeof(*contents));
	if (!messages || !contents)
		r = api_no_memory(error);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = read_message(json_array_get(value, i), i, &messages[i], &contents[i], error);
	if (r == 0)
		r = render(p, messages, n, error);
	for (size_t i = 0; contents && i < n; i++)
		free(contents[i]);
	free(contents);
	free(messages);
	return r;
}
