/*
 * engine_lease.c - the life of a lease, and RELEASE.
 *
 * What it guarantees.  Every slot that a session holds RESERVED or OWN is in exactly one lease's
 * list.  A lease ends once: its counters are settled (device + tail + pending + miss == asked), its
 * path's recency is written, its pins go, its slots are freed or kept back.  Ids are never used
 * twice in one life of the daemon.
 *
 * What it relies on.  The list of slots was grown before slots were taken, so that neither a
 * duplicate nor an ending needs memory.
 *
 * The list:   slots:  [ own own own | (gap) | reserved reserved ... ]
 *                      0         n_own      res_head      + n_reserved
 * A commit takes the first reserved one; a duplicate moves it to the end of the own ones, which the
 * gap always has room for.
 */
#include "daemon/engine_internal.h"
#include "radix/crash.h"

#define KEPT_BUFFER  (256u << 10) /* a free lease keeps a key buffer of up to this size */
#define KEPT_BUFFERS (64u << 20)  /* and all of them together of this */

uint64_t prefixd_tick(struct prefixd_engine *e)
{
	/* The time, made unique: two leases that end in one step still have an order. */
	e->tick = e->now_ns > e->tick ? e->now_ns : e->tick + 1;
	return e->tick;
}

/* ---- the table of leases --------------------------------------------------------------------- */

static int table_room(struct prefixd_engine *e)
{
	uint32_t cap = e->leases_cap ? e->leases_cap * 2 : 64;
	void *v;

	if (e->n_leases < e->leases_cap)
		return 0;
	if (e->n_leases >= 1u << PREFIXD_LEASE_IDX_BITS)
		return -ENOMEM;
	v = prefixd_grow(e->alloc, e->leases, e->leases_cap * sizeof(*e->leases),
			 cap * sizeof(*e->leases));
	if (!v)
		return -ENOMEM;
	e->leases = v;
	e->leases_cap = cap;
	return 0;
}

/* Back to zero, but for its place and its buffers. */
static void lease_clear(struct prefixd_lease *l)
{
	struct prefixd_lease keep = *l;

	memset(l, 0, sizeof(*l));
	radix_list_init(&l->link);
	radix_list_init(&l->aging);
	radix_list_init(&l->leading);
	radix_list_init(&l->lead_due);
	radix_list_init(&l->waiters);
	radix_list_init(&l->changed);
	radix_list_init(&l->wait);
	radix_list_init(&l->room.link);
	l->idx = keep.idx;
	l->keys = keep.keys;
	l->keys_cap = keep.keys_cap;
	l->slots = keep.slots;
	l->slots_cap = keep.slots_cap;
	l->places = keep.places;
	l->places_cap = keep.places_cap;
	l->record = keep.record;
}

static size_t buffers(const struct prefixd_lease *l)
{
	return l->keys_cap + l->slots_cap * sizeof(*l->slots) + l->places_cap * sizeof(*l->places);
}

static void buffers_free(struct prefixd_engine *e, struct prefixd_lease *l)
{
	radix_give(e->alloc, l->keys, l->keys_cap);
	radix_give(e->alloc, l->slots, l->slots_cap * sizeof(*l->slots));
	radix_give(e->alloc, l->places, l->places_cap * sizeof(*l->places));
}

/* One more, at the end of the table. */
static struct prefixd_lease *lease_make(struct prefixd_engine *e)
{
	struct prefixd_lease *l;

	if (table_room(e) < 0)
		return NULL;
	l = prefixd_take0(e->alloc, sizeof(*l));
	if (!l)
		return NULL;
	l->idx = e->n_leases;
	if (prefixd_note_lease_room(e, l) < 0) {
		radix_give(e->alloc, l, sizeof(*l));
		return NULL;
	}
	lease_clear(l);
	e->leases[e->n_leases++] = l;
	return l;
}

struct prefixd_lease *prefixd_lease_new(struct prefixd_engine *e)
{
	struct prefixd_lease *l;

