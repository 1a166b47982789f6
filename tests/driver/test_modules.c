/*
 * test_modules.c - kernels on the look-alike driver: launches, their order, and how they fail.
 *
 * The only argument is the library with the kernels for this machine.
 */
#include "gpu/kernels.h"
#include "tests/driver/util.h"
#include "tests/lib/run.h"

#define PIECE 256u
#define IMAGE "//" /* as far as the look-alike looks into one */

static const char *library;
static gpu_cu_module module;
static gpu_cu_function gather;

static void start_with_kernels(const char *variable)
{
	char all[400];

	(void)snprintf(all, sizeof(all), "kernels=%s,%s", library, variable);
	start(all);
	ok(d.module_load(&module, IMAGE));
	ok(d.module_function(&gather, module, "gpu_kernel_gather"));
}

/* Device memory: the table of pieces, the ids, the blocks from 4096 on, the output from UNIT on. */
static void queue_gather(unsigned threads, gpu_cu_result result)
{
	const uint64_t base = device + 4096;
	const uint32_t ids[2] = { 3, 1 };
	struct gpu_layout layout = {
		.base = device, .stride = PIECE, .n_pieces = 1, .piece_bytes = PIECE
	};
	gpu_cu_ptr at_ids = device + 64, out = device + UNIT;
	uint64_t out_stride = PIECE;
	uint32_t n = 2;
	void *args[] = { &layout, &at_ids, &n, &out, &out_stride };

	memcpy(host, &base, sizeof(base));
	memcpy(host + 64, ids, sizeof(ids));
	for (uint32_t i = 0; i < 4; i++)
		memset(host + 4096 + i * PIECE, (int)i + 1, PIECE);
	ok(d.copy(device, addr_of(host), 8192, stream));
	ck_assert_int_eq(d.launch(gather, 2, 1, 1, threads, 1, 1, 0, stream, args, NULL), result);
	memset(&layout, 0, sizeof(layout)); /* taken when it was asked for */
	n = 99;
}

static const char *const variables[] = { "", "strict=1", "latency_us=3000", "poison=1" };

START_TEST(a_kernel_runs_in_its_queue)
{
	start_with_kernels(variables[_i]);
	queue_gather(64, GPU_CU_SUCCESS);
	ok(d.copy(addr_of(host) + 16384, device + UNIT, 2 * PIECE, stream));
	ok(d.stream_sync(stream));
	ck_assert(all_are(host + 16384, PIECE, 4));
	ck_assert(all_are(host + 16384 + PIECE, PIECE, 2));
	ck_assert_uint_eq(census().n_launches, 1);
	ck_assert_uint_eq(census().n_broken, 0);
	ok(d.module_unload(module));
	stop();
}
END_TEST

START_TEST(each_kernel_is_there)
{
	static const char *const names[] = {
#define X(name) #name,
		GPU_KERNELS(X)
#undef X
	};
	gpu_cu_function f;

	start_with_kernels("");
	for (size_t i = 0; i < radix_array_size(names); i++)
		ok(d.module_function(&f, module, names[i]));
	ck_assert_int_eq(d.module_function(&f, module, "gpu_kernel"), GPU_CU_NOT_FOUND);
	ok(d.module_unload(module));
	breaks(d.module_unload(module), GPU_CU_INVALID_HANDLE);
	breaks(d.module_function(&f, module, names[0]), GPU_CU_INVALID_HANDLE);
	breaks(d.launch(gather, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), GPU_CU_INVALID_HANDLE);
	stop();
}
END_TEST

START_TEST(what_is_no_image)
{
	start_with_kernels("");
	breaks(d.module_load(&module, "MZ is another kind"), 200);
	ok(d.context_release(0));
	ck_assert_uint_eq(census().n_modules, 0);
}
END_TEST

START_TEST(dimensions_that_a_device_refuses)
{
	uint64_t zeros[4] = { 0 };
	void *args[] = { zeros, zeros, zeros, zeros, zeros };

	start_with_kernels("");
	queue_gather(2048, GPU_CU_INVALID_VALUE);
	ck_assert_uint_eq(census().n_broken, 1);
	breaks(d.launch(gather, 1, 1, 1, 1024, 2, 1, 0, stream, args, NULL), GPU_CU_INVALID_VALUE);
	breaks(d.launch(gather, 1, 0, 1, 32, 1, 1, 0, stream, args, NULL), GPU_CU_INVALID_VALUE);
	breaks(d.launch(gather, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), GPU_CU_INVALID_VALUE);
	queue_gather(33, GPU_CU_SUCCESS); /* a broken warp: of these kernels, not of the device */
	ck_assert_int_eq(d.stream_sync(stream), GPU_CU_LAUNCH_FAILED);
	ck_assert_uint_eq(census().n_broken, 5);
}
END_TEST

START_TEST(a_kernel_that_fails_takes_the_context_with_it)
{
	start_with_kernels("op=kernel:2:700");
	queue_gather(64, GPU_CU_SUCCESS);
	ok(d.stream_sync(stream));
	queue_gather(64, GPU_CU_SUCCESS);
	ck_assert_int_eq(d.stream_sync(stream), GPU_CU_ILLEGAL_ADDRESS);
	ck_assert_int_eq(d.module_unload(module), GPU_CU_ILLEGAL_ADDRESS);
	ck_assert_uint_eq(census().n_modules, 0);
	ck_assert_uint_eq(census().n_broken, 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("modules");
	TCase *t = tcase_create("all");

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_kernel_runs_in_its_queue, 0, (int)radix_array_size(variables));
	tcase_add_test(t, each_kernel_is_there);
	tcase_add_test(t, what_is_no_image);
	tcase_add_test(t, dimensions_that_a_device_refuses);
	tcase_add_test(t, a_kernel_that_fails_takes_the_context_with_it);
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	library = argv[1];
	return test_run_as(suite(), CK_FORK);
}
