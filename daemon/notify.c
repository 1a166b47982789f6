/*
 * notify.c - see notify.h.
 */
#include "daemon/notify.h"

#include <event2/event.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TEXT_LEN      512
#define READY_WAIT_MS 1000 /* unheard, it would be taken for a start that failed */

/* A whole number from 1 on; 0: it is none. */
static uint64_t env_number(const char *name)
{
	const char *text = getenv(name);
	char *end;
	uint64_t n;

	if (!text || text[0] < '0' || text[0] > '9')
		return 0;
	errno = 0;
	n = strtoull(text, &end, 10);
	return errno || *end ? 0 : n;
}

/* $NOTIFY_SOCKET as an address: a path, or a name with '@' for the zero that stands before it. */
static int address(struct prefixd_notify *n, const char *path)
{
	size_t len = strlen(path);

	if ((path[0] != '/' && path[0] != '@') || !path[1] || len >= sizeof(n->to.sun_path))
		return -EINVAL;
	n->to = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(n->to.sun_path, path, len);
	n->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (path[0] == '@')
		n->to.sun_path[0] = '\0';
	else
		n->to_len++; /* the terminating zero */
	return 0;
}

static void on_watchdog(evutil_socket_t fd, short what, void *ctx)
{
	/* Who does not read it in time takes us for dead, and be it for his own slowness. */
	(void)prefixd_notify_send(ctx, "WATCHDOG=1", -1, 0);
}

/* Twice as often as the manager wants it, if it is us whom he wants it from. */
static int watchdog_start(struct prefixd_notify *n, struct event_base *base)
{
	uint64_t us = env_number("WATCHDOG_USEC"), pid = env_number("WATCHDOG_PID");
	struct timeval every;

	if (!base || us == 0 || (pid != 0 && pid != (uint64_t)getpid()))
		return 0;
	us = us / 2 > 1000 ? us / 2 : 1000;
	every.tv_sec = (time_t)(us / 1000000u);
	every.tv_usec = (suseconds_t)(us % 1000000u);
	n->watchdog_ev = event_new(base, -1, EV_PERSIST, on_watchdog, n);
	return n->watchdog_ev && event_add(n->watchdog_ev, &every) == 0 ? 0 : -ENOMEM;
}

int prefixd_notify_init(struct prefixd_notify *n, struct event_base *base, char *why,
			size_t why_len)
{
	const char *path = getenv("NOTIFY_SOCKET");
	int r;

	*n = (struct prefixd_notify){ .fd = -1 };
	if (!path || !*path)
		return 0;
	r = address(n, path);
	if (r < 0) {
		snprintf(why, why_len, "NOTIFY_SOCKET is \"%.80s\", which is no unix socket", path);
		return r;
	}
	n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	r = n->fd < 0 ? -errno : watchdog_start(n, base);
	if (r < 0) {
		snprintf(why, why_len, "cannot talk to the service manager: %s", strerror(-r));
		prefixd_notify_deinit(n);
	}
	return r;
}

void prefixd_notify_deinit(struct prefixd_notify *n)
{
	if (n->watchdog_ev)
		event_free(n->watchdog_ev);
	if (prefixd_notify_active(n))
		close(n->fd);
	*n = (struct prefixd_notify){ .fd = -1 };
}

bool prefixd_notify_active(const struct prefixd_notify *n)
{
	return n->to_len > 0 && n->fd >= 0;
}

/* Milliseconds of a clock that nobody sets. */
static int64_t now_ms(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int prefixd_notify_send(struct prefixd_notify *n, const char *text, int fd, int wait_ms)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char copy[TEXT_LEN];
	struct iovec iov = { .iov_base = copy, .iov_len = strlen(text) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int64_t end = now_ms() + wait_ms;

	if (!prefixd_notify_active(n))
		return -ENOTCONN;
	if (iov.iov_len > sizeof(copy))
		return -EMSGSIZE;
	memcpy(copy, text, iov.iov_len);
	msg.msg_name = &n->to;
	msg.msg_namelen = n->to_len;
	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		control.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						  .cmsg_type = SCM_RIGHTS,
						  .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	}
	for (;;) {
		struct pollfd p = { .fd = n->fd, .events = POLLOUT };

		if (sendmsg(n->fd, &msg, MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EINTR && errno != EAGAIN)
			return -errno;
		if (errno == EAGAIN && now_ms() >= end)
			return -ETIMEDOUT;
		/*
		 * The socket is not connected: poll() does not tell when the other queue has
		 * room.
		 */
		(void)poll(&p, errno == EAGAIN ? 0 : 1, 5);
	}
}

void prefixd_notify_ready(struct prefixd_notify *n, const char *status)
{
	char text[TEXT_LEN];
	const char *end = status ? strpbrk(status, "\r\n") : NULL; /* a line is a statement */
	int len = status ? (int)(end ? end - status : (ptrdiff_t)strlen(status)) : 0;

	snprintf(text, sizeof(text), "READY=1%s%.*s", len ? "\nSTATUS=" : "", len,
		 status ? status : "");
	(void)prefixd_notify_send(n, text, -1, READY_WAIT_MS); /* nobody else to tell */
}

void prefixd_notify_reloading(struct prefixd_notify *n)
{
	struct timespec ts;
	char text[TEXT_LEN];

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
		 (unsigned long long)ts.tv_sec * 1000000u + (unsigned long long)ts.tv_nsec / 1000u);
	(void)prefixd_notify_send(n, text, -1, 0);
}

void prefixd_notify_stopping(struct prefixd_notify *n, uint64_t left_ns)
{
	char text[TEXT_LEN];

	snprintf(text, sizeof(text), "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%llu",
		 (unsigned long long)(left_ns / 1000u));
	(void)prefixd_notify_send(n, text, -1, 0);
}
