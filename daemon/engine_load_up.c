/*
 * engine_load_up.c - how the blocks of a load come up: moves begin, arrive, and are attached.
 *
 * What it guarantees.  A slot is taken only for a move that begins in the same step.  Blocks become
 * device copies in path order, and the load's pin follows them, so that none leaves again.  What
 * arrives behind a block that did not come is given back at once.
 *
 * What it relies on.  Each move is answered, once, with its place in the load.  What has to follow
 * from the end of a move is done by prefixd_loads_settle(): here a load is only stirred.
 */
#include "daemon/engine_load.h"

/* The slot is free again, whether the block is still there or not. */
static void give_back(struct prefixd_group *g, const struct radix_move *m)
{
	int r = radix_move_end(g->index, m, false, NULL, NULL);

	radix_assert(r == 0 || r == RADIX_E_NOTFOUND);
}

/* This may come of looking at any load, in any step: who waits for slots looks again. */
static void freed(struct prefixd_engine *e, struct prefixd_group *g)
{
	prefixd_room_stir(e, g);
	prefixd_loads_wake(e, g);
}

void prefixd_load_cut(struct prefixd_engine *e, struct prefixd_load *load, uint32_t at,
		      enum proto_reason reason)
{
	uint32_t old = load->limit;

	prefixd_load_stir(e, load);
	if (at >= old)
		return;
	load->limit = at;
	load->reason = (uint8_t)reason;
	for (uint32_t i = at; i < radix_min_u32(old, load->started); i++) {
		struct prefixd_arrived *a = prefixd_load_ring(load, i);

		if (a->state != PREFIXD_BLOCK_ARRIVED)
			continue;
		give_back(load->group, &a->m);
		freed(e, load->group);
		a->state = PREFIXD_BLOCK_THERE;
	}
}

/* The pin moves behind block i, which has a device copy now. */
static bool step_up(struct prefixd_load *load, uint32_t i)
{
	struct radix_index *ix = load->group->index;
	struct radix_match m;
	const void *key;
	uint32_t len;

	if (radix_member_key(ix, load->v[i], &key, &len) != 0)
		return false;
	radix_match(ix, &load->up.at, key, 1, NULL, &m);
	if (m.n_device != 1)
		return false;
	radix_pin_move(ix, &load->up, &m.device_end);
	load->done = i + 1;
	if (load->started < load->done)
		load->started = load->done;
	return true;
}

bool prefixd_load_advance(struct prefixd_engine *e, struct prefixd_load *load)
{
	struct radix_index *ix = load->group->index;
	uint32_t before = load->done;
	bool landed = false;

	while (load->done < load->limit) {
		uint32_t i = load->done;
		struct prefixd_arrived *a = i < load->started ? prefixd_load_ring(load, i) : NULL;
		enum radix_tier tier;

		if (a && a->state == PREFIXD_BLOCK_ARRIVED) {
			a->state = PREFIXD_BLOCK_THERE;
			if (radix_move_end(ix, &a->m, true, a->summed ? a->checksum : NULL, NULL) ==
			    RADIX_E_REFUSED)
				give_back(load->group, &a->m);
			landed = true;
		}
		if (radix_member_tier(ix, load->v[i], &tier) != 0) {
			prefixd_load_cut(e, load, i, PROTO_REASON_TIER_LOST);
			break;
		}
		if (tier != RADIX_TIER_DEVICE) {
			if (a && a->state == PREFIXD_BLOCK_THERE) /* it came and could not stay */
				prefixd_load_cut(e, load, i, PROTO_REASON_TIER_DOWN);
			break;
		}
		if (!step_up(load, i)) {
			prefixd_load_cut(e, load, i, PROTO_REASON_TIER_LOST);
			break;
		}
	}
	if (load->done > before)
		prefixd_load_progress(e, load);
	if (landed)
		freed(e, load->group); /* where others were faster */
	return load->done > before;
}

