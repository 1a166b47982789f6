/*
 * test_handles.c - F07: handles that are not one's own, or not any more.
 *
 * Three workers take leases, reserve, commit and release by a seeded generator; between their right
 * calls come wrong ones: a lease released twice, another worker's lease, a number that never was, a
 * COMMIT of what was committed already, a RESERVE of what is reserved, QUIESCED in another's name.
 * Each wrong call is answered by the code that belongs to it and counted, and nothing else changes:
 * not a counter, not a lease, not a slot, not a pin, not a line of the tree.
 */
#include "tests/engine/scene.h"

#include <stdlib.h>

enum {
	WORKERS = 3,
	LEASES = 6,
	GONE = 64
};

struct held {
	uint64_t id;
	uint32_t n_keys, n_stored, n_reserved;
};

struct bed {
	struct scene_place at;
	struct held held[LEASES];
	uint32_t n_held;
};

static struct world w;
static struct bed beds[WORKERS];
static uint64_t gone[GONE]; /* ids of leases that ended */
static uint32_t n_gone;
static uint64_t rng;
static uint32_t tokens[64];

/* ---- all that a wrong call must leave alone -------------------------------------------------- */

struct picture {
	uint64_t hash;
	struct prefixd_counters counters;
};

static void mix(uint64_t *h, const void *p, size_t n)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		*h = (*h ^ b[i]) * 0x100000001b3u;
}

static void mix_line(void *ctx, const char *text)
{
	mix(ctx, text, strlen(text) + 1);
}

static struct picture picture_take(void)
{
	struct picture p = { .hash = 0xcbf29ce484222325u, .counters = world_counters(&w) };
	struct prefixd_session_info session;
	struct prefixd_lease_info lease;
	struct radix_stats st;
	uint32_t it = 0;
	uint64_t at = 0;

	world_stats(&w, 0, &st);
	mix(&p.hash, &st, sizeof(st));
	radix_dump(world_index(&w, 0), RADIX_NONE, UINT32_MAX, mix_line, &p.hash);
	for (uint32_t i = 0; i < st.n_slots; i++) {
		enum radix_slot_state state = radix_slot_state(world_index(&w, 0), i);
		uint64_t generation = radix_slot_generation(world_index(&w, 0), i);

		mix(&p.hash, &state, sizeof(state));
		mix(&p.hash, &generation, sizeof(generation));
	}
	for (memset(&lease, 0, sizeof(lease));
	     prefixd_engine_next_lease(w.engine, &at, w.now_ns, &lease);
	     memset(&lease, 0, sizeof(lease))) {
		mix(&p.hash, &lease.id, sizeof(lease.id));
		mix(&p.hash, &lease.n_blocks, sizeof(lease.n_blocks));
		mix(&p.hash, &lease.n_reserved, sizeof(lease.n_reserved));
		mix(&p.hash, &lease.session, sizeof(lease.session));
	}
	while (prefixd_engine_next_session(w.engine, &it, w.now_ns, &session)) {
		mix(&p.hash, &session.session, sizeof(session.session));
		mix(&p.hash, &session.n_leases, sizeof(session.n_leases));
	}
	return p;
}

/* Nothing but the counters of requests moved since `before`: one error, and one of `kind`. */
static void expect_same(struct picture before, uint64_t unknown)
{
	struct picture after = picture_take();

	before.counters.requests++;
	before.counters.errors++;
	before.counters.unknown_lease += unknown;
	world_check(&w, before.hash == after.hash);
	world_check(&w, memcmp(&before.counters, &after.counters, sizeof(after.counters)) == 0);
}

/* ---- right calls ----------------------------------------------------------------------------- */

static void lease_ended(struct bed *b, uint32_t i)
{
	gone[n_gone++ % GONE] = b->held[i].id;
	b->held[i] = b->held[--b->n_held];
}

