/*
 * test_replay.c - whole replays: the real daemon, real worker processes, compared with what exact
 * leaf LRU answers, request by request.
 *
 * Usage: test_replay [T37]: all but T37, or T37 alone.
 */
#include "clients/replay/lru.h"
#include "clients/replay/util.h"
#include "clients/replay/workload.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/mover.h"
#include "tests/e2e/naive_lru.h"
#include "tests/e2e/replay_kit.h"
#include "tests/lib/run.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- exactness ------------------------------------------------------------------------------- */

/*
 * One kind of workload, replayed with pools of several sizes (from below one request to more than
 * all blocks) with one and four workers: every request hits exactly the blocks that it hits in
 * exact leaf LRU, whatever worker stored them.
 */
static void exact(enum replay_workload kind, const char *name, const char *more)
{
	struct replay_trace *t = replay_workload_new(kind, 11, 500, 512);
	uint64_t capacities[] = { 40, t->n_blocks / 20, t->n_blocks / 4, t->n_blocks + 10ul };
	uint32_t *want = replay_alloc(t->n_requests, sizeof(*want));

	for (size_t i = 0; i < replay_array_size(capacities); i++)
		for (int workers = 1; workers <= 4; workers += 3) {
			struct replay_lru_result lru;
			char words[256];
			json_t *json;
			int status;

			replay_lru_run(t, capacities[i], want, &lru);
			replay_start_pool(capacities[i]);
			(void)snprintf(words, sizeof(words),
				       "--workload %s --seed 11 --requests 500 --workers %d %s",
				       name, workers, more);
			json = replay_call(words, &status);
			replay_check_good(json, status);
			replay_check_hits(want, t->n_requests);
			ck_assert_uint_eq(replay_number(json, "requests"), t->n_requests);
			ck_assert_uint_eq(replay_hit_tokens(json, "device"), lru.hit_tokens);
			ck_assert_uint_eq(replay_number(json, "hit_blocks"), lru.hit_blocks);
			ck_assert_uint_eq(replay_number(json, "queried_tokens"),
					  lru.queried_tokens);
			ck_assert_uint_eq(replay_number(json, "blocks_committed"),
					  lru.stored_blocks);
			ck_assert_uint_eq(replay_number(json, "blocks_duplicate"), 0);
			json_decref(json);
			replay_stop();
		}
	free(want);
	replay_trace_free(t);
}

START_TEST(exact_chat)
{
	exact(REPLAY_WORKLOAD_CHAT, "chat", "");
}
END_TEST

START_TEST(exact_rag)
{
	exact(REPLAY_WORKLOAD_RAG, "rag", "");
}
END_TEST

START_TEST(exact_agent)
{
	exact(REPLAY_WORKLOAD_AGENT, "agent", "");
}
END_TEST

START_TEST(exact_chat_by_tokens)
{
	exact(REPLAY_WORKLOAD_CHAT, "chat", "--key-mode tokens");
}
END_TEST

START_TEST(exact_agent_by_tokens)
{
	exact(REPLAY_WORKLOAD_AGENT, "agent", "--key-mode tokens");
}
END_TEST

/* A small replay against the definition of leaf LRU itself. */
START_TEST(exact_by_definition)
{
	struct replay_trace *t = replay_workload_new(REPLAY_WORKLOAD_CHAT, 5, 120, 4096);
	uint32_t *want = replay_alloc(t->n_requests, sizeof(*want));

	for (uint64_t capacity = 8; capacity <= 128; capacity *= 2) {
		uint64_t tokens = naive_lru_run(t, capacity, want);
		json_t *json;
		int status;

		replay_start_pool(capacity);
		json = replay_call("--workload chat --seed 5 --requests 120 --block-tokens 4096 "
				   "--workers 3",
				   &status);
		replay_check_good(json, status);
		replay_check_hits(want, t->n_requests);
		ck_assert_uint_eq(replay_hit_tokens(json, "device"), tokens);
		json_decref(json);
		replay_stop();
	}
	free(want);
	replay_trace_free(t);
}
END_TEST

/* ---- side by side ---------------------------------------------------------------------------- */

