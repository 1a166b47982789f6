/*
 * win.c - blocks outside of all windows: which they are, and how they give their slots back.
 * See windows.h and win.h.
 *
 * What it guarantees.  Nothing here fails but making room for the array, once.  A block that
 * becomes hollow is one before its slot is FREE, and has lost its lower copies before that, so a
 * process that is killed in between leaves a block with one copy or with none, never a slot of two.
 *
 * What it relies on.  An edge ends where prompts part or where one ends.  So the last blocks of an
 * edge, as many as the window has, are enough for whoever ends further down, in an edge below.
 */
#include "radix/internal.h"
#include "radix/windows.h"

static uint32_t window_of(const struct radix_index *ix, uint32_t node)
{
	return ix->roots[radix_node(ix, node)->root].config.window;
}

static bool is_hollow(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_node *n = radix_node(ix, node);

	return *radix_edge_ref(n, ix->roots[n->root].g, i) & RADIX_REF_HOLLOW;
}

/* ---- making a root one with a window --------------------------------------------------------- */

int radix_win_enable(struct radix_index *ix)
{
	if (ix->nodes.windows)
		return 0;
	if (radix_nodes_windows(&ix->nodes) < 0)
		return -ENOMEM;
	if (radix_queue_reserve(&ix->windows, ix->nodes.n_live + 1) == 0)
		return 0;
	radix_nodes_no_windows(&ix->nodes);
	return -ENOMEM;
}

int radix_root_window(struct radix_index *ix, uint32_t root, uint32_t n_blocks)
{
	radix_assert(n_blocks && !ix->roots[root].config.window);
	if (radix_win_enable(ix) < 0)
		return -ENOMEM;
	ix->roots[root].config.window = n_blocks;
	for (uint32_t i = 0; i < ix->nodes.n_used; i++) {
		const struct radix_node *n = radix_node(ix, i);
		const struct radix_list *it;

		if (!(n->flags & RADIX_NODE_F_LIVE) || n->root != root)
			continue;
		radix_list_foreach(it, &n->pins) {
			struct radix_pin *pin = (struct radix_pin *)(uintptr_t)it;

			pin->window = false;
			radix_win_hold(ix, pin, true);
		}
	}
	for (uint32_t i = 0; i < ix->nodes.n_used; i++)
		if (radix_node(ix, i)->flags & RADIX_NODE_F_LIVE)
			radix_win_queue(ix, i);
	return 0;
}

/* ---- which blocks ---------------------------------------------------------------------------- */

uint32_t radix_win_limit(const struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t w = window_of(ix, node), limit = n->n_blocks > w ? n->n_blocks - w : 0;

	if (!radix_has_tiers(ix))
		return limit;
	return radix_min_u32(limit, radix_low_stop(n, radix_low(ix, node), RADIX_TIER_DEVICE));
}

void radix_win_queue(struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t run;

	if (!radix_windowed(ix, node) || radix_win(ix, node)->heap_pos != RADIX_NONE ||
	    radix_win(ix, node)->from >= radix_win_limit(ix, node))
		return;
	radix_queue_push(&ix->windows, &ix->nodes, node, radix_edge_tail_tick(&ix->slab, n, &run));
}

void radix_win_settle(struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t run;

	if (!radix_windowed(ix, node))
		return;
	if (radix_win(ix, node)->heap_pos == RADIX_NONE)
		radix_win_queue(ix, node);
	else
		radix_queue_update(&ix->windows, &ix->nodes, node,
				   radix_edge_tail_tick(&ix->slab, n, &run));
}

uint32_t radix_win_kept_to(const struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t w = window_of(ix, node), before;
	const struct radix_list *it;

	if (radix_win(ix, node)->whole)
		return n->n_blocks;
	do {
		before = i;
		radix_list_foreach(it, &n->pins) {
			const struct radix_pin *pin = (const struct radix_pin *)(const void *)it;

			if (i < pin->at.idx && (!pin->window || i + w >= pin->at.idx))
				i = pin->at.idx;
		}
	} while (i != before);
	return i;
}

