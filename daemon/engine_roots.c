/*
 * engine_roots.c - names: sets, keyed digests, the map from (namespace, tenant, salt) to a root.
 *
 * What it guarantees.  Two different triples never share a root: a hash finds the bucket, then all
 * fields are compared in full.  A root's wire id is a keyed digest over framed fields, computed
 * once when the root is made.  A root leaves the map exactly when the index says that nothing of
 * it is left.  A root of an older epoch stays in the set until then, and is passed over.
 *
 * What it relies on.  radix_root_user() gives back the pointer that was stored; a root holds one
 * reference of its namespace.
 */
#include "daemon/engine_internal.h"

#include <sodium.h>

/* ---- sets ------------------------------------------------------------------------------------ */

static void set_rehash(const struct radix_alloc *a, struct prefixd_set *set)
{
	uint32_t n = set->n_buckets * 2;
	struct prefixd_item **b = prefixd_take0(a, n * sizeof(*b));

	if (!b)
		return; /* longer chains, still right */
	for (uint32_t i = 0; i < set->n; i++) {
		struct prefixd_item *it = set->v[i];

		it->next = b[it->hash & (n - 1)];
		b[it->hash & (n - 1)] = it;
	}
	radix_give(a, set->buckets, set->n_buckets * sizeof(*b));
	set->buckets = b;
	set->n_buckets = n;
}

int prefixd_set_room(const struct radix_alloc *a, struct prefixd_set *set)
{
	if (!set->buckets) {
		set->buckets = prefixd_take0(a, 64 * sizeof(struct prefixd_item *));
		if (!set->buckets)
			return -ENOMEM;
		set->n_buckets = 64;
	}
	if (set->n == set->cap) {
		uint32_t cap = set->cap ? set->cap * 2 : 64;
		void *v = prefixd_grow(a, set->v, set->cap * sizeof(*set->v),
				       cap * sizeof(*set->v));

		if (!v)
			return -ENOMEM;
		set->v = v;
		set->cap = cap;
	}
	if (set->n >= set->n_buckets)
		set_rehash(a, set);
	return 0;
}

void prefixd_set_add(struct prefixd_set *set, struct prefixd_item *item, uint64_t hash)
{
	struct prefixd_item **b = &set->buckets[hash & (set->n_buckets - 1)];

	radix_assert(set->n < set->cap);
	item->hash = hash;
	item->next = *b;
	*b = item;
	item->pos = set->n;
	set->v[set->n++] = item;
}

void prefixd_set_del(struct prefixd_set *set, struct prefixd_item *item)
{
	struct prefixd_item **b = &set->buckets[item->hash & (set->n_buckets - 1)];

	while (*b != item)
		b = &(*b)->next;
	*b = item->next;
	set->v[item->pos] = set->v[--set->n];
	set->v[item->pos]->pos = item->pos;
}

void prefixd_set_deinit(const struct radix_alloc *a, struct prefixd_set *set)
{
	radix_give(a, set->v, set->cap * sizeof(*set->v));
	radix_give(a, set->buckets, set->n_buckets * sizeof(*set->buckets));
	memset(set, 0, sizeof(*set));
}

/* ---- digests --------------------------------------------------------------------------------- */

void prefixd_name_digest(const struct prefixd_engine *e, const char *purpose,
			 const struct prefixd_field *fields, uint32_t n, void *ret, size_t ret_len)
{
	crypto_generichash_state st;

	/* Lengths and the key are within what the library takes, so these cannot fail. */
	(void)crypto_generichash_init(&st, e->config.naming_key, sizeof(e->config.naming_key),
				      ret_len);
	for (uint32_t i = 0; i <= n; i++) {
		struct prefixd_field f = i ? fields[i - 1]
					   : (struct prefixd_field){ 0, purpose, strlen(purpose) };
		uint8_t head[9];

		head[0] = f.tag;
		for (uint32_t k = 0; k < 8; k++)
			head[1 + k] = (uint8_t)((uint64_t)f.len >> (8 * k));
		(void)crypto_generichash_update(&st, head, sizeof(head));
		if (f.len)
			(void)crypto_generichash_update(&st, f.p, f.len);
	}
	(void)crypto_generichash_final(&st, ret, ret_len);
}

/* The epoch as it goes into names: that of a namespace that was never invalidated is eight zero
 * bytes, every other one is longer. */
static size_t epoch_bytes(const struct prefixd_epoch *epoch, uint8_t ret[16])
{
	for (uint32_t k = 0; k < 8; k++) {
		ret[k] = (uint8_t)(epoch->n >> (8 * k));
		ret[8 + k] = (uint8_t)(epoch->nonce >> (8 * k));
	}
	return epoch->n || epoch->nonce ? 16 : 8;
}

