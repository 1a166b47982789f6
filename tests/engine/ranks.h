/*
 * ranks.h - what the tests of leases that ranks share have in common: W workers, each a process of
 * its own, and calls that name the rank.
 */
#pragma once

#include "tests/engine/scene.h"

#define RANKS_MAX 16

struct ranks {
	struct world w;
	struct world_config config;
	uint32_t n;
	struct scene_place at[RANKS_MAX]; /* by rank */
	uint64_t decision;                /* of the last request */
};

extern struct ranks ranks;

/* Defaults: 32 slots, no grace.  Change ranks.config, then begin. */
void ranks_config(void);
void ranks_begin(uint32_t n);
/* OPEN of this rank; pid 0: none. */
struct proto_open_req ranks_open_req(uint32_t n, uint32_t rank);
/* A worker of rank `rank`, process `pid`. */
struct scene_place ranks_worker(uint32_t pid, uint32_t rank);

/* The id of decision number n. */
struct proto_id ranks_id(uint64_t n);
/* n keys of a prompt that begins with token `first`; valid until the next call. */
struct proto_match_req ranks_match_req(const struct scene_place *at, uint64_t decision,
				       uint32_t first, uint32_t n_keys);
/* These check that the status is OK. */
struct proto_match_rep ranks_match(uint32_t rank, uint64_t decision, uint32_t first,
				   uint32_t n_keys);
uint32_t ranks_reserve(uint32_t rank, uint64_t lease, uint32_t n);
struct proto_commit_rep ranks_commit(uint32_t rank, uint64_t lease, uint32_t n);
void ranks_release(uint32_t rank, uint64_t lease);
/* Without a check: their status. */
int ranks_try_commit(uint32_t rank, uint64_t lease, uint32_t n, struct proto_commit_rep *ret);
int ranks_try_reserve(uint32_t rank, uint64_t lease, uint32_t n);
/* All ranks store n blocks. */
void ranks_put(uint32_t first, uint32_t n_keys);
/* How many of these blocks all ranks find; asked by a decision of its own. */
uint32_t ranks_find(uint32_t first, uint32_t n_keys);
/* Slots of the pool in this state. */
uint64_t ranks_slots(enum radix_slot_state state);
