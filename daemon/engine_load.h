/*
 * engine_load.h - one load, as its two files see it; engine_tiers.h is what others may call.
 *
 *     v:     | up | flying, arrived, ... |  not begun  |  given up |
 *            0    done                 started       limit        n
 *
 * A block that arrives before the one before it waits in the ring, which is as long as the part
 * between `done` and `started` may be.
 */
#pragma once

#include "daemon/engine_internal.h"

enum prefixd_arrival {
	PREFIXD_BLOCK_FLYING,
	PREFIXD_BLOCK_ARRIVED, /* waits for the block before it */
	PREFIXD_BLOCK_THERE,   /* attached, or given back */
};

struct prefixd_arrived {
	struct radix_move m;
	enum prefixd_arrival state;
	bool summed;
	uint8_t checksum[16];
};

struct prefixd_load {
	struct radix_list link;    /* the group's */
	struct radix_list due;     /* the engine's, by deadline_ns */
	struct radix_list stirred; /* the engine's, until the end of the step */
	struct radix_list stuck;   /* the engine's, by progress_ns, while it has no prospect */
	struct radix_list followers;
	struct radix_list follow;   /* those of `front` */
	struct prefixd_load *front; /* brings the block that this one needs next; NULL: nobody */
	struct prefixd_waiter room;
	struct prefixd_group *group;
	struct prefixd_root *root;   /* counts it in n_holds */
	struct prefixd_lease *lease; /* NULL: of PREFETCH, or the lease is over */
	bool ahead;
	bool ended; /* nothing more is begun, and nobody will be told anything else */
	bool told;
	bool starved; /* no slot was to be had; it asks again when something of the pool changed */
	uint64_t seq;
	uint64_t deadline_ns;
	uint64_t progress_ns; /* a block was begun or came up last; at first its own beginning */
	struct radix_pin up;  /* behind what has come up */
	struct radix_pin end; /* behind the deepest block wanted */
	uint32_t n, limit, done, started;
	uint32_t above; /* of n, blocks before those that the lease asked for */
	uint32_t n_flying;
	uint8_t reason;  /* why limit < n; NONE: it is not */
	uint32_t n_ring; /* a power of two */
	struct prefixd_arrived *ring;
	struct radix_member *v;
};

/* It is looked at before the step ends. */
static inline void prefixd_load_stir(struct prefixd_engine *e, struct prefixd_load *load)
{
	if (!radix_list_linked(&load->stirred))
		radix_list_add_tail(&e->loads_stirred, &load->stirred);
}

static inline struct prefixd_arrived *prefixd_load_ring(const struct prefixd_load *load, uint32_t i)
{
	return &load->ring[i & (load->n_ring - 1)];
}

/* A block was begun, or came up. */
static inline void prefixd_load_progress(struct prefixd_engine *e, struct prefixd_load *load)
{
	load->progress_ns = e->now_ns;
	radix_list_remove(&load->stuck);
}

/* Blocks from `at` on will not come.  What has arrived of them is given back. */
void prefixd_load_cut(struct prefixd_engine *e, struct prefixd_load *load, uint32_t at,
		      enum proto_reason reason);
/* Loads that found no slot, or no room for a move, look again in this step. */
void prefixd_loads_wake(struct prefixd_engine *e, struct prefixd_group *g);
/* Attaches what has arrived, and passes what others brought.  True: something came up. */
bool prefixd_load_advance(struct prefixd_engine *e, struct prefixd_load *load);
/*
 * Begins moves for the next blocks, at most n of them that need a slot.  Returns how many began;
 * fewer: no slot was free, or the load was cut.  Only after prefixd_moves_room().
 */
uint32_t prefixd_load_take(struct prefixd_engine *e, struct prefixd_load *load, uint32_t n);
