/*
 * test_memory_tiers.c - every allocation of a script over three tiers fails once.
 *
 * Whoever is told NO_MEMORY asks again; what only happens in the background (a load, a question to
 * Redis, a move) may not have happened, and happens when it is asked for once more.  Bytes are
 * right, every invariant is verified after each step, and in the end every byte is given back.
 */
#include "tests/engine/scene.h"

#include <stdio.h>

enum {
	BLOCKS = 8,
	BT = 4
};

static struct world w;
static uint32_t tokens[10][BLOCKS * BT];

#define DO(call)                                                                  \
	do {                                                                      \
		int status = (call);                                              \
		if (status == PROTO_STATUS_NO_MEMORY) {                           \
			ck_assert_uint_eq(w.heap.n_failed, 1);                    \
			status = (call);                                          \
		}                                                                 \
		ck_assert_msg(status == PROTO_STATUS_OK, "line %d: %s", __LINE__, \
			      proto_status_to_string((uint16_t)status));          \
	} while (0)

static struct scene_place connect(uint32_t pid)
{
	struct scene_place at = { .c = world_connect(&w, pid, 1000, false) };
	struct proto_open_req o = world_open_req("m");
	struct proto_hello_rep rep;
	struct proto_hello_req m;

	if (!at.c->used) {
		ck_assert_uint_eq(w.heap.n_failed, 1);
		at.c = world_connect(&w, pid, 1000, false);
	}
	m = world_hello_req(at.c);
	DO(world_hello(at.c, &m, &rep));
	DO(world_open(at.c, &o, &at.ns));
	return at;
}

static void match(const struct scene_place *at, uint32_t p, uint32_t flags,
		  struct proto_match_rep *ret)
{
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = at->ns.ns,
				     .flags = flags,
				     .n_tokens = BLOCKS * BT,
				     .keys = { tokens[p], sizeof(tokens[p]) } };

	DO(world_match(at->c, &m, ret));
}

static void release(const struct scene_place *at, uint64_t lease)
{
	struct proto_release_req m = { .lease = lease };
	struct proto_release_rep rep;

	DO(world_release(at->c, &m, &rep));
	world_run_until_idle(&w);
}

/* Stores what is missing; COMMIT may stop in the middle, so it goes block by block. */
static void put(const struct scene_place *at, uint32_t p)
{
	uint8_t block[64];
	struct proto_match_rep m;
	struct proto_reserve_req r = { .n = BLOCKS };
	struct proto_reserve_rep reserved;
	uint32_t slots[BLOCKS], n = 0;

	memset(block, (int)p + 1, sizeof(block));
	match(at, p, 0, &m);
	r.lease = m.lease;
	DO(world_reserve_wait(at->c, &r, &reserved));
	for (uint32_t i = 0; i < reserved.runs.n; i++) {
		struct radix_run run = proto_run_at(reserved.runs, i);

		for (uint32_t k = 0; k < run.len; k++)
			slots[n++] = run.start + k;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct proto_commit_req c = { .lease = m.lease, .n = 1 };
		struct proto_commit_rep rep;

		world_write(&w, 0, slots[i], block, sizeof(block));
		DO(world_commit(at->c, &c, &rep));
	}
	release(at, m.lease);
}

/* Asks until all of it is on the device: at most once more than there were failures. */
static void bring_up(const struct scene_place *at, uint32_t p)
{
	struct proto_match_rep m;
	struct proto_event e;
	uint64_t seq;
	uint32_t n = 0;

	for (uint32_t tries = 0; n < BLOCKS; tries++) {
		ck_assert_uint_le(tries, 1 + w.heap.n_failed);
		match(at, p, PROTO_MATCH_PROMOTE, &m);
		n = scene_check_fill(at, m.runs, (uint8_t)(p + 1));
		world_run_until_idle(&w);
		while (world_event(at->c, &seq, &e))
			;
		if (n + m.n_host + m.n_redis == BLOCKS && n < BLOCKS) {
			struct proto_extend_req x = { .lease = m.lease };
			struct proto_match_rep more;

			DO(world_extend(at->c, &x, &more));
			n += scene_check_fill(at, more.runs, (uint8_t)(p + 1));
		}
		release(at, m.lease);
	}
}

static void prefetch(const struct scene_place *at, uint32_t p)
{
	struct proto_prefetch_req m = { .has = PROTO_HAS_ALL,
					.ns = at->ns.ns,
					.n_tokens = BLOCKS * BT,
					.keys = { tokens[p], sizeof(tokens[p]) } };
	struct proto_prefetch_rep rep;

	DO(world_prefetch(at->c, &m, &rep));
	world_run_until_idle(&w);
}

