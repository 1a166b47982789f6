/*
 * bench_kvstate.c - how fast blocks leave and enter a context, beside memcpy of the same bytes.
 *
 *     bench_kvstate MODEL.gguf [N_CTX [BLOCK_TOKENS]]
 *
 * A full context is exported and imported in runs of 1, 32 and all blocks; 7 rounds, medians.  K/V
 * comes from one block, imported everywhere: what is in it does not matter for its copying.
 */
#include "clients/llama/kvstate.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define ROUNDS 7

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void print(const char *what, uint32_t run, double bytes, double s[ROUNDS], uint32_t n)
{
	qsort(s, ROUNDS, sizeof(*s), by_value);
	printf("%-8s runs of %4u  %7.0f MB/s  %7.1f us/block\n", what, run,
	       bytes / s[ROUNDS / 2] / 1e6, s[ROUNDS / 2] * 1e6 / n);
}

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
}

static void empty(struct llama_context *ctx)
{
	llama_memory_seq_rm(llama_get_memory(ctx), 0, -1, -1);
}

static int export_all(struct kvstate *state, struct llama_context *ctx, uint32_t n, uint32_t run,
		      void **blocks)
{
	for (uint32_t i = 0; i < n; i += run) {
		if (kvstate_export(state, ctx, i, n - i < run ? n - i : run, blocks + i))
			return 1;
	}
	return 0;
}

static int measure(struct kvstate *state, struct llama_context *ctx, uint32_t n, void **blocks,
		   void **others)
{
	const uint64_t block = kvstate_shape(state)->block_bytes;
	const uint32_t runs[] = { 1, 32, n };
	double s[ROUNDS], total = (double)block * n;

	for (int i = 0; i < ROUNDS; i++) {
		s[i] = now_s();
		for (uint32_t k = 0; k < n; k++)
			memcpy(others[k], blocks[k], block);
		s[i] = now_s() - s[i];
	}
	print("memcpy", n, total, s, n);
	for (int i = 0; i < ROUNDS; i++) {
		empty(ctx);
		s[i] = now_s();
		if (kvstate_import(state, ctx, n, (const void *const *)blocks))
			return 1;
		s[i] = now_s() - s[i];
	}
	print("import", n, total, s, n);
	for (size_t r = 0; r < sizeof(runs) / sizeof(*runs); r++) {
		for (int i = 0; i < ROUNDS; i++) {
			s[i] = now_s();
			if (export_all(state, ctx, n, runs[r], others))
				return 1;
			s[i] = now_s() - s[i];
		}
		print("export", runs[r], total, s, n);
	}
	for (uint32_t k = 0; k < n; k++) {
		if (memcmp(others[k], blocks[k], block) != 0)
			return 1;
	}
	return 0;
}

/* n blocks in one shared mapping, as a pool's are. */
static void **make_blocks(uint64_t block, uint32_t n)
{
	uint8_t *all = mmap(NULL, block * n, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	void **v = calloc(n, sizeof(*v));

	if (all == MAP_FAILED || !v)
		exit(1);
	for (uint32_t i = 0; i < n; i++) {
		v[i] = all + block * i;
		memset(v[i], (int)(i & 0x3f), block);
	}
	return v;
}

int main(int argc, char **argv)
{
	struct llama_context_params p = llama_context_default_params();
	uint32_t n_ctx = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 8192;
	uint32_t block_tokens = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 16;
	struct llama_model *model;
	struct llama_context *ctx;
	struct kvstate *state;
	void **blocks, **others;
	char why[256] = "";
	uint64_t block;
	int r;

	if (argc < 2)
		return fprintf(stderr, "usage: %s MODEL.gguf [N_CTX [BLOCK_TOKENS]]\n", *argv), 2;
	llama_log_set(quiet, NULL);
	model = llama_model_load_from_file(argv[1], llama_model_default_params());
	p.n_ctx = n_ctx;
	p.n_seq_max = 2;
	p.kv_unified = true;
	p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
	ctx = model ? llama_init_from_model(model, p) : NULL;
	if (!ctx || kvstate_new(ctx, block_tokens, &state, why, sizeof(why)))
		return fprintf(stderr, "%s: %s\n", argv[1], why), 1;
	block = kvstate_shape(state)->block_bytes;
	blocks = make_blocks(block, n_ctx / block_tokens);
	others = make_blocks(block, n_ctx / block_tokens);
	printf("%u blocks of %ju bytes, %u tokens each\n", n_ctx / block_tokens, (uintmax_t)block,
	       block_tokens);
	r = measure(state, ctx, n_ctx / block_tokens, blocks, others);
	if (r)
		fprintf(stderr, "blocks came out other than they went in\n");
	kvstate_free(state);
	llama_free(ctx);
	llama_model_free(model);
	return r;
}
