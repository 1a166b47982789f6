/*
 * coding.c - the part about coded blocks: encoded out of a pool and decoded into it by the back
 * end, and short blocks that it gathers, beside one plain copy of pinned memory.
 */
#include "gpu/codec.h"
#include "gpu/gpu.h"
#include "tests/gpu/device/kit.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SMALL (UINT64_C(32) << 10)

/* 16 tokens of 32 layers of a model with 8 heads of 128: 2 MiB. */
static const struct gpu_coded codings[] = {
	{ { 16, 8, 128, GPU_ORDER_NHD, GPU_ELEMENT_BF16 }, GPU_CODEC_E4M3, 64, { 0 } },
	{ { 16, 8, 128, GPU_ORDER_NHD, GPU_ELEMENT_F16 }, GPU_CODEC_INT8, 64, { 0x0f } },
};

#define BLOCK (UINT64_C(2) << 20)

static struct gpu *g;
static uint32_t n_done, n_bad;

static void done(struct gpu_job *job, int status)
{
	n_done++;
	n_bad += status != 0 || job->uncodable;
}

static void reap(void)
{
	struct pollfd p = { .fd = g->ops->event_fd(g), .events = POLLIN };

	if (poll(&p, 1, 20000) != 1)
		give_up("coding", "nothing came to an end in 20 s: %s", gpu_trouble(g));
	(void)g->ops->reap(g, 256);
}

/* What moves: slots first, first + step, ... of a pool, and `far_len` bytes for each in memory. */
struct moved {
	struct gpu_pool *pool;
	const struct gpu_coded *coded;
	uint32_t n, step;
	uint64_t len, far_len;
	uint8_t *host;
	struct gpu_job *jobs;
};

static double move(const struct moved *m, bool in)
{
	double begun = seconds();

	n_done = n_bad = 0;
	for (uint32_t i = 0; i < m->n; i++) {
		uint64_t slot = g->ops->slot_addr(m->pool, i * m->step);
		uint64_t mine = (uintptr_t)(m->host + i * m->far_len);
		int r;

		m->jobs[i] = (struct gpu_job){ .dst = in ? slot : mine,
					       .src = in ? mine : slot,
					       .len = m->len,
					       .coded = m->coded,
					       .done = done };
		while ((r = g->ops->submit(g, &m->jobs[i])) == -EAGAIN)
			reap();
		if (r < 0)
			give_up("coding", "submit: %s; %s", strerror(-r), gpu_trouble(g));
	}
	while (n_done < m->n)
		reap();
	if (n_bad)
		give_up("coding", "%u blocks failed: %s", n_bad, gpu_trouble(g));
	return seconds() - begun;
}

static double plain(struct device *dev, uint64_t to, uint64_t from, uint64_t len)
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

static uint8_t *memory(uint64_t len)
{
	uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED || g->ops->host_pin(g, p, len) < 0)
		give_up("coding", "host_pin: %s", gpu_trouble(g));
	return p;
}

static void give_back(uint8_t *p, uint64_t len)
{
	g->ops->host_unpin(g, p);
	(void)munmap(p, len);
}

/* Numbers that can be coded, whichever type they are of. */
static void fill(uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len / 8; i++)
		((uint64_t *)(void *)p)[i] = pattern(i, 9) & UINT64_C(0xbfffbfffbfffbfff);
}

/* `bytes`: as they are on the device. */
static void line(const char *what, bool right, double bytes, double far_bytes, double s, double p)
{
	report(right ? PASSED : FAILED, what,
	       "%6.2f GB/s of blocks, %6.2f over the bus, plain copy %6.2f%s", bytes / s / 1e9,
	       far_bytes / s / 1e9, far_bytes / p / 1e9, right ? "" : "; WRONG BYTES");
}

static void measure(struct device *dev, struct moved *m, const char *what, uint8_t *blocks,
		    bool (*right)(const struct moved *m, const uint8_t *blocks, bool in))
{
	const double bytes = (double)m->n * (double)m->len;
	const double far_bytes = (double)m->n * (double)m->far_len;
	double s[2] = { 1e9, 1e9 }, p[2] = { 1e9, 1e9 };
	bool good[2] = { true, true };
	const uint64_t whole = radix_min_u64((uint64_t)far_bytes, m->n * m->len);

	for (int round = 0; round < (quick ? 1 : 5); round++)
		for (int in = 0; in < 2; in++) {
			s[in] = least(s[in], move(m, in));
			good[in] &= right(m, blocks, in);
		}
	for (int round = 0; round < (quick ? 1 : 5); round++)
		for (int in = 0; in < 2; in++) {
			uint64_t slot = g->ops->slot_addr(m->pool, 0), mine = (uintptr_t)m->host;

			p[in] = least(p[in], plain(dev, in ? slot : mine, in ? mine : slot, whole));
		}
	for (int in = 0; in < 2; in++) {
		char text[64];

		(void)snprintf(text, sizeof(text), "%s, %s", in ? "restore" : "offload", what);
		line(text, good[in], bytes, far_bytes, s[in], p[in]);
	}
}

