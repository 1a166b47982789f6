/*
 * engine_stripe.h - one lease that several ranks of a model share; part of engine_internal.h.
 *
 *     engine_stripe.c  who has a seat at it, COMMIT of all ranks, how it ends
 *     engine_calls.c   what was decided for it, once, and told to each rank in its turn
 *     engine_decide.c  decision ids: who asks first, who asks again, who comes too late
 *
 * A block of such a lease is a slot of one number in the pool of each rank.  The shared lease is an
 * ordinary one, with its path, keys and slots, but on no session's list.  Each rank that has come
 * has a seat: a lease of state SEAT on its session's list, which holds nothing itself and keeps the
 * shared one alive.
 *
 *     session of rank 0 -- seat ---.
 *     session of rank 1 -- seat ----+-- stripe -- the shared lease: pins, keys, slots
 *     (rank 2 has not come yet) ---'       |
 *                                        calls: MATCH | RESERVE | EXTEND | ...
 *                                                 ^ rank 1         ^ rank 0
 */
#pragma once

#include "daemon/engine_types.h"

struct prefixd_request;

/* ---- decisions ------------------------------------------------------------------------------- */

/* A decision id that some rank has asked with.  It is remembered for a while when it is over. */
struct prefixd_decision {
	struct prefixd_item item; /* the engine's decisions */
	struct radix_list link;   /* those that are over, oldest first */
	struct proto_id id;
	uint32_t ns, tenant;           /* ids */
	struct prefixd_stripe *stripe; /* NULL: over */
	uint64_t over_ns;
	enum prefixd_lease_end how; /* it is over */
};

/* ---- calls ----------------------------------------------------------------------------------- */

#define PREFIXD_CALL_FIELDS 6u /* of a request that all ranks have to agree about */

/* What one rank asked for first, and what came of it for all. */
struct prefixd_call {
	uint16_t op, status;
	bool answered;
	bool tells; /* an EVENT will follow */
	bool event_known;
	uint16_t told; /* a bit per rank: it has the EVENT, or needs none */
	uint64_t fields[PREFIXD_CALL_FIELDS];
	uint8_t *body; /* of the reply: len bytes of cap */
	uint32_t len, cap;
	struct proto_event event;
	uint64_t seq[PREFIXD_RANKS_MAX]; /* of each rank's own request */
};

/* ---- seats ----------------------------------------------------------------------------------- */

struct prefixd_seat {
	struct prefixd_lease *lease; /* NULL: the rank has not come, or is over */
	bool came;
	bool waits;           /* for the answer of its next call */
	uint64_t cursor;      /* number of its next call */
	uint32_t n_committed; /* blocks, since the lease began */
	/* of the request that waits */
	bool keep;
	struct proto_id op_id;
	uint64_t body_hash[2];
};

struct prefixd_piece_sum {
	uint8_t sum[16];
	uint8_t kind;
};

struct prefixd_stripe {
	struct prefixd_lease *lease; /* NULL: MATCH is being answered */
	struct prefixd_decision *decision;
	struct radix_list open; /* the engine's, until all ranks have come; by join_due_ns */
	struct radix_list due;  /* the engine's: some rank is to be told something */
	uint64_t join_due_ns;   /* nobody holds it open for who has not come by then */
	uint32_t n_ranks;
	bool shut;   /* join_due_ns has passed */
	bool closed; /* a rank released it: nothing new is decided */
	bool broken; /* a rank ended before that: nothing is stored any more */
	uint16_t version;
	enum prefixd_lease_end how; /* the first rank that did not release it, else RELEASED */
	struct proto_id was;        /* of an earlier life: its decision id */
	uint32_t asking;            /* rank whose call is being carried out; RADIX_NONE */
	uint32_t n_stored;          /* blocks that all ranks have committed */
	struct prefixd_seat seats[PREFIXD_RANKS_MAX];
	/* calls first_call to first_call + n_calls, oldest first */
	struct prefixd_call *calls;
	uint32_t n_calls, calls_cap;
	uint64_t first_call;
	/* by place in the lease's list of slots, n_ranks for each; NULL: no rank gave any */
	struct prefixd_piece_sum *sums;
	uint32_t sums_cap; /* places */
};

