/*
 * test_staged_writes.c - workers that write in memory of their own (desks): what COMMIT copies, in
 * whatever order and however it ends; who dies meanwhile; what is given back, and when.
 */
#include "tests/engine/scene.h"

#include <stdio.h>

#include "daemon/engine_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	BT = 4,
	BYTES = 64,
	N = 4, /* blocks of a COMMIT */
	LONG = 40
};

static struct world w;
static struct world_config config;
static uint32_t tokens[3][LONG * BT];

static void setup(void)
{
	world_config_init(&config);
	config.engine.pool_blocks = 32;
	config.engine.staged = true;
	config.engine.write_blocks = 8;
	for (uint32_t p = 0; p < radix_array_size(tokens); p++)
		for (uint32_t i = 0; i < LONG * BT; i++)
			tokens[p][i] = 1000 * p + i;
}

static void begin(void)
{
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static struct scene_place place(uint32_t pid)
{
	struct proto_open_req o = world_open_req("m");

	return scene_place(&w, pid, 1000, &o);
}

static uint32_t slots(enum radix_slot_state state)
{
	struct radix_stats st;

	world_stats(&w, 0, &st);
	return (uint32_t)st.slots[state];
}

/* A lease of `n` missing blocks of prompt p, with `reserve` of them reserved. */
struct writer {
	struct scene_place at;
	uint64_t lease;
	uint32_t places[LONG];
	uint32_t n;
};

static void fill(uint8_t block[BYTES], uint32_t p, uint32_t i)
{
	memset(block, (int)(16 * p + i + 1), BYTES);
}

static void sum_of(uint32_t p, uint32_t i, uint8_t ret[16])
{
	XXH128_canonical_t sum;
	uint8_t block[BYTES];

	fill(block, p, i);
	XXH128_canonicalFromHash(&sum, XXH3_128bits(block, BYTES));
	memcpy(ret, sum.digest, 16);
}

static int reserve(struct writer *v, uint32_t n)
{
	struct proto_reserve_req r = { .lease = v->lease, .n = n };
	struct proto_reserve_rep rep;
	int status = world_reserve(v->at.c, &r, &rep);

	v->n = 0;
	for (uint32_t i = 0; status == 0 && i < rep.runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(rep.runs, i).len; k++)
			v->places[v->n++] = proto_run_at(rep.runs, i).start + k;
	ck_assert(status || v->n == rep.n);
	return status;
}

static void match(struct writer *v, uint32_t p, uint32_t n)
{
	struct scene_prompt x = scene_tokens(&v->at, tokens[p], n * BT);
	struct proto_match_rep m;

	scene_match(&v->at, &x, &m);
	v->lease = m.lease;
}

static void write_all(const struct writer *v, uint32_t p, uint32_t from)
{
	uint8_t block[BYTES];

	for (uint32_t i = 0; i < v->n; i++) {
		fill(block, p, from + i);
		world_desk_write(v->at.c, v->places[i], block, BYTES);
	}
}

/* Matched, reserved and written, by a process of its own. */
static struct writer writer(uint32_t pid, uint32_t p, uint32_t n)
{
	struct writer v = { .at = place(pid) };

	match(&v, p, n);
	ck_assert_int_eq(reserve(&v, n), PROTO_STATUS_OK);
	ck_assert_uint_eq(v.n, n);
	write_all(&v, p, 0);
	return v;
}

static int commit(const struct writer *v, uint32_t n, const uint8_t *sums,
		  struct proto_commit_rep *ret)
{
	struct proto_commit_req c = { .lease = v->lease, .n = n };
	struct proto_commit_rep rep;

	if (sums) {
		c.checksum_kind = PROTO_CHECKSUM_XXH3_128;
		c.checksums = (struct proto_span){ sums, 16 * n };
	}
	return world_commit(v->at.c, &c, ret ? ret : &rep);
}

static const struct prefixd_lease *lease_of(uint64_t id)
{
	return w.engine->leases[id & ((1u << PREFIXD_LEASE_IDX_BITS) - 1)];
}

/* Another worker finds n blocks of prompt p, and what was written. */
static void check_found(uint32_t p, uint32_t n)
{
	struct scene_place at = place(500);
	struct scene_prompt x = scene_tokens(&at, tokens[p], LONG * BT);
	struct proto_match_rep m;
	uint8_t block[BYTES], want[BYTES];
	uint32_t i = 0;

	scene_match(&at, &x, &m);
	ck_assert_uint_eq(m.n_device, n);
	for (uint32_t r = 0; r < m.runs.n; r++)
		for (uint32_t k = 0; k < proto_run_at(m.runs, r).len; k++, i++) {
			world_read(&w, 0, proto_run_at(m.runs, r).start + k, block, BYTES);
			fill(want, p, i);
			ck_assert_mem_eq(block, want, BYTES);
		}
	scene_release(&at, m.lease, NULL);
	world_kill(&w, 500);
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

START_TEST(open_brings_a_desk)
{
	struct proto_open_req o = world_open_req("m"), other = world_open_req("n");
	struct scene_place a, b;
	struct proto_open_rep rep;

	begin();
	a = place(100);
	ck_assert_uint_eq(a.ns.n_write, 8);
	ck_assert_uint_eq(a.ns.write_len, 8 * BYTES);
	ck_assert(a.ns.flags & PROTO_OPENED_READ_ONLY);
	ck_assert(a.c->with_fds && a.c->read_only && a.c->with_desk);
	ck_assert_uint_eq(w.desks.n, 1);
	/* One for each group of a session, not for each namespace. */
	ck_assert_int_eq(world_open(a.c, &other, &rep), PROTO_STATUS_OK);
	ck_assert(a.c->with_desk && rep.n_write == 8);
	ck_assert_uint_eq(w.desks.n, 1);
	b = place(101);
	ck_assert_uint_ne(b.c->desk, a.c->desk);
	ck_assert_uint_eq(w.desks.n, 2);
	o.block_bytes *= 2;
	o.layers *= 2;
	ck_assert_int_eq(world_open(a.c, &o, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(w.desks.n, 3);
	world_kill(&w, 100);
	ck_assert_uint_eq(w.desks.n, 1);
	world_eof(b.c);
	ck_assert_uint_eq(w.desks.n, 0);
	world_deinit(&w);
}
END_TEST

/* It waits for its desk as it waits for the pool; who leaves meanwhile leaves nothing. */
START_TEST(open_waits)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;
	struct world_client *c[3];

	config.hold_pools = config.hold_desks = true;
	begin();
	for (uint32_t i = 0; i < 3; i++) {
		c[i] = world_worker(&w, 100 + i, 1000);
		ck_assert_int_eq(world_open(c[i], &o, &rep), -EINPROGRESS);
	}
	ck_assert_uint_eq(w.desks.n_wanted, 0);
	world_pool_answer(&w, true);
	ck_assert_uint_eq(w.desks.n_wanted, 3);
	world_desk_answer(&w, false);
	ck_assert_int_eq(world_open_reply(c[0], &rep), PROTO_STATUS_NO_MEMORY);
	world_gone(c[1]);
	ck_assert_uint_eq(w.desks.n, 2); /* its memory is being made */
	world_desk_answer(&w, true);
	ck_assert_uint_eq(w.desks.n, 1);
	world_desk_answer(&w, true);
	ck_assert_int_eq(world_open_reply(c[2], &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_write, 8);
	/* The refused one is as it was. */
	ck_assert_int_eq(world_open(c[0], &o, &rep), -EINPROGRESS);
	ck_assert_int_eq(world_open(c[0], &o, &rep), -EINPROGRESS);
	world_desk_answer(&w, true);
	ck_assert_uint_eq(c[0]->h.status, PROTO_STATUS_OK);
	ck_assert_uint_eq(w.desks.n, 2);
	world_deinit(&w);
}
END_TEST

/* All desks together have a limit; who leaves makes room. */
START_TEST(budget)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_open_rep rep;
	struct world_client *c;
	struct scene_place a;

	config.engine.write_bytes = 8 * BYTES + 1;
	begin();
	a = place(100);
	c = world_worker(&w, 101, 1000);
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_NO_BUDGET);
	ck_assert_ptr_nonnull(strstr(c->error_text, "write-bytes"));
	world_kill(&w, a.c->peer.pid);
	ck_assert_int_eq(world_open(c, &o, &rep), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* Who speaks a version without desks may read. */
START_TEST(version_2_reads)
{
	struct writer v;
	struct proto_hello_req h;
	struct proto_hello_rep hello;
	struct scene_place old = { 0 };
	struct proto_open_req o = world_open_req("m");
	struct scene_prompt x;
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = 1 };
	struct proto_reserve_rep rep;
	uint8_t body[4096];
	struct proto_writer wr = { .p = body, .cap = sizeof(body) };
	const char *bad;

	begin();
	v = writer(100, 0, N);
	ck_assert_int_eq(commit(&v, N, NULL, NULL), PROTO_STATUS_OK);
	old.c = world_connect(&w, 101, 1000, false);
	h = world_hello_req(old.c);
	h.version_max = 2;
	ck_assert_int_eq(world_hello(old.c, &h, &hello), PROTO_STATUS_OK);
	proto_open_req_encode_as(&wr, 2, &o);
	ck_assert_int_eq(world_raw(old.c, PROTO_OP_OPEN, body, (uint32_t)wr.len), PROTO_STATUS_OK);
	ck_assert_int_eq(proto_open_rep_decode_as(2, old.c->body, old.c->h.len, &old.ns, &bad), 0);
	ck_assert(old.ns.flags & PROTO_OPENED_READ_ONLY);
	ck_assert(old.c->read_only && !old.c->with_desk);
	x = scene_tokens(&old, tokens[0], LONG * BT);
	scene_match(&old, &x, &m);
	ck_assert_uint_eq(m.n_device, N);
	r.lease = m.lease;
	ck_assert_int_eq(world_reserve(old.c, &r, &rep), PROTO_STATUS_UNSUPPORTED);
	world_deinit(&w);
}
END_TEST

/* ---- COMMIT ---------------------------------------------------------------------------------- */

/* The _i-th order in which N copies may end; and what is refused until the last one has. */
START_TEST(copies_end_in_any_order)
{
	uint32_t pick = (uint32_t)_i, n = N;
	struct proto_commit_rep rep;
	struct proto_extend_req x = { 0 };
	struct proto_reserve_req r = { .n = 1 };
	struct proto_match_rep m;
	struct proto_reserve_rep res;
	struct writer v;

	config.hold_takes = true;
	begin();
	v.at = place(100);
	match(&v, 0, N + 2);
	ck_assert_int_eq(reserve(&v, N), PROTO_STATUS_OK);
	write_all(&v, 0, 0);
	ck_assert_int_eq(commit(&v, N, NULL, NULL), -EINPROGRESS);
	x.lease = r.lease = v.lease;
	while (n) {
		check_found(0, 0);
		ck_assert_int_eq(world_extend(v.at.c, &x, &m), PROTO_STATUS_WRONG_STATE);
		ck_assert_int_eq(world_reserve(v.at.c, &r, &res), PROTO_STATUS_WRONG_STATE);
		ck_assert_int_eq(commit(&v, 1, NULL, NULL), PROTO_STATUS_WRONG_STATE);
		ck_assert_uint_eq(slots(RADIX_SLOT_RESERVED), N);
		world_take_answer(&w, pick % n, PREFIXD_MOVE_OK);
		pick /= n--;
	}
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_stored, N);
	check_found(0, N);
	ck_assert_uint_eq(world_counters(&w).taken_blocks, N);
	ck_assert_int_eq(world_reserve(v.at.c, &r, &res), PROTO_STATUS_OK);
	world_deinit(&w);
}
END_TEST

/* The places of what was committed are free again, and only those. */
START_TEST(more_blocks_than_places)
{
	struct writer a = { 0 }, b = { 0 };

	begin();
	a.at = b.at = place(100);
	match(&a, 0, 20);
	match(&b, 1, 20);
	ck_assert_int_eq(reserve(&a, 20), PROTO_STATUS_OK);
	ck_assert_uint_eq(a.n, 8);
	ck_assert_int_eq(reserve(&b, 20), PROTO_STATUS_BUSY);
	write_all(&a, 0, 0);
	ck_assert_int_eq(commit(&a, 5, NULL, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(reserve(&b, 20), PROTO_STATUS_OK);
	ck_assert_uint_eq(b.n, 5);
	write_all(&b, 1, 0);
	ck_assert_int_eq(commit(&a, 3, NULL, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(commit(&b, 5, NULL, NULL), PROTO_STATUS_OK);
	scene_release(&a.at, a.lease, NULL);
	scene_release(&b.at, b.lease, NULL);
	check_found(0, 8);
	check_found(1, 5);
	world_deinit(&w);
}
END_TEST

/* That a desk is full is no want of room: who is asked later still waits for the leader. */
START_TEST(a_full_desk_is_no_want_of_room)
{
	struct writer a = { 0 };
	struct scene_place b;
	struct scene_prompt x;
	struct proto_match_rep m;

	begin();
	a.at = place(100);
	b = place(101);
	x = scene_tokens(&a.at, tokens[0], 20 * BT);
	scene_match_with(&a.at, &x, PROTO_MATCH_LEAD, 0, &m);
	a.lease = m.lease;
	ck_assert_int_eq(reserve(&a, 20), PROTO_STATUS_OK);
	ck_assert_uint_eq(a.n, 8);
	scene_match(&b, &x, &m);
	ck_assert_uint_eq(m.n_pending, 20); /* those too that it will reserve later */
	scene_release(&b, m.lease, NULL);
	scene_release(&a.at, a.lease, NULL);
	ck_assert_uint_eq(world_counters(&w).miss_no_room, 0);
	world_deinit(&w);
}
END_TEST

/* Who was second has nothing to read in a slot that he never wrote: it is free at once. */
START_TEST(duplicates)
{
	struct proto_commit_rep rep;
	struct writer a, b;

	begin();
	a = writer(100, 0, N);
	b = writer(101, 0, N);
	ck_assert_int_eq(commit(&a, N, NULL, NULL), PROTO_STATUS_OK);
	ck_assert_int_eq(commit(&b, N, NULL, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_duplicate, N);
	ck_assert_uint_eq(slots(RADIX_SLOT_OWN), 0);
	ck_assert_uint_eq(slots(RADIX_SLOT_FREE), 32 - N);
	world_deinit(&w);
}
END_TEST

/* Whatever block is wrong: nothing is READY, and the same reservation may be committed again. */
START_TEST(wrong_checksum)
{
	uint8_t sums[N][16];
	struct writer v;

	begin();
	v = writer(100, 0, N);
	for (uint32_t i = 0; i < N; i++)
		sum_of(0, i, sums[i]);
	sums[_i][7] ^= 1;
	ck_assert_int_eq(commit(&v, N, sums[0], NULL), PROTO_STATUS_BAD_BODY);
	ck_assert_str_eq(v.at.c->error_field, "checksums");
	check_found(0, 0);
	ck_assert_uint_eq(slots(RADIX_SLOT_RESERVED), N);
	ck_assert_uint_eq(world_counters(&w).take_corrupt, 1);
	sums[_i][7] ^= 1;
	ck_assert_int_eq(commit(&v, N, sums[0], NULL), PROTO_STATUS_OK);
	check_found(0, N);
	world_deinit(&w);
}
END_TEST

START_TEST(copy_failed)
{
	struct proto_commit_rep rep;
	struct writer v;

	config.hold_takes = true;
	begin();
	v = writer(100, 0, N);
	ck_assert_int_eq(commit(&v, N, NULL, NULL), -EINPROGRESS);
	for (int i = 0; i < N; i++)
		world_take_answer(&w, 0, i == _i ? PREFIXD_MOVE_FAILED : PREFIXD_MOVE_OK);
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_BUSY);
	ck_assert_uint_gt(v.at.c->retry_after_us, 0);
	check_found(0, 0);
	ck_assert_uint_eq(world_counters(&w).take_failed, 1);
	ck_assert_int_eq(commit(&v, N, NULL, NULL), -EINPROGRESS);
	for (int i = 0; i < N; i++)
		world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_OK);
	check_found(0, N);
	world_deinit(&w);
}
END_TEST

/* What the worker writes after COMMIT its checksum catches; without one, what arrived counts. */
START_TEST(scribbled_meanwhile)
{
	uint8_t junk[BYTES], sum[16], stored[16], kind;
	struct radix_member member;
	struct proto_commit_rep rep;
	const struct prefixd_lease *l;
	XXH128_canonical_t junk_sum;
	struct writer v;

	config.hold_takes = true;
	begin();
	v = writer(100, 0, 1);
	memset(junk, 0xee, sizeof(junk));
	XXH128_canonicalFromHash(&junk_sum, XXH3_128bits(junk, BYTES));
	sum_of(0, 0, sum);
	ck_assert_int_eq(commit(&v, 1, sum, NULL), -EINPROGRESS);
	world_desk_write(v.at.c, v.places[0], junk, BYTES);
	world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_BAD_BODY);
	check_found(0, 0);
	ck_assert_int_eq(commit(&v, 1, NULL, NULL), -EINPROGRESS);
	world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_OK);
	l = lease_of(v.lease);
	ck_assert_uint_eq(radix_path_members(l->group->index, &l->pin.at, 1, &member), 1);
	ck_assert_int_eq(radix_member_checksum(l->group->index, member, &kind, stored), 0);
	ck_assert_uint_eq(kind, PROTO_CHECKSUM_XXH3_128);
	ck_assert_mem_eq(stored, junk_sum.digest, 16);
	world_deinit(&w);
}
END_TEST

/* The same request again is the same answer, and copies nothing. */
START_TEST(replayed)
{
	struct proto_commit_req c = { .n = N, .op_id = { { 9 } } };
	struct proto_commit_rep rep;
	struct writer v;

	begin();
	v = writer(100, 0, N);
	c.lease = v.lease;
	ck_assert_int_eq(world_commit(v.at.c, &c, &rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_again(v.at.c), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).taken_blocks, N);
	ck_assert_uint_eq(world_counters(&w).op_replays, 1);
	world_deinit(&w);
}
END_TEST

/* ---- the end --------------------------------------------------------------------------------- */

enum {
	KILLED,
	SOCKET_ONLY,
	RELEASED,
	N_ENDS
};

/*
 * The worker ends while _i % (N + 1) of its copies have ended.  The slots of the others are kept
 * until theirs have; all else is free at once, though the device has a grace: it wrote nothing.
 */
START_TEST(ended_while_copying)
{
	uint32_t ended = (uint32_t)_i % (N + 1), how = (uint32_t)_i / (N + 1);
	struct proto_release_req rel = { 0 };
	struct proto_release_rep end;
	struct writer v, other;

	if (ended == N)
		return; /* then nothing is being copied */
	config.hold_takes = true;
	config.engine.grace_ns = 1000000000;
	begin();
	v = writer(100, 0, N);
	other = v;
	match(&other, 1, 3);
	ck_assert_int_eq(reserve(&other, 3), PROTO_STATUS_OK); /* and is not committing */
	ck_assert_int_eq(commit(&v, N, NULL, NULL), -EINPROGRESS);
	for (uint32_t i = 0; i < ended; i++)
		world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	rel.lease = v.lease;
	if (how == KILLED)
		world_kill(&w, 100);
	else if (how == SOCKET_ONLY)
		world_eof(v.at.c);
	else
		ck_assert_int_eq(world_release(v.at.c, &rel, &end), PROTO_STATUS_OK);
	ck_assert_uint_eq(slots(RADIX_SLOT_QUARANTINED), N - ended);
	ck_assert_uint_eq(slots(RADIX_SLOT_RESERVED), how == RELEASED ? 3 : 0);
	ck_assert_uint_eq(w.desks.n, 1);
	while (w.desks.n_takes) {
		ck_assert_uint_eq(slots(RADIX_SLOT_QUARANTINED), w.desks.n_takes);
		world_take_answer(&w, w.desks.n_takes - 1,
				  _i % 2 ? PREFIXD_MOVE_OK : PREFIXD_MOVE_FAILED);
	}
	ck_assert_uint_eq(slots(RADIX_SLOT_FREE), 32 - (how == RELEASED ? 3u : 0u));
	ck_assert_uint_eq(w.desks.n, how == RELEASED);
	if (how == RELEASED) { /* its places too */
		match(&v, 0, 8);
		ck_assert_int_eq(reserve(&v, 8), PROTO_STATUS_OK);
		ck_assert_uint_eq(v.n, 5);
	}
	world_deinit(&w);
}
END_TEST

/* RELEASE answers the COMMIT too, before itself. */
START_TEST(release_ends_the_commit)
{
	struct proto_commit_rep rep;
	struct proto_release_req rel = { 0 };
	struct proto_release_rep end;
	struct writer v;

	config.hold_takes = true;
	begin();
	v = writer(100, 0, N);
	ck_assert_int_eq(commit(&v, N, NULL, NULL), -EINPROGRESS);
	rel.lease = v.lease;
	ck_assert_int_eq(world_release(v.at.c, &rel, &end), PROTO_STATUS_OK);
	ck_assert_uint_eq(end.miss_tokens, N * BT);
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_UNKNOWN_LEASE);
	while (w.desks.n_takes)
		world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	check_found(0, 0);
	world_deinit(&w);
}
END_TEST

/* Taken back for its age: the slots are free at once, the places when its worker is done. */
START_TEST(revoked)
{
	struct proto_quiesced_req q = { 0 };
	struct proto_commit_rep done;
	struct proto_quiesced_rep rep;
	struct proto_hello_req h;
	struct proto_hello_rep hello;
	struct proto_open_req o = world_open_req("m");
	struct writer v = { 0 };

	config.engine.limits.lease_max_age_ns = 1000000;
	config.hold_takes = true;
	begin();
	v.at.c = world_connect(&w, 100, 1000, false);
	h = world_hello_req(v.at.c);
	h.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(v.at.c, &h, &hello), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(v.at.c, &o, &v.at.ns), PROTO_STATUS_OK);
	match(&v, 0, 6);
	ck_assert_int_eq(reserve(&v, 6), PROTO_STATUS_OK);
	if (_i) {
		ck_assert_int_eq(commit(&v, 2, NULL, NULL), -EINPROGRESS);
	}
	world_advance(&w, 2000000);
	ck_assert_uint_eq(slots(RADIX_SLOT_QUARANTINED), w.desks.n_takes);
	while (w.desks.n_takes)
		world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	ck_assert_uint_eq(slots(RADIX_SLOT_FREE), 32);
	if (_i)
		ck_assert_int_eq(world_commit_reply(v.at.c, &done), PROTO_STATUS_REVOKED);
	else
		ck_assert_int_eq(commit(&v, 1, NULL, NULL), PROTO_STATUS_REVOKED);
	match(&v, 0, 6);
	ck_assert_int_eq(reserve(&v, 6), PROTO_STATUS_OK);
	ck_assert_uint_eq(v.n, 2); /* it may still write in the six */
	q.instance = v.at.c->instance;
	ck_assert_int_eq(world_quiesced(v.at.c, &q, &rep), PROTO_STATUS_OK);
	scene_release(&v.at, v.lease, NULL);
	match(&v, 0, 8);
	ck_assert_int_eq(reserve(&v, 8), PROTO_STATUS_OK);
	ck_assert_uint_eq(v.n, 8);
	world_deinit(&w);
}
END_TEST

/* Reservations do not outlive the daemon.  _i: those of direct writers do. */
START_TEST(restart)
{
	struct writer v;

	config.keep = true;
	config.engine.staged = !_i;
	begin();
	v.at = place(100);
	match(&v, 0, 6);
	ck_assert_int_eq(reserve(&v, 6), PROTO_STATUS_OK);
	if (!_i)
		write_all(&v, 0, 0);
	ck_assert_int_eq(commit(&v, 2, NULL, NULL), PROTO_STATUS_OK);
	world_life_kill(&w);
	ck_assert_int_eq(world_life_restart(&w), 0);
	ck_assert_uint_eq(slots(RADIX_SLOT_READY), 2);
	ck_assert_uint_eq(slots(RADIX_SLOT_FREE), _i ? 26 : 30);
	if (!_i)
		check_found(0, 2);
	world_kill(&w, 100);
	world_deinit(&w);
}
END_TEST

/* The device is lost while _i of the copies have ended: desks go with it, behind the last copy. */
START_TEST(lost_while_copying)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_POOL_LOST };
	struct proto_commit_rep rep;
	struct writer v;

	config.hold_takes = true;
	begin();
	v = writer(100, 0, N);
	ck_assert_int_eq(commit(&v, N, NULL, NULL), -EINPROGRESS);
	for (int i = 0; i < _i; i++)
		world_take_answer(&w, 0, PREFIXD_MOVE_OK);
	w.config.hold_pools = true;
	world_step(&w, &event);
	ck_assert_int_eq(world_commit_reply(v.at.c, &rep), PROTO_STATUS_DEVICE_LOST);
	ck_assert_uint_eq(w.desks.n, 1);
	ck_assert_uint_eq(w.n_wanted, 0);
	while (w.desks.n_takes)
		world_take_answer(&w, 0, PREFIXD_MOVE_FAILED);
	ck_assert_uint_eq(w.desks.n, 0);
	ck_assert_uint_eq(w.n_wanted, 1); /* memory anew */
	ck_assert_uint_eq(slots(RADIX_SLOT_FREE), 32);
	world_deinit(&w);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* A call once more after NO_MEMORY, with the result of an undisturbed run. */
