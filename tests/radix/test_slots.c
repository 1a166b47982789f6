/*
 * test_slots.c - slots, commits, runs, roots, and the looks below a place.
 */
#include "radix/index.h"
#include "tests/lib/run.h"
#include "tests/radix/bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct bed b;

static void setup(void)
{
	bed_init(&b, RADIX_KEYS_TOKENS, 16, 32);
}

static void teardown(void)
{
	bed_deinit(&b);
}

START_TEST(wrong_configs_are_refused)
{
	struct radix_index_config good = { .alloc = &b.heap.alloc, .n_slots = 4, .n_entries = 4 },
				  c;
	struct radix_root_config rc = { .mode = RADIX_KEYS_TOKENS, .key_len = 0 };
	struct radix_index *ix = NULL;
	uint32_t root = 77;

	c = good;
	c.n_slots = 0;
	ck_assert_int_eq(radix_index_new(&ix, &c), -EINVAL);
	c = good;
	c.n_entries = 3;
	ck_assert_int_eq(radix_index_new(&ix, &c), -EINVAL);
	ck_assert_ptr_null(ix);
	ck_assert_ptr_null(radix_index_free(NULL));
	ck_assert_int_eq(radix_root_new(b.ix, &rc, &root), -EINVAL);
	rc.key_len = RADIX_KEY_MAX + 1;
	ck_assert_int_eq(radix_root_new(b.ix, &rc, &root), -EINVAL);
	ck_assert_uint_eq(root, 77);
}
END_TEST

START_TEST(states_and_reasons_have_names)
{
	ck_assert_str_eq(radix_slot_state_to_string(RADIX_SLOT_FREE), "free");
	ck_assert_str_eq(radix_slot_state_to_string(RADIX_SLOT_QUARANTINED), "quarantined");
	ck_assert_str_eq(radix_remove_reason_to_string(RADIX_REMOVE_CAPACITY), "capacity");
	ck_assert_str_eq(radix_remove_reason_to_string(RADIX_REMOVE_QUOTA), "quota");
}
END_TEST

START_TEST(a_slot_lives_from_free_to_free)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
	enum radix_commit_result result;
	struct radix_pin pin = { 0 };
	uint32_t slot;

	ck_assert_uint_eq(s.n, 1);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[0]), RADIX_SLOT_RESERVED);
	bed_pin(&b, &pin, "");
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'a', &slot, &result), 0);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[0]), RADIX_SLOT_READY);
	ck_assert_uint_eq(pin.at.depth, 1);
	/* Committed is committed: neither a second commit nor a discard is legal. */
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'b', &slot, &result), RADIX_E_STATE);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], false), RADIX_E_STATE);
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 0);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT), 1);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[0]), RADIX_SLOT_FREE);
}
END_TEST

START_TEST(only_the_owner_of_a_reserved_slot_commits)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER + 1, 1),
			 mine = bed_reserve(&b, BED_OWNER, 1);
	enum radix_commit_result result;
	struct radix_pin pin = { 0 };
	uint32_t slot, free_slot = RADIX_NONE;

	for (uint32_t i = 0; i < b.n_slots; i++)
		if (radix_slot_state(b.ix, i) == RADIX_SLOT_FREE)
			free_slot = i;
	bed_pin(&b, &pin, "");
	ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'a', &slot, &result), RADIX_E_STATE);
	ck_assert_int_eq(bed_commit(&b, &pin, free_slot, 'a', &slot, &result), RADIX_E_STATE);
	ck_assert_int_eq(bed_commit(&b, &pin, b.n_slots, 'a', &slot, &result), RADIX_E_STATE);
	ck_assert_int_eq(bed_commit(&b, &pin, RADIX_NONE, 'a', &slot, &result), RADIX_E_STATE);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], true), RADIX_E_STATE);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, free_slot, true), RADIX_E_STATE);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, b.n_slots, true), RADIX_E_STATE);
	ck_assert_uint_eq(pin.at.depth, 0);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 0);
	ck_assert_int_eq(bed_commit(&b, &pin, mine.v[0], 'a', &slot, &result), 0);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

