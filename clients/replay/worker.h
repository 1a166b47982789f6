/*
 * worker.h - what the files of one worker process share.
 *
 *     worker.c  the process: connecting, taking requests, saying what went wrong
 *     serve.c   one request, from MATCH to RELEASE
 *     blocks.c  keys, and the contents of blocks: comparing and writing them
 */
#pragma once

#include "clients/c/prefixd.h"
#include "clients/replay/mover.h"
#include "clients/replay/run.h"

struct replay_worker {
	const struct replay_job *job;
	const struct replay_options *options;
	const struct replay_trace *trace;
	struct replay_stats *stats;
	enum replay_key_mode key_mode;
	pfx_client *client;
	pfx_namespace *ns;
	struct replay_mover *mover; /* for pools that lie on a GPU */
	uint32_t tenant;
	uint32_t key_len;
	uint8_t *keys; /* of the running request, where they have to be made */
	size_t keys_cap;
	uint64_t *paths; /* of the running request, by position */
	size_t paths_cap;
	uint64_t gone_since_ns; /* 0: the daemon answered last time */
};

/* ---- worker.c */

uint64_t replay_now_ns(void);
/* Kept if it is the first sentence of all workers. */
void replay_note(struct replay_worker *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, counted as an error. */
void replay_error(struct replay_worker *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A call failed: noted with its status. */
void replay_fail(struct replay_worker *w, size_t request, const char *what, int status);

/* ---- serve.c */

void replay_serve(struct replay_worker *w, size_t request);

/* ---- blocks.c */

/* Valid until the next request. */
const void *replay_keys_of(struct replay_worker *w, const struct replay_request *r);
/* The path of each block, for its contents. */
void replay_paths_make(struct replay_worker *w, const uint8_t *keys, uint32_t n,
		       const uint8_t root[16]);
/* Compares what the runs name.  Return: blocks that they name; the first is block `from`. */
uint32_t replay_runs_check(struct replay_worker *w, size_t request, const pfx_match_result *m,
			   uint32_t from);
/* Return: blocks written; fewer than granted when a slot is not where it can be. */
uint32_t replay_runs_fill(struct replay_worker *w, const pfx_reserve_result *res);
