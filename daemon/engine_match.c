/*
 * engine_match.c - MATCH and EXTEND: what is there already, for a lease.
 *
 * What it guarantees.  A request is answered and its path pinned in one step.  Runs of slots are
 * collected in the reply itself.  The lease keeps a copy of exactly those keys that are not on its
 * path yet, because RESERVE and COMMIT carry none.
 *
 * What it relies on.  radix_match() is pure; a place it returns is valid until the tree changes,
 * which nothing here does before the pin is taken.
 *
 * The order of a MATCH: check the fields, replay, find or make the root, match into the reply, make
 * room for the keys that are left, and only then pin: whatever fails before leaves no trace.
 */
#include "daemon/engine_windows.h"

#define TRY_ANYWAY 8u /* of so many loads that are advised against, one is begun */

bool prefixd_keys_check(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct prefixd_namespace *ns, struct proto_span keys, uint32_t *ret_n)
{
	uint32_t n = keys.n / ns->key_len;

	if (keys.n % ns->key_len) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "keys",
			       "'keys' has %u bytes, which is no multiple of this namespace's key "
			       "length, %u",
			       keys.n, ns->key_len);
		return false;
	}
	if (n > e->config.limits.max_keys) {
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, "keys",
			       "'keys' has %u keys; at most %u go into one request, send the rest "
			       "with EXTEND",
			       n, e->config.limits.max_keys);
		return false;
	}
	*ret_n = n;
	return true;
}

bool prefixd_tail_check(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct prefixd_namespace *ns, struct proto_span tail,
			uint32_t *ret_tokens)
{
	if (ns->mode == RADIX_KEYS_DIGEST && tail.n != 0) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "tail",
			       "'tail' is for token keys; with digests, 'n_tokens' says how much "
			       "the last key covers");
		return false;
	}
	if (tail.n % 4 || (tail.n && tail.n >= ns->token_bytes)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "tail",
			       "'tail' has %u bytes; it holds 4 bytes for each of 0 to %u tokens",
			       tail.n, ns->block_tokens - 1);
		return false;
	}
	*ret_tokens = tail.n / 4;
	return true;
}

bool prefixd_tokens_check(struct prefixd_engine *e, struct prefixd_request *rq,
			  const struct prefixd_namespace *ns, uint64_t n_keys, uint32_t tail_tokens,
			  uint64_t n_tokens)
{
	uint64_t least = n_keys * ns->block_tokens + tail_tokens;

	if (ns->mode == RADIX_KEYS_DIGEST && n_keys)
		least -= ns->block_tokens - 1; /* the last key may cover one token only */
	/* 2^48 tokens keep every product below 64 bits. */
	if (n_tokens >= least && n_tokens <= 1ull << 48)
		return true;
	prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "n_tokens",
		       "'n_tokens' is %llu; it is at least %llu, which the keys and the tail "
		       "cover, and at most 2^48",
		       (unsigned long long)n_tokens, (unsigned long long)least);
	return false;
}

/* ---- looking on from where the lease stands -------------------------------------------------- */

struct look {
	struct radix_place from;
	const uint8_t *keys; /* n_keys of them, in the frame or in the lease */
	uint32_t n_keys;
	struct proto_span tail;
	bool no_tail;
	bool may_load;   /* PROMOTE was said, and a load's end could be told */
	uint32_t window; /* blocks that are read before the end; UINT32_MAX: all of them */
	bool exact;      /* none of those that are read is one that a codec has changed */
	/* result */
	struct radix_match m;
	struct radix_runs runs;
	uint32_t n_lossy, first_lossy; /* of what is read; the first one counted from `from` */
	bool declined;                 /* `exact` ended it */
};

static void look_once(const struct radix_index *ix, struct look *k, uint32_t n_keys)
{
	bool whole = k->window == UINT32_MAX; /* nothing is of use behind a hollow block */
	uint32_t hidden;

	k->runs.n = 0;
	k->runs.full = false;
	radix_match_window(ix, &k->from, k->keys, n_keys, whole, &k->runs, &k->m);
	if (k->runs.full) { /* what lies lower is told with the last part */
		k->m.end = k->m.device_end;
		k->m.n_blocks = k->m.n_device;
		k->m.n_host = 0;
		k->m.diverged = false;
	}
	hidden = k->m.n_device > k->window ? k->m.n_device - k->window : 0;
	k->n_lossy = radix_path_lossy(ix, &k->m.end, k->m.n_blocks - hidden, &k->first_lossy);
	k->first_lossy += hidden;
}

