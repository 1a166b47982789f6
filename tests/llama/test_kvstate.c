/*
 * test_kvstate.c - blocks that leave one context and enter another, on real libllama.
 *
 * Bits are compared: of the logits of every greedy step.  The control computes the same prompt
 * with its prefill cut at the same place, since another cut alone changes rounding.
 */
#include "tests/lib/run.h"
#include "tests/llama/kit.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 16u
#define STEPS 64u
#define CHUNK 128u

static const struct {
	const char *model;
	enum ggml_type k, v;
	uint32_t n_tokens;
} shapes[] = {
	{ "gqa", GGML_TYPE_F16, GGML_TYPE_F16, 400 },
	{ "mqa", GGML_TYPE_F16, GGML_TYPE_F16, 700 },
	{ "mha", GGML_TYPE_F16, GGML_TYPE_F16, 401 },
	{ "gqa", GGML_TYPE_F32, GGML_TYPE_F32, 333 },
	{ "gqa", GGML_TYPE_BF16, GGML_TYPE_BF16, 400 },
	{ "gqa", GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 512 },
	{ "gqa", GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, 415 },
	{ "mha", GGML_TYPE_Q8_0, GGML_TYPE_F16, 416 },
};
#define N_SHAPES ((int)(sizeof(shapes) / sizeof(*shapes)))

/* One prompt, computed in `from` and carried to another context, n blocks of it. */
static void carry(struct llama_model *model, const struct kit_context *how, uint32_t n_tokens,
		  uint32_t n, struct kit_answer *ret_carried, struct kit_answer *ret_control)
{
	struct kit_context wider = *how;
	struct llama_context *from, *to, *control;
	struct kvstate *state;
	int32_t *tokens = calloc(n_tokens, sizeof(*tokens));
	void **blocks;

	wider.n_ctx = 2 * how->n_ctx;
	from = kit_context(model, how);
	to = kit_context(model, &wider);
	control = kit_context(model, how);
	state = kit_state(from, BLOCK);
	kit_prompt(model, 1, tokens, n_tokens);
	blocks = kit_blocks(state, n);
	kit_prefill(from, tokens, 0, n_tokens - 1, CHUNK, n * BLOCK);
	ck_assert_int_eq(kvstate_export(state, from, 0, n, blocks), 0);
	ck_assert_int_eq(kvstate_import(state, to, n, (const void *const *)blocks), 0);
	kit_prefill(to, tokens, n * BLOCK, n_tokens - 1, CHUNK, 0);
	kit_answer(to, tokens, n_tokens, STEPS, ret_carried);
	kit_prefill(control, tokens, 0, n_tokens - 1, CHUNK, n * BLOCK);
	kit_answer(control, tokens, n_tokens, STEPS, ret_control);
	kit_blocks_free(blocks, n);
	kvstate_free(state);
	llama_free(from);
	llama_free(to);
	llama_free(control);
	free(tokens);
}

START_TEST(carried_blocks_give_the_same_bits)
{
	struct kit_context how = { .n_ctx = 1024, .type_k = shapes[_i].k, .type_v = shapes[_i].v };
	struct llama_model *model = kit_model(shapes[_i].model);
	uint32_t all = (shapes[_i].n_tokens - 1) / BLOCK, n[] = { all, 1, all / 2 };
	struct kit_answer carried, control;

	for (size_t i = 0; i < 3; i++) {
		carry(model, &how, shapes[_i].n_tokens, n[i], &carried, &control);
		ck_assert_msg(kit_same(&carried, &control) == STEPS,
			      "%s %s/%s, %u of %u blocks: step %u differs", shapes[_i].model,
			      ggml_type_name(shapes[_i].k), ggml_type_name(shapes[_i].v), n[i], all,
			      kit_same(&carried, &control));
		kit_answer_free(&carried);
		kit_answer_free(&control);
	}
	llama_model_free(model);
}
END_TEST

