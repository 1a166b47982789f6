/*
 * sim_internal.h - what the files of the simulation share.
 */
#pragma once

#include "tests/sim/claims.h"
#include "tests/sim/ideal.h"
#include "tests/sim/sim.h"

enum {
	SIM_PROCS = 10,
	SIM_TWICE = 4, /* so many of them have two sessions */
	SIM_SESSIONS = SIM_PROCS + SIM_TWICE,
	SIM_RANKS = 4, /* more, which are ranks of one model, with a session each */
	SIM_ALL_PROCS = SIM_PROCS + SIM_RANKS,
	SIM_ALL_SESSIONS = SIM_SESSIONS + SIM_RANKS,
	SIM_NS_RANKS = UNIVERSE_NS, /* the namespace of the first rank; then of the others */
	SIM_LEASES = 3,
	SIM_BLUE = 8,    /* processes from here on are the other tenant's */
	SIM_RELICS = 24, /* sockets closed by their process that still hold something, at most */
};

/* How this world is, drawn from the seed. */
struct sim_nature {
	bool islands;
	bool two_groups; /* digests lie in a pool of their own, with longer blocks */
	uint32_t kills_permille, outside_permille, admin_permille, sleep_permille;
	uint64_t max_age_ns;
	uint64_t crowd_at; /* the operation at which the crowd comes */
	uint32_t lost_permille;
	uint32_t n_ranks;              /* 0: there are none */
	bool old_versions;             /* some processes speak version 2 */
	uint32_t windows_ns, coded_ns; /* read through a window; coded below; RADIX_NONE: none */
};

struct sim_lease {
	bool used;
	bool island;     /* found by its first key: blocks begin at p.skip */
	bool exact;      /* it takes nothing that a codec has changed */
	bool lost;       /* its device was; the next request on it is told so */
	uint32_t window; /* blocks that it reads at the end of its path; 0: all of them */
	uint64_t id;
	uint64_t epoch;
	struct universe_prompt p;
	uint32_t given; /* keys the engine knows, of p.n */
	uint32_t n_path;
	uint32_t res[UNIVERSE_MAX], n_res;
	uint64_t n_tokens, begun_ns;
	uint32_t tail_offer;
	uint64_t reserving; /* seq of a RESERVE that waits */
	uint32_t want;
	uint64_t waiting; /* seq of a WAIT */
	uint64_t wait_due;
	uint64_t loading; /* seq of the request that began the load */
	uint32_t load_want, load_taken;
	uint32_t loaded;    /* blocks that the last EVENT promised, not taken yet */
	bool led;           /* it was told to compute, or reserved, at any time */
	uint64_t lead_path; /* the block that it computes, as others are told; 0: none */
	uint64_t lead_due;
	uint64_t lead_op; /* the operation in which it was told */
};

struct sim_session {
	struct world_client *c; /* NULL: not connected */
	uint32_t proc;
	uint32_t ns[UNIVERSE_NS];
	bool opened[UNIVERSE_NS];     /* and the memory is mapped */
	uint32_t mapped[UNIVERSE_NS]; /* that of which life of the device */
	uint32_t window[UNIVERSE_NS];
	struct sim_lease leases[SIM_LEASES];
};

struct sim_proc {
	bool alive;
	struct prefixd_peer peer;
	struct proto_id instance;
	bool copies;
	uint16_t version; /* the latest that it speaks */
	uint64_t asleep;  /* stopped until this operation */
	struct sim_claims claims;
	uint32_t n_closed; /* sockets it closed in this life and holds leases of */
};

/* The device under a pool group. */
struct sim_device {
	bool lost;
	uint32_t life;        /* how often it was */
	struct proto_id pool; /* what its memory is called, */
	uint32_t named;       /* in which of these lives */
};

/* What PROBE says of a prompt. */
struct sim_found {
	uint64_t bits; /* of each block: is it a member? */
	uint32_t n_device, n_redis, n_lead;
};

/* A prompt of which something was committed, for audits. */
struct sim_known {
	struct universe_prompt p; /* cut to what was committed */
	uint64_t epoch;
	uint64_t path;
	bool audited; /* `before` is of the life before */
	struct sim_found before;
};

