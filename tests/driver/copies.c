/*
 * copies.c - the entries that put something into a queue, and what they refuse.
 *
 * What an operation reaches is looked at when it is asked for, and again when it runs.  Memory of
 * the process must be registered: a real driver copies other memory too, but makes the program wait
 * meanwhile, which nobody wants who asks for asynchronous copies.
 */
#include "tests/driver/lookalike.h"

#include <stdio.h>

#define MAX_BATCH 65536u

static gpu_cu_result check_side(const char *call, const char *side, uint64_t addr, uint64_t len,
				bool write)
{
	const char *reason = NULL;

	if (lookalike_reachable(lookalike_ctx, addr, len, write, &reason))
		return GPU_CU_SUCCESS;
	BROKEN(GPU_CU_INVALID_VALUE, "%s: its %s: %s", call, side, reason);
}

static gpu_cu_result check_copy(const char *call, uint64_t dst, uint64_t src, uint64_t len)
{
	gpu_cu_result r = check_side(call, "destination", dst, len, true);

	return r == GPU_CU_SUCCESS ? check_side(call, "source", src, len, false) : r;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static gpu_cu_result copy(uint64_t dst, uint64_t src, uint64_t len, gpu_cu_stream stream)
{
	struct lookalike_op *op;
	gpu_cu_result r;

	r = lookalike_stream_use("cuMemcpyAsync", stream);
	if (r == GPU_CU_SUCCESS)
		r = check_copy("cuMemcpyAsync", dst, src, len);
	if (r != GPU_CU_SUCCESS || len == 0)
		return r;
	op = lookalike_op_new(LOOKALIKE_COPY, 1);
	op->pieces[0] = (struct lookalike_piece){ dst, src, len, lookalike_planned_op("copy") };
	lookalike_counts.n_copies++;
	lookalike_push(stream, op);
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_copy(gpu_cu_ptr dst, gpu_cu_ptr src, size_t len, gpu_cu_stream stream)
{
	gpu_cu_result r;

	ENTER(copy);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = copy(dst, src, len, stream);
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

struct batch {
	gpu_cu_ptr *dsts, *srcs;
	size_t *lens;
	size_t n;
	struct gpu_cu_memcpy_attr *attrs;
	size_t *attr_from;
	size_t n_attrs;
};

/* What is wrong with the attributes, or NULL. */
static const char *attrs_fault(const struct batch *b)
{
	if (!b->dsts || !b->srcs || !b->lens || b->n == 0 || b->n > MAX_BATCH)
		return "its copies, or their number";
	if (!b->attrs || !b->attr_from || b->n_attrs == 0 || b->n_attrs > b->n)
		return "its attributes, or their number";
	if (b->attr_from[0] != 0)
		return "attributes that do not begin with the first copy";
	for (size_t i = 0; i < b->n_attrs; i++) {
		if (i > 0 && (b->attr_from[i] <= b->attr_from[i - 1] || b->attr_from[i] >= b->n))
			return "attributes out of order";
		if (b->attrs[i].src_order < 1 || b->attrs[i].src_order > 3)
			return "an order of reading that does not exist";
		if (b->attrs[i].flags & ~(unsigned)GPU_CU_MEMCPY_PREFER_OVERLAP)
			return "flags that do not exist";
	}
	return NULL;
}

/* The copies of a batch may not depend on each other, since they have no order. */
static bool depends(const struct batch *b, size_t i, size_t j)
{
	return lookalike_overlap(b->dsts[i], b->lens[i], b->dsts[j], b->lens[j]) ||
	       lookalike_overlap(b->dsts[i], b->lens[i], b->srcs[j], b->lens[j]) ||
	       lookalike_overlap(b->srcs[i], b->lens[i], b->dsts[j], b->lens[j]);
}

static void check_order(const struct batch *b)
{
	for (size_t i = 0; i < b->n; i++)
		for (size_t j = 0; j < i; j++)
			if (depends(b, i, j)) {
				lookalike_broken("cuMemcpyBatchAsync: copies %zu and %zu depend on"
						 " each other",
						 j, i);
				return;
			}
}

/* A generator of the kind that splits a 64-bit sequence; any would do. */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void shuffle(struct lookalike_op *op)
{
	static uint64_t state; /* under the lock */

	if (state == 0)
		state = lookalike_config()->reorder;
	for (uint32_t i = op->n_pieces; i > 1; i--) {
		const uint32_t j = (uint32_t)(next_random(&state) % i);
		const struct lookalike_piece p = op->pieces[i - 1];

		op->pieces[i - 1] = op->pieces[j];
		op->pieces[j] = p;
	}
}

static gpu_cu_result copy_batch(const struct batch *b, size_t *ret_failed, gpu_cu_stream stream)
{
	static const char call[] = "cuMemcpyBatchAsync";
	const char *fault = attrs_fault(b);
	struct lookalike_op *op;
	gpu_cu_result r;

	*ret_failed = SIZE_MAX;
	r = lookalike_stream_use(call, stream);
	if (r != GPU_CU_SUCCESS)
		return r;
	if (fault)
		BROKEN(GPU_CU_INVALID_VALUE, "%s: %s", call, fault);
	for (size_t i = 0; i < b->n; i++) {
		r = check_copy(call, b->dsts[i], b->srcs[i], b->lens[i]);
		if (r == GPU_CU_SUCCESS)
			continue;
		*ret_failed = i;
		return r;
	}
	check_order(b);
	op = lookalike_op_new(LOOKALIKE_COPY, (uint32_t)b->n);
	for (size_t i = 0; i < b->n; i++)
		op->pieces[i] = (struct lookalike_piece){ b->dsts[i], b->srcs[i], b->lens[i],
							  lookalike_planned_op("copy") };
	if (lookalike_config()->reorder)
		shuffle(op);
	lookalike_counts.n_batches++;
	lookalike_counts.n_copies += b->n;
	lookalike_push(stream, op);
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_copy_batch(gpu_cu_ptr *dsts, gpu_cu_ptr *srcs, size_t *lens, size_t n,
				   struct gpu_cu_memcpy_attr *attrs, size_t *attr_from,
				   size_t n_attrs, size_t *ret_failed, gpu_cu_stream stream)
{
	const struct batch b = { dsts, srcs, lens, n, attrs, attr_from, n_attrs };
	size_t failed = SIZE_MAX;
	gpu_cu_result r;

	ENTER(copy_batch);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = copy_batch(&b, &failed, stream);
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (ret_failed)
		*ret_failed = failed;
	return r;
}

/* ---- the rest -------------------------------------------------------------------------------- */

gpu_cu_result lookalike_set_bytes(gpu_cu_ptr dst, unsigned char value, size_t len,
				  gpu_cu_stream stream)
{
	struct lookalike_op *op;
	gpu_cu_result r;

	ENTER(set_bytes);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use("cuMemsetD8Async", stream);
	if (r == GPU_CU_SUCCESS)
		r = check_side("cuMemsetD8Async", "destination", dst, len, true);
	if (r == GPU_CU_SUCCESS && len > 0) {
		op = lookalike_op_new(LOOKALIKE_SET, 1);
		op->value = value;
		op->pieces[0] = (struct lookalike_piece){ dst, dst, len,
							  lookalike_planned_op("set") };
		lookalike_push(stream, op);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

gpu_cu_result lookalike_stream_write(gpu_cu_stream stream, gpu_cu_ptr addr, uint64_t value,
				     unsigned flags)
{
	static const char call[] = "cuStreamWriteValue64";
	struct lookalike_op *op;
	gpu_cu_result r;

	ENTER(stream_write);
	if (addr % 8 || flags > 1)
		BROKEN(GPU_CU_INVALID_VALUE, "%s: flags, or an address that is not aligned", call);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use(call, stream);
	if (r == GPU_CU_SUCCESS)
		r = check_side(call, "word", addr, 8, true);
	if (r == GPU_CU_SUCCESS && !lookalike_is_device(addr, 8) &&
	    !lookalike_is_device_mapped(addr)) {
		lookalike_broken("%s: its word was not registered for a device", call);
		r = GPU_CU_INVALID_VALUE;
	}
	if (r == GPU_CU_SUCCESS) {
		op = lookalike_op_new(LOOKALIKE_WRITE, 0);
		op->addr = addr;
		op->value = value;
		op->plan = lookalike_planned_op("write");
		lookalike_push(stream, op);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

gpu_cu_result lookalike_stream_call(gpu_cu_stream stream, gpu_cu_host_fn fn, void *ctx)
{
	struct lookalike_op *op;
	gpu_cu_result r;

	ENTER(stream_call);
	if (!fn)
		BROKEN(GPU_CU_INVALID_VALUE, "cuLaunchHostFunc: no function");
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use("cuLaunchHostFunc", stream);
	if (r == GPU_CU_SUCCESS) {
		op = lookalike_op_new(LOOKALIKE_CALL, 0);
		op->fn = fn;
		op->ctx = ctx;
		op->plan = lookalike_planned_op("call");
		lookalike_push(stream, op);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}