START_TEST(quarantine_keeps_a_slot_until_its_end)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 32);

	ck_assert_uint_eq(s.n, 32);
	ck_assert_int_eq(radix_quarantine_end(b.ix, s.v[0]), RADIX_E_STATE);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], true), 0);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[0]), RADIX_SLOT_QUARANTINED);
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 1).n, 0);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], false), RADIX_E_STATE);
	ck_assert_int_eq(radix_quarantine_end(b.ix, s.v[0]), 0);
	ck_assert_int_eq(radix_quarantine_end(b.ix, s.v[0]), RADIX_E_STATE);
	ck_assert_int_eq(radix_quarantine_end(b.ix, b.n_slots), RADIX_E_STATE);
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 2).v[0], s.v[0]);
}
END_TEST

/* Two compute the same block: the second keeps its copy as OWN, and goes on below the first's. */
START_TEST(second_writer_gets_the_canonical_slot)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 4);
	struct radix_pin first = { 0 }, second = { 0 };
	enum radix_commit_result result;
	uint32_t slot;

	bed_pin(&b, &first, "");
	bed_pin(&b, &second, "");
	ck_assert_int_eq(bed_commit(&b, &first, s.v[0], 'a', &slot, &result), 0);
	ck_assert_int_eq(bed_commit(&b, &second, s.v[1], 'a', &slot, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	ck_assert_uint_eq(slot, s.v[0]);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[1]), RADIX_SLOT_OWN);
	ck_assert_uint_eq(second.at.depth, 1);
	ck_assert_int_eq(bed_commit(&b, &second, s.v[2], 'b', &slot, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_STORED);
	ck_assert_int_eq(bed_commit(&b, &first, s.v[3], 'b', &slot, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
	ck_assert_uint_eq(slot, s.v[2]);
	ck_assert_uint_eq(bed_stats(&b).duplicate_total, 2);
	ck_assert_uint_eq(bed_stats(&b).stored_total, 2);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 2);
	radix_pin_drop(b.ix, &first);
	ck_assert_uint_eq(radix_evict(b.ix, 9, RADIX_REMOVE_EVICT), 0);
	radix_pin_drop(b.ix, &second);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[1], false), 0);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[3], true), 0);
	ck_assert_int_eq(radix_slot_state(b.ix, s.v[1]), RADIX_SLOT_FREE);
}
END_TEST

START_TEST(reserve_evicts_only_what_it_needs)
{
	bed_store(&b, "abcdefghijklmnopqrstuvwx"); /* 24 of 32 */
	bed_store(&b, "PQRS");
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 4).n, 4);
	ck_assert_uint_eq(bed_stats(&b).removed_total, 0);
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 3).n, 3);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_CAPACITY], 3);
	ck_assert_uint_eq(bed_match(&b, "abcdefghijklmnopqrstuvwx"), 21);
	ck_assert_uint_eq(bed_match(&b, "PQRS"), 4);
}
END_TEST

START_TEST(reserve_grants_a_prefix_when_the_rest_is_held)
{
	struct radix_pin pin;

	bed_store(&b, "abcdefghijkl");
	bed_pin(&b, &pin, "abcdefgh");
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 32).n, 24); /* 20 free, i j k l */
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 1).n, 0);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(bed_reserve(&b, BED_OWNER, 32).n, 8);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 0);
}
END_TEST

START_TEST(reserve_stops_when_the_runs_are_full)
{
	struct radix_run v[2];
	struct radix_runs runs = { .v = v, .cap = 2 };
	struct bed_slots all = bed_reserve(&b, BED_OWNER, 32);
	uint32_t granted = 0, n = 0;

	for (uint32_t i = 0; i < 32; i += 2) /* every other slot: no two free ones touch */
		ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, all.v[i], false), 0);
	radix_reserve(b.ix, BED_OWNER, 10, &runs, &granted);
	for (uint32_t i = 0; i < runs.n; i++)
		n += v[i].len;
	ck_assert_uint_eq(runs.n, 2);
	ck_assert_uint_eq(granted, n);
	/* Whatever was not told was not taken. */
	ck_assert_uint_eq(bed_stats(&b).slots[RADIX_SLOT_RESERVED], 16 + granted);
	bed_verify(&b);
}
END_TEST

