/*
 * test_adopt.c - memory that an earlier life of the device left, over the back end named by the
 * argument: its bytes are there, and what is not such memory is refused.
 */
#include "gpu/gpu.h"
#include "tests/gpu/util.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_SLOTS    20u
#define SLOT_BYTES 5000u

static const char *back_end = "host";

static struct gpu *g;

static void setup(void)
{
	g = open_back_end(back_end, NULL);
	n_in_flight = 0;
}

static bool is_cuda(void)
{
	return strcmp(back_end, "cuda") == 0;
}

static void teardown(void)
{
	gpu_close(g);
	g = NULL;
}

static void fill(uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (uint8_t)(i * 31 + i / 4096);
}

static bool filled(const uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != (uint8_t)(i * 31 + i / 4096))
			return false;
	return true;
}

/* A pool with bytes in it, after its device has gone: the descriptor that somebody kept. */
static int leave_pool(bool leave)
{
	struct gpu_pool *pool = new_pool(g, N_SLOTS, SLOT_BYTES);
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);
	int fd = fcntl(g->ops->pool_fd(pool, 0, false), F_DUPFD_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	fill(p, len);
	ck_assert_int_eq(munmap(p, len), 0);
	if (leave)
		gpu_leave_memory(g);
	teardown();
	setup();
	return fd;
}

static struct gpu_pool *adopt(int fd)
{
	struct gpu_pool *pool = NULL;

	ck_assert_int_eq(g->ops->pool_adopt(g, &fd, 1, N_SLOTS, SLOT_BYTES, &pool), 0);
	ck_assert_ptr_nonnull(pool);
	return pool;
}

/* ---- pools ----------------------------------------------------------------------------------- */

START_TEST(bytes_are_as_they_were)
{
	struct gpu_pool *pool = adopt(leave_pool(true));
	struct gpu_pool_info info;
	struct counted_job job;
	uint8_t *block = pages(g, SLOT_BYTES);
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	g->ops->pool_info(pool, &info);
	ck_assert_uint_eq(info.n_slots, N_SLOTS);
	ck_assert_uint_eq(info.slot_bytes, SLOT_BYTES);
	ck_assert_uint_eq(info.slot_stride, 5056);
	ck_assert_uint_eq(info.len, len);
	ck_assert(info.sealed);
	ck_assert(filled(p, len));
	/* The device finds them too, at addresses of this life. */
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		ck_assert_int_eq(
			submit(g, &job, addr_of(block), g->ops->slot_addr(pool, i), SLOT_BYTES), 0);
		ck_assert_uint_eq(settle(g), 1);
		ck_assert_int_eq(job.status, 0);
		ck_assert_mem_eq(block, p + i * info.slot_stride, SLOT_BYTES);
	}
	ck_assert_int_eq(munmap(p, len), 0);
	g->ops->pool_free(g, pool);
}
END_TEST

