/*
 * pools.c - see pools.h.
 */
#include "daemon/pools.h"

#include "daemon/keep.h"
#include "daemon/preflight.h"
#include "daemon/stripe_sum.h"
#include "radix/crash.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

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

static uint32_t ranks_of(const struct prefixd_pool_plan *plan)
{
	return plan->n_ranks > 0 ? plan->n_ranks : 1;
}

/* ---- making one ------------------------------------------------------------------------------ */

static int stage_new(struct prefixd_pool *pool, const struct prefixd_pool_plan *plan,
		     const struct prefixd_arena_config *config)
{
	/* One more than was asked for, to look at blocks that no CPU reaches. */
	bool reached = prefixd_pool_slot(pool, 0, 0) != NULL;
	uint32_t n = plan->n_stage + (reached ? 0 : 1 + plan->n_sum), n_scratch = 0;
	int r;

	if (!reached && plan->cold.codec != GPU_CODEC_NONE)
		n_scratch = PREFIXD_SCRATCHES;
	n += n_scratch;

	if (n == 0)
		return 0;
	r = prefixd_arena_new(&pool->stage, n * pool->block_stride, config);
	if (r == 0) {
		pool->n_stage = plan->n_stage;
		pool->n_scratch = n_scratch;
		pool->n_sum = reached ? 0 : plan->n_sum;
	}
	return r;
}

/* A duplicate of what an earlier life left; -EINVAL: it left none. */
static int fd_left(const struct prefixd_pool_plan *plan, enum prefixd_memory_part part)
{
	int fd = plan->fds[part] < 0 ? -1 : fcntl(plan->fds[part], F_DUPFD_CLOEXEC, 0);

	if (fd >= 0)
		return fd;
	return plan->fds[part] < 0 ? -EINVAL : -errno;
}

static int fd_close(int fd, int r)
{
	if (r < 0)
		(void)close(fd); /* it was not taken over */
	return r;
}

/* Return: as gpu_shm_adopt(). */
static int shm_again(struct gpu_shm *ret_shm, const struct prefixd_pool_plan *plan,
		     enum prefixd_memory_part part, uint64_t len, bool want_ro_fd)
{
	int fd = fd_left(plan, part);

	return fd < 0 ? fd : fd_close(fd, gpu_shm_adopt(ret_shm, fd, len, want_ro_fd));
}

/* The host tier is a view of the file, so that all others need not know that it is one. */
static int host_view(struct prefixd_pool *pool, const struct prefixd_pool_plan *plan)
{
	const struct gpu_shm *shm = &pool->host_shm;

	pool->host = (struct prefixd_arena){ .base = shm->base,
					     .len = shm->len,
					     .huge = shm->page_bytes > 4096 };
	if (plan->lock && mlock(shm->base, shm->len) < 0)
		return errno == EAGAIN ? -EAGAIN : -EPERM;
	pool->host.locked = plan->lock;
	return 0;
}

/*
 * Return: 0; -EDQUOT: beyond the limit of the host tier; what prefixd_arena_new() or the files of
 * gpu.h say.
 */
static int host_new(struct prefixd_pool *pool, const struct prefixd_pool_plan *plan,
		    const struct prefixd_arena_config *config)
{
	uint64_t len;
	int r;

	if (plan->n_host == 0)
		return 0;
	if (__builtin_mul_overflow(pool->host_stride, plan->n_host, &len))
		return -EINVAL;
	if (!plan->adopt && len > plan->host_left)
		return -EDQUOT;
	if (plan->adopt)
		r = shm_again(&pool->host_shm, plan, PREFIXD_MEMORY_HOST, len, false);
	else if (plan->keep)
		r = len > prefixd_memory_available()
			    ? -ENOMEM
			    : gpu_shm_new(&pool->host_shm, "prefixd-host", len, plan->huge, false);
	else
		r = prefixd_arena_new(&pool->host, len, config);
	if (r == 0 && pool->host_shm.len > 0)
		r = host_view(pool, plan);
	if (r == 0)
		pool->n_host = plan->n_host;
	return r;
}

/* Where the CPU reaches the slots they are ordinary pages of this process. */
static int rank_lock(const struct prefixd_rank *rank)
{
	void *base = rank->gpu->ops->slot_host(rank->pool, 0);

	if (!base || mlock(base, rank->info.len) == 0)
		return 0;
	return errno == EAGAIN ? -EAGAIN : -EPERM;
}

