/*
 * cuda_queue.c - jobs on a GPU: four queues of the driver, and how their ends are noticed.
 *
 *     submit()            reap()                           the driver            reap()
 *     taken  --------->   batch: copies, word, call  --->  [runs]  --->  word >= batch: done()
 *                         flying                           call --> wake_fd --> event_fd
 *
 * What it guarantees.  Jobs of a lane complete in their order.  Copies of one batch run in any
 * order, so a job that touches what an earlier one of the batch writes, or writes what it reads,
 * waits for the next batch; batches of a lane run one after the other.  A batch is over when the
 * device has written its number into the lane's word: it writes it behind the copies, with a fence.
 * The driver calls back behind that, on a thread of its own, and all that this does is to write
 * wake_fd.
 *
 * A queue that has faulted says nothing: no word, no call.  So while something is in flight each
 * queue is asked every CUDA_TICK_MS.  When a device is lost, jobs complete only after their queue
 * has ended, since copies that were queued before may still write; a queue that does not end within
 * CUDA_LOST_TICK ticks is taken for dead.
 *
 * What it relies on.  A copy between two registrations fails, so copies are cut there.
 */
#include "gpu/cuda_internal.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define WORD_STRIDE 64u /* a cache line each */
#define SPINS       100u
#define END_MS      5000u

/* Copies of one batch, as the driver wants them. */
struct pieces {
	gpu_cu_ptr dst[CUDA_PIECES];
	gpu_cu_ptr src[CUDA_PIECES];
	size_t len[CUDA_PIECES];
	uint32_t n;
};

/* ---- what wakes ------------------------------------------------------------------------------ */

static int watch(int epoll_fd, int fd)
{
	struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

static int events_init(struct cuda *c)
{
	int r;

	c->event_fd = epoll_create1(EPOLL_CLOEXEC);
	if (c->event_fd < 0)
		return -errno;
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0)
		return -errno;
	c->tick_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (c->tick_fd < 0)
		return -errno;
	r = watch(c->event_fd, c->wake_fd);
	return r < 0 ? r : watch(c->event_fd, c->tick_fd);
}

static void events_deinit(struct cuda *c)
{
	int *const fds[] = { &c->event_fd, &c->wake_fd, &c->tick_fd };

	for (size_t i = 0; i < radix_array_size(fds); i++) {
		if (*fds[i] >= 0)
			(void)close(*fds[i]); /* free whatever close() says */
		*fds[i] = -1;
	}
}

/* Makes reap() be called, whatever the device does. */
void gpu_cuda_wake(struct cuda *c)
{
	if (c->raised || c->wake_fd < 0)
		return;
	(void)eventfd_write(c->wake_fd, 1); /* cannot fail before 2^64 - 1 of them */
	c->raised = true;
}

/* On a thread of the driver, which may be asked nothing here. */
static void on_batch_end(void *ctx)
{
	const int *wake_fd = ctx;

	(void)eventfd_write(*wake_fd, 1); /* as above */
}

/* Turning it off also takes back a tick that nobody has seen yet. */
static void tick_set(struct cuda *c, bool on)
{
	const struct timespec gap = { .tv_nsec = on ? CUDA_TICK_MS * 1000000L : 0 };
	const struct itimerspec every = { gap, gap };

	if (c->ticking == on)
		return;
	(void)timerfd_settime(c->tick_fd, 0, &every, NULL); /* the numbers are good */
	c->ticking = on;
}

static bool ticked(const struct cuda *c)
{
	uint64_t n;

	return c->ticking && read(c->tick_fd, &n, sizeof(n)) == (ssize_t)sizeof(n);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static uint64_t reached(const struct cuda_lane *lane)
{
	return __atomic_load_n(lane->word, __ATOMIC_ACQUIRE);
}

static bool words_new(struct cuda *c, size_t page)
{
	void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p != MAP_FAILED)
		c->words = p;
	return p != MAP_FAILED;
}

static int lanes_init(struct cuda *c)
{
	int least = 0, most = 0;
	gpu_cu_ptr words = 0;
	int r;

	r = gpu_cuda_call(c, priority_range, &least, &most);
	if (r == 0)
		r = gpu_cuda_call(c, host_pointer, &words, c->words, 0);
	for (uint32_t i = 0; r == 0 && i < CUDA_N_LANES; i++) {
		struct cuda_lane *lane = &c->lanes[i];

		lane->word = (const uint64_t *)c->words + i * (WORD_STRIDE / sizeof(uint64_t));
		lane->word_addr = words + (uint64_t)i * WORD_STRIDE;
		r = gpu_cuda_call(c, stream_new, &lane->stream, GPU_CU_STREAM_NON_BLOCKING,
				  i <= CUDA_URGENT_OUT ? most : least);
	}
	return r;
}

