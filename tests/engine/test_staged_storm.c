/*
 * test_staged_storm.c - workers that write in desks, at random: copies that end late, in any order
 * and badly, scribbled sources, and workers that end in every state.
 *
 * Each block's bytes are a function of its prompt and its place there, and each READY block that
 * anybody is lent is compared with them: no worker ever says that other bytes are right, so none
 * may be.  The world verifies the engine's invariants after each step.
 */
#include "tests/engine/scene.h"

#include <stdio.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	BT = 4,
	BYTES = 64,
	N_CLIENTS = 6,
	N_LEASES = 4,
	N_PROMPTS = 12,
	LONG = 14
};

struct lease {
	uint64_t id; /* 0: none */
	uint32_t prompt, n_path, n_reserved;
	uint32_t places[LONG];
	uint32_t committing; /* blocks of the COMMIT that is under way; 0: none is */
	bool wrong;          /* something of it was scribbled on */
};

struct client {
	struct scene_place at;
	bool used;
	struct lease leases[N_LEASES];
};

static struct world w;
static struct world_config config;
static struct client clients[N_CLIENTS];
static uint32_t tokens[N_PROMPTS][LONG * BT], pids;
static uint64_t rng;
static uint64_t n_ok, n_refused, n_failed, n_ended, n_read;

static uint32_t below(uint32_t n)
{
	return (uint32_t)test_rng_below(&rng, n);
}

/* Prompts share beginnings: what a block holds is told by its last token. */
static void bytes_of(uint32_t prompt, uint32_t i, uint8_t ret[BYTES])
{
	memset(ret, (int)(tokens[prompt][i * BT + BT - 1] * 7 + 1), BYTES);
}

static void check_runs(const struct lease *l, struct proto_span runs, uint32_t from)
{
	uint8_t got[BYTES], want[BYTES];

	for (uint32_t r = 0; r < runs.n; r++)
		for (uint32_t k = 0; k < proto_run_at(runs, r).len; k++, from++, n_read++) {
			world_read(&w, 0, proto_run_at(runs, r).start + k, got, BYTES);
			bytes_of(l->prompt, from, want);
			ck_assert_mem_eq(got, want, BYTES);
		}
}

static void connect(struct client *c)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_hello_rep hello;
	struct proto_hello_req h;

	memset(c, 0, sizeof(*c));
	c->at.c = world_connect(&w, 1000 + pids++, 1000, false);
	h = world_hello_req(c->at.c);
	h.flags = below(2) ? PROTO_HELLO_COPIES : 0;
	ck_assert_int_eq(world_hello(c->at.c, &h, &hello), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(c->at.c, &o, &c->at.ns), PROTO_STATUS_OK);
	c->used = true;
}

static void over(struct lease *l)
{
	n_ended += l->committing > 0;
	memset(l, 0, sizeof(*l));
}

/* Taken back by the daemon: whoever is told is done with it. */
static bool revoked(struct lease *l, int status)
{
	if (status != PROTO_STATUS_REVOKED && status != PROTO_STATUS_UNKNOWN_LEASE)
		return false;
	over(l);
	return true;
}

static void do_match(struct client *c, struct lease *l)
{
	struct scene_prompt x;
	struct proto_match_rep m;

	memset(l, 0, sizeof(*l));
	l->prompt = below(N_PROMPTS);
	x = scene_tokens(&c->at, tokens[l->prompt], (1 + below(LONG)) * BT);
	scene_match(&c->at, &x, &m);
	l->id = m.lease;
	l->n_path = m.n_device;
	check_runs(l, m.runs, 0);
}

static void do_reserve(struct client *c, struct lease *l)
{
	struct proto_reserve_req r = { .lease = l->id, .n = 1 + below(LONG) };
	struct proto_reserve_rep rep;
	int status = world_reserve(c->at.c, &r, &rep);

	if (revoked(l, status) || status == PROTO_STATUS_BUSY || status == PROTO_STATUS_WRONG_STATE)
		return;
	ck_assert_int_eq(status, PROTO_STATUS_OK);
	for (uint32_t i = 0; i < rep.runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(rep.runs, i).len; k++)
			l->places[l->n_reserved++] = proto_run_at(rep.runs, i).start + k;
}

