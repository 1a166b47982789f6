/*
 * codec_number.h - numbers of 16 and 8 bits, and the scales of gpu/kernels.h, for the processor and
 * for kernels.
 *
 * The same arithmetic everywhere, so that what a GPU coded equals what the processor would have
 * coded, byte for byte: single precision, rounded to nearest even, every product and sum on its own
 * (who compiles this says -ffp-contract=off, or -fmad=false), subnormal numbers kept.  The two
 * conversions of fp16 are instructions on a GPU; on numbers they give what is computed here.
 */
#pragma once

#include "gpu/kernels.h"

#include <string.h>

GPU_BOTH uint32_t gpu_bits_of(float f)
{
#ifdef __CUDA_ARCH__
	return __float_as_uint(f);
#else
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
#endif
}

GPU_BOTH float gpu_float_of(uint32_t u)
{
#ifdef __CUDA_ARCH__
	return __uint_as_float(u);
#else
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
#endif
}

GPU_BOTH float gpu_f16_to_f32(uint32_t h)
{
#ifdef __CUDA_ARCH__
	float f;

	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)h));
	return f;
#else
	uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;

	if (exponent == 0x1f)
		return gpu_float_of(sign | 0x7f800000u | fraction << 13);
	if (exponent)
		return gpu_float_of(sign | (exponent + 112) << 23 | fraction << 13);
	/* Steps of 2^-24: exact. */
	return gpu_float_of(sign | gpu_bits_of((float)fraction * 5.9604644775390625e-8f));
#endif
}

GPU_BOTH uint32_t gpu_f32_to_f16(float f)
{
#ifdef __CUDA_ARCH__
	unsigned short h;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
	return h;
#else
	uint32_t u = gpu_bits_of(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;

	if (a > 0x7f800000u)
		return sign | 0x7e00u;
	if (a >= 0x477ff000u) /* 65,520: half a step above the largest */
		return sign | 0x7c00u;
	/* Below 2^-14 the steps are 2^-24, which are those of numbers from 0.5 on. */
	if (a < 0x38800000u)
		return sign | (gpu_bits_of(gpu_float_of(a) + 0.5f) - 0x3f000000u);
	return sign | (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
#endif
}

GPU_BOTH float gpu_bf16_to_f32(uint32_t h)
{
	return gpu_float_of(h << 16);
}

GPU_BOTH uint32_t gpu_f32_to_bf16(float f)
{
	uint32_t u = gpu_bits_of(f);

	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (u >> 16 & 0x8000u) | 0x7fc0u;
	return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

GPU_BOTH float gpu_element_to_f32(uint32_t element, uint32_t h)
{
	return element == GPU_ELEMENT_F16 ? gpu_f16_to_f32(h) : gpu_bf16_to_f32(h);
}

GPU_BOTH uint32_t gpu_f32_to_element(uint32_t element, float f)
{
	return element == GPU_ELEMENT_F16 ? gpu_f32_to_f16(f) : gpu_f32_to_bf16(f);
}

/* From here on magnitudes have their sign bit cleared: they order as integers, NaN above all. */
GPU_BOTH uint32_t gpu_element_limit(uint32_t element)
{
	return element == GPU_ELEMENT_F16 ? GPU_F16_LIMIT : GPU_BF16_LIMIT;
}

/* The scale of a row whose largest magnitude is `a`, as bits of bf16. */
GPU_BOTH uint32_t gpu_codec_scale(uint32_t codec, float a)
{
	uint32_t u;

	if (a == 0.0f)
		return 0;
	if (codec == GPU_CODEC_INT8) {
		u = (gpu_bits_of(a / 127.0f) + 0xffffu) >> 16;
		return u < 0x80u ? 0x80u : u;
	}
	/* 448 is 1.75 * 2^8: the exponent of a less 8, one more where a's fraction is above. */
	u = gpu_bits_of(a) + 0x1fffffu;
	u = u < (3u + 8u) << 23 ? 3u << 23 : (u & 0x7f800000u) - (8u << 23);
	return u >> 16;
}

/* What elements are multiplied with; finite, since scales are at least 2^-126 or 0. */
GPU_BOTH float gpu_codec_inverse(uint32_t scale)
{
	return scale ? 1.0f / gpu_bf16_to_f32(scale) : 0.0f;
}

/* |v| below 127.5: adding 1.5 * 2^23 leaves the integer in the last bits. */
GPU_BOTH uint32_t gpu_int8_code(float v)
{
	return gpu_bits_of(v + 12582912.0f) & 0xffu;
}

/*
 * |v| at most 448.  Adding 2^20 times v's power of two rounds to the eighths of that power, which
 * then stand in the last bits; below 2^-6 the steps no longer shrink.
 */
GPU_BOTH uint32_t gpu_e4m3_code(float v)
{
	uint32_t u = gpu_bits_of(v), a = u & 0x7fffffffu, power = a & 0x7f800000u, sum;

	power = power < 121u << 23 ? 121u << 23 : power;
	sum = gpu_bits_of(gpu_float_of(a) + gpu_float_of(power + (20u << 23)));
	return (u >> 24 & 0x80u) | (sum - power - (20u << 23) + (power >> 20) - 8u * 121u);
}

/* Moved into the fields of fp16 a code reads as its value times 2^-8, subnormal ones too. */
GPU_BOTH float gpu_e4m3_value(uint32_t code)
{
	return gpu_f16_to_f32((code & 0x7fu) << 7 | (code & 0x80u) << 8) * 256.0f;
}

GPU_BOTH uint32_t gpu_codec_code(uint32_t codec, float v)
{
	return codec == GPU_CODEC_INT8 ? gpu_int8_code(v) : gpu_e4m3_code(v);
}

GPU_BOTH float gpu_codec_value(uint32_t codec, uint32_t code)
{
	return codec == GPU_CODEC_INT8 ? (float)(int8_t)code : gpu_e4m3_value(code);
}
