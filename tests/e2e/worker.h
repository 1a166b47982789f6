/*
 * worker.h - a small honest worker for end-to-end tests: it computes blocks whose bytes are a
 * function of the namespace's secret and the path, and compares every byte that it is lent.
 *
 * With E2E_RANKS=N it is N ranks of a model in one process: a session each, one decision id for a
 * request, other bytes in the pool of each.  Each call is made by all of them, another one first
 * each time; they have to be told the same, or it counts as an error.
 */
#pragma once

#include "tests/e2e/harness.h"

#include <stdint.h>

enum {
	WORKER_BLOCK_TOKENS = 16,
	WORKER_BLOCK_BYTES = 512,
	WORKER_MAX_BLOCKS = 512,
	WORKER_SOME_BLOCKS = 32, /* at most, in a random request */
	WORKER_MAX_RANKS = 8,
	WORKER_MAX_LEFT = 8 /* leases that were left lying, to be given back later */
};

struct worker_rank {
	pfx_client *client;
	pfx_namespace *ns;
	uint64_t lease; /* of the running request, as this client names it */
	uint64_t left[WORKER_MAX_LEFT];
};

struct worker {
	pfx_client *client; /* of rank 0, as ns */
	pfx_namespace *ns;
	struct worker_rank ranks[WORKER_MAX_RANKS];
	uint32_t n_ranks;
	uint32_t n_calls; /* which rank is the first one of the next */
	uint64_t rng;
	uint32_t tokens[WORKER_MAX_BLOCKS * WORKER_BLOCK_TOKENS];
	uint32_t n_blocks;
	uint64_t lease; /* of rank 0 */
	uint64_t reuse;
	uint32_t hits[WORKER_MAX_BLOCKS]; /* slots that were lent */
	uint32_t n_hit;
	uint32_t n_pending;       /* behind those, what another worker computes */
	bool single_flight;       /* lead what nobody computes, and wait for the rest */
	bool promote;             /* take what lower tiers have */
	const char *salt;         /* NULL: none */
	uint32_t n_host, n_redis; /* blocks that they had, when it was asked last */
	int load_reason;          /* why the last load was cut */
	bool loading;
	uint32_t slots[WORKER_MAX_BLOCKS]; /* reserved ones, in path order */
	uint32_t n_reserved, n_committed;
	uint32_t n_left; /* leases that lie about */
	/* over its life */
	uint64_t waits, leads;
	uint64_t loads, loads_failed, blocks_loaded;
	uint64_t requests, blocks_verified, blocks_stored, corrupt, errors, busy;
};

/* The same as worker_start, for a daemon that may die meanwhile: a status; may be called again. */
int worker_connect(struct worker *w, const char *socket, uint64_t seed);
/* Connects to a daemon and opens the namespace that all workers share. */
void worker_start(struct worker *w, const char *socket, uint64_t seed);
void worker_stop(struct worker *w); /* gives back what lies about */

/* A prompt of n_blocks whose leading part is one of 16 stems; `variant` picks the rest. */
void worker_prompt(struct worker *w, uint32_t n_blocks, uint32_t stem, uint64_t variant);

/* The steps of one request; each returns the library's status. */
int worker_match(struct worker *w); /* and compares every block that was lent */
/* While others compute what comes next: waits, takes it, compares it. */
int worker_wait(struct worker *w);
/* While blocks come up from lower tiers: waits, takes them, compares them. */
int worker_load(struct worker *w);
int worker_reserve(struct worker *w); /* all that is missing */
/* By so many blocks of the prompt behind n_blocks, and by whatever became usable. */
int worker_extend(struct worker *w, uint32_t n_more);
void worker_write(struct worker *w, uint32_t from, uint32_t n);
int worker_commit(struct worker *w, uint32_t n);
int worker_release(struct worker *w);
/* What all ranks say; the first status that is not PFX_OK.  ret_n_slots may be NULL: the sum. */
int worker_ping(struct worker *w);
int worker_quiesced(struct worker *w, uint32_t *ret_n_slots);

/*
 * One whole request with a random shape; counts what goes wrong.  Some leases lie about for a
 * while.
 */
void worker_request(struct worker *w);
