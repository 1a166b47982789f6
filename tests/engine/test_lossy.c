/*
 * test_lossy.c - namespaces with a cold codec: what OPEN takes, what leases are told of blocks that
 * a codec has changed, who never gets one, and that the mark of such a block is never lost.
 *
 * The world's codec sets the highest bit of each byte; a block that begins with 0xff it refuses.
 */
#include "daemon/cold.h"
#include "daemon/ledger.h"
#include "tests/engine/tiers_scene.h"

#include <stdlib.h>

enum {
	CODED = 0x80
};

/* 2 layers x 1 head x 64 elements x 4 tokens: 2 KiB, coded about half of it. */
static struct proto_open_req cold_req(const char *codec)
{
	struct proto_open_req o = world_open_req("m");

	o.layers = 2;
	o.head_dim = 64;
	o.block_bytes = 2048;
	o.cold_codec = world_text(codec);
	return o;
}

static struct scene_place cold_begin_as(const struct proto_open_req *o, uint32_t n_host, bool redis)
{
	tiers_configure(2 * BLOCKS, n_host, redis);
	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	return scene_place(&tiers.w, 100, 1000, o);
}

static struct scene_place cold_begin(uint32_t n_host, bool redis)
{
	struct proto_open_req o = cold_req("fp8");

	return cold_begin_as(&o, n_host, redis);
}

/* Prompt 0 is stored and goes down, to where there is room for it. */
static void put_down(const struct scene_place *at)
{
	for (uint32_t p = 0; p < 3; p++)
		ck_assert_uint_eq(tiers_put(at, p), BLOCKS);
}

/* What a MATCH with these flags tells of prompt 0; the lease is over. */
static void look(const struct scene_place *at, uint32_t flags, struct proto_match_rep *ret)
{
	struct scene_prompt x = tiers_prompt(at, 0);

	scene_match_with(at, &x, flags, 0, ret);
	scene_release(at, ret->lease, NULL);
}

static void bring_up(const struct scene_place *at, uint32_t p, uint8_t fill)
{
	struct scene_prompt x = tiers_prompt(at, p);
	uint64_t lease;

	ck_assert_uint_eq(scene_bring_up(at, &x, fill, &lease), BLOCKS);
	scene_release(at, lease, NULL);
	world_run_until_idle(&tiers.w);
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

/* As a client of that client's version sends it. */
static int open_status(struct world_client *c, const struct proto_open_req *o,
		       struct proto_open_rep *ret)
{
	uint8_t body[4096];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	const char *bad;
	int r;

	proto_open_req_encode_as(&w, c->version, o);
	ck_assert(proto_writer_ok(&w));
	r = world_raw(c, PROTO_OP_OPEN, body, (uint32_t)w.len);
	if (r == 0)
		ck_assert_int_eq(proto_open_rep_decode_as(c->version, c->body, c->h.len, ret, &bad),
				 0);
	return r;
}

START_TEST(what_open_takes)
{
	struct proto_open_req o = cold_req("fp8");
	struct scene_place at = cold_begin_as(&o, 8, true);
	struct proto_open_rep rep;
	uint32_t group = at.ns.group;

	ck_assert_uint_eq(at.ns.cold_bytes, 4 * 320); /* 256 codes and 4 scales, to 64 */
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.ns, at.ns.ns);
#define REFUSED(name, set)                                                                 \
	do {                                                                               \
		o = cold_req("fp8");                                                       \
		set;                                                                       \
		ck_assert_int_eq(open_status(at.c, &o, &rep), PROTO_STATUS_BAD_NAMESPACE); \
		ck_assert_str_eq(at.c->error_field, name);                                 \
	} while (0)
	REFUSED("cold_codec", o.cold_codec = world_text("fp4"));
	REFUSED("cold_codec", o.flags = PROTO_OPEN_OPAQUE);
	REFUSED("layout", o.layout = world_text("layer-major"));
	REFUSED("dtype", (o.dtype = world_text("float32"), o.head_dim = 32));
	REFUSED("exact_layers", o.exact_layers = world_text("2"));
	REFUSED("exact_layers", o.exact_layers = world_text("0;1"));
	REFUSED("exact_layers",
		(o.cold_codec = world_text("none"), o.exact_layers = world_text("0")));
	REFUSED("cold_codec", o.exact_layers = world_text("0-1"));
	REFUSED("cold_codec", (o.head_dim = 4, o.block_bytes = 128));
#undef REFUSED
	o = cold_req("int8"); /* each codec and each list is a namespace and a group of its own */
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_ne(rep.ns, at.ns.ns);
	ck_assert_uint_ne(rep.group, group);
	o = cold_req("fp8");
	o.exact_layers = world_text("1");
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_ne(rep.group, group);
	ck_assert_uint_eq(rep.cold_bytes, 2 * 320 + 2 * 512);
	o.exact_layers = world_text("1,1-1");
	group = rep.group;
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0); /* another way to say the same */
	ck_assert_uint_eq(rep.group, group);
	o = cold_req("none");
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.cold_bytes, rep.block_bytes);
	world_deinit(&tiers.w);
}
END_TEST

