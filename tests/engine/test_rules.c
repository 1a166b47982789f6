/*
 * test_rules.c - rules at their very edge: one byte, one block, one token or one name beyond.
 *
 * Each case keeps one small fault of the engine from going unnoticed.
 */
#include "tests/engine/scene.h"

static struct world w;
static struct world_config config;
static uint32_t tokens[160];

static void setup(void)
{
	world_config_init(&config);
	for (uint32_t i = 0; i < radix_array_size(tokens); i++)
		tokens[i] = i;
}

static struct scene_place begin(void)
{
	struct proto_open_req o = world_open_req("m");

	ck_assert_int_eq(world_init(&w, &config), 0);
	return scene_place(&w, 100, 1000, &o);
}

static uint64_t match(const struct scene_place *at, uint32_t n_tokens)
{
	struct scene_prompt p = scene_tokens(at, tokens, n_tokens);
	struct proto_match_rep m;

	scene_match(at, &p, &m);
	return m.lease;
}

static int reserve(const struct scene_place *at, uint64_t lease, uint32_t n, uint32_t *ret_n)
{
	struct proto_reserve_req r = { .lease = lease, .n = n };
	struct proto_reserve_rep rep = { 0 };
	int status = world_reserve(at->c, &r, &rep);

	*ret_n = rep.n;
	return status;
}

static void must_reserve(const struct scene_place *at, uint64_t lease, uint32_t n)
{
	uint32_t got;

	ck_assert_int_eq(reserve(at, lease, n, &got), PROTO_STATUS_OK);
	ck_assert_uint_eq(got, n);
}

/* Checksums are 16 bytes for each block, no less and no more; without a kind there are none. */
START_TEST(checksums_fit_their_blocks)
{
	static const uint8_t sums[64];
	static const struct {
		uint8_t kind;
		uint32_t len;
		int status;
	} cases[] = {
		{ 1, 15, PROTO_STATUS_BAD_BODY }, { 1, 32, PROTO_STATUS_BAD_BODY },
		{ 1, 0, PROTO_STATUS_BAD_BODY },  { 0, 16, PROTO_STATUS_BAD_BODY },
		{ 3, 16, PROTO_STATUS_BAD_BODY }, { 1, 16, PROTO_STATUS_OK },
		{ 0, 0, PROTO_STATUS_OK },
	};
	struct scene_place a = begin();
	struct proto_commit_rep rep;
	uint64_t lease = match(&a, 16);

	must_reserve(&a, lease, 4);
	for (uint32_t i = 0; i < radix_array_size(cases); i++) {
		struct proto_commit_req c = { .lease = lease,
					      .n = 1,
					      .checksum_kind = cases[i].kind,
					      .checksums = { sums, cases[i].len } };

		ck_assert_int_eq(world_commit(a.c, &c, &rep), cases[i].status);
	}
	world_deinit(&w);
}
END_TEST

START_TEST(keys_come_whole)
{
	struct scene_place a = begin();
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .ns = a.ns.ns, .n_tokens = 8 };
	struct proto_match_rep rep;

	for (uint32_t len = 1; len < 40; len++) {
		m.keys = (struct proto_span){ tokens, len };
		ck_assert_int_eq(world_match(a.c, &m, &rep),
				 len % 16 ? PROTO_STATUS_BAD_BODY : PROTO_STATUS_OK);
	}
	world_deinit(&w);
}
END_TEST

