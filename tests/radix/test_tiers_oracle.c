/*
 * test_tiers_oracle.c - random sessions against an index with lower tiers and the naive oracle.
 *
 * Leases match, reserve, commit, extend and end; room is made, blocks are copied down and brought
 * up, copies get lost, Redis is found to hold more; and the moves that all this begins end late, in
 * any order, some of them badly.  After each step the two must agree on every block's copies, every
 * slot's state and every count, radix_verify() must be 0, and no slot of a move may be in other
 * use.  As the oracle finds its victims by scanning, agreement also says that blocks leave each
 * tier in the order of leaf LRU.  Now and then a restart is made of a copy of the store, and must
 * find the same members, copies and slots.
 *
 * Seeds are fixed; one more run per shape takes a fresh seed.  PREFIXD_SEED=N repeats it.
 */
#include "tests/lib/run.h"
#include "tests/radix/reborn.h"
#include "tests/radix/tiers_world.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>

enum {
	RESTART = 61 /* steps between looks at what a restart would find */
};

/* Pool sizes; small ones, so that every limit is met all the time. */
static const struct tw_shape shapes[] = {
	{ 14, 10, 8, true },                       /* all three tiers */
	{ 12, 0, 6, true },                        /* no host tier */
	{ 12, 9, 0, false },                       /* no Redis */
	{ 6, 4, 0, true },                         /* Redis, and no entry for what only it has */
	{ 5, 3, 60, true },                        /* nearly all in Redis */
	{ 20, 4, 10, true },                       /* a host tier smaller than the pool */
	{ 2, 2, 3, true },   { 50, 40, 25, true }, /* much at once */
};

static uint64_t fresh_seed;

/* ---- leases ---------------------------------------------------------------------------------- */

static void lease_pin(struct tiers_world *w, struct tw_lease *l, const struct radix_match *m,
		      const struct tw_expected *x)
{
	radix_pin_take(w->ix, &l->pin, &m->device_end);
	l->o_pin = to_pin(&w->o, l->root, x->device_end);
	radix_pin_take(w->ix, &l->hold, &m->end);
	l->o_hold = to_pin(&w->o, l->root, x->end);
	l->at = x->device_end;
	l->open = true;
}

static void op_open(struct tiers_world *w, struct tw_lease *l)
{
	struct radix_place from;
	struct radix_match m;
	struct tw_expected x;
	uint32_t first = 0;
	int o_from = TO_ROOT, found;
	bool rooted;

	*l = (struct tw_lease){ .root = tw_below(w, TW_N_ROOTS),
				.prompt = tw_below(w, TW_N_PROMPTS) };
	from = radix_place_root(w->root[l->root]);
	if (w->digests && tw_chance(w, 35)) {
		const uint8_t *key;

		first = tw_below(w, w->prompt_len[l->prompt]);
		key = w->prompts[l->prompt][first];
		found = to_find(&w->o, l->root, key, TW_KEY);
		o_from = TO_ISLAND;
		from = radix_place_island(w->root[l->root]);
		CHECK(w, radix_find_digest(w->ix, w->root[l->root], key, &from, &rooted) ==
				 (found == TO_NONE ? RADIX_E_NOTFOUND : 0));
		if (found != TO_NONE)
			o_from = w->o.b[found].parent;
	}
	x = tw_match(w, l->root, &from, o_from, w->prompts[l->prompt][first],
		     w->prompt_len[l->prompt] - first, &m);
	if (radix_place_is_edge(&m.device_end) && !m.device_end.idx)
		return; /* a pin before an island: test_digests has those */
	l->cursor = first + x.n_device;
	lease_pin(w, l, &m, &x);
}

static bool stuck(const struct tiers_world *w, const struct tw_lease *l)
{
	return w->o.pins[l->o_pin].at != l->at;
}

