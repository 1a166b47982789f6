/*
 * lost.c - devices that are lost, with all that lies on them, and work again a while later.
 *
 * Whatever is under way, sessions that opened a namespace of the pool hear of it at once (those of
 * version 3), every wait, load and RESERVE of its leases ends, and the next request on each of them
 * is told, once.  Nobody is given a slot of the pool before it has memory again and he opened it
 * again, under another name.  What lies lower with all that comes before it stays.
 *
 * What a worker has of the memory that is gone is his alone: his claims end.
 */
#include "tests/sim/lost.h"

#include "radix/internal.h"
#include "tests/lib/world_internal.h"
#include "tests/sim/sim_internal.h"

enum {
	MAX_ENTRIES = 8192
};

/* ---- what must stay -------------------------------------------------------------------------- */

/*
 * Where an entry and all before it have lower copies: in host memory all of them, or so many from
 * the beginning on and in Redis all others.
 */
enum stands {
	UNKNOWN,
	NOWHERE,
	IN_REDIS,
	IN_HOST
};

static struct {
	uint8_t stands[MAX_ENTRIES];
	bool torn[MAX_ENTRIES]; /* Redis has it, host memory has not, but one right below it */
	uint64_t generations[MAX_ENTRIES];
	uint32_t n;
} below;

static enum stands stands(const struct radix_index *ix, uint32_t i)
{
	const struct radix_entry *e = &ix->table.v[i];
	enum stands up = IN_HOST;
	uint32_t parent;

	if (below.stands[i] != UNKNOWN)
		return below.stands[i];
	parent = e->state == RADIX_ENTRY_READY ? radix_entry_parent(e) : RADIX_NONE;
	if (e->state != RADIX_ENTRY_READY)
		up = NOWHERE;
	else if (parent != RADIX_NONE)
		up = stands(ix, parent);
	if (up == IN_HOST && radix_entry_host(e) != RADIX_NONE)
		below.stands[i] = IN_HOST;
	else if (up != NOWHERE && radix_entry_redis(e))
		below.stands[i] = IN_REDIS;
	else
		below.stands[i] = NOWHERE;
	return below.stands[i];
}

/* Blocks that went for other reasons than the device's: an epoch that was over, and held yet. */
static uint64_t removed(struct sim *s, uint32_t group)
{
	struct radix_stats st;
	uint64_t n = 0;

	world_stats(&s->w, group, &st);
	for (uint32_t i = 0; i < radix_array_size(st.removed); i++)
		n += i == RADIX_REMOVE_DEVICE ? 0 : st.removed[i];
	return n;
}

/* It or a block before it is torn: no tier has the path to its end, and it may go. */
static bool may_go(const struct radix_index *ix, uint32_t i)
{
	for (; i != RADIX_NONE; i = radix_entry_parent(&ix->table.v[i]))
		if (below.torn[i])
			return true;
	return false;
}

static void look_below(struct sim *s, const struct radix_index *ix)
{
	below.n = ix->table.n_used;
	world_check(&s->w, below.n <= MAX_ENTRIES);
	memset(below.stands, UNKNOWN, below.n);
	memset(below.torn, 0, sizeof(below.torn));
	for (uint32_t i = 0; i < below.n; i++) {
		const struct radix_entry *e = &ix->table.v[i];
		uint32_t parent = radix_entry_parent(e);

		(void)stands(ix, i);
		below.generations[i] = e->generation;
		if (e->state == RADIX_ENTRY_READY && parent != RADIX_NONE &&
		    radix_entry_host(e) != RADIX_NONE &&
		    radix_entry_host(&ix->table.v[parent]) == RADIX_NONE)
			below.torn[parent] = true;
	}
	for (uint32_t i = 0; i < below.n; i++)
		if (ix->table.v[i].state == RADIX_ENTRY_READY && may_go(ix, i))
			below.stands[i] = NOWHERE;
}

/* Nothing was under way: the device's blocks are gone, and nothing else is. */
static void check_below(struct sim *s, const struct radix_index *ix)
{
	for (uint32_t i = 0; i < below.n; i++) {
		const struct radix_entry *e = &ix->table.v[i];

		if (below.stands[i] == NOWHERE)
			continue;
		if (e->state != RADIX_ENTRY_READY || e->generation != below.generations[i])
			world_fail(&s->w,
				   "entry %u lay lower, with all before it, and went with the "
				   "device",
				   i);
		s->result->kept_lower++;
	}
}

