/*
 * sim.c - a device in this process, for tests and for trying the daemon without a GPU.
 *
 * What it guarantees.  It behaves like the worst real device that keeps the contract.  Data moves
 * when a copy falls due on the virtual clock and not before, so code that does not wait reads
 * poison.  Device addresses lie in a window that no CPU can load from, so code that mixes up host
 * and device addresses dies at once.  A copy that leaves its pool loses the device.  The plan makes
 * each failure happen at a chosen count.  The same calls with the same plan give the same results.
 *
 * What it relies on.  One thread.  Whoever drives it calls gpu_sim_advance(); time does not pass
 * by itself.
 *
 * Pools are memfds as on the host back end, so that workers in other processes can map them: there
 * the sim is a device whose memory happens to be loadable.
 */
#include "gpu/codec.h"
#include "gpu/gpu_internal.h"

#include <stdlib.h>
#include <sys/mman.h>

#define WINDOW_TRIES 16
#define QUEUE_DEPTH  1024
#define REORDER_LOOK 16 /* how far a job may be overtaken, in places of the queue */
#define NEVER        UINT64_MAX

struct sim {
	struct gpu gpu;
	struct gpu_sim_config plan;
	struct radix_list pools;
	struct gpu_queue queue; /* not yet due */
	struct gpu_queue ready; /* waiting for reap() */
	struct gpu_signal signal;
	uint64_t window; /* first device address */
	uint64_t window_bytes;
	uint64_t next_addr; /* where the next pool is tried */
	uint64_t pool_bytes;
	uint64_t now_ns;
	uint64_t busy_until_ns; /* of the one copy engine */
	uint64_t rng;
	uint32_t n_allocs;
	uint32_t n_submits;
	uint32_t n_coded;
	uint32_t n_jobs;
	bool lost;
	bool left; /* the memory outlives the device */
};

static struct sim *sim_of(const struct gpu *g)
{
	return radix_container_of((uintptr_t)g, struct sim, gpu);
}

static uint64_t add_sat(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? NEVER : sum;
}

/* splitmix64: any seed is as good as any other. */
static uint64_t sim_random(struct sim *s)
{
	uint64_t z = s->rng += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/*
 * PROT_NONE keeps everything else out of the window and makes every load from it fault.  A second
 * device takes the window below; where the kernel lets us have none of them, it chooses.
 */
static int window_reserve(uint64_t bytes, uint64_t *ret_addr)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *p;

	for (uint64_t i = 0; i < WINDOW_TRIES; i++) {
		uint64_t want = GPU_SIM_ADDR - i * GPU_SIM_WINDOW;

		p = mmap((void *)(uintptr_t)want, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1,
			 0);
		if (p != MAP_FAILED) {
			*ret_addr = (uintptr_t)p;
			return 0;
		}
	}
	p = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	*ret_addr = (uintptr_t)p;
	return 0;
}

static bool sim_is_device(const struct sim *s, uint64_t addr, uint64_t len)
{
	return addr < s->window + s->window_bytes && addr + len > s->window;
}

/* Would `len` bytes at `addr`, gap included, lie in the window and clear of all pools? */
static bool range_free(const struct sim *s, uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	if (addr + len > s->window + s->window_bytes)
		return false;
	radix_list_foreach(it, &s->pools) {
		const struct gpu_pool *pool = radix_list_entry(it, struct gpu_pool, link);

		if (addr < pool->addr + pool->shm.len + GPU_SIM_POOL_GAP && pool->addr < addr + len)
			return false;
	}
	return true;
}

/*
 * Addresses are handed out upwards and come back only when the window is used up: the address of a
 * freed pool stays invalid as long as possible.  Return: 0, -ENOMEM.
 */
