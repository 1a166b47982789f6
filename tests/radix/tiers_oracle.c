/*
 * tiers_oracle.c - see tiers_oracle.h.
 */
#include "tests/radix/tiers_oracle.h"

static const char *wrong;

const char *to_wrong(void)
{
	const char *w = wrong;

	wrong = NULL;
	return w;
}

static void expect(bool cond, const char *what)
{
	if (!cond && !wrong)
		wrong = what;
}

void to_init(struct tiers_oracle *o, uint32_t n_slots, uint32_t n_host, bool redis, uint32_t budget)
{
	memset(o, 0, sizeof(*o));
	o->n_slots[0] = n_slots;
	o->n_slots[1] = n_host;
	o->redis = redis;
	o->budget = budget;
}

/* ---- asking ---------------------------------------------------------------------------------- */

enum radix_tier to_tier(const struct to_block *b)
{
	if (b->slot[0] != TO_NONE)
		return RADIX_TIER_DEVICE;
	return b->slot[1] != TO_NONE ? RADIX_TIER_HOST : RADIX_TIER_REDIS;
}

uint32_t to_count(const struct tiers_oracle *o, enum radix_tier pool, enum radix_slot_state s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->n_slots[pool]; i++)
		n += o->slots[pool][i].state == s;
	return n;
}

int to_child(const struct tiers_oracle *o, uint32_t root, int parent, const void *key,
	     uint32_t key_len)
{
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		const struct to_block *b = &o->b[i];

		if (b->used && b->root == root && b->parent == parent &&
		    memcmp(b->key, key, key_len) == 0)
			return i;
	}
	return TO_NONE;
}

int to_find(const struct tiers_oracle *o, uint32_t root, const void *key, uint32_t key_len)
{
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		const struct to_block *b = &o->b[i];

		if (b->used && b->root == root && memcmp(b->key, key, key_len) == 0)
			return i;
	}
	return TO_NONE;
}

bool to_is_leaf(const struct tiers_oracle *o, int block)
{
	for (int i = 0; i < TO_MAX_BLOCKS; i++)
		if (o->b[i].used && o->b[i].parent == block)
			return false;
	return true;
}

bool to_is_above(const struct tiers_oracle *o, int above, int block)
{
	for (; block >= 0; block = o->b[block].parent)
		if (block == above)
			return true;
	return false;
}

bool to_protected(const struct tiers_oracle *o, int block)
{
	for (int i = 0; i < TO_MAX_PINS; i++)
		if (o->pins[i].used && to_is_above(o, block, o->pins[i].at))
			return true;
	return false;
}

uint32_t to_depth(const struct tiers_oracle *o, int block)
{
	uint32_t n = 0;

	for (; block >= 0; block = o->b[block].parent)
		n++;
	return n;
}

bool to_parent_ready(const struct tiers_oracle *o, int block)
{
	return o->b[block].parent < 0 || o->b[o->b[block].parent].slot[0] != TO_NONE;
}

int to_by_name(const struct tiers_oracle *o, struct radix_member name)
{
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		const struct to_block *b = &o->b[i];

		if (b->used && b->name.entry == name.entry && b->name.generation == name.generation)
			return i;
	}
	return TO_NONE;
}

static enum radix_tier below(const struct tiers_oracle *o, enum radix_tier t)
{
	if (t == RADIX_TIER_DEVICE && o->n_slots[1])
		return RADIX_TIER_HOST;
	return t != RADIX_TIER_REDIS && o->redis ? RADIX_TIER_REDIS : RADIX_N_TIERS;
}

static bool clean(const struct tiers_oracle *o, const struct to_block *b, enum radix_tier t)
{
	enum radix_tier d = below(o, t);

	if (d == RADIX_TIER_REDIS)
		return b->redis;
	return d == RADIX_N_TIERS || b->slot[d] != TO_NONE;
}

/* A child with a copy in `t` or above; `stays`: only those that do not leave. */
static bool has_child_in(const struct tiers_oracle *o, int block, enum radix_tier t, bool stays)
{
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		const struct to_block *c = &o->b[i];

		if (c->used && c->parent == block && to_tier(c) <= t &&
		    !(stays && t != RADIX_TIER_REDIS && c->leaving[t]))
			return true;
	}
	return false;
}

