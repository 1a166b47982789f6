/*
 * codec.c - see codec.h: the walk over blocks and pieces, and rows in plain C.
 *
 * The rows are written for being read and for being compared with; codec_avx2.c is what runs.
 */
#include "gpu/codec_internal.h"

#include "gpu/codec_number.h"

#ifdef GPU_CODEC_AVX2
#include <cpuid.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed blocks are little-endian");

#define KEYS_4(j)                                                                  \
	GPU_CHECKSUM_KEY(j), GPU_CHECKSUM_KEY((j) + 1), GPU_CHECKSUM_KEY((j) + 2), \
		GPU_CHECKSUM_KEY((j) + 3)
#define KEYS_16(j) KEYS_4(j), KEYS_4((j) + 4), KEYS_4((j) + 8), KEYS_4((j) + 12)
#define KEYS_64(j) KEYS_16(j), KEYS_16((j) + 16), KEYS_16((j) + 32), KEYS_16((j) + 48)

/* Four more than are asked for: whole vectors are loaded. */
_Alignas(64) const uint32_t gpu_checksum_keys[GPU_CHECKSUM_KEYS + 4] = {
	KEYS_64(0), KEYS_64(64), KEYS_64(128), KEYS_64(192), KEYS_4(256), KEYS_4(260),
};

/* ---- rows ------------------------------------------------------------------------------------ */

static bool encode_row(const struct gpu_codec_rows *rows, const uint16_t *x, uint8_t *codes,
		       uint8_t *ret_scale)
{
	uint32_t max = 0, scale;
	uint16_t scale16;
	float inverse;

	for (uint32_t i = 0; i < rows->dim; i++) {
		uint32_t a = x[i] & 0x7fffu;

		max = a > max ? a : max;
	}
	if (max >= gpu_element_limit(rows->element))
		return false;
	scale = gpu_codec_scale(rows->codec, gpu_element_to_f32(rows->element, max));
	inverse = gpu_codec_inverse(scale);
	for (uint32_t i = 0; i < rows->dim; i++)
		codes[i] = (uint8_t)gpu_codec_code(
			rows->codec, gpu_element_to_f32(rows->element, x[i]) * inverse);
	scale16 = (uint16_t)scale;
	memcpy(ret_scale, &scale16, sizeof(scale16));
	return true;
}

static bool encode(const struct gpu_codec_rows *rows)
{
	const uint16_t *x = (const uint16_t *)(uintptr_t)rows->elements;

	for (uint32_t i = 0; i < rows->n; i++)
		if (!encode_row(rows, x + (size_t)i * rows->dim, rows->codes + i * rows->code_step,
				rows->scales + i * rows->scale_step))
			return false;
	return true;
}

static void decode(const struct gpu_codec_rows *rows)
{
	uint16_t *y = (uint16_t *)(uintptr_t)rows->elements;

	for (uint32_t i = 0; i < rows->n; i++) {
		const uint8_t *codes = rows->codes + i * rows->code_step;
		uint16_t scale16;
		float scale;

		memcpy(&scale16, rows->scales + i * rows->scale_step, sizeof(scale16));
		scale = gpu_bf16_to_f32(scale16);
		for (uint32_t k = 0; k < rows->dim; k++)
			*y++ = (uint16_t)gpu_f32_to_element(
				rows->element, gpu_codec_value(rows->codec, codes[k]) * scale);
	}
}

static void sum(const uint8_t *stripes, uint64_t n, uint64_t first, uint64_t len, uint64_t total[2])
{
	const uint32_t *k = gpu_checksum_keys;
	uint32_t w[GPU_CHECKSUM_STRIPE / 4];

	for (uint64_t i = 0; i < n; i++) {
		uint64_t a = 0, b = 0;

		memcpy(w, stripes + i * GPU_CHECKSUM_STRIPE, sizeof(w));
		for (uint32_t j = 0; j < radix_array_size(w); j += 2) {
			a += (uint64_t)(w[j] + k[j]) * (w[j + 1] + k[j + 1]);
			b += (uint64_t)(w[j] + k[j + 4]) * (w[j + 1] + k[j + 5]);
		}
		total[0] += gpu_checksum_mix(a, first + i, len);
		total[1] += gpu_checksum_mix(b, first + i, ~len);
	}
}

const struct gpu_codec_ops gpu_codec_portable = {
	.name = "plain C",
	.encode = encode,
	.decode = decode,
	.sum = sum,
};

const struct gpu_codec_ops *gpu_codec_best(void)
{
#ifdef GPU_CODEC_AVX2
	unsigned a, b, c = 0, d;

	/* clang 14 does not know "f16c". */
	if (__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C))
		return &gpu_codec_avx2;
#endif
	return &gpu_codec_portable;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

