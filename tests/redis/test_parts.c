/*
 * test_parts.c - the small pure parts: breaker, URLs, epochs as text, classes of errors, messages.
 */
#include "daemon/helper.h"
#include "daemon/redis_internal.h"
#include "tests/lib/run.h"

#include <sodium.h>
#include <stdlib.h>

#define MS 1000000ull

/* ---- breaker --------------------------------------------------------------------------------- */

static struct prefixd_breaker breaker_new(uint64_t seed)
{
	struct prefixd_redis_config config;
	struct prefixd_breaker b;

	prefixd_redis_config_init(&config);
	config.backoff_min_ns = 100 * MS;
	config.backoff_max_ns = 30000 * MS;
	config.breaker_failures = 3;
	config.seed = seed;
	prefixd_breaker_init(&b, &config);
	return b;
}

START_TEST(waits_double)
{
	struct prefixd_breaker b = breaker_new((uint64_t)_i * 7919 + 1);
	uint64_t now = 5, backoff = 100 * MS;

	/* The first try is at once. */
	ck_assert_int_eq(b.state, PREFIXD_BREAKER_OPEN);
	ck_assert(prefixd_breaker_probe(&b, now));
	for (int i = 0; i < 14; i++) {
		ck_assert_int_eq(b.state, PREFIXD_BREAKER_HALF_OPEN);
		ck_assert(!prefixd_breaker_probe(&b, now)); /* one at a time */
		ck_assert(!prefixd_breaker_open(&b, now));
		ck_assert_uint_ge(b.retry_ns - now, backoff / 2);
		ck_assert_uint_le(b.retry_ns - now, backoff);
		ck_assert(!prefixd_breaker_probe(&b, b.retry_ns - 1));
		now = b.retry_ns;
		ck_assert(prefixd_breaker_probe(&b, now));
		backoff = backoff * 2 > 30000 * MS ? 30000 * MS : backoff * 2;
	}
	ck_assert_uint_eq(backoff, 30000 * MS);
}
END_TEST

/* Two daemons with their own seeds do not come at the same moments; one seed repeats itself. */
START_TEST(jitter)
{
	struct prefixd_breaker a = breaker_new(1), b = breaker_new(2), c = breaker_new(1);
	int same = 0;

	for (int i = 0; i < 10; i++) {
		uint64_t now = (uint64_t)i * 100000 * MS;

		ck_assert(prefixd_breaker_probe(&a, now) && prefixd_breaker_probe(&b, now) &&
			  prefixd_breaker_probe(&c, now));
		(void)prefixd_breaker_open(&a, now);
		(void)prefixd_breaker_open(&b, now);
		(void)prefixd_breaker_open(&c, now);
		same += a.retry_ns == b.retry_ns;
		ck_assert_uint_eq(a.retry_ns, c.retry_ns);
	}
	ck_assert_int_lt(same, 2);
}
END_TEST

START_TEST(opens_after_failures_in_a_row)
{
	struct prefixd_breaker b = breaker_new(1);

	ck_assert(!prefixd_breaker_failed(&b)); /* OPEN already */
	ck_assert(prefixd_breaker_probe(&b, 0));
	prefixd_breaker_close(&b, 0);
	for (int i = 0; i < 10; i++) {
		ck_assert(!prefixd_breaker_failed(&b) && !prefixd_breaker_failed(&b));
		prefixd_breaker_worked(&b);
	}
	ck_assert(!prefixd_breaker_failed(&b) && !prefixd_breaker_failed(&b));
	ck_assert(prefixd_breaker_failed(&b));
	ck_assert(prefixd_breaker_open(&b, 1));
	ck_assert_int_eq(b.state, PREFIXD_BREAKER_OPEN);
}
END_TEST

/* Only who was well for a while begins with the shortest wait again. */
START_TEST(flapping_is_asked_less)
{
	struct prefixd_breaker b = breaker_new(1);
	uint64_t now = 0;

	ck_assert(prefixd_breaker_probe(&b, now));
	prefixd_breaker_close(&b, now);
	for (int i = 0; i < 5; i++) {
		now += 200 * MS;
		ck_assert(prefixd_breaker_open(&b, now));
		ck_assert_uint_eq(b.backoff_ns, (100 * MS) << i);
		now = b.retry_ns;
		ck_assert(prefixd_breaker_probe(&b, now));
		prefixd_breaker_close(&b, now);
	}
	now += 1000 * MS;
	ck_assert(prefixd_breaker_open(&b, now));
	ck_assert_uint_eq(b.backoff_ns, 100 * MS);
}
END_TEST

