/*
 * cold_blocks.c - cold.h's blocks: coded and decoded on this processor.
 */
#include "daemon/cold.h"

bool prefixd_cold_encode(const struct prefixd_cold *cold, const void *block, void *out)
{
	struct gpu_coded coded;

	prefixd_cold_coded(cold, &coded);
	return gpu_coded_encode(&coded, block, out);
}

void prefixd_cold_decode(const struct prefixd_cold *cold, const void *in, void *block)
{
	struct gpu_coded coded;

	prefixd_cold_coded(cold, &coded);
	gpu_coded_decode(&coded, in, block);
}
