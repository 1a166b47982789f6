/*
 * engine_lost.c - a group whose device is lost: who held something lets go of it, what lies lower
 * stays, and the memory is asked for anew.
 *
 *     READY --POOL_LOST--> LOSING --moves have ended--> LOST --POOL_READY--> READY
 *                          leases end    POOL_CREATE, again and again, later each time
 *
 * What it guarantees.  From POOL_LOST on no slot of that memory is named to anybody: leases of the
 * group are revoked at once, and OPEN, MATCH, PROBE and PREFETCH answer DEVICE_LOST until there is
 * memory again (to sessions of older versions BUSY, and about such a lease REVOKED).  Nothing waits
 * for a worker: what he wrote, or still writes, lies in memory that is not used again, so
 * reservations and quarantines end too.  Blocks with copies in lower tiers stay members, as far as
 * all before them have copies there.  The new memory has another name.  Nothing of this needs
 * memory but the LOST frames, which go out later where there is none.
 *
 * What it relies on.  The shell answers the moves that are under way.  What it keeps of the old
 * memory for another life it has dropped before it says POOL_LOST.
 */
#include "daemon/engine_lost.h"

#include "daemon/engine_internal.h"

#define FIRST_NS   1000000000ull  /* after the first answer that there is no memory */
#define LONGEST_NS 60000000000ull /* doubled up to this */
#define TELL_NS    1000000u       /* until LOST frames are tried again */
#define LOST_ROOM  320u           /* of a LOST frame, as of other small ones */
#define NEVER      UINT64_MAX

static const char text[] = "the device of this pool is lost, and its memory with it: let go of "
			   "it, compute, and OPEN again later";

bool prefixd_group_lost(const struct prefixd_group *g)
{
	return g->state == PREFIXD_GROUP_LOSING || g->state == PREFIXD_GROUP_LOST;
}

static uint32_t retry_us(const struct prefixd_engine *e, const struct prefixd_group *g)
{
	uint64_t due = g->lost_again_ns, ns = FIRST_NS;

	if (due != NEVER && due > e->now_ns)
		ns = due - e->now_ns;
	return (uint32_t)(ns / 1000);
}

void prefixd_refuse_lost(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_group *g, enum proto_status older)
{
	struct proto_error m = {
		.field = { .p = "pool", .n = 4 },
		.text = { .p = text, .n = sizeof(text) - 1 },
		.retry_after_us = retry_us(e, g),
	};

	prefixd_refuse_as(e, rq, rq->s->version < 3 ? older : PROTO_STATUS_DEVICE_LOST, &m);
}

