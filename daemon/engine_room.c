/*
 * engine_room.c - free slots ahead of demand, and who waits for slots.
 *
 * What it guarantees.  Slots go to those in line in the order in which they came.  A block leaves
 * the device (or the host) by a move while the tier below can take it; it is dropped without a
 * copy only for somebody who waits, and only when Redis is down or refuses what it is sent, when
 * nothing below is cold, when it could not be moved several times, or at the deadline of who
 * waits.  Nobody waits for what will not come: when nothing that is under way can become free, the
 * first in line gets what there is. Those behind the line (what PREFETCH brings) are served while
 * nobody is in it, and what they took is given up before anybody in line goes without.
 *
 * What it relies on.  Whoever makes something free or evictable stirs the group; the end of each
 * step looks at the groups that were stirred.  There is a timer only for deadlines, for work that
 * one step left to the next, and to try again where memory or Redis was missing.
 *
 *     line:  [ first | next | ... ]     want <= free: served.  Else, for all that is wanted:
 *        |                                clean victims   free at once       -> serve again
 *        |                                dirty ones      moves begin        -> wait for their end
 *        |                                host is full    the same, one tier lower
 *        v                                nothing comes   the first one takes what there is
 *     watermarks: below low, the same up to high; but nothing is ever dropped for them
 */
#include "daemon/engine_internal.h"

#include <stdio.h>

#define STEP_BLOCKS 256u     /* moved or freed in one step, ahead of demand or for the line */
#define RETRY_NS    1000000u /* after memory was missing */
#define REFUSED_MAX 3u       /* blocks in a row that Redis did not take though it is up */

enum haste {
	AHEAD,  /* nobody waits yet */
	WANTED, /* somebody does, for whom nobody shall lose anything */
	NEEDED, /* somebody does, who cannot go on without */
};

enum outcome {
	NOTHING, /* is free, nor will be for now */
	COMING,  /* something is under way, or is begun later */
	FREED,
};

bool prefixd_tiered(const struct prefixd_engine *e, const struct prefixd_group *g)
{
	return g->n_host || e->config.redis;
}

/* The next tier down; RADIX_N_TIERS: none. */
static enum radix_tier below(const struct prefixd_engine *e, const struct prefixd_group *g,
			     enum radix_tier tier)
{
	if (tier == RADIX_TIER_DEVICE && g->n_host)
		return RADIX_TIER_HOST;
	return e->config.redis ? RADIX_TIER_REDIS : RADIX_N_TIERS;
}

static bool usable(const struct prefixd_engine *e, enum radix_tier tier)
{
	return tier == RADIX_TIER_HOST || (tier == RADIX_TIER_REDIS && e->redis_up);
}

static void again(struct prefixd_group *g, uint64_t at_ns)
{
	g->again_ns = radix_min_u64(g->again_ns, at_ns);
}

static void look(struct prefixd_engine *e, struct prefixd_group *g)
{
	if (g->state == PREFIXD_GROUP_READY && !radix_list_linked(&g->stirred) &&
	    (prefixd_tiered(e, g) || g->n_corrupt))
		radix_list_add_tail(&e->stirred, &g->stirred);
}

/* ---- making room ----------------------------------------------------------------------------- */

static uint32_t drop(struct prefixd_engine *e, struct prefixd_group *g, enum radix_tier tier,
		     uint32_t want)
{
	struct radix_room r;

	radix_make_room(g->index, tier, want, RADIX_ROOM_DROP, NULL, 0, &r);
	e->counters.dropped_blocks += r.dropped;
	g->reap = true;
	return r.freed;
}

/* Those that could not be moved, again and again. */
static uint32_t drop_hopeless(struct prefixd_engine *e, struct prefixd_group *g,
			      enum radix_tier tier, uint32_t want)
{
	uint32_t n = radix_min_u32(want, g->give_up[tier]);
	uint32_t freed = n ? drop(e, g, tier, n) : 0;

	g->give_up[tier] -= n;
	return freed;
}

