/*
 * messages.h - every frame of the protocol, each declared once.
 *
 * A frame is a 40-byte header and a body.  Bodies are sequences of fields without padding, little
 * endian, in the order of the tables below; from each table the struct, the encoder, the decoder
 * and the printer are generated (codec.h).  README.md is the same in prose: what each field means
 * and what each side does.
 *
 *     U8 U16 U32 U64   integers
 *     ID               16 raw bytes
 *     STR(max)         u16 length, then bytes: text, not terminated, no byte 0, at most max bytes
 *     BLOB(max)        u32 length, then bytes, at most max bytes
 *     RUNS(max)        u32 count, then count x {u32 start, u32 length}: slots
 *     SINCE(v)         what follows came with version v: a body of an older version ends here
 *
 * Bodies only ever grow at their end, so one table says what every version looks like.
 *
 * Decoded structs are views: spans point into the frame and live as long as it does.
 */
#pragma once

#include "proto/changes.h"
#include "proto/open.h"
#include "proto/waits.h"
#include "radix/base.h"

#define PROTO_MAGIC             0x44584650u /* "PFXD" on the wire */
#define PROTO_VERSION           3u          /* the newest one that is spoken here */
#define PROTO_VERSION_MIN       1u          /* the oldest one */
#define PROTO_VERSION_HELLO     1u /* in the headers of HELLO and its reply, whatever is agreed */
#define PROTO_HEADER_LEN        40u
#define PROTO_MAX_FRAME_DEFAULT (1u << 20) /* header included; told in HELLO's reply */
#define PROTO_MAX_FRAME_LIMIT   (64u << 20)
#define PROTO_MAX_HELLO         4096u /* a frame before HELLO may not be longer */
#define PROTO_SALT_MAX          255u
#define PROTO_DIGEST_MAX        64u

/*
 * The header, both ways.  `status` is 0 in requests.  Replies carry the request's op and seq.  A
 * reply whose status is not OK has the body ERROR, whatever the op.
 */
struct proto_id {
	uint8_t b[16];
};

struct proto_header {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t len;         /* bytes of body */
	uint16_t status;      /* enum proto_status */
	uint16_t flags;       /* must be 0 */
	uint64_t seq;         /* chosen by the requester, echoed */
	struct proto_id boot; /* replies: the daemon's life; requests: the one known, or zero */
};

#define PROTO_OPS(X)                                                          \
	X(1, HELLO, hello)                                                    \
	X(2, OPEN, open)                                                      \
	X(3, MATCH, match)                                                    \
	X(4, EXTEND, extend)                                                  \
	X(5, RESERVE, reserve)                                                \
	X(6, COMMIT, commit)                                                  \
	X(7, RELEASE, release)                                                \
	X(8, WAIT, wait)                                                      \
	X(9, PREFETCH, prefetch)                                              \
	X(10, PROBE, probe)                                                   \
	X(11, EXPLAIN, explain)                                               \
	X(12, REPORT, report)                                                 \
	X(13, SUBSCRIBE, subscribe)                                           \
	X(14, QUIESCED, quiesced)                                             \
	X(15, PING, ping)                                                     \
	X(16, EVENT, event) /* the daemon's alone: what a WAIT came to */     \
	X(17, CHANGES, changes)                                               \
	X(18, LOST, lost)   /* the daemon's alone: a pool's memory is gone */ \
	X(32, ADMIN, admin) /* on the admin socket only */

/* status code, name, what the worker does */
#define PROTO_STATUSES(X)                                                                        \
	X(0, OK, "go on")                                                                        \
	X(1, BAD_FRAME, "connection closes: magic, flags or length of the header are wrong")     \
	X(2, VERSION, "connection closes: speak a version that the reply names")                 \
	X(3, TOO_LARGE, "connection closes: frame longer than max_frame; cut it: MATCH, EXTEND") \
	X(4, BAD_BODY, "fix the field that is named; the connection goes on")                    \
	X(5, MISSING_FIELD, "send the field that is named; empty is not missing")                \
	X(6, NO_HELLO, "connection closes: say HELLO first")                                     \
	X(7, SELF_TEST, "connection closes: this client computes the self-test wrongly")         \
	X(8, FORBIDDEN, "compute; ask the operator for the tenant or right that is named")       \
	X(9, UNKNOWN_OP, "do without; the daemon is older or has that operation elsewhere")      \
	X(10, UNKNOWN_NAMESPACE, "OPEN it first")                                                \
	X(11, UNKNOWN_LEASE, "it was released, revoked or never was; MATCH again or compute")    \
	X(12, BAD_NAMESPACE, "fix the namespace field that is named; the session is as before")  \
	X(13, NO_BUDGET, "compute; the pool for this geometry does not fit the daemon's budget") \
	X(14, BUSY, "compute, or retry after the time that is given")                            \
	X(15, DEADLINE, "compute; the answer would have come too late")                          \
	X(16, STALE, "compute; the slot was reused since it was named")                          \
	X(17, WRONG_STATE, "fix the order of calls that the text names")                         \
	X(18, LIMIT, "release something, or ask the operator for a higher limit")                \
	X(19, DRAINING, "compute; the daemon is stopping")                                       \
	X(20, OP_ID_REUSED, "use a fresh operation id for a different request")                  \
	X(21, CONFLICT, "go on without the parent; that digest hangs under another one")         \
	X(22, UNSUPPORTED, "do without; this daemon was built or started without it")            \
	X(23, NO_MEMORY, "compute; the daemon has no memory for the request")                    \
	X(24, REVOKED, "compute; the lease was taken back")                                      \
	X(25, DEVICE_LOST, "compute; the device's memory is gone: let go of it, OPEN again")

