/*
 * cache.h - a worker's dealings with prefixd: what of a prompt is there, and what to give back.
 *
 *     cache_begin    MATCH, and import into the empty sequence -> tokens that need no prefill
 *     cache_poll     as long as blocks are still to come: from below, or from another worker
 *     cache_computed after each step: blocks that became full are reserved, exported, committed
 *     cache_end      RELEASE
 *
 * The worker's own work never depends on it: every call is bounded by the deadline, and whatever
 * fails - no daemon, no room, a block that does not fit - means "compute".  One cache belongs to
 * the engine thread; requests of several slots may be open at once, and none of them waits for
 * another inside a call.
 */
#ifndef LLAMA_CACHE_H
#define LLAMA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct llama_context;
struct llama_model;
struct kvstate;
struct cache;
struct cache_request;

/* Everything that must agree for K/V to be interchangeable, beside what the state's shape says. */
struct cache_options {
	const char *socket;   /* NULL: libprefixd's default */
	const char *tenant;   /* NULL: the first of the daemon's list */
	const char *model;    /* name shown to operators */
	const char *revision; /* digest of the model file, cache_digest_file() */
	const char *adapter;  /* LoRA: digest and scale; "" for none */
	const char *engine;   /* libllama's version and what of its settings changes K/V bits */
	uint32_t deadline_ms; /* for each call of the daemon */
	uint32_t load_ms; /* how long a load from lower tiers may be waited for; 0: not at all */
	uint32_t wait_ms; /* how long another worker's computation may be waited for */
};

struct cache_counters {
	uint64_t requests, prompt_tokens, hit_tokens, stored_blocks, duplicate_blocks;
	uint64_t waited; /* requests for which blocks were waited for */
	uint64_t import_us, export_us, daemon_us;
	uint64_t failures; /* calls that did not do what was asked */
};

enum {
	CACHE_LATER = 1
};

/*
 * The daemon may be away: then requests hit nothing until it is there.  Where it is there and makes
 * the pool, this waits for it, 10 seconds at most.  `state` is the caller's and
 * outlives the cache; strings are copied.  0; -ENOMEM; -EINVAL.
 */
int cache_new(const struct cache_options *options, struct kvstate *state, struct cache **ret);
/* All requests have ended.  Accepts NULL. */
struct cache *cache_free(struct cache *cache);
void cache_get_counters(const struct cache *cache, struct cache_counters *ret);
/* Why something failed last, a sentence; "" while nothing did. */
const char *cache_problem(const struct cache *cache);

/*
 * Begins a request: `tokens` is the prompt, `ctx` has an empty sequence 0.  *ret_hit is a multiple
 * of block_tokens, less than n_tokens (the last token is always decoded, for its logits), and
 * positions 0 ... *ret_hit - 1 of sequence 0 hold those tokens' K/V.  `tokens` is copied.
 *
 * Return: 0, also when nothing could be had; -ENOMEM, without a request.  CACHE_LATER: more is
 * coming; nothing has been imported yet and *ret_hit is 0: call cache_poll, other requests' steps
 * between the calls, before anything is decoded.  Who decodes all the same computes everything.
 */
int cache_begin(struct cache *cache, struct llama_context *ctx, const int32_t *tokens,
		size_t n_tokens, const void *salt, size_t salt_len, struct cache_request **ret,
		uint32_t *ret_hit);
/*
 * Has it come?  Waits for `block_ms` at most: 0 where other requests have work to do (it may be
 * theirs that is waited for), some milliseconds where none has.  Return: 0 with *ret_hit as of
 * cache_begin, at the latest load_ms + wait_ms after it; or CACHE_LATER.
 */
int cache_poll(struct cache_request *request, uint32_t block_ms, uint32_t *ret_hit);
/*
 * Sequence 0 now holds n_tokens tokens; `more` are those decoded since the last call that were not
 * part of the prompt.  Full blocks that are new are stored; at most one round of calls per run of
 * blocks, none while no block became full.
 */
void cache_computed(struct cache_request *request, const int32_t *more, size_t n_more,
		    uint32_t n_tokens);
/* Gives everything back, at any time.  Accepts NULL. */
void cache_end(struct cache_request *request);

/*
 * XXH3-128 of a file, of all files where its name says that it is the first of several, as 32
 * hexadecimal digits.  What was read once is remembered in $XDG_CACHE_HOME/prefixd-llama (else
 * ~/.cache/prefixd-llama) by device, inode, size and times, and not read again.  0; negative errno.
 */
int cache_digest_file(const char *path, char ret_digest[33]);

#endif
