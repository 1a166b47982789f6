/*
 * bench_restart_worker.c - a process of the load: it lives through any number of daemons.
 *
 * It matches prompts and compares every byte that it is lent, at once, later, and once more when
 * a daemon has died under it; it holds some leases for a while; it stores prompts in COMMITs of
 * random length, some of them not to their end.  When a call says that the daemon is gone, it does
 * what a device does that was not told yet: it goes on reading what it was lent, and writing into
 * what it had reserved and not committed.  Then it waits for the next daemon, compares again, says
 * QUIESCED, and goes on.
 */
#include "tests/bench/bench_restart.h"

#include "tests/lib/rng.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
	HELD = 8,
	STORES = 6,     /* one request in so many stores something */
	OLD_STORES = 4, /* one store in so many goes on with a prompt that was begun before */
	ABANDONED = 8,  /* one store in so many ends before its path does */
	HOLDS = 5,      /* one lease in so many is held for a while */
	LOOKS_BACK = 4, /* one request in so many compares a held lease again */
	CHUNK = 4,      /* blocks of a COMMIT, at most */
	NAP_US = 2000,  /* between requests, at most */
	TOLD_MAX = 5    /* complaints of one worker that are printed */
};

/* Blocks that a lease lends, by their addresses. */
struct lent {
	uint64_t lease; /* 0: none */
	uint32_t prompt, n;
	const void *at[RESTART_MAX_PATH];
};

struct worker {
	struct restart_book *b;
	struct restart_tally *tally;
	pfx_client *client;
	pfx_namespace *ns;
	uint64_t rng;
	uint32_t me, n_told;
	struct lent now, held[HELD];
	uint32_t n_held;
	uint32_t first, n_room,
		n_sent; /* reserved: from block `first` on; COMMIT sent for so many */
	void *room[RESTART_MAX_PATH];
	uint32_t tokens[RESTART_MAX_PATH * RESTART_TOKENS];
};

bool restart_lost(int status)
{
	return status == PFX_GONE || status == PFX_UNKNOWN_LEASE;
}

pfx_client *restart_connect(const struct restart_book *b, const char *socket,
			    pfx_namespace **ret_ns)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = socket, .name = "restart", .deadline_ms = 30000
	};
	pfx_namespace_options n = { .struct_size = sizeof(n),
				    .key_mode = PFX_KEYS_TOKENS,
				    .flags = PFX_NS_OPAQUE,
				    .model = "restart",
				    .revision = "1",
				    .dtype = "uint8",
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 1,
				    .block_tokens = RESTART_TOKENS,
				    .block_bytes = b->config.block_bytes,
				    .layout = "opaque",
				    .tp_size = 1,
				    .engine = "restart",
				    .map = 1 };
	pfx_client *c = NULL;

	if (pfx_connect(&o, &c) == PFX_OK && pfx_open(c, &n, ret_ns) == PFX_OK)
		return c;
	fprintf(stderr, "restart: connect: %s\n", c ? pfx_error(c) : "no memory");
	pfx_close(c);
	return NULL;
}

static pfx_prompt prompt_of(const uint32_t *tokens, uint32_t n)
{
	return (pfx_prompt){
		.struct_size = sizeof(pfx_prompt), .salt = "", .keys = tokens, .n_keys = n
	};
}

/* ---- what a lease lends ---------------------------------------------------------------------- */

static void complain(struct worker *w, const char *what, uint32_t prompt, uint32_t i)
{
	if (w->n_told++ < TOLD_MAX)
		fprintf(stderr, "restart: worker %u: %s: prompt %u, block %u: %s\n", w->me, what,
			prompt, i, pfx_error(w->client));
}

static void compare(struct worker *w, const struct lent *l, const char *when)
{
	for (uint32_t i = 0; i < l->n; i++) {
		if (restart_right(w->b, l->prompt, i, l->at[i]))
			continue;
		w->tally->wrong++;
		complain(w, when, l->prompt, i);
	}
	w->tally->compared += l->n;
}

