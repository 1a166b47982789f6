/*
 * engine.h - every decision of the daemon, as one pure state machine.
 *
 *     prefixd_engine_step(engine, event, now_ns) -> actions
 *
 * What it guarantees.  No socket, clock, thread, allocator, log or file is touched: time comes with
 * each event, memory through `alloc`, randomness through the configuration, and everything that has
 * to happen outside is an action.  The same events in the same order give the same actions, byte by
 * byte; the simulated world of the tests and the real shell drive the same object.
 *
 * What it relies on.  One caller at a time.  Times never go backwards.  A session's events end with
 * PROCESS_GONE or, when the kernel offers no way to watch a process, with SESSION_EOF.
 */
#pragma once

#include "daemon/engine_config.h"
#include "daemon/engine_counters.h"
#include "proto/messages.h"
#include "radix/recover.h"

struct prefixd_engine; /* opaque */

/* ---- events ---------------------------------------------------------------------------------- */

#define PREFIXD_EVENTS(X)                                                                         \
	X(SESSION_OPENED) /* a peer connected to the worker socket */                             \
	X(FRAME)          /* one whole frame of a session, header checked */                      \
	X(FRAME_BAD)      /* its header was wrong: answer, flush, close */                        \
	X(SESSION_EOF)    /* the socket ended; the process may live on */                         \
	X(PROCESS_GONE)   /* the peer's process ended (pidfd), socket or not */                   \
	X(POOL_READY)     /* answer to action POOL_CREATE */                                      \
	X(POOL_FAILED)                                                                            \
	X(TIMER)       /* prefixd_engine_deadline() has passed */                                 \
	X(DRAIN)       /* stop taking work; action EXIT follows when idle or at the deadline */   \
	X(ADMIN_EVICT) /* evict n blocks of a group; answer in event.ret_* */                     \
	X(ADMIN_FLUSH) /* empty a namespace, or all */                                            \
	X(RELOAD)      /* new tenants and limits */                                               \
	X(SUBSCRIBER_READY) /* the bytes of a SEND with tell_ready are in the socket */           \
	X(MOVED)            /* answer to COPY, STORE or FETCH */                                  \
	X(LOOKED)           /* answer to LOOK */                                                  \
	X(REDIS_STATE)      /* Redis can be used from now on, or cannot */                        \
	X(EPOCH_SEEN)       /* somebody, or a life before this one, raised a namespace's epoch */ \
	X(ADMIN_INVALIDATE) /* raise a namespace's epoch; nothing older is served afterwards */   \
	X(RESTORE)          /* the first event, if at all: take up what the ledger has */         \
	X(VERIFIED)         /* answer to VERIFY */                                                \
	X(POOL_LOST)        /* a group's device is lost; POOL_CREATE asks for memory anew */      \
	X(DESK_READY)       /* answer to DESK_CREATE */                                           \
	X(DESK_FAILED)                                                                            \
	X(TAKEN) /* answer to TAKE */

enum prefixd_event_type {
#define X(sym) PREFIXD_EVENT_##sym,
	PREFIXD_EVENTS(X)
#undef X
};

struct prefixd_peer {
	uint32_t pid;
	uint32_t uid;
	uint32_t gid;
	uint64_t start_time; /* of the process, /proc/PID/stat field 22; 0 unknown */
	bool admin;          /* came in by the admin socket: EXPLAIN shows stored tokens */
};

/* How a move ended. */
#define PREFIXD_MOVE_RESULTS(X)                                                            \
	X(OK, "ok")                                                                        \
	X(LOST, "lost")       /* Redis has no such value (any more) */                     \
	X(CORRUPT, "corrupt") /* what it has, or what lay in the slot, is not the block */ \
	X(DOWN, "down")       /* not tried, or no answer in time */                        \
	X(FAILED, "failed")   /* the copy itself failed */                                 \
	X(RAW, "raw")         /* it cannot be coded, and does not fit as it is */

enum prefixd_move_result {
#define X(sym, text) PREFIXD_MOVE_##sym,
	PREFIXD_MOVE_RESULTS(X)
#undef X
};

