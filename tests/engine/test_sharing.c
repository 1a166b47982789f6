/*
 * test_sharing.c - when blocks become visible, that they are shared, and what eviction costs:
 * T15 T32 T51 T59.
 */
#include "tests/engine/scene.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct world w;

static void begin(void)
{
	struct world_config config;

	world_config_init(&config);
	config.sim.latency_ns = 1000000;
	ck_assert_int_eq(world_init(&w, &config), 0);
}

static void count(uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = 3 * i;
}

/* RELEASE twice: the second is unknown and changes nothing. */
START_TEST(double_release)
{
	struct proto_open_req o = world_open_req("m");
	struct proto_release_req rel = { 0 };
	struct proto_release_rep end;
	struct prefixd_counters before, after;
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma, mb;
	struct radix_stats st;
	uint32_t tokens[16];

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	ck_assert_uint_eq(scene_put(&a, &p, 1), 4);
	scene_match(&a, &p, &ma);
	scene_match(&b, &p, &mb);
	/* Another session's lease is none of ours. */
	rel.lease = mb.lease;
	ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_UNKNOWN_LEASE);
	scene_release(&a, ma.lease, NULL);
	before = world_counters(&w);
	for (uint32_t i = 0; i < 3; i++) {
		rel.lease = ma.lease;
		ck_assert_int_eq(world_release(a.c, &rel, &end), PROTO_STATUS_UNKNOWN_LEASE);
	}
	after = world_counters(&w);
	before.requests += 3;
	before.errors += 3;
	before.unknown_lease += 3;
	ck_assert(memcmp(&before, &after, sizeof(before)) == 0);
	/* The other's pin is still there: four blocks cannot be evicted. */
	ck_assert_uint_eq(world_evict(&w, 0, 100), 0);
	scene_release(&b, mb.lease, NULL);
	ck_assert_uint_eq(world_evict(&w, 0, 100), 4);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 0);
	world_deinit(&w);
}
END_TEST

static void copied(struct gpu_job *job, int status)
{
	ck_assert_int_eq(status, 0);
	job->ctx = NULL;
}

/* Blocks are seen after COMMIT, and COMMIT comes after the device has written. */
START_TEST(ready_after_commit)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma, mb;
	struct proto_reserve_req r = { .n = 4 };
	struct proto_reserve_rep got;
	struct proto_commit_req c = { .n = 2 };
	struct proto_commit_rep done;
	struct proto_extend_req x = { 0 };
	struct proto_release_rep end;
	uint32_t tokens[16], slots[4];
	uint8_t data[64], seen[64];
	struct gpu_job jobs[4] = { 0 };

	begin();
	count(tokens, 16);
	memset(data, 0x5a, sizeof(data));
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	scene_match(&a, &p, &ma);
	r.lease = c.lease = ma.lease;
	ck_assert_int_eq(world_reserve(a.c, &r, &got), PROTO_STATUS_OK);
	for (uint32_t i = 0; i < 4; i++) {
		slots[i] = proto_run_at(got.runs, 0).start + i;
		jobs[i] = (struct gpu_job){ .src = (uintptr_t)data, .len = 64, .done = copied };
		jobs[i].dst = w.gpu->ops->slot_addr(w.pools[0].pool, slots[i]);
		jobs[i].ctx = &w;
		ck_assert_int_eq(w.gpu->ops->submit(w.gpu, &jobs[i]), 0);
	}
	/* Queued is not written: a reader would find poison, so it must not find the blocks. */
	scene_match(&b, &p, &mb);
	ck_assert_uint_eq(mb.n_device, 0);
	x.lease = mb.lease;
	gpu_sim_advance(w.gpu, gpu_sim_next_due(w.gpu) + 1000000000);
	while (w.gpu->ops->reap(w.gpu, 4) > 0)
		;
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_ptr_null(jobs[i].ctx);
	/* Written is not committed either. */
	ck_assert_int_eq(world_extend(b.c, &x, &mb), PROTO_STATUS_OK);
	ck_assert_uint_eq(mb.n_device, 0);
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_OK);
	ck_assert_int_eq(world_extend(b.c, &x, &mb), PROTO_STATUS_OK);
	ck_assert_uint_eq(mb.n_device, 2);
	ck_assert_uint_eq(proto_run_at(mb.runs, 0).start, slots[0]);
	world_read(&w, 0, slots[1], seen, 64);
	ck_assert(memcmp(seen, data, 64) == 0);
	ck_assert_int_eq(world_commit(a.c, &c, &done), PROTO_STATUS_OK);
	ck_assert_int_eq(world_extend(b.c, &x, &mb), PROTO_STATUS_OK);
	ck_assert_uint_eq(mb.n_device, 2);
	/* They were not there when B asked first: they count to pending. */
	scene_release(&b, mb.lease, &end);
	ck_assert_uint_eq(end.hit_device_tokens, 0);
	ck_assert_uint_eq(end.hit_pending_tokens, 16);
	world_deinit(&w);
}
END_TEST

