/*
 * test_tiers.c - the tiers of an index, call by call: what may leave, what stays, what comes back.
 */
#include "tests/lib/run.h"
#include "tests/radix/tiers_bed.h"

/* ---- going down ------------------------------------------------------------------------------ */

START_TEST(a_path_goes_down_from_its_end)
{
	struct radix_run v[4];
	struct radix_runs runs = { .v = v, .cap = 4 };
	struct radix_place from;
	struct radix_match m;

	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	from = radix_place_root(b.root);
	bed_store(&b, "abcdef");
	lies("abcdef", "dddddd");
	demote(RADIX_TIER_DEVICE, 4);
	lies("abcdef", "ddhhhh");
	demote(RADIX_TIER_HOST, 2);
	lies("abcdef", "ddhhrr");
	demote(RADIX_TIER_DEVICE, 1);
	lies("abcdefg", "dhhhrr-");
	radix_match(b.ix, &from, bed_keys(&b, "abcdef"), 6, &runs, &m);
	ck_assert_uint_eq(runs.n, 1); /* slots of what lies in the device, and of nothing else */
	ck_assert_uint_eq(v[0].len, 1);
	ck_assert_uint_eq(m.device_end.depth, 1);
	ck_assert_uint_eq(m.end.depth, 6);
	radix_match(b.ix, &m.device_end, bed_keys(&b, "bcdef"), 5, &runs, &m);
	ck_assert_uint_eq(m.n_blocks, 5);
	ck_assert_uint_eq(m.n_host, 3);
	ck_assert_uint_eq(m.device_end.depth, 1); /* where it began */
	ck_assert_uint_eq(runs.n, 1);
	bed_deinit(&b);
}
END_TEST

START_TEST(moves_may_end_in_any_order)
{
	begin(RADIX_KEYS_TOKENS, 4, 4, false, 0);
	bed_store(&b, "abcd");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, 0), 3);
	ck_assert_uint_eq(moves[0].src, radix_entry_slot(entry_of("abcd")));
	ck_assert_uint_eq(radix_slot_state(b.ix, moves[0].src), RADIX_SLOT_LEAVING);
	ck_assert_uint_eq(end(&moves[1], true), 0);
	ck_assert_uint_eq(end(&moves[2], true), 0);
	lies("abcd", "dddd");
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_DEVICE), 0);
	ck_assert_uint_eq(radix_leaving_slots(b.ix, RADIX_TIER_DEVICE), 3);
	ck_assert_uint_eq(end(&moves[0], true), 3);
	ck_assert_uint_eq(radix_leaving_slots(b.ix, RADIX_TIER_DEVICE), 0);
	lies("abcd", "dhhh");
	ck_assert_uint_eq(bed_stats(&b).moved[0][1], 3);
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(what_is_clean_goes_at_once)
{
	begin(RADIX_KEYS_TOKENS, 4, 4, false, 0);
	bed_store(&b, "abcd");
	copy("abcd", RADIX_TIER_HOST);
	copy("ab", RADIX_TIER_HOST);
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 2);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, 0), 0);
	ck_assert_uint_eq(room.freed, 1);
	lies("abcd", "dddh");
	/* c is dirty; b is clean but has to wait for it */
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, 0), 1);
	ck_assert_uint_eq(room.coming, 1);
	ck_assert_uint_eq(room.freed, 0);
	ck_assert_uint_eq(end(&moves[0], true), 2);
	lies("abcd", "dhhh");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_copy_on_its_way_is_not_begun_twice)
{
	struct radix_move m, again;

	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "a");
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_HOST, &m), 0);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_HOST, &again),
			 RADIX_E_STATE);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, 0), 0);
	ck_assert_uint_eq(room.coming, 1);
	ck_assert_uint_eq(end(&m, true), 1);
	lies("a", "h");
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_HOST, &again),
			 RADIX_E_STATE);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_DEVICE, &again),
			 RADIX_E_STATE);
	copy("a", RADIX_TIER_REDIS);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("a"), RADIX_TIER_REDIS, &again),
			 RADIX_E_STATE);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_copy_needs_a_free_slot)
{
	struct radix_move m;

	begin(RADIX_KEYS_TOKENS, 4, 1, false, 0);
	bed_store(&b, "ab");
	copy("a", RADIX_TIER_HOST);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("ab"), RADIX_TIER_HOST, &m),
			 RADIX_E_REFUSED);
	ck_assert_int_eq(radix_copy_begin(b.ix, name_of("ab"), RADIX_TIER_REDIS, &m),
			 RADIX_E_STATE); /* there is none */
	/* but a victim takes the place of a bonus */
	demote(RADIX_TIER_DEVICE, 1);
	lies("ab", "dh");
	ck_assert_uint_eq(radix_entry_host(entry_of("a")), RADIX_NONE);
	bed_deinit(&b);
}
END_TEST

