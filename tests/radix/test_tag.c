/*
 * test_tag.c - with 8 bits of tag the map of children is wrong all the time; the index never.
 *
 * Built against the core with RADIX_TAG_BITS=8.  What is stored is known by arithmetic: a first
 * block with number below FIRST, below each of those the second blocks with number below SECOND.
 * A million prompts with random numbers are asked for; each answer must be the exact one, and the
 * counter of addresses that agreed while the key did not must have moved, else the test saw no
 * collision.
 */
#include "tests/lib/heap.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/bulk.h"

#include <check.h>
#include <stdlib.h>

enum {
	FIRST = 3000,
	SECOND = 3,
	KEY = 16,
	PROMPTS = 1000000,
	N_SLOTS = FIRST * (1 + SECOND)
};

struct world {
	struct test_heap heap;
	struct radix_index *ix;
	uint32_t root;
};

static void number_key(uint8_t *out, uint64_t number)
{
	/* Keys begin alike, so that only whole comparisons tell them apart. */
	memset(out, 0, KEY);
	memcpy(out + KEY - sizeof(number), &number, sizeof(number));
}

static void world_init(struct world *w, enum radix_key_mode mode)
{
	struct radix_index_config config = { .alloc = &w->heap.alloc,
					     .n_slots = N_SLOTS,
					     .n_entries = N_SLOTS,
					     .secret = { 77, 88 } };
	struct radix_root_config rc = { .mode = mode,
					.key_len = KEY,
					.block_tokens = 4,
					.token_bytes = mode == RADIX_KEYS_TOKENS ? KEY : 0 };

	test_heap_init(&w->heap);
	ck_assert_int_eq(radix_index_new(&w->ix, &config), 0);
	ck_assert_int_eq(radix_root_new(w->ix, &rc, &w->root), 0);
}

static void world_deinit(struct world *w)
{
	char why[256] = "";

	ck_assert_msg(radix_verify(w->ix, why, sizeof(why)) == 0, "%s", why);
	radix_index_free(w->ix);
	ck_assert_uint_eq(w->heap.live_blocks, 0);
}

static uint64_t mismatches(const struct world *w)
{
	struct radix_stats s;

	radix_index_stats(w->ix, &s);
	return s.verify_mismatch;
}

START_TEST(a_million_prompts_no_false_hit)
{
	static struct world w;
	uint64_t rng = 20240607;
	struct radix_place from;
	uint8_t keys[2 * KEY];

	world_init(&w, RADIX_KEYS_TOKENS);
	for (uint32_t i = 0; i < FIRST; i++) {
		for (uint32_t j = 0; j < SECOND; j++) {
			number_key(keys, i);
			number_key(keys + KEY, j);
			ck_assert_uint_ge(bulk_store(w.ix, w.root, keys, 2, KEY, 4, i + 1), 1);
		}
	}
	from = radix_place_root(w.root);
	for (uint32_t i = 0; i < PROMPTS; i++) {
		uint64_t first = test_rng(&rng), second = test_rng(&rng);
		struct radix_match m;
		uint32_t expect;

		if (i % 2)
			first %= 2 * FIRST; /* half of these are stored */
		if (i % 3)
			second %= 2 * SECOND;
		number_key(keys, first);
		number_key(keys + KEY, second);
		expect = first < FIRST ? 1 + (second < SECOND) : 0;
		radix_match(w.ix, &from, keys, 2, NULL, &m);
		if (m.n_blocks != expect) /* Check's own assertions write a file each time */
			ck_abort_msg("prompt %u: %u blocks instead of %u", i, m.n_blocks, expect);
	}
	ck_assert_uint_gt(mismatches(&w), 0);
	world_deinit(&w);
}
END_TEST

/* The table of digests has the same tag: finding one must be as exact. */
START_TEST(digests_no_false_find)
{
	static struct world w;
	uint64_t rng = 31337;
	uint8_t key[KEY];

	world_init(&w, RADIX_KEYS_DIGEST);
	for (uint32_t i = 0; i < FIRST; i++) {
		number_key(key, i);
		ck_assert_uint_eq(bulk_store(w.ix, w.root, key, 1, KEY, 4, i + 1), 1);
	}
	for (uint32_t i = 0; i < PROMPTS / 4; i++) {
		uint64_t number = test_rng(&rng);
		struct radix_place at;
		bool rooted;
		int r;

		if (i % 2)
			number %= 2 * FIRST;
		number_key(key, number);
		r = radix_find_digest(w.ix, w.root, key, &at, &rooted);
		if (r != (number < FIRST ? 0 : RADIX_E_NOTFOUND))
			ck_abort_msg("digest %u of number %lu: %d", i, number, r);
	}
	ck_assert_uint_gt(mismatches(&w), 0);
	world_deinit(&w);
}
END_TEST

/*
 * One block of the same key in each of many roots: each finds its own, and none when that is gone.
 */
static void many_roots(enum radix_key_mode mode)
{
	static struct world w;
	static uint32_t roots[FIRST], slots[FIRST];
	struct radix_root_config rc = { .mode = mode,
					.key_len = KEY,
					.block_tokens = 4,
					.token_bytes = mode == RADIX_KEYS_TOKENS ? KEY : 0 };
	uint8_t key[KEY];

	world_init(&w, mode);
	number_key(key, 1);
	for (uint32_t i = 0; i < FIRST; i++) {
		ck_assert_int_eq(radix_root_new(w.ix, &rc, &roots[i]), 0);
		ck_assert_uint_eq(bulk_store(w.ix, roots[i], key, 1, KEY, 4, i + 1), 1);
	}
	for (uint32_t pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < FIRST; i++) {
			bool gone = pass && i % 2;
			struct radix_place from = radix_place_root(roots[i]), at;
			struct radix_run run;
			struct radix_runs runs = { .v = &run, .cap = 1 };
			struct radix_match m;
			bool rooted;

			if (mode == RADIX_KEYS_DIGEST &&
			    radix_find_digest(w.ix, roots[i], key, &at, &rooted) !=
				    (gone ? RADIX_E_NOTFOUND : 0))
				ck_abort_msg("pass %u, root %u: found wrongly", pass, i);
			radix_match(w.ix, &from, key, 1, &runs, &m);
			if (m.n_blocks != !gone)
				ck_abort_msg("pass %u, root %u: %u blocks", pass, i, m.n_blocks);
			if (!pass)
				slots[i] = run.start;
			else if (!gone && slots[i] != run.start)
				ck_abort_msg("root %u: slot %u, was %u", i, run.start, slots[i]);
			for (uint32_t k = i - radix_min_u32(i, 4); !pass && k < i; k++)
				if (slots[k] == slots[i])
					ck_abort_msg("roots %u and %u: one slot", k, i);
		}
		for (uint32_t i = 1; !pass && i < FIRST; i += 2)
			ck_assert_uint_eq(radix_flush_root(w.ix, roots[i], RADIX_REMOVE_FLUSH), 1);
	}
	ck_assert_uint_gt(mismatches(&w), 0);
	world_deinit(&w);
}

START_TEST(roots_never_meet)
{
	many_roots(RADIX_KEYS_TOKENS);
}
END_TEST

START_TEST(roots_of_digests_never_meet)
{
	many_roots(RADIX_KEYS_DIGEST);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tag");
	TCase *tc = tcase_create("tag");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_million_prompts_no_false_hit);
	tcase_add_test(tc, digests_no_false_find);
	tcase_add_test(tc, roots_never_meet);
	tcase_add_test(tc, roots_of_digests_never_meet);
	suite_add_tcase(s, tc);
	return test_run(s);
}