static bool is_wanted(const struct sim *s, uint32_t group)
{
	for (uint32_t i = 0; i < s->w.n_wanted; i++)
		if (s->w.wanted[i].group == group)
			return true;
	return false;
}

/* ---- the loss -------------------------------------------------------------------------------- */

static void drop_claims(struct sim_claims *all, uint32_t group)
{
	for (uint32_t i = 0; i < all->n;)
		if (all->v[i].group == group)
			all->v[i] = all->v[--all->n];
		else
			i++;
}

static bool in_group(const struct sim *s, uint32_t root, uint32_t group)
{
	return s->ns_group[universe_roots[root].ns] == group;
}

/* Nobody has anything of it any more, whether he knows it or not. */
static void let_go(struct sim *s, uint32_t group)
{
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++)
		drop_claims(&s->procs[i].claims, group);
	drop_claims(&s->ghosts, group);
	if (group == s->ranks_group)
		sim_ranks_lost(s);
	for (uint32_t i = 0; i < s->n_known; i++)
		if (in_group(s, s->known[i].p.root, group))
			s->known[i].audited = false;
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		struct sim_session *se = &s->sessions[i];

		for (uint32_t k = 0; k < SIM_LEASES; k++) {
			struct sim_lease *l = &se->leases[k];

			if (!l->used || !in_group(s, l->p.root, group))
				continue;
			l->lost = true;
			l->lead_path = 0;
		}
	}
}

static bool has_open(const struct sim *s, const struct sim_session *se, uint32_t group)
{
	if (sim_session_idx(s, se) >= SIM_SESSIONS)
		return se->opened[0] && s->ranks_group == group;
	for (uint32_t k = 0; k < UNIVERSE_NS; k++)
		if (se->opened[k] && s->ns_group[k] == group)
			return true;
	return false;
}

static void check_told(struct sim *s, uint32_t group, const uint32_t *before)
{
	for (uint32_t i = 0; i < SIM_ALL_SESSIONS; i++) {
		struct sim_session *se = &s->sessions[i];
		uint32_t must;

		if (!se->c)
			continue;
		must = se->c->version >= 3 && has_open(s, se, group);
		if (se->c->n_lost - before[i] != must || (must && se->c->lost_seq != group))
			world_fail(&s->w, "session %u was told %u times that its device is lost", i,
				   se->c->n_lost - before[i]);
		if (i >= SIM_SESSIONS) {
			se->opened[0] &= s->ranks_group != group;
			continue;
		}
		for (uint32_t k = 0; k < UNIVERSE_NS; k++)
			se->opened[k] &= s->ns_group[k] != group;
		for (uint32_t k = 0; k < SIM_LEASES; k++) {
			const struct sim_lease *l = &se->leases[k];

			if (l->used && l->lost && (l->reserving || l->waiting || l->loading))
				world_fail(&s->w, "lease %llu waits for a device that is lost",
					   (unsigned long long)l->id);
		}
	}
}

void sim_device_lose(struct sim *s, uint32_t group)
{
	uint32_t before[SIM_ALL_SESSIONS] = { 0 };
	uint64_t n;

	if (s->w.engine)
		sim_hear(s); /* what was told before */
	for (uint32_t i = 0; i < SIM_ALL_SESSIONS; i++)
		before[i] = s->sessions[i].c ? s->sessions[i].c->n_lost : 0;
	s->result->devices++;
	s->devices[group].lost = true;
	s->devices[group].life++;
	s->devices_back = s->op + (sim_more(s, 200) ? 0 : sim_more_below(s, 60));
	s->w.config.hold_pools = true;
	let_go(s, group);
	if (!s->w.engine) {
		world_pool_lost(&s->w, group);
		return;
	}
	look_below(s, world_index(&s->w, group));
	n = removed(s, group);
	world_pool_lost(&s->w, group);
	if (!s->w.engine)
		return;
	if (is_wanted(s, group) && removed(s, group) == n)
		check_below(s, world_index(&s->w, group));
	sim_hear(s);
	check_told(s, group, before);
	if (group == s->ranks_group)
		sim_ranks_told(s);
}

void sim_device_lose_some(struct sim *s)
{
	uint32_t g = sim_more_below(s, WORLD_GROUPS);

	for (uint32_t i = 0; i < WORLD_GROUPS; i++, g = (g + 1) % WORLD_GROUPS) {
		if (!s->w.pools[g].pool || s->w.pools[g].lost)
			continue;
		if (!s->down && !world_index(&s->w, g))
			continue;
		sim_device_lose(s, g);
		return;
	}
}

