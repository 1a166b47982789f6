/*
 * test_digests.c - digest mode: islands, finding by digest, grafting.
 *
 * In these paths a letter is a digest: the same letter is the same prefix.
 */
#include "radix/index.h"
#include "tests/lib/run.h"
#include "tests/radix/bed.h"

#include <stdio.h>
#include <stdlib.h>

static struct bed b;

static void setup(void)
{
	bed_init(&b, RADIX_KEYS_DIGEST, 32, 32);
}

static void teardown(void)
{
	bed_deinit(&b);
}

static int find(char letter, struct radix_place *ret_before, bool *ret_rooted)
{
	uint8_t key[BED_MAX_KEY];

	bed_key(&b, letter, key);
	return radix_find_digest(b.ix, b.root, key, ret_before, ret_rooted);
}

/* How many blocks of the path match from its first digest, wherever that lies. */
static uint32_t match_found(const char *path, bool *ret_rooted)
{
	struct radix_place at;

	if (find(path[0], &at, ret_rooted) != 0)
		return 0;
	return bed_match_from(&b, &at, path).n_blocks;
}

static int graft(char parent, char digest)
{
	uint8_t p[BED_MAX_KEY], d[BED_MAX_KEY];

	bed_key(&b, parent, p);
	bed_key(&b, digest, d);
	return radix_graft(b.ix, b.root, p, d);
}

START_TEST(every_block_of_a_path_is_found)
{
	const char *path = "abcdefgh";
	struct radix_place at;
	bool rooted = false;

	bed_store(&b, path);
	bed_store(&b, "abcXY");
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_int_eq(find(path[i], &at, &rooted), 0);
		ck_assert(rooted);
		ck_assert_uint_eq(at.depth, i);
		ck_assert_uint_eq(bed_match_from(&b, &at, path + i).n_blocks, 8 - i);
	}
	ck_assert_int_eq(find('Q', &at, &rooted), RADIX_E_NOTFOUND);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 10);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(find(path[i], &at, &rooted), RADIX_E_NOTFOUND);
}
END_TEST

START_TEST(digests_of_another_root_are_not_found)
{
	uint32_t first = b.root;
	struct radix_place at;
	bool rooted;

	bed_store(&b, "abc");
	b.root = bed_root(&b, 9);
	ck_assert_int_eq(find('a', &at, &rooted), RADIX_E_NOTFOUND);
	bed_store_island(&b, "bc");
	ck_assert_int_eq(find('b', &at, &rooted), 0);
	ck_assert(!rooted);
	b.root = first;
	ck_assert_int_eq(find('b', &at, &rooted), 0);
	ck_assert(rooted);
}
END_TEST

START_TEST(island_is_found_and_extended)
{
	bool rooted = true;
	struct radix_place at;
	struct radix_pin pin = { 0 };
	struct bed_slots s;
	enum radix_commit_result result;
	uint32_t slot;

	bed_store_island(&b, "def");
	ck_assert_uint_eq(bed_stats(&b).n_islands, 1);
	ck_assert_uint_eq(bed_match(&b, "def"), 0); /* it does not hang at the root */
	ck_assert_uint_eq(match_found("defgh", &rooted), 3);
	ck_assert(!rooted);
	ck_assert_uint_eq(match_found("ef", &rooted), 2);
	ck_assert_int_eq(find('d', &at, &rooted), 0);
	at = bed_match_from(&b, &at, "def").end;
	radix_pin_take(b.ix, &pin, &at);
	s = bed_reserve(&b, BED_OWNER, 2);
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'g', &slot, &result), 0);
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[1], 'h', &slot, &result), 0);
	ck_assert_uint_eq(match_found("defgh", &rooted), 5);
	ck_assert_uint_eq(bed_stats(&b).n_islands, 1);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 0);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 5);
	ck_assert_uint_eq(bed_stats(&b).n_islands, 0);
}
END_TEST

/* _i: blocks of the island below the pin */
START_TEST(pin_in_an_island_protects_up_to_it)
{
	char head[16] = "";
	struct radix_place at;
	struct radix_pin pin = { 0 };
	bool rooted;

	bed_store_island(&b, "defghi");
	memcpy(head, "defghi", (size_t)_i);
	ck_assert_int_eq(find('d', &at, &rooted), 0);
	at = bed_match_from(&b, &at, head).end;
	radix_pin_take(b.ix, &pin, &at);
	ck_assert_uint_eq(radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH), 6 - _i);
	ck_assert_uint_eq(match_found("defghi", &rooted), _i);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH), _i);
	ck_assert_uint_eq(radix_root_n_blocks(b.ix, b.root), 0);
}
END_TEST

