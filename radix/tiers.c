/*
 * tiers.c - making room and moving copies between the tiers.  See tiers.h.
 *
 * What it guarantees.  No slot becomes FREE while a move on it has not ended: a source counts its
 * readers and is QUARANTINED when its copy goes earlier; a target is RESERVED for the daemon until
 * the end.  Nothing here allocates.
 *
 * What it relies on.  Ends come from outside in any order.  The entry's generation says whether the
 * block is still the one that the move was begun for, its `turn` whether its bytes are.
 */
#include "radix/internal.h"

const char *radix_tier_to_string(enum radix_tier t)
{
	static const char *const names[] = {
#define X(sym, text) [RADIX_TIER_##sym] = (text),
		RADIX_TIERS(X)
#undef X
	};

	return (unsigned)t < radix_array_size(names) ? names[t] : "?";
}

static uint32_t slots_in(const struct radix_index *ix, enum radix_tier tier,
			 enum radix_slot_state state)
{
	if (tier == RADIX_TIER_REDIS)
		return 0;
	return (uint32_t)(tier == RADIX_TIER_DEVICE ? ix->slots.count[state]
						    : ix->host.count[state]);
}

uint32_t radix_free_slots(const struct radix_index *ix, enum radix_tier tier)
{
	return slots_in(ix, tier, RADIX_SLOT_FREE);
}

uint32_t radix_leaving_slots(const struct radix_index *ix, enum radix_tier tier)
{
	return slots_in(ix, tier, RADIX_SLOT_LEAVING);
}

/* The next configured tier down; RADIX_N_TIERS: none. */
static enum radix_tier below(const struct radix_index *ix, enum radix_tier t)
{
	if (t == RADIX_TIER_DEVICE && ix->host.n)
		return RADIX_TIER_HOST;
	return t != RADIX_TIER_REDIS && ix->redis ? RADIX_TIER_REDIS : RADIX_N_TIERS;
}

static bool has_copy(const struct radix_entry *e, enum radix_tier t)
{
	return t == RADIX_TIER_REDIS ? radix_entry_redis(e) : radix_slot_in(e, t) != RADIX_NONE;
}

/* Its copy in `t` can go at once. */
static bool is_clean(const struct radix_index *ix, const struct radix_entry *e, enum radix_tier t)
{
	enum radix_tier b = below(ix, t);

	return b == RADIX_N_TIERS || has_copy(e, b);
}

/* ---- host slots ------------------------------------------------------------------------------ */

static void bonus_drop(struct radix_index *ix, uint32_t slot)
{
	radix_bonus_remove(&ix->bonus, slot);
	radix_table_host_clear(&ix->table, ix->host.entry[slot]);
	radix_slots_release(&ix->host, slot);
}

static void pop(struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	radix_low_pop(ix, node, t);
	radix_low_budget(ix);
}

/* The edge's next victim in `t`: its entry. */
static struct radix_entry *victim_of(struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	uint32_t stop = radix_low_stop(radix_node(ix, node), radix_low(ix, node), t);

	return &ix->table.v[radix_entry_at(ix, node, stop - 1)];
}

/* The edge's next victim in `t` is clean, and nothing has to go before it. */
static bool goes_at_once(struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	const struct radix_low *low = radix_low(ix, node);

	return !low->leaving[t] && radix_low_may_pop(radix_node(ix, node), low, t) &&
	       is_clean(ix, victim_of(ix, node, t), t);
}

/*
 * A host slot for a block on its way down: a free one, else the older of the first bonus and of
 * the coldest host leaf, if that is clean.  RADIX_NONE: none.
 */