START_TEST(concurrent_workers_read_what_others_wrote)
{
	static const uint64_t pools[] = { 300, 20000, 20000 };
	json_t *json;
	int status;

	replay_start_pool(pools[_i]);
	json = replay_call(_i == 1 ? "--workload agent --seed 3 --requests 600 --workers 4 "
				     "--order concurrent --single-flight off"
				   : "--workload agent --seed 3 --requests 600 --workers 4 "
				     "--order concurrent",
			   &status);
	replay_check_good(json, status);
	/* With room for everything, nothing is computed twice; without waiting much is. */
	ck_assert(_i != 2 || replay_number(json, "blocks_duplicate") == 0);
	ck_assert(_i != 2 || replay_number(json, "hit_pending_tokens") > 0);
	ck_assert(_i != 1 || replay_number(json, "hit_pending_tokens") == 0);
	ck_assert_uint_eq(replay_number(json, "requests"), 600);
	ck_assert_uint_gt(replay_number(json, "hit_blocks"), 1000);
	json_decref(json);
	replay_stop();
}
END_TEST

/* A second replay of the same requests by new processes finds all that the first one left. */
START_TEST(contents_outlive_their_writers)
{
	json_t *json;
	int status;

	replay_start_pool(20000);
	json = replay_call("--workload rag --seed 3 --requests 200 --workers 2", &status);
	replay_check_good(json, status);
	json_decref(json);
	json = replay_call("--workload rag --seed 3 --requests 200 --workers 2", &status);
	replay_check_good(json, status);
	ck_assert_uint_eq(replay_hit_tokens(json, "device"), replay_number(json, "queried_tokens"));
	ck_assert_uint_eq(replay_number(json, "blocks_committed"), 0);
	json_decref(json);
	json = replay_call("--workload rag --seed 4 --requests 200 --workers 2", &status);
	replay_check_good(json, status);
	ck_assert_uint_lt(replay_hit_tokens(json, "device"), replay_number(json, "queried_tokens"));
	json_decref(json);
	replay_stop();
}
END_TEST

/* ---- what has to be noticed ------------------------------------------------------------------ */

/* Another process flips one bit in each slot of the pool: every hit has to be reported. */
START_TEST(each_corrupt_block_is_reported)
{
	pfx_namespace_info info = { .struct_size = sizeof(info) };
	pfx_namespace *ns;
	pfx_client *client;
	json_t *json;
	int status;

	replay_start_pool(4000);
	json = replay_call("--workload chat --requests 50 --workers 2", &status);
	replay_check_good(json, status);
	json_decref(json);
	client = e2e_connect(&replay_daemon);
	ns = e2e_open(client, "saboteur", REPLAY_BLOCK_BYTES); /* the same pool */
	ck_assert_int_eq(pfx_namespace_get(ns, &info), PFX_OK);
	for (uint32_t slot = 0; slot < info.n_slots; slot++) {
		uint8_t block[REPLAY_BLOCK_BYTES];

		mover_read(ns, slot, block, sizeof(block));
		block[(slot * 7u) % REPLAY_BLOCK_BYTES] ^= 4;
		mover_write(ns, slot, block, sizeof(block));
	}
	json = replay_call("--workload chat --requests 50 --workers 2", &status);
	ck_assert_int_eq(status, 1);
	ck_assert_uint_gt(replay_number(json, "hit_blocks"), 100);
	ck_assert_uint_eq(replay_number(json, "blocks_corrupt"), replay_number(json, "hit_blocks"));
	ck_assert_ptr_nonnull(json_object_get(json, "first_error"));
	json_decref(json);
	pfx_close(client);
	replay_stop();
}
END_TEST

/* In a child: what it prints is not the test's. */
static void be_quiet(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	dup2(null, 1);
	dup2(null, 2);
}

static pid_t spawn_replay(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		be_quiet();
		execl(replay_binary(), "prefixd-replay", "--socket", replay_daemon.socket,
		      "--workload", "agent", "--requests", "100000", "--workers", "3",
		      "--block-tokens", "4096", (char *)NULL);
		_exit(127);
	}
	ck_assert_int_gt(pid, 0);
	return pid;
}

