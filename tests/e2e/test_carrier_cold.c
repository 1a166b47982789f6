/*
 * test_carrier_cold.c - the carrier over a coded pool, on the device that the argument names: what
 * lies below is what the codec makes of the block, what comes up what it makes of that, and nothing
 * that is not sealed as this block's ever does.  "sim-codes" is a device that codes by itself; so
 * is "cuda", if its kernels were built.
 */
#include "daemon/carrier.h"
#include "gpu/codec.h"
#include "proto/messages.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	DEVICE = 24,
	HOST = 24,
	STAGE = 8,
	BLOCK = 2 * 4 * 2 * 16 * 64 * 2, /* layers, K and V, heads, tokens, elements of 2 bytes */
};

static const char *device = "host";
static bool sim_codes, codes; /* the device has to; it does */
static struct prefixd_carrier *c;
static struct gpu_devices devices;
static struct prefixd_pool *pool;
static uint64_t rng = 11;

static const struct prefixd_cold cold = {
	.codec = GPU_CODEC_E4M3,
	.element = GPU_ELEMENT_F16,
	.layers = 4,
	.heads = 2,
	.dim = 64,
	.tokens = 16,
	.exact = { 1 }, /* the first layer */
};

static struct prefixd_carrier_message *receive(void)
{
	struct pollfd p = { .events = POLLIN };
	struct prefixd_carrier_message *m;

	while (!(m = prefixd_carrier_receive(c))) {
		p.fd = prefixd_helper_answer_fd(prefixd_carrier_helper(c));
		ck_assert_msg(poll(&p, 1, 20000) == 1, "no answer");
	}
	return m;
}

static void start(const struct gpu_sim_config *sim)
{
	struct gpu_sim_config plan = sim ? *sim : (struct gpu_sim_config){ 0 };
	struct prefixd_carrier_config config = { .ring = 64 };
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));
	char why[256];

	ck_assert_ptr_nonnull(m);
	plan.codes = sim_codes;
	ck_assert_msg(gpu_devices_open(device, &plan, &devices, why, sizeof(why)) == 0, "%s", why);
	config.devices = &devices;
	ck_assert_int_eq(prefixd_carrier_start(&c, &config), 0);
	m->message.kind = PREFIXD_CARRIER_POOL_NEW;
	m->plan = (struct prefixd_pool_plan){ .n_slots = DEVICE,
					      .n_host = HOST,
					      .n_stage = STAGE,
					      .slot_bytes = BLOCK,
					      .cold = cold,
					      .host_left = UINT64_MAX };
	ck_assert(prefixd_cold_ok(&cold, BLOCK));
	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	ck_assert_msg(m->pool != NULL, "%s", m->why);
	pool = m->pool;
	codes = pool->ranks[0].gpu->ops->codes(pool->ranks[0].gpu);
	ck_assert(codes || !sim_codes);
	ck_assert_uint_lt(pool->host_stride, BLOCK);
	free(m);
}

static void stop(void)
{
	prefixd_carrier_stop(c);
	gpu_devices_close(&devices);
	prefixd_pool_free(NULL, pool);
	c = prefixd_carrier_free(c);
}

static struct prefixd_carrier_message *copy(enum prefixd_place from, uint32_t src,
					    enum prefixd_place to, uint32_t dst)
{
	struct prefixd_carrier_message *m = calloc(1, sizeof(*m));

	ck_assert_ptr_nonnull(m);
	m->message.kind = PREFIXD_CARRIER_COPY;
	m->pool = pool;
	m->from = from;
	m->to = to;
	m->src = src;
	m->dst = dst;
	m->entry = 7;
	m->generation = 9;
	return m;
}

/* Sends it and waits: the answer, which is freed with the next one. */
static const struct prefixd_carrier_message *carried(struct prefixd_carrier_message *m)
{
	static struct prefixd_carrier_message *last;

	prefixd_carrier_send(c, m);
	ck_assert_ptr_eq(receive(), m);
	free(last);
	last = m;
	return m;
}

static void sum(const void *block, uint8_t out[16])
{
	XXH128_canonical_t s;

	XXH128_canonicalFromHash(&s, XXH3_128bits(block, BLOCK));
	memcpy(out, s.digest, 16);
}

/* Finite fp16 numbers of all sizes. */
static void fill(uint16_t *x)
{
	for (uint32_t i = 0; i < BLOCK / 2; i++)
		x[i] = (uint16_t)(test_rng_below(&rng, 0x7a00) | test_rng_below(&rng, 2) << 15);
}

static void *room(void)
{
	void *p = aligned_alloc(64, BLOCK);

	ck_assert_ptr_nonnull(p);
	return p;
}

