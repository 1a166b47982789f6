/*
 * pools.h - the memory behind the engine's pool groups: device slots, their generations, the host
 * tier below them, and buffers for what no CPU can load from.
 *
 * What it guarantees.  A pool is mapped, touched and sealed before the engine hears of it; on
 * failure nothing is left behind and a sentence says why.  Descriptors stay ours: whoever passes
 * one on duplicates it.  The bytes of all host tiers never exceed what was set, whatever the engine
 * asks for; what an earlier life left counts, and stays.  With a keeper all four are files, which
 * he has before the engine hears of them; without one the index and the host tier are this process'
 * private memory.
 *
 * Who is on which thread.  A pool is made and freed by whoever uses the device, which is the copy
 * thread (carrier.h) while it runs; the table of pools is the loop's.  A pool does not move and its
 * description does not change once it is in the table, so that both may read it; but for its slots,
 * which the loop renews after a loss, while no message names the pool (prefixd_pools_renew()).
 */
#pragma once

#include "daemon/arena.h"
#include "daemon/engine.h"
#include "daemon/region.h"
#include "gpu/devices.h"

struct prefixd_keep;

/*
 * What a group's memory lies in, as the keeper names it: "gN.pool" and so on.  The device slots may
 * lie in several slabs: "gN.pool", "gN.pool1", ... "gN.pool15".  Those of further ranks have the
 * rank before that: "gN.r1.pool", "gN.r1.pool1", ...
 */
#define PREFIXD_MEMORIES(X)                                          \
	X(POOL, "pool")               /* device slots */             \
	X(GENERATIONS, "generations") /* of these slots */           \
	X(TABLE, "table")             /* block table of the index */ \
	X(HOST, "host")               /* host slots, if there are any */

enum prefixd_memory_part {
#define X(sym, text) PREFIXD_MEMORY_##sym,
	PREFIXD_MEMORIES(X)
#undef X
	PREFIXD_MEMORY_SLAB1, /* of rank 0, and so on, rank by rank */
	PREFIXD_N_MEMORIES = PREFIXD_MEMORY_SLAB1 + PREFIXD_RANKS_MAX * GPU_SLABS_MAX - 1
};

/* The device slots of one rank. */
struct prefixd_rank {
	struct gpu *gpu;
	struct gpu_pool *pool;
	struct gpu_pool_info info;
};

/*
 * A block has a slot of one number in the pool of each rank.  In the host tier and in the buffers
 * its pieces lie one behind the other, without a gap; in the host tier of a coded pool (cold.h)
 * coded, with a seal behind them.
 */
struct prefixd_pool {
	uint32_t group;
	uint32_t life; /* of the devices: how often they had been opened when the slots were made */
	uint32_t n_ranks;
	struct prefixd_rank ranks[PREFIXD_RANKS_MAX];
	struct gpu_pool_info info;   /* what holds of all: rank 0's, and of lengths the least */
	uint64_t block_bytes;        /* of all pieces of a block */
	uint64_t block_stride;       /* between buffers */
	struct gpu_shm generations;  /* uint64_t[n_slots], read-only for workers */
	struct prefixd_cold cold;    /* how the pieces lie in host slots */
	struct gpu_coded coded;      /* the same, as a device takes it; without a codec all 0 */
	struct prefixd_arena host;   /* n_host blocks, host_stride apart */
	uint64_t host_stride;        /* block_stride; of a coded pool less, with the seal */
	struct gpu_shm host_shm;     /* what `host` is a view of, if it is kept */
	struct prefixd_region table; /* for the index; none if it is not kept */
	uint32_t n_host;
	/* n_stage buffers likewise; and where no CPU reaches the slots, one to look at them in */
	struct prefixd_arena stage;
	uint32_t n_stage;
	/* Likewise where blocks are copied from desks, behind those: to sum what arrived. */
	uint32_t n_sum;
	uint64_t sum_used;              /* the copy thread's: a bit for each */
	bool host_pinned, stage_pinned; /* for the device's copies */
	uint64_t stage_used;            /* the loop's: a bit for each buffer */
	/* Of a coded pool, behind those: where blocks are coded whose slots no CPU reaches. */
	uint32_t n_scratch;
	uint64_t scratch_used; /* the device's thread's: a bit for each */
	bool locked;
	bool fresh; /* an earlier life's, but for its slots */
};

