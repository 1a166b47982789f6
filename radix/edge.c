#include "radix/edge.h"

/* Keys of a full segment take at most this much; a page, so that streaming stays within it. */
#define SEG_KEY_BYTES  4096u
#define SEG_BLOCKS_MAX 256u
#define STEPS_MAX      32768u /* of an edge; beyond it neighbours share the younger one's tick */

struct radix_geometry radix_geometry_of(uint32_t key_len)
{
	struct radix_geometry g = { .key_len = key_len };

	while ((2u << g.seg_shift) <= SEG_BLOCKS_MAX &&
	       (2u << g.seg_shift) * key_len <= SEG_KEY_BYTES)
		g.seg_shift++;
	return g;
}

static uint32_t power_of_two(uint32_t at_least)
{
	uint32_t p = 1;

	while (p < at_least)
		p *= 2;
	return p;
}

static size_t seg_size(struct radix_geometry g, uint32_t cap)
{
	return ((sizeof(struct radix_seg) + cap * 4u + 15u) & ~(size_t)15) +
	       (size_t)cap * g.key_len;
}

static struct radix_seg *seg_new(struct radix_slab *slab, struct radix_geometry g, uint32_t cap)
{
	uint64_t handle = radix_slab_take(slab, seg_size(g, cap));
	struct radix_seg *seg;

	if (!handle)
		return NULL;
	seg = radix_slab_at(slab, handle);
	seg->handle = handle;
	seg->cap = cap;
	seg->run = 0;
	return seg;
}

static void seg_free(struct radix_slab *slab, struct radix_geometry g, struct radix_seg *seg)
{
	radix_slab_give(slab, seg->handle, seg_size(g, seg->cap));
}

void radix_edge_init(struct radix_node *n, uint32_t root)
{
	*n = (struct radix_node){
		.segs = n->inline_segs,
		.parent = RADIX_NODE_NONE,
		.root = root,
		.first_child = RADIX_NONE,
		.next_sib = RADIX_NONE,
		.prev_sib = RADIX_NONE,
		.heap_pos = RADIX_NONE,
		.flags = RADIX_NODE_F_LIVE,
	};
	radix_list_init(&n->pins);
}

/* ---- the directory of segments --------------------------------------------------------------- */

static bool dir_is_inline(const struct radix_node *n)
{
	return n->segs == (struct radix_seg *const *)n->inline_segs;
}

/* The array behind a directory starts with its own handle. */
static int dir_reserve(struct radix_slab *slab, struct radix_node *n, uint32_t want)
{
	uint32_t cap = dir_is_inline(n) ? 2u : 1u << n->cap_segs;
	uint32_t shift = 3;
	uint64_t handle, *words;

	if (want <= cap)
		return 0;
	while ((1u << shift) < want)
		shift++;
	handle = radix_slab_take(slab, ((1u << shift) + 1) * sizeof(void *));
	if (!handle)
		return -ENOMEM;
	words = radix_slab_at(slab, handle);
	words[0] = handle;
	memcpy(words + 1, n->segs, n->n_segs * sizeof(*n->segs));
	if (!dir_is_inline(n))
		radix_slab_give(slab, ((uint64_t *)(void *)n->segs)[-1],
				((1u << n->cap_segs) + 1) * sizeof(void *));
	n->segs = (struct radix_seg **)(void *)(words + 1);
	n->cap_segs = (uint8_t)shift;
	return 0;
}

static void dir_shrink(struct radix_slab *slab, struct radix_node *n)
{
	struct radix_seg **old = n->segs;

	if (dir_is_inline(n) || n->n_segs > 2)
		return;
	memcpy(n->inline_segs, old, n->n_segs * sizeof(*old));
	n->segs = n->inline_segs;
	radix_slab_give(slab, ((uint64_t *)(void *)old)[-1],
			((1u << n->cap_segs) + 1) * sizeof(void *));
}

static uint32_t capacity(const struct radix_node *n, struct radix_geometry g)
{
	if (n->n_segs == 0)
		return 0;
	return n->n_segs == 1 ? n->segs[0]->cap : n->n_segs << g.seg_shift;
}

