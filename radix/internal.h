/*
 * internal.h - what stands behind radix/index.h, shared by its files and by the tests.
 */
#pragma once

#include "radix/bonus.h"
#include "radix/crash.h"
#include "radix/edge.h"
#include "radix/ghost.h"
#include "radix/hash.h"
#include "radix/index.h"
#include "radix/log.h"
#include "radix/low.h"
#include "radix/map.h"
#include "radix/nodes.h"
#include "radix/queue.h"
#include "radix/slots.h"
#include "radix/table.h"
#include "radix/windows.h"

struct radix_root {
	struct radix_root_config config;
	struct radix_geometry g;
	uint64_t chain; /* keyed by a number that is never used again */
	uint64_t check; /* of what it is for its caller, in any life */
	uint64_t n_blocks;
	uint32_t refs; /* the caller's and one per pin */
	uint32_t first_child;
	uint32_t n_child;
	uint32_t first_island;
	uint32_t n_islands;
	uint32_t next; /* free list, or list of roots to reap */
	bool live;
	bool reaping;
};

/* An island that damage made: its first entry, and that of the nearest member before the damage. */
struct radix_cut {
	uint32_t start, above;
};

struct radix_index {
	const struct radix_alloc *alloc;
	uint64_t secret[2];
	struct radix_ground ground; /* where slots and table lie */
	struct radix_slots slots;
	struct radix_table table;
	struct radix_slab slab; /* segments, directories, steps */
	struct radix_nodes nodes;
	struct radix_map children;   /* chain value -> edge */
	struct radix_queue queue;    /* leaves of the device tier */
	struct radix_queue lower[2]; /* of the host tier, of Redis */
	/* roots with a window, radix/windows.h; there is or was one when nodes.windows says so */
	struct radix_queue windows; /* edges with blocks outside of all of them */
	uint64_t n_hollow, hollowed_total, refilled_total;
	bool no_squeeze; /* see radix_win_squeeze() */
	/* lower tiers, radix/tiers.h; there are some when nodes.tiers says so */
	struct radix_slots host; /* n = 0: no host tier */
	struct radix_bonus bonus;
	struct radix_ghost ghost;
	uint64_t *fingerprint; /* [n_entries], of members; NULL: nothing is remembered */
	bool redis;
	bool coded;            /* exact marks of entries count */
	uint64_t redis_budget; /* members that may be in Redis only */
	uint64_t now;          /* the latest tick that was told */
	uint64_t tier[RADIX_N_TIERS];
	uint64_t moved[RADIX_N_TIERS][RADIX_N_TIERS];
	uint64_t removed_from[RADIX_N_TIERS][RADIX_REMOVE_N_REASONS];
	uint64_t found_total; /* members that Redis was found to hold */
	uint64_t attached_total;
	/* digest mode, made with the first such root */
	struct radix_map digests; /* (root, digest) -> entry */
	uint32_t *where_node;     /* [n_entries]; with lower tiers from the start, or see placing */
	uint32_t *where_idx;
	struct radix_root *roots;
	uint32_t n_roots; /* numbers in use below */
	uint32_t cap_roots;
	uint32_t live_roots;
	uint32_t free_root;
	uint32_t reap_root;
	uint32_t n_expected; /* members that tables have room for at first */
	uint64_t root_serial;
	uint64_t n_pins;
	uint64_t seg_bytes_keys; /* key bytes held in edges, for the statistics */
	uint64_t removed[RADIX_REMOVE_N_REASONS];
	uint64_t removed_total;
	uint64_t stored_total;
	uint64_t duplicate_total;
	struct radix_log *log; /* NULL: nobody listens */
	uint32_t log_tag;
	uint64_t restored_total; /* members that a restart found */
	bool placing;            /* where_* are true for every member: since a restart */
	struct radix_cut *cuts;  /* [n_cuts]; also since a restart */
	uint32_t n_cuts;
	bool no_merge; /* while a traversal relies on edges staying where they are */
};

/* The latest tick that was told, for a restart too: before anything says that it was used then. */
static inline void radix_now(struct radix_index *ix, uint64_t tick)
{
	if (tick <= ix->now)
		return;
	ix->now = tick;
	radix_pair_set(&ix->ground.head->tick, tick);
	radix_crash_point("head_tick");
}

/* Where a walk stands: at the end of an edge or at a root, looking for a child. */
struct radix_branch {
	uint32_t root;
	uint32_t node; /* or RADIX_NODE_NONE */
	uint64_t chain;
	uint32_t n_child;
};

