/*
 * worker.c - the workers' processes and sockets: they begin, connect, let go, and die.
 *
 * A process keeps what it was leased until it says so: neither its socket's end nor the daemon's
 * ends its claims.
 */
#include <errno.h>

#include "tests/sim/sim_internal.h"

static const char windows[] = "0:14"; /* of the last four blocks */

/* A process number comes back now and then; what began at another time is another process. */
void sim_spawn(struct sim *s, uint32_t proc)
{
	struct sim_proc *p = &s->procs[proc];
	uint32_t uid = proc >= SIM_BLUE && proc < SIM_PROCS ? 2000 : 1000;
	bool again = p->peer.pid && sim_chance(s, 150);

	world_check(&s->w, !p->alive && p->claims.n == 0);
	p->peer = (struct prefixd_peer){
		.pid = again ? p->peer.pid : s->next_pid,
		.uid = uid,
		.gid = uid,
		.start_time = 1000 + s->op,
	};
	s->next_pid += !again;
	test_rng_fill(&s->rng, p->instance.b, sizeof(p->instance.b));
	p->alive = true;
	p->asleep = 0;
	p->n_closed = 0;
	p->copies = sim_chance(s, 200) && proc < SIM_PROCS;
	p->version = s->nature.old_versions && proc < SIM_PROCS && sim_more(s, 300) ? 2
										    : PROTO_VERSION;
}

static struct proto_open_req open_req(const struct sim *s, uint32_t ns, bool windowed)
{
	struct proto_open_req o = world_open_req(ns < SIM_NS_RANKS ? "m" : "ranks");

	if (ns >= SIM_NS_RANKS) {
		o.flags = PROTO_OPEN_STRIPE;
		o.tp_size = s->nature.n_ranks;
		o.tp_rank = ns - SIM_NS_RANKS;
		return o;
	}
	if (ns == 1)
		o.flags = PROTO_OPEN_EXTRA;
	if (ns == 2) {
		o.key_mode = PROTO_KEYS_DIGEST;
		o.digest_len = 16;
		o.seed_probe = world_text("seed");
	}
	o.block_bytes = sim_block_bytes(s, ns);
	o.layers = (uint32_t)o.block_bytes / UNIVERSE_BYTES;
	if (ns == s->nature.windows_ns) {
		o.windows = world_text(windows);
		o.flags |= windowed ? PROTO_OPEN_WINDOWS : 0u;
	}
	if (ns == s->nature.coded_ns) {
		o.layers = 1;
		o.head_dim = SIM_CODED_BYTES / (4 * UNIVERSE_BT); /* K and V, two bytes each */
		o.cold_codec = world_text(s->config.seed % 2 ? "fp8" : "int8");
	}
	return o;
}

int sim_open(struct sim *s, struct world_client *c, uint32_t ns, bool windowed,
	     struct proto_open_rep *ret)
{
	struct proto_open_req o = open_req(s, ns, windowed);
	int status = world_open(c, &o, ret);

	for (uint32_t i = 0; status == -EINPROGRESS; i++) {
		uint64_t due;

		if (c->n_replies)
			return world_open_reply(c, ret);
		if (s->w.config.hold_pools && s->w.n_wanted)
			sim_devices_mend(s); /* it may be another pool that is waited for */
		else if (s->nature.lost_permille && sim_more(s, 20))
			sim_device_lose_some(s);
		if (c->n_replies)
			return world_open_reply(c, ret);
		due = world_next_due(&s->w);
		if (due == UINT64_MAX || i > 10000)
			world_fail(&s->w, "an OPEN waits for nothing");
		world_advance(&s->w, due > s->w.now_ns ? due - s->w.now_ns : 0);
		if (!s->w.engine)
			return -ECONNRESET;
	}
	return status;
}

void sim_open_rest(struct sim *s, struct sim_session *se)
{
	for (uint32_t k = 0; k < UNIVERSE_NS; k++) {
		struct proto_open_rep rep;
		int status;

		if ((se->proc >= SIM_BLUE && k != 1) || se->opened[k])
			continue;
		status = sim_open(s, se->c, k, k == s->nature.windows_ns && sim_more(s, 700), &rep);
		if (sim_over(s, se, NULL, status))
			return;
		if (sim_device_refused(s, se, k, status))
			continue;
		world_check(&s->w, status == PROTO_STATUS_OK);
		for (uint32_t i = 0; i < UNIVERSE_NS; i++) /* the number may have been another's */
			se->ns[i] = se->ns[i] == rep.ns ? RADIX_NONE : se->ns[i];
		se->ns[k] = rep.ns;
		s->ns_group[k] = rep.group;
		sim_device_mapped(s, se, k, &rep);
	}
}

/* Which earlier life of the daemon the process still has something of; 0: none. */
static uint32_t old_life(const struct sim_proc *p, uint32_t now)
{
	for (uint32_t i = 0; i < p->claims.n; i++)
		if (p->claims.v[i].life < now)
			return p->claims.v[i].life;
	return 0;
}

