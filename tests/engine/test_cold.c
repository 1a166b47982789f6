/*
 * test_cold.c - cold blocks: what is said of them, and what comes back of them.
 *
 * The codes themselves are gpu/'s and tested there; here is which pieces are coded, where they lie,
 * and that an element is never further from what it was than gpu/kernels.h says.
 */
#include "daemon/cold.h"
#include "gpu/codec.h"
#include "gpu/codec_number.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static const uint32_t codecs[] = { GPU_CODEC_INT8, GPU_CODEC_E4M3 };

static struct prefixd_cold cold_of(uint32_t codec, uint32_t element, uint32_t order)
{
	return (struct prefixd_cold){
		.codec = codec,
		.element = element,
		.order = order,
		.layers = 6,
		.heads = 3,
		.dim = 40,
		.tokens = 8,
	};
}

static uint64_t block_bytes(const struct prefixd_cold *c)
{
	return 2 * c->layers * prefixd_cold_piece_bytes(c);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

START_TEST(names)
{
	uint32_t v;

	ck_assert(prefixd_cold_codec_parse("none", 4, &v) && v == GPU_CODEC_NONE);
	ck_assert(prefixd_cold_codec_parse("int8", 4, &v) && v == GPU_CODEC_INT8);
	ck_assert(prefixd_cold_codec_parse("fp8", 3, &v) && v == GPU_CODEC_E4M3);
	ck_assert(!prefixd_cold_codec_parse("", 0, &v));
	ck_assert(!prefixd_cold_codec_parse("fp8x", 4, &v));
	ck_assert(!prefixd_cold_codec_parse("FP8", 3, &v));
	ck_assert(prefixd_cold_element_parse("float16", 7, &v) && v == GPU_ELEMENT_F16);
	ck_assert(prefixd_cold_element_parse("bfloat16", 8, &v) && v == GPU_ELEMENT_BF16);
	ck_assert(!prefixd_cold_element_parse("fp8_e4m3", 8, &v));
	ck_assert(prefixd_cold_layout_parse("block-major", 11, &v) && v == GPU_ORDER_NHD);
	ck_assert(prefixd_cold_layout_parse("block-major;tp=2/0", 18, &v) && v == GPU_ORDER_NHD);
	ck_assert(prefixd_cold_layout_parse("block-major-hnd", 15, &v) && v == GPU_ORDER_HND);
	ck_assert(!prefixd_cold_layout_parse("block-major-hn", 14, &v));
	ck_assert(!prefixd_cold_layout_parse("layer-major", 11, &v));
	ck_assert(!prefixd_cold_layout_parse(NULL, 0, &v));
}
END_TEST

START_TEST(layers)
{
	static const struct {
		const char *list, *same; /* NULL: refused */
	} cases[] = {
		{ "", "" },
		{ "0", "0" },
		{ "0-1,31", "0-1,31" },
		{ "31,0,1", "0-1,31" },
		{ "3-5,4,5-7", "3-7" },
		{ "0-31", "0-31" },
		{ "007", "7" },
		{ "32", NULL },
		{ "0-32", NULL },
		{ "5-4", NULL },
		{ "1,", NULL },
		{ ",1", NULL },
		{ "-1", NULL },
		{ "1-", NULL },
		{ "1--2", NULL },
		{ "1-2-3", NULL },
		{ "1 2", NULL },
		{ "0001", NULL },
		{ "x", NULL },
	};
	struct prefixd_cold c = { .layers = 32 };
	char text[64];

	for (uint32_t i = 0; i < radix_array_size(cases); i++) {
		bool ok = prefixd_cold_layers_parse(cases[i].list, strlen(cases[i].list), 32,
						    c.exact);

		ck_assert_msg(ok == (cases[i].same != NULL), "'%s'", cases[i].list);
		if (ok)
			ck_assert_str_eq(prefixd_cold_layers_print(&c, text, sizeof(text)),
					 cases[i].same);
	}
	ck_assert(!prefixd_cold_layers_parse("256", 3, 1000, c.exact)); /* more than are noted */
	ck_assert(prefixd_cold_layers_parse("255", 3, 1000, c.exact));
}
END_TEST

START_TEST(what_is_a_description)
{
	struct prefixd_cold c = cold_of(GPU_CODEC_E4M3, GPU_ELEMENT_F16, GPU_ORDER_NHD);
	const struct prefixd_cold good = c;
	const uint64_t bytes = block_bytes(&c);

	ck_assert(prefixd_cold_ok(&c, bytes));
	ck_assert(!prefixd_cold_ok(&c, bytes + 1));
#define BAD(field, value)                               \
	do {                                            \
		c = good;                               \
		c.field = (value);                      \
		ck_assert(!prefixd_cold_ok(&c, bytes)); \
	} while (0)
	BAD(codec, 3);
	BAD(codec, GPU_CODEC_NONE); /* the rest is not 0 */
	BAD(element, 0);
	BAD(element, 3);
	BAD(order, 2);
	BAD(layers, 0);
	BAD(layers, 257);
	BAD(heads, 0);
	BAD(dim, 0);
	BAD(tokens, 0);
	BAD(tokens, UINT32_MAX);
	BAD(exact[1], 1); /* layer 8 of 6 */
#undef BAD
	c = (struct prefixd_cold){ 0 };
	ck_assert(prefixd_cold_ok(&c, 12345));
	ck_assert_uint_eq(prefixd_cold_bytes(&c, 12345), 12345);
	ck_assert_uint_eq(prefixd_cold_stride(&c, 12345, 1), 12352);
	ck_assert_uint_eq(prefixd_cold_stride(&c, 12345, 3), 3 * 12352);
	/* Nothing is gained: all layers are exact, or a row is as short as its scale. */
	c = good;
	c.exact[0] = 0x3f;
	ck_assert(!prefixd_cold_ok(&c, bytes));
	c = good;
	c.dim = 1;
	ck_assert(!prefixd_cold_ok(&c, block_bytes(&c)));
}
END_TEST

START_TEST(a_block_of_llama_takes_half)
{
	struct prefixd_cold c = { .codec = GPU_CODEC_E4M3,
				  .element = GPU_ELEMENT_BF16,
				  .layers = 32,
				  .heads = 8,
				  .dim = 128,
				  .tokens = 16 };
	const uint64_t bytes = UINT64_C(2) << 20;

	ck_assert(prefixd_cold_ok(&c, bytes));
	/* 16 Ki codes and 128 scales in each of 64 pieces */
	ck_assert_uint_eq(prefixd_cold_bytes(&c, bytes), 64 * (16384 + 256));
	ck_assert(prefixd_cold_layers_parse("0,31", 4, 32, c.exact));
	ck_assert_uint_eq(prefixd_cold_bytes(&c, bytes), 60 * (16384 + 256) + 4 * 32768);
}
END_TEST

/* ---- blocks ---------------------------------------------------------------------------------- */

static uint64_t rng;

static void *room(uint64_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~UINT64_C(63));

	ck_assert_ptr_nonnull(p);
	return p;
}