struct sim {
	struct world w;
	struct sim_config config;
	struct sim_nature nature;
	struct sim_result *result;
	uint64_t op;
	uint64_t rng;  /* of what happens; the world has its own */
	uint64_t more; /* of what not every world has: the others are what they were without it */
	uint32_t life; /* of the daemon, from 1 on */
	struct proto_id boots[1024];
	bool down;      /* no daemon */
	bool shaken;    /* an operator said INVALIDATE in this operation */
	bool host_hurt; /* some of host memory was damaged */
	bool sum_hurt;  /* a checksum in a block table was damaged */
	bool draining;
	uint64_t n_exits; /* before it began to drain */
	uint64_t drained; /* the operation at which it stops */
	struct sim_proc procs[SIM_ALL_PROCS];
	struct sim_claims ghosts; /* what devices of dead processes may still write */
	struct sim_session sessions[SIM_ALL_SESSIONS];
	struct oracle oracle;
	uint64_t epochs[UNIVERSE_NS];
	uint32_t ns_group[UNIVERSE_NS];
	uint32_t ranks_group; /* RADIX_NONE: not known yet */
	struct sim_rank_pool {
		struct proto_id name;
		uint32_t life; /* of the device */
	} rank_pools[SIM_RANKS];
	struct sim_device devices[WORLD_GROUPS];
	uint64_t devices_back; /* the operation at which the devices that are lost work again */
	bool marks_hurt;       /* what is told lossy may be exact */
	struct ideal ideal;
	struct sim_known *known;
	uint32_t n_known, known_cap;
	bool evicts;     /* what is being done may evict blocks */
	bool may_lose;   /* blocks may have gone between the audit and the end */
	bool may_gain;   /* or come */
	bool redis_lost; /* the next life knows nothing of Redis */
	uint32_t n_gone; /* in the last audit */
	uint8_t digests[UNIVERSE_NS][32];
	uint32_t next_pid;
	uint64_t op_began_ns;
	uint32_t invalidating; /* 1 + the namespace whose INVALIDATE was not answered */
};

static inline uint32_t sim_below(struct sim *s, uint32_t n)
{
	return test_rng_below(&s->rng, n);
}

static inline bool sim_chance(struct sim *s, uint32_t permille)
{
	return sim_below(s, 1000) < permille;
}

static inline uint32_t sim_more_below(struct sim *s, uint32_t n)
{
	return test_rng_below(&s->more, n);
}

static inline bool sim_more(struct sim *s, uint32_t permille)
{
	return sim_more_below(s, 1000) < permille;
}

static inline uint32_t sim_ns_of(const struct sim_lease *l)
{
	return universe_roots[l->p.root].ns;
}

static inline uint64_t sim_path_of(const struct sim_lease *l, uint32_t i)
{
	return sim_path(&l->p, l->epoch, l->p.skip + i);
}

static inline struct sim_proc *sim_proc_of(struct sim *s, const struct sim_session *se)
{
	return &s->procs[se->proc];
}

static inline uint32_t sim_session_idx(const struct sim *s, const struct sim_session *se)
{
	return (uint32_t)(se - s->sessions);
}

static inline uint32_t sim_block_bytes(const struct sim *s, uint32_t ns)
{
	if (ns == s->nature.coded_ns)
		return SIM_CODED_BYTES;
	return ns == 2 && s->nature.two_groups ? 2 * UNIVERSE_BYTES : UNIVERSE_BYTES;
}

/* ---- worker.c: processes and sessions -------------------------------------------------------- */

/* OPEN, and whether the namespace is read through its window; the clock is turned until it is
   answered. */
int sim_open(struct sim *s, struct world_client *c, uint32_t ns, bool windowed,
	     struct proto_open_rep *ret);
/* Namespaces that are not open, as after the loss of a device, are opened. */
void sim_open_rest(struct sim *s, struct sim_session *se);
void sim_spawn(struct sim *s, uint32_t proc);
/* HELLO, maybe QUIESCED for earlier lives, OPEN. */
void sim_connect(struct sim *s, struct sim_session *se);
void sim_close(struct sim *s, struct sim_session *se); /* the socket; the process lives */
void sim_kill(struct sim *s, uint32_t proc);
/*
 * A process with so many namespaces, roots and leases that the ledger needs more pieces for them.
 * It asks for nothing more, and lives to the end.
 */
void sim_crowd(struct sim *s);
void sim_crowd_leaves(struct sim *s);
void sim_quiesce(struct sim *s, struct sim_session *se, uint32_t life);
/* Its leases are over for the session, which cannot speak for them any more. */
void sim_session_over(struct sim *s, struct sim_session *se);

/* ---- blocks.c: slots that replies name ------------------------------------------------------- */

