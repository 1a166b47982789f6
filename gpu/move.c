/*
 * move.c - blocks from one layout to another by the processor; see codec.h.
 *
 * A file of its own, so that a worker's library takes this alone of what the kernels do.
 */
#include "gpu/codec.h"

static uint64_t piece_at(const struct gpu_layout *layout, uint32_t s, uint32_t id)
{
	return ((const uint64_t *)(uintptr_t)layout->base)[s] + id * layout->stride;
}

void gpu_move(const struct gpu_layout *from, const uint32_t *from_ids, const struct gpu_layout *to,
	      const uint32_t *to_ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t s = 0; s < from->n_pieces; s++)
			memcpy((void *)(uintptr_t)piece_at(to, s, to_ids[i]),
			       (const void *)(uintptr_t)piece_at(from, s, from_ids[i]),
			       from->piece_bytes);
}
