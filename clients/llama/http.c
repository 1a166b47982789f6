/*
 * http.c - see http.h.
 *
 * evhttp has no limit of connections and tells nobody about the end of one whose request never
 * came.  So every connection's bufferevent is made here and a reference to it is kept: evhttp takes
 * its callbacks off when it is done with one, which is how that end is seen.  The descriptor lives
 * as long as the bufferevent (BEV_OPT_CLOSE_ON_FREE), so no number is used twice meanwhile.
 *
 * While a request is worked on evhttp does not read, and would not see its peer go.  So reading is
 * switched on again, with no callback but the one for errors, as evhttp itself has it once the
 * reply began; what a peer sends ahead waits in the input buffer, up to a limit.
 *
 * When a peer goes before its reply is whole, evhttp lets go of the request and leaves it to us.
 */
#include "clients/llama/http.h"

#include "clients/llama/http_listen.h"
#include "clients/llama/say.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_HEADERS   16384
#define MAX_OUTPUT    ((size_t)1 << 20) /* bytes that a reader may be behind */
#define READ_SECONDS  60                /* for a request to come, from the reply before it */
#define STALL_SECONDS 30                /* for a reader to take anything at all */
#define TICK_MS       250 /* how often connections are looked at while there are some */
#define ALL_METHODS                                                                                \
	(EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | \
	 EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH)

struct connection {
	struct http *http;
	struct connection *next;
	struct bufferevent *bev; /* a reference of ours */
	struct http_exchange *exchange;
	uint64_t since_ms; /* it waits for a request; 0: a reply is due or under way */
};

struct http_exchange {
	struct http *http;
	struct connection *connection;
	struct evhttp_request *req;
	void (*on_gone)(void *data);
	void *data;
	bool overrun; /* given up: the reader was too far behind */
};

struct http {
	struct event_base *base;
	struct http_options options;
	struct evhttp *evhttp;
	struct evhttp_bound_socket *bound;
	struct event *tick_ev;
	struct connection *connections;
	uint32_t n_connections;
	bool paused, stopped;
	char where[160];
};

static uint64_t now_ms(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool connection_over(const struct connection *c)
{
	bufferevent_event_cb on_event;

	bufferevent_getcb(c->bev, NULL, NULL, &on_event, NULL);
	return on_event == NULL;
}

/* Forgets connections that are over and ends those whose request does not come. */
static void connections_look(struct http *http)
{
	uint64_t now = now_ms();

	for (struct connection **at = &http->connections; *at;) {
		struct connection *c = *at;

		if (connection_over(c)) {
			*at = c->next;
			http->n_connections--;
			(void)bufferevent_decref(c->bev); /* whether the last does not matter */
			free(c);
			continue;
		}
		if (c->since_ms && now - c->since_ms > READ_SECONDS * 1000u)
			(void)shutdown(bufferevent_getfd(c->bev), SHUT_RDWR);
		at = &c->next;
	}
}

static void accept_pause(struct http *http)
{
	if (http->bound && !http->paused &&
	    evconnlistener_disable(evhttp_bound_socket_get_listener(http->bound)) == 0)
		http->paused = true;
}

static void tick_arm(struct http *http)
{
	static const struct timeval tick = { .tv_usec = TICK_MS * 1000 };

	if (!evtimer_pending(http->tick_ev, NULL) && event_add(http->tick_ev, &tick) < 0)
		say("http: no memory for a timer");
}

static void on_tick(evutil_socket_t fd, short what, void *data)
{
	struct http *http = data;

	connections_look(http);
	if (http->bound && http->paused && http->n_connections < http->options.connections &&
	    evconnlistener_enable(evhttp_bound_socket_get_listener(http->bound)) == 0)
		http->paused = false;
	if (http->n_connections > 0 || http->paused)
		tick_arm(http);
}

/*
 * Takes no more of what a peer sends ahead while its reply is due; evhttp switches reading on with
 * the next request, whose body it limits itself.
 */
static void on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *data)
{
	struct connection *c = data;

	if (!c->since_ms &&
	    evbuffer_get_length(input) > c->http->options.max_body + 2 * MAX_HEADERS)
		(void)bufferevent_disable(c->bev, EV_READ);
}

