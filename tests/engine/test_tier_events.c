/*
 * test_tier_events.c - T42 over three tiers: a subscriber knows where each block lies, while
 * blocks move down and up, vanish from Redis, are evicted, flushed and invalidated.
 *
 * The follower knows the engine by its events alone; what it knows is compared with the index.
 */
#include "daemon/engine_internal.h"
#include "tests/engine/scene.h"

#include <stdlib.h>

enum {
	BT = 4,
	MOST = 12, /* blocks of a prompt */
	KNOWN_MAX = 1024
};

static struct world w;

struct known {
	uint32_t ns;
	uint8_t root[16], id[PROTO_DIGEST_MAX];
	uint32_t id_len;
	uint8_t tier;
	uint32_t slot;
};

static struct {
	struct world_client *c;
	struct known v[KNOWN_MAX];
	uint32_t n;
	uint64_t last, kinds[PROTO_CHANGE_RESYNC + 1];
	uint64_t moved[3][3], removed[PROTO_REMOVAL_DROPPED + 1], stored[3];
} follower;

static struct known *find(uint32_t ns, const uint8_t *root, const void *id, uint32_t id_len)
{
	for (uint32_t i = 0; i < follower.n; i++) {
		struct known *k = &follower.v[i];

		if (k->ns == ns && k->id_len == id_len && memcmp(k->id, id, id_len) == 0 &&
		    memcmp(k->root, root, 16) == 0)
			return k;
	}
	return NULL;
}

static void forget(uint32_t ns)
{
	for (uint32_t i = 0; i < follower.n;)
		if (follower.v[i].ns == ns)
			follower.v[i] = follower.v[--follower.n];
		else
			i++;
}

static void on_stored(const struct proto_change *e, struct known *k)
{
	world_check(&w, follower.n < KNOWN_MAX);
	follower.stored[e->tier]++;
	if (!k) {
		k = &follower.v[follower.n++];
		*k = (struct known){ .ns = e->ns, .id_len = e->block.n };
		memcpy(k->root, e->root.b, 16);
		memcpy(k->id, e->block.p, e->block.n);
	}
	k->tier = e->tier;
	k->slot = e->slot;
}

static void on_moved(const struct proto_change *e, struct known *k)
{
	world_check(&w, k && k->tier == e->from_tier && e->tier != e->from_tier);
	follower.moved[e->from_tier][e->tier]++;
	k->tier = e->tier;
	k->slot = e->slot;
}

static void on_removed(const struct proto_change *e, struct known *k)
{
	world_check(&w, k && k->tier == e->tier && e->reason != PROTO_REMOVAL_NONE);
	follower.removed[e->reason]++;
	*k = follower.v[--follower.n];
}

static void learn(const struct proto_change *e)
{
	struct known *k = find(e->ns, e->root.b, e->block.p, e->block.n);

	world_check(&w, e->number > follower.last && e->kind < PROTO_CHANGE_RESYNC);
	follower.last = e->number;
	follower.kinds[e->kind]++;
	if (e->kind == PROTO_CHANGE_CLEARED) {
		forget(e->ns);
		return;
	}
	world_check(&w, e->tier <= PROTO_TIER_REDIS);
	world_check(&w, (e->slot == RADIX_NONE) == (e->tier != PROTO_TIER_DEVICE));
	world_check(&w, e->from_tier == 0 || e->kind == PROTO_CHANGE_MOVED);
	if (e->kind == PROTO_CHANGE_STORED)
		on_stored(e, k);
	else if (e->kind == PROTO_CHANGE_MOVED)
		on_moved(e, k);
	else
		on_removed(e, k);
}

static void listen_(void)
{
	struct proto_span rest;
	struct proto_change e;

	world_advance(&w, 3000000);
	rest = (struct proto_span){ follower.c->changes, follower.c->changes_len };
	while (proto_change_next(&rest, &e) == 0)
		learn(&e);
	world_check(&w, rest.n == 0);
	follower.c->changes_len = 0;
}

