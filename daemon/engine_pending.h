/*
 * engine_pending.h - who computes what, and who waits for it: engine_pending.c; part of
 * engine_internal.h.
 */
#pragma once

#include "daemon/engine_types.h"

/* A place on a path, and the keys that are missing behind it. */
struct prefixd_spot {
	const struct prefixd_root *root;
	struct radix_place at;
	uint32_t depth;           /* keys before it */
	const uint8_t *first_key; /* of an island; NULL: the path begins at the root */
	const uint8_t *keys;
	uint32_t n_keys;
	const struct prefixd_lease *self; /* does not count; may be NULL */
};

/* Leading keys behind the spot that other leases compute. */
uint32_t prefixd_pending_count(const struct prefixd_engine *e, const struct prefixd_spot *spot);
/* The lease computes what it has reserved; `rest`: all its other keys too.  Time begins anew. */
void prefixd_pending_lead(struct prefixd_engine *e, struct prefixd_lease *l, bool rest);
/* The lease's path, keys or reservations changed: who waits for it is told at the step's end. */
void prefixd_pending_changed(struct prefixd_engine *e, struct prefixd_lease *l);
/* Nobody waits for this lease any more. */
void prefixd_pending_resign(struct prefixd_engine *e, struct prefixd_lease *l);
/* Ends the lease's wait without a word. */
void prefixd_wait_stop(struct prefixd_engine *e, struct prefixd_lease *l);
/* Ends it with an EVENT. */
void prefixd_wait_end(struct prefixd_engine *e, struct prefixd_lease *l,
		      enum proto_wait_state state, uint32_t n);
void prefixd_pending_settle(struct prefixd_engine *e);
void prefixd_pending_time(struct prefixd_engine *e);
uint64_t prefixd_pending_deadline(const struct prefixd_engine *e);
/* Bytes of output, and actions, that EVENTs of `n` waits may take in one step. */
#define PREFIXD_EVENT_ROOM 64u
/* Return: 0, or the number of a broken rule with a sentence. */
int prefixd_pending_verify(const struct prefixd_engine *e, char *why, size_t why_len);

static inline bool prefixd_leads(const struct prefixd_lease *l)
{
	return radix_list_linked(&l->leading);
}

/* Kept keys, from the first on, that others are told to wait for while the lease leads. */
static inline uint32_t prefixd_lead_cover(const struct prefixd_lease *l)
{
	return l->leads_rest ? l->n_keys : l->n_reserved;
}
