/*
 * redis_sum.h - the checksum of a block, as fast as this processor can: XXH3-128 in its canonical
 * form, or the one that the kernels of a GPU take (gpu/kernels.h).
 */
#pragma once

#include "radix/base.h"

void prefixd_sum(const void *p, size_t len, uint8_t ret_sum[16]);
/* What the kernels come to, as COMMIT carries it: the lowest byte of each number first. */
void prefixd_sum_kernel(const uint64_t sum[2], uint8_t ret_sum[16]);
/* Of either kind, PROTO_CHECKSUM_XXH3_128 or PROTO_CHECKSUM_KERNEL. */
void prefixd_sum_of(uint8_t kind, const void *p, size_t len, uint8_t ret_sum[16]);
/*
 * Of a block of `len` bytes that consists of n pieces of one length (0: 1), one for each rank of
 * its namespace: see daemon/stripe_sum.h.
 */
void prefixd_sum_pieces(uint8_t kind, const void *p, size_t len, uint32_t n, uint8_t ret_sum[16]);
/* Only where the processor has AVX2. */
void prefixd_sum_avx2(const void *p, size_t len, uint8_t ret_sum[16]);
