/*
 * conn.c - see conn.h.
 *
 * Why not libevent's bufferevents: they read 4 KiB at a time (a 32 KiB MATCH costs nine reads
 * instead of one), copy into chains, and cannot pass descriptors.
 *
 * Turns.  Every callback of the loop ends with prefixd_conns_turn().  Connections with frames left
 * go round once per turn; a zero timer brings the next turn, so that the loop polls all sockets in
 * between.
 */
#include "daemon/conn.h"

#include "daemon/log.h"
#include "radix/crash.h"

#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- input buffer ---------------------------------------------------------------------------- */

#define IN_SMALL_TURNS 64

static size_t in_pending(const struct prefixd_conn *c)
{
	return c->in_len - c->in_head;
}

/*
 * Makes room so that a frame of `need` bytes fits, beginning at the first unread byte.  A buffer
 * that grew for a long frame stays for a while: its client will likely send another.
 */
static int in_room(struct prefixd_conn *c, size_t need)
{
	size_t cap = need > PREFIXD_CONN_IN ? need : PREFIXD_CONN_IN;
	size_t pending = in_pending(c);
	uint8_t *in = NULL;

	c->in_small = c->in_cap > cap ? c->in_small + 1 : 0;
	if (c->in_cap < cap || (c->in_small > IN_SMALL_TURNS && pending <= cap)) {
		in = malloc(cap);
		if (!in && c->in_cap < cap)
			return -ENOMEM;
	}
	if (!in) {
		if (c->in_head > 0 && pending > 0)
			memmove(c->in, c->in + c->in_head, pending);
		c->in_head = 0;
		c->in_len = pending;
		return 0;
	}
	if (pending > 0)
		memcpy(in, c->in + c->in_head, pending);
	free(c->in);
	c->in = in;
	c->in_cap = cap;
	c->in_head = 0;
	c->in_len = pending;
	c->in_small = 0;
	return 0;
}

/* ---- interest -------------------------------------------------------------------------------- */

static void conn_schedule(struct prefixd_conns *set)
{
	static const struct timeval zero;

	if (!evtimer_pending(set->turn_ev, NULL))
		(void)event_add(set->turn_ev, &zero); /* failing (no memory) costs a late turn */
}

/* It does not read its replies: no more of its frames until it has caught up. */
static bool conn_behind(const struct prefixd_conn *c)
{
	return prefixd_conn_unsent(c) > PREFIXD_CONN_SOFT || c->n_marks >= PREFIXD_CONN_MARKS;
}

/*
 * A peer that stays above the soft limit takes less than its replies to requests that it has sent
 * already, for nothing more is read from it.  It has slow_ns to catch up.
 */
static void conn_patience(struct prefixd_conn *c)
{
	bool behind = conn_behind(c) && c->set->slow_ns;
	struct timeval tv;

	if (c->closing || c->dead || behind == c->behind)
		return;
	c->behind = behind;
	if (!behind) {
		(void)event_del(c->late_ev); /* a timer of this base; cannot fail */
		return;
	}
	tv.tv_sec = (time_t)(*c->set->slow_ns / 1000000000u);
	tv.tv_usec = (suseconds_t)(*c->set->slow_ns % 1000000000u / 1000u);
	if (event_add(c->late_ev, &tv) < 0)
		prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
}

/* Tells libevent what this connection waits for now. */
static void conn_interest(struct prefixd_conn *c)
{
	bool read = !c->eof && !c->closing && !c->dead && !c->more && !c->held && !conn_behind(c);
	/* What was queued in this turn is tried first: mostly the socket takes it at once. */
	bool write = !c->dead && prefixd_conn_unsent(c) > 0 && !radix_list_linked(&c->dirty_link);
	bool watch = c->held && !c->eof && !c->closing && !c->dead;

	if (read != c->reading) {
		if ((read ? event_add(c->read_ev, NULL) : event_del(c->read_ev)) < 0)
			prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
		else
			c->reading = read;
	}
	if (write != c->writing) {
		if ((write ? event_add(c->write_ev, NULL) : event_del(c->write_ev)) < 0)
			prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
		else
			c->writing = write;
	}
	if (watch != c->watching) {
		if ((watch ? event_add(c->gone_ev, NULL) : event_del(c->gone_ev)) < 0)
			prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
		else
			c->watching = watch;
	}
}

