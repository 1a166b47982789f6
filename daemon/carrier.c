/*
 * carrier.c - see carrier.h.
 *
 * A turn of the thread: say that it lives, let the simulated device's time pass, take what was
 * sent, hand copies to the device while it has room, reap, make a pool if one is wanted, and sleep
 * with nothing else to do.  Runs come from a fixed array: the thread allocates nothing, and so
 * cannot fail to.
 */
#include "daemon/carrier.h"

#include "daemon/redis_sum.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MAX_RUNS      64u
#define RUN_BYTES     (UINT64_C(4) << 20)
#define FLIGHT_BYTES  (UINT64_C(32) << 20)
#define REAP_BUDGET   64u
#define HEARTBEAT_NS  UINT64_C(500000000)
#define RETRY_NS      UINT64_C(1000000)   /* the device is full of what is not ours */
#define CHECKSUM_XXH3 1u                  /* as on the wire */
#define VERIFY_BYTES  (UINT64_C(4) << 20) /* of a turn: some 0.5 ms that copies wait */

/* Blocks side by side on their way, as one job. */
struct run {
	struct gpu_job job;
	struct prefixd_carrier *carrier;
	struct radix_list blocks; /* messages, in the order of their slots */
	uint32_t n;
	bool used;
};

struct op_counts {
	_Atomic uint64_t done, failed, last_error_ns;
	_Atomic int last_error;
};

struct prefixd_carrier {
	struct prefixd_carrier_config config;
	struct prefixd_helper *helper; /* the loop's */
	struct gpu *gpu;
	/* the thread's */
	struct prefixd_helper *own; /* the same: it runs before the loop knows of it */
	struct run runs[MAX_RUNS];
	struct radix_list urgent, others, pools; /* messages that wait */
	struct radix_list verifies;
	struct radix_list left; /* messages whose pools go when the device is closed */
	struct gpu_job look; /* fetches a block for the first of them; the device's while looking */
	bool looking;
	uint64_t flight_bytes;
	uint32_t n_runs;
	uint64_t clock_ns; /* up to when the simulated device's time has passed */
	uint64_t sim_ns;   /* and what its clock shows */
	bool full;         /* the device takes no more for now */
	bool closed;       /* the thread is over: nobody is there to be answered */
	/* counters */
	struct op_counts ops[PREFIXD_CARRIER_N_OPS];
	_Atomic uint64_t jobs, bytes, corrupt, in_flight, waiting;
	_Atomic bool lost, making;
};

