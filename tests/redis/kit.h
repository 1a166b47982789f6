/*
 * kit.h - the loop's side of the Redis client, for tests: requests out, answers in, with a clock.
 *
 * A kit speaks for one daemon with one group, whose entry i has a key and a block that are made
 * from i: two kits with the same naming key agree about all of them.
 */
#pragma once

#include "daemon/redis_internal.h"

#include <check.h>

#define KIT_KEY      64u
#define KIT_GROUP    1u
#define MS           1000000ull
/* How long, in ms, something may take that takes none: the machine has other work. */
#define KIT_PATIENCE 30000u

struct kit {
	struct prefixd_redis *redis;
	struct prefixd_redis_config config;
	uint64_t block_bytes;
	uint32_t waiting; /* requests without an answer */
	uint32_t named;   /* entries 0 .. named - 1 */
	/* what came unasked */
	bool up;
	uint32_t n_up, n_down;
	uint32_t n_seen;
	struct prefixd_epoch seen;
	/* answers of STORE and FETCH by result, since kit_reset() */
	uint32_t results[PREFIXD_MOVE_FAILED + 1];
	uint64_t slowest_ns; /* from sending to the answer */
};

/* Deadlines are long and back-offs short; the test changes k->config before kit_start(). */
void kit_init(struct kit *k, const char *url, uint64_t block_bytes);
void kit_start(struct kit *k);
void kit_stop(struct kit *k);

void kit_key(uint32_t entry, uint8_t ret_key[KIT_KEY]);
void kit_block(uint32_t entry, void *block, uint64_t len);
void kit_name(const struct kit *k, uint32_t entry, uint8_t ret_name[32], uint8_t ret_root[32]);
/* The key in Redis, with a NUL. */
void kit_redis_key(const struct kit *k, uint32_t entry, char ret_key[PREFIXD_REDIS_KEY_LEN + 1]);
extern const uint8_t kit_ns[32];
/* What the value of an entry must say; `key` and `names` are storage for it. */
struct kit_value {
	uint8_t key[KIT_KEY], name[32], root[32];
	struct prefixd_value_of of;
};
void kit_value(const struct kit *k, uint32_t entry, struct kit_value *ret);

/* NAMES of entries 0 .. n - 1, in digest mode: each name is made of the root's. */
void kit_names(struct kit *k, uint32_t n);
void kit_send_store(struct kit *k, uint32_t entry, void *block, uint64_t deadline_ns);
void kit_send_fetch(struct kit *k, uint32_t entry, void *block, uint64_t deadline_ns);
void kit_send_epoch(struct kit *k, const uint8_t digest[32], struct prefixd_epoch epoch,
		    bool raised);
/* The next answer to a request; NULL after `ms`.  The caller frees it. */
struct prefixd_redis_message *kit_answer(struct kit *k, unsigned ms);
/* Until nothing is waited for. */
void kit_drain(struct kit *k);
/* Takes what comes for `ms`. */
void kit_idle(struct kit *k, unsigned ms);
void kit_wait_up(struct kit *k);
/* Until it was said to be down for the n-th time; it may be up again by then. */
void kit_wait_down(struct kit *k, uint32_t n);
/* Until something holds. */
#define kit_until(k, condition)                                          \
	do {                                                             \
		uint64_t end_ = prefixd_redis_now() + KIT_PATIENCE * MS; \
		while (!(condition) && prefixd_redis_now() < end_)       \
			kit_idle((k), 5);                                \
		ck_assert(condition);                                    \
	} while (0)

/* One request and its answer. */
enum prefixd_move_result kit_store(struct kit *k, uint32_t entry);
/* OK means that the block was compared; anything else that it was not touched. */
enum prefixd_move_result kit_fetch(struct kit *k, uint32_t entry);
/* LOOK for entries first .. first + n - 1. */
uint32_t kit_look(struct kit *k, uint32_t first, uint32_t n);

struct prefixd_redis_stats kit_stats(const struct kit *k);
uint64_t kit_bad(const struct kit *k); /* bad values, all reasons */
