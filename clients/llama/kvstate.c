/*
 * kvstate.c - see kvstate.h; the blob's layout is kvblob.c's.
 *
 * Blocks leave and enter in pieces of PIECE_BYTES at most, by way of sequence 1: cells of sequence
 * 0 are lent to it (or those of it given to sequence 0), which copies nothing.  So the scratch
 * buffer stays small enough for a cache, is touched again and again, and is never given back.
 */
#include "clients/llama/kvstate.h"

#include "clients/llama/kvblob.h"

#define XXH_INLINE_ALL
#include <errno.h>
#include <llama.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PIECE_BYTES ((size_t)4 << 20)
#define PROBE       2 /* tokens */
#define SCRATCH     1 /* the sequence */

struct kvstate {
	struct kvstate_shape shape;
	struct kvblob model; /* of the probe */
	struct kvblob got;   /* of the last blob */
	uint32_t piece;      /* blocks */
	uint8_t *blob;
	size_t blob_cap;
	uint32_t *order; /* piece * block_tokens */
};

__attribute__((format(printf, 3, 4))) static void say(char *why, size_t why_len, const char *fmt,
						      ...)
{
	va_list args;

	if (!why_len)
		return;
	va_start(args, fmt);
	(void)vsnprintf(why, why_len, fmt, args);
	va_end(args);
}

bool kvstate_check_library(char *why, size_t why_len)
{
	struct llama_context_params p = llama_context_default_params();

	/* The package's tag may carry a suffix, "-dirty": its build patches files. */
	if (strncmp(ggml_commit(), LLAMA_HEADER_COMMIT, strlen(LLAMA_HEADER_COMMIT)) != 0) {
		say(why, why_len, "libllama of commit %s was loaded, not of %s (%s)", ggml_commit(),
		    LLAMA_HEADER_COMMIT, LLAMA_HEADER_TAG);
		return false;
	}
	/* Members far apart, whose defaults nobody changes: a struct of another shape shows. */
	if (p.type_k != GGML_TYPE_F16 || p.type_v != GGML_TYPE_F16 || p.n_seq_max != 1 ||
	    p.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_AUTO || p.kv_unified || p.ctx_other) {
		say(why, why_len, "libllama's context parameters are not those of its header");
		return false;
	}
	return true;
}

void kvstate_settings(const struct llama_context_params *p, char *ret, size_t len)
{
	char all[1024];
	XXH128_hash_t sum;

	say(all, sizeof(all),
	    "%s %s attention=%d rope=%d,%a,%a yarn=%a,%a,%a,%a,%u swa_full=%d offload=%d,%d cpu=%s",
	    LLAMA_HEADER_COMMIT, ggml_version(), (int)p->attention_type, (int)p->rope_scaling_type,
	    (double)p->rope_freq_base, (double)p->rope_freq_scale, (double)p->yarn_ext_factor,
	    (double)p->yarn_attn_factor, (double)p->yarn_beta_fast, (double)p->yarn_beta_slow,
	    p->yarn_orig_ctx, p->swa_full, p->offload_kqv, p->op_offload,
	    llama_print_system_info());
	sum = XXH3_128bits(all, strlen(all));
	say(ret, len, "llama.cpp %s fa=%d %016jx%016jx", LLAMA_HEADER_COMMIT,
	    (int)p->flash_attn_type, (uintmax_t)sum.high64, (uintmax_t)sum.low64);
}

/* ---- the shape ------------------------------------------------------------------------------- */

/* Return: NULL, or what of the model cannot be. */
static const char *model_unsupported(const struct llama_model *model)
{
	enum llama_rope_type rope = llama_model_rope_type(model);

	if (llama_model_is_recurrent(model))
		return "a recurrent model's state cannot be cut into blocks";
	if (llama_model_is_hybrid(model))
		return "the recurrent layers of a hybrid model cannot be cut into blocks";
	if (llama_model_has_encoder(model) || !llama_model_has_decoder(model))
		return "a model with an encoder is not supported";
	if (llama_model_is_diffusion(model))
		return "a diffusion model has no prefix to share";
	if (llama_model_n_swa(model) > 0)
		return "layers with a sliding window are not supported";
	if (rope != LLAMA_ROPE_TYPE_NONE && rope != LLAMA_ROPE_TYPE_NORM &&
	    rope != LLAMA_ROPE_TYPE_NEOX)
		return "positions of several dimensions (M-RoPE) are not supported";
	return NULL;
}

