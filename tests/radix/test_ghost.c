/*
 * test_ghost.c - what is remembered of members that left: the ring against a plain model, and what
 * an index makes of it.
 */
#include "radix/ghost.h"

#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/tiers_bed.h"

/* ---- the ring -------------------------------------------------------------------------------- */

enum {
	KINDS = 600
};

/* Fingerprints that want the same places of the table, at its beginning, and around its end. */
static uint64_t kind(uint32_t i)
{
	uint64_t top = i % 3 == 0 ? 0 : i % 3 == 1 ? UINT64_MAX << 40 : (uint64_t)i << 54;

	return i == 7 ? 0 : top | (i + 2);
}

static void against_a_model(uint32_t cap, uint64_t seed)
{
	uint64_t added[KINDS] = { 0 }, n_added = 0, rng = seed, n_hits = 0, n_misses = 0;
	struct radix_ghost g;
	struct test_heap heap;

	test_heap_init(&heap);
	ck_assert_int_eq(radix_ghost_init(&g, &heap.alloc, cap), 0);
	ck_assert_uint_eq(radix_ghost_bytes(&g), heap.live_bytes);
	for (uint32_t step = 0; step < 20000; step++) {
		uint32_t i = test_rng_below(&rng, KINDS), n = 0;

		if (test_rng_below(&rng, 3)) {
			radix_ghost_add(&g, kind(i));
			added[i] = ++n_added;
		} else {
			bool there = added[i] && added[i] + cap > n_added;

			ck_assert_int_eq(radix_ghost_take(&g, kind(i)), there);
			added[i] = 0;
			n_hits += there;
			n_misses += !there;
		}
		for (uint32_t k = 0; step % 100 == 0 && k < KINDS; k++)
			n += added[k] && added[k] + cap > n_added;
		if (step % 100 == 0)
			ck_assert_uint_eq(g.n, n);
	}
	ck_assert_uint_gt(n_hits, 0);
	ck_assert_uint_gt(n_misses, 100);
	radix_ghost_deinit(&g);
	radix_ghost_deinit(&g);
	ck_assert_uint_eq(heap.live_blocks, 0);
}

START_TEST(remembers_the_last)
{
	static const uint32_t caps[] = { 1, 2, 3, 5, 8, 100, 191, 192, 300, 700 };

	for (uint32_t i = 0; i < radix_array_size(caps); i++)
		against_a_model(caps[i], 77 + i);
}
END_TEST

START_TEST(every_allocation_fails)
{
	struct radix_ghost g;
	struct test_heap heap;
	uint32_t n;

	test_heap_init(&heap);
	for (n = 1; n < 10; n++) {
		test_heap_fail_at(&heap, n);
		if (radix_ghost_init(&g, &heap.alloc, 100) == 0)
			break;
		ck_assert_uint_eq(heap.live_blocks, 0);
	}
	ck_assert_uint_eq(n, 3);
	radix_ghost_deinit(&g);
}
END_TEST

/* None at all: nothing is remembered, and nothing is held. */
START_TEST(one_that_is_none)
{
	struct radix_ghost g = { 0 };

	radix_ghost_add(&g, 5);
	ck_assert(!radix_ghost_take(&g, 5));
	ck_assert_uint_eq(radix_ghost_bytes(&g), 0);
	radix_ghost_deinit(&g);
}
END_TEST

/* A fingerprint costs 13 to 19 bytes. */
START_TEST(is_small)
{
	struct radix_ghost g;
	struct test_heap heap;

	test_heap_init(&heap);
	for (uint32_t cap = 1000; cap < 100000; cap = cap * 5 / 4) {
		ck_assert_int_eq(radix_ghost_init(&g, &heap.alloc, cap), 0);
		ck_assert_uint_le(radix_ghost_bytes(&g), 19u * cap);
		radix_ghost_deinit(&g);
	}
}
END_TEST

/* ---- in an index ----------------------------------------------------------------------------- */

