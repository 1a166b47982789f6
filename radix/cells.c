/*
 * cells.c - see cells.h.
 */
#include "radix/cells.h"

#include "radix/index.h"

enum {
	CHUNK_PAGES = 16, /* 1 MiB */
	AHEAD = 8
};

void radix_cells_init(struct radix_cells *c, const struct radix_ground *ground)
{
	*c = (struct radix_cells){ .alloc = ground->alloc, .ground = ground, .empty = RADIX_NONE };
	memset(c->first, 0xff, sizeof(c->first));
}

/* Without a store pages come 1, 2, 4, 8, then 16 at once: a small index stays small. */
static uint32_t chunk_pages(uint32_t first)
{
	return first < CHUNK_PAGES - 1 ? first + 1 : CHUNK_PAGES;
}

void radix_cells_deinit(struct radix_cells *c)
{
	if (!c->alloc)
		return;
	for (uint32_t i = 0; !c->ground->store && i < c->n; i += chunk_pages(i))
		radix_give(c->alloc, c->base[i], (size_t)chunk_pages(i) * RADIX_CELL_PAGE);
	radix_give(c->alloc, c->base, c->cap * sizeof(*c->base));
	radix_give(c->alloc, c->page, c->cap * sizeof(*c->page));
	*c = (struct radix_cells){ 0 };
}

/* ---- lists of pages -------------------------------------------------------------------------- */

static void list_add(struct radix_cells *c, uint32_t *first, uint32_t page)
{
	c->page[page].prev = RADIX_NONE;
	c->page[page].next = *first;
	if (*first != RADIX_NONE)
		c->page[*first].prev = page;
	*first = page;
}

static void list_remove(struct radix_cells *c, uint32_t *first, uint32_t page)
{
	const struct radix_cell_page *p = &c->page[page];

	if (p->prev != RADIX_NONE)
		c->page[p->prev].next = p->next;
	else
		*first = p->next;
	if (p->next != RADIX_NONE)
		c->page[p->next].prev = p->prev;
}

/* An empty page gets cells of this class, all free. */
static void page_open(struct radix_cells *c, uint32_t page, uint32_t class)
{
	struct radix_cell_page *p = &c->page[page];

	list_remove(c, &c->empty, page);
	p->n = (uint16_t)(RADIX_CELL_PAGE / radix_slab_class_size(class));
	p->n_free = p->n;
	p->class = (uint8_t) class;
	p->used = 1;
	p->word = 0;
	memset(p->free, 0, sizeof(p->free));
	for (uint32_t i = 0; i < p->n; i += 64)
		p->free[i / 64] = p->n - i >= 64 ? UINT64_MAX : (UINT64_C(1) << (p->n - i)) - 1;
	list_add(c, &c->first[class], page);
}

/* ---- more pages ------------------------------------------------------------------------------ */

static int arrays_grow(struct radix_cells *c, uint32_t want)
{
	uint32_t cap = c->cap ? c->cap : CHUNK_PAGES;
	struct radix_cell_page *page;
	uint8_t **base;

	if (want <= c->cap)
		return 0;
	while (cap < want)
		cap *= 2;
	base = radix_take(c->alloc, cap * sizeof(*base));
	page = radix_take(c->alloc, cap * sizeof(*page));
	if (!base || !page) {
		radix_give(c->alloc, base, cap * sizeof(*base));
		radix_give(c->alloc, page, cap * sizeof(*page));
		return -ENOMEM;
	}
	if (c->n) {
		memcpy(base, c->base, c->n * sizeof(*base));
		memcpy(page, c->page, c->n * sizeof(*page));
	}
	radix_give(c->alloc, c->base, c->cap * sizeof(*c->base));
	radix_give(c->alloc, c->page, c->cap * sizeof(*c->page));
	c->base = base;
	c->page = page;
	c->cap = cap;
	return 0;
}

/* `n` pages more, which lie at `at`; there is room in the arrays. */
static void pages_add(struct radix_cells *c, uint8_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		c->base[c->n + i] = at + (size_t)i * RADIX_CELL_PAGE;
		c->page[c->n + i].used = 0;
	}
	c->n += n;
	for (uint32_t i = 1; i <= n; i++) /* the first one is first to go */
		list_add(c, &c->empty, c->n - i);
}

static uint8_t *store_page(const struct radix_cells *c, uint32_t page)
{
	return (uint8_t *)c->ground->store->base + c->ground->pages_at +
	       (uint64_t)page * RADIX_CELL_PAGE;
}