#define DO(call)                                                                   \
	do {                                                                       \
		int status_ = (call);                                              \
		if (status_ == PROTO_STATUS_NO_MEMORY) {                           \
			ck_assert_uint_eq(w.heap.n_failed, 1);                     \
			status_ = (call);                                          \
		}                                                                  \
		ck_assert_msg(status_ == PROTO_STATUS_OK, "line %d: %s", __LINE__, \
			      proto_status_to_string((uint16_t)status_));          \
	} while (0)

/* COMMIT may stop in the middle for want of memory; the rest is committed by the second call. */
static void commit_rest(const struct writer *v, const uint8_t *sums)
{
	int status = commit(v, v->n, sums, NULL);
	uint32_t left = lease_of(v->lease)->n_reserved;

	if (status == PROTO_STATUS_NO_MEMORY) {
		ck_assert_uint_eq(w.heap.n_failed, 1);
		ck_assert_uint_gt(left, 0);
		status = commit(v, left, sums + (size_t)16 * (v->n - left), NULL);
	}
	ck_assert_int_eq(status, PROTO_STATUS_OK);
	ck_assert_uint_eq(lease_of(v->lease)->n_reserved, 0);
}

static void script(void)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_hello_rep hello;
	struct proto_hello_req h;
	struct writer v = { 0 };
	uint8_t sums[8][16];

	v.at.c = world_connect(&w, 100, 1000, false);
	if (!v.at.c->used)
		v.at.c = world_connect(&w, 100, 1000, false);
	h = world_hello_req(v.at.c);
	DO(world_hello(v.at.c, &h, &hello));
	DO(world_open(v.at.c, &o, &v.at.ns));
	for (uint32_t p = 0; p < 2; p++) {
		struct scene_prompt x = scene_tokens(&v.at, tokens[p], LONG * BT);
		struct proto_match_req m = { .has = PROTO_HAS_ALL,
					     .ns = v.at.ns.ns,
					     .n_tokens = (uint64_t)LONG * BT,
					     .keys = { x.keys, LONG * BT * 4 } };
		struct proto_release_req rel = { 0 };
		struct proto_release_rep end;
		struct proto_match_rep rep;

		DO(world_match(v.at.c, &m, &rep));
		v.lease = rel.lease = rep.lease;
		for (uint32_t at = 0; at < 12; at += v.n) {
			DO(reserve(&v, 12 - at));
			write_all(&v, p, at);
			for (uint32_t i = 0; i < v.n; i++)
				sum_of(p, at + i, sums[i]);
			commit_rest(&v, sums[0]);
		}
		DO(world_release(v.at.c, &rel, &end));
	}
	world_kill(&w, 100);
	ck_assert_uint_eq(w.desks.n, 0);
}

