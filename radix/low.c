/*
 * low.c - an edge's tiers: ends, leaves, queues, what leaves and what is held.  See low.h.
 *
 * What it guarantees.  Nothing here fails: room in the queues is had when an edge is made.
 */
#include "radix/internal.h"

uint32_t radix_low_start(const struct radix_low *low, enum radix_tier t)
{
	return t == RADIX_TIER_DEVICE ? 0 : low->end[t - 1];
}

uint32_t radix_low_end(const struct radix_node *n, const struct radix_low *low, enum radix_tier t)
{
	return t == RADIX_TIER_REDIS ? n->n_blocks : low->end[t];
}

uint32_t radix_low_stop(const struct radix_node *n, const struct radix_low *low, enum radix_tier t)
{
	return t == RADIX_TIER_REDIS ? n->n_blocks : low->end[t] - low->leaving[t];
}

bool radix_low_is_leaf(const struct radix_node *n, const struct radix_low *low, enum radix_tier t)
{
	uint32_t end = radix_low_end(n, low, t);
	uint32_t firm = t == RADIX_TIER_REDIS ? n->n_child : low->firm[t];

	return end > radix_low_start(low, t) && (end < n->n_blocks || !firm);
}

bool radix_low_may_pop(const struct radix_node *n, const struct radix_low *low, enum radix_tier t)
{
	return low->end[t] > radix_low_start(low, t) &&
	       (low->end[t] < n->n_blocks || !low->kids[t]);
}

uint32_t radix_low_protected(const struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);

	return radix_low(ix, node)->held ? n->n_blocks : radix_pinned_to(n);
}

/* ---- queues ---------------------------------------------------------------------------------- */

bool radix_low_has_victim(const struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low = radix_low(ix, node);
	uint32_t stop = radix_low_stop(n, low, t);

	if (!radix_low_is_leaf(n, low, t) || stop == radix_low_start(low, t))
		return false;
	/* a hollow block has nothing to give, but at the end of a path, where it goes */
	return t != RADIX_TIER_DEVICE || !radix_windowed(ix, node) ||
	       radix_device_slot(ix, node, stop - 1) != RADIX_HOLLOW ||
	       (stop == n->n_blocks && !n->n_child);
}

static uint64_t victim_tick(const struct radix_index *ix, const struct radix_node *n,
			    const struct radix_low *low, enum radix_tier t)
{
	uint32_t stop = radix_low_stop(n, low, t), run;

	if (stop == n->n_blocks)
		return radix_edge_tail_tick(&ix->slab, n, &run);
	return radix_edge_tick_at(&ix->slab, n, stop - 1);
}

void radix_low_queue(struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low = radix_low(ix, node);

	ix->no_squeeze = false;
	for (enum radix_tier t = 0; t < RADIX_N_TIERS; t++) {
		struct radix_queue *q = radix_queue_of(ix, t);

		if (radix_queue_pos(q, &ix->nodes, node) == RADIX_NONE &&
		    radix_low_has_victim(ix, node, t))
			radix_queue_push(q, &ix->nodes, node, victim_tick(ix, n, low, t));
	}
}

void radix_low_settle(struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low = radix_low(ix, node);

	for (enum radix_tier t = 0; t < RADIX_N_TIERS; t++) {
		struct radix_queue *q = radix_queue_of(ix, t);

		if (!radix_low_has_victim(ix, node, t))
			radix_queue_remove(q, &ix->nodes, node);
		else if (radix_queue_pos(q, &ix->nodes, node) == RADIX_NONE)
			radix_queue_push(q, &ix->nodes, node, victim_tick(ix, n, low, t));
		else
			radix_queue_update(q, &ix->nodes, node, victim_tick(ix, n, low, t));
	}
}

int radix_low_reserve(struct radix_index *ix)
{
	for (enum radix_tier t = 0; t < (ix->nodes.tiers ? RADIX_N_TIERS : 1); t++) {
		if (radix_queue_reserve(radix_queue_of(ix, t), ix->nodes.n_live + 1) < 0)
			return -ENOMEM;
	}
	return ix->nodes.windows ? radix_queue_reserve(&ix->windows, ix->nodes.n_live + 1) : 0;
}

