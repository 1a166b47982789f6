/*
 * replay_kit.h - what the tests of whole replays share: one daemon per test, prefixd-replay as a
 * program, and what its JSON says.
 */
#pragma once

#include "tests/e2e/harness.h"

#include <jansson.h>
#include <stdint.h>

/* Small: what is tested is which blocks are hit, and that all are compared. */
#define REPLAY_BLOCK_BYTES 512u

extern struct e2e_daemon replay_daemon;

/* Of prefixd-replay; NULL: it was not built. */
const char *replay_binary(void);
/* A fresh daemon with these arguments, NULL ends them; or with a pool of so many blocks. */
void replay_start(const char *const args[]);
void replay_start_pool(uint64_t pool_blocks);
void replay_stop(void);
/* A file in the daemon's directory, which goes with it. */
void replay_file_name(char *out, size_t len, const char *name);
/*
 * Runs prefixd-replay with `words` (separated by blanks) against the daemon.  Return: its JSON, for
 * the caller to release; its exit status in *ret_status.
 */
json_t *replay_call(const char *words, int *ret_status);
/* What every good replay has. */
void replay_check_good(const json_t *json, int status);
/* The hits of each request, of the last replay. */
void replay_check_hits(const uint32_t *want, size_t n);

uint64_t replay_number(const json_t *json, const char *name);
uint64_t replay_hit_tokens(const json_t *json, const char *tier);
/* The daemon's status, for json_decref; and one of its counters. */
json_t *replay_status(void);
uint64_t replay_counter(const json_t *status, const char *name);
