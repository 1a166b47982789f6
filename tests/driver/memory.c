/*
 * memory.c - allocations: their handles, and descriptors of them for other processes.
 *
 * An allocation is a sealed memfd, mapped once for the look-alike's own loads and stores.  A
 * handle, a mapping and a copy under way each hold it.
 */
#include "tests/driver/lookalike.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME         "lookalike-"
#define HANDLE_FIRST UINT64_C(0x10ca11ce00000000)

struct handle {
	struct radix_list link;
	gpu_cu_memory value;
	struct lookalike_memory *memory;
};

static struct radix_list handles = { &handles, &handles };
static uint64_t used[LOOKALIKE_MAX_DEVICES];
static uint64_t n_handles_ever;

static void lock(void)
{
	(void)pthread_mutex_lock(&lookalike_lock);
}

static gpu_cu_result unlock(gpu_cu_result r)
{
	(void)pthread_mutex_unlock(&lookalike_lock);
	return r;
}

/* ---- allocations ----------------------------------------------------------------------------- */

static struct lookalike_memory *memory_new(int fd, uint64_t len, int device, bool imported)
{
	struct lookalike_memory *m = calloc(1, sizeof(*m));
	void *alias;

	if (!m)
		return NULL;
	alias = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (alias == MAP_FAILED) {
		free(m);
		return NULL;
	}
	m->fd = fd;
	m->device = device;
	m->n_refs = 1;
	m->exportable = true;
	m->imported = imported;
	m->len = len;
	m->alias = alias;
	if (!imported)
		used[device] += len;
	lookalike_counts.n_memories++;
	return m;
}

void lookalike_memory_put(struct lookalike_memory *m)
{
	if (--m->n_refs > 0)
		return;
	if (!m->imported)
		used[m->device] -= m->len;
	(void)munmap(m->alias, m->len);
	(void)close(m->fd);
	free(m);
	lookalike_counts.n_memories--;
}

/* Where a page is touched anyway; all of it would cost as much as using it. */
static void memory_scribble(struct lookalike_memory *m)
{
	for (uint64_t at = 0; at < m->len; at += 65536)
		memset(m->alias + at, LOOKALIKE_NEW, 64);
}

static struct handle *handle_find(gpu_cu_memory value)
{
	struct radix_list *it;

	radix_list_foreach(it, &handles) {
		struct handle *h = radix_list_entry(it, struct handle, link);

		if (h->value == value)
			return h;
	}
	return NULL;
}

/* Takes over the count of `m`, also when it fails. */
static gpu_cu_result handle_new(struct lookalike_memory *m, gpu_cu_memory *ret_value)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h) {
		lookalike_memory_put(m);
		return GPU_CU_OUT_OF_MEMORY;
	}
	h->memory = m;
	h->value = HANDLE_FIRST + ++n_handles_ever;
	radix_list_add_tail(&handles, &h->link);
	lookalike_counts.n_handles++;
	*ret_value = h->value;
	return GPU_CU_SUCCESS;
}

/* What is wrong with it, or NULL. */
static const char *prop_fault(const struct gpu_cu_alloc_prop *p)
{
	if (!p)
		return "no properties";
	if (p->type != GPU_CU_MEM_ALLOCATION_PINNED)
		return "the type of memory";
	if (p->location.type != GPU_CU_MEM_LOCATION_DEVICE)
		return "the place of the memory";
	if (p->win32 || p->flags.compression || p->flags.usage || p->flags.gpu_direct_rdma > 1)
		return "flags of the properties";
	for (size_t i = 0; i < sizeof(p->flags.reserved); i++)
		if (p->flags.reserved[i] != 0)
			return "reserved bytes of the properties";
	return NULL;
}

