/*
 * engine_verify.c - the invariants of README.md, by number.  O(everything); changes nothing but the
 * scratch marks of the groups.
 */
#include "daemon/engine_internal.h"

#include <stdarg.h>
#include <stdio.h>

struct check {
	const struct prefixd_engine *e;
	char *why;
	size_t why_len;
	int broken;
};

/* Notes the first broken rule; false, so that callers can return it. */
__attribute__((format(printf, 3, 4))) static bool broken(struct check *c, int rule, const char *fmt,
							 ...)
{
	va_list ap;

	if (c->broken)
		return false;
	c->broken = rule;
	va_start(ap, fmt);
	vsnprintf(c->why, c->why_len, fmt, ap);
	va_end(ap);
	return false;
}

static const struct prefixd_session *session_at(const struct prefixd_engine *e, uint32_t i)
{
	return radix_container_of(e->sessions.v[i], struct prefixd_session, item);
}

static const struct prefixd_root *root_at(const struct prefixd_engine *e, uint32_t i)
{
	return radix_container_of(e->roots.v[i], struct prefixd_root, item);
}

/* 1, 2: sessions and leases name each other. */
static bool check_sessions(struct check *c)
{
	const struct prefixd_engine *e = c->e;
	uint32_t n_active = 0;

	for (uint32_t i = 0; i < e->sessions.n; i++) {
		const struct prefixd_session *s = session_at(e, i);
		struct radix_list *it;
		const char *ops = prefixd_ops_verify(e, &s->ops);
		uint32_t n = 0;

		if (s->item.pos != i || prefixd_session_find(e, s->number) != s)
			return broken(c, 1, "session %u is not found by its number", s->number);
		if (s->state == PREFIXD_SESSION_FRESH && (s->n_leases || s->n_ns))
			return broken(c, 1, "session %u holds something before HELLO", s->number);
		if (s->state == PREFIXD_SESSION_ORPHAN && s->n_waiting)
			return broken(c, 1, "orphan %u waits for a pool", s->number);
		radix_list_foreach(it, &s->leases) {
			const struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease,
									 link);

			n++;
			n_active += l->state == PREFIXD_LEASE_ACTIVE;
			if (l->session != s ||
			    (l->state != PREFIXD_LEASE_ACTIVE &&
			     l->state != PREFIXD_LEASE_REVOKED && l->state != PREFIXD_LEASE_KEPT &&
			     l->state != PREFIXD_LEASE_SEAT))
				return broken(c, 2, "lease %u is on a foreign list", l->idx);
		}
		if (n != s->n_leases)
			return broken(c, 2, "session %u counts %u leases and has %u", s->number,
				      s->n_leases, n);
		if (ops)
			return broken(c, 9, "session %u: %s", s->number, ops);
	}
	for (uint32_t i = 0; i < e->n_leases; i++)
		n_active += prefixd_is_shared(e->leases[i]) &&
			    e->leases[i]->state == PREFIXD_LEASE_ACTIVE;
	if (n_active != e->n_active)
		return broken(c, 2, "%u leases are active, %u are counted", n_active, e->n_active);
	return true;
}

