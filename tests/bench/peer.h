/*
 * peer.h - servers that a benchmark runs beside itself: prefixd and redis-server.
 *
 * Each lives in a fresh folder, listens on a unix socket only, may be pinned to one CPU, and is
 * stopped by its process id when the benchmark ends.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct bench_server {
	pid_t pid; /* 0: not running */
	char dir[64];
	char socket[96];
};

/*
 * Starts the daemon with further options (NULL ends them; the list may be NULL) and waits until it
 * accepts.  Its admin socket is `a` in s->dir.  Return: 0, -errno.
 */
int bench_prefixd_start(struct bench_server *s, const char *pool_blocks, const char *const more[],
			int cpu);
/* Return: 0; -ENOENT when redis-server is not installed. */
int bench_redis_start(struct bench_server *s, int cpu);
void bench_server_stop(struct bench_server *s);

/* Pin a process (0: this one) to a CPU; -1: to all of them. */
void bench_pin(pid_t pid, int cpu);
int bench_n_cpus(void);

uint64_t bench_now_ns(void);
/* Median of v[0..n), which gets sorted. */
double bench_median(double *v, unsigned n);
/* The value that a share q of v[0..n) does not exceed; v gets sorted. */
double bench_quantile(double *v, unsigned n, double q);
/* Small seeded generator for workloads. */
uint64_t bench_random(uint64_t *state);