/* Five short edges in a row leave together; a fork's both arms before its stem. */
START_TEST(leaving_crosses_edges)
{
	begin(RADIX_KEYS_TOKENS, 12, 12, false, 0);
	bed_store(&b, "abcd");
	bed_store(&b, "abx");
	bed_store(&b, "q");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 5, 0), 5);
	ck_assert_uint_eq(moves[0].block.entry, name_of("abcd").entry);
	ck_assert_uint_eq(moves[1].block.entry, name_of("abc").entry);
	ck_assert_uint_eq(moves[2].block.entry, name_of("abx").entry);
	ck_assert_uint_eq(moves[3].block.entry, name_of("ab").entry);
	ck_assert_uint_eq(moves[4].block.entry, name_of("a").entry);
	ck_assert_uint_eq(end(&moves[4], true), 0);
	ck_assert_uint_eq(end(&moves[3], true), 0);
	ck_assert_uint_eq(end(&moves[0], true), 1);
	ck_assert_uint_eq(end(&moves[2], true), 1);
	ck_assert_uint_eq(end(&moves[1], true), 3);
	lies("abcd", "hhhh");
	lies("abx", "hhh");
	lies("q", "d");
	bed_deinit(&b);
}
END_TEST

START_TEST(one_arm_that_stays_keeps_the_stem)
{
	begin(RADIX_KEYS_TOKENS, 12, 12, false, 0);
	bed_store(&b, "abcd");
	bed_store(&b, "abx");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 5, 0), 5);
	ck_assert_uint_eq(end(&moves[3], true), 0); /* b */
	bed_touch(&b, "abx");
	bed_verify(&b);
	ck_assert_uint_eq(radix_slot_state(b.ix, moves[4].src), RADIX_SLOT_READY);
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 1); /* b's */
	ck_assert_uint_eq(end(&moves[0], true), 1);
	ck_assert_uint_eq(end(&moves[1], true), 1);
	ck_assert_uint_eq(end(&moves[2], true), 0);
	ck_assert_uint_eq(end(&moves[4], true), 0);
	lies("abcd", "ddhh");
	lies("abx", "ddd");
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 3);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_use_recalls)
{
	struct radix_pin pin;

	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "abcd");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, 0), 3);
	bed_pin(&b, &pin, "abc");
	ck_assert_uint_eq(radix_slot_state(b.ix, moves[0].src), RADIX_SLOT_LEAVING);
	ck_assert_uint_eq(radix_slot_state(b.ix, moves[1].src), RADIX_SLOT_READY);
	ck_assert_uint_eq(radix_slot_state(b.ix, moves[2].src), RADIX_SLOT_READY);
	bed_verify(&b);
	radix_pin_drop(b.ix, &pin); /* it stays recalled */
	for (uint32_t i = 0; i < 3; i++)
		end(&moves[i], true);
	lies("abcd", "dddh");
	ck_assert_uint_eq(bed_stats(&b).n_bonus, 2);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, 0), 0);
	ck_assert_uint_eq(room.freed, 2);
	lies("abcd", "dhhh");
	bed_deinit(&b);
}
END_TEST

START_TEST(a_failed_move_changes_nothing)
{
	begin(RADIX_KEYS_TOKENS, 4, 4, false, 0);
	bed_store(&b, "abcd");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, 0), 3);
	ck_assert_uint_eq(end(&moves[1], false), 0); /* c: b before it does not leave either */
	ck_assert_uint_eq(end(&moves[2], true), 0);
	ck_assert_uint_eq(end(&moves[0], true), 1);
	lies("abcd", "dddh");
	ck_assert_uint_eq(radix_entry_host(entry_of("abc")), RADIX_NONE);
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_HOST), 2);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, 0), 1); /* b is clean by now */
	ck_assert_uint_eq(room.coming, 1);
	ck_assert_uint_eq(end(&moves[0], true), 2);
	bed_deinit(&b);
}
END_TEST

