/*
 * test_recover.c - what a restart makes of slots, roots, places and checksums, call by call.
 */
#include "radix/recover.h"
#include "tests/lib/run.h"
#include "tests/radix/bed.h"
#include "tests/radix/kept.h"
#include "tests/radix/reborn.h"

static struct bed b;
static struct kept kept;
static struct reborn r;

static void begin(enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host, uint32_t budget)
{
	struct radix_index_config numbers = { .n_slots = n_slots,
					      .n_host = n_host,
					      .redis = budget > 0,
					      .n_entries = n_slots + n_host + budget };

	kept_init(&kept, &numbers);
	bed_init_kept(&b, mode, 16, &kept);
}

static void restart(void)
{
	reborn_init(&r, b.ix, &kept);
	reborn_recover(&r);
}

static void finish(void)
{
	reborn_deinit(&r);
	bed_deinit(&b);
	kept_deinit(&kept);
}

/* Length of the path in the new index. */
static uint32_t found(const char *path)
{
	struct radix_place from = radix_place_root(b.root);
	struct radix_match m;

	radix_match(r.ix, &from, bed_keys(&b, path), (uint32_t)strlen(path), NULL, &m);
	return m.n_blocks;
}

static struct radix_entry *entry_of(struct radix_index *ix, const char *path)
{
	struct radix_place at = bed_place(&b, path);
	struct radix_member m;

	ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &m), 1);
	return &ix->table.v[m.entry];
}

/* The entry of that path, in the copy of the store. */
static struct radix_entry *stored(const char *path)
{
	uint8_t *base = r.kept.store.base;
	const struct radix_entry *e = entry_of(b.ix, path);

	return (struct radix_entry *)(void *)(base + ((const uint8_t *)e -
						      (const uint8_t *)kept.store.base));
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool only_three(void *ctx, uint32_t owner)
{
	uint32_t *asked = ctx;

	++*asked;
	ck_assert_uint_ne(owner, RADIX_OWNER_DAEMON);
	ck_assert_uint_ne(owner, RADIX_OWNER_LOST);
	return owner == 3;
}

static uint32_t reserve_one(uint32_t owner)
{
	struct radix_run v;
	struct radix_runs runs = { .v = &v, .cap = 1 };
	uint32_t granted;

	radix_reserve(b.ix, owner, 1, &runs, &granted);
	ck_assert_uint_eq(granted, 1);
	return v.start;
}

START_TEST(slots_are_kept_for_who_may_use_them)
{
	uint32_t slot[5], asked = 0, it = 0;
	struct radix_stats s;

	begin(RADIX_KEYS_TOKENS, 12, 0, 0);
	bed_store(&b, "abc");
	slot[0] = reserve_one(3);
	slot[1] = reserve_one(4);
	slot[2] = reserve_one(3);
	slot[3] = reserve_one(4);
	slot[4] = reserve_one(RADIX_OWNER_DAEMON);
	ck_assert_int_eq(radix_slot_discard(b.ix, 3, slot[2], true), 0);
	ck_assert_int_eq(radix_slot_discard(b.ix, 4, slot[3], true), 0);
	reborn_init(&r, b.ix, &kept);
	r.config.holds = only_three;
	r.config.ctx = &asked;
	reborn_recover(&r);
	ck_assert_uint_eq(asked, 4);
	ck_assert_uint_eq(r.r.n_kept, 2);
	ck_assert_uint_eq(r.r.n_freed, 3);
	ck_assert_uint_eq(radix_owner_next(r.ix, 3, &it), slot[0]);
	ck_assert_uint_eq(radix_owner_next(r.ix, 3, &it), slot[2]);
	ck_assert_uint_eq(radix_owner_next(r.ix, 3, &it), RADIX_NONE);
	it = 0;
	ck_assert_uint_eq(radix_owner_next(r.ix, 4, &it), RADIX_NONE);
	ck_assert_uint_eq(radix_slot_generation(r.ix, slot[0]),
			  radix_slot_generation(b.ix, slot[0]));
	ck_assert_uint_gt(radix_slot_generation(r.ix, slot[1]), radix_reuse_counter(b.ix));
	ck_assert_int_eq(radix_slot_discard(r.ix, 3, slot[0], false), 0);
	ck_assert_uint_eq(radix_owner_discard(r.ix, 3), 1);
	radix_index_stats(r.ix, &s);
	ck_assert_uint_eq(s.slots[RADIX_SLOT_FREE], 9);
	ck_assert_uint_eq(s.restored_total, 3);
	ck_assert_uint_eq(s.stored_total, 0);
	ck_assert_uint_eq(found("abc"), 3);
	ck_assert_uint_eq(radix_owner_discard(b.ix, 3), 2);
	ck_assert_uint_eq(radix_owner_discard(b.ix, 4), 2);
	finish();
}
END_TEST

/* A lost block's slot may still be read: it stays out of use, through a second restart too. */
START_TEST(slots_of_lost_blocks_are_kept_back)
{
	uint32_t slot;

	begin(RADIX_KEYS_TOKENS, 8, 0, 0);
	bed_store(&b, "abcd");
	reborn_init(&r, b.ix, &kept);
	r.config.keep_lost = true;
	stored("abc")->tenant ^= 1;
	slot = radix_entry_slot(entry_of(b.ix, "abc"));
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_CHECK], 1);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_ORPHAN], 1);
	ck_assert_uint_eq(r.r.n_quarantined, 2);
	ck_assert_uint_eq(found("abcd"), 2);
	ck_assert_int_eq(radix_slot_state(r.ix, slot), RADIX_SLOT_QUARANTINED);
	ck_assert_uint_eq(radix_slot_generation(r.ix, slot), radix_slot_generation(b.ix, slot));
	r.ix = radix_index_free(r.ix);
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_lost, 0);
	ck_assert_uint_eq(r.r.n_quarantined, 2);
	ck_assert_uint_eq(radix_owner_discard(r.ix, RADIX_OWNER_LOST), 2);
	ck_assert_uint_eq(radix_free_slots(r.ix, RADIX_TIER_DEVICE), 6);
	r.ix = radix_index_free(r.ix);
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_quarantined, 0);
	finish();
}
END_TEST

