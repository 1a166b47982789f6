/*
 * lift.h - what the tests of loads share: prompts that lie lower, PROMOTE, the EVENT at the end.
 */
#pragma once

#include "tests/engine/room.h"

enum {
	LIFT_BLOCKS = 8, /* of a prompt */
	LIFT_BT = 4      /* tokens of a block */
};

/* One world at a time, and a worker in it. */
extern struct world_config lift_config;
extern struct world *lift_world;
extern struct scene_place lift_at;

/* A pool of `slots`; copies take 1 ms each, one after the other, and so do values of Redis. */
void lift_configure(uint32_t slots, uint32_t host, bool redis);
void lift_begin(void);
/* Prompts 0..n-1 are stored, one after the other; the older ones lie lower. */
void lift_store(uint32_t n);
/* Frees n slots: somebody wants them and thinks better of it. */
void lift_clear(uint32_t n);
/* Moves up that ended well. */
uint64_t lift_raised(void);
/* MATCH with PROMOTE; returns its seq. */
uint64_t lift_promote(const struct scene_place *who, uint32_t id, uint32_t n, uint32_t deadline_us,
		      struct proto_match_rep *ret);
/* MATCH alone. */
void lift_match(const struct scene_place *who, uint32_t id, uint32_t n,
		struct proto_match_rep *ret);
/* The oldest EVENT of the worker is this one. */
void lift_check_event(const struct scene_place *who, uint64_t seq, uint64_t lease,
		      enum proto_wait_state state, uint32_t n, enum proto_reason reason);
void lift_check_silent(const struct scene_place *who);
/* Nothing is held and nothing is under way; the world ends. */
void lift_end(void);
