/*
 * http.h - HTTP/1.1 on a loopback address or a unix socket: requests in, replies out.
 *
 * evhttp does the protocol.  This adds what it lacks: a limit of connections, an end for requests
 * that never become whole, for readers that do not read and for input nobody asked for, and the
 * news that a peer went away before its reply began.  One thread, the event loop's, does it all.
 */
#ifndef LLAMA_HTTP_H
#define LLAMA_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;
struct http;

/*
 * One request and its reply.  Whoever gets it replies exactly once, with http_reply() or with
 * http_stream_begin() ... http_stream_end(); after that, or after on_gone, it is gone.
 */
struct http_exchange;

struct http_options {
	const char *listen;
	uint32_t connections;
	size_t max_body;
	void (*on_request)(void *data, struct http_exchange *exchange);
	void *data;
};

enum http_method {
	HTTP_GET,
	HTTP_POST,
	HTTP_OTHER
};

/* 0; negative errno, `why` says what is wrong. */
int http_new(struct event_base *base, const struct http_options *options, struct http **ret,
	     char *why, size_t why_len);
/* Every exchange must have been replied to, or it is gone without on_gone. */
struct http *http_free(struct http *http);
/* Takes no more connections; those that are there go on. */
void http_stop_listening(struct http *http);
/* Replies that are not yet with the kernel. */
bool http_is_writing(const struct http *http);
/* 127.0.0.1:PORT with the port it got, or unix:PATH. */
const char *http_where(const struct http *http);

enum http_method http_method(const struct http_exchange *exchange);
const char *http_path(const struct http_exchange *exchange);
/* The body, valid as long as the exchange; NULL: out of memory. */
const char *http_body(struct http_exchange *exchange, size_t *ret_len);
/* Called when the peer went away; the exchange is gone with it. */
void http_on_gone(struct http_exchange *exchange, void (*on_gone)(void *data), void *data);

/* A further header of the reply. */
void http_header(struct http_exchange *exchange, const char *name, const char *value);
/* Copies the body. */
void http_reply(struct http_exchange *exchange, int status, const char *type, const char *body,
		size_t len);
void http_stream_begin(struct http_exchange *exchange, const char *type);
/* 0; -ENOBUFS: the peer reads so slowly that it was given up: on_gone follows; -ENOMEM. */
int http_stream_write(struct http_exchange *exchange, const char *bytes, size_t len);
void http_stream_end(struct http_exchange *exchange);

#endif
