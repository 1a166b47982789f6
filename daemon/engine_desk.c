/*
 * engine_desk.c - desks: their memory, their budget, and places for blocks that were reserved.
 *
 * What it guarantees.  A session has one desk for each group that it has opened, before the reply
 * to OPEN; all desks together never exceed the configured total.  A place is free, or listed by one
 * lease, or being copied from.  A slot of the pool that was reserved for a place is written by the
 * daemon alone: when a reservation ends, however it does, the slot is free at once, or when the
 * copy into it that is under way has ended.
 *
 * What it relies on.  DESK_READY or DESK_FAILED answers each DESK_CREATE, TAKEN each TAKE.
 */
#include "daemon/engine_internal.h"

#include <stdio.h>

/* ---- places ---------------------------------------------------------------------------------- */

static bool is_free(const struct prefixd_desk *d, uint32_t place)
{
	return d->free[place / 64] >> (place % 64) & 1;
}

void prefixd_place_back(struct prefixd_desk *d, uint32_t place)
{
	radix_assert(!is_free(d, place) && d->copies[place].slot == RADIX_NONE);
	d->copies[place].lease = RADIX_NONE;
	d->free[place / 64] |= UINT64_C(1) << (place % 64);
	d->n_free++;
}

/* The lowest ones first, so that a prompt lies in few runs.  There is a free one. */
static uint32_t place_take(struct prefixd_desk *d)
{
	uint32_t i = 0, place;

	radix_assert(d->n_free > 0);
	while (!d->free[i])
		i++;
	place = i * 64 + (uint32_t)__builtin_ctzll(d->free[i]);
	d->free[i] &= d->free[i] - 1;
	d->n_free--;
	return place;
}

uint32_t prefixd_desk_left(const struct prefixd_session *s, const struct prefixd_group *g)
{
	const struct prefixd_desk *d = prefixd_desk_of(s, g);

	if (!s->staged)
		return UINT32_MAX;
	return d ? d->n_free : 0;
}

int prefixd_places_room(struct prefixd_engine *e, struct prefixd_lease *l, uint32_t cap)
{
	uint32_t *v;

	if (!l->session || !l->session->staged || cap <= l->places_cap)
		return 0;
	v = prefixd_grow(e->alloc, l->places, l->places_cap * sizeof(*v), cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	l->places = v;
	l->places_cap = cap;
	return 0;
}

void prefixd_places_take(struct prefixd_lease *l, uint32_t n, struct radix_runs *runs)
{
	uint32_t at = l->res_head + l->n_reserved;

	if (!l->session || !l->session->staged)
		return;
	l->desk = prefixd_desk_of(l->session, l->group);
	runs->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t place = place_take(l->desk);
		struct radix_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

		l->desk->copies[place].lease = l->idx;
		l->places[at + i] = place;
		if (last && last->start + last->len == place)
			last->len++;
		else
			runs->v[runs->n++] = (struct radix_run){ .start = place, .len = 1 };
	}
}

void prefixd_place_done(struct prefixd_lease *l)
{
	if (l->desk)
		prefixd_place_back(l->desk, l->places[l->res_head]);
}

/* Its slot is given up. */
static void slot_drop(struct prefixd_engine *e, struct prefixd_lease *l, uint32_t slot,
		      struct prefixd_desk_copy *c)
{
	bool copying = c->slot != RADIX_NONE;
	int r = radix_slot_discard(l->group->index, l->idx, slot, copying);

	radix_assert(r == 0);
	c->landing = copying;
	l->group->n_landing += copying;
	if (copying)
		prefixd_fence_stir(l->group);
	else
		prefixd_poison(e, l->group->id, slot);
}

