/*
 * test_workers.c - real worker processes on a real daemon: sharing, being killed, many at once.
 *
 * The first argument picks the tests, so that each scenario is registered under its own name.
 */
#include "tests/e2e/mover.h"
#include "tests/e2e/worker.h"

#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct e2e_daemon d;

static void start(const char *pool_blocks)
{
	const char *const args[] = { "--pool-blocks", pool_blocks, NULL };

	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

static void stop(void)
{
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	e2e_daemon_free(&d);
}

static json_t *ask(const char *cmd)
{
	char *text = e2e_admin(&d, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

static json_int_t number(const json_t *v, const char *key)
{
	ck_assert_msg(json_is_integer(json_object_get(v, key)), "no number %s", key);
	return json_integer_value(json_object_get(v, key));
}

/* Audit clean, every slot free or ready, and no lease of a dead process left. */
static bool settled(json_int_t n_leases)
{
	json_t *audit = ask("{\"op\":\"audit\"}"), *status = ask("{\"op\":\"status\"}");
	const json_t *slots = json_object_get(status, "slots");
	bool ok = json_is_true(json_object_get(audit, "clean")) &&
		  number(slots, "free") + number(slots, "ready") == number(status, "n_slots") &&
		  number(status, "leases") == n_leases;

	json_decref(audit);
	json_decref(status);
	return ok;
}

static bool settled_within_a_second(void)
{
	unsigned long end = e2e_now_ms() + 1000 + e2e_grace_ms();

	while (!settled(0)) {
		if (e2e_now_ms() > end)
			return false;
		e2e_sleep_ms(2);
	}
	return true;
}

/* ---- killed at each step --------------------------------------------------------------------- */

/* The steps of a worker's life; it dies behind the one it was told. */
#define STEPS(X)        \
	X(CONNECT)      \
	X(MATCH)        \
	X(RESERVE)      \
	X(HALF_A_BLOCK) \
	X(WRITE_HALF)   \
	X(WRITE_ALL)    \
	X(COMMIT_HALF)  \
	X(EXTEND)       \
	X(COMMIT_ALL)   \
	X(PROBE)        \
	X(EXPLAIN)      \
	X(REPORT)       \
	X(RELEASE)      \
	X(MATCH_AGAIN)

enum step {
#define X(sym) STEP_##sym,
	STEPS(X)
#undef X
	N_STEPS
};

static const char *const step_names[] = {
#define X(sym) #sym,
	STEPS(X)
#undef X
};

static void die_if(enum step now, enum step at)
{
	if (now == at)
		kill(getpid(), SIGKILL);
}

/* Lives one request and dies behind step `at`; comes back only when something was refused. */
static void doomed(const char *socket, enum step at, uint64_t variant)
{
	static struct worker w;
	pfx_explain_result why = { .struct_size = sizeof(why) };
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "", .n_keys = 12 };
	uint8_t garbage[WORKER_BLOCK_BYTES / 2];
	uint32_t n_device, half;

	worker_start(&w, socket, variant);
	die_if(STEP_CONNECT, at);
	worker_prompt(&w, 12, 3, variant);
	p.keys = w.tokens;
	if (worker_match(&w) != PFX_OK)
		return;
	die_if(STEP_MATCH, at);
	if (worker_reserve(&w) != PFX_OK)
		return;
	die_if(STEP_RESERVE, at);
	half = w.n_reserved / 2;
	memset(garbage, 0xee, sizeof(garbage));
	mover_write(w.ns, w.slots[0], garbage, sizeof(garbage));
	die_if(STEP_HALF_A_BLOCK, at);
	worker_write(&w, 0, half);
	die_if(STEP_WRITE_HALF, at);
	worker_write(&w, half, w.n_reserved - half);
	die_if(STEP_WRITE_ALL, at);
	if (worker_commit(&w, half) != PFX_OK)
		return;
	die_if(STEP_COMMIT_HALF, at);
	if (worker_extend(&w, 0) != PFX_OK)
		return;
	die_if(STEP_EXTEND, at);
	if (worker_commit(&w, w.n_reserved - half) != PFX_OK)
		return;
	die_if(STEP_COMMIT_ALL, at);
	if (pfx_probe(w.ns, &p, &n_device, NULL, 0) != PFX_OK || n_device != 12)
		return;
	die_if(STEP_PROBE, at);
	if (pfx_explain(w.ns, &p, &why) != PFX_OK)
		return;
	die_if(STEP_EXPLAIN, at);
	if (pfx_report(w.ns, 1, 1, 1, 1, 1) != PFX_OK)
		return;
	die_if(STEP_REPORT, at);
	if (worker_release(&w) != PFX_OK)
		return;
	die_if(STEP_RELEASE, at);
	if (worker_match(&w) != PFX_OK || w.corrupt)
		return;
	die_if(STEP_MATCH_AGAIN, at);
}

/* What bystanders report when they are told to stop. */
struct report {
	volatile int stop;
	volatile uint64_t requests[64], verified[64], stored[64], corrupt[64], errors[64];
};

static struct report *shared_report(void)
{
	struct report *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(r, MAP_FAILED);
	return r;
}

static pid_t bystander(struct report *r, int i, uint64_t seed)
{
	static struct worker w;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	worker_start(&w, d.socket, seed);
	while (!r->stop) {
		worker_request(&w);
		r->requests[i] = w.requests;
		r->verified[i] = w.blocks_verified;
		r->stored[i] = w.blocks_stored;
		r->corrupt[i] = w.corrupt;
		r->errors[i] = w.errors;
	}
	worker_stop(&w);
	_exit(0);
}

static void reap(pid_t pid)
{
	int status = -1;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "bystander ended with %d",
		      status);
}

/* Twenty rounds for each step, nobody else there: the pool must settle each time. */
START_TEST(killed_behind_each_call)
{
	const int rounds = e2e_grace_ms() ? 3 : 20; /* each of them waits it out */

	start("256");
	for (int round = 0; round < rounds; round++) {
		uint64_t variant = (uint64_t)_i * 1000 + (uint64_t)round;
		int status = 0;
		pid_t pid = fork();

		ck_assert_int_ge(pid, 0);
		if (pid == 0) {
			doomed(d.socket, (enum step)_i, variant);
			_exit(9);
		}
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
			      "worker was refused something before %s: %d", step_names[_i], status);
		ck_assert_msg(settled_within_a_second(), "not settled after %s, round %d",
			      step_names[_i], round);
	}
	stop();
}
END_TEST

