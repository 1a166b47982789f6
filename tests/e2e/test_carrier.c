/*
 * test_carrier.c - the thread that copies blocks and makes pools, in this process: bytes, sums,
 * runs, order, errors, and what happens when it is stopped in the middle.
 *
 * The devices are the host's, the simulated one with delays and faults, and one that fails as told.
 */
#include "daemon/carrier.h"
#include "tests/lib/rng.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	BYTES = 4096,
	DEVICE = 64,
	HOST = 64,
	STAGE = 4
};

static struct prefixd_carrier *c;
static struct gpu *gpu;
static struct gpu_devices devices;
static struct prefixd_pool *pool;

static struct prefixd_carrier_message *receive(void)
{
	struct pollfd p = { .events = POLLIN };
	struct prefixd_carrier_message *m;

	while (!(m = prefixd_carrier_receive(c))) {
		p.fd = prefixd_helper_answer_fd(prefixd_carrier_helper(c));
		ck_assert_msg(poll(&p, 1, 20000) == 1, "no answer");
	}
	return m;
}

static struct prefixd_carrier_message *message(enum prefixd_carrier_op op)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	ck_assert_ptr_nonnull(m);
	m->message.kind = op;
	return m;
}

/* Asks for a pool; the answer. */
static struct prefixd_carrier_message *pool_ask(uint32_t n_host, uint64_t host_left)
{
	struct prefixd_carrier_message *m = message(PREFIXD_CARRIER_POOL_NEW);

	m->plan = (struct prefixd_pool_plan){ .group = 3,
					      .n_slots = DEVICE,
					      .n_host = n_host,
					      .n_stage = STAGE,
					      .slot_bytes = BYTES,
					      .host_left = host_left };
	prefixd_carrier_send(c, m);
	return receive();
}

static void pool_make(void)
{
	struct prefixd_carrier_message *m = pool_ask(HOST, UINT64_MAX);

	ck_assert_msg(m->pool != NULL, "%s", m->why);
	ck_assert_int_eq(m->error, 0);
	pool = m->pool;
	ck_assert_uint_eq(pool->group, 3);
	ck_assert_uint_eq(pool->n_host, HOST);
	ck_assert_uint_eq(pool->n_stage, STAGE);
	ck_assert_uint_ge(pool->host.len, HOST * BYTES);
	free(m);
}

/* What start() uses beside its arguments; each test runs in a process of its own. */
static struct prefixd_carrier_config config = { .ring = 8 };

static void start_with(struct gpu *g)
{
	devices = (struct gpu_devices){ .v = { g }, .n = 1 };
	config.devices = &devices;
	gpu = g;
	ck_assert_int_eq(prefixd_carrier_start(&c, &config), 0);
}

static void start(const char *device, const struct gpu_sim_config *sim)
{
	struct gpu *g = NULL;
	char why[256];

	ck_assert_msg(gpu_open(device, sim, &g, why, sizeof(why)) == 0, "%s", why);
	start_with(g);
	pool_make();
}

/* As the daemon does it: thread, device, the rest. */
static void stop(void)
{
	prefixd_carrier_stop(c);
	gpu_devices_close(&devices);
	prefixd_pool_free(NULL, pool);
	pool = NULL;
	c = prefixd_carrier_free(c);
}

static struct prefixd_carrier_message *copy(enum prefixd_place from, uint32_t src,
					    enum prefixd_place to, uint32_t dst)
{
	struct prefixd_carrier_message *m = message(PREFIXD_CARRIER_COPY);

	m->pool = pool;
	m->from = from;
	m->to = to;
	m->src = src;
	m->dst = dst;
	return m;
}

static uint8_t *host(uint32_t slot)
{
	return prefixd_pool_host(pool, slot);
}

static void fill(uint8_t *block, uint32_t what)
{
	uint64_t rng = what;

	test_rng_fill(&rng, block, BYTES);
}

static void expect(const uint8_t *block, uint32_t what)
{
	uint8_t want[BYTES];

	fill(want, what);
	ck_assert_mem_eq(block, want, BYTES);
}

