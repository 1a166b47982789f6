/*
 * prefixd_load.h - libprefixd: blocks that lie below the pool, in host memory or in Redis.
 *
 *     pfx_match with PFX_MATCH_PROMOTE   n_host and n_redis more blocks are there; `loading` is 1
 *     pfx_load_wait                      they are in the pool
 *     pfx_extend without keys            their slots
 *
 * What did not come up is reserved and computed like any other block; so is everything where
 * `advice` is 1, since computing takes less time than a load would.  A lease has one load at a
 * time, and pfx_reserve ends it.
 */
#ifndef PREFIXD_LOAD_H
#define PREFIXD_LOAD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef PFX_API
#if defined(__GNUC__)
#define PFX_API __attribute__((visibility("default")))
#else
#define PFX_API
#endif
#endif

typedef struct pfx_namespace pfx_namespace;
typedef struct pfx_prompt pfx_prompt; /* prefixd.h */

typedef struct {
	size_t struct_size;
	uint32_t n; /* blocks that came up: pfx_extend gives their slots */
	int reason; /* why not all of them did; 0: all did */
} pfx_load_result;

/*
 * Waits for the end of the load that PFX_MATCH_PROMOTE began (`loading` in its result).  PFX_OK
 * also when nothing came up: n is 0 and the rest is computed.  PFX_DEADLINE: not yet; the lease is
 * as before, the load goes on and may be waited for again.  PFX_WRONG_STATE: no load to wait for;
 * none was begun, it was waited for already, or pfx_reserve ended it.
 */
PFX_API int pfx_load_wait(pfx_namespace *ns, uint64_t lease, uint32_t deadline_ms,
			  pfx_load_result *ret);

typedef struct {
	size_t struct_size;
	uint32_t n_device, n_host, n_redis; /* blocks, when the daemon read the request */
} pfx_prefetch_result;

/*
 * Asks for a prompt's blocks to be brought up before somebody matches it, for load_ms at most (0:
 * the daemon's own limit).  Returns at once, holds nothing, and the end is not told.  Keys beyond
 * one frame are not looked at.
 */
PFX_API int pfx_prefetch(pfx_namespace *ns, const pfx_prompt *prompt, uint32_t load_ms,
			 pfx_prefetch_result *ret /* may be NULL */);

#ifdef __cplusplus
}
#endif

#endif
