/*
 * test_stripes.c - the real daemon and the ranks of a model that share blocks: T31, F06, and tiers
 * below, coded or not.
 *
 * The first argument picks the case.  What a rank writes is a function of the prompt and of the
 * rank, and every byte that is read is compared.  Coded, it is numbers, and what was below is what
 * the codec makes of them.
 */
#include "clients/c/prefixd.h"
#include "clients/c/prefixd_load.h"
#include "clients/c/prefixd_words.h"
#include "daemon/cold.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/mover.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define BYTES  4096u
#define BLOCK  16u
#define MAX    64u
#define WIDEST 4u

static struct e2e_daemon d;
static const uint32_t widths[] = { 2, 4 };

/* Case _i of the tests that do both. */
static bool coded, with_words;
static const struct prefixd_cold cold = {
	.codec = GPU_CODEC_E4M3,
	.element = GPU_ELEMENT_F16,
	.layers = 1,
	.heads = 1,
	.dim = 64,
	.tokens = BLOCK,
};

struct rank {
	pfx_client *client;
	pfx_namespace *ns;
	uint32_t number;
	uint64_t lease;
	uint32_t slots[MAX], n, n_hit;
};

static struct rank ranks[WIDEST];
static uint32_t n_ranks;

static void setup(void)
{
	if (!e2e_daemon_binary())
		exit(E2E_SKIP);
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
}

static void teardown(void)
{
	for (uint32_t i = 0; i < WIDEST; i++)
		pfx_close(ranks[i].client);
	memset(ranks, 0, sizeof(ranks));
	e2e_daemon_free(&d);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

#define need(x)                                                                         \
	do {                                                                            \
		if (!(x)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			_exit(1);                                                       \
		}                                                                       \
	} while (0)

static void rank_start(struct rank *r, uint32_t number)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | PFX_NS_STRIPE,
		.model = "m",
		.revision = "r",
		.dtype = "float16",
		.layers = 2,
		.kv_heads = 2,
		.head_dim = 64,
		.block_tokens = BLOCK,
		.block_bytes = BYTES,
		.layout = "opaque",
		.tp_size = n_ranks,
		.tp_rank = number,
		.engine = "test/1",
		.map = 1,
	};

	if (coded) {
		o.flags = PFX_NS_STRIPE;
		o.layers = o.kv_heads = 1;
		o.layout = "block-major";
		o.cold_codec = "fp8";
	}
	o.flags |= with_words ? PFX_NS_WORDS : 0;
	pfx_connect_options c = {
		.struct_size = sizeof(c), .socket = d.socket, .name = "rank", .deadline_ms = 20000
	};

	memset(r, 0, sizeof(*r));
	r->number = number;
	need(pfx_connect(&c, &r->client) == PFX_OK);
	if (pfx_open(r->client, &o, &r->ns) != PFX_OK) {
		fprintf(stderr, "OPEN: %s\n", pfx_error(r->client));
		_exit(1);
	}
}

static void take(struct rank *r, const pfx_run *runs, uint32_t n_runs)
{
	for (uint32_t i = 0; i < n_runs; i++)
		for (uint32_t k = 0; k < runs[i].len; k++) {
			need(r->n < MAX);
			r->slots[r->n++] = runs[i].start + k;
		}
}

static pfx_prompt prompt_of(uint64_t decision, uint32_t first, uint32_t n)
{
	static uint32_t tokens[MAX * BLOCK];
	pfx_prompt p = { .struct_size = sizeof(p), .salt = "", .keys = tokens, .n_keys = n };

	for (uint32_t i = 0; i < n * BLOCK; i++)
		tokens[i] = first + i;
	p.decision_id[0] = 1;
	memcpy(p.decision_id + 8, &decision, sizeof(decision));
	return p;
}

static int rank_match(struct rank *r, uint64_t decision, uint32_t first, uint32_t n, uint32_t flags,
		      pfx_match_result *m)
{
	pfx_prompt p = prompt_of(decision, first, n);
	int status;

	p.flags = flags;
	m->struct_size = sizeof(*m);
	status = pfx_match(r->ns, &p, m);
	r->n = r->n_hit = 0;
	r->lease = m->lease;
	if (status != PFX_OK)
		return status;
	take(r, m->runs, m->n_runs);
	r->n_hit = r->n;
	need(r->n == m->n_device);
	return status;
}

static int rank_reserve(struct rank *r, uint32_t n)
{
	pfx_reserve_result v = { .struct_size = sizeof(v) };
	int status = pfx_reserve(r->ns, r->lease, n, 0, &v);

	if (status == PFX_OK)
		take(r, v.runs, v.n_runs);
	return status;
}

