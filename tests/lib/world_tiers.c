/*
 * world_tiers.c - see world_tiers.h.
 */
#include "tests/lib/world_tiers.h"

#include <check.h>
#include <stdlib.h>

#include "radix/internal.h"
#include "tests/lib/world_flight.h"
#include "tests/lib/world_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	JUNK = 0x5a,       /* in the target of a move until its end */
	POISON = 0xa5,     /* in a host slot that nothing lies in */
	PROBE_NS = 500000, /* from giving Redis up to trying it again */
};

static const char *const tier_names[] = {
#define X(sym, text) text,
	RADIX_TIERS(X)
#undef X
};

static const char *const result_names[] = {
#define X(sym, text) text,
	PREFIXD_MOVE_RESULTS(X)
#undef X
};

static uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ---- life ------------------------------------------------------------------------------------ */

void world_tiers_init(struct world *w)
{
	const struct world_tiers_config *config = &w->config.tiers;
	struct world_tiers *t;

	if (!config->host_blocks && !config->redis)
		return;
	t = calloc(1, sizeof(*t));
	ck_assert_ptr_nonnull(t);
	w->tiers = t;
	t->config = *config;
	t->probe_ns = UINT64_MAX;
	t->rng = config->seed ? config->seed : w->config.seed ^ 0x7165;
	t->redis = config->values ? config->values : world_redis_new();
	world_redis_limit(t->redis, config->max_values);
	w->config.engine.host_blocks = config->host_blocks;
	w->config.engine.redis = config->redis;
}

/* The engine is there: it hears of Redis. */
void world_tiers_begin(struct world *w)
{
	if (!w->tiers || !w->tiers->config.redis)
		return;
	if (w->life.n > 1 ? w->tiers->up : !w->tiers->config.redis_down)
		world_redis_up(w, true);
}

static void end_bytes(struct world *w, struct flight *f, struct prefixd_event *event);

static void flight_free(struct flight *f)
{
	free(f->half);
	free(f->names);
}

void world_tiers_deinit(struct world *w)
{
	struct world_tiers *t = w->tiers;

	if (!t)
		return;
	for (uint32_t i = 0; i < t->n; i++)
		flight_free(&t->flights[i]);
	for (uint32_t i = 0; i < WORLD_GROUPS; i++) {
		world_names_free(&t->arenas[i].names);
		free(t->arenas[i].bytes);
		free(t->arenas[i].written);
		free(t->arenas[i].seals);
	}
	free(t->flights);
	world_redis_free(t->redis);
	free(t);
	w->tiers = NULL;
}

void world_tiers_pool(struct world *w, uint32_t group, uint32_t n_host, uint64_t slot_bytes,
		      bool coded, bool adopted)
{
	struct world_tiers *t = w->tiers;
	struct arena *a;

	world_check(w, adopted || n_host == w->config.engine.host_blocks);
	if (!t)
		return;
	a = &t->arenas[group];
	if (adopted) {
		world_check(w, a->n_slots == n_host && a->slot_bytes == slot_bytes);
		world_check(w, a->coded == coded);
		return;
	}
	free(a->bytes);
	free(a->written);
	free(a->seals);
	a->coded = coded;
	a->seals = calloc(n_host + 1, sizeof(*a->seals));
	ck_assert_ptr_nonnull(a->seals);
	a->n_slots = n_host;
	a->slot_bytes = slot_bytes;
	a->bytes = malloc(n_host * slot_bytes + 1);
	a->written = calloc(n_host + 1, sizeof(*a->written));
	ck_assert_ptr_nonnull(a->bytes);
	ck_assert_ptr_nonnull(a->written);
	memset(a->bytes, POISON, n_host * slot_bytes);
}

void world_tiers_lost(struct world *w, uint32_t group)
{
	struct world_tiers *t = w->tiers;

	for (uint32_t i = 0; t && i < t->n; i++) {
		struct flight *f = &t->flights[i];

		if (f->group == group && f->type != PREFIXD_ACTION_LOOK &&
		    (f->carry.from == RADIX_TIER_DEVICE || f->carry.to == RADIX_TIER_DEVICE))
			f->lost = true;
	}
}