/* _i: where the parent stands in its edge */
START_TEST(graft_hangs_an_island_below_any_block)
{
	const char *path = "abcdefgh";
	char whole[16] = "";
	bool rooted;

	bed_store(&b, path);
	bed_store_island(&b, "XYZ");
	ck_assert_int_eq(graft(path[_i - 1], 'X'), 0);
	bed_verify(&b);
	memcpy(whole, path, (size_t)_i);
	memcpy(whole + _i, "XYZ", 4);
	ck_assert_uint_eq(bed_match(&b, whole), _i + 3);
	ck_assert_uint_eq(bed_match(&b, path), 8);
	ck_assert_uint_eq(match_found("XYZ", &rooted), 3);
	ck_assert(rooted);
	ck_assert_uint_eq(bed_stats(&b).n_islands, 0);
	ck_assert_int_eq(graft(path[_i - 1], 'X'), 0); /* it hangs there already */
	bed_verify(&b);
}
END_TEST

START_TEST(graft_refuses_what_it_must)
{
	bed_store(&b, "abcd");
	bed_store_island(&b, "XYZ");
	bed_store_island(&b, "PQ");
	ck_assert_int_eq(graft('a', '?'), RADIX_E_NOTFOUND);
	ck_assert_int_eq(graft('?', 'X'), RADIX_E_NOTFOUND);
	ck_assert_int_eq(graft('a', 'Y'), RADIX_E_CONFLICT); /* hangs below X */
	ck_assert_int_eq(graft('X', 'a'), RADIX_E_CONFLICT); /* is a prompt's first block */
	ck_assert_int_eq(graft('Z', 'X'), RADIX_E_CIRCLE);
	ck_assert_int_eq(graft('X', 'X'), RADIX_E_CIRCLE);
	ck_assert_int_eq(graft('Y', 'P'), 0);
	ck_assert_int_eq(graft('Q', 'X'), RADIX_E_CIRCLE);   /* a longer one */
	ck_assert_int_eq(graft('Z', 'P'), RADIX_E_CONFLICT); /* a second parent */
	bed_verify(&b);
	ck_assert_int_eq(graft('d', 'X'), 0);
	ck_assert_uint_eq(bed_match(&b, "abcdXYZ"), 7);
	ck_assert_uint_eq(bed_match(&b, "abcdXYPQ"), 8);
	ck_assert_int_eq(graft('c', 'X'), RADIX_E_CONFLICT);
}
END_TEST

/* A pin in an island protects, after the graft, the new parents too. */
START_TEST(graft_moves_pins_upward)
{
	struct radix_place at;
	struct radix_pin pin = { 0 };
	bool rooted;

	bed_store(&b, "abcd");
	bed_store_island(&b, "XYZ");
	ck_assert_int_eq(find('X', &at, &rooted), 0);
	at = bed_match_from(&b, &at, "XY").end;
	radix_pin_take(b.ix, &pin, &at);
	ck_assert_int_eq(graft('b', 'X'), 0);
	bed_verify(&b);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 3); /* Z, d, c */
	bed_verify(&b);
	ck_assert_uint_eq(bed_match(&b, "abXYZ"), 4);
	ck_assert_uint_eq(bed_match_from(&b, &pin.at, "Z").n_blocks, 0);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 4);
}
END_TEST

/* The deepest block goes first, also when the graft put warm parents over cold children or back. */
START_TEST(recency_is_a_blocks_own_after_a_graft)
{
	bed_store_island(&b, "XY"); /* 1 */
	bed_store(&b, "PQ");        /* 2 */
	bed_store(&b, "ab");        /* 3 */
	ck_assert_int_eq(graft('b', 'X'), 0);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_match(&b, "abXY"), 2);
	ck_assert_uint_eq(bed_match(&b, "PQ"), 2);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_match(&b, "PQ"), 0);
	bed_store_island(&b, "MN"); /* warmer than ab */
	bed_store(&b, "RS");
	ck_assert_int_eq(graft('b', 'M'), 0);
	bed_touch(&b, "RS");
	ck_assert_uint_eq(radix_evict(b.ix, 4, RADIX_REMOVE_EVICT), 4);
	ck_assert_uint_eq(bed_match(&b, "RS"), 2);
	ck_assert_uint_eq(bed_match(&b, "abMN"), 0);
}
END_TEST