static void look(const struct radix_index *ix, struct look *k)
{
	uint32_t exact;

	look_once(ix, k, k->n_keys);
	if (!k->exact || k->n_lossy == 0)
		return;
	exact = radix_path_exact(ix, &k->m.end, k->m.n_blocks, k->window);
	k->declined = true;
	look_once(ix, k, exact); /* fewer keys: the runs end where they should */
}

/* Blocks found behind those that the path takes: in host memory or Redis. */
static uint32_t lower(const struct look *k)
{
	return k->m.n_blocks - k->m.n_device;
}

/* May blocks of this namespace be used in part?  A shared digest over content outside the token ids
 * would have to agree too, and several tenants could learn each other's prompts token by token; and
 * of ranks the slowest may still copy from a block when the first has gone on to another. */
static bool tails_allowed(const struct prefixd_namespace *ns)
{
	return ns->mode == RADIX_KEYS_TOKENS && !ns->extra && !ns->several_tenants &&
	       ns->group->n_ranks == 1;
}

/*
 * The block after the path: which stored one shares its first tokens?  Looks with the next key, or
 * with the tail when no key is left.  Sets l->shared, and l->tail_offer with the donor pinned where
 * the tokens may be used.
 */
static void look_for_tail(struct prefixd_engine *e, struct prefixd_lease *l, struct look *k,
			  uint32_t *ret_slot)
{
	const struct prefixd_namespace *ns = l->root->ns;
	const struct radix_index *ix = l->group->index;
	struct radix_place donor;
	uint32_t slot, shared = 0, n, first;
	const void *tokens;

	*ret_slot = RADIX_NONE;
	l->shared = 0;
	l->tail_offer = 0;
	prefixd_lease_drop_donor(l);
	if (ns->mode != RADIX_KEYS_TOKENS || ns->block_tokens < 2 || k->runs.full || k->declined)
		return;
	/* Without leave to use the tokens, the answer matters only where nothing at all was found:
	 * it tells "shorter than a block" from "never seen". */
	if (k->no_tail && l->n_path + lower(k) > 0)
		return;
	if (k->m.n_blocks < k->n_keys) {
		tokens = k->keys + (size_t)k->m.n_blocks * ns->key_len;
		n = ns->block_tokens - 1;
	} else {
		tokens = k->tail.p;
		n = k->tail.n / 4;
	}
	if (n == 0)
		return;
	radix_partial(ix, &k->m.end, tokens, n, &donor, &slot, &shared);
	l->shared = shared;
	if (shared == 0 || k->no_tail || slot == RADIX_NONE)
		return;
	if (radix_path_lossy(ix, &donor, 1, &first) > 0) {
		if (k->exact)
			return;
		k->first_lossy = k->n_lossy ? k->first_lossy : k->m.n_blocks;
		k->n_lossy++;
	}
	l->tail_offer = shared;
	radix_pin_take(l->group->index, &l->donor, &donor);
	l->donor_held = true;
	*ret_slot = slot;
}

/* Why the look ended; kept in the lease, since a later EXTEND may not look at all. */
static uint8_t reason_of(const struct prefixd_engine *e, const struct prefixd_lease *l,
			 const struct look *k)
{
	uint8_t never = l->root->ns->seed_mismatch ? PROTO_REASON_SEED_MISMATCH
						   : PROTO_REASON_NEVER_SEEN;

	if (k->runs.full)
		return PROTO_REASON_NONE;
	if (l->root->detached)
		return PROTO_REASON_NAMESPACE;
	if (k->declined)
		return l->n_pend ? PROTO_REASON_PENDING : PROTO_REASON_DECLINED;
	if (k->m.n_blocks == k->n_keys)
		return PROTO_REASON_BELOW_BLOCK;
	if (l->n_pend)
		return PROTO_REASON_PENDING;
	if (l->n_path + lower(k) == 0 && l->shared)
		return PROTO_REASON_BELOW_BLOCK;
	if (e->config.redis && !e->redis_up)
		return PROTO_REASON_TIER_DOWN; /* there it might be */
	if (l->n_path + lower(k) == 0)
		return never;
	return k->m.diverged ? PROTO_REASON_DIVERGED : never;
}

/*
 * Of the keys behind all that was found, how many does another lease compute?  With LEAD this one
 * computes them if nobody else does the first.
 */
