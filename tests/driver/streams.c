/*
 * streams.c - queues, the threads that run them, and what they run.
 *
 * A thread for each stream takes its operations in their order.  An operation that moves bytes
 * takes its time on the copy engine of its direction, which all streams of a device share, and then
 * the latency; then its bytes move at once, or what is to happen happens.  So a source is read, and
 * a destination written, at the end of that time and not before.
 *
 * An operation that fails leaves its result to the context, for the rest of the process.  From then
 * on no operation of that context does anything, and nobody is told: as on a device.
 *
 * A stream that was destroyed goes on until its queue is empty.  Its struct is never freed, so that
 * who uses it after that is noticed.
 */
#include "tests/driver/lookalike.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

static struct radix_list streams = { &streams, &streams };
static pthread_cond_t thread_ended = PTHREAD_COND_INITIALIZER;

/* ---- operations ------------------------------------------------------------------------------ */

struct lookalike_op *lookalike_op_new(enum lookalike_kind kind, uint32_t n_pieces)
{
	struct lookalike_op *op = calloc(1, sizeof(*op) + n_pieces * sizeof(op->pieces[0]));

	radix_assert(op);
	op->kind = kind;
	op->n_pieces = n_pieces;
	return op;
}

void lookalike_op_free(struct lookalike_op *op)
{
	if (op && op->kernel)
		lookalike_kernel_free(op->kernel);
	free(op);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Of `op`: into a device, out of one, or within. */
static uint32_t direction(const struct lookalike_piece *p, enum lookalike_kind kind)
{
	if (!lookalike_is_device(p->dst, 1))
		return 1;
	return kind == LOOKALIKE_COPY && !lookalike_is_device(p->src, 1) ? 0 : 2;
}

/* When it is done, by the device's clock. */
static uint64_t due_ns(const struct CUstream_st *s, const struct lookalike_op *op)
{
	const struct lookalike_config *config = lookalike_config();
	uint64_t now = now_ns(), bytes = 0, *free_ns;

	if (op->kind == LOOKALIKE_WRITE || op->kind == LOOKALIKE_CALL)
		return 0;
	if (op->n_pieces == 0 || config->bytes_per_ns <= 0)
		return config->latency_ns ? now + config->latency_ns : 0;
	for (uint32_t i = 0; i < op->n_pieces; i++)
		bytes += op->pieces[i].len;
	free_ns = &s->ctx->engine_free_ns[direction(&op->pieces[0], op->kind)];
	if (*free_ns < now)
		*free_ns = now;
	*free_ns += (uint64_t)((double)bytes / config->bytes_per_ns);
	return *free_ns + config->latency_ns;
}

/* Nobody waits for what happens on this stream any more. */
static bool given_up(const struct CUstream_st *s)
{
	return s->gone || s->ctx->sticky != GPU_CU_SUCCESS;
}

/* Return: false: the context went down meanwhile. */
static bool sleep_until(struct CUstream_st *s, uint64_t due)
{
	const struct timespec t = { (time_t)(due / 1000000000u), (long)(due % 1000000000u) };

	while (!given_up(s) && due > now_ns())
		(void)pthread_cond_timedwait(&s->changed, &lookalike_lock, &t);
	return !given_up(s);
}

/* Until the stream is destroyed or its context goes down. */
static void hang(struct CUstream_st *s)
{
	while (!given_up(s) && !s->destroyed)
		(void)pthread_cond_wait(&s->changed, &lookalike_lock);
	s->gone = true;
}

/* One piece of a copy, or of setting bytes, with the lock held but not while bytes move. */
static gpu_cu_result move(const struct CUstream_st *s, const struct lookalike_op *op,
			  struct lookalike_piece p, bool poison)
{
	const bool copies = op->kind == LOOKALIKE_COPY && !poison;
	struct lookalike_span to, from = { 0 };
	const char *reason;
	uint64_t n;

	while (p.len > 0) {
		if (!lookalike_span_begin(s->ctx, p.dst, p.len, true, &to, &reason)) {
			if (!poison) /* else it is said when the copy comes to it */
				lookalike_broken("a copy under way: its destination: %s", reason);
			return GPU_CU_ILLEGAL_ADDRESS;
		}
		if (copies && !lookalike_span_begin(s->ctx, p.src, to.len, false, &from, &reason)) {
			lookalike_span_end(&to);
			lookalike_broken("a copy under way: its source: %s", reason);
			return GPU_CU_ILLEGAL_ADDRESS;
		}
		n = copies ? from.len : to.len;
		(void)pthread_mutex_unlock(&lookalike_lock);
		if (copies)
			memcpy(to.at, from.at, n);
		else
			memset(to.at, poison ? LOOKALIKE_POISON : (int)op->value, n);
		(void)pthread_mutex_lock(&lookalike_lock);
		lookalike_span_end(&to);
		lookalike_span_end(&from);
		p.dst += n;
		p.src += n;
		p.len -= n;
	}
	return GPU_CU_SUCCESS;
}

static gpu_cu_result write_word(const struct CUstream_st *s, const struct lookalike_op *op)
{
	struct lookalike_span span;
	const char *reason;

	if (!lookalike_span_begin(s->ctx, op->addr, 8, true, &span, &reason)) {
		lookalike_broken("a word to write: %s", reason);
		return GPU_CU_ILLEGAL_ADDRESS;
	}
	__atomic_store_n((uint64_t *)(void *)span.at, op->value, __ATOMIC_RELEASE);
	lookalike_span_end(&span);
	return GPU_CU_SUCCESS;
}

static gpu_cu_result run_pieces(struct CUstream_st *s, const struct lookalike_op *op)
{
	gpu_cu_result r = GPU_CU_SUCCESS;

	for (uint32_t i = 0; r == GPU_CU_SUCCESS && i < op->n_pieces; i++) {
		if (op->pieces[i].plan == LOOKALIKE_HANG) {
			hang(s);
			return GPU_CU_SUCCESS;
		}
		r = op->pieces[i].plan;
		if (r == GPU_CU_SUCCESS)
			r = move(s, op, op->pieces[i], false);
	}
	return r;
}

static void call(const struct lookalike_op *op)
{
	(void)pthread_mutex_unlock(&lookalike_lock);
	lookalike_in_host_fn = true;
	op->fn(op->ctx);
	lookalike_in_host_fn = false;
	(void)pthread_mutex_lock(&lookalike_lock);
}

static gpu_cu_result run_kernel(const struct lookalike_op *op)
{
	gpu_cu_result r;

	lookalike_open_addresses(true);
	(void)pthread_mutex_unlock(&lookalike_lock);
	r = lookalike_kernel_run(op->kernel);
	(void)pthread_mutex_lock(&lookalike_lock);
	lookalike_open_addresses(false);
	return r;
}

static gpu_cu_result run(struct CUstream_st *s, const struct lookalike_op *op)
{
	if (op->plan == LOOKALIKE_HANG) {
		hang(s);
		return GPU_CU_SUCCESS;
	}
	if (op->plan != 0)
		return op->plan;
	switch (op->kind) {
	case LOOKALIKE_COPY:
	case LOOKALIKE_SET:
		return run_pieces(s, op);
	case LOOKALIKE_WRITE:
		return write_word(s, op);
	case LOOKALIKE_CALL:
		call(op);
		return GPU_CU_SUCCESS;
	case LOOKALIKE_KERNEL:
		return run_kernel(op);
	case LOOKALIKE_N_KINDS:
		break;
	}
	return GPU_CU_UNKNOWN;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void wake_all(gpu_cu_context ctx)
{
	struct radix_list *it;

	radix_list_foreach(it, &streams) {
		struct CUstream_st *s = radix_list_entry(it, struct CUstream_st, link);

		if (s->ctx == ctx)
			(void)pthread_cond_broadcast(&s->changed);
	}
}

static void run_one(struct CUstream_st *s)
{
	struct lookalike_op *op = radix_list_first(&s->ops, struct lookalike_op, link);
	gpu_cu_result r = GPU_CU_SUCCESS;

	radix_list_remove(&op->link);
	s->running = op;
	if (op->late_poison)
		for (uint32_t i = 0; i < op->n_pieces; i++)
			(void)move(s, op, op->pieces[i], true);
	if (sleep_until(s, due_ns(s, op)))
		r = run(s, op);
	s->running = NULL;
	lookalike_op_free(op);
	if (r != GPU_CU_SUCCESS && s->ctx->sticky == GPU_CU_SUCCESS) {
		s->ctx->sticky = r;
		wake_all(s->ctx);
	}
	(void)pthread_cond_broadcast(&s->changed);
}

static void drop_all(struct CUstream_st *s)
{
	while (!radix_list_empty(&s->ops)) {
		struct lookalike_op *op = radix_list_first(&s->ops, struct lookalike_op, link);

		radix_list_remove(&op->link);
		lookalike_op_free(op);
	}
}

static void *thread(void *ctx)
{
	struct CUstream_st *s = ctx;

	(void)pthread_mutex_lock(&lookalike_lock);
	while (!s->destroyed || !radix_list_empty(&s->ops)) {
		if (given_up(s))
			drop_all(s);
		if (!radix_list_empty(&s->ops))
			run_one(s);
		else if (!s->destroyed)
			(void)pthread_cond_wait(&s->changed, &lookalike_lock);
	}
	s->ended = true;
	(void)pthread_cond_broadcast(&thread_ended);
	(void)pthread_mutex_unlock(&lookalike_lock);
	return NULL;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static bool op_touches(const struct lookalike_op *op, uint64_t addr, uint64_t len)
{
	const bool copies = op->kind == LOOKALIKE_COPY;

	for (uint32_t i = 0; i < op->n_pieces; i++) {
		const struct lookalike_piece *p = &op->pieces[i];

		if (lookalike_overlap(addr, len, p->dst, p->len) ||
		    (copies && lookalike_overlap(addr, len, p->src, p->len)))
			return true;
	}
	return op->kind == LOOKALIKE_WRITE && lookalike_overlap(addr, len, op->addr, 8);
}

/* Whether that cannot be known. */
static bool op_may_touch(const struct lookalike_op *op)
{
	return op->kind == LOOKALIKE_KERNEL || op->kind == LOOKALIKE_CALL;
}

static bool stream_touches(const struct CUstream_st *s, uint64_t addr, uint64_t len, bool may)
{
	struct radix_list *it;

	if (given_up(s))
		return false;
	if (s->running && (op_touches(s->running, addr, len) || (may && op_may_touch(s->running))))
		return true;
	radix_list_foreach(it, &s->ops) {
		const struct lookalike_op *op = radix_list_entry(it, struct lookalike_op, link);

		if (op_touches(op, addr, len) || (may && op_may_touch(op)))
			return true;
	}
	return false;
}

bool lookalike_in_use(uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, &streams)
		if (stream_touches(radix_list_entry(it, struct CUstream_st, link), addr, len,
				   false))
			return true;
	return false;
}

/*
 * A destination holds garbage from here on: at once, where nothing before the copy in its own queue
 * may need the bytes.  What other queues need of them, they were not waited for.
 */
static void poison(gpu_cu_stream s, struct lookalike_op *op)
{
	for (uint32_t i = 0; i < op->n_pieces; i++)
		op->late_poison |= stream_touches(s, op->pieces[i].dst, op->pieces[i].len, true);
	for (uint32_t i = 0; !op->late_poison && i < op->n_pieces; i++)
		(void)move(s, op, op->pieces[i], true);
}

void lookalike_push(gpu_cu_stream s, struct lookalike_op *op)
{
	if (lookalike_config()->poison)
		poison(s, op);
	radix_list_add_tail(&s->ops, &op->link);
	(void)pthread_cond_broadcast(&s->changed);
}

void lookalike_streams_end(gpu_cu_context ctx)
{
	struct radix_list *it;

	radix_list_foreach(it, &streams) {
		struct CUstream_st *s = radix_list_entry(it, struct CUstream_st, link);

		if (s->ctx != ctx)
			continue;
		if (!s->destroyed)
			lookalike_counts.n_streams--;
		s->destroyed = true;
		(void)pthread_cond_broadcast(&s->changed);
		while (!s->ended)
			(void)pthread_cond_wait(&thread_ended, &lookalike_lock);
	}
}

/* ---- entries --------------------------------------------------------------------------------- */

static bool stream_is(const struct CUstream_st *wanted)
{
	struct radix_list *it;

	radix_list_foreach(it, &streams)
		if (radix_list_entry(it, struct CUstream_st, link) == wanted)
			return !wanted->destroyed;
	return false;
}

gpu_cu_result lookalike_stream_use(const char *call, gpu_cu_stream s)
{
	const gpu_cu_context ctx = lookalike_ctx;

	if (!ctx || ctx->n_retained == 0)
		BROKEN(GPU_CU_INVALID_CONTEXT, "%s: without a context", call);
	if (ctx->sticky != GPU_CU_SUCCESS)
		return ctx->sticky;
	if (!s)
		BROKEN(GPU_CU_INVALID_HANDLE, "%s: on the stream NULL", call);
	if (!stream_is(s))
		BROKEN(GPU_CU_INVALID_HANDLE, "%s: on a stream that is none, or no more", call);
	if (s->ctx != ctx)
		BROKEN(GPU_CU_INVALID_HANDLE, "%s: on a stream of another context", call);
	return GPU_CU_SUCCESS;
}

static int start_thread(struct CUstream_st *s)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t id;
	int r;

	(void)pthread_attr_init(&attr);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)sigfillset(&all); /* the program's signals are for its own threads */
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&id, &attr, thread, s);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
	return r;
}

