/*
 * engine_desk.h - desks: memory of one session and one group that the worker writes in where pools
 * are read-only for workers (pool-write staged); part of engine_internal.h.
 *
 *     worker --writes--> place of its desk --copied by the daemon at COMMIT--> slot of the pool
 *
 * Who owns what.  A session owns its desks, one for each group that it has opened a namespace of.
 * A lease lists the place of each block that it has reserved, beside the slot.  A desk outlives its
 * session while copies out of it are under way.
 */
#pragma once

#include "daemon/engine_types.h"

struct prefixd_request;

enum prefixd_desk_state {
	PREFIXD_DESK_MAKING, /* DESK_CREATE went out, or is about to; OPENs wait */
	PREFIXD_DESK_READY,
};

/* What a place is in use for, beside the lease that lists it. */
struct prefixd_desk_copy {
	uint32_t slot;  /* of the pool, that it is being copied to; RADIX_NONE: it is not */
	uint32_t lease; /* which lists the place; RADIX_NONE: none does */
	uint32_t at;    /* which block of its COMMIT */
	bool landing;   /* nobody waits for the copy; the slot is kept back until it has ended */
};

struct prefixd_desk {
	struct radix_list link;          /* the session's, or the engine's when that is gone */
	struct prefixd_session *session; /* NULL: gone */
	struct prefixd_group *group;
	enum prefixd_desk_state state;
	uint32_t id; /* its place among the engine's */
	uint32_t n_places, n_free, n_copying;
	uint64_t len;                     /* bytes to map */
	uint64_t budget;                  /* bytes of the total that it takes */
	bool asked;                       /* DESK_CREATE went out */
	struct radix_list waiting;        /* struct prefixd_waiting */
	uint64_t *free;                   /* a bit per place */
	struct prefixd_desk_copy *copies; /* [n_places] */
};

/* A COMMIT that waits for its copies. */
struct prefixd_taking {
	uint32_t n, n_left;
	uint32_t bad; /* the first block that is not what its checksum says; RADIX_NONE */
	bool failed;  /* one could not be copied */
	uint32_t tail_tokens;
	uint64_t seq;
	bool keep;
	struct proto_id op_id;
	uint64_t body_hash[2];
	uint8_t sums[]; /* n x 16, of what arrived */
};

static inline size_t prefixd_taking_len(uint32_t n)
{
	return sizeof(struct prefixd_taking) + (size_t)n * 16;
}

/* The session's desk that is there; NULL: none is. */
struct prefixd_desk *prefixd_desk_of(const struct prefixd_session *s,
				     const struct prefixd_group *g);
/*
 * The session's desk for the group, made if need be: it may be MAKING.  Return: 0; -ENOMEM;
 * -EDQUOT: refused, and answered.
 */
radix_nodiscard int prefixd_desk_get(struct prefixd_engine *e, struct prefixd_request *rq,
				     struct prefixd_group *g, struct prefixd_desk **ret_desk);
/* Somebody waits for it: DESK_CREATE, once.  There is room for the action. */
void prefixd_desk_ask(struct prefixd_engine *e, struct prefixd_desk *d);
/* Nobody waits for it and it was not asked for: it never was. */
void prefixd_desk_cancel(struct prefixd_engine *e, struct prefixd_desk *d);
void prefixd_desk_ready(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_desk_failed(struct prefixd_engine *e, uint32_t id, const char *why);
/* The session's socket is over: what its leases reserved is given up, its desks go. */
void prefixd_desks_leave(struct prefixd_engine *e, struct prefixd_session *s);
/* They are nobody's, with all that is written in them. */
void prefixd_desks_part(struct prefixd_engine *e, struct prefixd_session *s);
/* The group's device is lost: its desks go, whoever has them; OPENs that wait are refused. */
void prefixd_desks_lost(struct prefixd_engine *e, const struct prefixd_group *g, const char *why);
/* At the end of a step: desks without a session whose copies have ended go. */
void prefixd_desks_settle(struct prefixd_engine *e);
void prefixd_desks_deinit(struct prefixd_engine *e);
/* Return: 0, or the number of a broken rule with a sentence. */
int prefixd_desks_verify(const struct prefixd_engine *e, char *why, size_t why_len);

/* ---- places of a lease ----------------------------------------------------------------------- */

/* How many more blocks may be reserved: free places; UINT32_MAX where workers write to the pool. */
uint32_t prefixd_desk_left(const struct prefixd_session *s, const struct prefixd_group *g);
/* Room for `cap` places.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_places_room(struct prefixd_engine *e, struct prefixd_lease *l,
					uint32_t cap);
/* For the blocks that the lease reserved last: places for them, into `runs` instead of slots. */
void prefixd_places_take(struct prefixd_lease *l, uint32_t n, struct radix_runs *runs);
/* The lease's first reserved block was committed: its place is free. */
void prefixd_place_done(struct prefixd_lease *l);
/*
 * All that the lease has reserved is given up.  A slot that is being copied to is kept back until
 * that has ended, all others are free at once: only the daemon writes to them.  keep: the worker
 * may still write in the places, so that they stay the lease's.
 */
void prefixd_places_drop(struct prefixd_engine *e, struct prefixd_lease *l, bool keep);
/* The worker is done with those that were kept. */
void prefixd_places_free(struct prefixd_lease *l);

/* ---- COMMIT ---------------------------------------------------------------------------------- */

/* A place that no lease lists any more. */
void prefixd_place_back(struct prefixd_desk *d, uint32_t place);

/* Copies the next m->n blocks, and commits and answers when all of them have arrived. */
void prefixd_take_begin(struct prefixd_engine *e, struct prefixd_request *rq,
			struct prefixd_lease *l, const struct proto_commit_req *m);
/* Ends the wait of the lease's COMMIT, if there is one, and says why where somebody listens. */
void prefixd_take_stop(struct prefixd_engine *e, struct prefixd_lease *l,
		       enum prefixd_lease_end how);
/* engine_commit.c: stores n_now blocks; all is checked, names and the reply have room. */
void prefixd_commit_now(struct prefixd_engine *e, struct prefixd_request *rq,
			struct prefixd_lease *l, const struct proto_commit_req *m, uint32_t n_now);
/* Another was faster.  Who wrote in the slot goes on to read there; of who did not it is free. */
void prefixd_commit_own(struct prefixd_engine *e, struct prefixd_lease *l, uint32_t slot);
void prefixd_taken(struct prefixd_engine *e, const struct prefixd_event *event);
