/*
 * world_redis.h - the simulated Redis: values by their names, and the names of the index' entries.
 *
 * A name is 32 bytes, made of the parent's name (digest mode: the root's) and the key.  Whoever
 * asks for an entry without a name fails the test.
 */
#pragma once

#include "tests/lib/world_tiers.h"

struct world_name {
	uint8_t b[32];
};

struct world_redis *world_redis_new(void);
void world_redis_limit(struct world_redis *r, uint32_t max_values);
void world_redis_set(struct world_redis *r, const struct world_name *name, const void *bytes,
		     uint64_t len);
/* The bytes, or NULL; *ret_damaged: they are not what was set.  A use, as LRU counts. */
const void *world_redis_get(struct world_redis *r, const struct world_name *name, uint64_t len,
			    bool *ret_damaged);
bool world_redis_has(const struct world_redis *r, const struct world_name *name);
void world_redis_del(struct world_redis *r, const struct world_name *name);
uint32_t world_redis_hurt(struct world_redis *r, enum world_poke what, uint32_t percent,
			  uint64_t *rng);
void world_redis_hurt_one(struct world_redis *r, enum world_poke what, uint32_t n, uint64_t *rng);
uint32_t world_redis_count(const struct world_redis *r);

/* One group's names by entry. */
struct world_names {
	struct world_named {
		struct world_name name;
		struct world_name key; /* a hash of it */
		uint8_t ns_digest[32];
		bool is;
	} * v;
	uint32_t n;
};

void world_names_free(struct world_names *names);
/* False: the parent has no name. */
bool world_names_add(struct world_names *names, const struct prefixd_names *n);
/* Names of keys behind the parent, into ret[n->n].  False: the parent has no name. */
bool world_names_of(const struct world_names *names, const struct prefixd_names *n,
		    struct world_name *ret);
/* NULL: the entry has no name, or one of another key or namespace. */
const struct world_name *world_names_find(const struct world_names *names,
					  const struct prefixd_carry *c);
