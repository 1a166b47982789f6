/*
 * test_windows.c - roots with a window, call by call: which blocks become hollow and which stay,
 * what a match can use then, and what a commit, a pin, a tier and a want of memory make of it.
 */
#include "radix/internal.h"
#include "tests/lib/run.h"
#include "tests/radix/bed.h"

enum {
	W = 4
};

static struct bed b;

static void begin(uint32_t n_slots, uint32_t spare)
{
	bed_init_tiers(&b, RADIX_KEYS_TOKENS, n_slots, 0, false, spare);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
}

static struct radix_window_stats stats(void)
{
	struct radix_window_stats s;

	radix_window_stats(b.ix, &s);
	return s;
}

/* A match for a session that reads through the window, or one that reads everything. */
static struct radix_match match(const char *path, bool whole)
{
	struct radix_place from = radix_place_root(b.root);
	struct radix_match m;

	radix_match_window(b.ix, &from, bed_keys(&b, path), (uint32_t)strlen(path), whole, NULL,
			   &m);
	return m;
}

static uint32_t usable(const char *path)
{
	return match(path, false).n_device;
}

/* One letter a block of the path: '.' hollow, 'd' a slot, '-' no member. */
static const char *picture(const char *path)
{
	static char text[BED_MAX_PATH + 1];
	size_t n = strlen(path);

	for (size_t i = 0; i < n; i++) {
		struct radix_place from = radix_place_root(b.root);
		struct radix_match m;

		radix_match(b.ix, &from, bed_keys(&b, path), (uint32_t)i + 1, NULL, &m);
		text[i] = m.n_blocks <= i                    ? '-'
			  : radix_place_hollow(b.ix, &m.end) ? '.'
			  : m.n_device <= i                  ? 'l'
							     : 'd';
	}
	text[n] = 0;
	return text;
}

/* Reserves so many for nobody, and gives them back. */
static void press(uint32_t n)
{
	struct bed_slots s = bed_reserve(&b, 99, n);

	ck_assert_uint_eq(s.n, n);
	bed_verify(&b);
	for (uint32_t i = 0; i < s.n; i++)
		ck_assert_int_eq(radix_slot_discard(b.ix, 99, s.v[i], false), 0);
}

START_TEST(those_outside_go_first)
{
	begin(12, 30);
	bed_store(&b, "abcdefgh");
	press(4);
	ck_assert_str_eq(picture("abcdefgh"), "dddddddd");
	press(6); /* two are missing: the first two of eight, of which four are in the window */
	ck_assert_str_eq(picture("abcdefgh"), "..dddddd");
	press(8);
	ck_assert_str_eq(picture("abcdefgh"), "....dddd");
	ck_assert_uint_eq(usable("abcdefgh"), 8);
	ck_assert_uint_eq(bed_stats(&b).removed_total, 0);
	ck_assert_uint_eq(stats().n_hollow, 4);
	ck_assert_uint_eq(stats().hollowed_total, 4);
	ck_assert_uint_eq(bed_stats(&b).tier[0], 4);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 8);
	press(9); /* now the end of the path is all there is */
	ck_assert_str_eq(picture("abcdefgh"), "....ddd-");
	ck_assert_uint_eq(usable("abcdefgh"), 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_hollow_end_goes_with_what_was_behind_it)
{
	begin(12, 30);
	bed_store(&b, "abcdefgh");
	press(8);
	press(12);
	ck_assert_str_eq(picture("abcdefgh"), "--------");
	ck_assert_uint_eq(stats().n_hollow, 0);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_CAPACITY], 8);
	bed_deinit(&b);
}
END_TEST

START_TEST(oldest_edge_first)
{
	begin(16, 30);
	bed_store(&b, "abcdefgh");
	bed_store(&b, "ABCDEFGH");
	bed_touch(&b, "abcdefgh");
	press(2);
	ck_assert_str_eq(picture("ABCDEFGH"), "..dddddd");
	ck_assert_str_eq(picture("abcdefgh"), "dddddddd");
	press(6);
	ck_assert_str_eq(picture("ABCDEFGH"), "....dddd");
	ck_assert_str_eq(picture("abcdefgh"), "..dddddd");
	bed_deinit(&b);
}
END_TEST

