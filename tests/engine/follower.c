/*
 * follower.c - see follower.h.
 */
#include "tests/engine/follower.h"

#include <check.h>

#include "daemon/engine_internal.h"

int follower_begin(struct follower *f, struct world_client *c, uint32_t ns, uint64_t from,
		   const struct proto_id *life)
{
	struct proto_subscribe_req m = { .ns = ns, .from = from };
	struct proto_subscribe_rep rep;
	int r;

	if (life)
		m.life = *life;
	c->changes_len = 0;
	r = world_subscribe(c, &m, &rep);
	if (r != PROTO_STATUS_OK)
		return r;
	memset(f, 0, sizeof(*f));
	f->c = c;
	f->last = from ? 0 : rep.last;
	ck_assert_uint_le(rep.oldest, rep.last + 1);
	return 0;
}

static struct follower_block *at(struct follower *f, const struct proto_change *e)
{
	world_check(f->c->w, e->ns < 16 && e->slot < FOLLOWER_SLOTS);
	return &f->blocks[f->pool_of[e->ns]][e->slot];
}

static bool is(const struct follower_block *b, const struct proto_change *e)
{
	return b->used && b->ns == e->ns && b->id_len == e->block.n &&
	       memcmp(b->id, e->block.p, e->block.n) == 0 && memcmp(b->root, e->root.b, 16) == 0;
}

static void on_stored(struct follower *f, const struct proto_change *e)
{
	struct follower_block *b = at(f, e);

	world_check(f->c->w, !b->used || is(b, e)); /* no slot has two members */
	world_check(f->c->w, e->block.n >= 16 && e->n_tokens > 0);
	if (e->position != RADIX_NONE && f->pool_of[e->ns] == 0) {
		uint32_t entry;
		uint64_t taken;

		memcpy(&entry, (const uint8_t *)e->block.p + 4, sizeof(entry));
		memcpy(&taken, (const uint8_t *)e->block.p + 8, sizeof(taken));
		world_check(f->c->w, entry < 2 * FOLLOWER_SLOTS && taken >= f->taken[entry]);
		f->taken[entry] = taken;
		f->most_taken = taken > f->most_taken ? taken : f->most_taken;
	}
	memset(b, 0, sizeof(*b));
	b->used = true;
	b->ns = e->ns;
	b->tenant = e->tenant;
	b->n_tokens = e->n_tokens;
	b->position = e->position;
	memcpy(b->root, e->root.b, 16);
	memcpy(b->id, e->block.p, b->id_len = e->block.n);
	if (e->parent.n)
		memcpy(b->parent, e->parent.p, b->parent_len = e->parent.n);
}

static void on_removed(struct follower *f, const struct proto_change *e)
{
	struct follower_block *b = at(f, e);

	world_check(f->c->w, e->reason != PROTO_REMOVAL_NONE);
	f->removed[e->reason]++;
	if (f->n[PROTO_CHANGE_RESYNC] && !b->used)
		return; /* of a block from before */
	world_check(f->c->w, is(b, e));
	b->used = false;
}

static void forget(struct follower *f, uint32_t ns)
{
	for (uint32_t p = 0; p < FOLLOWER_POOLS; p++)
		for (uint32_t i = 0; i < FOLLOWER_SLOTS; i++)
			if (ns == 0 || f->blocks[p][i].ns == ns)
				f->blocks[p][i].used = false;
}

static void take(struct follower *f, const struct proto_change *e)
{
	world_check(f->c->w, e->kind <= PROTO_CHANGE_RESYNC);
	world_check(f->c->w, e->number > f->last ||
				     (e->kind == PROTO_CHANGE_RESYNC && e->number == f->last));
	world_check(f->c->w, e->tier == PROTO_TIER_DEVICE);
	f->last = e->number;
	f->n[e->kind]++;
	f->n_events++;
	switch ((enum proto_change_kind)e->kind) {
	case PROTO_CHANGE_STORED:
		on_stored(f, e);
		break;
	case PROTO_CHANGE_REMOVED:
		on_removed(f, e);
		break;
	case PROTO_CHANGE_CLEARED:
		f->revision = e->revision;
		forget(f, e->ns);
		break;
	case PROTO_CHANGE_RESYNC:
		forget(f, 0);
		break;
	case PROTO_CHANGE_MOVED:
		world_fail(f->c->w, "a move between tiers that do not exist");
	}
}

void follower_listen(struct follower *f)
{
	struct proto_span rest;
	struct proto_change e;

	world_advance(f->c->w, 3000000);
	rest = (struct proto_span){ f->c->changes, f->c->changes_len };
	while (proto_change_next(&rest, &e) == 0)
		take(f, &e);
	world_check(f->c->w, rest.n == 0);
	f->c->changes_len = 0;
}

uint32_t follower_n(const struct follower *f)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < FOLLOWER_POOLS; p++)
		for (uint32_t i = 0; i < FOLLOWER_SLOTS; i++)
			n += f->blocks[p][i].used;
	return n;
}

/* One member as the index names it now. */
static void check_member(const struct follower *f, const struct radix_change *c, uint32_t pool)
{
	const struct follower_block *b = &f->blocks[pool][c->slot];
	struct world *w = f->c->w;

	world_check(w, b->used && b->ns == c->ns && b->tenant == c->tenant);
	world_check(w, memcmp(b->root, c->root, 16) == 0 && b->n_tokens == c->n_tokens);
	world_check(w, b->id_len == c->id_len && memcmp(b->id, c->id, c->id_len) == 0);
	world_check(w, b->position == c->position);
	/* An island that was hung somewhere since has a parent that no event told. */
	if (b->parent_len || c->position != RADIX_NONE)
		world_check(w, b->parent_len == c->parent_len &&
				       memcmp(b->parent, c->parent, c->parent_len) == 0);
}

void follower_check(const struct follower *f, uint32_t group)
{
	static struct radix_change records[256];
	struct world *w = f->c->w;
	struct radix_index *ix = world_index(w, group);
	struct radix_stats stats;
	uint32_t n = 0;

	radix_index_stats(ix, &stats);
	for (uint32_t i = 0; i < stats.n_slots; i++)
		world_check(w, f->blocks[group][i].used ==
				       (radix_slot_state(ix, i) == RADIX_SLOT_READY));
	for (uint32_t i = 0; i < w->engine->roots.n; i++) {
		struct prefixd_root *r = radix_container_of(w->engine->roots.v[i],
							    struct prefixd_root, item);
		struct radix_log log = { .v = records, .cap = radix_array_size(records) };

		if (r->ns->group->id != group)
			continue;
		radix_log_members(ix, r->index_root, &log, group);
		world_check(w, log.n == radix_root_n_blocks(ix, r->index_root));
		for (uint64_t k = 1; k <= log.n; k++)
			check_member(f, radix_log_at(&log, k), group);
		n += (uint32_t)log.n;
	}
	world_check(w, n == stats.n_blocks);
}
