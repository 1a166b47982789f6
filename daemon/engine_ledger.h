/*
 * engine_ledger.h - the ledger's records, as the engine writes and reads them; part of
 * engine_types.h.  What the shell may ask is in ledger.h.
 *
 * Layout.  The first page is the head.  Behind it lie chunks of 16 KiB; each belongs to one kind of
 * record and has a number among those of its kind, so that an array grows wherever the store ends.
 * A record begins with a word: 0, or its kind's code and a check over the place and all that is
 * constant in it, stored last.  What changes in a record while it counts lies in two halves with
 * checks of their own.
 */
#pragma once

#include "daemon/cold.h"
#include "daemon/engine_config.h"
#include "proto/codec.h"
#include "radix/index.h"
#include "radix/tiers.h"

#define PREFIXD_LEDGER_KINDS(X) \
	X(GROUP, group)         \
	X(TENANT, tenant)       \
	X(NS, ns)               \
	X(ROOT, root)           \
	X(SESSION, session)     \
	X(LEASE, lease)         \
	X(COLD, cold)           \
	X(DEVICES, devices)

enum prefixd_ledger_kind {
#define X(sym, name) PREFIXD_LEDGER_##sym,
	PREFIXD_LEDGER_KINDS(X)
#undef X
	PREFIXD_LEDGER_N_KINDS
};

/* By id. */
struct prefixd_group_record {
	uint64_t word;
	uint64_t slot_bytes;
	uint32_t n_slots, n_host, n_entries;
	uint16_t tiers;   /* enum prefixd_group_tiers */
	uint16_t n_ranks; /* 0 ranks: 1, as older programs wrote it */
	struct proto_id pool;
};

enum prefixd_group_tiers {
	PREFIXD_GROUP_REDIS = 1,
	PREFIXD_GROUP_COLD = 2,    /* coded below the device: a record of its own says how */
	PREFIXD_GROUP_DEVICES = 4, /* on GPUs: a record of its own says on which */
};

/* By the group's id; signed before the group's.  Apart, so that older ledgers stay readable. */
struct prefixd_cold_record {
	uint64_t word;
	struct prefixd_cold cold;
	uint32_t pad;
};

/* By the group's id; signed before the group's, as that above.  UUIDs, by rank. */
struct prefixd_devices_record {
	uint64_t word;
	struct proto_id ids[PREFIXD_RANKS_MAX];
};

/* By id. */
struct prefixd_tenant_record {
	uint64_t word;
	char name[64]; /* PREFIXD_TENANT_NAME_MAX */
};

/* An epoch; of two the greater one whose check agrees counts. */
struct prefixd_epoch_half {
	uint64_t n, nonce, check;
};

#define PREFIXD_NS_TEXT_MAX 928u

struct prefixd_ns_record {
	uint64_t word;
	uint64_t slot_bytes; /* of its group: another group may get the number */
	uint32_t id, group;
	uint32_t mode; /* and its window from bit 8 on */
	uint32_t block_tokens, key_len, token_bytes;
	uint16_t extra, n_ranks; /* of its group, as there */
	uint32_t text_len;
	uint8_t digest[32], family[32];
	char text
		[PREFIXD_NS_TEXT_MAX]; /* model, revision, dtype, adapter, engine; each ends in 0 */
	struct prefixd_epoch_half epoch[2]; /* not under the record's check */
};

struct prefixd_root_record {
	uint64_t word;
	uint64_t epoch_n, epoch_nonce; /* its names are made with these */
	uint32_t root;                 /* its number in the index */
	uint32_t group, ns, tenant;
	uint8_t digest[32]; /* of the namespace */
	uint8_t salt_len;
	uint8_t salt[PROTO_SALT_MAX];
};

struct prefixd_session_record {
	uint64_t word;
	struct proto_id boot, instance;
	uint64_t start_time;
	uint32_t number; /* in that life */
	uint32_t pid, uid, gid;
	uint32_t copies, staged;
	char name[64];
	uint64_t users; /* in this life; not under the record's check */
};

/* How far a lease has come: behind which blocks it holds, and what it copies from. */
struct prefixd_lease_half {
	uint64_t check;
	uint64_t pin_generation, donor_generation;
	uint32_t pin, donor; /* entries; RADIX_NONE */
};

/* By its place in the engine's table.  The half that counts stands in the word. */
struct prefixd_lease_record {
	uint64_t word;
	uint64_t id;
	uint32_t session; /* place of its record, */
	uint32_t session_check;
	uint32_t group, root;
	/* one that ranks share has no session, and each of them a seat: zeroes where nobody does */
	uint32_t n_ranks, rank; /* RADIX_NONE: the shared lease itself, not a seat */
	uint64_t shared;        /* of a seat: its id */
	struct proto_id decision;
	struct prefixd_lease_half half[2];
};

