/*
 * driver.h - the CUDA driver as one table of functions, found when the program runs.
 *
 * Nothing is linked: libcuda.so.1 is opened by name, and each entry is asked for under the version
 * of its interface that the code here was written against, so that a later driver goes on giving
 * the same one.  The few types of the interface are declared here, so that building needs no
 * toolkit; where a toolkit is there, abi_check.c compares them with its cuda.h.
 *
 * The table is the seam: what stands behind libcuda.so.1 is a device, or the look-alike of the
 * tests.  Nothing above it knows which.
 *
 * What it relies on.  After gpu_driver_load() returned GPU_DRIVER_OK the library stays loaded for
 * the life of the process: it has threads and exit handlers of its own.  A process that forks after
 * that may not use it in the child.
 *
 * Names, versions and numbers: the CUDA driver API reference, and cuda.h of CUDA 13.0.
 */
#pragma once

#include "radix/base.h"

typedef int gpu_cu_result;
typedef int gpu_cu_device;
typedef uint64_t gpu_cu_ptr;    /* CUdeviceptr */
typedef uint64_t gpu_cu_memory; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *gpu_cu_context;
typedef struct CUstream_st *gpu_cu_stream;
typedef struct CUmod_st *gpu_cu_module;
typedef struct CUfunc_st *gpu_cu_function;

/* Results that somebody tells apart. */
enum {
	GPU_CU_SUCCESS = 0,
	GPU_CU_INVALID_VALUE = 1,
	GPU_CU_OUT_OF_MEMORY = 2,
	GPU_CU_NOT_INITIALIZED = 3,
	GPU_CU_STUB_LIBRARY = 34,
	GPU_CU_NO_DEVICE = 100,
	GPU_CU_INVALID_DEVICE = 101,
	GPU_CU_INVALID_CONTEXT = 201,
	GPU_CU_NO_BINARY_FOR_GPU = 209,
	GPU_CU_ECC_UNCORRECTABLE = 214,
	GPU_CU_OPERATING_SYSTEM = 304,
	GPU_CU_INVALID_HANDLE = 400,
	GPU_CU_NOT_FOUND = 500,
	GPU_CU_NOT_READY = 600,
	GPU_CU_ILLEGAL_ADDRESS = 700,
	GPU_CU_PRIMARY_CONTEXT_ACTIVE = 708,
	GPU_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
	GPU_CU_HOST_MEMORY_NOT_REGISTERED = 713,
	GPU_CU_LAUNCH_FAILED = 719,
	GPU_CU_NOT_PERMITTED = 800,
	GPU_CU_NOT_SUPPORTED = 801,
	GPU_CU_UNKNOWN = 999,
};

enum gpu_cu_attribute {
	GPU_CU_MULTIPROCESSOR_COUNT = 16,
	GPU_CU_COMPUTE_CAPABILITY_MAJOR = 75,
	GPU_CU_COMPUTE_CAPABILITY_MINOR = 76,
	GPU_CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	GPU_CU_HANDLE_TYPE_POSIX_FD_SUPPORTED = 103,
	GPU_CU_GPU_DIRECT_RDMA_WITH_VMM_SUPPORTED = 110,
	GPU_CU_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
};

enum {
	GPU_CU_CTX_SCHED_BLOCKING_SYNC = 4,
	GPU_CU_STREAM_NON_BLOCKING = 1,
	GPU_CU_MEM_ALLOCATION_PINNED = 1,
	GPU_CU_MEM_HANDLE_POSIX_FD = 1,
	GPU_CU_MEM_LOCATION_DEVICE = 1,
	GPU_CU_MEM_ACCESS_READ = 1,
	GPU_CU_MEM_ACCESS_READWRITE = 3,
	GPU_CU_MEM_GRANULARITY_RECOMMENDED = 1,
	GPU_CU_MEMHOSTREGISTER_PORTABLE = 1,
	GPU_CU_MEMHOSTREGISTER_DEVICEMAP = 2,
	GPU_CU_STREAM_WRITE_VALUE_DEFAULT = 0,
	GPU_CU_MEMCPY_SRC_ORDER_STREAM = 1,
	GPU_CU_MEMCPY_PREFER_OVERLAP = 1,
};

struct gpu_cu_uuid {
	uint8_t b[16];
};

struct gpu_cu_location {
	int type;
	int id;
};