static int victim(const struct tiers_oracle *o, enum radix_tier t)
{
	int best = TO_NONE;

	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		const struct to_block *b = &o->b[i];

		if (!b->used || to_tier(b) != t || (t != RADIX_TIER_REDIS && b->leaving[t]) ||
		    to_protected(o, i) || has_child_in(o, i, t, true))
			continue;
		if (best == TO_NONE || b->tick < o->b[best].tick)
			best = i;
	}
	return best;
}

static int first_bonus(const struct tiers_oracle *o)
{
	int best = TO_NONE;

	for (int i = 0; i < TO_MAX_BLOCKS; i++)
		if (o->b[i].used && o->b[i].bonus &&
		    (best == TO_NONE || o->b[i].bonus < o->b[best].bonus))
			best = i;
	return best;
}

/* ---- small changes --------------------------------------------------------------------------- */

static void slot_release(struct tiers_oracle *o, enum radix_tier pool, int slot)
{
	struct to_slot *s = &o->slots[pool][slot];

	s->state = s->reads ? RADIX_SLOT_QUARANTINED : RADIX_SLOT_FREE;
	s->owner = RADIX_OWNER_DAEMON;
}

static void slot_unread(struct tiers_oracle *o, enum radix_tier pool, uint32_t slot)
{
	struct to_slot *s = &o->slots[pool][slot];

	expect(s->reads > 0, "a read ended that never began");
	if (--s->reads == 0 && s->state == RADIX_SLOT_QUARANTINED)
		s->state = RADIX_SLOT_FREE;
}

static void slot_take(struct tiers_oracle *o, enum radix_tier pool, uint32_t slot)
{
	expect(slot < o->n_slots[pool] && o->slots[pool][slot].state == RADIX_SLOT_FREE,
	       "a slot was taken that is not free");
	if (slot >= o->n_slots[pool])
		return;
	o->slots[pool][slot].state = RADIX_SLOT_RESERVED;
	o->slots[pool][slot].owner = RADIX_OWNER_DAEMON;
}

static void bonus_add(struct tiers_oracle *o, struct to_block *b)
{
	b->bonus = ++o->bonus_serial;
	b->bonus_tick = o->now;
}

/* It and all before it do not leave `t`. */
static void stay(struct tiers_oracle *o, int block, enum radix_tier t)
{
	for (; block >= 0; block = o->b[block].parent) {
		struct to_block *b = &o->b[block];

		if (!b->leaving[t])
			continue;
		b->leaving[t] = false;
		o->slots[t][b->slot[t]].state = RADIX_SLOT_READY;
		if (t == RADIX_TIER_DEVICE && b->slot[1] != TO_NONE)
			bonus_add(o, b);
	}
}

/* It does not leave, if it does. */
static void recall(struct tiers_oracle *o, int block)
{
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++)
		if (o->b[block].leaving[t])
			stay(o, block, t);
}

static void used(struct tiers_oracle *o, int block)
{
	stay(o, block, RADIX_TIER_DEVICE);
	stay(o, block, RADIX_TIER_HOST);
}

static void leave(struct tiers_oracle *o, struct to_block *b, enum radix_tier t)
{
	b->leaving[t] = true;
	o->slots[t][b->slot[t]].state = RADIX_SLOT_LEAVING;
	b->bonus = 0;
}

static void remove_block(struct tiers_oracle *o, int block, enum radix_remove_reason reason)
{
	struct to_block *b = &o->b[block];

	o->removed_from[to_tier(b)][reason]++;
	for (int pool = 0; pool < 2; pool++)
		if (b->slot[pool] != TO_NONE)
			slot_release(o, (enum radix_tier)pool, b->slot[pool]);
	b->used = false;
}

/* Pins in what goes move up to its parent. */
static uint32_t remove_branch(struct tiers_oracle *o, int block, enum radix_remove_reason reason)
{
	bool goes[TO_MAX_BLOCKS];
	uint32_t n = 0;

	for (int i = 0; i < TO_MAX_BLOCKS; i++)
		goes[i] = o->b[i].used && to_is_above(o, block, i);
	for (int i = 0; i < TO_MAX_PINS; i++)
		if (o->pins[i].used && o->pins[i].at >= 0 && goes[o->pins[i].at])
			o->pins[i].at = o->b[block].parent;
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		if (goes[i]) {
			remove_block(o, i, reason);
			n++;
		}
	}
	return n;
}

