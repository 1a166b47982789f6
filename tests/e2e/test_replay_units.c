/*
 * test_replay_units.c - the parts of prefixd-replay that need no daemon: block contents, reading
 * traces, the exact LRU against its naive definition, workloads, options, percentiles.
 */
#include "clients/replay/characteristics.h"
#include "clients/replay/compose.h"
#include "clients/replay/content.h"
#include "clients/replay/lru.h"
#include "clients/replay/options.h"
#include "clients/replay/run.h"
#include "clients/replay/util.h"
#include "clients/replay/workload.h"
#include "tests/e2e/naive_lru.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

/* ---- content --------------------------------------------------------------------------------- */

START_TEST(content_of_any_length_compares_equal)
{
	uint8_t block[300];

	for (size_t len = 0; len <= sizeof(block); len++) {
		memset(block, 0, sizeof(block));
		replay_content_fill(block, len, 7 * len);
		ck_assert_uint_eq(replay_content_check(block, len, 7 * len), len);
		for (size_t i = len; i < sizeof(block); i++)
			ck_assert_uint_eq(block[i], 0); /* nothing behind the end */
	}
}
END_TEST

START_TEST(content_of_any_prefix_is_the_same)
{
	uint8_t whole[4096], part[4096];

	replay_content_fill(whole, sizeof(whole), 42);
	for (size_t len = 1; len < 200; len++) {
		replay_content_fill(part, len, 42);
		ck_assert_int_eq(memcmp(whole, part, len), 0);
	}
}
END_TEST