/* ---- URLs ------------------------------------------------------------------------------------ */

START_TEST(places)
{
	static const char *const good[] = {
		"unix:/run/redis.sock", "tcp:127.0.0.1:6379",          "127.0.0.1:6379",
		"localhost:1",          "tcp:redis.example.org:65535", "tcp:[::1]:6379",
		"[fe80::1]:7",
	};
	static const char *const bad[] = {
		"",
		"unix:",
		"unix:run/redis.sock",
		"tcp:",
		"localhost",
		"localhost:",
		":6379",
		"localhost:0",
		"localhost:65536",
		"localhost:6379x",
		"localhost:-1",
		"localhost:123456",
		"redis://localhost:6379",
		"::1:6379",
		"[::1]6379",
		"[::1",
		"[]:6379",
		"tcp:a b:1",
		"tcp:user@host:1",
		"tcp:host/0:1",
	};
	char why[256], path[120] = "unix:/";

	for (size_t i = 0; i < radix_array_size(good); i++)
		ck_assert_msg(prefixd_redis_url_check(good[i], why, sizeof(why)) == 0, "%s", why);
	for (size_t i = 0; i < radix_array_size(bad); i++) {
		why[0] = 0;
		ck_assert_msg(prefixd_redis_url_check(bad[i], why, sizeof(why)) == -EINVAL,
			      "accepted: %s", bad[i]);
		ck_assert(strlen(why) > 10);
	}
	/* The longest path of a socket, and one byte more. */
	memset(path + 6, 'p', 107 - 1);
	ck_assert_int_eq(prefixd_redis_url_check(path, why, sizeof(why)), 0);
	path[5 + 107] = 'p';
	ck_assert_int_eq(prefixd_redis_url_check(path, why, sizeof(why)), -EINVAL);
}
END_TEST

START_TEST(refused_configurations)
{
	static const char *const urls[] = { "nonsense", "tcp:no-such-host.invalid:6379" };
	struct prefixd_redis_config config;
	struct prefixd_redis *r = NULL;
	char why[256];

	for (int i = 0; i < 9; i++) {
		prefixd_redis_config_init(&config);
		snprintf(config.url, sizeof(config.url), "%s",
			 i < 2 ? urls[i] : "unix:/nowhere/redis");
		switch (i) {
		case 2:
			config.deadline_ns = 0;
			break;
		case 3:
			config.backoff_max_ns = config.backoff_min_ns - 1;
			break;
		case 4:
			config.batch = 0;
			break;
		case 5:
			config.breaker_failures = 0;
			break;
		case 6:
			config.max_block_bytes = 1ull << 30;
			break;
		case 7:
			snprintf(config.user, sizeof(config.user), "someone");
			break;
		case 8:
			config.max_block_bytes = 0;
			break;
		default:
			break;
		}
		why[0] = 0;
		ck_assert_int_lt(prefixd_redis_start(&r, &config, why, sizeof(why)), 0);
		ck_assert(!strncmp(why, "redis: ", 7));
		ck_assert_ptr_null(r);
	}
	prefixd_redis_stop(NULL);
}
END_TEST

/* ---- epochs ---------------------------------------------------------------------------------- */

START_TEST(epoch_text)
{
	static const uint8_t key[32] = "naming key", ns[32] = "a", other[32] = "b";
	struct prefixd_epoch e = { 0x123456789abcdef0, 0xfedcba9876543210 }, got;
	char text[PREFIXD_EPOCH_TEXT];

	prefixd_epoch_print(key, ns, e, text);
	ck_assert_int_eq(strncmp(text, "1 123456789abcdef0 fedcba9876543210 ", 36), 0);
	ck_assert(prefixd_epoch_parse(key, ns, text, sizeof(text), &got));
	ck_assert(got.n == e.n && got.nonce == e.nonce);
	ck_assert(!prefixd_epoch_parse(key, other, text, sizeof(text), &got));
	ck_assert(!prefixd_epoch_parse(other, ns, text, sizeof(text), &got));
	for (size_t n = 0; n < sizeof(text); n++)
		ck_assert(!prefixd_epoch_parse(key, ns, text, n, &got));
	for (size_t bit = 0; bit < 8 * sizeof(text); bit++) {
		text[bit / 8] ^= (char)(1 << (bit % 8));
		ck_assert(!prefixd_epoch_parse(key, ns, text, sizeof(text), &got));
		text[bit / 8] ^= (char)(1 << (bit % 8));
	}
}
END_TEST