/* Who branches at a place matches there: its window stays, however long the paths below are. */
START_TEST(a_branch_keeps_its_window)
{
	begin(20, 30);
	bed_store(&b, "abcdefghij");
	bed_store(&b, "abcdefgXYZUV");
	press(5 + 4);
	ck_assert_str_eq(picture("abcdefghij"), "...ddddddd");
	ck_assert_str_eq(picture("abcdefgXYZUV"), "...dddd.dddd");
	ck_assert_uint_eq(usable("abcdefgQ"), 7);
	ck_assert_uint_eq(usable("abcdefQ"), 0); /* inside an edge: d to f are not enough */
	ck_assert_uint_eq(usable("abcdefghij"), 10);
	ck_assert_uint_eq(usable("abcdefgXYZUV"), 12);
	ck_assert_uint_eq(usable("abcdefgXY"), 7); /* X, Y are not enough for more */
	bed_deinit(&b);
}
END_TEST

/* ---- matching -------------------------------------------------------------------------------- */

START_TEST(a_match_is_the_longest_that_has_its_window)
{
	begin(24, 40);
	bed_store(&b, "abcdefghijkl");
	press(24 - 12 + 8);
	ck_assert_str_eq(picture("abcdefghijkl"), "........dddd");
	ck_assert_uint_eq(usable("abcdefghijkl"), 12);
	ck_assert_uint_eq(usable("abcdefghijk"), 0);
	ck_assert_uint_eq(match("abcdefghijkl", true).n_device, 0);
	/* some are computed anew: the beginning can be used alone */
	for (uint32_t n = 1; n <= 5; n++) {
		struct radix_pin pin = { .window = true };
		struct radix_place at = n == 1 ? radix_place_root(b.root)
					       : bed_place(&b, n == 2   ? "a"
							       : n == 3 ? "ab"
							       : n == 4 ? "abc"
									: "abcd");
		struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
		enum radix_commit_result result;
		uint32_t slot;

		radix_pin_take(b.ix, &pin, &at);
		ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], "abcde"[n - 1], &slot, &result), 0);
		ck_assert_int_eq(result, RADIX_COMMIT_ATTACHED);
		ck_assert_uint_eq(slot, s.v[0]);
		radix_pin_drop(b.ix, &pin);
		bed_verify(&b);
		ck_assert_uint_eq(usable("abcdefghijk"), n);
		ck_assert_uint_eq(match("abcdefghijkl", true).n_device, n);
		ck_assert_uint_eq(usable("abcdefghijkl"), 12);
	}
	ck_assert_uint_eq(stats().refilled_total, 5);
	ck_assert_uint_eq(bed_stats(&b).attached_total, 5);
	ck_assert(!match("abcdefghijk", false).diverged);
	ck_assert(match("abcdefghijklm", false).diverged == false);
	ck_assert(match("Xbc", false).diverged);
	bed_deinit(&b);
}
END_TEST

static void runs_are(const char *path, bool whole, uint32_t cap, uint32_t hidden, uint32_t shown)
{
	struct radix_place from = radix_place_root(b.root), at;
	struct radix_run v[BED_MAX_PATH];
	struct radix_runs runs = { .v = v, .cap = cap };
	struct radix_match m;
	uint32_t i = 0, n = 0;

	radix_match_window(b.ix, &from, bed_keys(&b, path), (uint32_t)strlen(path), whole, &runs,
			   &m);
	ck_assert(!runs.full);
	ck_assert_uint_eq(m.n_device, hidden + shown);
	if (hidden) {
		ck_assert_uint_eq(v[0].start, RADIX_NONE);
		ck_assert_uint_eq(v[0].len, hidden);
		i = 1;
	}
	for (; i < runs.n; i++) {
		for (uint32_t k = 0; k < v[i].len; k++, n++) {
			char one[BED_MAX_PATH + 1];

			memcpy(one, path, strlen(path) + 1);
			one[hidden + n + 1] = 0;
			at = bed_place(&b, one);
			ck_assert_uint_eq(radix_device_slot(b.ix, at.node, at.idx - 1),
					  v[i].start + k);
		}
	}
	ck_assert_uint_eq(n, shown);
}

