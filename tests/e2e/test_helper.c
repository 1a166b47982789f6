/*
 * test_helper.c - the rings between the loop and its helpers: every message once and in order,
 * also when a ring is far too small, nobody sleeps over one, and nothing is lost at the end.
 *
 * Built with the thread sanitizer it also shows that the two sides share nothing by accident.
 */
#include "daemon/helper.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct number {
	struct prefixd_message message;
	uint32_t n;
};

/* What a helper of these tests is told. */
struct plan {
	bool naps;      /* sleeps now and then, so that rings fill */
	bool silent;    /* answers only each 100th */
	uint32_t die;   /* returns after so many */
	uint32_t taken; /* the helper's, read after its end */
	uint64_t seed;
	_Atomic bool go;
};

static bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

static void nap(void)
{
	const struct timespec ts = { .tv_nsec = 50000 };

	nanosleep(&ts, NULL);
}

static struct number *number_new(uint32_t n)
{
	struct number *m = calloc(1, sizeof(*m));

	ck_assert_ptr_nonnull(m);
	m->message.kind = n % 7;
	m->n = n;
	return m;
}

static uint32_t number_of(const struct prefixd_message *m)
{
	return radix_container_of((uintptr_t)m, struct number, message)->n;
}

static uint32_t n_dropped;

static void drop(struct prefixd_message *m)
{
	n_dropped++;
	free(radix_container_of(m, struct number, message));
}

/* Takes, checks the order, answers; sleeps on the descriptor when there is nothing. */
static void echo(struct prefixd_helper *h, void *ctx)
{
	struct plan *plan = ctx;
	uint64_t rng = plan->seed;

	while (!prefixd_helper_stopping(h)) {
		struct prefixd_message *m = prefixd_helper_take(h);

		prefixd_helper_alive(h, 1000 + plan->taken);
		if (!m) {
			struct pollfd p = { .fd = prefixd_helper_request_fd(h), .events = POLLIN };

			ck_assert_int_ge(poll(&p, 1, 20000), 1); /* 0: slept over something */
			continue;
		}
		ck_assert_uint_eq(number_of(m), plan->taken);
		plan->taken++;
		if (plan->naps && test_rng_below(&rng, 64) == 0)
			nap();
		if (plan->silent && plan->taken % 100 != 0)
			free(radix_container_of(m, struct number, message));
		else
			prefixd_helper_answer(h, m);
		if (plan->die && plan->taken % plan->die == 0)
			return;
	}
}

static struct prefixd_helper *start(struct plan *plan, uint32_t ring,
				    void (*run)(struct prefixd_helper *h, void *ctx))
{
	const struct prefixd_helper_config config = {
		.name = "test", .ring = ring, .run = run, .ctx = plan
	};
	struct prefixd_helper *h = NULL;

	n_dropped = 0;
	ck_assert_int_eq(prefixd_helper_start(&h, &config), 0);
	return h;
}

/* Waits for an answer and frees it; its number. */
static uint32_t answer(struct prefixd_helper *h)
{
	struct prefixd_message *m;
	uint32_t n;

	while (!(m = prefixd_helper_receive(h)))
		ck_assert_msg(readable(prefixd_helper_answer_fd(h), 20000), "no answer");
	n = number_of(m);
	free(radix_container_of(m, struct number, message));
	return n;
}

/* ---- order and numbers ----------------------------------------------------------------------- */

/* All at once through rings that hold little, with helpers that are slow or not. */
static const struct {
	uint32_t ring;
	bool naps;
} sizes[] = { { 1, false }, { 1, true }, { 2, false }, { 8, true }, { 1024, true }, { 0, false } };

START_TEST(all_come_back_in_order)
{
	enum {
		N = 20000
	};
	struct plan plan = { .naps = sizes[_i].naps, .seed = (uint64_t)_i };
	struct prefixd_helper *h = start(&plan, sizes[_i].ring, echo);

	for (uint32_t i = 0; i < N; i++)
		prefixd_helper_send(h, &number_new(i)->message);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(answer(h), i);
	ck_assert_ptr_null(prefixd_helper_receive(h));
	ck_assert_uint_eq(prefixd_helper_waiting(h), 0);
	ck_assert_uint_ge(prefixd_helper_beat(h), 1000);
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 0);
	ck_assert_uint_eq(plan.taken, N);
}
END_TEST

/* Sending and receiving mixed at random: both lists grow and shrink many times. */
START_TEST(mixed_at_random)
{
	enum {
		N = 50000
	};
	struct plan plan = { .naps = true, .seed = 5 };
	struct prefixd_helper *h = start(&plan, 16, echo);
	uint64_t rng = 77;
	uint32_t sent = 0, got = 0;

	while (got < N) {
		uint32_t n = test_rng_below(&rng, 200);

		for (; n > 0 && sent < N; n--)
			prefixd_helper_send(h, &number_new(sent++)->message);
		for (n = test_rng_below(&rng, 200); n > 0; n--) {
			struct prefixd_message *m = prefixd_helper_receive(h);

			if (!m)
				break;
			ck_assert_uint_eq(number_of(m), got++);
			free(radix_container_of(m, struct number, message));
		}
		if (sent == N && got < N)
			ck_assert_uint_eq(answer(h), got++);
	}
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 0);
}
END_TEST

/*
 * Requests that nobody answers fill the ring and the list behind it; the sender then only sleeps on
 * its descriptor, and must be woken to send the rest.
 */
