/*
 * test_accounting.c - sums that must hold, and that a broken one is reported: T14 T17 T37.
 */
#include "tests/engine/scene.h"

#include <stdio.h>

#include "daemon/engine_internal.h"
#include "tests/engine/random.h"
#include "tests/engine/universe.h"

/* Pins do not leak: after many operations with dying workers nothing is held (the run checks). */
START_TEST(no_leaked_pins)
{
	struct random_config c = { .seed = 14,
				   .n_steps = 100000,
				   .n_slots = 64,
				   .kills_permille = 10,
				   .watches_processes = true,
				   .islands = true };
	struct random_result early, res;
	double early_ratio, ratio;

	random_run(&c, &res);
	ck_assert_uint_gt(res.n_kills, 500);
	ck_assert_uint_gt(res.counters.leases_died, 1000);
	/* Nothing decays: the ratio of the whole run is that of its first tenth. */
	c.n_steps = 10000;
	random_run(&c, &early);
	ratio = (double)res.counters.hit_device_tokens / (double)res.counters.queried_tokens;
	early_ratio = (double)early.counters.hit_device_tokens /
		      (double)early.counters.queried_tokens;
	fprintf(stderr, "hit ratio: %.3f at first, %.3f in all\n", early_ratio, ratio);
	ck_assert(ratio > 0.8 * early_ratio);
}
END_TEST

/* Hits and misses add up to what was asked, and misses by reason to misses. */
START_TEST(sums)
{
	struct random_config c = { .seed = 37,
				   .n_steps = 30000,
				   .n_slots = 96,
				   .kills_permille = 10,
				   .grace_ns = 1000000,
				   .watches_processes = true };
	struct random_result res;
	const struct prefixd_counters *n = &res.counters;

	random_run(&c, &res);
	ck_assert_uint_gt(n->queried_tokens, 10000);
	ck_assert_uint_gt(n->hit_device_tokens, 0);
	ck_assert_uint_gt(n->hit_pending_tokens, 0);
	ck_assert_uint_gt(n->miss_tokens, 0);
	ck_assert_uint_eq(n->hit_device_tokens + n->hit_host_tokens + n->hit_redis_tokens +
				  n->hit_pending_tokens + n->miss_tokens,
			  n->queried_tokens);
	ck_assert_uint_eq(n->miss_never_seen + n->miss_diverged + n->miss_below_block +
				  n->miss_no_room + n->miss_pending + n->miss_seed_mismatch,
			  n->miss_tokens);
	/* The same in whole blocks: those served are what was served but for partial ones. */
	ck_assert_uint_eq(n->lookup_device_blocks + n->lookup_host_blocks + n->lookup_redis_blocks +
				  n->lookup_miss_blocks,
			  n->queried_blocks);
	ck_assert_uint_eq(UNIVERSE_BT * n->lookup_device_blocks,
			  n->hit_device_tokens - n->hit_tail_tokens + n->hit_pending_tokens);
	ck_assert_uint_gt(n->lookup_miss_blocks, 0);
	ck_assert_uint_le(UNIVERSE_BT * n->queried_blocks, n->queried_tokens);
	ck_assert_uint_lt(n->queried_tokens - UNIVERSE_BT * n->queried_blocks,
			  2 * UNIVERSE_BT * n->lookups);
	ck_assert_uint_gt(n->miss_never_seen, 0);
	ck_assert_uint_gt(n->miss_diverged, 0);
	ck_assert_uint_gt(n->miss_below_block, 0);
	ck_assert_uint_eq(n->lookups, n->lookups_full + n->lookups_partial + n->lookups_miss);
	ck_assert_uint_eq(n->lookups, n->leases_released + n->leases_died + n->leases_quiesced);
	ck_assert_uint_lt(n->hit_device_tokens, n->queried_tokens); /* not always a hit */
}
END_TEST

static struct world w;
static struct scene_place at;
static struct proto_match_rep m;
static uint32_t tokens[32];

/* One worker with a lease of 4 found and 2 reserved blocks, a tail donor, and an older prompt. */
static void begin(void)
{
	struct proto_open_req o = world_open_req("m");
	struct world_config config;
	struct scene_prompt p;
	struct proto_reserve_req r = { .n = 2 };
	struct proto_reserve_rep got;

	world_config_init(&config);
	config.no_verify = true;
	ck_assert_int_eq(world_init(&w, &config), 0);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < 32; i++)
		tokens[i] = i;
	p = scene_tokens(&at, tokens, 20);
	ck_assert_uint_eq(scene_put(&at, &p, 1), 5);
	tokens[18] = 77;
	p = scene_tokens(&at, tokens, 28);
	scene_match(&at, &p, &m);
	ck_assert_uint_eq(m.n_device, 4);
	ck_assert_uint_eq(m.tail_tokens, 2);
	r.lease = m.lease;
	ck_assert_int_eq(world_reserve(at.c, &r, &got), PROTO_STATUS_OK);
}

