/*
 * test_replay_ranks.c - replays by workers that are several ranks ($E2E_RANKS): every request hits
 * exactly the blocks that it hits in exact leaf LRU, in every rank's pool, byte for byte.
 *
 * prefixd-replay's workloads and its LRU, and the tests' worker, which speaks for all ranks.
 */
#include "clients/replay/lru.h"
#include "clients/replay/util.h"
#include "clients/replay/workload.h"
#include "tests/e2e/replay_kit.h"
#include "tests/e2e/worker.h"
#include "tests/lib/run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	REQUESTS = 200,
	WORKERS = 2 /* which take turns */
};

static struct worker workers[WORKERS];

/* The request's prompt: a block's tokens are a function of its name. */
static void ask_for(struct worker *w, const struct replay_trace *t, const struct replay_request *r)
{
	const uint32_t *blocks = replay_trace_blocks(t, r);

	ck_assert_uint_le(r->n_blocks, WORKER_MAX_BLOCKS);
	w->n_blocks = r->n_blocks;
	for (uint32_t i = 0; i < r->n_blocks; i++)
		for (uint32_t k = 0; k < WORKER_BLOCK_TOKENS; k++)
			w->tokens[i * WORKER_BLOCK_TOKENS + k] =
				(uint32_t)(replay_mix(t->names[blocks[i]] + k) >> 33);
}

/* All that is missing, as far as there is room. */
static void store(struct worker *w)
{
	int r = PFX_OK;

	while (r == PFX_OK && w->n_hit + w->n_committed < w->n_blocks) {
		r = worker_reserve(w);
		if (r != PFX_OK)
			break;
		ck_assert_uint_gt(w->n_reserved, w->n_committed);
		worker_write(w, w->n_committed, w->n_reserved - w->n_committed);
		r = worker_commit(w, w->n_reserved - w->n_committed);
	}
	ck_assert_msg(r == PFX_OK || r == PFX_BUSY, "%s", pfx_error(w->client));
}

static void replay(const struct replay_trace *t, uint64_t capacity)
{
	uint32_t *want = replay_alloc(t->n_requests, sizeof(*want));
	uint64_t stored = 0, verified = 0;
	struct replay_lru_result lru;

	replay_lru_run(t, capacity, want, &lru);
	replay_start_pool(capacity);
	for (uint32_t i = 0; i < WORKERS; i++)
		worker_start(&workers[i], replay_daemon.socket, i);
	for (size_t i = 0; i < t->n_requests; i++) {
		struct worker *w = &workers[i % WORKERS];

		ask_for(w, t, &t->requests[i]);
		ck_assert_int_eq(worker_match(w), PFX_OK);
		ck_assert_msg(w->n_hit == want[i], "request %zu of %llu slots: %u hits, %u wanted",
			      i, (unsigned long long)capacity, w->n_hit, want[i]);
		store(w);
		ck_assert_int_eq(worker_release(w), PFX_OK);
	}
	for (uint32_t i = 0; i < WORKERS; i++) {
		struct worker *w = &workers[i];

		ck_assert_uint_eq(w->corrupt + w->errors, 0);
		stored += w->blocks_stored;
		verified += w->blocks_verified;
		worker_stop(w);
	}
	ck_assert_uint_eq(stored, lru.stored_blocks);
	ck_assert_uint_eq(verified, lru.hit_blocks * e2e_ranks());
	replay_stop();
	free(want);
}

START_TEST(exact_in_every_rank)
{
	static const enum replay_workload kinds[] = { REPLAY_WORKLOAD_CHAT, REPLAY_WORKLOAD_RAG };
	struct replay_trace *t = replay_workload_new(kinds[_i], 11, REQUESTS, 512);

	replay(t, 40);
	replay(t, t->n_blocks / 4);
	replay(t, t->n_blocks + 10ul);
	replay_trace_free(t);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("replay");
	TCase *t = tcase_create("ranks");

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 240);
	tcase_add_loop_test(t, exact_in_every_rank, 0, 2);
	suite_add_tcase(s, t);
	return test_run(s);
}