void world_tiers_killed(struct world *w)
{
	struct world_tiers *t = w->tiers;

	if (!t)
		return;
	for (uint32_t i = 0; i < t->n; i++) {
		struct flight *f = &t->flights[i];
		struct prefixd_event event = { .type = PREFIXD_EVENT_MOVED };

		if (f->type != PREFIXD_ACTION_LOOK && test_rng_below(&t->rng, 2))
			end_bytes(w, f, &event);
		flight_free(f);
	}
	t->n = 0;
	t->copy_free_ns = t->remote_free_ns = 0; /* the next life's clock may begin anywhere */
	t->told = false;
	t->n_late = 0;
	t->probe_ns = UINT64_MAX;
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		world_names_free(&t->arenas[i].names);
}

struct world_redis *world_redis_detach(struct world *w)
{
	struct world_redis *r = w->tiers->redis;

	w->tiers->redis = world_redis_new();
	return r;
}

/* ---- faults ---------------------------------------------------------------------------------- */

static const struct {
	enum prefixd_action_type type;
	enum prefixd_move_result result;
} faults[WORLD_N_FAULTS] = {
#define X(sym, action, res) [WORLD_FAULT_##sym] = { PREFIXD_ACTION_##action, PREFIXD_MOVE_##res },
	WORLD_FAULTS(X)
#undef X
};

void world_fault(struct world *w, enum world_fault fault, uint32_t n)
{
	w->tiers->planned[fault] = n;
}

void world_delay(struct world *w, uint64_t ns, uint32_t n)
{
	w->tiers->delay_ns = ns;
	w->tiers->n_delayed = n;
}

/* What is to go wrong with this one, if anything. */
static enum prefixd_move_result fate(struct world_tiers *t, const struct flight *f)
{
	for (uint32_t i = 0; i < WORLD_N_FAULTS; i++) {
		if (faults[i].type != f->type)
			continue;
		if (i == WORLD_FAULT_COPY_CORRUPT && f->carry.from != RADIX_TIER_HOST)
			continue;
		if (t->planned[i]) {
			t->planned[i]--;
			return faults[i].result;
		}
		if (t->config.faults[i] && test_rng_below(&t->rng, 1000) < t->config.faults[i])
			return faults[i].result;
	}
	return PREFIXD_MOVE_OK;
}

/* When the answer comes, if the other side is well. */
uint64_t world_answer_at(struct world *w, const struct flight *f)
{
	struct world_tiers *t = w->tiers;
	bool remote = f->type != PREFIXD_ACTION_COPY;
	const struct world_link *link = remote ? &w->config.tiers.remote : &w->config.tiers.copy;
	uint64_t *free_ns = remote ? &t->remote_free_ns : &t->copy_free_ns;
	uint64_t bytes = f->type == PREFIXD_ACTION_LOOK ? 0 : t->arenas[f->group].slot_bytes;
	uint64_t ns = w->now_ns;

	if (link->bytes_per_s) {
		*free_ns = max64(*free_ns, w->now_ns) + bytes * 1000000000 / link->bytes_per_s;
		ns = *free_ns;
	}
	ns += link->latency_ns;
	if (t->config.jitter_ns)
		ns += test_rng(&t->rng) % (t->config.jitter_ns + 1);
	if (t->n_delayed) {
		t->n_delayed--;
		ns += t->delay_ns;
	}
	return ns;
}

/* ---- slots under way ------------------------------------------------------------------------- */

static bool names_slot(const struct flight *f, uint32_t group, enum radix_tier tier, uint32_t slot)
{
	if (f->type == PREFIXD_ACTION_LOOK || f->group != group)
		return false;
	return (f->carry.from == tier && f->carry.src == slot) ||
	       (f->carry.to == tier && f->carry.dst == slot);
}

void world_tiers_given(struct world *w, uint32_t group, uint32_t slot, const char *how)
{
	struct world_tiers *t = w->tiers;

	for (uint32_t i = 0; t && i < t->n; i++)
		if (names_slot(&t->flights[i], group, RADIX_TIER_DEVICE, slot))
			world_fail(w, "device slot %u was %s while move %u is on its way", slot,
				   how, t->flights[i].id);
}