static void sum(const uint8_t *block, uint8_t out[16])
{
	XXH128_canonical_t s;

	XXH128_canonicalFromHash(&s, XXH3_128bits(block, BYTES));
	memcpy(out, s.digest, 16);
}

static struct prefixd_carrier_stats stats(void)
{
	struct prefixd_carrier_stats st;

	prefixd_carrier_stats(c, &st);
	return st;
}

/* Sends it and waits; the result, the answer's error in *ret_error (may be NULL). */
static enum prefixd_move_result carried(struct prefixd_carrier_message *m, int *ret_error)
{
	enum prefixd_move_result result;
	struct prefixd_carrier_message *got;

	prefixd_carrier_send(c, m);
	got = receive();
	ck_assert_ptr_eq(got, m);
	result = m->result;
	if (ret_error)
		*ret_error = m->error;
	free(m);
	return result;
}

/* ---- bytes and sums -------------------------------------------------------------------------- */

static const char *const names[] = { "host", "sim" };

/* Up, down and through a buffer, on every device: what arrives is what left. */
START_TEST(bytes_arrive)
{
	const struct gpu_sim_config slow = { .ns_per_kib = 1000, .latency_ns = 200000 };

	start(names[_i], &slow);
	for (uint32_t i = 0; i < HOST / 2; i++) {
		fill(host(i), i);
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, DEVICE - 1 - i),
				NULL),
			PREFIXD_MOVE_OK);
	}
	for (uint32_t i = 0; i < HOST / 2; i++) {
		ck_assert_int_eq(carried(copy(PREFIXD_PLACE_DEVICE, DEVICE - 1 - i,
					      PREFIXD_PLACE_HOST, HOST / 2 + i),
					 NULL),
				 PREFIXD_MOVE_OK);
		expect(host(HOST / 2 + i), i);
	}
	ck_assert_int_eq(
		carried(copy(PREFIXD_PLACE_DEVICE, DEVICE - 1, PREFIXD_PLACE_STAGE, 2), NULL),
		PREFIXD_MOVE_OK);
	expect(prefixd_pool_stage(pool, 2), 0);
	ck_assert_int_eq(carried(copy(PREFIXD_PLACE_STAGE, 2, PREFIXD_PLACE_DEVICE, 0), NULL),
			 PREFIXD_MOVE_OK);
	ck_assert_uint_eq(stats().bytes, (HOST + 2) * BYTES);
	ck_assert_uint_eq(stats().in_flight, 0);
	ck_assert_uint_eq(stats().waiting, 0);
	stop();
}
END_TEST

START_TEST(sums_are_made_and_compared)
{
	struct prefixd_carrier_message *m;
	uint8_t right[16];

	start(names[_i], NULL);
	fill(host(0), 7);
	sum(host(0), right);
	m = copy(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, 0); /* nothing is known */
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(m->summed);
	ck_assert_mem_eq(m->checksum, right, 16);

	m->checksum_kind = 1; /* it is known, and right */
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);

	m->checksum[15] ^= 1; /* wrong in its last bit: going up and going down */
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_CORRUPT);
	ck_assert(!m->summed);
	m->from = PREFIXD_PLACE_DEVICE;
	m->to = PREFIXD_PLACE_HOST;
	m->dst = 1;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_CORRUPT);
	ck_assert_uint_eq(stats().corrupt, 2);

	free(m);
	stop();
}
END_TEST

/* ---- runs and order -------------------------------------------------------------------------- */

/* Sends n copies at once, device slot i to host slot at[i], and takes all answers. */
static void many(const uint32_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_carrier_message *m = copy(PREFIXD_PLACE_DEVICE, i,
							 PREFIXD_PLACE_HOST, at[i]);

		m->id = i;
		prefixd_carrier_send(c, m);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_carrier_message *m = receive();

		ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
		expect(host(at[m->id]), m->id);
		free(m);
	}
}