static uint32_t dropped(uint32_t want)
{
	uint32_t n = make_room(RADIX_TIER_DEVICE, want, RADIX_ROOM_SECOND_USE), went = room.dropped;

	for (uint32_t i = 0; i < n; i++)
		end(&moves[i], true);
	return went;
}

START_TEST(stored_again_is_used_again)
{
	for (uint32_t mode = 0; mode < 2; mode++) {
		bed_init_ghosts(&b, mode ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS, 8, 8, 100);
		bed_store(&b, "abc");
		ck_assert_uint_eq(dropped(8), 3);
		ck_assert_uint_eq(b.ix->ghost.n, 3);
		bed_store(&b, "abc");
		ck_assert_uint_eq(b.ix->ghost.n, 0);
		ck_assert_uint_eq(dropped(8), 0);
		lies("abc", "hhh");
		bed_deinit(&b);
	}
}
END_TEST

/* The same block behind others, or of another root, is another one. */
START_TEST(others_are_not)
{
	bed_init_ghosts(&b, RADIX_KEYS_TOKENS, 8, 8, 100);
	bed_store(&b, "abc");
	ck_assert_uint_eq(dropped(8), 3);
	bed_store(&b, "xbc");
	ck_assert_uint_eq(dropped(8), 3);
	bed_store(&b, "bc");
	ck_assert_uint_eq(dropped(8), 2);
	b.root = bed_root(&b, 1);
	bed_store(&b, "abc");
	ck_assert_uint_eq(dropped(8), 3);
	ck_assert_uint_eq(b.ix->ghost.n, 11);
	bed_deinit(&b);
}
END_TEST

/* It is known of a block in the middle: all before it were used then, too. */
START_TEST(all_before_it_too)
{
	bed_init_ghosts(&b, RADIX_KEYS_TOKENS, 8, 8, 100);
	bed_store(&b, "ab");
	bed_store(&b, "abcd");
	ck_assert_uint_eq(dropped(2), 2);
	lies("abcd", "dd--");
	bed_store(&b, "abc");
	bed_store(&b, "abx");
	ck_assert_uint_eq(dropped(8), 1); /* x */
	lies("abc", "hhh");
	bed_deinit(&b);
}
END_TEST

/* For want of room, wherever: remembered.  Whatever else took it: not. */
START_TEST(why_it_went)
{
	struct radix_place at;

	bed_init_ghosts(&b, RADIX_KEYS_TOKENS, 4, 2, 100);
	bed_store(&b, "ab");
	at = bed_place(&b, "ab");
	radix_hit(b.ix, &at);
	ck_assert_uint_eq(dropped(4), 0);
	lies("ab", "hh");
	ck_assert_uint_eq(make_room(RADIX_TIER_HOST, 2, 0), 0); /* it was used twice, and is cold */
	lies("ab", "--");
	ck_assert_uint_eq(b.ix->ghost.n, 2);
	bed_store(&b, "ab");
	ck_assert_uint_eq(dropped(4), 0);
	lies("ab", "hh");
	bed_store(&b, "xy");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 4, RADIX_ROOM_DROP), 0);
	ck_assert_uint_eq(b.ix->ghost.n, 2);
	bed_store(&b, "xy");
	bed_store(&b, "z");
	ck_assert_uint_eq(radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH), 5);
	ck_assert_uint_eq(b.ix->ghost.n, 0);
	bed_store(&b, "z");
	ck_assert_uint_eq(dropped(4), 1);
	bed_deinit(&b);
}
END_TEST

/* An index without lower tiers, or that was not asked to, remembers nothing. */
START_TEST(not_asked_to)
{
	bed_init_ghosts(&b, RADIX_KEYS_TOKENS, 8, 0, 100);
	ck_assert_ptr_null(b.ix->fingerprint);
	ck_assert_uint_eq(b.ix->ghost.cap, 0);
	bed_deinit(&b);
	bed_init_ghosts(&b, RADIX_KEYS_TOKENS, 8, 8, 0);
	bed_store(&b, "abc");
	ck_assert_uint_eq(dropped(8), 3);
	bed_store(&b, "abc");
	ck_assert_uint_eq(dropped(8), 3);
	bed_deinit(&b);
}
END_TEST

