/*
 * test_tiers_up.c - copies that come up, are computed again, get lost; islands; the order of leaf
 * LRU.
 */
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/tiers_bed.h"

/* "abcd" lies dhhr. */
static void three_tiers(void)
{
	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	bed_store(&b, "abcd");
	demote(RADIX_TIER_DEVICE, 3);
	demote(RADIX_TIER_HOST, 1);
	lies("abcd", "dhhr");
}

/* ---- promotion ------------------------------------------------------------------------------- */

START_TEST(blocks_come_up_in_path_order)
{
	struct radix_move m[3];
	uint32_t freed;

	three_tiers();
	m[0] = promote_begin("abcd");
	m[1] = promote_begin("abc");
	m[2] = promote_begin("ab");
	ck_assert_int_eq(m[0].from, RADIX_TIER_REDIS);
	ck_assert_uint_eq(m[0].src, RADIX_NONE);
	ck_assert_int_eq(m[1].from, RADIX_TIER_HOST);
	ck_assert_uint_eq(m[1].src, radix_entry_host(entry_of("abc")));
	ck_assert_uint_eq(radix_slot_state(b.ix, m[1].dst), RADIX_SLOT_RESERVED);
	ck_assert_int_eq(radix_move_end(b.ix, &m[0], true, NULL, &freed), RADIX_E_REFUSED);
	ck_assert_int_eq(radix_move_end(b.ix, &m[1], true, NULL, &freed), RADIX_E_REFUSED);
	lies("abcd", "dhhr");
	end(&m[2], true);
	lies("abcd", "ddhr");
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 1);
	end(&m[1], true);
	end(&m[0], true);
	lies("abcd", "dddd");
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 2);
	ck_assert_uint_eq(bed_stats(&b).moved[1][0], 2);
	ck_assert_uint_eq(bed_stats(&b).moved[2][0], 1);
	/* what came from Redis alone has no host copy to fall back to; the others have */
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, 0), 1);
	ck_assert_uint_eq(room.coming, 2);
	ck_assert_uint_eq(end(&moves[0], true), 3);
	lies("abcd", "dhhh");
	bed_deinit(&b);
}
END_TEST

START_TEST(two_bring_up_one_block)
{
	struct radix_move m[2];

	three_tiers();
	m[0] = promote_begin("ab");
	m[1] = promote_begin("ab");
	end(&m[1], true);
	ck_assert_uint_eq(radix_entry_slot(entry_of("ab")), m[1].dst);
	end(&m[0], true);
	ck_assert_uint_eq(radix_entry_slot(entry_of("ab")), m[1].dst);
	ck_assert_uint_eq(bed_stats(&b).moved[1][0], 1);
	ck_assert_uint_eq(radix_slot_state(b.ix, m[0].dst), RADIX_SLOT_FREE);
	ck_assert_int_eq(radix_promote_begin(b.ix, name_of("ab"), &m[0]), RADIX_E_STATE);
	bed_deinit(&b);
}
END_TEST

START_TEST(promotion_needs_a_free_slot)
{
	struct radix_move m;

	begin(RADIX_KEYS_TOKENS, 2, 4, false, 0);
	bed_store(&b, "ab");
	demote(RADIX_TIER_DEVICE, 1);
	bed_store(&b, "x");
	ck_assert_int_eq(radix_promote_begin(b.ix, name_of("ab"), &m), RADIX_E_REFUSED);
	demote(RADIX_TIER_DEVICE, 1); /* a, which is older than x */
	lies("ab", "hh");
	promote("a");
	lies("ab", "dh");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_promotion_that_fails)
{
	struct radix_move m;

	three_tiers();
	m = promote_begin("ab");
	ck_assert_uint_eq(end(&m, false), 0);
	lies("abcd", "dhhr");
	ck_assert_uint_eq(radix_slot_state(b.ix, m.dst), RADIX_SLOT_FREE);
	bed_deinit(&b);
}
END_TEST

