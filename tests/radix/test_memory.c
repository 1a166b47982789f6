/*
 * test_memory.c - every allocation of a scripted session fails once, each in a run of its own.
 *
 * A failed call must leave the index as it was: what could be matched before can be matched after,
 * nothing new is a member, verify holds, and the same call succeeds when tried again.  At the end
 * nothing is left on the heap.
 */
#include "radix/tiers.h"
#include "tests/lib/heap.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	N_SLOTS = 3000,
	KEY = 32,
	LONG = 700,
	BRANCHES = 300,
	FOUND = 300 /* members that only Redis has */
};

struct session {
	struct test_heap heap;
	struct radix_index *ix;
	uint32_t root[2]; /* tokens, digests */
	bool tiers;
	uint64_t tick;
	unsigned n_failed; /* calls that answered -ENOMEM */
};

static void key_of(uint8_t *out, uint32_t branch, uint32_t i)
{
	memset(out, 0, KEY);
	memcpy(out, &branch, sizeof(branch));
	memcpy(out + 4, &i, sizeof(i));
	out[31] = (uint8_t)(branch * 7 + i);
}

static void verify(struct session *s)
{
	char why[256] = "";
	int r = s->ix ? radix_verify(s->ix, why, sizeof(why)) : 0;

	ck_assert_msg(r == 0, "invariant %d: %s", r, why);
}

static struct radix_stats stats(const struct session *s)
{
	struct radix_stats st;

	radix_index_stats(s->ix, &st);
	return st;
}

/* r must be 0, or -ENOMEM with nothing changed; true when it has to be tried again. */
static bool failed(struct session *s, int r, const struct radix_stats *before)
{
	struct radix_stats after;

	if (r == 0)
		return false;
	ck_assert_int_eq(r, -ENOMEM);
	ck_assert_uint_eq(s->heap.fail_countdown, 0);
	ck_assert_uint_eq(++s->n_failed, 1); /* only one allocation fails per run */
	if (!s->ix)
		return true;
	verify(s);
	after = stats(s);
	ck_assert_uint_eq(after.n_blocks, before->n_blocks);
	ck_assert_uint_eq(after.n_nodes, before->n_nodes);
	ck_assert_uint_eq(after.n_roots, before->n_roots);
	ck_assert_uint_eq(after.n_islands, before->n_islands);
	ck_assert_uint_eq(after.stored_total, before->stored_total);
	ck_assert_uint_eq(after.removed_total, before->removed_total);
	ck_assert_mem_eq(after.slots, before->slots, sizeof(after.slots));
	return true;
}

static void open_index(struct session *s)
{
	struct radix_index_config config = { .alloc = &s->heap.alloc,
					     .n_slots = N_SLOTS,
					     .n_host = s->tiers ? N_SLOTS : 0,
					     .redis = s->tiers,
					     .n_entries = s->tiers ? 3 * N_SLOTS : N_SLOTS,
					     .n_ghosts = s->tiers ? N_SLOTS : 0,
					     .secret = { 1, 2 } };
	struct radix_stats before = { 0 };

	while (failed(s, radix_index_new(&s->ix, &config), &before))
		ck_assert_uint_eq(s->heap.live_blocks, 0); /* a half-made index leaves nothing */
	for (uint32_t i = 0; i < 2; i++) {
		struct radix_root_config rc = {
			.mode = i ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS,
			.key_len = KEY,
			.block_tokens = 8,
			.token_bytes = i ? 0 : KEY,
		};

		before = stats(s);
		while (failed(s, radix_root_new(s->ix, &rc, &s->root[i]), &before))
			;
	}
}

/* Commit n blocks named (branch, first..) below the pin, one by one; the pin ends on the last. */
static void commit(struct session *s, struct radix_pin *pin, uint32_t branch, uint32_t first,
		   uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		struct radix_run run;
		struct radix_runs runs = { .v = &run, .cap = 1 };
		enum radix_commit_result result;
		struct radix_block block;
		uint32_t granted, slot, depth = pin->at.depth;
		struct radix_stats before;
		uint8_t key[KEY];

		radix_reserve(s->ix, 1, 1, &runs, &granted);
		if (granted != 1)
			ck_abort_msg("no slot for block %u of branch %u", i, branch);
		key_of(key, branch, i);
		block = (struct radix_block){ .key = key, .slot = run.start, .n_tokens = 8 };
		before = stats(s);
		while (failed(s, radix_commit(s->ix, pin, 1, &block, s->tick, &slot, &result),
			      &before)) {
			ck_assert_int_eq(radix_slot_state(s->ix, run.start), RADIX_SLOT_RESERVED);
			ck_assert_uint_eq(pin->at.depth, depth);
		}
		if (result != RADIX_COMMIT_STORED)
			ck_abort_msg("block %u of branch %u: result %d", i, branch, (int)result);
	}
}