/* A new move: nobody else writes what it uses, and it writes what nobody uses. */
static void check_alone(struct world *w, const struct flight *f)
{
	const struct prefixd_carry *c = &f->carry;

	for (uint32_t i = 0; i < w->tiers->n; i++) {
		const struct flight *o = &w->tiers->flights[i];

		if (o->type == PREFIXD_ACTION_LOOK)
			continue;
		world_check(w, o->id != f->id);
		if (o->group != f->group)
			continue;
		world_check(w, c->dst == RADIX_NONE || !names_slot(o, f->group, c->to, c->dst));
		world_check(w, c->src == RADIX_NONE || o->carry.to != c->from ||
				       o->carry.dst != c->src);
	}
}

static uint64_t generation(struct world *w, const struct flight *f, bool src)
{
	const struct prefixd_carry *c = &f->carry;

	if ((src ? c->from : c->to) != RADIX_TIER_DEVICE)
		return 0;
	return radix_slot_generation(world_index(w, f->group), src ? c->src : c->dst);
}

/* In a host slot that is free lies nothing; who reads it before it is written fails the test. */
static void poison_host(struct world *w, uint32_t group)
{
	struct arena *a = &w->tiers->arenas[group];
	const struct radix_index *ix = a->n_slots ? world_index(w, group) : NULL;

	for (uint32_t i = 0; ix && i < a->n_slots; i++) {
		if (!a->written[i] || ix->host.state[i] != RADIX_SLOT_FREE)
			continue;
		for (uint32_t k = 0; k < w->tiers->n; k++)
			if (names_slot(&w->tiers->flights[k], group, RADIX_TIER_HOST, i))
				world_fail(w, "host slot %u of move %u is free", i,
					   w->tiers->flights[k].id);
		a->written[i] = false;
		memset(a->bytes + i * a->slot_bytes, POISON, a->slot_bytes);
	}
}

/* Slots under way are neither free nor anybody else's. */
void world_tiers_verify(struct world *w)
{
	struct world_tiers *t = w->tiers;

	if (!w->engine)
		return;
	for (uint32_t i = 0; t && i < t->n; i++) {
		const struct flight *f = &t->flights[i];

		if (f->type == PREFIXD_ACTION_LOOK)
			continue;
		if (generation(w, f, true) != f->src_generation)
			world_fail(w, "the source of move %u was handed out", f->id);
		if (generation(w, f, false) != f->dst_generation)
			world_fail(w, "the target of move %u was handed out", f->id);
		for (uint32_t end = 0; end < 2; end++) {
			uint32_t slot = end ? f->carry.dst : f->carry.src;

			if ((end ? f->carry.to : f->carry.from) == RADIX_TIER_DEVICE &&
			    radix_slot_state(world_index(w, f->group), slot) == RADIX_SLOT_FREE)
				world_fail(w, "slot %u of move %u is free", slot, f->id);
		}
	}
	for (uint32_t i = 0; t && i < WORLD_GROUPS; i++)
		poison_host(w, i);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint8_t *host_slot(struct world *w, uint32_t group, uint32_t slot)
{
	struct arena *a = &w->tiers->arenas[group];

	world_check(w, slot < a->n_slots);
	return a->bytes + (size_t)slot * a->slot_bytes;
}

uint32_t world_host_damage(struct world *w, uint32_t group, uint32_t percent)
{
	struct arena *a = &w->tiers->arenas[group];
	uint64_t *rng = &w->tiers->rng;
	uint32_t n = 0;

	for (uint32_t i = 0; i < a->n_slots; i++) {
		if (!a->written[i] || test_rng_below(rng, 100) >= percent)
			continue;
		host_slot(w, group, i)[test_rng_below(rng, (uint32_t)a->slot_bytes)] ^= 0x20;
		world_note(w, "       host slot %u of pool %u is damaged\n", i, group);
		n++;
	}
	return n;
}

/* Bytes [from, to) of a block between a slot and `bytes`. */
static void slot_io(struct world *w, const struct flight *f, bool src, uint8_t *bytes,
		    uint64_t from, uint64_t to)
{
	uint32_t slot = src ? f->carry.src : f->carry.dst;
	enum radix_tier tier = src ? f->carry.from : f->carry.to;
	uint32_t n = (uint32_t)(to - from);
	uint8_t *host;

	if (tier == RADIX_TIER_DEVICE) {
		world_device(w, f->group, slot, from, bytes, n, !src);
		return;
	}
	host = host_slot(w, f->group, slot) + from;
	if (src) {
		world_check(w, w->tiers->arenas[f->group].written[slot]);
		memcpy(bytes, host, n);
	} else {
		w->tiers->arenas[f->group].written[slot] = true;
		memcpy(host, bytes, n);
	}
}

static void begin_bytes(struct world *w, struct flight *f)
{
	uint64_t len = w->tiers->arenas[f->group].slot_bytes;
	uint8_t *junk;

	f->half = calloc(1, len);
	junk = malloc(len);
	ck_assert_ptr_nonnull(f->half);
	ck_assert_ptr_nonnull(junk);
	memset(junk, JUNK, len);
	if (f->carry.from != RADIX_TIER_REDIS)
		slot_io(w, f, true, f->half, 0, len / 2);
	if (f->carry.to != RADIX_TIER_REDIS)
		slot_io(w, f, false, junk, 0, len);
	free(junk);
}

void world_sum(const void *bytes, uint64_t len, uint8_t out[16])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits(bytes, len));
	memcpy(out, c.digest, 16);
}