/* What lies side by side at both ends goes as one, but never more than a run holds. */
START_TEST(neighbours_go_together)
{
	const struct gpu_sim_config slow = { .latency_ns = 20000000 };
	uint32_t at[32];
	uint64_t before;

	/* One run at a time: the others gather behind it. */
	config.run_bytes = 8 * BYTES;
	config.in_flight_bytes = 1;
	start("sim", &slow);
	for (uint32_t i = 0; i < 32; i++) {
		fill(host(i), i);
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i), NULL),
			PREFIXD_MOVE_OK);
		at[i] = HOST - 32 + i;
	}
	before = stats().jobs;
	many(at, 32);
	/* The first goes with those that came before the thread woke: eight at most, as in each. */
	ck_assert_uint_ge(stats().jobs - before, 4);
	ck_assert_uint_le(stats().jobs - before, 8); /* or more of them, on a busy machine */

	for (uint32_t i = 0; i < 32; i++)
		at[i] = i * 2; /* apart at one end */
	before = stats().jobs;
	many(at, 32);
	ck_assert_uint_eq(stats().jobs - before, 32);
	stop();
}
END_TEST

/* What somebody waits for goes before what nobody waits for, even if it came later. */
START_TEST(urgent_ones_go_first)
{
	const struct gpu_sim_config slow = { .ns_per_kib = 250000, .queue_depth = 2 };
	uint32_t urgent_at = UINT32_MAX;

	config.run_bytes = BYTES;
	start("sim", &slow);
	for (uint32_t i = 0; i < 32; i++) {
		struct prefixd_carrier_message *m = copy(PREFIXD_PLACE_HOST, i,
							 PREFIXD_PLACE_DEVICE, i);

		m->id = i;
		m->urgent = i == 31;
		fill(host(i), i);
		prefixd_carrier_send(c, m);
	}
	for (uint32_t i = 0; i < 32; i++) {
		struct prefixd_carrier_message *m = receive();

		if (m->id == 31)
			urgent_at = i;
		free(m);
	}
	ck_assert_uint_lt(urgent_at, 16);
	stop();
}
END_TEST

/* A run that a full device gives back keeps its blocks and their order. */
START_TEST(runs_come_back_from_a_full_device)
{
	const struct gpu_sim_config sim = { .latency_ns = 3000000, .queue_depth = 1 };
	uint32_t at[32];

	config.run_bytes = 8 * BYTES;
	start("sim", &sim);
	for (uint32_t i = 0; i < 32; i++) {
		fill(host(i), i);
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i), NULL),
			PREFIXD_MOVE_OK);
		at[i] = HOST - 32 + i;
	}
	for (int round = 0; round < 20; round++)
		many(at, 32);
	ck_assert_uint_eq(stats().ops[PREFIXD_CARRIER_COPY].failed, 0);
	stop();
}
END_TEST

/* Thousands of copies on a device that refuses now and then and completes out of order. */
START_TEST(storm)
{
	const struct gpu_sim_config sim = {
		.ns_per_kib = 20, .latency_ns = 3000, .queue_depth = 7, .reorder_seed = 99
	};
	uint32_t answers = 0, sent = 0;
	uint64_t rng = 4;
	bool busy[HOST / 2] = { false };

	start("sim", &sim);
	for (uint32_t i = 0; i < HOST; i++)
		fill(host(i), i);
	while (answers < 5000) {
		uint32_t i = test_rng_below(&rng, HOST / 2);
		struct prefixd_carrier_message *m;

		if (!busy[i] && sent < 5000) {
			m = copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i);
			m->id = i;
			m->urgent = test_rng_below(&rng, 3) == 0;
			m->checksum_kind = 1;
			sum(host(i), m->checksum);
			prefixd_carrier_send(c, m);
			busy[i] = true;
			sent++;
			continue;
		}
		m = receive();
		ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
		busy[m->id] = false;
		answers++;
		free(m);
	}
	ck_assert_uint_eq(stats().ops[PREFIXD_CARRIER_COPY].done, 5000);
	ck_assert_uint_eq(stats().ops[PREFIXD_CARRIER_COPY].failed, 0);
	stop();
}
END_TEST

/* ---- pools ----------------------------------------------------------------------------------- */

