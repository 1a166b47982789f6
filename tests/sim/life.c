/*
 * life.c - the daemon's lives: how each ends, what the next one is started with, and what it must
 * find.
 *
 * Before an end an operator's session asks for everything that was ever committed; after the start
 * another one asks again.  What was found before must be found now, with a device copy where there
 * was one; what was not found must not come back.  A crash within a step may have taken along what
 * that step was about to move or evict, but never what a living process holds.
 */
#include <errno.h>
#include <stdlib.h>

#include "gpu/gpu_internal.h"
#include "radix/internal.h"
#include "tests/lib/world_internal.h"
#include "tests/sim/sim_internal.h"

/* ---- what was committed ---------------------------------------------------------------------- */

static bool begins_with(const struct universe_prompt *p, uint64_t epoch, const struct sim_known *k)
{
	return p->n >= k->p.n && sim_path(p, epoch, k->p.n - 1) == k->path;
}

void sim_know(struct sim *s, const struct sim_lease *l)
{
	struct sim_known *k;
	struct universe_prompt p = l->p;
	uint64_t path;

	p.n = l->p.skip + l->n_path;
	p.skip = 0;
	path = sim_path(&p, l->epoch, p.n - 1);
	if (l->epoch != s->epochs[universe_roots[p.root].ns])
		return;
	for (uint32_t i = 0; i < s->n_known; i++) {
		k = &s->known[i];
		if (k->p.root != p.root || k->epoch != l->epoch)
			continue;
		if (k->p.n >= p.n && sim_path(&k->p, k->epoch, p.n - 1) == path)
			return;
		if (!begins_with(&p, l->epoch, k))
			continue;
		*k = (struct sim_known){ .p = p, .epoch = l->epoch, .path = path };
		return;
	}
	if (s->n_known == s->known_cap) {
		s->known_cap = s->known_cap ? 2 * s->known_cap : 256;
		s->known = realloc(s->known, s->known_cap * sizeof(*s->known));
		if (!s->known)
			abort();
	}
	s->known[s->n_known++] = (struct sim_known){ .p = p, .epoch = l->epoch, .path = path };
}

void sim_forget(struct sim *s, uint32_t ns)
{
	for (uint32_t i = 0; i < s->n_known;)
		if (universe_roots[s->known[i].p.root].ns == ns)
			s->known[i] = s->known[--s->n_known];
		else
			i++;
}

/* ---- audits ---------------------------------------------------------------------------------- */

struct asker {
	struct world_client *c;
	uint32_t ns[UNIVERSE_NS];
	bool lost[UNIVERSE_NS]; /* its device is: nothing can be asked */
};

static bool ask_open(struct sim *s, struct asker *a)
{
	struct prefixd_peer peer = { .pid = 1, .start_time = 1, .admin = true };
	struct proto_id instance = { { 1 } };
	struct proto_hello_req req;
	struct proto_hello_rep rep;

	a->c = world_connect_as(&s->w, &peer, &instance);
	req = world_hello_req(a->c);
	if (world_hello(a->c, &req, &rep) != PROTO_STATUS_OK)
		return false;
	for (uint32_t k = 0; k < UNIVERSE_NS; k++) {
		struct proto_open_rep opened;
		int status = sim_open(s, a->c, k, false, &opened);

		a->lost[k] = status == PROTO_STATUS_DEVICE_LOST;
		if (a->lost[k])
			continue;
		if (status != PROTO_STATUS_OK)
			return false;
		a->ns[k] = opened.ns;
		s->ns_group[k] = opened.group;
		memcpy(s->digests[k], opened.digest.p, sizeof(s->digests[k]));
	}
	return true;
}

/* False: its device was lost meanwhile. */
static bool ask(struct sim *s, struct asker *a, const struct universe_prompt *p,
		struct sim_found *ret)
{
	struct proto_probe_req m = { .has = PROTO_HAS_ALL, .flags = PROTO_PROBE_BITMAP };
	struct proto_probe_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	uint32_t len = universe_key_len(p->root), ns = universe_roots[p->root].ns;
	int status;

