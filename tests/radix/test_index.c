/*
 * test_index.c - the shape of the tree under splits, merges and trims, and what pins protect.
 */
#include "radix/internal.h"
#include "tests/lib/run.h"
#include "tests/radix/bed.h"

#include <stdio.h>
#include <stdlib.h>

static struct bed b;

/* Short keys lie 64 to a segment of an edge, long ones two or one: both have their own borders. */
static void setup_short(void)
{
	bed_init(&b, RADIX_KEYS_TOKENS, 16, 32);
}

static void setup_long(void)
{
	bed_init(&b, RADIX_KEYS_TOKENS, 2048, 32);
}

static void setup_longer(void)
{
	bed_init(&b, RADIX_KEYS_TOKENS, 4096, 32);
}

static void teardown(void)
{
	bed_deinit(&b);
}

START_TEST(empty_index_matches_nothing)
{
	struct radix_place from = radix_place_root(b.root);
	struct radix_match m = bed_match_from(&b, &from, "abc");

	ck_assert_uint_eq(m.n_blocks, 0);
	ck_assert(!m.diverged);
	ck_assert_uint_eq(m.end.root, b.root);
	ck_assert_uint_eq(m.end.depth, 0);
	ck_assert_uint_eq(radix_evict(b.ix, 10, RADIX_REMOVE_EVICT), 0);
	ck_assert_uint_eq(radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH), 0);
	bed_verify(&b);
}
END_TEST

START_TEST(prefixes_match_in_any_length)
{
	ck_assert_uint_eq(bed_store(&b, "abcdefghijklmnopqrst"), 20);
	ck_assert_uint_eq(bed_match(&b, ""), 0);
	ck_assert_uint_eq(bed_match(&b, "a"), 1);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijklmnopqrst"), 20);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijklmnopqrstu"), 20);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijk_mnopqrst"), 11);
	ck_assert_uint_eq(bed_match(&b, "_bcdefghijklmnopqrst"), 0);
	ck_assert_uint_eq(bed_store(&b, "abcdefghijklmnopqrst"), 0);
}
END_TEST

START_TEST(match_says_where_it_diverged)
{
	struct radix_place from = radix_place_root(b.root);
	struct radix_match m;

	bed_store(&b, "abcd");
	m = bed_match_from(&b, &from, "abX");
	ck_assert_uint_eq(m.n_blocks, 2);
	ck_assert(m.diverged);
	m = bed_match_from(&b, &from, "abcdX");
	ck_assert(!m.diverged); /* nothing hangs below */
	m = bed_match_from(&b, &from, "X");
	ck_assert(m.diverged);
	bed_store(&b, "abcdef");
	bed_store(&b, "abcdgh");
	m = bed_match_from(&b, &from, "abcdX");
	ck_assert_uint_eq(m.n_blocks, 4);
	ck_assert(m.diverged);
}
END_TEST

/* A match in two parts from any place is the match in one. */
START_TEST(match_goes_on_from_any_place)
{
	const char *path = "abcdefgh";

	bed_store(&b, path);
	bed_store(&b, "abcXY");
	for (uint32_t i = 0; i <= 8; i++) {
		char head[9] = "";
		struct radix_place at;
		struct radix_match m;

		memcpy(head, path, i);
		at = bed_place(&b, head);
		ck_assert_uint_eq(at.depth, i);
		m = bed_match_from(&b, &at, path + i);
		ck_assert_uint_eq(m.n_blocks, 8 - i);
		ck_assert_uint_eq(m.end.depth, 8);
	}
}
END_TEST

START_TEST(keys_need_no_alignment)
{
	struct radix_place from = radix_place_root(b.root);
	static uint8_t raw[8 * BED_MAX_KEY + 8];
	struct radix_match m;

	bed_store(&b, "abcdefgh");
	for (uint32_t shift = 0; shift < 8; shift++) {
		memcpy(raw + shift, bed_keys(&b, "abcdefgh"), 8 * (size_t)b.key_len);
		radix_match(b.ix, &from, raw + shift, 8, NULL, &m);
		ck_assert_uint_eq(m.n_blocks, 8);
	}
}
END_TEST

/* _i: length of the shared part, 1..7 of 8 */
START_TEST(split_at_each_position)
{
	uint64_t n_nodes;
	char other[16] = "";

	bed_store(&b, "abcdefgh");
	n_nodes = bed_stats(&b).n_nodes;
	memcpy(other, "abcdefgh", (size_t)_i);
	memcpy(other + _i, "XYZ", 4);
	ck_assert_uint_eq(bed_store(&b, other), 3);
	ck_assert_uint_eq(bed_stats(&b).n_nodes, n_nodes + 2);
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 8);
	ck_assert_uint_eq(bed_match(&b, other), _i + 3);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 11);
}
END_TEST