START_TEST(slots_of_lost_blocks_are_free_when_nobody_reads)
{
	begin(RADIX_KEYS_TOKENS, 8, 0, 0);
	bed_store(&b, "abcd");
	reborn_init(&r, b.ix, &kept);
	r.config.keep_lost = true;
	stored("abc")->tenant ^= 1;
	reborn_recover(&r);
	r.ix = radix_index_free(r.ix);
	r.config.keep_lost = false; /* whoever read them is gone by the next restart */
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_freed, 2);
	ck_assert_uint_eq(radix_free_slots(r.ix, RADIX_TIER_DEVICE), 6);
	finish();
}
END_TEST

/* ---- roots ----------------------------------------------------------------------------------- */

START_TEST(blocks_of_roots_that_are_gone)
{
	struct radix_root_config config;
	uint32_t other, fresh;

	begin(RADIX_KEYS_TOKENS, 8, 0, 0);
	other = b.root;
	bed_store(&b, "ab");
	b.root = bed_root(&b, 7);
	bed_store(&b, "xyz");
	reborn_init(&r, b.ix, &kept);
	ck_assert_uint_eq(r.config.n_roots, 2);
	ck_assert_uint_eq(r.roots[1].root, b.root);
	r.roots[0] = r.roots[1];
	r.config.n_roots = 1;
	config = r.roots[0].config;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_ROOT], 2);
	ck_assert_uint_eq(found("xyz"), 3);
	ck_assert_uint_eq(radix_root_user(r.ix, b.root), 7);
	ck_assert_int_eq(radix_root_new(r.ix, &config, &fresh), 0);
	ck_assert_uint_eq(fresh, other); /* its number is free */
	ck_assert(!radix_root_unref(r.ix, b.root));
	finish();
	/* the same number, but another namespace's */
	begin(RADIX_KEYS_TOKENS, 8, 0, 0);
	bed_store(&b, "ab");
	reborn_init(&r, b.ix, &kept);
	r.roots[0].config.ns++;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_ROOT], 2);
	finish();
	/* another salt's or epoch's, as the name says */
	begin(RADIX_KEYS_TOKENS, 8, 0, 0);
	bed_store(&b, "ab");
	reborn_init(&r, b.ix, &kept);
	r.roots[0].config.name[3]++;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_ROOT], 2);
	finish();
}
END_TEST

