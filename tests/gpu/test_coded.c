/*
 * test_coded.c - jobs that encode, decode and sum, over the back end named by the argument.
 *
 * A device that does not do it says so and refuses such jobs.  One that does writes the bytes that
 * the processor writes: blocks go in and out by plain copies, and are compared with gpu/coded.c.
 * With "codes" as the second argument a device that does not is a failure, so that a test which is
 * there for one does not pass by having none.
 */
#include "gpu/codec.h"
#include "gpu/fatbin.h"
#include "tests/gpu/util.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *back_end = "host";
static struct gpu_sim_config plan;

static struct gpu *g;

static void setup(void)
{
	g = open_back_end(back_end, &plan);
	n_completions = 0;
	n_in_flight = 0;
}

static void teardown(void)
{
	gpu_close(g);
	g = NULL;
}

static struct gpu_coded a_coding(void)
{
	return (struct gpu_coded){
		.geometry = { .tokens = 4,
			      .heads = 2,
			      .dim = 16,
			      .order = GPU_ORDER_NHD,
			      .element = GPU_ELEMENT_F16 },
		.codec = GPU_CODEC_INT8,
		.n_pieces = 6,
	};
}

/* ---- descriptions ---------------------------------------------------------------------------- */

START_TEST(descriptions)
{
	const uint64_t len = 6 * 256;
	struct gpu_coded c = a_coding();

	ck_assert(gpu_coded_ok(&c, len));
	ck_assert(!gpu_coded_ok(&c, len - 256));
	ck_assert_uint_eq(gpu_coded_bytes(&c), 6 * (128 + 64));
	c.exact[0] = 0x21;
	ck_assert(gpu_coded_ok(&c, len));
	ck_assert_uint_eq(gpu_coded_bytes(&c), 4 * (128 + 64) + 2 * 256);
	c.geometry.dim = 15;
	ck_assert_uint_eq(gpu_coded_bytes(&c), 4 * (128 + 64) + 2 * 256); /* filled up */
#define REFUSED(change)                            \
	do {                                       \
		c = a_coding();                    \
		change;                            \
		ck_assert(!gpu_coded_ok(&c, len)); \
	} while (0)
	REFUSED(c.exact[0] = 0x40);
	REFUSED(c.codec = GPU_CODEC_NONE);
	REFUSED(c.codec = 3);
	REFUSED(c.n_pieces = 0);
	REFUSED(c.n_pieces = 513);
	REFUSED(c.geometry.order = 2);
	REFUSED(c.geometry.element = 0);
	REFUSED(c.geometry.element = 3);
	REFUSED(c.geometry.tokens = 0);
	REFUSED((c.geometry.tokens = 1u << 31, c.geometry.heads = 1u << 31));
#undef REFUSED
	c = a_coding();
	c.geometry.tokens = 1u << 22; /* 256 MiB for a piece */
	c.n_pieces = 8;
	ck_assert(!gpu_coded_ok(&c, UINT64_C(2) << 30));
}
END_TEST

/* ---- devices that only copy ------------------------------------------------------------------ */

START_TEST(a_device_that_only_copies_refuses)
{
	const struct gpu_coded c = a_coding();
	const uint64_t len = 6 * 256;
	struct gpu_pool *pool = new_pool(g, 2, len);
	uint8_t *p = pages(g, len);
	struct counted_job job = { .job = { .dst = addr_of(p),
					    .src = g->ops->slot_addr(pool, 0),
					    .len = len,
					    .done = count_done,
					    .ctx = &job } };

	ck_assert(!g->ops->codes(g));
	job.job.coded = &c;
	ck_assert_int_eq(g->ops->submit(g, &job.job), -ENOTSUP);
	job.job.coded = NULL;
	job.job.want_sum = true;
	ck_assert_int_eq(g->ops->submit(g, &job.job), -ENOTSUP);
	job.job.want_sum = false;
	n_in_flight++;
	ck_assert_int_eq(g->ops->submit(g, &job.job), 0);
	(void)settle(g);
	ck_assert_uint_eq(job.n_done, 1);
	ck_assert_int_eq(job.status, 0);
}
END_TEST

/* ---- devices that do it ---------------------------------------------------------------------- */

#define N_BLOCKS 9u

