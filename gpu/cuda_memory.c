/*
 * cuda_memory.c - pools of device memory, and memory of this process that jobs may reach.
 *
 * A pool is a few slabs, each one allocation with a descriptor of its own, mapped side by side into
 * one range of addresses:
 *
 *     addr                                                       addr + len
 *     | slab 0           | slab 1           | slab 2           | the rest |
 *     | slot 0 | slot 1 | slot 2 | slot 3 | ...
 *
 * What it guarantees.  A slot may lie across two slabs and is one range for all that.  How a pool
 * is cut depends on its numbers and the device's granularity alone, so that a later process cuts it
 * the same way.  New memory is zero when the call returns.  What fails leaves nothing behind.
 *
 * What it relies on.  A descriptor keeps the slab's memory, in whatever process, and says nothing
 * about its length: a longer slab than expected cannot be told from the right one, a shorter one
 * fails to be mapped.
 */
#include "gpu/cuda_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define SLAB_BYTES (UINT64_C(256) << 20)
#define FILL_MS    30000u

static struct cuda_pool *pool_of(const struct gpu_pool *pool)
{
	return radix_container_of((uintptr_t)pool, struct cuda_pool, pool);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Four slabs, of at most SLAB_BYTES, unless that made too many. */
static uint64_t slab_bytes_of(uint64_t len, uint64_t granularity)
{
	uint64_t few = round_up(len, 4) / 4;
	uint64_t many = round_up(len, GPU_SLABS_MAX) / GPU_SLABS_MAX;

	return round_up(few < SLAB_BYTES    ? few
			: many < SLAB_BYTES ? SLAB_BYTES
					    : many,
			granularity);
}

/* The struct alone.  Return: 0, -EINVAL, -ENOMEM. */
static int pool_shape(const struct cuda *c, uint32_t n_slots, uint64_t slot_bytes, bool single,
		      struct cuda_pool **ret_pool)
{
	uint64_t stride, len, slab_bytes;
	struct cuda_pool *p;
	uint32_t n;

