/*
 * table.h - the block table: one entry per member block.  The truth.
 *
 * The tree can be rebuilt from it, it cannot be rebuilt from the tree.  Entries hold no pointers:
 * numbers of entries, slots and handles of key cells, so that the memory can outlive the process.
 *
 * Order of a commit: fields, key and generation; the check over them; then READY by a release
 * store; only then the answer.  Order of reuse: FREE first, then the generation, then the fields.
 * So an entry that says READY and whose check agrees is whole, whenever the writer was stopped.
 */
#pragma once

#include "radix/index.h"
#include "radix/slab.h"

enum radix_entry_state {
	RADIX_ENTRY_FREE = 0,
	RADIX_ENTRY_READY = 1
};

struct radix_entry {
	uint64_t check; /* over everything that identifies: see table.c */
	uint64_t generation;
	uint64_t
		parent; /* parent entry << 32 | low bits of its generation; NONE << 32 at a start */
	uint64_t key;   /* handle of its cell */
	uint64_t last_use;
	uint32_t root;
	uint32_t ns;
	uint32_t tenant;
	uint32_t key_len;
	uint32_t n_tokens;
	uint32_t slot;      /* device copy, or RADIX_NONE */
	uint32_t host_slot; /* host copy, or RADIX_NONE */
	uint32_t next_free;
	uint8_t state;
	uint8_t checksum_kind;
	uint8_t redis;  /* 1: a copy in Redis */
	uint8_t moving; /* bit t: a copy is on its way down to tier t */
	uint8_t turn;   /* counts the times that the block's bytes may have become others */
	uint8_t pad[3];
	uint8_t checksum[16];
	uint8_t reserved[16];
};

_Static_assert(sizeof(struct radix_entry) <= 128, "a table entry is at most 128 bytes");

struct radix_table {
	const struct radix_alloc *alloc;
	struct radix_entry *v;
	uint32_t n;
	uint32_t first_free;
	uint32_t n_used; /* entries below were used at least once */
	uint64_t n_ready;
	struct radix_slab cells;
	uint64_t key_bytes;
};

radix_nodiscard int radix_table_init(struct radix_table *t, const struct radix_alloc *alloc,
				     uint32_t n);
void radix_table_deinit(struct radix_table *t);

/* What a new entry says, beside its key. */
struct radix_entry_init {
	uint32_t root, ns, tenant;
	uint32_t slot;   /* RADIX_NONE: in Redis only */
	uint32_t parent; /* entry or RADIX_NONE */
	uint64_t tick;
};

/* Write and publish an entry.  RADIX_NONE when there is no memory for its key, or no entry. */
uint32_t radix_table_add(struct radix_table *t, const struct radix_entry_init *init,
			 const struct radix_block *block, uint32_t key_len);
void radix_table_remove(struct radix_table *t, uint32_t entry);
/* A new parent is one 64-bit store, then the check. */
void radix_table_reparent(struct radix_table *t, uint32_t entry, uint32_t parent);
uint64_t radix_table_check(const struct radix_table *t, uint32_t entry);

static inline const void *radix_table_key(const struct radix_table *t, uint32_t entry)
{
	return radix_slab_at(&t->cells, t->v[entry].key);
}