START_TEST(commit_refuses_a_digest_with_another_parent)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 3);
	struct radix_pin pin = { 0 };
	enum radix_commit_result result;
	uint32_t slot;

	bed_store(&b, "abcd");
	bed_pin(&b, &pin, "ab");
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'd', &slot, &result), RADIX_E_CONFLICT);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[0]), RADIX_SLOT_RESERVED);
	ck_assert_uint_eq(pin.at.depth, 2);
	bed_verify(&b);
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'c', &slot, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

/* An island's first digest that came another way meanwhile is a duplicate of that block. */
START_TEST(island_start_that_is_a_member_is_a_duplicate)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 2);
	struct radix_place at = radix_place_island(b.root);
	struct radix_pin pin = { 0 };
	enum radix_commit_result result;
	uint32_t slot;

	radix_pin_take(b.ix, &pin, &at);
	bed_store(&b, "abc");
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'c', &slot, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[0]), RADIX_SLOT_OWN);
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[1], 'd', &slot, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_STORED);
	ck_assert_uint_eq(bed_match(&b, "abcd"), 4);
	ck_assert_uint_eq(bed_stats(&b).n_islands, 0);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 0);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

/* Before an island's first block is nowhere: another block committed there is none of its. */
START_TEST(commit_before_an_island_touches_nothing_of_it)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
	enum radix_commit_result result;
	struct radix_pin pin = { 0 };
	struct radix_place at;
	uint32_t slot;
	bool rooted;
	int r;

	bed_store_island(&b, "de");
	ck_assert_int_eq(find('d', &at, &rooted), 0);
	radix_pin_take(b.ix, &pin, &at);
	r = bed_commit(&b, &pin, s.v[0], 'z', &slot, &result);
	ck_assert(r == 0 || r == RADIX_E_CONFLICT);
	bed_verify(&b);
	ck_assert_uint_eq(match_found("dez", &rooted), 2);
	ck_assert_uint_eq(bed_match(&b, "z"), 0);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

START_TEST(islands_are_evicted_by_age_like_any_branch)
{
	bool rooted;

	bed_store_island(&b, "de");
	bed_store(&b, "ab");
	bed_store_island(&b, "XY");
	ck_assert_uint_eq(radix_evict(b.ix, 3, RADIX_REMOVE_EVICT), 3);
	ck_assert_uint_eq(match_found("de", &rooted), 0);
	ck_assert_uint_eq(bed_match(&b, "ab"), 1);
	ck_assert_uint_eq(match_found("XY", &rooted), 2);
	ck_assert_uint_eq(bed_stats(&b).n_islands, 1);
}
END_TEST

START_TEST(islands_keep_their_root_until_they_go)
{
	uint32_t root = bed_root(&b, 44);
	uint64_t user = 0;

	b.root = root;
	bed_store_island(&b, "de");
	ck_assert(!radix_root_unref(b.ix, root));
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), RADIX_NONE);
	ck_assert_uint_eq(radix_flush_root(b.ix, root, RADIX_REMOVE_FLUSH), 2);
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), root);
	ck_assert_uint_eq(user, 44);
}
END_TEST

static void count_line(void *ctx, const char *text)
{
	*(unsigned *)ctx += *text != 0;
}

START_TEST(dump_shows_islands)
{
	unsigned without = 0, with = 0;

	bed_store(&b, "ab");
	radix_dump(b.ix, b.root, 100, count_line, &without);
	bed_store_island(&b, "XY");
	radix_dump(b.ix, b.root, 100, count_line, &with);
	ck_assert_uint_gt(without, 0);
	ck_assert_uint_gt(with, without);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("digests");
	TCase *tc = tcase_create("digests");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, every_block_of_a_path_is_found);
	tcase_add_test(tc, digests_of_another_root_are_not_found);
	tcase_add_test(tc, island_is_found_and_extended);
	tcase_add_loop_test(tc, pin_in_an_island_protects_up_to_it, 1, 7);
	tcase_add_loop_test(tc, graft_hangs_an_island_below_any_block, 1, 9);
	tcase_add_test(tc, graft_refuses_what_it_must);
	tcase_add_test(tc, graft_moves_pins_upward);
	tcase_add_test(tc, recency_is_a_blocks_own_after_a_graft);
	tcase_add_test(tc, commit_refuses_a_digest_with_another_parent);
	tcase_add_test(tc, island_start_that_is_a_member_is_a_duplicate);
	tcase_add_test(tc, commit_before_an_island_touches_nothing_of_it);
	tcase_add_test(tc, islands_are_evicted_by_age_like_any_branch);
	tcase_add_test(tc, islands_keep_their_root_until_they_go);
	tcase_add_test(tc, dump_shows_islands);
	suite_add_tcase(s, tc);
	return test_run(s);
}