static const struct shape {
	uint32_t tokens, heads, dim, n_pieces;
	uint64_t exact; /* pieces */
} shapes[] = {
	{ 4, 2, 16, 6, 0 },        { 4, 2, 16, 6, 0x21 },
	{ 4, 2, 16, 6, 0x3f },     { 3, 2, 7, 5, 0x02 }, /* exact pieces that end within a vector */
	{ 3, 2, 7, 5, 0x1d },      { 1, 1, 1, 1, 0 },
	{ 16, 8, 128, 4, 0x8 },    { 2, 3, 264, 3, 0 }, /* rows longer than a warp's */
	{ 16, 1, 72, 64, 0x5555 },
};

/* Blocks in a pool, and in memory of this process. */
static struct {
	struct gpu_coded coded;
	uint64_t len, packed;
	struct gpu_pool *pool;
	uint8_t *blocks;   /* N_BLOCKS as they shall be on the device */
	uint8_t *out;      /* packed by the device, with 64 bytes before and behind all */
	uint8_t *back;     /* as they are there */
	uint8_t *expected; /* one packed block */
	uint64_t rng;
} w;

static uint32_t any(uint32_t n)
{
	w.rng = w.rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((w.rng >> 33) % n);
}

static void fill_numbers(uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i += 2) {
		uint16_t x = (uint16_t)(any(0x10000) & 0xbfff); /* of less than 2, either type */

		memcpy(p + i, &x, 2);
	}
}

static void world(const struct shape *shape, uint32_t codec, uint32_t element, uint32_t order)
{
	w.coded = (struct gpu_coded){
		.geometry = { shape->tokens, shape->heads, shape->dim, order, element },
		.codec = codec,
		.n_pieces = shape->n_pieces,
	};
	for (uint32_t i = 0; i < shape->n_pieces; i++)
		w.coded.exact[i / 8] |= (uint8_t)((shape->exact >> i & 1) << (i % 8));
	w.len = shape->n_pieces * gpu_coded_piece_len(&w.coded);
	w.packed = gpu_coded_bytes(&w.coded);
	ck_assert(gpu_coded_ok(&w.coded, w.len));
	w.rng = w.len * 8 + codec * 4 + element * 2 + order;
	w.pool = new_pool(g, N_BLOCKS, w.len);
	w.blocks = pages(g, N_BLOCKS * w.len);
	w.back = pages(g, N_BLOCKS * w.len);
	w.out = pages(g, N_BLOCKS * w.packed + 128);
	w.expected = pages(g, w.packed);
	fill_numbers(w.blocks, N_BLOCKS * w.len);
}

static void world_end(void)
{
	uint8_t *const all[] = { w.blocks, w.back, w.out, w.expected };
	const uint64_t len[] = { N_BLOCKS * w.len, N_BLOCKS * w.len, N_BLOCKS * w.packed + 128,
				 w.packed };

	for (size_t i = 0; i < radix_array_size(all); i++) {
		g->ops->host_unpin(g, all[i]);
		ck_assert_int_eq(munmap(all[i], (len[i] + 4095) & ~UINT64_C(4095)), 0);
	}
	g->ops->pool_free(g, w.pool);
}

static int ask(struct counted_job *c, uint64_t dst, uint64_t src, const struct gpu_coded *coded,
	       bool want_sum)
{
	int r;

	*c = (struct counted_job){ .job = { .dst = dst,
					    .src = src,
					    .len = w.len,
					    .done = count_done,
					    .ctx = c,
					    .coded = coded,
					    .want_sum = want_sum,
					    .uncodable = true } };
	n_in_flight++;
	r = g->ops->submit(g, &c->job);
	if (r < 0)
		n_in_flight--;
	return r;
}

static uint64_t slot(uint32_t i)
{
	return g->ops->slot_addr(w.pool, i);
}

static void assert_went(const struct counted_job *jobs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_uint_eq(jobs[i].n_done, 1);
		ck_assert_msg(jobs[i].status == 0, "%d: %s", jobs[i].status, gpu_trouble(g));
	}
}