/* A pin on a lower block holds all that is before it, in whatever tier and edge. */
START_TEST(a_pin_below_holds_what_is_above)
{
	struct radix_pin pin;

	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	bed_store(&b, "abcd");
	bed_store(&b, "abx");
	demote(RADIX_TIER_DEVICE, 3);
	lies("abcd", "ddhh");
	lies("abx", "ddh");
	demote(RADIX_TIER_HOST, 2);
	lies("abcd", "ddrr");
	bed_pin(&b, &pin, "abc");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, 0), 0);
	ck_assert(room.dry);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, 0), 2);
	bed_pin(&b, &pin, "abc");
	ck_assert_uint_eq(radix_slot_state(b.ix, moves[1].src), RADIX_SLOT_READY);
	end(&moves[0], true);
	end(&moves[1], true);
	lies("abcd", "ddrr");
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

START_TEST(no_room_below)
{
	struct radix_pin pin;

	begin(RADIX_KEYS_TOKENS, 4, 2, true, 4);
	bed_store(&b, "abcd");
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 1, 0, NULL, 0, &room);
	ck_assert(room.blocked && !room.dry && !room.freed);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 4, 0, moves, 1, &room);
	ck_assert(room.started == 1 && !room.blocked && !room.dry);
	end(&moves[0], true);
	demote(RADIX_TIER_DEVICE, 1);
	lies("abcd", "ddhh");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, 0), 0);
	ck_assert(room.blocked); /* the host's leaf is dirty */
	demote(RADIX_TIER_HOST, 1);
	demote(RADIX_TIER_DEVICE, 1);
	lies("abcd", "dhhr");
	copy("abc", RADIX_TIER_REDIS); /* clean: it makes way by itself */
	demote(RADIX_TIER_DEVICE, 1);
	lies("abcd", "hhrr");
	bed_pin(&b, &pin, "ab");
	ck_assert_uint_eq(make_room(RADIX_TIER_HOST, 1, 0), 0);
	ck_assert(room.dry);
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

/* A reserve takes what is clean, and begins nothing. */
START_TEST(reserve_takes_clean_victims)
{
	struct bed_slots s;

	begin(RADIX_KEYS_TOKENS, 4, 4, false, 0);
	bed_store(&b, "ab");
	bed_store(&b, "xy");
	copy("ab", RADIX_TIER_HOST);
	s = bed_reserve(&b, BED_OWNER, 4);
	ck_assert_uint_eq(s.n, 1);
	lies("ab", "dh");
	bed_verify(&b);
	ck_assert_int_eq(radix_slot_discard(b.ix, BED_OWNER, s.v[0], false), 0);
	bed_deinit(&b);
}
END_TEST

START_TEST(the_host_evicts_bonuses_and_leaves_by_age)
{
	begin(RADIX_KEYS_TOKENS, 8, 3, true, 8);
	bed_store(&b, "ab");
	bed_store(&b, "x");
	demote(RADIX_TIER_DEVICE, 2);
	lies("ab", "hh");
	copy("ab", RADIX_TIER_REDIS);
	bed_touch(&b, "ab");
	copy("x",
	     RADIX_TIER_HOST); /* bonus at the tick of the touch: older goes first, it if equal */
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_HOST), 0);
	radix_make_room(b.ix, RADIX_TIER_HOST, 1, 0, NULL, 0, &room);
	ck_assert_uint_eq(room.freed, 1);
	ck_assert_uint_eq(radix_entry_host(entry_of("x")), RADIX_NONE);
	bed_touch(&b, "x");
	copy("x", RADIX_TIER_HOST);
	radix_make_room(b.ix, RADIX_TIER_HOST, 1, 0, NULL, 0, &room);
	ck_assert_uint_eq(room.freed, 1);
	lies("ab", "hr");
	ck_assert_uint_ne(radix_entry_host(entry_of("x")), RADIX_NONE);
	bed_deinit(&b);
}
END_TEST

START_TEST(without_redis_the_host_forgets)
{
	begin(RADIX_KEYS_TOKENS, 2, 2, false, 0);
	bed_store(&b, "ab");
	demote(RADIX_TIER_DEVICE, 2);
	bed_store(&b, "xy");
	demote(RADIX_TIER_DEVICE, 1);
	lies("ab", "h-");
	lies("xy", "dh");
	ck_assert_uint_eq(bed_stats(&b).removed_from[1][RADIX_REMOVE_CAPACITY], 1);
	radix_make_room(b.ix, RADIX_TIER_HOST, 1, 0, NULL, 0, &room);
	ck_assert_uint_eq(room.freed, 1);
	lies("ab", "--");
	bed_deinit(&b);
}
END_TEST