/* The block goes while it is on its way: nothing of the move is used before it ends. */
START_TEST(a_member_goes_while_it_moves)
{
	struct radix_move up, down;
	uint32_t freed;

	three_tiers();
	up = promote_begin("ab");
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_REDIS, &down), 0);
	ck_assert_uint_eq(radix_flush_root(b.ix, b.root, RADIX_REMOVE_FLUSH), 4);
	bed_verify(&b);
	ck_assert_uint_eq(b.ix->host.state[up.src], RADIX_SLOT_QUARANTINED);
	ck_assert_uint_eq(radix_slot_state(b.ix, up.dst), RADIX_SLOT_RESERVED);
	ck_assert_uint_eq(radix_slot_state(b.ix, down.src), RADIX_SLOT_QUARANTINED);
	bed_store(&b, "xyz"); /* the entries are used again */
	ck_assert_int_eq(radix_move_end(b.ix, &up, true, NULL, &freed), RADIX_E_NOTFOUND);
	ck_assert_uint_eq(freed, 1);
	ck_assert_int_eq(radix_move_end(b.ix, &down, true, NULL, &freed), RADIX_E_NOTFOUND);
	ck_assert_uint_eq(freed, 1);
	lies("xyz", "ddd");
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_DEVICE), 5);
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_HOST), 8);
	ck_assert_uint_eq(radix_entry_redis(entry_of("x")), 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_checksum_is_kept_if_none_was)
{
	static const uint8_t one[16] = { 1, 2, 3 }, two[16] = { 4 };
	uint8_t kind, sum[16];
	struct radix_move m;

	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "a");
	ck_assert_int_eq(radix_member_checksum(b.ix, name_of("a"), &kind, sum), 0);
	ck_assert_uint_eq(kind, 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"),
						  i ? RADIX_TIER_REDIS : RADIX_TIER_HOST, &m),
				 0);
		ck_assert_int_eq(radix_move_end(b.ix, &m, true, i ? two : one, NULL), 0);
		bed_verify(&b);
		ck_assert_int_eq(radix_member_checksum(b.ix, name_of("a"), &kind, sum), 0);
		ck_assert_uint_eq(kind, 1);
		ck_assert_mem_eq(sum, one, 16);
	}
	bed_deinit(&b);
}
END_TEST

/* ---- computed again -------------------------------------------------------------------------- */

static int commit_with(struct radix_pin *pin, char letter, uint8_t kind, uint8_t sum,
		       enum radix_commit_result *ret_result)
{
	struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
	uint8_t key[BED_MAX_KEY];
	struct radix_block block = {
		.key = key, .n_tokens = 4, .checksum_kind = kind, .checksum = { sum }
	};
	uint32_t slot = RADIX_NONE;
	int r;

	ck_assert_uint_eq(s.n, 1);
	block.slot = s.v[0];
	bed_key(&b, letter, key);
	r = radix_commit(b.ix, pin, BED_OWNER, &block, ++b.tick, &slot, ret_result);
	if (r)
		ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], false), 0);
	else
		ck_assert_uint_eq(slot, s.v[0]);
	bed_verify(&b);
	return r;
}

