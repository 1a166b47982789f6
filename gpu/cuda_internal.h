/*
 * cuda_internal.h - what the files of the CUDA back end share.
 *
 *     cuda.c         the device: finding it, its context, its end; what results of the driver mean
 *     cuda_memory.c  pools of slabs, and memory of this process that jobs may reach
 *     cuda_queue.c   jobs: lanes, words, waking up, the watch over silent queues
 *     cuda_batch.c   jobs that go to the driver together: which, by what path, and their copies
 *     cuda_kernels.c what kernels do for a batch, and the memory that they need for it
 */
#pragma once

#include "gpu/driver.h"
#include "gpu/gpu_internal.h"
#include "gpu/kernels.h"

#define CUDA_BATCH     64u   /* jobs that go to the driver together */
#define CUDA_PIECES    128u  /* copies that they may be cut into */
#define CUDA_DEPTH     1024u /* jobs on one lane */
#define CUDA_TICK_MS   100
#define CUDA_LOST_TICK 10u /* after which a queue of a lost device that does not end is given up */
#define CUDA_PIN_BYTES (UINT64_C(1) << 30)

/*
 * Copies shorter than this go through the staging area where that saves most of them.  To start one
 * costs a copy engine a microsecond or so, whatever its length; a bus of 50 GB/s moves 256 KiB in
 * five, so that from there on little is left to save, and kernels take time from an engine.
 */
#define CUDA_GATHER_BELOW (UINT64_C(256) << 10)
#define CUDA_GATHER_RUNS  4u /* that many copies become one, or it is not worth a launch */
#define CUDA_STAGE_BYTES  (UINT64_C(16) << 20) /* of a lane, at least */
#define CUDA_PLACES       4u    /* batches with kernels that are in flight on a lane */
#define CUDA_BASES        2048u /* addresses of pieces in the tables of a batch */
#define CUDA_GRID         16u   /* blocks of threads: a few, as an engine wants the rest */

/* Two ways in, two out; the urgent ones come first. */
enum {
	CUDA_URGENT_IN,
	CUDA_URGENT_OUT,
	CUDA_IN,
	CUDA_OUT,
	CUDA_N_LANES
};

enum {
#define X(name) CUDA_##name,
	GPU_KERNELS(X)
#undef X
	CUDA_N_KERNELS
};

/* What the kernels of a batch read... */
struct cuda_args {
	uint32_t ids[CUDA_BATCH];
	uint64_t base[CUDA_BASES];
};

/* ...and what they say. */
struct cuda_results {
	uint64_t sums[CUDA_BATCH][2];
	uint32_t raw[CUDA_BATCH];
};

/* In pinned memory one for each batch in flight, and one on the device. */
struct cuda_place {
	struct cuda_args args;
	struct cuda_results results;
};

struct cuda_lane {
	gpu_cu_stream stream;
	const uint64_t *word;    /* the device writes the number of the last batch that ended */
	gpu_cu_ptr word_addr;    /* as the device sees it */
	uint64_t n_batches;      /* handed over */
	struct gpu_queue taken;  /* by submit(), not handed over */
	struct gpu_queue flying; /* due_ns: the batch */
	bool over;               /* of a lost device: nothing on it runs any more */
	/* For kernels; made when they are first needed. */
	struct cuda_place *places; /* CUDA_PLACES of them, pinned */
	bool places_pinned;
	uint32_t n_left[CUDA_PLACES]; /* jobs whose results somebody has not seen yet */
	gpu_cu_ptr stage;             /* on the device: a place, and behind it... */
	uint64_t stage_bytes;         /* ...that many bytes for packed blocks */
	bool no_stage;                /* there was no memory for it: copies go without */
	bool stuck;                   /* what is taken waits for a place */
};

/* Registered in parts of CUDA_PIN_BYTES; a copy may not cross from one to the next. */
struct cuda_pin {
	struct radix_list link;
	uint64_t addr;
	uint64_t len;
	bool known; /* another device has registered it */
};

