/*
 * base.h - the few things every pure folder shares.
 *
 * Header-only.  No libc beyond <stddef.h>/<stdint.h>/<string.h>: radix/ and proto/ may not touch
 * I/O, clocks, threads or malloc, so what they need of the outside world (memory, CPU features) is
 * described here and handed in by the caller.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define radix_nodiscard     __attribute__((warn_unused_result))
#define radix_likely(x)     __builtin_expect(!!(x), 1)
#define radix_unlikely(x)   __builtin_expect(!!(x), 0)
#define radix_array_size(a) (sizeof(a) / sizeof((a)[0]))
#define radix_container_of(ptr, type, member) \
	((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/*
 * Programmer errors only, always on (not NDEBUG): a core that goes on with a broken invariant hands
 * out wrong K/V, which is worse than none.  Peer input never reaches one of these.
 */
#define radix_assert(x)                   \
	do {                              \
		if (radix_unlikely(!(x))) \
			__builtin_trap(); \
	} while (0)

/*
 * Where memory comes from.  take() returns memory aligned to 64 bytes, or NULL; give() takes it
 * back with the size it was asked for and accepts NULL.  take() of huge sizes should return
 * pre-faulted, huge-page-backed memory (a first touch costs up to 26 us here).
 */
struct radix_alloc {
	void *(*take)(void *ctx, size_t size);
	void (*give)(void *ctx, void *ptr, size_t size);
	void *ctx;
};

static inline void *radix_take(const struct radix_alloc *a, size_t size)
{
	return a->take(a->ctx, size);
}

static inline void radix_give(const struct radix_alloc *a, void *ptr, size_t size)
{
	if (ptr)
		a->give(a->ctx, ptr, size);
}

/* A run of consecutive slots. */
struct radix_run {
	uint32_t start;
	uint32_t len;
};

static inline uint32_t radix_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint64_t radix_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}