struct gpu_cu_alloc_prop {
	int type;
	int handle_types;
	struct gpu_cu_location location;
	void *win32;
	struct {
		uint8_t compression;
		uint8_t gpu_direct_rdma;
		uint16_t usage;
		uint8_t reserved[4];
	} flags;
};

struct gpu_cu_access_desc {
	struct gpu_cu_location location;
	int flags;
};

struct gpu_cu_memcpy_attr {
	int src_order;
	struct gpu_cu_location src_hint, dst_hint;
	unsigned flags;
};

typedef void (*gpu_cu_host_fn)(void *ctx);

/*
 * X(field, symbol, version of its interface, required, arguments).  What is not required may be
 * NULL; cuMemcpyBatchAsync is asked for as it was before its last argument but one went away.
 */
#define GPU_DRIVER_TABLE(X)                                                                        \
	X(init, "cuInit", 2000, 1, (unsigned flags))                                               \
	X(version, "cuDriverGetVersion", 2020, 1, (int *ret_version))                              \
	X(error_name, "cuGetErrorName", 6000, 1, (gpu_cu_result r, const char **ret_name))         \
	X(error_string, "cuGetErrorString", 6000, 1, (gpu_cu_result r, const char **ret_text))     \
	X(device_count, "cuDeviceGetCount", 2000, 1, (int *ret_n))                                 \
	X(device_get, "cuDeviceGet", 2000, 1, (gpu_cu_device * ret_device, int ordinal))           \
	X(device_name, "cuDeviceGetName", 2000, 1, (char *ret_name, int len, gpu_cu_device d))     \
	X(device_uuid, "cuDeviceGetUuid", 11040, 1,                                                \
	  (struct gpu_cu_uuid * ret_id, gpu_cu_device d))                                          \
	X(device_attribute, "cuDeviceGetAttribute", 2000, 1,                                       \
	  (int *ret_value, int attribute, gpu_cu_device d))                                        \
	X(context_flags, "cuDevicePrimaryCtxSetFlags", 11000, 1,                                   \
	  (gpu_cu_device d, unsigned flags))                                                       \
	X(context_retain, "cuDevicePrimaryCtxRetain", 7000, 1,                                     \
	  (gpu_cu_context * ret_context, gpu_cu_device d))                                         \
	X(context_release, "cuDevicePrimaryCtxRelease", 11000, 1, (gpu_cu_device d))               \
	X(context_set, "cuCtxSetCurrent", 4000, 1, (gpu_cu_context context))                       \
	X(priority_range, "cuCtxGetStreamPriorityRange", 5050, 1, (int *ret_least, int *ret_most)) \
	X(mem_info, "cuMemGetInfo", 3020, 1, (size_t * ret_free, size_t * ret_total))              \
	X(mem_granularity, "cuMemGetAllocationGranularity", 10020, 1,                              \
	  (size_t * ret_bytes, const struct gpu_cu_alloc_prop *prop, int option))                  \
	X(mem_create, "cuMemCreate", 10020, 1,                                                     \
	  (gpu_cu_memory * ret_memory, size_t len, const struct gpu_cu_alloc_prop *prop,           \
	   uint64_t flags))                                                                        \
	X(mem_release, "cuMemRelease", 10020, 1, (gpu_cu_memory memory))                           \
	X(mem_export, "cuMemExportToShareableHandle", 10020, 1,                                    \
	  (void *ret_handle, gpu_cu_memory memory, int type, uint64_t flags))                      \
	X(mem_import, "cuMemImportFromShareableHandle", 10020, 1,                                  \
	  (gpu_cu_memory * ret_memory, void *handle, int type))                                    \
	X(address_reserve, "cuMemAddressReserve", 10020, 1,                                        \
	  (gpu_cu_ptr * ret_addr, size_t len, size_t align, gpu_cu_ptr hint, uint64_t flags))      \
	X(address_free, "cuMemAddressFree", 10020, 1, (gpu_cu_ptr addr, size_t len))               \
	X(mem_map, "cuMemMap", 10020, 1,                                                           \
	  (gpu_cu_ptr addr, size_t len, size_t off, gpu_cu_memory memory, uint64_t flags))         \
	X(mem_unmap, "cuMemUnmap", 10020, 1, (gpu_cu_ptr addr, size_t len))                        \
	X(mem_access, "cuMemSetAccess", 10020, 1,                                                  \
	  (gpu_cu_ptr addr, size_t len, const struct gpu_cu_access_desc *desc, size_t n))          \
	X(host_register, "cuMemHostRegister", 6050, 1, (void *p, size_t len, unsigned flags))      \
	X(host_unregister, "cuMemHostUnregister", 4000, 1, (void *p))                              \
	X(host_pointer, "cuMemHostGetDevicePointer", 3020, 1,                                      \
	  (gpu_cu_ptr * ret_addr, void *p, unsigned flags))                                        \
	X(copy, "cuMemcpyAsync", 4000, 1,                                                          \
	  (gpu_cu_ptr dst, gpu_cu_ptr src, size_t len, gpu_cu_stream stream))                      \
	X(copy_batch, "cuMemcpyBatchAsync", 12080, 0,                                              \
	  (gpu_cu_ptr * dsts, gpu_cu_ptr * srcs, size_t * lens, size_t n,                          \
	   struct gpu_cu_memcpy_attr * attrs, size_t * attr_from, size_t n_attrs,                  \
	   size_t * ret_failed, gpu_cu_stream stream))                                             \
	X(set_bytes, "cuMemsetD8Async", 3020, 1,                                                   \
	  (gpu_cu_ptr dst, unsigned char value, size_t len, gpu_cu_stream stream))                 \
	X(stream_new, "cuStreamCreateWithPriority", 5050, 1,                                       \
	  (gpu_cu_stream * ret_stream, unsigned flags, int priority))                              \
	X(stream_free, "cuStreamDestroy", 4000, 1, (gpu_cu_stream stream))                         \
	X(stream_query, "cuStreamQuery", 2000, 1, (gpu_cu_stream stream))                          \
	X(stream_sync, "cuStreamSynchronize", 2000, 1, (gpu_cu_stream stream))                     \
	X(stream_write, "cuStreamWriteValue64", 11070, 1,                                          \
	  (gpu_cu_stream stream, gpu_cu_ptr addr, uint64_t value, unsigned flags))                 \
	X(stream_call, "cuLaunchHostFunc", 10000, 1,                                               \
	  (gpu_cu_stream stream, gpu_cu_host_fn fn, void *ctx))                                    \
	X(module_load, "cuModuleLoadData", 2000, 1,                                                \
	  (gpu_cu_module * ret_module, const void *image))                                         \
	X(module_unload, "cuModuleUnload", 2000, 1, (gpu_cu_module module))                        \
	X(module_function, "cuModuleGetFunction", 2000, 1,                                         \
	  (gpu_cu_function * ret_function, gpu_cu_module module, const char *name))                \
	X(launch, "cuLaunchKernel", 4000, 1,                                                       \
	  (gpu_cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,     \
	   unsigned bz, unsigned shared_bytes, gpu_cu_stream stream, void **args, void **extra))

