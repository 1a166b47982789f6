/*
 * tiers_desk.c - desks, where workers write what the daemon then copies into the pool: their
 * memory, and the copies.  What they are is in engine_desk.h.
 */
#include "daemon/log.h"
#include "daemon/tiers_internal.h"

#include <stdlib.h>

static void desk_failed(struct prefixd_server *s, uint32_t id)
{
	prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_DESK_FAILED, .id = id });
}

static void act_create(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	if (!m || prefixd_pools_desk_room(&s->pools, a->u.desk.id) < 0) {
		free(m);
		desk_failed(s, a->u.desk.id);
		return;
	}
	m->message.kind = PREFIXD_CARRIER_DESK_NEW;
	m->id = a->u.desk.id;
	m->pool = prefixd_pool_of(s, a->group); /* whose device it lies on */
	m->plan.group = a->group;
	m->plan.n_slots = a->u.desk.n_places;
	m->plan.slot_bytes = a->u.desk.slot_bytes;
	prefixd_carrier_send(s->tiers->carrier, m);
}

static void act_destroy(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_desk_memory *d = prefixd_pools_desk(&s->pools, a->u.desk.id);
	struct prefixd_carrier_message *m;

	if (!d)
		return;
	m = calloc(1, sizeof(*m));
	if (!m) { /* out of reach of everybody, and freed with the process */
		prefixd_error("no memory to give the memory of a desk back");
	} else {
		m->message.kind = PREFIXD_CARRIER_DESK_FREE;
		m->desk = d;
		prefixd_carrier_send(s->tiers->carrier, m);
	}
	s->pools.desks[a->u.desk.id] = NULL;
}

static void act_take(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	if (!m) {
		prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_TAKEN,
							 .id = a->u.take.desk,
							 .group = a->u.take.place,
							 .result = PREFIXD_MOVE_FAILED });
		return;
	}
	m->message.kind = PREFIXD_CARRIER_TAKE;
	m->id = a->u.take.place;
	m->pool = prefixd_pool_of(s, a->group);
	m->desk = prefixd_pools_desk(&s->pools, a->u.take.desk);
	m->from = PREFIXD_PLACE_DESK;
	m->to = PREFIXD_PLACE_DEVICE;
	m->src = a->u.take.place;
	m->dst = a->u.take.slot;
	m->urgent = true; /* its worker waits */
	m->checksum_kind = a->u.take.checksum_kind;
	memcpy(m->checksum, a->u.take.checksum, sizeof(m->checksum));
	prefixd_carrier_send(s->tiers->carrier, m);
}

void prefixd_act_desk(struct prefixd_server *s, const struct prefixd_action *a)
{
	if (a->type == PREFIXD_ACTION_DESK_CREATE)
		act_create(s, a);
	else if (a->type == PREFIXD_ACTION_DESK_DESTROY)
		act_destroy(s, a);
	else
		act_take(s, a);
}

void prefixd_desk_made(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_DESK_READY };

	event.u.desk.id = m->id;
	if (!m->desk) {
		event.type = PREFIXD_EVENT_DESK_FAILED;
		event.u.desk.why = m->why;
		prefixd_error("group %u: %s", m->plan.group, m->why);
	} else {
		m->desk->id = m->id;
		m->desk->group = m->plan.group;
		s->pools.desks[m->id] = m->desk;
		event.u.desk.len = m->desk->info.len;
	}
	prefixd_server_step(s, &event);
}

void prefixd_desk_taken(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_TAKEN };

	event.u.taken.desk = m->desk->id;
	event.u.taken.place = m->id;
	event.u.taken.result = m->result;
	memcpy(event.u.taken.checksum, m->checksum, sizeof(event.u.taken.checksum));
	prefixd_server_step(s, &event);
}
