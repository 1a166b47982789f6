/*
 * test_real_values.c - bad values in a real Redis, and two clients that share one.
 */
#include "tests/lib/rng.h"
#include "tests/lib/run.h"
#include "tests/redis/kit.h"
#include "tests/redis/server.h"

#include <stdlib.h>

#define BLOCK 4096u

static struct server server;
static struct kit kit;

static void setup(void)
{
	server_init(&server);
	kit_init(&kit, server.url, BLOCK);
}

static void teardown(void)
{
	kit_stop(&kit);
	server_deinit(&server);
}

static void start(void)
{
	server_start(&server, NULL);
	kit_start(&kit);
	kit_wait_up(&kit);
}

/* ---- F43 and T58: bad values ----------------------------------------------------------------- */

/* The value of an entry as this kit would store it.  Return: its length; the caller frees it. */
static size_t value_of(uint32_t entry, uint8_t **ret_value)
{
	struct kit_value v;
	uint8_t block[BLOCK], sum[16], *p = malloc(BLOCK + 1024);
	size_t len;

	ck_assert_ptr_nonnull(p);
	kit_value(&kit, entry, &v);
	kit_block(entry, block, BLOCK);
	prefixd_value_checksum(block, BLOCK, sum);
	len = prefixd_value_len(&v.of, false);
	prefixd_value_prefix(&v.of, sum, p);
	memcpy(p + len - BLOCK, block, BLOCK);
	*ret_value = p;
	return len;
}

/* Puts bytes under the name of an entry and expects a reason. */
static void poke(uint32_t entry, const void *bytes, size_t len, enum prefixd_redis_bad why)
{
	char key[PREFIXD_REDIS_KEY_LEN + 1];
	struct prefixd_redis_stats before = kit_stats(&kit), after;

	kit_redis_key(&kit, entry, key);
	server_set(&server, key, bytes, len);
	ck_assert_int_eq(kit_fetch(&kit, entry), PREFIXD_MOVE_CORRUPT);
	/* Gone, and so it is only lost from now on. */
	ck_assert_int_eq(kit_fetch(&kit, entry), PREFIXD_MOVE_LOST);
	ck_assert_int_eq(server_int(&server, "EXISTS", key), 0);
	after = kit_stats(&kit);
	for (int i = 0; i < PREFIXD_REDIS_N_BAD; i++)
		ck_assert_uint_eq(after.bad_values[i], before.bad_values[i] + (i == (int)why));
	ck_assert_uint_eq(after.unlinked, before.unlinked + 1);
}

START_TEST(F43_each_reason)
{
	uint8_t *v, *other, *big;
	struct kit_value kv;
	size_t len, other_len;
	char key[PREFIXD_REDIS_KEY_LEN + 1];

	start();
	len = value_of(1, &v);
	other_len = value_of(2, &other);
	poke(1, "", 0, PREFIXD_REDIS_BAD_TRUNCATED);
	poke(1, v, len - 1, PREFIXD_REDIS_BAD_TRUNCATED);
	poke(1, v, 100, PREFIXD_REDIS_BAD_TRUNCATED);
	poke(1, "hello, this is something else", 29, PREFIXD_REDIS_BAD_MAGIC);
	poke(1, other, other_len, PREFIXD_REDIS_BAD_NAME);
	/* Longer by a bit, longer than any block may be, longer than the reader keeps. */
	big = calloc(1, 8u << 20);
	ck_assert_ptr_nonnull(big);
	memcpy(big, v, len);
	poke(1, big, len + 1, PREFIXD_REDIS_BAD_OVERSIZED);
	poke(1, big, len + RADIX_KEY_MAX, PREFIXD_REDIS_BAD_OVERSIZED);
	poke(1, big, 8u << 20, PREFIXD_REDIS_BAD_OVERSIZED);
	free(big);
	v[8]++;
	poke(1, v, len, PREFIXD_REDIS_BAD_VERSION);
	v[8]--;
	v[70] ^= 4;
	poke(1, v, len, PREFIXD_REDIS_BAD_HEADER);
	v[70] ^= 4;
	v[184 + 5] ^= 1;
	poke(1, v, len, PREFIXD_REDIS_BAD_KEY);
	v[184 + 5] ^= 1;
	v[len - 1] ^= 0x80;
	poke(1, v, len, PREFIXD_REDIS_BAD_CHECKSUM);
	v[len - 1] ^= 0x80;
	/* Another model's, and of another size: whole and right, but not what is asked for. */
	kit_value(&kit, 1, &kv);
	kv.of.ns_digest = (const uint8_t *)"a digest of another model ......";
	prefixd_value_prefix(&kv.of, v + 168, other);
	poke(1, other, len, PREFIXD_REDIS_BAD_NAMESPACE);
	kit_value(&kit, 1, &kv);
	kv.of.block_bytes = BLOCK / 2;
	prefixd_value_prefix(&kv.of, v + 168, other);
	poke(1, other, len - BLOCK / 2, PREFIXD_REDIS_BAD_SIZE);
	/* Not strings at all. */
	kit_redis_key(&kit, 1, key);
	freeReplyObject(server_do(&server, "RPUSH", key, "a", "b", NULL));
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_CORRUPT);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_LOST);
	ck_assert_uint_eq(kit_stats(&kit).bad_values[PREFIXD_REDIS_BAD_TYPE], 1);
	/* And the value itself is fine. */
	server_set(&server, key, v, len);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_uint_eq(kit_stats(&kit).breaker_opened, 0);
	free(v);
	free(other);
}
END_TEST

