/*
 * test_stream.c - libprefixd's words: a worker whose stream is slow and whose requests are not.
 *
 * On the driver that looks like a GPU's the stream is one of that driver's; where the pool lies in
 * this machine's memory it is a thread.  Either takes its time before it fills a block, and writes
 * the word behind it; the worker says COMMIT at once.
 */
#include "clients/c/prefixd.h"
#include "clients/c/prefixd_load.h"
#include "clients/c/prefixd_words.h"
#include "gpu/driver.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/mover.h"
#include "tests/lib/run.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCKS     8u
#define BYTES      4096u
#define LATENCY_MS 100u /* of the thread; on the look-alike LOOKALIKE says it */

static struct e2e_daemon d;

static void start(void)
{
	static const char *const args[] = { "--pool-blocks", "8", "--host-blocks", "64",
					    /* what lies below is always worth loading */
					    "--prefill-rate", "1", NULL };

	if (!d.dir[0])
		ck_assert_int_eq(e2e_daemon_init(&d), 0);
	ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
}

static void stop(void)
{
	e2e_daemon_free(&d);
}

static pfx_namespace *open_with(pfx_client *c, const char *model, uint32_t flags)
{
	pfx_namespace_options o = {
		.struct_size = sizeof(o),
		.key_mode = PFX_KEYS_TOKENS,
		.flags = PFX_NS_OPAQUE | flags,
		.model = model,
		.revision = "1",
		.dtype = "uint8",
		.layers = 1,
		.kv_heads = 1,
		.head_dim = 1,
		.block_tokens = 16,
		.block_bytes = BYTES,
		.layout = "opaque",
		.tp_size = 1,
		.engine = "test",
		.map = 1,
	};
	pfx_namespace *ns = NULL;
	int r = pfx_open(c, &o, &ns);

	ck_assert_msg(r == PFX_OK, "%s", pfx_error(c));
	return ns;
}

static const pfx_prompt *prompt_of(uint32_t seed)
{
	static uint32_t tokens[BLOCKS * 16];
	static pfx_prompt p;

	for (uint32_t i = 0; i < BLOCKS * 16; i++)
		tokens[i] = seed * 1000 + i;
	p = (pfx_prompt){ .struct_size = sizeof(p),
			  .salt = "",
			  .keys = tokens,
			  .n_keys = BLOCKS,
			  .flags = PFX_MATCH_PROMOTE };
	return &p;
}