/* A writer that dies between RESERVE and COMMIT has published nothing. */
START_TEST(dead_writer)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma;
	struct proto_reserve_req r = { .n = 4 };
	struct proto_reserve_rep got;
	struct radix_stats st;
	uint32_t tokens[16];
	uint8_t data[64] = { 1 }, seen[64];

	begin();
	count(tokens, 16);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	p = scene_tokens(&a, tokens, 16);
	scene_match(&a, &p, &ma);
	r.lease = ma.lease;
	ck_assert_int_eq(world_reserve(a.c, &r, &got), PROTO_STATUS_OK);
	world_write(&w, 0, proto_run_at(got.runs, 0).start, data, 64);
	world_eof(a.c); /* the process may live on: nothing is reused yet */
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_RESERVED], 4);
	ck_assert_uint_eq(scene_look(&b, &p, NULL), 0);
	world_gone(a.c);
	world_stats(&w, 0, &st);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE], 64);
	ck_assert_uint_eq(scene_look(&b, &p, NULL), 0);
	ck_assert_uint_eq(w.n_poisoned, 4);
	world_read(&w, 0, 0, seen, 64);
	ck_assert_uint_eq(seen[0], 0xdd); /* what it had begun to write is gone */
	world_deinit(&w);
}
END_TEST

/* One worker stores, another on the same machine finds: the same slots, not a byte copied. */
START_TEST(same_slots)
{
	struct proto_open_req o = world_open_req("m");
	struct scene_place a, b;
	struct scene_prompt p;
	struct proto_match_rep ma, mb;
	uint32_t tokens[40];
	uint8_t seen[64];

	begin();
	count(tokens, 40);
	a = scene_place(&w, 100, 1000, &o);
	b = scene_place(&w, 101, 1000, &o);
	ck_assert_uint_eq(a.ns.group, b.ns.group);
	p = scene_tokens(&a, tokens, 40);
	ck_assert_uint_eq(scene_put(&a, &p, 0x42), 10);
	scene_match(&a, &p, &ma);
	ck_assert_uint_eq(ma.runs.n, 1);
	ck_assert_uint_eq(proto_run_at(ma.runs, 0).len, 10);
	scene_match(&b, &p, &mb);
	ck_assert_uint_eq(mb.n_device, 10);
	ck_assert(memcmp(ma.runs.p, mb.runs.p, sizeof(struct radix_run)) == 0);
	for (uint32_t i = 0; i < 10; i++) {
		world_read(&w, 0, proto_run_at(mb.runs, 0).start + i, seen, 64);
		ck_assert_uint_eq(seen[0], 0x42);
		ck_assert_uint_eq(seen[63], 0x42);
	}
	ck_assert_uint_eq(world_counters(&w).bytes_copied, 0);
	world_deinit(&w);
}
END_TEST

/*
 * The cost of a victim, in pages of memory that are looked at: all memory of the engine is made
 * inaccessible, one block is evicted, and each page that is needed faults once.  A scan of leaves,
 * edges or blocks would need thousands; this does not depend on a clock.
 */
#define ARENA ((size_t)1 << 30)
#define PAGE  4096u

