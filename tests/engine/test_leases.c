/*
 * test_leases.c - what a lease does between MATCH and RELEASE: grants, duplicates, tails, islands,
 * cut replies, shares, operation ids.
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

static void count(uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i;
}

static struct proto_reserve_rep reserve(const struct scene_place *at, uint64_t lease, uint32_t n)
{
	struct proto_reserve_req r = { .lease = lease, .n = n };
	struct proto_reserve_rep got;

	ck_assert_int_eq(world_reserve(at->c, &r, &got), PROTO_STATUS_OK);
	return got;
}

static struct proto_commit_rep commit(const struct scene_place *at, uint64_t lease, uint32_t n,
				      uint32_t tail)
{
	struct proto_commit_req c = { .lease = lease, .n = n, .tail_tokens = tail };
	struct proto_commit_rep done;

	ck_assert_int_eq(world_commit(at->c, &c, &done), PROTO_STATUS_OK);
	return done;
}

static struct proto_match_rep extend(const struct scene_place *at, uint64_t lease)
{
	struct proto_extend_req x = { .lease = lease };
	struct proto_match_rep rep;

	ck_assert_int_eq(world_extend(at->c, &x, &rep), PROTO_STATUS_OK);
	return rep;
}

/* Two workers compute the same prompt: the second one's slots stay its own until RELEASE. */
START_TEST(duplicates)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma, mb;
	struct proto_reserve_rep ra, rb;
	struct proto_commit_rep done;
	struct radix_stats st;
	uint32_t tokens[16], first_a;

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	scene_match(&a, &p, &ma);
	scene_match(&b, &p, &mb);
	ra = reserve(&a, ma.lease, 4);
	first_a = proto_run_at(ra.runs, 0).start;
	rb = reserve(&b, mb.lease, 4);
	ck_assert_uint_ne(proto_run_at(rb.runs, 0).start, first_a);
	done = commit(&a, ma.lease, 2, 0);
	ck_assert_uint_eq(done.n_stored, 2);
	/* Two are there already, two are new and hang below the other's. */
	done = commit(&b, mb.lease, 4, 0);
	ck_assert_uint_eq(done.n_stored, 2);
	ck_assert_uint_eq(done.n_duplicate, 2);
	ck_assert_uint_eq(proto_run_at(done.runs, 0).start, first_a);
	ck_assert_uint_eq(proto_run_at(done.runs, 0).len, 2);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_OWN], 2);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_READY], 4);
	done = commit(&a, ma.lease, 2, 0);
	ck_assert_uint_eq(done.n_duplicate, 2);
	scene_release(&b, mb.lease, NULL);
	scene_release(&a, ma.lease, NULL);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_OWN], 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_READY], 4);
	ck_assert_uint_eq(world_counters(&w).duplicate_blocks, 4);
	world_deinit(&w);
}
END_TEST

/* Fewer slots than asked: a prefix is granted, never the lease's own blocks, and BUSY at last. */
START_TEST(partial_grants)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_reserve_req r = { .n = 10 };
	struct proto_reserve_rep got;
	struct proto_release_rep end;
	struct scene_place a;
	struct scene_prompt p;
	struct proto_match_rep m;
	uint32_t tokens[48];

	config.engine.pool_blocks = 8;
	begin();
	count(tokens, 48);
	a = scene_place(&w, 100, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	scene_put(&a, &p, 1);
	p = scene_tokens(&a, tokens, 48);
	scene_match(&a, &p, &m);
	ck_assert_uint_eq(m.n_device, 4);
	got = reserve(&a, m.lease, 10); /* asks for more than it has keys */
	ck_assert_uint_eq(got.n, 4);
	ck_assert_uint_eq(got.first, 4);
	r.lease = m.lease;
	ck_assert_int_eq(world_reserve(a.c, &r, &got), PROTO_STATUS_BUSY);
	commit(&a, m.lease, 4, 0);
	ck_assert_int_eq(world_reserve(a.c, &r, &got), PROTO_STATUS_BUSY); /* all are its own */
	scene_release(&a, m.lease, &end);
	ck_assert_uint_eq(end.hit_device_tokens, 16);
	ck_assert_uint_eq(end.miss_tokens, 32);
	ck_assert_uint_eq(world_counters(&w).miss_no_room, 16);
	ck_assert_uint_eq(scene_look(&a, &p, NULL), 8);
	world_deinit(&w);
}
END_TEST

