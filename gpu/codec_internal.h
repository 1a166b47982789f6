/*
 * codec_internal.h - what codec.c and its versions for single kinds of processors share.
 */
#pragma once

#include "gpu/codec.h"

extern const uint32_t gpu_checksum_keys[GPU_CHECKSUM_KEYS + 4]; /* at a multiple of 64 bytes */

#ifdef GPU_CODEC_AVX2
/* To be used where the processor has AVX2 and F16C. */
extern const struct gpu_codec_ops gpu_codec_avx2;
#endif
