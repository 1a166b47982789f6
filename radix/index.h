/*
 * index.h - one pool group's index: slots, block table and prefix tree as one object.
 *
 * What it is.  A pool group has N device slots of one block each.  The index says which block lies
 * in which slot, which blocks form which prefixes, who holds them, and which goes next.  Three
 * parts stand behind this header, each with its own:
 *
 *     slots.h   state, generation and owner of every slot; hands out runs
 *     table.h   the block table: one entry per member block.  The truth.
 *     tree.h    path-compressed edges over block keys, derived from the table, made for matching
 *
 * What it guarantees.  A match is exact: block keys are compared byte for byte, hashes only find
 * addresses.  A failed call (-ENOMEM) leaves the index as it was.  Nothing recurses.
 *
 * What it relies on.  One thread.  Time comes in as `tick`, memory through `alloc`.
 *
 * Errors: 0; -ENOMEM, -EINVAL (fatal or caller's mistake); positive codes below, per function.
 */
#pragma once

#include "radix/base.h"
#include "radix/list.h"
#include "radix/store.h"

struct radix_index; /* opaque */

/* Positive results; each function names the ones it gives. */
enum {
	_RADIX_E_OK,
	RADIX_E_STATE,    /* the slot is not in the state that the call needs */
	RADIX_E_NOTFOUND, /* no such root, block or digest */
	RADIX_E_CONFLICT, /* a digest under a second parent */
	RADIX_E_CIRCLE,   /* a digest under what hangs below itself */
	RADIX_E_REFUSED,  /* residency rules forbid it now */
};

#define RADIX_NONE       UINT32_MAX
#define RADIX_KEY_MAX    (64u << 10) /* bytes of one block key */
#define RADIX_DIGEST_MAX 64u         /* bytes of one key in digest mode */

/* What a namespace's keys are. */
enum radix_key_mode {
	RADIX_KEYS_TOKENS, /* raw token ids (+ an optional extra digest), exact, partial tails */
	RADIX_KEYS_DIGEST, /* the engine's own chained digests: islands, found by digest */
};

/* The life of a slot. */
#define RADIX_SLOT_STATES(X)    \
	X(FREE, "free")         \
	X(RESERVED, "reserved") \
	X(OWN, "own")           \
	X(READY, "ready")       \
	X(LEAVING, "leaving")   \
	X(QUARANTINED, "quarantined")

enum radix_slot_state {
#define X(sym, text) RADIX_SLOT_##sym,
	RADIX_SLOT_STATES(X)
#undef X
	RADIX_SLOT_N_STATES
};

const char *radix_slot_state_to_string(enum radix_slot_state s);

struct radix_index_config {
	const struct radix_alloc *alloc; /* kept by pointer; outlives the index */
	uint32_t n_slots;                /* device slots, >= 1 */
	uint32_t n_host;                 /* host slots; 0: no such tier */
	bool redis, coded;  /* Redis is below them; what lies below the device is coded */
	uint32_t n_entries; /* n_slots + n_host to 2^31; the rest: in Redis only, or hollow */
	/* members that left last, remembered: a second use (RADIX_ROOM_SECOND_USE); with tiers */
	uint32_t n_ghosts;
	uint64_t secret[2];    /* per boot; keys every table address */
	uint64_t *generations; /* [n_slots], the caller's (workers map it read-only); NULL: own */
	/* where the block table lies, for radix/recover.h; empty, kept by pointer.  NULL: own */
	struct radix_store *store;
};

radix_nodiscard int radix_index_new(struct radix_index **ret_ix,
				    const struct radix_index_config *config);
struct radix_index *radix_index_free(struct radix_index *ix);

/* ---- roots ------------------------------------------------------------------------------------
 *
 * A root is where the prefixes of one (namespace, tenant, salt) begin.  The caller keeps the map
 * from those fields to root ids and holds a reference while it uses one; a root disappears when it
 * has neither references nor blocks.  Root ids are reused only after that.
 */
struct radix_root_config {
	enum radix_key_mode mode;
	uint32_t key_len;      /* bytes per block key, 1..RADIX_KEY_MAX, fixed for the root */
	uint32_t block_tokens; /* tokens per full block */
	uint32_t token_bytes;  /* leading bytes of a key that are token ids (mode TOKENS), else 0 */
	uint32_t ns;           /* namespace number, tag only: for flush and dump */
	uint32_t tenant;       /* tag only */
	uint64_t user;         /* the caller's own; given back by radix_root_user() */
	uint8_t name[16];      /* the caller's own: who it is, in radix/log.h and after a restart */
	uint32_t window; /* blocks; 0: none, each block needs all before it.  radix/windows.h */
};

