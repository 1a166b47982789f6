/*
 * test_names.c - names, against BLAKE2b put together by hand, and the table that keeps them.
 */
#include "daemon/redis_names.h"
#include "tests/lib/heap.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <sodium.h>

static const uint8_t naming_key[32] = "a naming key for these tests....";
static const uint8_t root_a[32] = "root a", root_b[32] = "root b";

static struct test_heap heap;
static struct prefixd_names_table *table;

static void setup(void)
{
	ck_assert_int_ge(sodium_init(), 0);
	test_heap_init(&heap);
	ck_assert_int_eq(prefixd_names_new(&table, &heap.alloc, naming_key), 0);
}

static void teardown(void)
{
	table = prefixd_names_free(table);
	ck_assert_uint_eq(heap.live_blocks, 0);
}

static void hex(const uint8_t *p, size_t n, char *ret)
{
	for (size_t i = 0; i < n; i++)
		snprintf(ret + 2 * i, 3, "%02x", p[i]);
}

/* The name by another way: one buffer, one call. */
static void by_hand(const char *purpose, const uint8_t before[32], const void *key, uint32_t len,
		    uint8_t ret[32])
{
	const void *parts[3] = { purpose, before, key };
	uint32_t lens[3] = { (uint32_t)strlen(purpose), 32, len };
	uint8_t in[512], *p = in;

	for (uint32_t i = 0; i < 3; i++) {
		*p++ = (uint8_t)(i + 1);
		for (unsigned b = 0; b < 4; b++)
			*p++ = (uint8_t)(lens[i] >> (8 * b));
		memcpy(p, parts[i], lens[i]);
		p += lens[i];
	}
	ck_assert_int_eq(crypto_generichash(ret, 32, in, (size_t)(p - in), naming_key, 32), 0);
}

START_TEST(made_of_what_they_should)
{
	uint8_t got[32], want[32];

	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root_a, "some tokens", 11, got);
	by_hand("prefixd block tokens 1", root_a, "some tokens", 11, want);
	ck_assert_mem_eq(got, want, 32);
	prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, root_a, "some tokens", 11, got);
	by_hand("prefixd block digest 1", root_a, "some tokens", 11, want);
	ck_assert_mem_eq(got, want, 32);
}
END_TEST

/* What is in somebody's Redis today has to be found by the daemon of tomorrow. */
START_TEST(vectors)
{
	static const char *const want[2] = {
		"36ece01f18c4d000db04c35e32c8d9bce5639a64caada858bc6c3734354a99ad",
		"92e12ca174f863511e3c2b8987f8e861f164230c7f2500f71c7b8740e5ff8951",
	};
	uint8_t name[32];
	char text[65];

	for (int mode = 0; mode < 2; mode++) {
		prefixd_name_derive(naming_key, (enum radix_key_mode)mode, root_a,
				    "\1\0\0\0\2\0\0\0", 8, name);
		hex(name, 32, text);
		ck_assert_str_eq(text, want[mode]);
	}
}
END_TEST

START_TEST(framing)
{
	uint8_t ab[32] = "ab", a[32] = "a", x[32], y[32], other[32] = "another naming key";

	/* Bytes that move from one field to the next, lengths that differ, keys and modes. */
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, ab, "c", 1, x);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "bc", 2, y);
	ck_assert_mem_ne(x, y, 32);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "b\0", 2, x);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "b", 1, y);
	ck_assert_mem_ne(x, y, 32);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "", 0, x);
	ck_assert_mem_ne(x, y, 32);
	prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, a, "b", 1, x);
	ck_assert_mem_ne(x, y, 32);
	prefixd_name_derive(other, RADIX_KEYS_TOKENS, a, "b", 1, x);
	ck_assert_mem_ne(x, y, 32);
}
END_TEST

START_TEST(redis_keys)
{
	char key[PREFIXD_REDIS_KEY_LEN + 1] = { 0 }, epoch[PREFIXD_REDIS_EPOCH_LEN + 1] = { 0 };
	uint8_t name[32];

	for (unsigned i = 0; i < 32; i++)
		name[i] = (uint8_t)(i * 8 + 1);
	prefixd_name_redis_key(name, key);
	ck_assert_str_eq(key, "prefixd:v1:01091119212931394149515961697179"
			      "81899199a1a9b1b9c1c9d1d9e1e9f1f9");
	prefixd_name_epoch_key(name, epoch);
	ck_assert_str_eq(epoch, "prefixd:v1:epoch:01091119212931394149515961697179"
				"81899199a1a9b1b9c1c9d1d9e1e9f1f9");
	ck_assert(!strpbrk(key, "{}") && !strpbrk(epoch, "{}"));
}
END_TEST

