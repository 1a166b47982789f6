/*
 * test_device_lost.c - what becomes of a daemon whose GPU fails, on the look-alike driver.
 *
 *     F50  a copy fails, and nothing else does: the block's move fails, its reader gets an error,
 *          and the error is counted by its class
 *     F51  a fault that stays: the pool is gone, workers are told, the daemon lives, and where the
 *          driver lets it, it opens the device again and goes on; what workers mapped of it goes
 *          with their last lease, and what they write afterwards is written in other memory
 *     F52  bytes that are not what their writer committed are not served from the tier below
 *     F53  a block whose copy down is under way is not given away before that has ended
 *
 * The daemon runs with --device cuda and a plan of faults in LOOKALIKE; workers are this process,
 * which maps and moves through the same driver, without faults.
 */
#include "clients/c/prefixd.h"
#include "clients/c/prefixd_events.h"
#include "clients/c/prefixd_kernels.h"
#include "clients/c/prefixd_load.h"
#include "clients/c/prefixd_words.h"
#include "tests/driver/census.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/mover.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	BYTES = 4096,
	TOKENS = 16,
	LONG_MS = 10000
};

/* The first copy of a load after four puts into memory to write in, each of which is copied there
 * to its slot, from it to be summed, and down. */
#define STAGED_LOAD "13"

static pfx_client *client;
static pfx_namespace *ns;
static const char *pool_write = "direct";

/*
 * A daemon with `slots` and a host tier, and `plan` for its driver; then a worker, for whose driver
 * nothing is planned.  A process does not fork after it has loaded a driver, so this comes once.
 */
static void start(const char *plan, const char *slots, const char *write)
{
	char address[160];

	ck_assert_int_eq(setenv("E2E_DEVICE", "cuda", 1), 0);
	ck_assert_int_eq(setenv("LOOKALIKE", plan, 1), 0);
	snprintf(http_path, sizeof(http_path), "%s/http.sock", d.dir);
	snprintf(address, sizeof(address), "unix://%s", http_path);
	START("--pool-blocks", slots, "--host-blocks", "16", "--write", write, "--watermark", "0",
	      "--prefill-rate", "1", "--http", address, "--keep", "holder", "--pool-write",
	      pool_write);
	ck_assert_int_eq(setenv("LOOKALIKE", "poison=1", 1), 0);
	client = e2e_connect(&d);
	ns = e2e_open(client, "m", BYTES);
}

static void stop(void)
{
	pfx_close(client);
	ck_assert_int_ge(e2e_daemon_stop(&d, SIGINT), 0);
}

/* ---- a worker; each prompt is one block ------------------------------------------------------ */

static void fill(uint32_t id, uint8_t block[BYTES])
{
	for (uint32_t i = 0; i < BYTES; i++)
		block[i] = (uint8_t)(id * 7 + i + (i >> 8));
}

static pfx_prompt prompt(uint32_t id, uint32_t flags)
{
	static uint32_t tokens[TOKENS];

	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = id << 16 | i;
	return (pfx_prompt){ .struct_size = sizeof(pfx_prompt),
			     .salt = "",
			     .keys = tokens,
			     .n_keys = 1,
			     .flags = flags,
			     .deadline_ms = LONG_MS };
}

static int match_as(uint32_t id, uint32_t flags, pfx_match_result *ret)
{
	const pfx_prompt p = prompt(id, flags);

	*ret = (pfx_match_result){ .struct_size = sizeof(*ret) };
	return pfx_match(ns, &p, ret);
}

static void good(int r)
{
	ck_assert_msg(r == PFX_OK, "%s: %s", pfx_status_to_string(r), pfx_error(client));
}

static void expect_block(uint32_t slot, uint32_t id)
{
	uint8_t got[BYTES], want[BYTES];

	mover_read(ns, slot, got, BYTES);
	fill(id, want);
	ck_assert_mem_eq(got, want, BYTES);
}

/* Stores the block of prompt `id`; with `lies` its checksum is another block's. */
static void put_as(uint32_t id, bool lies)
{
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };
	pfx_match_result m;
	XXH128_canonical_t sum;
	uint8_t block[BYTES];

	good(match_as(id, 0, &m));
	ck_assert_uint_eq(m.n_device, 0);
	good(pfx_reserve(ns, m.lease, 1, LONG_MS, &r));
	ck_assert_uint_eq(r.n, 1);
	fill(id, block);
	mover_write(ns, r.runs[0].start, block, BYTES);
	if (lies)
		fill(id + 1, block);
	XXH128_canonicalFromHash(&sum, XXH3_128bits(block, BYTES));
	good(pfx_commit(ns, m.lease, 1, &sum, 0, LONG_MS, &c));
	good(pfx_release(ns, m.lease, 0, 0, LONG_MS, NULL));
}

