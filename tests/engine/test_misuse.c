/*
 * test_misuse.c - T29: any operation in any state, whole, cut or mangled, is answered once and
 * changes nothing that it should not.
 */
#include "tests/engine/scene.h"

static struct world w;

/* The states a session can be in, each with something in it that a wrong call could break. */
enum state {
	FRESH,
	HELLO_SAID,
	OPENED,
	MATCHED,
	RESERVED,
	COMMITTED,
	RELEASED,
	REVOKED,
	DRAINING,
	N_STATES
};

struct bed {
	struct world_client *c;
	struct proto_open_rep ns;
	uint64_t lease;
};

static uint32_t tokens[32];

static void reserve_and_commit(struct bed *b, enum state state)
{
	struct proto_reserve_req r = { .lease = b->lease, .n = 4 };
	struct proto_reserve_rep got;
	struct proto_commit_req c = { .lease = b->lease, .n = 2 };
	struct proto_commit_rep done;
	struct proto_release_req rel = { .lease = b->lease };
	struct proto_release_rep end;

	if (state == MATCHED)
		return;
	ck_assert_int_eq(world_reserve(b->c, &r, &got), PROTO_STATUS_OK);
	if (state == RESERVED || state == REVOKED)
		return;
	ck_assert_int_eq(world_commit(b->c, &c, &done), PROTO_STATUS_OK);
	if (state == RELEASED)
		ck_assert_int_eq(world_release(b->c, &rel, &end), PROTO_STATUS_OK);
}

static struct bed bring(enum state state)
{
	struct bed b = { .c = world_connect(&w, 100, 1000, false) };
	struct proto_hello_req hello = world_hello_req(b.c);
	struct proto_hello_rep hello_rep;
	struct proto_open_req o = world_open_req("m");
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .n_tokens = 32,
				     .keys = { tokens, sizeof(tokens) } };
	struct proto_match_rep rep;

	hello.flags = PROTO_HELLO_COPIES;
	if (state == FRESH)
		return b;
	ck_assert_int_eq(world_hello(b.c, &hello, &hello_rep), PROTO_STATUS_OK);
	if (state == HELLO_SAID)
		return b;
	ck_assert_int_eq(world_open(b.c, &o, &b.ns), PROTO_STATUS_OK);
	if (state == OPENED)
		return b;
	m.ns = b.ns.ns;
	ck_assert_int_eq(world_match(b.c, &m, &rep), PROTO_STATUS_OK);
	b.lease = rep.lease;
	reserve_and_commit(&b, state);
	if (state == REVOKED)
		world_advance(&w, 2000000);
	if (state == DRAINING)
		world_drain(&w, 0);
	return b;
}

static void begin(void)
{
	struct world_config config;

	world_config_init(&config);
	config.engine.limits.lease_max_age_ns = 1000000;
	ck_assert_int_eq(world_init(&w, &config), 0);
	for (uint32_t i = 0; i < 32; i++)
		tokens[i] = i;
}

/* A right body of the operation for this bed; the lease is the bed's. */
static uint32_t body_of(const struct bed *b, uint16_t op, uint8_t *out, uint32_t cap)
{
	struct proto_writer wr = { .p = out, .cap = cap };
	struct proto_hello_req hello = world_hello_req(b->c);
	struct proto_open_req open = world_open_req("m");
	struct proto_match_req match = {
		.has = PROTO_HAS_ALL, .ns = b->ns.ns, .n_tokens = 32, .keys = { tokens, 64 }
	};
	struct proto_extend_req extend = { .lease = b->lease,
					   .n_tokens = 64,
					   .keys = { tokens, 64 } };
	struct proto_reserve_req reserve = { .lease = b->lease, .n = 1 };
	struct proto_commit_req commit = { .lease = b->lease, .n = 1 };
	struct proto_release_req release = { .lease = b->lease };
	struct proto_probe_req probe = { .has = PROTO_HAS_ALL, .ns = b->ns.ns };
	struct proto_explain_req explain = { .has = PROTO_HAS_ALL, .ns = b->ns.ns };
	struct proto_report_req report = { .ns = b->ns.ns };
	struct proto_subscribe_req subscribe = { .ns = b->ns.ns };
	struct proto_quiesced_req quiesced = { .instance = b->c->instance };
	struct proto_wait_req wait = { .lease = b->lease };

	switch (op) {
#define CASE(OP, name, type)                         \
	case PROTO_OP_##OP:                          \
		proto_##type##_encode(&wr, &(name)); \
		break;
		CASE(HELLO, hello, hello_req)
		CASE(OPEN, open, open_req)
		CASE(MATCH, match, match_req)
		CASE(EXTEND, extend, extend_req)
		CASE(RESERVE, reserve, reserve_req)
		CASE(COMMIT, commit, commit_req)
		CASE(RELEASE, release, release_req)
		CASE(PROBE, probe, probe_req)
		CASE(EXPLAIN, explain, explain_req)
		CASE(REPORT, report, report_req)
		CASE(SUBSCRIBE, subscribe, subscribe_req)
		CASE(QUIESCED, quiesced, quiesced_req)
		CASE(WAIT, wait, wait_req)
#undef CASE
	default:
		break;
	}
	ck_assert(proto_writer_ok(&wr));
	return (uint32_t)wr.len;
}