/* Room for one more block: a larger first segment, or one more full one. */
static int grow(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g)
{
	uint32_t full = 1u << g.seg_shift;
	struct radix_seg *seg;

	if (n->n_segs == 1 && n->segs[0]->cap < full) {
		struct radix_seg *old = n->segs[0];

		seg = seg_new(slab, g, old->cap * 2);
		if (!seg)
			return -ENOMEM;
		memcpy(seg->refs, old->refs, old->cap * sizeof(uint32_t));
		seg->run = old->run;
		memcpy(radix_seg_keys(seg), radix_seg_keys(old), (size_t)old->cap * g.key_len);
		n->segs[0] = seg;
		seg_free(slab, g, old);
		return 0;
	}
	if (dir_reserve(slab, n, n->n_segs + 1) < 0)
		return -ENOMEM;
	seg = seg_new(slab, g, n->n_segs ? full : 1);
	if (!seg)
		return -ENOMEM;
	n->segs[n->n_segs++] = seg;
	return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct radix_step *steps_of(const struct radix_slab *slab, const struct radix_node *n)
{
	if (n->cap_steps)
		return radix_slab_at(slab, n->steps);
	return (struct radix_step *)(uintptr_t)&n->step;
}

static int steps_reserve(struct radix_slab *slab, struct radix_node *n, uint32_t want)
{
	uint32_t cap = n->cap_steps ? n->cap_steps * 2u : 4;
	uint64_t handle;

	if (want <= (n->cap_steps ? n->cap_steps : 1u))
		return 0;
	if (want > STEPS_MAX)
		return -ENOMEM;
	while (cap < want)
		cap *= 2;
	handle = radix_slab_take(slab, cap * sizeof(struct radix_step));
	if (!handle)
		return -ENOMEM;
	memcpy(radix_slab_at(slab, handle), steps_of(slab, n),
	       n->n_steps * sizeof(struct radix_step));
	if (n->cap_steps)
		radix_slab_give(slab, n->steps, n->cap_steps * sizeof(struct radix_step));
	n->steps = handle;
	n->cap_steps = (uint16_t)cap;
	return 0;
}

static void steps_shrink(struct radix_slab *slab, struct radix_node *n)
{
	if (!n->cap_steps || n->n_steps > 1)
		return;
	if (n->n_steps)
		n->step = *steps_of(slab, n);
	radix_slab_give(slab, n->steps, n->cap_steps * sizeof(struct radix_step));
	n->cap_steps = 0;
}

/* One step more for block n_blocks (appended next); two neighbours with one tick are one step. */
static int steps_append(struct radix_slab *slab, struct radix_node *n, uint64_t tick, uint32_t end)
{
	struct radix_step *s = steps_of(slab, n);

	if (n->n_steps && (s[n->n_steps - 1].tick == tick || n->n_steps == STEPS_MAX)) {
		s[n->n_steps - 1] = (struct radix_step){
			.tick = s[n->n_steps - 1].tick > tick ? s[n->n_steps - 1].tick : tick,
			.end = end,
		};
		return 0;
	}
	if (steps_reserve(slab, n, n->n_steps + 1) < 0)
		return -ENOMEM;
	s = steps_of(slab, n);
	s[n->n_steps++] = (struct radix_step){ .tick = tick, .end = end };
	return 0;
}

static void steps_trim(struct radix_slab *slab, struct radix_node *n, uint32_t to)
{
	struct radix_step *s = steps_of(slab, n);

	while (n->n_steps > 1 && s[n->n_steps - 2].end >= to)
		n->n_steps--;
	if (to == 0)
		n->n_steps = 0;
	else
		s[n->n_steps - 1].end = to;
	steps_shrink(slab, n);
}

/*
 * The steps that end at or before `to` become one.  When the list would have to grow and there is
 * no memory, the step that `to` cuts takes the newer tick as a whole: its tail looks younger than
 * it is.
 */
void radix_edge_touch(struct radix_slab *slab, struct radix_node *n, uint32_t to, uint64_t tick)
{
	struct radix_step *s = steps_of(slab, n);
	uint32_t first = 0; /* the first step that reaches beyond `to` */
	uint32_t keep;

	while (first < n->n_steps && s[first].end <= to)
		first++;
	keep = n->n_steps - first;
	if (first == 0) {
		if (steps_reserve(slab, n, n->n_steps + 1) < 0) {
			s[0].tick = tick;
			return;
		}
		s = steps_of(slab, n);
	}
	memmove(s + 1, s + first, keep * sizeof(*s));
	s[0] = (struct radix_step){ .tick = tick, .end = to };
	n->n_steps = keep + 1;
	if (keep && s[1].tick == tick) {
		memmove(s, s + 1, keep * sizeof(*s));
		n->n_steps = keep;
	}
	steps_shrink(slab, n);
}

uint64_t radix_edge_tail_tick(const struct radix_slab *slab, const struct radix_node *n,
			      uint32_t *ret_run)
{
	const struct radix_step *s = steps_of(slab, n);
	uint32_t last = n->n_steps - 1;

	*ret_run = s[last].end - (last ? s[last - 1].end : 0);
	return s[last].tick;
}

uint64_t radix_edge_tick_at(const struct radix_slab *slab, const struct radix_node *n, uint32_t i)
{
	const struct radix_step *s = steps_of(slab, n);
	uint32_t k = 0, end = n->n_steps - 1; /* it is one of k..end */

	while (k < end) {
		uint32_t middle = k + (end - k) / 2;

		if (s[middle].end > i)
			end = middle;
		else
			k = middle + 1;
	}
	return s[k].tick;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Place `at` of a segment gets another number. */
static void seg_set(struct radix_seg *seg, uint32_t at, uint32_t ref)
{
	seg->refs[at] = ref;
	if (seg->run > at)
		seg->run = at;
	if (seg->run == at && (at == 0 || ref == seg->refs[0] + at))
		seg->run = at + 1;
}

void radix_edge_set_ref(const struct radix_node *n, struct radix_geometry g, uint32_t i,
			uint32_t ref)
{
	i += n->off;
	seg_set(n->segs[i >> g.seg_shift], i & ((1u << g.seg_shift) - 1), ref);
}

int radix_edge_append(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g,
		      const void *key, uint32_t ref, uint64_t tick)
{
	uint32_t i = n->n_blocks;

	if (i + n->off == capacity(n, g) && grow(slab, n, g) < 0)
		return -ENOMEM;
	if (steps_append(slab, n, tick, i + 1) < 0)
		return -ENOMEM; /* an empty place at the end of a segment changes nothing */
	n->n_blocks++;
	seg_set(n->segs[(i + n->off) >> g.seg_shift], (i + n->off) & ((1u << g.seg_shift) - 1),
		ref);
	memcpy((uint8_t *)(uintptr_t)radix_edge_key(n, g, i), key, g.key_len);
	n->end_known = 0;
	return 0;
}

int radix_edge_start(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g,
		     uint32_t want)
{
	uint32_t full = 1u << g.seg_shift;

	if (dir_reserve(slab, n, (want + full - 1) >> g.seg_shift) < 0)
		return -ENOMEM;
	n->segs[0] = seg_new(slab, g, power_of_two(radix_min_u32(want, full)));
	if (!n->segs[0])
		return -ENOMEM;
	n->n_segs = 1;
	return 0;
}

void radix_edge_trim(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g,
		     uint32_t to)
{
	uint32_t need = (to + n->off + (1u << g.seg_shift) - 1) >> g.seg_shift;

	if (to == 0) {
		need = 0;
		n->off = 0;
	}
	while (n->n_segs > need)
		seg_free(slab, g, n->segs[--n->n_segs]);
	dir_shrink(slab, n);
	n->n_blocks = to;
	n->end_known = 0;
	steps_trim(slab, n, to);
}

void radix_edge_clear(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g)
{
	radix_edge_trim(slab, n, g, 0);
	n->flags = 0;
}

int radix_edge_join(struct radix_slab *slab, struct radix_node *to, struct radix_node *from,
		    struct radix_geometry g)
{
	const struct radix_step *s = steps_of(slab, from);
	uint32_t before = to->n_blocks, k = 0;

	for (uint32_t i = 0; i < from->n_blocks; i++) {
		while (s[k].end <= i)
			k++;
		if (radix_edge_append(slab, to, g, radix_edge_key(from, g, i),
				      *radix_edge_ref(from, g, i), s[k].tick) < 0) {
			radix_edge_trim(slab, to, g, before);
			return -ENOMEM;
		}
	}
	to->end_known = from->end_known;
	to->end_chain = from->end_chain;
	radix_edge_trim(slab, from, g, 0);
	return 0;
}

/* ---- cutting --------------------------------------------------------------------------------- */

/* Places [from, from + n) of one segment to the beginning of another. */
static void seg_copy(struct radix_seg *to, const struct radix_seg *seg, struct radix_geometry g,
		     uint32_t from, uint32_t n)
{
	memcpy(to->refs, seg->refs + from, n * sizeof(uint32_t));
	to->run = n ? 1 : 0;
	while (to->run < n && to->refs[to->run] == to->refs[0] + to->run)
		to->run++;
	memcpy(radix_seg_keys(to), radix_seg_keys(seg) + (size_t)from * g.key_len,
	       (size_t)n * g.key_len);
}

/* The upper part's steps; room was made. */
static void cut_steps(struct radix_slab *slab, struct radix_node *n, uint32_t at,
		      struct radix_node *upper)
{
	struct radix_step *s = steps_of(slab, n), *u = steps_of(slab, upper);
	uint32_t k = 0, first;

	while (s[k].end < at) {
		u[k] = s[k];
		k++;
	}
	u[k] = (struct radix_step){ .tick = s[k].tick, .end = at };
	upper->n_steps = k + 1;
	steps_shrink(slab, upper);
	first = s[k].end == at ? k + 1 : k;
	n->n_steps -= first;
	memmove(s, s + first, n->n_steps * sizeof(*s));
	for (uint32_t i = 0; i < n->n_steps; i++)
		s[i].end -= at;
	steps_shrink(slab, n);
}

/* A lone segment holds no more than its edge needs; without memory it stays as it is. */
static void compact(struct radix_slab *slab, struct radix_node *n, struct radix_geometry g)
{
	struct radix_seg *old = n->segs[0], *seg;
	uint32_t cap = power_of_two(n->n_blocks);

	if (n->n_segs != 1 || cap >= old->cap)
		return;
	seg = seg_new(slab, g, cap);
	if (!seg)
		return;
	seg_copy(seg, old, g, n->off, n->n_blocks);
	n->off = 0;
	n->segs[0] = seg;
	seg_free(slab, g, old);
}

/*
 *     places     0        off        off+at                  off+n_blocks
 *     before     |........[ upper    |  lower                ]
 *     whole segments in front of the cut change hands; of the one that is cut, the upper part gets
 *     a copy of its places, the lower part keeps the original and begins inside it.
 */
int radix_edge_cut(struct radix_slab *slab, struct radix_node *n, uint32_t at,
		   struct radix_node *upper, struct radix_geometry g)
{
	uint32_t cut = at + n->off, whole = cut >> g.seg_shift;
	uint32_t rest = cut & ((1u << g.seg_shift) - 1);
	struct radix_seg *last = NULL;

	if (steps_reserve(slab, upper, n->n_steps) < 0 || dir_reserve(slab, upper, whole + 1) < 0)
		return -ENOMEM;
	if (rest) {
		last = seg_new(slab, g, whole ? 1u << g.seg_shift : power_of_two(rest));
		if (!last)
			return -ENOMEM; /* what upper reserved goes with it */
		seg_copy(last, n->segs[whole], g, 0, rest);
	}
	memcpy(upper->segs, n->segs, whole * sizeof(*n->segs));
	if (last)
		upper->segs[whole] = last;
	upper->n_segs = whole + (last ? 1 : 0);
	upper->off = n->off;
	upper->n_blocks = at;
	upper->end_known = 0;
	n->n_segs -= whole;
	memmove(n->segs, n->segs + whole, n->n_segs * sizeof(*n->segs));
	n->off = (uint16_t)rest;
	n->n_blocks -= at;
	cut_steps(slab, n, at, upper);
	dir_shrink(slab, n);
	dir_shrink(slab, upper);
	compact(slab, n, g);
	compact(slab, upper, g);
	return 0;
}