START_TEST(a_commit_attaches)
{
	enum radix_commit_result result;
	struct radix_pin pin;

	three_tiers();
	bed_pin(&b, &pin, "a");
	ck_assert_int_eq(commit_with(&pin, 'b', 0, 0, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_ATTACHED);
	ck_assert_uint_eq(pin.at.depth, 2);
	lies("abcd", "ddhr");
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 1);
	ck_assert_uint_eq(bed_stats(&b).attached_total, 1);
	ck_assert_uint_eq(bed_stats(&b).stored_total, 4);
	ck_assert_int_eq(commit_with(&pin, 'x', 0, 0, &result), 0); /* a branch at the boundary */
	ck_assert_int_eq(result, RADIX_COMMIT_STORED);
	lies("abx", "ddd");
	lies("abcd", "ddhr");
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

START_TEST(no_commit_below_a_lower_block)
{
	enum radix_commit_result result;
	struct radix_pin pin;

	three_tiers();
	bed_pin(&b, &pin, "ab");
	ck_assert_int_eq(commit_with(&pin, 'c', 0, 0, &result), RADIX_E_REFUSED);
	ck_assert_int_eq(commit_with(&pin, 'x', 0, 0, &result), RADIX_E_REFUSED);
	lies("abcd", "dhhr");
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

/* The same tokens, other bits: what the lower copies hold is not this block any more. */
START_TEST(other_bytes_end_the_lower_copies)
{
	enum radix_commit_result result;
	struct radix_pin pin = { 0 };
	struct radix_place root;
	struct radix_move down, up;
	uint8_t kind, sum[16];

	begin(RADIX_KEYS_TOKENS, 6, 4, true, 4);
	root = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &root);
	ck_assert_int_eq(commit_with(&pin, 'a', 1, 1, &result), 0);
	radix_pin_move(b.ix, &pin, &root);
	demote(RADIX_TIER_DEVICE, 1);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_REDIS, &down), 0);
	up = promote_begin("a");
	ck_assert_int_eq(commit_with(&pin, 'a', 1, 1, &result), 0); /* the same: all stays */
	ck_assert_int_eq(result, RADIX_COMMIT_ATTACHED);
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 1);
	radix_pin_move(b.ix, &pin, &root);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 1, 0, NULL, 0, &room);
	ck_assert_uint_eq(room.freed, 1);
	lies("a", "h");
	ck_assert_int_eq(commit_with(&pin, 'a', 1, 2, &result), 0);
	ck_assert_int_eq(result, RADIX_COMMIT_ATTACHED);
	ck_assert_uint_eq(radix_entry_host(entry_of("a")), RADIX_NONE);
	ck_assert_uint_eq(b.ix->host.state[down.src], RADIX_SLOT_QUARANTINED);
	ck_assert_int_eq(radix_member_checksum(b.ix, name_of("a"), &kind, sum), 0);
	ck_assert_uint_eq(sum[0], 2);
	ck_assert_uint_eq(end(&down, true), 0); /* old bytes: not this block's value */
	ck_assert_uint_eq(radix_entry_redis(entry_of("a")), 0);
	ck_assert_uint_eq(bed_stats(&b).moved[1][2], 0);
	ck_assert_uint_eq(end(&up, true), 1);
	ck_assert_uint_eq(entry_of("a")->moving, 0);
	lies("a", "d");
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

START_TEST(an_unknown_checksum_replaces_a_known_one)
{
	enum radix_commit_result result;
	struct radix_pin pin = { 0 };
	struct radix_place root;
	uint8_t kind, sum[16];

	begin(RADIX_KEYS_TOKENS, 6, 4, true, 4);
	root = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &root);
	ck_assert_int_eq(commit_with(&pin, 'a', 1, 1, &result), 0);
	radix_pin_move(b.ix, &pin, &root);
	demote(RADIX_TIER_DEVICE, 1);
	ck_assert_int_eq(commit_with(&pin, 'a', 0, 0, &result), 0);
	/* Nobody could tell any more whether the host copy is what was copied there. */
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 0);
	ck_assert_int_eq(radix_member_checksum(b.ix, name_of("a"), &kind, sum), 0);
	ck_assert_uint_eq(kind, 0);
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

/* ---- lost ------------------------------------------------------------------------------------ */

START_TEST(a_lost_block_takes_its_subtree)
{
	struct radix_pin pins[4];

	three_tiers();
	for (uint32_t i = 0; i < 4; i++)
		bed_pin(&b, &pins[i], &"abcd\0abc\0\0ab\0\0\0a"[i * 5]);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abc"), RADIX_TIER_HOST, RADIX_REMOVE_CORRUPT),
			  2);
	lies("abcd", "dh--");
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(pins[i].at.depth, i == 3 ? 1 : 2);
	ck_assert_uint_eq(bed_stats(&b).removed_from[1][RADIX_REMOVE_CORRUPT], 1);
	ck_assert_uint_eq(bed_stats(&b).removed_from[2][RADIX_REMOVE_CORRUPT], 1);
	for (uint32_t i = 0; i < 4; i++)
		radix_pin_drop(b.ix, &pins[i]);
	ck_assert_uint_eq(make_room(RADIX_TIER_HOST, 1, 0), 1);
	end(&moves[0], true);
	bed_deinit(&b);
}
END_TEST

