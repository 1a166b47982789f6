/*
 * test_faults.c - what is left behind when the system refuses: nothing.
 *
 * The linker (--wrap) puts the functions below between gpu/ and libc.  They fail at the n-th call,
 * for every n up to the first run that needs no more calls, so that no error path is left out.
 */
#include "gpu/gpu_internal.h"
#include "tests/gpu/util.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
	bool armed;
	uint32_t countdown; /* the call that fails; counted down to 0 */
	uint32_t only;      /* kinds that are counted; 0: all */
	int error;
	bool failed;
} fault;

enum {
	FAULT_MEMFD = 1 << 0,
	FAULT_TRUNCATE = 1 << 1,
	FAULT_MMAP = 1 << 2,
	FAULT_MADVISE = 1 << 3,
	FAULT_SEAL = 1 << 4,
	FAULT_CHMOD = 1 << 5,
	FAULT_OPEN = 1 << 6,
	FAULT_CALLOC = 1 << 7,
	FAULT_EVENTFD = 1 << 8,
};

static bool refuse(uint32_t kind)
{
	if (!fault.armed || (fault.only && !(fault.only & kind)))
		return false;
	if (fault.countdown == 0 || --fault.countdown > 0)
		return false;
	fault.failed = true;
	errno = fault.error;
	return true;
}

static void arm(uint32_t nth, uint32_t only, int error)
{
	fault.armed = true;
	fault.countdown = nth;
	fault.only = only;
	fault.error = error;
	fault.failed = false;
}

int __real_memfd_create(const char *name, unsigned int flags);
int __wrap_memfd_create(const char *name, unsigned int flags);
int __real_ftruncate64(int fd, off_t len);
int __wrap_ftruncate64(int fd, off_t len);
void *__real_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
int __real_madvise(void *addr, size_t len, int advice);
int __wrap_madvise(void *addr, size_t len, int advice);
int __real_fcntl64(int fd, int cmd, long arg);
int __wrap_fcntl64(int fd, int cmd, long arg);
int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __real_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
int __real_eventfd(unsigned int count, int flags);
int __wrap_eventfd(unsigned int count, int flags);

int __wrap_memfd_create(const char *name, unsigned int flags)
{
	return refuse(FAULT_MEMFD) ? -1 : __real_memfd_create(name, flags);
}

int __wrap_ftruncate64(int fd, off_t len)
{
	return refuse(FAULT_TRUNCATE) ? -1 : __real_ftruncate64(fd, len);
}

void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	return refuse(FAULT_MMAP) ? MAP_FAILED : __real_mmap64(addr, len, prot, flags, fd, offset);
}

int __wrap_madvise(void *addr, size_t len, int advice)
{
	return refuse(FAULT_MADVISE) ? -1 : __real_madvise(addr, len, advice);
}

int __wrap_fcntl64(int fd, int cmd, long arg)
{
	return refuse(FAULT_SEAL) ? -1 : __real_fcntl64(fd, cmd, arg);
}

int __wrap_fchmod(int fd, mode_t mode)
{
	return refuse(FAULT_CHMOD) ? -1 : __real_fchmod(fd, mode);
}

int __wrap_open64(const char *path, int flags, mode_t mode)
{
	return refuse(FAULT_OPEN) ? -1 : __real_open64(path, flags, mode);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return refuse(FAULT_CALLOC) ? NULL : __real_calloc(n, size);
}

int __wrap_eventfd(unsigned int count, int flags)
{
	return refuse(FAULT_EVENTFD) ? -1 : __real_eventfd(count, flags);
}

/* ---- shared memory --------------------------------------------------------------------------- */

static const struct {
	uint64_t len;
	bool want_huge;
	bool want_ro_fd;
} shapes[] = {
	{ 100, false, false },
	{ 5000, false, true },
	{ UINT64_C(3) << 20, true, true },
};

/* EFAULT is how populating says that pages are missing; EINVAL how old kernels say "unknown". */
static const int errors[] = { ENOMEM, EMFILE, EINVAL, EFAULT };

