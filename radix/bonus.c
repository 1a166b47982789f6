#include "radix/bonus.h"

#include "radix/index.h"

int radix_bonus_init(struct radix_bonus *b, const struct radix_alloc *alloc, uint32_t n)
{
	*b = (struct radix_bonus){
		.alloc = alloc, .n = n, .first = RADIX_NONE, .last = RADIX_NONE
	};
	b->next = radix_take(alloc, n * sizeof(*b->next));
	b->prev = radix_take(alloc, n * sizeof(*b->prev));
	b->tick = radix_take(alloc, n * sizeof(*b->tick));
	if (!b->next || !b->prev || !b->tick) {
		radix_bonus_deinit(b);
		return -ENOMEM;
	}
	memset(b->tick, 0, n * sizeof(*b->tick));
	return 0;
}

void radix_bonus_deinit(struct radix_bonus *b)
{
	if (!b->alloc)
		return;
	radix_give(b->alloc, b->next, b->n * sizeof(*b->next));
	radix_give(b->alloc, b->prev, b->n * sizeof(*b->prev));
	radix_give(b->alloc, b->tick, b->n * sizeof(*b->tick));
	*b = (struct radix_bonus){ 0 };
}

void radix_bonus_add(struct radix_bonus *b, uint32_t slot, uint64_t tick)
{
	radix_bonus_remove(b, slot);
	b->tick[slot] = tick ? tick : 1; /* 0 says that it is not there */
	b->prev[slot] = b->last;
	b->next[slot] = RADIX_NONE;
	if (b->last == RADIX_NONE)
		b->first = slot;
	else
		b->next[b->last] = slot;
	b->last = slot;
	b->count++;
}

void radix_bonus_remove(struct radix_bonus *b, uint32_t slot)
{
	if (!b->tick[slot])
		return;
	if (b->prev[slot] == RADIX_NONE)
		b->first = b->next[slot];
	else
		b->next[b->prev[slot]] = b->next[slot];
	if (b->next[slot] == RADIX_NONE)
		b->last = b->prev[slot];
	else
		b->prev[b->next[slot]] = b->prev[slot];
	b->tick[slot] = 0;
	b->count--;
}
