/*
 * lease.c - what one worker asks, and what it may be answered.
 *
 * A request to which no answer came may have been carried out or not: what the worker holds is what
 * it was told, and what it sent to be committed may be found by others.
 */
#include "tests/sim/sim_internal.h"

#include <errno.h>

uint32_t sim_slot_of(struct sim *s, struct proto_span runs, uint32_t i)
{
	for (uint32_t k = 0; k < runs.n; k++) {
		struct radix_run run = proto_run_at(runs, k);

		if (i < run.len)
			return run.start == PROTO_SLOT_NONE ? PROTO_SLOT_NONE : run.start + i;
		i -= run.len;
	}
	world_fail(&s->w, "the runs are shorter than the count says");
}

static struct proto_span keys_of(const struct sim_lease *l, uint32_t from, uint32_t n, uint8_t *buf)
{
	uint32_t len = universe_key_len(l->p.root);

	for (uint32_t i = 0; i < n; i++)
		memcpy(buf + i * len, l->p.keys[l->p.skip + from + i], len);
	return (struct proto_span){ .p = buf, .n = n * len };
}

/* What every reply may be, at the wrong time.  True: there is nothing more to do. */
bool sim_over(struct sim *s, struct sim_session *se, struct sim_lease *l, int status)
{
	if (status == -ECONNRESET)
		return true;
	if (s->draining && status == PROTO_STATUS_DRAINING)
		return true;
	if (l && sim_device_over(s, se, l, status))
		return true;
	if (!l || (status != PROTO_STATUS_REVOKED && status != PROTO_STATUS_UNKNOWN_LEASE))
		return false;
	world_check(&s->w, sim_proc_of(s, se)->copies && s->nature.max_age_ns &&
				   s->w.now_ns - l->begun_ns >= s->nature.max_age_ns);
	sim_lease_revoked(s, se, l);
	return true;
}

/* ---- claims ---------------------------------------------------------------------------------- */

static struct sim_claim *written(struct sim *s, const struct sim_session *se,
				 const struct sim_lease *l, uint32_t slot)
{
	struct sim_claims *all = &s->procs[se->proc].claims;

	for (uint32_t i = 0; i < all->n; i++) {
		struct sim_claim *c = &all->v[i];

		if (c->life == s->life && c->lease == l->id && c->slot == slot &&
		    c->use == SIM_WRITES)
			return c;
	}
	world_fail(&s->w, "slot %u was not reserved", slot);
}

static void fill(struct sim *s, struct sim_claim *c)
{
	world_write(&s->w, c->group, c->slot, c->bytes, c->len);
}

void sim_lease_revoked(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	struct sim_claims *all = &s->procs[se->proc].claims;

	for (uint32_t i = 0; i < all->n;) {
		struct sim_claim *c = &all->v[i];

		if (c->life == s->life && c->lease == l->id && c->use == SIM_READS) {
			all->v[i] = all->v[--all->n];
			continue;
		}
		c->revoked |= c->life == s->life && c->lease == l->id;
		i++;
	}
	s->result->revoked++;
	l->used = false;
}

/* ---- what is counted ------------------------------------------------------------------------ */

static void count_found(struct sim *s, const struct sim_lease *l, uint32_t n_all)
{
	uint32_t ideal = 0;

	while (ideal < l->given && ideal_has(&s->ideal, sim_path_of(l, ideal)))
		ideal_touch(&s->ideal, sim_path_of(l, ideal++));
	s->result->matches++;
	s->result->asked += l->given;
	s->result->hits += n_all;
	s->result->ideal += l->island || l->exact ? n_all : ideal;
}

/* ---- EVENTs and late replies ----------------------------------------------------------------- */

static void load_event(struct sim *s, struct sim_lease *l, const struct proto_event *e)
{
	if (l->lost) {
		world_check(&s->w, e->state == PROTO_WAIT_FAILED && e->n == 0);
		l->loading = 0;
		return;
	}
	world_check(&s->w, (e->n > 0) == (e->state == PROTO_WAIT_LOADED));
	world_check(&s->w, e->n <= l->load_want);
	world_check(&s->w, (e->n == l->load_want) == (e->reason == PROTO_REASON_NONE));
	s->result->loads++;
	l->loading = 0;
	/* Of those that were taken before, another worker may have stored some. */
	l->loaded = e->n > l->load_taken ? e->n - l->load_taken : 0;
	if (l->window && e->reason != PROTO_REASON_NONE)
		l->loaded = 0; /* a part of a window is of no use */
}

