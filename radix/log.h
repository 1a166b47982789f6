/*
 * log.h - what an index did, for whoever keeps a copy of its members.
 *
 * A ring of records in the caller's memory, which any number of indexes write and nobody waits for:
 * a new record overwrites the oldest.  `n` counts all records ever written, so a reader that
 * remembers the last one it has seen knows how many it missed.  An index without a log pays one
 * comparison per block.
 */
#pragma once

#include "radix/index.h"

#define RADIX_ID_MAX RADIX_DIGEST_MAX

enum radix_change_kind {
	RADIX_CHANGE_STORED = 1, /* a block became a member */
	RADIX_CHANGE_REMOVED = 2,
	RADIX_CHANGE_MOVED = 3,   /* its highest copy is in another tier now */
	RADIX_CHANGE_CLEARED = 4, /* a caller's own: no index writes it */
};

/*
 * A block is named by its digest where it has one; else by {u32 tag of the index, u32 entry, u64
 * generation of the entry}, which no other block of these indexes ever has.
 */
struct radix_change {
	uint8_t kind;   /* enum radix_change_kind */
	uint8_t reason; /* enum radix_remove_reason */
	uint8_t id_len;
	uint8_t parent_len; /* 0: the block begins a prompt or an island */
	uint8_t tier;       /* enum radix_tier of the highest copy; REMOVED: of the last */
	uint8_t from_tier;  /* MOVED: it was there before */
	uint32_t ns, tenant;
	uint32_t position; /* blocks before it in its prompt; RADIX_NONE: removed, or a digest's */
	uint32_t n_tokens;
	uint32_t slot;
	uint64_t revision; /* CLEARED */
	uint8_t root[16];  /* radix_root_config.name */
	uint8_t id[RADIX_ID_MAX];
	uint8_t parent[RADIX_ID_MAX]; /* STORED only */
};

struct radix_log {
	struct radix_change *v; /* [cap], the caller's */
	uint32_t cap;           /* a power of two */
	uint64_t n;             /* record k of 1..n is at v[(k - 1) % cap], while k + cap > n */
};

/* The place of the next record, zeroed; it counts as written. */
static inline struct radix_change *radix_log_add(struct radix_log *log)
{
	struct radix_change *c = &log->v[log->n++ & (log->cap - 1)];

	memset(c, 0, sizeof(*c));
	return c;
}

static inline const struct radix_change *radix_log_at(const struct radix_log *log, uint64_t k)
{
	return &log->v[(k - 1) & (log->cap - 1)];
}

/* From now on the index writes to `log`, which outlives it or the next call; NULL: to none. */
void radix_index_log(struct radix_index *ix, struct radix_log *log, uint32_t tag);
/* Every member of the root as STORED, a parent before its children.  O(members). */
void radix_log_members(const struct radix_index *ix, uint32_t root, struct radix_log *log,
		       uint32_t tag);
