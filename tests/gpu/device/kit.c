/*
 * kit.c - see kit.h.
 */
#include "tests/gpu/device/kit.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int n_failed;
bool quick;

/* ---- the table ------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 0))) static void line(enum verdict v, const char *what,
						       const char *fmt, va_list ap)
{
	static const char *const names[] = { "ok", "FAILED", "skipped" };
	char text[400];

	(void)vsnprintf(text, sizeof(text), fmt, ap);
	printf("  %-8s %-44s %s\n", names[v], what, text);
	(void)fflush(stdout);
	n_failed += v == FAILED;
}

void report(enum verdict v, const char *what, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	line(v, what, fmt, ap);
	va_end(ap);
}

void give_up(const char *what, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	line(FAILED, what, fmt, ap);
	va_end(ap);
	_exit(1); /* a driver's exit handlers may wait for what does not come */
}

double seconds(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- a device -------------------------------------------------------------------------------- */

static const struct gpu_cu_alloc_prop *prop_of(const struct device *dev)
{
	static struct gpu_cu_alloc_prop prop;

	prop = (struct gpu_cu_alloc_prop){
		.type = GPU_CU_MEM_ALLOCATION_PINNED,
		.handle_types = GPU_CU_MEM_HANDLE_POSIX_FD,
		.location = { .type = GPU_CU_MEM_LOCATION_DEVICE, .id = dev->number },
	};
	return &prop;
}

void device_open(struct device *dev)
{
	size_t granularity;

	memset(dev, 0, sizeof(*dev));
	if (gpu_driver_load(&dev->d, dev->found, sizeof(dev->found)) != GPU_DRIVER_OK)
		give_up("driver", "%s", dev->found);
	must(dev, device_get, &dev->number, 0);
	must(dev, context_retain, &dev->context, dev->number);
	must(dev, context_set, dev->context);
	must(dev, stream_new, &dev->stream, GPU_CU_STREAM_NON_BLOCKING, 0);
	must(dev, mem_granularity, &granularity, prop_of(dev), GPU_CU_MEM_GRANULARITY_RECOMMENDED);
	dev->granularity = granularity;
	dev->pinned = pinned_new(dev, PINNED_BYTES, &dev->pinned_at);
}

void *pinned_new(struct device *dev, uint64_t len, gpu_cu_ptr *ret_at)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
		       -1, 0);

	if (p == MAP_FAILED)
		give_up("memory", "%llu bytes of this machine's", (unsigned long long)len);
	must(dev, host_register, p, len,
	     GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
	must(dev, host_pointer, ret_at, p, 0);
	return p;
}

static struct slab slab_map(struct device *dev, gpu_cu_memory memory, uint64_t len, int access)
{
	const struct gpu_cu_access_desc desc = {
		.location = { .type = GPU_CU_MEM_LOCATION_DEVICE, .id = dev->number },
		.flags = access,
	};
	struct slab s = { .len = len };

	must(dev, address_reserve, &s.at, len, 0, 0, 0);
	must(dev, mem_map, s.at, len, 0, memory, 0);
	must(dev, mem_release, memory); /* the mapping holds it */
	must(dev, mem_access, s.at, len, &desc, 1);
	return s;
}

struct slab slab_new(struct device *dev, uint64_t len, int *ret_fd)
{
	gpu_cu_memory memory;

	len = (len + dev->granularity - 1) / dev->granularity * dev->granularity;
	must(dev, mem_create, &memory, len, prop_of(dev), 0);
	must(dev, mem_export, ret_fd, memory, GPU_CU_MEM_HANDLE_POSIX_FD, 0);
	return slab_map(dev, memory, len, GPU_CU_MEM_ACCESS_READWRITE);
}

struct slab slab_import(struct device *dev, int fd, uint64_t len, int access)
{
	gpu_cu_memory memory;

	must(dev, mem_import, &memory, (void *)(intptr_t)fd, GPU_CU_MEM_HANDLE_POSIX_FD);
	return slab_map(dev, memory, len, access);
}

void slab_free(struct device *dev, struct slab *slab)
{
	must(dev, mem_unmap, slab->at, slab->len);
	must(dev, address_free, slab->at, slab->len);
}

uint64_t pattern(uint64_t at, uint32_t seed)
{
	uint64_t x = (at + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed * UINT64_C(0xd1b54a32d192ed03);

	/* As numbers of 16 bits all are finite and below 2: codecs take them. */
	return (x ^ x >> 29) & UINT64_C(0xbbffbbffbbffbbff);
}

void slab_fill(struct device *dev, const struct slab *slab, uint32_t seed)
{
	for (uint64_t at = 0; at < slab->len; at += PINNED_BYTES) {
		uint64_t n = radix_min_u64(PINNED_BYTES, slab->len - at);
		uint64_t *w = (uint64_t *)(void *)dev->pinned;

		for (uint64_t i = 0; i < n / 8; i++)
			w[i] = pattern(at / 8 + i, seed);
		must(dev, copy, slab->at + at, dev->pinned_at, n, dev->stream);
		must(dev, stream_sync, dev->stream);
	}
}

uint64_t slab_wrong(struct device *dev, const struct slab *slab, uint32_t seed)
{
	uint64_t wrong = 0;

	for (uint64_t at = 0; at < slab->len; at += PINNED_BYTES) {
		uint64_t n = radix_min_u64(PINNED_BYTES, slab->len - at);
		const uint64_t *w = (const uint64_t *)(const void *)dev->pinned;

		must(dev, copy, dev->pinned_at, slab->at + at, n, dev->stream);
		must(dev, stream_sync, dev->stream);
		for (uint64_t i = 0; i < n / 8; i++)
			wrong += w[i] == pattern(at / 8 + i, seed) ? 0 : 8;
	}
	return wrong;
}

/* ---- other processes ------------------------------------------------------------------------- */

struct child child_new(int (*fn)(int socket))
{
	struct child c;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		give_up("processes", "socketpair: %s", strerror(errno));
	(void)fflush(stdout);
	c.pid = fork();
	if (c.pid < 0)
		give_up("processes", "fork: %s", strerror(errno));
	if (c.pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing of this outlives its part */
		(void)close(pair[0]);
		_exit(fn(pair[1]));
	}
	(void)close(pair[1]);
	c.socket = pair[0];
	return c;
}

int child_end(struct child *c)
{
	int status = 0;

	while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
		;
	(void)close(c->socket);
	c->pid = 0;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void tell(int socket, char what, int fd)
{
	struct iovec iov = { &what, 1 };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		m.msg_control = control.room;
		m.msg_controllen = sizeof(control.room);
		control.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						 .cmsg_type = SCM_RIGHTS,
						 .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	}
	if (sendmsg(socket, &m, MSG_NOSIGNAL) != 1)
		give_up("processes", "the other process is gone (%s)", strerror(errno));
}

int hear(int socket, char what)
{
	char got = 0;
	struct iovec iov = { &got, 1 };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.room,
			    .msg_controllen = sizeof(control.room) };
	const struct cmsghdr *c;
	int fd = -1;

	if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != 1 || got != what)
		give_up("processes", "the other process did not get as far as '%c'", what);
	c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}