static void do_match(struct bed *b)
{
	uint32_t stem = test_rng_below(&rng, 3), n = 2 + test_rng_below(&rng, 6);
	struct proto_match_rep rep;
	struct scene_prompt p;

	if (b->n_held == LEASES)
		return;
	for (uint32_t i = 0; i < 64; i++)
		tokens[i] = i < 8 ? 100 * stem + i : test_rng_below(&rng, 9);
	p = scene_tokens(&b->at, tokens, 4 * n);
	scene_match(&b->at, &p, &rep);
	b->held[b->n_held++] =
		(struct held){ .id = rep.lease, .n_keys = n, .n_stored = rep.n_device };
}

static void do_reserve(struct bed *b, struct held *h)
{
	struct proto_reserve_req m = { .lease = h->id, .n = 1 + test_rng_below(&rng, 4) };
	struct proto_reserve_rep rep;
	int status;

	if (h->n_stored + h->n_reserved == h->n_keys)
		return;
	status = world_reserve(b->at.c, &m, &rep);
	if (status == PROTO_STATUS_OK)
		h->n_reserved += rep.n;
	else
		ck_assert_int_eq(status, PROTO_STATUS_BUSY);
}

static void do_commit(struct bed *b, struct held *h)
{
	struct proto_commit_req m = { .lease = h->id };
	struct proto_commit_rep rep;

	if (h->n_reserved == 0)
		return;
	m.n = 1 + test_rng_below(&rng, h->n_reserved);
	ck_assert_int_eq(world_commit(b->at.c, &m, &rep), PROTO_STATUS_OK);
	h->n_reserved -= m.n;
	h->n_stored += m.n;
}

