/*
 * lives.c - see lives.h.
 */
#include "tests/radix/lives.h"

#include "tests/lib/rng.h"

#include <check.h>

enum {
	OWNER = 1000 /* and the lease's number */
};

static uint32_t below(struct lives *l, uint32_t n)
{
	return test_rng_below(&l->rng, n);
}

static bool chance(struct lives *l, uint32_t percent)
{
	return below(l, 100) < percent;
}

static void called(struct lives *l)
{
	l->n_calls++;
	if (l->called)
		l->called(l);
}

void lives_key(uint32_t key, uint8_t *out)
{
	memset(out, 'A' + (int)key, LIVES_KEY_LEN);
}

static struct radix_root_config root_config(const struct lives *l, uint32_t i)
{
	bool tokens = l->shape->mode == RADIX_KEYS_TOKENS;

	return (struct radix_root_config){
		.mode = l->shape->mode,
		.key_len = LIVES_KEY_LEN,
		.block_tokens = 4,
		.token_bytes = tokens ? LIVES_KEY_LEN : 0,
		.ns = 3 + i,
		.tenant = 5,
		.user = i,
		.window = i ? 0 : l->shape->window,
	};
}

struct radix_index_config lives_numbers(const struct lives_shape *shape,
					const struct radix_alloc *alloc)
{
	return (struct radix_index_config){
		.alloc = alloc,
		.n_slots = shape->n_slots,
		.n_host = shape->n_host,
		.redis = shape->redis,
		.n_entries = shape->n_slots + shape->n_host + shape->budget,
		.n_ghosts = shape->n_ghosts,
		.coded = shape->coded,
		.secret = { 11, 12 },
	};
}

void lives_init(struct lives *l, const struct lives_shape *shape, struct kept *kept, uint64_t seed)
{
	*l = (struct lives){ .shape = shape, .kept = kept, .rng = seed };
	for (uint32_t i = 0; i < LIVES_KEYS; i++) {
		uint32_t back = 1 + below(l, 5);

		l->parent[i] = back > i || chance(l, 8) ? LIVES_KEYS : i - back;
	}
	if (radix_index_new(&l->ix, &kept->config) != 0)
		ck_abort_msg("no index");
	for (uint32_t i = 0; i < LIVES_ROOTS; i++) {
		struct radix_root_config config = root_config(l, i);

		if (radix_root_new(l->ix, &config, &l->root[i]) != 0)
			ck_abort_msg("no root");
	}
}

