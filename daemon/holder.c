/*
 * holder.c - see holder.h.
 *
 * One loop over poll(): the listening socket and a few connections.  A connection is answered one
 * frame at a time; whoever does not read his answers is closed.
 */
#include "daemon/holder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define N_CONNS       8
#define IDLE_NS       (5ull * 1000000000u)  /* how long a visitor may be silent */
#define FIRST_NS      (10ull * 1000000000u) /* how long whoever started it may take to come */
#define FDS_PER_FRAME 4                     /* received, to be closed; the kernel drops more */
#define FOREVER       UINT64_MAX

struct conn {
	int fd; /* -1: free */
	bool greeted, daemon;
	bool foreign; /* of another user: he is told so, whatever he asks */
	uint32_t pid;
	uint64_t until_ns; /* closed then */
	char version[PROTO_HOLDER_TEXT_LEN];
};

static struct {
	const struct prefixd_holder_config *config;
	struct prefixd_holder_items items;
	struct conn conns[N_CONNS];
	uint64_t timeout_ns, born_ns;
	uint64_t leave_ns; /* when, if no daemon comes; counts while there is none */
	bool leaving;
} h;

static volatile sig_atomic_t told_to_end;

static uint64_t now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t later(uint64_t from, uint64_t ns)
{
	return ns > FOREVER - from ? FOREVER : from + ns;
}

static void close_all(const int *fds, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		close(fds[i]);
}

/* ---- connections --------------------------------------------------------------------------- */

static struct conn *daemon_conn(void)
{
	for (size_t i = 0; i < N_CONNS; i++)
		if (h.conns[i].fd >= 0 && h.conns[i].daemon)
			return &h.conns[i];
	return NULL;
}

static void conn_close(struct conn *c)
{
	if (c->daemon) /* what it left stays for its time; nothing needs no time */
		h.leave_ns = later(now_ns(), h.items.n > 0 ? h.timeout_ns : 0);
	close(c->fd);
	*c = (struct conn){ .fd = -1 };
}

/* One packet; with `fd` beside it unless that is -1.  Return: false: he does not take it. */
static bool conn_send(struct conn *c, const struct proto_holder_frame *f, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	uint8_t bytes[PROTO_HOLDER_LEN];
	struct iovec iov = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	proto_holder_encode(f, bytes);
	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		control.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						  .cmsg_type = SCM_RIGHTS,
						  .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	}
	return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(bytes);
}