static void look_for_pending(struct prefixd_engine *e, struct prefixd_lease *l,
			     const struct look *k, bool lead)
{
	struct prefixd_spot spot = {
		.root = l->root,
		.at = k->m.end,
		.depth = l->n_path + lower(k),
		.first_key = l->island ? l->first_key : NULL,
		.n_keys = l->n_keys - lower(k),
		.self = l,
	};

	l->n_pend = 0;
	if (k->runs.full || spot.n_keys == 0 || l->root->detached)
		return;
	spot.keys = prefixd_lease_key(l) + (size_t)lower(k) * l->root->ns->key_len;
	l->n_pend = prefixd_pending_count(e, &spot);
	if (lead && !l->n_pend && !e->draining && !prefixd_leads(l))
		prefixd_pending_lead(e, l, true);
}

/* ---- what lies lower ------------------------------------------------------------------------- */

void prefixd_lease_lower_passed(struct prefixd_lease *l)
{
	if (!l->held || l->hold.at.depth > l->pin.at.depth)
		return;
	radix_pin_drop(l->group->index, &l->hold);
	l->held = false;
}

void prefixd_lease_lower_look(struct prefixd_lease *l)
{
	uint32_t told = prefixd_lease_lower(l);
	uint32_t have = l->held ? l->hold.at.depth - l->pin.at.depth : 0;

	/* Where blocks are lost, the index moves the hold up to what is left. */
	if (have >= told)
		return;
	l->n_gone += told - have;
	l->redis_until = l->n_path + have;
	l->host_until = radix_min_u32(l->host_until, l->redis_until);
	prefixd_lease_lower_passed(l);
}

/*
 * Notes what the look found lower, and holds it.  A block counts for the tier in which it was told
 * first: it cannot leave it downward while it is held.
 */
static void hold_lower(struct prefixd_lease *l, const struct look *k)
{
	struct radix_index *ix = l->group->index;

	if (l->redis_until <= l->n_path || l->redis_until == l->host_until)
		l->host_until = l->n_path + k->m.n_host;
	l->redis_until = l->n_path + lower(k);
	l->host_until = radix_min_u32(l->host_until, l->redis_until);
	if (lower(k) == 0) {
		radix_pin_drop(ix, &l->hold);
		l->held = false;
	} else if (l->held) {
		radix_pin_move(ix, &l->hold, &k->m.end);
	} else {
		radix_pin_take(ix, &l->hold, &k->m.end);
		l->held = true;
	}
}

/* Loading what lies lower: how long it may take, and whether computing is faster. */
static void advise(const struct prefixd_engine *e, const struct prefixd_lease *l,
		   const struct look *k, struct proto_match_rep *rep)
{
	uint64_t ns, tokens = (uint64_t)lower(k) * l->root->ns->block_tokens;

	if (lower(k) == 0)
		return;
	ns = prefixd_load_estimate(e, l->group, k->m.n_host, lower(k) - k->m.n_host);
	rep->load_us = (uint32_t)radix_min_u64(ns / 1000, UINT32_MAX);
	rep->advice = e->config.limits.prefill_ns_per_token &&
		      ns > tokens * e->config.limits.prefill_ns_per_token;
}

/* Before anything is written: could the end of a load be told? */
static bool may_load(struct prefixd_engine *e, const struct prefixd_lease *l, uint32_t flags)
{
	return (flags & PROTO_MATCH_PROMOTE) && prefixd_tiered(e, l->group) &&
	       prefixd_later_room(e) == 0;
}

/* With PROMOTE, what lies lower comes up, unless that is slower than computing. */
static void promote(struct prefixd_engine *e, const struct prefixd_request *rq,
		    struct prefixd_lease *l, const struct look *k, uint32_t deadline_us,
		    struct proto_match_rep *rep)
{
	if (lower(k) == 0 || l->root->detached)
		return;
	/* Now and then one is loaded all the same: else nobody would notice that it got faster. */
	if (rep->advice && ++l->group->n_declined % TRY_ANYWAY) {
		e->counters.load_declined_slow += lower(k);
		return;
	}
	rep->advice = 0;
	if (k->may_load && prefixd_load_begin(e, l, rq->h->seq, prefixd_load_due(e, deadline_us)))
		return;
	rep->advice = 1; /* there is no memory for it */
}