static inline struct radix_node *radix_node(const struct radix_index *ix, uint32_t i)
{
	return radix_node_at(&ix->nodes, i);
}

static inline bool radix_has_tiers(const struct radix_index *ix)
{
	return radix_unlikely(ix->nodes.tiers);
}

static inline struct radix_low *radix_low(const struct radix_index *ix, uint32_t i)
{
	return radix_low_at(&ix->nodes, i);
}

static inline struct radix_win *radix_win(const struct radix_index *ix, uint32_t i)
{
	return radix_win_at(&ix->nodes, i);
}

/* The edge is one of a root with a window. */
static inline bool radix_windowed(const struct radix_index *ix, uint32_t node)
{
	return radix_unlikely(ix->nodes.windows) &&
	       ix->roots[radix_node(ix, node)->root].config.window;
}

static inline struct radix_queue *radix_queue_of(struct radix_index *ix, enum radix_tier t)
{
	return t == RADIX_TIER_DEVICE ? &ix->queue : &ix->lower[t - 1];
}

/* Slots of DEVICE or HOST. */
static inline struct radix_slots *radix_slots_of(struct radix_index *ix, enum radix_tier t)
{
	return t == RADIX_TIER_DEVICE ? &ix->slots : &ix->host;
}

static inline uint32_t radix_slot_in(const struct radix_entry *e, enum radix_tier t)
{
	return t == RADIX_TIER_DEVICE ? radix_entry_slot(e) : radix_entry_host(e);
}

/* Highest copy of a member; of a hollow one, where it would be. */
static inline enum radix_tier radix_tier_of(const struct radix_entry *e)
{
	if (radix_entry_slot(e) != RADIX_NONE)
		return RADIX_TIER_DEVICE;
	return radix_entry_host(e) != RADIX_NONE ? RADIX_TIER_HOST : RADIX_TIER_REDIS;
}

/* Whoever reads it gets bytes that a codec has changed: see radix_member_lossy(). */
static inline bool radix_lossy(const struct radix_index *ix, const struct radix_entry *e)
{
	return radix_unlikely(ix->coded) && radix_entry_slot(e) != RADIX_HOLLOW &&
	       (radix_entry_slot(e) == RADIX_NONE || e->exact != radix_exact_mark(e->device));
}

static inline bool radix_place_is_edge(const struct radix_place *p)
{
	return p->node < RADIX_NODE_ISLAND;
}

static inline uint64_t radix_local(const struct radix_index *ix, const struct radix_root *root,
				   const void *key)
{
	return radix_hash(key, root->g.key_len, ix->secret[0]);
}

/*
 * Chain value behind one more block.  A digest names its whole prefix already: there the address is
 * the digest's own, and hanging an island elsewhere changes no address.
 */
static inline uint64_t radix_chain_next(const struct radix_root *root, uint64_t chain,
					uint64_t local)
{
	return radix_fold(root->config.mode == RADIX_KEYS_DIGEST ? root->chain : chain, local);
}

/* Chain value at the end of an edge; computed once and remembered in the node. */
uint64_t radix_end_chain(const struct radix_index *ix, struct radix_node *n);
struct radix_branch radix_branch_at(const struct radix_index *ix, const struct radix_place *end);
/* The child that begins with `key`, by its address; RADIX_NONE. */
uint32_t radix_child_find(const struct radix_index *ix, const struct radix_branch *b,
			  uint64_t address, const void *key);

uint64_t radix_digest_hash(const struct radix_index *ix, uint32_t entry);
uint64_t radix_digest_hash_key(const struct radix_index *ix, uint32_t root, const void *digest);
/* Entry of a member digest; RADIX_NONE. */
uint32_t radix_digest_entry(const struct radix_index *ix, uint32_t root, const void *digest);

/* Cut an edge: a new edge gets blocks [0, at), `node` keeps the rest.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_split(struct radix_index *ix, uint32_t node, uint32_t at,
				uint32_t *ret_upper);
/* Join an edge with its only child where that is cheap; returns true when it did. */
bool radix_merge(struct radix_index *ix, uint32_t node);
/* Hang an edge below b (newest first); it must have its first block. */
void radix_child_hang(struct radix_index *ix, uint32_t node, uint32_t parent, uint32_t root);
/* The same, and the map of children and the queues know. */
void radix_child_link(struct radix_index *ix, uint32_t node, uint32_t parent, uint32_t root);
void radix_child_unlink(struct radix_index *ix, uint32_t node);
void radix_island_link(struct radix_index *ix, uint32_t node);
/* Remove the last n blocks of a leaf edge; the edge goes with its last one. */
void radix_tail_remove(struct radix_index *ix, uint32_t node, uint32_t n,
		       enum radix_remove_reason reason);