enum prefixd_memory_part prefixd_memory_slab(uint32_t rank, uint32_t i)
{
	uint32_t nth = rank * GPU_SLABS_MAX + i;

	return nth == 0 ? PREFIXD_MEMORY_POOL
			: (enum prefixd_memory_part)(PREFIXD_MEMORY_SLAB1 + nth - 1);
}

static int slots_again(struct prefixd_rank *rank, uint32_t nth,
		       const struct prefixd_pool_plan *plan)
{
	int fds[GPU_SLABS_MAX], r = 0;
	uint32_t n = 0;

	while (n < GPU_SLABS_MAX && plan->fds[prefixd_memory_slab(nth, n)] >= 0) {
		r = fd_left(plan, prefixd_memory_slab(nth, n));
		if (r < 0)
			break;
		fds[n++] = r;
	}
	/* None of any rank: the devices were lost, and the daemon ended before it had new slots. */
	if (r >= 0 && n == 0 && !plan->fresh)
		r = -EINVAL;
	else if (r >= 0 && n == 0)
		r = rank->gpu->ops->pool_new(rank->gpu, plan->n_slots, plan->slot_bytes,
					     &rank->pool);
	else if (r >= 0)
		r = rank->gpu->ops->pool_adopt(rank->gpu, fds, n, plan->n_slots, plan->slot_bytes,
					       &rank->pool);
	while (r < 0 && n > 0)
		(void)close(fds[--n]); /* not taken over */
	return r;
}

static int rank_new(struct prefixd_rank *rank, uint32_t nth, const struct prefixd_pool_plan *plan)
{
	int r;

	if (plan->adopt)
		r = slots_again(rank, nth, plan);
	else
		r = rank->gpu->ops->pool_new(rank->gpu, plan->n_slots, plan->slot_bytes,
					     &rank->pool);
	if (r < 0) {
		rank->pool = NULL;
		return r;
	}
	rank->gpu->ops->pool_info(rank->pool, &rank->info);
	return plan->lock ? rank_lock(rank) : 0;
}

/*
 * Workers are told one length: what all have.  They differ where huge pages ran out between two
 * ranks; what is behind the last slot nobody uses.
 */
static int info_of_all(struct prefixd_pool *pool)
{
	pool->info = pool->ranks[0].info;
	for (uint32_t i = 1; i < pool->n_ranks; i++) {
		const struct gpu_pool_info *info = &pool->ranks[i].info;

		if (info->slot_stride != pool->info.slot_stride ||
		    info->n_slabs != pool->info.n_slabs ||
		    (info->n_slabs > 1 && info->slab_bytes != pool->info.slab_bytes))
			return -EINVAL;
		pool->info.len = radix_min_u64(pool->info.len, info->len);
		pool->info.slab_bytes = radix_min_u64(pool->info.slab_bytes, info->slab_bytes);
	}
	return 0;
}

/* Where it lies, or is to; NULL: on a device that is not there. */
static struct gpu *gpu_of(const struct gpu_devices *devices, const struct prefixd_pool_plan *plan,
			  uint32_t rank)
{
	uint8_t id[16];

	if (!plan->on_devices)
		return devices->v[rank % devices->n];
	for (uint32_t i = 0; i < devices->n; i++) {
		gpu_device_id(devices->v[i], id);
		if (memcmp(id, plan->device_ids[rank].b, sizeof(id)) == 0)
			return devices->v[i];
	}
	return NULL;
}

static int slots_new(const struct gpu_devices *devices, struct prefixd_pool *pool,
		     const struct prefixd_pool_plan *plan)
{
	int r;

	for (uint32_t i = 0; i < pool->n_ranks; i++) {
		pool->ranks[i].gpu = gpu_of(devices, plan, i);
		if (!pool->ranks[i].gpu && plan->adopt && !plan->fresh)
			return -EXDEV;
		if (!pool->ranks[i].gpu) /* nothing lies there */
			pool->ranks[i].gpu = devices->v[i % devices->n];
		r = rank_new(&pool->ranks[i], i, plan);
		if (r < 0)
			return r;
		if (plan->step)
			plan->step(plan->ctx);
	}
	r = info_of_all(pool);
	if (r < 0)
		return r;
	pool->locked = plan->lock && prefixd_pool_slot(pool, 0, 0);
	pool->block_bytes = pool->n_ranks * pool->info.slot_bytes;
	pool->block_stride = pool->n_ranks * pool->info.slot_stride;
	pool->cold = plan->cold;
	if (plan->cold.codec != GPU_CODEC_NONE)
		prefixd_cold_coded(&plan->cold, &pool->coded);
	pool->host_stride = prefixd_pool_host_stride(plan);
	return 0;
}

