/*
 * carrier_sum.c - checksums of blocks that the carrier copies, and whether they are the right ones.
 *
 * What it guarantees.  A block of which a checksum is known is compared with it, whichever of the
 * two kinds it is; of one of which nothing is known XXH3-128 is taken.  The sum of a block of
 * several ranks is that of its pieces' sums (stripe_sum.h), in both kinds.
 */
#include "daemon/carrier_internal.h"
#include "daemon/redis_sum.h"
#include "daemon/stripe_sum.h"

struct prefixd_pieces prefixd_pieces_at(const struct prefixd_pool *pool, void *block)
{
	struct prefixd_pieces p;

	for (uint32_t i = 0; i < pool->n_ranks; i++)
		p.v[i] = (uint8_t *)block + i * pool->info.slot_bytes;
	return p;
}

void prefixd_carrier_sum(const struct prefixd_pool *pool, const struct prefixd_pieces *pieces,
			 uint8_t kind, uint8_t ret_sum[16])
{
	uint8_t sums[PREFIXD_RANKS_MAX][16];

	for (uint32_t i = 0; i < pool->n_ranks; i++)
		prefixd_sum_of(kind, pieces->v[i], pool->info.slot_bytes, sums[i]);
	prefixd_stripe_sum((const uint8_t(*)[16])sums, pool->n_ranks, ret_sum);
}

bool prefixd_carrier_sum_take(struct prefixd_carrier_message *m,
			      const struct prefixd_pieces *pieces, bool always)
{
	uint8_t sum[sizeof(m->checksum)];

	m->summed = false;
	if (m->checksum_kind == PROTO_CHECKSUM_KERNEL) {
		prefixd_carrier_sum(m->pool, pieces, PROTO_CHECKSUM_KERNEL, sum);
		if (memcmp(m->checksum, sum, sizeof(sum)) != 0)
			return false;
		if (!always)
			return true;
	}
	prefixd_carrier_sum(m->pool, pieces, PROTO_CHECKSUM_XXH3_128, sum);
	if (m->checksum_kind == PROTO_CHECKSUM_XXH3_128 &&
	    memcmp(m->checksum, sum, sizeof(sum)) != 0)
		return false;
	memcpy(m->checksum, sum, sizeof(sum));
	m->summed = true;
	return true;
}
