/*
 * hanging_device.c - for LD_PRELOAD: a device that does not come back from giving memory back.
 *
 * The host device gives the memory of a pool back by munmap(); so that is what hangs, for shared
 * mappings of some size, as a driver would hang in the middle of its own.  And to make the daemon
 * give a pool back while it runs, the main thread can be refused large memory: then the pool that
 * was just made gets no index, and goes again.
 *
 * $PREFIXD_TEST_DEVICE names a file that holds a struct hanging, which the test maps too.
 */
#undef _FILE_OFFSET_BITS /* both names of mmap are to be had */
#include "tests/e2e/hanging_device.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN  __attribute__((visibility("default")))
#define LARGE ((size_t)4 << 20)

static struct hanging *state;
static _Atomic(void *) shared[64]; /* large shared mappings: the pools' */

static void *raw_mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("PREFIXD_TEST_DEVICE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *p;

	if (fd < 0)
		return;
	p = raw_mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		state = p;
}

OPEN void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	void *p;

	if (state && atomic_load(&state->no_large) && (flags & MAP_ANONYMOUS) && len >= LARGE &&
	    syscall(SYS_gettid) == getpid()) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	p = raw_mmap(at, len, prot, flags, fd, offset);
	for (size_t i = 0; p != MAP_FAILED && (flags & MAP_SHARED) && len >= LARGE && i < 64; i++) {
		void *none = NULL;

		if (atomic_compare_exchange_strong(&shared[i], &none, p))
			break;
	}
	return p;
}

OPEN void *mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return mmap(at, len, prot, flags, fd, offset);
}

OPEN int munmap(void *p, size_t len)
{
	for (size_t i = 0; state && i < 64; i++) {
		void *one = p;

		if (!atomic_compare_exchange_strong(&shared[i], &one, NULL))
			continue;
		atomic_fetch_add(&state->waiting, 1);
		while (atomic_load(&state->stuck))
			usleep(10000);
		atomic_fetch_sub(&state->waiting, 1);
	}
	return (int)syscall(SYS_munmap, p, len);
}
