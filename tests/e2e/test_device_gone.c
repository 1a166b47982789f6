/*
 * test_device_gone.c - F51 from the side of who asks: a daemon whose GPU is lost, is closed, and
 * cannot be opened again, on the look-alike driver.
 *
 *     asked     every page and every command of prefixctl is answered
 *     late      what Redis sends for a pool of closed devices is touched by nobody
 *     killed    the life after one that was killed in the middle of a loss has none of the slots
 *
 * Workers are raw frames here, and write nothing: this process loads no driver, so it may fork.
 */
#include "tests/e2e/http_client.h"
#include "tests/e2e/redis_server.h"
#include "tests/lib/run.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	SMALL = 4096,
	LARGE = 8192
};

static struct e2e_redis redis;
static struct raw worker;
static char key_file[128];

/* Something for a life after this one to know again what Redis has. */
static void key_make(void)
{
	FILE *f;

	snprintf(key_file, sizeof(key_file), "%s/naming-key", d.dir);
	f = fopen(key_file, "w");
	ck_assert_ptr_nonnull(f);
	for (int i = 0; i < 32; i++)
		fprintf(f, "%02x", (unsigned)i * 11 % 256);
	fclose(f);
	ck_assert_int_eq(chmod(key_file, 0600), 0);
}

/*
 * A daemon with Redis below it, a plan of faults for its driver, and pages.  Copies take a while,
 * so that a request is over before the copy that it brings about fails.
 */
static void start(const char *plan)
{
	char address[160];

	ck_assert_int_eq(setenv("E2E_DEVICE", "cuda", 1), 0);
	ck_assert_int_eq(setenv("LOOKALIKE", plan, 1), 0);
	if (!redis.pid) {
		ck_assert_int_eq(e2e_redis_init(&redis), 0);
		e2e_redis_start(&redis, NULL);
		key_make();
	}
	snprintf(http_path, sizeof(http_path), "%s/http.sock", d.dir);
	snprintf(address, sizeof(address), "unix://%s", http_path);
	START("--pool-blocks", "2", "--write", "through", "--watermark", "0", "--prefill-rate", "1",
	      "--redis", redis.url, "--redis-timeout", "60s", "--naming-key-file", key_file,
	      "--http", address, "--keep", "holder", "--hold-timeout", "30s");
	raw_connect(&worker, d.socket);
	raw_hello(&worker);
}

static void stop(void)
{
	raw_close(&worker);
	ck_assert_int_ge(e2e_daemon_stop(&d, SIGINT), 0);
	e2e_redis_free(&redis);
}

static uint32_t open_ns(const char *model, uint64_t block_bytes)
{
	uint32_t ns = raw_open(&worker, model, block_bytes).ns;

	while (worker.n_fds > 0)
		close(worker.fds[--worker.n_fds]);
	return ns;
}

/* The log says it, before long. */
static void wait_log(const char *text)
{
	bool found = false;

	for (int i = 0; i < 1000 && !found; i++) {
		char *log = e2e_daemon_log(&d);

		found = strstr(log, text) != NULL;
		if (!found && i == 999)
			ck_abort_msg("'%s' is not in: %s", text, log);
		free(log);
		if (!found)
			e2e_sleep_ms(10);
	}
}

static void wait_value(const char *series, long double at_least)
{
	for (int i = 0; i < 1000 && http_value(series) < at_least; i++)
		e2e_sleep_ms(10);
	ck_assert_msg(http_value(series) >= at_least, "%s", series);
}

/* Asks for one block, and for it to be brought up. */
static struct proto_match_rep promote(uint32_t ns, uint32_t first)
{
	static uint8_t body[1024];
	uint32_t tokens[BLOCK];
	struct proto_match_req m = { .has = PROTO_HAS_ALL,
				     .ns = ns,
				     .flags = PROTO_MATCH_PROMOTE,
				     .deadline_us = 60000000,
				     .n_tokens = BLOCK,
				     .keys = { .p = tokens, .n = sizeof(tokens) } };
	struct proto_writer w = { .p = body, .cap = sizeof(body) };
	struct proto_match_rep rep;
	const char *bad;

	for (uint32_t i = 0; i < BLOCK; i++)
		tokens[i] = first + i;
	proto_match_req_encode(&w, &m);
	ck_assert(raw_call(&worker, PROTO_OP_MATCH, body, w.len));
	ck_assert_uint_eq(worker.h.status, PROTO_STATUS_OK);
	ck_assert_int_eq(proto_match_rep_decode(worker.body, worker.h.len, &rep, &bad), 0);
	return rep;
}

/* ---- asked ----------------------------------------------------------------------------------- */

/* Runs it, and says what it is not to say: that there is no daemon. */
static void ctl(const char *const words[])
{
	const char *argv[16] = { getenv("PREFIXCTL_BIN"), "--admin-socket", d.admin, "--yes" };
	static char out[1 << 18];
	unsigned n = 4;
	int r;

	for (unsigned i = 0; words[i]; i++)
		argv[n++] = words[i];
	r = e2e_run(argv, out, sizeof(out));
	ck_assert_msg(r == 0 || r == 1, "%s %s: exit %d: %s", words[0], words[1] ? words[1] : "", r,
		      out);
	ck_assert_msg(out[0] != '\0', "%s says nothing", words[0]);
}
#define CTL(...) ctl((const char *const[]){ __VA_ARGS__, NULL })

