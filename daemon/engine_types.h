/*
 * engine_types.h - what the engine is made of; only its own files and tests include it.
 *
 * Who owns what.  The engine owns everything.  A session owns its leases; a lease owns its pins,
 * its unmatched keys and its slots, and holds one reference of its root; a root holds one reference
 * of its namespace; a namespace belongs to a pool group, which owns the index.  Leases are never
 * given back to the allocator while the engine lives: they go to a free list with their buffers, so
 * that the steady state allocates nothing.
 */
#pragma once

#include "daemon/engine.h"
#include "daemon/engine_events.h"
#include "daemon/engine_lease.h"
#include "daemon/engine_ledger.h"
#include "daemon/engine_session_types.h"
#include "daemon/engine_tiers.h"
#include "daemon/ledger.h"
#include "proto/codec.h"

struct prefixd_session;
struct prefixd_lease;
struct prefixd_root;
struct prefixd_namespace;
struct prefixd_group;
struct prefixd_load;
struct prefixd_seek;
struct prefixd_desk;

/* ---- groups, namespaces, roots --------------------------------------------------------------- */

enum prefixd_group_state {
	PREFIXD_GROUP_CREATING, /* POOL_CREATE or _ADOPT went out, or verifying; OPENs wait */
	PREFIXD_GROUP_READY,
	PREFIXD_GROUP_LOSING, /* its device is lost; moves and loads under way end */
	PREFIXD_GROUP_LOST,   /* no block has a device copy; memory is asked for */
};

#define PREFIXD_N_FAILED  64u
#define PREFIXD_N_CORRUPT 16u

/* A block that could not be moved down, and how often in a row. */
struct prefixd_failed {
	struct radix_member block;
	uint32_t n;
};

struct prefixd_group {
	enum prefixd_group_state state;
	uint32_t id;
	uint32_t n_slots;
	uint32_t n_ranks;         /* pools; a block has a slot of one number in each */
	uint64_t slot_bytes;      /* in one of them */
	struct prefixd_cold cold; /* how its blocks lie below the device */
	uint64_t slot_stride;
	uint64_t pool_len;
	uint64_t budget;      /* bytes of the total that this group takes */
	struct proto_id pool; /* names the pool's memory, in every life that keeps it */
	bool kept;            /* the memory is that of an earlier life */
	uint8_t n_fds;
	uint8_t device; /* how workers map it: with the next two, for OPEN's reply */
	struct proto_id device_ids[PREFIXD_RANKS_MAX];
	uint64_t slab_len;
	bool reap; /* blocks left the tree in this step: look for roots without trace */
	struct radix_index *index;
	uint8_t *marks;            /* [n_slots], scratch of verify */
	struct radix_list waiting; /* struct prefixd_waiting */
	/* engine_fence.c */
	uint64_t n_left;         /* blocks that orphans hold, none counted as shared */
	uint64_t fence_again_ns; /* not counted exactly before */
	bool fence_stirred;
	bool over;        /* more than half is kept from use, as of the last count */
	uint64_t busy_ns; /* when a RESERVE got nothing last, and whose it was */
	uint32_t busy_session;
	/* lower tiers: engine_moves.c, engine_room.c */
	uint32_t n_host;                                 /* host slots */
	uint32_t n_moving[RADIX_N_TIERS][RADIX_N_TIERS]; /* moves under way, from, to */
	struct prefixd_pace pace[RADIX_N_TIERS][RADIX_N_TIERS];
	uint32_t n_ahead;                /* of those up, the ones that nobody waits for */
	struct radix_list line;          /* who waits for device slots: struct prefixd_waiter */
	struct radix_list behind;        /* the same, of those who come after all in line */
	struct radix_list stirred;       /* the engine's, until the end of the step */
	bool serving;                    /* the line is being served: nobody else begins to */
	bool filling[RADIX_N_TIERS];     /* free slots fell below the low watermark */
	bool idle[RADIX_N_TIERS];        /* no victim was found; until something changes */
	uint32_t give_up[RADIX_N_TIERS]; /* victims that failed too often: drop that many */
	uint64_t line_due_ns;            /* at most the earliest deadline in line */
	uint64_t again_ns;               /* when to look again though nothing happens */
	struct prefixd_failed failed[PREFIXD_N_FAILED]; /* moves down that failed, by entry */
	struct radix_member corrupt[PREFIXD_N_CORRUPT]; /* wrong, and pinned still */
	uint32_t n_corrupt;
	/* engine_load.c */
	struct radix_list loads; /* all of them, oldest first */
	bool up_full;            /* a load found the window of moves up full */
	uint32_t n_declined;     /* loads that were advised against */
	bool loads_starve;       /* one found no slot */
	/* an earlier life's: engine_restore.c, engine_adopt.c, engine_check.c */
	bool windowed;       /* made for a namespace that is read through a window */
	uint32_t n_entries;  /* of the block table, when it was made */
	bool noted;          /* it has a record: its block table outlives the engine */
	bool adopting;       /* POOL_ADOPT went out */
	bool checking;       /* payloads are to be compared with their checksums */
	uint32_t check_at;   /* the next block to be compared */
	uint32_t n_checking; /* batches under way */
	uint32_t n_restored; /* leases of earlier lives that are not over */
	uint64_t n_lost;     /* slots of lost blocks, kept back until then */
	uint64_t n_landing;  /* slots kept back while a copy out of a desk ends: engine_desk.c */
	uint64_t *named;     /* a bit per entry: it has a name in this life; NULL: all have */
	/* engine_lost.c */
	bool renewed;           /* it was lost since it was made, or taken back */
	bool asked;             /* POOL_CREATE went out for a lost one */
	uint64_t lost_again_ns; /* when it goes out again; UINT64_MAX: it has, or is not due */
	uint64_t lost_for_ns;   /* that the last wait for it took; 0: the first one */
	uint64_t tell_again_ns; /* LOST frames that found no room */
};