void lives_roots(const struct lives *l, struct radix_recover_root ret[LIVES_ROOTS])
{
	for (uint32_t i = 0; i < LIVES_ROOTS; i++)
		ret[i] = (struct radix_recover_root){ .root = l->root[i],
						      .config = root_config(l, i) };
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* The path of a random key; in digest mode sometimes only the end of it, as an island. */
static void op_open(struct lives *l, struct lives_lease *s)
{
	struct radix_place at;
	struct radix_match m;
	uint8_t key[LIVES_KEY_LEN];
	uint32_t path[LIVES_KEYS], n = 0;

	for (uint32_t k = below(l, LIVES_KEYS); k != LIVES_KEYS; k = l->parent[k])
		path[n++] = k;
	*s = (struct lives_lease){ .open = true, .root = l->root[chance(l, 30)] };
	at = radix_place_root(s->root);
	if (l->shape->mode == RADIX_KEYS_DIGEST && chance(l, 30)) {
		bool rooted;

		n = 1 + below(l, n);
		lives_key(path[n - 1], key);
		if (radix_find_digest(l->ix, s->root, key, &at, &rooted) != 0)
			at = radix_place_island(s->root);
	}
	for (; n; n--) {
		lives_key(path[n - 1], key);
		radix_match(l->ix, &at, key, 1, NULL, &m);
		if (!m.n_device)
			break;
		/* now and then hollow blocks are computed anew */
		if (l->shape->window && radix_place_hollow(l->ix, &m.end) && chance(l, 20))
			break;
		at = m.end;
	}
	while (n)
		s->path[s->n++] = path[--n];
	if (l->shape->window)
		s->pin.window = chance(l, 80);
	radix_pin_take(l->ix, &s->pin, &at);
	called(l);
}

static uint32_t owner_of(const struct lives *l, const struct lives_lease *s)
{
	return OWNER + (uint32_t)(s - l->leases);
}

static void op_reserve(struct lives *l, struct lives_lease *s)
{
	struct radix_run v[LIVES_SLOTS];
	struct radix_runs runs = { .v = v, .cap = LIVES_SLOTS };
	uint32_t want = 1 + below(l, 3), granted;

	if (s->n_slots + want > LIVES_SLOTS)
		return;
	radix_reserve(l->ix, owner_of(l, s), want, &runs, &granted);
	for (uint32_t i = 0; i < runs.n; i++)
		for (uint32_t j = 0; j < v[i].len; j++)
			s->slots[s->n_slots++] = v[i].start + j;
	called(l);
}

static void discard(struct lives *l, struct lives_lease *s, uint32_t slot)
{
	bool quarantine = chance(l, 20);

	if (radix_slot_discard(l->ix, owner_of(l, s), slot, quarantine) != 0)
		ck_abort_msg("slot %u is not the lease's", slot);
	called(l);
	if (!quarantine || chance(l, 30))
		return;
	if (radix_quarantine_end(l->ix, slot) != 0)
		ck_abort_msg("slot %u is in no quarantine", slot);
	called(l);
}

/* What somebody left there. */
static void quarantine_ends(struct lives *l)
{
	for (uint32_t i = 0; i < l->shape->n_slots; i++) {
		if (radix_slot_state(l->ix, i) == RADIX_SLOT_QUARANTINED &&
		    radix_quarantine_end(l->ix, i) == 0)
			called(l);
	}
}

static void op_commit(struct lives *l, struct lives_lease *s)
{
	uint8_t key[LIVES_KEY_LEN];
	struct radix_block block = { .key = key, .n_tokens = 4 };
	enum radix_commit_result result;
	uint32_t slot;
	int r;

	if (!s->n || !s->n_slots)
		return;
	lives_key(s->path[0], key);
	block.slot = s->slots[--s->n_slots];
	if (chance(l, 60)) {
		block.checksum_kind = 1;
		memset(block.checksum, (int)(s->path[0] + (chance(l, 20) ? 100 : 0)), 16);
	}
	r = radix_commit(l->ix, &s->pin, owner_of(l, s), &block, ++l->tick, &slot, &result);
	called(l);
	if (r == 0 && result == RADIX_COMMIT_DUPLICATE)
		discard(l, s, block.slot);
	if (r) {
		s->slots[s->n_slots++] = block.slot;
		s->n = 0; /* it hangs elsewhere, or what was before it went down */
		return;
	}
	memmove(s->path, s->path + 1, --s->n * sizeof(*s->path));
}

static void op_found(struct lives *l, struct lives_lease *s)
{
	uint8_t keys[3][LIVES_KEY_LEN];
	struct radix_member names[3];
	uint32_t n = s->n < 3 ? s->n : 3;

	for (uint32_t i = 0; i < n; i++)
		lives_key(s->path[i], keys[i]);
	(void)radix_add_lower(l->ix, &s->pin, keys, n, ++l->tick, names);
	called(l);
	s->n = 0;
}

static void op_end(struct lives *l, struct lives_lease *s)
{
	while (s->n_slots)
		discard(l, s, s->slots[--s->n_slots]);
	if (chance(l, 30)) {
		radix_hit(l->ix, &s->pin.at);
		called(l);
	}
	radix_touch(l->ix, &s->pin.at, ++l->tick);
	called(l);
	radix_pin_drop(l->ix, &s->pin);
	called(l);
	s->open = false;
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static bool some_member(struct lives *l, struct radix_member *ret)
{
	for (uint32_t tries = 0; l->ix->table.n_used && tries < 20; tries++) {
		uint32_t i = below(l, l->ix->table.n_used);

		*ret = (struct radix_member){ i, l->ix->table.v[i].generation };
		if (l->ix->table.v[i].state == RADIX_ENTRY_READY)
			return true;
	}
	return false;
}

static void op_move_end(struct lives *l)
{
	uint8_t sum[16];
	struct radix_move m;
	uint32_t i;
	int r;

	if (!l->n_moves)
		return;
	i = below(l, l->n_moves);
	m = l->moves[i];
	memset(sum, 77, sizeof(sum));
	if (l->shape->coded && m.to == RADIX_TIER_DEVICE)
		m.lossy = chance(l, 50);
	r = radix_move_end(l->ix, &m, chance(l, 85), chance(l, 50) ? sum : NULL, NULL);
	called(l);
	if (r == RADIX_E_REFUSED) {
		if (radix_move_end(l->ix, &m, false, NULL, NULL) != 0)
			ck_abort_msg("a move did not end");
		called(l);
	}
	l->moves[i] = l->moves[--l->n_moves];
}

static void op_room(struct lives *l)
{
	static const uint32_t flags[] = { 0, 0, RADIX_ROOM_DROP, RADIX_ROOM_SECOND_USE };
	struct radix_room room;

	radix_make_room(l->ix, chance(l, 70) ? RADIX_TIER_DEVICE : RADIX_TIER_HOST, 1 + below(l, 3),
			flags[below(l, 4)], l->moves + l->n_moves, LIVES_MOVES - l->n_moves, &room);
	l->n_moves += room.started;
	called(l);
}

static void op_begin(struct lives *l)
{
	struct radix_member m;
	int r;

	if (l->n_moves == LIVES_MOVES || !some_member(l, &m))
		return;
	if (chance(l, 50))
		r = radix_promote_begin(l->ix, m, &l->moves[l->n_moves]);
	else
		r = radix_copy_begin(l->ix, m, 1 + below(l, 2), &l->moves[l->n_moves]);
	l->n_moves += r == 0;
	called(l);
}

static void op_lose(struct lives *l)
{
	struct radix_member m;

	if (!some_member(l, &m))
		return;
	(void)radix_lose(l->ix, m, below(l, 3), RADIX_REMOVE_LOST);
	called(l);
}

/* The right parent is named, and both are used as whoever names it does. */
static void op_graft(struct lives *l)
{
	uint32_t key = below(l, LIVES_KEYS), root = l->root[chance(l, 30)];
	uint8_t child[LIVES_KEY_LEN], parent[LIVES_KEY_LEN];
	struct radix_place at;
	struct radix_match m;
	bool rooted;
	int r;

	if (l->parent[key] == LIVES_KEYS)
		return;
	lives_key(key, child);
	lives_key(l->parent[key], parent);
	r = radix_graft(l->ix, root, parent, child);
	called(l);
	if (r || radix_find_digest(l->ix, root, child, &at, &rooted) != 0)
		return;
	radix_match(l->ix, &at, child, 1, NULL, &m);
	radix_touch(l->ix, &m.end, ++l->tick);
	called(l);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void op_remove(struct lives *l)
{
	if (chance(l, 8))
		(void)radix_flush_root(l->ix, l->root[1], RADIX_REMOVE_FLUSH);
	else
		(void)radix_evict(l->ix, 1 + below(l, 3), RADIX_REMOVE_EVICT);
	called(l);
}

static void step_tiers(struct lives *l)
{
	uint32_t dice = below(l, 100);

	if (dice < 40)
		op_move_end(l);
	else if (dice < 65)
		op_room(l);
	else
		op_begin(l);
}

void lives_step(struct lives *l)
{
	struct lives_lease *s = &l->leases[below(l, LIVES_LEASES)];
	uint32_t dice = below(l, 100);

	if (chance(l, 2))
		quarantine_ends(l);
	if (dice < 4)
		op_remove(l);
	else if (dice < 7)
		op_lose(l);
	else if (dice < 15 && l->shape->mode == RADIX_KEYS_DIGEST)
		op_graft(l);
	else if (dice < 45 && radix_has_tiers(l->ix))
		step_tiers(l);
	else if (!s->open)
		op_open(l, s);
	else if (!s->n || dice < 52)
		op_end(l, s);
	else if (!s->n_slots)
		op_reserve(l, s);
	else if (dice < 56 && l->shape->redis)
		op_found(l, s);
	else
		op_commit(l, s);
}

void lives_quiet(struct lives *l)
{
	while (l->n_moves)
		op_move_end(l);
	for (uint32_t i = 0; i < LIVES_LEASES; i++) {
		if (l->leases[i].open)
			op_end(l, &l->leases[i]);
	}
}
