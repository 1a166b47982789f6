/*
 * stampede.c - see stampede.h.
 */
#include "tests/engine/stampede.h"

#include "daemon/engine_internal.h"

#include <check.h>

enum {
	BYTES = 64,
	SECOND = 1000000000,
	POOL = 384, /* slots */
	AGE_S = 12, /* seconds, where leases have an age limit */
};

enum phase {
	ASKS,     /* MATCH */
	LOOKS,    /* EXTEND, and on from there */
	WAITS,    /* for an EVENT */
	COMPUTES, /* RESERVE */
	WRITES,   /* COMMIT */
	REVOKED,  /* it has not heard of it yet */
	LOST,     /* the daemon died; it has not heard of it yet */
	DONE,
};

struct member {
	struct scene_place at;
	uint32_t pid, id;
	enum phase phase;
	bool alone;        /* it waits for nobody any more */
	uint64_t wakes_ns; /* it stands still until then */
	uint64_t lease, begun_ns;
	uint32_t n_path, n_res;
	uint32_t slots[STAMPEDE_BLOCKS]; /* reserved ones, in path order */
	uint32_t tokens[STAMPEDE_TOKENS];
	uint8_t keys[STAMPEDE_BLOCKS][MODEL_KEY];
	struct flight_lease f;
};

struct run {
	struct stampede_config config;
	struct stampede_result result;
	struct world w;
	struct proto_open_req o;
	struct flight flight;
	struct member v[STAMPEDE_MAX];
	bool stored[STAMPEDE_NODES];
	uint32_t next_pid;
	uint32_t n_orphans;
	uint32_t room; /* free slots that the model knows of */
	/* of this life of the daemon */
	struct proto_id before; /* the boot id of the life before; zeroes: none */
	uint64_t stored_before, duplicates_before, lead_before, late_before;
};

/* ---- what a prompt is made of ---------------------------------------------------------------- */

/* Which branch of the tree block i of the worker's prompt belongs to. */
static uint32_t branch(uint32_t id, uint32_t i)
{
	if (i < STAMPEDE_STEM)
		return 0;
	if (i < STAMPEDE_STEM + STAMPEDE_GROUP)
		return 1 + id % STAMPEDE_GROUPS;
	return 1 + STAMPEDE_GROUPS + id;
}

static uint32_t node(uint32_t id, uint32_t i)
{
	return branch(id, i) * STAMPEDE_BLOCKS + i;
}

static void content(uint32_t id, uint32_t i, uint8_t out[BYTES])
{
	uint64_t seed = 77777 + node(id, i);

	test_rng_fill(&seed, out, BYTES);
}

static uint32_t below(struct run *r, uint32_t n)
{
	return test_rng_below(&r->w.rng, n);
}

static void check_block(struct run *r, const struct member *m, uint32_t i, uint32_t slot)
{
	uint8_t want[BYTES], got[BYTES];

	content(m->id, i, want);
	world_read(&r->w, 0, slot, got, BYTES);
	if (memcmp(want, got, BYTES) != 0)
		world_fail(&r->w, "slot %u is not block %u of worker %u", slot, i, m->id);
}

/* ---- the model ------------------------------------------------------------------------------- */

static uint32_t ready(void *ctx, struct flight_lease *f)
{
	const struct run *r = ctx;
	const struct member *m = radix_container_of(f, struct member, f);
	uint32_t n = 0;

	while (m->n_path + n < STAMPEDE_BLOCKS && r->stored[node(m->id, m->n_path + n)])
		n++;
	return n;
}

static void sync(struct member *m)
{
	m->f.used = true;
	m->f.key_len = 16;
	m->f.keys = (const uint8_t(*)[MODEL_KEY])m->keys;
	m->f.given = STAMPEDE_BLOCKS;
	m->f.depth = m->n_path;
	m->f.reserved = m->n_res;
}