static int pages_more(struct radix_cells *c)
{
	struct radix_store *s = c->ground->store;
	uint32_t n = s ? 1 : chunk_pages(c->n);
	uint8_t *at;

	if (c->n >= c->ground->max_pages || arrays_grow(c, c->n + n) < 0)
		return -ENOMEM;
	if (s) {
		uint64_t end = c->ground->pages_at + ((uint64_t)c->n + 1) * RADIX_CELL_PAGE;

		if (s->committed < end && (!s->commit || s->commit(s, end) < 0))
			return -ENOMEM;
		at = store_page(c, c->n);
	} else {
		at = radix_take(c->alloc, (size_t)n * RADIX_CELL_PAGE);
	}
	if (!at)
		return -ENOMEM;
	pages_add(c, at, n);
	return 0;
}

/* ---- cells ----------------------------------------------------------------------------------- */

uint64_t radix_cells_take(struct radix_cells *c, uint32_t len)
{
	size_t size;
	uint32_t class = radix_slab_class(len, &size), page, cell;
	struct radix_cell_page *p;

	if (c->first[class] == RADIX_NONE) {
		if (c->empty == RADIX_NONE && pages_more(c) < 0)
			return RADIX_CELL_NONE;
		page_open(c, c->empty, class);
	}
	page = c->first[class];
	p = &c->page[page];
	while (!p->free[p->word])
		p->word++;
	cell = p->word * 64u + (uint32_t)__builtin_ctzll(p->free[p->word]);
	p->free[p->word] &= p->free[p->word] - 1;
	if (--p->n_free == 0)
		list_remove(c, &c->first[class], page);
	/* the next ones are probably free too, and as far away */
	__builtin_prefetch(c->base[page] + ((cell + AHEAD) * size & (RADIX_CELL_PAGE - 1)), 1);
	return (uint64_t)page << RADIX_CELL_PAGE_SHIFT | cell * size;
}

void radix_cells_give(struct radix_cells *c, uint64_t handle)
{
	uint32_t page = (uint32_t)(handle >> RADIX_CELL_PAGE_SHIFT);
	struct radix_cell_page *p = &c->page[page];
	uint32_t cell = (uint32_t)(handle & (RADIX_CELL_PAGE - 1)) /
			(uint32_t)radix_slab_class_size(p->class);

	p->free[cell / 64] |= UINT64_C(1) << (cell % 64);
	if (cell / 64 < p->word)
		p->word = (uint16_t)(cell / 64);
	if (p->n_free++ == 0)
		list_add(c, &c->first[p->class], page);
	if (p->n_free < p->n || (c->first[p->class] == page && p->next == RADIX_NONE))
		return;
	list_remove(c, &c->first[p->class], page);
	p->used = 0;
	list_add(c, &c->empty, page);
}

/* ---- an earlier life's ----------------------------------------------------------------------- */

bool radix_cells_possible(const struct radix_cells *c, uint64_t handle, uint32_t len)
{
	uint64_t page = handle >> RADIX_CELL_PAGE_SHIFT, at = handle & (RADIX_CELL_PAGE - 1);
	const struct radix_ground *g = c->ground;
	size_t size;

	if (!len || len > RADIX_KEY_MAX || page >= g->max_pages)
		return false;
	(void)radix_slab_class(len, &size);
	return at % size == 0 && at + size <= RADIX_CELL_PAGE &&
	       g->pages_at + (page + 1) * RADIX_CELL_PAGE <= g->store->committed;
}

int radix_cells_adopt(struct radix_cells *c, uint64_t handle, uint32_t len)
{
	uint32_t page = (uint32_t)(handle >> RADIX_CELL_PAGE_SHIFT), cell;
	struct radix_cell_page *p;
	size_t size;
	uint32_t class = radix_slab_class(len, &size);

	if (page >= c->n) {
		if (arrays_grow(c, page + 1) < 0)
			return -ENOMEM;
		pages_add(c, store_page(c, c->n), page + 1 - c->n);
	}
	p = &c->page[page];
	if (!p->used)
		page_open(c, page, class);
	cell = (uint32_t)((handle & (RADIX_CELL_PAGE - 1)) / size);
	if (p->class != class || !(p->free[cell / 64] >> (cell % 64) & 1))
		return 1;
	p->free[cell / 64] &= ~(UINT64_C(1) << (cell % 64));
	if (--p->n_free == 0)
		list_remove(c, &c->first[class], page);
	return 0;
}
