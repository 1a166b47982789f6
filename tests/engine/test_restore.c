/*
 * test_restore.c - what the next life of the daemon makes of what the last one left: T11 T33 F08.
 */
#include "tests/engine/scene.h"

#include "daemon/engine_internal.h"

enum {
	BT = 4,
	MANY = 16,
	LONG = 32
};

static struct world w;
static struct world_config config;
static uint32_t tokens[MANY][LONG * BT];
static struct proto_id boot; /* of the life before */

static void configure(uint32_t n_slots)
{
	world_config_init(&config);
	config.engine.pool_blocks = n_slots;
	config.keep = true;
	for (uint32_t p = 0; p < MANY; p++)
		for (uint32_t i = 0; i < radix_array_size(tokens[p]); i++)
			tokens[p][i] = 1000 * p + i;
}

static struct scene_prompt prompt(const struct scene_place *at, uint32_t p, uint32_t n)
{
	return scene_tokens(at, tokens[p], n * BT);
}

static struct scene_place place(uint32_t pid)
{
	struct proto_open_req o = world_open_req("m");

	return scene_place(&w, pid, 1000, &o);
}

static struct scene_place begin(void)
{
	ck_assert_int_eq(world_init(&w, &config), 0);
	return place(100);
}

static void restart(void)
{
	boot = w.config.engine.boot;
	world_life_kill(&w);
	ck_assert_int_eq(world_life_restart(&w), 0);
}

static uint32_t put(const struct scene_place *at, uint32_t p, uint32_t n)
{
	struct scene_prompt x = prompt(at, p, n);

	return scene_put(at, &x, (uint8_t)(p + 1));
}

static uint32_t look(const struct scene_place *at, uint32_t p, uint32_t n)
{
	struct scene_prompt x = prompt(at, p, n);
	struct proto_match_rep m;
	uint32_t have;

	scene_match(at, &x, &m);
	have = scene_check_fill(at, m.runs, (uint8_t)(p + 1));
	ck_assert_uint_eq(have, m.n_device);
	scene_release(at, m.lease, NULL);
	return have;
}

/* A lease that stays: n blocks found, then `reserve` slots, of which `commit` are committed. */
static uint64_t hold(const struct scene_place *at, uint32_t p, uint32_t n, uint32_t reserve,
		     uint32_t commit, struct radix_run *ret_first)
{
	struct scene_prompt x = prompt(at, p, n);
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = reserve };
	struct proto_reserve_rep reserved;
	struct proto_commit_req c = { .n = commit };
	struct proto_commit_rep committed;

	scene_match(at, &x, &m);
	if (m.runs.n && ret_first)
		*ret_first = proto_run_at(m.runs, 0);
	r.lease = c.lease = m.lease;
	if (reserve)
		ck_assert_int_eq(world_reserve(at->c, &r, &reserved), PROTO_STATUS_OK);
	if (reserve && ret_first)
		*ret_first = proto_run_at(reserved.runs, 0);
	if (commit)
		ck_assert_int_eq(world_commit(at->c, &c, &committed), PROTO_STATUS_OK);
	return m.lease;
}

/* How many slots a stranger gets who asks for all of them; he gives them back. */
static uint32_t to_be_had(void)
{
	struct scene_place at = place(900);
	struct scene_prompt x = prompt(&at, MANY - 1, LONG);
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = LONG };
	struct proto_reserve_rep rep;
	uint32_t n = 0;

	scene_match(&at, &x, &m);
	r.lease = m.lease;
	if (world_reserve(at.c, &r, &rep) == PROTO_STATUS_OK)
		n = rep.n;
	scene_release(&at, m.lease, NULL);
	world_kill(&w, 900);
	return n;
}

static struct proto_quiesced_rep quiesced(struct world_client *c, struct proto_id life)
{
	struct proto_quiesced_req m = { .old_boot = life, .instance = c->instance };
	struct proto_quiesced_rep rep;

	ck_assert_int_eq(world_quiesced(c, &m, &rep), PROTO_STATUS_OK);
	return rep;
}

/* ---- what was committed ---------------------------------------------------------------------- */

START_TEST(nothing_was_there)
{
	struct prefixd_restored r;

	configure(16);
	ck_assert_int_eq(world_init(&w, &config), 0);
	restart();
	prefixd_engine_restored(w.engine, &r);
	ck_assert(r.done);
	ck_assert_uint_eq(r.n_groups, 0);
	struct scene_place at = place(100);

	ck_assert_uint_eq(put(&at, 0, 4), 4);
	restart();
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 4), 4);
	world_deinit(&w);
}
END_TEST