START_TEST(every_allocation_fails)
{
	uint64_t n = 1;

	for (;; n++) {
		ck_assert_int_eq(world_init(&w, &config), 0);
		test_heap_fail_at(&w.heap, n);
		script();
		if (w.heap.n_failed == 0)
			break;
		test_heap_fail_at(&w.heap, 0);
		check_found(0, 12);
		check_found(1, 12);
		world_deinit(&w);
	}
	world_deinit(&w);
	fprintf(stderr, "%llu allocations failed, one per run\n", (unsigned long long)n - 1);
	ck_assert_uint_gt(n, 20);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("staged writes");
	TCase *t = tcase_create("staged");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, open_brings_a_desk);
	tcase_add_test(t, open_waits);
	tcase_add_test(t, budget);
	tcase_add_test(t, version_2_reads);
	tcase_add_loop_test(t, copies_end_in_any_order, 0, 24);
	tcase_add_test(t, more_blocks_than_places);
	tcase_add_test(t, a_full_desk_is_no_want_of_room);
	tcase_add_test(t, duplicates);
	tcase_add_loop_test(t, wrong_checksum, 0, N);
	tcase_add_loop_test(t, copy_failed, 0, N);
	tcase_add_test(t, scribbled_meanwhile);
	tcase_add_test(t, replayed);
	tcase_add_loop_test(t, ended_while_copying, 0, N_ENDS * (N + 1));
	tcase_add_test(t, release_ends_the_commit);
	tcase_add_loop_test(t, revoked, 0, 2);
	tcase_add_loop_test(t, restart, 0, 2);
	tcase_add_loop_test(t, lost_while_copying, 0, N);
	tcase_add_test(t, every_allocation_fails);
	suite_add_tcase(s, t);
	return scene_main(s);
}
