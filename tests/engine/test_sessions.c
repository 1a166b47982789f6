/*
 * test_sessions.c - the lives of sessions and of what they hold: HELLO, limits, pools, ends, time.
 */
#include "tests/engine/scene.h"

static struct world w;
static struct world_config config;

static void begin(void)
{
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static void setup(void)
{
	world_config_init(&config);
}

static void count(uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i;
}

static uint64_t slots_in(enum radix_slot_state state)
{
	struct radix_stats st;

	world_stats(&w, 0, &st);
	return st.slots[state];
}

/* A lease with n of its blocks reserved. */
static uint64_t reserve(const struct scene_place *at, const struct scene_prompt *p, uint32_t n)
{
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = n };
	struct proto_reserve_rep got;

	scene_match(at, p, &m);
	r.lease = m.lease;
	ck_assert_int_eq(world_reserve(at->c, &r, &got), PROTO_STATUS_OK);
	return m.lease;
}

/* ---- HELLO and limits ------------------------------------------------------------------------ */

START_TEST(hello_tells)
{
	struct proto_hello_rep rep;
	struct proto_hello_req m;
	struct world_client *c;
	uint32_t id;

	begin();
	c = world_connect(&w, 100, 2000, false);
	m = world_hello_req(c);
	ck_assert_int_eq(world_hello(c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.version, PROTO_VERSION);
	ck_assert_uint_eq(rep.n_orphans, 0);
	ck_assert_uint_eq(rep.session, c->session);
	ck_assert_uint_eq(rep.max_frame, 65536);
	ck_assert_uint_eq(rep.max_keys, 2048);
	ck_assert_uint_eq(rep.op_ids_kept_ms, 60000);
	/* uid 2000 may name "blue", number 1, and nothing else */
	ck_assert_uint_eq(rep.tenants.n, 10);
	memcpy(&id, rep.tenants.p, 4);
	ck_assert_uint_eq(id, 1);
	ck_assert(memcmp((const uint8_t *)rep.tenants.p + 6, "blue", 4) == 0);
	world_deinit(&w);
}
END_TEST

START_TEST(hello_refused)
{
	static const struct {
		uint16_t min, max;
		uint32_t uid;
		int status;
	} cases[] = {
		{ PROTO_VERSION + 1, 9, 1000, PROTO_STATUS_VERSION },
		{ 0, 0, 1000, PROTO_STATUS_VERSION },
		{ 0, 9, 1000, PROTO_STATUS_OK },
		{ 1, 1, 4711, PROTO_STATUS_FORBIDDEN },
	};

	begin();
	for (uint32_t i = 0; i < radix_array_size(cases); i++) {
		struct world_client *c = world_connect(&w, 100, cases[i].uid, false);
		struct proto_hello_req m = world_hello_req(c);
		struct proto_hello_rep rep;

		m.version_min = cases[i].min;
		m.version_max = cases[i].max;
		ck_assert_int_eq(world_hello(c, &m, &rep), cases[i].status);
		ck_assert(c->closed == (cases[i].status != PROTO_STATUS_OK));
	}
	world_deinit(&w);
}
END_TEST

START_TEST(limits)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;
	struct scene_place a;
	struct world_client *c;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep mr;
	uint8_t keys[17 * 16] = { 0 };

	config.engine.limits.max_sessions = 2;
	config.engine.limits.max_namespaces = 2;
	config.engine.limits.max_leases = 3;
	config.engine.limits.max_groups = 1;
	config.engine.limits.max_keys = 16;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	world_worker(&w, 101, 1000);
	c = world_connect(&w, 102, 1000, false);
	hello = world_hello_req(c);
	ck_assert_int_eq(world_hello(c, &hello, &hello_rep), PROTO_STATUS_LIMIT);
	ck_assert(c->closed);
	c = world_connect(&w, 103, 0, true); /* operators are not counted out */
	hello = world_hello_req(c);
	ck_assert_int_eq(world_hello(c, &hello, &hello_rep), PROTO_STATUS_OK);
	o.model = world_text("n");
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_OK);
	o.model = world_text("o");
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_LIMIT);
	o.model = world_text("n"); /* one that is open already is no further one */
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_OK);
	world_deinit(&w);
	o.flags = PROTO_OPEN_OPAQUE;
	o.block_bytes = 8192;
	config.engine.limits.max_sessions = 10;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	o.block_bytes = 4096;
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_LIMIT); /* groups */
	m.ns = a.ns.ns;
	m.n_tokens = 100;
	m.keys = (struct proto_span){ keys, sizeof(keys) };
	ck_assert_int_eq(world_match(a.c, &m, &mr), PROTO_STATUS_LIMIT);
	ck_assert_str_eq(a.c->error_field, "keys");
	m.keys.n -= 16;
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(world_match(a.c, &m, &mr), PROTO_STATUS_OK);
	ck_assert_int_eq(world_match(a.c, &m, &mr), PROTO_STATUS_LIMIT);
	scene_release(&a, mr.lease, NULL);
	ck_assert_int_eq(world_match(a.c, &m, &mr), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* ---- pools ----------------------------------------------------------------------------------- */

START_TEST(budget)
{
	struct proto_open_req o = world_open_req("m");
	struct world_client *c;
	struct proto_open_rep rep;

	config.engine.pool_blocks = 100;
	config.engine.pool_bytes = 100 * 64 + 99 * 128;
	begin();
	c = world_worker(&w, 100, 1000);
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_slots, 100);
	o.flags = PROTO_OPEN_OPAQUE;
	o.block_bytes = 128;
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_NO_BUDGET);
	ck_assert_ptr_nonnull(strstr(c->error_text, "12800 bytes"));
	ck_assert_ptr_nonnull(strstr(c->error_text, "12672 of 19072"));
	o.block_bytes = 65;
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_NO_BUDGET); /* strides count */
	o.block_bytes = 60;
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_OK);
	world_deinit(&w);
	config.engine.pool_blocks = 0; /* as many as fit */
	begin();
	c = world_worker(&w, 100, 1000);
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_slots, (100 * 64 + 99 * 128) / 64);
	world_deinit(&w);
}
END_TEST