static inline bool prefixd_is_seat(const struct prefixd_lease *l)
{
	return l->seat;
}

static inline bool prefixd_is_shared(const struct prefixd_lease *l)
{
	return l->stripe && !l->seat;
}

/* The lease that holds what this one stands for. */
static inline const struct prefixd_lease *prefixd_lease_holder(const struct prefixd_lease *l)
{
	return prefixd_is_seat(l) ? l->stripe->lease : l;
}

/* The lease whose blocks count as what this one's session holds; NULL: another rank's does. */
static inline const struct prefixd_lease *prefixd_lease_counts(const struct prefixd_lease *l)
{
	if (!prefixd_is_seat(l))
		return l;
	return l->stripe->lease->session == l->session ? l->stripe->lease : NULL;
}

/* ---- engine_decide.c ------------------------------------------------------------------------- */

/* A request of a session that is a rank: true if it was one of a shared lease, and was answered. */
bool prefixd_stripe_request(struct prefixd_engine *e, struct prefixd_request *rq);
/* Nobody can ask with it any more; it is remembered how it ended. */
void prefixd_decision_over(struct prefixd_engine *e, struct prefixd_stripe *st,
			   enum prefixd_lease_end how);
void prefixd_decisions_deinit(struct prefixd_engine *e);

/* ---- engine_calls.c -------------------------------------------------------------------------- */

/* What a request says that the other ranks have to say too. */
struct prefixd_asked {
	uint16_t op;
	uint64_t lease;
	struct proto_id op_id;
	uint64_t fields[PREFIXD_CALL_FIELDS];
};

/*
 * Answers the request from what was decided, or carries it out by `handler` and notes what came of
 * it.  The seat's cursor moves on, unless the request was refused for its own sake.
 */
void prefixd_call(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_stripe *st,
		  uint32_t rank, const struct prefixd_asked *asked, prefixd_handler *handler);
/* The handler's part: room for a reply body of up to max_len bytes.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_call_room(struct prefixd_engine *e, struct prefixd_request *rq,
				      const struct proto_id *op_id, uint32_t max_len);
void prefixd_call_answered(struct prefixd_engine *e, const struct prefixd_request *rq,
			   enum proto_status status, const uint8_t *body, uint32_t len);
/* The call of this number will be followed by an EVENT; what it is; or that it will not come. */
void prefixd_call_tells(struct prefixd_stripe *st, uint64_t call);
void prefixd_call_event(struct prefixd_engine *e, struct prefixd_stripe *st, uint64_t call,
			const struct proto_event *event);
void prefixd_call_silent(struct prefixd_engine *e, struct prefixd_stripe *st, uint64_t call,
			 enum proto_wait_state state);
/* Tells a rank that waits what is known. */
void prefixd_call_tell(struct prefixd_engine *e, struct prefixd_stripe *st, uint32_t rank);
/* The end of a step: tells all ranks that wait, as far as there is room. */
void prefixd_calls_settle(struct prefixd_engine *e);
uint64_t prefixd_calls_deadline(const struct prefixd_engine *e);
/* Calls that every rank has made, and was told of, are forgotten. */
void prefixd_calls_trim(struct prefixd_engine *e, struct prefixd_stripe *st);
void prefixd_calls_deinit(struct prefixd_engine *e, struct prefixd_stripe *st);

/* ---- engine_stripe.c ------------------------------------------------------------------------- */

/* Of those that hold the lease, this session, or (NULL) another, speaks for all; NULL: nobody. */
void prefixd_stripe_speaks(struct prefixd_stripe *st, struct prefixd_session *s);
/* Who could: connected, if anybody is; `except` is about not to be.  NULL: there is nobody. */
struct prefixd_session *prefixd_stripe_choose(const struct prefixd_stripe *st,
					      const struct prefixd_session *except);
