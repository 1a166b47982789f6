/*
 * test_stampede.c - F12: sixty-four worker processes ask at once for cold prompts that share a stem
 * and differ in their tails; the daemon, a leader, or both are killed in the middle.
 *
 * Every worker goes on until it has its whole prompt, and compares every byte that it is lent. Who
 * was told that a block of his was stored notes it, so that each block is seen to be stored once:
 * in each life of the daemon, and in all of them together, since nothing that was stored is lost.
 */
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

enum {
	HERD = 64,
	GROUPS = 8,
	STEM = 64,  /* blocks that all share */
	GROUP = 16, /* behind those, that a group shares */
	TAIL = 16,  /* of one worker alone */
	BLOCKS = STEM + GROUP + TAIL,
	DISTINCT = STEM + GROUP * GROUPS + TAIL * HERD,
	PIECE = 4 /* blocks of one COMMIT */
};

struct herd {
	volatile int n_ready, go, n_leaders;
	/* Workers stop where so much is stored, so that nothing is left for a late kill to meet. */
	volatile uint32_t n_stored, limit;                   /* 0: none */
	volatile uint32_t stored[BLOCKS][1 + GROUPS + HERD]; /* told so, by block */
	volatile uint64_t duplicates[HERD], gone[HERD], waits[HERD], bad[HERD], done[HERD];
};

static struct e2e_daemon d;
static struct herd *h;