/* EXTEND while blocks are reserved only keeps the keys; afterwards matching goes on. */
START_TEST(extend_waits)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_extend_req x = { .n_tokens = 32 };
	struct proto_match_rep m, ext;
	struct proto_release_rep end;
	struct scene_place a, b;
	struct scene_prompt p;
	uint32_t tokens[32];

	begin();
	count(tokens, 32);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	scene_match(&a, &p, &m);
	reserve(&a, m.lease, 2);
	p = scene_tokens(&b, tokens, 32);
	scene_put(&b, &p, 1); /* another one is faster with all of it */
	x.lease = m.lease;
	x.keys = (struct proto_span){ tokens + 16, 64 };
	ck_assert_int_eq(world_extend(a.c, &x, &ext), PROTO_STATUS_OK);
	ck_assert_uint_eq(ext.n_device, 0);
	ck_assert_uint_eq(commit(&a, m.lease, 2, 0).n_duplicate, 2);
	ext = extend(&a, m.lease);
	ck_assert_uint_eq(ext.n_device, 6);
	scene_release(&a, m.lease, &end);
	ck_assert_uint_eq(end.queried_tokens, 32);
	ck_assert_uint_eq(end.miss_tokens, 8);        /* what it computed */
	ck_assert_uint_eq(end.hit_pending_tokens, 8); /* missed by MATCH, there at last */
	ck_assert_uint_eq(end.hit_device_tokens, 16); /* there when first asked for */
	world_deinit(&w);
}
END_TEST

/* A donor of leading tokens is held until COMMIT; what was used counts, not what was offered. */
START_TEST(tails)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_commit_req c = { .n = 1, .tail_tokens = 3 };
	struct proto_commit_rep done;
	struct proto_release_rep end;
	struct scene_place a, blue;
	struct scene_prompt p;
	struct proto_match_rep m;
	uint32_t tokens[16], donor;
	uint8_t bytes[64];

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	p = scene_tokens(&a, tokens, 8);
	scene_put(&a, &p, 9);
	tokens[6] = 66;
	p = scene_tokens(&a, tokens, 8);
	scene_match(&a, &p, &m);
	ck_assert_uint_eq(m.n_device, 1);
	ck_assert_uint_eq(m.tail_tokens, 2);
	ck_assert_uint_eq(m.miss_token, 6);
	donor = m.tail_slot;
	world_read(&w, 0, donor, bytes, 64);
	ck_assert_uint_eq(bytes[0], 9);
	ck_assert_uint_eq(world_evict(&w, 0, 10), 0); /* held */
	reserve(&a, m.lease, 1);
	c.lease = m.lease;
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_BAD_BODY); /* only 2 */
	ck_assert_str_eq(a.c->error_field, "tail_tokens");
	commit(&a, m.lease, 1, 2);
	ck_assert_uint_eq(world_evict(&w, 0, 10), 1); /* the donor goes now */
	scene_release(&a, m.lease, &end);
	ck_assert_uint_eq(end.hit_device_tokens, 6);
	ck_assert_uint_eq(end.miss_tokens, 2);
	ck_assert_uint_eq(world_counters(&w).hit_tail_tokens, 2);
	/* The rest of a prompt that ends inside the block. */
	p = scene_tokens(&a, tokens, 7);
	scene_match(&a, &p, &m);
	ck_assert_uint_eq(m.tail_tokens, 3);
	ck_assert_uint_eq(m.reason, PROTO_REASON_NONE);
	commit(&a, m.lease, 0, 3); /* used, and nothing to store */
	scene_release(&a, m.lease, &end);
	ck_assert_uint_eq(end.hit_device_tokens, 7);
	/* A second tenant in the namespace ends it for both. */
	blue = scene_place(&w, 101, 2000, &o);
	blue.tenant = 1;
	scene_look(&blue, &p, &m);
	ck_assert_uint_eq(m.tail_tokens, 0);
	scene_look(&a, &p, &m);
	ck_assert_uint_eq(m.n_device, 1);
	ck_assert_uint_eq(m.tail_tokens, 0);
	world_deinit(&w);
}
END_TEST

