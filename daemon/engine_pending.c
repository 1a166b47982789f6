/*
 * engine_pending.c - single flight: one lease computes a block, others wait for it.
 *
 * What it guarantees.  A lease that reserves, or that said LEAD, stands in its root's list of
 * leaders until it has committed, ends, loses its socket, or its time is up.  Which blocks are
 * pending follows from that list: nothing is kept per key.  A lease that waits holds no reservation
 * and leads nothing, so waits form no circle.  Each WAIT that was answered WAITING ends once: by
 * one EVENT, or silently by its own session.
 *
 * What it relies on.  The blocks before what a leader computes are pinned by it, so they stay as
 * long as it leads.  Room for one EVENT per wait is made when the wait begins.
 *
 * Where leaders move or end, that is only noted; prefixd_pending_settle() looks at the waiters at
 * the end of the step, so that one COMMIT of many blocks makes one EVENT for each of them.
 */
#include "daemon/engine_internal.h"
#include "radix/windows.h"

#include <stdio.h>

#define LEADERS_LOOKED_AT 256u /* of a root, those that registered first */
#define WAITERS_MAX       256u /* of a leader; all are looked at in the step in which it fails */

/* ---- what is pending ------------------------------------------------------------------------- */

static bool same_place(const struct radix_place *a, const struct radix_place *b)
{
	return a->root == b->root && a->node == b->node && a->idx == b->idx;
}

/* Leading keys of the spot that the leader covers. */
static uint32_t common(const struct prefixd_lease *l, const struct prefixd_spot *spot)
{
	uint32_t key_len = spot->root->ns->key_len, cover = prefixd_lead_cover(l), ahead, n, i;
	const uint8_t *keys = prefixd_lease_key(l);
	struct radix_match m;

	if (l == spot->self || l->island != (spot->first_key != NULL) || l->n_path > spot->depth)
		return 0;
	if (l->island && memcmp(l->first_key, spot->first_key, key_len) != 0)
		return 0;
	ahead = spot->depth - l->n_path;
	if (ahead >= cover)
		return 0;
	/* Where others have stored what the leader goes on to compute, its keys lead there. */
	m.end = l->pin.at;
	if (ahead) {
		struct radix_place from = l->pin.at;
		bool rooted;

		/* An island that was nowhere when the leader looked, and was begun since. */
		if (l->island && l->n_path == 0 &&
		    radix_find_digest(l->group->index, spot->root->index_root, l->first_key, &from,
				      &rooted) != 0)
			return 0;
		radix_match(l->group->index, &from, keys, ahead, NULL, &m);
	}
	if (ahead && m.n_blocks != ahead)
		return 0;
	/* Islands that begin with one key begin with one block, wherever either was looked for. */
	if (!(l->island && spot->depth == 0) && !same_place(&m.end, &spot->at))
		return 0;
	keys += (size_t)ahead * key_len;
	n = radix_min_u32(cover - ahead, spot->n_keys);
	if (n && memcmp(keys, spot->keys, (size_t)n * key_len) == 0)
		return n;
	for (i = 0; i < n; i++)
		if (memcmp(keys + (size_t)i * key_len, spot->keys + (size_t)i * key_len, key_len))
			break;
	return i;
}

/* The first leader of the spot's first key, and how far they go together.  NULL: nobody. */
static struct prefixd_lease *leader_of(const struct prefixd_engine *e,
				       const struct prefixd_spot *spot, uint32_t *ret_common)
{
	const struct radix_list *it;
	uint32_t looked = 0;

	radix_list_foreach(it, &spot->root->leaders) {
		struct prefixd_lease *l = radix_list_entry((struct radix_list *)(uintptr_t)it,
							   struct prefixd_lease, leading);

		if (looked++ == LEADERS_LOOKED_AT)
			break;
		*ret_common = l->lead_due_ns > e->now_ns ? common(l, spot) : 0;
		if (*ret_common)
			return l;
	}
	return NULL;
}

uint32_t prefixd_pending_count(const struct prefixd_engine *e, const struct prefixd_spot *spot)
{
	const struct radix_list *it;
	uint32_t looked = 0, most = 0;

	radix_list_foreach(it, &spot->root->leaders) {
		const struct prefixd_lease *l = radix_list_entry((struct radix_list *)(uintptr_t)it,
								 struct prefixd_lease, leading);
		uint32_t n;

		if (looked++ == LEADERS_LOOKED_AT || most == spot->n_keys)
			break;
		n = l->lead_due_ns > e->now_ns ? common(l, spot) : 0;
		most = n > most ? n : most;
	}
	return most;
}

