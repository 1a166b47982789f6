/*
 * redis.h - the Redis tier: a client on a thread of its own.
 *
 *     daemon/redis*.c          the client; redis_internal.h says which file does what
 *     daemon/redis_value.[ch]  one block as one value that says whose it is
 *     daemon/redis_names.[ch]  names of blocks across machines
 *
 * What it guarantees.  Every request is answered, once, whatever Redis does: with the result, or
 * with DOWN when the breaker is open, the deadline passed or the connection broke.  What comes from
 * Redis is hostile until it was checked; a value that is not exactly the block is counted by
 * reason, answered as CORRUPT and unlinked.  The loop never waits.
 *
 * What it relies on.  Slots named in a request stay as they are (STORE) or are nobody else's
 * (FETCH) until the answer.  NAMES of an entry are sent before other requests that name it.
 */
#pragma once

#include "daemon/engine.h"
#include "daemon/helper.h"

struct prefixd_redis;

struct prefixd_redis_config {
	char url[256];      /* unix:/path, tcp:host:port or host:port */
	char user[64];      /* ACL user; empty: none */
	char password[256]; /* empty: none; wiped after use where that is possible */
	uint8_t naming_key[32];
	bool encrypt;         /* XChaCha20-Poly1305 by libsodium, key derived from the naming key */
	uint64_t ttl_ns;      /* PX of each SET; 0: none */
	uint64_t deadline_ns; /* of one operation that names none */
	uint64_t connect_ns;
	uint64_t backoff_min_ns, backoff_max_ns; /* doubles between, with jitter */
	uint64_t in_flight_bytes;                /* commands beyond it wait in the client */
	uint32_t batch;                          /* commands written at once, at most */
	uint32_t breaker_failures;               /* in a row that open it */
	uint64_t max_block_bytes;
	uint64_t seed; /* of the jitter */
};

void prefixd_redis_config_init(struct prefixd_redis_config *config);

#define PREFIXD_REDIS_MESSAGES(X)                                  \
	X(STORE)                                                   \
	X(FETCH)                                                   \
	X(NAMES)                                                   \
	X(LOOK)                                                    \
	X(EPOCH)                                                   \
	X(STATE)      /* an answer nobody asked for: up or down */ \
	X(EPOCH_SEEN) /* the same: a namespace's epoch in Redis is greater */

enum prefixd_redis_kind {
#define X(sym) PREFIXD_REDIS_##sym,
	PREFIXD_REDIS_MESSAGES(X)
#undef X
};

/* A request, and its answer in the same memory (prefixd_redis_message_free). */
struct prefixd_redis_message {
	struct prefixd_message message; /* .kind: enum prefixd_redis_kind */
	uint32_t group;
	struct prefixd_carry carry; /* STORE, FETCH; key points into `data` */
	void *block;                /* STORE: from here; FETCH: to here.  block_bytes */
	uint64_t block_bytes;
	uint32_t n_pieces; /* of one length, which it consists of: one for each rank; 0: 1 */
	/* Of a coded group (cold.h), set before it is sent: */
	uint32_t codec;
	uint64_t cold_bytes;
	bool coded;                 /* STORE: the block is; FETCH, answered: what came is */
	bool sealed;                /* STORE: a seal lies behind it, as in a host slot */
	struct prefixd_names names; /* NAMES, LOOK; entries and keys point into `data` */
	uint32_t look_id;
	uint64_t deadline_ns;  /* LOOK */
	uint8_t ns_digest[32]; /* EPOCH, EPOCH_SEEN */
	struct prefixd_epoch epoch;
	bool raised;
	/* answers */
	enum prefixd_move_result result;
	uint8_t checksum[16]; /* of the block, as stored or fetched */
	uint64_t ns;
	uint32_t n;
	bool up;
	_Alignas(8) uint8_t data[];
};