/* How many moves may begin now towards the tier below. */
static uint32_t begin_at_most(struct prefixd_engine *e, struct prefixd_group *g,
			      enum radix_tier tier, uint32_t want, enum haste haste)
{
	uint32_t n = radix_min_u32(want, prefixd_moves_left(e, g, tier));

	if (e->draining)
		return 0;
	if (below(e, g, tier) == RADIX_TIER_REDIS && e->now_ns < e->redis_again_ns) {
		if (haste != AHEAD)
			again(g, e->redis_again_ns);
		return 0;
	}
	if (n && prefixd_moves_room(e, n) < 0) {
		again(g, e->now_ns + RETRY_NS);
		return 0;
	}
	return n;
}

/*
 * Frees slots of a tier, or begins to, within what is left of this step.  *ret_held: the tier below
 * is well, but no more moves may begin now.
 */
static struct radix_room make(struct prefixd_engine *e, struct prefixd_group *g,
			      enum radix_tier tier, uint32_t want, enum haste haste, bool *ret_held)
{
	struct radix_move moves[STEP_BLOCKS];
	enum radix_tier to = below(e, g, tier);
	struct radix_room r = { 0 };
	uint32_t flags = 0, cap = 0;
	bool well = usable(e, to);

	/* One that is full is up, and takes nothing for as long as it is full. */
	if (haste == NEEDED && to == RADIX_TIER_REDIS && e->redis_refused >= REFUSED_MAX &&
	    e->now_ns < e->redis_again_ns)
		well = false;
	want = radix_min_u32(want, e->room_left);
	*ret_held = false;
	if (haste == NEEDED && g->give_up[tier]) {
		r.freed = drop_hopeless(e, g, tier, want);
		if (r.freed)
			return r;
	}
	if (well) {
		cap = begin_at_most(e, g, tier, want, haste);
		if (e->config.write == PREFIXD_WRITE_SECOND_USE)
			flags = RADIX_ROOM_SECOND_USE;
	} else if (to != RADIX_N_TIERS && haste == NEEDED) {
		flags = RADIX_ROOM_DROP;
	}
	radix_make_room(g->index, tier, want, flags, moves, cap, &r);
	for (uint32_t i = 0; i < r.started; i++)
		prefixd_move_start(e, g, &moves[i], NULL, 0, 0, haste == NEEDED)->leaves = true;
	g->reap = true;
	e->room_left -= radix_min_u32(e->room_left, r.freed + r.started + r.coming);
	if (flags & RADIX_ROOM_DROP)
		e->counters.dropped_blocks += r.dropped;
	else
		e->counters.unused_blocks += r.dropped;
	*ret_held = well && r.started == cap && cap < want;
	return r;
}

/* Host slots for n blocks that are to leave the device. */
static enum outcome room_in_host(struct prefixd_engine *e, struct prefixd_group *g, uint32_t n,
				 enum haste haste)
{
	uint32_t coming = radix_leaving_slots(g->index, RADIX_TIER_HOST);
	struct radix_room r;
	bool held;

	if (coming >= n)
		return COMING;
	if (!e->room_left) {
		again(g, e->now_ns + 1);
		return COMING;
	}
	r = make(e, g, RADIX_TIER_HOST, n - coming, haste, &held);
	if (r.freed)
		return FREED;
	return r.started || r.coming || coming || held ? COMING : NOTHING;
}

static bool leaving_device(const struct prefixd_group *g)
{
	return g->n_moving[RADIX_TIER_DEVICE][RADIX_TIER_HOST] ||
	       g->n_moving[RADIX_TIER_DEVICE][RADIX_TIER_REDIS];
}

/* What was brought up for nobody is let go, or about to land. */
static enum outcome make_way(struct prefixd_engine *e, struct prefixd_group *g)
{
	if (prefixd_loads_make_way(e, g))
		return FREED;
	return g->n_ahead ? COMING : NOTHING;
}

/* Device slots: n more than are free or on their way to be. */
static enum outcome room_on_device(struct prefixd_engine *e, struct prefixd_group *g, uint32_t n,
				   enum haste haste)
{
	struct radix_room r;
	enum outcome host;
	bool held;