/* All blocks into the pool, as they are, or out of it. */
static void copy_all(uint8_t *host, bool in)
{
	struct counted_job jobs[N_BLOCKS];

	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		uint64_t mine = addr_of(host + i * w.len);

		ck_assert_int_eq(
			ask(&jobs[i], in ? slot(i) : mine, in ? mine : slot(i), NULL, false), 0);
	}
	(void)settle(g);
	assert_went(jobs, N_BLOCKS);
}

static void assert_sum(const struct counted_job *job, const uint8_t *block, uint64_t len)
{
	uint64_t sum[2];

	gpu_checksum(gpu_codec_best(), block, len, sum);
	ck_assert_uint_eq(job->job.sum[0], sum[0]);
	ck_assert_uint_eq(job->job.sum[1], sum[1]);
}

static uint8_t *packed(uint32_t i)
{
	return w.out + 64 + i * w.packed;
}

/* The blocks of the pool in any order, every second one summed as well. */
static void encode_all(void)
{
	struct counted_job jobs[N_BLOCKS];

	memset(w.out, 0x77, N_BLOCKS * w.packed + 128);
	for (uint32_t k = 0; k < N_BLOCKS; k++) {
		uint32_t i = k * 4 % N_BLOCKS;

		ck_assert_int_eq(ask(&jobs[i], addr_of(packed(i)), slot(i), &w.coded, i % 2 == 0),
				 0);
	}
	(void)settle(g);
	assert_went(jobs, N_BLOCKS);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		const uint8_t *block = w.blocks + i * w.len;

		ck_assert(!jobs[i].job.uncodable);
		ck_assert(gpu_coded_encode(&w.coded, block, w.expected));
		ck_assert_mem_eq(packed(i), w.expected, w.packed);
		if (i % 2 == 0)
			assert_sum(&jobs[i], block, w.len);
	}
	ck_assert(all_bytes(w.out, 64, 0x77));
	ck_assert(all_bytes(packed(N_BLOCKS), 64, 0x77));
}

static void decode_all(void)
{
	struct counted_job jobs[N_BLOCKS];

	for (uint32_t i = 0; i < N_BLOCKS; i++)
		ck_assert_int_eq(ask(&jobs[i], slot(i), addr_of(packed(i)), &w.coded, i % 3 == 0),
				 0);
	(void)settle(g);
	assert_went(jobs, N_BLOCKS);
	copy_all(w.back, false);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		gpu_coded_decode(&w.coded, packed(i), w.blocks + i * w.len);
		ck_assert(!jobs[i].job.uncodable);
		ck_assert_mem_eq(w.back + i * w.len, w.blocks + i * w.len, w.len);
		if (i % 3 == 0)
			assert_sum(&jobs[i], w.blocks + i * w.len, w.len);
	}
}

#define N_CODINGS 8

START_TEST(codes_as_the_processor_does)
{
	const struct shape *shape = &shapes[(uint32_t)_i / N_CODINGS];
	const uint32_t k = (uint32_t)_i % N_CODINGS;

	world(shape, 1 + k % 2, 1 + k / 2 % 2, k / 4);
	copy_all(w.blocks, true);
	encode_all();
	fill_numbers(w.back, N_BLOCKS * w.len);
	copy_all(w.back, true); /* nothing of the blocks is left on the device */
	decode_all();
	world_end();
}
END_TEST

/* What cannot be coded is said of that block alone, and only where it is coded. */
START_TEST(what_cannot_be_coded)
{
	static const uint16_t bad[] = { 0x7c00, 0xfc00, 0x7e01, 0x7b00 };
	struct counted_job jobs[N_BLOCKS];

	world(&shapes[1], GPU_CODEC_E4M3, GPU_ELEMENT_F16, GPU_ORDER_NHD);
	memcpy(w.blocks + 2 * w.len + 300, &bad[_i], 2); /* a coded piece */
	memcpy(w.blocks + 3 * w.len + 10, &bad[_i], 2);  /* exact ones */
	memcpy(w.blocks + 4 * w.len + w.len - 2, &bad[_i], 2);
	memcpy(w.blocks + 7 * w.len + w.len - 258, &bad[_i], 2); /* the last coded element */
	copy_all(w.blocks, true);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		ck_assert_int_eq(ask(&jobs[i], addr_of(packed(i)), slot(i), &w.coded, true), 0);
	(void)settle(g);
	assert_went(jobs, N_BLOCKS);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		bool can = gpu_coded_encode(&w.coded, w.blocks + i * w.len, w.expected);

		ck_assert_int_eq(can, i != 2 && i != 7);
		ck_assert_int_eq(jobs[i].job.uncodable, !can);
		if (can)
			ck_assert_mem_eq(packed(i), w.expected, w.packed);
		assert_sum(&jobs[i], w.blocks + i * w.len, w.len);
	}
	world_end();
}
END_TEST