#define PREFIXD_REDIS_BAD_REASONS(X)                                          \
	X(TYPE, "wrong_type") /* no string */                                 \
	X(TRUNCATED, "truncated")                                             \
	X(OVERSIZED, "oversized")                                             \
	X(MAGIC, "magic") /* not one of ours */                               \
	X(VERSION, "version")                                                 \
	X(HEADER, "header")       /* its own checksum is wrong */             \
	X(NAMESPACE, "namespace") /* of another model, dtype, layout ... */   \
	X(NAME, "name")           /* a block of ours, under another's name */ \
	X(KEY, "key")             /* the right name over other keys */        \
	X(SIZE, "size")           /* not the namespace's block size */        \
	X(CODEC, "codec")                                                     \
	X(CHECKSUM, "checksum")                                               \
	X(AUTH, "auth") /* does not decrypt, or is not encrypted */

enum prefixd_redis_bad {
#define X(sym, text) PREFIXD_REDIS_BAD_##sym,
	PREFIXD_REDIS_BAD_REASONS(X)
#undef X
	PREFIXD_REDIS_N_BAD
};

/* Why commands failed. */
#define PREFIXD_REDIS_ERRORS(X) \
	X(CONNECT, "connect")   \
	X(CLOSED, "closed")     \
	X(TIMEOUT, "timeout")   \
	X(PROTOCOL, "protocol") \
	X(OOM, "oom")           \
	X(LOADING, "loading")   \
	X(READONLY, "readonly") X(AUTH, "auth") X(MOVED, "moved") X(OTHER, "other")

enum prefixd_redis_error {
#define X(sym, text) PREFIXD_REDIS_ERROR_##sym,
	PREFIXD_REDIS_ERRORS(X)
#undef X
	PREFIXD_REDIS_N_ERRORS
};

#define PREFIXD_BREAKER_STATES(X) X(CLOSED, "closed") X(OPEN, "open") X(HALF_OPEN, "half-open")
enum prefixd_breaker_state {
#define X(sym, text) PREFIXD_BREAKER_##sym,
	PREFIXD_BREAKER_STATES(X)
#undef X
};

/* A snapshot; kept by the thread with relaxed atomics, read by anyone. */
struct prefixd_redis_stats {
	enum prefixd_breaker_state breaker;
	bool connected;
	uint64_t round_trips; /* batches written and answered */
	uint64_t commands, stored, fetched, lost, looks, looks_present, unlinked;
	uint64_t bytes_out, bytes_in; /* payload */
	uint64_t in_flight, in_flight_bytes, queued;
	uint64_t connects, breaker_opened, breaker_closed;
	uint64_t errors[PREFIXD_REDIS_N_ERRORS];
	uint64_t bad_values[PREFIXD_REDIS_N_BAD];
	uint64_t latency_ns; /* moving average of a command */
	char policy[32];     /* maxmemory-policy, as INFO said; empty: not known */
};

/*
 * Starts the thread.  Starting does not need a Redis that answers.  Return: 0; negative errno,
 * `why`.
 */
radix_nodiscard int prefixd_redis_start(struct prefixd_redis **ret_r,
					const struct prefixd_redis_config *config, char *why,
					size_t why_len);
void prefixd_redis_stop(struct prefixd_redis *r); /* accepts NULL */
struct prefixd_helper *prefixd_redis_helper(const struct prefixd_redis *r);
void prefixd_redis_stats(const struct prefixd_redis *r, struct prefixd_redis_stats *ret);
/*
 * Checks a URL as the option wants it.  Return: 0; -EINVAL with a sentence that says what would be
 * right.
 */
radix_nodiscard int prefixd_redis_url_check(const char *url, char *why, size_t why_len);

/* On the loop's thread: a request made of an action; NULL without memory. */
struct prefixd_redis_message *prefixd_redis_message_new(const struct prefixd_action *action,
							void *block, uint64_t block_bytes);
void prefixd_redis_message_free(struct prefixd_redis_message *m); /* accepts NULL */
/*
 * The event of an answer: MOVED, LOOKED, REDIS_STATE or EPOCH_SEEN; false: nothing to tell the
 * engine.
 */
bool prefixd_redis_event(const struct prefixd_redis_message *m, struct prefixd_event *ret_event);