START_TEST(fresh_slots_come_as_one_run)
{
	struct radix_run v[8];
	struct radix_runs runs = { .v = v, .cap = 8 };
	uint32_t granted;

	radix_reserve(b.ix, BED_OWNER, 20, &runs, &granted);
	ck_assert_uint_eq(granted, 20);
	ck_assert_uint_eq(runs.n, 1);
	ck_assert_uint_eq(v[0].len, 20);
	radix_reserve(b.ix, BED_OWNER, 4, &runs,
		      &granted); /* goes on with the last run, or begins one */
	ck_assert_uint_eq(granted, 4);
	ck_assert_uint_le(runs.n, 2);
}
END_TEST

/* A name (slot, G) is stale exactly when the slot was granted again after it was given. */
START_TEST(generations_tell_stale_names)
{
	uint64_t named_at[32], g;
	struct bed_slots s;

	bed_store(&b, "abcdefgh");
	for (uint32_t i = 0; i < 32; i++)
		named_at[i] = radix_reuse_counter(b.ix);
	for (uint32_t i = 0; i < 32; i++)
		ck_assert_uint_le(radix_slot_generation(b.ix, i), named_at[i]);
	/* Being evicted alone makes nothing stale: the bytes are still there. */
	ck_assert_uint_eq(radix_evict(b.ix, 8, RADIX_REMOVE_EVICT), 8);
	for (uint32_t i = 0; i < 32; i++)
		ck_assert_uint_le(radix_slot_generation(b.ix, i), named_at[i]);
	g = radix_reuse_counter(b.ix);
	s = bed_reserve(&b, BED_OWNER, 28);
	ck_assert_uint_eq(s.n, 28);
	ck_assert_uint_gt(radix_reuse_counter(b.ix), g);
	for (uint32_t i = 0; i < 32; i++) {
		bool again = radix_slot_state(b.ix, i) == RADIX_SLOT_RESERVED;

		ck_assert_int_eq(radix_slot_generation(b.ix, i) > named_at[i], again);
	}
	ck_assert_uint_eq(bed_stats(&b).reuse_counter, radix_reuse_counter(b.ix));
}
END_TEST

START_TEST(generations_live_in_the_callers_memory)
{
	uint64_t gens[8] = { 3, 9, 1, 0, 0, 0, 0, 0 }, before[8];
	struct radix_index_config config = {
		.alloc = &b.heap.alloc, .n_slots = 8, .n_entries = 8, .generations = gens
	};
	struct radix_index *ix = NULL;
	struct radix_run v[8];
	struct radix_runs runs = { .v = v, .cap = 8 };
	uint32_t granted;

	ck_assert_int_eq(radix_index_new(&ix, &config), 0);
	memcpy(before, gens, sizeof(gens));
	radix_reserve(ix, BED_OWNER, 3, &runs, &granted);
	ck_assert_uint_eq(granted, 3);
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_uint_eq(radix_slot_generation(ix, i), gens[i]);
		if (radix_slot_state(ix, i) == RADIX_SLOT_RESERVED)
			ck_assert_uint_gt(gens[i], before[i]);
		ck_assert_uint_le(gens[i], radix_reuse_counter(ix));
	}
	radix_index_free(ix);
}
END_TEST