/* The same under the eyes of two workers that go on: none of their bytes may change. */
START_TEST(others_are_undisturbed)
{
	struct report *r = shared_report();
	pid_t pids[2];
	uint64_t before[2];

	start("192");
	for (int i = 0; i < 2; i++)
		pids[i] = bystander(r, i, 77 + (uint64_t)i);
	for (int round = 0; round < 20; round++) {
		for (int step = 0; step < N_STEPS; step++) {
			pid_t pid = fork();

			ck_assert_int_ge(pid, 0);
			if (pid == 0) {
				doomed(d.socket, (enum step)step, (uint64_t)(round * 100 + step));
				_exit(9); /* the pool was full: that is allowed here */
			}
			ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
		}
	}
	for (int i = 0; i < 2; i++)
		before[i] = r->requests[i];
	for (int i = 0; i < 500 && (r->requests[0] == before[0] || r->requests[1] == before[1]);
	     i++)
		e2e_sleep_ms(10);
	for (int i = 0; i < 2; i++)
		ck_assert_uint_gt(r->requests[i], before[i]);
	r->stop = 1;
	for (int i = 0; i < 2; i++) {
		reap(pids[i]);
		ck_assert_uint_eq(r->corrupt[i], 0);
		ck_assert_uint_eq(r->errors[i], 0);
		ck_assert_uint_gt(r->verified[i], 0);
	}
	ck_assert(settled_within_a_second());
	stop();
}
END_TEST

