/*
 * cache_kit.h - workers whose caches lie layer by layer, on the device of the test or in this
 * machine's memory, and what their blocks hold.
 *
 * A process that has made a worker on a GPU has loaded the driver: it does not fork any more.
 */
#pragma once

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_device.h"
#include "clients/c/prefixd_kernels.h"
#include "clients/c/prefixd_words.h"
#include "gpu/driver.h"

#include <stdbool.h>

#define KIT_LAYERS 3u
#define KIT_PIECES (2 * KIT_LAYERS)
#define KIT_PROMPT 8u /* blocks */

/* How K and V of the blocks of a layer lie in its tensor. */
enum kit_shape {
	KIT_HALVES, /* all K, then all V */
	KIT_PAIRS   /* K and V of a block side by side; and the layers from back to front */
};

struct kit_worker {
	pfx_client *client;
	pfx_namespace *ns;
	pfx_cache *cache;
	enum kit_shape shape;
	uint32_t n_blocks, piece;
	uint64_t pieces[KIT_PIECES];
	pfx_cache_layout layout;
	uint8_t uuid[16];
	size_t len;
	uint8_t *bytes;        /* the cache; of a GPU's a picture that is sent and fetched */
	gpu_cu_ptr address;    /* of the cache, on a GPU */
	gpu_cu_ptr picture_at; /* of `bytes`, for the GPU */
	gpu_cu_stream stream;
	uint64_t step;
};

/* What a call of the driver that the kit makes itself does when it fails; aborts the test if this
 * is NULL. */
extern void (*kit_refused)(const char *call, int result);
extern struct gpu_driver kit_driver; /* once a worker on a GPU was made */

/* Who has to move, PFX_CACHE_*, by the environment. */
int kit_mover_wanted(void);
/* A namespace for such blocks with words. */
int kit_open(pfx_client *c, uint32_t piece, int map, pfx_namespace **ret_ns);
/* Takes the client; the cache holds 0x11 everywhere and has no pfx_cache yet. */
void kit_worker_init(struct kit_worker *w, pfx_client *c, pfx_namespace *ns, enum kit_shape shape,
		     uint32_t n_blocks, uint32_t piece);
/* The cache, the stream, the client. */
void kit_worker_deinit(struct kit_worker *w);
/* The driver with a context for this thread, if that is not there already; and gives it back. */
void kit_load(void);
void kit_unload(void);
gpu_cu_stream kit_stream_new(void);
void kit_stream_free(gpu_cu_stream stream); /* when it is through */
/* Waits for the worker's stream; on a host pool there is nothing to wait for. */
void kit_settle(struct kit_worker *w);

/* The picture to the cache, and back, waited for. */
void kit_send(struct kit_worker *w);
void kit_fetch(struct kit_worker *w);
/* Block b of the picture becomes block i of prompt `seed`, or is that. */
void kit_fill(struct kit_worker *w, uint32_t b, uint32_t seed, uint32_t i);
bool kit_holds(const struct kit_worker *w, uint32_t b, uint32_t seed, uint32_t i);
bool kit_untouched(const struct kit_worker *w, uint32_t b);

const pfx_prompt *kit_prompt(uint32_t seed);
/* The first n slots of runs. */
void kit_slots(const pfx_run *runs, uint32_t n_runs, uint32_t *ret_slots, uint32_t n);