static int ask_sum(struct counted_job *c, uint64_t dst, uint64_t src, uint64_t len)
{
	const uint64_t whole = w.len;
	int r;

	w.len = len;
	r = ask(c, dst, src, NULL, true);
	w.len = whole;
	return r;
}

/* Of plain copies too: out, in, and within the device; also of a part of a block. */
START_TEST(sums)
{
	static const uint64_t lens[] = { 2, 14, 1022, 1024, 1026, 5000, 70000 };
	const uint64_t len = lens[_i];
	struct gpu_pool *pool = new_pool(g, 4, 80000);
	uint8_t *host = pages(g, 80000 + 16), *other = pages(g, 80000 + 16);
	struct counted_job jobs[4];
	uint64_t at[4];

	w.rng = len;
	fill_numbers(host, 80000);
	for (uint32_t i = 0; i < 4; i++)
		at[i] = g->ops->slot_addr(pool, i) + 6;
	ck_assert_int_eq(ask_sum(&jobs[0], at[0], addr_of(host), len), 0);
	(void)settle(g);
	ck_assert_int_eq(ask_sum(&jobs[1], at[2], at[0], len), 0);
	(void)settle(g);
	ck_assert_int_eq(ask_sum(&jobs[2], addr_of(other), at[2], len), 0);
	ck_assert_int_eq(ask_sum(&jobs[3], addr_of(other) + 80000 - 2, at[0], 2), 0);
	(void)settle(g);
	assert_went(jobs, 4);
	for (uint32_t i = 0; i < 3; i++)
		assert_sum(&jobs[i], host, len);
	assert_sum(&jobs[3], host, 2);
	ck_assert_mem_eq(other, host, len);
	ck_assert(all_bytes(other + len, 80000 - 2 - len, 0));
	/* Half an element has no sum. */
	ck_assert_int_eq(ask_sum(&jobs[0], addr_of(other), at[0], len - 1), -EINVAL);
	ck_assert_int_eq(ask_sum(&jobs[0], addr_of(other), at[0] + 1, len), -EINVAL);
	ck_assert_int_eq(ask_sum(&jobs[0], at[0] + 1, addr_of(other), len), -EINVAL);
}
END_TEST

START_TEST(refused_codings)
{
	struct counted_job job;
	struct gpu_coded c;
	uint8_t *p;

	world(&shapes[1], GPU_CODEC_INT8, GPU_ELEMENT_F16, GPU_ORDER_NHD);
	p = packed(0);
	c = w.coded;
	c.n_pieces--;
	ck_assert_int_eq(ask(&job, addr_of(p), slot(0), &c, false), -EINVAL);
	c = w.coded;
	c.codec = GPU_CODEC_NONE;
	ck_assert_int_eq(ask(&job, addr_of(p), slot(0), &c, false), -EINVAL);
	/* From a pool into one, from memory into memory. */
	ck_assert_int_eq(ask(&job, slot(0), slot(2), &w.coded, false), -EINVAL);
	ck_assert_int_eq(ask(&job, addr_of(p), addr_of(w.blocks), &w.coded, false), -EINVAL);
	/* Half an element. */
	ck_assert_int_eq(ask(&job, addr_of(p), slot(0) + 1, &w.coded, false), -EINVAL);
	/* Memory that nobody pinned all of, where that is asked. */
	if (g->ops->kind == GPU_KIND_CUDA) {
		uint64_t end = addr_of(w.out) +
			       ((N_BLOCKS * w.packed + 128 + 4095) & ~UINT64_C(4095));

		ck_assert_int_eq(ask(&job, end + 64 - w.packed, slot(0), &w.coded, false), -EINVAL);
	}
	ck_assert_uint_eq(n_in_flight, 0);
	world_end();
}
END_TEST

