/*
 * test_epoch.c - INVALIDATE: what was committed before is served by nobody, from no tier.
 */
#include "tests/engine/follower.h"
#include "tests/engine/lift.h"

/* Prompts 0, 1 and 2 lie in Redis, in host memory and in the pool. */
static void three_tiers(void)
{
	lift_configure(2 * LIFT_BLOCKS, LIFT_BLOCKS, true);
	lift_begin();
	lift_store(4);
}

static uint64_t invalidate(void)
{
	world_invalidate(lift_world, lift_at.ns.ns);
	return lift_world->ret_n;
}

/* Blocks told by MATCH, in whatever tier; the root is given back. */
static uint32_t found(const struct scene_place *who, uint32_t id, struct proto_id *ret_root)
{
	struct proto_match_rep m;

	lift_match(who, id, LIFT_BLOCKS, &m);
	if (ret_root)
		*ret_root = m.root;
	scene_release(who, m.lease, NULL);
	return m.n_device + m.n_host + m.n_redis;
}

static uint64_t members(void)
{
	return room_stats(lift_world).n_blocks;
}

START_TEST(nothing_older)
{
	struct proto_id before, after;
	struct proto_probe_rep probe;
	struct scene_prompt p = room_prompt(2, LIFT_BLOCKS);
	struct proto_probe_req pr = { .has = PROTO_HAS_ALL, .keys = { p.keys, LIFT_BLOCKS * 16 } };
	uint64_t n;

	three_tiers();
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(found(&lift_at, i, &before), LIFT_BLOCKS);
	n = members();
	ck_assert_uint_eq(n, 4 * LIFT_BLOCKS);
	ck_assert_uint_eq(invalidate(), n);
	ck_assert_uint_eq(members(), 0);
	ck_assert_uint_eq(room_stats(lift_world).n_roots, 0);
	pr.ns = lift_at.ns.ns;
	pr.n_tokens = LIFT_BLOCKS * LIFT_BT;
	ck_assert_int_eq(world_probe(lift_at.c, &pr, &probe), PROTO_STATUS_OK);
	ck_assert_uint_eq(probe.n_device + probe.n_host + probe.n_redis, 0);
	ck_assert_mem_ne(&probe.root, &before, sizeof(before));
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 4; i++) {
			ck_assert_uint_eq(found(&lift_at, i, &after), 0);
			ck_assert_mem_ne(&after, &before, sizeof(before));
			ck_assert_mem_eq(&after, &probe.root, sizeof(after));
		}
		world_run_until_idle(lift_world); /* Redis was asked, by other names */
	}
	ck_assert_uint_gt(world_redis_values(lift_world), 0);
	ck_assert_uint_eq(world_counters(lift_world).found_blocks, 0);
	ck_assert_uint_eq(world_counters(lift_world).invalidations, 1);
	/* It is a namespace like any other. */
	room_put(&lift_at, 0, LIFT_BLOCKS);
	ck_assert_uint_eq(found(&lift_at, 0, &after), LIFT_BLOCKS);
	ck_assert_mem_eq(&after, &probe.root, sizeof(after));
	lift_end();
}
END_TEST

/* Each time it is another one, and another namespace is left alone. */
START_TEST(one_namespace)
{
	struct proto_open_req o = world_open_req("other");
	struct scene_place other;
	struct proto_id roots[3];

	lift_configure(4 * LIFT_BLOCKS, 0, false);
	lift_begin();
	other = scene_place(lift_world, 200, 1000, &o);
	room_put(&other, 0, LIFT_BLOCKS);
	for (uint32_t i = 0; i < 3; i++) {
		room_put(&lift_at, 0, LIFT_BLOCKS);
		ck_assert_uint_eq(found(&lift_at, 0, &roots[i]), LIFT_BLOCKS);
		ck_assert_uint_eq(invalidate(), LIFT_BLOCKS);
	}
	ck_assert_mem_ne(&roots[0], &roots[1], sizeof(roots[0]));
	ck_assert_mem_ne(&roots[0], &roots[2], sizeof(roots[0]));
	ck_assert_mem_ne(&roots[1], &roots[2], sizeof(roots[0]));
	ck_assert_uint_eq(found(&other, 0, NULL), LIFT_BLOCKS);
	world_invalidate(lift_world, 77);
	ck_assert_uint_eq(lift_world->ret_n, 0);
	ck_assert_uint_eq(world_counters(lift_world).invalidations, 3);
	lift_end();
}
END_TEST