uint32_t prefixd_load_take(struct prefixd_engine *e, struct prefixd_load *load, uint32_t n)
{
	struct radix_index *ix = load->group->index;
	uint32_t begun = 0;

	while (load->started < load->limit && load->started - load->done < load->n_ring) {
		uint32_t i = load->started;
		struct prefixd_arrived *a = prefixd_load_ring(load, i);
		enum radix_tier tier;
		int r = radix_member_tier(ix, load->v[i], &tier);

		if (r == 0 && tier == RADIX_TIER_REDIS && !e->redis_up) {
			prefixd_load_cut(e, load, i, PROTO_REASON_TIER_DOWN);
			break;
		}
		if (r == 0 && tier != RADIX_TIER_DEVICE && begun == n)
			break;
		if (r == 0)
			r = radix_promote_begin(ix, load->v[i], &a->m);
		if (r == RADIX_E_REFUSED)
			break;
		if (r == RADIX_E_NOTFOUND) {
			prefixd_load_cut(e, load, i, PROTO_REASON_TIER_LOST);
			break;
		}
		load->started++;
		a->state = PREFIXD_BLOCK_THERE; /* somebody else brought it */
		if (r != 0)
			continue;
		a->state = PREFIXD_BLOCK_FLYING;
		load->n_flying++;
		begun++;
		(void)prefixd_move_start(e, load->group, &a->m, load, i,
					 load->ahead ? 0 : load->deadline_ns, !load->ahead);
	}
	if (begun) {
		prefixd_load_progress(e, load);
		prefixd_room_taken(e, load->group);
	}
	return begun;
}

/* Gives the slot back.  A value that is gone is gone, whoever still waits for it. */
static void undo(struct prefixd_engine *e, struct prefixd_group *g, const struct radix_move *m,
		 enum prefixd_move_result result)
{
	give_back(g, m);
	if (result != PREFIXD_MOVE_LOST && result != PREFIXD_MOVE_CORRUPT)
		return;
	e->counters.corrupt_blocks += result == PREFIXD_MOVE_CORRUPT;
	(void)radix_lose(g->index, m->block, m->from,
			 result == PREFIXD_MOVE_LOST ? RADIX_REMOVE_LOST : RADIX_REMOVE_CORRUPT);
	g->reap = true;
}

static enum proto_reason reason_of(enum prefixd_move_result result)
{
	switch (result) {
	case PREFIXD_MOVE_LOST:
		return PROTO_REASON_TIER_LOST;
	case PREFIXD_MOVE_CORRUPT:
		return PROTO_REASON_CORRUPT;
	case PREFIXD_MOVE_OK:
	case PREFIXD_MOVE_DOWN:
	case PREFIXD_MOVE_RAW:
	case PREFIXD_MOVE_FAILED:
		break;
	}
	return PROTO_REASON_TIER_DOWN;
}

void prefixd_load_moved(struct prefixd_engine *e, struct prefixd_load *load, uint32_t at,
			const struct radix_move *m, const struct prefixd_event *event)
{
	enum prefixd_move_result result = event->u.moved.result;
	struct prefixd_arrived *a = prefixd_load_ring(load, at);

	load->n_flying--;
	prefixd_load_stir(e, load);
	if (at < load->done) { /* another brought it meanwhile, and the ring has gone on */
		undo(e, load->group, m, result);
		return;
	}
	if (result != PREFIXD_MOVE_OK || at >= load->limit) {
		a->state = PREFIXD_BLOCK_THERE;
		undo(e, load->group, m, result);
		prefixd_load_cut(e, load, at, reason_of(result));
		return;
	}
	a->state = PREFIXD_BLOCK_ARRIVED;
	/* Host copies of a coded group are coded, whatever their carrier says. */
	a->m.lossy = load->group->cold.codec != GPU_CODEC_NONE &&
		     (m->from == RADIX_TIER_HOST || event->u.moved.lossy);
	a->summed = event->u.moved.summed && !a->m.lossy;
	if (a->summed)
		memcpy(a->checksum, event->u.moved.checksum, sizeof(a->checksum));
	(void)prefixd_load_advance(e, load);
}