START_TEST(runs_name_the_slots_of_the_window)
{
	begin(24, 40);
	bed_store(&b, "abc");
	runs_are("abc", false, BED_MAX_PATH, 0, 3);
	bed_store(&b, "abcdefgh");
	runs_are("abcd", false, BED_MAX_PATH, 0, 4);
	/* whether those before it have slots or not: they may go while the answer is on its way */
	runs_are("abcdefgh", false, BED_MAX_PATH, 4, 4);
	runs_are("abcdefgh", true, BED_MAX_PATH, 0, 8);
	bed_store(&b, "abcdefghijXY");
	runs_are("abcdefghijXY", false, W + 1, 8, 4);
	press(24);
	bed_deinit(&b);
}
END_TEST

/* The slot behind those that are hidden has the number that a run of none would go on with. */
START_TEST(hidden_blocks_are_a_run_of_their_own)
{
	begin(8, 20);
	bed_store(&b, "ABCDEFG");
	ck_assert_uint_eq(radix_evict(b.ix, 7, RADIX_REMOVE_EVICT), 7);
	bed_store(&b, "abcdefgh");
	ck_assert_uint_eq(radix_device_slot(b.ix, bed_place(&b, "a").node, 4), 3);
	runs_are("abcdefgh", false, BED_MAX_PATH, 4, 4);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_match_goes_on_from_a_place)
{
	struct radix_place from;
	struct radix_match m;

	begin(20, 40);
	bed_store(&b, "abcdefghijkl");
	press(20 - 12 + 8);
	ck_assert_str_eq(picture("abcdefghijkl"), "........dddd");
	from = bed_place(&b, "abcdefghij");
	radix_match_window(b.ix, &from, bed_keys(&b, "kl"), 2, false, NULL, &m);
	ck_assert_uint_eq(m.n_device, 2);
	ck_assert_uint_eq(m.device_end.depth, 12);
	radix_match_window(b.ix, &from, bed_keys(&b, "k"), 1, false, NULL, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.device_end.depth, 10);
	ck_assert_uint_eq(m.n_blocks, 0);
	bed_deinit(&b);
}
END_TEST

/* ---- pins ------------------------------------------------------------------------------------ */

