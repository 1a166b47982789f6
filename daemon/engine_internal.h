/*
 * engine_internal.h - what the engine's own files offer each other; nobody else includes it, tests
 * excepted.  The data is in engine_types.h.
 */
#pragma once

#include "daemon/engine_desk.h"
#include "daemon/engine_group.h"
#include "daemon/engine_lives.h"
#include "daemon/engine_lost.h"
#include "daemon/engine_pending.h"
#include "daemon/engine_reply.h"
#include "daemon/engine_tiers.h"
#include "daemon/engine_types.h"

/* ---- engine_roots.c: sets ---- */

/* Room for one more item.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_set_room(const struct radix_alloc *a, struct prefixd_set *set);
void prefixd_set_add(struct prefixd_set *set, struct prefixd_item *item, uint64_t hash);
void prefixd_set_del(struct prefixd_set *set, struct prefixd_item *item);
void prefixd_set_deinit(const struct radix_alloc *a, struct prefixd_set *set);

/* First item of the bucket; follow ->next and compare hash, then the fields. */
static inline struct prefixd_item *prefixd_set_at(const struct prefixd_set *set, uint64_t hash)
{
	return set->n_buckets ? set->buckets[hash & (set->n_buckets - 1)] : NULL;
}

/* ---- engine_session.c ------------------------------------------------------------------------ */

struct prefixd_session *prefixd_session_find(const struct prefixd_engine *e, uint32_t number);
void prefixd_session_opened(struct prefixd_engine *e, uint32_t number,
			    const struct prefixd_peer *peer);
/* The socket is over, by its end or by ours: dies, or becomes an orphan. */
void prefixd_session_eof(struct prefixd_engine *e, struct prefixd_session *s);
/* CLOSE, then as if the socket had ended. */
void prefixd_session_close(struct prefixd_engine *e, struct prefixd_session *s);
void prefixd_session_die(struct prefixd_engine *e, struct prefixd_session *s,
			 enum prefixd_lease_end how);
void prefixd_session_gone(struct prefixd_engine *e, struct prefixd_session *s);
/* Takes back a lease that has become too old. */
void prefixd_session_revoke(struct prefixd_engine *e, struct prefixd_lease *l);
void prefixd_session_free(struct prefixd_engine *e, struct prefixd_session *s);
bool prefixd_session_may(const struct prefixd_engine *e, const struct prefixd_session *s,
			 uint32_t tenant);

/* ---- engine_guard.c: what one peer may take from the others -------------------------------- */

/* May this peer have a session at all?  *ret_over: the limit that it is beyond, to be told. */
bool prefixd_guard_seat(struct prefixd_engine *e, const struct prefixd_peer *peer,
			enum prefixd_guard *ret_over);
/* False: HELLO was refused. */
bool prefixd_guard_hello(struct prefixd_engine *e, struct prefixd_request *rq);
/* False: MATCH was refused. */
bool prefixd_guard_match(struct prefixd_engine *e, struct prefixd_request *rq);
/* How many more slots of the group the session may reserve. */
uint32_t prefixd_guard_reserve(const struct prefixd_engine *e, const struct prefixd_session *s,
			       const struct prefixd_group *g);

/* Blocks that leases keep from others: slots of their own, and their paths, shared ones once. */
struct prefixd_holds {
	struct radix_place *places; /* in what this step has not written of its output */
	size_t room, n;
	uint64_t held;
};
struct prefixd_holds prefixd_holds_begin(const struct prefixd_engine *e);
/* An active or revoked lease of the group that prefixd_holds_end() will name. */
void prefixd_holds_add(struct prefixd_holds *h, const struct prefixd_lease *l);
uint64_t prefixd_holds_end(struct prefixd_holds *h, const struct prefixd_group *g);

/* ---- engine_fence.c: what those who left keep from use ------------------------------------- */

/* The lease is an orphan's from now on. */
void prefixd_fence_left(struct prefixd_lease *l);
/* It ends, whoever's it is; before its slots and its pin change. */
void prefixd_fence_done(struct prefixd_lease *l);
/* Slots went into quarantine, or came out. */
void prefixd_fence_stir(struct prefixd_group *g);
void prefixd_fence_settle(struct prefixd_engine *e);
uint64_t prefixd_fence_deadline(const struct prefixd_engine *e);
/* NULL, or what is wrong. */
const char *prefixd_fence_verify(const struct prefixd_engine *e);

/* ---- engine_open.c --------------------------------------------------------------------------- */

void prefixd_waiting_drop(struct prefixd_engine *e, struct prefixd_session *s);
struct prefixd_namespace *prefixd_session_ns(const struct prefixd_engine *e,
					     const struct prefixd_session *s, uint32_t id);
/* By its digest; NULL. */
struct prefixd_namespace *prefixd_namespace_find(const struct prefixd_engine *e,
						 const uint8_t digest[32]);