/* Numbers of fp16 of all sizes. */
static void fill_numbers(void *block, uint64_t seed)
{
	uint16_t *x = block;

	for (uint32_t k = 0; k < BYTES / 2; k++)
		x[k] = (uint16_t)(test_rng_below(&seed, 0x7a00) | test_rng_below(&seed, 2) << 15);
}

static void fill(uint64_t *block, uint32_t first, uint32_t i, uint32_t rank)
{
	if (coded) {
		fill_numbers(block, ((uint64_t)first << 32) + 1000 * rank + i);
		return;
	}
	for (uint32_t k = 0; k < BYTES / 8; k++)
		block[k] = ((uint64_t)first << 40) + ((uint64_t)rank << 32) + i * 1000003u + k;
}

static void rank_write(struct rank *r, uint32_t first)
{
	uint64_t block[BYTES / 8];

	for (uint32_t i = r->n_hit; i < r->n; i++) {
		fill(block, first, i, r->number);
		mover_write(r->ns, r->slots[i], block, sizeof(block));
	}
}

/* What is left of a piece that was below. */
static void change(uint64_t *block)
{
	uint64_t below[BYTES / 8];

	if (!coded)
		return;
	need(prefixd_cold_encode(&cold, block, below));
	prefixd_cold_decode(&cold, below, block);
}

/* Of the first n blocks, how many are not this rank's; those from `below` on were below. */
static uint32_t rank_wrong(struct rank *r, uint32_t first, uint32_t n, uint32_t below)
{
	uint64_t block[BYTES / 8], want[BYTES / 8];
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < n; i++) {
		mover_read(r->ns, r->slots[i], block, sizeof(block));
		fill(want, first, i, r->number);
		if (i >= below)
			change(want);
		wrong += memcmp(block, want, sizeof(block)) != 0;
	}
	return wrong;
}

static int rank_commit(struct rank *r, uint32_t n, const void *sums, uint32_t *ret_stored)
{
	pfx_commit_result c = { .struct_size = sizeof(c) };
	int status = pfx_commit(r->ns, r->lease, n, sums, 0, 0, &c);

	if (ret_stored)
		*ret_stored = c.n_stored + c.n_duplicate;
	return status;
}

