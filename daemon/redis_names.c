/*
 * redis_names.c - see redis_names.h.
 *
 * Entries lie in chunks that come as they are needed: numbers are dense and few are known at first,
 * and one array that grows would copy hundreds of megabytes at once.  Roots are kept once each and
 * counted, since thousands of entries hang directly below the same few.
 */
#include "daemon/redis_names.h"

#include <sodium.h>

#define CHUNK     4096u
#define ROOT_BIT  0x80000000u /* `before` is a root's number */
#define NO_ROOT   (ROOT_BIT - 1u)
#define MAX_GROUP 65536u

struct record {
	uint8_t name[32];
	uint32_t before; /* entry; ROOT_BIT and root; RADIX_NONE: no name */
};

struct root {
	uint8_t name[32];
	uint32_t refs; /* 0: on the free list */
	uint32_t next; /* same bucket, or free list; NO_ROOT ends */
};

struct group {
	struct record **chunks;
	uint32_t n_chunks;
	struct root *roots;
	uint32_t cap_roots, n_roots; /* n_roots: with refs */
	uint32_t free_root;
	uint32_t *buckets; /* cap_roots of them */
};

struct prefixd_names_table {
	const struct radix_alloc *alloc;
	uint8_t key[32];
	struct group *groups;
	uint32_t n_groups;
};

/* ---- names ----------------------------------------------------------------------------------- */

static void field(crypto_generichash_state *st, uint8_t tag, const void *p, uint32_t n)
{
	uint8_t head[5] = { tag, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16),
			    (uint8_t)(n >> 24) };

	(void)crypto_generichash_update(st, head, sizeof(head)); /* these never fail */
	(void)crypto_generichash_update(st, p, n);
}

void prefixd_name_derive(const uint8_t naming_key[32], enum radix_key_mode mode,
			 const uint8_t before[32], const void *key, uint32_t key_len,
			 uint8_t ret_name[32])
{
	static const char *const purposes[] = {
		[RADIX_KEYS_TOKENS] = "prefixd block tokens 1",
		[RADIX_KEYS_DIGEST] = "prefixd block digest 1",
	};
	const char *purpose = purposes[mode];
	crypto_generichash_state st;

	(void)crypto_generichash_init(&st, naming_key, 32, 32); /* lengths are in range */
	field(&st, 1, purpose, (uint32_t)strlen(purpose));
	field(&st, 2, before, 32);
	field(&st, 3, key, key_len);
	(void)crypto_generichash_final(&st, ret_name, 32);
}

static void hex_key(const char *prefix, size_t prefix_len, const uint8_t digest[32], char *ret)
{
	static const char digits[] = "0123456789abcdef";

	memcpy(ret, prefix, prefix_len);
	ret += prefix_len;
	for (unsigned i = 0; i < 32; i++) {
		*ret++ = digits[digest[i] >> 4];
		*ret++ = digits[digest[i] & 15];
	}
}

void prefixd_name_redis_key(const uint8_t name[32], char ret_key[PREFIXD_REDIS_KEY_LEN])
{
	hex_key("prefixd:v1:", 11, name, ret_key);
}

