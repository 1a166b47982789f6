#include "radix/map.h"

#define UPPER (~(uint64_t)UINT32_MAX)

int radix_map_init(struct radix_map *m, const struct radix_alloc *alloc, uint64_t min_slots)
{
	uint64_t n = 64;

	*m = (struct radix_map){ .alloc = alloc, .shift = 64 - 6 };
	while (n < min_slots) {
		n *= 2;
		m->shift--;
	}
	m->mask = n - 1;
	m->slots = m->shift < 32 ? NULL : radix_take(alloc, n * sizeof(uint64_t));
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

/* A whole slot word into the first free place from its home on; the upper bits are the hash's. */
static void put(struct radix_map *m, uint64_t slot)
{
	uint64_t at = radix_map_home(m, slot);

	while (m->slots[at])
		at = (at + 1) & m->mask;
	m->slots[at] = slot;
}

void radix_map_put(struct radix_map *m, uint64_t hash, uint32_t number)
{
	put(m, (hash & UPPER) | (number + 1u));
	m->n++;
}

int radix_map_reserve(struct radix_map *m, uint64_t n)
{
	struct radix_map bigger;
	int r;

	if (n * 3 <= (m->mask + 1) * 2)
		return 0;
	r = radix_map_init(&bigger, m->alloc, n + n / 2 + 1);
	if (r < 0)
		return r;
	radix_map_deinit(m);
	*m = bigger;
	return 0;
}

int radix_map_grow(struct radix_map *m)
{
	struct radix_map bigger;
	int r;

	if ((m->n + 1) * 3 <= (m->mask + 1) * 2)
		return 0;
	r = radix_map_init(&bigger, m->alloc, (m->mask + 1) * 2);
	if (r < 0) /* slower probes are better than a refusal, while there is room */
		return (m->n + 1) * 16 <= (m->mask + 1) * 15 ? 0 : r;
	for (uint64_t i = 0; i <= m->mask; i++) {
		if (m->slots[i])
			put(&bigger, m->slots[i]);
	}
	bigger.n = m->n;
	bigger.mismatch = m->mismatch;
	radix_map_deinit(m);
	*m = bigger;
	return 0;
}

static uint64_t slot_of(const struct radix_map *m, uint64_t hash, uint32_t number)
{
	uint64_t at = radix_map_home(m, hash);

	while ((uint32_t)m->slots[at] != number + 1u) {
		radix_assert(m->slots[at]);
		at = (at + 1) & m->mask;
	}
	return at;
}

void radix_map_replace(struct radix_map *m, uint64_t hash, uint32_t from, uint32_t to)
{
	uint64_t at = slot_of(m, hash, from);

	m->slots[at] = (m->slots[at] & UPPER) | (to + 1u);
}

/*
 * Deletion by shifting back: an element behind the hole moves into it unless its home lies
 * cyclically behind the hole, since probing for it would stop there.
 */
void radix_map_delete(struct radix_map *m, uint64_t hash, uint32_t number)
{
	uint64_t hole = slot_of(m, hash, number);
	uint64_t at = hole;

	for (;;) {
		uint64_t home;

		at = (at + 1) & m->mask;
		if (!m->slots[at])
			break;
		home = radix_map_home(m, m->slots[at]);
		if (((at - home) & m->mask) >= ((at - hole) & m->mask)) {
			m->slots[hole] = m->slots[at];
			hole = at;
		}
	}
	m->slots[hole] = 0;
	m->n--;
}
