/*
 * api.c - which request goes where, and the small answers.
 */
#include "clients/llama/api_internal.h"

#include "clients/llama/say.h"
#include "clients/llama/text.h"

#include <errno.h>
#include <event2/event.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define JSON_TYPE "application/json"

/* ---- errors ---------------------------------------------------------------------------------- */

int api_refuse(struct api_error *error, const char *param, const char *fmt, ...)
{
	va_list args;

	error->status = 400;
	snprintf(error->param, sizeof(error->param), "%s", param ? param : "");
	va_start(args, fmt);
	(void)vsnprintf(error->message, sizeof(error->message), fmt, args);
	va_end(args);
	return -EINVAL;
}

int api_no_memory(struct api_error *error)
{
	*error = (struct api_error){ .status = 503, .code = "no_memory" };
	snprintf(error->message, sizeof(error->message), "out of memory");
	return -ENOMEM;
}

json_t *api_error_object(const struct api_error *error)
{
	const char *type = error->status == 429  ? "rate_limit_error"
			   : error->status < 500 ? "invalid_request_error"
						 : "server_error";
	size_t len;
	/* A message may quote the request, cut in the middle of a character. */
	char *message = text_clean(error->message, strlen(error->message), &len);
	json_t *object = NULL;

	if (message)
		object = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message,
				   "type", type, "param", error->param[0] ? error->param : NULL,
				   "code", error->code);
	free(message);
	return object;
}

static void reply_object(struct api *api, struct http_exchange *x, int status, json_t *object)
{
	static const char none[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
				   "\"server_error\",\"param\":null,\"code\":\"no_memory\"}}";
	char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

	json_decref(object);
	if (!text)
		status = 503;
	api->n_errors += status >= 400;
	http_reply(x, status, JSON_TYPE, text ? text : none,
		   text ? strlen(text) : sizeof(none) - 1);
	free(text);
}

void api_reply_error(struct api *api, struct http_exchange *x, const struct api_error *error)
{
	reply_object(api, x, error->status, api_error_object(error));
}

void api_reply_json(struct api *api, struct http_exchange *x, json_t *object)
{
	reply_object(api, x, 200, object);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* The body as an object; NULL: *error says what it is instead. */
static json_t *body_object(struct api *api, struct http_exchange *x, struct api_error *error)
{
	json_error_t where;
	size_t len;
	const char *bytes = http_body(x, &len);
	json_t *object;

	if (len > api->options.max_body) {
		(void)api_refuse(error, NULL, "the body has %zu bytes, more than %zu (--max-body)",
				 len, api->options.max_body);
		error->status = 413;
		return NULL;
	}
	if (!bytes) {
		(void)api_no_memory(error);
		return NULL;
	}
	object = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &where);
	if (!object)
		(void)api_refuse(error, NULL, "the body is no JSON: %s, at byte %d", where.text,
				 where.position);
	else if (!json_is_object(object))
		(void)api_refuse(error, NULL, "the body has to be a JSON object, not %s",
				 api_json_type(object));
	if (json_is_object(object))
		return object;
	json_decref(object);
	return NULL;
}

static int optional_bool(const json_t *body, const char *name, bool *ret, struct api_error *error)
{
	const json_t *value = json_object_get(body, name);

	if (!value || json_is_null(value))
		return 0;
	if (!json_is_boolean(value))
		return api_refuse(error, name, "`%s` has to be true or false, not %s", name,
				  api_json_type(value));
	*ret = json_is_true(value);
	return 0;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void completion(struct api *api, struct http_exchange *x, bool chat)
{
	struct api_error error = { 0 };
	struct api_params params = { .api = api, .chat = chat };
	json_t *body = body_object(api, x, &error);
	int r = body ? api_params_read(&params, body, &error) : -EINVAL;

	json_decref(body);
	if (r < 0)
		api_reply_error(api, x, &error);
	else
		api_call_start(api, x, &params);
}

static void get_completion(struct api *api, struct http_exchange *x)
{
	completion(api, x, false);
}

static void get_chat(struct api *api, struct http_exchange *x)
{
	completion(api, x, true);
}

static json_t *tokens_object(const int32_t *tokens, size_t n)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < n; i++)
		if (json_array_append_new(array, json_integer(tokens[i])) < 0) {
			json_decref(array);
			return NULL;
		}
	return json_pack("{s:o, s:I}", "tokens", array, "count", (json_int_t)n);
}

