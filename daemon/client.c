/*
 * client.c - from a socket and a process to a session of the engine.
 *
 *     accept -> SESSION_OPENED -> FRAME... -> SESSION_EOF -> PROCESS_GONE
 *                                  socket ends ^              ^ the pidfd says so
 *
 * The end of the socket and the end of the process are two things: a worker may close its socket
 * while its device still writes, and a child of a dead worker may hold the socket open.  So both
 * are watched, each is told to the engine once, and the number is reused only after FORGET.
 */
#include "daemon/server_internal.h"

#include "daemon/log.h"
#include "daemon/peer.h"
#include "daemon/tiers_internal.h"

#include <event2/event.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define LAST_WORDS_MAX (4u << 20) /* bytes read after a process has ended */
#define ASK_SECONDS    1

struct prefixd_client *prefixd_client_find(struct prefixd_server *s, uint32_t session)
{
	return session < s->n_clients ? s->clients[session] : NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void client_free(struct prefixd_client *c)
{
	radix_list_remove(&c->link);
	if (c->connected)
		prefixd_conn_deinit(&c->conn);
	if (c->pid_ev)
		event_free(c->pid_ev);
	if (c->hello_ev)
		event_free(c->hello_ev);
	if (c->pidfd >= 0)
		close(c->pidfd);
	prefixd_words_deinit(&c->words);
	c->server->clients[c->session] = NULL;
	free(c);
}

void prefixd_clients_reap(struct prefixd_server *s)
{
	while (!radix_list_empty(&s->graveyard))
		client_free(radix_list_first(&s->graveyard, struct prefixd_client, link));
}

void prefixd_clients_free(struct prefixd_server *s)
{
	for (uint32_t i = 0; i < s->n_clients; i++)
		if (s->clients[i])
			client_free(s->clients[i]);
	free(s->clients);
	s->clients = NULL;
	s->n_clients = 0;
}

static void client_bury(struct prefixd_client *c)
{
	if (c->forgotten && !c->connected && !radix_list_linked(&c->link))
		radix_list_add_tail(&c->server->graveyard, &c->link);
}

void prefixd_client_forget(struct prefixd_client *c)
{
	c->forgotten = true;
	if (c->pid_ev)
		(void)event_del(c->pid_ev); /* it is in the base; cannot fail */
	client_bury(c);
}

/* With the number i, which is free. */
static struct prefixd_client *client_at(struct prefixd_server *s, uint32_t i)
{
	struct prefixd_client *c;

	if (i >= s->n_clients) {
		uint32_t n = s->n_clients ? s->n_clients * 2 : 16;
		struct prefixd_client **v;

		while (n <= i)
			n *= 2;
		v = realloc(s->clients, n * sizeof(struct prefixd_client *));
		if (!v)
			return NULL;
		memset(v + s->n_clients, 0, (n - s->n_clients) * sizeof(struct prefixd_client *));
		s->clients = v;
		s->n_clients = n;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->server = s;
	c->session = i;
	c->pidfd = -1;
	radix_list_init(&c->link);
	prefixd_words_init(&c->words, &s->parking, s->options->max_frame);
	s->clients[i] = c;
	return c;
}

/* The lowest free number: engines and people like small ones. */
static struct prefixd_client *client_new(struct prefixd_server *s)
{
	uint32_t i = 0;