static pid_t a_child_of(pid_t parent)
{
	char path[64], line[256];
	unsigned long end = e2e_now_ms() + 20000;
	pid_t child = 0;

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent, (int)parent);
	while (!child && e2e_now_ms() < end) {
		FILE *file = fopen(path, "re");

		if (file && fgets(line, sizeof(line), file))
			child = (pid_t)strtol(line, NULL, 10);
		if (file)
			(void)fclose(file);
		e2e_sleep_ms(5);
	}
	ck_assert_int_gt(child, 0);
	return child;
}

static int wait_at_most(pid_t pid, unsigned ms)
{
	unsigned long end = e2e_now_ms() + ms;
	int status;

	while (e2e_now_ms() < end) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status;
		e2e_sleep_ms(5);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	ck_abort_msg("prefixd-replay did not end");
	return -1;
}

START_TEST(a_killed_worker_ends_the_replay)
{
	int status;
	pid_t pid;

	replay_start_pool(2000);
	pid = spawn_replay();
	kill(a_child_of(pid), SIGKILL);
	status = wait_at_most(pid, 10000);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	replay_stop();
}
END_TEST

START_TEST(an_interrupt_ends_the_replay)
{
	int status;
	pid_t pid;

	replay_start_pool(2000);
	pid = spawn_replay();
	a_child_of(pid);
	kill(pid, SIGINT);
	status = wait_at_most(pid, 10000);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	replay_stop();
}
END_TEST

/*
 * The daemon is killed and started again under the workers: calls fail meanwhile and are counted,
 * nothing wrong is ever read, and the workers find the new daemon by themselves.
 */
START_TEST(a_restarted_daemon_is_found_again)
{
	const char *args[] = { "--pool-blocks", "4000", "--watermark", "0", NULL };
	char json_path[128];
	json_t *json;
	int status;
	pid_t pid;

	replay_start_pool(4000);
	replay_file_name(json_path, sizeof(json_path), "json");
	pid = fork();
	if (pid == 0) {
		be_quiet();
		execl(replay_binary(), "prefixd-replay", "--socket", replay_daemon.socket,
		      "--workload", "chat", "--requests", "30000", "--workers", "2", "--order",
		      "concurrent", "--progress", "off", "--deadline-ms", "5000", "--block-bytes",
		      "512", "--json", json_path, (char *)NULL);
		_exit(127);
	}
	ck_assert_int_gt(pid, 0);
	a_child_of(pid);
	e2e_sleep_ms(300);
	ck_assert_int_ne(e2e_daemon_stop(&replay_daemon, SIGKILL), -1);
	ck_assert_int_eq(e2e_daemon_start(&replay_daemon, args), 0);
	status = wait_at_most(pid, 60000);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	json = json_load_file(json_path, 0, NULL);
	ck_assert_ptr_nonnull(json);
	ck_assert_uint_eq(replay_number(json, "requests"), 30000);
	ck_assert_uint_gt(replay_number(json, "errors"), 0);
	ck_assert_uint_eq(replay_number(json, "blocks_corrupt"), 0);
	json_decref(json);
	json = replay_status();
	ck_assert_uint_gt(replay_counter(json, "hit_device_tokens"), 0); /* of the new daemon */
	json_decref(json);
	replay_stop();
}
END_TEST

START_TEST(no_daemon_is_an_error)
{
	json_t *json;
	int status;

	ck_assert_int_eq(e2e_daemon_init(&replay_daemon), 0);
	json = replay_call("--workload chat --requests 5", &status);
	ck_assert_int_eq(status, 1);
	ck_assert_uint_eq(replay_number(json, "requests"), 0);
	ck_assert_uint_gt(replay_number(json, "errors"), 0);
	ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(json, "first_error")),
				     "(--socket names another)"));
	json_decref(json);
	replay_stop();
}
END_TEST

/* ---- T37 ------------------------------------------------------------------------------------- */

/*
 * After load of every kind, concurrent and with pools that are too small: hits + misses are what
 * was asked for, in the daemon's own counters, and both are what the clients saw.
 */
