/*
 * worker.c - see worker.h.
 */
#include "tests/llama/worker.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct e2e_daemon worker_daemon;
struct llama_model *worker_model;

void worker_setup(void)
{
	ck_assert_int_eq(e2e_daemon_init(&worker_daemon), 0);
	worker_model = kit_model("gqa");
}

void worker_teardown(void)
{
	e2e_daemon_free(&worker_daemon);
	llama_model_free(worker_model);
}

void worker_start(const char *const args[])
{
	ck_assert_int_eq(e2e_daemon_start(&worker_daemon, args), 0);
}

const struct cache_options worker_usual = {
	.model = "tiny",
	.revision = "r1",
	.adapter = "",
	.engine = "test",
	.deadline_ms = 2000,
	.load_ms = 2000,
	.wait_ms = 2000,
};

void worker_with(struct worker *w, struct llama_model *m, const struct kit_context *how,
		 const struct cache_options *options, uint32_t block_tokens)
{
	struct cache_options o = *options;

	o.socket = worker_daemon.socket;
	w->ctx = kit_context(m, how);
	w->state = kit_state(w->ctx, block_tokens);
	ck_assert_int_eq(cache_new(&o, w->state, &w->cache), 0);
}

void worker_new(struct worker *w, uint32_t n_ctx)
{
	struct kit_context how = { .n_ctx = n_ctx,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };

	worker_with(w, worker_model, &how, &worker_usual, BLOCK);
}

void worker_free(struct worker *w)
{
	cache_free(w->cache);
	kvstate_free(w->state);
	llama_free(w->ctx);
}

void worker_empty(struct worker *w)
{
	ck_assert(llama_memory_seq_rm(llama_get_memory(w->ctx), 0, -1, -1));
}

struct cache_counters worker_counters(const struct worker *w)
{
	struct cache_counters c;

	cache_get_counters(w->cache, &c);
	return c;
}

struct cache_request *worker_begin(struct worker *w, const int32_t *tokens, uint32_t n,
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

void worker_prefill(struct worker *w, struct cache_request *q, const int32_t *tokens, uint32_t from,
		    uint32_t to)
{
	while (from < to) {
		uint32_t end = to - from < CHUNK ? to : from + CHUNK;

		kit_prefill(w->ctx, tokens, from, end, CHUNK, 0);
		cache_computed(q, NULL, 0, end);
		from = end;
	}
}

void worker_answer(struct worker *w, struct cache_request *q, const int32_t *tokens, uint32_t n,
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

uint32_t worker_request(struct worker *w, const int32_t *tokens, uint32_t n, struct kit_answer *ret)
{
	struct kit_answer none;
	struct cache_request *q;
	uint32_t hit;

	q = worker_begin(w, tokens, n, &hit);
	worker_prefill(w, q, tokens, hit, n - 1);
	worker_answer(w, q, tokens, n, ret ? ret : &none);
	cache_end(q);
	worker_empty(w);
	if (!ret)
		kit_answer_free(&none);
	return hit;
}

void worker_cut(struct worker_cuts *c, uint32_t from, uint32_t to, uint32_t chunk)
{
	while (from < to) {
		from = to - from < chunk ? to : from + chunk;
		c->end[c->n++] = from;
	}
}

void worker_expect(const int32_t *stored, const int32_t *tokens, uint32_t n, uint32_t hit,
		   const struct worker_cuts *cuts, const struct kit_answer *got)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct llama_context *ctx = kit_context(worker_model, &how);
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

void worker_expect_plain(const int32_t *tokens, uint32_t n, uint32_t hit,
			 const struct kit_answer *got)
{
	struct worker_cuts c = { 0 };

	worker_cut(&c, 0, hit, CHUNK);
	worker_cut(&c, hit, n - 1, CHUNK);
	worker_expect(tokens, tokens, n, hit, &c, got);
}

void worker_expect_clean(void)
{
	char *json = e2e_admin(&worker_daemon, "{\"op\": \"audit\"}");

	ck_assert_msg(strstr(json, "\"clean\": true") || strstr(json, "\"clean\":true"), "%s",
		      json);
	pfx_free_string(json);
	json = e2e_admin(&worker_daemon, "{\"op\": \"pins\"}");
	ck_assert_msg(!strstr(json, "\"lease\""), "%s", json);
	pfx_free_string(json);
}