START_TEST(what_cannot_be_asked)
{
	struct radix_recover_root two[2];
	struct radix_index *ix = NULL;

	begin(RADIX_KEYS_TOKENS, 8, 0, 0);
	ck_assert_int_eq(radix_index_new(&ix, &kept.config), -EINVAL); /* it is no empty store */
	reborn_init(&r, b.ix, &kept);
	r.kept.config.generations = NULL;
	ck_assert_int_eq(radix_index_recover(&ix, &r.kept.config, &r.config, &r.r), -EINVAL);
	r.kept.config.generations = r.kept.generations;
	two[0] = two[1] = r.roots[0];
	r.config.roots = two;
	r.config.n_roots = 2;
	ck_assert_int_eq(radix_index_recover(&ix, &r.kept.config, &r.config, &r.r), -EINVAL);
	two[1].root++;
	two[1].config.key_len = 0;
	ck_assert_int_eq(radix_index_recover(&ix, &r.kept.config, &r.config, &r.r), -EINVAL);
	r.config.roots = r.roots;
	r.config.n_roots = 1;
	r.kept.store.len = RADIX_HEAD_BYTES;
	r.kept.store.committed = RADIX_HEAD_BYTES;
	ck_assert_int_eq(radix_index_recover(&ix, &r.kept.config, &r.config, &r.r), -EINVAL);
	r.kept.store.len = radix_store_len(&kept.config);
	r.kept.store.commit = NULL;
	ck_assert_int_eq(radix_index_recover(&ix, &r.kept.config, &r.config, &r.r), -ENOMEM);
	ck_assert_ptr_null(ix);
	for (uint32_t d = 0; d < RADIX_N_DAMAGES; d++)
		ck_assert_str_ne(radix_damage_to_string(d), "?");
	ck_assert_str_eq(radix_damage_to_string(RADIX_N_DAMAGES), "?");
	finish();
}
END_TEST

/* ---- places and checksums -------------------------------------------------------------------- */

static void check_place(struct radix_index *ix, const char *path)
{
	struct radix_place from = radix_place_root(b.root), at;
	struct radix_member m;
	struct radix_match end;

	radix_match(ix, &from, bed_keys(&b, path), (uint32_t)strlen(path), NULL, &end);
	ck_assert_uint_eq(end.n_blocks, strlen(path));
	ck_assert_uint_eq(radix_path_members(ix, &end.end, 1, &m), 1);
	ck_assert_int_eq(radix_member_place(ix, m, &at), 0);
	ck_assert_uint_eq(at.root, end.end.root);
	ck_assert_uint_eq(at.node, end.end.node);
	ck_assert_uint_eq(at.idx, end.end.idx);
	ck_assert_uint_eq(at.depth, strlen(path));
	m.generation++;
	ck_assert_int_eq(radix_member_place(ix, m, &at), RADIX_E_NOTFOUND);
}

