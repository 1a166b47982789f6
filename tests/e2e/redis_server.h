/*
 * redis_server.h - a real redis-server in a directory of its own, for tests.
 *
 * It listens on a unix socket only, keeps nothing on disk, and is killed when the test process
 * ends, however that ends.  Nothing is waited for without a bound.
 */
#pragma once

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <sys/types.h>

struct e2e_redis {
	pid_t pid;       /* 0: not running */
	char dir[64];    /* removed by e2e_redis_free */
	char socket[96]; /* its unix socket */
	char url[112];   /* the same as prefixd --redis wants it */
	redisContext *c; /* the test's own connection, while it runs */
};

/* The directory and the paths; starts nothing.  Return: 0, negative errno. */
int e2e_redis_init(struct e2e_redis *r);
/*
 * Starts it with further options (NULL ends them; the list may be NULL) and connects.  Fails the
 * test when there is no redis-server.
 */
void e2e_redis_start(struct e2e_redis *r, const char *const args[]);
/* Ends it by a signal and waits for the end. */
void e2e_redis_stop(struct e2e_redis *r, int signal);
void e2e_redis_free(struct e2e_redis *r); /* idempotent, accepts a zeroed one */
/* One command of the test's own; the reply is the caller's; fails the test when Redis is gone. */
redisReply *e2e_redis_do(struct e2e_redis *r, const char *fmt, ...);
/* Keys that match a pattern. */
long long e2e_redis_count(struct e2e_redis *r, const char *pattern);