/* A lease keeps what it has, finds no more, and what it stores is found by nobody. */
START_TEST(leases_that_run)
{
	struct scene_place b;
	struct proto_extend_req ext = { 0 };
	struct scene_prompt p = room_prompt(5, LIFT_BLOCKS);
	struct proto_match_rep m, x;
	struct proto_release_rep r;
	struct room_lease l;

	lift_configure(4 * LIFT_BLOCKS, LIFT_BLOCKS, false);
	lift_begin();
	room_put(&lift_at, 5, LIFT_BLOCKS);
	b = room_place(lift_world, 200);
	/* The first half; the rest comes by EXTEND. */
	lift_match(&b, 5, LIFT_BLOCKS / 2, &m);
	ck_assert_uint_eq(m.n_device, LIFT_BLOCKS / 2);
	ck_assert_uint_eq(invalidate(), LIFT_BLOCKS / 2);
	ck_assert_uint_eq(members(), LIFT_BLOCKS / 2);
	ck_assert_uint_eq(found(&lift_at, 5, NULL), 0);
	room_put(&lift_at, 5, LIFT_BLOCKS); /* anew */
	ext.lease = m.lease;
	ext.n_tokens = LIFT_BLOCKS * LIFT_BT;
	ext.keys = (struct proto_span){ p.keys + LIFT_BLOCKS / 2 * 16, LIFT_BLOCKS / 2 * 16 };
	ck_assert_int_eq(world_extend(b.c, &ext, &x), PROTO_STATUS_OK);
	ck_assert_uint_eq(x.n_device + x.n_host + x.n_redis, 0);
	ck_assert_int_eq(x.reason, PROTO_REASON_NAMESPACE);
	l = (struct room_lease){ .id = m.lease };
	ck_assert_int_eq(room_reserve(&b, &l, LIFT_BLOCKS / 2, 0, NULL), PROTO_STATUS_OK);
	room_commit(&b, &l, LIFT_BLOCKS / 2);
	ck_assert_uint_eq(members(), 2 * LIFT_BLOCKS);
	ck_assert_uint_eq(found(&lift_at, 5, NULL), LIFT_BLOCKS);
	scene_release(&b, m.lease, &r);
	ck_assert_uint_eq(r.hit_device_tokens, LIFT_BLOCKS / 2 * LIFT_BT);
	ck_assert_uint_eq(members(), LIFT_BLOCKS); /* the old root went with its lease */
	ck_assert_uint_eq(room_stats(lift_world).n_roots, 1);
	lift_end();
}
END_TEST

/* A load ends, and what it had brought is not given out any more. */
START_TEST(loads_that_run)
{
	struct proto_match_rep m, x;
	struct proto_release_rep r;
	uint64_t seq;

	for (uint32_t taken = 0; taken < 2; taken++) {
		lift_configure(2 * LIFT_BLOCKS, 2 * LIFT_BLOCKS, false);
		lift_begin();
		lift_store(3);
		lift_clear(LIFT_BLOCKS);
		seq = lift_promote(&lift_at, 0, LIFT_BLOCKS, 0, &m);
		world_advance(lift_world, 3 * ROOM_MS);
		if (taken)
			scene_extend(&lift_at, m.lease, &x);
		invalidate();
		lift_check_event(&lift_at, seq, m.lease, PROTO_WAIT_LOADED, 3,
				 PROTO_REASON_NAMESPACE);
		world_run_until_idle(lift_world);
		lift_check_silent(&lift_at);
		scene_extend(&lift_at, m.lease, &x);
		ck_assert_uint_eq(x.n_device + x.n_host, 0);
		scene_release(&lift_at, m.lease, &r);
		ck_assert_uint_eq(r.hit_host_tokens, taken ? 3 * LIFT_BT : 0);
		ck_assert_uint_eq(members(), 0);
		lift_end();
	}
}
END_TEST

