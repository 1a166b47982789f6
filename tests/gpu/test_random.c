/*
 * test_random.c - random copies on a device that is slow and scribbles, against a model in plain
 * memory.
 *
 * Blocks of the device and of the host are copied about, each way at its own pace, up to hundreds
 * at a time.  What the caller has to wait for, it waits for: a job whose blocks are in use by one
 * of another lane.  Jobs of the same lane are not waited for; their order is the device's business.
 * The look-alike driver scribbles over a destination from submission until the copy lands, and
 * copies each batch in another order.
 *
 * Every block that comes out is compared when its job completes, and all of them in the end.
 */
#include "tests/gpu/cuda_util.h"

#define N_DEVICE  96u
#define N_HOST    96u
#define N_BLOCKS  (N_DEVICE + N_HOST)
#define BYTES     192u
#define N_FLIGHTS 400u

struct flight {
	struct gpu_job job;
	uint32_t dst, src; /* blocks */
	uint32_t lane;
	uint32_t serial;
	bool busy;
	uint8_t expected[BYTES]; /* of the destination */
};

static struct world {
	struct gpu *g;
	uint64_t addr[N_BLOCKS];     /* where blocks are: the device's first */
	const uint8_t *at[N_BLOCKS]; /* as the CPU sees them */
	uint8_t model[N_BLOCKS][BYTES];
	uint32_t writer[N_BLOCKS];     /* serial of the last job to write it */
	uint32_t n_users[N_BLOCKS][4]; /* jobs in flight, by lane */
	struct flight flights[N_FLIGHTS];
	uint32_t n_busy;
	uint32_t n_done;
	uint64_t n_wrong; /* bytes */
	uint64_t rng;
} w;

static uint32_t any(uint32_t n)
{
	w.rng = w.rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((w.rng >> 33) % n);
}

static uint64_t differing(const uint8_t *a, const uint8_t *b)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < BYTES; i++)
		n += a[i] != b[i];
	return n;
}

static void landed(struct gpu_job *job, int status)
{
	struct flight *f = job->ctx;

	ck_assert_int_eq(status, 0);
	/* Unless another one writes to it already. */
	if (w.writer[f->dst] == f->serial)
		w.n_wrong += differing(w.at[f->dst], f->expected);
	w.n_users[f->dst][f->lane]--;
	w.n_users[f->src][f->lane]--;
	f->busy = false;
	w.n_busy--;
	w.n_done++;
}

static void reap_once(void)
{
	ck_assert(readable_within(w.g, 20000));
	(void)w.g->ops->reap(w.g, 64);
}

/* Whether a job of another lane has to do with the block. */
static bool used_elsewhere(uint32_t block, uint32_t lane)
{
	for (uint32_t i = 0; i < 4; i++)
		if (i != lane && w.n_users[block][i] > 0)
			return true;
	return false;
}

static struct flight *idle_flight(void)
{
	while (w.n_busy == N_FLIGHTS)
		reap_once();
	for (uint32_t i = 0;; i++)
		if (!w.flights[i].busy)
			return &w.flights[i];
}

static void copy_any(uint32_t serial)
{
	struct flight *f = idle_flight();
	uint32_t way = any(4), dst, src, from, len;
	bool urgent = any(4) == 0;

	/* In, out, and seldom across. */
	dst = way == 1 || way == 2 ? N_DEVICE + any(N_HOST) : any(N_DEVICE);
	src = way == 0 ? N_DEVICE + any(N_HOST) : any(N_DEVICE);
	if (src == dst)
		return copy_any(serial);
	f->lane = (urgent ? 2u : 0u) + (dst < N_DEVICE);
	while (used_elsewhere(dst, f->lane) || used_elsewhere(src, f->lane))
		reap_once();
	from = any(4) ? 0 : any(BYTES);
	len = from ? 1 + any(BYTES - from) : BYTES;
	memcpy(w.model[dst] + from, w.model[src] + from, len);
	memcpy(f->expected, w.model[dst], BYTES);
	f->dst = dst;
	f->src = src;
	f->serial = w.writer[dst] = serial;
	f->busy = true;
	f->job = (struct gpu_job){ .dst = w.addr[dst] + from,
				   .src = w.addr[src] + from,
				   .len = len,
				   .done = landed,
				   .ctx = f,
				   .urgent = urgent };
	ck_assert_int_eq(w.g->ops->submit(w.g, &f->job), 0);
	w.n_users[dst][f->lane]++;
	w.n_users[src][f->lane]++;
	w.n_busy++;
	if (any(50) == 0)
		(void)w.g->ops->reap(w.g, any(64));
}

static void begin(const char *settings, uint64_t seed, uint8_t **ret_device)
{
	struct gpu_pool *pool;
	struct gpu_pool_info info;
	uint8_t *host, *device;
	uint64_t len;

	w.g = open_cuda(settings);
	w.rng = seed;
	pool = new_pool(w.g, N_DEVICE, BYTES);
	w.g->ops->pool_info(pool, &info);
	device = map_pool(w.g, pool, &len);
	host = pages(w.g, N_HOST * BYTES);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		bool on = i < N_DEVICE;
		uint8_t *p = on ? device + i * info.slot_stride : host + (i - N_DEVICE) * BYTES;

		w.addr[i] = on ? w.g->ops->slot_addr(pool, i) : addr_of(p);
		w.at[i] = p;
		for (uint32_t k = 0; k < BYTES; k++)
			p[k] = w.model[i][k] = (uint8_t)any(256);
	}
	*ret_device = device;
}

static const struct {
	const char *settings;
	uint32_t n;
} runs[] = {
	{ "latency_us=100,reorder=1", 40000 },
	{ "latency_us=30,gbps=8,reorder=2", 40000 },
	{ "latency_us=20,version=12040", 10000 },
	{ "reorder=4", 10000 },
};

START_TEST(copies)
{
	uint8_t *device;

	begin(runs[_i].settings, (uint64_t)_i + 1, &device);
	for (uint32_t i = 1; i <= runs[_i].n; i++)
		copy_any(i);
	while (w.n_busy)
		reap_once();
	ck_assert_uint_eq(w.n_done, runs[_i].n);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		w.n_wrong += differing(w.at[i], w.model[i]);
	(void)printf("# %u copies, %lu wrong bytes\n", w.n_done, (unsigned long)w.n_wrong);
	(void)fflush(stdout);
	ck_assert_uint_eq(w.n_wrong, 0);
	gpu_close(w.g);
	assert_nothing_held();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("random");
	TCase *t = new_case();

	tcase_set_timeout(t, 200);
	tcase_add_loop_test(t, copies, 0, radix_array_size(runs));
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (!may_die()) {
		(void)printf("1..0 # SKIP each test needs a process of its own\n");
		return 0;
	}
	return run_suite(suite());
}