	for (uint32_t i = 0; i < p->n; i++)
		memcpy(keys + i * len, p->keys[i], len);
	m.ns = a->ns[ns];
	m.tenant = universe_roots[p->root].tenant;
	m.salt = world_text(universe_roots[p->root].salt);
	m.keys = (struct proto_span){ .p = keys, .n = p->n * len };
	m.n_tokens = p->n * UNIVERSE_BT;
	status = world_probe(a->c, &m, &rep);
	if (status == PROTO_STATUS_DEVICE_LOST && s->devices[s->ns_group[ns]].lost)
		return false;
	world_check(&s->w, status == PROTO_STATUS_OK);
	memset(ret, 0, sizeof(*ret));
	world_check(&s->w, rep.bitmap.n <= sizeof(ret->bits));
	memcpy(&ret->bits, rep.bitmap.p, rep.bitmap.n);
	ret->n_device = rep.n_device;
	ret->n_redis = rep.n_redis;
	ret->n_lead = rep.n_device + rep.n_host + rep.n_redis;
	return true;
}

/* Looks change nothing: the invariants need not be looked at after each. */
static void look(struct sim *s, void (*each)(struct sim *s, uint32_t i, const struct sim_found *f))
{
	bool no_verify = s->w.config.no_verify;
	struct sim_found f;
	struct asker a;

	s->w.config.no_verify = true;
	world_check(&s->w, ask_open(s, &a));
	for (uint32_t i = 0; i < s->n_known; i++) {
		if (a.lost[universe_roots[s->known[i].p.root].ns])
			continue;
		if (ask(s, &a, &s->known[i].p, &f))
			each(s, i, &f);
	}
	world_eof(a.c);
	s->w.config.no_verify = no_verify;
}

static void keep_found(struct sim *s, uint32_t i, const struct sim_found *f)
{
	s->known[i].before = *f;
	s->known[i].audited = true;
}

void sim_audit_take(struct sim *s)
{
	/* While it drains no session may begin, but one did when that began.  And where nothing was
	   committed, the pools need not be made for it: a crash may meet that too. */
	if (s->draining || s->n_known == 0)
		return;
	look(s, keep_found);
}

static uint32_t count_bits(uint64_t v)
{
	return (uint32_t)__builtin_popcountll(v);
}

static void compare(struct sim *s, uint32_t i, const struct sim_found *now)
{
	struct sim_known *k = &s->known[i];
	const struct sim_found *was = &k->before;
	uint64_t must = was->bits, gone;
	uint32_t least = sim_held(s, &k->p, k->epoch, k->p.n, 0, false);

	for (uint32_t j = 0; j < k->p.n; j++)
		if ((now->bits >> j & 1) && !oracle_may(&s->oracle, sim_path(&k->p, k->epoch, j)))
			world_fail(&s->w, "block %u is found and was never committed", j);
	if (now->n_device < least)
		world_fail(&s->w, "%u blocks are on the device, %u are held there", now->n_device,
			   least);
	if (!k->audited)
		return;
	k->audited = false;
	if (s->redis_lost)
		must &= (1ull << (was->n_lead - was->n_redis)) - 1;
	gone = must & ~now->bits;
	s->result->audited += count_bits(must);
	s->n_gone += count_bits(gone);
	/* With watermarks room is made again as soon as it is back. */
	if (s->may_lose || s->w.config.engine.watermark_low) {
		s->result->lost += count_bits(gone);
		return;
	}
	if (gone)
		world_fail(&s->w, "block %u of root %u was found before the end, not now",
			   (uint32_t)__builtin_ctzll(gone), k->p.root);
	if (!s->may_gain && now->bits & ~was->bits)
		world_fail(&s->w, "block %u of root %u was not found before the end, but is now",
			   (uint32_t)__builtin_ctzll(now->bits & ~was->bits), k->p.root);
	if (now->n_device < was->n_device)
		world_fail(&s->w, "%u blocks were on the device before the end, %u are now",
			   was->n_device, now->n_device);
}

/* ---- ends ------------------------------------------------------------------------------------ */