static uint64_t clock_now(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct prefixd_carrier_message *message_of(struct radix_list *link)
{
	return radix_container_of(link, struct prefixd_carrier_message, message.link);
}

/* One writer: no need for an atomic addition. */
static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

/* ---- answers --------------------------------------------------------------------------------- */

/*
 * Pools that were never announced, or are on their way out, go with the message that has them; the
 * device may be looking at a block of theirs, so they go behind it.
 */
static void message_drop(struct prefixd_message *message)
{
	struct prefixd_carrier_message *m = message_of(&message->link);

	if (m->pool && (message->kind == PREFIXD_CARRIER_POOL_NEW ||
			message->kind == PREFIXD_CARRIER_POOL_FREE))
		radix_list_add_tail(&m->carrier->left, &message->link);
	else
		prefixd_carrier_message_free(m);
}

/* The device is closed: what it had of them went with it. */
static void left_free(struct prefixd_carrier *c)
{
	while (!radix_list_empty(&c->left)) {
		struct prefixd_carrier_message *m = message_of(c->left.next);

		radix_list_remove(&m->message.link);
		m->pool->pool = NULL;
		prefixd_pool_free(NULL, m->pool);
		prefixd_carrier_message_free(m);
	}
}

void prefixd_carrier_message_free(struct prefixd_carrier_message *m)
{
	free(m);
}

/* error: 0 or a negative errno. */
static void answer(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int error)
{
	struct op_counts *op = &c->ops[m->message.kind];

	m->error = error;
	if (error < 0) {
		add(&op->failed, 1);
		atomic_store_explicit(&op->last_error, error, memory_order_relaxed);
		atomic_store_explicit(&op->last_error_ns, clock_now(), memory_order_relaxed);
	} else {
		add(&op->done, 1);
	}
	if (error == -ENODEV)
		atomic_store_explicit(&c->lost, true, memory_order_relaxed);
	if (c->closed) /* a copy: pools are not made any more */
		prefixd_carrier_message_free(m);
	else
		prefixd_helper_answer(c->own, &m->message);
}

static void answer_copy(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int error)
{
	if (error < 0)
		m->result = PREFIXD_MOVE_FAILED;
	answer(c, m, error);
}

/* ---- the ends of copies ---------------------------------------------------------------------- */

static uint64_t end_addr(const struct prefixd_carrier *c, const struct prefixd_pool *pool,
			 enum prefixd_place place, uint32_t slot)
{
	switch (place) {
	case PREFIXD_PLACE_DEVICE:
		return c->gpu->ops->slot_addr(pool->pool, slot);
	case PREFIXD_PLACE_HOST:
		return (uintptr_t)prefixd_pool_host(pool, slot);
	case PREFIXD_PLACE_STAGE:
		return (uintptr_t)prefixd_pool_stage(pool, slot);
	}
	radix_assert(false);
}

/* Where the CPU can read the block: an end that is not the device's.  NULL: neither. */
static const void *readable_end(const struct prefixd_carrier_message *m)
{
	enum prefixd_place place = m->to == PREFIXD_PLACE_DEVICE ? m->from : m->to;
	uint32_t slot = m->to == PREFIXD_PLACE_DEVICE ? m->src : m->dst;

	if (place == PREFIXD_PLACE_DEVICE)
		return NULL;
	return place == PREFIXD_PLACE_HOST ? prefixd_pool_host(m->pool, slot)
					   : prefixd_pool_stage(m->pool, slot);
}

/* Sums the block and says whether it is the one that is known. */
static bool block_sum(struct prefixd_carrier_message *m)
{
	const void *p = readable_end(m);
	uint8_t sum[sizeof(m->checksum)];

	if (!p)
		return true;
	prefixd_sum(p, m->pool->info.slot_bytes, sum);
	m->summed = true;
	if (m->checksum_kind == CHECKSUM_XXH3 && memcmp(m->checksum, sum, sizeof(sum)) != 0)
		return false;
	memcpy(m->checksum, sum, sizeof(sum));
	return true;
}

static void block_done(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int status)
{
	m->ns = clock_now() - m->begun_ns;
	m->result = PREFIXD_MOVE_OK;
	if (status == 0 && !block_sum(m)) {
		m->result = PREFIXD_MOVE_CORRUPT;
		m->summed = false;
		add(&c->corrupt, 1);
	}
	if (status == 0)
		add(&c->bytes, m->pool->info.slot_bytes);
	answer_copy(c, m, status);
}

static void run_done(struct gpu_job *job, int status)
{
	struct run *run = job->ctx;
	struct prefixd_carrier *c = run->carrier;

	c->flight_bytes -= job->len;
	c->n_runs--;
	c->full = false;
	add(&c->in_flight, (uint64_t)0 - run->n);
	while (!radix_list_empty(&run->blocks)) {
		struct prefixd_carrier_message *m = message_of(run->blocks.next);

		radix_list_remove(&m->message.link);
		block_done(c, m, status);
	}
	run->used = false;
}

/* ---- handing copies to the device ------------------------------------------------------------ */

static bool side_by_side(const struct prefixd_carrier_message *a,
			 const struct prefixd_carrier_message *b)
{
	return a->pool == b->pool && a->from == b->from && a->to == b->to && b->src == a->src + 1 &&
	       b->dst == a->dst + 1;
}

static struct run *run_free(struct prefixd_carrier *c)
{
	for (uint32_t i = 0; i < MAX_RUNS; i++)
		if (!c->runs[i].used)
			return &c->runs[i];
	return NULL;
}

/* The first message of the list with those behind it that lie beside it. */
static void run_gather(struct prefixd_carrier *c, struct run *run, struct radix_list *list)
{
	struct prefixd_carrier_message *first = message_of(list->next), *last = NULL, *m = first;
	const struct gpu_pool_info *info = &first->pool->info;

	radix_list_init(&run->blocks);
	run->n = 0;
	do {
		radix_list_remove(&m->message.link);
		radix_list_add_tail(&run->blocks, &m->message.link);
		run->n++;
		last = m;
		m = message_of(list->next);
	} while (!radix_list_empty(list) && side_by_side(last, m) &&
		 (run->n + 1) * info->slot_stride <= c->config.run_bytes);
	run->job = (struct gpu_job){
		.dst = end_addr(c, first->pool, first->to, first->dst),
		.src = end_addr(c, first->pool, first->from, first->src),
		.len = (run->n - 1) * info->slot_stride + info->slot_bytes,
		.done = run_done,
		.ctx = run,
	};
	run->carrier = c;
	run->used = true;
}

/*
 * Back to the head of the list, in order: the device is full.  Walked by its elements, and not by
 * asking for the last one again and again: gcc 12.2 takes that question out of the loop.
 */
static void run_put_back(struct run *run, struct radix_list *list)
{
	struct radix_list *it, *before;

	for (it = run->blocks.prev; it != &run->blocks; it = before) {
		before = it->prev;
		radix_list_remove(it);
		radix_list_add_head(list, it);
	}
	run->used = false;
}

static void run_refused(struct prefixd_carrier *c, struct run *run, int error)
{
	while (!radix_list_empty(&run->blocks)) {
		struct prefixd_carrier_message *m = message_of(run->blocks.next);

		radix_list_remove(&m->message.link);
		add(&c->waiting, (uint64_t)0 - 1);
		answer_copy(c, m, error);
	}
	run->used = false;
}

/* Hands over the next run.  False: nothing waits, or there is no room. */
static bool submit_next(struct prefixd_carrier *c)
{
	struct radix_list *list = radix_list_empty(&c->urgent) ? &c->others : &c->urgent;
	uint64_t now = clock_now();
	struct radix_list *it;
	struct run *run;
	int r;

	if (radix_list_empty(list) || c->full || c->flight_bytes >= c->config.in_flight_bytes)
		return false;
	run = run_free(c);
	if (!run)
		return false;
	run_gather(c, run, list);
	radix_list_foreach(it, &run->blocks)
		message_of(it)->begun_ns = now;
	r = c->gpu->ops->submit(c->gpu, &run->job);
	if (r == -EAGAIN) {
		c->full = true; /* until something of ours is done, or a while has passed */
		run_put_back(run, list);
		return false;
	}
	if (r < 0) {
		run_refused(c, run, r);
		return true;
	}
	c->flight_bytes += run->job.len;
	c->n_runs++;
	add(&c->jobs, 1);
	add(&c->in_flight, run->n);
	add(&c->waiting, (uint64_t)0 - run->n);
	return true;
}

/* ---- verifying ------------------------------------------------------------------------------- */

static void verify_compare(struct prefixd_carrier *c, struct prefixd_carrier_message *m,
			   const void *block)
{
	const struct radix_sum *want = &m->sums[m->n_looked];
	const uint64_t bit = UINT64_C(1) << m->n_looked;
	uint8_t sum[sizeof(want->checksum)];

	prefixd_sum(block, m->pool->info.slot_bytes, sum);
	m->done |= bit;
	if (memcmp(sum, want->checksum, sizeof(sum)) != 0) {
		m->bad |= bit;
		add(&c->corrupt, 1);
	}
	m->n_looked++;
}

static void verify_end(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int error)
{
	radix_list_remove(&m->message.link);
	answer(c, m, error);
}

/* One is enough: the device fetches one block at a time. */
static void *look_buffer(const struct prefixd_carrier_message *m)
{
	return prefixd_pool_stage(m->pool, m->pool->n_stage);
}

static void look_done(struct gpu_job *job, int status)
{
	struct prefixd_carrier *c = job->ctx;
	struct prefixd_carrier_message *m = message_of(c->verifies.next);

	c->looking = false;
	if (c->closed)
		return; /* dropped with the list */
	if (status < 0)
		verify_end(c, m, status);
	else
		verify_compare(c, m, look_buffer(m));
}

/* The device fetches one block at a time.  Return: whether it does now. */
static bool look_fetch(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	const struct gpu_ops *ops = c->gpu->ops;
	int r;

	c->look = (struct gpu_job){
		.dst = (uintptr_t)look_buffer(m),
		.src = ops->slot_addr(m->pool->pool, m->sums[m->n_looked].slot),
		.len = m->pool->info.slot_bytes,
		.done = look_done,
		.ctx = c,
	};
	c->looking = true;
	r = ops->submit(c->gpu, &c->look);
	if (r == 0)
		return true;
	c->looking = false;
	if (r == -EAGAIN)
		c->full = true;
	else
		verify_end(c, m, r);
	return false;
}

/* As much of what waits as fits into a turn.  Return: whether there is more to do at once. */
static bool verify_some(struct prefixd_carrier *c)
{
	uint64_t bytes = 0;

	while (!c->looking && !c->full && !radix_list_empty(&c->verifies) && bytes < VERIFY_BYTES) {
		struct prefixd_carrier_message *m = message_of(c->verifies.next);
		const void *block;

		if (m->n_looked == m->n_sums) {
			verify_end(c, m, 0);
			continue;
		}
		block = c->gpu->ops->slot_host(m->pool->pool, m->sums[m->n_looked].slot);
		if (!block)
			return look_fetch(c, m);
		verify_compare(c, m, block);
		bytes += m->pool->info.slot_bytes;
	}
	return bytes > 0;
}

/* Its pool goes: what was not looked at never will be. */
static void verify_forget(struct prefixd_carrier *c, const struct prefixd_pool *pool)
{
	struct radix_list *it, *next;

	for (it = c->verifies.next; it != &c->verifies; it = next) {
		next = it->next;
		if (message_of(it)->pool == pool)
			verify_end(c, message_of(it), 0);
	}
}

/* ---- pools ----------------------------------------------------------------------------------- */

static void making_step(void *ctx)
{
	struct prefixd_carrier *c = ctx;

	prefixd_helper_alive(c->own, clock_now());
}

/* Copies wait meanwhile: the device has one user. */
static void pool_next(struct prefixd_carrier *c)
{
	struct prefixd_carrier_message *m = message_of(c->pools.next);
	int r = 0;

	radix_list_remove(&m->message.link);
	if (m->message.kind == PREFIXD_CARRIER_POOL_NEW) {
		atomic_store_explicit(&c->making, true, memory_order_relaxed);
		m->begun_ns = clock_now();
		m->plan.step = making_step;
		m->plan.ctx = c;
		r = prefixd_pool_new(&m->pool, c->gpu, &m->plan, &m->kept, m->why, sizeof(m->why));
		m->ns = clock_now() - m->begun_ns;
		atomic_store_explicit(&c->making, false, memory_order_relaxed);
	} else {
		verify_forget(c, m->pool);
		prefixd_pool_free(c->gpu, m->pool);
		m->pool = NULL;
	}
	answer(c, m, r);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void take_all(struct prefixd_carrier *c)
{
	struct prefixd_message *message;

	while ((message = prefixd_helper_take(c->own))) {
		struct prefixd_carrier_message *m = message_of(&message->link);

		if (message->kind != PREFIXD_CARRIER_COPY) {
			radix_list_add_tail(message->kind == PREFIXD_CARRIER_VERIFY ? &c->verifies
										    : &c->pools,
					    &message->link);
			continue;
		}
		radix_list_add_tail(m->urgent ? &c->urgent : &c->others, &message->link);
		add(&c->waiting, 1);
	}
}

/* The simulated device's clock follows the real one. */
static void time_pass(struct prefixd_carrier *c, uint64_t now)
{
	if (c->gpu->ops->kind != GPU_KIND_SIM)
		return;
	gpu_sim_advance(c->gpu, now - c->clock_ns);
	c->sim_ns += now - c->clock_ns;
	c->clock_ns = now;
}

static uint64_t sleep_ns(const struct prefixd_carrier *c)
{
	uint64_t due = gpu_sim_next_due(c->gpu), ns = HEARTBEAT_NS;

	if (due != UINT64_MAX)
		ns = radix_min_u64(ns, due > c->sim_ns ? due - c->sim_ns : 0);
	if (c->full)
		ns = radix_min_u64(ns, RETRY_NS);
	return ns;
}

/* Return: false when this thread cannot wait any more, and so cannot go on. */
static bool wait_for_work(struct prefixd_carrier *c)
{
	struct pollfd p[2] = {
		{ .fd = prefixd_helper_request_fd(c->own), .events = POLLIN },
		{ .fd = c->gpu->ops->event_fd(c->gpu), .events = POLLIN },
	};
	uint64_t ns = sleep_ns(c);
	const struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u),
				     .tv_nsec = (long)(ns % 1000000000u) };

	if (ppoll(p, 2, &ts, NULL) < 0)
		return errno == EINTR || errno == EAGAIN || errno == ENOMEM;
	return !((p[0].revents | p[1].revents) & (POLLNVAL | POLLERR));
}