enum proto_op {
#define X(code, sym, low) PROTO_OP_##sym = (code),
	PROTO_OPS(X)
#undef X
};

enum proto_status {
#define X(code, sym, cure) PROTO_STATUS_##sym = (code),
	PROTO_STATUSES(X)
#undef X
};

/* Tiers, and why a match is not longer. */
#define PROTO_TIERS(X) X(0, DEVICE, "device") X(1, HOST, "host") X(2, REDIS, "redis")
enum proto_tier {
#define X(code, sym, text) PROTO_TIER_##sym = (code),
	PROTO_TIERS(X)
#undef X
};

#define PROTO_REASONS(X)                         \
	X(0, NONE, "none") /* nothing missing */ \
	X(1, NEVER_SEEN, "never_seen")           \
	X(2, DIVERGED, "diverged")               \
	X(3, EVICTED, "evicted")                 \
	X(4, BELOW_BLOCK, "below_block")         \
	X(5, PENDING, "pending")                 \
	X(6, NO_ROOM, "no_room")                 \
	X(7, NAMESPACE, "namespace")             \
	X(8, SEED_MISMATCH, "seed_mismatch")     \
	X(9, TIER_LOST, "tier_lost")             \
	X(10, TIER_DOWN, "tier_down")            \
	X(11, QUOTA, "quota")                    \
	X(12, CORRUPT, "corrupt")                \
	X(13, DECLINED, "declined") /* it lay in a lower tier, and was computed all the same */

enum proto_reason {
#define X(code, sym, text) PROTO_REASON_##sym = (code),
	PROTO_REASONS(X)
#undef X
};

enum proto_key_mode {
	PROTO_KEYS_TOKENS = 1,
	PROTO_KEYS_DIGEST = 2
};

/* A span of bytes inside a frame (decode) or of the caller (encode). */
struct proto_span {
	const void *p;
	uint32_t n; /* bytes; for RUNS the number of runs */
};

/* ---- bodies ---------------------------------------------------------------------------------- */

#define PROTO_ERROR_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	STR(field, 64) /* the field at fault, or empty */                 \
	STR(text, 512) /* what is wrong and what would be right */        \
	U32(retry_after_us)

/* HELLO.  self_test: that of version_min, which a daemon of any age can check; see codec.h. */
enum {
	PROTO_HELLO_COPIES = 1, /* this worker copies blocks out before it computes: revocable */
	PROTO_HELLO_ALL = 1
};

#define PROTO_HELLO_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U16(version_min)                                                      \
	U16(version_max)                                                      \
	U32(flags)                                                            \
	ID(self_test)                                                         \
	ID(instance)  /* random, one per worker process */                    \
	STR(name, 64) /* shown to operators */

#define PROTO_HELLO_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)                 \
	U16(version)                                                                          \
	U32(session)                                                                          \
	U32(max_frame)      /* bytes, header included */                                      \
	U32(max_keys)       /* keys in one MATCH, EXTEND, PROBE, EXPLAIN */                   \
	U32(max_namespaces) /* per session */                                                 \
	U32(max_leases)     /* per session */                                                 \
	U32(op_ids_kept)    /* operation ids remembered per session */                        \
	U32(op_ids_kept_ms)                                                                   \
	STR(daemon, 64)      /* version text */                                               \
	BLOB(tenants, 65536) /* repeated {u32 id, u16 length, name} */                        \
	SINCE(2)                                                                              \
	U32(n_orphans)   /* leases that earlier sessions of this instance left, still held */ \
	ID(orphans_boot) /* the last life in which one of them was given; zeroes: there is none */

