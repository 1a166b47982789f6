/*
 * test_random_tiers.c - random workers over the tiers: test_random_tiers SEED STEPS [CASE].
 */
#include "tests/engine/random_tiers.h"
#include "tests/lib/run.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t seed = 1, n_steps = 20000;

static void say(const char *name, const struct random_tiers_result *x)
{
	fprintf(stderr,
		"%s: %" PRIu64 " steps, %" PRIu64 " kills, found %" PRIu64 " device %" PRIu64
		" host %" PRIu64 " redis, %" PRIu64 " read and right, loads %" PRIu64 " (%" PRIu64
		" cut, %" PRIu64 " failed), moved d>h %" PRIu64 " d>r %" PRIu64 " h>r %" PRIu64
		" h>d %" PRIu64 " r>d %" PRIu64 ", %" PRIu64 " answers not ok, at most %" PRIu64
		" in flight, %" PRIu64 " looks, %" PRIu64 " deferred, %" PRIu64 " dropped, %" PRIu64
		" invalidated, at most %" PRIu64 " members\n",
		name, x->n_steps, x->n_kills, x->found[0], x->found[1], x->found[2], x->n_read,
		x->n_loaded, x->n_cut, x->n_failed, x->tiers.moved[0][1], x->tiers.moved[0][2],
		x->tiers.moved[1][2], x->tiers.moved[1][0], x->tiers.moved[2][0],
		x->tiers.answers[1] + x->tiers.answers[2] + x->tiers.answers[3] +
			x->tiers.answers[4],
		x->tiers.max_in_flight, x->tiers.looks, x->n_deferred, x->counters.dropped_blocks,
		x->n_invalidated, x->max_members);
}

/* A healthy machine: what a copy and a round trip to Redis take, give or take. */
static struct random_tiers_config healthy(void)
{
	return (struct random_tiers_config){
		.seed = seed,
		.n_steps = n_steps,
		.n_slots = 48,
		.index_blocks = 256,
		.reserve_ns = 10000000,
		.tiers = { .host_blocks = 40,
			   .redis = true,
			   .copy = { .latency_ns = 5000, .bytes_per_s = 100000000 },
			   .remote = { .latency_ns = 40000, .bytes_per_s = 20000000 },
			   .jitter_ns = 20000,
			   .deadline_ns = 2000000,
			   .breaker = 5 },
	};
}

/* A run that never got anywhere proves nothing. */
static void check_busy_enough(const struct random_tiers_result *x)
{
	ck_assert_uint_gt(x->n_read, x->n_steps / 4);
	ck_assert_uint_gt(x->n_loaded, x->n_steps / 200);
	ck_assert_uint_gt(x->found[0] + x->found[1] + x->found[2], x->n_steps / 10);
	ck_assert_uint_gt(x->n_deferred, x->n_steps / 1000);
	ck_assert_uint_gt(x->n_replays, x->n_steps / 1000);
	ck_assert_uint_gt(x->n_waits, 0);
}

/* Redis keeps everything, nothing goes wrong: a cache without limit would find the same. */
START_TEST(lossless)
{
	struct random_tiers_config c = healthy();
	struct random_tiers_result x;

	c.lossless = true;
	c.kills_permille = 5;
	c.n_steps = n_steps / 4;
	c.index_blocks = 60000;
	c.reserve_ns = 1000000000000;
	c.tiers.host_blocks = 0;
	c.tiers.deadline_ns = 0;
	c.tiers.breaker = 0;
	random_tiers_run(&c, &x);
	say("lossless, Redis alone", &x);
	check_busy_enough(&x);
	ck_assert_uint_eq(x.counters.dropped_blocks, 0);
	ck_assert_uint_gt(x.found[2], 0);
	c.seed++;
	c.tiers.host_blocks = 128;
	random_tiers_run(&c, &x);
	say("lossless, host and Redis", &x);
	check_busy_enough(&x);
	ck_assert_uint_eq(x.counters.dropped_blocks, 0);
	ck_assert_uint_gt(x.found[1], 0);
	ck_assert_uint_gt(x.found[2], 0);
}
END_TEST

START_TEST(small_and_healthy)
{
	struct random_tiers_config c = healthy();
	struct random_tiers_result x;

	c.kills_permille = 10;
	c.admin_permille = 3;
	c.watermark_low = 5;
	c.watermark_high = 10;
	random_tiers_run(&c, &x);
	say("small and healthy", &x);
	check_busy_enough(&x);
	ck_assert_uint_gt(x.found[1], 0);
	ck_assert_uint_gt(x.found[2], 0);
	ck_assert_uint_gt(x.n_invalidated, 0);
}
END_TEST

