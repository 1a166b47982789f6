/*
 * shell_world.h - what the tests of the real binary share: one daemon per test, requests as frames,
 * and questions on the admin socket.
 */
#pragma once

#include "tests/e2e/harness.h"
#include "tests/e2e/shell_raw.h"

#include <check.h>
#include <jansson.h>

#define BLOCK 16u /* tokens */

extern struct e2e_daemon d;

/* Checked fixture: a directory, and no daemon left. */
void shell_setup(void);
void shell_teardown(void);
/* Starts d, or fails the test with its log. */
void shell_start(const char *const args[]);
#define START(...) shell_start((const char *const[]){ __VA_ARGS__, NULL })

/* A MATCH of n_blocks blocks whose tokens count up from `first`; returns the body's length. */
size_t match_body(uint8_t *out, size_t cap, uint32_t ns, uint32_t first, uint32_t n_blocks);
struct proto_match_rep match(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks);
void release(struct raw *r, uint64_t lease);
/* Fills what a match did not find: RESERVE, COMMIT, RELEASE. */
void store(struct raw *r, uint32_t ns, uint32_t first, uint32_t n_blocks);

/* One admin request on a connection of its own; the parsed answer, for json_decref. */
json_t *admin(const char *request);
json_int_t number(const json_t *j, const char *name);
json_int_t admin_number(const char *request, const char *name);
/* Audit finds nothing. */
void expect_clean(void);
/* Waits until `name` of stat is n, two seconds at most. */
void wait_stat(const char *name, json_int_t n);

/* Runs the test cases that `add` was called with, or those of one name; main's exit status. */
struct shell_case {
	const char *name;
	const TTest *const *tests; /* ends with NULL */
};
int shell_main(const struct shell_case *cases, size_t n, const char *only);
