/*
 * engine_fence.c - slots that nobody can have because who held them left: how many, whose, and when
 * that is too many.
 *
 * What it guarantees. Kept from use are the slots of a pool that are quarantined, and what orphans
 * hold: slots that they had reserved or own, and the blocks of their leases' paths, each block
 * once. When these are more than half of a pool the daemon says so in its log, and again when they
 * are not any more; prefixd_engine_over() says it to whoever asks. Nothing is reused early for it.
 *
 * What it relies on.  Whatever makes or ends an orphan's lease, or a quarantine, calls
 * prefixd_fence_left(), prefixd_fence_done() or prefixd_fence_stir().
 *
 * A bound is kept with every change: paths as if no two orphans shared a block (what is hung above
 * an orphan's island later is not in it). Only while that is above half are the blocks counted, and
 * not more often than four times a second, so that a crowd of orphans that come and go costs
 * little.
 */
#include "daemon/engine_internal.h"

#include <stdarg.h>
#include <stdio.h>

#define COUNT_AGAIN_NS 250000000u
#define PROCESSES_TOLD 8u
#define PROCESSES_SEEN 64u /* of so many the ones with the most are told */
#define RUNS_TOLD      6u

/* ---- the bound ------------------------------------------------------------------------------- */

void prefixd_fence_stir(struct prefixd_group *g)
{
	g->fence_stirred = true;
}

void prefixd_fence_left(struct prefixd_lease *l)
{
	if (l->state != PREFIXD_LEASE_ACTIVE || l->left)
		return;
	l->left = (uint64_t)l->pin.at.depth + l->n_own + l->n_reserved;
	if (l->donor_held)
		l->left += l->donor.at.depth;
	l->group->n_left += l->left;
	prefixd_fence_stir(l->group);
}

void prefixd_fence_done(struct prefixd_lease *l)
{
	if (!l->left)
		return;
	l->group->n_left -= l->left;
	l->left = 0;
	prefixd_fence_stir(l->group);
}

static uint64_t quarantined(const struct prefixd_group *g)
{
	struct radix_stats st;

	radix_index_stats(g->index, &st);
	return st.slots[RADIX_SLOT_QUARANTINED];
}

/* ---- counting -------------------------------------------------------------------------------- */

static bool is_orphans(const struct prefixd_lease *l)
{
	return l->state == PREFIXD_LEASE_ACTIVE && l->session &&
	       l->session->state == PREFIXD_SESSION_ORPHAN;
}

/* What orphans hold of the group; of one process only unless pid is RADIX_NONE. */
static uint64_t held_by_orphans(const struct prefixd_engine *e, const struct prefixd_group *g,
				uint32_t pid)
{
	struct prefixd_holds h = prefixd_holds_begin(e);
	struct radix_list *it;

	for (uint32_t i = 0; i < e->sessions.n && e->n_orphans; i++) {
		const struct prefixd_session *s = radix_container_of(e->sessions.v[i],
								     struct prefixd_session, item);

		if (s->state != PREFIXD_SESSION_ORPHAN || (pid != RADIX_NONE && s->peer.pid != pid))
			continue;
		radix_list_foreach(it, &s->leases) {
			const struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease,
									 link);

			l = prefixd_lease_counts(l);
			if (l && l->group == g && l->state == PREFIXD_LEASE_ACTIVE)
				prefixd_holds_add(&h, l);
		}
	}
	return prefixd_holds_end(&h, g);
}

static uint64_t kept(const struct prefixd_engine *e, const struct prefixd_group *g)
{
	return quarantined(g) + held_by_orphans(e, g, RADIX_NONE);
}

uint64_t prefixd_engine_kept(const struct prefixd_engine *e, uint32_t group)
{
	const struct prefixd_group *g = group < e->n_groups ? e->groups[group] : NULL;

	return g && g->state == PREFIXD_GROUP_READY ? kept(e, g) : 0;
}

/* ---- who ------------------------------------------------------------------------------------- */

struct text {
	char *p;
	size_t len, n;
};

/* What does not fit is cut. */
__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (t->n + 1 >= t->len)
		return;
	va_start(ap, fmt);
	n = vsnprintf(t->p + t->n, t->len - t->n, fmt, ap);
	va_end(ap);
	if (n > 0)
		t->n = radix_min_u64(t->n + (size_t)n, t->len - 1);
}

/* Of one process: what its orphans hold, and its slots in quarantine. */
struct left {
	uint32_t pid;
	uint64_t n;
};

/* Slots that a lease wrote, or may have, and that others cannot have because of how it ended. */
static uint32_t kept_slots(const struct prefixd_lease *l)
{
	if (l->state == PREFIXD_LEASE_REVOKED || l->state == PREFIXD_LEASE_QUARANTINE)
		return l->n_own;
	return is_orphans(l) ? l->n_own + l->n_reserved : 0;
}

static uint32_t slot_at(const struct prefixd_lease *l, uint32_t i)
{
	return i < l->n_own ? l->slots[i] : l->slots[l->res_head + i - l->n_own];
}

static uint64_t left_by(const struct prefixd_engine *e, const struct prefixd_group *g, uint32_t pid)
{
	uint64_t n = held_by_orphans(e, g, pid);

	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];

		if (l->group == g && l->pid == pid && !is_orphans(l))
			n += kept_slots(l);
	}
	return n;
}

/* The processes that keep something, those with the most first.  Returns how many are told. */
static uint32_t who_left(const struct prefixd_engine *e, const struct prefixd_group *g,
			 struct left v[PROCESSES_TOLD])
{
	uint32_t n = 0, seen = 0, known = RADIX_NONE;

