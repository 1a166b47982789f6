/*
 * test_cache_faults.c - a daemon that is full, absent, killed or frozen, and requests that end
 * early: each costs its hit and a bounded time, and nothing is left behind.
 */
#include "clients/llama/cache.h"

#include "tests/lib/run.h"
#include "tests/llama/worker.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const large[] = { "--pool-blocks", "512", NULL };
static const char *const small[] = { "--pool-blocks", "8", NULL };

START_TEST(a_full_pool_stops_storing)
{
	struct worker a, b;
	struct cache_request *q;
	int32_t tokens[N];
	struct kit_answer got;
	uint32_t hit;

	worker_start(small);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_uint_eq(worker_request(&a, tokens, N, &got), 0);
	worker_expect_plain(tokens, N, 0, &got);
	kit_answer_free(&got);
	/* Nothing is held by who cannot store, though it goes on. */
	q = worker_begin(&a, tokens, N, &hit);
	worker_prefill(&a, q, tokens, hit, N);
	worker_expect_clean();
	cache_end(q);
	worker_empty(&a);
	hit = worker_request(&b, tokens, N, &got);
	ck_assert_uint_gt(hit, 0);
	ck_assert_uint_le(hit, 8 * BLOCK);
	worker_expect_plain(tokens, N, hit, &got);
	worker_expect_clean();
	kit_answer_free(&got);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(without_a_daemon_all_is_computed)
{
	struct worker w;
	int32_t tokens[N];
	struct kit_answer got;
	unsigned long since;

	worker_new(&w, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	since = e2e_now_ms();
	ck_assert_uint_eq(worker_request(&w, tokens, N, &got), 0);
	ck_assert_uint_lt(e2e_now_ms() - since, 10000);
	worker_expect_plain(tokens, N, 0, &got);
	kit_answer_free(&got);
	ck_assert_uint_gt(worker_counters(&w).failures, 0);
	ck_assert_str_ne(cache_problem(w.cache), "");
	/* It comes: no restart of the worker is needed. */
	worker_start(large);
	e2e_sleep_ms(250);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	worker_free(&w);
}
END_TEST

START_TEST(a_killed_daemon_costs_the_hit)
{
	struct worker a, b;
	struct cache_request *q, *later;
	int32_t tokens[N];
	struct kit_answer got;
	struct worker_cuts cuts = { 0 };
	uint32_t hit;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_uint_eq(worker_request(&a, tokens, 200, NULL), 0);
	/* One that has begun to compute, one that waits, and one that comes after. */
	q = worker_begin(&a, tokens, N, &hit);
	ck_assert_uint_eq(hit, 200 / BLOCK * BLOCK);
	worker_prefill(&a, q, tokens, hit, 300);
	ck_assert_int_eq(cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &later, &hit),
			 CACHE_LATER);
	ck_assert_int_ne(e2e_daemon_stop(&worker_daemon, SIGKILL), -1);
	worker_prefill(&a, q, tokens, 300, N - 1);
	worker_answer(&a, q, tokens, N, &got);
	cache_end(q);
	worker_empty(&a);
	worker_cut(&cuts, 0, 192, CHUNK);
	worker_cut(&cuts, 192, 300, CHUNK);
	worker_cut(&cuts, 300, N - 1, CHUNK);
	worker_expect(tokens, tokens, N, 192, &cuts, &got);
	kit_answer_free(&got);
	while (cache_poll(later, 20, &hit) == CACHE_LATER)
		;
	ck_assert_uint_eq(hit % BLOCK, 0);
	worker_prefill(&b, later, tokens, hit, N - 1);
	worker_answer(&b, later, tokens, N, &got);
	cache_end(later);
	worker_empty(&b);
	worker_expect_plain(tokens, N, hit, &got);
	kit_answer_free(&got);
	ck_assert_uint_eq(worker_request(&b, tokens, N, NULL), 0);
	/* Its next life knows nothing, and learns. */
	worker_start(large);
	e2e_sleep_ms(250);
	ck_assert_uint_eq(worker_request(&b, tokens, N, NULL), 0);
	hit = worker_request(&a, tokens, N, &got);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	worker_expect_plain(tokens, N, hit, &got);
	ck_assert_uint_eq(worker_request(&b, tokens, N, NULL), hit);
	worker_expect_clean();
	kit_answer_free(&got);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

/* Slots of another life are other memory, though their numbers are in range. */
START_TEST(a_new_life_is_not_the_old_one)
{
	struct worker a, b, c;
	struct cache_request *lead, *q, *p;
	int32_t tokens[N], others[N];
	struct kit_answer got;
	uint32_t hit;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	c = b;
	c.ctx = kit_context(worker_model, &(struct kit_context){ .n_ctx = 1024,
								 .type_k = GGML_TYPE_F16,
								 .type_v = GGML_TYPE_F16 });
	kit_prompt(worker_model, 1, tokens, N);
	kit_prompt(worker_model, 2, others, N);
	ck_assert_uint_eq(worker_request(&a, tokens, 200, NULL), 0);
	/* It holds 12 blocks, and waits for more. */
	lead = worker_begin(&a, tokens, N, &hit);
	ck_assert_int_eq(cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &q, &hit), CACHE_LATER);
	ck_assert_int_ne(e2e_daemon_stop(&worker_daemon, SIGKILL), -1);
	worker_start(large);
	e2e_sleep_ms(250);
	/* The same client fills the same slots of the new pool with something else. */
	p = worker_begin(&c, others, N, &hit);
	worker_prefill(&c, p, others, hit, N);
	cache_end(p);
	ck_assert_uint_eq(worker_counters(&c).stored_blocks, N / BLOCK);
	while (cache_poll(q, 20, &hit) == CACHE_LATER)
		;
	ck_assert_uint_eq(hit, 0);
	worker_prefill(&b, q, tokens, 0, N - 1);
	worker_answer(&b, q, tokens, N, &got);
	worker_expect_plain(tokens, N, 0, &got);
	kit_answer_free(&got);
	cache_end(q);
	cache_end(lead);
	worker_expect_clean();
	llama_free(c.ctx);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

/* A tenant's number is of one life: the same number may be another's in the next. */
START_TEST(a_tenant_is_looked_up_in_each_life)
{
	static const char *const before[] = { "--pool-blocks", "512",      "--tenant", "red=any",
					      "--tenant",      "blue=any", NULL };
	static const char *const after[] = { "--pool-blocks", "512",     "--tenant", "blue=any",
					     "--tenant",      "red=any", NULL };
	struct cache_options red = worker_usual, blue = worker_usual;
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct worker of_red, of_blue, another;
	int32_t tokens[N];

	red.tenant = "red";
	blue.tenant = "blue";
	worker_start(before);
	worker_with(&of_red, worker_model, &how, &red, BLOCK);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_uint_eq(worker_request(&of_red, tokens, N, NULL), 0);
	ck_assert_int_ne(e2e_daemon_stop(&worker_daemon, SIGKILL), -1);
	worker_start(after);
	e2e_sleep_ms(250);
	/* It has not noticed yet. */
	ck_assert_uint_eq(worker_request(&of_red, tokens, N, NULL), 0);
	worker_with(&of_blue, worker_model, &how, &blue, BLOCK);
	ck_assert_uint_eq(worker_request(&of_blue, tokens, N, NULL), 0);
	worker_with(&another, worker_model, &how, &red, BLOCK);
	ck_assert_uint_eq(worker_request(&another, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	worker_free(&of_red);
	worker_free(&of_blue);
	worker_free(&another);
	worker_expect_clean();
}
END_TEST

static int mapped_pools(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	(void)fclose(f);
	return n;
}

START_TEST(pools_of_old_lives_are_given_back)
{
	int32_t tokens[N];
	struct worker w;
	int n;

	worker_start(large);
	worker_new(&w, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
	n = mapped_pools();
	ck_assert_int_gt(n, 0);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_ne(e2e_daemon_stop(&worker_daemon, SIGKILL), -1);
		ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
		worker_start(large);
		e2e_sleep_ms(250);
		ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
		ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
		ck_assert_int_eq(mapped_pools(), n);
	}
	worker_free(&w);
}
END_TEST

/* Shuts this process' connections to the daemon.  Return: how many. */
static int cut_connections(void)
{
	int n = 0;

	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_un to;
		socklen_t len = sizeof(to);

		if (getpeername(fd, (struct sockaddr *)&to, &len) == 0 &&
		    to.sun_family == AF_UNIX && strcmp(to.sun_path, worker_daemon.socket) == 0)
			n += shutdown(fd, SHUT_RDWR) == 0;
	}
	return n;
}

/* A lease whose connection ended is held as long as the process lives, unless it says otherwise. */
START_TEST(a_lost_connection_leaves_no_lease)
{
	struct cache_request *q;
	int32_t tokens[N], others[N];
	struct worker w;
	uint32_t hit;

	worker_start(large);
	worker_new(&w, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	kit_prompt(worker_model, 2, others, N);
	q = worker_begin(&w, tokens, N, &hit);
	worker_prefill(&w, q, tokens, 0, 128);
	ck_assert_int_eq(cut_connections(), 1);
	worker_prefill(&w, q, tokens, 128, N);
	cache_end(q);
	worker_empty(&w);
	ck_assert_uint_eq(worker_request(&w, others, N, NULL), 0);
	worker_expect_clean();
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 128);
	ck_assert_uint_eq(worker_request(&w, others, N, NULL), (N - 1) / BLOCK * BLOCK);
	worker_expect_clean();
	worker_free(&w);
}
END_TEST

START_TEST(a_frozen_daemon_costs_a_deadline)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct cache_options hasty = worker_usual;
	struct cache_request *q;
	struct worker w;
	int32_t tokens[N];
	unsigned long since;
	uint32_t hit;

	hasty.deadline_ms = 100;
	worker_start(large);
	worker_with(&w, worker_model, &how, &hasty, BLOCK);
	kit_prompt(worker_model, 1, tokens, N);
	q = worker_begin(&w, tokens, N, &hit);
	worker_prefill(&w, q, tokens, 0, 128);
	ck_assert_uint_eq(worker_counters(&w).stored_blocks, 8);
	ck_assert_int_eq(kill(worker_daemon.pid, SIGSTOP), 0);
	since = e2e_now_ms();
	worker_prefill(&w, q, tokens, 128, N);
	cache_end(q);
	/* RESERVE's and RELEASE's deadlines, not one for each chunk. */
	ck_assert_uint_lt(e2e_now_ms() - since, 1000);
	worker_empty(&w);
	ck_assert_uint_eq(worker_counters(&w).stored_blocks, 8);
	ck_assert_int_eq(kill(worker_daemon.pid, SIGCONT), 0);
	e2e_sleep_ms(300);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 128);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	worker_expect_clean();
	worker_free(&w);
}
END_TEST

/* Three late answers in a row, and a daemon that hangs costs no request anything for a while. */
START_TEST(a_daemon_that_hangs_is_left_alone)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct cache_options hasty = worker_usual;
	int32_t tokens[N];
	uint64_t spent;
	struct worker w;

	hasty.deadline_ms = 50;
	worker_start(large);
	worker_with(&w, worker_model, &how, &hasty, BLOCK);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
	ck_assert_int_eq(kill(worker_daemon.pid, SIGSTOP), 0);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
	spent = worker_counters(&w).daemon_us;
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
	ck_assert_uint_eq(worker_counters(&w).daemon_us, spent);
	ck_assert_int_eq(kill(worker_daemon.pid, SIGCONT), 0);
	e2e_sleep_ms(1200);
	(void)worker_request(&w, tokens, N, NULL); /* gives back what the late answers held */
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	worker_expect_clean();
	worker_free(&w);
}
END_TEST