START_TEST(append_makes_no_node)
{
	uint64_t n_nodes;

	bed_store(&b, "ab");
	n_nodes = bed_stats(&b).n_nodes;
	bed_store(&b, "abcd");
	bed_store(&b, "abcdefghijklmnopqrstuvwxyz");
	ck_assert_uint_eq(bed_stats(&b).n_nodes, n_nodes);
}
END_TEST

/* _i: length of the shared part */
START_TEST(eviction_of_a_sibling_merges)
{
	uint64_t n_nodes;
	char other[16] = "";

	bed_store(&b, "abcdefgh");
	n_nodes = bed_stats(&b).n_nodes;
	memcpy(other, "abcdefgh", (size_t)_i);
	memcpy(other + _i, "XYZ", 4);
	bed_store(&b, other);
	bed_touch(&b, "abcdefgh");
	ck_assert_uint_eq(radix_evict(b.ix, 3, RADIX_REMOVE_EVICT), 3);
	bed_verify(&b);
	ck_assert_uint_eq(bed_stats(&b).n_nodes, n_nodes);
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 8);
	ck_assert_uint_eq(bed_match(&b, other), _i);
}
END_TEST

/* _i: blocks cut off */
START_TEST(trim_to_each_length)
{
	bed_store(&b, "abcdefghijkl");
	ck_assert_uint_eq(radix_evict(b.ix, (uint32_t)_i, RADIX_REMOVE_CAPACITY), _i);
	bed_verify(&b);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijkl"), 12 - _i);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_CAPACITY], _i);
	ck_assert_uint_eq(bed_stats(&b).slots[RADIX_SLOT_FREE], 32 - 12 + _i);
	ck_assert_uint_eq(bed_store(&b, "abcdefghijkl"), _i);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijkl"), 12);
}
END_TEST

/* _i: blocks of one edge below the pin */
START_TEST(pin_in_mid_edge_protects_up_to_it)
{
	char head[16] = "";
	struct radix_pin pin;

	bed_store(&b, "abcdefgh");
	memcpy(head, "abcdefgh", (size_t)_i);
	bed_pin(&b, &pin, head);
	ck_assert_uint_eq(bed_stats(&b).n_pins, 1);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 8 - _i);
	bed_verify(&b);
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), _i);
	ck_assert_uint_eq(radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH), 0);
	radix_pin_drop(b.ix, &pin);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(bed_stats(&b).n_pins, 0);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), _i);
}
END_TEST

START_TEST(pin_protects_all_ancestors_and_no_sibling)
{
	struct radix_pin pin;

	bed_store(&b, "abcdef");
	bed_store(&b, "abcXY");
	bed_store(&b, "Q");
	bed_pin(&b, &pin, "abcX");
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 5);
	ck_assert_uint_eq(bed_match(&b, "abcX"), 4);
	ck_assert_uint_eq(bed_match(&b, "abcdef"), 3);
	ck_assert_uint_eq(bed_match(&b, "Q"), 0);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

/* _i: where the edge is split; pins sit at each of its blocks */
START_TEST(pins_survive_a_split)
{
	struct radix_pin pins[9][3];
	char other[16] = "";

	bed_store(&b, "abcdefgh");
	for (uint32_t i = 0; i <= 8; i++) {
		char head[9] = "";

		memcpy(head, "abcdefgh", i);
		for (uint32_t j = 0; j < 3; j++)
			bed_pin(&b, &pins[i][j], head);
	}
	memcpy(other, "abcdefgh", (size_t)_i);
	memcpy(other + _i, "XY", 3);
	bed_store(&b, other);
	for (uint32_t i = 0; i <= 8; i++) {
		struct radix_match m = bed_match_from(&b, &pins[i][1].at, &"abcdefgh"[i]);

		ck_assert_uint_eq(pins[i][1].at.depth, i);
		ck_assert_uint_eq(m.n_blocks, 8 - i);
	}
	/* Take the pins off from the end: each frees exactly one block. */
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 2);
	for (uint32_t i = 9; i-- > 0;) {
		for (uint32_t j = 0; j < 3; j++) {
			ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 0);
			radix_pin_drop(b.ix, &pins[i][j]);
			bed_verify(&b);
		}
		if (i > 0)
			ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 1);
	}
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 0);
}
END_TEST