/* Bytes of the blob of a sequence, in s->blob.  Return: 0, -ENOMEM. */
static int get_blob(struct kvstate *s, struct llama_context *ctx, int32_t sequence, size_t want,
		    size_t *ret_len)
{
	if (want > s->blob_cap) {
		uint8_t *v = realloc(s->blob, want);

		if (!v)
			return -ENOMEM;
		s->blob = v;
		s->blob_cap = want;
	}
	*ret_len = llama_state_seq_get_data(ctx, s->blob, want, sequence);
	return 0;
}

static int decode_probe(struct llama_context *ctx)
{
	const struct llama_vocab *vocab = llama_model_get_vocab(llama_get_model(ctx));
	llama_token bos = llama_vocab_bos(vocab), tokens[PROBE];

	for (int i = 0; i < PROBE; i++)
		tokens[i] = bos >= 0 && bos < llama_vocab_n_tokens(vocab) ? bos : 0;
	return llama_decode(ctx, llama_batch_get_one(tokens, PROBE));
}

static void type_name(const struct kvblob_rows *rows, uint32_t n, char ret[16])
{
	const char *name = "mixed";
	uint32_t same = 1;

	while (same < n && rows[same].type == rows[0].type)
		same++;
	if (same == n)
		name = rows[0].type < GGML_TYPE_COUNT ? ggml_type_name((enum ggml_type)rows[0].type)
						      : NULL;
	say(ret, 16, "%s", name ? name : "unknown");
}

/*
 * Models whose positions turn by one table in short contexts and by another in long ones (LongRoPE)
 * choose by the length that the context was made with, not by what is in it.
 */
static int beyond_original(const struct llama_context *ctx, const struct llama_model *model)
{
	int32_t original = llama_model_n_ctx_train(model);
	char arch[64], key[128], value[32];

	if (llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch)) > 0) {
		say(key, sizeof(key), "%s.rope.scaling.original_context_length", arch);
		if (llama_model_meta_val_str(model, key, value, sizeof(value)) > 0)
			original = (int32_t)strtol(value, NULL, 10);
	}
	return original < 0 || llama_n_ctx_seq(ctx) > (uint32_t)original;
}

/* kv_heads, head_dim, and whether K and V rows are those of kv_heads * head_dim plain numbers. */
static void describe(struct kvstate *s, const struct llama_model *model)
{
	const struct kvblob *b = &s->model;
	struct kvstate_shape *shape = &s->shape;
	int32_t heads = llama_model_n_head_kv(model), type = b->k[0].type;
	uint64_t element, numbers;

	shape->n_layers = b->n_layers;
	shape->rot_k = b->rot_k;
	shape->rot_v = b->rot_v;
	type_name(b->k, b->n_layers, shape->type_k);
	type_name(b->v, b->n_layers, shape->type_v);
	shape->kv_heads = heads > 0 ? (uint32_t)heads : 1;
	shape->plain = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
	element = type == GGML_TYPE_F32 ? 4 : 2;
	numbers = b->k[0].size / element;
	if (!shape->plain && type < GGML_TYPE_COUNT && ggml_type_size((enum ggml_type)type))
		numbers = b->k[0].size / ggml_type_size((enum ggml_type)type) *
			  (uint64_t)ggml_blck_size((enum ggml_type)type);
	shape->head_dim = (uint32_t)(numbers / shape->kv_heads);
	if (numbers % shape->kv_heads)
		shape->plain = 0;
	for (uint32_t i = 0; i < b->n_layers; i++) {
		if (b->k[i].type != type || b->v[i].type != type || b->k[i].size != b->k[0].size ||
		    b->v[i].size != b->k[0].size)
			shape->plain = 0;
	}
}

