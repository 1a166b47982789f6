/*
 * random_internal.h - what the files of the random workers share.
 */
#pragma once

#include "tests/engine/flight.h"
#include "tests/engine/random.h"
#include "tests/engine/universe.h"

enum {
	N_PROCS = 6,
	PER_PROC = 2,
	N_SESSIONS = N_PROCS * PER_PROC,
	N_LEASES = 3,
};

struct lease {
	bool used;
	bool island;
	uint64_t id;
	struct universe_prompt p;
	uint32_t given; /* keys the engine knows, of p.n */
	uint32_t n_path;
	int path[UNIVERSE_MAX]; /* blocks of the model */
	int hold, donor_hold;
	uint32_t looked;
	uint32_t n_device, n_pending;
	uint32_t tail_offer, tail_used, tail_last;
	uint64_t n_tokens;
	uint32_t res[UNIVERSE_MAX], n_res;
	uint32_t own[UNIVERSE_MAX], n_own;
	struct flight_lease f;
	/* random_age.c */
	uint64_t begun_ns;
	bool revoked; /* and its worker has not heard of it */
};

struct session {
	struct world_client *c;
	uint32_t ns[UNIVERSE_NS];
	struct lease leases[N_LEASES];
	bool orphan;
	bool copies;
};

struct run {
	struct world w;
	struct random_config config;
	struct random_result result;
	struct model m;
	struct flight flight;
	struct session sessions[N_SESSIONS];
	struct {
		uint64_t due_ns; /* UINT64_MAX: of a lease that was taken back */
		uint64_t lease;
		uint32_t n, pid, session;
	} kept[4096]; /* slots of processes that ended, or may still write them */
	uint32_t n_kept;
	uint64_t next_op;
};

/* How the path goes on, by the model; islands are found by their first key. */
uint32_t random_expect(struct run *r, const struct lease *l, int blocks[UNIVERSE_MAX]);

enum random_keep {
	RANDOM_FREE,
	RANDOM_GRACE,
	RANDOM_REVOKED,
};
/* The model's side of a lease's end, and of a session's: where the slots go. */
void random_lease_over(struct run *r, struct session *s, struct lease *l, enum random_keep keep);
void random_session_over(struct run *r, struct session *s, enum random_keep keep);

/* ---- random_age.c: leases that grow too old ---- */

/* The clock goes on, for the engine and for the models. */
void random_pass(struct run *r, uint64_t ns);
/* The worker asks about a lease that was taken back. */
void random_hear_of(struct run *r, struct session *s, struct lease *l);
/* Slots that wait for the end of this session or for its QUIESCED. */
uint32_t random_revoked_slots(const struct run *r, const struct session *s);
/* QUIESCED: those of leases that the worker heard of are free; returns how many. */
uint32_t random_quiesce(struct run *r, const struct session *s);

/* ---- random_flight.c: who computes, who waits ---- */

void random_flight_init(struct run *r);
/* The model of single flight learns where the lease stands. */
void random_flight_sync(struct lease *l);
/* The end of an engine's step: what was told to whom? */
void random_flight_check(struct run *r);
/* EXTEND or MATCH was answered, with these flags. */
void random_flight_matched(struct run *r, struct lease *l, const struct proto_match_rep *rep,
			   uint32_t flags);
void random_wait(struct run *r, struct session *s, struct lease *l);
