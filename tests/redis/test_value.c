/*
 * test_value.c - one value, and every way in which it can be wrong.
 */
#include "daemon/redis_value.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <sodium.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define BLOCK 1000u
#define KEY   64u
#define MORE  64u /* room behind a value */
#define MAX   (PREFIXD_VALUE_OVERHEAD + KEY + BLOCK)

static uint8_t ns[32], name[32], parent[32], key[KEY], block[BLOCK], sum[16];
static struct prefixd_value_of of;
static struct prefixd_value_cipher clear, secret;
static const uint8_t naming_key[32] = "a naming key for these tests....";

static void setup(void)
{
	uint64_t seed = 7;

	ck_assert_int_ge(sodium_init(), 0);
	test_rng_fill(&seed, ns, sizeof(ns));
	test_rng_fill(&seed, name, sizeof(name));
	test_rng_fill(&seed, parent, sizeof(parent));
	test_rng_fill(&seed, key, sizeof(key));
	test_rng_fill(&seed, block, sizeof(block));
	of = (struct prefixd_value_of){ ns, name, parent, key, KEY, 16, BLOCK };
	prefixd_value_cipher_init(&clear, naming_key, false);
	prefixd_value_cipher_init(&secret, naming_key, true);
	prefixd_value_checksum(block, BLOCK, sum);
}

/* Of its payload. */
static size_t bytes_of(const struct prefixd_value_of *what)
{
	return what->coded ? what->cold_bytes : what->block_bytes;
}

/* A value as it lies in Redis.  Return: its length. */
static size_t make(uint8_t *value, const struct prefixd_value_of *what, bool encrypted)
{
	size_t len = prefixd_value_len(what, encrypted);
	uint8_t nonce[PREFIXD_VALUE_NONCE];

	if (encrypted) {
		randombytes_buf(nonce, sizeof(nonce));
		prefixd_value_encrypt(what, sum, block, &secret, nonce, value);
	} else {
		prefixd_value_prefix(what, sum, value);
		memcpy(value + len - bytes_of(what), block, bytes_of(what));
	}
	return len;
}

/* The checksum of the head, after the test has changed it. */
static void reseal(uint8_t *value)
{
	uint64_t h = XXH3_64bits(value, 160);

	for (unsigned i = 0; i < 8; i++)
		value[160 + i] = (uint8_t)(h >> (8 * i));
}

/*
 * Parses a copy that lies in memory of exactly its size.  Return: -1 when it was accepted, and was
 * the block; else the reason, and nothing was written.
 */
static int parse(const uint8_t *value, size_t len, const struct prefixd_value_of *what,
		 const struct prefixd_value_cipher *cipher)
{
	enum prefixd_redis_bad why = PREFIXD_REDIS_N_BAD;
	uint8_t *copy = malloc(len ? len : 1), out[BLOCK], untouched[BLOCK], got[16], is[16];
	struct prefixd_value_of w = *what;
	bool ok;

	ck_assert_ptr_nonnull(copy);
	if (len)
		memcpy(copy, value, len);
	memset(out, 0x5a, sizeof(out));
	memset(untouched, 0x5a, sizeof(untouched));
	ok = prefixd_value_parse(copy, len, &w, cipher, out, got, &why);
	free(copy);
	if (ok) {
		ck_assert_mem_eq(out, block, bytes_of(&w));
		prefixd_value_checksum(block, bytes_of(&w), is);
		ck_assert_mem_eq(got, is, sizeof(is));
		return -1;
	}
	ck_assert_mem_eq(out, untouched, sizeof(out));
	ck_assert_uint_lt(why, PREFIXD_REDIS_N_BAD);
	return (int)why;
}

