/*
 * hostcuda.h - as much of CUDA C++ as gpu/kernels.cu is written in, for a compiler of this machine.
 *
 * The lanes of a warp are fibers of one thread, run in turns; what a warp does together (a shuffle)
 * switches from lane to lane until all of them have come.  Warps of a launch run one after the
 * other, since they share nothing: there is no __syncthreads() and no __shared__ here, so a kernel
 * that needs them does not compile before this file has learned them.
 *
 * What is checked on the way: that all lanes of a warp come to the same shuffle.  What is not:
 * races between warps, and what a GPU's weaker memory would make of the program.
 */
#pragma once

#include "tests/kernels/kernels_host.h"

#include <stddef.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct alignas(16) uint4 {
	uint32_t x, y, z, w;
};

struct alignas(8) uint2 {
	uint32_t x, y;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return uint4{ x, y, z, w };
}

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
	return uint2{ x, y };
}

struct hostcuda_index {
	uint32_t x, y, z;
};

/* Of the lane that runs. */
extern thread_local hostcuda_index threadIdx, blockIdx, blockDim, gridDim;

/* The value that lane (this one xor `other`) has brought to the same call. */
uint64_t hostcuda_exchange(uint64_t value, uint32_t other);

/* Whole warps only: `lanes` has to be all of them. */
template <class T> static inline T __shfl_xor_sync(uint32_t lanes, T value, uint32_t other)
{
	uint64_t bits = 0;

	static_assert(sizeof(T) <= sizeof(bits), "a shuffle of 32 or 64 bits");
	memcpy(&bits, &value, sizeof(value));
	if (lanes != 0xffffffffu)
		__builtin_trap();
	bits = hostcuda_exchange(bits, other);
	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Several launches run at a time. */
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
	return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline uint32_t atomicOr(uint32_t *p, uint32_t v)
{
	return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}

template <class T> static inline T __ldcs(const T *p)
{
	return *p;
}

template <class T> static inline void __stcs(T *p, T v)
{
	*p = v;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Runs `lane(args)` once for each thread of the launch. */
int hostcuda_launch(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
		    void (*lane)(void **args), void **args);

/* From a kernel's type to what calls it with arguments that are given by address. */
template <auto kernel> struct hostcuda_kernel;

template <class... Args, void (*kernel)(Args...)> struct hostcuda_kernel<kernel> {
	static constexpr uint32_t n_args = sizeof...(Args);
	static constexpr uint32_t arg_bytes[] = { (uint32_t)sizeof(Args)... };

	template <size_t... i> struct indices {
		static void lane(void **args)
		{
			kernel(*static_cast<Args *>(args[i])...);
		}
	};

	template <size_t n, size_t... i> struct count : count<n - 1, n - 1, i...> {
	};

	template <size_t... i> struct count<0, i...> : indices<i...> {
	};

	static int run(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
		       void **args)
	{
		return hostcuda_launch(grid, block, shared_bytes, count<n_args>::lane, args);
	}
};
