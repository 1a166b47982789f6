/*
 * test_cache.c - two workers of a real daemon: what one computes the other does not compute again.
 *
 * Answers are compared with those of a control that knows no daemon and computes in the same
 * batches.
 */
#include "clients/llama/cache.h"

#include "tests/lib/run.h"
#include "tests/llama/worker.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const char *const large[] = { "--pool-blocks", "512", NULL };
static const char *const tiers[] = { "--pool-blocks", "32", "--host-blocks", "512", NULL };

/* ---- sharing --------------------------------------------------------------------------------- */

START_TEST(one_stores_another_hits)
{
	struct worker a, b;
	struct kit_answer first, second, third;
	struct worker_cuts turns = { 0 };
	int32_t tokens[N + STEPS + 40];
	uint32_t n = N + STEPS + 40, hit;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 2048);
	kit_prompt(worker_model, 1, tokens, n);
	ck_assert_uint_eq(worker_request(&a, tokens, N, &first), 0);
	worker_expect_plain(tokens, N, 0, &first);
	/* The same prompt: all but the block with the last token. */
	hit = worker_request(&b, tokens, N, &second);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	worker_expect_plain(tokens, N, hit, &second);
	/* The conversation goes on: the answer's blocks are there as well. */
	memcpy(tokens + N, first.tokens, STEPS * sizeof(*tokens));
	hit = worker_request(&b, tokens, n, &third);
	ck_assert_uint_eq(hit, (N + STEPS - 1) / BLOCK * BLOCK);
	worker_cut(&turns, 0, N - 1,
		   CHUNK); /* the first turn's prompt, its answer one by one, the rest */
	worker_cut(&turns, N - 1, hit, 1);
	worker_cut(&turns, hit, n - 1, CHUNK);
	worker_expect(tokens, tokens, n, hit, &turns, &third);
	ck_assert_uint_eq(worker_counters(&b).failures, 0);
	ck_assert_uint_eq(worker_counters(&b).prompt_tokens, N + n);
	ck_assert_uint_eq(worker_counters(&a).stored_blocks, (N + STEPS - 1) / BLOCK);
	worker_expect_clean();
	kit_answer_free(&first);
	kit_answer_free(&second);
	kit_answer_free(&third);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(what_is_common_hits)
{
	struct worker a, b;
	int32_t tokens[N], mine[N];
	struct worker_cuts cuts;
	struct kit_answer got;
	uint32_t hit;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	ck_assert_uint_eq(worker_request(&a, tokens, N, NULL), 0);
	for (uint32_t common = 0; common <= 100; common += 50) {
		kit_prompt(worker_model, 100 + common, mine, N);
		memcpy(mine, tokens, common * sizeof(*mine));
		if (mine[common] == tokens[common])
			mine[common] ^= 1;
		hit = worker_request(&b, mine, N, &got);
		ck_assert_uint_eq(hit, common / BLOCK * BLOCK);
		cuts.n = 0;
		worker_cut(&cuts, 0, (hit + CHUNK - 1) / CHUNK * CHUNK, CHUNK);
		worker_cut(&cuts, hit, N - 1, CHUNK);
		worker_expect(tokens, mine, N, hit, &cuts, &got);
		kit_answer_free(&got);
	}
	/* Shorter than what is stored, at the edge of a block, and shorter than a block. */
	ck_assert_uint_eq(worker_request(&b, tokens, 2 * BLOCK, NULL), BLOCK);
	ck_assert_uint_eq(worker_request(&b, tokens, 2 * BLOCK + 1, NULL), 2 * BLOCK);
	ck_assert_uint_eq(worker_request(&b, tokens, 5, NULL), 0);
	ck_assert_uint_eq(worker_counters(&b).failures, 0);
	worker_expect_clean();
	worker_free(&a);
	worker_free(&b);
}
END_TEST

/* What case `i` changes; case 0 nothing. */
struct variant {
	const char *model;
	struct kit_context how;
	struct cache_options options;
	uint32_t block_tokens;
};
#define N_VARIANTS 13

static void variant(struct variant *v, int i, char digest[4][33], char *engine)
{
	*v = (struct variant){
		.model = "gqa",
		.how = { .n_ctx = 1024, .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16 },
		.options = worker_usual,
		.block_tokens = BLOCK,
	};
	v->options.revision = digest[0];
	engine[70] = 'e';
	switch (i) {
	case 1:
	case 2:
		v->model = i == 1 ? "other" : "rope";
		v->options.revision = digest[i];
		break;
	case 3:
		v->how.type_k = v->how.type_v = GGML_TYPE_F32;
		break;
	case 4:
		v->how.type_k = v->how.type_v = GGML_TYPE_Q8_0;
		break;
	case 5:
		v->how.type_v = GGML_TYPE_Q8_0;
		break;
	case 6:
		v->options.adapter = "lora 1.0";
		break;
	case 7:
		v->options.engine = engine; /* longer than the protocol's field */
		break;
	case 8:
		engine[70] = 'f';
		v->options.engine = engine;
		break;
	case 9:
		v->block_tokens = 2 * BLOCK;
		break;
	case 10:
		v->options.model = "another name";
		break;
	case 11:
	case 12: /* the same file and tokens; how positions turn depends on the context's length */
		v->model = "longrope";
		v->options.revision = digest[3];
		v->how.n_ctx = i == 11 ? 1024 : 2048;
		break;
	default:
		break;
	}
}