/* A daemon's connection whose other end is closed, found before poll() says so. */
static bool conn_over(const struct conn *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

/* A place for another connection: a free one, else that of the visitor who was silent longest. */
static struct conn *conn_place(void)
{
	struct conn *oldest = NULL;

	for (size_t i = 0; i < N_CONNS; i++) {
		struct conn *c = &h.conns[i];

		if (c->fd < 0)
			return c;
		if (!c->daemon && (!oldest || c->until_ns < oldest->until_ns))
			oldest = c;
	}
	if (oldest) /* there is one: at most one of the eight is the daemon */
		conn_close(oldest);
	return oldest;
}

static void on_connection(void)
{
	int fd = accept4(h.config->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct ucred cred;
	socklen_t len = sizeof(cred);
	struct conn *c;

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
			(void)poll(NULL, 0, 100); /* he still waits; do not spin */
		return;
	}
	c = conn_place();
	if (!c || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0) {
		close(fd);
		return;
	}
	*c = (struct conn){ .fd = fd,
			    .pid = (uint32_t)cred.pid,
			    .foreign = cred.uid != geteuid() && cred.uid != 0,
			    .until_ns = later(now_ns(), IDLE_NS) };
}

/* ---- requests ------------------------------------------------------------------------------ */

static void answer_hello(struct conn *c, const struct proto_holder_frame *f,
			 struct proto_holder_frame *ret)
{
	struct conn *served = daemon_conn();

	if (served && conn_over(served)) {
		conn_close(served);
		served = NULL;
	}
	if (c->greeted) {
		ret->status = PROTO_HOLDER_STATUS_ORDER;
		return;
	}
	if (f->flags & PROTO_HOLDER_DAEMON && served) {
		ret->status = PROTO_HOLDER_STATUS_SERVED;
	} else {
		c->greeted = true;
		c->daemon = f->flags & PROTO_HOLDER_DAEMON;
		memcpy(c->version, f->text, sizeof(c->version));
	}
	if (c->daemon) {
		served = c;
		c->until_ns = FOREVER;
		h.timeout_ns = f->timeout_ns;
	}
	ret->holder_pid = (uint32_t)getpid();
	ret->daemon_pid = served ? served->pid : 0;
	ret->timeout_ns = h.timeout_ns;
	ret->left_ns = FOREVER;
	if (!served && h.leave_ns != FOREVER)
		ret->left_ns = h.leave_ns > now_ns() ? h.leave_ns - now_ns() : 0;
	ret->age_ns = now_ns() - h.born_ns;
	if (served)
		memcpy(ret->name, served->version, sizeof(served->version));
	memcpy(ret->text, h.config->version, strnlen(h.config->version, sizeof(ret->text) - 1));
}

/* The descriptor is taken over with OK only. */
static void answer_put(const struct conn *c, const struct proto_holder_frame *f, int fd,
		       struct proto_holder_frame *ret, int *ret_old)
{
	if (!c->daemon)
		ret->status = PROTO_HOLDER_STATUS_ORDER;
	else if (!proto_holder_name_ok(f->name))
		ret->status = PROTO_HOLDER_STATUS_BAD;
	else if (fd < 0)
		ret->status = PROTO_HOLDER_STATUS_NO_DESCRIPTOR;
	else
		ret->status = prefixd_holder_put(&h.items, f->name, fd, ret_old);
}

static void answer_item(const struct proto_holder_frame *f, struct proto_holder_frame *ret,
			int *ret_send)
{
	const struct prefixd_holder_item *item;

	if (f->index >= h.items.n) {
		ret->status = PROTO_HOLDER_STATUS_NO_ITEM;
		return;
	}
	item = &h.items.v[f->index];
	ret->index = f->index;
	memcpy(ret->name, item->name, sizeof(ret->name));
	prefixd_holder_measure(item->fd, &ret->size, &ret->held);
	if (f->flags & PROTO_HOLDER_SEND)
		*ret_send = item->fd;
}

/* Everything is closed before the answer: who asked may count on the memory. */
static void answer_release(struct conn *c, const struct proto_holder_frame *f,
			   struct proto_holder_frame *ret)
{
	struct proto_holder_frame notice = { .version = PROTO_HOLDER_VERSION,
					     .op = PROTO_HOLDER_RELEASE };
	struct conn *served = daemon_conn();

	if (served && conn_over(served)) {
		conn_close(served);
		served = NULL;
	}
	if (served && served != c && !(f->flags & PROTO_HOLDER_FORCE)) {
		ret->status = PROTO_HOLDER_STATUS_SERVED;
		ret->daemon_pid = served->pid;
		return;
	}
	if (served && served != c)
		(void)conn_send(served, &notice, -1); /* else he takes it for our death */
	for (uint32_t i = 0; i < h.items.n; i++)
		close(h.items.v[i].fd);
	h.items.n = 0;
	h.leaving = true;
	(void)unlink(h.config->path); /* ours: the lock is held */
}

/* Return: false: the connection has to go. */
static bool answer(struct conn *c, const struct proto_holder_frame *f, int fd)
{
	struct proto_holder_frame reply = { .version = PROTO_HOLDER_VERSION,
					    .op = f->op,
					    .seq = f->seq };
	int dropped[PROTO_HOLDER_ITEMS_MAX], old = -1, send = -1;
	uint32_t n_dropped = 0;
	bool ok;

	if (f->op == PROTO_HOLDER_HELLO)
		answer_hello(c, f, &reply);
	else if (f->op == PROTO_HOLDER_RELEASE)
		answer_release(c, f, &reply);
	else if (!c->greeted)
		reply.status = PROTO_HOLDER_STATUS_ORDER;
	else if (f->op == PROTO_HOLDER_PUT)
		answer_put(c, f, fd, &reply, &old);
	else if (f->op == PROTO_HOLDER_ITEM)
		answer_item(f, &reply, &send);
	else if (f->op == PROTO_HOLDER_DROP && c->daemon && proto_holder_name_ok(f->name))
		n_dropped = prefixd_holder_drop(&h.items, f->name, dropped);
	else
		reply.status = c->daemon ? PROTO_HOLDER_STATUS_BAD : PROTO_HOLDER_STATUS_ORDER;
	if (fd >= 0 && (f->op != PROTO_HOLDER_PUT || reply.status != PROTO_HOLDER_STATUS_OK))
		close(fd);
	reply.n_items = h.items.n;
	ok = conn_send(c, &reply, send);
	/* After the answer: giving back what a large file holds takes its time. */
	if (old >= 0)
		close(old);
	close_all(dropped, n_dropped);
	return ok && reply.status != PROTO_HOLDER_STATUS_BAD &&
	       reply.status != PROTO_HOLDER_STATUS_ORDER;
}

/* A frame that cannot be answered as what it is.  RELEASE needs the head only. */
static bool answer_stranger(struct conn *c, const struct proto_holder_frame *f, int decoded)
{
	struct proto_holder_frame reply = { .version = PROTO_HOLDER_VERSION,
					    .op = f->op,
					    .seq = f->seq,
					    .status = PROTO_HOLDER_STATUS_BAD };

	if (c->foreign) {
		reply.status = PROTO_HOLDER_STATUS_FORBIDDEN;
	} else if (decoded == PROTO_HOLDER_E_VERSION) {
		if (f->op == PROTO_HOLDER_RELEASE)
			return answer(c, f, -1);
		reply.status = PROTO_HOLDER_STATUS_VERSION;
	}
	(void)conn_send(c, &reply, -1); /* closed either way */
	return false;
}

/*
 * Takes one packet and the descriptors beside it.  Return: its length; 0: the end; negative
 * errno.
 */
static ssize_t receive(int fd, uint8_t *bytes, size_t len, int *ret_fds, uint32_t *ret_n)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * FDS_PER_FRAME)];
	} control;
	struct iovec iov = { .iov_base = bytes, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.bytes,
			      .msg_controllen = sizeof(control.bytes) };
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*ret_n = 0;
	if (n < 0)
		return -errno;
	for (struct cmsghdr *m = CMSG_FIRSTHDR(&msg); m; m = CMSG_NXTHDR(&msg, m)) {
		if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
			continue;
		*ret_n = (uint32_t)((m->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(ret_fds, CMSG_DATA(m), *ret_n * sizeof(int));
	}
	return n;
}

static void on_readable(struct conn *c)
{
	uint8_t bytes[PROTO_HOLDER_LEN + 1]; /* one more, so that a longer packet is seen as such */
	struct proto_holder_frame f = { 0 };
	int fds[FDS_PER_FRAME], decoded;
	uint32_t n_fds;
	ssize_t n = receive(c->fd, bytes, sizeof(bytes), fds, &n_fds);
	bool ok;

	if (n == -EAGAIN || n == -EINTR)
		return;
	if (n <= 0) {
		close_all(fds, n_fds);
		conn_close(c);
		return;
	}
	decoded = proto_holder_decode(bytes, (size_t)n, &f);
	if (decoded == 0 && n_fds <= 1 && !c->foreign) {
		ok = answer(c, &f, n_fds ? fds[0] : -1);
	} else {
		close_all(fds, n_fds);
		ok = answer_stranger(c, &f, decoded ? decoded : PROTO_HOLDER_E_BAD);
	}
	if (!ok)
		conn_close(c);
	else if (!c->daemon)
		c->until_ns = later(now_ns(), IDLE_NS);
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void on_term(int signal)
{
	told_to_end = 1;
}

/* Closes visitors whose time is over; returns when the next thing is due. */
static uint64_t clock_turn(uint64_t now)
{
	uint64_t next = FOREVER;

	for (size_t i = 0; i < N_CONNS; i++) {
		struct conn *c = &h.conns[i];

		if (c->fd >= 0 && c->until_ns <= now)
			conn_close(c);
		if (c->fd >= 0)
			next = radix_min_u64(next, c->until_ns);
	}
	if (!daemon_conn()) {
		next = radix_min_u64(next, h.leave_ns);
		h.leaving |= h.leave_ns <= now;
	}
	return next;
}

/* One round: waits for somebody, or for what is due.  Return: 0, negative errno. */
static int turn(const sigset_t *waiting)
{
	struct pollfd p[N_CONNS + 1] = { { .fd = h.config->listen_fd, .events = POLLIN } };
	uint64_t now = now_ns(), next = clock_turn(now);
	struct timespec left;

	if (h.leaving)
		return 0;
	/* A day at most, so that no arithmetic of the kernel's is tried. */
	next = radix_min_u64(next > now ? next - now : 0, 86400ull * 1000000000u);
	left.tv_sec = (time_t)(next / 1000000000u);
	left.tv_nsec = (long)(next % 1000000000u);
	for (size_t i = 0; i < N_CONNS; i++)
		p[i + 1] = (struct pollfd){ .fd = h.conns[i].fd, .events = POLLIN };
	if (ppoll(p, N_CONNS + 1, &left, waiting) < 0)
		return errno == EINTR ? 0 : -errno;
	for (size_t i = 0; i < N_CONNS; i++)
		if (p[i + 1].revents && h.conns[i].fd == p[i + 1].fd && !h.leaving)
			on_readable(&h.conns[i]);
	if (p[0].revents && !h.leaving)
		on_connection();
	return 0;
}

int prefixd_holder_run(const struct prefixd_holder_config *config)
{
	struct sigaction sa = { .sa_handler = on_term };
	sigset_t blocked, waiting;
	int r = 0;

	h.config = config;
	h.timeout_ns = config->timeout_ns;
	h.born_ns = now_ns();
	h.leave_ns = later(h.born_ns, FIRST_NS);
	for (size_t i = 0; i < N_CONNS; i++)
		h.conns[i] = (struct conn){ .fd = -1 };
	/* Only while it waits can it be told, so that no answer is cut. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &blocked, &waiting) < 0 || sigaction(SIGTERM, &sa, NULL) < 0)
		return -errno;
	sigdelset(&waiting, SIGTERM);
	while (r == 0 && !h.leaving && !told_to_end)
		r = turn(&waiting);
	(void)unlink(config->path); /* ours: the lock is held */
	return r;
}
