/*
 * tiers_device.c - devices that are lost, as the loop sees it: pools lose their slots, and get new
 * ones when the devices could be opened again.
 *
 *     copy: a device is lost -> POOL_LOST for each pool -> the engine lets go of them, and asks for
 *     memory, again and again -> copy: closes the devices, opens them, makes slots -> POOL_READY
 *
 * What it guarantees.  From the moment that the loop hears of it nobody here touches a slot or a
 * device; so the thread `copy` may close them.  The keeper forgets the old slots before there are
 * new ones, and keeps all else of the pools.
 *
 * What it relies on.  The engine asks for a pool's memory when nothing of it is under way any more.
 */
#include "daemon/below.h"
#include "daemon/log.h"
#include "daemon/restore.h"
#include "daemon/tiers_internal.h"

#include <stdio.h>
#include <stdlib.h>

void prefixd_device_watch(struct prefixd_server *s)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	if (!m) { /* asked again within a second */
		prefixd_error("no memory to have the device watched");
		return;
	}
	s->tiers->watching = true;
	m->message.kind = PREFIXD_CARRIER_WATCH;
	prefixd_carrier_send(s->tiers->carrier, m);
}

static void pool_lost(struct prefixd_server *s, uint32_t group)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_LOST };

	event.u.pool.group = group;
	prefixd_server_step(s, &event);
}

/* What the keeper has of it is of no use to anybody. */
static void slots_drop(struct prefixd_server *s, const struct prefixd_pool *pool)
{
	struct prefixd_keep *keep = prefixd_restore_keep(s);
	char name[PREFIXD_KEEP_NAME_MAX];

	for (uint32_t i = 0; keep && i < pool->n_ranks; i++)
		for (uint32_t k = 0; k < pool->ranks[i].info.n_slabs; k++)
			prefixd_keep_drop(keep, prefixd_memory_name(pool->group,
								    prefixd_memory_slab(i, k), name,
								    sizeof(name)));
}

void prefixd_device_lost(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	s->pools.lost = true;
	s->tiers->watching = false;
	snprintf(s->tiers->trouble, sizeof(s->tiers->trouble), "%s", m->why);
	prefixd_error("the device %s is lost, with what lay on it alone: %s", s->pools.device,
		      m->why);
	for (uint32_t i = 0; i < s->pools.n; i++) {
		if (!s->pools.v[i])
			continue;
		/* First: slots that the engine lets go of may still be written to, and another life
		   would find them free. */
		slots_drop(s, s->pools.v[i]);
		pool_lost(s, i);
	}
}

void prefixd_device_again(struct prefixd_server *s, struct prefixd_pool *pool)
{
	struct prefixd_carrier_message *m;

	m = calloc(1, sizeof(*m) + sizeof(*m->slots));
	if (!m) {
		prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_POOL_FAILED,
							 .group = pool->group });
		return;
	}
	slots_drop(s, pool); /* of tries that came to nothing, too */
	m->message.kind = PREFIXD_CARRIER_POOL_AGAIN;
	m->pool = pool;
	m->slots = (struct prefixd_pool_slots *)(m + 1);
	m->plan = (struct prefixd_pool_plan){
		.group = pool->group,
		.n_ranks = pool->n_ranks,
		.n_slots = pool->info.n_slots,
		.n_host = pool->n_host,
		.slot_bytes = pool->info.slot_bytes,
		.lock = s->options->lock_memory != 0,
		.keep = prefixd_restore_keep(s),
	};
	m->plan.on_devices = s->pools.ops->kind == GPU_KIND_CUDA; /* the same ones */
	for (uint32_t i = 0; i < pool->n_ranks; i++)
		memcpy(m->plan.device_ids[i].b, pool->ranks[i].info.device_id,
		       sizeof(m->plan.device_ids[i].b));
	s->tiers->n_making++;
	prefixd_device_allow(s, m);
	prefixd_carrier_send(s->tiers->carrier, m);
}

void prefixd_device_allow(struct prefixd_server *s, struct prefixd_carrier_message *m)
{
	if (!s->pools.lost)
		return;
	/* Desks lie on the device too, until the engine has let go of them. */
	for (uint32_t i = 0; i < s->pools.n_desks; i++)
		if (s->pools.desks[i])
			return;
	m->life = s->pools.life;
	s->pools.devices.n = 0; /* the thread's alone, from here on */
}

/*
 * Said once, and again with each try that ends otherwise: in most cases only a process of its own
 * gets rid of what a driver holds against this one.
 */
static void still_lost(struct prefixd_server *s, const char *why)
{
	if (strcmp(s->tiers->trouble, why) == 0)
		return;
	snprintf(s->tiers->trouble, sizeof(s->tiers->trouble), "%s", why);
	prefixd_error("the device %s cannot be opened again: %s; it is tried again, and if that "
		      "does not help, an upgrade (SIGUSR2) begins a new process with what lower "
		      "tiers hold",
		      s->pools.device, why);
}

void prefixd_device_heard(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	if (m->life == s->pools.life) {
		if (s->pools.lost && m->error == -ENODEV && m->tried)
			still_lost(s, m->why);
		return;
	}
	s->pools.life = m->life;
	s->pools.devices = m->devices;
	s->pools.lost = false;
	s->tiers->trouble[0] = '\0';
	prefixd_info("the device %s was opened again", s->pools.device);
	prefixd_device_watch(s);
}

void prefixd_device_made(struct prefixd_server *s, struct prefixd_carrier_message *m)
{
	s->tiers->n_making--;
	prefixd_device_heard(s, m);
	if (m->error < 0) {
		prefixd_pool_told(s, m);
		return;
	}
	prefixd_pools_renew(&s->pools, m->plan.group, m->slots);
	prefixd_kept_log(s, m);
	prefixd_info("pool %u: %u blocks were made again in %.3f s", m->plan.group,
		     m->pool->info.n_slots, (double)m->ns / 1e9);
	prefixd_pool_told(s, m);
}

bool prefixd_server_device_lost(const struct prefixd_server *s, char *text, size_t len)
{
	if (!s->pools.lost)
		return false;
	snprintf(text, len,
		 "the device %s is lost: %s; workers compute until there is memory again",
		 s->pools.device, s->tiers->trouble);
	return true;
}