struct gpu_driver {
	void *library;
	int driver_version; /* 13000 for 13.0 */
#define X(field, symbol, abi, required, args) gpu_cu_result(*field) args;
	GPU_DRIVER_TABLE(X)
#undef X
};

/* What was found; X(symbol, text). */
#define GPU_DRIVER_STATES(X)        \
	X(OK, "ok")                 \
	X(NO_LIBRARY, "no library") \
	X(STUB, "stub")             \
	X(TOO_OLD, "too old")       \
	X(NO_DEVICE, "no device")   \
	X(FAILED, "failed") /* says that it is ill */

enum gpu_driver_state {
#define X(sym, text) GPU_DRIVER_##sym,
	GPU_DRIVER_STATES(X)
#undef X
	GPU_DRIVER_N_STATES
};

const char *gpu_driver_state_to_string(enum gpu_driver_state s);

/*
 * Opens the driver and calls cuInit.  `why` gets one sentence for the log either way: the versions,
 * or what is missing and what would help.  Other than OK: nothing stays open, and *ret_driver is
 * untouched.
 */
radix_nodiscard enum gpu_driver_state gpu_driver_load(struct gpu_driver *ret_driver, char *why,
						      size_t why_len);

/* "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", for a log. */
void gpu_driver_describe(const struct gpu_driver *d, const char *call, gpu_cu_result r,
			 char *ret_text, size_t len);

/* The library has one ABI for the word sizes that it is built for. */
_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "64 bits");
_Static_assert(sizeof(struct gpu_cu_alloc_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct gpu_cu_access_desc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(struct gpu_cu_memcpy_attr) == 24, "CUmemcpyAttributes");
