/*
 * world_redis.c - see world_redis.h.
 */
#include "tests/lib/world_redis.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/rng.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- values ---------------------------------------------------------------------------------- */

struct value {
	struct value *next;            /* same bucket */
	struct value *older, *younger; /* by last use */
	struct world_name name;
	uint64_t len;
	bool damaged;
	uint8_t bytes[];
};

struct world_redis {
	struct value **buckets;
	uint32_t n_buckets; /* a power of two */
	uint32_t n, max;
	struct value *oldest, *youngest;
};

struct world_redis *world_redis_new(void)
{
	struct world_redis *r = calloc(1, sizeof(*r));

	ck_assert_ptr_nonnull(r);
	r->n_buckets = 1024;
	r->buckets = calloc(r->n_buckets, sizeof(struct value *));
	ck_assert_ptr_nonnull(r->buckets);
	return r;
}

static uint32_t bucket_of(const struct world_redis *r, const struct world_name *name)
{
	uint32_t h;

	memcpy(&h, name->b, sizeof(h));
	return h & (r->n_buckets - 1);
}

static struct value *find(const struct world_redis *r, const struct world_name *name)
{
	struct value *v = r->buckets[bucket_of(r, name)];

	while (v && memcmp(&v->name, name, sizeof(*name)) != 0)
		v = v->next;
	return v;
}

static void unuse(struct world_redis *r, struct value *v)
{
	*(v->older ? &v->older->younger : &r->oldest) = v->younger;
	*(v->younger ? &v->younger->older : &r->youngest) = v->older;
}

static void use(struct world_redis *r, struct value *v)
{
	v->younger = NULL;
	v->older = r->youngest;
	*(r->youngest ? &r->youngest->younger : &r->oldest) = v;
	r->youngest = v;
}

static void drop(struct world_redis *r, struct value *v)
{
	struct value **at = &r->buckets[bucket_of(r, &v->name)];

	while (*at != v)
		at = &(*at)->next;
	*at = v->next;
	unuse(r, v);
	free(v);
	r->n--;
}

struct world_redis *world_redis_free(struct world_redis *r)
{
	if (!r)
		return NULL;
	while (r->oldest)
		drop(r, r->oldest);
	free(r->buckets);
	free(r);
	return NULL;
}

static void grow(struct world_redis *r)
{
	free(r->buckets);
	r->n_buckets *= 4;
	r->buckets = calloc(r->n_buckets, sizeof(struct value *));
	ck_assert_ptr_nonnull(r->buckets);
	for (struct value *v = r->oldest; v; v = v->younger) {
		uint32_t b = bucket_of(r, &v->name);

		v->next = r->buckets[b];
		r->buckets[b] = v;
	}
}

static void trim(struct world_redis *r)
{
	while (r->max && r->n > r->max)
		drop(r, r->oldest);
}

void world_redis_limit(struct world_redis *r, uint32_t max_values)
{
	r->max = max_values;
	trim(r);
}

void world_redis_set(struct world_redis *r, const struct world_name *name, const void *bytes,
		     uint64_t len)
{
	struct value *v = find(r, name);
	uint32_t b;

	if (v)
		drop(r, v);
	if (r->n >= 2 * r->n_buckets)
		grow(r);
	v = malloc(sizeof(*v) + len);
	ck_assert_ptr_nonnull(v);
	v->name = *name;
	v->len = len;
	v->damaged = false;
	memcpy(v->bytes, bytes, len);
	b = bucket_of(r, name);
	v->next = r->buckets[b];
	r->buckets[b] = v;
	use(r, v);
	r->n++;
	trim(r);
}

const void *world_redis_get(struct world_redis *r, const struct world_name *name, uint64_t len,
			    bool *ret_damaged)
{
	struct value *v = find(r, name);

	if (!v)
		return NULL;
	unuse(r, v);
	use(r, v);
	*ret_damaged = v->damaged || v->len != len;
	return v->bytes;
}

bool world_redis_has(const struct world_redis *r, const struct world_name *name)
{
	return find(r, name) != NULL;
}

void world_redis_del(struct world_redis *r, const struct world_name *name)
{
	struct value *v = find(r, name);

	if (v)
		drop(r, v);
}

