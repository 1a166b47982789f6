/*
 * kernels.h - what the kernels, the processor's versions of them and their tests agree on: where
 * the bytes of a block lie, how a coded block is packed, and what a checksum is.
 *
 * Plain C that is C++ as well, with no include but <stdint.h>.  Everything is little-endian.
 *
 * Layout.  A block is `n_pieces` pieces of `piece_bytes`.  Piece s of block `id` begins at
 * base[s] + id * stride.  So one description serves
 *     a pool of whole blocks      base[s] = pool + s * piece_bytes, stride = the slot's
 *     an engine's cache by layer  base[2 * l + v] = layer l's tensor + v * half of its length,
 *                                 stride = piece_bytes
 * and in the packed form of a block that is not coded its pieces follow each other without a gap.
 * Addresses, strides and sizes are multiples of 2; where all three are multiples of 16 a GPU
 * moves 16 bytes at a time, else 2.
 *
 * Geometry.  A piece holds `heads` heads of `tokens` tokens of `dim` elements of 2 bytes, with the
 * tokens outermost (NHD) or the heads (HND).  piece_bytes = 2 * tokens * heads * dim.  A row is the
 * `dim` elements of one token and head: contiguous in both orders.
 *
 * Coded block.  n_pieces coded pieces, each of gpu_coded_piece_bytes(), beginning at multiples of
 * 64 bytes from a beginning that is one too.  A coded piece is
 *     codes   [heads][tokens][dim]  one byte each           rows = heads * tokens
 *     zeros   up to a multiple of 16
 *     scales  [heads][tokens]       bf16, one per row
 *     zeros   up to a multiple of 64
 * Heads are outermost whatever the order of the piece was, so that the heads of a block can be
 * shared out without decoding it, and a block coded from NHD can be decoded to HND.  Pieces do not
 * depend on each other: those that shall stay exact are left out of `base` and gathered apart.
 *
 * Codes.  a is the largest magnitude of a row, x an element, y what comes back; all products of
 * decoding are exact in single precision, so that y is rounded once, to the element's type:
 *     INT8  scale = a / 127 rounded up to bf16, at least 2^-126; code = x / scale, to nearest even
 *           |y - x| <= scale / 2 * (1 + 2^-15) + r(x),  scale <= a / 127 * (1 + 2^-7) or 2^-126
 *     E4M3  scale = the least power of two with a / scale <= 448, at least 2^-124; code = x / scale
 *           in e4m3 (sign, 4 bits of exponent with bias 7, 3 of mantissa), to nearest even
 *           |y - x| <= max(|x| / 16, scale * 2^-10) + r(x),  scale < a / 224 or 2^-124
 * where r(x) is half a step of the element's type at y.  (A row of zeros has scale 0.)  E4M3 of
 * bf16 has r(x) = 0: what it decodes to are always bf16 numbers.
 * The code bytes 0x80 of INT8 and 0x7f, 0xff of E4M3 are never written.
 *
 * A block with an element that is not finite, or not below 1.75 * 2^15 (fp16) or 1.75 * 2^127
 * (bf16), cannot be coded: rounding could make it infinite.  Coding says so per block, and what it
 * wrote for such a block means nothing; the block has to be kept as it is.
 *
 * Checksum.  128 bits over a string of n bytes, which for a block is its pieces one after the
 * other, wherever they lie.  The string is cut into stripes of 1 KiB, the last one filled up with
 * zeros.
 * With the 256 words w of 32 bits of a stripe, keys k and sums modulo 2^64
 *     A = sum over even j of (w[j] + k[j]    ) * (w[j + 1] + k[j + 1])     (inner sums modulo 2^32)
 *     B = sum over even j of (w[j] + k[j + 4]) * (w[j + 1] + k[j + 5])
 * stripe i adds gpu_checksum_mix(A, i, n) to the first half and gpu_checksum_mix(B, i, ~n) to the
 * second.  Sums may be taken in any order, so that a GPU takes all stripes at once.  It guards
 * against accidents: of changes that do not know the keys, about one in 2^64 stays unseen.  It does
 * not tell contents apart that somebody chose.
 */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define GPU_BOTH static __device__ __forceinline__
#else
#define GPU_BOTH static inline
#endif

enum gpu_codec {
	GPU_CODEC_NONE = 0, /* the numbers are part of what is stored */
	GPU_CODEC_INT8 = 1,
	GPU_CODEC_E4M3 = 2,
};

enum gpu_element {
	GPU_ELEMENT_F16 = 1,
	GPU_ELEMENT_BF16 = 2,
};

