/*
 * codec_avx2.c - rows and stripes by AVX2 and F16C; the same bytes as codec.c.
 *
 * The whole file is compiled for those processors: whoever uses its table has asked before.  A row
 * is taken by 32 elements; what is left over goes through a copy that zeros fill up, so that
 * nothing is read or written outside of a row.
 *
 * The functions are written once for both types and both codes; their callers give constants.
 */
#include "gpu/codec_internal.h"

#include "gpu/codec_number.h"

#include <immintrin.h>

#define always_inline inline __attribute__((always_inline))
#define WIDTH         32u /* elements taken at a time */

/* Single precision, eight numbers each.  With bf16 the even elements of a vector come first. */
struct pair {
	__m256 a, b;
};

static __m256i load(const void *p)
{
	return _mm256_loadu_si256(p);
}

static __m256i high_halves(void)
{
	return _mm256_set1_epi32((int)0xffff0000u);
}

static always_inline struct pair widen(uint32_t element, __m256i x)
{
	if (element == GPU_ELEMENT_F16)
		return (struct pair){ _mm256_cvtph_ps(_mm256_castsi256_si128(x)),
				      _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)) };
	return (struct pair){ _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
			      _mm256_castsi256_ps(_mm256_and_si256(x, high_halves())) };
}

/* ---- coding ---------------------------------------------------------------------------------- */

/* The codes of eight numbers, in 32 bits each; for e4m3 the numbers have no sign. */
static always_inline __m256i code_of(uint32_t codec, __m256 x, __m256 inverse)
{
	__m256 v = _mm256_mul_ps(x, inverse);
	__m256i power, sum;

	if (codec == GPU_CODEC_INT8)
		return _mm256_cvtps_epi32(v);
	/* gpu_e4m3_code() says what this is. */
	power = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7f800000));
	power = _mm256_max_epi32(power, _mm256_set1_epi32(121 << 23));
	sum = _mm256_castps_si256(_mm256_add_ps(
		v, _mm256_castsi256_ps(_mm256_add_epi32(power, _mm256_set1_epi32(20 << 23)))));
	sum = _mm256_add_epi32(_mm256_sub_epi32(sum, power), _mm256_srli_epi32(power, 20));
	return _mm256_sub_epi32(sum, _mm256_set1_epi32((20 << 23) + 8 * 121));
}

static always_inline __m256i encode_32(uint32_t codec, uint32_t element, __m256i x0, __m256i x1,
				       __m256 inverse)
{
	__m256i m0 = x0, m1 = x1, sign, p0, p1, codes;
	struct pair f0, f1;

	if (codec == GPU_CODEC_E4M3) {
		m0 = _mm256_and_si256(x0, _mm256_set1_epi16(0x7fff));
		m1 = _mm256_and_si256(x1, _mm256_set1_epi16(0x7fff));
	}
	f0 = widen(element, m0);
	f1 = widen(element, m1);
	p0 = code_of(codec, f0.a, inverse);
	p1 = code_of(codec, f0.b, inverse);
	if (element == GPU_ELEMENT_F16) {
		p0 = _mm256_packs_epi32(p0, p1);
		p1 = _mm256_packs_epi32(code_of(codec, f1.a, inverse),
					code_of(codec, f1.b, inverse));
		/* Fours: 0 2 4 6 of the halves' first, then 1 3 5 7. */
		codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(p0, p1),
						    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	} else {
		p0 = _mm256_blend_epi16(p0, _mm256_slli_epi32(p1, 16), 0xaa);
		p1 = _mm256_blend_epi16(code_of(codec, f1.a, inverse),
					_mm256_slli_epi32(code_of(codec, f1.b, inverse), 16), 0xaa);
		codes = _mm256_permute4x64_epi64(_mm256_packs_epi16(p0, p1), 0xd8);
	}
	if (codec == GPU_CODEC_E4M3) {
		/* Saturation keeps the sign. */
		sign = _mm256_permute4x64_epi64(_mm256_packs_epi16(x0, x1), 0xd8);
		codes = _mm256_or_si256(codes,
					_mm256_and_si256(sign, _mm256_set1_epi8((char)0x80)));
	}
	return codes;
}

