/*
 * verify.h - what the two halves of radix_verify() share.
 */
#pragma once

#include "radix/internal.h"
#include "radix/text.h"

struct radix_verify {
	const struct radix_index *ix;
	struct radix_text why;
	uint64_t blocks; /* found in edges */
	uint64_t edges;
	uint64_t queued[RADIX_N_TIERS];
	uint64_t edge_pins;
	uint64_t tier[RADIX_N_TIERS]; /* blocks by their highest copy */
	uint64_t bonus;
	uint64_t hollow;
	uint64_t in_windows; /* edges queued for blocks outside of all windows */
};

/* Writes the sentence; returns `number`. */
int radix_verify_fail(struct radix_verify *v, int number, const char *what, uint64_t a,
		      const char *what_b, uint64_t b);

/* With lower tiers, 15 to 21.  All return 0 or the number of what is broken. */
int radix_verify_host_slots(struct radix_verify *v);
int radix_verify_copies(struct radix_verify *v, uint32_t node, uint32_t i, uint32_t entry);
int radix_verify_ends(struct radix_verify *v, uint32_t node);
int radix_verify_kids(struct radix_verify *v, uint32_t node);
int radix_verify_tier_totals(struct radix_verify *v);
/* 28, 29: roots with a window; of an edge, and in all. */
int radix_verify_window(struct radix_verify *v, uint32_t node);
int radix_verify_windows(struct radix_verify *v);
/* 24 to 27: what a restart relies on; of a member, and in all. */
int radix_verify_words(struct radix_verify *v, uint32_t entry);
int radix_verify_cell(struct radix_verify *v, uint32_t entry);
int radix_verify_kept(struct radix_verify *v);
/* 1 to 3 for either pool of slots; 19. */
int radix_verify_slots(struct radix_verify *v, const struct radix_slots *s);