void prefixd_namespace_unref(struct prefixd_engine *e, struct prefixd_namespace *ns);
/* The group is over: what only its epoch kept goes.  OPEN asks the shell for the epoch again. */
void prefixd_namespaces_forget(struct prefixd_engine *e, const struct prefixd_group *g);

/* ---- engine_roots.c -------------------------------------------------------------------------- */

struct prefixd_root_name {
	struct prefixd_namespace *ns;
	uint32_t tenant;
	struct proto_span salt;
};

struct prefixd_root *prefixd_root_find(const struct prefixd_engine *e,
				       const struct prefixd_root_name *name);
/* Finds or makes the root and takes a reference of it.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_root_get(struct prefixd_engine *e, const struct prefixd_root_name *name,
				     struct prefixd_root **ret_root);
void prefixd_root_put(struct prefixd_engine *e, struct prefixd_root *root);
/* An earlier life's, by its record; the index does not know it yet.  NULL: no memory. */
struct prefixd_root *prefixd_root_again(struct prefixd_engine *e, struct prefixd_namespace *ns,
					const struct prefixd_root_record *rec, uint32_t record,
					struct radix_root_config *ret_config);
void prefixd_root_id(const struct prefixd_engine *e, const struct prefixd_root_name *name,
		     struct proto_id *ret_id);
/* Roots that lost their last block in this step. */
void prefixd_roots_reap(struct prefixd_engine *e);
void prefixd_root_free(struct prefixd_engine *e, struct prefixd_root *root);
/* The three fields of MATCH, PROBE and EXPLAIN.  False: already answered. */
bool prefixd_root_name_check(struct prefixd_engine *e, struct prefixd_request *rq, uint8_t has,
			     uint32_t ns, uint32_t tenant, struct proto_span salt,
			     struct prefixd_root_name *ret_name);

/*
 * Keyed BLAKE2b over a purpose and a list of fields, each with its tag and its length before it, so
 * that no two different lists feed the same bytes.
 */
struct prefixd_field {
	uint8_t tag;
	const void *p;
	size_t len;
};
void prefixd_name_digest(const struct prefixd_engine *e, const char *purpose,
			 const struct prefixd_field *fields, uint32_t n, void *ret, size_t ret_len);

/* ---- engine_lease.c -------------------------------------------------------------------------- */

struct prefixd_lease *prefixd_lease_new(struct prefixd_engine *e); /* NULL: no memory */
void prefixd_lease_begin(struct prefixd_engine *e, struct prefixd_lease *l,
			 struct prefixd_session *s, struct prefixd_root *root);
void prefixd_lease_cancel(struct prefixd_engine *e, struct prefixd_lease *l);
/* The lease `id` of the asking session; NULL: already answered. */
struct prefixd_lease *prefixd_lease_any_of(struct prefixd_engine *e, struct prefixd_request *rq,
					   uint64_t id);
/* The same, and no RESERVE of it waits. */
struct prefixd_lease *prefixd_lease_of(struct prefixd_engine *e, struct prefixd_request *rq,
				       uint64_t id);
/* Room for n_bytes of keys behind those that are kept.  Return: 0, -ENOMEM. */
radix_nodiscard int prefixd_lease_keys_room(struct prefixd_engine *e, struct prefixd_lease *l,
					    size_t n_bytes);
void prefixd_lease_drop_donor(struct prefixd_lease *l);
/* The lease object of place `idx`, made if need be, with all before it.  NULL: no memory. */
struct prefixd_lease *prefixd_lease_at(struct prefixd_engine *e, uint32_t idx);
/* To the free list. */
void prefixd_lease_put_away(struct prefixd_engine *e, struct prefixd_lease *l);
/* Ends the lease: counters, recency, pins, slots.  ret may be NULL. */
void prefixd_lease_finish(struct prefixd_engine *e, struct prefixd_lease *l,
			  enum prefixd_lease_end how, struct proto_release_rep *ret);
/* Frees slots that were kept back; the lease goes to the free list.  Returns how many. */
uint32_t prefixd_lease_unquarantine(struct prefixd_engine *e, struct prefixd_lease *l);
/* There is something that its process may still write. */
bool prefixd_lease_keeps_slots(const struct prefixd_lease *l);
/* It is off its session, until the grace is over. */
void prefixd_lease_quarantine(struct prefixd_engine *e, struct prefixd_lease *l);
/* Ends a lease that ranks share, but for its slots: those are kept back, or free. */
void prefixd_lease_end_shared(struct prefixd_engine *e, struct prefixd_lease *l,
			      enum prefixd_lease_end how, bool keep_back);