/* 2, 4, 5: each lease, and the slots it lists. */
static bool check_lease(struct check *c, const struct prefixd_lease *l)
{
	const struct prefixd_group *g = l->group;
	bool active = l->state == PREFIXD_LEASE_ACTIVE;

	if (active != (l->root != NULL) || (!active && l->n_reserved))
		return broken(c, 2, "lease %u has ended in part", l->idx);
	if (active && l->n_reserved > l->n_keys)
		return broken(c, 4, "lease %u reserved more blocks than it has keys", l->idx);
	if (active && l->n_given != l->n_path + l->n_keys)
		return broken(c, 6, "lease %u: %u keys given, %u on the path, %u kept", l->idx,
			      l->n_given, l->n_path, l->n_keys);
	if (active && l->n_path < l->n_device + l->n_host + l->n_redis + l->n_pending)
		return broken(c, 6, "lease %u found more blocks than its path has", l->idx);
	if (active && l->held && l->hold.at.depth <= l->pin.at.depth && prefixd_lease_lower(l) == 0)
		return broken(c, 6, "lease %u holds what its path has", l->idx);
	if (active && prefixd_lease_lower(l) > l->n_keys)
		return broken(c, 6, "lease %u was told of more blocks than it has keys", l->idx);
	if (l->held != (l->hold.link.next != NULL) || (!active && (l->held || l->load)))
		return broken(c, 3, "lease %u holds in part", l->idx);
	for (uint32_t i = 0; i < l->n_own + l->n_reserved; i++) {
		uint32_t slot = i < l->n_own ? l->slots[i] : l->slots[l->res_head + i - l->n_own];
		enum radix_slot_state want = !active        ? RADIX_SLOT_QUARANTINED
					     : i < l->n_own ? RADIX_SLOT_OWN
							    : RADIX_SLOT_RESERVED;

		if (slot >= g->n_slots || g->marks[slot])
			return broken(c, 4, "slot %u is listed twice", slot);
		g->marks[slot] = 1;
		if (radix_slot_state(g->index, slot) != want)
			return broken(c, active ? 4 : 5, "slot %u is %s, lease %u lists it as %s",
				      slot,
				      radix_slot_state_to_string(radix_slot_state(g->index, slot)),
				      l->idx, radix_slot_state_to_string(want));
	}
	return true;
}

struct tally {
	uint64_t own, reserved, quarantined, pins;
};

static bool check_leases(struct check *c)
{
	const struct prefixd_engine *e = c->e;

	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];

		if (l->idx != i)
			return broken(c, 2, "lease %u stands at place %u", l->idx, i);
		if (l->state != PREFIXD_LEASE_FREE && !check_lease(c, l))
			return false;
	}
	return true;
}

/* 3, 4, 5: what the index counts is what the leases list. */
static bool check_group(struct check *c, const struct prefixd_group *g)
{
	const struct prefixd_engine *e = c->e;
	struct tally t = { 0 };
	uint64_t sum = 0, reading;
	struct radix_stats st;

	c->broken = prefixd_loads_verify(e, g, &t.pins, &t.reserved, c->why, c->why_len);
	if (!c->broken)
		c->broken = prefixd_seeks_verify(e, g, &t.pins, c->why, c->why_len);
	if (c->broken)
		return false;
	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];

		if (l->state == PREFIXD_LEASE_FREE || l->group != g)
			continue;
		if (l->state == PREFIXD_LEASE_ACTIVE) {
			t.own += l->n_own;
			t.reserved += l->n_reserved;
			t.pins += 1u + l->held + l->donor_held;
		} else {
			t.quarantined += l->n_own;
		}
	}
	radix_index_stats(g->index, &st);
	for (uint32_t i = 0; i < RADIX_SLOT_N_STATES; i++)
		sum += st.slots[i];
	if (sum != g->n_slots)
		return broken(c, 4, "pool %u: states of %llu of %u slots", g->id,
			      (unsigned long long)sum, g->n_slots);
	if (st.n_pins != t.pins)
		return broken(c, 3, "pool %u: %llu pins, leases hold %llu", g->id,
			      (unsigned long long)st.n_pins, (unsigned long long)t.pins);
	if (st.slots[RADIX_SLOT_RESERVED] != t.reserved || st.slots[RADIX_SLOT_OWN] != t.own)
		return broken(c, 4,
			      "pool %u: %llu reserved and %llu own, leases list %llu and %llu",
			      g->id, (unsigned long long)st.slots[RADIX_SLOT_RESERVED],
			      (unsigned long long)st.slots[RADIX_SLOT_OWN],
			      (unsigned long long)t.reserved, (unsigned long long)t.own);
	/* A slot whose block went while it was copied down is kept back until that has ended. */
	reading = g->n_moving[RADIX_TIER_DEVICE][RADIX_TIER_HOST] +
		  g->n_moving[RADIX_TIER_DEVICE][RADIX_TIER_REDIS];
	t.quarantined += g->n_lost + g->n_landing;
	if (st.slots[RADIX_SLOT_QUARANTINED] < t.quarantined ||
	    st.slots[RADIX_SLOT_QUARANTINED] > t.quarantined + reading)
		return broken(c, 5, "pool %u: %llu slots kept back, %llu listed", g->id,
			      (unsigned long long)st.slots[RADIX_SLOT_QUARANTINED],
			      (unsigned long long)t.quarantined);
	return true;
}

