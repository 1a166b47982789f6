/*
 * engine_tiers.h - the engine's part in the tiers: moves, room, loads, what Redis is found to hold.
 *
 *     engine_moves.c  the table of moves: from radix to an action, from MOVED back to radix
 *     engine_room.c   free slots ahead of demand; who waits for slots, in order
 *     engine_load.c   bringing blocks up for a lease or a PREFETCH
 *     engine_seek.c   LOOK: blocks that only Redis knows of
 *     engine_epoch.c  INVALIDATE and epochs
 *
 * Who owns what.  A group owns its moves, its waiters and its loads.  A load holds two pins of its
 * own (the end of the device copies, and the deepest block that is to come up), so that it outlives
 * its lease.  A waiter is part of who waits: a lease (RESERVE) or a load.
 */
#pragma once

#include "daemon/engine.h"

struct prefixd_engine;
struct prefixd_group;
struct prefixd_lease;
struct prefixd_session;
struct prefixd_root;
struct prefixd_load;

/* ---- engine_moves.c -------------------------------------------------------------------------- */

struct prefixd_move {
	struct radix_move m;
	struct prefixd_group *group;
	struct prefixd_load *load; /* up: whose block this is; NULL: down */
	uint32_t load_at;          /* which of the load's blocks */
	uint64_t begun_ns;
	uint32_t next; /* free list; RADIX_NONE ends */
	bool used;
};

/* Room for `n` more moves and their actions in this step.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_moves_room(struct prefixd_engine *e, uint32_t n);
/* Emits COPY, STORE or FETCH for a move that radix began.  Only after prefixd_moves_room(). */
void prefixd_move_start(struct prefixd_engine *e, struct prefixd_group *g,
			const struct radix_move *m, struct prefixd_load *load, uint32_t load_at,
			uint64_t deadline_ns, bool urgent);
void prefixd_moved(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_moves_deinit(struct prefixd_engine *e);
/* Estimated time to bring up n_host and n_redis blocks of the group, ns. */
uint64_t prefixd_load_estimate(const struct prefixd_engine *e, const struct prefixd_group *g,
			       uint32_t n_host, uint32_t n_redis);

/* ---- engine_room.c --------------------------------------------------------------------------- */

/*
 * Somebody who wants device slots of a group.  First come, first served; nobody holds anything
 * while he waits.
 */
struct prefixd_waiter {
	struct radix_list link; /* the group's waiters */
	uint32_t want;          /* slots still wanted */
	uint64_t deadline_ns;   /* dirty victims are dropped for him then; UINT64_MAX: never */
	/*
	 * `n_free` slots are free.  Take what is wanted, lower `want`.  `last`: no more will become
	 * free for
	 * now.  True: served, or given up; he is off the list then, and may be gone.
	 */
	bool (*serve)(struct prefixd_engine *e, struct prefixd_waiter *w, uint32_t n_free,
		      bool last);
};

/* Puts him in line and serves whom it can, perhaps him, before it returns. */
void prefixd_room_ask(struct prefixd_engine *e, struct prefixd_group *g, struct prefixd_waiter *w);
void prefixd_room_leave(struct prefixd_waiter *w); /* idempotent */
/* Something of the group became free or evictable: look again, at the end of the step. */
void prefixd_room_stir(struct prefixd_engine *e, struct prefixd_group *g);
/* At the end of each step. */
void prefixd_room_settle(struct prefixd_engine *e);
void prefixd_room_time(struct prefixd_engine *e);
uint64_t prefixd_room_deadline(const struct prefixd_engine *e);

/* ---- engine_load.c --------------------------------------------------------------------------- */

/*
 * Begins to bring up the blocks between the lease's cursor and its hold.  seq: of the request that
 * asked.  False: no memory, nothing was begun.
 */
bool prefixd_load_begin(struct prefixd_engine *e, struct prefixd_lease *l, uint64_t seq,
			uint64_t deadline_ns);
/* The same for nobody: from `device_end` down to `end`. */
bool prefixd_load_ahead(struct prefixd_engine *e, struct prefixd_root *root,
			const struct radix_place *device_end, const struct radix_place *end,
			uint64_t deadline_ns);
/* The lease is over, or recomputes: what is in flight lands unpinned, nobody is told. */
void prefixd_load_orphan(struct prefixd_engine *e, struct prefixd_lease *l);
/* A block of the load arrived, or did not.  The load may be gone afterwards. */
void prefixd_load_moved(struct prefixd_engine *e, struct prefixd_load *load, uint32_t at,
			const struct radix_move *m, const struct prefixd_event *event);
void prefixd_loads_deinit(struct prefixd_engine *e, struct prefixd_group *g);

/* ---- engine_seek.c --------------------------------------------------------------------------- */

/* NAMES for members that just came to be behind `parent`. */
void prefixd_name_members(struct prefixd_engine *e, const struct prefixd_root *root,
			  uint32_t parent, const uint32_t *entries, const void *keys, uint32_t n);
/* Asks Redis, in the background, for the keys behind `at`; then `load` brings up what it has. */
void prefixd_seek(struct prefixd_engine *e, struct prefixd_root *root, const struct radix_place *at,
		  const void *keys, uint32_t n_keys, bool load, uint64_t deadline_ns);
void prefixd_looked(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_seeks_deinit(struct prefixd_engine *e);

/* ---- engine_epoch.c -------------------------------------------------------------------------- */

void prefixd_invalidate(struct prefixd_engine *e, struct prefixd_event *event);
void prefixd_epoch_seen(struct prefixd_engine *e, const struct prefixd_event *event);