/* A whole edge with its children goes: pins come up to the edge above, then to the root. */
START_TEST(pins_of_a_lost_edge_come_up)
{
	struct radix_pin pin, other;

	begin(RADIX_KEYS_TOKENS, 12, 12, true, 12);
	bed_store(&b, "abcd");
	bed_store(&b, "abcxyz");
	bed_store(&b, "abm");
	demote(RADIX_TIER_DEVICE, 8);
	bed_pin(&b, &pin, "abcxy");
	bed_pin(&b, &other, "abm");
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abc"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 5);
	bed_verify(&b);
	ck_assert_uint_eq(pin.at.depth, 2);
	ck_assert_uint_eq(other.at.depth, 3);
	lies("abcd", "hh--");
	ck_assert_uint_eq(radix_lose(b.ix, name_of("a"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 3);
	ck_assert_uint_eq(pin.at.node, RADIX_NODE_NONE);
	ck_assert_uint_eq(pin.at.depth, 0);
	ck_assert_uint_eq(other.at.depth, 0);
	radix_pin_drop(b.ix, &pin);
	radix_pin_drop(b.ix, &other);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(only_the_copy_is_lost)
{
	struct radix_member stale;

	three_tiers();
	copy("a", RADIX_TIER_HOST);
	copy("a", RADIX_TIER_REDIS);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("a"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 0);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("a"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 0);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("a"), RADIX_TIER_REDIS, RADIX_REMOVE_LOST), 0);
	ck_assert(!radix_entry_redis(entry_of("a")) &&
		  radix_entry_host(entry_of("a")) == RADIX_NONE);
	copy("ab", RADIX_TIER_REDIS);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("ab"), RADIX_TIER_REDIS, RADIX_REMOVE_LOST), 0);
	lies("abcd", "dhhr");
	copy("abc", RADIX_TIER_REDIS); /* Redis has it, too: it sinks */
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abc"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 0);
	lies("abcd", "dhrr");
	stale = name_of("abcd");
	ck_assert_uint_eq(radix_lose(b.ix, stale, RADIX_TIER_REDIS, RADIX_REMOVE_LOST), 1);
	lies("abcd", "dhr-");
	ck_assert_uint_eq(radix_lose(b.ix, stale, RADIX_TIER_REDIS, RADIX_REMOVE_LOST), 0);
	bed_deinit(&b);
}
END_TEST