void radix_low_unqueue(struct radix_index *ix, uint32_t node)
{
	for (enum radix_tier t = 0; t < RADIX_N_TIERS; t++)
		radix_queue_remove(radix_queue_of(ix, t), &ix->nodes, node);
}

uint32_t radix_low_coldest(struct radix_index *ix, enum radix_tier t, uint64_t *ret_tick)
{
	struct radix_queue *q = radix_queue_of(ix, t);

	while (q->n) {
		struct radix_queue_item top = q->v[0];
		const struct radix_node *n = radix_node(ix, top.node);
		const struct radix_low *low = radix_low(ix, top.node);
		uint32_t stop = radix_low_stop(n, low, t);
		uint64_t tick = victim_tick(ix, n, low, t);

		if (tick != top.tick) {
			radix_queue_update(q, &ix->nodes, top.node, tick);
			continue;
		}
		if (radix_low_protected(ix, top.node) >= stop) { /* the pin's end queues it again */
			radix_queue_remove(q, &ix->nodes, top.node);
			continue;
		}
		*ret_tick = tick;
		return top.node;
	}
	return RADIX_NONE;
}

/* ---- shape ----------------------------------------------------------------------------------- */

/* What an edge adds to its parent's counts: its first block has a copy as high as `t`; it stays. */
static bool has_first(const struct radix_low *low, enum radix_tier t)
{
	return low->end[t] > 0;
}

static bool keeps_first(const struct radix_low *low, enum radix_tier t)
{
	return low->end[t] > low->leaving[t];
}

/*
 * New counts for the edge; its parent's follow, and the queues.  Returns a bit for each tier in
 * which its first block stays now and did not before.
 */
static uint32_t change(struct radix_index *ix, uint32_t node, const uint32_t end[2],
		       const uint32_t leaving[2])
{
	struct radix_low *low = radix_low(ix, node), *p = NULL;
	uint32_t parent = radix_node(ix, node)->parent, rose = 0;
	bool changed = false;

	ix->no_squeeze = false;
	if (parent != RADIX_NODE_NONE)
		p = radix_low(ix, parent);
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		bool had = has_first(low, t), kept = keeps_first(low, t);

		low->end[t] = end[t];
		low->leaving[t] = leaving[t];
		if (!p || (had == has_first(low, t) && kept == keeps_first(low, t)))
			continue;
		p->kids[t] += (uint32_t)has_first(low, t) - had;
		p->firm[t] += (uint32_t)keeps_first(low, t) - kept;
		rose |= (uint32_t)(keeps_first(low, t) && !kept) << t;
		changed = true;
	}
	radix_low_settle(ix, node);
	if (changed)
		radix_low_settle(ix, parent);
	return rose;
}

void radix_low_ends(struct radix_index *ix, uint32_t node, uint32_t device, uint32_t host)
{
	const uint32_t end[2] = { device, host };
	uint32_t leaving[2], parent = radix_node(ix, node)->parent, rose;

	memcpy(leaving, radix_low(ix, node)->leaving, sizeof(leaving));
	rose = change(ix, node, end, leaving);
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		if (rose & 1u << t)
			radix_low_stay(ix, parent, t, radix_node(ix, parent)->n_blocks);
	}
}

void radix_low_linked(struct radix_index *ix, uint32_t node, bool linked)
{
	const struct radix_low *low = radix_low(ix, node);
	uint32_t parent = radix_node(ix, node)->parent;
	struct radix_low *p;

	if (parent == RADIX_NODE_NONE)
		return;
	p = radix_low(ix, parent);
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		if (!linked) {
			p->kids[t] -= has_first(low, t);
			p->firm[t] -= keeps_first(low, t);
			continue;
		}
		p->kids[t] += has_first(low, t);
		p->firm[t] += keeps_first(low, t);
		if (keeps_first(low, t))
			radix_low_stay(ix, parent, t, radix_node(ix, parent)->n_blocks);
	}
}

