/*
 * random_tiers_internal.h - what the files of the random workers over tiers share.
 */
#pragma once

#include "tests/engine/oracle.h"
#include "tests/engine/random_tiers.h"
#include "tests/engine/universe.h"

enum {
	TIERS_PROCS = 5,
	TIERS_PER_PROC = 2,
	TIERS_SESSIONS = TIERS_PROCS * TIERS_PER_PROC,
	TIERS_LEASES = 3,
};

/* What a reply last said of a block that is not on the lease's path. */
enum tiers_mark {
	TIERS_UNSEEN, /* no reply was about it */
	TIERS_HOST,
	TIERS_REDIS,
	TIERS_MISSED,
};

struct tiers_lease {
	bool used;
	bool island; /* found by its first key: blocks begin at p.skip */
	uint64_t id;
	uint64_t epoch;
	struct universe_prompt p;
	uint32_t given; /* keys the engine knows, of p.n */
	uint32_t n_path;
	uint32_t slots[UNIVERSE_MAX]; /* of the path */
	uint8_t marks[UNIVERSE_MAX];  /* enum tiers_mark */
	uint64_t n_tokens;
	uint64_t device, host, redis, pending; /* blocks hit */
	uint32_t res[UNIVERSE_MAX], n_res;
	uint64_t reserving; /* seq of a RESERVE that waits */
	uint32_t want;
	uint64_t waiting;   /* seq of a WAIT */
	uint64_t loading;   /* seq of the request that began the load */
	bool load_deadline; /* it named one */
	uint32_t load_want, load_taken;
	uint32_t loaded; /* blocks that the last EVENT promised, not taken yet */
};

struct tiers_session {
	struct world_client *c;
	uint32_t ns[UNIVERSE_NS];
	struct tiers_lease leases[TIERS_LEASES];
	bool blue; /* of the other tenant */
	bool orphan;
};

struct tiers_run {
	struct world w;
	struct random_tiers_config config;
	struct random_tiers_result result;
	struct oracle oracle;
	uint64_t epochs[UNIVERSE_NS];
	uint64_t next_op;
	struct tiers_session sessions[TIERS_SESSIONS];
};

static inline uint32_t tiers_below(struct tiers_run *r, uint32_t n)
{
	return test_rng_below(&r->w.rng, n);
}

static inline bool tiers_chance(struct tiers_run *r, uint32_t permille)
{
	return tiers_below(r, 1000) < permille;
}

/* ---- random_tiers_lease.c ---- */

/* Replies and EVENTs that came since. */
void tiers_hear(struct tiers_run *r, struct tiers_session *s);
void tiers_match(struct tiers_run *r, struct tiers_session *s);
void tiers_extend(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l);
void tiers_reserve(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l);
void tiers_commit(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l);
void tiers_release(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l);
void tiers_wait(struct tiers_run *r, struct tiers_session *s, struct tiers_lease *l);
void tiers_probe(struct tiers_run *r, struct tiers_session *s);
void tiers_prefetch(struct tiers_run *r, struct tiers_session *s);
