/*
 * util.h - blocks in every arrangement, and who may gather, code and sum them: plain C, what this
 * processor does best, and the kernels.
 */
#pragma once

#include "gpu/codec.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <stdlib.h>

#define N_BLOCKS 7u /* in memory */
#define N_IDS    4u /* of which so many are asked for */

enum arrangement {
	BLOCK_MAJOR,
	LAYER_MAJOR,
	BLOCK_MAJOR_ODD, /* nothing at a multiple of 16 */
	N_ARRANGEMENTS
};

struct blocks {
	struct gpu_layout layout;
	struct gpu_geometry geometry;
	uint64_t *base;
	uint8_t *mem;
	size_t len;
	uint64_t raw_bytes, coded_bytes;
	uint32_t ids[N_IDS];
};

struct shape {
	uint32_t tokens, heads, dim, pieces;
};

/* Dimensions that engines have, and some that none has. */
static const struct shape shapes[] = {
	{ 16, 4, 128, 2 }, { 16, 2, 64, 3 }, { 5, 3, 80, 2 },  { 16, 1, 576, 2 }, { 4, 2, 256, 2 },
	{ 3, 2, 264, 1 },  { 7, 3, 7, 3 },   { 1, 1, 1, 2 },   { 2, 5, 24, 2 },   { 9, 1, 33, 2 },
	{ 1, 13, 8, 1 },   { 3, 4, 40, 2 },  { 32, 4, 16, 5 }, { 2, 1, 1030, 1 }, { 11, 7, 96, 1 },
};
#define N_SHAPES radix_array_size(shapes)

void blocks_new(struct blocks *b, const struct shape *shape, enum arrangement arrangement,
		enum gpu_order order, enum gpu_element element);
void blocks_free(struct blocks *b);
/* Element k of piece s of block id, where it lies. */
uint16_t *blocks_at(const struct blocks *b, uint32_t s, uint32_t id, uint64_t k);

/* Contents of elements. */
enum contents {
	NORMAL,   /* magnitudes around 1 */
	OUTLIERS, /* one in a hundred a thousand times as large */
	DENORMAL, /* below the normal numbers of the type, zeros among them */
	WIDE,     /* every exponent that is coded */
	N_CONTENTS
};
void fill_numbers(uint64_t *rng, enum contents contents, enum gpu_element element, uint16_t *x,
		  uint64_t n);

/* Who computes; `kernels` where this file was built with them. */
enum who {
	PLAIN,
	BEST,
	KERNEL,
	N_WHO
};
extern const uint32_t n_who;

void do_gather(enum who who, const struct blocks *b, void *out, uint64_t stride);
void do_scatter(enum who who, const struct blocks *b, const void *in, uint64_t stride);
/* Of `from` to those of `to`, which has the same shape. */
void do_move(enum who who, const struct blocks *from, const struct blocks *to);
void do_encode(enum who who, const struct blocks *b, enum gpu_codec codec, void *out,
	       uint64_t stride, uint32_t raw[N_IDS]);
void do_decode(enum who who, const struct blocks *b, enum gpu_codec codec, const void *in,
	       uint64_t stride);
void do_sum(enum who who, const struct blocks *b, uint64_t sums[N_IDS][2]);

/* ---- numbers, by another way than gpu/codec_number.h ----------------------------------------- */

double number_of(enum gpu_element element, uint32_t bits);
double e4m3_number(uint32_t code);
/* The nearest finite number of the type, to even; out of range is infinite. */
uint32_t nearest(enum gpu_element element, double x);
uint32_t nearest_e4m3(double x);
/* What is packed: a row's scale, and a code. */
double scale_at(const struct blocks *b, const uint8_t *packed, uint32_t s, uint32_t token,
		uint32_t head);
uint8_t code_at(const struct blocks *b, const uint8_t *packed, uint32_t s, uint32_t token,
		uint32_t head, uint32_t d);
uint64_t element_idx(const struct blocks *b, uint32_t token, uint32_t head, uint32_t d);