static bool forget(struct tiers_oracle *o)
{
	int v = victim(o, RADIX_TIER_REDIS);

	if (v == TO_NONE)
		return false;
	remove_block(o, v, RADIX_REMOVE_CAPACITY);
	return true;
}

static uint32_t n_redis_only(const struct tiers_oracle *o)
{
	uint32_t n = 0;

	for (int i = 0; i < TO_MAX_BLOCKS; i++)
		n += o->b[i].used && to_tier(&o->b[i]) == RADIX_TIER_REDIS;
	return n;
}

bool to_budget_for_one(struct tiers_oracle *o)
{
	return n_redis_only(o) < o->budget || forget(o);
}

static void settle_budget(struct tiers_oracle *o)
{
	while (n_redis_only(o) > o->budget)
		expect(forget(o), "too many Redis-only members, and none can go");
}

/* The copy in `t` goes. */
static void pop(struct tiers_oracle *o, int block, enum radix_tier t)
{
	struct to_block *b = &o->b[block];

	if (!b->redis && (t == RADIX_TIER_HOST || b->slot[1] == TO_NONE)) {
		expect(to_is_leaf(o, block), "a last copy goes before its children's");
		remove_block(o, block, RADIX_REMOVE_CAPACITY);
		return;
	}
	slot_release(o, t, b->slot[t]);
	b->slot[t] = TO_NONE;
	b->leaving[t] = false;
	b->bonus = 0;
}

/* ---- pins, recency, members ------------------------------------------------------------------ */

int to_pin(struct tiers_oracle *o, uint32_t root, int at)
{
	int i = 0;

	while (o->pins[i].used)
		i++;
	o->pins[i].used = true;
	o->pins[i].at = at;
	o->pins[i].root = root;
	used(o, at);
	return i;
}

void to_pin_move(struct tiers_oracle *o, int pin, int at)
{
	o->pins[pin].at = at;
	used(o, at);
}

void to_unpin(struct tiers_oracle *o, int pin)
{
	o->pins[pin].used = false;
}

void to_touch(struct tiers_oracle *o, int block, uint64_t tick)
{
	if (tick > o->now)
		o->now = tick;
	used(o, block);
	for (; block >= 0; block = o->b[block].parent)
		o->b[block].tick = tick;
}

void to_hit(struct tiers_oracle *o, int block)
{
	for (; block >= 0; block = o->b[block].parent)
		o->b[block].again = true;
}

int to_add(struct tiers_oracle *o, uint32_t root, int parent, const void *key, uint32_t key_len,
	   int slot, uint64_t tick)
{
	int i = 0;

	while (o->b[i].used)
		i++;
	o->b[i] = (struct to_block){
		.used = true,
		.parent = parent,
		.root = root,
		.tick = tick,
		.slot = { slot, TO_NONE },
		.redis = slot == TO_NONE,
	};
	memcpy(o->b[i].key, key, key_len);
	if (tick > o->now)
		o->now = tick;
	if (slot != TO_NONE) {
		o->slots[0][slot].state = RADIX_SLOT_READY;
		stay(o, parent, RADIX_TIER_DEVICE);
	}
	return i;
}

void to_reparent(struct tiers_oracle *o, int block, int parent)
{
	o->b[block].parent = parent;
	for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++)
		if (to_tier(&o->b[block]) <= t && !o->b[block].leaving[t])
			stay(o, parent, t);
	if (to_protected(o, block))
		used(o, parent);
	if (o->b[block].again)
		to_hit(o, parent);
}

/* A block without a device copy gets one. */
static void rise(struct tiers_oracle *o, int block, int slot)
{
	struct to_block *b = &o->b[block];

	expect(to_parent_ready(o, block), "a device copy below none");
	stay(o, b->parent, RADIX_TIER_DEVICE);
	stay(o, block, RADIX_TIER_HOST);
	b->slot[0] = slot;
	o->slots[0][slot].state = RADIX_SLOT_READY;
	if (b->slot[1] != TO_NONE)
		bonus_add(o, b);
}

