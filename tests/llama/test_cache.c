/*
 * test_cache.c - two workers of a real daemon: what one computes the other does not compute again.
 *
 * A worker here is what one process has: a context, its state, its own client.  Answers are
 * compared with those of a control that knows no daemon and cuts its prefill where the hit ended.
 */
#include "clients/llama/cache.h"

#include "tests/e2e/harness.h"
#include "tests/lib/run.h"
#include "tests/llama/kit.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 16u
#define STEPS 64u
#define CHUNK 64u
#define N     400u /* tokens of the prompt: 25 blocks */

static struct e2e_daemon daemon_;
static struct llama_model *model;

static const char *const large[] = { "--pool-blocks", "512", NULL };
static const char *const small[] = { "--pool-blocks", "8", NULL };
static const char *const tiers[] = { "--pool-blocks", "32", "--host-blocks", "512", NULL };

static void setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&daemon_), 0);
	model = kit_model("gqa");
}

static void teardown(void)
{
	e2e_daemon_free(&daemon_);
	llama_model_free(model);
}

static void start(const char *const args[])
{
	ck_assert_int_eq(e2e_daemon_start(&daemon_, args), 0);
}

struct worker {
	struct llama_context *ctx;
	struct kvstate *state;
	struct cache *cache;
};

static const struct cache_options usual = {
	.model = "tiny",
	.revision = "r1",
	.adapter = "",
	.engine = "test",
	.deadline_ms = 2000,
	.load_ms = 2000,
	.wait_ms = 2000,
};

static void worker_with(struct worker *w, struct llama_model *m, const struct kit_context *how,
			const struct cache_options *options, uint32_t block_tokens)
{
	struct cache_options o = *options;

	o.socket = daemon_.socket;
	w->ctx = kit_context(m, how);
	w->state = kit_state(w->ctx, block_tokens);
	ck_assert_int_eq(cache_new(&o, w->state, &w->cache), 0);
}

static void worker(struct worker *w, uint32_t n_ctx)
{
	struct kit_context how = { .n_ctx = n_ctx,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };

	worker_with(w, model, &how, &usual, BLOCK);
}

static void worker_free(struct worker *w)
{
	cache_free(w->cache);
	kvstate_free(w->state);
	llama_free(w->ctx);
}

static void empty(struct worker *w)
{
	ck_assert(llama_memory_seq_rm(llama_get_memory(w->ctx), 0, -1, -1));
}

static struct cache_counters counters(const struct worker *w)
{
	struct cache_counters c;

	cache_get_counters(w->cache, &c);
	return c;
}

static struct cache_request *begin(struct worker *w, const int32_t *tokens, uint32_t n,
				   uint32_t *ret_hit)
{
	struct cache_request *q;
	int r = cache_begin(w->cache, w->ctx, tokens, n, NULL, 0, &q, ret_hit);

	while (r == CACHE_LATER)
		r = cache_poll(q, 20, ret_hit);
	ck_assert_int_eq(r, 0);
	ck_assert_uint_eq(*ret_hit % BLOCK, 0);
	ck_assert_uint_lt(*ret_hit, n);
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(w->ctx), 0), (int)*ret_hit - 1);
	return q;
}

/* Prefill of what the hit left, chunk by chunk, each told to the cache. */
static void prefill(struct worker *w, struct cache_request *q, const int32_t *tokens, uint32_t from,
		    uint32_t to)
{
	while (from < to) {
		uint32_t end = to - from < CHUNK ? to : from + CHUNK;

		kit_prefill(w->ctx, tokens, from, end, CHUNK, 0);
		cache_computed(q, NULL, 0, end);
		from = end;
	}
}

/* The last token of the prompt and `n` steps; each token is told once it has been decoded. */
static void answer(struct worker *w, struct cache_request *q, const int32_t *tokens, uint32_t n,
		   struct kit_answer *ret)
{
	struct kit_answer step;
	int32_t token[1] = { tokens[n - 1] };

