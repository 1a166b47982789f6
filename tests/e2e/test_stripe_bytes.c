/*
 * test_stripe_bytes.c - a real daemon, and the ranks of a model that share its decisions: each
 * writes its own pieces, and gets its own back, from every tier and after a restart.
 *
 * The ranks are sessions of this process, one after the other in every step.  The first argument
 * picks the tests; $E2E_DEVICE where the pools lie.
 */
#include "tests/e2e/harness.h"
#include "tests/e2e/mover.h"
#include "tests/e2e/redis_server.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include "clients/c/prefixd_load.h"
#include "radix/base.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	BYTES = 4000, /* of a piece */
	TOKENS = 16,
	BLOCKS = 12, /* of a prompt */
	MAX_RANKS = 4
};

static const uint32_t ranks_of[] = { 2, 4 };

static struct e2e_daemon d;
static struct e2e_redis redis;
static uint32_t n_ranks;
static uint64_t n_decisions, n_loaded;

static struct rank {
	pfx_client *client;
	pfx_namespace *ns;
	pfx_match_result m;
	uint32_t slots[BLOCKS]; /* of the prompt's blocks, in path order */
} ranks[MAX_RANKS];

/* ---- the daemon ------------------------------------------------------------------------------ */

static json_t *ask(const char *cmd)
{
	char *text = e2e_admin(&d, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

/* status.a.b, or status.a.b.c. */
static json_int_t number(const char *a, const char *b, const char *c)
{
	json_t *j = ask("{\"op\":\"status\"}");
	const json_t *v = json_object_get(json_object_get(j, a), b);
	json_int_t n;

	if (c)
		v = json_object_get(v, c);
	ck_assert_msg(json_is_integer(v), "no number %s.%s", a, b);
	n = json_integer_value(v);
	json_decref(j);
	return n;
}

static void audit(void)
{
	char *text = e2e_admin(&d, "{\"op\":\"audit\"}");

	ck_assert_msg(strstr(text, "\"clean\":true") || strstr(text, "\"clean\": true"), "%s",
		      text);
	pfx_free_string(text);
}

static bool redis_used(void)
{
	json_t *j = ask("{\"op\":\"status\"}");
	const json_t *r = json_object_get(j, "redis");
	bool used = json_is_true(json_object_get(r, "connected")) &&
		    strcmp(json_string_value(json_object_get(r, "breaker")), "closed") == 0;

	json_decref(j);
	return used;
}

static void start_daemon(const char *pool, const char *host, const char *const more[])
{
	const char *args[24] = { "--pool-blocks", pool, "--host-blocks", host };
	unsigned n = 4;

	if (redis.pid) {
		args[n++] = "--redis";
		args[n++] = redis.url;
		args[n++] = "--redis-timeout";
		args[n++] = "10s";
	}
	for (; more && *more; more++)
		args[n++] = *more;
	if (!d.dir[0])
		ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	for (unsigned long end = e2e_now_ms() + 20000; redis.pid && !redis_used();) {
		ck_assert_msg(e2e_now_ms() < end, "Redis is not used");
		e2e_sleep_ms(5);
	}
}

static void stop_daemon(int signal)
{
	audit();
	ck_assert_int_eq(e2e_daemon_stop(&d, signal), 0);
	e2e_daemon_free(&d);
	e2e_redis_free(&redis);
}

static void ranks_begin(uint32_t n)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | PFX_NS_STRIPE,
		.model = "stripes",
		.revision = "r1",
		.dtype = "float16",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 64,
		.block_tokens = TOKENS,
		.block_bytes = BYTES,
		.layout = "opaque",
		.tp_size = n,
		.engine = "e2e",
		.map = 1,
	};

	n_ranks = n;
	for (uint32_t i = 0; i < n; i++) {
		int r;

		ranks[i].client = e2e_connect(&d);
		o.tp_rank = i;
		r = pfx_open(ranks[i].client, &o, &ranks[i].ns);
		ck_assert_msg(r == PFX_OK, "rank %u: %s: %s", i, pfx_status_to_string(r),
			      pfx_error(ranks[i].client));
	}
}

