/*
 * test_stripes_random.c - W ranks make the calls of a common program in any interleaving, while
 * ranks die, lose their sockets, come back, and other requests evict and store.
 *
 * The oracle is naive: of each decision it keeps what the first rank was told by each call, and for
 * each slot which decision may still write it.  Every rank has to be told the same; a slot is never
 * granted again while any rank of the decision that it was granted to has neither released it, nor
 * ended and seen its grace through; and a block is found only when all ranks have committed it.
 */
#include "tests/engine/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#define N_SLOTS     24
#define N_DECISIONS 6 /* under way at once */
#define N_CALLS     16
#define KEYS        8
#define PROMPTS     5
#define SECOND      1000000000ull

static struct world *const w = &ranks.w;

enum kind {
	RESERVE,
	EXTEND,
};

struct answer {
	bool known;
	int status;
	uint64_t lease, first, reuse;
	uint32_t n, n_runs;
	struct radix_run runs[KEYS + 4];
};

/* A request of the model: the same program for every rank. */
struct decision {
	uint64_t id; /* 0: not used */
	uint32_t prompt, n_keys;
	uint32_t n_calls; /* behind MATCH */
	struct {
		enum kind kind;
		uint32_t n;
	} calls[N_CALLS];
	struct answer match, answers[N_CALLS];
	bool broken, closed;
	uint64_t lease, begun_ns;
	uint32_t slots[N_SLOTS], n_slots; /* granted, in path order */
	struct {
		bool came, over;  /* over: released, or it ended */
		uint32_t at;      /* calls made */
		uint32_t granted; /* blocks that it was told of */
		uint32_t committed;
		uint64_t due_ns; /* it died: it may write until then; 0: it did not */
		bool dead;
		uint64_t life; /* of the rank's process */
	} ranks[RANKS_MAX];
};

static struct decision live[N_DECISIONS];
static uint32_t holders[N_SLOTS]; /* 1 + place in live[], of who may write it; 0: nobody */
static uint64_t lives[RANKS_MAX]; /* how often the rank's process was begun */
static uint64_t n_decisions, n_equal, n_stored, n_broken, n_replayed_late;
static uint64_t rng;

static uint32_t roll(uint32_t n)
{
	return (uint32_t)(test_rng(&rng) % n);
}

static bool may_write(const struct decision *d)
{
	for (uint32_t i = 0; i < ranks.n; i++)
		if (d->ranks[i].came &&
		    (!d->ranks[i].over || (d->ranks[i].due_ns > w->now_ns && d->ranks[i].dead)))
			return true;
	return false;
}

/* Some rank may still come, and be told what the others were. */
static bool held_open(const struct decision *d)
{
	if (d->begun_ns && w->now_ns >= d->begun_ns + 10 * SECOND)
		return false;
	for (uint32_t i = 0; i < ranks.n && !d->broken; i++)
		if (!d->ranks[i].came)
			return true;
	return false;
}

static void forget_if_over(struct decision *d)
{
	if (!d->id || may_write(d) || held_open(d))
		return;
	for (uint32_t i = 0; i < N_SLOTS; i++)
		if (holders[i] == 1 + (uint32_t)(d - live))
			holders[i] = 0;
	memset(d, 0, sizeof(*d));
}

/* ---- the program of a decision --------------------------------------------------------------- */

static void begin(struct decision *d)
{
	uint32_t left = KEYS;

	memset(d, 0, sizeof(*d));
	d->id = ++n_decisions;
	d->prompt = roll(PROMPTS);
	d->n_keys = 1 + roll(KEYS);
	d->n_calls = roll(5);
	left -= d->n_keys;
	for (uint32_t i = 0; i < d->n_calls; i++) {
		d->calls[i].kind = left && roll(3) == 0 ? EXTEND : RESERVE;
		d->calls[i].n = 1 + roll(4);
		if (d->calls[i].kind == EXTEND) {
			d->calls[i].n = 1 + roll(left);
			left -= d->calls[i].n;
		}
	}
}

static void check_same(struct answer *first, const struct answer *a, const char *what,
		       uint32_t rank)
{
	if (!first->known) {
		*first = *a;
		first->known = true;
		return;
	}
	n_equal++;
	if (first->status != a->status || first->lease != a->lease || first->n != a->n ||
	    first->first != a->first || first->reuse != a->reuse || first->n_runs != a->n_runs ||
	    memcmp(first->runs, a->runs, a->n_runs * sizeof(*a->runs)) != 0)
		world_fail(w, "rank %u was told something else by %s", rank, what);
}

