/*
 * tiers_world.c - see tiers_world.h.
 */
#include "tests/radix/tiers_world.h"

#include "tests/lib/rng.h"

#include <check.h>
#include <inttypes.h>

void tw_wrong(const struct tiers_world *w, int line, const char *what)
{
	ck_abort_msg("seed %" PRIu64 " shape %d digests %d step %u after %s, line %d: %s", w->seed,
		     w->shape_number, w->digests, w->step, w->op, line, what);
}

uint32_t tw_below(struct tiers_world *w, uint32_t n)
{
	return test_rng_below(&w->rng, n);
}

bool tw_chance(struct tiers_world *w, uint32_t percent)
{
	return tw_below(w, 100) < percent;
}

/* ---- the world ------------------------------------------------------------------------------- */

/* Prompts over three letters that often begin alike; a digest names the letters so far. */
static void make_prompts(struct tiers_world *w)
{
	for (uint32_t p = 0; p < TW_N_PROMPTS; p++) {
		uint32_t from = p ? tw_below(w, p) : 0, same = p ? tw_below(w, TW_PROMPT_MAX) : 0;
		uint64_t path = 14695981039346656037u;

		w->prompt_len[p] = 1 + tw_below(w, TW_PROMPT_MAX);
		for (uint32_t i = 0; i < w->prompt_len[p]; i++) {
			uint64_t letter = 1 + tw_below(w, 3);

			if (i < same && i < w->prompt_len[from])
				memcpy(&letter, w->prompts[from][i] + 8, 8);
			path = (path ^ letter) * 1099511628211u;
			memset(w->prompts[p][i], 0, TW_KEY);
			memcpy(w->prompts[p][i] + 8, &letter, 8);
			if (w->digests)
				memcpy(w->prompts[p][i], &path, 8);
		}
	}
}

void tw_init(struct tiers_world *w, const struct tw_shape *shape, bool digests, uint64_t seed)
{
	struct radix_index_config config;

	*w = (struct tiers_world){ .shape = shape, .digests = digests, .seed = seed, .rng = seed };
	test_heap_init(&w->heap);
	make_prompts(w);
	to_init(&w->o, shape->n_slots, shape->n_host, shape->redis, shape->budget);
	config = (struct radix_index_config){
		.alloc = &w->heap.alloc,
		.n_slots = shape->n_slots,
		.n_host = shape->n_host,
		.redis = shape->redis,
		.n_entries = shape->n_slots + shape->n_host + shape->budget,
		.secret = { test_rng(&w->rng), test_rng(&w->rng) },
	};
	kept_init(&w->kept, &config);
	ck_assert_int_eq(radix_index_new(&w->ix, &w->kept.config), 0);
	for (uint32_t i = 0; i < TW_N_ROOTS; i++) {
		struct radix_root_config rc = {
			.mode = digests ? RADIX_KEYS_DIGEST : RADIX_KEYS_TOKENS,
			.key_len = TW_KEY,
			.block_tokens = 4,
			.token_bytes = digests ? 0 : TW_KEY,
			.ns = i,
		};

		ck_assert_int_eq(radix_root_new(w->ix, &rc, &w->root[i]), 0);
	}
}

void tw_deinit(struct tiers_world *w)
{
	w->ix = radix_index_free(w->ix);
	CHECK(w, w->heap.live_blocks == 0);
	kept_deinit(&w->kept);
}

static const struct radix_entry *entry_of(const struct tiers_world *w, int block)
{
	return &w->ix->table.v[w->o.b[block].name.entry];
}

void tw_name(struct tiers_world *w, int block, uint32_t entry)
{
	w->o.b[block].name = (struct radix_member){ entry, w->ix->table.v[entry].generation };
}

/* ---- what must agree ------------------------------------------------------------------------- */

static void check_block(struct tiers_world *w, int i)
{
	const struct to_block *b = &w->o.b[i];
	const struct radix_entry *e = entry_of(w, i);

	CHECK(w, e->state == RADIX_ENTRY_READY && e->generation == b->name.generation);
	CHECK(w, e->root == w->root[b->root]);
	CHECK(w, memcmp(radix_table_key(&w->ix->table, b->name.entry), b->key, TW_KEY) == 0);
	CHECK(w,
	      radix_entry_slot(e) == (b->slot[0] == TO_NONE ? RADIX_NONE : (uint32_t)b->slot[0]));
	CHECK(w,
	      radix_entry_host(e) == (b->slot[1] == TO_NONE ? RADIX_NONE : (uint32_t)b->slot[1]));
	CHECK(w, radix_entry_redis(e) == b->redis);
	CHECK(w, e->moving == b->moving);
	CHECK(w, e->checksum_kind == b->checksum_kind);
	CHECK(w,
	      radix_entry_parent(e) == (b->parent < 0 ? RADIX_NONE : w->o.b[b->parent].name.entry));
	CHECK(w,
	      radix_edge_tick_at(&w->ix->slab, radix_node(w->ix, w->ix->where_node[b->name.entry]),
				 w->ix->where_idx[b->name.entry]) == b->tick);
}

static void check_slots(struct tiers_world *w, enum radix_tier pool, const struct radix_slots *s)
{
	for (uint32_t i = 0; i < w->o.n_slots[pool]; i++) {
		CHECK(w, s->state[i] == w->o.slots[pool][i].state);
		CHECK(w, s->reads[i] == (uint32_t)w->o.slots[pool][i].reads);
	}
	CHECK(w, radix_free_slots(w->ix, pool) == to_count(&w->o, pool, RADIX_SLOT_FREE));
	CHECK(w, radix_leaving_slots(w->ix, pool) == to_count(&w->o, pool, RADIX_SLOT_LEAVING));
}