/* What POOL_CREATE asks for, and what the settings say to it. */
struct prefixd_pool_plan {
	uint32_t group;
	uint32_t n_ranks; /* 0: 1 */
	uint32_t n_slots, n_host, n_stage, n_sum;
	uint64_t slot_bytes; /* of one rank */
	struct prefixd_cold cold;
	bool huge, lock;
	/* of the host tier: what is left of its limit; UINT64_MAX: none */
	uint64_t host_left;
	struct prefixd_keep *keep; /* NULL: nothing is kept */
	uint64_t table_len;        /* that its block table may ask for */
	bool adopt;                /* an earlier life's; else made anew */
	uint32_t life;             /* of the devices */
	bool fresh;                /* adopted, and it left no slots: they are made anew */
	/* then: descriptors of it, which are duplicated; -1: none */
	int fds[PREFIXD_N_MEMORIES];
	/* On which GPUs its slots lie, or are to lie, by rank; else rank r on number r. */
	bool on_devices;
	struct proto_id device_ids[PREFIXD_RANKS_MAX];
	void (*step)(void *ctx); /* now and then while it is made; may be NULL */
	void *ctx;
};

/*
 * Memory that one session writes in, beside the pool of a group of one rank and on its device:
 * engine_desk.h.
 */
struct prefixd_desk_memory {
	uint32_t id, group;
	struct gpu *gpu;
	struct gpu_pool *pool;
	struct gpu_pool_info info; /* of one slab */
	uint32_t life;             /* of the devices, as of a pool */
};

struct prefixd_pools {
	struct prefixd_desk_memory **desks; /* by id; NULL: none */
	uint32_t n_desks;
	struct gpu_devices devices; /* none: they are lost, and who uses them opens them again */
	const struct gpu_ops *ops;  /* of the first of them; all are of one kind */
	char device[640];           /* what they are opened by again */
	uint32_t life;              /* how often they were opened */
	bool lost;                  /* until they are opened again: nobody touches slots */
	struct prefixd_pool **v;    /* by group; NULL: none */
	uint32_t n;
	uint64_t host_bytes; /* of all host tiers */
};

#define PREFIXD_POOL_FDS_MAX (GPU_SLABS_MAX + 1) /* a rank's slabs, then the generations */

/* ---- on the device's thread ------------------------------------------------------------------ */

/*
 * Makes it, and gives it to the keeper; rank r lies on device r modulo their number, or on the one
 * that the plan names.  Return: 0; -EXDEV: what an earlier life left lies on a GPU that is none of
 * the devices; another negative errno; with a sentence in `why`.  A keeper that fails is no error:
 * *ret_kept says so, and the keeper has forgotten the group.
 */
radix_nodiscard int prefixd_pool_new(struct prefixd_pool **ret_pool,
				     const struct gpu_devices *devices,
				     const struct prefixd_pool_plan *plan, int *ret_kept, char *why,
				     size_t why_len);
/*
 * New slots for one whose devices were lost, while nobody uses it; what the devices copy to and
 * from besides is pinned for the new ones.  All but the slots stays.  Return: as above; the loop
 * gives the pool what it got by prefixd_pools_renew().
 */
struct prefixd_pool_slots {
	struct prefixd_rank ranks[PREFIXD_RANKS_MAX];
	struct gpu_pool_info info; /* what holds of all */
	uint32_t life;
};
radix_nodiscard int prefixd_pool_again(struct prefixd_pool *pool, const struct gpu_devices *devices,
				       const struct prefixd_pool_plan *plan,
				       struct prefixd_pool_slots *ret_slots, int *ret_kept,
				       char *why, size_t why_len);
/*
 * Gives the keeper the slots of a pool that was adopted without any (plan.fresh), once nothing is
 * written of what lay in the old ones: a life that ends before leaves the next one none, instead of
 * new ones that it takes for the old.  Any thread.  Return: as ret_kept above.
 */
radix_nodiscard int prefixd_pool_slots_keep(const struct prefixd_pool *pool,
					    struct prefixd_keep *keep);
