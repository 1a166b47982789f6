/*
 * api_call.c - a completion on its way: from the engine's thread to the peer.
 *
 * The engine puts tokens and text into the call's mailbox and the call into the list of those that
 * have mail; the loop empties the list.  What piled up meanwhile goes out as one chunk.  A call
 * ends when the engine said its last word; when its peer goes away first, the engine is told, and
 * the call waits for that word without an exchange.
 */
#include "clients/llama/api_internal.h"

#include "clients/llama/engine.h"
#include "clients/llama/say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DELIVER_BUDGET 256 /* calls a round */

struct mail {
	char *text;
	size_t text_len, text_cap;
	int32_t *tokens;
	size_t n_tokens, tokens_cap;
	bool failed; /* no memory: the rest is lost */
	bool ended;
	struct engine_result result;
};

struct api_call {
	struct api *api;
	struct api_call *next, **at;    /* among all calls */
	struct http_exchange *exchange; /* NULL: its peer went away */
	uint64_t job;
	char id[48];
	time_t created;
	bool chat, stream, include_usage, return_ids;
	bool begun; /* the stream's head went out */
	bool aborted;

	/* Under the api's lock. */
	struct mail mail;
	bool has_mail;
	struct api_call *next_mail;
};

static struct api_call *call_free(struct api_call *call)
{
	*call->at = call->next;
	if (call->next)
		call->next->at = call->at;
	free(call->mail.text);
	free(call->mail.tokens);
	free(call);
	return NULL;
}

static void call_abort(struct api_call *call)
{
	if (!call->aborted)
		engine_abort(call->api->engine, call->job);
	call->aborted = true;
}

/* ---- from the engine's thread ---------------------------------------------------------------- */

static int reserve(void **p, size_t *cap, size_t want, size_t size)
{
	size_t n = *cap ? *cap : 64;
	void *grown;

	if (want <= *cap)
		return 0;
	while (n < want)
		n *= 2;
	grown = realloc(*p, n * size);
	if (!grown)
		return -ENOMEM;
	*p = grown;
	*cap = n;
	return 0;
}

static void mail_text(struct mail *mail, const char *text, size_t len)
{
	void *p = mail->text;

	if (!len || mail->failed)
		return;
	mail->failed = reserve(&p, &mail->text_cap, mail->text_len + len, 1) < 0;
	mail->text = p;
	if (mail->failed)
		return;
	memcpy(mail->text + mail->text_len, text, len);
	mail->text_len += len;
}

static void mail_token(struct mail *mail, int32_t token)
{
	void *p = mail->tokens;

	if (mail->failed)
		return;
	mail->failed = reserve(&p, &mail->tokens_cap, mail->n_tokens + 1, sizeof(token)) < 0;
	mail->tokens = p;
	if (!mail->failed)
		mail->tokens[mail->n_tokens++] = token;
}

/* Called with the lock.  Return: whether the loop has to be woken. */
static bool mail_sent(struct api_call *call)
{
	struct api *api = call->api;
	bool first = !api->mail;

	if (call->has_mail)
		return false;
	call->has_mail = true;
	*api->mail_tail = call;
	api->mail_tail = &call->next_mail;
	return first;
}