/* evhttp asks for the bufferevent of a connection that it has just accepted. */
static struct bufferevent *on_connection(struct event_base *base, void *data)
{
	static const struct timeval stall = { .tv_sec = STALL_SECONDS };
	struct http *http = data;
	struct connection *c = calloc(1, sizeof(*c));
	struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);

	/* NULL: evhttp makes one itself, whose requests are refused below. */
	if (!c || !bev || !evbuffer_add_cb(bufferevent_get_input(bev), on_input, c)) {
		free(c);
		if (bev)
			bufferevent_free(bev);
		return NULL;
	}
	connections_look(http); /* before: this one has no callbacks yet, and would count as over */
	(void)bufferevent_set_timeouts(bev, NULL, &stall);
	bufferevent_incref(bev);
	*c = (struct connection){
		.http = http, .next = http->connections, .bev = bev, .since_ms = now_ms()
	};
	http->connections = c;
	if (++http->n_connections >= http->options.connections)
		accept_pause(http);
	tick_arm(http);
	return bev;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static void exchange_free(struct http_exchange *x)
{
	if (x->connection)
		x->connection->exchange = NULL;
	free(x);
}

/* evhttp is about to free the connection. */
static void on_close(struct evhttp_connection *evcon, void *data)
{
	struct connection *c = data;
	struct http_exchange *x = c->exchange;

	if (!x)
		return;
	/* A request that evhttp let go of has no connection any more, and is ours to free. */
	if (!evhttp_request_get_connection(x->req))
		evhttp_request_free(x->req);
	if (x->on_gone)
		x->on_gone(x->data);
	exchange_free(x);
}

/* The reply is with the kernel: the next request may come. */
static void on_complete(struct evhttp_request *req, void *data)
{
	struct connection *c = data;

	c->since_ms = now_ms();
}

static struct connection *connection_find(struct http *http, struct bufferevent *bev)
{
	struct connection *c = http->connections;

	while (c && c->bev != bev)
		c = c->next;
	return c;
}

/* Reads on, for the end of the connection only. */
static void watch_close(struct bufferevent *bev)
{
	bufferevent_data_cb on_write;
	bufferevent_event_cb on_event;
	void *arg;

	bufferevent_getcb(bev, NULL, &on_write, &on_event, &arg);
	bufferevent_setcb(bev, NULL, on_write, on_event, arg);
	(void)bufferevent_enable(bev, EV_READ); /* or its end is seen with the reply */
}

static void on_request(struct evhttp_request *req, void *data)
{
	struct http *http = data;
	struct evhttp_connection *evcon = evhttp_request_get_connection(req);
	struct connection *c = connection_find(http, evhttp_connection_get_bufferevent(evcon));
	struct http_exchange *x = c ? calloc(1, sizeof(*x)) : NULL;

	if (!x) {
		evhttp_send_error(req, 503, "Service Unavailable");
		return;
	}
	*x = (struct http_exchange){ .http = http, .connection = c, .req = req };
	c->exchange = x;
	c->since_ms = 0;
	evhttp_connection_set_closecb(evcon, on_close, c);
	evhttp_request_set_on_complete_cb(req, on_complete, c);
	watch_close(c->bev);
	http->options.on_request(http->options.data, x);
}

enum http_method http_method(const struct http_exchange *x)
{
	switch ((int)evhttp_request_get_command(x->req)) {
	case EVHTTP_REQ_GET:
		return HTTP_GET;
	case EVHTTP_REQ_POST:
		return HTTP_POST;
	default:
		return HTTP_OTHER;
	}
}

const char *http_path(const struct http_exchange *x)
{
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(x->req);
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;

	return path && *path ? path : "/";
}

const char *http_body(struct http_exchange *x, size_t *ret_len)
{
	struct evbuffer *body = evhttp_request_get_input_buffer(x->req);

	*ret_len = evbuffer_get_length(body);
	return *ret_len ? (const char *)evbuffer_pullup(body, -1) : "";
}

void http_on_gone(struct http_exchange *x, void (*on_gone)(void *data), void *data)
{
	x->on_gone = on_gone;
	x->data = data;
}

/* ---- replies --------------------------------------------------------------------------------- */

static const char *reason(int status)
{
	switch (status) {
	case 200:
		return "OK";
	case 400:
		return "Bad Request";
	case 404:
		return "Not Found";
	case 405:
		return "Method Not Allowed";
	case 413:
		return "Payload Too Large";
	case 429:
		return "Too Many Requests";
	case 500:
		return "Internal Server Error";
	default:
		return "Service Unavailable";
	}
}

void http_header(struct http_exchange *x, const char *name, const char *value)
{
	/* Without memory for it the reply lacks it: better than none. */
	(void)evhttp_add_header(evhttp_request_get_output_headers(x->req), name, value);
}

void http_reply(struct http_exchange *x, int status, const char *type, const char *body, size_t len)
{
	struct evhttp_request *req = x->req;

	http_header(x, "Content-Type", type);
	if (x->http->stopped)
		http_header(x, "Connection", "close");
	if (evhttp_request_get_command(req) != EVHTTP_REQ_HEAD &&
	    evbuffer_add(evhttp_request_get_output_buffer(req), body, len) < 0)
		status = 503;
	exchange_free(x);
	evhttp_send_reply(req, status, reason(status), NULL);
}