/* Some thousand magnitudes apart, and some zeros; all of them can be coded. */
static void fill(const struct prefixd_cold *c, uint16_t *x)
{
	for (uint64_t i = 0; i < block_bytes(c) / 2; i++) {
		float v = ((float)test_rng_below(&rng, 2001) - 1000) *
			  ldexpf(1, (int)test_rng_below(&rng, 16) - 12);

		x[i] = test_rng_below(&rng, 10) ? (uint16_t)gpu_f32_to_element(c->element, v) : 0;
	}
}

static float value(const struct prefixd_cold *c, uint16_t x)
{
	return gpu_element_to_f32(c->element, x);
}

/* Number of the first element of a row, of which there are rows_of() in a piece. */
static uint64_t row_at(const struct prefixd_cold *c, uint32_t row)
{
	return (uint64_t)row * c->dim; /* in both orders a row is contiguous */
}

static void check_row(const struct prefixd_cold *c, const uint16_t *x, const uint16_t *y)
{
	float a = 0;

	for (uint32_t i = 0; i < c->dim; i++)
		a = fmaxf(a, fabsf(value(c, x[i])));
	for (uint32_t i = 0; i < c->dim; i++) {
		float v = value(c, x[i]), w = value(c, y[i]);
		/* half a step of the element's type at w; bf16 has 8 bits, fp16 11 or 2^-24 */
		float r = c->element == GPU_ELEMENT_BF16 ? fabsf(w) * 0x1p-8f
							 : fmaxf(fabsf(w) * 0x1p-11f, 0x1p-25f);
		float bound = c->codec == GPU_CODEC_INT8
				      ? a / 127 * (1 + 0x1p-7f) / 2 * (1 + 0x1p-14f) + r
				      : fmaxf(fabsf(v) / 16, a / 224 * 0x1p-10f) + r;

		ck_assert_msg(fabsf(v - w) <= bound, "%g came back as %g, of a row up to %g",
			      (double)v, (double)w, (double)a);
	}
}