	if (n_slots == 0 || slot_bytes == 0 || slot_bytes > INT64_MAX)
		return -EINVAL;
	stride = round_up(slot_bytes, GPU_SLOT_ALIGN);
	if (__builtin_mul_overflow(stride, n_slots, &len) || len > INT64_MAX)
		return -EINVAL;
	len = round_up(len, c->granularity);
	slab_bytes = single ? len : slab_bytes_of(len, c->granularity);
	n = (uint32_t)((len + slab_bytes - 1) / slab_bytes);
	p = calloc(1, sizeof(*p) + n * sizeof(p->fds[0]));
	if (!p)
		return -ENOMEM;
	radix_list_init(&p->pool.link);
	p->pool.shm.len = len;
	p->pool.shm.page_bytes = c->granularity;
	p->pool.shm.fd = p->pool.shm.ro_fd = -1;
	p->pool.n_slots = n_slots;
	p->pool.slot_bytes = slot_bytes;
	p->pool.slot_stride = stride;
	p->slab_bytes = slab_bytes;
	p->device = c->id;
	p->n_slabs = n;
	for (uint32_t i = 0; i < n; i++)
		p->fds[i] = -1;
	*ret_pool = p;
	return 0;
}

static uint64_t slab_len(const struct cuda_pool *p, uint32_t i)
{
	return radix_min_u64(p->slab_bytes, p->pool.shm.len - i * p->slab_bytes);
}

/* Mappings first: addresses that something is mapped at cannot be given back. */
static void pool_unmake(struct cuda *c, struct cuda_pool *p)
{
	for (uint32_t i = 0; i < p->n_mapped; i++)
		gpu_cuda_undo(c, mem_unmap, p->pool.addr + i * p->slab_bytes, slab_len(p, i));
	if (p->reserved)
		gpu_cuda_undo(c, address_free, p->pool.addr, p->pool.shm.len);
	for (uint32_t i = 0; i < p->n_slabs; i++)
		if (p->fds[i] >= 0)
			(void)close(p->fds[i]); /* free whatever close() says */
	radix_list_remove(&p->pool.link);
	free(p);
}

static int slab_export(struct cuda *c, struct cuda_pool *p, uint32_t i, gpu_cu_memory memory)
{
	int fd = -1;
	int r;

	r = gpu_cuda_call(c, mem_export, &fd, memory, GPU_CU_MEM_HANDLE_POSIX_FD, 0);
	if (r < 0)
		return r;
	p->fds[i] = fd;
	return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? -errno : 0;
}

static int slab_map(struct cuda *c, struct cuda_pool *p, uint32_t i, gpu_cu_memory memory)
{
	int r;

	r = gpu_cuda_call(c, mem_map, p->pool.addr + i * p->slab_bytes, slab_len(p, i), 0, memory,
			  0);
	if (r == 0)
		p->n_mapped++;
	return r;
}

/* The mapping and the descriptor hold the memory; the handle is not needed beyond them. */
static int slab_new(struct cuda *c, struct cuda_pool *p, uint32_t i)
{
	gpu_cu_memory memory;
	int r;

	r = gpu_cuda_call(c, mem_create, &memory, slab_len(p, i), &c->prop, 0);
	if (r < 0)
		return r;
	r = p->hidden ? 0 : slab_export(c, p, i, memory);
	if (r == 0)
		r = slab_map(c, p, i, memory);
	gpu_cuda_undo(c, mem_release, memory);
	return r;
}

/*
 * The descriptor stays the caller's until all of the pool is there.  That it is something else than
 * device memory is no fault of the device, whatever words the driver has for it.
 */
static int slab_import(struct cuda *c, struct cuda_pool *p, uint32_t i, int fd)
{
	gpu_cu_memory memory;
	gpu_cu_result found;
	int r;

	if (fd < 0)
		return -EINVAL;
	found = gpu_cuda_ask(c, mem_import, &memory, (void *)(intptr_t)fd,
			     GPU_CU_MEM_HANDLE_POSIX_FD);
	if (found == GPU_CU_INVALID_HANDLE || found == GPU_CU_INVALID_DEVICE ||
	    found == GPU_CU_OPERATING_SYSTEM)
		return -EINVAL;
	if (found != GPU_CU_SUCCESS)
		return gpu_cuda_result(c, gpu_driver_names.mem_import, found);
	r = slab_map(c, p, i, memory);
	gpu_cuda_undo(c, mem_release, memory);
	return r;
}

/* Of `fds`, or new where that is NULL. */
static int pool_map(struct cuda *c, struct cuda_pool *p, const int *fds)
{
	const struct gpu_cu_access_desc access = { c->prop.location, GPU_CU_MEM_ACCESS_READWRITE };
	int r;

	r = gpu_cuda_call(c, address_reserve, &p->pool.addr, p->pool.shm.len, 0, 0, 0);
	if (r < 0)
		return r;
	p->reserved = true;
	for (uint32_t i = 0; r == 0 && i < p->n_slabs; i++)
		r = fds ? slab_import(c, p, i, fds[i]) : slab_new(c, p, i);
	if (r == 0)
		r = gpu_cuda_call(c, mem_access, p->pool.addr, p->pool.shm.len, &access, 1);
	return r;
}

/*
 * Blocks of one user shall not be found in the memory of another, and whoever maps the memory next
 * writes to it at once: so it is zero before anybody hears of it.
 */
static int pool_fill(struct cuda *c, const struct cuda_pool *p)
{
	const struct cuda_lane *lane = &c->lanes[CUDA_IN];
	int r;

	r = gpu_cuda_call(c, set_bytes, p->pool.addr, 0, p->pool.shm.len, lane->stream);
	return r < 0 ? r : gpu_cuda_wait(c, lane, FILL_MS);
}

/* Asked before anything is made: a range for more than there is would take its time to fail. */
static int pool_may(struct cuda *c, uint64_t len)
{
	size_t n_free = 0, total = 0;
	int r;

	r = gpu_cuda_call(c, mem_info, &n_free, &total);
	if (r < 0)
		return r;
	return len > total ? -ENOMEM : 0;
}

static int pool_make(struct cuda *c, const int *fds, uint32_t n_fds, uint32_t n_slots,
		     uint64_t slot_bytes, bool single, struct cuda_pool **ret_pool)
{
	struct cuda_pool *p;
	int r;

	r = gpu_cuda_enter(c);
	if (r < 0)
		return r;
	r = pool_shape(c, n_slots, slot_bytes, single, &p);
	if (r < 0)
		return r;
	r = fds ? (n_fds == p->n_slabs ? 0 : -EINVAL) : pool_may(c, p->pool.shm.len);
	if (r == 0)
		r = pool_map(c, p, fds);
	if (r == 0 && !fds)
		r = pool_fill(c, p);
	if (r < 0) {
		pool_unmake(c, p);
		return r;
	}
	radix_list_add_tail(&c->pools, &p->pool.link);
	*ret_pool = p;
	return 0;
}

static int new_pool(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes, bool single,
		    struct gpu_pool **ret_pool)
{
	struct cuda_pool *p;
	int r;

