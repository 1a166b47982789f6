/*
 * carrier_run.c - copies of the carrier: blocks that lie side by side as one run, a job for each
 * rank, and what is done with a block that has arrived.
 *
 * What it guarantees.  A block is answered once, when the jobs of all its ranks have ended: with
 * success if all of them have it, else with the first failure, and its bytes are not summed then.
 * Of a run that a full device did not take all jobs are handed over before any other run is.
 */
#include "daemon/carrier_internal.h"

static bool is_taken(const struct prefixd_carrier_message *m)
{
	return m->message.kind == PREFIXD_CARRIER_TAKE;
}

/* Behind all other buffers. */
static uint32_t sum_buffer(const struct prefixd_pool *pool, uint32_t i)
{
	return pool->n_stage + 1 + pool->n_scratch + i;
}

static enum prefixd_copy_error class_of(int error)
{
	switch (-error) {
	case EIO:
		return PREFIXD_COPY_ERROR_IO;
	case ENODEV:
		return PREFIXD_COPY_ERROR_DEVICE;
	case ENOMEM:
		return PREFIXD_COPY_ERROR_MEMORY;
	case EINVAL:
		return PREFIXD_COPY_ERROR_INVALID;
	default:
		return PREFIXD_COPY_ERROR_OTHER;
	}
}

void prefixd_carrier_refuse(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int error)
{
	if (error < 0) {
		m->result = PREFIXD_MOVE_FAILED;
		prefixd_carrier_add(&c->errors[class_of(error)], 1);
	}
	if (is_taken(m) && m->to == PREFIXD_PLACE_STAGE)
		m->pool->sum_used &= ~(UINT64_C(1) << (m->dst - sum_buffer(m->pool, 0)));
	prefixd_carrier_answer(c, m, error);
}

/* ---- the ends of copies ---------------------------------------------------------------------- */

/* Where the piece of a rank lies. */
static uint64_t end_addr(const struct prefixd_carrier_message *m, uint32_t rank,
			 enum prefixd_place place, uint32_t slot)
{
	const struct prefixd_pool *pool = m->pool;
	const struct prefixd_rank *of = &pool->ranks[rank];
	const uint64_t at = rank * pool->info.slot_bytes;

	switch (place) {
	case PREFIXD_PLACE_DEVICE:
		return of->gpu->ops->slot_addr(of->pool, slot);
	case PREFIXD_PLACE_DESK:
		return of->gpu->ops->slot_addr(m->desk->pool, slot);
	case PREFIXD_PLACE_HOST:
		return (uintptr_t)prefixd_pool_host(pool, slot) + at;
	case PREFIXD_PLACE_STAGE:
		return (uintptr_t)prefixd_pool_stage(pool, slot) + at;
	}
	radix_assert(false);
}

/* Where the CPU can read the block: an end that is not the device's.  NULL: neither. */
static void *readable_end(const struct prefixd_carrier_message *m)
{
	enum prefixd_place place = m->to == PREFIXD_PLACE_DEVICE ? m->from : m->to;
	uint32_t slot = m->to == PREFIXD_PLACE_DEVICE ? m->src : m->dst;

	/* What a worker may still write proves nothing: of a block out of a desk, what arrived. */
	if (place == PREFIXD_PLACE_DESK)
		return prefixd_pool_slot(m->pool, 0, m->dst);
	if (place == PREFIXD_PLACE_DEVICE)
		return NULL;
	return place == PREFIXD_PLACE_HOST ? prefixd_pool_host(m->pool, slot)
					   : prefixd_pool_stage(m->pool, slot);
}

/* Sums the block and says whether it is the one that is known. */
static bool block_sum(struct prefixd_carrier_message *m)
{
	void *p = readable_end(m);
	struct prefixd_pieces pieces;

	if (!p)
		return true;
	pieces = prefixd_pieces_at(m->pool, p);
	return prefixd_carrier_sum_take(m, &pieces, is_taken(m));
}

