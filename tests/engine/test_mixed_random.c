/*
 * test_mixed_random.c - ranks, windows, codecs, desks, tiers, lost devices and restarts, in any
 * mixture and any order.
 *
 * After each step the engine's invariants hold.  Every block that a MATCH or EXTEND names has the
 * bytes of its key, or, where there is a codec and exact ones were not asked for, what it makes of
 * them.  When everybody has gone nothing is held.  What a call is answered with is not judged
 * here: any status may be right.  In some runs there is no memory now and then.
 *
 * Seeds are fixed; one run of each kind takes a fresh one.  PREFIXD_SEED=N repeats it.
 */
#include "tests/engine/scene.h"

#include <stdlib.h>
#include <time.h>

enum {
	BT = 4,
	BYTES = 2048,
	CODED = 0x80,
	SESSIONS = 4,
	HELD = 24,
	PROMPTS = 10,
	KEYS = 14,
	STEPS = 12000,
};

#define MS     1000000ull
#define SECOND 1000000000ull

struct kind {
	bool stripes, codec, windows, staged, keep;
	uint32_t n_host;
	bool redis;
	enum prefixd_write_policy write;
	bool digests; /* and islands */
};

static const struct kind kinds[] = {
	{ true, true, false, false, false, 16, true, PREFIXD_WRITE_BACK },
	{ true, false, false, false, true, 16, false, PREFIXD_WRITE_THROUGH },
	{ true, true, false, false, true, 12, true, PREFIXD_WRITE_THROUGH },
	{ false, true, true, false, true, 16, true, PREFIXD_WRITE_THROUGH },
	{ false, false, true, false, true, 12, false, PREFIXD_WRITE_SECOND_USE },
	{ false, true, true, true, true, 16, true, PREFIXD_WRITE_THROUGH },
	{ false, true, false, true, false, 0, true, PREFIXD_WRITE_BACK },
	{ false, false, true, true, true, 0, false, PREFIXD_WRITE_BACK },
	{ true, true, false, false, true, 12, true, PREFIXD_WRITE_THROUGH, true },
	{ false, true, true, false, true, 12, true, PREFIXD_WRITE_THROUGH, true },
	{ false, true, true, true, true, 0, true, PREFIXD_WRITE_BACK, true },
};

struct session {
	struct scene_place at;
	uint32_t pid;
	uint32_t n_later; /* RESERVEs that wait */
};

/* What one session, or one rank, knows of a lease. */
struct held {
	bool used, exact, dead; /* dead: what it names is not to be written any more */
	uint32_t s, prompt, n_keys, n_path;
	uint64_t lease, later; /* later: the seq of its RESERVE that waits */
	uint32_t n_calls;      /* that a rank has made */
	uint32_t slots[64], n_slots;
};

static struct world w;
static struct world_config config;
static const struct kind *kind;
static struct session sessions[SESSIONS];
static struct held held[HELD];
static struct proto_id old_boot;
static uint64_t rng, seed, n_decisions;
static uint32_t next_pid;
static bool is_lost;
static struct {
	uint64_t blocks, changed, hidden, losses, lives, granted;
} seen;

static uint32_t roll(uint32_t n)
{
	return (uint32_t)(test_rng(&rng) % n);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static uint32_t value_of(uint32_t prompt, uint32_t i)
{
	return 100 * (i < 5 ? prompt / 4 : 20 + prompt) + i;
}

static uint8_t fill_of(uint32_t prompt, uint32_t i)
{
	return (uint8_t)(1 + value_of(prompt, i) * 7 % 120);
}

static struct proto_span keys_of(uint32_t prompt, uint32_t from, uint32_t n)
{
	static uint32_t keys[KEYS * BT];

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < BT; k++)
			keys[i * BT + k] = 10 * value_of(prompt, from + i) + k;
	return (struct proto_span){ keys, n * BT * 4 };
}

/* ---- sessions -------------------------------------------------------------------------------- */

static struct proto_open_req open_of(uint32_t s)
{
	struct proto_open_req o = world_open_req("m");

	o.layers = 2;
	o.head_dim = 64;
	o.block_bytes = BYTES;
	if (kind->codec)
		o.cold_codec = world_text("fp8");
	if (kind->digests) {
		o.key_mode = PROTO_KEYS_DIGEST;
		o.digest_len = BT * 4;
		o.seed_probe = world_text("seed");
	}
	if (kind->windows) {
		o.windows = world_text("0-1:12"); /* three blocks */
		o.flags |= s ? PROTO_OPEN_WINDOWS : 0;
	}
	if (kind->stripes) {
		o.flags |= PROTO_OPEN_STRIPE;
		o.tp_size = SESSIONS;
		o.tp_rank = s;
	}
	return o;
}