/* Several OPENs wait for one pool, are answered together, and one of them no longer cares. */
START_TEST(pool_waits)
{
	struct proto_open_req o = world_open_req("m"), o2 = world_open_req("n");
	struct world_client *c[4];
	struct proto_open_rep rep[4];
	struct proto_empty ping = {}, pong;

	config.hold_pools = true;
	begin();
	for (uint32_t i = 0; i < 4; i++) {
		c[i] = world_worker(&w, 100 + i, 1000);
		ck_assert_int_eq(world_open(c[i], i % 2 ? &o2 : &o, &rep[i]), -EINPROGRESS);
		ck_assert_int_eq(world_ping(c[i], &ping, &pong), PROTO_STATUS_OK);
		c[i]->n_replies = 0;
	}
	ck_assert_uint_eq(w.n_wanted, 1);
	world_kill(&w, 103);
	world_pool_answer(&w, true);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(world_open_reply(c[i], &rep[i]), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep[0].ns, rep[2].ns);
	ck_assert_uint_ne(rep[0].ns, rep[1].ns);
	ck_assert_uint_eq(rep[0].group, rep[1].group);
	ck_assert(c[0]->with_fds && rep[0].n_pool_fds == 2);
	world_deinit(&w);
}
END_TEST

START_TEST(pool_fails)
{
	struct proto_open_req o = world_open_req("m");
	struct world_client *c[2];
	struct proto_open_rep rep;

	config.hold_pools = true;
	config.engine.pool_blocks = 100;
	config.engine.pool_bytes = 6400;
	begin();
	for (uint32_t i = 0; i < 2; i++) {
		c[i] = world_worker(&w, 100 + i, 1000);
		ck_assert_int_eq(world_open(c[i], &o, &rep), -EINPROGRESS);
	}
	world_pool_answer(&w, false);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(world_open_reply(c[i], &rep), PROTO_STATUS_NO_BUDGET);
		ck_assert_str_eq(c[i]->error_text, "the device is full");
	}
	/* The budget is free again, and the next one may have more luck. */
	ck_assert_int_eq(world_open(c[0], &o, &rep), -EINPROGRESS);
	world_pool_answer(&w, true);
	ck_assert_int_eq(world_open_reply(c[0], &rep), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------ */

START_TEST(quiesced)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a;
	struct scene_prompt p;
	struct world_client *b;
	struct proto_quiesced_req q;
	struct proto_quiesced_rep rep;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	reserve(&a, &p, 3);
	reserve(&a, &p, 2);
	q = (struct proto_quiesced_req){ .instance = a.c->instance,
					 .old_boot = w.config.engine.boot };
	world_eof(a.c);
	ck_assert(a.c->used);
	/* Another process, another user, another life, another instance: nothing. */
	b = world_worker(&w, 101, 1000);
	ck_assert_int_eq(world_quiesced(b, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases + rep.n_slots, 0);
	b = world_worker(&w, 100, 2000);
	ck_assert_int_eq(world_quiesced(b, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases + rep.n_slots, 0);
	b = world_worker(&w, 100, 1000);
	q.old_boot.b[3]++;
	ck_assert_int_eq(world_quiesced(b, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases + rep.n_slots, 0);
	q.old_boot.b[3]--;
	q.instance.b[9]++;
	ck_assert_int_eq(world_quiesced(b, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases + rep.n_slots, 0);
	q.instance.b[9]--;
	ck_assert_uint_eq(slots_in(RADIX_SLOT_RESERVED), 5);
	ck_assert_int_eq(world_quiesced(b, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases, 2);
	ck_assert_uint_eq(rep.n_slots, 5);
	ck_assert(!a.c->used);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_FREE), 64);
	ck_assert_uint_eq(world_counters(&w).leases_quiesced, 2);
	world_deinit(&w);
}
END_TEST

/* A forked child holds the socket: the process is gone all the same. */
START_TEST(child_holds_socket)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a;
	struct scene_prompt p;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	reserve(&a, &p, 3);
	world_gone(a.c);
	ck_assert(a.c->closed && !a.c->used);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_FREE), 64);
	ck_assert_uint_eq(world_counters(&w).leases_died, 1);
	world_deinit(&w);
}
END_TEST

