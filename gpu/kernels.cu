/*
 * kernels.cu - gather, scatter, coding and checksums on a GPU; gpu/kernels.h says what they do.
 *
 * One warp takes one tile of work at a time, and warps share nothing but the words that results
 * are added to.  So grids of any size work: a small one on a stream of low priority moves blocks
 * without taking the device from an engine.  All is read once, written once, and kept in no cache.
 *
 * A file that host compilers take too (tests/kernels), and C++ only as far as that saves writing
 * the same function for each type.
 */
#include "gpu/kernels.h"

#include "gpu/codec_number.h"

#ifdef __CUDACC__
#define GPU_UNROLL _Pragma("unroll")
#else
#define GPU_UNROLL
#endif

#define ALL_LANES 0xffffffffu
#define KERNEL    extern "C" __global__ void __launch_bounds__(GPU_KERNEL_THREADS)

/* What this warp does: tiles `first`, `first` + `step`, ... */
struct warp {
	uint32_t lane, first, step;
};

static __device__ __forceinline__ struct warp this_warp(void)
{
	const uint32_t warps = blockDim.x / 32;
	struct warp w;

	w.lane = threadIdx.x % 32;
	w.first = blockIdx.x * warps + threadIdx.x / 32;
	w.step = gridDim.x * warps;
	return w;
}

