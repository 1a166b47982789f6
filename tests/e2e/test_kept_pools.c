/*
 * test_kept_pools.c - pools whose memory outlives them: made for a keeper, taken back, refused when
 * they are something else, and compared with the checksums of their blocks.
 */
#include "daemon/carrier.h"
#include "daemon/keep.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	BYTES = 5000,
	DEVICE = 100,
	HOST = 20,
	GROUP = 7,
	MANY = 600
};

static const char *const devices[] = { "host", "sim" };

static struct gpu *gpu; /* the first of them */
static struct gpu_devices opened;
static struct prefixd_carrier *c;
static struct prefixd_keep *keep;

static void device_open(const char *name)
{
	char why[256];

	ck_assert_msg(gpu_devices_open(name, NULL, &opened, why, sizeof(why)) == 0, "%s", why);
	gpu = opened.v[0];
}

/* A keeper that is nobody else: what is put stays with this process. */
static void setup(void)
{
	const struct prefixd_keep_config config = { .keeper = PREFIXD_KEEPER_NONE,
						    .admin_socket = "none.sock" };
	char why[256];

	ck_assert_msg(prefixd_keep_start(&keep, &config, why, sizeof(why)) == 0, "%s", why);
}

static void teardown(void)
{
	keep = prefixd_keep_stop(keep, true);
}

static unsigned n_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static struct prefixd_pool_plan plan_of(bool adopt)
{
	return (struct prefixd_pool_plan){ .group = GROUP,
					   .n_slots = DEVICE,
					   .n_host = HOST,
					   .slot_bytes = BYTES,
					   .host_left = UINT64_MAX,
					   .keep = keep,
					   .table_len = 8 << 20,
					   .adopt = adopt,
					   .fds = { -1, -1, -1, -1 } };
}

static struct prefixd_pool *make(const struct prefixd_pool_plan *plan)
{
	struct prefixd_pool *pool = NULL;
	char why[320] = "";
	int kept = 1;

	ck_assert_msg(prefixd_pool_new(&pool, &opened, plan, &kept, why, sizeof(why)) == 0, "%s",
		      why);
	ck_assert_int_eq(kept, 0);
	return pool;
}

static void fill(void *p, size_t len, uint64_t seed)
{
	test_rng_fill(&seed, p, len);
}

static void expect(const void *p, size_t len, uint64_t seed)
{
	uint8_t *want = malloc(len);

	ck_assert_ptr_nonnull(want);
	fill(want, len, seed);
	ck_assert(memcmp(p, want, len) == 0);
	free(want);
}

/* Makes a pool with bytes in all four parts, and ends it; its descriptors stay in `fds`. */
static void leave(int fds[PREFIXD_N_MEMORIES])
{
	const struct prefixd_pool_plan plan = plan_of(false);
	struct prefixd_pool *pool = make(&plan);

	for (int i = 0; i < PREFIXD_N_MEMORIES; i++)
		fds[i] = -1;
	ck_assert_uint_ge(pool->host_shm.len, HOST * 5056);
	ck_assert_int_eq(pool->table.store.commit(&pool->table.store, 3 << 20), 0);
	fill(pool->table.store.base, 3 << 20, 1);
	fill(pool->generations.base, DEVICE * 8, 2);
	fill(pool->host.base, HOST * 5056, 3);
	for (uint32_t i = 0; i < DEVICE && prefixd_pool_slot(pool, 0, i); i++)
		fill(prefixd_pool_slot(pool, 0, i), BYTES, 100 + i);
	fds[PREFIXD_MEMORY_POOL] = fcntl(gpu->ops->pool_fd(pool->ranks[0].pool, 0, false),
					 F_DUPFD_CLOEXEC, 0);
	fds[PREFIXD_MEMORY_GENERATIONS] = fcntl(pool->generations.fd, F_DUPFD_CLOEXEC, 0);
	fds[PREFIXD_MEMORY_TABLE] = fcntl(pool->table.fd, F_DUPFD_CLOEXEC, 0);
	fds[PREFIXD_MEMORY_HOST] = fcntl(pool->host_shm.fd, F_DUPFD_CLOEXEC, 0);
	gpu_leave_memory(gpu);
	prefixd_pool_free(&opened, pool);
}

START_TEST(the_keeper_has_all_four)
{
	static const char *const names[] = { "g7.pool", "g7.generations", "g7.table", "g7.host" };
	const struct prefixd_pool_plan plan = plan_of(false);
	char text[PREFIXD_KEEP_HANDED_MAX];
	struct prefixd_pool *pool;

	device_open(devices[_i]);
	pool = make(&plan);
	ck_assert_int_eq(prefixd_keep_hand_over(keep, text, sizeof(text)), 0);
	for (size_t i = 0; i < radix_array_size(names); i++)
		ck_assert_msg(strstr(text, names[i]) != NULL, "no %s in %s", names[i], text);
	prefixd_keep_stay(keep);
	prefixd_pool_free(&opened, pool);
	gpu_devices_close(&opened);
}
END_TEST

