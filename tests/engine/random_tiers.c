/*
 * random_tiers.c - see random_tiers.h; what one worker does is in random_tiers_lease.c.
 */
#include "tests/engine/random_tiers_internal.h"

#include <check.h>
#include <stdlib.h>

/* ---- sessions -------------------------------------------------------------------------------- */

static void start(struct tiers_run *r, uint32_t i)
{
	struct tiers_session *s = &r->sessions[i];
	uint32_t proc = i / TIERS_PER_PROC;

	memset(s, 0, sizeof(*s));
	s->blue = proc == TIERS_PROCS - 1;
	s->c = world_worker(&r->w, 100 + proc, s->blue ? 2000 : 1000);
	for (uint32_t k = 0; k < UNIVERSE_NS; k++) {
		struct proto_open_req o = world_open_req("m");
		struct proto_open_rep rep;

		if (s->blue && k != 1)
			continue;
		if (k == 1)
			o.flags = PROTO_OPEN_EXTRA;
		if (k == 2) {
			o.key_mode = PROTO_KEYS_DIGEST;
			o.digest_len = 16;
			o.seed_probe = world_text("seed");
		}
		world_check(&r->w, world_open(s->c, &o, &rep) == PROTO_STATUS_OK);
		s->ns[k] = rep.ns;
	}
}

static void session_over(struct tiers_session *s)
{
	memset(s->leases, 0, sizeof(s->leases));
	s->c->n_events = 0; /* nobody is told any more */
	s->c = NULL;
	s->orphan = false;
}

static void kill_process(struct tiers_run *r, uint32_t proc)
{
	r->result.n_kills++;
	for (uint32_t i = proc * TIERS_PER_PROC; i < (proc + 1) * TIERS_PER_PROC; i++) {
		struct tiers_session *s = &r->sessions[i];

		if (!s->c)
			continue;
		if (tiers_chance(r, 500))
			world_eof(s->c);
		if (s->c->used)
			world_gone(s->c);
		world_check(&r->w, !s->c->used);
		session_over(s);
	}
}

static void end_socket(struct tiers_run *r, struct tiers_session *s)
{
	(void)r;
	world_eof(s->c);
	if (s->c->used)
		s->orphan = true;
	else
		session_over(s);
}

/* Another session of the process says that its device is done. */
static void quiesce(struct tiers_run *r, uint32_t i)
{
	struct tiers_session *s = &r->sessions[i];
	struct proto_quiesced_req q = { .instance = s->c->instance,
					.old_boot = r->w.config.engine.boot };
	struct proto_quiesced_rep rep;
	uint32_t first = i / TIERS_PER_PROC * TIERS_PER_PROC;

	world_check(&r->w, world_quiesced(s->c, &q, &rep) == PROTO_STATUS_OK);
	for (uint32_t k = first; k < first + TIERS_PER_PROC; k++) {
		if (!r->sessions[k].c || !r->sessions[k].orphan)
			continue;
		world_check(&r->w, !r->sessions[k].c->used);
		session_over(&r->sessions[k]);
	}
}

/* ---- what happens around them ---------------------------------------------------------------- */

/* Redis, the link to it and host memory have a life of their own; mostly they are well. */
static void outside(struct tiers_run *r)
{
	switch (tiers_below(r, 11)) {
	case 0:
		world_redis_up(&r->w, false);
		break;
	case 1:
		world_redis_stall(&r->w, true);
		break;
	case 2:
		world_redis_poke(&r->w, WORLD_POKE_LOSE, 1 + tiers_below(r, 20));
		break;
	case 3:
		world_redis_poke(&r->w, WORLD_POKE_DAMAGE, 1 + tiers_below(r, 5));
		break;
	case 4:
		world_host_damage(&r->w, 0, tiers_below(r, 4));
		break;
	default:
		world_redis_stall(&r->w, false);
		world_redis_up(&r->w, true);
		break;
	}
}

static uint32_t some_ns(const struct tiers_run *r, uint32_t k)
{
	for (uint32_t i = 0; i < TIERS_SESSIONS; i++)
		if (r->sessions[i].c && r->sessions[i].ns[k])
			return r->sessions[i].ns[k];
	return RADIX_NONE;
}

static void admin(struct tiers_run *r)
{
	uint32_t k = tiers_below(r, UNIVERSE_NS), ns = some_ns(r, k);

	if (ns == RADIX_NONE)
		return;
	switch (tiers_below(r, 8)) {
	case 0:
		world_flush(&r->w, ns);
		break;
	case 1:
		world_invalidate(&r->w, ns);
		r->epochs[k]++;
		r->result.n_invalidated++;
		break;
	default:
		world_evict(&r->w, 0, tiers_below(r, 6));
		break;
	}
}