START_TEST(committed_blocks_hit)
{
	struct scene_place at;
	struct prefixd_restored r;
	struct proto_open_rep before;
	uint64_t generation[8], g;

	configure(LONG);
	at = begin();
	before = at.ns;
	ck_assert_uint_eq(put(&at, 0, 8), 8);
	ck_assert_uint_eq(put(&at, 1, 4), 4);
	for (uint32_t i = 0; i < 8; i++)
		generation[i] = w.pools[0].generations[i];
	g = radix_reuse_counter(world_index(&w, 0));
	restart();
	prefixd_engine_restored(w.engine, &r);
	ck_assert(r.done);
	ck_assert_uint_eq(r.n_groups, 1);
	ck_assert_uint_eq(r.n_groups_lost, 0);
	ck_assert_uint_eq(r.n_namespaces, 1);
	ck_assert_uint_eq(r.n_roots, 1);
	ck_assert_uint_eq(r.n_leases, 0);
	ck_assert_uint_eq(r.index.n_taken, 12);
	ck_assert_uint_eq(r.index.n_lost, 0);
	/* A block that stays keeps its generation, and the counter never falls. */
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(w.pools[0].generations[i], generation[i]);
	ck_assert_uint_ge(radix_reuse_counter(world_index(&w, 0)), g);
	at = place(100);
	ck_assert_uint_eq(at.ns.ns, before.ns);
	ck_assert_uint_eq(at.ns.flags, PROTO_OPENED_KEPT);
	ck_assert_mem_eq(&at.ns.pool, &before.pool, sizeof(before.pool));
	ck_assert_uint_eq(look(&at, 0, 8), 8);
	ck_assert_uint_eq(look(&at, 1, 4), 4);
	ck_assert_uint_eq(put(&at, 0, 12), 4); /* and go on behind them */
	restart();
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 12), 12);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* Evicted in the order in which they were used, in the life before too. */
START_TEST(recency_stays)
{
	struct scene_place at;

	configure(12);
	at = begin();
	for (uint32_t p = 0; p < 3; p++) {
		put(&at, p, 4);
		world_advance(&w, 1000);
	}
	ck_assert_uint_eq(look(&at, 0, 4), 4); /* so 1 is the oldest */
	restart();
	at = place(100);
	put(&at, 3, 4);
	ck_assert_uint_eq(look(&at, 1, 4), 0);
	ck_assert_uint_eq(look(&at, 0, 4), 4);
	ck_assert_uint_eq(look(&at, 2, 4), 4);
	world_deinit(&w);
}
END_TEST

static const uint8_t *digests(uint32_t n)
{
	static uint8_t keys[LONG * 16];

	for (uint32_t i = 0; i < n; i++)
		memset(keys + (size_t)i * 16, (int)(0x40 + i), 16);
	return keys;
}

/* An island is found by its digest, and what was hung below a parent stays there. */
START_TEST(islands_stay)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_prompt x = { 0 };
	struct proto_match_rep m;
	struct scene_place at;

	configure(LONG);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("seed");
	ck_assert_int_eq(world_init(&w, &config), 0);
	at = scene_place(&w, 100, 1000, &o);
	x.keys = digests(8) + 4 * 16; /* blocks 4 to 7 first, nobody knows where they belong */
	x.n_keys = 4;
	scene_match_with(&at, &x, PROTO_MATCH_ISLAND, 0, &m);
	{
		struct proto_reserve_req r = { .lease = m.lease, .n = 4 };
		struct proto_reserve_rep reserved;
		struct proto_commit_req c = { .lease = m.lease, .n = 4 };
		struct proto_commit_rep committed;

		ck_assert_int_eq(world_reserve(at.c, &r, &reserved), PROTO_STATUS_OK);
		ck_assert_int_eq(world_commit(at.c, &c, &committed), PROTO_STATUS_OK);
	}
	scene_release(&at, m.lease, NULL);
	restart();
	at = scene_place(&w, 100, 1000, &o);
	scene_match_with(&at, &x, PROTO_MATCH_ISLAND, 0, &m);
	ck_assert_uint_eq(m.n_device, 4);
	scene_release(&at, m.lease, NULL);
	x.keys = digests(8);
	ck_assert_uint_eq(scene_put(&at, &x, 1), 4);
	{
		struct proto_match_req q = {
			.has = PROTO_HAS_ALL,
			.ns = at.ns.ns,
			.flags = PROTO_MATCH_ISLAND,
			.n_tokens = 4 * BT,
			.keys = { digests(8) + 4 * 16, 4 * 16 },
			.parent = { digests(8) + 3 * 16, 16 },
		};

		ck_assert_int_eq(world_match(at.c, &q, &m), PROTO_STATUS_OK);
		scene_release(&at, m.lease, NULL);
	}
	restart();
	at = scene_place(&w, 100, 1000, &o);
	x.n_keys = 8;
	ck_assert_uint_eq(scene_look(&at, &x, NULL), 8);
	world_deinit(&w);
}
END_TEST