uint64_t gpu_raw_bytes(const struct gpu_layout *layout)
{
	if (layout->piece_bytes % 2 || layout->stride % 2)
		return 0;
	return (uint64_t)layout->n_pieces * layout->piece_bytes;
}

uint64_t gpu_coded_block_bytes(const struct gpu_layout *layout, const struct gpu_geometry *g)
{
	uint64_t rows = (uint64_t)g->tokens * g->heads;

	if (!gpu_raw_bytes(layout) || !rows || rows > UINT32_MAX || !g->dim ||
	    (g->order != GPU_ORDER_NHD && g->order != GPU_ORDER_HND) ||
	    (g->element != GPU_ELEMENT_F16 && g->element != GPU_ELEMENT_BF16))
		return 0;
	/* rows times dim does not overflow: both are below 2^32. */
	if (rows * g->dim > UINT32_MAX / 2 || 2 * rows * g->dim != layout->piece_bytes)
		return 0;
	return layout->n_pieces * gpu_coded_piece_bytes(g->tokens, g->heads, g->dim);
}

static uint64_t piece_at(const struct gpu_layout *layout, uint32_t s, uint32_t id)
{
	return ((const uint64_t *)(uintptr_t)layout->base)[s] + id * layout->stride;
}

void gpu_gather(const struct gpu_layout *layout, const uint32_t *ids, uint32_t n, void *out,
		uint64_t out_stride)
{
	for (uint32_t i = 0; i < n; i++) {
		uint8_t *to = (uint8_t *)out + i * out_stride;

		for (uint32_t s = 0; s < layout->n_pieces; s++, to += layout->piece_bytes)
			memcpy(to, (const void *)(uintptr_t)piece_at(layout, s, ids[i]),
			       layout->piece_bytes);
	}
}

void gpu_scatter(const struct gpu_layout *layout, const uint32_t *ids, uint32_t n, const void *in,
		 uint64_t in_stride)
{
	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *from = (const uint8_t *)in + i * in_stride;

		for (uint32_t s = 0; s < layout->n_pieces; s++, from += layout->piece_bytes)
			memcpy((void *)(uintptr_t)piece_at(layout, s, ids[i]), from,
			       layout->piece_bytes);
	}
}

typedef bool (*rows_fn)(const struct gpu_codec_ops *by, const struct gpu_codec_rows *rows);

static bool do_encode(const struct gpu_codec_ops *by, const struct gpu_codec_rows *rows)
{
	return by->encode(rows);
}

static bool do_decode(const struct gpu_codec_ops *by, const struct gpu_codec_rows *rows)
{
	by->decode(rows);
	return true;
}

/* Asks for `len` bytes, which will be read soon. */
static void ask_for(const uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i += 64)
		__builtin_prefetch(p + i);
}

/*
 * All rows of the piece at `piece`: at once with heads outermost, else token by token.  Then what
 * is packed is gone through in small steps far from each other, which processors do not foresee:
 * those of `ahead`, the coded piece to be read next or NULL, are asked for meanwhile.
 */
static bool piece_rows(const struct gpu_codec_ops *by, rows_fn fn, const struct gpu_geometry *g,
		       enum gpu_codec codec, uint64_t piece, uint8_t *packed, const uint8_t *ahead)
{
	uint64_t coded = gpu_coded_piece_bytes(g->tokens, g->heads, g->dim);
	uint64_t step = (coded / g->tokens + 63) / 64 * 64, asked = 0;
	struct gpu_codec_rows rows = {
		.codec = codec,
		.element = g->element,
		.n = g->tokens * g->heads,
		.dim = g->dim,
		.elements = piece,
		.codes = packed,
		.code_step = g->dim,
		.scales = packed + gpu_coded_scales_at(g->tokens, g->heads, g->dim),
		.scale_step = 2,
	};

	if (g->order == GPU_ORDER_HND)
		return fn(by, &rows);
	rows.n = g->heads;
	rows.code_step = (uint64_t)g->tokens * g->dim;
	rows.scale_step = 2 * (uint64_t)g->tokens;
	for (uint32_t t = 0; t < g->tokens; t++) {
		if (ahead && asked < coded)
			ask_for(ahead + asked, radix_min_u64(step, coded - asked));
		asked += step;
		if (!fn(by, &rows))
			return false;
		rows.elements += 2 * (uint64_t)g->heads * g->dim;
		rows.codes += g->dim;
		rows.scales += 2;
	}
	return true;
}

