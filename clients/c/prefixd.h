/*
 * prefixd.h - libprefixd, the C client of prefixd.
 *
 * A worker connects, opens its namespace, maps the pool, and then for each request:
 *
 *     pfx_match      what of my prompt is there already?   -> slots, held by a lease
 *     pfx_reserve    where may I put the rest?             -> slots to fill
 *     pfx_commit     these are filled                      -> others can use them
 *     pfx_release    I am done with all of it
 *
 * With PFX_MATCH_LEAD in pfx_match and pfx_extend, what many workers are asked at once is computed
 * by one: while n_pending is not 0 another does, pfx_wait and pfx_extend; else reserve and compute.
 * With PFX_MATCH_PROMOTE, blocks that lie below the pool are brought up: prefixd_load.h.
 *
 * Every call blocks at most as long as its deadline says.  In doubt a worker computes: any status
 * but PFX_OK means "go on without", never "retry until it works".  While no daemon answers, calls
 * return PFX_GONE at once but for an attempt every 200 ms at most.  When a connection ends the next
 * call makes another; leases of the old one answer PFX_UNKNOWN_LEASE, and are released all the same
 * (prefixd_restart.h).  A lease whose pfx_extend, pfx_reserve or pfx_commit ended with PFX_DEADLINE
 * may have changed unseen: only pfx_release is not refused.
 *
 * Threads: one client object belongs to one thread at a time.  Fork: a child that touches a client
 * of its parent gets PFX_FORKED and closes nothing of the parent's; a pool mapped read-write is not
 * mapped in it at all.  No signals, no threads, no globals.  Works in C11 and C++.
 */
#ifndef PREFIXD_H
#define PREFIXD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define PFX_API __attribute__((visibility("default")))
#else
#define PFX_API
#endif

typedef struct pfx_client pfx_client;
typedef struct pfx_namespace pfx_namespace;

/* Results.  Positive ones below 100 are the protocol's status codes, same numbers. */
enum pfx_status {
	PFX_OK = 0,
	PFX_BAD_BODY = 4,
	PFX_MISSING_FIELD = 5,
	PFX_SELF_TEST = 7,
	PFX_FORBIDDEN = 8,
	PFX_UNKNOWN_OP = 9,
	PFX_UNKNOWN_NAMESPACE = 10,
	PFX_UNKNOWN_LEASE = 11,
	PFX_BAD_NAMESPACE = 12,
	PFX_NO_BUDGET = 13,
	PFX_BUSY = 14,
	PFX_DEADLINE = 15,
	PFX_STALE = 16,
	PFX_WRONG_STATE = 17,
	PFX_LIMIT = 18,
	PFX_DRAINING = 19,
	PFX_OP_ID_REUSED = 20,
	PFX_CONFLICT = 21,
	PFX_UNSUPPORTED = 22,
	PFX_NO_MEMORY = 23,
	PFX_REVOKED = 24,
	PFX_DEVICE_LOST = 25, /* its pool's memory is gone; a later call opens it anew */
	PFX_GONE = 100,       /* no daemon answers at the socket, or it closed the connection */
	PFX_PROTOCOL = 101,   /* it answered something that is not the protocol */
	PFX_FORKED = 102,     /* this client belongs to the parent process */
	PFX_ARGUMENT = 103,   /* the call itself is wrong; pfx_error() names the argument */
	PFX_TOO_SMALL = 104   /* the caller's array is too small; the needed length was written */
};

PFX_API const char *pfx_status_to_string(int status);
/* Why the last call on this client failed, as a sentence; valid until the next call. */
PFX_API const char *pfx_error(const pfx_client *client);
PFX_API const char *pfx_version(void);

/* struct_size first: sizeof(the struct), so that later versions can add members at the end. */
typedef struct {
	size_t struct_size;
	/* path; NULL: $PREFIXD_SOCKET, else /run/prefixd/prefixd.sock or $XDG_RUNTIME_DIR's */
	const char *socket;
	const char *name;     /* shown to operators; NULL: the program's name */
	uint32_t deadline_ms; /* default for every call; 0: 1000 */
	int copies;           /* 1: this worker copies blocks out before use (leases revocable) */
} pfx_connect_options;

/* Sets *ret_client but on PFX_NO_MEMORY, PFX_ARGUMENT; with PFX_GONE it connects when used. */
PFX_API int pfx_connect(const pfx_connect_options *options, pfx_client **ret_client);
/* Ends the session and the mappings; accepts NULL.  Leases not released keep their blocks. */
PFX_API void pfx_close(pfx_client *client);
PFX_API int pfx_ping(pfx_client *client, uint32_t deadline_ms /* 0: the default */);
/* 16 bytes that name the daemon's life; they change when it restarts. */
PFX_API int pfx_boot_id(pfx_client *client, uint8_t ret_boot[16]);
/* Tenant id by name, of this life of the daemon (pfx_boot_id) alone: PFX_OK or PFX_FORBIDDEN. */
PFX_API int pfx_tenant(pfx_client *client, const char *name, uint32_t *ret_tenant);

