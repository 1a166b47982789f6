/*
 * claims.h - what must be so whatever happens, seen from outside the engine.
 *
 *   1. Bytes that a worker reads from a slot that it leased are what namespace, tenant, salt, epoch
 *      and path say, from the reply that named the slot until the worker lets go of it: RELEASE,
 *      QUIESCED, the end of its process, or a generation that says stale (revocable reads).
 *   2. A slot that is given to be filled is in no other use: no process that lives may still read
 *      or write it, under whatever life of the daemon it got it.
 *   3. What is found was committed, under the same root and epoch.
 *   4. What lives on a lease of a process that lives is found.
 *   5. What was found before the daemon's end is found after its start (life.c).
 *   6. What a process was to fill when it died is nobody's until the grace is over: its device goes
 *      on writing, and here it does.
 *
 * Claims say who may use a slot. Truth says which blocks were ever committed.
 */
#pragma once

#include "tests/engine/oracle.h"
#include "tests/engine/universe.h"
#include "tests/lib/world.h"

enum {
	SIM_CODED_BYTES = 8 * UNIVERSE_BYTES, /* of a block in a namespace with a cold codec */
	SIM_BYTES = SIM_CODED_BYTES
};

enum sim_use {
	SIM_READS,  /* a block on the path of a lease */
	SIM_KEEPS,  /* the worker's own bytes, committed or not: nobody else writes here */
	SIM_WRITES, /* reserved, to be filled */
};

struct sim_claim {
	enum sim_use use;
	uint32_t life;    /* of the daemon, under which it was given */
	uint32_t session; /* which may still speak for it; RADIX_NONE: none */
	bool revoked;     /* the lease was taken back; the slot is the worker's until QUIESCED */
	bool lossy;       /* READS: the codec has changed these bytes */
	bool revocable;   /* a read that ends when the generation exceeds `reuse` */
	uint64_t lease;
	uint64_t reuse;
	uint32_t group, slot;
	uint32_t offset;    /* of a rank's piece, in the slot */
	const void *memory; /* of the slot, as the worker maps it */
	uint32_t at;        /* READS: place of the block in the lease's path */
	uint64_t path;      /* READS: of a path from its prompt's beginning; 0: of none */
	uint64_t until_ns;  /* of a dead process: it may be written so long */
	uint32_t len;
	uint8_t bytes[SIM_BYTES];
};

struct sim_claims {
	struct sim_claim *v;
	uint32_t n, cap;
};

struct sim;

/* f(namespace, tenant, salt, epoch, path): what block j of the prompt must hold. */
void sim_content(const struct universe_prompt *p, uint64_t epoch, uint32_t j, uint32_t len,
		 uint8_t *out);
/* A number for the whole path up to and with block j of the prompt, in that epoch; never 0. */
uint64_t sim_path(const struct universe_prompt *p, uint64_t epoch, uint32_t j);

/* A reply named a slot.  Fails the test when the use that it is given for is not possible. */
void sim_claim(struct sim *s, uint32_t proc, const struct sim_claim *c);
/* Claims of a lease end: all, or those of one use. */
void sim_claims_end(struct sim *s, uint32_t proc, uint32_t life, uint64_t lease);
void sim_claims_deinit(struct sim *s);
/* A process dies, and its device goes on. */
void sim_ghosts_rise(struct sim *s, uint32_t proc);
/* The daemon ends: until the next life knows of it, nobody is given what they write. */
void sim_ghosts_stay(struct sim *s);
/* A new life of the daemon heard of all that died before. */
void sim_ghosts_told(struct sim *s);
/* They write. */
void sim_ghosts_act(struct sim *s);
/* Every claim's slot holds what it must. */
void sim_claims_check(struct sim *s);
/* Reads a slot as a worker does: the bytes, then the generation. False: the read came too late. */
bool sim_read(struct sim *s, const struct sim_claim *c, uint8_t *out);
