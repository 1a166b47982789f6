/*
 * random.h - random workers in the simulated world, each with a model of what it did.
 *
 * Every byte that the engine delivers is read from the simulated device and compared with what its
 * namespace and path say it must be; every hit, grant, victim and settled count is compared with
 * the naive model, in runs with faults too; every invariant is verified after each step.
 */
#pragma once

#include "tests/lib/world.h"

struct random_config {
	uint64_t seed;
	uint64_t n_steps;        /* of the engine */
	uint32_t n_slots;        /* at most 256 */
	uint32_t kills_permille; /* of the operations: a process dies */
	uint64_t grace_ns;
	uint64_t max_age_ns; /* half of the processes copy, and their leases end then; 0: never */
	bool watches_processes;
	bool islands;
};

struct random_result {
	struct prefixd_counters counters;
	uint64_t n_steps, n_kills, n_verified_blocks, n_hits, n_replays, n_orphans, n_removed;
	uint64_t n_waits, n_ready, n_lead, n_deadline, n_late; /* of single flight */
	uint64_t n_revoked;
};

/* Fails the running test at the first difference; else fills in what happened. */
void random_run(const struct random_config *config, struct random_result *ret);
