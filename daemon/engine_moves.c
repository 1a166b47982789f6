/*
 * engine_moves.c - the table of moves: from the index to an action, from MOVED back to the index.
 *
 * What it guarantees.  Each move that radix began is under way exactly once, and is ended exactly
 * once, whatever its carrier answers; an answer that names no move under way changes nothing.  The
 * groups count what is under way by its direction.  What moves take is kept as moving averages.
 *
 * What it relies on.  Room in the table and for the actions was made before radix began a move, so
 * that none is ever begun and not carried.  A carrier answers each move.
 *
 * A move's id is its place in the table and how often that was used, so that an answer which comes
 * twice does not meet the next one:   | 12 bits: uses | 20 bits: place |
 */
#include "daemon/engine_internal.h"

#define IDX_BITS      20u
#define PACE_BLOCKS   32u       /* that ended make a sample */
#define FAILURES_MAX  3u        /* of one block in a row; then it is dropped when room is needed */
#define REDIS_WAIT_NS 10000000u /* after an answer that Redis is not there, until it says so */

/* ---- the table ------------------------------------------------------------------------------- */

static int table_room(struct prefixd_engine *e, uint32_t n)
{
	uint32_t cap = e->moves_cap ? e->moves_cap : 64;
	struct prefixd_move *v;

	while (cap - e->n_moves < n)
		cap *= 2;
	if (cap == e->moves_cap)
		return 0;
	if (cap > 1u << IDX_BITS)
		return -ENOMEM;
	v = prefixd_grow(e->alloc, e->moves, e->moves_cap * sizeof(*v), cap * sizeof(*v));
	if (!v)
		return -ENOMEM;
	memset(v + e->moves_cap, 0, (cap - e->moves_cap) * sizeof(*v));
	for (uint32_t i = cap; i-- > e->moves_cap;) {
		v[i].next = e->free_move;
		e->free_move = i;
	}
	e->moves = v;
	e->moves_cap = cap;
	return 0;
}

int prefixd_moves_room(struct prefixd_engine *e, uint32_t n)
{
	size_t keys = e->keys_out_len + (size_t)n * e->key_max;
	uint32_t n_actions = e->names_late ? 2 * n : n; /* each may have to be named first */
	uint8_t *p;

	if (table_room(e, n) < 0 || prefixd_actions_room(e, n_actions) < 0)
		return -ENOMEM;
	if (keys <= e->keys_out_cap)
		return 0;
	p = prefixd_grow(e->alloc, e->keys_out, e->keys_out_cap, keys);
	if (!p)
		return -ENOMEM;
	e->keys_out = p;
	e->keys_out_cap = keys;
	return 0;
}

void prefixd_moves_deinit(struct prefixd_engine *e)
{
	radix_give(e->alloc, e->moves, e->moves_cap * sizeof(*e->moves));
	radix_give(e->alloc, e->keys_out, e->keys_out_cap);
	e->moves = NULL;
	e->keys_out = NULL;
	e->moves_cap = e->n_moves = 0;
	e->keys_out_cap = 0;
}

/* Moves under way that share a window with those from `from`. */
static uint32_t under_way(const struct prefixd_group *g, enum radix_tier from, bool up)
{
	uint32_t n = 0;

	for (uint32_t a = 0; a < RADIX_N_TIERS; a++)
		for (uint32_t b = 0; b < RADIX_N_TIERS; b++)
			if (up ? b < a : b > a && a == from)
				n += g->n_moving[a][b];
	return n;
}

static uint32_t window_left(const struct prefixd_engine *e, uint32_t n)
{
	uint32_t window = e->config.move_window ? e->config.move_window : 256;

	return n < window ? window - n : 0;
}

uint32_t prefixd_moves_left(const struct prefixd_engine *e, const struct prefixd_group *g,
			    enum radix_tier from)
{
	return window_left(e, under_way(g, from, false));
}

uint32_t prefixd_moves_left_up(const struct prefixd_engine *e, const struct prefixd_group *g,
			       bool ahead)
{
	return window_left(e, under_way(g, RADIX_TIER_HOST, true) - (ahead ? 0 : g->n_ahead));
}