void to_attach(struct tiers_oracle *o, int block, int slot, uint8_t kind, const uint8_t *checksum)
{
	struct to_block *b = &o->b[block];
	bool same = b->checksum_kind == kind && memcmp(b->checksum, checksum, 16) == 0;

	rise(o, block, slot);
	if (!same && b->checksum_kind) {
		if (b->slot[1] != TO_NONE)
			slot_release(o, RADIX_TIER_HOST, b->slot[1]);
		b->slot[1] = TO_NONE;
		b->redis = b->redis && !kind;
		b->bonus = 0;
		b->moving = 0;
		b->turn++;
	}
	if (!same) {
		b->checksum_kind = kind;
		memcpy(b->checksum, checksum, 16);
	}
}

/* ---- room ------------------------------------------------------------------------------------ */

struct room {
	struct tiers_oracle *o;
	enum radix_tier t;
	uint32_t flags;
	const struct radix_move *moves;
	uint32_t n_moves, cap;
	bool spare; /* a host slot is set aside for the next move */
	struct radix_room *ret;
};

static void drop_bonus(struct tiers_oracle *o, int block)
{
	slot_release(o, RADIX_TIER_HOST, o->b[block].slot[1]);
	o->b[block].slot[1] = TO_NONE;
	o->b[block].bonus = 0;
}

static bool goes_at_once(const struct tiers_oracle *o, int block, enum radix_tier t)
{
	return clean(o, &o->b[block], t) && !has_child_in(o, block, t, false);
}

/* Makes a host slot free for a block that goes down.  `set_aside` are spoken for. */
static bool host_room(struct tiers_oracle *o, uint32_t set_aside)
{
	while (to_count(o, RADIX_TIER_HOST, RADIX_SLOT_FREE) <= set_aside) {
		int bonus = first_bonus(o), leaf = victim(o, RADIX_TIER_HOST);
		bool ready = leaf != TO_NONE && goes_at_once(o, leaf, RADIX_TIER_HOST);

		if (bonus != TO_NONE && (!ready || o->b[bonus].bonus_tick <= o->b[leaf].tick)) {
			drop_bonus(o, bonus);
		} else if (ready) {
			pop(o, leaf, RADIX_TIER_HOST);
			settle_budget(o);
		} else {
			return false;
		}
	}
	return true;
}

void to_move_begin(struct tiers_oracle *o, int block, const struct radix_move *m)
{
	struct to_block *b = &o->b[block];

	expect(m->block.entry == b->name.entry && m->block.generation == b->name.generation,
	       "a move of another block");
	expect(m->from == to_tier(b), "a move from another tier");
	expect(m->tick == b->tick, "a move with another tick");
	if (m->from != RADIX_TIER_REDIS) {
		expect(m->src == (uint32_t)b->slot[m->from], "a move from another slot");
		o->slots[m->from][b->slot[m->from]].reads++;
	}
	if (m->to != RADIX_TIER_REDIS)
		slot_take(o, m->to, m->dst);
	if (m->to != RADIX_TIER_DEVICE)
		b->moving |= (uint8_t)(1u << m->to);
}

static void drop(struct room *r, int block)
{
	struct tiers_oracle *o = r->o;
	struct to_block *b = &o->b[block];

	if (r->t == RADIX_TIER_DEVICE && b->redis && b->slot[1] == TO_NONE &&
	    !has_child_in(o, block, RADIX_TIER_HOST, false)) {
		pop(o, block, r->t);
		settle_budget(o);
		return;
	}
	r->ret->dropped += remove_branch(o, block,
					 r->flags & RADIX_ROOM_DROP ? RADIX_REMOVE_DROPPED
								    : RADIX_REMOVE_CAPACITY);
}