const char *prefixd_closed_to_string(enum prefixd_closed why)
{
	static const char *const texts[] = { [PREFIXD_CLOSED_NOT] = "it is open",
#define X(sym, label, text) [PREFIXD_CLOSED_##sym] = (text),
					     PREFIXD_CLOSED(X)
#undef X
	};

	return why < PREFIXD_CLOSED_N ? texts[why] : "unknown";
}

void prefixd_conn_because(struct prefixd_conn *c, enum prefixd_closed why)
{
	if (c->why == PREFIXD_CLOSED_NOT)
		c->why = why;
}

void prefixd_conn_drop(struct prefixd_conn *c, enum prefixd_closed why)
{
	if (c->dead)
		return;
	c->dead = true;
	prefixd_conn_because(c, why);
	radix_list_remove(&c->busy_link);
	radix_list_remove(&c->dirty_link);
	radix_list_add_tail(&c->set->dead, &c->dead_link);
}

void prefixd_conn_close(struct prefixd_conn *c, enum prefixd_closed why)
{
	static const struct timeval linger = { .tv_sec = PREFIXD_CONN_LINGER_S };

	if (c->dead || c->closing)
		return;
	c->closing = true;
	c->more = false;
	prefixd_conn_because(c, why);
	radix_list_remove(&c->busy_link);
	if (!radix_list_linked(&c->dirty_link))
		radix_list_add_tail(&c->set->dirty, &c->dirty_link);
	if (event_add(c->late_ev, &linger) < 0)
		prefixd_conn_drop(c, why);
}

/* ---- frames ---------------------------------------------------------------------------------- */

/*
 * Hands over up to `budget` whole frames.  Afterwards c->more says whether another one waits, and
 * the buffer has room for the rest of a frame that is not whole.
 */
static void conn_frames(struct prefixd_conn *c, uint32_t budget)
{
	size_t need = PROTO_HEADER_LEN;

	c->more = false;
	while (!c->closing && !c->dead) {
		uint32_t limit = c->spoke ? c->max_frame : c->max_first;
		struct proto_header header;
		enum proto_status status = PROTO_STATUS_BAD_FRAME;
		int r = proto_header_decode(c->in + c->in_head, in_pending(c), limit, &header,
					    &status);

		if (r == PROTO_E_SHORT)
			break;
		if (r == 0) {
			need = PROTO_HEADER_LEN + (size_t)header.len;
			if (in_pending(c) < need)
				break;
		}
		if (budget == 0 || c->held || conn_behind(c)) {
			c->more = true;
			return; /* the buffer stays as it is until their turn comes */
		}
		if (r != 0) {
			prefixd_conn_because(c, PREFIXD_CLOSED_BAD_FRAME);
			c->ops->bad(c, &header, status);
			prefixd_conn_close(c, PREFIXD_CLOSED_BAD_FRAME);
			return;
		}
		budget--;
		c->n_frames++;
		c->in_head += need;
		if (!c->spoke) {
			c->spoke = true;
			if (c->ops->spoke)
				c->ops->spoke(c);
		}
		c->ops->frame(c, &header, c->in + c->in_head - header.len);
		need = PROTO_HEADER_LEN;
	}
	if (in_room(c, need) < 0)
		prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
}

/* After frames were handled: is there more to do, is the peer's part over? */
static void conn_settle(struct prefixd_conn *c)
{
	if (c->more && !c->closing && !c->dead) {
		/* With too much unsent the write event brings it back instead. */
		if (!c->held && !conn_behind(c)) {
			if (!radix_list_linked(&c->busy_link))
				radix_list_add_tail(&c->set->busy, &c->busy_link);
			conn_schedule(c->set);
		}
	} else if (c->eof && !c->closing) {
		prefixd_conn_close(c, PREFIXD_CLOSED_PEER);
	}
	conn_patience(c);
	if (!c->dead)
		conn_interest(c);
}

void prefixd_conn_hold(struct prefixd_conn *c, bool hold)
{
	c->held = hold;
	if (c->dead)
		return;
	if (hold)
		conn_interest(c);
	else
		conn_settle(c); /* what it holds back comes in the next turn */
}

