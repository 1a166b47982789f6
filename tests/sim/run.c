/*
 * run.c - one seed: how its world is, what happens in it, and what is left at the end.
 */
#include <errno.h>
#include <stdlib.h>

#include "radix/windows.h"
#include "tests/lib/world_internal.h"
#include "tests/sim/sim_internal.h"

static struct sim sim;

uint64_t sim_at(void)
{
	return sim.op;
}

void sim_point_add(struct sim_result *r, const char *name, uint64_t n)
{
	struct sim_point *p = r->points;

	while (p < r->points + SIM_POINTS && p->n && strcmp(p->name, name) != 0)
		p++;
	if (p == r->points + SIM_POINTS)
		return;
	strncpy(p->name, name, sizeof(p->name) - 1);
	p->n += n;
}

/* ---- what happens around the workers --------------------------------------------------------- */

/* Redis, the link to it and host memory have a life of their own; mostly they are well. */
static void outside(struct sim *s)
{
	s->result->outside++;
	switch (sim_below(s, 14)) {
	case 0:
		world_redis_up(&s->w, false);
		break;
	case 1:
		world_redis_stall(&s->w, true);
		break;
	case 2:
		world_redis_poke(&s->w, WORLD_POKE_LOSE, 1 + sim_below(s, 20));
		break;
	case 3:
		world_redis_poke(&s->w, WORLD_POKE_DAMAGE, 1 + sim_below(s, 5));
		break;
	case 4: /* it is started anew, and is empty */
		world_redis_up(&s->w, false);
		world_redis_poke(&s->w, WORLD_POKE_LOSE, 100);
		world_redis_up(&s->w, true);
		break;
	case 5:
		if (!s->sum_hurt) /* else nobody could tell */
			s->host_hurt |= world_host_damage(&s->w, 0, sim_below(s, 4)) > 0;
		break;
	case 6: /* some answers are slow, and come after others */
		world_delay(&s->w, 1000ull * (1 + sim_below(s, 1000)), 1 + sim_below(s, 8));
		break;
	case 7: /* or as good as never */
		world_delay(&s->w, 3600000000000ull, 1);
		break;
	default:
		world_redis_stall(&s->w, false);
		world_redis_up(&s->w, true);
		break;
	}
}

static uint32_t some_ns(const struct sim *s, uint32_t k)
{
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		if (s->sessions[i].c && s->sessions[i].opened[k])
			return s->sessions[i].ns[k];
	return RADIX_NONE;
}

void sim_invalidate(struct sim *s, uint32_t k)
{
	struct prefixd_namespace_info info;
	uint32_t it = 0, ns = some_ns(s, k);

	/* After a start nobody is connected yet; the daemon may still know the namespace. */
	while (ns == RADIX_NONE && prefixd_engine_next_namespace(s->w.engine, &it, &info))
		if (memcmp(info.digest, s->digests[k], sizeof(s->digests[k])) == 0)
			ns = info.id;
	if (ns == RADIX_NONE)
		return;
	s->invalidating = k + 1;
	sim_forget(s, k);
	world_invalidate(&s->w, ns);
	if (!s->w.engine)
		return;
	s->invalidating = 0;
	s->epochs[k]++;
	ideal_flush(&s->ideal, k);
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		for (uint32_t j = 0; j < SIM_LEASES; j++)
			if (universe_roots[s->sessions[i].leases[j].p.root].ns == k)
				s->sessions[i].leases[j].lead_path = 0;
}

void sim_evict(struct sim *s, uint32_t group, uint32_t n)
{
	ideal_evict(&s->ideal, group, (uint32_t)world_evict(&s->w, group, n));
}

static void admin(struct sim *s)
{
	uint32_t k = sim_below(s, UNIVERSE_NS), ns = some_ns(s, k);

	if (ns == RADIX_NONE)
		return;
	switch (sim_below(s, 8)) {
	case 0:
		world_flush(&s->w, ns);
		ideal_flush(&s->ideal, k);
		break;
	case 1:
		sim_invalidate(s, k);
		s->shaken = true;
		break;
	default:
		if (s->w.pools[s->ns_group[k]].pool)
			sim_evict(s, s->ns_group[k], sim_below(s, 6));
		break;
	}
}

static void jump(struct sim *s)
{
	s->result->jumps++;
	world_advance(&s->w, 3600000000000ull * (1 + sim_below(s, 48)));
}

