/*
 * test_client_daemon.c - libprefixd against the real daemon: restarts, forks, deaths, PREFETCH.
 */
#include "clients/c/prefixd_load.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096u
#define KEYS  4u

static const char *const args[] = { "--pool-blocks", "64", NULL };
static struct e2e_daemon daemon_;

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&daemon_), 0);
	ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
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

/* Prompt number `seed`, and what a block of it must hold. */
static void prompt_of(uint32_t seed, uint32_t keys[KEYS * 16], pfx_prompt *ret)
{
	for (uint32_t i = 0; i < KEYS * 16; i++)
		keys[i] = seed * 1000 + i;
	*ret = (pfx_prompt){ .struct_size = sizeof(*ret), .keys = keys, .n_keys = KEYS };
}

static uint8_t byte_of(uint32_t seed, uint32_t block)
{
	return (uint8_t)(seed * 7 + block * 31 + 1);
}

struct score {
	uint32_t hits, stored, wrong;
};

/* One whole request.  Return: the first status that was not OK, or OK. */
static int request(pfx_namespace *ns, uint32_t seed, struct score *score)
{
	uint32_t keys[KEYS * 16];
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	pfx_prompt p;
	int r;

	prompt_of(seed, keys, &p);
	r = pfx_match(ns, &p, &m);
	if (r)
		return r;
	for (uint32_t i = 0, block = 0; i < m.n_runs; i++) {
		for (uint32_t j = 0; j < m.runs[i].len; j++, block++) {
			const uint8_t *s = pfx_slot(ns, m.runs[i].start + j);

			for (uint32_t b = 0; b < BLOCK; b++)
				score->wrong += s[b] != byte_of(seed, block);
			score->hits++;
		}
	}
	if (m.n_device < KEYS) {
		r = pfx_reserve(ns, m.lease, KEYS - m.n_device, 0, &v);
		if (r == 0) {
			for (uint32_t i = 0, block = v.first; i < v.n_runs; i++)
				for (uint32_t j = 0; j < v.runs[i].len; j++, block++)
					memset(pfx_slot(ns, v.runs[i].start + j),
					       byte_of(seed, block), BLOCK);
			r = pfx_commit(ns, m.lease, v.n, NULL, 0, 0, &k);
		}
		if (r)
			return r;
		score->stored += k.n_stored;
	}
	return pfx_release(ns, m.lease, 0, 0, 0, NULL);
}

START_TEST(round_trip)
{
	pfx_client *a = e2e_connect(&daemon_), *b = e2e_connect(&daemon_);
	pfx_namespace *na = e2e_open(a, "m", BLOCK), *nb = e2e_open(b, "m", BLOCK);
	struct score s = { 0 };
	uint32_t keys[KEYS * 16], n = 0;
	pfx_explain_result why = { .struct_size = sizeof(why) };
	pfx_prompt p;

	expect(a, request(na, 1, &s), PFX_OK);
	ck_assert_uint_eq(s.stored, KEYS);
	expect(b, request(nb, 1, &s), PFX_OK);
	ck_assert_uint_eq(s.hits, KEYS);
	ck_assert_uint_eq(s.wrong, 0);
	prompt_of(1, keys, &p);
	expect(b, pfx_probe(nb, &p, &n, NULL, 0), PFX_OK);
	ck_assert_uint_eq(n, KEYS);
	keys[2 * 16 + 3]++; /* the third block differs in its fourth token */
	expect(b, pfx_explain(nb, &p, &why), PFX_OK);
	ck_assert_str_eq(pfx_reason_to_string(why.reason), "diverged");
	ck_assert_uint_eq(why.position, 2 * 16 + 3);
	ck_assert_uint_eq(why.matched_tokens, 2 * 16); /* whole blocks */
	expect(b, pfx_report(nb, 1000, 10, 64, 1, 0), PFX_OK);
	expect(b, pfx_ping(b, 0), PFX_OK);
	pfx_close(a);
	pfx_close(b);
}
END_TEST

