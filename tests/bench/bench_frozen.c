/*
 * bench_frozen.c - does a Redis that stands still hold up who does not need it?
 *
 * A daemon on three tiers under load: one process stores prompts that nobody has, so that blocks go
 * down to host memory and on to Redis all the time; a subscriber has subscribed and reads nothing.
 * This process asks for a prompt of 8,192 tokens that lies in the pool, again and again.
 *
 * In pairs of equal length Redis serves, and then it is stopped (SIGSTOP).  For each pair: p50 and
 * p99 of MATCH with Redis stopped over those with Redis serving.  Printed and gated are the medians
 * of the pairs' ratios: 1.1 and 1.5.  The breaker must open in each pair and close behind it, and
 * no call may fail.
 */
#include "tests/bench/peer.h"

#include "clients/c/prefixd.h"
#include "clients/c/prefixd_events.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	BLOCK_TOKENS = 16,
	BLOCKS = 512, /* 8,192 tokens */
	BLOCK_BYTES = 4096,
	LOAD_BLOCKS = 64, /* of each prompt of the load */
	LOAD_EVERY_US = 4000,
	SAMPLES = 1 << 20,
	PAIRS_MAX = 64
};

struct shared {
	volatile int stop;
	volatile uint64_t stored, errors;
};

static struct bench_server prefixd, redis;
static double samples[SAMPLES];

static void stop_servers(void)
{
	if (redis.pid > 0)
		kill(redis.pid, SIGCONT);
	bench_server_stop(&prefixd);
	bench_server_stop(&redis);
}

static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench_frozen: %s: %s\n", what, why ? why : "");
	stop_servers();
	exit(1);
}

static pfx_client *connect_to(const char *socket)
{
	pfx_connect_options o = {
		.struct_size = sizeof(o), .socket = socket, .name = "bench", .deadline_ms = 10000
	};
	pfx_client *c = NULL;

	if (pfx_connect(&o, &c) != PFX_OK)
		die("connect", c ? pfx_error(c) : "no memory");
	return c;
}

static pfx_namespace *open_namespace(pfx_client *c)
{
	pfx_namespace_options o = { .struct_size = sizeof(o),
				    .key_mode = PFX_KEYS_TOKENS,
				    .flags = PFX_NS_OPAQUE,
				    .model = "bench",
				    .revision = "1",
				    .dtype = "uint8",
				    .layers = 1,
				    .kv_heads = 1,
				    .head_dim = 1,
				    .block_tokens = BLOCK_TOKENS,
				    .block_bytes = BLOCK_BYTES,
				    .layout = "opaque",
				    .tp_size = 1,
				    .engine = "bench" };
	pfx_namespace *ns = NULL;

	if (pfx_open(c, &o, &ns) != PFX_OK)
		die("open", pfx_error(c));
	return ns;
}

static pfx_prompt prompt(const uint32_t *tokens, uint32_t n_blocks)
{
	return (pfx_prompt){
		.struct_size = sizeof(pfx_prompt), .salt = "", .keys = tokens, .n_keys = n_blocks
	};
}

static void fresh_tokens(uint64_t *rng, uint32_t *tokens, uint32_t n_blocks)
{
	for (uint32_t i = 0; i < n_blocks * BLOCK_TOKENS; i++)
		tokens[i] = (uint32_t)(bench_random(rng) % 128000);
}

/* Stores a prompt whole.  Return: the first status that is neither OK nor BUSY. */
static int store(pfx_namespace *ns, const uint32_t *tokens, uint32_t n_blocks)
{
	pfx_prompt p = prompt(tokens, n_blocks);
	pfx_match_result m = { .struct_size = sizeof(m) };
	pfx_reserve_result r = { .struct_size = sizeof(r) };
	pfx_commit_result c = { .struct_size = sizeof(c) };
	int status = pfx_match(ns, &p, &m);
	uint64_t lease = m.lease;

	if (status != PFX_OK)
		return status;
	if (m.n_device < n_blocks) {
		status = pfx_reserve(ns, lease, n_blocks - m.n_device, 0, &r);
		if (status == PFX_OK)
			status = pfx_commit(ns, lease, r.n, NULL, 0, 0, &c);
		if (status != PFX_OK && status != PFX_BUSY)
			return status;
	}
	return pfx_release(ns, lease, 0, 0, 0, NULL);
}

