/*
 * lookalike.h - what the files of the look-alike driver share.
 *
 *     config.c    LOOKALIKE, the variable that steers it; devices by number
 *     rules.c     broken rules, planned faults, and the trace of call sites
 *     entries.c   finding entries by name and version; devices and contexts
 *     memory.c    allocations
 *     address.c   ranges of addresses, and what is mapped where
 *     host.c      registered memory of the process, and what an operation may reach
 *     streams.c   queues, the threads that run them, and what they run
 *     copies.c    the entries that put something into a queue
 *     modules.c   kernels
 *
 * One lock, lookalike_lock, guards everything but the configuration, which does not change once
 * it is read.  It is not held while bytes move, a kernel runs or a host function is called.
 *
 * Every entry has the type that gpu/driver.h gives it, and begins with ENTER(field).
 */
#pragma once

#include "gpu/driver.h"
#include "radix/list.h"
#include "tests/driver/census.h"

#include <pthread.h>
#include <sys/types.h>

#define LOOKALIKE_MAX_DEVICES 16
#define LOOKALIKE_MAX_FAULTS  64
#define LOOKALIKE_TEXT        4096
#define LOOKALIKE_NEW         0xA5 /* device memory that nobody has written to, with poison=1 */
#define LOOKALIKE_POISON      0xDB /* what a copy has not come to yet */

/* ---- config.c -------------------------------------------------------------------------------- */

/* What happens to an operation, besides a result of the driver. */
#define LOOKALIKE_HANG (-1)

struct lookalike_fault {
	const char *what; /* an entry's symbol, or an operation */
	uint32_t nth;     /* from 1 */
	bool onward;      /* that one and all after it */
	int result;       /* or LOOKALIKE_HANG */
	uint32_t seen;
};

struct lookalike_config {
	int devices;
	int first; /* the number of device 0 among all of the machine */
	int version;
	bool stub;
	bool poison;
	bool strict;
	bool opaque;
	bool abort;
	uint64_t memory;
	uint64_t granularity;
	uint64_t latency_ns;
	double bytes_per_ns; /* 0: at once */
	uint64_t reorder;
	const char *trace;
	const char *kernels;
	struct lookalike_fault faults[LOOKALIKE_MAX_FAULTS];
	uint32_t n_faults;
};

const struct lookalike_config *lookalike_config(void);
struct lookalike_fault *lookalike_faults(uint32_t *ret_n);
/* The same device has the same one in every process. */
void lookalike_uuid(int device, struct gpu_cu_uuid *ret_id);

/* ---- rules.c --------------------------------------------------------------------------------- */

extern pthread_mutex_t lookalike_lock;
extern struct lookalike_census lookalike_counts; /* under the lock */

/* Says that `what` is against the rules, and counts it.  Any lock may be held. */
void lookalike_broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
uint32_t lookalike_n_broken(void);
uint32_t lookalike_n_planned(void);
/* The result that is planned for this call of an entry, or 0. */
gpu_cu_result lookalike_planned(const char *symbol);
/* What is planned for this operation: 0, a result, LOOKALIKE_HANG. */
int lookalike_planned_op(const char *kind);
void lookalike_trace(const char *symbol, const void *caller);

enum {
	LOOKALIKE_ANYTIME = 1, /* may be called before cuInit */
};

/* What every entry does first.  Return: GPU_CU_SUCCESS: go on. */
gpu_cu_result lookalike_enter(const char *symbol, unsigned flags, const void *caller);

struct lookalike_symbols {
#define X(field, symbol, abi, required, args) const char *field;
	GPU_DRIVER_TABLE(X)
#undef X
};

extern const struct lookalike_symbols lookalike_symbols;

#define ENTER_WITH(field, flags)                                                         \
	do {                                                                             \
		gpu_cu_result enter_ = lookalike_enter(lookalike_symbols.field, (flags), \
						       __builtin_return_address(0));     \
		if (enter_ != GPU_CU_SUCCESS)                                            \
			return enter_;                                                   \
	} while (0)
#define ENTER(field) ENTER_WITH(field, 0)

#define BROKEN(result, ...)                    \
	do {                                   \
		lookalike_broken(__VA_ARGS__); \
		return (result);               \
	} while (0)

/* ---- entries.c ------------------------------------------------------------------------------- */

struct CUctx_st {
	int device;
	uint32_t n_retained;
	gpu_cu_result sticky;       /* for the rest of the process */
	uint64_t engine_free_ns[3]; /* when the copy engine of a direction has time again */
};

extern pid_t lookalike_started_in;            /* the process that called cuInit, or 0; atomic */
extern __thread gpu_cu_context lookalike_ctx; /* current on this thread */
extern __thread bool lookalike_in_host_fn;    /* a host function of a stream runs on it */

#define X(field, symbol, abi, required, args) gpu_cu_result lookalike_##field args;
GPU_DRIVER_TABLE(X)
#undef X

