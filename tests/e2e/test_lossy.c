/*
 * test_lossy.c - a real daemon whose namespaces are coded below the device: what a worker reads
 * again is exactly what the codec makes of what another one wrote, every reply says so, and who
 * wants no such block never gets one.
 *
 * The first argument picks the tests.
 */
#include "clients/c/prefixd_load.h"
#include "daemon/cold.h"
#include "gpu/codec_number.h"
#include "tests/e2e/exposition.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/mover.h"
#include "tests/e2e/redis_server.h"
#include "tests/lib/rng.h"
#include "tests/lib/run.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	LAYERS = 3,
	HEADS = 2,
	DIM = 64,
	TOKENS = 16,
	PIECE = 2 * HEADS * DIM * TOKENS,
	BLOCK = 2 * LAYERS * PIECE,
	BLOCKS = 6,
	DECLINED = 13, /* as on the wire */
};

static struct e2e_daemon d, other;
static struct e2e_redis redis;
static char key_file[128];

/* As the tests' namespaces have it: the middle layer stays exact. */
static const struct prefixd_cold cold = {
	.codec = GPU_CODEC_E4M3,
	.element = GPU_ELEMENT_F16,
	.layers = LAYERS,
	.heads = HEADS,
	.dim = DIM,
	.tokens = TOKENS,
	.exact = { 1 << 1 },
};

#define SOON(x)                                                                    \
	do {                                                                       \
		unsigned long end_ = e2e_now_ms() + 20000;                         \
		while (!(x)) {                                                     \
			ck_assert_msg(e2e_now_ms() < end_, "not in time: %s", #x); \
			e2e_sleep_ms(5);                                           \
		}                                                                  \
	} while (0)

/* ---- a daemon, and a worker ------------------------------------------------------------------ */

static const char *const staged[] = { "--pool-write", "staged", NULL };

static json_t *status(const struct e2e_daemon *which)
{
	char *text = e2e_admin(which, "{\"op\":\"status\"}");
	json_t *v = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(v);
	pfx_free_string(text);
	return v;
}

/* Until then what leaves its slot is dropped. */
static bool redis_is_there(const struct e2e_daemon *which)
{
	json_t *v = status(which);
	bool yes = json_is_true(json_object_get(json_object_get(v, "redis"), "connected"));

	json_decref(v);
	return yes;
}

static void start(struct e2e_daemon *which, const char *host_blocks, const char *const more[])
{
	/* Loading is faster than computing, however busy the machine is. */
	const char *args[24] = { "--pool-blocks", "14", "--host-blocks",  host_blocks,
				 "--watermark",   "0",  "--prefill-rate", "1" };
	char http[160];
	unsigned n = 8;
	int r;

	if (redis.pid) {
		args[n++] = "--redis";
		args[n++] = redis.url;
		args[n++] = "--naming-key-file";
		args[n++] = key_file;
	}
	for (unsigned i = 0; more && more[i]; i++)
		args[n++] = more[i];
	if (!which->dir[0])
		ck_assert_int_eq(e2e_daemon_init(which), 0);
	snprintf(http, sizeof(http), "unix://%s/http", which->dir);
	args[n++] = "--http";
	args[n++] = http;
	r = e2e_daemon_start(which, args);
	ck_assert_msg(r == 0, "prefixd does not start: %d", r);
	if (redis.pid)
		SOON(redis_is_there(which));
}

/* With a naming key that all daemons of the test share. */
static void start_redis(void)
{
	FILE *f;

	ck_assert_int_eq(e2e_redis_init(&redis), 0);
	e2e_redis_start(&redis, NULL);
	snprintf(key_file, sizeof(key_file), "%s/naming-key", redis.dir);
	f = fopen(key_file, "w");
	ck_assert_ptr_nonnull(f);
	for (int i = 0; i < 32; i++)
		fprintf(f, "%02x", (unsigned)i * 7 % 256);
	fclose(f);
	ck_assert_int_eq(chmod(key_file, 0600), 0);
}

static void stop(void)
{
	e2e_daemon_free(&d);
	e2e_daemon_free(&other);
	e2e_redis_free(&redis);
}

struct place {
	pfx_client *client;
	pfx_namespace *ns;
	pfx_namespace_info info;
};

static struct place place(const struct e2e_daemon *which, const char *codec)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .model = "m",
				    .revision = "r",
				    .dtype = "float16",
				    .layers = LAYERS,
				    .kv_heads = HEADS,
				    .head_dim = DIM,
				    .block_tokens = TOKENS,
				    .block_bytes = BLOCK,
				    .layout = "block-major",
				    .tp_size = 1,
				    .engine = "test 1",
				    .map = 1,
				    .cold_codec = codec,
				    .exact_layers = codec && !strcmp(codec, "none") ? NULL : "1" };
	struct place p = { .client = e2e_connect(which) };
	int r = pfx_open(p.client, &o, &p.ns);

	ck_assert_msg(r == PFX_OK, "open: %s", pfx_error(p.client));
	p.info.struct_size = sizeof(p.info);
	ck_assert_int_eq(pfx_namespace_get(p.ns, &p.info), PFX_OK);
	return p;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static uint32_t tokens[BLOCKS * TOKENS];

