/*
 * test_guard.c - what one peer may take from the others: seats, reservations, its share of a pool;
 * and for how long a seat lasts.  T24.
 */
#include "tests/engine/scene.h"

static struct world w;
static struct world_config config;

static void setup(void)
{
	world_config_init(&config);
}

static void begin(void)
{
	ck_assert_int_eq(world_init(&w, &config), 0);
}

/* A connection of a process that is told apart by when it began. */
static struct world_client *connect_as(uint32_t pid, uint64_t start_time, uint32_t uid)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_SESSION_OPENED };
	struct world_client *c = w.clients;

	while (c->used && c < w.clients + WORLD_CLIENTS - 1)
		c++;
	ck_assert(!c->used);
	c->peer = (struct prefixd_peer){
		.pid = pid, .uid = uid, .gid = uid, .start_time = start_time
	};
	memset(&c->instance, 0, sizeof(c->instance));
	memcpy(c->instance.b, &pid, sizeof(pid));
	c->used = c->open = true;
	c->closed = false;
	c->seq = c->n_events = 0;
	event.session = c->session;
	event.u.peer = c->peer;
	world_step(&w, &event);
	return c;
}

static int hello(struct world_client *c)
{
	struct proto_hello_req m = world_hello_req(c);
	struct proto_hello_rep rep;

	return world_hello(c, &m, &rep);
}

/* ---- seats ----------------------------------------------------------------------------------- */

START_TEST(connections_of_one_process)
{
	struct world_client *c, *first, *quiet[4];

	config.engine.limits.max_sessions_per_process = 3;
	begin();
	first = world_worker(&w, 100, 1000);
	world_worker(&w, 100, 1000);
	world_worker(&w, 100, 1000);
	c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(hello(c), PROTO_STATUS_LIMIT);
	ck_assert_ptr_nonnull(strstr(c->error_text, "process 100 has 3 connections"));
	ck_assert_ptr_nonnull(strstr(c->error_text, "max-sessions-per-process"));
	ck_assert(c->closed && !c->used);
	ck_assert_uint_eq(world_counters(&w).refused_process, 1);
	/* Other processes are not concerned: not even of the same number, or the same user. */
	ck_assert_int_eq(hello(connect_as(100, 7777, 1000)), PROTO_STATUS_OK);
	world_worker(&w, 101, 1000);
	world_connect(&w, 100, 1000, true); /* an operator's connection is not counted out */
	/* Some more may connect, so that they can be told; then they are closed without a word. */
	for (int i = 0; i < 4; i++) {
		quiet[i] = world_connect(&w, 100, 1000, false);
		ck_assert(quiet[i]->used && !quiet[i]->closed);
	}
	c = world_connect(&w, 100, 1000, false);
	ck_assert(c->closed && !c->used);
	ck_assert_uint_eq(world_counters(&w).refused_process, 2);
	for (int i = 0; i < 4; i++)
		world_eof(quiet[i]);
	world_eof(first);
	world_worker(&w, 100, 1000);
	world_deinit(&w);
}
END_TEST

