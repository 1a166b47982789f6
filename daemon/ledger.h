/*
 * ledger.h - what the engine writes down so that another life of the daemon can go on.
 *
 * One store (radix/store.h) beside the block tables of the groups. It has a head, the groups, the
 * tenants' names, the namespaces with their fields, the roots with their salts, and one record for
 * each lease: whose it is, and the last block of the path that it holds. A lease's place in the
 * engine's table is its record's place, and the owner of its slots in the block table.
 *
 * What it guarantees.  A record counts from one store on and until one store (its state).  What a
 * reply tells of is written before the step that emits the reply is over: groups, namespaces and
 * roots when they are made, a lease when it is given, its place when it moves.  A place has two
 * halves and a word that says which one counts, so that a lease is found at its old place or at its
 * new one.  Each record has a check of its own; a damaged one costs itself and what hangs on it.
 *
 * What it relies on.  radix/store.h.  Names are made with the naming key: a ledger of another key
 * is another daemon's, and refused.
 */
#pragma once

#include "daemon/engine.h"

/* What a fresh ledger must be able to hold, in bytes; most of it is never touched. */
uint64_t prefixd_ledger_len(void);

enum prefixd_ledger_content {
	PREFIXD_LEDGER_EMPTY,   /* nothing was ever written */
	PREFIXD_LEDGER_STATE,   /* an earlier life of this daemon's */
	PREFIXD_LEDGER_VERSION, /* of a version that this program does not read */
	PREFIXD_LEDGER_KEY,     /* made with another naming key */
	PREFIXD_LEDGER_FOREIGN, /* something else, or its head is damaged */
};

struct prefixd_ledger_info {
	uint32_t version;
	uint32_t n_groups;
	uint32_t n_lives;     /* that wrote into it so far */
	uint32_t attempts;    /* starts that began to take it up and did not say that they had */
	struct proto_id boot; /* the last life's */
};

/* Looks at the head.  What is not EMPTY or STATE has a sentence in `why`, with what can be done. */
enum prefixd_ledger_content prefixd_ledger_look(const struct radix_store *store,
						const uint8_t naming_key[32],
						struct prefixd_ledger_info *ret_info, char *why,
						size_t why_len);

/* What the record of a group says of its memory. */
struct prefixd_ledger_group {
	uint64_t slot_bytes;      /* of one slot in the pool of one rank */
	uint64_t host_slot_bytes; /* of one in the host tier: all ranks' pieces, coded or not */
	uint32_t n_slots, n_host;
	bool on_devices; /* GPUs: by rank, as far as it has ranks */
	struct proto_id device_ids[PREFIXD_RANKS_MAX];
};

/* Of a store whose content is STATE.  False: there is no such record, or it is damaged. */
bool prefixd_ledger_group(const struct radix_store *store, uint32_t group,
			  struct prefixd_ledger_group *ret);

/*
 * A start begins, or has come to its end: what makes starts die is not taken up for ever.  The
 * shell gives the memory up when prefixd_ledger_info.attempts has reached PREFIXD_LEDGER_ATTEMPTS.
 */
#define PREFIXD_LEDGER_ATTEMPTS 3u
void prefixd_ledger_begin(struct radix_store *store);
void prefixd_ledger_settled(struct radix_store *store);

/* What a RESTORE came to, for the log and for metrics; summed over groups as they come back. */
struct prefixd_restored {
	bool done; /* every group was answered, and VERIFY_FULL is through */
	uint32_t n_groups, n_groups_lost;
	uint32_t n_namespaces, n_roots;
	uint32_t n_leases, n_sessions; /* that somebody still held */
	uint64_t n_verified, n_corrupt;
	struct radix_recovered index;
};

void prefixd_engine_restored(const struct prefixd_engine *e, struct prefixd_restored *ret);
