/*
 * arena.h - memory for benchmarks: huge pages, touched before anything is timed.
 *
 * A first touch costs far more than what is measured here.  Blocks of 1 MiB and more are mappings
 * of their own; smaller ones come from mappings of 64 MiB and return to a free list of their size.
 */
#pragma once

#include "radix/base.h"

struct bench_arena {
	struct radix_alloc alloc;
	uint8_t *next;
	size_t left;
	void *free_list[2048]; /* by size in lines of 64 bytes, for up to 128 KiB */
	void *chunks[1024];
	uint32_t n_chunks;
	uint64_t bytes; /* given out now */
	uint64_t mapped;
};

void bench_arena_init(struct bench_arena *a);
/* Give back all small blocks at once; big ones are the owner's. */
void bench_arena_deinit(struct bench_arena *a);
/* A mapping of its own, touched. */
void *bench_arena_map(size_t size);