/* MATCH, PROBE, EXPLAIN name their root by three fields that must all be present. */
enum {
	PROTO_HAS_NS = 1,
	PROTO_HAS_TENANT = 2,
	PROTO_HAS_SALT = 4,
	PROTO_HAS_ALL = 7
};
enum {
	PROTO_MATCH_PROMOTE = 1, /* bring host and redis blocks up */
	PROTO_MATCH_ISLAND = 2,  /* digest mode: keys[0] may lie anywhere; find it by its digest */
	PROTO_MATCH_NO_TAIL = 4, /* do not look for a partial block */
	PROTO_MATCH_LEAD = 8,    /* what is missing and nobody computes, this lease will */
	PROTO_MATCH_EXACT = 16, /* version 3: end before the first block that a codec has changed */
	PROTO_MATCH_ALL_1 = 15, /* what versions 1 and 2 define */
	PROTO_MATCH_ALL = 31,
	PROTO_EXTEND_ALL = 13 /* where a lease begins, and of what, is settled by MATCH */
};

#define PROTO_MATCH_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)                  \
	U8(has) /* PROTO_HAS_*: all of them, empty is not missing */                           \
	U32(ns)                                                                                \
	U32(tenant)                                                                            \
	BLOB(salt, PROTO_SALT_MAX)                                                             \
	ID(op_id)       /* zero: this request is never retried */                              \
	ID(decision_id) /* zero, or one id for all ranks of one request */                     \
	U32(flags)                                                                             \
	U32(deadline_us) /* 0: none */                                                         \
	U64(n_tokens)    /* tokens asked for: full blocks, tail, and what no key names */      \
	BLOB(parent, PROTO_DIGEST_MAX)    /* digest mode, with ISLAND: graft below this one */ \
	BLOB(keys, PROTO_MAX_FRAME_LIMIT) /* n x key_len */                                    \
	BLOB(tail, PROTO_MAX_FRAME_LIMIT) /* token mode: u32 tokens short of a block */

#define PROTO_MATCH_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)            \
	U64(lease)                                                                       \
	ID(root)      /* differs whenever namespace, epoch, tenant or salt do */         \
	U32(n_device) /* blocks matched, leading ones first */                           \
	U32(n_host)                                                                      \
	U32(n_redis)                                                                     \
	U32(n_pending)   /* further blocks that another lease is computing */            \
	U32(tail_tokens) /* tokens usable of the next block, from tail_slot */           \
	U32(tail_slot)                                                                   \
	U8(advice)           /* 0 load, 1 recompute */                                   \
	U8(reason)           /* enum proto_reason: why not longer */                     \
	U8(more)             /* the reply was cut: EXTEND with no keys gives the rest */ \
	U32(load_us)         /* estimated time to load host and redis blocks */          \
	U64(miss_token)      /* position of the first token that is not served */        \
	U64(reuse)           /* G: a slot is stale once its generation exceeds this */   \
	RUNS(runs, 1u << 22) /* device slots of the matched blocks, in path order */     \
	SINCE(3)                                                                         \
	U32(n_lossy)     /* of the matched blocks of all tiers: changed by a codec */    \
	U32(first_lossy) /* path position of the first such block */

/* The start of a run of blocks that have no slot: outside every window, nobody reads them. */
#define PROTO_SLOT_NONE UINT32_MAX

#define PROTO_EXTEND_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	ID(op_id)                                                              \
	U64(lease)                                                             \
	U32(flags)                                                             \
	U32(deadline_us)                                                       \
	U64(n_tokens) /* of the whole prompt, as in MATCH */                   \
	BLOB(parent, PROTO_DIGEST_MAX)                                         \
	BLOB(keys, PROTO_MAX_FRAME_LIMIT) /* further keys */                   \
	BLOB(tail, PROTO_MAX_FRAME_LIMIT)
/*
 * EXTEND's reply is MATCH's; n_device and runs are of the blocks that this call added, n_host and
 * n_redis of all that lies behind the path then.
 */

#define PROTO_RESERVE_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	ID(op_id)                                                               \
	U64(lease)                                                              \
	U32(n) /* blocks wanted, from the first without a device copy */        \
	U32(deadline_us)

#define PROTO_RESERVE_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U32(n)     /* granted: a prefix, n <= wanted; none at all is BUSY */    \
	U32(first) /* path position of the first granted block */               \
	U64(reuse)                                                              \
	RUNS(runs, 1u << 22) /* slots to fill, in path order */

/*
 * Version 3: the request counts once word number `word` of the session, counted from 1, has come to
 * `value` (modulo 2^64, not more than 2^63 - 1 beyond), which the worker's stream writes.  0: at
 * once.
 */
