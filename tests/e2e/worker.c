#include "tests/e2e/worker.h"

#include "clients/c/prefixd_load.h"

#include "tests/e2e/mover.h"
#include "tests/lib/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seed of the content of block i: all tokens up to its end. */
static uint64_t path_seed(const struct worker *w, uint32_t i)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (const char *s = w->salt; s && *s; s++)
		h = (h ^ (uint8_t)*s) * 0x100000001b3u;
	for (uint32_t k = 0; k < (i + 1) * WORKER_BLOCK_TOKENS; k++)
		h = (h ^ w->tokens[k]) * 0x100000001b3u;
	return h;
}

static void fill(const struct worker *w, uint32_t i, void *out)
{
	uint64_t seed = path_seed(w, i);

	test_rng_fill(&seed, out, WORKER_BLOCK_BYTES);
}

static bool right(const struct worker *w, uint32_t i, uint32_t slot)
{
	uint8_t want[WORKER_BLOCK_BYTES], has[WORKER_BLOCK_BYTES];

	fill(w, i, want);
	mover_read(w->ns, slot, has, sizeof(has));
	return memcmp(want, has, sizeof(want)) == 0;
}

int worker_connect(struct worker *w, const char *socket, uint64_t seed)
{
	pfx_connect_options o = { .struct_size = sizeof(o),
				  .socket = socket,
				  .name = "test worker",
				  .deadline_ms = 20000 };
	pfx_namespace_options n = {
		.struct_size = sizeof(n),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE,
		.model = "worker",
		.revision = "1",
		.dtype = "uint8",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = WORKER_BLOCK_TOKENS,
		.block_bytes = WORKER_BLOCK_BYTES,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "test",
		.map = 1,
	};

	int r = PFX_OK;

	if (!w->client) {
		memset(w, 0, sizeof(*w));
		w->rng = seed;
		r = pfx_connect(&o, &w->client);
	}
	return r != PFX_OK || w->ns ? r : pfx_open(w->client, &n, &w->ns);
}

void worker_start(struct worker *w, const char *socket, uint64_t seed)
{
	memset(w, 0, sizeof(*w));
	if (worker_connect(w, socket, seed) != PFX_OK) {
		fprintf(stderr, "worker: %s\n", w->client ? pfx_error(w->client) : "no memory");
		exit(1);
	}
}

static void tidy_up(struct worker *w)
{
	while (w->n_left)
		w->errors += pfx_release(w->ns, w->left[--w->n_left], 0, 0, 0, NULL) != PFX_OK;
}

void worker_stop(struct worker *w)
{
	tidy_up(w);
	pfx_close(w->client);
	w->client = NULL;
}

void worker_prompt(struct worker *w, uint32_t n_blocks, uint32_t stem, uint64_t variant)
{
	uint64_t shared = 1000 + stem % 16, own = variant * 2 + 1;
	uint32_t n_shared = n_blocks / 2;

	w->n_blocks = n_blocks;
	for (uint32_t i = 0; i < n_blocks * WORKER_BLOCK_TOKENS; i++)
		w->tokens[i] = test_rng_below(i < n_shared * WORKER_BLOCK_TOKENS ? &shared : &own,
					      32000);
}

/* Blocks that came with a result, behind those that were there before. */
static void take_hits(struct worker *w, const pfx_match_result *m)
{
	uint32_t i = w->n_hit;

	w->n_hit += m->n_device;
	w->n_pending = m->n_pending;
	w->n_host = m->n_host;
	w->n_redis = m->n_redis;
	w->loading = m->loading;
	for (uint32_t k = 0; k < m->n_runs; k++) {
		for (uint32_t j = 0; j < m->runs[k].len; j++, i++) {
			w->blocks_verified++;
			w->corrupt += !right(w, i, m->runs[k].start + j);
		}
	}
	w->errors += i != w->n_hit;
}

int worker_match(struct worker *w)
{
	const char *salt = w->salt ? w->salt : "";
	pfx_prompt p = { .struct_size = sizeof(p),
			 .salt = salt,
			 .salt_len = (uint32_t)strlen(salt),
			 .keys = w->tokens,
			 .n_keys = w->n_blocks,
			 .flags = (w->single_flight ? PFX_MATCH_LEAD : 0) |
				  (w->promote ? PFX_MATCH_PROMOTE : 0) };
	pfx_match_result m = { .struct_size = sizeof(m) };
	int r = pfx_match(w->ns, &p, &m);

	w->n_reserved = w->n_committed = w->n_hit = w->n_pending = 0;
	w->lease = 0;
	if (r != PFX_OK)
		return r;
	w->lease = m.lease;
	take_hits(w, &m);
	return r;
}

