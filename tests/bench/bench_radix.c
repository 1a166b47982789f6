/*
 * bench_radix.c - the index in process, beside a flat table of chained hashes in the same run.
 *
 *     bench_radix              1,000,000 blocks, about half a minute
 *     bench_radix --large      10,000,000 blocks (about 6 GiB)
 *     bench_radix --blocks N
 *
 * Per workload an index and the peer's table hold the same blocks.  Samples are interleaved: each
 * prompt is asked of all of them, in turning order; printed are medians and their ratios.
 *
 *     cold     a prompt chosen at random out of all: what it needs is in memory, not in a cache
 *     warm     the same prompt again
 *     digests  16 bytes per block given by the caller instead of 64 bytes of tokens
 *     recover  the same index out of a store that a dead process left
 *     tail     the last 20 of 512 blocks, from a place that a pin kept
 *
 * Exits with 1 when a cold match of 512 blocks takes more than 10 us.
 */
#include "radix/recover.h"
#include "radix/table.h"
#include "tests/bench/flat.h"
#include "tests/bench/workload.h"
#include "tests/lib/rng.h"
#include "tests/radix/bulk.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	TOKENS = 64, /* bytes of a key: 16 tokens */
	DIGEST = 16,
	SAMPLES = 300,
	WARM = 15,
	TAIL = 20,
	SPARE = 64 * 512, /* slots kept free for the timed insertions */
};

/* A store in a file without a name, as the daemon's. */
struct kept {
	struct radix_store store;
	uint64_t *generations;
	size_t generations_len;
	int fd;
};

struct world {
	struct workload w;
	struct bench_arena arena;
	struct radix_index *ix;
	uint32_t root;
	struct flat flat;
	uint64_t tick;
};

static uint64_t rng = 42;
static double ns_per_tick;
static uint8_t *keys; /* WORK_MAX_BLOCKS keys */
static uint32_t *out;
static struct radix_run *run_buffer;

static void die(const char *what)
{
	fprintf(stderr, "bench_radix: %s\n", what);
	exit(1);
}

/* ---- time ------------------------------------------------------------------------------------ */

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The time stamp counter where there is one: reading the clock may cost as much as a match. */
static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
	uint64_t t;

	__builtin_ia32_lfence();
	t = __builtin_ia32_rdtsc();
	__builtin_ia32_lfence();
	return t;
#else
	return (uint64_t)now_ns();
#endif
}

