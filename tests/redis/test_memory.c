/*
 * test_memory.c - each allocation of the client fails once: every request is still answered, and
 * what is served is still the block.
 *
 * The linker puts the functions below between the client, hiredis' reader apart, and libc.  The
 * failing call is counted over both threads; where exactly it falls differs from run to run.
 */
#include "tests/lib/run.h"
#include "tests/redis/fake_redis.h"
#include "tests/redis/kit.h"

#include <pthread.h>
#include <stdlib.h>

static _Atomic int64_t countdown; /* the call that fails; 0: none */
static _Atomic bool failed;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);

/*
 * The test's own allocations do not fail, nor the fake's: only those of the client's thread and,
 * where the test says so, of its own.
 */
static __thread bool start_is_mine;

static bool mine(void)
{
	char name[16];

	return start_is_mine || (pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
				 !strcmp(name, "redis"));
}

static bool refuse(void)
{
	if (atomic_load(&countdown) <= 0 || !mine() || atomic_fetch_sub(&countdown, 1) != 1)
		return false;
	atomic_store(&failed, true);
	return true;
}

void *__wrap_malloc(size_t size)
{
	return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
	return refuse() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
	return refuse() ? NULL : __real_aligned_alloc(align, size);
}

#define BLOCK 4096u

/* Requests of every kind.  Their answers are whatever they are; the kit checks each block. */
static void work(struct kit *k)
{
	static const uint8_t ns[32] = "a namespace";

	for (uint32_t i = 0; i < 6; i++) {
		(void)kit_store(k, i);
		(void)kit_fetch(k, i);
		(void)kit_look(k, i, 3);
		kit_send_epoch(k, ns, (struct prefixd_epoch){ i, 2 }, true);
	}
	kit_drain(k);
}

/* The n-th allocation while it works. */
START_TEST(while_it_works)
{
	struct fake_redis *fake = fake_new();
	int64_t n;

	for (n = 1; n < 300; n++) {
		struct kit k;

		kit_init(&k, fake_url(fake), BLOCK);
		k.config.encrypt = n % 2;
		kit_start(&k);
		kit_wait_up(&k);
		atomic_store(&failed, false);
		atomic_store(&countdown, n);
		work(&k);
		atomic_store(&countdown, 0);
		/* And it goes on as if nothing had been. */
		kit_wait_up(&k);
		k.named = 0;
		ck_assert_int_eq(kit_store(&k, 1), PREFIXD_MOVE_OK);
		kit_stop(&k);
		if (!atomic_load(&failed))
			break;
	}
	ck_assert_int_gt(n, 20);
	ck_assert_int_lt(n, 300);
	fake_free(fake);
}
END_TEST

/* The n-th allocation at the start. */
START_TEST(at_the_start)
{
	struct fake_redis *fake = fake_new();
	int n;

	for (n = 1; n < 200; n++) {
		struct kit k;
		char why[256] = "";
		int r;

		kit_init(&k, fake_url(fake), BLOCK);
		start_is_mine = true;
		atomic_store(&failed, false);
		atomic_store(&countdown, n);
		r = prefixd_redis_start(&k.redis, &k.config, why, sizeof(why));
		start_is_mine = false;
		if (r < 0) {
			atomic_store(&countdown, 0);
			ck_assert_int_eq(r, -ENOMEM);
			ck_assert(!strncmp(why, "redis: ", 7));
			ck_assert(atomic_load(&failed));
			continue;
		}
		kit_wait_up(&k);
		atomic_store(&countdown, 0);
		ck_assert_int_eq(kit_store(&k, 1), PREFIXD_MOVE_OK);
		kit_stop(&k);
		if (!atomic_load(&failed))
			break;
	}
	ck_assert_int_gt(n, 5);
	ck_assert_int_lt(n, 200);
	fake_free(fake);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("redis memory");
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, while_it_works);
	tcase_add_test(tc, at_the_start);
	tcase_set_timeout(tc, 120);
	suite_add_tcase(s, tc);
	return test_run(s);
}