/* Pins on both parts of a split edge stay right when the parts become one edge again. */
START_TEST(pins_survive_a_merge)
{
	struct radix_pin upper, lower;

	bed_store(&b, "abcdefgh");
	bed_store(&b, "abcdXY");
	bed_pin(&b, &upper, "abc");
	bed_pin(&b, &lower, "abcdef");
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 4); /* X, Y, g, h */
	bed_verify(&b);
	ck_assert_uint_eq(bed_match_from(&b, &upper.at, "def").n_blocks, 3);
	ck_assert_uint_eq(upper.at.depth, 3);
	ck_assert_uint_eq(lower.at.depth, 6);
	radix_pin_drop(b.ix, &lower);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 3);
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 3);
	radix_pin_drop(b.ix, &upper);
}
END_TEST

START_TEST(pin_moves_down_and_up)
{
	struct radix_place to;
	struct radix_pin pin;

	bed_store(&b, "abcdef");
	bed_pin(&b, &pin, "ab");
	to = bed_place(&b, "abcde");
	radix_pin_move(b.ix, &pin, &to);
	ck_assert_uint_eq(bed_stats(&b).n_pins, 1);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 1);
	to = radix_place_root(b.root);
	radix_pin_move(b.ix, &pin, &to);
	ck_assert_uint_eq(radix_evict(b.ix, 100, RADIX_REMOVE_EVICT), 5);
	bed_verify(&b);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

START_TEST(coldest_leaf_goes_first)
{
	bed_store(&b, "ab");
	bed_store(&b, "cd");
	bed_store(&b, "ef");
	bed_touch(&b, "ab");
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 1);
	ck_assert_uint_eq(bed_match(&b, "cd"), 1);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_match(&b, "cd"), 0);
	ck_assert_uint_eq(bed_match(&b, "ef"), 1);
	ck_assert_uint_eq(bed_match(&b, "ab"), 2);
}
END_TEST

/* Recency is a block's, not an edge's: the unused rest of an edge keeps its older time. */
START_TEST(recency_is_exact_per_block)
{
	bed_store(&b, "abcdefgh");
	bed_store(&b, "XY");
	bed_touch(&b, "abcd");
	ck_assert_uint_eq(radix_evict(b.ix, 4, RADIX_REMOVE_EVICT), 4);
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 4);
	ck_assert_uint_eq(bed_match(&b, "XY"), 2);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_match(&b, "XY"), 0);
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 4);
}
END_TEST

/* Three uses of three lengths leave three ages on one edge, also when it is split later. */
START_TEST(recency_survives_splits)
{
	bed_store(&b, "abcdefgh");                                      /* 1 */
	bed_touch(&b, "abcdef");                                        /* 2 */
	bed_store(&b, "P");                                             /* 3 */
	bed_touch(&b, "abc");                                           /* 4 */
	bed_store(&b, "abcdQ");                                         /* 5: a b c d Q */
	bed_store(&b, "R");                                             /* 6 */
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2); /* h g */
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 6);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2); /* f e */
	ck_assert_uint_eq(bed_match(&b, "abcdefgh"), 4);
	ck_assert_uint_eq(bed_match(&b, "P"), 1);
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 1); /* P */
	ck_assert_uint_eq(bed_match(&b, "P"), 0);
	ck_assert_uint_eq(radix_evict(b.ix, 5, RADIX_REMOVE_EVICT), 5); /* Q d c b a */
	ck_assert_uint_eq(bed_match(&b, "a"), 0);
	ck_assert_uint_eq(bed_match(&b, "R"), 1);
}
END_TEST

START_TEST(match_and_pin_write_no_recency)
{
	struct radix_pin pin;

	bed_store(&b, "ab");
	bed_store(&b, "cd");
	bed_pin(&b, &pin, "ab");
	ck_assert_uint_eq(bed_match(&b, "ab"), 2);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_match(&b, "ab"), 0);
	ck_assert_uint_eq(bed_match(&b, "cd"), 2);
}
END_TEST