/* ---- dropping -------------------------------------------------------------------------------- */

START_TEST(a_drop_takes_what_hangs_below)
{
	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "abcd");
	demote(RADIX_TIER_DEVICE, 2);
	lies("abcd", "ddhh");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, RADIX_ROOM_DROP), 0);
	ck_assert_uint_eq(room.freed, 1);
	ck_assert_uint_eq(room.dropped, 3);
	lies("abcd", "d---");
	ck_assert_uint_eq(bed_stats(&b).removed_from[0][RADIX_REMOVE_DROPPED], 1);
	ck_assert_uint_eq(bed_stats(&b).removed_from[1][RADIX_REMOVE_DROPPED], 2);
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_HOST), 4);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_drop_while_others_leave)
{
	begin(RADIX_KEYS_TOKENS, 4, 2, false, 0);
	bed_store(&b, "abcd");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 4, 0), 2);
	ck_assert(room.blocked);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, RADIX_ROOM_DROP), 0);
	ck_assert_uint_eq(room.freed, 1); /* those that are read come later */
	ck_assert_uint_eq(room.dropped, 3);
	ck_assert_uint_eq(bed_stats(&b).slots[RADIX_SLOT_QUARANTINED], 2);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t freed;

		ck_assert_int_eq(radix_quarantine_end(b.ix, moves[i].src), RADIX_E_STATE);
		ck_assert_int_eq(radix_move_end(b.ix, &moves[i], true, NULL, &freed),
				 RADIX_E_NOTFOUND);
		ck_assert_uint_eq(freed, 1);
	}
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_HOST), 2);
	lies("abcd", "d---");
	bed_deinit(&b);
}
END_TEST

/* With a value in Redis a dropped block is still there; with a host copy below it may not be. */
START_TEST(a_drop_keeps_what_redis_has)
{
	begin(RADIX_KEYS_TOKENS, 4, 4, true, 4);
	bed_store(&b, "ab");
	copy("ab", RADIX_TIER_REDIS);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, RADIX_ROOM_DROP), 0);
	ck_assert_uint_eq(room.dropped, 0);
	lies("ab", "dr");
	bed_store(&b, "xyz");
	copy("xy", RADIX_TIER_REDIS);
	bed_touch(&b, "a");
	demote(RADIX_TIER_DEVICE, 1);
	lies("xyz", "ddh");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 1, RADIX_ROOM_DROP), 0);
	ck_assert_uint_eq(room.dropped, 2);
	lies("xyz", "d--");
	bed_deinit(&b);
}
END_TEST

START_TEST(second_use)
{
	struct radix_place at;

	begin(RADIX_KEYS_TOKENS, 8, 8, false, 0);
	bed_store(&b, "abcd");
	at = bed_place(&b, "ab");
	radix_hit(b.ix, &at);
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, RADIX_ROOM_SECOND_USE), 1);
	ck_assert_uint_eq(room.freed, 2);
	ck_assert_uint_eq(room.dropped, 2);
	end(&moves[0], true);
	lies("abcd", "dh--");
	ck_assert_uint_eq(bed_stats(&b).removed_from[0][RADIX_REMOVE_CAPACITY], 2);
	bed_deinit(&b);
}
END_TEST

START_TEST(a_branch_at_a_hit_keeps_it)
{
	struct radix_place at;

	begin(RADIX_KEYS_TOKENS, 12, 12, false, 0);
	bed_store(&b, "abcd");
	at = bed_place(&b, "abc");
	radix_hit(b.ix, &at);
	bed_store(&b, "abx"); /* cuts the edge inside what was hit */
	bed_touch(&b, "abcd");
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 2, RADIX_ROOM_SECOND_USE), 0);
	ck_assert_uint_eq(room.dropped, 2); /* x, and d: never hit */
	ck_assert_uint_eq(make_room(RADIX_TIER_DEVICE, 3, RADIX_ROOM_SECOND_USE), 3);
	for (uint32_t i = 0; i < 3; i++)
		end(&moves[i], true);
	lies("abcd", "hhh-");
	bed_deinit(&b);
}
END_TEST

