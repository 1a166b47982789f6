/*
 * shell_world.c - see shell_world.h.
 */
#include "tests/e2e/shell_world.h"
#include "tests/lib/run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct e2e_daemon d;

void shell_setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
}

void shell_teardown(void)
{
	e2e_daemon_free(&d);
}

void shell_start(const char *const args[])
{
	int r = e2e_daemon_start(&d, args);

	if (r != 0) {
		char *log = e2e_daemon_log(&d);

		ck_abort_msg("the daemon did not start: %d: %s", r, log);
	}
}

/* ---- requests -------------------------------------------------------------------------------- */

size_t match_body(uint8_t *out, size_t cap, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	uint32_t *tokens = malloc((size_t)n_blocks * BLOCK * 4 + 1);
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = ns,
				     .n_tokens = (uint64_t)n_blocks * BLOCK,
				     .keys = { .p = tokens, .n = n_blocks * BLOCK * 4 } };
	struct proto_writer w = { .p = out, .cap = cap };

	ck_assert_ptr_nonnull(tokens);
	for (uint32_t i = 0; i < n_blocks * BLOCK; i++)
		tokens[i] = first + i;
	proto_match_req_encode(&w, &m);
	ck_assert(proto_writer_ok(&w));
	free(tokens);
	return w.len;
}

struct proto_match_rep match(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	static uint8_t body[1 << 16];
	struct proto_match_rep rep;
	const char *bad;

	ck_assert(raw_call(r, PROTO_OP_MATCH, body,
			   match_body(body, sizeof(body), ns, first, n_blocks)));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	ck_assert_int_eq(proto_match_rep_decode(r->body, r->h.len, &rep, &bad), 0);
	return rep;
}

void release(struct raw *r, uint64_t lease)
{
	const struct proto_release_req m = { .lease = lease };
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_release_req_encode(&w, &m);
	ck_assert(raw_call(r, PROTO_OP_RELEASE, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
}

void store(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks)
{
	const struct proto_match_rep rep = match(r, ns, first, n_blocks);
	const struct proto_reserve_req reserve = { .lease = rep.lease, .n = n_blocks };
	const struct proto_commit_req commit = { .lease = rep.lease, .n = n_blocks };
	uint64_t lease = rep.lease;
	uint8_t body[64];
	struct proto_writer w = { .p = body, .cap = sizeof(body) };

	proto_reserve_req_encode(&w, &reserve);
	ck_assert(raw_call(r, PROTO_OP_RESERVE, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	w = (struct proto_writer){ .p = body, .cap = sizeof(body) };
	proto_commit_req_encode(&w, &commit);
	ck_assert(raw_call(r, PROTO_OP_COMMIT, body, w.len));
	ck_assert_uint_eq(r->h.status, PROTO_STATUS_OK);
	release(r, lease);
}

json_t *admin(const char *request)
{
	struct raw r;
	json_t *j;

	raw_connect(&r, d.admin);
	j = json_loads(raw_admin(&r, request), 0, NULL);
	ck_assert_msg(json_is_object(j), "%s: no object", request);
	raw_close(&r);
	return j;
}

json_int_t number(const json_t *j, const char *name)
{
	const json_t *v = json_object_get(j, name);

	ck_assert_msg(json_is_integer(v), "no number %s", name);
	return json_integer_value(v);
}

json_int_t admin_number(const char *request, const char *name)
{
	json_t *j = admin(request);
	json_int_t n = number(j, name);

	json_decref(j);
	return n;
}

void expect_clean(void)
{
	json_t *j = admin("{\"op\":\"audit\"}");

	ck_assert(json_is_true(json_object_get(j, "ok")));
	ck_assert(json_is_true(json_object_get(j, "clean")));
	json_decref(j);
}

void wait_stat(const char *name, json_int_t n)
{
	unsigned long end = e2e_now_ms() + 2000;
	json_int_t have;

	while ((have = admin_number("{\"op\":\"stat\"}", name)) != n) {
		ck_assert_msg(e2e_now_ms() < end, "%s is %lld, not %lld", name, (long long)have,
			      (long long)n);
		e2e_sleep_ms(5);
	}
}

/* ---- main ------------------------------------------------------------------------------------ */

int shell_main(const struct shell_case *cases, size_t n, const char *only)
{
	Suite *s = suite_create("shell");

	if (!e2e_daemon_binary()) {
		puts("1..0 # SKIP no prefixd binary");
		return EXIT_SUCCESS;
	}
	for (size_t i = 0; i < n; i++) {
		TCase *tc;

		if (only && strcmp(only, cases[i].name) != 0)
			continue;
		tc = tcase_create(cases[i].name);
		tcase_set_timeout(tc, 120);
		tcase_add_checked_fixture(tc, shell_setup, shell_teardown);
		for (const TTest *const *t = cases[i].tests; *t; t++)
			tcase_add_test(tc, *t);
		suite_add_tcase(s, tc);
	}
	return test_run(s);
}
