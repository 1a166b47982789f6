/*
 * oracle.h - which blocks were ever stored, and which of them must still be found in some tier.
 *
 * A block is named by a number for its whole path.  Whatever a MATCH finds must have been stored
 * (may); as long as nothing took it away but the tiers' own moves, it must be found (must).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct oracle_block {
	uint64_t path; /* 0: empty */
	uint32_t root;
	bool must;
};

struct oracle {
	struct oracle_block *v;
	uint32_t n, cap; /* a power of two */
};

void oracle_deinit(struct oracle *o);
/* It was to be stored, and nobody was told whether it is. */
void oracle_maybe(struct oracle *o, uint64_t path, uint32_t root);
/* Stored now. */
void oracle_add(struct oracle *o, uint64_t path, uint32_t root);
bool oracle_may(const struct oracle *o, uint64_t path);
bool oracle_must(const struct oracle *o, uint64_t path);
/* Blocks of the root (RADIX_NONE: of all) may have gone. */
void oracle_doubt(struct oracle *o, uint32_t root);