/* What the follower knows is what the index has, tier by tier. */
static void check(void)
{
	static struct radix_change records[KNOWN_MAX];
	struct radix_index *ix = world_index(&w, 0);
	uint64_t by_tier[RADIX_N_TIERS] = { 0 };
	struct radix_stats st;
	uint32_t n = 0;

	for (uint32_t i = 0; i < w.engine->roots.n; i++) {
		struct prefixd_root *r = radix_container_of(w.engine->roots.v[i],
							    struct prefixd_root, item);
		struct radix_log log = { .v = records, .cap = KNOWN_MAX };

		radix_log_members(ix, r->index_root, &log, 0);
		for (uint64_t k = 1; k <= log.n; k++) {
			const struct radix_change *c = radix_log_at(&log, k);
			const struct known *b = find(c->ns, c->root, c->id, c->id_len);

			world_check(&w, b && b->tier == c->tier && b->slot == c->slot);
			by_tier[c->tier]++;
		}
		n += (uint32_t)log.n;
	}
	world_check(&w, n == follower.n);
	radix_index_stats(ix, &st);
	for (int t = 0; t < RADIX_N_TIERS; t++)
		world_check(&w, st.tier[t] == by_tier[t]);
}

/* ---- work ------------------------------------------------------------------------------------ */

static uint32_t below(uint32_t n)
{
	return test_rng_below(&w.rng, n);
}

/* A walk in a small tree of choices. */
static struct scene_prompt walk(const struct scene_place *at, uint8_t *keys)
{
	uint32_t n = 1 + below(MOST), topic = below(8);
	uint64_t h = 77;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t pick = i ? below(6) == 0 : topic;
		uint32_t tokens[BT] = { i, pick, 5, 6 };

		h = (h ^ pick ^ (i << 8)) * 0x9e3779b97f4a7c15u;
		h ^= h >> 31;
		memcpy(keys + 16 * i, tokens, 16);
		if (at->salt.n) /* marks the namespace of digests */
			memcpy(keys + 16 * i + 8, &h, 8);
	}
	return (struct scene_prompt){ .keys = keys, .n_keys = n };
}

static void put(const struct scene_place *at, const struct scene_prompt *p)
{
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = p->n_keys };
	struct proto_reserve_rep reserved;
	struct proto_commit_req c = { 0 };
	struct proto_commit_rep committed;

	scene_match(at, p, &m);
	r.lease = c.lease = m.lease;
	if (m.n_device < p->n_keys && world_reserve_wait(at->c, &r, &reserved) == 0) {
		c.n = reserved.n;
		ck_assert_int_eq(world_commit(at->c, &c, &committed), PROTO_STATUS_OK);
	}
	scene_release(at, m.lease, NULL);
}

static void bring_up(const struct scene_place *at, const struct scene_prompt *p)
{
	struct proto_match_rep m, more;
	struct proto_event e;
	uint64_t seq = scene_match_with(at, p, PROTO_MATCH_PROMOTE, 0, &m);

	if (m.n_host + m.n_redis > 0 && !m.advice) {
		scene_loaded(at, seq, &e);
		scene_extend(at, m.lease, &more);
	}
	scene_release(at, m.lease, NULL);
}

static void some_work(const struct scene_place *places, uint32_t n_places)
{
	const struct scene_place *at = &places[below(n_places)];
	uint8_t keys[16 * MOST];
	struct scene_prompt p = walk(at, keys);
	uint32_t what = below(400);

	if (what == 0)
		world_flush(&w, below(2) ? RADIX_NONE : at->ns.ns);
	else if (what == 1)
		world_invalidate(&w, at->ns.ns);
	else if (what < 6)
		world_evict(&w, 0, 1 + below(10));
	else if (what < 9)
		(void)world_redis_poke(&w, below(2) ? WORLD_POKE_LOSE : WORLD_POKE_DAMAGE, 10);
	else if (what < 200)
		put(at, &p);
	else
		bring_up(at, &p);
}