static void put(uint32_t id)
{
	put_as(id, false);
}

/* Asks for it from below.  Returns how many blocks came up, and compares them. */
static uint32_t load(uint32_t id, int *ret_reason)
{
	const pfx_prompt none = { .struct_size = sizeof(none), .salt = "", .deadline_ms = LONG_MS };
	pfx_load_result l = { .struct_size = sizeof(l) };
	pfx_match_result m, x = { .struct_size = sizeof(x) };

	good(match_as(id, PFX_MATCH_PROMOTE, &m));
	if (m.n_device == 1)
		expect_block(m.runs[0].start, id);
	l.n = m.n_device;
	if (m.n_device == 0 && m.loading) {
		good(pfx_load_wait(ns, m.lease, LONG_MS, &l));
		if (l.n == 1) {
			good(pfx_extend(ns, m.lease, &none, &x));
			ck_assert_uint_eq(x.n_device, 1);
			expect_block(x.runs[0].start, id);
		}
	}
	(void)pfx_release(ns, m.lease, 0, 0, LONG_MS, NULL);
	if (ret_reason)
		*ret_reason = l.reason;
	return l.n;
}

static void wait_value(const char *series, long double at_least)
{
	for (int i = 0; i < 1000 && http_value(series) < at_least; i++)
		e2e_sleep_ms(20);
	ck_assert_msg(http_value(series) >= at_least, "%s", series);
}

static void wait_stored_below(unsigned n)
{
	wait_value("prefixd_copy_operations_total{op=\"copy\",result=\"done\"}", n);
}

/* ---- F50 ------------------------------------------------------------------------------------- */

/* The third copy is the first one up; the driver refuses it, and no other. */
START_TEST(f50_one_copy_fails)
{
	int reason;

	start("poison=1,fail=copy_batch:1-:1+copy:3:1", "1", "through");
	put(1);
	wait_stored_below(1);
	put(2);
	wait_stored_below(2);
	ck_assert_uint_eq(load(1, &reason), 0);
	ck_assert_str_eq(pfx_reason_to_string(reason), "tier_down");
	ck_assert(http_value("prefixd_copy_errors_total{error=\"copy\"}") == 1);
	ck_assert(http_value("prefixd_copy_errors_total{error=\"device\"}") == 0);
	ck_assert(http_value("prefixd_device_lost") == 0);
	ck_assert_uint_eq(load(1, NULL), 1);
	ck_assert_uint_eq(load(2, NULL), 1);
	ck_assert(http_value("prefixd_copy_errors_total{error=\"copy\"}") == 1);
	stop();
}
END_TEST

/* ---- F51 ------------------------------------------------------------------------------------- */

static char *ready_text(int *ret_status)
{
	struct http_answer a = http_get("/readyz", "");
	char *text = strdup(a.body ? a.body : "");

	*ret_status = a.status;
	http_answer_free(&a);
	return text;
}

/* Another process in its place, ready once it has the device; in between nobody answers. */
static void upgrade(void)
{
	int status = 0;

	ck_assert_int_eq(kill(d.pid, SIGUSR2), 0);
	for (int i = 0; i < 500 && status != 200; i++) {
		e2e_sleep_ms(20);
		free(ready_text(&status));
	}
	ck_assert_int_eq(status, 200);
}

static void expect_log(const char *text)
{
	char *log = e2e_daemon_log(&d);

	ck_assert_msg(strstr(log, text), "'%s' is not in: %s", text, log);
	free(log);
}

/*
 * A fault that the driver holds against the process for good.  The daemon goes on without the
 * device; the process after an upgrade has it again, with what the host tier had.
 */
START_TEST(f51_fault_that_stays)
{
	pfx_match_result m;
	int status, reason;
	char *text;

	start("poison=1,op=copy:3:700", "1", "through");
	put(1);
	wait_stored_below(1);
	put(2);
	wait_stored_below(2);
	ck_assert_uint_eq(load(1, &reason), 0); /* the third one */
	wait_value("prefixd_device_lost", 1);
	ck_assert(http_value("prefixd_copy_errors_total{error=\"device\"}") == 1);
	ck_assert(http_value("prefixd_pools_lost_total") == 1);
	ck_assert(http_value("prefixd_blocks") == 2);
	text = ready_text(&status);
	ck_assert_int_eq(status, 503);
	ck_assert_msg(strstr(text, "is lost") && strstr(text, "700"), "%s", text);
	free(text);
	for (int i = 0; i < 3; i++) { /* the worker is told, and told again */
		ck_assert_int_eq(match_as(1, 0, &m), PFX_DEVICE_LOST);
		ck_assert_int_eq(pfx_ping(client, 0), PFX_OK);
	}
	expect_log("is lost, with what lay on it alone");
	expect_log("cannot be opened again");
	expect_clean();
	/* A process of its own is rid of it. */
	upgrade();
	ck_assert(http_value("prefixd_device_lost") == 0);
	ck_assert_uint_eq(load(1, NULL), 1);
	ck_assert_uint_eq(load(2, NULL), 1);
	stop();
}
END_TEST