void prefixd_places_drop(struct prefixd_engine *e, struct prefixd_lease *l, bool keep)
{
	struct prefixd_desk *d = l->desk;
	uint32_t n = l->n_reserved;

	if (!d)
		return;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t place = l->places[l->res_head + i];

		slot_drop(e, l, l->slots[l->res_head + i], &d->copies[place]);
		l->places[i] = place;
	}
	e->counters.discarded_blocks += n;
	l->n_reserved = 0;
	l->res_head = l->n_own;
	if (n) {
		l->n_places = n;
		prefixd_room_stir(e, l->group);
	}
	if (!keep)
		prefixd_places_free(l);
}

void prefixd_places_free(struct prefixd_lease *l)
{
	for (uint32_t i = 0; i < l->n_places; i++) {
		struct prefixd_desk_copy *c = &l->desk->copies[l->places[i]];

		c->lease = RADIX_NONE;
		if (c->slot == RADIX_NONE)
			prefixd_place_back(l->desk, l->places[i]);
	}
	l->n_places = 0;
	l->desk = NULL;
}

/* ---- desks ----------------------------------------------------------------------------------- */

static struct prefixd_desk *find(const struct prefixd_session *s, const struct prefixd_group *g)
{
	const struct radix_list *it;

	radix_list_foreach(it, &s->desks) {
		struct prefixd_desk *d = radix_list_entry((struct radix_list *)(uintptr_t)it,
							  struct prefixd_desk, link);

		if (d->group == g)
			return d;
	}
	return NULL;
}

struct prefixd_desk *prefixd_desk_of(const struct prefixd_session *s, const struct prefixd_group *g)
{
	struct prefixd_desk *d = find(s, g);

	return d && d->state == PREFIXD_DESK_READY ? d : NULL;
}

static size_t words_of(uint32_t n_places)
{
	return ((size_t)n_places + 63) / 64;
}

static void desk_free(struct prefixd_engine *e, struct prefixd_desk *d)
{
	radix_assert(radix_list_empty(&d->waiting) && d->n_copying == 0);
	if (d->id < e->n_desks && e->desks[d->id] == d) {
		e->desks[d->id] = NULL;
		e->desk_bytes -= d->budget;
	}
	radix_list_remove(&d->link);
	radix_give(e->alloc, d->free, words_of(d->n_places) * sizeof(*d->free));
	radix_give(e->alloc, d->copies, d->n_places * sizeof(*d->copies));
	radix_give(e->alloc, d, sizeof(*d));
}

/* A place in the engine's table.  Return: 0, -ENOMEM. */
static int desk_place(struct prefixd_engine *e, struct prefixd_desk *d)
{
	uint32_t cap = e->desks_cap ? 2 * e->desks_cap : 16, id = 0;
	void *v;

	while (id < e->n_desks && e->desks[id])
		id++;
	if (id == e->desks_cap) {
		v = prefixd_grow(e->alloc, e->desks, e->desks_cap * sizeof(*e->desks),
				 cap * sizeof(*e->desks));
		if (!v)
			return -ENOMEM;
		e->desks = v;
		e->desks_cap = cap;
	}
	if (id == e->n_desks)
		e->n_desks++;
	e->desks[id] = d;
	d->id = id;
	return 0;
}

static struct prefixd_desk *desk_new(struct prefixd_engine *e, struct prefixd_group *g, uint32_t n)
{
	struct prefixd_desk *d = prefixd_take0(e->alloc, sizeof(*d));

	if (!d)
		return NULL;
	radix_list_init(&d->link);
	radix_list_init(&d->waiting);
	d->group = g;
	d->n_places = d->n_free = n;
	d->id = RADIX_NONE;
	d->free = prefixd_take0(e->alloc, words_of(n) * sizeof(*d->free));
	d->copies = prefixd_take0(e->alloc, n * sizeof(*d->copies));
	if (!d->free || !d->copies || desk_place(e, d) < 0) {
		desk_free(e, d);
		return NULL;
	}
	for (uint32_t i = 0; i < n; i++) {
		d->free[i / 64] |= UINT64_C(1) << (i % 64);
		d->copies[i].slot = d->copies[i].lease = RADIX_NONE;
	}
	return d;
}

