/*
 * test_region.c - stores in files without a name: growing, coming back, and not getting any more.
 */
#include "daemon/region.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB UINT64_C(1048576)

static void init(struct prefixd_region *r, int fd, uint64_t len)
{
	ck_assert_int_eq(prefixd_region_init(r, "prefixd-test", fd, len, 0), 0);
}

static void commit(struct prefixd_region *r, uint64_t len)
{
	ck_assert_int_eq(r->store.commit(&r->store, len), 0);
	ck_assert_uint_ge(r->store.committed, len);
}

static uint64_t file_len(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_size;
}

static uint64_t file_pages(int fd)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static bool all_zero(const uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != 0)
			return false;
	return true;
}

START_TEST(begins_empty)
{
	struct prefixd_region r;

	init(&r, -1, 64 * MIB + 1);
	ck_assert_uint_ge(r.store.len, 64 * MIB + 1);
	ck_assert_uint_eq(r.store.committed, 0);
	ck_assert_uint_eq(file_len(r.fd), 0);
	ck_assert_uint_eq((uintptr_t)r.store.base % 64, 0);
	prefixd_region_deinit(&r);
}
END_TEST

/* What was committed reads as zero, can be written, and does not move. */
START_TEST(grows_in_place)
{
	struct prefixd_region r;
	const void *base;

	init(&r, -1, 64 * MIB);
	base = r.store.base;
	for (uint64_t len = 1; len < 40 * MIB; len = len * 3 + 5) {
		uint64_t before = r.store.committed;
		uint8_t *p = r.store.base;

		commit(&r, len);
		ck_assert_ptr_eq(r.store.base, base);
		ck_assert_uint_eq(file_len(r.fd), r.store.committed);
		ck_assert_uint_eq(file_pages(r.fd), r.store.committed);
		ck_assert(all_zero(p + before, r.store.committed - before));
		memset(p + before, 0x5a, r.store.committed - before);
	}
	commit(&r, r.store.len);
	ck_assert_uint_eq(r.store.committed, r.store.len);
	ck_assert_int_eq(r.store.commit(&r.store, r.store.len + 1), -ENOMEM);
	prefixd_region_deinit(&r);
}
END_TEST

/* Somebody else holds the file while its maker ends: the next one finds the bytes and goes on. */
START_TEST(comes_back)
{
	struct prefixd_region r;
	uint8_t *p;
	int kept;

	init(&r, -1, 16 * MIB);
	commit(&r, 5 * MIB);
	memset(r.store.base, 0xc3, 5 * MIB);
	kept = fcntl(r.fd, F_DUPFD_CLOEXEC, 0);
	prefixd_region_deinit(&r);

	init(&r, kept, 32 * MIB);
	ck_assert_uint_eq(r.store.committed, 6 * MIB);
	ck_assert_uint_ge(r.store.len, 32 * MIB);
	p = r.store.base;
	for (uint64_t i = 0; i < 5 * MIB; i++)
		ck_assert_uint_eq(p[i], 0xc3);
	commit(&r, 20 * MIB);
	ck_assert(all_zero(p + 6 * MIB, 14 * MIB));
	p[20 * MIB - 1] = 1;
	prefixd_region_deinit(&r);
}
END_TEST

START_TEST(longer_than_asked_is_mapped_whole)
{
	struct prefixd_region r;
	int kept;

	init(&r, -1, 16 * MIB);
	commit(&r, 16 * MIB);
	((uint8_t *)r.store.base)[16 * MIB - 1] = 7;
	kept = fcntl(r.fd, F_DUPFD_CLOEXEC, 0);
	prefixd_region_deinit(&r);
	init(&r, kept, 1);
	ck_assert_uint_eq(r.store.committed, 16 * MIB);
	ck_assert_uint_eq(((uint8_t *)r.store.base)[16 * MIB - 1], 7);
	prefixd_region_deinit(&r);
}
END_TEST

/* The caller's descriptor is his when it is refused. */
START_TEST(not_such_a_file)
{
	struct prefixd_region r = { .fd = -2 };
	char path[] = "/tmp/prefixd-region-XXXXXX";
	int fds[3];

	fds[0] = mkstemp(path);
	ck_assert_int_ge(fds[0], 0);
	(void)unlink(path);
	ck_assert_int_eq(ftruncate(fds[0], 8192), 0);
	fds[1] = open("/dev/null", O_RDWR | O_CLOEXEC);
	fds[2] = memfd_create("prefixd-test", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(fds[2], 100), 0);
	for (int i = 1; i < 3; i++) {
		ck_assert_int_eq(prefixd_region_init(&r, "prefixd-test", fds[i], MIB, 0), -EINVAL);
		ck_assert_int_eq(r.fd, -2);
		ck_assert_int_ge(fcntl(fds[i], F_GETFD), 0);
	}
	ck_assert_int_eq(prefixd_region_init(&r, "prefixd-test", -1, 0, 0), -EINVAL);
	ck_assert_int_eq(prefixd_region_init(&r, "prefixd-test", -1, UINT64_MAX, 0), -EINVAL);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}