void radix_low_trim(struct radix_index *ix, uint32_t node, uint32_t to)
{
	struct radix_low *low = radix_low(ix, node);
	uint32_t end[2], leaving[2];

	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		end[t] = radix_min_u32(low->end[t], to);
		leaving[t] = low->leaving[t] - radix_min_u32(low->leaving[t], low->end[t] - end[t]);
	}
	low->again = radix_min_u32(low->again, to);
	(void)change(ix, node, end, leaving); /* nothing stays that did not */
}

void radix_low_cut(struct radix_index *ix, uint32_t node, uint32_t at, uint32_t upper)
{
	struct radix_low *low = radix_low(ix, node), *u = radix_low(ix, upper);

	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		uint32_t from = low->end[t] - low->leaving[t];

		u->end[t] = radix_min_u32(low->end[t], at);
		u->leaving[t] = u->end[t] > from ? u->end[t] - from : 0;
		low->end[t] -= u->end[t];
		low->leaving[t] -= u->leaving[t];
	}
	u->again = radix_min_u32(low->again, at);
	low->again -= u->again;
}

void radix_low_join(struct radix_index *ix, uint32_t node, uint32_t child, uint32_t before)
{
	struct radix_low *low = radix_low(ix, node);
	const struct radix_low *c = radix_low(ix, child);

	/* the parent's leave only where all of the child's do, if it has any: they adjoin */
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		low->end[t] += c->end[t];
		low->leaving[t] += c->leaving[t];
		low->kids[t] = c->kids[t];
		low->firm[t] = c->firm[t];
	}
	if (c->again)
		low->again = before + c->again;
	low->held = c->held;
}

/* ---- leaving, staying, being held ------------------------------------------------------------ */

void radix_low_leave(struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low = radix_low(ix, node);
	const struct radix_entry *e =
		&ix->table.v[radix_entry_at(ix, node, radix_low_stop(n, low, t) - 1)];
	uint32_t leaving[2];

	radix_slots_set(radix_slots_of(ix, t), radix_slot_in(e, t), RADIX_SLOT_LEAVING);
	if (t == RADIX_TIER_DEVICE && radix_entry_host(e) != RADIX_NONE)
		radix_bonus_remove(&ix->bonus, radix_entry_host(e));
	memcpy(leaving, low->leaving, sizeof(leaving));
	leaving[t]++;
	(void)change(ix, node, low->end, leaving);
}

/* Returns whether the edge's first block stays now and did not before. */
static bool stay(struct radix_index *ix, uint32_t node, enum radix_tier t, uint32_t to)
{
	const struct radix_low *low = radix_low(ix, node);
	uint32_t from = low->end[t] - low->leaving[t], leaving[2], rose;

	to = radix_min_u32(to, low->end[t]);
	if (from >= to)
		return false;
	for (uint32_t i = to; i-- > from;) { /* the deepest bonus goes first again */
		const struct radix_entry *e = &ix->table.v[radix_entry_at(ix, node, i)];

		radix_slots_set(radix_slots_of(ix, t), radix_slot_in(e, t), RADIX_SLOT_READY);
		if (t == RADIX_TIER_DEVICE && radix_entry_host(e) != RADIX_NONE)
			radix_bonus_add(&ix->bonus, radix_entry_host(e), ix->now);
	}
	memcpy(leaving, low->leaving, sizeof(leaving));
	leaving[t] = low->end[t] - to;
	rose = change(ix, node, low->end, leaving);
	radix_win_queue(ix, node);
	return rose & 1u << t;
}

void radix_low_stay(struct radix_index *ix, uint32_t node, enum radix_tier t, uint32_t to)
{
	/* what has a block below it that stays, stays */
	while (stay(ix, node, t, to)) {
		node = radix_node(ix, node)->parent;
		to = radix_node(ix, node)->n_blocks;
	}
}