/* A reply that does not fit is cut at a run; the parts add up. */
START_TEST(cut_replies)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt pa, pb;
	struct proto_match_rep m, ma, mb, part;
	static uint32_t ta[4 * 400], tb[4 * 400];
	uint32_t found, runs, parts = 1;
	struct proto_release_rep end;

	config.engine.limits.max_frame = 8192;
	config.engine.limits.max_keys = 4096;
	config.engine.pool_blocks = 1024;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	count(ta, 1600);
	for (uint32_t i = 0; i < 1600; i++)
		tb[i] = 5000 + i;
	pa = scene_tokens(&a, ta, 1600);
	pb = scene_tokens(&b, tb, 1600);
	/* Turn and turn about, so that no two blocks of a prompt are neighbours. */
	scene_match(&a, &pa, &ma);
	scene_match(&b, &pb, &mb);
	for (uint32_t i = 0; i < 400; i++) {
		reserve(&a, ma.lease, 1);
		commit(&a, ma.lease, 1, 0);
		reserve(&b, mb.lease, 1);
		commit(&b, mb.lease, 1, 0);
	}
	scene_release(&a, ma.lease, NULL);
	scene_release(&b, mb.lease, NULL);
	world_deinit(&w);
	/* The same with frames that hold 100 runs and the two numbers behind them. */
	config.engine.limits.max_frame = 40 + 75 + 8 * 100 + 8;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	scene_match(&a, &pa, &ma);
	scene_match(&b, &pb, &mb);
	for (uint32_t i = 0; i < 400; i++) {
		reserve(&a, ma.lease, 1);
		commit(&a, ma.lease, 1, 0);
		reserve(&b, mb.lease, 1);
		commit(&b, mb.lease, 1, 0);
	}
	scene_release(&a, ma.lease, NULL);
	pa.n_tokens = 1600;
	scene_match(&a, &pa, &m);
	found = m.n_device;
	runs = m.runs.n;
	ck_assert_uint_eq(m.more, 1);
	ck_assert_uint_lt(found, 400);
	for (part = m; part.more; parts++) {
		part = extend(&a, m.lease);
		ck_assert_uint_gt(part.n_device, 0);
		ck_assert_uint_le(a.c->h.len + 40, config.engine.limits.max_frame);
		found += part.n_device;
		runs += part.runs.n;
	}
	ck_assert_uint_eq(found, 400);
	ck_assert_uint_eq(runs, 400);
	ck_assert_uint_eq(parts, 4);
	scene_release(&a, m.lease, &end);
	ck_assert_uint_eq(end.hit_device_tokens, 1600); /* none of it was missed */
	world_deinit(&w);
}
END_TEST

/* Islands: found by their first digest, hung below a named parent, and never below a second. */
START_TEST(islands)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .n_tokens = 8 };
	struct proto_extend_req x = { 0 };
	struct scene_place a;
	struct proto_match_rep rep;
	struct scene_prompt p;
	uint8_t d[6][16];
	uint64_t lease;

	begin();
	for (uint32_t i = 0; i < sizeof(d); i++)
		d[i / 16][i % 16] = (uint8_t)(i + 1);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("s");
	a = scene_place(&w, 100, 1000, &o);
	m.ns = a.ns.ns;
	m.flags = PROTO_MATCH_ISLAND;
	m.keys = (struct proto_span){ d[2], 32 };
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	lease = rep.lease;
	reserve(&a, lease, 2);
	commit(&a, lease, 2, 0);
	/* By a digest in its middle, without what is before it. */
	m.keys = (struct proto_span){ d[3], 32 };
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_device, 1);
	/* It is not the beginning of a prompt. */
	p = (struct scene_prompt){ .keys = d[2], .n_keys = 2 };
	ck_assert_uint_eq(scene_look(&a, &p, NULL), 0);
	/* A parent that nobody has is no error. */
	x.lease = lease;
	x.parent = (struct proto_span){ d[1], 16 };
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_OK);
	p = (struct scene_prompt){ .keys = d[0], .n_keys = 2 };
	ck_assert_uint_eq(scene_put(&a, &p, 1), 2);
	p.n_keys = 4;
	ck_assert_uint_eq(scene_look(&a, &p, NULL), 2); /* neighbours in a list are not parents */
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(scene_look(&a, &p, NULL), 4);
	x.parent = (struct proto_span){ d[0], 16 };
	ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_CONFLICT);
	ck_assert_str_eq(a.c->error_field, "parent");
	m.keys = (struct proto_span){ d[2], 32 };
	m.parent = x.parent;
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_CONFLICT);
	m.parent = (struct proto_span){ d[1], 16 };
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_device, 2);
	/* Further digests below a parent that is there: they hang right at once. */
	m.keys = (struct proto_span){ d[4], 32 };
	m.parent = (struct proto_span){ d[3], 16 };
	ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_device, 0);
	reserve(&a, rep.lease, 2);
	commit(&a, rep.lease, 2, 0);
	p.n_keys = 6;
	ck_assert_uint_eq(scene_look(&a, &p, NULL), 6);
	world_deinit(&w);
}
END_TEST