static uint32_t host_slot_take(struct radix_index *ix)
{
	for (;;) {
		uint32_t slot = radix_slots_take(&ix->host, RADIX_OWNER_DAEMON);
		uint32_t bonus = ix->bonus.first, leaf;
		uint64_t tick;
		bool clean;

		if (slot != RADIX_NONE)
			return slot;
		leaf = radix_low_coldest(ix, RADIX_TIER_HOST, &tick);
		clean = leaf != RADIX_NONE && goes_at_once(ix, leaf, RADIX_TIER_HOST);
		if (bonus != RADIX_NONE && (!clean || ix->bonus.tick[bonus] <= tick))
			bonus_drop(ix, bonus);
		else if (clean)
			pop(ix, leaf, RADIX_TIER_HOST);
		else
			return RADIX_NONE;
	}
}

/* ---- making room ----------------------------------------------------------------------------- */

struct room {
	struct radix_index *ix;
	enum radix_tier tier;
	uint32_t flags;
	struct radix_move *moves;
	uint32_t cap;
	uint32_t spare; /* host slot that was taken for the next move */
	struct radix_room *ret;
};

static struct radix_move move_begin(struct radix_index *ix, uint32_t entry, enum radix_tier from,
				    enum radix_tier to, uint32_t dst)
{
	struct radix_entry *e = &ix->table.v[entry];
	struct radix_move m = {
		.block = { .entry = entry, .generation = e->generation },
		.from = (uint8_t)from,
		.to = (uint8_t)to,
		.turn = e->turn,
		.src = from == RADIX_TIER_REDIS ? RADIX_NONE : radix_slot_in(e, from),
		.dst = dst,
		.tick = radix_edge_tick_at(&ix->slab, radix_node(ix, ix->where_node[entry]),
					   ix->where_idx[entry]),
	};

	if (from != RADIX_TIER_REDIS)
		radix_slots_read(radix_slots_of(ix, from), m.src);
	if (to != RADIX_TIER_DEVICE)
		e->moving |= (uint8_t)(1u << to);
	return m;
}

/*
 * A device block that only Redis has below although there is a host tier: it may skip that tier
 * when no host-only block follows it.
 */
static bool may_skip_host(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_low *low = radix_low(ix, node);

	return radix_entry_redis(&ix->table.v[radix_entry_at(ix, node, i)]) &&
	       low->end[RADIX_TIER_HOST] == i + 1 && !low->leaving[RADIX_TIER_DEVICE] &&
	       radix_low_may_pop(radix_node(ix, node), low, RADIX_TIER_DEVICE) &&
	       (i + 1 < radix_node(ix, node)->n_blocks || !low->kids[RADIX_TIER_HOST]);
}

static void drop(struct room *r, uint32_t node, uint32_t i)
{
	if (r->tier == RADIX_TIER_DEVICE && may_skip_host(r->ix, node, i))
		pop(r->ix, node, RADIX_TIER_DEVICE);
	else
		r->ret->dropped += radix_branch_remove(
			r->ix, node, i,
			r->flags & RADIX_ROOM_DROP ? RADIX_REMOVE_DROPPED : RADIX_REMOVE_CAPACITY);
}

/* A dirty victim is sent down.  False: that is not possible now. */
static bool send_down(struct room *r, uint32_t node, struct radix_entry *e)
{
	struct radix_index *ix = r->ix;
	enum radix_tier to = below(ix, r->tier);
	uint32_t dst = RADIX_NONE;

	if (e->moving & 1u << to) { /* on its way already */
		radix_low_leave(ix, node, r->tier);
		r->ret->coming++;
		return true;
	}
	if (r->ret->started == r->cap) {
		r->ret->blocked = !r->cap;
		return false;
	}
	if (to == RADIX_TIER_HOST) {
		if (r->spare == RADIX_NONE) {
			r->spare = host_slot_take(ix);
			r->ret->blocked = r->spare == RADIX_NONE;
			return !r->ret->blocked; /* edges may have moved: look again */
		}
		dst = r->spare;
		r->spare = RADIX_NONE;
	}
	r->moves[r->ret->started++] = move_begin(ix, (uint32_t)(e - ix->table.v), r->tier, to, dst);
	radix_low_leave(ix, node, r->tier);
	return true;
}