int prefixd_desk_get(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_group *g,
		     struct prefixd_desk **ret_desk)
{
	uint32_t n = e->config.write_blocks;
	uint64_t left = e->config.write_bytes
				? e->config.write_bytes -
					  radix_min_u64(e->config.write_bytes, e->desk_bytes)
				: UINT64_MAX;
	uint64_t stride = (g->slot_bytes + 63) & ~63ull;
	struct prefixd_desk *d = find(rq->s, g);

	if (!d && n > left / stride) {
		prefixd_refuse(
			e, rq, PROTO_STATUS_NO_BUDGET, "block_bytes",
			"memory to write %u blocks of %llu bytes in needs %llu bytes, but %llu of "
			"%llu bytes are left by other sessions; raise write-bytes or lower "
			"write-blocks",
			n, (unsigned long long)g->slot_bytes, (unsigned long long)(n * stride),
			(unsigned long long)left, (unsigned long long)e->config.write_bytes);
		return -EDQUOT;
	}
	if (!d) {
		d = desk_new(e, g, n);
		if (!d)
			return -ENOMEM;
		d->session = rq->s;
		d->budget = n * stride;
		e->desk_bytes += d->budget;
		radix_list_add_tail(&rq->s->desks, &d->link);
	}
	*ret_desk = d;
	return 0;
}

void prefixd_desk_ask(struct prefixd_engine *e, struct prefixd_desk *d)
{
	struct prefixd_action *a;

	if (d->asked)
		return;
	d->asked = true;
	a = prefixd_act(e, PREFIXD_ACTION_DESK_CREATE, RADIX_NONE);
	a->group = d->group->id;
	a->u.desk.id = d->id;
	a->u.desk.n_places = d->n_places;
	a->u.desk.slot_bytes = d->group->slot_bytes;
}

void prefixd_desk_cancel(struct prefixd_engine *e, struct prefixd_desk *d)
{
	if (!d->asked)
		desk_free(e, d);
}

static struct prefixd_desk *making(const struct prefixd_engine *e, uint32_t id)
{
	struct prefixd_desk *d = id < e->n_desks ? e->desks[id] : NULL;

	return d && d->asked && d->state == PREFIXD_DESK_MAKING ? d : NULL;
}

void prefixd_desk_ready(struct prefixd_engine *e, const struct prefixd_event *event)
{
	struct prefixd_desk *d = making(e, event->u.desk.id);

	if (!d)
		return;
	d->state = PREFIXD_DESK_READY;
	d->len = event->u.desk.len;
	prefixd_open_answer(e, d->group, &d->waiting, PROTO_STATUS_OK, NULL);
}

void prefixd_desk_failed(struct prefixd_engine *e, uint32_t id, const char *why)
{
	struct prefixd_desk *d = making(e, id);

	if (!d)
		return;
	prefixd_open_answer(e, d->group, &d->waiting, PROTO_STATUS_NO_MEMORY,
			    why ? why : "memory to write in cannot be had");
	desk_free(e, d);
}

void prefixd_desks_leave(struct prefixd_engine *e, struct prefixd_session *s)
{
	struct radix_list *it;

	radix_list_foreach(it, &s->leases) {
		struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		prefixd_take_stop(e, l, PREFIXD_END_DIED);
		prefixd_places_drop(e, l, false);
	}
	prefixd_desks_part(e, s);
}

void prefixd_desks_part(struct prefixd_engine *e, struct prefixd_session *s)
{
	while (!radix_list_empty(&s->desks)) {
		struct prefixd_desk *d = radix_list_first(&s->desks, struct prefixd_desk, link);

		radix_list_remove(&d->link);
		d->session = NULL;
		radix_list_add_tail(&e->desks_left, &d->link);
	}
}

void prefixd_desks_lost(struct prefixd_engine *e, const struct prefixd_group *g, const char *why)
{
	for (uint32_t i = 0; i < e->n_desks; i++) {
		struct prefixd_desk *d = e->desks[i];

		if (!d || d->group != g || !d->session)
			continue;
		prefixd_open_answer(e, g, &d->waiting, PROTO_STATUS_DEVICE_LOST, why);
		radix_list_remove(&d->link);
		d->session = NULL;
		radix_list_add_tail(&e->desks_left, &d->link);
	}
}

