/*
 * run.h - a replay: a coordinator and its worker processes.
 *
 * The coordinator (the caller) forks the workers before anybody connects, starts them together,
 * watches them, and adds up what they counted.  Workers share with it one anonymous mapping
 * (replay_shared) and nothing else; how requests are handed out is written there.
 */
#pragma once

#include "clients/replay/moves.h"
#include "clients/replay/options.h"
#include "clients/replay/stats.h"
#include "clients/replay/trace.h"

#include <semaphore.h>
#include <stdatomic.h>

struct replay_shared {
	sem_t ready; /* posted by each worker when it has mapped the pool */

	/*
	 * Order trace: request i belongs to worker i mod N, which waits for its baton and hands the
	 * next worker's on when the request is complete.  Order concurrent: `next` is the request
	 * that nobody has taken yet; the batons only start the workers.
	 */
	sem_t baton[REPLAY_MAX_WORKERS];
	_Atomic uint64_t next;
	_Atomic bool stop; /* take no further request */

	_Atomic bool error_taken; /* whoever sets it writes the text */
	char error[600];          /* the first thing that went wrong */

	/* Of the pool, by the first worker that has it. */
	_Atomic bool pool_taken;
	uint32_t pool_slots;
	uint64_t pool_stride;

	struct replay_stats workers[REPLAY_MAX_WORKERS];
};

struct replay_result {
	struct replay_stats sum;
	double elapsed_s; /* from the start signal to the last worker's last request */
	uint32_t pool_slots;
	uint64_t pool_stride;
	uint32_t n_died; /* workers that ended without saying why */
	bool interrupted;
	char error[600];  /* empty: none */
	bool moves_known; /* --admin-socket was given and answered, before and after */
	struct replay_moves moves;
};

/* Return: 0 when the replay ran to some end (see ret), negative errno when it could not begin. */
int replay_run(const struct replay_options *options, const struct replay_trace *trace,
	       struct replay_result *ret);

/* For worker.c: the process of one worker; returns its exit status. */
struct replay_job {
	const struct replay_options *options;
	const struct replay_trace *trace;
	struct replay_shared *shared;
	const uint8_t (*digests)[16]; /* by block; NULL in token mode */
	uint32_t *hits;               /* shared: [n_requests] hit blocks, or NULL */
	uint32_t worker;
};

int replay_worker_main(const struct replay_job *job);
/* The mode that `auto` stands for. */
enum replay_key_mode replay_key_mode_of(const struct replay_options *options,
					const struct replay_trace *trace);