START_TEST(flush_leaves_other_roots_and_pinned_paths)
{
	uint32_t other = bed_root(&b, 5), first = b.root;
	struct radix_pin pin;

	bed_store(&b, "abcdef");
	bed_store(&b, "abXY");
	b.root = other;
	ck_assert_uint_eq(bed_match(&b, "abcdef"), 0); /* roots share nothing */
	bed_store(&b, "abcdef");
	bed_pin(&b, &pin, "abc");
	ck_assert_uint_eq(radix_flush_root(b.ix, other, RADIX_REMOVE_FLUSH), 3);
	ck_assert_uint_eq(radix_root_n_blocks(b.ix, other), 3);
	ck_assert_uint_eq(radix_flush_root(b.ix, first, RADIX_REMOVE_QUOTA), 8);
	ck_assert_uint_eq(radix_root_n_blocks(b.ix, first), 0);
	ck_assert_uint_eq(bed_match(&b, "abcdef"), 3);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_FLUSH], 3);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_QUOTA], 8);
	ck_assert_uint_eq(bed_stats(&b).removed_total, 11);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

struct dump {
	unsigned n_lines;
	size_t n_chars;
};

static void count_line(void *ctx, const char *text)
{
	struct dump *d = ctx;

	d->n_lines++;
	d->n_chars += strlen(text);
}

START_TEST(dump_shows_each_edge)
{
	struct dump d = { 0 }, few = { 0 };

	bed_store(&b, "abcdef");
	bed_store(&b, "abXY");
	bed_store(&b, "Q");
	radix_dump(b.ix, RADIX_NONE, 100, count_line, &d);
	ck_assert_uint_ge(d.n_lines, 4); /* ab, cdef, XY, Q */
	ck_assert_uint_gt(d.n_chars, d.n_lines);
	radix_dump(b.ix, b.root, 2, count_line, &few);
	ck_assert_uint_ge(few.n_lines, 1);
	ck_assert_uint_le(few.n_lines, 3); /* a last line may say that there is more */
}
END_TEST

/* An edge remembers 32,768 recencies; behind them blocks share one, and more may come. */
START_TEST(an_edge_outgrows_its_recencies)
{
	enum {
		BLOCKS = 40000
	};
	struct radix_geometry g = radix_geometry_of(16);
	struct radix_node n;
	struct radix_slab slab;
	struct test_heap heap;
	uint64_t key[2] = { 0 };

	test_heap_init(&heap);
	radix_slab_init(&slab, &heap.alloc);
	radix_edge_init(&n, 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		key[0] = i;
		ck_assert_int_eq(radix_edge_append(&slab, &n, g, key, i, i + 1), 0);
	}
	ck_assert_uint_eq(n.n_blocks, BLOCKS);
	ck_assert_uint_eq(radix_edge_tick_at(&slab, &n, 0), 1);
	ck_assert_uint_eq(radix_edge_tick_at(&slab, &n, BLOCKS - 1), BLOCKS);
	radix_edge_clear(&slab, &n, g);
	radix_slab_deinit(&slab);
	ck_assert_uint_eq(heap.live_blocks, 0);
}
END_TEST

static void add_case(Suite *s, const char *name, void (*setup)(void))
{
	TCase *tc = tcase_create(name);

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, empty_index_matches_nothing);
	tcase_add_test(tc, prefixes_match_in_any_length);
	tcase_add_test(tc, match_says_where_it_diverged);
	tcase_add_test(tc, match_goes_on_from_any_place);
	tcase_add_test(tc, keys_need_no_alignment);
	tcase_add_loop_test(tc, split_at_each_position, 1, 8);
	tcase_add_test(tc, append_makes_no_node);
	tcase_add_loop_test(tc, eviction_of_a_sibling_merges, 1, 8);
	tcase_add_loop_test(tc, trim_to_each_length, 1, 13);
	tcase_add_loop_test(tc, pin_in_mid_edge_protects_up_to_it, 1, 9);
	tcase_add_test(tc, pin_protects_all_ancestors_and_no_sibling);
	tcase_add_loop_test(tc, pins_survive_a_split, 1, 8);
	tcase_add_test(tc, pins_survive_a_merge);
	tcase_add_test(tc, pin_moves_down_and_up);
	tcase_add_test(tc, coldest_leaf_goes_first);
	tcase_add_test(tc, recency_is_exact_per_block);
	tcase_add_test(tc, recency_survives_splits);
	tcase_add_test(tc, match_and_pin_write_no_recency);
	tcase_add_test(tc, flush_leaves_other_roots_and_pinned_paths);
	tcase_add_test(tc, dump_shows_each_edge);
	tcase_add_test(tc, an_edge_outgrows_its_recencies);
	suite_add_tcase(s, tc);
}

int main(void)
{
	Suite *s = suite_create("index");

	add_case(s, "short keys", setup_short);
	add_case(s, "long keys", setup_long);
	add_case(s, "longer keys", setup_longer);
	return test_run(s);
}