/* What it is held for may never come: nothing else would say that there is nobody any more. */
static void conn_on_gone(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_conn *c = ctx;

	prefixd_conn_drop(c, PREFIXD_CLOSED_PEER);
	prefixd_conns_turn(c->set);
}

/* One read.  Return: bytes, 0 when nothing more can be had now (end, would block, error). */
static size_t conn_read(struct prefixd_conn *c)
{
	ssize_t n;

	if (c->in_len == c->in_cap)
		return 0;
	do
		n = read(c->fd, c->in + c->in_len, c->in_cap - c->in_len);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		c->in_len += (size_t)n;
		return (size_t)n;
	}
	if (n == 0 || errno == ECONNRESET)
		c->eof = true;
	else if (errno != EAGAIN)
		prefixd_conn_drop(c, PREFIXD_CLOSED_IO_ERROR);
	return 0;
}

static void conn_on_read(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_conn *c = ctx;

	if (!c->dead && !c->closing && !c->eof && !c->more) {
		if (!c->in && in_room(c, PROTO_HEADER_LEN) < 0)
			prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
		else if (conn_read(c) > 0)
			conn_frames(c, PREFIXD_CONN_BUDGET);
		conn_settle(c);
	}
	prefixd_conns_turn(c->set);
}

void prefixd_conn_drain(struct prefixd_conn *c, size_t max)
{
	size_t total = 0;

	if (!c->in && in_room(c, PROTO_HEADER_LEN) < 0)
		return;
	while (!c->dead && !c->closing) {
		size_t n;

		conn_frames(c, UINT32_MAX);
		if (c->more || c->dead || c->closing || c->eof || total >= max)
			break;
		n = conn_read(c);
		if (n == 0)
			break;
		total += n;
	}
}

/* ---- output ---------------------------------------------------------------------------------- */

size_t prefixd_conn_unsent(const struct prefixd_conn *c)
{
	return c->out_len - c->out_head;
}

static int out_reserve(struct prefixd_conn *c, size_t len)
{
	size_t pending = prefixd_conn_unsent(c);
	size_t cap = c->out_cap ? c->out_cap : 4096;
	uint8_t *out;

	if (c->out && c->out_cap - c->out_len >= len)
		return 0;
	if (c->out_head > 0) {
		memmove(c->out, c->out + c->out_head, pending);
		c->out_head = 0;
		c->out_len = pending;
	}
	if (c->out && c->out_cap - c->out_len >= len)
		return 0;
	while (cap < pending + len)
		cap *= 2;
	out = realloc(c->out, cap);
	if (!out)
		return -ENOMEM;
	c->out = out;
	c->out_cap = cap;
	return 0;
}

