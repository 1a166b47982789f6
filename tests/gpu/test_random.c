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
 *
 * With kernels there are blocks that are encoded on their way out and decoded on their way in,
 * sums, and bundles: neighbours in host memory that lie anywhere on the device.  What comes of an
 * encoding that cannot be is not known, and so not read before something is written over it.
 */
#include "gpu/codec.h"
#include "gpu/fatbin.h"
#include "tests/gpu/cuda_util.h"

#define N_DEVICE  96u
#define N_HOST    96u
#define N_BLOCKS  (N_DEVICE + N_HOST)
#define BYTES     192u
#define N_FLIGHTS 400u
#define N_BUNDLE  24u

struct flight {
	struct gpu_job job;
	uint32_t dst, src; /* blocks */
	uint32_t lane;
	uint32_t serial;
	bool busy;
	uint8_t expected[BYTES]; /* of the destination */
	bool unknown;            /* for an element that cannot be coded, now or before */
	bool uncodable;
	uint64_t sum[2];
};

/* Packed blocks are as long as others. */
#define CODING(a_codec, an_element, an_exact)                                                \
	{                                                                                    \
		.geometry = { .tokens = 2, .heads = 1, .dim = 16, .element = (an_element) }, \
		.codec = (a_codec), .n_pieces = 3, .exact = { (an_exact) },                  \
	}

static const struct gpu_coded codings[] = {
	CODING(GPU_CODEC_INT8, GPU_ELEMENT_F16, 0),
	CODING(GPU_CODEC_E4M3, GPU_ELEMENT_BF16, 2),
	CODING(GPU_CODEC_E4M3, GPU_ELEMENT_F16, 5),
};