/* What the engine told each worker is what the model says, and the other way round. */
static void settle(struct run *r)
{
	struct flight *f = &r->flight;

	flight_settle(f);
	for (uint32_t i = 0; i < r->config.n; i++) {
		struct member *m = &r->v[i];
		struct proto_event e;
		uint64_t seq;

		while (m->at.c && world_event(m->at.c, &seq, &e)) {
			uint32_t k = 0;

			while (k < f->n_events && (f->events[k].lease != &m->f ||
						   f->events[k].seq != seq || e.lease != m->lease))
				k++;
			if (k == f->n_events || f->events[k].state != e.state)
				world_fail(&r->w, "worker %u is told %u, the model says otherwise",
					   i, e.state);
			f->events[k] = f->events[--f->n_events];
			r->result.n_failed += e.state == PROTO_WAIT_FAILED;
			m->alone = e.state == PROTO_WAIT_DEADLINE;
			if (m->phase == WAITS)
				m->phase = LOOKS;
		}
	}
	if (f->n_events)
		world_fail(&r->w, "%u EVENTs did not come", f->n_events);
}

/* The lease is over, or its socket; what it reserved is not stored by it. */
static void over(struct member *m)
{
	flight_over(&m->f);
	m->f.used = false;
	m->n_res = 0;
	m->n_path = 0;
	m->alone = false;
	m->phase = ASKS;
}

/* ---- time ------------------------------------------------------------------------------------ */

static struct member *oldest(struct run *r)
{
	struct member *first = NULL;

	if (!(r->config.faults & STAMPEDE_REVOKE))
		return NULL;
	for (uint32_t i = 0; i < r->config.n; i++) {
		struct member *m = &r->v[i];

		if (m->f.used && (!first || m->lease >> PREFIXD_LEASE_IDX_BITS < first->lease >>
						    PREFIXD_LEASE_IDX_BITS))
			first = m;
	}
	return first;
}

static void pass(struct run *r, uint64_t ns)
{
	struct member *m;

	world_advance(&r->w, ns);
	while ((m = oldest(r)) != NULL && m->begun_ns + AGE_S * (uint64_t)SECOND <= r->w.now_ns) {
		uint64_t due = m->begun_ns + AGE_S * (uint64_t)SECOND;

		if (due > r->flight.now)
			flight_time(&r->flight, due - 1);
		for (; m && m->begun_ns + AGE_S * (uint64_t)SECOND == due; m = oldest(r)) {
			flight_fail(&r->flight, &m->f);
			m->f.used = false;
			m->phase = REVOKED;
		}
		flight_time(&r->flight, due);
		flight_settle(&r->flight);
	}
	flight_time(&r->flight, r->w.now_ns);
	settle(r);
}

static uint64_t free_slots(const struct run *r)
{
	struct radix_stats st;

	world_stats(&r->w, 0, &st);
	return st.slots[RADIX_SLOT_FREE];
}

/* Slots that came free by how a lease ended: the model takes the pool's own count of them. */
static void recount(struct run *r)
{
	r->room = (uint32_t)free_slots(r);
}

/* ---- one worker's steps ---------------------------------------------------------------------- */

static void start(struct run *r, struct member *m, uint32_t pid)
{
	struct proto_hello_req hello;
	struct proto_hello_rep rep;

	m->pid = pid;
	m->at = (struct scene_place){ .c = world_connect(&r->w, pid, 1000, false) };
	hello = world_hello_req(m->at.c);
	hello.flags = r->config.faults & STAMPEDE_REVOKE ? PROTO_HELLO_COPIES : 0;
	world_check(&r->w, world_hello(m->at.c, &hello, &rep) == PROTO_STATUS_OK);
	world_check(&r->w, world_open(m->at.c, &r->o, &m->at.ns) == PROTO_STATUS_OK);
	m->at.ns.digest.p = NULL;
	over(m);
}