/* The kernel tells number 0 for processes of other pid namespaces: they are not one. */
START_TEST(processes_that_nobody_can_name)
{
	config.engine.limits.max_sessions_per_process = 2;
	begin();
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(hello(connect_as(0, 0, 1000)), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

START_TEST(sessions_of_one_user)
{
	struct world_client *c;

	config.engine.limits.max_sessions_per_user = 2;
	begin();
	world_worker(&w, 100, 1000);
	world_worker(&w, 101, 1000);
	c = world_connect(&w, 102, 1000, false);
	ck_assert_int_eq(hello(c), PROTO_STATUS_LIMIT);
	ck_assert_ptr_nonnull(strstr(c->error_text, "user 1000 has 2 sessions"));
	ck_assert_uint_eq(world_counters(&w).refused_user, 1);
	world_worker(&w, 103, 2000);
	for (uint32_t i = 0; i < 4; i++)
		world_connect(&w, 110 + i, 1000, false);
	ck_assert(world_connect(&w, 120, 1000, false)->closed);
	world_kill(&w, 100);
	for (uint32_t i = 0; i < 4; i++)
		world_kill(&w, 110 + i);
	world_worker(&w, 121, 1000);
	world_deinit(&w);
}
END_TEST

/* The whole table is full: other users and processes are told which limit it was. */
START_TEST(a_full_table)
{
	struct world_client *c;

	config.engine.limits.max_sessions = 2;
	begin();
	world_worker(&w, 100, 1000);
	world_worker(&w, 101, 1000);
	c = world_connect(&w, 102, 1000, false);
	ck_assert_int_eq(hello(c), PROTO_STATUS_LIMIT);
	ck_assert_ptr_nonnull(strstr(c->error_text, "2 sessions are connected"));
	ck_assert_uint_eq(world_counters(&w).refused_sessions, 1);
	world_deinit(&w);
}
END_TEST

/* Why HELLO was refused is counted, one number for each reason. */
START_TEST(refusals_are_counted)
{
	struct world_client *c;
	struct proto_hello_req m;
	struct proto_hello_rep rep;
	struct prefixd_counters n;

	begin();
	ck_assert_int_eq(hello(world_connect(&w, 100, 3000, false)), PROTO_STATUS_FORBIDDEN);
	c = world_connect(&w, 101, 1000, false);
	m = world_hello_req(c);
	m.version_min = m.version_max = 9;
	ck_assert_int_eq(world_hello(c, &m, &rep), PROTO_STATUS_VERSION);
	c = world_connect(&w, 102, 1000, false);
	m = world_hello_req(c);
	m.self_test.b[3] ^= 1;
	ck_assert_int_eq(world_hello(c, &m, &rep), PROTO_STATUS_SELF_TEST);
	world_worker(&w, 103, 1000);
	world_drain(&w, 0);
	ck_assert_int_eq(hello(world_connect(&w, 104, 1000, false)), PROTO_STATUS_DRAINING);
	n = world_counters(&w);
	ck_assert_uint_eq(n.refused_forbidden, 1);
	ck_assert_uint_eq(n.refused_version, 1);
	ck_assert_uint_eq(n.self_test_failed, 1);
	ck_assert_uint_eq(n.refused_draining, 1);
	ck_assert_uint_eq(n.refused_sessions + n.refused_process + n.refused_user, 0);
	world_deinit(&w);
}
END_TEST

/*
 * A worker lets go of its socket again and again while it holds blocks.  It may leave so many
 * sessions behind; then it gets in, but no lease, until it has said that its device is done.
 */
START_TEST(sessions_left_behind)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .n_tokens = 4 };
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep done;
	struct proto_match_rep rep;
	struct scene_place a, b;

	config.engine.limits.max_sessions_per_process = 2;
	begin();
	for (int i = 0; i < 2; i++) {
		a = scene_place(&w, 100, 1000, &o);
		m.ns = a.ns.ns;
		ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
		world_eof(a.c);
	}
	b = scene_place(&w, 101, 1000, &o);
	ck_assert_int_eq(world_match(b.c, &m, &rep), PROTO_STATUS_OK); /* not its fault */
	for (int i = 0; i < 10; i++) { /* it may come and go, and takes no seat with it */
		a = scene_place(&w, 100, 1000, &o);
		ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_LIMIT);
		ck_assert_ptr_nonnull(
			strstr(a.c->error_text, "process 100 left 2 sessions behind"));
		ck_assert_ptr_nonnull(strstr(a.c->error_text, "QUIESCED"));
		world_eof(a.c);
		ck_assert(!a.c->used);
	}
	ck_assert_uint_eq(world_counters(&w).refused_orphans, 10);
	a = scene_place(&w, 100, 1000, &o);
	q.instance = a.c->instance;
	q.old_boot = a.c->h.boot;
	ck_assert_int_eq(world_quiesced(a.c, &q, &done), PROTO_STATUS_OK);
	ck_assert_uint_eq(done.n_leases, 2);
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).refused_orphans, 10);
	world_deinit(&w);
}
END_TEST

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t tokens[200];

static uint64_t match(const struct scene_place *at, uint32_t first, uint32_t n_blocks)
{
	struct proto_match_rep rep;
	struct scene_prompt p;

	for (uint32_t i = 0; i < 200; i++)
		tokens[i] = first + i;
	p = scene_tokens(at, tokens, 4 * n_blocks);
	scene_match(at, &p, &rep);
	return rep.lease;
}