/* In digest mode PROBE knows every key by itself; in token mode only by its path. */
START_TEST(probe_bits)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_probe_req q = { .has = PROTO_HAS_ALL, .flags = PROTO_PROBE_BITMAP };
	struct proto_probe_rep rep;
	struct prefixd_counters before, after;
	struct scene_place a;
	struct scene_prompt p;
	uint8_t d[10][16];

	begin();
	for (uint32_t i = 0; i < sizeof(d); i++)
		d[i / 16][i % 16] = (uint8_t)(i + 1);
	o.key_mode = PROTO_KEYS_DIGEST;
	o.digest_len = 16;
	o.seed_probe = world_text("s");
	a = scene_place(&w, 100, 1000, &o);
	p = (struct scene_prompt){ .keys = d[0], .n_keys = 3 };
	scene_put(&a, &p, 1);
	memset(d[1], 0xee, 16); /* the third block is still there, behind one that is not */
	q.ns = a.ns.ns;
	q.n_tokens = 40;
	q.keys = (struct proto_span){ d, sizeof(d) };
	before = world_counters(&w);
	ck_assert_int_eq(world_probe(a.c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_device, 1);
	ck_assert_uint_eq(rep.bitmap.n, 2);
	ck_assert_uint_eq(((const uint8_t *)rep.bitmap.p)[0], 0x05);
	ck_assert_uint_eq(((const uint8_t *)rep.bitmap.p)[1], 0x00);
	after = world_counters(&w);
	before.requests++;
	ck_assert(memcmp(&before, &after, sizeof(before)) == 0);
	q.flags = 0;
	ck_assert_int_eq(world_probe(a.c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.bitmap.n, 0);
	world_deinit(&w);
}
END_TEST

/* PROBE writes no recency: what is only probed goes first. */
START_TEST(probe_is_no_use)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_probe_req q = { .has = PROTO_HAS_ALL };
	struct proto_probe_rep rep;
	struct scene_place a;
	struct scene_prompt p[2];
	uint32_t tokens[2][16];

	begin();
	a = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < 2; i++) {
		count(tokens[i], 16);
		tokens[i][0] = 100 + i;
		p[i] = scene_tokens(&a, tokens[i], 16);
		scene_put(&a, &p[i], 1);
	}
	q.ns = a.ns.ns;
	q.n_tokens = 16;
	q.keys = (struct proto_span){ tokens[0], 64 };
	ck_assert_int_eq(world_probe(a.c, &q, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_device, 4);
	ck_assert_uint_eq(world_evict(&w, 0, 4), 4);
	ck_assert_uint_eq(scene_look(&a, &p[0], NULL), 0);
	ck_assert_uint_eq(scene_look(&a, &p[1], NULL), 4);
	world_deinit(&w);
}
END_TEST

/* A share of the pool binds only while another one asks in vain. */
START_TEST(shares)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_reserve_req r = { 0 };
	struct proto_reserve_rep got;
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma, mb;
	uint32_t tokens[160];

	config.engine.pool_blocks = 20;
	config.engine.limits.max_pins_share = 50;
	begin();
	count(tokens, 160);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	b.salt = world_text("b");
	p = scene_tokens(&a, tokens, 160);
	scene_match(&a, &p, &ma);
	scene_match(&b, &p, &mb);
	ck_assert_uint_eq(reserve(&a, ma.lease, 18).n, 18); /* alone: more than half */
	ck_assert_uint_eq(reserve(&b, mb.lease, 5).n, 2);
	r.lease = mb.lease;
	r.n = 1;
	ck_assert_int_eq(world_reserve(b.c, &r, &got), PROTO_STATUS_BUSY);
	world_kill(&w, 100);
	a = scene_place(&w, 100, 1000, &o);
	scene_match(&a, &p, &ma);
	ck_assert_uint_eq(reserve(&a, ma.lease, 18).n, 10); /* b went away empty just now */
	r.lease = ma.lease;
	r.n = 1;
	ck_assert_int_eq(world_reserve(a.c, &r, &got), PROTO_STATUS_BUSY);
	world_advance(&w, 2000000000);
	ck_assert_uint_eq(reserve(&a, ma.lease, 18).n, 8); /* and does not ask any more */
	world_deinit(&w);
}
END_TEST