/*
 * A short way for e4m3, whose scales are powers of two: an element's code is its own bits, with
 * another exponent and rounded to three bits of fraction.  Not for elements that are subnormal, or
 * become so, or are 0: those are below `least`.
 */
struct shift {
	__m256i add;   /* to the exponent, and what rounds */
	__m256i least; /* of magnitudes */
};

static always_inline struct shift shift_of(uint32_t element, uint32_t scale)
{
	/* The exponent's field of an element less that of its code. */
	int less = (int)(scale >> 7) - 127 + (element == GPU_ELEMENT_F16 ? 8 : 120);
	int fraction = element == GPU_ELEMENT_F16 ? 10 : 7;
	int least = less + 1 > 1 ? less + 1 : 1;

	return (struct shift){
		_mm256_set1_epi16((short)((1 << (fraction - 4)) - 1 - less * (1 << fraction))),
		_mm256_set1_epi16((short)(least << fraction)),
	};
}

/* 16 codes, in 16 bits each, without their sign. */
static always_inline __m256i shifted(uint32_t element, __m256i m, const struct shift *by)
{
	const int drop = element == GPU_ELEMENT_F16 ? 7 : 4;
	__m256i odd = _mm256_and_si256(_mm256_srli_epi16(m, drop), _mm256_set1_epi16(1));

	return _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(m, by->add), odd), drop);
}

/* False: an element is too small for it. */
static always_inline bool shift_32(uint32_t element, __m256i x0, __m256i x1, const struct shift *by,
				   __m256i *ret_codes)
{
	const __m256i abs = _mm256_set1_epi16(0x7fff);
	__m256i m0 = _mm256_and_si256(x0, abs), m1 = _mm256_and_si256(x1, abs);
	__m256i small = _mm256_cmpgt_epi16(by->least, _mm256_min_epu16(m0, m1)), codes, sign;

	if (!_mm256_testz_si256(small, small))
		return false;
	codes = _mm256_packus_epi16(shifted(element, m0, by), shifted(element, m1, by));
	sign = _mm256_and_si256(_mm256_packs_epi16(x0, x1), _mm256_set1_epi8((char)0x80));
	*ret_codes = _mm256_permute4x64_epi64(_mm256_or_si256(codes, sign), 0xd8);
	return true;
}

static uint32_t max_of(__m256i m)
{
	__m128i h = _mm_max_epu16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));

	/* The least of the complements. */
	h = _mm_minpos_epu16(_mm_xor_si128(h, _mm_set1_epi16(-1)));
	return ~(uint32_t)_mm_cvtsi128_si32(h) & 0xffffu;
}

static always_inline bool encode_row(uint32_t codec, uint32_t element, const uint16_t *x,
				     uint32_t dim, uint8_t *codes, uint8_t *ret_scale)
{
	uint32_t whole = dim - dim % WIDTH, rest = dim % WIDTH, max, scale;
	__m256i m = _mm256_setzero_si256(), abs = _mm256_set1_epi16(0x7fff);
	uint16_t tail[WIDTH], scale16;
	struct shift shift;
	__m256 inverse;

	for (uint32_t i = 0; i < whole; i += WIDTH) {
		m = _mm256_max_epu16(m, _mm256_and_si256(load(x + i), abs));
		m = _mm256_max_epu16(m, _mm256_and_si256(load(x + i + 16), abs));
	}
	if (rest) {
		memset(tail, 0, sizeof(tail));
		memcpy(tail, x + whole, rest * sizeof(*x));
		m = _mm256_max_epu16(m, _mm256_and_si256(load(tail), abs));
		m = _mm256_max_epu16(m, _mm256_and_si256(load(tail + 16), abs));
	}
	max = max_of(m);
	if (max >= gpu_element_limit(element))
		return false;
	scale = gpu_codec_scale(codec, element == GPU_ELEMENT_F16 ? _cvtsh_ss((uint16_t)max)
								  : gpu_bf16_to_f32(max));
	inverse = _mm256_set1_ps(gpu_codec_inverse(scale));
	shift = shift_of(element, scale);
	for (uint32_t i = 0; i < whole; i += WIDTH) {
		__m256i x0 = load(x + i), x1 = load(x + i + 16), c;

		if (codec != GPU_CODEC_E4M3 || !shift_32(element, x0, x1, &shift, &c))
			c = encode_32(codec, element, x0, x1, inverse);
		_mm256_storeu_si256((void *)(codes + i), c);
	}
	if (rest) {
		_mm256_storeu_si256((void *)tail, encode_32(codec, element, load(tail),
							    load(tail + 16), inverse));
		memcpy(codes + whole, tail, rest);
	}
	scale16 = (uint16_t)scale;
	memcpy(ret_scale, &scale16, sizeof(scale16));
	return true;
}