START_TEST(full_runs_stop_a_match_that_can_go_on)
{
	struct radix_place at = radix_place_root(b.root);
	struct radix_pin pin = { 0 };
	struct radix_run v[3];
	struct radix_runs runs = { .v = v, .cap = 3 };
	enum radix_commit_result result;
	struct radix_match m;
	uint32_t slot, total = 0, calls = 0;
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 16);

	/* Filled backwards: no two neighbours on the path are neighbours in the pool. */
	bed_pin(&b, &pin, "");
	for (uint32_t i = 0; i < 16; i++)
		ck_assert_int_eq(bed_commit(&b, &pin, s.v[15 - i], (char)('a' + i), &slot, &result),
				 0);
	while (total < 16) {
		runs.n = 0;
		runs.full = false;
		radix_match(b.ix, &at, bed_keys(&b, "abcdefghijklmnop") + total * 16, 16 - total,
			    &runs, &m);
		ck_assert_uint_eq(m.n_blocks, radix_min_u32(3, 16 - total));
		ck_assert_int_eq(runs.full, total + m.n_blocks < 16);
		ck_assert_uint_eq(runs.n, m.n_blocks);
		for (uint32_t i = 0; i < runs.n; i++) {
			ck_assert_uint_eq(v[i].len, 1);
			ck_assert_uint_eq(v[i].start, s.v[15 - total - i]);
		}
		total += m.n_blocks;
		at = m.end;
		ck_assert_uint_le(++calls, 6);
	}
	radix_pin_drop(b.ix, &pin);
}
END_TEST

START_TEST(roots_go_with_their_last_trace)
{
	uint32_t empty = bed_root(&b, 11), used = bed_root(&b, 22), reaped;
	uint64_t user = 0;

	ck_assert_uint_eq(radix_root_user(b.ix, used), 22);
	ck_assert_uint_eq(bed_stats(&b).n_roots, 3);
	radix_root_ref(b.ix, empty);
	ck_assert(!radix_root_unref(b.ix, empty));
	ck_assert(radix_root_unref(b.ix, empty)); /* no blocks: gone at once */
	ck_assert_uint_eq(bed_stats(&b).n_roots, 2);
	b.root = used;
	bed_store(&b, "abc");
	ck_assert(!radix_root_unref(b.ix, used)); /* blocks keep it */
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), RADIX_NONE);
	ck_assert_uint_eq(bed_match(&b, "abc"), 3);
	ck_assert_uint_eq(radix_evict(b.ix, 3, RADIX_REMOVE_EVICT), 3);
	reaped = radix_root_reap(b.ix, &user);
	ck_assert_uint_eq(reaped, used);
	ck_assert_uint_eq(user, 22);
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), RADIX_NONE);
	ck_assert_uint_eq(bed_stats(&b).n_roots, 1);
	bed_verify(&b);
}
END_TEST

START_TEST(a_root_found_again_is_not_reaped)
{
	uint32_t root = bed_root(&b, 33);
	uint64_t user;

	b.root = root;
	bed_store(&b, "ab");
	ck_assert(!radix_root_unref(b.ix, root));
	radix_root_ref(b.ix, root); /* somebody asks for it again */
	ck_assert_uint_eq(radix_evict(b.ix, 2, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(radix_root_reap(b.ix, &user), RADIX_NONE);
	bed_store(&b, "cd");
	ck_assert_uint_eq(bed_match(&b, "cd"), 2);
	ck_assert(!radix_root_unref(b.ix, root));
}
END_TEST

START_TEST(two_indexes_do_not_meet)
{
	struct bed other;

	bed_init(&other, RADIX_KEYS_TOKENS, 16, 8);
	bed_store(&b, "abcd");
	ck_assert_uint_eq(bed_match(&other, "abcd"), 0);
	bed_store(&other, "abXY");
	ck_assert_uint_eq(bed_match(&b, "abXY"), 2);
	ck_assert_uint_eq(radix_evict(other.ix, 9, RADIX_REMOVE_EVICT), 4);
	ck_assert_uint_eq(bed_match(&b, "abcd"), 4);
	bed_deinit(&other);
}
END_TEST

/* Stores a block of four given tokens below "a". */
static void store_tokens(uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3, uint32_t *ret_slot)
{
	uint32_t key[4] = { t0, t1, t2, t3 };
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
	struct radix_block block = { .key = key, .slot = s.v[0], .n_tokens = 4 };
	enum radix_commit_result result;
	struct radix_pin pin;

	bed_pin(&b, &pin, "a");
	ck_assert_int_eq(radix_commit(b.ix, &pin, BED_OWNER, &block, ++b.tick, ret_slot, &result),
			 0);
	ck_assert_int_eq(result, RADIX_COMMIT_STORED);
	radix_pin_drop(b.ix, &pin);
}

START_TEST(partial_finds_the_longest_common_tail)
{
	struct radix_place at, donor;
	uint32_t tail[3] = { 1, 2, 9 }, slots[3], slot = RADIX_NONE, tokens = 99;

	bed_store(&b, "a");
	at = bed_place(&b, "a");
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &tokens);
	ck_assert_uint_eq(tokens, 0);
	store_tokens(1, 2, 3, 4, &slots[0]);
	at = bed_place(&b, "a"); /* the next block of the same edge */
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &tokens);
	ck_assert_uint_eq(tokens, 2);
	ck_assert_uint_eq(slot, slots[0]);
	ck_assert_uint_eq(donor.depth, 2);
	store_tokens(1, 7, 3, 4, &slots[1]);
	store_tokens(1, 2, 9, 4, &slots[2]);
	at = bed_place(&b, "a");
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &tokens);
	ck_assert_uint_eq(tokens, 3);
	ck_assert_uint_eq(slot, slots[2]);
	radix_partial(b.ix, &at, tail, 1, &donor, &slot, &tokens);
	ck_assert_uint_eq(tokens, 1);
	tail[0] = 5;
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &tokens);
	ck_assert_uint_eq(tokens, 0);
}
END_TEST