static void reserved(struct sim *s, struct sim_session *se, struct sim_lease *l, int status,
		     const struct proto_reserve_rep *rep)
{
	if (sim_over(s, se, l, status)) {
		l->used &= !l->lost; /* it was told, and not of something else */
		return;
	}
	world_check(&s->w, status == PROTO_STATUS_OK || status == PROTO_STATUS_BUSY);
	if (status != PROTO_STATUS_OK) {
		l->lead_path = 0;
		return;
	}
	world_check(&s->w, rep->n > 0 && rep->n <= l->want && rep->first == l->n_path + l->n_res);
	for (uint32_t i = 0; i < rep->n; i++) {
		uint32_t slot = sim_slot_of(s, rep->runs, i);
		struct sim_claim c = sim_claim_of(s, se, l, SIM_WRITES, slot, rep->reuse);

		/* Half-done work, which nobody may be shown and nobody may disturb. */
		test_rng_fill(&s->rng, c.bytes, c.len);
		sim_claim(s, se->proc, &c);
		fill(s, &c);
		l->res[l->n_res++] = slot;
	}
	l->led = true; /* what it got, and with LEAD in an EXTEND the rest too */
	if (rep->n == l->want)
		sim_leads(s, l, l->n_path, s->w.config.engine.limits.pending_ns);
	else
		l->lead_path = 0;
}

static void hear_late(struct sim *s, struct sim_session *se)
{
	struct proto_reserve_rep rep;

	for (uint32_t i = 0; i < SIM_LEASES && se->c; i++) {
		struct sim_lease *l = &se->leases[i];
		int status;

		if (!l->used || !l->reserving)
			continue;
		status = world_reserve_reply(se->c, l->reserving, &rep);
		if (status == -EINPROGRESS)
			continue;
		l->reserving = 0;
		reserved(s, se, l, status, &rep);
	}
}

static void hear_events(struct sim *s, struct sim_session *se)
{
	struct proto_event e;
	uint64_t seq;

	while (se->c && world_event(se->c, &seq, &e)) {
		struct sim_lease *l = NULL;

		for (uint32_t i = 0; i < SIM_LEASES; i++)
			if (se->leases[i].used && se->leases[i].id == e.lease)
				l = &se->leases[i];
		if (l && l->loading == seq && e.state >= PROTO_WAIT_FAILED &&
		    e.state != PROTO_WAIT_DEADLINE)
			load_event(s, l, &e);
		else if (l && l->waiting == seq)
			sim_wait_ended(s, l, &e);
		else
			world_fail(&s->w, "an EVENT that nobody waits for");
	}
}

/* Who leads no longer is known before somebody else is told to. */
void sim_hear(struct sim *s)
{
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		hear_late(s, &s->sessions[i]);
	for (uint32_t i = 0; i < SIM_SESSIONS; i++)
		hear_events(s, &s->sessions[i]);
	if (s->nature.n_ranks)
		sim_ranks_hear(s);
	sim_waits_check(s);
}

/* ---- MATCH and EXTEND ------------------------------------------------------------------------ */

static void check_match(struct sim *s, struct sim_session *se, struct sim_lease *l,
			const struct proto_match_rep *rep, uint32_t flags)
{
	uint32_t lower = rep->n_host + rep->n_redis;

	world_check(&s->w, !rep->more && l->n_path + rep->n_device + lower <= l->given);
	sim_claim_found(s, se, l, rep);
	if (l->loading) /* what is behind the load's blocks came otherwise */
		l->load_taken = radix_min_u32(l->load_want, l->load_taken + rep->n_device);
	if (rep->n_device < l->loaded && l->epoch == s->epochs[sim_ns_of(l)])
		world_fail(&s->w, "%u blocks were loaded, %u are usable", l->loaded, rep->n_device);
	l->loaded = 0;
	sim_found_check(s, l, l->n_path, l->n_path + lower);
	if ((flags & PROTO_MATCH_PROMOTE) && lower && rep->advice == 0 && !l->loading) {
		l->loading = se->c->seq;
		l->load_want = lower;
		l->load_taken = 0;
	}
	sim_lead_matched(s, l, rep, flags);
}