static void forget_session(uint32_t s)
{
	for (uint32_t i = 0; i < HELD; i++)
		if (held[i].used && held[i].s == s)
			held[i].used = false;
	sessions[s].n_later = 0;
}

/* Under its old process, if that lives; `pid` 0: another one. */
static void join(uint32_t s, uint32_t pid)
{
	struct world_client *c;
	struct proto_hello_req m;
	struct proto_hello_rep rep;
	struct proto_open_req o = open_of(s);

	forget_session(s);
	sessions[s].pid = pid ? pid : ++next_pid;
	c = world_connect(&w, sessions[s].pid, 1000, false);
	m = world_hello_req(c);
	m.flags = kind->stripes || s % 2 ? PROTO_HELLO_COPIES : 0;
	world_check(&w, world_hello(c, &m, &rep) == PROTO_STATUS_OK);
	sessions[s].at = (struct scene_place){ .c = c };
	(void)world_open(c, &o, &sessions[s].at.ns);
}

static void reopen(uint32_t s)
{
	struct proto_open_req o = open_of(s);

	(void)world_open(sessions[s].at.c, &o, &sessions[s].at.ns);
}

static void leave(uint32_t s)
{
	uint32_t pid = sessions[s].pid, how = roll(3);

	if (how) {
		world_eof(sessions[s].at.c);
		world_advance(&w, roll(3) * 300 * MS);
	}
	if (how < 2)
		world_kill(&w, pid);
	join(s, how < 2 ? 0 : pid);
}

static void quiesced(uint32_t s)
{
	struct world_client *c = sessions[s].at.c;
	struct proto_quiesced_req m = { .instance = c->instance, .old_boot = old_boot };
	struct proto_quiesced_rep rep;

	(void)world_quiesced(c, &m, &rep);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static void look_at(struct held *h, struct proto_span runs)
{
	uint8_t block[BYTES];

	for (uint32_t r = 0; r < runs.n; r++) {
		struct radix_run run = proto_run_at(runs, r);

		for (uint32_t k = 0; k < run.len; k++, h->n_path++) {
			uint8_t want = fill_of(h->prompt, h->n_path);

			if (run.start == PROTO_SLOT_NONE) {
				seen.hidden++;
				continue;
			}
			world_read(&w, 0, run.start + k, block, BYTES);
			for (uint32_t b = 1; b < BYTES; b++)
				world_check(&w, block[b] == block[0]);
			world_check(&w, block[0] == want || (kind->codec && !h->exact &&
							     block[0] == (want | CODED)));
			seen.blocks++;
			seen.changed += block[0] != want;
		}
	}
}

/* Of ranks, those that ask with one id ask for the same, as a rule. */
static void match(uint32_t s)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL, .ns = sessions[s].at.ns.ns };
	uint64_t id = n_decisions - roll(3), mix = (id + 1) * 0x9e3779b97f4a7c15u ^ seed;
	struct proto_match_rep rep;
	struct held *h = NULL;

	for (uint32_t i = 0; i < HELD; i++)
		h = held[i].used ? h : &held[i];
	if (!h)
		return;
	if (!kind->stripes || roll(20) == 0)
		mix = test_rng(&rng);
	n_decisions += roll(kind->stripes ? 8 : 6) == 0;
	*h = (struct held){ .s = s, .prompt = (uint32_t)(mix % PROMPTS) };
	h->n_keys = 1 + (uint32_t)(mix >> 8) % KEYS;
	m.flags = (uint32_t)(mix >> 16) & (PROTO_MATCH_PROMOTE | PROTO_MATCH_LEAD);
	if ((mix >> 24) % 4 == 0)
		m.flags |= PROTO_MATCH_EXACT;
	if (kind->digests && (mix >> 28) % 4 == 0)
		m.flags |= PROTO_MATCH_ISLAND;
	h->exact = m.flags & PROTO_MATCH_EXACT;
	m.n_tokens = (uint64_t)h->n_keys * BT;
	m.keys = keys_of(h->prompt, 0, h->n_keys);
	if (kind->stripes)
		memcpy(m.decision_id.b, &(uint64_t[2]){ id, seed | 1 }, 16);
	if (world_match(sessions[s].at.c, &m, &rep) != PROTO_STATUS_OK)
		return;
	h->used = true;
	h->lease = rep.lease;
	look_at(h, rep.runs);
}

