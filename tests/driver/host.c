/*
 * host.c - registered memory of the process, and what an operation may reach.
 *
 * A device sees registered memory under the address that the process has for it.
 */
#include "tests/driver/lookalike.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FLAGS 0xfu /* that cuMemHostRegister knows */

struct registration {
	struct radix_list link;
	uint64_t addr, len;
	gpu_cu_context ctx;
	unsigned flags;
};

static struct radix_list registrations = { &registrations, &registrations };

static struct registration *registration_at(uint64_t addr)
{
	struct radix_list *it;

	radix_list_foreach(it, &registrations) {
		struct registration *r = radix_list_entry(it, struct registration, link);

		if (lookalike_inside(addr, 1, r->addr, r->len))
			return r;
	}
	return NULL;
}

static bool overlaps_registered(uint64_t addr, uint64_t len)
{
	struct radix_list *it;

	radix_list_foreach(it, &registrations) {
		const struct registration *r = radix_list_entry(it, struct registration, link);

		if (lookalike_overlap(addr, len, r->addr, r->len))
			return true;
	}
	return false;
}

/* Whether the process has memory at all of these addresses. */
static bool is_mapped(uint64_t addr, uint64_t len)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = addr & ~(page - 1);

	return msync((void *)(uintptr_t)start, addr + len - start, MS_ASYNC) == 0;
}

static void registration_free(struct registration *r)
{
	radix_list_remove(&r->link);
	free(r);
	lookalike_counts.n_registrations--;
}

gpu_cu_result lookalike_host_register(void *p, size_t len, unsigned flags)
{
	const uint64_t addr = (uintptr_t)p;
	gpu_cu_result result;
	struct registration *r;
	gpu_cu_context ctx;
	bool twice;

	ENTER(host_register);
	result = lookalike_current("cuMemHostRegister", &ctx);
	if (result != GPU_CU_SUCCESS)
		return result;
	if (!p || len == 0 || (flags & ~FLAGS) || len > UINT64_MAX - addr || !is_mapped(addr, len))
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemHostRegister: flags, or no memory is there");
	r = calloc(1, sizeof(*r));
	if (!r)
		return GPU_CU_OUT_OF_MEMORY;
	*r = (struct registration){ .addr = addr, .len = len, .ctx = ctx, .flags = flags };
	(void)pthread_mutex_lock(&lookalike_lock);
	twice = overlaps_registered(addr, len);
	if (!twice) {
		radix_list_add_tail(&registrations, &r->link);
		lookalike_counts.n_registrations++;
	}
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (!twice)
		return GPU_CU_SUCCESS;
	free(r);
	BROKEN(GPU_CU_HOST_MEMORY_ALREADY_REGISTERED, "cuMemHostRegister: some of it is already");
}

/* Done also in a context with a sticky error, whose result it gives then. */
gpu_cu_result lookalike_host_unregister(void *p)
{
	const uint64_t addr = (uintptr_t)p;
	struct registration *r;
	gpu_cu_result sticky;
	bool found, busy;

	ENTER(host_unregister);
	if (!lookalike_ctx)
		BROKEN(GPU_CU_INVALID_CONTEXT, "cuMemHostUnregister: without a context");
	(void)pthread_mutex_lock(&lookalike_lock);
	sticky = lookalike_ctx->sticky;
	r = registration_at(addr);
	found = r && r->addr == addr;
	busy = found && sticky == GPU_CU_SUCCESS && lookalike_in_use(addr, r->len);
	if (found)
		registration_free(r);
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (sticky != GPU_CU_SUCCESS)
		return sticky;
	if (busy)
		lookalike_broken("cuMemHostUnregister: an operation in a queue reaches there");
	if (!found)
		BROKEN(GPU_CU_HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister: it is not");
	return GPU_CU_SUCCESS;
}

gpu_cu_result lookalike_host_pointer(gpu_cu_ptr *ret_addr, void *p, unsigned flags)
{
	gpu_cu_result result;
	gpu_cu_context ctx;
	bool right;

	ENTER(host_pointer);
	result = lookalike_current("cuMemHostGetDevicePointer", &ctx);
	if (result != GPU_CU_SUCCESS)
		return result;
	if (!ret_addr || !p || flags != 0)
		BROKEN(GPU_CU_INVALID_VALUE, "cuMemHostGetDevicePointer: arguments");
	(void)pthread_mutex_lock(&lookalike_lock);
	right = lookalike_is_device_mapped((uintptr_t)p);
	(void)pthread_mutex_unlock(&lookalike_lock);
	if (!right)
		BROKEN(GPU_CU_INVALID_VALUE,
		       "cuMemHostGetDevicePointer: not registered, or not for a device");
	*ret_addr = (uintptr_t)p;
	return GPU_CU_SUCCESS;
}

bool lookalike_is_device_mapped(uint64_t addr)
{
	const struct registration *r = registration_at(addr);

	return r && (r->flags & GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
}

void lookalike_forget_host(gpu_cu_context ctx)
{
	struct radix_list *it, *next;

	radix_list_foreach_safe(it, next, &registrations) {
		struct registration *r = radix_list_entry(it, struct registration, link);

		if (r->ctx == ctx)
			registration_free(r);
	}
}

/* ---- for operations -------------------------------------------------------------------------- */

/* A copy does not cross from one registration to the next one, and so a span must hold all. */
static bool host_begin(gpu_cu_context ctx, uint64_t addr, uint64_t len,
		       struct lookalike_span *ret_span, const char **ret_reason)
{
	const struct registration *r = registration_at(addr);

	if (!r)
		*ret_reason = "neither device memory nor registered";
	else if (!lookalike_inside(addr, len, r->addr, r->len))
		*ret_reason = "it goes beyond what was registered in one call";
	else if (!is_mapped(addr, len))
		*ret_reason = "it is registered, but the process has unmapped it";
	else if (r->ctx != ctx && !(r->flags & GPU_CU_MEMHOSTREGISTER_PORTABLE))
		*ret_reason = "it was registered for another context";
	else {
		*ret_span = (struct lookalike_span){ (uint8_t *)(uintptr_t)addr, len, NULL };
		return true;
	}
	return false;
}

bool lookalike_span_begin(gpu_cu_context ctx, uint64_t addr, uint64_t len, bool write,
			  struct lookalike_span *ret_span, const char **ret_reason)
{
	if (lookalike_is_device(addr, 1))
		return lookalike_memory_begin(ctx->device, addr, len, write, ret_span, ret_reason);
	return host_begin(ctx, addr, len, ret_span, ret_reason);
}

bool lookalike_reachable(gpu_cu_context ctx, uint64_t addr, uint64_t len, bool write,
			 const char **ret_reason)
{
	struct lookalike_span span;

	if (len > UINT64_MAX - addr) {
		*ret_reason = "it goes beyond the last address";
		return false;
	}
	/* What lies behind a range of device addresses is another thing, whatever it is. */
	if (len > 0 && lookalike_is_device(addr, 1) && !lookalike_is_device(addr, len)) {
		*ret_reason = "it goes beyond the addresses that were reserved in one call";
		return false;
	}
	while (len > 0) {
		if (!lookalike_span_begin(ctx, addr, len, write, &span, ret_reason))
			return false;
		addr += span.len;
		len -= span.len;
		lookalike_span_end(&span);
	}
	return true;
}
