/*
 * cuda_queue.c - jobs on a GPU: four queues of the driver, and how their ends are noticed.
 *
 *     submit()            reap()                           the driver            reap()
 *     taken  --------->   batch: copies, word, call  --->  [runs]  --->  word >= batch: done()
 *                         flying                           call --> wake_fd --> event_fd
 *
 * What it guarantees.  Jobs of a lane complete in their order.  A batch is over when the device has
 * written its number into the lane's word: it writes it behind the copies, with a fence.  The
 * driver calls back behind that, on a thread of its own, and all that this does is to write
 * wake_fd.
 *
 * A queue that has faulted says nothing: no word, no call.  So while something is in flight each
 * queue is asked every CUDA_TICK_MS.  When a device is lost, jobs complete only after their queue
 * has ended, since copies that were queued before may still write; a queue that does not end within
 * CUDA_LOST_TICK ticks is taken for dead.
 *
 * What it relies on.  cuda_batch.c, which makes batches of what was taken.
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

/* ---- taking ---------------------------------------------------------------------------------- */

/* What is coded has an end in a pool, and its packed one in memory of this process. */
static struct cuda_lane *lane_of_coded(struct cuda *c, struct gpu_job *job)
{
	const bool in = gpu_pool_find(&c->pools, job->dst, job->len) != NULL;
	const bool out = gpu_pool_find(&c->pools, job->src, job->len) != NULL;
	const uint64_t packed = gpu_coded_bytes(job->coded);

	if (in == out || packed > CUDA_PIN_BYTES ||
	    !gpu_cuda_pin_find(c, in ? job->src : job->dst, packed))
		return NULL;
	if (in)
		job->src_len = packed;
	else
		job->dst_len = packed;
	if (job->urgent)
		return &c->lanes[in ? CUDA_URGENT_IN : CUDA_URGENT_OUT];
	return &c->lanes[in ? CUDA_IN : CUDA_OUT];
}

/* By the way it goes; NULL: a side of it lies where the device may not reach. */
static struct cuda_lane *lane_of(struct cuda *c, struct gpu_job *job)
{
	bool dst_in = gpu_pool_find(&c->pools, job->dst, job->len) != NULL;
	bool src_in = gpu_pool_find(&c->pools, job->src, job->len) != NULL;

	job->dst_len = job->src_len = job->len;
	if (job->coded)
		return lane_of_coded(c, job);
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
	if (job->coded || job->want_sum)
		r = gpu_cuda_stage(c, lane, job->coded ? gpu_coded_bytes(job->coded) : 0);
	if (r < 0)
		return r;
	job->status = 0;
	job->uncodable = false;
	job->result = UINT32_MAX;
	gpu_queue_push(&lane->taken, job);
	if (lane->taken.n >= CUDA_BATCH && !lane->stuck && gpu_cuda_enter(c) == 0)
		gpu_cuda_hand_over(c, lane, on_batch_end);
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
	if (job) {
		gpu_cuda_take_results(c, lane, job);
		return gpu_queue_pop(&lane->flying);
	}
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
		if (lane->taken.head && (c->lost ? !job : !lane->stuck))
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
			gpu_cuda_hand_over(c, &c->lanes[i], on_batch_end);
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
