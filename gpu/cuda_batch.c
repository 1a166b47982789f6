/*
 * cuda_batch.c - which jobs go to the driver together, by which path, and the copies they become.
 *
 * What it guarantees.  Copies and kernels of one batch run in any order, so a job that touches what
 * an earlier one of the batch writes, or writes what it reads, waits for the next batch; batches of
 * a lane run one after the other.  A batch ends with its number, written by the device into the
 * lane's word, and a call; nothing of the batch is behind them.
 *
 * Paths.  A plain job is a copy.  Those that lie apart on the device and side by side in host
 * memory, and are short, are gathered on the device first and copied as one (and the other way
 * round).  Coded ones always go through the stage.
 *
 * What it relies on.  A copy between two registrations fails, so copies are cut there.
 */
#include "gpu/cuda_internal.h"

/* ---- which jobs ------------------------------------------------------------------------------ */

static bool overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

/* Whether it matters which of the two runs first. */
static bool conflict(const struct gpu_job *a, const struct gpu_job *b)
{
	return overlap(a->dst, a->dst_len, b->dst, b->dst_len) ||
	       overlap(a->dst, a->dst_len, b->src, b->src_len) ||
	       overlap(a->src, a->src_len, b->dst, b->dst_len);
}

static bool conflicts(const struct cuda_batch *b, const struct gpu_job *job)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (conflict(b->jobs[i], job))
			return true;
	return false;
}

/* Bytes up to where the next registration begins; of device memory, all. */
static uint64_t to_next_part(const struct cuda *c, uint64_t addr, uint64_t len)
{
	const struct cuda_pin *pin = gpu_cuda_pin_find(c, addr, len);

	if (!pin)
		return len;
	return radix_min_u64(len, CUDA_PIN_BYTES - (addr - pin->addr) % CUDA_PIN_BYTES);
}

/* Copies that a range becomes, cut where a side comes to a seam; NULL: they are only counted. */
static uint32_t add_copies(const struct cuda *c, struct cuda_pieces *p, uint64_t dst, uint64_t src,
			   uint64_t len)
{
	uint32_t n = 0;

	for (uint64_t at = 0, step; at < len; at += step, n++) {
		step = radix_min_u64(to_next_part(c, dst + at, len - at),
				     to_next_part(c, src + at, len - at));
		if (!p)
			continue;
		radix_assert(p->n < CUDA_PIECES); /* they were counted */
		p->dst[p->n] = dst + at;
		p->src[p->n] = src + at;
		p->len[p->n++] = step;
	}
	return n;
}

static bool same_coding(const struct gpu_coded *a, const struct gpu_coded *b)
{
	return a == b || (a && b && memcmp(a, b, sizeof(*a)) == 0);
}

static struct cuda_group group_of(const struct cuda *c, const struct cuda_batch *b,
				  const struct gpu_job *job)
{
	const uint64_t near = b->in ? job->dst : job->src, far = b->in ? job->src : job->dst;
	const struct gpu_pool *pool = gpu_pool_find(&c->pools, near, job->len);

	return (struct cuda_group){
		.pool = pool,
		.coded = job->coded,
		.off = (near - pool->addr) % pool->slot_stride,
		.len = job->len,
		.packed_len = b->in ? job->src_len : job->dst_len,
		.want_sum = job->want_sum,
		.across = gpu_pool_find(&c->pools, far, 1) != NULL,
		.staged = job->coded != NULL,
	};
}

static bool same_group(const struct cuda_group *a, const struct cuda_group *b)
{
	return a->pool == b->pool && a->off == b->off && a->len == b->len &&
	       a->want_sum == b->want_sum && a->across == b->across &&
	       same_coding(a->coded, b->coded);
}

/* False: there is no room for the job's kernels. */
static bool add_to_group(const struct cuda *c, const struct cuda_lane *lane, struct cuda_batch *b,
			 const struct gpu_job *job)
{
	struct cuda_group group = group_of(c, b, job);
	const uint32_t bases = 1 + (job->coded ? job->coded->n_pieces : 0);
	uint32_t i = 0;

	if (group.staged && group.packed_len > lane->stage_bytes - b->staged)
		return false;
	while (i < b->n_groups && !same_group(&b->groups[i], &group))
		i++;
	if (i == b->n_groups) {
		if (b->n_bases + bases > CUDA_BASES)
			return false;
		group.base = b->n_bases;
		b->n_bases += bases;
		b->groups[b->n_groups++] = group;
	}
	if (group.staged)
		b->staged += group.packed_len;
	b->group_of[b->n] = i;
	return true;
}

