/*
 * win_match.c - how much of a path can be used where blocks may be hollow.  See windows.h.
 *
 * The tree is walked as for any match; then the path is looked at backwards, from its end, for the
 * longest part whose window is there.  That costs a look at each block of a window, and at those
 * hollow ones that were in the way, edge by edge: of an edge without any nothing is read.
 */
#include "radix/internal.h"

/* Walks a path backwards, block by block. */
struct back {
	const struct radix_index *ix;
	uint32_t node;
	uint32_t idx; /* blocks of it that are left */
	uint32_t depth;
};

static struct back back_from(const struct radix_index *ix, const struct radix_place *at)
{
	return (struct back){ .ix = ix, .node = at->node, .idx = at->idx, .depth = at->depth };
}

/* On to the edge above, where this one is done.  False: that was the first one. */
static bool back_settle(struct back *b)
{
	while (b->node < RADIX_NODE_ISLAND && !b->idx) {
		uint32_t parent = radix_node(b->ix, b->node)->parent;

		if (parent == RADIX_NODE_NONE)
			return false;
		b->node = parent;
		b->idx = radix_node(b->ix, parent)->n_blocks;
	}
	return b->node < RADIX_NODE_ISLAND;
}

/* Passes up to `want` blocks that are hollow, or are not; returns how many. */
static uint32_t back_pass(struct back *b, bool hollow, uint32_t want)
{
	uint32_t n = 0, take;

	while (n < want && back_settle(b)) {
		const struct radix_win *w = radix_win(b->ix, b->node);

		if (w->hollow == (hollow ? radix_node(b->ix, b->node)->n_blocks : 0) ||
		    (hollow && w->from >= b->idx)) {
			take = radix_min_u32(b->idx, want - n); /* all of them are */
			b->idx -= take;
			b->depth -= take;
			n += take;
			continue;
		}
		if ((radix_device_slot(b->ix, b->node, b->idx - 1) == RADIX_HOLLOW) != hollow)
			break;
		b->idx--;
		b->depth--;
		n++;
	}
	return n;
}

static struct radix_place place_of(const struct back *b, const struct radix_place *end)
{
	struct radix_place p = {
		.root = end->root, .node = b->node, .idx = b->idx, .depth = b->depth
	};
	struct back at = *b;

	if (back_settle(&at)) {
		p.node = at.node;
		p.idx = at.idx;
	} else if (b->node < RADIX_NODE_ISLAND &&
		   !(radix_node(b->ix, b->node)->flags & RADIX_NODE_F_ISLAND)) {
		p.node = RADIX_NODE_NONE;
		p.idx = 0;
	}
	return p;
}

/* The longest part of the path to `end` whose window has copies. */
static struct radix_place within_window(const struct radix_index *ix, const struct radix_place *end,
					uint32_t window)
{
	struct back b = back_from(ix, end);

	for (;;) {
		struct radix_place at = place_of(&b, end);

		if (back_pass(&b, false, window) == window || !back_settle(&b))
			return at;
		(void)back_pass(&b, true, UINT32_MAX);
	}
}

/* The part of the path to `end` before the first block without a copy. */
static struct radix_place before_hollow(const struct radix_index *ix, const struct radix_place *end)
{
	struct back b = back_from(ix, end);
	struct radix_place at = place_of(&b, end);

	for (;;) {
		(void)back_pass(&b, false, UINT32_MAX);
		if (!back_settle(&b))
			return at;
		(void)back_pass(&b, true, UINT32_MAX);
		at = place_of(&b, end);
	}
}

/* Slots of the first n_device keys: with a window only of its own blocks. */
static void collect(const struct radix_index *ix, const struct radix_place *from, const void *keys,
		    bool whole, struct radix_runs *runs, struct radix_match *m)
{
	const struct radix_root *root = &ix->roots[from->root];
	uint32_t window = root->config.window, skip = 0;
	struct radix_place at = *from;
	struct radix_runs rest = *runs;
	struct radix_match got;

	if (!whole && m->n_device > window) {
		struct back b = back_from(ix, &m->device_end);

		(void)back_pass(&b, false, window);
		at = place_of(&b, from);
		skip = m->n_device - window;
		if (rest.n == rest.cap) {
			runs->full = true;
			got = (struct radix_match){ .device_end = *from };
			goto full;
		}
		rest.v[rest.n] = (struct radix_run){ .start = RADIX_NONE, .len = skip };
		/* those behind it go on from none */
		rest = (struct radix_runs){ .v = rest.v + rest.n + 1,
					    .cap = rest.cap - rest.n - 1 };
	}
	radix_match(ix, &at, (const uint8_t *)keys + (size_t)skip * root->g.key_len,
		    m->n_device - skip, &rest, &got);
	runs->n = (uint32_t)(rest.v - runs->v) + rest.n;
	runs->full = rest.full;
	if (!rest.full)
		return;
full:
	m->n_device = m->n_blocks = skip && got.n_device ? skip + got.n_device : got.n_device;
	m->end = m->device_end = got.device_end;
	m->n_host = 0;
	m->diverged = false;
}

void radix_match_window(const struct radix_index *ix, const struct radix_place *from,
			const void *keys, uint32_t n_keys, bool whole, struct radix_runs *runs,
			struct radix_match *ret_match)
{
	uint32_t window = ix->roots[from->root].config.window;
	struct radix_place end, device;
	struct radix_match m;

	if (radix_likely(!window)) {
		radix_match(ix, from, keys, n_keys, runs, ret_match);
		return;
	}
	radix_match(ix, from, keys, n_keys, NULL, &m);
	end = whole ? before_hollow(ix, &m.end) : within_window(ix, &m.end, window);
	if (end.depth < m.end.depth)
		m.diverged = false;
	if (end.depth <= from->depth)
		end = *from;
	device = m.device_end;
	if (end.depth <= device.depth) {
		m.n_host = 0;
		device = end;
	} else if (!whole) {
		device = within_window(ix, &device, window);
		if (device.depth <= from->depth)
			device = *from;
		m.n_host += m.device_end.depth - device.depth;
	}
	m.end = end;
	m.device_end = device;
	m.n_blocks = end.depth - from->depth;
	m.n_device = device.depth - from->depth;
	m.n_host = radix_min_u32(m.n_host, m.n_blocks - m.n_device);
	if (runs && m.n_device)
		collect(ix, from, keys, whole, runs, &m);
	*ret_match = m;
}

bool radix_place_hollow(const struct radix_index *ix, const struct radix_place *at)
{
	return radix_place_is_edge(at) && at->idx &&
	       radix_device_slot(ix, at->node, at->idx - 1) == RADIX_HOLLOW;
}