/* Forgets one revoked lease of the session that holds no slots.  False: there is none. */
bool prefixd_lease_forget(struct prefixd_engine *e, struct prefixd_session *s);
/* Tries to bring the session below its limit by forgetting leases that were revoked. */
void prefixd_lease_place(struct prefixd_engine *e, struct prefixd_session *s);
void prefixd_leases_deinit(struct prefixd_engine *e);
uint64_t prefixd_tick(struct prefixd_engine *e);
/* Once, before it stores blocks: what it found was worth keeping. */
void prefixd_lease_tell_hit(struct prefixd_engine *e, struct prefixd_lease *l);
/* One more slot; there is room for it. */
void prefixd_runs_add(struct radix_runs *runs, uint32_t slot);

static inline const uint8_t *prefixd_lease_key(const struct prefixd_lease *l)
{
	return l->keys ? l->keys + l->keys_off : NULL; /* a prompt without keys has no buffer */
}

/* The first n kept keys are on the path now. */
static inline void prefixd_lease_pop_keys(struct prefixd_lease *l, uint32_t n)
{
	l->keys_off += (size_t)n * l->root->ns->key_len;
	l->n_keys -= n;
	l->n_path += n;
	l->n_looked -= radix_min_u32(l->n_looked, n);
}

/* ---- engine_reserve.c ------------------------------------------------------------------------ */

/* Ends the wait of the lease's RESERVE, if there is one, without a word. */
void prefixd_reserve_stop(struct prefixd_engine *e, struct prefixd_lease *l);
/* The same, and says why where somebody listens. */
void prefixd_reserve_end(struct prefixd_engine *e, struct prefixd_lease *l,
			 enum prefixd_lease_end how);

/* ---- engine_match.c -------------------------------------------------------------------------- */

/* Kept keys, from the first on, that the last look told to lie in lower tiers. */
static inline uint32_t prefixd_lease_lower(const struct prefixd_lease *l)
{
	return l->redis_until > l->n_path ? l->redis_until - l->n_path : 0;
}

/* Before the path moves or ends: what left the index since the last look is noted as gone. */
void prefixd_lease_lower_look(struct prefixd_lease *l);
/* After the path moved: the hold goes when the path has reached it. */
void prefixd_lease_lower_passed(struct prefixd_lease *l);

/* A list of keys in a request, checked.  False: already answered. */
bool prefixd_keys_check(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct prefixd_namespace *ns, struct proto_span keys,
			uint32_t *ret_n);
bool prefixd_tail_check(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct prefixd_namespace *ns, struct proto_span tail,
			uint32_t *ret_tokens);
bool prefixd_tokens_check(struct prefixd_engine *e, struct prefixd_request *rq,
			  const struct prefixd_namespace *ns, uint64_t n_keys, uint32_t tail_tokens,
			  uint64_t n_tokens);

/* Blocks before its end that the lease reads; UINT32_MAX: all of them. */
uint32_t prefixd_lease_window(const struct prefixd_lease *l);
/* Where the lease stands; an island that was nowhere may have been begun by another since. */
struct radix_place prefixd_lease_from(const struct prefixd_lease *l);

/* ---- engine_ops.c ---------------------------------------------------------------------------- */

/* True: the request was answered from memory, or its id was used for another request. */
bool prefixd_op_replayed(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct proto_id *id);
/*
 * Before the request takes effect: makes sure that a reply body of up to `max_len` bytes can be
 * remembered.  Return: 0, -ENOMEM.  The reply is then kept by prefixd_reply_send().
 */
radix_nodiscard int prefixd_op_prepare(struct prefixd_engine *e, struct prefixd_request *rq,
				       const struct proto_id *id, uint32_t max_len);
void prefixd_op_keep(struct prefixd_engine *e, struct prefixd_request *rq, const uint8_t *body,
		     uint32_t len);
void prefixd_ops_deinit(struct prefixd_engine *e, struct prefixd_ops *ops);
/* Return: 0, or a broken rule's text. */
const char *prefixd_ops_verify(const struct prefixd_engine *e, const struct prefixd_ops *ops);

/* ---- one function per operation -------------------------------------------------------------- */

typedef void prefixd_handler(struct prefixd_engine *e, struct prefixd_request *rq);

prefixd_handler prefixd_op_hello, prefixd_op_open, prefixd_op_match, prefixd_op_extend,
	prefixd_op_reserve, prefixd_op_commit, prefixd_op_release, prefixd_op_probe,
	prefixd_op_explain, prefixd_op_report, prefixd_op_quiesced, prefixd_op_wait,
	prefixd_op_prefetch, prefixd_op_ping;

/* ---- small things ---------------------------------------------------------------------------- */

static inline void *prefixd_take0(const struct radix_alloc *a, size_t n)
{
	void *p = radix_take(a, n);

	if (p)
		memset(p, 0, n);
	return p;
}

/* A larger copy of an array; the old one is given back.  NULL: no memory, the old one stays. */
void *prefixd_grow(const struct radix_alloc *a, void *old, size_t old_len, size_t new_len);

#include "daemon/engine_stripe.h"