static void reply_match(struct prefixd_engine *e, struct prefixd_request *rq,
			struct prefixd_reply *rp, struct prefixd_lease *l, const struct look *k,
			uint32_t tail_slot, struct proto_match_rep *rep)
{
	const struct prefixd_namespace *ns = l->root->ns;
	uint32_t tail_tokens = tail_slot == RADIX_NONE ? 0 : l->tail_offer;
	uint64_t served = (uint64_t)(l->n_path + lower(k)) * ns->block_tokens + tail_tokens;

	rep->lease = l->id;
	rep->root = l->root->id;
	rep->n_device = k->m.n_device;
	rep->n_host = k->m.n_host;
	rep->n_redis = lower(k) - k->m.n_host;
	rep->n_pending = l->n_pend;
	rep->tail_tokens = tail_tokens;
	rep->tail_slot = tail_slot;
	rep->more = k->runs.full;
	rep->miss_token = radix_min_u64(served, l->n_tokens);
	rep->reuse = radix_reuse_counter(l->group->index);
	rep->reason = served >= l->n_tokens ? PROTO_REASON_NONE : l->reason;
	rep->n_lossy = k->n_lossy;
	if (k->n_lossy)
		rep->first_lossy = l->n_path - k->m.n_device + k->first_lossy;
	e->counters.lossy_blocks += k->n_lossy;
	e->counters.exact_ends += k->declined;
	proto_match_rep_encode_as(&rp->w, 2, rep); /* up to the runs, which are in place */
	prefixd_reply_add_runs(rp, k->runs.n);
	if (rq->s->version >= 3)
		prefixd_reply_add_lossy(rp, rep);
	prefixd_reply_send(e, rq, rp);
	/* Does Redis know more?  Whoever asks next will be told. */
	if (!k->runs.full && !k->declined && !l->n_pend && k->m.n_blocks < k->n_keys &&
	    (!l->island || l->n_path + lower(k) > 0))
		prefixd_seek(e, l->root, &k->m.end, k->keys + (size_t)k->m.n_blocks * ns->key_len,
			     k->n_keys - k->m.n_blocks, NULL, 0);
}

/* ---- MATCH ----------------------------------------------------------------------------------- */

/*
 * Where an island's keys begin: at the block itself, below the named parent, or nowhere yet.
 * Return: 0, RADIX_E_CONFLICT, RADIX_E_CIRCLE, -ENOMEM.
 */
static int place_island(struct prefixd_root *root, const struct proto_match_req *m,
			struct radix_place *ret_from)
{
	struct radix_index *ix = root->ns->group->index;
	struct radix_match one;
	struct radix_place at;
	bool rooted;
	int r;

	if (radix_find_digest(ix, root->index_root, m->keys.p, &at, &rooted) == 0) {
		r = m->parent.n ? radix_graft(ix, root->index_root, m->parent.p, m->keys.p) : 0;
		if (r == -ENOMEM || r == RADIX_E_CONFLICT || r == RADIX_E_CIRCLE)
			return r;
		/* Not found or refused: it stays an island for now. */
		if (m->parent.n &&
		    radix_find_digest(ix, root->index_root, m->keys.p, &at, &rooted) != 0)
			return -ENOMEM;
		*ret_from = at;
		return 0;
	}
	*ret_from = radix_place_island(root->index_root);
	if (m->parent.n &&
	    radix_find_digest(ix, root->index_root, m->parent.p, &at, &rooted) == 0) {
		radix_match(ix, &at, m->parent.p, 1, NULL, &one);
		if (one.n_device == 1)
			*ret_from = one.end;
	}
	return 0;
}

