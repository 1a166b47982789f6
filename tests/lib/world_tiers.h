/*
 * world_tiers.h - the simulated world below the pools: a host arena for each pool, and a Redis.
 *
 * What it is.  COPY, STORE, FETCH, NAMES, LOOK and EPOCH are carried out here.  Each is answered
 * after a virtual delay, by world_advance() and world_run_until_idle() only, in the order of the
 * delays; a plan says how long, and what goes wrong.
 *
 * What it guarantees.  Bytes are what the slots say at the time: half of a block is taken when its
 * move begins and half when it ends, and its target is junk until then, so that a slot which is
 * used again too early shows in what is read later.  While a move is under way the test fails when
 * its source or target is granted, freed, handed out anew or written by another move; and when a
 * host slot is read that nothing was written to since it became free.
 */
#pragma once

#include "daemon/engine.h"

struct world;
struct world_tiers;
struct world_redis; /* the values; may outlive a world and serve the next one */

struct world_link {
	uint64_t latency_ns;
	uint64_t bytes_per_s; /* one block after the other; 0: no limit */
};

/* name, the action that it befalls, how that ends */
#define WORLD_FAULTS(X)                                          \
	X(COPY_FAILED, COPY, FAILED)                             \
	X(COPY_CORRUPT, COPY, CORRUPT) /* out of host memory */  \
	X(STORE_FAILED, STORE, FAILED)                           \
	X(STORE_DOWN, STORE, DOWN)                               \
	X(FETCH_LOST, FETCH, LOST)       /* the value is gone */ \
	X(FETCH_CORRUPT, FETCH, CORRUPT) /* it was damaged */    \
	X(FETCH_DOWN, FETCH, DOWN)                               \
	X(LOOK_NOTHING, LOOK, DOWN) /* nothing is there, or nobody could say */

enum world_fault {
#define X(sym, action, result) WORLD_FAULT_##sym,
	WORLD_FAULTS(X)
#undef X
	WORLD_N_FAULTS
};

/* All zero: no tiers. */
struct world_tiers_config {
	uint32_t host_blocks;
	bool redis;
	bool redis_down;            /* at the beginning */
	struct world_redis *values; /* of an earlier world, taken over; NULL: none yet */
	uint64_t seed;              /* of delays and faults */
	struct world_link copy;     /* between device and host */
	struct world_link remote;   /* to and from Redis */
	uint64_t jitter_ns;         /* each answer comes up to that much later */
	uint64_t deadline_ns;       /* of requests to Redis that name none; 0: they wait */
	uint32_t breaker;           /* late answers in a row until Redis is given up; 0: never */
	uint32_t max_values;        /* Redis keeps that many, those used last; 0: all */
	uint32_t faults[WORLD_N_FAULTS]; /* how many of 1,000 */
};

/* The connection breaks, or is there again; the engine is told. */
void world_redis_up(struct world *w, bool up);
/* The next life of the daemon is started with it, or without. */
void world_redis_use(struct world *w, bool use);
/* Redis does not answer: requests end at their deadline, or wait for the end of this. */
void world_redis_stall(struct world *w, bool stalled);
/* Takes away or damages that many percent of the values; returns how many. */
enum world_poke {
	WORLD_POKE_LOSE,
	WORLD_POKE_DAMAGE
};
uint32_t world_redis_poke(struct world *w, enum world_poke what, uint32_t percent);
/* The same for one value: the n-th of those used least lately. */
void world_redis_poke_one(struct world *w, enum world_poke what, uint32_t n);
uint32_t world_redis_values(const struct world *w);
/* Takes the values out of the world, for the configuration of another one. */
struct world_redis *world_redis_detach(struct world *w);
struct world_redis *world_redis_free(struct world_redis *r);

/* The next n of these go wrong. */
void world_fault(struct world *w, enum world_fault fault, uint32_t n);
/* The next n answers come this much later, at once slower than any after them. */
void world_delay(struct world *w, uint64_t ns, uint32_t n);
/* Moves and LOOKs that are not answered yet. */
uint32_t world_in_flight(const struct world *w);
/* Turns the clock until nothing is in flight that will ever be answered. */
void world_run_until_idle(struct world *w);

/* INVALIDATE, as an operator gives it; and the same heard from elsewhere. */
void world_invalidate(struct world *w, uint32_t ns);
void world_epoch_seen(struct world *w, const uint8_t digest[32], struct prefixd_epoch epoch);
/* The namespace's epoch as the engine last said; {0, 0}: it said nothing. */
struct prefixd_epoch world_epoch(const struct world *w, const uint8_t digest[32]);

/*
 * What the world's codec makes of a block, whatever the group's is: the same again when it is coded
 * again.  One that begins with 0xff cannot be coded.
 */
#define WORLD_UNCODABLE 0xffu
void world_code(uint8_t *block, uint64_t len);

/* XXH3-128 of a block, as checksums have it. */
void world_sum(const void *bytes, uint64_t len, uint8_t out[16]);

struct world_tiers_stats {
	uint64_t moved[3][3]; /* answered OK, from, to */
	uint64_t answers[6];  /* of moves, by how they ended */
	uint64_t looks, names, epochs;
	uint64_t max_in_flight;
};

void world_tiers_stats(const struct world *w, struct world_tiers_stats *ret);
/* A bit flips in that many percent of the host slots in use; returns how many. */
uint32_t world_host_damage(struct world *w, uint32_t group, uint32_t percent);