	for (uint32_t i = 0; i < e->n_leases && seen < PROCESSES_SEEN; i++) {
		const struct prefixd_lease *l = e->leases[i];
		struct left it = { .pid = l->pid };
		uint32_t k = 0, at;

		if (l->state == PREFIXD_LEASE_FREE || l->group != g || l->pid == known ||
		    !(is_orphans(l) || kept_slots(l)))
			continue;
		known = l->pid; /* the leases of one process often stand together */
		while (k < n && v[k].pid != it.pid)
			k++;
		if (k < n)
			continue;
		seen++;
		it.n = left_by(e, g, it.pid);
		if (it.n == 0 || (n == PROCESSES_TOLD && v[n - 1].n >= it.n))
			continue;
		n += n < PROCESSES_TOLD;
		for (at = n - 1; at > 0 && v[at - 1].n < it.n; at--)
			v[at] = v[at - 1];
		v[at] = it;
	}
	return n;
}

static void tell_run(struct text *t, struct radix_run run, uint32_t *runs)
{
	if (run.len == 0 || *runs > RUNS_TOLD)
		return;
	if (++*runs > RUNS_TOLD)
		add(t, " and more");
	else if (run.len == 1)
		add(t, "%s %u", *runs == 1 ? " and may write" : "", run.start);
	else
		add(t, "%s %u-%u", *runs == 1 ? " and may write" : "", run.start,
		    run.start + run.len - 1);
}

/* The slots among them that may still be written, as runs: "3-9 12". */
static void tell_slots(const struct prefixd_engine *e, const struct prefixd_group *g, uint32_t pid,
		       struct text *t)
{
	struct radix_run run = { 0 };
	uint32_t runs = 0;

	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];
		bool its = l->state != PREFIXD_LEASE_FREE && l->group == g && l->pid == pid;
		uint32_t n = its ? kept_slots(l) : 0;

		for (uint32_t k = 0; k < n; k++) {
			uint32_t slot = slot_at(l, k);

			if (run.len && slot == run.start + run.len) {
				run.len++;
				continue;
			}
			tell_run(t, run, &runs);
			run = (struct radix_run){ .start = slot, .len = 1 };
		}
	}
	tell_run(t, run, &runs);
}

static void tell_group(const struct prefixd_engine *e, const struct prefixd_group *g,
		       struct text *t)
{
	struct left v[PROCESSES_TOLD];
	uint32_t n = who_left(e, g, v);

	add(t,
	    "pool %u: %llu of %u slots, more than half, are kept from use since who held them "
	    "left:",
	    g->id, (unsigned long long)kept(e, g), g->n_slots);
	for (uint32_t i = 0; i < n; i++) {
		add(t, "%s pid %u keeps %llu", i ? ";" : "", v[i].pid, (unsigned long long)v[i].n);
		tell_slots(e, g, v[i].pid, t);
	}
	add(t, "; they come back when these processes end or say QUIESCED");
}

bool prefixd_engine_over(const struct prefixd_engine *e, char *text, size_t len)
{
	struct text t = { .p = text, .len = len };
	bool over = false;

	if (len)
		text[0] = '\0';
	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct prefixd_group *g = e->groups[i];

		if (!g || !g->over)
			continue;
		over = true;
		if (len == 0)
			break;
		if (t.n)
			add(&t, "\n");
		tell_group(e, g, &t);
	}
	return over;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

static void over_now(struct prefixd_engine *e, struct prefixd_group *g, bool over)
{
	char text[1024];
	struct text t = { .p = text, .len = sizeof(text) };

	if (over == g->over)
		return;
	g->over = over;
	if (over) {
		e->counters.times_over++;
		tell_group(e, g, &t);
		prefixd_log(e, PREFIXD_LOG_WARN, "%s", text);
	} else {
		prefixd_log(e, PREFIXD_LOG_INFO,
			    "pool %u: half of its slots or less are kept from use again", g->id);
	}
}

void prefixd_fence_settle(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct prefixd_group *g = e->groups[i];
		uint64_t sure;

		if (!g || !g->fence_stirred || g->state != PREFIXD_GROUP_READY)
			continue;
		sure = quarantined(g);
		if (2 * sure > g->n_slots || 2 * (g->n_left + sure) <= g->n_slots) {
			g->fence_stirred = false;
			over_now(e, g, 2 * sure > g->n_slots);
		} else if (e->now_ns >= g->fence_again_ns) {
			g->fence_stirred = false;
			g->fence_again_ns = e->now_ns + COUNT_AGAIN_NS;
			over_now(e, g, 2 * kept(e, g) > g->n_slots);
		}
	}
}

uint64_t prefixd_fence_deadline(const struct prefixd_engine *e)
{
	uint64_t due = UINT64_MAX;

	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i] && e->groups[i]->fence_stirred &&
		    e->groups[i]->state == PREFIXD_GROUP_READY)
			due = radix_min_u64(due, e->groups[i]->fence_again_ns);
	return due;
}

const char *prefixd_fence_verify(const struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct prefixd_group *g = e->groups[i];
		uint64_t bound = 0;

		if (!g || g->state != PREFIXD_GROUP_READY)
			continue;
		for (uint32_t k = 0; k < e->n_leases; k++) {
			const struct prefixd_lease *l = e->leases[k];

			if (l->state == PREFIXD_LEASE_FREE || l->group != g)
				continue;
			if (l->left && !is_orphans(l))
				return "a lease that is no orphan's counts as one";
			bound += l->left;
		}
		if (bound != g->n_left)
			return "what orphans hold at most does not add up";
		if (!g->fence_stirred && g->over && 2 * kept(e, g) <= g->n_slots)
			return "a pool is said to be over and is not";
	}
	return NULL;
}
