/*
 * prefixd_device.h - pools that lie in the memory of a GPU.
 *
 * Kernels and copies run behind the calls that start them: who commits or releases before they are
 * through lets the stream say when, prefixd_words.h.
 *
 * Comes after prefixd.h.  pfx_open() maps such a pool through the driver that the process finds
 * as libcuda.so.1, into the address space of all its contexts on that GPU; it makes no context.  A
 * process that forks after that cannot use the pool in the child.
 */
#ifndef PREFIXD_DEVICE_H
#define PREFIXD_DEVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	PFX_DEVICE_MEMORY = 0, /* this machine's memory: pfx_slot() */
	PFX_DEVICE_CUDA = 1    /* a GPU's: pfx_slot_address() */
};

/* Where the namespace's pool lies; ret_uuid may be NULL.  Return: PFX_DEVICE_*, or a status. */
PFX_API int pfx_pool_device(const pfx_namespace *ns, uint8_t ret_uuid[16]);
/* Address of a slot on the device, as kernels and copies take it; 0 when not mapped, out of range,
 * or not on a device.  Good until pfx_close, but of a device that was lost (PFX_DEVICE_LOST) only
 * while a lease of the client is held: with the last one the memory is unmapped, since the daemon
 * may find none before.  So release a lease when no kernel or copy reads or writes there any more,
 * and hold one while any does. */
PFX_API uint64_t pfx_slot_address(const pfx_namespace *ns, uint32_t slot);
/* The same of pfx_write_slot(), which is good as long and no longer. */
PFX_API uint64_t pfx_write_address(const pfx_namespace *ns, uint32_t slot);

#ifdef __cplusplus
}
#endif
#endif