static pid_t start_load(struct shared *sh)
{
	static uint32_t tokens[LOAD_BLOCKS * BLOCK_TOKENS];
	uint64_t rng = 99;
	pfx_namespace *ns;
	pfx_client *c;
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	c = connect_to(prefixd.socket);
	ns = open_namespace(c);
	while (!sh->stop) {
		uint64_t next = bench_now_ns() + LOAD_EVERY_US * 1000u, now;

		fresh_tokens(&rng, tokens, LOAD_BLOCKS);
		if (store(ns, tokens, LOAD_BLOCKS) != PFX_OK) {
			fprintf(stderr, "bench_frozen: load: %s\n", pfx_error(c));
			sh->errors++;
		}
		sh->stored += LOAD_BLOCKS;
		now = bench_now_ns();
		if (now < next)
			usleep((useconds_t)((next - now) / 1000));
	}
	pfx_close(c);
	_exit(0);
}

/* A number of the daemon's status at a path of two names. */
static json_int_t status_number(pfx_client *admin, const char *a, const char *b)
{
	char *text = NULL;
	json_t *v;
	json_int_t n;

	if (pfx_admin(admin, "{\"op\":\"status\"}", 5000, &text) != PFX_OK)
		die("status", pfx_error(admin));
	v = json_loads(text, 0, NULL);
	pfx_free_string(text);
	n = json_integer_value(json_object_get(json_object_get(v, a), b));
	json_decref(v);
	return n;
}

static bool breaker_is(pfx_client *admin, const char *state)
{
	const char *now;
	char *text = NULL;
	json_t *v;
	bool is;

	if (pfx_admin(admin, "{\"op\":\"status\"}", 5000, &text) != PFX_OK)
		die("status", pfx_error(admin));
	v = json_loads(text, 0, NULL);
	pfx_free_string(text);
	now = json_string_value(json_object_get(json_object_get(v, "redis"), "breaker"));
	is = now && strcmp(now, state) == 0;
	json_decref(v);
	return is;
}

/* MATCH again and again; sets the quantiles, in us.  Returns how many. */
static unsigned measure(pfx_namespace *ns, const uint32_t *tokens, double seconds, double *ret_p50,
			double *ret_p99)
{
	uint64_t end = bench_now_ns() + (uint64_t)(seconds * 1e9);
	pfx_prompt p = prompt(tokens, BLOCKS);
	unsigned n = 0;

	while (n < SAMPLES) {
		pfx_match_result m = { .struct_size = sizeof(m) };
		uint64_t t0 = bench_now_ns();

		if (t0 >= end)
			break;
		if (pfx_match(ns, &p, &m) != PFX_OK || m.n_device != BLOCKS)
			die("match", "not the whole prompt");
		samples[n++] = (double)(bench_now_ns() - t0) / 1e3;
		if (pfx_release(ns, m.lease, 0, 0, 0, NULL) != PFX_OK)
			die("release", NULL);
		usleep(200); /* a busy server, not a saturated one */
	}
	*ret_p50 = bench_quantile(samples, n, 0.5);
	*ret_p99 = bench_quantile(samples, n, 0.99);
	return n;
}

/* A lease that keeps the prompt in the pool, however long this process has to wait for a CPU. */
static uint64_t hold(pfx_namespace *ns, const uint32_t *tokens)
{
	pfx_prompt p = prompt(tokens, BLOCKS);
	pfx_match_result m = { .struct_size = sizeof(m) };

	if (pfx_match(ns, &p, &m) != PFX_OK || m.n_device != BLOCKS)
		die("hold", "not the whole prompt");
	return m.lease;
}

static void wait_for_breaker(pfx_client *admin, const char *state)
{
	uint64_t end = bench_now_ns() + 60000000000u;

	while (!breaker_is(admin, state)) {
		if (bench_now_ns() > end)
			die("the breaker did not become", state);
		usleep(20000);
	}
}

