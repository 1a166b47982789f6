/*
 * pool.c - pools cut from a memfd, and the small parts that host and sim share: the list of jobs
 * and the eventfd that says "reap() has work".
 *
 * What it guarantees.  A pool's slots never overlap, start at multiples of 64 bytes and lie inside
 * the memory.  A job that passed gpu_job_check() has a length, a callback, and ranges that neither
 * wrap around nor overlap.
 */
#include "gpu/gpu_internal.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Return: 0 with *ret_len, the bytes of all slots; -EINVAL; -ENOMEM. */
static int pool_shape(struct gpu_pool **ret_pool, uint32_t n_slots, uint64_t slot_bytes,
		      uint64_t *ret_len)
{
	const uint64_t mask = GPU_SLOT_ALIGN - 1;
	struct gpu_pool *pool;

	if (n_slots == 0 || slot_bytes == 0 || slot_bytes > INT64_MAX)
		return -EINVAL;
	if (__builtin_mul_overflow((slot_bytes + mask) & ~mask, n_slots, ret_len))
		return -EINVAL;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->n_slots = n_slots;
	pool->slot_bytes = slot_bytes;
	pool->slot_stride = (slot_bytes + mask) & ~mask;
	*ret_pool = pool;
	return 0;
}

static void pool_list(struct radix_list *pools, struct gpu_pool *pool)
{
	pool->addr = (uintptr_t)pool->shm.base;
	radix_list_add_tail(pools, &pool->link);
}

/*
 * The new pool is on `pools`, its addr is the mapping's.  Return: 0, -EINVAL for sizes of 0 or
 * beyond 64 bits, -ENOMEM, or what gpu_shm_new() said.
 */
int gpu_pool_make(struct radix_list *pools, uint32_t n_slots, uint64_t slot_bytes,
		  struct gpu_pool **ret_pool)
{
	struct gpu_pool *pool;
	uint64_t len;
	int r;

	r = pool_shape(&pool, n_slots, slot_bytes, &len);
	if (r < 0)
		return r;
	r = gpu_shm_new(&pool->shm, "prefixd-pool", len, true, true);
	if (r < 0) {
		free(pool);
		return r;
	}
	pool_list(pools, pool);
	*ret_pool = pool;
	return 0;
}

/*
 * The same, of memory that is there: no more and no less than these slots need.  Return: 0, -EINVAL
 * for other memory, -ENOMEM, or what gpu_shm_adopt() said; it stays the caller's then.
 */
int gpu_pool_adopt(struct radix_list *pools, const int *fds, uint32_t n_fds, uint32_t n_slots,
		   uint64_t slot_bytes, struct gpu_pool **ret_pool)
{
	struct gpu_pool *pool;
	uint64_t len;
	int r;

	r = pool_shape(&pool, n_slots, slot_bytes, &len);
	if (r < 0)
		return r;
	r = n_fds == 1 ? gpu_shm_adopt(&pool->shm, fds[0], len, true) : -EINVAL;
	if (r == 0 && pool->shm.len - len >= pool->shm.page_bytes) {
		pool->shm.fd = -1; /* stays the caller's */
		gpu_shm_free(&pool->shm);
		r = -EINVAL;
	}
	if (r < 0) {
		free(pool);
		return r;
	}
	pool_list(pools, pool);
	*ret_pool = pool;
	return 0;
}

/* No job of the pool is in flight: its memory goes away here. */
void gpu_pool_drop(struct gpu_pool *pool)
{
	radix_list_remove(&pool->link);
	gpu_shm_free(&pool->shm);
	free(pool);
}

void gpu_pool_info(const struct gpu_pool *pool, struct gpu_pool_info *ret_info)
{
	*ret_info = (struct gpu_pool_info){
		.n_slots = pool->n_slots,
		.slot_bytes = pool->slot_bytes,
		.slot_stride = pool->slot_stride,
		.len = pool->shm.len,
		.page_bytes = pool->shm.page_bytes,
		.huge = pool->shm.page_bytes > (uint64_t)sysconf(_SC_PAGESIZE),
		.sealed = true,
		.n_slabs = 1,
		.slab_bytes = pool->shm.len,
	};
}

int gpu_pool_fd(struct gpu_pool *pool, uint32_t slab, bool read_only)
{
	radix_assert(slab == 0);
	return read_only ? pool->shm.ro_fd : pool->shm.fd;
}

