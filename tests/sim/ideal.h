/*
 * ideal.h - the cache that the faults are measured against: of the same size, it loses nothing.
 *
 * It has every block whose COMMIT was answered, up to a number of blocks; beyond it the block goes
 * that was used least lately and that none hangs below.  Nobody's death touches it, no tier fails;
 * what an operator takes away goes here as well.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ideal_block {
	uint64_t path; /* 0: empty */
	uint64_t parent;
	uint64_t used;
	uint32_t n_children;
	uint32_t group, ns;
};

struct ideal {
	struct ideal_block *v;
	uint32_t n, cap; /* cap: a power of two */
	uint32_t max;
	uint64_t tick;
};

void ideal_init(struct ideal *ideal, uint32_t max_blocks);
void ideal_deinit(struct ideal *ideal);
bool ideal_has(const struct ideal *ideal, uint64_t path);
/* `parent` 0: it begins a prompt.  A block whose parent is not there is not taken. */
void ideal_add(struct ideal *ideal, uint64_t path, uint64_t parent, uint32_t group, uint32_t ns);
/* The n that were used least lately, of a group; all of a namespace, or of a group. */
void ideal_evict(struct ideal *ideal, uint32_t group, uint32_t n);
void ideal_flush(struct ideal *ideal, uint32_t ns);
void ideal_touch(struct ideal *ideal, uint64_t path);