void sim_daemon_gone(struct sim *s)
{
	s->down = true;
	s->draining = false;
	sim_ghosts_stay(s);
	for (uint32_t i = 0; i < SIM_ALL_SESSIONS; i++)
		if (s->sessions[i].c)
			sim_session_over(s, &s->sessions[i]);
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++)
		s->procs[i].n_closed = 0;
	sim_ranks_gone(s);
}

void sim_daemon_kill(struct sim *s)
{
	sim_audit_take(s);
	s->may_lose = s->may_gain = s->draining;
	world_life_kill(&s->w);
	sim_daemon_gone(s);
	s->result->daemon_kills++;
}

void sim_daemon_drain(struct sim *s, uint64_t n_ops)
{
	sim_audit_take(s);
	s->draining = true;
	s->drained = s->op + n_ops;
	s->n_exits = s->w.n_exits;
	world_drain(&s->w, 0);
}

/* What moves goes on moving while it drains, and so do deferred RESERVEs. */
void sim_daemon_stop(struct sim *s, uint64_t ns)
{
	sim_audit_take(s);
	if (s->draining && s->w.n_exits > s->n_exits) { /* all leases had ended */
		world_life_kill(&s->w);
	} else {
		s->draining = true;
		world_life_stop(&s->w, ns);
	}
	sim_daemon_gone(s);
	s->may_lose = s->may_gain = true;
}

/* ---- the next life --------------------------------------------------------------------------- */

static void drop_lost(struct sim *s, struct sim_claims *all)
{
	for (uint32_t k = 0; k < all->n;) {
		const struct gpu_pool *p = s->w.pools[all->v[k].group].pool;
		const char *at = all->v[k].memory;

		if (p && at >= (const char *)p->shm.base &&
		    at < (const char *)p->shm.base + p->shm.len)
			k++;
		else
			all->v[k] = all->v[--all->n];
	}
}

/* Slots of a pool that was not taken back are nobody's any more; who maps them has them alone. */
static void drop_old_memory(struct sim *s)
{
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++)
		drop_lost(s, &s->procs[i].claims);
	drop_lost(s, &s->ghosts);
}

/* What an operator may change between two lives; pools that are kept stay as they are. */
static void change_settings(struct sim *s)
{
	struct prefixd_engine_config *e = &s->w.config.engine;

	s->result->changes++;
	switch (sim_below(s, 5)) {
	case 0:
		e->pool_blocks = 24 + sim_below(s, 72);
		break;
	case 1:
		if (s->w.tiers)
			e->host_blocks = sim_below(s, 64);
		break;
	case 2:
		e->write = (enum prefixd_write_policy)sim_below(s, 3);
		e->grace_ns = sim_chance(s, 500) ? 0 : 1000000;
		e->verify = (enum prefixd_verify_policy)sim_below(s, 3);
		break;
	case 3: { /* tenants in another order: they keep their numbers */
		struct prefixd_tenant first = s->w.tenants[0];

		s->w.tenants[0] = s->w.tenants[1];
		s->w.tenants[1] = first;
		break;
	}
	default:
		if (!s->w.tiers)
			break;
		world_redis_use(&s->w, !e->redis);
		s->redis_lost |= !e->redis;
		break;
	}
}

/* The keeper lost what it kept of the pools, or nobody can map it any more. */
static bool lose_pools(struct sim *s)
{
	if (s->config.faultless || !sim_chance(s, 15))
		return false;
	s->w.config.hold_pools = true;
	for (uint32_t i = 0; i < s->n_known; i++)
		s->known[i].audited = false;
	return true;
}

/*
 * A start that found damage and was killed may have freed entries and made islands, and not come to
 * write down where that leaves the leases.  That is a third failure on top of two; it is not made
 * good.
 */
static void stop_reading(struct sim *s)
{
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++) {
		struct sim_claims *all = &s->procs[i].claims;

		for (uint32_t k = 0; k < all->n;)
			if (all->v[k].use == SIM_READS)
				all->v[k] = all->v[--all->n];
			else
				k++;
	}
}

/*
 * Does this byte tell of a checksum?  Damage there costs the checksum alone; whether bytes in host
 * memory are right is told by nothing else.  Entries begin at a page.
 */