struct cuda_pool {
	struct gpu_pool pool; /* its shm has a length only */
	uint64_t slab_bytes;
	uint32_t n_slabs;
	uint32_t n_mapped; /* slabs from the first on */
	struct gpu_cu_uuid device;
	bool reserved;
	bool hidden; /* nobody else maps it: it has no descriptors */
	int fds[];
};

struct cuda {
	struct gpu gpu;
	struct gpu_driver driver;
	gpu_cu_device device;
	uint32_t n_devices; /* of the driver */
	struct gpu_cu_uuid id;
	gpu_cu_context context;
	struct gpu_cu_alloc_prop prop; /* of all slabs */
	uint64_t granularity;
	struct radix_list pools;
	struct radix_list pins;
	struct radix_list stages; /* pools that nobody has heard of */
	gpu_cu_module module;     /* NULL: no kernels, plain copies only */
	gpu_cu_function kernels[CUDA_N_KERNELS];
	struct cuda_lane lanes[CUDA_N_LANES];
	void *words; /* a page, NULL before there is one */
	bool words_pinned;
	int event_fd; /* readable when one of the next two is */
	int wake_fd;
	int tick_fd;
	bool raised;  /* wake_fd, by us */
	bool ticking; /* tick_fd */
	bool retained;
	bool lost;
	bool closing;
	uint32_t lost_ticks;
	char trouble[512];
};

/* Blocks of a batch that the same launches serve: of one kind, in slots of one pool. */
struct cuda_group {
	const struct gpu_pool *pool;
	const struct gpu_coded *coded;
	uint64_t off; /* of a block in its slot */
	uint64_t len;
	uint64_t packed_len; /* as it lies in the staging area and in host memory */
	bool want_sum;
	bool across;       /* within the device */
	bool staged;       /* coded, or gathered */
	uint32_t first, n; /* among the batch's jobs */
	uint32_t base;     /* its first address in the tables */
	gpu_cu_ptr stage;  /* of its first packed block */
};

/* Copies of one batch, as the driver wants them. */
struct cuda_pieces {
	gpu_cu_ptr dst[CUDA_PIECES];
	gpu_cu_ptr src[CUDA_PIECES];
	size_t len[CUDA_PIECES];
	uint32_t n;
};

/* Jobs in the order of their groups, and in that by their addresses in host memory. */
struct cuda_batch {
	struct gpu_job *jobs[CUDA_BATCH];
	uint32_t group_of[CUDA_BATCH];
	uint32_t n;
	struct cuda_group groups[CUDA_BATCH];
	uint32_t n_groups; /* 0: there are no kernels */
	uint32_t n_bases;
	uint32_t n_copies; /* at most, by seams */
	uint64_t staged;   /* bytes */
	uint32_t place;
	bool in;
	bool kernels; /* some are launched */
	bool results; /* some say something */
	struct cuda_pieces pieces;
};

/* Names of the entries, for sentences. */
struct gpu_driver_names {
#define X(field, symbol, abi, required, args) const char *field;
	GPU_DRIVER_TABLE(X)
#undef X
};

extern const struct gpu_driver_names gpu_driver_names;

/*
 * Every call of the driver is one of these three.  gpu_cuda_call: 0 or a negative errno, see
 * gpu_cuda_result().  gpu_cuda_ask: the driver's own answer.  gpu_cuda_undo: gives something back;
 * asked twice, since a call may fail with an earlier one's error.
 */
#define gpu_cuda_ask(c, field, ...) ((c)->driver.field(__VA_ARGS__))
#define gpu_cuda_call(c, field, ...) \
	gpu_cuda_result((c), gpu_driver_names.field, gpu_cuda_ask(c, field, __VA_ARGS__))
#define gpu_cuda_undo(c, field, ...)                                               \
	do {                                                                       \
		for (int undo_ = 0; undo_ < 2; undo_++)                            \
			if (gpu_cuda_ask(c, field, __VA_ARGS__) == GPU_CU_SUCCESS) \
				break;                                             \
	} while (0)

static inline struct cuda *gpu_cuda_of(const struct gpu *g)
{
	return radix_container_of((uintptr_t)g, struct cuda, gpu);
}

