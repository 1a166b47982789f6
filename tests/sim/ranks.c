/*
 * ranks.c - workers that are the ranks of one model: they make the calls of a common program, each
 * at its own time.
 *
 * What is kept of each decision is what the first rank was told by each call: every other one has
 * to be told the same.  A block may be found once the last rank has sent COMMIT for it, no sooner,
 * and holds, in each rank's piece of its slot, what that rank wrote.  When a rank ends before its
 * RELEASE nothing more is stored, and each rank keeps what it was told of until it lets go.
 */
#include "tests/sim/ranks.h"

#include <errno.h>
#include <stdlib.h>

#include "tests/sim/sim_internal.h"

enum {
	DECISIONS = 4, /* under way at once */
	CALLS = 5,
	RUNS = 48,
	EPOCH = 1 << 20 /* no other namespace comes so far */
};

#define JOIN_NS 10000000000ull

struct answer {
	bool known;
	int status;
	uint64_t lease, reuse;
	uint32_t first, n; /* place in the path, and blocks */
	uint32_t slots[UNIVERSE_MAX];
};

struct seat {
	bool came, over;
	uint32_t at;      /* calls made */
	uint32_t granted; /* blocks that it was told of, */
	uint32_t committed;
	uint64_t waits; /* seq of a RESERVE without a reply */
};

/* A request of the model: the same program for every rank. */
struct decision {
	uint64_t id; /* 0: not used */
	struct universe_prompt p;
	uint32_t n_keys, n_calls;
	uint32_t flags;
	struct {
		bool extends;
		uint32_t n;
	} calls[CALLS];
	struct answer match, answers[CALLS];
	bool broken, closed, lost;
	uint64_t lease, begun_ns;
	uint32_t n_path;
	uint32_t slots[UNIVERSE_MAX], at[UNIVERSE_MAX], n_slots; /* granted, in path order */
	struct seat seats[SIM_RANKS];
};

static struct decision live[DECISIONS];
static uint64_t n_decisions;

static uint32_t rank_of(const struct sim *s, const struct sim_session *se)
{
	return sim_session_idx(s, se) - SIM_SESSIONS;
}

static struct sim_session *session_of(struct sim *s, uint32_t rank)
{
	return &s->sessions[SIM_SESSIONS + rank];
}

/* ---- decisions ------------------------------------------------------------------------------- */

static void begin(struct sim *s, struct decision *d)
{
	uint32_t left;

	memset(d, 0, sizeof(*d));
	d->id = ++n_decisions;
	universe_prompt(&s->more, &d->p, 0);
	d->n_keys = 1 + sim_more_below(s, d->p.n);
	left = d->p.n - d->n_keys;
	d->flags = PROTO_MATCH_NO_TAIL | (sim_more(s, 400) ? PROTO_MATCH_PROMOTE : 0u);
	d->n_calls = sim_more_below(s, CALLS + 1);
	for (uint32_t i = 0; i < d->n_calls; i++) {
		d->calls[i].extends = sim_more(s, 300);
		d->calls[i].n = 1 + sim_more_below(s, 6);
		if (!d->calls[i].extends)
			continue;
		d->calls[i].n = sim_more_below(s, 1 + left);
		left -= d->calls[i].n;
	}
}

static uint32_t given(const struct decision *d, uint32_t calls)
{
	uint32_t n = d->n_keys;

	for (uint32_t i = 0; i < calls; i++)
		n += d->calls[i].extends ? d->calls[i].n : 0;
	return n;
}

/* Some rank holds it, or may still come and be told what the others were. */
static bool goes_on(const struct sim *s, const struct decision *d)
{
	bool missing = false;

	for (uint32_t i = 0; i < s->nature.n_ranks; i++) {
		if (d->seats[i].came && !d->seats[i].over)
			return true;
		missing |= !d->seats[i].came;
	}
	if (d->broken || d->lost)
		return false;
	return missing && (!d->begun_ns || s->w.now_ns < d->begun_ns + JOIN_NS);
}

static uint32_t slowest(const struct sim *s, const struct decision *d)
{
	uint32_t n = UINT32_MAX;

	for (uint32_t i = 0; i < s->nature.n_ranks; i++)
		n = radix_min_u32(n, d->seats[i].committed);
	return n;
}

