/*
 * launch.c - see launch.h.
 *
 * Tables.  A launch takes two lists of addresses and two of block numbers, some KiB.  A kernel that
 * read them from this machine's memory would spend its time on the bus, so they are copied to the
 * device, by the same stream, in front of the launch.  There are N_TABLES places for them, each of
 * one part in pinned memory and one on the device, and a word in pinned memory:
 *
 *     stream:   ... copy of table k | kernel | word k = used[k] ...
 *
 * Both parts are free when the word says so, whatever streams were used: the order within one
 * stream is all that is needed.  A launch whose word the driver would not take is waited for; where
 * even that fails its table is never used again.
 */
#include "clients/c/device_internal.h"

#include "clients/c/launch.h"
#include "clients/c/prefixd.h"
#include "clients/c/prefixd_kernels.h"
#include "gpu/fatbin.h"
#include "gpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define N_TABLES  64u
#define TILES_MAX 0x7fffffffu
#define PER_SM    4u    /* blocks of threads */
#define WORDS_LEN 4096u /* in front of the tables */
#define LOOK_NS   20000 /* how often a word is looked at that is waited for */

struct pfx_mover {
	struct pfx_device *device;
	uint32_t n_pieces, piece_bytes;
	uint32_t per_launch; /* 0: there is no kernel */
	unsigned grid_max;
	uint64_t table_len;
	uint8_t *pinned; /* words, then tables */
	uint64_t pinned_len;
	gpu_cu_ptr pinned_address;
	gpu_cu_ptr tables; /* on the device */
	uint64_t tables_len;
	uint64_t used[N_TABLES]; /* value of the table's word when its last launch is through */
	char why[256];           /* there is no kernel */
};

/* ---- the kernel ------------------------------------------------------------------------------ */

/* A driver without a binary for its device is no failure, but one without a context or memory is.
 * Return: 0 with the kernel or with m->why; -EIO, -ENOMEM. */
static int kernel_load(struct pfx_mover *m, char *why, size_t why_len)
{
	struct pfx_device *d = m->device;
	const char *call = "cuModuleLoadData";
	gpu_cu_result r;

	if (!gpu_fatbin) {
		(void)snprintf(m->why, sizeof(m->why), "the library was built without kernels");
		return 0;
	}
	if (d->n_movers == 0) {
		r = d->driver.module_load(&d->module, gpu_fatbin);
		if (r == GPU_CU_SUCCESS) {
			call = "cuModuleGetFunction";
			r = d->driver.module_function(&d->move, d->module, "gpu_kernel_move");
			if (r != GPU_CU_SUCCESS)
				(void)GIVE_BACK(d->driver.module_unload(d->module));
		}
		if (r == GPU_CU_INVALID_CONTEXT || r == GPU_CU_OUT_OF_MEMORY)
			return pfx_device_failed(d, call, r, why, why_len);
		if (r != GPU_CU_SUCCESS) {
			(void)pfx_device_failed(d, call, r, m->why, sizeof(m->why));
			return 0;
		}
	}
	d->n_movers++;
	m->per_launch = PFX_CACHE_LAUNCH;
	return 0;
}