static inline bool gpu_cuda_is_in(const struct cuda *c, const struct cuda_lane *lane)
{
	return lane == &c->lanes[CUDA_URGENT_IN] || lane == &c->lanes[CUDA_IN];
}

/* cuda.c */
int gpu_cuda_open(const char *uuid, struct gpu **ret_gpu, char *why, size_t why_len);
int gpu_cuda_open_nth(uint32_t nth, struct gpu **ret_gpu, char *why, size_t why_len);
uint32_t gpu_cuda_count(const struct gpu *g);
const char *gpu_cuda_trouble(const struct gpu *g);
int gpu_cuda_result(struct cuda *c, const char *call, gpu_cu_result r);
void gpu_cuda_lose(struct cuda *c);
int gpu_cuda_enter(struct cuda *c);

/* cuda_memory.c */
int gpu_cuda_pool_new(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
		      struct gpu_pool **ret_pool);
int gpu_cuda_pool_single(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes,
			 struct gpu_pool **ret_pool);
int gpu_cuda_pool_adopt(struct gpu *g, const int *fds, uint32_t n_fds, uint32_t n_slots,
			uint64_t slot_bytes, struct gpu_pool **ret_pool);
void gpu_cuda_pool_free(struct gpu *g, struct gpu_pool *pool);
void gpu_cuda_pool_info(const struct gpu_pool *pool, struct gpu_pool_info *ret_info);
int gpu_cuda_pool_fd(struct gpu_pool *pool, uint32_t slab, bool read_only);
int gpu_cuda_host_pin(struct gpu *g, void *p, uint64_t len);
int gpu_cuda_host_know(struct gpu *g, void *p, uint64_t len);
void gpu_cuda_host_unpin(struct gpu *g, void *p);
const struct cuda_pin *gpu_cuda_pin_find(const struct cuda *c, uint64_t addr, uint64_t len);
int gpu_cuda_stage_new(struct cuda *c, uint64_t len, gpu_cu_ptr *ret_addr);
void gpu_cuda_memory_deinit(struct cuda *c);

/* cuda_queue.c */
int gpu_cuda_queues_init(struct cuda *c);
void gpu_cuda_queues_deinit(struct cuda *c);
int gpu_cuda_wait(struct cuda *c, const struct cuda_lane *lane, uint32_t limit_ms);
bool gpu_cuda_queues_end(struct cuda *c);
void gpu_cuda_look(struct cuda *c);
bool gpu_cuda_touches(const struct cuda *c, const struct gpu_pool *pool);
bool gpu_cuda_reaches(const struct cuda *c, uint64_t addr, uint64_t len);
void gpu_cuda_wake(struct cuda *c);
int gpu_cuda_submit(struct gpu *g, struct gpu_job *job);
uint32_t gpu_cuda_reap(struct gpu *g, uint32_t budget);

/* cuda_batch.c */
uint32_t gpu_cuda_choose(const uint64_t *host, const uint64_t *device, uint32_t n, uint64_t len,
			 bool *ret_staged);
void gpu_cuda_hand_over(struct cuda *c, struct cuda_lane *lane, gpu_cu_host_fn on_end);

/* cuda_kernels.c */
void gpu_cuda_kernels_init(struct cuda *c, char *ret_why, size_t why_len);
void gpu_cuda_kernels_deinit(struct cuda *c);
bool gpu_cuda_codes(const struct gpu *g);
int gpu_cuda_stage(struct cuda *c, struct cuda_lane *lane, uint64_t need);
bool gpu_cuda_place_find(const struct cuda_lane *lane, uint32_t *ret_place);
void gpu_cuda_fail(struct cuda_batch *b, const struct cuda_group *group);
void gpu_cuda_kernels_begin(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b);
void gpu_cuda_kernels_run(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b);
void gpu_cuda_kernels_end(struct cuda *c, struct cuda_lane *lane, struct cuda_batch *b);
void gpu_cuda_take_results(const struct cuda *c, struct cuda_lane *lane, struct gpu_job *job);