bool prefixd_lost_refuse(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_group *g)
{
	if (!prefixd_group_lost(g))
		return false;
	e->counters.refused_lost++;
	prefixd_refuse_lost(e, rq, g, PROTO_STATUS_BUSY);
	return true;
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* Slots that were kept back: the memory that somebody may still write is not used again. */
static void slots_end(struct prefixd_engine *e, struct prefixd_lease *l)
{
	for (uint32_t i = 0; i < l->n_own; i++) {
		int r = radix_quarantine_end(l->group->index, l->slots[i]);

		radix_assert(r == 0);
	}
	l->n_own = 0;
	l->lost = true;
	prefixd_note_lease_moved(e, l);
}

/* One that ranks share: each of its seats is looked at as a lease of its own. */
static void shared_lost(struct prefixd_engine *e, struct prefixd_lease *l)
{
	if (l->state == PREFIXD_LEASE_ACTIVE) {
		prefixd_load_fail(e, l);
		prefixd_stripe_revoke(e, l->stripe);
	}
	if (prefixd_is_shared(l)) /* else no rank holds it */
		slots_end(e, l);
}

static void lease_lost(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_session *s = l->session;

	if (l->stripe)
		shared_lost(e, l->stripe->lease);
	if (prefixd_is_shared(l))
		return;
	if (l->state == PREFIXD_LEASE_ACTIVE) {
		prefixd_load_fail(e, l);
		prefixd_lease_finish(e, l, PREFIXD_END_REVOKED, NULL);
	}
	if (l->state == PREFIXD_LEASE_QUARANTINE) {
		(void)prefixd_lease_unquarantine(e, l);
		return;
	}
	if (l->state != PREFIXD_LEASE_REVOKED)
		return; /* it is over */
	slots_end(e, l);
	if (l->desk) /* it is lost too */
		prefixd_places_free(l);
	if (s->state != PREFIXD_SESSION_ORPHAN)
		return; /* it is told when it asks */
	(void)prefixd_lease_unquarantine(e, l);
	if (radix_list_empty(&s->leases) && prefixd_actions_room(e, 1) == 0)
		prefixd_session_die(e, s, PREFIXD_END_REVOKED);
}

/* ---- telling --------------------------------------------------------------------------------- */

static bool is_told(const struct prefixd_session *s, const struct prefixd_group *g)
{
	if (s->state != PREFIXD_SESSION_READY || s->version < 3)
		return false;
	for (uint32_t i = 0; i < s->n_ns; i++)
		if (s->ns[i].ns->group == g && !s->ns[i].closed)
			return true;
	return false;
}

static void tell(struct prefixd_engine *e, struct prefixd_session *s, const struct prefixd_group *g)
{
	struct proto_header h = { .op = PROTO_OP_LOST, .seq = g->id };
	struct prefixd_request rq = { .s = s, .h = &h };
	struct proto_error m = {
		.field = { .p = "pool", .n = 4 },
		.text = { .p = text, .n = sizeof(text) - 1 },
		.retry_after_us = retry_us(e, g),
	};

	prefixd_say(e, &rq, PROTO_STATUS_DEVICE_LOST, &m);
}

/* Room for one frame to each session.  Before anything was emitted.  Return: 0, -ENOMEM. */
static int tell_room(struct prefixd_engine *e)
{
	size_t bytes = prefixd_out_total(e->config.limits.max_frame, e->waits_cap, e->later_cap);
	uint32_t n = 64 + e->waits_cap + e->later_cap;

	return prefixd_out_reserve(e, bytes + (size_t)e->sessions.n * LOST_ROOM, n + e->sessions.n);
}

/* Who was told before there was no more room is told once more. */
static void tell_all(struct prefixd_engine *e, struct prefixd_group *g, int room)
{
	g->tell_again_ns = room < 0 ? e->now_ns + TELL_NS : NEVER;
	for (uint32_t i = 0; room == 0 && i < e->sessions.n; i++) {
		struct prefixd_session *s = radix_container_of(e->sessions.v[i],
							       struct prefixd_session, item);

		if (!is_told(s, g))
			continue;
		if (prefixd_out_left(e) < LOST_ROOM || prefixd_actions_room(e, 1) < 0) {
			g->tell_again_ns = e->now_ns + TELL_NS;
			return;
		}
		tell(e, s, g);
	}
}

/* ---- the end of the old memory --------------------------------------------------------------- */

void prefixd_pool_lost(struct prefixd_engine *e, uint32_t group)
{
	struct prefixd_group *g = group < e->n_groups ? e->groups[group] : NULL;
	int room;

	if (!g || !g->index || prefixd_group_lost(g))
		return;
	room = tell_room(e);
	g->state = PREFIXD_GROUP_LOSING;
	g->lost_again_ns = NEVER;
	g->lost_for_ns = 0;
	g->n_corrupt = 0;
	prefixd_checks_stop(e, g);
	e->counters.pools_lost++;
	prefixd_open_answer(e, g, &g->waiting, PROTO_STATUS_DEVICE_LOST, text);
	for (uint32_t i = 0; i < e->n_leases; i++)
		if (e->leases[i]->group == g)
			lease_lost(e, e->leases[i]);
	prefixd_desks_lost(e, g, text);
	prefixd_loads_end(e, g);
	radix_list_remove(&g->stirred);
	g->line_due_ns = g->again_ns = NEVER;
	g->fence_stirred = g->over = false;
	tell_all(e, g, room);
}

/* Nothing of it is under way, and everybody was told. */
static bool is_still(const struct prefixd_group *g)
{
	struct radix_stats st;

	for (uint32_t t = RADIX_TIER_HOST; t < RADIX_N_TIERS; t++)
		if (g->n_moving[RADIX_TIER_DEVICE][t] || g->n_moving[t][RADIX_TIER_DEVICE])
			return false;
	radix_index_stats(g->index, &st);
	return st.n_pins == 0 && g->n_landing == 0 && g->tell_again_ns == NEVER;
}

/* Asks for memory.  False: no room for the action; in a while. */
static void ask(struct prefixd_engine *e, struct prefixd_group *g)
{
	if (prefixd_actions_room(e, 1) < 0) {
		g->lost_again_ns = e->now_ns + TELL_NS;
		return;
	}
	g->lost_again_ns = NEVER;
	g->asked = true;
	prefixd_group_create(e, g);
}

static void forget(struct prefixd_engine *e, struct prefixd_group *g)
{
	uint64_t n = radix_device_lost(g->index);
	bool noted = g->noted;

	g->state = PREFIXD_GROUP_LOST;
	g->reap = true;
	g->renewed = true;
	/* The old name goes before anybody could take new memory for the old one. */
	prefixd_note_group_gone(e, g);
	prefixd_group_name(e, g);
	if (noted)
		prefixd_note_group(e, g);
	prefixd_log(e, PREFIXD_LOG_WARN,
		    "pool %u: its memory is gone, and %llu blocks with it; what lower tiers have "
		    "stays",
		    g->id, (unsigned long long)n);
	ask(e, g);
}

void prefixd_lost_settle(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i] && e->groups[i]->state == PREFIXD_GROUP_LOSING &&
		    is_still(e->groups[i]))
			forget(e, e->groups[i]);
}