END_TEST

/* The limit of a file's length is an error, though the kernel would send a signal. */
START_TEST(beyond_the_file_size_limit)
{
	const struct rlimit tight = { .rlim_cur = 5 * MIB, .rlim_max = 5 * MIB };
	struct prefixd_region r;

	init(&r, -1, 64 * MIB);
	commit(&r, MIB);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
	commit(&r, 3 * MIB);
	ck_assert_uint_eq(r.store.committed, 4 * MIB);
	commit(&r, 4 * MIB + 1); /* the step does not fit, the page does */
	ck_assert_uint_eq(r.store.committed, 4 * MIB + 4096);
	ck_assert_int_eq(r.store.commit(&r.store, 5 * MIB + 1), -ENOMEM);
	ck_assert_uint_eq(r.store.committed, 4 * MIB + 4096);
	ck_assert_uint_eq(file_len(r.fd), 4 * MIB + 4096);
	memset(r.store.base, 1, r.store.committed);
	prefixd_region_deinit(&r);
}
END_TEST

/* Memory that may not be locked is not given: the file is what it was. */
START_TEST(beyond_the_lock_limit)
{
	const struct rlimit tight = { .rlim_cur = 3 * MIB, .rlim_max = 3 * MIB };
	static uint8_t too_much[4 * MIB];
	struct prefixd_region r;

	if (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0)
		return; /* root may lock what it likes */
	ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &tight), 0);
	if (mlock(too_much, sizeof(too_much)) == 0)
		return; /* an instrumented program has an mlock() that does nothing */
	ck_assert_int_eq(prefixd_region_init(&r, "prefixd-test", -1, 64 * MIB, PREFIXD_REGION_LOCK),
			 0);
	commit(&r, MIB);
	ck_assert_int_eq(r.store.commit(&r.store, 8 * MIB), -ENOMEM);
	ck_assert_uint_eq(r.store.committed, 2 * MIB);
	ck_assert_uint_eq(file_len(r.fd), 2 * MIB);
	prefixd_region_deinit(&r);
}
END_TEST

/* More than the machine has: refused before it is asked for. */
START_TEST(beyond_the_memory)
{
	struct prefixd_region r;

	init(&r, -1, UINT64_C(1) << 45);
	ck_assert_int_eq(r.store.commit(&r.store, UINT64_C(1) << 45), -ENOMEM);
	ck_assert_uint_eq(file_len(r.fd), 0);
	commit(&r, 1);
	prefixd_region_deinit(&r);
}
END_TEST

START_TEST(a_child_does_not_have_it)
{
	struct prefixd_region r;
	int status;
	pid_t pid;

	init(&r, -1, 4 * MIB);
	commit(&r, 1);
	pid = fork();
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile uint8_t *)r.store.base);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	prefixd_region_deinit(&r);
}
END_TEST

START_TEST(deinit_is_idempotent)
{
	struct prefixd_region r = { 0 };

	prefixd_region_deinit(NULL);
	prefixd_region_deinit(&r); /* does not close descriptor 0 */
	ck_assert_int_ge(fcntl(0, F_GETFD), 0);
	init(&r, -1, MIB);
	prefixd_region_deinit(&r);
	prefixd_region_deinit(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("region");
	TCase *t = tcase_create("all");
	SRunner *sr = srunner_create(s);
	int failed;

	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	tcase_add_test(t, begins_empty);
	tcase_add_test(t, grows_in_place);
	tcase_add_test(t, comes_back);
	tcase_add_test(t, longer_than_asked_is_mapped_whole);
	tcase_add_test(t, not_such_a_file);
	tcase_add_test(t, beyond_the_file_size_limit);
	tcase_add_test(t, beyond_the_lock_limit);
	tcase_add_test(t, beyond_the_memory);
	tcase_add_test(t, deinit_is_idempotent);
	if (!getenv("CK_FORK") || strcmp(getenv("CK_FORK"), "no") != 0)
		tcase_add_test(t, a_child_does_not_have_it);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