static int tokenize(struct api *api, const json_t *body, json_t **ret, struct api_error *error)
{
	const json_t *content = json_object_get(body, "content");
	bool add_special = false, parse_special = true;
	int32_t *tokens;
	size_t n, most;
	int r;

	if (!json_is_string(content))
		return api_refuse(error, "content", "`content` has to be a string, not %s",
				  content ? api_json_type(content) : "absent");
	/* All streams wait meanwhile: no more text than a prompt may have, by its bytes. */
	most = (size_t)api->options.n_ctx * api->longest_token;
	if (json_string_length(content) > most)
		return api_refuse(
			error, "content",
			"`content` has %zu bytes, and no prompt that fits the context has "
			"more than %zu",
			json_string_length(content), most);
	if (optional_bool(body, "add_special", &add_special, error) < 0 ||
	    optional_bool(body, "parse_special", &parse_special, error) < 0)
		return -EINVAL;
	r = engine_tokenize(api->engine, json_string_value(content), json_string_length(content),
			    add_special, parse_special, &tokens, &n);
	if (r < 0)
		return api_no_memory(error);
	*ret = tokens_object(tokens, n);
	free(tokens);
	return 0;
}

static int detokenize(struct api *api, const json_t *body, json_t **ret, struct api_error *error)
{
	const json_t *array = json_object_get(body, "tokens");
	int32_t *tokens;
	char *text, *utf8;
	size_t n, len;
	int r;

	if (!json_is_array(array))
		return api_refuse(error, "tokens",
				  "`tokens` has to be an array of token ids, not %s",
				  array ? api_json_type(array) : "absent");
	if (api_read_tokens(api, array, "tokens", &tokens, &n, error) < 0)
		return -EINVAL;
	r = engine_detokenize(api->engine, tokens, n, &text, &len);
	free(tokens);
	if (r < 0)
		return api_no_memory(error);
	utf8 = text_clean(text, len, &len);
	free(text);
	if (!utf8)
		return api_no_memory(error);
	*ret = json_pack("{s:s%}", "content", utf8, len);
	free(utf8);
	return 0;
}

static void vocabulary(struct api *api, struct http_exchange *x,
		       int (*page)(struct api *, const json_t *, json_t **, struct api_error *))
{
	struct api_error error = { 0 };
	json_t *body = body_object(api, x, &error), *reply = NULL;
	int r = body ? page(api, body, &reply, &error) : -EINVAL;

	json_decref(body);
	if (r < 0)
		api_reply_error(api, x, &error);
	else
		api_reply_json(api, x, reply);
}

static void get_tokenize(struct api *api, struct http_exchange *x)
{
	vocabulary(api, x, tokenize);
}

static void get_detokenize(struct api *api, struct http_exchange *x)
{
	vocabulary(api, x, detokenize);
}

static void get_models(struct api *api, struct http_exchange *x)
{
	api_reply_json(api, x,
		       json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:I}]}", "object", "list", "data",
				 "id", api->options.model_name, "object", "model", "created",
				 (json_int_t)api->created, "owned_by", "prefixd-llama",
				 "max_model_len", (json_int_t)api->options.n_ctx));
}

static void get_health(struct api *api, struct http_exchange *x)
{
	api_reply_json(api, x, json_pack("{s:s}", "status", "ok"));
}

static void get_metrics(struct api *api, struct http_exchange *x)
{
	struct api_error error;
	size_t len;
	char *text = api_metrics(api, &len);

	if (text) {
		http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
	} else {
		(void)api_no_memory(&error);
		api_reply_error(api, x, &error);
	}
	free(text);
}

static const struct {
	const char *path;
	enum http_method method;
	bool always; /* also while the model is loaded or the worker stops */
	void (*get)(struct api *api, struct http_exchange *x);
} pages[] = {
	{ "/v1/completions", HTTP_POST, false, get_completion },
	{ "/v1/chat/completions", HTTP_POST, false, get_chat },
	{ "/v1/models", HTTP_GET, true, get_models },
	{ "/tokenize", HTTP_POST, false, get_tokenize },
	{ "/detokenize", HTTP_POST, false, get_detokenize },
	{ "/health", HTTP_GET, false, get_health },
	{ "/metrics", HTTP_GET, true, get_metrics },
};

