/*
 * kernels_host.h - gpu/kernels.cu compiled for this machine: what libkernels_host.so offers to who
 * opens it with dlopen().
 *
 * A launch runs on the thread that calls run() and is done when that returns.  Several threads may
 * run kernels at a time.  Pointers among the arguments are those of this process.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kernel_host_entry {
	const char *name;
	uint32_t n_args;
	const uint32_t *arg_bytes; /* of each: a launch copies its arguments when it is asked for */
	/* args[i] points to argument i, as with cuLaunchKernel.  0; -1: a launch that a device
	 * refuses: dimensions of 0, a block of more than GPU_KERNEL_THREADS threads or of broken
	 * warps, or shared memory, which no kernel here uses. */
	int (*run)(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
		   void **args);
};

/* NULL: no kernel is called that. */
const struct kernel_host_entry *kernels_host_find(const char *name);

#ifdef __cplusplus
}
#endif