static struct CUstream_st *stream_make(gpu_cu_context ctx, int priority)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));
	pthread_condattr_t attr;

	if (!s)
		return NULL;
	s->ctx = ctx;
	s->priority = priority;
	radix_list_init(&s->ops);
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&s->changed, &attr);
	(void)pthread_condattr_destroy(&attr);
	if (start_thread(s) == 0)
		return s;
	(void)pthread_cond_destroy(&s->changed);
	free(s);
	return NULL;
}

gpu_cu_result lookalike_stream_new(gpu_cu_stream *ret_stream, unsigned flags, int priority)
{
	struct CUstream_st *s;
	gpu_cu_context ctx;
	gpu_cu_result r;

	ENTER(stream_new);
	r = lookalike_current("cuStreamCreateWithPriority", &ctx);
	if (r != GPU_CU_SUCCESS)
		return r;
	if (!ret_stream || flags > GPU_CU_STREAM_NON_BLOCKING)
		BROKEN(GPU_CU_INVALID_VALUE, "cuStreamCreateWithPriority: arguments");
	if (flags != GPU_CU_STREAM_NON_BLOCKING)
		lookalike_broken("cuStreamCreateWithPriority: a stream that waits for NULL");
	s = stream_make(ctx, priority);
	if (!s)
		return GPU_CU_OUT_OF_MEMORY;
	(void)pthread_mutex_lock(&lookalike_lock);
	radix_list_add_tail(&streams, &s->link);
	lookalike_counts.n_streams++;
	(void)pthread_mutex_unlock(&lookalike_lock);
	*ret_stream = s;
	return GPU_CU_SUCCESS;
}

/* Done also in a context with a sticky error, whose result it gives then. */
gpu_cu_result lookalike_stream_free(gpu_cu_stream stream)
{
	gpu_cu_result r;

	ENTER(stream_free);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use("cuStreamDestroy", stream);
	if (stream_is(stream) && stream->ctx == lookalike_ctx) {
		stream->destroyed = true;
		lookalike_counts.n_streams--;
		(void)pthread_cond_broadcast(&stream->changed);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

static bool idle(const struct CUstream_st *s)
{
	return !s->running && radix_list_empty(&s->ops);
}

gpu_cu_result lookalike_stream_query(gpu_cu_stream stream)
{
	gpu_cu_result r;

	ENTER(stream_query);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use("cuStreamQuery", stream);
	if (r == GPU_CU_SUCCESS && !idle(stream))
		r = GPU_CU_NOT_READY;
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

gpu_cu_result lookalike_stream_sync(gpu_cu_stream stream)
{
	gpu_cu_result r;

	ENTER(stream_sync);
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use("cuStreamSynchronize", stream);
	while (r == GPU_CU_SUCCESS && !idle(stream)) {
		(void)pthread_cond_wait(&stream->changed, &lookalike_lock);
		r = stream->ctx->sticky;
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}
