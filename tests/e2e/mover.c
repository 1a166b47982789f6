#include "tests/e2e/mover.h"

#include "gpu/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PINNED (64u << 10)

/* One for the process: a worker has one GPU. */
static struct mover {
	struct gpu_driver driver;
	gpu_cu_context context;
	gpu_cu_stream stream;
	void *pinned;
	gpu_cu_ptr pinned_addr;
} mover;

#define must(field, ...)                                                                      \
	do {                                                                                  \
		gpu_cu_result r_ = mover.driver.field(__VA_ARGS__);                           \
		if (r_ != GPU_CU_SUCCESS) {                                                   \
			char text_[200];                                                      \
			gpu_driver_describe(&mover.driver, #field, r_, text_, sizeof(text_)); \
			fprintf(stderr, "worker's device: %s\n", text_);                      \
			abort();                                                              \
		}                                                                             \
	} while (0)

static gpu_cu_device device_of(const uint8_t uuid[16])
{
	gpu_cu_device device = 0;
	struct gpu_cu_uuid id;
	int n = 0;

	must(device_count, &n);
	for (int i = 0; i < n; i++) {
		must(device_get, &device, i);
		must(device_uuid, &id, device);
		if (memcmp(id.b, uuid, sizeof(id.b)) == 0)
			return device;
	}
	fprintf(stderr, "worker's device: not among %d\n", n);
	abort();
}

static void begin(const pfx_namespace *ns)
{
	uint8_t uuid[16];
	char why[256];

	if (!mover.pinned) {
		if (gpu_driver_load(&mover.driver, why, sizeof(why)) != GPU_DRIVER_OK) {
			fprintf(stderr, "worker's device: %s\n", why);
			abort();
		}
		(void)pfx_pool_device(ns, uuid);
		must(context_retain, &mover.context, device_of(uuid));
		must(context_set, mover.context);
		must(stream_new, &mover.stream, GPU_CU_STREAM_NON_BLOCKING, 0);
		mover.pinned = mmap(NULL, PINNED, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (mover.pinned == MAP_FAILED)
			abort();
		must(host_register, mover.pinned, PINNED,
		     GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
		must(host_pointer, &mover.pinned_addr, mover.pinned, 0);
	}
	must(context_set, mover.context);
}

void mover_read(const pfx_namespace *ns, uint32_t slot, void *ret_bytes, size_t len)
{
	if (pfx_pool_device(ns, NULL) == PFX_DEVICE_MEMORY) {
		memcpy(ret_bytes, pfx_slot(ns, slot), len);
		return;
	}
	begin(ns);
	must(copy, mover.pinned_addr, pfx_slot_address(ns, slot), len, mover.stream);
	must(stream_sync, mover.stream);
	memcpy(ret_bytes, mover.pinned, len);
}

void mover_write(const pfx_namespace *ns, uint32_t slot, const void *bytes, size_t len)
{
	if (pfx_pool_device(ns, NULL) == PFX_DEVICE_MEMORY) {
		memcpy(pfx_slot(ns, slot), bytes, len);
		return;
	}
	begin(ns);
	memcpy(mover.pinned, bytes, len);
	must(copy, pfx_slot_address(ns, slot), mover.pinned_addr, len, mover.stream);
	must(stream_sync, mover.stream);
}
