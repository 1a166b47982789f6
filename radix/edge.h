/*
 * edge.h - one edge of the tree: its blocks, its recency, its pins.
 *
 * An edge (with the node at its lower end: the two are one object here) is a run of blocks that no
 * branching cuts. Its blocks lie in segments of up to 4 KiB of keys:
 *
 *     node (128 B)          segment                     segment
 *     +-----------+         +--------------------+      +--------------------+
 *     | segs   *--+-------> | refs[64] keys[64]  |      | refs[64] keys[64]  |
 *     | n_blocks  |    `--> |  slot     bytes    |      |                    |
 *     | end_chain |         +--------------------+      +--------------------+
 *     | steps ... |         the first one of a short edge holds 1, 2, 4, ... blocks only
 *     +-----------+
 *
 * refs[i] is the device slot of block i, and its block table entry is found through the slot; of a
 * block without device copy it is the entry (radix/low.h says where those begin). Keys are the raw
 * bytes, one behind another, so that comparing a prompt is one streaming memcmp per segment. An
 * edge that was cut off another one's lower end begins `off` places inside its first segment:
 * cutting moves whole segments and copies at most one.
 *
 * Recency is a list of steps {end, tick}: the blocks from the step before up to `end` were last
 * used at `tick`. Mostly one step; a request that ended inside the edge leaves a second one.
 */
#pragma once

#include "radix/slab.h"

#include "radix/index.h"

#define RADIX_NODE_NONE   RADIX_NONE
#define RADIX_NODE_ISLAND (RADIX_NONE - 1) /* as place: where islands begin */

struct radix_seg {
	uint64_t handle;
	uint32_t cap;
	uint32_t
		run; /* refs[0..run) go up by one: a match that stays within reads only the first */
	uint32_t refs[]; /* cap of them, padded to 16 bytes; then cap keys */
};

struct radix_step {
	uint64_t tick;
	uint32_t end;
	uint32_t pad;
};

enum {
	RADIX_NODE_F_ISLAND = 1,
	RADIX_NODE_F_LIVE = 2
};

struct radix_node {
	/* the first cache line: what a match reads */
	struct radix_seg **segs; /* `inline_segs`, or an array of its own */
	uint64_t address;   /* chain value after the first block: where the child table has it */
	uint64_t end_chain; /* chain value after the last block, once a child needed it */
	struct radix_seg *inline_segs[2];
	uint32_t n_blocks;
	uint32_t n_child;
	uint32_t parent; /* node; RADIX_NODE_NONE below a root and for an island's first edge */
	uint32_t root;
	uint32_t n_segs;
	uint16_t off; /* block 0 is at this place of the first segment */
	uint8_t end_known;
	uint8_t flags;
	/* the second: what a change reads */
	struct radix_list pins;
	uint32_t first_child; /* newest first */
	uint32_t next_sib;
	uint32_t prev_sib;
	uint32_t heap_pos;      /* in the leaf queue; RADIX_NONE: not queued */
	struct radix_step step; /* the only one, while n_steps is 1 */
	uint64_t steps;         /* handle of an array, while n_steps > 1 */
	uint32_t n_steps;
	uint16_t cap_steps; /* places in `steps`, 0 while inline */
	uint8_t cap_segs;   /* of `segs` when not inline, as a power of two */
	uint8_t mark;       /* visited, while a traversal runs */
};

_Static_assert(sizeof(struct radix_node) == 128, "an edge is two cache lines");

/* Key geometry of a root, as the edge needs it. */
struct radix_geometry {
	uint32_t key_len;
	uint32_t seg_shift; /* a full segment holds 1 << seg_shift blocks */
};

struct radix_geometry radix_geometry_of(uint32_t key_len);

static inline uint8_t *radix_seg_keys(const struct radix_seg *seg)
{
	return (uint8_t *)(uintptr_t)seg + ((sizeof(*seg) + seg->cap * 4u + 15u) & ~15u);
}

static inline const uint8_t *radix_edge_key(const struct radix_node *n, struct radix_geometry g,
					    uint32_t i)
{
	i += n->off;
	return radix_seg_keys(n->segs[i >> g.seg_shift]) +
	       (size_t)(i & ((1u << g.seg_shift) - 1)) * g.key_len;
}

static inline uint32_t *radix_edge_ref(const struct radix_node *n, struct radix_geometry g,
				       uint32_t i)
{
	i += n->off;
	return &n->segs[i >> g.seg_shift]->refs[i & ((1u << g.seg_shift) - 1)];
}

/* An empty edge object. */
void radix_edge_init(struct radix_node *n, uint32_t root);
/* Give back everything the edge owns (not its blocks' slots). */
void radix_edge_clear(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g);

/* Another number for block i. */
void radix_edge_set_ref(const struct radix_node *n, struct radix_geometry g, uint32_t i,
			uint32_t ref);
/*
 * An empty edge that will get `want` blocks: its first segment, as large as it will be.  Return: 0,
 * -ENOMEM (radix_edge_clear() is due).
 */
radix_nodiscard int radix_edge_start(struct radix_slab *slab, struct radix_node *n,
				     struct radix_geometry g, uint32_t want);
/* Append one block used at `tick`.  Return: 0, -ENOMEM (unchanged). */
radix_nodiscard int radix_edge_append(struct radix_slab *slab, struct radix_node *n,
				      struct radix_geometry g, const void *key, uint32_t ref,
				      uint64_t tick);
/* Forget the blocks from `to` on; steps and segments follow.  Never fails. */
void radix_edge_trim(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g,
		     uint32_t to);
/*
 * Move the first `at` blocks of `n`, with their steps, to the empty edge `upper`.  Costs one
 * segment at most, however long the edge is.  Return: 0, -ENOMEM (both unchanged).  Pins are the
 * caller's business, here and below.
 */
radix_nodiscard int radix_edge_cut(struct radix_slab *slab, struct radix_node *n, uint32_t at,
				   struct radix_node *upper, struct radix_geometry g);
/* Append all blocks of `from`, with their steps, to `to`.  Return: 0, -ENOMEM (both unchanged). */
radix_nodiscard int radix_edge_join(struct radix_slab *slab, struct radix_node *to,
				    struct radix_node *from, struct radix_geometry g);

/* ---- recency */

/* Blocks [0, to) were used at `tick`. */
void radix_edge_touch(struct radix_slab *slab, struct radix_node *n, uint32_t to, uint64_t tick);
/* Tick of the last block, and how many blocks at the end share that step. */
uint64_t radix_edge_tail_tick(const struct radix_slab *slab, const struct radix_node *n,
			      uint32_t *ret_run);
/* Tick of block i. */
uint64_t radix_edge_tick_at(const struct radix_slab *slab, const struct radix_node *n, uint32_t i);
