/*
 * device.c - see device.h.
 */
#include "clients/c/device_internal.h"

#include <stdio.h>
#include <stdlib.h>

int pfx_device_failed(const struct pfx_device *d, const char *call, gpu_cu_result r, char *why,
		      size_t why_len)
{
	gpu_driver_describe(&d->driver, call, r, why, why_len);
	return r == GPU_CU_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

static int find(struct pfx_device *d, char *why, size_t why_len)
{
	gpu_cu_result r;
	int n = 0, refused = 0;

	r = d->driver.device_count(&n);
	if (r != GPU_CU_SUCCESS)
		return pfx_device_failed(d, "cuDeviceGetCount", r, why, why_len);
	for (int i = 0; i < n; i++) {
		const char *call = "cuDeviceGet";
		struct gpu_cu_uuid id;

		r = d->driver.device_get(&d->device, i);
		if (r == GPU_CU_SUCCESS) {
			call = "cuDeviceGetUuid";
			r = d->driver.device_uuid(&id, d->device);
		}
		if (r == GPU_CU_SUCCESS && memcmp(id.b, d->id.b, sizeof(id.b)) == 0)
			return 0;
		if (r != GPU_CU_SUCCESS) /* it may be the one that is looked for */
			refused = pfx_device_failed(d, call, r, why, why_len);
	}
	if (refused < 0)
		return refused;
	(void)snprintf(why, why_len, "none of the %d GPUs that this process sees is the pool's", n);
	return -ENODEV;
}

int pfx_device_open(const struct proto_id *id, struct pfx_device **ret_device, char *why,
		    size_t why_len)
{
	struct pfx_device *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	d->id = *id;
	r = gpu_driver_load(&d->driver, why, why_len) == GPU_DRIVER_OK ? 0 : -ENODEV;
	if (r == 0)
		r = find(d, why, why_len);
	if (r < 0) {
		free(d);
		return r;
	}
	*ret_device = d;
	return 0;
}

/* The driver stays: it has threads of its own. */
void pfx_device_close(struct pfx_device *d)
{
	free(d);
}

bool pfx_device_is(const struct pfx_device *d, const struct proto_id *id)
{
	return d && memcmp(d->id.b, id->b, sizeof(id->b)) == 0;
}

/* The mapping keeps the memory. */
static int slab_map(struct pfx_device *d, int fd, uint64_t addr, uint64_t len, bool writable,
		    char *why, size_t why_len)
{
	const struct gpu_cu_access_desc access = {
		.location = { .type = GPU_CU_MEM_LOCATION_DEVICE, .id = d->device },
		.flags = writable ? GPU_CU_MEM_ACCESS_READWRITE : GPU_CU_MEM_ACCESS_READ,
	};
	const char *call = "cuMemImportFromShareableHandle";
	gpu_cu_memory memory;
	gpu_cu_result r;

	r = d->driver.mem_import(&memory, (void *)(intptr_t)fd, GPU_CU_MEM_HANDLE_POSIX_FD);
	if (r != GPU_CU_SUCCESS)
		return pfx_device_failed(d, call, r, why, why_len);
	call = "cuMemMap";
	r = d->driver.mem_map(addr, len, 0, memory, 0);
	(void)GIVE_BACK(d->driver.mem_release(memory));
	if (r == GPU_CU_SUCCESS) {
		call = "cuMemSetAccess";
		r = d->driver.mem_access(addr, len, &access, 1);
		if (r != GPU_CU_SUCCESS)
			(void)GIVE_BACK(d->driver.mem_unmap(addr, len));
	}
	return r == GPU_CU_SUCCESS ? 0 : pfx_device_failed(d, call, r, why, why_len);
}

static uint64_t slab_at(uint64_t at, uint64_t len, uint64_t slab_len)
{
	return len - at < slab_len ? len - at : slab_len;
}

static void unmap(struct pfx_device *d, uint64_t addr, uint64_t mapped, uint64_t len,
		  uint64_t slab_len)
{
	for (uint64_t at = 0; at < mapped; at += slab_len)
		(void)GIVE_BACK(d->driver.mem_unmap(addr + at, slab_at(at, len, slab_len)));
	(void)GIVE_BACK(d->driver.address_free(addr, len));
}

int pfx_device_map(struct pfx_device *d, const int *fds, uint32_t n, uint64_t len,
		   uint64_t slab_len, bool writable, uint64_t *ret_addr, char *why, size_t why_len)
{
	gpu_cu_ptr addr;
	gpu_cu_result cu = d->driver.address_reserve(&addr, len, 0, 0, 0);

	if (cu != GPU_CU_SUCCESS)
		return pfx_device_failed(d, "cuMemAddressReserve", cu, why, why_len);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = i * slab_len;
		int r = slab_map(d, fds[i], addr + at, slab_at(at, len, slab_len), writable, why,
				 why_len);

		if (r < 0) {
			unmap(d, addr, at, len, slab_len);
			return r;
		}
	}
	*ret_addr = addr;
	return 0;
}

void pfx_device_unmap(struct pfx_device *d, uint64_t addr, uint64_t len, uint64_t slab_len)
{
	unmap(d, addr, len, len, slab_len);
}

int pfx_device_register(struct pfx_device *d, void *p, size_t len, uint64_t *ret_addr, char *why,
			size_t why_len)
{
	const unsigned flags = GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP;
	gpu_cu_result r = d->driver.host_register(p, len, flags);
	gpu_cu_ptr addr;

	if (r != GPU_CU_SUCCESS)
		return pfx_device_failed(d, "cuMemHostRegister", r, why, why_len);
	r = d->driver.host_pointer(&addr, p, 0);
	if (r != GPU_CU_SUCCESS) {
		(void)GIVE_BACK(d->driver.host_unregister(p));
		return pfx_device_failed(d, "cuMemHostGetDevicePointer", r, why, why_len);
	}
	*ret_addr = addr;
	return 0;
}

/* Without a current context it fails, and the pages stay pinned until the process ends. */
void pfx_device_unregister(struct pfx_device *d, void *p)
{
	(void)GIVE_BACK(d->driver.host_unregister(p));
}

int pfx_device_write(struct pfx_device *d, void *stream, uint64_t addr, uint64_t value, char *why,
		     size_t why_len)
{
	/* By default the write is a release: what the stream did before it is seen before it. */
	gpu_cu_result r = d->driver.stream_write(stream, addr, value,
						 GPU_CU_STREAM_WRITE_VALUE_DEFAULT);

	return r == GPU_CU_SUCCESS ? 0
				   : pfx_device_failed(d, "cuStreamWriteValue64", r, why, why_len);
}