static void carrier_run(struct prefixd_helper *h, void *ctx)
{
	struct prefixd_carrier *c = ctx;

	c->own = h;
	while (!prefixd_helper_stopping(h)) {
		uint64_t now = clock_now();
		bool busy = false;

		prefixd_helper_alive(h, now);
		time_pass(c, now);
		take_all(c);
		if (c->n_runs == 0 && !c->looking)
			c->full = false; /* nothing of ours will end: ask again */
		while (submit_next(c))
			busy = true;
		if (c->n_runs > 0 || c->looking)
			busy |= c->gpu->ops->reap(c->gpu, REAP_BUDGET) > 0;
		/* What the device fetches for comparing may be of the pool that goes: pools wait
		   for that, and nothing else is compared while they do. */
		if (radix_list_empty(&c->pools))
			busy |= verify_some(c);
		if (!radix_list_empty(&c->pools) && !c->looking)
			pool_next(c);
		else if (!busy && !wait_for_work(c))
			return;
	}
}

/* ---- start and stop -------------------------------------------------------------------------- */

int prefixd_carrier_start(struct prefixd_carrier **ret_c,
			  const struct prefixd_carrier_config *config)
{
	struct prefixd_carrier *c = calloc(1, sizeof(*c));
	const struct prefixd_helper_config helper = {
		.name = "copy", .ring = config->ring, .run = carrier_run, .ctx = c
	};
	int r;

	if (!c)
		return -ENOMEM;
	c->config = *config;
	if (c->config.run_bytes == 0)
		c->config.run_bytes = RUN_BYTES;
	if (c->config.in_flight_bytes == 0)
		c->config.in_flight_bytes = FLIGHT_BYTES;
	c->gpu = config->gpu;
	c->clock_ns = clock_now();
	radix_list_init(&c->urgent);
	radix_list_init(&c->others);
	radix_list_init(&c->pools);
	radix_list_init(&c->verifies);
	radix_list_init(&c->left);
	r = prefixd_helper_start(&c->helper, &helper);
	if (r < 0) {
		free(c);
		return r;
	}
	*ret_c = c;
	return 0;
}

