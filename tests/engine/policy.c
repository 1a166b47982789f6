/*
 * policy.c - see policy.h.
 */
#include "tests/engine/policy.h"

#include <stdbool.h>
#include <stdlib.h>

enum {
	DEVICE,
	HOST
};

struct block {
	bool in[2];
	uint32_t children[2];
	uint64_t used[2]; /* when the copy was used last */
	uint32_t parent;
	uint32_t depth;
	bool seen, busy;
};

struct policy {
	struct block *v;
	uint32_t n; /* numbers seen so far */
	uint32_t cap[2], count[2];
	uint64_t now;
	struct policy_counts counts;
};

struct policy *policy_new(uint32_t n_device, uint32_t n_host, uint32_t max_blocks)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (!p)
		abort();
	p->v = calloc(max_blocks, sizeof(*p->v));
	if (!p->v)
		abort();
	p->cap[DEVICE] = n_device;
	p->cap[HOST] = n_host;
	return p;
}

void policy_free(struct policy *p)
{
	free(p->v);
	free(p);
}

static void put(struct policy *p, uint32_t b, int tier)
{
	p->v[b].in[tier] = true;
	p->count[tier]++;
	if (p->v[b].depth)
		p->v[p->v[b].parent].children[tier]++;
}

static void take(struct policy *p, uint32_t b, int tier)
{
	p->v[b].in[tier] = false;
	p->count[tier]--;
	if (p->v[b].depth)
		p->v[p->v[b].parent].children[tier]--;
}

/* The coldest copy below which none hangs, the deepest of these; UINT32_MAX: none. */
static uint32_t victim(const struct policy *p, int tier)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < p->n; i++) {
		const struct block *b = &p->v[i];

		if (!b->in[tier] || b->children[tier] || (tier == DEVICE && b->busy))
			continue;
		if (best == UINT32_MAX || b->used[tier] < p->v[best].used[tier] ||
		    (b->used[tier] == p->v[best].used[tier] && b->depth > p->v[best].depth))
			best = i;
	}
	return best;
}

static bool free_device(struct policy *p)
{
	uint32_t b = victim(p, DEVICE);

	if (b == UINT32_MAX)
		return false;
	if (!p->v[b].in[HOST]) {
		while (p->count[HOST] >= p->cap[HOST])
			take(p, victim(p, HOST), HOST);
		put(p, b, HOST);
		p->v[b].used[HOST] = p->now;
		p->counts.down++;
	}
	take(p, b, DEVICE);
	return true;
}

void policy_request(struct policy *p, const uint32_t *blocks, uint32_t n)
{
	uint32_t device = 0, hit;

	p->now++;
	for (uint32_t i = 0; i < n; i++) {
		struct block *b = &p->v[blocks[i]];

		p->n = blocks[i] >= p->n ? blocks[i] + 1 : p->n;
		b->depth = i;
		b->parent = i ? blocks[i - 1] : 0;
		b->busy = true;
	}
	while (device < n && p->v[blocks[device]].in[DEVICE])
		device++;
	for (hit = device; hit < n && p->v[blocks[hit]].in[HOST]; hit++)
		p->v[blocks[hit]].used[HOST] = p->now;
	p->counts.device += device;
	p->counts.host += hit - device;
	for (uint32_t i = device; i < n; i++) {
		if (p->count[DEVICE] >= p->cap[DEVICE] && !free_device(p))
			break;
		put(p, blocks[i], DEVICE);
		p->counts.up += i < hit;
	}
	for (uint32_t i = 0; i < n; i++) {
		p->v[blocks[i]].busy = false;
		p->v[blocks[i]].used[DEVICE] = p->now;
	}
}

void policy_counts(const struct policy *p, struct policy_counts *ret)
{
	*ret = p->counts;
}
