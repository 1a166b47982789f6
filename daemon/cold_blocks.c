/*
 * cold_blocks.c - cold.h's blocks: coded and decoded on this processor.
 */
#include "daemon/cold.h"
#include "gpu/codec.h"

#define PIECES_MAX (2 * PREFIXD_COLD_LAYERS_MAX)

static uint64_t raw_step(const struct prefixd_cold *cold)
{
	return (prefixd_cold_piece_bytes(cold) + GPU_CODED_ALIGN - 1) &
	       ~(uint64_t)(GPU_CODED_ALIGN - 1);
}

static struct gpu_geometry geometry_of(const struct prefixd_cold *cold)
{
	return (struct gpu_geometry){
		.tokens = cold->tokens,
		.heads = cold->heads,
		.dim = cold->dim,
		.order = cold->order,
		.element = cold->element,
	};
}

/* Where the pieces lie that are coded: `base` has room for PIECES_MAX. */
static struct gpu_layout coded_pieces(const struct prefixd_cold *cold, const void *block,
				      uint64_t *base)
{
	const uint64_t piece = prefixd_cold_piece_bytes(cold);
	struct gpu_layout layout = {
		.base = (uintptr_t)base,
		.piece_bytes = (uint32_t)piece,
	};

	for (uint32_t i = 0; i < 2 * cold->layers; i++)
		if (!prefixd_cold_exact(cold, i / 2))
			base[layout.n_pieces++] = (uintptr_t)block + i * piece;
	return layout;
}

bool prefixd_cold_encode(const struct prefixd_cold *cold, const void *block, void *out)
{
	const uint64_t piece = prefixd_cold_piece_bytes(cold), step = raw_step(cold);
	const struct gpu_geometry geometry = geometry_of(cold);
	uint64_t base[PIECES_MAX];
	struct gpu_layout layout = coded_pieces(cold, block, base);
	const uint32_t id = 0;
	uint32_t raw = 0;
	uint8_t *p = out;

	if (layout.n_pieces > 0 &&
	    gpu_encode(gpu_codec_best(), &layout, &geometry, (enum gpu_codec)cold->codec, &id, 1,
		       out, 0, &raw) > 0)
		return false;
	p += layout.n_pieces * gpu_coded_piece_bytes(cold->tokens, cold->heads, cold->dim);
	for (uint32_t i = 0; i < 2 * cold->layers; i++) {
		if (!prefixd_cold_exact(cold, i / 2))
			continue;
		memcpy(p, (const uint8_t *)block + i * piece, piece);
		memset(p + piece, 0, step - piece);
		p += step;
	}
	return true;
}

void prefixd_cold_decode(const struct prefixd_cold *cold, const void *in, void *block)
{
	const uint64_t piece = prefixd_cold_piece_bytes(cold);
	const struct gpu_geometry geometry = geometry_of(cold);
	uint64_t base[PIECES_MAX];
	struct gpu_layout layout = coded_pieces(cold, block, base);
	const uint8_t *p = in;
	const uint32_t id = 0;

	if (layout.n_pieces > 0)
		gpu_decode(gpu_codec_best(), &layout, &geometry, (enum gpu_codec)cold->codec, &id,
			   1, in, 0);
	p += layout.n_pieces * gpu_coded_piece_bytes(cold->tokens, cold->heads, cold->dim);
	for (uint32_t i = 0; i < 2 * cold->layers; i++) {
		if (!prefixd_cold_exact(cold, i / 2))
			continue;
		memcpy((uint8_t *)block + i * piece, p, piece);
		p += raw_step(cold);
	}
}
