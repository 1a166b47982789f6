/*
 * test_devices.c - all GPUs that a name stands for, on the look-alike driver: which they are, in
 * what order, and that all of them reach what was pinned for all.
 */
#include "gpu/devices.h"
#include "tests/driver/census.h"
#include "tests/lib/run.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOT UINT64_C(4096)

static char uuids[4][GPU_ID_TEXT];

static void set_up(uint32_t n)
{
	char text[64];

	(void)snprintf(text, sizeof(text), "abort=1,poison=1,devices=%u", n);
	ck_assert_int_eq(setenv("LOOKALIKE", text, 1), 0);
}

static int open_all(const char *name, struct gpu_devices *d, char *why, size_t why_len)
{
	*d = (struct gpu_devices){ .n = 0 };
	why[0] = '\0';
	return gpu_devices_open(name, NULL, d, why, why_len);
}

/* Its UUID, by a pool. */
static void id_of(struct gpu *g, char out[GPU_ID_TEXT])
{
	struct gpu_pool_info info;
	struct gpu_pool *pool;

	ck_assert_int_eq(g->ops->pool_new(g, 1, SLOT, &pool), 0);
	g->ops->pool_info(pool, &info);
	gpu_id_print(info.device_id, out);
	g->ops->pool_free(g, pool);
}

static void nothing_held(void)
{
	struct lookalike_census c = { 0 };
	const char *held;

	ck_assert(lookalike_census(&c));
	held = lookalike_held(&c);
	ck_assert_msg(!held, "%s is held", held);
	ck_assert_uint_eq(c.n_broken, 0);
}