/* With a grace, slots of the dead wait for it, and no longer. */
START_TEST(grace)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = 4 };
	struct proto_reserve_rep got;
	uint32_t tokens[16];

	config.engine.grace_ns = 1000000000;
	config.engine.pool_blocks = 4;
	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	reserve(&a, &p, 3);
	world_kill(&w, 100);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 3);
	scene_match(&b, &p, &m);
	r.lease = m.lease;
	ck_assert_int_eq(world_reserve(b.c, &r, &got), PROTO_STATUS_OK);
	ck_assert_uint_eq(got.n, 1); /* none of the dead one's */
	ck_assert_uint_eq(prefixd_engine_deadline(w.engine), w.now_ns + 1000000000);
	world_advance(&w, 999999999);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 3);
	world_advance(&w, 1);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 0);
	ck_assert_uint_eq(w.n_poisoned, 3);
	/* What is left is the time for which others would wait for b. */
	ck_assert_uint_eq(prefixd_engine_deadline(w.engine), w.now_ns + 9000000000);
	ck_assert_int_eq(world_reserve(b.c, &r, &got), PROTO_STATUS_OK);
	ck_assert_uint_eq(got.n, 3);
	world_deinit(&w);
}
END_TEST

/* An age limit takes leases back from workers that copy, and from no others. */
START_TEST(revoked)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	struct proto_commit_req c = { .n = 1 };
	struct proto_commit_rep done;
	struct proto_release_req rel = { 0 };
	struct proto_release_rep end;
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep quiet;
	struct proto_match_rep kept, reads;
	uint32_t tokens[16];

	config.engine.limits.lease_max_age_ns = 1000000;
	begin();
	count(tokens, 16);
	a.c = world_connect(&w, 100, 1000, false);
	a.tenant = 0;
	a.salt.n = 0;
	hello = world_hello_req(a.c);
	hello.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(a.c, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(a.c, &o, &a.ns), PROTO_STATUS_OK);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&b, tokens, 16);
	c.lease = reserve(&a, &p, 3);
	scene_match(&a, &p, &reads);
	scene_match(&b, &p, &kept);
	world_advance(&w, 1000000);
	ck_assert_uint_eq(world_counters(&w).leases_revoked, 2);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 3);
	/* What it says before it knows cannot be about them. */
	q.instance = a.c->instance;
	q.old_boot = w.config.engine.boot;
	ck_assert_int_eq(world_quiesced(a.c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_slots, 0);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 3);
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_REVOKED);
	rel.lease = c.lease;
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_REVOKED);
	rel.lease = reads.lease; /* held nothing: told once, then forgotten */
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_REVOKED);
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_UNKNOWN_LEASE);
	ck_assert_int_eq(world_quiesced(a.c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_slots, 3);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_FREE), 64);
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_UNKNOWN_LEASE);
	scene_release(&b, kept.lease, NULL);
	world_deinit(&w);
}
END_TEST

