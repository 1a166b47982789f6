/*
 * stripe_sum.c - see stripe_sum.h.
 */
#include "daemon/stripe_sum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void prefixd_stripe_sum(const uint8_t (*sums)[16], uint32_t n_ranks, uint8_t ret_sum[16])
{
	XXH128_canonical_t c;

	if (n_ranks == 1) {
		memmove(ret_sum, sums[0], 16);
		return;
	}
	XXH128_canonicalFromHash(&c, XXH3_128bits(sums, (size_t)n_ranks * sizeof(*sums)));
	memcpy(ret_sum, c.digest, sizeof(c.digest));
}
