/*
 * test_restart.c - the real daemon is killed and started again: what workers notice, and what not.
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

static void start(struct e2e_daemon *which, const char *pool_blocks)
{
	const char *const args[] = { "--pool-blocks",  pool_blocks, "--keep", "holder",
				     "--hold-timeout", "20s",       NULL };

	if (!which->dir[0])
		ck_assert_int_eq(e2e_daemon_init(which), 0);
	ck_assert_int_eq(e2e_daemon_start(which, args), 0);
}

static void stop(struct e2e_daemon *which)
{
	ck_assert_int_eq(e2e_daemon_stop(which, SIGINT), 0); /* the memory is given up */
	e2e_daemon_free(which);
}

static void kill_and_start(struct e2e_daemon *which, const char *pool_blocks)
{
	ck_assert_int_ne(e2e_daemon_stop(which, SIGKILL), -1);
	start(which, pool_blocks);
}

static json_t *ask(const char *cmd)
{
	char *text = e2e_admin(&d, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

/* Audit clean, every slot free or ready, no lease. */
static bool settled(void)
{
	json_t *audit = ask("{\"op\":\"audit\"}"), *status = ask("{\"op\":\"status\"}");
	const json_t *slots = json_object_get(status, "slots");
	bool ok = json_is_true(json_object_get(audit, "clean")) &&
		  json_integer_value(json_object_get(slots, "free")) +
				  json_integer_value(json_object_get(slots, "ready")) ==
			  json_integer_value(json_object_get(status, "n_slots")) &&
		  json_integer_value(json_object_get(status, "leases")) == 0;

	json_decref(audit);
	json_decref(status);
	return ok;
}

static void settle(void)
{
	unsigned long end = e2e_now_ms() + 10000;

	while (!settled()) {
		ck_assert_msg(e2e_now_ms() < end, "slots or leases of the dead are left");
		e2e_sleep_ms(2);
	}
}

/* ---- F21: a restart between two calls -------------------------------------------------------- */

static uint32_t blocks_of(struct worker *w, uint64_t variant)
{
	worker_prompt(w, 8, 1, variant);
	ck_assert_int_eq(worker_match(w), PFX_OK);
	return w->n_hit;
}

/* The first answer already has the new boot id; the old lease is gone, its blocks are not. */
START_TEST(F21_restart_between_two_calls)
{
	static struct worker w;
	unsigned long fastest = 1000000;
	uint32_t n_slots;

	start(&d, "256");
	worker_start(&w, d.socket, 1);
	ck_assert_uint_eq(blocks_of(&w, 1), 0);
	ck_assert_int_eq(worker_reserve(&w), PFX_OK);
	worker_write(&w, 0, 8);
	ck_assert_int_eq(worker_commit(&w, 8), PFX_OK);
	ck_assert_int_eq(worker_release(&w), PFX_OK);
	for (int i = 0; i < 20; i++) {
		uint8_t before[16], after[16];
		unsigned long began;

		ck_assert_uint_eq(blocks_of(&w, 1), 8);
		ck_assert_int_eq(pfx_boot_id(w.client, before), PFX_OK);
		ck_assert_int_eq(pfx_slot_stale(w.ns, w.hits[0], w.reuse), 0);
		began = e2e_now_ms();
		kill_and_start(&d, "256");
		began = e2e_now_ms() - began;
		fastest = began < fastest ? began : fastest;
		if (i % 2)
			ck_assert_int_eq(worker_ping(&w), PFX_OK);
		ck_assert_int_eq(worker_release(&w), PFX_UNKNOWN_LEASE);
		ck_assert_int_eq(pfx_boot_id(w.client, after), PFX_OK);
		ck_assert_mem_ne(before, after, 16);
		ck_assert_int_eq(worker_quiesced(&w, &n_slots), PFX_OK);
		ck_assert_uint_eq(blocks_of(&w, 1), 8);
		ck_assert_int_eq(worker_release(&w), PFX_OK);
	}
	ck_assert_uint_eq(w.corrupt, 0);
	settle();
	fprintf(stderr, "F21: fastest from the kill to a daemon that serves: %lu ms\n", fastest);
	worker_stop(&w);
	stop(&d);
}
END_TEST

/* ---- F02: workers and daemon die, in either order -------------------------------------------- */

#define STEPS(X)        \
	X(RESERVE)      \
	X(HALF_A_BLOCK) \
	X(WRITE_HALF)   \
	X(WRITE_ALL)    \
	X(COMMIT_HALF)

enum step {
#define X(sym) STEP_##sym,
	STEPS(X)
#undef X
	N_STEPS
};

enum order {
	WORKER,             /* the daemon lives on */
	WORKER_DAEMON,      /* it is killed before it can notice */
	DAEMON_WORKER,      /* nobody is there when the worker dies */
	DAEMON_NEXT_WORKER, /* the worker dies under the next daemon, which it never spoke to */
	N_ORDERS
};

enum {
	F02_BLOCKS = 12
};

static uint8_t scribble[WORKER_BLOCK_BYTES]; /* no block's bytes */

/* Comes to step `at`, says so, and waits to be killed. */
static void doomed(enum step at, uint64_t variant, int ready)
{
	static struct worker w;
	uint32_t half = F02_BLOCKS / 2;
	bool ok;

	worker_start(&w, d.socket, variant);
	worker_prompt(&w, F02_BLOCKS, (uint32_t)variant % 16, variant);
	ok = worker_match(&w) == PFX_OK && w.n_hit == 0 && worker_reserve(&w) == PFX_OK &&
	     w.n_reserved == F02_BLOCKS;
	if (ok && at >= STEP_HALF_A_BLOCK)
		mover_write(w.ns, w.slots[0], scribble, WORKER_BLOCK_BYTES / 2);
	if (ok && at >= STEP_WRITE_HALF)
		worker_write(&w, 0, half);
	if (ok && at >= STEP_WRITE_ALL)
		worker_write(&w, half, F02_BLOCKS - half);
	if (ok && at >= STEP_COMMIT_HALF)
		ok = worker_commit(&w, half) == PFX_OK;
	(void)!write(ready, ok ? "y" : "n", 1);
	for (;;)
		pause();
}

static void reap(pid_t pid)
{
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

/* Another worker finds what was committed, and nothing wrong.  In a process of its own, or this one
 * could not start workers on a GPU any more. */
static void look_for(uint64_t variant, uint32_t n)
{
	static struct worker w;
	int status = -1;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		worker_start(&w, d.socket, 9);
		worker_prompt(&w, F02_BLOCKS, (uint32_t)variant % 16, variant);
		if (worker_match(&w) != PFX_OK || w.n_hit != n || w.corrupt != 0 ||
		    worker_release(&w) != PFX_OK) {
			fprintf(stderr, "%u of %u blocks, %llu wrong: %s\n", w.n_hit, n,
				(unsigned long long)w.corrupt, pfx_error(w.client));
			_exit(1);
		}
		worker_stop(&w);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}

START_TEST(F02_killed_while_it_writes)
{
	enum order order = (enum order)(_i % N_ORDERS);
	enum step at = (enum step)(_i / N_ORDERS);
	const uint64_t rounds = e2e_grace_ms() ? 1 : 3; /* each of them waits it out */

	memset(scribble, 0xee, sizeof(scribble));
	start(&d, "64");
	for (uint64_t round = 0; round < rounds; round++) {
		int tell[2];
		char byte = 0;
		pid_t pid;

		ck_assert_int_eq(pipe(tell), 0);
		pid = fork();
		ck_assert_int_ge(pid, 0);
		if (pid == 0)
			doomed(at, 500 + round, tell[1]);
		ck_assert_int_eq(read(tell[0], &byte, 1), 1);
		ck_assert_int_eq(byte, 'y');
		close(tell[0]);
		close(tell[1]);
		if (order == DAEMON_NEXT_WORKER)
			kill_and_start(&d, "64");
		else if (order == DAEMON_WORKER)
			ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
		reap(pid);
		if (order == WORKER_DAEMON)
			ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
		if (!d.pid)
			start(&d, "64");
		settle();
		look_for(500 + round, at == STEP_COMMIT_HALF ? F02_BLOCKS / 2 : 0);
	}
	settle();
	stop(&d);
}
END_TEST

/* ---- what a worker holds over a restart ------------------------------------------------------ */

enum {
	HELD_POOL = 64,
	HELD_BLOCKS = 8,
	HELD_RESERVED = 16,
	HELD_COMMITTED = 4,
	HELD_OTHERS = 40 /* prompts: several times what the pool has left */
};

/* A whole request as far as there is room.  Return: blocks that were there or are now. */
static uint32_t fetch(struct worker *w, uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	int r;

	worker_prompt(w, n_blocks, stem, variant);
	ck_assert_int_eq(worker_match(w), PFX_OK);
	r = worker_reserve(w);
	ck_assert(r == PFX_OK || r == PFX_BUSY);
	if (w->n_reserved) {
		worker_write(w, 0, w->n_reserved);
		ck_assert_int_eq(worker_commit(w, w->n_reserved), PFX_OK);
	}
	ck_assert_int_eq(worker_release(w), PFX_OK);
	return w->n_hit + w->n_reserved;
}

/*
 * A worker reads a leased path and has slots reserved when the daemon is killed.  Under the next
 * daemon others use all the rest of the pool, many times over.  The first one was not told
 * anything: its device reads the leased blocks and writes into the reserved slots.  Nobody's bytes
 * change.  As soon as it says QUIESCED all of it is for use again.
 */
START_TEST(what_a_worker_holds_is_not_reused)
{
	static struct worker w, other;
	static uint8_t seen[HELD_BLOCKS][WORKER_BLOCK_BYTES], now[WORKER_BLOCK_BYTES];
	uint32_t at[HELD_BLOCKS], n_slots = 0;

	start(&d, "64");
	worker_start(&w, d.socket, 1);
	worker_start(&other, d.socket, 2);
	ck_assert_uint_eq(fetch(&w, HELD_BLOCKS, 1, 1), HELD_BLOCKS);
	ck_assert_uint_eq(blocks_of(&w, 1), HELD_BLOCKS); /* held */
	memcpy(at, w.hits, sizeof(at));
	for (uint32_t i = 0; i < HELD_BLOCKS; i++)
		mover_read(w.ns, at[i], seen[i], WORKER_BLOCK_BYTES);
	worker_prompt(&w, HELD_RESERVED, 2, 2);
	ck_assert_int_eq(worker_match(&w), PFX_OK);
	ck_assert_int_eq(worker_reserve(&w), PFX_OK);
	ck_assert_uint_eq(w.n_reserved, HELD_RESERVED);
	worker_write(&w, 0, HELD_COMMITTED);
	ck_assert_int_eq(worker_commit(&w, HELD_COMMITTED), PFX_OK);
	memset(scribble, 0xee, sizeof(scribble));
	kill_and_start(&d, "64");
	ck_assert_int_eq(worker_ping(&other), PFX_OK);
	for (uint64_t v = 0; v < HELD_OTHERS; v++)
		(void)fetch(&other, HELD_BLOCKS, 3, 100 + v);
	for (uint32_t i = HELD_COMMITTED; i < HELD_RESERVED; i++)
		mover_write(w.ns, w.slots[i], scribble, WORKER_BLOCK_BYTES);
	for (uint32_t i = 0; i < HELD_BLOCKS; i++) {
		mover_read(w.ns, at[i], now, WORKER_BLOCK_BYTES);
		ck_assert_mem_eq(seen[i], now, WORKER_BLOCK_BYTES);
	}
	for (uint64_t v = HELD_OTHERS; v-- > 0;) /* whatever of it is still there */
		(void)fetch(&other, HELD_BLOCKS, 3, 100 + v);
	ck_assert_uint_eq(other.corrupt, 0);
	/* What it held is not more than it was, either. */
	ck_assert_uint_eq(fetch(&other, HELD_POOL, 4, 4), HELD_POOL - HELD_BLOCKS - HELD_RESERVED);
	ck_assert_int_eq(worker_quiesced(&w, &n_slots), PFX_OK);
	settle();
	ck_assert_uint_eq(fetch(&other, HELD_POOL, 5, 5), HELD_POOL);
	ck_assert_uint_eq(other.corrupt + other.errors + w.corrupt + w.errors, 0);
	worker_stop(&w);
	worker_stop(&other);
	stop(&d);
}
END_TEST

/* ---- T27: as warm as before ------------------------------------------------------------------ */

enum {
	T27_REQUESTS = 900,
	T27_POOL = 400 /* of some 1,600 blocks that are asked for */
};

/* One request of a worker; how many of its blocks were there. */
static uint32_t serve(struct worker *w, uint64_t *rng)
{
	uint32_t n = 4 + test_rng_below(rng, 28), hit;

	/* some prompts are asked for more often than others */
	worker_prompt(w, n, test_rng_below(rng, 8),
		      test_rng_below(rng, 1 + test_rng_below(rng, 60)));
	ck_assert_int_eq(worker_match(w), PFX_OK);
	hit = w->n_hit;
	ck_assert_int_eq(worker_reserve(w), PFX_OK);
	if (w->n_reserved) {
		worker_write(w, 0, w->n_reserved);
		ck_assert_int_eq(worker_commit(w, w->n_reserved), PFX_OK);
	}
	ck_assert_int_eq(worker_release(w), PFX_OK);
	return hit;
}

/*
 * The same requests go to two daemons under pressure; one is killed now and then.  Both have the
 * same blocks at each request: what was stored is there, and what is dropped is what would have
 * been.
 */
START_TEST(T27_as_warm_as_before)
{
	static struct e2e_daemon other;
	static struct worker w, v;
	uint64_t rng_w = 27, rng_v = 27, hits = 0, late = 0;
	char pool[16];

	(void)snprintf(pool, sizeof(pool), "%d", T27_POOL);
	start(&d, pool);
	start(&other, pool);
	worker_start(&w, d.socket, 1);
	worker_start(&v, other.socket, 1);
	for (int i = 0; i < T27_REQUESTS; i++) {
		uint32_t x, y;

		if (i % 150 == 149) {
			kill_and_start(&d, pool);
			ck_assert_int_eq(worker_ping(&w), PFX_OK);
		}
		x = serve(&w, &rng_w);
		y = serve(&v, &rng_v);
		ck_assert_msg(x == y, "request %d hits %u blocks after %d restarts, %u without", i,
			      x, (i + 1) / 150, y);
		hits += x;
		late += i >= T27_REQUESTS / 2 ? x : 0;
	}
	fprintf(stderr, "T27: %d requests, %llu blocks hit, %llu of them in the second half\n",
		T27_REQUESTS, (unsigned long long)hits, (unsigned long long)late);
	ck_assert_uint_gt(hits, 0);
	ck_assert_uint_eq(w.corrupt + v.corrupt + w.errors + v.errors, 0);
	settle();
	worker_stop(&w);
	worker_stop(&v);
	stop(&other);
	stop(&d);
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	Suite *suite = suite_create("restart");
	TCase *t = tcase_create(which);

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 120);
	if (!*which || strcmp(which, "F02") == 0)
		tcase_add_loop_test(t, F02_killed_while_it_writes, 0, N_STEPS * N_ORDERS);
	if (!*which || strcmp(which, "F21") == 0)
		tcase_add_test(t, F21_restart_between_two_calls);
	if (!*which || strcmp(which, "held") == 0)
		tcase_add_test(t, what_a_worker_holds_is_not_reused);
	if (!*which || strcmp(which, "T27") == 0)
		tcase_add_test(t, T27_as_warm_as_before);
	suite_add_tcase(suite, t);
	return test_run(suite);
}