struct prefixd_event {
	enum prefixd_event_type type;
	uint32_t session; /* chosen by the shell; unique while the session or its orphan lives */
	union {
		struct prefixd_peer peer;
		struct {
			const struct proto_header *header;
			const void *body; /* header->len bytes, valid during the step */
		} frame;
		struct {
			const struct proto_header *header;
			enum proto_status status;
		} bad;
		struct {
			uint32_t group;
			uint64_t slot_stride;
			uint64_t pool_len;
			uint64_t *generations; /* [n_slots], shared read-only with workers; zeroed,
						 or adopted */
			/* for the block table: empty, or adopted; NULL: it ends with the engine */
			struct radix_store *table;
			uint8_t n_fds;  /* descriptors that OPEN's reply will carry, of one rank */
			uint8_t device; /* enum proto_device */
			/* [n_ranks] of the action: one for each rank's pool; NULL: zeroes */
			bool fresh; /* POOL_ADOPT: the slots are new, nothing lies in them */
			bool lost;  /* POOL_FAILED: the device is; it may be there again later */
			const struct proto_id *device_ids;
			uint64_t slab_len; /* 0: the pool has one slab */
			const char *why;   /* POOL_FAILED: a sentence for the client */
		} pool;                    /* POOL_READY, _FAILED; of _LOST the group alone */
		struct {
			uint64_t deadline_ns; /* absolute; 0: none */
		} drain;
		struct {
			uint32_t group;
			uint32_t ns; /* RADIX_NONE: all */
			uint64_t n;
		} admin;
		struct {
			const struct prefixd_tenant *tenants;
			uint32_t n_tenants;
			const struct prefixd_limits *limits;
		} reload;
		struct {
			uint32_t id; /* the action's */
			enum prefixd_move_result result;
			uint64_t ns;          /* what the carrying alone took; 0: unknown */
			bool summed;          /* checksum is there */
			uint8_t checksum[16]; /* XXH3-128 of the block, as it is on the device */
			bool lossy; /* up: what came was coded, and is not what was committed */
		} moved;
		struct {
			uint32_t id;
			uint32_t n; /* leading keys that are there; 0 too when nobody could say */
		} looked;
		bool redis_up;
		struct {
			uint8_t digest[32]; /* the namespace's */
			struct prefixd_epoch epoch;
		} epoch;
		struct {
			uint32_t ns;
			uint64_t nonce; /* random */
		} invalidate;
		struct {
			uint32_t first_session; /* numbers from here on are free */
		} restore;
		struct {
			uint32_t id;   /* the action's */
			uint64_t bad;  /* bit i: block i is not what its checksum says */
			uint64_t done; /* bit i: block i was looked at */
		} verified;
		struct {
			uint32_t id;     /* the action's */
			uint64_t len;    /* bytes to map */
			const char *why; /* DESK_FAILED: a sentence for the client */
		} desk;
		struct {
			uint32_t desk, place;            /* the action's */
			enum prefixd_move_result result; /* OK, CORRUPT, FAILED */
			uint8_t checksum[16];            /* OK: XXH3-128 of what arrived */
		} taken;
	} u;
	uint64_t ret_n; /* ADMIN_*: blocks that went; RESTORE: session numbers taken */
};

/* ---- actions --------------------------------------------------------------------------------- */

/* POOL_CREATE of a group that was lost: the slots alone are made anew, all else of it stays. */

#define PREFIXD_ACTIONS(X)                                                                         \
	X(SEND)        /* bytes to a session, in order; with descriptors of a group */             \
	X(CLOSE)       /* flush what was sent, then close; no event of the socket follows */       \
	X(FORGET)      /* the session is over: its number may be used again */                     \
	X(POOL_CREATE) /* make memory for a group, answer with POOL_READY or POOL_FAILED */        \
	X(POOL_DESTROY)                                                                            \
	X(POISON) /* a slot became free (simulated device: fill it) */                             \
	X(LOG)    /* one line; never a token id */                                                 \
	X(EXIT)   /* drained */                                                                    \
	X(COPY)   /* a block between device and host; answer with MOVED */                         \
	X(STORE)  /* a block to Redis; answer with MOVED */                                        \
	X(FETCH)  /* a block from Redis; answer with MOVED */                                      \
	X(NAMES)  /* new members, for who keeps their names across machines */                     \
	X(LOOK)   /* are these in Redis? answer with LOOKED */                                     \
	X(EPOCH)  /* a namespace and its epoch: keep it, and tell others if it was raised here */  \
	X(POOL_ADOPT) /* a group's memory of an earlier life; answer with POOL_READY or _FAILED */ \
	X(WATCH)      /* a process that an earlier life knew: PROCESS_GONE once it is not there */ \
	X(VERIFY)     /* compare blocks with their checksums; answer with VERIFIED */              \
	X(DESK_CREATE) /* memory for a session to write in; answer with DESK_READY or _FAILED */   \
	X(DESK_DESTROY)                                                                            \
	X(TAKE) /* a block from a desk into the pool, and its checksum; answer with TAKEN */

enum prefixd_action_type {
#define X(sym) PREFIXD_ACTION_##sym,
	PREFIXD_ACTIONS(X)
#undef X
};

enum prefixd_log_level {
	PREFIXD_LOG_ERROR,
	PREFIXD_LOG_WARN,
	PREFIXD_LOG_INFO,
	PREFIXD_LOG_DEBUG
};