static bool add_job(const struct cuda *c, const struct cuda_lane *lane, struct cuda_batch *b,
		    struct gpu_job *job)
{
	const uint64_t len = job->coded ? (b->in ? job->src_len : job->dst_len) : job->len;
	/* Of what is coded one end is in the stage, which has no seams. */
	const uint64_t dst = job->coded && b->in ? 0 : job->dst;
	const uint64_t src = job->coded && !b->in ? 0 : job->src;
	const uint32_t n = add_copies(c, NULL, dst, src, len);

	if (conflicts(b, job) || b->n_copies + n > CUDA_PIECES)
		return false;
	b->group_of[b->n] = 0;
	if (c->module && !add_to_group(c, lane, b, job))
		return false;
	b->n_copies += n;
	b->jobs[b->n++] = job;
	return true;
}

/* From taken to flying, as many as may run in any order. */
static void fill(const struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b)
{
	struct gpu_job *job;

	b->n = b->n_groups = b->n_bases = b->n_copies = b->pieces.n = 0;
	b->staged = 0;
	b->in = gpu_cuda_is_in(c, lane);
	lane->n_batches++;
	while (b->n < CUDA_BATCH && (job = lane->taken.head) && add_job(c, lane, b, job)) {
		(void)gpu_queue_pop(&lane->taken);
		job->due_ns = lane->n_batches;
		gpu_queue_push(&lane->flying, job);
	}
	radix_assert(b->n > 0); /* submit() takes nothing that does not fit by itself */
}

/* ---- by which path --------------------------------------------------------------------------- */

/*
 * Which of `n` copies of `len` bytes go through the stage: those of which at least
 * CUDA_GATHER_RUNS become one.  host[] is ascending.  Return: how many.
 */
uint32_t gpu_cuda_choose(const uint64_t *host, const uint64_t *device, uint32_t n, uint64_t len,
			 bool *ret_staged)
{
	uint32_t n_staged = 0;

	for (uint32_t first = 0, end; first < n; first = end) {
		uint32_t runs = 1; /* of copies as long as they can be without a stage */
		bool staged;

		for (end = first + 1; end < n && host[end] == host[end - 1] + len; end++)
			runs += device[end] != device[end - 1] + len;
		staged = len < CUDA_GATHER_BELOW && runs >= CUDA_GATHER_RUNS;
		for (uint32_t i = first; i < end; i++)
			ret_staged[i] = staged;
		n_staged += staged ? end - first : 0;
	}
	return n_staged;
}

static uint64_t far_of(const struct cuda_batch *b, uint32_t i)
{
	return b->in ? b->jobs[i]->src : b->jobs[i]->dst;
}

static uint64_t near_of(const struct cuda_batch *b, uint32_t i)
{
	return b->in ? b->jobs[i]->dst : b->jobs[i]->src;
}

/* By groups, and within them by addresses in host memory, so that runs are seen. */
static void sort(struct cuda_batch *b)
{
	for (uint32_t i = 1; i < b->n; i++) {
		struct gpu_job *job = b->jobs[i];
		const uint32_t g = b->group_of[i];
		const uint64_t far = far_of(b, i);
		uint32_t at = i;

		for (; at > 0 && (b->group_of[at - 1] > g ||
				  (b->group_of[at - 1] == g && far_of(b, at - 1) > far));
		     at--) {
			b->jobs[at] = b->jobs[at - 1];
			b->group_of[at] = b->group_of[at - 1];
		}
		b->jobs[at] = job;
		b->group_of[at] = g;
	}
	for (uint32_t g = 0; g < b->n_groups; g++)
		b->groups[g].n = 0;
	for (uint32_t i = 0; i < b->n; i++)
		if (b->groups[b->group_of[i]].n++ == 0)
			b->groups[b->group_of[i]].first = i;
}

static uint64_t round_up(uint64_t len)
{
	return (len + GPU_CODED_ALIGN - 1) & ~(uint64_t)(GPU_CODED_ALIGN - 1);
}

