/*
 * policy.h - two tiers as a table of blocks, the slow and obvious way: leaf LRU in each, and a
 * block that comes up keeps its host copy.
 *
 * The host tier is a leaf LRU of copies of its own: a hit in host memory refreshes the copy, a
 * device block that goes is written down only if there is no copy yet.
 */
#pragma once

#include <stdint.h>

struct policy;

struct policy_counts {
	uint64_t device, host; /* blocks hit */
	uint64_t down, up;     /* blocks moved */
};

struct policy *policy_new(uint32_t n_device, uint32_t n_host, uint32_t max_blocks);
void policy_free(struct policy *p);
/* One request, an instant: blocks by number, each with the one before as its parent. */
void policy_request(struct policy *p, const uint32_t *blocks, uint32_t n);
void policy_counts(const struct policy *p, struct policy_counts *ret);