enum {
	DEEP = 4,
	WIDE = 4,
	PATHS = 5 * 5 * 5 * 5
};

static uint32_t number_of(const char *path, uint32_t n)
{
	uint32_t x = 0;

	for (uint32_t i = 0; i < DEEP; i++)
		x = 5 * x + (i < n ? (uint32_t)(path[i] - 'a') + 1 : 0);
	return x;
}

/* Each path of up to DEEP letters that is a member: 1, with a device copy: 2. */
static void look(const char *prefix, uint32_t n, uint8_t *ret)
{
	char path[DEEP + 1] = "";

	memcpy(path, prefix, n);
	for (uint32_t k = 0; k < WIDE && n < DEEP; k++) {
		struct radix_place from = radix_place_root(b.root);
		struct radix_match m;

		path[n] = (char)('a' + k);
		m = bed_match_from(&b, &from, path);
		ret[number_of(path, n + 1)] =
			(uint8_t)((m.n_blocks == n + 1) + (m.n_device == n + 1));
		if (m.n_blocks == n + 1)
			look(path, n + 1, ret);
	}
}

/* Random paths: what leaves is copied exactly if it, or one behind it, was stored twice. */
START_TEST(copies_what_was_stored_twice)
{
	static uint8_t before[PATHS], after[PATHS], twice[PATHS], once[PATHS];
	uint64_t rng = 4242;
	uint32_t n_copied = 0, n_dropped = 0;

	for (uint32_t round = 0; round < 30; round++) {
		bed_init_ghosts(&b, RADIX_KEYS_TOKENS, 10, 340, 340);
		memset(once, 0, sizeof(once));
		memset(twice, 0, sizeof(twice));
		for (uint32_t step = 0; step < 60; step++) {
			uint32_t len = 1 + test_rng_below(&rng, DEEP);
			struct radix_place from = radix_place_root(b.root);
			char path[DEEP + 1] = "";
			struct radix_match m;

			for (uint32_t i = 0; i < len; i++)
				path[i] = (char)('a' + test_rng_below(&rng, WIDE));
			memset(before, 0, sizeof(before));
			memset(after, 0, sizeof(after));
			look("", 0, before);
			dropped(DEEP);
			look("", 0, after);
			for (uint32_t i = 0; i < PATHS; i++) {
				if (before[i] != 2 || after[i] == 2)
					continue;
				ck_assert_int_eq(after[i], twice[i]);
				n_copied += after[i];
				n_dropped += !after[i];
			}
			m = bed_match_from(&b, &from, path);
			if (m.n_blocks > m.n_device)
				continue; /* it would have to come up first */
			bed_store(&b, path);
			for (uint32_t i = m.n_blocks; i < len; i++) {
				uint32_t x = number_of(path, i + 1);

				for (uint32_t k = 0; once[x] && k <= i; k++)
					twice[number_of(path, k + 1)] = 1;
				once[x] = 1;
			}
		}
		bed_deinit(&b);
	}
	ck_assert_uint_gt(n_copied, 100);
	ck_assert_uint_gt(n_dropped, 300);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("ghost");
	TCase *ring = tcase_create("ring"), *index = tcase_create("index");

	tcase_add_test(ring, remembers_the_last);
	tcase_add_test(ring, every_allocation_fails);
	tcase_add_test(ring, one_that_is_none);
	tcase_add_test(ring, is_small);
	tcase_add_test(index, stored_again_is_used_again);
	tcase_add_test(index, others_are_not);
	tcase_add_test(index, all_before_it_too);
	tcase_add_test(index, why_it_went);
	tcase_add_test(index, not_asked_to);
	tcase_add_test(index, copies_what_was_stored_twice);
	suite_add_tcase(s, ring);
	suite_add_tcase(s, index);
	return test_run(s);
}
