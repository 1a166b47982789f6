/*
 * test_ranks.c - the thread that copies blocks of several ranks: each piece arrives at its rank,
 * and one piece that fails fails the block.
 *
 * With an argument it runs on that device: host, sim, cuda (four GPUs of the look-alike driver).
 * Devices that refuse as told are the host's, one for each rank.
 */
#include "proto/messages.h"
#include "tests/e2e/ranks_kit.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static const uint32_t ranks_of[] = { 1, 2, 4 };

/* ---- bytes and sums -------------------------------------------------------------------------- */

/* Up, down and through a buffer: what arrives is what left, each piece at its rank. */
START_TEST(pieces_arrive)
{
	const uint32_t n = ranks_of[_i];
	const struct gpu_sim_config slow = { .ns_per_kib = 1000, .latency_ns = 100000 };

	ranks_start(n, &slow);
	for (uint32_t i = 0; i < SLOTS; i++) {
		ranks_block_fill(ranks_host(i), i);
		ranks_move(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, SLOTS - 1 - i);
		ranks_slot_expect(SLOTS - 1 - i, i);
	}
	for (uint32_t i = 0; i < SLOTS; i++) {
		memset(ranks_host(i), 0, n * BYTES);
		ranks_move(PREFIXD_PLACE_DEVICE, i, PREFIXD_PLACE_HOST, i);
		ranks_block_expect(ranks_host(i), SLOTS - 1 - i);
	}
	ranks_move(PREFIXD_PLACE_DEVICE, 3, PREFIXD_PLACE_STAGE, 1);
	ranks_block_expect(prefixd_pool_stage(pool, 1), SLOTS - 1 - 3);
	ranks_move(PREFIXD_PLACE_STAGE, 1, PREFIXD_PLACE_DEVICE, 9);
	ranks_slot_expect(9, SLOTS - 1 - 3);
	ranks_slot_expect(10, SLOTS - 1 - 10); /* its neighbour */
	ck_assert_uint_eq(ranks_stats().bytes, (2 * SLOTS + 2) * n * BYTES);
	ck_assert_uint_eq(ranks_stats().in_flight + ranks_stats().waiting, 0);
	ranks_stop();
}
END_TEST

START_TEST(sums_are_those_of_the_pieces)
{
	const uint32_t n = ranks_of[_i];
	struct prefixd_carrier_message *m;
	uint8_t right[16];

	ranks_start(n, NULL);
	ranks_block_fill(ranks_host(0), 5);
	ranks_block_sum(5, n, right);
	m = ranks_copy(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, 0);
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(ranks_receive(), m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(m->summed);
	ck_assert_mem_eq(m->checksum, right, 16);
	m->from = PREFIXD_PLACE_DEVICE;
	m->to = PREFIXD_PLACE_HOST;
	m->dst = 1;
	/* One byte of one rank's piece, whichever: it is seen, by sums of either kind. */
	for (uint32_t i = 0; i < 2 * (n + 1); i++) {
		const uint32_t rank = i % (n + 1);
		const bool bad = rank<n, kernels = i> n;
		uint8_t *byte = slots[rank % n] + BYTES - 1;

		m->checksum_kind = kernels ? PROTO_CHECKSUM_KERNEL : PROTO_CHECKSUM_XXH3_128;
		if (kernels)
			ranks_kernel_sum(5, n, m->checksum);
		*byte ^= bad;
		prefixd_carrier_send(c, m);
		ck_assert_ptr_eq(ranks_receive(), m);
		ck_assert_int_eq(m->result, bad ? PREFIXD_MOVE_CORRUPT : PREFIXD_MOVE_OK);
		ck_assert(m->summed == (!bad && !kernels));
		*byte ^= bad;
	}
	/* And on the way up. */
	ranks_host(1)[0] ^= 1;
	m->from = PREFIXD_PLACE_HOST;
	m->to = PREFIXD_PLACE_DEVICE;
	m->src = 1;
	m->dst = 0;
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(ranks_receive(), m);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_CORRUPT);
	ranks_host(1)[0] ^= 1;
	ranks_block_expect(ranks_host(1), 5);
	prefixd_carrier_message_free(m);
	ranks_stop();
}
END_TEST