static void name_root(const struct prefixd_engine *e, const struct prefixd_root_name *name,
		      const char *purpose, void *ret, size_t ret_len)
{
	/* By the tenant's name: its number is this daemon's own. */
	const char *tenant = e->tenants[name->tenant].name;
	uint8_t epoch[16];
	struct prefixd_field f[] = {
		{ 1, name->ns->digest, sizeof(name->ns->digest) },
		{ 2, epoch, epoch_bytes(&name->ns->epoch, epoch) },
		{ 3, tenant, strlen(tenant) },
		{ 4, name->salt.p, name->salt.n },
	};

	prefixd_name_digest(e, purpose, f, radix_array_size(f), ret, ret_len);
}

void prefixd_root_id(const struct prefixd_engine *e, const struct prefixd_root_name *name,
		     struct proto_id *ret_id)
{
	name_root(e, name, "prefixd root", ret_id, sizeof(*ret_id));
}

/* ---- the map --------------------------------------------------------------------------------- */

static uint64_t root_hash(const struct prefixd_engine *e, const struct prefixd_root_name *name)
{
	uint8_t buf[8 + PROTO_SALT_MAX];
	uint8_t key[crypto_shorthash_KEYBYTES];
	uint64_t h;

	_Static_assert(sizeof(key) == sizeof(e->config.secret), "the index's secret fits");
	_Static_assert(sizeof(h) == crypto_shorthash_BYTES, "a 64-bit hash");
	memcpy(key, e->config.secret, sizeof(key));
	memcpy(buf, &name->ns->id, 4);
	memcpy(buf + 4, &name->tenant, 4);
	if (name->salt.n)
		memcpy(buf + 8, name->salt.p, name->salt.n);
	(void)crypto_shorthash((uint8_t *)&h, buf, 8 + name->salt.n, key);
	return h;
}

static bool root_is(const struct prefixd_root *r, const struct prefixd_root_name *name)
{
	return !r->detached && r->ns == name->ns && r->tenant == name->tenant &&
	       r->salt_len == name->salt.n &&
	       (r->salt_len == 0 || memcmp(r->salt, name->salt.p, r->salt_len) == 0);
}

static struct prefixd_root *find(const struct prefixd_engine *e,
				 const struct prefixd_root_name *name, uint64_t hash)
{
	struct prefixd_item *it = prefixd_set_at(&e->roots, hash);

	for (; it; it = it->next) {
		struct prefixd_root *r = radix_container_of(it, struct prefixd_root, item);

		if (it->hash == hash && root_is(r, name))
			return r;
	}
	return NULL;
}

struct prefixd_root *prefixd_root_find(const struct prefixd_engine *e,
				       const struct prefixd_root_name *name)
{
	return find(e, name, root_hash(e, name));
}

/* A root as its name says; neither in the map nor in the index.  NULL: no memory. */
static struct prefixd_root *root_alloc(struct prefixd_engine *e,
				       const struct prefixd_root_name *name,
				       struct radix_root_config *ret_config)
{
	struct prefixd_namespace *ns = name->ns;
	struct prefixd_root *r;

	if (prefixd_set_room(e->alloc, &e->roots) < 0)
		return NULL;
	r = prefixd_take0(e->alloc, sizeof(*r) + name->salt.n);
	if (!r)
		return NULL;
	radix_list_init(&r->leaders);
	prefixd_root_id(e, name, &r->id);
	if (e->config.redis)
		name_root(e, name, "prefixd root name", r->name, sizeof(r->name));
	r->ns = ns;
	r->tenant = name->tenant;
	r->busy_depth = RADIX_NONE;
	r->salt_len = (uint8_t)name->salt.n;
	if (r->salt_len)
		memcpy(r->salt, name->salt.p, r->salt_len);
	*ret_config = (struct radix_root_config){
		.mode = ns->mode,
		.key_len = ns->key_len,
		.block_tokens = ns->block_tokens,
		.token_bytes = ns->token_bytes,
		.ns = ns->id,
		.tenant = name->tenant,
		.user = (uint64_t)(uintptr_t)r,
		.window = ns->window,
	};
	memcpy(ret_config->name, r->id.b, sizeof(ret_config->name));
	return r;
}

static void root_add(struct prefixd_engine *e, struct prefixd_root *r, uint64_t hash)
{
	struct prefixd_namespace *ns = r->ns;

	prefixd_set_add(&e->roots, &r->item, hash);
	ns->refs++;
	ns->n_roots++;
	if (ns->tenant == RADIX_NONE)
		ns->tenant = r->tenant;
	else if (ns->tenant != r->tenant)
		ns->several_tenants = true;
}

