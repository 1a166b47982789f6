/*
 * shm.c - sealed, pre-faulted shared memory.
 *
 * What it guarantees.  The memory can be passed to another process by descriptor, and no holder of
 * a descriptor can shrink or grow it, so nobody gets SIGBUS by another's ftruncate.  Every page is
 * there when the call returns: a first touch costs microseconds, and memory that the kernel cannot
 * give is an error at start-up instead of a signal at a match.  Core dumps leave it out, since K/V
 * is the content of users' prompts.
 *
 * What it relies on.  /proc for the read-only descriptor: a descriptor's access mode is fixed when
 * the file is opened, and a memfd has no other name to open it by.
 *
 * F_SEAL_FUTURE_WRITE is not set: it would forbid a restarted daemon, and workers that fill blocks
 * in place, their writable mapping.
 */
#include "gpu/gpu.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define HUGE_BYTES    (UINT64_C(2) << 20)
#define STEP_BYTES    (UINT64_C(64) << 20)
#define MAP_NOW_BYTES (UINT64_C(64) << 20) /* mapped at once; what is longer as it is touched */

/* In newer kernels and glibc only; the values are the kernel's ABI. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static void close_fd(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd); /* the number is free again whatever close() says */
	*fd = -1;
}

/* A kernel before 6.3 does not know MFD_NOEXEC_SEAL and says EINVAL. */
static int make_memfd(const char *name, unsigned int flags)
{
	int fd;

	flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
	fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

/*
 * MADV_POPULATE_WRITE rather than MAP_POPULATE alone: the latter hides that pages were missing.
 * Kernels before 5.14 lack it and get MAP_POPULATE over the same range.  In steps: whoever maps
 * memory in another thread of this process waits for a step and not for all of it.
 */
static int populate(const struct gpu_shm *shm)
{
	for (uint64_t at = 0; at < shm->len; at += STEP_BYTES) {
		char *p = (char *)shm->base + at;
		uint64_t n = radix_min_u64(STEP_BYTES, shm->len - at);

		if (madvise(p, n, MADV_POPULATE_WRITE) == 0)
			continue;
		if (errno != EINVAL)
			return errno == EFAULT ? -ENOMEM : -errno;
		if (mmap(p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
			 shm->fd, (off_t)at) == MAP_FAILED)
			return -errno;
	}
	return 0;
}

/*
 * How much memory the kernel could hand out now, without swapping.  Return: bytes; UINT64_MAX where
 * it does not say.
 */
static uint64_t available(void)
{
	static const char name[] = "MemAvailable:";
	char text[512];
	const char *at;
	ssize_t n;
	int fd;

	fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return UINT64_MAX;
	n = read(fd, text, sizeof(text) - 1);
	(void)close(fd); /* it was only read */
	if (n <= 0)
		return UINT64_MAX;
	text[n] = '\0';
	at = strstr(text, name);
	return at ? strtoull(at + sizeof(name) - 1, NULL, 10) * 1024 : UINT64_MAX;
}

/* The memfd at its final size, mapped; `flags` asks for huge pages or does not. */
static int map_pages(struct gpu_shm *shm, const char *name, uint64_t len, uint64_t page_bytes,
		     unsigned int flags)
{
	void *base;
	int r;

	r = make_memfd(name, flags);
	if (r < 0)
		return r;
	shm->fd = r;
	shm->page_bytes = page_bytes;
	shm->len = (len + page_bytes - 1) & ~(page_bytes - 1);
	if (ftruncate(shm->fd, (off_t)shm->len) < 0)
		return -errno;
	base = mmap(NULL, shm->len, PROT_READ | PROT_WRITE, MAP_SHARED, shm->fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	shm->base = base;
	return 0;
}

/*
 * memfd_create() grants MFD_HUGETLB on a machine without a single huge page; only mmap() tells, as
 * it is where they are reserved.
 */
static int map_huge(struct gpu_shm *shm, const char *name, uint64_t len)
{
	int r;

	r = map_pages(shm, name, len, HUGE_BYTES, MFD_HUGETLB | MFD_HUGE_2MB);
	if (r == 0)
		r = populate(shm);
	if (r < 0)
		gpu_shm_free(shm);
	return r;
}

static int map_plain(struct gpu_shm *shm, const char *name, uint64_t len, bool want_huge)
{
	int r;

	r = map_pages(shm, name, len, (uint64_t)sysconf(_SC_PAGESIZE), 0);
	if (r < 0)
		return r;
	/* The kernel would not refuse: it would kill processes, likely us, to find the pages. */
	if (shm->len > available())
		return -ENOMEM;
	/* Transparent huge pages where the system allows them for shared memory; a wish only. */
	if (want_huge)
		(void)madvise(shm->base, shm->len, MADV_HUGEPAGE);
	return populate(shm);
}

/*
 * Mode 0400 keeps other uids from opening it again for writing through /proc/PID/fd; a process of
 * our own uid could undo the mode, and root need not ask.
 */
static int open_read_only(struct gpu_shm *shm)
{
	char path[32];
	int fd;

	if (fchmod(shm->fd, 0400) < 0)
		return -errno;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", shm->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	shm->ro_fd = fd;
	return 0;
}

static int finish(struct gpu_shm *shm, bool want_ro_fd)
{
	if (madvise(shm->base, shm->len, MADV_DONTDUMP) < 0)
		return -errno;
	if (fcntl(shm->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0)
		return -errno;
	/*
	 * The pages stay, their mappings here go again: a process that is killed first takes its
	 * mappings down, 0.09 s for each GiB, and the next one waits for its end.  Whoever touches
	 * them pays for 16 pages at a time.
	 */
	if (shm->len > MAP_NOW_BYTES)
		(void)madvise(shm->base, shm->len, MADV_DONTNEED); /* huge pages: only lately */
	return want_ro_fd ? open_read_only(shm) : 0;
}

/*
 * `name` shows in /proc/PID/maps, nothing else.  `want_huge` is a wish: without huge pages, or for
 * less memory than one of them holds, ordinary pages are used and ret_shm->page_bytes says so.
 *
 * Return: 0; -EINVAL for a length of 0 or beyond what a file can have; -ENOMEM; or what a system
 * call said.  *ret_shm is written on success only and then owns descriptors and mapping.
 */
int gpu_shm_new(struct gpu_shm *ret_shm, const char *name, uint64_t len, bool want_huge,
		bool want_ro_fd)
{
	struct gpu_shm shm = { .fd = -1, .ro_fd = -1 };
	int r = -ENOMEM;

	if (len == 0 || len > (uint64_t)INT64_MAX - HUGE_BYTES)
		return -EINVAL;
	if (want_huge && len >= HUGE_BYTES)
		r = map_huge(&shm, name, len);
	if (r < 0)
		r = map_plain(&shm, name, len, want_huge);
	if (r == 0)
		r = finish(&shm, want_ro_fd);
	if (r < 0) {
		gpu_shm_free(&shm);
		return r;
	}
	*ret_shm = shm;
	return 0;
}

/*
 * Is it what finish() left: sealed, and no page missing?  A missing one would be found by whoever
 * steps into it.  Return: 0, -EINVAL.
 */
static int look(struct gpu_shm *shm, uint64_t len)
{
	const int seals = fcntl(shm->fd, F_GET_SEALS); /* -1: not a memfd */
	struct statfs fs;
	struct stat st;

	if (seals < 0 || (seals & SEALS) != SEALS)
		return -EINVAL;
	if (fstat(shm->fd, &st) < 0 || fstatfs(shm->fd, &fs) < 0 || fs.f_bsize <= 0)
		return -EINVAL;
	shm->len = (uint64_t)st.st_size;
	shm->page_bytes = (uint64_t)fs.f_bsize;
	if (shm->len == 0 || shm->len < len || shm->len % shm->page_bytes != 0)
		return -EINVAL;
	return (uint64_t)st.st_blocks * 512 < shm->len ? -EINVAL : 0;
}

/*
 * All pages are there; mapping them takes 0.09 s per GiB, which a start has not.  So only what is
 * small is mapped now, and the rest as it is touched: a fault for 16 pages each, and most of a pool
 * is touched by workers alone.
 */
static int map_again(struct gpu_shm *shm)
{
	void *base = mmap(NULL, shm->len, PROT_READ | PROT_WRITE, MAP_SHARED, shm->fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	shm->base = base;
	if (shm->len >= HUGE_BYTES)
		(void)madvise(shm->base, shm->len, MADV_HUGEPAGE); /* a wish, as in map_plain() */
	if (shm->len <= MAP_NOW_BYTES && madvise(shm->base, shm->len, MADV_POPULATE_READ) < 0 &&
	    errno != EINVAL)
		return errno == EFAULT ? -ENOMEM : -errno;
	return madvise(shm->base, shm->len, MADV_DONTDUMP) < 0 ? -errno : 0;
}

int gpu_shm_adopt(struct gpu_shm *ret_shm, int fd, uint64_t len, bool want_ro_fd)
{
	struct gpu_shm shm = { .fd = fd, .ro_fd = -1 };
	int r;

	r = look(&shm, len);
	if (r < 0)
		return r;
	r = map_again(&shm);
	if (r == 0 && want_ro_fd)
		r = open_read_only(&shm);
	if (r < 0) {
		shm.fd = -1; /* stays the caller's */
		gpu_shm_free(&shm);
		return r;
	}
	*ret_shm = shm;
	return 0;
}

/* A zeroed struct has no memory, so its descriptors of 0 are not ours to close. */
void gpu_shm_free(struct gpu_shm *shm)
{
	if (!shm || shm->len == 0)
		return;
	if (shm->base)
		(void)munmap(shm->base, shm->len);
	close_fd(&shm->fd);
	close_fd(&shm->ro_fd);
	*shm = (struct gpu_shm){ .fd = -1, .ro_fd = -1 };
}
