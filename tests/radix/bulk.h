/*
 * bulk.h - put long paths into an index: for tests and benchmarks with many blocks.
 *
 * What a worker does, without its waiting: match, pin, reserve what is missing, commit it block by
 * block, touch, drop.
 */
#pragma once

#include "radix/index.h"

enum {
	BULK_OWNER = 1,
	BULK_RUNS = 64
};

/* Commit keys[0..n) behind the pin.  Return: blocks committed; fewer without room or memory. */
static inline uint32_t bulk_commit(struct radix_index *ix, struct radix_pin *pin,
				   const uint8_t *keys, uint32_t n, uint32_t key_len,
				   uint32_t n_tokens, uint64_t tick)
{
	uint32_t done = 0;

	while (done < n) {
		struct radix_run v[BULK_RUNS];
		struct radix_runs runs = { .v = v, .cap = BULK_RUNS };
		uint32_t granted = 0;

		radix_reserve(ix, BULK_OWNER, n - done, &runs, &granted);
		if (!granted)
			return done;
		for (uint32_t i = 0; i < runs.n; i++) {
			for (uint32_t j = 0; j < v[i].len; j++) {
				struct radix_block block = { .key = keys + (size_t)done * key_len,
							     .slot = v[i].start + j,
							     .n_tokens = n_tokens };
				enum radix_commit_result result;
				uint32_t slot;

				if (radix_commit(ix, pin, BULK_OWNER, &block, tick, &slot, &result))
					return done;
				done++;
			}
		}
	}
	return done;
}

/* Store a path.  Return: how many of its blocks were new. */
static inline uint32_t bulk_store(struct radix_index *ix, uint32_t root, const uint8_t *keys,
				  uint32_t n, uint32_t key_len, uint32_t n_tokens, uint64_t tick)
{
	struct radix_place from = radix_place_root(root);
	struct radix_pin pin = { 0 };
	struct radix_match m;
	uint32_t n_new;

	radix_match(ix, &from, keys, n, NULL, &m);
	radix_pin_take(ix, &pin, &m.end);
	n_new = bulk_commit(ix, &pin, keys + (size_t)m.n_blocks * key_len, n - m.n_blocks, key_len,
			    n_tokens, tick);
	radix_touch(ix, &pin.at, tick);
	radix_pin_drop(ix, &pin);
	return n_new;
}