void radix_low_recall(struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_low *low = radix_low(ix, node);

	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
		if (i < low->end[t] && i >= low->end[t] - low->leaving[t])
			radix_low_stay(ix, node, t, i + 1);
	}
}

void radix_low_used(struct radix_index *ix, uint32_t node, uint32_t to)
{
	radix_low_stay(ix, node, RADIX_TIER_DEVICE, to);
	radix_low_stay(ix, node, RADIX_TIER_HOST, to);
}

void radix_low_hold(struct radix_index *ix, uint32_t node, uint32_t n, bool more)
{
	uint32_t up = radix_node(ix, node)->parent;

	for (; n && up != RADIX_NODE_NONE; up = radix_node(ix, up)->parent) {
		struct radix_low *low = radix_low(ix, up);

		if (more) {
			low->held += n;
			radix_low_used(ix, up, radix_node(ix, up)->n_blocks);
			continue;
		}
		low->held -= n;
		if (!low->held)
			radix_low_queue(ix, up); /* it may have been set aside */
	}
}

void radix_low_grafted(struct radix_index *ix, uint32_t node)
{
	uint32_t parent = radix_node(ix, node)->parent;
	struct radix_place up = { .node = parent, .idx = radix_node(ix, parent)->n_blocks };

	radix_low_hold(ix, node, radix_low_pins(ix, node), true);
	if (radix_low(ix, node)->again)
		radix_hit(ix, &up);
}

uint32_t radix_low_pins(const struct radix_index *ix, uint32_t node)
{
	const struct radix_list *it;
	uint32_t n = radix_low(ix, node)->held;

	radix_list_foreach(it, &radix_node(ix, node)->pins)
		n++;
	return n;
}

/* ---- one block up, one block down ------------------------------------------------------------ */

static void tier_change(struct radix_index *ix, uint32_t entry, enum radix_tier from)
{
	enum radix_tier to = radix_tier_of(&ix->table.v[entry]);

	ix->tier[from]--;
	ix->tier[to]++;
	if (radix_unlikely(ix->log))
		radix_log_moved(ix, entry, from);
}

bool radix_low_can_attach(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	uint32_t parent = radix_node(ix, node)->parent;

	if (radix_low(ix, node)->end[RADIX_TIER_DEVICE] != i)
		return false;
	return i || parent == RADIX_NODE_NONE ||
	       radix_low(ix, parent)->end[RADIX_TIER_DEVICE] == radix_node(ix, parent)->n_blocks;
}

void radix_low_attach(struct radix_index *ix, uint32_t node, uint32_t i, uint32_t slot, bool exact)
{
	const struct radix_node *n = radix_node(ix, node);
	struct radix_low *low = radix_low(ix, node);
	uint32_t entry = radix_entry_at(ix, node, i);
	struct radix_entry *e = &ix->table.v[entry];
	enum radix_tier from = radix_tier_of(e);

	radix_assert(low->end[RADIX_TIER_DEVICE] == i);
	if (i)
		radix_low_stay(ix, node, RADIX_TIER_DEVICE, i);
	else if (n->parent != RADIX_NODE_NONE) /* before it: its copies are the older bonuses */
		radix_low_stay(ix, n->parent, RADIX_TIER_DEVICE,
			       radix_node(ix, n->parent)->n_blocks);
	radix_low_stay(ix, node, RADIX_TIER_HOST, i + 1);
	radix_edge_set_ref(n, ix->roots[n->root].g, i, slot);
	radix_table_device_set(&ix->table, entry, slot, ix->slots.generation[slot], exact);
	ix->slots.entry[slot] = entry;
	radix_slots_set(&ix->slots, slot, RADIX_SLOT_READY);
	if (radix_entry_host(e) != RADIX_NONE)
		radix_bonus_add(&ix->bonus, radix_entry_host(e), ix->now);
	radix_low_ends(ix, node, i + 1, low->end[1] > i ? low->end[1] : i + 1);
	radix_win_queue(ix, node);
	tier_change(ix, entry, from);
}