/* Slots of a revoked lease whose process then ends wait for the grace, like all others. */
START_TEST(revoked_then_dead)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a;
	struct scene_prompt p;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	uint32_t tokens[16];

	config.engine.limits.lease_max_age_ns = 1000;
	config.engine.grace_ns = 5000;
	begin();
	count(tokens, 16);
	a = (struct scene_place){ .c = world_connect(&w, 100, 1000, false) };
	hello = world_hello_req(a.c);
	hello.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(a.c, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(a.c, &o, &a.ns), PROTO_STATUS_OK);
	p = scene_tokens(&a, tokens, 16);
	reserve(&a, &p, 3);
	scene_match(&a, &p, &(struct proto_match_rep){ 0 });
	world_advance(&w, 1000);
	world_kill(&w, 100);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 3);
	world_advance(&w, 4999);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_QUARANTINED), 3);
	world_advance(&w, 1);
	ck_assert_uint_eq(slots_in(RADIX_SLOT_FREE), 64);
	world_deinit(&w);
}
END_TEST

START_TEST(drain)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a;
	struct scene_prompt p;
	struct proto_commit_req c = { .n = 2 };
	struct proto_commit_rep done;
	struct world_client *admin;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	c.lease = reserve(&a, &p, 2);
	world_drain(&w, 0);
	ck_assert(prefixd_engine_draining(w.engine));
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_OK);
	admin = world_connect(&w, 1, 0, true);
	hello = world_hello_req(admin);
	ck_assert_int_eq(world_hello(admin, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(w.n_exits, 0);
	scene_release(&a, c.lease, NULL);
	ck_assert_uint_eq(w.n_exits, 1);
	world_kill(&w, 100);
	ck_assert_uint_eq(w.n_exits, 1); /* said once */
	world_deinit(&w);
	/* Nobody holds anything: at once. */
	begin();
	world_drain(&w, 0);
	ck_assert_uint_eq(w.n_exits, 1);
	world_deinit(&w);
	/* Somebody does not let go: at the deadline. */
	begin();
	a = scene_place(&w, 100, 1000, &o);
	reserve(&a, &p, 2);
	world_drain(&w, w.now_ns + 5000);
	world_advance(&w, 4999);
	ck_assert_uint_eq(w.n_exits, 0);
	world_advance(&w, 1);
	ck_assert_uint_eq(w.n_exits, 1);
	/* What is left is the time for which others would wait for a. */
	ck_assert_uint_eq(prefixd_engine_deadline(w.engine), w.now_ns - 5000 + 10000000000);
	world_deinit(&w);
}
END_TEST

/* New tenants by reload; an old name keeps its number, one that is gone keeps it for nobody. */
START_TEST(reload)
{
	struct prefixd_tenant now[2] = { { .name = "green", .any_uid = true },
					 { .name = "red", .uids = { 1000 }, .n_uids = 1 } };
	struct prefixd_event event = { .type = PREFIXD_EVENT_RELOAD };
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep rep;
	struct scene_place red, blue;
	struct scene_prompt p;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	red = scene_place(&w, 100, 1000, &o);
	blue = scene_place(&w, 101, 2000, &o);
	p = scene_tokens(&red, tokens, 16);
	scene_put(&red, &p, 1);
	event.u.reload.tenants = now;
	event.u.reload.n_tenants = 2;
	world_step(&w, &event);
	ck_assert_uint_eq(scene_look(&red, &p, NULL), 4);
	m.ns = blue.ns.ns;
	m.tenant = 1; /* "blue" is gone */
	ck_assert_int_eq(world_match(blue.c, &m, &rep), PROTO_STATUS_FORBIDDEN);
	m.tenant = 2; /* "green" came behind it */
	ck_assert_int_eq(world_match(blue.c, &m, &rep), PROTO_STATUS_OK);
	m.tenant = 0;
	ck_assert_int_eq(world_match(blue.c, &m, &rep), PROTO_STATUS_FORBIDDEN);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		hello_tells,       hello_refused,      limits, budget,  pool_waits, pool_fails,
		quiesced,          child_holds_socket, grace,  revoked, drain,      reload,
		revoked_then_dead,
	};
	Suite *s = suite_create("sessions");
	TCase *t = tcase_create("sessions");

	tcase_add_checked_fixture(t, setup, NULL);
	for (uint32_t i = 0; i < radix_array_size(tests); i++)
		tcase_add_test(t, tests[i]);
	suite_add_tcase(s, t);
	return scene_main(s);
}