static void page(const char *path, int want)
{
	struct http_answer a = http_get(path, "");

	ck_assert_msg(a.status == want, "%s: %d: %s", path, a.status, a.text);
	http_answer_free(&a);
}

/* Where a group's slots lay, which the devices are not there any more to say. */
static void expect_gpu(void)
{
	json_t *status = admin("{\"op\":\"status\"}");
	const json_t *group = json_array_get(json_object_get(status, "groups"), 0);
	const json_t *rank = json_array_get(json_object_get(group, "ranks"), 0);
	const char *device = json_string_value(json_object_get(rank, "device"));

	ck_assert_msg(device && strncmp(device, "GPU-", 4) == 0, "%s", device ? device : "none");
	json_decref(status);
}

START_TEST(every_question_has_an_answer)
{
	uint32_t ns;

	start("devices=2,poison=1,latency_us=500000,op=copy:2:700");
	ns = open_ns("m", SMALL);
	store(&worker, ns, 1000, 1);
	wait_value("prefixd_copy_operations_total{op=\"copy\",result=\"done\"}", 1);
	store(&worker, ns, 2000, 1);
	wait_value("prefixd_device_lost", 1);
	wait_log("cannot be opened again");
	expect_gpu();
	page("/metrics", 200);
	page("/healthz", 200);
	page("/readyz", 503);
	CTL("ping");
	CTL("status");
	CTL("--json", "status");
	CTL("stat");
	CTL("stat", "-i", "0.05s", "-n", "2");
	CTL("tree");
	CTL("pins");
	CTL("explain", "--namespace", "m", "--tokens", "1,2,3");
	CTL("evict", "1");
	CTL("invalidate", "m");
	CTL("flush", "--all");
	CTL("audit");
	CTL("config");
	CTL("log-level");
	CTL("holder");
	CTL("drain", "0.1s");
	wait_log("drain");
	stop();
}
END_TEST

/* ---- late ------------------------------------------------------------------------------------ */

/* Questions for blocks that nobody here has, and Redis neither. */
static void wait_looks(json_int_t n)
{
	json_int_t have = 0;

	for (int i = 0; i < 1000 && have < n; i++) {
		json_t *status = admin("{\"op\":\"status\"}");

		have = number(json_object_get(status, "redis"), "looks");
		json_decref(status);
		e2e_sleep_ms(5);
	}
	ck_assert_int_eq(have, n);
}

/*
 * A pool is lost while Redis has still to send a block of it; the other one has let go of
 * everything, so the devices are closed, and in vain.  Then the block comes.
 */
START_TEST(redis_answers_after_the_end)
{
	struct proto_match_rep rep;
	uint32_t small, large;

	start("poison=1,latency_us=700000,op=copy:4:700");
	small = open_ns("small", SMALL);
	large = open_ns("large", LARGE);
	for (uint32_t i = 1; i <= 3; i++) { /* the last one takes the first one's slot */
		store(&worker, large, i * 1000, 1);
		wait_value("prefixd_redis_values_total{what=\"stored\"}", i);
	}
	store(&worker, small, 1000, 1); /* the fourth copy begins */
	wait_looks(4);
	ck_assert_int_eq(kill(redis.pid, SIGSTOP), 0);
	rep = promote(large, 1000);
	ck_assert_uint_eq(rep.n_redis, 1);
	wait_value("prefixd_redis_inflight_commands", 1);
	wait_value("prefixd_device_lost", 1);
	wait_log("pool 0: no memory yet");
	ck_assert_int_eq(kill(redis.pid, SIGCONT), 0);
	wait_log("pool 1: no memory yet");
	ck_assert(http_value("prefixd_redis_values_total{what=\"fetched\"}") == 1);
	expect_clean();
	stop();
}
END_TEST

/* ---- killed ---------------------------------------------------------------------------------- */

/* A move is under way when the device is lost, so the engine has not let go of the pool. */
START_TEST(the_next_life_has_other_slots)
{
	uint32_t ns;

	start("poison=1,latency_us=500000,op=copy:2:700");
	ns = open_ns("m", SMALL);
	ck_assert_int_eq(kill(redis.pid, SIGSTOP), 0);
	store(&worker, ns, 1000, 1); /* its way to Redis does not end */
	wait_value("prefixd_copy_operations_total{op=\"copy\",result=\"done\"}", 1);
	store(&worker, ns, 2000, 1);
	wait_value("prefixd_device_lost", 1);
	raw_close(&worker);
	ck_assert_int_ge(e2e_daemon_stop(&d, SIGKILL), 0);
	ck_assert_int_eq(kill(redis.pid, SIGCONT), 0);
	start("poison=1");
	wait_log("its slots were not kept");
	ns = open_ns("m", SMALL);
	store(&worker, ns, 3000, 2);
	expect_clean();
	stop();
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const asked[] = { every_question_has_an_answer, NULL };
	const TTest *const late[] = { redis_answers_after_the_end, NULL };
	const TTest *const killed[] = { the_next_life_has_other_slots, NULL };
	const struct shell_case cases[] = {
		{ "asked", asked },
		{ "late", late },
		{ "killed", killed },
	};

	return shell_main(cases, radix_array_size(cases), argc > 1 ? argv[1] : NULL);
}
