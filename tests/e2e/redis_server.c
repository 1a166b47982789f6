/*
 * redis_server.c - see redis_server.h.
 */
#include "tests/e2e/redis_server.h"

#include "tests/e2e/harness.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 10000
#define MAX_ARGS 32

int e2e_redis_init(struct e2e_redis *r)
{
	memset(r, 0, sizeof(*r));
	(void)snprintf(r->dir, sizeof(r->dir), "/tmp/prefixd-redis-XXXXXX");
	if (!mkdtemp(r->dir)) {
		r->dir[0] = 0;
		return -errno;
	}
	(void)snprintf(r->socket, sizeof(r->socket), "%s/redis.sock", r->dir);
	(void)snprintf(r->url, sizeof(r->url), "unix:%s", r->socket);
	return 0;
}

/* In the child: never returns. */
static void exec_server(const struct e2e_redis *r, const char *const args[])
{
	const char *argv[MAX_ARGS] = { "redis-server", "--port",      "0",      "--unixsocket",
				       r->socket,      "--save",      "",       "--appendonly",
				       "no",           "--daemonize", "no",     "--dir",
				       r->dir,         "--loglevel",  "warning" };
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char *v[MAX_ARGS];
	size_t n = 15;

	for (; args && *args && n + 1 < MAX_ARGS; args++)
		argv[n++] = *args;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing survives its test */
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
		_exit(126);
	memcpy(v, argv, sizeof(v)); /* execvp takes pointers to what it does not change */
	execvp(argv[0], v);
	_exit(127);
}

void e2e_redis_start(struct e2e_redis *r, const char *const args[])
{
	unsigned long end = e2e_now_ms() + START_MS;
	struct timeval tv = { .tv_sec = 10 };

	ck_assert_int_eq(r->pid, 0);
	r->pid = fork();
	ck_assert_int_ge(r->pid, 0);
	if (r->pid == 0)
		exec_server(r, args);
	for (;;) {
		int status = 0;

		r->c = redisConnectUnixWithTimeout(r->socket, tv);
		if (r->c && !r->c->err)
			break;
		if (r->c)
			redisFree(r->c);
		r->c = NULL;
		if (waitpid(r->pid, &status, WNOHANG) == r->pid)
			ck_abort_msg("redis-server ended with %d; is it installed?", status);
		ck_assert_msg(e2e_now_ms() < end, "redis-server does not answer");
		e2e_sleep_ms(2);
	}
	(void)redisSetTimeout(r->c, tv);
	freeReplyObject(e2e_redis_do(r, "PING"));
}

void e2e_redis_stop(struct e2e_redis *r, int signal)
{
	if (r->c)
		redisFree(r->c);
	r->c = NULL;
	if (!r->pid)
		return;
	(void)kill(r->pid, signal);
	(void)kill(r->pid, SIGCONT); /* it may be stopped */
	(void)waitpid(r->pid, NULL, 0);
	r->pid = 0;
}

void e2e_redis_free(struct e2e_redis *r)
{
	e2e_redis_stop(r, SIGKILL);
	if (r->dir[0]) {
		(void)unlink(r->socket);
		(void)rmdir(r->dir);
	}
	memset(r, 0, sizeof(*r));
}

redisReply *e2e_redis_do(struct e2e_redis *r, const char *fmt, ...)
{
	redisReply *reply;
	va_list ap;

	va_start(ap, fmt);
	reply = redisvCommand(r->c, fmt, ap);
	va_end(ap);
	ck_assert_msg(reply != NULL, "redis: %s", r->c->errstr);
	return reply;
}

long long e2e_redis_count(struct e2e_redis *r, const char *pattern)
{
	redisReply *reply = e2e_redis_do(r, "KEYS %s", pattern);
	long long n = (long long)reply->elements;

	freeReplyObject(reply);
	return n;
}