/* Blocks granted; 0: BUSY. */
static uint32_t reserve(const struct scene_place *at, uint64_t lease, uint32_t n)
{
	struct proto_reserve_req m = { .lease = lease, .n = n };
	struct proto_reserve_rep rep;
	int status = world_reserve(at->c, &m, &rep);

	if (status == PROTO_STATUS_BUSY)
		return 0;
	ck_assert_int_eq(status, PROTO_STATUS_OK);
	return rep.n;
}

static void commit(const struct scene_place *at, uint64_t lease, uint32_t n)
{
	struct proto_commit_req m = { .lease = lease, .n = n };
	struct proto_commit_rep rep;

	ck_assert_int_eq(world_commit(at->c, &m, &rep), PROTO_STATUS_OK);
}

/* Reserved and not committed, over all leases of the session; what is committed is not counted. */
START_TEST(reservations_of_one_session)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	uint64_t x, y;

	config.engine.limits.max_reserved = 5;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	x = match(&a, 1000, 10);
	y = match(&a, 2000, 10);
	ck_assert_uint_eq(reserve(&a, x, 3), 3);
	ck_assert_uint_eq(reserve(&a, y, 10), 2);
	ck_assert_uint_eq(reserve(&a, x, 1), 0);
	ck_assert_ptr_nonnull(strstr(a.c->error_text, "this session holds as many blocks as"));
	ck_assert_uint_eq(reserve(&b, match(&b, 3000, 10), 10), 5); /* others have their own */
	commit(&a, x, 3);
	ck_assert_uint_eq(reserve(&a, y, 10), 3);
	scene_release(&a, y, NULL);
	ck_assert_uint_eq(reserve(&a, x, 10), 5);
	world_deinit(&w);
}
END_TEST

/* A pool of 20, of which a session may hold 10 while others ask; `b` has just asked in vain. */
static void share_world(struct scene_place *a, struct scene_place *b)
{
	struct proto_open_req o = world_open_req("m");

	config.engine.pool_blocks = 20;
	config.engine.limits.max_pins_share = 50;
	begin();
	*a = scene_place(&w, 100, 1000, &o);
	*b = scene_place(&w, 101, 1000, &o);
}

static void ask_in_vain(const struct scene_place *b)
{
	uint64_t lease = match(b, 5000, 40);

	while (reserve(b, lease, 20) > 0)
		;
	scene_release(b, lease, NULL);
}

static void store(const struct scene_place *at, uint32_t first, uint32_t n)
{
	uint64_t lease = match(at, first, n);

	ck_assert_uint_eq(reserve(at, lease, n), n);
	commit(at, lease, n);
	scene_release(at, lease, NULL);
}

/* Leases of one session that share blocks hold each of them once. */
START_TEST(shared_blocks_count_once)
{
	struct scene_place a, b;

	share_world(&a, &b);
	store(&a, 1000, 8);
	(void)match(&a, 1000, 8);
	(void)match(&a, 1000, 3);
	(void)match(&a, 1000, 5);
	(void)match(&a, 1000, 8);
	(void)match(&a, 1000, 3);
	for (int i = 0; i < 3; i++) { /* counting has no effect of its own */
		ask_in_vain(&b);
		ck_assert_uint_eq(reserve(&a, match(&a, 2000, 10), 10), i == 0 ? 2 : 0);
	}
	world_deinit(&w);
}
END_TEST

/* The same where they part: two stems of 3 and 2 blocks above 3 common ones, and one short. */
START_TEST(branches_count_once)
{
	struct proto_match_rep rep;
	struct scene_place a, b;
	struct scene_prompt p;

	share_world(&a, &b);
	store(&a, 1000, 6);
	for (uint32_t i = 0; i < 200; i++)
		tokens[i] = i < 12 ? 1000 + i : 7000 + i;
	p = scene_tokens(&a, tokens, 20);
	ck_assert_uint_eq(scene_put(&a, &p, 1), 2);
	for (int i = 0; i < 2; i++) {
		scene_match(&a, &p, &rep);
		ck_assert_uint_eq(rep.n_device, 5);
		(void)match(&a, 1000, 6);
		for (uint32_t k = 0; k < 200; k++)
			tokens[k] = k < 12 ? 1000 + k : 7000 + k;
	}
	(void)match(&a, 1000, 2);
	ask_in_vain(&b);
	ck_assert_uint_eq(reserve(&a, match(&a, 2000, 10), 10), 2); /* 3 + 3 + 2 are held */
	ask_in_vain(&b);
	ck_assert_uint_eq(reserve(&a, match(&a, 3000, 10), 10), 0); /* still */
	world_deinit(&w);
}
END_TEST

