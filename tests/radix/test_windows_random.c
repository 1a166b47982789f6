/*
 * test_windows_random.c - random sessions in roots with and without a window, beside what the
 * definitions say.
 *
 * After each call the invariants hold, and the block table alone, read as a list of blocks with
 * their parents, is asked: was each block that has become hollow outside of all windows, and kept
 * by nobody?  Is what a match can use of a random path what trying every length would find?  No
 * edges, no queues, no counts: nothing is shared with radix/ but the table.
 *
 * Seeds are fixed; one more run per shape takes a fresh seed, which is printed when a test fails.
 * PREFIXD_SEED=N repeats it.
 */
#include "tests/lib/heap.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/lives.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
	MAX_ENTRIES = 96,
	STEPS = 30000,
	STEPS_FRESH = 10000,
};

static const struct lives_shape shapes[] = {
	{ RADIX_KEYS_TOKENS, 14, 0, 40, false, 0, false, 2 },
	{ RADIX_KEYS_DIGEST, 14, 0, 40, false, 0, false, 2 },
	{ RADIX_KEYS_TOKENS, 16, 0, 5, false, 0, false, 3 },
	{ RADIX_KEYS_TOKENS, 10, 8, 40, true, 8, false, 2 },
	{ RADIX_KEYS_DIGEST, 9, 8, 24, true, 8, false, 3 },
	{ RADIX_KEYS_TOKENS, 10, 10, 30, false, 0, false, 1 },
	{ RADIX_KEYS_DIGEST, 9, 0, 30, true, 0, false, 2 },
	{ RADIX_KEYS_TOKENS, 9, 8, 30, true, 8, true, 2 },
};

static uint64_t fresh_seed;

/* What the table says, block by block. */
struct list {
	struct {
		bool member, hollow, loose;
		uint32_t parent, root;
		uint64_t generation;
	} v[MAX_ENTRIES];
	uint32_t n;
};

static struct {
	struct list before;
	uint64_t seed, rng;
	uint64_t n_hollowed, n_matches, n_cut; /* the test sees something */
} w;

#define MAY(l, cond, number)                                                                       \
	do {                                                                                       \
		if (!(cond))                                                                       \
			ck_abort_msg("seed %llu, call %llu, number %u, line %d: %s",               \
				     (unsigned long long)w.seed, (unsigned long long)(l)->n_calls, \
				     (unsigned)(number), __LINE__, #cond);                         \
	} while (0)

/* Blocks between it and `below`, which hangs there; -1: it does not. */
static int distance(const struct list *t, uint32_t block, uint32_t below)
{
	int d = 0;

	for (; below != RADIX_NONE; below = t->v[below].parent, d++)
		if (below == block)
			return d;
	return -1;
}

static bool is_end(const struct list *t, uint32_t block)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->n; i++)
		n += t->v[i].member && t->v[i].parent == block;
	return n != 1;
}

/* The block at which a lease's pin stands; RADIX_NONE. */
static uint32_t pinned(const struct lives *l, const struct lives_lease *s)
{
	struct radix_member m;

	if (!s->pin.link.next || radix_path_members(l->ix, &s->pin.at, 1, &m) == 0)
		return RADIX_NONE;
	return m.entry;
}

static bool is_loose(const struct lives *l, const struct list *t, uint32_t block)
{
	int window = (int)l->ix->roots[t->v[block].root].config.window, d;

	if (!window)
		return false;
	for (uint32_t i = 0; i < t->n; i++) {
		if (!t->v[i].member || !is_end(t, i))
			continue;
		d = distance(t, block, i);
		if (d >= 0 && d < window)
			return false;
	}
	for (uint32_t i = 0; i < LIVES_LEASES; i++) {
		uint32_t at = pinned(l, &l->leases[i]);

		d = at == RADIX_NONE ? -1 : distance(t, block, at);
		if (d >= 0 && (!l->leases[i].pin.window || d < window))
			return false;
	}
	return true;
}

