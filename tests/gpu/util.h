/*
 * util.h - what the tests of the back ends share: a job that counts its completions, a wait that
 * works on every back end, and counts of what the process holds open.
 */
#pragma once

#include "gpu/gpu.h"

#include <check.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct counted_job {
	struct gpu_job job;
	uint32_t n_done;
	int status;
	uint32_t place; /* in the order of completion, from 1 */
};

static uint32_t n_completions;

static inline void count_done(struct gpu_job *job, int status)
{
	struct counted_job *c = job->ctx;

	c->n_done++;
	c->status = status;
	c->place = ++n_completions;
	ck_assert_int_eq(job->status, status);
}

static inline uint64_t addr_of(const void *p)
{
	return (uintptr_t)p;
}

static inline int submit(struct gpu *g, struct counted_job *c, uint64_t dst, uint64_t src,
			 uint64_t len)
{
	*c = (struct counted_job){
		.job = { .dst = dst, .src = src, .len = len, .done = count_done, .ctx = c },
	};
	return g->ops->submit(g, &c->job);
}

static inline bool readable(const struct gpu *g)
{
	struct pollfd p = { .fd = g->ops->event_fd(g), .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Lets time pass where it is virtual, and reaps until the back end has no more work. */
static inline uint32_t settle(struct gpu *g)
{
	uint32_t n = 0;

	gpu_sim_advance(g, UINT64_C(1) << 40);
	while (readable(g))
		n += g->ops->reap(g, 16);
	return n;
}

static inline struct gpu *open_back_end(const char *name, const struct gpu_sim_config *plan)
{
	struct gpu *g = NULL;
	char why[160] = "";

	ck_assert_msg(gpu_open(name, plan, &g, why, sizeof(why)) == 0, "%s", why);
	ck_assert_str_ne(why, "");
	return g;
}

static inline struct gpu_pool *new_pool(struct gpu *g, uint32_t n_slots, uint64_t slot_bytes)
{
	struct gpu_pool *pool = NULL;

	ck_assert_int_eq(g->ops->pool_new(g, n_slots, slot_bytes, &pool), 0);
	ck_assert_ptr_nonnull(pool);
	return pool;
}

/* The pool as a worker sees it: through its descriptor. */
static inline uint8_t *map_pool(struct gpu *g, struct gpu_pool *pool, uint64_t *ret_len)
{
	struct gpu_pool_info info;
	void *p;

	g->ops->pool_info(pool, &info);
	p = mmap(NULL, info.len, PROT_READ | PROT_WRITE, MAP_SHARED,
		 g->ops->pool_fd(pool, 0, false), 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	*ret_len = info.len;
	return p;
}

static inline bool all_bytes(const uint8_t *p, uint64_t len, uint8_t value)
{
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != value)
			return false;
	return true;
}

static inline uint32_t count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t n = 0;

	ck_assert_ptr_nonnull(dir);
	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n;
}

/* Mappings of memfds in this process. */
static inline uint32_t count_memfd_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	uint32_t n = 0;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "/memfd:prefixd") != NULL;
	(void)fclose(f);
	return n;
}

/* Tests that end by a signal need Check's fork mode, which valgrind and debuggers switch off. */
static inline bool may_die(void)
{
	const char *fork_mode = getenv("CK_FORK");

	return !fork_mode || strcmp(fork_mode, "no") != 0;
}

/* A minute, not Check's four seconds: a busy machine and a sanitizer make anything slow. */
static inline TCase *new_case(void)
{
	TCase *t = tcase_create("all");

	tcase_set_timeout(t, 60);
	return t;
}

static inline int run_suite(Suite *s)
{
	SRunner *sr = srunner_create(s);
	int failed;

	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
