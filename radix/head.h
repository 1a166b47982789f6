/*
 * head.h - where the block table lies: the layout of a store, and what its head says.
 *
 *     0      head, 4 KiB: who wrote it, for which numbers; the latest numbers
 *            slots, 8 bytes each: state and owner of every device slot
 *            entries, 128 bytes each: the block table
 *            keys, in pages of 64 KiB: radix/cells.h
 *
 * Without a store the same parts are pieces of private memory.
 *
 * What it guarantees.  A store says what it is by one word, which is written last: one that was
 * begun and not finished is empty.  Numbers that go up are kept twice, so that one flipped bit
 * cannot make them wrong.
 */
#pragma once

#include "radix/recover.h"

#define RADIX_STORE_VERSION_NOW 1u
#define RADIX_HEAD_BYTES        4096u

enum {
	RADIX_REDIS_NO = 0x1b6d92c4,
	RADIX_REDIS_YES = 0x64a36d3b
};

/* A number that only goes up, and its complement. */
struct radix_pair {
	uint64_t v, inverse;
};

struct radix_head {
	uint64_t magic; /* 0, RADIX_MAGIC_BEGUN, RADIX_MAGIC */
	uint32_t version;
	uint32_t entry_bytes;
	uint32_t n_slots, n_host, n_entries;
	uint32_t pad;
	uint64_t check; /* of what stands before it */
	/* these change */
	uint32_t redis; /* RADIX_REDIS_YES: there is a tier below */
	uint32_t pad2;
	struct radix_pair n_used; /* entries below were used at least once */
	struct radix_pair tick;   /* the latest that anything was used at */
	struct radix_pair reuse;  /* the latest generation of a slot */
};

#define RADIX_MAGIC       0x454c424154584650u /* "PFXTABLE" */
#define RADIX_MAGIC_BEGUN 0x4e55474542584650u /* "PFXBEGUN" */

struct radix_entry;

/* The parts of a block table, wherever they lie. */
struct radix_ground {
	const struct radix_alloc *alloc;
	struct radix_store *store; /* NULL: private memory */
	struct radix_head *head;
	uint64_t *slots; /* [n_slots] */
	struct radix_entry *entries;
	uint64_t pages_at;  /* offset of the keys in the store */
	uint32_t max_pages; /* that many 64 KiB of keys may be asked for */
	uint32_t n_slots, n_entries;
};

/*
 * Finds, or without a store makes, the parts; nothing is written to a store.  Return: 0; -ENOMEM;
 * -EINVAL: the store is too small.
 */
radix_nodiscard int radix_ground_init(struct radix_ground *g,
				      const struct radix_index_config *config);
void radix_ground_deinit(struct radix_ground *g);
/* Says in the head what this is; in a store, from then on it is an index. */
void radix_head_write(struct radix_head *h, const struct radix_index_config *config);
uint64_t radix_head_check(const struct radix_head *h);

/* A greater number. */
static inline void radix_pair_set(struct radix_pair *p, uint64_t v)
{
	radix_publish(&p->v, v);
	radix_publish(&p->inverse, ~v);
}

/* What it says: that of both which is not beyond `max`, the greater one; 0 when neither is. */
static inline uint64_t radix_pair_get(const struct radix_pair *p, uint64_t max)
{
	uint64_t a = p->v <= max ? p->v : 0, b = ~p->inverse <= max ? ~p->inverse : 0;

	return a > b ? a : b;
}