START_TEST(shm_fails_at_every_call)
{
	uint32_t fds = count_fds(), maps = count_memfd_maps(), n_refused = 0;
	struct gpu_shm shm, untouched;
	int error = errors[(size_t)_i % radix_array_size(errors)];
	size_t shape = (size_t)_i / radix_array_size(errors);

	memset(&untouched, 0x6b, sizeof(untouched));
	for (uint32_t nth = 1; nth < 100; nth++) {
		int r;

		shm = untouched;
		arm(nth, 0, error);
		r = gpu_shm_new(&shm, "prefixd-test", shapes[shape].len, shapes[shape].want_huge,
				shapes[shape].want_ro_fd);
		fault.armed = false;
		if (r < 0) {
			n_refused++;
			ck_assert_int_eq(r, error == EFAULT && r == -ENOMEM ? -ENOMEM : -error);
			ck_assert_mem_eq(&shm, &untouched, sizeof(shm));
		} else {
			/* A wish was refused (huge pages, a newer flag) and the rest is whole. */
			ck_assert_int_eq(fcntl(shm.fd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
			memset(shm.base, 1, shm.len);
			ck_assert_uint_eq(shm.ro_fd >= 0, shapes[shape].want_ro_fd);
			gpu_shm_free(&shm);
		}
		ck_assert_uint_eq(count_fds(), fds);
		ck_assert_uint_eq(count_memfd_maps(), maps);
		if (!fault.failed) {
			ck_assert_int_eq(r, 0);
			/* memfd, size, mapping, seals at the least: each was refused once. */
			ck_assert_uint_ge(n_refused, error == EINVAL ? 3 : 4);
			return;
		}
	}
	ck_abort_msg("more system calls than anyone would expect");
}
END_TEST

/* What is refused stays the caller's, and whole. */
START_TEST(adopting_fails_at_every_call)
{
	struct gpu_shm made, shm, untouched;
	uint32_t fds, maps, n_refused = 0;
	int error = errors[_i], fd;

	memset(&untouched, 0x6b, sizeof(untouched));
	ck_assert_int_eq(gpu_shm_new(&made, "prefixd-test", 3 << 20, false, false), 0);
	fds = count_fds();
	maps = count_memfd_maps();
	for (uint32_t nth = 1; nth < 100; nth++) {
		int r;

		shm = untouched;
		fd = dup(made.fd);
		ck_assert_int_ge(fd, 0);
		arm(nth, 0, error);
		r = gpu_shm_adopt(&shm, fd, 3 << 20, true);
		fault.armed = false;
		if (r < 0) {
			n_refused++;
			ck_assert_mem_eq(&shm, &untouched, sizeof(shm));
			ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
			(void)close(fd);
		} else {
			memset(shm.base, 1, shm.len);
			gpu_shm_free(&shm);
		}
		ck_assert_uint_eq(count_fds(), fds);
		ck_assert_uint_eq(count_memfd_maps(), maps);
		if (!fault.failed) {
			ck_assert_int_eq(r, 0);
			/* seals, mapping, core dumps, mode and second descriptor at the least */
			ck_assert_uint_ge(n_refused, 5);
			gpu_shm_free(&made);
			return;
		}
	}
	ck_abort_msg("more system calls than anyone would expect");
}
END_TEST

START_TEST(shm_impossible_lengths)
{
	static const struct {
		uint64_t len;
		int r;
	} cases[] = {
		{ 0, -EINVAL },
		{ UINT64_MAX, -EINVAL },
		{ (uint64_t)INT64_MAX, -EINVAL },
		{ UINT64_C(1) << 50,
		  -ENOMEM }, /* a file of that size, but no address space for it */
	};
	uint32_t fds = count_fds();
	struct gpu_shm shm;

	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", cases[_i].len, true, true), cases[_i].r);
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", cases[_i].len, false, true),
			 cases[_i].r);
	ck_assert_uint_eq(count_fds(), fds);
}
END_TEST

static uint64_t memory_of_machine(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* More than the machine has is refused before its pages are asked for: asking would fill the
 * machine and call the kernel's killer instead of failing. */
START_TEST(shm_beyond_the_memory_there_is)
{
	uint32_t fds = count_fds(), maps = count_memfd_maps();
	struct gpu_shm shm;

	arm(1, FAULT_MADVISE, EIO); /* whoever asks for pages is stopped here */
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", memory_of_machine() + 1, false, true),
			 -ENOMEM);
	ck_assert(!fault.failed);
	fault.armed = false;
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_uint_eq(count_memfd_maps(), maps);
}
END_TEST

/* The kernel's own refusal: the process may open no more, at either descriptor. */
START_TEST(shm_without_descriptors)
{
	uint32_t fds = count_fds(), n_refused = 0;
	struct rlimit old, tight;
	struct gpu_shm shm;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
	for (uint32_t spare = 0; spare < 2; spare++) {
		int r, next = dup(STDERR_FILENO);

		ck_assert_int_ge(next, 0);
		ck_assert_int_eq(close(next), 0);
		tight = old;
		tight.rlim_cur = (rlim_t)next + spare;
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
		r = gpu_shm_new(&shm, "prefixd-test", 4096, false, true);
		ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
		ck_assert_int_eq(r, -EMFILE);
		n_refused++;
		ck_assert_uint_eq(count_fds(), fds);
	}
	ck_assert_uint_eq(n_refused, 2);
}
END_TEST

START_TEST(shm_beyond_the_file_size_limit)
{
	const struct rlimit tight = { .rlim_cur = 1 << 20, .rlim_max = 1 << 20 };
	uint32_t fds = count_fds();
	struct gpu_shm shm;

	/* The test runs in a process of its own, which ends with these settings. */
	ck_assert_ptr_ne(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 2 << 20, false, true), -EFBIG);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 1 << 20, false, true), 0);
	gpu_shm_free(&shm);
}
END_TEST

