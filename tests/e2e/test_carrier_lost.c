/*
 * test_carrier_lost.c - the copy thread and devices that are lost, in this process: who is told,
 * who may have them opened again, and that nobody touches what is closed.
 *
 * The device is the host's until the test says that it is lost; whoever uses it after it was closed
 * ends the test.
 */
#include "daemon/carrier.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
	BYTES = 4096,
	SLOTS = 16,
};

static struct prefixd_carrier *c;
static struct gpu_devices devices;
static struct prefixd_pool *pool;

/* ---- the device ------------------------------------------------------------------------------ */

static struct {
	struct gpu gpu;
	struct gpu *real; /* NULL: closed */
	struct gpu_ops ops;
	atomic_bool lost;
} fake;

static int fake_submit(struct gpu *g, struct gpu_job *job)
{
	return fake.lost ? -ENODEV : fake.real->ops->submit(fake.real, job);
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
	return fake.real->ops->pool_new(fake.real, n, bytes, ret);
}

static void fake_pool_free(struct gpu *g, struct gpu_pool *p)
{
	fake.real->ops->pool_free(fake.real, p);
}

static int fake_health(struct gpu *g)
{
	return fake.lost ? -ENODEV : 0;
}

static void fake_close(struct gpu *g)
{
	gpu_close(fake.real);
	fake.real = NULL;
	fake.ops = (struct gpu_ops){ .name = "closed" };
}

/* ---- the thread ------------------------------------------------------------------------------ */

static struct prefixd_carrier_message *message(enum prefixd_carrier_op op)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	ck_assert_ptr_nonnull(m);
	m->message.kind = op;
	m->pool = pool;
	return m;
}

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

static struct prefixd_carrier_stats stats(void)
{
	struct prefixd_carrier_stats st;

	prefixd_carrier_stats(c, &st);
	return st;
}

/* A pool on the device; `again` is what it is opened by later. */
static void start(const char *again)
{
	struct prefixd_carrier_config config = { .devices = &devices, .device = again };
	struct prefixd_carrier_message *m;
	char why[128];

	fake.lost = false;
	ck_assert_int_eq(gpu_open("host", NULL, &fake.real, why, sizeof(why)), 0);
	fake.ops = *fake.real->ops;
	fake.ops.submit = fake_submit;
	fake.ops.reap = fake_reap;
	fake.ops.event_fd = fake_event_fd;
	fake.ops.pool_new = fake_pool_new;
	fake.ops.pool_free = fake_pool_free;
	fake.ops.close = fake_close;
	fake.ops.health = fake_health;
	fake.gpu.ops = &fake.ops;
	devices = (struct gpu_devices){ .v = { &fake.gpu }, .n = 1 };
	ck_assert_int_eq(prefixd_carrier_start(&c, &config), 0);
	m = message(PREFIXD_CARRIER_POOL_NEW);
	m->plan = (struct prefixd_pool_plan){ .group = 3,
					      .n_slots = SLOTS,
					      .n_host = SLOTS,
					      .slot_bytes = BYTES,
					      .host_left = UINT64_MAX };
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_msg(m->pool != NULL, "%s", m->why);
	pool = m->pool;
	free(m);
}

static void stop(void)
{
	prefixd_carrier_stop(c);
	gpu_devices_close(&devices);
	prefixd_pool_free(NULL, pool);
	pool = NULL;
	c = prefixd_carrier_free(c);
}

static uint8_t *host(uint32_t slot)
{
	return prefixd_pool_host(pool, slot);
}

/* A copy between the two slots 7. */
static int moved(enum prefixd_place from, enum prefixd_place to)
{
	struct prefixd_carrier_message *m = message(PREFIXD_CARRIER_COPY);
	int error;

	m->from = from;
	m->to = to;
	m->src = m->dst = 7;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	error = m->error;
	ck_assert((m->result == PREFIXD_MOVE_OK) == (error == 0));
	free(m);
	return error;
}

static int moved_up(void)
{
	return moved(PREFIXD_PLACE_HOST, PREFIXD_PLACE_DEVICE);
}

/* New slots.  The answer. */
static struct prefixd_carrier_message *again(uint32_t life)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m) + sizeof(*m->slots));

	ck_assert_ptr_nonnull(m);
	m->message.kind = PREFIXD_CARRIER_POOL_AGAIN;
	m->pool = pool;
	m->slots = (struct prefixd_pool_slots *)(m + 1);
	m->plan = (struct prefixd_pool_plan){
		.group = 3, .n_slots = SLOTS, .n_host = SLOTS, .slot_bytes = BYTES
	};
	m->life = life;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	return m;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Noticed without a copy; opened again for who knows alone; what names the old slots is refused. */
