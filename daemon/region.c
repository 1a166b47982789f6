/*
 * region.c - see region.h.
 *
 * The whole range is mapped once, beyond the end of the file too: what was not committed would be
 * a SIGBUS, and nobody touches it.  So growing is ftruncate() and touching, of one mapping.
 */
#include "daemon/region.h"

#include "daemon/preflight.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A step is a huge page: one fault then, and some 0.1 ms (0.5 ms in small pages) of the loop. */
#define STEP_BYTES (UINT64_C(2) << 20)
#define PAGE_BYTES UINT64_C(4096)

/* In newer kernels and libc only; the values are the kernel's ABI. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static struct prefixd_region *region_of(struct radix_store *s)
{
	return s->ctx;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Linux before 5.14 does not know the advice: write what reads as zero, page by page. */
static int touch(char *p, uint64_t len)
{
	if (madvise(p, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -ENOMEM;
	for (uint64_t i = 0; i < len; i += PAGE_BYTES)
		((volatile char *)p)[i] = 0;
	return 0;
}

/* ftruncate() beyond the limit would be a signal, and its default is to end the process. */
static bool file_may_have(uint64_t len)
{
	struct rlimit rl;

	return getrlimit(RLIMIT_FSIZE, &rl) < 0 || len <= rl.rlim_cur;
}

/* `len` bytes in all are there, or the file is what it was. */
static int grow(struct prefixd_region *r, uint64_t len)
{
	struct radix_store *s = &r->store;
	char *from = (char *)s->base + s->committed;
	uint64_t n = len - s->committed;
	int ret;

	/* The kernel would not refuse the pages: it would kill processes to find them. */
	if (!file_may_have(len) || n > prefixd_memory_available())
		return -ENOMEM;
	if (ftruncate(r->fd, (off_t)len) < 0)
		return -ENOMEM;
	ret = touch(from, n);
	if (ret == 0 && r->flags & PREFIXD_REGION_LOCK && mlock(from, n) < 0)
		ret = -ENOMEM;
	if (ret < 0) {
		/* No hole is left behind, which would be found only by stepping into it; the kernel
		   has nothing against a shorter file. */
		if (ftruncate(r->fd, (off_t)s->committed) < 0)
			return -errno;
		return ret;
	}
	s->committed = len;
	return 0;
}

static int region_commit(struct radix_store *s, uint64_t len)
{
	uint64_t more;

	if (len <= s->committed)
		return 0;
	if (len > s->len)
		return -ENOMEM;
	more = radix_min_u64(round_up(len, STEP_BYTES), s->len);
	if (grow(region_of(s), more) == 0)
		return 0;
	/* A step may be too much where the rest of a page is not. */
	len = round_up(len, PAGE_BYTES);
	return len < more ? grow(region_of(s), len) : -ENOMEM;
}

/* Kernels before 6.3 do not know MFD_NOEXEC_SEAL. */
static int file_make(const char *name)
{
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

/* Length of a file of an earlier life.  Only memfds have seals to ask for. */
static int file_look(int fd, uint64_t *ret_len)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || fcntl(fd, F_GET_SEALS) < 0)
		return -EINVAL;
	if ((uint64_t)st.st_size % PAGE_BYTES != 0)
		return -EINVAL;
	*ret_len = (uint64_t)st.st_size;
	return 0;
}

/* Aligned to huge pages, file and addresses alike, so that the pages of a step may be one. */
static void *map_aligned(int fd, uint64_t len)
{
	const uint64_t all = len + STEP_BYTES;
	char *base, *p;
	uint64_t before;

	base = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return NULL;
	before = (STEP_BYTES - (uintptr_t)base % STEP_BYTES) % STEP_BYTES;
	p = mmap(base + before, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (p == MAP_FAILED) {
		(void)munmap(base, all);
		return NULL;
	}
	if (before > 0)
		(void)munmap(base, before);
	if (before < STEP_BYTES)
		(void)munmap(p + len, STEP_BYTES - before);
	return p;
}

/* The pages of an earlier life: none is missing, but each mapped now is a fault less later. */
static int map_old(struct prefixd_region *r)
{
	struct radix_store *s = &r->store;

	if (s->committed == 0)
		return 0;
	if (madvise(s->base, s->committed, MADV_POPULATE_READ) < 0 && errno != EINVAL)
		return -ENOMEM;
	if (r->flags & PREFIXD_REGION_LOCK && mlock(s->base, s->committed) < 0)
		return errno == EAGAIN ? -EAGAIN : -EPERM;
	return 0;
}

static int region_map(struct prefixd_region *r, uint64_t len)
{
	struct radix_store *s = &r->store;

	s->len = round_up(len, PAGE_BYTES);
	s->base = map_aligned(r->fd, s->len);
	if (!s->base)
		return -ENOMEM;
	if (madvise(s->base, s->len, MADV_DONTDUMP) < 0 ||
	    madvise(s->base, s->len, MADV_DONTFORK) < 0)
		return -errno;
	if (r->flags & PREFIXD_REGION_HUGE)
		(void)madvise(s->base, s->len, MADV_HUGEPAGE); /* a wish */
	return map_old(r);
}

int prefixd_region_init(struct prefixd_region *r, const char *name, int fd, uint64_t len,
			unsigned flags)
{
	struct prefixd_region new = { .fd = fd, .flags = flags };
	uint64_t old = 0;
	int ret = 0;

	if (len == 0 || len > (uint64_t)INT64_MAX / 2)
		return -EINVAL;
	if (fd >= 0)
		ret = file_look(fd, &old);
	else
		ret = new.fd = file_make(name);
	if (ret < 0)
		return ret;
	new.store.committed = old;
	ret = region_map(&new, len > old ? len : old);
	if (ret < 0) {
		if (fd >= 0)
			new.fd = -1; /* stays the caller's */
		prefixd_region_deinit(&new);
		return ret;
	}
	*r = new;
	r->store.commit = region_commit;
	r->store.ctx = r;
	return 0;
}

/* A zeroed region has no memory, so its descriptor of 0 is not its own. */
void prefixd_region_deinit(struct prefixd_region *r)
{
	if (!r || r->store.len == 0)
		return;
	if (r->store.base)
		(void)munmap(r->store.base, r->store.len);
	if (r->fd >= 0)
		(void)close(r->fd);
	*r = (struct prefixd_region){ .fd = -1 };
}
