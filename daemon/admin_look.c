/*
 * admin_look.c - the tree as a picture, and whether all invariants hold.
 */
#include "daemon/admin_internal.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>

#define TREE_LINES_DEFAULT 200u
#define TREE_LINES_MAX     100000u

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