static void granted(struct held *h, int status, const struct proto_reserve_rep *rep)
{
	if (status != PROTO_STATUS_OK)
		return;
	for (uint32_t r = 0; r < rep->runs.n; r++)
		for (uint32_t k = 0; k < proto_run_at(rep->runs, r).len; k++) {
			world_check(&w, h->n_slots < radix_array_size(h->slots));
			h->slots[h->n_slots++] = proto_run_at(rep->runs, r).start + k;
			seen.granted++;
		}
}

static void reserve(struct held *h)
{
	struct session *s = &sessions[h->s];
	struct proto_reserve_req m = { .lease = h->lease, .n = 1 + roll(6) };
	struct proto_reserve_rep rep;
	int status;

	if (s->n_later == 4)
		return;
	if (kind->stripes)
		m.n = 1 + (uint32_t)(h->lease % 5);
	m.deadline_us = 20000;
	status = world_reserve(s->at.c, &m, &rep);
	if (status == -EINPROGRESS) {
		s->n_later++;
		h->later = s->at.c->seq;
		return;
	}
	granted(h, status, &rep);
}

/* Replies that came meanwhile. */
static void replies(void)
{
	for (uint32_t i = 0; i < HELD; i++) {
		struct held *h = &held[i];
		struct proto_reserve_rep rep;
		int status;

		if (!h->used || !h->later)
			continue;
		status = world_reserve_reply(sessions[h->s].at.c, h->later, &rep);
		if (status == -EINPROGRESS)
			continue;
		h->later = 0;
		sessions[h->s].n_later--;
		granted(h, status, &rep);
	}
	for (uint32_t s = 0; s < SESSIONS; s++) {
		struct proto_event event;
		uint64_t seq;

		while (world_event(sessions[s].at.c, &seq, &event))
			continue;
	}
}

static void commit(struct held *h)
{
	struct session *s = &sessions[h->s];
	uint32_t n = h->n_slots ? 1 + roll(h->n_slots) : 0;
	struct proto_commit_req m = { .lease = h->lease, .n = n };
	uint8_t block[BYTES], sums[64][16];
	struct proto_commit_rep rep;

	if (!n || h->dead || h->later)
		return;
	for (uint32_t i = 0; i < n; i++) {
		memset(block, fill_of(h->prompt, h->n_path + i), BYTES);
		world_sum(block, BYTES, sums[i]);
		if (s->at.ns.n_write)
			world_desk_write(s->at.c, h->slots[i], block, BYTES);
		else
			world_write(&w, 0, h->slots[i], block, BYTES);
	}
	if (roll(3)) {
		m.checksum_kind = PROTO_CHECKSUM_XXH3_128;
		m.checksums = (struct proto_span){ sums, 16 * n };
	}
	if (world_commit(s->at.c, &m, &rep) != PROTO_STATUS_OK) {
		h->dead = true; /* how many of them were taken is not asked */
		return;
	}
	memmove(h->slots, h->slots + n, (h->n_slots - n) * sizeof(h->slots[0]));
	h->n_slots -= n;
	h->n_path += n;
}

static void extend(struct held *h)
{
	uint32_t n = kind->stripes ? (uint32_t)(h->lease >> 3) % 3 : roll(3);
	struct proto_extend_req m = { .lease = h->lease };
	struct proto_match_rep rep;

	n = radix_min_u32(n, KEYS - h->n_keys);
	m.keys = keys_of(h->prompt, h->n_keys, n);
	m.n_tokens = (uint64_t)(h->n_keys + n) * BT;
	m.flags = h->lease & 1 ? PROTO_MATCH_PROMOTE : 0;
	if (h->dead || h->later || world_extend(sessions[h->s].at.c, &m, &rep) != PROTO_STATUS_OK)
		return;
	h->n_keys += n;
	if (!h->n_slots)
		look_at(h, rep.runs);
}

static void wait(const struct held *h)
{
	struct proto_wait_req m = { .lease = h->lease, .deadline_us = 30000 };
	struct proto_wait_rep rep;

	(void)world_wait(sessions[h->s].at.c, &m, &rep);
}

