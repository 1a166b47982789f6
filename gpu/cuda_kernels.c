/*
 * cuda_kernels.c - what kernels do for a batch of jobs: encode, decode, sum, gather and scatter.
 *
 *     host memory                  a lane's stage                             pools
 *     args     --copy--------->    args: ids and addresses of pieces
 *     packed   <--copies------>    packed blocks, one after the other <-----> blocks
 *     results  <--copy---------    results: sums, and what cannot be coded <-/
 *
 * What it guarantees.  All of it runs in the lane's queue, in this order: arguments, results set to
 * zero, kernels (or copies, on the way in), copies (kernels), results; so one stage serves all
 * batches of a lane.  The pinned memory of a batch, its place, is used again when the last of its
 * jobs has got its results.  Kernels read nothing over the bus.  Without kernels, or without memory
 * for a stage, plain copies go on as ever.
 *
 * What it relies on.  kernels.h.  Blocks of a group are of one kind, and lie at one distance from
 * each other (cuda_batch.c).
 */
#include "gpu/cuda_internal.h"
#include "gpu/fatbin.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(sizeof(struct cuda_place) % GPU_CODED_ALIGN == 0, "packed blocks follow it");
_Static_assert(CUDA_gpu_kernel_encode_bf16_e4m3 == CUDA_gpu_kernel_encode_f16_int8 + 3, "in order");
_Static_assert(CUDA_gpu_kernel_decode_bf16_e4m3 == CUDA_gpu_kernel_decode_f16_int8 + 3, "in order");

/* ---- the module ------------------------------------------------------------------------------ */

static bool module_load(struct cuda *c, char *ret_text, size_t text_len)
{
	static const char *const names[] = {
#define X(name) #name,
		GPU_KERNELS(X)
#undef X
	};
	const char *call = gpu_driver_names.module_load;
	gpu_cu_result r;

	if (!gpu_fatbin) {
		(void)snprintf(ret_text, text_len, "built without nvcc");
		return false;
	}
	r = gpu_cuda_ask(c, module_load, &c->module, gpu_fatbin);
	if (r != GPU_CU_SUCCESS)
		c->module = NULL;
	for (uint32_t i = 0; r == GPU_CU_SUCCESS && i < CUDA_N_KERNELS; i++) {
		call = gpu_driver_names.module_function;
		r = gpu_cuda_ask(c, module_function, &c->kernels[i], c->module, names[i]);
	}
	if (r != GPU_CU_SUCCESS)
		gpu_driver_describe(&c->driver, call, r, ret_text, text_len);
	return r == GPU_CU_SUCCESS;
}

/*
 * That there are none is no reason not to use a device; adds to the sentence about it.  If the
 * device has failed the next call tells.
 */
void gpu_cuda_kernels_init(struct cuda *c, char *ret_why, size_t why_len)
{
	const size_t used = ret_why && why_len ? strlen(ret_why) : 0;
	char text[256] = "";
	const bool there = module_load(c, text, sizeof(text));

	if (!there)
		gpu_cuda_kernels_deinit(c);
	if (ret_why && why_len)
		(void)snprintf(ret_why + used, why_len - used, there ? "%s" : "%s (%s)",
			       there ? ", with kernels" : ", plain copies only: no kernels", text);
}

/* Nothing is in flight. */
static void places_deinit(struct cuda *c, struct cuda_lane *lane)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE),
		     len = CUDA_PLACES * sizeof(struct cuda_place);

	if (lane->places_pinned)
		gpu_cuda_undo(c, host_unregister, lane->places);
	if (lane->places)
		(void)munmap(lane->places, (len + page - 1) / page * page);
	lane->places_pinned = false;
	lane->places = NULL;
}

/* Nothing is in flight.  What is on the device, gpu_cuda_memory_deinit() gives back. */
void gpu_cuda_kernels_deinit(struct cuda *c)
{
	for (uint32_t i = 0; i < CUDA_N_LANES; i++)
		places_deinit(c, &c->lanes[i]);
	if (c->module)
		gpu_cuda_undo(c, module_unload, c->module);
	c->module = NULL;
}