/* ---- Redis-only members ---------------------------------------------------------------------- */

START_TEST(the_coldest_is_forgotten)
{
	begin(RADIX_KEYS_TOKENS, 4, 0, true, 2);
	bed_store(&b, "ab");
	demote(RADIX_TIER_DEVICE, 2);
	lies("ab", "rr");
	bed_store(&b, "xy");
	demote(RADIX_TIER_DEVICE, 1);
	lies("ab", "r-");
	lies("xy", "dr");
	ck_assert_uint_eq(bed_stats(&b).removed_from[2][RADIX_REMOVE_CAPACITY], 1);
	bed_deinit(&b);
	begin(RADIX_KEYS_TOKENS, 4, 0, true, 0);
	bed_store(&b, "ab");
	demote(RADIX_TIER_DEVICE, 1);
	lies("ab", "d-"); /* its value is there, but nobody knows */
	ck_assert_uint_eq(bed_stats(&b).moved[0][2], 1);
	bed_deinit(&b);
}
END_TEST

START_TEST(redis_is_found_to_hold_more)
{
	struct radix_pin pin, root = { 0 };
	struct radix_place top;

	begin(RADIX_KEYS_TOKENS, 8, 4, true, 4);
	top = radix_place_root(b.root);
	bed_store(&b, "abc");
	bed_pin(&b, &pin, "ab");
	ck_assert_uint_eq(found(&pin, "cx"), 0); /* a member already */
	ck_assert_uint_eq(found(&pin, "xy"), 2); /* in the middle of an edge */
	lies("abxy", "ddrr");
	lies("abc", "ddd");
	ck_assert_uint_eq(pin.at.depth, 2);
	radix_pin_take(b.ix, &root, &top);
	ck_assert_uint_eq(found(&root, "qrs"), 3); /* y makes way for the last */
	lies("abxy", "ddr-");
	lies("qrs", "rrr");
	ck_assert_uint_eq(found(&root, "wvutw"), 4); /* what this call has added does not */
	lies("wvut", "rrrr");
	lies("qrs", "---");
	ck_assert_uint_eq(bed_stats(&b).found_total, 9);
	radix_pin_drop(b.ix, &pin);
	radix_pin_drop(b.ix, &root);
	bed_deinit(&b);
}
END_TEST

START_TEST(all_of_redis_is_held)
{
	struct radix_pin pin = { 0 }, hold;
	struct radix_place top;

	begin(RADIX_KEYS_TOKENS, 8, 4, true, 2);
	top = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &top);
	ck_assert_uint_eq(found(&pin, "ab"), 2);
	bed_pin(&b, &hold, "ab");
	ck_assert_uint_eq(found(&pin, "xy"), 0);
	lies("ab", "rr");
	radix_pin_drop(b.ix, &hold);
	ck_assert_uint_eq(found(&pin, "xy"), 2);
	lies("ab", "--");
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

START_TEST(without_redis_nothing_is_found)
{
	struct radix_pin pin = { 0 };
	struct radix_place top;

	begin(RADIX_KEYS_TOKENS, 8, 4, false, 4);
	top = radix_place_root(b.root);
	radix_pin_take(b.ix, &pin, &top);
	ck_assert_uint_eq(found(&pin, "ab"), 0);
	radix_pin_drop(b.ix, &pin);
	bed_deinit(&b);
}
END_TEST

/* ---- the picture, the log, no tiers ---------------------------------------------------------- */

static char picture[512]; /* of the last line */

static void draw(void *ctx, const char *text)
{
	size_t n = strlen(text);

	ck_assert_uint_lt(n, sizeof(picture));
	memcpy(picture, text, n + 1);
}

START_TEST(a_picture)
{
	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	bed_store(&b, "abcdef");
	demote(RADIX_TIER_DEVICE, 5);
	demote(RADIX_TIER_HOST, 2);
	radix_dump(b.ix, RADIX_NONE, 10, draw, NULL);
	ck_assert_msg(strstr(picture, "6 blocks, host 3, redis 2, slots 0..0") != NULL, "%s",
		      picture);
	demote(RADIX_TIER_DEVICE, 1);
	radix_dump(b.ix, RADIX_NONE, 10, draw, NULL);
	ck_assert_msg(strstr(picture, "6 blocks, host 4, redis 2, used") != NULL, "%s", picture);
	for (enum radix_tier t = 0; t <= RADIX_N_TIERS; t++)
		ck_assert_str_eq(radix_tier_to_string(t),
				 ((const char *[]){ "device", "host", "redis", "?" })[t]);
	bed_deinit(&b);
}
END_TEST

