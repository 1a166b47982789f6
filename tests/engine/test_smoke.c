/*
 * test_smoke.c - one worker's whole request, frame by frame.
 */
#include "tests/lib/world.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

START_TEST(smoke)
{
	static struct world w;
	struct world_config config;
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep ns;
	struct world_client *c;
	uint32_t tokens[16];

	world_config_init(&config);
	config.record = true;
	ck_assert_int_eq(world_init(&w, &config), 0);
	c = world_worker(&w, 100, 1000);
	ck_assert_int_eq(world_open(c, &o, &ns), 0);
	for (uint32_t i = 0; i < 16; i++)
		tokens[i] = i;
	for (int k = 0; k < 2; k++) {
		struct proto_match_req m = { .has = 7, .ns = ns.ns, .n_tokens = 18,
			.keys = { tokens, 64 }, .tail = { tokens, 8 } };
		struct proto_match_rep mr;
		struct proto_reserve_req rr = { .n = 100 };
		struct proto_reserve_rep rrep;
		struct proto_commit_req cr = { .n = 4 };
		struct proto_commit_rep crep;
		struct proto_release_req lr = { 0 };
		struct proto_release_rep lrep;
		ck_assert_int_eq(world_match(c, &m, &mr), 0);
		rr.lease = cr.lease = lr.lease = mr.lease;
		if (k == 0) {
			ck_assert_int_eq(world_reserve(c, &rr, &rrep), 0);
			ck_assert_int_eq(world_commit(c, &cr, &crep), 0);
		}
		ck_assert_int_eq(world_release(c, &lr, &lrep), 0);
	}
	world_kill(&w, 100);
	fprintf(stderr, "%s", w.log);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("smoke");
	TCase *t = tcase_create("smoke");
	SRunner *sr;
	int failed;

	tcase_add_test(t, smoke);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