static void rank_release(struct rank *r)
{
	need(pfx_release(r->ns, r->lease, 0, 0, 0, NULL) == PFX_OK);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void begin(uint32_t n, const char *host_blocks)
{
	const char *const args[] = {
		"--pool-blocks", "32", "--host-blocks", host_blocks, "--pool-bytes", "64MiB", NULL
	};

	n_ranks = n;
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	for (uint32_t i = 0; i < n; i++)
		rank_start(&ranks[i], i);
}

static uint64_t next_decision;

/* Every rank stores what is missing of a prompt. */
static void put(uint32_t first, uint32_t n)
{
	uint64_t decision = ++next_decision;
	uint32_t stored = 0, hit = 0;

	for (uint32_t i = 0; i < n_ranks; i++) {
		pfx_match_result m = { 0 };

		ck_assert_int_eq(rank_match(&ranks[i], decision, first, n, 0, &m), PFX_OK);
		hit = m.n_device;
		ck_assert_int_eq(rank_reserve(&ranks[i], n - hit), PFX_OK);
		ck_assert_uint_eq(ranks[i].n, n);
		rank_write(&ranks[i], first);
	}
	for (uint32_t i = 0; i < n_ranks; i++) {
		XXH128_canonical_t sums[MAX];

		ck_assert_uint_eq(stored, 0);
		for (uint32_t k = hit; k < n; k++) {
			uint64_t piece[BYTES / 8];

			fill(piece, first, k, i);
			XXH128_canonicalFromHash(&sums[k - hit], XXH3_128bits(piece, BYTES));
		}
		ck_assert_int_eq(rank_commit(&ranks[i], n - hit, sums, &stored), PFX_OK);
	}
	ck_assert_uint_eq(stored, n - hit);
	for (uint32_t i = 0; i < n_ranks; i++)
		rank_release(&ranks[i]);
}

/* ---- T31 ------------------------------------------------------------------------------------- */

/* Ranks ask for one request at different times, while others' blocks push its own out. */
START_TEST(same_length_at_different_times)
{
	uint32_t hit = 0, slots[MAX] = { 0 };
	uint64_t leases[WIDEST];

	begin(widths[_i], "0");
	put(1000, 10);
	for (uint32_t i = 0; i < n_ranks; i++) {
		struct rank *r = &ranks[i];
		pfx_match_result m = { 0 };

		ck_assert_int_eq(rank_match(r, 900, 1000, 12, 0, &m), PFX_OK);
		if (i == 0) {
			hit = m.n_device;
			ck_assert_uint_eq(hit, 10);
			memcpy(slots, r->slots, sizeof(slots));
		}
		ck_assert_uint_eq(m.n_device, hit);
		ck_assert_mem_eq(slots, r->slots, hit * sizeof(*slots));
		ck_assert_uint_eq(rank_wrong(r, 1000, hit, hit), 0);
		leases[i] = r->lease; /* a client's own name for it */
		if (i + 1 < n_ranks)  /* the pool is filled anew, and not by this request */
			put(5000 + 1000 * i, 20);
	}
	for (uint32_t i = 0; i < n_ranks; i++) {
		ranks[i].lease = leases[i];
		rank_release(&ranks[i]);
	}
	/* Held by nobody any more, the blocks may go: all ranks of the next request are told so. */
	put(20000, 30);
	for (uint32_t i = 0; i < n_ranks; i++) {
		pfx_match_result m = { 0 };

		ck_assert_int_eq(rank_match(&ranks[i], 901, 1000, 12, 0, &m), PFX_OK);
		if (i == 0)
			hit = m.n_device;
		ck_assert_uint_lt(m.n_device, 10);
		ck_assert_uint_eq(m.n_device, hit);
		rank_release(&ranks[i]);
	}
}
END_TEST

/* Some of a prompt's blocks lie below: they come up, each rank's pieces to that rank. */
static void comes_up(uint64_t decision, uint32_t first, uint32_t n)
{
	uint32_t above;

	for (uint32_t i = 0; i < n_ranks; i++) {
		struct rank *r = &ranks[i];
		pfx_match_result m = { 0 };
		pfx_load_result l = { .struct_size = sizeof(l) };
		pfx_prompt more = { .struct_size = sizeof(more), .salt = "" };

		ck_assert_int_eq(rank_match(r, decision, first, n, PFX_MATCH_PROMOTE, &m), PFX_OK);
		ck_assert_uint_lt(m.n_device, n);
		ck_assert_uint_eq(m.n_device + m.n_host, n);
		ck_assert_uint_eq(m.n_lossy, coded ? m.n_host : 0);
		above = m.n_device;
		ck_assert_int_eq(m.loading, 1);
		ck_assert_int_eq(pfx_load_wait(r->ns, r->lease, 10000, &l), PFX_OK);
		ck_assert_uint_eq(l.n, m.n_host);
		m = (pfx_match_result){ .struct_size = sizeof(m) };
		ck_assert_int_eq(pfx_extend(r->ns, r->lease, &more, &m), PFX_OK);
		take(r, m.runs, m.n_runs);
		ck_assert_uint_eq(r->n, n);
		ck_assert_uint_eq(rank_wrong(r, first, n, above), 0);
	}
	for (uint32_t i = 0; i < n_ranks; i++)
		rank_release(&ranks[i]);
}

/* What went down to the host's memory comes up again, each rank's piece to its rank. */
START_TEST(down_and_up_again)
{
	coded = _i / 2;
	begin(widths[_i % 2], "64");
	put(1000, 20);
	put(5000, 24);
	comes_up(900, 1000, 20);
}
END_TEST

/* ---- F06 ------------------------------------------------------------------------------------- */

/* A rank as a process: stores half of its blocks, says so, and goes on when it is told to. */
static void child(uint32_t number, int say, int hear)
{
	pfx_match_result m = { 0 };
	struct rank r;
	char byte = 'c';

	rank_start(&r, number);
	need(rank_match(&r, 77, 3000, 8, 0, &m) == PFX_OK);
	need(rank_reserve(&r, 8) == PFX_OK && r.n == 8);
	rank_write(&r, 3000);
	need(rank_commit(&r, 4, NULL, NULL) == PFX_OK);
	need(write(say, &byte, 1) == 1);
	need(read(hear, &byte, 1) == 1);
	need(rank_commit(&r, 4, NULL, NULL) == PFX_REVOKED);
	rank_release(&r);
	pfx_close(r.client);
	_exit(0);
}

static uint64_t slots_in(const char *state)
{
	char *json = e2e_admin(&d, "{\"op\":\"status\"}");
	char name[32], *at;
	uint64_t n;

	snprintf(name, sizeof(name), "\"%s\":", state);
	at = strstr(json, name);
	ck_assert_msg(at != NULL, "no %s in %s", name, json);
	n = strtoull(at + strlen(name), NULL, 10);
	pfx_free_string(json);
	return n;
}

static uint64_t leases(void)
{
	char *json = e2e_admin(&d, "{\"op\":\"pins\"}"), *at = strstr(json, "\"total\":");
	uint64_t n;

	ck_assert_msg(at != NULL, "%s", json);
	n = strtoull(at + 8, NULL, 10);
	pfx_free_string(json);
	return n;
}

static void wait_for_slots(const char *state, uint64_t n)
{
	unsigned long end = e2e_now_ms() + 10000;

	while (slots_in(state) != n && e2e_now_ms() < end)
		e2e_sleep_ms(10);
	ck_assert_uint_eq(slots_in(state), n);
}

/* One of four ranks is killed before it has committed: of that block nothing is stored. */
START_TEST(one_of_four_is_killed)
{
	pid_t pids[4];
	int said[2], told[4][2];
	char byte;

	n_ranks = 4;
	{
		const char *const args[] = {
			"--pool-blocks", "32", "--host-blocks", "0", "--pool-bytes", "64MiB", NULL
		};

		ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	}
	ck_assert_int_eq(pipe(said), 0);
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_int_eq(pipe(told[i]), 0);
		pids[i] = fork();
		ck_assert_int_ge(pids[i], 0);
		if (pids[i] == 0)
			child(i, said[1], told[i][0]);
	}
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_int_eq(read(said[0], &byte, 1), 1);
	wait_for_slots("ready", 4); /* what all have committed */
	ck_assert_uint_eq(slots_in("reserved"), 4);
	{ /* operators see one lease, and how far each rank is */
		char *json = e2e_admin(&d, "{\"op\":\"pins\"}"), *at = json;
		uint32_t n = 0;

		while ((at = strstr(at, "\"committed\":4")) != NULL) {
			n++;
			at++;
		}
		ck_assert_msg(n == 4 && strstr(json, "\"total\":1"), "%s", json);
		pfx_free_string(json);
	}
	ck_assert_int_eq(kill(pids[2], SIGKILL), 0);
	ck_assert_int_eq(waitpid(pids[2], NULL, 0), pids[2]);
	e2e_sleep_ms(200);
	for (uint32_t i = 0; i < 4; i++) {
		int status;

		if (i == 2)
			continue;
		/* As long as a rank may write them nobody else has them. */
		ck_assert_uint_eq(slots_in("reserved") + slots_in("quarantined"), 4);
		ck_assert_int_eq(write(told[i][1], "g", 1), 1);
		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		ck_assert_int_eq(status, 0);
	}
	wait_for_slots("quarantined", 0);
	wait_for_slots("reserved", 0);
	ck_assert_uint_eq(slots_in("ready"), 4);
	for (uint32_t i = 0; i < 4; i++) {
		pfx_match_result m = { 0 };

		rank_start(&ranks[i], i);
		ck_assert_int_eq(rank_match(&ranks[i], 78, 3000, 8, 0, &m), PFX_OK);
		ck_assert_uint_eq(m.n_device, 4);
		ck_assert_uint_eq(rank_wrong(&ranks[i], 3000, 4, 4), 0);
		rank_release(&ranks[i]);
	}
}
END_TEST

