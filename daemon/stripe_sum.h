/*
 * stripe_sum.h - one checksum for a block that lies in the pools of several ranks.
 *
 * What it guarantees.  The sum of the pieces' sums, in the order of the ranks: who writes the
 * pieces and who copies the block come to the same one.  A block of one piece has its piece's sum.
 */
#pragma once

#include "radix/base.h"

/*
 * sums: [n_ranks], of each rank's piece: all XXH3-128 in its canonical form, or all of the kernels'
 * kind.  ret_sum may be one of them.
 */
void prefixd_stripe_sum(const uint8_t (*sums)[16], uint32_t n_ranks, uint8_t ret_sum[16]);
