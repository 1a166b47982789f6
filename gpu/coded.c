/*
 * coded.c - see coded.h: packed and unpacked on this processor.
 */
#include "gpu/coded.h"

#include "gpu/codec.h"

bool gpu_coded_ok(const struct gpu_coded *c, uint64_t len)
{
	const struct gpu_geometry *g = &c->geometry;
	unsigned __int128 piece;

	if ((c->codec != GPU_CODEC_INT8 && c->codec != GPU_CODEC_E4M3) || c->n_pieces == 0 ||
	    c->n_pieces > GPU_CODED_PIECES_MAX || g->order > GPU_ORDER_HND ||
	    (g->element != GPU_ELEMENT_F16 && g->element != GPU_ELEMENT_BF16))
		return false;
	for (uint32_t i = c->n_pieces; i < GPU_CODED_PIECES_MAX; i++)
		if (gpu_coded_exact(c, i))
			return false;
	/* 32 bits each: three of them fit. */
	piece = (unsigned __int128)g->tokens * g->heads * g->dim * 2;
	return piece > 0 && piece <= INT32_MAX && len <= INT32_MAX && piece * c->n_pieces == len;
}

/* Where the pieces lie that are coded: `base` has room for all. */
static struct gpu_layout coded_pieces(const struct gpu_coded *c, const void *block, uint64_t *base)
{
	const uint64_t piece = gpu_coded_piece_len(c);
	struct gpu_layout layout = {
		.base = (uintptr_t)base,
		.piece_bytes = (uint32_t)piece,
	};

	for (uint32_t i = 0; i < c->n_pieces; i++)
		if (!gpu_coded_exact(c, i))
			base[layout.n_pieces++] = (uintptr_t)block + i * piece;
	return layout;
}

/* Bytes of the packed form before its exact pieces. */
static uint64_t exact_at(const struct gpu_coded *c)
{
	return gpu_coded_bytes(c) - gpu_coded_n_exact(c) * gpu_coded_exact_step(c);
}

bool gpu_coded_encode(const struct gpu_coded *c, const void *block, void *out)
{
	const uint64_t piece = gpu_coded_piece_len(c), step = gpu_coded_exact_step(c);
	uint64_t base[GPU_CODED_PIECES_MAX];
	struct gpu_layout layout = coded_pieces(c, block, base);
	uint8_t *p = (uint8_t *)out + exact_at(c);
	const uint32_t id = 0;
	uint32_t raw = 0;

	if (layout.n_pieces > 0 && gpu_encode(gpu_codec_best(), &layout, &c->geometry,
					      (enum gpu_codec)c->codec, &id, 1, out, 0, &raw) > 0)
		return false;
	for (uint32_t i = 0; i < c->n_pieces; i++) {
		if (!gpu_coded_exact(c, i))
			continue;
		memcpy(p, (const uint8_t *)block + i * piece, piece);
		memset(p + piece, 0, step - piece);
		p += step;
	}
	return true;
}

void gpu_coded_decode(const struct gpu_coded *c, const void *in, void *block)
{
	const uint64_t piece = gpu_coded_piece_len(c);
	uint64_t base[GPU_CODED_PIECES_MAX];
	struct gpu_layout layout = coded_pieces(c, block, base);
	const uint8_t *p = (const uint8_t *)in + exact_at(c);
	const uint32_t id = 0;

	if (layout.n_pieces > 0)
		gpu_decode(gpu_codec_best(), &layout, &c->geometry, (enum gpu_codec)c->codec, &id,
			   1, in, 0);
	for (uint32_t i = 0; i < c->n_pieces; i++) {
		if (!gpu_coded_exact(c, i))
			continue;
		memcpy((uint8_t *)block + i * piece, p, piece);
		p += gpu_coded_exact_step(c);
	}
}
