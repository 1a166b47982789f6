/*
 * test_replay_tiers.c - whole replays over host memory and a real Redis: what left the pool comes
 * back, byte for byte, and is counted for the tier that it came from.
 *
 * Usage: test_replay_tiers [T37]: all but T37, or T37 alone.
 */
#include "clients/replay/lru.h"
#include "clients/replay/util.h"
#include "clients/replay/workload.h"
#include "tests/e2e/exposition.h"
#include "tests/e2e/redis_server.h"
#include "tests/e2e/replay_kit.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct e2e_redis redis;

/* Blocks of the longest request: with fewer slots it could not be served whole. */
static uint32_t longest(const struct replay_trace *t)
{
	uint32_t n = 0;

	for (size_t i = 0; i < t->n_requests; i++)
		n = t->requests[i].n_blocks > n ? t->requests[i].n_blocks : n;
	return n;
}

/* host 0: no such tier; with Redis if the test started one. */
static void start_tiers(uint64_t pool, uint64_t host, const char *prefill_rate)
{
	char pool_text[24], host_text[24];
	const char *args[] = { "--pool-blocks",
			       pool_text,
			       "--host-blocks",
			       host_text,
			       "--prefill-rate",
			       prefill_rate,
			       "--watermark",
			       "0",
			       "--redis",
			       redis.url,
			       "--index-blocks",
			       "100000",
			       "--redis-timeout", /* a CPU that is late is no Redis that is down */
			       "10s",
			       NULL };

	if (!redis.pid)
		args[8] = NULL;
	(void)snprintf(pool_text, sizeof(pool_text), "%llu", (unsigned long long)pool);
	(void)snprintf(host_text, sizeof(host_text), "%llu", (unsigned long long)host);
	replay_start(args);
}

static void start_redis(void)
{
	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, NULL);
}

static void teardown(void)
{
	replay_stop();
	e2e_redis_free(&redis);
}

static json_t *replay(const char *words, int *ret_status)
{
	char line[512];

	(void)snprintf(line, sizeof(line), "%s --admin-socket %s", words, replay_daemon.admin);
	return replay_call(line, ret_status);
}

static uint64_t moved(const json_t *json, const char *which, const char *from, const char *to)
{
	const json_t *by_to = json_object_get(json_object_get(json, which), from);

	return (uint64_t)json_integer_value(json_object_get(by_to, to));
}

static uint64_t hit_blocks(const json_t *json, const char *tier)
{
	return replay_number(json_object_get(json, "hit_blocks_by_tier"), tier);
}

/* ---- exactness ------------------------------------------------------------------------------- */

/* What lies below the pool, and how much fits into host memory. */
static const struct {
	enum replay_workload kind;
	const char *words;
	bool redis;
	int host;           /* blocks: 0 none, 1 as many as the pool, 2 all */
	uint64_t at_a_time; /* requests */
} sets[] = {
	{ REPLAY_WORKLOAD_CHAT, "--workload chat --seed 11 --requests 400 --workers 1", false, 2,
	  1 },
	{ REPLAY_WORKLOAD_AGENT, "--workload agent --seed 11 --requests 600 --workers 3", false, 2,
	  3 },
	{ REPLAY_WORKLOAD_CHAT, "--workload chat --seed 11 --requests 400 --workers 3", true, 1,
	  3 },
	{ REPLAY_WORKLOAD_CHAT,
	  "--workload chat --seed 11 --requests 400 --workers 2 --key-mode tokens", true, 1, 2 },
	{ REPLAY_WORKLOAD_AGENT, "--workload agent --seed 11 --requests 600 --workers 2", true, 0,
	  2 },
};

/*
 * The pool holds a few of the longest requests, a lower tier all: every request hits exactly the
 * blocks that it hits in a cache of any size, nothing is stored twice, and each hit is counted for
 * one tier.
 */
