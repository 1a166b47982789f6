/*
 * test_recover_damage.c - stores that are not as they were written.
 *
 * A session of an index with everything in it is over, and its store is known block by block.
 * Then one bit is flipped, in each class of field and anywhere, thousands of times, and an index
 * is made of that: nothing may be found that was not there, and only what the bit belonged to,
 * and what hangs below it, may be missing.  Then many bytes at once: nothing may be found that
 * was not there.
 */
#include "radix/recover.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/radix/lives.h"
#include "tests/radix/reborn.h"

#include <stdlib.h>
#include <time.h>

static const struct lives_shape shapes[] = {
	{ RADIX_KEYS_TOKENS, 30, 0, 0, false, 0 },
	{ RADIX_KEYS_DIGEST, 30, 0, 0, false, 0 },
	{ RADIX_KEYS_TOKENS, 12, 12, 8, true, 8 },
	{ RADIX_KEYS_DIGEST, 12, 12, 8, true, 8 },
	{ RADIX_KEYS_TOKENS, 14, 0, 20, false, 0, false, 2 },
	{ RADIX_KEYS_DIGEST, 14, 0, 20, false, 0, false, 2 },
	{ RADIX_KEYS_TOKENS, 10, 8, 24, true, 8, false, 2 },
};

static uint64_t fresh_seed, rng;

static struct {
	const struct lives_shape *shape;
	struct test_heap heap;
	struct kept kept;
	struct lives l;
	struct reborn r; /* of the store, whole or damaged */
	const char *what;
	uint64_t at; /* offset of the damage, and its bit */
	uint32_t bit;
} w;