static void pop_device(struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t i = radix_low(ix, node)->end[RADIX_TIER_DEVICE] - 1;
	uint32_t entry = radix_entry_at(ix, node, i);
	const struct radix_entry *e = &ix->table.v[entry];
	uint32_t slot = radix_entry_slot(e), host_slot = radix_entry_host(e);

	radix_edge_set_ref(n, ix->roots[n->root].g, i, entry);
	if (host_slot != RADIX_NONE)
		radix_bonus_remove(&ix->bonus, host_slot); /* a host block like others now */
	radix_table_device_clear(&ix->table, entry);
	radix_slots_release(&ix->slots, slot);
	tier_change(ix, entry, RADIX_TIER_DEVICE);
}

static void pop_host(struct radix_index *ix, uint32_t node)
{
	uint32_t i = radix_low(ix, node)->end[RADIX_TIER_HOST] - 1;
	uint32_t entry = radix_entry_at(ix, node, i);
	uint32_t slot = radix_entry_host(&ix->table.v[entry]);

	radix_table_host_clear(&ix->table, entry);
	radix_slots_release(&ix->host, slot);
	tier_change(ix, entry, RADIX_TIER_HOST);
}

void radix_low_pop(struct radix_index *ix, uint32_t node, enum radix_tier t)
{
	const struct radix_low *low = radix_low(ix, node);
	uint32_t end[2], leaving[2], i = low->end[t] - 1;
	const struct radix_entry *e = &ix->table.v[radix_entry_at(ix, node, i)];

	radix_assert(radix_low_may_pop(radix_node(ix, node), low, t));
	if (radix_entry_host(e) == RADIX_NONE || t == RADIX_TIER_HOST) {
		if (!radix_entry_redis(e)) { /* nothing is below: that is the last copy */
			radix_tail_remove(ix, node, 1, RADIX_REMOVE_CAPACITY);
			return;
		}
		radix_assert(low->end[RADIX_TIER_HOST] == i + 1);
	}
	memcpy(end, low->end, sizeof(end));
	memcpy(leaving, low->leaving, sizeof(leaving));
	leaving[t] -= leaving[t] > 0;
	end[t] = i;
	if (t == RADIX_TIER_DEVICE) {
		pop_device(ix, node);
		if (radix_tier_of(e) == RADIX_TIER_REDIS)
			end[RADIX_TIER_HOST] = i;
	} else {
		pop_host(ix, node);
	}
	(void)change(ix, node, end, leaving);
}

void radix_low_forget_copies(struct radix_index *ix, uint32_t entry, bool redis)
{
	struct radix_entry *e = &ix->table.v[entry];
	uint32_t host_slot = radix_entry_host(e);

	radix_assert(radix_entry_slot(e) != RADIX_NONE);
	radix_low_recall(ix, ix->where_node[entry], ix->where_idx[entry]);
	radix_table_host_clear(&ix->table, entry);
	if (redis)
		radix_table_redis_set(&ix->table, entry, false);
	e->moving = 0;
	e->turn++;
	if (host_slot == RADIX_NONE)
		return;
	radix_bonus_remove(&ix->bonus, host_slot);
	radix_slots_release(&ix->host, host_slot);
}

bool radix_low_forget(struct radix_index *ix)
{
	uint64_t tick;
	uint32_t node = radix_low_coldest(ix, RADIX_TIER_REDIS, &tick);

	if (node == RADIX_NONE)
		return false;
	radix_tail_remove(ix, node, 1, RADIX_REMOVE_CAPACITY);
	return true;
}

/*
 * Whoever just became Redis-only is unpinned, and so is all below it: it or one of those can go.
 */
void radix_low_budget(struct radix_index *ix)
{
	while (ix->tier[RADIX_TIER_REDIS] + ix->n_hollow > ix->redis_budget) {
		bool gone = radix_low_forget(ix);

		radix_assert(gone);
	}
}
