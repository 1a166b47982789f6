/*
 * host.c - pools in ordinary memory, for engines that compute on the CPU.
 *
 * What it guarantees.  Workers that map a pool's descriptor see each other's bytes at the same
 * offset without a copy.  Copies run in order, inside reap(), and never hold its caller for more
 * than REAP_BYTES of memcpy: a long copy continues with the next call, and event_fd stays readable
 * until then.  The device cannot be lost.
 *
 * Jobs run in reap() and not on a thread of this file's own, so that the folder has no locks; the
 * daemon decides on which thread it reaps.
 */
#include "gpu/gpu_internal.h"

#include <stdlib.h>

/* About 50 us at 10 GB/s. */
#define REAP_BYTES (UINT64_C(512) << 10)

struct host {
	struct gpu gpu;
	struct radix_list pools;
	struct gpu_queue queue;
	struct gpu_signal signal;
	bool closing;
};

static struct host *host_of(const struct gpu *g)
{
	return radix_container_of((uintptr_t)g, struct host, gpu);
}

static void *host_ptr(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

static void host_finish(struct gpu_job *job, int status)
{
	job->status = status;
	job->done(job, status);
}

static void host_close(struct gpu *g)
{
	struct host *h = host_of(g);
	struct gpu_job *job;

	h->closing = true;
	while ((job = gpu_queue_pop(&h->queue)))
		host_finish(job, -ENODEV);
	while (!radix_list_empty(&h->pools))
		gpu_pool_drop(radix_list_first(&h->pools, struct gpu_pool, link));
	gpu_signal_deinit(&h->signal);
	free(h);
}

static int host_pool_new(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
			 struct gpu_pool **ret_pool)
{
	return gpu_pool_make(&host_of(g)->pools, n_slots, slot_bytes, ret_pool);
}

static int host_pool_adopt(struct gpu *g, const int *fds, uint32_t n_fds, uint32_t n_slots,
			   uint64_t slot_bytes, struct gpu_pool **ret_pool)
{
	return gpu_pool_adopt(&host_of(g)->pools, fds, n_fds, n_slots, slot_bytes, ret_pool);
}

static void host_pool_free(struct gpu *g, struct gpu_pool *pool)
{
	if (!pool)
		return;
	radix_assert(!gpu_queue_touches(&host_of(g)->queue, pool));
	gpu_pool_drop(pool);
}

static void *host_slot_host(const struct gpu_pool *pool, uint32_t slot)
{
	return host_ptr(gpu_pool_slot_addr(pool, slot));
}

/* due_ns counts the bytes already copied: the field is the driver's, and there is no clock here. */
static int host_submit(struct gpu *g, struct gpu_job *job)
{
	struct host *h = host_of(g);
	int r;

	if (h->closing)
		return -ENODEV;
	r = gpu_job_check(g, job);
	if (r < 0)
		return r;
	if (!gpu_pool_find(&h->pools, job->dst, job->len) &&
	    !gpu_pool_find(&h->pools, job->src, job->len))
		return -EINVAL;
	job->due_ns = 0;
	job->uncodable = false;
	job->status = 0;
	gpu_queue_push(&h->queue, job);
	gpu_signal_set(&h->signal, true);
	return 0;
}

static int host_event_fd(const struct gpu *g)
{
	return host_of(g)->signal.fd;
}

static uint32_t host_reap(struct gpu *g, uint32_t budget)
{
	struct host *h = host_of(g);
	uint64_t bytes_left = REAP_BYTES;
	uint32_t n = 0;

	while (h->queue.head && n < budget && bytes_left > 0) {
		struct gpu_job *job = h->queue.head;
		uint64_t step = radix_min_u64(job->len - job->due_ns, bytes_left);

		memcpy(host_ptr(job->dst + job->due_ns), host_ptr(job->src + job->due_ns), step);
		job->due_ns += step;
		bytes_left -= step;
		if (job->due_ns < job->len)
			break;
		(void)gpu_queue_pop(&h->queue);
		host_finish(job, 0);
		n++;
	}
	gpu_signal_set(&h->signal, h->queue.head != NULL);
	return n;
}

static int host_health(struct gpu *g)
{
	return 0;
}

static const struct gpu_ops host_ops = {
	.name = "host",
	.kind = GPU_KIND_HOST,
	.grace_ns = 0, /* a CPU stops writing when its process ends */
	.close = host_close,
	.pool_new = host_pool_new,
	.pool_single = host_pool_new,
	.pool_adopt = host_pool_adopt,
	.pool_free = host_pool_free,
	.pool_info = gpu_pool_info,
	.pool_fd = gpu_pool_fd,
	.slot_addr = gpu_pool_slot_addr,
	.slot_host = host_slot_host,
	.host_pin = gpu_no_pin,
	.host_unpin = gpu_no_unpin,
	.codes = gpu_no_codes,
	.submit = host_submit,
	.event_fd = host_event_fd,
	.reap = host_reap,
	.health = host_health,
};

/* Return: 0, -ENOMEM, or what eventfd() said. */
int gpu_host_open(struct gpu **ret_gpu)
{
	struct host *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	r = gpu_signal_init(&h->signal);
	if (r < 0) {
		free(h);
		return r;
	}
	h->gpu.ops = &host_ops;
	radix_list_init(&h->pools);
	gpu_queue_init(&h->queue);
	*ret_gpu = &h->gpu;
	return 0;
}
