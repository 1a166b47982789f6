/*
 * memory.c - allocations, ranges of addresses, and what is mapped where.
 *
 * An allocation is a sealed memfd, mapped once for the look-alike's own loads and stores.  Where
 * the program maps it, it is mapped again with the rights that cuMemSetAccess gave, so that kernels
 * that run as functions of this process find it under the same addresses; with strict=1 these
 * addresses have no rights but while a kernel runs.
 *
 * A handle, a mapping and a copy under way each hold the allocation.
 */
#include "tests/driver/lookalike.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME         "lookalike-"
#define HANDLE_FIRST UINT64_C(0x10ca11ce00000000)

struct lookalike_memory {
	struct radix_list link;
	int fd;
	int device;
	uint32_t n_refs;
	bool exportable;
	bool imported; /* another's, or counted already: not in `used` */
	uint64_t len;
	uint8_t *alias;
};

struct handle {
	struct radix_list link;
	gpu_cu_memory value;
	struct lookalike_memory *memory;
};

struct range { /* of addresses, reserved */
	struct radix_list link;
	uint64_t addr, len;
};

struct mapping {
	struct radix_list link;
	uint64_t addr, len;
	struct lookalike_memory *memory;
	uint8_t rights[LOOKALIKE_MAX_DEVICES];
};

#define LIST(name) static struct radix_list name = { &name, &name }
LIST(handles);
LIST(ranges);
LIST(mappings);

static uint64_t used[LOOKALIKE_MAX_DEVICES];
static uint64_t n_handles_ever;
static uint32_t n_open; /* kernels that run */

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

static void memory_put(struct lookalike_memory *m)
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
		memory_put(m);
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
	memory_put(h->memory);
	free(h);
	lookalike_counts.n_handles--;
	return unlock(GPU_CU_SUCCESS);
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
		fd = fcntl(h->memory->fd, F_DUPFD, 3); /* closed on exec by who asked, or not */
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
	if (!is_memory(fd, &device, &len))
		return GPU_CU_INVALID_VALUE;
	mine = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (mine < 0)
		return GPU_CU_OUT_OF_MEMORY;
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

/* ---- addresses ------------------------------------------------------------------------------- */

static struct mapping *mapping_of(uint64_t addr)
{
	struct radix_list *it;

	radix_list_foreach(it, &mappings) {
		struct mapping *m = radix_list_entry(it, struct mapping, link);

		if (lookalike_inside(addr, 1, m->addr, m->len))
			return m;
	}
	return NULL;
}

static bool anything_mapped(uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, &mappings) {
		const struct mapping *m = radix_list_entry(it, struct mapping, link);

		if (lookalike_overlap(addr, len, m->addr, m->len))
			return true;
	}
	return false;
}

static struct range *range_of(uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, &ranges) {
		struct range *r = radix_list_entry(it, struct range, link);

		if (lookalike_inside(addr, len, r->addr, r->len))
			return r;
	}
	return NULL;
}