void http_stream_begin(struct http_exchange *x, const char *type)
{
	http_header(x, "Content-Type", type);
	http_header(x, "Cache-Control", "no-cache");
	/* HTTP/1.0 knows no chunks: there the end of the connection is the end of the reply. */
	if (x->http->stopped || x->req->major < 1 || (x->req->major == 1 && x->req->minor < 1))
		http_header(x, "Connection", "close");
	evhttp_send_reply_start(x->req, 200, "OK");
}

int http_stream_write(struct http_exchange *x, const char *bytes, size_t len)
{
	struct evbuffer *chunk;
	int r;

	if (x->overrun)
		return -ENOBUFS;
	if (evbuffer_get_length(bufferevent_get_output(x->connection->bev)) > MAX_OUTPUT) {
		x->overrun = true;
		(void)shutdown(bufferevent_getfd(x->connection->bev), SHUT_RDWR);
		return -ENOBUFS;
	}
	chunk = evbuffer_new();
	if (!chunk)
		return -ENOMEM;
	r = evbuffer_add(chunk, bytes, len) < 0 ? -ENOMEM : 0;
	if (r == 0)
		evhttp_send_reply_chunk(x->req, chunk);
	evbuffer_free(chunk);
	return r;
}

void http_stream_end(struct http_exchange *x)
{
	struct evhttp_request *req = x->req;

	exchange_free(x);
	evhttp_send_reply_end(req);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int start(struct http *http, char *why, size_t why_len)
{
	int fd, r = http_listen(http->options.listen, &fd, http->where, sizeof(http->where), why,
				why_len);

	if (r < 0)
		return r;
	snprintf(why, why_len, "out of memory");
	http->bound = evhttp_accept_socket_with_handle(http->evhttp, fd);
	if (!http->bound) {
		(void)close(fd);
		return -ENOMEM;
	}
	evhttp_set_bevcb(http->evhttp, on_connection, http);
	evhttp_set_gencb(http->evhttp, on_request, http);
	/* All known ones come to on_request(), to be refused with a word. */
	evhttp_set_allowed_methods(http->evhttp, ALL_METHODS);
	evhttp_set_max_headers_size(http->evhttp, MAX_HEADERS);
	/* Bodies that are too long are read up to here, so that their sender sees the reply. */
	evhttp_set_max_body_size(http->evhttp, (ev_ssize_t)(4 * http->options.max_body));
	(void)evhttp_set_flags(http->evhttp, EVHTTP_SERVER_LINGERING_CLOSE);
	evhttp_set_default_content_type(http->evhttp, NULL);
	return 0;
}

int http_new(struct event_base *base, const struct http_options *options, struct http **ret,
	     char *why, size_t why_len)
{
	struct http *http = calloc(1, sizeof(*http));
	int r = -ENOMEM;

	snprintf(why, why_len, "out of memory");
	if (!http)
		return r;
	http->base = base;
	http->options = *options;
	http->evhttp = evhttp_new(base);
	http->tick_ev = evtimer_new(base, on_tick, http);
	if (http->evhttp && http->tick_ev)
		r = start(http, why, why_len);
	if (r < 0) {
		(void)http_free(http);
		return r;
	}
	*ret = http;
	return 0;
}

void http_stop_listening(struct http *http)
{
	const char *path = http_listen_path(http->options.listen);

	http->stopped = true;
	if (!http->bound)
		return;
	evhttp_del_accept_socket(http->evhttp, http->bound);
	http->bound = NULL;
	if (path)
		(void)unlink(path); /* ours: nobody else could bind it meanwhile */
}

bool http_is_writing(const struct http *http)
{
	for (const struct connection *c = http->connections; c; c = c->next)
		if (!connection_over(c) &&
		    (c->exchange || evbuffer_get_length(bufferevent_get_output(c->bev)) > 0))
			return true;
	return false;
}

const char *http_where(const struct http *http)
{
	return http->where;
}

struct http *http_free(struct http *http)
{
	if (!http)
		return NULL;
	http_stop_listening(http);
	if (http->evhttp)
		evhttp_free(http->evhttp); /* its connections end, and their exchanges */
	while (http->connections) {
		struct connection *c = http->connections;

		http->connections = c->next;
		(void)bufferevent_decref(c->bev);
		free(c);
	}
	if (http->tick_ev)
		event_free(http->tick_ev);
	free(http);
	return NULL;
}
