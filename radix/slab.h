/*
 * slab.h - small objects of a few sizes, named by handles instead of pointers.
 *
 * Edge segments, directories and recency steps come from here.  Sizes are rounded up to classes of
 * 64 bytes (at most an eighth is lost above 512); each class takes pages from the allocator and
 * keeps what is given back on a list of its own.  A handle is {page, offset}.
 *
 * Pages go back to the allocator only with the whole slab: an index that has been full once will be
 * full again.
 */
#pragma once

#include "radix/base.h"

enum {
	RADIX_SLAB_CLASSES = 48,
	RADIX_SLAB_MAX = 16384
};

struct radix_slab_page {
	uint8_t *base;
	size_t size;
};

struct radix_slab {
	const struct radix_alloc *alloc;
	struct radix_slab_page *pages;
	uint32_t n_pages;
	uint32_t cap_pages;
	uint32_t spare_page;               /* list of page numbers without memory, through `size` */
	uint64_t free[RADIX_SLAB_CLASSES]; /* handle of the first free object, 0 none */
	uint32_t bump_page[RADIX_SLAB_CLASSES];
	uint32_t bump_at[RADIX_SLAB_CLASSES];
	uint32_t n_class_pages[RADIX_SLAB_CLASSES];
	uint64_t live_bytes; /* handed out, rounded to classes */
};

/* Size class of `size` bytes, and the size of that class, up to 64 KiB: classes 0..63. */
uint32_t radix_slab_class(size_t size, size_t *ret_rounded);
size_t radix_slab_class_size(uint32_t class);

void radix_slab_init(struct radix_slab *s, const struct radix_alloc *alloc);
void radix_slab_deinit(struct radix_slab *s);
/* Handle of `size` bytes (aligned to 64), never 0; 0 when there is no memory. */
uint64_t radix_slab_take(struct radix_slab *s, size_t size);
void radix_slab_give(struct radix_slab *s, uint64_t handle, size_t size);

static inline void *radix_slab_at(const struct radix_slab *s, uint64_t handle)
{
	return s->pages[handle >> 32].base + (uint32_t)handle;
}