static void runs_of(struct answer *a, struct proto_span runs)
{
	a->n_runs = runs.n;
	world_check(w, runs.n <= radix_array_size(a->runs));
	for (uint32_t i = 0; i < runs.n; i++)
		a->runs[i] = proto_run_at(runs, i);
}

static void grant(struct decision *d, const struct answer *a)
{
	for (uint32_t i = 0; i < a->n_runs; i++)
		for (uint32_t k = 0; k < a->runs[i].len; k++) {
			uint32_t slot = a->runs[i].start + k;

			if (holders[slot])
				world_fail(w,
					   "slot %u is granted to decision %llu and may be "
					   "written by another",
					   slot, (unsigned long long)d->id);
			holders[slot] = 1 + (uint32_t)(d - live);
			d->slots[d->n_slots++] = slot;
		}
}

static uint32_t first_token(const struct decision *d)
{
	return 1000 * (1 + d->prompt);
}

static void match(struct decision *d, uint32_t rank)
{
	struct proto_match_req m = ranks_match_req(&ranks.at[rank], d->id, first_token(d),
						   d->n_keys);
	struct answer a = { 0 };
	struct proto_match_rep rep;

	a.status = world_match(ranks.at[rank].c, &m, &rep);
	if (d->broken || d->ranks[rank].came) {
		world_check(w, a.status != PROTO_STATUS_OK);
		return;
	}
	world_check(w, a.status == PROTO_STATUS_OK);
	a.lease = rep.lease;
	a.n = rep.n_device;
	a.reuse = rep.reuse;
	runs_of(&a, rep.runs);
	check_same(&d->match, &a, "MATCH", rank);
	d->lease = rep.lease;
	if (!d->begun_ns)
		d->begun_ns = w->now_ns;
	d->ranks[rank].came = true;
	d->ranks[rank].life = lives[rank];
}

static void call(struct decision *d, uint32_t rank)
{
	uint32_t at = d->ranks[rank].at;
	struct proto_extend_req x = { .lease = d->lease };
	struct proto_reserve_req r = { .lease = d->lease, .n = d->calls[at].n };
	struct proto_match_req m;
	struct proto_match_rep xr;
	struct proto_reserve_rep rr;
	struct answer a = { 0 };
	bool known = d->answers[at].known;
	uint32_t given = d->n_keys;

	if (d->calls[at].kind == RESERVE) {
		a.status = world_reserve(ranks.at[rank].c, &r, &rr);
		if (a.status == PROTO_STATUS_OK) {
			a.n = rr.n;
			a.first = rr.first;
			a.reuse = rr.reuse;
			runs_of(&a, rr.runs);
		}
	} else {
		for (uint32_t i = 0; i < at; i++)
			given += d->calls[i].kind == EXTEND ? d->calls[i].n : 0;
		m = ranks_match_req(&ranks.at[rank], d->id, first_token(d) + 4 * given,
				    d->calls[at].n);
		x.keys = m.keys;
		x.n_tokens = 4ull * (given + d->calls[at].n);
		a.status = world_extend(ranks.at[rank].c, &x, &xr);
		if (a.status == PROTO_STATUS_OK) {
			a.n = xr.n_device;
			a.reuse = xr.reuse;
			runs_of(&a, xr.runs);
		}
	}
	if (d->broken) {
		world_check(w, a.status == PROTO_STATUS_REVOKED);
		return;
	}
	if (!known && d->closed) {
		world_check(w, a.status == PROTO_STATUS_WRONG_STATE);
		return;
	}
	check_same(&d->answers[at], &a, d->calls[at].kind == RESERVE ? "RESERVE" : "EXTEND", rank);
	if (d->calls[at].kind == RESERVE && a.status == PROTO_STATUS_OK) {
		if (!known)
			grant(d, &a);
		d->ranks[rank].granted += a.n;
	}
	d->ranks[rank].at++;
}

static uint32_t slowest(const struct decision *d)
{
	uint32_t n = UINT32_MAX;

	for (uint32_t i = 0; i < ranks.n; i++)
		n = radix_min_u32(n, d->ranks[i].committed);
	return n;
}