	r = pool_make(gpu_cuda_of(g), NULL, 0, n_slots, slot_bytes, single, &p);
	if (r < 0)
		return r;
	*ret_pool = &p->pool;
	return 0;
}

int gpu_cuda_pool_new(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
		      struct gpu_pool **ret_pool)
{
	return new_pool(g, n_slots, slot_bytes, false, ret_pool);
}

int gpu_cuda_pool_single(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
			 struct gpu_pool **ret_pool)
{
	return new_pool(g, n_slots, slot_bytes, true, ret_pool);
}

int gpu_cuda_pool_adopt(struct gpu *g, const int *fds, uint32_t n_fds, uint32_t n_slots,
			uint64_t slot_bytes, struct gpu_pool **ret_pool)
{
	struct cuda_pool *p;
	int r;

	r = pool_make(gpu_cuda_of(g), fds, n_fds, n_slots, slot_bytes, false, &p);
	if (r < 0)
		return r;
	memcpy(p->fds, fds, n_fds * sizeof(fds[0])); /* the pool's from here on */
	*ret_pool = &p->pool;
	return 0;
}

void gpu_cuda_pool_free(struct gpu *g, struct gpu_pool *pool)
{
	struct cuda *c = gpu_cuda_of(g);

	if (!pool)
		return;
	radix_assert(!gpu_cuda_touches(c, pool));
	(void)gpu_cuda_enter(c); /* lost: what was taken is given back all the same */
	pool_unmake(c, pool_of(pool));
}

void gpu_cuda_pool_info(const struct gpu_pool *pool, struct gpu_pool_info *ret_info)
{
	const struct cuda_pool *p = pool_of(pool);

	*ret_info = (struct gpu_pool_info){
		.n_slots = pool->n_slots,
		.slot_bytes = pool->slot_bytes,
		.slot_stride = pool->slot_stride,
		.len = pool->shm.len,
		.page_bytes = pool->shm.page_bytes,
		.huge = true,
		.sealed = true, /* an allocation has the length that it was made with */
		.n_slabs = p->n_slabs,
		.slab_bytes = p->slab_bytes,
	};
	memcpy(ret_info->device_id, p->device.b, sizeof(ret_info->device_id));
}

/* A descriptor of device memory always grants writing. */
int gpu_cuda_pool_fd(struct gpu_pool *pool, uint32_t slab, bool read_only)
{
	const struct cuda_pool *p = pool_of(pool);

	radix_assert(slab < p->n_slabs);
	return read_only ? -ENOTSUP : p->fds[slab];
}

/*
 * Memory of the device until the close, which is in no pool: nobody maps it, and no job may name
 * it.  It holds anything.  Return: 0, -ENOMEM, -EINVAL, -ENODEV.
 */
int gpu_cuda_stage_new(struct cuda *c, uint64_t len, gpu_cu_ptr *ret_addr)
{
	struct cuda_pool *p;
	int r;

	r = pool_shape(c, 1, len, true, &p);
	if (r < 0)
		return r;
	p->hidden = true;
	r = pool_map(c, p, NULL);
	if (r < 0) {
		pool_unmake(c, p);
		return r;
	}
	radix_list_add_tail(&c->stages, &p->pool.link);
	*ret_addr = p->pool.addr;
	return 0;
}

/* ---- memory of this process ------------------------------------------------------------------ */

static void unregister(struct cuda *c, uint64_t addr, uint64_t len)
{
	for (uint64_t at = 0; at < len; at += CUDA_PIN_BYTES)
		gpu_cuda_undo(c, host_unregister, (void *)(uintptr_t)(addr + at));
}

/* In parts: one call for all of it would keep the driver's lock for seconds. */
static int register_parts(struct cuda *c, uint64_t addr, uint64_t len)
{
	gpu_cu_result r;

	for (uint64_t at = 0; at < len; at += CUDA_PIN_BYTES) {
		r = gpu_cuda_ask(c, host_register, (void *)(uintptr_t)(addr + at),
				 radix_min_u64(CUDA_PIN_BYTES, len - at),
				 GPU_CU_MEMHOSTREGISTER_PORTABLE);
		if (r == GPU_CU_SUCCESS)
			continue;
		unregister(c, addr, at);
		return gpu_cuda_result(c, gpu_driver_names.host_register, r);
	}
	return 0;
}

/* Memory is registered once; the driver would refuse it too. */
static bool pinned_already(const struct cuda *c, uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, &c->pins) {
		const struct cuda_pin *pin = radix_list_entry(it, struct cuda_pin, link);

		if (addr < pin->addr + pin->len && pin->addr < addr + len)
			return true;
	}
	return false;
}