static const uint16_t ops[] = { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
				12, 13, 14, 15, 16, 17, 18, 19, 31, 32, 33, 65535 };

/* What a right body of this operation is answered in this state. */
static int wanted(enum state state, uint16_t op)
{
	bool ended = state == RELEASED || state == HELLO_SAID || state == OPENED;
	bool draining = state == DRAINING;

	if (op == 0 || (op > 15 && op != 8))
		return state == FRESH ? PROTO_STATUS_NO_HELLO : PROTO_STATUS_UNKNOWN_OP;
	if (state == FRESH)
		return op == PROTO_OP_HELLO ? PROTO_STATUS_OK : PROTO_STATUS_NO_HELLO;
	switch ((enum proto_op)op) {
	case PROTO_OP_HELLO:
		return PROTO_STATUS_WRONG_STATE;
	case PROTO_OP_OPEN:
		return draining ? PROTO_STATUS_DRAINING : PROTO_STATUS_OK;
	case PROTO_OP_MATCH:
		if (draining)
			return PROTO_STATUS_DRAINING;
		return state == HELLO_SAID ? PROTO_STATUS_UNKNOWN_NAMESPACE : PROTO_STATUS_OK;
	case PROTO_OP_PROBE:
	case PROTO_OP_EXPLAIN:
	case PROTO_OP_REPORT:
		return state == HELLO_SAID ? PROTO_STATUS_UNKNOWN_NAMESPACE : PROTO_STATUS_OK;
	case PROTO_OP_EXTEND:
	case PROTO_OP_RELEASE:
		break;
	case PROTO_OP_RESERVE:
		if (draining)
			return PROTO_STATUS_DRAINING;
		break;
	case PROTO_OP_COMMIT:
		if (state == MATCHED)
			return PROTO_STATUS_WRONG_STATE;
		break;
	case PROTO_OP_WAIT:
		if (state == RESERVED || state == COMMITTED || draining)
			return PROTO_STATUS_WRONG_STATE;
		break;
	case PROTO_OP_PREFETCH:
		return PROTO_STATUS_UNSUPPORTED;
	case PROTO_OP_SUBSCRIBE:
	case PROTO_OP_QUIESCED:
	case PROTO_OP_PING:
		return PROTO_STATUS_OK;
	case PROTO_OP_EVENT:   /* the daemon's own */
	case PROTO_OP_CHANGES: /* likewise */
	case PROTO_OP_LOST:    /* likewise */
	case PROTO_OP_ADMIN:
		return PROTO_STATUS_UNKNOWN_OP;
	}
	return ended              ? PROTO_STATUS_UNKNOWN_LEASE
	       : state == REVOKED ? PROTO_STATUS_REVOKED
				  : PROTO_STATUS_OK;
}

/* Every pair of state and operation has one answer, which stands in a table. */
START_TEST(every_pair)
{
	for (int state = 0; state < N_STATES; state++) {
		for (uint32_t i = 0; i < radix_array_size(ops); i++) {
			uint8_t body[512];
			struct bed b;
			int got, want = wanted((enum state)state, ops[i]);

			begin();
			b = bring((enum state)state);
			got = world_raw(b.c, ops[i], body, body_of(&b, ops[i], body, sizeof(body)));
			ck_assert_msg(got == want, "state %d, op %u: %s, not %s", state, ops[i],
				      proto_status_to_string((uint16_t)got),
				      proto_status_to_string((uint16_t)want));
			ck_assert_msg(got == PROTO_STATUS_OK || b.c->error_text[0],
				      "an error without words");
			ck_assert(b.c->closed == (state == FRESH && want != PROTO_STATUS_OK));
			world_kill(&w, 100);
			world_deinit(&w);
		}
	}
}
END_TEST