/* What makes the test above able to fail: one other byte of K/V is another answer. */
START_TEST(one_byte_shows)
{
	struct kit_context how = { .n_ctx = 512, .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16 };
	struct llama_model *model = kit_model("gqa");
	struct llama_context *from = kit_context(model, &how), *to = kit_context(model, &how);
	struct kvstate *state = kit_state(from, BLOCK);
	uint32_t n = 8, n_tokens = n * BLOCK + 1;
	void **blocks = kit_blocks(state, n);
	struct kit_answer right, wrong;
	int32_t tokens[8 * BLOCK + 1];

	kit_prompt(model, 1, tokens, n_tokens);
	kit_prefill(from, tokens, 0, n_tokens - 1, CHUNK, 0);
	ck_assert_int_eq(kvstate_export(state, from, 0, n, blocks), 0);
	kit_answer(from, tokens, n_tokens, STEPS, &right);
	((uint8_t *)blocks[3])[kvstate_shape(state)->block_bytes / 2 + 1] ^= 0x20;
	ck_assert_int_eq(kvstate_import(state, to, n, (const void *const *)blocks), 0);
	kit_answer(to, tokens, n_tokens, STEPS, &wrong);
	ck_assert_uint_lt(kit_same(&right, &wrong), STEPS);
	kit_answer_free(&right);
	kit_answer_free(&wrong);
	kit_blocks_free(blocks, n);
	kvstate_free(state);
	llama_free(from);
	llama_free(to);
	llama_model_free(model);
}
END_TEST

/* Blocks exported one by one while the prompt grows are those exported at the end at once. */
START_TEST(runs_of_any_length_are_the_same_blocks)
{
	struct kit_context how = { .n_ctx = 2048,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct llama_model *model = kit_model("gqa");
	struct llama_context *ctx = kit_context(model, &how);
	struct kvstate *state = kit_state(ctx, BLOCK);
	/* More than fits into one piece of the copy: 24 KiB each. */
	uint32_t n = 100, bytes = (uint32_t)kvstate_shape(state)->block_bytes;
	void **early = kit_blocks(state, n), **late = kit_blocks(state, n);
	int32_t *tokens = calloc(n * BLOCK, sizeof(*tokens));

	kit_prompt(model, 3, tokens, n * BLOCK);
	for (uint32_t i = 0; i < n; i += 5) {
		kit_prefill(ctx, tokens, i * BLOCK, (i + 5) * BLOCK, 80, 0);
		ck_assert_int_eq(kvstate_export(state, ctx, i, 2, early + i), 0);
		ck_assert_int_eq(kvstate_export(state, ctx, i + 2, 3, early + i + 2), 0);
	}
	ck_assert_int_eq(kvstate_export(state, ctx, 0, n, late), 0);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_mem_eq(early[i], late[i], bytes);
	for (uint32_t i = 1; i < n; i++)
		ck_assert_int_ne(memcmp(late[i], late[i - 1], bytes), 0);
	/* The copying left the sequences as they were. */
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(ctx), 0), n * BLOCK - 1);
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(ctx), 1), -1);
	kit_blocks_free(early, n);
	kit_blocks_free(late, n);
	free(tokens);
	kvstate_free(state);
	llama_free(ctx);
	llama_model_free(model);
}
END_TEST

/* Decodes n tokens at position `from` of a sequence. */
static void decode_into(struct llama_context *ctx, const int32_t *tokens, int n, int from, int seq)
{
	struct llama_batch batch = llama_batch_init(n, 0, 1);

	batch.n_tokens = n;
	for (int i = 0; i < n; i++) {
		batch.token[i] = tokens[i];
		batch.pos[i] = from + i;
		batch.n_seq_id[i] = 1;
		batch.seq_id[i][0] = seq;
		batch.logits[i] = i == n - 1;
	}
	ck_assert_int_eq(llama_decode(ctx, batch), 0);
	llama_batch_free(batch);
}

/* Cells that do not lie in the order of positions: libllama hands them out as they lie. */
START_TEST(scattered_cells_are_put_in_order)
{
	struct kit_context how = { .n_ctx = 512, .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16 };
	struct llama_model *model = kit_model("gqa");
	struct llama_context *ctx = kit_context(model, &how), *to = kit_context(model, &how);
	struct kvstate *state = kit_state(ctx, BLOCK);
	uint32_t n = 8, bytes = (uint32_t)kvstate_shape(state)->block_bytes;
	void **run = kit_blocks(state, n), **single = kit_blocks(state, n);
	int32_t tokens[8 * BLOCK];

	kit_prompt(model, 1, tokens, n * BLOCK);
	/* Somebody has the first 40 cells when positions 0 ... 63 come, and nobody afterwards. */
	decode_into(ctx, tokens, 40, 0, 1);
	decode_into(ctx, tokens, 64, 0, 0);
	ck_assert(llama_memory_seq_rm(llama_get_memory(ctx), 1, -1, -1));
	decode_into(ctx, tokens + 64, 64, 64, 0);
	ck_assert_int_eq(kvstate_export(state, ctx, 0, n, run), 0);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(kvstate_export(state, ctx, i, 1, single + i), 0);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_mem_eq(run[i], single[i], bytes);
	/* Up to rounding a context with its cells in order has the same; the first are equal. */
	kit_prefill(to, tokens, 0, 64, 64, 0);
	ck_assert_int_eq(kvstate_export(state, to, 0, 4, single), 0);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_mem_eq(run[i], single[i], bytes);
	kit_blocks_free(run, n);
	kit_blocks_free(single, n);
	kvstate_free(state);
	llama_free(ctx);
	llama_free(to);
	llama_model_free(model);
}
END_TEST