static void start(void)
{
	const char *const args[] = { "--pool-blocks",  "4096",           "--keep",
				     "holder",         "--hold-timeout", "20s",
				     "--max-sessions", "1024",           NULL };

	if (!d.dir[0])
		ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

static json_t *ask(const char *cmd)
{
	char *text = e2e_admin(&d, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

static json_int_t counter(const char *name)
{
	json_t *status = ask("{\"op\":\"status\"}");
	json_t *n = json_object_get(json_object_get(status, "counters"), name);
	json_int_t value = json_integer_value(n);

	ck_assert_msg(json_is_integer(n), "no counter %s", name);
	json_decref(status);
	return value;
}

/* ---- a worker -------------------------------------------------------------------------------- */

static uint32_t branch(int me, uint32_t i)
{
	if (i < STEM)
		return 0;
	return i < STEM + GROUP ? 1 + (uint32_t)me % GROUPS : 1 + GROUPS + (uint32_t)me;
}

static void prompt(struct worker *w, int me)
{
	w->n_blocks = BLOCKS;
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint64_t seed = 1000 * branch(me, i) + i;

		for (uint32_t k = 0; k < WORKER_BLOCK_TOKENS; k++)
			w->tokens[i * WORKER_BLOCK_TOKENS + k] = test_rng_below(&seed, 32000);
	}
}

/* Stores what is missing, in pieces; the status of the call that did not work. */
static int compute(struct worker *w, int me, bool doomed)
{
	int r = worker_reserve(w);

	while (r == PFX_OK && w->n_committed < w->n_reserved) {
		uint32_t from = w->n_hit + w->n_committed, n = w->n_reserved - w->n_committed;
		uint64_t stored = w->blocks_stored;

		n = n < PIECE ? n : PIECE;
		worker_write(w, w->n_committed, n);
		e2e_sleep_ms(1); /* as if it took time */
		r = worker_commit(w, n);
		if (r != PFX_OK)
			break;
		h->duplicates[me] += n - (w->blocks_stored - stored);
		for (uint32_t i = from; w->blocks_stored - stored == n && i < from + n; i++)
			(void)__atomic_fetch_add(&h->stored[i][branch(me, i)], 1, __ATOMIC_RELAXED);
		(void)__atomic_fetch_add(&h->n_stored, (uint32_t)(w->blocks_stored - stored),
					 __ATOMIC_RELAXED);
		if (doomed && w->n_committed >= STEM / 4)
			kill(getpid(), SIGKILL);
		while (h->limit && h->n_stored >= h->limit)
			e2e_sleep_ms(1);
	}
	return r;
}

/* One attempt; PFX_OK: the whole prompt is there. */
static int attempt(struct worker *w, int me, bool leader_dies)
{
	int r = worker_match(w);

	if (r == PFX_OK)
		r = worker_wait(w);
	if (r == PFX_OK && w->n_hit < BLOCKS)
		r = compute(w, me,
			    leader_dies &&
				    __atomic_fetch_add(&h->n_leaders, 1, __ATOMIC_SEQ_CST) == 0);
	if (r == PFX_OK)
		r = worker_release(w);
	return r;
}

static void member(int me, bool leader_dies)
{
	static struct worker w;
	unsigned long end = e2e_now_ms() + 60000;
	int r;

	worker_start(&w, d.socket, (uint64_t)me);
	w.single_flight = true;
	prompt(&w, me);
	(void)__atomic_fetch_add(&h->n_ready, 1, __ATOMIC_SEQ_CST);
	while (!h->go)
		e2e_sleep_ms(1);
	/* Until it has all of it from others' hands too: all of it lent, all of it compared. */
	do {
		r = attempt(&w, me, leader_dies);
		if (r == PFX_OK)
			continue;
		/* The daemon is away, or back and knows nothing of the lease: nothing of what was
		   computed was published for sure.  Its device is idle, so it can say so. */
		if (r != PFX_GONE && r != PFX_UNKNOWN_LEASE)
			_exit(10 + (r < 100 ? r : 100));
		h->gone[me]++;
		e2e_sleep_ms(2);
		(void)worker_quiesced(&w, NULL);
	} while (w.n_reserved + (r != PFX_OK) > 0 && e2e_now_ms() < end);
	if (r != PFX_OK || w.n_hit != BLOCKS)
		_exit(2);
	h->waits[me] = w.waits;
	h->bad[me] = w.corrupt + w.errors;
	h->done[me] = 1;
	worker_stop(&w);
	_exit(0);
}

/* ---- the herd -------------------------------------------------------------------------------- */

/* That no worker has failed so far; those that have ended are left to be waited for. */
static void none_failed(const pid_t *pids)
{
	for (int i = 0; i < HERD; i++) {
		siginfo_t is = { 0 };

		ck_assert_int_eq(waitid(P_PID, (id_t)pids[i], &is, WEXITED | WNOHANG | WNOWAIT), 0);
		ck_assert_msg(is.si_pid == 0 || is.si_code == CLD_KILLED || is.si_status == 0,
			      "worker %d ended with %d", i, is.si_status);
	}
}

/*
 * Kills the daemon when that many blocks were stored in its life, and starts it again; by then they
 * may have become `spare` more.
 */
static void kill_at(uint32_t n_stored, uint32_t spare, const pid_t *pids)
{
	h->limit = h->n_stored + n_stored + spare;
	while (counter("committed_blocks") < n_stored) {
		none_failed(pids);
		e2e_sleep_ms(1);
	}
	ck_assert_int_eq(counter("duplicate_blocks"), 0);
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	h->limit = 0;
	start();
}

static void check_blocks(bool all_heard)
{
	uint32_t unheard = 0;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint32_t from = i < STEM ? 0 : i < STEM + GROUP ? 1 : 1 + GROUPS;
		uint32_t to = i < STEM ? 1 : i < STEM + GROUP ? 1 + GROUPS : 1 + GROUPS + HERD;

		for (uint32_t k = from; k < to; k++) {
			ck_assert_msg(h->stored[i][k] <= 1,
				      "block %u of branch %u was stored %u times", i, k,
				      h->stored[i][k]);
			unheard += h->stored[i][k] == 0;
		}
	}
	/* Only who was cut off by a kill may have stored what he did not hear of. */
	ck_assert_msg(all_heard ? unheard == 0 : unheard <= 2 * HERD * PIECE, "%u unheard of",
		      unheard);
}

static void herd(uint32_t kills, bool leader_dies)
{
	uint64_t gone = 0, waits = 0;
	int killed = 0, status;
	pid_t pids[HERD];
	json_t *audit;

	h = mmap(NULL, sizeof(*h), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(h, MAP_FAILED);
	start();
	for (int i = 0; i < HERD; i++) {
		pids[i] = fork();
		ck_assert_int_ge(pids[i], 0);
		if (pids[i] == 0)
			member(i, leader_dies);
	}
	while (h->n_ready < HERD)
		e2e_sleep_ms(1);
	h->limit = kills > 0 ? DISTINCT / 4 : 0;
	h->go = 1;
	if (kills > 0) /* the stem is half done, and all but one wait for it */
		kill_at(STEM / 2, DISTINCT / 4, pids);
	if (kills > 1) /* many compute tails */
		kill_at(DISTINCT / 3, DISTINCT / 8, pids);
	for (int i = 0; i < HERD; i++) {
		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
			killed++;
			continue;
		}
		ck_assert_msg(status == 0, "worker %d ended with %#x", i, (unsigned)status);
		ck_assert_uint_eq(h->done[i], 1);
		ck_assert_uint_eq(h->bad[i], 0);
		ck_assert_uint_eq(h->duplicates[i], 0);
		gone += h->gone[i];
		waits += h->waits[i];
	}
	ck_assert_int_eq(killed, leader_dies);
	ck_assert_uint_gt(waits, kills ? 0 : HERD / 2); /* a wait that a kill cuts off is none */
	if (kills)
		ck_assert_uint_gt(gone, 0);
	check_blocks(!kills && !leader_dies);
	ck_assert_int_eq(counter("duplicate_blocks"), 0);
	if (!kills) /* whoever was killed never came to his tail */
		ck_assert_int_eq(counter("committed_blocks"), DISTINCT - leader_dies * TAIL);
	audit = ask("{\"op\":\"audit\"}");
	ck_assert(json_is_true(json_object_get(audit, "clean")));
	json_decref(audit);
	fprintf(stderr,
		"%d workers, %u kills: %llu waits, %llu calls met no daemon or another one\n", HERD,
		kills, (unsigned long long)waits, (unsigned long long)gone);
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGINT), 0); /* the memory is given up */
	e2e_daemon_free(&d);
	(void)munmap(h, sizeof(*h));
}

START_TEST(undisturbed)
{
	herd(0, false);
}
END_TEST

START_TEST(leader_killed)
{
	herd(0, true);
}
END_TEST

START_TEST(daemon_killed)
{
	herd(2, false);
}
END_TEST

START_TEST(both_killed)
{
	herd(2, true);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stampede");
	TCase *t = tcase_create("F12");

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 240);
	tcase_add_test(t, undisturbed);
	tcase_add_test(t, leader_killed);
	tcase_add_test(t, daemon_killed);
	tcase_add_test(t, both_killed);
	suite_add_tcase(s, t);
	return test_run(s);
}
