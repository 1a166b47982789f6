/*
 * engine_info.h - looking at the engine: admin socket, metrics, tests.  The end of engine.h.
 *
 * What it guarantees.  Nothing here changes anything.  What pointers lead to is valid until the
 * next step.
 */
#pragma once

#include "daemon/engine.h"

struct prefixd_stripe;

struct prefixd_namespace_info {
	uint32_t id;
	uint32_t group;
	uint8_t digest[32];
	const char *model, *revision, *dtype, *adapter, *engine; /* until the next step */
	enum radix_key_mode mode;
	uint32_t block_tokens;
	uint32_t key_len;
	uint32_t n_sessions;
	uint64_t n_blocks;
	const struct prefixd_cold *cold; /* how its blocks lie below the device */
};

struct prefixd_group_info {
	uint32_t id;
	uint32_t n_slots;
	uint32_t n_ranks; /* a block has a slot of slot_bytes in the pool of each */
	uint64_t slot_bytes;
	uint64_t slot_stride;
	const struct prefixd_cold *cold; /* until the next step */
	struct radix_index *index;       /* for radix_dump, radix_verify, radix_index_stats */
	bool lost;                       /* its device is, and there is no memory again yet */
};

/* How a lease stands.  The last two have ended; what they had reserved is not free yet. */
#define PREFIXD_STANDS(X)                                                           \
	X(LIVE, "live")                                                             \
	X(ORPHAN, "orphan")           /* the socket ended, the process lives */     \
	X(REVOKED, "revoked")         /* until the process says QUIESCED or ends */ \
	X(QUARANTINED, "quarantined") /* the process has ended: until the grace is over */

enum prefixd_stand {
#define X(sym, text) PREFIXD_STAND_##sym,
	PREFIXD_STANDS(X)
#undef X
};

const char *prefixd_stand_to_string(enum prefixd_stand stand);

#define PREFIXD_LEASE_HEAD 16u

/* A rank that shares a lease with others. */
struct prefixd_rank_info {
	uint32_t rank;
	bool came, over;      /* over: released, or its process may write no more */
	uint32_t pid;         /* 0: it has not come, or is over */
	uint32_t n_committed; /* blocks, since the lease began */
};

struct prefixd_lease_info {
	uint64_t id;
	uint32_t session; /* RADIX_NONE: quarantined */
	uint32_t pid, uid;
	const char *name; /* of the worker, as HELLO had it */
	enum prefixd_stand stand;
	bool orphan;  /* stand is ORPHAN */
	bool earlier; /* given in an earlier life of the daemon; its age is that of this life */
	uint64_t age_ns;
	uint32_t group;
	uint64_t slot_bytes;
	uint64_t n_blocks;   /* that it keeps of its path */
	uint64_t n_reserved; /* slots reserved and not committed */
	uint64_t n_own;      /* slots of duplicates; of a lease that has ended, all it had */
	const uint32_t *own, *reserved;      /* [n_own], [n_reserved] */
	uint32_t n_ranks;                    /* that share it; 1: nobody shares it */
	const struct prefixd_stripe *stripe; /* for prefixd_engine_rank() */
	/* LIVE and ORPHAN */
	uint32_t tenant, ns;
	const char *model;
	bool salted;
	uint8_t salt_digest[8]; /* keyed: tells salts apart, and nothing else about them */
	bool island;            /* the path may begin in the middle of a prompt */
	enum radix_key_mode mode;
	bool headed;            /* how the prompt begins is known */
	uint8_t head_digest[8]; /* keyed digest of its first tokens: equal beginnings look equal */
};

struct prefixd_session_info {
	uint32_t session, pid, uid;
	const char *name;
	bool orphan;
	uint64_t age_ns;
	uint32_t n_leases, n_namespaces;
	uint64_t requests;
	uint32_t ttft_us, tpot_us, input_tokens, running, waiting; /* last REPORT */
};

void prefixd_engine_counters(const struct prefixd_engine *e, struct prefixd_counters *ret);
/* Iterators: *it starts at 0; false when there are no more. */
bool prefixd_engine_next_group(const struct prefixd_engine *e, uint32_t *it,
			       struct prefixd_group_info *ret);
bool prefixd_engine_next_namespace(const struct prefixd_engine *e, uint32_t *it,
				   struct prefixd_namespace_info *ret);
bool prefixd_engine_next_session(const struct prefixd_engine *e, uint32_t *it, uint64_t now_ns,
				 struct prefixd_session_info *ret);
bool prefixd_engine_next_lease(const struct prefixd_engine *e, uint64_t *it, uint64_t now_ns,
			       struct prefixd_lease_info *ret);
/* Rank `i` of a lease that ranks share. */
struct prefixd_rank_info prefixd_engine_rank(const struct prefixd_lease_info *lease, uint32_t i);
/* The same over leases that have ended and whose slots are not free yet. */
bool prefixd_engine_next_ended(const struct prefixd_engine *e, uint64_t *it, uint64_t now_ns,
			       struct prefixd_lease_info *ret);
/* Blocks of a group that leases keep from leaving, shared ones once.  O(leases). */
uint64_t prefixd_engine_pinned(const struct prefixd_engine *e, uint32_t group);
bool prefixd_engine_draining(const struct prefixd_engine *e);
/*
 * Slots of a group that nobody can have because who held them left: quarantined ones, and what
 * leases hold whose socket ended while their process lives.
 */
uint64_t prefixd_engine_kept(const struct prefixd_engine *e, uint32_t group);
/* Is that more than half of any pool?  Then `text` says whose, a line for each such pool.  len may
 * be 0: only the answer. */
bool prefixd_engine_over(const struct prefixd_engine *e, char *text, size_t len);

/*
 * Every invariant of the engine and of each group's index, by number (README.md).  Return: 0, or
 * the number of the first broken one with a sentence in `why`.
 */
int prefixd_engine_verify(const struct prefixd_engine *e, char *why, size_t why_len);