/* ---- a restart ------------------------------------------------------------------------------- */

/* Kept memory: every rank finds its own blocks in the next life, those that lay below too. */
START_TEST(over_a_restart)
{
	const char *const args[] = { "--pool-blocks",
				     "32",
				     "--host-blocks",
				     "32",
				     "--pool-bytes",
				     "64MiB",
				     "--keep",
				     "holder",
				     "--recover-verify",
				     "full",
				     NULL };

	coded = _i / 2;
	n_ranks = widths[_i % 2];
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	for (uint32_t i = 0; i < n_ranks; i++)
		rank_start(&ranks[i], i);
	put(3000, 20);
	put(5000, 24); /* which takes the place of 12 of them */
	put(1000, 8);
	e2e_daemon_stop(&d, SIGKILL);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
	for (uint32_t i = 0; i < n_ranks; i++) {
		pfx_namespace_info info = { .struct_size = sizeof(info) };
		pfx_match_result m = { 0 };

		ck_assert_int_eq(rank_match(&ranks[i], 900, 1000, 8, 0, &m), PFX_OK);
		ck_assert_uint_eq(m.n_device, 8);
		ck_assert_int_eq(pfx_namespace_get(ranks[i].ns, &info), PFX_OK);
		ck_assert_int_eq(info.kept, 1);
		ck_assert_uint_eq(rank_wrong(&ranks[i], 1000, 8, 8), 0);
	}
	for (uint32_t i = 0; i < n_ranks; i++)
		rank_release(&ranks[i]);
	comes_up(901, 3000, 20);
}
END_TEST

