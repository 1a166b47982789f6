/*
 * test_versions.c - the versions of the protocol that HELLO agrees on, and what version 2 tells of
 * earlier sessions: who is let in with what, that every frame is of the version agreed on, and that
 * a client of version 1 meets version 1 to the byte.
 */
#include "daemon/engine_internal.h"
#include "tests/engine/scene.h"
#include "tests/lib/run.h"

#include <stdlib.h>

static struct world w;
static struct world_config config;

static void begin(void)
{
	world_config_init(&config);
	ck_assert_int_eq(world_init(&w, &config), 0);
}

/* HELLO of a client that speaks from `min` to `max` and proves version `proves`. */
static int hello(struct world_client *c, uint16_t min, uint16_t max, uint16_t proves,
		 struct proto_hello_rep *ret)
{
	struct proto_hello_req m = world_hello_req(c);

	m.version_min = min;
	m.version_max = max;
	m.self_test = proto_self_test(proves);
	return world_hello(c, &m, ret);
}

/* A worker of that version with a namespace. */
static struct scene_place place(uint32_t pid, uint16_t version)
{
	struct scene_place at = { .c = world_connect(&w, pid, 1000, false) };
	struct proto_open_req o = world_open_req("m");
	struct proto_hello_rep rep;

	ck_assert_int_eq(hello(at.c, version, version, version, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.version, version);
	ck_assert_int_eq(world_open(at.c, &o, &at.ns), PROTO_STATUS_OK);
	return at;
}

static uint64_t hold(const struct scene_place *at)
{
	struct proto_match_rep m;
	uint32_t tokens[16];
	struct scene_prompt p;

	for (uint32_t i = 0; i < 16; i++)
		tokens[i] = i;
	p = scene_tokens(at, tokens, 16);
	scene_match(at, &p, &m);
	return m.lease;
}

/* The highest version of both; the lowest one of the client is what it has to prove. */
START_TEST(the_highest_common_one)
{
	static const struct {
		uint16_t min, max, proves;
		int status;
		uint16_t agreed;
	} cases[] = {
		{ 1, 1, 1, PROTO_STATUS_OK, 1 },        { 1, 2, 1, PROTO_STATUS_OK, 2 },
		{ 2, 2, 2, PROTO_STATUS_OK, 2 },        { 1, 3, 1, PROTO_STATUS_OK, 3 },
		{ 2, 3, 2, PROTO_STATUS_OK, 3 },        { 3, 3, 3, PROTO_STATUS_OK, 3 },
		{ 2, 9, 2, PROTO_STATUS_OK, 3 },        { 1, 65535, 1, PROTO_STATUS_OK, 3 },
		{ 0, 1, 1, PROTO_STATUS_OK, 1 },        { 0, 2, 1, PROTO_STATUS_OK, 2 },
		{ 3, 9, 3, PROTO_STATUS_OK, 3 },        { 4, 9, 4, PROTO_STATUS_VERSION, 0 },
		{ 0, 0, 0, PROTO_STATUS_VERSION, 0 },   { 2, 1, 2, PROTO_STATUS_VERSION, 0 },
		{ 1, 2, 2, PROTO_STATUS_SELF_TEST, 0 }, { 2, 2, 1, PROTO_STATUS_SELF_TEST, 0 },
		{ 1, 1, 2, PROTO_STATUS_SELF_TEST, 0 }, { 2, 9, 9, PROTO_STATUS_SELF_TEST, 0 },
	};

	begin();
	for (uint32_t i = 0; i < radix_array_size(cases); i++) {
		struct world_client *c = world_connect(&w, 100, 1000, false);
		struct proto_hello_rep rep;
		struct proto_empty none = {};
		int r = hello(c, cases[i].min, cases[i].max, cases[i].proves, &rep);

		ck_assert_msg(r == cases[i].status, "case %u: %d", i, r);
		ck_assert(c->closed == (r != PROTO_STATUS_OK));
		/* The header of the reply is HELLO's own in any case; world_hello() has looked. */
		ck_assert_uint_eq(c->h.version, PROTO_VERSION_HELLO);
		if (r != PROTO_STATUS_OK)
			continue;
		ck_assert_uint_eq(rep.version, cases[i].agreed);
		ck_assert_int_eq(world_ping(c, &none, &none), PROTO_STATUS_OK);
		ck_assert_uint_eq(c->h.version, cases[i].agreed);
	}
	ck_assert_uint_eq(world_counters(&w).refused_version, 3);
	ck_assert_uint_eq(world_counters(&w).self_test_failed, 4);
	world_deinit(&w);
}
END_TEST

/* A frame of another version than was agreed on: an error of the agreed one, and the end. */
START_TEST(no_other_version)
{
	begin();
	for (uint16_t agreed = 0; agreed <= PROTO_VERSION; agreed++) {
		for (uint16_t sent = PROTO_VERSION_MIN; sent <= PROTO_VERSION; sent++) {
			struct world_client *c = world_connect(&w, 100, 1000, true);
			uint16_t right = agreed ? agreed : PROTO_VERSION_HELLO;
			struct proto_header h = { PROTO_MAGIC, sent, PROTO_OP_PING, 0, 0, 0, 77 };
			struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME,
						       .session = c->session };
			struct proto_hello_rep rep;

			if (agreed)
				ck_assert_int_eq(hello(c, agreed, agreed, agreed, &rep),
						 PROTO_STATUS_OK);
			event.u.frame.header = &h;
			event.u.frame.body = "";
			c->n_replies = 0;
			world_step(&w, &event);
			ck_assert_uint_eq(c->n_replies, 1);
			ck_assert_uint_eq(c->h.seq, 77);
			ck_assert_uint_eq(c->h.version, right);
			ck_assert_uint_eq(c->h.status,
					  sent == right ? PROTO_STATUS_OK : PROTO_STATUS_VERSION);
			ck_assert(c->closed == (sent != right));
		}
	}
	world_deinit(&w);
}
END_TEST

