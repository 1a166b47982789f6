/*
 * test_events.c - subscribers of a real daemon: one that stops reading, one that hears a clear, one
 * that hears of moves between tiers, and prefixctl watch.
 */
#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clients/c/prefixd_events.h"
#include "clients/c/prefixd_load.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#define POOL 256

static struct e2e_daemon d;

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&d);
}

/* n_blocks blocks of 16 tokens that count up from `first`; every call must be answered OK. */
static void store(pfx_namespace *ns, uint32_t first, uint32_t n_blocks)
{
	static uint32_t tokens[16 * POOL];
	pfx_prompt p = { .struct_size = sizeof(p), .keys = tokens, .n_keys = n_blocks };
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };

	for (uint32_t i = 0; i < 16 * n_blocks; i++)
		tokens[i] = first + i;
	ck_assert_int_eq(pfx_match(ns, &p, &m), PFX_OK);
	if (m.n_device < n_blocks) {
		ck_assert_int_eq(pfx_reserve(ns, m.lease, n_blocks, 0, &r), PFX_OK);
		ck_assert_int_eq(pfx_commit(ns, m.lease, r.n, NULL, 0, 0, &c), PFX_OK);
	}
	ck_assert_int_eq(pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
}

static uint64_t counter(const char *name)
{
	char *text = e2e_admin(&d, "{\"op\":\"status\"}");
	json_t *status = json_loads(text, 0, NULL);
	json_t *n = json_object_get(json_object_get(status, "counters"), name);
	uint64_t value;

	ck_assert_msg(json_is_integer(n), "no counter %s", name);
	value = (uint64_t)json_integer_value(n);
	json_decref(status);
	pfx_free_string(text);
	return value;
}

static void flush_all(void)
{
	pfx_free_string(e2e_admin(&d, "{\"op\":\"flush\",\"all\":true}"));
}

static long daemon_kib(void)
{
	char path[64], line[256];
	long kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)d.pid);
	f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	fclose(f);
	ck_assert_int_gt(kib, 0);
	return kib;
}