static void block_done(struct prefixd_carrier *c, struct prefixd_carrier_message *m, int status)
{
	if (status == 0 && is_taken(m) && !c->closed && !readable_end(m)) {
		radix_list_add_tail(&c->arrived, &m->message.link);
		return;
	}
	m->ns = prefixd_carrier_clock() - m->begun_ns;
	m->result = PREFIXD_MOVE_OK;
	if (status == 0 && !block_sum(m)) {
		m->result = PREFIXD_MOVE_CORRUPT;
		prefixd_carrier_add(&c->corrupt, 1);
		prefixd_carrier_add(&c->errors[PREFIXD_COPY_ERROR_CORRUPT], 1);
	}
	if (status == 0)
		prefixd_carrier_add(&c->bytes, m->pool->block_bytes);
	prefixd_carrier_refuse(c, m, status);
}

/* All jobs that were sent have ended, and no more will be. */
static void run_done(struct prefixd_carrier *c, struct prefixd_carrier_run *run)
{
	c->flight_bytes -= run->n_jobs * run->jobs[0].len;
	c->n_runs--;
	prefixd_carrier_add(&c->in_flight, (uint64_t)0 - run->n);
	while (!radix_list_empty(&run->blocks)) {
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(run->blocks.next);

		radix_list_remove(&m->message.link);
		block_done(c, m, run->status);
	}
	run->used = false;
}

static void job_done(struct gpu_job *job, int status)
{
	struct prefixd_carrier_run *run = job->ctx;
	struct prefixd_carrier *c = run->carrier;

	c->full = false;
	run->n_ended++;
	if (status < 0 && run->status == 0)
		run->status = status;
	if (run->n_ended == run->n_sent && run != c->partly)
		run_done(c, run);
}

/* ---- handing copies to the devices ----------------------------------------------------------- */

/* Where they travel as one. */
static bool side_by_side(const struct prefixd_carrier_message *a,
			 const struct prefixd_carrier_message *b)
{
	return a->pool->n_ranks == 1 && a->pool == b->pool && a->desk == b->desk &&
	       a->message.kind == b->message.kind && a->from == b->from && a->to == b->to &&
	       b->src == a->src + 1 && b->dst == a->dst + 1;
}

static struct prefixd_carrier_run *run_free(struct prefixd_carrier *c)
{
	for (uint32_t i = 0; i < CARRIER_RUNS; i++)
		if (!c->runs[i].used)
			return &c->runs[i];
	return NULL;
}

/* The first message of the list with those behind it that lie beside it. */
static void run_gather(struct prefixd_carrier *c, struct prefixd_carrier_run *run,
		       struct radix_list *list)
{
	struct prefixd_carrier_message *first = prefixd_carrier_message_of(list->next);
	struct prefixd_carrier_message *last = NULL, *m = first;
	const struct prefixd_pool *pool = first->pool;
	const struct gpu_pool_info *info = &pool->info;

	radix_list_init(&run->blocks);
	run->n = 0;
	do {
		radix_list_remove(&m->message.link);
		radix_list_add_tail(&run->blocks, &m->message.link);
		run->n++;
		last = m;
		m = prefixd_carrier_message_of(list->next);
	} while (!radix_list_empty(list) && side_by_side(last, m) &&
		 (run->n + 1) * info->slot_stride <= c->config.run_bytes);
	for (uint32_t i = 0; i < pool->n_ranks; i++)
		run->jobs[i] = (struct gpu_job){
			.dst = end_addr(first, i, first->to, first->dst),
			.src = end_addr(first, i, first->from, first->src),
			.len = (run->n - 1) * info->slot_stride + info->slot_bytes,
			.done = job_done,
			.ctx = run,
			.urgent = first->urgent,
		};
	run->n_jobs = pool->n_ranks;
	run->n_sent = run->n_ended = 0;
	run->status = 0;
	run->carrier = c;
	run->used = true;
}

/*
 * Back to the head of the list, in order: the device is full.  Walked by its elements, and not by
 * asking for the last one again and again: gcc 12.2 takes that question out of the loop.
 */
static void run_put_back(struct prefixd_carrier_run *run, struct radix_list *list)
{
	struct radix_list *it, *before;

	for (it = run->blocks.prev; it != &run->blocks; it = before) {
		before = it->prev;
		radix_list_remove(it);
		radix_list_add_head(list, it);
	}
	run->used = false;
}

static void run_refused(struct prefixd_carrier *c, struct prefixd_carrier_run *run, int error)
{
	while (!radix_list_empty(&run->blocks)) {
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(run->blocks.next);

		radix_list_remove(&m->message.link);
		prefixd_carrier_add(&c->waiting, (uint64_t)0 - 1);
		prefixd_carrier_refuse(c, m, error);
	}
	run->used = false;
}