START_TEST(the_rest_follows_without_answers)
{
	enum {
		N = 10000
	};
	struct plan plan = { .naps = true, .silent = true, .seed = 9 };
	struct prefixd_helper *h = start(&plan, 8, echo);

	for (uint32_t i = 0; i < N; i++)
		prefixd_helper_send(h, &number_new(i)->message);
	ck_assert_uint_gt(prefixd_helper_waiting(h), 8); /* more than the ring holds */
	for (uint32_t i = 1; i <= N / 100; i++)
		ck_assert_uint_eq(answer(h), i * 100 - 1);
	ck_assert_uint_eq(prefixd_helper_waiting(h), 0);
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 0);
}
END_TEST

/* ---- descriptors ----------------------------------------------------------------------------- */

static void wait_for_go(struct prefixd_helper *h, void *ctx)
{
	struct plan *plan = ctx;

	while (!atomic_load(&plan->go) && !prefixd_helper_stopping(h))
		sched_yield();
	echo(h, ctx);
}

/* Readable while there is something, also when one stops in the middle; quiet when not. */
START_TEST(readable_says_the_truth)
{
	struct plan plan = { 0 };
	struct prefixd_helper *h = start(&plan, 4, wait_for_go);
	int fd = prefixd_helper_answer_fd(h);

	ck_assert(!readable(fd, 0));
	ck_assert(!readable(prefixd_helper_request_fd(h), 0));
	for (uint32_t i = 0; i < 3; i++)
		prefixd_helper_send(h, &number_new(i)->message);
	ck_assert(readable(prefixd_helper_request_fd(h), 0));
	atomic_store(&plan.go, true);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert(readable(fd, 20000));
		ck_assert_uint_eq(answer(h), i);
	}
	ck_assert_ptr_null(prefixd_helper_receive(h));
	ck_assert(!readable(fd, 20));
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 0);
}
END_TEST

/* ---- the end --------------------------------------------------------------------------------- */

static void take_none(struct prefixd_helper *h, void *ctx)
{
	while (!prefixd_helper_stopping(h))
		ck_assert(readable(prefixd_helper_request_fd(h), 20000));
}

/* Stopped with requests that were never taken, in the ring and behind it. */
START_TEST(stop_drops_requests)
{
	struct plan plan = { 0 };
	struct prefixd_helper *h = start(&plan, 4, take_none);

	for (uint32_t i = 0; i < 100; i++)
		prefixd_helper_send(h, &number_new(i)->message);
	ck_assert_uint_eq(prefixd_helper_waiting(h), 100);
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 100);
}
END_TEST

/* Stopped with answers that were never received, in the ring and behind it. */
START_TEST(stop_drops_answers)
{
	struct plan plan = { 0 };
	struct prefixd_helper *h = start(&plan, 4, echo);

	for (uint32_t i = 0; i < 100; i++) {
		prefixd_helper_send(h, &number_new(i)->message);
		while (prefixd_helper_waiting(h) > 0)
			sched_yield();
	}
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 100);
	ck_assert_uint_eq(plan.taken, 100);
}
END_TEST

START_TEST(stop_is_heard_while_asleep)
{
	struct plan plan = { 0 };
	struct prefixd_helper *h;

	for (int i = 0; i < 200; i++) {
		h = start(&plan, 0, echo);
		if (i % 2)
			sched_yield();
		prefixd_helper_stop(h, drop); /* a hang would be the test's timeout */
	}
	prefixd_helper_stop(NULL, drop);
}
END_TEST

/* One that returns by itself is noticed, and runs again where it stopped. */
START_TEST(the_dead_are_noticed_and_run_again)
{
	struct plan plan = { .die = 10 };
	struct prefixd_helper *h = start(&plan, 8, echo);
	uint32_t got = 0;

	for (uint32_t i = 0; i < 100; i++)
		prefixd_helper_send(h, &number_new(i)->message);
	while (got < 100) {
		struct prefixd_message *m = prefixd_helper_receive(h);

		if (m) {
			ck_assert_uint_eq(number_of(m), got++);
			free(radix_container_of(m, struct number, message));
			continue;
		}
		if (prefixd_helper_ended(h)) {
			m = prefixd_helper_receive(h); /* what it sent before its end */
			if (m) {
				ck_assert_uint_eq(number_of(m), got++);
				free(radix_container_of(m, struct number, message));
				continue;
			}
			ck_assert_int_eq(prefixd_helper_restart(h), 0);
			continue;
		}
		ck_assert(readable(prefixd_helper_answer_fd(h), 20000));
	}
	ck_assert_uint_ge(prefixd_helper_restarts(h), 9);
	prefixd_helper_stop(h, drop);
	ck_assert_uint_eq(n_dropped, 0);
}
END_TEST

START_TEST(sizes_that_make_no_ring)
{
	struct prefixd_helper_config config = { .name = "test", .run = echo };
	struct prefixd_helper *h = NULL;

	config.ring = 3;
	ck_assert_int_eq(prefixd_helper_start(&h, &config), -EINVAL);
	config.ring = 1u << 30;
	ck_assert_int_eq(prefixd_helper_start(&h, &config), -EINVAL);
	ck_assert_ptr_null(h);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("helper");
	TCase *tc = tcase_create("helper");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, all_come_back_in_order, 0, radix_array_size(sizes));
	tcase_add_test(tc, mixed_at_random);
	tcase_add_test(tc, the_rest_follows_without_answers);
	tcase_add_test(tc, readable_says_the_truth);
	tcase_add_test(tc, stop_drops_requests);
	tcase_add_test(tc, stop_drops_answers);
	tcase_add_test(tc, stop_is_heard_while_asleep);
	tcase_add_test(tc, the_dead_are_noticed_and_run_again);
	tcase_add_test(tc, sizes_that_make_no_ring);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	return test_run(suite());
}