/* One victim.  False: no more for now. */
static bool room_step(struct room *r)
{
	struct radix_index *ix = r->ix;
	uint32_t bonus = r->tier == RADIX_TIER_HOST ? ix->bonus.first : RADIX_NONE;
	uint64_t tick;
	uint32_t node = radix_low_coldest(ix, r->tier, &tick), i;
	const struct radix_low *low;
	struct radix_entry *e;

	if (bonus != RADIX_NONE && (node == RADIX_NONE || ix->bonus.tick[bonus] <= tick)) {
		bonus_drop(ix, bonus);
		return true;
	}
	if (node == RADIX_NONE) {
		/* what went may have been why others were in a window */
		r->ret->dry = r->tier != RADIX_TIER_DEVICE ||
			      (!radix_win_free(ix, 1) &&
			       !radix_win_squeeze(ix, RADIX_REMOVE_CAPACITY));
		return !r->ret->dry;
	}
	if (r->tier == RADIX_TIER_DEVICE && radix_win_dead(ix, node)) {
		radix_win_sweep(ix);
		return true;
	}
	low = radix_low(ix, node);
	i = radix_low_stop(radix_node(ix, node), low, r->tier) - 1;
	e = victim_of(ix, node, r->tier);
	if (goes_at_once(ix, node, r->tier)) {
		pop(ix, node, r->tier);
		return true;
	}
	if (is_clean(ix, e, r->tier)) { /* it goes when those behind it have gone */
		radix_low_leave(ix, node, r->tier);
		r->ret->coming++;
		return true;
	}
	if (r->flags & RADIX_ROOM_DROP || (r->flags & RADIX_ROOM_SECOND_USE && i >= low->again)) {
		drop(r, node, i);
		return true;
	}
	return send_down(r, node, e);
}

void radix_make_room(struct radix_index *ix, enum radix_tier tier, uint32_t want, uint32_t flags,
		     struct radix_move *moves, uint32_t cap, struct radix_room *ret)
{
	struct room r = {
		.ix = ix,
		.tier = tier,
		.flags = flags,
		.moves = moves,
		.cap = cap,
		.spare = RADIX_NONE,
		.ret = ret,
	};
	uint64_t before = radix_free_slots(ix, tier);

	*ret = (struct radix_room){ 0 };
	if (!radix_has_tiers(ix) || tier == RADIX_TIER_REDIS ||
	    (tier == RADIX_TIER_HOST && !ix->host.n)) {
		if (tier == RADIX_TIER_DEVICE)
			ret->freed = radix_win_free(ix, want);
		if (tier == RADIX_TIER_DEVICE && ret->freed < want)
			ret->freed += radix_leaves_evict(ix, want - ret->freed,
							 RADIX_REMOVE_CAPACITY);
		radix_win_sweep(ix);
		ret->dry = ret->freed < want;
		return;
	}
	if (tier == RADIX_TIER_DEVICE)
		ret->freed = radix_win_free(ix, want);
	while (ret->freed + ret->started + ret->coming < want && room_step(&r))
		ret->freed = (uint32_t)(radix_free_slots(ix, tier) - before);
	radix_win_sweep(ix);
	if (r.spare != RADIX_NONE)
		radix_slots_free(&ix->host, r.spare);
}

/* What waits to leave the device for the end of something else: it is looked at like the rest. */
static void recall_all(struct radix_index *ix)
{
	for (uint32_t slot = 0; slot < ix->slots.n; slot++) {
		uint32_t entry = ix->slots.entry[slot];

		if (ix->slots.state[slot] == RADIX_SLOT_LEAVING)
			radix_low_recall(ix, ix->where_node[entry], ix->where_idx[entry]);
	}
}

