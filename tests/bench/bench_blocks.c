/*
 * bench_blocks.c - moving blocks: through the host back end, through the codecs, and summed, beside
 * a memcpy() of the same bytes between the same buffers by one thread.
 *
 *     bench_blocks [--large]
 *
 * Ways that are compared take turns round by round, and ratios are the median of those of the
 * rounds.  Buffers are far larger than caches.  The last table says what the codecs cost in
 * precision, with a scale for each token and head as the format has it, and with one for each head
 * of a piece: that is the same code over rows that are as long as all tokens of a head.
 */
#include "gpu/codec.h"
#include "gpu/codec_number.h"
#include "gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TOTAL      (UINT64_C(192) << 20)
#define MAX_ROUNDS 99
/* What fails the run: far below what is aimed at, which is printed; neighbours move runs. */
#define GATE_COPY  0.5
#define GATE_CODEC 0.2
#define TOKENS     16u
#define HEADS      8u
#define DIM        128u
#define PIECE      (2 * TOKENS * HEADS * DIM)

static int rounds;
static bool ok = true;
static uint32_t ids[TOTAL / (256 << 10)];

static void die(const char *what)
{
	fprintf(stderr, "bench_blocks: %s\n", what);
	exit(1);
}

static double now(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
	double v[MAX_ROUNDS];

	memcpy(v, values, (size_t)n * sizeof(*v));
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct row {
	double ours[MAX_ROUNDS], theirs[MAX_ROUNDS]; /* seconds for TOTAL bytes */
};

static void print(const char *what, uint64_t block, const struct row *r, double target, double gate)
{
	double ratio[MAX_ROUNDS], m;

	for (int i = 0; i < rounds; i++)
		ratio[i] = r->theirs[i] / r->ours[i];
	m = median(ratio, rounds);
	printf("%-26s %5llu KiB %8.2f GB/s %8.2f GB/s %8.2f", what,
	       (unsigned long long)(block >> 10), (double)TOTAL / median(r->ours, rounds) / 1e9,
	       (double)TOTAL / median(r->theirs, rounds) / 1e9, m);
	if (target > 0)
		printf(" %8.2f  %s", target, m >= target ? "met" : "missed");
	printf("\n");
	fflush(stdout);
	ok = ok && m >= gate;
}

/* Memory as the daemon has it: shared, all its pages there. */
static uint8_t *memory(uint64_t len)
{
	static struct gpu_shm shm[8];
	static int n;

	if (n == 8 || gpu_shm_new(&shm[n], "bench-blocks", len, true, false) < 0)
		die("no memory");
	return shm[n++].base;
}

static double copied(uint8_t *to, const uint8_t *from, uint64_t block)
{
	double begin = now();

	for (uint64_t at = 0; at < TOTAL; at += block)
		memcpy(to + at, from + at, block);
	return now() - begin;
}

/* ---- the host back end ----------------------------------------------------------------------- */

static uint32_t n_done;

static void done(struct gpu_job *job, int status)
{
	if (status < 0)
		die("a copy failed");
	n_done++;
}

/* Copies between the pool and `host`; as many jobs in flight as there are blocks. */
static double moved(struct gpu *g, struct gpu_pool *pool, uint8_t *host, uint64_t block, bool down)
{
	static struct gpu_job jobs[TOTAL / (256 << 10)];
	uint32_t n = (uint32_t)(TOTAL / block);
	double begin = now();

	n_done = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = (uint64_t)(uintptr_t)(host + i * block);
		uint64_t slot = g->ops->slot_addr(pool, i);

		jobs[i] = (struct gpu_job){
			.dst = down ? at : slot, .src = down ? slot : at, .len = block, .done = done
		};
		if (g->ops->submit(g, &jobs[i]) < 0)
			die("a copy was refused");
	}
	while (n_done < n)
		(void)g->ops->reap(g, 64); /* `done` counts */
	return now() - begin;
}

static void host_back_end(uint8_t *host, uint64_t block)
{
	static struct row down, up;
	struct gpu_pool *pool;
	struct gpu *g;
	char why[256];
	uint8_t *slots;

	if (gpu_open("host", NULL, &g, why, sizeof(why)) < 0 ||
	    g->ops->pool_new(g, (uint32_t)(TOTAL / block), block, &pool) < 0)
		die("no pool");
	slots = g->ops->slot_host(pool, 0); /* one behind the other: blocks are multiples of 64 */
	memset(slots, 1, TOTAL);
	for (int i = -1; i < rounds; i++) { /* the first one warms up */
		int at = i < 0 ? 0 : i;

		down.ours[at] = moved(g, pool, host, block, true);
		down.theirs[at] = copied(host, slots, block);
		up.ours[at] = moved(g, pool, host, block, false);
		up.theirs[at] = copied(slots, host, block);
	}
	gpu_close(g);
	print("device to host", block, &down, 0.9, GATE_COPY);
	print("host to device", block, &up, 0.9, GATE_COPY);
}

