/*
 * test_hostcuda.cc - what hostcuda.h promises of shuffles and launches, with kernels of its own.
 */
#include "tests/kernels/hostcuda.h"
#include "tests/lib/run.h"

#include <pthread.h>
#include <stdlib.h>

/* Shuffle after shuffle without anything between: values of two must not mix. */
static void sums(uint32_t *out, uint32_t times)
{
	for (uint32_t i = 0; i < times; i++) {
		uint64_t v = threadIdx.x + i;

		for (uint32_t o = 16; o; o /= 2)
			v += __shfl_xor_sync(0xffffffffu, v, o);
		if (threadIdx.x % 32 == i % 32)
			out[blockIdx.x * blockDim.x + threadIdx.x] += (uint32_t)v;
	}
}

static void half_a_warp(uint32_t *out)
{
	if (threadIdx.x < 16)
		*out += __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
}

static void two_ways(uint32_t *out)
{
	*out += __shfl_xor_sync(0xffffffffu, threadIdx.x, threadIdx.x < 16 ? 1 : 2);
}

static int launch(int (*run)(const uint32_t *, const uint32_t *, uint32_t, void **), uint32_t grid,
		  uint32_t block, uint32_t shared, void **args)
{
	const uint32_t g[3] = { grid, 1, 1 }, b[3] = { block, 1, 1 };

	return run(g, b, shared, args);
}

static void check_sums(void)
{
	uint32_t out[3 * 64] = {}, *p = out, times = 100;
	void *args[] = { &p, &times };

	if (launch(hostcuda_kernel<sums>::run, 3, 64, 0, args) != 0)
		ck_abort_msg("a launch was refused");
	for (uint32_t b = 0; b < 3; b++)
		for (uint32_t t = 0; t < 64; t++) {
			uint32_t want = 0;

			for (uint32_t i = t % 32; i < times; i += 32)
				want += 31 * 16 + 32 * (t / 32 * 32 + i);
			if (out[b * 64 + t] != want)
				ck_abort_msg("thread %u has %u, not %u", t, out[b * 64 + t], want);
		}
}

static void *thread(void *)
{
	for (int i = 0; i < 50; i++)
		check_sums();
	return nullptr;
}

START_TEST(lanes_exchange_values)
{
	check_sums();
	check_sums();
}
END_TEST

START_TEST(threads_launch_at_a_time)
{
	pthread_t t[4];

	for (pthread_t &one : t)
		ck_assert_int_eq(pthread_create(&one, nullptr, thread, nullptr), 0);
	for (pthread_t one : t)
		ck_assert_int_eq(pthread_join(one, nullptr), 0);
}
END_TEST

START_TEST(launches_that_are_refused)
{
	uint32_t out[64] = {}, *p = out, times = 1;
	void *args[] = { &p, &times };
	auto run = hostcuda_kernel<sums>::run;
	const uint32_t one[3] = { 1, 1, 1 }, flat[3] = { 32, 2, 1 };

	ck_assert_int_eq(launch(run, 0, 32, 0, args), -1);
	ck_assert_int_eq(launch(run, 1, 0, 0, args), -1);
	ck_assert_int_eq(launch(run, 1, 33, 0, args), -1);
	ck_assert_int_eq(launch(run, 1, 288, 0, args), -1);
	ck_assert_int_eq(launch(run, 1, 32, 4, args), -1);
	ck_assert_int_eq(run(one, flat, 0, args), -1);
	for (uint32_t v : out)
		ck_assert_uint_eq(v, 0);
	ck_assert_int_eq(launch(run, 1, 32, 0, args), 0);
}
END_TEST

START_TEST(arguments_have_their_sizes)
{
	ck_assert_uint_eq(hostcuda_kernel<sums>::n_args, 2);
	ck_assert_uint_eq(hostcuda_kernel<sums>::arg_bytes[0], sizeof(void *));
	ck_assert_uint_eq(hostcuda_kernel<sums>::arg_bytes[1], 4);
}
END_TEST

START_TEST(lanes_that_stay_away_end_the_run)
{
	uint32_t out = 0, *p = &out;
	void *args[] = { &p };

	if (_i)
		(void)launch(hostcuda_kernel<half_a_warp>::run, 1, 32, 0, args);
	else
		(void)launch(hostcuda_kernel<two_ways>::run, 1, 32, 0, args);
}
END_TEST

int main()
{
	Suite *s = suite_create("hostcuda");
	TCase *t = tcase_create("hostcuda");

	tcase_set_timeout(t, 60); /* unoptimised, and on a busy machine */
	tcase_add_test(t, lanes_exchange_values);
	tcase_add_test(t, threads_launch_at_a_time);
	tcase_add_test(t, launches_that_are_refused);
	tcase_add_test(t, arguments_have_their_sizes);
	const char *fork = getenv("CK_FORK");

	if (!fork || strcmp(fork, "no") != 0)
		tcase_add_loop_test_raise_signal(t, lanes_that_stay_away_end_the_run, 6, 0, 2);
	suite_add_tcase(s, t);
	return test_run(s);
}