/* Aligned addresses without rights, or 0; near `hint`, or anywhere. */
static uint64_t reserve(uint64_t len, uint64_t align, uint64_t hint)
{
	void *p = mmap((void *)(uintptr_t)hint, len + align, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t start = (uintptr_t)p, addr, end;

	if (p == MAP_FAILED)
		return 0;
	addr = (start + align - 1) & ~(align - 1);
	end = start + len + align;
	if (addr > start)
		(void)munmap(p, addr - start);
	if (end > addr + len)
		(void)munmap((void *)(uintptr_t)(addr + len), end - (addr + len));
	return addr;
}

gpu_cu_result lookalike_address_reserve(gpu_cu_ptr *ret_addr, size_t len, size_t align,
					gpu_cu_ptr hint, uint64_t flags)
{
	const uint64_t unit = lookalike_config()->granularity;
	struct range *range;

	ENTER(address_reserve);
	if (!ret_addr || len == 0 || len % unit || (align & (align - 1)) != 0 || flags != 0)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemAddressReserve: arguments");
	range = calloc(1, sizeof(*range));
	if (!range)
		return GPU_CU_OUT_OF_MEMORY;
	range->addr = reserve(len, align > unit ? align : unit, hint);
	range->len = len;
	if (range->addr == 0) {
		free(range);
		return GPU_CU_OUT_OF_MEMORY;
	}
	*ret_addr = range->addr;
	lock();
	radix_list_add_tail(&ranges, &range->link);
	lookalike_counts.n_reservations++;
	return unlock(GPU_CU_SUCCESS);
}

gpu_cu_result lookalike_address_free(gpu_cu_ptr addr, size_t len)
{
	struct range *range;
	bool right, busy;

	ENTER(address_free);
	lock();
	range = len ? range_of(addr, len) : NULL;
	right = range && range->addr == addr && range->len == len;
	busy = right && anything_mapped(addr, len);
	if (right && !busy) {
		radix_list_remove(&range->link);
		(void)munmap((void *)(uintptr_t)addr, len);
		free(range);
		lookalike_counts.n_reservations--;
	}
	(void)unlock(0);
	if (!right)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemAddressFree: not a range as it was reserved");
	if (busy)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemAddressFree: something is mapped there");
	return GPU_CU_SUCCESS;
}

/* The part of cuMemMap under the lock.  *ret_fault: what is wrong. */
static gpu_cu_result map(uint64_t addr, uint64_t len, gpu_cu_memory memory, const char **ret_fault)
{
	const struct handle *h = handle_find(memory);
	struct mapping *m;

	*ret_fault = NULL;
	if (!h)
		*ret_fault = "a handle that is none, or no more";
	else if (!range_of(addr, len))
		*ret_fault = "addresses that are not reserved";
	else if (anything_mapped(addr, len))
		*ret_fault = "something is mapped there";
	/* Who got a descriptor from somebody has no other way to see how long its memory is. */
	if (*ret_fault || len > h->memory->len)
		return GPU_CU_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return GPU_CU_OUT_OF_MEMORY;
	if (mmap((void *)(uintptr_t)addr, len, PROT_NONE, MAP_SHARED | MAP_FIXED, h->memory->fd,
		 0) == MAP_FAILED) {
		free(m);
		return GPU_CU_OUT_OF_MEMORY;
	}
	m->addr = addr;
	m->len = len;
	m->memory = h->memory;
	m->memory->n_refs++;
	radix_list_add_tail(&mappings, &m->link);
	lookalike_counts.n_mappings++;
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_mem_map(gpu_cu_ptr addr, size_t len, size_t off, gpu_cu_memory memory,
				uint64_t flags)
{
	const uint64_t unit = lookalike_config()->granularity;
	const char *fault = NULL;
	gpu_cu_result r;

	ENTER(mem_map);
	if (off != 0 || flags != 0 || addr % unit || len == 0 || len % unit)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemMap: arguments");
	lock();
	r = unlock(map(addr, len, memory, &fault));
	if (fault)
		lookalike_broken("cuMemMap: %s", fault);
	return r;
}

/* The mappings of a range that holds whole ones and nothing else: their bytes, else 0. */
static uint64_t whole_mappings(uint64_t addr, uint64_t len)
{
	struct radix_list *it;
	uint64_t sum = 0;

	radix_list_foreach(it, &mappings) {
		const struct mapping *m = radix_list_entry(it, struct mapping, link);

		if (lookalike_inside(m->addr, m->len, addr, len))
			sum += m->len;
		else if (lookalike_overlap(addr, len, m->addr, m->len))
			return 0;
	}
	return sum;
}

static void mapping_free(struct mapping *m)
{
	/* Addresses stay reserved: nothing else may come to lie there. */
	(void)mmap((void *)(uintptr_t)m->addr, m->len, PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	radix_list_remove(&m->link);
	memory_put(m->memory);
	free(m);
	lookalike_counts.n_mappings--;
}

gpu_cu_result lookalike_mem_unmap(gpu_cu_ptr addr, size_t len)
{
	struct radix_list *it, *next;
	bool whole, busy;

	ENTER(mem_unmap);
	lock();
	whole = len > 0 && whole_mappings(addr, len) == len;
	busy = whole && lookalike_in_use(addr, len);
	if (whole) {
		radix_list_foreach_safe(it, next, &mappings) {
			struct mapping *m = radix_list_entry(it, struct mapping, link);

			if (lookalike_inside(m->addr, m->len, addr, len))
				mapping_free(m);
		}
	}
	(void)unlock(0);
	if (busy)
		lookalike_broken("cuMemUnmap: an operation in a queue reaches there");
	if (!whole)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemUnmap: not a range of whole mappings");
	return GPU_CU_SUCCESS;
}

static int protection(const struct mapping *m)
{
	uint8_t rights = 0;

	if (lookalike_config()->strict && n_open == 0)
		return PROT_NONE;
	for (int i = 0; i < LOOKALIKE_MAX_DEVICES; i++)
		rights |= m->rights[i];
	return (rights & GPU_CU_MEM_ACCESS_READ ? PROT_READ : 0) |
	       (rights == GPU_CU_MEM_ACCESS_READWRITE ? PROT_WRITE : 0);
}

static void protect(const struct mapping *m)
{
	radix_assert(mprotect((void *)(uintptr_t)m->addr, m->len, protection(m)) == 0);
}

static void give_access(uint64_t addr, uint64_t len, const struct gpu_cu_access_desc *desc,
			size_t n)
{
	struct radix_list *it;

	radix_list_foreach(it, &mappings) {
		struct mapping *m = radix_list_entry(it, struct mapping, link);

		if (!lookalike_inside(m->addr, m->len, addr, len))
			continue;
		for (size_t i = 0; i < n; i++)
			m->rights[desc[i].location.id] = (uint8_t)desc[i].flags;
		protect(m);
	}
}

gpu_cu_result lookalike_mem_access(gpu_cu_ptr addr, size_t len,
				   const struct gpu_cu_access_desc *desc, size_t n)
{
	bool whole;

	ENTER(mem_access);
	if (!desc || n == 0)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemSetAccess: arguments");
	for (size_t i = 0; i < n; i++) {
		const int flags = desc[i].flags;

		if (desc[i].location.type != GPU_CU_MEM_LOCATION_DEVICE ||
		    (flags != 0 && flags != GPU_CU_MEM_ACCESS_READ &&
		     flags != GPU_CU_MEM_ACCESS_READWRITE))
			BROKEN(GPU_CU_INVALID_VALUE, "cuMemSetAccess: a place or its rights");
		if (!lookalike_device_is(desc[i].location.id))
			BROKEN(GPU_CU_INVALID_DEVICE, "cuMemSetAccess: there is no device %d",
			       desc[i].location.id);
	}
	lock();
	whole = len > 0 && whole_mappings(addr, len) == len;
	if (whole)
		give_access(addr, len, desc, n);
	(void)unlock(0);
	if (!whole)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemSetAccess: not a range of whole mappings");
	return GPU_CU_SUCCESS;
}

void lookalike_open_addresses(bool open)
{
	struct radix_list *it;

	if (!lookalike_config()->strict)
		return;
	n_open += open ? 1 : UINT32_MAX;
	if (n_open > 1 || (n_open == 1 && !open))
		return;
	radix_list_foreach(it, &mappings)
		protect(radix_list_entry(it, struct mapping, link));
}

/* ---- for operations -------------------------------------------------------------------------- */

bool lookalike_is_device(uint64_t addr, uint64_t len)
{
	return range_of(addr, len) != NULL;
}

bool lookalike_memory_begin(int device, uint64_t addr, uint64_t len, bool write,
			    struct lookalike_span *ret_span, const char **ret_reason)
{
	const uint8_t need = write ? GPU_CU_MEM_ACCESS_READWRITE : GPU_CU_MEM_ACCESS_READ;
	const struct mapping *m = mapping_of(addr);

	if (!m || (m->rights[device] & need) != need) {
		*ret_reason = !m                  ? "nothing is mapped there"
			      : m->rights[device] ? "it may be read only"
						  : "no access was given to it";
		return false;
	}
	m->memory->n_refs++;
	*ret_span = (struct lookalike_span){
		.at = m->memory->alias + (addr - m->addr),
		.len = radix_min_u64(len, m->len - (addr - m->addr)),
		.memory = m->memory,
	};
	return true;
}

void lookalike_span_end(struct lookalike_span *span)
{
	if (span->memory)
		memory_put(span->memory);
	span->memory = NULL;
}