static void commit(struct decision *d, uint32_t rank)
{
	uint32_t left = d->ranks[rank].granted - d->ranks[rank].committed, n, before = slowest(d);
	uint32_t b = d->ranks[rank].committed;
	struct proto_commit_rep rep;
	int status;

	if (!left)
		return;
	n = 1 + roll(left);
	status = ranks_try_commit(rank, d->lease, n, &rep);
	if (d->broken) {
		world_check(w, status == PROTO_STATUS_REVOKED);
		return;
	}
	world_check(w, status == PROTO_STATUS_OK);
	d->ranks[rank].committed += n;
	world_check(w, rep.n_stored + rep.n_duplicate == slowest(d) - before);
	n_stored += rep.n_stored;
	for (uint32_t i = 0; i < rep.runs.n; i++)
		for (uint32_t k = 0; k < proto_run_at(rep.runs, i).len; k++, b++) {
			uint32_t slot = proto_run_at(rep.runs, i).start + k;

			world_check(w, b < slowest(d) || slot == d->slots[b]); /* else its own */
			/* Stored, it is everybody's, and may leave. */
			if (b < slowest(d) && slot == d->slots[b])
				holders[slot] = 0;
		}
	world_check(w, b == d->ranks[rank].committed);
}

static void release(struct decision *d, uint32_t rank)
{
	ranks_release(rank, d->lease);
	d->ranks[rank].over = true;
	d->closed = true;
}

static bool holds(const struct decision *d, uint32_t rank)
{
	return d->id && d->ranks[rank].came && !d->ranks[rank].over &&
	       d->ranks[rank].life == lives[rank];
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* The rank's process ends, at once or after its socket; another takes its place. */
static void end_rank(uint32_t rank, bool eof_first)
{
	struct world_client *c = ranks.at[rank].c;

	if (eof_first) {
		world_eof(c);
		for (uint32_t i = 0; i < N_DECISIONS; i++)
			if (holds(&live[i], rank))
				live[i].broken = live[i].closed = true;
		world_advance(w, roll(3) * SECOND / 4);
	}
	for (uint32_t i = 0; i < N_DECISIONS; i++) {
		if (!holds(&live[i], rank))
			continue;
		n_broken++;
		live[i].broken = live[i].closed = true;
		live[i].ranks[rank].over = live[i].ranks[rank].dead = true;
		live[i].ranks[rank].due_ns = w->now_ns + ranks.config.engine.grace_ns;
	}
	world_gone(c);
	lives[rank]++;
	ranks.at[rank] = ranks_worker((uint32_t)(1000 + 100 * lives[rank] + rank), rank);
}

static void step(void)
{
	struct decision *d = &live[roll(N_DECISIONS)];
	uint32_t rank = roll(ranks.n), what = roll(100);

	if (what == 0) {
		end_rank(rank, roll(2));
	} else if (what < 4) {
		world_advance(w, SECOND / 8);
	} else if (what < 6) {
		world_evict(w, 0, roll(4));
	} else if (!d->id) {
		begin(d);
	} else if (!d->ranks[rank].came) {
		n_replayed_late += d->closed && !d->broken;
		match(d, rank);
	} else if (holds(d, rank)) {
		if (d->ranks[rank].at < d->n_calls && roll(2))
			call(d, rank);
		else if (roll(3))
			commit(d, rank);
		else if (d->ranks[rank].at == d->n_calls || roll(8) == 0)
			release(d, rank);
	}
	for (uint32_t i = 0; i < N_DECISIONS; i++)
		forget_if_over(&live[i]);
}

static void run(uint64_t seed, uint32_t n, uint32_t n_steps)
{
	ranks_config();
	rng = seed;
	ranks.config.seed = seed;
	ranks.config.record = false;
	ranks.config.engine.pool_blocks = N_SLOTS;
	ranks.config.engine.grace_ns = seed % 2 ? SECOND : 0;
	memset(live, 0, sizeof(live));
	memset(holders, 0, sizeof(holders));
	memset(lives, 0, sizeof(lives));
	ranks_begin(n);
	for (uint32_t i = 0; i < n_steps; i++)
		step();
	world_deinit(w);
}

START_TEST(any_interleaving)
{
	static const uint32_t sizes[] = { 2, 3, 4, 16 };

	for (uint64_t seed = 1; seed <= 24; seed++)
		run(seed, sizes[seed % 4], 60000);
	ck_assert_uint_gt(n_equal, 50000);
	ck_assert_uint_gt(n_stored, 5000);
	ck_assert_uint_gt(n_broken, 1000);
	ck_assert_uint_gt(n_replayed_late, 100);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stripes-random");

	scene_case(s, "random", any_interleaving);
	return scene_main(s);
}
