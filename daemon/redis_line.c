/*
 * redis_line.c - the socket: commands out, replies in.
 *
 * Commands that wait are begun as long as in_flight_bytes allows, urgent ones first, and everything
 * that is begun and not written goes out by writev() from where it lies.  How far ahead of the
 * socket commands are begun is bounded too: a checksum is computed while Redis reads the block
 * before.
 *
 * Round trips.  A batch is what was written without waiting: it ends with its config.batch-th
 * command, or when nothing is in flight any longer.  When the last command of a batch is answered,
 * one round trip is counted.
 *
 * Why not hiredis' own connection (redisAsyncContext), whose reader is used: version 0.14 copies
 * each command into one buffer and moves the rest of that to the front after every write, reads 16
 * KiB at a time and copies a reply twice.  daemon/README.md has the figures.
 */
#include "daemon/redis_internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/uio.h>
#include <unistd.h>

#define WRITE_AHEAD (1u << 20) /* bytes begun and not written */
#define IOVECS      48
#define READ_MAX    (2u << 20) /* bytes per event, about */
#define SEND_BUFFER (1 << 20)

/* ---- opening and closing --------------------------------------------------------------------- */

static void set_options(int fd, int family)
{
	int on = 1, size = SEND_BUFFER;

	/* All of these only make it faster, or notice a dead peer earlier. */
	if (family == AF_UNIX) {
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	} else {
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	}
}

static void on_readable(evutil_socket_t fd, short what, void *ctx);
static void on_writable(evutil_socket_t fd, short what, void *ctx);

int prefixd_line_open(struct prefixd_redis *r)
{
	const struct prefixd_redis_address *a = &r->addresses[r->address++ % r->n_addresses];
	int ret;

	radix_assert(r->fd < 0);
	r->fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (r->fd < 0)
		return -errno;
	set_options(r->fd, a->sa.ss_family);
	r->connected = false;
	r->progress_ns = prefixd_redis_now();
	r->readable = event_new(r->base, r->fd, EV_READ | EV_PERSIST, on_readable, r);
	r->writable = event_new(r->base, r->fd, EV_WRITE, on_writable, r);
	if (!r->readable || !r->writable || prefixd_replies_reset(r->replies) < 0) {
		prefixd_line_close(r);
		return -ENOMEM;
	}
	/* A unix socket with a full queue says EAGAIN: that is a failure like any other. */
	if (connect(r->fd, (const struct sockaddr *)&a->sa, a->len) < 0 && errno != EINPROGRESS) {
		ret = -errno;
		prefixd_line_close(r);
		return ret;
	}
	if (event_add(r->writable, NULL) < 0) {
		prefixd_line_close(r);
		return -ENOMEM;
	}
	r->want_write = true;
	return 0;
}

void prefixd_line_close(struct prefixd_redis *r)
{
	if (r->readable)
		event_free(r->readable);
	if (r->writable)
		event_free(r->writable);
	r->readable = r->writable = NULL;
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
	r->connected = r->want_write = false;
	r->batch++;
	r->batch_len = 0;
}

/* ---- the books ------------------------------------------------------------------------------- */

static void gauges(struct prefixd_redis *r)
{
	prefixd_gauge(&r->counts.in_flight, r->n_in_flight);
	prefixd_gauge(&r->counts.in_flight_bytes, r->bytes_in_flight);
	prefixd_gauge(&r->counts.queued, r->n_queued);
}

static void begin(struct prefixd_redis *r, struct prefixd_redis_command *c)
{
	uint64_t now = prefixd_redis_now();

	if (!r->n_in_flight)
		r->progress_ns = now; /* nothing was awaited until now */
	c->begun_ns = now;
	c->batch = r->batch;
	if (++r->batch_len >= r->config.batch) {
		r->batch++;
		r->batch_len = 0;
	}
	radix_list_add_tail(&r->writing, &c->link);
	r->n_in_flight++;
	r->bytes_in_flight += c->cost;
	r->bytes_unwritten += prefixd_command_len(c);
	prefixd_count(&r->counts.commands, c->n_replies);
	gauges(r);
}

void prefixd_line_remove(struct prefixd_redis *r, struct prefixd_redis_command *c)
{
	radix_list_remove(&c->link);
	if (c->begun_ns) {
		r->n_in_flight--;
		r->bytes_in_flight -= c->cost;
		r->bytes_unwritten -= prefixd_command_len(c) - c->written;
	} else {
		r->n_queued--;
	}
	gauges(r);
}