static int generations_new(struct prefixd_pool *pool, const struct prefixd_pool_plan *plan)
{
	uint64_t len = (uint64_t)plan->n_slots * sizeof(uint64_t);

	if (plan->adopt)
		return shm_again(&pool->generations, plan, PREFIXD_MEMORY_GENERATIONS, len, true);
	return gpu_shm_new(&pool->generations, "prefixd-generations", len, false, true);
}

static int table_new(struct prefixd_pool *pool, const struct prefixd_pool_plan *plan)
{
	unsigned flags = (plan->huge ? PREFIXD_REGION_HUGE : 0u) |
			 (plan->lock ? PREFIXD_REGION_LOCK : 0u);
	int fd;

	if (!plan->keep || plan->table_len == 0)
		return 0;
	if (!plan->adopt)
		return prefixd_region_init(&pool->table, "prefixd-table", -1, plan->table_len,
					   flags);
	fd = fd_left(plan, PREFIXD_MEMORY_TABLE);
	return fd < 0 ? fd
		      : fd_close(fd, prefixd_region_init(&pool->table, "prefixd-table", fd,
							 plan->table_len, flags));
}

static void unpin(const struct gpu_devices *devices, struct prefixd_pool *pool)
{
	if (pool->host_pinned)
		gpu_devices_unpin(devices, pool->host.base);
	if (pool->stage_pinned)
		gpu_devices_unpin(devices, pool->stage.base);
	pool->host_pinned = pool->stage_pinned = false;
}

/* What the devices copy to and from, besides their own memory. */
static int pin(const struct gpu_devices *devices, struct prefixd_pool *pool)
{
	int r = 0;

	if (pool->host.len > 0) {
		r = gpu_devices_pin(devices, pool->host.base, pool->host.len);
		pool->host_pinned = r == 0;
	}
	if (r == 0 && pool->stage.len > 0) {
		r = gpu_devices_pin(devices, pool->stage.base, pool->stage.len);
		pool->stage_pinned = r == 0;
	}
	return r;
}

static int pool_fill(const struct gpu_devices *devices, struct prefixd_pool *pool,
		     const struct prefixd_pool_plan *plan, const char **ret_what)
{
	const struct prefixd_arena_config config = {
		.huge = plan->huge, .lock = plan->lock, .step = plan->step, .ctx = plan->ctx
	};
	int r;

	*ret_what = "a pool";
	r = slots_new(devices, pool, plan);
	if (r == 0)
		r = generations_new(pool, plan);
	if (r < 0)
		return r;
	*ret_what = "the block table";
	r = table_new(pool, plan);
	if (r < 0)
		return r;
	*ret_what = "the host tier";
	r = host_new(pool, plan, &config);
	if (r < 0)
		return r;
	*ret_what = "the copy buffers";
	r = stage_new(pool, plan, &config);
	if (r < 0)
		return r;
	*ret_what = "copies between the device and the host tier";
	return pin(devices, pool);
}

/* ---- the keeper ------------------------------------------------------------------------------ */

/* Of the nth slab of all: "g7.pool3", "g7.r2.pool", "g7.r2.pool3". */
static void slab_name(uint32_t group, uint32_t nth, const char *text, char *out, size_t out_len)
{
	const uint32_t rank = nth / GPU_SLABS_MAX, slab = nth % GPU_SLABS_MAX;
	char before[16] = "", behind[16] = "";

	if (rank > 0)
		snprintf(before, sizeof(before), "r%u.", rank);
	if (slab > 0)
		snprintf(behind, sizeof(behind), "%u", slab);
	snprintf(out, out_len, "g%u.%s%s%s", group, before, text, behind);
}

