#include "radix/map.h"

int radix_map_init(struct radix_map *m, const struct radix_alloc *alloc, uint64_t min_slots)
{
	uint64_t n = 64;

	while (n < min_slots)
		n *= 2;
	*m = (struct radix_map){ .alloc = alloc, .mask = n - 1 };
	m->slots = radix_take(alloc, n * sizeof(uint64_t));
	if (!m->slots)
		return -ENOMEM;
	memset(m->slots, 0, n * sizeof(uint64_t));
	return 0;
}

void radix_map_deinit(struct radix_map *m)
{
	if (m->slots)
		radix_give(m->alloc, m->slots, (m->mask + 1) * sizeof(uint64_t));
	*m = (struct radix_map){ 0 };
}

static void put(struct radix_map *m, uint64_t hash, uint32_t number)
{
	uint64_t at = hash & m->mask;

	while (m->slots[at])
		at = (at + 1) & m->mask;
	m->slots[at] = (hash & ~(uint64_t)UINT32_MAX) | (number + 1u);
}

void radix_map_put(struct radix_map *m, uint64_t hash, uint32_t number)
{
	put(m, hash, number);
	m->n++;
}

int radix_map_grow(struct radix_map *m, radix_map_hash_fn hash_of, const void *ctx)
{
	struct radix_map bigger;
	int r;

	if ((m->n + 1) * 3 <= (m->mask + 1) * 2)
		return 0;
	r = radix_map_init(&bigger, m->alloc, (m->mask + 1) * 2);
	if (r < 0) /* slower probes are better than a refusal, while there is room */
		return (m->n + 1) * 16 <= (m->mask + 1) * 15 ? 0 : r;
	for (uint64_t i = 0; i <= m->mask; i++) {
		uint32_t number = (uint32_t)m->slots[i] - 1;

		if (m->slots[i])
			put(&bigger, hash_of(ctx, number), number);
	}
	bigger.n = m->n;
	bigger.mismatch = m->mismatch;
	radix_map_deinit(m);
	*m = bigger;
	return 0;
}

static uint64_t slot_of(const struct radix_map *m, uint64_t hash, uint32_t number)
{
	uint64_t at = hash & m->mask;

	while ((uint32_t)m->slots[at] != number + 1u) {
		radix_assert(m->slots[at]);
		at = (at + 1) & m->mask;
	}
	return at;
}

void radix_map_replace(struct radix_map *m, uint64_t hash, uint32_t from, uint32_t to)
{
	uint64_t at = slot_of(m, hash, from);

	m->slots[at] = (m->slots[at] & ~(uint64_t)UINT32_MAX) | (to + 1u);
}

/*
 * Deletion by shifting back: an element behind the hole moves into it unless its home lies
 * cyclically behind the hole, since probing for it would stop there.
 */
void radix_map_delete(struct radix_map *m, uint64_t hash, uint32_t number,
		      radix_map_hash_fn hash_of, const void *ctx)
{
	uint64_t hole = slot_of(m, hash, number);
	uint64_t at = hole;

	for (;;) {
		uint64_t home;

		at = (at + 1) & m->mask;
		if (!m->slots[at])
			break;
		home = hash_of(ctx, (uint32_t)m->slots[at] - 1) & m->mask;
		if (((at - home) & m->mask) >= ((at - hole) & m->mask)) {
			m->slots[hole] = m->slots[at];
			hole = at;
		}
	}
	m->slots[hole] = 0;
	m->n--;
}
