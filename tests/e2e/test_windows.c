/*
 * test_windows.c - prompts that are read through a window, by libprefixd and the real daemon: a
 * chat five times as long as the pool, what it finds and what it takes, with a window and without;
 * a prompt of several frames; lower tiers; a restart.
 */
#include "clients/c/prefixd_load.h"
#include "clients/c/prefixd_windows.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	BLOCK = 4096,
	BT = 16,
	W = 4, /* blocks of the window */
	POOL = 32,
	LONG = 5 * POOL
};

static struct e2e_daemon daemon_;
static uint32_t keys[LONG * BT];

static void start(const char *more, const char *value)
{
	const char *args[] = { "--pool-blocks", "32", more, value, NULL };

	ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
}

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&daemon_), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&daemon_);
}

static void expect(pfx_client *c, int r, int expected)
{
	ck_assert_msg(r == expected, "%s instead of %s: %s", pfx_status_to_string(r),
		      pfx_status_to_string(expected), pfx_error(c));
}

static pfx_namespace *open_ns(pfx_client *c, bool windowed)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | (windowed ? PFX_NS_WINDOWS : 0),
		.model = windowed ? "sliding" : "full",
		.revision = "r1",
		.dtype = "float16",
		.layers = 2,
		.block_tokens = BT,
		.block_bytes = BLOCK,
		.layout = "opaque",
		.windows = "0-1:64",
		.tp_size = 1,
		.engine = "test 1",
		.map = 1,
	};
	pfx_namespace *ns = NULL;

	expect(c, pfx_open(c, &o, &ns), PFX_OK);
	ck_assert_uint_eq(pfx_window(ns), windowed ? W : 0);
	return ns;
}

static pfx_prompt prompt_of(uint32_t chat, uint32_t n)
{
	for (uint32_t i = 0; i < n * BT; i++)
		keys[i] = chat * 100000 + i;
	return (pfx_prompt){ .struct_size = sizeof(pfx_prompt), .keys = keys, .n_keys = n };
}

static uint8_t byte_of(uint32_t chat, uint32_t block)
{
	return (uint8_t)(chat * 83 + block * 31 + 1);
}

/* Every byte of the runs, which are of the blocks from `block` on; returns how many have a slot. */
static uint32_t check_runs(pfx_namespace *ns, const pfx_run *runs, uint32_t n_runs, uint32_t chat,
			   uint32_t block, uint32_t n)
{
	uint32_t end = block + n, slots = 0;

	for (uint32_t i = 0; i < n_runs; i++) {
		for (uint32_t k = 0; k < runs[i].len; k++, block++) {
			const uint8_t *s;

			if (runs[i].start == PFX_SLOT_NONE)
				continue;
			s = pfx_slot(ns, runs[i].start + k);
			ck_assert_ptr_nonnull(s);
			for (uint32_t b = 0; b < BLOCK; b++)
				ck_assert_uint_eq(s[b], byte_of(chat, block));
			slots++;
		}
	}
	ck_assert_uint_eq(block, end);
	return slots;
}

/* Computes blocks [have, n) of a lease, a few at a time; returns how far it came. */
static uint32_t compute(pfx_namespace *ns, uint64_t lease, uint32_t chat, uint32_t have, uint32_t n)
{
	while (have < n) {
		pfx_reserve_result v = { .struct_size = sizeof(v) };
		pfx_commit_result k = { .struct_size = sizeof(k) };
		uint32_t block = have;

		if (pfx_reserve(ns, lease, n - have < 8 ? n - have : 8, 200, &v))
			break;
		for (uint32_t i = 0; i < v.n_runs; i++)
			for (uint32_t j = 0; j < v.runs[i].len; j++, block++)
				memset(pfx_slot(ns, v.runs[i].start + j), byte_of(chat, block),
				       BLOCK);
		if (pfx_commit(ns, lease, v.n, NULL, 0, 0, &k))
			break;
		have += v.n;
	}
	return have;
}

/* A turn of a chat; returns the blocks that it found. */
static uint32_t turn(pfx_client *c, pfx_namespace *ns, uint32_t chat, uint32_t n)
{
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_prompt p = prompt_of(chat, n);
	uint32_t slots;

	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	slots = check_runs(ns, m.runs, m.n_runs, chat, 0, m.n_device);
	if (pfx_window(ns))
		ck_assert_uint_eq(slots, m.n_device < W ? m.n_device : W);
	(void)compute(ns, m.lease, chat, m.n_device, n);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	return m.n_device;
}

/* A number of the admin socket's status, by its name; the first one of that name. */
static unsigned long status_of(const char *name)
{
	char *json = e2e_admin(&daemon_, "{\"op\":\"status\"}"), quoted[64], *at;
	unsigned long n;

	snprintf(quoted, sizeof(quoted), "\"%s\":", name);
	at = strstr(json, quoted);
	ck_assert_msg(at != NULL, "no %s in %s", name, json);
	n = strtoul(at + strlen(quoted), NULL, 10);
	pfx_free_string(json);
	return n;
}