static __device__ __forceinline__ uint64_t piece_at(const struct gpu_layout &l, uint32_t s,
						    uint32_t id)
{
	return ((const uint64_t *)l.base)[s] + id * l.stride;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ void move_tile(uint64_t dst, uint64_t src, uint32_t len,
						 uint32_t lane)
{
	if (((dst | src | len) & 15) != 0) {
		for (uint32_t i = 2 * lane; i < len; i += 64)
			*(uint16_t *)(dst + i) = *(const uint16_t *)(src + i);
		return;
	}
	const uint4 *from = (const uint4 *)src + lane;
	uint4 *to = (uint4 *)dst + lane;

	static_assert(GPU_KERNEL_TILE == 4 * 32 * sizeof(uint4), "four vectors per lane");
	if (len == GPU_KERNEL_TILE) {
		const uint4 a = __ldcs(from), b = __ldcs(from + 32);
		const uint4 c = __ldcs(from + 64), d = __ldcs(from + 96);

		__stcs(to, a);
		__stcs(to + 32, b);
		__stcs(to + 64, c);
		__stcs(to + 96, d);
		return;
	}
	for (uint32_t v = lane; v < len / 16; v += 32, from += 32, to += 32)
		__stcs(to, __ldcs(from));
}

template <bool GATHER>
static __device__ __forceinline__ void move(const struct gpu_layout &l, const uint32_t *ids,
					    uint32_t n, uint64_t packed, uint64_t packed_stride)
{
	const struct warp w = this_warp();
	const uint32_t tiles = (l.piece_bytes + GPU_KERNEL_TILE - 1) / GPU_KERNEL_TILE;
	const uint32_t total = n * l.n_pieces * tiles;

	for (uint32_t t = w.first; t < total; t += w.step) {
		const uint32_t piece = t / tiles, i = piece / l.n_pieces, s = piece % l.n_pieces;
		const uint32_t off = t % tiles * GPU_KERNEL_TILE, left = l.piece_bytes - off;
		const uint32_t len = left < GPU_KERNEL_TILE ? left : GPU_KERNEL_TILE;
		const uint64_t at = piece_at(l, s, ids[i]) + off;
		const uint64_t flat =
			packed + i * packed_stride + (uint64_t)s * l.piece_bytes + off;

		if (GATHER)
			move_tile(flat, at, len, w.lane);
		else
			move_tile(at, flat, len, w.lane);
	}
}

KERNEL gpu_kernel_gather(struct gpu_layout l, const uint32_t *ids, uint32_t n, void *out,
			 uint64_t out_stride)
{
	move<true>(l, ids, n, (uint64_t)out, out_stride);
}

KERNEL gpu_kernel_scatter(struct gpu_layout l, const uint32_t *ids, uint32_t n, const void *in,
			  uint64_t in_stride)
{
	move<false>(l, ids, n, (uint64_t)in, in_stride);
}

/* Block from_ids[i] of one layout to block to_ids[i] of the other; pieces are of the same sizes. */
KERNEL gpu_kernel_move(struct gpu_layout from, const uint32_t *from_ids, struct gpu_layout to,
		       const uint32_t *to_ids, uint32_t n)
{
	const struct warp w = this_warp();
	const uint32_t tiles = (from.piece_bytes + GPU_KERNEL_TILE - 1) / GPU_KERNEL_TILE;
	const uint32_t total = n * from.n_pieces * tiles;

	for (uint32_t t = w.first; t < total; t += w.step) {
		const uint32_t piece = t / tiles, i = piece / from.n_pieces,
			       s = piece % from.n_pieces;
		const uint32_t off = t % tiles * GPU_KERNEL_TILE, left = from.piece_bytes - off;

		move_tile(piece_at(to, s, to_ids[i]) + off, piece_at(from, s, from_ids[i]) + off,
			  left < GPU_KERNEL_TILE ? left : GPU_KERNEL_TILE, w.lane);
	}
}

/* ---- coding ---------------------------------------------------------------------------------- */

/*
 * A row is taken by the least power of two of lanes, `width`, that holds it with 8 elements per
 * lane, or by the whole warp in turns; so a warp takes 32 / width rows at a time, and ROUNDS of
 * those are in flight, which is what registers allow.  Rows whose elements do not lie in vectors
 * are taken one after the other, 2 bytes per lane at a time.
 */
#define ROUNDS 2u

struct shape {
	uint32_t rows, width, per_round, per_tile, tiles;
	uint64_t scales_at, coded;
};

static __device__ __forceinline__ struct shape shape_of(const struct gpu_geometry &g)
{
	struct shape p;

	p.rows = g.tokens * g.heads;
	p.width = 1;
	while (p.width < 32 && 8 * p.width < g.dim)
		p.width *= 2;
	p.per_round = 32 / p.width;
	p.per_tile = ROUNDS * p.per_round;
	p.tiles = (p.rows + p.per_tile - 1) / p.per_tile;
	p.scales_at = gpu_coded_scales_at(g.tokens, g.heads, g.dim);
	p.coded = gpu_coded_piece_bytes(g.tokens, g.heads, g.dim);
	return p;
}

/* A row's place among the codes; `row` is its place in the piece. */
static __device__ __forceinline__ uint32_t row_out(const struct gpu_geometry &g, uint32_t row)
{
	return g.order == GPU_ORDER_HND ? row : row % g.heads * g.tokens + row / g.heads;
}

static __device__ __forceinline__ bool in_vectors(const struct gpu_geometry &g, uint64_t piece)
{
	return g.dim % 8 == 0 && piece % 16 == 0;
}

static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
	return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The largest magnitude among eight elements and `max`. */
static __device__ __forceinline__ uint32_t max_8(const uint4 &v, uint32_t max)
{
	GPU_UNROLL
	for (int i = 0; i < 4; i++) {
		max = larger(max, word_of(v, i) & 0x7fffu);
		max = larger(max, word_of(v, i) >> 16 & 0x7fffu);
	}
	return max;
}

/* The largest of each `width` lanes, in all of them. */
static __device__ __forceinline__ uint32_t max_of_row(uint32_t max, uint32_t width)
{
	for (uint32_t o = width / 2; o; o /= 2)
		max = larger(max, __shfl_xor_sync(ALL_LANES, max, o));
	return max;
}

template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ uint2 encode_8(const uint4 &v, float inverse)
{
	uint32_t codes[2] = { 0, 0 };

	GPU_UNROLL
	for (int i = 0; i < 8; i++) {
		const uint32_t x = word_of(v, i / 2) >> 16 * (i % 2) & 0xffffu;

		codes[i / 4] |= gpu_codec_code(CODEC, gpu_element_to_f32(ELEMENT, x) * inverse)
				<< 8 * (i % 4);
	}
	return make_uint2(codes[0], codes[1]);
}

template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ uint4 decode_8(const uint2 &codes, float scale)
{
	uint32_t words[4] = { 0, 0, 0, 0 };

	GPU_UNROLL
	for (int i = 0; i < 8; i++) {
		const uint32_t code = (i < 4 ? codes.x : codes.y) >> 8 * (i % 4) & 0xffu;
		const uint32_t y =
			gpu_f32_to_element(ELEMENT, gpu_codec_value(CODEC, code) * scale);

		words[i / 2] |= y << 16 * (i % 2);
	}
	return make_uint4(words[0], words[1], words[2], words[3]);
}

/* The scale of a row, stored by one lane; false, and the block marked, where it has none. */
template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ uint32_t scale_row(uint32_t max, bool store, uint8_t *at,
						     uint32_t *raw)
{
	const uint32_t scale = gpu_codec_scale(CODEC, gpu_element_to_f32(ELEMENT, max));

	if (store) {
		*(uint16_t *)at = (uint16_t)scale;
		if (max >= gpu_element_limit(ELEMENT))
			atomicOr(raw, 1u);
	}
	return scale;
}

/* Rows `first` to `first` + per_tile - 1 of a piece in vectors. */
template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ void encode_tile(const struct gpu_geometry &g,
						   const struct shape &p, uint64_t piece,
						   uint32_t first, uint8_t *packed, uint32_t lane,
						   uint32_t *raw)
{
	const uint32_t sub = lane / p.width, at = lane % p.width, vectors = g.dim / 8;
	uint4 v[ROUNDS];
	uint32_t max[ROUNDS];

	GPU_UNROLL
	for (uint32_t r = 0; r < ROUNDS; r++) {
		const uint32_t row = first + r * p.per_round + sub;
		const uint4 *from = (const uint4 *)piece + (uint64_t)row * vectors;

		v[r] = make_uint4(0, 0, 0, 0);
		max[r] = 0;
		if (row < p.rows && at < vectors)
			v[r] = __ldcs(from + at);
		if (row < p.rows) /* the rest of a long row */
			for (uint32_t i = at + p.width; i < vectors; i += p.width)
				max[r] = max_8(from[i], max[r]);
	}
	GPU_UNROLL
	for (uint32_t r = 0; r < ROUNDS; r++) {
		const uint32_t row = first + r * p.per_round + sub;
		const uint32_t m = max_of_row(max_8(v[r], max[r]), p.width);

		if (row >= p.rows)
			continue;
		const uint4 *from = (const uint4 *)piece + (uint64_t)row * vectors;
		const uint32_t to = row_out(g, row);
		uint2 *codes = (uint2 *)packed + (uint64_t)to * vectors;
		const float inverse = gpu_codec_inverse(scale_row<ELEMENT, CODEC>(
			m, at == 0, packed + p.scales_at + 2 * (uint64_t)to, raw));

		if (at < vectors)
			__stcs(codes + at, encode_8<ELEMENT, CODEC>(v[r], inverse));
		for (uint32_t i = at + p.width; i < vectors; i += p.width)
			__stcs(codes + i, encode_8<ELEMENT, CODEC>(from[i], inverse));
	}
}

/* The same rows, element by element. */
template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ void encode_odd(const struct gpu_geometry &g,
						  const struct shape &p, uint64_t piece,
						  uint32_t first, uint8_t *packed, uint32_t lane,
						  uint32_t *raw)
{
	for (uint32_t row = first; row < p.rows && row < first + p.per_tile; row++) {
		const uint16_t *x = (const uint16_t *)piece + (uint64_t)row * g.dim;
		const uint32_t to = row_out(g, row);
		uint8_t *codes = packed + (uint64_t)to * g.dim;
		uint32_t max = 0;

		for (uint32_t i = lane; i < g.dim; i += 32)
			max = larger(max, x[i] & 0x7fffu);
		max = max_of_row(max, 32);
		const float inverse = gpu_codec_inverse(scale_row<ELEMENT, CODEC>(
			max, lane == 0, packed + p.scales_at + 2 * (uint64_t)to, raw));

		for (uint32_t i = lane; i < g.dim; i += 32)
			codes[i] = (uint8_t)gpu_codec_code(
				CODEC, gpu_element_to_f32(ELEMENT, x[i]) * inverse);
	}
}

/* The bytes of a coded piece that hold nothing: fewer than 16, and fewer than 64. */
static __device__ __forceinline__ void zero_gaps(const struct gpu_geometry &g,
						 const struct shape &p, uint8_t *packed,
						 uint32_t lane)
{
	const uint64_t codes = (uint64_t)p.rows * g.dim;
	const uint64_t end = p.scales_at + 2 * (uint64_t)p.rows;

	if (codes + lane < p.scales_at)
		packed[codes + lane] = 0;
	for (uint64_t i = end + lane; i < p.coded; i += 32)
		packed[i] = 0;
}

template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ void encode(const struct gpu_layout &l,
					      const struct gpu_geometry &g, const uint32_t *ids,
					      uint32_t n, uint8_t *out, uint64_t out_stride,
					      uint32_t *raw)
{
	const struct warp w = this_warp();
	const struct shape p = shape_of(g);
	const uint32_t total = n * l.n_pieces * p.tiles;

	for (uint32_t t = w.first; t < total; t += w.step) {
		const uint32_t piece = t / p.tiles, i = piece / l.n_pieces, s = piece % l.n_pieces;
		const uint32_t first = t % p.tiles * p.per_tile;
		const uint64_t from = piece_at(l, s, ids[i]);
		uint8_t *packed = out + i * out_stride + s * p.coded;

		if (first == 0)
			zero_gaps(g, p, packed, w.lane);
		if (in_vectors(g, from))
			encode_tile<ELEMENT, CODEC>(g, p, from, first, packed, w.lane, raw + i);
		else
			encode_odd<ELEMENT, CODEC>(g, p, from, first, packed, w.lane, raw + i);
	}
}

template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ void decode_tile(const struct gpu_geometry &g,
						   const struct shape &p, uint64_t piece,
						   uint32_t first, const uint8_t *packed,
						   uint32_t lane)
{
	const uint32_t sub = lane / p.width, at = lane % p.width, vectors = g.dim / 8;

	GPU_UNROLL
	for (uint32_t r = 0; r < ROUNDS; r++) {
		const uint32_t row = first + r * p.per_round + sub;

		if (row >= p.rows)
			break;
		const uint32_t from = row_out(g, row);
		const uint2 *codes = (const uint2 *)packed + (uint64_t)from * vectors;
		const float scale = gpu_bf16_to_f32(
			*(const uint16_t *)(packed + p.scales_at + 2 * (uint64_t)from));
		uint4 *to = (uint4 *)piece + (uint64_t)row * vectors;

		for (uint32_t i = at; i < vectors; i += p.width)
			__stcs(to + i, decode_8<ELEMENT, CODEC>(__ldcs(codes + i), scale));
	}
}

template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ void decode_odd(const struct gpu_geometry &g,
						  const struct shape &p, uint64_t piece,
						  uint32_t first, const uint8_t *packed,
						  uint32_t lane)
{
	for (uint32_t row = first; row < p.rows && row < first + p.per_tile; row++) {
		const uint32_t from = row_out(g, row);
		const uint8_t *codes = packed + (uint64_t)from * g.dim;
		const float scale = gpu_bf16_to_f32(
			*(const uint16_t *)(packed + p.scales_at + 2 * (uint64_t)from));
		uint16_t *y = (uint16_t *)piece + (uint64_t)row * g.dim;

		for (uint32_t i = lane; i < g.dim; i += 32)
			y[i] = (uint16_t)gpu_f32_to_element(
				ELEMENT, gpu_codec_value(CODEC, codes[i]) * scale);
	}
}

template <uint32_t ELEMENT, uint32_t CODEC>
static __device__ __forceinline__ void decode(const struct gpu_layout &l,
					      const struct gpu_geometry &g, const uint32_t *ids,
					      uint32_t n, const uint8_t *in, uint64_t in_stride)
{
	const struct warp w = this_warp();
	const struct shape p = shape_of(g);
	const uint32_t total = n * l.n_pieces * p.tiles;

	for (uint32_t t = w.first; t < total; t += w.step) {
		const uint32_t piece = t / p.tiles, i = piece / l.n_pieces, s = piece % l.n_pieces;
		const uint32_t first = t % p.tiles * p.per_tile;
		const uint64_t to = piece_at(l, s, ids[i]);
		const uint8_t *packed = in + i * in_stride + s * p.coded;

		if (in_vectors(g, to))
			decode_tile<ELEMENT, CODEC>(g, p, to, first, packed, w.lane);
		else
			decode_odd<ELEMENT, CODEC>(g, p, to, first, packed, w.lane);
	}
}

#define CODING(element, ELEMENT, codec, CODEC)                                                    \
	KERNEL gpu_kernel_encode_##element##_##codec(                                             \
		struct gpu_layout l, struct gpu_geometry g, const uint32_t *ids, uint32_t n,      \
		uint8_t *out, uint64_t out_stride, uint32_t *raw)                                 \
	{                                                                                         \
		encode<ELEMENT, CODEC>(l, g, ids, n, out, out_stride, raw);                       \
	}                                                                                         \
	KERNEL gpu_kernel_decode_##element##_##codec(                                             \
		struct gpu_layout l, struct gpu_geometry g, const uint32_t *ids, uint32_t n,      \
		const uint8_t *in, uint64_t in_stride)                                            \
	{                                                                                         \
		decode<ELEMENT, CODEC>(l, g, ids, n, in, in_stride);                              \
	}