/* Jobs of one way take effect in their order, coded or not. */
START_TEST(in_order)
{
	struct counted_job jobs[7];

	world(&shapes[0], GPU_CODEC_INT8, GPU_ELEMENT_BF16, GPU_ORDER_HND);
	copy_all(w.blocks, true);
	/* Out, to the same place: coded, plain, coded. */
	ck_assert_int_eq(ask(&jobs[0], addr_of(packed(0)), slot(0), &w.coded, false), 0);
	ck_assert_int_eq(ask(&jobs[1], addr_of(packed(0)), slot(1), NULL, false), 0);
	ck_assert_int_eq(ask(&jobs[2], addr_of(packed(0)), slot(2), &w.coded, true), 0);
	(void)settle(g);
	assert_went(jobs, 3);
	ck_assert(gpu_coded_encode(&w.coded, w.blocks + 2 * w.len, w.expected));
	ck_assert_mem_eq(packed(0), w.expected, w.packed);
	ck_assert_mem_eq(packed(0) + w.packed, w.blocks + w.len + w.packed, w.len - w.packed);
	/* In: coded; on to another slot; another block over the first; and on again. */
	ck_assert_int_eq(ask(&jobs[3], slot(4), addr_of(packed(0)), &w.coded, false), 0);
	ck_assert_int_eq(ask(&jobs[4], slot(5), slot(4), NULL, true), 0);
	ck_assert_int_eq(ask(&jobs[5], slot(4), addr_of(w.blocks + 3 * w.len), NULL, true), 0);
	ck_assert_int_eq(ask(&jobs[6], slot(6), slot(4), NULL, false), 0);
	(void)settle(g);
	assert_went(jobs, 7);
	copy_all(w.back, false);
	gpu_coded_decode(&w.coded, w.expected, w.blocks);
	ck_assert_mem_eq(w.back + 5 * w.len, w.blocks, w.len);
	assert_sum(&jobs[4], w.blocks, w.len);
	ck_assert_mem_eq(w.back + 4 * w.len, w.blocks + 3 * w.len, w.len);
	ck_assert_mem_eq(w.back + 6 * w.len, w.blocks + 3 * w.len, w.len);
	assert_sum(&jobs[5], w.blocks + 3 * w.len, w.len);
	world_end();
}
END_TEST

#define N_MANY 700u

/* More than can be under way, each with a result of its own. */
START_TEST(many)
{
	static struct counted_job jobs[N_MANY];
	uint8_t *all;

	world(&shapes[0], GPU_CODEC_E4M3, GPU_ELEMENT_F16, GPU_ORDER_NHD);
	all = pages(g, N_MANY * w.packed);
	w.blocks[3 * w.len + 1] = 0x7c; /* not finite */
	copy_all(w.blocks, true);
	for (uint32_t i = 0; i < N_MANY; i++)
		ck_assert_int_eq(ask(&jobs[i], addr_of(all + i * w.packed), slot(i % N_BLOCKS),
				     &w.coded, true),
				 0);
	(void)settle(g);
	assert_went(jobs, N_MANY);
	for (uint32_t i = 0; i < N_MANY; i++) {
		const uint8_t *block = w.blocks + i % N_BLOCKS * w.len;

		assert_sum(&jobs[i], block, w.len);
		ck_assert_int_eq(jobs[i].job.uncodable, i % N_BLOCKS == 3);
		if (jobs[i].job.uncodable)
			continue;
		ck_assert(gpu_coded_encode(&w.coded, block, w.expected));
		ck_assert_mem_eq(all + i * w.packed, w.expected, w.packed);
	}
	world_end();
}
END_TEST

#define N_SMALL 300u

static struct counted_job small_jobs[N_SMALL];

/* Slots `first`, `first` + 2, ... in an order of their own, one behind the other in memory. */
static void copy_small(struct gpu_pool *pool, uint32_t first, uint8_t *host, uint64_t len, bool in)
{
	for (uint32_t i = 0; i < N_SMALL; i++) {
		uint64_t there = g->ops->slot_addr(pool, first + i * 7 % N_SMALL * 2);
		uint64_t here = addr_of(host + i * len);

		ck_assert_int_eq(
			submit(g, &small_jobs[i], in ? there : here, in ? here : there, len), 0);
	}
	(void)settle(g);
	assert_went(small_jobs, N_SMALL);
}