static void ranks_end(void)
{
	for (uint32_t i = 0; i < n_ranks; i++)
		pfx_close(ranks[i].client);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* What the rank's piece of block `at` of the prompt is. */
static void piece_fill(uint8_t *p, uint32_t prompt, uint32_t at, uint32_t rank)
{
	uint64_t seed = (uint64_t)prompt << 32 | at << 8 | rank;

	test_rng_fill(&seed, p, BYTES);
}

static void ok(uint32_t rank, const char *what, int status)
{
	ck_assert_msg(status == PFX_OK, "rank %u: %s: %s: %s", rank, what,
		      pfx_status_to_string(status), pfx_error(ranks[rank].client));
}

/* Slots of further blocks; what is lent is compared. */
static void take(uint32_t rank, uint32_t prompt, uint32_t from)
{
	struct rank *r = &ranks[rank];
	uint8_t got[BYTES], want[BYTES];
	uint32_t n = from;

	for (uint32_t i = 0; i < r->m.n_runs; i++)
		for (uint32_t k = 0; k < r->m.runs[i].len && n < BLOCKS; k++)
			r->slots[n++] = r->m.runs[i].start + k;
	ck_assert_uint_eq(n - from, r->m.n_device);
	for (uint32_t i = from; i < n; i++) {
		mover_read(r->ns, r->slots[i], got, BYTES);
		piece_fill(want, prompt, i, rank);
		ck_assert_msg(memcmp(got, want, BYTES) == 0, "prompt %u, block %u, rank %u", prompt,
			      i, rank);
	}
}

/* All ranks ask; returns the blocks that each of them has. */
static uint32_t match(uint32_t prompt, uint32_t flags)
{
	uint32_t tokens[BLOCKS * TOKENS];
	pfx_prompt p = { .struct_size = sizeof(p),
			 .salt = "",
			 .keys = tokens,
			 .n_keys = BLOCKS,
			 .flags = flags };

	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = prompt * 1000 + i;
	n_decisions++;
	memcpy(p.decision_id, &n_decisions, sizeof(n_decisions));
	for (uint32_t i = 0; i < n_ranks; i++) {
		struct rank *r = &ranks[i];

		r->m = (pfx_match_result){ .struct_size = sizeof(r->m) };
		ok(i, "match", pfx_match(r->ns, &p, &r->m));
		ck_assert_uint_eq(r->m.n_device, ranks[0].m.n_device);
		ck_assert_int_eq(r->m.loading, ranks[0].m.loading);
		take(i, prompt, 0);
		ck_assert_mem_eq(r->slots, ranks[0].slots, r->m.n_device * sizeof(r->slots[0]));
	}
	return ranks[0].m.n_device;
}

/* Waits for what comes up; returns the blocks that each rank has then. */
static uint32_t load(uint32_t prompt, uint32_t have)
{
	const pfx_prompt none = { .struct_size = sizeof(none),
				  .salt = "",
				  .n_tokens = (uint64_t)BLOCKS * TOKENS };
	uint32_t came = 0;

	if (!ranks[0].m.loading)
		return have;
	for (uint32_t i = 0; i < n_ranks; i++) {
		struct rank *r = &ranks[i];
		pfx_load_result l = { .struct_size = sizeof(l) };

		ok(i, "load", pfx_load_wait(r->ns, r->m.lease, 20000, &l));
		ck_assert(i == 0 || l.n == came);
		came = l.n;
		if (came == 0)
			continue;
		ok(i, "extend", pfx_extend(r->ns, r->m.lease, &none, &r->m));
		take(i, prompt, have);
		ck_assert_uint_ge(r->m.n_device, came);
	}
	n_loaded += came;
	return have + came;
}

/* The rest is computed: each rank writes its own pieces, and commits when it is done. */
static void store(uint32_t prompt, uint32_t have)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_ranks; i++) {
		pfx_reserve_result res = { .struct_size = sizeof(res) };
		struct rank *r = &ranks[i];

		ok(i, "reserve", pfx_reserve(r->ns, r->m.lease, BLOCKS - have, 20000, &res));
		ck_assert_uint_eq(res.first, have);
		ck_assert(i == 0 || res.n == n);
		n = res.n;
		for (uint32_t k = 0, at = have; k < res.n_runs; k++)
			for (uint32_t j = 0; j < res.runs[k].len; j++)
				r->slots[at++] = res.runs[k].start + j;
	}
	for (uint32_t i = n_ranks; i-- > 0;) { /* in another order than they asked */
		pfx_commit_result rep = { .struct_size = sizeof(rep) };
		XXH128_canonical_t sums[BLOCKS];
		struct rank *r = &ranks[i];
		uint8_t piece[BYTES];

		for (uint32_t k = 0; k < n; k++) {
			piece_fill(piece, prompt, have + k, i);
			mover_write(r->ns, r->slots[have + k], piece, BYTES);
			XXH128_canonicalFromHash(&sums[k], XXH3_128bits(piece, BYTES));
		}
		ok(i, "commit", pfx_commit(r->ns, r->m.lease, n, sums, 0, 5000, &rep));
	}
}