START_TEST(lost_and_opened_again)
{
	struct prefixd_carrier_message *watch = message(PREFIXD_CARRIER_WATCH), *m;
	uint64_t rng = 70;
	uint8_t want[BYTES];

	start("host");
	test_rng_fill(&rng, want, BYTES);
	memcpy(host(7), want, BYTES);
	prefixd_carrier_send(c, watch);
	ck_assert_int_eq(moved_up(), 0);
	fake.lost = true;
	ck_assert_ptr_eq(receive(), watch);
	free(watch);
	ck_assert_uint_eq(stats().losses, 1);
	ck_assert_int_eq(moved_up(), -ENODEV);
	ck_assert_uint_eq(stats().errors[PREFIXD_COPY_ERROR_DEVICE], 1);
	/* Who does not know, or knows of another life, opens nothing. */
	for (uint32_t life = 0; life < 4; life += 2) {
		m = again(life);
		ck_assert(m->error == -ENODEV && m->life == 1 && !m->tried);
		free(m);
	}
	m = again(1);
	ck_assert(m->error == 0 && m->life == 2);
	ck_assert(!stats().lost && stats().opened == 1);
	ck_assert_int_eq(moved_up(), -ENODEV); /* its slots are still the old ones */
	/* By which the new devices are not lost, and nobody is told that they are. */
	watch = message(PREFIXD_CARRIER_WATCH);
	prefixd_carrier_send(c, watch);
	for (int i = 0; i < 2000 && stats().lost; i++)
		(void)poll(NULL, 0, 5);
	ck_assert(!stats().lost && stats().losses == 1);
	devices = m->devices;
	memcpy(pool->ranks, m->slots->ranks, sizeof(pool->ranks));
	pool->life = m->slots->life;
	free(m);
	ck_assert_int_eq(moved_up(), 0);
	memset(host(7), 0, BYTES);
	ck_assert_int_eq(moved(PREFIXD_PLACE_DEVICE, PREFIXD_PLACE_HOST), 0);
	ck_assert_mem_eq(host(7), want, BYTES);
	stop();
}
END_TEST

/* They were closed and could not be opened: nothing of them is touched, whatever names it. */
START_TEST(closed_and_not_opened)
{
	const struct radix_sum sum = { .slot = 1 };
	struct prefixd_carrier_message *m;

	start("nothing");
	fake.lost = true;
	m = again(1);
	ck_assert(m->error == -ENODEV && m->tried && m->life == 1 && m->devices.n == 0);
	ck_assert_msg(strstr(m->why, "no back end is called"), "%s", m->why);
	devices = m->devices;
	free(m);
	ck_assert_int_eq(moved_up(), -ENODEV);
	m = message(PREFIXD_CARRIER_VERIFY);
	m->sums = &sum;
	m->n_sums = 1;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert(m->error == -ENODEV && m->done == 0);
	free(m);
	m = again(0); /* whoever may not open them hears what the last one heard */
	ck_assert(m->error == -ENODEV && m->tried && strstr(m->why, "no back end is called"));
	free(m);
	m = message(PREFIXD_CARRIER_POOL_FREE);
	pool = NULL;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_ptr_null(m->pool);
	free(m);
	stop();
}
END_TEST

/* What was made is what all ranks have, and the loop is given that. */
START_TEST(the_least_length_stays)
{
	struct prefixd_pool_slots *slots = calloc(1, sizeof(*slots));
	struct prefixd_pools pools = { 0 };

	ck_assert_ptr_nonnull(slots);
	start("host");
	pools.v = &pool;
	pools.n = 1;
	memcpy(slots->ranks, pool->ranks, sizeof(slots->ranks));
	slots->info = pool->info;
	slots->info.len -= BYTES; /* of another rank */
	slots->life = 5;
	prefixd_pools_renew(&pools, 0, slots);
	ck_assert_uint_eq(pool->info.len, slots->info.len);
	ck_assert_uint_eq(pool->life, 5);
	pool->life = 1;
	free(slots);
	stop();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("carrier-lost");
	TCase *t = tcase_create("carrier-lost");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, lost_and_opened_again);
	tcase_add_test(t, closed_and_not_opened);
	tcase_add_test(t, the_least_length_stays);
	suite_add_tcase(s, t);
	return test_run_as(s, CK_FORK);
}