static int learn(enum radix_key_mode mode, const uint8_t root[32], uint32_t parent,
		 const uint32_t *entries, const char *keys, uint32_t n)
{
	struct prefixd_names names = { .mode = mode,
				       .parent = parent,
				       .key_len = 4,
				       .n = n,
				       .entries = entries,
				       .keys = keys };

	memcpy(names.root, root, 32);
	return prefixd_names_learn(table, 3, &names);
}

static void expect(uint32_t entry, const uint8_t want_name[32], const uint8_t want_before[32])
{
	uint8_t name[32], before[32];

	ck_assert(prefixd_names_find(table, 3, entry, name, before));
	ck_assert_mem_eq(name, want_name, 32);
	ck_assert_mem_eq(before, want_before, 32);
}

static bool known(uint32_t entry)
{
	uint8_t name[32], before[32];

	return prefixd_names_find(table, 3, entry, name, before);
}

START_TEST(chains)
{
	uint8_t a[32], b[32], c[32], d[32];

	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root_a, "key1", 4, a);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "key2", 4, b);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, b, "key3", 4, c);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "key4", 4, d);
	/* In one message and in two; entries in no order, in chunks of their own. */
	ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root_a, RADIX_NONE, (uint32_t[]){ 900000, 5 },
			       "key1key2", 2),
			 0);
	ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root_a, 5, (uint32_t[]){ 70000 }, "key3", 1), 0);
	ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root_a, 900000, (uint32_t[]){ 6 }, "key4", 1), 0);
	expect(900000, a, root_a);
	expect(5, b, a);
	expect(70000, c, b);
	expect(6, d, a);
	ck_assert_uint_eq(prefixd_names_roots(table, 3), 1);
	ck_assert(!known(7) && !known(900001) && !known(RADIX_NONE));
	ck_assert(!prefixd_names_find(table, 2, 5, a, b) &&
		  !prefixd_names_find(table, 4000, 5, a, b));
}
END_TEST

START_TEST(digests_hang_at_the_root)
{
	uint8_t a[32], b[32], c[32];

	prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, root_b, "key1", 4, a);
	prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, root_b, "key2", 4, b);
	prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, root_b, "key3", 4, c);
	ck_assert_int_eq(
		learn(RADIX_KEYS_DIGEST, root_b, RADIX_NONE, (uint32_t[]){ 1, 2 }, "key1key2", 2),
		0);
	/* Whatever the parent is, and whether it is known. */
	ck_assert_int_eq(learn(RADIX_KEYS_DIGEST, root_b, 77, (uint32_t[]){ 3 }, "key3", 1), 0);
	expect(1, a, root_b);
	expect(2, b, root_b);
	expect(3, c, root_b);
	ck_assert_uint_eq(prefixd_names_roots(table, 3), 1);
}
END_TEST

START_TEST(looking_keeps_nothing)
{
	struct prefixd_names names = {
		.mode = RADIX_KEYS_TOKENS, .parent = 5, .key_len = 4, .n = 2, .keys = "key3key4"
	};
	uint8_t a[32], b[32], got[2][32];
	uint64_t takes;

	memcpy(names.root, root_a, 32);
	ck_assert(!prefixd_names_chain(table, 3, &names, got));
	ck_assert_int_eq(
		learn(RADIX_KEYS_TOKENS, root_a, RADIX_NONE, (uint32_t[]){ 4, 5 }, "key1key2", 2),
		0);
	takes = heap.n_takes;
	ck_assert(prefixd_names_chain(table, 3, &names, got));
	ck_assert_uint_eq(heap.n_takes, takes);
	ck_assert(prefixd_names_find(table, 3, 5, a, b));
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, a, "key3", 4, b);
	ck_assert_mem_eq(got[0], b, 32);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, got[0], "key4", 4, b);
	ck_assert_mem_eq(got[1], b, 32);
	/* Below the root, and in digest mode. */
	names.parent = RADIX_NONE;
	ck_assert(prefixd_names_chain(table, 9, &names, got));
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root_a, "key3", 4, b);
	ck_assert_mem_eq(got[0], b, 32);
	names.mode = RADIX_KEYS_DIGEST;
	names.parent = 123;
	ck_assert(prefixd_names_chain(table, 9, &names, got));
	prefixd_name_derive(naming_key, RADIX_KEYS_DIGEST, root_a, "key4", 4, b);
	ck_assert_mem_eq(got[1], b, 32);
}
END_TEST