	if (!e->room_left) {
		again(g, e->now_ns + 1);
		return COMING;
	}
	r = make(e, g, RADIX_TIER_DEVICE, n, haste, &held);
	if (r.freed)
		return FREED;
	if (r.blocked && !held && g->n_host) {
		host = room_in_host(e, g, n - r.started - r.coming, haste);
		if (host != NOTHING)
			return host;
		/* Nothing in the host is cold: it takes nothing, like one that is not there. */
		if (!leaving_device(g) && haste == NEEDED) {
			host = make_way(e, g);
			if (host == NOTHING)
				host = drop(e, g, RADIX_TIER_DEVICE, n) ? FREED : NOTHING;
			return host;
		}
	}
	/* A copy under way may make a victim clean, whatever it was begun for. */
	if (leaving_device(g) || (held && haste != AHEAD))
		return COMING;
	return haste == NEEDED ? make_way(e, g) : NOTHING;
}

/* ---- the line -------------------------------------------------------------------------------- */

static struct prefixd_waiter *waiter_at(struct radix_list *it)
{
	return radix_list_entry(it, struct prefixd_waiter, link);
}

static struct prefixd_waiter *first_of(struct radix_list *line)
{
	struct radix_list *it;

	radix_list_foreach(it, line)
		if (waiter_at(it)->want)
			return waiter_at(it);
	return NULL;
}

/* What those in line want together; not exact above `enough`. */
static uint64_t line_wants(struct radix_list *line, uint64_t enough)
{
	struct radix_list *it;
	uint64_t n = 0;

	radix_list_foreach(it, line) {
		n += waiter_at(it)->want;
		if (n >= enough)
			break;
	}
	return n;
}

/* His answer fits into this step; else it has time until the next. */
static bool may_serve(struct prefixd_engine *e, struct prefixd_group *g,
		      const struct prefixd_waiter *w)
{
	if (prefixd_out_left(e) < w->out) {
		again(g, e->now_ns + 1);
		return false;
	}
	if (prefixd_actions_room(e, 1) < 0) {
		again(g, e->now_ns + RETRY_NS);
		return false;
	}
	return true;
}

/* Hands out what is free.  True: the first one waits for more. */
static bool serve_line(struct prefixd_engine *e, struct prefixd_group *g, struct radix_list *line)
{
	struct prefixd_waiter *w;

	while ((w = first_of(line))) {
		uint32_t n_free = radix_free_slots(g->index, RADIX_TIER_DEVICE), want = w->want;

		if (n_free == 0)
			return true;
		if (!may_serve(e, g, w))
			return false;
		if (!w->serve(e, w, n_free, false) && w->want)
			return n_free < want;
	}
	return false;
}

/* Nothing more comes: the first one takes what there is.  False: he stays. */
static bool serve_last(struct prefixd_engine *e, struct prefixd_group *g, struct radix_list *line)
{
	struct prefixd_waiter *w = first_of(line);

	return may_serve(e, g, w) &&
	       w->serve(e, w, radix_free_slots(g->index, RADIX_TIER_DEVICE), true);
}

/*
 * His deadline has passed: dirty victims are dropped for him.  Of what was free already he gets
 * what those before him do not claim.
 */
static bool serve_late(struct prefixd_engine *e, struct prefixd_group *g, struct prefixd_waiter *w,
		       uint64_t claimed)
{
	uint32_t n_free = radix_free_slots(g->index, RADIX_TIER_DEVICE);
	uint32_t his = n_free > claimed ? n_free - (uint32_t)claimed : 0;

	if (his < w->want && !e->draining)
		his += drop(e, g, RADIX_TIER_DEVICE, w->want - his);
	if (his < w->want && !e->draining && prefixd_loads_make_way(e, g))
		his += drop(e, g, RADIX_TIER_DEVICE, w->want - his);
	return w->serve(e, w, his, true);
}

