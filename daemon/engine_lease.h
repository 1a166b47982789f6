/*
 * engine_lease.h - a lease: a session's hold on a path of blocks; part of engine_types.h.
 *
 *     path:   | device copies | lower copies       | keys of nothing yet |
 *             0            n_path  host_until  redis_until
 *                            ^pin                  ^hold
 */
#pragma once

#include "daemon/engine_tiers.h"
#include "proto/codec.h"

struct prefixd_lease_record;
struct prefixd_stripe;
struct prefixd_desk;
struct prefixd_taking;

enum prefixd_lease_state {
	PREFIXD_LEASE_FREE,
	PREFIXD_LEASE_ACTIVE,
	PREFIXD_LEASE_REVOKED,    /* ended; its slots wait for QUIESCED or death */
	PREFIXD_LEASE_QUARANTINE, /* its process is gone; its slots wait for due_ns */
	PREFIXD_LEASE_KEPT,       /* of an earlier life, and its group is not there yet */
	PREFIXD_LEASE_SEAT,       /* a rank's part in one that ranks share: engine_stripe.h */
};

enum prefixd_lease_end {
	PREFIXD_END_RELEASED,
	PREFIXD_END_DIED,
	PREFIXD_END_QUIESCED,
	PREFIXD_END_REVOKED,
};

#define PREFIXD_LEASE_IDX_BITS 20 /* of a lease id: place in the table; the rest is a serial */

struct prefixd_lease {
	struct radix_list link;  /* the session's leases, the quarantine, or the free list */
	struct radix_list aging; /* the engine's, where an age limit may apply; oldest first */
	enum prefixd_lease_state state;
	uint32_t idx;
	uint64_t id;
	struct prefixd_session *session; /* NULL in quarantine */
	struct prefixd_group *group;
	struct prefixd_stripe *stripe; /* ranks share it, or this is the seat of one; else NULL */
	bool seat;
	uint32_t rank;             /* of a seat */
	struct prefixd_root *root; /* NULL once ended */
	struct radix_pin pin;      /* the path so far: it ends where device copies end */
	struct radix_pin hold;     /* the deepest member found, while that is below the path */
	bool held;
	struct radix_pin donor; /* the block whose leading tokens were offered */
	bool donor_held;
	bool window; /* its session reads through the namespace's window: pins keep no more */
	bool island;
	bool exact;     /* it ends before the first block that a codec has changed */
	uint8_t reason; /* why the last look ended */
	bool diverged;  /* the last look ended where another continuation is stored */
	uint64_t begun_ns;
	uint64_t due_ns;
	uint64_t n_tokens;  /* asked for */
	uint32_t n_given;   /* keys given by MATCH and EXTEND */
	uint32_t n_path;    /* keys that are on the path: found or committed */
	uint32_t n_device;  /* blocks found when first looked for */
	uint32_t n_pending; /* blocks found later: another committed them meanwhile */
	uint32_t n_looked;  /* leading kept keys that a look has missed */
	/* lower tiers, engine_match.c: path positions as the last look told them */
	uint32_t host_until;       /* blocks from n_path up to here lay in host memory */
	uint32_t redis_until;      /* from there up to here in Redis */
	uint32_t n_host;           /* blocks on the path that came up from host memory */
	uint32_t n_redis;          /* from Redis */
	uint32_t n_computed;       /* lay lower and were committed all the same */
	uint32_t n_gone;           /* lay lower and left the index meanwhile */
	uint8_t load_reason;       /* why the last load ended early; NONE: it did not */
	struct prefixd_load *load; /* runs; NULL: none does */
	uint32_t tail_offer;
	uint32_t tail_used;
	uint32_t tail_last; /* of tail_used, the part in a block that is still not on the path */
	uint32_t shared;    /* tokens that the next block shares with a stored one, not used */
	uint32_t no_room;   /* blocks that the last RESERVE did not get */
	/* keys not on the path yet: n_keys of them, the first at keys + keys_off */
	uint8_t *keys;
	size_t keys_cap;
	size_t keys_off;
	uint32_t n_keys;
	/* slots: own ones at [0, n_own), reserved ones at [res_head, res_head + n_reserved) */
	uint32_t *slots;
	uint32_t slots_cap;
	uint32_t n_own;
	uint32_t res_head;
	uint32_t n_reserved;
	/* where its worker writes them, engine_desk.c: NULL: in the slots themselves; else in these
	 * places, beside the slots from res_head on.  Once ended, the first n_places are kept. */
	struct prefixd_desk *desk;
	uint32_t *places;
	uint32_t places_cap, n_places;
	struct prefixd_taking *taking; /* a COMMIT that waits for its copies; NULL: none does */
	/* single flight, engine_pending.c: what others wait for, or whom this one waits for */
	struct radix_list leading;  /* the root's leaders */
	struct radix_list lead_due; /* the engine's, by lead_due_ns */
	struct radix_list waiters;  /* leases that wait for this one, oldest first */
	struct radix_list changed;  /* the engine's, until the end of the step */
	uint64_t lead_due_ns;
	bool leads_rest;        /* of all kept keys, not of the reserved ones only */
	uint32_t n_pend;        /* keys that the last look found pending elsewhere */
	struct radix_list wait; /* a leader's waiters, or the engine's unled ones */
	struct prefixd_lease *waits_on;
	uint64_t wait_serial; /* who began earlier; 0: does not wait */
	uint64_t wait_seq;    /* of the WAIT */
	uint64_t wait_due_ns;
	uint32_t wait_pos;   /* in the engine's heap */
	uint32_t wait_until; /* path position up to which the leader is waited for */
	uint8_t first_key[PROTO_DIGEST_MAX]; /* of an island: what EXTEND's parent grafts */
	/* a RESERVE whose reply comes later */
	struct prefixd_waiter room;
	uint32_t room_asked; /* blocks, before any limit */
	uint64_t room_seq;
	bool room_waits; /* it was not answered at once */
	bool room_keep;
	struct proto_id room_op_id;
	uint64_t room_body_hash[2];
	bool lost;     /* it ended with its pool's device */
	bool told;     /* its worker knows that it was taken back */
	bool hit_told; /* the index knows up to where this lease found what others stored */
	uint8_t head[PREFIXD_LEASE_HEAD]; /* of the first key, for who looks at pins */
	uint32_t head_len;
	uint64_t left; /* what it adds to the group's n_left: it is an orphan's */
	/* whose slots these are, once the session is gone */
	uint32_t uid, pid;
	struct proto_id instance, boot;
	/* for the next life: engine_note.c */
	struct prefixd_lease_record *record; /* of its place, for good; NULL: there is no ledger */
	bool restored;                       /* an earlier life gave it: it is nobody's lookup */
	bool over;                           /* KEPT, and it has ended, */
	enum prefixd_lease_end how;          /* so */
};
