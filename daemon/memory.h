/*
 * memory.h - where the engine's memory comes from.
 *
 * Small pieces come from malloc.  Pieces of 2 MiB and more are mapped on their own: aligned, with
 * huge pages where the kernel grants them, touched before they are returned (a first touch costs
 * more than a whole match), and left out of core dumps, since keys of prompts lie in them.
 */
#pragma once

#include "radix/base.h"

struct prefixd_memory {
	struct radix_alloc alloc;
	bool huge;
	uint64_t bytes; /* handed out now */
	uint64_t peak;
	uint64_t n_live;
};

/* alloc.ctx points to m: it must not move. */
void prefixd_memory_init(struct prefixd_memory *m, bool huge);