/* ---- what the workers do --------------------------------------------------------------------- */

/* What a worker does next with a lease, as one that gets on with its work. */
static void with_lease(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	uint32_t dice = sim_below(s, 1000);

	if (l->n_res && dice < 600)
		sim_commit(s, se, l);
	else if (l->n_res && dice < 700)
		sim_fill(s, se, l);
	else if (dice < 650 && l->n_path + l->n_res < l->given)
		sim_reserve(s, se, l);
	else if (dice < 750 && l->n_path < l->given)
		sim_wait(s, se, l);
	else if (dice < 830)
		sim_extend(s, se, l);
	else
		sim_release(s, se, l);
}

/* A life of the daemon that the process has still something of; 0: none. */
static uint32_t old_life(const struct sim *s, const struct sim_proc *p)
{
	uint32_t life = 0;

	for (uint32_t i = 0; i < p->claims.n; i++)
		if (p->claims.v[i].life < s->life)
			life = p->claims.v[i].life;
	return life;
}

/* Its device was lost; sometimes it goes on as if it had not heard. */
static bool needs_open(struct sim *s, const struct sim_session *se)
{
	for (uint32_t k = 0; k < UNIVERSE_NS; k++)
		if (!se->opened[k] && (se->proc < SIM_BLUE || k == 1))
			return sim_more(s, 600);
	return false;
}

static void work(struct sim *s, uint32_t si)
{
	struct sim_session *se = &s->sessions[si];
	struct sim_proc *p = sim_proc_of(s, se);
	struct sim_lease *l = &se->leases[sim_below(s, SIM_LEASES)];
	uint32_t dice = sim_below(s, 1000);

	if (p->asleep > s->op)
		return;
	if (!p->alive) {
		sim_spawn(s, se->proc);
	} else if (s->nature.sleep_permille && sim_chance(s, s->nature.sleep_permille)) {
		p->asleep = s->op + 10 + sim_below(s, 300);
		s->result->sleeps++;
	} else if (!se->c) {
		sim_connect(s, se);
	} else if (dice < 10 && s->nature.kills_permille) {
		sim_close(s, se);
	} else if (dice < 20) {
		sim_quiesce(s, se, s->life);
	} else if (dice < 50) {
		sim_probe(s, se);
	} else if (dice < 75) {
		sim_prefetch(s, se);
	} else if (dice < 90 && s->n_known && !se->leases[0].used) {
		const struct sim_known *k = &s->known[sim_below(s, s->n_known)];

		if (universe_roots[k->p.root].tenant == (se->proc >= SIM_BLUE))
			sim_see(s, se, &k->p, k->epoch);
	} else if (dice < 150 && old_life(s, p)) {
		sim_quiesce(s, se, old_life(s, p));
	} else if (needs_open(s, se)) {
		sim_open_rest(s, se);
	} else if (l->used && l->lost) {
		sim_device_told(s, se, l);
	} else if (!l->used) {
		sim_match(s, se);
	} else {
		with_lease(s, se, l);
	}
}

static void something(struct sim *s, uint32_t si)
{
	const struct sim_nature *n = &s->nature;

	if (n->lost_permille && !s->draining && sim_more(s, n->lost_permille))
		sim_device_lose_some(s);
	else if (s->w.tiers && sim_chance(s, n->outside_permille))
		outside(s);
	else if (sim_chance(s, n->admin_permille))
		admin(s);
	else if (n->kills_permille && sim_chance(s, 2))
		jump(s);
	else if (n->n_ranks && sim_more(s, 400))
		sim_ranks_act(s);
	else if (sim_chance(s, 250))
		world_advance(&s->w, sim_below(s, 60) * 1000);
	else
		work(s, si);
}

/* Somebody's COMMIT, from this session on: it writes down more than anything else. */
static void commit_some(struct sim *s, uint32_t from)
{
	for (uint32_t i = 0; i < SIM_SESSIONS; i++) {
		struct sim_session *se = &s->sessions[(from + i) % SIM_SESSIONS];

		for (uint32_t k = 0; k < SIM_LEASES && se->c; k++) {
			if (!se->leases[k].used || !se->leases[k].n_res ||
			    se->leases[k].reserving || se->leases[k].lost)
				continue;
			sim_commit(s, se, &se->leases[k]);
			return;
		}
	}
}