/* A prompt that begins again in its second frame: that is not taken for its beginning. */
START_TEST(probe_in_parts)
{
	static const char *const small[] = { "--pool-blocks", "128", "--max-keys", "64", NULL };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	uint32_t keys[128 * 16], n = 0;
	pfx_prompt p = { .struct_size = sizeof(p), .keys = keys, .n_keys = 64 };
	struct e2e_daemon d;
	uint8_t bits[16];
	pfx_namespace *ns;
	pfx_client *c;

	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, small), 0);
	c = e2e_connect(&d);
	ns = e2e_open(c, "m", BLOCK);
	for (unsigned i = 0; i < 128 * 16; i++)
		keys[i] = i % 16; /* every block the same */
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	expect(c, pfx_reserve(ns, m.lease, 64, 0, &v), PFX_OK);
	expect(c, pfx_commit(ns, m.lease, 64, NULL, 0, 0, &k), PFX_OK);
	expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	p.n_keys = 128;
	memset(bits, 0xaa, sizeof(bits));
	expect(c, pfx_probe(ns, &p, &n, bits, sizeof(bits)), PFX_OK);
	ck_assert_uint_eq(n, 64);
	for (unsigned i = 0; i < sizeof(bits); i++)
		ck_assert_uint_eq(bits[i], i < 8 ? 0xff : 0);
	pfx_close(c);
	e2e_daemon_free(&d);
}
END_TEST

/* ---- T21: a restart that nobody saw ---------------------------------------------------------- */

START_TEST(restart_unseen)
{
	pfx_client *c = e2e_connect(&daemon_);
	pfx_namespace *ns = e2e_open(c, "m", BLOCK);
	uint8_t before[16], after[16];

	for (int round = 0; round < 10; round++) {
		uint32_t keys[KEYS * 16];
		pfx_match_result m = { .struct_size = sizeof(m) };
		struct score s = { 0 };
		pfx_prompt p;

		expect(c, request(ns, 1, &s), PFX_OK);
		ck_assert_uint_eq(s.stored, KEYS); /* every life begins cold */
		prompt_of(1, keys, &p);
		expect(c, pfx_match(ns, &p, &m), PFX_OK);
		expect(c, pfx_boot_id(c, before), PFX_OK);
		ck_assert_int_eq(WTERMSIG(e2e_daemon_stop(&daemon_, SIGKILL)), SIGKILL);
		/* No pause: between two calls of the client there is a new daemon. */
		ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
		expect(c, pfx_ping(c, 0), PFX_OK);
		expect(c, pfx_boot_id(c, after), PFX_OK);
		ck_assert_int_ne(memcmp(before, after, 16), 0);
		expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	}
	pfx_close(c);
}
END_TEST

/* The call that meets the restart is one on a lease: it says so, and the next one works. */
START_TEST(restart_met_by_lease)
{
	pfx_client *c = e2e_connect(&daemon_);
	pfx_namespace *ns = e2e_open(c, "m", BLOCK);
	uint32_t keys[KEYS * 16], first;
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	pfx_commit_result k = { .struct_size = sizeof(k) };
	struct score s = { 0 };
	uint8_t *old;
	pfx_prompt p;

	prompt_of(2, keys, &p);
	expect(c, pfx_match(ns, &p, &m), PFX_OK);
	expect(c, pfx_reserve(ns, m.lease, KEYS, 0, &v), PFX_OK);
	first = v.runs[0].start;
	old = pfx_slot(ns, first);
	memset(old, 0x99, BLOCK);
	(void)e2e_daemon_stop(&daemon_, SIGKILL);
	ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
	expect(c, pfx_commit(ns, m.lease, KEYS, NULL, 0, 0, &k), PFX_UNKNOWN_LEASE);
	ck_assert_uint_eq(old[BLOCK - 1], 0x99); /* the old memory is ours until pfx_close */
	ck_assert_ptr_ne(pfx_slot(ns, first), old);
	expect(c, request(ns, 2, &s), PFX_OK);
	ck_assert_uint_eq(s.stored, KEYS);
	ck_assert_uint_eq(s.hits, 0); /* what was not committed is nowhere */
	pfx_close(c);
}
END_TEST

