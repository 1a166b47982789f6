/*
 * engine_check.c - payloads of an earlier life are compared with the checksums of their writers.
 *
 * What it guarantees.  Each block that was taken up with a checksum is looked at once: in the
 * background, or, when that is asked for, before anybody is served from its pool.  A block with
 * other bytes goes, with all that hangs below it; while a lease pins it, that waits.
 *
 * What it relies on.  VERIFIED answers each VERIFY.  Meanwhile the slot may have been given to
 * another block, which its generation tells.
 *
 * An id is a place among the batches and how often it was used:   | uses | 2 bits: place |
 */
#include "daemon/engine_internal.h"

#define PLACE_BITS 2u
#define AGAIN_NS   10000000u /* without memory for an action, it is tried again after that */

_Static_assert(PREFIXD_CHECKS <= 1u << PLACE_BITS, "a batch's place fits its id");

void prefixd_checks_begin(struct prefixd_engine *e, struct prefixd_group *g)
{
	(void)e;
	g->checking = e->checks != NULL;
	g->check_at = 0;
}

static bool waits_for_it(const struct prefixd_engine *e)
{
	return e->config.verify == PREFIXD_VERIFY_FULL;
}

static void checks_over(struct prefixd_engine *e, struct prefixd_group *g)
{
	bool more = e->n_adopting > 0;

	g->checking = false;
	prefixd_adopt_done(e);
	for (uint32_t i = 0; i < e->n_groups; i++)
		more = more || (e->groups[i] && e->groups[i]->checking);
	if (more)
		return;
	radix_give(e->alloc, e->checks, PREFIXD_CHECKS * sizeof(*e->checks));
	e->checks = NULL;
}

/* Every block was looked at, and what was found wrong has gone or is known to be pinned. */
static void checks_end(struct prefixd_engine *e, struct prefixd_group *g)
{
	g->checking = false;
	if (waits_for_it(e))
		prefixd_group_open(e, g);
	checks_over(e, g);
}

void prefixd_checks_stop(struct prefixd_engine *e, struct prefixd_group *g)
{
	for (uint32_t i = 0; e->checks && i < PREFIXD_CHECKS; i++)
		if (e->checks[i].group == g)
			e->checks[i].group = NULL; /* what is answered of it says nothing */
	g->n_checking = 0;
	if (g->checking)
		checks_over(e, g);
}

/* Return: false: no room for an action now. */
static bool batch_begin(struct prefixd_engine *e, struct prefixd_group *g, uint32_t place)
{
	struct prefixd_check *c = &e->checks[place];
	struct prefixd_action *a;

	if (prefixd_actions_room(e, 1) < 0)
		return false;
	c->from = g->check_at;
	c->n = radix_sums_next(g->index, PROTO_CHECKSUM_XXH3_128, &g->check_at, c->v,
			       PREFIXD_VERIFY_MAX);
	if (c->n == 0) {
		if (g->n_checking == 0)
			checks_end(e, g);
		return true;
	}
	c->group = g;
	c->serial++;
	g->n_checking++;
	for (uint32_t i = 0; i < c->n; i++)
		c->generation[i] = radix_slot_generation(g->index, c->v[i].slot);
	a = prefixd_act(e, PREFIXD_ACTION_VERIFY, RADIX_NONE);
	a->group = g->id;
	a->u.verify.id = c->serial << PLACE_BITS | place;
	a->u.verify.n = c->n;
	a->u.verify.v = c->v;
	a->u.verify.full = waits_for_it(e);
	return true;
}

static struct prefixd_group *next_group(const struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i] && e->groups[i]->checking &&
		    e->groups[i]->n_corrupt < PREFIXD_N_CORRUPT / 2)
			return e->groups[i];
	return NULL;
}

void prefixd_checks_settle(struct prefixd_engine *e)
{
	struct prefixd_group *g;
	uint32_t before;

	if (!e->checks)
		return;
	e->check_again_ns = UINT64_MAX;
	for (uint32_t i = 0; e->checks && i < PREFIXD_CHECKS; i++) {
		if (e->checks[i].group)
			continue;
		g = next_group(e);
		if (!g)
			return;
		before = g->check_at;
		if (!batch_begin(e, g, i)) {
			e->check_again_ns = e->now_ns + AGAIN_NS;
			return;
		}
		/* The end is reached, and others of it are still under way. */
		if (e->checks && g->checking && !e->checks[i].group && g->check_at == before)
			return;
	}
}

/* Wrong bytes.  False: it is pinned, and there is no place to note it. */
static bool condemn(struct prefixd_engine *e, struct prefixd_group *g, const struct radix_sum *v)
{
	enum radix_tier tier;

	if (radix_member_tier(g->index, v->block, &tier) != 0)
		return true; /* it went by itself */
	if (g->n_corrupt == PREFIXD_N_CORRUPT)
		return false;
	e->restored.n_corrupt++;
	e->counters.corrupt_blocks++;
	g->reap = true;
	prefixd_log(e, PREFIXD_LOG_ERROR,
		    "a block of pool %u of an earlier life has other bytes in slot %u than its "
		    "writer said",
		    g->id, v->slot);
	if (radix_lose(g->index, v->block, RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT) == 0 &&
	    radix_member_tier(g->index, v->block, &tier) == 0 && tier == RADIX_TIER_DEVICE)
		g->corrupt[g->n_corrupt++] = v->block;
	prefixd_room_stir(e, g);
	return true;
}

void prefixd_verified(struct prefixd_engine *e, const struct prefixd_event *event)
{
	uint32_t id = event->u.verified.id, place = id & ((1u << PLACE_BITS) - 1);
	struct prefixd_check *c = e->checks && place < PREFIXD_CHECKS ? &e->checks[place] : NULL;
	struct prefixd_group *g;

	if (!c || !c->group || (c->serial << PLACE_BITS | place) != id)
		return;
	g = c->group;
	c->group = NULL;
	g->n_checking--;
	for (uint32_t i = 0; i < c->n; i++) {
		const struct radix_sum *v = &c->v[i];
		bool is = radix_slot_generation(g->index, v->slot) == c->generation[i];

		e->restored.n_verified += event->u.verified.done >> i & 1;
		if (!is || !(event->u.verified.bad >> i & 1) || condemn(e, g, v))
			continue;
		/* Too many are pinned: these are looked at once more. */
		g->check_at = radix_min_u32(g->check_at, c->from);
		return;
	}
}