/* Descriptors are duplicated: what they came from may be freed before the peer reads. */
static int mark_add(struct prefixd_conn *c, const int *fds, uint32_t n_fds)
{
	struct prefixd_conn_mark *m;

	radix_assert(n_fds <= PREFIXD_CONN_MAX_FDS);
	if (c->n_marks == c->cap_marks) {
		uint32_t cap = c->cap_marks ? c->cap_marks * 2 : 4;
		struct prefixd_conn_mark *v = realloc(c->marks, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		c->marks = v;
		c->cap_marks = cap;
	}
	m = &c->marks[c->n_marks];
	m->at = c->out_base + prefixd_conn_unsent(c);
	m->n_fds = 0;
	for (uint32_t i = 0; i < n_fds; i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

		if (fd < 0) {
			int r = -errno;

			while (m->n_fds > 0)
				close(m->fds[--m->n_fds]);
			return r;
		}
		m->fds[m->n_fds++] = fd;
	}
	c->n_marks++;
	return 0;
}

static void mark_drop_first(struct prefixd_conn *c)
{
	for (uint32_t i = 0; i < c->marks[0].n_fds; i++)
		close(c->marks[0].fds[i]);
	c->n_marks--;
	memmove(c->marks, c->marks + 1, c->n_marks * sizeof(c->marks[0]));
}

void prefixd_conn_send(struct prefixd_conn *c, const void *bytes, size_t len, const int *fds,
		       uint32_t n_fds)
{
	if (c->dead || c->deaf || len == 0)
		return;
	if (prefixd_conn_unsent(c) + len > (size_t)PREFIXD_CONN_HARD + c->max_frame) {
		prefixd_conn_drop(c, PREFIXD_CLOSED_OUTPUT_LIMIT);
		return;
	}
	if (out_reserve(c, len) < 0) {
		prefixd_conn_drop(c, PREFIXD_CLOSED_NO_MEMORY);
		return;
	}
	if (n_fds > 0 && mark_add(c, fds, n_fds) < 0) {
		prefixd_conn_drop(c, PREFIXD_CLOSED_NO_DESCRIPTOR);
		return;
	}
	memcpy(c->out + c->out_len, bytes, len);
	c->out_len += len;
	if (!radix_list_linked(&c->dirty_link))
		radix_list_add_tail(&c->set->dirty, &c->dirty_link);
}

/* Sends the bytes up to the next mark, with the descriptors of the mark they begin with. */
static ssize_t out_send_some(struct prefixd_conn *c)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * PREFIXD_CONN_MAX_FDS)];
		struct cmsghdr align;
	} control = { 0 };
	size_t n = prefixd_conn_unsent(c);
	bool with_fds = c->n_marks > 0 && c->marks[0].at == c->out_base;
	uint32_t next = with_fds ? 1 : 0;
	struct iovec iov;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cmsg;
	size_t fds_len;

	if (c->n_marks > next)
		n = (size_t)radix_min_u64(n, c->marks[next].at - c->out_base);
	if (!with_fds)
		return send(c->fd, c->out + c->out_head, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	iov = (struct iovec){ .iov_base = c->out + c->out_head, .iov_len = n };
	fds_len = c->marks[0].n_fds * sizeof(int);
	msg.msg_control = control.buf;
	msg.msg_controllen = CMSG_SPACE(fds_len);
	cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(fds_len);
	memcpy(CMSG_DATA(cmsg), c->marks[0].fds, fds_len);
	return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/*
 * The peer takes no more replies.  What it has sent before is still in the socket and counts, so
 * reading goes on to the end; only the output is thrown away, now and from now on.
 */
static void conn_deafen(struct prefixd_conn *c)
{
	c->deaf = true;
	while (c->n_marks > 0)
		mark_drop_first(c);
	c->out_base += prefixd_conn_unsent(c);
	c->out_head = c->out_len = 0;
}

static void conn_flush(struct prefixd_conn *c)
{
	while (!c->dead && prefixd_conn_unsent(c) > 0) {
		ssize_t n;

		radix_crash_point("conn_reply_made");
		n = out_send_some(c);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
			conn_deafen(c);
			break;
		}
		if (n < 0) {
			prefixd_conn_drop(c, PREFIXD_CLOSED_IO_ERROR);
			break;
		}
		radix_crash_point("conn_reply_sent");
		if (c->n_marks > 0 && c->marks[0].at == c->out_base && n > 0)
			mark_drop_first(c); /* they went with the first byte */
		c->out_head += (size_t)n;
		c->out_base += (uint64_t)n;
	}
	if (prefixd_conn_unsent(c) == 0) {
		c->out_head = c->out_len = 0;
		if (c->out_cap > PREFIXD_CONN_IN) {
			free(c->out);
			c->out = NULL;
			c->out_cap = 0;
		}
		if (c->closing)
			prefixd_conn_drop(c, c->why);
		if (c->tell && !c->dead && !c->deaf) {
			c->tell = false;
			c->ops->sent(c); /* may queue more: this turn sends it */
		}
	}
	if (!c->dead)
		conn_settle(c);
}

static void conn_on_write(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_conn *c = ctx;

	if (!c->dead)
		conn_flush(c);
	prefixd_conns_turn(c->set);
}

