/*
 * follower.h - a subscriber that keeps what the stream tells, as a router would.
 *
 * It knows the engine by its events alone.  follower_check() compares what it knows with what the
 * index says: slot by slot, and every member's name, parent and position.
 */
#pragma once

#include "tests/lib/world.h"

#define FOLLOWER_SLOTS 128
#define FOLLOWER_POOLS 2 /* by namespace: follower_pool() */

struct follower_block {
	bool used;
	uint32_t ns, tenant, n_tokens, position;
	uint8_t root[16];
	uint8_t id[PROTO_DIGEST_MAX], parent[PROTO_DIGEST_MAX];
	uint32_t id_len, parent_len;
};

struct follower {
	struct world_client *c;
	struct follower_block blocks[FOLLOWER_POOLS][FOLLOWER_SLOTS];
	uint32_t pool_of[16]; /* by namespace */
	uint64_t last;        /* number of the last event */
	uint64_t revision;    /* of the last cleared */
	uint64_t n[PROTO_CHANGE_RESYNC + 1];
	uint64_t removed[PROTO_REMOVAL_DROPPED + 1];
	uint64_t n_events;
	/* Token mode: a name holds an entry and how often it was taken; no name comes twice. */
	uint64_t taken[2 * FOLLOWER_SLOTS], most_taken;
};

/* SUBSCRIBE on a connection that said HELLO.  Return: the status. */
int follower_begin(struct follower *f, struct world_client *c, uint32_t ns, uint64_t from,
		   const struct proto_id *life);
/* Lets 3 ms pass and takes in what came. */
void follower_listen(struct follower *f);
uint32_t follower_n(const struct follower *f);
/* What the follower knows is what the index of the pool has. */
void follower_check(const struct follower *f, uint32_t group);
