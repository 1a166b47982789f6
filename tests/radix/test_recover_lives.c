/*
 * test_recover_lives.c - an index that lives many lives.
 *
 * A session goes on for some steps, all comes to rest, and the process "dies": what it stored is
 * given to the next life, which must find the same members, copies, slots and recency, block by
 * block, and lets them go in the same order.  Then the session goes on with the new index.
 */
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/lives.h"
#include "tests/radix/reborn.h"

#include <stdlib.h>
#include <time.h>

static const struct lives_shape shapes[] = {
	{ RADIX_KEYS_TOKENS, 24, 0, 0, false, 0 }, /* the device alone */
	{ RADIX_KEYS_DIGEST, 24, 0, 0, false, 0 },
	{ RADIX_KEYS_TOKENS, 12, 10, 8, true, 8 }, /* all tiers */
	{ RADIX_KEYS_DIGEST, 12, 10, 8, true, 8 },
	{ RADIX_KEYS_TOKENS, 14, 12, 0, false, 0 },           /* no Redis */
	{ RADIX_KEYS_DIGEST, 12, 0, 12, true, 0 },            /* no host tier */
	{ RADIX_KEYS_TOKENS, 12, 0, 30, false, 0, false, 2 }, /* windows */
	{ RADIX_KEYS_DIGEST, 12, 0, 30, false, 0, false, 3 },
	{ RADIX_KEYS_TOKENS, 8, 8, 30, true, 8, false, 2 },
	{ RADIX_KEYS_DIGEST, 8, 8, 30, true, 8, false, 1 },
};

static uint64_t fresh_seed;

static void same_order(const struct lives *l)
{
	struct reborn one, other;

	reborn_init(&one, l->ix, l->kept);
	reborn_recover(&one);
	reborn_init(&other, l->ix, l->kept);
	reborn_recover(&other);
	reborn_uses(&one, l->ix, true);
	reborn_order(&one, other.ix);
	reborn_deinit(&one);
	reborn_deinit(&other);
}

/* The index goes, its store stays; the next one must be like it. */
static void next_life(struct lives *l, struct test_heap *heap)
{
	struct radix_recover_root roots[LIVES_ROOTS];
	struct radix_recover_config config = { .roots = roots, .n_roots = LIVES_ROOTS };
	struct radix_recovered r;
	struct radix_index *old = l->ix;
	char why[256] = "";
	int bad;

	lives_roots(l, roots);
	reborn_check(old, l->kept, true);
	same_order(l);
	radix_index_free(old);
	ck_assert_uint_eq(heap->live_blocks, 0);
	ck_assert_int_eq(radix_index_recover(&l->ix, &l->kept->config, &config, &r), 0);
	ck_assert_uint_eq(r.n_lost, 0);
	ck_assert_uint_eq(r.tick, l->tick);
	if (test_rng_below(&l->rng, 2))
		radix_recover_end(l->ix);
	bad = radix_verify(l->ix, why, sizeof(why));
	ck_assert_msg(bad == 0, "invariant %d: %s", bad, why);
}

static void run(const struct lives_shape *shape, uint64_t seed, uint32_t n_lives)
{
	struct test_heap heap;
	struct radix_index_config numbers;
	struct kept kept;
	struct lives l;

	test_heap_init(&heap);
	numbers = lives_numbers(shape, &heap.alloc);
	kept_init(&kept, &numbers);
	lives_init(&l, shape, &kept, seed);
	for (uint32_t life = 0; life < n_lives; life++) {
		for (uint32_t n = 20 + test_rng_below(&l.rng, 200); n; n--)
			lives_step(&l);
		lives_quiet(&l);
		next_life(&l, &heap);
	}
	radix_index_free(l.ix);
	ck_assert_uint_eq(heap.live_blocks, 0);
	kept_deinit(&kept);
}

START_TEST(many_lives)
{
	run(&shapes[_i], 7000 + (uint64_t)_i, 200);
	run(&shapes[_i], fresh_seed + (uint64_t)_i, 50);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("recover-lives");
	TCase *tc = tcase_create("lives");
	const char *env = getenv("PREFIXD_SEED");

	fresh_seed = env ? strtoull(env, NULL, 10) : (uint64_t)time(NULL) * 1000;
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, many_lives, 0, (int)radix_array_size(shapes));
	suite_add_tcase(s, tc);
	return test_run(s);
}
