/*
 * test_reasons.c - why a prompt was not served, to the token: T39 T40, and the other reasons.
 */
#include "tests/engine/scene.h"

static struct world w;

static void begin(uint32_t n_slots)
{
	struct world_config config;

	world_config_init(&config);
	config.engine.pool_blocks = n_slots;
	config.engine.limits.max_frame = 1u << 20;
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static void explain(const struct scene_place *at, const struct scene_prompt *p,
		    struct proto_explain_rep *ret)
{
	struct proto_explain_req x = {
		.has = PROTO_HAS_ALL,
		.ns = at->ns.ns,
		.tenant = at->tenant,
		.salt = at->salt,
		.n_tokens = (uint64_t)p->n_keys * at->ns.block_tokens + p->n_tail,
		.keys = { p->keys, p->n_keys * at->ns.key_len },
		.tail = { p->tail, p->n_tail * 4 },
	};

	ck_assert_int_eq(world_explain(at->c, &x, ret), PROTO_STATUS_OK);
	ck_assert_uint_gt(ret->text.n, 0);
}

static struct proto_open_req opaque(uint32_t block_tokens)
{
	struct proto_open_req o = world_open_req("m");

	o.flags = PROTO_OPEN_OPAQUE;
	o.block_tokens = block_tokens;
	return o;
}

/* A common prefix of 240 tokens under blocks of 784: shared, yet below a block. */
START_TEST(below_block)
{
	struct proto_open_req o = opaque(784);
	struct scene_place at;
	struct scene_prompt pa, pb;
	static uint32_t a[1000], b[1000];
	struct proto_explain_rep x;
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .flags = PROTO_MATCH_NO_TAIL };
	struct proto_match_rep rep;
	struct proto_release_rep end;
	struct prefixd_counters n;

	begin(16);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < 1000; i++) {
		a[i] = i;
		b[i] = i < 240 ? i : 100000 + i;
	}
	pa = scene_tokens(&at, a, 1000);
	pb = scene_tokens(&at, b, 1000);
	ck_assert_uint_eq(scene_put(&at, &pa, 1), 1);
	n = world_counters(&w);
	m.ns = at.ns.ns;
	m.n_tokens = 1000;
	m.keys = (struct proto_span){ b, 784 * 4 };
	m.tail = (struct proto_span){ b + 784, 216 * 4 };
	ck_assert_int_eq(world_match(at.c, &m, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n_device, 0);
	ck_assert_uint_eq(rep.reason, PROTO_REASON_BELOW_BLOCK);
	scene_release(&at, rep.lease, &end);
	ck_assert_uint_eq(end.miss_tokens, 1000);
	/* 240 shared ones and 216 that no key names are lost to the size of a block. */
	ck_assert_uint_eq(world_counters(&w).miss_below_block - n.miss_below_block, 456);
	explain(&at, &pb, &x);
	ck_assert_uint_eq(x.reason, PROTO_REASON_BELOW_BLOCK);
	ck_assert_uint_eq(x.matched_tokens, 0);
	ck_assert_uint_eq(x.position, 240);
	ck_assert_uint_eq(x.lost_tokens, 240);
	/* Where the tokens may be used, they are offered. */
	scene_match(&at, &pb, &rep);
	ck_assert_uint_eq(rep.tail_tokens, 240);
	ck_assert_uint_eq(rep.miss_token, 240);
	world_deinit(&w);
}
END_TEST

/* A prompt shorter than a block. */
START_TEST(short_prompt)
{
	struct proto_open_req o = opaque(784);
	struct scene_place at;
	struct scene_prompt p;
	uint32_t tokens[240] = { 0 };
	struct proto_explain_rep x;
	struct proto_match_rep rep;

	begin(16);
	at = scene_place(&w, 100, 1000, &o);
	p = scene_tokens(&at, tokens, 240);
	scene_match(&at, &p, &rep);
	ck_assert_uint_eq(rep.reason, PROTO_REASON_BELOW_BLOCK);
	scene_release(&at, rep.lease, NULL);
	ck_assert_uint_eq(world_counters(&w).miss_below_block, 240);
	explain(&at, &p, &x);
	ck_assert_uint_eq(x.reason, PROTO_REASON_BELOW_BLOCK);
	ck_assert_uint_eq(x.lost_tokens, 240);
	world_deinit(&w);
}
END_TEST