START_TEST(groups_namespaces_salts_tenants)
{
	struct proto_open_req big = world_open_req("big"), o = world_open_req("m");
	struct scene_place at, other, salted, blue;
	struct prefixd_tenant tenants[3];

	configure(LONG);
	at = begin();
	put(&at, 0, 4);
	salted = at;
	salted.salt = world_text("salt");
	put(&salted, 1, 3);
	big.block_bytes = 128;
	big.head_dim = 8;
	other = scene_place(&w, 101, 1000, &big);
	put(&other, 2, 5);
	blue = scene_place(&w, 200, 2000, &o);
	blue.tenant = 1;
	put(&blue, 3, 2);
	/* The configuration names them in another order now, and one more. */
	memset(tenants, 0, sizeof(tenants));
	tenants[0] = w.tenants[1];
	memcpy(tenants[1].name, "green", 6);
	tenants[1].uids[0] = 3000;
	tenants[1].n_uids = 1;
	tenants[2] = w.tenants[0];
	w.config.engine.tenants = tenants;
	w.config.engine.n_tenants = 3;
	restart();
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 4), 4);
	ck_assert_uint_eq(look(&at, 1, 3), 0); /* under another salt */
	salted = at;
	salted.salt = world_text("salt");
	ck_assert_uint_eq(look(&salted, 1, 3), 3);
	ck_assert_uint_eq(look(&salted, 0, 4), 0);
	other = scene_place(&w, 101, 1000, &big);
	ck_assert_uint_eq(look(&other, 2, 5), 5);
	blue = scene_place(&w, 200, 2000, &o);
	blue.tenant = 1;
	ck_assert_uint_eq(look(&blue, 3, 2), 2);
	ck_assert_str_eq(w.engine->tenants[0].name, "red");
	ck_assert_str_eq(w.engine->tenants[1].name, "blue");
	ck_assert_str_eq(w.engine->tenants[2].name, "green");
	world_deinit(&w);
}
END_TEST

/* T11: another revision is another namespace, and what was invalidated stays so. */
START_TEST(revisions_and_epochs)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place at, second;
	struct scene_prompt x;

	configure(LONG);
	at = begin();
	put(&at, 0, 4);
	o.revision = world_text("r2");
	restart();
	second = scene_place(&w, 101, 1000, &o);
	x = prompt(&second, 0, 4);
	ck_assert_uint_eq(scene_look(&second, &x, NULL), 0);
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 4), 4);
	world_invalidate(&w, at.ns.ns);
	ck_assert_uint_eq(look(&at, 0, 4), 0);
	put(&at, 1, 3);
	restart();
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 4), 0);
	ck_assert_uint_eq(look(&at, 1, 3), 3);
	restart(); /* an epoch that was taken up is written down again */
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 4), 0);
	ck_assert_uint_eq(look(&at, 1, 3), 3);
	world_deinit(&w);
}
END_TEST

START_TEST(geometry_stays)
{
	struct scene_place at;

	configure(LONG);
	at = begin();
	put(&at, 0, 8);
	w.config.engine.pool_blocks = 8;
	w.config.engine.pool_bytes = 4 * 64;
	restart();
	at = place(100);
	ck_assert_uint_eq(at.ns.n_slots, LONG);
	ck_assert_uint_eq(look(&at, 0, 8), 8);
	world_deinit(&w);
}
END_TEST

