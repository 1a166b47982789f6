/*
 * test_kept.c - what those who left keep from use: how much, whose, when that is too much, and what
 * operators see of it and of all leases.
 */
#include "tests/engine/fencing.h"

static struct world *const w = &fencing.w;
static struct world_config *const config = &fencing.config;

static bool logged(const char *text)
{
	return w->log && strstr(w->log, text) != NULL;
}

/* ---- more than half of the pool -------------------------------------------------------------- */

/* An orphan of this process that holds the blocks, and a reservation behind them. */
static struct scene_place leave(uint32_t pid, uint32_t first, uint32_t n, uint32_t n_reserved)
{
	struct scene_place a = fencing_worker(pid);
	struct proto_match_rep m = fencing_match(&a, first, n + n_reserved);

	ck_assert_uint_eq(m.n_device, n);
	if (n_reserved)
		ck_assert_uint_eq(fencing_reserve(&a, m.lease, n_reserved, NULL), n_reserved);
	world_eof(a.c);
	return a;
}

static bool over(const char *a, const char *b)
{
	char text[512];
	bool is = prefixd_engine_over(w->engine, text, sizeof(text));

	ck_assert(is == prefixd_engine_over(w->engine, NULL, 0));
	ck_assert(is == (text[0] != '\0'));
	ck_assert_msg(!a || strstr(text, a), "%s", text);
	ck_assert_msg(!b || strstr(text, b), "%s", text);
	return is;
}

START_TEST(orphans_of_half_a_pool)
{
	struct scene_place b, left[3];
	uint64_t lease;

	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 1000, 12, 1);
	left[0] = leave(200, 1000, 8, 0);
	left[1] = leave(201, 1000, 12, 4); /* shares eight of them */
	ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 16);
	world_advance(w, SECOND);
	ck_assert(!over(NULL, NULL)); /* half is not more than half */
	left[2] = leave(202, 9000, 0, 1);
	world_advance(w, SECOND);
	ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 17);
	ck_assert(over("pool 0: 17 of 32 slots", "pid 201 keeps 16 and may write 12-15;"));
	ck_assert(over("pid 202 keeps 1 and may write 16", "pid 200 keeps 8"));
	ck_assert_msg(logged("log: pool 0: 17 of 32 slots"), "%s", w->log);
	ck_assert_uint_eq(world_counters(w).times_over, 1);
	/* Nothing of it is given away, and what is left serves. */
	lease = fencing_match(&b, 5000, SLOTS).lease;
	ck_assert_uint_eq(fencing_reserve(&b, lease, SLOTS, NULL), 15);
	scene_release(&b, lease, NULL);
	world_gone(left[2].c);
	world_advance(w, SECOND);
	ck_assert(!over(NULL, NULL));
	ck_assert(logged("half of its slots or less are kept from use again"));
	world_gone(left[1].c);
	ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 8);
	world_deinit(w);
}
END_TEST

/* A slot whose block went while it was being copied is kept back until the copy is done. */
START_TEST(copies_count_while_they_run)
{
	struct scene_place b;

	config->tiers = (struct world_tiers_config){ .host_blocks = 8,
						     .copy = { .latency_ns = 30ull * SECOND } };
	config->engine.write = PREFIXD_WRITE_THROUGH;
	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 3000, 1, 1);
	ck_assert_uint_eq(world_in_flight(w), 1);
	ck_assert_uint_eq(world_evict(w, 0, 1), 1);
	leave(200, 1000, 0, SLOTS / 2);
	world_advance(w, SECOND);
	ck_assert(over("17 of 32", NULL));
	world_advance(w, 60ull * SECOND);
	ck_assert_uint_eq(world_in_flight(w), 0);
	ck_assert(!over(NULL, NULL));
	world_deinit(w);
}
END_TEST

START_TEST(quarantine_of_half_a_pool)
{
	struct scene_place a, b;
	uint64_t lease;

	config->engine.grace_ns = SECOND;
	fencing_begin();
	a = fencing_worker(100);
	b = fencing_worker(101);
	ck_assert_uint_eq(fencing_reserve(&a, fencing_match(&a, 1000, 17).lease, 17, NULL), 17);
	world_kill(w, 100);
	ck_assert(over("pool 0: 17 of 32 slots", "pid 100 keeps 17 and may write 0-16"));
	lease = fencing_match(&b, 5000, SLOTS).lease;
	ck_assert_uint_eq(fencing_reserve(&b, lease, SLOTS, NULL), 15);
	world_advance(w, SECOND - 1);
	ck_assert(over(NULL, NULL));
	world_advance(w, 1);
	ck_assert(!over(NULL, NULL));
	ck_assert_uint_eq(fencing_reserve(&b, lease, 17, NULL), 17);
	world_deinit(w);
}
END_TEST