static bool step(struct room *r)
{
	struct tiers_oracle *o = r->o;
	int v = victim(o, r->t), bonus = r->t == RADIX_TIER_HOST ? first_bonus(o) : TO_NONE;
	struct to_block *b = v == TO_NONE ? NULL : &o->b[v];
	enum radix_tier d = below(o, r->t);

	if (bonus != TO_NONE && (!b || o->b[bonus].bonus_tick <= b->tick)) {
		drop_bonus(o, bonus);
		return true;
	}
	if (!b) {
		r->ret->dry = true;
		return false;
	}
	if (goes_at_once(o, v, r->t)) {
		pop(o, v, r->t);
		settle_budget(o);
		return true;
	}
	if (clean(o, b, r->t)) {
		leave(o, b, r->t);
		r->ret->coming++;
		return true;
	}
	if (r->flags & RADIX_ROOM_DROP || (r->flags & RADIX_ROOM_SECOND_USE && !b->again)) {
		drop(r, v);
		return true;
	}
	if (b->moving & 1u << d) {
		leave(o, b, r->t);
		r->ret->coming++;
		return true;
	}
	if (r->ret->started == r->cap) {
		r->ret->blocked = !r->cap;
		return false;
	}
	if (d == RADIX_TIER_HOST && !r->spare) {
		r->spare = host_room(o, 0);
		r->ret->blocked = !r->spare;
		return r->spare;
	}
	r->spare = false;
	expect(r->ret->started < r->n_moves, "a move is missing");
	if (r->ret->started < r->n_moves)
		to_move_begin(o, v, &r->moves[r->ret->started++]);
	leave(o, b, r->t);
	return !wrong;
}

/*
 * The moves are those that the index has begun.  A host slot that is set aside counts as taken
 * only when its move begins; nothing else takes one meanwhile.
 */
void to_make_room(struct tiers_oracle *o, enum radix_tier tier, uint32_t want, uint32_t flags,
		  const struct radix_move *moves, uint32_t n_moves, uint32_t cap,
		  struct radix_room *ret)
{
	struct room r = {
		.o = o,
		.t = tier,
		.flags = flags,
		.moves = moves,
		.n_moves = n_moves,
		.cap = cap,
		.ret = ret,
	};
	uint32_t before = to_count(o, tier, RADIX_SLOT_FREE);

	*ret = (struct radix_room){ 0 };
	while (ret->freed + ret->started + ret->coming < want && step(&r))
		ret->freed = to_count(o, tier, RADIX_SLOT_FREE) - before;
}

/* ---- the end of a move ----------------------------------------------------------------------- */

/* Whatever leaves and can go, goes. */
static void pop_clean(struct tiers_oracle *o)
{
	bool again = true;

	while (again) {
		again = false;
		for (int i = 0; i < TO_MAX_BLOCKS; i++) {
			for (enum radix_tier t = 0; t < RADIX_TIER_REDIS; t++) {
				if (!o->b[i].used || !o->b[i].leaving[t] ||
				    to_tier(&o->b[i]) != t || !goes_at_once(o, i, t))
					continue;
				pop(o, i, t);
				again = true;
			}
		}
	}
	settle_budget(o);
}

static bool arrive(struct tiers_oracle *o, const struct radix_move *m, int block)
{
	struct to_block *b = &o->b[block];

	if (m->to == RADIX_TIER_REDIS) {
		b->redis = true;
		return true;
	}
	if (m->to == RADIX_TIER_DEVICE) {
		if (b->slot[0] != TO_NONE)
			return false;
		rise(o, block, (int)m->dst);
		return true;
	}
	if (b->slot[0] == TO_NONE)
		return false;
	b->slot[1] = (int)m->dst;
	o->slots[1][m->dst].state = RADIX_SLOT_READY;
	if (!b->leaving[0])
		bonus_add(o, b);
	return true;
}