static pfx_prompt prompt(uint32_t number, uint32_t flags)
{
	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = 1000 * number + i;
	return (pfx_prompt){ .struct_size = sizeof(pfx_prompt),
			     .salt = "",
			     .keys = tokens,
			     .n_keys = BLOCKS,
			     .flags = flags };
}

/* Random numbers of fp16 of all sizes; prompt 9's blocks have one that is none, at their end. */
static void fill(uint32_t number, uint32_t block, uint16_t *x)
{
	uint64_t rng = 100 * number + block;

	for (uint32_t i = 0; i < BLOCK / 2; i++)
		x[i] = (uint16_t)(test_rng_below(&rng, 0x7a00) | test_rng_below(&rng, 2) << 15);
	if (number == 9)
		x[BLOCK / 2 - 1] = 0x7e00;
}

static void *room(void)
{
	void *p = aligned_alloc(64, BLOCK);

	ck_assert_ptr_nonnull(p);
	return p;
}

/* What a block is once it was below. */
static void changed(const uint16_t *x, uint16_t *ret)
{
	void *coded = room();

	ck_assert(prefixd_cold_encode(&cold, x, coded));
	prefixd_cold_decode(&cold, coded, ret);
	free(coded);
}

/* MATCH, and RESERVE, fill and COMMIT what is missing; returns blocks stored. */
static uint32_t store(const struct place *p, uint32_t number, uint32_t flags)
{
	pfx_prompt x = prompt(number, flags);
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };
	uint16_t *block = room();
	uint32_t i;

	ck_assert_msg(pfx_match(p->ns, &x, &m) == PFX_OK, "match: %s", pfx_error(p->client));
	i = m.n_device;
	if (i < BLOCKS) {
		ck_assert_msg(pfx_reserve(p->ns, m.lease, BLOCKS - i, 0, &r) == PFX_OK, "%s",
			      pfx_error(p->client));
		ck_assert_uint_eq(r.n, BLOCKS - i);
		for (uint32_t k = 0; k < r.n_runs; k++)
			for (uint32_t j = 0; j < r.runs[k].len; j++) {
				fill(number, i++, block);
				mover_write(p->ns, r.runs[k].start + j, block, BLOCK);
			}
		ck_assert_int_eq(pfx_commit(p->ns, m.lease, r.n, NULL, 0, 0, &c), PFX_OK);
	}
	ck_assert_int_eq(pfx_release(p->ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	free(block);
	return c.n_stored;
}

static pfx_match_result look(const struct place *p, uint32_t number, uint32_t flags)
{
	pfx_prompt x = prompt(number, flags);
	pfx_match_result m = { .struct_size = sizeof(m) };

	ck_assert_int_eq(pfx_match(p->ns, &x, &m), PFX_OK);
	ck_assert_int_eq(pfx_release(p->ns, m.lease, 0, 0, 0, NULL), PFX_OK);
	return m;
}

/* Compares the blocks of runs, which begin with block `i` of the prompt. */
static uint32_t compare(const struct place *p, uint32_t number, uint32_t i, const pfx_run *runs,
			uint32_t n_runs, bool lossy)
{
	uint16_t *x = room(), *y = room(), *has = room();

	for (uint32_t k = 0; k < n_runs; k++)
		for (uint32_t j = 0; j < runs[k].len; j++, i++) {
			fill(number, i, x);
			memcpy(y, x, BLOCK);
			if (lossy)
				changed(x, y);
			mover_read(p->ns, runs[k].start + j, has, BLOCK);
			ck_assert_msg(memcmp(has, y, BLOCK) == 0, "wrong bytes in block %u of %u",
				      i, number);
			/* the layer in the middle is as it was; the others are, within the bound */
			ck_assert_mem_eq(has + PIECE, x + PIECE, 2 * PIECE);
			for (uint32_t e = 0; lossy && e < BLOCK / 2; e++) {
				float was = gpu_element_to_f32(GPU_ELEMENT_F16, x[e]);
				float is = gpu_element_to_f32(GPU_ELEMENT_F16, has[e]);
				float away = is > was ? is - was : was - is;

				/* a row's largest is below 2^16: its step is 2^8 * 2^-10 at most */
				ck_assert_msg(away <= (was < 0 ? -was : was) * 0.0630f + 0.26f,
					      "%g came back as %g", (double)was, (double)is);
			}
		}
	free(x);
	free(y);
	free(has);
	return i;
}

/* Brings a prompt up from wherever it lies, and compares it. */
static void bring_up(const struct place *p, uint32_t number, bool lossy)
{
	pfx_prompt x = prompt(number, PFX_MATCH_PROMOTE);
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_load_result l = { .struct_size = sizeof(l) };
	uint32_t n;

	ck_assert_int_eq(pfx_match(p->ns, &x, &m), PFX_OK);
	n = compare(p, number, 0, m.runs, m.n_runs, lossy);
	ck_assert_uint_eq(n + m.n_host + m.n_redis, BLOCKS);
	if (m.loading) {
		ck_assert_int_eq(pfx_load_wait(p->ns, m.lease, 10000, &l), PFX_OK);
		ck_assert_msg(l.n == BLOCKS - n, "%u of %u came up: %s", l.n, BLOCKS - n,
			      pfx_reason_to_string(l.reason));
		x = prompt(number, 0);
		x.n_keys = 0;
		ck_assert_int_eq(pfx_extend(p->ns, m.lease, &x, &m), PFX_OK);
		n = compare(p, number, n, m.runs, m.n_runs, lossy);
	}
	ck_assert_uint_eq(n, BLOCKS);
	ck_assert_int_eq(pfx_release(p->ns, m.lease, 0, 0, 0, NULL), PFX_OK);
}

/* Others are stored, more than there is room for above: what was used before goes down. */
static void store_others(const struct place *p)
{
	static uint32_t next = 20;

	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(store(p, next++, 0), BLOCKS);
}

/* Prompt `number` goes down.  Who looks at it uses it, so others are stored after each look. */
static void push_down(const struct place *p, uint32_t number)
{
	SOON((store_others(p), look(p, number, 0).n_device == 0));
}

/* Whether a device codes blocks is what LOSSY_BY_DEVICE says. */
static void coded_by_device(const struct e2e_daemon *which)
{
	struct exposition e;
	char path[160];

	snprintf(path, sizeof(path), "%s/http", which->dir);
	e = exposition_scrape(path);
	ck_assert((exposition_get(&e, "prefixd_coded_by_device_total") > 0) ==
		  (getenv("LOSSY_BY_DEVICE") != NULL));
	exposition_free(&e);
}

/* ---- host memory ----------------------------------------------------------------------------- */

/* _i: workers write in memory of their own. */
START_TEST(through_host_memory)
{
	const uint64_t len = prefixd_cold_bytes(&cold, BLOCK);
	pfx_match_result m;
	const json_t *ns;
	struct place p;
	json_t *s;

	start(&d, "64", _i ? staged : NULL);
	p = place(&d, "fp8");
	ck_assert_uint_eq(p.info.cold_bytes, len);
	ck_assert_int_eq(p.info.n_write > 0, _i);
	ck_assert_uint_eq(store(&p, 1, 0), BLOCKS);
	m = look(&p, 1, PFX_MATCH_EXACT);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, 0);
	push_down(&p, 1);
	m = look(&p, 1, 0);
	ck_assert_uint_eq(m.n_host, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	ck_assert_uint_eq(m.first_lossy, 0);
	bring_up(&p, 1, true);
	m = look(&p, 1, 0);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	m = look(&p, 1, PFX_MATCH_EXACT);
	ck_assert_uint_eq(m.n_device + m.n_host + m.n_lossy, 0);
	ck_assert_int_eq(m.reason, DECLINED);
	/* Who wants exact ones computes them; from then on everybody has them. */
	ck_assert_uint_eq(store(&p, 1, PFX_MATCH_EXACT), BLOCKS);
	m = look(&p, 1, PFX_MATCH_EXACT);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	bring_up(&p, 1, false);
	s = status(&d);
	ns = json_array_get(json_object_get(s, "namespaces"), 0);
	ck_assert_str_eq(json_string_value(json_object_get(ns, "cold_codec")), "fp8");
	ck_assert_str_eq(json_string_value(json_object_get(ns, "exact_layers")), "1");
	json_decref(s);
	coded_by_device(&d);
	pfx_close(p.client);
	stop();
}
END_TEST

/* The host tier has room for more of them by the same number of bytes. */
START_TEST(more_fit_into_host_memory)
{
	const char *const args[] = {
		"--pool-blocks", "14", "--host-bytes", "1MiB", "--watermark", "0", NULL
	};
	json_int_t n[2];

	for (uint32_t i = 0; i < 2; i++) {
		struct place p;
		json_t *s;

		ck_assert_int_eq(e2e_daemon_init(&d), 0);
		ck_assert_int_eq(e2e_daemon_start(&d, args), 0);
		p = place(&d, i ? "fp8" : "none");
		s = status(&d);
		n[i] = json_integer_value(
			json_object_get(json_array_get(json_object_get(s, "groups"), 0), "n_host"));
		json_decref(s);
		pfx_close(p.client);
		e2e_daemon_free(&d);
	}
	/* two of three layers take 9/16 of what they took */
	ck_assert_int_gt(n[1] * 100, n[0] * 135);
	stop();
}
END_TEST

/* The daemon's own choice, for a worker that leaves it open and for one that refuses. */
START_TEST(the_daemons_choice)
{
	const char *const more[] = { "--cold-codec", "fp8", NULL };
	struct place p, exact;

	start(&d, "64", more);
	p = place(&d, NULL);
	exact = place(&d, "none");
	ck_assert_uint_eq(p.info.cold_bytes, prefixd_cold_bytes(&cold, BLOCK));
	ck_assert_uint_eq(exact.info.cold_bytes, BLOCK);
	ck_assert_uint_ne(p.info.group, exact.info.group);
	ck_assert_uint_eq(store(&exact, 1, 0), BLOCKS);
	push_down(&exact, 1);
	bring_up(&exact, 1, false);
	ck_assert_uint_eq(look(&exact, 1, 0).n_lossy, 0);
	ck_assert_uint_eq(look(&p, 1, 0).n_device, 0);
	pfx_close(p.client);
	pfx_close(exact.client);
	stop();
}
END_TEST

/* ---- Redis ----------------------------------------------------------------------------------- */

START_TEST(through_redis)
{
	pfx_match_result m;
	struct place p;

	start_redis();
	start(&d, "0", NULL);
	p = place(&d, "fp8");
	ck_assert_uint_eq(store(&p, 1, 0), BLOCKS);
	ck_assert_uint_eq(store(&p, 9, 0), BLOCKS); /* blocks that cannot be coded */
	push_down(&p, 1);
	push_down(&p, 9);
	m = look(&p, 1, 0);
	ck_assert_uint_eq(m.n_redis, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	bring_up(&p, 1, true);
	ck_assert_uint_eq(look(&p, 1, 0).n_lossy, BLOCKS);
	bring_up(&p, 9, false);
	ck_assert_uint_eq(look(&p, 9, PFX_MATCH_EXACT).n_device, BLOCKS);
	pfx_close(p.client);
	stop();
}
END_TEST

/* From host memory on to Redis: coded once. */
START_TEST(through_both)
{
	struct place p;

	start_redis();
	start(&d, "8", NULL);
	p = place(&d, "fp8");
	ck_assert_uint_eq(store(&p, 1, 0), BLOCKS);
	push_down(&p, 1);
	SOON((store_others(&p), look(&p, 1, 0).n_redis == BLOCKS));
	bring_up(&p, 1, true);
	pfx_close(p.client);
	stop();
}
END_TEST

/* Three workers of one model in one Redis: who codes and who does not never read each other's. */
START_TEST(two_daemons_one_redis)
{
	struct place coded, exact, same;

	start_redis();
	start(&d, "0", NULL);
	start(&other, "0", NULL);
	coded = place(&d, "fp8");
	exact = place(&other, "none");
	same = place(&other, "fp8");
	ck_assert_uint_eq(store(&coded, 1, 0), BLOCKS);
	push_down(&coded, 1);
	SOON(look(&same, 1, 0).n_redis == BLOCKS); /* the other daemon finds them */
	bring_up(&same, 1, true);
	for (uint32_t i = 0; i < 20; i++) {
		pfx_match_result m = look(&exact, 1, 0);

		ck_assert_uint_eq(m.n_device + m.n_host + m.n_redis, 0);
		e2e_sleep_ms(5);
	}
	ck_assert_uint_eq(store(&exact, 1, 0), BLOCKS);
	push_down(&exact, 1);
	bring_up(&exact, 1, false);
	ck_assert_uint_eq(look(&exact, 1, 0).n_lossy, 0);
	pfx_close(coded.client);
	pfx_close(exact.client);
	pfx_close(same.client);
	stop();
}
END_TEST

/* ---- another life ---------------------------------------------------------------------------- */

START_TEST(killed_and_started)
{
	char bytes[24];
	const char *const keep[] = { "--keep",
				     "holder",
				     "--holder-program",
				     getenv("PREFIXD_HOLDER_BIN"), /* not beside each daemon */
				     "--recover-verify",
				     "full",
				     "--host-bytes",
				     bytes,
				     NULL };
	pfx_match_result m;
	struct place p;

	/* what 64 coded blocks take, and the index for each: the next life finds no more */
	snprintf(bytes, sizeof(bytes), "%llu",
		 64 * (unsigned long long)(prefixd_cold_stride(&cold, BLOCK, 1) + 256));
	start(&d, "64", keep);
	p = place(&d, "fp8");
	ck_assert_uint_eq(store(&p, 6, 0), BLOCKS);
	ck_assert_uint_eq(store(&p, 1, 0), BLOCKS);
	push_down(&p, 1);
	bring_up(&p, 1, true);
	ck_assert_uint_eq(store(&p, 5, 0), BLOCKS);
	pfx_close(p.client);
	e2e_daemon_stop(&d, SIGKILL);
	start(&d, "64", keep);
	p = place(&d, "fp8");
	ck_assert_int_eq(p.info.kept, 1);
	ck_assert_uint_eq(look(&p, 5, PFX_MATCH_EXACT).n_device, BLOCKS);
	m = look(&p, 1, 0);
	ck_assert_uint_eq(m.n_device, BLOCKS);
	ck_assert_uint_eq(m.n_lossy, BLOCKS);
	m = look(&p, 1, PFX_MATCH_EXACT);
	ck_assert_uint_eq(m.n_device, 0);
	bring_up(&p, 6, true); /* which lay in host memory, sealed by a daemon that is gone */
	coded_by_device(&d);
	pfx_close(p.client);
	stop();
}
END_TEST

int main(int argc, char **argv)
{
	const char *which = argc > 1 ? argv[1] : "";
	Suite *s = suite_create("lossy");
	TCase *t = tcase_create("lossy");

	if (!e2e_daemon_binary()) {
		printf("1..0 # SKIP no daemon binary\n");
		return 0;
	}
	tcase_set_timeout(t, 120);
	if (strcmp(which, "host") == 0) {
		tcase_add_loop_test(t, through_host_memory, 0, 2);
		tcase_add_test(t, more_fit_into_host_memory);
		tcase_add_test(t, the_daemons_choice);
	} else if (strcmp(which, "redis") == 0) {
		tcase_add_test(t, through_redis);
		tcase_add_test(t, through_both);
		tcase_add_test(t, two_daemons_one_redis);
	} else {
		tcase_add_test(t, killed_and_started);
	}
	suite_add_tcase(s, t);
	return test_run(s);
}