/* While it is away calls come back at once; when it is back they work again by themselves. */
START_TEST(away_and_back)
{
	pfx_client *c = e2e_connect(&daemon_);
	pfx_namespace *ns = e2e_open(c, "m", BLOCK);
	struct score s = { 0 };
	unsigned long end;
	int r;

	(void)e2e_daemon_stop(&daemon_, SIGKILL);
	for (int i = 0; i < 100; i++)
		expect(c, request(ns, 1, &s), PFX_GONE);
	ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
	end = e2e_now_ms() + 10000;
	while ((r = request(ns, 1, &s)) == PFX_GONE && e2e_now_ms() < end)
		e2e_sleep_ms(1); /* the back-off, 200 ms at most */
	expect(c, r, PFX_OK);
	ck_assert_uint_eq(s.stored, KEYS);
	pfx_close(c);
}
END_TEST

/* ---- killed under load ----------------------------------------------------------------------- */

#define LIVES 8

/* Exit status of a worker: 0 well, 1 wrong bytes, 2 a status that no restart explains. */
static int work(const struct e2e_daemon *d, int stop_fd, int ready_fd)
{
	pfx_client *c = e2e_connect(d);
	pfx_namespace *ns = e2e_open(c, "m", BLOCK);
	struct score s = { 0 };
	uint32_t seed = 0, n_ok = 0;
	char byte = 0;

	if (write(ready_fd, &byte, 1) != 1)
		return 4;
	while (read(stop_fd, &byte, 1) != 0) {
		int r = request(ns, seed++ % 12, &s);

		if (r == PFX_OK)
			n_ok++;
		else if (r == PFX_GONE)
			e2e_sleep_ms(1);
		else if (r != PFX_UNKNOWN_LEASE && r != PFX_BUSY)
			return 2;
		if (s.wrong)
			return 1;
	}
	pfx_close(c);
	return n_ok > 0 && s.hits > 0 ? 0 : 3;
}

START_TEST(killed_under_load)
{
	pid_t pids[3];
	int p[2], ready[2];
	char byte;

	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
	for (int i = 0; i < 3; i++) {
		pids[i] = fork();
		ck_assert_int_ge(pids[i], 0);
		if (pids[i] == 0) {
			close(p[1]);
			/* A read that finds nothing must not block. */
			ck_assert_int_eq(fcntl(p[0], F_SETFL, O_NONBLOCK), 0);
			_exit(work(&daemon_, p[0], ready[1]));
		}
	}
	close(p[0]);
	/* A worker that has not begun would only learn that nobody is there. */
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	for (int life = 0; life < LIVES; life++) {
		e2e_sleep_ms(60);
		(void)e2e_daemon_stop(&daemon_, SIGKILL);
		ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
	}
	e2e_sleep_ms(300);
	close(p[1]); /* the end for all of them */
	for (int i = 0; i < 3; i++) {
		int status;

		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		ck_assert_msg(status == 0, "worker %d ended with status %d", i, status);
	}
	{
		char *json = e2e_admin(&daemon_, "{\"op\":\"audit\"}");

		ck_assert_msg(strstr(json, "\"clean\":true") != NULL, "%s", json);
		pfx_free_string(json);
	}
}
END_TEST

/* ---- fork ------------------------------------------------------------------------------------ */