/* A head that says another codec or an encryption, with a checksum that agrees, cannot be poked
 * without knowing the format: test_value.c has those.  Here: two daemons that do not agree about
 * encryption. */
START_TEST(F43_not_encrypted)
{
	struct kit plain;
	char key[PREFIXD_REDIS_KEY_LEN + 1];

	kit.config.encrypt = true;
	start();
	kit_init(&plain, server.url, BLOCK);
	kit_start(&plain);
	kit_wait_up(&plain);
	ck_assert_int_eq(kit_store(&plain, 1), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_CORRUPT);
	ck_assert_uint_eq(kit_stats(&kit).bad_values[PREFIXD_REDIS_BAD_AUTH], 1);
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&plain, 1), PREFIXD_MOVE_CORRUPT);
	ck_assert_uint_eq(kit_stats(&plain).bad_values[PREFIXD_REDIS_BAD_AUTH], 1);
	/* Another naming key: other names, so nothing is found, and nothing is destroyed. */
	kit_stop(&plain);
	kit_init(&plain, server.url, BLOCK);
	plain.config.naming_key[0] ^= 1;
	kit_start(&plain);
	kit_wait_up(&plain);
	ck_assert_int_eq(kit_store(&kit, 2), PREFIXD_MOVE_OK);
	ck_assert_int_eq(kit_fetch(&plain, 2), PREFIXD_MOVE_LOST);
	kit_redis_key(&kit, 2, key);
	ck_assert_int_eq(server_int(&server, "EXISTS", key), 1);
	kit_stop(&plain);
}
END_TEST

START_TEST(F43_random_mutations)
{
	uint64_t seed = 0xf43;
	uint8_t *v, *copy = malloc(BLOCK + 2048);
	char key[PREFIXD_REDIS_KEY_LEN + 1];
	size_t len;
	uint32_t bad = 0, ok = 0;

	ck_assert_ptr_nonnull(copy);
	start();
	len = value_of(1, &v);
	kit_redis_key(&kit, 1, key);
	for (uint32_t round = 0; round < 10000; round++) {
		size_t now = len, at = test_rng_below(&seed, (uint32_t)len);
		enum prefixd_move_result result;
		bool same;

		memcpy(copy, v, len);
		memset(copy + len, 0, 1024);
		switch (test_rng_below(&seed, 5)) {
		case 0:
			copy[at] ^= (uint8_t)(1u << test_rng_below(&seed, 8));
			break;
		case 1:
			copy[at % 200] = (uint8_t)test_rng(&seed);
			break;
		case 2:
			now = test_rng_below(&seed, (uint32_t)len + 1000);
			break;
		case 3:
			memmove(copy + at, copy + at / 2, len - at);
			break;
		default:
			test_rng_fill(&seed, copy + at, len - at < 16 ? len - at : 16);
		}
		same = now == len && !memcmp(copy, v, len);
		server_set(&server, key, copy, now);
		result = kit_fetch(&kit, 1);
		ck_assert_int_eq(result, same ? PREFIXD_MOVE_OK : PREFIXD_MOVE_CORRUPT);
		/* Behind the UNLINK, so that it does not meet the next value. */
		ck_assert_uint_eq(kit_look(&kit, 1, 1), same);
		*(same ? &ok : &bad) += 1;
	}
	ck_assert_uint_eq(kit_bad(&kit), bad);
	ck_assert_uint_eq(kit_stats(&kit).fetched, ok);
	ck_assert_uint_gt(bad, 9900);
	free(v);
	free(copy);
}
END_TEST

START_TEST(T58_flipped_byte)
{
	char key[PREFIXD_REDIS_KEY_LEN + 1];
	redisReply *reply;

	kit.config.encrypt = _i;
	start();
	ck_assert_int_eq(kit_store(&kit, 1), PREFIXD_MOVE_OK);
	kit_redis_key(&kit, 1, key);
	reply = server_do(&server, "GET", key, NULL);
	reply->str[reply->len - BLOCK / 2] ^= 1;
	server_set(&server, key, reply->str, reply->len);
	freeReplyObject(reply);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_CORRUPT);
	ck_assert_uint_eq(kit_stats(&kit).bad_values[_i ? PREFIXD_REDIS_BAD_AUTH
							: PREFIXD_REDIS_BAD_CHECKSUM],
			  1);
	ck_assert_int_eq(kit_fetch(&kit, 1), PREFIXD_MOVE_LOST);
	ck_assert_int_eq(server_int(&server, "EXISTS", key), 0);
}
END_TEST

/* ---- F44: two daemons, one Redis ------------------------------------------------------------- */

