/*
 * api.h - the OpenAI-style HTTP API on top of the engine; API.md describes it for users.
 *
 * All of it runs on the event loop's thread, but for the engine's callbacks: those put what they
 * bring into a call's mailbox under a lock and wake the loop by an eventfd.
 */
#ifndef LLAMA_API_H
#define LLAMA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api;
struct engine;
struct event_base;
struct http_exchange;

struct api_options {
	const char *model_name; /* borrowed */
	uint32_t n_ctx;
	size_t max_body;
	/* The engine is ready, or `error` says why it never will be; on the loop's thread. */
	void (*on_ready)(void *data, const char *error);
	/* No call is left, after api_stop(). */
	void (*on_idle)(void *data);
	void *data;
};

/* 0; negative errno. */
int api_new(struct event_base *base, const struct api_options *options, struct api **ret);
/* The engine must be gone, and with it the calls. */
struct api *api_free(struct api *api);
void api_set_engine(struct api *api, struct engine *engine);
/* engine_hooks' on_ready; data is the api. */
void api_on_engine_ready(void *data, const char *error);
/* http_options' on_request; data is the api. */
void api_on_request(void *data, struct http_exchange *exchange);

/* Refuses new requests from now on. */
void api_stop(struct api *api);
void api_abort_all(struct api *api);

#endif
