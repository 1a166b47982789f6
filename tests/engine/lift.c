/*
 * lift.c - see lift.h.
 */
#include "tests/engine/lift.h"

struct world_config lift_config;
struct world *lift_world;
struct scene_place lift_at;

void lift_configure(uint32_t slots, uint32_t host, bool redis)
{
	room_config(&lift_config, slots, host);
	lift_config.engine.index_blocks = redis ? 256 : 0;
	lift_config.engine.limits.prefill_ns_per_token = 0;
	lift_config.tiers.redis = redis;
	lift_config.tiers.remote.bytes_per_s = 64 * 1000;
}

void lift_begin(void)
{
	lift_world = room_world(&lift_config);
	lift_at = room_place(lift_world, 100);
}

void lift_store(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		room_put(&lift_at, i, LIFT_BLOCKS);
	world_run_until_idle(lift_world);
}

void lift_clear(uint32_t n)
{
	struct room_lease l = room_match(&lift_at, 15, n);
	struct proto_reserve_req r = { .lease = l.id, .n = n };
	struct proto_reserve_rep rep;

	ck_assert_int_eq(world_reserve_wait(lift_at.c, &r, &rep), PROTO_STATUS_OK);
	ck_assert_uint_eq(rep.n, n);
	room_release(&lift_at, &l);
	world_run_until_idle(lift_world);
}

uint64_t lift_raised(void)
{
	struct world_tiers_stats s;

	world_tiers_stats(lift_world, &s);
	return s.moved[RADIX_TIER_HOST][RADIX_TIER_DEVICE] +
	       s.moved[RADIX_TIER_REDIS][RADIX_TIER_DEVICE];
}

uint64_t lift_promote(const struct scene_place *who, uint32_t id, uint32_t n, uint32_t deadline_us,
		      struct proto_match_rep *m)
{
	struct scene_prompt p = room_prompt(id, n);

	return scene_match_with(who, &p, PROTO_MATCH_PROMOTE, deadline_us, m);
}

void lift_match(const struct scene_place *who, uint32_t id, uint32_t n, struct proto_match_rep *m)
{
	struct scene_prompt p = room_prompt(id, n);

	scene_match(who, &p, m);
}

void lift_check_event(const struct scene_place *who, uint64_t seq, uint64_t lease,
		      enum proto_wait_state state, uint32_t n, enum proto_reason reason)
{
	struct proto_event e;
	uint64_t got;

	ck_assert(world_event(who->c, &got, &e));
	ck_assert_uint_eq(got, seq);
	ck_assert_uint_eq(e.lease, lease);
	ck_assert_int_eq(e.state, state);
	ck_assert_uint_eq(e.n, n);
	ck_assert_int_eq(e.reason, reason);
}

void lift_check_silent(const struct scene_place *who)
{
	struct proto_event e;
	uint64_t got;

	ck_assert(!world_event(who->c, &got, &e));
}

/* Nothing is held and nothing is under way. */
static void check_quiet(void)
{
	struct radix_stats st = room_stats(lift_world);

	ck_assert_uint_eq(world_in_flight(lift_world), 0);
	ck_assert_uint_eq(st.n_pins, 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], st.n_slots);
}

void lift_end(void)
{
	world_run_until_idle(lift_world);
	check_quiet();
	world_deinit(lift_world);
}