/* ---- codecs and checksums -------------------------------------------------------------------- */

/* About normal, from four uniform ones; xorshift64. */
static double bell(uint64_t *s)
{
	double sum = -2;

	for (int i = 0; i < 4; i++) {
		*s ^= *s << 13;
		*s ^= *s >> 7;
		*s ^= *s << 17;
		sum += (double)(*s >> 11) / 9007199254740992.0;
	}
	return 1.7 * sum;
}

static void numbers(uint8_t *mem, enum gpu_element element)
{
	uint64_t seed = 42;
	uint16_t *x = (void *)mem;
	uint32_t n = 1u << 20;

	for (uint32_t i = 0; i < n; i++)
		x[i] = (uint16_t)gpu_f32_to_element(element, (float)bell(&seed));
	for (uint64_t at = 2 * n; at < TOTAL; at += 2 * n)
		memcpy(mem + at, mem, 2 * n);
}

static void codecs(uint8_t *blocks, uint8_t *out, uint8_t *copy, uint64_t block,
		   enum gpu_element element, enum gpu_codec codec)
{
	static struct row coding, decoding;
	static uint32_t raw[TOTAL / (256 << 10)];
	const struct gpu_codec_ops *by = gpu_codec_best();
	const struct gpu_geometry g = { TOKENS, HEADS, DIM, GPU_ORDER_NHD, element };
	uint32_t n = (uint32_t)(TOTAL / block);
	uint64_t base[64], coded;
	struct gpu_layout l = { (uint64_t)(uintptr_t)base, block, (uint32_t)(block / PIECE),
				PIECE };
	char what[64];

	for (uint32_t s = 0; s < l.n_pieces; s++)
		base[s] = (uint64_t)(uintptr_t)blocks + s * PIECE;
	coded = gpu_coded_block_bytes(&l, &g);
	if (!coded)
		die("a geometry that does not fit");
	for (int i = -1; i < rounds; i++) {
		int at = i < 0 ? 0 : i;
		double begin = now();

		if (gpu_encode(by, &l, &g, codec, ids, n, out, coded, raw))
			die("a block that cannot be coded");
		coding.ours[at] = now() - begin;
		coding.theirs[at] = copied(copy, blocks, block);
		begin = now();
		gpu_decode(by, &l, &g, codec, ids, n, out, coded);
		decoding.ours[at] = now() - begin;
		decoding.theirs[at] = copied(blocks, copy, block);
	}
	snprintf(what, sizeof(what), "%s to %s", element == GPU_ELEMENT_F16 ? "fp16" : "bf16",
		 codec == GPU_CODEC_INT8 ? "int8" : "e4m3");
	print(what, block, &coding, 0.6, GATE_CODEC);
	snprintf(what, sizeof(what), "%s to %s", codec == GPU_CODEC_INT8 ? "int8" : "e4m3",
		 element == GPU_ELEMENT_F16 ? "fp16" : "bf16");
	print(what, block, &decoding, 0.6, GATE_CODEC);
}

static void sums(const uint8_t *blocks, uint8_t *copy, uint64_t block)
{
	static struct row row;
	uint64_t sum[2], all = 0;

	for (int i = -1; i < rounds; i++) {
		int at = i < 0 ? 0 : i;
		double begin = now();

		for (uint64_t k = 0; k < TOTAL; k += block) {
			gpu_checksum(gpu_codec_best(), blocks + k, block, sum);
			all ^= sum[0] ^ sum[1];
		}
		row.ours[at] = now() - begin;
		row.theirs[at] = copied(copy, blocks, block);
	}
	if (all == 1) /* so that it is computed */
		printf("\n");
	print("checksum", block, &row, 0, 0);
}

/* ---- precision ------------------------------------------------------------------------------- */

enum outliers {
	NO_OUTLIERS,
	ELEMENTS, /* one element in 1,024, 100 times as large */
	TOKEN,    /* all of the first token, 300 times as large */
	CHANNELS, /* two elements of each row, always the same, 30 times as large */
	N_OUTLIERS
};
static const char *const outlier_names[] = { "none", "1 element in 1,024 x 100",
					     "first token x 300", "2 channels x 30" };