const char *prefixd_memory_name(uint32_t group, enum prefixd_memory_part part, char *out,
				size_t out_len)
{
	static const char *const names[] = {
#define X(sym, text) text,
		PREFIXD_MEMORIES(X)
#undef X
	};

	if (part == PREFIXD_N_MEMORIES)
		snprintf(out, out_len, "g%u", group);
	else if (part >= PREFIXD_MEMORY_SLAB1)
		slab_name(group, (uint32_t)part - PREFIXD_MEMORY_SLAB1 + 1,
			  names[PREFIXD_MEMORY_POOL], out, out_len);
	else
		snprintf(out, out_len, "g%u.%s", group, names[part]);
	return out;
}

static int part_keep(struct prefixd_keep *keep, uint32_t group, enum prefixd_memory_part part,
		     int fd)
{
	char name[PREFIXD_KEEP_NAME_MAX];

	radix_crash_point("pools_part_made");
	return prefixd_keep_put(keep, prefixd_memory_name(group, part, name, sizeof(name)), fd);
}

static int slots_keep(uint32_t group, const struct prefixd_rank *ranks, uint32_t n,
		      struct prefixd_keep *keep)
{
	int r = 0;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < ranks[i].info.n_slabs && r == 0; k++)
			r = part_keep(keep, group, prefixd_memory_slab(i, k),
				      ranks[i].gpu->ops->pool_fd(ranks[i].pool, k, false));
	return r;
}

/* Return: 0; negative errno, and he has none of it: half of a group is of no use to anybody. */
static int keep_or_drop(uint32_t group, struct prefixd_keep *keep, int r)
{
	char name[PREFIXD_KEEP_NAME_MAX];

	if (r < 0)
		prefixd_keep_drop(
			keep, prefixd_memory_name(group, PREFIXD_N_MEMORIES, name, sizeof(name)));
	return r;
}

/* Return: as above. */
static int pool_keep(const struct prefixd_pool *pool, struct prefixd_keep *keep)
{
	const struct {
		enum prefixd_memory_part part;
		int fd;
	} rest[] = {
		{ PREFIXD_MEMORY_GENERATIONS, pool->generations.fd },
		{ PREFIXD_MEMORY_TABLE, pool->table.store.len > 0 ? pool->table.fd : -1 },
		{ PREFIXD_MEMORY_HOST, pool->host_shm.len > 0 ? pool->host_shm.fd : -1 },
	};
	int r = slots_keep(pool->group, pool->ranks, pool->n_ranks, keep);

	for (size_t i = 0; i < radix_array_size(rest) && r == 0; i++)
		if (rest[i].fd >= 0)
			r = part_keep(keep, pool->group, rest[i].part, rest[i].fd);
	return keep_or_drop(pool->group, keep, r);
}

/* What was kept, and why it cannot be taken back. */
static void why_kept(const struct gpu_devices *devices, const struct prefixd_pool_plan *plan, int r,
		     char *why, size_t why_len)
{
	char id[GPU_ID_TEXT];
	uint32_t i = 0;

	while (r == -EXDEV && i + 1 < ranks_of(plan) && gpu_of(devices, plan, i))
		i++;
	if (r == -EXDEV)
		snprintf(why, why_len, "it lies on %s, which is none of this daemon's devices",
			 gpu_id_print(plan->device_ids[i].b, id));
	else
		snprintf(why, why_len, "%s",
			 r == -EINVAL ? "it is not what was left" : strerror(-r));
}