/* Without one the host tier is private, and there is no table. */
START_TEST(nothing_to_keep_without_a_keeper)
{
	struct prefixd_pool_plan plan = plan_of(false);
	struct prefixd_pool *pool;

	plan.keep = NULL;
	device_open(devices[_i]);
	pool = make(&plan);
	ck_assert_uint_eq(pool->host_shm.len, 0);
	ck_assert_uint_eq(pool->table.store.len, 0);
	ck_assert_uint_ge(pool->host.len, HOST * 5056);
	prefixd_pool_free(&opened, pool);
	gpu_devices_close(&opened);
}
END_TEST

START_TEST(all_bytes_come_back)
{
	struct prefixd_pool_plan plan = plan_of(true);
	struct prefixd_pool *pool;
	unsigned fds;

	device_open(devices[_i]);
	fds = n_fds();
	leave(plan.fds);
	pool = make(&plan);
	expect(pool->table.store.base, 3 << 20, 1);
	expect(pool->generations.base, DEVICE * 8, 2);
	expect(pool->host.base, HOST * 5056, 3);
	ck_assert_ptr_eq(prefixd_pool_host(pool, 0), pool->host.base);
	for (uint32_t i = 0; i < DEVICE && prefixd_pool_slot(pool, 0, i); i++)
		expect(prefixd_pool_slot(pool, 0, i), BYTES, 100 + i);
	ck_assert_int_ge(pool->generations.ro_fd, 0);
	ck_assert_int_eq(pool->table.store.commit(&pool->table.store, 8 << 20), 0);
	prefixd_pool_free(&opened, pool);
	for (int i = 0; i < PREFIXD_MEMORY_SLAB1; i++)
		ck_assert_int_eq(close(plan.fds[i]), 0); /* they were duplicated */
	prefixd_keep_drop(keep, "g7");
	ck_assert_uint_eq(n_fds(), fds);
	gpu_devices_close(&opened);
}
END_TEST

static bool keeper_has_slots(void)
{
	char text[PREFIXD_KEEP_HANDED_MAX];
	bool has;

	ck_assert_int_eq(prefixd_keep_hand_over(keep, text, sizeof(text)), 0);
	has = strstr(text, "g7.pool") != NULL;
	prefixd_keep_stay(keep);
	return has;
}

/* Slots were lost with their device.  New ones are not the keeper's before the engine knows. */
START_TEST(new_slots_are_given_later)
{
	struct prefixd_pool_plan plan = plan_of(true);
	struct prefixd_pool *pool;

	device_open(devices[_i]);
	leave(plan.fds);
	prefixd_keep_drop(keep, "g7");
	ck_assert_int_eq(close(plan.fds[PREFIXD_MEMORY_POOL]), 0);
	plan.fds[PREFIXD_MEMORY_POOL] = -1;
	plan.fresh = true;
	pool = make(&plan);
	ck_assert(pool->fresh);
	ck_assert(!keeper_has_slots());
	ck_assert_int_eq(prefixd_pool_slots_keep(pool, keep), 0);
	ck_assert(keeper_has_slots());
	prefixd_pool_free(&opened, pool);
	for (int i = PREFIXD_MEMORY_POOL + 1; i < PREFIXD_MEMORY_SLAB1; i++)
		ck_assert_int_eq(close(plan.fds[i]), 0);
	prefixd_keep_drop(keep, "g7");
	gpu_devices_close(&opened);
}
END_TEST

static void refused(const struct prefixd_pool_plan *plan, const char *says)
{
	struct prefixd_pool *pool = NULL;
	unsigned fds = n_fds();
	char why[320] = "";
	int kept;

	ck_assert_int_eq(prefixd_pool_new(&pool, &opened, plan, &kept, why, sizeof(why)), -EINVAL);
	ck_assert_ptr_null(pool);
	ck_assert_msg(strstr(why, says) && strstr(why, "cannot be taken back"), "%s", why);
	ck_assert_uint_eq(n_fds(), fds);
}

