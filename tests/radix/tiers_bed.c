/*
 * tiers_bed.c - see tiers_bed.h.
 */
#include "tests/radix/tiers_bed.h"

struct bed b;
struct radix_move moves[TIERS_MOVES];
struct radix_room room;

void begin(enum radix_key_mode mode, uint32_t n_slots, uint32_t n_host, bool redis, uint32_t budget)
{
	bed_init_tiers(&b, mode, n_slots, n_host, redis, budget);
}

void lies(const char *path, const char *tiers)
{
	struct radix_place from = radix_place_root(b.root);
	struct radix_match m = bed_match_from(&b, &from, path);
	char got[BED_MAX_PATH + 1] = "";

	for (uint32_t i = 0; i < strlen(path); i++) {
		got[i] = i < m.n_device              ? 'd'
			 : i < m.n_device + m.n_host ? 'h'
			 : i < m.n_blocks            ? 'r'
						     : '-';
	}
	ck_assert_str_eq(got, tiers);
	bed_verify(&b);
}

struct radix_member name_of(const char *path)
{
	struct radix_place at = bed_place(&b, path);
	struct radix_member m;

	ck_assert_uint_eq(radix_path_members(b.ix, &at, 1, &m), 1);
	return m;
}

const struct radix_entry *entry_of(const char *path)
{
	return &b.ix->table.v[name_of(path).entry];
}

uint32_t make_room(enum radix_tier tier, uint32_t want, uint32_t flags)
{
	radix_make_room(b.ix, tier, want, flags, moves, TIERS_MOVES, &room);
	bed_verify(&b);
	return room.started;
}

uint32_t end(const struct radix_move *m, bool ok)
{
	uint32_t freed = 99;

	ck_assert_int_eq(radix_move_end(b.ix, m, ok, NULL, &freed), 0);
	bed_verify(&b);
	return freed;
}

void demote(enum radix_tier tier, uint32_t n)
{
	ck_assert_uint_eq(make_room(tier, n, 0) + room.freed, n);
	for (uint32_t i = 0; i < room.started; i++)
		end(&moves[i], true);
}

struct radix_move promote_begin(const char *path)
{
	struct radix_move m;

	ck_assert_int_eq(radix_promote_begin(b.ix, name_of(path), &m), 0);
	bed_verify(&b);
	return m;
}

void promote(const char *path)
{
	struct radix_move m = promote_begin(path);

	end(&m, true);
}

void copy(const char *path, enum radix_tier to)
{
	struct radix_move m;

	ck_assert_int_eq(radix_copy_begin(b.ix, name_of(path), to, &m), 0);
	end(&m, true);
}

uint32_t found(struct radix_pin *pin, const char *letters)
{
	struct radix_member names[BED_MAX_PATH];
	uint32_t n = radix_add_lower(b.ix, pin, bed_keys(&b, letters), (uint32_t)strlen(letters),
				     ++b.tick, names);

	for (uint32_t i = 0; i < n; i++) {
		const void *key;
		uint32_t len, root, n_tokens;
		enum radix_tier t;

		ck_assert_int_eq(radix_member_key(b.ix, names[i], &key, &len), 0);
		ck_assert_uint_eq(len, b.key_len);
		ck_assert_mem_eq(key, bed_keys(&b, letters) + i * b.key_len, len);
		ck_assert_int_eq(radix_member_tier(b.ix, names[i], &t), 0);
		ck_assert_int_eq(t, RADIX_TIER_REDIS);
		ck_assert_int_eq(radix_member_root(b.ix, names[i], &root, &n_tokens), 0);
		ck_assert_uint_eq(root, b.root);
		ck_assert_uint_eq(n_tokens, b.mode == RADIX_KEYS_TOKENS ? b.key_len / 4 : 16);
	}
	bed_verify(&b);
	return n;
}
