/*
 * test_cuda_kernels.c - what the CUDA back end does with kernels beyond what test_coded.c asks of
 * any device: which path copies take, what there is no memory for, and how launches fail.
 *
 * The environment names the kernels for this machine (KERNELS); without them, or in a program that
 * was built without nvcc, only what is left of it is tested: the choice, and a device without.
 */
#include "gpu/codec.h"
#include "gpu/cuda_internal.h"
#include "gpu/fatbin.h"
#include "tests/gpu/cuda_util.h"

#define N_SLOTS 256u

static const struct gpu_coded coding = {
	.geometry = { .tokens = 16, .heads = 2, .dim = 64, .element = GPU_ELEMENT_BF16 },
	.codec = GPU_CODEC_E4M3,
	.n_pieces = 4,
};

#define CODED_LEN UINT64_C(16384)

static const char *kernels(void)
{
	return gpu_fatbin_len > 0 ? getenv("KERNELS") : NULL;
}

static struct gpu *open_with_kernels(const char *settings)
{
	char text[400];
	struct gpu *g;

	(void)snprintf(text, sizeof(text), "kernels=%s,%s", kernels(), settings);
	g = open_cuda(text);
	ck_assert(g->ops->codes(g));
	return g;
}

static void fill(uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (uint8_t)((i * 7 + i / 256) & 0x3f);
}

/* ---- by which path --------------------------------------------------------------------------- */

/* Blocks by their places: device and host, 'x' what goes through the stage. */
static const struct choice {
	uint64_t len;
	const char *device, *host, *staged;
} choices[] = {
	{ 100, "acegi", "ABCDE", "xxxxx" },
	{ 100, "ace", "ABC", "---" }, /* as few as that are not worth it */
	{ 100, "aceg", "ABCD", "xxxx" },
	{ 100, "abcdefgh", "ABCDEFGH", "--------" }, /* one run on both sides */
	{ 100, "abefijmn", "ABCDEFGH", "xxxxxxxx" }, /* four runs of two */
	{ 100, "abcefgijk", "ABCDEFGHI", "---------" },
	{ 100, "hgfedcba", "ABCDEFGH", "xxxxxxxx" }, /* neighbours the wrong way round */
	{ 100, "acegi", "ACEGI", "-----" },          /* apart on both sides */
	{ 100, "acegikmo", "ABCDGHIJ", "xxxxxxxx" }, /* two runs of four */
	{ 100, "acegikmo", "ABCDFHJK", "xxxx----" },
	{ 100, "a", "A", "-" },
	{ CUDA_GATHER_BELOW - 2, "acegi", "ABCDE", "xxxxx" },
	{ CUDA_GATHER_BELOW, "acegi", "ABCDE", "-----" },
};

START_TEST(the_choice)
{
	const struct choice *c = &choices[_i];
	const uint32_t n = (uint32_t)strlen(c->host);
	uint64_t host[16] = { 0 }, device[16] = { 0 };
	uint32_t n_staged = 0;
	bool staged[16];

	for (uint32_t i = 0; i < n; i++) {
		host[i] = (uint64_t)(c->host[i] - 'A') * c->len + 4096;
		device[i] = (uint64_t)(c->device[i] - 'a') * c->len + 77;
		n_staged += c->staged[i] == 'x';
	}
	ck_assert_uint_eq(gpu_cuda_choose(host, device, n, c->len, staged), n_staged);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(staged[i], c->staged[i] == 'x');
}
END_TEST

/* What was copied and launched for that. */
struct counts {
	uint64_t copies, launches;
};

static struct counts count_of(void)
{
	const struct lookalike_census c = census();

	return (struct counts){ c.n_copies, c.n_launches };
}

/* Slots 0, 2, ... of a pool to neighbours in memory, or back; what that took. */
static struct counts move_apart(struct gpu *g, struct gpu_pool *pool, uint8_t *host, uint64_t len,
				bool in)
{
	static struct counted_job jobs[64];
	struct counts before = count_of(), after;

	for (uint32_t i = 0; i < 60; i++) {
		uint64_t there = g->ops->slot_addr(pool, 2 * i), here = addr_of(host + i * len);

		ck_assert_int_eq(submit(g, &jobs[i], in ? there : here, in ? here : there, len), 0);
	}
	(void)settle(g);
	for (uint32_t i = 0; i < 60; i++)
		ck_assert_int_eq(jobs[i].status, 0);
	after = count_of();
	return (struct counts){ after.copies - before.copies, after.launches - before.launches };
}