/* `known`: it is registered already, for all devices of the process. */
static int pin_new(struct cuda *c, void *p, uint64_t len, bool known)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), addr = (uintptr_t)p;
	struct cuda_pin *pin;
	uint64_t end;
	int r;

	if (addr == 0 || len == 0 || addr % page || len % page ||
	    __builtin_add_overflow(addr, len, &end) || pinned_already(c, addr, len))
		return -EINVAL;
	r = gpu_cuda_enter(c);
	if (r < 0)
		return r;
	pin = calloc(1, sizeof(*pin));
	if (!pin)
		return -ENOMEM;
	r = known ? 0 : register_parts(c, addr, len);
	if (r < 0) {
		free(pin);
		return r;
	}
	*pin = (struct cuda_pin){ .addr = addr, .len = len, .known = known };
	radix_list_add_tail(&c->pins, &pin->link);
	return 0;
}

int gpu_cuda_host_pin(struct gpu *g, void *p, uint64_t len)
{
	return pin_new(gpu_cuda_of(g), p, len, false);
}

/*
 * Another device of this process has pinned it, and keeps it so until it is unpinned here.  Return:
 * as gpu_cuda_host_pin().
 */
int gpu_cuda_host_know(struct gpu *g, void *p, uint64_t len)
{
	return pin_new(gpu_cuda_of(g), p, len, true);
}

static void unpin(struct cuda *c, struct cuda_pin *pin)
{
	if (!pin->known)
		unregister(c, pin->addr, pin->len);
	radix_list_remove(&pin->link);
	free(pin);
}

void gpu_cuda_host_unpin(struct gpu *g, void *p)
{
	struct cuda *c = gpu_cuda_of(g);
	struct radix_list *it;

	radix_list_foreach(it, &c->pins) {
		struct cuda_pin *pin = radix_list_entry(it, struct cuda_pin, link);

		if (pin->addr != (uintptr_t)p)
			continue;
		radix_assert(!gpu_cuda_reaches(c, pin->addr, pin->len));
		(void)gpu_cuda_enter(c); /* as for pools */
		unpin(c, pin);
		return;
	}
}

/* The registered memory that all of [addr, addr + len) lies in, or NULL. */
const struct cuda_pin *gpu_cuda_pin_find(const struct cuda *c, uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, &c->pins) {
		const struct cuda_pin *pin = radix_list_entry(it, struct cuda_pin, link);

		if (addr >= pin->addr && addr - pin->addr < pin->len &&
		    len <= pin->len - (addr - pin->addr))
			return pin;
	}
	return NULL;
}

void gpu_cuda_memory_deinit(struct cuda *c)
{
	while (!radix_list_empty(&c->pools))
		pool_unmake(c, pool_of(radix_list_first(&c->pools, struct gpu_pool, link)));
	while (!radix_list_empty(&c->stages))
		pool_unmake(c, pool_of(radix_list_first(&c->stages, struct gpu_pool, link)));
	while (!radix_list_empty(&c->pins))
		unpin(c, radix_list_first(&c->pins, struct cuda_pin, link));
}