static void write_block(struct client *c, const struct lease *l, uint32_t i)
{
	uint8_t block[BYTES];

	bytes_of(l->prompt, l->n_path + i, block);
	world_desk_write(c->at.c, l->places[i], block, BYTES);
}

static void committed(struct lease *l, int status, const struct proto_commit_rep *rep)
{
	uint32_t n = l->committing;
	bool wrong = l->wrong;

	l->committing = 0;
	l->wrong = false;
	n_ok += status == PROTO_STATUS_OK;
	n_refused += status == PROTO_STATUS_BAD_BODY;
	n_failed += status == PROTO_STATUS_BUSY;
	if (status != PROTO_STATUS_OK) {
		ck_assert(status == PROTO_STATUS_BUSY ||
			  (status == PROTO_STATUS_BAD_BODY && wrong));
		return;
	}
	ck_assert_uint_eq(rep->n_stored + rep->n_duplicate, n);
	check_runs(l, rep->runs, l->n_path);
	l->n_path += n;
	l->n_reserved -= n;
	memmove(l->places, l->places + n, l->n_reserved * sizeof(l->places[0]));
}

static void do_commit(struct client *c, struct lease *l)
{
	uint8_t sums[LONG][16], block[BYTES];
	struct proto_commit_req m = { .lease = l->id, .checksum_kind = PROTO_CHECKSUM_XXH3_128 };
	struct proto_commit_rep rep;
	int status;

	m.n = 1 + below(l->n_reserved);
	for (uint32_t i = 0; i < m.n; i++) {
		XXH128_canonical_t sum;

		write_block(c, l, i);
		bytes_of(l->prompt, l->n_path + i, block);
		XXH128_canonicalFromHash(&sum, XXH3_128bits(block, BYTES));
		memcpy(sums[i], sum.digest, 16);
	}
	m.checksums = (struct proto_span){ sums, m.n * 16 };
	l->committing = m.n;
	status = world_commit(c->at.c, &m, &rep);
	if (status == -EINPROGRESS)
		return;
	l->committing = 0;
	ck_assert(revoked(l, status));
}

static void do_release(struct client *c, struct lease *l)
{
	struct proto_release_req m = { .lease = l->id };
	struct proto_commit_rep none;
	struct proto_release_rep rep;
	int status = world_release(c->at.c, &m, &rep);
	bool waited = l->committing > 0;

	ck_assert(status == PROTO_STATUS_OK || status == PROTO_STATUS_REVOKED ||
		  status == PROTO_STATUS_UNKNOWN_LEASE);
	if (waited && status == PROTO_STATUS_OK)
		ck_assert_int_eq(world_commit_reply(c->at.c, &none), PROTO_STATUS_UNKNOWN_LEASE);
	over(l);
}

/* At most one COMMIT of a client is under way, so that its reply is known. */
static struct lease *committing(struct client *c)
{
	for (uint32_t i = 0; i < N_LEASES; i++)
		if (c->leases[i].committing)
			return &c->leases[i];
	return NULL;
}

static void take_replies(void)
{
	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		struct client *c = &clients[i];
		struct lease *l = c->used ? committing(c) : NULL;
		struct proto_commit_rep rep;
		int status;

		if (!l)
			continue;
		status = world_commit_reply(c->at.c, &rep);
		if (status == -EINPROGRESS || revoked(l, status))
			continue;
		committed(l, status, &rep);
	}
}

static void do_answer(void)
{
	if (w.desks.n_takes == 0)
		return;
	world_take_answer(&w, below(w.desks.n_takes),
			  below(12) ? PREFIXD_MOVE_OK : PREFIXD_MOVE_FAILED);
}