static void list_drop(struct radix_list *list)
{
	while (!radix_list_empty(list)) {
		struct prefixd_carrier_message *m = message_of(list->next);

		radix_list_remove(&m->message.link);
		message_drop(&m->message);
	}
}

void prefixd_carrier_stop(struct prefixd_carrier *c)
{
	if (!c || !c->helper)
		return;
	prefixd_helper_stop(c->helper, message_drop);
	c->helper = NULL;
	c->closed = true;
	list_drop(&c->urgent);
	list_drop(&c->others);
	list_drop(&c->pools);
}

struct prefixd_carrier *prefixd_carrier_free(struct prefixd_carrier *c)
{
	if (!c)
		return NULL;
	prefixd_carrier_stop(c);
	radix_assert(c->n_runs == 0 && !c->looking);
	list_drop(&c->verifies); /* not before: the device may have been looking at one of them */
	left_free(c);
	free(c);
	return NULL;
}

void prefixd_carrier_send(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	m->carrier = c;
	if (m->message.kind == PREFIXD_CARRIER_POOL_NEW)
		m->pool = NULL;
	prefixd_helper_send(c->helper, &m->message);
}

struct prefixd_carrier_message *prefixd_carrier_receive(struct prefixd_carrier *c)
{
	struct prefixd_message *m = prefixd_helper_receive(c->helper);