/* Nobody is told to wait for blocks that will not be found. */
START_TEST(waits_end)
{
	struct scene_place b;
	struct room_lease l, waiter;
	struct proto_wait_req wr = { 0 };
	struct proto_wait_rep wait;
	struct proto_match_rep m;

	lift_configure(4 * LIFT_BLOCKS, 0, false);
	lift_begin();
	b = room_place(lift_world, 200);
	l = room_match(&lift_at, 0, LIFT_BLOCKS);
	ck_assert_int_eq(room_reserve(&lift_at, &l, LIFT_BLOCKS, 0, NULL), PROTO_STATUS_OK);
	waiter = room_match(&b, 0, LIFT_BLOCKS);
	wr.lease = waiter.id;
	ck_assert_int_eq(world_wait(b.c, &wr, &wait), PROTO_STATUS_OK);
	ck_assert_int_eq(wait.state, PROTO_WAIT_WAITING);
	invalidate();
	lift_check_event(&b, b.c->seq, waiter.id, PROTO_WAIT_FAILED, 0, PROTO_REASON_NONE);
	lift_match(&b, 0, LIFT_BLOCKS, &m);
	ck_assert_uint_eq(m.n_pending, 0);
	scene_release(&b, m.lease, NULL);
	room_commit(&lift_at, &l, LIFT_BLOCKS);
	lift_check_silent(&b);
	ck_assert_uint_eq(found(&b, 0, NULL), 0);
	room_release(&lift_at, &l);
	room_release(&b, &waiter);
	ck_assert_uint_eq(members(), 0);
	lift_end();
}
END_TEST

/* What others raised counts as well, if it is greater. */
START_TEST(heard_from_others)
{
	struct proto_open_rep open;
	struct proto_open_req o = world_open_req("m");
	struct prefixd_epoch mine;
	uint8_t digest[32];
	struct proto_id root, again;

	three_tiers();
	ck_assert_int_eq(world_open(lift_at.c, &o, &open), PROTO_STATUS_OK);
	memcpy(digest, open.digest.p, sizeof(digest));
	mine = world_epoch(lift_world, digest);
	ck_assert_uint_eq(mine.n, 0);
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 0, 0 });
	ck_assert_uint_eq(members(), 4 * LIFT_BLOCKS);
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 3, 5 });
	ck_assert_uint_eq(members(), 0);
	ck_assert_uint_eq(found(&lift_at, 0, &root), 0);
	room_put(&lift_at, 0, LIFT_BLOCKS);
	/* Older, equal, and from the same moment but smaller: nothing happens. */
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 2, 9 });
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 3, 5 });
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 3, 4 });
	ck_assert_uint_eq(found(&lift_at, 0, &again), LIFT_BLOCKS);
	ck_assert_mem_eq(&root, &again, sizeof(root));
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 3, 6 });
	ck_assert_uint_eq(found(&lift_at, 0, &again), 0);
	ck_assert_mem_ne(&root, &again, sizeof(root));
	ck_assert_uint_eq(world_counters(lift_world).invalidations, 2);
	/* Raising goes on from there, and is told. */
	invalidate();
	mine = world_epoch(lift_world, digest);
	ck_assert_uint_eq(mine.n, 4);
	ck_assert_uint_ne(mine.nonce, 0);
	digest[0] ^= 1;
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 9, 9 });
	ck_assert_uint_eq(world_counters(lift_world).invalidations, 3);
	lift_end();
}
END_TEST

/* It is heard before the pool is there. */
START_TEST(heard_early)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep open;
	struct world_client *c;
	struct proto_id late, now;
	uint8_t digest[32];

	lift_configure(LIFT_BLOCKS, 0, true);
	lift_begin();
	ck_assert_int_eq(world_open(lift_at.c, &o, &open), PROTO_STATUS_OK);
	memcpy(digest, open.digest.p, sizeof(digest));
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 2, 2 });
	found(&lift_at, 0, &late);
	world_deinit(lift_world);
	lift_config.hold_pools = true;
	lift_world = room_world(&lift_config);
	c = world_worker(lift_world, 100, 1000);
	ck_assert_int_eq(world_open(c, &o, &open), -EINPROGRESS);
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 2, 2 });
	world_pool_answer(lift_world, true);
	ck_assert_int_eq(world_open_reply(c, &open), PROTO_STATUS_OK);
	lift_at = (struct scene_place){ .c = c, .ns = open };
	found(&lift_at, 0, &now);
	ck_assert_mem_eq(&late, &now, sizeof(now));
	lift_end();
}
END_TEST

