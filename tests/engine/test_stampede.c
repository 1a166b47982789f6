/*
 * test_stampede.c - single flight, hard cases: twenty workers whose prompts share a stem and differ
 * in their tails, and everything that can happen to who computes and to who waits.
 *
 * With an argument it begins at that seed: test_stampede SEED [RUNS].
 */
#include "tests/engine/stampede.h"
#include "tests/lib/run.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t first_seed = 1;
static uint32_t n_runs = 40;

static const struct {
	const char *name;
	uint32_t faults, per_mille;
} cases[] = {
	{ "nothing", 0, 0 },
	{ "killed", STAMPEDE_KILL, 60 },
	{ "socket lost", STAMPEDE_EOF, 60 },
	{ "stopped", STAMPEDE_STOP, 60 },
	{ "given up early", STAMPEDE_EARLY, 100 },
	{ "waits no more", STAMPEDE_CANCEL, 100 },
	{ "taken back", STAMPEDE_REVOKE | STAMPEDE_STOP, 120 },
	{ "cut by room", STAMPEDE_ROOM, 0 },
	{ "daemon killed", STAMPEDE_RESTART, 20 },
	{ "everything", 63, 150 },
	{ "everything, daemon killed", 127, 150 },
};

/* Distinct blocks of n prompts. */
static uint32_t distinct(uint32_t n)
{
	return STAMPEDE_STEM + STAMPEDE_GROUP * STAMPEDE_GROUPS + STAMPEDE_TAIL * n;
}

START_TEST(stampede)
{
	struct stampede_result sum = { 0 };
	uint32_t faults = cases[_i].faults;

	for (uint32_t i = 0; i < n_runs; i++) {
		struct stampede_config c = { .seed = first_seed + i,
					     .n = STAMPEDE_MAX,
					     .faults = faults,
					     .per_mille = cases[_i].per_mille };
		struct stampede_result res;

		stampede_run(&c, &res);
		/* In one life each block is stored once, whatever happens to whom. */
		if (!(faults & STAMPEDE_ROOM))
			ck_assert_uint_eq(res.n_stored, distinct(c.n));
		/* Nobody computes what another one does, but for those who did not wait for it. */
		if (!(faults & STAMPEDE_CANCEL) && !res.n_late && !res.n_deadline)
			ck_assert_uint_eq(res.n_duplicate, 0);
		if (!faults) {
			ck_assert_uint_eq(res.n_duplicate, 0);
			ck_assert_uint_eq(res.n_late, 0);
		}
		sum.n_stored += res.n_stored;
		sum.n_duplicate += res.n_duplicate;
		sum.n_waits += res.n_waits;
		sum.n_ready += res.n_ready;
		sum.n_lead += res.n_lead;
		sum.n_failed += res.n_failed;
		sum.n_deadline += res.n_deadline;
		sum.n_late += res.n_late;
		sum.n_faults += res.n_faults;
		sum.n_cut += res.n_cut;
		sum.n_busy += res.n_busy;
		sum.n_lives += res.n_lives;
	}
	/* A run that nothing happened to proves nothing. */
	ck_assert_uint_gt(sum.n_waits, 10 * n_runs);
	if (cases[_i].per_mille)
		ck_assert_uint_gt(sum.n_faults, n_runs);
	if (faults & (STAMPEDE_KILL | STAMPEDE_EOF | STAMPEDE_EARLY | STAMPEDE_ROOM))
		ck_assert_uint_gt(sum.n_lead, 0);
	if (faults & STAMPEDE_STOP)
		ck_assert(sum.n_late > 0 && sum.n_deadline > 0 && sum.n_duplicate > 0);
	if (faults == (STAMPEDE_REVOKE | STAMPEDE_STOP))
		ck_assert_uint_gt(sum.n_failed, 0);
	if (faults & STAMPEDE_RESTART)
		ck_assert_uint_gt(sum.n_lives, 3 * n_runs / 2);
	if (faults & STAMPEDE_ROOM)
		ck_assert(sum.n_cut > 0 && sum.n_busy > 0);
	fprintf(stderr,
		"%s: %u runs, %llu faults, %llu stored, %llu duplicates, %llu waits: %llu ready, "
		"%llu lead, %llu failed, %llu deadline; %llu late leaders, %llu cut, %llu busy, "
		"%llu lives\n",
		cases[_i].name, n_runs, (unsigned long long)sum.n_faults,
		(unsigned long long)sum.n_stored, (unsigned long long)sum.n_duplicate,
		(unsigned long long)sum.n_waits, (unsigned long long)sum.n_ready,
		(unsigned long long)sum.n_lead, (unsigned long long)sum.n_failed,
		(unsigned long long)sum.n_deadline, (unsigned long long)sum.n_late,
		(unsigned long long)sum.n_cut, (unsigned long long)sum.n_busy,
		(unsigned long long)sum.n_lives);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("stampede");
	TCase *t = tcase_create("stampede");

	if (argc > 1)
		first_seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		n_runs = (uint32_t)strtoul(argv[2], NULL, 0);
	tcase_set_timeout(t, 600);
	tcase_add_loop_test(t, stampede, 0, (int)(sizeof(cases) / sizeof(cases[0])));
	suite_add_tcase(s, t);
	return test_run(s);
}
