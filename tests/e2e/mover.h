/*
 * mover.h - bytes into a slot and out of it, wherever the pool lies: in this machine's memory by
 * the CPU, in a GPU's by its driver, with a context, a stream and pinned memory of its own.
 *
 * A process that did so for a pool on a GPU has loaded the driver: it may not fork a worker then,
 * only start other programs.
 */
#pragma once

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_device.h"

#include <stdbool.h>
#include <stddef.h>

/* End the process when the driver refuses, or there is no such slot: the test has failed. */
void mover_read(const pfx_namespace *ns, uint32_t slot, void *ret_bytes, size_t len);
void mover_write(const pfx_namespace *ns, uint32_t slot, const void *bytes, size_t len);
/* The same where the pool's slot is mapped, which may not be for writing. */
void mover_stray_write(const pfx_namespace *ns, uint32_t slot, const void *bytes, size_t len);