START_TEST(host_alone)
{
	struct random_tiers_config c = healthy();
	struct random_tiers_result x;

	c.n_steps = n_steps / 2;
	c.kills_permille = 10;
	c.admin_permille = 3;
	c.grace_ns = 1000000;
	c.losses = true;
	c.tiers.redis = false;
	c.tiers.faults[WORLD_FAULT_COPY_FAILED] = 10;
	c.tiers.faults[WORLD_FAULT_COPY_CORRUPT] = 10;
	random_tiers_run(&c, &x);
	say("host alone", &x);
	check_busy_enough(&x);
	ck_assert_uint_gt(x.found[1], 0);
	ck_assert_uint_eq(x.found[2], 0);
	ck_assert_uint_gt(x.tiers.answers[PREFIXD_MOVE_CORRUPT], 0);
	ck_assert_uint_gt(x.tiers.answers[PREFIXD_MOVE_FAILED], 0);
}
END_TEST

/* Everything that can go wrong outside does, all the time. */
static struct random_tiers_config sick(void)
{
	struct random_tiers_config c = healthy();

	c.kills_permille = 10;
	c.outside_permille = 10;
	c.admin_permille = 5;
	c.losses = true;
	c.reserve_ns = 1000000;
	c.tiers.max_values = 300;
	for (uint32_t i = 0; i < WORLD_N_FAULTS; i++)
		c.tiers.faults[i] = 20;
	return c;
}

START_TEST(faults)
{
	struct random_tiers_config c = sick();
	struct random_tiers_result x;

	c.watermark_low = 5;
	c.watermark_high = 15;
	random_tiers_run(&c, &x);
	say("faults", &x);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_uint_gt(x.tiers.answers[i], 0);
	ck_assert_uint_gt(x.n_cut, 0);
	ck_assert_uint_gt(x.n_failed, 0);
	ck_assert_uint_gt(x.counters.dropped_blocks, 0);
}
END_TEST

START_TEST(write_through)
{
	struct random_tiers_config c = sick();
	struct random_tiers_result x;

	c.seed++;
	c.n_steps = n_steps / 2;
	c.write = PREFIXD_WRITE_THROUGH;
	c.move_window = 8;
	random_tiers_run(&c, &x);
	say("write-through, faults", &x);
	ck_assert_uint_gt(x.n_loaded, 0);
}
END_TEST

START_TEST(second_use)
{
	struct random_tiers_config c = sick();
	struct random_tiers_result x;

	c.seed += 2;
	c.n_steps = n_steps / 2;
	c.write = PREFIXD_WRITE_SECOND_USE;
	c.tiers.host_blocks = 0;
	random_tiers_run(&c, &x);
	say("write on second use, Redis alone, faults", &x);
	ck_assert_uint_gt(x.n_loaded, 0);
	ck_assert_uint_gt(x.counters.unused_blocks, 0);
}
END_TEST

/* The same with prompts that begin anywhere, healthy and sick. */
START_TEST(islands)
{
	struct random_tiers_config c = healthy();
	struct random_tiers_result x;

	c.islands = true;
	c.kills_permille = 10;
	c.admin_permille = 3;
	c.n_steps = n_steps / 2;
	random_tiers_run(&c, &x);
	say("islands", &x);
	check_busy_enough(&x);
	ck_assert_uint_gt(x.n_grafts, 0);
	c = sick();
	c.seed += 3;
	c.islands = true;
	c.n_steps = n_steps / 2;
	random_tiers_run(&c, &x);
	say("islands, faults", &x);
	ck_assert_uint_gt(x.n_loaded, 0);
	ck_assert_uint_gt(x.n_grafts, 0);
}
END_TEST

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		const TTest *test;
	} cases[] = {
		{ "lossless", lossless },
		{ "small", small_and_healthy },
		{ "host", host_alone },
		{ "faults", faults },
		{ "write-through", write_through },
		{ "second-use", second_use },
		{ "islands", islands },
	};
	Suite *s = suite_create("random tiers");

	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		n_steps = strtoull(argv[2], NULL, 0);
	for (size_t i = 0; i < radix_array_size(cases); i++) {
		TCase *t = tcase_create(cases[i].name);

		if (argc > 3 && strcmp(argv[3], cases[i].name) != 0)
			continue;
		tcase_set_timeout(t, 600);
		tcase_add_test(t, cases[i].test);
		suite_add_tcase(s, t);
	}
	return test_run(s);
}
