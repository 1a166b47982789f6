/*
 * match.c - the longest prefix, exactly.
 *
 *   1. In an edge: compare raw keys segment by segment; collect the slots of what agrees.
 *   2. At the end of an edge: the child that begins with the next key has the address
 *      fold(end_chain, hash(key)); the edge's own blocks are never hashed.
 *   3. After two short edges the prompt is probably a comb (a branch every few blocks) and each
 *      step a dependent miss.  Then the addresses of the next 32 blocks are computed ahead, and the
 *      table's lines, the edges and their segments are prefetched in three waves.
 *
 * Nothing is written, not even recency.
 */
#include "radix/internal.h"

enum {
	AHEAD = 32,
	SHORT_EDGE = 16,
	PREFETCH_LINES = 64
};

/* Chain values of keys[at..at+n), computed ahead. */
struct ahead {
	uint64_t chain[AHEAD];
	uint32_t at;
	uint32_t n;
	uint32_t n_short; /* short edges in a row */
};

struct walk {
	const struct radix_index *ix;
	const struct radix_root *root;
	const uint8_t *keys;
	uint32_t n_keys;
	uint32_t done;
	struct radix_runs *runs;
	struct ahead ahead;
	/* with lower tiers */
	struct radix_place device_end;
	uint32_t n_device, n_host;
};

static const uint8_t *key_at(const struct walk *w, uint32_t i)
{
	return w->keys + (size_t)i * w->root->g.key_len;
}

/* How many of eight refs go on from `base`: all or not all, in one comparison. */
static bool eight_in_a_row(const uint32_t *refs, uint32_t base)
{
	uint32_t odd = 0;

	for (uint32_t i = 0; i < 8; i++)
		odd |= refs[i] ^ (base + i);
	return !odd;
}

/* Append refs to the runs; returns how many fitted. */
static uint32_t runs_add(struct radix_runs *runs, const uint32_t *refs, uint32_t n)
{
	uint32_t i = 0;

	while (i < n) {
		struct radix_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;
		uint32_t base;

		if (!last || refs[i] != last->start + last->len) {
			if (runs->n == runs->cap) {
				runs->full = true;
				break;
			}
			runs->v[runs->n++] = (struct radix_run){ .start = refs[i++], .len = 1 };
			continue;
		}
		base = refs[i];
		while (i + 8 <= n && eight_in_a_row(refs + i, base)) {
			i += 8;
			base += 8;
		}
		while (i < n && refs[i] == base) {
			i++;
			base++;
		}
		last->len = base - last->start;
	}
	return i;
}

/* Leading blocks of two key arrays that agree. */
static uint32_t same_blocks(const uint8_t *a, const uint8_t *b, uint32_t n, uint32_t key_len)
{
	uint32_t i = 0;

	if (memcmp(a, b, (size_t)n * key_len) == 0)
		return n;
	while (memcmp(a + (size_t)i * key_len, b + (size_t)i * key_len, key_len) == 0)
		i++;
	return i;
}

/* Slots `first`, first + 1, ... as one run; returns how many fitted: all or none. */
static uint32_t runs_add_run(struct radix_runs *runs, uint32_t first, uint32_t n)
{
	struct radix_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

	if (last && last->start + last->len == first) {
		last->len += n;
		return n;
	}
	if (runs->n == runs->cap) {
		runs->full = true;
		return 0;
	}
	runs->v[runs->n++] = (struct radix_run){ .start = first, .len = n };
	return n;
}

/*
 * The hardware follows a stream of lines, but not into the next segment: send for all of it while
 * this one is compared (8,192 blocks cold: 28 us with its first 12 lines, 21 us with all).
 */
static void prefetch_segment(const struct radix_node *n, uint32_t i, struct radix_geometry g)
{
	uintptr_t p;

	if (i >= n->n_segs)
		return;
	p = (uintptr_t)n->segs[i];
	__builtin_prefetch((const void *)p);
	p += sizeof(struct radix_seg) + (4u << g.seg_shift); /* its keys, as a full segment's */
	for (uint32_t line = 0; line < PREFETCH_LINES; line++)
		__builtin_prefetch((const void *)(p + line * 64));
}

/*
 * Compare `want` keys from number `at` on with the edge from block idx on; returns the blocks that
 * agree, as many as fit into `runs`.
 */