static void wake(struct api *api)
{
	static const uint64_t one = 1;

	if (write(api->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		say("the event loop cannot be woken: %m");
}

static void on_token(void *data, int32_t token, const char *text, size_t len)
{
	struct api_call *call = data;
	bool first = false;

	pthread_mutex_lock(&call->api->lock);
	mail_token(&call->mail, token);
	mail_text(&call->mail, text, len);
	if (call->stream || call->mail.failed)
		first = mail_sent(call);
	pthread_mutex_unlock(&call->api->lock);
	if (first)
		wake(call->api);
}

static void on_end(void *data, const struct engine_result *result)
{
	struct api_call *call = data;
	struct api *api = call->api; /* the loop may free the call when the lock is gone */
	bool first;

	pthread_mutex_lock(&api->lock);
	mail_text(&call->mail, result->text, result->text_len);
	call->mail.result = *result;
	call->mail.result.text = NULL;
	call->mail.result.text_len = 0;
	call->mail.ended = true;
	first = mail_sent(call);
	pthread_mutex_unlock(&api->lock);
	if (first)
		wake(api);
}

/* ---- on the loop's thread -------------------------------------------------------------------- */

static void on_gone(void *data)
{
	struct api_call *call = data;

	call->exchange = NULL;
	call_abort(call);
}

/* Sends an event; the object is given back. */
static int send_event(struct api_call *call, json_t *object)
{
	char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	int r = -ENOMEM;

	json_decref(object);
	if (text) {
		size_t len = strlen(text);
		char *event = malloc(len + 9);

		if (event) {
			memcpy(event, "data: ", 6);
			memcpy(event + 6, text, len);
			memcpy(event + 6 + len, "\n\n", 2);
			r = http_stream_write(call->exchange, event, len + 8);
			free(event);
		}
	}
	free(text);
	return r;
}

static void error_of(const struct mail *mail, struct api_error *ret)
{
	*ret = (struct api_error){ .status = 500 };
	if (mail->failed)
		(void)api_no_memory(ret);
	else if (mail->result.finish == ENGINE_FINISH_ABORT) {
		ret->status = 503;
		ret->code = "stopping";
		snprintf(ret->message, sizeof(ret->message), "this worker is being stopped");
	} else {
		ret->code = "engine_error";
		snprintf(ret->message, sizeof(ret->message), "the engine failed: %s",
			 mail->result.error ? mail->result.error : "no reason given");
	}
}

static bool went_well(const struct mail *mail)
{
	return !mail->failed && (!mail->ended || mail->result.finish == ENGINE_FINISH_STOP ||
				 mail->result.finish == ENGINE_FINISH_LENGTH);
}

static struct api_piece piece_of(const struct api_call *call, const struct mail *mail)
{
	return (struct api_piece){ .id = call->id,
				   .created = call->created,
				   .chat = call->chat,
				   .return_ids = call->return_ids,
				   .include_usage = call->include_usage,
				   .text = mail->text ? mail->text : "",
				   .text_len = mail->text_len,
				   .tokens = mail->tokens,
				   .n_tokens = mail->n_tokens,
				   .first = !call->begun,
				   .result = mail->ended ? &mail->result : NULL };
}

/* Takes leave of the peer; the engine may still be at it. */
static void call_part(struct api_call *call)
{
	http_on_gone(call->exchange, NULL, NULL);
	call->exchange = NULL;
}

static void deliver_stream(struct api_call *call, const struct mail *mail)
{
	static const char done[] = "data: [DONE]\n\n";
	struct api_piece piece = piece_of(call, mail);
	struct http_exchange *x = call->exchange;
	struct api_error error;
	int r = 0;

	if (!went_well(mail)) {
		error_of(mail, &error);
		call_abort(call);
		if (call->begun)
			r = send_event(call, api_error_object(&error));
		call_part(call);
		if (call->begun)
			http_stream_end(x); /* without [DONE]: the answer is not whole */
		else
			api_reply_error(call->api, x, &error);
		return;
	}
	if (!call->begun)
		http_stream_begin(x, "text/event-stream; charset=utf-8");
	/* Bytes held back for a whole character are no news yet. */
	if (mail->text_len || mail->ended || call->return_ids || (call->chat && !call->begun))
		r = send_event(call, api_json_chunk(call->api, &piece));
	call->begun = true;
	if (r == 0 && mail->ended && call->include_usage)
		r = send_event(call, api_json_usage_chunk(call->api, &piece));
	if (r == 0 && mail->ended)
		r = http_stream_write(x, done, sizeof(done) - 1);
	if (r < 0)
		call_abort(call);
	if (r == -ENOMEM || mail->ended) {
		call_part(call);
		http_stream_end(x);
	}
}

static void deliver_whole(struct api_call *call, const struct mail *mail)
{
	struct api_piece piece = piece_of(call, mail);
	struct http_exchange *x = call->exchange;
	struct api_error error;

	call_part(call);
	if (went_well(mail)) {
		api_reply_json(call->api, x, api_json_whole(call->api, &piece));
		return;
	}
	error_of(mail, &error);
	call_abort(call);
	api_reply_error(call->api, x, &error);
}

/* Takes the first call that has mail, and its mail, in one: it may get more at once. */
static struct api_call *mail_take(struct api *api, struct mail *ret)
{
	struct api_call *call;

	pthread_mutex_lock(&api->lock);
	call = api->mail;
	if (call) {
		api->mail = call->next_mail;
		if (!api->mail)
			api->mail_tail = &api->mail;
		call->has_mail = false;
		call->next_mail = NULL;
		*ret = call->mail;
		/* A whole reply is collected until its end: only that puts it into the list. */
		call->mail = (struct mail){ .failed = ret->failed };
	}
	pthread_mutex_unlock(&api->lock);
	return call;
}

void api_calls_deliver(struct api *api)
{
	struct api_call *call;
	struct mail mail;

	for (int n = 0; (call = mail_take(api, &mail)); n++) {
		if (call->exchange && call->stream)
			deliver_stream(call, &mail);
		else if (call->exchange)
			deliver_whole(call, &mail);
		free(mail.text);
		free(mail.tokens);
		if (mail.ended)
			call_free(call);
		if (n == DELIVER_BUDGET) {
			wake(api); /* the rest in the loop's next round */
			return;
		}
	}
}

static void refuse_submit(struct api *api, struct http_exchange *x, int r)
{
	struct api_error error = { .status = 503, .code = "stopping" };
	struct engine_stats stats;

	snprintf(error.message, sizeof(error.message), "this worker is being stopped");
	if (r == -EBUSY) {
		engine_get_stats(api->engine, &stats);
		error.status = 429;
		error.code = "queue_full";
		snprintf(error.message, sizeof(error.message),
			 "all %u slots are busy and %u requests wait: try again later",
			 stats.n_slots, stats.n_waiting);
		http_header(x, "Retry-After", "1");
	} else if (r == -ENOMEM) {
		(void)api_no_memory(&error);
	}
	api_reply_error(api, x, &error);
}

void api_call_start(struct api *api, struct http_exchange *x, struct api_params *p)
{
	struct api_call *call = calloc(1, sizeof(*call));
	int r = call ? 0 : -ENOMEM;

	if (call) {
		*call = (struct api_call){ .api = api,
					   .next = api->calls,
					   .at = &api->calls,
					   .exchange = x,
					   .created = time(NULL),
					   .chat = p->chat,
					   .stream = p->stream,
					   .include_usage = p->include_usage,
					   .return_ids = p->return_ids };
		snprintf(call->id, sizeof(call->id), "%s-%016" PRIx64 "%08" PRIx64,
			 p->chat ? "chatcmpl" : "cmpl", api->id_prefix, ++api->n_ids);
		if (api->calls)
			api->calls->at = &call->next;
		api->calls = call;
		p->request.on_token = on_token;
		p->request.on_end = on_end;
		p->request.data = call;
		r = engine_submit(api->engine, &p->request, &call->job);
	}
	if (r < 0) {
		if (call)
			call_free(call);
		engine_request_deinit(&p->request);
		refuse_submit(api, x, r);
		return;
	}
	http_on_gone(x, on_gone, call);
}

void api_abort_all(struct api *api)
{
	for (struct api_call *call = api->calls; call; call = call->next)
		call_abort(call);
}

void api_calls_drop(struct api *api)
{
	while (api->calls)
		call_free(api->calls);
}