static void release(void)
{
	for (uint32_t i = 0; i < n_ranks; i++)
		ok(i, "release", pfx_release(ranks[i].ns, ranks[i].m.lease, 0, 0, 5000, NULL));
}

/* One request of the model: takes what any tier has, computes the rest. */
static uint32_t serve(uint32_t prompt)
{
	uint32_t have = match(prompt, PFX_MATCH_PROMOTE);

	/* On a busy machine a load is taken for slower than computing; now and then it is tried. */
	for (int i = 0; i < 50 && ranks[0].m.advice == 1; i++) {
		release();
		have = match(prompt, PFX_MATCH_PROMOTE);
	}
	have = load(prompt, have);

	if (have < BLOCKS)
		store(prompt, have);
	release();
	return have;
}

/* Where a prompt lies now. */
static void look(uint32_t prompt, uint32_t *ret_device, uint32_t *ret_host, uint32_t *ret_redis)
{
	match(prompt, 0);
	*ret_device = ranks[0].m.n_device;
	*ret_host = ranks[0].m.n_host;
	*ret_redis = ranks[0].m.n_redis;
	release();
}

/* ---- tiers ----------------------------------------------------------------------------------- */

/* Two prompts at a time fit into the pools; all fit into the host tier. */
START_TEST(host_tier_and_back)
{
	json_t *j, *group;

	start_daemon("26", "200", NULL);
	ranks_begin(ranks_of[_i]);
	for (uint32_t round = 0; round < 3; round++)
		for (uint32_t p = 1; p <= 10; p++)
			ck_assert_uint_eq(serve(p), round == 0 ? 0 : BLOCKS);
	ck_assert_uint_gt(n_loaded, 100);
	ck_assert_int_ge(number("demoted_blocks", "device", "host"), 90);
	ck_assert_int_ge(number("promoted_blocks", "host", "device"), 100);
	ck_assert_int_eq(number("counters", "dropped_blocks", NULL), 0);
	j = ask("{\"op\":\"status\"}");
	group = json_array_get(json_object_get(j, "groups"), 0);
	ck_assert_uint_eq(json_array_size(json_object_get(group, "ranks")), n_ranks);
	json_decref(j);
	ranks_end();
	stop_daemon(SIGTERM);
}
END_TEST

/* The length of some value in Redis. */
static long long value_len(void)
{
	redisReply *keys = e2e_redis_do(&redis, "SCAN 0 MATCH * COUNT 1000"), *len = NULL;
	long long n = 0;

	for (size_t i = 0; i < keys->element[1]->elements && n == 0; i++) {
		len = e2e_redis_do(&redis, "STRLEN %s", keys->element[1]->element[i]->str);
		if (len->type == REDIS_REPLY_INTEGER && len->integer > BYTES)
			n = len->integer;
		freeReplyObject(len);
	}
	freeReplyObject(keys);
	return n;
}