void world_code(uint8_t *block, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		block[i] |= 0x80;
}

static void seal_of(const struct flight *f, const uint8_t sum[16], uint8_t out[16])
{
	uint8_t of[28];

	memcpy(of, sum, 16);
	memcpy(of + 16, &f->carry.entry, 4);
	memcpy(of + 20, &f->carry.generation, 8);
	world_sum(of, sizeof(of), out);
}

/*
 * Of a coded group: what lies below the device is coded, and in host memory sealed; the checksum is
 * of exact bytes, and told of those alone.
 */
static void end_coded(struct world *w, struct flight *f, uint8_t *block, uint64_t len,
		      struct prefixd_event *event)
{
	struct arena *a = &w->tiers->arenas[f->group];
	uint8_t sum[16], seal[16];

	world_check(w, f->carry.from == RADIX_TIER_DEVICE || f->carry.checksum_kind == 0);
	/* One that nobody answers may be stored all the same: coded, as it was sent. */
	if (f->result == PREFIXD_MOVE_DOWN && f->carry.from == RADIX_TIER_DEVICE &&
	    block[0] != WORLD_UNCODABLE)
		world_code(block, len);
	if (f->result != PREFIXD_MOVE_OK)
		return;
	if (f->carry.from == RADIX_TIER_HOST) {
		world_sum(block, len, sum);
		seal_of(f, sum, seal);
		if (memcmp(seal, a->seals[f->carry.src], sizeof(seal)) != 0)
			f->result = PREFIXD_MOVE_CORRUPT;
	}
	if (f->carry.from == RADIX_TIER_DEVICE && block[0] != WORLD_UNCODABLE)
		world_code(block, len);
	else if (f->carry.to == RADIX_TIER_HOST)
		f->result = PREFIXD_MOVE_RAW;
	event->u.moved.lossy = f->carry.to == RADIX_TIER_DEVICE && block[0] != WORLD_UNCODABLE;
	/* of what comes up it is of other bytes; whoever keeps it serves corrupt blocks */
	event->u.moved.summed = f->result == PREFIXD_MOVE_OK;
	if (f->result != PREFIXD_MOVE_OK || f->carry.to != RADIX_TIER_HOST)
		return;
	world_sum(block, len, sum);
	seal_of(f, sum, a->seals[f->carry.dst]);
}