/* The block as it is lies in a device slot. */
static void put(const void *x, uint32_t slot)
{
	memcpy(prefixd_pool_stage(pool, STAGE - 1), x, BLOCK);
	ck_assert_int_eq(
		carried(copy(PREFIXD_PLACE_STAGE, STAGE - 1, PREFIXD_PLACE_DEVICE, slot))->result,
		PREFIXD_MOVE_OK);
}

/* What lies in a device slot, by what the carrier says when it goes down. */
static void lies(uint32_t slot, const void *want)
{
	struct prefixd_carrier_message *m = copy(PREFIXD_PLACE_DEVICE, slot, PREFIXD_PLACE_HOST,
						 HOST - 1);

	m->checksum_kind = PROTO_CHECKSUM_XXH3_128;
	sum(want, m->checksum);
	ck_assert_int_eq(carried(m)->result, PREFIXD_MOVE_OK);
	ck_assert(m->summed);
}

START_TEST(down_and_up)
{
	const uint64_t len = prefixd_cold_bytes(&cold, BLOCK);
	uint8_t *x = room(), *coded = room(), *back = room();
	const struct prefixd_carrier_message *m;
	struct prefixd_carrier_message *up;
	struct prefixd_carrier_stats st;

	start(NULL);
	fill((uint16_t *)(void *)x);
	ck_assert(prefixd_cold_encode(&cold, x, coded));
	prefixd_cold_decode(&cold, coded, back);
	put(x, 0);
	lies(0, x);
	m = carried(copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_HOST, 5));
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(m->coded && !m->lossy);
	ck_assert(m->summed == !codes);
	ck_assert_mem_eq(prefixd_pool_host(pool, 5), coded, len);
	m = carried(copy(PREFIXD_PLACE_HOST, 5, PREFIXD_PLACE_DEVICE, 1));
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(m->lossy);
	lies(1, back);
	ck_assert_mem_eq(back, x, 4 * 16 * 64 * 2); /* the exact layer */
	ck_assert_mem_ne(back, x, BLOCK);
	m = carried(copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_STAGE, 2));
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(m->coded);
	ck_assert_mem_eq(prefixd_pool_stage(pool, 2), coded, len);
	up = copy(PREFIXD_PLACE_STAGE, 2, PREFIXD_PLACE_DEVICE, 3);
	up->coded = true;
	m = carried(up);
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(m->lossy);
	lies(3, back);
	prefixd_carrier_stats(c, &st);
	ck_assert_uint_eq(st.coded, 5);
	ck_assert_uint_eq(st.coded_by_device,
			  codes ? 4 : 0); /* but for those that lies() compared */
	ck_assert_uint_eq(st.decoded, 2);
	ck_assert_uint_eq(st.uncodable, 0);
	ck_assert_uint_eq(st.saved_bytes, 5 * (BLOCK - len));
	stop();
	free(x);
	free(coded);
	free(back);
}
END_TEST

/* Each bit of what is sealed, whose it is, and of the seal. */
START_TEST(nothing_else_comes_up)
{
	const uint64_t len = prefixd_cold_bytes(&cold, BLOCK) + PREFIXD_COLD_SEAL;
	struct prefixd_carrier_message *m;
	struct prefixd_carrier_stats st;
	uint8_t *x = room(), *slot;

	start(NULL);
	fill((uint16_t *)(void *)x);
	put(x, 0);
	ck_assert_int_eq(carried(copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_HOST, 5))->result,
			 PREFIXD_MOVE_OK);
	slot = prefixd_pool_host(pool, 5);
	for (uint32_t i = 0; i < 100; i++) {
		uint64_t at = i < 16 ? len - 1 - i : test_rng_below(&rng, (uint32_t)len);
		uint8_t bit = (uint8_t)(1u << test_rng_below(&rng, 8));

		slot[at] ^= bit;
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_HOST, 5, PREFIXD_PLACE_DEVICE, 1))->result,
			PREFIXD_MOVE_CORRUPT);
		slot[at] ^= bit;
	}
	m = copy(PREFIXD_PLACE_HOST, 5, PREFIXD_PLACE_DEVICE, 1);
	m->entry++;
	ck_assert_int_eq(carried(m)->result, PREFIXD_MOVE_CORRUPT);
	m = copy(PREFIXD_PLACE_HOST, 5, PREFIXD_PLACE_DEVICE, 1);
	m->generation++;
	ck_assert_int_eq(carried(m)->result, PREFIXD_MOVE_CORRUPT);
	ck_assert_int_eq(carried(copy(PREFIXD_PLACE_HOST, 5, PREFIXD_PLACE_DEVICE, 1))->result,
			 PREFIXD_MOVE_OK);
	prefixd_carrier_stats(c, &st);
	ck_assert_uint_eq(st.corrupt, 102);
	stop();
	free(x);
}
END_TEST