/* A part that is missing, or is another one's: nothing of it is taken. */
START_TEST(parts_that_are_not_there)
{
	static const char *const says[] = { "a pool", "a pool", "the block table",
					    "the host tier" };
	struct prefixd_pool_plan plan = plan_of(true);

	device_open(devices[_i]);
	leave(plan.fds);
	for (int i = 0; i < PREFIXD_MEMORY_SLAB1; i++) { /* a pool here is one slab */
		int had = plan.fds[i];

		plan.fds[i] = -1;
		refused(&plan, says[i]);
		plan.fds[i] = i == PREFIXD_MEMORY_POOL ? plan.fds[PREFIXD_MEMORY_HOST]
						       : open("/dev/null", O_RDWR | O_CLOEXEC);
		refused(&plan, says[i]);
		if (i != PREFIXD_MEMORY_POOL)
			close(plan.fds[i]);
		plan.fds[i] = had;
	}
	plan.n_slots++;
	refused(&plan, "a pool");
	plan.n_slots--;
	plan.n_host = 200;
	refused(&plan, "the host tier");
	plan.n_host = HOST;
	prefixd_pool_free(&opened, make(&plan));
	for (int i = 0; i < PREFIXD_N_MEMORIES; i++)
		close(plan.fds[i]);
	gpu_devices_close(&opened);
}
END_TEST

/* A keeper without room costs the promise, not the pool; he has nothing of it then. */
START_TEST(a_keeper_that_fails)
{
	const struct prefixd_pool_plan plan = plan_of(false);
	char name[PREFIXD_KEEP_NAME_MAX], why[320], text[PREFIXD_KEEP_HANDED_MAX];
	struct prefixd_pool *pool;
	int kept = 0;

	device_open(devices[0]);
	for (int i = 0; i < PREFIXD_KEEP_ITEMS_MAX - 2; i++) {
		snprintf(name, sizeof(name), "x%d.pool", i);
		ck_assert_int_eq(prefixd_keep_put(keep, name, 0), 0);
	}
	ck_assert_int_eq(prefixd_pool_new(&pool, &opened, &plan, &kept, why, sizeof(why)), 0);
	ck_assert_int_eq(kept, -ENOSPC);
	ck_assert_int_eq(prefixd_keep_hand_over(keep, text, sizeof(text)), 0);
	ck_assert_ptr_null(strstr(text, "g7."));
	prefixd_keep_stay(keep);
	prefixd_pool_free(&opened, pool);
	gpu_devices_close(&opened);
}
END_TEST

/* ---- verifying ------------------------------------------------------------------------------- */

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

static struct prefixd_pool *start(const char *device)
{
	struct prefixd_carrier_config config = { 0 };
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));
	struct prefixd_pool *pool;

	device_open(device);
	config.devices = &opened;
	ck_assert_int_eq(prefixd_carrier_start(&c, &config), 0);
	ck_assert_ptr_nonnull(m);
	m->message.kind = PREFIXD_CARRIER_POOL_NEW;
	m->plan = plan_of(false);
	prefixd_carrier_send(c, m);
	m = receive();
	pool = m->pool;
	ck_assert_msg(pool != NULL, "%s", m->why);
	prefixd_carrier_message_free(m);
	return pool;
}

static void stop(struct prefixd_pool *pool)
{
	prefixd_carrier_stop(c);
	gpu_devices_close(&opened);
	prefixd_pool_free(NULL, pool);
	c = prefixd_carrier_free(c);
}

/* Slot i has the bytes of seed i: put there by way of the host tier, as the device may be far. */
static void blocks_write(struct prefixd_pool *pool, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

		ck_assert_ptr_nonnull(m);
		fill(prefixd_pool_host(pool, 0), BYTES, i);
		m->message.kind = PREFIXD_CARRIER_COPY;
		m->pool = pool;
		m->from = PREFIXD_PLACE_HOST;
		m->to = PREFIXD_PLACE_DEVICE;
		m->dst = i;
		prefixd_carrier_send(c, m);
		m = receive();
		ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
		prefixd_carrier_message_free(m);
	}
}

/* n blocks from `first` on; those of `wrong` have another block's checksum. */
static struct prefixd_carrier_message *verify(struct prefixd_pool *pool, uint32_t first, uint32_t n,
					      uint64_t wrong)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m) + n * sizeof(struct radix_sum));
	struct radix_sum *sums;

	ck_assert_ptr_nonnull(m);
	sums = (struct radix_sum *)(m + 1);
	for (uint32_t i = 0; i < n; i++) {
		uint8_t block[BYTES];
		XXH128_canonical_t sum;

		fill(block, BYTES, first + i + (wrong >> i & 1));
		XXH128_canonicalFromHash(&sum, XXH3_128bits(block, BYTES));
		sums[i].slot = first + i;
		memcpy(sums[i].checksum, sum.digest, sizeof(sums[i].checksum));
	}
	m->message.kind = PREFIXD_CARRIER_VERIFY;
	m->id = first;
	m->pool = pool;
	m->sums = sums;
	m->n_sums = n;
	return m;
}