START_TEST(epoch_order)
{
	struct prefixd_epoch e[] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, UINT64_MAX }, { 2, 0 } };

	for (size_t i = 0; i < radix_array_size(e); i++) {
		for (size_t j = 0; j < radix_array_size(e); j++)
			ck_assert_int_eq(prefixd_epoch_greater(e[i], e[j]), i > j);
	}
}
END_TEST

/* ---- errors ---------------------------------------------------------------------------------- */

START_TEST(error_classes)
{
	static const struct {
		const char *text;
		enum prefixd_redis_error error;
	} cases[] = {
		{ "OOM command not allowed", PREFIXD_REDIS_ERROR_OOM },
		{ "OOM", PREFIXD_REDIS_ERROR_OOM },
		{ "OOMX y", PREFIXD_REDIS_ERROR_OTHER },
		{ "LOADING Redis is", PREFIXD_REDIS_ERROR_LOADING },
		{ "READONLY You", PREFIXD_REDIS_ERROR_READONLY },
		{ "NOAUTH a", PREFIXD_REDIS_ERROR_AUTH },
		{ "WRONGPASS a", PREFIXD_REDIS_ERROR_AUTH },
		{ "NOPERM a", PREFIXD_REDIS_ERROR_AUTH },
		{ "MOVED 1 a:1", PREFIXD_REDIS_ERROR_MOVED },
		{ "ASK 1 a:1", PREFIXD_REDIS_ERROR_MOVED },
		{ "ERR x", PREFIXD_REDIS_ERROR_OTHER },
		{ "oom x", PREFIXD_REDIS_ERROR_OTHER },
		{ "", PREFIXD_REDIS_ERROR_OTHER },
		{ " OOM", PREFIXD_REDIS_ERROR_OTHER },
	};

	for (size_t i = 0; i < radix_array_size(cases); i++)
		ck_assert_int_eq(prefixd_redis_error_of(cases[i].text, strlen(cases[i].text)),
				 (int)cases[i].error);
}
END_TEST

/* ---- messages -------------------------------------------------------------------------------- */

/* A message keeps what the action pointed to. */
START_TEST(messages)
{
	uint32_t entries[3] = { 7, 8, 9 };
	char keys[13] = "key1key2key3";
	struct prefixd_action a = { .type = PREFIXD_ACTION_NAMES, .group = 4 };
	struct prefixd_redis_message *m;
	struct prefixd_event e;

	a.u.names = (struct prefixd_names){
		.n = 3, .key_len = 4, .entries = entries, .keys = keys, .parent = 5
	};
	m = prefixd_redis_message_new(&a, NULL, 0);
	ck_assert_ptr_nonnull(m);
	memset(entries, 0, sizeof(entries));
	memset(keys, 0, sizeof(keys));
	ck_assert_uint_eq(m->message.kind, PREFIXD_REDIS_NAMES);
	ck_assert_uint_eq(m->group, 4);
	ck_assert_uint_eq(m->names.parent, 5);
	ck_assert(m->names.entries[0] == 7 && m->names.entries[2] == 9);
	ck_assert_mem_eq(m->names.keys, "key1key2key3", 12);
	ck_assert(!prefixd_redis_event(m, &e)); /* nothing to tell */
	prefixd_redis_message_free(m);
	a = (struct prefixd_action){ .type = PREFIXD_ACTION_EPOCH };
	a.u.epoch.raised = true;
	a.u.epoch.epoch.n = 6;
	m = prefixd_redis_message_new(&a, NULL, 0);
	ck_assert_ptr_nonnull(m);
	ck_assert(m->message.kind == PREFIXD_REDIS_EPOCH && m->raised && m->epoch.n == 6);
	ck_assert(!prefixd_redis_event(m, &e));
	prefixd_redis_message_free(m);
	prefixd_redis_message_free(NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("redis parts");
	TCase *tc = tcase_create("all");

	if (sodium_init() < 0)
		return 1;
	tcase_add_loop_test(tc, waits_double, 0, 20);
	tcase_add_test(tc, jitter);
	tcase_add_test(tc, opens_after_failures_in_a_row);
	tcase_add_test(tc, flapping_is_asked_less);
	tcase_add_test(tc, places);
	tcase_add_test(tc, refused_configurations);
	tcase_add_test(tc, epoch_text);
	tcase_add_test(tc, epoch_order);
	tcase_add_test(tc, error_classes);
	tcase_add_test(tc, messages);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(s, tc);
	return test_run(s);
}