/* What is known of a block is compared as it goes down. */
START_TEST(wrong_on_the_device)
{
	struct prefixd_carrier_message *m;
	uint8_t *x = room();

	start(NULL);
	fill((uint16_t *)(void *)x);
	put(x, 0);
	m = copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_HOST, 5);
	m->checksum_kind = 1;
	sum(x, m->checksum);
	ck_assert_int_eq(carried(m)->result, PREFIXD_MOVE_OK);
	m = copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_HOST, 5);
	m->checksum_kind = 1;
	sum(x, m->checksum);
	m->checksum[3] ^= 4;
	ck_assert_int_eq(carried(m)->result, PREFIXD_MOVE_CORRUPT);
	ck_assert(!m->summed);
	stop();
	free(x);
}
END_TEST

/* The same by the kernels' kind, which a device that codes takes by itself. */
START_TEST(wrong_by_the_kernels_sum)
{
	struct prefixd_carrier_stats st;
	uint8_t *x = room();
	uint64_t known[2];

	start(NULL);
	fill((uint16_t *)(void *)x);
	put(x, 0);
	gpu_checksum(gpu_codec_best(), x, BLOCK, known);
	for (uint32_t i = 0; i < 4; i++) {
		const enum prefixd_place to = i % 2 ? PREFIXD_PLACE_STAGE : PREFIXD_PLACE_HOST;
		struct prefixd_carrier_message *m = copy(PREFIXD_PLACE_DEVICE, 0, to, 5);

		m->checksum_kind = PROTO_CHECKSUM_KERNEL;
		memcpy(m->checksum, known, sizeof(known)); /* the lowest byte first */
		m->checksum[15] ^= (uint8_t)(i / 2);
		ck_assert_int_eq(carried(m)->result,
				 i < 2 ? PREFIXD_MOVE_OK : PREFIXD_MOVE_CORRUPT);
		ck_assert(!m->summed);
	}
	prefixd_carrier_stats(c, &st);
	ck_assert_uint_eq(st.corrupt, 2);
	ck_assert_uint_eq(st.coded, 2);
	ck_assert_uint_eq(st.coded_by_device, codes ? 2 : 0);
	stop();
	free(x);
}
END_TEST

START_TEST(what_cannot_be_coded)
{
	const struct prefixd_carrier_message *m;
	uint8_t *x = room();
	uint16_t *last = (uint16_t *)(void *)(x + BLOCK - 2);
	struct prefixd_carrier_stats st;

	start(NULL);
	fill((uint16_t *)(void *)x);
	*last = 0x7e00; /* not a number */
	put(x, 0);
	m = carried(copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_HOST, 5));
	ck_assert_int_eq(m->result, PREFIXD_MOVE_RAW);
	ck_assert_int_eq(m->error, 0);
	m = carried(copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_STAGE, 2));
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(!m->coded);
	ck_assert_mem_eq(prefixd_pool_stage(pool, 2), x, BLOCK);
	m = carried(copy(PREFIXD_PLACE_STAGE, 2, PREFIXD_PLACE_DEVICE, 1));
	ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
	ck_assert(!m->lossy);
	memset(prefixd_pool_stage(pool, 3), 0, BLOCK);
	m = carried(copy(PREFIXD_PLACE_DEVICE, 1, PREFIXD_PLACE_STAGE, 3));
	ck_assert_mem_eq(prefixd_pool_stage(pool, 3), x, BLOCK);
	prefixd_carrier_stats(c, &st);
	ck_assert_uint_eq(st.uncodable, 3);
	stop();
	free(x);
}
END_TEST

/* More than there is scratch memory for, in both directions at once: each is answered. */
START_TEST(many_at_once)
{
	const struct gpu_sim_config slow = { .latency_ns = 300000, .queue_depth = 3 };
	uint8_t *x[8], *back[8], *coded = room();
	uint8_t is[16];

	start(&slow);
	for (uint32_t i = 0; i < 8; i++) {
		x[i] = room();
		back[i] = room();
		fill((uint16_t *)(void *)x[i]);
		ck_assert(prefixd_cold_encode(&cold, x[i], coded));
		prefixd_cold_decode(&cold, coded, back[i]);
		put(x[i], i);
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_DEVICE, i, PREFIXD_PLACE_HOST, i))->result,
			PREFIXD_MOVE_OK);
	}
	for (uint32_t i = 0; i < 8; i++) {
		struct prefixd_carrier_message *m = copy(PREFIXD_PLACE_HOST, i,
							 PREFIXD_PLACE_DEVICE, 8 + i);

		m->urgent = i % 2;
		prefixd_carrier_send(c, m);
		prefixd_carrier_send(c, copy(PREFIXD_PLACE_DEVICE, i, PREFIXD_PLACE_HOST, 8 + i));
	}
	for (uint32_t i = 0; i < 16; i++) {
		struct prefixd_carrier_message *m = receive();

		ck_assert_int_eq(m->result, PREFIXD_MOVE_OK);
		ck_assert(m->summed == (!codes && m->from == PREFIXD_PLACE_DEVICE));
		if (m->summed) {
			sum(x[m->src], is);
			ck_assert_mem_eq(m->checksum, is, sizeof(is));
		}
		free(m);
	}
	for (uint32_t i = 0; i < 8; i++) {
		lies(8 + i, back[i]);
		ck_assert_mem_eq(prefixd_pool_host(pool, i), prefixd_pool_host(pool, 8 + i),
				 prefixd_cold_bytes(&cold, BLOCK) + PREFIXD_COLD_SEAL);
		free(x[i]);
		free(back[i]);
	}
	ck_assert_uint_eq(pool->scratch_used, 0);
	stop();
	free(coded);
}
END_TEST