/* Small blocks that lie apart on the device and side by side in memory, and the way back. */
START_TEST(scattered)
{
	static const uint64_t lens[] = { 64, 2048, 2050, 1001, 70000 };
	const uint64_t len = lens[_i];
	struct gpu_pool *pool = new_pool(g, 2 * N_SMALL, len);
	uint8_t *host = pages(g, N_SMALL * len), *back = pages(g, N_SMALL * len + 64);
	uint8_t *between = pages(g, N_SMALL * len);

	w.rng = len;
	fill_numbers(host, N_SMALL * len / 2 * 2);
	copy_small(pool, 1, between, len, false);
	memset(back, 0x55, N_SMALL * len + 64);
	copy_small(pool, 0, host, len, true);
	copy_small(pool, 0, back, len, false);
	ck_assert_mem_eq(back, host, N_SMALL * len);
	ck_assert(all_bytes(back + N_SMALL * len, 64, 0x55));
	/* What lies between them is as it was. */
	copy_small(pool, 1, back, len, false);
	ck_assert_mem_eq(back, between, N_SMALL * len);
}
END_TEST

static void ended(struct gpu_job *job, int status)
{
	struct counted_job *c = job->ctx;

	c->n_done++;
	ck_assert(status == 0 || status == -ENODEV);
}

START_TEST(closed_in_the_middle)
{
	static struct counted_job jobs[N_MANY];

	world(&shapes[6], GPU_CODEC_INT8, GPU_ELEMENT_F16, GPU_ORDER_NHD);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		jobs[i] = (struct counted_job){ .job = { .dst = addr_of(packed(i)),
							 .src = slot(i),
							 .len = w.len,
							 .coded = &w.coded,
							 .done = ended,
							 .ctx = &jobs[i] } };
		ck_assert_int_eq(g->ops->submit(g, &jobs[i].job), 0);
		if (i == N_BLOCKS / 2)
			(void)g->ops->reap(g, 1);
	}
	gpu_close(g);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		ck_assert_uint_eq(jobs[i].n_done, 1);
	setup(); /* for the teardown */
}
END_TEST

/* No test runs yet: nothing may be asserted here. */
static bool codes(void)
{
	char why[640];
	bool yes;

	if (gpu_open(back_end, &plan, &g, why, sizeof(why)) < 0)
		return false;
	yes = g->ops->codes(g);
	gpu_close(g);
	return yes;
}

static Suite *coded(bool device_codes)
{
	Suite *s = suite_create("coded");
	TCase *t = new_case();

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, descriptions);
	if (!device_codes) {
		tcase_add_test(t, a_device_that_only_copies_refuses);
	} else {
		tcase_add_loop_test(t, codes_as_the_processor_does, 0,
				    N_CODINGS * (int)radix_array_size(shapes));
		tcase_add_loop_test(t, what_cannot_be_coded, 0, 4);
		tcase_add_loop_test(t, sums, 0, 7);
		tcase_add_test(t, refused_codings);
		tcase_add_test(t, in_order);
		tcase_add_test(t, many);
		tcase_add_test(t, closed_in_the_middle);
	}
	tcase_add_loop_test(t, scattered, 0, 5);
	suite_add_tcase(s, t);
	return s;
}

/*
 * A process may not fork after it has loaded a driver: who finds out whether the device codes is
 * another one.
 */
static int ask_child(void)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(codes() ? 1 : 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	int device_codes;

	if (argc > 1)
		back_end = argv[1];
	plan.codes = argc > 2 && strcmp(argv[2], "codes") == 0;
	device_codes = ask_child();
	if (device_codes < 0 || device_codes > 1) {
		(void)printf("Bail out! the device cannot be asked\n");
		return EXIT_FAILURE;
	}
	if (plan.codes && !device_codes) {
		if (gpu_fatbin_len == 0) {
			(void)printf("1..0 # SKIP built without nvcc: there are no kernels\n");
			return EXIT_SUCCESS;
		}
		(void)printf("Bail out! the device does not code\n");
		return EXIT_FAILURE;
	}
	return run_suite(coded(device_codes == 1));
}
