/*
 * test_storm.c - eight workers on three tiers, killed and stopped all the time.
 *
 * A pool of 256 blocks, a host tier of 1,024 and a real Redis under some 25,000 different ones, so
 * that most of what is found comes up from below while something else goes down.  Every hundred
 * requests a worker is killed (another takes its place) or stopped for a moment, and twice Redis
 * is. In the end: no byte was wrong, the audit is clean, nothing is held, and the hits are at least
 * half of what an unlimited cache would have had for the same requests.
 */
#include "tests/e2e/redis_server.h"
#include "tests/e2e/worker.h"

#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	N_WORKERS = 8,
	N_REQUESTS = 20000,
	N_BLOWS = 200,
	N_STEMS = 16,
	N_VARIANTS = 40
};

struct request {
	uint8_t n_blocks, stem, variant;
	uint8_t hit; /* blocks, whatever tier they came from */
};

/* What all processes see. */
struct storm {
	uint64_t next; /* requests begun */
	uint64_t corrupt, errors, busy, verified, loads, loads_failed, loaded;
	struct request requests[N_REQUESTS];
};

static struct e2e_daemon d;
static struct e2e_redis redis;

/* ---- a worker -------------------------------------------------------------------------------- */

static void count(struct storm *s, struct worker *w)
{
#define ADD(to, from) __atomic_fetch_add(&s->to, w->from, __ATOMIC_RELAXED)
	ADD(corrupt, corrupt);
	ADD(errors, errors);
	ADD(busy, busy);
	ADD(verified, blocks_verified);
	ADD(loads, loads);
	ADD(loads_failed, loads_failed);
	ADD(loaded, blocks_loaded);
#undef ADD
	w->corrupt = w->errors = w->busy = w->blocks_verified = 0;
	w->loads = w->loads_failed = w->blocks_loaded = 0;
}

/* BUSY is an answer, and so is a RESERVE that came too late for the blocks to move down. */
static bool went_well(struct worker *w, int r, const char *what)
{
	if (r == PFX_OK)
		return true;
	if (r == PFX_BUSY) {
		w->busy++;
		return false;
	}
	fprintf(stderr, "storm: %s: %s: %s\n", what, pfx_status_to_string(r), pfx_error(w->client));
	w->errors++;
	return false;
}

static void one(struct storm *s, struct worker *w, struct request *r)
{
	r->n_blocks = (uint8_t)(8 * (1 + test_rng_below(&w->rng, 4)));
	r->stem = (uint8_t)test_rng_below(&w->rng, N_STEMS);
	r->variant = (uint8_t)test_rng_below(&w->rng, N_VARIANTS);
	worker_prompt(w, r->n_blocks, r->stem, r->variant);
	if (!went_well(w, worker_match(w), "match"))
		return;
	(void)went_well(w, worker_load(w), "load");
	r->hit = (uint8_t)w->n_hit;
	if (w->n_hit < w->n_blocks && went_well(w, worker_reserve(w), "reserve")) {
		worker_write(w, 0, w->n_reserved);
		(void)went_well(w, worker_commit(w, w->n_reserved), "commit");
	}
	(void)went_well(w, worker_release(w), "release");
	count(s, w);
}

static pid_t spawn(struct storm *s, uint64_t seed)
{
	static struct worker w;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid)
		return pid;
	worker_start(&w, d.socket, seed);
	w.promote = true;
	for (;;) {
		uint64_t k = __atomic_fetch_add(&s->next, 1, __ATOMIC_SEQ_CST);

		if (k >= N_REQUESTS)
			break;
		one(s, &w, &s->requests[k]);
	}
	count(s, &w);
	worker_stop(&w);
	_exit(0);
}

/* ---- what an unlimited cache would have had -------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* A block's name: its prompt up to its end.  The first half of a prompt is its stem's. */
static uint64_t name_of(const struct request *r, uint32_t i)
{
	uint32_t shared = r->n_blocks / 2u;

	return i < shared ? (uint64_t)r->stem << 32 | i
			  : 1ull << 63 | (uint64_t)r->stem << 40 | (uint64_t)r->variant << 24 |
				    (uint64_t)r->n_blocks << 8 | i;
}

static bool seen(const uint64_t *names, size_t n, uint64_t name)
{
	return bsearch(&name, names, n, sizeof(*names), compare) != NULL;
}

/* Names come in a sorted list that is rebuilt now and then; the young ones are looked through. */
static uint64_t unlimited_hits(const struct storm *s)
{
	uint64_t *names = calloc((size_t)N_REQUESTS * 32, sizeof(*names)), hits = 0;
	size_t n = 0, sorted = 0;

	ck_assert_ptr_nonnull(names);
	for (uint32_t k = 0; k < N_REQUESTS; k++) {
		const struct request *r = &s->requests[k];
		bool on = true;

		for (uint32_t i = 0; i < r->n_blocks; i++) {
			uint64_t name = name_of(r, i);
			bool there = seen(names, sorted, name);

			for (size_t j = sorted; !there && j < n; j++)
				there = names[j] == name;
			on = on && there;
			hits += on;
			if (!there)
				names[n++] = name;
		}
		if (n - sorted > 512) {
			qsort(names, n, sizeof(*names), compare);
			sorted = n;
		}
	}
	free(names);
	return hits;
}