static int probe(struct kvstate *s, struct llama_context *ctx, char *why, size_t why_len)
{
	llama_memory_t memory = llama_get_memory(ctx);
	size_t len;
	int e, r;

	e = decode_probe(ctx);
	if (e) {
		say(why, why_len, "libllama does not decode: %d", e);
		llama_memory_seq_rm(memory, 0, -1, -1);
		return KVSTATE_UNSUPPORTED;
	}
	r = get_blob(s, ctx, 0, llama_state_seq_get_size(ctx, 0), &len);
	llama_memory_seq_rm(memory, 0, -1, -1);
	if (r)
		return r;
	e = kvblob_parse(s->blob, len, &s->model);
	if (e) {
		say(why, why_len, "the state of a sequence %s", kvblob_error_to_string(e));
		return KVSTATE_UNSUPPORTED;
	}
	if (s->model.n_cells != PROBE || kvblob_size(&s->model, PROBE) != len) {
		say(why, why_len, "the state of %d tokens has %u cells", PROBE, s->model.n_cells);
		return KVSTATE_FOREIGN;
	}
	return 0;
}

static int begin(struct kvstate *s, struct llama_context *ctx, char *why, size_t why_len)
{
	const struct llama_model *model = llama_get_model(ctx);
	const char *bad = model_unsupported(model);
	uint64_t token;
	int r;

	if (!bad && !llama_get_memory(ctx))
		bad = "this model has no K/V";
	if (!bad && llama_n_seq_max(ctx) < 2)
		bad = "the context needs n_seq_max of 2: one sequence is for copying";
	if (!bad && llama_memory_seq_pos_max(llama_get_memory(ctx), 0) >= 0)
		bad = "sequence 0 of the context is not empty";
	if (bad) {
		say(why, why_len, "%s", bad);
		return KVSTATE_UNSUPPORTED;
	}
	r = probe(s, ctx, why, why_len);
	if (r)
		return r;
	describe(s, model);
	s->shape.beyond = beyond_original(ctx, model);
	token = kvblob_token_bytes(&s->model);
	if (!token || token > SIZE_MAX / 4 / s->shape.block_tokens) {
		say(why, why_len, "a block of %u tokens is too large", s->shape.block_tokens);
		return KVSTATE_UNSUPPORTED;
	}
	s->shape.block_bytes = token * s->shape.block_tokens;
	s->piece = (uint32_t)(PIECE_BYTES / s->shape.block_bytes);
	if (!s->piece)
		s->piece = 1;
	s->order = calloc((size_t)s->piece * s->shape.block_tokens, sizeof(*s->order));
	if (!s->order) {
		say(why, why_len, "no memory");
		return -ENOMEM;
	}
	return 0;
}