	if (radix_list_empty(&e->free_leases))
		return lease_make(e);
	l = radix_list_first(&e->free_leases, struct prefixd_lease, link);
	radix_list_remove(&l->link);
	e->spare_bytes -= buffers(l);
	lease_clear(l);
	return l;
}

struct prefixd_lease *prefixd_lease_at(struct prefixd_engine *e, uint32_t idx)
{
	while (e->n_leases <= idx) {
		struct prefixd_lease *l = lease_make(e);

		if (!l)
			return NULL;
		radix_list_add_tail(&e->free_leases, &l->link);
	}
	return e->leases[idx];
}

void prefixd_lease_put_away(struct prefixd_engine *e, struct prefixd_lease *l)
{
	size_t bytes = buffers(l);

	prefixd_note_lease_over(e, l); /* its slots are free by now */
	if (l->restored)
		prefixd_restored_over(e, l);
	radix_list_remove(&l->link);
	radix_list_remove(&l->aging);
	lease_clear(l);
	if (bytes > KEPT_BUFFER || e->spare_bytes + bytes > KEPT_BUFFERS) {
		buffers_free(e, l);
		e->key_bytes -= l->keys_cap;
		l->keys = NULL;
		l->slots = l->places = NULL;
		l->keys_cap = 0;
		l->slots_cap = l->places_cap = 0;
		bytes = 0;
	}
	e->spare_bytes += bytes;
	radix_list_add_head(&e->free_leases, &l->link);
}

/* A lease that was never begun.  Accepts NULL. */
void prefixd_lease_cancel(struct prefixd_engine *e, struct prefixd_lease *l)
{
	if (!l)
		return;
	if (l->root)
		prefixd_root_put(e, l->root);
	if (l->stripe)
		l->stripe->lease = NULL;
	prefixd_lease_put_away(e, l);
}

void prefixd_leases_deinit(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_leases; i++) {
		struct prefixd_lease *l = e->leases[i];

		if (prefixd_is_shared(l))
			prefixd_stripe_free(e, l->stripe);
		if (l->taking)
			radix_give(e->alloc, l->taking, prefixd_taking_len(l->taking->n));
		buffers_free(e, l);
		radix_give(e->alloc, l, sizeof(*l));
	}
	radix_give(e->alloc, e->leases, e->leases_cap * sizeof(*e->leases));
	e->leases = NULL;
	e->n_leases = 0;
}

void prefixd_lease_begin(struct prefixd_engine *e, struct prefixd_lease *l,
			 struct prefixd_session *s, struct prefixd_root *root)
{
	l->state = PREFIXD_LEASE_ACTIVE;
	l->told = false;
	l->id = e->next_serial++ << PREFIXD_LEASE_IDX_BITS | l->idx;
	l->session = s;
	l->root = root;
	l->begun_ns = e->now_ns;
	l->uid = s->peer.uid;
	l->pid = s->peer.pid;
	l->instance = s->instance;
	if (s->copies) /* also without an age limit: a reload may bring one */
		radix_list_add_tail(&e->aging, &l->aging);
	if (!l->stripe) { /* else each rank has a seat on its session's list */
		radix_list_add_tail(&s->leases, &l->link);
		s->n_leases++;
	}
	e->n_active++;
	e->counters.lookups++;
}

struct prefixd_lease *prefixd_lease_any_of(struct prefixd_engine *e, struct prefixd_request *rq,
					   uint64_t id)
{
	uint32_t idx = (uint32_t)(id & ((1u << PREFIXD_LEASE_IDX_BITS) - 1));
	struct prefixd_lease *l = idx < e->n_leases ? e->leases[idx] : NULL, *mine = l;

	if (l && l->stripe)
		mine = prefixd_seat_find(l, rq->s);
	if (!mine || l->id != id || mine->session != rq->s) {
		e->counters.unknown_lease++;
		prefixd_refuse(
			e, rq, PROTO_STATUS_UNKNOWN_LEASE, "lease",
			"this session holds no such lease; it was released, revoked, or never "
			"was: MATCH again");
		return NULL;
	}
	if (mine->state == PREFIXD_LEASE_REVOKED) {
		mine->told = true;
		if (mine->lost)
			prefixd_refuse_lost(e, rq, l->group, PROTO_STATUS_REVOKED);
		else
			prefixd_refuse(
				e, rq, PROTO_STATUS_REVOKED, "lease",
				"the lease grew older than allowed and was taken back; say "
				"QUIESCED when the device is done with its slots, and MATCH again");
		if (l->n_own + l->n_places ==
		    0) /* it was said once; next time the lease is unknown */
			(void)prefixd_lease_unquarantine(e, mine);
		return NULL;
	}
	rq->seat = mine != l ? mine : NULL;
	return l;
}