START_TEST(content_shows_each_flipped_bit)
{
	uint8_t block[517];

	replay_content_fill(block, sizeof(block), 99);
	for (size_t bit = 0; bit < 8 * sizeof(block); bit++) {
		block[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		ck_assert_uint_eq(replay_content_check(block, sizeof(block), 99), bit / 64 * 8);
		block[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
}
END_TEST

START_TEST(content_of_two_paths_differs_in_each_word)
{
	uint64_t a[512], b[512];
	struct replay_rng rng = { 5 };

	for (int round = 0; round < 200; round++) {
		uint64_t path = replay_rng_next(&rng);

		replay_content_fill(a, sizeof(a), path);
		replay_content_fill(b, sizeof(b), path ^ (1ull << (round % 64)));
		for (size_t i = 0; i < replay_array_size(a); i++)
			ck_assert(a[i] != b[i]);
	}
}
END_TEST

START_TEST(path_depends_on_namespace_root_and_each_key)
{
	uint8_t digest[32] = { 1 }, other[32] = { 2 }, root[16] = { 3 }, tenant[16] = { 4 };
	uint64_t top = replay_path_root(digest, root);
	uint64_t ab = replay_path_step(replay_path_step(top, "a", 1), "b", 1);

	ck_assert(top != replay_path_root(other, root));
	ck_assert(top != replay_path_root(digest, tenant));
	ck_assert(ab != replay_path_step(replay_path_step(top, "b", 1), "a", 1));
	ck_assert(ab != replay_path_step(top, "b", 1));
	ck_assert(ab == replay_path_step(replay_path_step(replay_path_root(digest, root), "a", 1),
					 "b", 1));
}
END_TEST

/* ---- traces ---------------------------------------------------------------------------------- */

static char path[64];

static void write_file(const void *bytes, size_t len)
{
	FILE *file;

	(void)snprintf(path, sizeof(path), P_tmpdir "/prefixd-replay-test.%d.jsonl", (int)getpid());
	file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(bytes, 1, len, file), len);
	ck_assert_int_eq(fclose(file), 0);
}

static int load(const char *text, uint32_t block_tokens, size_t limit, struct replay_trace **ret)
{
	int r;

	write_file(text, strlen(text));
	r = replay_trace_load(path, block_tokens, limit, ret);
	unlink(path);
	return r;
}

static const char three[] =
	"{\"timestamp\": 27, \"input_length\": 1100, \"output_length\": 5, "
	"\"hash_ids\": [0, 1, 2]}\n"
	"{\"timestamp\": 30, \"session\": 9, \"input_length\": 1025, \"output_length\": 6, "
	"\"hash_ids\":[0,1,30000000000]}\n"
	"{\"input_length\":10,\"hash_ids\":[]}";

static void check_three(const struct replay_trace *t)
{
	ck_assert_uint_eq(t->n_requests, 3);
	ck_assert_uint_eq(t->n_refs, 6);
	ck_assert_uint_eq(t->n_blocks, 4);
	ck_assert_uint_eq(t->n_conflicts, 0);
	ck_assert_uint_eq(t->requests[0].time_us, 27000);
	ck_assert_uint_eq(t->requests[0].input_tokens, 1100);
	ck_assert_uint_eq(t->requests[1].session, 9);
	ck_assert_uint_eq(t->requests[1].output_tokens, 6);
	ck_assert_uint_eq(t->requests[2].n_blocks, 0);
	ck_assert_uint_eq(t->blocks[3], 0);
	ck_assert_uint_eq(t->blocks[5], 3);
	ck_assert_uint_eq(t->names[3], 30000000000u);
	ck_assert_uint_eq(t->parents[0], REPLAY_NO_BLOCK);
	ck_assert_uint_eq(t->parents[3], 1);
	ck_assert_uint_eq(t->depths[3], 3);
	/* The last block is a partial one: it counts for the rest of the prompt only. */
	ck_assert_uint_eq(replay_trace_covered(t, &t->requests[0], 3), 1100);
	ck_assert_uint_eq(replay_trace_covered(t, &t->requests[0], 2), 1024);
}

START_TEST(trace_plain)
{
	struct replay_trace *t;

	ck_assert_int_eq(load(three, 512, 0, &t), 0);
	check_three(t);
	replay_trace_free(t);
}
END_TEST

START_TEST(trace_zstd)
{
	struct replay_trace *t;
	char packed[1024];
	size_t n = ZSTD_compress(packed, sizeof(packed), three, sizeof(three) - 1, 3);

	ck_assert(!ZSTD_isError(n));
	write_file(packed, n);
	ck_assert_int_eq(replay_trace_load(path, 512, 0, &t), 0);
	check_three(t);
	replay_trace_free(t);
	write_file(packed, n - 5); /* cut off */
	ck_assert_int_lt(replay_trace_load(path, 512, 0, &t), 0);
	unlink(path);
}
END_TEST

/* Forms that the scanner leaves to jansson give the same trace. */
START_TEST(trace_other_json)
{
	static const char odd[] =
		"{\"timestamp\": 27.4, \"input_length\": 1.1e3, \"output_length\": 5, "
		"\"x\": {\"y\": [1]}, "
		"\"hash_ids\": [0, 1, 2]}\n\n"
		" {\"name\": \"a \\\" ] b\", \"timestamp\": 30, \"session\": 9, "
		"\"input_length\": 1025, "
		"\"output_length\": 6, \"hash_ids\" : [ 0 , 1 , 30000000000 ] } \r\n"
		"{\"input_length\":10,\"hash_ids\":[], \"extra\": null}\n";
	struct replay_trace *t;

	ck_assert_int_eq(load(odd, 512, 0, &t), 0);
	check_three(t);
	replay_trace_free(t);
}
END_TEST

START_TEST(trace_tokens)
{
	static const char text[] =
		"{\"input_toks\": 5, \"output_toks\": 2, \"arrival_time_ns\": 46926808, "
		"\"input_tok_ids\": [5, 6, 7, 8, 9], \"output_tok_ids\": [1, 2]}\n"
		"{\"input_toks\": 4, \"input_tok_ids\": [5, 6, 7, 9]}\n"
		"{\"input_toks\": 4, \"input_tok_ids\": [7, 8, 5, 6]}\n";
	struct replay_trace *t;

	ck_assert_int_eq(load(text, 2, 0, &t), 0);
	ck_assert(t->has_tokens);
	ck_assert_uint_eq(t->n_tokens, 13);
	ck_assert_uint_eq(t->requests[0].time_us, 46926);
	ck_assert_uint_eq(t->requests[0].n_blocks, 2); /* the fifth token is below a block */
	ck_assert_uint_eq(t->requests[1].first_token, 5);
	ck_assert_uint_eq(t->blocks[2], t->blocks[0]);
	ck_assert_uint_ne(t->blocks[3], t->blocks[1]);
	/* The same tokens behind another prefix are another block. */
	ck_assert_uint_eq(t->n_blocks, 5);
	replay_trace_free(t);
}
END_TEST

START_TEST(trace_limit)
{
	struct replay_trace *t;

	ck_assert_int_eq(load(three, 512, 2, &t), 0);
	ck_assert_uint_eq(t->n_requests, 2);
	replay_trace_free(t);
}
END_TEST

START_TEST(trace_id_under_two_parents)
{
	struct replay_trace *t;

	ck_assert_int_eq(load("{\"input_length\": 3, \"hash_ids\": [1, 2, 3]}\n"
			      "{\"input_length\": 2, \"hash_ids\": [2, 3]}\n",
			      1, 0, &t),
			 0);
	ck_assert_uint_eq(t->n_conflicts, 1);
	replay_trace_free(t);
}
END_TEST

static const char *const wrong_lines[] = {
	"",
	"\n\n",
	"not json\n",
	"[1]\n",
	"{\"input_length\": 5\n",
	"{\"hash_ids\": [1]}\n",
	"{\"input_length\": 0, \"hash_ids\": []}\n",
	"{\"input_length\": -1, \"hash_ids\": []}\n",
	"{\"input_length\": \"5\", \"hash_ids\": [1]}\n",
	"{\"input_length\": 5, \"hash_ids\": [-1]}\n",
	"{\"input_length\": 5, \"hash_ids\": [1.5]}\n",
	"{\"input_length\": 5, \"hash_ids\": 1.5}\n",
	"{\"input_length\": 512, \"hash_ids\": [1, 2]}\n",
	"{\"input_length\": 5, \"hash_ids\": [1], \"input_tok_ids\": [1]}\n",
	"{\"input_length\": 5, \"hash_ids\": [1,]} trailing\n",
};

START_TEST(trace_wrong_line)
{
	struct replay_trace *t = NULL;

	ck_assert_int_lt(load(wrong_lines[_i], 512, 0, &t), 0);
	ck_assert_ptr_null(t);
}
END_TEST

START_TEST(trace_no_file)
{
	struct replay_trace *t = NULL;

	ck_assert_int_lt(replay_trace_load("/nonexistent/trace", 512, 0, &t), 0);
}
END_TEST

/* ---- exact LRU ------------------------------------------------------------------------------- */

static struct replay_trace *random_trace(uint64_t seed)
{
	struct replay_rng rng = { seed };
	struct replay_trace *t = replay_trace_new("random", 4);

	for (int i = 0; i < 120; i++) {
		struct replay_request *r = replay_trace_begin(t);
		uint32_t n = replay_rng_below(&rng, 9);
		uint64_t name = 0;

		for (uint32_t k = 0; k < n; k++) {
			name = name * 4 + replay_rng_below(&rng, k < 3 ? 2 : 3) + 1;
			replay_trace_add_block(t, name);
		}
		r->input_tokens = 4 * n + replay_rng_below(&rng, 4) + 1;
		if (n && replay_rng_below(&rng, 2)) /* a partial last block */
			r->input_tokens = 4 * n - replay_rng_below(&rng, 4);
	}
	return t;
}

START_TEST(lru_equals_its_definition)
{
	struct replay_trace *t = random_trace((uint64_t)_i + 1);
	uint32_t *want = replay_alloc(t->n_requests, sizeof(*want));
	uint32_t *got = replay_alloc(t->n_requests, sizeof(*got));

	for (uint64_t capacity = 1; capacity < t->n_blocks + 2ul; capacity += 1 + capacity / 4) {
		struct replay_lru_result result;
		uint64_t tokens = naive_lru_run(t, capacity, want);

		replay_lru_run(t, capacity, got, &result);
		ck_assert_mem_eq(want, got, t->n_requests * sizeof(*want));
		ck_assert_uint_eq(result.hit_tokens, tokens);
		ck_assert_uint_le(result.stored_blocks - result.evicted_blocks, capacity);
	}
	free(want);
	free(got);
	replay_trace_free(t);
}
END_TEST

START_TEST(lru_by_hand)
{
	static const char text[] = "{\"input_length\": 3, \"hash_ids\": [1, 2, 3]}\n"
				   "{\"input_length\": 2, \"hash_ids\": [4, 5]}\n"
				   "{\"input_length\": 3, \"hash_ids\": [1, 2, 3]}\n"
				   "{\"input_length\": 2, \"hash_ids\": [4, 5]}\n"
				   "{\"input_length\": 9, \"hash_ids\": [6, 7, 8, 9, 10, 11]}\n"
				   "{\"input_length\": 9, \"hash_ids\": [6, 7, 8, 9, 10, 11]}\n";
	static const uint32_t want[] = { 0, 0, 2, 1, 0, 4 };
	struct replay_lru_result result;
	struct replay_trace *t;
	uint32_t hits[6];

	ck_assert_int_eq(load(text, 1, 0, &t), 0);
	/* Four slots: 4 5 push out 3; 3 pushes out 5; 5 pushes out 3; the last two are cut. */
	replay_lru_run(t, 4, hits, &result);
	for (size_t i = 0; i < replay_array_size(want); i++)
		ck_assert_uint_eq(hits[i], want[i]);
	ck_assert_uint_eq(result.hit_tokens, 7);
	ck_assert_uint_eq(result.hit_requests, 3);
	replay_lru_run(t, 0, hits, &result);
	ck_assert_uint_eq(result.hit_tokens, 3 + 2 + 6);
	replay_trace_free(t);
}
END_TEST

/* ---- workloads ------------------------------------------------------------------------------- */

START_TEST(workload_follows_its_seed)
{
	struct replay_trace *a = replay_workload_new((enum replay_workload)_i, 3, 400, 64);
	struct replay_trace *b = replay_workload_new((enum replay_workload)_i, 3, 400, 64);
	struct replay_trace *c = replay_workload_new((enum replay_workload)_i, 4, 400, 64);

	ck_assert_uint_eq(a->n_requests, 400);
	ck_assert_uint_eq(a->n_refs, b->n_refs);
	ck_assert_mem_eq(a->blocks, b->blocks, a->n_refs * sizeof(*a->blocks));
	ck_assert_mem_eq(a->names, b->names, a->n_blocks * sizeof(*a->names));
	ck_assert(c->n_refs != a->n_refs);
	ck_assert_uint_eq(a->n_conflicts, 0);
	for (size_t i = 0; i < a->n_requests; i++) {
		const struct replay_request *r = &a->requests[i];

		ck_assert_uint_eq(r->first_block, b->requests[i].first_block);
		ck_assert_uint_eq(r->time_us, b->requests[i].time_us);
		ck_assert_uint_eq(r->input_tokens, b->requests[i].input_tokens);
		ck_assert_uint_eq(r->output_tokens, b->requests[i].output_tokens);
		ck_assert_uint_eq(r->session, b->requests[i].session);
		ck_assert_uint_gt(r->input_tokens, 0);
		ck_assert_uint_le(r->n_blocks, (r->input_tokens - 1) / 64 + 1);
		ck_assert(i == 0 || r->time_us >= a->requests[i - 1].time_us);
	}
	/* A shorter workload is the beginning of a longer one. */
	replay_trace_free(b);
	b = replay_workload_new((enum replay_workload)_i, 3, 250, 64);
	ck_assert_mem_eq(a->blocks, b->blocks, b->n_refs * sizeof(*b->blocks));
	ck_assert_uint_eq(a->requests[250].first_block, b->n_refs);
	replay_trace_free(a);
	replay_trace_free(b);
	replay_trace_free(c);
}
END_TEST

/* Bands around the recorded trace that the README lays beside each kind. */
static const struct {
	enum replay_workload kind;
	uint32_t block_tokens;
	double refs_per_request, sharing, unbounded;
} shapes[] = {
	{ REPLAY_WORKLOAD_CHAT, 512, 288500 / 12031.0, 1.58, 0.374 },
	{ REPLAY_WORKLOAD_RAG, 512, 121877 / 3993.0, 2.77, 0.651 },
	{ REPLAY_WORKLOAD_AGENT, 256, 21184272 / 45978.0, 27.86, 0.963 },
};

START_TEST(workload_has_the_shape_of_a_recorded_trace)
{
	struct replay_trace *t = replay_workload_new(shapes[_i].kind, 1, 0,
						     shapes[_i].block_tokens);
	double refs = (double)t->n_refs / (double)t->n_requests;
	double sharing = (double)t->n_refs / t->n_blocks;
	struct replay_lru_result inf;

	replay_lru_run(t, 0, NULL, &inf);
	ck_assert_double_ge(refs, shapes[_i].refs_per_request * 0.75);
	ck_assert_double_le(refs, shapes[_i].refs_per_request * 1.33);
	ck_assert_double_ge(sharing, shapes[_i].sharing * 0.75);
	ck_assert_double_le(sharing, shapes[_i].sharing * 1.33);
	ck_assert_double_eq_tol((double)inf.hit_tokens / (double)inf.queried_tokens,
				shapes[_i].unbounded, 0.08);
	replay_trace_free(t);
}
END_TEST

START_TEST(prompt_pieces_share_what_is_equal)
{
	struct replay_trace *t = replay_trace_new("pieces", 10);
	struct replay_prompt a = { 0 }, b = { 0 };

	replay_prompt_add(&a, 1, 15);
	replay_prompt_add(&a, 2, 15);
	replay_prompt_copy(&b, &a);
	replay_prompt_cut(&b, 19);
	replay_prompt_add(&b, 3, 12);
	replay_prompt_emit(&a, t, true);  /* 3 full blocks */
	replay_prompt_emit(&b, t, true);  /* shares one; 3 full ones and one of a single token */
	replay_prompt_emit(&b, t, false); /* the single token has no name here */
	ck_assert_uint_eq(t->requests[0].n_blocks, 3);
	ck_assert_uint_eq(t->requests[1].n_blocks, 4);
	ck_assert_uint_eq(t->requests[2].n_blocks, 3);
	ck_assert_uint_eq(t->requests[1].input_tokens, 31);
	ck_assert_uint_eq(t->blocks[0], t->blocks[3]);
	ck_assert_uint_ne(t->blocks[1], t->blocks[4]);
	ck_assert_uint_eq(t->blocks[5], t->blocks[9]);
	replay_prompt_deinit(&a);
	replay_prompt_deinit(&b);
	replay_trace_free(t);
}
END_TEST

/* ---- options --------------------------------------------------------------------------------- */

static int parse(struct replay_options *o, const char *line)
{
	static char words[512];
	char *argv[32] = { words };
	int argc = 1;
	char *save;

	(void)snprintf(words, sizeof(words), "prefixd-replay %s", line);
	for (char *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
		argv[argc++ - 1] = word;
	replay_options_init(o);
	return replay_options_parse(o, argc - 1, argv);
}

START_TEST(options_command_line)
{
	struct replay_options o;

	ck_assert_int_eq(parse(&o,
			       "--socket /s --workload=rag --seed 7 --workers=4 --order concurrent "
			       "--key-mode tokens --block-bytes 8192 --json -"),
			 0);
	ck_assert_str_eq(o.socket, "/s");
	ck_assert_str_eq(o.workload, "rag");
	ck_assert_uint_eq(o.seed, 7);
	ck_assert_uint_eq(o.workers, 4);
	ck_assert_uint_eq(o.order, REPLAY_ORDER_CONCURRENT);
	ck_assert_uint_eq(o.key_mode, REPLAY_KEYS_TOKENS);
	ck_assert_uint_eq(o.block_bytes, 8192);
	ck_assert_uint_eq(o.block_tokens, 512);
	ck_assert_uint_eq(o.verify, REPLAY_VERIFY_ALL);
	replay_options_deinit(&o);
}
END_TEST

START_TEST(options_file_yields_to_command_line)
{
	static const char text[] = "workload = chat\n[replay]\nworkers = 3\nseed = 9\n"
				   "characteristics = true\ncapacity = 5,60\n";
	char line[128];
	struct replay_options o;

	write_file(text, sizeof(text) - 1);
	(void)snprintf(line, sizeof(line), "--seed 2 --config %s", path);
	ck_assert_int_eq(parse(&o, line), 0);
	unlink(path);
	ck_assert_str_eq(o.workload, "chat");
	ck_assert_uint_eq(o.workers, 3);
	ck_assert_uint_eq(o.seed, 2);
	ck_assert(o.characteristics);
	ck_assert_uint_eq(o.n_capacities, 2);
	ck_assert_uint_eq(o.capacities[1], 60);
	replay_options_deinit(&o);
}
END_TEST

static const char *const wrong_options[] = {
	"",
	"--workload chat --trace x",
	"--workload chess",
	"--workload chat --workers 0",
	"--workload chat --workers 65",
	"--workload chat --workers 1x",
	"--workload chat --workers -1",
	"--workload chat --block-tokens 0",
	"--workload chat --order sideways",
	"--workload chat --order",
	"--workload chat --wokers 2",
	"--trace x --requests 5",
	"--workload chat --capacity 5",
	"--workload chat --characteristics --capacity 5,,6",
	"--workload chat --characteristics=perhaps",
	"--workload chat extra",
	"--workload chat --config /nonexistent/file",
};

START_TEST(options_wrong)
{
	struct replay_options o;

	ck_assert_int_lt(parse(&o, wrong_options[_i]), 0);
	replay_options_deinit(&o);
}
END_TEST

static const char *const wrong_files[] = {
	"wokers = 2\n",     "workers = many\n", "[daemon]\nworkers = 2\n",
	"config = other\n", "just words\n",
};

START_TEST(options_wrong_file)
{
	char line[128];
	struct replay_options o;

	write_file(wrong_files[_i], strlen(wrong_files[_i]));
	(void)snprintf(line, sizeof(line), "--workload chat --config %s", path);
	ck_assert_int_lt(parse(&o, line), 0);
	unlink(path);
	replay_options_deinit(&o);
}
END_TEST

/* ---- percentiles ----------------------------------------------------------------------------- */

START_TEST(latency_is_within_two_percent)
{
	static struct replay_latency all, half;
	double p50, p99;

	for (uint64_t i = 1; i <= 100000; i++)
		replay_latency_add(i % 2 ? &all : &half, i * 37);
	replay_latency_merge(&all, &half);
	ck_assert_uint_eq(all.n, 100000);
	p50 = replay_latency_at(&all, 0.50);
	p99 = replay_latency_at(&all, 0.99);
	ck_assert_double_eq_tol(p50, 50000 * 37e-3, 0.016 * p50);
	ck_assert_double_eq_tol(p99, 99000 * 37e-3, 0.016 * p99);
	replay_latency_add(&all, UINT64_MAX); /* longer than any bucket: kept in the last one */
	ck_assert_double_gt(replay_latency_at(&all, 1.0), 1e9);
}
END_TEST

START_TEST(latency_of_nothing_is_zero)
{
	static struct replay_latency none;

	ck_assert_double_eq(replay_latency_at(&none, 0.99), 0.0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("replay-units");
	TCase *t = tcase_create("all");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, content_of_any_length_compares_equal);
	tcase_add_test(t, content_of_any_prefix_is_the_same);
	tcase_add_test(t, content_shows_each_flipped_bit);
	tcase_add_test(t, content_of_two_paths_differs_in_each_word);
	tcase_add_test(t, path_depends_on_namespace_root_and_each_key);
	tcase_add_test(t, trace_plain);
	tcase_add_test(t, trace_zstd);
	tcase_add_test(t, trace_other_json);
	tcase_add_test(t, trace_tokens);
	tcase_add_test(t, trace_limit);
	tcase_add_test(t, trace_id_under_two_parents);
	tcase_add_loop_test(t, trace_wrong_line, 0, (int)replay_array_size(wrong_lines));
	tcase_add_test(t, trace_no_file);
	tcase_add_loop_test(t, lru_equals_its_definition, 0, 20);
	tcase_add_test(t, lru_by_hand);
	tcase_add_loop_test(t, workload_follows_its_seed, 0, 3);
	tcase_add_loop_test(t, workload_has_the_shape_of_a_recorded_trace, 0,
			    (int)replay_array_size(shapes));
	tcase_add_test(t, prompt_pieces_share_what_is_equal);
	tcase_add_test(t, options_command_line);
	tcase_add_test(t, options_file_yields_to_command_line);
	tcase_add_loop_test(t, options_wrong, 0, (int)replay_array_size(wrong_options));
	tcase_add_loop_test(t, options_wrong_file, 0, (int)replay_array_size(wrong_files));
	tcase_add_test(t, latency_is_within_two_percent);
	tcase_add_test(t, latency_of_nothing_is_zero);
	suite_add_tcase(suite, t);
	return test_run(suite);
}