/* The bytes of a coded piece that hold nothing. */
static void zero_gaps(const struct gpu_geometry *g, uint8_t *packed)
{
	uint64_t codes = (uint64_t)g->tokens * g->heads * g->dim;
	uint64_t scales_at = gpu_coded_scales_at(g->tokens, g->heads, g->dim);
	uint64_t end = scales_at + 2 * (uint64_t)g->tokens * g->heads;

	memset(packed + codes, 0, scales_at - codes);
	memset(packed + end, 0, gpu_coded_piece_bytes(g->tokens, g->heads, g->dim) - end);
}

uint32_t gpu_encode(const struct gpu_codec_ops *by, const struct gpu_layout *layout,
		    const struct gpu_geometry *g, enum gpu_codec codec, const uint32_t *ids,
		    uint32_t n, void *out, uint64_t out_stride, uint32_t *ret_raw)
{
	uint64_t coded = gpu_coded_piece_bytes(g->tokens, g->heads, g->dim);
	uint32_t n_raw = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t *packed = (uint8_t *)out + i * out_stride;
		bool ok = true;

		for (uint32_t s = 0; s < layout->n_pieces && ok; s++, packed += coded) {
			zero_gaps(g, packed);
			ok = piece_rows(by, do_encode, g, codec, piece_at(layout, s, ids[i]),
					packed, NULL);
		}
		ret_raw[i] = !ok;
		n_raw += !ok;
	}
	return n_raw;
}

void gpu_decode(const struct gpu_codec_ops *by, const struct gpu_layout *layout,
		const struct gpu_geometry *g, enum gpu_codec codec, const uint32_t *ids, uint32_t n,
		const void *in, uint64_t in_stride)
{
	uint64_t coded = gpu_coded_piece_bytes(g->tokens, g->heads, g->dim);

	for (uint32_t i = 0; i < n; i++) {
		/* decode() of rows only reads here. */
		uint8_t *packed = (uint8_t *)(uintptr_t)in + i * in_stride;

		for (uint32_t s = 0; s < layout->n_pieces; s++, packed += coded) {
			const uint8_t *ahead = packed + coded;

			if (s + 1 == layout->n_pieces)
				ahead = i + 1 < n ? (const uint8_t *)in + (i + 1) * in_stride
						  : NULL;
			(void)piece_rows(by, do_decode, g, codec, piece_at(layout, s, ids[i]),
					 packed, ahead); /* always true */
		}
	}
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* A string that comes in parts: what does not fill a stripe waits in `tail`. */
struct summing {
	const struct gpu_codec_ops *by;
	uint64_t len, n_stripes, sum[2];
	uint32_t n_tail;
	uint8_t tail[GPU_CHECKSUM_STRIPE];
};

static void summing_stripes(struct summing *s, const uint8_t *p, uint64_t n)
{
	s->by->sum(p, n, s->n_stripes, s->len, s->sum);
	s->n_stripes += n;
}

static void summing_add(struct summing *s, const uint8_t *p, uint64_t len)
{
	uint64_t n;

	if (s->n_tail) {
		n = radix_min_u64(GPU_CHECKSUM_STRIPE - s->n_tail, len);
		memcpy(s->tail + s->n_tail, p, n);
		s->n_tail += (uint32_t)n;
		p += n;
		len -= n;
		if (s->n_tail < GPU_CHECKSUM_STRIPE)
			return;
		summing_stripes(s, s->tail, 1);
	}
	n = len / GPU_CHECKSUM_STRIPE;
	summing_stripes(s, p, n);
	s->n_tail = (uint32_t)(len % GPU_CHECKSUM_STRIPE);
	memcpy(s->tail, p + n * GPU_CHECKSUM_STRIPE, s->n_tail);
}

static void summing_end(struct summing *s, uint64_t ret_sum[2])
{
	if (s->n_tail) {
		memset(s->tail + s->n_tail, 0, sizeof(s->tail) - s->n_tail);
		summing_stripes(s, s->tail, 1);
	}
	ret_sum[0] = s->sum[0];
	ret_sum[1] = s->sum[1];
}

void gpu_checksum(const struct gpu_codec_ops *by, const void *p, uint64_t len, uint64_t ret_sum[2])
{
	struct summing s = { .by = by, .len = len };

	if (len)
		summing_add(&s, p, len);
	summing_end(&s, ret_sum);
}

void gpu_checksum_blocks(const struct gpu_codec_ops *by, const struct gpu_layout *layout,
			 const uint32_t *ids, uint32_t n, uint64_t (*ret_sums)[2])
{
	for (uint32_t i = 0; i < n; i++) {
		struct summing s = {
			.by = by,
			.len = (uint64_t)layout->n_pieces * layout->piece_bytes,
		};

		for (uint32_t p = 0; p < layout->n_pieces; p++)
			summing_add(&s, (const uint8_t *)(uintptr_t)piece_at(layout, p, ids[i]),
				    layout->piece_bytes);
		summing_end(&s, ret_sums[i]);
	}
}