/* "cuda" is all of them, in the driver's order; a list is that list. */
START_TEST(names_and_their_order)
{
	static const uint32_t order[] = { 2, 0, 3 };
	char why[640], list[4 * GPU_ID_TEXT], id[GPU_ID_TEXT];
	struct gpu_devices d;

	set_up(4);
	ck_assert_msg(open_all("cuda", &d, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_eq(d.n, 4);
	ck_assert_msg(strstr(why, "; and 3 more") != NULL, "%s", why);
	for (uint32_t i = 0; i < 4; i++) {
		id_of(d.v[i], uuids[i]);
		for (uint32_t k = 0; k < i; k++)
			ck_assert_str_ne(uuids[i], uuids[k]);
		ck_assert(i > 0 || strstr(why, uuids[0]) != NULL);
	}
	gpu_devices_close(&d);
	gpu_devices_close(&d);

	(void)snprintf(list, sizeof(list), "cuda:%s,%.44s,%s", uuids[2], uuids[0] + 4, uuids[3]);
	ck_assert_msg(open_all(list, &d, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_eq(d.n, 3);
	for (uint32_t i = 0; i < 3; i++) {
		id_of(d.v[i], id);
		ck_assert_str_eq(id, uuids[order[i]]);
	}
	gpu_devices_close(&d);

	(void)snprintf(list, sizeof(list), "cuda:%s", uuids[1]);
	ck_assert_msg(open_all(list, &d, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_eq(d.n, 1);
	ck_assert_msg(strstr(why, "more") == NULL, "%s", why);
	gpu_devices_close(&d);
	nothing_held();
}
END_TEST

START_TEST(lists_that_cannot_be)
{
	char why[640], list[4 * GPU_ID_TEXT];
	struct gpu_devices d;

	set_up(4);
	ck_assert_int_eq(open_all("cuda", &d, why, sizeof(why)), 0);
	for (uint32_t i = 0; i < 4; i++)
		id_of(d.v[i], uuids[i]);
	gpu_devices_close(&d);

	(void)snprintf(list, sizeof(list), "cuda:%s,%s,%s", uuids[2], uuids[0], uuids[2]);
	ck_assert_int_eq(open_all(list, &d, why, sizeof(why)), -EINVAL);
	ck_assert_str_eq(why, "GPU 2 is named twice");
	(void)snprintf(list, sizeof(list), "cuda:%s,GPU-ffff", uuids[2]);
	ck_assert_int_eq(open_all(list, &d, why, sizeof(why)), -ENODEV);
	ck_assert_msg(strstr(why, "GPU 1: no GPU has a UUID that begins with") == why, "%s", why);
	(void)snprintf(list, sizeof(list), "cuda:%s,", uuids[2]);
	ck_assert_int_eq(open_all(list, &d, why, sizeof(why)), -ENODEV);
	ck_assert_int_eq(open_all("cuda:", &d, why, sizeof(why)), -ENODEV);
	ck_assert_int_eq(open_all("cuda:,", &d, why, sizeof(why)), -ENODEV);
	ck_assert_int_eq(open_all("gpu", &d, why, sizeof(why)), -ENOENT);
	ck_assert_uint_eq(d.n, 0);
	nothing_held();
}
END_TEST

START_TEST(as_many_as_there_is_room_for)
{
	char why[640];
	struct gpu_devices d;

	set_up(GPU_DEVICES_MAX);
	ck_assert_msg(open_all("cuda", &d, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_eq(d.n, GPU_DEVICES_MAX);
	ck_assert_msg(strstr(why, "; and 15 more") != NULL, "%s", why);
	gpu_devices_close(&d);
	nothing_held();
}
END_TEST

/* One of them cannot be used: whoever named GPUs is told, and auto is host memory. */
START_TEST(one_that_cannot_be_used)
{
	static const char plan[] = "abort=1,devices=3,fail=context_retain:2:46+context_retain:4:46";
	char why[640];
	struct gpu_devices d;

	ck_assert_int_eq(setenv("LOOKALIKE", plan, 1), 0);
	ck_assert_int_lt(open_all("cuda", &d, why, sizeof(why)), 0);
	ck_assert_msg(strstr(why, "GPU 1: ") == why, "%s", why);
	ck_assert_uint_eq(d.n, 0);
	nothing_held();
	ck_assert_msg(open_all("auto", &d, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_eq(d.n, 1);
	ck_assert_str_eq(d.v[0]->ops->name, "host");
	ck_assert_msg(strstr(why, "host memory (chosen by auto: GPU ") == why, "%s", why);
	gpu_devices_close(&d);
	nothing_held();
}
END_TEST

/* And auto is all of them where all can be. */
START_TEST(auto_is_all_of_them)
{
	char why[640];
	struct gpu_devices d;

	set_up(3);
	ck_assert_msg(open_all("auto", &d, why, sizeof(why)) == 0, "%s", why);
	ck_assert_uint_eq(d.n, 3);
	ck_assert_str_eq(d.v[2]->ops->name, "cuda");
	gpu_devices_close(&d);
	nothing_held();
}
END_TEST

START_TEST(other_back_ends_are_one_device)
{
	static const char *const names[] = { "host", "sim" };
	char why[640];
	struct gpu_devices d;
	void *p;

	ck_assert_int_eq(open_all(names[_i], &d, why, sizeof(why)), 0);
	ck_assert_uint_eq(d.n, 1);
	ck_assert_str_eq(d.v[0]->ops->name, names[_i]);
	p = mmap(NULL, SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert(p != MAP_FAILED);
	ck_assert_int_eq(gpu_devices_pin(&d, p, SLOT), 0);
	gpu_devices_unpin(&d, p);
	ck_assert_int_eq(munmap(p, SLOT), 0);
	gpu_devices_close(&d);
}
END_TEST

/* ---- memory that all of them reach ----------------------------------------------------------- */

static uint32_t n_done;

static void done(struct gpu_job *job, int status)
{
	ck_assert_int_eq(status, 0);
	n_done++;
}

static void wait_for(struct gpu *g, uint32_t n)
{
	while (n_done < n) {
		struct pollfd p = { .fd = g->ops->event_fd(g), .events = POLLIN };

		ck_assert_int_eq(poll(&p, 1, 10000), 1);
		(void)g->ops->reap(g, 16);
	}
}

/* There and back on each device; none reaches it any more once it is unpinned. */
START_TEST(all_reach_what_is_pinned)
{
	const size_t len = 2 * SLOT;
	struct gpu_devices d;
	char why[640];
	uint8_t *p;

	set_up(4);
	ck_assert_msg(open_all("cuda", &d, why, sizeof(why)) == 0, "%s", why);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert(p != MAP_FAILED);
	ck_assert_int_eq(gpu_devices_pin(&d, p, len), 0);
	ck_assert_int_eq(gpu_devices_pin(&d, p, len), -EINVAL); /* once only, and it stays */
	for (uint32_t i = 0; i < d.n; i++) {
		struct gpu *g = d.v[i];
		struct gpu_job job = { .len = SLOT, .done = done };
		struct gpu_pool *pool;

		ck_assert_int_eq(g->ops->pool_new(g, 2, SLOT, &pool), 0);
		n_done = 0;
		memset(p, (int)i + 1, SLOT);
		memset(p + SLOT, 0, SLOT);
		job.src = (uintptr_t)p;
		job.dst = g->ops->slot_addr(pool, 1);
		ck_assert_int_eq(g->ops->submit(g, &job), 0);
		wait_for(g, 1);
		job.src = g->ops->slot_addr(pool, 1);
		job.dst = (uintptr_t)p + SLOT;
		ck_assert_int_eq(g->ops->submit(g, &job), 0);
		wait_for(g, 2);
		ck_assert_mem_eq(p, p + SLOT, SLOT);
		g->ops->pool_free(g, pool);
	}
	gpu_devices_unpin(&d, p);
	for (uint32_t i = 0; i < d.n; i++) {
		struct gpu *g = d.v[i];
		struct gpu_job job = { .src = (uintptr_t)p, .len = SLOT, .done = done };
		struct gpu_pool *pool;

		ck_assert_int_eq(g->ops->pool_new(g, 1, SLOT, &pool), 0);
		job.dst = g->ops->slot_addr(pool, 0);
		ck_assert_int_eq(g->ops->submit(g, &job), -EINVAL);
		g->ops->pool_free(g, pool);
	}
	ck_assert_int_eq(munmap(p, len), 0);
	gpu_devices_close(&d);
	nothing_held();
}
END_TEST

/* Closed with memory that is still pinned: it is given back, by who has registered it, once. */
START_TEST(closed_with_pinned_memory)
{
	struct gpu_devices d;
	char why[640];
	void *p;

	set_up(3);
	ck_assert_msg(open_all("cuda", &d, why, sizeof(why)) == 0, "%s", why);
	p = mmap(NULL, SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert(p != MAP_FAILED);
	ck_assert_int_eq(gpu_devices_pin(&d, p, SLOT), 0);
	gpu_devices_close(&d);
	nothing_held();
	ck_assert_int_eq(munmap(p, SLOT), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("devices");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, names_and_their_order);
	tcase_add_test(tc, lists_that_cannot_be);
	tcase_add_test(tc, as_many_as_there_is_room_for);
	tcase_add_test(tc, one_that_cannot_be_used);
	tcase_add_test(tc, auto_is_all_of_them);
	tcase_add_loop_test(tc, other_back_ends_are_one_device, 0, 2);
	tcase_add_test(tc, all_reach_what_is_pinned);
	tcase_add_test(tc, closed_with_pinned_memory);
	suite_add_tcase(s, tc);
	return test_run_as(s, CK_FORK);
}
