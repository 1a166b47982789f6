/*
 * engine_names.c - NAMES: the names that members have across machines.
 *
 * What it guarantees.  Members are named before anything else is asked about them: new ones in the
 * step in which they come to be; those of an earlier life, whose names went with it, when somebody
 * needs one, with all before it on its path.
 *
 * What it relies on.  In token mode a name is made of the one before it, so that along a path those
 * that have one come first.  Where entries of an earlier life are, the group has a bit for each
 * entry that was named since; where there are none, all are.
 */
#include "daemon/engine_internal.h"

#define LATE (RADIX_NONE - 1) /* a NAMES whose keys and entries are still offsets */

static bool is_named(const struct prefixd_group *g, uint32_t entry)
{
	return !g->named || (g->named[entry / 64] >> entry % 64 & 1);
}

static void set_named(struct prefixd_group *g, uint32_t entry)
{
	if (g->named)
		g->named[entry / 64] |= 1ull << entry % 64;
}

static size_t bits_len(const struct prefixd_group *g)
{
	return ((size_t)g->n_entries / 64 + 1) * sizeof(uint64_t);
}

int prefixd_names_adopted(struct prefixd_engine *e, struct prefixd_group *g)
{
	if (!e->config.redis)
		return 0;
	e->names_late = true;
	g->named = prefixd_take0(e->alloc, bits_len(g));
	return g->named ? 0 : -ENOMEM;
}

void prefixd_names_forget(struct prefixd_engine *e, struct prefixd_group *g)
{
	radix_give(e->alloc, g->named, bits_len(g));
	g->named = NULL;
}

/* ---- new members ----------------------------------------------------------------------------- */

int prefixd_names_room(struct prefixd_engine *e, uint32_t n)
{
	uint32_t cap = e->members_cap ? e->members_cap : 64;
	void *v;

	if (!e->config.redis)
		return 0;
	if (prefixd_actions_room(e, 1) < 0)
		return -ENOMEM;
	n++; /* the one before them */
	if (n <= e->members_cap)
		return 0;
	while (cap < n)
		cap *= 2;
	v = prefixd_grow(e->alloc, e->members, e->members_cap * sizeof(*e->members),
			 cap * sizeof(*e->members));
	if (!v)
		return -ENOMEM;
	e->members = v;
	e->members_cap = cap;
	return 0;
}

void prefixd_name_members(struct prefixd_engine *e, const struct prefixd_root *root,
			  const struct radix_place *end, const void *keys, uint32_t n)
{
	const struct prefixd_namespace *ns = root->ns;
	uint32_t *entries, n_path, first;
	struct prefixd_action *a;

	if (!e->config.redis || n == 0)
		return;
	radix_assert(n < e->members_cap);
	n_path = radix_path_members(ns->group->index, end, n + 1, e->members);
	radix_assert(n_path >= n);
	first = n_path - n;
	a = prefixd_act(e, PREFIXD_ACTION_NAMES, RADIX_NONE);
	a->group = ns->group->id;
	a->u.names = (struct prefixd_names){
		.mode = ns->mode,
		.parent = ns->mode == RADIX_KEYS_TOKENS && first ? e->members[0].entry : RADIX_NONE,
		.key_len = ns->key_len,
		.n = n,
		.keys = keys,
	};
	memcpy(a->u.names.root, root->name, sizeof(root->name));
	memcpy(a->u.names.ns_digest, ns->digest, sizeof(ns->digest));
	/* The entries, one behind another, take the members' place: a step names members once. */
	entries = (uint32_t *)(void *)e->members;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t entry = e->members[first + i].entry;

		memcpy(&entries[i], &entry, sizeof(entry));
		set_named(ns->group, entry);
	}
	a->u.names.entries = entries;
}

/* ---- members of an earlier life -------------------------------------------------------------- */

static int late_room(struct prefixd_engine *e, size_t bytes)
{
	size_t cap = e->late_cap ? e->late_cap : 4096;
	uint8_t *p;

	if (e->late_len + bytes <= e->late_cap)
		return 0;
	while (cap < e->late_len + bytes)
		cap *= 2;
	p = prefixd_grow(e->alloc, e->late, e->late_cap, cap);
	if (!p)
		return -ENOMEM;
	e->late_cap = cap;
	e->late = p;
	return 0;
}