/* OPENs that wait for their pool count for the limit, and are refused before they wait. */
START_TEST(waiting_opens_count)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;
	struct world_client *c;

	config.engine.limits.max_namespaces = 2;
	config.hold_pools = true;
	ck_assert_int_eq(world_init(&w, &config), 0);
	c = world_worker(&w, 100, 1000);
	(void)world_open(c, &o, &rep); /* no answer yet */
	ck_assert_uint_eq(c->n_replies, 0);
	o.adapter = world_text("one");
	(void)world_open(c, &o, &rep);
	ck_assert_uint_eq(c->n_replies, 0);
	o.adapter = world_text("two");
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_LIMIT);
	world_pool_answer(&w, true);
	ck_assert_uint_eq(c->h.status, PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* Who left while its OPEN waited is told nothing, though its leases keep the session. */
START_TEST(nobody_is_told_who_left)
{
	struct scene_place a = begin();
	struct proto_open_req o = world_open_req("larger");
	struct proto_open_rep rep;

	(void)match(&a, 16);
	w.config.hold_pools = true;
	o.head_dim *= 2;
	o.block_bytes *= 2;
	(void)world_open(a.c, &o, &rep);
	ck_assert_uint_eq(a.c->n_replies, 0);
	world_eof(a.c);
	ck_assert(a.c->used);
	world_pool_answer(&w, true); /* fails when anything is sent to a closed socket */
	ck_assert_uint_eq(a.c->n_replies, 0);
	world_deinit(&w);
}
END_TEST

START_TEST(no_room_is_a_reason)
{
	struct scene_place a;
	struct proto_release_rep end;
	uint64_t lease;
	uint32_t got;

	config.engine.pool_blocks = 6;
	a = begin();
	lease = match(&a, 40); /* ten blocks */
	ck_assert_int_eq(reserve(&a, lease, 10, &got), PROTO_STATUS_OK);
	ck_assert_uint_eq(got, 6);
	scene_release(&a, lease, &end);
	ck_assert_uint_eq(end.miss_tokens, 40);
	ck_assert_uint_eq(world_counters(&w).miss_no_room, 16);
	ck_assert_uint_eq(world_counters(&w).miss_never_seen, 24);
	world_deinit(&w);
}
END_TEST

/* A lease takes the place of the one before; the old id must not reach it. */
START_TEST(an_old_id_names_nothing)
{
	struct scene_place a = begin();
	struct proto_release_req rel = { .lease = match(&a, 16) };
	struct proto_release_rep end;
	uint64_t second;

	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_OK);
	second = match(&a, 16);
	ck_assert_uint_ne(second, rel.lease);
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_UNKNOWN_LEASE);
	rel.lease = second;
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

static uint64_t match_with(const struct scene_place *at, uint8_t id)
{
	struct proto_match_req m = {
		.has = PROTO_HAS_ALL, .ns = at->ns.ns, .n_tokens = 3, .op_id.b[0] = id
	};
	struct proto_match_rep rep;

	ck_assert_int_eq(world_match(at->c, &m, &rep), PROTO_STATUS_OK);
	return rep.lease;
}

/* Where the oldest answer goes, and only that one, the others are still given. */
START_TEST(only_the_oldest_answer_goes)
{
	struct scene_place a;
	uint64_t lease[60];

	config.engine.limits.op_ids = 4;
	a = begin();
	/* Many, so that the place for answers cannot just have grown. */
	for (uint8_t i = 0; i < radix_array_size(lease); i++) {
		lease[i] = match_with(&a, i + 1);
		for (uint8_t k = i < 3 ? 0 : i - 3; k <= i; k++)
			ck_assert_uint_eq(match_with(&a, k + 1), lease[k]);
	}
	ck_assert_uint_eq(world_counters(&w).lookups, radix_array_size(lease));
	/* Pushed out: a lease of its own. */
	ck_assert_uint_ne(match_with(&a, 56), lease[55]);
	world_deinit(&w);
}
END_TEST

/*
 * RESERVE of one block and RELEASE with a hint are the same bytes: the operation tells them apart.
 */
START_TEST(an_id_belongs_to_one_operation)
{
	struct scene_place a = begin();
	struct proto_reserve_req r = { .op_id.b[0] = 9, .lease = match(&a, 16), .n = 1 };
	struct proto_release_req rel = { .op_id.b[0] = 9, .lease = r.lease, .flags = 1 };
	struct proto_reserve_rep got;
	struct proto_release_rep end;

	ck_assert_int_eq(world_reserve(a.c, &r, &got), PROTO_STATUS_OK);
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_OP_ID_REUSED);
	rel.op_id.b[0]++;
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* Each kind of request that carries an id takes effect once. */
START_TEST(every_replay_changes_nothing)
{
	struct scene_place a = begin();
	struct proto_reserve_req r = { .op_id.b[0] = 1, .lease = match(&a, 16), .n = 2 };
	struct proto_commit_req c = { .op_id.b[0] = 2, .lease = r.lease, .n = 1 };
	struct proto_extend_req x = { .op_id.b[0] = 3, .lease = r.lease, .n_tokens = 20 };
	struct proto_release_req rel = { .op_id.b[0] = 4, .lease = r.lease };
	struct proto_reserve_rep got;
	struct proto_commit_rep done;
	struct proto_match_rep more;
	struct proto_release_rep end;
	struct prefixd_counters before, after;

	x.keys = (struct proto_span){ tokens + 16, 16 };
#define TWICE(call)                                                  \
	do {                                                         \
		ck_assert_int_eq(call, PROTO_STATUS_OK);             \
		before = world_counters(&w);                         \
		before.op_replays++;                                 \
		ck_assert_int_eq(world_again(a.c), PROTO_STATUS_OK); \
		after = world_counters(&w);                          \
		ck_assert_mem_eq(&before, &after, sizeof(before));   \
	} while (0)
	TWICE(world_reserve(a.c, &r, &got));
	TWICE(world_commit(a.c, &c, &done));
	TWICE(world_extend(a.c, &x, &more));
	TWICE(world_release(a.c, &rel, &end));
#undef TWICE
	world_deinit(&w);
}
END_TEST