/* Nothing is known of it here, but Redis has it. */
static void find_again(const struct scene_place *at, uint32_t p)
{
	struct proto_match_rep m = { 0 };

	for (uint32_t tries = 0; m.n_redis < BLOCKS; tries++) {
		ck_assert_uint_le(tries, 1 + w.heap.n_failed);
		match(at, p, 0, &m);
		release(at, m.lease);
	}
}

/* The pool's device is lost while somebody holds blocks of it.  Who is owed a LOST gets it. */
static void lose(struct scene_place *a, struct scene_place *b)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_match_rep m;
	struct proto_release_req r = { 0 };
	struct proto_release_rep released;

	match(a, 9, 0, &m);
	world_pool_lost(&w, 0);
	world_advance(&w, 10000000);
	world_run_until_idle(&w);
	ck_assert_uint_ge(a->c->n_lost, 1);
	ck_assert_uint_ge(b->c->n_lost, 1);
	r.lease = m.lease;
	ck_assert_int_eq(world_release(a->c, &r, &released), PROTO_STATUS_DEVICE_LOST);
	DO(world_open(a->c, &o, &a->ns));
	DO(world_open(b->c, &o, &b->ns));
	ck_assert_uint_eq(world_counters(&w).pools_lost, 1);
}

static void script(void)
{
	struct scene_place a = connect(100), b = connect(101);
	struct proto_match_rep m;

	for (uint32_t p = 0; p < 7; p++)
		put(&a, p);
	bring_up(&b, 0);
	bring_up(&a, 3);
	prefetch(&b, 1);
	bring_up(&b, 1);
	world_flush(&w, RADIX_NONE);
	world_run_until_idle(&w);
	find_again(&a, 0);
	bring_up(&b, 0);
	put(&b, 7);
	put(&b, 8);
	world_invalidate(&w, a.ns.ns);
	match(&b, 8, 0, &m);
	/* Without memory it may not have been done: then nothing was. */
	if (m.n_device) {
		ck_assert_uint_eq(w.heap.n_failed, 1);
		release(&b, m.lease);
		world_invalidate(&w, a.ns.ns);
		match(&b, 8, 0, &m);
	}
	ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis, 0);
	put(&a, 9);
	bring_up(&b, 9);
	lose(&a, &b);
	put(&a, 3);
	put(&b, 4);
	bring_up(&b, 3);
	world_kill(&w, 101);
	world_kill(&w, 100);
	world_run_until_idle(&w);
}

/* Runs the script with the n-th allocation failing; false when there is no n-th. */
static bool run(uint64_t n, enum prefixd_write_policy write)
{
	struct world_config config;
	struct radix_stats st;
	bool failed;

	world_config_init(&config);
	config.engine.pool_blocks = 2 * BLOCKS;
	config.engine.index_blocks = 8 * BLOCKS;
	config.engine.limits.reserve_ns = 1000000000;
	config.engine.write = write;
	config.tiers.host_blocks = 2 * BLOCKS;
	config.tiers.redis = true;
	config.tiers.copy.latency_ns = 1000;
	config.tiers.remote.latency_ns = 10000;
	config.tiers.jitter_ns = 5000;
	ck_assert_int_eq(world_init(&w, &config), 0);
	test_heap_fail_at(&w.heap, n);
	script();
	failed = w.heap.n_failed > 0;
	test_heap_fail_at(&w.heap, 0);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(world_in_flight(&w), 0);
	ck_assert_uint_eq(st.n_pins, 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], st.n_slots);
	ck_assert_uint_eq(st.host[RADIX_SLOT_FREE] + st.host[RADIX_SLOT_READY], st.n_host);
	world_deinit(&w);
	return failed;
}

START_TEST(each_allocation)
{
	static const enum prefixd_write_policy policies[] = { PREFIXD_WRITE_BACK,
							      PREFIXD_WRITE_THROUGH };

	for (uint32_t p = 0; p < radix_array_size(tokens); p++)
		for (uint32_t i = 0; i < BLOCKS * BT; i++)
			tokens[p][i] = 1000 * p + i;
	for (uint32_t i = 0; i < radix_array_size(policies); i++) {
		uint64_t n = 1;

		while (run(n, policies[i]))
			n++;
		fprintf(stderr, "%llu allocations failed, one per run\n",
			(unsigned long long)n - 1);
		ck_assert_uint_gt(n, 60);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("memory-tiers");

	scene_case(s, "memory-tiers", each_allocation);
	return scene_main(s);
}
