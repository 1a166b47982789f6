/*
 * entries.c - finding entries by name and version; devices, contexts, and what results are called.
 *
 * The library exports what a program finds by dlsym() in a real one and needs to find the rest.
 */
#include "tests/driver/lookalike.h"

#include <stdio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	FOUND = 0,
	SYMBOL_NOT_FOUND = 1,
	VERSION_NOT_SUFFICIENT = 2,
};

pid_t lookalike_started_in;
__thread gpu_cu_context lookalike_ctx;
__thread bool lookalike_in_host_fn;

static struct CUctx_st contexts[LOOKALIKE_MAX_DEVICES];

EXPORT gpu_cu_result cuInit(unsigned flags);
EXPORT gpu_cu_result cuDriverGetVersion(int *ret_version);
EXPORT gpu_cu_result cuGetProcAddress(const char *symbol, void **ret_entry, int version,
				      uint64_t flags);
EXPORT gpu_cu_result cuGetProcAddress_v2(const char *symbol, void **ret_entry, int version,
					 uint64_t flags, int *ret_status);

/* ---- finding entries ------------------------------------------------------------------------- */

/* cuMemcpyBatchAsync lost the argument that says which copy failed. */
static gpu_cu_result copy_batch_13(gpu_cu_ptr *dsts, gpu_cu_ptr *srcs, size_t *lens, size_t n,
				   struct gpu_cu_memcpy_attr *attrs, size_t *attr_from,
				   size_t n_attrs, gpu_cu_stream stream)
{
	size_t failed;

	return lookalike_copy_batch(dsts, srcs, lens, n, attrs, attr_from, n_attrs, &failed,
				    stream);
}

static void census(struct lookalike_census *ret_census)
{
	(void)pthread_mutex_lock(&lookalike_lock);
	*ret_census = lookalike_counts;
	for (int i = 0; i < LOOKALIKE_MAX_DEVICES; i++)
		ret_census->n_retained += contexts[i].n_retained;
	(void)pthread_mutex_unlock(&lookalike_lock);
	ret_census->n_broken = lookalike_n_broken();
	ret_census->n_planned = lookalike_n_planned();
}

/* Of an entry with several interfaces the newest comes first. */
static const struct {
	const char *symbol;
	void *entry;
	int since;
} entries[] = { { "lookalikeCensus", (void *)census, 0 },
		{ "cuMemcpyBatchAsync", (void *)copy_batch_13, 13000 },
#define X(field, symbol, abi, required, args) { symbol, (void *)lookalike_##field, abi },
		GPU_DRIVER_TABLE(X)
#undef X
};

gpu_cu_result cuGetProcAddress_v2(const char *symbol, void **ret_entry, int version, uint64_t flags,
				  int *ret_status)
{
	bool seen = false;

	if (!symbol || !ret_entry || flags > 2)
		BROKEN(GPU_CU_INVALID_VALUE, "cuGetProcAddress: arguments");
	*ret_entry = NULL;
	if (version > lookalike_config()->version)
		return GPU_CU_INVALID_VALUE;
	for (size_t i = 0; i < radix_array_size(entries); i++) {
		if (strcmp(entries[i].symbol, symbol) != 0)
			continue;
		seen = true;
		if (entries[i].since > version)
			continue;
		*ret_entry = entries[i].entry;
		if (ret_status)
			*ret_status = FOUND;
		return GPU_CU_SUCCESS;
	}
	if (ret_status)
		*ret_status = seen ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
	return GPU_CU_SUCCESS;
}

gpu_cu_result cuGetProcAddress(const char *symbol, void **ret_entry, int version, uint64_t flags)
{
	int status = SYMBOL_NOT_FOUND;
	gpu_cu_result r = cuGetProcAddress_v2(symbol, ret_entry, version, flags, &status);

	return r != GPU_CU_SUCCESS ? r : status == FOUND ? GPU_CU_SUCCESS : GPU_CU_NOT_FOUND;
}

gpu_cu_result cuInit(unsigned flags)
{
	return lookalike_init(flags);
}

gpu_cu_result cuDriverGetVersion(int *ret_version)
{
	return lookalike_version(ret_version);
}

/* ---- start ----------------------------------------------------------------------------------- */