_Static_assert(sizeof(struct prefixd_lease_record) == 128, "two lines of cache for each lease");

struct prefixd_ledger_array {
	uint8_t **chunks;
	uint32_t n_chunks, cap; /* NULL among the chunks: its header was damaged */
	uint32_t n;             /* places used so far */
	uint32_t free;          /* places that were used before; RADIX_NONE ends */
};

/* All zero: nothing is written down. */
struct prefixd_ledger {
	const struct radix_alloc *alloc;
	struct radix_store *store;
	struct prefixd_ledger_array arrays[PREFIXD_LEDGER_N_KINDS];
	uint32_t n_chunks; /* of all kinds */
	bool found;        /* an earlier life left something, and it was not taken up yet */
};

/* ---- ledger.c: the store --------------------------------------------------------------------- */

/*
 * Takes the store as it is: an empty one gets its head, another one is read.  Return: 0; -ENOMEM;
 * -EINVAL: it is neither EMPTY nor STATE, see prefixd_ledger_look().
 */
radix_nodiscard int prefixd_ledger_init(struct prefixd_ledger *l, const struct radix_alloc *alloc,
					struct radix_store *store, const uint8_t naming_key[32]);
void prefixd_ledger_deinit(struct prefixd_ledger *l);
/* Another life begins to write; nothing of an earlier one is left but what was taken up. */
void prefixd_ledger_life(struct prefixd_ledger *l, const struct proto_id *boot);
/* Nothing of an earlier life counts any more. */
void prefixd_ledger_wipe(struct prefixd_ledger *l);
/* Room for the record of this place.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_ledger_room(struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
					uint32_t place);
/* A free place, with room; the record counts once it is signed.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_ledger_take(struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
					uint32_t *ret_place);
/* The record does not count any more, and its place is free for prefixd_ledger_take(). */
void prefixd_ledger_put(struct prefixd_ledger *l, enum prefixd_ledger_kind kind, uint32_t place);
/* The record of a place that there is room for; NULL: there is none. */
void *prefixd_ledger_at(const struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
			uint32_t place);
/* All that is constant in the record is there: it counts from now on. */
void prefixd_ledger_sign(struct prefixd_ledger *l, enum prefixd_ledger_kind kind, uint32_t place);
/* The record counts and agrees with its check.  Not for leases. */
bool prefixd_ledger_is(const struct prefixd_ledger *l, enum prefixd_ledger_kind kind,
		       uint32_t place);
/* Of every kind but leases: which places are free follows from the records that count. */
void prefixd_ledger_collect(struct prefixd_ledger *l);

/* As another program would have left it; for tests. */
void prefixd_ledger_set_version(struct radix_store *store, uint32_t version);

/* ---- leases ---- */

struct prefixd_lease_name {
	uint64_t id;
	uint32_t idx, session, session_check, group, root;
	uint32_t n_ranks, rank;
	uint64_t shared;
	struct proto_id decision;
};

/* Writes the record; both halves say the same. */
void prefixd_ledger_lease_begin(struct prefixd_lease_record *r,
				const struct prefixd_lease_name *name, struct radix_member pin,
				struct radix_member donor);
/*
 * It holds what ends at `pin` from now on.  The other half stays as it is: if `pin` never comes to
 * be a member, that one counts.
 */
void prefixd_ledger_lease_move(struct prefixd_lease_record *r, struct radix_member pin,
			       struct radix_member donor);
/* What never came to be a member is not its place: the other half counts again. */
void prefixd_ledger_lease_back(struct prefixd_lease_record *r);
/* What the half that counts says. */
void prefixd_ledger_lease_place(const struct prefixd_lease_record *r, struct radix_member *ret_pin,
				struct radix_member *ret_donor);
void prefixd_ledger_lease_end(struct prefixd_lease_record *r);
/* What the record of place `idx` says.  ret_half[0] counts, ret_half[1] if that never came to be;
 * their `check` is 1 when it agreed, else 0.  False: it is free, or damaged (*ret_damaged). */
bool prefixd_ledger_lease_read(const struct prefixd_lease_record *r, uint32_t idx,
			       struct prefixd_lease_name *ret_name,
			       struct prefixd_lease_half ret_half[2], bool *ret_damaged);

/* ---- epochs ---- */

void prefixd_ledger_epoch_set(struct prefixd_ns_record *r, uint64_t n, uint64_t nonce);
void prefixd_ledger_epoch_get(const struct prefixd_ns_record *r, uint64_t *ret_n,
			      uint64_t *ret_nonce);