START_TEST(a_prompt_may_be_longer_than_the_pool)
{
	struct radix_place at;
	struct radix_pin pin = { .window = true };
	char path[BED_MAX_PATH + 1] = "";

	begin(8, 60);
	at = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &at);
	for (uint32_t n = 0; n < 40; n++) {
		struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
		enum radix_commit_result result;
		uint32_t slot;

		ck_assert_uint_eq(s.n, 1);
		path[n] = (char)('A' + n);
		ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], path[n], &slot, &result), 0);
		bed_verify(&b);
		if (n >= W - 1) /* those that it needs are there all the time */
			ck_assert_uint_eq(usable(path), n + 1);
	}
	ck_assert_uint_eq(stats().n_hollow, 40 - 8);
	radix_touch(b.ix, &pin.at, ++b.tick);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(usable(path), 40);
	ck_assert_uint_eq(bed_stats(&b).removed_total, 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_pin_keeps_its_window_or_everything)
{
	struct radix_place at;
	struct radix_pin pin = { .window = true }, whole = { 0 };

	begin(20, 40);
	bed_store(&b, "abcdefghijkl");
	at = bed_place(&b, "abcdefg");
	radix_pin_take(b.ix, &pin, &at);
	press(20 - 12 + 3);
	ck_assert_str_eq(picture("abcdefghijkl"), "...ddddddddd");
	bed_verify(&b);
	press(20 - 12 + 4); /* h lies behind the pin */
	ck_assert_str_eq(picture("abcdefghijkl"), "...dddd.dddd");
	radix_pin_drop(b.ix, &pin);
	bed_verify(&b);
	at = bed_place(&b, "abcdef");
	radix_pin_take(b.ix, &whole, &at);
	press(20 - 12 + 5);
	ck_assert_str_eq(picture("abcdefghijkl"), "...ddd..dddd");
	bed_verify(&b);
	radix_pin_drop(b.ix, &whole);
	press(20 - 12 + 8);
	ck_assert_str_eq(picture("abcdefghijkl"), "........dddd");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_whole_pin_keeps_the_edges_above_it)
{
	struct radix_place at;
	struct radix_pin whole = { 0 };

	begin(20, 40);
	bed_store(&b, "abcdefghij");
	bed_store(&b, "abcdefgXY");
	at = bed_place(&b, "abcdefgX");
	radix_pin_take(b.ix, &whole, &at);
	bed_verify(&b);
	press(20 - 12 + 1); /* Y, the end of the path that was used last, but nothing else can go */
	ck_assert_str_eq(picture("abcdefg"), "ddddddd");
	radix_pin_drop(b.ix, &whole);
	bed_verify(&b);
	press(20 - 12 + 4);
	ck_assert_str_eq(picture("abcdefg"), "...dddd");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_window_that_comes_later)
{
	struct radix_place at;
	struct radix_pin pin = { .window = true };

	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 16, 0, false, 30);
	bed_store(&b, "abcdefghij");
	bed_store(&b, "abcdefgXYZ");
	at = bed_place(&b, "abcdefgh");
	radix_pin_take(b.ix, &pin, &at);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	bed_verify(&b);
	ck_assert(!pin.window); /* whoever took it did not know of windows */
	press(16 - 13 + 3);
	ck_assert_str_eq(picture("abcdefgh"), "dddddddd");
	radix_pin_drop(b.ix, &pin);
	press(16 - 10 + 3);
	ck_assert_str_eq(picture("abcdefg"), "...dddd");
	bed_deinit(&b);
}
END_TEST

/* ---- the block table ------------------------------------------------------------------------- */

START_TEST(hollow_blocks_have_a_budget)
{
	begin(12, 3);
	bed_store(&b, "abcdefgh");
	press(4 + 4); /* three may be hollow; for the fourth slot the end of the path goes */
	ck_assert_str_eq(picture("abcdefgh"), "...dddd-");
	ck_assert_uint_eq(stats().max_hollow, 3);
	press(12);
	ck_assert_uint_eq(stats().n_hollow, 0);
	for (uint32_t i = 0; i < 20; i++) { /* an entry is left for each slot */
		char path[] = "Abcdefghij";

		path[0] = (char)('A' + i);
		bed_store(&b, path);
	}
	bed_deinit(&b);
}
END_TEST

START_TEST(no_memory_changes_nothing)
{
	for (uint64_t at = 1; at < 200; at++) {
		struct radix_root_config config = {
			.mode = RADIX_KEYS_TOKENS,
			.key_len = 16,
			.block_tokens = 4,
			.token_bytes = 16,
			.ns = 9,
			.window = 2,
		};
		uint64_t before;
		uint32_t root;
		int r;

		bed_init_tiers(&b, RADIX_KEYS_TOKENS, 16, at % 2 ? 4 : 0, false, 30);
		bed_store(&b, "abcdefghij");
		bed_store(&b, "abcdXY");
		before = b.heap.live_bytes;
		test_heap_fail_at(&b.heap, (at + 1) / 2);
		r = at % 4 < 2 ? radix_root_window(b.ix, b.root, W)
			       : radix_root_new(b.ix, &config, &root);
		test_heap_fail_at(&b.heap, 0);
		if (r < 0)
			ck_assert_uint_eq(b.heap.live_bytes, before);
		ck_assert(r == 0 || r == -ENOMEM);
		ck_assert(r < 0 || b.heap.n_failed == 0);
		bed_verify(&b);
		press(4);
		bed_deinit(&b);
		if (r == 0 && at > 12)
			return;
	}
	ck_abort_msg("it fails for ever");
}
END_TEST

