/*
 * restore.h - memory of an earlier life: found at the start, handed to the engine, left at the end.
 *
 *     lock of the admin socket -> keeper -> ledger -> [fits the settings?] -> engine: RESTORE
 *                                                                               | POOL_ADOPT, WATCH
 *     POOL_READY with table and generations  <-  copy thread  <-----------------+
 *
 * What it guarantees.  Memory that this program does not understand, or that does not fit the
 * settings, is left where it is: the daemon does not start, and says how to give the memory up.
 * Memory that makes starts die is given up after PREFIXD_LEDGER_ATTEMPTS of them.  What nobody
 * takes back is given up.  With --keep none all calls do nothing.
 */
#pragma once

#include "daemon/keep.h"
#include "daemon/ledger.h"
#include "daemon/pools.h"

struct prefixd_server;
struct prefixd_options;

struct prefixd_restore; /* opaque */

/* What was found, in bytes of memory that exists already. */
struct prefixd_kept {
	uint32_t n_pools;
	uint64_t pool_bytes, host_bytes;
	bool on_gpu;         /* pools take none of this machine's memory */
	const char *way_out; /* how to begin without it */
};

/*
 * Finds the keeper and what he has; config->naming_key is set.  Fills what the engine's
 * configuration says of it, in config.  Return: 0; negative errno with a sentence in `why`.
 */
radix_nodiscard int prefixd_restore_start(struct prefixd_server *s,
					  struct prefixd_engine_config *config, char *why,
					  size_t why_len);
/* The engine's first event, if there is anything to take up.  The helpers run. */
void prefixd_restore_go(struct prefixd_server *s);
/* After steps: says once what came back, as soon as all has. */
void prefixd_restore_look(struct prefixd_server *s);
/* The end; the engine and the pools are gone.  `release`: the memory is given up. */
void prefixd_restore_stop(struct prefixd_server *s, bool release);

/* Whom new memory is given to; NULL: nobody. */
struct prefixd_keep *prefixd_restore_keep(const struct prefixd_server *s);
/* Descriptors of an earlier life's group, the caller's from then on; -1: none. */
void prefixd_restore_take(struct prefixd_server *s, uint32_t group,
			  int ret_fds[PREFIXD_N_MEMORIES]);
/* On which GPUs it lies, by rank.  False: on none, or the ledger does not say. */
bool prefixd_restore_devices(const struct prefixd_server *s, uint32_t group,
			     struct proto_id ret_ids[PREFIXD_RANKS_MAX]);
/* The keeper forgets the group. */
void prefixd_restore_drop(struct prefixd_server *s, uint32_t group);

/*
 * Before another program takes over (SIGUSR2): could it read what is kept?  This one says what
 * there is, in an environment variable for the child that asks; the child, which is the other
 * program, judges.
 */
#define PREFIXD_CHECK_KEPT "PREFIXD_CHECK_KEPT" /* "FD FD...": the ledger, then block tables */
/* Descriptors for it, at most `cap`, which stay the callee's.  Return: how many; 0: none. */
uint32_t prefixd_restore_fds(const struct prefixd_server *s, int *ret_fds, uint32_t cap);
/*
 * In the child, of the variable's text.  The device is opened too, and closed again: with a GPU
 * that takes the memory of a context for a moment.  Return: 0; negative errno with a sentence in
 * `why`.
 */
radix_nodiscard int prefixd_restore_check(const struct prefixd_options *o, const char *fds,
					  char *why, size_t why_len);

/* For whoever shows it. */
struct prefixd_restore_info {
	enum prefixd_keeper keeper; /* HOLDER, SYSTEMD, NONE */
	bool lost;                  /* a keeper was asked for, and is not there */
	bool state;                 /* there was something to take up */
	uint64_t ns;                /* from the start of the program to the end of it; 0: not yet */
	struct prefixd_restored restored;
};

void prefixd_restore_info(const struct prefixd_server *s, struct prefixd_restore_info *ret);
