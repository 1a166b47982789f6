/*
 * util.c - see util.h.
 */
#include "tests/kernels/util.h"

#include "gpu/codec_number.h"

#ifdef WITH_KERNELS
#include "tests/kernels/kernels_host.h"
#endif

#include <math.h>
#include <stdio.h>

/* ---- blocks ---------------------------------------------------------------------------------- */

void blocks_new(struct blocks *b, const struct shape *shape, enum arrangement arrangement,
		enum gpu_order order, enum gpu_element element)
{
	static const uint32_t ids[N_IDS] = { 5, 0, 6, 3 };
	uint32_t piece = 2 * shape->tokens * shape->heads * shape->dim, off = 0;
	uint64_t slot = (uint64_t)shape->pieces * piece, from;

	memset(b, 0, sizeof(*b));
	b->geometry = (struct gpu_geometry){ shape->tokens, shape->heads, shape->dim, order,
					     element };
	b->layout.n_pieces = shape->pieces;
	b->layout.piece_bytes = piece;
	if (arrangement == BLOCK_MAJOR_ODD) {
		off = 2;
		slot += 6;
	} else if (arrangement == BLOCK_MAJOR) {
		slot = (slot + 63) / 64 * 64;
	}
	b->layout.stride = arrangement == LAYER_MAJOR ? piece : slot;
	b->len = N_BLOCKS * slot + off;
	b->mem = aligned_alloc(64, (b->len + 63) / 64 * 64);
	b->base = calloc(shape->pieces, sizeof(*b->base));
	ck_assert_ptr_nonnull(b->mem);
	ck_assert_ptr_nonnull(b->base);
	from = (uint64_t)(uintptr_t)b->mem + off;
	for (uint32_t s = 0; s < shape->pieces; s++)
		b->base[s] = from +
			     (uint64_t)s * (arrangement == LAYER_MAJOR ? N_BLOCKS : 1) * piece;
	b->layout.base = (uint64_t)(uintptr_t)b->base;
	b->raw_bytes = gpu_raw_bytes(&b->layout);
	b->coded_bytes = gpu_coded_block_bytes(&b->layout, &b->geometry);
	ck_assert_uint_eq(b->raw_bytes, (uint64_t)shape->pieces * piece);
	ck_assert_uint_ne(b->coded_bytes, 0);
	memcpy(b->ids, ids, sizeof(ids));
}

void blocks_free(struct blocks *b)
{
	free(b->mem);
	free(b->base);
	memset(b, 0, sizeof(*b));
}

uint16_t *blocks_at(const struct blocks *b, uint32_t s, uint32_t id, uint64_t k)
{
	return (uint16_t *)(uintptr_t)(b->base[s] + id * b->layout.stride) + k;
}

uint64_t element_idx(const struct blocks *b, uint32_t token, uint32_t head, uint32_t d)
{
	const struct gpu_geometry *g = &b->geometry;
	uint64_t row = g->order == GPU_ORDER_NHD ? (uint64_t)token * g->heads + head
						 : (uint64_t)head * g->tokens + token;

	return row * g->dim + d;
}

/* The format, from its description. */
static const uint8_t *coded_piece(const struct blocks *b, const uint8_t *packed, uint32_t s)
{
	return packed + s * (b->coded_bytes / b->layout.n_pieces);
}

uint8_t code_at(const struct blocks *b, const uint8_t *packed, uint32_t s, uint32_t token,
		uint32_t head, uint32_t d)
{
	const struct gpu_geometry *g = &b->geometry;

	return coded_piece(b, packed, s)[((size_t)head * g->tokens + token) * g->dim + d];
}

double scale_at(const struct blocks *b, const uint8_t *packed, uint32_t s, uint32_t token,
		uint32_t head)
{
	const struct gpu_geometry *g = &b->geometry;
	size_t codes = ((size_t)g->heads * g->tokens * g->dim + 15) / 16 * 16;
	uint16_t bits;

	memcpy(&bits, coded_piece(b, packed, s) + codes + 2 * ((size_t)head * g->tokens + token),
	       2);
	return number_of(GPU_ELEMENT_BF16, bits);
}