/* So many that they are not through when the last one has been sent. */
static void verify_many(struct prefixd_pool *pool)
{
	struct prefixd_carrier_message *v[MANY];

	for (int i = 0; i < MANY; i++)
		v[i] = verify(pool, 0, 64, 0);
	for (int i = 0; i < MANY; i++)
		prefixd_carrier_send(c, v[i]);
}

START_TEST(blocks_are_compared)
{
	struct prefixd_pool *pool = start(devices[_i]);
	const uint64_t wrong = UINT64_C(1) << 63 | 0x11;

	blocks_write(pool, DEVICE);
	prefixd_carrier_send(c, verify(pool, 0, 64, 0));
	prefixd_carrier_send(c, verify(pool, 30, 64, wrong));
	prefixd_carrier_send(c, verify(pool, 99, 1, 1));
	for (int i = 0; i < 3; i++) {
		struct prefixd_carrier_message *m = receive();

		ck_assert_int_eq(m->message.kind, PREFIXD_CARRIER_VERIFY);
		ck_assert_uint_eq(m->done, m->n_sums == 64 ? UINT64_MAX : 1);
		ck_assert_uint_eq(m->bad, m->id == 0 ? 0 : m->id == 30 ? wrong : 1);
		ck_assert_int_eq(m->error, 0);
		prefixd_carrier_message_free(m);
	}
	stop(pool);
}
END_TEST

/* Copies go on meanwhile, and are answered long before the last block was looked at. */
START_TEST(copies_do_not_wait)
{
	struct prefixd_pool *pool = start(devices[_i]);
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));
	uint32_t n_before = 0;

	blocks_write(pool, DEVICE);
	verify_many(pool);
	ck_assert_ptr_nonnull(m);
	m->message.kind = PREFIXD_CARRIER_COPY;
	m->pool = pool;
	m->from = PREFIXD_PLACE_DEVICE;
	m->to = PREFIXD_PLACE_HOST;
	m->dst = 3;
	prefixd_carrier_send(c, m);
	for (int i = 0; i <= MANY; i++) {
		m = receive();
		if (m->message.kind == PREFIXD_CARRIER_COPY)
			n_before = (uint32_t)i;
		prefixd_carrier_message_free(m);
	}
	ck_assert_uint_lt(n_before, MANY / 2);
	stop(pool);
}
END_TEST

/* The pool goes: what waits is answered as not looked at, and nothing is touched any more. */
START_TEST(the_pool_goes_meanwhile)
{
	struct prefixd_pool *pool = start(devices[_i]);
	struct prefixd_carrier_message *m;
	uint32_t n_looked = 0;

	blocks_write(pool, DEVICE);
	verify_many(pool);
	m = calloc(1, sizeof(*m));
	ck_assert_ptr_nonnull(m);
	m->message.kind = PREFIXD_CARRIER_POOL_FREE;
	m->pool = pool;
	prefixd_carrier_send(c, m);
	for (int i = 0; i <= MANY; i++) {
		m = receive();
		ck_assert_int_eq(m->error, 0);
		ck_assert_uint_eq(m->bad, 0);
		n_looked += m->message.kind == PREFIXD_CARRIER_VERIFY && m->done == UINT64_MAX;
		prefixd_carrier_message_free(m);
	}
	ck_assert_uint_lt(n_looked, MANY);
	stop(NULL);
}
END_TEST

/* The end comes with comparisons under way: nothing hangs, nothing is left. */
START_TEST(stopped_in_the_middle)
{
	struct prefixd_pool *pool = start(devices[_i]);

	blocks_write(pool, DEVICE);
	verify_many(pool);
	stop(pool);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kept-pools");
	TCase *tc = tcase_create("all");
	const int n = radix_array_size(devices);

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, the_keeper_has_all_four, 0, n);
	tcase_add_loop_test(tc, nothing_to_keep_without_a_keeper, 0, n);
	tcase_add_loop_test(tc, all_bytes_come_back, 0, n);
	tcase_add_loop_test(tc, new_slots_are_given_later, 0, n);
	tcase_add_loop_test(tc, parts_that_are_not_there, 0, n);
	tcase_add_test(tc, a_keeper_that_fails);
	tcase_add_loop_test(tc, blocks_are_compared, 0, n);
	tcase_add_loop_test(tc, copies_do_not_wait, 0, n);
	tcase_add_loop_test(tc, the_pool_goes_meanwhile, 0, n);
	tcase_add_loop_test(tc, stopped_in_the_middle, 0, n);
	suite_add_tcase(s, tc);
	return test_run(s);
}
