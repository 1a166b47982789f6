/*
 * modules.c - kernels, run as functions of this process.
 *
 * kernels=PATH names a library in which the test's build has the same kernels, compiled for this
 * machine (tests/kernels/kernels_host.h).  The image that a program loads is looked at only as far
 * as telling what kind it is.  Without that library a device has no binary for any image.
 */
#include "tests/driver/lookalike.h"
#include "tests/kernels/kernels_host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define INVALID_IMAGE 200 /* CUDA_ERROR_INVALID_IMAGE */
#define MAX_THREADS   1024u
#define ARG_ALIGN     16u

struct CUfunc_st {
	struct radix_list link;
	const struct kernel_host_entry *entry;
};

struct CUmod_st {
	struct radix_list link;
	gpu_cu_context ctx;
	struct radix_list functions;
};

/* A launch, with its arguments as they were when it was asked for. */
struct lookalike_kernel {
	const struct kernel_host_entry *entry;
	uint32_t grid[3], block[3], shared_bytes;
	void **args;
	_Alignas(ARG_ALIGN) uint8_t bytes[];
};

typedef const struct kernel_host_entry *(*find_fn)(const char *name);

static struct radix_list modules = { &modules, &modules };
static find_fn find;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_kernels(void)
{
	const char *path = lookalike_config()->kernels;
	void *library;

	if (!path)
		return;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library)
		find = (find_fn)dlsym(library, "kernels_host_find");
	if (!find) {
		(void)fprintf(stderr, "lookalike: kernels=%s: %s\n", path, dlerror());
		abort();
	}
}

/* A fat binary, an object for one kind of device, or text for the driver's compiler. */
static bool is_image(const void *image)
{
	static const uint8_t fat[] = { 0x50, 0xed, 0x55, 0xba };
	static const uint8_t elf[] = { 0x7f, 'E', 'L', 'F' };

	return memcmp(image, fat, sizeof(fat)) == 0 || memcmp(image, elf, sizeof(elf)) == 0 ||
	       memcmp(image, "//", 2) == 0 || memcmp(image, ".ver", 4) == 0;
}

gpu_cu_result lookalike_module_load(gpu_cu_module *ret_module, const void *image)
{
	struct CUmod_st *m;
	gpu_cu_context ctx;
	gpu_cu_result r;

	ENTER(module_load);
	r = lookalike_current("cuModuleLoadData", &ctx);
	if (r != GPU_CU_SUCCESS)
		return r;
	if (!ret_module || !image)
		BROKEN(GPU_CU_INVALID_VALUE, "cuModuleLoadData: arguments");
	(void)pthread_once(&once, open_kernels);
	if (!find)
		return GPU_CU_NO_BINARY_FOR_GPU;
	if (!is_image(image))
		BROKEN(INVALID_IMAGE, "cuModuleLoadData: not an image");
	m = calloc(1, sizeof(*m));
	if (!m)
		return GPU_CU_OUT_OF_MEMORY;
	m->ctx = ctx;
	radix_list_init(&m->functions);
	(void)pthread_mutex_lock(&lookalike_lock);
	radix_list_add_tail(&modules, &m->link);
	lookalike_counts.n_modules++;
	(void)pthread_mutex_unlock(&lookalike_lock);
	*ret_module = m;
	return GPU_CU_SUCCESS;
}

static bool module_is(const struct CUmod_st *wanted)
{
	struct radix_list *it;

	radix_list_foreach(it, &modules)
		if (radix_list_entry(it, struct CUmod_st, link) == wanted)
			return true;
	return false;
}

static void module_free(struct CUmod_st *m)
{
	while (!radix_list_empty(&m->functions)) {
		struct CUfunc_st *f = radix_list_first(&m->functions, struct CUfunc_st, link);

		radix_list_remove(&f->link);
		free(f);
	}
	radix_list_remove(&m->link);
	free(m);
	lookalike_counts.n_modules--;
}

/* Done also in a context with a sticky error, whose result it gives then. */
gpu_cu_result lookalike_module_unload(gpu_cu_module module)
{
	gpu_cu_context ctx;
	gpu_cu_result r;
	bool found;

	ENTER(module_unload);
	r = lookalike_current("cuModuleUnload", &ctx);
	if (r == GPU_CU_INVALID_CONTEXT)
		return r;
	(void)pthread_mutex_lock(&lookalike_lock);
	found = module_is(module);
	if (found)
		module_free(module);
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (r == GPU_CU_SUCCESS && !found)
		BROKEN(GPU_CU_INVALID_HANDLE, "cuModuleUnload: a module that is none, or no more");
	return r;
}

void lookalike_forget_modules(gpu_cu_context ctx)
{
	struct radix_list *it, *next;

	radix_list_foreach_safe(it, next, &modules) {
		struct CUmod_st *m = radix_list_entry(it, struct CUmod_st, link);

		if (m->ctx == ctx)
			module_free(m);
	}
}