bool prefixd_moves_down(const struct prefixd_engine *e)
{
	for (uint32_t i = 0; i < e->n_groups; i++)
		if (e->groups[i] && (under_way(e->groups[i], RADIX_TIER_DEVICE, false) ||
				     under_way(e->groups[i], RADIX_TIER_HOST, false)))
			return true;
	return false;
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* radix began a move of it in this step: the block is there. */
static const struct prefixd_root *root_of(const struct prefixd_group *g, struct radix_member block)
{
	uint32_t index_root, n_tokens;
	int r = radix_member_root(g->index, block, &index_root, &n_tokens);

	radix_assert(r == 0);
	return (const struct prefixd_root *)(uintptr_t)radix_root_user(g->index, index_root);
}

static void describe(struct prefixd_engine *e, const struct prefixd_group *g,
		     const struct radix_move *m, bool lossy, struct prefixd_carry *c)
{
	const struct prefixd_root *root = root_of(g, m->block);
	const void *key;
	uint32_t index_root;
	int r = radix_member_root(g->index, m->block, &index_root, &c->n_tokens);

	if (r == 0)
		r = radix_member_key(g->index, m->block, &key, &c->key_len);
	if (r == 0)
		r = radix_member_checksum(g->index, m->block, &c->checksum_kind, c->checksum);
	radix_assert(r == 0);
	if (lossy) /* what is known is of what was committed */
		c->checksum_kind = 0;
	memcpy(c->ns_digest, root->ns->digest, sizeof(c->ns_digest));
	/* The block may go in this very step: its key is kept apart, and found by its place there
	 * when the step ends, because the buffer may grow until then. */
	radix_assert(c->key_len <= e->keys_out_cap - e->keys_out_len);
	memcpy(e->keys_out + e->keys_out_len, key, c->key_len);
	c->key = (const void *)(uintptr_t)e->keys_out_len;
	e->keys_out_len += c->key_len;
}

/* Below the device a coded group's blocks are coded, but for a value that may be as it was. */
static bool lossy_source(const struct prefixd_group *g, const struct radix_move *m)
{
	if (g->cold.codec == GPU_CODEC_NONE)
		return false;
	return m->from != RADIX_TIER_DEVICE || radix_member_lossy(g->index, m->block);
}

struct prefixd_move *prefixd_move_start(struct prefixd_engine *e, struct prefixd_group *g,
					const struct radix_move *m, struct prefixd_load *load,
					uint32_t load_at, uint64_t deadline_ns, bool urgent)
{
	enum prefixd_action_type type = m->from == RADIX_TIER_REDIS ? PREFIXD_ACTION_FETCH
					: m->to == RADIX_TIER_REDIS ? PREFIXD_ACTION_STORE
								    : PREFIXD_ACTION_COPY;
	struct prefixd_pace *pace = &g->pace[m->from][m->to];
	struct prefixd_action *a;
	struct prefixd_move *mv;
	uint32_t idx = e->free_move;

	if (type != PREFIXD_ACTION_COPY)
		prefixd_names_member(e, root_of(g, m->block), m->block);
	a = prefixd_act(e, type, RADIX_NONE);
	radix_assert(e->n_moves < e->moves_cap);
	mv = &e->moves[idx];
	e->free_move = mv->next;
	e->n_moves++;
	*mv = (struct prefixd_move){
		.m = *m,
		.group = g,
		.load = load,
		.load_at = load_at,
		.begun_ns = e->now_ns,
		.serial = mv->serial + 1,
		.next = RADIX_NONE,
		.ahead = load && !urgent,
		.lossy = lossy_source(g, m),
		.used = true,
	};
	g->n_ahead += mv->ahead;
	if (g->n_moving[m->from][m->to]++ == 0) {
		mv->alone = true;
		pace->since_ns = 0;
		pace->n_ended = 0;
	}
	a->group = g->id;
	a->u.carry = (struct prefixd_carry){
		.id = idx | mv->serial << IDX_BITS,
		.from = m->from,
		.to = m->to,
		.src = m->src,
		.dst = m->dst,
		.entry = m->block.entry,
		.generation = m->block.generation,
		.deadline_ns = deadline_ns,
		.urgent = urgent,
	};
	describe(e, g, m, mv->lossy, &a->u.carry);
	return mv;
}

void prefixd_moves_settle(struct prefixd_engine *e)
{
	prefixd_names_settle(e);
	for (uint32_t i = 0; e->keys_out_len && i < e->n_actions; i++) {
		struct prefixd_action *a = &e->actions[i];

		if (a->type == PREFIXD_ACTION_COPY || a->type == PREFIXD_ACTION_STORE ||
		    a->type == PREFIXD_ACTION_FETCH)
			a->u.carry.key = e->keys_out + (uintptr_t)a->u.carry.key;
	}
	e->keys_out_len = 0;
}

void prefixd_write_through(struct prefixd_engine *e, struct prefixd_group *g,
			   const struct radix_member *blocks, uint32_t n)
{
	enum radix_tier to = g->n_host ? RADIX_TIER_HOST : RADIX_TIER_REDIS;
	struct radix_move m;

	if (e->draining || (to == RADIX_TIER_REDIS && !e->redis_up))
		return;
	n = radix_min_u32(n, prefixd_moves_left(e, g, RADIX_TIER_DEVICE));
	/* A copy ahead of need is not worth a failure: without memory there is none. */
	if (prefixd_moves_room(e, n) < 0)
		return;
	for (uint32_t i = 0; i < n; i++)
		if (radix_copy_begin(g->index, blocks[i], to, &m) == 0)
			(void)prefixd_move_start(e, g, &m, NULL, 0, 0, false);
}

/* ---- what moves take ------------------------------------------------------------------------- */

static uint64_t average(uint64_t avg, uint64_t sample)
{
	if (sample < avg) /* a load in vain costs less than none ever again */
		return avg - avg / 4 + sample / 4;
	return avg ? avg - avg / 8 + sample / 8 : sample;
}

/* One stall of the machine is not what the next load will take; four such are believed. */
static uint64_t believe(uint64_t avg, uint64_t sample)
{
	return average(avg, avg ? radix_min_u64(sample, 4 * avg) : sample);
}

/*
 * How long one takes is told by those that had nothing before them; others waited in line.  The
 * time between ends says how fast blocks follow each other; ends come in bunches, so it is taken
 * over several.  A block that moved alone says nothing of that.
 */
static void pace_note(struct prefixd_engine *e, const struct prefixd_move *mv)
{
	struct prefixd_pace *p = &mv->group->pace[mv->m.from][mv->m.to];
	bool last = mv->group->n_moving[mv->m.from][mv->m.to] == 0;

	if (mv->alone)
		p->latency_ns = believe(p->latency_ns, e->now_ns - mv->begun_ns);
	if (p->since_ns) /* not the first one since nothing was under way */
		p->n_ended++;
	else
		p->since_ns = e->now_ns;
	if (p->n_ended == PACE_BLOCKS || (last && p->n_ended)) {
		p->block_ns = believe(p->block_ns, (e->now_ns - p->since_ns) / p->n_ended);
		p->since_ns = e->now_ns;
		p->n_ended = 0;
	}
	if (last)
		p->since_ns = 0;
}

static uint64_t pace_estimate(const struct prefixd_pace *p, uint32_t n)
{
	return n ? p->latency_ns + (n - 1) * p->block_ns : 0;
}

uint64_t prefixd_load_estimate(const struct prefixd_engine *e, const struct prefixd_group *g,
			       uint32_t n_host, uint32_t n_redis)
{
	uint64_t host = pace_estimate(&g->pace[RADIX_TIER_HOST][RADIX_TIER_DEVICE], n_host);
	uint64_t redis = pace_estimate(&g->pace[RADIX_TIER_REDIS][RADIX_TIER_DEVICE], n_redis);

	(void)e;
	/* Two carriers that do not wait for each other. */
	return host > redis ? host : redis;
}

/* ---- the end --------------------------------------------------------------------------------- */

static struct prefixd_failed *failed_at(struct prefixd_group *g, const struct radix_member *block)
{
	struct prefixd_failed *f = &g->failed[block->entry % PREFIXD_N_FAILED];

	if (f->block.entry != block->entry || f->block.generation != block->generation)
		*f = (struct prefixd_failed){ .block = *block };
	return f;
}

/* A victim that cannot be moved is the coldest again next time.  It is dropped then. */
static void count_failure(struct prefixd_group *g, const struct prefixd_move *mv)
{
	struct prefixd_failed *f = failed_at(g, &mv->m.block);

	if (!mv->leaves || ++f->n < FAILURES_MAX)
		return;
	f->n = 0;
	g->give_up[mv->m.from]++;
}

/* What lies in the source is not the block: nobody may be served it. */
static void condemn(struct prefixd_engine *e, struct prefixd_group *g, const struct radix_move *m)
{
	enum radix_tier tier = m->from;

	e->counters.corrupt_blocks++;
	g->reap = true;
	prefixd_log(e, PREFIXD_LOG_ERROR,
		    "a block of pool %u has other bytes in its %s slot %u than its writer said",
		    g->id, radix_tier_to_string(tier), m->src);
	if (radix_lose(g->index, m->block, tier, RADIX_REMOVE_CORRUPT) > 0 ||
	    radix_member_tier(g->index, m->block, &tier) != 0 || tier != m->from ||
	    tier != RADIX_TIER_DEVICE)
		return;
	/* A lease holds it.  It goes with the pin; of more than these the next move tells anew. */
	if (g->n_corrupt < PREFIXD_N_CORRUPT)
		g->corrupt[g->n_corrupt++] = m->block;
}

/*
 * It cannot be coded, and the tier below has no room for blocks that are not.  Where its slot is
 * wanted it goes; as a victim that stays it would be tried again for ever.
 */
static void uncodable(struct prefixd_engine *e, struct prefixd_group *g,
		      const struct prefixd_move *mv)
{
	e->counters.uncodable_blocks++;
	if (mv->leaves)
		e->counters.dropped_blocks += radix_lose(g->index, mv->m.block, mv->m.from,
							 RADIX_REMOVE_DROPPED);
}

static void moved_down(struct prefixd_engine *e, struct prefixd_group *g,
		       const struct prefixd_move *mv, const struct prefixd_event *event)
{
	enum prefixd_move_result result = event->u.moved.result;
	bool ok = result == PREFIXD_MOVE_OK;
	bool summed = ok && event->u.moved.summed && !mv->lossy;
	int r = radix_move_end(g->index, &mv->m, ok, summed ? event->u.moved.checksum : NULL, NULL);

	radix_assert(r == 0 || r == RADIX_E_NOTFOUND);
	g->reap = true;
	if (ok) {
		if (mv->m.to == RADIX_TIER_REDIS)
			e->redis_refused = 0;
		failed_at(g, &mv->m.block)->n = 0;
		return;
	}
	e->counters.moves_failed++;
	if (r == RADIX_E_NOTFOUND)
		return;
	switch (result) {
	case PREFIXD_MOVE_CORRUPT:
		condemn(e, g, &mv->m);
		break;
	case PREFIXD_MOVE_DOWN:
		/* It waits: Redis may come back at once, or will soon be said to be down. */
		if (mv->m.to == RADIX_TIER_REDIS) {
			e->redis_again_ns = e->now_ns + REDIS_WAIT_NS;
			e->redis_refused++;
			break;
		}
		count_failure(g, mv);
		break;
	case PREFIXD_MOVE_RAW:
		uncodable(e, g, mv);
		break;
	case PREFIXD_MOVE_LOST:
	case PREFIXD_MOVE_FAILED:
	case PREFIXD_MOVE_OK:
		count_failure(g, mv);
		break;
	}
}

void prefixd_moved(struct prefixd_engine *e, const struct prefixd_event *event)
{
	uint32_t id = event->u.moved.id, idx = id & ((1u << IDX_BITS) - 1);
	struct prefixd_move mv;
	struct prefixd_group *g;

	if (idx >= e->moves_cap || !e->moves[idx].used ||
	    (idx | e->moves[idx].serial << IDX_BITS) != id)
		return;
	mv = e->moves[idx];
	g = mv.group;
	e->moves[idx].used = false;
	e->moves[idx].next = e->free_move;
	e->free_move = idx;
	e->n_moves--;
	g->n_moving[mv.m.from][mv.m.to]--;
	g->n_ahead -= mv.ahead;
	if (event->u.moved.result == PREFIXD_MOVE_OK)
		pace_note(e, &mv);
	if (mv.load)
		prefixd_load_moved(e, mv.load, mv.load_at, &mv.m, event);
	else
		moved_down(e, g, &mv, event);
	/* A source may have been kept back until now; what was lost, an orphan's path led to. */
	if (g->over)
		prefixd_fence_stir(g);
	prefixd_room_stir(e, g);
}