/* More edges than one page holds, made before and after there are windows. */
START_TEST(many_edges)
{
	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 4000, 0, false, 4000);
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 30 * 20; i++) {
			char path[] = "??abcdef";

			path[0] = (char)(32 + i / 30 + 40 * round);
			path[1] = (char)(32 + i % 30);
			bed_store(&b, path);
		}
		if (!round)
			ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	}
	bed_verify(&b);
	bed_deinit(&b);
}
END_TEST

/* ---- islands and tiers ----------------------------------------------------------------------- */

START_TEST(an_island_has_windows_too)
{
	struct radix_place at;
	struct radix_match m;
	uint8_t key[BED_MAX_KEY], parent[BED_MAX_KEY];
	bool rooted;

	bed_init_tiers(&b, RADIX_KEYS_DIGEST, 20, 0, false, 30);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	bed_store(&b, "ABCDEF");
	bed_store_island(&b, "abcdefgh");
	press(20 - 14 + 6);
	bed_key(&b, 'a', key);
	ck_assert_int_eq(radix_find_digest(b.ix, b.root, key, &at, &rooted), 0);
	radix_match_window(b.ix, &at, bed_keys(&b, "abcdefgh"), 8, false, NULL, &m);
	ck_assert_uint_eq(m.n_device, 8);
	radix_match_window(b.ix, &at, bed_keys(&b, "abcdefg"), 7, false, NULL, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.end.node, at.node);
	ck_assert_uint_eq(m.end.idx, 0);
	bed_key(&b, 'F', parent);
	ck_assert_int_eq(radix_graft(b.ix, b.root, parent, key), 0);
	bed_verify(&b);
	ck_assert_uint_eq(usable("ABCDEFabcdefgh"), 14);
	ck_assert_uint_eq(usable("ABCDEF"), 6);
	bed_deinit(&b);
}
END_TEST

START_TEST(hollow_blocks_stay_above_lower_ones)
{
	struct radix_move v[16];
	struct radix_room room;
	struct radix_match m;

	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 12, 12, false, 30);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	bed_store(&b, "abcdefghij");
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 6, 0, v, 16, &room);
	ck_assert_uint_eq(room.freed, 6); /* nothing is copied for those */
	ck_assert_uint_eq(room.started, 0);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 3, 0, v, 16, &room);
	ck_assert_uint_eq(room.started, 3);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &v[i], true, NULL, NULL), 0);
	bed_verify(&b);
	ck_assert_str_eq(picture("abcdefghij"), "......dlll");
	/* with the device alone nothing can be used, with the host all of it */
	m = match("abcdefghij", false);
	ck_assert_uint_eq(m.n_blocks, 10);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.n_host, 10);
	m = match("abcdefghi", false);
	ck_assert_uint_eq(m.n_blocks, 0);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 1, 0, v, 16, &room);
	ck_assert_uint_eq(room.started, 1);
	ck_assert_int_eq(radix_move_end(b.ix, &v[0], true, NULL, NULL), 0);
	ck_assert_str_eq(picture("abcdefghij"), "......llll");
	bed_verify(&b);
	for (uint32_t i = 6; i < 10; i++) {
		char path[] = "abcdefghij";
		struct radix_member name;
		struct radix_place at;
		struct radix_move up;

		path[i + 1] = 0;
		at = bed_place(&b, path);
		ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &name), 1);
		ck_assert_int_eq(radix_promote_begin(b.ix, name, &up), 0);
		ck_assert_int_eq(radix_move_end(b.ix, &up, true, NULL, NULL), 0);
	}
	ck_assert_uint_eq(usable("abcdefghij"), 10);
	bed_deinit(&b);
}
END_TEST

