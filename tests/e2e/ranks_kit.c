/*
 * ranks_kit.c - see ranks_kit.h.
 */
#include "tests/e2e/ranks_kit.h"

#include "gpu/codec.h"
#include "tests/lib/rng.h"

#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

const char *ranks_device = "host";
struct gpu_devices devices;
struct prefixd_carrier *c;
struct prefixd_keep *keep;
struct prefixd_pool *pool;
uint8_t *slots[MAX_RANKS];

/* ---- a pool and its thread ------------------------------------------------------------------- */

struct prefixd_pool_plan ranks_plan_of(uint32_t n_ranks, bool adopt)
{
	struct prefixd_pool_plan plan = { .group = GROUP,
					  .n_ranks = n_ranks,
					  .n_slots = SLOTS,
					  .n_host = HOST,
					  .n_stage = STAGE,
					  .slot_bytes = BYTES,
					  .host_left = UINT64_MAX,
					  .keep = keep,
					  .table_len = 1 << 20,
					  .adopt = adopt };

	memset(plan.fds, -1, sizeof(plan.fds));
	return plan;
}

struct prefixd_carrier_message *ranks_message(enum prefixd_carrier_op op)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	ck_assert_ptr_nonnull(m);
	m->message.kind = op;
	m->pool = pool;
	return m;
}

struct prefixd_carrier_message *ranks_receive(void)
{
	struct pollfd p = { .events = POLLIN };
	struct prefixd_carrier_message *m;

	while (!(m = prefixd_carrier_receive(c))) {
		p.fd = prefixd_helper_answer_fd(prefixd_carrier_helper(c));
		ck_assert_msg(poll(&p, 1, 20000) == 1, "no answer");
	}
	return m;
}

void ranks_devices_open(const struct gpu_sim_config *sim)
{
	char why[320];

	ck_assert_msg(gpu_devices_open(ranks_device, sim, &devices, why, sizeof(why)) == 0, "%s",
		      why);
	ck_assert_uint_eq(devices.n, strcmp(ranks_device, "cuda") == 0 ? 4 : 1);
}

void ranks_map(void)
{
	for (uint32_t i = 0; i < pool->n_ranks; i++) {
		const struct prefixd_rank *rank = &pool->ranks[i];

		ck_assert_ptr_eq(rank->gpu, devices.v[i % devices.n]);
		slots[i] = mmap(NULL, rank->info.len, PROT_READ | PROT_WRITE, MAP_SHARED,
				rank->gpu->ops->pool_fd(rank->pool, 0, false), 0);
		ck_assert(slots[i] != MAP_FAILED);
	}
}

void ranks_pool_make(uint32_t n_ranks)
{
	struct prefixd_carrier_message *m = ranks_message(PREFIXD_CARRIER_POOL_NEW);

	m->plan = ranks_plan_of(n_ranks, false);
	prefixd_carrier_send(c, m);
	m = ranks_receive();
	ck_assert_msg(m->pool != NULL, "%s", m->why);
	pool = m->pool;
	prefixd_carrier_message_free(m);
	ck_assert_uint_eq(pool->n_ranks, n_ranks);
	ck_assert_uint_eq(pool->n_stage, STAGE);
	ranks_map();
}

void ranks_carrier_start(void)
{
	const struct prefixd_carrier_config config = { .devices = &devices };

	ck_assert_int_eq(prefixd_carrier_start(&c, &config), 0);
}

void ranks_start(uint32_t n_ranks, const struct gpu_sim_config *sim)
{
	ranks_devices_open(sim);
	ranks_carrier_start();
	ranks_pool_make(n_ranks);
}

void ranks_stop(void)
{
	for (uint32_t i = 0; pool && i < pool->n_ranks; i++)
		ck_assert_int_eq(munmap(slots[i], pool->ranks[i].info.len), 0);
	prefixd_carrier_stop(c);
	gpu_devices_close(&devices);
	prefixd_pool_free(NULL, pool);
	pool = NULL;
	c = prefixd_carrier_free(c);
}

