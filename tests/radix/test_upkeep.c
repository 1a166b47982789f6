/*
 * test_upkeep.c - what random sessions hardly ever show: rules that only tell after much has gone.
 *
 * Each case is one way to be wrong without any answer being wrong at once: something that stays
 * behind, a use that is not written far enough up, a root that ends while somebody takes it again.
 */
#include "radix/internal.h"
#include "tests/lib/run.h"
#include "tests/radix/bed.h"

/*
 * A use of "ab" is one of "a" too.  Whether that was written shows when "a" is a leaf while an
 * older one is left, which needs a leaf that was passed over because it was pinned.
 */
START_TEST(a_use_counts_for_the_whole_path)
{
	struct radix_pin pin;
	struct bed b;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 8);
	bed_store(&b, "ab");
	bed_store(&b, "ax");
	bed_store(&b, "c");
	bed_pin(&b, &pin, "c");
	bed_touch(&b, "ab");
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2); /* x, then b; c is held */
	ck_assert_uint_eq(bed_match(&b, "ab"), 1);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 1);
	ck_assert_uint_eq(bed_match(&b, "c"), 0);
	ck_assert_uint_eq(bed_match(&b, "a"), 1);
	bed_deinit(&b);
}
END_TEST

START_TEST(key_bytes_go_with_their_blocks)
{
	struct bed b;

	bed_init(&b, RADIX_KEYS_TOKENS, 48, 8);
	ck_assert_uint_eq(bed_stats(&b).key_bytes, 0);
	bed_store(&b, "abcde");
	ck_assert_uint_eq(bed_stats(&b).key_bytes, 5 * 48);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_stats(&b).key_bytes, 3 * 48);
	radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH);
	ck_assert_uint_eq(bed_stats(&b).key_bytes, 0);
	bed_deinit(&b);
}
END_TEST

/* What is found by a digest must forget those that went, or it grows for ever. */
START_TEST(digests_that_went_take_no_room)
{
	struct bed b;
	uint64_t bytes;

	bed_init(&b, RADIX_KEYS_DIGEST, 16, 4);
	bed_store_island(&b, "abcd");
	bytes = b.ix->digests.mask;
	for (uint32_t i = 0; i < 2000; i++) {
		char one[2] = { (char)('A' + i % 50), 0 };

		ck_assert_uint_eq(radix_evict(b.ix, 4, RADIX_REMOVE_EVICT), i ? 1 : 4);
		ck_assert_uint_eq(b.ix->digests.n, 0);
		bed_store_island(&b, one);
		ck_assert_uint_eq(b.ix->digests.n, 1);
	}
	ck_assert_uint_eq(b.ix->digests.mask, bytes);
	bed_deinit(&b);
}
END_TEST

/*
 * A pin before an island's first block holds nothing of it; when the island goes, nothing is left.
 */
START_TEST(a_pin_before_an_island_outlives_it)
{
	struct radix_pin pin = { 0 };
	struct radix_place before;
	uint8_t key[16];
	bool rooted;
	struct bed b;

	bed_init(&b, RADIX_KEYS_DIGEST, 16, 4);
	bed_store_island(&b, "ab");
	bed_key(&b, 'a', key);
	ck_assert_int_eq(radix_find_digest(b.ix, b.root, key, &before, &rooted), 0);
	radix_pin_take(b.ix, &pin, &before);
	ck_assert_uint_eq(radix_evict(b.ix, 4, RADIX_REMOVE_EVICT), 2);
	bed_verify(&b);
	radix_pin_drop(b.ix, &pin);
	bed_verify(&b);
	bed_store_island(&b, "xyz");
	ck_assert_uint_eq(bed_stats(&b).n_pins, 0);
	bed_deinit(&b);
}
END_TEST

/* Between losing its last block and being reported a root may be taken again. */
START_TEST(a_root_that_is_taken_again_does_not_end)
{
	struct bed b;
	uint32_t root;
	uint64_t user = 0;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 4);
	root = b.root;
	bed_store(&b, "a");
	ck_assert(!radix_root_unref(b.ix, root)); /* it has a block */
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 1);
	radix_root_ref(b.ix, root);
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), RADIX_NONE);
	ck_assert_uint_eq(bed_store(&b, "b"), 1);
	ck_assert(!radix_root_unref(b.ix, root));
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 1);
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), root);
	ck_assert_uint_eq(bed_stats(&b).n_roots, 0);
	bed_deinit(&b);
}
END_TEST

/* Whatever of an entry changes, its check does not agree any more. */
START_TEST(a_check_covers_all_that_identifies)
{
	struct radix_entry *e;
	struct bed b;
	uint64_t check;
	uint8_t *key;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 4);
	bed_store(&b, "ab");
	e = &b.ix->table.v[1];
	check = e->check;
	ck_assert_uint_eq(radix_table_check(&b.ix->table, 1), check);
	key = radix_cells_at(&b.ix->table.cells, e->key);
#define CHANGES(place)                                                        \
	do {                                                                  \
		(place) ^= 1;                                                 \
		ck_assert_uint_ne(radix_table_check(&b.ix->table, 1), check); \
		(place) ^= 1;                                                 \
	} while (0)
	for (uint32_t i = 0; i < 16; i++)
		CHANGES(key[i]);
	CHANGES(e->generation);
	CHANGES(e->root);
	CHANGES(e->root_check);
	CHANGES(e->ns);
	CHANGES(e->tenant);
	CHANGES(e->n_tokens);
	e->key += 64; /* the same bytes elsewhere */
	memcpy(radix_cells_at(&b.ix->table.cells, e->key), key, 16);
	ck_assert_uint_ne(radix_table_check(&b.ix->table, 1), check);
	e->key -= 64;
#undef CHANGES
	ck_assert_uint_eq(radix_table_check(&b.ix->table, 1), check);
	bed_deinit(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("upkeep");
	TCase *tc = tcase_create("upkeep");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_use_counts_for_the_whole_path);
	tcase_add_test(tc, key_bytes_go_with_their_blocks);
	tcase_add_test(tc, digests_that_went_take_no_room);
	tcase_add_test(tc, a_pin_before_an_island_outlives_it);
	tcase_add_test(tc, a_root_that_is_taken_again_does_not_end);
	tcase_add_test(tc, a_check_covers_all_that_identifies);
	suite_add_tcase(s, tc);
	return test_run(s);
}