/* Return: as pfx_match.  What it lends is in w->now, compared. */
static int match(struct worker *w, uint32_t prompt)
{
	uint32_t len = restart_path_len(w->b, prompt), least = restart_at_least(w->b, prompt);
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_prompt p;
	int r;

	restart_tokens(w->b, prompt, w->tokens);
	p = prompt_of(w->tokens, len);
	r = pfx_match(w->ns, &p, &m);
	if (r != PFX_OK)
		return r;
	w->now.lease = m.lease;
	w->now.prompt = prompt;
	w->now.n = 0;
	for (uint32_t k = 0; k < m.n_runs; k++)
		for (uint32_t j = 0; j < m.runs[k].len; j++)
			w->now.at[w->now.n++] = pfx_slot(w->ns, m.runs[k].start + j);
	if (w->now.n != m.n_device || m.n_device < least ||
	    m.n_device > restart_at_most(w->b, prompt)) {
		w->tally->unexpected++;
		complain(w, "a match of another length than was stored", prompt, m.n_device);
	}
	compare(w, &w->now, "wrong bytes in a match");
	return PFX_OK;
}

static int give_back(struct worker *w, struct lent *l)
{
	uint64_t lease = l->lease;

	l->lease = 0;
	l->n = 0;
	return lease ? pfx_release(w->ns, lease, 0, 0, 0, NULL) : PFX_OK;
}

/* Into the list of held ones, in place of the oldest. */
static int hold(struct worker *w)
{
	int r = PFX_OK;

	if (w->n_held == HELD) {
		compare(w, &w->held[0], "wrong bytes under an old lease");
		r = give_back(w, &w->held[0]);
		memmove(&w->held[0], &w->held[1], (HELD - 1) * sizeof(w->held[0]));
		w->n_held--;
	}
	w->held[w->n_held++] = w->now;
	w->now.lease = 0;
	w->now.n = 0;
	return r;
}

/* ---- storing --------------------------------------------------------------------------------- */

static int reserve(struct worker *w, uint32_t n)
{
	pfx_reserve_result res = { .struct_size = sizeof(res) };
	int r = pfx_reserve(w->ns, w->now.lease, n, 0, &res);

	if (r != PFX_OK)
		return r;
	w->first = res.first;
	w->n_room = w->n_sent = 0;
	for (uint32_t k = 0; k < res.n_runs; k++)
		for (uint32_t j = 0; j < res.runs[k].len; j++)
			w->room[w->n_room++] = pfx_slot(w->ns, res.runs[k].start + j);
	return PFX_OK;
}

/* Fills and commits what is reserved, up to block `until` of the path. */
static int commit(struct worker *w, uint32_t until)
{
	uint32_t prompt = w->now.prompt;

	while (w->n_sent < w->n_room && w->first + w->n_sent < until) {
		pfx_commit_result c = { .struct_size = sizeof(c) };
		uint32_t n = 1 + test_rng_below(&w->rng, CHUNK), from = w->n_sent;
		int r;

		n = n < w->n_room - from ? n : w->n_room - from;
		for (uint32_t k = from; k < from + n; k++)
			restart_fill(w->b, prompt, w->first + k, w->room[k]);
		restart_sent(w->b, prompt, w->first + from + n);
		w->n_sent += n;
		r = pfx_commit(w->ns, w->now.lease, n, NULL, 0, 0, &c);
		if (r != PFX_OK)
			return r;
		restart_answered(w->b, prompt, w->first + from + n);
		w->tally->committed += c.n_stored;
	}
	return PFX_OK;
}

static int store(struct worker *w, uint32_t prompt, uint32_t until)
{
	uint32_t len = restart_path_len(w->b, prompt);
	int r = match(w, prompt);

	w->n_room = w->n_sent = 0;
	if (r == PFX_OK && w->now.n < len)
		r = reserve(w, len - w->now.n);
	if (r == PFX_OK)
		r = commit(w, until);
	if (r == PFX_OK)
		r = give_back(w, &w->now);
	if (r == PFX_OK)
		w->n_room = w->n_sent = 0;
	return r;
}

/* Takes n blocks of what may be new now; false: so many are not left. */
static bool may_be_new(struct restart_book *b, int64_t n)
{
	int64_t left = b->budget;

	while (left >= n)
		if (atomic_compare_exchange_weak(&b->budget, &left, left - n))
			return true;
	return false;
}

/* A prompt that is new in this round, while there is room for one; or one that was begun. */
static uint32_t to_store(struct worker *w)
{
	uint32_t n_known = w->b->n_known;

	if (test_rng_below(&w->rng, OLD_STORES) == 0 && n_known > w->b->n_base)
		return w->b->n_base + test_rng_below(&w->rng, n_known - w->b->n_base);
	if (n_known + RESTART_MAX_WORKERS < w->b->n_max &&
	    may_be_new(w->b, w->b->config.path - w->b->stem))
		return atomic_fetch_add(&w->b->n_known, 1);
	return test_rng_below(&w->rng, w->b->n_base);
}

