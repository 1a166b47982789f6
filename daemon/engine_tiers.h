/*
 * engine_tiers.h - the engine's part in the tiers: moves, room, loads, what Redis is found to hold.
 *
 *     engine_moves.c  the table of moves: from radix to an action, from MOVED back to radix
 *     engine_room.c   free slots ahead of demand; who waits for slots, in order
 *     engine_load.c   bringing blocks up for a lease or a PREFETCH
 *     engine_names.c  NAMES: what members are called across machines
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
struct prefixd_namespace;
struct prefixd_load;

/* ---- engine_moves.c -------------------------------------------------------------------------- */

struct prefixd_move {
	struct radix_move m;
	struct prefixd_group *group;
	struct prefixd_load *load; /* up: whose block this is; NULL: down */
	uint32_t load_at;          /* which of the load's blocks */
	uint64_t begun_ns;
	uint32_t serial; /* of the id: how often this place was used */
	uint32_t next;   /* free list; RADIX_NONE ends */
	bool leaves;     /* its source becomes free when it ends well */
	bool alone;      /* nothing moved the same way when it began */
	bool ahead;      /* up, and nobody waits for it */
	bool lossy;      /* what lies in the source is not what was committed */
	bool used;
};

/* What moves from one tier to another took lately; 0: nothing is known. */
struct prefixd_pace {
	uint64_t latency_ns; /* of one, from its beginning to its end */
	uint64_t block_ns;   /* between the ends of two, while there was always one under way */
	uint64_t since_ns;   /* the running sample began; 0: it did not */
	uint32_t n_ended;
};

/*
 * Room for `n` more moves and their actions in this step; also when something was emitted already.
 * Return: 0, -ENOMEM.
 */
radix_nodiscard int prefixd_moves_room(struct prefixd_engine *e, uint32_t n);
/* How many more may be begun now: each source has a window for its moves down, */
uint32_t prefixd_moves_left(const struct prefixd_engine *e, const struct prefixd_group *g,
			    enum radix_tier from);
/* and all that goes up has one, in which those that nobody waits for hold up no one else. */
uint32_t prefixd_moves_left_up(const struct prefixd_engine *e, const struct prefixd_group *g,
			       bool ahead);
/*
 * Emits COPY, STORE or FETCH for a move that radix began.  Only after prefixd_moves_room().
 * deadline_ns 0: the carrier's own.  urgent: somebody waits for it.  The pointer is good until the
 * next call of prefixd_moves_room().
 */
struct prefixd_move *prefixd_move_start(struct prefixd_engine *e, struct prefixd_group *g,
					const struct radix_move *m, struct prefixd_load *load,
					uint32_t load_at, uint64_t deadline_ns, bool urgent);
void prefixd_moved(struct prefixd_engine *e, const struct prefixd_event *event);
/* The end of a step: keys of this step's moves are where they stay until the next one. */
void prefixd_moves_settle(struct prefixd_engine *e);
/* Copies below of blocks that were just committed, as far as there is room for them. */
#define PREFIXD_THROUGH_MAX 256u /* of one COMMIT */
void prefixd_write_through(struct prefixd_engine *e, struct prefixd_group *g,
			   const struct radix_member *blocks, uint32_t n);
/* Something is on its way down. */
bool prefixd_moves_down(const struct prefixd_engine *e);
void prefixd_moves_deinit(struct prefixd_engine *e);
/* Estimated time to bring up n_host and n_redis blocks of the group, ns; 0: not known yet. */
uint64_t prefixd_load_estimate(const struct prefixd_engine *e, const struct prefixd_group *g,
			       uint32_t n_host, uint32_t n_redis);

/* ---- engine_room.c --------------------------------------------------------------------------- */

/*
 * Somebody who wants device slots of a group.  First come, first served; nobody holds anything
 * while he waits.
 */
struct prefixd_waiter {
	struct radix_list link; /* the group's line, or of those behind it */
	uint32_t want;          /* slots still wanted; 0: none now, those behind go first */
	uint32_t out;           /* bytes of output that serving him may take, his actions apart */
	/* He comes after all others who wait, and nothing is dropped for him.  Who does not is
	   needy: while the tier below is gone, dirty victims are dropped for him, */
	bool behind;
	uint64_t deadline_ns; /* and then they are in any case; UINT64_MAX: never */
	/*
	 * `n_free` slots are his.  Take what is wanted, lower `want`.  `last`: no more will become
	 * free for now, or his deadline has passed.  True: served, or given up; he is off the list
	 * then, and may be gone.
	 */
	bool (*serve)(struct prefixd_engine *e, struct prefixd_waiter *w, uint32_t n_free,
		      bool last);
};

/*
 * Puts him in line and serves whom it can, perhaps him, before it returns; from within serve() it
 * only puts him in line.
 */
void prefixd_room_ask(struct prefixd_engine *e, struct prefixd_group *g, struct prefixd_waiter *w);
/* Idempotent.  Stir the group afterwards: those behind him may go on. */
void prefixd_room_leave(struct prefixd_waiter *w);
/* Something of the group became free or evictable: look at the end of the step. */
void prefixd_room_stir(struct prefixd_engine *e, struct prefixd_group *g);
/* Slots were taken: look whether more are to be made free ahead of demand. */
void prefixd_room_taken(struct prefixd_engine *e, struct prefixd_group *g);
/* Nobody waits, and `want` device slots are free or became so without a move: take them. */
bool prefixd_room_now(struct prefixd_engine *e, struct prefixd_group *g, uint32_t want);
/* There is a tier below the device. */
bool prefixd_tiered(const struct prefixd_engine *e, const struct prefixd_group *g);
/* At the beginning and at the end of each step; when it is time. */
void prefixd_room_begin(struct prefixd_engine *e);
void prefixd_room_settle(struct prefixd_engine *e);
void prefixd_room_time(struct prefixd_engine *e);
uint64_t prefixd_room_deadline(const struct prefixd_engine *e);
/* Redis can be used from now on, or cannot. */
void prefixd_redis_state(struct prefixd_engine *e, bool up);
/* Return: 0, or the number of a broken rule with a sentence. */
int prefixd_room_verify(const struct prefixd_engine *e, char *why, size_t why_len);