/* As the processor codes it; and back, as that decodes it: the last block of all. */
static bool coded_right(const struct moved *m, const uint8_t *blocks, bool in)
{
	const uint32_t last = m->n - 1;
	uint8_t *packed = aligned_alloc(64, m->far_len), *block = aligned_alloc(64, m->len);
	uint8_t *got = memory(m->len);
	struct gpu_job job = { .dst = (uintptr_t)got,
			       .src = g->ops->slot_addr(m->pool, last),
			       .len = m->len,
			       .done = done };
	bool right = packed && block && gpu_coded_encode(m->coded, blocks + last * m->len, packed);

	right = right && memcmp(packed, m->host + last * m->far_len, m->far_len) == 0;
	if (in && right) {
		gpu_coded_decode(m->coded, packed, block);
		n_done = 0;
		if (g->ops->submit(g, &job) < 0)
			give_up("coding", "submit: %s", gpu_trouble(g));
		while (n_done == 0)
			reap();
		right = memcmp(block, got, m->len) == 0;
		/* As it was, for the next round. */
		memcpy(got, blocks + last * m->len, m->len);
		job = (struct gpu_job){ .dst = g->ops->slot_addr(m->pool, last),
					.src = (uintptr_t)got,
					.len = m->len,
					.done = done };
		n_done = 0;
		if (g->ops->submit(g, &job) < 0)
			give_up("coding", "submit: %s", gpu_trouble(g));
		while (n_done == 0)
			reap();
	}
	give_back(got, m->len);
	free(packed);
	free(block);
	return right;
}

static bool same_bytes(const struct moved *m, const uint8_t *blocks, bool in)
{
	bool right = memcmp(m->host, blocks, m->n * m->len) == 0;

	if (!in)
		return right;
	memset(m->host, 0, m->n * m->len);
	(void)move(m, false);
	return right && memcmp(m->host, blocks, m->n * m->len) == 0;
}

/* A pool with blocks in each `step`th slot, which are in the memory that is returned as well. */
static uint8_t *set_up(struct moved *m)
{
	struct moved as_they_are = *m;
	uint8_t *blocks = memory(m->n * m->len);

	if (g->ops->pool_new(g, m->n * m->step, m->len, &m->pool) < 0)
		give_up("coding", "a pool: %s", gpu_trouble(g));
	m->jobs = calloc(m->n, sizeof(*m->jobs));
	if (!m->jobs)
		give_up("coding", "no memory");
	fill(blocks, m->n * m->len);
	as_they_are.pool = m->pool;
	as_they_are.jobs = m->jobs;
	as_they_are.coded = NULL;
	as_they_are.far_len = m->len;
	as_they_are.host = blocks;
	(void)move(&as_they_are, true);
	m->host = memory((m->n * m->far_len + 4095) & ~UINT64_C(4095));
	return blocks;
}

static void one(struct device *dev, struct moved m, const char *what,
		bool (*right)(const struct moved *m, const uint8_t *blocks, bool in))
{
	uint8_t *blocks = set_up(&m);

	measure(dev, &m, what, blocks, right);
	give_back(m.host, (m.n * m.far_len + 4095) & ~UINT64_C(4095));
	give_back(blocks, m.n * m.len);
	g->ops->pool_free(g, m.pool);
	free(m.jobs);
}

void part_coding(void)
{
	static const char *const names[] = { "bf16 e4m3", "f16 int8, 2 layers exact" };
	const uint32_t n = quick ? 4 : 128;
	static struct device dev;
	char why[640] = "";

	if (gpu_open("cuda", NULL, &g, why, sizeof(why)) < 0)
		give_up("coding", "%s", why);
	device_open(&dev);
	for (size_t i = 0; i < radix_array_size(codings) && g->ops->codes(g); i++)
		one(&dev,
		    (struct moved){ .coded = &codings[i],
				    .n = n,
				    .step = 1,
				    .len = BLOCK,
				    .far_len = gpu_coded_bytes(&codings[i]) },
		    names[i], coded_right);
	if (!g->ops->codes(g))
		report(SKIPPED, "coded blocks", "%s", why);
	one(&dev, (struct moved){ .n = n * 16, .step = 2, .len = SMALL, .far_len = SMALL },
	    "32 KiB apart", same_bytes);
	gpu_close(g);
}