static void op_extend(struct tiers_world *w, struct tw_lease *l)
{
	struct radix_match m;
	struct tw_expected x;

	if (stuck(w, l) || l->at == TO_ISLAND)
		return;
	x = tw_match(w, l->root, &l->pin.at, l->at, w->prompts[l->prompt][l->cursor],
		     w->prompt_len[l->prompt] - l->cursor, &m);
	radix_pin_move(w->ix, &l->pin, &m.device_end);
	to_pin_move(&w->o, l->o_pin, x.device_end);
	radix_pin_move(w->ix, &l->hold, &m.end);
	to_pin_move(&w->o, l->o_hold, x.end);
	l->at = x.device_end;
	l->cursor += x.n_device;
}

static void op_end(struct tiers_world *w, struct tw_lease *l)
{
	bool touch = tw_chance(w, 80);

	if (touch) {
		radix_touch(w->ix, &l->pin.at, ++w->tick);
		to_touch(&w->o, w->o.pins[l->o_pin].at, w->tick);
	}
	if (tw_chance(w, 40)) {
		radix_hit(w->ix, &l->hold.at);
		to_hit(&w->o, w->o.pins[l->o_hold].at);
	}
	radix_pin_drop(w->ix, &l->hold);
	to_unpin(&w->o, l->o_hold);
	radix_pin_drop(w->ix, &l->pin);
	to_unpin(&w->o, l->o_pin);
	for (uint32_t i = 0; i < l->n_reserved; i++) {
		CHECK(w, radix_slot_discard(w->ix, 1, l->reserved[i], false) == 0);
		w->o.slots[0][l->reserved[i]].state = RADIX_SLOT_FREE;
	}
	l->open = false;
}

static void op_reserve(struct tiers_world *w, struct tw_lease *l)
{
	struct radix_run v[16];
	struct radix_runs runs = { .v = v, .cap = 16 };
	uint32_t want = 1 + tw_below(w, 4), granted, n_free;
	struct radix_room room;

	if (l->n_reserved + want > 16)
		return;
	n_free = to_count(&w->o, RADIX_TIER_DEVICE, RADIX_SLOT_FREE);
	if (n_free < want)
		to_make_room(&w->o, RADIX_TIER_DEVICE, want - n_free, 0, NULL, 0, 0, &room);
	n_free = to_count(&w->o, RADIX_TIER_DEVICE, RADIX_SLOT_FREE);
	radix_reserve(w->ix, 1, want, &runs, &granted);
	CHECK(w, granted == (want < n_free ? want : n_free));
	for (uint32_t i = 0; i < runs.n; i++) {
		for (uint32_t j = 0; j < v[i].len; j++) {
			struct to_slot *s = &w->o.slots[0][v[i].start + j];

			CHECK(w, s->state == RADIX_SLOT_FREE);
			s->state = RADIX_SLOT_RESERVED;
			s->owner = 1;
			l->reserved[l->n_reserved++] = v[i].start + j;
		}
	}
}

/* The member that a commit of `key` meets, hung where the writer says; TO_NONE: none. */
static int commit_meets(struct tiers_world *w, const struct tw_lease *l, const uint8_t *key)
{
	int there = to_child(&w->o, l->root, l->at, key, TW_KEY);

	if (there != TO_NONE || !w->digests)
		return there;
	there = to_find(&w->o, l->root, key, TW_KEY);
	if (there != TO_NONE && l->at != TO_ISLAND) {
		CHECK(w, w->o.b[there].parent == TO_ISLAND);
		to_reparent(&w->o, there, l->at);
	}
	return there;
}

