/*
 * util.h - what the tests of the look-alike driver share: a process' first steps with a driver, and
 * asking whether a rule was broken.
 *
 * LOOKALIKE is read once per process, so each test is a process (Check forks) and begins with
 * start().
 */
#pragma once

#include "gpu/driver.h"
#include "tests/driver/census.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNIT 65536u /* granularity, and length of the process' memory */
#define LEN  (2 * UNIT)

static struct gpu_driver d;
static gpu_cu_context ctx;
static gpu_cu_stream stream;
static gpu_cu_memory memory;
static gpu_cu_ptr device; /* LEN bytes, all of `memory` */
static uint8_t *host;     /* UNIT bytes, registered */

static const struct gpu_cu_alloc_prop prop = {
	.type = GPU_CU_MEM_ALLOCATION_PINNED,
	.handle_types = GPU_CU_MEM_HANDLE_POSIX_FD,
	.location = { GPU_CU_MEM_LOCATION_DEVICE, 0 },
};
static const struct gpu_cu_access_desc access_all = {
	{ GPU_CU_MEM_LOCATION_DEVICE, 0 },
	GPU_CU_MEM_ACCESS_READWRITE,
};
static const unsigned both = GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP;

#define ok(call) ck_assert_int_eq((call), GPU_CU_SUCCESS)

static inline struct lookalike_census census(void)
{
	struct lookalike_census c;

	ck_assert(lookalike_census(&c));
	return c;
}

/* The call breaks one rule, and has that result. */
#define breaks(call, result)                                       \
	do {                                                       \
		const uint32_t before_ = census().n_broken;        \
		ck_assert_int_eq((call), (result));                \
		ck_assert_uint_eq(census().n_broken, before_ + 1); \
	} while (0)

static inline enum gpu_driver_state load(const char *variable, const char *fixed)
{
	char all[512], why[256] = "";
	enum gpu_driver_state state;

	(void)snprintf(all, sizeof(all), "%s,%s", fixed, variable);
	ck_assert_int_eq(setenv("LOOKALIKE", all, 1), 0);
	state = gpu_driver_load(&d, why, sizeof(why));
	ck_assert_str_ne(why, "");
	return state;
}

/* A driver, device 0, and a context. */
static inline void start_bare(const char *variable)
{
	ck_assert_int_eq((int)load(variable, "granularity=65536"), GPU_DRIVER_OK);
	ok(d.context_retain(&ctx, 0));
	ok(d.context_set(ctx));
}

static inline void *pages(void)
{
	void *p = mmap(NULL, UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert(p != MAP_FAILED);
	return p;
}

static inline void start(const char *variable)
{
	start_bare(variable);
	ok(d.stream_new(&stream, GPU_CU_STREAM_NON_BLOCKING, 0));
	ok(d.mem_create(&memory, LEN, &prop, 0));
	ok(d.address_reserve(&device, LEN, 0, 0, 0));
	ok(d.mem_map(device, LEN, 0, memory, 0));
	ok(d.mem_access(device, LEN, &access_all, 1));
	host = pages();
	ok(d.host_register(host, UNIT, both));
}

static inline void holds_nothing(void)
{
	const struct lookalike_census c = census();

	ck_assert_ptr_null(lookalike_held(&c));
}

/* Gives all back, and sees that nothing is left. */
static inline void stop(void)
{
	ok(d.stream_free(stream));
	ok(d.mem_unmap(device, LEN));
	ok(d.address_free(device, LEN));
	ok(d.mem_release(memory));
	ok(d.host_unregister(host));
	ok(d.context_release(0));
	ck_assert_int_eq(munmap(host, UNIT), 0);
	holds_nothing();
}

static inline bool all_are(const uint8_t *p, size_t len, uint8_t byte)
{
	for (size_t i = 0; i < len; i++)
		if (p[i] != byte)
			return false;
	return true;
}

static inline uint64_t addr_of(const void *p)
{
	return (uintptr_t)p;
}

static inline void nap(int ms)
{
	(void)poll(NULL, 0, ms);
}
