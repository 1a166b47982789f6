/*
 * mover.c - see mover.h.
 *
 * A stream per GPU, in the context that other code of the process would use too, and one buffer
 * that all of them reach.
 */
#include "clients/replay/mover.h"

#include "gpu/driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GPUS_MAX     16u
#define BUFFER_BYTES (UINT64_C(64) << 10) /* at least, and in steps of it */

struct lane {
	uint8_t id[16];
	gpu_cu_device device;
	gpu_cu_context context;
	gpu_cu_stream stream;
};

struct replay_mover {
	struct gpu_driver driver;
	bool loaded;
	struct lane lanes[GPUS_MAX];
	uint32_t n_lanes;
	void *buffer;
	size_t len;
	char why[256];
};

/* false: the driver refused, and says why. */
#define may(m, field, ...) allowed((m), #field, (m)->driver.field(__VA_ARGS__))

static bool allowed(struct replay_mover *m, const char *call, gpu_cu_result r)
{
	if (r == GPU_CU_SUCCESS)
		return true;
	gpu_driver_describe(&m->driver, call, r, m->why, sizeof(m->why));
	return false;
}

struct replay_mover *replay_mover_new(void)
{
	return calloc(1, sizeof(struct replay_mover));
}

const char *replay_mover_why(const struct replay_mover *m)
{
	return m->why;
}

/* What cannot be given back to a driver that is lost is gone with the process. */
static void buffer_free(struct replay_mover *m)
{
	if (!m->buffer)
		return;
	(void)m->driver.host_unregister(m->buffer);
	(void)munmap(m->buffer, m->len);
	m->buffer = NULL;
	m->len = 0;
}

void replay_mover_free(struct replay_mover *m)
{
	if (!m)
		return;
	buffer_free(m);
	for (uint32_t i = 0; i < m->n_lanes; i++) {
		(void)m->driver.context_set(m->lanes[i].context);
		(void)m->driver.stream_free(m->lanes[i].stream);
		(void)m->driver.context_release(m->lanes[i].device);
	}
	free(m);
}

static bool device_find(struct replay_mover *m, const uint8_t id[16], gpu_cu_device *ret_device)
{
	struct gpu_cu_uuid has;
	int n = 0;

	if (!may(m, device_count, &n))
		return false;
	for (int i = 0; i < n; i++) {
		if (!may(m, device_get, ret_device, i) || !may(m, device_uuid, &has, *ret_device))
			return false;
		if (memcmp(has.b, id, sizeof(has.b)) == 0)
			return true;
	}
	(void)snprintf(m->why, sizeof(m->why), "none of the %d GPUs that are seen is the pool's",
		       n);
	return false;
}

static struct lane *lane_new(struct replay_mover *m, const uint8_t id[16])
{
	struct lane *lane = &m->lanes[m->n_lanes];

	if (m->n_lanes == GPUS_MAX) {
		(void)snprintf(m->why, sizeof(m->why), "more than %u GPUs", GPUS_MAX);
		return NULL;
	}
	if (!device_find(m, id, &lane->device) ||
	    !may(m, context_retain, &lane->context, lane->device))
		return NULL;
	if (!may(m, context_set, lane->context) ||
	    !may(m, stream_new, &lane->stream, GPU_CU_STREAM_NON_BLOCKING, 0)) {
		(void)m->driver.context_release(lane->device);
		return NULL;
	}
	memcpy(lane->id, id, sizeof(lane->id));
	m->n_lanes++;
	return lane;
}

/* The lane of the namespace's pool, its context current. */
static struct lane *lane_of(struct replay_mover *m, const pfx_namespace *ns)
{
	uint8_t id[16];

	if (pfx_pool_device(ns, id) != PFX_DEVICE_CUDA) {
		(void)snprintf(m->why, sizeof(m->why), "the pool lies on no GPU");
		return NULL;
	}
	if (!m->loaded && gpu_driver_load(&m->driver, m->why, sizeof(m->why)) != GPU_DRIVER_OK)
		return NULL;
	m->loaded = true;
	for (uint32_t i = 0; i < m->n_lanes; i++)
		if (memcmp(m->lanes[i].id, id, sizeof(id)) == 0)
			return may(m, context_set, m->lanes[i].context) ? &m->lanes[i] : NULL;
	return lane_new(m, id);
}

static bool buffer_grow(struct replay_mover *m, size_t len)
{
	void *p;

	if (len <= m->len)
		return true;
	buffer_free(m);
	len = (len + BUFFER_BYTES - 1) / BUFFER_BYTES * BUFFER_BYTES;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		(void)snprintf(m->why, sizeof(m->why), "no memory for a buffer of %zu bytes", len);
		return false;
	}
	if (!may(m, host_register, p, len,
		 GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP)) {
		(void)munmap(p, len);
		return false;
	}
	m->buffer = p;
	m->len = len;
	return true;
}

void *replay_mover_buffer(struct replay_mover *m, const pfx_namespace *ns, size_t len)
{
	return lane_of(m, ns) && buffer_grow(m, len) ? m->buffer : NULL;
}

/* Return: 0, -ENOENT, -EIO. */
static int move(struct replay_mover *m, const pfx_namespace *ns, gpu_cu_ptr device, size_t len,
		bool in)
{
	struct lane *lane = lane_of(m, ns);
	gpu_cu_ptr host;

	if (!lane || !buffer_grow(m, len))
		return -EIO;
	if (!device) {
		(void)snprintf(m->why, sizeof(m->why), "a slot is outside the pool");
		return -ENOENT;
	}
	if (!may(m, host_pointer, &host, m->buffer, 0) ||
	    !may(m, copy, in ? device : host, in ? host : device, len, lane->stream) ||
	    !may(m, stream_sync, lane->stream))
		return -EIO;
	return 0;
}

void *replay_mover_get(struct replay_mover *m, const pfx_namespace *ns, uint32_t slot, size_t len)
{
	return move(m, ns, pfx_slot_address(ns, slot), len, false) == 0 ? m->buffer : NULL;
}

int replay_mover_put(struct replay_mover *m, const pfx_namespace *ns, uint32_t slot, size_t len)
{
	return move(m, ns, pfx_write_address(ns, slot), len, true);
}

int replay_mover_put_at(struct replay_mover *m, const pfx_namespace *ns, uint64_t address,
			size_t len)
{
	return move(m, ns, address, len, true);
}