int to_move_end(struct tiers_oracle *o, const struct radix_move *m, uint32_t turn, bool ok,
		const uint8_t *checksum, uint32_t *ret_freed)
{
	int block = to_by_name(o, m->block);
	struct to_block *b = block == TO_NONE ? NULL : &o->b[block];
	bool down = m->to != RADIX_TIER_DEVICE, there = b && b->turn == turn, arrived = false;
	uint32_t before = 0;

	if (m->from != RADIX_TIER_REDIS)
		before = to_count(o, m->from, RADIX_SLOT_FREE);
	if (there && ok && !down && b->slot[0] == TO_NONE && !to_parent_ready(o, block))
		return RADIX_E_REFUSED;
	if (there && down)
		b->moving &= (uint8_t) ~(1u << m->to);
	if (there && ok)
		arrived = arrive(o, m, block);
	if (arrived) {
		o->moved[m->from][m->to]++;
		if (checksum && !b->checksum_kind) {
			b->checksum_kind = 1;
			memcpy(b->checksum, checksum, 16);
		}
	} else if (m->to != RADIX_TIER_REDIS) {
		o->slots[m->to][m->dst].state = RADIX_SLOT_FREE;
	}
	if (m->from != RADIX_TIER_REDIS)
		slot_unread(o, m->from, m->src);
	if (there && down && !arrived)
		recall(o, block);
	if (arrived && down)
		pop_clean(o);
	*ret_freed = m->from == RADIX_TIER_REDIS ? 0
						 : to_count(o, m->from, RADIX_SLOT_FREE) - before;
	if (!b)
		return RADIX_E_NOTFOUND;
	return ok && !down && !there && b->slot[0] == TO_NONE ? RADIX_E_STATE : 0;
}

/* ---- going ----------------------------------------------------------------------------------- */

uint32_t to_lose(struct tiers_oracle *o, int block, enum radix_tier tier,
		 enum radix_remove_reason reason)
{
	struct to_block *b = &o->b[block];

	if (tier == RADIX_TIER_DEVICE) {
		if (b->slot[0] == TO_NONE || to_protected(o, block))
			return 0;
		recall(o, block);
		return remove_branch(o, block, reason);
	}
	if (tier == RADIX_TIER_HOST ? b->slot[1] == TO_NONE : !b->redis)
		return 0;
	recall(o, block);
	if (tier == RADIX_TIER_HOST) {
		b->moving = 0;
		b->turn++;
	}
	if (tier == RADIX_TIER_REDIS && (b->slot[0] != TO_NONE || b->slot[1] != TO_NONE)) {
		b->redis = false;
		return 0;
	}
	if (tier == RADIX_TIER_HOST &&
	    (b->slot[0] != TO_NONE ||
	     (b->redis && !has_child_in(o, block, RADIX_TIER_HOST, false) &&
	      to_budget_for_one(o)))) {
		drop_bonus(o, block);
		return 0;
	}
	return remove_branch(o, block, reason);
}

uint64_t to_device_lost(struct tiers_oracle *o)
{
	uint64_t n = 0;
	int v;

	for (int i = 0; i < TO_MAX_BLOCKS; i++)
		if (o->b[i].used && o->b[i].leaving[RADIX_TIER_DEVICE])
			stay(o, i, RADIX_TIER_DEVICE);
	while ((v = victim(o, RADIX_TIER_DEVICE)) != TO_NONE) {
		bool below = o->b[v].redis && o->b[v].slot[1] == TO_NONE &&
			     !has_child_in(o, v, RADIX_TIER_HOST, false);

		if (!below && !goes_at_once(o, v, RADIX_TIER_DEVICE)) {
			n += remove_branch(o, v, RADIX_REMOVE_DEVICE);
			continue;
		}
		pop(o, v, RADIX_TIER_DEVICE);
		settle_budget(o);
	}
	return n;
}

uint32_t to_evict(struct tiers_oracle *o, uint32_t n, enum radix_remove_reason reason)
{
	uint32_t done = 0;

	for (enum radix_tier t = 0; t < RADIX_N_TIERS && done < n;) {
		int v = victim(o, t);

		if (v == TO_NONE)
			t++;
		else
			done += remove_branch(o, v, reason);
	}
	return done;
}

uint64_t to_flush(struct tiers_oracle *o, uint32_t root, enum radix_remove_reason reason)
{
	bool goes[TO_MAX_BLOCKS];
	uint64_t n = 0;

	for (int i = 0; i < TO_MAX_BLOCKS; i++)
		goes[i] = o->b[i].used && o->b[i].root == root && !to_protected(o, i);
	for (int i = 0; i < TO_MAX_BLOCKS; i++) {
		if (goes[i]) {
			remove_block(o, i, reason);
			n++;
		}
	}
	return n;
}