	*ret = (struct kit_answer){ .n = STEPS };
	for (uint32_t i = 0; i < STEPS; i++) {
		kit_answer(w->ctx, token, 1, 1, &step);
		if (!i) {
			ret->n_vocab = step.n_vocab;
			ret->tokens = calloc(STEPS, sizeof(*ret->tokens));
			ret->logits = calloc((size_t)STEPS * step.n_vocab, sizeof(*ret->logits));
			ck_assert(ret->tokens && ret->logits);
		}
		cache_computed(q, token, i > 0, n + i);
		token[0] = ret->tokens[i] = step.tokens[0];
		memcpy(ret->logits + (size_t)i * step.n_vocab, step.logits,
		       step.n_vocab * sizeof(*step.logits));
		kit_answer_free(&step);
	}
}

/* A whole request.  Return: the hit. */
static uint32_t request(struct worker *w, const int32_t *tokens, uint32_t n, struct kit_answer *ret)
{
	struct kit_answer none;
	struct cache_request *q;
	uint32_t hit;

	q = begin(w, tokens, n, &hit);
	prefill(w, q, tokens, hit, n - 1);
	answer(w, q, tokens, n, ret ? ret : &none);
	cache_end(q);
	empty(w);
	if (!ret)
		kit_answer_free(&none);
	return hit;
}

/* Ends of the batches in which a prompt was computed, by whomever. */
struct cuts {
	uint32_t n, end[N + 200];
};

static void cut(struct cuts *c, uint32_t from, uint32_t to, uint32_t chunk)
{
	while (from < to) {
		from = to - from < chunk ? to : from + chunk;
		c->end[c->n++] = from;
	}
}

/*
 * The answer to the same prompt without any cache, in the same batches.  What is stored may go on
 * otherwise in its last batch: `stored` are the tokens of whoever computed the first `hit` ones.
 */
static void expect_control(const int32_t *stored, const int32_t *tokens, uint32_t n, uint32_t hit,
			   const struct cuts *cuts, const struct kit_answer *got)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct llama_context *ctx = kit_context(model, &how);
	struct kit_answer want;
	uint32_t at = 0;

	for (uint32_t i = 0; i < cuts->n; i++) {
		kit_prefill(ctx, at < hit ? stored : tokens, at, cuts->end[i], N, 0);
		at = cuts->end[i];
		if (at > hit && at - hit < CHUNK && stored != tokens) {
			ck_assert(llama_memory_seq_rm(llama_get_memory(ctx), 0, (int)hit, -1));
			at = hit;
			stored = tokens;
		}
	}
	kit_answer(ctx, tokens, n, STEPS, &want);
	ck_assert_msg(kit_same(got, &want) == STEPS, "step %u differs, hit %u",
		      kit_same(got, &want), hit);
	kit_answer_free(&want);
	llama_free(ctx);
}

/* A prompt that was computed in chunks up to `hit` and from there on. */
static void expect_plain(const int32_t *tokens, uint32_t n, uint32_t hit,
			 const struct kit_answer *got)
{
	struct cuts c = { 0 };

	cut(&c, 0, hit, CHUNK);
	cut(&c, hit, n - 1, CHUNK);
	expect_control(tokens, tokens, n, hit, &c, got);
}

/* No slot is held or lost: the daemon's own check, and nothing leased. */
static void expect_clean(void)
{
	char *json = e2e_admin(&daemon_, "{\"op\": \"audit\"}");

	ck_assert_msg(strstr(json, "\"clean\": true") || strstr(json, "\"clean\":true"), "%s",
		      json);
	pfx_free_string(json);
	json = e2e_admin(&daemon_, "{\"op\": \"pins\"}");
	ck_assert_msg(!strstr(json, "\"lease\""), "%s", json);
	pfx_free_string(json);
}

/* ---- sharing --------------------------------------------------------------------------------- */

