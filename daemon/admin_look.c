/*
 * admin_look.c - the tree as a picture, who holds what, and whether all invariants hold.
 */
#include "daemon/admin_internal.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>

#define TREE_LINES_DEFAULT 200u
#define TREE_LINES_MAX     100000u
#define PINS_DEFAULT       1000u

/* ---- tree ------------------------------------------------------------------------------------ */

struct tree_lines {
	struct prefixd_admin_reply *r;
	json_t *list;
	uint64_t left;
	uint64_t ns; /* UINT64_MAX: all */
	bool skip;   /* below a root of another namespace */
	bool truncated;
};

static void tree_line(void *ctx, const char *text)
{
	struct tree_lines *t = ctx;
	unsigned root, ns;

	/* The picture goes root by root, and each root's line names its namespace. */
	if (t->ns != UINT64_MAX && sscanf(text, "root %u: namespace %u,", &root, &ns) == 2)
		t->skip = ns != t->ns;
	if (t->skip)
		return;
	if (t->left == 0) {
		t->truncated = true;
		return;
	}
	t->left--;
	prefixd_admin_append(t->r, t->list, json_string(text));
}

/* One line more than wanted is asked for, to know whether there are more. */
static void tree_dump(const struct prefixd_group_info *group, struct tree_lines *t)
{
	uint32_t lines = t->ns == UINT64_MAX ? (uint32_t)(t->left + 1) : UINT32_MAX;

	t->skip = t->ns != UINT64_MAX;
	radix_dump(group->index, RADIX_NONE, lines, tree_line, t);
}

void prefixd_admin_tree(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	uint64_t only = UINT64_MAX, lines = TREE_LINES_DEFAULT;
	struct tree_lines t = { .r = r, .ns = UINT64_MAX };
	struct prefixd_namespace_info ns;
	struct prefixd_group_info group;
	uint32_t it = 0;
	bool found = false;

	if (!prefixd_admin_arg_u64(args, "group", UINT32_MAX, &only, r) ||
	    !prefixd_admin_arg_u64(args, "max_lines", TREE_LINES_MAX, &lines, r))
		return;
	if (json_object_get(args, "ns") || json_object_get(args, "model")) {
		if (!prefixd_admin_arg_namespace(s, args, &ns, r))
			return;
		t.ns = ns.id;
	}
	t.list = prefixd_admin_array(r, r->root, "lines");
	t.left = lines;
	while (prefixd_engine_next_group(s->engine, &it, &group)) {
		if (only != UINT64_MAX && group.id != only)
			continue;
		tree_dump(&group, &t);
		found = true;
	}
	if (only != UINT64_MAX && !found)
		prefixd_admin_refuse(r, "group", "there is no group %llu",
				     (unsigned long long)only);
	prefixd_admin_put_bool(r, r->root, "truncated", t.truncated);
}

/* ---- pins ------------------------------------------------------------------------------------ */