bool gpu_cuda_codes(const struct gpu *g)
{
	return gpu_cuda_of(g)->module != NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int places_init(struct cuda *c, struct cuda_lane *lane)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t len = (CUDA_PLACES * sizeof(struct cuda_place) + page - 1) / page * page;
	void *p;
	int r;

	if (lane->places)
		return 0;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	lane->places = p;
	r = gpu_cuda_call(c, host_register, p, len, GPU_CU_MEMHOSTREGISTER_PORTABLE);
	lane->places_pinned = r == 0;
	if (r < 0)
		places_deinit(c, lane);
	return r;
}

/*
 * Room for packed blocks of `need` bytes in all, if there is not that much already.  A batch in
 * flight may use the stage before it: that one stays until the close, and is at most half as large.
 * Return: 0; -ENOMEM; -ENODEV.
 */
int gpu_cuda_stage(struct cuda *c, struct cuda_lane *lane, uint64_t need)
{
	uint64_t bytes = need > CUDA_STAGE_BYTES ? need : CUDA_STAGE_BYTES;
	gpu_cu_ptr stage = 0;
	int r;

	if (lane->stage && need <= lane->stage_bytes)
		return 0;
	if (bytes < 2 * lane->stage_bytes)
		bytes = 2 * lane->stage_bytes;
	r = gpu_cuda_enter(c);
	if (r == 0)
		r = places_init(c, lane);
	if (r == 0)
		r = gpu_cuda_stage_new(c, sizeof(struct cuda_place) + bytes, &stage);
	if (r < 0)
		return c->lost ? -ENODEV : -ENOMEM;
	lane->stage = stage;
	lane->stage_bytes = bytes;
	lane->no_stage = false;
	return 0;
}

/* False: all are in use by batches in flight. */
bool gpu_cuda_place_find(const struct cuda_lane *lane, uint32_t *ret_place)
{
	for (uint32_t i = 0; i < CUDA_PLACES; i++) {
		*ret_place = i;
		if (lane->n_left[i] == 0)
			return true;
	}
	return false;
}

/* A job has ended, or will not any more.  If it ended well, what the kernels said of it. */
void gpu_cuda_take_results(const struct cuda *c, struct cuda_lane *lane, struct gpu_job *job)
{
	const uint32_t place = job->result / CUDA_BATCH, i = job->result % CUDA_BATCH;
	const struct cuda_results *results;

	if (job->result == UINT32_MAX)
		return;
	results = &lane->places[place].results;
	if (job->status == 0 && job->coded && !gpu_cuda_is_in(c, lane))
		job->uncodable = results->raw[i] != 0;
	if (job->status == 0 && job->want_sum)
		memcpy(job->sum, results->sums[i], sizeof(job->sum));
	job->result = UINT32_MAX;
	lane->n_left[place]--;
	lane->stuck = false;
}

/* ---- a batch --------------------------------------------------------------------------------- */

static bool has_kernels(const struct cuda_group *group)
{
	return group->staged || group->want_sum;
}

/* What the driver refused, the jobs of this group do not get; NULL: those of all with kernels. */
void gpu_cuda_fail(struct cuda_batch *b, const struct cuda_group *group)
{
	for (uint32_t i = 0; i < b->n; i++) {
		const struct cuda_group *of = &b->groups[b->group_of[i]];

		if (group ? of == group : has_kernels(of))
			b->jobs[i]->status = -EIO;
	}
}

/* Addresses of pieces: the block's own; the coded ones; the exact ones. */
static void fill_bases(const struct cuda_group *group, uint64_t *base)
{
	const struct gpu_coded *coded = group->coded;
	const uint64_t at = group->pool->addr + group->off;
	uint32_t n = 0;

	base[n++] = at;
	for (int exact = 0; coded && exact < 2; exact++)
		for (uint32_t i = 0; i < coded->n_pieces; i++)
			if (gpu_coded_exact(coded, i) == (exact != 0))
				base[n++] = at + i * gpu_coded_piece_len(coded);
}

/* The block as it lies in the pool. */
static uint64_t block_of(const struct cuda_batch *b, uint32_t i)
{
	return b->in ? b->jobs[i]->dst : b->jobs[i]->src;
}