/* ---- giving slots back ----------------------------------------------------------------------- */

static void hollow(struct radix_index *ix, uint32_t node, uint32_t i)
{
	const struct radix_node *n = radix_node(ix, node);
	uint32_t slot = *radix_edge_ref(n, ix->roots[n->root].g, i);
	uint32_t entry = ix->slots.entry[slot];

	radix_assert(ix->slots.state[slot] == RADIX_SLOT_READY);
	if (radix_has_tiers(ix))
		radix_low_forget_copies(ix, entry, true);
	radix_table_hollow(&ix->table, entry);
	radix_edge_set_ref(n, ix->roots[n->root].g, i, entry | RADIX_REF_HOLLOW);
	radix_slots_release(&ix->slots, slot);
	radix_win(ix, node)->hollow++;
	ix->n_hollow++;
	ix->hollowed_total++;
}

/* Up to `want` blocks of the edge.  Returns how many; fewer: no more can for now. */
static uint32_t hollow_some(struct radix_index *ix, uint32_t node, uint32_t want)
{
	struct radix_win *w = radix_win(ix, node);
	uint32_t limit = radix_win_limit(ix, node), done = 0;

	for (uint32_t i = w->from; i < limit && done < want;) {
		uint32_t next;

		if (!is_hollow(ix, node, i)) {
			next = radix_win_kept_to(ix, node, i);
			if (next > i) {
				i = next;
				continue;
			}
			hollow(ix, node, i);
			done++;
		}
		if (w->from == i)
			w->from = i + 1;
		i++;
	}
	if (done && radix_has_tiers(ix)) /* the next to leave may be one of them */
		radix_low_settle(ix, node);
	return done;
}

uint64_t radix_win_max(const struct radix_index *ix)
{
	return ix->redis ? ix->redis_budget / 2 : ix->redis_budget;
}

/* Entries that hollow blocks may still take; of Redis-only members the coldest make way. */
static uint32_t hollow_room(struct radix_index *ix, uint32_t want)
{
	uint64_t max = radix_win_max(ix);

	if (ix->n_hollow >= max)
		return 0;
	want = (uint32_t)radix_min_u64(want, max - ix->n_hollow);
	while (ix->tier[RADIX_TIER_REDIS] + ix->n_hollow + want > ix->redis_budget) {
		if (!radix_low_forget(ix))
			return (uint32_t)radix_min_u64(want, ix->redis_budget - ix->n_hollow -
								     ix->tier[RADIX_TIER_REDIS]);
	}
	return want;
}

uint32_t radix_win_free(struct radix_index *ix, uint32_t want)
{
	uint64_t before = ix->slots.count[RADIX_SLOT_FREE];

	while (ix->windows.n) {
		uint32_t got = (uint32_t)(ix->slots.count[RADIX_SLOT_FREE] - before), room, run;
		struct radix_queue_item top;
		uint64_t tick;

		if (got >= want)
			break;
		room = hollow_room(ix, want - got);
		if (!room || !ix->windows.n)
			break;
		top = ix->windows.v[0];
		tick = radix_edge_tail_tick(&ix->slab, radix_node(ix, top.node), &run);
		if (tick != top.tick) {
			radix_queue_update(&ix->windows, &ix->nodes, top.node, tick);
			continue;
		}
		/* Whatever lets more of its blocks go queues it again. */
		if (hollow_some(ix, top.node, room) < room)
			radix_queue_remove(&ix->windows, &ix->nodes, top.node);
	}
	return (uint32_t)(ix->slots.count[RADIX_SLOT_FREE] - before);
}

/* ---- ends of paths --------------------------------------------------------------------------- */

bool radix_win_dead(const struct radix_index *ix, uint32_t node)
{
	const struct radix_node *n = radix_node(ix, node);

	return radix_windowed(ix, node) && !n->n_child && is_hollow(ix, node, n->n_blocks - 1);
}

