/*
 * engine_config.h - what an engine is told when it begins: tenants, limits, policies, sizes; part
 * of engine.h.
 */
#pragma once

#include "daemon/cold.h"
#include "proto/messages.h"
#include "radix/recover.h"

#define PREFIXD_TENANT_NAME_MAX 64
#define PREFIXD_WORDS           512u /* 64-bit words of a session that asks for them: one page */
#define PREFIXD_RANKS_MAX       16u  /* pools of a group, and ranks of a namespace with stripes */

/* Who may name which tenant.  Ids are positions in the array. */
struct prefixd_tenant {
	char name[PREFIXD_TENANT_NAME_MAX];
	bool any_uid;
	uint32_t uids[16];
	uint32_t n_uids;
};

/*
 * Entries of the index for blocks that gave their slots back, for each slot of a pool made for a
 * namespace that is read through a window: so many times as long as what fits may prompts be.
 */
#define PREFIXD_HOLLOW_PER_SLOT 16u

struct prefixd_limits {
	uint32_t max_frame; /* bytes, header included */
	uint32_t max_keys;
	uint32_t max_sessions;
	uint32_t max_sessions_per_process; /* connected ones, and as many orphans; 0: no limit */
	uint32_t max_sessions_per_user;    /* 0: no limit */
	uint32_t max_namespaces;           /* per session */
	uint32_t max_leases;               /* per session */
	uint32_t max_groups;
	uint32_t op_ids; /* remembered per session */
	uint64_t op_id_ns;
	uint32_t
		max_pins_share; /* percent of a pool one session may hold while others ask; 0 off */
	uint32_t max_reserved;  /* slots a session may have reserved and not committed; 0 off */
	uint64_t lease_max_age_ns; /* 0: off */
	uint64_t pending_ns;       /* how long a leader is waited for; 0: nobody leads */
	uint64_t reserve_ns; /* a RESERVE without a deadline waits so long for blocks to move */
	/* what computing costs; a load that costs more is advised against */
	uint64_t prefill_ns_per_token;
};

/* When blocks are copied to the tier below. */
#define PREFIXD_WRITE_POLICIES(X)                                   \
	X(BACK, "back")             /* when their slot is wanted */ \
	X(THROUGH, "through")       /* when they are committed */   \
	X(SECOND_USE, "second-use") /* when their slot is wanted, if they were ever hit again */

enum prefixd_write_policy {
#define X(sym, text) PREFIXD_WRITE_##sym,
	PREFIXD_WRITE_POLICIES(X)
#undef X
};

/* When the payloads of blocks that an earlier life committed are compared with their checksums. */
#define PREFIXD_VERIFY_POLICIES(X)                                         \
	X(BACKGROUND, "background") /* soon; until then they are served */ \
	X(FULL, "full")             /* before any of them is served */     \
	X(OFF, "off")               /* when they are copied for other reasons */

enum prefixd_verify_policy {
#define X(sym, text) PREFIXD_VERIFY_##sym,
	PREFIXD_VERIFY_POLICIES(X)
#undef X
};

/* What a namespace's names are made with beside its digest; the greater one counts. */
struct prefixd_epoch {
	uint64_t n;
	uint64_t nonce;
};

struct prefixd_engine_config {
	const struct radix_alloc *alloc;
	struct proto_id boot;                 /* random, new with each start */
	uint64_t secret[2];                   /* random, keys the index */
	uint8_t naming_key[32];               /* keyed BLAKE2b: namespace digests and root ids */
	const struct prefixd_tenant *tenants; /* copied */
	uint32_t n_tenants;
	struct prefixd_limits limits;
	uint32_t pool_blocks;     /* slots per pool group; 0: as many as pool_bytes allows */
	uint64_t pool_bytes;      /* total of all groups; 0: no limit but pool_blocks */
	bool staged;              /* workers write in desks, and the daemon copies: engine_desk.h */
	uint32_t write_blocks;    /* places of each desk */
	uint64_t write_bytes;     /* total of all desks; 0: no limit */
	uint64_t lease_key_bytes; /* total of the keys that leases keep */
	uint64_t grace_ns;        /* the back end's: quarantine after a process' end */
	uint8_t device;           /* enum proto_device: where pools lie */
	bool watches_processes;   /* PROCESS_GONE will come; else SESSION_EOF ends a session */
	const char *version;      /* for HELLO's reply; kept by pointer */
	uint32_t event_ring;      /* events kept for subscribers; 0: SUBSCRIBE is refused */
	uint32_t max_ranks; /* pools that the shell can make for one group; 0, 1: no stripes */
	/* tiers below the pools */
	uint32_t host_blocks;  /* host slots of each group; 0: as many as host_bytes allows */
	uint64_t host_bytes;   /* total of all groups' host slots; 0: no limit but host_blocks */
	bool redis;            /* STORE, FETCH, LOOK and NAMES are carried out */
	uint32_t index_blocks; /* members of each group that only Redis has; others are forgotten */
	enum prefixd_write_policy write;
	uint32_t watermark_low;  /* percent of a tier's slots kept free ahead of demand; 0: none */
	uint32_t watermark_high; /* once below low, up to this */
	uint32_t move_window;    /* moves in flight per group and direction; 0: 256 */
	uint32_t cold_codec;     /* enum gpu_codec of namespaces that leave the choice to us */
	/* what outlives the engine: daemon/ledger.h.  Kept by pointer; NULL: nothing does */
	struct radix_store *ledger;
	enum prefixd_verify_policy verify; /* payloads of an earlier life */
};

/* Fills limits and sizes with the defaults of the options table. */
void prefixd_engine_config_init(struct prefixd_engine_config *config);