gpu_cu_result lookalike_init(unsigned flags)
{
	const struct lookalike_config *config = lookalike_config();

	ENTER_WITH(init, LOOKALIKE_ANYTIME);
	if (config->stub)
		return GPU_CU_STUB_LIBRARY;
	if (flags != 0)
		BROKEN(GPU_CU_INVALID_VALUE, "cuInit: flags");
	if (config->devices == 0)
		return GPU_CU_NO_DEVICE;
	__atomic_store_n(&lookalike_started_in, getpid(), __ATOMIC_RELEASE);
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_version(int *ret_version)
{
	ENTER_WITH(version, LOOKALIKE_ANYTIME);
	if (lookalike_config()->stub)
		return GPU_CU_STUB_LIBRARY;
	if (!ret_version)
		BROKEN(GPU_CU_INVALID_VALUE, "cuDriverGetVersion: no place for it");
	*ret_version = lookalike_config()->version;
	return GPU_CU_SUCCESS;
}

static const struct {
	gpu_cu_result result;
	const char *name, *text;
} results[] = {
	{ GPU_CU_SUCCESS, "CUDA_SUCCESS", "no error" },
	{ GPU_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ GPU_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ GPU_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ GPU_CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library" },
	{ GPU_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ GPU_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ GPU_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ GPU_CU_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	  "no kernel image is available for execution on the device" },
	{ GPU_CU_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
	  "uncorrectable ECC error encountered" },
	{ GPU_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ GPU_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
	{ GPU_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
	{ GPU_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
	  "an illegal memory access was encountered" },
	{ GPU_CU_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	  "part or all of the requested memory range is already mapped" },
	{ GPU_CU_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	  "pointer does not correspond to a registered memory region" },
	{ GPU_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
	{ GPU_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted" },
	{ GPU_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
	{ GPU_CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" },
};

gpu_cu_result lookalike_error_name(gpu_cu_result r, const char **ret_name)
{
	ENTER_WITH(error_name, LOOKALIKE_ANYTIME);
	*ret_name = NULL;
	for (size_t i = 0; i < radix_array_size(results); i++)
		if (results[i].result == r)
			*ret_name = results[i].name;
	return *ret_name ? GPU_CU_SUCCESS : GPU_CU_INVALID_VALUE;
}

gpu_cu_result lookalike_error_string(gpu_cu_result r, const char **ret_text)
{
	ENTER_WITH(error_string, LOOKALIKE_ANYTIME);
	*ret_text = NULL;
	for (size_t i = 0; i < radix_array_size(results); i++)
		if (results[i].result == r)
			*ret_text = results[i].text;
	return *ret_text ? GPU_CU_SUCCESS : GPU_CU_INVALID_VALUE;
}

/* ---- devices --------------------------------------------------------------------------------- */

bool lookalike_device_is(int device)
{
	return device >= 0 && device < lookalike_config()->devices;
}

gpu_cu_result lookalike_device_count(int *ret_n)
{
	ENTER(device_count);
	*ret_n = lookalike_config()->devices;
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_device_get(gpu_cu_device *ret_device, int ordinal)
{
	ENTER(device_get);
	if (!lookalike_device_is(ordinal))
		return GPU_CU_INVALID_DEVICE;
	*ret_device = ordinal;
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_device_name(char *ret_name, int len, gpu_cu_device d)
{
	ENTER(device_name);
	if (!lookalike_device_is(d))
		BROKEN(GPU_CU_INVALID_DEVICE, "cuDeviceGetName: there is no device %d", d);
	if (!ret_name || len <= 0)
		BROKEN(GPU_CU_INVALID_VALUE, "cuDeviceGetName: no place for it");
	(void)snprintf(ret_name, (size_t)len, "Look-alike %d", lookalike_config()->first + d);
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_device_uuid(struct gpu_cu_uuid *ret_id, gpu_cu_device d)
{
	ENTER(device_uuid);
	if (!lookalike_device_is(d))
		BROKEN(GPU_CU_INVALID_DEVICE, "cuDeviceGetUuid: there is no device %d", d);
	lookalike_uuid(d, ret_id);
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_device_attribute(int *ret_value, int attribute, gpu_cu_device d)
{
	static const struct {
		int attribute, value;
	} values[] = {
		{ GPU_CU_MULTIPROCESSOR_COUNT, 4 },
		{ GPU_CU_COMPUTE_CAPABILITY_MAJOR, 9 },
		{ GPU_CU_COMPUTE_CAPABILITY_MINOR, 0 },
		{ GPU_CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
		{ GPU_CU_HANDLE_TYPE_POSIX_FD_SUPPORTED, 1 },
		{ GPU_CU_GPU_DIRECT_RDMA_WITH_VMM_SUPPORTED, 1 },
		{ GPU_CU_CAN_USE_64_BIT_STREAM_MEM_OPS, 1 },
	};

	ENTER(device_attribute);
	if (!lookalike_device_is(d))
		BROKEN(GPU_CU_INVALID_DEVICE, "cuDeviceGetAttribute: there is no device %d", d);
	for (size_t i = 0; i < radix_array_size(values); i++) {
		if (values[i].attribute != attribute)
			continue;
		*ret_value = values[i].value;
		return GPU_CU_SUCCESS;
	}
	BROKEN(GPU_CU_INVALID_VALUE, "cuDeviceGetAttribute: %d is none that it knows", attribute);
}

/* ---- contexts -------------------------------------------------------------------------------- */

gpu_cu_result lookalike_context_flags(gpu_cu_device d, unsigned flags)
{
	ENTER(context_flags);
	if (!lookalike_device_is(d))
		BROKEN(GPU_CU_INVALID_DEVICE, "cuDevicePrimaryCtxSetFlags: there is no device %d",
		       d);
	if (flags > 0x1f)
		BROKEN(GPU_CU_INVALID_VALUE, "cuDevicePrimaryCtxSetFlags: flags %#x", flags);
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_context_retain(gpu_cu_context *ret_context, gpu_cu_device d)
{
	ENTER(context_retain);
	if (!lookalike_device_is(d))
		BROKEN(GPU_CU_INVALID_DEVICE, "cuDevicePrimaryCtxRetain: there is no device %d", d);
	(void)pthread_mutex_lock(&lookalike_lock);
	contexts[d].device = d;
	contexts[d].n_retained++;
	(void)pthread_mutex_unlock(&lookalike_lock);
	*ret_context = &contexts[d];
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_context_release(gpu_cu_device d)
{
	gpu_cu_result r = GPU_CU_SUCCESS;

	ENTER(context_release);
	if (!lookalike_device_is(d))
		BROKEN(GPU_CU_INVALID_DEVICE, "cuDevicePrimaryCtxRelease: there is no device %d",
		       d);
	(void)pthread_mutex_lock(&lookalike_lock);
	if (contexts[d].n_retained == 0) {
		lookalike_broken("cuDevicePrimaryCtxRelease: once too often");
		r = GPU_CU_INVALID_CONTEXT;
	} else if (--contexts[d].n_retained == 0) {
		lookalike_streams_end(&contexts[d]);
		lookalike_forget_host(&contexts[d]);
		lookalike_forget_modules(&contexts[d]);
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

gpu_cu_result lookalike_context_set(gpu_cu_context context)
{
	bool known = !context;

	ENTER(context_set);
	(void)pthread_mutex_lock(&lookalike_lock);
	for (int i = 0; i < LOOKALIKE_MAX_DEVICES; i++)
		known |= context == &contexts[i] && contexts[i].n_retained > 0;
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (!known)
		BROKEN(GPU_CU_INVALID_CONTEXT, "cuCtxSetCurrent: a context that is none");
	lookalike_ctx = context;
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_current(const char *call, gpu_cu_context *ret_ctx)
{
	gpu_cu_context ctx = lookalike_ctx;
	gpu_cu_result sticky;
	bool alive;

	if (!ctx)
		BROKEN(GPU_CU_INVALID_CONTEXT, "%s: without a context", call);
	(void)pthread_mutex_lock(&lookalike_lock);
	alive = ctx->n_retained > 0;
	sticky = ctx->sticky;
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (!alive)
		BROKEN(GPU_CU_INVALID_CONTEXT, "%s: in a context that is released", call);
	*ret_ctx = ctx;
	return sticky;
}

gpu_cu_result lookalike_priority_range(int *ret_least, int *ret_most)
{
	gpu_cu_context ctx;
	gpu_cu_result r;

	ENTER(priority_range);
	r = lookalike_current("cuCtxGetStreamPriorityRange", &ctx);
	if (r != GPU_CU_SUCCESS)
		return r;
	*ret_least = 0;
	*ret_most = -5;
	return GPU_CU_SUCCESS;
}