radix_nodiscard int radix_root_new(struct radix_index *ix, const struct radix_root_config *config,
				   uint32_t *ret_root);
void radix_root_ref(struct radix_index *ix, uint32_t root);
/* Returns true when that was the last trace of the root: the caller drops its map entry. */
bool radix_root_unref(struct radix_index *ix, uint32_t root);
uint64_t radix_root_user(const struct radix_index *ix, uint32_t root);
uint64_t radix_root_n_blocks(const struct radix_index *ix, uint32_t root);
/* Roots that lost their last block without a reference, one per call; RADIX_NONE when none. */
uint32_t radix_root_reap(struct radix_index *ix, uint64_t *ret_user);

/* ---- places and pins ------------------------------------------------------------------------- */

/*
 * A place on a path: after `idx` blocks of edge `node` (0 < idx <= blocks of the edge), or a root
 * itself (idx 0).  Valid until the next call that changes the tree; a pin makes it last.
 */
struct radix_place {
	uint32_t root;
	uint32_t node; /* RADIX_NONE: at the root */
	uint32_t idx;
	uint32_t depth; /* blocks from the root (or the island's start) to here */
};

/*
 * A pin: the blocks from the root down to `at` cannot be evicted, nor their highest copies. O(1) to
 * take, move and give back; with lower tiers O(edges from the root). The struct is the caller's
 * memory (embedded in a lease) and must be unpinned before it goes. The index keeps `at` true
 * across splits, merges and grafts.
 */
struct radix_pin {
	struct radix_list link; /* on the edge's list of pins */
	struct radix_place at;
	uint32_t island_start; /* depth at which the pinned path begins; 0 for rooted paths */
	bool window; /* set before it is taken: only slots of the window before `at` are kept */
};

void radix_pin_take(struct radix_index *ix, struct radix_pin *pin, const struct radix_place *at);
void radix_pin_move(struct radix_index *ix, struct radix_pin *pin, const struct radix_place *to);
void radix_pin_drop(struct radix_index *ix, struct radix_pin *pin); /* idempotent */

/*
 * How many blocks lie on at least one of the paths from their roots to at[0..n).  The places of one
 * edge must stand together, the deepest first.  O(distinct edges).
 */
uint64_t radix_paths_blocks(const struct radix_index *ix, const struct radix_place *at, uint32_t n);

/*
 * Write recency: every block from the root down to the pin (or place) was used at `tick`.  Done
 * once, when a lease ends.  Ticks never go backwards.  Exact per block: an edge
 * that was used only in part keeps the older time for the rest.
 */
void radix_touch(struct radix_index *ix, const struct radix_place *at, uint64_t tick);

/* ---- matching -------------------------------------------------------------------------------- */

/* Collects slots as runs; grows through the caller's buffer only, never allocates. */
struct radix_runs {
	struct radix_run *v;
	uint32_t n;
	uint32_t cap; /* when a run does not fit, matching stops there and `full` is set */
	bool full;
};

struct radix_match {
	struct radix_place end; /* deepest member found, whatever its tier */
	/* deepest with a device copy, `from` if none of those matched has one: where EXTEND and
	   COMMIT go on */
	struct radix_place device_end;
	uint32_t n_blocks; /* keys matched by this call */
	uint32_t n_device; /* of those, the leading ones with a device copy */
	uint32_t n_host;   /* of the rest, the leading ones with a host copy; others are in Redis */
	bool diverged;     /* the tree goes on below `end`, but with other keys */
};

/*
 * Longest prefix of keys[0..n_keys) (n_keys x key_len bytes, need not be aligned) that is a member
 * below `from`.  Device slots of the matched blocks are appended to `runs` (may be NULL: lengths
 * only).  Pure: nothing is written, not even recency.
 */
void radix_match(const struct radix_index *ix, const struct radix_place *from, const void *keys,
		 uint32_t n_keys, struct radix_runs *runs, struct radix_match *ret_match);

/* A place at the root itself. */
struct radix_place radix_place_root(uint32_t root);

