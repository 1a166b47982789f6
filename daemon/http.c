/*
 * http.c - see http.h.
 *
 * evhttp has no limit of connections and its timeout begins anew with every byte.  So every
 * connection's bufferevent is made here and a reference to it is kept with the time at which it
 * began: evhttp takes its callbacks off when it is done with one, which is how its end is seen.  A
 * connection whose time is over has its socket shut down, and evhttp finds it broken.  While the
 * reference is held the bufferevent still listens to its descriptor, so it must be the one to close
 * it (BEV_OPT_CLOSE_ON_FREE): a number that is used again would be read by two.  The peer does not
 * wait for that, since evhttp shuts the socket down for writing.
 */
#include "daemon/http.h"

#include "daemon/inherit.h"
#include "daemon/listener.h"
#include "daemon/log.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define UNIX_PREFIX "unix://"
#define TICK_MS     100 /* how often connections are looked at while there are some */
#define BACKLOG     64
#define ALL_METHODS                                                                                \
	(EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | \
	 EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH)

struct http_connection {
	struct bufferevent *bev; /* a reference of ours */
	uint64_t begun_ms;
};

struct prefixd_http {
	struct event_base *base;
	struct evhttp *evhttp;
	struct evconnlistener *accepting; /* evhttp's */
	struct prefixd_listener unix_;    /* lock and socket of a unix address */
	int fd;                           /* of a TCP address; -1 */
	struct event *tick_ev;
	prefixd_http_page page;
	void *ctx;
	struct http_connection connections[PREFIXD_HTTP_CONNECTIONS];
	uint32_t n_connections;
	bool paused;
	char where[160];
};

/* The one we have: evhttp keeps the argument of its listener's error callback to itself. */
static struct prefixd_http *the_http;

/* ---- addresses ------------------------------------------------------------------------------- */

const char *prefixd_http_unix_path(const char *address)
{
	size_t n = strlen(UNIX_PREFIX);

	return strncmp(address, UNIX_PREFIX, n) == 0 ? address + n : NULL;
}

/* Digits up to 65535, nothing else.  Return: 0, -EINVAL. */
static int port_parse(const char *text, uint16_t *ret)
{
	unsigned v = 0;

	if (!*text || strlen(text) > 5)
		return -EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return -EINVAL;
		v = v * 10 + (unsigned)(*text - '0');
	}
	if (v > UINT16_MAX)
		return -EINVAL;
	*ret = (uint16_t)v;
	return 0;
}

/* 127.x.y.z:PORT or [::1]:PORT.  Return: 0; -EINVAL: no address; -EPERM: one that others reach. */
static int loopback_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const char *colon = strrchr(text, ':');
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	char host[64];
	uint16_t port;
	size_t len;

	if (!colon || port_parse(colon + 1, &port) < 0)
		return -EINVAL;
	len = (size_t)(colon - text);
	if (len >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, len);
	host[len] = '\0';
	*ret = (struct sockaddr_storage){ 0 };
	if (inet_pton(AF_INET, host, &in.sin_addr) == 1) {
		if (ntohl(in.sin_addr.s_addr) >> 24 != 127)
			return -EPERM;
		in.sin_port = htons(port);
		memcpy(ret, &in, sizeof(in));
		*ret_len = sizeof(in);
		return 0;
	}
	if (len < 2 || host[0] != '[' || host[len - 1] != ']')
		return -EINVAL;
	host[len - 1] = '\0';
	if (inet_pton(AF_INET6, host + 1, &in6.sin6_addr) != 1)
		return -EINVAL;
	if (!IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr))
		return -EPERM;
	in6.sin6_port = htons(port);
	memcpy(ret, &in6, sizeof(in6));
	*ret_len = sizeof(in6);
	return 0;
}

