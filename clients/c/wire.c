/*
 * wire.c - bytes between a client and the daemon, with a deadline on everything.
 *
 * What it guarantees.  No call blocks past its deadline (CLOCK_MONOTONIC).  A deadline loses no
 * byte: a frame that went out in part goes on at the next call, a reply that came in part is
 * completed there.  Received descriptors are close-on-exec and are closed if nobody claims them.
 * Memory grows with what has really arrived, never with what a length field claims.
 *
 * What it relies on.  A stream socket of the unix family.  Nothing here knows an operation.
 */
#include "clients/c/internal.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS  40000u
#define RX_FIRST (64u * 1024)

uint64_t pfx_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void pfx_wire_init(struct pfx_wire *w)
{
	memset(w, 0, sizeof(*w));
	w->fd = -1;
	w->max_frame = w->rx_max = PROTO_MAX_FRAME_DEFAULT;
	w->version = PROTO_VERSION_HELLO;
}

static void close_fds(struct pfx_wire *w)
{
	for (uint32_t i = 0; i < w->n_fds; i++)
		close(w->fds[i]);
	w->n_fds = 0;
}

void pfx_wire_close(struct pfx_wire *w, bool end)
{
	close_fds(w);
	if (w->fd >= 0) {
		/* A child of this process may hold a copy, which would keep the connection up. */
		if (end)
			(void)shutdown(w->fd, SHUT_RDWR); /* fails only if it ended already */
		close(w->fd);
	}
	w->fd = -1;
	w->rx_len = w->rx_used = 0;
	w->tx_len = w->tx_off = 0;
	w->max_frame = w->rx_max = PROTO_MAX_FRAME_DEFAULT;
	w->version = PROTO_VERSION_HELLO;
}

void pfx_wire_deinit(struct pfx_wire *w)
{
	free(w->rx);
	free(w->tx);
	pfx_wire_init(w);
}

static int lost(struct pfx_wire *w, const char *why)
{
	w->why = why;
	return PFX_LOST;
}

static int garbled(struct pfx_wire *w, const char *why)
{
	w->why = why;
	return PFX_PROTOCOL;
}

/*
 * Waits for `events`: a little while awake, then asleep.  An answer takes the daemon 10 us, a
 * wake-up across CPUs up to 60 us (bench_socket: MATCH of 8k tokens, client and daemon on two
 * CPUs).
 * Return: 0 (also on errors of the socket: the next read or write names them), PFX_DEADLINE.
 */
static int wait_for(const struct pfx_wire *w, short events, uint64_t deadline_ns)
{
	uint64_t start = pfx_now_ns();

	for (;;) {
		struct pollfd p = { .fd = w->fd, .events = events };
		uint64_t now = pfx_now_ns();
		bool spin = now - start < SPIN_NS;
		struct timespec ts = { 0 };
		int r;

		if (now < deadline_ns && !spin) {
			uint64_t left = deadline_ns - now;

			ts.tv_sec = (time_t)(left / 1000000000ull);
			ts.tv_nsec = (long)(left % 1000000000ull);
		}
		r = ppoll(&p, 1, &ts, NULL);
		if (r > 0)
			return 0;
		if (r == 0 && spin && now < deadline_ns) {
			sched_yield(); /* the daemon may be waiting for this very CPU */
			continue;
		}
		if (r == 0)
			return PFX_DEADLINE;
		if (errno != EINTR)
			return 0;
	}
}

/* For the message only: connecting to something else is refused like connecting to nobody. */
static bool is_socket(const char *path)
{
	struct stat st;

	return stat(path, &st) != 0 || S_ISSOCK(st.st_mode);
}

int pfx_wire_connect(struct pfx_wire *w, const char *path, uint64_t deadline_ns)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(sa.sun_path))
		return lost(w, "the socket's path is empty or too long");
	memcpy(sa.sun_path, path, n + 1);
	w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (w->fd < 0)
		return lost(w, "no descriptor for a socket is left");
	while (connect(w->fd, (const struct sockaddr *)&sa, sizeof(sa)) != 0) {
		int e = errno;

		if (e == EINTR)
			continue;
		/* EAGAIN: the queue of connections is full; a unix socket offers no event for
		 * that, so look again in a millisecond. */
		if (e == EAGAIN && pfx_now_ns() < deadline_ns) {
			(void)poll(NULL, 0, 1);
			continue;
		}
		pfx_wire_close(w, false);
		if (e == EAGAIN)
			return PFX_DEADLINE;
		return lost(w, e == EACCES       ? "permission denied at its socket"
			       : e == ENOENT     ? "its socket does not exist"
			       : is_socket(path) ? "nobody listens at its socket"
						 : "this is not a socket");
	}
	return 0;
}

