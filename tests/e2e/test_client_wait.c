/*
 * test_client_wait.c - libprefixd's pfx_wait: EVENTs that come early, late, in pieces, or wrong.
 *
 * The daemon's side is scripted (fake.h).
 */
#include "tests/e2e/fake.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct fake fake;

static void expect(pfx_client *c, int r, int expected)
{
	ck_assert_msg(r == expected, "%s instead of %s: %s", pfx_status_to_string(r),
		      pfx_status_to_string(expected), pfx_error(c));
}

static bool answer_wait(struct fake *f, uint32_t state, uint32_t n)
{
	struct proto_wait_rep rep = { 55, (uint8_t)state, n, 9000000 };
	struct fake_reply r;

	proto_wait_rep_encode(fake_reply_begin(f, &r), &rep);
	return fake_reply_send(f, &r);
}

static bool send_event(struct fake *f, uint64_t seq, uint64_t lease, uint32_t state, uint32_t n)
{
	struct proto_event event = { lease, (uint8_t)state, n, state == PROTO_WAIT_LEAD ? 7u : 0u };
	struct fake_reply r;

	(void)fake_reply_begin(f, &r);
	r.h.op = PROTO_OP_EVENT;
	r.h.seq = seq;
	proto_event_encode(&r.w, &event);
	return fake_reply_send(f, &r);
}

static bool receive_wait(struct fake *f)
{
	struct proto_wait_req req;
	const char *bad;

	return fake_receive_op(f, PROTO_OP_WAIT) &&
	       fake_expect(f,
			   !proto_wait_req_decode(f->body, f->h.len, &req, &bad) &&
				   req.lease == 55 && req.deadline_us > 0 &&
				   req.deadline_us <= 5000000,
			   "WAIT of the lease, with the time that is left");
}

/* HELLO, OPEN, and a MATCH that gives lease 55. */
static bool serve_match(struct fake *f)
{
	return fake_hello(f) && fake_open(f) && fake_receive_op(f, PROTO_OP_MATCH) &&
	       fake_answer_match(f, 55, 0, 1, 0);
}

static uint32_t keys[64];

/* A client with that lease. */
static pfx_client *start(void (*serve)(struct fake *f), bool split, pfx_namespace **ret_ns,
			 uint64_t *ret_lease)
{
	pfx_connect_options o = { .struct_size = sizeof(o), .name = "test", .deadline_ms = 5000 };
	pfx_namespace_options n = { .struct_size = sizeof(n),
				    .key_mode = PFX_KEYS_TOKENS,
				    .model = "m",
				    .block_tokens = 16,
				    .block_bytes = 4096,
				    .map = 1 };
	pfx_prompt p = {
		.struct_size = sizeof(p), .keys = keys, .n_keys = 4, .flags = PFX_MATCH_LEAD
	};
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_client *c = NULL;

	memset(&fake, 0, sizeof(fake));
	fake.split = split;
	fake_start(&fake, serve);
	o.socket = fake.path;
	expect(c, pfx_connect(&o, &c), PFX_OK);
	expect(c, pfx_open(c, &n, ret_ns), PFX_OK);
	expect(c, pfx_match(*ret_ns, &p, &m), PFX_OK);
	*ret_lease = m.lease;
	return c;
}

static void stop(pfx_client *c)
{
	pfx_close(c);
	fake_stop(&fake);
}

/* ---- right ones ------------------------------------------------------------------------------ */

static void serve_states(struct fake *f)
{
	if (!serve_match(f))
		return;
	/* at once; behind the reply in one go; and in a while */
	if (receive_wait(f) && answer_wait(f, PROTO_WAIT_LEAD, 2) && receive_wait(f) &&
	    answer_wait(f, PROTO_WAIT_WAITING, 3) &&
	    send_event(f, f->h.seq, 55, PROTO_WAIT_READY, 3) && receive_wait(f) &&
	    answer_wait(f, PROTO_WAIT_WAITING, 3)) {
		e2e_sleep_ms(30);
		if (send_event(f, f->h.seq, 55, PROTO_WAIT_LEAD, 1) && receive_wait(f) &&
		    answer_wait(f, PROTO_WAIT_WAITING, 3) &&
		    send_event(f, f->h.seq, 55, PROTO_WAIT_FAILED, 0) && receive_wait(f) &&
		    answer_wait(f, PROTO_WAIT_WAITING, 3) &&
		    send_event(f, f->h.seq, 55, PROTO_WAIT_DEADLINE, 0))
			fake_serve_well(f);
	}
}