/* A child that lives on with the socket open keeps nothing of its dead parent's alive. */
START_TEST(child_outlives_parent)
{
	unsigned long end = e2e_now_ms() + 10000;
	char byte = 0;
	int p[2], hold[2], status;
	pid_t parent;
	bool gone = false;

	ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(hold, O_CLOEXEC), 0);
	parent = fork();
	if (parent == 0) {
		uint32_t keys[KEYS * 16];
		pfx_match_result m = { .struct_size = sizeof(m) };
		pfx_reserve_result v = { .struct_size = sizeof(v) };
		pfx_client *c = e2e_connect(&daemon_);
		pfx_namespace *ns = e2e_open(c, "m", BLOCK);
		pfx_prompt prompt;

		prompt_of(3, keys, &prompt);
		if (pfx_match(ns, &prompt, &m) || pfx_reserve(ns, m.lease, KEYS, 0, &v))
			_exit(1);
		if (fork() == 0) {
			close(hold[1]);
			(void)!read(hold[0], &byte, 1); /* until the test ends */
			_exit(0);
		}
		(void)!write(p[1], "x", 1);
		_exit(0);
	}
	close(hold[0]);
	ck_assert_int_eq(read(p[0], &byte, 1), 1);
	ck_assert_int_eq(waitpid(parent, &status, 0), parent);
	ck_assert_int_eq(status, 0);
	while (!gone && e2e_now_ms() < end) {
		char *json = e2e_admin(&daemon_, "{\"op\":\"pins\"}");

		gone = strstr(json, "\"pins\":[]") != NULL;
		pfx_free_string(json);
		e2e_sleep_ms(2);
	}
	ck_assert(gone);
	close(hold[1]);
}
END_TEST

/* What was pushed down by others comes up before somebody asks for it, and is what it was. */
START_TEST(fetched_ahead)
{
	/* Written through, so that slots can be had at once: it waits for no block to move down. */
	const char *const tiered[] = {
		"--pool-blocks", "16", "--host-blocks", "64", "--prefill-rate", "1", "--write",
		"through",       NULL
	};
	unsigned long end = e2e_now_ms() + 10000;
	pfx_prefetch_result ahead = { .struct_size = sizeof(ahead) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	struct score s = { 0 };
	uint32_t keys[KEYS * 16];
	pfx_prompt p;
	pfx_client *c;
	pfx_namespace *ns;

	(void)e2e_daemon_stop(&daemon_, SIGTERM);
	ck_assert_int_eq(e2e_daemon_start(&daemon_, tiered), 0);
	c = e2e_connect(&daemon_);
	ns = e2e_open(c, "m", BLOCK);
	for (uint32_t seed = 1; seed <= 8; seed++)
		expect(c, request(ns, seed, &s), PFX_OK);
	ck_assert_uint_eq(s.stored, 8 * KEYS);
	prompt_of(1, keys, &p);
	expect(c, pfx_prefetch(ns, &p, 0, &ahead), PFX_OK);
	ck_assert_uint_eq(ahead.n_host, KEYS);
	while (m.n_device < KEYS && e2e_now_ms() < end) {
		expect(c, pfx_match(ns, &p, &m), PFX_OK);
		expect(c, pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
		e2e_sleep_ms(2);
	}
	expect(c, request(ns, 1, &s), PFX_OK);
	ck_assert_uint_eq(s.hits, KEYS);
	ck_assert_uint_eq(s.wrong, 0);
	pfx_close(c);
}
END_TEST

static Suite *suite(bool t21)
{
	Suite *s = suite_create(t21 ? "T21" : "client_daemon");
	TCase *t = tcase_create("daemon");

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	if (t21) {
		tcase_add_test(t, restart_unseen);
		tcase_add_test(t, restart_met_by_lease);
	} else {
		tcase_add_test(t, round_trip);
		tcase_add_test(t, probe_in_parts);
		tcase_add_test(t, away_and_back);
		tcase_add_test(t, killed_under_load);
		tcase_add_test(t, child_outlives_parent);
		tcase_add_test(t, fetched_ahead);
	}
	suite_add_tcase(s, t);
	return s;
}

/* With "T21": that scenario only. */
int main(int argc, char **argv)
{
	if (!e2e_daemon_binary()) {
		fputs("no PREFIXD_BIN\n", stderr);
		return E2E_SKIP;
	}
	return test_run(suite(argc > 1 && strcmp(argv[1], "T21") == 0));
}
