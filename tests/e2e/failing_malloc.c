/*
 * failing_malloc.c - for LD_PRELOAD: the N-th call for memory fails, once.
 *
 * $PREFIXD_TEST_MEMORY names a file that holds a struct failing (failing_malloc.h), which the test
 * maps too: it says which call fails, and sees how many there were.  Calls are those for heap and
 * for mappings by the program and its libraries; what the C library maps for itself is not seen.
 *
 * It relies on glibc's names for the real functions, so that no lookup has to allocate.
 */
#undef _FILE_OFFSET_BITS /* both names of mmap are to be had */
#include "tests/e2e/failing_malloc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN __attribute__((visibility("default")))

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static struct failing *state;

static void *raw_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("PREFIXD_TEST_MEMORY");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p;

	if (fd < 0)
		return;
	p = raw_mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		state = p;
}

/* Is this the one? */
static int fails(void)
{
	if (!state || !atomic_load(&state->armed))
		return 0;
	atomic_fetch_add(&state->calls, 1);
	if (atomic_fetch_sub(&state->countdown, 1) != 1)
		return 0;
	atomic_fetch_add(&state->failed, 1);
	errno = ENOMEM;
	return 1;
}

OPEN void *malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}

OPEN void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

OPEN void *realloc(void *p, size_t n)
{
	return fails() ? NULL : __libc_realloc(p, n);
}

OPEN void *aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : __libc_memalign(align, n);
}

OPEN int posix_memalign(void **ret, size_t align, size_t n)
{
	void *p = fails() ? NULL : __libc_memalign(align, n);

	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

OPEN void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return fails() ? MAP_FAILED : raw_mmap(at, len, prot, flags, fd, offset);
}

OPEN void *mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return mmap(at, len, prot, flags, fd, offset);
}