/* A context is used again and again; what it holds at other times makes no difference. */
START_TEST(a_used_context_takes_blocks)
{
	struct kit_context how = { .n_ctx = 1024,
				   .type_k = GGML_TYPE_F16,
				   .type_v = GGML_TYPE_F16 };
	struct llama_model *model = kit_model("gqa");
	struct llama_context *from = kit_context(model, &how), *to = kit_context(model, &how);
	struct kvstate *state = kit_state(from, BLOCK);
	uint32_t n = 20, n_tokens = n * BLOCK + 1;
	void **blocks = kit_blocks(state, n);
	struct kit_answer a, b;
	int32_t tokens[20 * BLOCK + 1], others[900];

	kit_prompt(model, 1, tokens, n_tokens);
	kit_prompt(model, 2, others, 900);
	kit_prefill(from, tokens, 0, n_tokens - 1, CHUNK, 0);
	ck_assert_int_eq(kvstate_export(state, from, 0, n, blocks), 0);
	kit_answer(from, tokens, n_tokens, STEPS, &a);
	for (int round = 0; round < 3; round++) {
		kit_prefill(to, others, 0, 900, CHUNK, 0);
		ck_assert(llama_memory_seq_rm(llama_get_memory(to), 0, -1, -1));
		ck_assert_int_eq(kvstate_import(state, to, n, (const void *const *)blocks), 0);
		kit_answer(to, tokens, n_tokens, STEPS, &b);
		ck_assert_uint_eq(kit_same(&a, &b), STEPS);
		kit_answer_free(&b);
		ck_assert(llama_memory_seq_rm(llama_get_memory(to), 0, -1, -1));
	}
	kit_answer_free(&a);
	kit_blocks_free(blocks, n);
	kvstate_free(state);
	llama_free(from);
	llama_free(to);
	llama_model_free(model);
}
END_TEST

START_TEST(refuses_what_does_not_fit)
{
	struct kit_context how = { .n_ctx = 512, .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16 };
	struct llama_model *model = kit_model("gqa");
	struct llama_context *from = kit_context(model, &how), *to, *other;
	struct kvstate *state = kit_state(from, BLOCK);
	uint32_t n = 32, small = 16;
	void **blocks = kit_blocks(state, n);
	const void *const *in = (const void *const *)blocks;
	int32_t tokens[512];

	kit_prompt(model, 1, tokens, 512);
	kit_prefill(from, tokens, 0, n * BLOCK, CHUNK, 0);
	ck_assert_int_eq(kvstate_export(state, from, 0, n, blocks), 0);
	/* not there, or not all of it */
	ck_assert_int_eq(kvstate_export(state, from, n, 1, blocks), KVSTATE_FOREIGN);
	ck_assert_int_eq(kvstate_export(state, from, UINT32_MAX, 2, blocks), KVSTATE_FOREIGN);
	ck_assert(llama_memory_seq_rm(llama_get_memory(from), 0, 500, -1));
	ck_assert_int_eq(kvstate_export(state, from, n - 1, 1, blocks), KVSTATE_FOREIGN);
	ck_assert_int_eq(kvstate_export(state, from, n - 2, 1, blocks), 0);
	/* a context that is too small, and one that is not empty */
	how.n_ctx = small * BLOCK;
	to = kit_context(model, &how);
	ck_assert_int_eq(kvstate_import(state, to, small + 1, in), KVSTATE_NO_ROOM);
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(to), 0), -1);
	ck_assert_int_eq(kvstate_import(state, to, small, in), 0);
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(to), 0), small * BLOCK - 1);
	ck_assert_int_eq(kvstate_import(state, to, 1, in), KVSTATE_NO_ROOM);
	/* a context of another type */
	how.type_k = GGML_TYPE_Q8_0;
	other = kit_context(model, &how);
	ck_assert_int_eq(kvstate_import(state, other, 2, in), KVSTATE_NO_ROOM);
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(other), 0), -1);
	kit_prefill(other, tokens, 0, 64, CHUNK, 0);
	ck_assert_int_eq(kvstate_export(state, other, 0, 1, blocks), KVSTATE_FOREIGN);
	kit_blocks_free(blocks, n);
	kvstate_free(state);
	llama_free(from);
	llama_free(to);
	llama_free(other);
	llama_model_free(model);
}
END_TEST

