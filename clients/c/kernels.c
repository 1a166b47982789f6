/*
 * kernels.c - caches that lie layer by layer: what the caller said of them, checked, and blocks
 * between them and slots; see prefixd_kernels.h.
 *
 * What it guarantees.  Nothing is moved before every number of the call is known to be good: what
 * reaches a device is inside the cache and inside the memory to be read or written.
 *
 * What it relies on.  The caller's layout describes his memory.  Where slots lie is asked anew in
 * each call, since a daemon that was restarted may have other memory.
 */
#include "clients/c/internal.h"
#include "clients/c/launch.h"
#include "clients/c/prefixd_kernels.h"
#include "gpu/codec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

struct pfx_cache {
	struct pfx_cache *next; /* of the namespace */
	struct pfx_namespace *ns;
	struct pfx_mover *mover; /* NULL: this machine's memory */
	uint32_t n_pieces, n_blocks, piece_bytes;
	uint64_t stride;
	uint64_t *slot_pieces; /* behind `pieces` */
	uint64_t pieces[];
};

static int not_mapped(struct pfx_client *c, const struct pfx_namespace *ns)
{
	if (ns->map)
		return pfx_fail(c, PFX_DEVICE_LOST,
				"the pool's GPU is lost; the next call on the namespace opens it "
				"again");
	return pfx_fail(c, PFX_ARGUMENT, "the namespace is not mapped (map = 0)");
}

/* ---- what the caller says -------------------------------------------------------------------- */

static int check_device(struct pfx_client *c, const struct pfx_namespace *ns, const uint8_t *id)
{
	const bool on_gpu = ns->device == PROTO_DEVICE_CUDA;

	if (on_gpu && !id)
		return pfx_fail(c, PFX_ARGUMENT,
				"device is NULL, and the namespace's pool lies on a GPU");
	if (!on_gpu && id)
		return pfx_fail(c, PFX_ARGUMENT,
				"device is a GPU, and the namespace's pool lies in this machine's "
				"memory");
	if (id && memcmp(id, ns->device_id.b, sizeof(ns->device_id.b)) != 0)
		return pfx_fail(c, PFX_ARGUMENT,
				"device is another GPU than the one the namespace's pool lies on");
	return 0;
}

static int check_sizes(struct pfx_client *c, const struct pfx_namespace *ns,
		       const pfx_cache_layout *l)
{
	if (l->n_pieces == 0 || l->n_pieces > PFX_CACHE_PIECES)
		return pfx_fail(c, PFX_ARGUMENT, "n_pieces is %u, not 1 to %d", l->n_pieces,
				PFX_CACHE_PIECES);
	if (l->n_blocks == 0)
		return pfx_fail(c, PFX_ARGUMENT, "n_blocks is 0");
	if (l->piece_bytes == 0 || l->piece_bytes % 2 || l->piece_bytes > UINT32_MAX)
		return pfx_fail(c, PFX_ARGUMENT, "piece_bytes is %" PRIu64 ", 0, odd or too large",
				l->piece_bytes);
	if (l->n_pieces * l->piece_bytes != ns->info.block_bytes)
		return pfx_fail(c, PFX_ARGUMENT,
				"piece_bytes is %" PRIu64 ", and %u pieces of it are not the "
				"namespace's block_bytes, %" PRIu64,
				l->piece_bytes, l->n_pieces, (uint64_t)ns->info.block_bytes);
	if (l->stride % 2 || l->stride < l->piece_bytes || l->stride > UINT64_MAX / 2 / l->n_blocks)
		return pfx_fail(c, PFX_ARGUMENT,
				"stride is %" PRIu64 ", odd, below piece_bytes or too large",
				l->stride);
	return 0;
}

static int check_pieces(struct pfx_client *c, const pfx_cache_layout *l)
{
	if (!l->pieces)
		return pfx_fail(c, PFX_ARGUMENT, "pieces is NULL");
	for (uint32_t s = 0; s < l->n_pieces; s++)
		if (l->pieces[s] == 0 || l->pieces[s] % 2 ||
		    l->pieces[s] > UINT64_MAX - l->n_blocks * l->stride)
			return pfx_fail(c, PFX_ARGUMENT,
					"pieces[%u] is %#" PRIx64 ", which is no even address of "
					"that much memory",
					s, l->pieces[s]);
	return 0;
}