/* Names without a codec are what they were: nothing said and none are one namespace. */
START_TEST(none_is_what_was)
{
	struct proto_open_req o = cold_req("");
	struct scene_place at = cold_begin_as(&o, 8, true);
	struct proto_open_rep rep;

	ck_assert_uint_eq(at.ns.cold_bytes, at.ns.block_bytes);
	o = cold_req("none");
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.ns, at.ns.ns);
	o = cold_req("");
	o.exact_layers = world_text("0"); /* nothing is coded, so they are */
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.ns, at.ns.ns);
	world_deinit(&tiers.w);
}
END_TEST

/* The daemon's own choice is for those who leave it open, can be told, and can be coded. */
START_TEST(the_daemons_choice)
{
	struct proto_open_req o = cold_req("");
	struct world_client *old;
	struct proto_hello_req hello;
	struct proto_hello_rep hi;
	struct proto_open_rep rep;
	struct scene_place at;

	tiers_configure(2 * BLOCKS, 8, true);
	tiers.config.engine.cold_codec = GPU_CODEC_INT8;
	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	ck_assert_uint_eq(at.ns.cold_bytes, 4 * 320);
	o = cold_req("int8");
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.ns, at.ns.ns);
	o = cold_req("none");
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.cold_bytes, 2048);
	o = cold_req("");
	o.layout = world_text("mine");
	ck_assert_int_eq(open_status(at.c, &o, &rep), 0);
	ck_assert_uint_eq(rep.cold_bytes, 2048);
	old = world_connect(&tiers.w, 101, 1000, false);
	hello = world_hello_req(old);
	hello.version_max = 2;
	ck_assert_int_eq(world_hello(old, &hello, &hi), 0);
	o = cold_req("");
	ck_assert_int_eq(open_status(old, &o, &rep), 0);
	ck_assert_uint_ne(rep.ns, at.ns.ns);
	world_deinit(&tiers.w);
}
END_TEST

/* ---- what leases are told -------------------------------------------------------------------- */

START_TEST(a_lease_is_told)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_match_rep m;

	ck_assert_uint_eq(tiers_put(&at, 0), BLOCKS);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, 0);
	for (uint32_t p = 1; p < 3; p++)
		tiers_put(&at, p);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_host, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS); /* they would come up changed */
	ck_assert_uint_eq(m.first_lossy, 0);
	bring_up(&at, 0, 1 | CODED);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	ck_assert_uint_eq(scene_put(&at, &x, 9), 0); /* all is there: nothing to compute */
	ck_assert_uint_gt(world_counters(&tiers.w).lossy_blocks, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* RESERVE `n`, fill, COMMIT on a lease; the reply's duplicates in *ret_own. */
static uint32_t compute(const struct scene_place *at, uint64_t lease, uint32_t n, uint8_t fill,
			uint32_t *ret_own)
{
	struct proto_reserve_req r = { .lease = lease, .n = n };
	struct proto_commit_req c = { .lease = lease, .n = n };
	struct proto_reserve_rep reserved;
	struct proto_commit_rep committed;
	uint8_t block[2048];

	memset(block, fill, sizeof(block));
	ck_assert_int_eq(world_reserve_wait(at->c, &r, &reserved), 0);
	ck_assert_uint_eq(reserved.n, n);
	for (uint32_t i = 0; i < reserved.runs.n; i++) {
		struct radix_run run = proto_run_at(reserved.runs, i);

		for (uint32_t k = 0; k < run.len; k++)
			world_write(&tiers.w, at->ns.group, run.start + k, block, sizeof(block));
	}
	ck_assert_int_eq(world_commit(at->c, &c, &committed), 0);
	*ret_own = committed.n_duplicate;
	return committed.n_stored;
}

/* Exact bytes take the place of changed ones, and the next one finds them. */
START_TEST(exact_ends_before_the_first)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_match_rep m;
	uint32_t own;

	put_down(&at);
	look(&at, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis + m.n_lossy, 0);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
	bring_up(&at, 0, 1 | CODED);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
	ck_assert_uint_eq(compute(&at, m.lease, 3, 1, &own), 3);
	ck_assert_uint_eq(own, 0);
	scene_extend(&at, m.lease, &m); /* and so does EXTEND on that lease */
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
	scene_release(&at, m.lease, NULL);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(m.n_device, 3);
	ck_assert_uint_eq(scene_check_fill(&at, m.runs, 1), 3);
	ck_assert_uint_eq(m.n_lossy, 0);
	scene_release(&at, m.lease, NULL);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS - 3);
	ck_assert_uint_eq(m.first_lossy, 3);
	ck_assert_uint_eq(world_counters(&tiers.w).exact_ends, 4);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* Who waits for exact bytes is not told of others, and is told of those when they are there. */