START_TEST(partial_finds_first_blocks_below_the_root)
{
	struct radix_place at = radix_place_root(b.root), donor;
	uint32_t tail[3], slot, tokens;

	bed_store(&b, "abc");
	bed_store(&b, "xyz");
	memcpy(tail, bed_keys(&b, "x"), sizeof(tail));
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &tokens);
	ck_assert_uint_eq(tokens, 3);
	ck_assert_uint_eq(donor.depth, 1);
	ck_assert_uint_eq(bed_match_from(&b, &donor, "yz").n_blocks, 2);
}
END_TEST

START_TEST(closest_shows_the_stored_key)
{
	uint32_t key[4] = { 1, 2, 8, 8 }, slots[2], same;
	const void *stored;
	struct radix_place at;

	bed_store(&b, "a");
	at = bed_place(&b, "a");
	ck_assert_int_eq(radix_closest(b.ix, &at, key, 16, &stored, &same), RADIX_E_NOTFOUND);
	store_tokens(1, 2, 3, 4, &slots[0]);
	store_tokens(1, 6, 8, 8, &slots[1]);
	at = bed_place(&b, "a");
	ck_assert_int_eq(radix_closest(b.ix, &at, key, 16, &stored, &same), 0);
	ck_assert_uint_eq(same, 8);
	ck_assert_uint_eq(((const uint32_t *)stored)[2], 3);
	key[0] = 0x00010000; /* the first byte differs already */
	ck_assert_int_eq(radix_closest(b.ix, &at, key, 16, &stored, &same), 0);
	ck_assert_uint_eq(same, 0);
}
END_TEST

/* Where the bytes of a tail end, a page begins that nobody may read. */
START_TEST(closest_reads_no_more_than_it_is_given)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			  0);
	uint32_t tail[2] = { 1, 2 }, slot, same;
	const void *stored;
	struct radix_place at;

	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(mprotect(p + page, page, PROT_NONE), 0);
	memcpy(p + page - sizeof(tail), tail, sizeof(tail));
	bed_store(&b, "a");
	at = bed_place(&b, "a");
	store_tokens(1, 2, 3, 4, &slot);
	at = bed_place(&b, "a");
	ck_assert_int_eq(
		radix_closest(b.ix, &at, p + page - sizeof(tail), sizeof(tail), &stored, &same), 0);
	ck_assert_uint_eq(same, sizeof(tail));
	ck_assert_int_eq(munmap(p, 2 * page), 0);
}
END_TEST