/* Many that come and go: they are counted in the end, and not at each step. */
START_TEST(a_crowd_of_orphans)
{
	struct scene_place b, left[12];

	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 1000, 17, 1);
	for (uint32_t i = 0; i < 12; i++)
		left[i] = leave(200 + i, 1000, 17, 0);
	world_advance(w, SECOND);
	ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 17);
	ck_assert(over("pid 200 keeps 17; pid 201", "pid 207 keeps 17; they"));
	for (uint32_t i = 0; i < 12; i++)
		world_gone(left[i].c);
	ck_assert(!over(NULL, NULL)); /* nothing is left: that needs no counting */
	ck_assert_uint_eq(world_counters(w).times_over, 1);
	world_deinit(w);
}
END_TEST

/* ---- over a restart -------------------------------------------------------------------------- */

/* What the workers of an earlier life hold is kept from use like any orphan's, and said so. */
START_TEST(orphans_of_an_earlier_life)
{
	struct prefixd_lease_info info;
	struct proto_quiesced_req q;
	struct proto_quiesced_rep rep;
	struct scene_place a, b;
	struct proto_match_rep m;
	uint64_t it = 0, lease;

	config->keep = true;
	fencing_begin();
	a = fencing_worker(100);
	fencing_put(&a, 1000, 10, 1);
	m = fencing_match(&a, 1000, 20);
	ck_assert_uint_eq(fencing_reserve(&a, m.lease, 10, NULL), 10);
	ck_assert(!over(NULL, NULL)); /* it is connected */
	q = (struct proto_quiesced_req){ .instance = a.c->instance,
					 .old_boot = w->config.engine.boot };
	world_life_kill(w);
	ck_assert_int_eq(world_life_restart(w), 0);
	world_advance(w, SECOND);
	ck_assert_uint_eq(prefixd_engine_kept(w->engine, 0), 20);
	ck_assert(over("pool 0: 20 of 32 slots", "pid 100 keeps 20 and may write 10-19"));
	ck_assert(prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info));
	ck_assert(info.earlier && info.orphan && info.pid == 100 && info.n_blocks == 10);
	ck_assert_uint_eq(info.n_own, 10); /* what it had reserved */
	b = fencing_worker(101);
	lease = fencing_match(&b, 5000, SLOTS).lease;
	ck_assert_uint_eq(fencing_reserve(&b, lease, SLOTS, NULL), 12);
	a = fencing_worker(100);
	ck_assert_int_eq(world_quiesced(a.c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases, 1);
	ck_assert_uint_eq(rep.n_slots, 10);
	ck_assert(!over(NULL, NULL));
	ck_assert_uint_eq(fencing_reserve(&b, lease, SLOTS, NULL), 20); /* cold now, or free */
	world_deinit(w);
}
END_TEST

/* The age limit binds copiers of an earlier life too, from the restart on. */
START_TEST(copiers_of_an_earlier_life)
{
	struct scene_place a, b;

	config->keep = true;
	config->engine.limits.lease_max_age_ns = SECOND;
	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 1000, 8, 1);
	a = fencing_copier(100);
	(void)fencing_match(&a, 1000, 8);
	world_life_kill(w);
	ck_assert_int_eq(world_life_restart(w), 0);
	ck_assert_uint_eq(world_life_watches(w), 1);
	world_advance(w, SECOND - 1);
	ck_assert_uint_eq(fencing_pins(), 1);
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 0);
	world_advance(w, 1);
	ck_assert_uint_eq(fencing_pins(), 0);
	ck_assert_uint_eq(world_life_watches(w), 0); /* it holds nothing: forgotten */
	ck_assert_uint_eq(world_evict(w, 0, SLOTS), 8);
	world_deinit(w);
}
END_TEST

/* The invariant notices what it is there for. */
START_TEST(broken_bounds_are_reported)
{
	struct scene_place b;
	char why[256];

	fencing_begin();
	b = fencing_worker(101);
	fencing_put(&b, 1000, 4, 1);
	(void)leave(200, 1000, 4, 2);
	w->engine->groups[0]->n_left++;
	ck_assert_int_eq(prefixd_engine_verify(w->engine, why, sizeof(why)), 22);
	w->engine->groups[0]->n_left--;
	w->engine->groups[0]->over = true;
	w->engine->groups[0]->fence_stirred = false;
	ck_assert_int_eq(prefixd_engine_verify(w->engine, why, sizeof(why)), 22);
	w->engine->groups[0]->over = false;
	ck_assert_int_eq(prefixd_engine_verify(w->engine, why, sizeof(why)), 0);
	world_deinit(w);
}
END_TEST