	return m ? message_of(&m->link) : NULL;
}

struct prefixd_helper *prefixd_carrier_helper(const struct prefixd_carrier *c)
{
	return c->helper;
}

static uint64_t get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

void prefixd_carrier_stats(const struct prefixd_carrier *c, struct prefixd_carrier_stats *ret)
{
	*ret = (struct prefixd_carrier_stats){
		.jobs = get(&c->jobs),
		.bytes = get(&c->bytes),
		.corrupt = get(&c->corrupt),
		.in_flight = get(&c->in_flight),
		.waiting = get(&c->waiting),
		.lost = atomic_load_explicit(&c->lost, memory_order_relaxed),
		.making = atomic_load_explicit(&c->making, memory_order_relaxed),
	};
	for (int i = 0; i < PREFIXD_CARRIER_N_OPS; i++) {
		const struct op_counts *op = &c->ops[i];

		ret->ops[i] = (struct prefixd_carrier_op_stats){
			.done = get(&op->done),
			.failed = get(&op->failed),
			.last_error = atomic_load_explicit(&op->last_error, memory_order_relaxed),
			.last_error_ns = get(&op->last_error_ns),
		};
	}
}

const char *prefixd_carrier_op_to_string(enum prefixd_carrier_op op)
{
	static const char *const names[] = {
#define X(sym, text) text,
		PREFIXD_CARRIER_OPS(X)
#undef X
	};

	return names[op];
}