struct prefixd_lease *prefixd_lease_of(struct prefixd_engine *e, struct prefixd_request *rq,
				       uint64_t id)
{
	struct prefixd_lease *l = prefixd_lease_any_of(e, rq, id);

	/* A rank may COMMIT while another's RESERVE waits. */
	if (l && ((radix_list_linked(&l->room.link) && !rq->seat) || l->taking)) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "lease",
			       "a %s; take its reply first, or RELEASE the lease",
			       l->taking ? "COMMIT of this lease is being copied"
					 : "RESERVE of this lease waits for slots");
		return NULL;
	}
	return l;
}

int prefixd_lease_keys_room(struct prefixd_engine *e, struct prefixd_lease *l, size_t n_bytes)
{
	size_t have = l->root ? (size_t)l->n_keys * l->root->ns->key_len : 0;
	size_t cap = l->keys_cap ? l->keys_cap : 4096;
	uint8_t *keys;

	if (l->keys_off + have + n_bytes <= l->keys_cap)
		return 0;
	if (have + n_bytes <= l->keys_cap) {
		memmove(l->keys, l->keys + l->keys_off, have);
		l->keys_off = 0;
		return 0;
	}
	while (cap < have + n_bytes)
		cap *= 2;
	/* A worker may keep long prompts in many leases; it must not fill the machine by it. */
	if (e->key_bytes - l->keys_cap + cap > e->config.lease_key_bytes)
		return -ENOMEM;
	keys = radix_take(e->alloc, cap);
	if (!keys)
		return -ENOMEM;
	if (have)
		memcpy(keys, l->keys + l->keys_off, have);
	radix_give(e->alloc, l->keys, l->keys_cap);
	e->key_bytes = e->key_bytes - l->keys_cap + cap;
	l->keys = keys;
	l->keys_cap = cap;
	l->keys_off = 0;
	return 0;
}

void prefixd_lease_drop_donor(struct prefixd_lease *l)
{
	if (!l->donor_held)
		return;
	radix_pin_drop(l->group->index, &l->donor);
	l->donor_held = false;
}

/* ---- the end --------------------------------------------------------------------------------- */

static uint64_t take(uint64_t *left, uint64_t tokens)
{
	uint64_t n = radix_min_u64(*left, tokens);

	*left -= n;
	return n;
}

/* Why blocks that lay in a lower tier were not served from there. */
static uint64_t *missed_lower(struct prefixd_counters *c, uint8_t reason, bool gone)
{
	switch (reason) {
	case PROTO_REASON_TIER_LOST:
		return &c->miss_tier_lost;
	case PROTO_REASON_CORRUPT:
		return &c->miss_corrupt;
	case PROTO_REASON_TIER_DOWN:
		return gone ? &c->miss_tier_lost : &c->miss_tier_down;
	case PROTO_REASON_NO_ROOM:
		return gone ? &c->miss_tier_lost : &c->miss_no_room;
	default:
		return gone ? &c->miss_tier_lost : &c->miss_declined;
	}
}