uint32_t radix_win_full(const struct radix_index *ix, uint32_t node, uint32_t n)
{
	uint32_t i = 0, end = radix_node(ix, node)->n_blocks;

	if (!radix_windowed(ix, node) || !radix_win(ix, node)->hollow)
		return n;
	while (i < n && !is_hollow(ix, node, end - 1 - i))
		i++;
	return i;
}

uint32_t radix_win_bury(struct radix_index *ix, uint32_t node, uint32_t keep)
{
	uint32_t n = radix_node(ix, node)->n_blocks, to = n;

	while (to > keep && is_hollow(ix, node, to - 1))
		to--;
	if (to < n)
		radix_tail_remove(ix, node, n - to, RADIX_REMOVE_CAPACITY);
	return n - to;
}

void radix_win_sweep(struct radix_index *ix)
{
	while (ix->n_hollow && ix->queue.n) {
		uint32_t node = ix->queue.v[0].node, run;
		uint64_t tick;

		if (radix_has_tiers(ix)) {
			node = radix_low_coldest(ix, RADIX_TIER_DEVICE, &tick);
			if (node == RADIX_NONE || !radix_win_dead(ix, node))
				return;
			(void)radix_win_bury(ix, node, radix_low_protected(ix, node));
			continue;
		}
		tick = radix_edge_tail_tick(&ix->slab, radix_node(ix, node), &run);
		if (tick != ix->queue.v[0].tick)
			radix_queue_update(&ix->queue, &ix->nodes, node, tick);
		else if (!radix_win_dead(ix, node))
			return;
		else if (!radix_win_bury(ix, node, radix_pinned_to(radix_node(ix, node))))
			radix_queue_remove(&ix->queue, &ix->nodes, node); /* see leaves_evict */
	}
}

/* Its blocks of the device end with a hollow one, and others lie lower behind it, not held. */
static bool blocks_device(const struct radix_index *ix, uint32_t node, uint32_t *ret_idx)
{
	const struct radix_node *n = radix_node(ix, node);
	const struct radix_low *low;
	uint32_t end;

	if (!(n->flags & RADIX_NODE_F_LIVE) || !radix_windowed(ix, node))
		return false;
	low = radix_low(ix, node);
	end = low->end[RADIX_TIER_DEVICE];
	if (!end || !is_hollow(ix, node, end - 1) || (end == n->n_blocks && !n->n_child) ||
	    (end == n->n_blocks && low->kids[RADIX_TIER_DEVICE]))
		return false;
	while (end && is_hollow(ix, node, end - 1))
		end--;
	*ret_idx = end;
	return radix_low_protected(ix, node) <= end;
}

uint32_t radix_win_squeeze(struct radix_index *ix, enum radix_remove_reason reason)
{
	uint32_t best = RADIX_NONE, at = 0, idx, run;
	uint64_t oldest = UINT64_MAX;

	if (!ix->n_hollow || ix->no_squeeze)
		return 0;
	for (uint32_t i = 0; i < ix->nodes.n_used; i++) {
		uint64_t tick;

		if (!blocks_device(ix, i, &idx))
			continue;
		tick = radix_edge_tail_tick(&ix->slab, radix_node(ix, i), &run);
		if (tick >= oldest)
			continue;
		oldest = tick;
		best = i;
		at = idx;
	}
	if (best == RADIX_NONE) {
		ix->no_squeeze = true; /* until the tree, or what is held, changes */
		return 0;
	}
	return radix_branch_remove(ix, best, at, reason);
}

/* ---- changes of the tree --------------------------------------------------------------------- */

void radix_win_hold(struct radix_index *ix, const struct radix_pin *pin, bool more)
{
	uint32_t up = pin->at.node;

	if (pin->window || !radix_windowed(ix, up))
		return;
	while ((up = radix_node(ix, up)->parent) != RADIX_NODE_NONE) {
		radix_win(ix, up)->whole += more ? 1 : UINT32_MAX;
		if (!more)
			radix_win_queue(ix, up);
	}
}