enum gpu_order {
	GPU_ORDER_NHD = 0,
	GPU_ORDER_HND = 1,
};

/* An argument of kernels. */
struct gpu_layout {
	uint64_t base;   /* address of uint64_t base[n_pieces], where the caller's code runs */
	uint64_t stride; /* between block ids */
	uint32_t n_pieces;
	uint32_t piece_bytes;
};

struct gpu_geometry {
	uint32_t tokens;
	uint32_t heads;
	uint32_t dim;
	uint32_t order;   /* enum gpu_order */
	uint32_t element; /* enum gpu_element */
};

/*
 * The kernels, X(name).  Arguments:
 *     gather    layout, ids, n, out, out_stride             scatter   layout, ids, n, in, in_stride
 *     move      from, from_ids, to, to_ids, n
 *     encode_*  layout, geometry, ids, n, out, out_stride, raw
 *     decode_*  layout, geometry, ids, n, in, in_stride
 *     checksum  layout, ids, n, sums
 * from, to: two layouts of as many pieces of the same bytes; block from_ids[i] of one goes to block
 * to_ids[i] of the other, and nothing that is read is also written.
 * ids: const uint32_t[n], blocks of the layout; out, in: packed block i begins at i * out_stride, a
 * multiple of 64 for coded ones; raw: uint32_t[n], zeroed by the caller, not 0 afterwards where
 * block i cannot be coded; sums: uint64_t[n][2], zeroed by the caller.  A block of threads is
 * one-dimensional, a multiple of 32 and at most GPU_KERNEL_THREADS of them; any number of blocks
 * works.  No shared memory.  At most 2^31 - 1 stripes, or rows, or tiles of 2 KiB, in a call.
 */
#define GPU_KERNELS(X)                 \
	X(gpu_kernel_gather)           \
	X(gpu_kernel_scatter)          \
	X(gpu_kernel_move)             \
	X(gpu_kernel_encode_f16_int8)  \
	X(gpu_kernel_encode_f16_e4m3)  \
	X(gpu_kernel_encode_bf16_int8) \
	X(gpu_kernel_encode_bf16_e4m3) \
	X(gpu_kernel_decode_f16_int8)  \
	X(gpu_kernel_decode_f16_e4m3)  \
	X(gpu_kernel_decode_bf16_int8) \
	X(gpu_kernel_decode_bf16_e4m3) \
	X(gpu_kernel_checksum)

#define GPU_KERNEL_THREADS  256u
#define GPU_KERNEL_TILE     2048u /* bytes that a warp moves at a time, or about as many */
#define GPU_CODED_ALIGN     64u
#define GPU_CHECKSUM_STRIPE 1024u
#define GPU_CHECKSUM_KEYS   260u /* of 32 bits */

/* Magnitudes, as bits, from which on a number is not coded. */
#define GPU_F16_LIMIT  0x7b00u
#define GPU_BF16_LIMIT 0x7f60u

GPU_BOTH uint64_t gpu_coded_scales_at(uint32_t tokens, uint32_t heads, uint32_t dim)
{
	return ((uint64_t)tokens * heads * dim + 15) & ~(uint64_t)15;
}

GPU_BOTH uint64_t gpu_coded_piece_bytes(uint32_t tokens, uint32_t heads, uint32_t dim)
{
	uint64_t len = gpu_coded_scales_at(tokens, heads, dim) + 2 * (uint64_t)tokens * heads;

	return (len + GPU_CODED_ALIGN - 1) & ~(uint64_t)(GPU_CODED_ALIGN - 1);
}

/* Key j; an expression, so that it makes tables too. */
#define GPU_CHECKSUM_W(j) (UINT64_C(0x9e3779b97f4a7c15) * (2 * (uint64_t)(j) + 1))
#define GPU_CHECKSUM_KEY(j) \
	((uint32_t)((GPU_CHECKSUM_W(j) * GPU_CHECKSUM_W(j) + GPU_CHECKSUM_W((j) + 1)) >> 32))

/* What stripe `i` of a string of `len` bytes adds. */
GPU_BOTH uint64_t gpu_checksum_mix(uint64_t sum, uint64_t i, uint64_t len)
{
	uint64_t x = sum + UINT64_C(0x9e3779b97f4a7c15) * (i + 1);

	x ^= len * UINT64_C(0xd1b54a32d192ed03);
	x = (x ^ (x >> 33)) * UINT64_C(0xff51afd7ed558ccd);
	x = (x ^ (x >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
	return x ^ (x >> 33);
}