START_TEST(pools_come_and_go)
{
	struct prefixd_carrier_message *m;

	start("host", NULL);
	m = message(PREFIXD_CARRIER_POOL_FREE);
	m->pool = pool;
	pool = NULL;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_ptr_null(m->pool);
	free(m);

	/* The limit of the host tier is one in bytes, and a refusal leaves nothing behind. */
	m = pool_ask(HOST, HOST * BYTES - 1);
	ck_assert_ptr_null(m->pool);
	ck_assert_int_eq(m->error, -EDQUOT);
	ck_assert_msg(strstr(m->why, "host-bytes leaves"), "%s", m->why);
	free(m);
	m = pool_ask(HOST, HOST * BYTES);
	ck_assert_ptr_nonnull(m->pool);
	pool = m->pool;
	free(m);
	stop();
}
END_TEST

START_TEST(pools_too_large_are_refused)
{
	struct prefixd_carrier_message *m;

	start("host", NULL);
	m = message(PREFIXD_CARRIER_POOL_NEW);
	m->plan = (struct prefixd_pool_plan){
		.n_slots = 1, .n_host = 1u << 31, .slot_bytes = 1u << 20, .host_left = UINT64_MAX
	};
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_ptr_null(m->pool);
	ck_assert_int_eq(m->error, -ENOMEM);
	ck_assert_msg(strstr(m->why, "host-blocks or host-bytes"), "%s", m->why);
	free(m);
	/* The thread goes on. */
	fill(host(0), 1);
	ck_assert_int_eq(carried(copy(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, 0), NULL),
			 PREFIXD_MOVE_OK);
	stop();
}
END_TEST

/* Stopped with all kinds of work left: nothing hangs, nothing leaks (run with ASan). */
START_TEST(stopped_in_the_middle)
{
	const struct gpu_sim_config sim = { .latency_ns = 3600000000000, .never_complete = 3 };
	struct prefixd_carrier_message *m;

	config.run_bytes = BYTES;
	config.ring = 256; /* all of it is in the ring: nobody has to look after the rest */
	start("sim", &sim);
	for (uint32_t i = 0; i < HOST; i++)
		prefixd_carrier_send(c, copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i));
	if (_i == 1) {
		struct timespec ts = { .tv_nsec = 20000000 };

		nanosleep(&ts, NULL); /* now they are at the device */
	}
	m = message(PREFIXD_CARRIER_POOL_NEW);
	m->plan = (struct prefixd_pool_plan){
		.group = 4, .n_slots = 4, .n_host = 4, .slot_bytes = BYTES, .host_left = UINT64_MAX
	};
	prefixd_carrier_send(c, m);
	if (_i == 2)
		while (stats().ops[PREFIXD_CARRIER_POOL_NEW].done < 2)
			; /* made, and not fetched */
	stop();
}
END_TEST

/* Stopped while the device fetches a block of a pool that is to go: the fetch ends first. */
START_TEST(stopped_while_it_looks)
{
	const struct gpu_sim_config sim = { .latency_ns = 3600000000000 };
	static const struct radix_sum sums[1] = { { .slot = 0 } };
	struct timespec ts = { .tv_nsec = 20000000 };
	struct prefixd_carrier_message *m;

	start("sim", &sim);
	m = message(PREFIXD_CARRIER_VERIFY);
	m->pool = pool;
	m->sums = sums;
	m->n_sums = 1;
	prefixd_carrier_send(c, m);
	nanosleep(&ts, NULL); /* now it is at the device */
	m = message(PREFIXD_CARRIER_POOL_FREE);
	m->pool = pool;
	pool = NULL; /* the message's */
	prefixd_carrier_send(c, m);
	if (_i == 1)
		nanosleep(&ts, NULL); /* now it waits in the list, before that in the ring */
	stop();
}
END_TEST

/* ---- errors, each where it can come from ----------------------------------------------------- */

static const int errors[] = { EAGAIN, EINVAL, ENOMEM, EIO,    ENODEV, EBUSY,  EPERM,    ENOSPC,
			      EFAULT, ENOENT, EMFILE, ENFILE, EINTR,  ERANGE, EOVERFLOW };

