/*
 * tiers_scene.h - what the scenario tests of the tiers share: a world with a pool of few prompts,
 * and tiers below it.
 */
#pragma once

#include "tests/engine/scene.h"

enum {
	BLOCKS = 8, /* of each prompt */
	BT = 4      /* tokens of each block */
};

struct tiers_scene {
	struct world w;
	struct world_config config;
	uint32_t tokens[16][BLOCKS * BT];
};

/* The test's own; one at a time. */
extern struct tiers_scene tiers;

/*
 * The configuration of the next world: copies take 10 us, Redis 200 us, and requests to it end
 * after 50 ms.
 */
void tiers_configure(uint32_t n_slots, uint32_t n_host, bool redis);
/* The world, and a worker in it. */
struct scene_place tiers_begin(void);
struct scene_prompt tiers_prompt(const struct scene_place *at, uint32_t p);
/* Stores prompt p, full of p + 1, and waits until nothing moves; returns blocks stored. */
uint32_t tiers_put(const struct scene_place *at, uint32_t p);
/* Where the prompt's blocks lie. */
void tiers_check_at(const struct scene_place *at, uint32_t p, uint32_t device, uint32_t host,
		    uint32_t redis);
/* No pin, no reservation, no half-done move: every slot is free or a block's. */
void tiers_check_quiet(void);