/* A block may sink only where no host copy hangs below, and where there is an entry for it. */
START_TEST(a_lost_host_copy_cannot_always_sink)
{
	struct radix_pin pin;

	three_tiers();
	copy("ab", RADIX_TIER_REDIS);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("ab"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 3);
	lies("abcd", "d---");
	bed_deinit(&b);
	begin(RADIX_KEYS_TOKENS, 4, 4, true, 1);
	bed_store(&b, "abc");
	demote(RADIX_TIER_DEVICE, 3);
	demote(RADIX_TIER_HOST, 1);
	copy("ab", RADIX_TIER_REDIS);
	bed_pin(&b, &pin, "abc");
	ck_assert_uint_eq(radix_lose(b.ix, name_of("ab"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 2);
	lies("abc", "h--");
	ck_assert_uint_eq(pin.at.depth, 1);
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

START_TEST(wrong_bytes_in_the_device)
{
	struct radix_pin pin;

	three_tiers();
	bed_pin(&b, &pin, "abc");
	ck_assert_uint_eq(radix_lose(b.ix, name_of("a"), RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT),
			  0);
	lies("abcd", "dhhr");
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("ab"), RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT),
			  0); /* it has no copy there */
	ck_assert_uint_eq(radix_lose(b.ix, name_of("a"), RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT),
			  4);
	lies("abcd", "----");
	bed_deinit(&b);
}
END_TEST

/* What is read from a copy that is found bad must not come up, nor go down. */
START_TEST(a_bad_copy_is_read)
{
	struct radix_move up, down;
	uint32_t freed;

	three_tiers();
	copy("abc", RADIX_TIER_REDIS);
	up = promote_begin("ab");
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("ab"), RADIX_TIER_REDIS, &down), 0);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abc"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 0);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abcd"), RADIX_TIER_REDIS, RADIX_REMOVE_LOST),
			  1);
	lies("abc", "dhr");
	copy("a", RADIX_TIER_HOST);
	end(&down, true);
	lies("abc", "dhr");
	down = promote_begin("ab");
	ck_assert_uint_eq(radix_lose(b.ix, name_of("ab"), RADIX_TIER_HOST, RADIX_REMOVE_CORRUPT),
			  0);
	lies("abc", "drr");
	ck_assert_int_eq(radix_move_end(b.ix, &up, true, NULL, &freed), RADIX_E_STATE);
	ck_assert_uint_eq(freed, 0); /* the other one reads it still */
	ck_assert_int_eq(radix_move_end(b.ix, &down, false, NULL, &freed), 0);
	ck_assert_uint_eq(freed, 1);
	lies("abc", "drr");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_recalled_block_does_not_wait_for_ever)
{
	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "abcd");
	copy("abc", RADIX_TIER_HOST);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, 0), 2); /* d and b; c is clean */
	ck_assert_uint_eq(room.coming, 1);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abc"), RADIX_TIER_HOST, RADIX_REMOVE_LOST), 0);
	bed_verify(&b); /* c is dirty again, and no move is on its way for it */
	end(&moves[0], true);
	end(&moves[1], true);
	lies("abcd", "dddh");
	bed_deinit(&b);
	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "abcd");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, 0), 3);
	end(&moves[2], true);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("abc"), RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT),
			  2);
	bed_verify(&b); /* b, clean, had waited for those */
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(radix_move_end(b.ix, &moves[i], true, NULL, NULL),
				 RADIX_E_NOTFOUND);
	lies("abcd", "dd--");
	bed_deinit(&b);
}
END_TEST

/* ---- neighbours, islands, eviction ----------------------------------------------------------- */

START_TEST(a_donor_has_a_device_copy)
{
	struct radix_place at, donor;
	uint8_t tail[16];
	const void *stored;
	uint32_t slot, n, same;

	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	bed_store(&b, "ab");
	at = bed_place(&b, "a");
	bed_key(&b, 'b', tail);
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &n);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(slot, radix_entry_slot(entry_of("ab")));
	demote(RADIX_TIER_DEVICE, 1);
	at = bed_place(&b, "a");
	radix_partial(b.ix, &at, tail, 3, &donor, &slot, &n);
	ck_assert_uint_eq(n, 0);
	tail[15] = 0; /* an explanation may name it */
	ck_assert_int_eq(radix_closest(b.ix, &at, tail, 16, &stored, &same), 0);
	ck_assert_uint_eq(same, 15);
	bed_deinit(&b);
}
END_TEST

static int graft(char parent, char child)
{
	uint8_t p[16], c[16];
	int r;

	bed_key(&b, parent, p);
	bed_key(&b, child, c);
	r = radix_graft(b.ix, b.root, p, c);
	bed_verify(&b);
	return r;
}