static void take(struct run *r, struct member *m, const struct proto_match_rep *rep, bool lead)
{
	uint32_t n = ready(r, &m->f), want, at = 0;

	if (rep->n_device != n)
		world_fail(&r->w, "worker %u finds %u blocks, the model %u", m->id, rep->n_device,
			   n);
	for (uint32_t i = 0; i < rep->runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(rep->runs, i).len; k++, at++)
			check_block(r, m, m->n_path + at, proto_run_at(rep->runs, i).start + k);
	m->n_path += n;
	sync(m);
	want = flight_pending(&r->flight, &m->f);
	if (rep->n_pending != want)
		world_fail(&r->w, "worker %u: %u blocks are pending, the model has %u", m->id,
			   rep->n_pending, want);
	if (lead && !want && m->n_path < STAMPEDE_BLOCKS && !m->f.leads)
		flight_lead(&r->flight, &m->f, true);
	flight_changed(&m->f);
	if (m->n_path == STAMPEDE_BLOCKS)
		m->phase = DONE;
	else
		m->phase = want && !m->alone ? WAITS : COMPUTES;
}

/* WAIT was or was not to be: the reply decides what comes next. */
static void begin_wait(struct run *r, struct member *m)
{
	struct proto_wait_req q = { .lease = m->lease,
				    .deadline_us = below(r, 4) ? 0 : 1000000 + below(r, 9000000) };
	struct proto_wait_rep rep;
	uint32_t state, n;

	world_check(&r->w, world_wait(m->at.c, &q, &rep) == PROTO_STATUS_OK);
	state = flight_wait(&r->flight, &m->f, m->at.c->h.seq, q.deadline_us, &n);
	if (rep.state != state || rep.n != n)
		world_fail(&r->w, "WAIT of worker %u is answered %u, %u; the model says %u, %u",
			   m->id, rep.state, rep.n, state, n);
	if (state == PROTO_WAIT_WAITING) {
		m->phase = WAITS;
		r->result.n_waits++;
	} else {
		m->phase = LOOKS;
	}
}

static void step_ask(struct run *r, struct member *m)
{
	struct scene_prompt p = scene_tokens(&m->at, m->tokens, STAMPEDE_TOKENS);
	struct proto_match_rep rep;

	scene_match_with(&m->at, &p, PROTO_MATCH_LEAD | PROTO_MATCH_NO_TAIL, 0, &rep);
	m->lease = rep.lease;
	m->begun_ns = r->w.now_ns;
	sync(m);
	take(r, m, &rep, true);
	if (m->phase == WAITS)
		begin_wait(r, m);
}

static void step_look(struct run *r, struct member *m)
{
	struct proto_extend_req x = {
		.lease = m->lease, .flags = (m->alone ? 0 : PROTO_MATCH_LEAD) | PROTO_MATCH_NO_TAIL
	};
	struct proto_match_rep rep;

	world_check(&r->w, world_extend(m->at.c, &x, &rep) == PROTO_STATUS_OK);
	flight_stop(&m->f);
	take(r, m, &rep, !m->alone);
	if (m->phase == WAITS)
		begin_wait(r, m);
}

static void step_reserve(struct run *r, struct member *m)
{
	struct proto_reserve_req q = { .lease = m->lease,
				       .n = STAMPEDE_BLOCKS - m->n_path - m->n_res };
	uint32_t got = q.n < r->room ? q.n : r->room, at = 0;
	struct proto_reserve_rep rep;
	int status = world_reserve(m->at.c, &q, &rep);

	flight_stop(&m->f);
	world_check(&r->w, status == (got ? PROTO_STATUS_OK : PROTO_STATUS_BUSY));
	if (!got) {
		/* It computes without storing, and whoever waits for it is promoted. */
		r->result.n_busy++;
		m->f.rest = false;
		flight_changed(&m->f);
		m->phase = DONE;
		return;
	}
	world_check(&r->w, rep.n == got);
	r->result.n_cut += got < q.n;
	for (uint32_t i = 0; i < rep.runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(rep.runs, i).len; k++, at++)
			m->slots[m->n_res + at] = proto_run_at(rep.runs, i).start + k;
	m->n_res += got;
	r->room -= got;
	sync(m);
	flight_lead(&r->flight, &m->f, m->f.rest && got == q.n);
	m->phase = WRITES;
}