/* The current context, which `call` needs.  Return: success, its sticky error, INVALID_CONTEXT. */
gpu_cu_result lookalike_current(const char *call, gpu_cu_context *ret_ctx);
bool lookalike_device_is(int device);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* An allocation. */
struct lookalike_memory {
	int fd;
	int device;
	uint32_t n_refs;
	bool exportable;
	bool imported; /* another's, or counted already: not in `used` */
	uint64_t len;
	uint8_t *alias;
};

/* With the lock held.  NULL: no such handle. */
struct lookalike_memory *lookalike_memory_of(gpu_cu_memory handle);
void lookalike_memory_put(struct lookalike_memory *m);

/* ---- address.c ------------------------------------------------------------------------------- */

/* Where bytes lie that an operation reaches; as far as they lie together. */
struct lookalike_span {
	uint8_t *at;                     /* for this process' own loads and stores */
	uint64_t len;                    /* at most what was asked for */
	struct lookalike_memory *memory; /* NULL: registered memory of the process */
};

static inline bool lookalike_overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

/* Whether all of `a` lies in `b`. */
static inline bool lookalike_inside(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a >= b && a_len <= b_len && a - b <= b_len - a_len;
}

/* With the lock held, these five. */
bool lookalike_is_device(uint64_t addr, uint64_t len); /* reserved by one call, at least */
/* What `device` may reach there; it stays until lookalike_span_end(). */
bool lookalike_memory_begin(int device, uint64_t addr, uint64_t len, bool write,
			    struct lookalike_span *ret_span, const char **ret_reason);
void lookalike_span_end(struct lookalike_span *span);
/* With strict=1, opens device addresses to this process while kernels run. */
void lookalike_open_addresses(bool open);

/* ---- host.c ---------------------------------------------------------------------------------- */

/* With the lock held, all of them.  The same for device memory and registered memory. */
bool lookalike_span_begin(gpu_cu_context ctx, uint64_t addr, uint64_t len, bool write,
			  struct lookalike_span *ret_span, const char **ret_reason);
/* Whether a context may reach all of the range. */
bool lookalike_reachable(gpu_cu_context ctx, uint64_t addr, uint64_t len, bool write,
			 const char **ret_reason);
/* Whether that is registered for loads and stores of a device. */
bool lookalike_is_device_mapped(uint64_t addr);
/* What was registered in a context that is gone. */
void lookalike_forget_host(gpu_cu_context ctx);

/* ---- streams.c ------------------------------------------------------------------------------- */

enum lookalike_kind {
	LOOKALIKE_COPY, /* also a batch of them */
	LOOKALIKE_SET,
	LOOKALIKE_WRITE,
	LOOKALIKE_CALL,
	LOOKALIKE_KERNEL,
	LOOKALIKE_N_KINDS
};

struct lookalike_piece {
	uint64_t dst, src, len;
	int plan; /* see lookalike_planned_op() */
};

struct lookalike_kernel; /* a launch, of modules.c */

struct lookalike_op {
	struct radix_list link;
	enum lookalike_kind kind;
	bool late_poison; /* the destination is in use by operations before this one */
	int plan;
	uint64_t addr, value; /* SET: the byte; WRITE */
	gpu_cu_host_fn fn;
	void *ctx;
	struct lookalike_kernel *kernel;
	uint32_t n_pieces;
	struct lookalike_piece pieces[]; /* COPY, SET */
};

struct CUstream_st {
	struct radix_list link;
	gpu_cu_context ctx;
	int priority;
	bool destroyed; /* runs out; then its thread ends */
	bool gone;      /* an operation on it never ended */
	bool ended;     /* its thread */
	struct lookalike_op *running;
	struct radix_list ops;
	pthread_cond_t changed;
};

struct lookalike_op *lookalike_op_new(enum lookalike_kind kind, uint32_t n_pieces);
void lookalike_op_free(struct lookalike_op *op);
/* Takes `op` in every case.  With the lock held. */
void lookalike_push(gpu_cu_stream s, struct lookalike_op *op);
/* Finds out whether `s` may be used by `call` from this thread.  With the lock held. */
gpu_cu_result lookalike_stream_use(const char *call, gpu_cu_stream s);
/* Whether something in a queue, or running, reaches into the range.  With the lock held. */
bool lookalike_in_use(uint64_t addr, uint64_t len);
/* The streams of a context that is given up: waits for them.  With the lock held. */
void lookalike_streams_end(gpu_cu_context ctx);

/* ---- modules.c ------------------------------------------------------------------------------- */

/* Return: 0, or the result that the launch ends with. */
gpu_cu_result lookalike_kernel_run(struct lookalike_kernel *k);
void lookalike_kernel_free(struct lookalike_kernel *k);
/* What was loaded in a context that is gone.  With the lock held. */
void lookalike_forget_modules(gpu_cu_context ctx);