void prefixd_desks_settle(struct prefixd_engine *e)
{
	struct radix_list *it, *tmp;

	radix_list_foreach_safe(it, tmp, &e->desks_left) {
		struct prefixd_desk *d = radix_list_entry(it, struct prefixd_desk, link);
		struct prefixd_action *a;

		if (d->n_copying || d->state == PREFIXD_DESK_MAKING)
			continue;
		if (prefixd_actions_room(e, 1) < 0)
			return; /* in another step */
		a = prefixd_act(e, PREFIXD_ACTION_DESK_DESTROY, RADIX_NONE);
		a->group = d->group->id;
		a->u.desk.id = d->id;
		desk_free(e, d);
	}
}

void prefixd_desks_deinit(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_desks; i++) {
		if (!e->desks[i])
			continue;
		e->desks[i]->n_copying = 0;
		desk_free(e, e->desks[i]);
	}
	radix_give(e->alloc, e->desks, e->desks_cap * sizeof(*e->desks));
	e->desks = NULL;
	e->n_desks = e->desks_cap = 0;
}

/* ---- invariants ------------------------------------------------------------------------------ */

/* How many places the lease lists; UINT32_MAX: one of them is not its own. */
static uint32_t listed(const struct prefixd_lease *l, const struct prefixd_desk *d)
{
	bool kept = l->n_places > 0;
	uint32_t n = kept ? l->n_places : l->n_reserved;

	if (l->desk != d)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t place = l->places[kept ? i : l->res_head + i];

		if (place >= d->n_places || is_free(d, place) || d->copies[place].lease != l->idx)
			return UINT32_MAX;
	}
	return n;
}

static const char *desk_wrong(const struct prefixd_engine *e, const struct prefixd_desk *d)
{
	uint32_t n_free = 0, n_copying = 0, n_used = 0;

	for (uint32_t i = 0; i < d->n_places; i++) {
		const struct prefixd_desk_copy *c = &d->copies[i];

		n_free += is_free(d, i);
		n_copying += c->slot != RADIX_NONE;
		n_used += c->slot != RADIX_NONE && c->lease == RADIX_NONE;
		if (is_free(d, i) && (c->slot != RADIX_NONE || c->lease != RADIX_NONE))
			return "has a free place that is in use";
		if (c->slot != RADIX_NONE && !c->landing && !e->leases[c->lease]->taking)
			return "is being copied from for nobody";
		if (c->landing &&
		    radix_slot_state(d->group->index, c->slot) != RADIX_SLOT_QUARANTINED)
			return "is being copied to a slot that is not kept back";
	}
	for (uint32_t i = 0; i < e->n_leases; i++) {
		uint32_t n = listed(e->leases[i], d);

		if (n == UINT32_MAX)
			return "has a place that a lease lists and does not have";
		n_used += n;
	}
	if (n_free != d->n_free || n_copying != d->n_copying || n_free + n_used != d->n_places)
		return "has other numbers of places than it counts";
	return NULL;
}

int prefixd_desks_verify(const struct prefixd_engine *e, char *why, size_t why_len)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < e->n_desks; i++) {
		const char *wrong = e->desks[i] ? desk_wrong(e, e->desks[i]) : NULL;

		if (wrong) {
			snprintf(why, why_len, "desk %u %s", i, wrong);
			return 24;
		}
		bytes += e->desks[i] ? e->desks[i]->budget : 0;
	}
	if (bytes != e->desk_bytes || (e->config.write_bytes && bytes > e->config.write_bytes)) {
		snprintf(why, why_len, "desks take %llu bytes, %llu are counted",
			 (unsigned long long)bytes, (unsigned long long)e->desk_bytes);
		return 24;
	}
	return 0;
}