/* One pair; adds its ratios. */
static void pair(pfx_client *admin, pfx_namespace *ns, const uint32_t *tokens, double seconds,
		 double *ret_r50, double *ret_r99)
{
	json_int_t opened = status_number(admin, "redis", "breaker_opened");
	double up50, up99, down50, down99;
	unsigned n_up, n_down;

	wait_for_breaker(admin, "closed");
	n_up = measure(ns, tokens, seconds, &up50, &up99);
	kill(redis.pid, SIGSTOP);
	n_down = measure(ns, tokens, seconds, &down50, &down99);
	if (status_number(admin, "redis", "breaker_opened") <= opened)
		die("breaker", "it did not open while Redis was stopped");
	kill(redis.pid, SIGCONT);
	printf("  serving %7u MATCH  p50 %7.1f  p99 %7.1f us   stopped %7u  p50 %7.1f  p99 %7.1f us"
	       "   ratios %.2f %.2f\n",
	       n_up, up50, up99, n_down, down50, down99, down50 / up50, down99 / up99);
	(void)fflush(stdout);
	*ret_r50 = down50 / up50;
	*ret_r99 = down99 / up99;
}

static double option(int argc, char **argv, const char *name, double otherwise)
{
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], name))
			return strtod(argv[i + 1], NULL);
	return otherwise;
}

int main(int argc, char **argv)
{
	static uint32_t tokens[BLOCKS * BLOCK_TOKENS];
	unsigned pairs = (unsigned)option(argc, argv, "--pairs", 7);
	double seconds = option(argc, argv, "--seconds", 5);
	struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double r50[PAIRS_MAX], r99[PAIRS_MAX], m50, m99;
	char url[128], admin_path[128];
	pfx_client *c, *admin, *deaf;
	pfx_namespace *ns;
	uint64_t rng = 5, held;
	int status = 0;
	pid_t load;

	pairs = pairs < 1 ? 1 : pairs > PAIRS_MAX ? PAIRS_MAX : pairs;
	if (sh == MAP_FAILED || bench_redis_start(&redis, -1) < 0)
		die("redis-server", "does not start; is it installed?");
	snprintf(url, sizeof(url), "unix:%s", redis.socket);
	if (bench_prefixd_start(&prefixd, "4096",
				(const char *const[]){ "--host-blocks", "4096", "--redis", url,
						       "--watermark", "5:10", NULL },
				-1) < 0)
		die("prefixd", "does not start");
	snprintf(admin_path, sizeof(admin_path), "%s/a", prefixd.dir);
	c = connect_to(prefixd.socket);
	admin = connect_to(admin_path);
	deaf = connect_to(prefixd.socket);
	ns = open_namespace(c);
	fresh_tokens(&rng, tokens, BLOCKS);
	if (store(ns, tokens, BLOCKS) != PFX_OK)
		die("store", pfx_error(c));
	held = hold(ns, tokens);
	(void)open_namespace(deaf);
	if (pfx_subscribe(deaf, NULL, 0, NULL, 5000, NULL) != PFX_OK)
		die("subscribe", pfx_error(deaf));
	load = start_load(sh);
	(void)measure(ns, tokens, 2, &m50, &m99); /* until blocks go down all the way */
	printf("MATCH of %d blocks in the pool; %d blocks are stored every %d us\n"
	       "%u pairs of %.1f s each way\n",
	       BLOCKS, LOAD_BLOCKS, LOAD_EVERY_US, pairs, seconds);
	for (unsigned i = 0; i < pairs; i++)
		pair(admin, ns, tokens, seconds, &r50[i], &r99[i]);
	wait_for_breaker(admin, "closed");
	sh->stop = 1;
	waitpid(load, &status, 0);
	(void)pfx_release(ns, held, 0, 0, 0, NULL);
	m50 = bench_median(r50, pairs);
	m99 = bench_median(r99, pairs);
	printf("median ratio stopped/serving: p50 %.2f (at most 1.1), p99 %.2f (at most 1.5); "
	       "%llu blocks stored, %llu errors\n",
	       m50, m99, (unsigned long long)sh->stored, (unsigned long long)sh->errors);
	pfx_close(deaf);
	pfx_close(admin);
	pfx_close(c);
	stop_servers();
	return m50 <= 1.1 && m99 <= 1.5 && sh->errors == 0 && status == 0 ? 0 : 1;
}