/* _i: bit 0 digests, bit 1 tiers */
START_TEST(members_are_found_by_number)
{
	static const char *const paths[] = { "a", "abc", "abcdef", "abx", "abcde", "q" };
	bool lasting = _i & 1 || _i & 2;
	struct radix_place at;
	struct radix_member m;

	begin(_i & 1 ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS, 24, _i & 2 ? 4 : 0, _i & 2 ? 4 : 0);
	bed_store(&b, "abcdef");
	bed_store(&b, "abx");
	bed_store(&b, "q");
	restart();
	for (uint32_t i = 0; i < radix_array_size(paths); i++)
		check_place(r.ix, paths[i]);
	reborn_deinit(&r);
	/* the life goes on in the same store: what changes is followed */
	b.ix = radix_index_free(b.ix);
	reborn_init(&r, &(struct radix_index){ 0 }, &kept);
	r.roots[0] = (struct radix_recover_root){
		.root = b.root,
		.config = { .mode = b.mode,
			    .key_len = 16,
			    .block_tokens = b.mode == RADIX_KEYS_TOKENS ? 4 : 16,
			    .token_bytes = b.mode == RADIX_KEYS_TOKENS ? 16 : 0,
			    .ns = 1,
			    .tenant = 2 },
	};
	r.config.n_roots = 1;
	ck_assert_int_eq(radix_index_recover(&b.ix, &kept.config, &r.config, &r.r), 0);
	ck_assert_uint_eq(r.r.n_taken, 8);
	bed_store(&b, "abcdyz"); /* cuts an edge */
	for (uint32_t i = 0; i < radix_array_size(paths); i++)
		check_place(b.ix, paths[i]);
	check_place(b.ix, "abcdyz");
	at = bed_place(&b, "abc");
	ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &m), 1);
	radix_recover_end(b.ix);
	ck_assert_int_eq(radix_member_place(b.ix, m, &at), lasting ? 0 : RADIX_E_NOTFOUND);
	bed_verify(&b);
	/* found by looking, or not: it is lost all the same */
	ck_assert_uint_eq(radix_lose(b.ix, m, RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT), 6);
	bed_verify(&b);
	finish();
}
END_TEST

START_TEST(checksums_to_verify)
{
	struct radix_sum sums[2];
	struct radix_place at = { 0 };
	struct radix_pin pin = { 0 };
	uint32_t it = 0, n, total = 0;

	begin(RADIX_KEYS_TOKENS, 12, 0, 0);
	at = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &at);
	for (uint32_t i = 0; i < 6; i++) {
		uint8_t key[16];
		struct radix_block block = { .key = key, .slot = reserve_one(BED_OWNER) };
		enum radix_commit_result result;
		uint32_t slot;

		bed_key(&b, (char)('a' + i), key);
		block.checksum_kind = (uint8_t)(i % 3); /* none, ours, another */
		memset(block.checksum, (int)i, sizeof(block.checksum));
		ck_assert_int_eq(radix_commit(b.ix, &pin, BED_OWNER, &block, 5, &slot, &result), 0);
	}
	radix_pin_drop(b.ix, &pin);
	reborn_init(&r, b.ix, &kept);
	stored("abcde")->checksum[3] ^= 4;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_sums_lost, 1);
	ck_assert_uint_eq(found("abcdef"), 6);
	while ((n = radix_sums_next(r.ix, 1, &it, sums, 2)) > 0) {
		for (uint32_t i = 0; i < n; i++, total++) {
			const struct radix_entry *e = &r.ix->table.v[sums[i].block.entry];

			ck_assert_uint_eq(e->generation, sums[i].block.generation);
			ck_assert_uint_eq(radix_entry_slot(e), sums[i].slot);
			ck_assert_uint_eq(sums[i].checksum[0], 1);
		}
	}
	ck_assert_uint_eq(total, 1); /* of b and e */
	it = 0;
	ck_assert_uint_eq(radix_sums_next(r.ix, 2, &it, sums, 2), 2);
	ck_assert_uint_eq(radix_sums_next(r.ix, 2, &it, sums, 2), 0);
	it = 0;
	ck_assert_uint_eq(radix_sums_next(r.ix, 0, &it, sums, 2), 0);
	finish();
}
END_TEST

/* ---- tiers ----------------------------------------------------------------------------------- */

/* abcd with all in the device, then d and c go to the host, and copies of those to Redis. */
static void lower(void)
{
	struct radix_move m[4];
	struct radix_room room;

	begin(RADIX_KEYS_TOKENS, 4, 4, 2);
	bed_store(&b, "abcd");
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 2, 0, m, 4, &room);
	ck_assert_uint_eq(room.started, 2);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &m[i], true, NULL, NULL), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct radix_member c = m[i].block;

		ck_assert_int_eq(radix_copy_begin(b.ix, c, RADIX_TIER_REDIS, &m[3]), 0);
		ck_assert_int_eq(radix_move_end(b.ix, &m[3], true, NULL, NULL), 0);
	}
	reborn_init(&r, b.ix, &kept);
}