/* ---- the storm ------------------------------------------------------------------------------- */

static json_t *ask(const char *cmd)
{
	char *text = e2e_admin(&d, cmd);
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

static bool settled(void)
{
	json_t *audit = ask("{\"op\":\"audit\"}"), *status = ask("{\"op\":\"status\"}");
	const json_t *slots = json_object_get(status, "slots");
	bool ok = json_is_true(json_object_get(audit, "clean")) &&
		  json_integer_value(json_object_get(slots, "free")) +
				  json_integer_value(json_object_get(slots, "ready")) ==
			  json_integer_value(json_object_get(status, "n_slots")) &&
		  json_integer_value(json_object_get(status, "leases")) == 0;

	json_decref(audit);
	json_decref(status);
	return ok;
}

static void pause_for(pid_t pid, unsigned ms)
{
	ck_assert_int_eq(kill(pid, SIGSTOP), 0);
	e2e_sleep_ms(ms);
	ck_assert_int_eq(kill(pid, SIGCONT), 0);
}

/* One blow: somebody dies or stands still. */
static void strike(struct storm *s, pid_t *pids, uint64_t *rng, int i, int *kills)
{
	uint32_t who = test_rng_below(rng, N_WORKERS);

	if (i == N_BLOWS / 3 || i == 2 * N_BLOWS / 3)
		pause_for(redis.pid, 300);
	if (test_rng_below(rng, 2)) {
		pause_for(pids[who], 5 + test_rng_below(rng, 20));
		return;
	}
	ck_assert_int_eq(kill(pids[who], SIGKILL), 0);
	ck_assert_int_eq(waitpid(pids[who], NULL, 0), pids[who]);
	pids[who] = spawn(s, 1000 + (uint64_t)i);
	++*kills;
}

START_TEST(storm)
{
	struct storm *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);
	const char *seed_text = getenv("PREFIXD_STORM_SEED");
	uint64_t rng = seed_text ? strtoull(seed_text, NULL, 10) : 7, hits = 0, oracle;
	unsigned long began = e2e_now_ms(), end = began + 240000;
	pid_t pids[N_WORKERS];
	int blows = 0, kills = 0;

	ck_assert_ptr_ne(s, MAP_FAILED);
	fprintf(stderr, "storm: seed %llu\n", (unsigned long long)rng);
	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, NULL);
	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(
		e2e_daemon_start(&d, (const char *const[]){ "--pool-blocks", "256", "--host-blocks",
							    "1024", "--redis", redis.url,
							    "--watermark", "5:10", NULL }),
		0);
	for (int i = 0; i < N_WORKERS; i++)
		pids[i] = spawn(s, 100 + (uint64_t)i);
	while (blows < N_BLOWS) {
		ck_assert_msg(e2e_now_ms() < end, "stuck at request %llu",
			      (unsigned long long)s->next);
		if (s->next < (uint64_t)(blows + 1) * (N_REQUESTS / N_BLOWS - 2)) {
			e2e_sleep_ms(1);
			continue;
		}
		strike(s, pids, &rng, blows++, &kills);
	}
	for (int i = 0; i < N_WORKERS; i++) {
		int status = -1;

		ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
		ck_assert_int_eq(status, 0);
	}
	ck_assert_uint_ge(s->next, N_REQUESTS);
	for (uint32_t k = 0; k < N_REQUESTS; k++)
		hits += s->requests[k].hit;
	oracle = unlimited_hits(s);
	fprintf(stderr,
		"storm: %d requests, %d kills, %d stops, %llu of %llu blocks hit, %llu verified, "
		"%llu came up in %llu loads (%llu cut), %llu busy, %llu wrong, %llu errors, "
		"%lu ms\n",
		N_REQUESTS, kills, blows - kills + 2, (unsigned long long)hits,
		(unsigned long long)oracle, (unsigned long long)s->verified,
		(unsigned long long)s->loaded, (unsigned long long)s->loads,
		(unsigned long long)s->loads_failed, (unsigned long long)s->busy,
		(unsigned long long)s->corrupt, (unsigned long long)s->errors,
		e2e_now_ms() - began);
	ck_assert_uint_eq(s->corrupt, 0);
	ck_assert_uint_eq(s->errors, 0);
	ck_assert_uint_gt(s->loaded, 0);
	ck_assert_uint_ge(2 * hits, oracle);
	end = e2e_now_ms() + 5000;
	while (!settled()) {
		ck_assert_msg(e2e_now_ms() < end, "not settled after the storm");
		e2e_sleep_ms(5);
	}
	ck_assert_int_eq(e2e_daemon_stop(&d, SIGTERM), 0);
	e2e_daemon_free(&d);
	e2e_redis_free(&redis);
	(void)munmap(s, sizeof(*s));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("storm");
	TCase *t = tcase_create("storm");

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 600);
	tcase_add_test(t, storm);
	suite_add_tcase(suite, t);
	return test_run(suite);
}