static void step_commit(struct run *r, struct member *m)
{
	struct proto_commit_req q = { .lease = m->lease,
				      .n = below(r, 4) ? 1 : 1 + below(r, m->n_res) };
	struct proto_commit_rep rep;
	uint32_t n_stored = 0;

	for (uint32_t i = 0; i < q.n; i++) {
		uint8_t bytes[BYTES];

		content(m->id, m->n_path + i, bytes);
		world_write(&r->w, 0, m->slots[i], bytes, BYTES);
		n_stored += !r->stored[node(m->id, m->n_path + i)];
		r->stored[node(m->id, m->n_path + i)] = true;
	}
	world_check(&r->w, world_commit(m->at.c, &q, &rep) == PROTO_STATUS_OK);
	if (rep.n_stored != n_stored || rep.n_duplicate != q.n - n_stored)
		world_fail(&r->w, "worker %u stores %u blocks, the model says %u", m->id,
			   rep.n_stored, n_stored);
	r->result.n_stored += rep.n_stored;
	r->result.n_duplicate += rep.n_duplicate;
	m->n_path += q.n;
	m->n_res -= q.n;
	memmove(m->slots, m->slots + q.n, m->n_res * sizeof(*m->slots));
	sync(m);
	flight_changed(&m->f);
	if (m->n_res == 0)
		m->phase = m->n_path == STAMPEDE_BLOCKS ? DONE : LOOKS;
}

/* It hears that its lease was taken back; its slots wait for its word. */
static void step_hear(struct run *r, struct member *m)
{
	struct proto_release_req q = { .lease = m->lease };
	struct proto_quiesced_req quiet = { .instance = m->at.c->instance,
					    .old_boot = m->at.c->h.boot };
	struct proto_release_rep rep;
	struct proto_quiesced_rep done;
	int status = world_release(m->at.c, &q, &rep);

	world_check(&r->w, status == PROTO_STATUS_REVOKED);
	world_check(&r->w, world_quiesced(m->at.c, &quiet, &done) == PROTO_STATUS_OK);
	world_check(&r->w, done.n_slots >= m->n_res); /* and duplicates that it kept */
	r->room += done.n_slots;
	over(m);
}

/* It finds another life of the daemon, and may say that its device is done with the one before. */
static void step_reconnect(struct run *r, struct member *m)
{
	struct proto_quiesced_req q = { .old_boot = r->before };
	struct proto_quiesced_rep rep;

	start(r, m, m->pid);
	q.instance = m->at.c->instance;
	if (below(r, 2))
		return;
	world_check(&r->w, world_quiesced(m->at.c, &q, &rep) == PROTO_STATUS_OK);
	recount(r);
}

