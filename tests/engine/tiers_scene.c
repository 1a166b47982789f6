/*
 * tiers_scene.c - see tiers_scene.h.
 */
#include "tests/engine/tiers_scene.h"

struct tiers_scene tiers;

void tiers_configure(uint32_t n_slots, uint32_t n_host, bool redis)
{
	world_config_init(&tiers.config);
	tiers.config.engine.pool_blocks = n_slots;
	tiers.config.engine.index_blocks = 64;
	tiers.config.engine.limits.reserve_ns = 1000000000;
	tiers.config.tiers.host_blocks = n_host;
	tiers.config.tiers.redis = redis;
	tiers.config.tiers.copy.latency_ns = 10000;
	tiers.config.tiers.remote.latency_ns = 200000;
	tiers.config.tiers.deadline_ns = 50000000;
	tiers.config.tiers.breaker = 5;
	for (uint32_t p = 0; p < radix_array_size(tiers.tokens); p++)
		for (uint32_t i = 0; i < BLOCKS * BT; i++)
			tiers.tokens[p][i] = 1000 * p + i;
}

struct scene_place tiers_begin(void)
{
	struct proto_open_req o = world_open_req("m");

	ck_assert_int_eq(world_init(&tiers.w, &tiers.config), 0);
	return scene_place(&tiers.w, 100, 1000, &o);
}

struct scene_prompt tiers_prompt(const struct scene_place *at, uint32_t p)
{
	return scene_tokens(at, tiers.tokens[p], BLOCKS * BT);
}

uint32_t tiers_put(const struct scene_place *at, uint32_t p)
{
	struct scene_prompt x = tiers_prompt(at, p);
	uint32_t n = scene_put(at, &x, (uint8_t)(p + 1));

	world_run_until_idle(&tiers.w);
	return n;
}

void tiers_check_at(const struct scene_place *at, uint32_t p, uint32_t device, uint32_t host,
		    uint32_t redis)
{
	struct scene_prompt x = tiers_prompt(at, p);
	struct proto_match_rep m;

	scene_look(at, &x, &m);
	ck_assert_uint_eq(m.n_device, device);
	ck_assert_uint_eq(m.n_host, host);
	ck_assert_uint_eq(m.n_redis, redis);
}

void tiers_check_quiet(void)
{
	struct radix_stats st;

	ck_assert_uint_eq(world_in_flight(&tiers.w), 0);
	world_stats(&tiers.w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], st.n_slots);
	ck_assert_uint_eq(st.host[RADIX_SLOT_FREE] + st.host[RADIX_SLOT_READY], st.n_host);
}