#define MAY(cond, number)                                                                       \
	do {                                                                                    \
		if (!(cond))                                                                    \
			ck_abort_msg("%s, bit %u of byte %llu, number %u, line %d: %s", w.what, \
				     w.bit, (unsigned long long)w.at, (unsigned)(number),       \
				     __LINE__, #cond);                                          \
	} while (0)

static void world(const struct lives_shape *shape, uint64_t seed)
{
	struct radix_index_config numbers;

	memset(&w, 0, sizeof(w));
	w.shape = shape;
	test_heap_init(&w.heap);
	numbers = lives_numbers(shape, &w.heap.alloc);
	kept_init(&w.kept, &numbers);
	lives_init(&w.l, shape, &w.kept, seed);
	do {
		for (uint32_t i = 0; i < 300; i++)
			lives_step(&w.l);
	} while (w.l.ix->table.n_ready < shape->n_slots / 2);
	lives_quiet(&w.l);
	reborn_init(&w.r, w.l.ix, &w.kept);
	rng = seed;
}

static void world_end(void)
{
	radix_index_free(w.l.ix);
	ck_assert_uint_eq(w.heap.live_blocks, 0);
	kept_deinit(&w.kept);
	reborn_deinit(&w.r);
}

static void whole_again(void)
{
	w.r.ix = radix_index_free(w.r.ix);
	kept_restore(&w.r.kept, &w.kept);
}

static const struct radix_entry *entry_of(uint32_t i)
{
	return &w.l.ix->table.v[i];
}

static bool was_member(uint32_t i)
{
	return i < w.l.ix->table.n_used && entry_of(i)->state == RADIX_ENTRY_READY;
}

static bool is_member(uint32_t i)
{
	return i < w.r.ix->table.n_used && w.r.ix->table.v[i].state == RADIX_ENTRY_READY;
}

/* What is a member is the block that it was; each of its copies is one that it had. */
static void nothing_new(void)
{
	for (uint32_t i = 0; i < w.r.ix->table.n_used; i++) {
		const struct radix_entry *x = &w.r.ix->table.v[i], *e;
		uint32_t parent = radix_entry_parent(x);

		if (!is_member(i))
			continue;
		MAY(was_member(i), i);
		e = entry_of(i);
		MAY(x->generation == e->generation && x->root == e->root, i);
		MAY(x->ns == e->ns && x->tenant == e->tenant && x->n_tokens == e->n_tokens, i);
		MAY(memcmp(radix_table_key(&w.r.ix->table, i), radix_table_key(&w.l.ix->table, i),
			   LIVES_KEY_LEN) == 0,
		    i);
		MAY(parent == radix_entry_parent(e) ||
			    (parent == RADIX_NONE && w.shape->mode == RADIX_KEYS_DIGEST),
		    i);
		MAY(radix_entry_slot(x) == radix_entry_slot(e) || radix_entry_slot(x) == RADIX_NONE,
		    i);
		MAY(radix_entry_host(x) == radix_entry_host(e) || radix_entry_host(x) == RADIX_NONE,
		    i);
		MAY(!radix_entry_redis(x) || radix_entry_redis(e), i);
		MAY(!x->checksum_kind || (x->checksum_kind == e->checksum_kind &&
					  memcmp(x->checksum, e->checksum, 16) == 0),
		    i);
	}
}

/* Members before and after without those below `but`. */
static bool hangs_below(uint32_t i, uint32_t but)
{
	for (; i != RADIX_NONE; i = radix_entry_parent(entry_of(i))) {
		if (i == but)
			return true;
	}
	return false;
}

/* Only `but` (RADIX_NONE: nothing) may be missing, and what hangs below it. */
static void nothing_lost_but(uint32_t but)
{
	bool islands = w.shape->mode == RADIX_KEYS_DIGEST && !radix_has_tiers(w.l.ix);

	for (uint32_t i = 0; i < w.l.ix->table.n_used; i++) {
		if (!was_member(i) || is_member(i))
			continue;
		/* a block that sinks to Redis may take the place of the coldest one there */
		if (w.r.r.damaged[RADIX_DAMAGE_ROOM] &&
		    radix_tier_of(entry_of(i)) == RADIX_TIER_REDIS)
			continue;
		MAY(but != RADIX_NONE && hangs_below(i, but), i);
		MAY(!islands || i == but, i);
	}
}

static void recover(void)
{
	reborn_recover(&w.r);
	nothing_new();
}

static void flip(uint64_t at, uint32_t bit)
{
	w.at = at;
	w.bit = bit;
	((uint8_t *)w.r.kept.store.base)[at] ^= (uint8_t)(1u << bit);
}

/* A random member, and one with `field` at this offset of its entry flipped. */
static uint32_t some_member(void)
{
	uint32_t i;

	do {
		i = test_rng_below(&rng, w.l.ix->table.n_used);
	} while (!was_member(i));
	return i;
}

static uint64_t offset_of(const void *p)
{
	return (uint64_t)((const uint8_t *)p - (const uint8_t *)w.kept.store.base);
}

/* ---- one bit of each class ------------------------------------------------------------------- */

enum effect {
	GOES,  /* the entry is lost */
	COPY,  /* a copy of it: it goes if that was the only one */
	LINK,  /* what it hung below: it goes, or is an island */
	STAYS, /* nobody is lost */
};

static const struct field {
	const char *name;
	size_t at, len;
	enum effect effect;
} fields[] = {
#define FIELD(f, effect)                                                                          \
	{                                                                                         \
#f, offsetof(struct radix_entry, f), sizeof(((struct radix_entry *)0)->f), effect \
	}
	FIELD(state, GOES),
	FIELD(check, GOES),
	FIELD(generation, GOES),
	FIELD(root, GOES),
	FIELD(root_check, GOES),
	FIELD(ns, GOES),
	FIELD(tenant, GOES),
	FIELD(key, GOES),
	FIELD(key_len, GOES),
	FIELD(n_tokens, GOES),
	FIELD(parent, LINK),
	FIELD(device, COPY),
	FIELD(host, COPY),
	FIELD(redis, COPY),
	FIELD(checksum, STAYS),
	FIELD(checksum_kind, STAYS),
	FIELD(checksum_check, STAYS),
	FIELD(use, STAYS),
	FIELD(moving, STAYS),
	FIELD(turn, STAYS),
	FIELD(next_free, STAYS),
	FIELD(exact, STAYS),
	FIELD(reserved, STAYS),
#undef FIELD
};

static void flip_field(const struct field *f)
{
	uint32_t i = some_member();
	uint64_t at = offset_of(entry_of(i)) + f->at + test_rng_below(&rng, (uint32_t)f->len);
	bool digest = w.shape->mode == RADIX_KEYS_DIGEST;
	uint64_t lost;

	w.what = f->name;
	flip(at, test_rng_below(&rng, 8));
	recover();
	nothing_lost_but(f->effect == STAYS ? RADIX_NONE : i);
	lost = w.r.r.n_lost;
	if (f->effect == GOES)
		MAY(!is_member(i) && lost >= 1, i);
	if (f->effect == LINK)
		MAY(is_member(i) == digest, i);
	if (f->effect == STAYS)
		MAY(lost == 0 && w.r.r.n_copies_lost == 0, i);
	if (strncmp(f->name, "checksum", 8) == 0 && entry_of(i)->checksum_kind)
		MAY(!w.r.ix->table.v[i].checksum_kind, i);
	if (f->at == offsetof(struct radix_entry, exact)) /* damage never makes a copy exact */
		MAY(radix_entry_slot(entry_of(i)) == RADIX_NONE ||
			    w.r.ix->table.v[i].exact != radix_exact_mark(w.r.ix->table.v[i].device),
		    i);
	if (f->effect == COPY && is_member(i) && !radix_has_tiers(w.l.ix))
		MAY(f->at != offsetof(struct radix_entry, device), i);
	whole_again();
}

START_TEST(one_bit_of_an_entry)
{
	world(&shapes[_i], 300 + (uint64_t)_i);
	for (uint32_t round = 0; round < 60; round++) {
		for (uint32_t f = 0; f < radix_array_size(fields); f++)
			flip_field(&fields[f]);
	}
	world_end();
}
END_TEST

/* Bytes of a key, and a slot's generation: the entry goes with them. */
START_TEST(one_bit_of_what_an_entry_names)
{
	world(&shapes[_i], 400 + (uint64_t)_i);
	for (uint32_t round = 0; round < 500; round++) {
		uint32_t i = some_member(), slot = radix_entry_slot(entry_of(i));

		w.what = "key bytes";
		flip(offset_of(radix_table_key(&w.l.ix->table, i)) +
			     test_rng_below(&rng, LIVES_KEY_LEN),
		     test_rng_below(&rng, 8));
		recover();
		nothing_lost_but(i);
		MAY(!is_member(i), i);
		MAY(w.r.r.damaged[RADIX_DAMAGE_CHECK] == 1, i);
		whole_again();
		if (slot >= w.shape->n_slots)
			continue;
		w.what = "slot's generation";
		w.at = slot;
		w.r.kept.generations[slot] ^= UINT64_C(1) << test_rng_below(&rng, 64);
		recover();
		nothing_lost_but(i);
		MAY(radix_slot_state(w.r.ix, slot) == RADIX_SLOT_FREE, i);
		/* nobody takes the next block there for the one that he knew */
		MAY(radix_slot_generation(w.r.ix, slot) != w.kept.generations[slot], i);
		MAY(radix_slot_generation(w.r.ix, slot) <= radix_reuse_counter(w.r.ix), i);
		whole_again();
	}
	world_end();
}
END_TEST

/* The words of slots are for those that no member has. */
START_TEST(one_bit_of_a_slot)
{
	struct radix_run v[8];
	struct radix_runs runs = { .v = v, .cap = 8 };
	uint32_t granted;

	world(&shapes[_i], 500 + (uint64_t)_i);
	radix_reserve(w.l.ix, 77, 3, &runs, &granted);
	ck_assert_uint_ge(granted, 1);
	kept_restore(&w.r.kept, &w.kept);
	for (uint32_t round = 0; round < 600; round++) {
		uint32_t slot = round % 4 ? test_rng_below(&rng, w.shape->n_slots)
					  : runs.v[0].start;
		enum radix_slot_state was = radix_slot_state(w.l.ix, slot), is;

		w.what = "slot";
		w.r.config.keep_lost = round % 2;
		flip(offset_of(&w.l.ix->slots.kept[slot]) + test_rng_below(&rng, 8),
		     test_rng_below(&rng, 8));
		recover();
		nothing_lost_but(RADIX_NONE);
		MAY(w.r.r.n_lost == 0, slot);
		is = radix_slot_state(w.r.ix, slot);
		if (was == RADIX_SLOT_READY)
			MAY(is == RADIX_SLOT_READY, slot);
		else
			MAY(is == (round % 2 ? RADIX_SLOT_QUARANTINED : RADIX_SLOT_FREE), slot);
		MAY(is != RADIX_SLOT_QUARANTINED ||
			    radix_owner_discard(w.r.ix, RADIX_OWNER_LOST) == 1,
		    slot);
		whole_again();
	}
	world_end();
}
END_TEST

/* What the head says of the numbers is checked; what goes up is there twice. */
START_TEST(one_bit_of_the_head)
{
	world(&shapes[_i], 600 + (uint64_t)_i);
	for (uint32_t at = 0; at < sizeof(struct radix_head); at++) {
		for (uint32_t bit = 0; bit < 8; bit++) {
			struct radix_store_info info;

			w.what = "head";
			flip(at, bit);
			if (at < offsetof(struct radix_head, redis)) {
				MAY(radix_store_look(&w.r.kept.store, NULL, &info) ==
					    RADIX_STORE_FOREIGN,
				    at);
				MAY(radix_index_recover(&w.r.ix, &w.r.kept.config, &w.r.config,
							&w.r.r) == -EINVAL,
				    at);
			} else {
				recover();
				MAY(w.r.r.n_lost == 0, at);
				nothing_lost_but(RADIX_NONE);
				MAY(w.r.ix->table.n_used >= w.l.ix->table.n_used, at);
				MAY(radix_reuse_counter(w.r.ix) >= radix_reuse_counter(w.l.ix), at);
			}
			whole_again();
		}
	}
	world_end();
}
END_TEST

/* ---- anywhere -------------------------------------------------------------------------------- */

/* The entry that a byte of the store is part of; RADIX_NONE. */
static uint32_t entry_at(uint64_t at)
{
	uint64_t first = offset_of(w.l.ix->table.v);

	for (uint32_t i = 0; i < w.l.ix->table.n_used; i++) {
		uint64_t key = was_member(i) ? offset_of(radix_table_key(&w.l.ix->table, i)) : 0;

		if (at >= first + i * sizeof(struct radix_entry) &&
		    at < first + (i + 1) * sizeof(struct radix_entry))
			return i;
		if (key && at >= key && at < key + LIVES_KEY_LEN)
			return i;
	}
	return RADIX_NONE;
}

START_TEST(one_bit_anywhere)
{
	world(&shapes[_i], fresh_seed + (uint64_t)_i);
	for (uint32_t round = 0; round < 4000; round++) {
		/* keys begin at a page, and not all of it is in use */
		uint64_t pages = w.l.ix->ground.pages_at, at = test_rng_below(&rng, 8192);

		at = round % 3 ? at % (pages - RADIX_HEAD_BYTES) + RADIX_HEAD_BYTES
			       : pages + at % 4096;
		w.what = "anywhere";
		flip(at, test_rng_below(&rng, 8));
		recover();
		nothing_lost_but(entry_at(at));
		whole_again();
	}
	world_end();
}
END_TEST

/* ---- much of it ------------------------------------------------------------------------------ */

static void spoil(uint64_t from, uint64_t len, uint32_t n)
{
	uint8_t *p = w.r.kept.store.base;

	for (; n; n--) {
		uint64_t at = from + test_rng_below(&rng, (uint32_t)len);
		uint32_t run = 1 + test_rng_below(&rng, test_rng_below(&rng, 4) ? 2 : 200);

		for (; run && at < from + len; run--, at++)
			p[at] = (uint8_t)test_rng(&rng);
	}
}

START_TEST(many_bytes)
{
	world(&shapes[_i], fresh_seed + 50 + (uint64_t)_i);
	for (uint32_t round = 0; round < 2000; round++) {
		uint64_t pages = w.l.ix->ground.pages_at;
		uint32_t n = 1 + test_rng_below(&rng, 60);

		w.what = "many bytes";
		w.r.config.keep_lost = round % 2;
		if (round % 5 == 0)
			memset(w.r.kept.generations, (int)test_rng(&rng),
			       test_rng_below(&rng, w.shape->n_slots) * sizeof(uint64_t));
		/* the numbers that go up, too */
		spoil(offsetof(struct radix_head, redis),
		      pages - offsetof(struct radix_head, redis), n);
		spoil(pages, 4096, n);
		reborn_recover(&w.r);
		nothing_new();
		MAY(radix_reuse_counter(w.r.ix) < UINT64_C(1) << 63, 0);
		whole_again();
	}
	world_end();
}
END_TEST

/* Whole entries and slots in each other's places, and an old one that comes back. */
START_TEST(things_in_wrong_places)
{
	world(&shapes[_i], 700 + (uint64_t)_i);
	for (uint32_t round = 0; round < 2000; round++) {
		struct radix_entry *v =
			(struct radix_entry *)(void *)((uint8_t *)w.r.kept.store.base +
						       offset_of(w.l.ix->table.v));
		uint32_t a = some_member(), b = some_member(), word = test_rng_below(&rng, 3);

		w.what = "wrong places";
		w.at = a;
		w.bit = b;
		if (round % 4 == 0) {
			v[a] = v[b];
		} else if (round % 4 == 1) {
			(&v[a].parent)[word] = (&v[b].parent)[test_rng_below(&rng, 3)];
		} else if (round % 4 == 2) {
			v[a].key = v[b].key;
		} else { /* as it was in its life before */
			v[a].generation -= 2;
			v[a].check = radix_table_check_at(&v[a], a,
							  radix_table_key(&w.l.ix->table, a));
		}
		reborn_recover(&w.r);
		if (round % 4 != 3)
			nothing_new();
		whole_again();
	}
	world_end();
}
END_TEST

START_TEST(a_shorter_store)
{
	world(&shapes[_i], 800 + (uint64_t)_i);
	for (uint64_t len = w.kept.store.committed; len >= RADIX_HEAD_BYTES; len -= 4096) {
		w.what = "shorter";
		w.at = len;
		memset((uint8_t *)w.r.kept.store.base + len, 0, w.r.kept.store.committed - len);
		w.r.kept.store.committed = len;
		recover();
		MAY(len >= w.kept.store.committed - 0x10000 || w.r.r.n_taken == 0 ||
			    len > w.l.ix->ground.pages_at,
		    0);
		whole_again();
	}
	world_end();
}
END_TEST

START_TEST(other_stores)
{
	struct radix_store_info info;
	struct radix_head *h;

	world(&shapes[0], 900);
	h = w.r.kept.store.base;
	ck_assert_int_eq(radix_store_look(&w.r.kept.store, &w.r.kept.config, &info),
			 RADIX_STORE_INDEX);
	ck_assert_uint_eq(info.n_slots, w.shape->n_slots);
	ck_assert_uint_eq(info.version, RADIX_STORE_VERSION_NOW);
	w.r.kept.config.n_slots++;
	w.r.kept.config.n_entries++;
	ck_assert_int_eq(radix_store_look(&w.r.kept.store, &w.r.kept.config, &info),
			 RADIX_STORE_OTHER);
	ck_assert_int_eq(radix_index_recover(&w.r.ix, &w.r.kept.config, &w.r.config, &w.r.r),
			 -EINVAL);
	w.r.kept.config = (struct radix_index_config)w.kept.config;
	w.r.kept.config.store = &w.r.kept.store;
	w.r.kept.config.generations = w.r.kept.generations;
	w.r.kept.config.alloc = &w.r.heap.alloc;
	h->version++;
	ck_assert_int_eq(radix_store_look(&w.r.kept.store, NULL, &info), RADIX_STORE_FOREIGN);
	h->check = radix_head_check(h);
	ck_assert_int_eq(radix_store_look(&w.r.kept.store, NULL, &info), RADIX_STORE_VERSION);
	ck_assert_uint_eq(info.version, RADIX_STORE_VERSION_NOW + 1);
	ck_assert_int_eq(radix_index_recover(&w.r.ix, &w.r.kept.config, &w.r.config, &w.r.r),
			 -EINVAL);
	for (uint32_t i = 0; i < 1000; i++) {
		test_rng_fill(&rng, h, w.r.kept.store.committed);
		ck_assert_int_eq(radix_store_look(&w.r.kept.store, NULL, &info),
				 RADIX_STORE_FOREIGN);
		/* and with a head that is right */
		if (i < 100) {
			memcpy(h, w.kept.store.base, sizeof(*h));
			reborn_recover(&w.r);
			ck_assert_uint_eq(w.r.r.n_taken, 0);
			w.r.ix = radix_index_free(w.r.ix);
		}
	}
	memset(h, 0, w.r.kept.store.committed);
	ck_assert_int_eq(radix_store_look(&w.r.kept.store, NULL, &info), RADIX_STORE_EMPTY);
	world_end();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("recover-damage");
	TCase *tc = tcase_create("damage");
	const char *env = getenv("PREFIXD_SEED");
	const int n = (int)radix_array_size(shapes);

	fresh_seed = env ? strtoull(env, NULL, 10) : (uint64_t)time(NULL) * 1000;
	tcase_set_timeout(tc, 150);
	tcase_add_loop_test(tc, one_bit_of_an_entry, 0, n);
	tcase_add_loop_test(tc, one_bit_of_what_an_entry_names, 0, n);
	tcase_add_loop_test(tc, one_bit_of_a_slot, 0, n);
	tcase_add_loop_test(tc, one_bit_of_the_head, 0, n);
	tcase_add_loop_test(tc, one_bit_anywhere, 0, n);
	tcase_add_loop_test(tc, many_bytes, 0, n);
	tcase_add_loop_test(tc, things_in_wrong_places, 0, n);
	tcase_add_loop_test(tc, a_shorter_store, 0, n);
	tcase_add_test(tc, other_stores);
	suite_add_tcase(s, tc);
	return test_run(s);
}