/* A job that fails costs its own block; a device that is full for a moment costs none. */
START_TEST(jobs_that_fail)
{
	const struct gpu_sim_config sick = { .fail_submit = 3, .fail_job = 4 };
	uint8_t *x = room();

	start(&sick);
	fill((uint16_t *)(void *)x);
	put(x, 0); /* the first */
	lies(0, x);
	lies(0, x); /* the third, which is tried again */
	if (strcmp(device, "sim") == 0)
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_HOST, HOST - 1, PREFIXD_PLACE_DEVICE, 1))
				->result,
			PREFIXD_MOVE_FAILED);
	ck_assert_int_eq(
		carried(copy(PREFIXD_PLACE_HOST, HOST - 1, PREFIXD_PLACE_DEVICE, 1))->result,
		PREFIXD_MOVE_OK);
	ck_assert_uint_eq(pool->scratch_used, 0);
	stop();
	free(x);
}
END_TEST

/* A device without room for its side of the work leaves it to the processor, block by block. */
START_TEST(no_room_to_code)
{
	const struct gpu_sim_config tight = { .fail_coded = 2 };
	struct prefixd_carrier_stats st;
	uint8_t *x = room(), *coded = room(), *back = room();

	start(&tight);
	fill((uint16_t *)(void *)x);
	ck_assert(prefixd_cold_encode(&cold, x, coded));
	prefixd_cold_decode(&cold, coded, back);
	put(x, 0);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(
			carried(copy(PREFIXD_PLACE_DEVICE, 0, PREFIXD_PLACE_HOST, i))->result,
			PREFIXD_MOVE_OK);
		ck_assert_mem_eq(prefixd_pool_host(pool, i), coded,
				 prefixd_cold_bytes(&cold, BLOCK));
	}
	ck_assert_int_eq(carried(copy(PREFIXD_PLACE_HOST, 2, PREFIXD_PLACE_DEVICE, 1))->result,
			 PREFIXD_MOVE_OK);
	lies(1, back);
	prefixd_carrier_stats(c, &st);
	ck_assert_uint_eq(st.coded, 4);
	if (codes)
		ck_assert_uint_eq(st.coded_by_device, sim_codes ? 3 : 4);
	stop();
	free(x);
	free(coded);
	free(back);
}
END_TEST

/* Stopped with blocks on their way and before it: nothing is left, whatever they were. */
START_TEST(stopped_in_between)
{
	const struct gpu_sim_config slow = { .latency_ns = 50000000 };
	uint8_t *x = room();

	start(NULL);
	fill((uint16_t *)(void *)x);
	for (uint32_t i = 0; i < 12; i++)
		put(x, i);
	stop();
	start(&slow);
	for (uint32_t i = 0; i < 12; i++)
		prefixd_carrier_send(c, copy(PREFIXD_PLACE_DEVICE, i, PREFIXD_PLACE_HOST, i));
	stop();
	free(x);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("carrier-cold");
	TCase *tc = tcase_create("cold");

	if (argc > 1)
		device = argv[1];
	if (strcmp(device, "sim-codes") == 0) {
		device = "sim";
		sim_codes = true;
	}
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, down_and_up);
	tcase_add_test(tc, nothing_else_comes_up);
	tcase_add_test(tc, wrong_on_the_device);
	tcase_add_test(tc, wrong_by_the_kernels_sum);
	tcase_add_test(tc, what_cannot_be_coded);
	tcase_add_test(tc, many_at_once);
	tcase_add_test(tc, jobs_that_fail);
	tcase_add_test(tc, no_room_to_code);
	tcase_add_test(tc, stopped_in_between);
	suite_add_tcase(s, tc);
	return test_run(s);
}