START_TEST(stopped_in_order)
{
	struct scene_place at;
	struct radix_run run;

	configure(LONG);
	at = begin();
	put(&at, 0, 8);
	boot = w.config.engine.boot;
	world_life_stop(&w, 1000000000);
	ck_assert_int_eq(world_life_restart(&w), 0);
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 8), 8);
	/* With a lease that does not end it stops at its deadline, and the lease is known later. */
	hold(&at, 0, 8, 0, 0, &run);
	boot = w.config.engine.boot;
	world_life_stop(&w, 1000000000);
	ck_assert_int_eq(world_life_restart(&w), 0);
	ck_assert_uint_eq(to_be_had(), LONG - 8);
	at = place(100);
	ck_assert_uint_eq(quiesced(at.c, boot).n_leases, 1);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* ---- who still holds something --------------------------------------------------------------- */

/* F08, T33: nothing that a living process was told of is given away; then it lets go. */
START_TEST(leases_hold_over_a_restart)
{
	struct scene_place at;
	struct radix_run run;
	struct proto_id other = { { 0x77 } };
	struct prefixd_counters c;
	struct prefixd_restored r;

	configure(LONG);
	at = begin();
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL); /* reads */
	hold(&at, 1, 5, 5, 2, &run); /* has written two and writes three more */
	ck_assert_uint_eq(to_be_had(), LONG - 11);
	restart();
	prefixd_engine_restored(w.engine, &r);
	ck_assert_uint_eq(r.n_sessions, 1);
	ck_assert_uint_eq(r.n_leases, 2);
	ck_assert_uint_eq(r.index.n_kept, 3);
	ck_assert_uint_eq(to_be_had(), LONG - 11);
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 6), 6);
	/* Another life's, another instance's or another process' word does not count. */
	ck_assert_uint_eq(quiesced(at.c, other).n_leases, 0);
	ck_assert_uint_eq(quiesced(at.c, w.config.engine.boot).n_leases, 0);
	struct scene_place stranger = place(101);

	stranger.c->instance = at.c->instance;
	ck_assert_uint_eq(quiesced(stranger.c, boot).n_leases, 0);
	at.c->instance.b[0] ^= 1;
	ck_assert_uint_eq(quiesced(at.c, boot).n_leases, 0);
	at.c->instance.b[0] ^= 1;
	ck_assert_uint_eq(to_be_had(), LONG - 11);
	ck_assert_uint_eq(world_life_watches(&w), 1);
	struct proto_quiesced_rep q = quiesced(at.c, boot);

	ck_assert_uint_eq(q.n_leases, 2);
	ck_assert_uint_eq(q.n_slots, 3);
	ck_assert_uint_eq(world_life_watches(&w), 0);
	ck_assert_uint_eq(to_be_had(), LONG);
	/* Their lookups were the other life's. */
	c = world_counters(&w);
	ck_assert_uint_eq(c.leases_quiesced, 0);
	world_deinit(&w);
}
END_TEST

START_TEST(holders_that_die)
{
	struct scene_place at;

	configure(LONG);
	config.engine.grace_ns = 1000000000;
	at = begin();
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL);
	hold(&at, 1, 4, 4, 0, NULL);
	if (_i == 0) { /* while the daemon is down */
		world_life_kill(&w);
		world_kill(&w, 100);
		ck_assert_int_eq(world_life_restart(&w), 0);
	} else if (_i == 1) { /* later */
		restart();
		ck_assert_uint_eq(to_be_had(), LONG - 10);
		world_kill(&w, 100);
	} else { /* before, and the grace is not over */
		world_kill(&w, 100);
		world_advance(&w, 900000000);
		restart();
		ck_assert_uint_eq(w.life.n_watches, 0);
	}
	/* Its blocks may be had, what it may have written only after the grace, counted anew. */
	ck_assert_uint_eq(to_be_had(), LONG - 4);
	world_advance(&w, 999999999);
	ck_assert_uint_eq(to_be_had(), LONG - 4);
	world_advance(&w, 2000000000);
	ck_assert_uint_eq(to_be_had(), LONG);
	ck_assert_uint_eq(world_life_watches(&w), 0);
	world_deinit(&w);
}
END_TEST