static uint32_t whole_pins(const struct radix_index *ix, uint32_t node)
{
	const struct radix_list *it;
	uint32_t n = radix_win(ix, node)->whole;

	radix_list_foreach(it, &radix_node(ix, node)->pins)
		n += !((const struct radix_pin *)(const void *)it)->window;
	return n;
}

void radix_win_grafted(struct radix_index *ix, uint32_t node)
{
	uint32_t n, up = node;

	if (!radix_windowed(ix, node))
		return;
	n = whole_pins(ix, node);
	while (n && (up = radix_node(ix, up)->parent) != RADIX_NODE_NONE)
		radix_win(ix, up)->whole += n;
}

void radix_win_cut(struct radix_index *ix, uint32_t node, uint32_t at, uint32_t upper)
{
	struct radix_win *w, *u;

	if (!radix_windowed(ix, node))
		return;
	w = radix_win(ix, node);
	u = radix_win(ix, upper);
	u->whole = whole_pins(ix, node);
	if (w->from >= at) {
		u->hollow = u->from = at;
	} else {
		u->from = w->from;
		u->hollow = w->from;
		for (uint32_t i = w->from; i < at && u->hollow < w->hollow; i++)
			u->hollow += is_hollow(ix, upper, i);
	}
	w->from -= u->from;
	w->hollow -= u->hollow;
	radix_win_queue(ix, upper);
	radix_win_queue(ix, node);
}

void radix_win_join(struct radix_index *ix, uint32_t node, uint32_t child, uint32_t before)
{
	struct radix_win *w;
	const struct radix_win *c;

	if (!radix_windowed(ix, node))
		return;
	w = radix_win(ix, node);
	c = radix_win(ix, child);
	if (w->from == before)
		w->from += c->from;
	w->hollow += c->hollow;
	w->whole = c->whole;
	radix_queue_remove(&ix->windows, &ix->nodes, node); /* its end may be older now */
}

void radix_win_trim(struct radix_index *ix, uint32_t node, uint32_t to, uint32_t hollow)
{
	struct radix_win *w;

	if (!radix_windowed(ix, node))
		return;
	w = radix_win(ix, node);
	w->hollow -= hollow;
	w->from = radix_min_u32(w->from, to);
	ix->n_hollow -= hollow;
}

void radix_win_refill(struct radix_index *ix, uint32_t node, uint32_t i, uint32_t slot)
{
	const struct radix_node *n = radix_node(ix, node);
	struct radix_win *w = radix_win(ix, node);
	uint32_t entry = radix_entry_at(ix, node, i);

	radix_edge_set_ref(n, ix->roots[n->root].g, i, slot);
	radix_table_device_set(&ix->table, entry, slot, ix->slots.generation[slot], true);
	ix->slots.entry[slot] = entry;
	radix_slots_set(&ix->slots, slot, RADIX_SLOT_READY);
	w->hollow--;
	w->from = radix_min_u32(w->from, i);
	ix->n_hollow--;
	ix->refilled_total++;
	if (radix_has_tiers(ix))
		radix_low_settle(ix, node); /* it may be the next to leave */
	radix_win_queue(ix, node);
}

void radix_win_found(struct radix_index *ix, uint32_t node)
{
	struct radix_win *w = radix_win(ix, node);

	w->hollow++;
	if (w->from + 1 == radix_node(ix, node)->n_blocks)
		w->from++;
	ix->n_hollow++;
}

void radix_window_stats(const struct radix_index *ix, struct radix_window_stats *ret)
{
	*ret = (struct radix_window_stats){
		.n_hollow = ix->n_hollow,
		.max_hollow = radix_win_max(ix),
		.hollowed_total = ix->hollowed_total,
		.refilled_total = ix->refilled_total,
	};
}