/* Deepest position in the edge that a pin protects. */
uint32_t radix_pinned_to(const struct radix_node *n);
/* Queue a leaf that is not queued. */
void radix_leaf_queue(struct radix_index *ix, uint32_t node);
/* lossy.c: may exact bytes take the place of block i's device copy, and they do. */
bool radix_lossy_may_go(const struct radix_index *ix, uint32_t node, uint32_t i);
void radix_lossy_replace(struct radix_index *ix, uint32_t node, uint32_t i, uint32_t slot);
/* Entry of block i of an edge; `low` is NULL without lower tiers. */
static inline uint32_t radix_entry_in(const struct radix_index *ix, const struct radix_node *n,
				      const struct radix_low *low, uint32_t i)
{
	uint32_t ref = *radix_edge_ref(n, ix->roots[n->root].g, i);

	if (radix_unlikely(ref & RADIX_REF_HOLLOW))
		return ref & ~RADIX_REF_HOLLOW;
	return radix_unlikely(low) && i >= low->end[RADIX_TIER_DEVICE] ? ref : ix->slots.entry[ref];
}
static inline uint32_t radix_entry_at(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	return radix_entry_in(ix, radix_node(ix, node),
			      radix_has_tiers(ix) ? radix_low(ix, node) : NULL, i);
}
/* Device slot of block i of an edge; RADIX_HOLLOW; RADIX_NONE: its highest copy is lower. */
static inline uint32_t radix_device_slot(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t ref;

	if (radix_has_tiers(ix) && i >= radix_low(ix, node)->end[RADIX_TIER_DEVICE])
		return RADIX_NONE;
	ref = *radix_edge_ref(n, ix->roots[n->root].g, i);
	return radix_unlikely(ref & RADIX_REF_HOLLOW) ? RADIX_HOLLOW : ref;
}
/* All but what the head says.  old: slots are as radix_slots_init_old().  0, -ENOMEM, -EINVAL. */
radix_nodiscard int radix_index_make(struct radix_index **ret_ix,
				     const struct radix_index_config *config, bool old);
/* The entry of a member by number; NULL: stale. */
struct radix_entry *radix_member(const struct radix_index *ix, struct radix_member block);
/* What is remembered of block `entry` with this key, behind `parent` (RADIX_NONE: none). */
uint64_t radix_fingerprint(const struct radix_index *ix, uint32_t root, uint32_t parent,
			   const void *key);
/* A block becomes a member behind the pin: see commit.c.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_append(struct radix_index *ix, struct radix_pin *pin,
				 struct radix_entry_init *init, const struct radix_block *block,
				 uint32_t *ret_entry);
/*
 * Removes the blocks of `node` from `idx` on and all that hangs below them; pins there move up to
 * the last block that stays.  The edge goes with its first block.  Returns the members that went.
 */
uint32_t radix_branch_remove(struct radix_index *ix, uint32_t node, uint32_t idx,
			     enum radix_remove_reason reason);
/* Without lower tiers: takes up to n coldest unpinned leaf blocks. */
uint32_t radix_leaves_evict(struct radix_index *ix, uint32_t want, enum radix_remove_reason reason);
/* With them: takes up to n coldest members, highest tier first, with what hangs below them. */
uint32_t radix_tiers_evict(struct radix_index *ix, uint32_t n, enum radix_remove_reason reason);

/* Records in ix->log, which must be there. */
void radix_log_stored(const struct radix_index *ix, uint32_t entry, uint32_t position);
/* Its highest copy was in `from`. */
void radix_log_moved(const struct radix_index *ix, uint32_t entry, enum radix_tier from);
void radix_log_removed(const struct radix_index *ix, uint32_t entry,
		       enum radix_remove_reason reason);

/* After an edge's blocks [from, n_blocks) moved: digest mode's places follow. */
void radix_where_update(struct radix_index *ix, uint32_t node, uint32_t from);
/* Memory for it, if there is none yet.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_where_reserve(struct radix_index *ix);
/* What a recovery found to be cut. */
void radix_cuts_free(struct radix_index *ix);
/* A root of that number, which is not in use; there is room in ix->roots. */
bool radix_root_config_ok(const struct radix_root_config *config);
void radix_root_init(struct radix_index *ix, uint32_t i, const struct radix_root_config *config);
/* What only digest mode needs.  Return: 0, -ENOMEM. */
radix_nodiscard int radix_digests_reserve(struct radix_index *ix);
void radix_root_settle(struct radix_index *ix, uint32_t root);
