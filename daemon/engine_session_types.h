/*
 * engine_session_types.h - the part of engine_types.h that speaks of sessions: who is connected,
 * what it opened, and its last answers; and the set that they, namespaces and roots are found by.
 */
#pragma once

#include "daemon/engine.h"

struct prefixd_namespace;
struct prefixd_subscriber;

/* ---- a set: dense array for walking, chained hash for finding; intrusive --------------------- */

struct prefixd_item {
	struct prefixd_item *next; /* same bucket */
	uint64_t hash;
	uint32_t pos; /* in the dense array */
};

struct prefixd_set {
	struct prefixd_item **v;
	struct prefixd_item **buckets;
	uint32_t n;
	uint32_t cap;
	uint32_t n_buckets; /* a power of two */
};

/* ---- sessions -------------------------------------------------------------------------------- */

enum prefixd_session_state {
	PREFIXD_SESSION_FRESH,  /* connected, no HELLO yet */
	PREFIXD_SESSION_READY,  /* HELLO was answered */
	PREFIXD_SESSION_ORPHAN, /* the socket is gone, the process is not known to be */
	PREFIXD_SESSION_N_STATES
};

/* The last answers of a session by operation id: engine_ops.c. */
struct prefixd_op {
	struct proto_id id;
	uint64_t body_hash[2];
	uint64_t at_ns;
	uint32_t off; /* reply body, in ring */
	uint32_t len;
	uint32_t next; /* same bucket; RADIX_NONE ends */
	uint16_t op;
};

struct prefixd_ops {
	struct prefixd_op *v; /* ring of cap entries, oldest at head */
	uint32_t *buckets;
	uint64_t seed;
	uint32_t cap; /* a power of two */
	uint32_t head;
	uint32_t n;
	uint8_t *ring;
	uint32_t ring_len; /* a power of two */
	uint32_t ring_head;
	uint32_t ring_tail;
};

/* Which limit a peer met: engine_guard.c. */
enum prefixd_guard {
	PREFIXD_GUARD_NONE,
	PREFIXD_GUARD_SESSIONS,
	PREFIXD_GUARD_PROCESS,
	PREFIXD_GUARD_USER,
};

/* One that a session has opened. */
struct prefixd_opened {
	struct prefixd_namespace *ns;
	bool windowed; /* it is read through its window, if it has one */
	/* Its pool's memory was lost since: of a subscriber, who goes on hearing of it. */
	bool closed;
};

struct prefixd_session {
	struct prefixd_item item;
	enum prefixd_session_state state;
	uint32_t number;
	uint32_t record; /* in the ledger; RADIX_NONE: it never had a lease */
	struct prefixd_peer peer;
	enum prefixd_guard over; /* the limit that it is beyond: HELLO will be refused */
	bool copies;
	uint16_t version; /* of its frames: PROTO_VERSION_HELLO until HELLO was answered */
	struct proto_id instance;
	struct proto_id boot; /* the life in which its leases were given */
	char name[65];
	uint64_t begun_ns;
	uint64_t n_requests;
	uint32_t n_leases;
	uint32_t rank; /* in the namespaces that ranks share; RADIX_NONE: it opened none */
	uint32_t n_waiting;
	uint32_t n_words; /* 64-bit words that its requests may name; 0: it has none */
	struct radix_list leases;
	bool staged;             /* what it commits, the daemon copies into the pool */
	struct radix_list desks; /* struct prefixd_desk */
	struct prefixd_opened *ns;
	uint32_t n_ns, ns_cap;
	struct prefixd_ops ops;
	struct prefixd_subscriber *subscriber; /* NULL: it has not subscribed */
	uint32_t ttft_us, tpot_us, input_tokens, running, waiting;
};