/* Result for properties, and one of `call` if they are wrong. */
static gpu_cu_result prop_check(const char *call, const struct gpu_cu_alloc_prop *p)
{
	const char *fault = prop_fault(p);

	if (fault)
		BROKEN(GPU_CU_INVALID_VALUE, "%s: %s", call, fault);
	if (!lookalike_device_is(p->location.id))
		BROKEN(GPU_CU_INVALID_DEVICE, "%s: there is no device %d", call, p->location.id);
	if (p->handle_types & ~GPU_CU_MEM_HANDLE_POSIX_FD)
		return GPU_CU_NOT_SUPPORTED;
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_mem_granularity(size_t *ret_bytes, const struct gpu_cu_alloc_prop *prop,
					int option)
{
	gpu_cu_result r;

	ENTER(mem_granularity);
	r = prop_check("cuMemGetAllocationGranularity", prop);
	if (r != GPU_CU_SUCCESS)
		return r;
	if (!ret_bytes || option < 0 || option > GPU_CU_MEM_GRANULARITY_RECOMMENDED)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemGetAllocationGranularity: arguments");
	*ret_bytes = lookalike_config()->granularity;
	return GPU_CU_SUCCESS;
}

/* A memfd whose name says which device it is memory of, or -1. */
static int memory_file(uint64_t len, int device)
{
	char name[64];
	int fd;

	(void)snprintf(name, sizeof(name), NAME "%d", lookalike_config()->first + device);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)len) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

static gpu_cu_result create(uint64_t len, const struct gpu_cu_alloc_prop *prop,
			    gpu_cu_memory *ret_memory)
{
	const int device = prop->location.id;
	struct lookalike_memory *m;
	int fd;

	if (len > lookalike_config()->memory - used[device])
		return GPU_CU_OUT_OF_MEMORY;
	fd = memory_file(len, device);
	if (fd < 0)
		return GPU_CU_OUT_OF_MEMORY;
	m = memory_new(fd, len, device, false);
	if (!m) {
		(void)close(fd);
		return GPU_CU_OUT_OF_MEMORY;
	}
	m->exportable = prop->handle_types & GPU_CU_MEM_HANDLE_POSIX_FD;
	if (lookalike_config()->poison)
		memory_scribble(m);
	return handle_new(m, ret_memory);
}

gpu_cu_result lookalike_mem_create(gpu_cu_memory *ret_memory, size_t len,
				   const struct gpu_cu_alloc_prop *prop, uint64_t flags)
{
	gpu_cu_result r;

	ENTER(mem_create);
	r = prop_check("cuMemCreate", prop);
	if (r != GPU_CU_SUCCESS)
		return r;
	if (!ret_memory || flags != 0)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemCreate: arguments");
	if (len == 0 || len % lookalike_config()->granularity)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemCreate: %zu bytes are no multiple of %llu", len,
		       (unsigned long long)lookalike_config()->granularity);
	lock();
	return unlock(create(len, prop, ret_memory));
}

gpu_cu_result lookalike_mem_release(gpu_cu_memory memory)
{
	struct handle *h;

	ENTER(mem_release);
	lock();
	h = handle_find(memory);
	if (!h) {
		(void)unlock(0);
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemRelease: a handle that is none, or no more");
	}
	radix_list_remove(&h->link);
	lookalike_memory_put(h->memory);
	free(h);
	lookalike_counts.n_handles--;
	return unlock(GPU_CU_SUCCESS);
}

/*
 * A descriptor that is no file: a socket with one message for it, which carries the memory and is
 * looked at and never taken out.  Closing it on exec is up to who asked.  Return: it, or -1.
 */
static int opaque_new(int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec one = { .iov_base = (char[]){ 'm' }, .iov_len = 1 };
	struct msghdr m = { .msg_iov = &one,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int pair[2];
	bool sent;

	/* Of datagrams: one whose other end is closed does not hang up. */
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0)
		return -1;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	sent = sendmsg(pair[0], &m, MSG_NOSIGNAL) == 1;
	(void)close(pair[0]);
	if (sent)
		return pair[1];
	(void)close(pair[1]);
	return -1;
}

