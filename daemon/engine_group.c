/*
 * engine_group.c - pool groups: their sizes, the budget, their memory.
 *
 * What it guarantees.  Namespaces of one block size, and as many ranks, share a group.  The pools
 * never exceed the configured total, but by what an earlier life left.  A group that is made here
 * and whose block table outlives the engine is written down before anybody is told of it.
 *
 * What it relies on.  POOL_READY or POOL_FAILED answers each POOL_CREATE and POOL_ADOPT; until then
 * OPENs of the group wait (engine_open.c).
 */
#include "daemon/engine_internal.h"

#define HOST_ENTRY_BYTES 256u /* of the index for a block that it knows, as README.md has it */
#define GHOSTS           4u   /* blocks that left and are remembered, for each slot */
#define GHOST_BYTES      20u  /* of each of them, at most */

/* ---- groups and budget ----------------------------------------------------------------------- */

struct prefixd_group *prefixd_group_find(const struct prefixd_engine *e, uint64_t block_bytes,
					 uint32_t n_ranks, const struct prefixd_cold *cold)
{
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i] && e->groups[i]->slot_bytes == block_bytes &&
		    e->groups[i]->n_ranks == n_ranks &&
		    memcmp(&e->groups[i]->cold, cold, sizeof(*cold)) == 0)
			return e->groups[i];
	return NULL;
}

uint64_t prefixd_group_bytes(uint32_t n_slots, uint64_t slot_bytes, uint32_t n_ranks)
{
	return n_slots * ((slot_bytes + 63) & ~63ull) * n_ranks;
}

void prefixd_group_free(struct prefixd_engine *e, struct prefixd_group *g)
{
	if (e->groups[g->id] == g) {
		e->groups[g->id] = NULL;
		e->budget_used -= g->budget;
		prefixd_namespaces_forget(e, g);
	}
	radix_list_remove(&g->stirred);
	prefixd_loads_deinit(e, g);
	radix_index_free(g->index);
	radix_give(e->alloc, g->marks, g->n_slots);
	prefixd_names_forget(e, g);
	radix_give(e->alloc, g, sizeof(*g));
}

struct prefixd_group *prefixd_group_make(struct prefixd_engine *e, uint32_t id, uint32_t n_slots,
					 uint32_t n_host, uint64_t slot_bytes, uint32_t n_ranks)
{
	struct prefixd_group *g = prefixd_take0(e->alloc, sizeof(*g));

	if (!g)
		return NULL;
	g->marks = prefixd_take0(e->alloc, n_slots);
	if (!g->marks) {
		radix_give(e->alloc, g, sizeof(*g));
		return NULL;
	}
	g->state = PREFIXD_GROUP_CREATING;
	g->id = id;
	g->n_slots = n_slots;
	g->n_ranks = n_ranks;
	g->n_host = n_host;
	g->slot_bytes = slot_bytes;
	g->busy_session = RADIX_NONE;
	radix_list_init(&g->waiting);
	radix_list_init(&g->line);
	radix_list_init(&g->behind);
	radix_list_init(&g->stirred);
	radix_list_init(&g->loads);
	g->line_due_ns = g->again_ns = UINT64_MAX;
	g->lost_again_ns = g->tell_again_ns = UINT64_MAX;
	return g;
}

void prefixd_group_add(struct prefixd_engine *e, struct prefixd_group *g, uint64_t budget)
{
	g->budget = budget;
	e->groups[g->id] = g;
	if (g->id >= e->n_groups)
		e->n_groups = g->id + 1;
	e->budget_used += budget;
}

/* How many slots the budget allows; false: refused. */
static bool group_slots(struct prefixd_engine *e, struct prefixd_request *rq, uint64_t block_bytes,
			uint32_t n_ranks, uint32_t *ret_slots, uint64_t *ret_budget)
{
	uint64_t stride = prefixd_group_bytes(1, block_bytes, n_ranks);
	/* Pools of an earlier life may take more than there is now. */
	uint64_t left = e->config.pool_bytes
				? e->config.pool_bytes -
					  radix_min_u64(e->config.pool_bytes, e->budget_used)
				: UINT64_MAX;
	uint64_t n = e->config.pool_blocks;

	if (n == 0)
		n = radix_min_u64(left / stride, 1u << 30);
	if (n == 0 || n > left / stride) {
		prefixd_refuse(
			e, rq, PROTO_STATUS_NO_BUDGET, "block_bytes",
			"a pool of %llu blocks of %llu bytes for %u rank%s needs %llu bytes, but "
			"%llu of %llu bytes are left by other pools; raise pool-bytes or set "
			"pool-blocks",
			(unsigned long long)(n ? n : 1), (unsigned long long)block_bytes, n_ranks,
			n_ranks == 1 ? "" : "s", (unsigned long long)((n ? n : 1) * stride),
			(unsigned long long)left, (unsigned long long)e->config.pool_bytes);
		return false;
	}
	*ret_slots = (uint32_t)n;
	*ret_budget = n * stride;
	return true;
}