void prefixd_name_epoch_key(const uint8_t ns_digest[32], char ret_key[PREFIXD_REDIS_EPOCH_LEN])
{
	hex_key("prefixd:v1:epoch:", 17, ns_digest, ret_key);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A longer copy of an array, the rest filled with `fill`.  NULL without memory, the old one stays.
 */
static void *grow(const struct radix_alloc *a, void *old, size_t old_len, size_t len, int fill)
{
	uint8_t *p = radix_take(a, len);

	if (!p)
		return NULL;
	if (old_len)
		memcpy(p, old, old_len);
	memset(p + old_len, fill, len - old_len);
	radix_give(a, old, old_len);
	return p;
}

int prefixd_names_new(struct prefixd_names_table **ret_table, const struct radix_alloc *alloc,
		      const uint8_t naming_key[32])
{
	struct prefixd_names_table *t = radix_take(alloc, sizeof(*t));

	if (!t)
		return -ENOMEM;
	memset(t, 0, sizeof(*t));
	t->alloc = alloc;
	memcpy(t->key, naming_key, sizeof(t->key));
	*ret_table = t;
	return 0;
}

struct prefixd_names_table *prefixd_names_free(struct prefixd_names_table *t)
{
	if (!t)
		return NULL;
	for (uint32_t i = 0; i < t->n_groups; i++) {
		struct group *g = &t->groups[i];

		for (uint32_t c = 0; c < g->n_chunks; c++)
			radix_give(t->alloc, g->chunks[c], CHUNK * sizeof(struct record));
		radix_give(t->alloc, g->chunks, g->n_chunks * sizeof(struct record *));
		radix_give(t->alloc, g->roots, g->cap_roots * sizeof(*g->roots));
		radix_give(t->alloc, g->buckets, g->cap_roots * sizeof(*g->buckets));
	}
	radix_give(t->alloc, t->groups, t->n_groups * sizeof(*t->groups));
	sodium_memzero(t->key, sizeof(t->key));
	radix_give(t->alloc, t, sizeof(*t));
	return NULL;
}

static struct group *group_find(const struct prefixd_names_table *t, uint32_t group)
{
	return group < t->n_groups ? &t->groups[group] : NULL;
}

/* NULL without memory, or out of range. */
static struct group *group_get(struct prefixd_names_table *t, uint32_t group)
{
	if (group >= t->n_groups) {
		uint32_t n = t->n_groups ? t->n_groups : 4;
		struct group *v;

		if (group >= MAX_GROUP)
			return NULL;
		while (n <= group)
			n *= 2;
		v = grow(t->alloc, t->groups, t->n_groups * sizeof(*v), n * sizeof(*v), 0);
		if (!v)
			return NULL;
		for (uint32_t i = t->n_groups; i < n; i++)
			v[i].free_root = NO_ROOT;
		t->groups = v;
		t->n_groups = n;
	}
	return &t->groups[group];
}

static struct record *record_find(const struct group *g, uint32_t entry)
{
	uint32_t c = entry / CHUNK;

	return c < g->n_chunks && g->chunks[c] ? &g->chunks[c][entry % CHUNK] : NULL;
}

/* NULL without memory. */
static struct record *record_get(const struct prefixd_names_table *t, struct group *g,
				 uint32_t entry)
{
	uint32_t c = entry / CHUNK;

	if (c >= g->n_chunks) {
		uint32_t n = g->n_chunks ? g->n_chunks : 16;
		struct record **v;

		while (n <= c)
			n *= 2;
		v = grow(t->alloc, g->chunks, g->n_chunks * sizeof(*v), n * sizeof(*v), 0);
		if (!v)
			return NULL;
		g->chunks = v;
		g->n_chunks = n;
	}
	if (!g->chunks[c])
		g->chunks[c] = grow(t->alloc, NULL, 0, CHUNK * sizeof(struct record), 0xff);
	return record_find(g, entry);
}

/* ---- roots ----------------------------------------------------------------------------------- */

/* Names are keyed digests: any of their bytes serve as a hash. */
static uint32_t *bucket_of(const struct group *g, const uint8_t name[32])
{
	uint32_t h;

	memcpy(&h, name, sizeof(h));
	return &g->buckets[h & (g->cap_roots - 1)];
}

static bool roots_grow(const struct prefixd_names_table *t, struct group *g)
{
	uint32_t cap = g->cap_roots ? g->cap_roots * 2 : 16;
	uint32_t *buckets = radix_take(t->alloc, cap * sizeof(*buckets));
	struct root *roots = buckets ? grow(t->alloc, g->roots, g->cap_roots * sizeof(*roots),
					    cap * sizeof(*roots), 0)
				     : NULL;

	if (!roots) {
		radix_give(t->alloc, buckets, cap * sizeof(*buckets));
		return false;
	}
	radix_give(t->alloc, g->buckets, g->cap_roots * sizeof(*buckets));
	g->roots = roots;
	g->buckets = buckets;
	for (uint32_t i = 0; i < cap; i++)
		buckets[i] = NO_ROOT;
	for (uint32_t i = cap; i-- > g->cap_roots;) {
		roots[i].next = g->free_root;
		g->free_root = i;
	}
	g->cap_roots = cap;
	for (uint32_t i = 0; i < cap; i++) {
		uint32_t *b;

		if (!roots[i].refs)
			continue;
		b = bucket_of(g, roots[i].name);
		roots[i].next = *b;
		*b = i;
	}
	return true;
}

/* One more reference.  Return: its number; NO_ROOT without memory. */
static uint32_t root_ref(const struct prefixd_names_table *t, struct group *g,
			 const uint8_t name[32])
{
	uint32_t i = g->cap_roots ? *bucket_of(g, name) : NO_ROOT, *b;

	while (i != NO_ROOT && memcmp(g->roots[i].name, name, 32) != 0)
		i = g->roots[i].next;
	if (i == NO_ROOT) {
		if (g->free_root == NO_ROOT && !roots_grow(t, g))
			return NO_ROOT;
		i = g->free_root;
		g->free_root = g->roots[i].next;
		b = bucket_of(g, name);
		memcpy(g->roots[i].name, name, 32);
		g->roots[i].next = *b;
		*b = i;
		g->n_roots++;
	}
	g->roots[i].refs++;
	return i;
}

static void root_unref(struct group *g, uint32_t i)
{
	uint32_t *b;

	if (--g->roots[i].refs)
		return;
	for (b = bucket_of(g, g->roots[i].name); *b != i; b = &g->roots[*b].next)
		;
	*b = g->roots[i].next;
	g->roots[i].next = g->free_root;
	g->free_root = i;
	g->n_roots--;
}

static void record_clear(struct group *g, struct record *r)
{
	if (r->before != RADIX_NONE && (r->before & ROOT_BIT))
		root_unref(g, r->before & ~ROOT_BIT);
	r->before = RADIX_NONE;
}

/* ---- learning and finding -------------------------------------------------------------------- */

static const uint8_t *named(const struct group *g, uint32_t entry)
{
	const struct record *r = g ? record_find(g, entry) : NULL;

	return r && r->before != RADIX_NONE ? r->name : NULL;
}

/* What the first key's name is derived from; NULL: not known. */
static const uint8_t *before_first(const struct group *g, const struct prefixd_names *names)
{
	if (names->mode == RADIX_KEYS_DIGEST || names->parent == RADIX_NONE)
		return names->root;
	return named(g, names->parent);
}

/* Names one entry after `before`, which is the root's name or that of the entry `parent`. */
static int learn_one(const struct prefixd_names_table *t, struct group *g,
		     const struct prefixd_names *names, uint32_t i, uint32_t parent)
{
	bool root = names->mode == RADIX_KEYS_DIGEST || parent == RADIX_NONE;
	struct record *r = record_get(t, g, names->entries[i]);
	const uint8_t *before, *key = names->keys;
	uint32_t link = parent;
	uint8_t name[32];

	if (!r)
		return -ENOMEM;
	record_clear(g, r); /* first: what fails from here on leaves no old name */
	before = root ? names->root : named(g, parent);
	if (!before)
		return -EINVAL;
	if (root) {
		link = root_ref(t, g, names->root);
		if (link == NO_ROOT)
			return -ENOMEM;
		link |= ROOT_BIT;
	}
	prefixd_name_derive(t->key, names->mode, before, key + (size_t)i * names->key_len,
			    names->key_len, name);
	memcpy(r->name, name, sizeof(name));
	r->before = link;
	return 0;
}

int prefixd_names_learn(struct prefixd_names_table *t, uint32_t group,
			const struct prefixd_names *names)
{
	struct group *g = group_get(t, group);
	uint32_t parent = names->parent;
	int r = 0;

	if (!g)
		return group >= MAX_GROUP ? -EINVAL : -ENOMEM;
	for (uint32_t i = 0; i < names->n; i++) {
		int one = names->entries[i] & ROOT_BIT ? -EINVAL
						       : learn_one(t, g, names, i, parent);

		if (one < 0 && r == 0)
			r = one;
		parent = names->entries[i];
	}
	return r;
}

bool prefixd_names_find(const struct prefixd_names_table *t, uint32_t group, uint32_t entry,
			uint8_t ret_name[32], uint8_t ret_before[32])
{
	const struct group *g = group_find(t, group);
	const struct record *r = g ? record_find(g, entry) : NULL;
	const uint8_t *before;

	if (!r || r->before == RADIX_NONE)
		return false;
	before = r->before & ROOT_BIT ? g->roots[r->before & ~ROOT_BIT].name : named(g, r->before);
	if (!before)
		return false;
	memcpy(ret_name, r->name, 32);
	memcpy(ret_before, before, 32);
	return true;
}

bool prefixd_names_chain(const struct prefixd_names_table *t, uint32_t group,
			 const struct prefixd_names *names, uint8_t (*ret_names)[32])
{
	const uint8_t *before = before_first(group_find(t, group), names), *key = names->keys;

	if (!before)
		return false;
	for (uint32_t i = 0; i < names->n; i++) {
		prefixd_name_derive(t->key, names->mode, before, key + (size_t)i * names->key_len,
				    names->key_len, ret_names[i]);
		if (names->mode == RADIX_KEYS_TOKENS)
			before = ret_names[i];
	}
	return true;
}

uint32_t prefixd_names_roots(const struct prefixd_names_table *t, uint32_t group)
{
	const struct group *g = group_find(t, group);

	return g ? g->n_roots : 0;
}