/* ---- words ----------------------------------------------------------------------------------- */

/* Of a rank whose stream is behind: COMMIT or RELEASE, once its first word says `value`. */
struct after {
	pthread_t thread;
	struct rank *r;
	uint64_t value;
	bool release;
	int status;
	uint32_t stored;
};

static void *after_main(void *arg)
{
	struct after *a = arg;
	pfx_commit_result c = { .struct_size = sizeof(c) };

	if (a->release)
		a->status = pfx_release_after(a->r->ns, a->r->lease, 0, 0, 1, a->value, 20000,
					      NULL);
	else
		a->status = pfx_commit_after(a->r->ns, a->r->lease, 4, NULL, 0, 1, a->value, 20000,
					     &c);
	a->stored = c.n_stored;
	return NULL;
}

static struct after *after(struct rank *r, bool release, uint64_t value)
{
	static struct after a;

	a = (struct after){ .r = r, .value = value, .release = release };
	ck_assert_int_eq(pthread_create(&a.thread, NULL, after_main, &a), 0);
	e2e_sleep_ms(100);
	return &a;
}

/* The word is written; how the request ended. */
static int now(struct after *a, volatile uint64_t *words)
{
	__atomic_store_n(&words[0], a->value, __ATOMIC_RELEASE);
	ck_assert_int_eq(pthread_join(a->thread, NULL), 0);
	return a->status;
}

static void both_reserve(uint64_t decision, uint32_t n_hit)
{
	for (uint32_t i = 0; i < 2; i++) {
		pfx_match_result m = { 0 };

		ck_assert_int_eq(rank_match(&ranks[i], decision, 1000, n_hit + 4, 0, &m), PFX_OK);
		ck_assert_uint_eq(m.n_device, n_hit);
		ck_assert_int_eq(rank_reserve(&ranks[i], 4), PFX_OK);
		rank_write(&ranks[i], 1000);
	}
}

/* A block is stored, and the lease over, when the word of the slowest rank has come. */
START_TEST(each_rank_waits_for_its_word)
{
	volatile uint64_t *words;
	struct after *a;
	uint32_t stored = 9, n;

	with_words = true;
	begin(2, "0");
	words = pfx_words(ranks[0].client, &n);
	ck_assert_uint_gt(n, 0);
	ck_assert_ptr_ne((void *)(uintptr_t)words,
			 (void *)(uintptr_t)pfx_words(ranks[1].client, &n));
	both_reserve(1, 0);
	a = after(&ranks[0], false, 1);
	ck_assert_int_eq(rank_commit(&ranks[1], 4, NULL, &stored), PFX_OK);
	ck_assert_uint_eq(stored, 0);
	ck_assert_uint_eq(slots_in("ready"), 0);
	ck_assert_int_eq(now(a, words), PFX_OK);
	ck_assert_uint_eq(a->stored, 4);
	ck_assert_uint_eq(slots_in("ready"), 4);
	a = after(&ranks[0], true, 2);
	rank_release(&ranks[1]);
	ck_assert_uint_eq(leases(), 1); /* rank 0 may read still */
	ck_assert_int_eq(now(a, words), PFX_OK);
	ck_assert_uint_eq(leases(), 0);
	/* Another rank has ended when the word comes: what was to be stored is not. */
	both_reserve(2, 4);
	a = after(&ranks[0], false, 3);
	pfx_close(ranks[1].client);
	ranks[1].client = NULL;
	e2e_sleep_ms(100);
	ck_assert_int_eq(now(a, words), PFX_REVOKED);
	rank_release(&ranks[0]);
	ck_assert_uint_eq(slots_in("ready"), 4);
	with_words = false;
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "T31";
	Suite *s = suite_create("stripes");
	TCase *t = tcase_create(which);

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 100);
	if (strcmp(which, "T31") == 0)
		tcase_add_loop_test(t, same_length_at_different_times, 0, 2);
	else if (strcmp(which, "tiers") == 0)
		tcase_add_loop_test(t, down_and_up_again, 0, 4);
	else if (strcmp(which, "F06") == 0)
		tcase_add_test(t, one_of_four_is_killed);
	else if (strcmp(which, "words") == 0)
		tcase_add_test(t, each_rank_waits_for_its_word);
	else
		tcase_add_loop_test(t, over_a_restart, 0, 4);
	suite_add_tcase(s, t);
	return test_run(s);
}
