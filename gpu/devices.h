/*
 * devices.h - the devices that a name stands for: one, or all GPUs of a list.
 *
 * What it guarantees.  All are of one kind and no GPU is among them twice.  Memory that was pinned
 * here may be reached by jobs of each of them.
 *
 * What it relies on.  One thread at a time uses them.
 */
#pragma once

#include "gpu/gpu.h"

#define GPU_DEVICES_MAX 16u
#define GPU_ID_TEXT     48 /* bytes of an id as text, with the terminating zero */

struct gpu_devices {
	struct gpu *v[GPU_DEVICES_MAX];
	uint32_t n;
};

/*
 * As gpu_open(), but "cuda", and "auto" where it finds a GPU, stands for all GPUs of this process,
 * the first GPU_DEVICES_MAX of them, and "cuda:UUID,UUID,..." for those, in that order.  All of
 * them or none: where one cannot be used "cuda" fails, and "auto" is host memory.  Nothing is left
 * open on failure.  Return: what gpu_open() returns; -EINVAL: a GPU is named twice, or too
 * many are.  `why` gets a sentence either way.
 */
radix_nodiscard int gpu_devices_open(const char *name, const struct gpu_sim_config *sim,
				     struct gpu_devices *ret_devices, char *why, size_t why_len);
void gpu_devices_close(struct gpu_devices *d); /* idempotent, accepts a zeroed one */

/* "GPU-8f2c...", as the driver's tools print it. */
const char *gpu_id_print(const uint8_t id[16], char ret_text[GPU_ID_TEXT]);

/* As gpu_ops.host_pin and .host_unpin, for all of them.  On failure nothing is pinned. */
radix_nodiscard int gpu_devices_pin(const struct gpu_devices *d, void *p, uint64_t len);
void gpu_devices_unpin(const struct gpu_devices *d, void *p);