static void why_print(const struct gpu_devices *devices, const struct prefixd_pool_plan *plan,
		      const char *what, int r, char *why, size_t why_len)
{
	char total[32], left[32], kept[128];
	bool host = strcmp(what, "the host tier") == 0;
	uint32_t n = host ? plan->n_host : plan->n_slots;
	const uint64_t block_bytes = ranks_of(plan) * plan->slot_bytes;

	prefixd_bytes_print(n * block_bytes, total, sizeof(total));
	if (plan->adopt) {
		why_kept(devices, plan, r, kept, sizeof(kept));
		snprintf(
			why, why_len,
			"%s of %u blocks of %llu bytes, kept from before, cannot be taken back: %s",
			what, n, (unsigned long long)block_bytes, kept);
	} else if (r == -EDQUOT)
		snprintf(why, why_len,
			 "the host tier of %u blocks of %llu bytes needs %s, and host-bytes leaves "
			 "%s; raise host-bytes or lower host-blocks",
			 n, (unsigned long long)block_bytes, total,
			 prefixd_bytes_print(plan->host_left, left, sizeof(left)));
	else if (r == -EPERM && plan->lock)
		snprintf(why, why_len,
			 "%s of %u blocks of %llu bytes (%s) cannot be locked in memory: raise the "
			 "limit (ulimit -l, LimitMEMLOCK=) or set lock-memory=no",
			 what, n, (unsigned long long)block_bytes, total);
	else
		snprintf(why, why_len,
			 "no memory for %s of %u blocks of %llu bytes (%s): %s; check block_bytes, "
			 "or lower %s",
			 what, n, (unsigned long long)block_bytes, total, strerror(-r),
			 host ? "host-blocks or host-bytes" : "pool-blocks or pool-bytes");
}

int prefixd_pool_new(struct prefixd_pool **ret_pool, const struct gpu_devices *devices,
		     const struct prefixd_pool_plan *plan, int *ret_kept, char *why, size_t why_len)
{
	struct prefixd_pool *pool = calloc(1, sizeof(*pool));
	const char *what = "a pool";
	int r = -ENOMEM;

	radix_assert(plan->n_ranks <= PREFIXD_RANKS_MAX);
	if (pool) {
		pool->group = plan->group;
		pool->n_ranks = ranks_of(plan);
		r = pool_fill(devices, pool, plan, &what);
	}
	if (r < 0) {
		why_print(devices, plan, what, r, why, why_len);
		prefixd_pool_free(devices, pool);
		return r;
	}
	pool->life = plan->life;
	pool->fresh = plan->fresh;
	/* What was adopted is with him already. */
	*ret_kept = plan->keep && !plan->adopt ? pool_keep(pool, plan->keep) : 0;
	*ret_pool = pool;
	return 0;
}

int prefixd_pool_slots_keep(const struct prefixd_pool *pool, struct prefixd_keep *keep)
{
	return keep_or_drop(pool->group, keep,
			    slots_keep(pool->group, pool->ranks, pool->n_ranks, keep));
}

int prefixd_pool_again(struct prefixd_pool *pool, const struct gpu_devices *devices,
		       const struct prefixd_pool_plan *plan, struct prefixd_pool_slots *ret_slots,
		       int *ret_kept, char *why, size_t why_len)
{
	struct prefixd_pool made = { .group = pool->group, .n_ranks = pool->n_ranks };
	const char *what = "a pool";
	int r = slots_new(devices, &made, plan);

	pool->host_pinned = pool->stage_pinned = false; /* that went with the devices */
	if (r == 0) {
		what = "copies between the device and the host tier";
		r = pin(devices, pool);
	}
	if (r < 0) {
		why_print(devices, plan, what, r, why, why_len);
		unpin(devices, pool);
		for (uint32_t i = 0; i < made.n_ranks; i++)
			if (made.ranks[i].pool)
				made.ranks[i].gpu->ops->pool_free(made.ranks[i].gpu,
								  made.ranks[i].pool);
		return r;
	}
	*ret_kept = plan->keep ? keep_or_drop(pool->group, plan->keep,
					      slots_keep(pool->group, made.ranks, made.n_ranks,
							 plan->keep))
			       : 0;
	memcpy(ret_slots->ranks, made.ranks, sizeof(made.ranks));
	ret_slots->info = made.info;
	ret_slots->life = plan->life;
	return 0;
}

void prefixd_pool_free(const struct gpu_devices *devices, struct prefixd_pool *pool)
{
	if (!pool)
		return;
	if (devices)
		unpin(devices, pool);
	for (uint32_t i = 0; devices && i < pool->n_ranks; i++)
		if (pool->ranks[i].pool)
			pool->ranks[i].gpu->ops->pool_free(pool->ranks[i].gpu, pool->ranks[i].pool);
	gpu_shm_free(&pool->generations);
	prefixd_region_deinit(&pool->table);
	if (pool->host_shm.len > 0)
		gpu_shm_free(&pool->host_shm);
	else
		prefixd_arena_free(&pool->host);
	prefixd_arena_free(&pool->stage);
	free(pool);
}