START_TEST(an_island_hangs_below_as_high_a_tier)
{
	struct radix_pin pin = { 0 };
	struct radix_place at;
	bool rooted;

	begin(RADIX_KEYS_DIGEST, 8, 8, true, 8);
	bed_store(&b, "ab");
	bed_store_island(&b, "xy");
	demote(RADIX_TIER_DEVICE, 1);
	ck_assert_int_eq(graft('b', 'x'), RADIX_E_REFUSED); /* b lies in the host */
	ck_assert_int_eq(graft('a', 'x'), 0);
	lies("axy", "ddd");
	lies("ab", "dh");
	bed_store_island(&b, "mn");
	bed_touch(&b, "axy");
	demote(RADIX_TIER_DEVICE, 2);
	ck_assert_int_eq(radix_find_digest(b.ix, b.root, bed_keys(&b, "m"), &at, &rooted), 0);
	at.idx = 2; /* behind n */
	radix_pin_take(b.ix, &pin, &at);
	ck_assert_int_eq(graft('b', 'm'), 0); /* host below host */
	lies("abmn", "dhhh");
	ck_assert_uint_eq(make_room(RADIX_TIER_HOST, 1, 0), 0);
	ck_assert(room.dry); /* the pin of the island holds what it hangs below */
	radix_pin_drop(b.ix, &pin);
	demote(RADIX_TIER_HOST, 1);
	lies("abmn", "dhhr");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_graft_recalls_its_parent)
{
	begin(RADIX_KEYS_DIGEST, 8, 8, true, 8);
	bed_store(&b, "ab");
	bed_store_island(&b, "x");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, 0), 2);
	ck_assert_int_eq(graft('b', 'x'), 0);
	end(&moves[0], true);
	end(&moves[1], true);
	lies("abx", "ddd");
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 2);
	bed_deinit(&b);
}
END_TEST

START_TEST(eviction_takes_members_out_of_all_tiers)
{
	three_tiers();
	bed_store(&b, "x");
	ck_assert_uint_eq(radix_evict(b.ix, 1, RADIX_REMOVE_EVICT),
			  4); /* a, and what hangs below */
	lies("x", "d");
	demote(RADIX_TIER_DEVICE, 1);
	demote(RADIX_TIER_HOST, 1);
	bed_store(&b, "y");
	demote(RADIX_TIER_DEVICE, 1);
	ck_assert_uint_eq(radix_evict(b.ix, 9, RADIX_REMOVE_EVICT), 2);
	ck_assert_uint_eq(bed_stats(&b).n_blocks, 0);
	bed_deinit(&b);
}
END_TEST

/* Slots of a long edge come as runs before and after some went down and came up elsewhere. */
START_TEST(runs_of_a_long_edge)
{
	enum {
		LONG = 700
	};
	static uint8_t keys[LONG][16];
	static struct radix_member path[LONG];
	static struct radix_move m[LONG];
	struct radix_pin pin = { 0 };
	struct radix_place root;
	struct radix_run v[8];
	struct radix_runs runs = { .v = v, .cap = 8 };
	struct radix_match match;
	enum radix_commit_result result;
	uint32_t slot;

	begin(RADIX_KEYS_TOKENS, LONG + 20, LONG, false, 0);
	root = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &root);
	for (uint32_t i = 0; i < LONG; i++) {
		struct bed_slots s = bed_reserve(&b, BED_OWNER, 1);
		struct radix_block block = { .key = keys[i], .slot = s.v[0], .n_tokens = 4 };

		memcpy(keys[i], &i, sizeof(i));
		ck_assert_int_eq(radix_commit(b.ix, &pin, BED_OWNER, &block, 1, &slot, &result), 0);
	}
	radix_pin_drop(b.ix, &pin);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 400, 0, m, LONG, &room);
	ck_assert_uint_eq(room.started, 400);
	for (uint32_t i = 400; i--;)
		ck_assert_int_eq(radix_move_end(b.ix, &m[i], true, NULL, NULL), 0);
	bed_verify(&b);
	radix_match(b.ix, &root, keys, LONG, &runs, &match);
	ck_assert_uint_eq(match.n_device, 300);
	ck_assert_uint_eq(match.n_host, 400);
	ck_assert(runs.n == 1 && v[0].start == 0 && v[0].len == 300);
	ck_assert_uint_eq(radix_path_members(b.ix, &match.end, LONG, path), LONG);
	for (uint32_t i = 300; i < 500; i++) {
		ck_assert_int_eq(radix_promote_begin(b.ix, path[i], &m[0]), 0);
		ck_assert_int_eq(radix_move_end(b.ix, &m[0], true, NULL, NULL), 0);
	}
	bed_verify(&b);
	runs.n = 0;
	radix_match(b.ix, &root, keys, LONG, &runs, &match);
	ck_assert_uint_eq(match.n_device, 500);
	ck_assert(runs.n == 3 && v[1].start == LONG && v[1].len == 20 && v[2].start == 300 &&
		  v[2].len == 180);
	runs.n = 0;
	runs.cap = 1;
	radix_match(b.ix, &root, keys, LONG, &runs, &match);
	ck_assert(runs.full);
	ck_assert_uint_eq(match.n_blocks, 300);
	ck_assert_uint_eq(match.end.idx, 300);
	bed_deinit(&b);
}
END_TEST

