/*
 * listener.h - a unix socket that others connect to.
 *
 * What it guarantees.  Two daemons never serve one path: a lock file (PATH.lock) is held for the
 * listener's life, and a socket that still answers is never removed.  The socket has its mode from
 * the moment it exists.  A daemon that was killed and is still being taken down is waited for.
 * Running out of descriptors makes it close the newest peer and pause, never spin.
 *
 * A socket that a program before this one in this process, or the service manager, listens with at
 * that path (inherit.h) is taken over: whoever waits in its queue is served.
 *
 * What it relies on.  Nobody removes PATH.lock while a daemon runs; it stays behind on purpose,
 * since removing it would let two daemons lock two files of that name.
 */
#pragma once

#include "radix/base.h"

#include <sys/types.h>

struct event;
struct event_base;

struct prefixd_listener {
	const char *path; /* kept by pointer */
	int fd, lock_fd, reserve_fd;
	bool foreign; /* the service manager's: its file stays */
	struct event *accept_ev, *resume_ev;
	void (*accepted)(void *ctx, int fd); /* takes the descriptor over */
	void *ctx;
	uint64_t *refused; /* the owner's: peers closed for want of descriptors; may be NULL */
};

/*
 * `accepted` may be NULL: then the caller accepts from l->fd.  Return: 0; negative errno with a
 * sentence in `why`.
 */
radix_nodiscard int prefixd_listener_init(struct prefixd_listener *l, struct event_base *base,
					  const char *path, mode_t mode,
					  void (*accepted)(void *ctx, int fd), void *ctx, char *why,
					  size_t why_len);
/* Takes no more connections and removes the socket; the lock stays. */
void prefixd_listener_stop(struct prefixd_listener *l);
void prefixd_listener_deinit(struct prefixd_listener *l); /* idempotent, accepts a zeroed one */
