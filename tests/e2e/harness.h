/*
 * harness.h - a real prefixd in a directory of its own, for tests.
 *
 * What it guarantees.  Every daemon gets fresh sockets in a fresh directory; it is killed when the
 * test process ends, however that ends, and leaves nothing: its memory is kept only where a test
 * says --keep or sets $PREFIXD_KEEP.  Nothing is waited for without a bound.  The binary is the
 * one of this build ($PREFIXD_BIN, set by meson); without it the test says so and is skipped.
 *
 * What it relies on.  A worker socket that accepts connections only once the daemon serves.
 */
#pragma once

#include "clients/c/prefixd.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
	E2E_SKIP = 77 /* exit status of a test that could not run */
};

struct e2e_daemon {
	pid_t pid;       /* 0: not running */
	char dir[64];    /* removed by e2e_daemon_free */
	char socket[96]; /* for workers */
	char admin[96];
	char log[96]; /* its stderr, over all starts */
};

/* Path of the binary, or NULL. */
const char *e2e_daemon_binary(void);

/* The directory and the paths; starts nothing.  Return: 0, negative errno. */
int e2e_daemon_init(struct e2e_daemon *d);
/*
 * Starts it and waits until it accepts a worker, 20 seconds at most.  `args` end with NULL and come
 * behind --socket, --admin-socket and --device.  Return: 0; -ENOENT: no binary; -ETIMEDOUT;
 * the exit status of a daemon that refused to start, positive.
 */
int e2e_daemon_start(struct e2e_daemon *d, const char *const args[]);
/* The same without waiting. */
int e2e_daemon_spawn(struct e2e_daemon *d, const char *const args[]);
/* Sends a signal, waits for the end.  Return: as waitpid's status; -1: it did not end in time. */
int e2e_daemon_stop(struct e2e_daemon *d, int signal);
/* SIGKILL if it runs, and the directory goes. */
void e2e_daemon_free(struct e2e_daemon *d);
/* Its log so far, for the caller to free; never NULL. */
char *e2e_daemon_log(const struct e2e_daemon *d);

/* The back end that the tests run on: E2E_DEVICE, or host.  What a test says itself behind that
 * counts instead. */
const char *e2e_device(void);
/* How long after a process' end it may still write. */
unsigned long e2e_grace_ms(void);

/* Ranks that a worker has, which share blocks: E2E_RANKS, or 1. */
unsigned e2e_ranks(void);

/* Milliseconds of a monotonic clock; and a nap. */
unsigned long e2e_now_ms(void);
void e2e_sleep_ms(unsigned ms);

/* A client of the daemon, with a deadline of 5 s; fails the test when that cannot be had. */
pfx_client *e2e_connect(const struct e2e_daemon *d);
/* A namespace of 16 tokens per block, opaque layout, mapped read-write. */
pfx_namespace *e2e_open(pfx_client *c, const char *model, unsigned block_bytes);
/* One admin request; the JSON text, for pfx_free_string; fails the test on an error. */
char *e2e_admin(const struct e2e_daemon *d, const char *json);
/* Runs a program with its stdout and stderr in `out`; its exit status, or -1. */
int e2e_run(const char *const argv[], char *out, size_t out_len);