/* Moves the bytes, or finds out why not. */
static void end_bytes(struct world *w, struct flight *f, struct prefixd_event *event)
{
	struct world_redis *r = w->tiers->redis;
	uint64_t len = w->tiers->arenas[f->group].slot_bytes;
	uint8_t *block = f->half, sum[16];
	bool damaged = false, agrees;
	const void *value;

	if (f->lost) { /* nobody has these bytes, whatever else went wrong */
		f->result = PREFIXD_MOVE_FAILED;
		return;
	}

	if (f->carry.from == RADIX_TIER_REDIS) {
		if (f->result == PREFIXD_MOVE_LOST || f->result == PREFIXD_MOVE_CORRUPT)
			world_redis_del(r, &f->name);
		value = world_redis_get(r, &f->name, len, &damaged);
		if (value && !damaged)
			memcpy(block, value, len);
		else if (f->result == PREFIXD_MOVE_OK)
			f->result = value ? PREFIXD_MOVE_CORRUPT : PREFIXD_MOVE_LOST;
		if (damaged)
			world_redis_del(r, &f->name);
	} else {
		slot_io(w, f, true, block + len / 2, len / 2, len);
	}
	world_sum(block, len, sum);
	agrees = f->carry.checksum_kind != PROTO_CHECKSUM_XXH3_128 ||
		 memcmp(f->carry.checksum, sum, sizeof(sum)) == 0;
	if (f->result == PREFIXD_MOVE_OK && !agrees)
		f->result = PREFIXD_MOVE_CORRUPT;
	event->u.moved.summed = f->result == PREFIXD_MOVE_OK;
	if (event->u.moved.summed)
		memcpy(event->u.moved.checksum, sum, sizeof(sum));
	if (w->tiers->arenas[f->group].coded)
		end_coded(w, f, block, len, event);
	if (f->result == PREFIXD_MOVE_OK && f->carry.to != RADIX_TIER_REDIS)
		slot_io(w, f, false, block, 0, len);
	/* Whether a STORE without an answer was done, nobody knows; never with wrong bytes. */
	if (f->carry.to == RADIX_TIER_REDIS &&
	    (f->result == PREFIXD_MOVE_OK ||
	     (f->result == PREFIXD_MOVE_DOWN && test_rng_below(&w->tiers->rng, 2) && agrees)))
		world_redis_set(r, &f->name, block, len);
}

/* ---- actions --------------------------------------------------------------------------------- */

static struct flight *flight_new(struct world *w, const struct prefixd_action *a)
{
	struct world_tiers *t = w->tiers;
	struct flight *f;

	if (t->n == t->cap) {
		t->cap = t->cap ? 2 * t->cap : 64;
		t->flights = realloc(t->flights, t->cap * sizeof(*t->flights));
		ck_assert_ptr_nonnull(t->flights);
	}
	f = &t->flights[t->n];
	memset(f, 0, sizeof(*f));
	f->type = a->type;
	f->group = a->group;
	f->begun_ns = w->now_ns;
	f->serial = ++t->serial;
	f->limit_ns = UINT64_MAX;
	return f;
}

/* Sets when and how it will be answered. */
static void flight_plan(struct world *w, struct flight *f, uint64_t deadline_ns)
{
	struct world_tiers *t = w->tiers;

	f->result = f->nameless ? PREFIXD_MOVE_FAILED : fate(t, f);
	f->due_ns = world_answer_at(w, f);
	if (f->type != PREFIXD_ACTION_COPY) {
		if (deadline_ns == 0 && t->config.deadline_ns)
			deadline_ns = w->now_ns + t->config.deadline_ns;
		f->limit_ns = deadline_ns ? max64(deadline_ns, w->now_ns) : UINT64_MAX;
		if (!t->up || !t->told) {
			f->result = PREFIXD_MOVE_DOWN;
			f->due_ns = w->now_ns;
		} else if (t->stalled || f->due_ns > f->limit_ns) {
			f->due_ns = f->limit_ns;
		}
	}
	t->n++;
	t->stats.max_in_flight = max64(t->stats.max_in_flight, t->n);
}