/* ---- lifetime -------------------------------------------------------------------------------- */

static int status_of(int r)
{
	return r == -ENOMEM ? PFX_NO_MEMORY : r == -ETIMEDOUT ? PFX_DEADLINE : PFX_UNSUPPORTED;
}

static pfx_cache *cache_make(struct pfx_namespace *ns, const pfx_cache_layout *l)
{
	pfx_cache *cache = calloc(1, sizeof(*cache) + 16 * (size_t)l->n_pieces);

	if (!cache)
		return NULL;
	cache->ns = ns;
	cache->n_pieces = l->n_pieces;
	cache->n_blocks = l->n_blocks;
	cache->piece_bytes = (uint32_t)l->piece_bytes;
	cache->stride = l->stride;
	cache->slot_pieces = cache->pieces + l->n_pieces;
	memcpy(cache->pieces, l->pieces, 8 * (size_t)l->n_pieces);
	return cache;
}

int pfx_cache_new(pfx_namespace *ns, const pfx_cache_layout *layout, pfx_cache **ret_cache)
{
	struct pfx_client *c = ns ? ns->client : NULL;
	pfx_cache_layout l;
	char why[256] = "";
	pfx_cache *cache;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (!layout || !ret_cache || !pfx_struct_in(&l, sizeof(l), layout))
		return pfx_fail(c, PFX_ARGUMENT, "layout, its struct_size or ret_cache is missing");
	if (!ns->pool)
		return not_mapped(c, ns);
	r = check_device(c, ns, l.device);
	if (r == 0)
		r = check_sizes(c, ns, &l);
	if (r == 0)
		r = check_pieces(c, &l);
	if (r)
		return r;
	cache = cache_make(ns, &l);
	if (!cache)
		return pfx_fail(c, PFX_NO_MEMORY, "no memory for a cache");
	if (ns->pool->device)
		r = pfx_mover_new(ns->pool->device, cache->n_pieces, cache->piece_bytes,
				  &cache->mover, why, sizeof(why));
	if (r < 0) {
		free(cache);
		return pfx_fail(c, status_of(r), "a cache on a GPU: %s", why);
	}
	cache->next = ns->caches;
	ns->caches = cache;
	*ret_cache = cache;
	return 0;
}

static void cache_end(pfx_cache *cache, bool child)
{
	const struct pfx_client *c = cache->ns->client;

	if (child)
		pfx_mover_forget(cache->mover);
	else
		pfx_mover_free(cache->mover, pfx_now_ns() + (uint64_t)c->deadline_ms * 1000000u);
	free(cache);
}

void pfx_cache_free(pfx_cache *cache)
{
	struct pfx_cache **at;

	if (!cache)
		return;
	at = &cache->ns->caches;
	while (*at && *at != cache)
		at = &(*at)->next;
	radix_assert(*at); /* it was freed already */
	*at = cache->next;
	cache_end(cache, getpid() != cache->ns->client->pid);
}

void pfx_caches_free(struct pfx_namespace *ns, bool child)
{
	while (ns->caches) {
		pfx_cache *cache = ns->caches;

		ns->caches = cache->next;
		cache_end(cache, child);
	}
}