/* ---- T23: what a dead worker held comes back within a second --------------------------------- */

START_TEST(T23_dead_worker_holds_nothing)
{
	static struct worker w;
	json_t *status;
	int tell[2];
	char byte;
	pid_t pid;

	start("512");
	ck_assert_int_eq(pipe(tell), 0);
	pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 8; i++) { /* eight leases with 16 slots reserved each */
			worker_start(&w, d.socket, 1);
			worker_prompt(&w, 16, 16, (uint64_t)i + 50);
			w.n_blocks = 16;
			if (worker_match(&w) != PFX_OK || worker_reserve(&w) != PFX_OK)
				_exit(1);
		}
		(void)!write(tell[1], "x", 1);
		pause();
	}
	close(tell[1]);
	ck_assert_int_eq(read(tell[0], &byte, 1), 1);
	status = ask("{\"op\":\"status\"}");
	ck_assert_int_eq(number(status, "leases"), (json_int_t)(8 * e2e_ranks()));
	ck_assert_int_ge(number(json_object_get(status, "slots"), "reserved"), 8 * 8);
	json_decref(status);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(settled_within_a_second());
	close(tell[0]);
	stop();
}
END_TEST

/* ---- T59: one resident copy ------------------------------------------------------------------ */

/* The other process: made before the first one has a driver.  Exit status: 0: all is right. */
static int reads_the_same(int told)
{
	static struct worker other;
	uint8_t mark[16];
	uint32_t slot;

	if (read(told, &slot, sizeof(slot)) != (ssize_t)sizeof(slot))
		return 2;
	worker_start(&other, d.socket, 2);
	worker_prompt(&other, 8, 1, 1);
	if (worker_match(&other) != PFX_OK || other.n_hit != 8 || other.corrupt ||
	    worker_match(&other) != PFX_OK || other.hits[0] != slot)
		return 1;
	/* it writes where it reads, and the first process sees it: the same memory */
	memset(mark, 0x5a, sizeof(mark));
	mover_write(other.ns, slot, mark, sizeof(mark));
	return 0;
}

/* A second process is lent the very slots that this one filled, and reads its bytes there. */
START_TEST(T59_two_processes_share_one_block)
{
	static struct worker w;
	uint8_t mark[16];
	json_t *status;
	uint32_t slot;
	int tell[2], code = -1;
	pid_t pid;

	start("64");
	ck_assert_int_eq(pipe(tell), 0);
	pid = fork();
	if (pid == 0)
		_exit(reads_the_same(tell[0]));
	worker_start(&w, d.socket, 1);
	worker_prompt(&w, 8, 1, 1);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_uint_eq(w.n_hit, 0);
	ck_assert_int_eq(worker_reserve(&w), PFX_OK);
	worker_write(&w, 0, 8);
	ck_assert_int_eq(worker_commit(&w, 8), PFX_OK);
	slot = w.slots[0];
	ck_assert_int_eq(write(tell[1], &slot, sizeof(slot)), (ssize_t)sizeof(slot));
	ck_assert_int_eq(waitpid(pid, &code, 0), pid);
	ck_assert_int_eq(code, 0);
	mover_read(w.ns, slot, mark, sizeof(mark));
	for (size_t i = 0; i < sizeof(mark); i++)
		ck_assert_uint_eq(mark[i], 0x5a);
	status = ask("{\"op\":\"status\"}");
	ck_assert_int_eq(number(json_object_get(status, "counters"), "bytes_copied"), 0);
	ck_assert_int_eq(number(json_object_get(status, "counters"), "hit_device_tokens") +
				 number(json_object_get(status, "counters"), "committed_blocks"),
			 8 + 2 * 8 * 16);
	json_decref(status);
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	worker_stop(&w);
	close(tell[0]);
	close(tell[1]);
	stop();
}
END_TEST