static void begin_prompt(struct sim *s, const struct sim_session *se, struct sim_lease *l)
{
	uint32_t root = se->proc >= SIM_BLUE ? 3 : sim_below(s, 4);

	memset(l, 0, sizeof(*l));
	universe_prompt(&s->rng, &l->p, root == 3 && se->proc < SIM_BLUE ? 4 : root);
	l->epoch = s->epochs[sim_ns_of(l)];
	l->island = s->nature.islands && sim_ns_of(l) == 2 && sim_chance(s, 300);
	l->p.skip = l->island ? sim_below(s, l->p.n) : 0;
	l->given = 1 + sim_below(s, l->p.n - l->p.skip);
	l->window = se->window[sim_ns_of(l)];
	l->exact = sim_ns_of(l) == s->nature.coded_ns && sim_more(s, 250);
	l->begun_ns = s->w.now_ns;
}

/* Tokens behind the last whole block. */
static struct proto_span tail_of(struct sim *s, const struct sim_lease *l)
{
	struct proto_span tail = { 0 };

	if (sim_ns_of(l) == 0 && l->p.n > l->given && sim_chance(s, 500)) {
		tail.p = l->p.keys[l->given];
		tail.n = 4 * (1 + sim_below(s, UNIVERSE_BT - 1));
	}
	return tail;
}

static uint32_t match_flags(struct sim *s)
{
	return (sim_chance(s, 600) ? PROTO_MATCH_PROMOTE : 0u) |
	       (sim_chance(s, 300) ? PROTO_MATCH_LEAD : 0u) |
	       (sim_chance(s, 200) ? PROTO_MATCH_NO_TAIL : 0u);
}

static void match(struct sim *s, struct sim_session *se, struct sim_lease *l, uint32_t flags)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .flags = flags };
	struct proto_match_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	int status;

	m.ns = se->ns[sim_ns_of(l)];
	m.tenant = universe_roots[l->p.root].tenant;
	m.salt = world_text(universe_roots[l->p.root].salt);
	m.deadline_us = sim_chance(s, 300) ? 1 + sim_below(s, 500) : 0;
	m.keys = keys_of(l, 0, l->given, keys);
	m.tail = tail_of(s, l);
	m.n_tokens = l->n_tokens = l->given * UNIVERSE_BT + m.tail.n / 4;
	m.flags |= l->exact ? PROTO_MATCH_EXACT : 0u;
	s->result->exact += l->exact;
	s->result->windowed += l->window > 0;
	s->evicts = m.flags & PROTO_MATCH_PROMOTE;
	status = world_match(se->c, &m, &rep);
	if (sim_over(s, se, NULL, status))
		return;
	if (sim_device_refused(s, se, sim_ns_of(l), status))
		return;
	world_check(&s->w, se->opened[sim_ns_of(l)] || status != PROTO_STATUS_OK);
	/* Too many leases of sockets that this process closed. */
	if (status == PROTO_STATUS_LIMIT && sim_proc_of(s, se)->n_closed) {
		sim_quiesce(s, se, s->life);
		return;
	}
	world_check(&s->w, status == PROTO_STATUS_OK);
	l->used = true;
	l->id = rep.lease;
	count_found(s, l, rep.n_device + rep.n_host + rep.n_redis);
	check_match(s, se, l, &rep, m.flags);
}

void sim_match(struct sim *s, struct sim_session *se)
{
	struct sim_lease *l = NULL;

	for (uint32_t i = 0; i < SIM_LEASES && !l; i++)
		if (!se->leases[i].used)
			l = &se->leases[i];
	begin_prompt(s, se, l);
	match(s, se, l, match_flags(s) | (l->island ? PROTO_MATCH_ISLAND : 0u));
}