static void follow(void)
{
	struct world_client *c = world_connect(&w, 9, 0, true);
	struct proto_hello_req hello = world_hello_req(c);
	struct proto_hello_rep hello_rep;
	struct proto_subscribe_req m = { .ns = 0 };
	struct proto_subscribe_rep rep;

	ck_assert_int_eq(world_hello(c, &hello, &hello_rep), PROTO_STATUS_OK);
	ck_assert_int_eq(world_subscribe(c, &m, &rep), PROTO_STATUS_OK);
	memset(&follower, 0, sizeof(follower));
	follower.c = c;
	follower.last = rep.last;
}

static void configure(struct world_config *config, uint32_t n_host, bool redis)
{
	world_config_init(config);
	config->engine.event_ring = 4096;
	config->engine.pool_blocks = 24;
	config->engine.index_blocks = 64;
	config->engine.limits.reserve_ns = 100000000;
	config->tiers.host_blocks = n_host;
	config->tiers.redis = redis;
	config->tiers.seed = 4;
	config->tiers.copy.latency_ns = 20000;
	config->tiers.remote.latency_ns = 100000;
	config->tiers.jitter_ns = 50000;
	config->tiers.deadline_ns = 50000000;
	config->tiers.faults[WORLD_FAULT_COPY_FAILED] = 5;
	config->tiers.faults[WORLD_FAULT_STORE_FAILED] = 5;
	config->tiers.faults[WORLD_FAULT_FETCH_LOST] = 5;
}

/* Host memory and Redis, host memory alone, Redis alone. */
START_TEST(T42_a_subscriber_knows_every_tier)
{
	static const struct {
		uint32_t n_host;
		bool redis;
	} tiers[] = { { 40, true }, { 40, false }, { 0, true } };
	struct proto_open_req tokens = world_open_req("m"), digests = world_open_req("d");
	struct world_config config;
	struct scene_place places[2];
	bool host = tiers[_i].n_host > 0, redis = tiers[_i].redis;

	configure(&config, tiers[_i].n_host, redis);
	ck_assert_int_eq(world_init(&w, &config), 0);
	digests.key_mode = PROTO_KEYS_DIGEST;
	digests.digest_len = 16;
	digests.seed_probe = world_text("0123456789abcdef");
	places[0] = scene_place(&w, 1, 1000, &tokens);
	places[1] = scene_place(&w, 2, 1000, &digests);
	places[1].salt = world_text("digests");
	follow();
	for (uint32_t i = 0; i < 6000; i++) {
		some_work(places, radix_array_size(places));
		if (below(10))
			continue;
		listen_();
		check();
	}
	world_run_until_idle(&w);
	listen_();
	check();
	/* It was no idle life. */
	ck_assert_uint_eq(follower.kinds[PROTO_CHANGE_RESYNC], 0);
	ck_assert_uint_gt(follower.kinds[PROTO_CHANGE_CLEARED], 10);
	ck_assert_uint_gt(follower.stored[PROTO_TIER_DEVICE], 1000);
	ck_assert(!host || follower.moved[PROTO_TIER_DEVICE][PROTO_TIER_HOST] > 500);
	ck_assert(!host || follower.moved[PROTO_TIER_HOST][PROTO_TIER_DEVICE] > 300);
	ck_assert(!host || !redis || follower.moved[PROTO_TIER_HOST][PROTO_TIER_REDIS] > 100);
	ck_assert(host || follower.moved[PROTO_TIER_DEVICE][PROTO_TIER_REDIS] > 500);
	ck_assert(!redis || follower.moved[PROTO_TIER_REDIS][PROTO_TIER_DEVICE] > 100);
	ck_assert(!redis || follower.removed[PROTO_REMOVAL_LOST] > 10);
	ck_assert(!redis || follower.removed[PROTO_REMOVAL_CORRUPT] > 0);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tier_events");
	TCase *t = tcase_create("T42");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, T42_a_subscriber_knows_every_tier, 0, 3);
	suite_add_tcase(s, t);
	return scene_main(s);
}
