/*
 * server.h - a redis-server of the test's own, on a unix socket in a folder of its own.
 *
 * REDIS_SERVER in the environment names the program; without it a test fails and says what to
 * install.  The server ends with the test's process, however that ends.
 */
#pragma once

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <sys/types.h>

struct server {
	char dir[64];
	char path[96]; /* of the socket */
	char url[128];
	pid_t pid;       /* 0: not running */
	redisContext *c; /* for the test's own commands */
};

/* Makes the folder; starts nothing. */
void server_init(struct server *s);
/* `more`: further arguments of redis-server, ended by NULL; may be NULL. */
void server_start(struct server *s, const char *const *more);
void server_kill(struct server *s); /* SIGKILL, and it is gone on return */
void server_stop(struct server *s); /* SIGSTOP, and it stands still on return */
void server_cont(struct server *s);
void server_deinit(struct server *s);

/*
 * A command of the test's own, words up to NULL; an error reply fails the test.  The caller frees
 * the reply.
 */
__attribute__((sentinel)) redisReply *server_do(struct server *s, const char *word, ...);
/* A command with one argument that answers with a number. */
long long server_int(struct server *s, const char *command, const char *key);
/* Sets a key to any bytes. */
void server_set(struct server *s, const char *key, const void *value, size_t len);