/* 7: the map of roots and the index agree; references add up. */
static bool check_roots(struct check *c)
{
	const struct prefixd_engine *e = c->e;

	for (uint32_t i = 0; i < e->roots.n; i++) {
		const struct prefixd_root *r = root_at(e, i);
		struct prefixd_root_name name = { .ns = r->ns, .tenant = r->tenant };
		uint32_t n = 0;

		name.salt = (struct proto_span){ .p = r->salt, .n = r->salt_len };
		if (r->item.pos != i || (prefixd_root_find(e, &name) == r) == r->detached)
			return broken(c, 7, "a root of namespace %u is not found", r->ns->id);
		if (radix_root_user(r->ns->group->index, r->index_root) != (uint64_t)(uintptr_t)r)
			return broken(c, 7, "index root %u belongs to another", r->index_root);
		for (uint32_t k = 0; k < e->n_leases; k++)
			n += e->leases[k]->state == PREFIXD_LEASE_ACTIVE && e->leases[k]->root == r;
		if (n != r->n_leases)
			return broken(c, 7, "a root counts %u leases and has %u", r->n_leases, n);
		if (n == 0 && !r->n_holds &&
		    (r->detached || radix_root_n_blocks(r->ns->group->index, r->index_root) == 0))
			return broken(c, 7, "an empty root of namespace %u stayed", r->ns->id);
	}
	return true;
}

/* 8: references of namespaces. */
static bool check_namespace(struct check *c, const struct prefixd_namespace *ns)
{
	const struct prefixd_engine *e = c->e;
	uint32_t sessions = 0, roots = 0, waiting = 0;
	struct radix_list *it;

	for (uint32_t i = 0; i < e->sessions.n; i++)
		for (uint32_t k = 0; k < session_at(e, i)->n_ns; k++)
			sessions += session_at(e, i)->ns[k].ns == ns;
	for (uint32_t i = 0; i < e->roots.n; i++)
		roots += root_at(e, i)->ns == ns;
	radix_list_foreach(it, &ns->group->waiting)
		waiting += radix_list_entry(it, struct prefixd_waiting, link)->ns == ns;
	for (uint32_t i = 0; i < e->n_desks; i++) {
		if (!e->desks[i])
			continue;
		radix_list_foreach(it, &e->desks[i]->waiting)
			waiting += radix_list_entry(it, struct prefixd_waiting, link)->ns == ns;
	}
	if (sessions != ns->n_sessions || roots != ns->n_roots ||
	    ns->refs != sessions + roots + waiting + (ns->epoch.n || ns->epoch.nonce) + ns->kept ||
	    ns->refs == 0)
		return broken(c, 8,
			      "namespace %u: %u sessions, %u roots, %u waiting, %u references",
			      ns->id, sessions, roots, waiting, ns->refs);
	return true;
}