/*
 * The daemon stops somewhere within what happens next: within one operation, so that what it may
 * have taken along is known, or later.  If it passes no crash point, it stops after that.
 */
static void crash_in(struct sim *s, uint32_t si)
{
	uint32_t n = sim_chance(s, 500) ? 1 : 60;
	bool commits = sim_chance(s, 400);

	sim_audit_take(s);
	world_life_kill_at(&s->w, 1 + sim_below(s, commits      ? 24
						   : n == 1     ? 8
						   : s->n_known ? 100
								: 30));
	s->may_lose = n > 1 || s->draining;
	if (commits)
		commit_some(s, si);
	if (s->w.engine)
		sim_hear(s);
	while (n-- && s->w.engine) {
		s->evicts = true;
		something(s, si);
		if (s->w.engine)
			sim_hear(s);
		si = sim_below(s, SIM_SESSIONS);
	}
	world_life_kill_at(&s->w, 0);
	s->may_lose |= s->evicts;
	s->may_gain = true;
	if (s->w.engine) {
		world_life_kill(&s->w);
		s->result->daemon_kills++;
	} else {
		sim_point_add(s->result, s->w.life.point, 1);
		s->result->crash_kills++;
	}
	sim_daemon_gone(s);
}

/* Most ends of the daemon are SIGKILL; some are what an operator does. */
static void daemon_ends(struct sim *s, uint32_t si)
{
	switch (sim_below(s, 8)) {
	case 0: /* it drains for a while, and workers go on */
		s->result->stops++;
		sim_daemon_drain(s, 20 + sim_below(s, 40));
		break;
	case 1: /* the next program takes over at once, under workers in mid-step */
		s->result->upgrades++;
		sim_daemon_stop(s, 1000);
		sim_daemon_start(s);
		break;
	case 2:
	case 3:
	case 4:
		sim_daemon_kill(s);
		break;
	default:
		crash_in(s, si);
		break;
	}
}

static void while_down(struct sim *s, uint32_t si)
{
	if (s->nature.lost_permille && sim_more(s, 2 * s->nature.lost_permille))
		sim_device_lose_some(s);
	else if (sim_chance(s, 100))
		sim_kill(s, s->sessions[si].proc);
	else if (sim_chance(s, 100))
		s->w.now_ns += sim_below(s, 1000000);
	else if (sim_chance(s, 400))
		sim_daemon_start(s);
}

static void one_op(struct sim *s)
{
	uint32_t si = sim_below(s, SIM_SESSIONS);
	/* What is made once, at the beginning, is to be cut short too. */
	uint32_t kills = s->op < 30 ? 5 * s->nature.kills_permille : s->nature.kills_permille;

	s->op_began_ns = s->w.now_ns;
	if (s->op >= s->nature.crowd_at && !s->down && !s->draining && !sim_devices_lost(s)) {
		s->nature.crowd_at = UINT64_MAX;
		sim_crowd(s);
		return;
	}
	if (s->draining && s->op >= s->drained) {
		sim_daemon_stop(s, 1000000);
	} else if (s->down) {
		while_down(s, si);
	} else if (sim_chance(s, kills)) {
		if (s->config.one_life || sim_chance(s, 500)) {
			sim_kill(s, s->sessions[si].proc);
			s->result->worker_kills++;
		} else {
			daemon_ends(s, si);
		}
	} else {
		s->shaken = false;
		something(s, si);
		/* Does the next life know what an operator said in this one? */
		if (s->shaken && s->w.engine && !s->draining && s->nature.kills_permille &&
		    !s->config.one_life && sim_chance(s, 300))
			sim_daemon_kill(s);
	}
}

/* ---- the run --------------------------------------------------------------------------------- */

static void draw_tiers(struct sim *s, struct world_tiers_config *t)
{
	t->host_blocks = sim_chance(s, 250) ? 0 : 16 + sim_below(s, 48);
	t->redis = sim_chance(s, 750);
	t->copy = (struct world_link){ .latency_ns = sim_chance(s, 300) ? 200000 : 5000,
				       .bytes_per_s = 100000000 };
	t->remote = (struct world_link){ .latency_ns = 40000, .bytes_per_s = 20000000 };
	t->jitter_ns = sim_chance(s, 800) ? 20000 : 200000;
	t->deadline_ns = 2000000;
	t->breaker = 5;
	t->max_values = sim_chance(s, 500) ? 100 + sim_below(s, 300) : 0;
	if (s->config.faultless || sim_chance(s, 300))
		return;
	for (uint32_t i = 0; i < WORLD_N_FAULTS; i++)
		t->faults[i] = sim_below(s, 20);
}