CODING(f16, GPU_ELEMENT_F16, int8, GPU_CODEC_INT8)
CODING(f16, GPU_ELEMENT_F16, e4m3, GPU_CODEC_E4M3)
CODING(bf16, GPU_ELEMENT_BF16, int8, GPU_CODEC_INT8)
CODING(bf16, GPU_ELEMENT_BF16, e4m3, GPU_CODEC_E4M3)

/* ---- checksum -------------------------------------------------------------------------------- */

/* 16 bytes of a block, from byte `off` on; zeros behind its end. */
static __device__ __forceinline__ uint4 block_vector(const struct gpu_layout &l, uint32_t id,
						     uint64_t off, uint64_t len)
{
	uint32_t words[4] = { 0, 0, 0, 0 };
	const uint32_t s = (uint32_t)(off / l.piece_bytes);
	uint32_t in_piece = (uint32_t)(off % l.piece_bytes);

	if (off >= len)
		return make_uint4(0, 0, 0, 0);
	const uint64_t at = piece_at(l, s, id) + in_piece;

	if (at % 16 == 0 && in_piece + 16 <= l.piece_bytes)
		return __ldcs((const uint4 *)at);
	for (uint32_t i = 0, piece = s; i < 16 && off + i < len; i += 2, in_piece += 2) {
		if (in_piece == l.piece_bytes) {
			in_piece = 0;
			piece++;
		}
		words[i / 4] |= (uint32_t)*(const uint16_t *)(piece_at(l, piece, id) + in_piece)
				<< 8 * (i % 4);
	}
	return make_uint4(words[0], words[1], words[2], words[3]);
}

