/*
 * tiers_pools.c - the memory of pool groups: made, taken back from an earlier life, given up.
 */
#include "daemon/keep.h"
#include "daemon/log.h"
#include "daemon/restore.h"
#include "daemon/tiers_internal.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t plan_host_bytes(const struct prefixd_pool_plan *plan)
{
	return plan->n_host * prefixd_pool_host_stride(plan);
}

static bool any_slots(const struct prefixd_pool_plan *plan)
{
	for (uint32_t i = 0; i < PREFIXD_RANKS_MAX * GPU_SLABS_MAX; i++)
		if (plan->fds[prefixd_memory_slab(i / GPU_SLABS_MAX, i % GPU_SLABS_MAX)] >= 0)
			return true;
	return false;
}

void prefixd_act_pool_make(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));
	const struct prefixd_options *o = s->options;
	uint64_t used = s->pools.host_bytes + s->tiers->host_promised;
	const bool adopt = a->type == PREFIXD_ACTION_POOL_ADOPT;

	if (prefixd_pools_get(&s->pools, a->group)) { /* it lost its device */
		free(m);
		prefixd_device_again(s, s->pools.v[a->group]);
		return;
	}
	if (!m || prefixd_pools_room(&s->pools, a->group) < 0) {
		free(m);
		prefixd_later(s, (struct prefixd_later){ .type = PREFIXD_EVENT_POOL_FAILED,
							 .group = a->group });
		return;
	}
	m->message.kind = PREFIXD_CARRIER_POOL_NEW;
	m->plan = (struct prefixd_pool_plan){
		.group = a->group,
		.n_ranks = a->u.pool.n_ranks,
		.n_slots = a->u.pool.n_slots,
		.n_host = a->u.pool.n_host,
		.slot_bytes = a->u.pool.slot_bytes,
		.cold = a->u.pool.cold,
		.huge = o->huge_pages == 0,
		.lock = o->lock_memory != 0,
		.host_left = o->host_bytes == PREFIXD_AUTO
				     ? UINT64_MAX
				     : o->host_bytes - radix_min_u64(used, o->host_bytes),
		.keep = prefixd_restore_keep(s),
		.table_len = a->u.pool.table_len,
		.adopt = adopt,
	};
	if (adopt) {
		prefixd_restore_take(s, a->group, m->plan.fds);
		m->plan.fresh = !any_slots(&m->plan);
		m->plan.on_devices = prefixd_restore_devices(s, a->group, m->plan.device_ids);
	}
	/* Redis has a block in one piece, and coded: in memory that the CPU reaches. */
	if (s->tiers->redis && (s->pools.ops->kind != GPU_KIND_HOST || m->plan.n_ranks > 1 ||
				m->plan.cold.codec != GPU_CODEC_NONE))
		m->plan.n_stage = PREFIXD_STAGES;
	if (prefixd_options_staged(o))
		m->plan.n_sum = PREFIXD_SUMS;
	s->tiers->n_making++;
	s->tiers->host_promised += plan_host_bytes(&m->plan);
	prefixd_device_allow(s, m);
	prefixd_carrier_send(s->tiers->carrier, m);
}

void prefixd_act_pool_destroy(struct prefixd_server *s, const struct prefixd_action *a)
{
	struct prefixd_carrier_message *m;
	struct prefixd_pool *pool = prefixd_pools_take(&s->pools, a->group);

	if (!pool)
		return;
	/* Before the number may be another group's, whose memory he is given. */
	prefixd_restore_drop(s, a->group);
	m = calloc(1, sizeof(*m));
	if (!m) { /* out of reach of everybody, and freed with the process */
		prefixd_error("no memory to give the memory of pool %u back", a->group);
		return;
	}
	m->message.kind = PREFIXD_CARRIER_POOL_FREE;
	m->pool = pool;
	prefixd_carrier_send(s->tiers->carrier, m);
}

static void pool_log(const struct prefixd_pool *pool, bool adopted, uint64_t ns)
{
	char block[32], total[32], host[32], tier[96] = "", ranks[48] = "";

	if (pool->n_host > 0)
		snprintf(tier, sizeof(tier), "; host tier: %u blocks, %s in all%s", pool->n_host,
			 prefixd_bytes_print(pool->host.len, host, sizeof(host)),
			 pool->host.huge ? ", huge pages" : "");
	if (pool->n_ranks > 1)
		snprintf(ranks, sizeof(ranks), " in the pools of %u ranks", pool->n_ranks);
	prefixd_info("pool %u: %u blocks of %s%s, %s in all, %s pages%s%s%s; %s in %.3f s",
		     pool->group, pool->info.n_slots,
		     prefixd_bytes_print(pool->block_bytes, block, sizeof(block)), ranks,
		     prefixd_bytes_print(prefixd_pool_bytes(pool), total, sizeof(total)),
		     pool->info.huge ? "huge" : "4 KiB", pool->info.sealed ? ", sealed" : "",
		     pool->locked || pool->host.locked ? ", locked" : "", tier,
		     adopted ? "taken back" : "made", (double)ns / 1e9);
}