int pfx_cache_mover(const pfx_cache *cache, const char **ret_why)
{
	const char *why = cache && cache->mover ? pfx_mover_why(cache->mover) : NULL;

	if (!cache)
		return PFX_ARGUMENT;
	if (ret_why)
		*ret_why = why ? why : "";
	return !cache->mover ? PFX_CACHE_PROCESSOR : why ? PFX_CACHE_COPIES : PFX_CACHE_KERNEL;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Where slot 0 begins, for stores or loads, and how many there are; 0: nowhere. */
static uint64_t slots_at(const struct pfx_namespace *ns, bool store, uint32_t *ret_n)
{
	if (store && ns->desk) {
		*ret_n = ns->desk->n_places;
		return ns->desk->address ? ns->desk->address : (uintptr_t)ns->desk->base;
	}
	*ret_n = ns->pool->n_slots;
	if (store && ns->pool->map != 1)
		return 0;
	return ns->pool->address ? ns->pool->address : (uintptr_t)ns->pool->base;
}

static int check_ids(struct pfx_client *c, const char *what, const uint32_t *ids, uint32_t n,
		     uint32_t limit)
{
	for (uint32_t i = 0; i < n; i++)
		if (ids[i] >= limit)
			return pfx_fail(c, PFX_ARGUMENT, "%s[%u] is %u, and there are %u", what, i,
					ids[i], limit);
	return 0;
}

static void by_processor(const pfx_cache *cache, const struct pfx_side *from,
			 const struct pfx_side *to, uint32_t n)
{
	const struct gpu_layout a = { (uintptr_t)from->pieces, from->stride, cache->n_pieces,
				      cache->piece_bytes };
	const struct gpu_layout b = { (uintptr_t)to->pieces, to->stride, cache->n_pieces,
				      cache->piece_bytes };

	gpu_move(&a, from->ids, &b, to->ids, n);
	/* Whoever is told of the blocks by a word of this thread sees them. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static int move(pfx_cache *cache, void *stream, const uint32_t *blocks, const uint32_t *slots,
		uint32_t n, bool store)
{
	struct pfx_client *c = cache ? cache->ns->client : NULL;
	struct pfx_side in_cache, in_slots;
	uint32_t n_slots = 0;
	char why[256] = "so much is in the streams that there is no room for more";
	uint64_t at;
	int r = pfx_begin(c, 0);

	if (r)
		return r;
	if (n > 0 && (!blocks || !slots))
		return pfx_fail(c, PFX_ARGUMENT, "%s is NULL", blocks ? "slots" : "blocks");
	if (!cache->ns->pool)
		return not_mapped(c, cache->ns);
	if (store && pfx_desk_gone(cache->ns))
		return pfx_fail(c, PFX_WRONG_STATE,
				"the memory to write in went with its connection; the next call "
				"on the namespace opens it again");
	at = slots_at(cache->ns, store, &n_slots);
	if (!at)
		return pfx_fail(c, PFX_FORBIDDEN,
				"the pool is mapped to be read (map = 2): nothing can be stored");
	if (!cache->ns->pool->device != !cache->mover)
		return pfx_fail(c, PFX_WRONG_STATE,
				"the pool lies elsewhere than when the cache was made");
	r = check_ids(c, "blocks", blocks, n, cache->n_blocks);
	if (r == 0)
		r = check_ids(c, "slots", slots, n, n_slots);
	if (r)
		return r;
	for (uint32_t s = 0; s < cache->n_pieces; s++)
		cache->slot_pieces[s] = at + (uint64_t)s * cache->piece_bytes;
	in_cache = (struct pfx_side){ cache->pieces, cache->stride, blocks };
	in_slots = (struct pfx_side){ cache->slot_pieces, cache->ns->info.slot_stride, slots };
	if (cache->mover)
		r = pfx_mover_move(cache->mover, stream, store ? &in_cache : &in_slots,
				   store ? &in_slots : &in_cache, n, c->call_deadline_ns, why,
				   sizeof(why));
	else
		by_processor(cache, store ? &in_cache : &in_slots, store ? &in_slots : &in_cache,
			     n);
	return r == 0 ? 0 : pfx_fail(c, status_of(r), "%s: %s", store ? "store" : "load", why);
}

int pfx_cache_store(pfx_cache *cache, void *stream, const uint32_t *blocks, const uint32_t *slots,
		    uint32_t n)
{
	return move(cache, stream, blocks, slots, n, true);
}

int pfx_cache_load(pfx_cache *cache, void *stream, const uint32_t *blocks, const uint32_t *slots,
		   uint32_t n)
{
	return move(cache, stream, blocks, slots, n, false);
}
