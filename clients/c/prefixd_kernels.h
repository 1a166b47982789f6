/*
 * prefixd_kernels.h - libprefixd: caches that lie layer by layer.  Comes after prefixd.h.
 *
 * An engine keeps its cache in tensors, one for each layer or for K and V of each, so that a block
 * lies in many pieces; a slot of the pool holds a block in one run.  These calls take blocks from
 * one form to the other, on the worker's stream, many at a time, wherever they lie:
 *
 *     pfx_cache_new      once: where the pieces are
 *     pfx_reserve        slots to write
 *     pfx_cache_store    (cache, stream, blocks, slots, n): cache to slots, in stream order
 *     pfx_stream_word    (client, stream, word, step), and pfx_commit_after(..., word, step, ...)
 *
 *     pfx_match          slots to read
 *     pfx_cache_load     (cache, stream, blocks, slots, n): slots to cache
 *     pfx_stream_word    (client, stream, word, step), and pfx_release_after(..., word, step, ...)
 *
 * Where the pool lies on a GPU a call puts its work into the stream and comes back: one launch of a
 * kernel for up to PFX_CACHE_LAUNCH blocks, or, where there are no kernels (the library was built
 * without, or the driver takes none of them for this GPU), a copy for each piece, which is slower
 * and the same.  `stream` is a CUstream that is not being captured, and its context is current on
 * the thread in all calls, pfx_cache_new and pfx_cache_free included: one context for one client.
 * Where the pool lies in this machine's memory the processor moves the blocks before the call
 * returns, and `stream` is not looked at.
 *
 * `blocks` and `slots` may be reused when the call returns.  No block, or slot, is written twice in
 * one call.  A lease is held until the stream is through with its slots.
 */
#ifndef PREFIXD_KERNELS_H
#define PREFIXD_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pfx_cache pfx_cache;

#define PFX_CACHE_PIECES 4096 /* of a block, at most */
#define PFX_CACHE_LAUNCH 1024 /* blocks that one launch moves, at most */

/*
 * Piece s of block b lies at pieces[s] + b * stride, and has piece_bytes.  In a slot the pieces
 * follow each other in the order of `pieces`, which must be that of all workers of the namespace.
 */
typedef struct pfx_cache_layout {
	size_t struct_size;
	const uint64_t *pieces; /* addresses on the device, or pointers; even; copied by the call */
	uint32_t n_pieces;
	uint32_t n_blocks;    /* block numbers are below it */
	uint64_t piece_bytes; /* even; n_pieces * piece_bytes is the namespace's block_bytes */
	uint64_t stride;      /* even; at least piece_bytes */
	const uint8_t
		*device; /* 16 bytes, the UUID of the GPU that the cache lies on; NULL: it lies
				* in this machine's memory */
} pfx_cache_layout;

/* Who moves. */
enum {
	PFX_CACHE_PROCESSOR = 0,
	PFX_CACHE_KERNEL = 1,
	PFX_CACHE_COPIES = 2 /* on a GPU, piece by piece */
};

/*
 * The namespace is mapped.  On a GPU the cache takes 2 to 6 MiB of its memory, and less than that
 * of pinned memory.  Return: PFX_OK; PFX_ARGUMENT: a field that pfx_error() names does not fit the
 * namespace, its pool or the others; PFX_NO_MEMORY; PFX_UNSUPPORTED: the driver refuses,
 * pfx_error() says what; PFX_DEVICE_LOST: the GPU is, and what was mapped of it is gone.
 */
PFX_API int pfx_cache_new(pfx_namespace *ns, const pfx_cache_layout *layout, pfx_cache **ret_cache);
/*
 * Waits for what the cache put into streams, as long as calls of its client may take; what is not
 * through by then keeps the cache's memory on the device until the process ends.  pfx_close does so
 * for all that are left.  Accepts NULL.
 */
PFX_API void pfx_cache_free(pfx_cache *cache);
/* PFX_CACHE_*.  *ret_why, which may be NULL: with PFX_CACHE_COPIES why there is no kernel, else "";
 * good as long as the cache. */
PFX_API int pfx_cache_mover(const pfx_cache *cache, const char **ret_why);

/*
 * Block blocks[i] of the cache into slot slots[i], which pfx_reserve named.  Return: PFX_OK;
 * PFX_ARGUMENT: a block or slot that is not there; PFX_FORBIDDEN: the namespace is mapped to be
 * read; PFX_WRONG_STATE: the pool lies elsewhere than when the cache was made, or the memory to
 * write in went with its connection; PFX_DEVICE_LOST: the GPU is lost, and no lease is held that
 * slots could be of; PFX_DEADLINE: so much is in the streams that the call waited in vain to put in
 * more; PFX_NO_MEMORY, PFX_UNSUPPORTED: the driver refuses, pfx_error() says what.  After the last
 * three a part may have been put in: what the call named as places to write holds anything until it
 * is written again.
 */
PFX_API int pfx_cache_store(pfx_cache *cache, void *stream, const uint32_t *blocks,
			    const uint32_t *slots, uint32_t n);
/* Slot slots[i] of the pool, of a lease that is held, into block blocks[i].  Return: as above, but
 * for PFX_FORBIDDEN. */
PFX_API int pfx_cache_load(pfx_cache *cache, void *stream, const uint32_t *blocks,
			   const uint32_t *slots, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
