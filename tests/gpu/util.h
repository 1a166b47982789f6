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
static uint32_t n_in_flight; /* of submit() below */

static inline void count_done(struct gpu_job *job, int status)
{
	struct counted_job *c = job->ctx;

	c->n_done++;
	c->status = status;
	c->place = ++n_completions;
	n_in_flight--;
	ck_assert_int_eq(job->status, status);
}

static inline uint64_t addr_of(const void *p)
{
	return (uintptr_t)p;
}

static inline int submit(struct gpu *g, struct counted_job *c, uint64_t dst, uint64_t src,
			 uint64_t len)
{
	int r;

	*c = (struct counted_job){
		.job = { .dst = dst, .src = src, .len = len, .done = count_done, .ctx = c },
	};
	n_in_flight++; /* before: a callback may run at once that counts it down */
	r = g->ops->submit(g, &c->job);
	if (r < 0)
		n_in_flight--;
	return r;
}

static inline bool readable_within(const struct gpu *g, int ms)
{
	struct pollfd p = { .fd = g->ops->event_fd(g), .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

static inline bool readable(const struct gpu *g)
{
	return readable_within(g, 0);
}

/* Its jobs run while nobody looks. */
static inline bool has_own_time(const struct gpu *g)
{
	return g->ops->kind == GPU_KIND_CUDA;
}

/* Lets time pass where it is virtual, and reaps until the back end has no more work. */
static inline uint32_t settle(struct gpu *g)
{
	uint32_t n = 0;

	gpu_sim_advance(g, UINT64_C(1) << 40);
	while (readable_within(g, has_own_time(g) && n_in_flight ? 20000 : 0))
		n += g->ops->reap(g, 16);
	return n;
}

/* Where the ways in, out and across are not one line, jobs that build on each other wait. */
static inline uint32_t settle_way(struct gpu *g)
{
	return has_own_time(g) ? settle(g) : 0;
}

/* Reaps once something is there; where jobs take their time, it may be called in vain before. */
static inline uint32_t reap_some(struct gpu *g, uint32_t budget)
{
	uint32_t n;

	do {
		ck_assert(readable_within(g, has_own_time(g) ? 20000 : 0));
		n = g->ops->reap(g, budget);
	} while (n == 0 && has_own_time(g));
	return n;
}

/* Nothing to do; what a driver tells by a thread of its own may be told late. */
static inline bool quiet(struct gpu *g)
{
	for (int i = 0; has_own_time(g) && i < 100 && readable_within(g, 5); i++)
		ck_assert_uint_eq(g->ops->reap(g, 16), 0);
	return !readable(g);
}

/* Zeroed memory for the host's side of jobs; the device forgets it when it is closed. */
static inline uint8_t *pages(struct gpu *g, uint64_t len)
{
	void *p;

	len = (len + 4095) & ~UINT64_C(4095);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	ck_assert_int_eq(g->ops->host_pin(g, p, len), 0);
	return p;
}

static inline struct gpu *open_back_end(const char *name, const struct gpu_sim_config *plan)
{
	struct gpu *g = NULL;
	char why[640] = "";

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
	uint8_t *p;

	g->ops->pool_info(pool, &info);
	p = mmap(NULL, info.len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	for (uint32_t i = 0; i < info.n_slabs; i++) {
		uint64_t at = i * info.slab_bytes;

		ck_assert_ptr_ne(mmap(p + at, radix_min_u64(info.slab_bytes, info.len - at),
				      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				      g->ops->pool_fd(pool, i, false), 0),
				 MAP_FAILED);
	}
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