/* Misses by reason: the surest reasons first, each for the tokens that it can explain. */
static void settle_misses(struct prefixd_counters *c, const struct prefixd_lease *l, uint64_t miss)
{
	uint64_t bt = l->root->ns->block_tokens, n = l->n_tokens, left = miss;
	uint32_t lower = prefixd_lease_lower(l), no_room = l->no_room;

	/* What no key names can never be served as a block, nor can the shared part of one. */
	c->miss_below_block += take(&left, n - radix_min_u64(n, bt * l->n_given) + l->shared);
	*missed_lower(c, l->load_reason, true) += take(&left, bt * l->n_gone);
	*missed_lower(c, l->load_reason, false) += take(&left, bt * (l->n_computed + lower));
	/* The last RESERVE may have failed over blocks that lay lower: those are counted. */
	if (lower > l->n_reserved)
		no_room -= radix_min_u32(no_room, lower - l->n_reserved);
	c->miss_no_room += take(&left, bt * no_room);
	c->miss_pending += take(&left, bt * l->n_pend);
	if (l->reason == PROTO_REASON_TIER_DOWN)
		c->miss_tier_down += left;
	else if (l->diverged && l->n_path > 0)
		c->miss_diverged += left;
	else if (l->root->ns->seed_mismatch)
		c->miss_seed_mismatch += left;
	else
		c->miss_never_seen += left;
}

/* The same in whole blocks, by where they were served from. */
static void settle_blocks(struct prefixd_counters *c, const struct prefixd_lease *l)
{
	uint64_t left = l->n_given;

	c->queried_blocks += left;
	c->lookup_device_blocks += take(&left, (uint64_t)l->n_device + l->n_pending);
	c->lookup_host_blocks += take(&left, l->n_host);
	c->lookup_redis_blocks += take(&left, l->n_redis);
	c->lookup_miss_blocks += left;
}

/* Splits what was asked for into hits by tier, and misses.  Returns those of partly used blocks. */
static uint64_t settle_tokens(const struct prefixd_lease *l, struct proto_release_rep *r)
{
	uint64_t bt = l->root->ns->block_tokens, left = l->n_tokens, tail;

	r->queried_tokens = l->n_tokens;
	r->hit_device_tokens = take(&left, bt * l->n_device);
	r->hit_host_tokens = take(&left, bt * l->n_host);
	r->hit_redis_tokens = take(&left, bt * l->n_redis);
	r->hit_pending_tokens = take(&left, bt * l->n_pending);
	tail = take(&left, l->tail_used);
	r->hit_device_tokens += tail;
	r->miss_tokens = left;
	return tail;
}

/* Counts them, misses by reason, once. */
static void settle(struct prefixd_engine *e, struct prefixd_lease *l, struct proto_release_rep *r)
{
	struct prefixd_counters *c = &e->counters;
	uint64_t tail;

	prefixd_lease_lower_look(l);
	tail = settle_tokens(l, r);
	c->queried_tokens += r->queried_tokens;
	c->hit_device_tokens += r->hit_device_tokens;
	c->hit_host_tokens += r->hit_host_tokens;
	c->hit_redis_tokens += r->hit_redis_tokens;
	c->hit_tail_tokens += tail;
	c->hit_pending_tokens += r->hit_pending_tokens;
	c->miss_tokens += r->miss_tokens;
	if (r->miss_tokens == 0)
		c->lookups_full++;
	else if (r->miss_tokens == l->n_tokens)
		c->lookups_miss++;
	else
		c->lookups_partial++;
	settle_misses(c, l, r->miss_tokens);
	settle_blocks(c, l);
}

/* Gives every slot back; keep_back: nobody may have them yet. */
static void give_slots(struct prefixd_engine *e, struct prefixd_lease *l, bool keep_back)
{
	e->counters.discarded_blocks += l->n_reserved;
	/* Close the gap, so that a lease in quarantine has one list. */
	if (l->n_reserved)
		memmove(l->slots + l->n_own, l->slots + l->res_head,
			l->n_reserved * sizeof(*l->slots));
	l->n_own += l->n_reserved;
	l->n_reserved = 0;
	l->res_head = l->n_own;
	for (uint32_t i = 0; i < l->n_own; i++) {
		int r = radix_slot_discard(l->group->index, l->idx, l->slots[i], keep_back);

		radix_assert(r == 0);
		if (!keep_back)
			prefixd_poison(e, l->group->id, l->slots[i]);
	}
	if (!keep_back) {
		l->n_own = 0;
		return;
	}
	e->counters.quarantined_blocks += l->n_own;
	prefixd_fence_stir(l->group);
}

