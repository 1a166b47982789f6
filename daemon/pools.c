/*
 * pools.c - see pools.h.
 */
#include "daemon/pools.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>

const char *prefixd_bytes_print(uint64_t bytes, char *out, size_t out_len)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)bytes;
	size_t i = 0;

	while (v >= 1024.0 && i + 1 < radix_array_size(units)) {
		v /= 1024.0;
		i++;
	}
	snprintf(out, out_len, i ? "%.1f %s" : "%.0f %s", v, units[i]);
	return out;
}

int prefixd_pools_init(struct prefixd_pools *p, const char *device, char *why, size_t why_len)
{
	*p = (struct prefixd_pools){ 0 };
	return gpu_open(device, NULL, &p->gpu, why, why_len);
}

void prefixd_pools_deinit(struct prefixd_pools *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		prefixd_pools_destroy(p, i);
	free(p->v);
	gpu_close(p->gpu);
	*p = (struct prefixd_pools){ 0 };
}

/* Room for group numbers up to `group`.  Return: 0, -ENOMEM. */
static int pools_room(struct prefixd_pools *p, uint32_t group)
{
	struct prefixd_pool *v;

	if (group < p->n)
		return 0;
	v = realloc(p->v, ((size_t)group + 1) * sizeof(*v));
	if (!v)
		return -ENOMEM;
	memset(v + p->n, 0, ((size_t)group + 1 - p->n) * sizeof(*v));
	p->v = v;
	p->n = group + 1;
	return 0;
}

static int pool_make(struct prefixd_pools *p, uint32_t group, uint32_t n_slots, uint64_t slot_bytes)
{
	struct prefixd_pool *pool;
	int r = pools_room(p, group);

	if (r < 0)
		return r;
	pool = &p->v[group];
	if (pool->pool)
		return -EEXIST;
	r = p->gpu->ops->pool_new(p->gpu, n_slots, slot_bytes, &pool->pool);
	if (r < 0) {
		pool->pool = NULL;
		return r;
	}
	r = gpu_shm_new(&pool->generations, "prefixd-generations",
			(uint64_t)n_slots * sizeof(uint64_t), false, true);
	if (r < 0) {
		p->gpu->ops->pool_free(p->gpu, pool->pool);
		*pool = (struct prefixd_pool){ 0 };
		return r;
	}
	p->gpu->ops->pool_info(pool->pool, &pool->info);
	return 0;
}

void prefixd_pools_create(struct prefixd_pools *p, uint32_t group, uint32_t n_slots,
			  uint64_t slot_bytes, struct prefixd_event *ret_event, char *why,
			  size_t why_len)
{
	char total[32], block[32];
	const struct prefixd_pool *pool;
	int r = pool_make(p, group, n_slots, slot_bytes);

	*ret_event = (struct prefixd_event){ .type = PREFIXD_EVENT_POOL_FAILED };
	ret_event->u.pool.group = group;
	if (r < 0) {
		snprintf(why, why_len,
			 "no memory for a pool of %u blocks of %llu bytes (%s): %s; check "
			 "block_bytes, or lower pool-blocks or pool-bytes",
			 n_slots, (unsigned long long)slot_bytes,
			 prefixd_bytes_print(n_slots * slot_bytes, total, sizeof(total)),
			 strerror(-r));
		ret_event->u.pool.why = why;
		prefixd_error("group %u: %s", group, why);
		return;
	}
	pool = &p->v[group];
	ret_event->type = PREFIXD_EVENT_POOL_READY;
	ret_event->u.pool.slot_stride = pool->info.slot_stride;
	ret_event->u.pool.pool_len = pool->info.len;
	ret_event->u.pool.generations = pool->generations.base;
	ret_event->u.pool.n_fds = PREFIXD_POOL_FDS;
	prefixd_info("pool %u: %u blocks of %s, %s in all, %s pages%s", group, n_slots,
		     prefixd_bytes_print(slot_bytes, block, sizeof(block)),
		     prefixd_bytes_print(pool->info.len, total, sizeof(total)),
		     pool->info.huge ? "huge" : "4 KiB", pool->info.sealed ? ", sealed" : "");
}

void prefixd_pools_destroy(struct prefixd_pools *p, uint32_t group)
{
	if (group >= p->n || !p->v[group].pool)
		return;
	p->gpu->ops->pool_free(p->gpu, p->v[group].pool);
	gpu_shm_free(&p->v[group].generations);
	p->v[group] = (struct prefixd_pool){ 0 };
}

const struct prefixd_pool *prefixd_pools_get(const struct prefixd_pools *p, uint32_t group)
{
	return group < p->n && p->v[group].pool ? &p->v[group] : NULL;
}

uint32_t prefixd_pools_fds(const struct prefixd_pools *p, uint32_t group, bool read_only,
			   int ret_fds[PREFIXD_POOL_FDS])
{
	const struct prefixd_pool *pool = prefixd_pools_get(p, group);

	if (!pool)
		return 0;
	ret_fds[0] = p->gpu->ops->pool_fd(pool->pool, read_only);
	ret_fds[1] = pool->generations.ro_fd;
	return PREFIXD_POOL_FDS;
}

void prefixd_pools_poison(struct prefixd_pools *p, uint32_t group, struct radix_run run)
{
	const struct prefixd_pool *pool = prefixd_pools_get(p, group);

	if (!pool || p->gpu->ops->kind != GPU_KIND_SIM)
		return;
	for (uint32_t i = 0; i < run.len; i++)
		gpu_poison_slot(p->gpu, pool->pool, run.start + i);
}