void sim_extend(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	struct proto_extend_req m = { .lease = l->id };
	struct proto_match_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	uint64_t n_tokens = l->n_tokens;
	uint32_t n = 0;
	int status;

	if (l->reserving)
		return;
	if (sim_chance(s, 300)) {
		if (l->given == l->p.n - l->p.skip)
			universe_grow(&s->rng, &l->p);
		n = sim_below(s, 1 + l->p.n - l->p.skip - l->given);
	}
	m.keys = keys_of(l, l->given, n, keys);
	l->given += n;
	if (l->island && l->p.skip && l->n_path && !l->n_res && sim_chance(s, 300))
		m.parent = (struct proto_span){ .p = l->p.keys[l->p.skip - 1],
						.n = universe_key_len(l->p.root) };
	if (n) {
		m.n_tokens = l->given * UNIVERSE_BT;
		m.n_tokens = m.n_tokens > l->n_tokens ? m.n_tokens : l->n_tokens;
		l->n_tokens = m.n_tokens;
	}
	m.flags = match_flags(s);
	m.deadline_us = sim_chance(s, 300) ? 1 + sim_below(s, 500) : 0;
	l->waiting = 0;                               /* it looks for itself */
	sim_claims_end(s, se->proc, s->life, ~l->id); /* the donor is let go of */
	status = world_extend(se->c, &m, &rep);
	if (sim_over(s, se, l, status))
		return;
	/* The parent may not be there, or in no tier as high. */
	world_check(&s->w, status == PROTO_STATUS_OK || m.parent.n);
	if (status != PROTO_STATUS_OK) {
		l->given -= n;
		l->n_tokens = n_tokens;
		return;
	}
	if (l->n_res)
		world_check(&s->w, rep.n_device == 0 && rep.tail_tokens == 0);
	else
		check_match(s, se, l, &rep, m.flags);
}

/* ---- RESERVE, COMMIT, RELEASE ---------------------------------------------------------------- */

void sim_reserve(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	struct proto_reserve_req m = { .lease = l->id, .n = 1 + sim_below(s, 12) };
	struct proto_reserve_rep rep;
	uint32_t left = l->given - l->n_path - l->n_res;
	int status;

	if (l->reserving || left == 0)
		return;
	m.deadline_us = sim_chance(s, 300) ? 1 + sim_below(s, 300) : 0;
	status = world_reserve(se->c, &m, &rep);
	if (status != PROTO_STATUS_DRAINING)
		l->loading = l->waiting = l->loaded = 0; /* what is not there is computed now */
	l->want = m.n < left ? m.n : left;
	if (status == -EINPROGRESS)
		l->reserving = se->c->seq;
	else
		reserved(s, se, l, status, &rep);
}

/* The device writes: half-done work again, or what the block must be. */
void sim_fill(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	uint32_t i = l->n_res ? sim_below(s, l->n_res) : 0;
	struct sim_claim *c;

	if (l->n_res == 0)
		return;
	c = written(s, se, l, l->res[i]);
	if (sim_chance(s, 500))
		sim_content(&l->p, l->epoch, l->p.skip + l->n_path + i, c->len, c->bytes);
	else
		test_rng_fill(&s->rng, c->bytes, c->len);
	fill(s, c);
}

/*
 * The next block begins an island that cannot be hung here: what is before it lies lower.  Some
 * blocks before it may have been stored; the worker gives up.
 */
static void conflict(struct sim *s, struct sim_session *se, struct sim_lease *l, int status)
{
	world_check(&s->w,
		    status == PROTO_STATUS_CONFLICT && s->nature.islands && sim_ns_of(l) == 2);
	for (uint32_t i = 0; i < l->n_res; i++)
		oracle_maybe(&s->oracle, sim_path_of(l, l->n_path + i), l->p.root);
	sim_release(s, se, l);
}

/* COMMIT was sent: from now on others may find it, whatever comes of the answer. */
static void commit_sent(struct sim *s, struct sim_session *se, struct sim_lease *l, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct sim_claim *c = written(s, se, l, l->res[i]);

		sim_content(&l->p, l->epoch, l->p.skip + l->n_path + i, c->len, c->bytes);
		fill(s, c);
		c->use = SIM_KEEPS;
		c->revocable = sim_proc_of(s, se)->copies && s->nature.max_age_ns;
		oracle_maybe(&s->oracle, sim_path_of(l, l->n_path + i), l->p.root);
	}
	sim_claims_end(s, se->proc, s->life, ~l->id); /* the donor is let go of */
}

