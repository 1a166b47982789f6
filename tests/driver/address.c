/*
 * address.c - ranges of addresses, what is mapped where, and who may reach it.
 *
 * Where the program maps an allocation it is mapped into this process as well, with the rights that
 * cuMemSetAccess gave, so that kernels that run as functions of this process find it under the same
 * addresses; with strict=1 these addresses have no rights but while a kernel runs.
 */
#include "tests/driver/lookalike.h"

#include <stdlib.h>
#include <sys/mman.h>

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

static struct radix_list ranges = { &ranges, &ranges };
static struct radix_list mappings = { &mappings, &mappings };
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
	struct lookalike_memory *of = lookalike_memory_of(memory);
	struct mapping *m;

	*ret_fault = NULL;
	if (!of)
		*ret_fault = "a handle that is none, or no more";
	else if (!range_of(addr, len))
		*ret_fault = "addresses that are not reserved";
	else if (anything_mapped(addr, len))
		*ret_fault = "something is mapped there";
	/* Who got a descriptor from somebody has no other way to see how long its memory is. */
	if (*ret_fault || len > of->len)
		return GPU_CU_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return GPU_CU_OUT_OF_MEMORY;
	if (mmap((void *)(uintptr_t)addr, len, PROT_NONE, MAP_SHARED | MAP_FIXED, of->fd, 0) ==
	    MAP_FAILED) {
		free(m);
		return GPU_CU_OUT_OF_MEMORY;
	}
	m->addr = addr;
	m->len = len;
	m->memory = of;
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
	lookalike_memory_put(m->memory);
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
		lookalike_memory_put(span->memory);
	span->memory = NULL;
}