/* ---- engine_load.c --------------------------------------------------------------------------- */

/* When a load ends that was asked for now. */
uint64_t prefixd_load_due(const struct prefixd_engine *e, uint32_t deadline_us);
/*
 * Begins to bring up the blocks between the lease's cursor and its hold, at the end of this step;
 * while one runs for the lease already that one counts.  seq: of the request that asked.  Only
 * after prefixd_later_room().  False: no memory, or too many of them; nothing was begun.
 */
bool prefixd_load_begin(struct prefixd_engine *e, struct prefixd_lease *l, uint64_t seq,
			uint64_t deadline_ns);
/* The same for nobody: from `device_end` down to `end`; in slots that nobody else waits for. */
bool prefixd_load_ahead(struct prefixd_engine *e, struct prefixd_root *root,
			const struct radix_place *device_end, const struct radix_place *end,
			uint64_t deadline_ns);
/* The lease is over, or recomputes: what is in flight lands unpinned, nobody is told. */
void prefixd_load_orphan(struct prefixd_engine *e, struct prefixd_lease *l);
/*
 * Somebody who waits finds no slot: loads for nobody end, and hold no block any more but those that
 * are still to land.  True: there were some.
 */
bool prefixd_loads_make_way(struct prefixd_engine *e, struct prefixd_group *g);
/* A block of the load arrived, or did not. */
void prefixd_load_moved(struct prefixd_engine *e, struct prefixd_load *load, uint32_t at,
			const struct radix_move *m, const struct prefixd_event *event);
/* The lease's load ends, and its worker is told.  Before anything else of the lease does. */
void prefixd_load_fail(struct prefixd_engine *e, struct prefixd_lease *l);
/* All of the group end; what is under way still lands. */
void prefixd_loads_end(struct prefixd_engine *e, struct prefixd_group *g);
/* The root is of an older epoch: its loads end. */
void prefixd_loads_cut(struct prefixd_engine *e, const struct prefixd_root *root);
/* Loads that something happened to: they go on, end, are told, or go.  Before room settles. */
void prefixd_loads_settle(struct prefixd_engine *e);
void prefixd_loads_time(struct prefixd_engine *e);
uint64_t prefixd_loads_deadline(const struct prefixd_engine *e);
void prefixd_loads_deinit(struct prefixd_engine *e, struct prefixd_group *g);
/*
 * Return: 0, or the number of a broken rule with a sentence; adds the pins that loads hold, and
 * the slots that their blocks arrive in.
 */
int prefixd_loads_verify(const struct prefixd_engine *e, const struct prefixd_group *g,
			 uint64_t *pins, uint64_t *slots, char *why, size_t why_len);

/* ---- engine_names.c -------------------------------------------------------------------------- */

/* The group's members are an earlier life's, and have no names yet.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_names_adopted(struct prefixd_engine *e, struct prefixd_group *g);
void prefixd_names_forget(struct prefixd_engine *e, struct prefixd_group *g); /* idempotent */
/* The last member before `end` has a name, or NAMES goes out for it in this step.  Return: 0,
 * -ENOMEM: it has none. */
radix_nodiscard int prefixd_names_path(struct prefixd_engine *e, const struct prefixd_root *root,
				       const struct radix_place *end);
/* The same for a member, as far as there is memory. */
void prefixd_names_member(struct prefixd_engine *e, const struct prefixd_root *root,
			  struct radix_member block);
/* The end of a step, and of the engine. */
void prefixd_names_settle(struct prefixd_engine *e);
void prefixd_names_deinit(struct prefixd_engine *e);
/* Room to name `n` members in this step, before they come to be.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_names_room(struct prefixd_engine *e, uint32_t n);
/*
 * NAMES for the last `n` members of the path that ends at `end`; their keys stay as they are until
 * the next step.  Only after prefixd_names_room().
 */
void prefixd_name_members(struct prefixd_engine *e, const struct prefixd_root *root,
			  const struct radix_place *end, const void *keys, uint32_t n);

/* ---- engine_seek.c --------------------------------------------------------------------------- */

/*
 * Asks Redis, in the background, for the keys behind `at`.  With `device_end`, where device copies
 * end on the way there, what it has is brought up as by prefixd_load_ahead().
 */
void prefixd_seek(struct prefixd_engine *e, struct prefixd_root *root, const struct radix_place *at,
		  const void *keys, uint32_t n_keys, const struct radix_place *device_end,
		  uint64_t deadline_ns);
void prefixd_looked(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_seeks_deinit(struct prefixd_engine *e);
/* As prefixd_loads_verify(). */
int prefixd_seeks_verify(const struct prefixd_engine *e, const struct prefixd_group *g,
			 uint64_t *pins, char *why, size_t why_len);

/* ---- engine_epoch.c -------------------------------------------------------------------------- */

void prefixd_invalidate(struct prefixd_engine *e, struct prefixd_event *event);
void prefixd_epoch_seen(struct prefixd_engine *e, const struct prefixd_event *event);
/* EPOCH for a namespace that was just made: what Redis knows of it is to be learned. */
void prefixd_epoch_ask(struct prefixd_engine *e, const struct prefixd_namespace *ns);
/* A lease, load or seek has let go of the root, whose last one it may have been. */
void prefixd_root_left(struct prefixd_engine *e, struct prefixd_root *root);