/* The head of `awaiting` has all its replies. */
static void finish(struct prefixd_redis *r, struct prefixd_redis_command *c)
{
	struct radix_list *next;

	prefixd_line_remove(r, c);
	next = !radix_list_empty(&r->awaiting) ? r->awaiting.next : r->writing.next;
	if (next == &r->writing ||
	    radix_list_entry(next, struct prefixd_redis_command, link)->batch != c->batch) {
		prefixd_count(&r->counts.round_trips, 1);
		if (c->batch == r->batch) {
			r->batch++;
			r->batch_len = 0;
		}
	}
	prefixd_command_free(c);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The parts of a command that are not written yet. */
static int command_parts(const struct prefixd_redis_command *c, struct iovec v[3])
{
	size_t lens[3] = { c->head_len, c->payload_len, c->text_len - c->head_len };
	const void *parts[3] = { c->text, c->payload, c->text + c->head_len };
	size_t off = c->written;
	int n = 0;

	for (int i = 0; i < 3; i++) {
		if (off >= lens[i]) {
			off -= lens[i];
			continue;
		}
		/* writev() does not write to it; iovec is for both directions. */
		v[n].iov_base = (void *)((uintptr_t)parts[i] + off);
		v[n++].iov_len = lens[i] - off;
		off = 0;
	}
	return n;
}

/* `n` bytes more of what is being written are in the socket; what is whole waits for its reply. */
static void written(struct prefixd_redis *r, size_t n)
{
	struct radix_list *it, *next;

	r->bytes_unwritten -= n;
	for (it = r->writing.next; n; it = next) {
		struct prefixd_redis_command *c = radix_list_entry(it, struct prefixd_redis_command,
								   link);
		size_t some = radix_min_u64(n, prefixd_command_len(c) - c->written);

		next = it->next;
		c->written += some;
		n -= some;
		if (c->written == prefixd_command_len(c)) {
			radix_list_remove(&c->link);
			radix_list_add_tail(&r->awaiting, &c->link);
		}
	}
}

/* Writes what the socket takes.  Return: true when all of it was taken. */
static bool write_some(struct prefixd_redis *r)
{
	while (!radix_list_empty(&r->writing)) {
		struct iovec v[IOVECS];
		struct radix_list *it;
		struct msghdr msg = { .msg_iov = v };
		ssize_t n;

		radix_list_foreach(it, &r->writing) {
			const struct prefixd_redis_command *c =
				radix_list_entry(it, struct prefixd_redis_command, link);

			if (msg.msg_iovlen + 3 > IOVECS)
				break;
			msg.msg_iovlen += (size_t)command_parts(c, v + msg.msg_iovlen);
		}
		n = sendmsg(r->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno != EAGAIN)
				prefixd_redis_break(r, PREFIXD_REDIS_ERROR_CLOSED);
			return false;
		}
		/*
		 * Bytes that go into the socket say nothing of a peer that owes a reply: it may
		 * stand still, and whoever goes on asking would never notice.
		 */
		if (radix_list_empty(&r->awaiting))
			r->progress_ns = prefixd_redis_now();
		written(r, (size_t)n);
	}
	return true;
}

/* The next command that may be begun; NULL: none for now. */
static struct prefixd_redis_command *next_command(struct prefixd_redis *r)
{
	struct radix_list *list = !radix_list_empty(&r->urgent) ? &r->urgent : &r->waiting;
	struct prefixd_redis_command *c;

	if (radix_list_empty(list) || r->bytes_unwritten >= WRITE_AHEAD)
		return NULL;
	c = radix_list_first(list, struct prefixd_redis_command, link);
	/* One alone is always let through, however large. */
	if (r->n_in_flight && r->bytes_in_flight + c->cost > r->config.in_flight_bytes)
		return NULL;
	return c;
}

void prefixd_line_pump(struct prefixd_redis *r)
{
	bool taken = r->connected && !r->broken && write_some(r);

	while (taken && r->breaker.state == PREFIXD_BREAKER_CLOSED) {
		struct prefixd_redis_command *c;
		bool any = false;

		while ((c = next_command(r))) {
			if (!prefixd_ops_begin(r, c))
				continue;
			radix_list_remove(&c->link);
			r->n_queued--;
			begin(r, c);
			any = true;
		}
		if (!any)
			break;
		taken = write_some(r);
	}
	if (!r->broken && r->connected && r->want_write != !radix_list_empty(&r->writing)) {
		r->want_write = !r->want_write;
		if (r->want_write ? event_add(r->writable, NULL) < 0 : event_del(r->writable) < 0)
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_OTHER);
	}
}

void prefixd_line_send(struct prefixd_redis *r, struct prefixd_redis_command *c)
{
	begin(r, c);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_writable(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis *r = ctx;
	socklen_t len = sizeof(int);
	int error = 0;

	r->want_write = false; /* not persistent: it has left the base */
	if (!r->connected) {
		if (getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error) {
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_CONNECT);
		} else if (event_add(r->readable, NULL) < 0) {
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_OTHER);
		} else {
			r->connected = true;
			prefixd_link_connected(r);
		}
	}
	prefixd_redis_settle(r);
}

static void on_readable(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_redis *r = ctx;
	size_t total = 0;

	while (!r->broken && total < READ_MAX) {
		struct iovec room[2];
		int n_room = prefixd_replies_room(r->replies, room);
		ssize_t n = readv(r->fd, room, n_room);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0) {
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_CLOSED);
			break;
		}
		total += (size_t)n;
		r->progress_ns = prefixd_redis_now();
		/* A reply that was refused has set `broken` with a reason of its own, perhaps. */
		if (prefixd_replies_filled(r->replies, (size_t)n) < 0)
			prefixd_redis_break(r, PREFIXD_REDIS_ERROR_PROTOCOL);
	}
	prefixd_redis_settle(r);
}

bool prefixd_line_reply(void *ctx, const struct prefixd_reply *reply)
{
	struct prefixd_redis *r = ctx;
	struct prefixd_redis_command *c;

	if (r->broken || radix_list_empty(&r->awaiting))
		return false;
	c = radix_list_first(&r->awaiting, struct prefixd_redis_command, link);
	c->n_replies--;
	if (!prefixd_ops_reply(r, c, reply))
		return false;
	if (!c->n_replies)
		finish(r, c);
	return !r->broken;
}