static struct {
	uint8_t *base;
	size_t used;
	volatile sig_atomic_t faults;
} arena;

static void *arena_take(void *ctx, size_t size)
{
	size_t at = (arena.used + 63) & ~(size_t)63;

	if (at + size > ARENA)
		return NULL;
	arena.used = at + size;
	return arena.base + at;
}

static void arena_give(void *ctx, void *p, size_t size)
{
}

static void on_fault(int sig, siginfo_t *info, void *ctx)
{
	uintptr_t at = (uintptr_t)info->si_addr, base = (uintptr_t)arena.base;

	if (at < base || at >= base + ARENA ||
	    mprotect((void *)(at & ~(uintptr_t)(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE) < 0)
		_exit(99);
	arena.faults = arena.faults + 1;
}

/* Prompts of four blocks each, so that every fourth block is a leaf. */
static uint32_t pages_per_victim(uint32_t n_prompts)
{
	struct proto_open_req o = world_open_req("m");
	struct world_config config;
	struct scene_place at;
	struct radix_alloc alloc = { arena_take, arena_give, NULL };
	struct prefixd_event evict = { .type = PREFIXD_EVENT_ADMIN_EVICT };
	uint32_t worst = 0;

	arena.used = 0;
	world_config_init(&config);
	config.no_verify = true;
	config.engine.pool_blocks = 4 * n_prompts;
	ck_assert_int_eq(world_init(&w, &config), 0);
	w.engine = prefixd_engine_free(w.engine);
	w.config.engine.alloc = &alloc;
	ck_assert_int_eq(prefixd_engine_new(&w.engine, &w.config.engine), 0);
	at = scene_place(&w, 100, 1000, &o);
	for (uint32_t i = 0; i < n_prompts; i++) {
		uint32_t tokens[16] = { i * 2654435761u, i };
		struct scene_prompt p = scene_tokens(&at, tokens, 16);
		struct proto_match_rep m;
		struct proto_reserve_req r = { .n = 4 };
		struct proto_reserve_rep got;
		struct proto_commit_req c = { .n = 4 };
		struct proto_commit_rep done;

		scene_match(&at, &p, &m);
		r.lease = c.lease = m.lease;
		ck_assert_int_eq(world_reserve(at.c, &r, &got), PROTO_STATUS_OK);
		ck_assert_int_eq(world_commit(at.c, &c, &done), PROTO_STATUS_OK);
		scene_release(&at, m.lease, NULL);
	}
	evict.u.admin.n = 1;
	for (uint32_t i = 0; i < 50; i++) {
		arena.faults = 0;
		ck_assert_int_eq(mprotect(arena.base, ARENA, PROT_NONE), 0);
		prefixd_engine_step(w.engine, &evict, w.now_ns);
		ck_assert_int_eq(mprotect(arena.base, ARENA, PROT_READ | PROT_WRITE), 0);
		ck_assert_uint_eq(evict.ret_n, 1);
		worst = (uint32_t)arena.faults > worst ? (uint32_t)arena.faults : worst;
	}
	world_deinit(&w);
	return worst;
}

START_TEST(cost_of_a_victim)
{
	struct sigaction sa = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	uint32_t small, large;

	arena.base = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert_ptr_ne(arena.base, MAP_FAILED);
	ck_assert_int_eq(sigaction(SIGSEGV, &sa, NULL), 0);
	small = pages_per_victim(250);    /* 1,000 blocks */
	large = pages_per_victim(100000); /* 400,000 blocks */
	fprintf(stderr, "pages looked at for one victim: %u of 1,000 blocks, %u of 400,000\n",
		small, large);
	ck_assert_uint_gt(small, 0);
	ck_assert_uint_le(large, 64); /* a scan of leaves would need about 1,000 */
	munmap(arena.base, ARENA);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sharing");

	scene_case(s, "T15", double_release);
	scene_case(s, "T32", ready_after_commit);
	scene_case(s, "T32", dead_writer);
	scene_case(s, "T51", cost_of_a_victim);
	scene_case(s, "T59", same_slots);
	return scene_main(s);
}