static bool is_checksum(uint64_t at)
{
	uint64_t in = at % sizeof(struct radix_entry);

	return in >= offsetof(struct radix_entry, checksum_check) &&
	       in <= offsetof(struct radix_entry, checksum_kind);
}

/*
 * A bit flips in a block table.  Entries may be lost by it, with what hangs below; what is left is
 * right, and slots that workers read or write are theirs all the same.
 */
static bool damage(struct sim *s)
{
	uint32_t g = sim_below(s, 2);
	bool spread = s->nature.windows_ns != RADIX_NONE || s->nature.coded_ns != RADIX_NONE ||
		      s->nature.n_ranks;
	const struct radix_store *st;
	uint8_t *bytes;
	uint64_t at = 0, from = sim_chance(s, 50) ? 0 : 4096; /* seldom in the head */

	g = spread ? sim_more_below(s, WORLD_GROUPS) : g;
	st = &s->w.pools[g].table.store;
	bytes = st->base;
	if (s->config.faultless || !s->w.pools[g].pool || !sim_chance(s, 40))
		return false;
	for (uint32_t i = 0; i == 0 || (i < 100 && !bytes[at]); i++)
		at = from + test_rng(&s->rng) % (st->committed - from);
	if (is_checksum(at) && s->host_hurt)
		return false; /* both at once are not made good */
	s->sum_hurt |= is_checksum(at);
	s->marks_hurt = true;
	bytes[at] ^= (uint8_t)(1u << sim_below(s, 8));
	world_note(&s->w, "       a bit of byte %llu of the block table of pool %u flips\n",
		   (unsigned long long)at, g);
	s->result->damages++;
	for (uint32_t i = 0; i < SIM_ALL_PROCS; i++)
		for (uint32_t k = 0; k < s->procs[i].claims.n; k++)
			s->procs[i].claims.v[k].path = 0; /* it may be found no more */
	for (uint32_t i = 0; i < s->n_known; i++)
		s->known[i].audited = false;
	return true;
}

/*
 * All that nobody holds is evicted, once in a while and mostly after a crash: a lease that stands
 * at too little of its path after the start is found out at once.
 */
static void squeeze(struct sim *s)
{
	for (uint32_t g = 0; g < WORLD_GROUPS; g++)
		if (s->w.pools[g].pool)
			sim_evict(s, g, UINT32_MAX);
	look(s, compare);
}

void sim_daemon_start(struct sim *s)
{
	uint32_t before = s->w.life.n, squeezed = s->may_lose ? 500 : 50;
	bool lost, damaged;

	world_check(&s->w, before + 1 < radix_array_size(s->boots));
	if (sim_chance(s, 100))
		s->w.now_ns = 1000000000 + sim_below(s, 1000000000);
	if (!s->config.faultless && sim_chance(s, 150))
		change_settings(s);
	damaged = damage(s);
	s->w.config.hold_pools = false;
	lost = lose_pools(s);
	if (!s->config.faultless && sim_chance(s, damaged ? 500 : 150))
		world_life_kill_at(&s->w, 1 + sim_below(s, damaged ? 300 : 1u << sim_below(s, 8)));
	world_check(&s->w, world_life_restart(&s->w) == 0);
	s->w.config.hold_pools = false;
	if (lost && s->w.engine)
		world_pool_answer(&s->w, false);
	for (uint32_t i = 0; i < WORLD_GROUPS; i++)
		s->devices[i].lost = false; /* the new program opened it again */
	s->life = s->w.life.n;
	s->boots[s->life] = s->w.config.engine.boot;
	drop_old_memory(s);
	if (damaged && !s->w.engine)
		stop_reading(s);
	if (!s->w.engine) {
		s->result->restart_kills++;
		sim_point_add(s->result, s->w.life.point, 1);
		return;
	}
	world_life_kill_at(&s->w, 0);
	s->down = false;
	sim_ghosts_told(s);
	s->n_gone = 0;
	look(s, compare);
	s->redis_lost = false;
	s->may_lose = false;
	if (s->invalidating)
		sim_invalidate(s, s->invalidating - 1);
	if (!s->config.faultless && sim_chance(s, squeezed))
		squeeze(s);
}
