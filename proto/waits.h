/*
 * waits.h - the part of messages.h that speaks of what comes later: WAIT, EVENT, PREFETCH.
 *
 * The macros of the tables are messages.h's, which includes this; nobody else needs to.
 */
#pragma once

/* What a WAIT comes to.  The reply says any but DEADLINE, EVENT any but WAITING. */
#define PROTO_WAIT_STATES(X)                                        \
	X(0, READY, "ready") /* n more blocks are usable: EXTEND */ \
	X(1, WAITING, "waiting")                                    \
	X(2, LEAD, "lead")     /* nobody computes it: you do */     \
	X(3, FAILED, "failed") /* nobody will: compute */           \
	X(4, DEADLINE, "deadline")                                  \
	X(5, LOADED, "loaded") /* EVENT only: n blocks came up from lower tiers: EXTEND */

enum proto_wait_state {
#define X(code, sym, text) PROTO_WAIT_##sym = (code),
	PROTO_WAIT_STATES(X)
#undef X
};

#define PROTO_WAIT_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U64(lease)                                                           \
	U32(deadline_us) /* 0: none but those of the leaders */

#define PROTO_WAIT_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)          \
	U64(lease)                                                                    \
	U8(state)      /* enum proto_wait_state */                                    \
	U32(n)         /* WAITING: blocks waited for; else: more blocks usable now */ \
	U32(leader_us) /* WAITING: how long the leader is waited for; LEAD: you are */

/*
 * EVENT: the end of a WAIT, or of a load that MATCH or EXTEND began with PROMOTE; seq is that
 * request's. LOADED with fewer blocks than were to come, or FAILED, says why in `reason`.
 */
#define PROTO_EVENT_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)    \
	PROTO_WAIT_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U8(reason) /* enum proto_reason */

/* PREFETCH: bring these up before somebody asks.  Pins nothing, is never told about. */
#define PROTO_PREFETCH_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U8(has)                                                                  \
	U32(ns)                                                                  \
	U32(tenant)                                                              \
	BLOB(salt, PROTO_SALT_MAX)                                               \
	ID(op_id)                                                                \
	U32(deadline_us) /* 0: the daemon's own limit */                         \
	U64(n_tokens)                                                            \
	BLOB(keys, PROTO_MAX_FRAME_LIMIT)

/* What is there now; whether Redis holds more is asked, and what it holds comes up too. */
#define PROTO_PREFETCH_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	ID(root)                                                                 \
	U32(n_device)                                                            \
	U32(n_host)                                                              \
	U32(n_redis)