static uint64_t host_slot_of(const struct prefixd_group *g)
{
	return prefixd_cold_stride(&g->cold, g->slot_bytes, g->n_ranks);
}

/* What a host slot costs of host_bytes: its memory, and what the index takes for it. */
static uint64_t host_cost(const struct prefixd_engine *e, uint64_t host_slot)
{
	uint64_t ghosts = e->config.write == PREFIXD_WRITE_SECOND_USE ? GHOSTS * GHOST_BYTES : 0;

	return host_slot + HOST_ENTRY_BYTES + ghosts;
}

/* How many host slots the limits allow, 0 too; false: refused. */
static bool group_host(struct prefixd_engine *e, struct prefixd_request *rq, uint64_t host_slot,
		       uint32_t *ret_host)
{
	uint64_t cost = host_cost(e, host_slot), left = e->config.host_bytes;
	uint64_t n = e->config.host_blocks;

	if (e->config.host_bytes == 0) {
		*ret_host = e->config.host_blocks;
		return true;
	}
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i])
			left -= radix_min_u64(left,
					      e->groups[i]->n_host *
						      host_cost(e, host_slot_of(e->groups[i])));
	if (n == 0)
		n = radix_min_u64(left / cost, 1u << 30);
	if (n > left / cost) {
		prefixd_refuse(e, rq, PROTO_STATUS_NO_BUDGET, "block_bytes",
			       "a host tier of %llu blocks of %llu bytes needs %llu bytes, but "
			       "%llu of %llu bytes are left; raise host-bytes or lower host-blocks",
			       (unsigned long long)n, (unsigned long long)host_slot,
			       (unsigned long long)(n * cost), (unsigned long long)left,
			       (unsigned long long)e->config.host_bytes);
		return false;
	}
	*ret_host = (uint32_t)n;
	return true;
}

/*
 * A life's boot id is random; with a count of the pools made in it, it names each of them.  The id
 * is not the boot id itself, so that nobody takes the one for the other.
 */
void prefixd_group_name(struct prefixd_engine *e, struct prefixd_group *g)
{
	uint32_t mixed;

	g->pool = e->config.boot;
	memcpy(&mixed, g->pool.b, sizeof(mixed));
	mixed ^= 0x6c6f6f70u + ++e->n_pools_made;
	memcpy(g->pool.b, &mixed, sizeof(mixed));
}

struct prefixd_group *prefixd_group_new(struct prefixd_engine *e, struct prefixd_request *rq,
					uint64_t block_bytes, uint32_t n_ranks,
					const struct prefixd_cold *cold)
{
	struct prefixd_group *g;
	uint32_t n_slots, n_host, id = 0;
	uint64_t budget;

	while (id < e->n_groups && e->groups[id])
		id++;
	if (id >= e->groups_cap || id >= e->config.limits.max_groups) {
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, "block_bytes",
			       "%u pools of other block sizes exist, which is the limit; raise it "
			       "or use one of their sizes",
			       e->n_groups);
		return NULL;
	}
	if (!group_slots(e, rq, block_bytes, n_ranks, &n_slots, &budget) ||
	    !group_host(e, rq, prefixd_cold_stride(cold, block_bytes, n_ranks), &n_host))
		return NULL;
	g = prefixd_note_group_room(e, id, cold) < 0
		    ? NULL
		    : prefixd_group_make(e, id, n_slots, n_host, block_bytes, n_ranks);
	if (!g) {
		prefixd_refuse_memory(e, rq);
		return NULL;
	}
	g->cold = *cold;
	prefixd_group_name(e, g);
	g->budget = budget;
	return g;
}

void prefixd_group_create(struct prefixd_engine *e, struct prefixd_group *g)
{
	struct prefixd_action *a = prefixd_act(e, PREFIXD_ACTION_POOL_CREATE, RADIX_NONE);
	struct radix_index_config config = prefixd_group_config(e, g);

	a->group = g->id;
	a->u.pool.n_ranks = g->n_ranks;
	a->u.pool.n_slots = g->n_slots;
	a->u.pool.n_host = g->n_host;
	a->u.pool.slot_bytes = g->slot_bytes;
	a->u.pool.cold = g->cold;
	if (e->config.ledger)
		a->u.pool.table_len = radix_store_len(&config);
}

