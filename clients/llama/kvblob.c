/*
 * kvblob.c - see kvblob.h.
 *
 * Lengths are compared with what is left, never added up first, so that no sum can wrap.
 */
#include "clients/llama/kvblob.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the layout is the machine's own");

#define MAGIC           0xaf143cd8u
#define CELL            12u
/* A cell of a model with positions of several dimensions, or with embeddings per layer. */
#define CELL_EXTENDED   24u
#define TOKEN_BYTES_MAX (1ull << 40)

struct reader {
	const uint8_t *blob;
	size_t at, len;
	bool short_of;
};

static void take(struct reader *r, void *ret, size_t n)
{
	if (n > r->len - r->at) {
		r->short_of = true;
		memset(ret, 0, n);
		return;
	}
	memcpy(ret, r->blob + r->at, n);
	r->at += n;
}

static uint32_t take_u32(struct reader *r)
{
	uint32_t v;

	take(r, &v, sizeof(v));
	return v;
}

static int take_rows(struct reader *r, uint32_t n_cells, struct kvblob_rows *ret)
{
	take(r, &ret->type, sizeof(ret->type));
	take(r, &ret->size, sizeof(ret->size));
	ret->at = r->at;
	if (r->short_of)
		return KVBLOB_SHORT;
	if (!ret->size || ret->type < 0)
		return KVBLOB_ROWS;
	if (ret->size > (r->len - r->at) / n_cells)
		return KVBLOB_SHORT;
	r->at += (size_t)ret->size * n_cells;
	return 0;
}

static void cell_at(const uint8_t *blob, size_t at, int32_t *ret_position, uint32_t *ret_sequences,
		    int32_t *ret_sequence)
{
	memcpy(ret_position, blob + at, 4);
	memcpy(ret_sequences, blob + at + 4, 4);
	memcpy(ret_sequence, blob + at + 8, 4);
}

/* Whether what does not read as plain cells reads as cells with something more in each. */
static bool cells_extended(const struct reader *r, uint32_t n_cells, int32_t sequence)
{
	int32_t position, last;
	uint32_t n;

	if (n_cells > (r->len - r->at) / CELL_EXTENDED)
		return false;
	for (uint32_t i = 0; i < n_cells; i++) {
		size_t at = r->at + (size_t)i * CELL_EXTENDED;

		cell_at(r->blob, at, &position, &n, &last);
		memcpy(&last, r->blob + at + CELL_EXTENDED - 4, 4);
		if (n != 1 || last != sequence)
			return false;
	}
	return true;
}

static int take_cells(struct reader *r, uint32_t n_cells, int32_t sequence)
{
	size_t first = r->at;

	if (!n_cells)
		return KVBLOB_NO_CELLS;
	if (n_cells > (r->len - r->at) / CELL)
		return KVBLOB_SHORT;
	for (uint32_t i = 0; i < n_cells; i++) {
		int32_t position, of;
		uint32_t n;

		cell_at(r->blob, first + (size_t)i * CELL, &position, &n, &of);
		if (position < 0 || n != 1 || of != sequence)
			return cells_extended(r, n_cells, sequence) ? KVBLOB_EXTENDED_CELLS
								    : KVBLOB_CELLS;
	}
	r->at += (size_t)n_cells * CELL;
	return 0;
}

static int take_layers(struct reader *r, struct kvblob *b)
{
	int e = 0;

	b->n_layers = take_u32(r);
	b->rot_k = take_u32(r);
	b->rot_v = take_u32(r);
	if (r->short_of)
		return KVBLOB_SHORT;
	if (!b->n_layers || b->n_layers > KVBLOB_LAYERS_MAX)
		return KVBLOB_LAYERS;
	for (uint32_t i = 0; i < b->n_layers && !e; i++)
		e = take_rows(r, b->n_cells, &b->k[i]);
	if (!e && r->at == r->len)
		return KVBLOB_NO_V;
	for (uint32_t i = 0; i < b->n_layers && !e; i++)
		e = take_rows(r, b->n_cells, &b->v[i]);
	return e;
}

int kvblob_parse(const void *blob, size_t len, struct kvblob *ret)
{
	struct reader r = { .blob = blob, .len = len };
	uint32_t magic = take_u32(&r), transposed;
	int32_t sequence = (int32_t)take_u32(&r);
	uint32_t n_streams = take_u32(&r);
	int e;

	ret->n_cells = take_u32(&r);
	ret->cells = r.at;
	if (r.short_of)
		return KVBLOB_SHORT;
	if (magic != MAGIC)
		return KVBLOB_MAGIC;
	if (n_streams != 1)
		return KVBLOB_STREAMS;
	e = take_cells(&r, ret->n_cells, sequence);
	if (e)
		return e;
	transposed = take_u32(&r);
	if (!r.short_of && transposed)
		return transposed == 1 ? KVBLOB_TRANSPOSED : KVBLOB_LAYERS;
	e = take_layers(&r, ret);
	if (e)
		return e;
	return r.at == len ? 0 : KVBLOB_TRAILING;
}

const char *kvblob_error_to_string(int error)
{
	static const char *const text[] = {
		[KVBLOB_OK] = "is well formed",
		[KVBLOB_SHORT] = "ends too early",
		[KVBLOB_MAGIC] = "begins with an unknown number",
		[KVBLOB_STREAMS] = "has several streams: the context needs kv_unified",
		[KVBLOB_NO_CELLS] = "is empty",
		[KVBLOB_CELLS] = "has cells of an unknown form",
		[KVBLOB_EXTENDED_CELLS] = "keeps more of a token than its position (M-RoPE)",
		[KVBLOB_TRANSPOSED] = "has V transposed: the context needs flash attention",
		[KVBLOB_LAYERS] = "has layers of an unknown form",
		[KVBLOB_ROWS] = "has rows of an unknown form",
		[KVBLOB_NO_V] = "has no V (multi-head latent attention)",
		[KVBLOB_TRAILING] = "has a second part (sliding windows, recurrent layers)",
	};

	if (error < 0 || (size_t)error >= sizeof(text) / sizeof(*text))
		return "has an unknown fault";
	return text[error];
}

