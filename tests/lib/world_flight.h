/*
 * world_flight.h - the tiers of the simulated world, from inside: world_tiers.c, world_outside.c.
 */
#pragma once

#include "tests/lib/world.h"
#include "tests/lib/world_redis.h"

#define WORLD_EPOCHS 64

/* A move or a LOOK that is not answered. */
struct flight {
	enum prefixd_action_type type;
	uint32_t group;
	uint32_t id;
	uint64_t begun_ns, due_ns; /* UINT64_MAX: never */
	uint64_t limit_ns;         /* the deadline of a request to Redis; UINT64_MAX: none */
	uint64_t serial;
	bool lost;                       /* the device was that it comes from or goes to */
	enum prefixd_move_result result; /* if nothing else happens */
	struct prefixd_carry carry;
	uint64_t src_generation, dst_generation; /* of device slots */
	struct world_name name;
	bool nameless;
	uint8_t *half;            /* the first half of the block, as it was at the beginning */
	struct world_name *names; /* of a LOOK */
	uint32_t n_names;
};

struct arena {
	uint8_t *bytes;
	bool *written;
	uint32_t n_slots;
	uint64_t slot_bytes;
	bool coded;
	uint8_t (*seals)[16]; /* of a coded group: what lies in each slot, and whose it is */
	struct world_names names;
};

struct world_tiers {
	struct world_tiers_config config;
	uint64_t rng;
	struct world_redis *redis;
	bool up;      /* the connection */
	bool stalled; /* it does not answer */
	bool told;    /* what the engine was told last */
	uint32_t n_late;
	uint64_t probe_ns; /* given up, it is tried again then; UINT64_MAX: it is not */
	struct flight *flights;
	uint32_t n, cap;
	uint64_t serial;
	uint64_t copy_free_ns, remote_free_ns; /* when the links have nothing to do */
	uint32_t planned[WORLD_N_FAULTS];
	uint64_t delay_ns;
	uint32_t n_delayed;
	struct arena arenas[WORLD_GROUPS];
	struct {
		uint8_t digest[32];
		struct prefixd_epoch epoch;
		bool known; /* it is later than the engine's, which is to hear of it */
	} epochs[WORLD_EPOCHS];
	uint32_t n_epochs;
	struct world_tiers_stats stats;
};

/* When the answer comes, if the other side is well. */
uint64_t world_answer_at(struct world *w, const struct flight *f);
/* The engine hears whether Redis can be used, if that is new. */
void world_tell_redis(struct world *w, bool up);