/* Copies that the CPU makes need no pinned memory. */
int gpu_no_pin(struct gpu *g, void *p, uint64_t len)
{
	(void)g;
	return p && len ? 0 : -EINVAL;
}

void gpu_no_unpin(struct gpu *g, void *p)
{
	(void)g;
	(void)p;
}

/* Of a device that moves bytes and knows nothing of them. */
bool gpu_no_codes(const struct gpu *g)
{
	(void)g;
	return false;
}

uint64_t gpu_pool_slot_addr(const struct gpu_pool *pool, uint32_t slot)
{
	radix_assert(slot < pool->n_slots);
	return pool->addr + slot * pool->slot_stride;
}

/* The pool that [addr, addr + len) lies in entirely, or NULL.  Few pools: a walk is enough. */
struct gpu_pool *gpu_pool_find(const struct radix_list *pools, uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, pools) {
		struct gpu_pool *pool = radix_list_entry(it, struct gpu_pool, link);

		if (addr >= pool->addr && addr - pool->addr < pool->shm.len &&
		    len <= pool->shm.len - (addr - pool->addr))
			return pool;
	}
	return NULL;
}

/* Does a job of the queue have a side that begins in the pool? */
bool gpu_queue_touches(const struct gpu_queue *q, const struct gpu_pool *pool)
{
	for (const struct gpu_job *job = q->head; job; job = job->next)
		if (job->dst - pool->addr < pool->shm.len || job->src - pool->addr < pool->shm.len)
			return true;
	return false;
}

/* Return: 0; -ENOTSUP: it is more than a copy, on a device that only copies; -EINVAL. */
int gpu_job_check(const struct gpu *g, const struct gpu_job *job)
{
	uint64_t dst_end, src_end, len = job->len;

	if (job->len == 0 || !job->done)
		return -EINVAL;
	if ((job->coded || job->want_sum) && !g->ops->codes(g))
		return -ENOTSUP;
	if (job->coded && !gpu_coded_ok(job->coded, len))
		return -EINVAL;
	if (job->want_sum && (len > INT32_MAX || len % 2))
		return -EINVAL;
	/* Half an element is none. */
	if ((job->coded || job->want_sum) && (job->dst | job->src) % 2)
		return -EINVAL;
	if (job->coded) {
		uint64_t packed = gpu_coded_bytes(job->coded);

		len = packed > len ? packed : len;
	}
	if (__builtin_add_overflow(job->dst, len, &dst_end) ||
	    __builtin_add_overflow(job->src, len, &src_end))
		return -EINVAL;
	/* What an overlapping copy leaves behind differs from device to device. */
	if (job->dst < src_end && job->src < dst_end)
		return -EINVAL;
	return 0;
}

void gpu_queue_init(struct gpu_queue *q)
{
	*q = (struct gpu_queue){ .tail = &q->head };
}

void gpu_queue_push(struct gpu_queue *q, struct gpu_job *job)
{
	job->next = NULL;
	*q->tail = job;
	q->tail = &job->next;
	q->n++;
}

/* Takes out the job that *at points to; `at` is the head or some job's next. */
void gpu_queue_unlink(struct gpu_queue *q, struct gpu_job **at)
{
	struct gpu_job *job = *at;

	*at = job->next;
	if (q->tail == &job->next)
		q->tail = at;
	job->next = NULL;
	q->n--;
}

struct gpu_job *gpu_queue_pop(struct gpu_queue *q)
{
	struct gpu_job *job = q->head;

	if (job)
		gpu_queue_unlink(q, &q->head);
	return job;
}

int gpu_signal_init(struct gpu_signal *s)
{
	s->raised = false;
	s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return s->fd < 0 ? -errno : 0;
}

void gpu_signal_deinit(struct gpu_signal *s)
{
	if (s->fd >= 0)
		(void)close(s->fd);
	s->fd = -1;
}

void gpu_signal_set(struct gpu_signal *s, bool raised)
{
	eventfd_t value;

	if (s->raised == raised)
		return;
	/* Neither call can fail: the counter holds 0 or 1 and nobody else touches it. */
	if (raised)
		(void)eventfd_write(s->fd, 1);
	else
		(void)eventfd_read(s->fd, &value);
	s->raised = raised;
}