/* Who goes away empty because of his own share has not gone away empty: it binds nobody, and does
 * not free himself by it. */
START_TEST(own_limits_bind_no_others)
{
	struct scene_place a, b;
	uint64_t lease;

	share_world(&a, &b);
	lease = match(&a, 1000, 20);
	ck_assert_uint_eq(reserve(&a, lease, 10), 10);
	ask_in_vain(&b);
	ck_assert_uint_eq(reserve(&a, lease, 1), 0);
	ck_assert_uint_eq(reserve(&a, lease, 1), 0); /* asking twice helps nothing */
	world_advance(&w, 2000000000);
	ck_assert_uint_eq(reserve(&a, lease, 1), 1); /* nobody asks any more */
	ask_in_vain(&b);
	ck_assert_uint_eq(reserve(&a, lease, 1), 0);
	world_advance(&w, 900000000);
	ck_assert_uint_eq(reserve(&a, lease, 1), 0);
	world_advance(&w, 200000000);
	lease = match(&b, 6000, 20);
	ck_assert_uint_eq(reserve(&b, lease, 9), 9);
	world_deinit(&w);
}
END_TEST

/* ---- T24 ------------------------------------------------------------------------------------- */

/* A worker that is silent for hours stays, with all that it holds; one that dies goes at once. */
START_TEST(idle_stays_dead_goes)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place idle, dead;
	struct radix_stats st;
	struct proto_empty none = {}, pong;
	uint64_t lease;

	begin();
	idle = scene_place(&w, 100, 1000, &o);
	dead = scene_place(&w, 101, 1000, &o);
	store(&idle, 1000, 4);
	lease = match(&idle, 1000, 4);
	(void)reserve(&dead, match(&dead, 2000, 8), 8);
	for (int minute = 0; minute < 120; minute++)
		world_advance(&w, 60ull * 1000000000);
	ck_assert(idle.c->used && !idle.c->closed && dead.c->used && !dead.c->closed);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 2);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_RESERVED], 8);
	ck_assert_uint_eq(world_evict(&w, 0, 100), 0);
	world_kill(&w, 101); /* the clock stands still from here on */
	ck_assert(!dead.c->used);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 1);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_RESERVED], 0);
	ck_assert_int_eq(world_ping(idle.c, &none, &pong), PROTO_STATUS_OK);
	scene_release(&idle, lease, NULL);
	ck_assert_uint_eq(world_evict(&w, 0, 100), 4);
	world_deinit(&w);
}
END_TEST

/* Silent and without a socket, but alive: the blocks stay too, until the process ends. */
START_TEST(idle_orphans_stay)
{
	struct proto_open_req o = world_open_req("m");
	struct radix_stats st;
	struct scene_place a;

	begin();
	a = scene_place(&w, 100, 1000, &o);
	store(&a, 1000, 4);
	(void)match(&a, 1000, 4);
	world_eof(a.c);
	for (int minute = 0; minute < 120; minute++)
		world_advance(&w, 60ull * 1000000000);
	ck_assert(a.c->used);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 1);
	world_gone(a.c);
	ck_assert(!a.c->used);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 0);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	const struct {
		const char *id;
		const TTest *const *tests;
	} cases[] = {
#define TESTS(...) ((const TTest *const[]){ __VA_ARGS__, NULL })
		{ "seats", TESTS(connections_of_one_process, processes_that_nobody_can_name,
				 sessions_of_one_user, a_full_table, refusals_are_counted,
				 sessions_left_behind) },
		{ "slots", TESTS(reservations_of_one_session, shared_blocks_count_once,
				 branches_count_once, own_limits_bind_no_others) },
		{ "T24", TESTS(idle_stays_dead_goes, idle_orphans_stay) },
	};
	Suite *s = suite_create("guard");

	for (size_t i = 0; i < radix_array_size(cases); i++) {
		TCase *t = tcase_create(cases[i].id);

		tcase_add_checked_fixture(t, setup, NULL);
		for (const TTest *const *test = cases[i].tests; *test; test++)
			tcase_add_test(t, *test);
		suite_add_tcase(s, t);
	}
	return scene_main(s);
}