static void serve_all_late(struct prefixd_engine *e, struct prefixd_group *g)
{
	struct radix_list *it = g->line.next;
	uint64_t claimed = 0;

	if (g->line_due_ns > e->now_ns)
		return;
	g->line_due_ns = UINT64_MAX;
	while (it != &g->line) {
		struct prefixd_waiter *w = waiter_at(it);

		if (w->want && w->deadline_ns <= e->now_ns) {
			if (!may_serve(e, g, w)) {
				g->line_due_ns = g->again_ns;
				return;
			}
			if (serve_late(e, g, w, claimed)) {
				it = g->line.next; /* whoever stood beside him may be gone too */
				claimed = 0;
				continue;
			}
		} else if (w->deadline_ns > e->now_ns) {
			g->line_due_ns = radix_min_u64(g->line_due_ns, w->deadline_ns);
		}
		claimed += w->want;
		it = it->next;
	}
}

/* More is freed, or begins to be, for those in line. */
static enum outcome room_for(struct prefixd_engine *e, struct prefixd_group *g,
			     struct radix_list *line)
{
	uint32_t coming = radix_leaving_slots(g->index, RADIX_TIER_DEVICE);
	uint64_t have = (uint64_t)radix_free_slots(g->index, RADIX_TIER_DEVICE) + coming;
	uint64_t want = line_wants(line, have + STEP_BLOCKS);

	if (want <= have || e->draining)
		return coming ? COMING : NOTHING;
	return room_on_device(e, g, (uint32_t)radix_min_u64(want - have, STEP_BLOCKS),
			      line == &g->line ? NEEDED : WANTED);
}

static void serve_all(struct prefixd_engine *e, struct prefixd_group *g, struct radix_list *line)
{
	enum outcome o = FREED;

	while (o == FREED && serve_line(e, g, line)) {
		o = room_for(e, g, line);
		if (o == NOTHING && serve_last(e, g, line))
			o = FREED;
	}
}

/* ---- ahead of demand ------------------------------------------------------------------------- */

static uint32_t percent(uint32_t n, uint32_t of)
{
	return (uint32_t)(((uint64_t)n * radix_min_u32(of, 100) + 99) / 100);
}

/* Slots that are to become free now, beside those that are or will be. */
static uint32_t short_of(const struct prefixd_engine *e, struct prefixd_group *g,
			 enum radix_tier tier)
{
	uint32_t n = tier == RADIX_TIER_DEVICE ? g->n_slots : g->n_host;
	uint32_t low = percent(n, e->config.watermark_low);
	uint32_t high = percent(n, e->config.watermark_high);
	uint32_t have = radix_free_slots(g->index, tier) + radix_leaving_slots(g->index, tier);

	if (high < low)
		high = low;
	if (have < low)
		g->filling[tier] = true;
	else if (have >= high)
		g->filling[tier] = false;
	return g->filling[tier] ? high - have : 0;
}

static void free_ahead(struct prefixd_engine *e, struct prefixd_group *g, enum radix_tier tier)
{
	enum outcome o = FREED;

	while (o == FREED && !g->idle[tier]) {
		uint32_t n = short_of(e, g, tier);

		if (n == 0)
			return;
		o = tier == RADIX_TIER_DEVICE ? room_on_device(e, g, n, AHEAD)
					      : room_in_host(e, g, n, AHEAD);
	}
	if (o == NOTHING)
		g->idle[tier] = true;
}

/* ---- the group, the step --------------------------------------------------------------------- */

/* Blocks with wrong bytes that a lease held when that was found. */
static void remove_corrupt(struct prefixd_group *g)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < g->n_corrupt; i++) {
		enum radix_tier tier;

		if (radix_lose(g->index, g->corrupt[i], RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT) ==
			    0 &&
		    radix_member_tier(g->index, g->corrupt[i], &tier) == 0 &&
		    tier == RADIX_TIER_DEVICE)
			g->corrupt[kept++] = g->corrupt[i];
	}
	g->reap = g->reap || kept < g->n_corrupt;
	g->n_corrupt = kept;
}