/* Where the descriptor of a slab of a rank's device slots stands. */
enum prefixd_memory_part prefixd_memory_slab(uint32_t rank, uint32_t i);
/* "g7.pool"; PREFIXD_N_MEMORIES: "g7", which is all of them. */
const char *prefixd_memory_name(uint32_t group, enum prefixd_memory_part part, char *out,
				size_t out_len);
/*
 * No copy of the pool is under way.  devices NULL: they are closed, and what they had of it went
 * with them.  Accepts NULL.
 */
void prefixd_pool_free(const struct gpu_devices *devices, struct prefixd_pool *pool);
/* Return: 0; -ENOMEM and what gpu.h says, with a sentence in `why`. */
radix_nodiscard int prefixd_desk_memory_new(struct prefixd_desk_memory **ret_desk, struct gpu *gpu,
					    uint32_t n_places, uint64_t slot_bytes, char *why,
					    size_t why_len);
/* No copy out of it is under way; not `open`: its device is closed.  Accepts NULL. */
void prefixd_desk_memory_free(struct prefixd_desk_memory *desk, bool open);

/* ---- on the loop's thread -------------------------------------------------------------------- */

/* Return: 0; negative errno with a sentence in `why`. */
radix_nodiscard int prefixd_pools_init(struct prefixd_pools *p, const char *device, char *why,
				       size_t why_len);
/*
 * Closes the device, which ends all copies, then frees all.  Nobody else uses it any more.
 * Idempotent, accepts a zeroed one.
 */
void prefixd_pools_deinit(struct prefixd_pools *p);
/* A place for `group`.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_pools_room(struct prefixd_pools *p, uint32_t group);
/* Into its place, which prefixd_pools_room() has made. */
void prefixd_pools_put(struct prefixd_pools *p, struct prefixd_pool *pool);
/* The slots of the pool in that place were made again. */
void prefixd_pools_renew(struct prefixd_pools *p, uint32_t group,
			 const struct prefixd_pool_slots *slots);
/* Its slots are there: they were made in this life of the devices, which are not lost. */
bool prefixd_pools_live(const struct prefixd_pools *p, const struct prefixd_pool *pool);
/* Out of it; the caller has it freed.  NULL: there is none. */
struct prefixd_pool *prefixd_pools_take(struct prefixd_pools *p, uint32_t group);
/* What OPEN's reply to a rank carries.  Return: how many, 0 for a group without memory. */
uint32_t prefixd_pools_fds(const struct prefixd_pools *p, uint32_t group, uint32_t rank,
			   bool read_only, int ret_fds[PREFIXD_POOL_FDS_MAX]);
/* A place for desk `id`.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_pools_desk_room(struct prefixd_pools *p, uint32_t id);
/* Of a desk that is there. */
int prefixd_pools_desk_fd(const struct prefixd_pools *p, uint32_t id);
/* NULL: there is none. */
struct prefixd_desk_memory *prefixd_pools_desk(const struct prefixd_pools *p, uint32_t id);
const struct prefixd_pool *prefixd_pools_get(const struct prefixd_pools *p, uint32_t group);
/* Of the device slots of all ranks. */
uint64_t prefixd_pool_bytes(const struct prefixd_pool *pool);
/*
 * Marks the memory of slots that became free, on the simulated device.  It touches the slots alone
 * and not the device, and nobody copies to or from a free slot: any thread may.
 */
void prefixd_pools_poison(struct prefixd_pools *p, uint32_t group, struct radix_run run);

#define PREFIXD_SCRATCHES 8u
/* Bytes from one host slot to the next, and of a cold block without its seal. */
uint64_t prefixd_pool_host_stride(const struct prefixd_pool_plan *plan);
uint64_t prefixd_pool_cold_bytes(const struct prefixd_pool *pool);
/* A rank's slot as the CPU reaches it; NULL: it does not. */
void *prefixd_pool_slot(const struct prefixd_pool *pool, uint32_t rank, uint32_t slot);
/* A host slot or a buffer: the pieces of a block, info.slot_bytes each. */
void *prefixd_pool_host(const struct prefixd_pool *pool, uint32_t slot);
void *prefixd_pool_stage(const struct prefixd_pool *pool, uint32_t i); /* n_stage: to look in */
void *prefixd_pool_scratch(const struct prefixd_pool *pool, uint32_t i);

/* "8.0 GiB" */
const char *prefixd_bytes_print(uint64_t bytes, char *out, size_t out_len);