START_TEST(nothing_is_lost)
{
	size_t n = sets[_i].kind == REPLAY_WORKLOAD_CHAT ? 400 : 600;
	struct replay_trace *t = replay_workload_new(sets[_i].kind, 11, n, 512);
	uint32_t *want = replay_alloc(t->n_requests, sizeof(*want));
	/* Room for one more of the longest than there may be at a time: a load that finds none for
	   a tenth of a second is cut, by right, and a worker may stand still for longer. */
	uint64_t pool = (sets[_i].at_a_time + 1) * longest(t);
	uint64_t host = sets[_i].host == 2 ? t->n_blocks + 10 : pool;
	struct replay_lru_result lru;
	json_t *json;
	int status;

	replay_lru_run(t, 0, want, &lru);
	if (sets[_i].redis)
		start_redis();
	start_tiers(pool, sets[_i].host ? host : 0, "1");
	json = replay(sets[_i].words, &status);
	replay_check_good(json, status);
	replay_check_hits(want, t->n_requests);
	ck_assert_uint_eq(replay_hit_tokens(json, "device") + replay_hit_tokens(json, "host") +
				  replay_hit_tokens(json, "redis"),
			  lru.hit_tokens);
	ck_assert_uint_eq(replay_number(json, "blocks_committed"), lru.stored_blocks);
	ck_assert_uint_eq(replay_number(json, "blocks_duplicate"), 0);
	ck_assert_uint_eq(replay_number(json, "loads_cut"), 0);
	ck_assert_uint_eq(replay_number(json, "below_blocks"),
			  hit_blocks(json, "host") + hit_blocks(json, "redis"));
	ck_assert_uint_eq(moved(json, "promoted_blocks", "host", "device"),
			  hit_blocks(json, "host"));
	ck_assert_uint_eq(moved(json, "promoted_blocks", "redis", "device"),
			  hit_blocks(json, "redis"));
	/* It was no idle life. */
	ck_assert(!sets[_i].host || hit_blocks(json, "host") > 10);
	ck_assert(!sets[_i].redis || hit_blocks(json, "redis") > 100);
	ck_assert_uint_gt(moved(json, "demoted_blocks", "device", sets[_i].host ? "host" : "redis"),
			  lru.stored_blocks / 4);
	json_decref(json);
	free(want);
	replay_trace_free(t);
}
END_TEST

/*
 * How much comes up in time depends on how the four and the daemon's threads share the CPUs; on a
 * busy machine it may be nothing in one round.  That all of it is right never depends on it.
 */
START_TEST(side_by_side)
{
	uint64_t host = 0, redis_hits = 0;

	start_redis();
	start_tiers(700, 700, "1"); /* the pool has room for what four workers hold */
	for (int round = 0; round < 6 && !(host && redis_hits); round++) {
		int status;
		json_t *json = replay("--workload chat --seed 3 --requests 600 --workers 4 "
				      "--order concurrent",
				      &status);

		replay_check_good(json, status);
		ck_assert_uint_eq(replay_number(json, "requests"), 600);
		host += replay_hit_tokens(json, "host");
		redis_hits += replay_hit_tokens(json, "redis");
		json_decref(json);
	}
	ck_assert_uint_gt(host, 0);
	ck_assert_uint_gt(redis_hits, 0);
}
END_TEST

/* ---- what is not loaded is computed ---------------------------------------------------------- */

/* --promote off, and a daemon whose workers compute faster than any load: the same as one tier. */
START_TEST(computed_all_the_same)
{
	const char *words = _i ? "--workload chat --seed 5 --requests 300 --promote off"
			       : "--workload chat --seed 5 --requests 300";
	json_t *json;
	int status;

	start_tiers(400, 4000, _i ? "1" : "1000000000");
	json = replay(words, &status);
	replay_check_good(json, status);
	if (_i == 0) { /* what a load takes is measured: it begins with a guess */
		ck_assert_uint_gt(replay_number(json, "loads_declined"), 0);
		ck_assert_uint_lt(hit_blocks(json, "host"), replay_number(json, "below_blocks"));
	} else {
		ck_assert_uint_gt(replay_number(json, "below_blocks"), 0);
		ck_assert_uint_eq(replay_hit_tokens(json, "host"), 0);
		ck_assert_uint_eq(replay_number(json, "loads"), 0);
		ck_assert_uint_eq(replay_number(json, "loads_declined"), 0);
	}
	json_decref(json);
	json = replay_status();
	ck_assert_uint_gt(replay_counter(json, "miss_declined"), 0);
	ck_assert_uint_gt(replay_counter(json, "attached_blocks"), 0);
	json_decref(json);
}
END_TEST