static void calibrate(void)
{
	double from = now_ns();
	uint64_t start = ticks();

	while (now_ns() - from < 5e7)
		;
	ns_per_tick = (now_ns() - from) / (double)(ticks() - start);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

static double median(double *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}

/* ---- building -------------------------------------------------------------------------------- */

static void store_all(struct world *w)
{
	for (unsigned part = 1; part <= 4; part++) {
		for (uint32_t p = 0; p < w->w.n_prompts; p++) {
			uint32_t n = workload_prompt(&w->w, p, keys);

			n = workload_part(&w->w, n, part);
			if (!n)
				continue;
			bulk_store(w->ix, w->root, keys, n, w->w.key_len, 16, ++w->tick);
			if (w->flat.slots)
				flat_insert(&w->flat, keys, n);
		}
	}
}

/* A branch of one block behind every other block of each path. */
static void store_branches(struct world *w)
{
	uint32_t key_len = w->w.key_len;
	uint8_t *path = malloc((size_t)WORK_MAX_BLOCKS * key_len);

	if (!path)
		die("no memory");
	for (uint32_t p = 0; p < w->w.n_prompts; p++) {
		struct radix_place root = radix_place_root(w->root);
		struct radix_pin walker = { 0 }, pin = { 0 };
		uint32_t n = workload_prompt(&w->w, p, keys);

		w->tick++;
		memcpy(path, keys, (size_t)n * key_len);
		radix_pin_take(w->ix, &walker, &root);
		for (uint32_t i = 2; i < n; i += 2) {
			struct radix_match m;
			uint8_t *branch = path + (size_t)i * key_len;

			radix_match(w->ix, &walker.at, keys + (size_t)(i - 2) * key_len, 2, NULL,
				    &m);
			radix_pin_move(w->ix, &walker, &m.end);
			radix_pin_take(w->ix, &pin, &m.end);
			workload_branch(&w->w, p, i, branch);
			bulk_commit(w->ix, &pin, branch, 1, key_len, 16, w->tick);
			radix_pin_drop(w->ix, &pin);
			if (w->flat.slots)
				flat_insert(&w->flat, path, i + 1);
			memcpy(branch, keys + (size_t)i * key_len, key_len);
		}
		radix_pin_drop(w->ix, &walker);
	}
	free(path);
}

static struct radix_index_config index_config(struct world *w)
{
	return (struct radix_index_config){ .alloc = &w->arena.alloc,
					    .n_slots = w->w.n_blocks + SPARE,
					    .n_entries = w->w.n_blocks + SPARE,
					    .secret = { 1, 2 } };
}

static struct radix_root_config root_config(uint32_t key_len)
{
	return (struct radix_root_config){
		.mode = key_len == TOKENS ? RADIX_KEYS_TOKENS : RADIX_KEYS_DIGEST,
		.key_len = key_len,
		.block_tokens = 16,
		.token_bytes = key_len == TOKENS ? TOKENS : 0,
	};
}

static int kept_commit(struct radix_store *s, uint64_t len)
{
	const struct kept *k = s->ctx;

	len = (len + (2u << 20) - 1) / (2u << 20) * (2u << 20);
	if (len > s->len || ftruncate(k->fd, (off_t)len) < 0)
		return -ENOMEM;
	s->committed = len;
	return 0;
}

static void kept_map(struct kept *k)
{
	k->store.base = mmap(NULL, k->store.len, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);
	if (k->store.base == MAP_FAILED)
		die("no addresses for a store");
	if (k->store.committed)
		(void)madvise(k->store.base, k->store.committed, MADV_POPULATE_READ);
}

static void kept_init(struct kept *k, struct radix_index_config *config)
{
	*k = (struct kept){
		.store = { .len = radix_store_len(config), .commit = kept_commit, .ctx = k },
		.fd = memfd_create("bench", MFD_CLOEXEC)
	};
	if (k->fd < 0)
		die("no file for a store");
	k->store.len = (k->store.len + (2u << 20)) / (2u << 20) * (2u << 20);
	k->generations = calloc(config->n_slots, sizeof(*k->generations));
	if (!k->generations)
		die("no memory");
	kept_map(k);
	config->store = &k->store;
	config->generations = k->generations;
}

static void kept_deinit(struct kept *k)
{
	(void)munmap(k->store.base, k->store.len);
	close(k->fd);
	free(k->generations);
}

/* kept: where the index lies, or NULL. */
static void world_init(struct world *w, enum workload_kind kind, uint32_t key_len,
		       uint32_t n_blocks, bool with_flat, struct kept *kept)
{
	struct radix_root_config rc = root_config(key_len);
	struct radix_index_config config;
	struct radix_stats s;

	*w = (struct world){ 0 };
	workload_init(&w->w, kind, key_len, n_blocks);
	bench_arena_init(&w->arena);
	config = index_config(w);
	if (kept)
		kept_init(kept, &config);
	if (radix_index_new(&w->ix, &config) || radix_root_new(w->ix, &rc, &w->root))
		die("no memory for the index");
	if (with_flat && flat_init(&w->flat, w->w.n_blocks + SPARE, key_len))
		die("no memory for the table");
	store_all(w);
	if (kind == WORK_COMB)
		store_branches(w);
	radix_index_stats(w->ix, &s);
	if (s.n_blocks != w->w.n_blocks || (with_flat && w->flat.n != w->w.n_blocks))
		die("not all blocks were stored");
}

static void world_deinit(struct world *w)
{
	radix_index_free(w->ix);
	flat_deinit(&w->flat);
	bench_arena_deinit(&w->arena);
}

/* ---- matching -------------------------------------------------------------------------------- */

/* A random prompt, for chat and long with a new turn behind it; returns how much is stored. */
static uint32_t random_prompt(struct world *w, uint32_t *ret_n)
{
	uint32_t n = workload_prompt(&w->w, test_rng_below(&rng, w->w.n_prompts), keys);

	*ret_n = n;
	if (w->w.kind == WORK_CHAT || w->w.kind == WORK_LONG) {
		workload_fresh(&w->w, test_rng(&rng), TAIL, keys + (size_t)n * w->w.key_len);
		*ret_n += TAIL;
	}
	return n;
}

enum design {
	INDEX,
	LINEAR,
	AHEAD,
	N_DESIGNS
};

static double ask(struct world *w, enum design d, uint32_t n, uint32_t expect)
{
	struct radix_runs runs = { .v = run_buffer, .cap = WORK_MAX_BLOCKS };
	struct radix_place from = radix_place_root(w->root);
	struct radix_match m;
	uint32_t got = 0;
	uint64_t start = ticks();

	switch (d) {
	case INDEX:
		radix_match(w->ix, &from, keys, n, &runs, &m);
		got = m.n_blocks;
		break;
	case LINEAR:
		got = flat_match(&w->flat, keys, n, out);
		break;
	case AHEAD:
	case N_DESIGNS:
		got = flat_match_ahead(&w->flat, keys, n, out);
		break;
	}
	start = ticks() - start;
	if (got != expect)
		die("a match of the wrong length");
	return (double)start * ns_per_tick / 1000;
}

/* Medians in us of each design, cold and warm. */
static void match_medians(struct world *w, double cold[N_DESIGNS], double warm[N_DESIGNS])
{
	static double c[N_DESIGNS][SAMPLES], v[N_DESIGNS][SAMPLES];
	unsigned n_designs = w->flat.slots ? N_DESIGNS : 1;

	for (uint32_t s = 0; s < SAMPLES; s++) {
		uint32_t n, expect = random_prompt(w, &n);

		for (unsigned i = 0; i < n_designs; i++) {
			unsigned d = (s + i) % n_designs;
			double again[WARM];

			c[d][s] = ask(w, d, n, expect);
			for (unsigned j = 0; j < WARM; j++)
				again[j] = ask(w, d, n, expect);
			v[d][s] = median(again, WARM);
		}
	}
	for (unsigned d = 0; d < n_designs; d++) {
		cold[d] = median(c[d], SAMPLES);
		warm[d] = median(v[d], SAMPLES);
	}
}

/* The last TAIL blocks of a prompt, from a pinned place; cold and warm. */
static void tail_medians(struct world *w, double *ret_cold, double *ret_warm)
{
	static struct radix_pin pins[SAMPLES];
	static uint32_t prompt[SAMPLES];
	double c[SAMPLES], v[SAMPLES];

	for (uint32_t s = 0; s < SAMPLES; s++) {
		struct radix_place from = radix_place_root(w->root);
		struct radix_match m;
		uint32_t n;

		prompt[s] = test_rng_below(&rng, w->w.n_prompts);
		n = workload_prompt(&w->w, prompt[s], keys);
		radix_match(w->ix, &from, keys, n - TAIL, NULL, &m);
		radix_pin_take(w->ix, &pins[s], &m.end);
	}
	for (uint32_t s = 0; s < SAMPLES; s++) {
		uint32_t n = workload_prompt(&w->w, prompt[s], keys);
		double again[WARM + 1];

		for (unsigned j = 0; j <= WARM; j++) {
			struct radix_runs runs = { .v = run_buffer, .cap = WORK_MAX_BLOCKS };
			struct radix_match m;
			uint64_t start = ticks();

			radix_match(w->ix, &pins[s].at, keys + (size_t)(n - TAIL) * w->w.key_len,
				    TAIL, &runs, &m);
			again[j] = (double)(ticks() - start) * ns_per_tick / 1000;
			if (m.n_blocks != TAIL)
				die("a tail of the wrong length");
		}
		c[s] = again[0];
		v[s] = median(again + 1, WARM);
	}
	for (uint32_t s = 0; s < SAMPLES; s++)
		radix_pin_drop(w->ix, &pins[s]);
	*ret_cold = median(c, SAMPLES);
	*ret_warm = median(v, SAMPLES);
}

/* Match alone, and match with pin, touch and drop, on random prompts in turn. */
static void hold_medians(struct world *w, double *ret_match, double *ret_held)
{
	static double v[2][SAMPLES * 4];

	for (uint32_t s = 0; s < SAMPLES * 8; s++) {
		struct radix_runs runs = { .v = run_buffer, .cap = WORK_MAX_BLOCKS };
		struct radix_place from = radix_place_root(w->root);
		struct radix_pin pin = { 0 };
		struct radix_match m;
		uint64_t start;
		uint32_t n;

		random_prompt(w, &n);
		w->tick++;
		start = ticks();
		radix_match(w->ix, &from, keys, n, &runs, &m);
		if (s % 2) {
			radix_pin_take(w->ix, &pin, &m.end);
			radix_touch(w->ix, &pin.at, w->tick);
			radix_pin_drop(w->ix, &pin);
		}
		v[s % 2][s / 2] = (double)(ticks() - start) * ns_per_tick / 1000;
	}
	*ret_match = median(v[0], SAMPLES * 4);
	*ret_held = median(v[1], SAMPLES * 4);
}

/* ---- changing -------------------------------------------------------------------------------- */

struct change {
	double insert[2], evict[2]; /* ns per block: index, flat table */
	double table; /* of the index's insertion: writing block table entries alone */
};

static double table_ns(struct world *w, uint32_t n)
{
	struct radix_index_config config = { .alloc = &w->arena.alloc,
					     .n_slots = SPARE,
					     .n_entries = SPARE };
	struct radix_ground ground;
	struct radix_table t;
	double v[SPARE / 512];
	struct radix_entry_init init = { .root = 0, .parent = RADIX_NONE };

	if (radix_ground_init(&ground, &config))
		die("no memory for a block table");
	radix_table_init(&t, &ground);
	for (uint32_t s = 0; s < SPARE / 512; s++) {
		uint64_t start;

		workload_fresh(&w->w, test_rng(&rng), n, keys);
		start = ticks();
		for (uint32_t i = 0; i < n; i++) {
			struct radix_block b = { .key = keys + (size_t)i * w->w.key_len,
						 .slot = i };

			init.slot = i;
			init.parent = radix_table_add(&t, &init, &b, w->w.key_len);
		}
		v[s] = (double)(ticks() - start) * ns_per_tick / n;
	}
	radix_table_deinit(&t);
	radix_ground_deinit(&ground);
	return median(v, SPARE / 512);
}

/* New prompts of 512 blocks into the spare slots, then as many blocks out again, 512 at a time. */
static void change_medians(struct world *w, struct change *ret)
{
	double v[4][SPARE / 512];

	for (uint32_t s = 0; s < SPARE / 512; s++) {
		uint64_t start;

		workload_fresh(&w->w, test_rng(&rng), 512, keys);
		start = ticks();
		if (bulk_store(w->ix, w->root, keys, 512, w->w.key_len, 16, ++w->tick) != 512)
			die("a prompt was not stored");
		v[0][s] = (double)(ticks() - start) * ns_per_tick / 512;
		start = ticks();
		flat_insert(&w->flat, keys, 512);
		v[1][s] = (double)(ticks() - start) * ns_per_tick / 512;
	}
	for (uint32_t s = 0; s < SPARE / 512; s++) {
		uint64_t start = ticks();

		if (radix_evict(w->ix, 512, RADIX_REMOVE_EVICT) != 512)
			die("512 blocks were not evicted");
		v[2][s] = (double)(ticks() - start) * ns_per_tick / 512;
		start = ticks();
		flat_evict(&w->flat, 512);
		v[3][s] = (double)(ticks() - start) * ns_per_tick / 512;
	}
	ret->insert[0] = median(v[0], SPARE / 512);
	ret->insert[1] = median(v[1], SPARE / 512);
	ret->evict[0] = median(v[2], SPARE / 512);
	ret->evict[1] = median(v[3], SPARE / 512);
	ret->table = table_ns(w, 512);
}

/* ---- restarting ------------------------------------------------------------------------------ */

/*
 * Milliseconds of making the index anew of what a dead process left, the best of three; mapping it
 * comes before.
 */
static double recover_ms(enum workload_kind kind, uint32_t key_len, uint32_t n_blocks,
			 double *ret_map)
{
	double best = 1e9;
	struct kept kept;
	struct world w;

	world_init(&w, kind, key_len, n_blocks, false, &kept);
	*ret_map = best;
	for (int i = 0; i < 3; i++) {
		struct radix_recover_root root = { .root = w.root, .config = root_config(key_len) };
		struct radix_recover_config recover = { .roots = &root, .n_roots = 1 };
		struct radix_index_config config = index_config(&w);
		struct radix_recovered r;
		double start;

		w.ix = radix_index_free(w.ix);
		bench_arena_deinit(&w.arena);
		bench_arena_init(&w.arena);
		(void)munmap(kept.store.base, kept.store.len);
		start = now_ns();
		kept_map(&kept);
		*ret_map = least(*ret_map, (now_ns() - start) / 1e6);
		config.store = &kept.store;
		config.generations = kept.generations;
		start = now_ns();
		if (radix_index_recover(&w.ix, &config, &recover, &r) || r.n_taken != w.w.n_blocks)
			die("not all blocks were found again");
		best = least(best, (now_ns() - start) / 1e6);
	}
	world_deinit(&w);
	kept_deinit(&kept);
	return best;
}

static void print_recovery(uint32_t n_blocks)
{
	static const enum workload_kind kinds[] = { WORK_CHAT, WORK_COMB };
	double map;

	printf("\nrecover, ms of %u entries:", n_blocks);
	for (unsigned i = 0; i < radix_array_size(kinds); i++) {
		double tokens = recover_ms(kinds[i], TOKENS, n_blocks, &map);

		printf(" %s %.0f (mapping %.0f),", workload_name(kinds[i]), tokens, map);
	}
	printf(" chat by digests %.0f\n", recover_ms(WORK_CHAT, DIGEST, n_blocks, &map));
}

/* ---- the report ------------------------------------------------------------------------------ */

struct result {
	double cold[N_DESIGNS], warm[N_DESIGNS];
	double digest_cold, digest_warm;
	double bytes_per_block;
	double flat_bytes;
	struct change change, small; /* small: of an index of 100,000 blocks */
};

static void run_workload(enum workload_kind kind, uint32_t n_blocks, struct result *r)
{
	double cold[N_DESIGNS], warm[N_DESIGNS];
	struct radix_stats s;
	struct world w;

	world_init(&w, kind, TOKENS, n_blocks, true, NULL);
	match_medians(&w, r->cold, r->warm);
	radix_index_stats(w.ix, &s);
	r->bytes_per_block = (double)s.index_bytes / (double)s.n_blocks;
	r->flat_bytes = (double)w.flat.bytes / (double)w.w.n_blocks;
	if (kind == WORK_8K) {
		double a, b;

		tail_medians(&w, &a, &b);
		printf("tail of 20 blocks from a pinned place: %.2f cold, %.3f warm\n", a, b);
	}
	if (kind == WORK_CHAT || kind == WORK_8K) {
		double a, b;

		hold_medians(&w, &a, &b);
		printf("%s: match %.2f, with pin, touch and drop %.2f: %+.1f %%\n",
		       workload_name(kind), a, b, (b / a - 1) * 100);
	}
	change_medians(&w, &r->change);
	world_deinit(&w);
	world_init(&w, kind, DIGEST, n_blocks, false, NULL);
	match_medians(&w, cold, warm);
	r->digest_cold = cold[INDEX];
	r->digest_warm = warm[INDEX];
	world_deinit(&w);
	world_init(&w, kind, TOKENS, 100000, true, NULL);
	change_medians(&w, &r->small);
	world_deinit(&w);
}

static void print_matches(const struct result *r)
{
	printf("\nmatch, us    cold   warm | digests cold   warm"
	       " | chained table  ratio | prefetched  ratio\n");
	for (unsigned k = 0; k < WORK_N; k++)
		printf("%-8s  %7.2f %6.2f |      %7.2f %6.2f"
		       " |       %7.2f %6.1f |    %7.2f %6.1f\n",
		       workload_name(k), r[k].cold[INDEX], r[k].warm[INDEX], r[k].digest_cold,
		       r[k].digest_warm, r[k].cold[LINEAR], r[k].cold[LINEAR] / r[k].cold[INDEX],
		       r[k].cold[AHEAD], r[k].cold[AHEAD] / r[k].cold[INDEX]);
	printf("ratio: the table's cold median by the index's\n");
}

static void print_changes(const struct result *r, uint32_t n_blocks)
{
	printf("\nns per block of 512     insert                      evict\n");
	printf("blocks in it     %9u   100000   table | %9u   100000"
	       " | chained table: insert evict\n",
	       n_blocks, n_blocks);
	for (unsigned k = 0; k < WORK_N; k++)
		printf("%-8s         %9.1f %8.1f %7.1f | %9.1f %8.1f |               %7.1f %5.1f\n",
		       workload_name(k), r[k].change.insert[0], r[k].small.insert[0],
		       r[k].change.table, r[k].change.evict[0], r[k].small.evict[0],
		       r[k].change.insert[1], r[k].change.evict[1]);
	printf("insert: match, pin, reserve, commit, touch, drop;"
	       " table: its block table entries alone\n");
	printf("\nbytes per block, without token ids and block table:");
	for (unsigned k = 0; k < WORK_N; k++)
		printf(" %s %.1f", workload_name(k), r[k].bytes_per_block);
	printf("; chained table %.1f\n", r[WORK_8K].flat_bytes);
}

int main(int argc, char **argv)
{
	static struct result results[WORK_N];
	uint32_t n_blocks = 1000000;
	bool good;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--large") == 0)
			n_blocks = 10000000;
		else if (strcmp(argv[i], "--blocks") == 0 && i + 1 < argc)
			n_blocks = (uint32_t)strtoul(argv[++i], NULL, 10);
		else
			die("usage: bench_radix [--large | --blocks N]");
	}
	if (n_blocks < 20000)
		die("at least 20,000 blocks");
	keys = bench_arena_map((size_t)WORK_MAX_BLOCKS * TOKENS);
	out = bench_arena_map(WORK_MAX_BLOCKS * sizeof(*out));
	run_buffer = bench_arena_map(WORK_MAX_BLOCKS * sizeof(*run_buffer));
	if (!keys || !out || !run_buffer)
		die("no memory");
	calibrate();
	printf("%u blocks of 16 tokens (64 bytes); medians of %d interleaved samples\n", n_blocks,
	       SAMPLES);
	for (enum workload_kind k = 0; k < WORK_N; k++)
		run_workload(k, n_blocks, &results[k]);
	print_matches(results);
	print_changes(results, n_blocks);
	print_recovery(n_blocks);
	good = results[WORK_8K].cold[INDEX] <= 10;
	printf("\ngate: cold match of 512 blocks %.2f us, at most 10: %s\n",
	       results[WORK_8K].cold[INDEX], good ? "ok" : "FAILED");
	return good ? 0 : 1;
}
