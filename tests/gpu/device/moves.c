/*
 * moves.c - the part about moving blocks: out of a pool and into it by the product's own back end,
 * beside one plain copy of the same bytes between the device and pinned memory.
 */
#include "gpu/gpu.h"
#include "tests/gpu/device/kit.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define AIM 0.9

static struct gpu *g;
static uint32_t n_done, n_bad;

static void done(struct gpu_job *job, int status)
{
	n_done++;
	n_bad += status != 0;
}

static void reap(void)
{
	struct pollfd p = { .fd = g->ops->event_fd(g), .events = POLLIN };

	if (poll(&p, 1, 20000) != 1)
		give_up("moves", "nothing came to an end in 20 s: %s", gpu_trouble(g));
	(void)g->ops->reap(g, 256);
}

/* All slots, out or in.  Seconds. */
static double move(struct gpu_pool *pool, const struct gpu_pool_info *info, uint8_t *host,
		   struct gpu_job *jobs, bool in)
{
	double begun = seconds();

	n_done = n_bad = 0;
	for (uint32_t i = 0; i < info->n_slots; i++) {
		uint64_t slot = g->ops->slot_addr(pool, i);
		uint64_t mine = (uintptr_t)(host + i * info->slot_stride);
		int r;

		jobs[i] = (struct gpu_job){ .dst = in ? slot : mine,
					    .src = in ? mine : slot,
					    .len = info->slot_bytes,
					    .done = done };
		while ((r = g->ops->submit(g, &jobs[i])) == -EAGAIN)
			reap();
		if (r < 0)
			give_up("moves", "submit: %s; %s", strerror(-r), gpu_trouble(g));
	}
	while (n_done < info->n_slots)
		reap();
	if (n_bad)
		give_up("moves", "%u copies failed: %s", n_bad, gpu_trouble(g));
	return seconds() - begun;
}

static double plain(struct device *dev, gpu_cu_ptr to, gpu_cu_ptr from, uint64_t len)
{
	double begun = seconds();

	must(dev, copy, to, from, len, dev->stream);
	must(dev, stream_sync, dev->stream);
	return seconds() - begun;
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

static void one_size(struct device *dev, uint64_t block, uint64_t total)
{
	uint32_t n = (uint32_t)(total / block);
	struct gpu_job *jobs = calloc(n, sizeof(*jobs));
	double out_s = 1e9, in_s = 1e9, plain_out = 1e9, plain_in = 1e9;
	struct gpu_pool_info info;
	struct gpu_pool *pool;
	uint64_t wrong = 0;
	uint8_t *host;
	gpu_cu_ptr at;

	if (!jobs || g->ops->pool_new(g, n, block, &pool) < 0)
		give_up("moves", "a pool of %llu MiB: %s", (unsigned long long)total >> 20,
			gpu_trouble(g));
	g->ops->pool_info(pool, &info);
	host = mmap(NULL, info.len, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (host == MAP_FAILED || g->ops->host_pin(g, host, info.len) < 0)
		give_up("moves", "host_pin: %s", gpu_trouble(g));
	at = (uintptr_t)host; /* devices of one address space with the host take it as it is */
	for (int round = 0; round < (quick ? 1 : 5); round++) {
		for (uint64_t i = 0; i < info.len / 8; i++)
			((uint64_t *)(void *)host)[i] = pattern(i, 6);
		in_s = least(in_s, move(pool, &info, host, jobs, true));
		memset(host, 0, info.len);
		out_s = least(out_s, move(pool, &info, host, jobs, false));
		for (uint64_t i = 0; i < total / 8; i++)
			wrong += ((uint64_t *)(void *)host)[i] != pattern(i, 6);
		plain_out = least(plain_out, plain(dev, at, g->ops->slot_addr(pool, 0), total));
		plain_in = least(plain_in, plain(dev, g->ops->slot_addr(pool, 0), at, total));
	}
	for (int in = 0; in < 2; in++) {
		double s = in ? in_s : out_s, p = in ? plain_in : plain_out;
		char what[64];

		(void)snprintf(what, sizeof(what), "%s, blocks of %llu KiB",
			       in ? "restore" : "offload", (unsigned long long)block >> 10);
		report(wrong ? FAILED : PASSED, what,
		       "%6.2f GB/s, plain copy %6.2f: %.2f of it (aim: %.2f)%s",
		       (double)total / s / 1e9, (double)total / p / 1e9, p / s, AIM,
		       wrong ? "; WRONG BYTES" : "");
	}
	g->ops->host_unpin(g, host);
	g->ops->pool_free(g, pool);
	(void)munmap(host, info.len);
	free(jobs);
}

void part_moves(void)
{
	static struct device dev;
	uint64_t total = quick ? UINT64_C(8) << 20 : UINT64_C(512) << 20;
	char why[640] = "";

	if (gpu_open("cuda", NULL, &g, why, sizeof(why)) < 0)
		give_up("moves", "%s", why);
	device_open(&dev);
	one_size(&dev, 256 << 10, total);
	one_size(&dev, 2 << 20, total);
	gpu_close(g);
}
