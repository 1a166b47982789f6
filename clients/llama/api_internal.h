/*
 * api_internal.h - what the API's own files share.
 */
#ifndef LLAMA_API_INTERNAL_H
#define LLAMA_API_INTERNAL_H

#include "clients/llama/api.h"
#include "clients/llama/engine.h"
#include "clients/llama/http.h"

#include <jansson.h>
#include <pthread.h>
#include <time.h>

enum api_state {
	API_STARTING,
	API_READY,
	API_STOPPING
};

struct api_call;
struct event;

struct api {
	struct api_options options;
	struct engine *engine;
	enum api_state state;
	size_t longest_token; /* bytes */
	time_t created;
	uint64_t id_prefix, n_ids;
	struct api_call *calls; /* all that the engine has not ended, doubly linked */

	uint64_t n_requests; /* HTTP requests of all kinds */
	uint64_t n_errors;   /* of them answered with 4xx or 5xx */

	int wake_fd;
	struct event *wake_ev;
	pthread_mutex_t lock;
	struct api_call *mail, **mail_tail; /* calls whose mailbox has something */
	bool engine_spoke;
	char engine_error[512]; /* empty: it is ready */
};

/* What a request is refused with. */
struct api_error {
	int status;
	const char *code; /* NULL: null */
	char param[96];   /* the field; empty: null */
	char message[400];
};

/* What a request says beside what the engine is asked. */
struct api_params {
	const struct api *api;
	struct engine_request request;
	bool chat;
	bool stream, include_usage, return_ids;
};

/* Sets *error and returns -EINVAL, for `return api_refuse(...)`. */
__attribute__((format(printf, 3, 4))) int api_refuse(struct api_error *error, const char *param,
						     const char *fmt, ...);
int api_no_memory(struct api_error *error);
/* Replies with an error object. */
void api_reply_error(struct api *api, struct http_exchange *x, const struct api_error *error);
/* Replies with a JSON object, which it gives back; NULL: out of memory. */
void api_reply_json(struct api *api, struct http_exchange *x, json_t *object);
/* {"error": {...}}; NULL: out of memory. */
json_t *api_error_object(const struct api_error *error);

/*
 * api_params.c: reads a completion's or chat's body.  0: *params is filled, its request is the
 * caller's to submit or deinit; negative: *error says which field is wrong, nothing is left behind.
 */
int api_params_read(struct api_params *params, const json_t *body, struct api_error *error);
/* api_prompt.c: fields that become the prompt.  0; negative, *error. */
int api_read_prompt(struct api_params *params, const json_t *value, struct api_error *error);
int api_read_messages(struct api_params *params, const json_t *value, struct api_error *error);
/* Tokens from an array of ids; *ret is malloc'd. */
int api_read_tokens(const struct api *api, const json_t *array, const char *name, int32_t **ret,
		    size_t *ret_n, struct api_error *error);
const char *api_json_type(const json_t *value);

/* api_call.c: hands the request to the engine; the reply follows.  Takes the params over. */
void api_call_start(struct api *api, struct http_exchange *x, struct api_params *params);
/* Empties the mailboxes. */
void api_calls_deliver(struct api *api);
/* Frees all calls; the engine and the exchanges are gone. */
void api_calls_drop(struct api *api);

/* api_json.c: NULL: out of memory. */
struct api_piece {
	const char *id; /* of the reply */
	time_t created;
	bool chat, return_ids, include_usage;
	const char *text;
	size_t text_len;
	const int32_t *tokens;
	size_t n_tokens;
	bool first;                         /* of a stream */
	const struct engine_result *result; /* of the last one; NULL: not yet */
};
json_t *api_json_chunk(const struct api *api, const struct api_piece *piece);
json_t *api_json_whole(const struct api *api, const struct api_piece *piece);
json_t *api_json_usage_chunk(const struct api *api, const struct api_piece *piece);

/* api_metrics.c: malloc'd text; NULL: out of memory. */
char *api_metrics(const struct api *api, size_t *ret_len);

#endif