static always_inline bool encode_rows(uint32_t codec, uint32_t element,
				      const struct gpu_codec_rows *rows)
{
	const uint16_t *x = (const uint16_t *)(uintptr_t)rows->elements;

	for (uint32_t i = 0; i < rows->n; i++)
		if (!encode_row(codec, element, x + (size_t)i * rows->dim, rows->dim,
				rows->codes + i * rows->code_step,
				rows->scales + i * rows->scale_step))
			return false;
	return true;
}

static bool encode(const struct gpu_codec_rows *rows)
{
	if (rows->element == GPU_ELEMENT_F16)
		return rows->codec == GPU_CODEC_INT8
			       ? encode_rows(GPU_CODEC_INT8, GPU_ELEMENT_F16, rows)
			       : encode_rows(GPU_CODEC_E4M3, GPU_ELEMENT_F16, rows);
	return rows->codec == GPU_CODEC_INT8 ? encode_rows(GPU_CODEC_INT8, GPU_ELEMENT_BF16, rows)
					     : encode_rows(GPU_CODEC_E4M3, GPU_ELEMENT_BF16, rows);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* bf16 of eight numbers, in 32 bits each.  (What damaged scales make of NaN does not matter.) */
static always_inline __m256i narrow_bf16(__m256 f)
{
	__m256i u = _mm256_castps_si256(f);
	__m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));

	return _mm256_srli_epi32(
		_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
}

/* 16 codes; `scale` is 256 times as much with e4m3: see gpu_e4m3_value(). */
static always_inline __m256i decode_16(uint32_t codec, uint32_t element, __m128i codes,
				       __m256 scale)
{
	__m256i w, a, b;
	__m256 f, g;

	if (codec == GPU_CODEC_INT8) {
		f = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
		g = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
	} else {
		w = _mm256_cvtepu8_epi16(codes);
		w = _mm256_or_si256(
			_mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x7f)), 7),
			_mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0x80)), 8));
		f = _mm256_cvtph_ps(_mm256_castsi256_si128(w));
		g = _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1));
	}
	f = _mm256_mul_ps(f, scale);
	g = _mm256_mul_ps(g, scale);
	if (element == GPU_ELEMENT_F16)
		return _mm256_set_m128i(_mm256_cvtps_ph(g, _MM_FROUND_TO_NEAREST_INT),
					_mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT));
	a = narrow_bf16(f);
	b = narrow_bf16(g);
	return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

/* shift_32()'s way back, for bf16; false: a code is subnormal or 0. */
static always_inline bool unshift_16(__m128i codes, __m256i exponent, __m256i *ret_y)
{
	__m256i w = _mm256_cvtepu8_epi16(codes);
	__m256i m = _mm256_and_si256(w, _mm256_set1_epi16(0x7f));
	__m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), m);

	if (!_mm256_testz_si256(small, small))
		return false;
	*ret_y = _mm256_or_si256(_mm256_add_epi16(_mm256_slli_epi16(m, 4), exponent),
				 _mm256_slli_epi16(_mm256_srli_epi16(w, 7), 15));
	return true;
}