static void reply_not_ready(struct api *api, struct http_exchange *x)
{
	bool starting = api->state == API_STARTING;
	struct api_error error = { .status = 503, .code = starting ? "loading" : "stopping" };

	snprintf(error.message, sizeof(error.message), "%s",
		 starting ? "the model is being loaded" : "this worker is being stopped");
	http_header(x, "Retry-After", "1");
	api_reply_error(api, x, &error);
}

void api_on_request(void *data, struct http_exchange *x)
{
	struct api *api = data;
	struct api_error error = { .status = 404, .code = "not_found" };

	api->n_requests++;
	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		if (strcmp(pages[i].path, http_path(x)) != 0)
			continue;
		if (http_method(x) != pages[i].method) {
			const char *right = pages[i].method == HTTP_GET ? "GET" : "POST";

			error = (struct api_error){ .status = 405, .code = "method_not_allowed" };
			snprintf(error.message, sizeof(error.message), "%s takes %s", pages[i].path,
				 right);
			http_header(x, "Allow", right);
			api_reply_error(api, x, &error);
		} else if (api->state != API_READY && !pages[i].always) {
			reply_not_ready(api, x);
		} else {
			pages[i].get(api, x);
		}
		return;
	}
	snprintf(error.message, sizeof(error.message),
		 "there is POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize and "
		 "GET /v1/models, /health, /metrics");
	api_reply_error(api, x, &error);
}

/* ---- life ------------------------------------------------------------------------------------ */

void api_on_engine_ready(void *data, const char *error)
{
	static const uint64_t one = 1;
	struct api *api = data;

	pthread_mutex_lock(&api->lock);
	api->engine_spoke = true;
	snprintf(api->engine_error, sizeof(api->engine_error), "%s", error ? error : "");
	pthread_mutex_unlock(&api->lock);
	if (write(api->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		say("the event loop cannot be woken: %m");
}

static void look_at_engine(struct api *api)
{
	char error[sizeof(api->engine_error)];
	bool spoke;

	pthread_mutex_lock(&api->lock);
	spoke = api->engine_spoke;
	api->engine_spoke = false;
	snprintf(error, sizeof(error), "%s", api->engine_error);
	pthread_mutex_unlock(&api->lock);
	if (!spoke)
		return;
	if (!error[0]) {
		api->longest_token = engine_longest_token(api->engine);
		if (api->state == API_STARTING)
			api->state = API_READY;
	}
	api->options.on_ready(api->options.data, error[0] ? error : NULL);
}

static void on_wake(evutil_socket_t fd, short what, void *data)
{
	struct api *api = data;
	uint64_t n;

	(void)!read(api->wake_fd, &n,
		    sizeof(n)); /* nothing there: woken for what is already done */
	look_at_engine(api);
	api_calls_deliver(api);
	if (api->state == API_STOPPING && !api->calls)
		api->options.on_idle(api->options.data);
}

int api_new(struct event_base *base, const struct api_options *options, struct api **ret)
{
	struct api *api = calloc(1, sizeof(*api));

	if (!api)
		return -ENOMEM;
	api->options = *options;
	api->created = time(NULL);
	api->mail_tail = &api->mail;
	(void)!getrandom(&api->id_prefix, sizeof(api->id_prefix),
			 0);                        /* only to tell replies apart */
	(void)pthread_mutex_init(&api->lock, NULL); /* plain ones do not fail here */
	api->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (api->wake_fd >= 0)
		api->wake_ev = event_new(base, api->wake_fd, EV_READ | EV_PERSIST, on_wake, api);
	if (!api->wake_ev || event_add(api->wake_ev, NULL) < 0) {
		(void)api_free(api);
		return -ENOMEM;
	}
	*ret = api;
	return 0;
}

struct api *api_free(struct api *api)
{
	if (!api)
		return NULL;
	/* The engine's last words, if nobody read them: their peers are gone by now. */
	api_calls_drop(api);
	if (api->wake_ev)
		event_free(api->wake_ev);
	if (api->wake_fd >= 0)
		(void)close(api->wake_fd);
	pthread_mutex_destroy(&api->lock);
	free(api);
	return NULL;
}

void api_set_engine(struct api *api, struct engine *engine)
{
	api->engine = engine;
}

void api_stop(struct api *api)
{
	static const uint64_t one = 1;

	api->state = API_STOPPING;
	(void)!write(api->wake_fd, &one, sizeof(one)); /* on_idle, if nothing runs */
}