static void check_same(struct sim *s, struct answer *first, const struct answer *a,
		       const char *what, uint32_t rank)
{
	if (!first->known) {
		*first = *a;
		first->known = true;
		return;
	}
	s->result->equal++;
	if (first->status != a->status || first->lease != a->lease || first->n != a->n ||
	    first->first != a->first || first->reuse != a->reuse ||
	    memcmp(first->slots, a->slots, a->n * sizeof(a->slots[0])) != 0)
		world_fail(&s->w, "rank %u was told something else by %s", rank, what);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* What rank `rank` writes for block j. */
static void piece(const struct decision *d, uint32_t rank, uint32_t j, uint8_t *out)
{
	sim_content(&d->p, EPOCH, j, UNIVERSE_BYTES, out);
	for (uint32_t i = 0; i < UNIVERSE_BYTES; i++)
		out[i] ^= (uint8_t)(0x11 * (rank + 1));
}

static struct sim_claim *claim(struct sim *s, const struct decision *d, uint32_t rank,
			       enum sim_use use, uint32_t j, uint32_t slot, uint64_t reuse)
{
	struct sim_claims *all = &s->procs[SIM_PROCS + rank].claims;
	struct sim_claim c = {
		.use = use,
		.session = SIM_SESSIONS + rank,
		.lease = d->lease,
		.reuse = reuse,
		.at = j,
		.group = s->ranks_group,
		.slot = slot,
		.offset = rank * UNIVERSE_BYTES,
		.len = UNIVERSE_BYTES,
	};

	if (use == SIM_READS) {
		c.path = sim_path(&d->p, EPOCH, j);
		piece(d, rank, j, c.bytes);
	} else {
		test_rng_fill(&s->more, c.bytes, c.len);
	}
	sim_claim(s, SIM_PROCS + rank, &c);
	return &all->v[all->n - 1];
}

/* The rank's device writes. */
static void fill(const struct sim_claim *c)
{
	memcpy((void *)(uintptr_t)c->memory, c->bytes, c->len);
}

static void claim_found(struct sim *s, const struct decision *d, uint32_t rank,
			const struct answer *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		(void)claim(s, d, rank, SIM_READS, a->first + i, a->slots[i], a->reuse);
}

static void claim_granted(struct sim *s, struct decision *d, uint32_t rank, const struct answer *a,
			  bool first)
{
	for (uint32_t i = 0; i < a->n; i++) {
		fill(claim(s, d, rank, SIM_WRITES, a->first + i, a->slots[i], a->reuse));
		if (!first)
			continue;
		d->slots[d->n_slots] = a->slots[i];
		d->at[d->n_slots++] = a->first + i;
	}
	d->seats[rank].granted += a->n;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct proto_span keys_of(const struct decision *d, uint32_t from, uint32_t n, uint8_t *buf)
{
	uint32_t len = universe_key_len(d->p.root);

	for (uint32_t i = 0; i < n; i++)
		memcpy(buf + i * len, d->p.keys[from + i], len);
	return (struct proto_span){ .p = buf, .n = n * len };
}

/* True: what came is what comes when the daemon, the decision or the device is over. */
static bool over(struct sim *s, struct decision *d, uint32_t rank, int status)
{
	struct seat *seat = &d->seats[rank];

	if (sim_over(s, session_of(s, rank), NULL, status))
		return true;
	if (d->lost) { /* it is told once */
		world_check(&s->w, status == PROTO_STATUS_DEVICE_LOST);
		seat->over = true;
		return true;
	}
	if (d->broken)
		world_check(&s->w, status == PROTO_STATUS_REVOKED);
	return d->broken;
}

static void match(struct sim *s, struct decision *d, uint32_t rank)
{
	struct sim_session *se = session_of(s, rank);
	struct proto_match_req m = {
		.has = PROTO_HAS_ALL,
		.ns = se->ns[0],
		.flags = d->flags,
		.n_tokens = d->n_keys * UNIVERSE_BT,
	};
	bool first = !d->match.known;
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	uint32_t may = 0, found;
	struct answer a = { 0 };
	struct proto_match_rep rep;

	memcpy(m.decision_id.b, &d->id, sizeof(d->id));
	m.decision_id.b[15] = 1;
	m.keys = keys_of(d, 0, d->n_keys, keys);
	a.status = world_match(se->c, &m, &rep);
	if (sim_over(s, se, NULL, a.status)) {
		if (first) /* its id is spent */
			d->id = 0;
		return;
	}
	if (a.status == PROTO_STATUS_LIMIT && sim_proc_of(s, se)->n_closed) {
		if (first)
			d->id = 0;
		sim_quiesce(s, se, s->life);
		return;
	}
	if (d->broken) {
		world_check(&s->w, a.status != PROTO_STATUS_OK);
		return;
	}
	world_check(&s->w, a.status == PROTO_STATUS_OK);
	a.lease = rep.lease;
	a.n = rep.n_device;
	a.reuse = rep.reuse;
	for (uint32_t i = 0; i < a.n; i++)
		a.slots[i] = sim_slot_of(s, rep.runs, i);
	check_same(s, &d->match, &a, "MATCH", rank);
	d->lease = rep.lease;
	d->seats[rank].came = true;
	if (first) {
		d->begun_ns = s->w.now_ns;
		d->n_path = a.n;
		found = a.n + rep.n_host + rep.n_redis;
		while (may < d->n_keys && oracle_may(&s->oracle, sim_path(&d->p, EPOCH, may)))
			may++;
		if (found > may)
			world_fail(&s->w,
				   "%u blocks are found, only %u were committed by all ranks",
				   found, may);
		if (a.n < sim_held(s, &d->p, EPOCH, d->n_keys, 0, false))
			world_fail(&s->w, "%u blocks are on the device, more are held there", a.n);
	}
	claim_found(s, d, rank, &a);
}

static void extend(struct sim *s, struct decision *d, uint32_t rank)
{
	struct seat *seat = &d->seats[rank];
	uint32_t i = seat->at, from = given(d, i);
	struct proto_extend_req m = { .lease = d->lease };
	uint8_t keys[UNIVERSE_MAX * MODEL_KEY];
	bool known = d->answers[i].known;
	struct answer a = { .first = known ? d->answers[i].first : d->n_path };
	struct proto_match_rep rep;

	m.keys = keys_of(d, from, d->calls[i].n, keys);
	m.n_tokens = d->calls[i].n ? (from + d->calls[i].n) * UNIVERSE_BT : 0;
	a.status = world_extend(session_of(s, rank)->c, &m, &rep);
	if (over(s, d, rank, a.status))
		return;
	if (!known && d->closed) {
		world_check(&s->w, a.status == PROTO_STATUS_WRONG_STATE);
		return;
	}
	if (a.status == PROTO_STATUS_OK) {
		a.n = rep.n_device;
		a.reuse = rep.reuse;
		for (uint32_t k = 0; k < a.n; k++)
			a.slots[k] = sim_slot_of(s, rep.runs, k);
	}
	check_same(s, &d->answers[i], &a, "EXTEND", rank);
	d->n_path += known ? 0 : a.n;
	claim_found(s, d, rank, &a);
	seat->at++;
}

static void reserved(struct sim *s, struct decision *d, uint32_t rank, int status,
		     const struct proto_reserve_rep *rep)
{
	struct seat *seat = &d->seats[rank];
	uint32_t i = seat->at;
	bool known = d->answers[i].known;
	struct answer a = { .status = status };

	/* It may have been granted before another rank left. */
	if (!(d->broken && !d->lost && status == PROTO_STATUS_OK) && over(s, d, rank, status))
		return;
	if (!known && d->closed && status == PROTO_STATUS_WRONG_STATE)
		return;
	if (status == PROTO_STATUS_OK) {
		a.first = rep->first;
		a.n = rep->n;
		a.reuse = rep->reuse;
		for (uint32_t k = 0; k < a.n; k++)
			a.slots[k] = sim_slot_of(s, rep->runs, k);
		if (!known && a.first + a.n > given(d, i))
			world_fail(&s->w, "more is reserved than was asked for");
	} else {
		world_check(&s->w,
			    status == PROTO_STATUS_BUSY || status == PROTO_STATUS_WRONG_STATE);
	}
	check_same(s, &d->answers[i], &a, "RESERVE", rank);
	claim_granted(s, d, rank, &a, !known);
	seat->at++;
}

static void reserve(struct sim *s, struct decision *d, uint32_t rank)
{
	struct sim_session *se = session_of(s, rank);
	struct proto_reserve_req m = { .lease = d->lease, .n = d->calls[d->seats[rank].at].n };
	struct proto_reserve_rep rep;
	int status = world_reserve(se->c, &m, &rep);

	if (status == -EINPROGRESS)
		d->seats[rank].waits = se->c->seq;
	else
		reserved(s, d, rank, status, &rep);
}

/* ---- COMMIT, RELEASE ------------------------------------------------------------------------- */

static struct sim_claim *own(struct sim *s, const struct decision *d, uint32_t rank, uint32_t b)
{
	struct sim_claims *all = &s->procs[SIM_PROCS + rank].claims;

	for (uint32_t i = 0; i < all->n; i++) {
		struct sim_claim *c = &all->v[i];

		if (c->life == s->life && c->lease == d->lease && c->slot == d->slots[b] &&
		    c->use != SIM_READS)
			return c;
	}
	world_fail(&s->w, "rank %u was not given slot %u", rank, d->slots[b]);
}

static void commit(struct sim *s, struct decision *d, uint32_t rank)
{
	struct seat *seat = &d->seats[rank];
	uint32_t left = seat->granted - seat->committed, before = slowest(s, d), all;
	struct proto_commit_req m = { .lease = d->lease };
	struct proto_commit_rep rep;
	int status;

	if (!left)
		return;
	m.n = 1 + sim_more_below(s, left);
	for (uint32_t b = seat->committed; b < seat->committed + m.n; b++) {
		struct sim_claim *c = own(s, d, rank, b);

		piece(d, rank, d->at[b], c->bytes);
		fill(c);
		c->use = SIM_KEEPS; /* until it is released, stored or not */
	}
	seat->committed += m.n;
	all = slowest(s, d);
	for (uint32_t b = before; b < all && !d->broken && !d->lost; b++)
		oracle_maybe(&s->oracle, sim_path(&d->p, EPOCH, d->at[b]), d->p.root);
	status = world_commit(session_of(s, rank)->c, &m, &rep);
	if (over(s, d, rank, status))
		return;
	world_check(&s->w, status == PROTO_STATUS_OK);
	if (rep.n_stored + rep.n_duplicate != all - before)
		world_fail(&s->w, "rank %u is told that it was the last for %u blocks, not %u",
			   rank, rep.n_stored + rep.n_duplicate, all - before);
	d->n_path += all - before;
	s->result->striped += rep.n_stored;
	for (uint32_t i = 0; i < m.n; i++) {
		uint32_t b = seat->committed - m.n + i, slot = sim_slot_of(s, rep.runs, i);

		if (slot == d->slots[b])
			continue;
		world_check(&s->w, b < all); /* else nobody was faster */
		(void)claim(s, d, rank, SIM_READS, d->at[b], slot, rep.reuse);
	}
}

static void release(struct sim *s, struct decision *d, uint32_t rank)
{
	struct proto_release_req m = { .lease = d->lease };
	struct proto_release_rep rep;
	bool lost = d->lost, waited = d->seats[rank].waits;
	struct proto_reserve_rep none;
	uint64_t seq = d->seats[rank].waits;
	int status = world_release(session_of(s, rank)->c, &m, &rep);

	sim_claims_end(s, SIM_PROCS + rank, s->life, d->lease);
	d->seats[rank].over = true;
	d->seats[rank].waits = 0;
	d->closed = true;
	if (waited && session_of(s, rank)->c)
		(void)world_reserve_reply(session_of(s, rank)->c, seq, &none);
	if (sim_over(s, session_of(s, rank), NULL, status))
		return;
	world_check(&s->w, status == (lost ? (int)PROTO_STATUS_DEVICE_LOST : PROTO_STATUS_OK));
}

/* ---- what comes unasked ---------------------------------------------------------------------- */

void sim_ranks_hear(struct sim *s)
{
	struct proto_reserve_rep rep;
	struct proto_event e;
	uint64_t seq;

	for (uint32_t r = 0; r < s->nature.n_ranks; r++) {
		struct world_client *c = session_of(s, r)->c;

		for (uint32_t i = 0; c && i < DECISIONS; i++) {
			struct seat *seat = &live[i].seats[r];
			int status;

			if (!live[i].id || !seat->waits)
				continue;
			status = world_reserve_reply(c, seat->waits, &rep);
			if (status == -EINPROGRESS)
				continue;
			seat->waits = 0;
			reserved(s, &live[i], r, status, &rep);
		}
		while (c && world_event(c, &seq, &e)) /* of loads */
			world_check(&s->w, e.state == PROTO_WAIT_LOADED ||
						   e.state == PROTO_WAIT_FAILED ||
						   e.state == PROTO_WAIT_DEADLINE);
	}
}

void sim_rank_left(struct sim *s, struct sim_session *se)
{
	uint32_t r = rank_of(s, se);

	for (uint32_t i = 0; i < DECISIONS; i++) {
		struct seat *seat = &live[i].seats[r];

		if (!live[i].id || !seat->came || seat->over)
			continue;
		live[i].broken = live[i].closed = true;
		seat->over = true;
		seat->waits = 0;
		s->result->broken++;
	}
}

void sim_ranks_gone(struct sim *s)
{
	(void)s;
	memset(live, 0, sizeof(live));
}

void sim_ranks_lost(struct sim *s)
{
	(void)s;
	for (uint32_t i = 0; i < DECISIONS; i++)
		live[i].lost = live[i].id && live[i].begun_ns;
}

void sim_ranks_told(struct sim *s)
{
	for (uint32_t i = 0; i < DECISIONS; i++) {
		for (uint32_t r = 0; r < s->nature.n_ranks; r++)
			if (live[i].lost && live[i].seats[r].waits)
				world_fail(&s->w, "rank %u waits for a device that is lost", r);
	}
}

/* ---- what they do ---------------------------------------------------------------------------- */

void sim_rank_open(struct sim *s, struct sim_session *se)
{
	uint32_t r = rank_of(s, se);
	struct sim_rank_pool *pool = &s->rank_pools[r];
	struct proto_open_rep rep;
	int status = sim_open(s, se->c, SIM_NS_RANKS + r, false, &rep);
	uint32_t life;

	if (sim_over(s, se, NULL, status))
		return;
	if (status == PROTO_STATUS_DEVICE_LOST && s->devices[s->ranks_group].lost)
		return;
	world_check(&s->w, status == PROTO_STATUS_OK && rep.n_ranks == s->nature.n_ranks);
	s->ranks_group = rep.group;
	se->mapped[0] = s->devices[rep.group].life;
	life = s->devices[rep.group].life;
	if (memcmp(&pool->name, &rep.pool, sizeof(rep.pool)) == 0 && pool->life != life)
		world_fail(&s->w, "rank %u has other memory, and its name still", r);
	pool->name = rep.pool;
	pool->life = life;
	se->ns[0] = rep.ns;
	se->opened[0] = true;
}

static void with_decision(struct sim *s, struct decision *d, uint32_t rank)
{
	struct seat *seat = &d->seats[rank];

	if (!seat->came) {
		if (!d->lost && !d->broken && !s->draining)
			match(s, d, rank);
		return;
	}
	if (seat->over)
		return;
	if (d->lost || (!seat->waits && seat->at == d->n_calls && sim_more(s, 400)) ||
	    sim_more(s, 10))
		release(s, d, rank);
	else if (seat->at < d->n_calls && !seat->waits && !s->draining && sim_more(s, 500))
		(d->calls[seat->at].extends ? extend : reserve)(s, d, rank);
	else
		commit(s, d, rank);
}

static void forget_over(const struct sim *s)
{
	for (uint32_t i = 0; i < DECISIONS; i++)
		if (live[i].id && !goes_on(s, &live[i]))
			live[i].id = 0;
}

static void act(struct sim *s)
{
	uint32_t r = sim_more_below(s, s->nature.n_ranks), dice = sim_more_below(s, 1000);
	struct decision *d = &live[sim_more_below(s, DECISIONS)];
	struct sim_session *se = session_of(s, r);
	struct sim_proc *p = sim_proc_of(s, se);

	forget_over(s);
	if (!p->alive) {
		sim_spawn(s, se->proc);
	} else if (!se->c) {
		sim_connect(s, se);
	} else if (!se->opened[0]) {
		sim_rank_open(s, se);
	} else if (dice < 2 && s->nature.kills_permille) {
		sim_kill(s, se->proc);
	} else if (dice < 4 && s->nature.kills_permille) {
		sim_close(s, se);
	} else if (dice < 20) {
		uint32_t life = s->life;

		for (uint32_t i = 0; i < p->claims.n; i++)
			life = radix_min_u32(life, p->claims.v[i].life);
		sim_quiesce(s, se, life);
	} else if (dice < 26 && s->ranks_group != RADIX_NONE &&
		   world_index(&s->w, s->ranks_group)) {
		s->evicts = true;
		world_evict(&s->w, s->ranks_group, sim_more_below(s, 6));
	} else if (d->id) {
		with_decision(s, d, r);
	} else if (!s->draining) {
		begin(s, d);
	}
}

void sim_ranks_act(struct sim *s)
{
	for (uint32_t i = 0; i < 3 && s->w.engine; i++) {
		act(s);
		if (s->w.engine)
			sim_hear(s);
	}
}