static void release(struct held *h)
{
	struct proto_release_req m = { .lease = h->lease };
	struct proto_release_rep rep;

	if (h->later)
		sessions[h->s].n_later--;
	h->used = false;
	(void)world_release(sessions[h->s].at.c, &m, &rep);
	if (h->later) /* it is answered by the way */
		(void)world_reserve_reply(sessions[h->s].at.c, h->later,
					  &(struct proto_reserve_rep){ 0 });
}

static void prefetch(uint32_t s)
{
	struct proto_prefetch_req m = { .has = PROTO_HAS_ALL, .ns = sessions[s].at.ns.ns };
	struct proto_prefetch_rep rep;

	m.n_tokens = KEYS * BT;
	m.keys = keys_of(roll(PROMPTS), 0, KEYS);
	(void)world_prefetch(sessions[s].at.c, &m, &rep);
}

/* All ranks make the same calls in the same order, as a rule. */
static void call(struct held *h)
{
	uint64_t mix = (h->lease + 1 + h->n_calls++) * 0x9e3779b97f4a7c15u >> 32;

	switch (mix % 4) {
	case 0:
		extend(h);
		break;
	case 1:
		wait(h);
		break;
	default:
		reserve(h);
	}
}

static void use_rank(struct held *h)
{
	if (h->n_calls < 2 + h->lease % 4)
		call(h);
	else if (h->n_slots && !h->dead)
		commit(h);
	else
		release(h);
}

static void use(struct held *h)
{
	if (kind->stripes && roll(20)) {
		use_rank(h);
		return;
	}
	switch (roll(9)) {
	case 0:
	case 1:
		reserve(h);
		break;
	case 2:
	case 3:
	case 4:
		commit(h);
		break;
	case 5:
		extend(h);
		break;
	case 6:
		wait(h);
		break;
	default:
		release(h);
	}
}

/* ---- what befalls all ------------------------------------------------------------------------ */

static void device_is_back(void)
{
	if (!is_lost)
		return;
	is_lost = false;
	world_run_until_idle(&w);
	w.config.hold_pools = false;
	world_pool_answer(&w, true);
	world_advance(&w, 61 * SECOND);
	for (uint32_t s = 0; s < SESSIONS; s++)
		reopen(s);
}

static void lose_device(void)
{
	if (is_lost)
		return;
	is_lost = w.config.hold_pools = true;
	seen.losses++;
	for (uint32_t i = 0; i < HELD; i++)
		held[i].dead = true;
	world_pool_lost(&w, 0);
	if (roll(4) == 0) { /* no memory at first */
		world_run_until_idle(&w);
		world_pool_answer(&w, false);
	}
}

/*
 * The daemon is killed, or stops, maybe while there is no device; some workers die with it, others
 * say QUIESCED sooner or later.
 */
static void next_life(void)
{
	if (roll(2))
		device_is_back();
	old_boot = w.config.engine.boot;
	seen.lives++;
	if (roll(2))
		world_life_kill(&w);
	else
		world_life_stop(&w, roll(3) * 200 * MS);
	is_lost = w.config.hold_pools = false;
	for (uint32_t s = 0; s < SESSIONS; s++)
		if (roll(2)) {
			world_kill(&w, sessions[s].pid);
			sessions[s].pid = 0;
		}
	world_check(&w, world_life_restart(&w) == 0);
	for (uint32_t s = 0; s < SESSIONS; s++)
		join(s, sessions[s].pid);
	world_advance(&w, SECOND); /* what was kept may have to be compared first */
	for (uint32_t s = 0; s < SESSIONS; s++) {
		reopen(s);
		if (roll(2))
			quiesced(s);
	}
}

static void befall(void)
{
	switch (roll(40)) {
	case 0:
		lose_device();
		break;
	case 1:
	case 2:
	case 3:
		device_is_back();
		break;
	case 4:
		if (kind->keep && roll(3) == 0)
			next_life();
		break;
	case 5:
		(void)world_evict(&w, 0, roll(6));
		break;
	case 6:
		if (roll(4) == 0)
			world_invalidate(&w, sessions[0].at.ns.ns);
		break;
	case 7:
		if (kind->redis)
			world_redis_up(&w, roll(3) > 0);
		break;
	case 8:
		leave(roll(SESSIONS));
		break;
	case 10:
		quiesced(roll(SESSIONS));
		break;
	case 11:
		world_advance(&w, 700 * MS);
		break;
	case 12:
		world_run_until_idle(&w);
		break;
	case 13:
		(void)world_flush(&w, sessions[0].at.ns.ns);
		break;
	default:
		world_advance(&w, roll(4) * 20000);
	}
}