enum {
	PFX_KEYS_TOKENS = 1,
	PFX_KEYS_DIGEST = 2
};
enum {
	PFX_NS_OPAQUE = 1,
	PFX_NS_EXTRA = 2,
	PFX_NS_STRIPE = 4 /* tp_size ranks share blocks; each is a client of its own */
};

/* What must agree for K/V to be interchangeable.  Strings may be NULL where empty is allowed. */
typedef struct {
	size_t struct_size;
	int key_mode;
	uint32_t flags; /* PFX_NS_* */
	const char *model, *revision, *dtype, *scales;
	uint32_t layers, kv_heads, head_dim;
	uint32_t block_tokens;
	uint64_t block_bytes;
	const char *layout, *windows, *adapter;
	uint32_t tp_size, tp_rank;
	const char *engine;
	uint32_t digest_len;
	const void *seed_probe;
	uint32_t seed_probe_len;
	int map; /* 1: map the pool read-write, 2: read-only, 0: not at all (a router) */
	const char *cold_codec, *exact_layers; /* NULL: the daemon's choice, none; prefixd_cold.h */
} pfx_namespace_options;

PFX_API int pfx_open(pfx_client *client, const pfx_namespace_options *options,
		     pfx_namespace **ret_ns);

typedef struct {
	size_t struct_size;
	uint32_t id, group;
	uint32_t key_len; /* bytes per key of pfx_match */
	uint32_t block_tokens;
	uint64_t block_bytes, slot_stride;
	uint32_t n_slots;
	int seed_mismatch;
	uint8_t digest[32];
	int kept; /* 1: the pool is that of an earlier life of the daemon, with its blocks */
	uint8_t pool[16]; /* names the pool's memory, over lives; zeroes: the daemon names none */
	uint64_t cold_bytes; /* of a block below the pool: prefixd_cold.h */
	uint32_t n_write;    /* blocks that fit into the memory to write in; 0: the pool is that */
} pfx_namespace_info;
PFX_API int pfx_namespace_get(const pfx_namespace *ns, pfx_namespace_info *ret_info);
/* Address of a slot; NULL when not mapped or out of range.  Take it with the answer that named the
 * slot: it stays good until pfx_close, the number until a call meets a daemon with another pool.
 * Of a GPU's memory this says nothing: prefixd_device.h. */
PFX_API void *pfx_slot(const pfx_namespace *ns, uint32_t slot);
/* The same of a slot that pfx_reserve named, to write in.  Where the daemon has workers write in
 * memory of their own (n_write), it lies there, and is reused once pfx_commit has answered; when
 * its connection has ended it stays good until the leases of that connection are released. */
PFX_API void *pfx_write_slot(const pfx_namespace *ns, uint32_t slot);
/* 1 when `slot` was reused after the answer that carried `reuse`, or that cannot be told, as of
 * another pool's slots: what was read is not to be used.  Ask after reading what no lease holds. */
PFX_API int pfx_slot_stale(const pfx_namespace *ns, uint32_t slot, uint64_t reuse);

typedef struct {
	uint32_t start, len;
} pfx_run;

enum {
	PFX_MATCH_PROMOTE = 1, /* bring up what lower tiers have: prefixd_load.h */
	PFX_MATCH_ISLAND = 2,
	PFX_MATCH_NO_TAIL = 4,
	PFX_MATCH_LEAD = 8,  /* what is missing and nobody computes, this lease will: others wait */
	PFX_MATCH_EXACT = 16 /* end before the first lossy block: prefixd_cold.h */
};

/* A prompt, or the part of it that the call is about. */
typedef struct pfx_prompt {
	size_t struct_size;
	uint32_t tenant;
	const void *salt; /* may be empty, not absent: salt_len 0 is "no salt" */
	uint32_t salt_len;
	const void *keys; /* n_keys x key_len: u32 token ids of full blocks, or digests */
	uint32_t n_keys;
	const uint32_t *tail; /* token mode: tokens behind the last full block */
	uint32_t n_tail;
	uint64_t n_tokens; /* of the whole prompt; 0: n_keys x block_tokens + n_tail */
	uint32_t flags;
	const void *parent; /* digest mode, islands: digest of the block before keys[0] */
	uint32_t parent_len;
	uint8_t decision_id[16]; /* PFX_NS_STRIPE: one for all ranks of a request, and no other */
	uint32_t deadline_ms;    /* 0: the client's default */
	uint32_t load_ms;        /* PFX_MATCH_PROMOTE: for how long; 0: as long as the call */
} pfx_prompt;

