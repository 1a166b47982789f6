/*
 * notify.h - what the service manager is told: ready, stopping, reloading, still deciding.
 *
 * The protocol of sd_notify(3): lines in a datagram to $NOTIFY_SOCKET, descriptors beside them.
 *
 * What it guarantees.  Without a manager every call does nothing.  A manager who does not read
 * misses what was said; only READY=1 waits for him, a second at most.  WATCHDOG=1 is sent by a
 * timer of the loop that decides, and by nobody else: when that loop stands still, whatever its
 * helpers do, it is not sent.
 *
 * What it relies on.  The event base is the deciding loop's.  A manager who wants to hear of life
 * says so in $WATCHDOG_USEC, and to whom in $WATCHDOG_PID.
 */
#pragma once

#include "radix/base.h"

#include <sys/socket.h>
#include <sys/un.h>

struct event;
struct event_base;

struct prefixd_notify {
	int fd; /* -1: no manager */
	struct sockaddr_un to;
	socklen_t to_len;
	struct event *watchdog_ev;
};

/*
 * Finds the manager.  `base`: where the watchdog's timer runs; NULL: it does not.  Return: 0, also
 * without a manager; negative errno with a sentence in `why`.
 */
radix_nodiscard int prefixd_notify_init(struct prefixd_notify *n, struct event_base *base,
					char *why, size_t why_len);
void prefixd_notify_deinit(struct prefixd_notify *n); /* idempotent, accepts a zeroed one */
bool prefixd_notify_active(const struct prefixd_notify *n);

/* Serving; `status` is one line for people, NULL for none.  Also ends a reload. */
void prefixd_notify_ready(struct prefixd_notify *n, const char *status);
/* A reload, or another program in this process, begins; prefixd_notify_ready() ends it. */
void prefixd_notify_reloading(struct prefixd_notify *n);
/* No new work is taken; the end comes within `left_ns`. */
void prefixd_notify_stopping(struct prefixd_notify *n, uint64_t left_ns);

/*
 * One datagram, with a descriptor if fd >= 0; waits for room until `wait_ms` are over.  Return: 0;
 * -ENOTCONN: no manager; negative errno.
 */
int prefixd_notify_send(struct prefixd_notify *n, const char *text, int fd, int wait_ms);