/* Writing goes both ways, and the second descriptor cannot write. */
START_TEST(descriptors_are_of_the_same_file)
{
	int fd = leave_pool(true);
	struct gpu_pool *pool = adopt(fd);
	int ro = is_cuda() ? fd : g->ops->pool_fd(pool, 0, true);
	struct stat a, b;

	ck_assert_int_eq(g->ops->pool_fd(pool, 0, false), fd);
	ck_assert_int_eq(fstat(fd, &a), 0);
	ck_assert_int_eq(fstat(ro, &b), 0);
	ck_assert(a.st_ino == b.st_ino && a.st_dev == b.st_dev);
	if (!is_cuda())
		ck_assert_int_eq(fcntl(ro, F_GETFL) & O_ACCMODE, O_RDONLY);
	ck_assert_int_eq(fcntl(ro, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	g->ops->pool_free(g, pool);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* it was the pool's */
}
END_TEST

/* Life after life: what is adopted can be adopted again. */
START_TEST(again_and_again)
{
	int fd = leave_pool(true);

	for (int i = 0; i < 5; i++) {
		struct gpu_pool *pool = adopt(fd);
		uint64_t len;
		uint8_t *p = map_pool(g, pool, &len);

		ck_assert(filled(p, len));
		ck_assert_int_eq(munmap(p, len), 0);
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		gpu_leave_memory(g);
		teardown();
		setup();
	}
	close(fd);
}
END_TEST

static int memfd(uint64_t len, bool pages, int seals)
{
	int fd = memfd_create("prefixd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)len), 0);
	if (pages)
		ck_assert_int_eq(posix_fallocate(fd, 0, (off_t)len), 0);
	if (seals)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* Refused: nothing is left behind, and the descriptor stays the caller's. */
static void refused(int fd, uint32_t n_slots, uint64_t slot_bytes)
{
	struct gpu_pool *const untouched = (void *)&g;
	struct gpu_pool *pool = untouched;
	uint32_t fds = count_fds(), maps = count_memfd_maps();

	ck_assert_int_eq(g->ops->pool_adopt(g, &fd, 1, n_slots, slot_bytes, &pool), -EINVAL);
	ck_assert_ptr_eq(pool, untouched);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_memfd_maps(), maps);
}

START_TEST(other_numbers_are_refused)
{
	int fd = leave_pool(true);

	/* Memory of a device is told apart by its slabs, of which these need more. */
	if (is_cuda()) {
		refused(fd, N_SLOTS * 30, SLOT_BYTES);
		refused(fd, N_SLOTS, SLOT_BYTES * 30);
	} else {
		refused(fd, N_SLOTS + 1, SLOT_BYTES);
		refused(fd, N_SLOTS - 1, SLOT_BYTES);
		refused(fd, N_SLOTS, SLOT_BYTES + 1000);
		refused(fd, N_SLOTS, SLOT_BYTES - 1000);
	}
	refused(fd, 0, SLOT_BYTES);
	refused(fd, N_SLOTS, 0);
	refused(fd, UINT32_MAX, UINT64_MAX / 2);
	(void)adopt(fd);
}
END_TEST

START_TEST(other_memory_is_refused)
{
	const uint64_t len = 25 * 4096; /* what 20 slots of 5056 bytes need */
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	char path[] = "/tmp/prefixd-adopt-XXXXXX";
	int fds[] = {
		memfd(len, true, 0),             /* somebody could cut it under us */
		memfd(len, true, F_SEAL_SHRINK), /* or let it grow */
		memfd(len, false, seals),        /* no memory behind it */
		memfd(len + 100, true, seals),   /* not whole pages */
		mkstemp(path),                   /* a file of a disk */
		open("/dev/null", O_RDWR | O_CLOEXEC),
	};
	int good = memfd(len, true, seals);

	(void)unlink(path);
	ck_assert_int_eq(ftruncate(fds[4], (off_t)len), 0);
	for (size_t i = 0; i < radix_array_size(fds); i++) {
		refused(fds[i], N_SLOTS, SLOT_BYTES);
		ck_assert_int_ge(fcntl(fds[i], F_GETFD), 0);
		close(fds[i]);
	}
	refused(-1, N_SLOTS, SLOT_BYTES);
	if (is_cuda())
		refused(good, N_SLOTS, SLOT_BYTES); /* memory, but none of a device */
	else
		(void)adopt(good);
}
END_TEST

/* ---- shared memory --------------------------------------------------------------------------- */

START_TEST(shm_comes_back)
{
	struct gpu_shm a, b;
	int fd;

	ck_assert_int_eq(gpu_shm_new(&a, "prefixd-test", 100000, false, _i), 0);
	fill(a.base, a.len);
	fd = fcntl(a.fd, F_DUPFD_CLOEXEC, 0);
	gpu_shm_free(&a);
	ck_assert_int_eq(gpu_shm_adopt(&b, fd, 102401, _i), -EINVAL); /* longer than it is */
	ck_assert_int_eq(gpu_shm_adopt(&b, fd, 100000, _i), 0);
	ck_assert_uint_eq(b.len, 102400);
	ck_assert_uint_eq(b.page_bytes, 4096);
	ck_assert_uint_eq(b.ro_fd >= 0, _i);
	ck_assert(filled(b.base, b.len));
	gpu_shm_free(&b);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
}
END_TEST

/* ---- the simulated device -------------------------------------------------------------------- */

/* Unless it is told that somebody goes on with the memory, nobody shall. */
START_TEST(sim_poisons_what_is_not_left)
{
	struct gpu_pool *pool = adopt(leave_pool(false));
	uint64_t len;
	uint8_t *p = map_pool(g, pool, &len);

	ck_assert(all_bytes(p, len, 0xdd));
	ck_assert_int_eq(munmap(p, len), 0);
}
END_TEST

static int adopt_with(const struct gpu_sim_config *plan, int fd)
{
	struct gpu *sim = open_back_end("sim", plan);
	struct gpu_pool *pool = NULL;
	int r = sim->ops->pool_adopt(sim, &fd, 1, N_SLOTS, SLOT_BYTES, &pool);

	ck_assert_uint_eq(r == 0, pool != NULL);
	gpu_leave_memory(sim);
	gpu_close(sim);
	return r;
}

/* Memory of an earlier life counts like new memory. */
START_TEST(sim_adopts_by_its_plan)
{
	const struct gpu_sim_config little = { .capacity = N_SLOTS * SLOT_BYTES - 1 };
	const struct gpu_sim_config enough = { .capacity = N_SLOTS * SLOT_BYTES };
	const struct gpu_sim_config fails = { .fail_alloc = 1 };
	int fd = leave_pool(true);

	ck_assert_int_eq(adopt_with(&little, fd), -ENOMEM);
	ck_assert_int_eq(adopt_with(&fails, fd), -ENOMEM);
	ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
	ck_assert_int_eq(adopt_with(&enough, fd), 0);
}
END_TEST

static Suite *adoption(void)
{
	Suite *s = suite_create("adopt");
	TCase *t = new_case();

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, bytes_are_as_they_were);
	tcase_add_test(t, descriptors_are_of_the_same_file);
	tcase_add_test(t, again_and_again);
	tcase_add_test(t, other_numbers_are_refused);
	tcase_add_test(t, other_memory_is_refused);
	tcase_add_loop_test(t, shm_comes_back, 0, 2);
	if (strcmp(back_end, "sim") == 0) {
		tcase_add_test(t, sim_poisons_what_is_not_left);
		tcase_add_test(t, sim_adopts_by_its_plan);
	}
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		back_end = argv[1];
	return run_suite(adoption());
}