static void start(const char *ring)
{
	const char *const args[] = { "--pool-blocks", "256", "--event-ring", ring, NULL };

	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

/* What a router keeps: here, how many blocks it knows. */
struct known {
	bool used[POOL];
	uint32_t n;
	uint64_t last, resyncs, cleared, revision;
};

static void learn(struct known *k, const pfx_change *e)
{
	ck_assert(e->number > k->last || e->kind == PFX_CHANGE_RESYNC);
	k->last = e->number;
	switch (e->kind) {
	case PFX_CHANGE_STORED:
		ck_assert(e->slot < POOL && e->block_len == 16 && e->n_tokens == 16);
		k->n += !k->used[e->slot];
		k->used[e->slot] = true;
		break;
	case PFX_CHANGE_REMOVED:
		k->n -= k->used[e->slot];
		k->used[e->slot] = false;
		break;
	default:
		k->resyncs += e->kind == PFX_CHANGE_RESYNC;
		k->cleared += e->kind == PFX_CHANGE_CLEARED;
		k->revision = e->revision;
		memset(k->used, 0, sizeof(k->used));
		k->n = 0;
	}
}

/* Takes in what is there, until nothing comes for 200 ms. */
static void listen_all(pfx_client *c, struct known *k)
{
	pfx_change e = { .struct_size = sizeof(e) };
	int r;

	while ((r = pfx_next_event(c, 200, &e)) == PFX_OK)
		learn(k, &e);
	ck_assert_msg(r == PFX_DEADLINE, "%s", pfx_error(c));
}

START_TEST(stops_reading)
{
	static struct known deaf, well;
	pfx_client *worker, *listener, *reader;
	pfx_namespace *ns;
	uint64_t dropped;
	long before;

	start("16384");
	worker = e2e_connect(&d);
	ns = e2e_open(worker, "m", 64);
	listener = e2e_connect(&d);
	(void)e2e_open(listener, "m", 64);
	reader = e2e_connect(&d);
	(void)e2e_open(reader, "m", 64);
	ck_assert_int_eq(pfx_subscribe(listener, NULL, 0, NULL, 0, NULL), PFX_OK);
	ck_assert_int_eq(pfx_subscribe(reader, NULL, 0, NULL, 0, NULL), PFX_OK);
	/* One reads as it comes, the other does not read at all. */
	for (uint32_t i = 0; i < 50; i++)
		store(ns, 100000 * i, 128);
	before = daemon_kib();
	for (uint32_t i = 50; i < 400; i++) {
		store(ns, 100000 * i, 128);
		if (i % 2)
			continue;
		for (pfx_change e = { .struct_size = sizeof(e) };
		     pfx_next_event(reader, 5, &e) == PFX_OK;)
			learn(&well, &e);
	}
	dropped = counter("events_dropped");
	ck_assert_uint_gt(dropped, 10000);
	ck_assert_int_lt(daemon_kib() - before, 4096);
	store(ns, 1, 128);
	ck_assert_uint_ge(counter("events_dropped"), dropped);
	/* It reads again: what was under way, then one resync, and the stream goes on. */
	listen_all(listener, &deaf);
	ck_assert_uint_eq(deaf.resyncs, 1);
	ck_assert_uint_eq(well.resyncs, 0);
	flush_all();
	store(ns, 7, 100);
	listen_all(listener, &deaf);
	listen_all(reader, &well);
	ck_assert_uint_eq(deaf.cleared, 1);
	ck_assert_uint_eq(deaf.n, 100);
	ck_assert_uint_eq(well.n, 100);
	ck_assert_uint_eq(deaf.last, well.last);
	ck_assert_uint_ge(counter("resyncs"), 1);
	/* A subscriber does nothing else. */
	ck_assert_int_eq(pfx_ping(listener, 0), PFX_WRONG_STATE);
	ck_assert_int_eq(pfx_subscribe(listener, NULL, 0, NULL, 0, NULL), PFX_WRONG_STATE);
	pfx_close(listener);
	pfx_close(reader);
	pfx_close(worker);
}
END_TEST

START_TEST(clear_empties)
{
	static struct known k;
	pfx_client *worker, *listener;
	pfx_namespace *ns, *seen;
	pfx_change e = { .struct_size = sizeof(e) };
	uint8_t life[16];
	uint64_t last;

	start("65536");
	worker = e2e_connect(&d);
	ns = e2e_open(worker, "m", 64);
	listener = e2e_connect(&d);
	seen = e2e_open(listener, "m", 64);
	ck_assert_int_eq(pfx_boot_id(listener, life), PFX_OK);
	ck_assert_int_eq(pfx_next_event(listener, 1, &e), PFX_WRONG_STATE);
	ck_assert_int_eq(pfx_subscribe(listener, seen, 0, NULL, 0, &last), PFX_OK);
	store(ns, 1, 100);
	store(ns, 5000, 50);
	listen_all(listener, &k);
	ck_assert_uint_eq(k.n, 150);
	flush_all();
	listen_all(listener, &k);
	ck_assert_uint_eq(k.n, 0);
	ck_assert_uint_eq(k.cleared, 1);
	ck_assert_uint_eq(k.revision, 1);
	/* Another connection goes on where this one stops. */
	pfx_close(listener);
	store(ns, 9000, 20);
	listener = e2e_connect(&d);
	seen = e2e_open(listener, "m", 64);
	ck_assert_int_eq(pfx_subscribe(listener, seen, k.last + 1, life, 0, NULL), PFX_OK);
	listen_all(listener, &k);
	ck_assert_uint_eq(k.n, 20);
	ck_assert_uint_eq(k.resyncs, 0);
	/* The daemon goes, and the stream with it. */
	e2e_daemon_stop(&d, SIGKILL);
	ck_assert_int_eq(pfx_next_event(listener, 1000, &e), PFX_GONE);
	start("65536");
	seen = NULL;
	e2e_sleep_ms(300);
	ck_assert_int_eq(pfx_subscribe(listener, seen, k.last + 1, life, 0, NULL), PFX_OK);
	listen_all(listener, &k);
	ck_assert_uint_eq(k.resyncs, 1);
	ck_assert_uint_eq(k.n, 0);
	pfx_close(listener);
	pfx_close(worker);
}
END_TEST

/* ---- tiers ----------------------------------------------------------------------------------- */

/* What a router keeps of a daemon with a host tier: how many blocks are where. */
struct by_tier {
	uint64_t n[3], moved[3][3];
	bool cleared;
};

static void learn_tier(struct by_tier *t, const pfx_change *e)
{
	ck_assert(e->tier >= 0 && e->tier < 3 && e->from_tier >= 0 && e->from_tier < 3);
	ck_assert((e->slot == UINT32_MAX) == (e->tier != 0) || e->kind == PFX_CHANGE_CLEARED);
	switch (e->kind) {
	case PFX_CHANGE_STORED:
		t->n[e->tier]++;
		break;
	case PFX_CHANGE_REMOVED:
		ck_assert_uint_gt(t->n[e->tier], 0);
		t->n[e->tier]--;
		break;
	case PFX_CHANGE_MOVED:
		ck_assert_uint_gt(t->n[e->from_tier], 0);
		t->n[e->from_tier]--;
		t->n[e->tier]++;
		t->moved[e->from_tier][e->tier]++;
		break;
	default:
		ck_assert_int_eq(e->kind, PFX_CHANGE_CLEARED);
		memset(t->n, 0, sizeof(t->n));
		t->cleared = true;
	}
}

static void listen_tiers(pfx_client *c, struct by_tier *t)
{
	pfx_change e = { .struct_size = sizeof(e) };

	while (pfx_next_event(c, 100, &e) == PFX_OK)
		learn_tier(t, &e);
}

/* The sums by tier that status has. */
static void check_tiers(const struct by_tier *t)
{
	char *text = e2e_admin(&d, "{\"op\":\"status\"}");
	json_t *status = json_loads(text, 0, NULL), *tiers = json_object_get(status, "tiers");
	static const char *const names[] = { "device", "host", "redis" };

	for (size_t i = 0; i < 3; i++)
		ck_assert_uint_eq(t->n[i], (uint64_t)json_integer_value(json_object_get(
						   json_object_get(tiers, names[i]), "blocks")));
	json_decref(status);
	pfx_free_string(text);
}

/* Blocks move down and up, and a clear empties all that a subscriber knows of any tier. */
START_TEST(moves_are_told)
{
	const char *const args[] = { "--pool-blocks",
				     "32",
				     "--host-blocks",
				     "64",
				     "--watermark",
				     "0",
				     "--prefill-rate",
				     "1",
				     NULL };
	uint32_t tokens[16 * 16];
	pfx_prompt p = {
		.struct_size = sizeof(p), .keys = tokens, .n_keys = 16, .flags = PFX_MATCH_PROMOTE
	};
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_load_result l = { .struct_size = sizeof(l) };
	struct by_tier t = { .n = { 0 } };
	pfx_client *worker, *listener;
	pfx_namespace *ns, *seen;

	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	worker = e2e_connect(&d);
	ns = e2e_open(worker, "m", 64);
	listener = e2e_connect(&d);
	seen = e2e_open(listener, "m", 64);
	ck_assert_int_eq(pfx_subscribe(listener, seen, 0, NULL, 0, NULL), PFX_OK);
	for (uint32_t i = 0; i < 4; i++)
		store(ns, 1000 * i, 16);
	listen_tiers(listener, &t);
	ck_assert_uint_eq(t.n[0] + t.n[1], 64);
	ck_assert_uint_ge(t.moved[0][1], 32);
	check_tiers(&t);
	for (uint32_t i = 0; i < 16 * 16; i++)
		tokens[i] = i;
	ck_assert_int_eq(pfx_match(ns, &p, &m), PFX_OK);
	ck_assert_uint_eq(m.n_host, 16);
	ck_assert_int_eq(m.loading, 1);
	ck_assert_int_eq(pfx_load_wait(ns, m.lease, 0, &l), PFX_OK);
	ck_assert_uint_eq(l.n, 16);
	ck_assert_int_eq(pfx_release(ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	listen_tiers(listener, &t);
	ck_assert_uint_eq(t.moved[1][0], 16);
	ck_assert_uint_eq(t.n[0] + t.n[1], 64);
	check_tiers(&t);
	flush_all();
	listen_tiers(listener, &t);
	ck_assert(t.cleared);
	ck_assert_uint_eq(t.n[0] + t.n[1] + t.n[2], 0);
	check_tiers(&t);
	pfx_close(listener);
	pfx_close(worker);
}
END_TEST

START_TEST(watch)
{
	const char *ctl = getenv("PREFIXCTL_BIN");
	char line[1024];
	int fds[2], status;
	pid_t pid;
	pfx_client *worker;
	pfx_namespace *ns;
	uint32_t n = 0;
	FILE *f;

	if (!ctl)
		exit(E2E_SKIP);
	start("1024");
	worker = e2e_connect(&d);
	ns = e2e_open(worker, "m", 64);
	ck_assert_int_eq(pipe(fds), 0);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		dup2(fds[1], 1);
		execl(ctl, ctl, "watch", "--json", "-n", "6", "--timeout", "10", "--admin-socket",
		      d.admin, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	f = fdopen(fds[0], "r");
	ck_assert_ptr_nonnull(f);
	/* Nobody says when it has subscribed: store until it has seen enough. */
	for (uint32_t i = 0; i < 100 && counter("events_emitted") < 6; i++) {
		store(ns, 1000 * i, 3);
		e2e_sleep_ms(20);
	}
	while (fgets(line, sizeof(line), f)) {
		json_t *j = json_loads(line, 0, NULL);

		ck_assert_msg(json_is_object(j), "%s", line);
		ck_assert_str_eq(json_string_value(json_object_get(j, "kind")), "stored");
		ck_assert_uint_eq(strlen(json_string_value(json_object_get(j, "block"))), 32);
		json_decref(j);
		n++;
	}
	fclose(f);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_assert_uint_eq(n, 6);
	pfx_close(worker);
}
END_TEST

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		const TTest *const *test;
	} cases[] = { { "T34", &stops_reading },
		      { "T42", &clear_empties },
		      { "T42", &moves_are_told },
		      { "watch", &watch } };
	Suite *s = suite_create("events");

	if (!e2e_daemon_binary())
		return E2E_SKIP;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		TCase *t;

		if (argc > 1 && strcmp(argv[1], cases[i].name) != 0)
			continue;
		t = tcase_create(cases[i].name);
		tcase_add_checked_fixture(t, setup, teardown);
		tcase_set_timeout(t, 100);
		tcase_add_test(t, *cases[i].test);
		suite_add_tcase(s, t);
	}
	return test_run(s);
}