/* Everything that must agree: with all equal there is a hit, with one of them different none. */
START_TEST(nothing_is_shared_by_mistake)
{
	static const char *const models[] = { "gqa", "other", "rope", "longrope" };
	char digest[4][33], path[512], engine[80];
	int32_t tokens[N];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", worker_daemon.dir, 1), 0);
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(
			cache_digest_file(kit_model_path(models[i], path, sizeof(path)), digest[i]),
			0);
	memset(engine, 'e', sizeof(engine) - 1);
	engine[sizeof(engine) - 1] = 0;
	worker_start(large);
	kit_prompt(worker_model, 1, tokens, N);
	/* Twice round: what is stored in the first is found in the second, and nothing else was. */
	for (int k = 0; k < 2 * N_VARIANTS; k++) {
		struct llama_model *m;
		struct variant v;
		struct worker w;
		uint32_t hit;

		variant(&v, k % N_VARIANTS, digest, engine);
		m = kit_model(v.model);
		worker_with(&w, m, &v.how, &v.options, v.block_tokens);
		hit = worker_request(&w, tokens, N, NULL);
		ck_assert_msg(
			hit == (k < N_VARIANTS ? 0 : (N - 1) / v.block_tokens * v.block_tokens),
			"case %d: %u", k, hit);
		ck_assert_msg(!worker_counters(&w).failures, "case %d: %s", k,
			      cache_problem(w.cache));
		worker_free(&w);
		llama_model_free(m);
	}
}
END_TEST

