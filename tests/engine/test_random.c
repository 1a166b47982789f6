/*
 * test_random.c - random workers in the simulated world: test_random SEED STEPS.
 */
#include "tests/engine/random.h"
#include "tests/lib/run.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t seed = 1, n_steps = 20000;

static void say(const char *name, const struct random_result *res)
{
	fprintf(stderr,
		"%s: %" PRIu64 " steps, %" PRIu64 " kills, %" PRIu64 " orphans, %" PRIu64
		" hits, %" PRIu64 " blocks read and right, %" PRIu64 " replays, %" PRIu64
		" removed, %" PRIu64 " duplicates, %" PRIu64 " busy, %" PRIu64 " waits: %" PRIu64
		" ready, %" PRIu64 " lead, %" PRIu64 " deadline, %" PRIu64 " late leaders\n",
		name, res->n_steps, res->n_kills, res->n_orphans, res->n_hits,
		res->n_verified_blocks, res->n_replays, res->n_removed,
		res->counters.duplicate_blocks, res->counters.reserve_busy, res->n_waits,
		res->n_ready, res->n_lead, res->n_deadline, res->n_late);
}

/* A run that never got anywhere proves nothing. */
static void check_busy_enough(const struct random_result *res)
{
	ck_assert_uint_gt(res->n_hits, res->n_steps / 10);
	ck_assert_uint_gt(res->n_verified_blocks, res->n_steps / 10);
	ck_assert_uint_gt(res->n_removed, res->n_steps / 100);
	ck_assert_uint_gt(res->n_replays, res->n_steps / 100);
	ck_assert_uint_gt(res->counters.committed_blocks, res->n_steps / 20);
	ck_assert_uint_gt(res->counters.duplicate_blocks, res->n_steps / 1000);
	ck_assert_uint_gt(res->counters.hit_pending_tokens, 0);
	ck_assert_uint_gt(res->counters.hit_tail_tokens, 0);
	ck_assert_uint_gt(res->n_waits, res->n_steps / 1000);
	ck_assert_uint_eq(res->n_waits, res->counters.waits);
	ck_assert_uint_eq(res->n_ready, res->counters.waits_ready);
	ck_assert_uint_eq(res->n_lead, res->counters.waits_lead);
	ck_assert_uint_eq(res->n_late, res->counters.leaders_late);
}

START_TEST(kills)
{
	struct random_config c = { .seed = seed,
				   .n_steps = n_steps,
				   .n_slots = 96,
				   .kills_permille = 10,
				   .watches_processes = true };
	struct random_result res;

	random_run(&c, &res);
	say("kills", &res);
	check_busy_enough(&res);
	ck_assert_uint_ge(res.n_steps, n_steps);
	ck_assert_uint_gt(res.n_kills, n_steps / 200);
	ck_assert_uint_gt(res.n_ready, 0);
	ck_assert_uint_gt(res.n_lead, 0);
	ck_assert_uint_gt(res.n_deadline, 0);
	ck_assert_uint_gt(res.n_late, 0);
}
END_TEST

START_TEST(islands_and_grace)
{
	struct random_config c = { .seed = seed + 1,
				   .n_steps = n_steps / 4,
				   .n_slots = 128,
				   .kills_permille = 10,
				   .grace_ns = 5000000,
				   .watches_processes = true,
				   .islands = true };
	struct random_result res;

	random_run(&c, &res);
	say("islands and grace", &res);
	ck_assert_uint_gt(res.counters.quarantined_blocks, 0);
}
END_TEST

/* Leases of every second process end when they are old, waiting, leading or orphaned alike. */
START_TEST(revoked)
{
	struct random_config c = { .seed = seed + 4,
				   .n_steps = n_steps / 2,
				   .n_slots = 96,
				   .kills_permille = 10,
				   .grace_ns = _i ? 2000000 : 0,
				   .max_age_ns = 1000000,
				   .watches_processes = true,
				   .islands = _i };
	struct random_result res;

	random_run(&c, &res);
	say("revoked", &res);
	ck_assert_uint_gt(res.n_revoked, n_steps / 200);
	ck_assert_uint_eq(res.n_revoked, res.counters.leases_revoked);
	ck_assert_uint_gt(res.counters.quarantined_blocks, 0);
	ck_assert_uint_gt(res.n_waits, 0);
	ck_assert_uint_gt(res.n_lead, 0);
}
END_TEST

START_TEST(sockets_only)
{
	struct random_config c = { .seed = seed + 2,
				   .n_steps = n_steps / 4,
				   .n_slots = 64,
				   .kills_permille = 10,
				   .islands = true };
	struct random_result res;

	random_run(&c, &res);
	say("sockets only", &res);
	ck_assert_uint_gt(res.counters.leases_died, 0);
}
END_TEST

START_TEST(no_faults)
{
	struct random_config c = {
		.seed = seed + 3, .n_steps = n_steps / 4, .n_slots = 256, .watches_processes = true
	};
	struct random_result res;

	random_run(&c, &res);
	say("no faults", &res);
	check_busy_enough(&res);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("random");
	TCase *t = tcase_create("random");

	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		n_steps = strtoull(argv[2], NULL, 0);
	tcase_set_timeout(t, 600);
	tcase_add_test(t, kills);
	tcase_add_test(t, islands_and_grace);
	tcase_add_loop_test(t, revoked, 0, 2);
	tcase_add_test(t, sockets_only);
	tcase_add_test(t, no_faults);
	suite_add_tcase(s, t);
	return test_run(s);
}
