/*
 * test_kept_ranks.c - the memory of several ranks outlives its pool: the keeper has all of it, and
 * it is taken back as a whole or not at all.
 *
 * With an argument it runs on that device: host, sim, cuda (four GPUs of the look-alike driver).
 */
#include "tests/e2e/ranks_kit.h"
#include "tests/lib/run.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static const uint32_t ranks_of[] = { 1, 2, 4 };

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

static struct prefixd_pool *made(const struct prefixd_pool_plan *plan)
{
	struct prefixd_pool *p = NULL;
	char why[320] = "";
	int kept = 1;

	ck_assert_msg(prefixd_pool_new(&p, &devices, plan, &kept, why, sizeof(why)) == 0, "%s",
		      why);
	ck_assert_int_eq(kept, 0);
	return p;
}

static void refused(const struct prefixd_pool_plan *plan)
{
	struct prefixd_pool *p = NULL;
	unsigned fds = n_fds();
	char why[320] = "";
	int kept;

	ck_assert_int_eq(prefixd_pool_new(&p, &devices, plan, &kept, why, sizeof(why)), -EINVAL);
	ck_assert_ptr_null(p);
	ck_assert_msg(strstr(why, "cannot be taken back") != NULL, "%s", why);
	ck_assert_uint_eq(n_fds(), fds);
}

static int dup_of(int fd)
{
	int r = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	ck_assert_int_ge(r, 0);
	return r;
}

/* Makes a pool and ends it; its descriptors stay in `plan`, its bytes are slot i's of block i. */
static void leave(uint32_t n_ranks, struct prefixd_pool_plan *plan)
{
	ranks_devices_open(NULL);
	ranks_carrier_start();
	ranks_pool_make(n_ranks);
	for (uint32_t i = 0; i < SLOTS; i++) {
		ranks_block_fill(ranks_host(i), i);
		ranks_move(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i);
	}
	for (uint32_t i = 0; i < n_ranks; i++)
		plan->fds[prefixd_memory_slab(i, 0)] =
			dup_of(pool->ranks[i].gpu->ops->pool_fd(pool->ranks[i].pool, 0, false));
	plan->fds[PREFIXD_MEMORY_GENERATIONS] = dup_of(pool->generations.fd);
	plan->fds[PREFIXD_MEMORY_TABLE] = dup_of(pool->table.fd);
	plan->fds[PREFIXD_MEMORY_HOST] = dup_of(pool->host_shm.fd);
	gpu_leave_memory(devices.v[0]);
	ranks_stop();
}

START_TEST(the_keeper_has_the_slots_of_all_ranks)
{
	const uint32_t n = ranks_of[_i];
	const struct prefixd_pool_plan plan = ranks_plan_of(n, false);
	char text[PREFIXD_KEEP_HANDED_MAX], name[32];
	struct prefixd_pool *p;

	ranks_devices_open(NULL);
	p = made(&plan);
	ck_assert_int_eq(prefixd_keep_hand_over(keep, text, sizeof(text)), 0);
	ck_assert_ptr_nonnull(strstr(text, "g7.pool"));
	for (uint32_t i = 1; i <= MAX_RANKS; i++) {
		snprintf(name, sizeof(name), "g7.r%u.pool", i);
		ck_assert_msg((strstr(text, name) != NULL) == (i < n), "%s", text);
	}
	prefixd_keep_stay(keep);
	prefixd_keep_drop(keep, "g7"); /* all of them */
	ck_assert_int_eq(prefixd_keep_hand_over(keep, text, sizeof(text)), 0);
	ck_assert_msg(strstr(text, "g7") == NULL, "%s", text);
	prefixd_keep_stay(keep);
	prefixd_pool_free(&devices, p);
	gpu_devices_close(&devices);
}
END_TEST

START_TEST(all_ranks_come_back_or_none)
{
	const uint32_t n = ranks_of[_i];
	struct prefixd_pool_plan plan = ranks_plan_of(n, true);
	struct prefixd_carrier_message *m;

	leave(n, &plan);
	ranks_devices_open(NULL);
	gpu_leave_memory(devices.v[0]);    /* also of what is refused */
	for (uint32_t i = 0; i < n; i++) { /* one rank's slots are missing, or are something else */
		int *fd = &plan.fds[prefixd_memory_slab(i, 0)], had = *fd;

		*fd = -1;
		refused(&plan);
		*fd = plan.fds[PREFIXD_MEMORY_TABLE];
		refused(&plan);
		*fd = had;
	}
	ranks_carrier_start();
	m = ranks_message(PREFIXD_CARRIER_POOL_NEW);
	m->plan = plan;
	prefixd_carrier_send(c, m);
	m = ranks_receive();
	ck_assert_msg(m->pool != NULL, "%s", m->why);
	pool = m->pool;
	prefixd_carrier_message_free(m);
	ranks_map();
	for (uint32_t i = 0; i < SLOTS; i++) {
		ranks_slot_expect(i, i);
		ranks_block_expect(ranks_host(i), i);
		memset(ranks_host(i), 0, n * BYTES);
		ranks_move(PREFIXD_PLACE_DEVICE, i, PREFIXD_PLACE_HOST, i);
		ranks_block_expect(ranks_host(i), i);
	}
	for (int i = 0; i < PREFIXD_N_MEMORIES; i++)
		if (plan.fds[i] >= 0)
			ck_assert_int_eq(close(plan.fds[i]), 0); /* they were duplicated */
	ranks_stop();
}
END_TEST

/* A pool that fewer ranks left than are asked for now is not one to take back. */
START_TEST(another_number_of_ranks)
{
	struct prefixd_pool_plan plan = ranks_plan_of(2, true);

	leave(2, &plan);
	ranks_devices_open(NULL);
	plan.n_ranks = 4;
	refused(&plan);
	for (int i = 0; i < PREFIXD_N_MEMORIES; i++)
		if (plan.fds[i] >= 0)
			ck_assert_int_eq(close(plan.fds[i]), 0);
	gpu_devices_close(&devices);
}
END_TEST

/* The limit of host tiers is one of all pieces. */
START_TEST(the_host_tier_counts_all_pieces)
{
	const uint64_t stride = (BYTES + 63) / 64 * 64;
	struct prefixd_pool_plan plan = ranks_plan_of(4, false);
	struct prefixd_pool *p = NULL;
	char why[320] = "";
	int kept;

	ranks_devices_open(NULL);
	plan.host_left = 4 * HOST * stride - 1;
	ck_assert_int_eq(prefixd_pool_new(&p, &devices, &plan, &kept, why, sizeof(why)), -EDQUOT);
	ck_assert_msg(strstr(why, "blocks of 20000 bytes") != NULL, "%s", why);
	plan.host_left++;
	prefixd_pool_free(&devices, made(&plan));
	gpu_devices_close(&devices);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("kept-ranks");
	TCase *tc = tcase_create("all");
	const int n = radix_array_size(ranks_of);

	if (argc > 1)
		ranks_device = argv[1];
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, ranks_setup, ranks_teardown);
	tcase_add_loop_test(tc, the_keeper_has_the_slots_of_all_ranks, 0, n);
	tcase_add_loop_test(tc, all_ranks_come_back_or_none, 0, n);
	tcase_add_test(tc, another_number_of_ranks);
	tcase_add_test(tc, the_host_tier_counts_all_pieces);
	suite_add_tcase(s, tc);
	return test_run(s);
}
