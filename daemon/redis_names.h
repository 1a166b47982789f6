/*
 * redis_names.h - names of blocks across machines, and which entry has which.
 *
 * A name is 32 bytes of keyed BLAKE2b over fields that are each written as tag, length and bytes,
 * so that no two lists of fields give the same input:
 *
 *     tokens   (purpose "tokens", name of the parent or root, key)
 *     digest   (purpose "digest", name of the root, key)
 *
 * In Redis a block lies under "prefixd:v1:" and its name in hex, the epoch of a namespace under
 * "prefixd:v1:epoch:" and the digest in hex.  No brace: it would put all keys into one slot of a
 * cluster.
 *
 * What it guarantees.  Pure; memory through `alloc`.  An entry whose naming failed has no name,
 * never an old one.
 *
 * What it relies on.  Parents are named before their children and live as long; so an entry keeps
 * only whose child it is, 36 bytes in all.
 */
#pragma once

#include "daemon/engine.h"

#define PREFIXD_REDIS_KEY_LEN   75u /* of a block */
#define PREFIXD_REDIS_EPOCH_LEN 81u /* of a namespace's epoch */

/* `before`: the parent's name, or the root's. */
void prefixd_name_derive(const uint8_t naming_key[32], enum radix_key_mode mode,
			 const uint8_t before[32], const void *key, uint32_t key_len,
			 uint8_t ret_name[32]);
/* Without a NUL at the end. */
void prefixd_name_redis_key(const uint8_t name[32], char ret_key[PREFIXD_REDIS_KEY_LEN]);
void prefixd_name_epoch_key(const uint8_t ns_digest[32], char ret_key[PREFIXD_REDIS_EPOCH_LEN]);

struct prefixd_names_table;

radix_nodiscard int prefixd_names_new(struct prefixd_names_table **ret_table,
				      const struct radix_alloc *alloc,
				      const uint8_t naming_key[32]);
struct prefixd_names_table *prefixd_names_free(struct prefixd_names_table *t);
/*
 * Names the entries of `names`.  Return: 0; -ENOMEM or -EINVAL (entries out of range, a parent
 * without a name): those that could not be named have no name.
 */
radix_nodiscard int prefixd_names_learn(struct prefixd_names_table *t, uint32_t group,
					const struct prefixd_names *names);
/*
 * Return: true; false when the entry, or its parent, has no name.  `ret_before` is what the name
 * was derived from: the parent's name, or the root's.
 */
bool prefixd_names_find(const struct prefixd_names_table *t, uint32_t group, uint32_t entry,
			uint8_t ret_name[32], uint8_t ret_before[32]);
/*
 * The names that the keys of `names` would have; nothing is kept.  Return: true; false when the
 * parent has no name.
 */
bool prefixd_names_chain(const struct prefixd_names_table *t, uint32_t group,
			 const struct prefixd_names *names, uint8_t (*ret_names)[32]);
/* Roots that some entry hangs below; for tests. */
uint32_t prefixd_names_roots(const struct prefixd_names_table *t, uint32_t group);
