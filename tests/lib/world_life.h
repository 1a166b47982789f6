/*
 * world_life.h - lives of the daemon in the simulated world: what a kill leaves, and what the next
 * one makes of it.  Needs world_config.keep.
 *
 * What outlives the daemon here is what a keeper keeps in the real one: the ledger, and of each
 * group the pool, the generations, the block table and the host memory; besides Redis, the epochs
 * that were raised, and the processes of the workers.  The engine goes with its whole heap.
 *
 *     world_life_kill(w)          SIGKILL between two steps
 *     world_life_kill_at(w, n)    SIGKILL at the n-th crash point from now on: within a step, or
 *                                 between two of its actions
 *     world_life_stop(w, ns)      SIGTERM: drain, and the memory stays
 *     world_life_restart(w)       the next life, with RESTORE
 *
 * While it is down, calls of workers return -ECONNRESET and nothing else happens; processes may
 * still die (world_kill).  A worker of an earlier life has lost its connection: connect it again
 * with world_worker() under its process number.
 *
 * After a restart every device slot that the index calls free is filled with junk, so that who
 * gives away a slot too early is found by what is read.
 */
#pragma once

#include <setjmp.h>

#include "radix/recover.h"

struct world;

/* Memory that outlives the engine: a file without a name, mapped elsewhere in each life. */
struct world_store {
	struct radix_store store;
	int fd;
	bool used;
};

struct world_watch {
	uint32_t session, pid;
	uint64_t start_time;
};

/* A VERIFY that is not answered yet. */
struct world_check {
	uint32_t id, group, n;
	uint64_t due_ns;
	struct radix_sum v[64];
};

struct world_life {
	uint32_t n;   /* lives so far, this one included */
	bool down;    /* the daemon is dead */
	bool exited;  /* it said EXIT */
	bool holding; /* pools are answered by world_life_restart() */
	struct world_store ledger;
	struct world_watch *watches; /* processes of earlier lives that the engine wants watched */
	uint32_t n_watches, cap_watches;
	struct world_process {
		uint32_t pid;
		uint64_t start_time;
	} * gone; /* processes that ended */
	uint32_t n_gone, cap_gone;
	struct world_check checks[8];
	uint32_t n_checks;
	uint64_t check_ns; /* a VERIFY takes that long; at first 100 us */
	/* crash points */
	uint64_t n_points;  /* passed so far; counted while the program has any */
	uint64_t countdown; /* 0: none is armed */
	const char *point;  /* where the last kill happened; NULL: between steps */
	bool in_step;
	jmp_buf env;
};

void world_life_kill(struct world *w);
void world_life_kill_at(struct world *w, uint64_t n); /* 0: not any more */
bool world_life_down(const struct world *w);
/*
 * Drains until the engine says EXIT or `ns` have passed, then the memory is left; what the tiers
 * had under way arrives first.
 */
void world_life_stop(struct world *w, uint64_t ns);
/*
 * Begins the next life and answers what it asks for, unless world_config.hold_pools; processes that
 * died meanwhile are told of before or after that, by the seed.  Return: 0; -ENOMEM: the heap was
 * set to fail, and it stays down.
 */
radix_nodiscard int world_life_restart(struct world *w);
/* The next life, without RESTORE: what the last one left is given up. */
void world_life_forego(struct world *w);
/* Orphans of earlier lives that the engine still has watched. */
uint32_t world_life_watches(const struct world *w);