/* A worker's request, for which there may be no memory. */
static void ask(struct held *h, bool ahead)
{
	if (seed % 5 == 4 && roll(10) == 0)
		test_heap_fail_at(&w.heap, 1 + roll(8));
	if (ahead)
		prefetch(roll(SESSIONS));
	else if (h->used)
		use(h);
	else
		match(kind->stripes ? (uint32_t)(h - held) % SESSIONS : roll(SESSIONS));
	test_heap_fail_at(&w.heap, 0);
}

static void step(void)
{
	uint32_t what = roll(kind->stripes ? 40 : 10); /* ranks need some peace to meet */
	struct held *h = &held[roll(HELD)];

	replies();
	if (roll(4) == 0)
		world_advance(&w, roll(3) * 40000);
	if (what < 2)
		befall();
	else
		ask(h, what == 2 && roll(4) == 0);
}

static void end(void)
{
	struct radix_stats st;

	if (kind->redis)
		world_redis_up(&w, true);
	device_is_back();
	for (uint32_t s = 0; s < SESSIONS; s++)
		world_kill(&w, sessions[s].pid);
	for (uint32_t pid = 1; pid <= next_pid; pid++)
		world_kill(&w, pid);
	world_run_until_idle(&w);
	world_advance(&w, 20 * SECOND);
	world_run_until_idle(&w);
	world_stats(&w, 0, &st);
	world_check(&w, st.n_pins == 0);
	world_check(&w, st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY] == st.n_slots);
	world_check(&w, st.host[RADIX_SLOT_FREE] + st.host[RADIX_SLOT_READY] == st.n_host);
	world_deinit(&w);
}

static void run(const struct kind *k, uint64_t with, uint32_t n)
{
	kind = k;
	seed = rng = with;
	memset(held, 0, sizeof(held));
	n_decisions = 10;
	next_pid = 100;
	is_lost = false;
	world_config_init(&config);
	config.seed = with;
	config.keep = k->keep;
	config.engine.pool_blocks = k->windows ? 14 : 24;
	config.engine.index_blocks = 32;
	config.engine.max_ranks = SESSIONS;
	config.engine.staged = k->staged;
	config.engine.write_blocks = 8;
	config.engine.write = k->write;
	config.engine.grace_ns = with % 2 ? SECOND : 0;
	config.engine.limits.reserve_ns = 20 * MS;
	config.engine.limits.pending_ns = 50 * MS;
	config.engine.limits.lease_max_age_ns = with % 3 ? 0 : 3 * SECOND;
	config.tiers.host_blocks = k->n_host;
	config.tiers.redis = k->redis;
	config.tiers.copy.latency_ns = 10000;
	config.tiers.remote.latency_ns = 100000;
	config.tiers.deadline_ns = 50 * MS;
	for (uint32_t i = 0; i < WORLD_N_FAULTS; i++)
		config.tiers.faults[i] = with % 4 == 3 ? 20 : 0;
	ck_assert_int_eq(world_init(&w, &config), 0);
	old_boot = w.config.engine.boot;
	for (uint32_t s = 0; s < SESSIONS; s++)
		join(s, 0);
	while (n--)
		step();
	end();
}

START_TEST(mixture)
{
	const struct kind *k = &kinds[_i];
	const char *env = getenv("PREFIXD_SEED");
	uint64_t fresh = env ? strtoull(env, NULL, 10) : (uint64_t)time(NULL) * 1000 + (uint64_t)_i;

	memset(&seen, 0, sizeof(seen));
	for (uint64_t i = 0; !env && i < 6; i++)
		run(k, 100 * (uint64_t)_i + i, STEPS);
	if (!env) {
		ck_assert_uint_gt(seen.blocks, 1000);
		ck_assert_uint_gt(seen.granted, 1000);
		ck_assert_uint_gt(seen.losses, 20);
		ck_assert(!k->keep || seen.lives > 10);
		ck_assert(!k->windows || seen.hidden > 100);
		ck_assert(!k->codec || seen.changed > 20);
	}
	run(k, fresh, STEPS);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mixed-random");
	TCase *tc = tcase_create("mixture");

	tcase_set_timeout(tc, 170);
	tcase_add_loop_test(tc, mixture, 0, (int)radix_array_size(kinds));
	suite_add_tcase(s, tc);
	return scene_main(s);
}