static void count_end(struct prefixd_counters *c, enum prefixd_lease_end how)
{
	switch (how) {
	case PREFIXD_END_RELEASED:
		c->leases_released++;
		break;
	case PREFIXD_END_DIED:
		c->leases_died++;
		break;
	case PREFIXD_END_QUIESCED:
		c->leases_quiesced++;
		break;
	case PREFIXD_END_REVOKED:
		c->leases_revoked++;
		break;
	}
}

bool prefixd_lease_keeps_slots(const struct prefixd_lease *l)
{
	l = prefixd_lease_holder(l);
	return l->n_own || l->n_reserved || (l->restored && l->group->n_lost);
}

static void quarantine(struct prefixd_engine *e, struct prefixd_lease *l)
{
	l->boot = l->session->boot;
	l->session = NULL;
	l->state = PREFIXD_LEASE_QUARANTINE;
	l->due_ns = e->now_ns + e->config.grace_ns;
	radix_list_add_tail(&e->quarantine, &l->link);
	prefixd_note_lease_moved(e, l);
}

void prefixd_lease_quarantine(struct prefixd_engine *e, struct prefixd_lease *l)
{
	radix_list_remove(&l->link);
	l->session->n_leases--;
	quarantine(e, l);
}

/* A revoked lease whose session goes: its slots, which are kept back already, get their end. */
static void finish_revoked(struct prefixd_engine *e, struct prefixd_lease *l,
			   enum prefixd_lease_end how)
{
	if (how != PREFIXD_END_DIED || e->config.grace_ns == 0 || !prefixd_lease_keeps_slots(l))
		(void)prefixd_lease_unquarantine(e, l);
	else
		prefixd_lease_quarantine(e, l);
}

/* Of an active lease all but its place: counters, recency, pins, slots. */
static void end_active(struct prefixd_engine *e, struct prefixd_lease *l,
		       enum prefixd_lease_end how, bool keep_back, struct proto_release_rep *ret)
{
	if (l->restored) { /* an earlier life counted its lookup */
		e->n_restored--;
	} else {
		settle(e, l, ret);
		count_end(&e->counters, how);
	}
	prefixd_fence_done(l);
	prefixd_reserve_end(e, l, how);
	prefixd_take_stop(e, l, how);
	prefixd_places_drop(e, l, how == PREFIXD_END_REVOKED);
	prefixd_load_orphan(e, l);
	if (how == PREFIXD_END_REVOKED)
		prefixd_wait_end(e, l, PROTO_WAIT_FAILED, 0);
	prefixd_wait_stop(e, l);
	prefixd_pending_resign(e, l);
	prefixd_lease_drop_donor(l);
	prefixd_lease_tell_hit(e, l);
	radix_touch(l->group->index, &l->pin.at, prefixd_tick(e));
	radix_pin_drop(l->group->index, &l->pin);
	radix_crash_point("engine_lease_unpinned");
	if (l->held)
		radix_pin_drop(l->group->index, &l->hold);
	l->held = false;
	give_slots(e, l, keep_back);
	prefixd_room_stir(e, l->group);
	prefixd_root_put(e, l->root);
	l->group->reap = true;
	l->root = NULL;
	l->n_keys = 0;
	l->keys_off = 0;
	radix_list_remove(&l->aging);
	e->n_active--;
}

void prefixd_lease_end_shared(struct prefixd_engine *e, struct prefixd_lease *l,
			      enum prefixd_lease_end how, bool keep_back)
{
	struct proto_release_rep r = { 0 };

	end_active(e, l, how, keep_back, &r);
	l->state = how == PREFIXD_END_REVOKED ? PREFIXD_LEASE_REVOKED : PREFIXD_LEASE_QUARANTINE;
	l->session = NULL;
	prefixd_note_lease_moved(e, l);
}