int worker_wait(struct worker *w)
{
	pfx_prompt none = { .struct_size = sizeof(none),
			    .salt = "",
			    .n_tokens = (uint64_t)w->n_blocks * WORKER_BLOCK_TOKENS,
			    .flags = PFX_MATCH_LEAD };
	bool lead = false;

	while (w->n_pending && !lead) {
		pfx_wait_result wait = { .struct_size = sizeof(wait) };
		pfx_match_result m = { .struct_size = sizeof(m) };
		int r = pfx_wait(w->ns, w->lease, 0, &wait);

		if (r != PFX_OK)
			return r;
		w->waits++;
		lead = wait.state == PFX_WAIT_LEAD;
		w->leads += lead;
		r = pfx_extend(w->ns, w->lease, &none, &m);
		if (r != PFX_OK)
			return r;
		w->errors += m.n_device < wait.n;
		take_hits(w, &m);
	}
	return PFX_OK;
}

int worker_load(struct worker *w)
{
	pfx_load_result load = { .struct_size = sizeof(load) };
	pfx_prompt none = { .struct_size = sizeof(none),
			    .salt = "",
			    .n_tokens = (uint64_t)w->n_blocks * WORKER_BLOCK_TOKENS };
	pfx_match_result m = { .struct_size = sizeof(m) };
	uint32_t before = w->n_hit;
	int r;

	if (!w->loading)
		return PFX_OK;
	r = pfx_load_wait(w->ns, w->lease, 0, &load);
	if (r != PFX_OK)
		return r;
	w->loads++;
	w->loads_failed += load.reason != 0;
	w->load_reason = load.reason;
	if (load.n == 0)
		return PFX_OK;
	r = pfx_extend(w->ns, w->lease, &none, &m);
	if (r != PFX_OK)
		return r;
	take_hits(w, &m);
	w->errors += w->n_hit - before < load.n;
	w->blocks_loaded += w->n_hit - before;
	return PFX_OK;
}

int worker_reserve(struct worker *w)
{
	pfx_reserve_result res = { .struct_size = sizeof(res) };
	int r;

	if (w->n_hit + w->n_reserved == w->n_blocks)
		return PFX_OK;
	r = pfx_reserve(w->ns, w->lease, w->n_blocks - w->n_hit - w->n_reserved, 0, &res);
	if (r != PFX_OK)
		return r;
	for (uint32_t k = 0; k < res.n_runs; k++) {
		for (uint32_t j = 0; j < res.runs[k].len; j++)
			w->slots[w->n_reserved++] = res.runs[k].start + j;
	}
	return r;
}

void worker_write(struct worker *w, uint32_t from, uint32_t n)
{
	uint8_t block[WORKER_BLOCK_BYTES];

	for (uint32_t i = from; i < from + n && i < w->n_reserved; i++) {
		fill(w, w->n_hit + i, block);
		mover_write(w->ns, w->slots[i], block, sizeof(block));
	}
}

int worker_commit(struct worker *w, uint32_t n)
{
	pfx_commit_result c = { .struct_size = sizeof(c) };
	int r = pfx_commit(w->ns, w->lease, n, NULL, 0, 0, &c);

	if (r == PFX_OK) {
		w->n_committed += n;
		w->blocks_stored += c.n_stored;
	}
	return r;
}

int worker_release(struct worker *w)
{
	return pfx_release(w->ns, w->lease, 0, 0, 0, NULL);
}

/* What may go wrong honestly: no slot is free, or the daemon just restarted. */
static bool ordinary(struct worker *w, int r)
{
	w->busy += r == PFX_BUSY;
	w->errors += r != PFX_OK && r != PFX_BUSY;
	return r == PFX_OK;
}

void worker_request(struct worker *w)
{
	uint32_t n_blocks = 2 + test_rng_below(&w->rng, WORKER_SOME_BLOCKS - 2), left;
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "" };
	pfx_explain_result why = { .struct_size = sizeof(why) };
	uint32_t n_device;

	worker_prompt(w, n_blocks, test_rng_below(&w->rng, 16), test_rng_below(&w->rng, 200));
	w->requests++;
	if (!ordinary(w, worker_match(w)))
		return;
	if (w->promote)
		ordinary(w, worker_load(w));
	if (ordinary(w, worker_reserve(w)) && w->n_reserved) {
		worker_write(w, 0, w->n_reserved);
		left = w->n_reserved;
		while (left) {
			uint32_t n = 1 + test_rng_below(&w->rng, left);

			if (!ordinary(w, worker_commit(w, n)))
				break;
			left -= n;
		}
	}
	p.keys = w->tokens;
	p.n_keys = w->n_blocks;
	if (test_rng_below(&w->rng, 4) == 0)
		ordinary(w, pfx_probe(w->ns, &p, &n_device, NULL, 0));
	if (test_rng_below(&w->rng, 8) == 0)
		ordinary(w, pfx_explain(w->ns, &p, &why));
	if (test_rng_below(&w->rng, 8) == 0)
		ordinary(w, pfx_report(w->ns, 1000, 100, n_blocks * WORKER_BLOCK_TOKENS, 1, 0));
	if (test_rng_below(&w->rng, 50) != 0) {
		ordinary(w, worker_release(w));
		return;
	}
	w->left[w->n_left++] = w->lease;
	if (w->n_left == sizeof(w->left) / sizeof(w->left[0]))
		tidy_up(w);
}