/* How many blocks of (branch, 0..n) match from a place. */
static uint32_t matched(struct session *s, const struct radix_place *from, uint32_t branch,
			uint32_t first, uint32_t n)
{
	struct radix_match m;
	uint8_t *keys = malloc((size_t)n * KEY);

	ck_assert_ptr_nonnull(keys);
	for (uint32_t i = 0; i < n; i++)
		key_of(keys + (size_t)i * KEY, branch, first + i);
	radix_match(s->ix, from, keys, n, NULL, &m);
	free(keys);
	return m.n_blocks;
}

/* One long path, then many branches off it: appends, splits, growth of every table. */
static void token_part(struct session *s)
{
	struct radix_place root = radix_place_root(s->root[0]);
	struct radix_pin pin = { 0 };

	s->tick++;
	radix_pin_take(s->ix, &pin, &root);
	commit(s, &pin, 1, 0, LONG);
	radix_touch(s->ix, &pin.at, s->tick);
	radix_pin_drop(s->ix, &pin);
	for (uint32_t b = 0; b < BRANCHES; b++) {
		uint8_t keys[LONG][KEY];
		struct radix_match m;

		for (uint32_t i = 0; i <= b; i++)
			key_of(keys[i], 1, i);
		radix_match(s->ix, &root, keys, b + 1, NULL, &m);
		ck_assert_uint_eq(m.n_blocks, b + 1);
		radix_pin_take(s->ix, &pin, &m.end);
		commit(s, &pin, 100 + b, 0, 2);
		radix_touch(s->ix, &pin.at, ++s->tick);
		radix_pin_drop(s->ix, &pin);
	}
	ck_assert_uint_eq(matched(s, &root, 1, 0, LONG), LONG);
	verify(s);
}

static void graft(struct session *s, uint32_t parent, uint32_t child)
{
	struct radix_stats before = stats(s);
	uint8_t a[KEY], c[KEY];

	key_of(a, parent, 4);
	key_of(c, child, 0);
	while (failed(s, radix_graft(s->ix, s->root[1], a, c), &before))
		;
}

/* Islands, then a graft at an island's end and one in the middle of an edge. */
static void digest_part(struct session *s)
{
	struct radix_place root = radix_place_root(s->root[1]), at;
	struct radix_pin pin = { 0 };
	bool rooted;
	uint8_t key[KEY];

	for (uint32_t island = 1; island <= 40; island++) {
		at = island == 1 ? root : radix_place_island(s->root[1]);
		radix_pin_take(s->ix, &pin, &at);
		commit(s, &pin, island, 0, island % 2 ? 5 : 9);
		radix_touch(s->ix, &pin.at, ++s->tick);
		radix_pin_drop(s->ix, &pin);
	}
	for (uint32_t island = 2; island <= 40; island++)
		graft(s, island - 1, island);
	ck_assert_uint_eq(stats(s).n_islands, 0);
	key_of(key, 40, 0);
	ck_assert_int_eq(radix_find_digest(s->ix, s->root[1], key, &at, &rooted), 0);
	ck_assert(rooted);
	ck_assert_uint_eq(matched(s, &at, 40, 0, 9), 9);
	verify(s);
}

/* Two thirds of the pool go down, half of that on to Redis; moves end when others have begun. */
static void go_down(struct session *s)
{
	static struct radix_move moves[N_SLOTS];
	struct radix_room room;

	for (uint32_t i = 0; i < 3; i++) {
		enum radix_tier from = i < 2 ? RADIX_TIER_DEVICE : RADIX_TIER_HOST;

		radix_make_room(s->ix, from, 300, 0, moves, N_SLOTS, &room);
		ck_assert_uint_eq(room.started, 300);
		for (uint32_t k = 0; k < room.started; k++)
			ck_assert_int_eq(radix_move_end(s->ix, &moves[k], true, NULL, NULL), 0);
		verify(s);
	}
}