/* Version 1's replies are what they were: no further field, no further flag. */
START_TEST(version_1_as_it_was)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct proto_hello_rep rep;
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep quiet;

	begin();
	b = place(101, 2);
	ck_assert(!proto_id_is_zero(&b.ns.pool));
	ck_assert(!proto_id_equal(&b.ns.pool, &w.config.engine.boot));
	ck_assert_uint_eq(b.ns.flags, 0);
	w.engine->groups[0]->kept = true;
	ck_assert_int_eq(world_open(b.c, &o, &b.ns), PROTO_STATUS_OK);
	ck_assert_uint_eq(b.ns.flags, PROTO_OPENED_KEPT);
	a = place(100, 1); /* decodes as version 1, in which more bytes would be trailing ones */
	ck_assert_uint_eq(a.ns.flags, 0);
	ck_assert(proto_id_is_zero(&a.ns.pool));
	ck_assert_uint_eq(a.ns.pool_len, b.ns.pool_len);
	hold(&a);
	world_eof(a.c);
	/* HELLO tells nothing of orphans in version 1, and its QUIESCED names one life. */
	a.c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(hello(a.c, 1, 1, 1, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_orphans, 0);
	q.instance = a.c->instance;
	ck_assert_int_eq(world_quiesced(a.c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_leases, 0);
	q.old_boot = w.config.engine.boot;
	ck_assert_int_eq(world_quiesced(a.c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_leases, 1);
	world_deinit(&w);
}
END_TEST

/* A reply's body, whole, is what the message encodes to in that version and in no other. */
#define SAME_BYTES(c, of, low, m)                                             \
	do {                                                                  \
		static uint8_t bytes_[4096];                                  \
		struct proto_writer w_ = { bytes_, sizeof(bytes_), 0, NULL }; \
		proto_##low##_encode_as(&w_, of, m);                          \
		ck_assert_uint_eq((c)->h.version, of);                        \
		ck_assert_uint_eq((c)->h.len, w_.len);                        \
		ck_assert_mem_eq((c)->body, bytes_, w_.len);                  \
	} while (0)

/* Replies of the bodies that version 3 made longer, asked for in each version. */
START_TEST(bodies_of_their_version)
{
	uint16_t version = (uint16_t)(PROTO_VERSION_MIN + _i);
	const uint32_t open_len[] = { 0, 85, 101, 158 }, match_len[] = { 0, 75, 75, 83 };
	struct proto_open_req o = world_open_req("m");
	struct proto_reserve_req reserve = { .n = 2 };
	struct proto_commit_req commit = { .n = 2 };
	struct proto_release_req release = { 0 };
	struct proto_reserve_rep granted;
	struct proto_commit_rep stored;
	struct proto_release_rep counts;
	struct proto_match_rep m;
	uint32_t tokens[16];
	struct scene_prompt p;
	struct scene_place at;

	begin();
	at = place(100, version);
	ck_assert_int_eq(world_open(at.c, &o, &at.ns), PROTO_STATUS_OK);
	SAME_BYTES(at.c, version, open_rep, &at.ns);
	ck_assert_uint_eq(at.c->h.len, open_len[version]);
	ck_assert_uint_eq(at.ns.n_ranks, version < 3 ? 0 : 1);
	for (uint32_t i = 0; i < 16; i++)
		tokens[i] = i;
	p = scene_tokens(&at, tokens, 16);
	scene_match(&at, &p, &m);
	SAME_BYTES(at.c, version, match_rep, &m);
	ck_assert_uint_eq(at.c->h.len, match_len[version]);
	reserve.lease = commit.lease = release.lease = m.lease;
	ck_assert_int_eq(world_reserve(at.c, &reserve, &granted), PROTO_STATUS_OK);
	SAME_BYTES(at.c, version, reserve_rep, &granted);
	ck_assert_int_eq(world_commit(at.c, &commit, &stored), PROTO_STATUS_OK);
	SAME_BYTES(at.c, version, commit_rep, &stored);
	ck_assert_int_eq(world_release(at.c, &release, &counts), PROTO_STATUS_OK);
	SAME_BYTES(at.c, version, release_rep, &counts);
	scene_match(&at, &p, &m);
	ck_assert_uint_eq(m.n_device, 2);
	SAME_BYTES(at.c, version, match_rep, &m);
	ck_assert_uint_eq(at.c->h.len, match_len[version] + 8 * m.runs.n);
	world_deinit(&w);
}
END_TEST

/* WORDS is the session's wish: the namespace is the same one, and each session has its own. */
START_TEST(words_of_a_session)
{
	struct proto_open_req o = world_open_req("m"), late = world_open_req("late");
	struct proto_release_req release = { .word = 1 };
	struct proto_release_rep counts;
	struct proto_open_rep rep;
	struct scene_place a, b;

	begin();
	a = place(100, 3);
	b = place(101, 3);
	ck_assert_uint_eq(a.ns.n_words, 0);
	ck_assert(!a.c->with_words);
	release.lease = hold(&a);
	ck_assert_int_eq(world_release(a.c, &release, &counts), PROTO_STATUS_BAD_BODY);
	o.flags |= PROTO_OPEN_WORDS;
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.ns, a.ns.ns);
	ck_assert_uint_eq(rep.n_words, 512);
	ck_assert_uint_eq(rep.n_pool_fds, a.ns.n_pool_fds);
	ck_assert(a.c->with_fds && a.c->with_words);
	release.word = 512;
	ck_assert_int_eq(world_release(a.c, &release, &counts), PROTO_STATUS_OK);
	release.lease = hold(&b);
	ck_assert_int_eq(world_release(b.c, &release, &counts), PROTO_STATUS_BAD_BODY);
	/* An OPEN that waits for its pool has not forgotten what was asked. */
	w.config.hold_pools = true;
	late.flags |= PROTO_OPEN_WORDS;
	late.head_dim = 8;
	late.block_bytes = 128;
	ck_assert_int_eq(world_open(b.c, &late, &rep), -EINPROGRESS);
	world_pool_answer(&w, true);
	ck_assert_int_eq(world_open_reply(b.c, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_words, 512);
	ck_assert(b.c->with_words);
	ck_assert_int_eq(world_release(b.c, &release, &counts), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* Flags of version 3 mean nothing in an older one: the body is wrong, the connection goes on. */
START_TEST(flags_of_version_3)
{
	struct proto_open_req o = world_open_req("n");
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_match_rep rep;
	struct proto_open_rep ns;
	struct scene_place at;

	begin();
	for (uint16_t version = 1; version <= 2; version++) {
		at = place(100, version);
		for (uint32_t flag = PROTO_OPEN_STRIPE; flag <= PROTO_OPEN_WORDS; flag *= 2) {
			o.flags = flag;
			ck_assert_int_eq(world_open(at.c, &o, &ns), PROTO_STATUS_BAD_BODY);
			ck_assert_str_eq(at.c->error_field, "flags");
		}
		m.ns = at.ns.ns;
		m.flags = PROTO_MATCH_EXACT;
		ck_assert_int_eq(world_match(at.c, &m, &rep), PROTO_STATUS_BAD_BODY);
		ck_assert_str_eq(at.c->error_field, "flags");
		ck_assert(!at.c->closed);
	}
	world_deinit(&w);
}
END_TEST

/* What earlier sessions of an instance left is told to the next one, and to no other. */
START_TEST(orphans_are_told)
{
	struct proto_id other = { { 0x77 } };
	struct scene_place a, b;
	struct proto_hello_rep rep;
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep quiet;
	struct world_client *c;

	begin();
	a = place(100, 2);
	b = place(100, 2);
	hold(&a);
	hold(&a);
	hold(&b);
	c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(hello(c, 2, 2, 2, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_orphans, 0); /* they are connected */
	ck_assert(proto_id_is_zero(&rep.orphans_boot));
	world_eof(a.c);
	world_eof(b.c);
	c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(hello(c, 1, 2, 1, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_orphans, 3);
	ck_assert(proto_id_equal(&rep.orphans_boot, &w.config.engine.boot));
	/* Another process of this instance, another user, another instance of the process. */
	for (int i = 0; i < 3; i++) {
		struct prefixd_peer peer = a.c->peer;
		struct world_client *d;

		if (i == 0)
			peer.pid = 101;
		if (i == 1)
			peer.start_time++;
		d = world_connect_as(&w, &peer, i == 2 ? &other : &c->instance);
		ck_assert_int_eq(hello(d, 2, 2, 2, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.n_orphans, 0);
		q.instance = d->instance;
		ck_assert_int_eq(world_quiesced(d, &q, &quiet), PROTO_STATUS_OK);
		ck_assert_uint_eq(quiet.n_leases, 0);
	}
	/* Without a life it speaks for all of them. */
	q.instance = c->instance;
	ck_assert_int_eq(world_quiesced(c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_leases, 3);
	c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(hello(c, 2, 2, 2, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_orphans, 0);
	world_deinit(&w);
}
END_TEST

/* Orphans of several lives: the last one is named; each can be ended by itself, or all at once. */
START_TEST(orphans_of_several_lives)
{
	struct proto_id old = { { 0x01 } }, older = { { 0x02 } };
	struct prefixd_session *s;
	struct scene_place a, b;
	struct proto_hello_rep rep;
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep quiet;
	struct world_client *c;

	begin();
	a = place(100, 2);
	b = place(100, 2);
	hold(&a);
	hold(&b);
	hold(&b);
	s = prefixd_session_find(w.engine, a.c->session);
	s->boot = older;
	s = prefixd_session_find(w.engine, b.c->session);
	s->boot = old;
	world_eof(a.c);
	world_eof(b.c);
	c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(hello(c, 2, 2, 2, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_orphans, 3);
	ck_assert(proto_id_equal(&rep.orphans_boot, &old));
	q.instance = c->instance;
	q.old_boot = w.config.engine.boot;
	ck_assert_int_eq(world_quiesced(c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_leases, 0);
	q.old_boot = older;
	ck_assert_int_eq(world_quiesced(c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_leases, 1);
	q.old_boot = (struct proto_id){ { 0 } };
	ck_assert_int_eq(world_quiesced(c, &q, &quiet), PROTO_STATUS_OK);
	ck_assert_uint_eq(quiet.n_leases, 2);
	world_deinit(&w);
}
END_TEST

/* Pools of one life have different names, and one that is made anew has a new one. */
START_TEST(pools_have_names)
{
	struct proto_open_req o = world_open_req("m"), wide = world_open_req("n");
	struct scene_place a;
	struct proto_open_rep rep, same;

	begin();
	a = place(100, 2);
	ck_assert_int_eq(world_open(a.c, &o, &same), PROTO_STATUS_OK);
	ck_assert(proto_id_equal(&same.pool, &a.ns.pool));
	wide.head_dim = 8;
	wide.block_bytes = 128;
	ck_assert_int_eq(world_open(a.c, &wide, &rep), PROTO_STATUS_OK);
	ck_assert_uint_ne(rep.group, a.ns.group);
	ck_assert(!proto_id_equal(&rep.pool, &a.ns.pool));
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("versions");
	TCase *t = tcase_create("versions");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, the_highest_common_one);
	tcase_add_test(t, no_other_version);
	tcase_add_test(t, version_1_as_it_was);
	tcase_add_loop_test(t, bodies_of_their_version, 0, PROTO_VERSION);
	tcase_add_test(t, flags_of_version_3);
	tcase_add_test(t, words_of_a_session);
	tcase_add_test(t, orphans_are_told);
	tcase_add_test(t, orphans_of_several_lives);
	tcase_add_test(t, pools_have_names);
	suite_add_tcase(s, t);
	return test_run(s);
}