static void differs_add(char *out, size_t out_len, const char *option, uint64_t has, uint64_t now)
{
	size_t n = strlen(out);

	if (has != now)
		snprintf(out + n, out_len - n, "%s%llu for %s %llu", n ? ", " : "",
			 (unsigned long long)has, option, (unsigned long long)now);
}

/* A pool of an earlier life keeps its size; what the settings say now is for the next one. */
static void geometry_log(const struct prefixd_options *o, const struct prefixd_pool *pool)
{
	struct radix_store_info info;
	char text[200] = "";

	if (o->pool_blocks != PREFIXD_AUTO)
		differs_add(text, sizeof(text), "pool-blocks", pool->info.n_slots, o->pool_blocks);
	if (o->host_blocks != PREFIXD_AUTO)
		differs_add(text, sizeof(text), "host-blocks", pool->n_host, o->host_blocks);
	if (o->redis[0] && radix_store_look(&pool->table.store, NULL, &info) == RADIX_STORE_INDEX &&
	    info.n_entries >= info.n_slots + info.n_host) {
		uint64_t has = info.n_entries - info.n_slots - info.n_host;
		uint64_t hollow = (uint64_t)PREFIXD_HOLLOW_PER_SLOT * info.n_slots;

		/* made for a namespace with a window, it has those besides */
		if (has < hollow || has - hollow != prefixd_options_index_blocks(o))
			differs_add(text, sizeof(text), "index-blocks", has,
				    prefixd_options_index_blocks(o));
	}
	if (text[0])
		prefixd_warn("pool %u of an earlier life stays as it is: %s", pool->group, text);
}

/* Once: whoever wants to know more asks for the keeper's state. */
void prefixd_kept_log(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	if (m->kept == 0 || s->tiers->kept_said)
		return;
	s->tiers->kept_said = true;
	prefixd_warn("pool %u is not kept: %s; its blocks end with this daemon", m->plan.group,
		     strerror(-m->kept));
}

static void fds_close(int fds[PREFIXD_N_MEMORIES])
{
	for (int i = 0; i < PREFIXD_N_MEMORIES; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

void prefixd_pool_told(struct prefixd_server *s, const struct prefixd_carrier_message *m)
{
	const struct prefixd_pool *pool = m->error < 0 ? NULL : m->pool;
	const uint32_t group = m->plan.group;
	struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_FAILED };
	struct proto_id ids[PREFIXD_RANKS_MAX];

	event.u.pool.group = group;
	event.u.pool.why = m->why;
	event.u.pool.lost = m->error == -ENODEV;
	if (pool) {
		event.type = PREFIXD_EVENT_POOL_READY;
		event.u.pool.slot_stride = pool->info.slot_stride;
		event.u.pool.pool_len = pool->info.len;
		event.u.pool.generations = pool->generations.base;
		event.u.pool.table = pool->table.store.len > 0 ? &s->pools.v[group]->table.store
							       : NULL;
		event.u.pool.n_fds = (uint8_t)(pool->info.n_slabs + 1);
		event.u.pool.slab_len = pool->info.slab_bytes;
		if (s->pools.ops->kind == GPU_KIND_CUDA)
			event.u.pool.device = PROTO_DEVICE_CUDA;
		for (uint32_t i = 0; i < pool->n_ranks; i++)
			memcpy(ids[i].b, pool->ranks[i].info.device_id, sizeof(ids[i].b));
		event.u.pool.device_ids = ids;
		event.u.pool.fresh = pool->fresh;
	}
	prefixd_server_step(s, &event);
}

void prefixd_pool_made(struct prefixd_server *s, struct prefixd_carrier_message *m)
{
	const uint32_t group = m->plan.group;
	uint64_t heap = s->memory.bytes;
	char bytes[32];

	s->tiers->n_making--;
	s->tiers->host_promised -= plan_host_bytes(&m->plan);
	prefixd_device_heard(s, m);
	if (m->plan.adopt)
		fds_close(m->plan.fds); /* the pool has its own */
	if (!m->pool) {
		prefixd_error("group %u: %s", group, m->why);
		if (m->plan.adopt)
			prefixd_restore_drop(s, group);
		prefixd_pool_told(s, m);
		return;
	}
	prefixd_pools_put(&s->pools, m->pool);
	pool_log(m->pool, m->plan.adopt, m->ns);
	prefixd_kept_log(s, m);
	if (m->plan.adopt)
		geometry_log(s->options, m->pool);
	prefixd_pool_told(s, m);
	/* The engine knows that nothing lies in these, and took the pool all the same. */
	if (m->plan.keep && m->plan.fresh && s->pools.v[group]) {
		m->kept = prefixd_pool_slots_keep(s->pools.v[group], m->plan.keep);
		prefixd_kept_log(s, m);
	}
	if (s->memory.bytes > heap)
		prefixd_info("pool %u: its index takes %s now; keys and tree grow with what is "
			     "stored",
			     group,
			     prefixd_bytes_print(s->memory.bytes - heap, bytes, sizeof(bytes)));
}
