/*
 * test_blame.c - what a well Redis is not given up for: the impatience of one worker, and having
 * no room.
 */
#include "tests/redis/fake_redis.h"
#include "tests/redis/kit.h"

#include "tests/lib/run.h"

#include <string.h>

#define BLOCK 5000u

static struct fake_redis *fake;
static struct kit kit;

static void setup(void)
{
	fake = fake_new();
	ck_assert_ptr_nonnull(fake);
	kit_init(&kit, fake_url(fake), BLOCK);
}

static void teardown(void)
{
	kit_stop(&kit);
	fake_free(fake);
}

static uint64_t opened(void)
{
	return kit_stats(&kit).breaker_opened;
}

/*
 * Asks for block after block, and gets a byte for each, so that the connection does not stall and
 * no reply is ever whole.  patience_ns 0: the client's own.
 */
static void dribble(uint64_t patience_ns, uint64_t for_ns)
{
	static uint8_t block[BLOCK];
	uint64_t end;

	kit_start(&kit);
	kit_wait_up(&kit);
	kit_names(&kit, 2);
	kit_drain(&kit);
	fake_says(fake, "GET", "$5000\r\n");
	kit_send_fetch(&kit, 1, block, prefixd_redis_now() + 20 * MS);
	kit_until(&kit, fake_count(fake, "GET") == 1);
	fake_says(fake, "GET", "x");
	end = prefixd_redis_now() + for_ns;
	while (!kit.n_down && prefixd_redis_now() < end) {
		kit_send_fetch(&kit, 1, block, patience_ns ? prefixd_redis_now() + patience_ns : 0);
		kit_idle(&kit, 5);
	}
	kit_drain(&kit);
	ck_assert_uint_gt(kit.results[PREFIXD_MOVE_DOWN], 5);
	ck_assert_uint_gt(kit_stats(&kit).errors[PREFIXD_REDIS_ERROR_TIMEOUT], 0);
}

/* Late by what Redis may take. */
START_TEST(slowness)
{
	kit.config.deadline_ns = 500 * MS;
	dribble(0, KIT_PATIENCE * MS);
	kit_wait_down(&kit, 1);
	ck_assert_uint_ge(opened(), 1);
}
END_TEST

/* Late by the deadlines of who asked, which are far below that. */
START_TEST(impatience)
{
	kit.config.deadline_ns = 60000 * MS;
	dribble(20 * MS, 1000 * MS);
	ck_assert_uint_eq(opened(), 0);
	ck_assert_uint_ge(fake_count(fake, "GET"), 10); /* else it was not Redis that was late */
}
END_TEST

/* An epoch that a full Redis, or a replica, refuses again and again. */
START_TEST(no_room_for_an_epoch)
{
	static const char *const replies[] = {
		"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
		"-READONLY You can't write against a read only replica.\r\n",
	};
	static const uint8_t ns[32] = "a namespace with an epoch";

	kit.config.breaker_failures = 2;
	kit_start(&kit);
	kit_wait_up(&kit);
	fake_says(fake, "MGET", "*1\r\n$-1\r\n");
	fake_answer(fake, "SET", FAKE_BYTES, replies[_i], strlen(replies[_i]));
	kit_send_epoch(&kit, ns, (struct prefixd_epoch){ 6, 1 }, true);
	kit_until(&kit, fake_count(fake, "SET") >= 4); /* with every look, once a second */
	ck_assert_uint_eq(opened(), 0);
	ck_assert_uint_ge(
		kit_stats(&kit).errors[_i ? PREFIXD_REDIS_ERROR_READONLY : PREFIXD_REDIS_ERROR_OOM],
		3);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("redis blame");
	TCase *tc = tcase_create("blame");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, slowness);
	tcase_add_test(tc, impatience);
	tcase_add_loop_test(tc, no_room_for_an_epoch, 0, 2);
	suite_add_tcase(s, tc);
	return test_run(s);
}