static void do_scribble(struct client *c, struct lease *l)
{
	uint8_t junk[BYTES];

	memset(junk, 0xff, sizeof(junk));
	l->wrong = true;
	world_desk_write(c->at.c, l->places[below(l->committing)], junk, BYTES);
}

static void do_end(struct client *c)
{
	struct proto_quiesced_req q = { 0 };
	struct proto_quiesced_rep rep;

	switch (below(4)) {
	case 0:
		world_eof(c->at.c);
		break;
	case 1:
		q.instance = c->at.c->instance;
		ck_assert_int_eq(world_quiesced(c->at.c, &q, &rep), PROTO_STATUS_OK);
		return;
	default:
		world_kill(&w, c->at.c->peer.pid);
		break;
	}
	for (uint32_t i = 0; i < N_LEASES; i++)
		over(&c->leases[i]);
	c->used = false;
}

static void one(void)
{
	struct client *c = &clients[below(N_CLIENTS)];
	struct lease *l = &c->leases[below(N_LEASES)];

	if (!c->used) {
		connect(c);
	} else if (below(100) == 0) {
		do_end(c);
	} else if (below(3) == 0) {
		do_answer();
	} else if (below(60) == 0) {
		world_advance(&w, 400000);
	} else if (!l->id) {
		do_match(c, l);
	} else if (l->committing) {
		if (below(6) == 0)
			do_release(c, l);
		else if (below(3) == 0)
			do_scribble(c, l);
	} else if (below(12) == 0) {
		do_release(c, l);
	} else if (l->n_reserved && !committing(c)) {
		do_commit(c, l);
	} else if (!l->n_reserved) {
		do_reserve(c, l);
	}
	take_replies();
}

static void storm(uint64_t seed, uint32_t n)
{
	struct radix_stats st;

	rng = seed;
	pids = 0;
	memset(clients, 0, sizeof(clients));
	world_config_init(&config);
	config.seed = seed;
	config.engine.staged = true;
	config.engine.pool_blocks = 24 + below(40);
	config.engine.write_blocks = 4 + below(16);
	config.engine.grace_ns = below(2) * 1000000;
	config.engine.limits.lease_max_age_ns = below(2) * 3000000;
	config.hold_takes = true;
	for (uint32_t p = 0; p < N_PROMPTS; p++)
		for (uint32_t i = 0; i < LONG * BT; i++)
			tokens[p][i] = i < (p % 4) * 3 * BT ? 1000 * (p % 4) + i : 10000 * p + i;
	ck_assert_int_eq(world_init(&w, &config), 0);
	for (uint32_t i = 0; i < n; i++)
		one();
	for (uint32_t i = 0; i < N_CLIENTS; i++)
		if (clients[i].used)
			world_kill(&w, clients[i].at.c->peer.pid);
	for (uint32_t i = 0; i < pids; i++)
		world_kill(&w, 1000 + i); /* those whose sockets ended first */
	while (w.desks.n_takes)
		world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	world_advance(&w, 10000000);
	ck_assert_uint_eq(w.desks.n, 0);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], st.n_slots);
	world_deinit(&w);
}

START_TEST(storms)
{
	n_ok = n_refused = n_failed = n_ended = n_read = 0;
	for (uint64_t seed = 1; seed <= 24; seed++)
		storm(seed * 7919 + (uint64_t)_i, 1500);
	fprintf(stderr,
		"%llu commits, %llu with wrong bytes refused, %llu failed, %llu ended while "
		"copying; %llu blocks read and right\n",
		(unsigned long long)n_ok, (unsigned long long)n_refused,
		(unsigned long long)n_failed, (unsigned long long)n_ended,
		(unsigned long long)n_read);
	ck_assert_uint_gt(n_ok, 500);
	ck_assert_uint_gt(n_refused, 50);
	ck_assert_uint_gt(n_failed, 50);
	ck_assert_uint_gt(n_ended, 50);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("staged storm");
	TCase *t = tcase_create("storm");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, storms, 0, 4);
	suite_add_tcase(s, t);
	return scene_main(s);
}