/* What not every world has, each by its own dice. */
static void draw_more(struct sim *s, struct world_config *wc)
{
	struct sim_nature *n = &s->nature;
	bool faults = !s->config.faultless;

	n->windows_ns = n->coded_ns = RADIX_NONE;
	n->lost_permille = faults && sim_more(s, 300) ? 3 + sim_more_below(s, 6) : 0;
	if (sim_more(s, 250))
		n->windows_ns = sim_more_below(s, n->islands ? 2 : 3);
	if (sim_more(s, 250) && (wc->tiers.host_blocks || wc->tiers.redis))
		n->coded_ns = sim_more_below(s, 2);
	n->n_ranks = sim_more(s, 250) ? 2 + sim_more_below(s, SIM_RANKS - 1) : 0;
	wc->engine.max_ranks = n->n_ranks ? SIM_RANKS : wc->engine.max_ranks;
	n->old_versions = n->windows_ns == RADIX_NONE && n->coded_ns == RADIX_NONE &&
			  sim_more(s, 500);
}

static void draw(struct sim *s, struct world_config *wc)
{
	struct sim_nature *n = &s->nature;
	static const uint32_t admin[] = { 0, 0, 0, 3, 3, 3, 3, 3, 40, 40 };
	bool faults = !s->config.faultless;

	n->islands = sim_chance(s, 400);
	n->two_groups = sim_chance(s, 300);
	n->kills_permille = faults ? 10 : 0;
	n->outside_permille = faults && sim_chance(s, 700) ? 10 : 0;
	n->admin_permille = admin[sim_below(s, radix_array_size(admin))];
	n->sleep_permille = faults ? 10 : 0;
	n->crowd_at = sim_chance(s, 100) ? 1 + sim_below(s, 1000) : UINT64_MAX;
	n->max_age_ns = faults && sim_chance(s, 300) ? 20000000 : 0;
	world_config_init(wc);
	draw_tiers(s, &wc->tiers);
	wc->seed = s->config.seed;
	wc->record = s->config.record;
	wc->keep = !s->config.one_life;
	wc->no_verify = s->config.blind;
	wc->engine.pool_blocks = 24 + sim_below(s, 72);
	wc->engine.index_blocks = sim_chance(s, 500) ? 256 : sim_below(s, 64);
	wc->engine.grace_ns = sim_chance(s, 500) ? 0 : 1000000;
	wc->engine.write = (enum prefixd_write_policy)sim_below(s, 3);
	wc->engine.watermark_low = sim_chance(s, 500) ? 5 : 0;
	wc->engine.watermark_high = wc->engine.watermark_low * 2;
	wc->engine.move_window = sim_chance(s, 500) ? 8 : 0;
	wc->engine.verify = (enum prefixd_verify_policy)sim_below(s, 3);
	wc->engine.limits.pending_ns = 3000000;
	wc->engine.limits.reserve_ns = 1000000 * (1 + sim_below(s, 10));
	wc->engine.limits.lease_max_age_ns = n->max_age_ns;
	draw_more(s, wc);
}

/* What all tiers hold together. */
static uint32_t size_of(const struct world_config *wc)
{
	uint32_t n = wc->engine.pool_blocks + wc->tiers.host_blocks;

	if (wc->tiers.redis)
		n += wc->tiers.max_values
			     ? radix_min_u32(wc->tiers.max_values, wc->engine.index_blocks)
			     : wc->engine.index_blocks;
	return n;
}

/* Nobody asks for anything: what moves comes to an end soon. */
static void run_until_idle(struct sim *s)
{
	for (uint32_t i = 0; world_tiers_due(&s->w) != UINT64_MAX; i++) {
		uint64_t due = world_tiers_due(&s->w);

		if (i == 20000)
			world_fail(&s->w, "moves follow moves without end");
		world_advance(&s->w, due > s->w.now_ns ? due - s->w.now_ns : 0);
	}
}

/* Places of its records are used again, in later lives too. */
static void check_ledger(struct sim *s)
{
	uint64_t most = 4096 + 16 * 16384, len = s->w.life.ledger.store.committed;

	if (s->w.config.keep && len > most)
		world_fail(&s->w, "the ledger has grown to %llu bytes", (unsigned long long)len);
}

