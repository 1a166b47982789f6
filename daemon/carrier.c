/*
 * carrier.c - see carrier.h.
 *
 * A turn of the thread: say that it lives, let the simulated device's time pass, take what was
 * sent, hand copies to the device while it has room, reap, make a pool if one is wanted, and sleep
 * with nothing else to do.  Runs come from a fixed array: the thread allocates nothing, and so
 * cannot fail to.
 */
#include "daemon/carrier.h"

#include "daemon/carrier_internal.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUN_BYTES    (UINT64_C(4) << 20)
#define FLIGHT_BYTES (UINT64_C(32) << 20)
#define REAP_BUDGET  64u
#define HEARTBEAT_NS UINT64_C(500000000)
#define RETRY_NS     UINT64_C(1000000)   /* a device is full of what is not ours */
#define VERIFY_BYTES (UINT64_C(4) << 20) /* of a turn: some 0.5 ms that copies wait */

uint64_t prefixd_carrier_clock(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- answers --------------------------------------------------------------------------------- */

/*
 * Pools that were never announced, or are on their way out, go with the message that has them; the
 * device may be looking at a block of theirs, so they go behind it.
 */
static void message_drop(struct prefixd_message *message)
{
	struct prefixd_carrier_message *m = prefixd_carrier_message_of(&message->link);

	if (m->pool && (message->kind == PREFIXD_CARRIER_POOL_NEW ||
			message->kind == PREFIXD_CARRIER_POOL_FREE)) {
		radix_list_add_tail(&m->carrier->left, &message->link);
		return;
	}
	if (message->kind == PREFIXD_CARRIER_DESK_NEW || message->kind == PREFIXD_CARRIER_DESK_FREE)
		prefixd_desk_memory_free(m->desk, false); /* the device has the memory to its end */
	prefixd_carrier_message_free(m);
}

/* The devices are closed: what they had of them went with it. */
static void left_free(struct prefixd_carrier *c)
{
	while (!radix_list_empty(&c->left)) {
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(c->left.next);

		radix_list_remove(&m->message.link);
		prefixd_pool_free(NULL, m->pool);
		prefixd_carrier_message_free(m);
	}
}

void prefixd_carrier_message_free(struct prefixd_carrier_message *m)
{
	free(m);
}

void prefixd_carrier_answer(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int error)
{
	struct prefixd_carrier_op_counts *op = &c->ops[m->message.kind];

	m->error = error;
	if (error < 0) {
		prefixd_carrier_add(&op->failed, 1);
		atomic_store_explicit(&op->last_error, error, memory_order_relaxed);
		atomic_store_explicit(&op->last_error_ns, prefixd_carrier_clock(),
				      memory_order_relaxed);
	} else {
		prefixd_carrier_add(&op->done, 1);
	}
	if (error == -ENODEV)
		atomic_store_explicit(&c->lost, true, memory_order_relaxed);
	if (c->closed) /* a copy: pools are not made any more */
		prefixd_carrier_message_free(m);
	else
		prefixd_helper_answer(c->own, &m->message);
}

static void answer_coded(void *ctx, struct prefixd_carrier_message *m, int error)
{
	struct prefixd_carrier *c = ctx;

	if (error == 0)
		prefixd_carrier_add(&c->bytes, m->pool->block_bytes);
	if (error == 0 && m->result == PREFIXD_MOVE_CORRUPT) {
		prefixd_carrier_add(&c->corrupt, 1);
		prefixd_carrier_add(&c->errors[PREFIXD_COPY_ERROR_CORRUPT], 1);
	}
	prefixd_carrier_refuse(c, m, error);
}

/* ---- verifying ------------------------------------------------------------------------------- */

/* What the block sums up to. */
static void verify_compare(struct prefixd_carrier *c, struct prefixd_carrier_message *m,
			   const uint8_t sum[16])
{
	const struct radix_sum *want = &m->sums[m->n_looked];
	const uint64_t bit = UINT64_C(1) << m->n_looked;

	m->done |= bit;
	if (memcmp(sum, want->checksum, sizeof(want->checksum)) != 0) {
		m->bad |= bit;
		prefixd_carrier_add(&c->corrupt, 1);
	}
	m->n_looked++;
}

void prefixd_carrier_verify_end(struct prefixd_carrier *c, struct prefixd_carrier_message *m,
				int error)
{
	if (c->verifies.next == &m->message.link)
		c->look_rank = 0; /* of its next block some pieces may have been fetched */
	radix_list_remove(&m->message.link);
	prefixd_carrier_answer(c, m, error);
}

/* One is enough: the devices fetch one block at a time. */
static void *look_buffer(const struct prefixd_carrier_message *m)
{
	return prefixd_pool_stage(m->pool, m->pool->n_stage);
}

static void look_done(struct gpu_job *job, int status)
{
	struct prefixd_carrier *c = job->ctx;
	struct prefixd_carrier_message *m = prefixd_carrier_message_of(c->verifies.next);
	uint8_t sum[16];

	c->looking = false;
	if (c->closed)
		return; /* dropped with the list */
	if (status < 0) {
		prefixd_carrier_verify_end(c, m, status);
	} else if (++c->look_rank == m->pool->n_ranks) {
		struct prefixd_pieces pieces = prefixd_pieces_at(m->pool, look_buffer(m));

		c->look_rank = 0;
		prefixd_carrier_sum(m->pool, &pieces, PROTO_CHECKSUM_XXH3_128, sum);
		verify_compare(c, m, sum);
	}
}

/* The next piece of the block; one is fetched at a time.  Return: whether it is now. */
static bool look_fetch(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	const struct prefixd_rank *rank = &m->pool->ranks[c->look_rank];
	const uint64_t len = m->pool->info.slot_bytes;
	int r;

	c->look = (struct gpu_job){
		.dst = (uintptr_t)look_buffer(m) + c->look_rank * len,
		.src = rank->gpu->ops->slot_addr(rank->pool, m->sums[m->n_looked].slot),
		.len = len,
		.done = look_done,
		.ctx = c,
	};
	c->looking = true;
	r = rank->gpu->ops->submit(rank->gpu, &c->look);
	if (r == 0)
		return true;
	c->looking = false;
	if (r == -EAGAIN) {
		c->full = true;
		return false;
	}
	prefixd_carrier_verify_end(c, m, r);
	return false;
}

/* The sum of a block in its slots.  False: no CPU reaches them. */
static bool slots_sum(const struct prefixd_pool *pool, uint32_t slot, uint8_t ret_sum[16])
{
	struct prefixd_pieces pieces;

	for (uint32_t i = 0; i < pool->n_ranks; i++) {
		pieces.v[i] = prefixd_pool_slot(pool, i, slot);
		if (!pieces.v[i])
			return false;
	}
	prefixd_carrier_sum(pool, &pieces, PROTO_CHECKSUM_XXH3_128, ret_sum);
	return true;
}

/* As much of what waits as fits into a turn.  Return: whether there is more to do at once. */
static bool verify_some(struct prefixd_carrier *c)
{
	uint64_t bytes = 0;

	while (!c->looking && !c->full && !radix_list_empty(&c->verifies) && bytes < VERIFY_BYTES) {
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(c->verifies.next);
		uint8_t sum[16];

		if (m->n_looked == m->n_sums) {
			prefixd_carrier_verify_end(c, m, 0);
			continue;
		}
		if (!slots_sum(m->pool, m->sums[m->n_looked].slot, sum))
			return look_fetch(c, m);
		verify_compare(c, m, sum);
		bytes += m->pool->block_bytes;
	}
	return bytes > 0;
}

/* Its pool goes: what was not looked at never will be. */
static void verify_forget(struct prefixd_carrier *c, const struct prefixd_pool *pool)
{
	struct radix_list *it, *next;

	for (it = c->verifies.next; it != &c->verifies; it = next) {
		next = it->next;
		if (prefixd_carrier_message_of(it)->pool == pool)
			prefixd_carrier_verify_end(c, prefixd_carrier_message_of(it), 0);
	}
}

/* ---- pools ----------------------------------------------------------------------------------- */

static void making_step(void *ctx)
{
	struct prefixd_carrier *c = ctx;

	prefixd_helper_alive(c->own, prefixd_carrier_clock());
}

/* Return: 0, or why there is none. */
static int pool_make(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	int r = prefixd_carrier_reopen(c, m);

	m->plan.step = making_step;
	m->plan.ctx = c;
	m->plan.life = c->life;
	if (r == 0 && m->message.kind == PREFIXD_CARRIER_POOL_NEW)
		r = prefixd_pool_new(&m->pool, &c->devices, &m->plan, &m->kept, m->why,
				     sizeof(m->why));
	else if (r == 0)
		r = prefixd_pool_again(m->pool, &c->devices, &m->plan, m->slots, &m->kept, m->why,
				       sizeof(m->why));
	m->life = c->life;
	m->devices = c->devices;
	return r;
}

/* Return: 0, or why there is none. */
static int desk_make(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	int r = -ENODEV;

	snprintf(m->why, sizeof(m->why), "no memory to write in: the device is lost");
	if (c->devices.n > 0 && m->pool->life == c->life)
		r = prefixd_desk_memory_new(&m->desk, m->pool->ranks[0].gpu, m->plan.n_slots,
					    m->plan.slot_bytes, m->why, sizeof(m->why));
	if (r == 0)
		m->desk->life = c->life;
	return r;
}

/* Copies wait meanwhile: the device has one user. */
static void pool_next(struct prefixd_carrier *c)
{
	struct prefixd_carrier_message *m = prefixd_carrier_message_of(c->pools.next);
	int r = 0;

	radix_list_remove(&m->message.link);
	if (m->message.kind == PREFIXD_CARRIER_POOL_NEW ||
	    m->message.kind == PREFIXD_CARRIER_POOL_AGAIN) {
		atomic_store_explicit(&c->making, true, memory_order_relaxed);
		m->begun_ns = prefixd_carrier_clock();
		r = pool_make(c, m);
		m->ns = prefixd_carrier_clock() - m->begun_ns;
		atomic_store_explicit(&c->making, false, memory_order_relaxed);
	} else if (m->message.kind == PREFIXD_CARRIER_DESK_NEW) {
		r = desk_make(c, m);
	} else if (m->message.kind == PREFIXD_CARRIER_DESK_FREE) {
		prefixd_desk_memory_free(m->desk, c->devices.n > 0 && m->desk->life == c->life);
		m->desk = NULL;
	} else {
		verify_forget(c, m->pool);
		prefixd_pool_free(c->devices.n > 0 && m->pool->life == c->life ? &c->devices : NULL,
				  m->pool);
		m->pool = NULL;
	}
	prefixd_carrier_answer(c, m, r);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void take_all(struct prefixd_carrier *c)
{
	struct prefixd_message *message;

	while ((message = prefixd_helper_take(c->own))) {
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(&message->link);

		if (message->kind == PREFIXD_CARRIER_WATCH) {
			c->watch = m;
			continue;
		}
		if (prefixd_carrier_stale(c, m))
			continue;
		if (message->kind != PREFIXD_CARRIER_COPY &&
		    message->kind != PREFIXD_CARRIER_TAKE) {
			radix_list_add_tail(message->kind == PREFIXD_CARRIER_VERIFY ? &c->verifies
										    : &c->pools,
					    &message->link);
			continue;
		}
		if (prefixd_coder_takes(m)) {
			prefixd_coder_add(&c->coder, m);
			continue;
		}
		radix_list_add_tail(m->urgent ? &c->urgent : &c->others, &message->link);
		prefixd_carrier_add(&c->waiting, 1);
	}
}

/* The simulated device's clock follows the real one. */
static void time_pass(struct prefixd_carrier *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->devices.n; i++)
		gpu_sim_advance(c->devices.v[i], now - c->clock_ns);
	c->sim_ns += now - c->clock_ns;
	c->clock_ns = now;
}

static uint64_t sleep_ns(const struct prefixd_carrier *c)
{
	uint64_t ns = HEARTBEAT_NS;

	for (uint32_t i = 0; i < c->devices.n; i++) {
		uint64_t due = gpu_sim_next_due(c->devices.v[i]);

		if (due != UINT64_MAX)
			ns = radix_min_u64(ns, due > c->sim_ns ? due - c->sim_ns : 0);
	}
	if (c->full || c->coder.full)
		ns = radix_min_u64(ns, RETRY_NS);
	return ns;
}

/* Return: false when this thread cannot wait any more, and so cannot go on. */
static bool wait_for_work(struct prefixd_carrier *c)
{
	struct pollfd p[1 + GPU_DEVICES_MAX];
	uint64_t ns = sleep_ns(c);
	const struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u),
				     .tv_nsec = (long)(ns % 1000000000u) };
	uint32_t n = 0;

	p[n++] = (struct pollfd){ .fd = prefixd_helper_request_fd(c->own), .events = POLLIN };
	for (uint32_t i = 0; i < c->devices.n; i++) {
		const struct gpu *gpu = c->devices.v[i];

		p[n++] = (struct pollfd){ .fd = gpu->ops->event_fd(gpu), .events = POLLIN };
	}
	if (ppoll(p, n, &ts, NULL) < 0)
		return errno == EINTR || errno == EAGAIN || errno == ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		if (p[i].revents & (POLLNVAL | POLLERR))
			return false;
	return true;
}