/* The worker's slot after COMMIT: a block's now, or its own until the lease ends. */
static void own_slot(struct sim *s, const struct sim_session *se, const struct sim_lease *l,
		     uint32_t slot, bool duplicate)
{
	struct sim_claims *all = &s->procs[se->proc].claims;

	for (uint32_t i = 0; i < all->n; i++) {
		struct sim_claim *c = &all->v[i];

		if (c->life != s->life || c->lease != l->id || c->slot != slot ||
		    c->use != SIM_KEEPS)
			continue;
		c->revocable = false;
		if (!duplicate)
			*c = all->v[--all->n];
		return;
	}
	world_fail(&s->w, "slot %u was not written", slot);
}

static void committed(struct sim *s, struct sim_session *se, struct sim_lease *l, uint32_t n,
		      const struct proto_commit_rep *rep)
{
	uint32_t n_other = 0, outside = sim_outside(l, l->n_path + n);
	bool own;

	for (uint32_t i = 0; i < n; i++)
		n_other += sim_slot_of(s, rep->runs, i) != l->res[i];
	/* Where the block that counts was changed, whoever wants exact bytes is told of his own;
	   if some were stored besides, which ones is not told. */
	own = l->exact && rep->n_duplicate > n_other;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = sim_slot_of(s, rep->runs, i);

		own_slot(s, se, l, l->res[i], (own && !rep->n_stored) || slot != l->res[i]);
		oracle_add(&s->oracle, sim_path_of(l, l->n_path), l->p.root);
		if (!l->island)
			ideal_add(&s->ideal, sim_path_of(l, l->n_path),
				  l->n_path ? sim_path_of(l, l->n_path - 1) : 0,
				  s->ns_group[sim_ns_of(l)], sim_ns_of(l));
		if (l->n_path >= outside && !(own && slot == l->res[i]))
			(void)sim_claim_block(s, se, l, l->n_path, slot, rep->reuse);
		l->n_path++;
	}
	world_check(&s->w,
		    (own || rep->n_duplicate == n_other) && rep->n_stored + rep->n_duplicate == n);
	l->n_res -= n;
	memmove(l->res, l->res + n, l->n_res * sizeof(l->res[0]));
	s->result->commits += n;
	sim_know(s, l);
	l->lead_path = l->n_res && l->lead_path ? sim_path_of(l, l->n_path) : 0;
}

void sim_commit(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	struct proto_commit_req m = { .lease = l->id };
	struct proto_commit_rep rep;
	int status;

	if (l->n_res == 0 || l->reserving)
		return;
	m.n = 1 + sim_below(s, l->n_res);
	m.tail_tokens = l->tail_offer ? sim_below(s, l->tail_offer + 1) : 0;
	l->tail_offer = 0;
	commit_sent(s, se, l, m.n);
	sim_claims_slide(s, se, l, l->n_path + m.n);
	s->evicts = false;
	status = world_commit(se->c, &m, &rep);
	if (sim_over(s, se, l, status))
		return;
	if (status != PROTO_STATUS_OK)
		conflict(s, se, l, status);
	else
		committed(s, se, l, m.n, &rep);
}

/* The worker is done when it says so, heard or not. */
void sim_release(struct sim *s, struct sim_session *se, struct sim_lease *l)
{
	struct proto_release_req m = { .lease = l->id };
	struct proto_release_rep rep;
	struct proto_reserve_rep none;
	uint64_t reserving = l->reserving;
	int status;

	sim_claims_check(s);
	status = world_release(se->c, &m, &rep);
	if (status == PROTO_STATUS_REVOKED || status == PROTO_STATUS_UNKNOWN_LEASE) {
		(void)sim_over(s, se, l, status);
		return;
	}
	sim_claims_end(s, se->proc, s->life, l->id);
	sim_claims_end(s, se->proc, s->life, ~l->id);
	l->used = false;
	if (sim_over(s, se, NULL, status))
		return;
	world_check(&s->w, status == PROTO_STATUS_OK && rep.queried_tokens == l->n_tokens);
	world_check(&s->w, rep.hit_device_tokens + rep.hit_host_tokens + rep.hit_redis_tokens +
					   rep.hit_pending_tokens + rep.miss_tokens ==
				   rep.queried_tokens);
	if (reserving)
		world_check(&s->w, world_reserve_reply(se->c, reserving, &none) ==
					   PROTO_STATUS_UNKNOWN_LEASE);
}

