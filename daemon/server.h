/*
 * server.h - the running daemon: event loop, sockets, clients, pools, and the engine in the middle.
 *
 * Start order: memory, device, engine, then the sockets (the first sign of life that others see);
 * stop order is the reverse.
 */
#pragma once

#include "daemon/options.h"

struct prefixd_server;

/* Exit codes of the program. */
enum {
	PREFIXD_EXIT_DRAINED = 0,
	PREFIXD_EXIT_FAILED = 1,  /* could not start; the log says why */
	PREFIXD_EXIT_USAGE = 2,   /* options or configuration are wrong */
	PREFIXD_EXIT_STOPPED = 3, /* a second signal came before the drain was over */
};

/* argv and envp are read again by a reload.  Takes the options over, also on failure. */
radix_nodiscard int prefixd_server_new(struct prefixd_server **ret_server,
				       struct prefixd_options *options, int argc, char *const *argv,
				       char *const *envp, char *why, size_t why_len);
/* Serves until it is told to stop; returns the exit code. */
int prefixd_server_run(struct prefixd_server *s);
struct prefixd_server *prefixd_server_free(struct prefixd_server *s);
/* What the daemon will take of the machine, a sentence per line, through `line`. */
void prefixd_server_memory_table(const struct prefixd_options *o,
				 void (*line)(void *ctx, const char *text), void *ctx);
const char *prefixd_version(void);
