/*
 * abi_check.c - whether driver.h says what the toolkit's cuda.h says.
 *
 * Compiled where a toolkit is found when the program is built, and only then; it has no code.  A
 * difference ends the build.
 */
#include "gpu/driver.h"

#include <cuda.h>

#define SAME_SIZE(ours, theirs)  _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SAME_PLACE(ours, a, theirs, b)                                            \
	_Static_assert(offsetof(ours, a) == offsetof(theirs, b), #theirs "." #b); \
	_Static_assert(sizeof(((ours *)0)->a) == sizeof(((theirs *)0)->b), #theirs "." #b)

SAME_SIZE(gpu_cu_result, CUresult);
SAME_SIZE(gpu_cu_device, CUdevice);
SAME_SIZE(gpu_cu_ptr, CUdeviceptr);
SAME_SIZE(gpu_cu_memory, CUmemGenericAllocationHandle);
SAME_SIZE(gpu_cu_context, CUcontext);
SAME_SIZE(gpu_cu_stream, CUstream);
SAME_SIZE(gpu_cu_module, CUmodule);
SAME_SIZE(gpu_cu_function, CUfunction);
SAME_SIZE(gpu_cu_host_fn, CUhostFn);
SAME_SIZE(uint64_t, cuuint64_t);
SAME_SIZE(int, CUdriverProcAddressQueryResult);

SAME_VALUE(GPU_CU_SUCCESS, CUDA_SUCCESS);
SAME_VALUE(GPU_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(GPU_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(GPU_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(GPU_CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME_VALUE(GPU_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(GPU_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(GPU_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(GPU_CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_VALUE(GPU_CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_VALUE(GPU_CU_OPERATING_SYSTEM, CUDA_ERROR_OPERATING_SYSTEM);
SAME_VALUE(GPU_CU_PRIMARY_CONTEXT_ACTIVE, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
SAME_VALUE(GPU_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(GPU_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(GPU_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_VALUE(GPU_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(GPU_CU_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_VALUE(GPU_CU_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_VALUE(GPU_CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME_VALUE(GPU_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(GPU_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(GPU_CU_UNKNOWN, CUDA_ERROR_UNKNOWN);

SAME_VALUE(GPU_CU_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(GPU_CU_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(GPU_CU_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(GPU_CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
	   CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_VALUE(GPU_CU_HANDLE_TYPE_POSIX_FD_SUPPORTED,
	   CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_VALUE(GPU_CU_GPU_DIRECT_RDMA_WITH_VMM_SUPPORTED,
	   CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME_VALUE(GPU_CU_CAN_USE_64_BIT_STREAM_MEM_OPS, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);

SAME_VALUE(GPU_CU_CTX_SCHED_BLOCKING_SYNC, CU_CTX_SCHED_BLOCKING_SYNC);
SAME_VALUE(GPU_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME_VALUE(GPU_CU_MEM_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(GPU_CU_MEM_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(GPU_CU_MEM_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(GPU_CU_MEM_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_VALUE(GPU_CU_MEM_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(GPU_CU_MEM_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_VALUE(GPU_CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME_VALUE(GPU_CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_VALUE(GPU_CU_STREAM_WRITE_VALUE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT);

SAME_SIZE(struct gpu_cu_uuid, CUuuid);
SAME_SIZE(struct gpu_cu_location, CUmemLocation);
SAME_PLACE(struct gpu_cu_location, type, CUmemLocation, type);
SAME_PLACE(struct gpu_cu_location, id, CUmemLocation, id);
SAME_SIZE(struct gpu_cu_alloc_prop, CUmemAllocationProp);
SAME_PLACE(struct gpu_cu_alloc_prop, type, CUmemAllocationProp, type);
SAME_PLACE(struct gpu_cu_alloc_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct gpu_cu_alloc_prop, location, CUmemAllocationProp, location);
SAME_PLACE(struct gpu_cu_alloc_prop, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(struct gpu_cu_alloc_prop, flags, CUmemAllocationProp, allocFlags);
SAME_PLACE(struct gpu_cu_alloc_prop, flags.compression, CUmemAllocationProp,
	   allocFlags.compressionType);
SAME_PLACE(struct gpu_cu_alloc_prop, flags.gpu_direct_rdma, CUmemAllocationProp,
	   allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct gpu_cu_alloc_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_SIZE(struct gpu_cu_access_desc, CUmemAccessDesc);
SAME_PLACE(struct gpu_cu_access_desc, location, CUmemAccessDesc, location);
SAME_PLACE(struct gpu_cu_access_desc, flags, CUmemAccessDesc, flags);

#if CUDA_VERSION >= 12080
SAME_VALUE(GPU_CU_MEMCPY_SRC_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME_VALUE(GPU_CU_MEMCPY_PREFER_OVERLAP, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
SAME_SIZE(struct gpu_cu_memcpy_attr, CUmemcpyAttributes);
SAME_PLACE(struct gpu_cu_memcpy_attr, src_order, CUmemcpyAttributes, srcAccessOrder);
SAME_PLACE(struct gpu_cu_memcpy_attr, src_hint, CUmemcpyAttributes, srcLocHint);
SAME_PLACE(struct gpu_cu_memcpy_attr, dst_hint, CUmemcpyAttributes, dstLocHint);
SAME_PLACE(struct gpu_cu_memcpy_attr, flags, CUmemcpyAttributes, flags);
#endif