/* ---- desks ----------------------------------------------------------------------------------- */

int prefixd_desk_memory_new(struct prefixd_desk_memory **ret_desk, struct gpu *gpu,
			    uint32_t n_places, uint64_t slot_bytes, char *why, size_t why_len)
{
	struct prefixd_desk_memory *d = calloc(1, sizeof(*d));
	char total[32];
	int r = -ENOMEM;

	if (d)
		r = gpu->ops->pool_single(gpu, n_places, slot_bytes, &d->pool);
	if (r < 0) {
		free(d);
		snprintf(why, why_len,
			 "no memory for a session to write %u blocks of %llu bytes in (%s): %s; "
			 "lower write-blocks",
			 n_places, (unsigned long long)slot_bytes,
			 prefixd_bytes_print(n_places * slot_bytes, total, sizeof(total)),
			 strerror(-r));
		return r;
	}
	gpu->ops->pool_info(d->pool, &d->info);
	d->gpu = gpu;
	*ret_desk = d;
	return 0;
}

void prefixd_desk_memory_free(struct prefixd_desk_memory *desk, bool open)
{
	if (!desk)
		return;
	if (open)
		desk->gpu->ops->pool_free(desk->gpu, desk->pool);
	free(desk);
}

int prefixd_pools_desk_room(struct prefixd_pools *p, uint32_t id)
{
	struct prefixd_desk_memory **v;

	if (id < p->n_desks)
		return 0;
	v = realloc(p->desks, ((size_t)id + 1) * sizeof(struct prefixd_desk_memory *));
	if (!v)
		return -ENOMEM;
	for (uint32_t i = p->n_desks; i <= id; i++)
		v[i] = NULL;
	p->desks = v;
	p->n_desks = id + 1;
	return 0;
}

int prefixd_pools_desk_fd(const struct prefixd_pools *p, uint32_t id)
{
	const struct prefixd_desk_memory *d = prefixd_pools_desk(p, id);

	radix_assert(d); /* the engine names what is READY */
	return p->ops->pool_fd(d->pool, 0, false);
}

struct prefixd_desk_memory *prefixd_pools_desk(const struct prefixd_pools *p, uint32_t id)
{
	return id < p->n_desks ? p->desks[id] : NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* By their UUIDs, so that no other GPU is taken for one of them. */
static void device_name(struct prefixd_pools *p)
{
	size_t n = (size_t)snprintf(p->device, sizeof(p->device), "%s", p->ops->name);
	char text[GPU_ID_TEXT];
	uint8_t id[16];

	for (uint32_t i = 0; p->ops->kind == GPU_KIND_CUDA && i < p->devices.n; i++) {
		gpu_device_id(p->devices.v[i], id);
		n += (size_t)snprintf(p->device + n, sizeof(p->device) - n, "%s%s", i ? "," : ":",
				      gpu_id_print(id, text) + 4); /* without "GPU-" */
	}
}

int prefixd_pools_init(struct prefixd_pools *p, const char *device, char *why, size_t why_len)
{
	int r;

	*p = (struct prefixd_pools){ 0 };
	r = gpu_devices_open(device, NULL, &p->devices, why, why_len);
	if (r < 0)
		return r;
	p->ops = p->devices.v[0]->ops;
	p->life = 1;
	device_name(p);
	return 0;
}

void prefixd_pools_deinit(struct prefixd_pools *p)
{
	/* First: copies that are under way end here, and pools go with their device. */
	gpu_devices_close(&p->devices);
	for (uint32_t i = 0; i < p->n; i++)
		prefixd_pool_free(NULL, p->v[i]);
	for (uint32_t i = 0; i < p->n_desks; i++)
		prefixd_desk_memory_free(p->desks[i], false);
	free(p->desks);
	free(p->v);
	*p = (struct prefixd_pools){ 0 };
}

int prefixd_pools_room(struct prefixd_pools *p, uint32_t group)
{
	struct prefixd_pool **v;

	if (group < p->n)
		return 0;
	v = realloc(p->v, ((size_t)group + 1) * sizeof(struct prefixd_pool *));
	if (!v)
		return -ENOMEM;
	for (uint32_t i = p->n; i <= group; i++)
		v[i] = NULL;
	p->v = v;
	p->n = group + 1;
	return 0;
}

void prefixd_pools_put(struct prefixd_pools *p, struct prefixd_pool *pool)
{
	radix_assert(pool->group < p->n && !p->v[pool->group]);
	p->v[pool->group] = pool;
	p->host_bytes += pool->host.len;
}

void prefixd_pools_renew(struct prefixd_pools *p, uint32_t group,
			 const struct prefixd_pool_slots *slots)
{
	struct prefixd_pool *pool = p->v[group];

	memcpy(pool->ranks, slots->ranks, sizeof(pool->ranks));
	pool->info = slots->info;
	pool->life = slots->life;
}

bool prefixd_pools_live(const struct prefixd_pools *p, const struct prefixd_pool *pool)
{
	return !p->lost && pool->life == p->life;
}

struct prefixd_pool *prefixd_pools_take(struct prefixd_pools *p, uint32_t group)
{
	struct prefixd_pool *pool = group < p->n ? p->v[group] : NULL;

