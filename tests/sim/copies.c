/*
 * copies.c - a block that lies in the pool and in host memory too has the same bytes in both.
 *
 * What a block must hold is a function of its path, so its copies differ only when one of them is
 * another block's, or none yet.  Nobody need read the lower one for that to be seen.  Once host
 * memory was damaged on purpose nothing can be said of it any more.
 */
#include "gpu/gpu_internal.h"
#include "radix/internal.h"
#include "tests/lib/world_flight.h"
#include "tests/sim/sim_internal.h"

static void check_block(struct sim *s, uint32_t group, const struct radix_index *ix, uint32_t entry)
{
	const struct radix_entry *e = &ix->table.v[entry];
	const struct arena *a = &s->w.tiers->arenas[group];
	const struct gpu_pool *pool = s->w.pools[group].pool;
	uint32_t slot = radix_entry_slot(e), host = radix_entry_host(e);
	uint8_t bytes[SIM_BYTES];

	if (e->state != RADIX_ENTRY_READY || slot == RADIX_NONE || host == RADIX_NONE)
		return;
	world_check(&s->w, a->slot_bytes <= sizeof(bytes));
	memcpy(bytes, (const char *)pool->shm.base + slot * pool->slot_stride, a->slot_bytes);
	if (a->coded)
		world_code(bytes, a->slot_bytes);
	if (memcmp(bytes, a->bytes + host * a->slot_bytes, a->slot_bytes) != 0)
		world_fail(&s->w,
			   "entry %u of pool %u: its copies in slot %u and in host slot %u differ",
			   entry, group, slot, host);
}

void sim_copies_check(struct sim *s)
{
	if (!s->w.tiers || s->host_hurt || s->down)
		return;
	for (uint32_t g = 0; g < WORLD_GROUPS; g++) {
		const struct world_pool *p = &s->w.pools[g];
		const struct radix_index *ix = p->pool && !p->lost ? world_index(&s->w, g) : NULL;

		for (uint32_t i = 0; ix && ix->host.n && i < ix->table.n_used; i++)
			check_block(s, g, ix, i);
	}
}