/* Thousands of copies of blocks that lie side by side, urgent ones between. */
START_TEST(storm)
{
	const struct gpu_sim_config sim = {
		.ns_per_kib = 20, .latency_ns = 3000, .queue_depth = 7, .reorder_seed = 99
	};
	const uint32_t n = ranks_of[_i];
	bool busy[SLOTS] = { false };
	uint32_t answers = 0, sent = 0;
	uint64_t rng = 4;

	ranks_start(n, &sim);
	for (uint32_t i = 0; i < SLOTS; i++)
		ranks_block_fill(ranks_host(i), i);
	while (answers < 3000) {
		uint32_t i = test_rng_below(&rng, SLOTS);
		struct prefixd_carrier_message *m;

		if (!busy[i] && sent < 3000) {
			m = ranks_copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i);
			m->id = i;
			m->urgent = test_rng_below(&rng, 3) == 0;
			m->checksum_kind = 1;
			ranks_block_sum(i, n, m->checksum);
			memset(slots[n - 1] + i * pool->info.slot_stride, 0, BYTES);
			prefixd_carrier_send(c, m);
			busy[i] = true;
			sent++;
			continue;
		}
		m = ranks_receive();
		ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
		ranks_slot_expect(m->id, m->id);
		busy[m->id] = false;
		answers++;
		prefixd_carrier_message_free(m);
	}
	ck_assert_uint_eq(ranks_stats().ops[PREFIXD_CARRIER_COPY].failed, 0);
	ck_assert_uint_eq(ranks_stats().in_flight + ranks_stats().waiting, 0);
	ranks_stop();
}
END_TEST

/* Of the block in slot i; `wrong`: another one's. */
static struct prefixd_carrier_message *verify(uint64_t wrong)
{
	struct prefixd_carrier_message *m = calloc(1,
						   sizeof(*m) + SLOTS * sizeof(struct radix_sum));
	struct radix_sum *sums;

	ck_assert_ptr_nonnull(m);
	sums = (struct radix_sum *)(m + 1);
	for (uint32_t i = 0; i < SLOTS; i++) {
		sums[i].slot = i;
		ranks_block_sum(i + (wrong >> i & 1), pool->n_ranks, sums[i].checksum);
	}
	m->message.kind = PREFIXD_CARRIER_VERIFY;
	m->pool = pool;
	m->sums = sums;
	m->n_sums = SLOTS;
	return m;
}

START_TEST(blocks_are_compared_piece_by_piece)
{
	const uint64_t all = (UINT64_C(1) << SLOTS) - 1;
	const uint32_t n = ranks_of[_i];
	uint64_t bad = 0x5;

	ranks_start(n, NULL);
	for (uint32_t i = 0; i < SLOTS; i++) {
		ranks_block_fill(ranks_host(0), i);
		ranks_move(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, i);
	}
	for (uint32_t rank = 0; rank < n; rank++) { /* a byte of each rank's in a slot of its own */
		slots[rank][(8 + rank) * pool->info.slot_stride] ^= 1;
		bad |= UINT64_C(1) << (8 + rank);
	}
	for (int i = 0; i < 2; i++) {
		struct prefixd_carrier_message *m = verify(0x5);

		prefixd_carrier_send(c, m);
		ck_assert_ptr_eq(ranks_receive(), m);
		ck_assert_int_eq(m->error, 0);
		ck_assert_uint_eq(m->done, all);
		ck_assert_uint_eq(m->bad, bad);
		prefixd_carrier_message_free(m);
	}
	ranks_stop();
}
END_TEST

/* The pool goes while a block is looked at piece by piece, and another pool is looked at next. */
START_TEST(a_pool_goes_between_two_pieces)
{
	const struct gpu_sim_config sim = { .latency_ns = 2000000 };
	struct prefixd_carrier_message *m;

	ranks_start(2, &sim);
	for (int round = 0; round < 8; round++) {
		struct timespec ts = { .tv_nsec = 1000000 * (1 + round) };

		for (uint32_t i = 0; i < SLOTS; i++) {
			ranks_block_fill(ranks_host(0), i);
			ranks_move(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, i);
		}
		prefixd_carrier_send(c, verify(0));
		nanosleep(&ts, NULL);
		m = ranks_message(PREFIXD_CARRIER_POOL_FREE);
		for (uint32_t i = 0; i < 2; i++)
			ck_assert_int_eq(munmap(slots[i], pool->ranks[i].info.len), 0);
		prefixd_carrier_send(c, m);
		for (int i = 0; i < 2; i++) {
			m = ranks_receive();
			ck_assert_int_eq(m->error, 0);
			ck_assert_uint_eq(m->bad, 0);
			prefixd_carrier_message_free(m);
		}
		pool = NULL;
		ranks_pool_make(2);
		ranks_block_fill(ranks_host(0), 0);
		ranks_move(PREFIXD_PLACE_HOST, 0, PREFIXD_PLACE_DEVICE, 0);
		m = verify(0);
		m->n_sums = 1;
		prefixd_carrier_send(c, m);
		ck_assert_ptr_eq(ranks_receive(), m);
		ck_assert_uint_eq(m->done, 1);
		ck_assert_uint_eq(m->bad, 0);
		prefixd_carrier_message_free(m);
	}
	ranks_stop();
}
END_TEST

