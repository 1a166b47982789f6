/*
 * engine_take.c - COMMIT of blocks that lie in a desk: copied first, by the daemon.
 *
 * What it guarantees.  No block of a COMMIT is READY before all of them have arrived in their slots
 * and each is what its checksum says; the checksum that is stored is that of the bytes which
 * arrived, whatever the worker does to its desk meanwhile.  A COMMIT is answered once: when it is
 * done, when a copy failed (then nothing of it was committed, and its reservations are as before),
 * or when its lease ends.
 *
 * What it relies on.  While a COMMIT is under way no other request with its lease is taken, RELEASE
 * apart: the order of its reserved blocks stays.
 */
#include "daemon/engine_internal.h"

static struct prefixd_request request_of(const struct prefixd_engine *e,
					 const struct prefixd_lease *l,
					 const struct prefixd_taking *t,
					 const struct proto_header *h)
{
	return (struct prefixd_request){
		.s = l->session,
		.h = h,
		.keep = t->keep && e->config.limits.op_ids > 0,
		.op_id = t->op_id,
		.body_hash = { t->body_hash[0], t->body_hash[1] },
	};
}

static void taking_free(struct prefixd_engine *e, struct prefixd_taking *t)
{
	radix_give(e->alloc, t, prefixd_taking_len(t->n));
}

/* ---- the beginning --------------------------------------------------------------------------- */

static void take_one(struct prefixd_engine *e, struct prefixd_lease *l, uint32_t i,
		     const struct proto_commit_req *m)
{
	uint32_t place = l->places[l->res_head + i], slot = l->slots[l->res_head + i];
	struct prefixd_action *a = prefixd_act(e, PREFIXD_ACTION_TAKE, RADIX_NONE);
	struct prefixd_desk_copy *c = &l->desk->copies[place];

	c->slot = slot;
	c->at = i;
	c->landing = false;
	l->desk->n_copying++;
	a->group = l->group->id;
	a->u.take.desk = l->desk->id;
	a->u.take.place = place;
	a->u.take.slot = slot;
	a->u.take.checksum_kind = m->checksum_kind;
	if (m->checksum_kind)
		memcpy(a->u.take.checksum, (const uint8_t *)m->checksums.p + (size_t)i * 16, 16);
}

void prefixd_take_begin(struct prefixd_engine *e, struct prefixd_request *rq,
			struct prefixd_lease *l, const struct proto_commit_req *m)
{
	struct prefixd_taking *t = NULL;

	if (prefixd_later_room(e) == 0 && prefixd_actions_room(e, m->n) == 0)
		t = prefixd_take0(e->alloc, prefixd_taking_len(m->n));
	if (!t) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	t->n = t->n_left = m->n;
	t->bad = RADIX_NONE;
	t->tail_tokens = m->tail_tokens;
	t->seq = rq->h->seq;
	t->keep = rq->keep;
	t->op_id = rq->op_id;
	memcpy(t->body_hash, rq->body_hash, sizeof(t->body_hash));
	l->taking = t;
	e->n_later++;
	rq->deferred = true;
	for (uint32_t i = 0; i < m->n; i++)
		take_one(e, l, i, m);
}