static int older_first(const void *a, const void *b)
{
	const struct prefixd_lease_info *x = a, *y = b;

	if (x->age_ns != y->age_ns)
		return x->age_ns > y->age_ns ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* All leases of at least that age, for the caller to free.  Return: 0, -ENOMEM. */
static int leases_collect(struct prefixd_server *s, uint64_t older_ns,
			  struct prefixd_lease_info **ret_v, size_t *ret_n)
{
	struct prefixd_lease_info *v = NULL, info;
	uint64_t it = 0, now = prefixd_now_ns();
	size_t n = 0, cap = 0;

	while (prefixd_engine_next_lease(s->engine, &it, now, &info)) {
		if (info.age_ns < older_ns)
			continue;
		if (n == cap) {
			struct prefixd_lease_info *bigger;

			cap = cap ? cap * 2 : 64;
			bigger = realloc(v, cap * sizeof(*v));
			if (!bigger) {
				free(v);
				return -ENOMEM;
			}
			v = bigger;
		}
		v[n++] = info;
	}
	if (n > 1)
		qsort(v, n, sizeof(*v), older_first);
	*ret_v = v;
	*ret_n = n;
	return 0;
}

void prefixd_admin_pins(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	uint64_t older_ns = 0, max = PINS_DEFAULT;
	struct prefixd_lease_info *v = NULL;
	size_t n = 0;
	json_t *list;

	if (!prefixd_admin_arg_time(args, "older_s", &older_ns, r) ||
	    !prefixd_admin_arg_u64(args, "max", UINT32_MAX, &max, r))
		return;
	if (leases_collect(s, older_ns, &v, &n) < 0) {
		r->failed = true;
		return;
	}
	list = prefixd_admin_array(r, r->root, "pins");
	for (size_t i = 0; i < n && i < max; i++) {
		json_t *j = json_object();

		prefixd_admin_put_u64(r, j, "lease", v[i].id);
		prefixd_admin_put_u64(r, j, "session", v[i].session);
		prefixd_admin_put_u64(r, j, "pid", v[i].pid);
		prefixd_admin_put_u64(r, j, "uid", v[i].uid);
		prefixd_admin_put_text(r, j, "tenant",
				       v[i].tenant < s->n_tenants ? s->tenants[v[i].tenant].name
								  : "");
		prefixd_admin_put_u64(r, j, "ns", v[i].ns);
		prefixd_admin_put_bool(r, j, "orphan", v[i].orphan);
		prefixd_admin_put_real(r, j, "age_s", (double)v[i].age_ns / 1e9);
		prefixd_admin_put_u64(r, j, "blocks", v[i].n_blocks);
		prefixd_admin_put_u64(r, j, "reserved", v[i].n_reserved);
		prefixd_admin_append(r, list, j);
	}
	prefixd_admin_put_u64(r, r->root, "total", n);
	free(v);
}

/* ---- audit ----------------------------------------------------------------------------------- */

static void finding_add(struct prefixd_admin_reply *r, json_t *list, int number, const char *text)
{
	json_t *j = json_object();

	prefixd_admin_put_u64(r, j, "number", (uint64_t)number);
	prefixd_admin_put_text(r, j, "text", text);
	prefixd_admin_append(r, list, j);
	prefixd_error("audit: broken invariant %d: %s", number, text);
}

void prefixd_admin_audit(struct prefixd_server *s, const json_t *args,
			 struct prefixd_admin_reply *r)
{
	json_t *findings = prefixd_admin_array(r, r->root, "findings");
	json_t *groups = prefixd_admin_array(r, r->root, "groups");
	struct prefixd_group_info group;
	char why[PREFIXD_WHY_LEN] = "";
	uint32_t it = 0;
	bool clean = true;
	int broken = prefixd_engine_verify(s->engine, why, sizeof(why));

	if (broken != 0) {
		finding_add(r, findings, broken, why);
		clean = false;
	}
	while (prefixd_engine_next_group(s->engine, &it, &group)) {
		struct radix_stats st;
		json_t *j = json_object(), *slots;
		uint64_t sum = 0;

		radix_index_stats(group.index, &st);
		prefixd_admin_put_u64(r, j, "id", group.id);
		prefixd_admin_put_u64(r, j, "n_slots", group.n_slots);
		slots = prefixd_admin_object(r, j, "slots");
		for (int i = 0; i < RADIX_SLOT_N_STATES; i++) {
			sum += st.slots[i];
			prefixd_admin_put_u64(r, slots,
					      radix_slot_state_to_string((enum radix_slot_state)i),
					      st.slots[i]);
		}
		prefixd_admin_put_u64(r, j, "sum", sum);
		prefixd_admin_append(r, groups, j);
		if (sum != group.n_slots) {
			finding_add(r, findings, 0, "slots by state do not add up to the pool");
			clean = false;
		}
	}
	prefixd_admin_put_bool(r, r->root, "clean", clean);
}