START_TEST(exact_ones_are_waited_for)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false), other = at;
	struct proto_wait_req q = { .deadline_us = 1000000 };
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_open_req o = cold_req("fp8");
	struct proto_match_rep m, n;
	struct proto_wait_rep wait;
	struct proto_event event;
	uint64_t seq;
	uint32_t own;

	other.c = world_worker(&tiers.w, 101, 1000);
	ck_assert_int_eq(world_open(other.c, &o, &other.ns), 0);
	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT | PROTO_MATCH_LEAD, 0, &m);
	scene_match_with(&other, &x, PROTO_MATCH_EXACT, 0, &n);
	ck_assert_uint_eq(n.n_pending, BLOCKS);
	ck_assert_uint_eq(n.reason, PROTO_REASON_PENDING);
	q.lease = n.lease;
	ck_assert_int_eq(world_wait(other.c, &q, &wait), 0);
	ck_assert_uint_eq(wait.state, PROTO_WAIT_WAITING);
	ck_assert_uint_eq(wait.n, BLOCKS);
	ck_assert_uint_eq(compute(&at, m.lease, BLOCKS, 1, &own), BLOCKS);
	ck_assert(world_event(other.c, &seq, &event));
	ck_assert_uint_eq(event.state, PROTO_WAIT_READY);
	ck_assert_uint_eq(event.n, BLOCKS);
	scene_extend(&other, n.lease, &n);
	ck_assert_uint_eq(n.n_device, BLOCKS);
	ck_assert_uint_eq(scene_check_fill(&other, n.runs, 1), BLOCKS);
	scene_release(&other, n.lease, NULL);
	scene_release(&at, m.lease, NULL);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* Nobody computes them: who waits does so himself, from the first one on. */