/* Each state as it comes, once in whole frames and once byte by byte. */
START_TEST(states)
{
	pfx_wait_result w = { .struct_size = sizeof(w) };
	pfx_namespace *ns;
	uint64_t lease;
	pfx_client *c = start(serve_states, _i, &ns, &lease);

	expect(c, pfx_wait(ns, lease, 0, &w), PFX_OK);
	ck_assert(w.state == PFX_WAIT_LEAD && w.n == 2 && w.leader_us == 9000000);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_OK);
	ck_assert(w.state == PFX_WAIT_READY && w.n == 3 && w.leader_us == 0);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_OK);
	ck_assert(w.state == PFX_WAIT_LEAD && w.n == 1 && w.leader_us == 7);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_OK);
	ck_assert_int_eq(w.state, PFX_WAIT_FAILED);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_DEADLINE);
	expect(c, pfx_release(ns, lease, 0, 0, 0, NULL), PFX_OK); /* not in doubt */
	ck_assert_str_eq(pfx_wait_state_to_string(PFX_WAIT_LEAD), "lead");
	ck_assert_str_eq(pfx_wait_state_to_string(99), "?");
	stop(c);
}
END_TEST

/* ---- late ones ------------------------------------------------------------------------------- */

static bool reserved(struct fake *f)
{
	struct radix_run run = { 2, 2 };
	struct proto_reserve_rep rep = { 2, 1, 5, { &run, 1 } };
	struct fake_reply r;

	proto_reserve_rep_encode(fake_reply_begin(f, &r), &rep);
	return fake_reply_send(f, &r);
}

static void serve_late_event(struct fake *f)
{
	uint64_t seq;

	if (!serve_match(f) || !receive_wait(f) || !answer_wait(f, PROTO_WAIT_WAITING, 3))
		return;
	seq = f->h.seq;
	fake_step_wait(f, 1); /* the client gave up */
	/* It comes before the reply to RESERVE, again before that to PING, and before the next
	 * WAIT's own. */
	if (fake_receive_op(f, PROTO_OP_RESERVE) && send_event(f, seq, 55, PROTO_WAIT_READY, 3) &&
	    reserved(f) && fake_receive_op(f, PROTO_OP_PING) &&
	    send_event(f, seq, 55, PROTO_WAIT_LEAD, 0)) {
		struct fake_reply r;

		(void)fake_reply_begin(f, &r);
		if (fake_reply_send(f, &r) && receive_wait(f) &&
		    answer_wait(f, PROTO_WAIT_WAITING, 3) &&
		    send_event(f, seq, 55, PROTO_WAIT_FAILED, 0) &&
		    send_event(f, f->h.seq, 55, PROTO_WAIT_READY, 2))
			fake_serve_well(f);
	}
}

/* The EVENT of a wait that the client gave up is skipped, wherever it comes. */
START_TEST(late_events_are_skipped)
{
	pfx_wait_result w = { .struct_size = sizeof(w) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_namespace *ns;
	uint64_t lease;
	pfx_client *c = start(serve_late_event, false, &ns, &lease);

	expect(c, pfx_wait(ns, lease, 20, &w), PFX_DEADLINE);
	fake_step_set(&fake, 1);
	expect(c, pfx_reserve(ns, lease, 2, 0, &v), PFX_OK); /* in doubt it computes */
	ck_assert_uint_eq(v.n, 2);
	expect(c, pfx_ping(c, 0), PFX_OK);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_OK);
	ck_assert(w.state == PFX_WAIT_READY && w.n == 2);
	expect(c, pfx_release(ns, lease, 0, 0, 0, NULL), PFX_OK);
	stop(c);
}
END_TEST

static void serve_silent_wait(struct fake *f)
{
	if (serve_match(f) && receive_wait(f))
		fake_serve_well(f);
}