/*
 * Names.  A member's name is made of its parent's name and its key (digest mode: of the root's name
 * and its key); whoever carries out NAMES keeps it by the member's entry until the entry is named
 * anew.  NAMES of an entry comes before any other action that names it.
 */
struct prefixd_names {
	enum radix_key_mode mode;
	uint8_t root[32]; /* the root's name */
	uint8_t ns_digest[32];
	uint32_t parent; /* entry of the member before the first key; RADIX_NONE: the root */
	uint32_t key_len;
	uint32_t n;
	const uint32_t *entries; /* [n]; NULL with LOOK */
	const void *keys;        /* n x key_len; like entries valid until the next step */
};

#define PREFIXD_VERIFY_MAX 64u

/* One block on its way.  The end that is not Redis is a slot of the group. */
struct prefixd_carry {
	uint32_t id; /* of this move; MOVED gives it back, then it may be used again */
	enum radix_tier from, to;
	uint32_t src, dst;   /* slots; RADIX_NONE in Redis */
	uint32_t entry;      /* whose name it is, */
	uint64_t generation; /* and since when; with it a coded copy in host memory is sealed */
	uint32_t n_tokens;
	uint64_t deadline_ns; /* absolute; 0: the carrier's own */
	/* What is known already: 0 nothing, 1 XXH3-128, 2 kernels'.  In a coded group of exact
	   device copies alone: others bear checksums of their own. */
	uint8_t checksum_kind;
	uint8_t checksum[16];
	uint8_t ns_digest[32];
	const void *key; /* key_len bytes, valid until the next step */
	uint32_t key_len;
	bool urgent; /* somebody waits for it */
};

struct prefixd_action {
	enum prefixd_action_type type;
	uint32_t session;
	uint32_t group;
	union {
		struct {
			const uint8_t *bytes; /* valid until the next step */
			size_t len;
			bool with_fds;   /* pass the group's descriptors along, */
			uint32_t rank;   /* those of this rank's pool */
			bool with_words; /* last of all, one of the session's words */
			bool read_only;
			bool with_desk;  /* behind those, that of a desk, */
			uint32_t desk;   /* this one */
			bool tell_ready; /* SUBSCRIBER_READY once all of it was written */
		} send;
		struct {
			uint32_t n_ranks; /* device pools of n_slots each: a block has one slot in
					     every one of them, of the same number */
			uint32_t n_slots;
			uint32_t n_host;     /* slots of its host tier, each for n_ranks pieces */
			uint64_t slot_bytes; /* of one rank's piece */
			uint64_t table_len;  /* bytes that its block table may ask for */
			struct prefixd_cold cold; /* how blocks lie below the device */
		} pool;                           /* POOL_CREATE, POOL_ADOPT */
		struct {
			uint32_t pid;
			uint64_t start_time;
		} watch;
		struct {
			uint32_t id;
			uint32_t n;                /* at most PREFIXD_VERIFY_MAX */
			const struct radix_sum *v; /* valid until the next step */
			bool full;                 /* somebody waits */
		} verify;
		struct {
			uint32_t id; /* until DESK_DESTROY */
			uint32_t n_places;
			uint64_t slot_bytes;
		} desk; /* DESK_CREATE, DESK_DESTROY */
		struct {
			uint32_t desk,
				place; /* the source, which its worker may write meanwhile; */
			uint32_t slot; /* the slot, which nobody else does */
			uint8_t checksum_kind; /* as COMMIT says it: 0 nothing is known */
			uint8_t checksum[16];
		} take;
		struct radix_run poison;
		struct prefixd_carry carry; /* COPY, STORE, FETCH */
		struct prefixd_names names; /* NAMES */
		struct {
			uint32_t id;
			uint64_t deadline_ns;
			struct prefixd_names names;
		} look;
		struct {
			uint8_t digest[32];
			struct prefixd_epoch epoch;
			bool raised; /* here and now */
		} epoch;
		struct {
			enum prefixd_log_level level;
			const char *text;
		} log;
	} u;
};

struct prefixd_actions {
	const struct prefixd_action *v;
	uint32_t n;
};

radix_nodiscard int prefixd_engine_new(struct prefixd_engine **ret_engine,
				       const struct prefixd_engine_config *config);
struct prefixd_engine *prefixd_engine_free(struct prefixd_engine *engine);

/*
 * One step.  Never fails: what cannot be done is answered to the session that asked.  The actions
 * belong to the engine and are valid until the next step; execute them in order.
 */
struct prefixd_actions prefixd_engine_step(struct prefixd_engine *engine,
					   struct prefixd_event *event, uint64_t now_ns);

/* When a TIMER event is wanted next; UINT64_MAX: never. */
uint64_t prefixd_engine_deadline(const struct prefixd_engine *engine);

#include "daemon/engine_info.h"