/* Somebody who may name every tenant's prompts reads all that is left. */
static void see_all(struct sim *s)
{
	struct sim_session *se = &s->sessions[0];

	sim_spawn(s, se->proc);
	s->procs[se->proc].peer.admin = true;
	s->procs[se->proc].copies = false;
	sim_connect(s, se);
	for (uint32_t i = 0; i < s->n_known; i++)
		sim_see(s, se, &s->known[i].p, s->known[i].epoch);
	sim_kill(s, se->proc);
}

/* Everybody leaves: nothing is under way, and every slot is free or a block's. */
static void check_end(struct sim *s)
{
	for (uint32_t p = 0; p < SIM_ALL_PROCS; p++)
		sim_kill(s, p);
	sim_crowd_leaves(s);
	s->config.faultless = true;
	if (s->draining && sim_devices_lost(s)) /* it asks for no memory any more */
		sim_daemon_stop(s, 1000000);
	while (s->down)
		sim_daemon_start(s);
	if (s->w.tiers && s->w.config.tiers.redis) {
		world_redis_stall(&s->w, false);
		world_redis_up(&s->w, true);
	}
	s->nature.lost_permille = 0;
	if (sim_devices_lost(s))
		run_until_idle(s);
	while (sim_devices_lost(s)) {
		world_advance(&s->w, 60000000000); /* it is asked for again by then */
		sim_devices_mend(s);
	}
	world_advance(&s->w, s->w.config.engine.grace_ns + 1);
	if (s->nature.n_ranks) /* nobody waits any more for ranks that never came */
		world_advance(&s->w, 10000000000);
	see_all(s);
	run_until_idle(s);
	check_ledger(s);
	world_check(&s->w, world_in_flight(&s->w) == 0);
	for (uint32_t g = 0; g < WORLD_GROUPS; g++) {
		struct radix_window_stats ws;
		struct radix_stats st;

		if (!world_index(&s->w, g))
			continue;
		world_stats(&s->w, g, &st);
		radix_window_stats(world_index(&s->w, g), &ws);
		world_check(&s->w, st.n_pins == 0);
		world_check(&s->w, st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY] ==
					   s->w.pools[g].n_slots);
		world_check(&s->w, st.tier[0] == st.slots[RADIX_SLOT_READY]);
		world_check(&s->w,
			    st.n_blocks == st.tier[0] + st.tier[1] + st.tier[2] + ws.n_hollow);
		s->result->hollow += ws.hollowed_total;
	}
}

static void begin(struct sim *s, const struct sim_config *config, struct sim_result *ret)
{
	struct world_config wc;

	memset(s, 0, sizeof(*s));
	s->config = *config;
	s->result = ret;
	s->rng = config->seed * 0x9e3779b97f4a7c15u + 1;
	s->more = config->seed * 0xd1342543de82ef95u + 77;
	s->next_pid = 100;
	draw(s, &wc);
	world_check(&s->w, world_init(&s->w, &wc) == 0);
	s->w.heap.quick = true; /* junk in each allocation would take most of the time */
	s->life = s->w.life.n;
	s->boots[s->life] = s->w.config.engine.boot;
	ideal_init(&s->ideal, size_of(&wc));
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		s->sessions[i].proc = i % SIM_PROCS;
	for (uint32_t i = 0; i < SIM_RANKS; i++)
		s->sessions[SIM_SESSIONS + i].proc = SIM_PROCS + i;
	s->ranks_group = RADIX_NONE;
}

void sim_run(const struct sim_config *config, struct sim_result *ret)
{
	struct sim *s = &sim;

	begin(s, config, ret);
	for (s->op = 0; s->op < config->n_ops; s->op++) {
		one_op(s);
		if (!s->down && !s->w.engine)
			world_fail(&s->w, "the daemon is gone, and nobody has seen it");
		sim_devices_turn(s);
		if (!s->down)
			sim_hear(s);
		sim_ghosts_act(s);
		sim_claims_check(s);
		sim_copies_check(s);
		ret->ops++;
		ret->steps = s->w.n_steps;
	}
	check_end(s);
	ret->steps = s->w.n_steps;
	sim_claims_deinit(s);
	oracle_deinit(&s->oracle);
	ideal_deinit(&s->ideal);
	free(s->known);
	world_deinit(&s->w);
}
