/*
 * arena.c - see arena.h.
 */
#include "tests/bench/arena.h"

#include <sys/mman.h>

#define LINE  64u
#define BIG   ((size_t)1 << 20)
#define CHUNK ((size_t)64 << 20)
#define HUGE  ((size_t)2 << 20)

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

void *bench_arena_map(size_t size)
{
	uint8_t *p;

	size = round_up(size, HUGE);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	(void)madvise(p, size, MADV_HUGEPAGE); /* before the first touch, else it comes too late */
	if (madvise(p, size, MADV_POPULATE_WRITE) != 0)
		for (size_t i = 0; i < size; i += 4096)
			p[i] = 0;
	return p;
}

static void *arena_take(void *ctx, size_t size)
{
	struct bench_arena *a = ctx;
	size_t lines = round_up(size, LINE) / LINE;
	void *p;

	a->bytes += size;
	if (size >= BIG) {
		a->mapped += round_up(size, HUGE);
		return bench_arena_map(size);
	}
	if (lines < radix_array_size(a->free_list) && a->free_list[lines]) {
		p = a->free_list[lines];
		memcpy(&a->free_list[lines], p, sizeof(void *));
		return p;
	}
	if (a->left < lines * LINE) {
		if (a->n_chunks == radix_array_size(a->chunks))
			return NULL;
		a->next = bench_arena_map(CHUNK);
		if (!a->next)
			return NULL;
		a->chunks[a->n_chunks++] = a->next;
		a->left = CHUNK;
		a->mapped += CHUNK;
	}
	p = a->next;
	a->next += lines * LINE;
	a->left -= lines * LINE;
	return p;
}

static void arena_give(void *ctx, void *ptr, size_t size)
{
	struct bench_arena *a = ctx;
	size_t lines = round_up(size, LINE) / LINE;

	if (!ptr)
		return;
	a->bytes -= size;
	if (size >= BIG) {
		a->mapped -= round_up(size, HUGE);
		(void)munmap(ptr, round_up(size, HUGE));
		return;
	}
	if (lines >= radix_array_size(a->free_list))
		return; /* sizes between are rare: left to the end */
	memcpy(ptr, &a->free_list[lines], sizeof(void *));
	a->free_list[lines] = ptr;
}

void bench_arena_init(struct bench_arena *a)
{
	*a = (struct bench_arena){ .alloc = { .take = arena_take, .give = arena_give, .ctx = a } };
}

void bench_arena_deinit(struct bench_arena *a)
{
	while (a->n_chunks)
		(void)munmap(a->chunks[--a->n_chunks], CHUNK);
	a->left = 0;
}