START_TEST(the_log_names_tiers)
{
	struct radix_change ring[64];
	struct radix_log log = { .v = ring, .cap = 64 };
	struct radix_pin pin;

	begin(RADIX_KEYS_TOKENS, 8, 8, true, 8);
	radix_index_log(b.ix, &log, 5);
	bed_store(&b, "a");
	demote(RADIX_TIER_DEVICE, 1);
	demote(RADIX_TIER_HOST, 1);
	promote("a");
	bed_pin(&b, &pin, "a");
	ck_assert_uint_eq(found(&pin, "b"), 1);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(radix_lose(b.ix, name_of("ab"), RADIX_TIER_REDIS, RADIX_REMOVE_LOST), 1);
	static const uint8_t expected[][3] = {
		{ RADIX_CHANGE_STORED, RADIX_TIER_DEVICE, 0 },
		{ RADIX_CHANGE_MOVED, RADIX_TIER_HOST, RADIX_TIER_DEVICE },
		{ RADIX_CHANGE_MOVED, RADIX_TIER_REDIS, RADIX_TIER_HOST },
		{ RADIX_CHANGE_MOVED, RADIX_TIER_DEVICE, RADIX_TIER_REDIS },
		{ RADIX_CHANGE_STORED, RADIX_TIER_REDIS, 0 },
		{ RADIX_CHANGE_REMOVED, RADIX_TIER_REDIS, 0 },
	};
	ck_assert_uint_eq(log.n, radix_array_size(expected));
	for (uint32_t i = 0; i < log.n; i++) {
		ck_assert_uint_eq(ring[i].kind, expected[i][0]);
		ck_assert_uint_eq(ring[i].tier, expected[i][1]);
		ck_assert_uint_eq(ring[i].from_tier, expected[i][2]);
	}
	ck_assert_uint_eq(ring[5].reason, RADIX_REMOVE_LOST);
	bed_deinit(&b);
}
END_TEST

START_TEST(an_index_without_tiers)
{
	struct radix_place at;
	struct radix_member path[2], none = { 77, 1 };
	struct radix_move m;
	struct radix_match match;
	enum radix_tier t;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 4);
	bed_store(&b, "abcd");
	at = radix_place_root(b.root);
	match = bed_match_from(&b, &at, "abcd");
	ck_assert_uint_eq(match.n_device, 4);
	ck_assert_uint_eq(match.device_end.idx, 4);
	at = bed_place(&b, "abc");
	ck_assert_uint_eq(radix_path_members(b.ix, &at, 2, path), 2);
	ck_assert_int_eq(radix_member_tier(b.ix, path[1], &t), 0);
	ck_assert_int_eq(t, RADIX_TIER_DEVICE);
	ck_assert_int_eq(radix_member_tier(b.ix, none, &t), RADIX_E_NOTFOUND);
	ck_assert_int_eq(radix_promote_begin(b.ix, path[1], &m), RADIX_E_STATE);
	ck_assert_int_eq(radix_copy_begin(b.ix, path[1], RADIX_TIER_HOST, &m), RADIX_E_STATE);
	ck_assert_int_eq(radix_copy_begin(b.ix, path[1], RADIX_TIER_REDIS, &m), RADIX_E_STATE);
	ck_assert_uint_eq(radix_lose(b.ix, path[1], RADIX_TIER_HOST, RADIX_REMOVE_CORRUPT), 0);
	ck_assert_uint_eq(radix_lose(b.ix, path[1], RADIX_TIER_REDIS, RADIX_REMOVE_LOST), 0);
	radix_hit(b.ix, &at);
	radix_make_room(b.ix, RADIX_TIER_HOST, 1, 0, NULL, 0, &room);
	ck_assert(room.dry && !room.freed);
	radix_make_room(b.ix, RADIX_TIER_DEVICE, 1, 0, NULL, 0, &room);
	ck_assert(!room.dry && room.freed == 1);
	ck_assert_uint_eq(bed_match(&b, "abcd"), 3);
	ck_assert_uint_eq(bed_stats(&b).tier[0], 3);
	ck_assert_uint_eq(bed_stats(&b).removed_from[0][RADIX_REMOVE_CAPACITY], 1);
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_HOST), 0);
	ck_assert_uint_eq(radix_free_slots(b.ix, RADIX_TIER_REDIS), 0);
	bed_deinit(&b);
}
END_TEST

