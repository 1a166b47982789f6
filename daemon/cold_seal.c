/*
 * cold_seal.c - cold.h's seal, for both helpers: the carrier writes it, and whoever reads a host
 * slot compares.
 */
#include "daemon/cold.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void prefixd_cold_seal(const uint8_t sum[16], uint32_t entry, uint64_t generation,
		       uint8_t ret_seal[PREFIXD_COLD_SEAL])
{
	XXH128_canonical_t canonical;
	uint8_t of[28];

	memcpy(of, sum, 16);
	memcpy(of + 16, &entry, sizeof(entry));
	memcpy(of + 20, &generation, sizeof(generation));
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(of, sizeof(of)));
	memcpy(ret_seal, canonical.digest, PREFIXD_COLD_SEAL);
}