/* ---- its memory is there, or is not ---- */

void prefixd_group_refuse(struct prefixd_engine *e, struct prefixd_group *g, const char *why)
{
	prefixd_open_answer(e, g, &g->waiting, PROTO_STATUS_NO_MEMORY, why);
	prefixd_group_free(e, g);
}

void prefixd_group_open(struct prefixd_engine *e, struct prefixd_group *g)
{
	g->state = PREFIXD_GROUP_READY;
	prefixd_events_attach(e, g);
	prefixd_open_answer(e, g, &g->waiting, PROTO_STATUS_OK, NULL);
}

void prefixd_pool_failed(struct prefixd_engine *e, const struct prefixd_event *event)
{
	uint32_t group = event->u.pool.group;
	const char *why = event->u.pool.why;
	struct prefixd_group *g = group < e->n_groups ? e->groups[group] : NULL;

	if (!why)
		why = "the pool's memory cannot be had";
	if (g && g->asked)
		prefixd_lost_failed(e, g, why);
	if (!g || g->state != PREFIXD_GROUP_CREATING || g->index)
		return;
	if (g->adopting) {
		prefixd_adopt_failed(e, g, why);
		return;
	}
	prefixd_open_answer(e, g, &g->waiting,
			    event->u.pool.lost ? PROTO_STATUS_DEVICE_LOST : PROTO_STATUS_NO_BUDGET,
			    why);
	prefixd_group_free(e, g);
}

/* As many as the index has numbers for, if there could be more. */
static uint32_t entries_of(const struct prefixd_engine *e, const struct prefixd_group *g)
{
	uint64_t n = (uint64_t)g->n_slots + g->n_host;

	if (g->windowed)
		n += (uint64_t)PREFIXD_HOLLOW_PER_SLOT * g->n_slots;
	if (e->config.redis)
		n += e->config.index_blocks;
	return (uint32_t)radix_min_u64(n, INT32_MAX);
}

struct radix_index_config prefixd_group_config(const struct prefixd_engine *e,
					       const struct prefixd_group *g)
{
	struct radix_index_config config = {
		.alloc = e->alloc,
		.n_slots = g->n_slots,
		.n_host = g->n_host,
		.redis = e->config.redis,
		.coded = g->cold.codec != GPU_CODEC_NONE,
		.n_entries = g->n_entries,
		.secret = { e->config.secret[0], e->config.secret[1] },
	};

	/* That of an earlier life keeps its size, whatever the configuration says now. */
	if (!config.n_entries)
		config.n_entries = entries_of(e, g);
	/* With second-use, what was dropped unused is remembered for a while: used again after all,
	 * it is worth a copy. */
	if (e->config.write == PREFIXD_WRITE_SECOND_USE && prefixd_tiered(e, g))
		config.n_ghosts = (uint32_t)radix_min_u64(
			GHOSTS * ((uint64_t)g->n_slots + g->n_host), 1u << 30);
	return config;
}

void prefixd_group_memory(struct prefixd_group *g, const struct prefixd_event *event)
{
	g->slot_stride = event->u.pool.slot_stride;
	g->pool_len = event->u.pool.pool_len;
	g->n_fds = event->u.pool.n_fds;
	g->device = event->u.pool.device;
	if (event->u.pool.device_ids)
		memcpy(g->device_ids, event->u.pool.device_ids,
		       g->n_ranks * sizeof(*g->device_ids));
	g->slab_len = event->u.pool.slab_len ? event->u.pool.slab_len : g->pool_len;
}

void prefixd_pool_ready(struct prefixd_engine *e, const struct prefixd_event *event)
{
	uint32_t group = event->u.pool.group;
	struct prefixd_group *g = group < e->n_groups ? e->groups[group] : NULL;
	struct radix_index_config config;

	if (g && g->asked)
		prefixd_lost_ready(e, g, event);
	if (!g || g->state != PREFIXD_GROUP_CREATING || g->index)
		return;
	if (g->adopting) {
		prefixd_adopt_ready(e, g, event);
		return;
	}
	config = prefixd_group_config(e, g);
	config.generations = event->u.pool.generations;
	config.store = e->config.ledger ? event->u.pool.table : NULL;
	if (radix_index_new(&g->index, &config) < 0) {
		prefixd_act(e, PREFIXD_ACTION_POOL_DESTROY, RADIX_NONE)->group = group;
		prefixd_group_refuse(e, g, "the daemon has no memory for an index over this pool");
		return;
	}
	g->n_entries = config.n_entries;
	prefixd_group_memory(g, event);
	if (config.store)
		prefixd_note_group(e, g);
	prefixd_group_open(e, g);
}