/* ---- operation ids --------------------------------------------------------------------------- */

static int match_with(const struct scene_place *at, uint32_t id, uint32_t n_tokens)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .ns = at->ns.ns, .n_tokens = n_tokens };
	struct proto_match_rep rep;

	memcpy(m.op_id.b, &id, 4);
	return world_match(at->c, &m, &rep);
}

START_TEST(op_ids)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_release_req rel = { 0 };
	struct proto_release_rep end;
	struct scene_place a;
	uint64_t lookups;

	config.engine.limits.op_ids = 5;
	config.engine.limits.op_id_ns = 1000;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	ck_assert_int_eq(match_with(&a, 1, 3), PROTO_STATUS_OK);
	ck_assert_int_eq(match_with(&a, 1, 3), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).lookups, 1);
	ck_assert_uint_eq(world_counters(&w).op_replays, 1);
	ck_assert_int_eq(match_with(&a, 1, 4), PROTO_STATUS_OP_ID_REUSED);
	rel.op_id.b[0] = 1; /* another operation */
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_OP_ID_REUSED);
	/* Five later ones push it out. */
	for (uint32_t i = 2; i <= 6; i++)
		ck_assert_int_eq(match_with(&a, i, 3), PROTO_STATUS_OK);
	ck_assert_int_eq(match_with(&a, 1, 3), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).lookups, 7);
	/* Time does. */
	world_advance(&w, 1000);
	ck_assert_int_eq(match_with(&a, 6, 3), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).lookups, 7);
	world_advance(&w, 1);
	ck_assert_int_eq(match_with(&a, 6, 9), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).lookups, 8);
	/* A refusal is not kept: the next try is decided anew. */
	lookups = world_counters(&w).lookups;
	a.ns.ns += 100;
	ck_assert_int_eq(match_with(&a, 50, 3), PROTO_STATUS_UNKNOWN_NAMESPACE);
	a.ns.ns -= 100;
	ck_assert_int_eq(match_with(&a, 50, 3), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).lookups, lookups + 1);
	/* Without an id nothing is remembered. */
	ck_assert_int_eq(match_with(&a, 0, 3), PROTO_STATUS_OK);
	ck_assert_int_eq(match_with(&a, 0, 3), PROTO_STATUS_OK);
	ck_assert_uint_eq(world_counters(&w).lookups, lookups + 3);
	world_deinit(&w);
}
END_TEST

/* Long replies push old ones out of the ring, and memory stays bounded. */
START_TEST(op_id_ring)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt pa, pb;
	struct proto_match_rep ma, mb;
	static uint32_t ta[4 * 500], tb[4 * 500];
	uint64_t bytes = 0;

	config.engine.limits.max_frame = 16384;
	config.engine.pool_blocks = 1024;
	begin();
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	count(ta, 2000);
	for (uint32_t i = 0; i < 2000; i++)
		tb[i] = 5000 + i;
	pa = scene_tokens(&a, ta, 2000);
	pb = scene_tokens(&b, tb, 2000);
	scene_match(&a, &pa, &ma);
	scene_match(&b, &pb, &mb);
	for (uint32_t i = 0; i < 500; i++) {
		reserve(&a, ma.lease, 1);
		commit(&a, ma.lease, 1, 0);
		reserve(&b, mb.lease, 1);
		commit(&b, mb.lease, 1, 0);
	}
	for (uint32_t i = 1; i <= 300; i++) {
		struct proto_match_req m = { .has = PROTO_HAS_ALL,
					     .ns = a.ns.ns,
					     .n_tokens = 2000,
					     .keys = { ta, 4 * (i % 7 ? 2000 : 400) } };
		struct proto_match_rep rep;
		uint64_t lease;

		memcpy(m.op_id.b, &i, 4);
		ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
		lease = rep.lease;
		ck_assert_uint_eq(rep.runs.n, i % 7 ? 500 : 100);
		ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_OK);
		ck_assert_uint_eq(rep.lease, lease);
		scene_release(&a, lease, NULL);
		if (i == 100)
			bytes = w.heap.live_bytes;
	}
	ck_assert_uint_eq(world_counters(&w).op_replays, 300);
	ck_assert_uint_eq(w.heap.live_bytes, bytes);
	world_deinit(&w);
}
END_TEST