/* A copy that a move reads: its slot is free when the move has ended. */
START_TEST(a_move_from_a_block_that_becomes_hollow)
{
	struct radix_member name;
	struct radix_place at;
	struct radix_move move;
	struct radix_room room;
	uint32_t freed;

	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 12, 12, false, 30);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	bed_store(&b, "abcdefgh");
	at = bed_place(&b, "a");
	ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &name), 1);
	ck_assert_int_eq(radix_copy_begin(b.ix, name, RADIX_TIER_HOST, &move), 0);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 3, 0, NULL, 0, &room);
	ck_assert_uint_eq(room.freed, 3);
	ck_assert_str_eq(picture("abcdefgh"), "....dddd");
	ck_assert_int_eq(radix_slot_state(b.ix, move.src), RADIX_SLOT_QUARANTINED);
	ck_assert_int_eq(radix_copy_begin(b.ix, name, RADIX_TIER_HOST, &move), RADIX_E_STATE);
	ck_assert_int_eq(radix_move_end(b.ix, &move, true, NULL, &freed), 0);
	ck_assert_uint_eq(freed, 1);
	ck_assert_int_eq(radix_slot_state(b.ix, move.src), RADIX_SLOT_FREE);
	ck_assert_uint_eq(bed_stats(&b).host[RADIX_SLOT_FREE], 12);
	bed_deinit(&b);
}
END_TEST

static void two_that_end_in_the_host(void)
{
	struct radix_move v[32];
	struct radix_room room;

	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 22, 12, false, 30);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	bed_store(&b, "abcdefghijklmn");
	bed_store(&b, "abcdefGHIJKLMN");
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 18, 0, v, 32, &room);
	ck_assert_uint_eq(room.freed, 10);
	ck_assert_uint_eq(room.started, 8);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &v[i], true, NULL, NULL), 0);
	ck_assert_str_eq(picture("abcdefghijklmn"), "..dddd....llll");
	ck_assert_str_eq(picture("abcdefGHIJKLMN"), "..dddd....llll");
	bed_verify(&b);
}

/*
 * What lies in the host behind hollow blocks keeps the device copies above them where they are.
 * When nothing else can go, it goes.
 */
START_TEST(lower_blocks_do_not_hold_the_device)
{
	struct radix_move v[32];
	struct radix_room room;
	struct radix_match m;
	struct radix_pin pin;

	two_that_end_in_the_host();
	bed_pin(&b, &pin, "abcdefgh");
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 1, 0, v, 32, &room);
	ck_assert(room.dry); /* one is held, and the other alone would not help */
	ck_assert_uint_eq(bed_match(&b, "abcdefGHIJKLMN"), 6);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijklmn"), 14);
	bed_verify(&b);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 1, 0, v, 32, &room);
	ck_assert(room.dry);
	radix_pin_drop(b.ix, &pin); /* nobody branches there any more, so they are in no window */
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 4, 0, v, 32, &room);
	ck_assert(!room.dry);
	ck_assert_uint_eq(room.freed, 4);
	ck_assert_str_eq(picture("abcdefghijklmn"), "..........llll");
	m = match("abcdefghijklmn", false);
	ck_assert_uint_eq(m.n_blocks, 14);
	ck_assert_uint_eq(m.n_host, 14);
	bed_deinit(&b);
}
END_TEST

/* Evicting goes on with what hollow blocks kept in its place until then. */
START_TEST(all_can_be_evicted)
{
	two_that_end_in_the_host();
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 6 + 8 + 8);
	ck_assert_uint_eq(radix_evict(b.ix, UINT32_MAX, RADIX_REMOVE_EVICT), 6 + 8 + 8);
	bed_verify(&b);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 0);
	ck_assert_uint_eq(bed_stats(&b).slots[RADIX_SLOT_FREE], 22);
	ck_assert_uint_eq(stats().n_hollow, 0);
	bed_deinit(&b);
}
END_TEST

/* ---- the device is lost ---------------------------------------------------------------------- */

static void lost(uint64_t gone)
{
	ck_assert_uint_eq(radix_device_lost(b.ix), gone);
	bed_verify(&b);
	ck_assert_uint_eq(bed_stats(&b).slots[RADIX_SLOT_FREE], b.n_slots);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_DEVICE], gone);
	ck_assert_uint_eq(bed_stats(&b).removed_total, gone);
}