int prefixd_http_address_check(const char *text, char *why, size_t why_len)
{
	const char *path = prefixd_http_unix_path(text);
	struct sockaddr_storage addr;
	socklen_t len;
	int r;

	if (!*text)
		return 0;
	if (path) {
		if (path[0] == '/' && strlen(path) <= 107)
			return 0;
		snprintf(why, why_len,
			 "http: '%s': give a path that begins with / and has at most 107 bytes, "
			 "such as unix:///run/prefixd/http.sock",
			 text);
		return -EINVAL;
	}
	r = loopback_parse(text, &addr, &len);
	if (r == -EPERM)
		snprintf(why, why_len,
			 "http: '%s' can be reached from other machines; give unix://PATH, "
			 "127.0.0.1:PORT or [::1]:PORT",
			 text);
	else if (r < 0)
		snprintf(why, why_len,
			 "http: '%s' is not an address; give unix://PATH, 127.0.0.1:PORT or "
			 "[::1]:PORT",
			 text);
	return r < 0 ? -EINVAL : 0;
}

const char *prefixd_http_where(const struct prefixd_http *http)
{
	return http->where;
}

/* ---- connections ----------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

static bool connection_over(const struct http_connection *c)
{
	bufferevent_event_cb on_event;

	bufferevent_getcb(c->bev, NULL, NULL, &on_event, NULL);
	return on_event == NULL;
}

/* Forgets connections that are over and ends those that take too long. */
static void connections_look(struct prefixd_http *http)
{
	uint64_t now = now_ms();

	for (uint32_t i = 0; i < http->n_connections;) {
		struct http_connection *c = &http->connections[i];

		if (connection_over(c)) {
			(void)bufferevent_decref(
				c->bev); /* whether it was the last does not matter */
			*c = http->connections[--http->n_connections];
			continue;
		}
		if (now - c->begun_ms > PREFIXD_HTTP_SECONDS * 1000u)
			(void)shutdown(bufferevent_getfd(c->bev), SHUT_RDWR); /* or it was over */
		i++;
	}
}

static void accept_pause(struct prefixd_http *http)
{
	if (!http->paused && evconnlistener_disable(http->accepting) == 0)
		http->paused = true;
}

static void tick_arm(struct prefixd_http *http)
{
	static const struct timeval tick = { .tv_usec = TICK_MS * 1000 };

	if (!evtimer_pending(http->tick_ev, NULL) && event_add(http->tick_ev, &tick) < 0)
		prefixd_error("http: no memory for a timer");
}

static void http_on_tick(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_http *http = ctx;

	connections_look(http);
	if (http->paused && http->n_connections < PREFIXD_HTTP_CONNECTIONS &&
	    evconnlistener_enable(http->accepting) == 0)
		http->paused = false;
	if (http->n_connections > 0 || http->paused)
		tick_arm(http);
}

/*
 * Takes no more of what nobody reads.  bufferevent_setwatermark() would do the same, but does not
 * look whether it got the memory for it.
 */
static void http_on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *ctx)
{
	if (evbuffer_get_length(input) > 2 * PREFIXD_HTTP_MAX_HEADERS)
		(void)bufferevent_disable(ctx, EV_READ); /* evhttp enables it with its next read */
}

/* evhttp asks for the bufferevent of a connection that it has just accepted. */
static struct bufferevent *http_on_connection(struct event_base *base, void *ctx)
{
	struct prefixd_http *http = ctx;
	struct bufferevent *bev;

	if (http->n_connections == PREFIXD_HTTP_CONNECTIONS)
		connections_look(http);
	bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
	/* Full cannot be, since accepting was paused; if it were, evhttp's own timeout is left. */
	if (!bev || http->n_connections == PREFIXD_HTTP_CONNECTIONS)
		return bev;
	/* More than evhttp waits for, and all that a peer can leave in one that is over. */
	if (!evbuffer_add_cb(bufferevent_get_input(bev), http_on_input, bev)) {
		bufferevent_free(bev);
		return NULL; /* evhttp makes one itself, or gives the connection up */
	}
	bufferevent_incref(bev);
	http->connections[http->n_connections++] = (struct http_connection){
		.bev = bev,
		.begun_ms = now_ms(),
	};
	if (http->n_connections == PREFIXD_HTTP_CONNECTIONS)
		accept_pause(http);
	tick_arm(http);
	return bev;
}