int kvstate_new(struct llama_context *ctx, uint32_t block_tokens, struct kvstate **ret, char *why,
		size_t why_len)
{
	struct kvstate *s;
	int r;

	*ret = NULL;
	if (!block_tokens || block_tokens > llama_n_ctx(ctx)) {
		say(why, why_len, "blocks of %u tokens in a context of %u", block_tokens,
		    llama_n_ctx(ctx));
		return KVSTATE_UNSUPPORTED;
	}
	s = calloc(1, sizeof(*s));
	if (!s) {
		say(why, why_len, "no memory");
		return -ENOMEM;
	}
	s->shape.block_tokens = block_tokens;
	r = begin(s, ctx, why, why_len);
	if (r) {
		kvstate_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct kvstate *kvstate_free(struct kvstate *s)
{
	if (s) {
		free(s->blob);
		free(s->order);
		free(s);
	}
	return NULL;
}

const struct kvstate_shape *kvstate_shape(const struct kvstate *s)
{
	return &s->shape;
}

/* ---- out and in ------------------------------------------------------------------------------ */

static int export_piece(struct kvstate *s, struct llama_context *ctx, uint32_t first, uint32_t n,
			void *const *out)
{
	llama_memory_t memory = llama_get_memory(ctx);
	uint32_t bt = s->shape.block_tokens;
	int32_t from = (int32_t)(first * bt), to = (int32_t)((first + n) * bt);
	size_t want = kvblob_size(&s->model, n * bt), len;
	int r;

	if (!want)
		return KVSTATE_FOREIGN;
	llama_memory_seq_cp(memory, 0, SCRATCH, from, to);
	r = get_blob(s, ctx, SCRATCH, want, &len);
	llama_memory_seq_rm(memory, SCRATCH, -1, -1);
	if (r)
		return r;
	if (len != want || kvblob_parse(s->blob, len, &s->got) || s->got.n_cells != n * bt ||
	    !kvblob_same_shape(&s->got, &s->model) ||
	    !kvblob_order(s->blob, &s->got, from, s->order))
		return KVSTATE_FOREIGN;
	kvblob_read(s->blob, &s->got, s->order, bt, n, out);
	return 0;
}

int kvstate_export(struct kvstate *s, struct llama_context *ctx, uint32_t first, uint32_t n,
		   void *const *out)
{
	uint32_t n_ctx = llama_n_ctx(ctx) / s->shape.block_tokens;
	int r = 0;

	if (first > n_ctx || n > n_ctx - first)
		return KVSTATE_FOREIGN;
	for (uint32_t i = 0, m; i < n && !r; i += m) {
		m = n - i < s->piece ? n - i : s->piece;
		r = export_piece(s, ctx, first + i, m, out + i);
	}
	return r;
}

static int import_piece(struct kvstate *s, struct llama_context *ctx, uint32_t first, uint32_t n,
			const void *const *in)
{
	llama_memory_t memory = llama_get_memory(ctx);
	uint32_t bt = s->shape.block_tokens;
	int32_t from = (int32_t)(first * bt), to = (int32_t)((first + n) * bt);
	size_t want = kvblob_size(&s->model, n * bt);

	if (!want)
		return KVSTATE_NO_ROOM;
	if (want > s->blob_cap) {
		uint8_t *v = realloc(s->blob, want);

		if (!v)
			return -ENOMEM;
		s->blob = v;
		s->blob_cap = want;
	}
	kvblob_write(&s->model, from, bt, n, in, s->blob);
	if (llama_state_seq_set_data(ctx, s->blob, want, SCRATCH) != want)
		return KVSTATE_NO_ROOM;
	/* It takes any positions; what it made of ours is looked at. */
	if (llama_memory_seq_pos_min(memory, SCRATCH) != from ||
	    llama_memory_seq_pos_max(memory, SCRATCH) != to - 1)
		return KVSTATE_NO_ROOM;
	llama_memory_seq_cp(memory, SCRATCH, 0, -1, -1);
	llama_memory_seq_rm(memory, SCRATCH, -1, -1);
	return 0;
}

int kvstate_import(struct kvstate *s, struct llama_context *ctx, uint32_t n, const void *const *in)
{
	llama_memory_t memory = llama_get_memory(ctx);
	uint32_t bt = s->shape.block_tokens;
	int r = 0;

	if (n > llama_n_ctx(ctx) / bt || llama_n_seq_max(ctx) < 2 ||
	    llama_memory_seq_pos_max(memory, 0) >= 0)
		return KVSTATE_NO_ROOM;
	for (uint32_t i = 0, m; i < n && !r; i += m) {
		m = n - i < s->piece ? n - i : s->piece;
		r = import_piece(s, ctx, i, m, in + i);
	}
	if (!r && n &&
	    (llama_memory_seq_pos_min(memory, 0) != 0 ||
	     llama_memory_seq_pos_max(memory, 0) != (int32_t)(n * bt) - 1))
		r = KVSTATE_NO_ROOM;
	if (r) {
		llama_memory_seq_rm(memory, SCRATCH, -1, -1);
		llama_memory_seq_rm(memory, 0, -1, -1);
	}
	return r;
}