/* Bodies cut at every byte, or with a byte behind: BAD_BODY with a field, and nothing changes. */
START_TEST(cut_bodies)
{
	for (uint16_t op = 1; op <= 15; op++) {
		struct prefixd_counters before, after;
		uint8_t body[512] = { 0 };
		struct bed b;
		uint32_t len;

		if (op == PROTO_OP_HELLO || op == PROTO_OP_PREFETCH)
			continue;
		begin();
		b = bring(RESERVED);
		len = body_of(&b, op, body, sizeof(body));
		before = world_counters(&w);
		for (uint32_t cut = 0; cut <= len + 1; cut++) {
			if (cut == len)
				continue;
			ck_assert_int_eq(world_raw(b.c, op, body, cut), PROTO_STATUS_BAD_BODY);
			ck_assert_str_ne(b.c->error_field, "");
			ck_assert(!b.c->closed);
		}
		after = world_counters(&w);
		before.requests += len + 1;
		before.errors += len + 1;
		ck_assert(memcmp(&before, &after, sizeof(before)) == 0);
		world_deinit(&w);
	}
}
END_TEST

/* Mangled bodies, thousands in each state: one answer each, every invariant after each. */
START_TEST(mangled_bodies)
{
	uint64_t rng = 29;

	for (int state = HELLO_SAID; state < N_STATES; state++) {
		struct bed b;

		begin();
		b = bring((enum state)state);
		for (uint32_t n = 0; n < 2000; n++) {
			uint16_t op = ops[test_rng_below(&rng, radix_array_size(ops))];
			uint8_t body[600];
			uint32_t len = body_of(&b, op, body, sizeof(body)), flips;

			for (flips = test_rng_below(&rng, 4); flips && len; flips--)
				body[test_rng_below(&rng, len)] = (uint8_t)test_rng(&rng);
			if (test_rng_below(&rng, 8) == 0)
				len = test_rng_below(&rng, len + 1);
			world_raw(b.c, op, body, len);
			ck_assert(!b.c->closed);
		}
		world_kill(&w, 100);
		world_deinit(&w);
	}
}
END_TEST

/* Wrong headers: an answer, then the connection closes, and what it held is given back. */
START_TEST(bad_headers)
{
	static const enum proto_status why[] = { PROTO_STATUS_BAD_FRAME, PROTO_STATUS_VERSION,
						 PROTO_STATUS_TOO_LARGE };

	for (int state = FRESH; state <= RESERVED; state++) {
		for (uint32_t i = 0; i < radix_array_size(why); i++) {
			struct proto_header h = { .magic = 1, .version = 9, .len = 1u << 30 };
			struct prefixd_event event = { .type = PREFIXD_EVENT_FRAME_BAD };
			struct bed b;

			begin();
			b = bring((enum state)state);
			event.session = b.c->session;
			event.u.bad.header = &h;
			event.u.bad.status = why[i];
			b.c->n_replies = 0;
			world_step(&w, &event);
			ck_assert_uint_eq(b.c->n_replies, 1);
			ck_assert_uint_eq(b.c->h.status, why[i]);
			ck_assert(b.c->closed);
			/* Leases keep it as an orphan until the process is gone. */
			ck_assert(b.c->used == (state >= MATCHED));
			world_gone(b.c);
			ck_assert(!b.c->used);
			world_deinit(&w);
		}
	}
}
END_TEST

/* A frame before the end of HELLO is short. */
START_TEST(long_hello)
{
	static uint8_t body[PROTO_MAX_HELLO + 1];
	struct world_client *c;

	begin();
	c = world_connect(&w, 100, 1000, false);
	ck_assert_int_eq(world_raw(c, PROTO_OP_HELLO, body, sizeof(body)), PROTO_STATUS_TOO_LARGE);
	ck_assert(c->closed && !c->used);
	world_deinit(&w);
}
END_TEST

/* Frames and ends that arrive after the engine is done with a session are nothing to it. */
START_TEST(late_events)
{
	struct proto_header h = { .magic = PROTO_MAGIC, .version = 1, .op = PROTO_OP_PING };
	struct prefixd_event event = { .session = 31 };
	struct bed b;

	begin();
	b = bring(RESERVED);
	world_eof(b.c);
	event.u.frame.header = &h;
	for (uint32_t i = 0; i < 2; i++) {
		static const enum prefixd_event_type types[] = { PREFIXD_EVENT_FRAME,
								 PREFIXD_EVENT_SESSION_EOF,
								 PREFIXD_EVENT_PROCESS_GONE };

		for (uint32_t k = 0; k < 3; k++) {
			if (i == 1 && k == 2)
				continue;
			event.type = types[k];
			event.session = i ? b.c->session : 31; /* the orphan; nobody */
			world_step(&w, &event);
		}
	}
	ck_assert(b.c->used);
	world_gone(b.c);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("misuse");

	scene_case(s, "T29", every_pair);
	scene_case(s, "T29", cut_bodies);
	scene_case(s, "T29", mangled_bodies);
	scene_case(s, "T29", bad_headers);
	scene_case(s, "T29", long_hello);
	scene_case(s, "T29", late_events);
	return scene_main(s);
}