/* One OPEN that waits for its pool. */
struct prefixd_waiting {
	struct radix_list link;
	struct prefixd_session *session;
	struct prefixd_namespace *ns; /* holds a reference */
	uint32_t rank;
	uint64_t seq;
	bool words;    /* as in its request */
	bool windowed; /* its session will read the namespace through the window */
};

struct prefixd_namespace {
	struct prefixd_item item;
	uint32_t record; /* in the ledger */
	bool kept;       /* of an earlier life, until its group is there: holds a reference */
	bool to_ask;     /* of an earlier life: what others know of its epoch was not asked yet */
	uint32_t id;
	uint32_t refs; /* sessions that opened it, OPENs that wait, roots */
	uint32_t n_sessions;
	uint32_t n_roots;
	uint64_t n_clears; /* how often it was flushed or invalidated */
	struct prefixd_epoch epoch;
	struct prefixd_group *group;
	uint8_t digest[32];
	uint8_t family[32]; /* the same without the seed probe */
	enum radix_key_mode mode;
	uint32_t block_tokens;
	uint32_t key_len;
	uint32_t token_bytes;
	bool extra;      /* keys end in a content digest */
	uint32_t window; /* blocks, of those sessions that say so; 0: there is none */
	bool seed_mismatch;
	uint32_t tenant; /* first that used it; RADIX_NONE before */
	bool several_tenants;
	const char *model, *revision, *dtype, *adapter, *engine; /* into text */
	char *text;
	size_t text_len;
};

struct prefixd_root {
	struct prefixd_item item;
	uint32_t record; /* in the ledger */
	struct prefixd_namespace *ns;
	uint32_t index_root;
	uint32_t tenant;
	uint32_t n_leases;
	uint32_t n_holds;          /* loads and seeks that pin something of it */
	bool detached;             /* of an older epoch: nobody finds it, it goes with its pins */
	uint32_t busy_depth;       /* first block that found no room; RADIX_NONE: none */
	struct radix_list leaders; /* leases that compute, in the order in which they said so */
	struct proto_id id;
	uint8_t name[32]; /* across machines */
	uint8_t salt_len;
	uint8_t salt[];
};

/* ---- the engine ------------------------------------------------------------------------------ */

/* Blocks whose payloads are being compared with their checksums: engine_check.c. */
#define PREFIXD_CHECKS 4u

struct prefixd_check {
	struct prefixd_group *group; /* NULL: not under way */
	uint32_t serial;             /* of the id */
	uint32_t from;               /* check_at before them */
	uint32_t n;
	struct radix_sum v[PREFIXD_VERIFY_MAX];
	uint64_t generation[PREFIXD_VERIFY_MAX]; /* of their slots */
};

struct prefixd_engine {
	const struct radix_alloc *alloc;
	struct prefixd_engine_config config;
	struct prefixd_tenant *tenants; /* ids never change their name: RELOAD only appends */
	uint32_t n_tenants;
	uint32_t tenants_cap;
	uint64_t now_ns;
	uint64_t tick;

