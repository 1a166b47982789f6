/*
 * cold.h - how blocks lie below the device: as they are, or coded to half of their size.
 *
 * A pool group whose namespaces asked for a codec keeps its copies in host memory and in Redis
 * coded.  The codes and their error bounds are those of gpu/kernels.h; which layers stay exact is
 * the namespace's wish.  A cold block is
 *
 *     the coded pieces (K, V) of all layers but the exact ones, in their order
 *     the pieces of the exact layers as they are, each filled up with zeros to a multiple of 64
 *
 * and a host slot holds one, and behind it a seal: a checksum of its bytes and of whose they are.
 * So a cold copy is checked before it is decoded, whatever is known of the block it came from.
 *
 * What it guarantees.  A description that came from outside, by OPEN or from an earlier life, is
 * taken only when everything about it is right: sizes that follow from it are then right as well.
 * All of this is pure; any thread may call.
 */
#pragma once

#include "gpu/coded.h"
#include "radix/base.h"

#define PREFIXD_COLD_LAYERS_MAX 256u
#define PREFIXD_COLD_SEAL       16u

/* Of a pool group; no padding, so that two of them can be compared as bytes. */
struct prefixd_cold {
	uint32_t codec; /* enum gpu_codec; NONE: nothing is coded, and all else is 0 */
	uint32_t element, order;
	uint32_t layers, heads, dim, tokens;
	uint8_t exact[PREFIXD_COLD_LAYERS_MAX / 8]; /* a bit for each layer that is not coded */
};

_Static_assert(sizeof(struct prefixd_cold) == 28 + PREFIXD_COLD_LAYERS_MAX / 8, "no padding");

/* ---- cold.c: what is said of it -------------------------------------------------------------- */

/* "none", "int8", "fp8".  False: it is none of these. */
bool prefixd_cold_codec_parse(const char *text, size_t len, uint32_t *ret_codec);
const char *prefixd_cold_codec_to_string(uint32_t codec); /* "?" */
/* "float16", "bfloat16": what can be coded. */
bool prefixd_cold_element_parse(const char *dtype, size_t len, uint32_t *ret_element);
/*
 * "block-major": layer by layer K then V, each [tokens][heads][dim]; "block-major-hnd": each
 * [heads][tokens][dim].  What follows a ';' is the worker's own.  False: another layout.
 */
bool prefixd_cold_layout_parse(const char *layout, size_t len, uint32_t *ret_order);
/* "0-1,31": sets the bits of these layers.  False: no such list, or a layer that is not there. */
bool prefixd_cold_layers_parse(const char *list, size_t len, uint32_t layers, uint8_t *ret_exact);
/* "0-1,31", as short as it can be said. */
const char *prefixd_cold_layers_print(const struct prefixd_cold *cold, char *out, size_t out_len);
/*
 * It describes blocks of block_bytes that coding makes smaller: or nothing is coded, and all is 0.
 */
bool prefixd_cold_ok(const struct prefixd_cold *cold, uint64_t block_bytes);
/* The same as a description of one rank's pieces; something is coded. */
void prefixd_cold_coded(const struct prefixd_cold *cold, struct gpu_coded *ret_coded);
/* Bytes of a cold block: of one rank's piece.  Without a codec: block_bytes. */
uint64_t prefixd_cold_bytes(const struct prefixd_cold *cold, uint64_t block_bytes);
/* Bytes from one host slot to the next: the pieces of all ranks, and if they are coded the seal. */
uint64_t prefixd_cold_stride(const struct prefixd_cold *cold, uint64_t block_bytes,
			     uint32_t n_ranks);

static inline bool prefixd_cold_exact(const struct prefixd_cold *cold, uint32_t layer)
{
	return cold->exact[layer / 8] >> (layer % 8) & 1;
}

static inline uint64_t prefixd_cold_piece_bytes(const struct prefixd_cold *cold)
{
	return 2 * (uint64_t)cold->tokens * cold->heads * cold->dim;
}

/* ---- cold_blocks.c: blocks ------------------------------------------------------------------- */

/*
 * Of a block to its cold one, and back; both begin at multiples of 64.  The first is false when an
 * element cannot be coded (gpu/kernels.h): what was written then means nothing.
 */
bool prefixd_cold_encode(const struct prefixd_cold *cold, const void *block, void *out);
void prefixd_cold_decode(const struct prefixd_cold *cold, const void *in, void *block);
/* cold_seal.c: of cold bytes whose XXH3-128 is `sum`, as the copy of this member. */
void prefixd_cold_seal(const uint8_t sum[16], uint32_t entry, uint64_t generation,
		       uint8_t ret_seal[PREFIXD_COLD_SEAL]);