gpu_cu_result lookalike_module_function(gpu_cu_function *ret_function, gpu_cu_module module,
					const char *name)
{
	const struct kernel_host_entry *entry;
	struct CUfunc_st *f;
	gpu_cu_context ctx;
	gpu_cu_result r;
	bool found;

	ENTER(module_function);
	r = lookalike_current("cuModuleGetFunction", &ctx);
	if (r != GPU_CU_SUCCESS)
		return r;
	if (!ret_function || !name)
		BROKEN(GPU_CU_INVALID_VALUE, "cuModuleGetFunction: arguments");
	entry = find ? find(name) : NULL;
	f = entry ? calloc(1, sizeof(*f)) : NULL;
	(void)pthread_mutex_lock(&lookalike_lock);
	found = module_is(module);
	if (found && f) {
		f->entry = entry;
		radix_list_add_tail(&module->functions, &f->link);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (!found) {
		free(f);
		BROKEN(GPU_CU_INVALID_HANDLE, "cuModuleGetFunction: a module that is none");
	}
	if (!entry)
		return GPU_CU_NOT_FOUND;
	if (!f)
		return GPU_CU_OUT_OF_MEMORY;
	*ret_function = f;
	return GPU_CU_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

static bool function_is(const struct CUfunc_st *wanted)
{
	struct radix_list *it, *in;

	radix_list_foreach(it, &modules) {
		struct CUmod_st *m = radix_list_entry(it, struct CUmod_st, link);

		radix_list_foreach(in, &m->functions)
			if (radix_list_entry(in, struct CUfunc_st, link) == wanted)
				return true;
	}
	return false;
}

static uint32_t arg_room(uint32_t bytes)
{
	return (bytes + ARG_ALIGN - 1) / ARG_ALIGN * ARG_ALIGN;
}

static struct lookalike_kernel *kernel_new(const struct kernel_host_entry *entry, void **args)
{
	struct lookalike_kernel *k;
	size_t room = 0, at = 0;

	for (uint32_t i = 0; i < entry->n_args; i++)
		room += arg_room(entry->arg_bytes[i]);
	k = calloc(1, sizeof(*k) + room);
	radix_assert(k);
	k->args = calloc(entry->n_args + 1, sizeof(k->args[0]));
	radix_assert(k->args);
	k->entry = entry;
	for (uint32_t i = 0; i < entry->n_args; i++) {
		k->args[i] = k->bytes + at;
		memcpy(k->args[i], args[i], entry->arg_bytes[i]);
		at += arg_room(entry->arg_bytes[i]);
	}
	return k;
}

void lookalike_kernel_free(struct lookalike_kernel *k)
{
	free(k->args);
	free(k);
}

gpu_cu_result lookalike_kernel_run(struct lookalike_kernel *k)
{
	if (k->entry->run(k->grid, k->block, k->shared_bytes, k->args) == 0)
		return GPU_CU_SUCCESS;
	lookalike_broken("%s: a launch of dimensions that the kernel does not take",
			 k->entry->name);
	return GPU_CU_LAUNCH_FAILED;
}

static bool all_positive(const uint32_t grid[3], const uint32_t block[3])
{
	uint64_t threads = 1;

	for (int i = 0; i < 3; i++) {
		if (grid[i] == 0 || block[i] == 0 || block[i] > MAX_THREADS)
			return false;
		threads *= block[i];
	}
	return threads <= MAX_THREADS;
}

gpu_cu_result lookalike_launch(gpu_cu_function f, unsigned gx, unsigned gy, unsigned gz,
			       unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
			       gpu_cu_stream stream, void **args, void **extra)
{
	const uint32_t grid[3] = { gx, gy, gz }, block[3] = { bx, by, bz };
	struct lookalike_op *op;
	gpu_cu_result r;

	ENTER(launch);
	if (!all_positive(grid, block) || extra)
		BROKEN(GPU_CU_INVALID_VALUE, "cuLaunchKernel: dimensions or arguments");
	(void)pthread_mutex_lock(&lookalike_lock);
	r = lookalike_stream_use("cuLaunchKernel", stream);
	if (r == GPU_CU_SUCCESS && !function_is(f)) {
		lookalike_broken("cuLaunchKernel: a function that is none, or no more");
		r = GPU_CU_INVALID_HANDLE;
	} else if (r == GPU_CU_SUCCESS && f->entry->n_args > 0 && !args) {
		lookalike_broken("cuLaunchKernel: no arguments");
		r = GPU_CU_INVALID_VALUE;
	}
	if (r == GPU_CU_SUCCESS) {
		op = lookalike_op_new(LOOKALIKE_KERNEL, 0);
		op->kernel = kernel_new(f->entry, args);
		memcpy(op->kernel->grid, grid, sizeof(grid));
		memcpy(op->kernel->block, block, sizeof(block));
		op->kernel->shared_bytes = shared_bytes;
		op->plan = lookalike_planned_op("kernel");
		lookalike_counts.n_launches++;
		lookalike_push(stream, op);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}