START_TEST(named_anew)
{
	uint8_t b[32];

	ck_assert_int_eq(
		learn(RADIX_KEYS_TOKENS, root_a, RADIX_NONE, (uint32_t[]){ 1, 2 }, "key1key2", 2),
		0);
	ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root_b, RADIX_NONE, (uint32_t[]){ 1 }, "key9", 1),
			 0);
	prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root_b, "key9", 4, b);
	expect(1, b, root_b);
	ck_assert_uint_eq(prefixd_names_roots(table, 3), 1); /* nothing hangs at the first one */
	/* A parent without a name leaves its children without one, not with an old one. */
	ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root_a, 500, (uint32_t[]){ 1, 3 }, "key1key2", 2),
			 -EINVAL);
	ck_assert(!known(1) && !known(3) && !known(2));
	ck_assert_uint_eq(prefixd_names_roots(table, 3), 0);
	/* Numbers that cannot be entries. */
	ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root_a, RADIX_NONE, (uint32_t[]){ 0x80000001u },
			       "key1", 1),
			 -EINVAL);
	ck_assert(!known(0x80000001u));
}
END_TEST

/* Thousands of roots that come and go: each found again, each gone with its last entry. */
START_TEST(many_roots)
{
	uint8_t root[32], name[32];
	uint64_t seed = 5;
	uint32_t owner[600];

	for (uint32_t i = 0; i < 600; i++)
		owner[i] = RADIX_NONE;
	for (uint32_t round = 0; round < 20000; round++) {
		uint32_t entry = test_rng_below(&seed, 600), r = test_rng_below(&seed, 2000);
		uint64_t root_seed = r;

		test_rng_fill(&root_seed, root, sizeof(root));
		ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root, RADIX_NONE, &entry, "key1", 1), 0);
		owner[entry] = r;
		prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root, "key1", 4, name);
		expect(entry, name, root);
		if (round % 1000 == 0) {
			bool used[2000] = { false };
			uint32_t n = 0;

			for (uint32_t i = 0; i < 600; i++) {
				if (owner[i] == RADIX_NONE)
					continue;
				root_seed = owner[i];
				test_rng_fill(&root_seed, root, sizeof(root));
				prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root, "key1", 4,
						    name);
				expect(i, name, root);
				n += !used[owner[i]];
				used[owner[i]] = true;
			}
			ck_assert_uint_eq(prefixd_names_roots(table, 3), n);
		}
	}
}
END_TEST

/* Each allocation fails once: no entry has a wrong name, and trying again works. */
START_TEST(without_memory)
{
	uint64_t n = 1;
	uint8_t name[32], want[32], before[32];

	for (;; n++) {
		bool failed = false;

		table = prefixd_names_free(table);
		ck_assert_uint_eq(heap.live_blocks, 0);
		test_heap_init(&heap);
		test_heap_fail_at(&heap, n);
		if (prefixd_names_new(&table, &heap.alloc, naming_key) < 0)
			ck_assert_int_eq(prefixd_names_new(&table, &heap.alloc, naming_key), 0);
		for (uint32_t i = 0; i < 40; i++) {
			uint8_t root[32] = { (uint8_t)i };
			uint32_t entry = i * 3000;
			int r = learn(RADIX_KEYS_TOKENS, root, RADIX_NONE, &entry, "key1", 1);

			ck_assert(r == 0 || r == -ENOMEM);
			ck_assert(known(entry) == (r == 0));
			failed |= r < 0;
			if (r < 0)
				ck_assert_int_eq(learn(RADIX_KEYS_TOKENS, root, RADIX_NONE, &entry,
						       "key1", 1),
						 0);
			prefixd_name_derive(naming_key, RADIX_KEYS_TOKENS, root, "key1", 4, want);
			ck_assert(prefixd_names_find(table, 3, entry, name, before));
			ck_assert_mem_eq(name, want, 32);
		}
		if (!heap.n_failed)
			break;
		ck_assert(failed || n == 1);
	}
	ck_assert_uint_gt(n, 30);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("redis names");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, made_of_what_they_should);
	tcase_add_test(tc, vectors);
	tcase_add_test(tc, framing);
	tcase_add_test(tc, redis_keys);
	tcase_add_test(tc, chains);
	tcase_add_test(tc, digests_hang_at_the_root);
	tcase_add_test(tc, looking_keeps_nothing);
	tcase_add_test(tc, named_anew);
	tcase_add_test(tc, many_roots);
	tcase_add_test(tc, without_memory);
	suite_add_tcase(s, tc);
	return test_run(s);
}