#define refused(value, len, what, cipher, reason) \
	ck_assert_int_eq(parse(value, len, what, cipher), PREFIXD_REDIS_BAD_##reason)

static const struct prefixd_value_cipher *cipher_of(bool encrypted)
{
	return encrypted ? &secret : &clear;
}

START_TEST(round_trip)
{
	bool encrypted = _i;
	uint8_t value[MAX];
	size_t len = make(value, &of, encrypted);

	ck_assert_uint_eq(len, PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM + KEY + BLOCK +
				       (encrypted ? PREFIXD_VALUE_TAG : 0));
	ck_assert_int_eq(parse(value, len, &of, cipher_of(encrypted)), -1);
	/* The block and the key can be read only where they are not encrypted. */
	ck_assert(!memmem(value, len, key, 16) == encrypted);
	ck_assert(!memmem(value, len, block, 16) == encrypted);
	ck_assert(!memmem(value, len, sum, sizeof(sum)) == encrypted);
}
END_TEST

/* A coded namespace has values of two kinds; nobody takes another codec's, or another length. */
START_TEST(coded)
{
	bool encrypted = _i;
	const struct prefixd_value_cipher *cipher = cipher_of(encrypted);
	struct prefixd_value_of mine = of, others = of;
	uint8_t value[MAX], raw[MAX];
	size_t len, raw_len;

	mine.codec = 2;
	mine.cold_bytes = 400;
	raw_len = make(raw, &mine, encrypted);
	mine.coded = true;
	prefixd_value_checksum(block, mine.cold_bytes, sum);
	len = make(value, &mine, encrypted);
	ck_assert_uint_eq(raw_len - len, BLOCK - 400);
	ck_assert_uint_eq(value[12], 2);
	ck_assert_uint_eq(raw[12], 0);
	mine.coded = false; /* who reads does not know which it is */
	ck_assert_int_eq(parse(value, len, &mine, cipher), -1);
	ck_assert_int_eq(parse(raw, raw_len, &mine, cipher), -1);
	refused(value, len, &others, cipher, CODEC);
	others.codec = 1;
	others.cold_bytes = 400;
	refused(value, len, &others, cipher, CODEC);
	others.codec = 2;
	others.cold_bytes = 401;
	refused(value, len, &others, cipher, SIZE);
	value[12] = 0; /* it says that it is not coded */
	reseal(value);
	refused(value, len, &mine, cipher, SIZE);
}
END_TEST

/* Whatever the processor can: the same sum, for every length and alignment. */
START_TEST(checksum)
{
	static uint8_t bytes[70000];
	uint64_t seed = 3;

	test_rng_fill(&seed, bytes, sizeof(bytes));
	for (size_t len = 0; len < sizeof(bytes); len += len < 2000 ? 1 : 997) {
		const uint8_t *p = bytes + len % 7;
		size_t n = len < sizeof(bytes) - 7 ? len : sizeof(bytes) - 7;
		XXH128_canonical_t want;
		uint8_t got[16];

		XXH128_canonicalFromHash(&want, XXH3_128bits(p, n));
		prefixd_value_checksum(p, n, got);
		ck_assert_mem_eq(got, want.digest, 16);
	}
}
END_TEST

/* Every field where the table says, so that another machine, or a later version, reads the same. */
START_TEST(layout)
{
	static const uint8_t begin[12] = { 0x89, 'P', 'F', 'X', 'D', 0x0d, 0x0a, 0x1a, 1, 0, 0, 0 };
	static const uint8_t numbers[28] = { 0, 0, 0, 0, 168, 0, 0,  0, KEY, 0, 0, 0, 0xe8, 3,
					     0, 0, 0, 0, 0,   0, 16, 0, 0,   0, 0, 0, 0,    0 };
	static const uint8_t zero[PREFIXD_VALUE_NONCE];
	uint8_t value[MAX];
	size_t len = make(value, &of, false);

	ck_assert_mem_eq(value, begin, sizeof(begin));
	ck_assert_mem_eq(value + 12, numbers, sizeof(numbers));
	ck_assert_mem_eq(value + 40, zero, sizeof(zero));
	ck_assert_mem_eq(value + 64, ns, 32);
	ck_assert_mem_eq(value + 96, name, 32);
	ck_assert_mem_eq(value + 128, parent, 32);
	ck_assert_mem_eq(value + 168, sum, 16);
	ck_assert_mem_eq(value + 184, key, KEY);
	ck_assert_mem_eq(value + 184 + KEY, block, BLOCK);
	make(value, &of, true);
	ck_assert_uint_eq(value[10], 1);
	ck_assert_mem_ne(value + 40, zero, sizeof(zero));
	(void)len;
}
END_TEST

START_TEST(every_truncation)
{
	bool encrypted = _i;
	uint8_t value[MAX];
	size_t len = make(value, &of, encrypted);

	for (size_t n = 0; n < len; n++)
		refused(value, n, &of, cipher_of(encrypted), TRUNCATED);
}
END_TEST

START_TEST(longer)
{
	bool encrypted = _i;
	uint8_t value[MAX + MORE] = { 0 };
	size_t len = make(value, &of, encrypted);

	for (size_t n = 1; n <= MORE; n++)
		refused(value, len + n, &of, cipher_of(encrypted), OVERSIZED);
}
END_TEST

/* What a flipped bit is called, by where it lies. */
static int reason_of_flip(size_t byte, bool encrypted)
{
	if (byte < 8)
		return PREFIXD_REDIS_BAD_MAGIC;
	if (byte < 10)
		return PREFIXD_REDIS_BAD_VERSION;
	if (byte < PREFIXD_VALUE_HEAD)
		return PREFIXD_REDIS_BAD_HEADER;
	if (encrypted)
		return PREFIXD_REDIS_BAD_AUTH;
	if (byte < PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM)
		return PREFIXD_REDIS_BAD_CHECKSUM;
	return byte < PREFIXD_VALUE_HEAD + PREFIXD_VALUE_SUM + KEY ? PREFIXD_REDIS_BAD_KEY
								   : PREFIXD_REDIS_BAD_CHECKSUM;
}

START_TEST(every_bit)
{
	bool encrypted = _i;
	uint8_t value[MAX];
	size_t len = make(value, &of, encrypted);

	for (size_t bit = 0; bit < 8 * len; bit++) {
		value[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		ck_assert_int_eq(parse(value, len, &of, cipher_of(encrypted)),
				 reason_of_flip(bit / 8, encrypted));
		value[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	ck_assert_int_eq(parse(value, len, &of, cipher_of(encrypted)), -1);
}
END_TEST

/* A head whose own checksum is right and that says something else. */
START_TEST(every_field)
{
	static const struct {
		uint32_t at;
		enum prefixd_redis_bad why;
	} fields[] = {
		{ 8, PREFIXD_REDIS_BAD_VERSION },    { 9, PREFIXD_REDIS_BAD_VERSION },
		{ 11, PREFIXD_REDIS_BAD_VERSION },   { 12, PREFIXD_REDIS_BAD_CODEC },
		{ 13, PREFIXD_REDIS_BAD_HEADER },    { 15, PREFIXD_REDIS_BAD_HEADER },
		{ 16, PREFIXD_REDIS_BAD_HEADER },    { 19, PREFIXD_REDIS_BAD_HEADER },
		{ 20, PREFIXD_REDIS_BAD_KEY },       { 23, PREFIXD_REDIS_BAD_KEY },
		{ 24, PREFIXD_REDIS_BAD_SIZE },      { 31, PREFIXD_REDIS_BAD_SIZE },
		{ 32, PREFIXD_REDIS_BAD_KEY },       { 35, PREFIXD_REDIS_BAD_KEY },
		{ 36, PREFIXD_REDIS_BAD_HEADER },    { 39, PREFIXD_REDIS_BAD_HEADER },
		{ 40, PREFIXD_REDIS_BAD_AUTH },      { 63, PREFIXD_REDIS_BAD_AUTH },
		{ 64, PREFIXD_REDIS_BAD_NAMESPACE }, { 95, PREFIXD_REDIS_BAD_NAMESPACE },
		{ 96, PREFIXD_REDIS_BAD_NAME },      { 127, PREFIXD_REDIS_BAD_NAME },
		{ 128, PREFIXD_REDIS_BAD_KEY },      { 159, PREFIXD_REDIS_BAD_KEY },
	};
	bool encrypted = _i;
	uint8_t value[MAX];
	size_t len = make(value, &of, encrypted);

	for (size_t i = 0; i < radix_array_size(fields); i++) {
		value[fields[i].at] ^= 0x40;
		reseal(value);
		ck_assert_int_eq(parse(value, len, &of, cipher_of(encrypted)), (int)fields[i].why);
		value[fields[i].at] ^= 0x40;
	}
	reseal(value);
	ck_assert_int_eq(parse(value, len, &of, cipher_of(encrypted)), -1);
	/* Flags: encrypted or not, and everything else is of another version. */
	value[10] ^= 1;
	reseal(value);
	refused(value, len, &of, cipher_of(encrypted), AUTH);
	value[10] ^= 3;
	reseal(value);
	refused(value, len, &of, cipher_of(encrypted), VERSION);
}
END_TEST

/* Values that are right, and somebody else's. */
START_TEST(swapped)
{
	bool encrypted = _i;
	const struct prefixd_value_cipher *c = cipher_of(encrypted);
	struct prefixd_value_of other = of;
	uint8_t value[MAX], other_key[KEY] = "another key", other_ns[32] = "another model";
	uint8_t other_name[32] = "another name", other_parent[32] = "another parent";
	size_t len;

	other.ns_digest = other_ns;
	len = make(value, &other, encrypted);
	refused(value, len, &of, c, NAMESPACE);
	other = of;
	other.name = other_name;
	len = make(value, &other, encrypted);
	refused(value, len, &of, c, NAME);
	other = of;
	other.parent = other_parent;
	len = make(value, &other, encrypted);
	refused(value, len, &of, c, KEY);
	other = of;
	other.key = other_key;
	len = make(value, &other, encrypted);
	refused(value, len, &of, c, KEY);
	other = of;
	other.key_len = KEY - 4;
	len = make(value, &other, encrypted);
	refused(value, len, &of, c, KEY);
	other = of;
	other.block_bytes = BLOCK / 2;
	len = make(value, &other, encrypted);
	refused(value, len, &of, c, SIZE);
}
END_TEST

START_TEST(lengths_that_lie)
{
	static const uint64_t lens[] = { 0,          1,          BLOCK - 1,  BLOCK + 1,
					 1ull << 31, 1ull << 32, UINT64_MAX, UINT64_MAX - 200 };
	uint8_t value[MAX];
	size_t len = make(value, &of, false);

	for (size_t i = 0; i < radix_array_size(lens); i++) {
		for (unsigned b = 0; b < 8; b++)
			value[24 + b] = (uint8_t)(lens[i] >> (8 * b));
		reseal(value);
		refused(value, len, &of, &clear, SIZE);
	}
	make(value, &of, false);
	memset(value + 20, 0xff, 4);
	reseal(value);
	refused(value, len, &of, &clear, KEY);
}
END_TEST

START_TEST(wrong_cipher)
{
	static const uint8_t other_key[32] = "the naming key of somebody else.";
	struct prefixd_value_cipher other;
	uint8_t value[MAX], again[MAX];
	size_t len = make(value, &of, true);

	refused(value, len, &of, &clear, AUTH);
	prefixd_value_cipher_init(&other, other_key, true);
	refused(value, len, &of, &other, AUTH);
	/* The head belongs to what is encrypted: another's body under this head is refused. */
	make(again, &of, true);
	ck_assert_mem_ne(value + PREFIXD_VALUE_HEAD, again + PREFIXD_VALUE_HEAD, 64);
	memcpy(value + PREFIXD_VALUE_HEAD, again + PREFIXD_VALUE_HEAD, len - PREFIXD_VALUE_HEAD);
	refused(value, len, &of, &secret, AUTH);
	len = make(value, &of, false);
	refused(value, len, &of, &secret, AUTH);
	/* The key of encryption is not the naming key itself. */
	ck_assert_mem_ne(secret.key, naming_key, 32);
}
END_TEST

/* Bytes that were changed, cut, moved, repeated: accepted only when nothing changed. */
START_TEST(random_mutations)
{
	bool encrypted = _i;
	uint64_t seed = 0x6d75746174650000 + (uint64_t)_i, counts[PREFIXD_REDIS_N_BAD] = { 0 };
	uint8_t value[MAX + MORE], whole[MAX + MORE];
	uint32_t same = 0, refusals = 0;
	size_t len = make(whole, &of, encrypted);

	memset(whole + len, 0, sizeof(whole) - len);
	for (uint32_t round = 0; round < 10000; round++) {
		uint32_t n = 1 + test_rng_below(&seed, 3);
		size_t now = len;
		int why;

		memcpy(value, whole, sizeof(value));
		for (uint32_t i = 0; i < n; i++) {
			/* Half of them in the head, where the decisions are. */
			size_t at = test_rng_below(&seed, 2) ? test_rng_below(&seed, 200)
							     : test_rng_below(&seed, (uint32_t)len);
			size_t from = test_rng_below(&seed, (uint32_t)len);

			switch (test_rng_below(&seed, 6)) {
			case 0:
				value[at] ^= (uint8_t)(1u << test_rng_below(&seed, 8));
				break;
			case 1:
				value[at] = (uint8_t)test_rng(&seed);
				break;
			case 2:
				now = test_rng_below(&seed, MAX + MORE);
				break;
			case 3:
				memmove(value + at, value + from, len - (at > from ? at : from));
				break;
			case 4:
				memset(value + at, (int)test_rng_below(&seed, 2) * 255, 4);
				break;
			default:
				if (test_rng_below(&seed, 4) == 0)
					reseal(value);
			}
		}
		why = parse(value, now, &of, cipher_of(encrypted));
		if (why < 0) {
			ck_assert_uint_eq(now, len);
			ck_assert_mem_eq(value, whole, len);
			same++;
		} else {
			counts[why]++;
			refusals++;
		}
	}
	ck_assert_uint_eq(same + refusals, 10000);
	/* The mutations do reach most of the reasons, and nearly all change something. */
	ck_assert_uint_lt(same, 2500);
	ck_assert_uint_gt(counts[PREFIXD_REDIS_BAD_TRUNCATED], 100);
	ck_assert_uint_gt(counts[PREFIXD_REDIS_BAD_MAGIC], 100);
	ck_assert_uint_gt(counts[PREFIXD_REDIS_BAD_HEADER], 100);
	ck_assert_uint_gt(counts[encrypted ? PREFIXD_REDIS_BAD_AUTH : PREFIXD_REDIS_BAD_CHECKSUM],
			  100);
}
END_TEST

START_TEST(no_key_no_block)
{
	struct prefixd_value_of empty = of;
	uint8_t value[MAX];

	empty.key_len = 0;
	empty.block_bytes = 0;
	prefixd_value_checksum(block, 0, sum);
	ck_assert_int_eq(parse(value, make(value, &empty, _i), &empty, cipher_of(_i)), -1);
	prefixd_value_checksum(block, BLOCK, sum);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("redis value");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, round_trip, 0, 2);
	tcase_add_loop_test(tc, coded, 0, 2);
	tcase_add_test(tc, checksum);
	tcase_add_test(tc, layout);
	tcase_add_loop_test(tc, every_truncation, 0, 2);
	tcase_add_loop_test(tc, longer, 0, 2);
	tcase_add_loop_test(tc, every_bit, 0, 2);
	tcase_add_loop_test(tc, every_field, 0, 2);
	tcase_add_loop_test(tc, swapped, 0, 2);
	tcase_add_test(tc, lengths_that_lie);
	tcase_add_test(tc, wrong_cipher);
	tcase_add_loop_test(tc, random_mutations, 0, 2);
	tcase_add_loop_test(tc, no_key_no_block, 0, 2);
	suite_add_tcase(s, tc);
	return test_run(s);
}