/* Hurts every third value in Redis. */
static void hurt(bool damage)
{
	redisReply *keys = e2e_redis_do(&redis, "KEYS *"), *r;

	ck_assert_uint_gt(keys->elements, 300);
	for (size_t i = 0; i < keys->elements; i += 3) {
		if (strstr(keys->element[i]->str, "epoch"))
			continue;
		r = damage ? e2e_redis_do(&redis, "SETRANGE %b 300 xxxxxxxx", keys->element[i]->str,
					  (size_t)keys->element[i]->len)
			   : e2e_redis_do(&redis, "DEL %b", keys->element[i]->str,
					  (size_t)keys->element[i]->len);
		freeReplyObject(r);
	}
	freeReplyObject(keys);
}

/* Values that are gone, or are not the block: told by reason, computed, never served. */
START_TEST(bad_values_are_computed)
{
	const char *reason = _i ? "corrupt" : "tier_lost";
	json_t *json;
	int status;

	start_redis();
	start_tiers(300, 0, "1");
	json = replay("--workload chat --seed 5 --requests 200", &status);
	replay_check_good(json, status);
	json_decref(json);
	hurt(_i == 1);
	json = replay("--workload chat --seed 5 --requests 200", &status);
	replay_check_good(json, status);
	ck_assert_uint_gt(replay_number(json, "loads_cut"), 0);
	ck_assert_uint_gt(replay_number(json_object_get(json, "loads_cut_by_reason"), reason), 0);
	ck_assert_uint_gt(replay_number(json, "blocks_committed"), 0);
	json_decref(json);
	json = replay_status();
	ck_assert_uint_gt(replay_counter(json, _i ? "miss_corrupt" : "miss_tier_lost"), 0);
	json_decref(json);
}
END_TEST

/* ---- T37 ------------------------------------------------------------------------------------- */

static void sums_hold(const struct exposition *e)
{
	ck_assert(exposition_sum(e, "prefixd_hit_tokens_total") +
			  exposition_sum(e, "prefixd_miss_tokens_total") ==
		  exposition_get(e, "prefixd_lookup_tokens_total"));
	ck_assert(exposition_sum(e, "prefixd_pool_slots") ==
		  exposition_sum(e, "prefixd_pool_capacity_slots"));
	ck_assert(exposition_sum(e, "prefixd_tier_blocks") == exposition_get(e, "prefixd_blocks"));
}

/*
 * Loads of every kind, over three tiers that are all too small, with values that vanish: what the
 * clients saw, the daemon's status and its metrics are the same numbers, and hits by tier plus
 * misses by reason are what was asked for.
 */