static void outlier_numbers(uint16_t *x, enum outliers kind)
{
	uint64_t seed = 7;

	for (uint32_t i = 0; i < PIECE / 2; i++) {
		double v = bell(&seed);

		if ((kind == ELEMENTS && seed % 1024 == 0))
			v *= 100;
		else if (kind == TOKEN && i / DIM % TOKENS == 0)
			v *= 300;
		else if (kind == CHANNELS && (i % DIM == 5 || i % DIM == 77))
			v *= 30;
		x[i] = (uint16_t)gpu_f32_to_f16((float)v);
	}
}

/* Root mean square of the error over that of the numbers, both without the outliers. */
static double error_of(enum gpu_codec codec, enum outliers kind, bool by_row)
{
	static uint16_t was[PIECE / 2], is[PIECE / 2];
	static uint8_t packed[PIECE];
	const struct gpu_geometry row = { TOKENS, HEADS, DIM, GPU_ORDER_HND, GPU_ELEMENT_F16 };
	const struct gpu_geometry head = { 1, HEADS, TOKENS * DIM, GPU_ORDER_HND, GPU_ELEMENT_F16 };
	uint64_t base = (uint64_t)(uintptr_t)is;
	const struct gpu_layout l = { (uint64_t)(uintptr_t)&base, PIECE, 1, PIECE };
	const struct gpu_geometry *g = by_row ? &row : &head;
	double errors = 0, squares = 0;
	uint32_t zero = 0, raw;

	outlier_numbers(was, kind);
	memcpy(is, was, sizeof(is));
	if (gpu_encode(gpu_codec_best(), &l, g, codec, &zero, 1, packed, sizeof(packed), &raw))
		die("numbers that cannot be coded");
	gpu_decode(gpu_codec_best(), &l, g, codec, &zero, 1, packed, sizeof(packed));
	for (uint32_t i = 0; i < PIECE / 2; i++) {
		double x = (double)gpu_f16_to_f32(was[i]), y = (double)gpu_f16_to_f32(is[i]);

		if (fabs(x) > 3.5 || (kind == TOKEN && i / DIM % TOKENS == 0) ||
		    (kind == CHANNELS && (i % DIM == 5 || i % DIM == 77)))
			continue;
		errors += (y - x) * (y - x);
		squares += x * x;
	}
	return 100 * sqrt(errors / squares);
}

static void precision(void)
{
	printf("\nfp16, error of what is no outlier (rms, of rms)\n"
	       "%-26s %28s %28s\n%-26s %14s %13s %14s %13s\n",
	       "", "a scale per token and head", "a scale per head and piece", "outliers", "int8",
	       "e4m3", "int8", "e4m3");
	for (uint32_t k = 0; k < N_OUTLIERS; k++) {
		printf("%-26s", outlier_names[k]);
		for (int by_row = 1; by_row >= 0; by_row--)
			for (uint32_t c = GPU_CODEC_INT8; c <= GPU_CODEC_E4M3; c++)
				printf(" %11.2f %%",
				       error_of((enum gpu_codec)c, (enum outliers)k, by_row));
		printf("\n");
	}
}

int main(int argc, char **argv)
{
	static const uint64_t sizes[] = { 256 << 10, 2 << 20 };
	uint8_t *a, *b, *c;

	rounds = argc > 1 && !strcmp(argv[1], "--large") ? 31 : 9;
	if (argc > 2 || (argc > 1 && rounds == 9)) {
		fprintf(stderr, "usage: %s [--large]\n", argv[0]);
		return 2;
	}
	for (uint32_t i = 0; i < radix_array_size(ids); i++)
		ids[i] = i;
	a = memory(TOTAL);
	b = memory(TOTAL);
	c = memory(TOTAL);
	printf("one thread; codecs and checksums by %s, rates in bytes of fp16 or bf16\n"
	       "%-26s %9s %13s %13s %8s %8s\n",
	       gpu_codec_best()->name, "what", "block", "prefixd", "memcpy", "ratio", "target");
	for (uint32_t i = 0; i < radix_array_size(sizes); i++)
		host_back_end(a, sizes[i]);
	for (uint32_t i = 0; i < radix_array_size(sizes); i++) {
		for (uint32_t e = GPU_ELEMENT_F16; e <= GPU_ELEMENT_BF16; e++)
			for (uint32_t k = GPU_CODEC_INT8; k <= GPU_CODEC_E4M3; k++) {
				numbers(a, (enum gpu_element)e);
				codecs(a, b, c, sizes[i], (enum gpu_element)e, (enum gpu_codec)k);
			}
		sums(a, c, sizes[i]);
	}
	precision();
	return ok ? 0 : 1;
}