static void op_commit(struct tiers_world *w, struct tw_lease *l)
{
	const uint8_t *key = w->prompts[l->prompt][l->cursor];
	struct radix_block block = { .key = key, .n_tokens = 4 };
	enum radix_commit_result result;
	uint32_t slot = RADIX_NONE, mine;
	int there, r;

	if (!l->n_reserved || stuck(w, l) || l->cursor >= w->prompt_len[l->prompt])
		return;
	mine = block.slot = l->reserved[--l->n_reserved];
	block.checksum_kind = (uint8_t)tw_below(w, 2);
	block.checksum[0] = block.checksum_kind ? (uint8_t)tw_below(w, 2) : 0;
	r = radix_commit(w->ix, &l->pin, 1, &block, ++w->tick, &slot, &result);
	if (l->at >= 0 && w->o.b[l->at].slot[0] == TO_NONE) {
		CHECK(w, r == RADIX_E_REFUSED);
		l->n_reserved++;
		return;
	}
	there = commit_meets(w, l, key);
	if (there == TO_NONE) {
		CHECK(w, r == 0 && result == RADIX_COMMIT_STORED && slot == mine);
		there = to_add(&w->o, l->root, l->at, key, TW_KEY, (int)mine, w->tick);
		w->o.b[there].checksum_kind = block.checksum_kind;
		memcpy(w->o.b[there].checksum, block.checksum, 16);
		tw_name(w, there, w->ix->slots.entry[mine]);
	} else if (w->o.b[there].slot[0] != TO_NONE) {
		CHECK(w, r == 0 && result == RADIX_COMMIT_DUPLICATE);
		CHECK(w, (int)slot == w->o.b[there].slot[0]);
		CHECK(w, radix_slot_discard(w->ix, 1, mine, false) == 0);
		w->o.slots[0][mine].state = RADIX_SLOT_FREE;
	} else if (!to_parent_ready(&w->o, there)) {
		CHECK(w, r == RADIX_E_REFUSED);
		l->n_reserved++;
		return;
	} else {
		CHECK(w, r == 0 && result == RADIX_COMMIT_ATTACHED && slot == mine);
		to_attach(&w->o, there, (int)mine, block.checksum_kind, block.checksum);
	}
	to_pin_move(&w->o, l->o_pin, there);
	l->at = there;
	l->cursor++;
	/* the hold stays where it was: it goes on with the next extend */
}

/* ---- moves ----------------------------------------------------------------------------------- */

static void move_add(struct tiers_world *w, const struct radix_move *m)
{
	int block = to_by_name(&w->o, m->block);

	CHECK(w, block != TO_NONE && w->n_moves < TW_MAX_MOVES);
	w->moves[w->n_moves].m = *m;
	w->moves[w->n_moves++].turn = w->o.b[block].turn;
}

static void op_room(struct tiers_world *w)
{
	struct radix_move moves[TW_MAX_MOVES];
	uint32_t room_left = TW_MAX_MOVES - w->n_moves, want = 1 + tw_below(w, 6), flags = 0;
	uint32_t cap = tw_chance(w, 15) ? 0 : tw_below(w, room_left + 1);
	enum radix_tier tier = w->shape->n_host && tw_chance(w, 20) ? RADIX_TIER_HOST
								    : RADIX_TIER_DEVICE;
	struct radix_room got, x;

	if (tw_chance(w, 3))
		flags |= RADIX_ROOM_DROP;
	if (tw_chance(w, 7))
		flags |= RADIX_ROOM_SECOND_USE;
	radix_make_room(w->ix, tier, want, flags, moves, cap, &got);
	CHECK(w, got.started <= cap);
	to_make_room(&w->o, tier, want, flags, moves, got.started, cap, &x);
	CHECK(w, got.freed == x.freed && got.started == x.started && got.coming == x.coming);
	CHECK(w, got.dropped == x.dropped && got.blocked == x.blocked && got.dry == x.dry);
	for (uint32_t i = 0; i < got.started; i++)
		move_add(w, &moves[i]);
}

static int random_block(struct tiers_world *w)
{
	for (int tries = 0; tries < 200; tries++) {
		int i = (int)tw_below(w, TO_MAX_BLOCKS / 2);

		if (w->o.b[i].used)
			return i;
	}
	return TO_NONE;
}

static void op_promote(struct tiers_world *w)
{
	int block = random_block(w);
	uint32_t n_free = to_count(&w->o, RADIX_TIER_DEVICE, RADIX_SLOT_FREE);
	struct radix_move m;
	int r;

	if (block == TO_NONE || w->n_moves == TW_MAX_MOVES)
		return;
	while (tw_chance(w, 90) && !to_parent_ready(&w->o, block))
		block = w->o.b[block].parent;
	r = radix_promote_begin(w->ix, w->o.b[block].name, &m);
	if (w->o.b[block].slot[0] != TO_NONE) {
		CHECK(w, r == RADIX_E_STATE);
	} else if (!n_free) {
		CHECK(w, r == RADIX_E_REFUSED);
	} else {
		CHECK(w, r == 0);
		to_move_begin(&w->o, block, &m);
		move_add(w, &m);
	}
}

