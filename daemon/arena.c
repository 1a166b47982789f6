/*
 * arena.c - see arena.h.
 */
#include "daemon/arena.h"

#include "daemon/preflight.h"

#include <sys/mman.h>

#define HUGE_BYTES (UINT64_C(2) << 20)
#define STEP_BYTES (UINT64_C(64) << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; newer than some libc headers */
#endif

/* Aligned to huge pages, so that every one of them may be one. */
static void *map_aligned(uint64_t len)
{
	char *base, *p;
	uint64_t before;

	base = mmap(NULL, len + HUGE_BYTES, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return NULL;
	before = (HUGE_BYTES - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
	p = base + before;
	if (before > 0)
		(void)munmap(base, before);
	if (before < HUGE_BYTES)
		(void)munmap(p + len, HUGE_BYTES - before);
	return p;
}

/* Before 5.14 the kernel does not know the advice: write each page. */
static int touch(char *p, uint64_t len)
{
	if (madvise(p, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return errno == EFAULT || errno == EHWPOISON ? -ENOMEM : -errno;
	for (uint64_t i = 0; i < len; i += 4096)
		((volatile char *)p)[i] = 0;
	return 0;
}

static int fill(struct prefixd_arena *a, const struct prefixd_arena_config *config)
{
	for (uint64_t at = 0; at < a->len; at += STEP_BYTES) {
		uint64_t n = radix_min_u64(STEP_BYTES, a->len - at);
		int r;

		/* Asked anew each time: the kernel would not refuse but kill to find the pages. */
		if (n > prefixd_memory_available())
			return -ENOMEM;
		r = touch((char *)a->base + at, n);
		if (r < 0)
			return r;
		if (config->lock && mlock((char *)a->base + at, n) < 0)
			return errno == EAGAIN ? -EAGAIN : -EPERM;
		if (config->step)
			config->step(config->ctx);
	}
	a->locked = config->lock;
	return 0;
}

int prefixd_arena_new(struct prefixd_arena *ret, uint64_t len,
		      const struct prefixd_arena_config *config)
{
	struct prefixd_arena a = { 0 };
	int r;

	if (len == 0 || len > (uint64_t)INT64_MAX / 2)
		return -EINVAL;
	if (len > prefixd_memory_available())
		return -ENOMEM;
	a.len = (len + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
	if (len < HUGE_BYTES)
		a.len = (len + 4095) & ~UINT64_C(4095);
	a.base = map_aligned(a.len);
	if (!a.base)
		return -ENOMEM;
	/* Advice only: where the kernel refuses, memory works all the same. */
	(void)madvise(a.base, a.len, MADV_DONTDUMP);
	(void)madvise(a.base, a.len, MADV_DONTFORK);
	if (config->huge && a.len >= HUGE_BYTES)
		a.huge = madvise(a.base, a.len, MADV_HUGEPAGE) == 0;
	r = fill(&a, config);
	if (r < 0) {
		prefixd_arena_free(&a);
		return r;
	}
	*ret = a;
	return 0;
}

void prefixd_arena_free(struct prefixd_arena *a)
{
	if (!a || !a->base)
		return;
	(void)munmap(a->base, a->len);
	*a = (struct prefixd_arena){ 0 };
}
