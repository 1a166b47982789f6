/*
 * kernels.c - the part about kernels: each writes the bytes that the processor's version writes,
 * and takes this long, beside a copy of the same bytes within the device.
 */
#include "gpu/codec.h"
#include "gpu/fatbin.h"
#include "tests/gpu/device/kit.h"

#include <stdio.h>
#include <stdlib.h>

#define TOKENS 16u
#define HEADS  8u
#define DIM    128u
#define PIECE  (2u * TOKENS * HEADS * DIM) /* K or V of one layer */
#define PIECES 64u                         /* of 32 layers */
#define BLOCK  ((uint64_t)PIECE * PIECES)

static struct device dev;
static gpu_cu_module module;
static uint32_t n_blocks, grid;
static struct slab pool, out, back, small;
/* In `small`, as this process sees it before it is copied there. */
static struct tables {
	uint64_t base[3][PIECES]; /* block-major, layer-major, and of `back` */
	uint32_t ids[256];        /* from the last block to the first */
	uint32_t places[256];     /* and the other way round */
	uint32_t raw[256];
	uint64_t sums[256][2];
} tables;

enum {
	BLOCK_MAJOR,
	LAYER_MAJOR,
	BACK
};

static const char *const layout_names[] = { "blocks whole", "blocks by layer" };

static struct gpu_layout layout_of(int which)
{
	return (struct gpu_layout){
		.base = small.at + offsetof(struct tables, base) +
			(uint64_t)which * sizeof(tables.base[0]),
		.stride = which == LAYER_MAJOR ? PIECE : BLOCK,
		.n_pieces = PIECES,
		.piece_bytes = PIECE,
	};
}

static uint64_t place_of(int which, uint32_t id, uint32_t piece)
{
	return which == LAYER_MAJOR ? ((uint64_t)piece * n_blocks + id) * PIECE
				    : id * BLOCK + (uint64_t)piece * PIECE;
}

static void tables_send(void)
{
	memcpy(dev.pinned, &tables, sizeof(tables));
	must(&dev, copy, small.at, dev.pinned_at, sizeof(tables), dev.stream);
	must(&dev, stream_sync, dev.stream);
}

static void set_up(void)
{
	int fd[4], n_sm = 0;

	must(&dev, device_attribute, &n_sm, GPU_CU_MULTIPROCESSOR_COUNT, dev.number);
	grid = quick ? 2 : 4 * (uint32_t)n_sm;
	n_blocks = quick ? 3 : 64;
	pool = slab_new(&dev, n_blocks * BLOCK, &fd[0]);
	out = slab_new(&dev, n_blocks * BLOCK, &fd[1]);
	back = slab_new(&dev, n_blocks * BLOCK, &fd[2]);
	small = slab_new(&dev, sizeof(tables), &fd[3]);
	slab_fill(&dev, &pool, 5);
	for (uint32_t p = 0; p < PIECES; p++) {
		tables.base[BLOCK_MAJOR][p] = pool.at + place_of(BLOCK_MAJOR, 0, p);
		tables.base[LAYER_MAJOR][p] = pool.at + place_of(LAYER_MAJOR, 0, p);
		tables.base[BACK][p] = back.at + place_of(BLOCK_MAJOR, 0, p);
	}
	for (uint32_t i = 0; i < n_blocks; i++) {
		tables.ids[i] = n_blocks - 1 - i;
		tables.places[i] = i;
	}
	tables_send();
}

/* `args`: addresses of what the kernel takes.  Seconds of one launch, by `n` of them. */
static double launch(const char *name, void **args, int n)
{
	gpu_cu_function f;
	double begun;

	must(&dev, module_function, &f, module, name);
	must(&dev, launch, f, grid, 1, 1, GPU_KERNEL_THREADS, 1, 1, 0, dev.stream, args, NULL);
	must(&dev, stream_sync, dev.stream);
	begun = seconds();
	for (int i = 0; i < n; i++)
		must(&dev, launch, f, grid, 1, 1, GPU_KERNEL_THREADS, 1, 1, 0, dev.stream, args,
		     NULL);
	must(&dev, stream_sync, dev.stream);
	return (seconds() - begun) / n;
}

static int runs(void)
{
	return quick ? 1 : 20;
}

/* What a copy of as many bytes takes, both ends within the device. */
static double copy_s;

static void speed_line(bool right, const char *what, double bytes, double s)
{
	report(right ? PASSED : FAILED, what, "%7.1f GB/s of traffic, %4.2f of a copy's%s",
	       bytes / s / 1e9, bytes / s / (2.0 * (double)n_blocks * (double)BLOCK / copy_s),
	       right ? "" : "; WRONG BYTES");
}