/* One copy of the blocks and one of the arguments, either way; long blocks go by themselves. */
START_TEST(gathered_blocks_are_one_copy)
{
	struct gpu *g = open_with_kernels("latency_us=10");
	const uint64_t len = _i ? CUDA_GATHER_BELOW : CUDA_GATHER_BELOW / 64;
	struct gpu_pool *pool = new_pool(g, 120, len);
	uint8_t *host = pages(g, 60 * len), *back = pages(g, 60 * len);

	fill(host, 60 * len);
	for (int in = 1; in >= 0; in--) {
		struct counts c = move_apart(g, pool, in ? host : back, len, in);

		ck_assert_uint_eq(c.copies, _i ? 60 : 2);
		ck_assert_uint_eq(c.launches, _i ? 0 : 1);
	}
	ck_assert_mem_eq(back, host, 60 * len);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* Neighbours in memory that was pinned in two parts are two copies, also without batches. */
START_TEST(two_registrations)
{
	struct gpu *g = open_with_kernels(_i ? "version=12040" : "latency_us=10");
	const uint64_t len = 1024, half = 32768;
	struct gpu_pool *pool = new_pool(g, 120, len);
	uint8_t *host = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			     0);
	struct counts c;

	ck_assert_ptr_ne(host, MAP_FAILED);
	ck_assert_int_eq(g->ops->host_pin(g, host, half), 0);
	ck_assert_int_eq(g->ops->host_pin(g, host + half, half), 0);
	fill(host, 2 * half);
	c = move_apart(g, pool, host, len, true);
	ck_assert_uint_eq(c.copies, 3);
	ck_assert_uint_eq(c.launches, 1);
	memset(host, 0, 2 * half);
	c = move_apart(g, pool, host, len, false);
	ck_assert_uint_eq(c.copies, 3);
	for (uint64_t i = 0; i < 60 * len; i++)
		ck_assert_uint_eq(host[i], (uint8_t)((i * 7 + i / 256) & 0x3f));
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* ---- without kernels, without memory --------------------------------------------------------- */

START_TEST(a_device_without_kernels)
{
	struct gpu *g;
	char why[640];

	set_up_driver("");
	ck_assert_int_eq(gpu_open("cuda", NULL, &g, why, sizeof(why)), 0);
	ck_assert(!g->ops->codes(g));
	ck_assert_msg(strstr(why, "plain copies only: no kernels ("), "%s", why);
	ck_assert_msg(strstr(why, gpu_fatbin_len ? "cuModuleLoadData" : "built without nvcc"), "%s",
		      why);
	ck_assert_int_eq(g->ops->health(g), 0);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

START_TEST(a_device_with_kernels_says_so)
{
	struct gpu *g;
	char why[640], text[400];

	(void)snprintf(text, sizeof(text), "kernels=%s", kernels());
	set_up_driver(text);
	ck_assert_int_eq(gpu_open("cuda", NULL, &g, why, sizeof(why)), 0);
	ck_assert_msg(strstr(why, ", with kernels"), "%s", why);
	ck_assert(g->ops->codes(g));
	ck_assert_int_eq(g->ops->health(g), 0);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

static int encode(struct gpu *g, struct counted_job *c, uint64_t dst, uint64_t src)
{
	int r;

	*c = (struct counted_job){ .job = { .dst = dst,
					    .src = src,
					    .len = CODED_LEN,
					    .coded = &coding,
					    .done = count_done,
					    .ctx = c } };
	n_in_flight++;
	r = g->ops->submit(g, &c->job);
	if (r < 0)
		n_in_flight--;
	return r;
}

/* Coded jobs are refused, gathered ones are copies as ever; and later there is memory. */
START_TEST(no_memory_for_a_stage)
{
	const uint64_t len = 4096;
	struct gpu *g = open_with_kernels("memory=33554432");
	struct gpu_pool *pool = new_pool(g, 120, len), *most = NULL, *blocks;
	uint8_t *host = pages(g, 60 * len), *back = pages(g, 60 * len);
	struct counted_job job;
	struct counts c;

	fill(host, 60 * len);
	blocks = new_pool(g, 2, CODED_LEN);
	ck_assert_int_eq(g->ops->pool_new(g, 1, 14 << 20, &most), 0);
	ck_assert_int_eq(encode(g, &job, addr_of(back), g->ops->slot_addr(blocks, 0)), -ENOMEM);
	for (int in = 1; in >= 0; in--) {
		c = move_apart(g, pool, in ? host : back, len, in);
		ck_assert_uint_eq(c.copies, 60);
		ck_assert_uint_eq(c.launches, 0);
	}
	ck_assert_mem_eq(back, host, 60 * len);
	g->ops->pool_free(g, most);
	ck_assert_int_eq(encode(g, &job, addr_of(back), g->ops->slot_addr(blocks, 0)), 0);
	(void)settle(g);
	ck_assert_int_eq(job.status, 0);
	c = move_apart(g, pool, back, len, false); /* the lane has a stage now */
	ck_assert_uint_eq(c.copies, 2);
	ck_assert_mem_eq(back, host, 60 * len);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* A block that does not fit gets a stage that it fits into, while the old one is in use. */
START_TEST(a_stage_grows)
{
	struct gpu_coded large = coding;
	const uint64_t piece = CODED_LEN / 4;
	struct gpu *g = open_with_kernels("latency_us=3000");
	struct counted_job small[8], big;
	uint8_t *block, *out, *expected;
	struct gpu_pool *pool;
	uint64_t len;

	large.geometry.tokens *= 2048; /* 8 MiB each */
	len = 5 * 2048 * piece;
	large.n_pieces = 5;
	pool = new_pool(g, 2, len);
	block = pages(g, len);
	out = pages(g, len + 8 * CODED_LEN);
	expected = pages(g, len);
	fill(block, len);
	ck_assert_int_eq(submit(g, &big, g->ops->slot_addr(pool, 0), addr_of(block), len), 0);
	(void)settle(g);
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_int_eq(encode(g, &small[i], addr_of(out + len + i * CODED_LEN),
					g->ops->slot_addr(pool, 0) + i * CODED_LEN),
				 0);
		(void)g->ops->reap(g, 1);
	}
	big = (struct counted_job){ .job = { .dst = addr_of(out),
					     .src = g->ops->slot_addr(pool, 0),
					     .len = len,
					     .coded = &large,
					     .done = count_done,
					     .ctx = &big } };
	ck_assert_uint_gt(gpu_coded_bytes(&large), CUDA_STAGE_BYTES);
	n_in_flight++;
	ck_assert_int_eq(g->ops->submit(g, &big.job), 0);
	(void)settle(g);
	ck_assert_int_eq(big.status, 0);
	ck_assert(gpu_coded_encode(&large, block, expected));
	ck_assert_mem_eq(out, expected, gpu_coded_bytes(&large));
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_int_eq(small[i].status, 0);
		ck_assert(gpu_coded_encode(&coding, block + i * CODED_LEN, expected));
		ck_assert_mem_eq(out + len + i * CODED_LEN, expected, gpu_coded_bytes(&coding));
	}
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

#define N_JOBS 200u

static struct counted_job jobs[N_JOBS];

/* Return: how many were taken; all, unless the device was lost meanwhile. */
static uint32_t encode_many(struct gpu *g, struct gpu_pool *pool, uint8_t *out)
{
	for (uint32_t i = 0; i < N_JOBS; i++) {
		int r = encode(g, &jobs[i], addr_of(out + i * CODED_LEN),
			       g->ops->slot_addr(pool, i % N_SLOTS));

		if (r < 0) {
			ck_assert_int_eq(r, -ENODEV);
			return i;
		}
	}
	return N_JOBS;
}

/* A launch that the driver refuses is those jobs' affair alone. */
START_TEST(a_refused_launch)
{
	static const int results[] = { GPU_CU_INVALID_VALUE, GPU_CU_OUT_OF_MEMORY };
	uint8_t *block, *expected, *out;
	struct gpu_pool *pool;
	uint32_t n_failed = 0;
	char text[64];
	struct gpu *g;

	(void)snprintf(text, sizeof(text), "fail=launch:2:%d", results[_i]);
	g = open_with_kernels(text);
	pool = new_pool(g, N_SLOTS, CODED_LEN);
	block = pages(g, CODED_LEN);
	expected = pages(g, CODED_LEN);
	out = pages(g, N_JOBS * CODED_LEN);
	ck_assert(gpu_coded_encode(&coding, block, expected));
	memset(out, 0x11, N_JOBS * CODED_LEN);
	ck_assert_uint_eq(encode_many(g, pool, out), N_JOBS);
	(void)settle(g);
	for (uint32_t i = 0; i < N_JOBS; i++) {
		ck_assert_uint_eq(jobs[i].n_done, 1);
		n_failed += jobs[i].status == -EIO;
		ck_assert(jobs[i].status == 0 || jobs[i].status == -EIO);
		if (jobs[i].status == 0)
			ck_assert_mem_eq(out + i * CODED_LEN, expected, gpu_coded_bytes(&coding));
	}
	ck_assert_uint_eq(n_failed, CUDA_BATCH);
	ck_assert_msg(strstr(gpu_trouble(g), "cuLaunchKernel"), "%s", gpu_trouble(g));
	ck_assert_int_eq(g->ops->health(g), 0);
	gpu_close(g);
	assert_nothing_held();
}
END_TEST

/* One that faults, and a refusal of another kind, lose the device: all jobs are told, once. */
START_TEST(a_kernel_that_faults)
{
	static const char *const faults[] = { "latency_us=100,op=kernel:2:700",
					      "latency_us=100,fail=launch:3:999",
					      "latency_us=100,op=kernel:2:hang,fail=launch:4:719" };
	struct gpu *g = open_with_kernels(faults[_i]);
	struct gpu_pool *pool = new_pool(g, N_SLOTS, CODED_LEN);
	uint8_t *out = pages(g, N_JOBS * CODED_LEN);
	uint32_t n_lost = 0, n;

	n = encode_many(g, pool, out);
	(void)settle(g);
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_uint_eq(jobs[i].n_done, 1);
		ck_assert(jobs[i].status == 0 || jobs[i].status == -ENODEV);
		n_lost += jobs[i].status != 0;
	}
	ck_assert_uint_ge(n_lost, n - 2 * CUDA_BATCH);
	ck_assert_int_eq(g->ops->health(g), -ENODEV);
	ck_assert_int_eq(encode(g, &jobs[0], addr_of(out), g->ops->slot_addr(pool, 0)), -ENODEV);
	g->ops->pool_free(g, pool);
	gpu_close(g);
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

/* Two devices with the same kernels do not know of each other. */
START_TEST(two_devices)
{
	struct gpu *a = open_with_kernels("devices=2,latency_us=500"), *b;
	struct gpu_pool *pools[2];
	uint8_t *out[2], *expected;
	struct counted_job job[2];

	ck_assert_int_eq(gpu_cuda_open_nth(1, &b, NULL, 0), 0);
	ck_assert(b->ops->codes(b));
	for (int i = 0; i < 2; i++) {
		struct gpu *g = i ? b : a;

		pools[i] = new_pool(g, 2, CODED_LEN);
		out[i] = pages(g, CODED_LEN);
		ck_assert_int_eq(
			encode(g, &job[i], addr_of(out[i]), g->ops->slot_addr(pools[i], 1)), 0);
	}
	expected = pages(a, 2 * CODED_LEN);
	ck_assert(gpu_coded_encode(&coding, expected + CODED_LEN, expected));
	while (job[0].n_done == 0)
		(void)reap_some(a, 1);
	gpu_close(a);
	while (job[1].n_done == 0)
		(void)reap_some(b, 1);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(job[i].status, 0);
		ck_assert_mem_eq(out[i], expected, gpu_coded_bytes(&coding));
	}
	gpu_close(b);
	assert_nothing_held();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("cuda kernels");
	TCase *t = new_case();

	tcase_add_loop_test(t, the_choice, 0, radix_array_size(choices));
	tcase_add_test(t, a_device_without_kernels);
	if (kernels()) {
		tcase_add_test(t, a_device_with_kernels_says_so);
		tcase_add_loop_test(t, gathered_blocks_are_one_copy, 0, 2);
		tcase_add_loop_test(t, two_registrations, 0, 2);
		tcase_add_test(t, no_memory_for_a_stage);
		tcase_add_test(t, a_stage_grows);
		tcase_add_loop_test(t, a_refused_launch, 0, 2);
		tcase_add_loop_test(t, a_kernel_that_faults, 0, 3);
		tcase_add_test(t, two_devices);
	}
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (!may_die()) {
		(void)printf("1..0 # SKIP each test needs a process of its own\n");
		return 0;
	}
	if (!kernels())
		(void)printf(
			"# no kernels in this build: a device without is all that is tested\n");
	return run_suite(suite());
}
