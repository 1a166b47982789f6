/*
 * head.c - see head.h.
 */
#include "radix/head.h"

#include "radix/cells.h"
#include "radix/crash.h"
#include "radix/hash.h"
#include "radix/table.h"

struct layout {
	uint64_t slots, entries, pages, len;
	uint32_t max_pages;
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static struct layout layout_of(uint32_t n_slots, uint32_t n_entries)
{
	struct layout l = { .slots = RADIX_HEAD_BYTES };

	l.entries = round_up(l.slots + n_slots * sizeof(uint64_t), 4096);
	l.pages = round_up(l.entries + (uint64_t)n_entries * sizeof(struct radix_entry), 4096);
	/* a page is never without a key, but for one of each class */
	l.max_pages = radix_min_u32(n_entries, UINT32_MAX - 1 - RADIX_CELL_CLASSES) +
		      RADIX_CELL_CLASSES;
	l.len = l.pages + (uint64_t)l.max_pages * RADIX_CELL_PAGE;
	return l;
}

uint64_t radix_store_len(const struct radix_index_config *config)
{
	return layout_of(config->n_slots, config->n_entries).len;
}

static int in_store(struct radix_ground *g, struct radix_store *s, const struct layout *l)
{
	uint8_t *base = s->base;

	if (s->len < l->pages)
		return -EINVAL;
	if (s->committed < l->pages && (!s->commit || s->commit(s, l->pages) < 0))
		return -ENOMEM;
	g->store = s;
	g->head = (struct radix_head *)(void *)base;
	g->slots = (uint64_t *)(void *)(base + l->slots);
	g->entries = (struct radix_entry *)(void *)(base + l->entries);
	g->pages_at = l->pages;
	g->max_pages = (uint32_t)radix_min_u64(l->max_pages, (s->len - l->pages) / RADIX_CELL_PAGE);
	return 0;
}

static int in_memory(struct radix_ground *g, const struct layout *l)
{
	g->head = radix_take(g->alloc, sizeof(*g->head));
	g->slots = radix_take(g->alloc, g->n_slots * sizeof(*g->slots));
	g->entries = radix_take(g->alloc, g->n_entries * sizeof(struct radix_entry));
	g->max_pages = l->max_pages;
	if (!g->head || !g->slots || !g->entries)
		return -ENOMEM;
	*g->head = (struct radix_head){ 0 };
	memset(g->slots, 0, g->n_slots * sizeof(*g->slots));
	return 0;
}

int radix_ground_init(struct radix_ground *g, const struct radix_index_config *config)
{
	struct layout l = layout_of(config->n_slots, config->n_entries);

	*g = (struct radix_ground){
		.alloc = config->alloc,
		.n_slots = config->n_slots,
		.n_entries = config->n_entries,
	};
	return config->store ? in_store(g, config->store, &l) : in_memory(g, &l);
}

void radix_ground_deinit(struct radix_ground *g)
{
	if (g->alloc && !g->store) {
		radix_give(g->alloc, g->head, sizeof(*g->head));
		radix_give(g->alloc, g->slots, g->n_slots * sizeof(*g->slots));
		radix_give(g->alloc, g->entries, g->n_entries * sizeof(struct radix_entry));
	}
	*g = (struct radix_ground){ 0 };
}

/* The same in every version, so that another one is told from damage. */
uint64_t radix_head_check(const struct radix_head *h)
{
	return radix_hash(&h->version, offsetof(struct radix_head, check) - sizeof(h->magic), 0);
}

void radix_head_write(struct radix_head *h, const struct radix_index_config *config)
{
	radix_publish(&h->magic, RADIX_MAGIC_BEGUN);
	radix_crash_point("head_begun");
	h->version = RADIX_STORE_VERSION_NOW;
	h->entry_bytes = sizeof(struct radix_entry);
	h->n_slots = config->n_slots;
	h->n_host = config->n_host;
	h->n_entries = config->n_entries;
	h->pad = 0;
	h->redis = config->redis ? RADIX_REDIS_YES : RADIX_REDIS_NO;
	h->pad2 = 0;
	radix_pair_set(&h->n_used, 0);
	radix_pair_set(&h->tick, 0);
	radix_pair_set(&h->reuse, 0);
	h->check = radix_head_check(h);
	radix_crash_point("head_written");
	radix_publish(&h->magic, RADIX_MAGIC);
}

static bool all_zero(const void *p, uint64_t n)
{
	const uint8_t *b = p;

	for (uint64_t i = 0; i < n; i++) {
		if (b[i])
			return false;
	}
	return true;
}

enum radix_store_content radix_store_look(const struct radix_store *store,
					  const struct radix_index_config *config,
					  struct radix_store_info *ret_info)
{
	uint64_t there = radix_min_u64(store->committed, RADIX_HEAD_BYTES);
	const struct radix_head *h = store->base;

	*ret_info = (struct radix_store_info){ 0 };
	if (there < RADIX_HEAD_BYTES)
		return all_zero(store->base, there) ? RADIX_STORE_EMPTY : RADIX_STORE_FOREIGN;
	if (h->magic == RADIX_MAGIC_BEGUN || all_zero(h, RADIX_HEAD_BYTES))
		return RADIX_STORE_EMPTY;
	if (h->magic != RADIX_MAGIC || h->check != radix_head_check(h))
		return RADIX_STORE_FOREIGN;
	ret_info->version = h->version;
	if (h->version != RADIX_STORE_VERSION_NOW || h->entry_bytes != sizeof(struct radix_entry))
		return RADIX_STORE_VERSION;
	ret_info->n_slots = h->n_slots;
	ret_info->n_host = h->n_host;
	ret_info->n_entries = h->n_entries;
	ret_info->redis = h->redis == RADIX_REDIS_YES;
	if (config && (config->n_slots != h->n_slots || config->n_host != h->n_host ||
		       config->n_entries != h->n_entries))
		return RADIX_STORE_OTHER;
	return RADIX_STORE_INDEX;
}
