/*
 * heap.h - a counting allocator that can fail, for tests of everything that takes a radix_alloc.
 *
 * It gives memory aligned to 64 bytes and filled with junk (nobody may rely on zeroes), checks that
 * each block comes back once, whole and with the size it was asked for, poisons it then, and
 * counts.  A breach aborts: in Check's fork mode that fails the test that did it.
 *
 *     struct test_heap h;
 *     test_heap_init(&h);
 *     test_heap_fail_at(&h, 3);         the third call from now fails, once
 *     ... &h.alloc ...
 *     ck_assert_uint_eq(h.live_blocks, 0);
 */
#pragma once

#include "radix/base.h"

struct test_heap {
	struct radix_alloc alloc; /* hand this out; ctx points back to the heap */
	uint64_t n_takes;         /* calls of take(), failed ones included */
	uint64_t n_gives;
	uint64_t fail_countdown; /* 0: never; 1: the next take() fails */
	uint64_t n_failed;
	uint64_t live_blocks;
	uint64_t live_bytes;
	uint64_t peak_bytes;
	uint64_t max_bytes; /* a take() that would exceed it fails; 0: no limit */
	void *live;         /* its own: the blocks that have not come back */
	bool quick;         /* no junk and no poison: for tests that look at time */
};

void test_heap_init(struct test_heap *h);
/* The n-th take() from now fails (once); 0 switches that off. */
void test_heap_fail_at(struct test_heap *h, uint64_t n);
/* Gives back all that is left: whoever took it is gone. */
void test_heap_drop(struct test_heap *h);
