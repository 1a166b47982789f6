#include "tests/e2e/worker.h"

#include "clients/c/prefixd_load.h"

#include "proto/open.h"
#include "tests/e2e/mover.h"
#include "tests/lib/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* The rank that makes a call as the k-th one: each call begins with another. */
static uint32_t nth(struct worker *w, uint32_t k)
{
	w->n_calls += k == 0;
	return (w->n_calls + k) % w->n_ranks;
}

/* Seed of the content of block i of a rank: all tokens up to its end. */
static uint64_t path_seed(const struct worker *w, uint32_t rank, uint32_t i)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (const char *s = w->salt; s && *s; s++)
		h = (h ^ (uint8_t)*s) * 0x100000001b3u;
	for (uint32_t k = 0; k < (i + 1) * WORKER_BLOCK_TOKENS; k++)
		h = (h ^ w->tokens[k]) * 0x100000001b3u;
	return h + rank;
}

static void fill(const struct worker *w, uint32_t rank, uint32_t i, void *out)
{
	uint64_t seed = path_seed(w, rank, i);

	test_rng_fill(&seed, out, WORKER_BLOCK_BYTES);
}

static bool right(const struct worker *w, uint32_t rank, uint32_t i, uint32_t slot)
{
	uint8_t want[WORKER_BLOCK_BYTES], has[WORKER_BLOCK_BYTES];

	fill(w, rank, i, want);
	mover_read(w->ranks[rank].ns, slot, has, sizeof(has));
	return memcmp(want, has, sizeof(want)) == 0;
}

static int open_namespace(struct worker *w, uint32_t rank)
{
	pfx_namespace_options n = {
		.struct_size = sizeof(n),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | (w->n_ranks > 1 ? PROTO_OPEN_STRIPE : 0),
		.model = "worker",
		.revision = "1",
		.dtype = "uint8",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = WORKER_BLOCK_TOKENS,
		.block_bytes = WORKER_BLOCK_BYTES,
		.layout = "opaque",
		.tp_size = w->n_ranks,
		.tp_rank = rank,
		.engine = "test",
		.map = 1,
	};

	return pfx_open(w->ranks[rank].client, &n, &w->ranks[rank].ns);
}

int worker_connect(struct worker *w, const char *socket, uint64_t seed)
{
	pfx_connect_options o = { .struct_size = sizeof(o),
				  .socket = socket,
				  .name = "test worker",
				  .deadline_ms = 20000 };
	int r = PFX_OK;

	if (!w->client) {
		memset(w, 0, sizeof(*w));
		w->rng = seed;
		w->n_ranks = e2e_ranks();
	}
	for (uint32_t i = 0; i < w->n_ranks && r == PFX_OK; i++) {
		struct worker_rank *rank = &w->ranks[i];

		if (!rank->client)
			r = pfx_connect(&o, &rank->client);
		if (r == PFX_OK && !rank->ns)
			r = open_namespace(w, i);
	}
	w->client = w->ranks[0].client;
	w->ns = w->ranks[0].ns;
	return r;
}

void worker_start(struct worker *w, const char *socket, uint64_t seed)
{
	memset(w, 0, sizeof(*w));
	if (worker_connect(w, socket, seed) != PFX_OK) {
		fprintf(stderr, "worker: %s\n", w->client ? pfx_error(w->client) : "no memory");
		exit(1);
	}
}

/* The running request's lease, or the n-th of those that were left.  Return: the first status that
 * is not PFX_OK, of all ranks. */
static int release(struct worker *w, bool left, uint32_t n)
{
	int r = PFX_OK;

	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);
		uint64_t lease = left ? w->ranks[i].left[n] : w->ranks[i].lease;
		int one = pfx_release(w->ranks[i].ns, lease, 0, 0, 0, NULL);

		r = r == PFX_OK ? one : r;
	}
	return r;
}

static void tidy_up(struct worker *w)
{
	while (w->n_left)
		w->errors += release(w, true, --w->n_left) != PFX_OK;
}