START_TEST(shm_free_twice)
{
	uint32_t fds = count_fds();
	struct gpu_shm shm = { 0 };

	gpu_shm_free(NULL);
	gpu_shm_free(&shm); /* zeroed: descriptor 0 is not ours */
	ck_assert_int_ge(fcntl(0, F_GETFD), -1);
	ck_assert_uint_eq(count_fds(), fds);
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 1, false, true), 0);
	ck_assert_uint_eq(count_fds(), fds + 2);
	gpu_shm_free(&shm);
	gpu_shm_free(&shm);
	ck_assert_uint_eq(count_fds(), fds);
}
END_TEST

/* Where the kernel has pages of 2 MiB to give, they are used; the rest is the same. */
START_TEST(shm_page_sizes)
{
	const uint64_t huge = UINT64_C(2) << 20;
	struct gpu_shm shm;

	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", huge + 1, true, false), 0);
	ck_assert(shm.page_bytes == huge || shm.page_bytes == 4096);
	ck_assert_uint_eq(shm.len % shm.page_bytes, 0);
	ck_assert_uint_ge(shm.len, huge + 1);
	ck_assert_uint_eq((uintptr_t)shm.base % shm.page_bytes, 0);
	ck_assert_int_eq(shm.ro_fd, -1);
	gpu_shm_free(&shm);
	/* Little memory is not rounded up to a huge page. */
	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 4097, true, false), 0);
	ck_assert_uint_eq(shm.len, 8192);
	gpu_shm_free(&shm);
}
END_TEST

START_TEST(shm_is_left_out_of_core_dumps)
{
	struct gpu_shm shm;
	char line[512], start[32];
	bool inside = false, found = false;
	FILE *f;

	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 4096, false, false), 0);
	(void)snprintf(start, sizeof(start), "%lx-", (unsigned long)(uintptr_t)shm.base);
	f = fopen("/proc/self/smaps", "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, start, strlen(start)) == 0)
			inside = true;
		if (inside && strncmp(line, "VmFlags:", 8) == 0) {
			found = strstr(line, " dd") != NULL;
			break;
		}
	}
	(void)fclose(f);
	ck_assert(inside);
	ck_assert(found);
	gpu_shm_free(&shm);
}
END_TEST