/* The context is current.  What fails is taken down by gpu_cuda_queues_deinit(). */
int gpu_cuda_queues_init(struct cuda *c)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int r;

	r = events_init(c);
	if (r < 0)
		return r;
	if (!words_new(c, page))
		return -ENOMEM;
	r = gpu_cuda_call(c, host_register, c->words, page,
			  GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
	if (r < 0)
		return r;
	c->words_pinned = true;
	return lanes_init(c);
}

/* Nothing is in flight. */
void gpu_cuda_queues_deinit(struct cuda *c)
{
	for (uint32_t i = 0; i < CUDA_N_LANES; i++)
		if (c->lanes[i].stream)
			gpu_cuda_undo(c, stream_free, c->lanes[i].stream);
	if (c->words_pinned)
		gpu_cuda_undo(c, host_unregister, c->words);
	if (c->words)
		(void)munmap(c->words, (size_t)sysconf(_SC_PAGESIZE));
	events_deinit(c);
}

/*
 * Whether nothing that was queued will touch any memory any more.  An error says so too, as it is
 * that of a device that has stopped; but then it is the answer the next time as well.
 */
static bool ended(struct cuda *c, const struct cuda_lane *lane)
{
	for (int i = 0; i < 2; i++) {
		gpu_cu_result r = gpu_cuda_ask(c, stream_query, lane->stream);

		if (r == GPU_CU_SUCCESS || r == GPU_CU_NOT_READY)
			return r == GPU_CU_SUCCESS;
		if (gpu_cuda_result(c, gpu_driver_names.stream_query, r) < 0)
			gpu_cuda_lose(c);
	}
	return true;
}

/*
 * Until all that was queued has run.  Asked again and again and not waited for in the driver: that
 * has no limit.  Return: 0; -ENODEV: the device is lost, by this too when the limit went by.
 */
int gpu_cuda_wait(struct cuda *c, const struct cuda_lane *lane, uint32_t limit_ms)
{
	for (uint32_t i = 0; !ended(c, lane); i++) {
		if (i == SPINS + limit_ms) {
			(void)gpu_cuda_result(c, gpu_driver_names.stream_query, GPU_CU_NOT_READY);
			break;
		}
		if (i >= SPINS)
			(void)poll(NULL, 0, 1); /* a millisecond */
	}
	return c->lost ? -ENODEV : 0;
}

bool gpu_cuda_touches(const struct cuda *c, const struct gpu_pool *pool)
{
	for (uint32_t i = 0; i < CUDA_N_LANES; i++)
		if (gpu_queue_touches(&c->lanes[i].taken, pool) ||
		    gpu_queue_touches(&c->lanes[i].flying, pool))
			return true;
	return false;
}

/* Does a job have a side that begins in that memory? */
bool gpu_cuda_reaches(const struct cuda *c, uint64_t addr, uint64_t len)
{
	const struct gpu_pool range = { .addr = addr, .shm.len = len };

	return gpu_cuda_touches(c, &range);
}

/* ---- handing over ---------------------------------------------------------------------------- */

static bool overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

/* Whether it matters which of the two runs first. */
static bool conflict(const struct gpu_job *a, const struct gpu_job *b)
{
	return overlap(a->dst, a->len, b->dst, b->len) || overlap(a->dst, a->len, b->src, b->len) ||
	       overlap(a->src, a->len, b->dst, b->len);
}

/* Bytes up to where the next registration begins; of device memory, all. */
static uint64_t to_next_part(const struct cuda *c, uint64_t addr, uint64_t len)
{
	const struct cuda_pin *pin = gpu_cuda_pin_find(c, addr, len);

	if (!pin)
		return len;
	return radix_min_u64(len, CUDA_PIN_BYTES - (addr - pin->addr) % CUDA_PIN_BYTES);
}

/* Return: false: there is no room for all of them, and none was added. */
static bool add_pieces(const struct cuda *c, struct pieces *p, const struct gpu_job *job)
{
	uint32_t n = p->n;

	for (uint64_t at = 0, step; at < job->len; at += step) {
		uint64_t left = job->len - at;

		if (n == CUDA_PIECES)
			return false;
		step = radix_min_u64(to_next_part(c, job->dst + at, left),
				     to_next_part(c, job->src + at, left));
		p->dst[n] = job->dst + at;
		p->src[n] = job->src + at;
		p->len[n++] = step;
	}
	p->n = n;
	return true;
}

/* From taken to flying, as many as may run in any order.  Return: the first one. */
static struct gpu_job *next_batch(const struct cuda *c, struct cuda_lane *lane, struct pieces *p)
{
	struct gpu_job *first = NULL, *job;

