/*
 * test_cache.c - caches that lie layer by layer: one worker stores blocks on its stream and
 * another, whose cache is arranged in another way, loads them; byte for byte, with a real daemon.
 *
 *     test_cache CASE      moves, errors, late
 *
 * Runs on the device of E2E_DEVICE; CACHE_MOVER says who has to move (processor, kernel, copies).
 */
#include "tests/driver/census.h"
#include "tests/e2e/cache_kit.h"
#include "tests/e2e/harness.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t piece_sizes[] = { 2080, 1026, 64 }; /* of more than a tile, odd, small */
#define N_SIZES (sizeof(piece_sizes) / sizeof(piece_sizes[0]))

static struct e2e_daemon d;

static void setup(void)
{
	static const char *const args[] = { "--pool-blocks", "64", NULL };

	ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

static void teardown(void)
{
	e2e_daemon_free(&d);
}

static void ok(const struct kit_worker *w, int r)
{
	ck_assert_msg(r == PFX_OK, "%d: %s", r, pfx_error(w->client));
}

static void worker(struct kit_worker *w, enum kit_shape shape, uint32_t n_blocks, uint32_t piece)
{
	pfx_client *c = e2e_connect(&d);
	pfx_namespace *ns = NULL;
	const char *why;
	int r = kit_open(c, piece, 1, &ns);

	ck_assert_msg(r == PFX_OK, "%s", pfx_error(c));
	kit_worker_init(w, c, ns, shape, n_blocks, piece);
	ok(w, pfx_cache_new(ns, &w->layout, &w->cache));
	r = pfx_cache_mover(w->cache, &why);
	ck_assert_msg(r == kit_mover_wanted(), "%d: %s", r, why);
	ck_assert_int_eq(why[0] != '\0', r == PFX_CACHE_COPIES);
}

/* A lease with slots for the whole prompt. */
static uint64_t reserve(struct kit_worker *w, uint32_t seed, uint32_t slots[KIT_PROMPT])
{
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_match_result m = { .struct_size = sizeof(m) };

	ok(w, pfx_match(w->ns, kit_prompt(seed), &m));
	ck_assert_uint_eq(m.n_device, 0);
	ok(w, pfx_reserve(w->ns, m.lease, KIT_PROMPT, 0, &r));
	ck_assert_uint_eq(r.n, KIT_PROMPT);
	kit_slots(r.runs, r.n_runs, slots, KIT_PROMPT);
	return m.lease;
}

static uint64_t found(struct kit_worker *w, uint32_t seed, uint32_t slots[KIT_PROMPT])
{
	pfx_match_result m = { .struct_size = sizeof(m) };

	ok(w, pfx_match(w->ns, kit_prompt(seed), &m));
	ck_assert_uint_eq(m.n_device, KIT_PROMPT);
	kit_slots(m.runs, m.n_runs, slots, KIT_PROMPT);
	return m.lease;
}

/* From cache blocks that lie anywhere; all of it is asked for before any of it has happened. */
static void store(struct kit_worker *w, uint32_t seed, const uint32_t blocks[KIT_PROMPT])
{
	pfx_commit_result c = { .struct_size = sizeof(c) };
	uint32_t slots[KIT_PROMPT];
	uint64_t lease = reserve(w, seed, slots);

	for (uint32_t i = 0; i < KIT_PROMPT; i++)
		kit_fill(w, blocks[i], seed, i);
	kit_send(w);
	ok(w, pfx_cache_store(w->cache, w->stream, blocks, slots, KIT_PROMPT));
	ok(w, pfx_stream_word(w->client, w->stream, 1, ++w->step));
	ok(w, pfx_commit_after(w->ns, lease, KIT_PROMPT, NULL, 0, 1, w->step, 0, &c));
	ck_assert_uint_eq(c.n_stored, KIT_PROMPT);
	ok(w, pfx_release_after(w->ns, lease, 0, 0, 1, w->step, 0, NULL));
}

static void load(struct kit_worker *w, uint32_t seed, const uint32_t blocks[KIT_PROMPT])
{
	uint32_t slots[KIT_PROMPT];
	uint64_t lease = found(w, seed, slots);

	ok(w, pfx_cache_load(w->cache, w->stream, blocks, slots, KIT_PROMPT));
	ok(w, pfx_stream_word(w->client, w->stream, 1, ++w->step));
	ok(w, pfx_release_after(w->ns, lease, 0, 0, 1, w->step, 0, NULL));
}

/* ---- moves ----------------------------------------------------------------------------------- */

START_TEST(from_one_cache_to_another)
{
	static const uint32_t from[2][KIT_PROMPT] = { { 12, 0, 5, 4, 3, 11, 7, 8 },
						      { 1, 2, 6, 9, 10, 12, 0, 3 } };
	static const uint32_t to[2][KIT_PROMPT] = { { 28, 3, 2, 1, 17, 0, 9, 20 },
						    { 4, 5, 6, 7, 21, 19, 23, 27 } };
	const uint32_t piece = piece_sizes[_i];
	struct kit_worker a, b;

	worker(&a, KIT_HALVES, 13, piece);
	worker(&b, KIT_PAIRS, 29, piece);
	for (uint32_t i = 0; i < 2; i++)
		store(&a, 1 + i, from[i]);
	for (uint32_t i = 0; i < 2; i++)
		load(&b, 1 + i, to[i]);
	kit_fetch(&b);
	for (uint32_t block = 0; block < 29; block++) {
		bool written = false;

		for (uint32_t i = 0; i < 2 * KIT_PROMPT; i++) {
			if (to[i / KIT_PROMPT][i % KIT_PROMPT] != block)
				continue;
			written = true;
			ck_assert_msg(kit_holds(&b, block, 1 + i / KIT_PROMPT, i % KIT_PROMPT),
				      "wrong bytes in block %u", block);
		}
		ck_assert_msg(written || kit_untouched(&b, block), "block %u was written", block);
	}
	kit_worker_deinit(&a);
	kit_worker_deinit(&b);
}
END_TEST

/* More blocks than a launch takes, from few slots to many places.  (Piece by piece takes long.) */
START_TEST(more_than_a_launch_takes)
{
	enum {
		N = 2 * PFX_CACHE_LAUNCH + 37
	};
	static uint32_t blocks[N], slots[N];
	static const uint32_t from[KIT_PROMPT] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	const uint32_t n = kit_mover_wanted() == PFX_CACHE_COPIES ? 100 : N;
	uint32_t has[KIT_PROMPT];
	struct kit_worker a, b;
	uint64_t lease;

	worker(&a, KIT_PAIRS, 8, 64);
	worker(&b, KIT_HALVES, N + 1, 64);
	store(&a, 1, from);
	lease = found(&b, 1, has);
	for (uint32_t i = 0; i < n; i++) {
		blocks[i] = n - i;
		slots[i] = has[i % KIT_PROMPT];
	}
	ok(&b, pfx_cache_load(b.cache, b.stream, blocks, slots, n));
	kit_fetch(&b);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(kit_holds(&b, n - i, 1, i % KIT_PROMPT));
	ck_assert(kit_untouched(&b, 0));
	ok(&b, pfx_release(b.ns, lease, 0, 0, 0, NULL));
	kit_worker_deinit(&a);
	kit_worker_deinit(&b);
}
END_TEST

/* Slots may lie elsewhere afterwards; the cache goes on. */
START_TEST(over_a_restart)
{
	static const uint32_t blocks[KIT_PROMPT] = { 3, 1, 4, 0, 5, 9, 2, 6 };
	struct kit_worker a;

	worker(&a, KIT_HALVES, 10, 64);
	store(&a, 1, blocks);
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--pool-blocks", "80", NULL }),
			 0);
	(void)pfx_ping(a.client, 0);
	store(&a, 2, blocks);
	memset(a.bytes, 0, a.len);
	kit_send(&a);
	load(&a, 2, blocks);
	kit_fetch(&a);
	for (uint32_t i = 0; i < KIT_PROMPT; i++)
		ck_assert(kit_holds(&a, blocks[i], 2, i));
	kit_worker_deinit(&a);
}
END_TEST

