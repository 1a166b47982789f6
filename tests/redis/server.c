/*
 * server.c - see server.h.
 */
#include "tests/redis/server.h"

#include <check.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void server_init(struct server *s)
{
	memset(s, 0, sizeof(*s));
	snprintf(s->dir, sizeof(s->dir), "/tmp/prefixd-redis-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(s->dir));
	snprintf(s->path, sizeof(s->path), "%s/redis.sock", s->dir);
	snprintf(s->url, sizeof(s->url), "unix:%s", s->path);
}

static void child(const struct server *s, const char *program, const char *const *more)
{
	const char *args[40] = { program,     "--port",      "0",    "--unixsocket",
				 s->path,     "--save",      "",     "--appendonly",
				 "no",        "--dir",       s->dir, "--logfile",
				 "redis.log", "--databases", "1",    "--io-threads",
				 "1" };
	size_t n = 17;

	while (more && *more && n < 39)
		args[n++] = *more++;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* else it would outlive a test that crashes */
	/* The strings are only read. */
	execv(program, (char *const *)(uintptr_t)args);
	_exit(127);
}

void server_start(struct server *s, const char *const *more)
{
	const char *program = getenv("REDIS_SERVER");
	const struct timeval limit = { .tv_sec = 10 };
	redisReply *reply;

	ck_assert_msg(
		program && program[0],
		"REDIS_SERVER is not set: install redis-server (apt-get install redis-server)");
	ck_assert_int_eq(s->pid, 0);
	(void)unlink(s->path);
	s->pid = fork();
	ck_assert_int_ge(s->pid, 0);
	if (s->pid == 0)
		child(s, program, more);
	for (int i = 0; i < 1000; i++) {
		ck_assert_msg(waitpid(s->pid, NULL, WNOHANG) == 0, "%s did not start", program);
		s->c = redisConnectUnixWithTimeout(s->path, limit);
		if (s->c && !s->c->err)
			break;
		if (s->c)
			redisFree(s->c);
		s->c = NULL;
		usleep(10000);
	}
	ck_assert_msg(s->c != NULL, "%s does not answer", program);
	ck_assert_int_eq(redisSetTimeout(s->c, limit), REDIS_OK);
	/* It listens before it has read its files: until it answers they must stay. */
	reply = redisCommand(s->c, "PING"); /* refused where a password is asked for */
	ck_assert_msg(reply != NULL, "%s ended", program);
	freeReplyObject(reply);
}

void server_kill(struct server *s)
{
	if (s->c)
		redisFree(s->c);
	s->c = NULL;
	if (s->pid > 0) {
		kill(s->pid, SIGKILL);
		waitpid(s->pid, NULL, 0);
	}
	s->pid = 0;
	(void)unlink(s->path);
}

void server_stop(struct server *s)
{
	kill(s->pid, SIGSTOP);
	ck_assert_int_eq(waitpid(s->pid, NULL, WUNTRACED), s->pid);
}

void server_cont(struct server *s)
{
	kill(s->pid, SIGCONT);
}

void server_deinit(struct server *s)
{
	char path[128];

	server_kill(s);
	snprintf(path, sizeof(path), "%s/redis.log", s->dir);
	(void)unlink(path);
	(void)rmdir(s->dir); /* other tests' files keep it */
}

redisReply *server_do(struct server *s, const char *word, ...)
{
	const char *words[16];
	redisReply *reply;
	va_list ap;
	int n = 0;

	va_start(ap, word);
	for (; word && n < 16; word = va_arg(ap, const char *))
		words[n++] = word;
	va_end(ap);
	reply = redisCommandArgv(s->c, n, words, NULL);
	ck_assert_msg(reply != NULL, "%s: %s", words[0], s->c->errstr);
	ck_assert_msg(reply->type != REDIS_REPLY_ERROR, "%s: %s", words[0], reply->str);
	return reply;
}

long long server_int(struct server *s, const char *command, const char *key)
{
	redisReply *reply = server_do(s, command, key, NULL);
	long long v = reply->integer;

	ck_assert_int_eq(reply->type, REDIS_REPLY_INTEGER);
	freeReplyObject(reply);
	return v;
}

void server_set(struct server *s, const char *key, const void *value, size_t len)
{
	const char *words[3] = { "SET", key, value };
	size_t lens[3] = { 3, strlen(key), len };
	redisReply *reply = redisCommandArgv(s->c, 3, words, lens);

	ck_assert(reply && reply->type == REDIS_REPLY_STATUS);
	freeReplyObject(reply);
}
