/*
 * run.h - runs a suite of Check; the exit status says whether all of it passed.
 *
 * A suite that ran nothing has failed: a test that does not run cannot tell anything.
 */
#pragma once

#include <check.h>

/* CK_FORK: each test in a process of its own, whatever the environment says. */
static inline int test_run_as(Suite *s, enum fork_status fork)
{
	SRunner *sr = srunner_create(s);
	int bad;

	srunner_set_fork_status(sr, fork);
	srunner_run_all(sr, CK_ENV);
	bad = srunner_ntests_failed(sr) || !srunner_ntests_run(sr);
	srunner_free(sr);
	return bad ? 1 : 0;
}

static inline int test_run(Suite *s)
{
	return test_run_as(s, CK_FORK_GETENV);
}