void worker_stop(struct worker *w)
{
	tidy_up(w);
	for (uint32_t i = 0; i < w->n_ranks; i++) {
		pfx_close(w->ranks[i].client);
		w->ranks[i] = (struct worker_rank){ 0 };
	}
	w->client = NULL;
	w->ns = NULL;
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

/* What one rank is told of a call, and what the first one was told of it. */
struct told {
	uint32_t n_runs;
	pfx_run runs[WORKER_MAX_BLOCKS];
};

/* Every rank has to be told of the same slots. */
static void tell(struct worker *w, struct told *told, uint32_t k, const pfx_run *runs,
		 uint32_t n_runs)
{
	bool same = k == 0 || n_runs == told->n_runs;

	if (k == 0)
		told->n_runs = n_runs < WORKER_MAX_BLOCKS ? n_runs : WORKER_MAX_BLOCKS;
	for (uint32_t i = 0; same && i < told->n_runs; i++) {
		if (k == 0)
			told->runs[i] = runs[i];
		same = runs[i].start == told->runs[i].start && runs[i].len == told->runs[i].len;
	}
	w->errors += !same;
}

/* Compares the blocks of one rank that came with a result, the first of them block i. */
static void check_hits(struct worker *w, uint32_t rank, const pfx_match_result *m, uint32_t i)
{
	for (uint32_t k = 0; k < m->n_runs; k++) {
		for (uint32_t j = 0; j < m->runs[k].len; j++, i++) {
			w->blocks_verified++;
			w->corrupt += !right(w, rank, i, m->runs[k].start + j);
		}
	}
}

/* Blocks that came with a result, behind those that were there before. */
static void take_hits(struct worker *w, const pfx_match_result *m)
{
	uint32_t n = w->n_hit;

	for (uint32_t k = 0; k < m->n_runs; k++)
		for (uint32_t j = 0; j < m->runs[k].len && n < WORKER_MAX_BLOCKS; j++)
			w->hits[n++] = m->runs[k].start + j;
	w->n_hit += m->n_device;
	w->errors += n != w->n_hit;
	w->n_pending = m->n_pending;
	w->n_host = m->n_host;
	w->n_redis = m->n_redis;
	w->loading = m->loading;
}

/* An id that no other request of any worker has. */
static void decide(struct worker *w, uint8_t ret_id[16])
{
	memset(ret_id, 0, 16);
	if (w->n_ranks == 1)
		return;
	if (getrandom(ret_id, 16, 0) != 16)
		abort();
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
	static struct told told;

	decide(w, p.decision_id);
	w->n_reserved = w->n_committed = w->n_hit = w->n_pending = 0;
	w->lease = 0;
	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);
		int r = pfx_match(w->ranks[i].ns, &p, &m);

		if (r != PFX_OK)
			return r;
		w->ranks[i].lease = m.lease;
		w->reuse = m.reuse;
		tell(w, &told, k, m.runs, m.n_runs);
		check_hits(w, i, &m, 0);
	}
	w->lease = w->ranks[0].lease;
	take_hits(w, &m);
	return PFX_OK;
}

int worker_extend(struct worker *w, uint32_t n_more)
{
	pfx_prompt p = { .struct_size = sizeof(p),
			 .salt = "",
			 .keys = n_more ? w->tokens + w->n_blocks * WORKER_BLOCK_TOKENS : NULL,
			 .n_keys = n_more,
			 .n_tokens = (uint64_t)(w->n_blocks + n_more) * WORKER_BLOCK_TOKENS,
			 .flags = w->single_flight ? PFX_MATCH_LEAD : 0 };
	pfx_match_result m = { .struct_size = sizeof(m) };
	static struct told told;

	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);
		int r = pfx_extend(w->ranks[i].ns, w->ranks[i].lease, &p, &m);

		if (r != PFX_OK)
			return r;
		tell(w, &told, k, m.runs, m.n_runs);
		check_hits(w, i, &m, w->n_hit);
	}
	w->n_blocks += n_more;
	take_hits(w, &m);
	return PFX_OK;
}

int worker_wait(struct worker *w)
{
	bool lead = false;

	while (w->n_pending && !lead) {
		pfx_wait_result wait = { .struct_size = sizeof(wait) }, first = wait;
		uint32_t before = w->n_hit;
		int r;

		for (uint32_t k = 0; k < w->n_ranks; k++) {
			uint32_t i = nth(w, k);

			r = pfx_wait(w->ranks[i].ns, w->ranks[i].lease, 0, &wait);
			if (r != PFX_OK)
				return r;
			if (k == 0)
				first = wait;
			w->errors += wait.state != first.state || wait.n != first.n;
		}
		w->waits++;
		lead = wait.state == PFX_WAIT_LEAD;
		w->leads += lead;
		r = worker_extend(w, 0);
		if (r != PFX_OK)
			return r;
		w->errors += w->n_hit - before < wait.n;
	}
	return PFX_OK;
}