	prefixd_clients_reap(s);
	while (i < s->n_clients && s->clients[i])
		i++;
	return client_at(s, i);
}

static void client_tell(struct prefixd_client *c, enum prefixd_event_type type)
{
	struct prefixd_event event = { .type = type, .session = c->session };

	prefixd_server_step(c->server, &event);
}

/* Both ends are told once, and not at all after FORGET.  What is parked by then is of no use. */
static void client_tell_eof(struct prefixd_client *c)
{
	prefixd_words_end(&c->words, prefixd_now_ns());
	if (c->ended || c->gone || c->forgotten)
		return;
	c->ended = true;
	client_tell(c, PREFIXD_EVENT_SESSION_EOF);
}

static void client_tell_gone(struct prefixd_client *c)
{
	prefixd_words_end(&c->words, prefixd_now_ns());
	if (c->gone || c->forgotten)
		return;
	c->gone = true;
	client_tell(c, PREFIXD_EVENT_PROCESS_GONE);
}

/* ---- callbacks ------------------------------------------------------------------------------- */

/*
 * QUIESCED speaks for sessions of the same process whose socket has ended. Of a worker that closed
 * one and came back with another the loop may hear the new one first: so ends that are there
 * already are heard before.
 */
static void client_hear_ends(struct prefixd_client *asking)
{
	struct prefixd_server *s = asking->server;

	if (s->hearing || asking->peer.pid == 0)
		return;
	s->hearing = true; /* what the others said last may be the same */
	for (uint32_t i = 0; i < s->n_clients; i++) {
		struct prefixd_client *c = s->clients[i];
		struct pollfd p = { .events = POLLRDHUP };

		if (!c || c == asking || !c->connected || c->ended || c->gone ||
		    c->peer.pid != asking->peer.pid)
			continue;
		p.fd = c->conn.fd;
		if (poll(&p, 1, 0) <= 0)
			continue;
		prefixd_conn_drain(&c->conn, LAST_WORDS_MAX);
		client_tell_eof(c);
		prefixd_conn_drop(&c->conn, PREFIXD_CLOSED_PEER);
	}
	s->hearing = false;
}

/* One request, for the engine to decide. */
static void client_frame(struct prefixd_client *c, const struct proto_header *header,
			 const void *body)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME, .session = c->session };
	struct prefixd_server *s = c->server;
	uint64_t begun;

	if (c->peer.admin && header->op == PROTO_OP_ADMIN) {
		begun = prefixd_server_mark(s);
		prefixd_admin_frame(c, header, body);
	} else {
		if (header->op == PROTO_OP_QUIESCED)
			client_hear_ends(c);
		event.u.frame.header = header;
		event.u.frame.body = body;
		prefixd_server_step(s, &event);
		begun = s->step_ns; /* the step has read the clock */
	}
	prefixd_measure_request(&s->measures, header->op, prefixd_now_ns() - begun);
}

static void client_on_frame(struct prefixd_conn *conn, const struct proto_header *header,
			    const void *body)
{
	struct prefixd_client *c = conn->owner;
	int r = c->words.v ? prefixd_words_park(&c->words, header, body, prefixd_now_ns()) : 0;

	if (r < 0)
		prefixd_conn_drop(conn, PREFIXD_CLOSED_NO_MEMORY);
	else if (r == 0)
		client_frame(c, header, body);
}

/* ---- frames that waited for a word ----------------------------------------------------------- */

static struct prefixd_client *client_of_words(struct prefixd_words *w)
{
	return radix_container_of(w, struct prefixd_client, words);
}

static void words_on_frame(struct prefixd_words *w, const struct proto_header *header,
			   const void *body)
{
	struct prefixd_client *c = client_of_words(w);

	if (!c->ended && !c->gone && !c->forgotten)
		client_frame(c, header, body);
}

static void words_on_hold(struct prefixd_words *w, bool hold)
{
	struct prefixd_client *c = client_of_words(w);

	if (c->connected)
		prefixd_conn_hold(&c->conn, hold);
}

static void words_on_late(struct prefixd_words *w, const struct proto_header *header, uint32_t word,
			  uint64_t is, uint64_t wanted)
{
	const struct prefixd_client *c = client_of_words(w);

	prefixd_warn("session %u (pid %u): %s waits for word %u, which is %llu, to come to %llu; "
		     "%u requests wait with it",
		     c->session, c->peer.pid, proto_op_to_string(header->op), word,
		     (unsigned long long)is, (unsigned long long)wanted, w->n_frames - 1);
}

static void words_on_turn(void *server)
{
	prefixd_server_settle(server);
}

const struct prefixd_words_ops prefixd_client_words = {
	.frame = words_on_frame,
	.hold = words_on_hold,
	.late = words_on_late,
	.turn = words_on_turn,
};

static void client_on_bad(struct prefixd_conn *conn, const struct proto_header *header,
			  enum proto_status status)
{
	struct prefixd_client *c = conn->owner;
	struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME_BAD, .session = c->session };

	event.u.bad.header = header;
	event.u.bad.status = status;
	prefixd_server_step(c->server, &event);
}

static void client_on_spoke(struct prefixd_conn *conn)
{
	struct prefixd_client *c = conn->owner;

	event_free(c->hello_ev);
	c->hello_ev = NULL;
}

static void client_on_sent(struct prefixd_conn *conn)
{
	client_tell(conn->owner, PREFIXD_EVENT_SUBSCRIBER_READY);
}