/* The same chat in both worlds, and another one beside it. */
static uint32_t chats(bool windowed)
{
	pfx_client *c;
	pfx_namespace *ns;
	uint32_t found = 0;

	start("--log-level", "info");
	c = e2e_connect(&daemon_);
	ns = open_ns(c, windowed);
	for (uint32_t n = 8; n <= LONG; n += 8) {
		found += turn(c, ns, 1, n);
		found += turn(c, ns, 2, n < 64 ? n : 64);
	}
	pfx_close(c);
	return found;
}

START_TEST(a_chat_longer_than_the_pool)
{
	uint32_t with, without, all = 0;

	for (uint32_t n = 8; n <= LONG; n += 8) {
		all += n - 8;
		all += n <= 64 ? n - 8 : 64;
	}
	with = chats(true);
	ck_assert_uint_eq(with, all); /* of each turn, all that was there before */
	ck_assert_int_eq(e2e_daemon_stop(&daemon_, SIGTERM), 0);
	without = chats(false);
	ck_assert_uint_gt(with, 2 * without);
	fprintf(stderr, "%u of %u blocks found with the window, %u without\n", with, all, without);
}
END_TEST

/* Its keys go in several frames; the result is one. */
START_TEST(one_prompt_in_parts)
{
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_client *c;
	pfx_namespace *ns;
	pfx_prompt p;

	start("--max-keys", "64");
	c = e2e_connect(&daemon_);
	ns = open_ns(c, true);
	p = prompt_of(1, LONG);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device, 0);
	ck_assert_uint_eq(compute(ns, m.lease, 1, 0, LONG), LONG);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device, LONG);
	ck_assert_uint_eq(m.runs[0].start, PFX_SLOT_NONE);
	ck_assert_uint_eq(m.runs[0].len, LONG - W);
	ck_assert_uint_eq(check_runs(ns, m.runs, m.n_runs, 1, 0, LONG), W);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	pfx_close(c);
}
END_TEST

START_TEST(host_memory_holds_windows_only)
{
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_load_result load = { .struct_size = sizeof(load) };
	pfx_prompt p;
	pfx_client *c;
	pfx_namespace *ns;

	start("--host-blocks", "64");
	c = e2e_connect(&daemon_);
	ns = open_ns(c, true);
	for (uint32_t chat = 1; chat <= 12; chat++) /* of twelve chats the pool has eight windows */
		ck_assert_uint_eq(turn(c, ns, chat, 40), 0);
	p = prompt_of(1, 40);
	p.flags = PFX_MATCH_PROMOTE;
	p.load_ms = 5000;
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device + m.n_host, 40);
	ck_assert_uint_lt(m.n_device, 40);
	ck_assert_int_eq(m.loading, 1);
	expect(c, pfx_load_wait(ns, m.lease, 5000, &load), PFX_OK);
	p.n_keys = 0;
	p.flags = 0;
	{
		pfx_match_result more = { .struct_size = sizeof(more) };

		expect(c, pfx_extend(ns, m.lease, &p, &more), PFX_OK);
		ck_assert_uint_eq(m.n_device + more.n_device, 40);
		ck_assert_uint_eq(
			check_runs(ns, more.runs, more.n_runs, 1, m.n_device, more.n_device), W);
	}
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	ck_assert_uint_eq(status_of("n_host"), 64);
	pfx_close(c);
}
END_TEST

/* A session that reads everything shares the namespace and is told up to the first gap. */
START_TEST(others_share_what_is_whole)
{
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_namespace_options o;
	pfx_client *a, *b;
	pfx_namespace *na, *nb = NULL;
	pfx_prompt p;

	start("--log-level", "info");
	a = e2e_connect(&daemon_);
	b = e2e_connect(&daemon_);
	na = open_ns(a, true);
	o = (pfx_namespace_options){
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE,
		.model = "sliding",
		.revision = "r1",
		.dtype = "float16",
		.layers = 2,
		.block_tokens = BT,
		.block_bytes = BLOCK,
		.layout = "opaque",
		.windows = "0-1:64",
		.tp_size = 1,
		.engine = "test 1",
		.map = 1,
	};
	expect(b, pfx_open(b, &o, &nb), PFX_OK);
	ck_assert_uint_eq(pfx_window(nb), 0);
	turn(a, na, 1, 24);
	ck_assert_uint_eq(turn(b, nb, 1, 24), 24);
	turn(a, na, 2, 24);
	p = prompt_of(1, 24);
	expect(b, pfx_match(nb, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_device, 0);
	expect(b, pfx_release(nb, m.lease, 0, 0, 0, NULL), PFX_OK);
	ck_assert_uint_eq(turn(a, na, 1, 24), 24);
	o.windows = "0-2:64";
	o.flags |= PFX_NS_WINDOWS;
	expect(b, pfx_open(b, &o, &nb), PFX_BAD_NAMESPACE);
	ck_assert_msg(strstr(pfx_error(b), "below `layers`"), "%s", pfx_error(b));
	pfx_close(a);
	pfx_close(b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("windows");
	TCase *tc = tcase_create("windows");

	if (!e2e_daemon_binary())
		return E2E_SKIP;
	tcase_set_timeout(tc, 100);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_chat_longer_than_the_pool);
	tcase_add_test(tc, one_prompt_in_parts);
	tcase_add_test(tc, host_memory_holds_windows_only);
	tcase_add_test(tc, others_share_what_is_whole);
	suite_add_tcase(s, tc);
	return test_run(s);
}