/* No descriptor left, most likely: wait, rather than be woken for the same peer at once. */
static void http_on_accept_error(struct evconnlistener *accepting, void *ctx)
{
	prefixd_error("http: a connection could not be accepted: %m");
	accept_pause(the_http);
	tick_arm(the_http);
}

/* ---- requests -------------------------------------------------------------------------------- */

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
	default:
		return "Service Unavailable";
	}
}

static void body_free(const void *bytes, size_t len, void *body)
{
	free(body);
}

/* Sends a reply; the body is given away. */
static void reply_send(struct evhttp_request *req, const struct prefixd_http_reply *reply)
{
	struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
	struct evbuffer *buf = evhttp_request_get_output_buffer(req);
	bool head = evhttp_request_get_command(req) == EVHTTP_REQ_HEAD;

	/* Without memory for one the reply is shorter, or the connection stays its time. */
	(void)evhttp_add_header(headers, "Connection", "close");
	(void)evhttp_add_header(headers, "Content-Type", reply->type);
	(void)evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
	if (reply->status == 405)
		(void)evhttp_add_header(headers, "Allow", "GET");
	if (head || !reply->body ||
	    evbuffer_add_reference(buf, reply->body, reply->len, body_free, reply->body) < 0)
		free(reply->body);
	evhttp_send_reply(req, reply->status, reason(reply->status), NULL);
}

static void text_reply(struct prefixd_http_reply *ret, int status, const char *text)
{
	*ret = (struct prefixd_http_reply){ .status = status,
					    .type = "text/plain; charset=utf-8",
					    .body = strdup(text),
					    .len = strlen(text) };
}

