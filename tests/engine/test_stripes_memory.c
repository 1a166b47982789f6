/*
 * test_stripes_memory.c - every allocation of what ranks do fails once.
 *
 * Whoever is told NO_MEMORY asks again and must then succeed with the result of an undisturbed run,
 * whether the want was his own or of the rank that came first.  Every invariant is verified after
 * each step, and in the end every byte is given back.
 */
#include "tests/engine/ranks.h"

#include <stdio.h>

static struct world *const w = &ranks.w;

#define DO(call)                                                                  \
	do {                                                                      \
		int status = (call);                                              \
		if (status == PROTO_STATUS_NO_MEMORY) {                           \
			ck_assert_uint_eq(w->heap.n_failed, 1);                   \
			status = (call);                                          \
		}                                                                 \
		ck_assert_msg(status == PROTO_STATUS_OK, "line %d: %s", __LINE__, \
			      proto_status_to_string((uint16_t)status));          \
	} while (0)

static struct proto_id op(void)
{
	static uint32_t n;
	struct proto_id id = { { 1 } };

	n++;
	memcpy(id.b + 4, &n, 4);
	return id;
}

static void match(uint32_t rank, uint64_t decision, uint32_t want, struct proto_match_rep *ret)
{
	struct proto_match_req m = ranks_match_req(&ranks.at[rank], decision, 1000, 6);

	m.op_id = op();
	DO(world_match(ranks.at[rank].c, &m, ret));
	ck_assert_uint_eq(ret->n_device, want);
}

static void reserve(uint32_t rank, uint64_t lease, uint32_t n)
{
	struct proto_reserve_req m = { .lease = lease, .n = n, .op_id = op() };
	struct proto_reserve_rep rep;

	DO(world_reserve(ranks.at[rank].c, &m, &rep));
	ck_assert_uint_eq(rep.n, n);
}

static void commit(uint32_t rank, uint64_t lease, bool last)
{
	static const uint8_t sum[16] = { 7 };
	struct proto_commit_req m = {
		.lease = lease, .n = 1, .op_id = op(), .checksum_kind = 1, .checksums = { sum, 16 }
	};
	struct proto_commit_rep rep;

	DO(world_commit(ranks.at[rank].c, &m, &rep));
	ck_assert_uint_eq(rep.n_stored, last);
}

static void release(uint32_t rank, uint64_t lease)
{
	struct proto_release_req m = { .lease = lease, .op_id = op() };
	struct proto_release_rep rep;

	DO(world_release(ranks.at[rank].c, &m, &rep));
}

static void wait_lead(uint32_t rank, uint64_t lease)
{
	struct proto_wait_req m = { .lease = lease };
	struct proto_wait_rep rep;

	DO(world_wait(ranks.at[rank].c, &m, &rep));
	ck_assert_int_eq(rep.state, PROTO_WAIT_LEAD);
}

static void extend(uint32_t rank, uint64_t lease)
{
	uint32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct proto_extend_req m = {
		.lease = lease, .op_id = op(), .n_tokens = 32, .keys = { tokens, sizeof(tokens) }
	};
	struct proto_match_rep rep;

	DO(world_extend(ranks.at[rank].c, &m, &rep));
}

static void script(void)
{
	struct proto_match_rep m;
	uint64_t lease = 0;

	for (uint32_t i = 0; i < 2; i++) {
		match(i, 1, 0, &m);
		lease = m.lease;
		wait_lead(i, lease);
		reserve(i, lease, 4);
		extend(i, lease);
		reserve(i, lease, 2);
	}
	for (uint32_t k = 0; k < 3; k++)
		for (uint32_t i = 0; i < 2; i++)
			commit(i, lease, i == 1);
	for (uint32_t i = 0; i < 2; i++)
		release(i, lease);
	for (uint32_t i = 0; i < 2; i++) {
		match(i, 2, 3, &m);
		reserve(i, m.lease, 2);
	}
	world_gone(ranks.at[1].c);
	release(0, m.lease);
}

static bool run(uint64_t n)
{
	struct radix_stats st;
	bool failed;

	ranks_config();
	ranks.config.record = false;
	ranks.config.engine.grace_ns = 1000;
	ranks_begin(2);
	test_heap_fail_at(&w->heap, n);
	script();
	failed = w->heap.n_failed > 0;
	test_heap_fail_at(&w->heap, 0);
	world_advance(w, 20000000000u);
	world_stats(w, 0, &st);
	ck_assert_uint_eq(st.n_pins, 0);
	ck_assert_uint_eq(st.slots[RADIX_SLOT_FREE] + st.slots[RADIX_SLOT_READY], 32);
	world_deinit(w);
	return failed;
}

START_TEST(each_allocation)
{
	uint64_t n = 1;

	while (run(n))
		n++;
	fprintf(stderr, "%llu allocations failed, one per run\n", (unsigned long long)n - 1);
	ck_assert_uint_gt(n, 30);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stripes-memory");

	scene_case(s, "memory", each_allocation);
	return scene_main(s);
}