/* NAMES for path[first, n): entries, then keys, into what is kept until the next step. */
static int name_late(struct prefixd_engine *e, const struct prefixd_root *root,
		     const struct radix_member *path, uint32_t first, uint32_t n)
{
	const struct prefixd_namespace *ns = root->ns;
	size_t entries = (e->late_len + 7) & ~(size_t)7, keys = entries + (n - first) * 4ull;
	size_t end = keys + (size_t)(n - first) * ns->key_len;
	struct prefixd_action *a;

	if (late_room(e, end - e->late_len) < 0 || prefixd_actions_room(e, 1) < 0)
		return -ENOMEM;
	e->late_len = end;
	a = prefixd_act(e, PREFIXD_ACTION_NAMES, LATE);
	a->group = ns->group->id;
	a->u.names = (struct prefixd_names){
		.mode = ns->mode,
		.parent = ns->mode == RADIX_KEYS_TOKENS && first ? path[first - 1].entry
								 : RADIX_NONE,
		.key_len = ns->key_len,
		.n = n - first,
		.entries = (const uint32_t *)(uintptr_t)entries,
		.keys = (const void *)(uintptr_t)keys,
	};
	memcpy(a->u.names.root, root->name, sizeof(root->name));
	memcpy(a->u.names.ns_digest, ns->digest, sizeof(ns->digest));
	for (uint32_t i = first; i < n; i++) {
		uint32_t len;
		const void *key;
		int r = radix_member_key(ns->group->index, path[i], &key, &len);

		radix_assert(r == 0 && len == ns->key_len);
		memcpy(e->late + entries + (i - first) * 4ull, &path[i].entry, 4);
		memcpy(e->late + keys + (size_t)(i - first) * len, key, len);
		set_named(ns->group, path[i].entry);
	}
	return 0;
}

int prefixd_names_path(struct prefixd_engine *e, const struct prefixd_root *root,
		       const struct radix_place *end)
{
	const struct prefixd_group *g = root->ns->group;
	uint32_t n = root->ns->mode == RADIX_KEYS_TOKENS ? end->depth : 1, first;
	struct radix_member last, *path;
	int r;

	if (!g->named || radix_path_members(g->index, end, 1, &last) == 0 ||
	    is_named(g, last.entry))
		return 0;
	path = radix_take(e->alloc, n * sizeof(*path));
	if (!path)
		return -ENOMEM;
	first = radix_path_members(g->index, end, n, path);
	r = first == n ? 0 : -ENOMEM;
	while (first > 0 && !is_named(g, path[first - 1].entry))
		first--;
	if (r == 0)
		r = name_late(e, root, path, first, n);
	radix_give(e->alloc, path, n * sizeof(*path));
	return r;
}

void prefixd_names_member(struct prefixd_engine *e, const struct prefixd_root *root,
			  struct radix_member block)
{
	const struct prefixd_group *g = root->ns->group;
	struct radix_place at;

	/* Without memory it has no name now: who carries it says that it failed. */
	if (g->named && radix_member_place(g->index, block, &at) == 0)
		(void)!prefixd_names_path(e, root, &at);
}

void prefixd_names_settle(struct prefixd_engine *e)
{
	for (uint32_t i = 0; e->late_len && i < e->n_actions; i++) {
		struct prefixd_action *a = &e->actions[i];

		if (a->type != PREFIXD_ACTION_NAMES || a->session != LATE)
			continue;
		a->session = RADIX_NONE;
		a->u.names.entries =
			(const uint32_t *)(void *)(e->late + (uintptr_t)a->u.names.entries);
		a->u.names.keys = e->late + (uintptr_t)a->u.names.keys;
	}
	e->late_len = 0;
}

void prefixd_names_deinit(struct prefixd_engine *e)
{
	radix_give(e->alloc, e->late, e->late_cap);
	e->late = NULL;
	e->late_cap = 0;
	radix_give(e->alloc, e->members, e->members_cap * sizeof(*e->members));
	e->members = NULL;
	e->members_cap = 0;
}
