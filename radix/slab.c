#include "radix/slab.h"

#define NO_PAGE UINT32_MAX

/*
 * Class of a size in units of 64 bytes: 1..8 each their own, then eight steps per doubling.
 */
uint32_t radix_slab_class(size_t size, size_t *ret_rounded)
{
	uint32_t units = (uint32_t)((size + 63) / 64);
	uint32_t group, step, shift;

	if (units == 0)
		units = 1;
	if (units <= 8) {
		*ret_rounded = (size_t)units * 64;
		return units - 1;
	}
	group = 31 - (uint32_t)__builtin_clz(units - 1); /* 3: 9..16, 4: 17..32, ... */
	shift = group - 3;
	step = ((units - 1) >> shift) - 8; /* 0..7 */
	*ret_rounded = (size_t)((step + 9) << shift) * 64;
	return 8 + shift * 8 + step;
}

size_t radix_slab_class_size(uint32_t class)
{
	if (class < 8)
		return (class + 1) * (size_t)64;
	return ((size_t)(class % 8) + 9) << (class / 8 - 1) << 6;
}

void radix_slab_init(struct radix_slab *s, const struct radix_alloc *alloc)
{
	*s = (struct radix_slab){ .alloc = alloc, .spare_page = NO_PAGE };
	for (uint32_t i = 0; i < RADIX_SLAB_CLASSES; i++)
		s->bump_page[i] = NO_PAGE;
}

void radix_slab_deinit(struct radix_slab *s)
{
	for (uint32_t i = 0; i < s->n_pages; i++) {
		if (s->pages[i].base)
			radix_give(s->alloc, s->pages[i].base, s->pages[i].size);
	}
	if (s->alloc)
		radix_give(s->alloc, s->pages, s->cap_pages * sizeof(*s->pages));
	*s = (struct radix_slab){ 0 };
}

static bool room_for_page(struct radix_slab *s)
{
	uint32_t cap = s->cap_pages ? s->cap_pages * 2 : 16;
	struct radix_slab_page *pages;

	if (s->spare_page != NO_PAGE || s->n_pages < s->cap_pages)
		return true;
	pages = radix_take(s->alloc, cap * sizeof(*pages));
	if (!pages)
		return false;
	if (s->n_pages)
		memcpy(pages, s->pages, s->n_pages * sizeof(*pages));
	radix_give(s->alloc, s->pages, s->cap_pages * sizeof(*pages));
	s->pages = pages;
	s->cap_pages = cap;
	return true;
}

static uint32_t page_new(struct radix_slab *s, size_t size)
{
	uint32_t page;
	void *base;

	if (!room_for_page(s))
		return NO_PAGE;
	base = radix_take(s->alloc, size);
	if (!base)
		return NO_PAGE;
	if (s->spare_page != NO_PAGE) {
		page = s->spare_page;
		s->spare_page = (uint32_t)s->pages[page].size;
	} else {
		page = s->n_pages++;
	}
	s->pages[page] = (struct radix_slab_page){ .base = base, .size = size };
	return page;
}

/* Objects above RADIX_SLAB_MAX get a page of their own, from offset 64 so that no handle is 0. */
static uint64_t take_large(struct radix_slab *s, size_t size)
{
	uint32_t page = page_new(s, size + 64);

	if (page == NO_PAGE)
		return 0;
	s->live_bytes += size;
	return ((uint64_t)page << 32) | 64;
}

uint64_t radix_slab_take(struct radix_slab *s, size_t size)
{
	size_t rounded;
	uint32_t class;
	uint64_t handle;

	if (size > RADIX_SLAB_MAX)
		return take_large(s, size);
	class = radix_slab_class(size, &rounded);
	handle = s->free[class];
	if (handle) {
		memcpy(&s->free[class], radix_slab_at(s, handle), sizeof(handle));
		s->live_bytes += rounded;
		return handle;
	}
	if (s->bump_page[class] == NO_PAGE ||
	    s->bump_at[class] + rounded > s->pages[s->bump_page[class]].size) {
		/* 16 KiB first, doubling to 1 MiB: a small index stays small */
		size_t want = (size_t)16384 << radix_min_u32(s->n_class_pages[class], 6);
		uint32_t page = page_new(s, want < 4 * rounded ? 4 * rounded + 64 : want);

		if (page == NO_PAGE)
			return 0;
		s->bump_page[class] = page;
		s->bump_at[class] = 64;
		s->n_class_pages[class]++;
	}
	handle = ((uint64_t)s->bump_page[class] << 32) | s->bump_at[class];
	s->bump_at[class] += (uint32_t)rounded;
	s->live_bytes += rounded;
	return handle;
}

void radix_slab_give(struct radix_slab *s, uint64_t handle, size_t size)
{
	size_t rounded;
	uint32_t class;

	if (!handle)
		return;
	if (size > RADIX_SLAB_MAX) {
		uint32_t page = (uint32_t)(handle >> 32);

		radix_give(s->alloc, s->pages[page].base, s->pages[page].size);
		s->pages[page] = (struct radix_slab_page){ .size = s->spare_page };
		s->spare_page = page;
		s->live_bytes -= size;
		return;
	}
	class = radix_slab_class(size, &rounded);
	memcpy(radix_slab_at(s, handle), &s->free[class], sizeof(handle));
	s->free[class] = handle;
	s->live_bytes -= rounded;
}