/* ---- leading --------------------------------------------------------------------------------- */

void prefixd_pending_lead(struct prefixd_engine *e, struct prefixd_lease *l, bool rest)
{
	struct radix_list *at = &e->lead_due;

	if (e->config.limits.pending_ns == 0) { /* switched off, maybe a moment ago */
		prefixd_pending_resign(e, l);
		return;
	}
	l->leads_rest = rest;
	l->lead_due_ns = e->now_ns + e->config.limits.pending_ns;
	if (!prefixd_leads(l))
		radix_list_add_tail(&l->root->leaders, &l->leading);
	radix_list_remove(&l->lead_due);
	/* Times differ in order only after a reload. */
	while (at->prev != &e->lead_due &&
	       radix_list_entry(at->prev, struct prefixd_lease, lead_due)->lead_due_ns >
		       l->lead_due_ns)
		at = at->prev;
	radix_list_add_tail(at, &l->lead_due);
	prefixd_pending_changed(e, l);
}

/* The list is short, or its end is where a waiter that moves on belongs. */
static void add_waiter(struct radix_list *head, struct prefixd_lease *w)
{
	struct radix_list *at = head;

	radix_list_remove(&w->wait);
	while (at->prev != head &&
	       radix_list_entry(at->prev, struct prefixd_lease, wait)->wait_serial > w->wait_serial)
		at = at->prev;
	radix_list_add_tail(at, &w->wait);
}

static void unlead(struct prefixd_engine *e, struct prefixd_lease *w)
{
	w->waits_on = NULL;
	add_waiter(&e->unled, w);
}

void prefixd_pending_resign(struct prefixd_engine *e, struct prefixd_lease *l)
{
	l->leads_rest = false;
	radix_list_remove(&l->leading);
	radix_list_remove(&l->lead_due);
	radix_list_remove(&l->changed);
	while (!radix_list_empty(&l->waiters))
		unlead(e, radix_list_first(&l->waiters, struct prefixd_lease, wait));
}

void prefixd_pending_changed(struct prefixd_engine *e, struct prefixd_lease *l)
{
	if (!prefixd_leads(l))
		return;
	if (!radix_list_empty(&l->waiters) && !radix_list_linked(&l->changed))
		radix_list_add_tail(&e->changed, &l->changed);
	if (prefixd_lead_cover(l) > 0)
		return;
	l->leads_rest = false;
	radix_list_remove(&l->leading);
	radix_list_remove(&l->lead_due);
}

/* ---- the heap of deadlines ------------------------------------------------------------------- */

static void heap_set(struct prefixd_engine *e, uint32_t pos, struct prefixd_lease *w)
{
	e->waits[pos] = w;
	w->wait_pos = pos;
}

/* Puts w where it belongs, at or around the hole `pos`. */
static void heap_sift(struct prefixd_engine *e, uint32_t pos, struct prefixd_lease *w)
{
	uint32_t child;

	while (pos > 0 && e->waits[(pos - 1) / 2]->wait_due_ns > w->wait_due_ns) {
		heap_set(e, pos, e->waits[(pos - 1) / 2]);
		pos = (pos - 1) / 2;
	}
	while ((child = 2 * pos + 1) < e->n_waits) {
		if (child + 1 < e->n_waits &&
		    e->waits[child + 1]->wait_due_ns < e->waits[child]->wait_due_ns)
			child++;
		if (e->waits[child]->wait_due_ns >= w->wait_due_ns)
			break;
		heap_set(e, pos, e->waits[child]);
		pos = child;
	}
	heap_set(e, pos, w);
}