/* Kernels move two bytes at a time at least. */
static bool may_gather(const struct cuda_group *group)
{
	return !group->coded && !group->across && group->len % 2 == 0 && group->off % 2 == 0 &&
	       group->len < CUDA_GATHER_BELOW && group->n >= CUDA_GATHER_RUNS;
}

/* A group of its own for those that go through the stage, if there are any and it has room. */
static bool split(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b, uint32_t g)
{
	const struct cuda_group *group = &b->groups[g];
	uint64_t host[CUDA_BATCH], device[CUDA_BATCH];
	bool staged[CUDA_BATCH];
	uint32_t n;

	if (!may_gather(group) || lane->no_stage)
		return false;
	for (uint32_t i = 0; i < group->n; i++) {
		host[i] = far_of(b, group->first + i);
		device[i] = near_of(b, group->first + i);
	}
	n = gpu_cuda_choose(host, device, group->n, group->len, staged);
	if (n == 0)
		return false;
	lane->no_stage = gpu_cuda_stage(c, lane, 0) < 0;
	if (lane->no_stage || round_up(n * group->len) > lane->stage_bytes - b->staged)
		return false;
	b->staged += round_up(n * group->len);
	if (n == group->n) {
		b->groups[g].staged = true;
		return false;
	}
	radix_assert(b->n_groups < CUDA_BATCH); /* none of them is empty */
	b->groups[b->n_groups] = *group;
	b->groups[b->n_groups].staged = true;
	for (uint32_t i = 0; i < group->n; i++)
		if (staged[i])
			b->group_of[group->first + i] = b->n_groups;
	b->n_groups++;
	return true;
}

/* Where packed blocks lie, and who says something of which jobs. */
static void lay_out(struct cuda_lane *lane, struct cuda_batch *b)
{
	gpu_cu_ptr at = lane->stage + sizeof(struct cuda_place);

	b->kernels = b->results = false;
	for (uint32_t g = 0; g < b->n_groups; g++) {
		struct cuda_group *group = &b->groups[g];
		const bool says = group->want_sum || (group->coded && !b->in);

		if (group->staged) {
			group->stage = at;
			at += round_up(group->n * group->packed_len);
		}
		b->kernels |= group->staged || group->want_sum;
		b->results |= says;
	}
	/* A place is in use until all jobs of its batch have ended: so are its arguments. */
	for (uint32_t i = 0; b->kernels && i < b->n; i++) {
		b->jobs[i]->result = b->place * CUDA_BATCH + i;
		lane->n_left[b->place]++;
	}
}

static void plan(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b)
{
	const uint32_t n = b->n_groups;
	bool again = false;

	b->kernels = b->results = false;
	if (n == 0)
		return;
	sort(b);
	for (uint32_t g = 0; g < n; g++)
		again |= split(c, lane, b, g);
	if (again)
		sort(b);
	lay_out(lane, b);
}