START_TEST(lost_with_hollow_blocks_in_the_way)
{
	struct radix_match m;

	two_that_end_in_the_host();
	lost(8); /* the older one makes way, and then nobody parts from the other any more */
	ck_assert_str_eq(picture("abcdefGHIJKLMN"), "..........llll");
	ck_assert_str_eq(picture("abcdefghijklmn"), "......--------");
	m = match("abcdefGHIJKLMN", false);
	ck_assert_uint_eq(m.n_host, 14);
	bed_deinit(&b);
}
END_TEST

/* As "...dddd.dddd", with a copy of each that is not hollow in the host. */
static void copies_around_a_hollow_one(uint32_t spare)
{
	char path[] = "abcdefghijkl";
	struct radix_pin pin = { .window = true };
	struct radix_place at;

	bed_init_tiers(&b, RADIX_KEYS_TOKENS, 12, 12, false, spare);
	ck_assert_int_eq(radix_root_window(b.ix, b.root, W), 0);
	bed_store(&b, path);
	at = bed_place(&b, "abcdefg");
	radix_pin_take(b.ix, &pin, &at);
	ck_assert_uint_eq(radix_win_free(b.ix, 12), 4);
	radix_pin_drop(b.ix, &pin);
	ck_assert_str_eq(picture(path), "...dddd.dddd");
	for (uint32_t n = 12; n > 3; n--) {
		struct radix_member name;
		struct radix_move move;

		path[n] = 0;
		at = bed_place(&b, path);
		ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &name), 1);
		if (n == 8) {
			ck_assert_int_eq(radix_copy_begin(b.ix, name, RADIX_TIER_HOST, &move),
					 RADIX_E_STATE);
			continue;
		}
		ck_assert_int_eq(radix_copy_begin(b.ix, name, RADIX_TIER_HOST, &move), 0);
		ck_assert_int_eq(radix_move_end(b.ix, &move, true, NULL, NULL), 0);
	}
	bed_verify(&b);
}

START_TEST(lost_around_a_hollow_one)
{
	copies_around_a_hollow_one(30);
	lost(0); /* those before it are outside of all windows, too */
	ck_assert_str_eq(picture("abcdefghijkl"), "........llll");
	ck_assert_uint_eq(match("abcdefghijkl", false).n_host, 12);
	bed_deinit(&b);
	copies_around_a_hollow_one(4);
	lost(5); /* no more blocks may be hollow: it goes, and what is behind it */
	ck_assert_str_eq(picture("abcdefghijkl"), "...llll-----");
	ck_assert_uint_eq(match("abcdefghijkl", false).n_host, 7);
	bed_deinit(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("windows");
	TCase *tc = tcase_create("windows");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, those_outside_go_first);
	tcase_add_test(tc, a_hollow_end_goes_with_what_was_behind_it);
	tcase_add_test(tc, oldest_edge_first);
	tcase_add_test(tc, a_branch_keeps_its_window);
	tcase_add_test(tc, a_match_is_the_longest_that_has_its_window);
	tcase_add_test(tc, runs_name_the_slots_of_the_window);
	tcase_add_test(tc, hidden_blocks_are_a_run_of_their_own);
	tcase_add_test(tc, a_match_goes_on_from_a_place);
	tcase_add_test(tc, a_prompt_may_be_longer_than_the_pool);
	tcase_add_test(tc, a_pin_keeps_its_window_or_everything);
	tcase_add_test(tc, a_whole_pin_keeps_the_edges_above_it);
	tcase_add_test(tc, a_window_that_comes_later);
	tcase_add_test(tc, hollow_blocks_have_a_budget);
	tcase_add_test(tc, no_memory_changes_nothing);
	tcase_add_test(tc, many_edges);
	tcase_add_test(tc, an_island_has_windows_too);
	tcase_add_test(tc, hollow_blocks_stay_above_lower_ones);
	tcase_add_test(tc, a_move_from_a_block_that_becomes_hollow);
	tcase_add_test(tc, lower_blocks_do_not_hold_the_device);
	tcase_add_test(tc, all_can_be_evicted);
	tcase_add_test(tc, lost_with_hollow_blocks_in_the_way);
	tcase_add_test(tc, lost_around_a_hollow_one);
	suite_add_tcase(s, tc);
	return test_run(s);
}