	struct prefixd_set sessions;
	uint32_t n_orphans; /* of them */
	struct prefixd_set namespaces;
	struct prefixd_set roots;
	struct prefixd_group **groups; /* [limits.max_groups] at creation; by id */
	uint32_t n_groups;
	uint32_t n_pools_made; /* in this life */
	uint32_t groups_cap;
	uint64_t budget_used;
	struct prefixd_desk **desks; /* by id; NULL: free */
	uint32_t n_desks, desks_cap;
	uint64_t desk_bytes;          /* that they take */
	struct radix_list desks_left; /* those whose session is gone */
	uint32_t next_ns;
	uint32_t n_waiting;
	struct prefixd_lease **leases;
	uint32_t n_leases; /* places used so far */
	uint32_t leases_cap;
	uint32_t n_active;
	uint64_t next_serial;
	struct radix_list free_leases;
	struct radix_list quarantine; /* by due_ns */
	struct radix_list aging;
	/* leases that ranks share: engine_stripe.h */
	struct radix_list stripes_open;   /* some rank has not come; by join_due_ns */
	struct radix_list stripes_due;    /* some rank is to be told something */
	struct prefixd_set decisions;     /* those that are over too */
	struct radix_list decisions_over; /* oldest first */
	uint32_t n_decisions_over;
	uint64_t call_bytes;          /* bodies of the answers that are kept */
	uint64_t calls_again_ns;      /* to tell what there was no room for */
	uint64_t spare_bytes;         /* buffers on the free list */
	uint64_t key_bytes;           /* key buffers of all leases, those free too */
	struct radix_list lead_due;   /* leaders by the end of their time */
	struct radix_list changed;    /* leaders that moved or ended in this step */
	struct radix_list unled;      /* waiters whose leader is none any more, oldest first */
	struct prefixd_lease **waits; /* heap by wait_due_ns */
	uint32_t n_waits, waits_cap;
	uint64_t wait_serial;
	/* lower tiers: engine_load.c, engine_seek.c */
	struct radix_list loads_due;     /* loads by deadline_ns */
	struct radix_list loads_stuck;   /* those without prospect, by progress_ns */
	struct radix_list loads_stirred; /* to be looked at before the end of the step */
	uint32_t n_loads;
	struct radix_list seeks;    /* LOOKs under way, oldest first */
	struct prefixd_seek *spent; /* answered in this step or before: its keys may be in use */
	uint32_t n_seeks;
	uint32_t next_seek;
	uint64_t seek_ns; /* the token bucket: when the next LOOK was earned at the latest */
	struct radix_member *members; /* scratch: who is to be named in this step */
	uint32_t members_cap;
	bool names_late; /* some group has members without a name in this life */
	uint8_t *late;   /* entries and keys of those that are named late in this step */
	size_t late_cap, late_len;

	bool draining;
	bool exited;
	uint64_t drain_deadline_ns;
	struct prefixd_counters counters;
	struct prefixd_events events;

	/* lower tiers: engine_moves.c, engine_room.c */
	bool redis_up;
	uint64_t redis_again_ns;    /* after an answer that it is not there: not before */
	uint32_t redis_refused;     /* blocks in a row that it did not take though it is up */
	struct prefixd_move *moves; /* a move's id: its place, and how often that was used */
	uint32_t moves_cap, free_move, n_moves;
	struct radix_list stirred;   /* groups */
	uint32_t room_left;          /* blocks that this step may still move or drop for room */
	uint32_t n_later, later_cap; /* small frames that may have to be sent unasked: answers to
					RESERVEs that wait, ends of loads */
	uint32_t key_max;            /* longest key of any namespace */
	uint8_t *keys_out;           /* keys of this step's moves */
	size_t keys_out_cap, keys_out_len;

	/* what outlives the engine: ledger.c, engine_note.c; and what did: engine_restore.c */
	struct prefixd_ledger ledger;
	struct prefixd_restored restored;
	uint32_t n_adopting;          /* groups whose memory was asked for */
	uint32_t n_restored;          /* leases of earlier lives that are active */
	struct prefixd_check *checks; /* [PREFIXD_CHECKS]; NULL: nothing is verified */
	uint64_t check_again_ns;      /* to go on then though nothing happens; UINT64_MAX */

	/* this step's output */
	uint8_t *out;
	size_t out_cap, out_len;
	struct prefixd_action *actions;
	uint32_t n_actions, actions_cap;
	char log_text[2048];
	size_t log_len;

	/* encoded sizes of the replies that end in runs, without the runs */
	uint32_t match_fixed, reserve_fixed, commit_fixed;
};

/* One request while it is being answered. */
struct prefixd_request {
	struct prefixd_session *s;
	const struct proto_header *h;
	const uint8_t *body;
	uint32_t n_replies;
	bool deferred; /* an OPEN that waits for its pool */
	bool keep;     /* remember the reply under op_id */
	/* leases that ranks share: carried out for all of them, kept, and answered to `asker` */
	struct prefixd_stripe *shared;
	struct prefixd_request *asker;
	struct prefixd_lease *seat; /* COMMIT, RELEASE: the rank's that asks */
	bool words;                 /* an OPEN that asks for the session's words */
	struct proto_id op_id;
	uint64_t body_hash[2];
};