void prefixd_lease_finish(struct prefixd_engine *e, struct prefixd_lease *l,
			  enum prefixd_lease_end how, struct proto_release_rep *ret)
{
	struct proto_release_rep r = { 0 };
	bool keep_back = how == PREFIXD_END_REVOKED ||
			 (how == PREFIXD_END_DIED && e->config.grace_ns > 0);

	if (l->state == PREFIXD_LEASE_REVOKED) {
		finish_revoked(e, l, how);
		return;
	}
	if (l->state == PREFIXD_LEASE_KEPT) {
		prefixd_kept_finish(e, l, how);
		return;
	}
	if (l->state == PREFIXD_LEASE_SEAT) {
		if (ret) /* as it stands: what is counted follows when the last rank is over */
			settle_tokens(prefixd_lease_holder(l), ret);
		prefixd_seat_finish(e, l, how);
		return;
	}
	end_active(e, l, how, keep_back, &r);
	if (ret)
		*ret = r;
	if (how == PREFIXD_END_REVOKED) {
		l->state = PREFIXD_LEASE_REVOKED;
		prefixd_note_lease_moved(e, l);
		return;
	}
	l->session->n_leases--;
	if (keep_back && prefixd_lease_keeps_slots(l)) {
		radix_list_remove(&l->link);
		quarantine(e, l);
		return;
	}
	l->session = NULL;
	prefixd_lease_put_away(e, l);
}

uint32_t prefixd_lease_unquarantine(struct prefixd_engine *e, struct prefixd_lease *l)
{
	uint32_t n = l->n_own;

	if (prefixd_is_seat(l))
		return prefixd_seat_over(e, l);
	for (uint32_t i = 0; i < n; i++) {
		int r = radix_quarantine_end(l->group->index, l->slots[i]);

		radix_assert(r == 0);
		prefixd_poison(e, l->group->id, l->slots[i]);
	}
	if (l->desk)
		prefixd_places_free(l);
	prefixd_room_stir(e, l->group);
	prefixd_fence_stir(l->group);
	if (l->session)
		l->session->n_leases--;
	prefixd_lease_put_away(e, l);
	return n;
}

bool prefixd_lease_forget(struct prefixd_engine *e, struct prefixd_session *s)
{
	struct radix_list *it;

	radix_list_foreach(it, &s->leases) {
		struct prefixd_lease *l = radix_list_entry(it, struct prefixd_lease, link);

		if (l->state != PREFIXD_LEASE_REVOKED ||
		    prefixd_lease_holder(l)->n_own + l->n_places > 0)
			continue;
		(void)prefixd_lease_unquarantine(e, l);
		return true;
	}
	return false;
}

void prefixd_lease_place(struct prefixd_engine *e, struct prefixd_session *s)
{
	while (s->n_leases >= e->config.limits.max_leases && prefixd_lease_forget(e, s))
		continue;
}

/* ---- RELEASE --------------------------------------------------------------------------------- */

void prefixd_op_release(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct proto_release_req m;
	struct proto_release_rep rep = { 0 };
	struct prefixd_lease *l;
	struct prefixd_reply rp;
	const char *bad;

	if (proto_release_req_decode_as(rq->s->version, rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	if (!prefixd_word_check(e, rq, m.word))
		return;
	if (prefixd_op_replayed(e, rq, &m.op_id))
		return;
	l = prefixd_lease_any_of(e, rq, m.lease);
	if (!l)
		return;
	if (m.flags & ~(uint32_t)(PROTO_RELEASE_OVER | PROTO_RELEASE_NEXT)) {
		prefixd_refuse(e, rq, PROTO_STATUS_BAD_BODY, "flags",
			       "bits 1 (OVER) and 2 (NEXT) are known");
		return;
	}
	if (prefixd_op_prepare(e, rq, &m.op_id, 64) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	prefixd_lease_finish(e, rq->seat ? rq->seat : l, PREFIXD_END_RELEASED, &rep);
	prefixd_reply_begin(e, &rp, 0);
	proto_release_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}