static void list_make(const struct lives *l, struct list *t)
{
	const struct radix_table *table = &l->ix->table;

	*t = (struct list){ .n = table->n_used };
	ck_assert_uint_le(t->n, MAX_ENTRIES);
	for (uint32_t i = 0; i < t->n; i++) {
		const struct radix_entry *e = &table->v[i];

		t->v[i].member = e->state == RADIX_ENTRY_READY;
		t->v[i].parent = t->v[i].member ? radix_entry_parent(e) : RADIX_NONE;
		t->v[i].hollow = t->v[i].member && radix_entry_slot(e) == RADIX_HOLLOW;
		t->v[i].root = e->root;
		t->v[i].generation = e->generation;
	}
	for (uint32_t i = 0; i < t->n; i++)
		t->v[i].loose = t->v[i].member && is_loose(l, t, i);
}

/* A call may take away leaves first: what it makes hollow may be outside of windows only then. */
static void check_hollowed(const struct lives *l, const struct list *now)
{
	for (uint32_t i = 0; i < now->n; i++) {
		if (!now->v[i].hollow)
			continue;
		if (i < w.before.n && w.before.v[i].hollow &&
		    w.before.v[i].generation == now->v[i].generation)
			continue;
		w.n_hollowed++;
		MAY(l, (i < w.before.n && w.before.v[i].loose) || now->v[i].loose, i);
	}
}

/* ---- matching -------------------------------------------------------------------------------- */

static uint32_t child_of(const struct lives *l, uint32_t root, uint32_t parent, const void *key)
{
	const struct radix_table *t = &l->ix->table;

	for (uint32_t i = 0; i < t->n_used; i++) {
		const struct radix_entry *e = &t->v[i];

		if (e->state == RADIX_ENTRY_READY && e->root == root &&
		    e->parent == radix_table_parent(t, i, parent, false) &&
		    memcmp(radix_table_key(t, i), key, LIVES_KEY_LEN) == 0)
			return i;
	}
	return RADIX_NONE;
}

/* Of `n` blocks of which hollow[i] are: the longest length <= most that can be used. */
static uint32_t longest(const bool *hollow, uint32_t most, uint32_t window, bool whole)
{
	for (uint32_t p = most; p; p--) {
		uint32_t k = whole ? p : radix_min_u32(p, window), i = p - k;

		while (i < p && !hollow[i])
			i++;
		if (i == p)
			return p;
	}
	return 0;
}

static void check_runs(const struct lives *l, const struct radix_runs *runs, uint32_t skip,
		       const uint32_t *path, uint32_t n)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < runs->n; i++) {
		for (uint32_t k = 0; k < runs->v[i].len; k++, at++) {
			MAY(l, at < n, at);
			if (at < skip)
				MAY(l, runs->v[i].start == RADIX_NONE && i == 0, at);
			else
				MAY(l,
				    runs->v[i].start + k ==
					    radix_entry_slot(&l->ix->table.v[path[at]]),
				    at);
		}
	}
	MAY(l, at == n, at);
}

