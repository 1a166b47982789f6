/*
 * coded.h - a block and its packed form, by one description: most pieces coded, some as they are.
 *
 * A block is `n_pieces` pieces of one geometry, one after the other.  Its packed form is
 *
 *     the coded pieces of all but the exact ones, in their order   (gpu/kernels.h says of what)
 *     the exact ones as they are, each filled up with zeros to a multiple of 64
 *
 * What it guarantees.  The packed form does not depend on who made it: these functions, or a device
 * that was given the description with a job (gpu.h).
 *
 * What it relies on.  A description is right: gpu_coded_ok().  Both forms begin at multiples of 64
 * where the functions here read and write them.  Nothing is kept; any thread may call.
 */
#pragma once

#include "gpu/kernels.h"
#include "radix/base.h"

#define GPU_CODED_PIECES_MAX 512u

struct gpu_coded {
	struct gpu_geometry geometry; /* of a piece */
	uint32_t codec;               /* enum gpu_codec; not NONE */
	uint32_t n_pieces;
	uint8_t exact[GPU_CODED_PIECES_MAX / 8]; /* a bit for each piece that is not coded */
};

_Static_assert(sizeof(struct gpu_coded) == 28 + GPU_CODED_PIECES_MAX / 8, "no padding");

static inline bool gpu_coded_exact(const struct gpu_coded *c, uint32_t piece)
{
	return c->exact[piece / 8] >> (piece % 8) & 1;
}

/* Bytes of a piece as it is. */
static inline uint64_t gpu_coded_piece_len(const struct gpu_coded *c)
{
	return 2 * (uint64_t)c->geometry.tokens * c->geometry.heads * c->geometry.dim;
}

/* Bytes from an exact piece of the packed form to the next. */
static inline uint64_t gpu_coded_exact_step(const struct gpu_coded *c)
{
	return (gpu_coded_piece_len(c) + GPU_CODED_ALIGN - 1) & ~(uint64_t)(GPU_CODED_ALIGN - 1);
}

static inline uint32_t gpu_coded_n_exact(const struct gpu_coded *c)
{
	uint32_t n = 0;

	for (size_t i = 0; i < sizeof(c->exact); i++)
		n += (uint32_t)__builtin_popcount(c->exact[i]);
	return n;
}

/* Bytes of the packed form: a multiple of 64. */
static inline uint64_t gpu_coded_bytes(const struct gpu_coded *c)
{
	const uint32_t n_exact = gpu_coded_n_exact(c);

	return n_exact * gpu_coded_exact_step(c) +
	       (c->n_pieces - n_exact) * gpu_coded_piece_bytes(c->geometry.tokens,
							       c->geometry.heads, c->geometry.dim);
}

/* It describes blocks of `len` bytes, of less than 2 GiB. */
bool gpu_coded_ok(const struct gpu_coded *c, uint64_t len);
/* False: an element cannot be coded (gpu/kernels.h), and what was written means nothing. */
bool gpu_coded_encode(const struct gpu_coded *c, const void *block, void *out);
void gpu_coded_decode(const struct gpu_coded *c, const void *in, void *block);