/* ---- when the daemon is gone ----------------------------------------------------------------- */

static void compare_all(struct worker *w, const char *when)
{
	compare(w, &w->now, when);
	for (uint32_t k = 0; k < w->n_held; k++) {
		compare(w, &w->held[k], when);
		w->tally->held_over += w->held[k].n;
	}
}

/* What was reserved and never committed is still this worker's: it may write there. */
static void scribble(struct worker *w)
{
	for (uint32_t k = w->n_sent; k < w->n_room; k++)
		memset(w->room[k], 0xee, w->b->config.block_bytes);
}

static void next_life(struct worker *w)
{
	uint32_t n_slots;
	int r;

	compare_all(w, "wrong bytes after the daemon was killed");
	scribble(w);
	while ((r = pfx_ping(w->client, 0)) == PFX_GONE && !w->b->stop)
		restart_nap_us(1000);
	restart_nap_us(test_rng_below(&w->rng, 5 * NAP_US)); /* others go on meanwhile */
	scribble(w);
	compare_all(w, "wrong bytes under the next daemon");
	if (r == PFX_OK)
		r = pfx_quiesced(w->client, &n_slots);
	if (r != PFX_OK && !restart_lost(r)) {
		w->tally->unexpected++;
		complain(w, pfx_status_to_string(r), 0, 0);
	}
	w->now.lease = 0;
	w->now.n = w->n_held = w->n_room = w->n_sent = 0;
	w->tally->lives++;
}

/* ---- a life ---------------------------------------------------------------------------------- */

static int request(struct worker *w)
{
	uint32_t prompt;
	int r;

	w->tally->requests++;
	if (w->n_held && test_rng_below(&w->rng, LOOKS_BACK) == 0)
		compare(w, &w->held[test_rng_below(&w->rng, w->n_held)],
			"wrong bytes under a lease");
	if (test_rng_below(&w->rng, STORES) == 0) {
		uint32_t until;

		prompt = to_store(w);
		until = restart_path_len(w->b, prompt);
		if (test_rng_below(&w->rng, ABANDONED) == 0)
			until = test_rng_below(&w->rng, until);
		return store(w, prompt, until);
	}
	r = match(w, test_rng_below(&w->rng, w->b->n_known));
	if (r != PFX_OK)
		return r;
	return test_rng_below(&w->rng, HOLDS) == 0 ? hold(w) : give_back(w, &w->now);
}

static void wait_while_paused(struct worker *w)
{
	w->b->n_paused++;
	while (w->b->pause && !w->b->stop)
		restart_nap_us(1000);
	w->b->n_paused--;
}

void restart_worker(struct restart_book *b, const char *socket, uint32_t me)
{
	struct worker *w = calloc(1, sizeof(*w));

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!w)
		_exit(3);
	w->b = b;
	w->me = me;
	w->tally = &b->tallies[me];
	w->rng = b->config.seed * 1000 + me;
	w->client = restart_connect(b, socket, &w->ns);
	if (!w->client)
		_exit(4);
	while (!b->stop) {
		int r;

		if (b->pause) {
			wait_while_paused(w);
			continue;
		}
		r = request(w);
		if (restart_lost(r)) {
			next_life(w);
		} else if (r == PFX_BUSY) {
			w->tally->busy++;
			(void)give_back(w, &w->now);
			w->n_room = w->n_sent = 0;
		} else if (r != PFX_OK) {
			w->tally->unexpected++;
			complain(w, pfx_status_to_string(r), w->now.prompt, 0);
			(void)give_back(w, &w->now);
			w->n_room = w->n_sent = 0;
		}
		restart_nap_us(test_rng_below(&w->rng, NAP_US));
	}
	for (uint32_t k = 0; k < w->n_held; k++)
		(void)give_back(w, &w->held[k]);
	pfx_close(w->client);
	free(w);
	_exit(0);
}

int restart_store(struct restart_book *b, pfx_namespace *ns, uint32_t prompt)
{
	static struct worker w;

	w.b = b;
	w.ns = ns;
	w.tally = &b->tallies[0];
	w.rng = 1;
	return store(&w, prompt, restart_path_len(b, prompt));
}