static void op_copy(struct tiers_world *w)
{
	enum radix_tier to = tw_chance(w, 50) ? RADIX_TIER_HOST : RADIX_TIER_REDIS;
	uint32_t n_free = to_count(&w->o, RADIX_TIER_HOST, RADIX_SLOT_FREE);
	int block = random_block(w), r;
	const struct to_block *b;
	struct radix_move m;
	bool has;

	if (block == TO_NONE || w->n_moves == TW_MAX_MOVES)
		return;
	b = &w->o.b[block];
	has = to == RADIX_TIER_HOST ? b->slot[1] != TO_NONE : b->redis;
	r = radix_copy_begin(w->ix, b->name, to, &m);
	if (has || to_tier(b) >= to || b->moving & 1u << to ||
	    (to == RADIX_TIER_HOST ? !w->shape->n_host : !w->shape->redis)) {
		CHECK(w, r == RADIX_E_STATE);
	} else if (to == RADIX_TIER_HOST && !n_free) {
		CHECK(w, r == RADIX_E_REFUSED);
	} else {
		CHECK(w, r == 0);
		to_move_begin(&w->o, block, &m);
		move_add(w, &m);
	}
}

static void move_end(struct tiers_world *w, uint32_t i)
{
	static const uint8_t checksum[16] = { 1 };
	uint32_t freed = 77, expect_freed = 77;
	bool ok = tw_chance(w, 85), sum = tw_chance(w, 50);
	int r, expect;

	r = radix_move_end(w->ix, &w->moves[i].m, ok, sum ? checksum : NULL, &freed);
	expect = to_move_end(&w->o, &w->moves[i].m, w->moves[i].turn, ok, sum ? checksum : NULL,
			     &expect_freed);
	CHECK(w, r == expect);
	if (r == RADIX_E_REFUSED) { /* too early: later again, or it is given up */
		if (tw_chance(w, 50))
			return;
		CHECK(w, radix_move_end(w->ix, &w->moves[i].m, false, NULL, &freed) == 0);
		to_move_end(&w->o, &w->moves[i].m, w->moves[i].turn, false, NULL, &expect_freed);
	}
	CHECK(w, freed == expect_freed);
	w->moves[i] = w->moves[--w->n_moves];
}