/* ---- T35: sixteen at once -------------------------------------------------------------------- */

/* Mixed operations under eviction pressure, for $PREFIXD_STORM_SECONDS (5). */
START_TEST(T35_sixteen_clients)
{
	const char *seconds = getenv("PREFIXD_STORM_SECONDS");
	unsigned long end = e2e_now_ms() + 1000ul * (seconds ? strtoul(seconds, NULL, 10) : 5);
	struct report *r = shared_report();
	uint64_t requests = 0;
	pid_t pids[16];
	char *log;

	start("300");
	for (int i = 0; i < 16; i++)
		pids[i] = bystander(r, i, (uint64_t)i * 31 + 5);
	while (e2e_now_ms() < end) {
		json_t *audit = ask("{\"op\":\"audit\"}");

		ck_assert(json_is_true(json_object_get(audit, "clean")));
		json_decref(audit);
		e2e_sleep_ms(50);
	}
	r->stop = 1;
	for (int i = 0; i < 16; i++) {
		reap(pids[i]);
		ck_assert_uint_eq(r->corrupt[i], 0);
		ck_assert_uint_eq(r->errors[i], 0);
		ck_assert_uint_gt(r->requests[i], 0);
		requests += r->requests[i];
	}
	ck_assert(settled_within_a_second());
	log = e2e_daemon_log(&d);
	ck_assert_ptr_null(strstr(log, "ThreadSanitizer"));
	ck_assert_ptr_null(strstr(log, "AddressSanitizer"));
	free(log);
	fprintf(stderr, "T35: %llu requests by 16 clients\n", (unsigned long long)requests);
	stop();
}
END_TEST

/* ---- one cold prompt for many -------------------------------------------------------------- */

enum {
	HERD_MAX = 64,
	HERD_BLOCKS = 512, /* 8,192 tokens */
	HERD_COMMIT = 16
};

struct herd {
	volatile uint64_t stored[HERD_MAX], hit[HERD_MAX], waits[HERD_MAX], leads[HERD_MAX];
	volatile uint64_t bad[HERD_MAX];
	volatile int n_leaders;
};

/* Computes what is missing; the first of all who do dies halfway, if one has to. */
static void herd_compute(struct herd *h, struct worker *w, int me, bool leader_dies)
{
	bool doomed_one = leader_dies &&
			  __atomic_fetch_add(&h->n_leaders, 1, __ATOMIC_SEQ_CST) == 0;

	if (worker_reserve(w) != PFX_OK || w->n_hit + w->n_reserved != HERD_BLOCKS)
		_exit(2);
	while (w->n_committed < w->n_reserved) {
		uint32_t n = w->n_reserved - w->n_committed;

		n = n < HERD_COMMIT ? n : HERD_COMMIT;
		worker_write(w, w->n_committed, n);
		if (worker_commit(w, n) != PFX_OK)
			_exit(3);
		h->stored[me] = w->blocks_stored;
		if (doomed_one && w->n_committed >= w->n_reserved / 2)
			kill(getpid(), SIGKILL);
	}
}

/* The life of one of them, in its own process. */
static void herd_member(struct herd *h, int me, int ready, int go, bool leader_dies)
{
	static struct worker w;
	char byte;

	worker_start(&w, d.socket, (uint64_t)me);
	worker_prompt(&w, HERD_BLOCKS, 0, 77);
	w.single_flight = true;
	if (write(ready, "r", 1) != 1 || read(go, &byte, 1) != 0) /* ends when the parent closes */
		_exit(1);
	if (worker_match(&w) != PFX_OK || worker_wait(&w) != PFX_OK)
		_exit(4);
	if (w.n_hit < HERD_BLOCKS)
		herd_compute(h, &w, me, leader_dies);
	h->hit[me] = w.n_hit;
	h->waits[me] = w.waits;
	h->leads[me] = w.leads;
	h->bad[me] = w.corrupt + w.errors;
	if (worker_release(&w) != PFX_OK)
		_exit(5);
	worker_stop(&w);
	_exit(0);
}