/* A pool that is not ready when a worker starts: the first request has it all the same. */
START_TEST(a_slow_start_is_waited_for)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct cache_options hasty = worker_usual;
	int32_t tokens[N];
	unsigned long since;
	struct worker w;
	pid_t waker;

	hasty.deadline_ms = 100;
	worker_start(large);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_int_eq(kill(worker_daemon.pid, SIGSTOP), 0);
	since = e2e_now_ms();
	waker = fork();
	ck_assert_int_ge(waker, 0);
	if (!waker) {
		e2e_sleep_ms(700);
		_exit(kill(worker_daemon.pid, SIGCONT) ? 1 : 0);
	}
	worker_with(&w, worker_model, &how, &hasty, BLOCK);
	ck_assert_uint_ge(e2e_now_ms() - since, 500);
	ck_assert_uint_lt(e2e_now_ms() - since, 8000);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), 0);
	ck_assert_uint_eq(worker_request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	ck_assert_uint_eq(worker_counters(&w).failures, 0);
	worker_free(&w);
	ck_assert_int_eq(waitpid(waker, NULL, 0), waker);
}
END_TEST

/* Requests that end at any point leave nothing behind. */
START_TEST(aborted_requests_leave_nothing)
{
	struct worker a, b;
	struct cache_request *p, *q;
	int32_t tokens[N];
	uint32_t hit;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	for (uint32_t i = 0; i < 20; i++) {
		kit_prompt(worker_model, 10 + i / 2, tokens, N);
		p = worker_begin(&a, tokens, N, &hit);
		(void)cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &q, &hit);
		if (i % 3)
			worker_prefill(&a, p, tokens, hit, hit + CHUNK);
		cache_end(i % 2 ? p : q);
		cache_end(i % 2 ? q : p);
		worker_empty(&a);
		worker_empty(&b);
	}
	cache_end(NULL);
	worker_expect_clean();
	worker_free(&a);
	worker_free(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cache-faults");
	TCase *t = tcase_create("cache-faults");

	tcase_add_checked_fixture(t, worker_setup, worker_teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, a_full_pool_stops_storing);
	tcase_add_test(t, without_a_daemon_all_is_computed);
	tcase_add_test(t, a_killed_daemon_costs_the_hit);
	tcase_add_test(t, a_new_life_is_not_the_old_one);
	tcase_add_test(t, a_tenant_is_looked_up_in_each_life);
	tcase_add_test(t, pools_of_old_lives_are_given_back);
	tcase_add_test(t, a_lost_connection_leaves_no_lease);
	tcase_add_test(t, a_frozen_daemon_costs_a_deadline);
	tcase_add_test(t, a_daemon_that_hangs_is_left_alone);
	tcase_add_test(t, a_slow_start_is_waited_for);
	tcase_add_test(t, aborted_requests_leave_nothing);
	suite_add_tcase(s, t);
	return test_run(s);
}