static uint32_t walk_blocks(const struct walk *w, const struct radix_node *n, uint32_t idx,
			    uint32_t at, uint32_t want, struct radix_runs *runs)
{
	struct radix_geometry g = w->root->g;
	uint32_t per_seg = 1u << g.seg_shift, matched = 0;

	while (matched < want) {
		uint32_t place = idx + matched + n->off;
		uint32_t in_seg = place & (per_seg - 1);
		const struct radix_seg *seg = n->segs[place >> g.seg_shift];
		uint32_t m = radix_min_u32(per_seg - in_seg, want - matched), same, fit;

		prefetch_segment(n, (place >> g.seg_shift) + 1, g);
		same = same_blocks(radix_seg_keys(seg) + (size_t)in_seg * g.key_len,
				   key_at(w, at + matched), m, g.key_len);
		if (!runs || !same)
			fit = same;
		else if (in_seg + same <= seg->run)
			fit = runs_add_run(runs, seg->refs[0] + in_seg, same);
		else
			fit = runs_add(runs, seg->refs + in_seg, same);
		matched += fit;
		if (fit < m)
			break;
	}
	return matched;
}

/* Blocks behind the device copies have no slots to collect. */
static uint32_t walk_tiers(struct walk *w, uint32_t node, const struct radix_node *n, uint32_t idx,
			   uint32_t want)
{
	const struct radix_low *low = radix_low(w->ix, node);
	uint32_t m = 0, device = 0, rest, host;

	if (idx < low->end[RADIX_TIER_DEVICE])
		device = radix_min_u32(want, low->end[RADIX_TIER_DEVICE] - idx);
	if (device) {
		m = walk_blocks(w, n, idx, w->done, device, w->runs);
		w->n_device += m;
		w->device_end.node = node;
		w->device_end.idx = idx + m;
	}
	if (m < device || m == want)
		return m;
	idx += m;
	rest = walk_blocks(w, n, idx, w->done + m, want - m, NULL);
	host = low->end[RADIX_TIER_HOST] > idx ? low->end[RADIX_TIER_HOST] - idx : 0;
	w->n_host += radix_min_u32(rest, host);
	return m + rest;
}

/* Compare keys[done..] with the edge from block idx on; returns the blocks that agree. */
static uint32_t walk_edge(struct walk *w, uint32_t node, const struct radix_node *n, uint32_t idx)
{
	uint32_t want = radix_min_u32(n->n_blocks - idx, w->n_keys - w->done);

	if (radix_has_tiers(w->ix))
		return walk_tiers(w, node, n, idx, want);
	return walk_blocks(w, n, idx, w->done, want, w->runs);
}

/*
 * Compute AHEAD chain values from here and send for what they will need: first the table's lines,
 * then the edges that stand there, then those edges' segments.
 */
static void look_ahead(struct walk *w, uint64_t chain)
{
	const struct radix_map *map = &w->ix->children;
	struct ahead *a = &w->ahead;
	uint32_t nodes[AHEAD];

	a->at = w->done;
	a->n = radix_min_u32(AHEAD, w->n_keys - w->done);
	for (uint32_t i = 0; i < a->n; i++) {
		chain = radix_chain_next(w->root, chain,
					 radix_local(w->ix, w->root, key_at(w, w->done + i)));
		a->chain[i] = chain;
		__builtin_prefetch(&map->slots[radix_map_home(map, chain)]);
	}
	for (uint32_t i = 0; i < a->n; i++) {
		uint64_t cursor = radix_map_home(map, a->chain[i]);

		if (!radix_map_next(map, a->chain[i], &cursor, &nodes[i])) {
			nodes[i] = RADIX_NONE;
			continue;
		}
		__builtin_prefetch(radix_node(w->ix, nodes[i]));
		if (radix_has_tiers(w->ix))
			__builtin_prefetch(radix_low(w->ix, nodes[i]));
	}
	for (uint32_t i = 0; i < a->n; i++) {
		if (nodes[i] == RADIX_NONE)
			continue;
		/* a guess where the edge has a directory of its own; a wrong one costs nothing */
		uintptr_t seg = (uintptr_t)radix_node(w->ix, nodes[i])->inline_segs[0];

		for (uint32_t line = 0; line < 3; line++)
			__builtin_prefetch((const void *)(seg + line * 64));
	}
}

static uint64_t address_of_next(struct walk *w, const struct radix_branch *b)
{
	struct ahead *a = &w->ahead;

	if (w->done >= a->at && w->done < a->at + a->n)
		return a->chain[w->done - a->at];
	if (a->n_short >= 2) {
		look_ahead(w, b->chain);
		return a->chain[0];
	}
	return radix_chain_next(w->root, b->chain, radix_local(w->ix, w->root, key_at(w, w->done)));
}

