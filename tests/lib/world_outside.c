/*
 * world_outside.c - what befalls Redis and epochs in the simulated world, as the test wants it.
 */
#include "tests/lib/world_flight.h"
#include "tests/lib/world_internal.h"

/* ---- Redis, as the test has it --------------------------------------------------------------- */

void world_redis_up(struct world *w, bool up)
{
	struct world_tiers *t = w->tiers;

	t->up = up;
	if (!up) {
		for (uint32_t i = 0; i < t->n; i++) {
			struct flight *f = &t->flights[i];

			if (f->type == PREFIXD_ACTION_COPY)
				continue;
			f->result = PREFIXD_MOVE_DOWN; /* whether it was done, nobody knows */
			f->due_ns = w->now_ns;
		}
		world_tell_redis(w, false);
	} else if (!t->stalled) {
		world_tell_redis(w, true);
	}
}

void world_redis_use(struct world *w, bool use)
{
	world_check(w, !w->engine);
	w->config.tiers.redis = use;
	w->config.engine.redis = use;
	w->tiers->config.redis = use;
	w->tiers->up |= use;
}

void world_redis_stall(struct world *w, bool stalled)
{
	struct world_tiers *t = w->tiers;

	if (t->stalled == stalled)
		return;
	t->stalled = stalled;
	for (uint32_t i = 0; i < t->n; i++) {
		struct flight *f = &t->flights[i];

		if (f->type == PREFIXD_ACTION_COPY || f->result == PREFIXD_MOVE_DOWN)
			continue;
		f->due_ns = f->limit_ns;
		if (!stalled)
			f->due_ns = radix_min_u64(f->due_ns, world_answer_at(w, f));
	}
	if (!stalled && t->up)
		world_tell_redis(w, true);
}

uint32_t world_redis_poke(struct world *w, enum world_poke what, uint32_t percent)
{
	return world_redis_hurt(w->tiers->redis, what, percent, &w->tiers->rng);
}

void world_redis_poke_one(struct world *w, enum world_poke what, uint32_t n)
{
	world_redis_hurt_one(w->tiers->redis, what, n, &w->tiers->rng);
}

uint32_t world_redis_values(const struct world *w)
{
	return world_redis_count(w->tiers->redis);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

void world_invalidate(struct world *w, uint32_t ns)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_ADMIN_INVALIDATE };

	event.u.invalidate.ns = ns;
	event.u.invalidate.nonce = test_rng(w->tiers ? &w->tiers->rng : &w->rng);
	world_note(w, "       invalidate %u\n", ns);
	world_step(w, &event);
}

void world_epoch_seen(struct world *w, const uint8_t digest[32], struct prefixd_epoch epoch)
{
	struct prefixd_event event = { .type = PREFIXD_EVENT_EPOCH_SEEN };

	memcpy(event.u.epoch.digest, digest, 32);
	event.u.epoch.epoch = epoch;
	world_note(w, "       epoch %llu was seen\n", (unsigned long long)epoch.n);
	world_step(w, &event);
}

struct prefixd_epoch world_epoch(const struct world *w, const uint8_t digest[32])
{
	const struct world_tiers *t = w->tiers;

	for (uint32_t i = 0; t && i < t->n_epochs; i++)
		if (memcmp(t->epochs[i].digest, digest, 32) == 0)
			return t->epochs[i].epoch;
	return (struct prefixd_epoch){ 0 };
}