bool kvblob_same_shape(const struct kvblob *a, const struct kvblob *b)
{
	if (a->n_layers != b->n_layers || a->rot_k != b->rot_k || a->rot_v != b->rot_v)
		return false;
	for (uint32_t i = 0; i < a->n_layers; i++) {
		if (a->k[i].type != b->k[i].type || a->k[i].size != b->k[i].size ||
		    a->v[i].type != b->v[i].type || a->v[i].size != b->v[i].size)
			return false;
	}
	return true;
}

uint64_t kvblob_token_bytes(const struct kvblob *b)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < b->n_layers; i++) {
		if (b->k[i].size > TOKEN_BYTES_MAX - sum)
			return 0;
		sum += b->k[i].size;
		if (b->v[i].size > TOKEN_BYTES_MAX - sum)
			return 0;
		sum += b->v[i].size;
	}
	return sum;
}

size_t kvblob_size(const struct kvblob *shape, uint32_t n_cells)
{
	uint64_t token = kvblob_token_bytes(shape);
	size_t fixed = 8 * 4 + (size_t)shape->n_layers * 2 * 12, rest;

	if (!token || token + CELL > (SIZE_MAX - fixed) / (n_cells ? n_cells : 1))
		return 0;
	rest = (size_t)(token + CELL) * n_cells;
	return fixed + rest;
}

bool kvblob_order(const void *blob, const struct kvblob *b, int32_t first, uint32_t *order)
{
	for (uint32_t i = 0; i < b->n_cells; i++)
		order[i] = UINT32_MAX;
	for (uint32_t i = 0; i < b->n_cells; i++) {
		int32_t position, sequence;
		uint32_t n;
		int64_t at;

		cell_at(blob, b->cells + (size_t)i * CELL, &position, &n, &sequence);
		at = (int64_t)position - first;
		if (at < 0 || at >= b->n_cells || order[at] != UINT32_MAX)
			return false;
		order[at] = i;
	}
	return true;
}

/* Rows of block `n` to `out`; cells that lie one behind the other go in one piece. */
static uint8_t *read_rows(const uint8_t *blob, const struct kvblob_rows *rows,
			  const uint32_t *order, uint32_t n, uint8_t *out)
{
	uint32_t i = 0, end;

	while (i < n) {
		for (end = i + 1; end < n && order[end] == order[end - 1] + 1;)
			end++;
		memcpy(out, blob + rows->at + order[i] * rows->size, (end - i) * rows->size);
		out += (end - i) * rows->size;
		i = end;
	}
	return out;
}

void kvblob_read(const void *blob, const struct kvblob *b, const uint32_t *order,
		 uint32_t block_tokens, uint32_t n, void *const *out)
{
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t *of = order + (size_t)i * block_tokens;
		uint8_t *to = out[i];

		for (uint32_t l = 0; l < b->n_layers; l++) {
			to = read_rows(blob, &b->k[l], of, block_tokens, to);
			to = read_rows(blob, &b->v[l], of, block_tokens, to);
		}
	}
}

static uint8_t *put(uint8_t *to, const void *from, size_t n)
{
	memcpy(to, from, n);
	return to + n;
}

static uint8_t *put_u32(uint8_t *to, uint32_t v)
{
	return put(to, &v, sizeof(v));
}

/* One layer's K or V rows of all blocks, which begin `skip` bytes into each block. */
static uint8_t *put_rows(uint8_t *to, const struct kvblob_rows *rows, uint32_t block_tokens,
			 uint32_t n, const void *const *in, size_t skip)
{
	to = put(to, &rows->type, sizeof(rows->type));
	to = put(to, &rows->size, sizeof(rows->size));
	for (uint32_t i = 0; i < n; i++)
		to = put(to, (const uint8_t *)in[i] + skip, block_tokens * rows->size);
	return to;
}

void kvblob_write(const struct kvblob *shape, int32_t first, uint32_t block_tokens, uint32_t n,
		  const void *const *in, void *blob)
{
	uint32_t n_cells = n * block_tokens;
	uint8_t *to = blob;
	size_t skip = 0;

	to = put_u32(to, MAGIC);
	to = put_u32(to, 0);
	to = put_u32(to, 1);
	to = put_u32(to, n_cells);
	for (uint32_t i = 0; i < n_cells; i++) {
		to = put_u32(to, (uint32_t)first + i);
		to = put_u32(to, 1);
		to = put_u32(to, 0);
	}
	to = put_u32(to, 0);
	to = put_u32(to, shape->n_layers);
	to = put_u32(to, shape->rot_k);
	to = put_u32(to, shape->rot_v);
	for (uint32_t l = 0; l < shape->n_layers; l++) {
		to = put_rows(to, &shape->k[l], block_tokens, n, in, skip);
		skip += block_tokens * (shape->k[l].size + shape->v[l].size);
	}
	skip = 0;
	for (uint32_t l = 0; l < shape->n_layers; l++) {
		skip += block_tokens * shape->k[l].size;
		to = put_rows(to, &shape->v[l], block_tokens, n, in, skip);
		skip += block_tokens * shape->v[l].size;
	}
}