/* It fits a terminal, and every line says something. */
START_TEST(help_fits_80_columns)
{
	const char *argv[] = { replay_binary(), "--help", NULL };
	char out[1 << 14] = "";
	size_t lines = 0;

	ck_assert_int_eq(e2e_run(argv, out, sizeof(out)), 0);
	for (const char *line = out; *line; lines++) {
		size_t n = strcspn(line, "\n");

		ck_assert_msg(n <= 80, "%zu columns: %.*s", n, (int)n, line);
		ck_assert_msg(n == 0 || line[n - 1] != ' ', "blank at the end: %.*s", (int)n, line);
		line += n + (line[n] == '\n');
	}
	ck_assert_uint_gt(lines, 40);
}
END_TEST

START_TEST(T37_hits_and_misses_add_up_to_what_was_asked)
{
	static const char *const loads[] = {
		"--workload chat --requests 300 --workers 4 --order concurrent",
		"--workload agent --requests 300 --workers 4 --order concurrent",
		"--workload rag --requests 300 --workers 2 --order trace --key-mode tokens",
		"--workload chat --requests 300 --workers 4 --order concurrent", /* again */
	};
	uint64_t asked = 0, seen = 0, pending = 0;
	json_t *status;

	replay_start_pool(_i ? 5000 : 200);
	for (size_t i = 0; i < replay_array_size(loads); i++) {
		int code;
		json_t *json = replay_call(loads[i], &code);

		replay_check_good(json, code);
		/* By tokens, the last block counts whole: the daemon was asked for more. */
		if (!strstr(loads[i], "tokens"))
			asked += replay_number(json, "queried_tokens");
		seen += replay_hit_tokens(json, "device");
		pending += replay_number(json, "hit_pending_tokens");
		json_decref(json);
		status = replay_status();
		ck_assert_uint_eq(replay_counter(status, "queried_tokens"),
				  replay_counter(status, "hit_device_tokens") +
					  replay_counter(status, "hit_host_tokens") +
					  replay_counter(status, "hit_redis_tokens") +
					  replay_counter(status, "hit_pending_tokens") +
					  replay_counter(status, "miss_tokens"));
		json_decref(status);
	}
	status = replay_status();
	ck_assert_uint_ge(replay_counter(status, "queried_tokens"), asked);
	ck_assert_uint_ge(replay_counter(status, "hit_device_tokens"), seen);
	ck_assert_uint_eq(replay_counter(status, "hit_pending_tokens"), pending);
	ck_assert_uint_gt(replay_counter(status, "miss_tokens"), 0);
	ck_assert_uint_gt(seen, 0);
	ck_assert_uint_eq(replay_counter(status, "lookups"), 1200);
	ck_assert_uint_eq(replay_counter(status, "lookups_full") +
				  replay_counter(status, "lookups_partial") +
				  replay_counter(status, "lookups_miss"),
			  1200);
	json_decref(status);
	replay_stop();
}
END_TEST

static TCase *cases(bool t37)
{
	TCase *t = tcase_create(t37 ? "T37" : "replay");

	tcase_set_timeout(t, 120);
	if (t37) {
		tcase_add_loop_test(t, T37_hits_and_misses_add_up_to_what_was_asked, 0, 2);
		return t;
	}
	tcase_add_test(t, exact_chat);
	tcase_add_test(t, exact_rag);
	tcase_add_test(t, exact_agent);
	tcase_add_test(t, exact_chat_by_tokens);
	tcase_add_test(t, exact_agent_by_tokens);
	tcase_add_test(t, exact_by_definition);
	tcase_add_loop_test(t, concurrent_workers_read_what_others_wrote, 0, 3);
	tcase_add_test(t, contents_outlive_their_writers);
	tcase_add_test(t, each_corrupt_block_is_reported);
	tcase_add_test(t, a_killed_worker_ends_the_replay);
	tcase_add_test(t, an_interrupt_ends_the_replay);
	tcase_add_test(t, a_restarted_daemon_is_found_again);
	tcase_add_test(t, no_daemon_is_an_error);
	tcase_add_test(t, help_fits_80_columns);
	return t;
}

int main(int argc, char *argv[])
{
	Suite *suite = suite_create("replay");

	if (!replay_binary() || !e2e_daemon_binary())
		return E2E_SKIP;
	suite_add_tcase(suite, cases(argc > 1 && strcmp(argv[1], "T37") == 0));
	return test_run(suite);
}
