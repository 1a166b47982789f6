/*
 * kvblob.h - the blob in which libllama hands out the K/V of a sequence.
 *
 * What it is.  Reading and writing of that layout as pure functions over bytes: no libllama, no
 * allocation.  All integers are little endian and nothing is aligned:
 *
 *     u32 magic, i32 sequence, u32 streams (1 here), u32 cells
 *     per cell      i32 position, u32 sequences (1 here), i32 sequence
 *     u32 V is transposed (0 here), u32 layers, u32 width of K's rotation, u32 of V's
 *     per layer     i32 type, u64 bytes of a K row, a row per cell
 *     per layer     the same of V
 *
 * The layout has no version: it is that of the libllama that this program is built with.
 *
 * What it guarantees.  kvblob_parse() reads no byte outside the blob whatever is in it, and where
 * it returns 0 every row that it names lies inside, and the blob has no other bytes.
 */
#ifndef KVBLOB_H
#define KVBLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVBLOB_LAYERS_MAX 512

/* The rows of one layer, K or V, one for each cell. */
struct kvblob_rows {
	int32_t type;  /* ggml's number */
	uint64_t size; /* bytes of one row */
	size_t at;     /* offset of the first in the blob */
};

struct kvblob {
	uint32_t n_cells, n_layers;
	uint32_t rot_k, rot_v;
	size_t cells; /* offset of the first cell */
	struct kvblob_rows k[KVBLOB_LAYERS_MAX], v[KVBLOB_LAYERS_MAX];
};

enum {
	KVBLOB_OK,
	KVBLOB_SHORT,
	KVBLOB_MAGIC,
	KVBLOB_STREAMS,
	KVBLOB_NO_CELLS,
	KVBLOB_CELLS,
	KVBLOB_EXTENDED_CELLS,
	KVBLOB_TRANSPOSED,
	KVBLOB_LAYERS,
	KVBLOB_ROWS,
	KVBLOB_NO_V,
	KVBLOB_TRAILING
};

/* Return: 0, or one of above; then *ret means nothing. */
int kvblob_parse(const void *blob, size_t len, struct kvblob *ret);
/* Half a sentence that goes on "the state of a sequence ...". */
const char *kvblob_error_to_string(int error);

/* Whether rows of `a` may take the place of rows of `b`: same layers, types, sizes, rotation. */
bool kvblob_same_shape(const struct kvblob *a, const struct kvblob *b);
/* Bytes of K and V of one token in all layers; 0 when they exceed 2^40. */
uint64_t kvblob_token_bytes(const struct kvblob *b);
/* Bytes of a blob of this shape; 0 when they exceed SIZE_MAX. */
size_t kvblob_size(const struct kvblob *shape, uint32_t n_cells);

/*
 * Where the cell of each position is: order[i] for position first + i, n_cells of them.
 * Return: false when a position is missing, doubled, or out of the range.
 */
bool kvblob_order(const void *blob, const struct kvblob *b, int32_t first, uint32_t *order);

/* The rows of n blocks, in the order of positions, to out[]: layer by layer K rows, then V rows. */
void kvblob_read(const void *blob, const struct kvblob *b, const uint32_t *order,
		 uint32_t block_tokens, uint32_t n, void *const *out);
/* The reverse: a blob of n * block_tokens cells, positions from `first` on; kvblob_size() bytes. */
void kvblob_write(const struct kvblob *shape, int32_t first, uint32_t block_tokens, uint32_t n,
		  const void *const *in, void *blob);

#endif
