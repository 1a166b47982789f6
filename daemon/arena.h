/*
 * arena.h - memory of the host tier: private, touched in advance, left out of core dumps.
 *
 * What it guarantees.  Every page is there when the call returns; memory that the machine cannot
 * give is an error then and not the end of a process later.  Touching goes in steps, so that other
 * threads of this process that map memory meanwhile wait for a step and not for all of it.  Huge
 * pages where the kernel grants them.  A child does not inherit it.
 *
 * What it relies on.  /proc/meminfo for what the machine can give; where it is missing the kernel
 * has the only word.
 */
#pragma once

#include "radix/base.h"

struct prefixd_arena {
	void *base; /* aligned to 2 MiB; NULL: none */
	uint64_t len;
	bool huge; /* huge pages were asked for and not refused */
	bool locked;
};

struct prefixd_arena_config {
	bool huge;
	bool lock; /* mlock: never to swap */
	/* Called after each step, at least every 64 MiB; NULL: not. */
	void (*step)(void *ctx);
	void *ctx;
};

/*
 * `len` bytes, rounded up to whole pages.  Return: 0; -EINVAL (0 or beyond the address space);
 * -ENOMEM (the machine cannot give as much now); -EPERM (lock: RLIMIT_MEMLOCK); nothing is left
 * behind.
 */
radix_nodiscard int prefixd_arena_new(struct prefixd_arena *ret, uint64_t len,
				      const struct prefixd_arena_config *config);
void prefixd_arena_free(struct prefixd_arena *a); /* idempotent, accepts a zeroed one */
