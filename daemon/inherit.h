/*
 * inherit.h - what one program hands to the next one in the same process (exec), or the service
 * manager to a program that it starts: listening sockets, their locks, what is kept.
 *
 * One environment variable names descriptors by their numbers, and the process that they are for:
 *
 *     PREFIXD_INHERIT = "1 PID\n"  { "listen FD LOCK FOREIGN WHERE\n" }  [ "keep TEXT" ]
 *
 * What it guarantees.  The variable is gone from the environment once it was read, so that no child
 * sees it; one that was made for another process, or does not read, means nothing.  Each descriptor
 * is closed on exec again, and is handed out only as what it is: a socket that listens where it is
 * said to.  What nobody asks for is closed.
 *
 * What it relies on.  Reading comes before anything else opens descriptors or starts threads.
 */
#pragma once

#include "radix/base.h"

struct prefixd_listening {
	int fd, lock_fd;   /* lock_fd -1: none */
	bool foreign;      /* its file is somebody else's to remove */
	const char *where; /* a socket's path, or an address */
};

/* ---- the next program */

void prefixd_inherit_read(void);
/* A socket of the service manager's for this program to serve; fd -1: there is none. */
void prefixd_inherit_add(const char *where, int fd);
/* What listens at `where`, the caller's from then on.  False: nothing does. */
bool prefixd_inherit_take(const char *where, struct prefixd_listening *ret);
/* What is kept, for prefixd_keep_start(); NULL: nothing was said. */
const char *prefixd_inherit_kept(void);
/* Closes what is left, and says so in the log. */
void prefixd_inherit_end(void);

/* ---- the program before it */

/*
 * All of these stay open over exec, and the environment says so.  `kept` may be NULL.  Return: 0;
 * -ENOMEM; -EINVAL: a path that cannot be written down; nothing is changed then.
 */
radix_nodiscard int prefixd_inherit_write(const struct prefixd_listening *v, uint32_t n,
					  const char *kept);
/* Exec failed: closed on exec again, and gone from the environment. */
void prefixd_inherit_undo(const struct prefixd_listening *v, uint32_t n);