/* NULL: no memory. */
struct prefixd_stripe *prefixd_stripe_new(struct prefixd_engine *e, uint32_t n_ranks);
void prefixd_stripe_free(struct prefixd_engine *e, struct prefixd_stripe *st);
/* The session's seat at the shared lease `l`; NULL: it has none. */
struct prefixd_lease *prefixd_seat_find(const struct prefixd_lease *l,
					const struct prefixd_session *s);
/* A lease object for a seat; NULL: no memory. */
struct prefixd_lease *prefixd_seat_new(struct prefixd_engine *e, struct prefixd_session *s);
void prefixd_seat_begin(struct prefixd_engine *e, struct prefixd_stripe *st, uint32_t rank,
			struct prefixd_lease *l, struct prefixd_session *s);
/* The seat's session lost its socket: its rank will not commit any more. */
void prefixd_seat_left(struct prefixd_engine *e, struct prefixd_lease *l);
/* It ends.  The shared lease ends with the last one. */
void prefixd_seat_finish(struct prefixd_engine *e, struct prefixd_lease *l,
			 enum prefixd_lease_end how);
/* Its process may not write any more.  Returns how many slots became free. */
uint32_t prefixd_seat_over(struct prefixd_engine *e, struct prefixd_lease *l);
/* Slots that become free when it ends. */
uint32_t prefixd_seat_frees(const struct prefixd_lease *l);
/* The shared lease is taken back from all ranks. */
void prefixd_stripe_revoke(struct prefixd_engine *e, struct prefixd_stripe *st);
/* Who has not come is not waited for any more. */
void prefixd_stripes_time(struct prefixd_engine *e, bool all);
uint64_t prefixd_stripes_deadline(const struct prefixd_engine *e);
/*
 * A rank commits: is that in order, and how many of its blocks have all ranks written then?
 * False: it was answered.
 */
bool prefixd_stripe_commit(struct prefixd_engine *e, struct prefixd_request *rq,
			   struct prefixd_lease *l, const struct proto_commit_req *m,
			   uint32_t *ret_now);
/* The checksum of the first reserved block, of all its pieces. */
void prefixd_stripe_block_sum(const struct prefixd_lease *l, struct radix_block *b);
/*
 * The rank has written n blocks, of which `stored` were stored just now; for the others its own
 * slots are added to `runs`.
 */
void prefixd_stripe_committed(struct prefixd_lease *l, uint32_t rank, uint32_t n, uint32_t stored,
			      struct radix_runs *runs);
/* A seat changed.  Returns how many slots became free. */
uint32_t prefixd_stripe_settle(struct prefixd_engine *e, struct prefixd_stripe *st);

/* ---- engine_stripe_kept.c: of an earlier life ------------------------------------------------ */

/* The shared lease, and then its seats, by their records.  Return: 0; -ENOMEM; 1: it cannot be. */
radix_nodiscard int prefixd_stripe_again(struct prefixd_engine *e,
					 const struct prefixd_lease_name *name);
radix_nodiscard int prefixd_seat_again(struct prefixd_engine *e,
				       const struct prefixd_lease_name *name);
/* Shared leases that no seat was found for. */
void prefixd_stripes_lonely(struct prefixd_engine *e);
/* Nothing is taken up after all: neither seats nor what they share. */
void prefixd_stripes_give_up(struct prefixd_engine *e);
/* A seat of a group that is not there yet has ended. */
void prefixd_seat_kept_over(struct prefixd_engine *e, struct prefixd_lease *l);
/* The group is there: the shared lease is active, or has slots only.  Its seats follow. */
void prefixd_stripe_adopted(struct prefixd_engine *e, struct prefixd_lease *l);
/* The group is lost. */
void prefixd_stripe_unadopted(struct prefixd_engine *e, struct prefixd_lease *l);
/* Nobody gets another answer with this id. */
void prefixd_decision_again(struct prefixd_engine *e, const struct proto_id *id, uint32_t ns,
			    uint32_t tenant);

/* Return: 0, or the number of a broken rule with a sentence. */
int prefixd_stripes_verify(const struct prefixd_engine *e, char *why, size_t why_len);
