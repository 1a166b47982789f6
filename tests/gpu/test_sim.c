/*
 * test_sim.c - what the simulated device does beyond the contract: time, poison, its plan of
 * faults, and the loss of the device.
 */
#include "gpu/gpu_internal.h"
#include "tests/gpu/util.h"

#include <signal.h>

#define SLOTS 4
#define BYTES 1024

static struct gpu *g;
static struct gpu_pool *pool;
static uint8_t host[BYTES];

static void start(const struct gpu_sim_config *plan)
{
	g = open_back_end("sim", plan);
	pool = new_pool(g, SLOTS, BYTES);
	memset(host, 0x11, sizeof(host));
	n_completions = 0;
}

static void stop(void)
{
	gpu_close(g);
	g = NULL;
}

static uint64_t slot(uint32_t i)
{
	return g->ops->slot_addr(pool, i);
}

static int fill(struct counted_job *c, uint32_t i)
{
	return submit(g, c, slot(i), addr_of(host), BYTES);
}

/* ---- time ------------------------------------------------------------------------------------ */

START_TEST(data_moves_when_due_and_not_before)
{
	const struct gpu_sim_config plan = { .ns_per_kib = 100, .latency_ns = 7 };
	struct counted_job c;
	uint64_t len;
	uint8_t *device;

	start(&plan);
	device = map_pool(g, pool, &len);
	ck_assert_uint_eq(gpu_sim_next_due(g), UINT64_MAX);
	ck_assert_int_eq(fill(&c, 0), 0);
	ck_assert_uint_eq(gpu_sim_next_due(g), 107);
	ck_assert(!readable(g));
	gpu_sim_advance(g, 106);
	ck_assert(!readable(g));
	ck_assert_uint_eq(g->ops->reap(g, 10), 0);
	ck_assert(all_bytes(device, len, GPU_SIM_NEW));
	/* The source is read when the copy happens: changing it too early shows as well. */
	memset(host, 0x22, sizeof(host));
	gpu_sim_advance(g, 1);
	ck_assert(readable(g));
	ck_assert_uint_eq(c.n_done, 0);
	ck_assert(all_bytes(device, BYTES, 0x22));
	ck_assert(all_bytes(device + BYTES, len - BYTES, GPU_SIM_NEW));
	ck_assert_uint_eq(gpu_sim_next_due(g), UINT64_MAX);
	ck_assert_uint_eq(g->ops->reap(g, 10), 1);
	ck_assert_uint_eq(c.n_done, 1);
	ck_assert_int_eq(munmap(device, len), 0);
	stop();
}
END_TEST

START_TEST(copies_queue_behind_each_other)
{
	const struct gpu_sim_config plan = { .ns_per_kib = 100, .latency_ns = 1000 };
	struct counted_job c[3];

	start(&plan);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(fill(&c[i], i), 0);
	ck_assert_uint_eq(gpu_sim_next_due(g), 1100);
	gpu_sim_advance(g, 1100);
	ck_assert_uint_eq(g->ops->reap(g, 10), 1);
	ck_assert_uint_eq(gpu_sim_next_due(g), 1200);
	/* An idle engine starts now and not when the last copy ended; a part of a KiB costs one. */
	gpu_sim_advance(g, 8900);
	ck_assert_uint_eq(g->ops->reap(g, 10), 1);
	ck_assert_int_eq(submit(g, &c[2], slot(2), addr_of(host), 1), 0);
	ck_assert_uint_eq(gpu_sim_next_due(g), 10000 + 100 + 1000);
	gpu_sim_advance(g, 1100);
	ck_assert_uint_eq(g->ops->reap(g, 10), 1);
	stop();
}
END_TEST