START_TEST(duplicates_and_many_lives)
{
	struct scene_place a, b;
	struct proto_commit_req c = { .n = 3 };
	struct proto_commit_rep rep;
	struct proto_id first;

	configure(LONG);
	a = begin();
	b = place(101);
	c.lease = hold(&a, 0, 3, 3, 0, NULL);
	hold(&b, 0, 3, 3, 3, NULL);
	ck_assert_int_eq(world_commit(a.c, &c, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_duplicate, 3);
	ck_assert_uint_eq(to_be_had(), LONG - 6);
	first = w.config.engine.boot;
	for (uint32_t i = 0; i < 4; i++) {
		restart();
		ck_assert_uint_eq(to_be_had(), LONG - 6);
	}
	b = place(101);
	ck_assert_uint_eq(quiesced(b.c, boot).n_leases, 0); /* they are of the first life */
	ck_assert_uint_eq(quiesced(b.c, first).n_leases, 1);
	ck_assert_uint_eq(to_be_had(), LONG - 6);
	world_kill(&w, 100);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* Who copies is fenced by generations, and may be taken back; the age counts from the restart. */
START_TEST(old_leases_of_who_copies)
{
	struct scene_place at = { .c = NULL };
	struct proto_hello_req h;
	struct proto_hello_rep rep;
	struct proto_open_req o = world_open_req("m");

	configure(LONG);
	config.engine.limits.lease_max_age_ns = 1000000000;
	ck_assert_int_eq(world_init(&w, &config), 0);
	at.c = world_connect(&w, 100, 1000, false);
	h = world_hello_req(at.c);
	h.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(at.c, &h, &rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(at.c, &o, &at.ns), PROTO_STATUS_OK);
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL);
	hold(&at, 1, 3, 3, 0, NULL);
	world_advance(&w, 900000000);
	restart();
	world_advance(&w, 900000000);
	ck_assert_uint_eq(to_be_had(), LONG - 9);
	world_advance(&w, 200000000);
	ck_assert_uint_eq(to_be_had(), LONG - 3); /* it may still write the three */
	restart();                                /* also when they were taken back before */
	ck_assert_uint_eq(to_be_had(), LONG - 3);
	world_kill(&w, 100);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* A lease of an epoch that is over: its blocks are nobody's any more, but it may read them. */
START_TEST(leases_of_an_old_epoch)
{
	struct scene_place at;
	struct prefixd_restored r;

	configure(LONG);
	config.engine.grace_ns = _i ? 1000000000 : 0;
	at = begin();
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL);
	world_invalidate(&w, at.ns.ns);
	ck_assert_uint_eq(to_be_had(), LONG - 6);
	restart();
	prefixd_engine_restored(w.engine, &r);
	ck_assert_uint_eq(r.index.n_quarantined, 6);
	ck_assert_uint_eq(to_be_had(), LONG - 6);
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 6), 0);
	restart();
	ck_assert_uint_eq(to_be_had(), LONG - 6);
	world_kill(&w, 100);
	if (_i) {
		ck_assert_uint_eq(to_be_had(), LONG - 6);
		world_advance(&w, 1100000000);
	}
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

START_TEST(processes_are_not_watched)
{
	struct scene_place at;

	configure(LONG);
	config.engine.watches_processes = false;
	at = begin();
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL);
	hold(&at, 1, 3, 3, 0, NULL);
	restart();
	ck_assert_uint_eq(world_life_watches(&w), 0);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* ---- before the memory is there -------------------------------------------------------------- */