START_TEST(T37_hits_by_tier_and_misses_add_up)
{
	static const char *const loads[] = {
		"--workload chat --requests 200 --workers 4 --order concurrent",
		"--workload agent --requests 100 --workers 2 --order trace",
		"--workload chat --requests 200 --workers 4 --order concurrent",
	};
	static const char *const tiers[] = { "device", "host", "redis" };
	uint64_t seen[3] = { 0 }, asked = 0, pending = 0;
	char http[128], address[160];
	const char *args[] = { "--pool-blocks",
			       "500",
			       "--host-blocks",
			       "500",
			       "--redis",
			       redis.url,
			       "--index-blocks",
			       "2000",
			       "--prefill-rate",
			       "1",
			       "--watermark",
			       "0",
			       "--http",
			       address,
			       NULL };
	struct exposition e;
	json_t *status;

	start_redis();
	ck_assert_int_eq(e2e_daemon_init(&replay_daemon), 0);
	replay_file_name(http, sizeof(http), "http");
	(void)snprintf(address, sizeof(address), "unix://%s", http);
	ck_assert_int_eq(e2e_daemon_start(&replay_daemon, args), 0);
	for (size_t i = 0; i < replay_array_size(loads); i++) {
		int code;
		json_t *json = replay(loads[i], &code);

		replay_check_good(json, code);
		for (size_t k = 0; k < 3; k++)
			seen[k] += replay_hit_tokens(json, tiers[k]);
		asked += replay_number(json, "queried_tokens");
		pending += replay_number(json, "hit_pending_tokens");
		json_decref(json);
		e = exposition_scrape(http);
		sums_hold(&e);
		exposition_free(&e);
		if (i == 1)
			hurt(false);
	}
	e = exposition_scrape(http);
	status = replay_status();
	sums_hold(&e);
	ck_assert(exposition_get(&e, "prefixd_lookup_tokens_total") == asked);
	ck_assert(exposition_get(&e, "prefixd_hit_tokens_total{tier=\"pending\"}") == pending);
	for (size_t k = 0; k < 3; k++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "prefixd_hit_tokens_total{tier=\"%s\"}",
			       tiers[k]);
		ck_assert(exposition_get(&e, name) == seen[k]);
		ck_assert_uint_gt(seen[k], 0);
		(void)snprintf(name, sizeof(name), "hit_%s_tokens", tiers[k]);
		ck_assert_uint_eq(replay_counter(status, name), seen[k]);
	}
	ck_assert(exposition_get(&e, "prefixd_demoted_blocks_total{from=\"host\",to=\"redis\"}") ==
		  moved(status, "demoted_blocks", "host", "redis"));
	ck_assert(
		exposition_get(&e, "prefixd_promoted_blocks_total{from=\"redis\",to=\"device\"}") ==
		moved(status, "promoted_blocks", "redis", "device"));
	/* A block that came too late for its load is fetched and not kept. */
	ck_assert(exposition_get(&e, "prefixd_redis_values_total{what=\"fetched\"}") >=
		  moved(status, "promoted_blocks", "redis", "device"));
	ck_assert(exposition_get(&e, "prefixd_redis_up") == 1);
	ck_assert_uint_gt(replay_number(json_object_get(status, "redis"), "round_trips"), 0);
	ck_assert(exposition_get(&e, "prefixd_copy_bytes_total") > 0);
	ck_assert(exposition_get(&e, "prefixd_loop_cpu_seconds_count") > 0);
	fprintf(stderr, "turns of the loop with at most 100 us of its own CPU: %.0Lf of %.0Lf\n",
		exposition_get(&e, "prefixd_loop_cpu_seconds_bucket{le=\"0.0001\"}"),
		exposition_get(&e, "prefixd_loop_cpu_seconds_count"));
	json_decref(status);
	exposition_free(&e);
}
END_TEST

int main(int argc, char *argv[])
{
	bool t37 = argc > 1 && strcmp(argv[1], "T37") == 0;
	Suite *suite = suite_create("replay_tiers");
	TCase *t = tcase_create(t37 ? "T37" : "tiers");

	if (!replay_binary() || !e2e_daemon_binary())
		return E2E_SKIP;
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, NULL, teardown);
	if (t37) {
		tcase_add_test(t, T37_hits_by_tier_and_misses_add_up);
	} else {
		tcase_add_loop_test(t, nothing_is_lost, 0, (int)replay_array_size(sets));
		tcase_add_test(t, side_by_side);
		tcase_add_loop_test(t, computed_all_the_same, 0, 2);
		tcase_add_loop_test(t, bad_values_are_computed, 0, 2);
	}
	suite_add_tcase(suite, t);
	return test_run(suite);
}
