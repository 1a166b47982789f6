/*
 * test_scale.c - very deep trees on a small stack, and the cost of evicting one block.
 */
#include "tests/lib/heap.h"
#include "tests/lib/run.h"
#include "tests/radix/bulk.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
	KEY = 8,
	DEPTH = 100000,
	STACK = 64 << 10
};

struct world {
	struct test_heap heap;
	struct radix_index *ix;
	uint32_t root;
};

static int world_init(struct world *w, uint32_t n_slots)
{
	struct radix_index_config config = { .alloc = &w->heap.alloc,
					     .n_slots = n_slots,
					     .n_entries = n_slots,
					     .secret = { 5, 6 } };
	struct radix_root_config rc = {
		.mode = RADIX_KEYS_TOKENS, .key_len = KEY, .block_tokens = 2, .token_bytes = KEY
	};
	int r;

	test_heap_init(&w->heap);
	w->heap.quick = true;
	r = radix_index_new(&w->ix, &config);
	return r ? r : radix_root_new(w->ix, &rc, &w->root);
}

static void number_key(uint8_t *out, uint64_t number)
{
	memcpy(out, &number, sizeof(number));
}

static void ignore_line(void *ctx, const char *text)
{
	++*(unsigned *)ctx;
}

/* What a thread on a small stack found wrong, if anything; Check's assertions stay outside. */
struct deep {
	struct world w;
	uint8_t *keys; /* DEPTH keys */
	uint32_t step; /* a branch every `step` blocks; 0: none */
	int bad_line;
};

#define NEED(d, cond)                             \
	do {                                      \
		if (!(cond)) {                    \
			(d)->bad_line = __LINE__; \
			return NULL;              \
		}                                 \
	} while (0)

static bool verified(struct deep *d)
{
	char why[128] = "";

	if (radix_verify(d->w.ix, why, sizeof(why)) == 0)
		return true;
	fprintf(stderr, "deep chain: %s\n", why);
	return false;
}

static uint32_t matched(struct deep *d, uint32_t n, struct radix_place *ret_end)
{
	struct radix_place from = radix_place_root(d->w.root);
	struct radix_match m;

	radix_match(d->w.ix, &from, d->keys, n, NULL, &m);
	*ret_end = m.end;
	return m.n_blocks;
}

/*
 * Every `step` blocks a branch of one block: as many edges below each other as there are branches.
 * From the top down, so that each cut is at the beginning of all that is left; a pin walks along,
 * so that no step begins at the root again.
 */
static bool add_branches(struct deep *d)
{
	struct radix_place root = radix_place_root(d->w.root);
	struct radix_pin walker = { 0 };
	uint8_t key[KEY];

	if (!d->step)
		return true;
	radix_pin_take(d->w.ix, &walker, &root);
	for (uint32_t i = d->step; i < DEPTH; i += d->step) {
		struct radix_pin pin = { 0 };
		struct radix_match m;

		radix_match(d->w.ix, &walker.at, d->keys + (size_t)(i - d->step) * KEY, d->step,
			    NULL, &m);
		if (m.n_blocks != d->step || m.end.depth != i)
			return false;
		radix_pin_move(d->w.ix, &walker, &m.end);
		radix_pin_take(d->w.ix, &pin, &m.end);
		number_key(key, 1000000u + i);
		if (bulk_commit(d->w.ix, &pin, key, 1, KEY, 2, 3) != 1)
			return false;
		radix_pin_drop(d->w.ix, &pin);
	}
	radix_pin_drop(d->w.ix, &walker);
	return true;
}

static void *deep_body(void *arg)
{
	struct deep *d = arg;
	struct radix_pin pin = { 0 };
	struct radix_place at;
	uint64_t n_left;
	unsigned n_lines = 0;

	NEED(d, bulk_store(d->w.ix, d->w.root, d->keys, DEPTH, KEY, 2, 1) == DEPTH);
	NEED(d, matched(d, DEPTH, &at) == DEPTH);
	NEED(d, add_branches(d));
	NEED(d, matched(d, DEPTH, &at) == DEPTH && at.depth == DEPTH);
	NEED(d, verified(d));
	radix_touch(d->w.ix, &at, 4);
	radix_pin_take(d->w.ix, &pin, &at);
	n_left = radix_root_n_blocks(d->w.ix, d->w.root);
	NEED(d, radix_evict(d->w.ix, UINT32_MAX, RADIX_REMOVE_EVICT) == n_left - DEPTH);
	NEED(d, verified(d));
	radix_dump(d->w.ix, RADIX_NONE, 1000, ignore_line, &n_lines);
	NEED(d, n_lines > 0);
	NEED(d, matched(d, DEPTH, &at) == DEPTH);
	radix_pin_drop(d->w.ix, &pin);
	NEED(d, radix_evict(d->w.ix, DEPTH / 3, RADIX_REMOVE_EVICT) == DEPTH / 3);
	NEED(d, matched(d, DEPTH, &at) == DEPTH - DEPTH / 3);
	NEED(d, bulk_store(d->w.ix, d->w.root, d->keys, DEPTH, KEY, 2, 5) == DEPTH / 3);
	NEED(d, add_branches(d));
	radix_dump(d->w.ix, RADIX_NONE, UINT32_MAX, ignore_line, &n_lines);
	n_left = radix_root_n_blocks(d->w.ix, d->w.root);
	NEED(d, radix_flush_root(d->w.ix, d->w.root, RADIX_REMOVE_FLUSH) == n_left);
	NEED(d, verified(d));
	NEED(d, bulk_store(d->w.ix, d->w.root, d->keys, DEPTH, KEY, 2, 6) == DEPTH);
	NEED(d, add_branches(d));
	d->w.ix = radix_index_free(d->w.ix); /* full */
	return NULL;
}

