/*
 * codec.h - what the kernels do, on the processor: for pools in ordinary memory, for devices
 * without kernels, and as what the kernels are tested against.
 *
 * gpu/kernels.h says what the bytes are.  A result does not depend on who computed it: plain C,
 * AVX2 and the kernels write the same bytes.
 *
 * Blocks do not overlap what is packed.  Nothing is allocated and nothing is kept; any thread may
 * call.
 */
#pragma once

#include "gpu/kernels.h"
#include "radix/base.h"

/* `n` rows of `dim` elements, one after the other, and their codes. */
struct gpu_codec_rows {
	uint32_t codec, element;
	uint32_t n, dim;
	uint64_t elements; /* address of the first row; even */
	uint8_t *codes;    /* of the first row; those of the next are code_step bytes on */
	uint64_t code_step;
	uint8_t *scales; /* two bytes each; that of the next row is scale_step bytes on */
	uint64_t scale_step;
};

/* Who computes. */
struct gpu_codec_ops {
	const char *name;
	/* False: an element cannot be coded, and what was written means nothing. */
	bool (*encode)(const struct gpu_codec_rows *rows);
	void (*decode)(const struct gpu_codec_rows *rows);
	/* Adds what `n` whole stripes give, of which the first is number `first` of a string of
	 * `len` bytes. */
	void (*sum)(const uint8_t *stripes, uint64_t n, uint64_t first, uint64_t len,
		    uint64_t sum[2]);
};

extern const struct gpu_codec_ops gpu_codec_portable;

/* The fastest that this processor can. */
const struct gpu_codec_ops *gpu_codec_best(void);

/* Bytes of a packed block that is not coded, and of a coded one.  0: there is no such block. */
uint64_t gpu_raw_bytes(const struct gpu_layout *layout);
uint64_t gpu_coded_block_bytes(const struct gpu_layout *layout,
			       const struct gpu_geometry *geometry);

/* Packed block i of the `n` blocks `ids` is at i * stride of `out`, `in`. */
void gpu_gather(const struct gpu_layout *layout, const uint32_t *ids, uint32_t n, void *out,
		uint64_t out_stride);
void gpu_scatter(const struct gpu_layout *layout, const uint32_t *ids, uint32_t n, const void *in,
		 uint64_t in_stride);
/* Block from_ids[i] of one layout to block to_ids[i] of another, of as many pieces of as many
 * bytes; gpu/move.c, which needs nothing else of this. */
void gpu_move(const struct gpu_layout *from, const uint32_t *from_ids, const struct gpu_layout *to,
	      const uint32_t *to_ids, uint32_t n);

/*
 * ret_raw[i] is 1 where block i cannot be coded, else 0.  Return: how many cannot.  The layout and
 * the geometry belong together: gpu_coded_block_bytes() is not 0.
 */
uint32_t gpu_encode(const struct gpu_codec_ops *by, const struct gpu_layout *layout,
		    const struct gpu_geometry *geometry, enum gpu_codec codec, const uint32_t *ids,
		    uint32_t n, void *out, uint64_t out_stride, uint32_t *ret_raw);
/* Any bytes decode to something.  Damage is for checksums to find. */
void gpu_decode(const struct gpu_codec_ops *by, const struct gpu_layout *layout,
		const struct gpu_geometry *geometry, enum gpu_codec codec, const uint32_t *ids,
		uint32_t n, const void *in, uint64_t in_stride);

void gpu_checksum(const struct gpu_codec_ops *by, const void *p, uint64_t len, uint64_t ret_sum[2]);
void gpu_checksum_blocks(const struct gpu_codec_ops *by, const struct gpu_layout *layout,
			 const uint32_t *ids, uint32_t n, uint64_t (*ret_sums)[2]);
