/*
 * redis_sum_avx2.c - XXH3-128 compiled for AVX2, about twice as fast as for any x86-64.
 *
 * The whole file is compiled with -mavx2: whoever calls it has asked the processor before.  It
 * gives the same sums as every other build of XXH3.
 */
#include "daemon/redis_sum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void prefixd_sum_avx2(const void *p, size_t len, uint8_t ret_sum[16])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits(p, len));
	memcpy(ret_sum, c.digest, 16);
}