/* The keys of one vector: its own four, and the next four. */
struct keys {
	uint32_t k[8];
};

static __device__ __forceinline__ struct keys keys_of(uint32_t vector)
{
	struct keys keys;

	GPU_UNROLL
	for (int i = 0; i < 8; i++)
		keys.k[i] = GPU_CHECKSUM_KEY(4 * vector + i);
	return keys;
}

static __device__ __forceinline__ uint64_t products(const uint4 &v, const uint32_t *k)
{
	return (uint64_t)(v.x + k[0]) * (v.y + k[1]) + (uint64_t)(v.z + k[2]) * (v.w + k[3]);
}

static __device__ __forceinline__ uint64_t sum_of_warp(uint64_t v)
{
	GPU_UNROLL
	for (int o = 16; o; o /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, o);
	return v;
}

KERNEL gpu_kernel_checksum(struct gpu_layout l, const uint32_t *ids, uint32_t n,
			   unsigned long long *sums)
{
	const struct warp w = this_warp();
	const uint64_t len = (uint64_t)l.n_pieces * l.piece_bytes;
	const uint32_t stripes = (uint32_t)((len + GPU_CHECKSUM_STRIPE - 1) / GPU_CHECKSUM_STRIPE);
	const struct keys k0 = keys_of(w.lane), k1 = keys_of(w.lane + 32);

	for (uint32_t t = w.first; t < n * stripes; t += w.step) {
		const uint32_t i = t / stripes, stripe = t % stripes;
		const uint64_t off = (uint64_t)stripe * GPU_CHECKSUM_STRIPE + 16 * w.lane;
		const uint4 x = block_vector(l, ids[i], off, len);
		const uint4 y = block_vector(l, ids[i], off + 512, len);
		const uint64_t a = sum_of_warp(products(x, k0.k) + products(y, k1.k));
		const uint64_t b = sum_of_warp(products(x, k0.k + 4) + products(y, k1.k + 4));

		if (w.lane == 0) {
			atomicAdd(&sums[2 * i], gpu_checksum_mix(a, stripe, len));
			atomicAdd(&sums[2 * i + 1], gpu_checksum_mix(b, stripe, ~len));
		}
	}
}