/* Bytes of the device into this process. */
static void fetch(void *to, gpu_cu_ptr from, uint64_t len)
{
	for (uint64_t at = 0; at < len; at += PINNED_BYTES) {
		uint64_t n = radix_min_u64(PINNED_BYTES, len - at);

		must(&dev, copy, dev.pinned_at, from + at, n, dev.stream);
		must(&dev, stream_sync, dev.stream);
		memcpy((uint8_t *)to + at, dev.pinned, n);
	}
}

/* Blocks of `ids` lie there one behind the other. */
static bool packed_right(int which, gpu_cu_ptr packed)
{
	uint64_t *block = malloc(BLOCK);
	bool right = block != NULL;

	for (uint32_t i = 0; right && i < n_blocks; i++) {
		fetch(block, packed + i * BLOCK, BLOCK);
		for (uint64_t k = 0; right && k < BLOCK / 8; k++) {
			uint64_t at = place_of(which, tables.ids[i], (uint32_t)(k * 8 / PIECE));

			right = block[k] == pattern(at / 8 + k % (PIECE / 8), 5);
		}
	}
	free(block);
	return right;
}

static void gather_and_scatter(int which)
{
	struct gpu_layout from = layout_of(which), to = layout_of(BACK);
	uint64_t ids = small.at + offsetof(struct tables, ids), stride = BLOCK;
	void *gather[] = { &from, &ids, &n_blocks, &out.at, &stride };
	void *scatter[] = { &to, &ids, &n_blocks, &out.at, &stride };
	double bytes = 2.0 * (double)n_blocks * (double)BLOCK;
	char what[64];
	double s = launch("gpu_kernel_gather", gather, runs());

	(void)snprintf(what, sizeof(what), "gather, %s", layout_names[which]);
	speed_line(packed_right(which, out.at), what, bytes, s);
	if (which != BLOCK_MAJOR)
		return;
	s = launch("gpu_kernel_scatter", scatter, runs());
	speed_line(slab_wrong(&dev, &back, 5) == 0, "scatter, blocks whole", bytes, s);
}

/* From a cache that lies layer by layer to whole blocks, as a worker does. */
static void move_to_slots(void)
{
	struct gpu_layout from = layout_of(LAYER_MAJOR), to = layout_of(BACK);
	uint64_t ids = small.at + offsetof(struct tables, ids);
	uint64_t places = small.at + offsetof(struct tables, places);
	void *args[] = { &from, &ids, &to, &places, &n_blocks };
	double s = launch("gpu_kernel_move", args, runs());

	speed_line(packed_right(LAYER_MAJOR, back.at), "move, by layer to whole",
		   2.0 * (double)n_blocks * (double)BLOCK, s);
}

/* Block 0 of `slab` on the processor: coded, and what that decodes to. */
static void by_processor(enum gpu_codec codec, const struct gpu_geometry *g, uint8_t *block,
			 uint8_t *coded, uint64_t stride)
{
	uint64_t base[PIECES];
	const struct gpu_layout at = {
		.base = (uintptr_t)base, .stride = BLOCK, .n_pieces = PIECES, .piece_bytes = PIECE
	};
	const uint32_t id = 0;
	uint32_t raw = 0;

	for (uint32_t p = 0; p < PIECES; p++)
		base[p] = (uintptr_t)(block + (uint64_t)p * PIECE);
	memset(coded, 0, stride);
	(void)gpu_encode(&gpu_codec_portable, &at, g, codec, &id, 1, coded, stride, &raw);
	gpu_decode(&gpu_codec_portable, &at, g, codec, &id, 1, coded, stride);
}