	lane->n_batches++;
	for (uint32_t n = 0; n < CUDA_BATCH && (job = lane->taken.head); n++) {
		for (const struct gpu_job *it = first; it; it = it->next)
			if (conflict(it, job))
				return first;
		if (!add_pieces(c, p, job))
			break;
		(void)gpu_queue_pop(&lane->taken);
		job->due_ns = lane->n_batches;
		gpu_queue_push(&lane->flying, job);
		if (!first)
			first = job;
	}
	return first;
}

/* An answer that is about this copy and not about the device. */
static bool is_of_job(gpu_cu_result r)
{
	return r == GPU_CU_INVALID_VALUE || r == GPU_CU_OUT_OF_MEMORY;
}

/* Each copy by itself, which also finds out whose mistake it was that a batch failed by. */
static void copy_each(struct cuda *c, const struct cuda_lane *lane, struct gpu_job *first)
{
	struct pieces p;

	for (struct gpu_job *job = first; job; job = job->next) {
		p.n = 0;
		if (!add_pieces(c, &p, job))
			radix_assert(false); /* it had room before */
		for (uint32_t i = 0; i < p.n; i++) {
			gpu_cu_result r = gpu_cuda_ask(c, copy, p.dst[i], p.src[i], p.len[i],
						       lane->stream);

			if (r == GPU_CU_SUCCESS)
				continue;
			(void)gpu_cuda_result(c, gpu_driver_names.copy, r);
			if (c->lost)
				return;
			job->status = -EIO;
			break;
		}
	}
}

/* Return: true: the driver took all of them at once. */
static bool copy_together(struct cuda *c, const struct cuda_lane *lane, struct pieces *p)
{
	struct gpu_cu_memcpy_attr attr = {
		.src_order = GPU_CU_MEMCPY_SRC_ORDER_STREAM,
		.flags = GPU_CU_MEMCPY_PREFER_OVERLAP,
	};
	size_t from = 0, failed = SIZE_MAX;
	gpu_cu_result r;

	if (!c->driver.copy_batch)
		return false;
	r = gpu_cuda_ask(c, copy_batch, p->dst, p->src, p->len, p->n, &attr, &from, 1, &failed,
			 lane->stream);
	if (r == GPU_CU_NOT_SUPPORTED)
		c->driver.copy_batch = NULL; /* and never again */
	if (r != GPU_CU_SUCCESS && r != GPU_CU_NOT_SUPPORTED && !is_of_job(r))
		(void)gpu_cuda_result(c, gpu_driver_names.copy_batch, r);
	return r == GPU_CU_SUCCESS;
}

/* The context is current. */
static void hand_over(struct cuda *c, struct cuda_lane *lane)
{
	while (lane->taken.head && !c->lost) {
		struct pieces p = { .n = 0 };
		struct gpu_job *first = next_batch(c, lane, &p);

		if (!copy_together(c, lane, &p) && !c->lost)
			copy_each(c, lane, first);
		if (!c->lost &&
		    gpu_cuda_call(c, stream_write, lane->stream, lane->word_addr, lane->n_batches,
				  GPU_CU_STREAM_WRITE_VALUE_DEFAULT) < 0)
			gpu_cuda_lose(c);
		if (!c->lost &&
		    gpu_cuda_call(c, stream_call, lane->stream, on_batch_end, &c->wake_fd) < 0)
			gpu_cuda_lose(c);
	}
}

/* By the way it goes; NULL: a side of it lies where the device may not reach. */
static struct cuda_lane *lane_of(struct cuda *c, const struct gpu_job *job)
{
	bool dst_in = gpu_pool_find(&c->pools, job->dst, job->len) != NULL;
	bool src_in = gpu_pool_find(&c->pools, job->src, job->len) != NULL;

	if (!dst_in && !src_in)
		return NULL;
	if ((!dst_in && !gpu_cuda_pin_find(c, job->dst, job->len)) ||
	    (!src_in && !gpu_cuda_pin_find(c, job->src, job->len)))
		return NULL;
	if (job->urgent)
		return &c->lanes[dst_in ? CUDA_URGENT_IN : CUDA_URGENT_OUT];
	return &c->lanes[dst_in ? CUDA_IN : CUDA_OUT];
}

int gpu_cuda_submit(struct gpu *g, struct gpu_job *job)
{
	struct cuda *c = gpu_cuda_of(g);
	struct cuda_lane *lane;
	int r;

	if (c->closing || c->lost)
		return -ENODEV;
	r = gpu_job_check(g, job);
	if (r < 0)
		return r;
	lane = lane_of(c, job);
	if (!lane || job->len / CUDA_PIN_BYTES >= CUDA_PIECES / 2 - 1)
		return -EINVAL;
	if (lane->taken.n + lane->flying.n >= CUDA_DEPTH)
		return -EAGAIN;
	job->status = 0;
	gpu_queue_push(&lane->taken, job);
	if (lane->taken.n >= CUDA_BATCH && gpu_cuda_enter(c) == 0)
		hand_over(c, lane);
	gpu_cuda_wake(c);
	return 0;
}