/* The namespace of all tests here, as somebody else opens it. */
static pfx_namespace *open_again(pfx_client *c, uint32_t flags, int map)
{
	const pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | flags,
		.model = "m",
		.revision = "r1",
		.dtype = "float16",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 64,
		.block_tokens = TOKENS,
		.block_bytes = BYTES,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "test/1",
		.map = map,
	};
	pfx_namespace *again = NULL;

	ck_assert_int_eq(pfx_open(c, &o, &again), PFX_OK);
	return again;
}

/* Takes what the stream has until `kind` comes; a loss is no event, and does not end it. */
static void expect_event(pfx_client *listener, int kind)
{
	pfx_change e = { .struct_size = sizeof(e) };

	do {
		int r = pfx_next_event(listener, LONG_MS, &e);

		ck_assert_msg(r == PFX_OK, "%s: %s", pfx_status_to_string(r), pfx_error(listener));
	} while (e.kind != kind);
}

/* One that goes with the device: it is opened again at once. */
START_TEST(f51_device_comes_back)
{
	pfx_namespace_info before = { .struct_size = sizeof(before) }, after = before;
	pfx_change event = { .struct_size = sizeof(event) };
	pfx_client *listener;
	pfx_match_result held;

	start("poison=1,fail=copy_batch:1-:1+copy:5:999", "2", "through");
	listener = e2e_connect(&d);
	(void)open_again(listener, 0, 0);
	ck_assert_int_eq(pfx_subscribe(listener, NULL, 0, NULL, 0, NULL), PFX_OK);
	for (uint32_t id = 1; id <= 4; id++) {
		put(id);
		wait_stored_below(id);
	}
	ck_assert_int_eq(pfx_namespace_get(ns, &before), PFX_OK);
	good(match_as(4, 0, &held));
	ck_assert_uint_eq(held.n_device, 1);
	expect_block(held.runs[0].start, 4);
	ck_assert_uint_eq(load(1, NULL), 0); /* the fifth one: the device is lost */
	wait_value("prefixd_device_opened_again_total", 1);
	wait_value("prefixd_copy_operations_total{op=\"pool_again\",result=\"done\"}", 1);
	ck_assert(http_value("prefixd_device_lost") == 0);
	/* What was held is over; all that lies lower serves again, in new memory. */
	ck_assert_int_eq(pfx_release(ns, held.lease, 0, 0, LONG_MS, NULL), PFX_DEVICE_LOST);
	for (uint32_t id = 1; id <= 4; id++)
		ck_assert_uint_eq(load(id, NULL), 1);
	ck_assert_int_eq(pfx_namespace_get(ns, &after), PFX_OK);
	ck_assert_mem_ne(before.pool, after.pool, sizeof(after.pool));
	while (pfx_next_event(listener, 100, &event) == PFX_OK)
		;
	put(5);
	expect_event(listener, PFX_CHANGE_STORED);
	pfx_close(listener);
	ck_assert_uint_eq(load(5, NULL), 1);
	expect_log("was opened again");
	expect_clean();
	stop();
}
END_TEST

/* ---- F51: what workers hold of it ------------------------------------------------------------ */

/* How many slabs of the daemon's this process has mapped. */
static uint32_t mapped(void)
{
	struct lookalike_census c = { 0 };

	ck_assert(lookalike_census(&c));
	ck_assert_uint_eq(c.n_broken, 0);
	return c.n_mappings;
}

/* A reservation that is filled, and not committed yet. */
static uint64_t begin_block(uint32_t id, uint64_t *ret_address)
{
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_match_result m;
	uint8_t block[BYTES];

	good(match_as(id, 0, &m));
	good(pfx_reserve(ns, m.lease, 1, LONG_MS, &r));
	ck_assert_uint_eq(r.n, 1);
	fill(id, block);
	mover_write(ns, r.runs[0].start, block, BYTES);
	*ret_address = pfx_write_address(ns, r.runs[0].start);
	ck_assert_uint_ne(*ret_address, 0);
	return m.lease;
}