/* 10, 11: the sums of the counters. */
static bool check_counters(struct check *c)
{
	const struct prefixd_counters *n = &c->e->counters;
	uint64_t hits = n->hit_device_tokens + n->hit_host_tokens + n->hit_redis_tokens +
			n->hit_pending_tokens;
	uint64_t ended = n->lookups_full + n->lookups_partial + n->lookups_miss;

	if (hits + n->miss_tokens != n->queried_tokens)
		return broken(c, 10, "hits %llu + misses %llu are not the %llu tokens asked for",
			      (unsigned long long)hits, (unsigned long long)n->miss_tokens,
			      (unsigned long long)n->queried_tokens);
	if (n->miss_never_seen + n->miss_diverged + n->miss_below_block + n->miss_no_room +
		    n->miss_pending + n->miss_seed_mismatch + n->miss_declined + n->miss_tier_lost +
		    n->miss_tier_down + n->miss_corrupt !=
	    n->miss_tokens)
		return broken(c, 10, "misses by reason do not add up to misses");
	if (n->lookup_device_blocks + n->lookup_host_blocks + n->lookup_redis_blocks +
		    n->lookup_miss_blocks !=
	    n->queried_blocks)
		return broken(c, 10, "blocks by tier do not add up to those asked for");
	if (n->hit_tail_tokens > n->hit_device_tokens)
		return broken(c, 10, "more tail hits than device hits");
	if (ended + c->e->n_active - c->e->n_restored != n->lookups)
		return broken(c, 11, "%llu leases begun, %llu ended, %u active",
			      (unsigned long long)n->lookups, (unsigned long long)ended,
			      c->e->n_active);
	if (n->leases_released + n->leases_died + n->leases_quiesced + n->leases_revoked != ended)
		return broken(c, 11, "leases by the way they ended do not add up");
	return true;
}

/* 12, 13, 17, 22: budget, times, subscribers, what was left. */
static bool check_rest(struct check *c)
{
	const struct prefixd_engine *e = c->e;
	uint64_t used = 0, last = 0;
	bool kept = false; /* pools of an earlier life may be larger than is allowed now */
	struct radix_list *it;
	const char *events, *fence = prefixd_fence_verify(e);

	for (uint32_t i = 0; i < e->n_groups; i++) {
		used += e->groups[i] ? e->groups[i]->budget : 0;
		kept = kept || (e->groups[i] && e->groups[i]->kept);
	}
	if (used != e->budget_used ||
	    (e->config.pool_bytes && !kept && used > e->config.pool_bytes))
		return broken(c, 12, "pools take %llu bytes, %llu are counted",
			      (unsigned long long)used, (unsigned long long)e->budget_used);
	radix_list_foreach(it, &e->quarantine) {
		const struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		if (l->state != PREFIXD_LEASE_QUARANTINE || l->session || l->due_ns < last)
			return broken(c, 13, "the quarantine is out of order at lease %u", l->idx);
		last = l->due_ns;
	}
	if (fence)
		return broken(c, 22, "%s", fence);
	fence = prefixd_lost_verify(e);
	if (fence)
		return broken(c, 24, "%s", fence);
	events = prefixd_events_verify(e);
	return events ? broken(c, 17, "%s", events) : true;
}

int prefixd_engine_verify(const struct prefixd_engine *e, char *why, size_t why_len)
{
	struct check c = { .e = e, .why = why, .why_len = why_len };
	int r;

	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i])
			memset(e->groups[i]->marks, 0, e->groups[i]->n_slots);
	if (!check_sessions(&c) || !check_leases(&c) || !check_roots(&c) || !check_counters(&c) ||
	    !check_rest(&c))
		return c.broken;
	r = prefixd_stripes_verify(e, why, why_len);
	if (r == 0)
		r = prefixd_pending_verify(e, why, why_len);
	if (r == 0)
		r = prefixd_note_verify(e, why, why_len);
	if (r == 0)
		r = prefixd_room_verify(e, why, why_len);
	if (r == 0)
		r = prefixd_desks_verify(e, why, why_len);
	if (r)
		return r;
	for (uint32_t i = 0; i < e->namespaces.n; i++)
		if (!check_namespace(&c, radix_container_of(e->namespaces.v[i],
							    struct prefixd_namespace, item)))
			return c.broken;
	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct prefixd_group *g = e->groups[i];

		if (!g || g->state == PREFIXD_GROUP_CREATING)
			continue;
		if (!check_group(&c, g))
			return c.broken;
		r = radix_verify(g->index, why, why_len);
		if (r)
			return 100 + r;
	}
	return 0;
}
