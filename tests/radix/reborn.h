/*
 * reborn.h - the index that a restart would make of what another one has stored so far, and how far
 * the two agree.
 */
#pragma once

#include "radix/internal.h"
#include "radix/recover.h"
#include "tests/lib/heap.h"
#include "tests/radix/kept.h"

enum {
	REBORN_MAX_ROOTS = 8
};

struct reborn {
	struct kept kept;
	struct test_heap heap;
	struct radix_recover_root roots[REBORN_MAX_ROOTS];
	struct radix_recover_config config; /* everybody may still use his slots */
	struct radix_recovered r;
	struct radix_index *ix;
};

/* Copies what `ix` has stored in `k`, and its roots; no index yet. */
void reborn_init(struct reborn *b, const struct radix_index *ix, const struct kept *k);
/* radix_index_recover(), which must be answered 0, and what it guarantees of any store. */
void reborn_recover(struct reborn *b);
void reborn_deinit(struct reborn *b);

/* Nothing was damaged: members, copies, slots and hits are those of `ix`. */
void reborn_same(const struct reborn *b, const struct radix_index *ix);
/*
 * Each block's last use is at least that of `ix`, of it or of anything below it; exact: no more.
 */
void reborn_uses(const struct reborn *b, const struct radix_index *ix, bool exact);
/* Takes the coldest block of both again and again: they must go in one order. Destroys both. */
void reborn_order(struct reborn *b, struct radix_index *ix);
/* All three of what `ix` has stored now; it stays as it is. */
void reborn_check(const struct radix_index *ix, const struct kept *k, bool exact);

/* Last use of a member, and whether a hit covers it; where it lies is found by looking. */
uint64_t reborn_use(const struct radix_index *ix, uint32_t entry, bool *ret_hit);