static void act_carry(struct world *w, const struct prefixd_action *a)
{
	static const char *const verbs[] = { "copied", "stored", "fetched" };
	struct flight *f = flight_new(w, a);
	const struct prefixd_carry *c = &a->u.carry;
	const struct world_name *name;
	bool store = a->type == PREFIXD_ACTION_STORE, fetch = a->type == PREFIXD_ACTION_FETCH;

	f->carry = *c;
	f->carry.key = NULL; /* it lives until the next step only */
	f->id = c->id;
	world_check(w, store == (c->to == RADIX_TIER_REDIS));
	world_check(w, fetch == (c->from == RADIX_TIER_REDIS));
	world_check(w, c->from != c->to && c->n_tokens > 0);
	world_check(w, (c->src == RADIX_NONE) == fetch && (c->dst == RADIX_NONE) == store);
	check_alone(w, f);
	if (store || fetch) {
		name = world_names_find(&w->tiers->arenas[a->group].names, c);
		f->nameless = !name && w->heap.n_failed; /* there was no memory to name it */
		if (!name && !f->nameless)
			world_fail(w, "move %u: entry %u has no name, or another block's", c->id,
				   c->entry);
		if (name)
			f->name = *name;
	}
	f->src_generation = generation(w, f, true);
	f->dst_generation = generation(w, f, false);
	begin_bytes(w, f);
	world_note(w, "       move %u: entry %u of pool %u is %s, %s %d to %s %d%s%s\n", c->id,
		   c->entry, a->group, verbs[a->type - PREFIXD_ACTION_COPY], tier_names[c->from],
		   (int)c->src, tier_names[c->to], (int)c->dst, c->urgent ? ", urgent" : "",
		   c->checksum_kind ? ", sum known" : "");
	flight_plan(w, f, c->deadline_ns);
}

static void act_look(struct world *w, const struct prefixd_action *a)
{
	struct flight *f = flight_new(w, a);
	const struct prefixd_names *n = &a->u.look.names;

	f->id = a->u.look.id;
	f->n_names = n->n;
	f->names = calloc(n->n + 1, sizeof(*f->names));
	ck_assert_ptr_nonnull(f->names);
	world_check(w, n->n > 0 && world_names_of(&w->tiers->arenas[a->group].names, n, f->names));
	w->tiers->stats.looks++;
	world_note(w, "       look %u: %u keys behind entry %d of pool %u\n", f->id, n->n,
		   (int)n->parent, a->group);
	flight_plan(w, f, a->u.look.deadline_ns);
}

static bool later(struct prefixd_epoch a, struct prefixd_epoch b)
{
	return a.n > b.n || (a.n == b.n && a.nonce > b.nonce);
}

/* What is kept never goes down; the engine hears of it before anybody can ask. */
static void act_epoch(struct world *w, const struct prefixd_action *a)
{
	struct world_tiers *t = w->tiers;
	uint32_t i = 0;

	while (i < t->n_epochs && memcmp(t->epochs[i].digest, a->u.epoch.digest, 32) != 0)
		i++;
	ck_assert_uint_lt(i, WORLD_EPOCHS);
	if (i == t->n_epochs) {
		t->n_epochs++;
		memcpy(t->epochs[i].digest, a->u.epoch.digest, 32);
		t->epochs[i].epoch = a->u.epoch.epoch;
	}
	t->epochs[i].known = later(t->epochs[i].epoch, a->u.epoch.epoch);
	if (!t->epochs[i].known)
		t->epochs[i].epoch = a->u.epoch.epoch;
	t->stats.epochs++;
	world_note(w, "       epoch %llu%s\n", (unsigned long long)a->u.epoch.epoch.n,
		   a->u.epoch.raised ? ", raised" : "");
}

void world_tiers_tell(struct world *w)
{
	struct world_tiers *t = w->tiers;

	for (uint32_t i = 0; t && i < t->n_epochs; i++) {
		if (!t->epochs[i].known)
			continue;
		t->epochs[i].known = false;
		world_epoch_seen(w, t->epochs[i].digest, t->epochs[i].epoch);
	}
}

void world_tiers_act(struct world *w, const struct prefixd_action *a)
{
	/* An epoch may be raised without any tier: it is only kept. */
	if (!w->tiers && a->type == PREFIXD_ACTION_EPOCH)
		return;
	world_check(w, w->tiers && a->group < WORLD_GROUPS);
	if (a->type == PREFIXD_ACTION_NAMES) {
		world_check(w, w->tiers->config.redis);
		world_check(w, world_names_add(&w->tiers->arenas[a->group].names, &a->u.names));
		w->tiers->stats.names += a->u.names.n;
	} else if (a->type == PREFIXD_ACTION_LOOK) {
		act_look(w, a);
	} else if (a->type == PREFIXD_ACTION_EPOCH) {
		act_epoch(w, a);
	} else {
		act_carry(w, a);
	}
}