static bool match_check(struct prefixd_engine *e, struct prefixd_request *rq,
			const struct proto_match_req *m, struct prefixd_root_name *name,
			uint32_t *ret_keys)
{
	const uint32_t known = PROTO_MATCH_PROMOTE | PROTO_MATCH_ISLAND | PROTO_MATCH_NO_TAIL |
			       PROTO_MATCH_LEAD | (rq->s->version >= 3 ? PROTO_MATCH_EXACT : 0u);
	const struct prefixd_namespace *ns;
	uint32_t n_tail;

	prefixd_lease_place(e, rq->s);
	if (!prefixd_root_name_check(e, rq, m->has, m->ns, m->tenant, m->salt, name))
		return false;
	ns = name->ns;
	if (!prefixd_keys_check(e, rq, ns, m->keys, ret_keys) ||
	    !prefixd_tail_check(e, rq, ns, m->tail, &n_tail) ||
	    !prefixd_tokens_check(e, rq, ns, *ret_keys, n_tail, m->n_tokens))
		return false;
	if (m->flags & ~known) {
		prefixd_refuse(
			e, rq, PROTO_STATUS_BAD_BODY, "flags",
			"bits 1 (PROMOTE), 2 (ISLAND), 4 (NO_TAIL), 8 (LEAD) and, in version "
			"3, 16 (EXACT) are known");
		return false;
	}
	if ((m->flags & PROTO_MATCH_ISLAND) && (ns->mode != RADIX_KEYS_DIGEST || *ret_keys == 0)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "flags",
			       "ISLAND needs a namespace of digests and at least one key");
		return false;
	}
	if (m->parent.n && (!(m->flags & PROTO_MATCH_ISLAND) || m->parent.n != ns->key_len)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "parent",
			       "'parent' goes with the flag ISLAND and has %u bytes", ns->key_len);
		return false;
	}
	if (prefixd_lost_refuse(e, rq, ns->group) || !prefixd_guard_match(e, rq))
		return false;
	if (rq->s->n_leases >= e->config.limits.max_leases) {
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, NULL,
			       "this session holds %u leases, which is the limit; RELEASE some",
			       rq->s->n_leases);
		return false;
	}
	return true;
}

/* Matches and answers on a lease that has a root; false: nothing was done, no memory. */
static bool match_on(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_lease *l,
		     const struct proto_match_req *m, struct look *k)
{
	uint32_t key_len = l->root->ns->key_len, left, slot;
	struct proto_match_rep rep = { 0 };
	struct prefixd_reply rp;

	prefixd_reply_begin(e, &rp, e->match_fixed);
	k->runs = prefixd_reply_runs(e, &rp, e->match_fixed, PREFIXD_MATCH_TAIL, k->n_keys);
	look(l->group->index, k);
	left = k->n_keys - k->m.n_device;
	if (prefixd_lease_keys_room(e, l, (size_t)left * key_len) < 0)
		return false;
	if (left)
		memcpy(l->keys, k->keys + (size_t)k->m.n_device * key_len, (size_t)left * key_len);
	l->n_keys = left;
	l->n_looked = k->runs.full ? 0 : left;
	l->n_given = k->n_keys;
	l->n_path = l->n_device = k->m.n_device;
	l->n_tokens = m->n_tokens;
	l->diverged = k->m.diverged;
	l->island = m->flags & PROTO_MATCH_ISLAND;
	l->exact = k->exact;
	if (l->island)
		memcpy(l->first_key, k->keys, key_len);
	radix_pin_take(l->group->index, &l->pin, &k->m.device_end);
	hold_lower(l, k);
	look_for_tail(e, l, k, &slot);
	prefixd_lease_begin(e, l, rq->s, l->root);
	prefixd_note_lease(e, l);
	look_for_pending(e, l, k, m->flags & PROTO_MATCH_LEAD);
	l->reason = reason_of(e, l, k);
	advise(e, l, k, &rep);
	if (m->flags & PROTO_MATCH_PROMOTE)
		promote(e, rq, l, k, m->deadline_us, &rep);
	reply_match(e, rq, &rp, l, k, slot, &rep);
	return true;
}

