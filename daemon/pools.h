/*
 * pools.h - the memory behind the engine's pool groups.
 *
 * What it guarantees.  A pool is mapped, touched and sealed before the engine hears of it; on
 * failure nothing is left behind and a sentence says why.  Descriptors stay ours: whoever passes
 * one on duplicates it.
 *
 * What it relies on.  The engine names groups by small numbers and destroys what it created.
 */
#pragma once

#include "daemon/engine.h"
#include "gpu/gpu.h"

struct prefixd_pool {
	struct gpu_pool *pool; /* NULL: no such group */
	struct gpu_pool_info info;
	struct gpu_shm generations; /* uint64_t[n_slots], read-only for workers */
};

struct prefixd_pools {
	struct gpu *gpu;
	struct prefixd_pool *v;
	uint32_t n;
};

#define PREFIXD_POOL_FDS 2u /* the pool, then the generations */

/* Return: 0; negative errno with a sentence in `why`. */
radix_nodiscard int prefixd_pools_init(struct prefixd_pools *p, const char *device, char *why,
				       size_t why_len);
void prefixd_pools_deinit(struct prefixd_pools *p); /* idempotent, accepts a zeroed one */

/* Answers POOL_CREATE: fills `ret_event` with POOL_READY or POOL_FAILED (its text lies in why). */
void prefixd_pools_create(struct prefixd_pools *p, uint32_t group, uint32_t n_slots,
			  uint64_t slot_bytes, struct prefixd_event *ret_event, char *why,
			  size_t why_len);
void prefixd_pools_destroy(struct prefixd_pools *p, uint32_t group);
/* What OPEN's reply carries.  Return: how many, 0 for a group without memory. */
uint32_t prefixd_pools_fds(const struct prefixd_pools *p, uint32_t group, bool read_only,
			   int ret_fds[PREFIXD_POOL_FDS]);
const struct prefixd_pool *prefixd_pools_get(const struct prefixd_pools *p, uint32_t group);
void prefixd_pools_poison(struct prefixd_pools *p, uint32_t group, struct radix_run run);

/* "8.0 GiB" */
const char *prefixd_bytes_print(uint64_t bytes, char *out, size_t out_len);