/*
 * Hands over those of its jobs that are left, rank by rank.  Return: 0, and it is on its way, with
 * its status set if a job of it failed or was refused behind others; -EAGAIN: a device is full;
 * another negative errno: no job of it was taken.
 */
static int run_send(struct prefixd_carrier_run *run)
{
	const struct prefixd_carrier_message *first = prefixd_carrier_message_of(run->blocks.next);

	while (run->n_sent < run->n_jobs && run->status == 0) {
		struct gpu *gpu = first->pool->ranks[run->n_sent].gpu;
		int r = gpu->ops->submit(gpu, &run->jobs[run->n_sent]);

		if (r == -EAGAIN || (r < 0 && run->n_sent == 0))
			return r;
		if (r < 0)
			run->status = r;
		else
			run->n_sent++;
	}
	return 0;
}

/* Its first job was taken. */
static void run_begun(struct prefixd_carrier *c, struct prefixd_carrier_run *run)
{
	c->flight_bytes += run->n_jobs * run->jobs[0].len;
	c->n_runs++;
	prefixd_carrier_add(&c->jobs, run->n_jobs);
	prefixd_carrier_add(&c->in_flight, run->n);
	prefixd_carrier_add(&c->waiting, (uint64_t)0 - run->n);
}

/* The rest of what was handed over in part.  Return: as prefixd_carrier_submit(). */
static bool send_rest(struct prefixd_carrier *c)
{
	struct prefixd_carrier_run *run = c->partly;

	if (run_send(run) == -EAGAIN) {
		c->full = true;
		return false;
	}
	c->partly = NULL;
	if (run->n_ended == run->n_sent)
		run_done(c, run); /* the others had ended, and this one was refused */
	return true;
}

void prefixd_carrier_give_up(struct prefixd_carrier *c)
{
	struct prefixd_carrier_run *run = c->partly;

	if (!run)
		return;
	c->partly = NULL;
	run->status = -ENODEV;
	if (run->n_ended == run->n_sent)
		run_done(c, run);
}

bool prefixd_carrier_submit(struct prefixd_carrier *c)
{
	struct radix_list *list = radix_list_empty(&c->urgent) ? &c->others : &c->urgent;
	uint64_t now = prefixd_carrier_clock();
	struct prefixd_carrier_run *run;
	struct radix_list *it;
	int r;

	if (c->full)
		return false;
	if (c->partly)
		return send_rest(c);
	if (radix_list_empty(list) || c->flight_bytes >= c->config.in_flight_bytes)
		return false;
	run = run_free(c);
	if (!run)
		return false;
	run_gather(c, run, list);
	radix_list_foreach(it, &run->blocks)
		prefixd_carrier_message_of(it)->begun_ns = now;
	r = run_send(run);
	if (r == -EAGAIN)
		c->full = true; /* until something of ours is done, or a while has passed */
	if (r == -EAGAIN && run->n_sent == 0) {
		run_put_back(run, list);
		return false;
	}
	if (r < 0 && r != -EAGAIN) {
		run_refused(c, run, r);
		return true;
	}
	run_begun(c, run);
	if (r == -EAGAIN)
		c->partly = run;
	return true;
}

/* ---- out of desks ---------------------------------------------------------------------------- */

void prefixd_carrier_sum_arrived(struct prefixd_carrier *c)
{
	struct radix_list *it, *next;

	for (it = c->arrived.next; it != &c->arrived; it = next) {
		struct prefixd_carrier_message *m = prefixd_carrier_message_of(it);
		struct prefixd_pool *pool = m->pool;
		uint64_t unused = ~pool->sum_used & ((UINT64_C(1) << pool->n_sum) - 1);
		uint32_t i = unused ? (uint32_t)__builtin_ctzll(unused) : 0;

		next = it->next;
		if (!unused)
			continue;
		pool->sum_used |= UINT64_C(1) << i;
		m->from = PREFIXD_PLACE_DEVICE;
		m->src = m->dst;
		m->to = PREFIXD_PLACE_STAGE;
		m->dst = sum_buffer(pool, i);
		radix_list_remove(it);
		radix_list_add_tail(&c->urgent, it);
		prefixd_carrier_add(&c->waiting, 1);
	}
}