/* Nobody can run code from it, where the kernel is new enough (6.3) to seal that. */
START_TEST(shm_is_not_executable)
{
	int fd = memfd_create("prefixd-probe", 0x0008U /* MFD_NOEXEC_SEAL */);
	struct gpu_shm shm;
	struct stat st;

	ck_assert_int_eq(gpu_shm_new(&shm, "prefixd-test", 4096, false, false), 0);
	ck_assert_int_eq(fstat(shm.fd, &st), 0);
	if (fd >= 0) {
		ck_assert_uint_eq(st.st_mode & 0111, 0);
		ck_assert_int_eq(fchmod(shm.fd, 0755), -1);
		ck_assert_int_eq(close(fd), 0);
	}
	gpu_shm_free(&shm);
}
END_TEST

/* ---- back ends ------------------------------------------------------------------------------- */

static int open_and_use(const char *name)
{
	struct gpu *g = NULL;
	struct gpu_pool *pool = NULL;
	char why[160] = "";
	int r;

	r = gpu_open(name, NULL, &g, why, sizeof(why));
	ck_assert_str_ne(why, "");
	if (r < 0) {
		ck_assert_ptr_null(g);
		return r;
	}
	r = g->ops->pool_new(g, 3, 1000, &pool);
	ck_assert_uint_eq(r == 0, pool != NULL);
	gpu_close(g);
	return r;
}

START_TEST(back_end_fails_at_every_call)
{
	static const char *const names[] = { "host", "sim" };
	uint32_t fds = count_fds(), maps = count_memfd_maps(), n_refused = 0;

	for (uint32_t nth = 1; nth < 100; nth++) {
		int r;

		arm(nth, 0, ENOMEM);
		r = open_and_use(names[_i]);
		fault.armed = false;
		ck_assert(r == 0 || r == -ENOMEM);
		n_refused += r < 0;
		ck_assert_uint_eq(count_fds(), fds);
		ck_assert_uint_eq(count_memfd_maps(), maps);
		if (!fault.failed) {
			ck_assert_int_eq(r, 0);
			ck_assert_uint_ge(n_refused, 8);
			return;
		}
	}
	ck_abort_msg("more system calls than anyone would expect");
}
END_TEST

/* Without an address in the usual places the device takes what the kernel gives. */
START_TEST(window_elsewhere)
{
	const struct gpu_sim_config healthy = { 0 };
	struct gpu *g[17];

	for (size_t i = 0; i < radix_array_size(g); i++)
		ck_assert_int_eq(gpu_sim_open(&healthy, 1 << 20, &g[i]), 0);
	for (size_t i = 0; i < radix_array_size(g); i++) {
		struct gpu_pool *pool = new_pool(g[i], 1, 64);
		uint64_t at = g[i]->ops->slot_addr(pool, 0);
		uint8_t byte = 1;
		struct counted_job c;

		ck_assert_int_eq(submit(g[i], &c, at, addr_of(&byte), 1), 0);
		ck_assert_uint_eq(settle(g[i]), 1);
		ck_assert_int_eq(c.status, 0);
		gpu_close(g[i]);
	}
}
END_TEST

static Suite *faults(void)
{
	Suite *s = suite_create("faults");
	TCase *t = new_case();

	tcase_add_loop_test(t, shm_fails_at_every_call, 0,
			    (int)(radix_array_size(shapes) * radix_array_size(errors)));
	tcase_add_loop_test(t, adopting_fails_at_every_call, 0, (int)radix_array_size(errors));
	tcase_add_loop_test(t, shm_impossible_lengths, 0, 4);
	tcase_add_test(t, shm_beyond_the_memory_there_is);
	tcase_add_test(t, shm_without_descriptors);
	if (may_die())
		tcase_add_test(t, shm_beyond_the_file_size_limit);
	tcase_add_test(t, shm_free_twice);
	tcase_add_test(t, shm_page_sizes);
	tcase_add_test(t, shm_is_left_out_of_core_dumps);
	tcase_add_test(t, shm_is_not_executable);
	tcase_add_loop_test(t, back_end_fails_at_every_call, 0, 2);
	tcase_add_test(t, window_elsewhere);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return run_suite(faults());
}
