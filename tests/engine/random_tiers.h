/*
 * random_tiers.h - random workers over pools, host memory and Redis, with faults in between.
 *
 * What comes up from below is read from the simulated device and compared with what its namespace
 * and path say; everything found was stored before under the same root and epoch; without faults
 * everything ever stored is found, in one tier or another; what a lease is settled with is what its
 * replies told; every invariant is verified after each step; nothing is left at the end.
 */
#pragma once

#include "tests/lib/world.h"

struct random_tiers_config {
	uint64_t seed;
	uint64_t n_steps; /* of the engine */
	uint32_t n_slots;
	uint32_t index_blocks;
	uint64_t grace_ns;
	enum prefixd_write_policy write;
	uint32_t watermark_low, watermark_high;
	uint32_t move_window;
	uint64_t reserve_ns;
	uint32_t kills_permille;   /* of the operations: a process dies */
	uint32_t outside_permille; /* Redis goes, stalls, loses or damages values */
	uint32_t admin_permille;   /* evict, flush, invalidate */
	bool islands;              /* digests whose beginning is not known */
	bool lossless; /* nothing may ever be missed: no faults, room below for everything */
	bool losses;   /* copies below may vanish or be damaged */
	struct world_tiers_config tiers;
};

struct random_tiers_result {
	struct prefixd_counters counters;
	struct world_tiers_stats tiers;
	struct radix_stats index;
	uint64_t n_steps, n_kills, n_read, n_loaded, n_cut, n_failed, n_deferred, n_invalidated;
	uint64_t n_grafts, n_conflicts, n_waits, n_replays;
	uint64_t found[3]; /* blocks told by MATCH, by tier */
	uint64_t max_members;
};

/* Fails the running test at the first difference; else fills in what happened. */
void random_tiers_run(const struct random_tiers_config *config, struct random_tiers_result *ret);