/*
 * Digest mode: where the block named `digest` lies (rooted or in an island).  The place returned is
 * *before* it, so that radix_match from there matches it first; `ret_rooted` says whether its
 * distance from the start of the prompt is known.  Return: 0, RADIX_E_NOTFOUND.
 */
radix_nodiscard int radix_find_digest(const struct radix_index *ix, uint32_t root,
				      const void *digest, struct radix_place *ret_before,
				      bool *ret_rooted);

/*
 * Token mode: the child block below `at` with a device copy that shares the longest run of leading
 * tokens with `tail` (n_tokens x 4 bytes, less than a block).  Bounded: looks at the 16 newest
 * children, or at the next block of the edge.  *ret_tokens 0: none.
 */
void radix_partial(const struct radix_index *ix, const struct radix_place *at, const void *tail,
		   uint32_t n_tokens, struct radix_place *ret_donor, uint32_t *ret_slot,
		   uint32_t *ret_tokens);

/*
 * For EXPLAIN: the stored block below `at` that agrees longest with the `len` bytes at `key`, found
 * as above; ret_stored is valid until the next change.  Return: 0; RADIX_E_NOTFOUND: none.
 */
radix_nodiscard int radix_closest(const struct radix_index *ix, const struct radix_place *at,
				  const void *key, uint32_t len, const void **ret_stored,
				  uint32_t *ret_same);

/* ---- slots: reserve, commit, give back ------------------------------------------------------- */

/* Why a block left; each removal is counted under one. */
#define RADIX_REMOVE_REASONS(X) \
	X(CAPACITY, "capacity") \
	X(FLUSH, "flush")       \
	X(EVICT, "evict")       \
	X(CORRUPT, "corrupt")   \
	X(QUOTA, "quota")       \
	X(LOST, "tier_lost")    \
	X(DROPPED, "dropped")   \
	X(DEVICE, "device_lost")

enum radix_remove_reason {
#define X(sym, text) RADIX_REMOVE_##sym,
	RADIX_REMOVE_REASONS(X)
#undef X
	RADIX_REMOVE_N_REASONS
};
const char *radix_remove_reason_to_string(enum radix_remove_reason r);

/*
 * Take up to `want` slots for `owner` (an opaque session number): free ones first, then the coldest
 * unpinned leaf blocks, one by one from the end of an edge. Slots come as runs appended to `runs`,
 * in the order in which they are to be filled. With lower tiers only clean victims are taken: what
 * comes before the first dirty one. *ret_granted <= want; 0 is legal (everything is held). Each
 * granted slot is RESERVED, its generation is new.
 */
void radix_reserve(struct radix_index *ix, uint32_t owner, uint32_t want, struct radix_runs *runs,
		   uint32_t *ret_granted);

struct radix_block {
	const void *key;   /* key_len bytes */
	uint32_t slot;     /* RESERVED, owned by `owner` */
	uint32_t n_tokens; /* tokens in the block; < block_tokens only for a last block */
	bool or_refuse;    /* REFUSED instead of a duplicate of a copy that a codec changed */
	uint8_t checksum_kind, checksum[16]; /* 0 none, 1 XXH3-128, 2 kernels' */
};

enum radix_commit_result {
	RADIX_COMMIT_STORED,    /* the slot is READY and a member */
	RADIX_COMMIT_DUPLICATE, /* another was faster: *ret_slot is canonical, ours is OWN */
	RADIX_COMMIT_ATTACHED,  /* a member without an exact device copy got ours */
};

/*
 * Append one block after pin->at and move the pin onto it. The table entry is written and checked,
 * then the slot is READY. In digest mode a pin at radix_place_island() starts an island, or is a
 * duplicate of the block wherever it lies; and a rooted commit of the digest that an island begins
 * with hangs the island there (a digest names its whole prefix, and the writer says what that is)
 * and is a duplicate of its first block. Return: 0; RADIX_E_STATE when the slot is not RESERVED by
 * `owner`; RADIX_E_CONFLICT when the digest is a member under another parent; RADIX_E_CIRCLE when
 * the pin stands below it; RADIX_E_REFUSED when the block before has no device copy, so that this
 * one can have none, or see or_refuse; -ENOMEM (unchanged).
 *
 * ATTACHED: a member that lay only lower, or whose device copy a codec changed and nobody pins or
 * moves, got ours as its device copy. Lower ones stay unless both checksums are known and differ.
 */
