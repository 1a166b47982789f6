/*
 * redis_sum.c - see redis_sum.h.
 */
#include "daemon/redis_sum.h"

#include "daemon/engine.h"
#include "daemon/stripe_sum.h"
#include "gpu/codec.h"
#include "proto/messages.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void prefixd_sum(const void *p, size_t len, uint8_t ret_sum[16])
{
	XXH128_canonical_t c;

#ifdef PREFIXD_SUM_AVX2
	if (__builtin_cpu_supports("avx2")) {
		prefixd_sum_avx2(p, len, ret_sum);
		return;
	}
#endif
	XXH128_canonicalFromHash(&c, XXH3_128bits(p, len));
	memcpy(ret_sum, c.digest, 16);
}

void prefixd_sum_kernel(const uint64_t sum[2], uint8_t ret_sum[16])
{
	for (uint32_t i = 0; i < 16; i++)
		ret_sum[i] = (uint8_t)(sum[i / 8] >> (i % 8 * 8));
}

void prefixd_sum_of(uint8_t kind, const void *p, size_t len, uint8_t ret_sum[16])
{
	uint64_t sum[2];

	if (kind != PROTO_CHECKSUM_KERNEL) {
		prefixd_sum(p, len, ret_sum);
		return;
	}
	gpu_checksum(gpu_codec_best(), p, len, sum);
	prefixd_sum_kernel(sum, ret_sum);
}

void prefixd_sum_pieces(uint8_t kind, const void *p, size_t len, uint32_t n, uint8_t ret_sum[16])
{
	uint8_t sums[PREFIXD_RANKS_MAX][16];

	n = n > 0 ? n : 1;
	for (uint32_t i = 0; i < n; i++)
		prefixd_sum_of(kind, (const uint8_t *)p + i * (len / n), len / n, sums[i]);
	prefixd_stripe_sum((const uint8_t(*)[16])sums, n, ret_sum);
}