static void settle(struct prefixd_engine *e, struct prefixd_group *g)
{
	g->serving = true;
	g->again_ns = UINT64_MAX;
	remove_corrupt(g);
	if (!prefixd_tiered(e, g)) {
		g->serving = false;
		return;
	}
	serve_all_late(e, g);
	serve_all(e, g, &g->line);
	if (!first_of(&g->line))
		serve_all(e, g, &g->behind);
	if (!e->draining && !first_of(&g->line)) {
		free_ahead(e, g, RADIX_TIER_DEVICE);
		(void)serve_line(e, g, &g->behind); /* what became free by the way */
	}
	if (!e->draining && below(e, g, RADIX_TIER_HOST) != RADIX_N_TIERS && g->n_host)
		free_ahead(e, g, RADIX_TIER_HOST);
	g->serving = false;
}

void prefixd_room_ask(struct prefixd_engine *e, struct prefixd_group *g, struct prefixd_waiter *w)
{
	radix_list_add_tail(w->behind ? &g->behind : &g->line, &w->link);
	g->line_due_ns = radix_min_u64(g->line_due_ns, w->deadline_ns);
	if (g->serving)
		look(e, g);
	else
		settle(e, g);
}

void prefixd_room_leave(struct prefixd_waiter *w)
{
	radix_list_remove(&w->link);
}

void prefixd_room_stir(struct prefixd_engine *e, struct prefixd_group *g)
{
	memset(g->idle, 0, sizeof(g->idle));
	look(e, g);
}

void prefixd_room_taken(struct prefixd_engine *e, struct prefixd_group *g)
{
	look(e, g);
}

bool prefixd_room_now(struct prefixd_engine *e, struct prefixd_group *g, uint32_t want)
{
	uint32_t n_free = radix_free_slots(g->index, RADIX_TIER_DEVICE), flags = 0;
	struct radix_room r;

	if (first_of(&g->line))
		return false;
	if (n_free >= want)
		return true;
	if (!usable(e, below(e, g, RADIX_TIER_DEVICE)))
		return n_free + drop(e, g, RADIX_TIER_DEVICE, want - n_free) >= want;
	if (e->config.write == PREFIXD_WRITE_SECOND_USE)
		flags = RADIX_ROOM_SECOND_USE;
	radix_make_room(g->index, RADIX_TIER_DEVICE, want - n_free, flags, NULL, 0, &r);
	e->counters.unused_blocks += r.dropped;
	g->reap = true;
	return n_free + r.freed >= want;
}

void prefixd_room_begin(struct prefixd_engine *e)
{
	e->room_left = STEP_BLOCKS;
}

void prefixd_room_settle(struct prefixd_engine *e)
{
	struct radix_list *it;

	/* Serving one may stir another, or the same; what goes on for long goes on later. */
	for (uint32_t i = 0; i < 4 * e->n_groups && !radix_list_empty(&e->stirred); i++) {
		struct prefixd_group *g = radix_list_first(&e->stirred, struct prefixd_group,
							   stirred);

		radix_list_remove(&g->stirred);
		settle(e, g);
	}
	radix_list_foreach(it, &e->stirred)
		again(radix_list_entry(it, struct prefixd_group, stirred), e->now_ns + 1);
}

void prefixd_room_time(struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++) {
		struct prefixd_group *g = e->groups[i];

		if (g && radix_min_u64(g->line_due_ns, g->again_ns) <= e->now_ns)
			look(e, g);
	}
}

uint64_t prefixd_room_deadline(const struct prefixd_engine *e)
{
	uint64_t due = UINT64_MAX;

	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i])
			due = radix_min_u64(due, radix_min_u64(e->groups[i]->line_due_ns,
							       e->groups[i]->again_ns));
	return due;
}

void prefixd_redis_state(struct prefixd_engine *e, bool up)
{
	e->redis_up = up;
	e->redis_again_ns = 0;
	e->redis_refused = 0;
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i])
			prefixd_room_stir(e, e->groups[i]);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static int broken(char *why, size_t why_len, int rule, const char *what, uint32_t n,
		  const char *text)
{
	snprintf(why, why_len, "%s %u: %s", what, n, text);
	return rule;
}