void prefixd_op_match(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct prefixd_root_name name;
	struct proto_match_req m;
	struct prefixd_lease *l;
	struct look k = { 0 };
	const char *bad;
	int r = 0;

	if (proto_match_req_decode_as(rq->s->version, rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (prefixd_op_replayed(e, rq, &m.op_id))
		return;
	if (e->draining) {
		prefixd_refuse(e, rq, PROTO_STATUS_DRAINING, NULL, "the daemon is stopping");
		return;
	}
	if (!match_check(e, rq, &m, &name, &k.n_keys))
		return;
	l = prefixd_lease_new(e);
	if (l && rq->shared) {
		l->stripe = rq->shared;
		l->stripe->lease = l;
	}
	if (!l || prefixd_note_session(e, rq->s) < 0 || prefixd_root_get(e, &name, &l->root) < 0) {
		prefixd_lease_cancel(e, l);
		prefixd_refuse_memory(e, rq);
		return;
	}
	l->group = name.ns->group;
	l->head_len = radix_min_u32(radix_min_u32(m.keys.n, name.ns->key_len), sizeof(l->head));
	if (l->head_len)
		memcpy(l->head, m.keys.p, l->head_len);
	l->window = prefixd_windowed(rq->s, name.ns);
	l->pin.window = l->hold.window = l->donor.window = l->window;
	k.window = prefixd_lease_window(l);
	k.keys = m.keys.p;
	k.tail = m.tail;
	k.no_tail = (m.flags & PROTO_MATCH_NO_TAIL) || !tails_allowed(name.ns);
	k.may_load = may_load(e, l, m.flags);
	k.exact = m.flags & PROTO_MATCH_EXACT;
	k.from = radix_place_root(l->root->index_root);
	r = prefixd_op_prepare(e, rq, &m.op_id, e->match_fixed + PREFIXD_MATCH_TAIL + 8 * k.n_keys);
	/* A graft changes the tree: after it nothing may fail for want of memory. */
	if (r == 0 && (m.flags & PROTO_MATCH_ISLAND))
		r = prefixd_lease_keys_room(e, l, m.keys.n);
	if (r == 0 && (m.flags & PROTO_MATCH_ISLAND))
		r = place_island(l->root, &m, &k.from);
	if (r > 0) {
		prefixd_lease_cancel(e, l);
		prefixd_refuse_graft(e, rq, r);
		return;
	}
	if (r < 0 || !match_on(e, rq, l, &m, &k)) {
		prefixd_lease_cancel(e, l);
		prefixd_refuse_memory(e, rq);
	}
}

/* ---- EXTEND ---------------------------------------------------------------------------------- */

static bool extend_check(struct prefixd_engine *e, struct prefixd_request *rq,
			 const struct prefixd_lease *l, const struct proto_extend_req *m,
			 uint32_t *ret_keys)
{
	const struct prefixd_namespace *ns = l->root->ns;
	uint64_t n_tokens = m->n_tokens || m->keys.n ? m->n_tokens : l->n_tokens;
	uint64_t most = (uint64_t)l->group->n_slots + e->config.limits.max_keys +
			(l->window ? l->group->n_entries - l->group->n_slots : 0);
	uint32_t n_tail;

	if (!prefixd_keys_check(e, rq, ns, m->keys, ret_keys) ||
	    !prefixd_tail_check(e, rq, ns, m->tail, &n_tail) ||
	    !prefixd_tokens_check(e, rq, ns, (uint64_t)l->n_given + *ret_keys, n_tail, n_tokens))
		return false;
	if (n_tokens < l->n_tokens) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "n_tokens",
			       "'n_tokens' is of the whole prompt and was %llu before; it cannot "
			       "shrink",
			       (unsigned long long)l->n_tokens);
		return false;
	}
	if (m->flags & ~(uint32_t)(PROTO_MATCH_PROMOTE | PROTO_MATCH_NO_TAIL | PROTO_MATCH_LEAD)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "flags",
			       "bits 1 (PROMOTE), 4 (NO_TAIL) and 8 (LEAD) are known");
		return false;
	}
	if (m->parent.n && (!l->island || m->parent.n != ns->key_len)) {
		prefixd_refuse(
			e, rq, PROTO_STATUS_BAD_BODY, "parent",
			"'parent' goes with a lease that MATCH began with ISLAND, and has %u "
			"bytes",
			ns->key_len);
		return false;
	}
	if ((uint64_t)l->n_keys + *ret_keys > most) {
		prefixd_refuse(e, rq, PROTO_STATUS_LIMIT, "keys",
			       "this lease would keep %llu keys; at most %llu, which is more than "
			       "the pool holds",
			       (unsigned long long)l->n_keys + *ret_keys, (unsigned long long)most);
		return false;
	}
	return true;
}

/*
 * The blocks that the look found are on the path now.  Those that were told to lie lower came up;
 * of the others, which did an earlier look miss?
 */
static void extend_advance(struct prefixd_lease *l, const struct look *k)
{
	uint32_t n = k->m.n_device, late = radix_min_u32(n, l->n_looked);
	uint32_t host = l->host_until > l->n_path ? l->host_until - l->n_path : 0;
	uint32_t raised = radix_min_u32(n, prefixd_lease_lower(l));

	if (n > 0 && l->tail_last) { /* that block is served whole now */
		l->tail_used -= l->tail_last;
		l->tail_last = 0;
	}
	host = radix_min_u32(host, raised);
	l->n_host += host;
	l->n_redis += raised - host;
	late -= radix_min_u32(late, raised);
	l->n_pending += late;
	l->n_device += n - raised - late;
	prefixd_lease_pop_keys(l, n);
	radix_pin_move(l->group->index, &l->pin, &k->m.device_end);
	if (k->runs.full) /* what was told to lie lower counts when the rest is taken */
		prefixd_lease_lower_passed(l);
	else
		hold_lower(l, k);
	l->n_looked = k->runs.full ? 0 : l->n_keys;
	l->diverged = k->m.diverged;
}