static void conn_on_late(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_conn *c = ctx;

	prefixd_conn_drop(c, PREFIXD_CLOSED_SLOW_READER); /* or what it is closing for */
	prefixd_conns_turn(c->set);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Each list is emptied once: what is added meanwhile has its time in the same order next turn. */
void prefixd_conns_turn(struct prefixd_conns *set)
{
	struct radix_list *last, *it;

	if (set->in_turn)
		return;
	set->in_turn = true;
	while (!radix_list_empty(&set->dirty)) {
		struct prefixd_conn *c = radix_list_first(&set->dirty, struct prefixd_conn,
							  dirty_link);

		radix_list_remove(&c->dirty_link);
		conn_flush(c);
	}
	last = set->dead.prev;
	while ((it = set->dead.next) != &set->dead) {
		struct prefixd_conn *c = radix_list_entry(it, struct prefixd_conn, dead_link);
		const struct prefixd_conn_ops *ops = c->ops;
		enum prefixd_closed why = c->why;
		bool was_last = it == last;

		prefixd_conn_deinit(c);
		ops->ended(c, why); /* c may be gone now */
		if (was_last)
			break;
	}
	set->in_turn = false;
	if (!radix_list_empty(&set->dirty) || !radix_list_empty(&set->dead))
		conn_schedule(set);
}

/* The zero timer: those with frames left get their budget. */
static void conns_on_timer(evutil_socket_t fd, short what, void *ctx)
{
	struct prefixd_conns *set = ctx;
	struct radix_list round;

	radix_list_init(&round);
	while (!radix_list_empty(&set->busy)) {
		struct radix_list *it = set->busy.next;

		radix_list_remove(it);
		radix_list_add_tail(&round, it);
	}
	while (!radix_list_empty(&round)) {
		struct prefixd_conn *c = radix_list_first(&round, struct prefixd_conn, busy_link);

		radix_list_remove(&c->busy_link);
		conn_frames(c, PREFIXD_CONN_BUDGET);
		conn_settle(c);
	}
	prefixd_conns_turn(set);
}

int prefixd_conns_init(struct prefixd_conns *set, struct event_base *base)
{
	static const struct timeval zero;

	*set = (struct prefixd_conns){ .base = base };
	radix_list_init(&set->busy);
	radix_list_init(&set->dirty);
	radix_list_init(&set->dead);
	set->turn_ev = evtimer_new(base, conns_on_timer, set);
	if (!set->turn_ev || event_add(set->turn_ev, &zero) < 0) {
		prefixd_conns_deinit(set);
		return -ENOMEM;
	}
	return 0;
}

void prefixd_conns_deinit(struct prefixd_conns *set)
{
	if (set->turn_ev)
		event_free(set->turn_ev);
	set->turn_ev = NULL;
}

int prefixd_conn_init(struct prefixd_conn *c, struct prefixd_conns *set, int fd,
		      const struct prefixd_conn_ops *ops, void *owner, uint32_t max_frame,
		      uint32_t max_first)
{
	*c = (struct prefixd_conn){ .set = set,
				    .ops = ops,
				    .owner = owner,
				    .fd = fd,
				    .max_frame = max_frame,
				    .max_first = max_first };
	radix_list_init(&c->busy_link);
	radix_list_init(&c->dirty_link);
	radix_list_init(&c->dead_link);
	c->read_ev = event_new(set->base, fd, EV_READ | EV_PERSIST, conn_on_read, c);
	c->write_ev = event_new(set->base, fd, EV_WRITE | EV_PERSIST, conn_on_write, c);
	c->gone_ev = event_new(set->base, fd, EV_CLOSED | EV_PERSIST, conn_on_gone, c);
	c->late_ev = evtimer_new(set->base, conn_on_late, c);
	if (!c->read_ev || !c->write_ev || !c->gone_ev || !c->late_ev ||
	    event_add(c->read_ev, NULL) < 0) {
		prefixd_conn_deinit(c);
		return -ENOMEM;
	}
	c->reading = true;
	return 0;
}

void prefixd_conn_deinit(struct prefixd_conn *c)
{
	radix_list_remove(&c->busy_link);
	radix_list_remove(&c->dirty_link);
	radix_list_remove(&c->dead_link);
	if (c->read_ev)
		event_free(c->read_ev);
	if (c->write_ev)
		event_free(c->write_ev);
	if (c->gone_ev)
		event_free(c->gone_ev);
	if (c->late_ev)
		event_free(c->late_ev);
	c->read_ev = c->write_ev = c->gone_ev = c->late_ev = NULL;
	while (c->n_marks > 0)
		mark_drop_first(c);
	free(c->marks);
	free(c->in);
	free(c->out);
	c->marks = NULL;
	c->in = c->out = NULL;
	c->in_head = c->in_len = c->in_cap = 0;
	c->out_head = c->out_len = c->out_cap = 0;
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->dead = true;
}