/* A worker that loses its leases, again and again: what is revoked does not count for ever. */
START_TEST(revoked_and_forgotten)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a = { .tenant = 0 };
	struct scene_prompt p;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	struct proto_match_rep rep, first;
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .n_tokens = 1 };
	struct proto_release_req end = { 0 };
	struct proto_release_rep ended;
	struct radix_stats st;
	uint32_t tokens[16];

	config.engine.limits.lease_max_age_ns = 1000000;
	config.engine.limits.max_leases = 4;
	begin();
	count(tokens, 16);
	a.c = world_connect(&w, 100, 1000, false);
	hello = world_hello_req(a.c);
	hello.flags = PROTO_HELLO_COPIES;
	ck_assert_int_eq(world_hello(a.c, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_open(a.c, &o, &a.ns), PROTO_STATUS_OK);
	p = scene_tokens(&a, tokens, 16);
	scene_match(&a, &p, &first);
	reserve(&a, first.lease, 3);
	m.ns = a.ns.ns;
	for (uint32_t round = 0; round < 5; round++) {
		for (uint32_t i = 0; i < 3; i++)
			scene_match(&a, &p, &rep);
		ck_assert_int_eq(world_match(a.c, &m, &rep), PROTO_STATUS_LIMIT);
		world_advance(&w, 1000000);
	}
	ck_assert_uint_eq(world_counters(&w).leases_revoked, 16);
	world_stats(&w, a.ns.group, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_QUARANTINED], 3); /* slots are not forgotten */
	end.lease = first.lease;
	ck_assert_int_eq(world_release(a.c, &end, &ended), PROTO_STATUS_REVOKED);
	world_deinit(&w);
}
END_TEST

/* Keys of long prompts in many leases: refused in time, whole again when they end. */
START_TEST(keys_within_bounds)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a;
	struct proto_match_req m = { .has = PROTO_HAS_ALL };
	struct proto_extend_req x = { .n_tokens = 20000 };
	struct proto_match_rep rep;
	uint64_t leases[64];
	static uint32_t tokens[10000];
	uint32_t n = 0;

	config.engine.lease_key_bytes = 1u << 20;
	config.engine.limits.max_keys = 65536;
	config.engine.limits.max_leases = 64;
	begin();
	count(tokens, radix_array_size(tokens));
	a = scene_place(&w, 100, 1000, &o);
	m.ns = a.ns.ns;
	m.keys = (struct proto_span){ tokens, sizeof(tokens) };
	m.n_tokens = radix_array_size(tokens);
	for (uint32_t round = 0; round < 3; round++) {
		int status = PROTO_STATUS_OK;

		for (n = 0; n < radix_array_size(leases); n++) {
			status = world_match(a.c, &m, &rep);
			if (status != PROTO_STATUS_OK)
				break;
			leases[n] = rep.lease;
		}
		ck_assert_int_eq(status, PROTO_STATUS_NO_MEMORY);
		ck_assert_uint_eq(n, (1u << 20) / (64u << 10)); /* buffers are powers of two */
		x.lease = leases[0];
		x.keys = m.keys;
		ck_assert_int_eq(world_extend(a.c, &x, &rep), PROTO_STATUS_NO_MEMORY);
		while (n > 0)
			scene_release(&a, leases[--n], NULL);
	}
	world_deinit(&w);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		duplicates,
		partial_grants,
		extend_waits,
		tails,
		cut_replies,
		islands,
		probe_bits,
		probe_is_no_use,
		shares,
		op_ids,
		op_id_ring,
		revoked_and_forgotten,
		keys_within_bounds,
	};
	Suite *s = suite_create("leases");
	TCase *t = tcase_create("leases");

	tcase_add_checked_fixture(t, setup, NULL);
	tcase_set_timeout(t, 60);
	for (uint32_t i = 0; i < radix_array_size(tests); i++)
		tcase_add_test(t, tests[i]);
	suite_add_tcase(s, t);
	return scene_main(s);
}