#define PROTO_AFTER(U32, U64, SINCE) SINCE(3) U32(word) U64(value)

enum {
	PROTO_CHECKSUM_NONE = 0,
	PROTO_CHECKSUM_XXH3_128 = 1,
	PROTO_CHECKSUM_KERNEL = 2
};

#define PROTO_COMMIT_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)    \
	ID(op_id)                                                                 \
	U64(lease)                                                                \
	U32(n)           /* the next n reserved blocks, in path order */          \
	U32(tail_tokens) /* tokens of the offered partial block that were used */ \
	U8(checksum_kind)                                                         \
	BLOB(checksums, 1u << 22) /* n x 16, or empty with kind none */           \
	PROTO_AFTER(U32, U64, SINCE)

#define PROTO_COMMIT_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U32(n_stored)    /* blocks that became READY from our slots */         \
	U32(n_duplicate) /* blocks where another was faster */                 \
	U64(reuse)                                                             \
	RUNS(runs, 1u << 22) /* canonical slots of the n blocks; ours stay ours until RELEASE */

enum {
	PROTO_RELEASE_OVER = 1, /* hint: the conversation is over */
	PROTO_RELEASE_NEXT = 2, /* hint: next use in about next_use_ms */
	PROTO_RELEASE_ALL = 3
};

#define PROTO_RELEASE_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	ID(op_id)                                                               \
	U64(lease)                                                              \
	U32(flags)                                                              \
	U32(next_use_ms)                                                        \
	PROTO_AFTER(U32, U64, SINCE)

/* Settled once: hits and misses add up to what was asked. */
#define PROTO_RELEASE_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U64(queried_tokens)                                                     \
	U64(hit_device_tokens)                                                  \
	U64(hit_host_tokens)                                                    \
	U64(hit_redis_tokens)                                                   \
	U64(hit_pending_tokens)                                                 \
	U64(miss_tokens)

enum {
	PROTO_PROBE_BITMAP = 1,
	PROTO_PROBE_ALL = 1
};

#define PROTO_PROBE_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U8(has)                                                               \
	U32(ns)                                                               \
	U32(tenant)                                                           \
	BLOB(salt, PROTO_SALT_MAX)                                            \
	U32(flags)                                                            \
	U64(n_tokens)                                                         \
	BLOB(keys, PROTO_MAX_FRAME_LIMIT)

#define PROTO_PROBE_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	ID(root)                                                              \
	U32(n_device)                                                         \
	U32(n_host)                                                           \
	U32(n_redis)                                                          \
	BLOB(bitmap, 1u << 22) /* with BITMAP: bit i (LSB first) is set when keys[i] is a member */

#define PROTO_EXPLAIN_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U8(has)                                                                 \
	U32(ns)                                                                 \
	U32(tenant)                                                             \
	BLOB(salt, PROTO_SALT_MAX)                                              \
	U64(n_tokens)                                                           \
	BLOB(keys, PROTO_MAX_FRAME_LIMIT)                                       \
	BLOB(tail, PROTO_MAX_FRAME_LIMIT)

#define PROTO_EXPLAIN_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U64(matched_tokens)                                                     \
	U64(position) /* first token that is not served */                      \
	U8(reason)                                                              \
	U8(has_tokens) /* bit 0: own_token, bit 1: stored_token are set */      \
	U32(own_token)                                                          \
	U32(stored_token) /* admin socket only */                               \
	U64(lost_tokens)  /* tokens behind position that this reason costs */   \
	STR(text, 512)    /* the same as a sentence */

#define PROTO_REPORT_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U32(ns)                                                                \
	U32(ttft_us)                                                           \
	U32(tpot_us)                                                           \
	U32(input_tokens)                                                      \
	U32(running)                                                           \
	U32(waiting)

/* QUIESCED: this process' device no longer touches what it released or lost. */
#define PROTO_QUIESCED_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)           \
	ID(instance) /* whose: earlier sessions of this process with it */                 \
	ID(old_boot) /* the life in which the leases were given; version 2: zeroes: any */ \
	PROTO_AFTER(U32, U64, SINCE)

#define PROTO_QUIESCED_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U32(n_leases) /* orphaned leases that ended */                           \
	U32(n_slots)  /* quarantined or orphaned slots that became free */

/* PING, and REPORT's reply: empty.  ADMIN: one JSON document each way. */
#define PROTO_EMPTY_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)
#define PROTO_ADMIN_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	BLOB(json, PROTO_MAX_FRAME_LIMIT)