/*
 * States of slots are summed after each step; and for each invariant of the engine there is a way
 * to break it that verify reports under its number, without ending the process.
 */
START_TEST(broken_ones_are_reported)
{
	struct prefixd_engine *e;
	struct prefixd_session *s;
	struct prefixd_namespace *ns;
	struct prefixd_lease *l;
	struct prefixd_root *root;
	char why[200];

	begin();
	e = w.engine;
	s = prefixd_session_find(e, at.c->session);
	ns = s->ns[0].ns;
	l = radix_list_first(&s->leases, struct prefixd_lease, link);
	root = l->root;
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);
#define BREAK(number, statement, undo)                                                  \
	do {                                                                            \
		statement;                                                              \
		why[0] = '\0';                                                          \
		ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), (number)); \
		ck_assert_str_ne(why, "");                                              \
		undo;                                                                   \
		ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);        \
	} while (0)
	BREAK(1, s->item.pos++, s->item.pos--);
	BREAK(1, s->state = PREFIXD_SESSION_FRESH, s->state = PREFIXD_SESSION_READY);
	BREAK(2, s->n_leases++, s->n_leases--);
	BREAK(2, e->n_active++, e->n_active--);
	BREAK(2, l->session = NULL, l->session = s);
	BREAK(3, l->donor_held = false, l->donor_held = true);
	BREAK(4, l->slots[0]++, l->slots[0]--);
	BREAK(4, l->n_reserved--, l->n_reserved++);
	BREAK(4, l->slots[1] = l->slots[0], l->slots[1]++);
	BREAK(4, l->slots[1] = 1u << 30, l->slots[1] = l->slots[0] + 1);
	BREAK(6, l->n_given++, l->n_given--);
	BREAK(6, l->n_device++, l->n_device--);
	BREAK(7, root->n_leases++, root->n_leases--);
	BREAK(7, root->tenant++, root->tenant--);
	BREAK(7, root->index_root++, root->index_root--);
	BREAK(8, ns->refs++, ns->refs--);
	BREAK(8, ns->n_sessions++, ns->n_sessions--);
	BREAK(10, e->counters.queried_tokens++, e->counters.queried_tokens--);
	BREAK(10, e->counters.miss_diverged++, e->counters.miss_diverged--);
	BREAK(10, e->counters.queried_blocks++, e->counters.queried_blocks--);
	BREAK(10, e->counters.lookup_miss_blocks++, e->counters.lookup_miss_blocks--);
	BREAK(10, e->counters.hit_tail_tokens = 1u << 30, e->counters.hit_tail_tokens = 0);
	BREAK(11, e->counters.lookups++, e->counters.lookups--);
	BREAK(11, e->counters.leases_died++, e->counters.leases_died--);
	BREAK(12, e->budget_used++, e->budget_used--);
#undef BREAK
	world_deinit(&w);
}
END_TEST

/* The same for what only time brings: slots in quarantine, and remembered operation ids. */
START_TEST(broken_later)
{
	struct prefixd_engine *e;
	struct prefixd_session *s;
	struct prefixd_lease *l;
	struct proto_release_req rel = { .op_id = { { 1 } } };
	struct proto_release_rep end;
	struct proto_match_rep other;
	struct scene_prompt p;
	char why[200];

	begin();
	e = w.engine;
	e->config.grace_ns = 1000;
	s = prefixd_session_find(e, at.c->session);
	p = scene_tokens(&at, tokens, 8);
	scene_match(&at, &p, &other);
	rel.lease = other.lease;
	ck_assert_int_eq(world_release(at.c, &rel, &end), PROTO_STATUS_OK);
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);
	s->ops.v[0].off = s->ops.ring_len;
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 9);
	s->ops.v[0].off = 0;
	s->ops.v[0].id.b[0]++;
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 9);
	s->ops.v[0].id.b[0]--;
	world_gone(at.c);
	ck_assert(!radix_list_empty(&e->quarantine));
	l = radix_list_first(&e->quarantine, struct prefixd_lease, link);
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);
	l->state = PREFIXD_LEASE_REVOKED;
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 13);
	l->state = PREFIXD_LEASE_QUARANTINE;
	l->n_own--;
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 5);
	l->n_own++;
	world_advance(&w, 1000);
	ck_assert(radix_list_empty(&e->quarantine));
	ck_assert_int_eq(prefixd_engine_verify(e, why, sizeof(why)), 0);
	world_deinit(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("accounting");

	scene_case(s, "T14", no_leaked_pins);
	scene_case(s, "T17", broken_ones_are_reported);
	scene_case(s, "T17", broken_later);
	scene_case(s, "T37", sums);
	return scene_main(s);
}