static const struct {
	const char *model, *why;
	struct kit_context how;
} unsupported[] = {
	{ "gqa", "flash attention", { .no_flash = true } },
	{ "gqa", "kv_unified", { .streams = true } },
	{ "gqa", "n_seq_max", { .n_seq = 1 } },
	{ "window", "sliding window", { .n_seq = 2 } },
	{ "mrope", "several dimensions", { .n_seq = 2 } },
	{ "mamba", "recurrent", { .n_seq = 2 } },
};

START_TEST(says_what_is_unsupported)
{
	struct llama_model *model = kit_model(unsupported[_i].model);
	struct kit_context how = unsupported[_i].how;
	struct llama_context *ctx;
	struct kvstate *state;
	char why[256] = "";

	how.n_ctx = 512;
	how.type_k = how.type_v = GGML_TYPE_F16;
	ctx = kit_context(model, &how);
	ck_assert_int_eq(kvstate_new(ctx, BLOCK, &state, why, sizeof(why)), KVSTATE_UNSUPPORTED);
	ck_assert_ptr_null(state);
	ck_assert_msg(strstr(why, unsupported[_i].why) != NULL, "%s: \"%s\"", unsupported[_i].model,
		      why);
	llama_free(ctx);
	llama_model_free(model);
}
END_TEST

START_TEST(the_shape_is_told)
{
	struct kit_context how = { .n_ctx = 512, .type_k = GGML_TYPE_F16, .type_v = GGML_TYPE_F16 };
	struct llama_model *model = kit_model("gqa");
	struct llama_context *ctx = kit_context(model, &how);
	struct kvstate *state = kit_state(ctx, BLOCK);
	const struct kvstate_shape *s = kvstate_shape(state);

	ck_assert_uint_eq(s->n_layers, 3);
	ck_assert_uint_eq(s->kv_heads, 2);
	ck_assert_uint_eq(s->head_dim, 64);
	ck_assert_uint_eq(s->block_bytes, 2 * 3 * 2 * 64 * 2 * BLOCK);
	ck_assert(s->plain);
	ck_assert_str_eq(s->type_k, "f16");
	/* the probe is gone */
	ck_assert_int_eq(llama_memory_seq_pos_max(llama_get_memory(ctx), 0), -1);
	kvstate_free(state);
	llama_free(ctx);
	how.type_k = how.type_v = GGML_TYPE_Q8_0;
	ctx = kit_context(model, &how);
	state = kit_state(ctx, BLOCK);
	s = kvstate_shape(state);
	ck_assert(!s->plain);
	ck_assert_uint_eq(s->head_dim, 64);
	ck_assert_uint_eq(s->block_bytes, 2 * 3 * 2 * (64 / 32) * 34 * BLOCK);
	ck_assert_str_eq(s->type_v, "q8_0");
	ck_assert_uint_eq(s->rot_k, 64);
	kvstate_free(state);
	llama_free(ctx);
	llama_model_free(model);
}
END_TEST

START_TEST(the_library_is_the_headers)
{
	char why[256] = "", a[KVSTATE_SETTINGS], b[KVSTATE_SETTINGS];
	struct llama_context_params p = llama_context_default_params();

	ck_assert_msg(kvstate_check_library(why, sizeof(why)), "%s", why);
	kvstate_settings(&p, a, sizeof(a));
	kvstate_settings(&p, b, sizeof(b));
	ck_assert_str_eq(a, b);
	ck_assert_uint_lt(strlen(a), sizeof(a) - 1); /* nothing was cut off */
	p.rope_freq_base = 10000.5f;
	kvstate_settings(&p, b, sizeof(b));
	ck_assert_str_ne(a, b);
	ck_assert_ptr_nonnull(strstr(a, LLAMA_HEADER_COMMIT));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kvstate");
	TCase *t = tcase_create("kvstate");

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, carried_blocks_give_the_same_bits, 0, N_SHAPES);
	tcase_add_test(t, one_byte_shows);
	tcase_add_test(t, runs_of_any_length_are_the_same_blocks);
	tcase_add_test(t, scattered_cells_are_put_in_order);
	tcase_add_test(t, a_used_context_takes_blocks);
	tcase_add_test(t, refuses_what_does_not_fit);
	tcase_add_loop_test(t, says_what_is_unsupported, 0,
			    (int)(sizeof(unsupported) / sizeof(*unsupported)));
	tcase_add_test(t, the_shape_is_told);
	tcase_add_test(t, the_library_is_the_headers);
	suite_add_tcase(s, t);
	return test_run(s);
}