void sim_connect(struct sim *s, struct sim_session *se)
{
	struct sim_proc *p = sim_proc_of(s, se);
	struct proto_hello_req req;
	struct proto_hello_rep rep;
	uint32_t life;
	int status;

	memset(se->leases, 0, sizeof(se->leases));
	memset(se->opened, 0, sizeof(se->opened));
	s->evicts = false;
	se->c = world_connect_as(&s->w, &p->peer, &p->instance);
	req = world_hello_req(se->c);
	req.flags = p->copies ? PROTO_HELLO_COPIES : 0;
	req.version_max = p->version;
	status = world_hello(se->c, &req, &rep);
	if (sim_over(s, se, NULL, status)) {
		se->c = NULL;
		return;
	}
	world_check(&s->w, status == PROTO_STATUS_OK);
	for (life = old_life(p, s->life); life && s->w.engine && sim_chance(s, 300);
	     life = old_life(p, s->life))
		sim_quiesce(s, se, life);
	if (s->w.engine && sim_session_idx(s, se) >= SIM_SESSIONS)
		sim_rank_open(s, se);
	else if (s->w.engine)
		sim_open_rest(s, se);
}

/* Nobody can be asked about it any more; what the process holds of it stays the process' own. */
void sim_session_over(struct sim *s, struct sim_session *se)
{
	struct sim_claims *all = &sim_proc_of(s, se)->claims;

	for (uint32_t i = 0; i < all->n; i++)
		if (all->v[i].session == sim_session_idx(s, se))
			all->v[i].session = RADIX_NONE;
	for (uint32_t i = 0; i < SIM_LEASES; i++)
		s->result->orphaned += se->leases[i].used;
	if (sim_session_idx(s, se) >= SIM_SESSIONS)
		sim_rank_left(s, se);
	memset(se->leases, 0, sizeof(se->leases));
	if (se->c)
		se->c->n_events = 0; /* nobody is told any more */
	se->c = NULL;
}

/* A process that left too much behind says QUIESCED first. */
void sim_close(struct sim *s, struct sim_session *se)
{
	struct sim_proc *p = sim_proc_of(s, se);
	struct world_client *c = se->c;

	if (p->n_closed >= 2)
		return;
	world_eof(c);
	p->n_closed += c->used;
	sim_session_over(s, se);
}

void sim_quiesce(struct sim *s, struct sim_session *se, uint32_t life)
{
	struct sim_proc *p = sim_proc_of(s, se);
	struct proto_quiesced_req q = { .instance = se->c->instance, .old_boot = s->boots[life] };
	struct proto_quiesced_rep rep;
	uint32_t me = sim_session_idx(s, se);
	int status;

	/* It is said now: whether it is heard is not the worker's concern. */
	for (uint32_t i = 0; i < p->claims.n;) {
		const struct sim_claim *c = &p->claims.v[i];

		if (c->life == life &&
		    (c->session == RADIX_NONE || (c->session == me && c->revoked)))
			p->claims.v[i] = p->claims.v[--p->claims.n];
		else
			i++;
	}
	if (life == s->life)
		p->n_closed = 0;
	status = world_quiesced(se->c, &q, &rep);
	world_check(&s->w, sim_over(s, se, NULL, status) || status == PROTO_STATUS_OK);
}

/* Its sockets end first or last, or not at all: a child of the process may hold them. */
void sim_kill(struct sim *s, uint32_t proc)
{
	struct sim_proc *p = &s->procs[proc];

	if (!p->alive)
		return;
	p->alive = false;
	sim_ghosts_rise(s, proc);
	p->claims.n = 0;
	for (uint32_t i = 0; i < SIM_ALL_SESSIONS; i++)
		if (s->sessions[i].proc == proc && s->sessions[i].c)
			sim_session_over(s, &s->sessions[i]);
	world_kill_as(&s->w, p->peer.pid, p->peer.start_time);
}

/* ---- the crowd ------------------------------------------------------------------------------- */

static const struct prefixd_peer crowd = { .pid = 50, .uid = 1000, .gid = 1000, .start_time = 1 };

void sim_crowd(struct sim *s)
{
	enum {
		NS = 20,
		LEASES = 140
	};
	const struct proto_id instance = { { 50 } };
	struct world_client *c = world_connect_as(&s->w, &crowd, &instance);
	struct proto_hello_req hello = world_hello_req(c);
	struct proto_hello_rep welcome;
	uint32_t ns[NS];

	world_check(&s->w, world_hello(c, &hello, &welcome) == PROTO_STATUS_OK);
	for (uint32_t i = 0; i < NS; i++) {
		const char name[] = { 'a' + (char)i, '\0' };
		struct proto_open_req m = world_open_req(name);
		struct proto_open_rep rep;

		world_check(&s->w, world_open(c, &m, &rep) == PROTO_STATUS_OK);
		ns[i] = rep.ns;
	}
	for (uint32_t i = 0; i < LEASES; i++) {
		const char salt[] = { 'a' + (char)(i / NS), '\0' };
		struct proto_match_req m = { .has = PROTO_HAS_ALL, .ns = ns[i % NS] };
		struct proto_match_rep rep;

		m.salt = world_text(salt);
		world_check(&s->w, world_match(c, &m, &rep) == PROTO_STATUS_OK);
	}
}

void sim_crowd_leaves(struct sim *s)
{
	world_kill_as(&s->w, crowd.pid, crowd.start_time);
}