/* name of the struct and functions, table of its fields */
#define PROTO_BODIES(X)                              \
	X(error, PROTO_ERROR_FIELDS)                 \
	X(hello_req, PROTO_HELLO_REQ_FIELDS)         \
	X(hello_rep, PROTO_HELLO_REP_FIELDS)         \
	X(open_req, PROTO_OPEN_REQ_FIELDS)           \
	X(open_rep, PROTO_OPEN_REP_FIELDS)           \
	X(match_req, PROTO_MATCH_REQ_FIELDS)         \
	X(match_rep, PROTO_MATCH_REP_FIELDS)         \
	X(extend_req, PROTO_EXTEND_REQ_FIELDS)       \
	X(reserve_req, PROTO_RESERVE_REQ_FIELDS)     \
	X(reserve_rep, PROTO_RESERVE_REP_FIELDS)     \
	X(commit_req, PROTO_COMMIT_REQ_FIELDS)       \
	X(commit_rep, PROTO_COMMIT_REP_FIELDS)       \
	X(release_req, PROTO_RELEASE_REQ_FIELDS)     \
	X(release_rep, PROTO_RELEASE_REP_FIELDS)     \
	X(probe_req, PROTO_PROBE_REQ_FIELDS)         \
	X(probe_rep, PROTO_PROBE_REP_FIELDS)         \
	X(explain_req, PROTO_EXPLAIN_REQ_FIELDS)     \
	X(explain_rep, PROTO_EXPLAIN_REP_FIELDS)     \
	X(report_req, PROTO_REPORT_REQ_FIELDS)       \
	X(quiesced_req, PROTO_QUIESCED_REQ_FIELDS)   \
	X(quiesced_rep, PROTO_QUIESCED_REP_FIELDS)   \
	X(wait_req, PROTO_WAIT_REQ_FIELDS)           \
	X(wait_rep, PROTO_WAIT_REP_FIELDS)           \
	X(event, PROTO_EVENT_FIELDS)                 \
	X(prefetch_req, PROTO_PREFETCH_REQ_FIELDS)   \
	X(prefetch_rep, PROTO_PREFETCH_REP_FIELDS)   \
	X(subscribe_req, PROTO_SUBSCRIBE_REQ_FIELDS) \
	X(subscribe_rep, PROTO_SUBSCRIBE_REP_FIELDS) \
	X(change, PROTO_CHANGE_FIELDS)               \
	X(changes, PROTO_CHANGES_FIELDS)             \
	X(empty, PROTO_EMPTY_FIELDS)                 \
	X(admin, PROTO_ADMIN_FIELDS)

/* operation, body of its request, body of its reply */
#define PROTO_FRAMES(X)                                                                  \
	X(HELLO, hello_req, hello_rep)                                                   \
	X(OPEN, open_req, open_rep)                                                      \
	X(MATCH, match_req, match_rep)                                                   \
	X(EXTEND, extend_req, match_rep)                                                 \
	X(RESERVE, reserve_req, reserve_rep)                                             \
	X(COMMIT, commit_req, commit_rep)                                                \
	X(RELEASE, release_req, release_rep)                                             \
	X(PROBE, probe_req, probe_rep)                                                   \
	X(EXPLAIN, explain_req, explain_rep)                                             \
	X(REPORT, report_req, empty)                                                     \
	X(QUIESCED, quiesced_req, quiesced_rep)                                          \
	X(WAIT, wait_req, wait_rep)                                                      \
	X(EVENT, event, event)                                                           \
	X(PREFETCH, prefetch_req, prefetch_rep)                                          \
	X(SUBSCRIBE, subscribe_req, subscribe_rep)                                       \
	X(CHANGES, empty, changes) /* never a request */                                 \
	X(LOST, empty, error)      /* never a request; seq: the group of OPEN's reply */ \
	X(PING, empty, empty)                                                            \
	X(ADMIN, admin, admin)

#define PROTO_F_U8(name)        uint8_t name;
#define PROTO_F_U16(name)       uint16_t name;
#define PROTO_F_U32(name)       uint32_t name;
#define PROTO_F_U64(name)       uint64_t name;
#define PROTO_F_ID(name)        struct proto_id name;
#define PROTO_F_SPAN(name, max) struct proto_span name;
#define PROTO_F_SINCE(version)

#define X(low, FIELDS)                                                                \
	struct proto_##low {                                                          \
		FIELDS(PROTO_F_U8, PROTO_F_U16, PROTO_F_U32, PROTO_F_U64, PROTO_F_ID, \
		       PROTO_F_SPAN, PROTO_F_SPAN, PROTO_F_SPAN, PROTO_F_SINCE)       \
	};
PROTO_BODIES(X)
#undef X