/* ---- noticing -------------------------------------------------------------------------------- */

/* The queue has run empty, or has failed; its word says which. */
static void check_lane(struct cuda *c, struct cuda_lane *lane)
{
	gpu_cu_result r = gpu_cuda_ask(c, stream_query, lane->stream);

	if (r == GPU_CU_NOT_READY)
		return;
	if (r == GPU_CU_SUCCESS && reached(lane) >= lane->n_batches)
		return;
	if (r == GPU_CU_SUCCESS)
		r = GPU_CU_UNKNOWN; /* it ended without saying so */
	if (gpu_cuda_result(c, gpu_driver_names.stream_query, r) < 0)
		gpu_cuda_lose(c);
}

static void check_lanes(struct cuda *c)
{
	for (uint32_t i = 0; i < CUDA_N_LANES && !c->lost; i++)
		if (c->lanes[i].flying.head)
			check_lane(c, &c->lanes[i]);
}

/* Without a job in flight nothing tells of a fault: an empty queue is asked. */
void gpu_cuda_look(struct cuda *c)
{
	check_lane(c, &c->lanes[CUDA_IN]);
}

/* Of a lost device: which queues will not touch any memory any more. */
static void look_for_ends(struct cuda *c)
{
	for (uint32_t i = 0; i < CUDA_N_LANES; i++) {
		struct cuda_lane *lane = &c->lanes[i];

		if (lane->flying.head && !lane->over)
			lane->over = c->lost_ticks >= CUDA_LOST_TICK || ended(c, lane);
	}
}

/* The next job that has ended, or NULL; its status is set. */
static struct gpu_job *next_ended(const struct cuda *c, struct cuda_lane *lane)
{
	struct gpu_job *job = lane->flying.head;

	if (job && job->due_ns > reached(lane)) {
		if (!c->lost || !lane->over)
			return NULL;
		job->status = -ENODEV;
	}
	if (job)
		return gpu_queue_pop(&lane->flying);
	if (!c->lost)
		return NULL;
	/* What was not handed over is not the device's, but completes in its order. */
	job = gpu_queue_pop(&lane->taken);
	if (job)
		job->status = -ENODEV;
	return job;
}

static uint32_t complete(struct cuda *c, uint32_t budget)
{
	struct gpu_job *job;
	uint32_t n = 0;

	for (uint32_t i = 0; i < CUDA_N_LANES; i++)
		while (n < budget && (job = next_ended(c, &c->lanes[i]))) {
			n++;
			job->done(job, job->status);
		}
	return n;
}

/* Whether the next reap() would find something without anybody waking it. */
static bool has_work(const struct cuda *c)
{
	for (uint32_t i = 0; i < CUDA_N_LANES; i++) {
		const struct cuda_lane *lane = &c->lanes[i];
		const struct gpu_job *job = lane->flying.head;

		if (job && (job->due_ns <= reached(lane) || (c->lost && lane->over)))
			return true;
		if (lane->taken.head && (!c->lost || !job))
			return true;
	}
	return false;
}

static bool flies(const struct cuda *c)
{
	for (uint32_t i = 0; i < CUDA_N_LANES; i++)
		if (c->lanes[i].flying.head)
			return true;
	return false;
}

static void drain(struct cuda *c)
{
	eventfd_t value;

	(void)eventfd_read(c->wake_fd, &value); /* before any word is looked at */
	c->raised = false;
}

uint32_t gpu_cuda_reap(struct gpu *g, uint32_t budget)
{
	struct cuda *c = gpu_cuda_of(g);
	bool tick = ticked(c);
	uint32_t n;

	drain(c);
	if ((has_work(c) || tick) && gpu_cuda_enter(c) == 0) {
		for (uint32_t i = 0; i < CUDA_N_LANES; i++)
			hand_over(c, &c->lanes[i]);
		if (tick)
			check_lanes(c);
	}
	if (c->lost) {
		c->lost_ticks += tick;
		look_for_ends(c);
	}
	n = complete(c, budget);
	if (has_work(c))
		gpu_cuda_wake(c);
	tick_set(c, flies(c));
	return n;
}

/*
 * For close(): all jobs complete.  Return: false: a queue goes on, and what it uses has to stay.
 */
bool gpu_cuda_queues_end(struct cuda *c)
{
	bool all = true;

	for (uint32_t i = 0; i < CUDA_N_LANES; i++) {
		struct cuda_lane *lane = &c->lanes[i];
		bool end = false;

		for (uint32_t ms = 0; !(end = ended(c, lane)) && ms < END_MS; ms++)
			(void)poll(NULL, 0, 1); /* a millisecond */
		all = all && end;
		lane->over = true;
	}
	c->lost = true;
	(void)complete(c, UINT32_MAX);
	return all;
}