/* An image is in the key by a digest of full width; placeholder tokens alone identify nothing. */
START_TEST(T07_digests_that_differ_in_16_bits_never_meet)
{
	uint8_t keys[3][96], other[3][96];
	struct radix_root_config config = {
		.mode = RADIX_KEYS_TOKENS, .key_len = 96, .block_tokens = 16, .token_bytes = 64
	};
	struct radix_pin pin = { 0 };
	struct radix_place from;
	struct radix_match m;
	uint32_t root, slot;
	enum radix_commit_result result;
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 3);

	ck_assert_int_eq(radix_root_new(b.ix, &config, &root), 0);
	from = radix_place_root(root);
	for (uint32_t i = 0; i < 3; i++) {
		memset(keys[i], 0x20, 64); /* the same placeholder tokens everywhere */
		memset(keys[i] + 64, 0xd0 + (int)i, 32);
	}
	radix_pin_take(b.ix, &pin, &from);
	for (uint32_t i = 0; i < 3; i++) {
		struct radix_block block = { .key = keys[i], .slot = s.v[i], .n_tokens = 16 };

		ck_assert_int_eq(radix_commit(b.ix, &pin, BED_OWNER, &block, 1, &slot, &result), 0);
	}
	radix_match(b.ix, &from, keys, 3, NULL, &m);
	ck_assert_uint_eq(m.n_blocks, 3);
	for (uint32_t bit = 0; bit < 32; bit++) {
		/* the 16 bits at either end of the digest, whichever one calls the top */
		uint32_t byte = 64 + (bit < 16 ? bit / 8 : 28 + bit / 8);

		memcpy(other, keys, sizeof(keys));
		other[0][byte] ^= (uint8_t)(1u << bit % 8);
		radix_match(b.ix, &from, other, 3, NULL, &m);
		ck_assert_uint_eq(m.n_blocks, 0);
		memcpy(other, keys, sizeof(keys));
		other[1][byte] ^= (uint8_t)(1u << bit % 8);
		radix_match(b.ix, &from, other, 3, NULL, &m);
		ck_assert_uint_eq(m.n_blocks, 1);
	}
	memset(other[0] + 64, 0, 32); /* without the digest */
	radix_match(b.ix, &from, other, 3, NULL, &m);
	ck_assert_uint_eq(m.n_blocks, 0);
	radix_pin_drop(b.ix, &pin);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("slots");
	TCase *tc = tcase_create("slots");
	TCase *t07 = tcase_create("T07");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, wrong_configs_are_refused);
	tcase_add_test(tc, states_and_reasons_have_names);
	tcase_add_test(tc, a_slot_lives_from_free_to_free);
	tcase_add_test(tc, only_the_owner_of_a_reserved_slot_commits);
	tcase_add_test(tc, quarantine_keeps_a_slot_until_its_end);
	tcase_add_test(tc, second_writer_gets_the_canonical_slot);
	tcase_add_test(tc, reserve_evicts_only_what_it_needs);
	tcase_add_test(tc, reserve_grants_a_prefix_when_the_rest_is_held);
	tcase_add_test(tc, reserve_stops_when_the_runs_are_full);
	tcase_add_test(tc, fresh_slots_come_as_one_run);
	tcase_add_test(tc, generations_tell_stale_names);
	tcase_add_test(tc, generations_live_in_the_callers_memory);
	tcase_add_test(tc, full_runs_stop_a_match_that_can_go_on);
	tcase_add_test(tc, roots_go_with_their_last_trace);
	tcase_add_test(tc, a_root_found_again_is_not_reaped);
	tcase_add_test(tc, two_indexes_do_not_meet);
	tcase_add_test(tc, partial_finds_the_longest_common_tail);
	tcase_add_test(tc, partial_finds_first_blocks_below_the_root);
	tcase_add_test(tc, closest_shows_the_stored_key);
	tcase_add_test(tc, closest_reads_no_more_than_it_is_given);
	suite_add_tcase(s, tc);
	tcase_add_checked_fixture(t07, setup, teardown);
	tcase_add_test(t07, T07_digests_that_differ_in_16_bits_never_meet);
	suite_add_tcase(s, t07);
	return test_run(s);
}