uint32_t prefixd_lease_window(const struct prefixd_lease *l)
{
	return l->window ? l->root->ns->window : UINT32_MAX;
}

struct radix_place prefixd_lease_from(const struct prefixd_lease *l)
{
	struct radix_place at;
	bool rooted;

	if (l->island && l->n_path == 0 && !l->n_reserved &&
	    radix_find_digest(l->group->index, l->root->index_root, l->first_key, &at, &rooted) ==
		    0)
		return at;
	return l->pin.at;
}

static void extend_on(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_lease *l,
		      const struct proto_extend_req *m, uint32_t n_new)
{
	struct look k = { .tail = m->tail, .window = prefixd_lease_window(l) };
	struct proto_match_rep rep = { 0 };
	struct prefixd_reply rp;
	uint32_t slot = RADIX_NONE;

	prefixd_wait_stop(e, l);
	if (n_new)
		memcpy(l->keys + l->keys_off + (size_t)l->n_keys * l->root->ns->key_len, m->keys.p,
		       m->keys.n);
	l->n_keys += n_new;
	l->n_given += n_new;
	if (m->n_tokens)
		l->n_tokens = m->n_tokens;
	k.no_tail = (m->flags & PROTO_MATCH_NO_TAIL) || !tails_allowed(l->root->ns);
	k.may_load = may_load(e, l, m->flags);
	k.exact = l->exact;
	k.from = prefixd_lease_from(l);
	k.keys = prefixd_lease_key(l);
	/* With reservations outstanding the block before is not READY: the keys only wait.  And of
	 * an older epoch nothing is found any more. */
	k.n_keys = l->n_reserved || l->root->detached ? 0 : l->n_keys;
	prefixd_reply_begin(e, &rp, e->match_fixed);
	k.runs = prefixd_reply_runs(e, &rp, e->match_fixed, PREFIXD_MATCH_TAIL, k.n_keys);
	prefixd_lease_lower_look(l);
	if (l->root->detached)
		l->n_gone += prefixd_lease_lower(l);
	if (!l->n_reserved) {
		look(l->group->index, &k);
		extend_advance(l, &k);
		look_for_tail(e, l, &k, &slot);
		look_for_pending(e, l, &k, m->flags & PROTO_MATCH_LEAD);
		prefixd_pending_changed(e, l);
		l->reason = reason_of(e, l, &k);
		advise(e, l, &k, &rep);
		if (m->flags & PROTO_MATCH_PROMOTE)
			promote(e, rq, l, &k, m->deadline_us, &rep);
	} else {
		l->n_pend = 0;
		if ((m->flags & PROTO_MATCH_LEAD) && prefixd_leads(l))
			l->leads_rest = true;
	}
	prefixd_note_lease_moved(e, l);
	reply_match(e, rq, &rp, l, &k, slot, &rep);
}

void prefixd_op_extend(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct proto_extend_req m;
	struct prefixd_lease *l;
	const char *bad;
	uint32_t n_new;
	int r;

	if (proto_extend_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (prefixd_op_replayed(e, rq, &m.op_id))
		return;
	l = prefixd_lease_of(e, rq, m.lease);
	if (!l || !extend_check(e, rq, l, &m, &n_new))
		return;
	r = prefixd_op_prepare(e, rq, &m.op_id,
			       e->match_fixed + PREFIXD_MATCH_TAIL + 8 * (l->n_keys + n_new));
	if (r == 0)
		r = prefixd_lease_keys_room(e, l, m.keys.n);
	/* A parent that is not there, or not resident, grafts nothing: the island stays one. */
	if (r == 0 && m.parent.n)
		r = radix_graft(l->group->index, l->root->index_root, m.parent.p, l->first_key);
	if (r == RADIX_E_CONFLICT || r == RADIX_E_CIRCLE) {
		prefixd_refuse_graft(e, rq, r);
		return;
	}
	if (r < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	extend_on(e, rq, l, &m, n_new);
}