/* Its pool cannot be had: the namespace is gone with it, and OPEN makes both anew. */
START_TEST(heard_in_vain)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep open;
	struct world_client *c;
	uint8_t digest[32];

	lift_configure(LIFT_BLOCKS, 0, true);
	lift_begin();
	ck_assert_int_eq(world_open(lift_at.c, &o, &open), PROTO_STATUS_OK);
	memcpy(digest, open.digest.p, sizeof(digest));
	world_deinit(lift_world);
	lift_config.hold_pools = true;
	lift_world = room_world(&lift_config);
	c = world_worker(lift_world, 100, 1000);
	ck_assert_int_eq(world_open(c, &o, &open), -EINPROGRESS);
	world_epoch_seen(lift_world, digest, (struct prefixd_epoch){ 2, 2 });
	world_pool_answer(lift_world, false);
	ck_assert_int_eq(world_open_reply(c, &open), PROTO_STATUS_NO_BUDGET);
	ck_assert_int_eq(world_open(c, &o, &open), -EINPROGRESS);
	world_pool_answer(lift_world, true);
	ck_assert_int_eq(world_open_reply(c, &open), PROTO_STATUS_OK);
	lift_at = (struct scene_place){ .c = c, .ns = open };
	lift_end();
}
END_TEST

/* Somebody keeps epochs also where there is no Redis: a later life may have one. */
START_TEST(asked_without_redis)
{
	struct world_tiers_stats stats;

	lift_configure(LIFT_BLOCKS, LIFT_BLOCKS, false);
	lift_begin();
	world_tiers_stats(lift_world, &stats);
	ck_assert_uint_eq(stats.epochs, 1);
	lift_end();
}
END_TEST

/* A namespace that nobody has open any more does not begin anew with its first epoch. */
START_TEST(kept)
{
	struct proto_id raised, again;

	lift_configure(LIFT_BLOCKS, 0, true);
	lift_begin();
	room_put(&lift_at, 0, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
	invalidate();
	found(&lift_at, 0, &raised);
	world_run_until_idle(lift_world);
	world_gone(lift_at.c);
	lift_at = room_place(lift_world, 101);
	ck_assert_uint_eq(found(&lift_at, 0, &again), 0);
	ck_assert_mem_eq(&raised, &again, sizeof(again));
	world_run_until_idle(lift_world);
	ck_assert_uint_eq(found(&lift_at, 0, &again), 0);
	lift_end();
}
END_TEST

/* Subscribers forget all of the namespace, and learn what goes on to be there. */
START_TEST(subscribers)
{
	static struct follower f;
	struct scene_place b;
	struct room_lease l;

	lift_configure(2 * LIFT_BLOCKS, 0, false);
	lift_begin();
	ck_assert_int_eq(follower_begin(&f, room_place(lift_world, 300).c, 0, 0, NULL),
			 PROTO_STATUS_OK);
	room_put(&lift_at, 0, LIFT_BLOCKS);
	room_put(&lift_at, 1, LIFT_BLOCKS);
	b = room_place(lift_world, 200);
	l = room_match(&b, 1, LIFT_BLOCKS);
	follower_listen(&f);
	follower_check(&f, 0);
	ck_assert_uint_eq(invalidate(), LIFT_BLOCKS);
	follower_listen(&f);
	ck_assert_uint_eq(f.n[PROTO_CHANGE_CLEARED], 1);
	ck_assert_uint_eq(f.revision, 1);
	ck_assert_uint_eq(follower_n(&f), LIFT_BLOCKS); /* the lease's */
	follower_check(&f, 0);
	room_release(&b, &l);
	follower_listen(&f);
	ck_assert_uint_eq(follower_n(&f), 0);
	follower_check(&f, 0);
	lift_end();
}
END_TEST

int main(void)
{
	const struct {
		const char *name;
		const TTest *test;
	} cases[] = {
		{ "nothing-older", nothing_older },
		{ "one-namespace", one_namespace },
		{ "leases-that-run", leases_that_run },
		{ "loads-that-run", loads_that_run },
		{ "waits-end", waits_end },
		{ "heard-from-others", heard_from_others },
		{ "heard-early", heard_early },
		{ "heard-in-vain", heard_in_vain },
		{ "asked-without-redis", asked_without_redis },
		{ "kept", kept },
		{ "subscribers", subscribers },
	};
	Suite *s = suite_create("epoch");

	for (size_t i = 0; i < radix_array_size(cases); i++)
		scene_case(s, cases[i].name, cases[i].test);
	return scene_main(s);
}