static void fill_args(const struct cuda_batch *b, struct cuda_args *args)
{
	for (uint32_t g = 0; g < b->n_groups; g++) {
		const struct cuda_group *group = &b->groups[g];

		if (!has_kernels(group))
			continue;
		fill_bases(group, args->base + group->base);
		for (uint32_t i = group->first; i < group->first + group->n; i++)
			args->ids[i] = (uint32_t)((block_of(b, i) - group->pool->addr) /
						  group->pool->slot_stride);
	}
}

/* Exact pieces that do not end at a multiple of 64 leave gaps, which hold zeros. */
static bool is_ragged(const struct cuda_group *group)
{
	const struct gpu_coded *coded = group->coded;

	return coded && gpu_coded_n_exact(coded) &&
	       gpu_coded_piece_len(coded) != gpu_coded_exact_step(coded);
}

static int zero_gaps(struct cuda *c, struct cuda_lane *lane, const struct cuda_batch *b)
{
	int r = 0;

	for (uint32_t g = 0; r == 0 && !b->in && g < b->n_groups; g++) {
		const struct cuda_group *group = &b->groups[g];

		if (is_ragged(group))
			r = gpu_cuda_call(c, set_bytes, group->stage, 0,
					  group->n * group->packed_len, lane->stream);
	}
	return r;
}

static gpu_cu_ptr place_at(const struct cuda_lane *lane, size_t off)
{
	return lane->stage + off;
}

/*
 * The arguments, and results of which nothing is said yet.  If that fails nothing may be launched,
 * as kernels would take the last batch's blocks for their own.
 */
void gpu_cuda_kernels_begin(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b)
{
	struct cuda_args *args = &lane->places[b->place].args;
	const size_t len = offsetof(struct cuda_args, base) + b->n_bases * sizeof(args->base[0]);
	int r;

	fill_args(b, args);
	r = gpu_cuda_call(c, copy, place_at(lane, offsetof(struct cuda_place, args)),
			  (uintptr_t)args, len, lane->stream);
	if (r == 0)
		r = gpu_cuda_call(c, set_bytes,
				  place_at(lane, offsetof(struct cuda_place, results)), 0,
				  sizeof(struct cuda_results), lane->stream);
	if (r == 0)
		r = zero_gaps(c, lane, b);
	if (r == 0)
		return;
	gpu_cuda_fail(b, NULL);
	b->kernels = false;
}

/* ---- launches -------------------------------------------------------------------------------- */

static int launch(struct cuda *c, const struct cuda_lane *lane, uint32_t kernel, uint64_t bytes,
		  void **args)
{
	const uint64_t per_block = GPU_KERNEL_THREADS / 32 * GPU_KERNEL_TILE;
	const uint64_t blocks = radix_min_u64((bytes + per_block - 1) / per_block, CUDA_GRID);

	return gpu_cuda_call(c, launch, c->kernels[kernel], (unsigned)blocks, 1, 1,
			     GPU_KERNEL_THREADS, 1, 1, 0, lane->stream, args, NULL);
}

/* What the launches of a group have in common: where its arguments lie on the device. */
struct serve {
	struct cuda *c;
	const struct cuda_lane *lane;
	const struct cuda_group *group;
	bool in;
	gpu_cu_ptr ids, sums, raw;
};

static struct gpu_layout layout_of(const struct serve *s, uint32_t first, uint32_t n,
				   uint64_t piece)
{
	return (struct gpu_layout){
		.base = place_at(s->lane, offsetof(struct cuda_place, args.base) +
						  (s->group->base + first) * sizeof(uint64_t)),
		.stride = s->group->pool->slot_stride,
		.n_pieces = n,
		.piece_bytes = (uint32_t)piece,
	};
}

/* Pieces as they are, `n` of the table from `first` on, which lie at `off` of each packed block. */
static int move_pieces(struct serve *s, uint32_t first, uint32_t n, uint64_t piece, uint64_t off)
{
	struct gpu_layout layout = layout_of(s, first, n, piece);
	gpu_cu_ptr packed = s->group->stage + off;
	uint32_t n_blocks = s->group->n;
	uint64_t stride = s->group->packed_len;
	void *args[] = { &layout, &s->ids, &n_blocks, &packed, &stride };

	return launch(s->c, s->lane, s->in ? CUDA_gpu_kernel_scatter : CUDA_gpu_kernel_gather,
		      n_blocks * n * piece, args);
}