START_TEST(F44_two_daemons)
{
	uint8_t blocks[40][BLOCK], got[40][BLOCK];
	struct kit other;
	uint32_t rounds = 20;

	start();
	kit_init(&other, server.url, BLOCK);
	kit_start(&other);
	kit_wait_up(&other);
	for (uint32_t i = 0; i < 40; i++)
		kit_block(i, blocks[i], BLOCK);
	for (uint32_t round = 0; round < rounds; round++) {
		/* Both store the same names and read them, all at once. */
		for (uint32_t i = 0; i < 40; i++) {
			kit_send_store(&kit, i, blocks[i], 0);
			kit_send_store(&other, 39 - i, blocks[39 - i], 0);
		}
		for (uint32_t i = 0; i < 40; i++)
			kit_send_fetch(round % 2 ? &kit : &other, i, got[i], 0);
		kit_drain(&kit);
		kit_drain(&other);
		for (uint32_t i = 0; i < 40; i++)
			ck_assert_mem_eq(got[i], blocks[i], BLOCK);
	}
	ck_assert_uint_eq(kit.results[PREFIXD_MOVE_OK] + other.results[PREFIXD_MOVE_OK],
			  rounds * 120);
	ck_assert_uint_eq(kit_bad(&kit) + kit_bad(&other), 0);
	ck_assert_uint_eq(kit_look(&other, 0, 40), 40);
	/* One is gone in the middle of it; the other does not mind. */
	for (uint32_t i = 0; i < 40; i++)
		kit_send_store(&other, i, blocks[i], 0);
	kit_stop(&other);
	for (uint32_t i = 0; i < 40; i++)
		ck_assert_int_eq(kit_fetch(&kit, i), PREFIXD_MOVE_OK);
}
END_TEST

static bool epoch_is(const struct kit *k, uint64_t n, uint64_t nonce)
{
	return k->seen.n == n && k->seen.nonce == nonce;
}

START_TEST(F44_epochs)
{
	static const uint8_t a[32] = "namespace a", b[32] = "namespace b";
	char key[PREFIXD_REDIS_EPOCH_LEN + 1] = { 0 };
	struct kit other;

	start();
	kit_init(&other, server.url, BLOCK);
	kit_start(&other);
	kit_wait_up(&other);
	prefixd_name_epoch_key(a, key);
	kit_send_epoch(&kit, a, (struct prefixd_epoch){ 0, 0 }, false);
	kit_send_epoch(&other, a, (struct prefixd_epoch){ 0, 0 }, false);
	kit_send_epoch(&other, b, (struct prefixd_epoch){ 0, 0 }, false);
	kit_idle(&kit, 50);
	ck_assert_int_eq(server_int(&server, "EXISTS", key), 0); /* nothing to remember */
	/* One raises; the other hears of it, once. */
	kit_send_epoch(&kit, a, (struct prefixd_epoch){ 1, 500 }, true);
	kit_until(&kit, server_int(&server, "EXISTS", key) == 1);
	ck_assert_int_eq(server_int(&server, "TTL", key), -1);
	kit_until(&other, epoch_is(&other, 1, 500));
	ck_assert(other.n_seen == 1 && kit.n_seen == 0);
	/* Both raise at the same moment: the greater nonce wins on both sides. */
	kit_send_epoch(&kit, a, (struct prefixd_epoch){ 2, 7 }, true);
	kit_send_epoch(&other, a, (struct prefixd_epoch){ 2, 3 }, true);
	kit_until(&other, epoch_is(&other, 2, 7));
	kit_idle(&kit, 1100);
	ck_assert(other.n_seen == 2 && kit.n_seen == 0);
	/* A daemon that starts later learns it; Redis that lost it is told. */
	kit_stop(&other);
	kit_init(&other, server.url, BLOCK);
	kit_start(&other);
	kit_wait_up(&other);
	kit_send_epoch(&other, a, (struct prefixd_epoch){ 0, 0 }, false);
	kit_until(&other, epoch_is(&other, 2, 7));
	freeReplyObject(server_do(&server, "FLUSHALL", NULL));
	kit_until(&kit, server_int(&server, "EXISTS", key) == 1);
	server_kill(&server);
	kit_wait_down(&kit, 1);
	/* Raised while it is down: told when it is back. */
	kit_send_epoch(&kit, a, (struct prefixd_epoch){ 3, 1 }, true);
	kit_idle(&kit, 20);
	server_start(&server, NULL);
	kit_wait_up(&kit);
	kit_until(&other, epoch_is(&other, 3, 1));
	kit_stop(&other);
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "F43";
	Suite *s = suite_create("redis values");
	TCase *tc = tcase_create(which);

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 120);
	if (!strcmp(which, "F43")) {
		tcase_add_test(tc, F43_each_reason);
		tcase_add_test(tc, F43_not_encrypted);
		tcase_add_test(tc, F43_random_mutations);
	} else if (!strcmp(which, "F44")) {
		tcase_add_test(tc, F44_two_daemons);
		tcase_add_test(tc, F44_epochs);
	} else {
		tcase_add_loop_test(tc, T58_flipped_byte, 0, 2);
	}
	suite_add_tcase(s, tc);
	return test_run(s);
}
