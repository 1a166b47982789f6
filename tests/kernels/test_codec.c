/*
 * test_codec.c - moving, coding and summing blocks: whoever does it, and that all do it alike.
 *
 * Loop tests run over all arrangements, both orders and both types: see each().
 */
#include "gpu/codec_number.h"
#include "tests/kernels/util.h"

#include <malloc.h>
#include <math.h>

/* ck_assert() writes to a pipe each time, which is dear for millions of numbers. */
#define must(x)                                      \
	do {                                         \
		if (!(x))                            \
			ck_abort_msg("not so: " #x); \
	} while (0)

#define N_WAYS (N_ARRANGEMENTS * 4)

static uint64_t seed;

/* Blocks of shape `shape` in way `way`, full of random bytes. */
static void each(struct blocks *b, uint32_t shape, int way)
{
	blocks_new(b, &shapes[shape], (enum arrangement)(way / 4),
		   way & 1 ? GPU_ORDER_HND : GPU_ORDER_NHD,
		   way & 2 ? GPU_ELEMENT_F16 : GPU_ELEMENT_BF16);
	test_rng_fill(&seed, b->mem, b->len);
}

static void fill(struct blocks *b, enum contents contents)
{
	for (uint32_t s = 0; s < b->layout.n_pieces; s++)
		for (uint32_t id = 0; id < N_BLOCKS; id++)
			fill_numbers(&seed, contents, b->geometry.element, blocks_at(b, s, id, 0),
				     b->layout.piece_bytes / 2);
}

/* A buffer for N_IDS packed blocks `stride` apart, full of something. */
static uint8_t *buffer(uint64_t stride)
{
	uint8_t *p = aligned_alloc(64, (N_IDS * stride + 63) / 64 * 64);

	ck_assert_ptr_nonnull(p);
	memset(p, 0xaa, N_IDS * stride);
	return p;
}

static uint8_t *copy_of(const void *from, size_t len)
{
	uint8_t *p = malloc(len);

	ck_assert_ptr_nonnull(p);
	memcpy(p, from, len);
	return p;
}

/* ---- moving ---------------------------------------------------------------------------------- */

START_TEST(gather_takes_each_piece_and_nothing_else)
{
	for (uint32_t shape = 0; shape < N_SHAPES; shape++)
		for (uint32_t who = 0; who < n_who; who++) {
			struct blocks b;
			uint64_t stride;
			uint8_t *out;

			each(&b, shape, _i);
			/* A gap behind each, which stays; not always at a multiple of 16. */
			stride = b.raw_bytes + (_i % 2 ? 6 : 64 - b.raw_bytes % 64);
			out = buffer(stride);
			do_gather(who, &b, out, stride);
			for (uint32_t i = 0; i < N_IDS; i++) {
				for (uint32_t s = 0; s < b.layout.n_pieces; s++)
					ck_assert_mem_eq(out + i * stride +
								 s * b.layout.piece_bytes,
							 blocks_at(&b, s, b.ids[i], 0),
							 b.layout.piece_bytes);
				for (uint64_t k = b.raw_bytes; k < stride; k++)
					ck_assert_uint_eq(out[i * stride + k], 0xaa);
			}
			free(out);
			blocks_free(&b);
		}
}
END_TEST

START_TEST(scatter_writes_each_piece_and_nothing_else)
{
	for (uint32_t shape = 0; shape < N_SHAPES; shape++)
		for (uint32_t who = 0; who < n_who; who++) {
			struct blocks b;
			uint8_t *in, *want;

			each(&b, shape, _i);
			in = buffer(b.raw_bytes);
			test_rng_fill(&seed, in, N_IDS * b.raw_bytes);
			want = copy_of(b.mem, b.len);
			for (uint32_t i = 0; i < N_IDS; i++)
				for (uint32_t s = 0; s < b.layout.n_pieces; s++)
					memcpy(want + ((uint8_t *)blocks_at(&b, s, b.ids[i], 0) -
						       b.mem),
					       in + i * b.raw_bytes + s * b.layout.piece_bytes,
					       b.layout.piece_bytes);
			do_scatter(who, &b, in, b.raw_bytes);
			ck_assert_mem_eq(b.mem, want, b.len);
			free(in);
			free(want);
			blocks_free(&b);
		}
}
END_TEST

/* From every arrangement to every other one, and to blocks of other numbers. */
START_TEST(move_goes_from_layout_to_layout)
{
	static const uint32_t ids[N_IDS] = { 2, 6, 0, 1 };

	for (uint32_t shape = 0; shape < N_SHAPES; shape++)
		for (uint32_t who = 0; who < n_who; who++) {
			struct blocks from, to;
			uint8_t *want, *same;

			each(&from, shape, 4 * (_i / N_ARRANGEMENTS));
			each(&to, shape, 4 * (_i % N_ARRANGEMENTS));
			memcpy(to.ids, ids, sizeof(ids));
			want = copy_of(to.mem, to.len);
			same = copy_of(from.mem, from.len);
			for (uint32_t i = 0; i < N_IDS; i++)
				for (uint32_t s = 0; s < to.layout.n_pieces; s++)
					memcpy(want + ((uint8_t *)blocks_at(&to, s, ids[i], 0) -
						       to.mem),
					       blocks_at(&from, s, from.ids[i], 0),
					       to.layout.piece_bytes);
			do_move((enum who)who, &from, &to);
			ck_assert_mem_eq(to.mem, want, to.len);
			ck_assert_mem_eq(from.mem, same, from.len);
			free(want);
			free(same);
			blocks_free(&from);
			blocks_free(&to);
		}
}
END_TEST

/* ---- numbers --------------------------------------------------------------------------------- */

START_TEST(all_halves_are_read_right)
{
	for (uint32_t h = 0; h < 65536; h++) {
		double f16 = number_of(GPU_ELEMENT_F16, h), bf16 = number_of(GPU_ELEMENT_BF16, h);
		float f = gpu_f16_to_f32(h), g = gpu_bf16_to_f32(h);

		must(isnan(f16) ? isnan(f) : (double)f == f16 && !signbit(f) == !signbit(f16));
		must(isnan(bf16) ? isnan(g) : (double)g == bf16 && !signbit(g) == !signbit(bf16));
		if (!isnan(f16))
			must(gpu_f32_to_f16(f) == h);
		if (!isnan(bf16))
			must(gpu_f32_to_bf16(g) == h);
	}
	must(isnan(gpu_f16_to_f32(gpu_f32_to_f16(NAN))));
	must(isnan(gpu_bf16_to_f32(gpu_f32_to_bf16(NAN))));
}
END_TEST

/* Numbers half way between two neighbours, one step of single precision around, and any. */
START_TEST(rounding_is_to_nearest_even)
{
	const enum gpu_element element = _i ? GPU_ELEMENT_F16 : GPU_ELEMENT_BF16;
	const uint32_t top = _i ? 0x7bffu : 0x7f7fu;

	for (uint32_t h = 0; h <= top; h++) {
		double low = number_of(element, h);
		double high = h < top ? number_of(element, h + 1)
				      : 2 * low - number_of(element, h - 1);
		float mid = (float)(low + (high - low) / 2);

		for (int k = -1; k <= 1; k++) {
			float x = k < 0   ? nextafterf(mid, 0)
				  : k > 0 ? nextafterf(mid, INFINITY)
					  : mid;

			must(gpu_f32_to_element(element, x) == nearest(element, (double)x));
			must(gpu_f32_to_element(element, -x) == nearest(element, (double)-x));
		}
	}
	for (uint32_t i = 0; i < 200000; i++) {
		float x = gpu_float_of((uint32_t)test_rng(&seed));

		if (isfinite(x))
			must(gpu_f32_to_element(element, x) == nearest(element, (double)x));
	}
}
END_TEST

START_TEST(e4m3_rounds_to_nearest_even)
{
	for (uint32_t c = 0; c < 0x7f; c++) {
		double low = e4m3_number(c), high = c < 0x7e ? e4m3_number(c + 1) : low;
		float mid = (float)((low + high) / 2);

		must((double)gpu_e4m3_value(c) == low);
		must((double)gpu_e4m3_value(c | 0x80u) == -low);
		must(gpu_e4m3_code((float)low) == c);
		must(gpu_e4m3_code((float)-low) == (c | 0x80u));
		must(gpu_e4m3_code(mid) == nearest_e4m3((double)mid));
		must(gpu_e4m3_code(nextafterf(mid, 0)) == nearest_e4m3((double)nextafterf(mid, 0)));
		if (c < 0x7e)
			must(gpu_e4m3_code(nextafterf(mid, 500)) ==
			     nearest_e4m3((double)nextafterf(mid, 500)));
	}
	for (uint32_t i = 0; i < 100000; i++) {
		float x = gpu_float_of((uint32_t)test_rng(&seed) & 0xbfffffffu);

		if (fabsf(x) <= 448)
			must(gpu_e4m3_code(x) == nearest_e4m3((double)x));
	}
}
END_TEST

/* ---- coding ---------------------------------------------------------------------------------- */

static const enum gpu_codec codecs[] = { GPU_CODEC_INT8, GPU_CODEC_E4M3 };

static double just_below(double bf16)
{
	return number_of(GPU_ELEMENT_BF16, nearest(GPU_ELEMENT_BF16, bf16) - 1);
}

/* What the format promises of a row. */
static void check_row(const struct blocks *b, enum gpu_codec codec, const uint16_t *was,
		      const uint16_t *is, double scale)
{
	enum gpu_element element = b->geometry.element;
	double a = 0;

	for (uint32_t d = 0; d < b->geometry.dim; d++)
		a = fmax(a, fabs(number_of(element, was[d])));
	if (a == 0)
		must(scale == 0);
	else if (codec == GPU_CODEC_INT8) /* the least bf16 that is enough */
		must(scale == 0x1p-126 ? a / 127 <= scale
				       : a / 127 <= scale && a / 127 > just_below(scale));
	else
		must(a / scale <= 448 && (scale == 0x1p-124 || a / scale > 224));
	for (uint32_t d = 0; d < b->geometry.dim; d++) {
		double x = number_of(element, was[d]), y = number_of(element, is[d]);
		double step = fabs(number_of(element, (is[d] & 0x7fffu) + 1u) - fabs(y));
		double bound = codec == GPU_CODEC_INT8 ? scale / 2 * (1 + 0x1p-15)
						       : fmax(fabs(x) / 16, scale * 0x1p-10);

		if (codec == GPU_CODEC_INT8 || element == GPU_ELEMENT_F16)
			bound += step / 2;
		if (!(fabs(y - x) <= bound))
			ck_abort_msg("%g came back as %g, scale %g", x, y, scale);
	}
}

/* Of all blocks that were packed; `was` is the memory before they were unpacked. */
static void check_bounds(const struct blocks *b, enum gpu_codec codec, const uint8_t *was,
			 const uint8_t *packed)
{
	const struct gpu_geometry *g = &b->geometry;

	for (uint32_t i = 0; i < N_IDS; i++)
		for (uint32_t s = 0; s < b->layout.n_pieces; s++)
			for (uint32_t t = 0; t < g->tokens; t++)
				for (uint32_t h = 0; h < g->heads; h++) {
					const uint16_t *is = blocks_at(b, s, b->ids[i],
								       element_idx(b, t, h, 0));
					const void *old = was + ((const uint8_t *)is - b->mem);

					check_row(
						b, codec, old, is,
						scale_at(b, packed + i * b->coded_bytes, s, t, h));
				}
}

/* Both codecs over a shape, by everyone: the same bytes, and within the bounds. */
static void round_trip(uint32_t shape, int way, enum contents contents, enum gpu_codec codec)
{
	uint8_t *first = NULL, *first_back = NULL;
	uint32_t raw[N_IDS];
	struct blocks b;
	uint8_t *was;

	each(&b, shape, way);
	fill(&b, contents);
	was = copy_of(b.mem, b.len);
	for (uint32_t who = 0; who < n_who; who++) {
		uint8_t *packed = buffer(b.coded_bytes), *back;

		memcpy(b.mem, was, b.len);
		do_encode(who, &b, codec, packed, b.coded_bytes, raw);
		for (uint32_t i = 0; i < N_IDS; i++)
			ck_assert_uint_eq(raw[i], 0);
		ck_assert_mem_eq(b.mem, was, b.len);
		do_decode(who, &b, codec, packed, b.coded_bytes);
		back = copy_of(b.mem, b.len);
		if (who == PLAIN) {
			check_bounds(&b, codec, was, packed);
			first = packed;
			first_back = back;
			continue;
		}
		ck_assert_mem_eq(packed, first, N_IDS * b.coded_bytes);
		ck_assert_mem_eq(back, first_back, b.len);
		free(packed);
		free(back);
	}
	free(first);
	free(first_back);
	free(was);
	blocks_free(&b);
}

START_TEST(coding_keeps_its_bounds_and_is_the_same_everywhere)
{
	for (uint32_t shape = 0; shape < N_SHAPES; shape++)
		for (uint32_t c = 0; c < N_CONTENTS; c++)
			for (uint32_t k = 0; k < radix_array_size(codecs); k++)
				round_trip(shape, _i, (enum contents)c, codecs[k]);
}
END_TEST

/* Every number that can be coded, in rows of near magnitude; codes by another way than products. */
static void every_half(enum gpu_element element, enum gpu_codec codec)
{
	const struct shape shape = { 16, 4, 128, 4 };
	const uint32_t limit = element == GPU_ELEMENT_F16 ? GPU_F16_LIMIT : GPU_BF16_LIMIT;
	uint32_t raw[N_IDS];
	struct blocks b;
	uint8_t *packed;

	blocks_new(&b, &shape, BLOCK_MAJOR, GPU_ORDER_HND, element);
	memset(b.mem, 0, b.len);
	packed = buffer(b.coded_bytes);
	for (uint32_t h = 0; h < 2 * limit; h++) {
		uint32_t in_piece = b.layout.piece_bytes / 2, piece = h / in_piece;

		*blocks_at(&b, piece % 4, b.ids[piece / 4],
			   h % in_piece) = (uint16_t)(h / 2 | (h & 1) << 15);
	}
	for (uint32_t who = 0; who < n_who; who++) {
		do_encode(who, &b, codec, packed, b.coded_bytes, raw);
		for (uint32_t h = 0; h < 2 * limit; h++) {
			uint32_t row = h / 128 % 64, piece = h / 8192, i = piece / 4, s = piece % 4;
			const uint8_t *at = packed + i * b.coded_bytes;
			double scale = scale_at(&b, at, s, row % 16, row / 16);
			double x = number_of(element, h / 2) * (h & 1 ? -1 : 1);
			uint8_t code = code_at(&b, at, s, row % 16, row / 16, h % 128);

			must(raw[i] == 0);
			if (codec == GPU_CODEC_E4M3)
				must(code == nearest_e4m3(scale != 0 ? x / scale : x));
			else
				must(fabs((int8_t)code - (scale != 0 ? x / scale : x)) <=
				     0.5 + 0x1p-16);
		}
	}
	free(packed);
	blocks_free(&b);
}

START_TEST(every_half_gets_the_nearest_code)
{
	every_half(_i & 1 ? GPU_ELEMENT_F16 : GPU_ELEMENT_BF16, codecs[_i / 2]);
}
END_TEST

/* Every code under every scale that is written for the type decodes to the rounded product. */
START_TEST(every_code_comes_back_rounded_once)
{
	const enum gpu_element element = _i & 1 ? GPU_ELEMENT_F16 : GPU_ELEMENT_BF16;
	const enum gpu_codec codec = codecs[_i / 2];
	const struct shape shape = { 1, 1, 256, 1 };
	struct blocks b;
	uint8_t *packed;

	blocks_new(&b, &shape, BLOCK_MAJOR, GPU_ORDER_NHD, element);
	packed = buffer(b.coded_bytes);
	for (uint32_t scale = 0; scale < 0x7f80; scale++) {
		double of = number_of(GPU_ELEMENT_BF16, scale);
		uint16_t bits = (uint16_t)scale;

		/* fp16's scales are at most 2^16 / 127; of most bf16 ones a part is enough. */
		if ((element == GPU_ELEMENT_F16 && of > 516) || (scale > 0x100 && scale % 7))
			continue;
		if (codec == GPU_CODEC_E4M3 && ((scale & 0x7f) || of > 0x1p119))
			continue;
		for (uint32_t i = 0; i < N_IDS; i++) {
			for (uint32_t c = 0; c < 256; c++)
				packed[i * b.coded_bytes + c] = (uint8_t)c;
			memcpy(packed + i * b.coded_bytes + 256, &bits, 2);
		}
		for (uint32_t who = 0; who < n_who; who++) {
			do_decode(who, &b, codec, packed, b.coded_bytes);
			for (uint32_t c = 0; c < 256; c++) {
				double code = codec == GPU_CODEC_INT8 ? (int8_t)c : e4m3_number(c);

				/* 2^120 and more are scales of nothing that is coded. */
				if (fabs(code * of) < 0x1p127 && (c & 0x7f) != 0x7f)
					must(*blocks_at(&b, 0, b.ids[who], c) ==
					     nearest(element, code * of));
			}
		}
	}
	free(packed);
	blocks_free(&b);
}
END_TEST

/* Numbers that cannot be coded, and the next ones that can. */
START_TEST(what_cannot_be_coded_goes_raw)
{
	static const uint16_t f16[] = { 0x7c00, 0xfc00, 0x7e00, 0xfe01,
					0x7c01, 0x7b00, 0xfb00, 0x7bff };
	static const uint16_t bf16[] = { 0x7f80, 0xff80, 0x7fc0, 0xffc1,
					 0x7f81, 0x7f60, 0xff60, 0x7f7f };

	for (uint32_t shape = 0; shape < N_SHAPES; shape++) {
		const uint32_t k = (shape + (uint32_t)_i) % radix_array_size(f16);
		uint32_t raw[N_IDS], bad = test_rng_below(&seed, N_IDS);
		uint8_t *good, *packed;
		uint16_t *at;
		struct blocks b;

		each(&b, shape, _i);
		fill(&b, NORMAL);
		good = buffer(b.coded_bytes);
		packed = buffer(b.coded_bytes);
		do_encode(PLAIN, &b, GPU_CODEC_E4M3, good, b.coded_bytes, raw);
		at = blocks_at(&b, test_rng_below(&seed, b.layout.n_pieces), b.ids[bad],
			       test_rng_below(&seed, b.layout.piece_bytes / 2));
		for (uint32_t who = 0; who < n_who; who++) {
			*at = b.geometry.element == GPU_ELEMENT_F16 ? f16[k] : bf16[k];
			do_encode(who, &b, GPU_CODEC_E4M3, packed, b.coded_bytes, raw);
			for (uint32_t i = 0; i < N_IDS; i++) {
				ck_assert_uint_eq(raw[i], i == bad);
				if (i != bad)
					ck_assert_mem_eq(packed + i * b.coded_bytes,
							 good + i * b.coded_bytes, b.coded_bytes);
			}
			(*at)--; /* the number below the limit is coded */
			do_encode(who, &b, GPU_CODEC_INT8, packed, b.coded_bytes, raw);
			ck_assert_uint_eq(raw[bad], k != 5 && k != 6);
		}
		free(good);
		free(packed);
		blocks_free(&b);
	}
}
END_TEST

/* A block coded from one order decodes to the other. */
START_TEST(orders_meet_in_what_is_packed)
{
	for (uint32_t shape = 0; shape < N_SHAPES; shape++) {
		struct blocks nhd, hnd;
		uint8_t *from_nhd, *from_hnd;
		uint32_t raw[N_IDS];

		each(&nhd, shape, 2);
		each(&hnd, shape, 3);
		fill(&nhd, NORMAL);
		for (uint32_t s = 0; s < nhd.layout.n_pieces; s++)
			for (uint32_t i = 0; i < N_IDS; i++)
				for (uint32_t t = 0; t < nhd.geometry.tokens; t++)
					for (uint32_t h = 0; h < nhd.geometry.heads; h++)
						memcpy(blocks_at(&hnd, s, hnd.ids[i],
								 element_idx(&hnd, t, h, 0)),
						       blocks_at(&nhd, s, nhd.ids[i],
								 element_idx(&nhd, t, h, 0)),
						       2 * nhd.geometry.dim);
		from_nhd = buffer(nhd.coded_bytes);
		from_hnd = buffer(hnd.coded_bytes);
		do_encode(PLAIN, &nhd, GPU_CODEC_INT8, from_nhd, nhd.coded_bytes, raw);
		do_encode(PLAIN, &hnd, GPU_CODEC_INT8, from_hnd, hnd.coded_bytes, raw);
		ck_assert_mem_eq(from_nhd, from_hnd, N_IDS * nhd.coded_bytes);
		free(from_nhd);
		free(from_hnd);
		blocks_free(&nhd);
		blocks_free(&hnd);
	}
}
END_TEST

START_TEST(what_does_not_fit_together_has_no_size)
{
	struct gpu_layout l = { .stride = 4096, .n_pieces = 2, .piece_bytes = 4096 };
	struct gpu_geometry g = { 8, 2, 128, GPU_ORDER_NHD, GPU_ELEMENT_F16 }, h;

	/* 2,048 codes, 16 scales. */
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &g), 2 * (2048 + 64));
	ck_assert_uint_eq(gpu_raw_bytes(&l), 8192);
	h = g;
	h.dim = 64;
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &h), 0);
	h = (struct gpu_geometry){ 1u << 31, 1u << 31, 1u << 31, GPU_ORDER_NHD, GPU_ELEMENT_F16 };
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &h), 0);
	h = (struct gpu_geometry){ 1u << 16, 1u << 15, 2, GPU_ORDER_NHD, GPU_ELEMENT_F16 };
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &h), 0);
	h = g;
	h.heads = 0;
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &h), 0);
	h = g;
	h.order = 2;
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &h), 0);
	h = g;
	h.element = 0;
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &h), 0);
	l.stride = 4095;
	ck_assert_uint_eq(gpu_coded_block_bytes(&l, &g), 0);
	ck_assert_uint_eq(gpu_raw_bytes(&l), 0);
}
END_TEST