uint64_t radix_device_lost(struct radix_index *ix)
{
	uint64_t done = 0, tick;
	uint32_t node;

	radix_assert(ix->n_pins == 0);
	if (!radix_has_tiers(ix))
		return radix_leaves_evict(ix, UINT32_MAX, RADIX_REMOVE_DEVICE);
	recall_all(ix);
	/* From the ends of paths to their roots, so that whatever stands below has been seen. */
	while (ix->slots.count[RADIX_SLOT_READY] > 0) {
		uint32_t i;

		node = radix_low_coldest(ix, RADIX_TIER_DEVICE, &tick);
		if (node == RADIX_NONE) { /* hollow blocks stand in the way of those before them */
			if (radix_win_free(ix, 1) == 0) {
				i = radix_win_squeeze(ix, RADIX_REMOVE_DEVICE);
				radix_assert(i > 0);
				done += i;
			}
			continue;
		}
		i = radix_low(ix, node)->end[RADIX_TIER_DEVICE] - 1;
		if (goes_at_once(ix, node, RADIX_TIER_DEVICE) || may_skip_host(ix, node, i))
			pop(ix, node, RADIX_TIER_DEVICE);
		else
			done += radix_branch_remove(ix, node, i, RADIX_REMOVE_DEVICE);
	}
	radix_win_sweep(ix);
	return done;
}

uint32_t radix_tiers_evict(struct radix_index *ix, uint32_t n, enum radix_remove_reason reason)
{
	uint32_t done = 0;

	for (enum radix_tier t = 0; t < RADIX_N_TIERS && done < n;) {
		uint64_t tick;
		uint32_t node = radix_low_coldest(ix, t, &tick);

		if (node == RADIX_NONE) {
			t++;
			continue;
		}
		done += radix_branch_remove(
			ix, node, radix_low_stop(radix_node(ix, node), radix_low(ix, node), t) - 1,
			reason);
		t = RADIX_TIER_DEVICE; /* what went may have kept hollow blocks where they are */
	}
	return done;
}

/* ---- single moves ---------------------------------------------------------------------------- */

int radix_copy_begin(struct radix_index *ix, struct radix_member block, enum radix_tier to,
		     struct radix_move *ret_move)
{
	const struct radix_entry *e = radix_member(ix, block);
	uint32_t dst = RADIX_NONE;

	if (!e)
		return RADIX_E_NOTFOUND;
	if (radix_entry_slot(e) == RADIX_HOLLOW || to <= radix_tier_of(e) ||
	    (to == RADIX_TIER_HOST ? !ix->host.n : !ix->redis) || has_copy(e, to) ||
	    e->moving & 1u << to)
		return RADIX_E_STATE;
	if (to == RADIX_TIER_HOST) {
		dst = radix_slots_take(&ix->host, RADIX_OWNER_DAEMON);
		if (dst == RADIX_NONE)
			return RADIX_E_REFUSED;
	}
	*ret_move = move_begin(ix, block.entry, radix_tier_of(e), to, dst);
	return 0;
}

int radix_promote_begin(struct radix_index *ix, struct radix_member block,
			struct radix_move *ret_move)
{
	const struct radix_entry *e = radix_member(ix, block);
	uint32_t dst;

	if (!e)
		return RADIX_E_NOTFOUND;
	if (radix_entry_slot(e) != RADIX_NONE)
		return RADIX_E_STATE;
	dst = radix_slots_take(&ix->slots, RADIX_OWNER_DAEMON);
	if (dst == RADIX_NONE)
		return RADIX_E_REFUSED;
	*ret_move = move_begin(ix, block.entry, radix_tier_of(e), RADIX_TIER_DEVICE, dst);
	return 0;
}

/* ---- the end of a move ----------------------------------------------------------------------- */

