#include "radix/nodes.h"

void radix_nodes_init(struct radix_nodes *s, const struct radix_alloc *alloc)
{
	*s = (struct radix_nodes){ .alloc = alloc, .first_free = RADIX_NONE };
}

void radix_nodes_deinit(struct radix_nodes *s)
{
	if (!s->alloc)
		return;
	for (uint32_t i = 0; i < s->n_pages; i++) {
		radix_give(s->alloc, s->pages[i], RADIX_NODE_PAGE * sizeof(struct radix_node));
		if (s->tiers)
			radix_give(s->alloc, s->low[i], RADIX_NODE_PAGE * sizeof(struct radix_low));
	}
	radix_nodes_no_windows(s);
	radix_give(s->alloc, s->pages, s->cap_pages * sizeof(*s->pages));
	radix_give(s->alloc, s->low, s->cap_pages * sizeof(*s->low));
	*s = (struct radix_nodes){ 0 };
}

/* Twice as many pages; all directories or none. */
static int pages_grow(struct radix_nodes *s)
{
	uint32_t cap = s->cap_pages ? s->cap_pages * 2 : 16;
	struct radix_node **pages = radix_take(s->alloc, cap * sizeof(*pages));
	struct radix_low **low = s->tiers ? radix_take(s->alloc, cap * sizeof(*low)) : NULL;
	struct radix_win **win = s->windows ? radix_take(s->alloc, cap * sizeof(*win)) : NULL;

	if (!pages || (s->tiers && !low) || (s->windows && !win)) {
		radix_give(s->alloc, pages, cap * sizeof(*pages));
		radix_give(s->alloc, low, cap * sizeof(*low));
		radix_give(s->alloc, win, cap * sizeof(*win));
		return -ENOMEM;
	}
	if (s->n_pages)
		memcpy(pages, s->pages, s->n_pages * sizeof(*pages));
	if (s->n_pages && low)
		memcpy(low, s->low, s->n_pages * sizeof(*low));
	if (s->n_pages && win)
		memcpy(win, s->win, s->n_pages * sizeof(*win));
	radix_give(s->alloc, s->pages, s->cap_pages * sizeof(*s->pages));
	radix_give(s->alloc, s->low, s->cap_pages * sizeof(*s->low));
	radix_give(s->alloc, s->win, s->cap_pages * sizeof(*s->win));
	s->pages = pages;
	s->low = low;
	s->win = win;
	s->cap_pages = cap;
	return 0;
}

static int page_add(struct radix_nodes *s)
{
	struct radix_node *page;
	struct radix_low *low = NULL;
	struct radix_win *win = NULL;

	if (s->n_pages == s->cap_pages && pages_grow(s) < 0)
		return -ENOMEM;
	page = radix_take(s->alloc, RADIX_NODE_PAGE * sizeof(*page));
	if (s->tiers)
		low = radix_take(s->alloc, RADIX_NODE_PAGE * sizeof(*low));
	if (s->windows)
		win = radix_take(s->alloc, RADIX_NODE_PAGE * sizeof(*win));
	if (!page || (s->tiers && !low) || (s->windows && !win)) {
		radix_give(s->alloc, page, RADIX_NODE_PAGE * sizeof(*page));
		radix_give(s->alloc, low, RADIX_NODE_PAGE * sizeof(*low));
		radix_give(s->alloc, win, RADIX_NODE_PAGE * sizeof(*win));
		return -ENOMEM;
	}
	if (s->tiers)
		s->low[s->n_pages] = low;
	if (s->windows)
		s->win[s->n_pages] = win;
	s->pages[s->n_pages++] = page;
	return 0;
}

int radix_nodes_windows(struct radix_nodes *s)
{
	uint32_t i = 0;

	s->win = s->cap_pages ? radix_take(s->alloc, s->cap_pages * sizeof(*s->win)) : NULL;
	if (s->cap_pages && !s->win)
		return -ENOMEM;
	for (; i < s->n_pages; i++) {
		s->win[i] = radix_take(s->alloc, RADIX_NODE_PAGE * sizeof(struct radix_win));
		if (!s->win[i])
			break;
		for (uint32_t k = 0; k < RADIX_NODE_PAGE; k++)
			s->win[i][k] = (struct radix_win){ .heap_pos = RADIX_NONE };
	}
	s->windows = true;
	if (i == s->n_pages)
		return 0;
	for (uint32_t k = i; k < s->n_pages; k++)
		s->win[k] = NULL;
	radix_nodes_no_windows(s);
	return -ENOMEM;
}

void radix_nodes_no_windows(struct radix_nodes *s)
{
	if (!s->windows)
		return;
	for (uint32_t i = 0; i < s->n_pages; i++)
		radix_give(s->alloc, s->win[i], RADIX_NODE_PAGE * sizeof(struct radix_win));
	radix_give(s->alloc, s->win, s->cap_pages * sizeof(*s->win));
	s->win = NULL;
	s->windows = false;
}

uint32_t radix_nodes_take(struct radix_nodes *s, uint32_t root)
{
	uint32_t i = s->first_free;

	if (i != RADIX_NONE) {
		s->first_free = radix_node_at(s, i)->next_sib;
	} else {
		if (s->n_used == s->n_pages << RADIX_NODE_PAGE_SHIFT && page_add(s) < 0)
			return RADIX_NONE;
		i = s->n_used++;
	}
	radix_edge_init(radix_node_at(s, i), root);
	if (s->tiers)
		*radix_low_at(s, i) = (struct radix_low){
			.heap_pos = { RADIX_NONE, RADIX_NONE },
		};
	if (s->windows)
		*radix_win_at(s, i) = (struct radix_win){ .heap_pos = RADIX_NONE };
	s->n_live++;
	return i;
}

void radix_nodes_give(struct radix_nodes *s, uint32_t node)
{
	struct radix_node *n = radix_node_at(s, node);

	n->flags = 0;
	n->next_sib = s->first_free;
	s->first_free = node;
	s->n_live--;
}