	if (!pool)
		return NULL;
	p->v[group] = NULL;
	p->host_bytes -= pool->host.len;
	return pool;
}

const struct prefixd_pool *prefixd_pools_get(const struct prefixd_pools *p, uint32_t group)
{
	return group < p->n ? p->v[group] : NULL;
}

uint32_t prefixd_pools_fds(const struct prefixd_pools *p, uint32_t group, uint32_t rank,
			   bool read_only, int ret_fds[PREFIXD_POOL_FDS_MAX])
{
	const struct prefixd_pool *pool = prefixd_pools_get(p, group);
	const struct prefixd_rank *of;
	uint32_t n = 0;

	if (!pool || !prefixd_pools_live(p, pool))
		return 0;
	radix_assert(rank < pool->n_ranks);
	of = &pool->ranks[rank];
	for (; n < of->info.n_slabs; n++) {
		ret_fds[n] = of->gpu->ops->pool_fd(of->pool, n, read_only);
		if (ret_fds[n] == -ENOTSUP) /* the device has one kind: who maps it decides */
			ret_fds[n] = of->gpu->ops->pool_fd(of->pool, n, false);
	}
	ret_fds[n++] = pool->generations.ro_fd;
	return n;
}

void prefixd_pools_poison(struct prefixd_pools *p, uint32_t group, struct radix_run run)
{
	const struct prefixd_pool *pool = prefixd_pools_get(p, group);

	if (!pool || p->ops->kind != GPU_KIND_SIM || !prefixd_pools_live(p, pool))
		return;
	for (uint32_t k = 0; k < pool->n_ranks; k++)
		for (uint32_t i = 0; i < run.len; i++)
			gpu_poison_slot(pool->ranks[k].gpu, pool->ranks[k].pool, run.start + i);
}

uint64_t prefixd_pool_bytes(const struct prefixd_pool *pool)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < pool->n_ranks; i++)
		bytes += pool->ranks[i].info.len;
	return bytes;
}

void *prefixd_pool_slot(const struct prefixd_pool *pool, uint32_t rank, uint32_t slot)
{
	const struct prefixd_rank *of = &pool->ranks[rank];

	return of->gpu->ops->slot_host(of->pool, slot);
}

uint64_t prefixd_pool_host_stride(const struct prefixd_pool_plan *plan)
{
	return prefixd_cold_stride(&plan->cold, plan->slot_bytes, ranks_of(plan));
}

uint64_t prefixd_pool_cold_bytes(const struct prefixd_pool *pool)
{
	return pool->n_ranks * prefixd_cold_bytes(&pool->cold, pool->info.slot_bytes);
}

void *prefixd_pool_host(const struct prefixd_pool *pool, uint32_t slot)
{
	radix_assert(slot < pool->n_host);
	return (char *)pool->host.base + slot * pool->host_stride;
}

void *prefixd_pool_stage(const struct prefixd_pool *pool, uint32_t i)
{
	radix_assert((i + UINT64_C(1)) * pool->block_stride <= pool->stage.len);
	return (char *)pool->stage.base + i * pool->block_stride;
}

void *prefixd_pool_scratch(const struct prefixd_pool *pool, uint32_t i)
{
	return prefixd_pool_stage(pool, pool->n_stage + 1 + i);
}