START_TEST(a_lost_copy_takes_those_below_along)
{
	lower();
	stored("ab")->device ^= 4; /* its only one: all below it goes */
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_COPY], 1);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_ORPHAN], 2);
	ck_assert_uint_eq(found("abcd"), 1);
	finish();
	lower();
	stored("abc")->host ^= 4; /* c sinks to Redis, and so d may not lie above it */
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_lost, 0);
	ck_assert_uint_eq(r.r.n_copies_lost, 2);
	ck_assert_uint_eq(found("abcd"), 4);
	ck_assert_uint_eq(r.ix->tier[RADIX_TIER_REDIS], 2);
	ck_assert_uint_eq(radix_free_slots(r.ix, RADIX_TIER_HOST), 4);
	finish();
}
END_TEST

START_TEST(redis_is_not_there_any_more)
{
	lower();
	r.kept.config.redis = false;
	stored("abcd")->host ^= 4;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_COPY], 1);
	ck_assert_uint_eq(r.r.n_copies_lost, 1); /* c's */
	ck_assert_uint_eq(found("abcd"), 3);
	ck_assert_uint_eq(r.ix->tier[RADIX_TIER_HOST], 1);
	finish();
}
END_TEST

START_TEST(too_many_in_redis_only)
{
	lower();
	bed_store(&b, "xy");
	kept_restore(&r.kept, &kept);
	/* the table has two entries for such; three are left */
	for (uint32_t i = 0; i < b.ix->table.n_used; i++) {
		struct radix_entry *e =
			&((struct radix_entry *)(void *)((uint8_t *)r.kept.store.base +
							 ((const uint8_t *)b.ix->table.v -
							  (const uint8_t *)kept.store.base)))[i];

		if (e->state == RADIX_ENTRY_READY && radix_entry_host(e) != RADIX_NONE)
			e->host ^= 1;
	}
	stored("ab")->redis = RADIX_REDIS_YES;
	stored("ab")->device ^= 1;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.damaged[RADIX_DAMAGE_ROOM], 1);
	ck_assert_uint_eq(found("abcd"), 3);
	ck_assert_uint_eq(found("xy"), 2);
	ck_assert_uint_eq(r.r.n_taken, 5);
	finish();
}
END_TEST

/* Host slots of blocks that are in the device too: the coldest is the first to go. */
START_TEST(bonuses_go_by_the_last_use)
{
	static const char *const paths[] = { "x", "a", "m" };
	struct radix_move m;

	begin(RADIX_KEYS_TOKENS, 8, 4, 0);
	for (uint32_t i = 0; i < 3; i++) {
		struct radix_place at;
		struct radix_member c;

		bed_store(&b, paths[i]);
		at = bed_place(&b, paths[i]);
		ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &c), 1);
		ck_assert_int_eq(radix_copy_begin(b.ix, c, RADIX_TIER_HOST, &m), 0);
		ck_assert_int_eq(radix_move_end(b.ix, &m, true, NULL, NULL), 0);
	}
	bed_touch(&b, "x");
	restart();
	ck_assert_uint_eq(r.ix->bonus.count, 3);
	ck_assert_uint_eq(r.ix->bonus.first, radix_entry_host(entry_of(b.ix, "a")));
	ck_assert_uint_eq(r.ix->bonus.last, radix_entry_host(entry_of(b.ix, "x")));
	ck_assert_uint_eq(r.ix->bonus.tick[r.ix->bonus.last], b.tick);
	finish();
}
END_TEST

/* ---- islands --------------------------------------------------------------------------------- */

START_TEST(what_hangs_below_damage_is_an_island)
{
	struct radix_place at;
	uint8_t key[16];
	bool rooted;

	begin(RADIX_KEYS_DIGEST, 12, 0, 0);
	bed_store(&b, "abcd");
	bed_store(&b, "abxy");
	reborn_init(&r, b.ix, &kept);
	stored("ab")->n_tokens ^= 1;
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_lost, 1);
	ck_assert_uint_eq(r.r.n_islands, 2);
	ck_assert_uint_eq(found("abcd"), 1);
	bed_key(&b, 'd', key);
	ck_assert_int_eq(radix_find_digest(r.ix, b.root, key, &at, &rooted), 0);
	ck_assert(!rooted);
	ck_assert_uint_eq(at.depth, 1);
	/* who names its parent hangs it there again: as the next restart will find it */
	r.ix = radix_index_free(r.ix);
	reborn_recover(&r);
	ck_assert_uint_eq(r.r.n_lost, 0);
	ck_assert_uint_eq(r.r.n_islands, 0);
	ck_assert_uint_eq(r.ix->roots[b.root].n_islands, 2);
	finish();
}
END_TEST