/* Redis has more: behind the end of the long path, then in the middle of it. */
static void find_more(struct session *s)
{
	struct radix_place root = radix_place_root(s->root[0]);
	struct radix_pin from = { 0 }, pin = { 0 };
	uint8_t keys[LONG][KEY];
	struct radix_member names[FOUND];
	struct radix_match m;

	for (uint32_t part = 0; part < 2; part++) {
		uint32_t done = 0, tries = 0;

		for (uint32_t i = 0; i < LONG; i++)
			key_of(keys[i], 1, i);
		radix_match(s->ix, &root, keys, part ? LONG / 2 : LONG, NULL, &m);
		radix_pin_take(s->ix, &from, &m.end);
		radix_pin_take(s->ix, &pin, &m.end);
		for (uint32_t i = 0; i < FOUND; i++)
			key_of(keys[i], 7777 + part, i);
		while (done < FOUND) {
			done += radix_add_lower(s->ix, &pin, keys[done], FOUND - done, s->tick,
						names);
			verify(s);
			ck_assert_uint_le(++tries, 2); /* only one allocation fails per run */
			radix_match(s->ix, &from.at, keys, done, NULL, &m);
			ck_assert_uint_eq(m.n_blocks, done);
			radix_pin_move(s->ix, &pin, &m.end);
		}
		radix_pin_drop(s->ix, &pin);
		radix_pin_drop(s->ix, &from);
	}
}

static void whole_session(struct session *s)
{
	uint32_t n;

	open_index(s);
	token_part(s);
	if (s->tiers) {
		go_down(s);
		find_more(s);
	}
	digest_part(s);
	/* Removing needs no memory. */
	n = radix_evict(s->ix, 500, RADIX_REMOVE_EVICT);
	ck_assert(s->tiers ? n >= 500 : n == 500); /* whole branches, with lower tiers */
	verify(s);
	ck_assert_uint_gt(radix_flush_root(s->ix, s->root[0], RADIX_REMOVE_FLUSH), 0);
	verify(s);
	s->ix = radix_index_free(s->ix);
	ck_assert_uint_eq(s->heap.live_blocks, 0);
	ck_assert_uint_eq(s->heap.live_bytes, 0);
}

static uint64_t n_allocations(bool tiers)
{
	struct session s = { .tiers = tiers };

	test_heap_init(&s.heap);
	whole_session(&s);
	ck_assert_uint_eq(s.heap.n_takes, s.heap.n_gives);
	ck_assert_uint_eq(s.n_failed, 0);
	return s.heap.n_takes;
}

START_TEST(each_allocation_fails_once)
{
	uint64_t n = n_allocations(_i);
	unsigned told = 0;

	ck_assert_uint_gt(n, 10);
	for (uint64_t i = 1; i <= n; i++) {
		struct session s = { .tiers = _i };

		test_heap_init(&s.heap);
		test_heap_fail_at(&s.heap, i);
		whole_session(&s);
		ck_assert_uint_eq(s.heap.n_failed, 1);
		told += s.n_failed;
	}
	/* Some failures may be survived without telling (a table keeps its size), not all. */
	ck_assert_uint_gt(told, 5);
}
END_TEST

/* With no memory left at all, what is there keeps being served and can be removed. */
START_TEST(an_exhausted_heap_still_serves)
{
	struct session s = { 0 };
	struct radix_place root;
	struct radix_pin pin = { 0 };
	struct radix_run run;
	struct radix_runs runs = { .v = &run, .cap = 1 };
	enum radix_commit_result result;
	uint32_t granted, slot, n = 0;
	int r = 0;

	test_heap_init(&s.heap);
	open_index(&s);
	root = radix_place_root(s.root[0]);
	radix_pin_take(s.ix, &pin, &root);
	commit(&s, &pin, 1, 0, 100);
	s.heap.max_bytes = 1;
	for (n = 0; n < N_SLOTS && r == 0; n++) {
		uint8_t key[KEY];
		struct radix_block block = { .key = key, .n_tokens = 8 };

		key_of(key, 1, 100 + n);
		runs.n = 0;
		radix_reserve(s.ix, 1, 1, &runs, &granted);
		if (!granted)
			break;
		block.slot = run.start;
		r = radix_commit(s.ix, &pin, 1, &block, 1, &slot, &result);
		ck_assert(r == 0 || r == -ENOMEM);
	}
	if (r == -ENOMEM)
		n--;
	verify(&s);
	ck_assert_uint_eq(matched(&s, &root, 1, 0, 100 + n), 100 + n);
	radix_pin_drop(s.ix, &pin);
	ck_assert_uint_eq(radix_evict(s.ix, 50, RADIX_REMOVE_EVICT), 50);
	ck_assert_uint_eq(matched(&s, &root, 1, 0, 100 + n), 50 + n);
	verify(&s);
	radix_index_free(s.ix);
	ck_assert_uint_eq(s.heap.live_blocks, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("memory");
	TCase *tc = tcase_create("memory");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, each_allocation_fails_once, 0, 2); /* 1: with lower tiers */
	tcase_add_test(tc, an_exhausted_heap_still_serves);
	suite_add_tcase(s, tc);
	return test_run(s);
}