/* A device that fails as told, else like the host's. */
static struct {
	struct gpu gpu;
	struct gpu *real;
	struct gpu_ops ops;
	_Atomic int submit, pool; /* negative errno of the next ones; 0: none fails */
	_Atomic int n_submit;     /* how many submits fail */
} fake;

static int fake_submit(struct gpu *g, struct gpu_job *job)
{
	if (fake.n_submit > 0) {
		fake.n_submit--;
		return fake.submit;
	}
	return fake.real->ops->submit(fake.real, job);
}

static uint32_t fake_reap(struct gpu *g, uint32_t budget)
{
	return fake.real->ops->reap(fake.real, budget);
}

static int fake_event_fd(const struct gpu *g)
{
	return fake.real->ops->event_fd(fake.real);
}

static int fake_pool_new(struct gpu *g, uint32_t n, uint64_t bytes, struct gpu_pool **ret)
{
	if (fake.pool)
		return fake.pool;
	return fake.real->ops->pool_new(fake.real, n, bytes, ret);
}

static void fake_pool_free(struct gpu *g, struct gpu_pool *p)
{
	fake.real->ops->pool_free(fake.real, p);
}

static void fake_close(struct gpu *g)
{
	gpu_close(fake.real);
}

static void start_fake(void)
{
	char why[128];

	memset(&fake, 0, sizeof(fake));
	ck_assert_int_eq(gpu_open("host", NULL, &fake.real, why, sizeof(why)), 0);
	fake.ops = *fake.real->ops;
	fake.ops.submit = fake_submit;
	fake.ops.reap = fake_reap;
	fake.ops.event_fd = fake_event_fd;
	fake.ops.pool_new = fake_pool_new;
	fake.ops.pool_free = fake_pool_free;
	fake.ops.close = fake_close;
	fake.gpu.ops = &fake.ops;
	start_with(&fake.gpu);
}

static void goes_on(void)
{
	fill(host(5), 5);
	ck_assert_int_eq(carried(copy(PREFIXD_PLACE_HOST, 5, PREFIXD_PLACE_DEVICE, 5), NULL),
			 PREFIXD_MOVE_OK);
	ck_assert_uint_gt(prefixd_helper_beat(prefixd_carrier_helper(c)), 0);
	ck_assert(!prefixd_helper_ended(prefixd_carrier_helper(c)));
}

/* A copy that the device does not take fails alone; "full" is no error and is tried again. */
START_TEST(F48_submit_fails)
{
	int error = -errors[_i], got;
	enum prefixd_move_result result;

	start_fake();
	pool_make();
	fake.submit = error;
	fake.n_submit = 1;
	result = carried(copy(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, 0), &got);
	if (error == -EAGAIN) {
		ck_assert_int_eq(result, PREFIXD_MOVE_OK);
		ck_assert_uint_eq(stats().ops[PREFIXD_CARRIER_COPY].failed, 0);
	} else {
		ck_assert_int_eq(result, PREFIXD_MOVE_FAILED);
		ck_assert_int_eq(got, error);
		ck_assert_uint_eq(stats().ops[PREFIXD_CARRIER_COPY].failed, 1);
		ck_assert_int_eq(stats().ops[PREFIXD_CARRIER_COPY].last_error, error);
		ck_assert_uint_gt(stats().ops[PREFIXD_CARRIER_COPY].last_error_ns, 0);
		ck_assert(stats().lost == (error == -ENODEV));
	}
	ck_assert_uint_eq(stats().in_flight + stats().waiting, 0);
	goes_on();
	stop();
}
END_TEST

/* A pool that cannot be made says why, and the next one can be. */
START_TEST(F48_pool_fails)
{
	struct prefixd_carrier_message *m;
	int error = -errors[_i];

	start_fake();
	fake.pool = error;
	m = pool_ask(HOST, UINT64_MAX);
	ck_assert_ptr_null(m->pool);
	ck_assert_int_eq(m->error, error);
	ck_assert_msg(strstr(m->why, strerror(-error)) || error == -EPERM, "%s", m->why);
	ck_assert_int_eq(stats().ops[PREFIXD_CARRIER_POOL_NEW].last_error, error);
	free(m);
	fake.pool = 0;
	pool_make();
	goes_on();
	stop();
}
END_TEST