static void hurt(struct world_redis *r, struct value *v, enum world_poke what, uint64_t *rng)
{
	if (what == WORLD_POKE_LOSE) {
		drop(r, v);
		return;
	}
	v->damaged = true;
	v->bytes[test_rng_below(rng, (uint32_t)v->len)] ^= 0x20;
}

uint32_t world_redis_hurt(struct world_redis *r, enum world_poke what, uint32_t percent,
			  uint64_t *rng)
{
	struct value *next;
	uint32_t n = 0;

	for (struct value *v = r->oldest; v; v = next) {
		next = v->younger;
		if (test_rng_below(rng, 100) >= percent)
			continue;
		n++;
		hurt(r, v, what, rng);
	}
	return n;
}

void world_redis_hurt_one(struct world_redis *r, enum world_poke what, uint32_t n, uint64_t *rng)
{
	struct value *v = r->oldest;

	ck_assert_uint_lt(n, r->n);
	while (n--)
		v = v->younger;
	hurt(r, v, what, rng);
}

uint32_t world_redis_count(const struct world_redis *r)
{
	return r->n;
}

/* ---- names ----------------------------------------------------------------------------------- */

static struct world_name hash(const void *before, uint32_t before_len, const void *key,
			      uint32_t key_len)
{
	struct world_name name;

	for (uint32_t half = 0; half < 2; half++) {
		XXH3_state_t st = { 0 };
		XXH128_canonical_t out;

		XXH3_128bits_reset_withSeed(&st, 0x51ed + half);
		XXH3_128bits_update(&st, before, before_len);
		XXH3_128bits_update(&st, key, key_len);
		XXH128_canonicalFromHash(&out, XXH3_128bits_digest(&st));
		memcpy(name.b + 16 * half, out.digest, 16);
	}
	return name;
}

void world_names_free(struct world_names *names)
{
	free(names->v);
	memset(names, 0, sizeof(*names));
}

bool world_names_of(const struct world_names *names, const struct prefixd_names *n,
		    struct world_name *ret)
{
	struct world_name before;

	memcpy(before.b, n->root, sizeof(before.b));
	if (n->parent != RADIX_NONE && n->mode != RADIX_KEYS_DIGEST) {
		if (n->parent >= names->n || !names->v[n->parent].is)
			return false;
		before = names->v[n->parent].name;
	}
	for (uint32_t i = 0; i < n->n; i++) {
		ret[i] = hash(before.b, sizeof(before.b),
			      (const uint8_t *)n->keys + (size_t)i * n->key_len, n->key_len);
		if (n->mode != RADIX_KEYS_DIGEST)
			before = ret[i];
	}
	return true;
}

bool world_names_add(struct world_names *names, const struct prefixd_names *n)
{
	struct world_name *list = calloc(n->n + 1, sizeof(*list));
	bool is;

	ck_assert_ptr_nonnull(list);
	is = world_names_of(names, n, list);
	for (uint32_t i = 0; is && i < n->n; i++) {
		uint32_t entry = n->entries[i];
		struct world_named *d;

		if (entry >= names->n) {
			names->v = realloc(names->v, 2 * (entry + 1) * sizeof(*names->v));
			ck_assert_ptr_nonnull(names->v);
			memset(names->v + names->n, 0,
			       (2 * (entry + 1) - names->n) * sizeof(*names->v));
			names->n = 2 * (entry + 1);
		}
		d = &names->v[entry];
		d->is = true;
		d->name = list[i];
		d->key = hash("", 0, (const uint8_t *)n->keys + (size_t)i * n->key_len, n->key_len);
		memcpy(d->ns_digest, n->ns_digest, sizeof(d->ns_digest));
	}
	free(list);
	return is;
}

const struct world_name *world_names_find(const struct world_names *names,
					  const struct prefixd_carry *c)
{
	const struct world_named *d = c->entry < names->n ? &names->v[c->entry] : NULL;
	struct world_name key;

	if (!d || !d->is || memcmp(d->ns_digest, c->ns_digest, sizeof(d->ns_digest)) != 0)
		return NULL;
	key = hash("", 0, c->key, c->key_len);
	return memcmp(&d->key, &key, sizeof(key)) == 0 ? &d->name : NULL;
}