/* All of a prompt that is there comes up and is read: what copies of it the tiers have is right. */
void sim_see(struct sim *s, struct sim_session *se, const struct universe_prompt *p, uint64_t epoch)
{
	struct sim_lease *l = &se->leases[0];

	world_check(&s->w, !l->used && !p->skip);
	*l = (struct sim_lease){ .p = *p, .epoch = epoch, .given = p->n, .begun_ns = s->w.now_ns };
	l->window = se->window[sim_ns_of(l)];
	match(s, se, l, PROTO_MATCH_PROMOTE | PROTO_MATCH_NO_TAIL);
	if (!s->w.engine)
		return;
	sim_hear(s);
	for (uint32_t i = 0; se->c && l->used && l->loading; i++) {
		uint64_t due = world_next_due(&s->w);

		if (due == UINT64_MAX || i > 10000)
			world_fail(&s->w, "a load waits for nothing");
		world_advance(&s->w, due > s->w.now_ns ? due - s->w.now_ns : 0);
		if (!s->w.engine)
			return;
		sim_hear(s);
	}
	if (se->c && l->used)
		sim_extend(s, se, l);
	if (!s->w.engine)
		return;
	sim_hear(s);
	if (se->c && l->used)
		sim_release(s, se, l);
}

/* ---- looking --------------------------------------------------------------------------------- */

void sim_probe(struct sim *s, struct sim_session *se)
{
	static struct sim_lease l;
	struct proto_probe_req m = { .has = PROTO_HAS_ALL, .flags = PROTO_PROBE_BITMAP };
	struct proto_probe_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	int status;

	begin_prompt(s, se, &l);
	l.given += l.p.skip; /* from the beginning */
	l.p.skip = 0;
	l.island = false;
	m.ns = se->ns[sim_ns_of(&l)];
	m.tenant = universe_roots[l.p.root].tenant;
	m.salt = world_text(universe_roots[l.p.root].salt);
	m.keys = keys_of(&l, 0, l.given, keys);
	m.n_tokens = l.given * UNIVERSE_BT;
	s->evicts = false;
	status = world_probe(se->c, &m, &rep);
	if (sim_over(s, se, NULL, status) || sim_device_refused(s, se, sim_ns_of(&l), status))
		return;
	world_check(&s->w, status == PROTO_STATUS_OK);
	sim_found_check(s, &l, rep.n_device, rep.n_device + rep.n_host + rep.n_redis);
}

void sim_prefetch(struct sim *s, struct sim_session *se)
{
	static struct sim_lease l;
	struct proto_prefetch_req m = { .has = PROTO_HAS_ALL };
	struct proto_prefetch_rep rep;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	int status;

	begin_prompt(s, se, &l);
	l.given += l.p.skip; /* from the beginning */
	l.p.skip = 0;
	l.island = false;
	m.ns = se->ns[sim_ns_of(&l)];
	m.tenant = universe_roots[l.p.root].tenant;
	m.salt = world_text(universe_roots[l.p.root].salt);
	m.deadline_us = sim_chance(s, 300) ? 1 + sim_below(s, 500) : 0;
	m.keys = keys_of(&l, 0, l.given, keys);
	m.n_tokens = l.given * UNIVERSE_BT;
	status = world_prefetch(se->c, &m, &rep);
	if (sim_over(s, se, NULL, status) || status == PROTO_STATUS_UNSUPPORTED ||
	    sim_device_refused(s, se, sim_ns_of(&l), status))
		return;
	world_check(&s->w, status == PROTO_STATUS_OK);
	sim_found_check(s, &l, rep.n_device, rep.n_device + rep.n_host + rep.n_redis);
}