static void op_move_end(struct tiers_world *w)
{
	if (w->n_moves)
		move_end(w, tw_below(w, w->n_moves));
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Nobody holds anything, and nothing goes to the device or comes from there. */
static void op_device_lost(struct tiers_world *w)
{
	for (uint32_t i = 0; i < TW_N_LEASES; i++)
		if (w->leases[i].open)
			op_end(w, &w->leases[i]);
	for (uint32_t i = 0; i < w->n_moves;) {
		const struct radix_move *m = &w->moves[i].m;

		if (m->from == RADIX_TIER_DEVICE || m->to == RADIX_TIER_DEVICE)
			move_end(w, i);
		else
			i++;
	}
	CHECK(w, radix_device_lost(w->ix) == to_device_lost(&w->o));
	CHECK(w, to_count(&w->o, RADIX_TIER_DEVICE, RADIX_SLOT_FREE) == w->shape->n_slots);
}

static void op_lose(struct tiers_world *w)
{
	enum radix_tier t = (enum radix_tier)tw_below(w, 3);
	int block = random_block(w);
	struct radix_member stale;

	if (block == TO_NONE)
		return;
	stale = w->o.b[block].name;
	stale.generation += 2;
	CHECK(w, radix_lose(w->ix, stale, t, RADIX_REMOVE_LOST) == 0);
	CHECK(w, radix_lose(w->ix, w->o.b[block].name, t, RADIX_REMOVE_LOST) ==
			 to_lose(&w->o, block, t, RADIX_REMOVE_LOST));
}

/* Behind a lease's hold, with the keys that its prompt has there, or with others. */
static void op_found(struct tiers_world *w, struct tw_lease *l)
{
	struct radix_member names[TW_PROMPT_MAX];
	uint32_t p = l->prompt, n, at, k = 0;
	int end = w->o.pins[l->o_hold].at, pin;

	if (end == TO_ISLAND)
		return;
	at = to_depth(&w->o, end);
	if (!w->digests && tw_chance(w, 30))
		p = tw_below(w, TW_N_PROMPTS);
	if (end >= 0 && w->digests &&
	    (at > w->prompt_len[p] || memcmp(w->prompts[p][at - 1], w->o.b[end].key, TW_KEY) != 0))
		return; /* an island's: its place in the prompt is not its depth */
	if (at >= w->prompt_len[p])
		return;
	n = radix_add_lower(w->ix, &l->hold, w->prompts[p][at], w->prompt_len[p] - at, ++w->tick,
			    names);
	if (!w->shape->redis) {
		CHECK(w, n == 0);
		return;
	}
	pin = to_pin(&w->o, l->root, end);
	for (; at < w->prompt_len[p]; at++, k++) {
		const uint8_t *key = w->prompts[p][at];

		if (to_child(&w->o, l->root, end, key, TW_KEY) != TO_NONE ||
		    !to_budget_for_one(&w->o) ||
		    (w->digests && to_find(&w->o, l->root, key, TW_KEY) != TO_NONE))
			break;
		CHECK(w, k < n);
		end = to_add(&w->o, l->root, end, key, TW_KEY, TO_NONE, w->tick);
		w->o.b[end].name = names[k];
		to_pin_move(&w->o, pin, end);
	}
	to_unpin(&w->o, pin);
	CHECK(w, k == n);
}

static void op_graft(struct tiers_world *w)
{
	int child = random_block(w), parent = random_block(w), r, expect = 0;
	const struct to_block *c, *p;

	if (child == TO_NONE || parent == TO_NONE || child == parent)
		return;
	c = &w->o.b[child];
	p = &w->o.b[parent];
	if (c->root != p->root)
		return;
	if (c->parent == parent)
		expect = 0;
	else if (c->parent != TO_ISLAND)
		expect = RADIX_E_CONFLICT;
	else if (to_is_above(&w->o, child, parent))
		expect = RADIX_E_CIRCLE;
	else if (to_tier(p) > to_tier(c))
		expect = RADIX_E_REFUSED;
	else
		return; /* only where the digest says so: see op_graft_right */
	r = radix_graft(w->ix, w->root[c->root], p->key, c->key);
	CHECK(w, r == expect);
}

/* An island below the block that its digest names. */
static void op_graft_right(struct tiers_world *w)
{
	uint32_t p = tw_below(w, TW_N_PROMPTS), at, root = tw_below(w, TW_N_ROOTS);
	int child, parent, r;

	if (w->prompt_len[p] < 2)
		return;
	at = 1 + tw_below(w, w->prompt_len[p] - 1);
	child = to_find(&w->o, root, w->prompts[p][at], TW_KEY);
	parent = to_find(&w->o, root, w->prompts[p][at - 1], TW_KEY);
	r = radix_graft(w->ix, w->root[root], w->prompts[p][at - 1], w->prompts[p][at]);
	if (child == TO_NONE || parent == TO_NONE) {
		CHECK(w, r == RADIX_E_NOTFOUND);
		return;
	}
	if (w->o.b[child].parent == parent) {
		CHECK(w, r == 0);
		return;
	}
	CHECK(w, w->o.b[child].parent == TO_ISLAND);
	if (to_tier(&w->o.b[parent]) > to_tier(&w->o.b[child])) {
		CHECK(w, r == RADIX_E_REFUSED);
		return;
	}
	CHECK(w, r == 0);
	to_reparent(&w->o, child, parent);
}

static void step(struct tiers_world *w)
{
	struct tw_lease *l = &w->leases[tw_below(w, TW_N_LEASES)];
	uint32_t dice = tw_below(w, 1000);
	const char *bad;

#define OP(share, name, call)   \
	if (dice < (share)) {   \
		w->op = (name); \
		call;           \
		goto done;      \
	}                       \
	dice -= (share)
	OP(60, "move_end", op_move_end(w));
	OP(60, "room", op_room(w));
	OP(50, "promote", op_promote(w));
	OP(25, "copy", op_copy(w));
	OP(4, "lose", op_lose(w));
	OP(2, "evict",
	   CHECK(w, radix_evict(w->ix, 2, RADIX_REMOVE_EVICT) ==
			    to_evict(&w->o, 2, RADIX_REMOVE_EVICT)));
	OP(1, "flush",
	   CHECK(w, radix_flush_root(w->ix, w->root[1], RADIX_REMOVE_FLUSH) ==
			    to_flush(&w->o, 1, RADIX_REMOVE_FLUSH)));
	OP(1, "device lost", op_device_lost(w));
	OP(20, "cut match", tw_match_cut(w, tw_below(w, TW_N_PROMPTS)));
	if (w->digests) {
		OP(10, "graft", op_graft(w));
		OP(30, "graft right", op_graft_right(w));
	}
	if (!l->open) {
		w->op = "open";
		op_open(w, l);
		goto done;
	}
	dice = tw_below(w, 100);
	OP(16, "end", op_end(w, l));
	OP(22, "reserve", op_reserve(w, l));
	OP(12, "extend", op_extend(w, l));
	OP(3, "found", op_found(w, l));
	w->op = "commit";
	op_commit(w, l);
#undef OP
done:
	bad = to_wrong();
	if (bad)
		tw_wrong(w, __LINE__, bad);
	tw_check(w);
}

/* Everything ends, and nothing is left behind. */
static void world_deinit(struct tiers_world *w)
{
	struct radix_stats s;

	w->op = "the end";
	for (uint32_t i = 0; i < TW_N_LEASES; i++)
		if (w->leases[i].open)
			op_end(w, &w->leases[i]);
	for (uint32_t i = 0; i < TW_N_ROOTS; i++)
		CHECK(w, radix_flush_root(w->ix, w->root[i], RADIX_REMOVE_FLUSH) ==
				 to_flush(&w->o, i, RADIX_REMOVE_FLUSH));
	tw_check(w);
	while (w->n_moves) {
		op_move_end(w);
		tw_check(w);
	}
	radix_index_stats(w->ix, &s);
	CHECK(w, s.slots[RADIX_SLOT_FREE] == w->shape->n_slots);
	CHECK(w, s.host[RADIX_SLOT_FREE] == w->shape->n_host);
	CHECK(w, s.n_blocks == 0 && s.n_pins == 0);
	tw_deinit(w);
}

static void run(const struct tw_shape *shape, bool digests, uint64_t seed, unsigned steps)
{
	static struct tiers_world w;

	tw_init(&w, shape, digests, seed);
	w.shape_number = (int)(shape - shapes);
	for (w.step = 0; w.step < steps; w.step++) {
		step(&w);
		if (w.step % RESTART == 0)
			reborn_check(w.ix, &w.kept, false);
	}
	world_deinit(&w);
}

START_TEST(random_sessions)
{
	const struct tw_shape *shape = &shapes[_i / 2];

	for (uint64_t seed = 1; seed <= 4; seed++)
		run(shape, _i % 2, seed * 1000 + (uint64_t)_i, 10000);
	run(shape, _i % 2, fresh_seed + (uint64_t)_i, 5000);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tiers-oracle");
	TCase *tc = tcase_create("random");
	const char *env = getenv("PREFIXD_SEED");

	fresh_seed = env ? strtoull(env, NULL, 10) : (uint64_t)time(NULL) * 1000;
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, random_sessions, 0, 2 * (int)radix_array_size(shapes));
	suite_add_tcase(s, tc);
	return test_run(s);
}