typedef struct {
	size_t struct_size;
	uint64_t lease;           /* 0: none was given */
	uint8_t root[16];         /* differs whenever namespace, tenant or salt do */
	uint32_t n_device;        /* blocks: leading ones, their slots are in `runs` */
	uint32_t n_host, n_redis; /* behind those, in host memory, in Redis as far as is known */
	uint32_t n_pending;       /* behind those, another worker computes them now */
	uint32_t tail_tokens, tail_slot;
	int advice;          /* 0 load, 1 recompute: no load was begun */
	int reason;          /* why not longer; pfx_reason_to_string() */
	uint64_t miss_token; /* position of the first token not served */
	uint64_t reuse;      /* for pfx_slot_stale */
	const pfx_run *runs; /* device slots in path order; valid until the next call */
	uint32_t n_runs;
	uint32_t load_us; /* estimated, for the host and Redis blocks */
	int loading;      /* 1: a load runs for this lease, pfx_load_wait tells its end */
	uint32_t n_lossy, first_lossy; /* prefixd_cold.h */
} pfx_match_result;
PFX_API const char *pfx_reason_to_string(int reason);
PFX_API int pfx_match(pfx_namespace *ns, const pfx_prompt *prompt, pfx_match_result *ret);
/* More keys on a lease, or none; runs and n_device are of what this call added: also what other
 * workers committed and a load brought up.  Prompts longer than the daemon's limits are cut. */
PFX_API int pfx_extend(pfx_namespace *ns, uint64_t lease, const pfx_prompt *more,
		       pfx_match_result *ret);

enum {
	PFX_WAIT_READY = 0, /* n more blocks are usable: pfx_extend */
	PFX_WAIT_LEAD = 2,  /* nobody does them: pfx_extend if n is not 0, pfx_reserve, compute */
	PFX_WAIT_FAILED = 3 /* nobody will: compute without storing */
};

typedef struct {
	size_t struct_size;
	int state;          /* PFX_WAIT_* */
	uint32_t n;         /* blocks behind the lease's path that are usable now */
	uint32_t leader_us; /* PFX_WAIT_LEAD: how long others wait for this lease */
} pfx_wait_result;
/*
 * Waits until the pending blocks of a lease are there, or it is this worker's turn to compute them.
 * The lease must have nothing reserved (PFX_WRONG_STATE).  PFX_DEADLINE: not yet; the lease is as
 * before.  Who leads keeps others waiting until it commits or releases the lease.
 */
PFX_API int pfx_wait(pfx_namespace *ns, uint64_t lease, uint32_t deadline_ms, pfx_wait_result *ret);
PFX_API const char *pfx_wait_state_to_string(int state);
typedef struct {
	size_t struct_size;
	uint32_t n;     /* granted; fewer than asked for is ordinary */
	uint32_t first; /* path position (blocks) of the first granted one */
	uint64_t reuse;
	const pfx_run *runs; /* valid until the next call */
	uint32_t n_runs;
	uint32_t retry_after_us; /* with PFX_BUSY */
} pfx_reserve_result;
PFX_API int pfx_reserve(pfx_namespace *ns, uint64_t lease, uint32_t n, uint32_t deadline_ms,
			pfx_reserve_result *ret);

typedef struct {
	size_t struct_size;
	uint32_t n_stored, n_duplicate;
	uint64_t reuse;
	const pfx_run *runs; /* canonical slots of the blocks; valid until the next call */
	uint32_t n_runs;
} pfx_commit_result;
/* checksums: n x 16 bytes of kind 1 (XXH3-128, canonical), or NULL for none. */
PFX_API int pfx_commit(pfx_namespace *ns, uint64_t lease, uint32_t n, const void *checksums,
		       uint32_t tail_tokens, uint32_t deadline_ms, pfx_commit_result *ret);

typedef struct {
	size_t struct_size;
	uint64_t queried_tokens; /* the sum of the others */
	uint64_t hit_device_tokens, hit_host_tokens, hit_redis_tokens, hit_pending_tokens;
	uint64_t miss_tokens;
} pfx_release_result;
enum {
	PFX_RELEASE_OVER = 1,
	PFX_RELEASE_NEXT = 2
};

PFX_API int pfx_release(pfx_namespace *ns, uint64_t lease, uint32_t flags, uint32_t next_use_ms,
			uint32_t deadline_ms, pfx_release_result *ret /* may be NULL */);

/* MATCH without lease and recency: for routers.  *ret_device is of the first frame's keys.  bitmap
 * (may be NULL): a bit per key; in token mode 0 for all keys beyond the first frame. */
PFX_API int pfx_probe(pfx_namespace *ns, const pfx_prompt *prompt, uint32_t *ret_device,
		      uint8_t *ret_bitmap, size_t bitmap_len);

typedef struct {
	size_t struct_size;
	uint64_t matched_tokens, position, lost_tokens;
	int reason;
	int has_own_token, has_stored_token;
	uint32_t own_token, stored_token;
	char text[513];
} pfx_explain_result;
PFX_API int pfx_explain(pfx_namespace *ns, const pfx_prompt *prompt, pfx_explain_result *ret);
PFX_API int pfx_report(pfx_namespace *ns, uint32_t ttft_us, uint32_t tpot_us, uint32_t input_tokens,
		       uint32_t running, uint32_t waiting);
/* Nothing that this client's ended connections held is touched any more: prefixd_restart.h. */
PFX_API int pfx_quiesced(pfx_client *client, uint32_t *ret_n_slots);
/* One JSON request and its answer, on the admin socket; free it with pfx_free_string. */
PFX_API int pfx_admin(pfx_client *client, const char *json, uint32_t deadline_ms, char **ret_json);
PFX_API void pfx_free_string(char *s);

#ifdef __cplusplus
}
#endif

#endif