static void codec(const char *name, enum gpu_codec number, enum gpu_element element)
{
	struct gpu_layout from = layout_of(BLOCK_MAJOR), to = layout_of(BACK);
	struct gpu_geometry g = { TOKENS, HEADS, DIM, GPU_ORDER_NHD, element };
	uint64_t stride = gpu_coded_block_bytes(&from, &g),
		 ids = small.at + offsetof(struct tables, ids);
	uint64_t raw = small.at + offsetof(struct tables, raw);
	void *encode[] = { &from, &g, &ids, &n_blocks, &out.at, &stride, &raw };
	void *decode[] = { &to, &g, &ids, &n_blocks, &out.at, &stride };
	uint8_t *block = malloc(BLOCK), *coded = malloc(stride), *got = malloc(BLOCK);
	double bytes = (double)n_blocks * (double)(BLOCK + stride), s;
	char what[64], kernel[64];
	bool right;

	if (!block || !coded || !got)
		give_up("kernels", "no memory");
	must(&dev, set_bytes, out.at, 0, n_blocks * stride, dev.stream);
	(void)snprintf(kernel, sizeof(kernel), "gpu_kernel_encode_%s", name);
	(void)snprintf(what, sizeof(what), "encode %s", name);
	s = launch(kernel, encode, runs());
	fetch(block, pool.at + (n_blocks - 1) * BLOCK, BLOCK); /* what was packed first */
	by_processor(number, &g, block, coded, stride);
	fetch(got, out.at, stride);
	right = memcmp(got, coded, stride) == 0;
	fetch(&tables, small.at, sizeof(tables));
	for (uint32_t i = 0; i < n_blocks; i++)
		right &= tables.raw[i] == 0;
	speed_line(right, what, bytes, s);
	(void)snprintf(kernel, sizeof(kernel), "gpu_kernel_decode_%s", name);
	(void)snprintf(what, sizeof(what), "decode %s", name);
	s = launch(kernel, decode, runs());
	fetch(got, back.at + (n_blocks - 1) * BLOCK, BLOCK);
	speed_line(memcmp(got, block, BLOCK) == 0, what, bytes, s);
	free(block);
	free(coded);
	free(got);
}

static void checksum(void)
{
	struct gpu_layout from = layout_of(BLOCK_MAJOR);
	uint64_t ids = small.at + offsetof(struct tables, ids);
	uint64_t sums = small.at + offsetof(struct tables, sums), want[2];
	void *args[] = { &from, &ids, &n_blocks, &sums };
	uint8_t *block = malloc(BLOCK);
	double s;
	bool right;

	if (!block)
		give_up("kernels", "no memory");
	memset(tables.sums, 0, sizeof(tables.sums));
	tables_send();
	{
		gpu_cu_function f;

		must(&dev, module_function, &f, module, "gpu_kernel_checksum");
		must(&dev, launch, f, grid, 1, 1, GPU_KERNEL_THREADS, 1, 1, 0, dev.stream, args,
		     NULL);
		must(&dev, stream_sync, dev.stream);
	}
	fetch(&tables, small.at, sizeof(tables));
	fetch(block, pool.at + (n_blocks - 1) * BLOCK, BLOCK);
	gpu_checksum(gpu_codec_best(), block, BLOCK, want);
	right = memcmp(want, tables.sums[0], sizeof(want)) == 0;
	s = launch("gpu_kernel_checksum", args, runs()); /* adds to what is there: time alone */
	speed_line(right, "checksum", (double)n_blocks * (double)BLOCK, s);
	free(block);
}

void part_kernels(void)
{
	double begun;

	if (!gpu_fatbin) {
		report(SKIPPED, "kernels", "built without nvcc: there are none in this program");
		return;
	}
	device_open(&dev);
	{
		gpu_cu_result r = dev.d.module_load(&module, gpu_fatbin);
		char text[200];

		gpu_driver_describe(&dev.d, "cuModuleLoadData", r, text, sizeof(text));
		if (r != GPU_CU_SUCCESS) {
			report(r == GPU_CU_NO_BINARY_FOR_GPU ? SKIPPED : FAILED, "kernels", "%s",
			       text);
			return;
		}
	}
	set_up();
	must(&dev, copy, out.at, pool.at, n_blocks * BLOCK, dev.stream);
	must(&dev, stream_sync, dev.stream);
	begun = seconds();
	for (int i = 0; i < runs(); i++)
		must(&dev, copy, out.at, pool.at, n_blocks * BLOCK, dev.stream);
	must(&dev, stream_sync, dev.stream);
	copy_s = (seconds() - begun) / runs();
	speed_line(slab_wrong(&dev, &out, 5) == 0, "copy within the device",
		   2.0 * (double)n_blocks * (double)BLOCK, copy_s);
	gather_and_scatter(BLOCK_MAJOR);
	gather_and_scatter(LAYER_MAJOR);
	move_to_slots();
	codec("f16_int8", GPU_CODEC_INT8, GPU_ELEMENT_F16);
	codec("f16_e4m3", GPU_CODEC_E4M3, GPU_ELEMENT_F16);
	codec("bf16_int8", GPU_CODEC_INT8, GPU_ELEMENT_BF16);
	codec("bf16_e4m3", GPU_CODEC_E4M3, GPU_ELEMENT_BF16);
	checksum();
}
