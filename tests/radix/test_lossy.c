/*
 * test_lossy.c - copies that a codec has changed: who counts as such, and what takes their place.
 */
#include "radix/recover.h"
#include "tests/lib/run.h"
#include "tests/radix/tiers_bed.h"

static void begin_coded(uint32_t n_slots, uint32_t n_host)
{
	begin(RADIX_KEYS_TOKENS, n_slots, n_host, true, 8);
	b.ix->coded = true;
}

static void bring(const char *path, bool lossy)
{
	struct radix_move m = promote_begin(path);

	m.lossy = lossy;
	end(&m, true);
}

/* The blocks of a path that count as lossy: 'l' and '.'. */
static void looks(const char *path, const char *want)
{
	struct radix_place at = bed_place(&b, path);
	uint32_t n = (uint32_t)strlen(path), first, lossy = 0;
	struct radix_member m[BED_MAX_PATH];
	char got[BED_MAX_PATH + 1] = "";

	ck_assert_uint_eq(radix_path_members(b.ix, &at, n, m), n);
	for (uint32_t i = 0; i < n; i++) {
		got[i] = radix_member_lossy(b.ix, m[i]) ? 'l' : '.';
		lossy += got[i] == 'l';
	}
	ck_assert_str_eq(got, want);
	ck_assert_uint_eq(radix_path_lossy(b.ix, &at, n, &first), lossy);
	ck_assert_uint_eq(first, (uint32_t)strcspn(want, "l"));
	for (uint32_t w = 1; w <= n + 1; w++) {
		uint32_t p = n;

		while (memchr(got + p - radix_min_u32(p, w), 'l', radix_min_u32(p, w)))
			p--;
		ck_assert_uint_eq(radix_path_exact(b.ix, &at, n, w), p);
	}
	ck_assert_uint_eq(radix_path_exact(b.ix, &at, n, UINT32_MAX), first);
}

static int commit(const char *behind, char letter, enum radix_commit_result *ret_result)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
	uint8_t key[BED_MAX_KEY];
	struct radix_block block = { .key = key, .n_tokens = 4 };
	struct radix_pin pin;
	uint32_t slot;
	int r;

	ck_assert_uint_eq(s.n, 1);
	block.slot = s.v[0];
	bed_key(&b, letter, key);
	bed_pin(&b, &pin, behind);
	r = radix_commit(b.ix, &pin, BED_OWNER, &block, ++b.tick, &slot, ret_result);
	ck_assert_int_eq(r, 0);
	if (*ret_result == RADIX_COMMIT_DUPLICATE)
		ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], false), 0);
	else
		ck_assert_uint_eq(slot, s.v[0]);
	radix_pin_drop(b.ix, &pin);
	bed_verify(&b);
	return r;
}

START_TEST(what_comes_up_changed_is_lossy)
{
	begin_coded(8, 8);
	bed_store(&b, "abcd");
	looks("abcd", "....");
	demote(RADIX_TIER_DEVICE, 3);
	looks("abcd", ".lll"); /* what lies lower would come up changed */
	bring("ab", true);
	bring("abc", false); /* a value that could not be coded */
	lies("abcd", "dddh");
	looks("abcd", ".l.l");
	bed_store(&b, "abx"); /* a branch below a lossy block */
	looks("abx", ".l.");
	bed_deinit(&b);
}
END_TEST

START_TEST(nothing_is_lossy_where_nothing_is_coded)
{
	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	bed_store(&b, "ab");
	demote(RADIX_TIER_DEVICE, 1);
	looks("ab", "..");
	bring("ab", true);
	looks("ab", "..");
	bed_deinit(&b);
}
END_TEST

