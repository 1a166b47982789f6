/*
 * kernels_host.cc - gpu/kernels.cu as it stands, and its kernels by name.
 */
#include "tests/kernels/hostcuda.h"

#include "gpu/kernels.cu"

#define ENTRY(name)                                                                               \
	{ #name, hostcuda_kernel<name>::n_args, hostcuda_kernel<name>::arg_bytes,                 \
	  hostcuda_kernel<name>::run },
static const struct kernel_host_entry entries[] = { GPU_KERNELS(ENTRY) };

extern "C" __attribute__((visibility("default"))) const struct kernel_host_entry *
kernels_host_find(const char *name)
{
	for (const struct kernel_host_entry &e : entries)
		if (!strcmp(e.name, name))
			return &e;
	return nullptr;
}
