/*
 * test_tiers.c - a real daemon over host memory and a real Redis.
 *
 * Workers compare every byte that they are lent, whichever tier it came from.  The first argument
 * picks the tests, so that each scenario is registered under its own name.
 */
#include "tests/e2e/redis_server.h"
#include "tests/e2e/worker.h"

#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct e2e_daemon d, other;
static struct e2e_redis redis;
static struct worker w;

static json_t *ask(const struct e2e_daemon *which, const char *cmd)
{
	char *text = e2e_admin(which, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

/* The number at status.a.b (b NULL: status.a). */
static json_int_t number(const struct e2e_daemon *which, const char *a, const char *b,
			 const char *c)
{
	json_t *status = ask(which, "{\"op\":\"status\"}");
	const json_t *v = json_object_get(status, a);
	json_int_t n;

	v = b ? json_object_get(v, b) : v;
	v = c ? json_object_get(v, c) : v;
	ck_assert_msg(json_is_integer(v), "status has no number %s.%s.%s", a, b ? b : "",
		      c ? c : "");
	n = json_integer_value(v);
	json_decref(status);
	return n;
}

static bool text_is(const struct e2e_daemon *which, const char *a, const char *b, const char *want)
{
	json_t *status = ask(which, "{\"op\":\"status\"}");
	const char *is = json_string_value(json_object_get(json_object_get(status, a), b));
	bool same = is && strcmp(is, want) == 0;

	json_decref(status);
	return same;
}

/* Waits until something holds, forty seconds at most: a breaker may take thirty to try again. */
#define SOON(x)                                                                    \
	do {                                                                       \
		unsigned long end_ = e2e_now_ms() + 40000;                         \
		while (!(x)) {                                                     \
			ck_assert_msg(e2e_now_ms() < end_, "not in time: %s", #x); \
			e2e_sleep_ms(5);                                           \
		}                                                                  \
	} while (0)

static void start_daemon(struct e2e_daemon *which, const char *pool, const char *host,
			 const char *const more[])
{
	/* a slow prefill: what lies below is always worth loading */
	const char *args[32] = {
		"--pool-blocks", pool, "--host-blocks", host, "--prefill-rate", "1"
	};
	unsigned n = 6;

	if (redis.pid) {
		args[n++] = "--redis";
		args[n++] = redis.url;
	}
	for (; more && *more; more++)
		args[n++] = *more;
	if (!which->dir[0])
		ck_assert_int_eq(e2e_daemon_init(which), 0);
	ck_assert_int_eq(e2e_daemon_start(which, args), 0);
	if (redis.c)
		SOON(text_is(which, "redis", "breaker", "closed"));
}

static void start_redis(const char *const args[])
{
	if (!redis.dir[0])
		ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, args);
}

static void stop(void)
{
	json_t *audit;

	ck_assert_uint_eq(w.corrupt, 0);
	ck_assert_uint_eq(w.errors, 0);
	if (w.client)
		worker_stop(&w);
	for (int i = 0; i < 2; i++) {
		struct e2e_daemon *which = i ? &other : &d;

		if (!which->pid)
			continue;
		audit = ask(which, "{\"op\":\"audit\"}");
		ck_assert(json_is_true(json_object_get(audit, "clean")));
		json_decref(audit);
		ck_assert_int_eq(e2e_daemon_stop(which, SIGTERM), 0);
		e2e_daemon_free(which);
	}
	e2e_redis_free(&redis);
}

/* ---- what a worker does ---------------------------------------------------------------------- */

/* Takes what any tier has, computes the rest.  Returns the blocks that were there. */
static uint32_t serve(uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	uint32_t hit;

	worker_prompt(&w, n_blocks, stem, variant);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_int_eq(worker_load(&w), PFX_OK);
	hit = w.n_hit;
	if (w.n_hit < w.n_blocks) {
		int r = worker_reserve(&w);

		if (r != PFX_BUSY) {
			ck_assert_int_eq(r, PFX_OK);
			worker_write(&w, 0, w.n_reserved);
			ck_assert_int_eq(worker_commit(&w, w.n_reserved), PFX_OK);
		}
	}
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	return hit;
}

/* Where a prompt lies now; nothing comes up. */
static void look(uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	bool promote = w.promote;

	w.promote = false;
	worker_prompt(&w, n_blocks, stem, variant);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	w.promote = promote;
}

/* Stores others' prompts until this one lies in Redis as a whole. */
static void push_to_redis(uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	static uint64_t fresh = 1u << 20;

	for (int i = 0; i < 2000; i++) {
		if (i % 16 == 0) /* not too often: a look is a use */
			look(n_blocks, stem, variant);
		if (i % 16 == 0 && w.n_hit == 0 && w.n_host == 0)
			break;
		(void)serve(16, (uint32_t)fresh, fresh);
		fresh++;
	}
	ck_assert_uint_eq(w.n_redis, n_blocks);
}

static void begin(const struct e2e_daemon *which)
{
	worker_start(&w, which->socket, 1);
	w.promote = true;
}

/* ---- host memory ----------------------------------------------------------------------------- */

START_TEST(host_memory_keeps_what_the_pool_cannot)
{
	start_daemon(&d, "64", "1024", NULL);
	begin(&d);
	for (uint64_t v = 0; v < 40; v++)
		ck_assert_uint_eq(serve(16, 100 + (uint32_t)v % 16, 500 + v), v < 16 ? 0 : 8);
	for (uint64_t v = 0; v < 40; v++)
		ck_assert_uint_eq(serve(16, 100 + (uint32_t)v % 16, 500 + v), 16);
	ck_assert_uint_gt(w.blocks_loaded, 300);
	ck_assert_int_ge(number(&d, "demoted_blocks", "device", "host"), 300);
	ck_assert_int_ge(number(&d, "promoted_blocks", "host", "device"), 300);
	ck_assert_int_gt(number(&d, "counters", "hit_host_tokens", NULL), 300 * 16);
	ck_assert_int_eq(number(&d, "counters", "dropped_blocks", NULL), 0);
	stop();
}
END_TEST

/* ---- Redis ----------------------------------------------------------------------------------- */

START_TEST(redis_keeps_what_the_host_cannot)
{
	start_redis(NULL);
	start_daemon(&d, "64", "128", NULL);
	begin(&d);
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	push_to_redis(24, 1, 1);
	ck_assert_uint_eq(serve(24, 1, 1), 24);
	ck_assert_int_ge(number(&d, "demoted_blocks", "host", "redis"), 24);
	ck_assert_int_ge(number(&d, "promoted_blocks", "redis", "device"), 24);
	ck_assert_int_ge(number(&d, "counters", "hit_redis_tokens", NULL), 24 * 16);
	ck_assert_int_ge(e2e_redis_count(&redis, "prefixd:v1:*"), 24);
	ck_assert(text_is(&d, "redis", "breaker", "closed"));
	stop();
}
END_TEST

/* What another life of the daemon left in Redis is found again, by whoever has the same salt. */
START_TEST(T05_every_tier_keeps_salts_apart)
{
	start_redis(NULL);
	start_daemon(&d, "64", "128", NULL);
	begin(&d);
	w.salt = "of tenant A";
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	push_to_redis(24, 1, 1);
	ck_assert_uint_eq(w.corrupt, 0);
	worker_stop(&w);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	start_daemon(&d, "64", "128", NULL);
	begin(&d);
	for (int i = 0; i < 20; i++) { /* long enough for a look into Redis */
		look(24, 1, 1);
		ck_assert_uint_eq(w.n_hit + w.n_host + w.n_redis, 0);
		e2e_sleep_ms(10);
	}
	w.salt = "of tenant B";
	look(24, 1, 1);
	e2e_sleep_ms(100);
	look(24, 1, 1);
	ck_assert_uint_eq(w.n_hit + w.n_host + w.n_redis, 0);
	w.salt = "of tenant A";
	SOON((look(24, 1, 1), w.n_redis == 24));
	ck_assert_uint_eq(serve(24, 1, 1), 24);
	w.salt = NULL;
	stop();
}
END_TEST

/* One byte of every value is flipped: nothing of it is served, the first is deleted and counted. */
START_TEST(T58_flipped_byte_in_redis)
{
	redisReply *keys;

	start_redis(NULL);
	start_daemon(&d, "64", "128", NULL);
	begin(&d);
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	push_to_redis(24, 1, 1);
	keys = e2e_redis_do(&redis, "KEYS prefixd:v1:*");
	for (size_t i = 0; i < keys->elements; i++) {
		redisReply *v = e2e_redis_do(&redis, "GETRANGE %s -1 -1", keys->element[i]->str);
		redisReply *len = e2e_redis_do(&redis, "STRLEN %s", keys->element[i]->str);
		char byte = (char)(v->len ? v->str[0] ^ 1 : 0);

		freeReplyObject(e2e_redis_do(&redis, "SETRANGE %s %lld %b", keys->element[i]->str,
					     len->integer - 1, &byte, (size_t)1));
		freeReplyObject(v);
		freeReplyObject(len);
	}
	freeReplyObject(keys);
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	ck_assert_uint_eq(w.loads_failed, 1);
	ck_assert_str_eq(pfx_reason_to_string(w.load_reason), "corrupt");
	ck_assert_int_ge(number(&d, "redis", "bad_values", "checksum"), 1);
	SOON(number(&d, "redis", "unlinked", NULL) >= 1);
	ck_assert_int_gt(number(&d, "counters", "miss_corrupt", NULL), 0);
	ck_assert_uint_eq(serve(24, 1, 1), 24); /* computed anew */
	stop();
}
END_TEST

/* A Redis of 4 MB under eight times as many bytes of values: prefixes stay whole all the same. */
START_TEST(F42_redis_evicts_at_will)
{
	enum {
		PROMPTS = 3000 /* 48,000 blocks of their own, 760 bytes a value: 36 MB */
	};
	const char *const args[] = { "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru",
				     NULL };
	uint64_t rng = 3, hits = 0;

	start_redis(args);
	start_daemon(&d, "64", "128", NULL);
	begin(&d);
	for (uint32_t v = 0; v < PROMPTS; v++)
		(void)serve(32, 1000 + v, 5000 + v);
	for (uint32_t i = 0; i < PROMPTS / 2; i++) {
		uint32_t v = test_rng_below(&rng, PROMPTS);

		hits += serve(32, 1000 + v, 5000 + v);
	}
	fprintf(stderr, "F42: %llu of %u blocks hit, %llu loads, %llu cut\n",
		(unsigned long long)hits, (unsigned)(PROMPTS / 2 * 32), (unsigned long long)w.loads,
		(unsigned long long)w.loads_failed);
	ck_assert_uint_gt(hits, 0);
	ck_assert_uint_gt(w.loads_failed, 0);
	ck_assert_int_gt(number(&d, "redis", "lost", NULL), 0);
	stop();
}
END_TEST

/* Two daemons, one Redis: each finds what the other stored, and an invalidation reaches both. */
START_TEST(F44_two_daemons_one_redis)
{
	char key[128];
	const char *const with_key[] = { "--naming-key-file", key, NULL };
	static struct worker first;
	json_t *reply;

	start_redis(NULL);
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	snprintf(key, sizeof(key), "%s/naming-key", d.dir);
	{
		FILE *f = fopen(key, "w");

		ck_assert_ptr_nonnull(f);
		for (int i = 0; i < 32; i++)
			fprintf(f, "%02x", (unsigned)i * 7 % 256);
		fclose(f);
		ck_assert_int_eq(chmod(key, 0600), 0);
	}
	start_daemon(&d, "64", "128", with_key);
	start_daemon(&other, "64", "128", with_key);
	begin(&d);
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	push_to_redis(24, 1, 1);
	first = w;
	begin(&other);
	SOON((look(24, 1, 1), w.n_redis == 24));
	ck_assert_uint_eq(serve(24, 1, 1), 24);
	reply = ask(&d, "{\"op\":\"invalidate\",\"ns\":1}");
	json_decref(reply);
	{
		struct worker second = w;

		w = first;
		look(24, 1, 1);
		ck_assert_uint_eq(w.n_hit + w.n_host + w.n_redis, 0);
		first = w;
		w = second;
	}
	SOON((look(24, 1, 1), w.n_hit + w.n_host + w.n_redis == 0));
	e2e_sleep_ms(100); /* nor does a look into Redis bring it back */
	look(24, 1, 1);
	ck_assert_uint_eq(w.n_hit + w.n_host + w.n_redis, 0);
	ck_assert_uint_eq(first.corrupt + first.errors, 0);
	worker_stop(&first);
	stop();
}
END_TEST

/* Down at the start, killed, back and empty, up and down: the worker notices nothing but misses. */
START_TEST(F40_redis_comes_and_goes)
{
	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	redis.pid = 1; /* so that the daemon is told of it */
	start_daemon(&d, "64", "128", NULL);
	redis.pid = 0;
	begin(&d);
	for (uint32_t v = 0; v < 40; v++)
		(void)serve(16, 1000 + v, 5000 + v);
	ck_assert(!text_is(&d, "redis", "breaker", "closed"));
	start_redis(NULL);
	SOON(text_is(&d, "redis", "breaker", "closed"));
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	push_to_redis(24, 1, 1);
	e2e_redis_stop(&redis, SIGKILL);
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	start_redis(NULL);
	SOON(text_is(&d, "redis", "breaker", "closed"));
	for (int i = 0; i < 10; i++) { /* every 200 ms */
		e2e_redis_stop(&redis, SIGKILL);
		for (unsigned long end = e2e_now_ms() + 200; e2e_now_ms() < end;)
			(void)serve(16, 3000 + (uint32_t)i, 1);
		start_redis(NULL);
		for (unsigned long end = e2e_now_ms() + 200; e2e_now_ms() < end;)
			(void)serve(16, 3100 + (uint32_t)i, e2e_now_ms());
	}
	SOON(text_is(&d, "redis", "breaker", "closed"));
	stop();
}
END_TEST

/* A Redis that stands still: answers come at once, the breaker opens, and closes behind it. */
START_TEST(T28_frozen_redis)
{
	start_redis(NULL);
	start_daemon(&d, "64", "128", (const char *const[]){ "--redis-timeout", "200ms", NULL });
	begin(&d);
	ck_assert_uint_eq(serve(24, 1, 1), 0);
	push_to_redis(24, 1, 1);
	ck_assert_int_eq(kill(redis.pid, SIGSTOP), 0);
	ck_assert_uint_eq(serve(24, 1, 1), 0); /* the load is cut, the worker computes */
	SOON((serve(16, 4000, e2e_now_ms()), text_is(&d, "redis", "breaker", "open")));
	for (uint32_t v = 0; v < 40; v++)
		(void)serve(16, 1000 + v, 5000 + v);
	ck_assert_int_eq(kill(redis.pid, SIGCONT), 0);
	SOON(text_is(&d, "redis", "breaker", "closed"));
	ck_assert_int_ge(number(&d, "redis", "breaker_opened", NULL), 1);
	ck_assert_int_ge(number(&d, "redis", "breaker_closed", NULL), 1);
	stop();
}
END_TEST

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		const TTest *test;
	} tests[] = {
		{ "host", host_memory_keeps_what_the_pool_cannot },
		{ "redis", redis_keeps_what_the_host_cannot },
		{ "T05", T05_every_tier_keeps_salts_apart },
		{ "T58", T58_flipped_byte_in_redis },
		{ "F40", F40_redis_comes_and_goes },
		{ "F42", F42_redis_evicts_at_will },
		{ "F44", F44_two_daemons_one_redis },
		{ "T28", T28_frozen_redis },
	};
	const char *which = argc > 1 ? argv[1] : "";
	Suite *s = suite_create("tiers");
	TCase *t = tcase_create("tiers");

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 240);
	for (unsigned i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!strcmp(which, tests[i].name))
			tcase_add_test(t, tests[i].test);
	suite_add_tcase(s, t);
	return test_run(s);
}
