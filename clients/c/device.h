/*
 * device.h - mapping a pool that lies in a GPU's memory.
 *
 * What it guarantees.  A mapping is whole or not there.  Nothing is loaded before a daemon says
 * that its pool lies on a GPU.  No context is made and none is made current: the calls used here
 * work on the device, so that an engine's own contexts and streams are left as they are.
 *
 * What it relies on.  The engine that uses the addresses has a context on the same device.
 */
#pragma once

#include "proto/messages.h"

struct pfx_device; /* the driver, and one GPU */

/* Return: 0; -ENODEV with a sentence in `why`: no driver, or it has no GPU of that id; -ENOMEM. */
int pfx_device_open(const struct proto_id *id, struct pfx_device **ret_device, char *why,
		    size_t why_len);
void pfx_device_close(struct pfx_device *d); /* accepts NULL; no mapping of it is left */
bool pfx_device_is(const struct pfx_device *d, const struct proto_id *id);
/*
 * The slabs side by side; of each but the last slab_len bytes, `len` in all.  The descriptors stay
 * the caller's.  Return: 0; -ENOMEM; -EIO with a sentence in `why`.
 */
int pfx_device_map(struct pfx_device *d, const int *fds, uint32_t n, uint64_t len,
		   uint64_t slab_len, bool writable, uint64_t *ret_addr, char *why, size_t why_len);
void pfx_device_unmap(struct pfx_device *d, uint64_t addr, uint64_t len, uint64_t slab_len);
/* Memory of this process that streams may write, in all contexts of it; one must be current.
 * Return: 0; -EIO, -ENOMEM with a sentence in `why`. */
int pfx_device_register(struct pfx_device *d, void *p, size_t len, uint64_t *ret_addr, char *why,
			size_t why_len);
void pfx_device_unregister(struct pfx_device *d, void *p);
/* Puts a write of 64 bits into a stream, behind what is in it.  Return: as the one above it. */
int pfx_device_write(struct pfx_device *d, void *stream, uint64_t addr, uint64_t value, char *why,
		     size_t why_len);