/* With a host tier and without one; the daemon is another one in the end, and has Redis alone. */
START_TEST(redis_and_back)
{
	const char *host = _i % 2 ? "0" : "26";
	uint32_t device, in_host, in_redis;

	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, NULL);

	start_daemon("26", host, NULL);
	ranks_begin(ranks_of[_i / 2]);
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t p = 1; p <= 10; p++)
			ck_assert_uint_eq(serve(p), round == 0 ? 0 : BLOCKS);
	ck_assert_int_ge(number("redis", "stored", NULL), 60);
	ck_assert_int_ge(number("promoted_blocks", "redis", "device"), 30);
	ck_assert_int_ge(value_len(), 168 + 16 + 4 * TOKENS + (long long)n_ranks * BYTES);
	ck_assert_int_le(value_len(), 168 + 16 + 4 * TOKENS + (long long)n_ranks * BYTES + 16);
	look(1, &device, &in_host, &in_redis);
	ck_assert_uint_eq(device + in_host + in_redis, BLOCKS);
	in_redis = 0;
	ranks_end();
	audit();
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);

	start_daemon("26", host, NULL);
	ranks_begin(ranks_of[_i / 2]);
	for (unsigned long end = e2e_now_ms() + 20000; in_redis < BLOCKS; e2e_sleep_ms(20)) {
		look(1, &device, &in_host, &in_redis); /* it asks Redis, and has to wait at first */
		ck_assert_uint_eq(device + in_host, 0);
		ck_assert_msg(e2e_now_ms() < end, "what is in Redis is not found");
	}
	ck_assert_uint_eq(serve(1), BLOCKS);
	ck_assert_int_ge(number("redis", "fetched", NULL), BLOCKS);
	ck_assert_uint_eq(serve(1), BLOCKS);
	ranks_end();
	stop_daemon(SIGTERM);
}
END_TEST

/* A byte of one rank's piece is wrong in its slot: the block is not carried down, nor served. */
START_TEST(one_wrong_piece_is_noticed)
{
	uint8_t piece[BYTES];
	uint32_t last;

	start_daemon("26", "200", NULL);
	ranks_begin(ranks_of[_i]);
	last = n_ranks - 1;
	ck_assert_uint_eq(serve(1), 0);
	ck_assert_uint_eq(match(1, 0), BLOCKS);
	piece_fill(piece, 1, 5, last);
	piece[17] ^= 1;
	mover_write(ranks[last].ns, ranks[last].slots[5], piece, BYTES);
	release();
	for (uint32_t p = 2; p <= 6; p++) /* what is not used goes down */
		ck_assert_uint_eq(serve(p), 0);
	ck_assert_uint_eq(serve(1), 5);
	ck_assert_uint_eq(serve(1), BLOCKS);
	ranks_end();
	stop_daemon(SIGTERM);
}
END_TEST

/* ---- a restart ------------------------------------------------------------------------------- */

START_TEST(killed_and_started_again)
{
	static const char *const args[] = { "--keep", "holder", "--hold-timeout", "20s", NULL };

	start_daemon("30", "200", args);
	ranks_begin(ranks_of[_i]);
	for (uint32_t p = 1; p <= 6; p++)
		ck_assert_uint_eq(serve(p), 0);
	ranks_end();
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);

	start_daemon("30", "200", args);
	ranks_begin(ranks_of[_i]);
	for (uint32_t p = 6; p >= 1; p--)
		ck_assert_uint_eq(serve(p), BLOCKS);
	ck_assert_uint_eq(serve(7), 0);
	ck_assert_uint_eq(serve(7), BLOCKS);
	ranks_end();
	stop_daemon(SIGINT); /* the memory is given up */
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("stripe-bytes");
	TCase *tiers = tcase_create("tiers"), *restart = tcase_create("restart");
	const int n = radix_array_size(ranks_of);
	SRunner *sr;
	int bad;

	if (!e2e_daemon_binary())
		return E2E_SKIP;
	tcase_set_timeout(tiers, 120);
	tcase_add_loop_test(tiers, host_tier_and_back, 0, n);
	tcase_add_loop_test(tiers, redis_and_back, 0, 2 * n);
	tcase_add_loop_test(tiers, one_wrong_piece_is_noticed, 0, n);
	tcase_set_timeout(restart, 120);
	tcase_add_loop_test(restart, killed_and_started_again, 0, n);
	suite_add_tcase(s, tiers);
	suite_add_tcase(s, restart);
	sr = srunner_create(s);
	srunner_run(sr, NULL, argc > 1 ? argv[1] : NULL, CK_ENV);
	bad = srunner_ntests_failed(sr) || !srunner_ntests_run(sr);
	srunner_free(sr);
	return bad ? 1 : 0;
}