static void kernel_unload(struct pfx_mover *m)
{
	struct pfx_device *d = m->device;

	/* Without a current context it fails, and the module stays until the process ends. */
	if (m->per_launch && --d->n_movers == 0)
		(void)GIVE_BACK(d->driver.module_unload(d->module));
	m->per_launch = 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* What is still mapped keeps its addresses. */
static void unmap(const struct gpu_driver *driver, gpu_cu_ptr at, uint64_t len, bool mapped)
{
	if (!mapped || GIVE_BACK(driver->mem_unmap(at, len)))
		(void)GIVE_BACK(driver->address_free(at, len));
}

static int tables_map(struct pfx_mover *m, char *why, size_t why_len)
{
	const struct gpu_driver *driver = &m->device->driver;
	const struct gpu_cu_alloc_prop prop = {
		.type = GPU_CU_MEM_ALLOCATION_PINNED,
		.location = { .type = GPU_CU_MEM_LOCATION_DEVICE, .id = m->device->device },
	};
	const struct gpu_cu_access_desc access = { prop.location, GPU_CU_MEM_ACCESS_READWRITE };
	const char *call = "cuMemGetAllocationGranularity";
	gpu_cu_memory memory;
	gpu_cu_ptr at = 0;
	bool mapped = false;
	gpu_cu_result r;
	size_t unit = 0;

	r = driver->mem_granularity(&unit, &prop, GPU_CU_MEM_GRANULARITY_RECOMMENDED);
	if (r != GPU_CU_SUCCESS || unit == 0)
		return pfx_device_failed(m->device, call, r, why, why_len);
	m->tables_len = round_up(N_TABLES * m->table_len, unit);
	call = "cuMemCreate";
	r = driver->mem_create(&memory, m->tables_len, &prop, 0);
	if (r != GPU_CU_SUCCESS)
		return pfx_device_failed(m->device, call, r, why, why_len);
	call = "cuMemAddressReserve";
	r = driver->address_reserve(&at, m->tables_len, 0, 0, 0);
	if (r == GPU_CU_SUCCESS) {
		call = "cuMemMap";
		r = driver->mem_map(at, m->tables_len, 0, memory, 0);
	}
	mapped = r == GPU_CU_SUCCESS;
	(void)GIVE_BACK(driver->mem_release(memory)); /* the mapping keeps it */
	if (mapped) {
		call = "cuMemSetAccess";
		r = driver->mem_access(at, m->tables_len, &access, 1);
	}
	if (r == GPU_CU_SUCCESS) {
		m->tables = at;
		return 0;
	}
	if (at)
		unmap(driver, at, m->tables_len, mapped);
	return pfx_device_failed(m->device, call, r, why, why_len);
}

static int tables_pin(struct pfx_mover *m, char *why, size_t why_len)
{
	void *v;
	int r;

	m->pinned_len = WORDS_LEN + N_TABLES * m->table_len;
	v = mmap(NULL, m->pinned_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (v == MAP_FAILED) {
		(void)snprintf(why, why_len, "no memory for the arguments of launches");
		return -ENOMEM;
	}
	r = pfx_device_register(m->device, v, m->pinned_len, &m->pinned_address, why, why_len);
	if (r < 0)
		(void)munmap(v, m->pinned_len); /* a whole mapping of ours */
	else
		m->pinned = v;
	return r;
}

static void tables_free(struct pfx_mover *m)
{
	const struct gpu_driver *driver = &m->device->driver;

	if (m->tables)
		unmap(driver, m->tables, m->tables_len, true);
	/* Without a current context it stays pinned, and so mapped, until the process ends. */
	if (m->pinned && GIVE_BACK(driver->host_unregister(m->pinned)))
		(void)munmap(m->pinned, m->pinned_len); /* a whole mapping of ours */
	m->tables = 0;
	m->pinned = NULL;
}

static bool is_through(const struct pfx_mover *m, uint32_t k)
{
	const uint64_t *words = (const uint64_t *)(const void *)m->pinned;

	return __atomic_load_n(&words[k], __ATOMIC_ACQUIRE) == m->used[k];
}

/* Sleeps for a moment.  Return: false: the deadline has passed. */
static bool may_wait(uint64_t deadline_ns)
{
	const struct timespec moment = { 0, LOOK_NS };
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	if ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec >= deadline_ns)
		return false;
	(void)nanosleep(&moment, NULL);
	return true;
}

/* Any table that nothing under way needs.  Return: 0, -ETIMEDOUT. */
static int table_take(const struct pfx_mover *m, uint64_t deadline_ns, uint32_t *ret_k)
{
	do {
		for (uint32_t k = 0; k < N_TABLES; k++) {
			if (!is_through(m, k))
				continue;
			*ret_k = k;
			return 0;
		}
	} while (may_wait(deadline_ns));
	return -ETIMEDOUT;
}

/* ---- lifetime -------------------------------------------------------------------------------- */

int pfx_mover_new(struct pfx_device *d, uint32_t n_pieces, uint32_t piece_bytes,
		  struct pfx_mover **ret_mover, char *why, size_t why_len)
{
	const uint64_t tiles = (uint64_t)n_pieces *
			       ((piece_bytes + GPU_KERNEL_TILE - 1) / GPU_KERNEL_TILE);
	struct pfx_mover *m = calloc(1, sizeof(*m));
	gpu_cu_result cu;
	int n_sm = 0, r;

	(void)snprintf(why, why_len, "no memory");
	if (!m)
		return -ENOMEM;
	m->device = d;
	m->n_pieces = n_pieces;
	m->piece_bytes = piece_bytes;
	r = kernel_load(m, why, why_len);
	if (r == 0 && m->per_launch && tiles > TILES_MAX) {
		kernel_unload(m);
		(void)snprintf(m->why, sizeof(m->why), "a block is too large for one launch");
	}
	if (r == 0 && m->per_launch) {
		if (m->per_launch > TILES_MAX / tiles)
			m->per_launch = (uint32_t)(TILES_MAX / tiles);
		m->table_len = round_up(16 * (uint64_t)n_pieces + 8 * (uint64_t)m->per_launch, 64);
		cu = d->driver.device_attribute(&n_sm, GPU_CU_MULTIPROCESSOR_COUNT, d->device);
		m->grid_max = cu == GPU_CU_SUCCESS && n_sm > 0 ? PER_SM * (unsigned)n_sm : PER_SM;
		r = tables_pin(m, why, why_len);
		if (r == 0)
			r = tables_map(m, why, why_len);
	}
	if (r < 0) {
		tables_free(m);
		kernel_unload(m);
		free(m);
		return r;
	}
	*ret_mover = m;
	return 0;
}

void pfx_mover_free(struct pfx_mover *m, uint64_t deadline_ns)
{
	bool through = true;

	if (!m)
		return;
	for (uint32_t k = 0; m->pinned && k < N_TABLES; k++)
		while (through && !is_through(m, k))
			through = may_wait(deadline_ns);
	if (through) {
		tables_free(m);
		kernel_unload(m);
	}
	free(m);
}

void pfx_mover_forget(struct pfx_mover *m)
{
	if (m && m->pinned)
		(void)munmap(m->pinned, m->pinned_len);
	free(m);
}

const char *pfx_mover_why(const struct pfx_mover *m)
{
	return m->per_launch ? NULL : m->why;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static int copy_pieces(struct pfx_mover *m, gpu_cu_stream stream, const struct pfx_side *from,
		       const struct pfx_side *to, uint32_t n, char *why, size_t why_len)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t s = 0; s < m->n_pieces; s++) {
			gpu_cu_result r = m->device->driver.copy(
				to->pieces[s] + to->ids[i] * to->stride,
				from->pieces[s] + from->ids[i] * from->stride, m->piece_bytes,
				stream);

			if (r != GPU_CU_SUCCESS)
				return pfx_device_failed(m->device, "cuMemcpyAsync", r, why,
							 why_len);
		}
	return 0;
}

