/*
 * memory.c - see memory.h.
 */
#include "daemon/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)
#define ALIGN      64u

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; newer than Debian 12's libc headers are on some */
#endif

static size_t round_up(size_t size, size_t to)
{
	return (size + to - 1) / to * to;
}

static void *memory_map(const struct prefixd_memory *m, size_t size)
{
	size_t len = round_up(size, HUGE_BYTES);
	char *base, *p;
	size_t before;

	if (len < size || len > SIZE_MAX - HUGE_BYTES)
		return NULL;
	base = mmap(NULL, len + HUGE_BYTES, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return NULL;
	before = (HUGE_BYTES - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
	p = base + before;
	if (before > 0)
		munmap(base, before);
	if (before < HUGE_BYTES)
		munmap(p + len, HUGE_BYTES - before);
	/* Advice only: where the kernel refuses, memory works all the same. */
	(void)madvise(p, len, MADV_DONTDUMP);
	if (m->huge)
		(void)madvise(p, len, MADV_HUGEPAGE);
	if (madvise(p, len, MADV_POPULATE_WRITE) < 0 && errno == ENOMEM) {
		munmap(p, len);
		return NULL;
	}
	return p;
}

static void *memory_take(void *ctx, size_t size)
{
	struct prefixd_memory *m = ctx;
	void *p;

	if (size > SIZE_MAX / 2)
		return NULL;
	if (size >= HUGE_BYTES)
		p = memory_map(m, size);
	else
		p = aligned_alloc(ALIGN, round_up(size ? size : 1, ALIGN));
	if (!p)
		return NULL;
	m->bytes += size;
	m->n_live++;
	if (m->bytes > m->peak)
		m->peak = m->bytes;
	return p;
}

static void memory_give(void *ctx, void *p, size_t size)
{
	struct prefixd_memory *m = ctx;

	if (!p)
		return;
	m->bytes -= size;
	m->n_live--;
	if (size >= HUGE_BYTES)
		munmap(p, round_up(size, HUGE_BYTES));
	else
		free(p);
}

void prefixd_memory_init(struct prefixd_memory *m, bool huge)
{
	*m = (struct prefixd_memory){
		.alloc = { .take = memory_take, .give = memory_give, .ctx = m },
		.huge = huge,
	};
}
