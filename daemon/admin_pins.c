/*
 * admin_pins.c - who holds what: leases with their owners, and slots that are not free yet because
 * of how their lease ended.
 *
 * What it guarantees. No token and no salt is shown: both as keyed digests, so that equal ones can
 * be told from others.
 */
#include "daemon/admin_internal.h"

#include "daemon/log.h"
#include "daemon/peer.h"

#include <stdlib.h>

#define PINS_DEFAULT 1000u
#define RUNS_MAX     16u /* of slots, told for one lease */

struct pins {
	struct prefixd_lease_info *v;
	size_t n, cap;
	uint64_t older_ns;
};

static uint64_t size_of(const struct prefixd_lease_info *l)
{
	return (l->n_blocks + l->n_reserved + l->n_own) * l->slot_bytes * l->n_ranks;
}

static int by_id(const struct prefixd_lease_info *x, const struct prefixd_lease_info *y)
{
	return x->id < y->id ? -1 : x->id > y->id;
}

static int older_first(const void *a, const void *b)
{
	const struct prefixd_lease_info *x = a, *y = b;

	if (x->age_ns != y->age_ns)
		return x->age_ns > y->age_ns ? -1 : 1;
	return by_id(x, y);
}

static int larger_first(const void *a, const void *b)
{
	const struct prefixd_lease_info *x = a, *y = b;

	if (size_of(x) != size_of(y))
		return size_of(x) > size_of(y) ? -1 : 1;
	return by_id(x, y);
}

static int by_pid(const void *a, const void *b)
{
	const struct prefixd_lease_info *x = a, *y = b;

	return x->pid < y->pid ? -1 : x->pid > y->pid;
}

