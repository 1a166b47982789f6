/*
 * test_coded.c - jobs that encode, decode and sum, over the back end named by the argument.
 *
 * A device that does not do it says so and refuses such jobs.
 */
#include "gpu/coded.h"
#include "tests/gpu/util.h"

#include <errno.h>

static const char *back_end = "host";

static struct gpu *g;

static void setup(void)
{
	g = open_back_end(back_end, NULL);
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

static Suite *coded(void)
{
	Suite *s = suite_create("coded");
	TCase *t = new_case();

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, descriptions);
	tcase_add_test(t, a_device_that_only_copies_refuses);
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		back_end = argv[1];
	return run_suite(coded());
}