static int root_make(struct prefixd_engine *e, const struct prefixd_root_name *name, uint64_t hash,
		     struct prefixd_root **ret_root)
{
	struct radix_root_config config;
	struct prefixd_root *r = root_alloc(e, name, &config);

	if (!r)
		return -ENOMEM;
	if (prefixd_note_root_room(e, r) < 0)
		goto no_record;
	if (radix_root_new(name->ns->group->index, &config, &r->index_root) < 0)
		goto no_root;
	prefixd_note_root(e, r);
	root_add(e, r, hash);
	*ret_root = r;
	return 0;
no_root:
	prefixd_note_root_gone(e, r);
no_record:
	radix_give(e->alloc, r, sizeof(*r) + r->salt_len);
	return -ENOMEM;
}

struct prefixd_root *prefixd_root_again(struct prefixd_engine *e, struct prefixd_namespace *ns,
					const struct prefixd_root_record *rec, uint32_t record,
					struct radix_root_config *ret_config)
{
	struct prefixd_root_name name = { ns, rec->tenant, { rec->salt, rec->salt_len } };
	struct prefixd_root *r = root_alloc(e, &name, ret_config);

	if (!r)
		return NULL;
	r->record = record;
	r->index_root = rec->root;
	root_add(e, r, root_hash(e, &name));
	return r;
}

int prefixd_root_get(struct prefixd_engine *e, const struct prefixd_root_name *name,
		     struct prefixd_root **ret_root)
{
	uint64_t hash = root_hash(e, name);
	struct prefixd_root *r = find(e, name, hash);

	if (r)
		radix_root_ref(r->ns->group->index, r->index_root);
	else if (root_make(e, name, hash, &r) < 0) /* comes with a reference */
		return -ENOMEM;
	r->n_leases++;
	*ret_root = r;
	return 0;
}

/* Out of the map; the index has nothing of it any more. */
void prefixd_root_free(struct prefixd_engine *e, struct prefixd_root *root)
{
	struct prefixd_namespace *ns = root->ns;

	radix_assert(root->n_leases == 0 && root->n_holds == 0);
	prefixd_note_root_gone(e, root);
	prefixd_set_del(&e->roots, &root->item);
	radix_give(e->alloc, root, sizeof(*root) + root->salt_len);
	ns->n_roots--;
	prefixd_namespace_unref(e, ns);
}

void prefixd_root_put(struct prefixd_engine *e, struct prefixd_root *root)
{
	root->n_leases--;
	prefixd_root_left(e, root);
	if (radix_root_unref(root->ns->group->index, root->index_root))
		prefixd_root_free(e, root);
}

void prefixd_roots_reap(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct prefixd_group *g = e->groups[i];
		uint64_t user;

		if (!g || !g->reap || !g->index)
			continue;
		g->reap = false;
		while (radix_root_reap(g->index, &user) != RADIX_NONE)
			prefixd_root_free(e, (struct prefixd_root *)(uintptr_t)user);
	}
}

/* ---- the three fields of a request ----------------------------------------------------------- */

bool prefixd_root_name_check(struct prefixd_engine *e, struct prefixd_request *rq, uint8_t has,
			     uint32_t ns, uint32_t tenant, struct proto_span salt,
			     struct prefixd_root_name *ret_name)
{
	static const struct {
		uint8_t bit;
		const char *name;
	} fields[] = {
		{ PROTO_HAS_NS, "ns" },
		{ PROTO_HAS_TENANT, "tenant" },
		{ PROTO_HAS_SALT, "salt" },
	};

	for (uint32_t i = 0; i < radix_array_size(fields); i++) {
		if (has & fields[i].bit)
			continue;
		prefixd_refuse(e, rq, PROTO_STATUS_MISSING_FIELD, fields[i].name,
			       "'%s' is missing; set bit %u of 'has' and send it, empty if need be",
			       fields[i].name, fields[i].bit);
		return false;
	}
	if (has & ~PROTO_HAS_ALL) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "has",
			       "'has' knows bits 1, 2 and 4 only");
		return false;
	}
	ret_name->ns = prefixd_session_ns(e, rq->s, ns);
	ret_name->tenant = tenant;
	ret_name->salt = salt;
	if (!ret_name->ns) {
		prefixd_refuse(e, rq, PROTO_STATUS_UNKNOWN_NAMESPACE, "ns",
			       "this session has not opened namespace %u; OPEN it first", ns);
		return false;
	}
	if (!prefixd_session_may(e, rq->s, tenant)) {
		e->counters.forbidden++;
		prefixd_refuse(e, rq, PROTO_STATUS_FORBIDDEN, "tenant",
			       "uid %u may not name tenant %u; HELLO's reply lists those it may",
			       rq->s->peer.uid, tenant);
		return false;
	}
	return true;
}