static void check_match(const struct lives *l)
{
	uint32_t path[LIVES_KEYS], entries[LIVES_KEYS], n = 0, n_path = 0, device = 0, host = 0, p;
	uint8_t keys[LIVES_KEYS][LIVES_KEY_LEN];
	uint32_t root = l->root[test_rng_below(&w.rng, 4) == 0], parent = RADIX_NONE;
	uint32_t window = l->ix->roots[root].config.window;
	struct radix_place from = radix_place_root(root);
	bool hollow[LIVES_KEYS] = { 0 }, whole = test_rng_below(&w.rng, 3) == 0;
	struct radix_run v[LIVES_KEYS];
	struct radix_runs runs = { .v = v, .cap = LIVES_KEYS };
	struct radix_match m;

	for (uint32_t k = test_rng_below(&w.rng, LIVES_KEYS); k != LIVES_KEYS; k = l->parent[k])
		path[n++] = k;
	for (uint32_t i = 0; i < n; i++)
		lives_key(path[n - 1 - i], keys[i]);
	for (; n_path < n; n_path++) {
		const struct radix_entry *e;

		parent = child_of(l, root, parent, keys[n_path]);
		if (parent == RADIX_NONE)
			break;
		e = &l->ix->table.v[parent];
		entries[n_path] = parent;
		hollow[n_path] = radix_entry_slot(e) == RADIX_HOLLOW;
		device += device == n_path && radix_tier_of(e) == RADIX_TIER_DEVICE;
		host += host == n_path && radix_tier_of(e) != RADIX_TIER_REDIS;
	}
	w.n_matches++;
	radix_match_window(l->ix, &from, keys, n, whole, &runs, &m);
	p = window ? longest(hollow, n_path, window, whole) : n_path;
	device = radix_min_u32(device, p);
	w.n_cut += p < n_path;
	MAY(l, m.n_blocks == p, p);
	p = window ? longest(hollow, device, window, whole) : device;
	MAY(l, m.n_device == p, p);
	MAY(l, m.n_host == radix_min_u32(host, m.n_blocks) - p, p);
	MAY(l, m.end.depth == m.n_blocks && m.device_end.depth == p, p);
	check_runs(l, &runs, window && !whole && p > window ? p - window : 0, entries, p);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static void called(struct lives *l)
{
	struct list now;
	char why[256] = "";
	int bad = radix_verify(l->ix, why, sizeof(why));

	if (bad)
		ck_abort_msg("seed %llu, call %llu: invariant %d: %s", (unsigned long long)w.seed,
			     (unsigned long long)l->n_calls, bad, why);
	list_make(l, &now);
	check_hollowed(l, &now);
	check_match(l);
	w.before = now;
}

/* The memory of the device goes, and no block is left in a slot of it. */
static void lost(struct lives *l)
{
	uint32_t n = l->ix->table.n_used;
	struct radix_stats was, s;
	uint64_t gone;
	char why[256] = "";

	radix_index_stats(l->ix, &was);
	gone = radix_device_lost(l->ix);
	ck_assert_msg(radix_verify(l->ix, why, sizeof(why)) == 0, "seed %llu: %s",
		      (unsigned long long)w.seed, why);
	radix_index_stats(l->ix, &s);
	MAY(l, s.slots[RADIX_SLOT_READY] + s.slots[RADIX_SLOT_LEAVING] == 0, n);
	MAY(l, s.removed[RADIX_REMOVE_DEVICE] - was.removed[RADIX_REMOVE_DEVICE] == gone, n);
	MAY(l, was.n_blocks - s.n_blocks == s.removed_total - was.removed_total, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct radix_entry *e = &l->ix->table.v[i];

		MAY(l,
		    e->state != RADIX_ENTRY_READY || radix_entry_slot(e) == RADIX_HOLLOW ||
			    radix_entry_slot(e) == RADIX_NONE,
		    i);
	}
}

static void run(const struct lives_shape *shape, uint64_t seed, uint32_t steps)
{
	struct test_heap heap;
	struct radix_index_config numbers;
	struct kept kept;
	struct lives l;

	memset(&w, 0, sizeof(w));
	w.seed = w.rng = seed;
	test_heap_init(&heap);
	numbers = lives_numbers(shape, &heap.alloc);
	kept_init(&kept, &numbers);
	lives_init(&l, shape, &kept, seed);
	l.called = called;
	while (steps--)
		lives_step(&l);
	lives_quiet(&l);
	lost(&l);
	radix_index_free(l.ix);
	ck_assert_uint_eq(heap.live_blocks, 0);
	kept_deinit(&kept);
}

START_TEST(sessions)
{
	run(&shapes[_i], 9000 + (uint64_t)_i, STEPS);
	ck_assert_uint_gt(w.n_hollowed, 100);
	ck_assert_uint_gt(w.n_cut, 100);
	run(&shapes[_i], fresh_seed + (uint64_t)_i, STEPS_FRESH);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("windows-random");
	TCase *tc = tcase_create("sessions");
	const char *env = getenv("PREFIXD_SEED");

	fresh_seed = env ? strtoull(env, NULL, 10) : (uint64_t)time(NULL) * 1000;
	tcase_set_timeout(tc, 170);
	tcase_add_loop_test(tc, sessions, 0, (int)radix_array_size(shapes));
	suite_add_tcase(s, tc);
	return test_run(s);
}