/* What an exported descriptor stands for: another one of the memory's file, or -1. */
static int file_of(int fd)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec one = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr m = { .msg_iov = &one,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	struct stat st;
	int mine;

	if (fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
		return fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (recvmsg(fd, &m, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1)
		return -1;
	c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
		return -1;
	memcpy(&mine, CMSG_DATA(c), sizeof(mine));
	return mine;
}

gpu_cu_result lookalike_mem_export(void *ret_handle, gpu_cu_memory memory, int type, uint64_t flags)
{
	const struct handle *h;
	int fd = -1;

	ENTER(mem_export);
	if (!ret_handle || flags != 0 || type != GPU_CU_MEM_HANDLE_POSIX_FD)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemExportToShareableHandle: arguments");
	lock();
	h = handle_find(memory);
	if (h && h->memory->exportable)
		fd = lookalike_config()->opaque ? opaque_new(h->memory->fd)
						: fcntl(h->memory->fd, F_DUPFD, 3);
	(void)unlock(0);
	if (!h || !h->memory->exportable)
		BROKEN(GPU_CU_INVALID_VALUE,
		       "cuMemExportToShareableHandle: no handle, or not made to be exported");
	if (fd < 0)
		return GPU_CU_OUT_OF_MEMORY;
	*(int *)ret_handle = fd;
	return GPU_CU_SUCCESS;
}

/* Whether it is the memory of a device that this process sees.  Anybody may have sent it. */
static bool is_memory(int fd, int *ret_device, uint64_t *ret_len)
{
	static const char prefix[] = "/memfd:" NAME;
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	char path[64], name[128];
	struct stat st;
	ssize_t n;
	int device;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	if (n < (ssize_t)sizeof(prefix) || strncmp(name, prefix, sizeof(prefix) - 1) != 0)
		return false;
	name[n] = '\0';
	device = (int)strtol(name + sizeof(prefix) - 1, NULL, 10) - lookalike_config()->first;
	if (!lookalike_device_is(device) || fstat(fd, &st) < 0 || st.st_size <= 0 ||
	    (fcntl(fd, F_GET_SEALS) & seals) != seals)
		return false;
	*ret_device = device;
	*ret_len = (uint64_t)st.st_size;
	return true;
}

gpu_cu_result lookalike_mem_import(gpu_cu_memory *ret_memory, void *handle, int type)
{
	const int fd = (int)(intptr_t)handle; /* stays the caller's */
	struct lookalike_memory *m;
	uint64_t len;
	int device, mine;

	ENTER(mem_import);
	if (!ret_memory || type != GPU_CU_MEM_HANDLE_POSIX_FD)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemImportFromShareableHandle: arguments");
	mine = file_of(fd);
	if (mine < 0 && errno == EMFILE)
		return GPU_CU_OUT_OF_MEMORY;
	if (mine < 0 || !is_memory(mine, &device, &len)) {
		if (mine >= 0)
			(void)close(mine);
		return GPU_CU_INVALID_VALUE;
	}
	lock();
	m = memory_new(mine, len, device, true);
	if (!m) {
		(void)close(mine);
		return unlock(GPU_CU_OUT_OF_MEMORY);
	}
	return unlock(handle_new(m, ret_memory));
}

gpu_cu_result lookalike_mem_info(size_t *ret_free, size_t *ret_total)
{
	gpu_cu_context ctx;
	gpu_cu_result r;

	ENTER(mem_info);
	r = lookalike_current("cuMemGetInfo", &ctx);
	if (r != GPU_CU_SUCCESS)
		return r;
	lock();
	*ret_total = lookalike_config()->memory;
	*ret_free = lookalike_config()->memory - used[ctx->device];
	return unlock(GPU_CU_SUCCESS);
}

struct lookalike_memory *lookalike_memory_of(gpu_cu_memory handle)
{
	const struct handle *h = handle_find(handle);

	return h ? h->memory : NULL;
}
