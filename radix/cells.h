/*
 * cells.h - where block keys lie: pages of 64 KiB, each cut into cells of one size.
 *
 * A key's handle is its place: page number and offset.  Which cells are free is known to the
 * process alone: after a restart a cell is taken exactly if an entry of the block table names it,
 * and so is the size of a page's cells.  So nothing about cells can be damaged, and there is no
 * order to keep: an entry that is free names no cell.
 *
 * A page whose last key went serves any size again, but for one of each.  In a store pages lie one
 * behind another; without one they come from the allocator, up to 1 MiB at once.
 */
#pragma once

#include "radix/head.h"
#include "radix/slab.h"

enum {
	RADIX_CELL_PAGE_SHIFT = 16,
	RADIX_CELL_PAGE = 1 << RADIX_CELL_PAGE_SHIFT,
	RADIX_CELL_CLASSES = 64,
	RADIX_CELL_WORDS = RADIX_CELL_PAGE / 64 / 64,
};

#define RADIX_CELL_NONE UINT64_MAX

struct radix_cell_page {
	uint32_t next, prev; /* pages of its class with free cells, or the list of empty pages */
	uint16_t n_free;
	uint16_t n; /* cells */
	uint8_t class;
	uint8_t used;                    /* 0: no class, on the list of empty pages */
	uint16_t word;                   /* the words before it have no free cell */
	uint64_t free[RADIX_CELL_WORDS]; /* a bit per cell */
};

struct radix_cells {
	const struct radix_alloc *alloc;
	const struct radix_ground *ground;
	uint8_t **base; /* [cap]; addresses of pages */
	struct radix_cell_page *page;
	uint32_t n, cap;
	uint32_t empty; /* list of empty pages */
	uint32_t first[RADIX_CELL_CLASSES];
};

void radix_cells_init(struct radix_cells *c, const struct radix_ground *ground);
void radix_cells_deinit(struct radix_cells *c);
/* Place for a key of `len` bytes; RADIX_CELL_NONE when there is no memory. */
uint64_t radix_cells_take(struct radix_cells *c, uint32_t len);
void radix_cells_give(struct radix_cells *c, uint64_t handle);

/* In a store of an earlier life: can a key of this length lie there at all? */
bool radix_cells_possible(const struct radix_cells *c, uint64_t handle, uint32_t len);
/* It does.  Return: 0; 1: another one lies there; -ENOMEM. */
radix_nodiscard int radix_cells_adopt(struct radix_cells *c, uint64_t handle, uint32_t len);

/* In a store, also of a page that was not adopted. */
static inline const void *radix_cells_old(const struct radix_cells *c, uint64_t handle)
{
	return (const uint8_t *)c->ground->store->base + c->ground->pages_at + handle;
}

static inline void *radix_cells_at(const struct radix_cells *c, uint64_t handle)
{
	return c->base[handle >> RADIX_CELL_PAGE_SHIFT] + (handle & (RADIX_CELL_PAGE - 1));
}