static void http_on_request(struct evhttp_request *req, void *ctx)
{
	struct prefixd_http *http = ctx;
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
	struct prefixd_http_reply reply;

	if (evhttp_request_get_command(req) != EVHTTP_REQ_GET)
		text_reply(&reply, 405, "Only GET is served here.\n");
	else if (!path)
		text_reply(&reply, 400, "The request names no page.\n");
	else if (!http->page(http->ctx, path,
			     evhttp_find_header(evhttp_request_get_input_headers(req), "Accept"),
			     &reply))
		text_reply(&reply, 404, "There is /metrics, /healthz and /readyz.\n");
	if (!reply.body)
		reply = (struct prefixd_http_reply){ .status = 503, .type = "text/plain" };
	reply_send(req, &reply);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int tcp_listen(struct prefixd_http *http, const char *address, char *why, size_t why_len)
{
	struct prefixd_listening have;
	struct sockaddr_storage addr;
	bool inherited;
	socklen_t len;
	int on = 1, r = loopback_parse(address, &addr, &len);

	if (r < 0) {
		snprintf(why, why_len, "http: '%s' is not a loopback address", address);
		return -EINVAL;
	}
	inherited = prefixd_inherit_take(address, &have);
	http->fd = inherited
			   ? have.fd
			   : socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (http->fd < 0 || setsockopt(http->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    (!inherited && (bind(http->fd, (struct sockaddr *)(void *)&addr, len) < 0 ||
			    listen(http->fd, BACKLOG) < 0)) ||
	    getsockname(http->fd, (struct sockaddr *)(void *)&addr, &len) < 0) {
		r = -errno;
		snprintf(why, why_len, "http: cannot serve %s: %s", address, strerror(-r));
		return r;
	}
	/* The port is at the same place for both families. */
	snprintf(http->where, sizeof(http->where), "%.*s:%u",
		 (int)(strrchr(address, ':') - address), address,
		 (unsigned)ntohs(((const struct sockaddr_in *)(const void *)&addr)->sin_port));
	return 0;
}

static int http_listen(struct prefixd_http *http, const char *address, mode_t mode, char *why,
		       size_t why_len)
{
	const char *path = prefixd_http_unix_path(address);
	int fd, r;

	if (path) {
		r = prefixd_listener_init(&http->unix_, http->base, path, mode, NULL, NULL, why,
					  why_len);
		snprintf(http->where, sizeof(http->where), "%s", address);
		fd = http->unix_.fd;
	} else {
		r = tcp_listen(http, address, why, why_len);
		fd = http->fd;
	}
	if (r < 0)
		return r;
	snprintf(why, why_len, "http: out of memory");
	http->accepting = evconnlistener_new(http->base, NULL, NULL, LEV_OPT_CLOSE_ON_EXEC, 0, fd);
	if (!http->accepting)
		return -ENOMEM;
	if (!evhttp_bind_listener(http->evhttp, http->accepting)) {
		evconnlistener_free(http->accepting);
		return -ENOMEM;
	}
	evconnlistener_set_error_cb(http->accepting, http_on_accept_error);
	/* evhttp does not look whether it could enable it; once more costs nothing. */
	return evconnlistener_enable(http->accepting) < 0 ? -ENOMEM : 0;
}

int prefixd_http_new(struct prefixd_http **ret_http, struct event_base *base, const char *address,
		     mode_t mode, prefixd_http_page page, void *ctx, char *why, size_t why_len)
{
	struct prefixd_http *http = calloc(1, sizeof(*http));
	int r = -ENOMEM;

	snprintf(why, why_len, "http: out of memory");
	if (!http)
		return r;
	http->base = base;
	http->fd = -1;
	http->page = page;
	http->ctx = ctx;
	http->evhttp = evhttp_new(base);
	http->tick_ev = evtimer_new(base, http_on_tick, http);
	if (http->evhttp && http->tick_ev) {
		evhttp_set_bevcb(http->evhttp, http_on_connection, http);
		evhttp_set_gencb(http->evhttp, http_on_request, http);
		/* All known ones come here, to be refused with a word about GET. */
		evhttp_set_allowed_methods(http->evhttp, ALL_METHODS);
		evhttp_set_max_headers_size(http->evhttp, PREFIXD_HTTP_MAX_HEADERS);
		evhttp_set_max_body_size(http->evhttp, PREFIXD_HTTP_MAX_BODY);
		evhttp_set_timeout(http->evhttp, PREFIXD_HTTP_SECONDS);
		evhttp_set_default_content_type(http->evhttp, NULL);
		r = http_listen(http, address, mode, why, why_len);
	}
	if (r < 0) {
		prefixd_http_free(http);
		return r;
	}
	the_http = http;
	*ret_http = http;
	return 0;
}

void prefixd_http_listening(const struct prefixd_http *http, const char *address,
			    struct prefixd_listening *ret)
{
	const struct prefixd_listener *l = &http->unix_;

	*ret = (struct prefixd_listening){ .fd = http->fd, .lock_fd = -1, .where = address };
	if (l->path)
		*ret = (struct prefixd_listening){
			.fd = l->fd, .lock_fd = l->lock_fd, .foreign = l->foreign, .where = l->path
		};
}

struct prefixd_http *prefixd_http_free(struct prefixd_http *http)
{
	if (!http)
		return NULL;
	if (the_http == http)
		the_http = NULL;
	if (http->evhttp)
		evhttp_free(http->evhttp); /* its listener and its connections, too */
	for (uint32_t i = 0; i < http->n_connections; i++)
		(void)bufferevent_decref(http->connections[i].bev);
	if (http->tick_ev)
		event_free(http->tick_ev);
	prefixd_listener_deinit(&http->unix_);
	if (http->fd >= 0)
		close(http->fd);
	free(http);
	return NULL;
}