void prefixd_commit_own(struct prefixd_engine *e, struct prefixd_lease *l, uint32_t slot)
{
	int r;

	if (!l->desk) {
		l->slots[l->n_own++] = slot;
		return;
	}
	r = radix_slot_discard(l->group->index, l->idx, slot, false);
	radix_assert(r == 0);
	prefixd_poison(e, l->group->id, slot);
	prefixd_room_stir(e, l->group);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* All copies have ended, and all is well: what COMMIT does where workers write to the pool. */
static void take_commit(struct prefixd_engine *e, struct prefixd_request *rq,
			struct prefixd_lease *l, const struct prefixd_taking *t)
{
	const struct proto_commit_req m = {
		.lease = l->id,
		.n = t->n,
		.tail_tokens = t->tail_tokens,
		.checksum_kind = PROTO_CHECKSUM_XXH3_128,
		.checksums = { t->sums, t->n * 16 },
	};

	if (prefixd_names_path(e, l->root, &l->pin.at) < 0 || prefixd_names_room(e, t->n) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	e->counters.taken_blocks += t->n;
	prefixd_commit_now(e, rq, l, &m, m.n);
}

static void take_end(struct prefixd_engine *e, struct prefixd_lease *l)
{
	struct prefixd_taking *t = l->taking;
	struct proto_header h = { .op = PROTO_OP_COMMIT, .seq = t->seq };
	struct prefixd_request rq = request_of(e, l, t, &h);

	l->taking = NULL;
	e->n_later--;
	if (t->bad == RADIX_NONE && !t->failed)
		take_commit(e, &rq, l, t);
	else if (t->bad != RADIX_NONE)
		prefixd_refuse(e, &rq, PROTO_STATUS_BAD_BODY, "checksums",
			       "'checksums' are wrong for block %u of this COMMIT, as it arrived "
			       "in the pool; none of the %u was committed: write and COMMIT them "
			       "again, or RELEASE the lease",
			       t->bad, t->n);
	else
		prefixd_refuse_busy(e, &rq, 1000,
				    "a block could not be copied into the pool; none of this "
				    "COMMIT was committed: send it again, or RELEASE the lease");
	taking_free(e, t);
}

void prefixd_take_stop(struct prefixd_engine *e, struct prefixd_lease *l,
		       enum prefixd_lease_end how)
{
	struct prefixd_taking *t = l->taking;
	struct proto_header h = { .op = PROTO_OP_COMMIT };
	struct prefixd_request rq;

	if (!t)
		return;
	h.seq = t->seq;
	rq = request_of(e, l, t, &h);
	l->taking = NULL;
	e->n_later--;
	if (how == PREFIXD_END_RELEASED)
		prefixd_refuse(e, &rq, PROTO_STATUS_UNKNOWN_LEASE, "lease",
			       "the lease was released while this COMMIT was being copied; "
			       "nothing of it was committed");
	if (how == PREFIXD_END_REVOKED) {
		l->told = true;
		if (prefixd_group_lost(l->group))
			prefixd_refuse_lost(e, &rq, l->group, PROTO_STATUS_REVOKED);
		else
			prefixd_refuse(e, &rq, PROTO_STATUS_REVOKED, "lease",
				       "the lease was taken back while this COMMIT was being "
				       "copied; nothing of it was committed");
	}
	taking_free(e, t);
}

/* Nobody waits for it any more: its slot is free, and so is its place when no lease lists it. */
static void landed(struct prefixd_engine *e, struct prefixd_desk *d, uint32_t place, uint32_t slot)
{
	struct prefixd_group *g = d->group;
	int r = radix_quarantine_end(g->index, slot);

	radix_assert(r == 0);
	g->n_landing--;
	prefixd_poison(e, g->id, slot);
	prefixd_room_stir(e, g);
	prefixd_fence_stir(g);
	if (d->copies[place].lease == RADIX_NONE)
		prefixd_place_back(d, place);
}

void prefixd_taken(struct prefixd_engine *e, const struct prefixd_event *event)
{
	uint32_t id = event->u.taken.desk, place = event->u.taken.place;
	struct prefixd_desk *d = id < e->n_desks ? e->desks[id] : NULL;
	struct prefixd_desk_copy c;
	struct prefixd_taking *t;

	if (!d || place >= d->n_places || d->copies[place].slot == RADIX_NONE)
		return;
	c = d->copies[place];
	d->copies[place].slot = RADIX_NONE;
	d->copies[place].landing = false;
	d->n_copying--;
	if (c.landing) {
		landed(e, d, place, c.slot);
		return;
	}
	t = e->leases[c.lease]->taking;
	if (event->u.taken.result == PREFIXD_MOVE_OK) {
		memcpy(t->sums + (size_t)c.at * 16, event->u.taken.checksum, 16);
	} else if (event->u.taken.result == PREFIXD_MOVE_CORRUPT) {
		t->bad = radix_min_u32(t->bad, c.at);
		e->counters.take_corrupt++;
	} else {
		t->failed = true;
		e->counters.take_failed++;
	}
	if (--t->n_left == 0)
		take_end(e, e->leases[c.lease]);
}