/* The mark is of one copy: the next one in its place is what it is. */
START_TEST(a_mark_is_of_one_copy)
{
	begin_coded(2, 8);
	bed_store(&b, "ab");
	demote(RADIX_TIER_DEVICE, 1);
	bring("ab", true);
	looks("ab", ".l");
	demote(RADIX_TIER_DEVICE, 1);
	bring("ab", false);
	looks("ab", "..");
	demote(RADIX_TIER_DEVICE, 1);
	bring("ab", true);
	looks("ab", ".l");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_damaged_mark_is_none)
{
	begin_coded(4, 4);
	bed_store(&b, "ab");
	for (uint32_t bit = 0; bit < 32; bit++) {
		struct radix_entry *e = &b.ix->table.v[name_of("ab").entry];

		e->exact ^= 1u << bit;
		looks("ab", ".l");
		e->exact ^= 1u << bit;
	}
	looks("ab", "..");
	bed_deinit(&b);
}
END_TEST

START_TEST(exact_bytes_take_the_place)
{
	enum radix_commit_result result;
	uint32_t old, free;

	begin_coded(8, 8);
	bed_store(&b, "abc");
	demote(RADIX_TIER_DEVICE, 2);
	bring("ab", true);
	bring("abc", true);
	old = radix_entry_slot(entry_of("ab"));
	free = radix_free_slots(b.ix, RADIX_TIER_DEVICE);
	commit("a", 'b', &result);
	ck_assert_int_eq(result, RADIX_COMMIT_ATTACHED);
	looks("abc", "..l");
	lies("abc", "ddd");
	ck_assert_uint_ne(radix_entry_slot(entry_of("ab")), old);
	ck_assert_int_eq(radix_slot_state(b.ix, old), RADIX_SLOT_FREE);
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_DEVICE), free);
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 2); /* the lower copies stay */
	commit("a", 'b', &result); /* exact bytes are there: the second is one too many */
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	bed_deinit(&b);
}
END_TEST

START_TEST(who_holds_a_lossy_copy_keeps_it)
{
	enum radix_commit_result result;
	struct radix_pin pin;
	struct radix_move m;
	uint32_t slot;

	begin_coded(8, 8);
	bed_store(&b, "abc");
	demote(RADIX_TIER_DEVICE, 2);
	bring("ab", true);
	slot = radix_entry_slot(entry_of("ab"));
	bed_pin(&b, &pin, "ab");
	commit("a", 'b', &result);
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	radix_pin_drop(b.ix, &pin);
	bed_pin(&b, &pin, "abc"); /* below it, in host memory */
	commit("a", 'b', &result);
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	radix_pin_drop(b.ix, &pin);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("ab"), RADIX_TIER_REDIS, &m), 0);
	commit("a", 'b', &result); /* a move reads it */
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	ck_assert_uint_eq(radix_entry_slot(entry_of("ab")), slot);
	end(&m, true);
	looks("abc", ".ll");
	commit("a", 'b', &result);
	ck_assert_int_eq(result, RADIX_COMMIT_ATTACHED);
	looks("abc", "..l");
	bed_deinit(&b);
}
END_TEST

/* A checksum is of the committed bytes: lossy copies are not compared with it. */
START_TEST(checksums_are_of_exact_copies)
{
	static const uint8_t sum[16] = { 7 };
	struct radix_sum v[4];
	struct radix_move m;
	uint32_t it = 0;

	begin_coded(4, 4);
	bed_store(&b, "ab");
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("ab"), RADIX_TIER_HOST, &m), 0);
	ck_assert_int_eq(radix_move_end(b.ix, &m, true, sum, NULL), 0);
	ck_assert_uint_eq(radix_sums_next(b.ix, 1, &it, v, 4), 1);
	demote(RADIX_TIER_DEVICE, 1);
	bring("ab", true);
	it = 0;
	ck_assert_uint_eq(radix_sums_next(b.ix, 1, &it, v, 4), 0);
	bed_deinit(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("lossy");
	TCase *tc = tcase_create("lossy");

	tcase_add_test(tc, what_comes_up_changed_is_lossy);
	tcase_add_test(tc, nothing_is_lossy_where_nothing_is_coded);
	tcase_add_test(tc, a_mark_is_of_one_copy);
	tcase_add_test(tc, a_damaged_mark_is_none);
	tcase_add_test(tc, exact_bytes_take_the_place);
	tcase_add_test(tc, who_holds_a_lossy_copy_keeps_it);
	tcase_add_test(tc, checksums_are_of_exact_copies);
	suite_add_tcase(s, tc);
	return test_run(s);
}
