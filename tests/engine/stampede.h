/*
 * stampede.h - many workers with cold prompts that share their beginning, one step at a time.
 *
 * Every worker's prompt begins with the stem that all share, goes on with one that its group
 * shares, and ends in a tail of its own. Each goes the honest way: MATCH with LEAD; WAIT for what
 * others compute, EXTEND when it is there; RESERVE, write and COMMIT the rest in pieces. A seed
 * decides whose turn it is and what goes wrong. The model (flight.h) says beforehand what is
 * pending, who waits, who is told what and when, and which block is stored by whom.
 */
#pragma once

#include "tests/engine/flight.h"
#include "tests/engine/scene.h"

enum {
	STAMPEDE_MAX = 20, /* workers at a time; their lost connections take places too */
	STAMPEDE_STEM = 5,
	STAMPEDE_GROUP = 3,
	STAMPEDE_TAIL = 4,
	STAMPEDE_BLOCKS = STAMPEDE_STEM + STAMPEDE_GROUP + STAMPEDE_TAIL,
	STAMPEDE_GROUPS = 4,
	STAMPEDE_TOKENS = 4 * STAMPEDE_BLOCKS,
	STAMPEDE_NODES = STAMPEDE_BLOCKS * (1 + STAMPEDE_GROUPS + STAMPEDE_MAX),
};

/* What may go wrong; each is tried now and then, with whoever it can happen to. */
enum stampede_fault {
	STAMPEDE_KILL = 1,
	STAMPEDE_EOF = 2,     /* the socket ends; the worker comes back and says QUIESCED, or not */
	STAMPEDE_STOP = 4,    /* it stands still for longer than leaders are waited for */
	STAMPEDE_EARLY = 8,   /* it gives its lease back in the middle, and asks again */
	STAMPEDE_CANCEL = 16, /* it does not wait any more */
	STAMPEDE_REVOKE = 32, /* workers copy, and leases have an age limit */
	STAMPEDE_RESTART = 64, /* SIGKILL of the daemon; another one takes its memory up */
	STAMPEDE_ROOM = 128,   /* most of the pool is taken: RESERVE is cut short or BUSY */
};

struct stampede_config {
	uint64_t seed;
	uint32_t n; /* workers */
	uint32_t faults;
	uint32_t per_mille; /* of the turns are faults */
};

struct stampede_result {
	uint64_t n_stored, n_duplicate, n_waits, n_ready, n_lead, n_failed, n_deadline, n_late;
	uint64_t n_faults, n_cut, n_busy, n_lives;
};

/* Runs it to the end, where every worker has had its answer; fails the test at the first
 * difference. */
void stampede_run(const struct stampede_config *config, struct stampede_result *ret);
