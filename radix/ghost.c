/*
 * ghost.c - see ghost.h.
 *
 * The table has room for four thirds of the ring, so that a search ends soon.
 */
#include "radix/ghost.h"

int radix_ghost_init(struct radix_ghost *g, const struct radix_alloc *alloc, uint32_t cap)
{
	uint32_t bits = 1;

	radix_assert(cap && cap <= 1u << 30);
	while ((UINT64_C(1) << bits) < cap + (uint64_t)cap / 3 + 1)
		bits++;
	*g = (struct radix_ghost){
		.alloc = alloc,
		.cap = cap,
		.mask = (uint32_t)((UINT64_C(1) << bits) - 1),
		.shift = 64 - bits,
	};
	g->ring = radix_take(alloc, cap * sizeof(*g->ring));
	g->table = radix_take(alloc, ((size_t)g->mask + 1) * sizeof(*g->table));
	if (!g->ring || !g->table) {
		radix_ghost_deinit(g);
		return -ENOMEM;
	}
	memset(g->ring, 0, cap * sizeof(*g->ring));
	memset(g->table, 0, ((size_t)g->mask + 1) * sizeof(*g->table));
	return 0;
}

void radix_ghost_deinit(struct radix_ghost *g)
{
	if (!g->alloc)
		return;
	radix_give(g->alloc, g->ring, g->cap * sizeof(*g->ring));
	radix_give(g->alloc, g->table, ((size_t)g->mask + 1) * sizeof(*g->table));
	*g = (struct radix_ghost){ 0 };
}

uint64_t radix_ghost_bytes(const struct radix_ghost *g)
{
	return g->cap ? g->cap * sizeof(*g->ring) + ((uint64_t)g->mask + 1) * sizeof(*g->table) : 0;
}

/* 0 says that there is none. */
static uint64_t some(uint64_t fingerprint)
{
	return fingerprint ? fingerprint : 1;
}

static uint32_t home(const struct radix_ghost *g, uint64_t fingerprint)
{
	return (uint32_t)(fingerprint >> g->shift);
}

/* Where the table has it, or the free place where it would. */
static uint32_t find(const struct radix_ghost *g, uint64_t fingerprint)
{
	uint32_t i = home(g, fingerprint);

	while (g->table[i] && g->ring[g->table[i] - 1] != fingerprint)
		i = (i + 1) & g->mask;
	return i;
}

/* Place i becomes free; what was put further on because of it comes back. */
static void forget(struct radix_ghost *g, uint32_t i)
{
	uint32_t k = i;

	g->ring[g->table[i] - 1] = 0;
	g->n--;
	for (;;) {
		uint32_t from;

		k = (k + 1) & g->mask;
		if (!g->table[k])
			break;
		from = home(g, g->ring[g->table[k] - 1]);
		if (((k - from) & g->mask) < ((k - i) & g->mask))
			continue; /* it belongs behind i */
		g->table[i] = g->table[k];
		i = k;
	}
	g->table[i] = 0;
}

bool radix_ghost_take(struct radix_ghost *g, uint64_t fingerprint)
{
	uint32_t i;

	if (!g->n)
		return false;
	i = find(g, some(fingerprint));
	if (!g->table[i])
		return false;
	forget(g, i);
	return true;
}

void radix_ghost_add(struct radix_ghost *g, uint64_t fingerprint)
{
	if (!g->cap)
		return;
	(void)radix_ghost_take(g, fingerprint);
	if (g->ring[g->next])
		forget(g, find(g, g->ring[g->next]));
	g->ring[g->next] = some(fingerprint);
	g->table[find(g, some(fingerprint))] = g->next + 1;
	g->next = g->next + 1 == g->cap ? 0 : g->next + 1;
	g->n++;
}