static struct world {
	struct gpu *g;
	uint64_t addr[N_BLOCKS];     /* where blocks are: the device's first */
	const uint8_t *at[N_BLOCKS]; /* as the CPU sees them */
	uint8_t model[N_BLOCKS][BYTES];
	bool unknown[N_BLOCKS];
	const struct gpu_coded *packed[N_BLOCKS]; /* it is a packed block, by that */
	uint32_t writer[N_BLOCKS];                /* serial of the last job to write it */
	uint32_t n_users[N_BLOCKS][4];            /* jobs in flight, by lane */
	struct flight flights[N_FLIGHTS];
	uint32_t n_busy;
	uint32_t n_done;
	uint32_t n_coded, n_summed, n_bundled, n_uncodable;
	uint64_t n_wrong; /* bytes; of sums, and of what is said of blocks, too */
	bool codes;
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
	w.n_wrong += job->uncodable != f->uncodable;
	if (job->want_sum)
		w.n_wrong += memcmp(job->sum, f->sum, sizeof(f->sum)) != 0;
	/* Unless another one writes to it already. */
	if (w.writer[f->dst] == f->serial && !f->unknown)
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

static bool is_on(uint32_t block)
{
	return block < N_DEVICE;
}

static bool is_out(uint32_t dst)
{
	return !is_on(dst);
}

/* What the copy makes of the model. */
static void foresee(struct flight *f, uint32_t from, uint32_t len)
{
	_Alignas(64) uint8_t block[BYTES], packed[BYTES];
	uint8_t *dst = w.model[f->dst];
	const uint8_t *near = is_out(f->dst) ? w.model[f->src] : dst;
	const struct gpu_coded *becomes = len == BYTES ? w.packed[f->src] : NULL;

	f->uncodable = false;
	if (!f->job.coded) {
		memcpy(dst + from, w.model[f->src] + from, len);
	} else if (is_out(f->dst)) {
		memcpy(block, w.model[f->src], BYTES);
		f->uncodable = !gpu_coded_encode(f->job.coded, block, packed);
		memcpy(dst, packed, f->uncodable ? 0 : BYTES);
		becomes = f->uncodable ? NULL : f->job.coded;
	} else {
		memcpy(packed, w.model[f->src], BYTES);
		gpu_coded_decode(f->job.coded, packed, block);
		memcpy(dst, block, BYTES);
		becomes = NULL;
	}
	w.packed[f->dst] = becomes;
	w.unknown[f->dst] = f->uncodable || (w.unknown[f->dst] && len < BYTES);
	f->unknown = w.unknown[f->dst];
	if (f->job.want_sum)
		gpu_checksum(&gpu_codec_portable, near + from, len, f->sum);
}

static void send(struct flight *f, uint32_t serial, uint32_t from, uint32_t len)
{
	f->job.dst = w.addr[f->dst] + from;
	f->job.src = w.addr[f->src] + from;
	f->job.len = len;
	f->job.done = landed;
	f->job.ctx = f;
	foresee(f, from, len);
	memcpy(f->expected, w.model[f->dst], BYTES);
	f->serial = serial;
	f->busy = true;
	w.writer[f->dst] = serial;
	ck_assert_int_eq(w.g->ops->submit(w.g, &f->job), 0);
	w.n_users[f->dst][f->lane]++;
	w.n_users[f->src][f->lane]++;
	w.n_busy++;
	w.n_coded += f->job.coded != NULL;
	w.n_summed += f->job.want_sum;
	w.n_uncodable += f->uncodable;
}

static void wait_for(uint32_t block, uint32_t lane)
{
	while (used_elsewhere(block, lane))
		reap_once();
}

static void copy_any(uint32_t serial)
{
	struct flight *f = idle_flight();
	uint32_t way = any(4), dst, src, from, len;
	bool urgent = any(4) == 0;

	/* In, out, and seldom across. */
	dst = way == 1 || way == 2 ? N_DEVICE + any(N_HOST) : any(N_DEVICE);
	src = way == 0 ? N_DEVICE + any(N_HOST) : any(N_DEVICE);
	if (src == dst || w.unknown[src])
		return copy_any(serial);
	f->dst = dst;
	f->src = src;
	f->lane = (urgent ? 2u : 0u) + (dst < N_DEVICE);
	wait_for(dst, f->lane);
	wait_for(src, f->lane);
	f->job = (struct gpu_job){ .urgent = urgent };
	from = any(4) ? 0 : any(BYTES);
	len = from ? 1 + any(BYTES - from) : BYTES;
	if (w.codes && is_out(dst) && from == 0 && any(2) == 0)
		f->job.coded = &codings[any(radix_array_size(codings))];
	else if (!is_out(dst) && !is_on(src) && from == 0) /* other bytes decode to anything */
		f->job.coded = w.packed[src];
	if (f->job.coded)
		len = BYTES;
	f->job.want_sum = w.codes && from % 2 == 0 && len % 2 == 0 && any(4) == 0 &&
			  !(w.unknown[dst] && len < BYTES);
	send(f, serial, from, len);
	if (any(50) == 0)
		(void)w.g->ops->reap(w.g, any(64));
}

/* Neighbours in host memory, out of or into blocks anywhere on the device.  All at once. */
static void copy_bundle(uint32_t serial)
{
	const bool out = any(2) == 0, urgent = any(4) == 0;
	const uint32_t host = N_DEVICE + any(N_HOST - N_BUNDLE), begin = any(N_DEVICE);
	const uint32_t lane = (urgent ? 2u : 0u) + !out;
	uint32_t device[N_BUNDLE];

	while (w.n_busy + N_BUNDLE > N_FLIGHTS)
		reap_once();
	for (uint32_t i = 0; i < N_BUNDLE; i++) {
		device[i] = (begin + 35 * i) % N_DEVICE; /* each another one */
		if (w.unknown[out ? device[i] : host + i])
			return copy_any(serial);
	}
	for (uint32_t i = 0; i < N_BUNDLE; i++) {
		wait_for(device[i], lane);
		wait_for(host + i, lane);
	}
	for (uint32_t i = 0; i < N_BUNDLE; i++) {
		struct flight *f = idle_flight();

		f->dst = out ? host + i : device[i];
		f->src = out ? device[i] : host + i;
		f->lane = lane;
		f->job = (struct gpu_job){ .urgent = urgent };
		send(f, serial + i, 0, BYTES);
	}
	w.n_bundled += N_BUNDLE;
}

static void begin(const char *settings, uint64_t seed, uint8_t **ret_device)
{
	struct gpu_pool *pool;
	struct gpu_pool_info info;
	uint8_t *host, *device;
	uint64_t len;

	w.g = open_cuda(settings);
	w.codes = w.g->ops->codes(w.g);
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
			p[k] = w.model[i][k] = (uint8_t)any(w.codes ? 128 : 256);
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
	/* With kernels. */
	{ "latency_us=20,reorder=5", 60000 },
	{ "latency_us=5,gbps=1,reorder=6", 20000 },
	{ "latency_us=5,version=12040", 10000 },
	{ "reorder=8", 10000 },
};

#define N_PLAIN_RUNS 4

static const char *kernels(void)
{
	return gpu_fatbin_len > 0 ? getenv("KERNELS") : NULL;
}

static void assert_right(uint32_t n)
{
	ck_assert_uint_eq(w.n_done, n);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		if (!w.unknown[i])
			w.n_wrong += differing(w.at[i], w.model[i]);
	(void)printf("# %u copies, of which %u were coded (%u of them could not be), %u in bundles,"
		     " %u sums, %lu launches: %lu wrong bytes\n",
		     w.n_done, w.n_coded, w.n_uncodable, w.n_bundled, w.n_summed,
		     (unsigned long)census().n_launches, (unsigned long)w.n_wrong);
	(void)fflush(stdout);
	ck_assert_uint_eq(w.n_wrong, 0);
}

START_TEST(copies)
{
	const bool with_kernels = _i >= N_PLAIN_RUNS;
	char settings[400];
	uint8_t *device;
	uint32_t i = 1;

	(void)snprintf(settings, sizeof(settings), "%s%s%s", runs[_i].settings,
		       with_kernels ? ",kernels=" : "", with_kernels ? kernels() : "");
	begin(settings, (uint64_t)_i + 1, &device);
	ck_assert_int_eq(w.codes, with_kernels);
	while (i <= runs[_i].n) {
		uint32_t before = w.n_bundled;

		if (with_kernels && any(30) == 0 && i + N_BUNDLE <= runs[_i].n)
			copy_bundle(i);
		else
			copy_any(i);
		i += w.n_bundled > before ? N_BUNDLE : 1;
	}
	while (w.n_busy)
		reap_once();
	assert_right(runs[_i].n);
	gpu_close(w.g);
	assert_nothing_held();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("random");
	TCase *t = new_case();

	tcase_set_timeout(t, 200);
	tcase_add_loop_test(t, copies, 0, kernels() ? (int)radix_array_size(runs) : N_PLAIN_RUNS);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	if (!may_die()) {
		(void)printf("1..0 # SKIP each test needs a process of its own\n");
		return 0;
	}
	if (!kernels())
		(void)printf("# no kernels in this build: plain copies only\n");
	return run_suite(suite());
}