/*
 * Memory to write in is lost with the pool.  What is stored afterwards is written in what the next
 * OPEN brings, though somebody still holds a place of the old one.
 */
START_TEST(f51_written_elsewhere)
{
	uint64_t held, before, after, other;
	uint32_t n;

	pool_write = "staged";
	start("poison=1,fail=copy_batch:1-:1+copy:" STAGED_LOAD ":999", "2", "through");
	for (uint32_t id = 1; id <= 4; id++) {
		put(id);
		wait_stored_below(id);
	}
	held = begin_block(20, &before);
	n = mapped();
	ck_assert_uint_eq(load(1, NULL), 0); /* the device is lost */
	wait_value("prefixd_device_opened_again_total", 1);
	wait_value("prefixd_copy_operations_total{op=\"pool_again\",result=\"done\"}", 1);
	other = begin_block(21, &after);
	ck_assert_uint_ne(after, before);
	ck_assert_uint_eq(mapped(), 2 * n);
	(void)pfx_release(ns, other, 0, 0, LONG_MS, NULL);
	put(5);
	ck_assert_uint_eq(load(5, NULL), 1);
	ck_assert_uint_eq(mapped(), 2 * n); /* a stream may still write for the held one */
	ck_assert_int_eq(pfx_release(ns, held, 0, 0, LONG_MS, NULL), PFX_DEVICE_LOST);
	ck_assert_uint_eq(mapped(), n);
	for (uint32_t id = 1; id <= 5; id++)
		ck_assert_uint_eq(load(id, NULL), 1);
	ck_assert(http_value("prefixd_copy_corrupt_total") == 0);
	expect_clean();
	stop();
}
END_TEST

/*
 * The daemon finds no memory before all have let go of what was lost, so nobody waits for his OPEN
 * with that: it goes when the loss is heard, or with the last lease.
 */
static void lose_for_good(void)
{
	pool_write = "staged";
	start("poison=1,op=copy:" STAGED_LOAD ":700", "3", "through");
	for (uint32_t id = 1; id <= 4; id++) {
		put(id);
		wait_stored_below(id);
	}
}

START_TEST(f51_let_go_when_heard)
{
	uint64_t piece = 4096; /* nothing is moved */
	uint8_t gpu[16];
	pfx_cache_layout layout = { .struct_size = sizeof(layout),
				    .pieces = &piece,
				    .n_pieces = 1,
				    .n_blocks = 1,
				    .piece_bytes = BYTES,
				    .stride = BYTES,
				    .device = gpu };
	pfx_cache *cache = NULL, *none = NULL;

	lose_for_good();
	ck_assert_int_eq(pfx_pool_device(ns, gpu), PFX_DEVICE_CUDA);
	good(pfx_cache_new(ns, &layout, &cache));
	good(pfx_cache_store(cache, NULL, NULL, NULL, 0));
	ck_assert_uint_gt(mapped(), 0);
	ck_assert_uint_eq(load(1, NULL), 0);
	wait_value("prefixd_device_lost", 1);
	good(pfx_ping(client, 0));
	ck_assert_int_eq(pfx_cache_store(cache, NULL, NULL, NULL, 0), PFX_DEVICE_LOST);
	ck_assert_int_eq(pfx_cache_load(cache, NULL, NULL, NULL, 0), PFX_DEVICE_LOST);
	ck_assert_int_eq(pfx_cache_new(ns, &layout, &none), PFX_DEVICE_LOST);
	pfx_cache_free(cache);
	ck_assert_uint_eq(mapped(), 0);
	ck_assert_uint_eq(pfx_slot_address(ns, 0), 0);
	ck_assert_uint_eq(pfx_write_address(ns, 0), 0);
	ck_assert_int_eq(pfx_slot_stale(ns, 0, UINT64_MAX), 1);
	stop();
}
END_TEST