uint64_t radix_end_chain(const struct radix_index *ix, struct radix_node *n)
{
	const struct radix_root *root = &ix->roots[n->root];
	uint64_t chain = n->address;

	if (n->end_known || root->config.mode == RADIX_KEYS_DIGEST)
		return n->end_known ? n->end_chain : root->chain;
	for (uint32_t i = 1; i < n->n_blocks; i++)
		chain = radix_chain_next(root, chain,
					 radix_local(ix, root, radix_edge_key(n, root->g, i)));
	n->end_chain = chain;
	n->end_known = 1;
	return chain;
}

struct radix_branch radix_branch_at(const struct radix_index *ix, const struct radix_place *end)
{
	const struct radix_root *root = &ix->roots[end->root];
	struct radix_branch b = { .root = end->root, .node = end->node };

	if (radix_place_is_edge(end)) {
		struct radix_node *n = radix_node(ix, end->node);

		b.n_child = n->n_child;
		b.chain = n->n_child ? radix_end_chain(ix, n) : 0;
	} else {
		b.n_child = end->node == RADIX_NODE_ISLAND ? 0 : root->n_child;
		b.chain = root->chain;
	}
	return b;
}

uint32_t radix_child_find(const struct radix_index *ix, const struct radix_branch *b,
			  uint64_t address, const void *key)
{
	uint64_t cursor = radix_map_home(&ix->children, address);
	struct radix_geometry g = ix->roots[b->root].g;
	uint32_t i;

	while (radix_map_next(&ix->children, address, &cursor, &i)) {
		const struct radix_node *n = radix_node(ix, i);

		if (n->root == b->root && n->parent == b->node &&
		    !(n->flags & RADIX_NODE_F_ISLAND) &&
		    memcmp(radix_edge_key(n, g, 0), key, g.key_len) == 0)
			return i;
		/* the count is no state: nothing depends on it */
		((struct radix_index *)(uintptr_t)ix)->children.mismatch++;
	}
	return RADIX_NONE;
}

struct radix_place radix_place_root(uint32_t root)
{
	return (struct radix_place){ .root = root, .node = RADIX_NODE_NONE };
}

struct radix_place radix_place_island(uint32_t root)
{
	return (struct radix_place){ .root = root, .node = RADIX_NODE_ISLAND };
}

static void walk_on(struct walk *w, struct radix_place *p)
{
	while (w->done < w->n_keys) {
		struct radix_branch b;
		const struct radix_node *n;
		uint32_t child, m;

		if (radix_place_is_edge(p) && p->idx < radix_node(w->ix, p->node)->n_blocks) {
			n = radix_node(w->ix, p->node);
			m = walk_edge(w, p->node, n, p->idx);
			w->ahead.n_short = n->n_blocks < SHORT_EDGE ? w->ahead.n_short + 1 : 0;
			w->done += m;
			p->idx += m;
			if (p->idx < n->n_blocks)
				return;
			continue;
		}
		b = radix_branch_at(w->ix, p);
		if (!b.n_child)
			return;
		child = radix_child_find(w->ix, &b, address_of_next(w, &b), key_at(w, w->done));
		if (child == RADIX_NONE)
			return;
		n = radix_node(w->ix, child);
		m = walk_edge(w, child, n, 0);
		if (!m) /* no room for its first slot */
			return;
		w->ahead.n_short = n->n_blocks < SHORT_EDGE ? w->ahead.n_short + 1 : 0;
		w->done += m;
		p->node = child;
		p->idx = m;
		if (m < n->n_blocks)
			return;
	}
}

void radix_match(const struct radix_index *ix, const struct radix_place *from, const void *keys,
		 uint32_t n_keys, struct radix_runs *runs, struct radix_match *ret_match)
{
	struct walk w = {
		.ix = ix,
		.root = &ix->roots[from->root],
		.keys = keys,
		.n_keys = n_keys,
		.runs = runs,
		.device_end = *from,
	};
	struct radix_place p = *from;
	bool below = false;

	walk_on(&w, &p);
	p.depth = from->depth + w.done;
	if (radix_place_is_edge(&p)) {
		const struct radix_node *n = radix_node(ix, p.node);

		below = p.idx < n->n_blocks || n->n_child;
	} else if (p.node == RADIX_NODE_NONE) {
		below = w.root->n_child > 0;
	}
	if (radix_has_tiers(ix)) {
		w.device_end.depth = from->depth + w.n_device;
	} else {
		w.device_end = p;
		w.n_device = w.done;
	}
	*ret_match = (struct radix_match){
		.end = p,
		.n_blocks = w.done,
		.device_end = w.device_end,
		.n_device = w.n_device,
		.n_host = w.n_host,
		.diverged = below && w.done < n_keys && !(runs && runs->full),
	};
}