/* Ends that every worker comes to are of no interest; the others are somebody's fault. */
static enum prefixd_log_level client_closed_level(enum prefixd_closed why)
{
	return why == PREFIXD_CLOSED_PEER || why == PREFIXD_CLOSED_PROCESS ? PREFIXD_LOG_DEBUG
									   : PREFIXD_LOG_INFO;
}

static void client_on_ended(struct prefixd_conn *conn, enum prefixd_closed why)
{
	struct prefixd_client *c = conn->owner;

	c->server->measures.closed[why]++;
	prefixd_log_line(client_closed_level(why), "session %u (pid %u): closed: %s", c->session,
			 c->peer.pid, prefixd_closed_to_string(why));
	c->connected = false;
	client_tell_eof(c);
	if (c->pidfd < 0)
		client_tell_gone(c); /* nothing else will say so */
	client_bury(c);
	prefixd_clients_reap(c->server);
}

static void client_on_process(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_client *c = ctx;
	struct prefixd_server *s = c->server;

	(void)event_del(c->pid_ev); /* it stays readable for ever; it is in the base, cannot fail */
	/* What it said while it lived counts: a RELEASE may still lie in the socket. */
	if (c->connected) {
		prefixd_conn_drain(&c->conn, LAST_WORDS_MAX);
		prefixd_conn_because(&c->conn, PREFIXD_CLOSED_PROCESS);
	}
	client_tell_gone(c);
	if (c->connected)
		prefixd_conn_drop(&c->conn, PREFIXD_CLOSED_PROCESS);
	prefixd_server_settle(s);
}

static void client_on_silence(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_client *c = ctx;

	if (!c->connected)
		return;
	prefixd_conn_drop(&c->conn, PREFIXD_CLOSED_HELLO_TIMEOUT);
	prefixd_server_settle(c->server);
}

static const struct prefixd_conn_ops client_ops = {
	.frame = client_on_frame,
	.bad = client_on_bad,
	.ended = client_on_ended,
	.spoke = client_on_spoke,
	.sent = client_on_sent,
};

/* ---- beginning ------------------------------------------------------------------------------- */

/* Timers and the process watch.  Return: 0, -ENOMEM. */
static int client_watch(struct prefixd_client *c)
{
	uint64_t ns = c->server->options->hello_timeout;
	struct timeval tv = { .tv_sec = (time_t)(ns / 1000000000u),
			      .tv_usec = (suseconds_t)(ns % 1000000000u / 1000u) };
	struct event_base *base = c->server->base;

	c->hello_ev = evtimer_new(base, client_on_silence, c);
	if (!c->hello_ev || event_add(c->hello_ev, &tv) < 0)
		return -ENOMEM;
	if (c->pidfd < 0)
		return 0;
	c->pid_ev = event_new(base, c->pidfd, EV_READ | EV_PERSIST, client_on_process, c);
	if (!c->pid_ev || event_add(c->pid_ev, NULL) < 0)
		return -ENOMEM;
	return 0;
}

/*
 * Workers get no descriptor from here on: the last ones are for operators, pools and the files that
 * a reload reads.  The kernel gives the lowest free number, so a number says how many are in use.
 */
static int descriptors_for_workers(void)
{
	struct rlimit rl = { .rlim_cur = 1024 };

	(void)getrlimit(RLIMIT_NOFILE, &rl); /* cannot fail for this limit */
	if (rl.rlim_cur > INT_MAX)
		return INT_MAX;
	return (int)rl.rlim_cur - (rl.rlim_cur < 128 ? 3 : 8);
}

static void client_accept(struct prefixd_server *s, int fd, bool admin)
{
	uint32_t max_frame = (uint32_t)s->options->max_frame;
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_OPENED };
	struct prefixd_client *c = client_new(s);
	int r = -ENOMEM;

	if (c && (admin || fd < descriptors_for_workers()))
		r = prefixd_peer_get(fd, &c->peer, &c->pidfd);
	else if (c)
		r = -EMFILE;
	if (r < 0) {
		prefixd_error("a connection was closed at once: %s", strerror(-r));
		if (r == -EMFILE || r == -ENFILE)
			s->measures.rejected_no_descriptor++;
		else
			s->measures.rejected_no_memory++;
		close(fd);
		if (c)
			client_free(c);
		return;
	}
	c->peer.admin = admin;
	/* Admin requests need no HELLO, so their first frame may be as long as any. */
	r = prefixd_conn_init(&c->conn, &s->conns, fd, &client_ops, c, max_frame,
			      admin ? max_frame : PROTO_MAX_HELLO);
	if (r == 0) {
		c->connected = true;
		r = client_watch(c);
	}
	if (r < 0) {
		prefixd_error("a connection was closed at once: %s", strerror(-r));
		s->measures.rejected_no_memory++;
		client_free(c);
		return;
	}
	prefixd_debug("session %u: %s pid %u, uid %u connected%s", c->session,
		      admin ? "admin" : "worker", c->peer.pid, c->peer.uid,
		      c->pidfd < 0 ? ", its process cannot be watched" : "");
	event.session = c->session;
	event.u.peer = c->peer;
	prefixd_server_step(s, &event);
}