START_TEST(who_waits_for_exact_ones_leads)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_wait_rep wait;
	struct proto_match_rep m;
	uint32_t own;

	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(compute(&at, m.lease, 2, 1, &own), 2);
	scene_release(&at, m.lease, NULL);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(m.n_device, 2);
	ck_assert_int_eq(world_wait(at.c, &(struct proto_wait_req){ .lease = m.lease }, &wait), 0);
	ck_assert_uint_eq(wait.state, PROTO_WAIT_LEAD);
	ck_assert_uint_eq(wait.n, 0);
	ck_assert_uint_eq(compute(&at, m.lease, BLOCKS - 2, 1, &own), BLOCKS - 2);
	scene_release(&at, m.lease, NULL);
	look(&at, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

static void look_at(const struct scene_place *at, uint32_t n_blocks, uint32_t flags,
		    struct proto_match_rep *ret)
{
	struct scene_prompt x = scene_tokens(at, tiers.tokens[0], n_blocks * BT);

	scene_match_with(at, &x, flags, 0, ret);
	scene_release(at, ret->lease, NULL);
}

/* Changed blocks before the window are nothing to who reads through it. */
START_TEST(exact_through_a_window)
{
	struct proto_open_req o = cold_req("fp8");
	struct scene_place through, whole;
	struct proto_match_rep m;
	struct scene_prompt x;
	uint64_t lease;
	uint32_t own;

	o.windows = world_text("0-1:16"); /* four blocks */
	whole = cold_begin_as(&o, 4 * BLOCKS, false);
	o.flags |= PROTO_OPEN_WINDOWS;
	through = scene_place(&tiers.w, 101, 1000, &o);
	ck_assert_uint_eq(through.ns.ns, whole.ns.ns);
	ck_assert_uint_eq(through.ns.window, 4);
	/* four changed ones, and four that are exact behind them */
	x = scene_tokens(&whole, tiers.tokens[0], 4 * BT);
	ck_assert_uint_eq(scene_put(&whole, &x, 1), 4);
	tiers_put(&whole, 1);
	tiers_put(&whole, 2);
	ck_assert_uint_eq(scene_bring_up(&whole, &x, 1 | CODED, &lease), 4);
	scene_release(&whole, lease, NULL);
	x = tiers_prompt(&whole, 0);
	ck_assert_uint_eq(scene_put(&whole, &x, 1), 4);
	world_run_until_idle(&tiers.w);
	look_at(&whole, BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, 4);
	look_at(&whole, BLOCKS, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
	look_at(&through, BLOCKS, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, 0);
	look_at(&through, BLOCKS, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.reason, PROTO_REASON_NONE);
	/* now the first two are exact, and the two behind them are not */
	scene_match_with(&whole, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(compute(&whole, m.lease, 2, 1, &own), 2);
	scene_release(&whole, m.lease, NULL);
	look_at(&through, BLOCKS - 1, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS - 1);
	ck_assert_uint_eq(m.n_lossy, 1);
	ck_assert_uint_eq(m.first_lossy, 3);
	look_at(&through, BLOCKS - 1, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, 2);
	ck_assert_uint_eq(m.reason, PROTO_REASON_DECLINED);
	look_at(&through, BLOCKS, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* While somebody holds the changed copies, exact ones are the writer's own. */
START_TEST(who_reads_is_not_disturbed)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_match_rep held, m;
	uint8_t runs[8 * BLOCKS];
	uint32_t own;

	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	scene_match(&at, &x, &held);
	memcpy(runs, held.runs.p, 8 * held.runs.n); /* they lie in the reply */
	held.runs.p = runs;
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(compute(&at, m.lease, 2, 1, &own), 0);
	ck_assert_uint_eq(own, 2);
	ck_assert_uint_eq(scene_check_fill(&at, held.runs, 1 | CODED), BLOCKS);
	scene_release(&at, m.lease, NULL);
	scene_release(&at, held.lease, NULL);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* No reply names the changed copy to who wants exact bytes, not even as the one that counts. */
START_TEST(exact_keeps_its_own)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_reserve_req r = { .n = 2 };
	struct proto_commit_req c = { .n = 2 };
	struct proto_reserve_rep reserved;
	struct proto_commit_rep committed;
	struct proto_match_rep held, m;
	struct radix_run own;

	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	scene_match(&at, &x, &held);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	r.lease = c.lease = m.lease;
	ck_assert_int_eq(world_reserve_wait(at.c, &r, &reserved), 0);
	own = proto_run_at(reserved.runs, 0);
	ck_assert_int_eq(world_commit(at.c, &c, &committed), 0);
	ck_assert_uint_eq(committed.n_duplicate, 2);
	ck_assert_uint_eq(proto_run_at(committed.runs, 0).start, own.start);
	ck_assert_uint_eq(proto_run_at(committed.runs, 0).len, own.len);
	scene_release(&at, m.lease, NULL);
	scene_release(&at, held.lease, NULL);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* A block on its way down is read; below, exact bytes attach as to any member. */
START_TEST(exact_over_lower_copies)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_match_rep m;

	put_down(&at);
	ck_assert_uint_eq(scene_put(&at, &x, 1), BLOCKS); /* computed anew, without asking */
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(scene_check_fill(&at, m.runs, 1), BLOCKS);
	scene_release(&at, m.lease, NULL);
	world_run_until_idle(&tiers.w);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* The partly used block is told as well, and never offered to who wants exact ones. */
START_TEST(a_lossy_donor)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x;
	struct proto_match_rep m;

	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	x = scene_tokens(&at, tiers.tokens[0], 2); /* half of the first block */
	scene_match_with(&at, &x, 0, 0, &m);
	ck_assert_uint_eq(m.tail_tokens, 2);
	ck_assert_uint_eq(m.n_lossy, 1);
	ck_assert_uint_eq(m.first_lossy, 0);
	scene_release(&at, m.lease, NULL);
	scene_match_with(&at, &x, PROTO_MATCH_EXACT, 0, &m);
	ck_assert_uint_eq(m.tail_tokens, 0);
	ck_assert_uint_eq(m.n_lossy, 0);
	scene_release(&at, m.lease, NULL);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

START_TEST(exact_needs_version_3)
{
	struct scene_place at = cold_begin(8, false);
	struct world_client *old = world_connect(&tiers.w, 101, 1000, false);
	struct proto_hello_req hello = world_hello_req(old);
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .flags = PROTO_MATCH_EXACT };
	struct proto_open_req o = cold_req("");
	struct proto_hello_rep hi;
	struct proto_open_rep rep;
	struct proto_match_rep got;

	(void)at;
	hello.version_max = 2;
	ck_assert_int_eq(world_hello(old, &hello, &hi), 0);
	ck_assert_int_eq(open_status(old, &o, &rep), 0);
	m.ns = rep.ns;
	ck_assert_int_eq(world_match(old, &m, &got), PROTO_STATUS_BAD_BODY);
	ck_assert_str_eq(old->error_field, "flags");
	world_deinit(&tiers.w);
}
END_TEST

/* ---- Redis ----------------------------------------------------------------------------------- */

/* What came from Redis is changed, unless it could not be coded and went as it was. */
START_TEST(redis_keeps_what_cannot_be_coded)
{
	struct scene_place at = cold_begin(0, true);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_match_rep m;

	ck_assert_uint_eq(scene_put(&at, &x, WORLD_UNCODABLE), BLOCKS);
	for (uint32_t p = 1; p < 4; p++)
		tiers_put(&at, p);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_redis, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS); /* nobody knows before it is read */
	bring_up(&at, 0, WORLD_UNCODABLE);
	look(&at, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, 0);
	bring_up(&at, 1, 2 | CODED);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* Host memory has no room for it: it goes when its slot is wanted, and is not tried for ever. */
START_TEST(host_drops_what_cannot_be_coded)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct prefixd_counters n;
	struct proto_match_rep m;

	ck_assert_uint_eq(scene_put(&at, &x, WORLD_UNCODABLE), BLOCKS);
	for (uint32_t p = 1; p < 3; p++)
		ck_assert_uint_eq(tiers_put(&at, p), BLOCKS);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device + m.n_host, 0);
	n = world_counters(&tiers.w);
	ck_assert_uint_eq(n.uncodable_blocks, BLOCKS);
	ck_assert_uint_eq(n.dropped_blocks, BLOCKS);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* The watermark's work ends too. */
START_TEST(ahead_of_demand_too)
{
	struct proto_open_req o = cold_req("fp8");
	struct scene_place at;
	struct scene_prompt x;

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, false);
	tiers.config.engine.watermark_low = 60;
	tiers.config.engine.watermark_high = 80;
	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	x = tiers_prompt(&at, 0);
	ck_assert_uint_eq(scene_put(&at, &x, WORLD_UNCODABLE), BLOCKS);
	world_run_until_idle(&tiers.w);
	ck_assert_uint_le(world_counters(&tiers.w).uncodable_blocks, BLOCKS);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* ---- damage, and other lives ----------------------------------------------------------------- */

START_TEST(damaged_below)
{
	struct scene_place at = cold_begin(4 * BLOCKS, false);
	struct scene_prompt x = tiers_prompt(&at, 0);
	struct proto_match_rep m;
	struct proto_event e;
	uint64_t seq;

	put_down(&at);
	ck_assert_uint_gt(world_host_damage(&tiers.w, at.ns.group, 100), 0);
	seq = scene_match_with(&at, &x, PROTO_MATCH_PROMOTE, 0, &m);
	scene_loaded(&at, seq, &e);
	ck_assert_uint_eq(e.reason, PROTO_REASON_CORRUPT);
	scene_release(&at, m.lease, NULL);
	world_run_until_idle(&tiers.w);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device + m.n_host, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

/* A changed copy that goes down again is not measured by what its writer once said. */
START_TEST(down_again)
{
	struct scene_place at = cold_begin(4 * BLOCKS, true);
	struct proto_match_rep m;

	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	for (uint32_t p = 3; p < 10; p++) /* host memory is full of others by now */
		tiers_put(&at, p);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	bring_up(&at, 0, 1 | CODED);
	ck_assert_uint_eq(world_counters(&tiers.w).corrupt_blocks, 0);
	tiers_check_quiet();
	world_deinit(&tiers.w);
}
END_TEST

START_TEST(a_restart_keeps_the_mark)
{
	struct proto_open_req o = cold_req("fp8");
	struct scene_place at;
	struct prefixd_ledger_group kept;
	struct proto_match_rep m;
	uint32_t group;

	tiers_configure(2 * BLOCKS, 4 * BLOCKS, true);
	tiers.config.keep = true;
	tiers.config.engine.verify = PREFIXD_VERIFY_FULL;
	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	at = scene_place(&tiers.w, 100, 1000, &o);
	group = at.ns.group;
	put_down(&at);
	bring_up(&at, 0, 1 | CODED);
	world_life_kill(&tiers.w);
	world_kill(&tiers.w, 100);
	/* what the shell compares with host-bytes */
	ck_assert(prefixd_ledger_group(&tiers.w.life.ledger.store, group, &kept));
	ck_assert_uint_eq(kept.slot_bytes, 2048);
	ck_assert_uint_eq(kept.host_slot_bytes, (4 * 320 + PREFIXD_COLD_SEAL + 63) / 64 * 64);
	ck_assert_int_eq(world_life_restart(&tiers.w), 0);
	at = scene_place(&tiers.w, 101, 1000, &o);
	ck_assert_uint_eq(at.ns.group, group);
	ck_assert(at.ns.flags & PROTO_OPENED_KEPT);
	ck_assert_uint_eq(at.ns.cold_bytes, 4 * 320);
	look(&at, 0, &m);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	look(&at, PROTO_MATCH_EXACT, &m);
	ck_assert_uint_eq(m.n_device, 0);
	bring_up(&at, 1, 2 | CODED); /* sealed in the life before */
	ck_assert_uint_eq(world_counters(&tiers.w).corrupt_blocks, 0);
	world_deinit(&tiers.w);
}
END_TEST

/* Each allocation fails once: nothing is lost but the request. */
START_TEST(without_memory)
{
	for (uint64_t n = 1;; n++) {
		struct proto_open_req o = cold_req("fp8");
		struct proto_open_rep rep;
		struct world_client *c;
		struct scene_place at;
		bool failed;

		tiers_configure(2 * BLOCKS, 4 * BLOCKS, true);
		tiers.config.keep = true;
		ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
		c = world_worker(&tiers.w, 100, 1000);
		test_heap_fail_at(&tiers.w.heap, n);
		if (open_status(c, &o, &rep) != 0) {
			test_heap_fail_at(&tiers.w.heap, 0);
			ck_assert_int_eq(open_status(c, &o, &rep), 0);
		}
		failed = tiers.w.heap.n_failed > 0;
		test_heap_fail_at(&tiers.w.heap, 0);
		at = (struct scene_place){ .c = c, .ns = rep };
		put_down(&at);
		bring_up(&at, 0, 1 | CODED);
		world_deinit(&tiers.w);
		if (!failed)
			return;
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("lossy");
	TCase *tc = tcase_create("lossy");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, what_open_takes);
	tcase_add_test(tc, none_is_what_was);
	tcase_add_test(tc, the_daemons_choice);
	tcase_add_test(tc, a_lease_is_told);
	tcase_add_test(tc, exact_ends_before_the_first);
	tcase_add_test(tc, exact_ones_are_waited_for);
	tcase_add_test(tc, who_waits_for_exact_ones_leads);
	tcase_add_test(tc, exact_through_a_window);
	tcase_add_test(tc, who_reads_is_not_disturbed);
	tcase_add_test(tc, exact_keeps_its_own);
	tcase_add_test(tc, exact_over_lower_copies);
	tcase_add_test(tc, a_lossy_donor);
	tcase_add_test(tc, exact_needs_version_3);
	tcase_add_test(tc, redis_keeps_what_cannot_be_coded);
	tcase_add_test(tc, host_drops_what_cannot_be_coded);
	tcase_add_test(tc, ahead_of_demand_too);
	tcase_add_test(tc, damaged_below);
	tcase_add_test(tc, down_again);
	tcase_add_test(tc, a_restart_keeps_the_mark);
	tcase_add_test(tc, without_memory);
	suite_add_tcase(s, tc);
	return scene_main(s);
}