START_TEST(ends_before_the_pool_is_there)
{
	struct scene_place at;
	struct world_client *c;
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;

	configure(LONG);
	config.engine.grace_ns = 1000000000;
	at = begin();
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL);
	hold(&at, 1, 3, 3, 0, NULL);
	w.config.hold_pools = true;
	restart();
	c = world_worker(&w, 101, 1000);
	ck_assert_int_eq(world_open(c, &o, &rep), -EINPROGRESS);
	if (_i == 0) {
		ck_assert_uint_eq(quiesced(world_worker(&w, 100, 1000), boot).n_leases, 2);
	} else {
		world_kill(&w, 100);
	}
	ck_assert_uint_eq(world_life_watches(&w), 0);
	if (_i == 2)
		restart(); /* what had ended is asked about again */
	world_pool_answer(&w, true);
	w.config.hold_pools = false;
	if (_i < 2)
		ck_assert_int_eq(world_open_reply(c, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(to_be_had(), _i ? LONG - 3 : LONG);
	world_advance(&w, 1100000000);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* The same under another salt. */
static struct scene_place salted(struct scene_place at, const char *salt)
{
	at.salt = world_text(salt);
	return at;
}

/*
 * The life that finds its pool lost is killed at each point of that.  Nothing of the old pool is
 * taken for the new one's, whose roots come in another order.
 */
START_TEST(killed_while_the_pool_is_lost)
{
	bool killed = true;

	for (uint64_t n = 1; killed; n++) {
		struct scene_place at, other;

		configure(LONG);
		at = begin();
		other = salted(at, "s");
		ck_assert_uint_eq(put(&at, 0, 6), 6);
		ck_assert_uint_eq(put(&other, 1, 6), 6);
		hold(&at, 0, 8, 2, 0, NULL);
		hold(&other, 1, 8, 2, 0, NULL);
		w.config.hold_pools = true;
		restart();
		world_life_kill_at(&w, n);
		world_pool_answer(&w, false);
		killed = !w.engine;
		world_life_kill_at(&w, 0);
		w.config.hold_pools = false;
		if (killed)
			ck_assert_int_eq(world_life_restart(&w), 0);
		at = place(101);
		other = salted(at, "s");
		ck_assert_uint_eq(put(&other, 3, 6), 6);
		ck_assert_uint_eq(put(&at, 2, 6), 6);
		restart();
		at = place(101);
		other = salted(at, "s");
		ck_assert_uint_eq(look(&other, 3, 6), 6);
		ck_assert_uint_eq(look(&at, 2, 6), 6);
		ck_assert_uint_eq(look(&other, 2, 6), 0);
		world_deinit(&w);
	}
}
END_TEST

START_TEST(the_pool_is_lost)
{
	struct scene_place at;
	struct world_client *c = NULL;
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;
	struct prefixd_restored r;

	configure(LONG);
	at = begin();
	put(&at, 0, 6);
	hold(&at, 0, 6, 0, 0, NULL);
	hold(&at, 1, 3, 3, 0, NULL);
	w.config.hold_pools = true;
	restart();
	if (_i) {
		c = world_worker(&w, 101, 1000);
		ck_assert_int_eq(world_open(c, &o, &rep), -EINPROGRESS);
	}
	world_pool_answer(&w, false);
	prefixd_engine_restored(w.engine, &r);
	ck_assert(r.done);
	ck_assert_uint_eq(r.n_groups_lost, 1);
	ck_assert_uint_eq(world_life_watches(&w), 0);
	if (_i) { /* who waits for it gets a new one */
		world_pool_answer(&w, true);
		ck_assert_int_eq(world_open_reply(c, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.flags, 0);
	}
	w.config.hold_pools = false;
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 6), 0);
	ck_assert_uint_eq(put(&at, 2, 6), 6);
	restart();
	at = place(100);
	ck_assert_uint_eq(look(&at, 2, 6), 6);
	ck_assert_uint_eq(to_be_had(), LONG);
	world_deinit(&w);
}
END_TEST

/* Whoever begins otherwise takes up nothing, and finds nothing later either. */
START_TEST(not_asked_to_restore)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_TIMER };
	struct scene_place at;

	configure(LONG);
	at = begin();
	put(&at, 0, 6);
	world_life_kill(&w);
	world_life_forego(&w);
	world_step(&w, &event);
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 6), 0);
	put(&at, 1, 3);
	restart();
	at = place(100);
	ck_assert_uint_eq(look(&at, 0, 6), 0);
	ck_assert_uint_eq(look(&at, 1, 3), 3);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restore");
	TCase *t = tcase_create("blocks");

	tcase_add_test(t, nothing_was_there);
	tcase_add_test(t, committed_blocks_hit);
	tcase_add_test(t, recency_stays);
	tcase_add_test(t, islands_stay);
	tcase_add_test(t, groups_namespaces_salts_tenants);
	tcase_add_test(t, geometry_stays);
	tcase_add_test(t, stopped_in_order);
	tcase_add_test(t, not_asked_to_restore);
	suite_add_tcase(s, t);
	scene_case(s, "T11", revisions_and_epochs);
	scene_case(s, "T33", leases_hold_over_a_restart);
	t = tcase_create("holders");
	tcase_add_loop_test(t, holders_that_die, 0, 3);
	tcase_add_test(t, duplicates_and_many_lives);
	tcase_add_test(t, old_leases_of_who_copies);
	tcase_add_loop_test(t, leases_of_an_old_epoch, 0, 2);
	tcase_add_test(t, processes_are_not_watched);
	tcase_add_loop_test(t, ends_before_the_pool_is_there, 0, 3);
	tcase_add_loop_test(t, the_pool_is_lost, 0, 2);
	tcase_add_test(t, killed_while_the_pool_is_lost);
	suite_add_tcase(s, t);
	return scene_main(s);
}