/*
 * Slots in quarantine are given back by the process whose they were, and by no neighbour of its
 * user.
 */
START_TEST(quarantine_ends_by_its_owner)
{
	struct proto_quiesced_req q;
	struct proto_quiesced_rep rep;
	struct world_client *other;
	struct scene_place a;

	config.engine.grace_ns = 1000000000;
	a = begin();
	must_reserve(&a, match(&a, 16), 3);
	q = (struct proto_quiesced_req){ .instance = a.c->instance,
					 .old_boot = w.config.engine.boot };
	world_gone(a.c);
	other = world_worker(&w, 101, 1000);
	ck_assert_int_eq(world_quiesced(other, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_slots, 0);
	other = world_worker(&w, 100, 2000);
	ck_assert_int_eq(world_quiesced(other, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_slots, 0);
	other = world_worker(&w, 100, 1000);
	ck_assert_int_eq(world_quiesced(other, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_slots, 3);
	world_deinit(&w);
}
END_TEST

/*
 * Digests in a place where they cannot be: the refusal says whether the block hangs elsewhere or
 * would hang below itself, and a COMMIT how many blocks it has stored before.
 */
START_TEST(digests_in_the_wrong_place)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_extend_req x = { 0 };
	struct proto_commit_req c = { .n = 3 };
	struct proto_commit_rep done;
	struct proto_match_rep rep;
	struct scene_prompt p;
	struct scene_place a;
	uint8_t d[8][16];

	world_config_init(&config);
	ck_assert_int_eq(world_init(&w, &config), 0);
	for (uint32_t i = 0; i < sizeof(d); i++)
		d[i / 16][i % 16] = (uint8_t)(i + 1);
	memcpy(d[6], d[1], 16); /* 4 5 1, where 1 is known below 0 */
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("s");
	a = scene_place(&w, 100, 1000, &o);
	p = (struct scene_prompt){ .keys = d[0], .n_keys = 2 };
	ck_assert_uint_eq(scene_put(&a, &p, 1), 2);
	p = (struct scene_prompt){ .keys = d[4], .n_keys = 3 };
	scene_match(&a, &p, &rep);
	c.lease = rep.lease;
	must_reserve(&a, rep.lease, 3);
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_CONFLICT);
	ck_assert_ptr_nonnull(strstr(a.c->error_text,
				     "2 of 3 blocks were committed; the next one is "
				     "stored already, below another parent"));
	p.n_keys = 2;
	ck_assert_uint_eq(scene_look(&a, &p, NULL), 2);
	/* An island 2 3, and its end named as its own parent. */
	m.ns = a.ns.ns;
	m.n_tokens = 8;
	m.flags = PROTO_MATCH_ISLAND;
	m.keys = (struct proto_span){ d[2], 32 };
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	x.lease = c.lease = rep.lease;
	must_reserve(&a, rep.lease, 2);
	c.n = 2;
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_OK);
	x.parent = m.parent = (struct proto_span){ d[3], 16 };
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_CONFLICT);
	ck_assert_ptr_nonnull(strstr(a.c->error_text, "which would make a circle"));
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_CONFLICT);
	ck_assert_ptr_nonnull(strstr(a.c->error_text, "which would make a circle"));
	x.parent = (struct proto_span){ d[1], 16 };
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_OK);
	x.parent = (struct proto_span){ d[0], 16 };
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_CONFLICT);
	ck_assert_ptr_nonnull(strstr(a.c->error_text, "hangs below another parent"));
	world_deinit(&w);
}
END_TEST