struct sim_claim sim_claim_of(struct sim *s, const struct sim_session *se,
			      const struct sim_lease *l, enum sim_use use, uint32_t slot,
			      uint64_t reuse);
/* Block j of the lease's path lies in this slot, says a reply.  True: as the codec gave it. */
bool sim_claim_block(struct sim *s, struct sim_session *se, const struct sim_lease *l, uint32_t j,
		     uint32_t slot, uint64_t reuse);
/* So many of a path of n blocks lie before what the lease reads. */
uint32_t sim_outside(const struct sim_lease *l, uint32_t n);
/* The path has n blocks now: what lies outside is let go of. */
void sim_claims_slide(struct sim *s, const struct sim_session *se, const struct sim_lease *l,
		      uint32_t n);
/* All that a MATCH or EXTEND found on the device, and the donor. */
void sim_claim_found(struct sim *s, struct sim_session *se, struct sim_lease *l,
		     const struct proto_match_rep *rep);

/* ---- lease.c: what one worker asks ----------------------------------------------------------- */

/* The i-th slot of the runs; PROTO_SLOT_NONE: it lies outside of all windows. */
uint32_t sim_slot_of(struct sim *s, struct proto_span runs, uint32_t i);
/* True: the reply is one that may come at any time, and there is nothing more to do. */
bool sim_over(struct sim *s, struct sim_session *se, struct sim_lease *l, int status);
/* The lease was taken back: what it wrote into is the worker's until QUIESCED. */
void sim_lease_revoked(struct sim *s, struct sim_session *se, struct sim_lease *l);
/* Replies and EVENTs that came since. */
void sim_hear(struct sim *s);
void sim_match(struct sim *s, struct sim_session *se);
void sim_extend(struct sim *s, struct sim_session *se, struct sim_lease *l);
void sim_reserve(struct sim *s, struct sim_session *se, struct sim_lease *l);
void sim_fill(struct sim *s, struct sim_session *se, struct sim_lease *l);
void sim_commit(struct sim *s, struct sim_session *se, struct sim_lease *l);
void sim_release(struct sim *s, struct sim_session *se, struct sim_lease *l);
void sim_see(struct sim *s, struct sim_session *se, const struct universe_prompt *p,
	     uint64_t epoch);
void sim_probe(struct sim *s, struct sim_session *se);
void sim_prefetch(struct sim *s, struct sim_session *se);

/* ---- found.c: what may be found, and what must be -------------------------------------------- */

/*
 * Blocks that whoever asks for the first n of the prompt finds on the device, since processes that
 * live read them.
 */
uint32_t sim_held(const struct sim *s, const struct universe_prompt *p, uint64_t epoch, uint32_t n,
		  uint32_t window, bool exact);
void sim_found_check(struct sim *s, const struct sim_lease *l, uint32_t n_device, uint32_t n_all);

/* ---- wait.c: who computes, who waits --------------------------------------------------------- */

void sim_wait(struct sim *s, struct sim_session *se, struct sim_lease *l);
void sim_wait_ended(struct sim *s, struct sim_lease *l, const struct proto_event *e);
void sim_waits_check(struct sim *s);
/* Others are told for so long that this lease computes block `at`. */
void sim_leads(struct sim *s, struct sim_lease *l, uint32_t at, uint64_t ns);
void sim_lead_matched(struct sim *s, struct sim_lease *l, const struct proto_match_rep *rep,
		      uint32_t flags);

/* ---- copies.c -------------------------------------------------------------------------------- */

void sim_copies_check(struct sim *s);

/* ---- life.c: the daemon's lives, and what must be there in the next one ---------------------- */

void sim_know(struct sim *s, const struct sim_lease *l);
void sim_forget(struct sim *s, uint32_t ns); /* its epoch was raised */
/* What is there now, for sim_audit_check() after the next start. */
void sim_audit_take(struct sim *s);
void sim_daemon_kill(struct sim *s);
void sim_daemon_drain(struct sim *s, uint64_t n_ops);
void sim_daemon_stop(struct sim *s, uint64_t ns);
void sim_daemon_gone(struct sim *s); /* it was seen to be */
/* A new life; it may not live long. */
void sim_daemon_start(struct sim *s);
void sim_invalidate(struct sim *s, uint32_t k);
void sim_evict(struct sim *s, uint32_t group, uint32_t n);

#include "tests/sim/lost.h"
#include "tests/sim/ranks.h"