static void step(struct run *r, struct member *m)
{
	switch (m->phase) {
	case LOST:
		step_reconnect(r, m);
		break;
	case ASKS:
		step_ask(r, m);
		break;
	case LOOKS:
		step_look(r, m);
		break;
	case COMPUTES:
		step_reserve(r, m);
		break;
	case WRITES:
		step_commit(r, m);
		break;
	case REVOKED:
		step_hear(r, m);
		break;
	case WAITS:
	case DONE:
		world_fail(&r->w, "worker %u has nothing to do", m->id);
	}
	settle(r);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void fault_kill(struct run *r, struct member *m)
{
	flight_over(&m->f);
	m->f.used = false;
	world_kill(&r->w, m->pid);
	m->at.c = NULL;
	settle(r);
	recount(r);
	start(r, m, r->next_pid++); /* somebody else asks the same */
}

static void fault_eof(struct run *r, struct member *m)
{
	struct proto_quiesced_req q = { .instance = m->at.c->instance,
					.old_boot = r->w.config.engine.boot };
	struct proto_quiesced_rep rep;

	if (r->n_orphans == 8)
		return;
	world_eof(m->at.c);
	r->n_orphans += m->at.c->used;
	flight_over(&m->f);
	m->f.used = false;
	m->at.c = NULL;
	settle(r);
	start(r, m, m->pid);
	if (below(r, 2))
		return;
	world_check(&r->w, world_quiesced(m->at.c, &q, &rep) == PROTO_STATUS_OK);
	r->n_orphans -= rep.n_leases;
	recount(r);
}

/* What this life counted is what the model counted in it. */
static void check_life(struct run *r)
{
	struct prefixd_counters n = world_counters(&r->w);

	world_check(&r->w, n.committed_blocks == r->result.n_stored - r->stored_before);
	world_check(&r->w, n.duplicate_blocks == r->result.n_duplicate - r->duplicates_before);
	world_check(&r->w, n.waits_lead == r->flight.n_lead - r->lead_before);
	world_check(&r->w, n.leaders_late == r->flight.n_late - r->late_before);
	r->stored_before = r->result.n_stored;
	r->duplicates_before = r->result.n_duplicate;
	r->lead_before = r->flight.n_lead;
	r->late_before = r->flight.n_late;
	r->result.n_lives++;
}

/* Nobody leads and nobody waits any more; what was stored stays. */
static void fault_restart(struct run *r)
{
	check_life(r);
	r->before = r->w.config.engine.boot;
	world_life_kill(&r->w);
	for (uint32_t i = 0; i < r->config.n; i++) {
		struct member *m = &r->v[i];
		bool done = m->phase == DONE;

		over(m);
		m->at.c = NULL;
		m->phase = done ? DONE : LOST;
	}
	ck_assert_int_eq(world_life_restart(&r->w), 0);
	r->n_orphans = 0;
	settle(r);
	recount(r);
}

static void fault_early(struct run *r, struct member *m)
{
	scene_release(&m->at, m->lease, NULL);
	over(m);
	settle(r);
	recount(r);
}

/* Tries one of the configured faults on a worker; false: it cannot happen to it now. */
static bool fault(struct run *r, struct member *m)
{
	uint32_t which;

	do
		which = 1u << below(r, 7);
	while (!(r->config.faults & which));
	if (which == STAMPEDE_RESTART) {
		fault_restart(r);
		return true;
	}
	if (m->wakes_ns > r->w.now_ns || m->phase == REVOKED || m->phase == LOST)
		return false;
	switch (which) {
	case STAMPEDE_KILL:
		fault_kill(r, m);
		return true;
	case STAMPEDE_EOF:
		fault_eof(r, m);
		return true;
	case STAMPEDE_STOP:
		if (m->phase == ASKS)
			return false;
		m->wakes_ns = r->w.now_ns + (1 + below(r, 12)) * (uint64_t)SECOND;
		return true;
	case STAMPEDE_EARLY:
		if (m->phase == ASKS || m->phase == WAITS)
			return false;
		fault_early(r, m);
		return true;
	case STAMPEDE_CANCEL:
		if (m->phase != WAITS)
			return false;
		if (below(r, 2)) {
			fault_early(r, m);
			return true;
		}
		m->alone = true;
		step_look(r, m);
		settle(r);
		return true;
	default:
		return false;
	}
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Whoever can go on now; NULL: nobody. */
static struct member *someone(struct run *r)
{
	uint32_t first = below(r, r->config.n);

	for (uint32_t i = 0; i < r->config.n; i++) {
		struct member *m = &r->v[(first + i) % r->config.n];

		if (m->phase != WAITS && m->phase != DONE && m->wakes_ns <= r->w.now_ns)
			return m;
	}
	return NULL;
}

static bool all_done(const struct run *r)
{
	for (uint32_t i = 0; i < r->config.n; i++)
		if (r->v[i].phase != DONE)
			return false;
	return true;
}

/* Nobody can go on: the clock does, to where somebody wakes or a deadline passes. */
static void idle(struct run *r)
{
	uint64_t due = world_next_due(&r->w);

	for (uint32_t i = 0; i < r->config.n; i++)
		if (r->v[i].wakes_ns > r->w.now_ns && r->v[i].wakes_ns < due)
			due = r->v[i].wakes_ns;
	if (due == UINT64_MAX)
		world_fail(&r->w, "all wait, and nobody computes");
	pass(r, due > r->w.now_ns ? due - r->w.now_ns : 1);
}

static void prompts(struct run *r)
{
	for (uint32_t i = 0; i < r->config.n; i++) {
		struct member *m = &r->v[i];

		m->id = i;
		for (uint32_t k = 0; k < STAMPEDE_TOKENS; k++)
			m->tokens[k] = 1000 * branch(i, k / 4) + k;
		for (uint32_t k = 0; k < STAMPEDE_BLOCKS; k++)
			memcpy(m->keys[k], &m->tokens[4 * k], 16);
		r->flight.all[r->flight.n++] = &m->f;
	}
}

/* Leaves so few slots that not all of the stampede can be stored. */
static void take_room(struct run *r)
{
	struct scene_place hog;
	struct proto_reserve_req q = { .n = (uint32_t)free_slots(r) - 3 * STAMPEDE_BLOCKS };
	struct proto_match_rep m;
	struct proto_reserve_rep rep;
	uint32_t tokens[4 * POOL];
	struct scene_prompt p;

	r->o.adapter = world_text("another");
	hog = scene_place(&r->w, 50, 1000, &r->o);
	r->o.adapter.n = 0;
	for (uint32_t i = 0; i < radix_array_size(tokens); i++)
		tokens[i] = i;
	p = scene_tokens(&hog, tokens, 4 * q.n);
	scene_match(&hog, &p, &m);
	q.lease = m.lease;
	world_check(&r->w, world_reserve(hog.c, &q, &rep) == PROTO_STATUS_OK && rep.n == q.n);
	recount(r);
}

/* All that is stored is found by a bystander, and is what it should be. */
static void check_end(struct run *r)
{
	for (uint32_t i = 0; i < r->config.n; i++) {
		struct member *m = &r->v[i];

		if (!m->at.c)
			start(r, m, m->pid);
		if (m->f.used) {
			scene_release(&m->at, m->lease, NULL);
			over(m);
			settle(r);
		}
		step_ask(r, m);
		scene_release(&m->at, m->lease, NULL);
		over(m);
		settle(r);
	}
	r->result.n_ready = r->flight.n_ready;
	r->result.n_lead = r->flight.n_lead;
	r->result.n_deadline = r->flight.n_deadline;
	r->result.n_late = r->flight.n_late;
	check_life(r);
}

void stampede_run(const struct stampede_config *config, struct stampede_result *ret)
{
	static struct run r;
	struct world_config wc;

	memset(&r, 0, sizeof(r));
	r.config = *config;
	r.next_pid = 1000;
	world_config_init(&wc);
	wc.seed = config->seed;
	wc.engine.pool_blocks = POOL;
	wc.keep = config->faults & STAMPEDE_RESTART;
	if (config->faults & STAMPEDE_REVOKE)
		wc.engine.limits.lease_max_age_ns = AGE_S * (uint64_t)SECOND;
	ck_assert_int_eq(world_init(&r.w, &wc), 0);
	r.w.heap.quick = true;
	r.o = world_open_req("m");
	r.flight.ready = ready;
	r.flight.ctx = &r;
	r.flight.now = r.w.now_ns;
	r.flight.pending_ns = r.w.config.engine.limits.pending_ns;
	prompts(&r);
	for (uint32_t i = 0; i < config->n; i++)
		start(&r, &r.v[i], 100 + i);
	recount(&r);
	if (config->faults & STAMPEDE_ROOM)
		take_room(&r);
	while (!all_done(&r)) {
		struct member *m = someone(&r);

		if (below(&r, 1000) < config->per_mille) {
			struct member *poor = &r.v[below(&r, config->n)];

			if (poor->phase != DONE && fault(&r, poor)) {
				r.result.n_faults++;
				continue;
			}
		}
		if (m)
			step(&r, m);
		else
			idle(&r);
		if (m && config->faults & (STAMPEDE_STOP | STAMPEDE_REVOKE) && below(&r, 100) == 0)
			pass(&r, below(&r, SECOND));
	}
	check_end(&r);
	*ret = r.result;
	world_deinit(&r.w);
}
