/*
 * sim.h - one simulated world under one seed: daemon, workers, device, Redis and keeper.
 *
 * What it is.  A seed says how the world is built and everything that happens in it: what ten
 * workers ask for, who dies when, at which crash point the daemon stops, which answers of the
 * device and of Redis are late, out of order or lost, what is damaged, how the clock jumps.
 *
 * What it guarantees.  The same seed and number of operations give the same run.  The first thing
 * that is not as claims.h says ends the process with status 1 and says what it was.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sim_config {
	uint64_t seed;
	uint64_t n_ops;
	bool record;    /* keep a transcript; a failure prints its end */
	bool faultless; /* nobody dies and nothing goes wrong, for comparison */
	bool one_life;  /* the daemon never ends */
	bool blind;     /* the engine's invariants are not verified */
};

#define SIM_COUNTS(X)                                                       \
	X(ops, "operations")                                                \
	X(steps, "steps of the engine")                                     \
	X(matches, "prompts asked for")                                     \
	X(asked, "blocks asked for")                                        \
	X(hits, "blocks found")                                             \
	X(ideal, "blocks that a cache of the same size without faults had") \
	X(commits, "blocks committed")                                      \
	X(reads, "blocks read and right")                                   \
	X(worker_kills, "workers killed")                                   \
	X(daemon_kills, "daemons killed between steps")                     \
	X(crash_kills, "daemons killed within a step")                      \
	X(restart_kills, "daemons killed while they started")               \
	X(stops, "daemons stopped and started")                             \
	X(upgrades, "daemons replaced under live workers")                  \
	X(changes, "starts with other settings")                            \
	X(damages, "block tables damaged")                                  \
	X(sleeps, "workers stopped")                                        \
	X(jumps, "jumps of the clock")                                      \
	X(devices, "devices lost")                                          \
	X(told_lost, "leases told that their device is lost")               \
	X(kept_lower, "blocks that had to stay, and did, when it was")      \
	X(lossy, "blocks told to be changed by a codec")                    \
	X(exact, "prompts asked for exactly")                               \
	X(hollow, "blocks made hollow in the last lives")                   \
	X(striped, "blocks stored by all ranks")                            \
	X(equal, "answers that ranks had to be told alike")                 \
	X(broken, "leases that a rank left")                                \
	X(windowed, "prompts asked for through a window")                   \
	X(outside, "faults of Redis and of host memory")                    \
	X(orphaned, "leases that outlived their socket")                    \
	X(revoked, "leases taken back")                                     \
	X(audited, "blocks that had to be there after a start")             \
	X(lost, "blocks that a crash within a step took along")             \
	X(leads, "leads given")                                             \
	X(waits, "waits that ended")                                        \
	X(loads, "loads that ended")

#define SIM_POINTS 64

struct sim_result {
#define X(name, help) uint64_t name;
	SIM_COUNTS(X)
#undef X
	struct sim_point {
		char name[32];
		uint64_t n;
	} points[SIM_POINTS]; /* where daemons were killed within a step */
};

/* So many more were killed there. */
void sim_point_add(struct sim_result *r, const char *name, uint64_t n);

/* Runs it; returns only if nothing was wrong.  *ret is brought up to date as it goes. */
void sim_run(const struct sim_config *config, struct sim_result *ret);
/* The operation that the run is at, for the report of a failure. */
uint64_t sim_at(void);