/* ---- errors ---------------------------------------------------------------------------------- */

static void refuses(struct kit_worker *w, const pfx_cache_layout *l, const char *field)
{
	pfx_cache *cache = NULL;

	ck_assert_int_eq(pfx_cache_new(w->ns, l, &cache), PFX_ARGUMENT);
	ck_assert_msg(strncmp(pfx_error(w->client), field, strlen(field)) == 0, "not '%s': %s",
		      field, pfx_error(w->client));
	ck_assert_ptr_null(cache);
}
#define REFUSES(field, value)                   \
	do {                                    \
		pfx_cache_layout l_ = w.layout; \
		l_.field = (value);             \
		refuses(&w, &l_, #field);       \
	} while (0)

START_TEST(layouts_that_do_not_fit)
{
	uint64_t odd[KIT_PIECES];
	static const uint8_t other[16] = { 7 };
	struct kit_worker w;
	pfx_cache *cache;

	worker(&w, KIT_HALVES, 8, 64);
	REFUSES(n_pieces, 0);
	REFUSES(n_pieces, PFX_CACHE_PIECES + 1);
	REFUSES(n_blocks, 0);
	REFUSES(piece_bytes, 0);
	REFUSES(piece_bytes, 63);
	REFUSES(piece_bytes, 66);
	REFUSES(piece_bytes, 64 + (UINT64_C(1) << 32));
	REFUSES(stride, 62);
	REFUSES(stride, 65);
	REFUSES(stride, UINT64_MAX / 8 - 1);
	REFUSES(pieces, NULL);
	memcpy(odd, w.pieces, sizeof(odd));
	odd[4]++;
	REFUSES(pieces, odd);
	ck_assert(strncmp(pfx_error(w.client), "pieces[4]", 9) == 0);
	odd[4] = 0;
	REFUSES(pieces, odd);
	odd[4] = UINT64_MAX - 99;
	REFUSES(pieces, odd);
	REFUSES(device, other);
	if (w.layout.device)
		REFUSES(device, NULL);
	ck_assert_int_eq(pfx_cache_new(w.ns, NULL, &cache), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_cache_new(w.ns, &w.layout, NULL), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_cache_new(NULL, &w.layout, &cache), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_cache_mover(NULL, NULL), PFX_ARGUMENT);
	pfx_cache_free(NULL);
	kit_worker_deinit(&w);
}
END_TEST

/* Nothing is moved by a call that names one thing wrong, be it the last. */
START_TEST(places_that_are_not_there)
{
	uint32_t blocks[2] = { 1, 2 }, slots[KIT_PROMPT], wrong[2];
	struct kit_worker w;
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	uint64_t lease;

	worker(&w, KIT_HALVES, 8, 64);
	lease = reserve(&w, 1, slots);
	ck_assert_int_eq(pfx_namespace_get(w.ns, &info), 0);
	wrong[0] = 1;
	wrong[1] = 8;
	ck_assert_int_eq(pfx_cache_load(w.cache, w.stream, wrong, slots, 2), PFX_ARGUMENT);
	ck_assert_str_eq(pfx_error(w.client), "blocks[1] is 8, and there are 8");
	ck_assert_int_eq(pfx_cache_store(w.cache, w.stream, wrong, slots, 2), PFX_ARGUMENT);
	wrong[0] = slots[0];
	wrong[1] = info.n_slots;
	ck_assert_int_eq(pfx_cache_load(w.cache, w.stream, blocks, wrong, 2), PFX_ARGUMENT);
	ck_assert(strncmp(pfx_error(w.client), "slots[1] is ", 12) == 0);
	if (info.n_write)
		wrong[1] = info.n_write;
	ck_assert_int_eq(pfx_cache_store(w.cache, w.stream, blocks, wrong, 2), PFX_ARGUMENT);
	wrong[1] = UINT32_MAX;
	ck_assert_int_eq(pfx_cache_load(w.cache, w.stream, blocks, wrong, 2), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_cache_load(w.cache, w.stream, NULL, slots, 2), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_cache_store(w.cache, w.stream, blocks, NULL, 2), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_cache_store(NULL, w.stream, blocks, slots, 2), PFX_ARGUMENT);
	ok(&w, pfx_cache_store(w.cache, w.stream, NULL, NULL, 0));
	kit_fetch(&w);
	for (uint32_t b = 0; b < 8; b++)
		ck_assert(kit_untouched(&w, b));
	ok(&w, pfx_release(w.ns, lease, 0, 0, 0, NULL));
	kit_worker_deinit(&w);
}
END_TEST

START_TEST(pools_that_are_not_written)
{
	const uint32_t one = 0;
	struct kit_worker w;
	pfx_namespace *ns = NULL, *none = NULL;
	pfx_cache *cache = NULL;

	worker(&w, KIT_HALVES, 8, 64);
	ok(&w, kit_open(w.client, 64, 2, &ns));
	ok(&w, pfx_cache_new(ns, &w.layout, &cache));
	ck_assert_int_eq(pfx_cache_store(cache, w.stream, &one, &one, 1), PFX_FORBIDDEN);
	ok(&w, pfx_cache_load(cache, w.stream, &one, &one, 1));
	ok(&w, kit_open(w.client, 64, 0, &none));
	ck_assert_int_eq(pfx_cache_new(none, &w.layout, &cache), PFX_ARGUMENT);
	kit_worker_deinit(&w); /* with the second cache */
}
END_TEST

/* A daemon that starts again without its GPU has its pool in this machine's memory. */
START_TEST(a_pool_that_lies_elsewhere)
{
	static const uint32_t blocks[KIT_PROMPT] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	uint32_t slots[KIT_PROMPT];
	struct kit_worker w;
	uint64_t lease;

	if (kit_mover_wanted() == PFX_CACHE_PROCESSOR)
		return; /* it is there from the beginning */
	worker(&w, KIT_HALVES, 8, 64);
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	ck_assert_int_eq(e2e_daemon_start(&d, (const char *const[]){ "--pool-blocks", "64",
								     "--device", "host", NULL }),
			 0);
	(void)pfx_ping(w.client, 0);
	lease = reserve(&w, 1, slots);
	ck_assert_int_eq(pfx_cache_store(w.cache, w.stream, blocks, slots, KIT_PROMPT),
			 PFX_WRONG_STATE);
	ck_assert_int_eq(pfx_cache_load(w.cache, w.stream, blocks, slots, KIT_PROMPT),
			 PFX_WRONG_STATE);
	ok(&w, pfx_release(w.ns, lease, 0, 0, 0, NULL));
	kit_worker_deinit(&w);
}
END_TEST

/* A child has no driver and no connection; it ends nothing of its parent's. */
START_TEST(a_child_has_none)
{
	const uint32_t one = 0;
	struct kit_worker w;
	int status;
	pid_t pid;

	worker(&w, KIT_HALVES, 8, 64);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		pfx_cache *cache = NULL;
		bool right = pfx_cache_load(w.cache, NULL, &one, &one, 1) == PFX_FORKED &&
			     pfx_cache_new(w.ns, &w.layout, &cache) == PFX_FORKED;

		pfx_close(w.client);
		_exit(right ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	store(&w, 1, (const uint32_t[KIT_PROMPT]){ 0, 1, 2, 3, 4, 5, 6, 7 });
	kit_worker_deinit(&w);
}
END_TEST

/* ---- a stream that is far behind ------------------------------------------------------------- */

#define MANY 200u /* more than there are tables for launches */

/* Two streams, a block each time; no call waits for anything but room. */
START_TEST(many_calls_at_once)
{
	static const uint32_t from[KIT_PROMPT] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct kit_worker a, b;
	uint32_t slots[KIT_PROMPT];
	gpu_cu_stream second = NULL;
	uint64_t lease;

	worker(&a, KIT_HALVES, 8, 64);
	worker(&b, KIT_PAIRS, MANY, 64);
	if (b.stream)
		second = kit_stream_new();
	store(&a, 1, from);
	lease = found(&b, 1, slots);
	for (uint32_t i = 0; i < MANY; i++)
		ok(&b, pfx_cache_load(b.cache, i % 3 ? b.stream : second, &i,
				      &slots[i % KIT_PROMPT], 1));
	if (second)
		ck_assert_int_eq(kit_driver.stream_sync(second), 0);
	kit_settle(&b);
	kit_fetch(&b);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_msg(kit_holds(&b, i, 1, i % KIT_PROMPT), "wrong bytes in block %u", i);
	ok(&b, pfx_release(b.ns, lease, 0, 0, 0, NULL));
	kit_worker_deinit(&a);
	kit_worker_deinit(&b);
}
END_TEST

/* What is under way goes on with the arguments that it had. */
START_TEST(freed_while_under_way)
{
	static const uint32_t from[KIT_PROMPT] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct kit_worker a, b;
	uint32_t slots[KIT_PROMPT];
	uint64_t lease;

	worker(&a, KIT_HALVES, 8, 64);
	worker(&b, KIT_PAIRS, 40, 64);
	store(&a, 1, from);
	lease = found(&b, 1, slots);
	for (uint32_t i = 0; i < 40; i++)
		ok(&b, pfx_cache_load(b.cache, b.stream, &i, &slots[i % KIT_PROMPT], 1));
	pfx_cache_free(b.cache);
	b.cache = NULL;
	kit_fetch(&b);
	for (uint32_t i = 0; i < 40; i++)
		ck_assert_msg(kit_holds(&b, i, 1, i % KIT_PROMPT), "wrong bytes in block %u", i);
	ok(&b, pfx_release(b.ns, lease, 0, 0, 0, NULL));
	kit_worker_deinit(&a);
	kit_worker_deinit(&b);
}
END_TEST

/* A client whose calls may take 2 ms, on streams that take longer. */
static void hasty_worker(struct kit_worker *w)
{
	const pfx_connect_options o = { .struct_size = sizeof(o),
					.socket = d.socket,
					.deadline_ms = 2 };
	unsigned long end = e2e_now_ms() + 20000;
	pfx_namespace *ns = NULL;
	pfx_client *c = NULL;

	(void)pfx_connect(&o, &c);
	ck_assert_ptr_nonnull(c);
	while (kit_open(c, 64, 1, &ns) != PFX_OK)
		ck_assert_uint_lt(e2e_now_ms(), end);
	kit_worker_init(w, c, ns, KIT_PAIRS, 8, 64);
	ok(w, pfx_cache_new(ns, &w->layout, &w->cache));
}

/* No room is a status, in time, and the memory of what is not through outlives its cache. */
START_TEST(no_room_in_time)
{
	const uint32_t one = 3, slot = 5;
	unsigned long begun, longest = 0;
	struct lookalike_census census;
	uint32_t n_late = 0;
	struct kit_worker w;

	if (kit_mover_wanted() != PFX_CACHE_KERNEL)
		return; /* nothing else has tables */
	hasty_worker(&w);
	for (uint32_t i = 0; i < 150; i++) {
		int r;

		begun = e2e_now_ms();
		r = pfx_cache_load(w.cache, w.stream, &one, &slot, 1);
		begun = e2e_now_ms() - begun;
		longest = begun > longest ? begun : longest;
		ck_assert_msg(r == PFX_OK || r == PFX_DEADLINE, "%s", pfx_error(w.client));
		n_late += r == PFX_DEADLINE;
	}
	ck_assert_uint_gt(n_late, 0);
	ck_assert_uint_lt(longest, 2000);
	pfx_cache_free(w.cache);
	w.cache = NULL;
	ck_assert(lookalike_census(&census));
	if (kit_driver.stream_query(w.stream) == GPU_CU_NOT_READY)
		ck_assert_uint_eq(census.n_modules, 1); /* what runs on is still there */
	ck_assert_uint_eq(census.n_broken, 0);
	kit_worker_deinit(&w);
}
END_TEST

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "moves";
	Suite *suite = suite_create("cache");
	TCase *t = tcase_create(name);

	if (!e2e_daemon_binary()) {
		puts("1..0 # SKIP no prefixd binary");
		return EXIT_SUCCESS;
	}
	tcase_set_timeout(t, 240);
	tcase_add_checked_fixture(t, setup, teardown);
	if (strcmp(name, "moves") == 0) {
		tcase_add_loop_test(t, from_one_cache_to_another, 0, N_SIZES);
		tcase_add_test(t, more_than_a_launch_takes);
		tcase_add_test(t, over_a_restart);
	} else if (strcmp(name, "errors") == 0) {
		tcase_add_test(t, layouts_that_do_not_fit);
		tcase_add_test(t, places_that_are_not_there);
		tcase_add_test(t, pools_that_are_not_written);
		tcase_add_test(t, a_pool_that_lies_elsewhere);
		tcase_add_test(t, a_child_has_none);
	} else if (strcmp(name, "late") == 0) {
		tcase_add_test(t, many_calls_at_once);
		tcase_add_test(t, freed_while_under_way);
		tcase_add_test(t, no_room_in_time);
	}
	suite_add_tcase(suite, t);
	return test_run(suite);
}