static bool is_staged(const struct cuda_batch *b, uint32_t i)
{
	return b->n_groups > 0 && b->groups[b->group_of[i]].staged;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/*
 * The copies of `n` jobs from the ith on.  More than one: packed blocks that are neighbours in host
 * memory, as they are in the stage.
 */
static void copies_of(const struct cuda *c, const struct cuda_batch *b, uint32_t i, uint32_t n,
		      struct cuda_pieces *p)
{
	const struct gpu_job *job = b->jobs[i];
	const struct cuda_group *group;
	uint64_t stage;

	if (!is_staged(b, i)) {
		(void)add_copies(c, p, job->dst, job->src, job->len);
		return;
	}
	group = &b->groups[b->group_of[i]];
	stage = group->stage + (i - group->first) * group->packed_len;
	(void)add_copies(c, p, b->in ? stage : job->dst, b->in ? job->src : stage,
			 n * group->packed_len);
}

/*
 * From the ith job on: how many are one copy.  Memory that was pinned at two times is not one, even
 * if its halves are neighbours.
 */
static uint32_t run_of(const struct cuda *c, const struct cuda_batch *b, uint32_t i)
{
	const struct cuda_group *group;
	uint32_t n = 1;

	if (!is_staged(b, i))
		return 1;
	group = &b->groups[b->group_of[i]];
	while (i + n < group->first + group->n &&
	       far_of(b, i + n) == far_of(b, i) + n * group->packed_len &&
	       gpu_cuda_pin_find(c, far_of(b, i), (n + 1) * group->packed_len))
		n++;
	return n;
}

static void all_copies(const struct cuda *c, struct cuda_batch *b)
{
	for (uint32_t i = 0, n; i < b->n; i += n) {
		n = run_of(c, b, i);
		copies_of(c, b, i, n, &b->pieces);
	}
}

/* An answer that is about this copy and not about the device. */
static bool is_of_job(gpu_cu_result r)
{
	return r == GPU_CU_INVALID_VALUE || r == GPU_CU_OUT_OF_MEMORY;
}

/* Each copy by itself, which also finds out whose mistake it was that a batch failed by. */
static void copy_each(struct cuda *c, const struct cuda_lane *lane, struct cuda_batch *b)
{
	struct cuda_pieces p;

	for (uint32_t k = 0, n; k < b->n; k += n) {
		n = run_of(c, b, k);
		p.n = 0;
		copies_of(c, b, k, n, &p);
		for (uint32_t i = 0; i < p.n; i++) {
			gpu_cu_result r = gpu_cuda_ask(c, copy, p.dst[i], p.src[i], p.len[i],
						       lane->stream);

			if (r == GPU_CU_SUCCESS)
				continue;
			(void)gpu_cuda_result(c, gpu_driver_names.copy, r);
			if (c->lost)
				return;
			for (uint32_t of = k; of < k + n; of++)
				b->jobs[of]->status = -EIO;
			break;
		}
	}
}

/* Return: true: the driver took all of them at once. */
static bool copy_together(struct cuda *c, const struct cuda_lane *lane, struct cuda_batch *b)
{
	struct cuda_pieces *p = &b->pieces;
	struct gpu_cu_memcpy_attr attr = {
		.src_order = GPU_CU_MEMCPY_SRC_ORDER_STREAM,
		.flags = GPU_CU_MEMCPY_PREFER_OVERLAP,
	};
	size_t from = 0, failed = SIZE_MAX;
	gpu_cu_result r;

	if (!c->driver.copy_batch)
		return false;
	all_copies(c, b);
	r = gpu_cuda_ask(c, copy_batch, p->dst, p->src, p->len, p->n, &attr, &from, 1, &failed,
			 lane->stream);
	if (r == GPU_CU_NOT_SUPPORTED)
		c->driver.copy_batch = NULL; /* and never again */
	if (r != GPU_CU_SUCCESS && r != GPU_CU_NOT_SUPPORTED && !is_of_job(r))
		(void)gpu_cuda_result(c, gpu_driver_names.copy_batch, r);
	return r == GPU_CU_SUCCESS;
}

/* ---- handing over ---------------------------------------------------------------------------- */

/* Kernels before the copies out of the stage, and behind those into it. */
static void run(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b)
{
	if (b->kernels)
		gpu_cuda_kernels_begin(c, lane, b);
	if (b->kernels && !b->in && !c->lost)
		gpu_cuda_kernels_run(c, lane, b);
	if (!c->lost && !copy_together(c, lane, b) && !c->lost)
		copy_each(c, lane, b);
	if (b->kernels && b->in && !c->lost)
		gpu_cuda_kernels_run(c, lane, b);
	if (b->kernels && !c->lost)
		gpu_cuda_kernels_end(c, lane, b);
}

/* All that was taken, unless places are wanting.  The context is current. */
void gpu_cuda_hand_over(struct cuda *c, struct cuda_lane *lane, gpu_cu_host_fn on_end)
{
	struct cuda_batch b;

	lane->stuck = false;
	while (lane->taken.head && !c->lost) {
		if (!gpu_cuda_place_find(lane, &b.place)) {
			lane->stuck = true;
			return;
		}
		fill(c, lane, &b);
		plan(c, lane, &b);
		if (!c->lost)
			run(c, lane, &b);
		if (!c->lost &&
		    gpu_cuda_call(c, stream_write, lane->stream, lane->word_addr, lane->n_batches,
				  GPU_CU_STREAM_WRITE_VALUE_DEFAULT) < 0)
			gpu_cuda_lose(c);
		if (!c->lost &&
		    gpu_cuda_call(c, stream_call, lane->stream, on_end, &c->wake_fd) < 0)
			gpu_cuda_lose(c);
	}
}