radix_nodiscard int radix_commit(struct radix_index *ix, struct radix_pin *pin, uint32_t owner,
				 const struct radix_block *block, uint64_t tick, uint32_t *ret_slot,
				 enum radix_commit_result *ret_result);

/* A place from which a commit starts a new island of this (digest mode) root. */
struct radix_place radix_place_island(uint32_t root);

/*
 * Hang the island that begins with `digest` below the block named `parent` (both members of the
 * digest-mode root).  Return: 0, RADIX_E_NOTFOUND, RADIX_E_CONFLICT (already has another parent),
 * RADIX_E_CIRCLE (the parent hangs below the digest), RADIX_E_REFUSED (the
 * parent's highest copy is in a lower tier than the digest's: not yet), -ENOMEM.
 */
radix_nodiscard int radix_graft(struct radix_index *ix, uint32_t root, const void *parent,
				const void *digest);

/*
 * Give back a slot that `owner` holds RESERVED or OWN.  quarantine: it must not be reused before
 * radix_quarantine_end() (the owner may still write it).  Return: 0, RADIX_E_STATE.
 */
radix_nodiscard int radix_slot_discard(struct radix_index *ix, uint32_t owner, uint32_t slot,
				       bool quarantine);
radix_nodiscard int radix_quarantine_end(struct radix_index *ix, uint32_t slot);

/* Pool-wide reuse counter G; generation and state of one slot. */
uint64_t radix_reuse_counter(const struct radix_index *ix);
uint64_t radix_slot_generation(const struct radix_index *ix, uint32_t slot);
enum radix_slot_state radix_slot_state(const struct radix_index *ix, uint32_t slot);

/* ---- removing -------------------------------------------------------------------------------- */

/*
 * Evict up to n unpinned blocks, coldest first; returns how many went. With lower tiers they go out
 * of all of them, those in the device first, each with what hangs below it (which may exceed n).
 */
uint32_t radix_evict(struct radix_index *ix, uint32_t n, enum radix_remove_reason reason);
/* Remove every unpinned block of a root, leaf first; returns how many went. */
uint64_t radix_flush_root(struct radix_index *ix, uint32_t root, enum radix_remove_reason reason);

/* ---- looking --------------------------------------------------------------------------------- */

struct radix_stats {
	uint64_t n_slots;
	uint64_t slots[RADIX_SLOT_N_STATES];
	uint64_t removed[RADIX_REMOVE_N_REASONS];
	uint64_t removed_total;
	uint64_t stored_total;
	uint64_t duplicate_total;
	uint64_t attached_total; /* commits that gave a member its device copy */
	uint64_t found_total;    /* members that Redis was found to hold; the rest were stored */
	uint64_t restored_total; /* members that a restart took over */
	uint64_t n_blocks;       /* members */
	uint64_t n_nodes;
	uint64_t n_roots;
	uint64_t n_islands;
	uint64_t n_pins;
	uint64_t index_bytes; /* tree, without token ids and block table */
	uint64_t table_bytes;
	uint64_t key_bytes;
	uint64_t reuse_counter;
	/* tiers, radix/tiers.h: [0] device, [1] host, [2] Redis */
	uint64_t tier[3]; /* members by their highest copy; those without one in none */
	uint64_t n_host;  /* host slots */
	uint64_t host[RADIX_SLOT_N_STATES];
	uint64_t n_bonus;     /* host slots whose block has a device copy too */
	uint64_t moved[3][3]; /* moves that ended well, from, to */
	uint64_t removed_from[3][RADIX_REMOVE_N_REASONS]; /* by their tier then */
	uint64_t verify_mismatch; /* address agreed, key did not: a collision, caught */
};

void radix_index_stats(const struct radix_index *ix, struct radix_stats *ret_stats);

/*
 * Check every invariant of README.md by its number.  Return: 0 when all hold, else the number of
 * the first broken one, with a sentence in `why`.  O(everything).
 */
int radix_verify(const struct radix_index *ix, char *why, size_t why_len);

/* ASCII picture of the tree, a line per edge, through `line`; depth-first, iterative. */
void radix_dump(const struct radix_index *ix, uint32_t root /* or RADIX_NONE */, uint32_t max_lines,
		void (*line)(void *ctx, const char *text), void *ctx);