/* _i: a branch every so many blocks; 0: one edge of 100,000 blocks */
START_TEST(deep_chain_on_a_small_stack)
{
	struct deep d = { .step = (uint32_t)_i };
	pthread_attr_t attr;
	pthread_t thread;

	d.keys = malloc((size_t)DEPTH * KEY);
	ck_assert_ptr_nonnull(d.keys);
	for (uint32_t i = 0; i < DEPTH; i++)
		number_key(d.keys + (size_t)i * KEY, i);
	ck_assert_int_eq(world_init(&d.w, 2 * DEPTH), 0);
	ck_assert_int_eq(pthread_attr_init(&attr), 0);
	ck_assert_int_eq(pthread_attr_setstacksize(&attr, STACK), 0);
	ck_assert_int_eq(pthread_create(&thread, &attr, deep_body, &d), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	pthread_attr_destroy(&attr);
	ck_assert_msg(d.bad_line == 0, "wrong at line %d", d.bad_line);
	ck_assert_uint_eq(d.w.heap.live_blocks, 0);
	free(d.keys);
}
END_TEST

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Median time to evict twenty blocks, one by one, out of n_blocks.  Ten leaves of one block hang
 * at each stem of ten: of each twenty evictions ten remove a leaf, ten trim the stem that is left.
 */
static uint64_t evict_twenty(uint32_t n_blocks, uint64_t *ret_takes)
{
	enum {
		BATCHES = 400,
		BATCH = 20
	};
	static struct world w;
	uint64_t t[BATCHES], tick = 0, n = 0;
	uint8_t keys[11 * KEY];

	ck_assert_int_eq(world_init(&w, n_blocks), 0);
	for (uint64_t path = 0; n_blocks - radix_root_n_blocks(w.ix, w.root) >= 11; path++) {
		uint64_t stem = path / 10;

		for (uint32_t i = 0; i < 11; i++)
			number_key(keys + i * KEY, i < 10 ? stem * 100 + i : path * 100 + 50);
		bulk_store(w.ix, w.root, keys, 11, KEY, 2, ++tick);
	}
	*ret_takes = w.heap.n_takes;
	for (uint32_t i = 0; i < BATCHES; i++) {
		uint64_t start = now_ns();

		for (uint32_t j = 0; j < BATCH; j++)
			n += radix_evict(w.ix, 1, RADIX_REMOVE_EVICT);
		t[i] = now_ns() - start;
	}
	ck_assert_uint_eq(n, BATCHES * BATCH);
	*ret_takes = w.heap.n_takes - *ret_takes;
	w.ix = radix_index_free(w.ix);
	qsort(t, BATCHES, sizeof(t[0]), compare);
	return t[BATCHES / 2];
}

/*
 * A scan would cost a hundred times as much in an index a hundred times as large.  Misses of the
 * caches and a logarithm stay far below ten.
 */
START_TEST(T51_evicting_one_block_costs_the_same_in_a_big_index)
{
	uint64_t takes_small, takes_big, small, big;

	small = evict_twenty(10000, &takes_small);
	big = evict_twenty(1000000, &takes_big);
	ck_assert_uint_eq(takes_small, 0);
	ck_assert_uint_eq(takes_big, 0);
	ck_assert_msg(big < 10 * small,
		      "twenty evictions: median %lu ns of 1M blocks, %lu ns of 10k", big, small);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("scale");
	TCase *deep = tcase_create("deep");
	TCase *t51 = tcase_create("T51");

	tcase_set_timeout(deep, 60);
	tcase_add_loop_test(deep, deep_chain_on_a_small_stack, 0, 1);
	tcase_add_loop_test(deep, deep_chain_on_a_small_stack, 2, 3);
	suite_add_tcase(s, deep);
	tcase_set_timeout(t51, 60);
	tcase_add_test(t51, T51_evicting_one_block_costs_the_same_in_a_big_index);
	suite_add_tcase(s, t51);
	return test_run(s);
}