static int move_exact(struct serve *s)
{
	const struct gpu_coded *coded = s->group->coded;
	const uint32_t n = gpu_coded_n_exact(coded), first = 1 + coded->n_pieces - n;
	const uint64_t piece = gpu_coded_piece_len(coded), step = gpu_coded_exact_step(coded);
	const uint64_t at = s->group->packed_len - n * step;
	int r = 0;

	if (n == 0)
		return 0;
	if (piece == step)
		return move_pieces(s, first, n, piece, at);
	for (uint32_t i = 0; r == 0 && i < n; i++)
		r = move_pieces(s, first + i, 1, piece, at + i * step);
	return r;
}

static int code(struct serve *s)
{
	const struct gpu_coded *coded = s->group->coded;
	const uint32_t n = coded->n_pieces - gpu_coded_n_exact(coded);
	const uint32_t which = 2 * (coded->geometry.element - GPU_ELEMENT_F16) +
			       (coded->codec - GPU_CODEC_INT8);
	struct gpu_layout layout = layout_of(s, 1, n, gpu_coded_piece_len(coded));
	struct gpu_geometry geometry = coded->geometry;
	gpu_cu_ptr packed = s->group->stage;
	uint32_t n_blocks = s->group->n;
	uint64_t stride = s->group->packed_len;
	void *args[] = {
		&layout, &geometry, &s->ids, &n_blocks, &packed, &stride, &s->raw
	}; /* decoding takes all but the last */

	if (n == 0)
		return 0;
	return launch(
		s->c, s->lane,
		which + (s->in ? CUDA_gpu_kernel_decode_f16_int8 : CUDA_gpu_kernel_encode_f16_int8),
		n_blocks * n * gpu_coded_piece_len(coded), args);
}

static int sum(struct serve *s)
{
	struct gpu_layout layout = layout_of(s, 0, 1, s->group->len);
	uint32_t n_blocks = s->group->n;
	void *args[] = { &layout, &s->ids, &n_blocks, &s->sums };

	return launch(s->c, s->lane, CUDA_gpu_kernel_checksum, n_blocks * s->group->len, args);
}

/* Sums are of blocks as they lie in the pool: on the way in, behind all that writes them. */
static int serve_group(struct serve *s)
{
	const struct cuda_group *group = s->group;
	int r = 0;

	if (group->coded) {
		r = code(s);
		if (r == 0)
			r = move_exact(s);
	} else if (group->staged) {
		r = move_pieces(s, 0, 1, group->len, 0);
	}
	if (r == 0 && group->want_sum)
		r = sum(s);
	return r;
}

void gpu_cuda_kernels_run(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b)
{
	const gpu_cu_ptr ids = place_at(lane, offsetof(struct cuda_place, args.ids));
	const gpu_cu_ptr sums = place_at(lane, offsetof(struct cuda_place, results.sums));
	const gpu_cu_ptr raw = place_at(lane, offsetof(struct cuda_place, results.raw));

	for (uint32_t g = 0; b->kernels && g < b->n_groups && !c->lost; g++) {
		const struct cuda_group *group = &b->groups[g];
		struct serve s = {
			.c = c,
			.lane = lane,
			.group = group,
			.in = b->in,
			.ids = ids + group->first * sizeof(uint32_t),
			.sums = sums + group->first * 2 * sizeof(uint64_t),
			.raw = raw + group->first * sizeof(uint32_t),
		};

		if (has_kernels(group) && serve_group(&s) < 0)
			gpu_cuda_fail(b, group);
	}
}

/* Behind the kernels. */
void gpu_cuda_kernels_end(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b)
{
	struct cuda_results *results = &lane->places[b->place].results;

	if (b->kernels && b->results && !c->lost &&
	    gpu_cuda_call(c, copy, (uintptr_t)results,
			  place_at(lane, offsetof(struct cuda_place, results)), sizeof(*results),
			  lane->stream) < 0)
		gpu_cuda_fail(b, NULL);
}