START_TEST(salts_are_kept_apart)
{
	static const char *const salts[] = { "", "red", "blue" };
	struct cache_request *q;
	int32_t tokens[N];
	struct worker w;
	uint32_t hit;
	char lengthy[300] = { 0 };

	worker_start(large);
	worker_new(&w, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	for (uint32_t round = 0; round < 2; round++) {
		for (size_t i = 0; i < 3; i++) {
			ck_assert_int_eq(cache_begin(w.cache, w.ctx, tokens, N, salts[i],
						     strlen(salts[i]), &q, &hit),
					 0);
			ck_assert_uint_eq(hit, round ? (N - 1) / BLOCK * BLOCK : 0);
			worker_prefill(&w, q, tokens, hit, N);
			cache_end(q);
			worker_empty(&w);
		}
	}
	/* One that the protocol has no room for shares nothing. */
	for (uint32_t round = 0; round < 2; round++) {
		ck_assert_int_eq(
			cache_begin(w.cache, w.ctx, tokens, N, lengthy, sizeof(lengthy), &q, &hit),
			0);
		ck_assert_uint_eq(hit, 0);
		worker_prefill(&w, q, tokens, hit, N);
		cache_end(q);
		worker_empty(&w);
	}
	worker_free(&w);
}
END_TEST

/* ---- waiting --------------------------------------------------------------------------------- */

/* Of two who ask at once one computes, and it does not matter whether they are one process. */
static void expect_wait(struct worker *a, struct worker *b)
{
	struct cache_request *p, *q;
	int32_t tokens[N];
	uint32_t hit, polls = 0;
	int r;

	kit_prompt(worker_model, 1, tokens, N);
	p = worker_begin(a, tokens, N, &hit);
	ck_assert_uint_eq(hit, 0);
	ck_assert_int_eq(cache_begin(b->cache, b->ctx, tokens, N, NULL, 0, &q, &hit), CACHE_LATER);
	ck_assert_int_eq(cache_poll(q, 0, &hit), CACHE_LATER);
	for (uint32_t at = 0; at < N; at += CHUNK) {
		uint32_t end = N - at < CHUNK ? N : at + CHUNK;

		ck_assert_int_eq(cache_poll(q, 0, &hit), CACHE_LATER);
		kit_prefill(a->ctx, tokens, at, end, CHUNK, 0);
		cache_computed(p, NULL, 0, end);
	}
	do {
		r = cache_poll(q, 20, &hit);
	} while (r == CACHE_LATER && polls++ < 100);
	ck_assert_int_eq(r, 0);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	ck_assert_uint_eq(worker_counters(b).waited, 1);
	worker_prefill(b, q, tokens, hit, N);
	cache_end(p);
	cache_end(q);
	worker_empty(a);
	worker_empty(b);
	ck_assert_uint_eq(worker_counters(b).failures, 0);
	worker_expect_clean();
}

START_TEST(another_workers_blocks_are_waited_for)
{
	struct worker a, b;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	expect_wait(&a, &b);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(another_slots_blocks_are_waited_for)
{
	struct worker a, b;

	worker_start(large);
	worker_new(&a, 1024);
	b = a;
	b.ctx = kit_context(worker_model, &(struct kit_context){ .n_ctx = 1024,
								 .type_k = GGML_TYPE_F16,
								 .type_v = GGML_TYPE_F16 });
	expect_wait(&a, &b);
	llama_free(b.ctx);
	worker_free(&a);
}
END_TEST

/* Who is told CACHE_LATER and decodes all the same computes everything, and stores it. */
START_TEST(nobody_has_to_wait)
{
	struct worker a, b;
	struct cache_request *p, *q;
	int32_t tokens[N];
	uint32_t hit;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	p = worker_begin(&a, tokens, N, &hit);
	worker_prefill(&a, p, tokens, 0, 128);
	ck_assert_int_eq(cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &q, &hit), CACHE_LATER);
	ck_assert_uint_eq(hit, 0);
	worker_prefill(&b, q, tokens, 0, N);
	ck_assert_uint_eq(worker_counters(&b).stored_blocks, (N - 128) / BLOCK);
	ck_assert_uint_eq(worker_counters(&b).failures, 0);
	cache_end(p);
	cache_end(q);
	worker_expect_clean();
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(a_leader_that_ends_keeps_nobody)
{
	struct worker a, b;
	struct cache_request *p, *q;
	struct cache_options hasty = worker_usual;
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	int32_t tokens[N];
	uint32_t hit;
	unsigned long since;

	worker_start(large);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	/* It ends without having computed: the other is told at once. */
	p = worker_begin(&a, tokens, N, &hit);
	ck_assert_int_eq(cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &q, &hit), CACHE_LATER);
	cache_end(p);
	since = e2e_now_ms();
	ck_assert_int_eq(cache_poll(q, 1000, &hit), 0);
	ck_assert_uint_lt(e2e_now_ms() - since, 500);
	ck_assert_uint_eq(hit, 0);
	cache_end(q);
	worker_free(&b);
	/* It goes on for ever: the other's patience ends. */
	hasty.wait_ms = 300;
	worker_with(&b, worker_model, &how, &hasty, BLOCK);
	p = worker_begin(&a, tokens, N, &hit);
	since = e2e_now_ms();
	q = worker_begin(&b, tokens, N, &hit);
	ck_assert_uint_eq(hit, 0);
	ck_assert_uint_ge(e2e_now_ms() - since, 290);
	ck_assert_uint_lt(e2e_now_ms() - since, 1500);
	/* Both compute; what comes second is a duplicate. */
	worker_prefill(&a, p, tokens, 0, N);
	worker_prefill(&b, q, tokens, 0, N);
	ck_assert_uint_eq(worker_counters(&b).stored_blocks + worker_counters(&b).duplicate_blocks,
			  N / BLOCK);
	cache_end(p);
	cache_end(q);
	ck_assert_uint_eq(worker_counters(&a).failures + worker_counters(&b).failures, 0);
	worker_expect_clean();
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(blocks_come_up_from_below)
{
	struct worker a, b;
	int32_t tokens[N], others[N];
	struct kit_answer got;
	uint32_t hit;

	worker_start(tiers);
	worker_new(&a, 1024);
	worker_new(&b, 1024);
	kit_prompt(worker_model, 1, tokens, N);
	kit_prompt(worker_model, 2, others, N);
	ck_assert_uint_eq(worker_request(&a, tokens, N, NULL), 0);
	ck_assert_uint_eq(worker_request(&a, others, N, NULL), 0); /* 25 of the 32 slots */
	hit = worker_request(&b, tokens, N, &got);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	worker_expect_plain(tokens, N, hit, &got);
	ck_assert_uint_eq(worker_counters(&b).waited, 1);
	ck_assert_uint_eq(worker_counters(&b).failures, 0);
	worker_expect_clean();
	kit_answer_free(&got);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cache");
	TCase *t = tcase_create("cache");

	tcase_add_checked_fixture(t, worker_setup, worker_teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, one_stores_another_hits);
	tcase_add_test(t, what_is_common_hits);
	tcase_add_test(t, nothing_is_shared_by_mistake);
	tcase_add_test(t, salts_are_kept_apart);
	tcase_add_test(t, another_workers_blocks_are_waited_for);
	tcase_add_test(t, another_slots_blocks_are_waited_for);
	tcase_add_test(t, nobody_has_to_wait);
	tcase_add_test(t, a_leader_that_ends_keeps_nobody);
	tcase_add_test(t, blocks_come_up_from_below);
	suite_add_tcase(s, t);
	return test_run(s);
}