/* ---- one of them fails ----------------------------------------------------------------------- */

/* The device fails one job: the block that it is of, whichever rank's, and no other. */
START_TEST(one_piece_that_fails_fails_the_block)
{
	const struct gpu_sim_config sim = { .fail_job = (uint32_t)_i + 1 };
	struct prefixd_carrier_message *m;
	int error;

	ranks_start(4, &sim);
	for (uint32_t i = 0; i < 3; i++) {
		ranks_block_fill(ranks_host(i), i);
		m = ranks_copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i);
		if (i == (uint32_t)_i / 4) {
			ck_assert_int_eq(ranks_carried(m, &error), PREFIXD_MOVE_FAILED);
			ck_assert_int_eq(error, -EIO);
		} else {
			ck_assert_int_eq(ranks_carried(m, NULL), PREFIXD_MOVE_OK);
			ranks_slot_expect(i, i);
		}
	}
	ck_assert_uint_eq(ranks_stats().ops[PREFIXD_CARRIER_COPY].failed, 1);
	ck_assert_uint_eq(ranks_stats().bytes, 2 * 4 * BYTES);
	ck_assert_uint_eq(ranks_stats().in_flight + ranks_stats().waiting, 0);
	ranks_stop();
}
END_TEST

/* Devices that refuse as told, else like the host's: one for each rank. */
static struct refuser {
	struct gpu gpu;
	struct gpu *real;
	_Atomic int error;    /* of the next submits */
	_Atomic int n_submit; /* so many of them */
	struct gpu_pool *pool;
	uint64_t less; /* so much shorter than it is, its pool is said to be */
} refusers[MAX_RANKS];

static struct gpu_ops refuser_ops;

static struct refuser *refuser_of(const struct gpu *g)
{
	return radix_container_of((uintptr_t)g, struct refuser, gpu);
}

static int refuser_submit(struct gpu *g, struct gpu_job *job)
{
	struct refuser *r = refuser_of(g);

	if (r->n_submit > 0) {
		r->n_submit--;
		return r->error;
	}
	return r->real->ops->submit(r->real, job);
}

static uint32_t refuser_reap(struct gpu *g, uint32_t budget)
{
	struct refuser *r = refuser_of(g);

	return r->real->ops->reap(r->real, budget);
}

static int refuser_event_fd(const struct gpu *g)
{
	const struct refuser *r = refuser_of(g);

	return r->real->ops->event_fd(r->real);
}

static int refuser_pool_new(struct gpu *g, uint32_t n, uint64_t bytes, struct gpu_pool **ret)
{
	struct refuser *r = refuser_of(g);

	int e = r->real->ops->pool_new(r->real, n, bytes, ret);

	r->pool = e == 0 ? *ret : NULL;
	return e;
}

static void refuser_pool_info(const struct gpu_pool *p, struct gpu_pool_info *ret)
{
	for (uint32_t i = 0; i < MAX_RANKS; i++) {
		if (refusers[i].pool != p)
			continue;
		refusers[i].real->ops->pool_info(p, ret);
		ret->len -= refusers[i].less;
		ret->slab_bytes -= refusers[i].less;
	}
}

static void refuser_close(struct gpu *g)
{
	gpu_close(refuser_of(g)->real);
}

static void refuser_pool_free(struct gpu *g, struct gpu_pool *p)
{
	struct refuser *r = refuser_of(g);

	r->real->ops->pool_free(r->real, p);
}

static void start_refusing(void)
{
	char why[128];

	for (uint32_t i = 0; i < MAX_RANKS; i++) {
		struct refuser *r = &refusers[i];

		ck_assert_int_eq(gpu_open("host", NULL, &r->real, why, sizeof(why)), 0);
		refuser_ops = *r->real->ops;
		refuser_ops.submit = refuser_submit;
		refuser_ops.reap = refuser_reap;
		refuser_ops.event_fd = refuser_event_fd;
		refuser_ops.pool_new = refuser_pool_new;
		refuser_ops.pool_info = refuser_pool_info;
		refuser_ops.pool_free = refuser_pool_free;
		refuser_ops.close = refuser_close;
		r->gpu.ops = &refuser_ops;
		devices.v[devices.n++] = &r->gpu;
	}
	ranks_carrier_start();
	ranks_pool_make(MAX_RANKS);
}