/* An island that was hung at the beginning of a prompt stays there. */
START_TEST(an_island_that_got_a_beginning)
{
	begin(RADIX_KEYS_DIGEST, 12, 0, 0);
	bed_store_island(&b, "xyz");
	restart();
	ck_assert_uint_eq(r.ix->roots[b.root].n_islands, 1);
	ck_assert_uint_eq(found("xyz"), 0);
	reborn_deinit(&r);
	{
		struct radix_place at = radix_place_root(b.root);
		struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
		enum radix_commit_result result;
		struct radix_pin pin = { 0 };
		uint32_t slot;

		radix_pin_take(b.ix, &pin, &at);
		ck_assert_int_eq(bed_commit(&b, &pin, s.v[0], 'x', &slot, &result), 0);
		ck_assert_int_eq(result, RADIX_COMMIT_DUPLICATE);
		radix_pin_drop(b.ix, &pin);
	}
	restart();
	ck_assert_uint_eq(found("xyz"), 3);
	ck_assert_uint_eq(r.ix->roots[b.root].n_islands, 0);
	finish();
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Every allocation fails once: nothing leaks, and the store is as it was. _i as above. */
START_TEST(no_memory)
{
	uint64_t n;

	begin(_i & 1 ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS, 70, _i & 2 ? 8 : 0, _i & 2 ? 8 : 0);
	bed_store(&b, "abcdefghijklmnop");
	bed_store(&b, "abx");
	bed_store(&b, "qrs");
	for (uint32_t i = 0; i < 40; i++) { /* steps of recency: one more array */
		char path[17] = "abcdefghijklmnop";

		path[1 + i % 15] = 0;
		bed_touch(&b, path);
	}
	reborn_init(&r, b.ix, &kept);
	stored("abcdefgh")->check ^= 1;
	kept.config.n_ghosts = 0;
	for (n = 1;; n++) {
		struct kept before;
		int ret;

		kept_copy(&before, &r.kept);
		test_heap_fail_at(&r.heap, n);
		ret = radix_index_recover(&r.ix, &r.kept.config, &r.config, &r.r);
		test_heap_fail_at(&r.heap, 0);
		if (ret == 0) {
			kept_deinit(&before);
			break;
		}
		ck_assert_int_eq(ret, -ENOMEM);
		ck_assert_uint_eq(r.heap.live_blocks, 0);
		ck_assert_mem_eq(before.store.base, r.kept.store.base, before.store.committed);
		ck_assert_mem_eq(before.generations, r.kept.generations,
				 before.n_generations * sizeof(uint64_t));
		kept_deinit(&before);
	}
	ck_assert_uint_gt(n, 20);
	ck_assert_uint_ge(r.r.n_lost, 1);
	ck_assert_uint_eq(found("abx"), 3);
	finish();
}
END_TEST

/* Two kinds of roots in one index. */
START_TEST(tokens_and_digests)
{
	struct radix_place at;
	struct radix_member m;
	uint32_t tokens;

	begin(RADIX_KEYS_TOKENS, 24, 0, 0);
	tokens = b.root;
	bed_store(&b, "abc");
	b.mode = RADIX_KEYS_DIGEST;
	b.root = bed_root(&b, 1);
	bed_store(&b, "abd");
	bed_store_island(&b, "xy");
	restart();
	reborn_same(&r, b.ix);
	ck_assert_uint_eq(found("abd"), 3);
	check_place(r.ix, "abd");
	b.root = tokens;
	ck_assert_uint_eq(found("abc"), 3);
	check_place(r.ix, "abc");
	at = bed_place(&b, "abc");
	ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &m), 1);
	radix_recover_end(r.ix);
	ck_assert_int_eq(radix_member_place(r.ix, m, &at), RADIX_E_NOTFOUND);
	ck_assert_uint_eq(radix_lose(r.ix, m, RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT), 1);
	ck_assert_uint_eq(found("abc"), 2);
	finish();
}
END_TEST

