/*
 * holder.h - the whole of prefixd-holder: descriptors with names, kept for a daemon that may die.
 *
 *     holder_main.c    the program: arguments, lock, socket, away from who started it
 *     holder.c         who is connected, and what they are answered
 *     holder_items.c   what is kept
 *
 * What it guarantees.  It never reads, maps or changes what it keeps.  It serves its own user and
 * root, told by the kernel.  One daemon at a time; a few others may look.  All its memory is in the
 * program: no peer makes it grow.  A frame that is wrong costs its connection, never an item.  It
 * leaves, and with it all that nobody else holds, when it was told to, when no daemon came within
 * its timeout, or when the daemon left it nothing.
 *
 * What it relies on.  libc and the kernel, nothing else: no driver, no library that starts threads.
 */
#pragma once

#include "proto/holder_wire.h"

#include <sys/stat.h>

/* ---- holder_items.c: places 0 .. n-1 are taken --------------------------------------------- */

struct prefixd_holder_item {
	char name[PROTO_HOLDER_NAME_LEN];
	int fd;
};

struct prefixd_holder_items {
	struct prefixd_holder_item v[PROTO_HOLDER_ITEMS_MAX];
	uint32_t n;
};

/*
 * Takes `fd` over, under a valid name.  Return: OK with *ret_old, the one that it replaces or -1,
 * which the caller closes; FULL: `fd` is still the caller's.
 */
enum proto_holder_status prefixd_holder_put(struct prefixd_holder_items *items, const char *name,
					    int fd, int *ret_old);
/*
 * Takes `name`, or what begins with it and a dot, out of the list.  Return: how many; their
 * descriptors in `ret_fds`, for the caller to close.
 */
uint32_t prefixd_holder_drop(struct prefixd_holder_items *items, const char *name,
			     int ret_fds[PROTO_HOLDER_ITEMS_MAX]);
/* Length and memory of a file; 0 for what has none. */
void prefixd_holder_measure(int fd, uint64_t *ret_size, uint64_t *ret_held);

/* ---- holder.c ------------------------------------------------------------------------------ */

struct prefixd_holder_config {
	const char *path;    /* of the socket, removed at the end */
	int listen_fd;       /* it listens, and does not block */
	uint64_t timeout_ns; /* until a daemon names another */
	const char *version; /* of this program */
};

/* Serves until it is time to leave; SIGTERM is one of the reasons.  Return: 0, negative errno. */
int prefixd_holder_run(const struct prefixd_holder_config *config);