/* A copy that was begun and failed, and a device that is lost: each copy is told, none hangs. */
START_TEST(F48_jobs_fail)
{
	const struct gpu_sim_config sim = { .fail_job = 2, .lose_at_job = 20 };
	uint32_t failed = 0, lost = 0;
	int error;

	start("sim", &sim);
	for (uint32_t i = 0; i < 40; i++) {
		if (carried(copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i), &error) ==
		    PREFIXD_MOVE_OK)
			continue;
		failed += error == -EIO;
		lost += error == -ENODEV;
	}
	ck_assert_uint_eq(failed, 1);
	ck_assert_uint_eq(lost, 21); /* the 20th on */
	ck_assert(stats().lost);
	ck_assert_uint_eq(stats().ops[PREFIXD_CARRIER_COPY].failed, 22);
	ck_assert(!prefixd_helper_ended(prefixd_carrier_helper(c)));
	stop();
}
END_TEST

/* Its descriptor is gone under its feet: the thread ends, is run again, and goes on. */
START_TEST(F48_thread_ends_and_runs_again)
{
	struct prefixd_helper *h;

	start("host", NULL);
	h = prefixd_carrier_helper(c);
	{
		int fd = gpu->ops->event_fd(gpu), spare = dup(fd);

		ck_assert_int_ge(spare, 0);
		close(fd);
		for (int i = 0; i < 2000 && !prefixd_helper_ended(h); i++) {
			const struct timespec ts = { .tv_nsec = 1000000 };

			nanosleep(&ts, NULL);
		}
		ck_assert(prefixd_helper_ended(h));
		ck_assert_int_eq(dup2(spare, fd), fd);
		close(spare);
	}
	prefixd_carrier_send(c, copy(PREFIXD_PLACE_HOST, 1, PREFIXD_PLACE_DEVICE, 1));
	ck_assert_int_eq(prefixd_helper_restart(h), 0);
	free(receive());
	ck_assert_uint_eq(prefixd_helper_restarts(h), 1);
	goes_on();
	stop();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("carrier");
	TCase *tc = tcase_create("carrier"), *f48 = tcase_create("F48");

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, bytes_arrive, 0, radix_array_size(names));
	tcase_add_loop_test(tc, sums_are_made_and_compared, 0, radix_array_size(names));
	tcase_add_test(tc, neighbours_go_together);
	tcase_add_test(tc, urgent_ones_go_first);
	tcase_add_test(tc, runs_come_back_from_a_full_device);
	tcase_add_test(tc, storm);
	tcase_add_test(tc, pools_come_and_go);
	tcase_add_test(tc, pools_too_large_are_refused);
	tcase_add_loop_test(tc, stopped_in_the_middle, 0, 3);
	tcase_add_loop_test(tc, stopped_while_it_looks, 0, 2);
	tcase_set_timeout(f48, 60);
	tcase_add_loop_test(f48, F48_submit_fails, 0, radix_array_size(errors));
	tcase_add_loop_test(f48, F48_pool_fails, 0, radix_array_size(errors));
	tcase_add_test(f48, F48_jobs_fail);
	tcase_add_test(f48, F48_thread_ends_and_runs_again);
	/* Both belong to the suite, which frees them. */
	suite_add_tcase(s, tc);
	suite_add_tcase(s, f48);
	return s;
}

/* With an argument only the test case of that name runs. */
int main(int argc, char **argv)
{
	SRunner *sr = srunner_create(suite());
	int bad;

	srunner_run(sr, NULL, argc > 1 ? argv[1] : "carrier", CK_ENV);
	bad = srunner_ntests_failed(sr) || !srunner_ntests_run(sr);
	srunner_free(sr);
	return bad ? 1 : 0;
}