/* Whatever happened to its block, a move's slots are its own until it ends. */
static void check_moves(struct tiers_world *w)
{
	for (uint32_t i = 0; i < w->n_moves; i++) {
		const struct radix_move *m = &w->moves[i].m;
		const struct radix_slots *src = m->from ? &w->ix->host : &w->ix->slots;
		const struct radix_slots *dst = m->to ? &w->ix->host : &w->ix->slots;

		if (m->from != RADIX_TIER_REDIS)
			CHECK(w, src->state[m->src] != RADIX_SLOT_FREE &&
					 src->state[m->src] != RADIX_SLOT_RESERVED);
		if (m->to != RADIX_TIER_REDIS)
			CHECK(w, dst->state[m->dst] == RADIX_SLOT_RESERVED &&
					 dst->owner[m->dst] == RADIX_OWNER_DAEMON);
	}
}

void tw_check(struct tiers_world *w)
{
	struct radix_stats s;
	uint64_t tier[3] = { 0 }, n = 0, bonus = 0;
	char why[256] = "";

	if (radix_verify(w->ix, why, sizeof(why)) != 0)
		tw_wrong(w, __LINE__, why);
	check_slots(w, RADIX_TIER_DEVICE, &w->ix->slots);
	if (w->shape->n_host)
		check_slots(w, RADIX_TIER_HOST, &w->ix->host);
	check_moves(w);
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		if (!w->o.b[i].used)
			continue;
		check_block(w, i);
		tier[to_tier(&w->o.b[i])]++;
		bonus += w->o.b[i].bonus > 0;
		n++;
	}
	radix_index_stats(w->ix, &s);
	CHECK(w, s.n_blocks == n);
	CHECK(w, s.n_bonus == bonus);
	CHECK(w, memcmp(s.tier, tier, sizeof(tier)) == 0);
	CHECK(w, memcmp(s.moved, w->o.moved, sizeof(s.moved)) == 0);
	CHECK(w, memcmp(s.removed_from, w->o.removed_from, sizeof(s.removed_from)) == 0);
	CHECK(w, s.stored_total + s.found_total == s.n_blocks + s.removed_total);
	for (uint32_t i = 0; i < TW_N_LEASES; i++) {
		const struct tw_lease *l = &w->leases[i];
		struct radix_member path[TW_PROMPT_MAX * 2];
		int at;

		if (!l->open)
			continue;
		at = w->o.pins[l->o_hold].at;
		n = radix_path_members(w->ix, &l->hold.at, TW_PROMPT_MAX * 2, path);
		CHECK(w, n == to_depth(&w->o, at));
		for (; n--; at = w->o.b[at].parent)
			CHECK(w, to_by_name(&w->o, path[n]) == at);
	}
}

/* ---- matching -------------------------------------------------------------------------------- */

struct tw_expected tw_match_expected(const struct tiers_world *w, uint32_t root, int from,
				     const uint8_t *keys, uint32_t n)
{
	struct tw_expected x = { .end = from, .device_end = from };

	for (; x.n_blocks < n; x.n_blocks++) {
		int child = to_child(&w->o, root, x.end, keys + (size_t)x.n_blocks * TW_KEY,
				     TW_KEY);

		if (child == TO_NONE)
			break;
		x.end = child;
		if (to_tier(&w->o.b[child]) == RADIX_TIER_DEVICE) {
			x.slots[x.n_device++] = w->o.b[child].slot[0];
			x.device_end = child;
		}
		x.n_host += to_tier(&w->o.b[child]) == RADIX_TIER_HOST;
	}
	return x;
}

struct tw_expected tw_match(struct tiers_world *w, uint32_t root, const struct radix_place *from,
			    int o_from, const uint8_t *keys, uint32_t n, struct radix_match *ret_m)
{
	struct tw_expected x = tw_match_expected(w, root, o_from, keys, n);
	struct radix_run v[TW_PROMPT_MAX];
	struct radix_runs runs = { .v = v, .cap = TW_PROMPT_MAX };
	struct radix_match lengths;
	uint32_t k = 0;

	radix_match(w->ix, from, keys, n, NULL, &lengths);
	radix_match(w->ix, from, keys, n, &runs, ret_m);
	CHECK(w, ret_m->n_blocks == x.n_blocks && lengths.n_blocks == x.n_blocks);
	CHECK(w, ret_m->n_device == x.n_device && lengths.n_device == x.n_device);
	CHECK(w, ret_m->n_host == x.n_host && lengths.n_host == x.n_host);
	CHECK(w, ret_m->end.depth == from->depth + x.n_blocks);
	CHECK(w, ret_m->device_end.depth == from->depth + x.n_device);
	CHECK(w, !runs.full);
	for (uint32_t i = 0; i < runs.n; i++)
		for (uint32_t j = 0; j < v[i].len; j++, k++)
			CHECK(w, k < x.n_device && (int)(v[i].start + j) == x.slots[k]);
	CHECK(w, k == x.n_device);
	return x;
}

void tw_match_cut(struct tiers_world *w, uint32_t p)
{
	struct radix_place from = radix_place_root(w->root[0]);
	struct tw_expected x = tw_match_expected(w, 0, TO_ROOT, w->prompts[p][0], w->prompt_len[p]);
	struct radix_run v;
	struct radix_runs runs = { .v = &v, .cap = 1 };
	struct radix_match m;
	uint32_t same = 0;

	while (same < x.n_device && x.slots[same] == x.slots[0] + (int)same)
		same++;
	radix_match(w->ix, &from, w->prompts[p][0], w->prompt_len[p], &runs, &m);
	CHECK(w, runs.full == (same < x.n_device));
	CHECK(w, m.n_device == same);
	CHECK(w, m.n_blocks == (runs.full ? same : x.n_blocks));
}
