#include "tests/e2e/mover.h"

#include "clients/replay/mover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One for the process. */
static struct replay_mover *mover;

static void __attribute__((noreturn)) fail(void)
{
	fprintf(stderr, "worker's device: %s\n", mover ? replay_mover_why(mover) : "no memory");
	abort();
}

/* false: the pool lies where the processor reaches it. */
static bool on_gpu(const pfx_namespace *ns)
{
	if (pfx_pool_device(ns, NULL) == PFX_DEVICE_MEMORY)
		return false;
	if (!mover)
		mover = replay_mover_new();
	if (!mover)
		fail();
	return true;
}

void mover_read(const pfx_namespace *ns, uint32_t slot, void *ret_bytes, size_t len)
{
	const void *bytes;

	if (on_gpu(ns))
		bytes = replay_mover_get(mover, ns, slot, len);
	else
		bytes = pfx_slot(ns, slot);
	if (!bytes)
		fail();
	memcpy(ret_bytes, bytes, len);
}

void mover_write(const pfx_namespace *ns, uint32_t slot, const void *bytes, size_t len)
{
	bool gpu = on_gpu(ns);
	void *to = gpu ? replay_mover_buffer(mover, ns, len) : pfx_write_slot(ns, slot);

	if (!to)
		fail();
	memcpy(to, bytes, len);
	if (gpu && replay_mover_put(mover, ns, slot, len) < 0)
		fail();
}

void mover_stray_write(const pfx_namespace *ns, uint32_t slot, const void *bytes, size_t len)
{
	bool gpu = on_gpu(ns);
	void *to = gpu ? replay_mover_buffer(mover, ns, len) : pfx_slot(ns, slot);

	if (!to)
		fail();
	memcpy(to, bytes, len);
	if (gpu && replay_mover_put_at(mover, ns, pfx_slot_address(ns, slot), len) < 0)
		fail();
}