/* ---- checksum -------------------------------------------------------------------------------- */

START_TEST(sums_are_the_same_everywhere)
{
	for (uint32_t shape = 0; shape < N_SHAPES; shape++)
		for (uint32_t who = 0; who < n_who; who++) {
			uint64_t sums[N_IDS][2], flat[2];
			struct blocks b;
			uint8_t *out;

			each(&b, shape, _i);
			out = buffer(b.raw_bytes);
			do_gather(PLAIN, &b, out, b.raw_bytes);
			do_sum(who, &b, sums);
			for (uint32_t i = 0; i < N_IDS; i++) {
				gpu_checksum(&gpu_codec_portable, out + i * b.raw_bytes,
					     b.raw_bytes, flat);
				ck_assert_mem_eq(sums[i], flat, sizeof(flat));
			}
			free(out);
			blocks_free(&b);
		}
}
END_TEST

/* The description, word by word. */
static void sum_by_the_book(const uint8_t *p, uint64_t len, uint64_t sum[2])
{
	sum[0] = sum[1] = 0;
	for (uint64_t i = 0; i * 1024 < len; i++) {
		uint64_t a = 0, b = 0;
		uint32_t w[256] = { 0 };

		for (uint64_t k = i * 1024; k < len && k < (i + 1) * 1024; k++)
			w[k % 1024 / 4] |= (uint32_t)p[k] << 8 * (k % 4);
		for (uint32_t j = 0; j < 256; j += 2) {
			uint32_t a0 = w[j] + GPU_CHECKSUM_KEY(j),
				 a1 = w[j + 1] + GPU_CHECKSUM_KEY(j + 1);
			uint32_t b0 = w[j] + GPU_CHECKSUM_KEY(j + 4),
				 b1 = w[j + 1] + GPU_CHECKSUM_KEY(j + 5);

			a += (uint64_t)a0 * a1;
			b += (uint64_t)b0 * b1;
		}
		sum[0] += gpu_checksum_mix(a, i, len);
		sum[1] += gpu_checksum_mix(b, i, ~len);
	}
}