/* Everybody is connected, and asks at once.  Returns how many were killed. */
static int herd_run(struct herd *h, int n, bool leader_dies)
{
	int ready[2], go[2], killed = 0;
	pid_t pids[HERD_MAX];
	char byte;

	ck_assert_int_eq(pipe(ready), 0);
	ck_assert_int_eq(pipe(go), 0);
	for (int i = 0; i < n; i++) {
		pids[i] = fork();
		ck_assert_int_ge(pids[i], 0);
		if (pids[i] == 0) {
			close(go[1]);
			herd_member(h, i, ready[1], go[0], leader_dies);
		}
	}
	for (int i = 0; i < n; i++)
		ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	close(go[1]);
	for (int i = 0; i < n; i++) {
		int status = -1;

		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
			killed++;
		else
			ck_assert_msg(status == 0, "worker %d ended with %d", i, status);
	}
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	return killed;
}

static void herd(int n, bool leader_dies)
{
	struct herd *h = mmap(NULL, sizeof(*h), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			      -1, 0);
	uint64_t stored = 0, waits = 0;
	const json_t *counters;
	json_t *status;

	ck_assert_ptr_ne(h, MAP_FAILED);
	start("2048");
	ck_assert_int_eq(herd_run(h, n, leader_dies), leader_dies);
	for (int i = 0; i < n; i++) {
		stored += h->stored[i];
		waits += h->waits[i];
		ck_assert_uint_eq(h->bad[i], 0);
	}
	ck_assert_uint_eq(stored, HERD_BLOCKS);
	status = ask("{\"op\":\"status\"}");
	counters = json_object_get(status, "counters");
	ck_assert_int_eq(number(counters, "committed_blocks"), HERD_BLOCKS);
	ck_assert_int_eq(number(counters, "duplicate_blocks"), 0);
	/* Nobody reserved what another one was computing. */
	ck_assert_int_eq(number(counters, "reserved_blocks"),
			 leader_dies ? HERD_BLOCKS + HERD_BLOCKS / 2 : HERD_BLOCKS);
	ck_assert_int_eq(number(counters, "leaders_late"), 0);
	json_decref(status);
	ck_assert(settled_within_a_second());
	fprintf(stderr, "%d workers, one prompt: %llu blocks stored, %llu waits\n", n,
		(unsigned long long)stored, (unsigned long long)waits);
	(void)munmap(h, sizeof(*h));
	stop();
}

START_TEST(F12_one_prefill_for_eight)
{
	herd(8, false);
	herd(8, true);
}
END_TEST

START_TEST(stampede_64)
{
	herd(64, false);
}
END_TEST

START_TEST(stampede_64_the_leader_dies)
{
	herd(64, true);
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	Suite *s = suite_create("workers");
	TCase *t = tcase_create(which);

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 900);
	if (!strcmp(which, "kills"))
		tcase_add_loop_test(t, killed_behind_each_call, 0, N_STEPS);
	if (!strcmp(which, "kills"))
		tcase_add_test(t, others_are_undisturbed);
	if (!strcmp(which, "T23"))
		tcase_add_test(t, T23_dead_worker_holds_nothing);
	if (!strcmp(which, "T59"))
		tcase_add_test(t, T59_two_processes_share_one_block);
	if (!strcmp(which, "T35"))
		tcase_add_test(t, T35_sixteen_clients);
	if (!strcmp(which, "F12"))
		tcase_add_test(t, F12_one_prefill_for_eight);
	if (!strcmp(which, "stampede")) {
		tcase_add_test(t, stampede_64);
		tcase_add_test(t, stampede_64_the_leader_dies);
	}
	suite_add_tcase(s, t);
	return test_run(s);
}