/* ---- the way back ---------------------------------------------------------------------------- */

bool sim_devices_lost(const struct sim *s)
{
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		if (s->devices[i].lost)
			return true;
	return false;
}

static void see_who_is_back(struct sim *s)
{
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		s->devices[i].lost &= s->w.pools[i].lost;
	if (!sim_devices_lost(s))
		s->w.config.hold_pools = false;
}

void sim_devices_turn(struct sim *s)
{
	if (s->down || !sim_devices_lost(s) || s->op < s->devices_back)
		return;
	/* It may take a while yet, which the daemon doubles. */
	if (sim_more(s, 300)) {
		world_pool_answer(&s->w, false);
		s->devices_back = s->op + sim_more_below(s, 20);
		if (s->w.engine && sim_more(s, 700))
			world_advance(&s->w, 2000000000);
		return;
	}
	s->w.config.hold_pools = false;
	world_pool_answer(&s->w, true);
	if (s->w.engine)
		see_who_is_back(s);
}

void sim_devices_mend(struct sim *s)
{
	s->w.config.hold_pools = false;
	world_pool_answer(&s->w, true);
	if (s->w.engine)
		see_who_is_back(s);
}

/* ---- what workers are told ------------------------------------------------------------------- */

void sim_device_mapped(struct sim *s, struct sim_session *se, uint32_t ns,
		       const struct proto_open_rep *rep)
{
	struct sim_device *d = &s->devices[rep->group];
	bool same = memcmp(&d->pool, &rep->pool, sizeof(d->pool)) == 0;

	if (s->w.pools[rep->group].lost)
		world_fail(&s->w, "pool %u is opened, and its device is lost", rep->group);
	if (same && d->named != d->life)
		world_fail(&s->w, "pool %u has other memory, and its name still", rep->group);
	d->pool = rep->pool;
	d->named = d->life;
	se->opened[ns] = true;
	se->mapped[ns] = d->life;
	se->window[ns] = rep->window;
}

static int told_as(const struct sim_session *se, int older)
{
	return se->c->version < 3 ? older : PROTO_STATUS_DEVICE_LOST;
}

bool sim_device_refused(struct sim *s, const struct sim_session *se, uint32_t ns, int status)
{
	if (s->devices[s->ns_group[ns]].lost && status == told_as(se, PROTO_STATUS_BUSY))
		return true;
	if (!se->opened[ns] && status == PROTO_STATUS_UNKNOWN_NAMESPACE)
		return true;
	return false;
}

bool sim_device_over(struct sim *s, const struct sim_session *se, const struct sim_lease *l,
		     int status)
{
	if (!l->lost)
		return false;
	if (status != told_as(se, PROTO_STATUS_REVOKED))
		world_fail(&s->w, "lease %llu is answered %s, and its device was lost",
			   (unsigned long long)l->id, proto_status_to_string((uint16_t)status));
	return true;
}

static int ask(struct sim *s, struct sim_session *se, const struct sim_lease *l)
{
	struct proto_release_req release = { .lease = l->id };
	struct proto_release_rep released;
	struct proto_commit_req commit = { .lease = l->id, .n = 1 };
	struct proto_commit_rep committed;
	struct proto_reserve_req reserve = { .lease = l->id, .n = 1 };
	struct proto_reserve_rep reserved;
	struct proto_extend_req extend = { .lease = l->id, .n_tokens = l->n_tokens };
	struct proto_match_rep extended;
	struct proto_wait_req wait = { .lease = l->id };
	struct proto_wait_rep waited;

	switch (sim_more_below(s, 5)) {
	case 0:
		return world_release(se->c, &release, &released);
	case 1:
		return world_commit(se->c, &commit, &committed);
	case 2:
		return world_reserve(se->c, &reserve, &reserved);
	case 3:
		return world_extend(se->c, &extend, &extended);
	default:
		return world_wait(se->c, &wait, &waited);
	}
}

void sim_device_told(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	int status = ask(s, se, l);

	if (sim_over(s, se, NULL, status))
		return;
	(void)sim_device_over(s, se, l, status);
	s->result->told_lost++;
	l->used = false;
	if (!sim_more(s, 300))
		return;
	status = ask(s, se, l);
	world_check(&s->w, sim_over(s, se, NULL, status) || status == PROTO_STATUS_UNKNOWN_LEASE);
}