/* Token 1,234 of a cached prompt is changed: its position, and both tokens to the operator. */
START_TEST(first_difference)
{
	struct proto_open_req o = opaque(16);
	struct scene_place at, admin;
	struct proto_hello_req hello;
	struct proto_hello_rep hello_rep;
	struct scene_prompt p;
	static uint32_t tokens[2048];
	struct proto_explain_rep x;

	begin(256);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < 2048; i++)
		tokens[i] = 7 * i;
	p = scene_tokens(&at, tokens, 2048);
	ck_assert_uint_eq(scene_put(&at, &p, 1), 128);
	tokens[1234] = 99;
	explain(&at, &p, &x);
	ck_assert_uint_eq(x.reason, PROTO_REASON_DIVERGED);
	ck_assert_uint_eq(x.matched_tokens, 1232);
	ck_assert_uint_eq(x.position, 1234);
	ck_assert_uint_eq(x.lost_tokens, 2048 - 1234);
	ck_assert_uint_eq(x.has_tokens, 1); /* a worker learns its own token only */
	ck_assert_uint_eq(x.own_token, 99);
	ck_assert_uint_eq(x.stored_token, 0);
	admin = at;
	admin.c = world_connect(&w, 1, 0, true);
	hello = world_hello_req(admin.c);
	ck_assert_int_eq(world_hello(admin.c, &hello, &hello_rep), PROTO_STATUS_OK);
	explain(&admin, &p, &x); /* needs no OPEN */
	ck_assert_uint_eq(x.position, 1234);
	ck_assert_uint_eq(x.has_tokens, 3);
	ck_assert_uint_eq(x.own_token, 99);
	ck_assert_uint_eq(x.stored_token, 7 * 1234);
	world_deinit(&w);
}
END_TEST

/* The last token of a block, the first of the prompt, and one in the tail. */
START_TEST(other_positions)
{
	struct proto_open_req o = opaque(16);
	struct scene_place at;
	struct scene_prompt p;
	uint32_t tokens[128];
	struct proto_explain_rep x;
	static const struct {
		uint32_t at, n;
		enum proto_reason reason;
		uint64_t matched, position;
	} cases[] = {
		{ 31, 128, PROTO_REASON_DIVERGED, 16, 31 },
		{ 32, 128, PROTO_REASON_DIVERGED, 32, 32 },
		{ 15, 128, PROTO_REASON_BELOW_BLOCK, 0, 15 },
		{ 0, 128, PROTO_REASON_NEVER_SEEN, 0, 0 },
		{ 70, 75, PROTO_REASON_BELOW_BLOCK, 64, 70 },
		{ 500, 128, PROTO_REASON_NONE, 128, 128 },
		/* all of the tail is stored: no further than its end is compared */
		{ 500, 75, PROTO_REASON_BELOW_BLOCK, 64, 75 },
	};

	begin(64);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < 128; i++)
		tokens[i] = i;
	p = scene_tokens(&at, tokens, 128);
	ck_assert_uint_eq(scene_put(&at, &p, 1), 8);
	for (uint32_t i = 0; i < radix_array_size(cases); i++) {
		if (cases[i].at < 128)
			tokens[cases[i].at] ^= 1u << 30;
		p = scene_tokens(&at, tokens, cases[i].n);
		explain(&at, &p, &x);
		ck_assert_uint_eq(x.reason, cases[i].reason);
		ck_assert_uint_eq(x.matched_tokens, cases[i].matched);
		ck_assert_uint_eq(x.position, cases[i].position);
		if (cases[i].at < 128)
			tokens[cases[i].at] ^= 1u << 30;
	}
	world_deinit(&w);
}
END_TEST

/* What found no room is told apart from what nobody ever sent. */
START_TEST(no_room)
{
	struct proto_open_req o = opaque(16);
	struct scene_place a, b;
	struct scene_prompt pa, pb;
	uint32_t tokens[160];
	struct proto_match_rep held, rep;
	struct proto_reserve_req r = { .n = 6 };
	struct proto_reserve_rep got;
	struct proto_explain_rep x;

	begin(4);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	b.salt = world_text("b");
	for (uint32_t i = 0; i < 160; i++)
		tokens[i] = i;
	pa = scene_tokens(&a, tokens, 64);
	ck_assert_uint_eq(scene_put(&a, &pa, 1), 4);
	scene_match(&a, &pa, &held);
	ck_assert_uint_eq(held.n_device, 4);
	pb = scene_tokens(&b, tokens, 96);
	scene_match(&b, &pb, &rep);
	r.lease = rep.lease;
	ck_assert_int_eq(world_reserve(b.c, &r, &got), PROTO_STATUS_BUSY);
	ck_assert_uint_gt(b.c->retry_after_us, 0);
	explain(&b, &pb, &x);
	ck_assert_uint_eq(x.reason, PROTO_REASON_NO_ROOM);
	scene_release(&b, rep.lease, NULL);
	ck_assert_uint_eq(world_counters(&w).miss_no_room, 96);
	ck_assert_uint_eq(world_counters(&w).reserve_busy, 1);
	/* The holder lets go: four of eight are granted, which is all that there are. */
	scene_release(&a, held.lease, NULL);
	pb = scene_tokens(&b, tokens, 128);
	scene_match(&b, &pb, &rep);
	r.lease = rep.lease;
	ck_assert_int_eq(world_reserve(b.c, &r, &got), PROTO_STATUS_OK);
	ck_assert_uint_eq(got.n, 4);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("reasons");

	scene_case(s, "T39", below_block);
	scene_case(s, "T39", short_prompt);
	scene_case(s, "T40", first_difference);
	scene_case(s, "T40", other_positions);
	scene_case(s, "reasons", no_room);
	return scene_main(s);
}