static void round_trip(struct prefixd_cold c, const char *exact)
{
	const uint64_t bytes = block_bytes(&c), piece = prefixd_cold_piece_bytes(&c);
	uint16_t *x = room(bytes), *y = room(bytes);
	uint8_t *cold, *again;
	uint64_t changed = 0;

	ck_assert(prefixd_cold_layers_parse(exact, strlen(exact), c.layers, c.exact));
	ck_assert(prefixd_cold_ok(&c, bytes));
	cold = room(prefixd_cold_bytes(&c, bytes));
	again = room(prefixd_cold_bytes(&c, bytes));
	fill(&c, x);
	memset(y, 0xa5, bytes);
	memset(cold, 0x5a, prefixd_cold_bytes(&c, bytes));
	memset(again, 0xa5, prefixd_cold_bytes(&c, bytes));
	ck_assert(prefixd_cold_encode(&c, x, cold));
	prefixd_cold_decode(&c, cold, y);
	for (uint32_t p = 0; p < 2 * c.layers; p++) {
		const uint16_t *was = x + p * piece / 2, *is = y + p * piece / 2;

		if (prefixd_cold_exact(&c, p / 2))
			ck_assert_mem_eq(was, is, piece);
		else
			for (uint32_t row = 0; row < c.tokens * c.heads; row++)
				check_row(&c, was + row_at(&c, row), is + row_at(&c, row));
		changed += memcmp(was, is, piece) != 0;
	}
	ck_assert_uint_gt(changed, 0); /* it does code something */
	/* every byte is written, always the same */
	ck_assert(prefixd_cold_encode(&c, x, again));
	ck_assert_mem_eq(cold, again, prefixd_cold_bytes(&c, bytes));
	free(x);
	free(y);
	free(cold);
	free(again);
}

START_TEST(what_comes_back)
{
	const uint32_t codec = codecs[_i % 2];

	rng = 7 + (uint64_t)_i;
	for (uint32_t element = GPU_ELEMENT_F16; element <= GPU_ELEMENT_BF16; element++)
		for (uint32_t order = GPU_ORDER_NHD; order <= GPU_ORDER_HND; order++) {
			round_trip(cold_of(codec, element, order), "");
			round_trip(cold_of(codec, element, order), "0-1,5");
			round_trip(cold_of(codec, element, order), "1-5");
		}
}
END_TEST

/* A block with an element that is not finite or too large stays; in an exact layer it may be. */
START_TEST(what_cannot_be_coded)
{
	static const uint16_t bad[2][5] = {
		{ 0x7e00, 0x7c00, 0xfc00, 0x7b00, 0xfbff }, /* NaN, both infinities, too large */
		{ 0x7fc0, 0x7f80, 0xff80, 0x7f60, 0xff7f },
	};
	struct prefixd_cold c = cold_of(GPU_CODEC_E4M3, GPU_ELEMENT_F16, GPU_ORDER_NHD);
	const uint64_t bytes = block_bytes(&c), piece = prefixd_cold_piece_bytes(&c);
	uint16_t *x = room(bytes), *y = room(bytes);
	void *cold = room(bytes);

	rng = 3;
	for (uint32_t element = 0; element < 2; element++) {
		c.element = GPU_ELEMENT_F16 + element;
		for (uint32_t i = 0; i < radix_array_size(bad[0]); i++) {
			uint64_t at = test_rng_below(&rng, (uint32_t)piece / 2);

			memset(c.exact, 0, sizeof(c.exact));
			fill(&c, x);
			ck_assert(prefixd_cold_encode(&c, x, cold));
			x[at] = bad[element][i];
			ck_assert(!prefixd_cold_encode(&c, x, cold));
			c.exact[0] = 1;
			ck_assert(prefixd_cold_encode(&c, x, cold));
			prefixd_cold_decode(&c, cold, y);
			ck_assert_uint_eq(y[at], bad[element][i]);
		}
	}
	free(x);
	free(y);
	free(cold);
}
END_TEST

START_TEST(seals)
{
	uint8_t sum[16] = { 1, 2, 3 }, a[PREFIXD_COLD_SEAL], other[PREFIXD_COLD_SEAL];

	prefixd_cold_seal(sum, 5, 6, a);
	prefixd_cold_seal(sum, 5, 6, other);
	ck_assert_mem_eq(a, other, sizeof(a));
	prefixd_cold_seal(sum, 6, 6, other);
	ck_assert_mem_ne(a, other, sizeof(a));
	prefixd_cold_seal(sum, 5, 7, other);
	ck_assert_mem_ne(a, other, sizeof(a));
	sum[15] = 1;
	prefixd_cold_seal(sum, 5, 6, other);
	ck_assert_mem_ne(a, other, sizeof(a));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cold");
	TCase *tc = tcase_create("cold");

	tcase_add_test(tc, names);
	tcase_add_test(tc, layers);
	tcase_add_test(tc, what_is_a_description);
	tcase_add_test(tc, a_block_of_llama_takes_half);
	tcase_add_loop_test(tc, what_comes_back, 0, 8);
	tcase_add_test(tc, what_cannot_be_coded);
	tcase_add_test(tc, seals);
	suite_add_tcase(s, tc);
	return test_run(s);
}
