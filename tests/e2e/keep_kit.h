/*
 * keep_kit.h - what the tests of kept memory share: a folder, files whose bytes are known, and
 * prefixd-holder spoken to in raw frames.
 *
 * Every call fails the running Check test when the other side does not do its part within 10 s.
 * What was started is ended with the test: holders are told to go, by the socket of the folder.
 */
#pragma once

#include "daemon/keep.h"
#include "proto/holder_wire.h"
#include "tests/e2e/harness.h"

#include <check.h>

struct keep_kit {
	char dir[64];     /* removed by kit_teardown */
	char admin[96];   /* the admin socket's path, which nobody serves */
	char socket[104]; /* the holder's */
};

extern struct keep_kit kit;

/* Checked fixtures. */
void kit_setup(void);
void kit_teardown(void);
int kit_main(const char *name, const TTest *const tests[]); /* main's exit status */

/* A file without a name whose bytes follow from `seed`; and whether a file is that one. */
int kit_file(uint32_t seed, size_t len);
bool kit_is_file(int fd, uint32_t seed, size_t len); /* also where no test runs */
void kit_expect_file(int fd, uint32_t seed, size_t len);
/* Open descriptors of a process. */
unsigned kit_n_fds(pid_t pid);
/* It has so many before long: what was closed elsewhere is noticed a moment later. */
void kit_wait_n_fds(pid_t pid, unsigned n);
/* It has ended, reaped or not; and within so long. */
bool kit_gone(pid_t pid);
void kit_wait_gone(pid_t pid, unsigned ms);
/* Runs `seconds` of the loop at most, until `done` says so. */
struct event_base;
bool kit_loop_until(struct event_base *base, bool (*done)(void *ctx), void *ctx, unsigned ms);

/* ---- prefixd-holder ------------------------------------------------------------------------ */

/* Its binary, or NULL. */
const char *kit_holder_binary(void);
/* Starts one at kit.socket.  Return: its exit status; `says` gets its line. */
int kit_holder_start(uint64_t timeout_ns, char *says, size_t len);
int kit_dial(void);
/* A frame and its answer; false when the connection was closed instead.  `fd` and ret_fd may be
 * -1 and NULL. */
bool kit_call(int socket, struct proto_holder_frame *f, int fd, struct proto_holder_frame *ret,
	      int *ret_fd);
/* Bytes as they are; how many came back, 0 when it was closed. */
size_t kit_exchange(int socket, const void *bytes, size_t len, const int *fds, uint32_t n_fds,
		    uint8_t ret[PROTO_HOLDER_LEN + 1]);
/* HELLO, which must be answered with OK. */
struct proto_holder_frame kit_hello(int socket, uint32_t flags, uint64_t timeout_ns);
/* What it says to somebody who only looks. */
struct proto_holder_frame kit_look(void);
void kit_put(int socket, const char *name, int fd);
