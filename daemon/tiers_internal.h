/*
 * tiers_internal.h - shared by tiers.c and tiers_redis.c.
 */
#pragma once

#include "daemon/server_internal.h"
#include "daemon/tiers.h"

#define PREFIXD_STAGES  32u      /* buffers of a pool whose slots no CPU reaches */
#define PREFIXD_SUMS    8u       /* and those to sum what came out of desks in */
#define PREFIXD_ANSWERS 256u     /* of a helper in one turn */
#define PREFIXD_TURN_NS 1000000u /* and no more of them after that */

/*
 * May one more answer be carried into the engine in this turn?  One may have a thousand leases to
 * tell; what is left keeps the descriptor readable, and workers come in between.
 */
static inline bool prefixd_answers_fit(uint32_t n, uint64_t began_ns)
{
	return n == 0 || (n < PREFIXD_ANSWERS && prefixd_now_ns() - began_ns < PREFIXD_TURN_NS);
}

/* An answer that can be given without a helper, in a turn of its own. */
struct prefixd_later {
	enum prefixd_event_type type;
	/* id: the action's; of PROCESS_GONE the session, of TAKEN the desk, and group the place */
	uint32_t group, id;
	enum prefixd_move_result result;
};

/* A block between Redis and a slot that no CPU reaches, or waiting for a buffer. */
struct prefixd_staged {
	struct radix_list link;
	struct prefixd_redis_message *m; /* its group and carry say what it is */
	uint32_t stage;                  /* RADIX_NONE: none yet */
	bool ours;                       /* m is, and not the redis helper's */
	uint64_t copied_ns;              /* what its copy between slot and buffer took */
};

/* What was last said about a helper. */
struct prefixd_watched {
	bool silent;
	uint64_t since_ns; /* it runs, in this life of its thread */
};

struct prefixd_tiers {
	struct prefixd_carrier *carrier;
	struct prefixd_redis *redis;
	struct prefixd_epochs epochs;
	struct event *carrier_ev, *redis_ev, *tick_ev, *later_ev;
	struct prefixd_later *later;
	uint32_t n_later, cap_later;
	struct radix_list staged,
		unstaged;       /* struct prefixd_staged: with a buffer; without, oldest first */
	uint32_t n_making;      /* pools */
	uint64_t host_promised; /* bytes of host tiers that are being made */
	uint64_t n_failed;      /* copies, when the log last said so */
	struct prefixd_epoch_entry seen; /* later than what the engine said in this step */
	bool has_seen;
	bool kept_said;    /* that the keeper failed */
	bool watching;     /* the carrier says when a device is lost, which nothing else does */
	char trouble[320]; /* what the device was lost by, or why it cannot be opened again */
	struct prefixd_watched watch_copy, watch_redis;
};

/* tiers_pools.c */
void prefixd_act_pool_make(struct prefixd_server *s, const struct prefixd_action *a); /* or adopt */
void prefixd_act_pool_destroy(struct prefixd_server *s, const struct prefixd_action *a);
void prefixd_pool_made(struct prefixd_server *s, struct prefixd_carrier_message *m);
/* Says, once, that the keeper does not have a pool. */
void prefixd_kept_log(struct prefixd_server *s, const struct prefixd_carrier_message *m);
/* POOL_READY or POOL_FAILED, by the answer to POOL_NEW or POOL_AGAIN. */
void prefixd_pool_told(struct prefixd_server *s, const struct prefixd_carrier_message *m);

/* tiers_device.c */
void prefixd_device_watch(struct prefixd_server *s);
/* The answers to WATCH and to POOL_AGAIN. */
void prefixd_device_lost(struct prefixd_server *s, const struct prefixd_carrier_message *m);
void prefixd_device_made(struct prefixd_server *s, struct prefixd_carrier_message *m);
/* POOL_CREATE of a pool that lost its device. */
void prefixd_device_again(struct prefixd_server *s, struct prefixd_pool *pool);
/* The message, which makes a pool, may open lost devices again; and did it? */
void prefixd_device_allow(struct prefixd_server *s, struct prefixd_carrier_message *m);
void prefixd_device_heard(struct prefixd_server *s, const struct prefixd_carrier_message *m);

/* tiers_desk.c */
void prefixd_act_desk(struct prefixd_server *s, const struct prefixd_action *a); /* and TAKE */
void prefixd_desk_made(struct prefixd_server *s, const struct prefixd_carrier_message *m);
void prefixd_desk_taken(struct prefixd_server *s, const struct prefixd_carrier_message *m);

/* tiers.c */
/* An answer in the next turn. */
void prefixd_later(struct prefixd_server *s, struct prefixd_later l);
void prefixd_later_moved(struct prefixd_server *s, uint32_t id, enum prefixd_move_result result);
struct prefixd_pool *prefixd_pool_of(struct prefixd_server *s, uint32_t group);
/* A move is over: the engine hears of it, and how long it took is counted. */
void prefixd_tiers_moved(struct prefixd_server *s, enum radix_tier from, enum radix_tier to,
			 struct prefixd_event *event);

/* tiers_redis.c */
/* Return: 0; negative errno with a sentence in `why`. */
radix_nodiscard int prefixd_redis_begin(struct prefixd_redis **ret_r,
					const struct prefixd_options *o, char *why, size_t why_len);
void prefixd_act_carry(struct prefixd_server *s, const struct prefixd_action *a); /* STORE, FETCH */
void prefixd_act_look(struct prefixd_server *s, const struct prefixd_action *a);
void prefixd_act_tell(struct prefixd_server *s, const struct prefixd_action *a); /* NAMES, EPOCH */
/* The carrier's answer to a copy from or into a buffer. */
void prefixd_stage_copied(struct prefixd_server *s, const struct prefixd_carrier_message *m);
void prefixd_on_redis(int fd, short what, void *ctx);
void prefixd_staged_drop(struct radix_list *list);