/* The table's word behind what is in the stream, or nothing is in it any more. */
static int table_mark(struct pfx_mover *m, gpu_cu_stream stream, uint32_t k, char *why,
		      size_t why_len)
{
	gpu_cu_result r;

	m->used[k]++;
	if (pfx_device_write(m->device, stream, m->pinned_address + 8 * (uint64_t)k, m->used[k],
			     why, why_len) == 0)
		return 0;
	r = m->device->driver.stream_sync(stream);
	if (r != GPU_CU_SUCCESS) /* it is not known what runs: the word never comes */
		return pfx_device_failed(m->device, "cuStreamSynchronize", r, why, why_len);
	m->used[k]--;
	return 0;
}

/* What lies one after the other in a table. */
static uint64_t put(uint8_t *table, uint64_t at, const void *p, uint64_t len)
{
	memcpy(table + at, p, len);
	return at + len;
}

static int launch(struct pfx_mover *m, gpu_cu_stream stream, const struct pfx_side *from,
		  const struct pfx_side *to, uint32_t n, uint32_t k, char *why, size_t why_len)
{
	const uint64_t off = WORDS_LEN + k * m->table_len, base = 8 * (uint64_t)m->n_pieces;
	const uint64_t tiles = (uint64_t)n * m->n_pieces *
			       ((m->piece_bytes + GPU_KERNEL_TILE - 1) / GPU_KERNEL_TILE);
	const uint64_t blocks = round_up(tiles, GPU_KERNEL_THREADS / 32) /
				(GPU_KERNEL_THREADS / 32);
	const struct gpu_driver *driver = &m->device->driver;
	uint64_t at = m->tables + k * m->table_len, len = 0;
	struct gpu_layout a = { at, from->stride, m->n_pieces, m->piece_bytes };
	struct gpu_layout b = { at + base, to->stride, m->n_pieces, m->piece_bytes };
	uint64_t a_ids = at + 2 * base, b_ids = a_ids + 4 * (uint64_t)n;
	void *args[] = { &a, &a_ids, &b, &b_ids, &n };
	uint8_t *table = m->pinned + off;
	gpu_cu_result r;
	int marked;

	len = put(table, len, from->pieces, base);
	len = put(table, len, to->pieces, base);
	len = put(table, len, from->ids, 4 * (uint64_t)n);
	len = put(table, len, to->ids, 4 * (uint64_t)n);
	r = driver->copy(at, m->pinned_address + off, len, stream);
	if (r != GPU_CU_SUCCESS) /* nothing was put in */
		return pfx_device_failed(m->device, "cuMemcpyAsync", r, why, why_len);
	r = driver->launch(m->device->move, blocks < m->grid_max ? (unsigned)blocks : m->grid_max,
			   1, 1, GPU_KERNEL_THREADS, 1, 1, 0, stream, args, NULL);
	marked = table_mark(m, stream, k, why, why_len);
	return r == GPU_CU_SUCCESS
		       ? marked
		       : pfx_device_failed(m->device, "cuLaunchKernel", r, why, why_len);
}

int pfx_mover_move(struct pfx_mover *m, void *stream, const struct pfx_side *from,
		   const struct pfx_side *to, uint32_t n, uint64_t deadline_ns, char *why,
		   size_t why_len)
{
	struct pfx_side a = *from, b = *to;
	int r = 0;

	if (!m->per_launch)
		return copy_pieces(m, stream, from, to, n, why, why_len);
	while (r == 0 && n > 0) {
		const uint32_t part = n < m->per_launch ? n : m->per_launch;
		uint32_t k;

		r = table_take(m, deadline_ns, &k);
		if (r == 0)
			r = launch(m, stream, &a, &b, part, k, why, why_len);
		a.ids += part;
		b.ids += part;
		n -= part;
	}
	return r;
}
