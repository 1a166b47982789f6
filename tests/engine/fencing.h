/*
 * fencing.h - what the tests of fencing share: a small pool, workers that read in place and workers
 * that copy, prompts by their first token.
 */
#pragma once

#include "tests/engine/scene.h"

#include "daemon/engine_internal.h"

enum {
	SLOTS = 32,
	SECOND = 1000000000,
};

struct fencing {
	struct world w;
	struct world_config config; /* before fencing_begin() */
	struct proto_open_req o;
	uint32_t tokens[4 * SLOTS]; /* of the prompt that was asked for last */
};

extern struct fencing fencing;

void fencing_setup(void); /* of each test: defaults, a transcript */
void fencing_begin(void);
struct scene_place fencing_worker(uint32_t pid);
/* One that copies blocks out before it computes. */
struct scene_place fencing_copier(uint32_t pid);
struct proto_match_rep fencing_match(const struct scene_place *at, uint32_t first, uint32_t n);
/* MATCH and RELEASE; the blocks found. */
uint32_t fencing_found(const struct scene_place *at, uint32_t first, uint32_t n);
/* Stores n blocks that were not there, full of `fill`. */
void fencing_put(const struct scene_place *at, uint32_t first, uint32_t n, uint8_t fill);
/* Slots granted; 0: BUSY.  The first of them in *ret_slot, which may be NULL. */
uint32_t fencing_reserve(const struct scene_place *at, uint64_t lease, uint32_t n,
			 uint32_t *ret_slot);
int fencing_commit(const struct scene_place *at, uint64_t lease, uint32_t n);
uint64_t fencing_slots(enum radix_slot_state state);
uint64_t fencing_pins(void);
uint64_t fencing_generation(uint32_t slot);
struct proto_quiesced_rep fencing_quiesced(const struct scene_place *at);