static const int errors[] = { EAGAIN, EINVAL, ENOMEM, EIO, ENODEV };

/* Each rank's device refuses in its turn: that is the end of the block, unless it is only full. */
START_TEST(F48_one_device_refuses)
{
	const int error = -errors[_i];

	start_refusing();
	for (uint32_t rank = 0; rank < MAX_RANKS; rank++) {
		enum prefixd_move_result result;
		int got;

		ranks_block_fill(ranks_host(rank), rank);
		refusers[rank].error = error;
		refusers[rank].n_submit = 1;
		result = ranks_carried(
			ranks_copy(PREFIXD_PLACE_HOST, rank, PREFIXD_PLACE_DEVICE, rank), &got);
		ck_assert_int_eq(refusers[rank].n_submit, 0);
		if (error == -EAGAIN) {
			ck_assert_int_eq(result, PREFIXD_MOVE_OK);
			ranks_slot_expect(rank, rank);
		} else {
			ck_assert_int_eq(result, PREFIXD_MOVE_FAILED);
			ck_assert_int_eq(got, error);
		}
		ck_assert_uint_eq(ranks_stats().in_flight + ranks_stats().waiting, 0);
		ck_assert(ranks_stats().lost == (error == -ENODEV));
		ranks_move(PREFIXD_PLACE_HOST, rank, PREFIXD_PLACE_DEVICE, 8);
		ranks_slot_expect(8, rank);
	}
	ranks_stop();
}
END_TEST

/* Rank 2's memory ends before the others': workers are told what all have. */
START_TEST(the_least_length_counts)
{
	const uint64_t stride = (BYTES + 63) / 64 * 64;

	refusers[2].less = 512;
	start_refusing();
	ck_assert_uint_eq(pool->info.len, pool->ranks[2].info.len);
	ck_assert_uint_eq(pool->info.slab_bytes, pool->ranks[2].info.len);
	ck_assert_uint_eq(pool->ranks[0].info.len, pool->info.len + 512);
	ck_assert_uint_ge(pool->info.len, SLOTS * stride);
	ranks_stop();
}
END_TEST

/* One device stays full: blocks wait behind it, and the end comes all the same. */
START_TEST(stopped_with_a_block_handed_over_in_part)
{
	struct timespec ts = { .tv_nsec = 20000000 };

	start_refusing();
	refusers[2].error = -EAGAIN;
	refusers[2].n_submit = INT32_MAX;
	for (uint32_t i = 0; i < SLOTS; i++)
		prefixd_carrier_send(c, ranks_copy(PREFIXD_PLACE_HOST, i, PREFIXD_PLACE_DEVICE, i));
	nanosleep(&ts, NULL);
	ck_assert_uint_eq(ranks_stats().in_flight, 1);
	ck_assert_uint_eq(ranks_stats().waiting, SLOTS - 1);
	if (_i == 1) { /* it takes them after all */
		refusers[2].n_submit = 0;
		for (uint32_t i = 0; i < SLOTS; i++) {
			struct prefixd_carrier_message *m = ranks_receive();

			ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
			prefixd_carrier_message_free(m);
		}
		ck_assert_uint_eq(ranks_stats().in_flight + ranks_stats().waiting, 0);
	}
	ranks_stop();
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("ranks");
	TCase *tc = tcase_create("all");
	const int n = radix_array_size(ranks_of);

	if (argc > 1)
		ranks_device = argv[1];
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, ranks_setup, ranks_teardown);
	tcase_add_loop_test(tc, pieces_arrive, 0, n);
	tcase_add_loop_test(tc, sums_are_those_of_the_pieces, 0, n);
	tcase_add_loop_test(tc, storm, 0, n);
	tcase_add_loop_test(tc, blocks_are_compared_piece_by_piece, 0, n);
	tcase_add_test(tc, a_pool_goes_between_two_pieces);
	if (strcmp(ranks_device, "sim") == 0)
		tcase_add_loop_test(tc, one_piece_that_fails_fails_the_block, 0, 12);
	if (strcmp(ranks_device, "host") == 0) {
		tcase_add_loop_test(tc, F48_one_device_refuses, 0, radix_array_size(errors));
		tcase_add_test(tc, the_least_length_counts);
		tcase_add_loop_test(tc, stopped_with_a_block_handed_over_in_part, 0, 2);
	}
	suite_add_tcase(s, tc);
	return test_run(s);
}