static always_inline void decode_row(uint32_t codec, uint32_t element, uint16_t *y, uint32_t dim,
				     const uint8_t *codes, uint32_t scale)
{
	uint32_t whole = dim - dim % 16, rest = dim % 16;
	__m256 by =
		_mm256_set1_ps(gpu_bf16_to_f32(scale) * (codec == GPU_CODEC_E4M3 ? 256.0f : 1.0f));

	/* A power of two whose products with codes from 2^-6 on are normal numbers. */
	bool power = codec == GPU_CODEC_E4M3 && element == GPU_ELEMENT_BF16 && scale % 128 == 0 &&
		     scale >> 7 >= 8 && scale >> 7 < 247;
	__m256i exponent = _mm256_set1_epi16((short)(((int)(scale >> 7) - 7) * 128));

	for (uint32_t i = 0; i < whole; i += 16) {
		__m128i c = _mm_loadu_si128((const void *)(codes + i));
		__m256i out;

		if (!power || !unshift_16(c, exponent, &out))
			out = decode_16(codec, element, c, by);
		_mm256_storeu_si256((void *)(y + i), out);
	}
	if (rest) {
		uint8_t tail[16] = { 0 };
		uint16_t out[16];

		memcpy(tail, codes + whole, rest);
		_mm256_storeu_si256(
			(void *)out,
			decode_16(codec, element, _mm_loadu_si128((const void *)tail), by));
		memcpy(y + whole, out, rest * sizeof(*y));
	}
}

static always_inline void decode_rows(uint32_t codec, uint32_t element,
				      const struct gpu_codec_rows *rows)
{
	uint16_t *y = (uint16_t *)(uintptr_t)rows->elements;

	for (uint32_t i = 0; i < rows->n; i++) {
		uint16_t scale;

		memcpy(&scale, rows->scales + i * rows->scale_step, sizeof(scale));
		decode_row(codec, element, y + (size_t)i * rows->dim, rows->dim,
			   rows->codes + i * rows->code_step, scale);
	}
}

static void decode(const struct gpu_codec_rows *rows)
{
	if (rows->element == GPU_ELEMENT_F16) {
		if (rows->codec == GPU_CODEC_INT8)
			decode_rows(GPU_CODEC_INT8, GPU_ELEMENT_F16, rows);
		else
			decode_rows(GPU_CODEC_E4M3, GPU_ELEMENT_F16, rows);
	} else if (rows->codec == GPU_CODEC_INT8) {
		decode_rows(GPU_CODEC_INT8, GPU_ELEMENT_BF16, rows);
	} else {
		decode_rows(GPU_CODEC_E4M3, GPU_ELEMENT_BF16, rows);
	}
}

/* ---- checksum -------------------------------------------------------------------------------- */

static uint64_t sum_of(__m256i v)
{
	__m128i h = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

	return (uint64_t)_mm_cvtsi128_si64(_mm_add_epi64(h, _mm_unpackhi_epi64(h, h)));
}

/* Each even word times the odd one behind it. */
static __m256i products(__m256i w)
{
	return _mm256_mul_epu32(w, _mm256_srli_epi64(w, 32));
}

static void sum(const uint8_t *stripes, uint64_t n, uint64_t first, uint64_t len, uint64_t total[2])
{
	const uint32_t *k = gpu_checksum_keys;

	for (uint64_t i = 0; i < n; i++, stripes += GPU_CHECKSUM_STRIPE) {
		__m256i a = _mm256_setzero_si256(), b = a;

		for (uint32_t j = 0; j < GPU_CHECKSUM_STRIPE / 4; j += 8) {
			__m256i w = load(stripes + 4 * j);

			a = _mm256_add_epi64(a, products(_mm256_add_epi32(w, load(k + j))));
			b = _mm256_add_epi64(b, products(_mm256_add_epi32(w, load(k + j + 4))));
		}
		total[0] += gpu_checksum_mix(sum_of(a), first + i, len);
		total[1] += gpu_checksum_mix(sum_of(b), first + i, ~len);
	}
}

const struct gpu_codec_ops gpu_codec_avx2 = {
	.name = "AVX2",
	.encode = encode,
	.decode = decode,
	.sum = sum,
};