static void right_call(struct bed *b)
{
	uint32_t i;

	if (b->n_held == 0 || test_rng_below(&rng, 4) == 0) {
		do_match(b);
		return;
	}
	i = test_rng_below(&rng, b->n_held);
	switch (test_rng_below(&rng, 3)) {
	case 0:
		do_reserve(b, &b->held[i]);
		break;
	case 1:
		do_commit(b, &b->held[i]);
		break;
	default:
		scene_release(&b->at, b->held[i].id, NULL);
		lease_ended(b, i);
	}
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

/* A lease that is not the worker's: ended, another's, or invented; 0 when there is none. */
static uint64_t foreign_lease(const struct bed *b)
{
	const struct bed *other = &beds[test_rng_below(&rng, WORKERS)];

	switch (test_rng_below(&rng, 4)) {
	case 0:
		return n_gone ? gone[test_rng_below(&rng, n_gone < GONE ? n_gone : GONE)] : 0;
	case 1:
		return test_rng(&rng);
	case 2: /* the right place in the table, another serial */
		return b->n_held ? b->held[0].id ^ 1ull << (20 + test_rng_below(&rng, 44)) : 0;
	default:
		return other == b || !other->n_held
			       ? 0
			       : other->held[test_rng_below(&rng, other->n_held)].id;
	}
}

/* Any call with a lease that is not the worker's. */
static void wrong_lease(struct bed *b)
{
	uint64_t lease = foreign_lease(b);
	struct picture before = picture_take();
	struct proto_extend_req x = { .lease = lease };
	struct proto_reserve_req r = { .lease = lease, .n = 1 };
	struct proto_commit_req c = { .lease = lease, .n = 1 };
	struct proto_release_req e = { .lease = lease };
	struct proto_wait_req wait = { .lease = lease, .deadline_us = 1000000 };
	struct proto_match_rep xr;
	struct proto_reserve_rep rr;
	struct proto_commit_rep cr;
	struct proto_release_rep er;
	struct proto_wait_rep wr;
	int status;

	switch (test_rng_below(&rng, 5)) {
	case 0:
		status = world_extend(b->at.c, &x, &xr);
		break;
	case 1:
		status = world_reserve(b->at.c, &r, &rr);
		break;
	case 2:
		status = world_commit(b->at.c, &c, &cr);
		break;
	case 3:
		status = world_wait(b->at.c, &wait, &wr);
		break;
	default:
		status = world_release(b->at.c, &e, &er);
	}
	ck_assert_int_eq(status, PROTO_STATUS_UNKNOWN_LEASE);
	ck_assert_str_eq(b->at.c->error_field, "lease");
	expect_same(before, 1);
}

/* What is reserved, or committed, already cannot be so again. */
static void twice(struct bed *b)
{
	struct picture before;
	struct held *h;
	struct proto_reserve_req r = { .n = 1 };
	struct proto_commit_req c = { 0 };
	struct proto_reserve_rep rr;
	struct proto_commit_rep cr;

	if (b->n_held == 0)
		return;
	h = &b->held[test_rng_below(&rng, b->n_held)];
	r.lease = c.lease = h->id;
	c.n = h->n_reserved + 1;
	before = picture_take();
	ck_assert_int_eq(world_commit(b->at.c, &c, &cr), PROTO_STATUS_WRONG_STATE);
	expect_same(before, 0);
	if (h->n_stored + h->n_reserved < h->n_keys)
		return;
	before = picture_take();
	ck_assert_int_eq(world_reserve(b->at.c, &r, &rr), PROTO_STATUS_WRONG_STATE);
	expect_same(before, 0);
}

/* QUIESCED ends what the asker's own process left behind; in another's name, nothing. */
static void in_anothers_name(struct bed *b)
{
	const struct bed *other = &beds[test_rng_below(&rng, WORKERS)];
	struct proto_quiesced_req m = { .instance = other->at.c->instance,
					.old_boot = b->at.c->h.boot };
	struct picture before = picture_take();
	struct proto_quiesced_rep rep;

	ck_assert_int_eq(world_quiesced(b->at.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_leases, 0);
	ck_assert_uint_eq(rep.n_slots, 0);
	before.counters.errors--; /* it is no error to have nothing */
	expect_same(before, 0);
}

/* The same COMMIT under the same operation id is answered again, and done once. */
static void commit_replayed(struct bed *b)
{
	struct proto_commit_req m = { 0 };
	struct proto_commit_rep first, again;
	struct picture before;
	struct held *h;

	if (b->n_held == 0)
		return;
	h = &b->held[test_rng_below(&rng, b->n_held)];
	if (h->n_reserved == 0)
		return;
	test_rng_fill(&rng, m.op_id.b, sizeof(m.op_id.b));
	m.lease = h->id;
	m.n = 1;
	ck_assert_int_eq(world_commit(b->at.c, &m, &first), PROTO_STATUS_OK);
	h->n_reserved--;
	h->n_stored++;
	before = picture_take();
	ck_assert_int_eq(world_commit(b->at.c, &m, &again), PROTO_STATUS_OK);
	ck_assert_uint_eq(again.n_stored + again.n_duplicate, 1);
	before.counters.errors--;
	before.counters.requests--;
	before.counters.op_replays++;
	expect_same(before, 0);
}

START_TEST(wrong_handles_change_nothing)
{
	struct proto_open_req o = world_open_req("m");
	struct world_config config;
	struct radix_stats st;
	uint32_t wrong = 0;

	rng = (uint64_t)_i + 1;
	world_config_init(&config);
	config.engine.pool_blocks = 40;
	config.seed = rng;
	ck_assert_int_eq(world_init(&w, &config), 0);
	memset(beds, 0, sizeof(beds));
	n_gone = 0;
	for (uint32_t i = 0; i < WORKERS; i++)
		beds[i].at = scene_place(&w, 100 + i, 1000, &o);
	for (uint32_t step = 0; step < 6000; step++) {
		struct bed *b = &beds[test_rng_below(&rng, WORKERS)];

		switch (test_rng_below(&rng, 8)) {
		case 0:
		case 1:
			wrong_lease(b);
			wrong++;
			break;
		case 2:
			twice(b);
			break;
		case 3:
			in_anothers_name(b);
			break;
		case 4:
			commit_replayed(b);
			break;
		default:
			right_call(b);
		}
	}
	ck_assert_uint_eq(world_counters(&w).unknown_lease, wrong);
	ck_assert_uint_gt(world_counters(&w).op_replays, 100);
	ck_assert_uint_gt(world_counters(&w).committed_blocks, 200);
	for (uint32_t i = 0; i < WORKERS; i++)
		world_kill(&w, 100 + i);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 0);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("handles");
	TCase *t = tcase_create("F07");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, wrong_handles_change_nothing, 0, 4);
	suite_add_tcase(s, t);
	return scene_main(s);
}