/* Wrong bytes in a slot: the block goes with what hangs below it, unless that is held. */
START_TEST(a_bad_slot_without_tiers)
{
	static const char *const held[] = { "abc", "abcd", "abcxy" };
	struct radix_place at;
	struct radix_member bc[2];
	struct radix_pin pin;

	bed_init(&b, RADIX_KEYS_TOKENS, 16, 12);
	bed_store(&b, "abcd");
	bed_store(&b, "abcxy");
	bed_store(&b, "q");
	at = bed_place(&b, "abc");
	ck_assert_uint_eq(radix_path_members(b.ix, &at, 2, bc), 2);
	for (uint32_t i = 0; i < radix_array_size(held); i++) {
		bed_pin(&b, &pin, held[i]);
		ck_assert_uint_eq(radix_lose(b.ix, bc[1], RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT),
				  0);
		radix_pin_drop(b.ix, &pin);
	}
	bed_pin(&b, &pin, "ab");
	ck_assert_uint_eq(radix_lose(b.ix, bc[1], RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT), 4);
	ck_assert_uint_eq(radix_lose(b.ix, bc[1], RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT), 0);
	ck_assert_uint_eq(radix_lose(b.ix, bc[0], RADIX_TIER_DEVICE, RADIX_REMOVE_CORRUPT), 0);
	radix_pin_drop(b.ix, &pin);
	ck_assert_uint_eq(bed_match(&b, "abcd"), 2);
	ck_assert_uint_eq(bed_match(&b, "q"), 1);
	ck_assert_uint_eq(bed_stats(&b).removed[RADIX_REMOVE_CORRUPT], 4);
	bed_deinit(&b);
}
END_TEST

START_TEST(sizes_that_do_not_fit)
{
	struct radix_index_config c = { .n_slots = 4, .n_host = 4, .n_entries = 7 };
	struct radix_index *ix = NULL;
	struct test_heap heap;

	test_heap_init(&heap);
	c.alloc = &heap.alloc;
	ck_assert_int_eq(radix_index_new(&ix, &c), -EINVAL);
	c.n_host = UINT32_MAX;
	ck_assert_int_eq(radix_index_new(&ix, &c), -EINVAL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tiers");
	TCase *tc = tcase_create("tiers");

	tcase_add_test(tc, a_path_goes_down_from_its_end);
	tcase_add_test(tc, moves_may_end_in_any_order);
	tcase_add_test(tc, what_is_clean_goes_at_once);
	tcase_add_test(tc, a_copy_on_its_way_is_not_begun_twice);
	tcase_add_test(tc, a_copy_needs_a_free_slot);
	tcase_add_test(tc, leaving_crosses_edges);
	tcase_add_test(tc, one_arm_that_stays_keeps_the_stem);
	tcase_add_test(tc, a_use_recalls);
	tcase_add_test(tc, a_failed_move_changes_nothing);
	tcase_add_test(tc, a_pin_below_holds_what_is_above);
	tcase_add_test(tc, no_room_below);
	tcase_add_test(tc, reserve_takes_clean_victims);
	tcase_add_test(tc, the_host_evicts_bonuses_and_leaves_by_age);
	tcase_add_test(tc, without_redis_the_host_forgets);
	tcase_add_test(tc, a_drop_takes_what_hangs_below);
	tcase_add_test(tc, a_drop_while_others_leave);
	tcase_add_test(tc, a_drop_keeps_what_redis_has);
	tcase_add_test(tc, second_use);
	tcase_add_test(tc, a_branch_at_a_hit_keeps_it);
	tcase_add_test(tc, the_coldest_is_forgotten);
	tcase_add_test(tc, redis_is_found_to_hold_more);
	tcase_add_test(tc, all_of_redis_is_held);
	tcase_add_test(tc, without_redis_nothing_is_found);
	tcase_add_test(tc, a_picture);
	tcase_add_test(tc, the_log_names_tiers);
	tcase_add_test(tc, an_index_without_tiers);
	tcase_add_test(tc, a_bad_slot_without_tiers);
	tcase_add_test(tc, sizes_that_do_not_fit);
	suite_add_tcase(s, tc);
	return test_run(s);
}