/* ---- numbers --------------------------------------------------------------------------------- */

double number_of(enum gpu_element element, uint32_t bits)
{
	int fraction_bits = element == GPU_ELEMENT_F16 ? 10 : 7;
	int bias = element == GPU_ELEMENT_F16 ? 15 : 127, top = 2 * bias + 1;
	int exponent = (int)(bits & 0x7fffu) >> fraction_bits;
	int fraction = (int)bits & ((1 << fraction_bits) - 1);
	double x;

	if (exponent == top)
		x = fraction ? (double)NAN : (double)INFINITY;
	else if (exponent == 0)
		x = ldexp(fraction, 1 - bias - fraction_bits);
	else
		x = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
	return bits & 0x8000u ? -x : x;
}

double e4m3_number(uint32_t code)
{
	int exponent = code >> 3 & 15, fraction = code & 7;
	double x = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);

	return code & 0x80u ? -x : x;
}

/* The largest bits whose number is at most x, by halving; numbers grow with their bits. */
static uint32_t below(enum gpu_element element, double x)
{
	uint32_t low = 0, high = element == GPU_ELEMENT_F16 ? 0x7bffu : 0x7f7fu;

	while (low < high) {
		uint32_t mid = (low + high + 1) / 2;

		if (number_of(element, mid) <= x)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

uint32_t nearest(enum gpu_element element, double x)
{
	uint32_t sign = signbit(x) ? 0x8000u : 0, bits;
	double largest, step, low, high;

	x = fabs(x);
	bits = below(element, x);
	low = number_of(element, bits);
	if (bits == (element == GPU_ELEMENT_F16 ? 0x7bffu : 0x7f7fu)) {
		largest = low;
		step = largest - number_of(element, bits - 1);
		return sign | (x - largest < step / 2 ? bits : bits + 1);
	}
	high = number_of(element, bits + 1);
	if (x - low > high - x || (x - low == high - x && bits % 2))
		bits++;
	return sign | bits;
}

uint32_t nearest_e4m3(double x)
{
	uint32_t sign = signbit(x) ? 0x80u : 0, best = 0;

	x = fabs(x);
	for (uint32_t c = 1; c < 0x7f; c++) {
		double d = fabs(e4m3_number(c) - x), was = fabs(e4m3_number(best) - x);

		if (d < was || (d == was && c % 2 == 0))
			best = c;
	}
	return sign | best;
}

/* About normal, from four uniform ones. */
static double bell(uint64_t *rng)
{
	double sum = -2;

	for (int i = 0; i < 4; i++)
		sum += (double)(test_rng(rng) >> 11) / 9007199254740992.0;
	return 1.7 * sum;
}

void fill_numbers(uint64_t *rng, enum contents contents, enum gpu_element element, uint16_t *x,
		  uint64_t n)
{
	uint32_t limit = element == GPU_ELEMENT_F16 ? GPU_F16_LIMIT : GPU_BF16_LIMIT;
	uint32_t normal = element == GPU_ELEMENT_F16 ? 0x400u : 0x80u;

	for (uint64_t i = 0; i < n; i++) {
		double v = bell(rng);

		if (contents == OUTLIERS && test_rng_below(rng, 100) == 0)
			v *= 1000;
		if (contents == NORMAL || contents == OUTLIERS)
			x[i] = (uint16_t)gpu_f32_to_element(element, (float)v);
		else
			x[i] = (uint16_t)(test_rng_below(rng,
							 contents == DENORMAL ? normal : limit) |
					  test_rng_below(rng, 2) << 15);
	}
}

/* ---- who ------------------------------------------------------------------------------------- */

static const struct gpu_codec_ops *ops_of(enum who who)
{
	return who == PLAIN ? &gpu_codec_portable : gpu_codec_best();
}

#ifdef WITH_KERNELS

const uint32_t n_who = N_WHO;

/* Grids and blocks of changing sizes. */
static void launch(const char *name, void **args)
{
	static uint32_t turn;
	static const uint32_t dims[][2] = { { 1, 32 }, { 3, 96 }, { 16, 256 }, { 100, 64 } };
	const struct kernel_host_entry *e = kernels_host_find(name);
	const uint32_t *dim = dims[turn++ % radix_array_size(dims)];
	const uint32_t grid[3] = { dim[0], 1, 1 }, block[3] = { dim[1], 1, 1 };

	ck_assert_ptr_nonnull(e);
	ck_assert_int_eq(e->run(grid, block, 0, args), 0);
}

static void coding(const char *what, const struct blocks *b, enum gpu_codec codec, void **args)
{
	char name[64];

	snprintf(name, sizeof(name), "gpu_kernel_%s_%s_%s", what,
		 b->geometry.element == GPU_ELEMENT_F16 ? "f16" : "bf16",
		 codec == GPU_CODEC_INT8 ? "int8" : "e4m3");
	launch(name, args);
}

#else

const uint32_t n_who = KERNEL;

static void launch(const char *name, void **args)
{
	ck_abort_msg("no %s in this build", name);
}

static void coding(const char *what, const struct blocks *b, enum gpu_codec codec, void **args)
{
	launch(what, args);
}

#endif

void do_gather(enum who who, const struct blocks *b, void *out, uint64_t stride)
{
	struct gpu_layout l = b->layout;
	const uint32_t *ids = b->ids;
	uint32_t n = N_IDS;

	if (who == KERNEL)
		launch("gpu_kernel_gather", (void *[]){ &l, &ids, &n, &out, &stride });
	else
		gpu_gather(&l, ids, n, out, stride);
}

void do_scatter(enum who who, const struct blocks *b, const void *in, uint64_t stride)
{
	struct gpu_layout l = b->layout;
	const uint32_t *ids = b->ids;
	uint32_t n = N_IDS;

	if (who == KERNEL)
		launch("gpu_kernel_scatter", (void *[]){ &l, &ids, &n, &in, &stride });
	else
		gpu_scatter(&l, ids, n, in, stride);
}

void do_move(enum who who, const struct blocks *from, const struct blocks *to)
{
	struct gpu_layout a = from->layout, b = to->layout;
	const uint32_t *from_ids = from->ids, *to_ids = to->ids;
	uint32_t n = N_IDS;

	if (who == KERNEL)
		launch("gpu_kernel_move", (void *[]){ &a, &from_ids, &b, &to_ids, &n });
	else
		gpu_move(&a, from_ids, &b, to_ids, n);
}

void do_encode(enum who who, const struct blocks *b, enum gpu_codec codec, void *out,
	       uint64_t stride, uint32_t raw[N_IDS])
{
	struct gpu_layout l = b->layout;
	struct gpu_geometry g = b->geometry;
	const uint32_t *ids = b->ids;
	uint32_t n = N_IDS, n_raw = 0, said;

	if (who == KERNEL) {
		memset(raw, 0, N_IDS * sizeof(*raw));
		coding("encode", b, codec, (void *[]){ &l, &g, &ids, &n, &out, &stride, &raw });
		return;
	}
	said = gpu_encode(ops_of(who), &l, &g, codec, ids, n, out, stride, raw);
	for (uint32_t i = 0; i < n; i++)
		n_raw += raw[i];
	ck_assert_uint_eq(said, n_raw);
}

void do_decode(enum who who, const struct blocks *b, enum gpu_codec codec, const void *in,
	       uint64_t stride)
{
	struct gpu_layout l = b->layout;
	struct gpu_geometry g = b->geometry;
	const uint32_t *ids = b->ids;
	uint32_t n = N_IDS;

	if (who == KERNEL)
		coding("decode", b, codec, (void *[]){ &l, &g, &ids, &n, &in, &stride });
	else
		gpu_decode(ops_of(who), &l, &g, codec, ids, n, in, stride);
}

void do_sum(enum who who, const struct blocks *b, uint64_t sums[N_IDS][2])
{
	struct gpu_layout l = b->layout;
	const uint32_t *ids = b->ids;
	uint32_t n = N_IDS;

	if (who == KERNEL) {
		memset(sums, 0, N_IDS * sizeof(*sums));
		launch("gpu_kernel_checksum", (void *[]){ &l, &ids, &n, &sums });
	} else {
		gpu_checksum_blocks(ops_of(who), &l, ids, n, sums);
	}
}