static void fill(uint32_t seed, uint32_t i, uint8_t out[BYTES])
{
	for (uint32_t k = 0; k < BYTES; k++)
		out[k] = (uint8_t)(seed * 31 + i * 7 + k + 1);
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* What it has to do; one for the process. */
static struct {
	pfx_client *client;
	pfx_namespace *ns;
	uint32_t slots[BLOCKS];
	uint32_t seed;
	uint64_t value;
	pthread_t thread;
	bool running;
	/* on a GPU */
	struct gpu_driver driver;
	gpu_cu_stream stream;
	uint8_t (*buffer)[BYTES];
	gpu_cu_ptr buffer_address;
} s;

static void *work(void *ctx)
{
	volatile uint64_t *words = ctx;
	uint8_t bytes[BYTES];

	e2e_sleep_ms(LATENCY_MS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		fill(s.seed, i, bytes);
		mover_write(s.ns, s.slots[i], bytes, BYTES);
	}
	__atomic_store_n(&words[0], s.value, __ATOMIC_RELEASE);
	return NULL;
}

static void cu(gpu_cu_result r, const char *call)
{
	ck_assert_msg(r == GPU_CU_SUCCESS, "%s: %d", call, r);
}
#define CU(field, ...) cu(s.driver.field(__VA_ARGS__), #field)

static void stream_make(void)
{
	gpu_cu_context context;
	gpu_cu_device device;
	char why[256];

	ck_assert_msg(gpu_driver_load(&s.driver, why, sizeof(why)) == GPU_DRIVER_OK, "%s", why);
	CU(device_get, &device, 0);
	CU(context_retain, &context, device);
	CU(context_set, context);
	CU(stream_new, &s.stream, GPU_CU_STREAM_NON_BLOCKING, 0);
	s.buffer = mmap(NULL, BLOCKS * (size_t)BYTES, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(s.buffer, MAP_FAILED);
	CU(host_register, s.buffer, BLOCKS * (size_t)BYTES,
	   GPU_CU_MEMHOSTREGISTER_PORTABLE | GPU_CU_MEMHOSTREGISTER_DEVICEMAP);
	CU(host_pointer, &s.buffer_address, s.buffer, 0);
}

/* Puts the blocks of s.seed and then the word into the stream; returns at once. */
static void enqueue(uint64_t value)
{
	s.value = value;
	if (pfx_pool_device(s.ns, NULL) == PFX_DEVICE_MEMORY) {
		s.running = true;
		ck_assert_int_eq(pthread_create(&s.thread, NULL, work,
						(void *)(uintptr_t)pfx_words(s.client, NULL)),
				 0);
		return;
	}
	if (!s.stream)
		stream_make();
	for (uint32_t i = 0; i < BLOCKS; i++) {
		fill(s.seed, i, s.buffer[i]);
		CU(copy, pfx_slot_address(s.ns, s.slots[i]), s.buffer_address + i * BYTES, BYTES,
		   s.stream);
	}
	ck_assert_msg(pfx_stream_word(s.client, s.stream, 1, value) == PFX_OK, "%s",
		      pfx_error(s.client));
}

static void settle(void)
{
	if (s.running)
		ck_assert_int_eq(pthread_join(s.thread, NULL), 0);
	s.running = false;
	if (s.stream)
		CU(stream_sync, s.stream);
}

/* ---- the worker ------------------------------------------------------------------------------ */

static void take_slots(const pfx_run *runs, uint32_t n_runs, uint32_t from, uint32_t n)
{
	uint32_t i = from;

	for (uint32_t k = 0; k < n_runs; k++)
		for (uint32_t j = 0; j < runs[k].len; j++)
			s.slots[i++] = runs[k].start + j;
	ck_assert_uint_eq(i, from + n);
}

static uint64_t reserve_all(uint32_t seed)
{
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_match_result m = { .struct_size = sizeof(m) };

	ck_assert_int_eq(pfx_match(s.ns, prompt_of(seed), &m), PFX_OK);
	ck_assert_uint_eq(m.n_device + m.n_host, 0);
	ck_assert_msg(pfx_reserve(s.ns, m.lease, BLOCKS, 0, &r) == PFX_OK, "%s",
		      pfx_error(s.client));
	ck_assert_uint_eq(r.n, BLOCKS);
	s.seed = seed;
	take_slots(r.runs, r.n_runs, 0, BLOCKS);
	return m.lease;
}

/* Fills the blocks of a prompt by the stream, and commits and releases them meanwhile. */
static void store(uint32_t seed, uint64_t value)
{
	pfx_commit_result c = { .struct_size = sizeof(c) };
	uint64_t lease = reserve_all(seed);

	enqueue(value);
	ck_assert_msg(pfx_commit_after(s.ns, lease, BLOCKS, NULL, 0, 1, value, 0, &c) == PFX_OK,
		      "%s", pfx_error(s.client));
	ck_assert_uint_eq(c.n_stored, BLOCKS);
	ck_assert_int_eq(pfx_release_after(s.ns, lease, 0, 0, 1, value, 0, NULL), PFX_OK);
}

/* The blocks come up from below, byte for byte. */
static void expect_below(uint32_t seed)
{
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_load_result l = { .struct_size = sizeof(l) };
	const pfx_prompt none = { .struct_size = sizeof(none), .salt = "" };
	uint8_t want[BYTES], has[BYTES];
	uint64_t lease;
	uint32_t n;

	ck_assert_int_eq(pfx_match(s.ns, prompt_of(seed), &m), PFX_OK);
	lease = m.lease;
	n = m.n_device;
	ck_assert_uint_eq(m.n_device + m.n_host, BLOCKS);
	ck_assert_uint_gt(m.n_host, 0);
	ck_assert_int_eq(m.loading, 1);
	take_slots(m.runs, m.n_runs, 0, n);
	ck_assert_int_eq(pfx_load_wait(s.ns, lease, 0, &l), PFX_OK);
	m = (pfx_match_result){ .struct_size = sizeof(m) };
	ck_assert_int_eq(pfx_extend(s.ns, lease, &none, &m), PFX_OK);
	take_slots(m.runs, m.n_runs, n, m.n_device);
	ck_assert_uint_eq(n + m.n_device, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		mover_read(s.ns, s.slots[i], has, BYTES);
		fill(seed, i, want);
		ck_assert_msg(memcmp(has, want, BYTES) == 0, "wrong bytes in block %u: %02x", i,
			      has[0]);
	}
	ck_assert_int_eq(pfx_release(s.ns, lease, 0, 0, 0, NULL), PFX_OK);
}

static void begin(void)
{
	start();
	memset(&s, 0, sizeof(s));
	s.client = e2e_connect(&d);
	s.ns = open_with(s.client, "m", PFX_NS_WORDS);
}

START_TEST(requests_overtake_the_stream)
{
	begin();
	for (uint32_t i = 0; i < 3; i++) {
		store(2 * i + 1, 2 * i + 1);
		store(2 * i + 2, 2 * i + 2); /* takes all slots: what was there goes below */
		expect_below(2 * i + 1);
	}
	settle();
	pfx_close(s.client);
}
END_TEST

/* ---- the interface --------------------------------------------------------------------------- */

START_TEST(words_come_with_the_wish)
{
	pfx_commit_result c = { .struct_size = sizeof(c) };
	volatile uint64_t *words;
	pfx_namespace *ns;
	pfx_client *client;
	uint64_t lease;
	uint32_t n = 7;

	begin();
	words = pfx_words(s.client, &n);
	ck_assert_ptr_nonnull((void *)(uintptr_t)words);
	ck_assert_uint_eq(n, 512);
	(void)open_with(s.client, "other", PFX_NS_WORDS);
	ck_assert(pfx_words(s.client, NULL) == words);
	ck_assert_int_eq(pfx_stream_word(s.client, NULL, 0, 1), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_stream_word(s.client, NULL, 513, 1), PFX_ARGUMENT);
	lease = reserve_all(1);
	ck_assert_int_eq(pfx_commit_after(s.ns, lease, 1, NULL, 0, 513, 1, 0, &c), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_release_after(s.ns, lease, 0, 0, 513, 1, 0, NULL), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_quiesced_after(s.client, 513, 1, NULL), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_quiesced_after(s.client, 1, 0, NULL), PFX_OK);
	/* A deadline is a deadline; the request stays with the daemon, the lease with its owner. */
	ck_assert_int_eq(pfx_release_after(s.ns, lease, 0, 0, 2, 5, 50, NULL), PFX_DEADLINE);
	__atomic_store_n(&words[1], 5, __ATOMIC_RELEASE);
	ck_assert_int_eq(pfx_release(s.ns, lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	/* Who did not ask has none. */
	client = e2e_connect(&d);
	ns = open_with(client, "m", 0);
	ck_assert(pfx_words(client, &n) == NULL);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(pfx_stream_word(client, NULL, 1, 1), PFX_ARGUMENT);
	ck_assert_int_eq(pfx_quiesced_after(client, 1, 1, NULL), PFX_ARGUMENT);
	pfx_close(client);
	pfx_close(s.client);
	(void)ns;
}
END_TEST

/* Words end with the connection; a stream may go on writing the old ones. */
START_TEST(words_of_another_connection)
{
	volatile uint64_t *words;
	uint64_t lease;

	begin();
	words = pfx_words(s.client, NULL);
	lease = reserve_all(1);
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	start();
	ck_assert_int_eq(pfx_release_after(s.ns, lease, 0, 0, 1, 1, 0, NULL), PFX_UNKNOWN_LEASE);
	ck_assert_int_eq(pfx_ping(s.client, 0), PFX_OK);
	ck_assert_int_eq(pfx_release_after(s.ns, lease, 0, 0, 1, 1, 0, NULL), PFX_UNKNOWN_LEASE);
	words[0] = 1;
	ck_assert_int_eq(pfx_release(s.ns, lease, 0, 0, 0, NULL), PFX_UNKNOWN_LEASE);
	store(1, 1);
	ck_assert(pfx_words(s.client, NULL) != words);
	words[0] = 2;
	settle();
	ck_assert_uint_eq(pfx_words(s.client, NULL)[0], 1);
	pfx_close(s.client);
}
END_TEST

/* The daemon comes back with its pools in this machine's memory: no stream is needed any more. */
START_TEST(memory_instead_of_a_gpu)
{
	begin();
	ck_assert_int_ne(e2e_daemon_stop(&d, SIGKILL), -1);
	ck_assert_int_eq(setenv("E2E_DEVICE", "host", 1), 0);
	start();
	ck_assert_int_eq(pfx_ping(s.client, 0), PFX_OK);
	ck_assert_int_eq(pfx_pool_device(s.ns, NULL), PFX_DEVICE_MEMORY);
	ck_assert_msg(pfx_stream_word(s.client, NULL, 1, 7) == PFX_OK, "%s", pfx_error(s.client));
	ck_assert_uint_eq(pfx_words(s.client, NULL)[0], 7);
	pfx_close(s.client);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stream");
	TCase *t = tcase_create("stream");

	if (!e2e_daemon_binary()) {
		puts("1..0 # SKIP no prefixd binary");
		return EXIT_SUCCESS;
	}
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, NULL, stop);
	tcase_add_test(t, requests_overtake_the_stream);
	tcase_add_test(t, words_come_with_the_wish);
	tcase_add_test(t, words_of_another_connection);
	tcase_add_test(t, memory_instead_of_a_gpu); /* the last: it changes E2E_DEVICE */
	suite_add_tcase(suite, t);
	return test_run(suite);
}