/* ---- sessions of an earlier life ------------------------------------------------------------- */

void prefixd_client_gone(struct prefixd_server *s, uint32_t session)
{
	struct prefixd_client *c = prefixd_client_find(s, session);

	if (c)
		client_tell_gone(c);
}

/* A process that cannot be waited for is asked after. */
static void client_on_ask(evutil_socket_t fd, short what, void *ctx)
{
	static const struct timeval often = { .tv_sec = ASK_SECONDS };
	struct prefixd_client *c = ctx;
	struct prefixd_server *s = c->server;

	(void)prefixd_server_mark(s);
	if (prefixd_process_start(c->peer.pid) == c->peer.start_time &&
	    event_add(c->pid_ev, &often) == 0)
		return;
	client_tell_gone(c);
	prefixd_server_settle(s);
}

/* Return: 0; -ESRCH: the process is not there; -ENOMEM: nobody will ever know. */
static int client_watch_again(struct prefixd_client *c)
{
	static const struct timeval often = { .tv_sec = ASK_SECONDS };
	struct event_base *base = c->server->base;

	c->pidfd = prefixd_process_open(c->peer.pid, c->peer.start_time);
	if (c->pidfd >= 0) {
		c->pid_ev = event_new(base, c->pidfd, EV_READ | EV_PERSIST, client_on_process, c);
		return c->pid_ev && event_add(c->pid_ev, NULL) == 0 ? 0 : -ENOMEM;
	}
	/* No descriptor left, or a kernel without: it may be there all the same. */
	if (c->peer.start_time == 0 || prefixd_process_start(c->peer.pid) != c->peer.start_time)
		return -ESRCH;
	c->pid_ev = evtimer_new(base, client_on_ask, c);
	return c->pid_ev && event_add(c->pid_ev, &often) == 0 ? 0 : -ENOMEM;
}

void prefixd_client_watch(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_client *c;
	int r = -ENOMEM;

	radix_assert(!prefixd_client_find(s, a->session));
	c = client_at(s, a->session);
	if (c) {
		c->ended = true; /* its socket was an earlier life's */
		c->peer.pid = a->u.watch.pid;
		c->peer.start_time = a->u.watch.start_time;
		r = client_watch_again(c);
	}
	if (r == -ESRCH) /* not now: this is a step */
		prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_PROCESS_GONE,
							 .id = a->session });
	else if (r < 0)
		prefixd_error("no memory to watch process %u; what it had leased stays until it "
			      "says that it is done",
			      a->u.watch.pid);
}

void prefixd_client_accept_worker(void *server, int fd)
{
	client_accept(server, fd, false);
	prefixd_server_settle(server);
}

void prefixd_client_accept_admin(void *server, int fd)
{
	client_accept(server, fd, true);
	prefixd_server_settle(server);
}

/* ---- the shell's own session ----------------------------------------------------------------- */

struct prefixd_client *prefixd_client_internal(struct prefixd_server *s)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_OPENED };
	struct prefixd_client *c = client_new(s);

	if (!c)
		return NULL;
	c->internal = true;
	c->peer = (struct prefixd_peer){
		.pid = (uint32_t)getpid(), .uid = geteuid(), .gid = getegid(), .admin = true
	};
	event.session = c->session;
	event.u.peer = c->peer;
	prefixd_server_step(s, &event);
	return c;
}

void prefixd_client_internal_end(struct prefixd_client *c)
{
	client_tell_eof(c);
	client_tell_gone(c);
	if (!c->forgotten)
		prefixd_client_forget(c); /* the engine is told all; nothing more can come */
	/* Freed by the next callback: the caller may be a callback of another client. */
}