static struct radix_member member_of(const char *path)
{
	struct radix_place at = bed_place(&b, path);
	struct radix_member m;

	ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &m), 1);
	return m;
}

/* Each class of what an entry says of itself and of the one before it; 4: nothing is damaged. */
static void damage_third(int what)
{
	struct radix_entry *e = stored("abc");

	if (what == 0)
		e->tenant ^= 1;
	else if (what == 1)
		e->parent ^= UINT64_C(1) << 33; /* the number */
	else if (what == 2)
		e->parent ^= 1; /* the rest */
	else if (what == 3)
		e->generation ^= 4;
}

/* Who stood behind a lost block reads what is before it too. */
START_TEST(what_was_before_the_damage)
{
	bool digest = _i >= 5;
	struct radix_stand s[3] = { 0 };
	struct radix_member two, six;
	struct radix_place at, above;

	begin(digest ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS, 16, 0, 0);
	bed_store(&b, "xyz");
	bed_store(&b, "abcdef");
	two = member_of("ab");
	six = member_of("abcdef");
	reborn_init(&r, b.ix, &kept);
	damage_third(_i % 5);
	s[0].block = six;
	s[1].block.entry = RADIX_NONE;
	s[2].block = six;
	s[2].block.entry += 1; /* nobody's yet */
	r.config.keep_lost = true;
	r.config.stands = s;
	r.config.n_stands = 3;
	reborn_recover(&r);
	ck_assert_uint_eq(s[0].before.entry, digest || _i == 4 ? six.entry : two.entry);
	ck_assert_uint_eq(s[0].before.generation,
			  digest || _i == 4 ? six.generation : two.generation);
	for (uint32_t i = 1; i < 3; i++)
		ck_assert_uint_eq(s[i].before.entry, RADIX_NONE);
	ck_assert_uint_eq(radix_recover_cuts(r.ix), digest && _i != 9);
	ck_assert_int_eq(radix_member_place(r.ix, s[0].before, &at), 0);
	ck_assert_int_eq(radix_recover_above(r.ix, &at, &above),
			 digest && _i != 9 ? 0 : RADIX_E_NOTFOUND);
	if (digest && _i != 9) {
		ck_assert_int_eq(radix_member_place(r.ix, two, &at), 0);
		ck_assert_mem_eq(&above, &at, sizeof(at));
		ck_assert_int_eq(radix_recover_above(r.ix, &at, &above), RADIX_E_NOTFOUND);
	}
	/* A recovery that was stopped after it had freed entries leaves them to the next one. */
	r.ix = radix_index_free(r.ix);
	r.config.n_stands = 1;
	reborn_recover(&r);
	ck_assert_uint_eq(s[0].before.entry, digest || _i == 4 ? six.entry : two.entry);
	finish();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("recover");
	TCase *tc = tcase_create("recover");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, slots_are_kept_for_who_may_use_them);
	tcase_add_test(tc, slots_of_lost_blocks_are_kept_back);
	tcase_add_test(tc, slots_of_lost_blocks_are_free_when_nobody_reads);
	tcase_add_test(tc, blocks_of_roots_that_are_gone);
	tcase_add_test(tc, what_cannot_be_asked);
	tcase_add_loop_test(tc, members_are_found_by_number, 0, 4);
	tcase_add_test(tc, checksums_to_verify);
	tcase_add_test(tc, a_lost_copy_takes_those_below_along);
	tcase_add_test(tc, redis_is_not_there_any_more);
	tcase_add_test(tc, too_many_in_redis_only);
	tcase_add_test(tc, bonuses_go_by_the_last_use);
	tcase_add_test(tc, what_hangs_below_damage_is_an_island);
	tcase_add_test(tc, an_island_that_got_a_beginning);
	tcase_add_loop_test(tc, what_was_before_the_damage, 0, 10);
	tcase_add_loop_test(tc, no_memory, 0, 4);
	tcase_add_test(tc, tokens_and_digests);
	suite_add_tcase(s, tc);
	return test_run(s);
}
