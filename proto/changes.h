/*
 * changes.h - the part of messages.h that subscribers see: SUBSCRIBE, CHANGES, and their words.
 *
 * The macros of the tables are messages.h's, which includes this; nobody else needs to.
 */
#pragma once

/* What a subscriber is told, and why a block is gone. */
#define PROTO_CHANGES(X)                                                       \
	X(1, STORED, "stored")   /* a block became a member of the tier */     \
	X(2, REMOVED, "removed") /* it is gone from the tier */                \
	X(3, MOVED, "moved")     /* its highest copy is in another tier now */ \
	X(4, CLEARED, "cleared") /* all blocks of the namespace are gone */    \
	X(5, RESYNC, "resync")   /* events were lost: nothing known before holds */

enum proto_change_kind {
#define X(code, sym, text) PROTO_CHANGE_##sym = (code),
	PROTO_CHANGES(X)
#undef X
};

#define PROTO_REMOVALS(X)          \
	X(0, NONE, "none")         \
	X(1, CAPACITY, "capacity") \
	X(2, FLUSH, "flush")       \
	X(3, EVICT, "evict")       \
	X(4, CORRUPT, "corrupt")   \
	X(5, QUOTA, "quota")       \
	X(6, LOST, "tier_lost")    \
	X(7, DROPPED, "dropped")

enum proto_removal {
#define X(code, sym, text) PROTO_REMOVAL_##sym = (code),
	PROTO_REMOVALS(X)
#undef X
};

/* SUBSCRIBE: once per session; the stream comes as frames CHANGES with this request's seq. */
#define PROTO_SUBSCRIBE_REQ_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U32(ns)   /* 0: every namespace that this session may see */              \
	U64(from) /* number of the first event wanted; 0: from now on */          \
	ID(life)  /* with from: the boot id under which it was numbered */

#define PROTO_SUBSCRIBE_REP_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U64(last)   /* number of the last event so far; 0: none yet */            \
	U64(oldest) /* number of the oldest one that is kept */

/* One event.  Which fields mean something depends on its kind: README. */
#define PROTO_CHANGE_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE)          \
	U8(kind) /* enum proto_change_kind */                                       \
	U8(tier)                                                                    \
	U8(from_tier) /* moved: where it was */                                     \
	U8(reason)    /* removed: enum proto_removal */                             \
	U64(number)   /* counts all events of this life of the daemon */            \
	U32(ns)                                                                     \
	U32(tenant)                                                                 \
	ID(root)      /* as MATCH echoes it */                                      \
	U32(position) /* stored, token mode: blocks before it; else all bits set */ \
	U32(n_tokens)                                                               \
	U32(slot)                                                                   \
	U64(revision)                  /* cleared: how often that happened */       \
	BLOB(block, PROTO_DIGEST_MAX)  /* digest mode: its digest; else 16 bytes */ \
	BLOB(parent, PROTO_DIGEST_MAX) /* stored: the block before; empty: none known */

/* Repeated {u16 n, n bytes of `change`}, to the end of the field; see proto_change_next(). */
#define PROTO_CHANGES_FIELDS(U8, U16, U32, U64, ID, STR, BLOB, RUNS, SINCE) \
	U32(n) /* events in the frame */                                    \
	BLOB(events, PROTO_MAX_FRAME_LIMIT)