/* Not even a reply: the lease's path is what it was, so it stays good. */
START_TEST(no_reply)
{
	pfx_wait_result w = { .struct_size = sizeof(w) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_namespace *ns;
	uint64_t lease;
	pfx_client *c = start(serve_silent_wait, false, &ns, &lease);

	expect(c, pfx_wait(ns, lease, 20, &w), PFX_DEADLINE);
	expect(c, pfx_reserve(ns, lease, 2, 0, &v), PFX_OK);
	expect(c, pfx_commit(ns, lease, 2, NULL, 0, 0, &k), PFX_OK);
	stop(c);
}
END_TEST

/* ---- wrong ones ------------------------------------------------------------------------------ */

static int wrong; /* which */

static void serve_wrong(struct fake *f)
{
	struct fake_reply r;

	if (!serve_match(f) || !receive_wait(f))
		return;
	switch (wrong) {
	case 0: /* an event before the reply */
		(void)send_event(f, f->h.seq, 55, PROTO_WAIT_READY, 3);
		break;
	case 1: /* of a wait that was not begun */
		(void)(answer_wait(f, PROTO_WAIT_WAITING, 3) &&
		       send_event(f, f->h.seq + 1, 55, PROTO_WAIT_READY, 3));
		break;
	case 2: /* of another lease */
		(void)(answer_wait(f, PROTO_WAIT_WAITING, 3) &&
		       send_event(f, f->h.seq, 56, PROTO_WAIT_READY, 3));
		break;
	case 3: /* that ends nothing */
		(void)(answer_wait(f, PROTO_WAIT_WAITING, 3) &&
		       send_event(f, f->h.seq, 55, PROTO_WAIT_WAITING, 3));
		break;
	case 4: /* a state that is none */
		(void)answer_wait(f, 9, 3);
		break;
	default: /* cut off */
		if (!answer_wait(f, PROTO_WAIT_WAITING, 3))
			return;
		(void)fake_reply_begin(f, &r);
		r.h.op = PROTO_OP_EVENT;
		(void)fake_reply_send(f, &r);
		break;
	}
	if (fake_accept(f)) /* the client dropped the connection */
		(void)(fake_receive_op(f, PROTO_OP_HELLO) && fake_answer_hello(f) && fake_ping(f));
}

START_TEST(wrong_events_end_the_connection)
{
	pfx_wait_result w = { .struct_size = sizeof(w) };
	pfx_namespace *ns;
	uint64_t lease;
	pfx_client *c;

	wrong = _i;
	c = start(serve_wrong, false, &ns, &lease);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_PROTOCOL);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_UNKNOWN_LEASE);
	fake.ended = true; /* what follows need not come */
	stop(c);
}
END_TEST

static void serve_refusals(struct fake *f)
{
	if (serve_match(f) && receive_wait(f) &&
	    fake_answer_error(f, PROTO_STATUS_WRONG_STATE, "lease", "it has reservations", 0) &&
	    receive_wait(f) &&
	    fake_answer_error(f, PROTO_STATUS_UNSUPPORTED, "", "an old daemon", 0) &&
	    receive_wait(f) && answer_wait(f, PROTO_WAIT_WAITING, 3)) {
		(void)shutdown(f->fd, SHUT_RDWR);
		if (fake_accept(f))
			(void)(fake_receive_op(f, PROTO_OP_HELLO) && fake_answer_hello(f));
	}
}

/* Refusals, arguments, and a daemon that goes away while somebody waits. */
START_TEST(refusals)
{
	pfx_wait_result w = { .struct_size = sizeof(w) }, none = { 0 };
	pfx_namespace *ns;
	uint64_t lease;
	pfx_client *c = start(serve_refusals, false, &ns, &lease);

	expect(c, pfx_wait(ns, lease, 0, NULL), PFX_ARGUMENT);
	expect(c, pfx_wait(ns, lease, 0, &none), PFX_ARGUMENT);
	expect(c, pfx_wait(ns, lease + 1, 0, &w), PFX_UNKNOWN_LEASE);
	ck_assert_int_eq(pfx_wait(NULL, lease, 0, &w), PFX_ARGUMENT);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_WRONG_STATE);
	ck_assert_str_eq(pfx_error(c), "WAIT: lease: it has reservations");
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_UNSUPPORTED);
	expect(c, pfx_wait(ns, lease, 0, &w), PFX_UNKNOWN_LEASE); /* connected again */
	stop(c);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("client_wait");
	TCase *t = tcase_create("wait");

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, states, 0, 2);
	tcase_add_test(t, late_events_are_skipped);
	tcase_add_test(t, no_reply);
	tcase_add_loop_test(t, wrong_events_end_the_connection, 0, 6);
	tcase_add_test(t, refusals);
	suite_add_tcase(s, t);
	return test_run(s);
}
