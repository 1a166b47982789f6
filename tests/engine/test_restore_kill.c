/*
 * test_restore_kill.c - the daemon is killed at every crash point of a session, and started again.
 *
 * What must hold, wherever that is: acknowledged blocks are there, with their bytes; nothing that
 * was not acknowledged is served with other bytes; no slot that a living process may still read or
 * write is given to anybody else; every invariant holds; and when everybody has let go nothing is
 * missing.
 */
#include "tests/engine/lives.h"

#include <stdio.h>
#include <stdlib.h>

static struct lives v;

struct kind {
	const char *name;
	uint32_t n_slots, n_host;
	bool redis;
	enum prefixd_write_policy write;
};

static const struct kind kinds[] = {
	{ "pool alone", 96, 0, false, PREFIXD_WRITE_BACK },
	{ "small pool over host and Redis", 24, 24, true, PREFIXD_WRITE_BACK },
	{ "write-through to Redis", 24, 0, true, PREFIXD_WRITE_THROUGH },
};

static void begin(const struct kind *k)
{
	lives_configure(&v, k->n_slots, k->n_host, k->redis);
	v.config.engine.write = k->write;
	lives_begin(&v);
}

/* Kills at the n-th crash point.  False: the session has fewer. */
static bool kill_at(const struct kind *k, uint64_t n, const char **ret_point)
{
	begin(k);
	world_life_kill_at(&v.w, n);
	lives_script(&v);
	if (v.w.engine) {
		lives_end(&v);
		return false;
	}
	*ret_point = v.w.life.point;
	lives_restart(&v);
	lives_audit(&v);
	lives_audit_end(&v);
	lives_end(&v);
	return true;
}

START_TEST(undisturbed)
{
	begin(&kinds[_i]);
	lives_script(&v);
	lives_audit(&v);
	lives_end(&v);
}
END_TEST

START_TEST(killed_between_steps)
{
	begin(&kinds[_i]);
	lives_script(&v);
	world_life_kill(&v.w);
	lives_restart(&v);
	lives_audit(&v);
	lives_audit_end(&v);
	lives_end(&v);
}
END_TEST

START_TEST(killed_anywhere)
{
	const char *only = getenv("KILL_AT"), *point = NULL;
	uint64_t n = only ? strtoull(only, NULL, 10) : 1, acked = 0, held = 0;

	for (; kill_at(&kinds[_i], n, &point); n++) {
		acked += v.n_acked_checked;
		held += v.n_held_checked;
		if (only)
			break;
	}
	fprintf(stderr, "%s: %llu crash points, %llu acknowledged and %llu held blocks looked at\n",
		kinds[_i].name, (unsigned long long)n - 1, (unsigned long long)acked,
		(unsigned long long)held);
	ck_assert_uint_gt(n, 500);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restore-kill");
	TCase *t = tcase_create("kill");

	tcase_set_timeout(t, 300);
	tcase_add_loop_test(t, undisturbed, 0, radix_array_size(kinds));
	tcase_add_loop_test(t, killed_between_steps, 0, radix_array_size(kinds));
	tcase_add_loop_test(t, killed_anywhere, 0, radix_array_size(kinds));
	suite_add_tcase(s, t);
	return scene_main(s);
}