/* Return: whether anything had ended. */
static bool reap_all(struct prefixd_carrier *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->devices.n; i++) {
		struct gpu *gpu = c->devices.v[i];

		n += gpu->ops->reap(gpu, REAP_BUDGET);
	}
	return n > 0;
}

static void carrier_run(struct prefixd_helper *h, void *ctx)
{
	struct prefixd_carrier *c = ctx;

	c->own = h;
	while (!prefixd_helper_stopping(h)) {
		uint64_t now = prefixd_carrier_clock();
		bool busy = false;

		prefixd_helper_alive(h, now);
		time_pass(c, now);
		take_all(c);
		prefixd_carrier_look(c, now);
		if (c->partly || (c->n_runs == 0 && !c->looking))
			c->full = false; /* it may be that nothing of ours will end: ask again */
		prefixd_carrier_sum_arrived(c);
		while (prefixd_carrier_submit(c))
			busy = true;
		busy |= prefixd_coder_some(&c->coder);
		if (c->n_runs > 0 || c->looking || c->coder.n_flying > 0)
			busy |= reap_all(c);
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
	c->devices = *config->devices;
	c->life = 1;
	c->clock_ns = prefixd_carrier_clock();
	radix_list_init(&c->urgent);
	radix_list_init(&c->others);
	radix_list_init(&c->pools);
	radix_list_init(&c->verifies);
	radix_list_init(&c->arrived);
	radix_list_init(&c->left);
	prefixd_coder_init(&c->coder, answer_coded, c);
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
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(list->next);

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
	prefixd_carrier_give_up(c);
	prefixd_coder_give_up(&c->coder);
	prefixd_carrier_message_free(c->watch);
	c->watch = NULL;
	list_drop(&c->urgent);
	list_drop(&c->others);
	list_drop(&c->coder.urgent);
	list_drop(&c->coder.others);
	list_drop(&c->arrived);
	list_drop(&c->pools);
}

struct prefixd_carrier *prefixd_carrier_free(struct prefixd_carrier *c)
{
	if (!c)
		return NULL;
	prefixd_carrier_stop(c);
	radix_assert(c->n_runs == 0 && !c->looking && c->coder.n_flying == 0);
	list_drop(&c->verifies); /* not before: the device may have been looking at one of them */
	list_drop(&c->coder.urgent); /* nor these: its end may have left them to the processor */
	list_drop(&c->coder.others);
	left_free(c);
	free(c);
	return NULL;
}

void prefixd_carrier_send(struct prefixd_carrier *c, struct prefixd_carrier_message *m)
{
	m->carrier = c;
	if (m->message.kind == PREFIXD_CARRIER_POOL_NEW)
		m->pool = NULL;
	if (m->message.kind == PREFIXD_CARRIER_DESK_NEW)
		m->desk = NULL;
	prefixd_helper_send(c->helper, &m->message);
}

struct prefixd_carrier_message *prefixd_carrier_receive(struct prefixd_carrier *c)
{
	struct prefixd_message *m = prefixd_helper_receive(c->helper);

	return m ? prefixd_carrier_message_of(&m->link) : NULL;
}

struct gpu_devices prefixd_carrier_devices(const struct prefixd_carrier *c)
{
	return c->devices;
}

struct prefixd_helper *prefixd_carrier_helper(const struct prefixd_carrier *c)
{
	return c->helper;
}

const char *prefixd_copy_error_to_string(enum prefixd_copy_error e)
{
	static const char *const names[] = {
#define X(sym, text) text,
		PREFIXD_COPY_ERRORS(X)
#undef X
	};

	return names[e];
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
		.coded = get(&c->coder.coded),
		.decoded = get(&c->coder.decoded),
		.uncodable = get(&c->coder.uncodable),
		.saved_bytes = get(&c->coder.saved_bytes),
		.coded_by_device = get(&c->coder.by_device),
		.losses = get(&c->losses),
		.opened = get(&c->opened),
		.lost = atomic_load_explicit(&c->lost, memory_order_relaxed),
		.making = atomic_load_explicit(&c->making, memory_order_relaxed),
	};
	for (int i = 0; i < PREFIXD_COPY_N_ERRORS; i++)
		ret->errors[i] = get(&c->errors[i]);
	for (int i = 0; i < PREFIXD_CARRIER_N_OPS; i++) {
		const struct prefixd_carrier_op_counts *op = &c->ops[i];

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