/* Zero costs nothing: due at once, but still moved and told by reap() only. */
START_TEST(no_plan_is_immediate)
{
	struct counted_job c;
	uint64_t len;
	uint8_t *device;

	start(NULL);
	device = map_pool(g, pool, &len);
	ck_assert_int_eq(fill(&c, 1), 0);
	ck_assert(readable(g));
	ck_assert_uint_eq(c.n_done, 0);
	ck_assert(all_bytes(device, len, GPU_SIM_NEW));
	ck_assert_uint_eq(g->ops->reap(g, 1), 1);
	ck_assert(all_bytes(device + BYTES, BYTES, 0x11));
	ck_assert(!readable(g));
	ck_assert_int_eq(munmap(device, len), 0);
	stop();
}
END_TEST

START_TEST(costs_that_overflow)
{
	const struct gpu_sim_config plan = { .ns_per_kib = UINT64_MAX, .latency_ns = UINT64_MAX };
	struct counted_job c[2];

	start(&plan);
	ck_assert_int_eq(fill(&c[0], 0), 0);
	ck_assert_int_eq(fill(&c[1], 1), 0);
	ck_assert_uint_lt(gpu_sim_next_due(g), UINT64_MAX);
	gpu_sim_advance(g, UINT64_MAX);
	ck_assert_uint_eq(g->ops->reap(g, 10), 2);
	stop();
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(poison)
{
	uint64_t len;
	uint8_t *device;

	start(NULL);
	device = map_pool(g, pool, &len);
	ck_assert(all_bytes(device, len, GPU_SIM_NEW));
	memset(device, 0, len);
	gpu_poison_slot(g, pool, 2);
	ck_assert(all_bytes(device, 2 * BYTES, 0));
	ck_assert(all_bytes(device + 2 * BYTES, BYTES, GPU_SIM_FREED));
	ck_assert(all_bytes(device + 3 * BYTES, len - 3 * BYTES, 0));
	/* A worker that keeps its mapping of a freed pool sees what it may not use. */
	g->ops->pool_free(g, pool);
	ck_assert(all_bytes(device, len, GPU_SIM_FREED));
	ck_assert_int_eq(munmap(device, len), 0);
	stop();
}
END_TEST

START_TEST(poison_on_host_is_nothing)
{
	struct gpu *h = open_back_end("host", NULL);
	struct gpu_pool *p = new_pool(h, 2, 64);
	uint8_t *bytes = h->ops->slot_host(p, 1);

	memset(bytes, 0x42, 64);
	gpu_poison_slot(h, p, 1);
	gpu_sim_advance(h, 1000);
	ck_assert_uint_eq(gpu_sim_next_due(h), UINT64_MAX);
	ck_assert(all_bytes(bytes, 64, 0x42));
	gpu_close(h);
}
END_TEST

START_TEST(addresses_are_no_pointers)
{
	start(NULL);
	ck_assert_ptr_null(g->ops->slot_host(pool, 0));
	stop();
}
END_TEST

START_TEST(load_from_the_device_faults)
{
	volatile uint8_t *p;

	start(NULL);
	/* Sanitizers catch it and end the process in their own way. */
	ck_assert_ptr_ne(signal(SIGSEGV, SIG_DFL), SIG_ERR);
	p = (volatile uint8_t *)(uintptr_t)slot(1);
	ck_assert_uint_eq(*p, *p);
}
END_TEST

START_TEST(freeing_under_a_job_that_is_due_traps)
{
	struct counted_job c;

	start(NULL);
	ck_assert_int_eq(fill(&c, 0), 0);
	gpu_sim_advance(g, 1);
	g->ops->pool_free(g, pool);
}
END_TEST

/* A closed device gives its addresses back, so the next one starts at the same. */
START_TEST(devices_do_not_share_addresses)
{
	struct gpu *devices[3];
	uint64_t at[3], first;

	start(NULL);
	first = slot(0);
	stop();
	start(NULL);
	ck_assert_uint_eq(slot(0), first);
	stop();

	for (size_t i = 0; i < 3; i++) {
		devices[i] = open_back_end("sim", NULL);
		at[i] = devices[i]->ops->slot_addr(new_pool(devices[i], 1, 64), 0);
		for (size_t j = 0; j < i; j++)
			ck_assert_uint_ne(at[i], at[j]);
	}
	for (size_t i = 0; i < 3; i++)
		gpu_close(devices[i]);
}
END_TEST

/* A window for three pools: addresses wander through it, come back, and never overlap. */
START_TEST(address_space_is_used_again)
{
	const struct gpu_sim_config healthy = { 0 };
	struct gpu_pool *pools[4] = { NULL };
	uint64_t last = 0, page = 4096, stride = page + GPU_SIM_POOL_GAP;
	bool wrapped = false;

	ck_assert_int_eq(gpu_sim_open(&healthy, GPU_SIM_POOL_GAP + 3 * stride + page, &g), 0);
	for (uint32_t round = 0; round < 40; round++) {
		uint32_t i = round % 3;
		uint64_t at;

		g->ops->pool_free(g, pools[i]);
		pools[i] = new_pool(g, 1, page);
		at = g->ops->slot_addr(pools[i], 0);
		wrapped |= at < last;
		last = at;
		for (uint32_t j = 0; j < 3; j++)
			if (pools[j] && j != i)
				ck_assert_uint_ge(llabs((int64_t)at -
							(int64_t)g->ops->slot_addr(pools[j], 0)),
						  (int64_t)stride);
	}
	ck_assert(wrapped);
	ck_assert_int_eq(g->ops->pool_new(g, 1, page, &pools[3]), -ENOMEM);
	ck_assert_ptr_null(pools[3]);
	stop();
}
END_TEST

START_TEST(capacity)
{
	const struct gpu_sim_config plan = { .capacity = SLOTS * BYTES + 3000 };
	struct gpu_pool *more = NULL;

	start(&plan);
	ck_assert_int_eq(g->ops->pool_new(g, 3, 1001, &more), -ENOMEM);
	ck_assert_int_eq(g->ops->pool_new(g, UINT32_MAX, UINT64_MAX / 2, &more), -ENOMEM);
	ck_assert_int_eq(g->ops->pool_new(g, 3, 1000, &more), 0);
	ck_assert_int_eq(g->ops->pool_new(g, 1, 1, &pool), -ENOMEM);
	g->ops->pool_free(g, more);
	ck_assert_int_eq(g->ops->pool_new(g, 2, 1500, &more), 0);
	stop();
}
END_TEST

/* ---- the plan, at each of its points --------------------------------------------------------- */

START_TEST(nth_pool_fails)
{
	const struct gpu_sim_config plan = { .fail_alloc = (uint32_t)_i };
	struct gpu_pool *p;

	g = open_back_end("sim", &plan);
	for (int n = 1; n <= 5; n++)
		ck_assert_int_eq(g->ops->pool_new(g, 1, 64, &p), n == _i ? -ENOMEM : 0);
	ck_assert_int_eq(g->ops->health(g), 0);
	stop();
}
END_TEST

START_TEST(nth_submit_fails)
{
	const struct gpu_sim_config plan = { .fail_submit = (uint32_t)_i };
	struct counted_job c[5];

	start(&plan);
	for (int n = 1; n <= 5; n++)
		ck_assert_int_eq(fill(&c[n - 1], 0), n == _i ? -EAGAIN : 0);
	ck_assert_uint_eq(settle(g), _i ? 4 : 5);
	for (int n = 1; n <= 5; n++)
		ck_assert_uint_eq(c[n - 1].n_done, n == _i ? 0 : 1);
	stop();
}
END_TEST

START_TEST(nth_job_fails)
{
	const struct gpu_sim_config plan = { .fail_job = (uint32_t)_i };
	struct counted_job c[SLOTS];
	uint64_t len;
	uint8_t *device;

	start(&plan);
	device = map_pool(g, pool, &len);
	for (uint32_t n = 0; n < SLOTS; n++)
		ck_assert_int_eq(fill(&c[n], n), 0);
	ck_assert_uint_eq(settle(g), SLOTS);
	for (uint32_t n = 0; n < SLOTS; n++) {
		bool failed = (int)n + 1 == _i;

		ck_assert_uint_eq(c[n].n_done, 1);
		ck_assert_int_eq(c[n].status, failed ? -EIO : 0);
		ck_assert(all_bytes(device + n * BYTES, BYTES, failed ? GPU_SIM_NEW : 0x11));
	}
	ck_assert_int_eq(g->ops->health(g), 0);
	ck_assert_int_eq(munmap(device, len), 0);
	stop();
}
END_TEST

static void everything_says_lost(void)
{
	struct gpu_pool *p = NULL;
	struct counted_job c;

	ck_assert_int_eq(g->ops->health(g), -ENODEV);
	ck_assert_int_eq(fill(&c, 0), -ENODEV);
	ck_assert_int_eq(g->ops->pool_new(g, 1, 64, &p), -ENODEV);
	ck_assert_uint_eq(settle(g), 0);
	ck_assert_uint_eq(c.n_done, 0);
	ck_assert_ptr_null(p);
}

START_TEST(nth_job_loses_the_device)
{
	const struct gpu_sim_config plan = { .ns_per_kib = 10, .lose_at_job = (uint32_t)_i };
	struct counted_job c[SLOTS];

	start(&plan);
	for (uint32_t n = 0; n < SLOTS; n++)
		ck_assert_int_eq(fill(&c[n], n), 0);
	ck_assert_int_eq(g->ops->health(g), 0);
	gpu_sim_advance(g, 10 * (uint64_t)_i - 1);
	ck_assert_int_eq(g->ops->health(g), 0);
	gpu_sim_advance(g, 1);
	ck_assert(readable(g));
	ck_assert_uint_eq(settle(g), SLOTS);
	for (uint32_t n = 0; n < SLOTS; n++) {
		ck_assert_uint_eq(c[n].n_done, 1);
		ck_assert_uint_eq(c[n].place, n + 1);
		ck_assert_int_eq(c[n].status, (int)n + 1 < _i ? 0 : -ENODEV);
	}
	everything_says_lost();
	/* What is left is to take it apart, in any order. */
	g->ops->pool_free(g, pool);
	stop();
}
END_TEST

START_TEST(nth_job_never_completes)
{
	const struct gpu_sim_config plan = { .never_complete = (uint32_t)_i };
	struct counted_job c[SLOTS], wild;

	start(&plan);
	for (uint32_t n = 0; n < SLOTS; n++)
		ck_assert_int_eq(fill(&c[n], n), 0);
	ck_assert_uint_eq(settle(g), SLOTS - 1);
	ck_assert_uint_eq(gpu_sim_next_due(g), UINT64_MAX);
	for (uint32_t n = 0; n < SLOTS; n++)
		ck_assert_uint_eq(c[n].n_done, (int)n + 1 == _i ? 0 : 1);
	/* Only the loss of the device brings it back. */
	ck_assert_int_eq(submit(g, &wild, slot(SLOTS - 1) + 1, addr_of(host), BYTES), 0);
	ck_assert_uint_eq(settle(g), 2);
	ck_assert_int_eq(c[_i - 1].status, -ENODEV);
	stop();
}
END_TEST

START_TEST(full_queue)
{
	const struct gpu_sim_config plan = { .queue_depth = (uint32_t)_i, .latency_ns = 10 };
	uint32_t depth = _i ? (uint32_t)_i : 1024;
	struct counted_job *c = calloc(depth + 1, sizeof(*c));

	start(&plan);
	ck_assert_ptr_nonnull(c);
	for (uint32_t n = 0; n < depth; n++)
		ck_assert_int_eq(fill(&c[n], 0), 0);
	ck_assert_int_eq(fill(&c[depth], 0), -EAGAIN);
	/* Due is not reaped: the place is still taken. */
	gpu_sim_advance(g, 10);
	ck_assert_int_eq(fill(&c[depth], 0), -EAGAIN);
	ck_assert_uint_eq(g->ops->reap(g, 1), 1);
	ck_assert_int_eq(fill(&c[depth], 0), 0);
	ck_assert_int_eq(fill(&c[0], 0), -EAGAIN);
	ck_assert_uint_eq(settle(g), depth);
	stop();
	free(c);
}
END_TEST

/* ---- out of bounds --------------------------------------------------------------------------- */

enum wild {
	WILD_PAST_THE_END,
	WILD_BEFORE_THE_START,
	WILD_FREED_POOL,
	WILD_SOURCE,
	WILD_BETWEEN_POOLS,
	N_WILD
};

static uint64_t wild_addr(enum wild kind)
{
	struct gpu_pool_info info;
	uint64_t first = slot(0);

	g->ops->pool_info(pool, &info);
	switch (kind) {
	case WILD_PAST_THE_END:
	case WILD_SOURCE:
		return first + info.len - BYTES + 1;
	case WILD_BEFORE_THE_START:
		return first - 1;
	case WILD_BETWEEN_POOLS:
		return first - BYTES;
	case WILD_FREED_POOL:
		g->ops->pool_free(g, pool);
		pool = new_pool(g, SLOTS, BYTES);
		return first;
	case N_WILD:
	default:
		ck_abort();
	}
}

START_TEST(leaving_the_pool_loses_the_device)
{
	struct counted_job good, bad, behind;
	uint64_t at;

	start(NULL);
	at = wild_addr((enum wild)_i);
	ck_assert_int_eq(fill(&good, 0), 0);
	if (_i == WILD_SOURCE)
		ck_assert_int_eq(submit(g, &bad, addr_of(host), at, BYTES), 0);
	else
		ck_assert_int_eq(submit(g, &bad, at, addr_of(host), BYTES), 0);
	ck_assert_int_eq(fill(&behind, 1), 0);
	ck_assert_uint_eq(settle(g), 3);
	ck_assert_int_eq(good.status, 0);
	ck_assert_int_eq(bad.status, -ENODEV);
	ck_assert_int_eq(behind.status, -ENODEV);
	everything_says_lost();
	stop();
}
END_TEST

/* ---- order ----------------------------------------------------------------------------------- */

#define ORDER_POOLS 3
#define ORDER_JOBS  30

/*
 * Runs the same jobs on three pools under a seed and writes down the order of completion.  Return:
 * how many jobs completed before one that had been submitted earlier.
 */
static uint32_t run_order(uint64_t seed, uint64_t ns_per_kib, uint32_t *order)
{
	const struct gpu_sim_config plan = { .reorder_seed = seed, .ns_per_kib = ns_per_kib };
	struct counted_job c[ORDER_JOBS];
	struct gpu_pool *pools[ORDER_POOLS];
	uint32_t n_early = 0, latest = 0;
	uint64_t now = 0;

	start(&plan);
	for (uint32_t i = 0; i < ORDER_POOLS; i++)
		pools[i] = new_pool(g, SLOTS, BYTES);
	for (uint32_t i = 0; i < ORDER_JOBS; i++)
		ck_assert_int_eq(submit(g, &c[i],
					g->ops->slot_addr(pools[i % ORDER_POOLS], i % SLOTS),
					addr_of(host), BYTES),
				 0);
	for (uint32_t n = 0, steps = 0; n < ORDER_JOBS; steps++) {
		ck_assert_uint_lt(steps, 1000);
		uint64_t due = gpu_sim_next_due(g), n_now;

		/* What is said to be next is: no spinning on a job that another holds back. */
		ck_assert_uint_ge(due, now);
		gpu_sim_advance(g, due - now);
		now = due;
		n_now = g->ops->reap(g, ORDER_JOBS);
		ck_assert_uint_gt(n_now, 0);
		ck_assert(!readable(g));
		n += (uint32_t)n_now;
	}
	for (uint32_t i = 0; i < ORDER_JOBS; i++) {
		ck_assert_uint_eq(c[i].n_done, 1);
		order[i] = c[i].place;
		/* On one pool nothing overtakes. */
		if (i >= ORDER_POOLS)
			ck_assert_uint_gt(c[i].place, c[i - ORDER_POOLS].place);
		if (c[i].place < latest)
			n_early++;
		else
			latest = c[i].place;
	}
	stop();
	return n_early;
}

START_TEST(pools_overtake_each_other_by_seed)
{
	/* All due at once, or one after the other. */
	uint64_t ns_per_kib = _i ? 100 : 0;
	uint32_t order[ORDER_JOBS], again[ORDER_JOBS];
	uint32_t n_early = 0;

	ck_assert_uint_eq(run_order(0, ns_per_kib, order), 0);
	for (uint64_t seed = 1; seed <= 20; seed++) {
		n_early += run_order(seed, ns_per_kib, order);
		ck_assert_uint_eq(run_order(seed, ns_per_kib, again) == 0, n_early == 0);
		ck_assert_mem_eq(order, again, sizeof(order));
	}
	/* Twenty seeds that all kept the order of submission would not be a test of anything. */
	ck_assert_uint_gt(n_early, 20);
}
END_TEST

/* A chain over two pools reads what its earlier links wrote, under every seed. */
START_TEST(order_holds_where_jobs_share_a_pool)
{
	for (uint64_t seed = 1; seed <= 200; seed++) {
		const struct gpu_sim_config plan = { .reorder_seed = seed, .ns_per_kib = 50 };
		struct counted_job c[4];
		struct gpu_pool *other;
		uint8_t out[BYTES] = { 0 };

		start(&plan);
		other = new_pool(g, SLOTS, BYTES);
		ck_assert_int_eq(fill(&c[0], 0), 0);
		ck_assert_int_eq(submit(g, &c[1], g->ops->slot_addr(other, 1), slot(0), BYTES), 0);
		ck_assert_int_eq(submit(g, &c[2], slot(3), g->ops->slot_addr(other, 1), BYTES), 0);
		ck_assert_int_eq(submit(g, &c[3], addr_of(out), slot(3), BYTES), 0);
		ck_assert_uint_eq(settle(g), 4);
		ck_assert(all_bytes(out, BYTES, 0x11));
		stop();
	}
}
END_TEST

static Suite *sim(void)
{
	Suite *s = suite_create("sim");
	TCase *t = new_case();

	tcase_add_test(t, data_moves_when_due_and_not_before);
	tcase_add_test(t, copies_queue_behind_each_other);
	tcase_add_test(t, no_plan_is_immediate);
	tcase_add_test(t, costs_that_overflow);
	tcase_add_test(t, poison);
	tcase_add_test(t, poison_on_host_is_nothing);
	tcase_add_test(t, addresses_are_no_pointers);
	tcase_add_test(t, devices_do_not_share_addresses);
	tcase_add_test(t, address_space_is_used_again);
	tcase_add_test(t, capacity);
	tcase_add_loop_test(t, nth_pool_fails, 0, 6);
	tcase_add_loop_test(t, nth_submit_fails, 0, 6);
	tcase_add_loop_test(t, nth_job_fails, 0, SLOTS + 1);
	tcase_add_loop_test(t, nth_job_loses_the_device, 1, SLOTS + 1);
	tcase_add_loop_test(t, nth_job_never_completes, 1, SLOTS + 1);
	tcase_add_loop_test(t, full_queue, 0, 4);
	tcase_add_loop_test(t, leaving_the_pool_loses_the_device, 0, N_WILD);
	tcase_add_loop_test(t, pools_overtake_each_other_by_seed, 0, 2);
	tcase_add_test(t, order_holds_where_jobs_share_a_pool);
	if (may_die()) {
		tcase_add_test_raise_signal(t, load_from_the_device_faults, SIGSEGV);
		tcase_add_test_raise_signal(t, freeing_under_a_job_that_is_due_traps, SIGILL);
	}
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return run_suite(sim());
}