/* ---- answers --------------------------------------------------------------------------------- */

static uint32_t next_flight(const struct world_tiers *t)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < t->n; i++) {
		const struct flight *f = &t->flights[i], *b = &t->flights[best];

		if (f->due_ns < b->due_ns || (f->due_ns == b->due_ns && f->serial < b->serial))
			best = i;
	}
	return best;
}

uint64_t world_tiers_due(const struct world *w)
{
	const struct world_tiers *t = w->tiers;

	if (!t)
		return UINT64_MAX;
	return radix_min_u64(t->probe_ns, t->n ? t->flights[next_flight(t)].due_ns : UINT64_MAX);
}

void world_tell_redis(struct world *w, bool up)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_REDIS_STATE, .u.redis_up = up };

	if (w->tiers->told == up)
		return;
	w->tiers->told = up;
	w->tiers->n_late = 0;
	world_note(w, "       Redis is %s\n", up ? "up" : "down");
	world_step(w, &event);
}

/* Answers that come late, one after the other, say that nobody is there. */
static void count_late(struct world *w, const struct flight *f, bool late)
{
	struct world_tiers *t = w->tiers;

	if (f->type == PREFIXD_ACTION_COPY)
		return;
	t->n_late = late ? t->n_late + 1 : 0;
	if (!t->config.breaker || t->n_late < t->config.breaker)
		return;
	if (t->up && !t->stalled)
		t->probe_ns = w->now_ns + PROBE_NS;
	world_tell_redis(w, false);
}

static void probe(struct world *w)
{
	w->tiers->probe_ns = UINT64_MAX;
	if (w->tiers->up && !w->tiers->stalled)
		world_tell_redis(w, true);
}

static void answer(struct world *w, uint32_t at)
{
	struct world_tiers *t = w->tiers;
	struct flight f = t->flights[at];
	struct prefixd_event event = { .type = PREFIXD_EVENT_MOVED };
	bool late = f.due_ns == f.limit_ns && t->told;

	t->flights[at] = t->flights[--t->n];
	if (late)
		f.result = PREFIXD_MOVE_DOWN;
	if (f.type == PREFIXD_ACTION_LOOK) {
		event.type = PREFIXD_EVENT_LOOKED;
		event.u.looked.id = f.id;
		while (f.result == PREFIXD_MOVE_OK && event.u.looked.n < f.n_names &&
		       world_redis_has(t->redis, &f.names[event.u.looked.n]))
			event.u.looked.n++;
		world_note(w, "       look %u: %u are there\n", f.id, event.u.looked.n);
	} else {
		end_bytes(w, &f, &event);
		event.u.moved.id = f.id;
		event.u.moved.result = f.result;
		event.u.moved.ns = w->now_ns - f.begun_ns;
		t->stats.answers[f.result]++;
		if (f.result == PREFIXD_MOVE_OK)
			t->stats.moved[f.carry.from][f.carry.to]++;
		world_note(w, "       move %u: %s\n", f.id, result_names[f.result]);
	}
	world_step(w, &event);
	count_late(w, &f, late);
	flight_free(&f);
}

void world_tiers_deliver(struct world *w)
{
	struct world_tiers *t = w->tiers;

	if (t->n && t->flights[next_flight(t)].due_ns <= t->probe_ns)
		answer(w, next_flight(t));
	else
		probe(w);
}

void world_run_until_idle(struct world *w)
{
	for (uint32_t i = 0; w->engine; i++) {
		uint64_t due = radix_min_u64(world_tiers_due(w), world_life_due(w));

		if (due == UINT64_MAX)
			break;

		if (i > 10000000)
			world_fail(w, "moves follow moves without end");
		world_advance(w, due > w->now_ns ? due - w->now_ns : 0);
	}
}

uint32_t world_in_flight(const struct world *w)
{
	return w->tiers ? w->tiers->n : 0;
}

void world_tiers_stats(const struct world *w, struct world_tiers_stats *ret)
{
	*ret = w->tiers->stats;
}