START_TEST(sums_of_every_length)
{
	static uint8_t data[3001];

	test_rng_fill(&seed, data, sizeof(data));
	for (uint64_t len = 0; len <= sizeof(data); len++)
		for (uint32_t who = 0; who < KERNEL; who++) {
			uint64_t want[2], is[2];

			sum_by_the_book(data, len, want);
			gpu_checksum(who == PLAIN ? &gpu_codec_portable : gpu_codec_best(), data,
				     len, is);
			ck_assert_mem_eq(is, want, sizeof(is));
		}
}
END_TEST

/* Sums are stored: they must not change from one version of the program to the next. */
START_TEST(sums_do_not_change)
{
	uint8_t data[2500];
	uint64_t sum[2];

	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * i >> 3);
	gpu_checksum(gpu_codec_best(), data, sizeof(data), sum);
	ck_assert_uint_eq(sum[0], UINT64_C(0x896607ce0c3d1891));
	ck_assert_uint_eq(sum[1], UINT64_C(0x30b21e72341c7baa));
}
END_TEST

START_TEST(sums_notice_changes)
{
	static uint8_t data[4 * 1024 + 100];
	uint64_t was[2], is[2];
	const struct gpu_codec_ops *by = gpu_codec_best();

	test_rng_fill(&seed, data, sizeof(data));
	gpu_checksum(by, data, sizeof(data), was);
	for (uint32_t bit = 0; bit < 8 * sizeof(data); bit++) {
		data[bit / 8] ^= (uint8_t)(1u << bit % 8);
		gpu_checksum(by, data, sizeof(data), is);
		ck_assert(is[0] != was[0] && is[1] != was[1]);
		data[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	for (uint32_t i = 0; i < 20000; i++) { /* two pieces of a size change places */
		static const uint32_t sizes[] = { 4, 8, 16, 32, 64, 1024 };
		uint32_t len = sizes[i % 6], n = (uint32_t)sizeof(data) / len;
		uint32_t a = test_rng_below(&seed, n), b = test_rng_below(&seed, n);
		uint8_t other[sizeof(data)];

		memcpy(other, data, sizeof(data));
		memcpy(other + a * len, data + b * len, len);
		memcpy(other + b * len, data + a * len, len);
		if (!memcmp(other, data, sizeof(data)))
			continue;
		gpu_checksum(by, other, sizeof(other), is);
		ck_assert(is[0] != was[0] && is[1] != was[1]);
	}
	memset(data, 0, sizeof(data)); /* more zeros are not the same */
	gpu_checksum(by, data, 1024, was);
	for (uint32_t len = 1000; len < sizeof(data); len += 1 + len % 7) {
		gpu_checksum(by, data, len, is);
		ck_assert(len == 1024 || (is[0] != was[0] && is[1] != was[1]));
	}
}
END_TEST

/* ---------------------------------------------------------------------------------------------- */

static void new_seed(void)
{
	seed = 20260801;
}

int main(void)
{
	Suite *s = suite_create("codec");
	TCase *t = tcase_create("codec");

	/* Buffers come and go: their pages shall stay. */
	mallopt(M_MMAP_THRESHOLD, 1 << 26);
	mallopt(M_TRIM_THRESHOLD, 1 << 28);
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, new_seed, NULL);
	tcase_add_loop_test(t, gather_takes_each_piece_and_nothing_else, 0, N_WAYS);
	tcase_add_loop_test(t, scatter_writes_each_piece_and_nothing_else, 0, N_WAYS);
	tcase_add_loop_test(t, move_goes_from_layout_to_layout, 0, N_ARRANGEMENTS * N_ARRANGEMENTS);
	tcase_add_test(t, all_halves_are_read_right);
	tcase_add_loop_test(t, rounding_is_to_nearest_even, 0, 2);
	tcase_add_test(t, e4m3_rounds_to_nearest_even);
	tcase_add_loop_test(t, coding_keeps_its_bounds_and_is_the_same_everywhere, 0, N_WAYS);
	tcase_add_loop_test(t, every_half_gets_the_nearest_code, 0, 4);
	tcase_add_loop_test(t, every_code_comes_back_rounded_once, 0, 4);
	tcase_add_loop_test(t, what_cannot_be_coded_goes_raw, 0, N_WAYS);
	tcase_add_test(t, orders_meet_in_what_is_packed);
	tcase_add_test(t, what_does_not_fit_together_has_no_size);
	tcase_add_loop_test(t, sums_are_the_same_everywhere, 0, N_WAYS);
	tcase_add_test(t, sums_of_every_length);
	tcase_add_test(t, sums_do_not_change);
	tcase_add_test(t, sums_notice_changes);
	suite_add_tcase(s, t);
	return test_run(s);
}
