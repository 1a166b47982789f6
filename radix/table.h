/*
 * table.h - the block table: one entry per member block.  The truth.
 *
 * The tree can be rebuilt from it, it cannot be rebuilt from the tree.  Entries hold no pointers:
 * numbers of entries, slots and handles of key cells, so that the memory can outlive the process.
 *
 * What identifies a block never changes while it is a member, and `check` is over it.  What changes
 * are words, each stored at once and each with a check of its own: where the block hangs and where
 * its copies lie,
 *
 *     number << 32 | 32 bits mixed of: kind of word, number, generation of what it names,
 *                                      this entry, its generation
 *
 * so an old word is as wrong as a damaged one, and a writer that is stopped leaves the old or the
 * new.
 *
 * Order of a commit: fields, key and generation; the check over them; then READY; only then the
 * slot's state and the answer.  Order of reuse: FREE first, then the generation, then the fields.
 * So an entry that says READY and whose check agrees is whole, whenever the writer was stopped.
 */
#pragma once

#include "radix/cells.h"
#include "radix/hash.h"
#include "radix/index.h"

/* Far from each other, so that no flipped bit makes one of another; 0 is what was never written. */
enum radix_entry_state {
	RADIX_ENTRY_FREE = 0,
	RADIX_ENTRY_READY = 0x5b9d43a6,
};

/* What mixes into a word which kind it is. */
#define RADIX_WORD_PARENT  0xd1342543de82ef95u
#define RADIX_WORD_DEVICE  0xaf251af3b0f025b5u
#define RADIX_WORD_HOST    0xb564ef22ec7aece5u
/* In place of a parent's generation, where there is none: a prompt or an island begins. */
#define RADIX_START_PROMPT 0x9216d5d98979fb1bu
#define RADIX_START_ISLAND 0xba7c9045f12c7f99u

struct radix_entry {
	uint64_t check; /* over everything that identifies: see table.c */
	uint64_t generation;
	uint64_t parent; /* word: entry, or RADIX_NONE */
	uint64_t device; /* word: slot, or RADIX_NONE; RADIX_HOLLOW, whose generation counts as 0 */
	uint64_t host;   /* word: host slot, or RADIX_NONE; its generation counts as 0 */
	uint64_t key;    /* handle of its cell */
	/* latest tick of a lease that ended here, or below with blocks that are gone, << 1; | 1: a
	   lease that had not stored it matched up to here, or below */
	uint64_t use;
	uint32_t state;
	uint32_t next_free;
	/* the second line */
	uint32_t root;
	uint32_t key_len;
	uint32_t ns;
	uint32_t tenant;
	uint32_t n_tokens;
	uint32_t redis; /* RADIX_REDIS_YES: a copy in Redis */
	uint64_t checksum_check;
	uint8_t checksum[16];
	uint8_t checksum_kind; /* and, for a moment, RADIX_CHECKSUM_BELOW */
	uint8_t moving;        /* bit t: a copy is on its way down to tier t */
	uint8_t turn;          /* counts the times that the block's bytes may have become others */
	uint8_t reserved;
	uint32_t exact;      /* radix_exact_mark() of `device`: that copy is as committed */
	uint64_t root_check; /* who its root is: radix_root.check */
};

/*
 * Set in the kind while a device copy of other bytes comes: beside one, the checksum is that of the
 * copies below.  Three bits, so that one that flips makes no such kind of another.
 */
#define RADIX_CHECKSUM_BELOW 0xe0u

_Static_assert(sizeof(struct radix_entry) == 128, "a table entry is two cache lines");

struct radix_table {
	struct radix_head *head;
	struct radix_entry *v;
	uint32_t n;
	uint32_t first_free;
	uint32_t n_used; /* entries below were used at least once */
	uint64_t n_ready;
	struct radix_cells cells;
	uint64_t key_bytes;
};

void radix_table_init(struct radix_table *t, const struct radix_ground *ground);
void radix_table_deinit(struct radix_table *t);

/* What a new entry says, beside its key. */
struct radix_entry_init {
	uint32_t root, ns, tenant;
	uint64_t root_check;
	uint32_t slot;            /* RADIX_NONE: in Redis only */
	uint64_t slot_generation; /* 0: no slot */
	uint32_t parent;          /* entry or RADIX_NONE */
	bool island;              /* without parent: an island begins, not a prompt */
	uint64_t tick;
};

/* Write and publish an entry.  RADIX_NONE when there is no memory for its key, or no entry. */
uint32_t radix_table_add(struct radix_table *t, const struct radix_entry_init *init,
			 const struct radix_block *block, uint32_t key_len);
/* `key_len` is its own. */
void radix_table_remove(struct radix_table *t, uint32_t entry, uint32_t key_len);
uint64_t radix_table_check(const struct radix_table *t, uint32_t entry);
/* The same, with its key somewhere else. */
uint64_t radix_table_check_at(const struct radix_entry *e, uint32_t entry, const void *key);