START_TEST(f51_let_go_with_the_last_lease)
{
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_match_result m;
	uint64_t held[2], at;
	uint32_t n;

	lose_for_good();
	ns = open_again(client, PFX_NS_WORDS, 1); /* two of the client's share the mappings */
	held[0] = begin_block(20, &at);
	held[1] = begin_block(21, &at);
	n = mapped();
	ck_assert_uint_eq(load(1, NULL), 0);
	wait_value("prefixd_device_lost", 1);
	ck_assert_int_eq(match_as(1, 0, &m), PFX_DEVICE_LOST);
	/* Told once, and the daemon knows nothing of it; but who wrote there may write still. */
	ck_assert_int_eq(pfx_reserve(ns, held[0], 1, LONG_MS, &r), PFX_DEVICE_LOST);
	ck_assert_int_eq(pfx_reserve(ns, held[0], 1, LONG_MS, &r), PFX_UNKNOWN_LEASE);
	pfx_words(client, NULL)[0] = 1;
	ck_assert_int_eq(pfx_release_after(ns, held[1], 0, 0, 1, 1, LONG_MS, NULL),
			 PFX_DEVICE_LOST);
	ck_assert_uint_eq(mapped(), n);
	good(pfx_ping(client, 0));
	ck_assert_uint_eq(mapped(), n);
	ck_assert_int_eq(pfx_release_after(ns, held[0], 0, 0, 1, 1, LONG_MS, NULL),
			 PFX_UNKNOWN_LEASE);
	ck_assert_uint_eq(mapped(), 0);
	stop();
}
END_TEST

/* The same where its connection ended as well: the worker says that he is done with all of it. */
START_TEST(f51_let_go_when_quiesced)
{
	uint64_t held, at;
	uint32_t n;

	lose_for_good();
	held = begin_block(20, &at);
	n = mapped();
	ck_assert_uint_eq(load(1, NULL), 0);
	wait_value("prefixd_device_lost", 1);
	good(pfx_ping(client, 0));
	upgrade();
	put(5);
	ck_assert_uint_eq(load(5, NULL), 1);
	ck_assert_uint_eq(mapped(), 2 * n);
	good(pfx_quiesced(client, NULL));
	ck_assert_uint_eq(mapped(), n);
	ck_assert_int_eq(pfx_release(ns, held, 0, 0, LONG_MS, NULL), PFX_UNKNOWN_LEASE);
	expect_clean();
	stop();
}
END_TEST

/* ---- F52 ------------------------------------------------------------------------------------- */

START_TEST(f52_bytes_that_are_not_there)
{
	pfx_match_result m;

	start("poison=1", "4", "through");
	put(1);
	put_as(2, true);
	wait_stored_below(2);
	wait_value("prefixd_copy_corrupt_total", 1);
	ck_assert(http_value("prefixd_copy_errors_total{error=\"corrupt\"}") == 1);
	good(match_as(2, PFX_MATCH_PROMOTE, &m));
	ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis, 0);
	good(pfx_release(ns, m.lease, 0, 0, LONG_MS, NULL));
	ck_assert_uint_eq(load(1, NULL), 1);
	ck_assert(http_value("prefixd_blocks") == 1);
	put(2);
	ck_assert_uint_eq(load(2, NULL), 1);
	stop();
}
END_TEST

/* ---- F53 ------------------------------------------------------------------------------------- */

START_TEST(f53_source_is_pinned)
{
	start("poison=1,latency_us=100000", "1", "back");
	put(0);
	for (uint32_t id = 1; id < 6; id++) {
		pfx_reserve_result r = { .struct_size = sizeof(r) };
		pfx_match_result m, old;

		/* Its slot is wanted: it is copied down, and is still the block's meanwhile. */
		good(match_as(id, 0, &m));
		(void)pfx_reserve(ns, m.lease, 1, 20, &r);
		ck_assert_uint_eq(r.n, 0);
		(void)pfx_release(ns, m.lease, 0, 0, LONG_MS, NULL);
		good(match_as(id - 1, 0, &old));
		ck_assert_uint_eq(old.n_device, 1);
		expect_block(old.runs[0].start, id - 1);
		good(pfx_release(ns, old.lease, 0, 0, LONG_MS, NULL));
		put(id); /* as soon as it is down, this is written over it */
	}
	for (uint32_t id = 0; id < 6; id++)
		ck_assert_uint_eq(load(id, NULL), 1);
	ck_assert(http_value("prefixd_copy_corrupt_total") == 0);
	expect_clean();
	stop();
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const f50[] = { f50_one_copy_fails, NULL };
	const TTest *const f51[] = { f51_fault_that_stays,
				     f51_device_comes_back,
				     f51_written_elsewhere,
				     f51_let_go_when_heard,
				     f51_let_go_with_the_last_lease,
				     f51_let_go_when_quiesced,
				     NULL };
	const TTest *const f52[] = { f52_bytes_that_are_not_there, NULL };
	const TTest *const f53[] = { f53_source_is_pinned, NULL };
	const struct shell_case cases[] = {
		{ "F50", f50 },
		{ "F51", f51 },
		{ "F52", f52 },
		{ "F53", f53 },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