int worker_load(struct worker *w)
{
	pfx_load_result load = { .struct_size = sizeof(load) }, first = load;
	uint32_t before = w->n_hit;
	bool alone = w->single_flight;
	int r;

	if (!w->loading)
		return PFX_OK;
	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);

		r = pfx_load_wait(w->ranks[i].ns, w->ranks[i].lease, 0, &load);
		if (r != PFX_OK)
			return r;
		if (k == 0)
			first = load;
		w->errors += load.n != first.n || load.reason != first.reason;
	}
	w->loads++;
	w->loads_failed += load.reason != 0;
	w->load_reason = load.reason;
	if (load.n == 0)
		return PFX_OK;
	w->single_flight = false;
	r = worker_extend(w, 0);
	w->single_flight = alone;
	if (r != PFX_OK)
		return r;
	w->errors += w->n_hit - before < load.n;
	w->blocks_loaded += w->n_hit - before;
	return PFX_OK;
}

int worker_reserve(struct worker *w)
{
	uint32_t n = w->n_blocks - w->n_hit - w->n_reserved;
	pfx_reserve_result res = { .struct_size = sizeof(res) };
	static struct told told;
	int first = PFX_OK;

	if (n == 0)
		return PFX_OK;
	for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
		uint32_t i = nth(w, rank);
		int r = pfx_reserve(w->ranks[i].ns, w->ranks[i].lease, n, 0, &res);

		if (rank == 0)
			first = r;
		w->errors += r != first && r != PFX_GONE && r != PFX_UNKNOWN_LEASE;
		if (r != PFX_OK && r != PFX_BUSY)
			return r;
		if (r == PFX_OK)
			tell(w, &told, rank, res.runs, res.n_runs);
	}
	if (first != PFX_OK)
		return first;
	for (uint32_t k = 0; k < res.n_runs; k++) {
		for (uint32_t j = 0; j < res.runs[k].len; j++)
			w->slots[w->n_reserved++] = res.runs[k].start + j;
	}
	return PFX_OK;
}

void worker_write(struct worker *w, uint32_t from, uint32_t n)
{
	uint8_t block[WORKER_BLOCK_BYTES];

	for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
		for (uint32_t i = from; i < from + n && i < w->n_reserved; i++) {
			fill(w, rank, w->n_hit + i, block);
			mover_write(w->ranks[rank].ns, w->slots[i], block, sizeof(block));
		}
	}
}

/* The last rank is told what was stored. */
int worker_commit(struct worker *w, uint32_t n)
{
	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);
		pfx_commit_result c = { .struct_size = sizeof(c) };
		int r = pfx_commit(w->ranks[i].ns, w->ranks[i].lease, n, NULL, 0, 0, &c);

		if (r != PFX_OK)
			return r;
		w->errors += k + 1 < w->n_ranks && c.n_stored > 0;
		w->blocks_stored += c.n_stored;
	}
	w->n_committed += n;
	return PFX_OK;
}

int worker_release(struct worker *w)
{
	return release(w, false, 0);
}

int worker_ping(struct worker *w)
{
	int r = PFX_OK;

	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);
		int one = pfx_ping(w->ranks[i].client, 0);

		r = r == PFX_OK ? one : r;
	}
	return r;
}

int worker_quiesced(struct worker *w, uint32_t *ret_n_slots)
{
	uint32_t n = 0, sum = 0;
	int r = PFX_OK;

	for (uint32_t k = 0; k < w->n_ranks; k++) {
		uint32_t i = nth(w, k);
		int one = pfx_quiesced(w->ranks[i].client, &n);

		sum += one == PFX_OK ? n : 0;
		r = r == PFX_OK ? one : r;
	}
	if (ret_n_slots)
		*ret_n_slots = sum;
	return r;
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
	for (uint32_t i = 0; i < w->n_ranks; i++)
		w->ranks[i].left[w->n_left] = w->ranks[i].lease;
	if (++w->n_left == WORKER_MAX_LEFT)
		tidy_up(w);
}