/* What was leaving at the path's end goes as far as it is clean. */
static void pop_clean(struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	while (node != RADIX_NODE_NONE) {
		const struct radix_node *n = radix_node(ix, node);
		const struct radix_low *low = radix_low(ix, node);

		while (low->leaving[t] && radix_low_may_pop(n, low, t) &&
		       is_clean(ix, &ix->table.v[radix_entry_at(ix, node, low->end[t] - 1)], t))
			radix_low_pop(ix, node, t);
		if (low->end[t]) /* its parent's wait for the rest */
			return;
		node = n->parent;
	}
}

static void keep_checksum(struct radix_index *ix, uint32_t entry, const uint8_t *checksum)
{
	if (checksum && !ix->table.v[entry].checksum_kind)
		radix_table_checksum(&ix->table, entry, 1, checksum);
}

/*
 * The bytes are below.  False: there is no use for them any more.  Their checksum is there before
 * they are: a copy in host memory without one could not be told from a corrupt one.
 */
static bool arrive_below(struct radix_index *ix, const struct radix_move *m, struct radix_entry *e,
			 const uint8_t *checksum)
{
	if (m->to == RADIX_TIER_REDIS) {
		radix_table_redis_set(&ix->table, m->block.entry, true);
		return true;
	}
	if (radix_entry_slot(e) == RADIX_NONE) /* host copies stand in order: this one would not */
		return false;
	keep_checksum(ix, m->block.entry, checksum);
	radix_table_host_set(&ix->table, m->block.entry, m->dst);
	ix->host.entry[m->dst] = m->block.entry;
	radix_slots_set(&ix->host, m->dst, RADIX_SLOT_READY);
	if (ix->slots.state[radix_entry_slot(e)] != RADIX_SLOT_LEAVING)
		radix_bonus_add(&ix->bonus, m->dst, ix->now);
	return true;
}

static bool arrive_above(struct radix_index *ix, const struct radix_move *m, struct radix_entry *e)
{
	if (radix_entry_slot(e) != RADIX_NONE) /* another one was faster */
		return false;
	radix_low_attach(ix, ix->where_node[m->block.entry], ix->where_idx[m->block.entry], m->dst,
			 !m->lossy);
	return true;
}

int radix_move_end(struct radix_index *ix, const struct radix_move *m, bool ok,
		   const uint8_t *checksum, uint32_t *ret_freed)
{
	struct radix_entry *e = radix_member(ix, m->block);
	uint32_t node = e ? ix->where_node[m->block.entry] : RADIX_NONE;
	uint32_t i = e ? ix->where_idx[m->block.entry] : 0;
	bool down = m->to != RADIX_TIER_DEVICE, there = e && e->turn == m->turn, used = false;
	bool lost = ok && !down && !there; /* for the caller, who counts on it */
	uint32_t before = radix_free_slots(ix, m->from);

	ok = ok && there;
	if (ok && !down && radix_entry_slot(e) == RADIX_NONE && !radix_low_can_attach(ix, node, i))
		return RADIX_E_REFUSED;
	if (there && down)
		e->moving &= (uint8_t) ~(1u << m->to);
	if (ok)
		used = down ? arrive_below(ix, m, e, checksum) : arrive_above(ix, m, e);
	if (used) {
		keep_checksum(ix, m->block.entry, checksum);
		ix->moved[m->from][m->to]++;
	} else if (m->dst != RADIX_NONE) {
		radix_slots_free(radix_slots_of(ix, m->to), m->dst);
	}
	if (m->from != RADIX_TIER_REDIS)
		radix_slots_unread(radix_slots_of(ix, m->from), m->src);
	if (there && down && !used)
		radix_low_recall(ix, node, i); /* whoever wants room tries again */
	if (used && down) {
		for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++)
			pop_clean(ix, node, t);
		radix_low_budget(ix);
	}
	if (ret_freed)
		*ret_freed = radix_free_slots(ix, m->from) - before;
	if (!e)
		return RADIX_E_NOTFOUND;
	return lost && radix_entry_slot(e) == RADIX_NONE ? RADIX_E_STATE : 0;
}
