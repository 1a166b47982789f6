/*
 * run.h - runs a suite of Check; the exit status says whether all of it passed.
 *
 * A suite that ran nothing has failed: a test that does not run cannot tell anything.
 */
#pragma once

#include <check.h>

static inline int test_run(Suite *s)
{
	SRunner *sr = srunner_create(s);
	int bad;

	srunner_run_all(sr, CK_ENV);
	bad = srunner_ntests_failed(sr) || !srunner_ntests_run(sr);
	srunner_free(sr);
	return bad ? 1 : 0;
}