/* Room for one more wait, and for what all of them may have to be told in one step. */
static int waits_room(struct prefixd_engine *e)
{
	uint32_t cap = e->waits_cap ? 2 * e->waits_cap : 64;
	void *v;

	if (e->n_waits < e->waits_cap)
		return 0;
	if (prefixd_out_reserve(e, prefixd_out_total(e->config.limits.max_frame, cap, e->later_cap),
				64 + cap + e->later_cap) < 0)
		return -ENOMEM;
	v = prefixd_grow(e->alloc, e->waits, e->waits_cap * sizeof(struct prefixd_lease *),
			 cap * sizeof(struct prefixd_lease *));
	if (!v)
		return -ENOMEM;
	e->waits = v;
	e->waits_cap = cap;
	return 0;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void prefixd_wait_stop(struct prefixd_engine *e, struct prefixd_lease *w)
{
	struct prefixd_lease *last;

	if (!w->wait_serial)
		return;
	if (w->stripe) /* whoever waits without having stopped it is told */
		prefixd_call_silent(e, w->stripe, w->wait_seq, PROTO_WAIT_DEADLINE);
	radix_list_remove(&w->wait);
	w->waits_on = NULL;
	w->wait_serial = 0;
	last = e->waits[--e->n_waits];
	if (last != w)
		heap_sift(e, w->wait_pos, last);
}

static uint32_t lead_left_us(const struct prefixd_engine *e, const struct prefixd_lease *leader)
{
	uint64_t left = leader->lead_due_ns > e->now_ns ? leader->lead_due_ns - e->now_ns : 0;

	return (uint32_t)radix_min_u64(left / 1000, UINT32_MAX);
}

void prefixd_wait_end(struct prefixd_engine *e, struct prefixd_lease *w,
		      enum proto_wait_state state, uint32_t n)
{
	struct proto_header h = { .op = PROTO_OP_EVENT, .seq = w->wait_seq };
	struct prefixd_request rq = { .s = w->session, .h = &h };
	struct proto_event event = { .lease = w->id, .state = (uint8_t)state, .n = n };
	struct prefixd_reply rp;

	if (!w->wait_serial)
		return;
	if (state == PROTO_WAIT_LEAD)
		event.leader_us = lead_left_us(e, w);
	if (w->stripe)
		prefixd_call_event(e, w->stripe, w->wait_seq, &event);
	prefixd_wait_stop(e, w);
	e->counters.waits_ready += state == PROTO_WAIT_READY;
	e->counters.waits_lead += state == PROTO_WAIT_LEAD;
	if (w->stripe)
		return;
	prefixd_reply_begin(e, &rp, 0);
	proto_event_encode(&rp.w, &event);
	prefixd_reply_send(e, &rq, &rp);
}

/* Blocks behind the lease's path that are READY now, and the place behind them. */
static uint32_t ready_behind(const struct prefixd_lease *w, struct radix_place *ret_at)
{
	struct radix_place from = prefixd_lease_from(w);
	struct radix_match m;
	uint32_t exact;

	radix_match_window(w->group->index, &from, prefixd_lease_key(w), w->n_keys, !w->window,
			   NULL, &m);
	if (w->exact) { /* what is changed it would not be given */
		exact = radix_path_exact(w->group->index, &m.device_end, m.n_device,
					 prefixd_lease_window(w));
		if (exact < m.n_device)
			radix_match_window(w->group->index, &from, prefixd_lease_key(w), exact,
					   !w->window, NULL, &m);
	}
	*ret_at = m.device_end;
	return m.n_device;
}

/*
 * What a lease that would wait, up to path position w->wait_until, has to be told.  WAITING: with
 * *ret_leader, and wait_until is how far the two go together.  LEAD: it leads now.
 */
static enum proto_wait_state judge(struct prefixd_engine *e, struct prefixd_lease *w,
				   struct prefixd_lease **ret_leader, uint32_t *ret_ready)
{
	struct prefixd_spot spot = {
		.root = w->root,
		.first_key = w->island ? w->first_key : NULL,
		.self = w,
	};
	uint32_t ready = ready_behind(w, &spot.at), n;

	*ret_ready = ready;
	if (w->n_path + ready >= w->wait_until)
		return PROTO_WAIT_READY;
	spot.depth = w->n_path + ready;
	spot.keys = prefixd_lease_key(w) + (size_t)ready * w->root->ns->key_len;
	spot.n_keys = w->n_keys - ready;
	*ret_leader = leader_of(e, &spot, &n);
	if (*ret_leader) {
		w->wait_until = spot.depth + n;
		return PROTO_WAIT_WAITING;
	}
	if (e->draining)
		return PROTO_WAIT_FAILED;
	w->n_pend = 0;
	prefixd_pending_lead(e, w, true);
	return PROTO_WAIT_LEAD;
}

static void settle_leader(struct prefixd_engine *e, struct prefixd_lease *l)
{
	uint32_t end = l->n_path + (prefixd_leads(l) ? prefixd_lead_cover(l) : 0);
	struct radix_list *it, *tmp;

	radix_list_foreach_safe(it, tmp, &l->waiters) {
		struct prefixd_lease *w = radix_list_entry(it, struct prefixd_lease, wait);

		if (l->n_path >= w->wait_until)
			prefixd_wait_end(e, w, PROTO_WAIT_READY, w->wait_until - w->n_path);
		else if (end < w->wait_until)
			unlead(e, w);
	}
}

void prefixd_pending_settle(struct prefixd_engine *e)
{
	while (!radix_list_empty(&e->changed)) {
		struct prefixd_lease *l = radix_list_first(&e->changed, struct prefixd_lease,
							   changed);

		radix_list_remove(&l->changed);
		settle_leader(e, l);
	}
	while (!radix_list_empty(&e->unled)) {
		struct prefixd_lease *w = radix_list_first(&e->unled, struct prefixd_lease, wait);
		struct prefixd_lease *leader = NULL;
		uint32_t ready;
		enum proto_wait_state state = judge(e, w, &leader, &ready);

		if (state == PROTO_WAIT_WAITING) {
			w->waits_on = leader;
			add_waiter(&leader->waiters, w);
		} else {
			prefixd_wait_end(e, w, state, ready);
		}
	}
}

void prefixd_pending_time(struct prefixd_engine *e)
{
	while (!radix_list_empty(&e->lead_due)) {
		struct prefixd_lease *l = radix_list_first(&e->lead_due, struct prefixd_lease,
							   lead_due);

		if (l->lead_due_ns > e->now_ns)
			break;
		e->counters.leaders_late++;
		prefixd_pending_resign(e, l);
	}
	while (e->n_waits && e->waits[0]->wait_due_ns <= e->now_ns)
		prefixd_wait_end(e, e->waits[0], PROTO_WAIT_DEADLINE, 0);
}

uint64_t prefixd_pending_deadline(const struct prefixd_engine *e)
{
	uint64_t due = e->n_waits ? e->waits[0]->wait_due_ns : UINT64_MAX;

	if (!radix_list_empty(&e->lead_due))
		due = radix_min_u64(due,
				    radix_list_first(&e->lead_due, struct prefixd_lease, lead_due)
					    ->lead_due_ns);
	return due;
}

/* ---- WAIT ------------------------------------------------------------------------------------ */

static void wait_begin(struct prefixd_engine *e, struct prefixd_request *rq,
		       struct prefixd_lease *w, struct prefixd_lease *leader, uint32_t deadline_us)
{
	w->wait_serial = ++e->wait_serial;
	w->wait_seq = rq->h->seq;
	if (w->stripe)
		prefixd_call_tells(w->stripe, w->wait_seq);
	w->wait_due_ns = deadline_us ? e->now_ns + (uint64_t)deadline_us * 1000 : UINT64_MAX;
	w->waits_on = leader;
	add_waiter(&leader->waiters, w);
	e->n_waits++;
	heap_sift(e, e->n_waits - 1, w);
	e->counters.waits++;
}

static bool crowded(const struct prefixd_lease *leader)
{
	const struct radix_list *it;
	uint32_t n = 0;

	radix_list_foreach(it, &leader->waiters) {
		if (++n == WAITERS_MAX)
			return true;
	}
	return false;
}

static void wait_on(struct prefixd_engine *e, struct prefixd_request *rq, struct prefixd_lease *w,
		    uint32_t deadline_us)
{
	struct proto_wait_rep rep = { .lease = w->id };
	struct prefixd_lease *leader = NULL;
	struct radix_place at;
	struct prefixd_reply rp;

	if (prefixd_leads(w)) {
		rep.n = ready_behind(w, &at);
		rep.state = PROTO_WAIT_LEAD;
	} else {
		w->wait_until = w->n_path + w->n_keys;
		rep.state = (uint8_t)judge(e, w, &leader, &rep.n);
	}
	if (leader && crowded(leader)) {
		prefixd_refuse(
			e, rq, PROTO_STATUS_BUSY, NULL,
			"%u leases wait for these blocks already, which is the limit; compute",
			WAITERS_MAX);
		return;
	}
	if (leader) {
		rep.n = w->wait_until - w->n_path;
		wait_begin(e, rq, w, leader, deadline_us);
	}
	if (leader || rep.state == PROTO_WAIT_LEAD)
		rep.leader_us = lead_left_us(e, leader ? leader : w);
	prefixd_reply_begin(e, &rp, 0);
	proto_wait_rep_encode(&rp.w, &rep);
	prefixd_reply_send(e, rq, &rp);
}

void prefixd_op_wait(struct prefixd_engine *e, struct prefixd_request *rq)
{
	struct proto_wait_req m;
	struct prefixd_lease *w;
	const char *bad;

	if (proto_wait_req_decode(rq->body, rq->h->len, &m, &bad)) {
		prefixd_refuse_body(e, rq, bad);
		return;
	}
	w = prefixd_lease_of(e, rq, m.lease);
	if (!w)
		return;
	if (w->n_reserved) {
		prefixd_refuse(e, rq, PROTO_STATUS_WRONG_STATE, "lease",
			       "this lease has reserved %u blocks that others may wait for; COMMIT "
			       "them, or wait with another lease",
			       w->n_reserved);
		return;
	}
	prefixd_wait_stop(e, w);
	if (waits_room(e) < 0) {
		prefixd_refuse_memory(e, rq);
		return;
	}
	wait_on(e, rq, w, m.deadline_us);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static int broken(char *why, size_t why_len, int rule, const char *text,
		  const struct prefixd_lease *l)
{
	snprintf(why, why_len, "lease %u %s", l->idx, text);
	return rule;
}

static bool in_list(const struct radix_list *head, const struct radix_list *l)
{
	const struct radix_list *it;

	radix_list_foreach(it, head)
		if (it == l)
			return true;
	return false;
}

/* 14: who leads. */
static int verify_leader(const struct prefixd_engine *e, const struct prefixd_lease *l, char *why,
			 size_t why_len)
{
	if (prefixd_leads(l) != radix_list_linked(&l->lead_due) ||
	    (!prefixd_leads(l) && (l->leads_rest || !radix_list_empty(&l->waiters))))
		return broken(why, why_len, 14, "leads in part", l);
	if (!prefixd_leads(l))
		return 0;
	if (l->state != PREFIXD_LEASE_ACTIVE || l->session->state != PREFIXD_SESSION_READY)
		return broken(why, why_len, 14, "leads and is over", l);
	if (prefixd_lead_cover(l) == 0 || l->n_keys == 0)
		return broken(why, why_len, 14, "leads and has nothing to compute", l);
	if (!in_list(&l->root->leaders, &l->leading) || !in_list(&e->lead_due, &l->lead_due))
		return broken(why, why_len, 14, "leads another root", l);
	return 0;
}

/* 15: who waits for whom. */
static int verify_waiter(const struct prefixd_engine *e, const struct prefixd_lease *w, char *why,
			 size_t why_len)
{
	const struct prefixd_lease *l = w->waits_on;

	if ((w->wait_serial != 0) != radix_list_linked(&w->wait) ||
	    (w->wait_serial != 0) != (l != NULL))
		return broken(why, why_len, 15, "waits in part", w);
	if (!l)
		return 0;
	if (w->state != PREFIXD_LEASE_ACTIVE || w->session->state != PREFIXD_SESSION_READY)
		return broken(why, why_len, 15, "waits and is over", w);
	if (w->n_reserved || prefixd_leads(w))
		return broken(why, why_len, 15, "waits and computes", w);
	if (!prefixd_leads(l) || l->root != w->root || !in_list(&l->waiters, &w->wait))
		return broken(why, why_len, 15, "waits for one that does not lead", w);
	if (w->wait_until <= w->n_path || w->wait_until > w->n_path + w->n_keys ||
	    w->wait_until <= l->n_path || w->wait_until > l->n_path + prefixd_lead_cover(l))
		return broken(why, why_len, 15, "waits for blocks that its leader lacks", w);
	if (w->wait.prev != &l->waiters &&
	    radix_list_entry(w->wait.prev, struct prefixd_lease, wait)->wait_serial >=
		    w->wait_serial)
		return broken(why, why_len, 15, "waits before an older one", w);
	if (w->wait_pos >= e->n_waits || e->waits[w->wait_pos] != w)
		return broken(why, why_len, 16, "waits without a deadline", w);
	return 0;
}

int prefixd_pending_verify(const struct prefixd_engine *e, char *why, size_t why_len)
{
	uint32_t n = 0;
	uint64_t last = 0;
	const struct radix_list *it;

	for (uint32_t i = 0; i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];
		int r = verify_leader(e, l, why, why_len);

		if (r == 0)
			r = verify_waiter(e, l, why, why_len);
		if (r)
			return r;
		n += l->wait_serial != 0;
	}
	radix_list_foreach(it, &e->lead_due) {
		const struct prefixd_lease *l = radix_list_entry((struct radix_list *)(uintptr_t)it,
								 struct prefixd_lease, lead_due);

		if (l->lead_due_ns < last)
			return broken(why, why_len, 16, "leads out of the order of time", l);
		last = l->lead_due_ns;
	}
	for (uint32_t i = 1; i < e->n_waits; i++)
		if (e->waits[(i - 1) / 2]->wait_due_ns > e->waits[i]->wait_due_ns)
			return broken(why, why_len, 16, "waits out of the order of time",
				      e->waits[i]);
	if (n != e->n_waits || !radix_list_empty(&e->unled) || !radix_list_empty(&e->changed)) {
		snprintf(why, why_len, "%u leases wait, %u deadlines are kept", n, e->n_waits);
		return 16;
	}
	return 0;
}