void ranks_setup(void)
{
	const struct prefixd_keep_config config = { .keeper = PREFIXD_KEEPER_NONE,
						    .admin_socket = "none.sock" };
	char why[256];

	ck_assert_msg(prefixd_keep_start(&keep, &config, why, sizeof(why)) == 0, "%s", why);
}

void ranks_teardown(void)
{
	keep = prefixd_keep_stop(keep, true);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* What a rank's piece of a block is. */
static void piece_fill(uint8_t *piece, uint32_t block, uint32_t rank)
{
	uint64_t seed = (uint64_t)block << 8 | rank;

	test_rng_fill(&seed, piece, BYTES);
}

void ranks_block_fill(uint8_t *p, uint32_t block)
{
	for (uint32_t i = 0; i < pool->n_ranks; i++)
		piece_fill(p + (size_t)i * BYTES, block, i);
}

static void piece_expect(const uint8_t *piece, uint32_t block, uint32_t rank)
{
	uint8_t want[BYTES];

	piece_fill(want, block, rank);
	ck_assert_msg(memcmp(piece, want, BYTES) == 0, "block %u, rank %u", block, rank);
}

void ranks_block_expect(const uint8_t *p, uint32_t block)
{
	for (uint32_t i = 0; i < pool->n_ranks; i++)
		piece_expect(p + (size_t)i * BYTES, block, i);
}

void ranks_slot_expect(uint32_t slot, uint32_t block)
{
	for (uint32_t i = 0; i < pool->n_ranks; i++)
		piece_expect(slots[i] + slot * pool->info.slot_stride, block, i);
}

uint8_t *ranks_host(uint32_t slot)
{
	return prefixd_pool_host(pool, slot);
}

void ranks_block_sum(uint32_t block, uint32_t n_ranks, uint8_t out[16])
{
	XXH128_canonical_t sums[MAX_RANKS], all;
	uint8_t piece[BYTES];

	for (uint32_t i = 0; i < n_ranks; i++) {
		piece_fill(piece, block, i);
		XXH128_canonicalFromHash(&sums[i], XXH3_128bits(piece, BYTES));
	}
	XXH128_canonicalFromHash(&all, XXH3_128bits(sums, n_ranks * sizeof(sums[0])));
	memcpy(out, n_ranks == 1 ? sums[0].digest : all.digest, 16);
}

void ranks_kernel_sum(uint32_t block, uint32_t n_ranks, uint8_t out[16])
{
	uint64_t sums[MAX_RANKS][2]; /* the lowest byte first, as they lie in memory */
	uint8_t piece[BYTES];
	XXH128_canonical_t all;

	for (uint32_t i = 0; i < n_ranks; i++) {
		piece_fill(piece, block, i);
		gpu_checksum(gpu_codec_best(), piece, BYTES, sums[i]);
	}
	XXH128_canonicalFromHash(&all, XXH3_128bits(sums, n_ranks * sizeof(sums[0])));
	memcpy(out, n_ranks == 1 ? (const uint8_t *)sums[0] : all.digest, 16);
}

struct prefixd_carrier_message *ranks_copy(enum prefixd_place from, uint32_t src,
					   enum prefixd_place to, uint32_t dst)
{
	struct prefixd_carrier_message *m = ranks_message(PREFIXD_CARRIER_COPY);

	m->from = from;
	m->to = to;
	m->src = src;
	m->dst = dst;
	return m;
}

enum prefixd_move_result ranks_carried(struct prefixd_carrier_message *m, int *ret_error)
{
	enum prefixd_move_result result;

	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(ranks_receive(), m);
	result = m->result;
	if (ret_error)
		*ret_error = m->error;
	prefixd_carrier_message_free(m);
	return result;
}

void ranks_move(enum prefixd_place from, uint32_t src, enum prefixd_place to, uint32_t dst)
{
	ck_assert_int_eq(ranks_carried(ranks_copy(from, src, to, dst), NULL), PREFIXD_MOVE_OK);
}

struct prefixd_carrier_stats ranks_stats(void)
{
	struct prefixd_carrier_stats st;

	prefixd_carrier_stats(c, &st);
	return st;
}
