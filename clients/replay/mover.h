/*
 * mover.h - bytes into the slots of a GPU's pool and out of them, for programs without kernels.
 *
 * What it guarantees.  A call comes back when the bytes are there.  Nothing is loaded before a pool
 * that lies on a GPU is asked for; one mover serves the pools of all GPUs of its process.
 *
 * What it relies on.  One thread at a time, and no fork after the first call that worked.  The
 * namespace is mapped; what the driver was told to reach stays until the mover is freed.
 */
#pragma once

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_device.h"

#include <stddef.h>

struct replay_mover;

/* Return: NULL: no memory. */
struct replay_mover *replay_mover_new(void);
void replay_mover_free(struct replay_mover *m); /* accepts NULL; the driver stays loaded */
/* What the last call that failed failed with. */
const char *replay_mover_why(const struct replay_mover *m);

/*
 * A buffer of `len` bytes that the GPU of the namespace's pool reaches: one for all, until the next
 * call.  NULL: see why.
 */
void *replay_mover_buffer(struct replay_mover *m, const pfx_namespace *ns, size_t len);
/* The same, with `len` bytes from the beginning of a slot on, which may be several slots. */
void *replay_mover_get(struct replay_mover *m, const pfx_namespace *ns, uint32_t slot, size_t len);
/*
 * The buffer's first `len` bytes to where a slot that was reserved begins.  Return: 0; -ENOENT: no
 * such slot; -EIO.
 */
int replay_mover_put(struct replay_mover *m, const pfx_namespace *ns, uint32_t slot, size_t len);
/* The same to any address of the namespace's GPU, which may refuse it. */
int replay_mover_put_at(struct replay_mover *m, const pfx_namespace *ns, uint64_t address,
			size_t len);
