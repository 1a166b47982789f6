/*
 * replay_kit.c - see replay_kit.h.
 */
#include "tests/e2e/replay_kit.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct e2e_daemon replay_daemon;

const char *replay_binary(void)
{
	return getenv("PREFIXD_REPLAY_BIN");
}

void replay_start(const char *const args[])
{
	ck_assert_int_eq(e2e_daemon_init(&replay_daemon), 0);
	ck_assert_int_eq(e2e_daemon_start(&replay_daemon, args), 0);
}

void replay_start_pool(uint64_t pool_blocks)
{
	char blocks[24];
	const char *args[] = { "--pool-blocks", blocks, "--watermark", "0", NULL };

	(void)snprintf(blocks, sizeof(blocks), "%llu", (unsigned long long)pool_blocks);
	replay_start(args);
}

void replay_stop(void)
{
	e2e_daemon_free(&replay_daemon);
}

void replay_file_name(char *out, size_t len, const char *name)
{
	(void)snprintf(out, len, "%s/%s", replay_daemon.dir, name);
}

json_t *replay_call(const char *words, int *ret_status)
{
	char json_path[128], hits_path[128], line[1024];
	const char *argv[40];
	char out[4096] = "";
	size_t n = 0;
	char *save;
	json_t *json;

	replay_file_name(json_path, sizeof(json_path), "json");
	replay_file_name(hits_path, sizeof(hits_path), "hits");
	(void)snprintf(line, sizeof(line),
		       "%s --socket %s --block-bytes %u --progress off --json %s --hits %s %s",
		       replay_binary(), replay_daemon.socket, REPLAY_BLOCK_BYTES, json_path,
		       hits_path, words);
	for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save))
		argv[n++] = word;
	argv[n] = NULL;
	*ret_status = e2e_run(argv, out, sizeof(out));
	json = json_load_file(json_path, 0, NULL);
	ck_assert_msg(json != NULL, "no JSON; prefixd-replay said: %s", out);
	return json;
}

uint64_t replay_number(const json_t *json, const char *name)
{
	const json_t *value = json_object_get(json, name);

	ck_assert_msg(json_is_integer(value), "no number %s", name);
	return (uint64_t)json_integer_value(value);
}

uint64_t replay_hit_tokens(const json_t *json, const char *tier)
{
	return replay_number(json_object_get(json, "hit_tokens"), tier);
}

void replay_check_good(const json_t *json, int status)
{
	const char *error = json_string_value(json_object_get(json, "first_error"));

	ck_assert_msg(status == 0, "exit status %d: %s", status, error ? error : "no error named");
	ck_assert_uint_eq(replay_number(json, "blocks_corrupt"), 0);
	ck_assert_uint_eq(replay_number(json, "errors"), 0);
	ck_assert_uint_eq(replay_number(json, "blocks_verified"),
			  replay_number(json, "hit_blocks") +
				  replay_number(json, "pending_blocks"));
	ck_assert_uint_eq(replay_number(json, "bytes_read"),
			  replay_number(json, "blocks_verified") * REPLAY_BLOCK_BYTES);
}

uint64_t replay_counter(const json_t *status, const char *name)
{
	return replay_number(json_object_get(status, "counters"), name);
}

json_t *replay_status(void)
{
	char *text = e2e_admin(&replay_daemon, "{\"op\": \"status\"}");
	json_t *json = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(json);
	pfx_free_string(text);
	return json;
}

/* What the daemon says of itself, for whoever has to find out why. */
static void say_status(void)
{
	json_t *json = replay_status();
	char *text = json_dumps(json, JSON_COMPACT);

	fprintf(stderr, "%s\n", text ? text : "");
	free(text);
	json_decref(json);
}

void replay_check_hits(const uint32_t *want, size_t n)
{
	char path[128], line[32];
	FILE *file;

	replay_file_name(path, sizeof(path), "hits");
	file = fopen(path, "re");
	ck_assert_ptr_nonnull(file);
	for (size_t i = 0; i < n; i++) {
		ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
		if (strtoul(line, NULL, 10) != want[i])
			say_status();
		ck_assert_msg(strtoul(line, NULL, 10) == want[i],
			      "request %zu: hit %lu blocks, exact leaf LRU %u", i,
			      strtoul(line, NULL, 10), want[i]);
	}
	ck_assert_int_eq(fclose(file), 0);
}