/* ---- the order ------------------------------------------------------------------------------- */

enum {
	N_PATHS = 60
};

/* Random paths, each touched at a tick of its own; all go down, as many at a time as `at_once`. */
static void lru(uint64_t seed, uint32_t at_once)
{
	char paths[N_PATHS][8];
	uint64_t rng = seed, last;
	struct radix_stats s;
	uint32_t n;

	begin(RADIX_KEYS_TOKENS, 400, 400, false, 0);
	for (uint32_t i = 0; i < N_PATHS; i++) {
		uint32_t len = 1 + test_rng_below(&rng, 7);

		for (uint32_t k = 0; k < len; k++)
			paths[i][k] = (char)('a' + test_rng_below(&rng, 3));
		paths[i][len] = 0;
		bed_store(&b, paths[i]);
	}
	for (uint32_t i = 0; i < 30; i++)
		bed_touch(&b, paths[test_rng_below(&rng, N_PATHS)]);
	s = bed_stats(&b);
	last = 0;
	for (n = 0; n < s.n_blocks; n += room.started) {
		ck_assert_uint_gt(make_room(RADIX_TIER_DEVICE, at_once, 0), 0);
		for (uint32_t i = 0; i < room.started; i++) {
			/* a parent is never older than its child: nobody older is left */
			ck_assert_uint_ge(moves[i].tick, last);
			last = moves[i].tick;
		}
		for (uint32_t i = room.started; i--;)
			end(&moves[i], true);
	}
	ck_assert_uint_eq(bed_stats(&b).tier[1], s.n_blocks);
	bed_deinit(&b);
}

START_TEST(blocks_go_down_by_age)
{
	for (uint64_t seed = 1; seed <= 5; seed++) {
		lru(seed, 1);
		lru(seed, 7);
		lru(seed, TIERS_MOVES);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tiers-up");
	TCase *tc = tcase_create("up");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, blocks_come_up_in_path_order);
	tcase_add_test(tc, two_bring_up_one_block);
	tcase_add_test(tc, promotion_needs_a_free_slot);
	tcase_add_test(tc, a_promotion_that_fails);
	tcase_add_test(tc, a_member_goes_while_it_moves);
	tcase_add_test(tc, a_checksum_is_kept_if_none_was);
	tcase_add_test(tc, a_commit_attaches);
	tcase_add_test(tc, no_commit_below_a_lower_block);
	tcase_add_test(tc, other_bytes_end_the_lower_copies);
	tcase_add_test(tc, an_unknown_checksum_replaces_a_known_one);
	tcase_add_test(tc, a_lost_block_takes_its_subtree);
	tcase_add_test(tc, pins_of_a_lost_edge_come_up);
	tcase_add_test(tc, only_the_copy_is_lost);
	tcase_add_test(tc, a_lost_host_copy_cannot_always_sink);
	tcase_add_test(tc, wrong_bytes_in_the_device);
	tcase_add_test(tc, a_bad_copy_is_read);
	tcase_add_test(tc, a_recalled_block_does_not_wait_for_ever);
	tcase_add_test(tc, a_donor_has_a_device_copy);
	tcase_add_test(tc, an_island_hangs_below_as_high_a_tier);
	tcase_add_test(tc, a_graft_recalls_its_parent);
	tcase_add_test(tc, eviction_takes_members_out_of_all_tiers);
	tcase_add_test(tc, runs_of_a_long_edge);
	tcase_add_test(tc, blocks_go_down_by_age);
	suite_add_tcase(s, tc);
	return test_run(s);
}