static int range_take(struct sim *s, uint64_t len, uint64_t *ret_addr)
{
	struct radix_list *it;
	uint64_t addr = s->next_addr;

	len += GPU_SIM_POOL_GAP;
	if (len > s->window_bytes - GPU_SIM_POOL_GAP)
		return -ENOMEM;
	if (!range_free(s, addr, len))
		addr = s->window + GPU_SIM_POOL_GAP;
	for (it = s->pools.next; it != &s->pools && !range_free(s, addr, len); it = it->next) {
		const struct gpu_pool *pool = radix_list_entry(it, struct gpu_pool, link);

		addr = pool->addr + pool->shm.len + GPU_SIM_POOL_GAP;
	}
	if (!range_free(s, addr, len))
		return -ENOMEM;
	s->next_addr = addr + len;
	*ret_addr = addr;
	return 0;
}

/* The bytes behind an address of either kind; NULL: outside every pool. */
static void *sim_view(const struct sim *s, uint64_t addr, uint64_t len)
{
	const struct gpu_pool *pool;

	if (!sim_is_device(s, addr, len))
		return (void *)(uintptr_t)addr;
	pool = gpu_pool_find(&s->pools, addr, len);
	return pool ? (char *)pool->shm.base + (addr - pool->addr) : NULL;
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* Whether the device may have one more pool.  Asked before memory is made: that is to be spared. */
static int sim_pool_may(struct sim *s, uint32_t n_slots, uint64_t slot_bytes)
{
	uint64_t total;

	if (s->lost)
		return -ENODEV;
	if (++s->n_allocs == s->plan.fail_alloc)
		return -ENOMEM;
	if (s->plan.capacity &&
	    (__builtin_mul_overflow(slot_bytes, n_slots, &total) ||
	     total > s->plan.capacity - radix_min_u64(s->plan.capacity, s->pool_bytes)))
		return -ENOMEM;
	return 0;
}

/* From the list it was made on into the window. */
static int sim_pool_place(struct sim *s, struct gpu_pool *pool)
{
	uint64_t addr;
	int r = range_take(s, pool->shm.len, &addr);

	if (r < 0)
		return r;
	radix_list_remove(&pool->link);
	pool->addr = addr;
	radix_list_add_tail(&s->pools, &pool->link);
	s->pool_bytes += pool->slot_bytes * pool->n_slots;
	return 0;
}

static int sim_pool_new(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
			struct gpu_pool **ret_pool)
{
	struct sim *s = sim_of(g);
	struct radix_list made;
	struct gpu_pool *pool;
	int r;

	r = sim_pool_may(s, n_slots, slot_bytes);
	if (r < 0)
		return r;
	radix_list_init(&made);
	r = gpu_pool_make(&made, n_slots, slot_bytes, &pool);
	if (r < 0)
		return r;
	r = sim_pool_place(s, pool);
	if (r < 0) {
		gpu_pool_drop(pool);
		return r;
	}
	memset(pool->shm.base, GPU_SIM_NEW, pool->shm.len);
	*ret_pool = pool;
	return 0;
}

static int sim_pool_adopt(struct gpu *g, const int *fds, uint32_t n_fds, uint32_t n_slots,
			  uint64_t slot_bytes, struct gpu_pool **ret_pool)
{
	struct sim *s = sim_of(g);
	struct radix_list made;
	struct gpu_pool *pool;
	int r;

	r = sim_pool_may(s, n_slots, slot_bytes);
	if (r < 0)
		return r;
	radix_list_init(&made);
	r = gpu_pool_adopt(&made, fds, n_fds, n_slots, slot_bytes, &pool);
	if (r < 0)
		return r;
	r = sim_pool_place(s, pool);
	if (r < 0) {
		pool->shm.fd = -1; /* stays the caller's */
		gpu_pool_drop(pool);
		return r;
	}
	*ret_pool = pool;
	return 0;
}

/* A worker that still maps the memory sees the poison of freed memory. */
static void sim_pool_free(struct gpu *g, struct gpu_pool *pool)
{
	struct sim *s = sim_of(g);

	if (!pool)
		return;
	radix_assert(!gpu_queue_touches(&s->queue, pool) && !gpu_queue_touches(&s->ready, pool));
	if (!s->left)
		memset(pool->shm.base, GPU_SIM_FREED, pool->shm.len);
	s->pool_bytes -= pool->slot_bytes * pool->n_slots;
	gpu_pool_drop(pool);
}

static void *sim_slot_host(const struct gpu_pool *pool, uint32_t slot)
{
	return NULL;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void sim_signal(struct sim *s)
{
	bool work = s->ready.head != NULL;

	for (struct gpu_job *job = s->queue.head; job && !work; job = job->next)
		work = job->due_ns <= s->now_ns;
	gpu_signal_set(&s->signal, work);
}

static void sim_settle(struct sim *s, struct gpu_job **at, int status)
{
	struct gpu_job *job = *at;

	gpu_queue_unlink(&s->queue, at);
	job->status = status;
	gpu_queue_push(&s->ready, job);
}

/* Sticky: whatever is queued fails with it, jobs that already fell due keep their result. */
static void sim_lose(struct sim *s)
{
	s->lost = true;
	while (s->queue.head)
		sim_settle(s, &s->queue.head, -ENODEV);
}

/* Both sides can be looked at.  Coded and summed as a device's kernels would, by this processor. */
static void sim_perform(struct gpu_job *job, void *dst, void *src, bool in)
{
	if (!job->coded)
		memcpy(dst, src, job->len);
	else if (in)
		gpu_coded_decode(job->coded, src, dst);
	else
		job->uncodable = !gpu_coded_encode(job->coded, src, dst);
	if (job->want_sum)
		gpu_checksum(gpu_codec_best(), in ? dst : src, job->len, job->sum);
}

/* The n-th job as counted at submission travels in `status` until it is settled. */
static void sim_fall_due(struct sim *s, struct gpu_job **at)
{
	struct gpu_job *job = *at;
	const uint64_t packed = job->coded ? gpu_coded_bytes(job->coded) : job->len;
	const bool in = sim_is_device(s, job->dst, job->len);
	uint32_t nth = (uint32_t)job->status;
	void *dst, *src;

	if (nth == s->plan.lose_at_job) {
		sim_lose(s);
		return;
	}
	if (nth == s->plan.fail_job) {
		sim_settle(s, at, -EIO);
		return;
	}
	dst = sim_view(s, job->dst, in ? job->len : packed);
	src = sim_view(s, job->src, in ? packed : job->len);
	if (!dst || !src) {
		sim_lose(s);
		return;
	}
	sim_perform(job, dst, src, in);
	sim_settle(s, at, 0);
}

static bool share_pool(const struct sim *s, const struct gpu_job *a, const struct gpu_job *b)
{
	const struct gpu_pool *a1 = gpu_pool_find(&s->pools, a->dst, a->len);
	const struct gpu_pool *a2 = gpu_pool_find(&s->pools, a->src, a->len);
	const struct gpu_pool *b1 = gpu_pool_find(&s->pools, b->dst, b->len);
	const struct gpu_pool *b2 = gpu_pool_find(&s->pools, b->src, b->len);

	return (a1 && (a1 == b1 || a1 == b2)) || (a2 && (a2 == b1 || a2 == b2));
}

/* May *at go now?  Nothing on one of its pools may be waiting before it. */
static bool may_go(const struct sim *s, struct gpu_job *const *at)
{
	if ((*at)->due_ns > s->now_ns)
		return false;
	for (const struct gpu_job *it = s->queue.head; it != *at; it = it->next)
		if (it->due_ns != NEVER && share_pool(s, it, *at))
			return false;
	return true;
}

/*
 * The next job to fall due, or NULL.  In order without a seed; with one, any of the first few that
 * overtakes nothing on its own pools.
 */
static struct gpu_job **sim_pick(struct sim *s)
{
	struct gpu_job **may[REORDER_LOOK];
	struct gpu_job **at;
	uint32_t n = 0;

	for (at = &s->queue.head; *at; at = &(*at)->next) {
		if (!s->plan.reorder_seed && (*at)->due_ns <= s->now_ns)
			return at;
		if (s->plan.reorder_seed && may_go(s, at))
			may[n++] = at;
		if (n == REORDER_LOOK)
			break;
	}
	return n ? may[sim_random(s) % n] : NULL;
}

static void sim_run_due(struct sim *s)
{
	struct gpu_job **at;

	while ((at = sim_pick(s)))
		sim_fall_due(s, at);
	sim_signal(s);
}

/*
 * One engine copies, so a job's cost comes behind the jobs before it; latency does not keep the
 * engine busy.  With a seed, jobs are late by up to four times as much, so that the next few
 * overtake them, but none on the same pool.
 */
static uint64_t sim_due(struct sim *s, const struct gpu_job *job)
{
	struct gpu_pool *pools[2] = { gpu_pool_find(&s->pools, job->dst, job->len),
				      gpu_pool_find(&s->pools, job->src, job->len) };
	uint64_t cost, due;

	if (__builtin_mul_overflow((job->len + 1023) / 1024, s->plan.ns_per_kib, &cost))
		cost = NEVER - 1;
	if (s->busy_until_ns < s->now_ns)
		s->busy_until_ns = s->now_ns;
	s->busy_until_ns = add_sat(s->busy_until_ns, cost);
	due = add_sat(s->busy_until_ns, s->plan.latency_ns);
	if (s->plan.reorder_seed) {
		uint64_t span = add_sat(cost, s->plan.latency_ns);

		span = add_sat(add_sat(span, span), add_sat(span, span));
		due = add_sat(due, sim_random(s) % (span | 1));
	}
	/* NEVER is kept for jobs that the plan holds back. */
	due = radix_min_u64(due, NEVER - 1);
	for (size_t i = 0; i < radix_array_size(pools); i++)
		if (pools[i] && due < pools[i]->busy_until_ns)
			due = pools[i]->busy_until_ns;
	for (size_t i = 0; i < radix_array_size(pools); i++)
		if (pools[i])
			pools[i]->busy_until_ns = due;
	return due;
}

/*
 * An address inside the window but outside every pool is accepted, as a real device does, and
 * loses the device when the copy falls due.
 */
static int sim_submit(struct gpu *g, struct gpu_job *job)
{
	struct sim *s = sim_of(g);
	uint32_t depth = s->plan.queue_depth ? s->plan.queue_depth : QUEUE_DEPTH;
	int r;

	if (s->lost)
		return -ENODEV;
	r = gpu_job_check(g, job);
	if (r < 0)
		return r;
	if (!sim_is_device(s, job->dst, job->len) && !sim_is_device(s, job->src, job->len))
		return -EINVAL;
	if (job->coded && sim_is_device(s, job->dst, 1) && sim_is_device(s, job->src, 1))
		return -EINVAL; /* the packed form lies in host memory */
	if (job->coded && ++s->n_coded == s->plan.fail_coded)
		return -ENOMEM;
	if (++s->n_submits == s->plan.fail_submit || s->queue.n + s->ready.n >= depth)
		return -EAGAIN;
	s->n_jobs++;
	job->uncodable = false;
	job->status = (int)s->n_jobs;
	job->due_ns = s->n_jobs == s->plan.never_complete ? NEVER : sim_due(s, job);
	gpu_queue_push(&s->queue, job);
	if (job->due_ns <= s->now_ns)
		gpu_signal_set(&s->signal, true);
	return 0;
}

static bool sim_codes(const struct gpu *g)
{
	return sim_of(g)->plan.codes;
}

static int sim_event_fd(const struct gpu *g)
{
	return sim_of(g)->signal.fd;
}

static uint32_t sim_reap(struct gpu *g, uint32_t budget)
{
	struct sim *s = sim_of(g);
	struct gpu_job *job;
	uint32_t n = 0;

	sim_run_due(s);
	while (n < budget && (job = gpu_queue_pop(&s->ready))) {
		job->done(job, job->status);
		n++;
	}
	sim_signal(s);
	return n;
}

static int sim_health(struct gpu *g)
{
	return sim_of(g)->lost ? -ENODEV : 0;
}

/* ---- the device ------------------------------------------------------------------------------ */

static void sim_close(struct gpu *g)
{
	struct sim *s = sim_of(g);
	struct gpu_job *job;

	sim_lose(s);
	while ((job = gpu_queue_pop(&s->ready)))
		job->done(job, job->status);
	while (!radix_list_empty(&s->pools))
		sim_pool_free(g, radix_list_first(&s->pools, struct gpu_pool, link));
	(void)munmap((void *)(uintptr_t)s->window, s->window_bytes);
	gpu_signal_deinit(&s->signal);
	free(s);
}

static const struct gpu_ops sim_ops = {
	.name = "sim",
	.kind = GPU_KIND_SIM,
	.grace_ns = 0, /* workers reach its memory with their CPU only */
	.close = sim_close,
	.pool_new = sim_pool_new,
	.pool_single = sim_pool_new,
	.pool_adopt = sim_pool_adopt,
	.pool_free = sim_pool_free,
	.pool_info = gpu_pool_info,
	.pool_fd = gpu_pool_fd,
	.slot_addr = gpu_pool_slot_addr,
	.slot_host = sim_slot_host,
	.host_pin = gpu_no_pin,
	.host_unpin = gpu_no_unpin,
	.codes = sim_codes,
	.submit = sim_submit,
	.event_fd = sim_event_fd,
	.reap = sim_reap,
	.health = sim_health,
};

/* Return: 0, -ENOMEM, or what eventfd() said.  The plan is copied.  Tests open small windows. */
int gpu_sim_open(const struct gpu_sim_config *config, uint64_t window_bytes, struct gpu **ret_gpu)
{
	struct sim *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	r = gpu_signal_init(&s->signal);
	if (r == 0)
		r = window_reserve(window_bytes, &s->window);
	if (r < 0) {
		gpu_signal_deinit(&s->signal);
		free(s);
		return r;
	}
	s->gpu.ops = &sim_ops;
	s->plan = *config;
	s->window_bytes = window_bytes;
	s->rng = config->reorder_seed;
	s->next_addr = s->window + GPU_SIM_POOL_GAP;
	radix_list_init(&s->pools);
	gpu_queue_init(&s->queue);
	gpu_queue_init(&s->ready);
	*ret_gpu = &s->gpu;
	return 0;
}

void gpu_sim_advance(struct gpu *g, uint64_t ns)
{
	struct sim *s = sim_of(g);

	if (g->ops != &sim_ops)
		return;
	s->now_ns = radix_min_u64(add_sat(s->now_ns, ns), NEVER - 1);
	sim_run_due(s);
}

uint64_t gpu_sim_next_due(const struct gpu *g)
{
	const struct sim *s = sim_of(g);
	uint64_t due = NEVER;

	if (g->ops != &sim_ops)
		return NEVER;
	for (const struct gpu_job *job = s->queue.head; job; job = job->next)
		due = radix_min_u64(due, job->due_ns);
	return due;
}

void gpu_poison_slot(struct gpu *g, struct gpu_pool *pool, uint32_t slot)
{
	if (g->ops != &sim_ops)
		return;
	radix_assert(slot < pool->n_slots);
	memset((char *)pool->shm.base + slot * pool->slot_stride, GPU_SIM_FREED, pool->slot_stride);
}

void gpu_leave_memory(struct gpu *g)
{
	if (g->ops == &sim_ops)
		sim_of(g)->left = true;
}