/* Return: 0, -ENOMEM. */
static int pins_add(struct pins *p, const struct prefixd_lease_info *info)
{
	if (info->age_ns < p->older_ns)
		return 0;
	if (p->n == p->cap) {
		size_t cap = p->cap ? p->cap * 2 : 64;
		struct prefixd_lease_info *v = realloc(p->v, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		p->v = v;
		p->cap = cap;
	}
	p->v[p->n++] = *info;
	return 0;
}

static int pins_collect(struct prefixd_server *s, struct pins *p)
{
	struct prefixd_lease_info info;
	uint64_t it = 0, now = prefixd_now_ns();

	while (prefixd_engine_next_lease(s->engine, &it, now, &info))
		if (pins_add(p, &info) < 0)
			return -ENOMEM;
	it = 0;
	while (prefixd_engine_next_ended(s->engine, &it, now, &info))
		if (pins_add(p, &info) < 0)
			return -ENOMEM;
	return 0;
}

static void put_slots(struct prefixd_admin_reply *r, json_t *list, const uint32_t *v, uint64_t n,
		      uint32_t *left)
{
	for (uint64_t i = 0; i < n && *left; (*left)--) {
		uint32_t len = 1;

		while (i + len < n && v[i + len] == v[i] + len)
			len++;
		prefixd_admin_append(r, list,
				     json_pack("[I,I]", (json_int_t)v[i], (json_int_t)len));
		i += len;
	}
}

static void put_owner(struct prefixd_server *s, struct prefixd_admin_reply *r, json_t *j,
		      const struct prefixd_lease_info *l)
{
	char comm[PREFIXD_PROCESS_NAME_MAX];
	bool active = l->stand == PREFIXD_STAND_LIVE || l->stand == PREFIXD_STAND_ORPHAN;

	prefixd_admin_put_u64(r, j, "lease", l->id);
	prefixd_admin_put(r, j, "session",
			  l->session == RADIX_NONE ? json_null()
						   : json_integer((json_int_t)l->session));
	prefixd_admin_put_u64(r, j, "pid", l->pid);
	prefixd_admin_put_u64(r, j, "uid", l->uid);
	if (!l->name[0])
		prefixd_process_name(l->pid, comm);
	prefixd_admin_put_text(r, j, "name", l->name[0] ? l->name : comm);
	prefixd_admin_put_text(r, j, "tenant",
			       active && l->tenant < s->n_tenants ? s->tenants[l->tenant].name
								  : "");
	prefixd_admin_put_bool(r, j, "orphan", l->orphan);
	prefixd_admin_put_text(r, j, "life", l->earlier ? "earlier" : "this");
	prefixd_admin_put_text(r, j, "state", prefixd_stand_to_string(l->stand));
	prefixd_admin_put_real(r, j, "age_s", (double)l->age_ns / 1e9);
}

/* Of a lease that ranks share: who has come, and how far each has committed. */
static void put_ranks(struct prefixd_admin_reply *r, json_t *j, const struct prefixd_lease_info *l)
{
	json_t *list = prefixd_admin_array(r, j, "ranks");

	for (uint32_t i = 0; i < l->n_ranks; i++) {
		const struct prefixd_rank_info rank = prefixd_engine_rank(l, i);
		json_t *one = json_object();

		prefixd_admin_put_u64(r, one, "rank", rank.rank);
		prefixd_admin_put_text(r, one, "state",
				       rank.over   ? "over"
				       : rank.came ? "here"
						   : "not come");
		prefixd_admin_put_u64(r, one, "pid", rank.pid);
		prefixd_admin_put_u64(r, one, "committed", rank.n_committed);
		prefixd_admin_append(r, list, one);
	}
}

static void put_pin(struct prefixd_server *s, struct prefixd_admin_reply *r, json_t *list,
		    const struct prefixd_lease_info *l)
{
	uint32_t runs = RUNS_MAX;
	json_t *j = json_object(), *slots;

	put_owner(s, r, j, l);
	if (l->ns != RADIX_NONE) {
		prefixd_admin_put_u64(r, j, "ns", l->ns);
		prefixd_admin_put_text(r, j, "model", l->model);
		if (l->salted)
			prefixd_admin_put_hex(r, j, "salt", l->salt_digest, sizeof(l->salt_digest));
		prefixd_admin_put_bool(r, j, "island", l->island);
		if (l->headed)
			prefixd_admin_put_hex(r, j, "begins", l->head_digest,
					      sizeof(l->head_digest));
	}
	prefixd_admin_put_u64(r, j, "group", l->group);
	prefixd_admin_put_u64(r, j, "blocks", l->n_blocks);
	prefixd_admin_put_u64(r, j, "reserved", l->n_reserved);
	prefixd_admin_put_u64(r, j, "own", l->n_own);
	prefixd_admin_put_u64(r, j, "bytes", size_of(l));
	if (l->stripe)
		put_ranks(r, j, l);
	slots = prefixd_admin_array(r, j, "slots");
	put_slots(r, slots, l->own, l->n_own, &runs);
	put_slots(r, slots, l->reserved, l->n_reserved, &runs);
	prefixd_admin_append(r, list, j);
}

/* Over all leases that were asked for, those too that are not listed. */
static void put_totals(struct prefixd_server *s, struct prefixd_admin_reply *r, struct pins *p)
{
	uint64_t reserved = 0, orphans = 0, processes = 0, blocks = 0, bytes = 0, oldest = 0;
	uint64_t kept = 0;
	struct prefixd_group_info group;
	char text[1024];
	uint32_t it = 0;

	for (size_t i = 0; i < p->n; i++) {
		reserved += p->v[i].n_reserved;
		orphans += p->v[i].orphan;
		oldest = p->v[i].age_ns > oldest ? p->v[i].age_ns : oldest;
	}
	if (p->n)
		qsort(p->v, p->n, sizeof(*p->v), by_pid);
	for (size_t i = 0; i < p->n; i++)
		processes += i == 0 || p->v[i].pid != p->v[i - 1].pid;
	while (prefixd_engine_next_group(s->engine, &it, &group)) {
		uint64_t n = prefixd_engine_pinned(s->engine, group.id);

		blocks += n;
		bytes += n * group.slot_bytes * group.n_ranks;
		kept += prefixd_engine_kept(s->engine, group.id);
	}
	prefixd_admin_put_u64(r, r->root, "total", p->n);
	prefixd_admin_put_u64(r, r->root, "processes", processes);
	prefixd_admin_put_u64(r, r->root, "orphans", orphans);
	prefixd_admin_put_u64(r, r->root, "reserved", reserved);
	prefixd_admin_put_real(r, r->root, "oldest_s", (double)oldest / 1e9);
	prefixd_admin_put_u64(r, r->root, "pinned_blocks", blocks);
	prefixd_admin_put_u64(r, r->root, "pinned_bytes", bytes);
	prefixd_admin_put_u64(r, r->root, "kept_slots", kept);
	if (prefixd_engine_over(s->engine, text, sizeof(text)))
		prefixd_admin_put_text(r, r->root, "over", text);
}

void prefixd_admin_pins(struct prefixd_server *s, const json_t *args, struct prefixd_admin_reply *r)
{
	const json_t *sort = json_object_get(args, "sort");
	const char *by = sort ? json_string_value(sort) : "age";
	uint64_t max = PINS_DEFAULT;
	struct pins p = { 0 };
	json_t *list;

	if (!prefixd_admin_arg_time(args, "older_s", &p.older_ns, r) ||
	    !prefixd_admin_arg_u64(args, "max", UINT32_MAX, &max, r))
		return;
	if (!by || (strcmp(by, "age") != 0 && strcmp(by, "size") != 0)) {
		prefixd_admin_refuse(r, "sort", "sort must be age or size");
		return;
	}
	if (pins_collect(s, &p) < 0) {
		r->failed = true;
		free(p.v);
		return;
	}
	if (p.n > 1)
		qsort(p.v, p.n, sizeof(*p.v), strcmp(by, "age") == 0 ? older_first : larger_first);
	list = prefixd_admin_array(r, r->root, "pins");
	for (size_t i = 0; i < p.n && i < max; i++)
		put_pin(s, r, list, &p.v[i]);
	put_totals(s, r, &p);
	free(p.v);
}