int pfx_wire_reserve(struct pfx_wire *w, size_t more)
{
	size_t cap = w->tx_cap ? w->tx_cap : 4096;
	uint8_t *p;

	if (w->tx_off == w->tx_len)
		w->tx_off = w->tx_len = 0;
	if (w->tx_cap - w->tx_len >= more)
		return 0;
	while (cap - w->tx_len < more)
		cap *= 2;
	p = realloc(w->tx, cap);
	if (!p)
		return PFX_NO_MEMORY;
	w->tx = p;
	w->tx_cap = cap;
	return 0;
}

int pfx_wire_flush(struct pfx_wire *w, uint64_t deadline_ns)
{
	while (w->tx_off < w->tx_len) {
		ssize_t n = send(w->fd, w->tx + w->tx_off, w->tx_len - w->tx_off,
				 MSG_NOSIGNAL | MSG_DONTWAIT);
		int r;

		if (n > 0) {
			w->tx_off += (size_t)n;
			continue;
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			return lost(w, "the daemon closed the connection");
		r = wait_for(w, POLLOUT, deadline_ns);
		if (r)
			return r;
	}
	w->tx_off = w->tx_len = 0;
	return 0;
}

/* Keeps what came along; more than any reply may carry is refused.  Return: 0, PFX_PROTOCOL. */
static int keep_fds(struct pfx_wire *w, struct msghdr *m)
{
	int r = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (w->n_fds < PFX_MAX_FDS) {
				w->fds[w->n_fds++] = fd;
			} else {
				close(fd);
				r = garbled(w, "more descriptors than any reply may carry");
			}
		}
	}
	if (m->msg_flags & MSG_CTRUNC)
		r = garbled(w, "descriptors were cut off; is this process out of them?");
	return r;
}

/* One read into rx, at least one byte.  Return: 0, PFX_DEADLINE, PFX_LOST, PFX_PROTOCOL. */
static int fill(struct pfx_wire *w, uint64_t deadline_ns)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(PFX_MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = { w->rx + w->rx_len, w->rx_cap - w->rx_len };

	for (;;) {
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.room,
				    .msg_controllen = sizeof(control.room) };
		ssize_t n;
		int r = wait_for(w, POLLIN, deadline_ns);

		if (r)
			return r;
		n = recvmsg(w->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n > 0) {
			w->rx_len += (size_t)n;
			return keep_fds(w, &m);
		}
		if (n == 0)
			return lost(w, "the daemon closed the connection");
		if (errno != EINTR && errno != EAGAIN)
			return lost(w, "the connection broke");
	}
}

/* Makes room for more bytes of a frame of `want` bytes; grows by doubling what is really there. */
static int make_room(struct pfx_wire *w, size_t want)
{
	size_t cap;
	uint8_t *p;

	if (w->rx_used) {
		memmove(w->rx, w->rx + w->rx_used, w->rx_len - w->rx_used);
		w->rx_len -= w->rx_used;
		w->rx_used = 0;
	}
	if (w->rx_len < w->rx_cap)
		return 0;
	cap = w->rx_cap ? 2 * w->rx_cap : RX_FIRST;
	if (cap > want && want > w->rx_cap && w->rx_cap)
		cap = want;
	p = realloc(w->rx, cap);
	if (!p)
		return PFX_NO_MEMORY;
	w->rx = p;
	w->rx_cap = cap;
	return 0;
}

int pfx_wire_receive(struct pfx_wire *w, uint64_t deadline_ns, struct pfx_frame *ret_frame)
{
	for (;;) {
		const uint8_t *p = w->rx ? w->rx + w->rx_used : NULL;
		size_t n = w->rx_len - w->rx_used, want = PROTO_HEADER_LEN;
		enum proto_status status;
		struct proto_header h;
		int r = n < want ? PROTO_E_SHORT
				 : proto_header_decode(p, n, w->rx_max, &h, &status);

		if (r == PROTO_E_BAD)
			return garbled(w, status == PROTO_STATUS_TOO_LARGE
						  ? "a frame longer than it said it may send"
						  : "a frame with a wrong header");
		if (r == 0 && h.version != w->version)
			return garbled(w, "a frame of another version than was agreed on");
		if (r == 0) {
			want += h.len;
			if (n >= want) {
				ret_frame->h = h;
				ret_frame->body = p + PROTO_HEADER_LEN;
				w->rx_used += want;
				return 0;
			}
		}
		r = make_room(w, want);
		if (r == 0)
			r = fill(w, deadline_ns);
		if (r)
			return r;
	}
}

bool pfx_wire_take_fds(struct pfx_wire *w, uint32_t n, int ret_fds[PFX_MAX_FDS])
{
	if (n > w->n_fds)
		return false;
	memcpy(ret_fds, w->fds, n * sizeof(int));
	memmove(w->fds, w->fds + n, (w->n_fds - n) * sizeof(int));
	w->n_fds -= n;
	return true;
}

bool pfx_wire_hung_up(const struct pfx_wire *w)
{
	struct pollfd p = { .fd = w->fd, .events = POLLIN };

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL));
}