START_TEST(one_stores_another_hits)
{
	struct worker a, b;
	struct kit_answer first, second, third;
	struct cuts turns = { 0 };
	int32_t tokens[N + STEPS + 40];
	uint32_t n = N + STEPS + 40, hit;

	start(large);
	worker(&a, 1024);
	worker(&b, 2048);
	kit_prompt(model, 1, tokens, n);
	ck_assert_uint_eq(request(&a, tokens, N, &first), 0);
	expect_plain(tokens, N, 0, &first);
	/* The same prompt: all but the block with the last token. */
	hit = request(&b, tokens, N, &second);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	expect_plain(tokens, N, hit, &second);
	/* The conversation goes on: the answer's blocks are there as well. */
	memcpy(tokens + N, first.tokens, STEPS * sizeof(*tokens));
	hit = request(&b, tokens, n, &third);
	ck_assert_uint_eq(hit, (N + STEPS - 1) / BLOCK * BLOCK);
	cut(&turns, 0, N - 1, CHUNK); /* the first turn's prompt, its answer one by one, the rest */
	cut(&turns, N - 1, hit, 1);
	cut(&turns, hit, n - 1, CHUNK);
	expect_control(tokens, tokens, n, hit, &turns, &third);
	ck_assert_uint_eq(counters(&b).failures, 0);
	ck_assert_uint_eq(counters(&b).prompt_tokens, N + n);
	ck_assert_uint_eq(counters(&a).stored_blocks, (N + STEPS - 1) / BLOCK);
	expect_clean();
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
	struct cuts cuts;
	struct kit_answer got;
	uint32_t hit;

	start(large);
	worker(&a, 1024);
	worker(&b, 1024);
	kit_prompt(model, 1, tokens, N);
	ck_assert_uint_eq(request(&a, tokens, N, NULL), 0);
	for (uint32_t common = 0; common <= 100; common += 50) {
		kit_prompt(model, 100 + common, mine, N);
		memcpy(mine, tokens, common * sizeof(*mine));
		if (mine[common] == tokens[common])
			mine[common] ^= 1;
		hit = request(&b, mine, N, &got);
		ck_assert_uint_eq(hit, common / BLOCK * BLOCK);
		cuts.n = 0;
		cut(&cuts, 0, (hit + CHUNK - 1) / CHUNK * CHUNK, CHUNK);
		cut(&cuts, hit, N - 1, CHUNK);
		expect_control(tokens, mine, N, hit, &cuts, &got);
		kit_answer_free(&got);
	}
	/* Shorter than what is stored, at the edge of a block, and shorter than a block. */
	ck_assert_uint_eq(request(&b, tokens, 2 * BLOCK, NULL), BLOCK);
	ck_assert_uint_eq(request(&b, tokens, 2 * BLOCK + 1, NULL), 2 * BLOCK);
	ck_assert_uint_eq(request(&b, tokens, 5, NULL), 0);
	ck_assert_uint_eq(counters(&b).failures, 0);
	expect_clean();
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
#define N_VARIANTS 11

static void variant(struct variant *v, int i, char digest[3][33], char *engine)
{
	*v = (struct variant){
		.model = "gqa",
		.how = { .n_ctx = 1024, .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16 },
		.options = usual,
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
	default:
		break;
	}
}

/* Everything that must agree: with all equal there is a hit, with one of them different none. */
START_TEST(nothing_is_shared_by_mistake)
{
	static const char *const models[] = { "gqa", "other", "rope" };
	char digest[3][33], path[512], engine[80];
	int32_t tokens[N];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", daemon_.dir, 1), 0);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(
			cache_digest_file(kit_model_path(models[i], path, sizeof(path)), digest[i]),
			0);
	memset(engine, 'e', sizeof(engine) - 1);
	engine[sizeof(engine) - 1] = 0;
	start(large);
	kit_prompt(model, 1, tokens, N);
	/* Twice round: what is stored in the first is found in the second, and nothing else was. */
	for (int k = 0; k < 2 * N_VARIANTS; k++) {
		struct llama_model *m;
		struct variant v;
		struct worker w;
		uint32_t hit;

		variant(&v, k % N_VARIANTS, digest, engine);
		m = kit_model(v.model);
		worker_with(&w, m, &v.how, &v.options, v.block_tokens);
		hit = request(&w, tokens, N, NULL);
		ck_assert_msg(
			hit == (k < N_VARIANTS ? 0 : (N - 1) / v.block_tokens * v.block_tokens),
			"case %d: %u", k, hit);
		ck_assert_msg(!counters(&w).failures, "case %d: %s", k, cache_problem(w.cache));
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

	start(large);
	worker(&w, 1024);
	kit_prompt(model, 1, tokens, N);
	for (uint32_t round = 0; round < 2; round++) {
		for (size_t i = 0; i < 3; i++) {
			ck_assert_int_eq(cache_begin(w.cache, w.ctx, tokens, N, salts[i],
						     strlen(salts[i]), &q, &hit),
					 0);
			ck_assert_uint_eq(hit, round ? (N - 1) / BLOCK * BLOCK : 0);
			prefill(&w, q, tokens, hit, N);
			cache_end(q);
			empty(&w);
		}
	}
	/* One that the protocol has no room for shares nothing. */
	for (uint32_t round = 0; round < 2; round++) {
		ck_assert_int_eq(
			cache_begin(w.cache, w.ctx, tokens, N, lengthy, sizeof(lengthy), &q, &hit),
			0);
		ck_assert_uint_eq(hit, 0);
		prefill(&w, q, tokens, hit, N);
		cache_end(q);
		empty(&w);
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

	kit_prompt(model, 1, tokens, N);
	p = begin(a, tokens, N, &hit);
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
	ck_assert_uint_eq(counters(b).waited, 1);
	prefill(b, q, tokens, hit, N);
	cache_end(p);
	cache_end(q);
	empty(a);
	empty(b);
	ck_assert_uint_eq(counters(b).failures, 0);
	expect_clean();
}

START_TEST(another_workers_blocks_are_waited_for)
{
	struct worker a, b;

	start(large);
	worker(&a, 1024);
	worker(&b, 1024);
	expect_wait(&a, &b);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(another_slots_blocks_are_waited_for)
{
	struct worker a, b;

	start(large);
	worker(&a, 1024);
	b = a;
	b.ctx = kit_context(model, &(struct kit_context){ .n_ctx = 1024,
							  .type_k = GGML_TYPE_F16,
							  .type_v = GGML_TYPE_F16 });
	expect_wait(&a, &b);
	llama_free(b.ctx);
	worker_free(&a);
}
END_TEST

START_TEST(a_leader_that_ends_keeps_nobody)
{
	struct worker a, b;
	struct cache_request *p, *q;
	struct cache_options hasty = usual;
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	int32_t tokens[N];
	uint32_t hit;
	unsigned long since;

	start(large);
	worker(&a, 1024);
	worker(&b, 1024);
	kit_prompt(model, 1, tokens, N);
	/* It ends without having computed: the other is told at once. */
	p = begin(&a, tokens, N, &hit);
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
	worker_with(&b, model, &how, &hasty, BLOCK);
	p = begin(&a, tokens, N, &hit);
	since = e2e_now_ms();
	q = begin(&b, tokens, N, &hit);
	ck_assert_uint_eq(hit, 0);
	ck_assert_uint_ge(e2e_now_ms() - since, 290);
	ck_assert_uint_lt(e2e_now_ms() - since, 1500);
	/* Both compute; what comes second is a duplicate. */
	prefill(&a, p, tokens, 0, N);
	prefill(&b, q, tokens, 0, N);
	ck_assert_uint_eq(counters(&b).stored_blocks + counters(&b).duplicate_blocks, N / BLOCK);
	cache_end(p);
	cache_end(q);
	ck_assert_uint_eq(counters(&a).failures + counters(&b).failures, 0);
	expect_clean();
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

	start(tiers);
	worker(&a, 1024);
	worker(&b, 1024);
	kit_prompt(model, 1, tokens, N);
	kit_prompt(model, 2, others, N);
	ck_assert_uint_eq(request(&a, tokens, N, NULL), 0);
	ck_assert_uint_eq(request(&a, others, N, NULL), 0); /* 25 of the 32 slots */
	hit = request(&b, tokens, N, &got);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	expect_plain(tokens, N, hit, &got);
	ck_assert_uint_eq(counters(&b).waited, 1);
	ck_assert_uint_eq(counters(&b).failures, 0);
	expect_clean();
	kit_answer_free(&got);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

/* ---- what goes wrong ------------------------------------------------------------------------- */

START_TEST(a_full_pool_stops_storing)
{
	struct worker a, b;
	int32_t tokens[N];
	struct kit_answer got;
	uint32_t hit;

	start(small);
	worker(&a, 1024);
	worker(&b, 1024);
	kit_prompt(model, 1, tokens, N);
	ck_assert_uint_eq(request(&a, tokens, N, &got), 0);
	expect_plain(tokens, N, 0, &got);
	kit_answer_free(&got);
	hit = request(&b, tokens, N, &got);
	ck_assert_uint_gt(hit, 0);
	ck_assert_uint_le(hit, 8 * BLOCK);
	expect_plain(tokens, N, hit, &got);
	expect_clean();
	kit_answer_free(&got);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(without_a_daemon_all_is_computed)
{
	struct worker w;
	int32_t tokens[N];
	struct kit_answer got;
	unsigned long since;

	worker(&w, 1024);
	kit_prompt(model, 1, tokens, N);
	since = e2e_now_ms();
	ck_assert_uint_eq(request(&w, tokens, N, &got), 0);
	ck_assert_uint_lt(e2e_now_ms() - since, 10000);
	expect_plain(tokens, N, 0, &got);
	kit_answer_free(&got);
	ck_assert_uint_gt(counters(&w).failures, 0);
	ck_assert_str_ne(cache_problem(w.cache), "");
	/* It comes: no restart of the worker is needed. */
	start(large);
	e2e_sleep_ms(250);
	ck_assert_uint_eq(request(&w, tokens, N, NULL), 0);
	ck_assert_uint_eq(request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	worker_free(&w);
}
END_TEST

START_TEST(a_killed_daemon_costs_the_hit)
{
	struct worker a, b;
	struct cache_request *q, *later;
	int32_t tokens[N];
	struct kit_answer got;
	struct cuts cuts = { 0 };
	uint32_t hit;

	start(large);
	worker(&a, 1024);
	worker(&b, 1024);
	kit_prompt(model, 1, tokens, N);
	ck_assert_uint_eq(request(&a, tokens, 200, NULL), 0);
	/* One that has begun to compute, one that waits, and one that comes after. */
	q = begin(&a, tokens, N, &hit);
	ck_assert_uint_eq(hit, 200 / BLOCK * BLOCK);
	prefill(&a, q, tokens, hit, 300);
	ck_assert_int_eq(cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &later, &hit),
			 CACHE_LATER);
	ck_assert_int_ne(e2e_daemon_stop(&daemon_, SIGKILL), -1);
	prefill(&a, q, tokens, 300, N - 1);
	answer(&a, q, tokens, N, &got);
	cache_end(q);
	empty(&a);
	cut(&cuts, 0, 192, CHUNK);
	cut(&cuts, 192, 300, CHUNK);
	cut(&cuts, 300, N - 1, CHUNK);
	expect_control(tokens, tokens, N, 192, &cuts, &got);
	kit_answer_free(&got);
	while (cache_poll(later, 20, &hit) == CACHE_LATER)
		;
	ck_assert_uint_eq(hit % BLOCK, 0);
	prefill(&b, later, tokens, hit, N - 1);
	answer(&b, later, tokens, N, &got);
	cache_end(later);
	empty(&b);
	expect_plain(tokens, N, hit, &got);
	kit_answer_free(&got);
	ck_assert_uint_eq(request(&b, tokens, N, NULL), 0);
	/* Its next life knows nothing, and learns. */
	start(large);
	e2e_sleep_ms(250);
	ck_assert_uint_eq(request(&b, tokens, N, NULL), 0);
	hit = request(&a, tokens, N, &got);
	ck_assert_uint_eq(hit, (N - 1) / BLOCK * BLOCK);
	expect_plain(tokens, N, hit, &got);
	ck_assert_uint_eq(request(&b, tokens, N, NULL), hit);
	expect_clean();
	kit_answer_free(&got);
	worker_free(&a);
	worker_free(&b);
}
END_TEST

START_TEST(a_frozen_daemon_costs_a_deadline)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct cache_options hasty = usual;
	struct cache_request *q;
	struct worker w;
	int32_t tokens[N];
	unsigned long since;
	uint32_t hit;

	hasty.deadline_ms = 100;
	start(large);
	worker_with(&w, model, &how, &hasty, BLOCK);
	kit_prompt(model, 1, tokens, N);
	q = begin(&w, tokens, N, &hit);
	prefill(&w, q, tokens, 0, 128);
	ck_assert_uint_eq(counters(&w).stored_blocks, 8);
	ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
	since = e2e_now_ms();
	prefill(&w, q, tokens, 128, N);
	cache_end(q);
	/* RESERVE's and RELEASE's deadlines, not one for each chunk. */
	ck_assert_uint_lt(e2e_now_ms() - since, 1000);
	empty(&w);
	ck_assert_uint_eq(counters(&w).stored_blocks, 8);
	ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
	e2e_sleep_ms(300);
	ck_assert_uint_eq(request(&w, tokens, N, NULL), 128);
	ck_assert_uint_eq(request(&w, tokens, N, NULL), (N - 1) / BLOCK * BLOCK);
	expect_clean();
	worker_free(&w);
}
END_TEST

/* Requests that end at any point leave nothing behind. */
START_TEST(aborted_requests_leave_nothing)
{
	struct worker a, b;
	struct cache_request *p, *q;
	int32_t tokens[N];
	uint32_t hit;

	start(large);
	worker(&a, 1024);
	worker(&b, 1024);
	for (uint32_t i = 0; i < 20; i++) {
		kit_prompt(model, 10 + i / 2, tokens, N);
		p = begin(&a, tokens, N, &hit);
		(void)cache_begin(b.cache, b.ctx, tokens, N, NULL, 0, &q, &hit);
		if (i % 3)
			prefill(&a, p, tokens, hit, hit + CHUNK);
		cache_end(i % 2 ? p : q);
		cache_end(i % 2 ? q : p);
		empty(&a);
		empty(&b);
	}
	cache_end(NULL);
	expect_clean();
	worker_free(&a);
	worker_free(&b);
}
END_TEST

/* ---- digests --------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

START_TEST(files_are_named_by_content)
{
	char a[33], b[33], path[200], other[200];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", daemon_.dir, 1), 0);
	(void)snprintf(path, sizeof(path), "%s/m.gguf", daemon_.dir);
	(void)snprintf(other, sizeof(other), "%s/n.gguf", daemon_.dir);
	write_file(path, "weights");
	write_file(other, "weights");
	ck_assert_int_eq(cache_digest_file(path, a), 0);
	ck_assert_uint_eq(strlen(a), 32);
	ck_assert_int_eq(cache_digest_file(other, b), 0);
	ck_assert_str_eq(a, b);
	/* remembered, and not when it has changed, though size and name are the same */
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_eq(a, b);
	write_file(path, "Weights");
	ck_assert_int_eq(cache_digest_file(path, b), 0);
	ck_assert_str_ne(a, b);
	ck_assert_int_eq(cache_digest_file("/nonexistent/m.gguf", b), -ENOENT);
	ck_assert_int_eq(cache_digest_file(daemon_.dir, b), -EINVAL);
}
END_TEST

START_TEST(a_model_in_parts_is_one_file)
{
	char a[33], b[33], first[200], second[200];

	ck_assert_int_eq(setenv("XDG_CACHE_HOME", daemon_.dir, 1), 0);
	(void)snprintf(first, sizeof(first), "%s/m-00001-of-00002.gguf", daemon_.dir);
	(void)snprintf(second, sizeof(second), "%s/m-00002-of-00002.gguf", daemon_.dir);
	write_file(first, "one");
	ck_assert_int_eq(cache_digest_file(first, a), -ENOENT);
	write_file(second, "two");
	ck_assert_int_eq(cache_digest_file(first, a), 0);
	write_file(second, "too");
	ck_assert_int_eq(cache_digest_file(first, b), 0);
	ck_assert_str_ne(a, b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cache");
	TCase *t = tcase_create("cache");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 120);
	tcase_add_test(t, one_stores_another_hits);
	tcase_add_test(t, what_is_common_hits);
	tcase_add_test(t, nothing_is_shared_by_mistake);
	tcase_add_test(t, salts_are_kept_apart);
	tcase_add_test(t, another_workers_blocks_are_waited_for);
	tcase_add_test(t, another_slots_blocks_are_waited_for);
	tcase_add_test(t, a_leader_that_ends_keeps_nobody);
	tcase_add_test(t, blocks_come_up_from_below);
	tcase_add_test(t, a_full_pool_stops_storing);
	tcase_add_test(t, without_a_daemon_all_is_computed);
	tcase_add_test(t, a_killed_daemon_costs_the_hit);
	tcase_add_test(t, a_frozen_daemon_costs_a_deadline);
	tcase_add_test(t, aborted_requests_leave_nothing);
	tcase_add_test(t, files_are_named_by_content);
	tcase_add_test(t, a_model_in_parts_is_one_file);
	suite_add_tcase(s, t);
	return test_run(s);
}