/* ---- who looks at pins ----------------------------------------------------------------------- */

START_TEST(what_operators_see)
{
	struct prefixd_lease_info info;
	struct scene_place a, b;
	struct proto_match_rep m;
	uint64_t it = 0;
	uint32_t slot;

	config->engine.limits.lease_max_age_ns = SECOND;
	config->engine.grace_ns = SECOND;
	fencing_begin();
	a = fencing_copier(100);
	a.salt = world_text("secret");
	fencing_put(&a, 1000, 2, 1);
	m = fencing_match(&a, 1000, 4);
	ck_assert_uint_eq(fencing_reserve(&a, m.lease, 2, &slot), 2);
	ck_assert(prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info));
	ck_assert_int_eq(info.stand, PREFIXD_STAND_LIVE);
	ck_assert(info.pid == 100 && info.n_blocks == 2 && info.n_reserved == 2);
	ck_assert(info.salted && info.headed);
	ck_assert_uint_eq(info.reserved[0], slot);
	ck_assert_str_eq(info.model, "m");
	ck_assert_uint_eq(prefixd_engine_pinned(w->engine, 0), 2);
	b = a;
	b.salt = world_text("other");
	fencing_put(&b, 1000, 2, 1);
	(void)fencing_match(&b, 1000, 2);
	{
		struct prefixd_lease_info other;

		ck_assert(prefixd_engine_next_lease(w->engine, &it, w->now_ns, &other));
		ck_assert_int_ne(memcmp(info.salt_digest, other.salt_digest, 8), 0);
		ck_assert_int_eq(memcmp(info.head_digest, other.head_digest, 8), 0);
		ck_assert_uint_eq(prefixd_engine_pinned(w->engine, 0), 4);
	}
	world_eof(a.c);
	it = 0;
	ck_assert(prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info));
	ck_assert(info.stand == PREFIXD_STAND_ORPHAN && info.orphan);
	world_advance(w, SECOND);
	it = 0;
	ck_assert(!prefixd_engine_next_lease(w->engine, &it, w->now_ns, &info));
	it = 0;
	ck_assert(prefixd_engine_next_ended(w->engine, &it, w->now_ns, &info));
	ck_assert_int_eq(info.stand, PREFIXD_STAND_REVOKED);
	ck_assert(info.n_own == 2 && info.own[0] == slot && info.pid == 100 && !info.n_blocks);
	world_gone(a.c);
	it = 0;
	ck_assert(prefixd_engine_next_ended(w->engine, &it, w->now_ns, &info));
	ck_assert_int_eq(info.stand, PREFIXD_STAND_QUARANTINED);
	ck_assert_uint_eq(info.session, RADIX_NONE);
	world_advance(w, SECOND);
	it = 0;
	ck_assert(!prefixd_engine_next_ended(w->engine, &it, w->now_ns, &info));
	world_deinit(w);
}
END_TEST

int main(void)
{
	const struct {
		const char *id;
		const TTest *test;
		int n; /* variants */
	} cases[] = {
		{ "kept", orphans_of_half_a_pool, 1 },
		{ "kept", quarantine_of_half_a_pool, 1 },
		{ "kept", copies_count_while_they_run, 1 },
		{ "kept", a_crowd_of_orphans, 1 },
		{ "kept", broken_bounds_are_reported, 1 },
		{ "kept", what_operators_see, 1 },
		{ "kept", orphans_of_an_earlier_life, 1 },
		{ "kept", copiers_of_an_earlier_life, 1 },
	};
	Suite *s = suite_create("kept");
	TCase *t = NULL;

	for (size_t i = 0; i < radix_array_size(cases); i++) {
		if (i == 0 || strcmp(cases[i].id, cases[i - 1].id) != 0) {
			t = tcase_create(cases[i].id);
			tcase_set_timeout(t, 120);
			tcase_add_checked_fixture(t, fencing_setup, NULL);
			suite_add_tcase(s, t);
		}
		tcase_add_loop_test(t, cases[i].test, 0, cases[i].n);
	}
	return scene_main(s);
}
