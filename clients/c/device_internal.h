/*
 * device_internal.h - what the files share that call the driver: device.c and launch.c.
 */
#pragma once

#include "clients/c/device.h"
#include "gpu/driver.h"

struct pfx_device {
	struct gpu_driver driver;
	gpu_cu_device device;
	struct proto_id id;
	/* The kernels, for all caches of the client; launch.c. */
	gpu_cu_module module;
	gpu_cu_function move;
	uint32_t n_movers; /* that use it; 0: it is not loaded */
};

/* A sentence about a call that went wrong.  Return: -ENOMEM, -EIO. */
int pfx_device_failed(const struct pfx_device *d, const char *call, gpu_cu_result r, char *why,
		      size_t why_len);

/* What was taken goes back even if the driver refuses once. */
#define GIVE_BACK(call) ((call) == GPU_CU_SUCCESS || (call) == GPU_CU_SUCCESS)
