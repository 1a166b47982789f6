/*
 * room.h - what the tests of room and of moves share: small pools with a host tier, prompts by
 * number, a RESERVE that may wait.
 */
#pragma once

#include "tests/engine/scene.h"

#include "daemon/engine_internal.h"

#define ROOM_MS 1000000ull

/* `slots` device slots, `host` host slots; a copy takes 1 ms, one at a time. */
void room_config(struct world_config *config, uint32_t slots, uint32_t host);
struct world *room_world(const struct world_config *config);
/* A worker with a namespace of its own process. */
struct scene_place room_place(struct world *w, uint32_t pid);

/* n blocks of prompt `id`; the keys live until the next call with the same id. */
struct scene_prompt room_prompt(uint32_t id, uint32_t n);
/* Stores them, waiting as long as it takes. */
void room_put(const struct scene_place *at, uint32_t id, uint32_t n);

struct room_lease {
	uint64_t id;
	uint64_t seq; /* of the RESERVE */
	uint32_t n_device, n_host;
};

struct room_lease room_match(const struct scene_place *at, uint32_t id, uint32_t n);
/* RESERVE n blocks; its status, or -EINPROGRESS.  ret may be NULL. */
int room_reserve(const struct scene_place *at, struct room_lease *l, uint32_t n,
		 uint32_t deadline_us, uint32_t *ret_n);
/* The late reply to it: its status or -EINPROGRESS. */
int room_reply(const struct scene_place *at, const struct room_lease *l, uint32_t *ret_n);
/* COMMIT of n blocks without checksums. */
void room_commit(const struct scene_place *at, const struct room_lease *l, uint32_t n);
void room_release(const struct scene_place *at, const struct room_lease *l);
struct radix_stats room_stats(struct world *w);
