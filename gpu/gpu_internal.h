/*
 * gpu_internal.h - what the memfd-backed back ends (host, sim) share.
 *
 * A pool is one sealed memfd cut into slots.  host addresses it by its mapping in this process, sim
 * by cookies that no CPU can load from; everything else about a pool is the same, and so lives in
 * pool.c once.  The completion signal (an eventfd with a flag) is shared for the same reason.
 */
#pragma once

#include "gpu/gpu.h"
#include "radix/list.h"

#define GPU_SLOT_ALIGN   64u
#define GPU_SIM_WINDOW   (UINT64_C(64) << 30) /* address space, not memory */
#define GPU_SIM_ADDR     UINT64_C(0x7fd000000000)
#define GPU_SIM_POOL_GAP (UINT64_C(64) << 10) /* around pools, so that leaving one is seen */
#define GPU_SIM_NEW      0xA5
#define GPU_SIM_FREED    0xDD

struct gpu_pool {
	struct radix_list link; /* on its device's list */
	struct gpu_shm shm;
	uint64_t addr; /* device address of slot 0 */
	uint64_t slot_bytes;
	uint64_t slot_stride;
	uint64_t busy_until_ns; /* sim: no job on this pool falls due before this */
	uint32_t n_slots;
};

/* Readable exactly while `raised`; the flag saves a system call per job. */
struct gpu_signal {
	int fd;
	bool raised;
};

/* Jobs in order of submission, linked through gpu_job.next. */
struct gpu_queue {
	struct gpu_job *head;
	struct gpu_job **tail;
	uint32_t n;
};

int gpu_host_open(struct gpu **ret_gpu);
int gpu_sim_open(const struct gpu_sim_config *config, uint64_t window_bytes, struct gpu **ret_gpu);

int gpu_pool_make(struct radix_list *pools, uint32_t n_slots, uint64_t slot_bytes,
		  struct gpu_pool **ret_pool);
int gpu_pool_adopt(struct radix_list *pools, const int *fds, uint32_t n_fds, uint32_t n_slots,
		   uint64_t slot_bytes, struct gpu_pool **ret_pool);
void gpu_pool_drop(struct gpu_pool *pool);
void gpu_pool_info(const struct gpu_pool *pool, struct gpu_pool_info *ret_info);
int gpu_pool_fd(struct gpu_pool *pool, uint32_t slab, bool read_only);
int gpu_no_pin(struct gpu *g, void *p, uint64_t len);
void gpu_no_unpin(struct gpu *g, void *p);
bool gpu_no_codes(const struct gpu *g);
uint64_t gpu_pool_slot_addr(const struct gpu_pool *pool, uint32_t slot);
struct gpu_pool *gpu_pool_find(const struct radix_list *pools, uint64_t addr, uint64_t len);

int gpu_job_check(const struct gpu *g, const struct gpu_job *job);

void gpu_queue_init(struct gpu_queue *q);
void gpu_queue_push(struct gpu_queue *q, struct gpu_job *job);
struct gpu_job *gpu_queue_pop(struct gpu_queue *q);
bool gpu_queue_touches(const struct gpu_queue *q, const struct gpu_pool *pool);
void gpu_queue_unlink(struct gpu_queue *q, struct gpu_job **at);

int gpu_signal_init(struct gpu_signal *s);
void gpu_signal_deinit(struct gpu_signal *s);
void gpu_signal_set(struct gpu_signal *s, bool raised);