/* A COMMIT that runs into its own island from below. */
START_TEST(a_prompt_that_bites_its_tail)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .n_tokens = 12,
				     .flags = PROTO_MATCH_ISLAND };
	struct proto_commit_req c = { .n = 3 };
	struct proto_commit_rep done;
	struct proto_match_rep rep;
	struct scene_place a;
	uint8_t d[3][16];

	world_config_init(&config);
	ck_assert_int_eq(world_init(&w, &config), 0);
	for (uint32_t i = 0; i < sizeof(d); i++)
		d[i / 16][i % 16] = (uint8_t)(i % 32 + 1); /* the third is the first */
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("s");
	a = scene_place(&w, 100, 1000, &o);
	m.ns = a.ns.ns;
	m.keys = (struct proto_span){ d, 48 };
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	c.lease = rep.lease;
	must_reserve(&a, rep.lease, 3);
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_CONFLICT);
	ck_assert_ptr_nonnull(strstr(
		a.c->error_text, "2 of 3 blocks were committed; the next one is stored already, "
				 "above the lease's own place"));
	world_deinit(&w);
}
END_TEST

/* Who went away empty itself is not held to its share for that. */
START_TEST(own_hunger_is_no_limit)
{
	struct scene_place a;
	uint64_t first, second;
	uint32_t got;

	config.engine.pool_blocks = 20;
	config.engine.limits.max_pins_share = 50;
	a = begin();
	first = match(&a, 160);
	second = match(&a, 160);
	must_reserve(&a, first, 12);
	must_reserve(&a, second, 8);
	ck_assert_int_eq(reserve(&a, first, 1, &got), PROTO_STATUS_BUSY);
	scene_release(&a, second, NULL);
	must_reserve(&a, first, 8); /* 20 of 20 */
	world_deinit(&w);
}
END_TEST

START_TEST(a_prompt_does_not_shrink)
{
	struct scene_place a = begin();
	struct proto_match_req m = {
		.has = PROTO_HAS_ALL, .ns = a.ns.ns, .n_tokens = 30, .keys = { tokens, 64 }
	};
	struct proto_extend_req x = { .n_tokens = 29 };
	struct proto_match_rep rep;

	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	x.lease = rep.lease;
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_BAD_BODY);
	ck_assert_str_eq(a.c->error_field, "n_tokens");
	x.n_tokens = 30;
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* A leader's time is up at its moment, not only once the clock's event has come. */
START_TEST(late_leaders_are_not_waited_for)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_wait_req m = { 0 };
	struct proto_wait_rep rep;
	struct scene_place a = begin(), b = scene_place(&w, 101, 1000, &o);

	must_reserve(&a, match(&a, 16), 4);
	m.lease = match(&b, 16);
	ck_assert_int_eq(world_wait(b.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.state, PROTO_WAIT_WAITING);
	m.lease = match(&b, 16);
	w.now_ns += config.engine.limits.pending_ns; /* no TIMER yet */
	ck_assert_int_eq(world_wait(b.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.state, PROTO_WAIT_LEAD);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rules");
	TCase *t = tcase_create("rules");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, checksums_fit_their_blocks);
	tcase_add_test(t, keys_come_whole);
	tcase_add_test(t, waiting_opens_count);
	tcase_add_test(t, nobody_is_told_who_left);
	tcase_add_test(t, no_room_is_a_reason);
	tcase_add_test(t, an_old_id_names_nothing);
	tcase_add_test(t, only_the_oldest_answer_goes);
	tcase_add_test(t, an_id_belongs_to_one_operation);
	tcase_add_test(t, every_replay_changes_nothing);
	tcase_add_test(t, quarantine_ends_by_its_owner);
	tcase_add_test(t, own_hunger_is_no_limit);
	tcase_add_test(t, digests_in_the_wrong_place);
	tcase_add_test(t, a_prompt_that_bites_its_tail);
	tcase_add_test(t, a_prompt_does_not_shrink);
	tcase_add_test(t, late_leaders_are_not_waited_for);
	suite_add_tcase(s, t);
	return scene_main(s);
}