/* ---- new memory ------------------------------------------------------------------------------ */

/*
 * Whoever had it mapped has the memory that is gone: his namespaces are not open any more, so that
 * no slot of the new memory is named to him before he has that.  A subscriber hears on: of what
 * went with the memory, and of what is stored in the new one.
 */
static void close_namespaces(struct prefixd_engine *e, const struct prefixd_group *g)
{
	for (uint32_t i = 0; i < e->sessions.n; i++) {
		struct prefixd_session *s = radix_container_of(e->sessions.v[i],
							       struct prefixd_session, item);
		uint32_t n = 0;

		for (uint32_t k = 0; k < s->n_ns; k++) {
			struct prefixd_namespace *ns = s->ns[k].ns;

			if (ns->group != g || s->subscriber) {
				s->ns[n] = s->ns[k];
				s->ns[n++].closed = s->ns[k].closed || ns->group == g;
				continue;
			}
			ns->n_sessions--;
			prefixd_namespace_unref(e, ns);
		}
		s->n_ns = n;
	}
}

void prefixd_lost_ready(struct prefixd_engine *e, struct prefixd_group *g,
			const struct prefixd_event *event)
{
	radix_assert(event->u.pool.slot_stride == g->slot_stride);
	g->asked = false;
	g->lost_for_ns = 0;
	prefixd_group_memory(g, event);
	close_namespaces(e, g);
	prefixd_group_open(e, g);
	prefixd_fence_stir(g);
	prefixd_room_stir(e, g);
	prefixd_log(e, PREFIXD_LOG_INFO, "pool %u: there is memory again", g->id);
}

void prefixd_lost_failed(struct prefixd_engine *e, struct prefixd_group *g, const char *why)
{
	g->asked = false;
	g->lost_for_ns = g->lost_for_ns ? radix_min_u64(2 * g->lost_for_ns, LONGEST_NS) : FIRST_NS;
	g->lost_again_ns = e->now_ns + g->lost_for_ns;
	prefixd_log(e, PREFIXD_LOG_WARN, "pool %u: no memory yet: %.300s; asking again in %llu s",
		    g->id, why, (unsigned long long)(g->lost_for_ns / FIRST_NS));
}

void prefixd_lost_time(struct prefixd_engine *e)
{
	bool told = false; /* the room is for one of them */

	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct prefixd_group *g = e->groups[i];

		if (!g || g->tell_again_ns > e->now_ns || told)
			continue;
		tell_all(e, g, tell_room(e));
		told = true;
	}
	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct prefixd_group *g = e->groups[i];

		if (g && prefixd_group_lost(g) && g->lost_again_ns <= e->now_ns && !e->draining)
			ask(e, g);
	}
}

uint64_t prefixd_lost_deadline(const struct prefixd_engine *e)
{
	uint64_t due = NEVER;

	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct prefixd_group *g = e->groups[i];

		if (!g || !prefixd_group_lost(g))
			continue;
		due = radix_min_u64(due, g->tell_again_ns);
		if (!e->draining)
			due = radix_min_u64(due, g->lost_again_ns);
	}
	return due;
}

const char *prefixd_lost_verify(const struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++) {
		const struct prefixd_group *g = e->groups[i];
		struct radix_stats st;

		if (!g || !prefixd_group_lost(g))
			continue;
		if (g->state == PREFIXD_GROUP_LOSING && is_still(g))
			return "a lost pool waits for nothing";
		if (g->state == PREFIXD_GROUP_LOST && g->asked == (g->lost_again_ns != NEVER))
			return "nobody asks for a lost pool's memory, or twice";
		if (radix_list_linked(&g->stirred) || !radix_list_empty(&g->waiting))
			return "somebody waits for slots of a lost pool";
		for (uint32_t k = 0; k < e->n_leases; k++) {
			const struct prefixd_lease *l = e->leases[k];

			if (l->group == g && l->state != PREFIXD_LEASE_FREE &&
			    (l->state != PREFIXD_LEASE_REVOKED || l->n_own))
				return "a lease holds something of a lost pool";
		}
		radix_index_stats(g->index, &st);
		if (g->state == PREFIXD_GROUP_LOST && st.slots[RADIX_SLOT_FREE] != st.n_slots)
			return "a lost pool has slots in use";
	}
	return NULL;
}
