/*
 * cold.c - cold.h's descriptions: read, checked, measured.
 */
#include "daemon/cold.h"

#include <stdio.h>

static bool is(const char *text, size_t len, const char *what)
{
	return len == strlen(what) && memcmp(text, what, len) == 0;
}

bool prefixd_cold_codec_parse(const char *text, size_t len, uint32_t *ret_codec)
{
	for (uint32_t codec = GPU_CODEC_NONE; codec <= GPU_CODEC_E4M3; codec++) {
		if (!is(text, len, prefixd_cold_codec_to_string(codec)))
			continue;
		*ret_codec = codec;
		return true;
	}
	return false;
}

const char *prefixd_cold_codec_to_string(uint32_t codec)
{
	switch (codec) {
	case GPU_CODEC_NONE:
		return "none";
	case GPU_CODEC_INT8:
		return "int8";
	case GPU_CODEC_E4M3:
		return "fp8";
	default:
		return "?";
	}
}

bool prefixd_cold_element_parse(const char *dtype, size_t len, uint32_t *ret_element)
{
	*ret_element = is(dtype, len, "float16")    ? GPU_ELEMENT_F16
		       : is(dtype, len, "bfloat16") ? GPU_ELEMENT_BF16
						    : 0;
	return *ret_element != 0;
}

bool prefixd_cold_layout_parse(const char *layout, size_t len, uint32_t *ret_order)
{
	const char *own = len ? memchr(layout, ';', len) : NULL;

	if (own)
		len = (size_t)(own - layout);
	*ret_order = is(layout, len, "block-major-hnd") ? GPU_ORDER_HND : GPU_ORDER_NHD;
	return *ret_order == GPU_ORDER_HND || is(layout, len, "block-major");
}

/* ---- lists of layers ------------------------------------------------------------------------- */

/* A number of at most three digits at *at, which moves behind it. */
static bool number(const char *list, size_t len, size_t *at, uint32_t *ret)
{
	size_t begin = *at;

	*ret = 0;
	while (*at < len && *at < begin + 3 && list[*at] >= '0' && list[*at] <= '9')
		*ret = 10 * *ret + (uint32_t)(list[(*at)++] - '0');
	return *at > begin;
}

bool prefixd_cold_layers_parse(const char *list, size_t len, uint32_t layers, uint8_t *ret_exact)
{
	size_t at = 0;

	memset(ret_exact, 0, PREFIXD_COLD_LAYERS_MAX / 8);
	if (len == 0)
		return true;
	for (;;) {
		uint32_t first, last;

		if (!number(list, len, &at, &first))
			return false;
		last = first;
		if (at < len && list[at] == '-') {
			at++;
			if (!number(list, len, &at, &last))
				return false;
		}
		if (last < first || last >= radix_min_u32(layers, PREFIXD_COLD_LAYERS_MAX))
			return false;
		for (; first <= last; first++)
			ret_exact[first / 8] |= (uint8_t)(1u << (first % 8));
		if (at == len)
			return true;
		if (list[at++] != ',')
			return false;
	}
}

const char *prefixd_cold_layers_print(const struct prefixd_cold *cold, char *out, size_t out_len)
{
	size_t at = 0;

	out[0] = '\0';
	for (uint32_t i = 0, last; i < cold->layers && at < out_len; i = last + 1) {
		last = i;
		if (!prefixd_cold_exact(cold, i))
			continue;
		while (last + 1 < cold->layers && prefixd_cold_exact(cold, last + 1))
			last++;
		at += (size_t)snprintf(out + at, out_len - at, last > i ? "%s%u-%u" : "%s%u",
				       at ? "," : "", i, last);
	}
	return out;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

void prefixd_cold_coded(const struct prefixd_cold *cold, struct gpu_coded *ret_coded)
{
	*ret_coded = (struct gpu_coded){
		.geometry = {
			.tokens = cold->tokens,
			.heads = cold->heads,
			.dim = cold->dim,
			.order = cold->order,
			.element = cold->element,
		},
		.codec = cold->codec,
		.n_pieces = 2 * cold->layers,
	};
	for (uint32_t i = 0; i < ret_coded->n_pieces; i++)
		if (prefixd_cold_exact(cold, i / 2))
			ret_coded->exact[i / 8] |= (uint8_t)(1u << (i % 8));
}

uint64_t prefixd_cold_bytes(const struct prefixd_cold *cold, uint64_t block_bytes)
{
	struct gpu_coded coded;

	if (cold->codec == GPU_CODEC_NONE)
		return block_bytes;
	prefixd_cold_coded(cold, &coded);
	return gpu_coded_bytes(&coded);
}

uint64_t prefixd_cold_stride(const struct prefixd_cold *cold, uint64_t block_bytes,
			     uint32_t n_ranks)
{
	if (cold->codec == GPU_CODEC_NONE)
		return n_ranks * ((block_bytes + 63) & ~UINT64_C(63));
	return (n_ranks * prefixd_cold_bytes(cold, block_bytes) + PREFIXD_COLD_SEAL + 63) &
	       ~UINT64_C(63);
}

bool prefixd_cold_ok(const struct prefixd_cold *cold, uint64_t block_bytes)
{
	static const struct prefixd_cold none;
	unsigned __int128 piece;

	if (cold->codec == GPU_CODEC_NONE)
		return memcmp(cold, &none, sizeof(none)) == 0;
	if (cold->codec > GPU_CODEC_E4M3 ||
	    (cold->element != GPU_ELEMENT_F16 && cold->element != GPU_ELEMENT_BF16) ||
	    cold->order > GPU_ORDER_HND || cold->layers == 0 ||
	    cold->layers > PREFIXD_COLD_LAYERS_MAX || !cold->heads || !cold->dim || !cold->tokens)
		return false;
	for (uint32_t i = cold->layers; i < PREFIXD_COLD_LAYERS_MAX; i++)
		if (prefixd_cold_exact(cold, i))
			return false;
	/* 32 bits each: three of them fit. */
	piece = (unsigned __int128)cold->tokens * cold->heads * cold->dim * 2;
	if (piece > block_bytes || piece > INT32_MAX || 2 * piece * cold->layers != block_bytes)
		return false;
	return prefixd_cold_stride(cold, block_bytes, 1) < block_bytes;
}