static inline const void *radix_table_key(const struct radix_table *t, uint32_t entry)
{
	return radix_cells_at(&t->cells, t->v[entry].key);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* What all words of an entry have in common: which one it is. */
static inline uint64_t radix_word_base(uint32_t entry, uint64_t generation)
{
	return radix_fold(generation ^ 0x94d049bb133111ebu, entry);
}

static inline uint64_t radix_word(uint64_t base, uint64_t kind, uint32_t number,
				  uint64_t its_generation)
{
	uint64_t h = radix_fold(base ^ kind, its_generation * 0xda942042e4dd58b5u + number);

	return (uint64_t)number << 32 | h >> 32;
}

/*
 * Stands beside a device word whose copy has the bytes that were committed.  Made of that very
 * word: a mark that was damaged, left over or never written is no mark, and such a copy counts as
 * changed by a codec.
 */
static inline uint32_t radix_exact_mark(uint64_t word)
{
	return (uint32_t)((word ^ 0xc2b2ae3d27d4eb4fu) * 0x9fb21c651e98df25u >> 32) | 1;
}

static inline uint32_t radix_word_number(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* Of a member: its words are whole.  The device's may be RADIX_HOLLOW. */
static inline uint32_t radix_entry_slot(const struct radix_entry *e)
{
	return radix_word_number(e->device);
}

static inline uint32_t radix_entry_host(const struct radix_entry *e)
{
	return radix_word_number(e->host);
}

static inline uint32_t radix_entry_parent(const struct radix_entry *e)
{
	return radix_word_number(e->parent);
}

static inline bool radix_checksum_below(const struct radix_entry *e)
{
	return (e->checksum_kind & RADIX_CHECKSUM_BELOW) == RADIX_CHECKSUM_BELOW;
}

static inline uint8_t radix_checksum_kind(const struct radix_entry *e)
{
	return (uint8_t)(radix_checksum_below(e) ? e->checksum_kind & ~RADIX_CHECKSUM_BELOW
						 : e->checksum_kind);
}

static inline bool radix_entry_redis(const struct radix_entry *e)
{
	return e->redis == RADIX_REDIS_YES;
}

/* The generation that a parent's word is made with; RADIX_NONE: an island or a prompt begins. */
static inline uint64_t radix_table_start(const struct radix_table *t, uint32_t parent, bool island)
{
	if (parent != RADIX_NONE)
		return t->v[parent].generation;
	return island ? RADIX_START_ISLAND : RADIX_START_PROMPT;
}

/* What the words must be. */
static inline uint64_t radix_table_parent(const struct radix_table *t, uint32_t entry,
					  uint32_t parent, bool island)
{
	return radix_word(radix_word_base(entry, t->v[entry].generation), RADIX_WORD_PARENT, parent,
			  radix_table_start(t, parent, island));
}
static inline uint64_t radix_table_device(const struct radix_table *t, uint32_t entry,
					  uint32_t slot, uint64_t slot_generation)
{
	return radix_word(radix_word_base(entry, t->v[entry].generation), RADIX_WORD_DEVICE, slot,
			  slot_generation);
}
static inline uint64_t radix_table_host(const struct radix_table *t, uint32_t entry,
					uint32_t host_slot)
{
	return radix_word(radix_word_base(entry, t->v[entry].generation), RADIX_WORD_HOST,
			  host_slot, 0);
}

/*
 * A copy that was made counts from here on; one that goes does not, before its slot is used.
 * exact: its bytes are those that were committed.
 */
void radix_table_device_set(struct radix_table *t, uint32_t entry, uint32_t slot,
			    uint64_t slot_generation, bool exact);
void radix_table_device_clear(struct radix_table *t, uint32_t entry);
/* A block whose only copy is there has none any more, and is hollow. */
void radix_table_hollow(struct radix_table *t, uint32_t entry);
void radix_table_host_set(struct radix_table *t, uint32_t entry, uint32_t host_slot);
void radix_table_host_clear(struct radix_table *t, uint32_t entry);
void radix_table_redis_set(struct radix_table *t, uint32_t entry, bool there);
/* It hangs elsewhere from here on. */
void radix_table_reparent(struct radix_table *t, uint32_t entry, uint32_t parent, bool island);
/* kind 0: unknown, and `checksum` is not looked at. */
void radix_table_checksum(struct radix_table *t, uint32_t entry, uint8_t kind,
			  const uint8_t *checksum);
/* One that is known is from here on that of the copies below. */
void radix_table_checksum_below(struct radix_table *t, uint32_t entry);
uint64_t radix_table_checksum_check(const struct radix_table *t, uint32_t entry);

/* ---- recency --------------------------------------------------------------------------------- */

static inline uint64_t radix_use_both(uint64_t a, uint64_t b)
{
	return ((a > b ? a : b) & ~UINT64_C(1)) | ((a | b) & 1);
}

/* A lease that ends with this block used it, and all before it, at `tick`. */
static inline void radix_table_touch(struct radix_table *t, uint32_t entry, uint64_t tick)
{
	t->v[entry].use = radix_use_both(t->v[entry].use, tick << 1);
}

/* What is known of a block that goes is known of the one before it. */
static inline void radix_table_pass_on(struct radix_table *t, uint32_t entry, uint32_t before)
{
	uint64_t use = radix_use_both(t->v[before].use, t->v[entry].use);

	if (use != t->v[before].use)
		t->v[before].use = use;
}