/* 18: what the groups count is what the table has. */
static int verify_moves(const struct prefixd_engine *e, char *why, size_t why_len)
{
	uint32_t moving[RADIX_N_TIERS][RADIX_N_TIERS], used = 0, spare = 0, ahead;

	for (uint32_t k = 0; k < e->n_groups; k++) {
		const struct prefixd_group *g = e->groups[k];

		memset(moving, 0, sizeof(moving));
		ahead = 0;
		for (uint32_t i = 0; g && i < e->moves_cap; i++) {
			const struct prefixd_move *mv = &e->moves[i];

			if (!mv->used || mv->group != g)
				continue;
			used++;
			moving[mv->m.from][mv->m.to]++;
			ahead += mv->ahead;
			if (mv->load ? mv->m.to >= mv->m.from : mv->m.to <= mv->m.from)
				return broken(why, why_len, 18, "move", i, "it goes the wrong way");
		}
		if (g && (memcmp(moving, g->n_moving, sizeof(moving)) != 0 || ahead != g->n_ahead))
			return broken(why, why_len, 18, "pool", k,
				      "it counts other moves than it has");
	}
	for (uint32_t i = e->free_move; i != RADIX_NONE && spare <= e->moves_cap;
	     i = e->moves[i].next) {
		spare++;
		if (e->moves[i].used)
			return broken(why, why_len, 18, "move", i, "it is free and under way");
	}
	if (used != e->n_moves || used + spare != e->moves_cap)
		return broken(why, why_len, 18, "moves", e->moves_cap - used - spare,
			      "they are lost");
	return 0;
}

static uint32_t first_wants(const struct radix_list *line)
{
	const struct prefixd_waiter *w = first_of((struct radix_list *)(uintptr_t)line);

	return w ? w->want : 0;
}

/* 19: who waits has a reason to. */
static int verify_line(const struct prefixd_engine *e, const struct prefixd_group *g, char *why,
		       size_t why_len)
{
	uint32_t first = first_wants(&g->line);
	const struct radix_list *it;

	radix_list_foreach(it, &g->line) {
		const struct prefixd_waiter *w = waiter_at((struct radix_list *)(uintptr_t)it);

		if (w->deadline_ns < g->line_due_ns && w->deadline_ns > e->now_ns)
			return broken(why, why_len, 19, "pool", g->id,
				      "a deadline in its line is forgotten");
	}
	if (!first)
		first = first_wants(&g->behind);
	if (first && radix_free_slots(g->index, RADIX_TIER_DEVICE) >= first &&
	    g->again_ns == UINT64_MAX)
		return broken(why, why_len, 19, "pool", g->id, "slots are wanted and free");
	if (first && g->again_ns == UINT64_MAX && !leaving_device(g) && !g->n_ahead &&
	    !g->n_moving[RADIX_TIER_HOST][RADIX_TIER_REDIS])
		return broken(why, why_len, 19, "pool", g->id,
			      "slots are waited for and nothing moves");
	return 0;
}

int prefixd_room_verify(const struct prefixd_engine *e, char *why, size_t why_len)
{
	int r = verify_moves(e, why, why_len);

	for (uint32_t i = 0; r == 0 && i < e->n_groups; i++)
		if (e->groups[i] && e->groups[i]->state == PREFIXD_GROUP_READY)
			r = verify_line(e, e->groups[i], why, why_len);
	for (uint32_t i = 0; r == 0 && i < e->n_leases; i++) {
		const struct prefixd_lease *l = e->leases[i];

		if (radix_list_linked(&l->room.link) &&
		    (l->state != PREFIXD_LEASE_ACTIVE || !l->room.want ||
		     l->session->state != PREFIXD_SESSION_READY))
			r = broken(why, why_len, 19, "lease", i, "it waits for slots and is over");
	}
	return r;
}
