/*
 * engine_lives.h - what one life of the engine leaves to the next, as its files see it; part of
 * engine_internal.h.
 *
 *     ledger.c          the store of records
 *     engine_note.c     what is written into it, and when
 *     engine_restore.c  the first step of a life: tenants, groups, namespaces, orphans
 *     engine_adopt.c    a group's memory is there: index, roots, leases
 *     engine_stand.c    where its leases stood
 *     engine_stripe_kept.c  the same of leases that ranks share
 *     engine_check.c    payloads are compared with their checksums
 *
 * The data is in engine_ledger.h and engine_types.h.
 */
#pragma once

#include "daemon/engine_types.h"

/* ---- engine_note.c: what the next life is to know -------------------------------------------- *
 *
 * Each does nothing without a ledger.  Those that may fail are called before anything took effect:
 * 0, -ENOMEM.
 */

radix_nodiscard int prefixd_note_tenants_room(struct prefixd_engine *e, uint32_t n);
/* Those from `from` on. */
void prefixd_note_tenants(struct prefixd_engine *e, uint32_t from);
radix_nodiscard int prefixd_note_group_room(struct prefixd_engine *e, uint32_t id,
					    const struct prefixd_cold *cold);
void prefixd_note_group(struct prefixd_engine *e, struct prefixd_group *g);
void prefixd_note_group_gone(struct prefixd_engine *e, struct prefixd_group *g);
radix_nodiscard int prefixd_note_ns_room(struct prefixd_engine *e, uint32_t *ret_record);
void prefixd_note_ns(struct prefixd_engine *e, const struct prefixd_namespace *ns);
/* It changed: `record`, which there was room for, counts before the one that is wrong goes. */
void prefixd_note_ns_again(struct prefixd_engine *e, struct prefixd_namespace *ns, uint32_t record);
void prefixd_note_ns_gone(struct prefixd_engine *e, uint32_t record);
void prefixd_note_epoch(struct prefixd_engine *e, const struct prefixd_namespace *ns);
radix_nodiscard int prefixd_note_root_room(struct prefixd_engine *e, struct prefixd_root *r);
void prefixd_note_root(struct prefixd_engine *e, const struct prefixd_root *r);
void prefixd_note_root_gone(struct prefixd_engine *e, const struct prefixd_root *r);
/* The session is about to get a lease. */
radix_nodiscard int prefixd_note_session(struct prefixd_engine *e, struct prefixd_session *s);
void prefixd_note_session_gone(struct prefixd_engine *e, const struct prefixd_session *s);
radix_nodiscard int prefixd_note_lease_room(struct prefixd_engine *e, struct prefixd_lease *l);
/* It was given; its pins moved; it is over. */
void prefixd_note_lease(struct prefixd_engine *e, const struct prefixd_lease *l);
void prefixd_note_lease_moved(struct prefixd_engine *e, const struct prefixd_lease *l);
/* Of an earlier life: this is its place.  `other`: the half that did not count told it. */
void prefixd_note_lease_again(struct prefixd_engine *e, const struct prefixd_lease *l, bool other);
void prefixd_note_lease_over(struct prefixd_engine *e, const struct prefixd_lease *l);
/*
 * Around a commit of the block with this key: it holds the block from before it is a member on.
 * `stored`: it became a new one.
 */
void prefixd_note_commit(struct prefixd_engine *e, const struct prefixd_lease *l, const void *key);
void prefixd_note_committed(struct prefixd_engine *e, const struct prefixd_lease *l, bool stored);
/* Return: 0, or the number of a broken rule with a sentence. */
int prefixd_note_verify(const struct prefixd_engine *e, char *why, size_t why_len);

/* ---- engine_restore.c ------------------------------------------------------------------------ */

void prefixd_restore(struct prefixd_engine *e, struct prefixd_event *event);
/* The first event is another one: nothing of the ledger is taken up. */
void prefixd_restore_not(struct prefixd_engine *e);
/* A lease whose group is not there yet ends. */
void prefixd_kept_finish(struct prefixd_engine *e, struct prefixd_lease *l,
			 enum prefixd_lease_end how);
/* The lease is one that an earlier life gave to a session which holds it still. */
void prefixd_lease_of_earlier(struct prefixd_lease *l, struct prefixd_session *s,
			      struct prefixd_group *g, uint64_t id, uint64_t now_ns);
/* A lease of an earlier life is over. */
void prefixd_restored_over(struct prefixd_engine *e, struct prefixd_lease *l);

/* ---- engine_adopt.c -------------------------------------------------------------------------- */

/* POOL_READY of a group whose memory was asked for. */
void prefixd_adopt_ready(struct prefixd_engine *e, struct prefixd_group *g,
			 const struct prefixd_event *event);
void prefixd_adopt_failed(struct prefixd_engine *e, struct prefixd_group *g, const char *why);
/* All that there was to ask for was answered. */
void prefixd_adopt_done(struct prefixd_engine *e);

static inline bool prefixd_is_kept(const struct prefixd_group *g, const struct prefixd_lease *l)
{
	/* Seats follow what they share. */
	return l->state == PREFIXD_LEASE_KEPT && l->group == g && !l->seat;
}

/* ---- engine_stand.c -------------------------------------------------------------------------- */

struct prefixd_stands {
	struct radix_stand *v; /* for radix_index_recover() */
	uint32_t n, cap;
	struct radix_place *places; /* of the lease that was asked about last */
	uint32_t cap_places;
};

/* Of the group's KEPT leases, in their order.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_stands_read(struct prefixd_engine *e, const struct prefixd_group *g,
					struct prefixd_stands *ret);
/* The index is there.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_stands_recovered(struct prefixd_engine *e, const struct radix_index *ix,
					     struct prefixd_stands *stands);
/*
 * Which places lease i of them holds, what its record says being half[]: the first one, which may
 * be the root's beginning, is where its path ends.  *ret_other: the half that did not count told
 * it.  Returns how many they are, 1 at least; they are in stands->places until the next call.
 */
uint32_t prefixd_stand_places(const struct prefixd_stands *stands, uint32_t i,
			      const struct radix_index *ix, uint32_t root, bool digest,
			      const struct prefixd_lease_half half[2], bool *ret_other);
void prefixd_stands_deinit(struct prefixd_engine *e, struct prefixd_stands *stands);

/* ---- engine_check.c -------------------------------------------------------------------------- */

void prefixd_checks_begin(struct prefixd_engine *e, struct prefixd_group *g);
/* The group's bytes are gone: nothing of it is looked at any more. */
void prefixd_checks_stop(struct prefixd_engine *e, struct prefixd_group *g);
void prefixd_verified(struct prefixd_engine *e, const struct prefixd_event *event);
void prefixd_checks_settle(struct prefixd_engine *e);