static void one_op(struct tiers_run *r)
{
	uint32_t si = tiers_below(r, TIERS_SESSIONS), dice = tiers_below(r, 1000);
	struct tiers_session *s = &r->sessions[si];
	struct tiers_lease *l = &s->leases[tiers_below(r, TIERS_LEASES)];

	if (tiers_chance(r, r->config.kills_permille))
		kill_process(r, si / TIERS_PER_PROC);
	else if (r->config.tiers.redis && tiers_chance(r, r->config.outside_permille))
		outside(r);
	else if (tiers_chance(r, r->config.admin_permille))
		admin(r);
	else if (dice < 250)
		world_advance(&r->w, tiers_below(r, 60) * 1000);
	else if (!s->c)
		start(r, si);
	else if (s->orphan)
		return;
	else if (dice < 255 && r->config.kills_permille)
		end_socket(r, s);
	else if (dice < 260)
		quiesce(r, si);
	else if (dice < 290)
		tiers_probe(r, s);
	else if (dice < 310)
		tiers_prefetch(r, s);
	else if (!l->used)
		tiers_match(r, s);
	else if (dice < 340)
		tiers_wait(r, s, l);
	else if (dice < 450)
		tiers_extend(r, s, l);
	else if (dice < 650)
		tiers_reserve(r, s, l);
	else if (dice < 850)
		tiers_commit(r, s, l);
	else
		tiers_release(r, s, l);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Everybody leaves: nothing is under way, and every slot is free or a block's. */
static void check_end(struct tiers_run *r)
{
	struct radix_stats *st = &r->result.index;

	for (uint32_t p = 0; p < TIERS_PROCS; p++)
		kill_process(r, p);
	if (r->config.tiers.redis) {
		world_redis_stall(&r->w, false);
		world_redis_up(&r->w, true);
	}
	world_advance(&r->w, r->config.grace_ns + 1);
	world_run_until_idle(&r->w);
	world_check(&r->w, world_in_flight(&r->w) == 0);
	world_stats(&r->w, 0, st);
	world_check(&r->w, st->n_pins == 0);
	world_check(&r->w,
		    st->slots[RADIX_SLOT_FREE] + st->slots[RADIX_SLOT_READY] == r->config.n_slots);
	world_check(&r->w, st->host[RADIX_SLOT_FREE] + st->host[RADIX_SLOT_READY] ==
				   r->config.tiers.host_blocks);
	world_check(&r->w, st->tier[0] == st->slots[RADIX_SLOT_READY]);
	world_check(&r->w, st->n_blocks == st->tier[0] + st->tier[1] + st->tier[2]);
}

static void configure(const struct random_tiers_config *config, struct world_config *wc)
{
	world_config_init(wc);
	wc->seed = config->seed;
	wc->tiers = config->tiers;
	wc->engine.pool_blocks = config->n_slots;
	wc->engine.index_blocks = config->index_blocks;
	wc->engine.grace_ns = config->grace_ns;
	wc->engine.write = config->write;
	wc->engine.watermark_low = config->watermark_low;
	wc->engine.watermark_high = config->watermark_high;
	wc->engine.move_window = config->move_window;
	wc->engine.limits.op_ids = 64;
	wc->engine.limits.pending_ns = 3000000;
	wc->engine.limits.reserve_ns = config->reserve_ns;
}

void random_tiers_run(const struct random_tiers_config *config, struct random_tiers_result *ret)
{
	static struct tiers_run r;
	struct world_config wc;
	struct radix_stats st;

	memset(&r, 0, sizeof(r));
	r.config = *config;
	configure(config, &wc);
	ck_assert_int_eq(world_init(&r.w, &wc), 0);
	r.w.heap.quick = true; /* junk in each allocation would take most of the time */
	while (r.w.n_steps < config->n_steps) {
		one_op(&r);
		for (uint32_t i = 0; i < TIERS_SESSIONS; i++)
			tiers_hear(&r, &r.sessions[i]);
		if (r.w.n_steps % 64 == 0 && world_index(&r.w, 0)) {
			world_stats(&r.w, 0, &st);
			if (st.n_blocks > r.result.max_members)
				r.result.max_members = st.n_blocks;
		}
	}
	check_end(&r);
	r.result.counters = world_counters(&r.w);
	world_tiers_stats(&r.w, &r.result.tiers);
	r.result.n_steps = r.w.n_steps;
	*ret = r.result;
	oracle_deinit(&r.oracle);
	world_deinit(&r.w);
}
