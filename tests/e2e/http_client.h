/*
 * http_client.h - a daemon that serves monitors, and requests written byte by byte, so that they
 * can be as wrong as they like.
 *
 * Every call fails the running test when the daemon neither answers nor closes within 20 s.
 */
#pragma once

#include "tests/e2e/exposition.h"
#include "tests/e2e/shell_world.h"

extern char http_path[128]; /* of the unix socket; empty: TCP at http_port */
extern uint16_t http_port;

/* Starts d with pages on a unix socket in its directory, or on a free port. */
void http_start_unix(const char *blocks);
void http_start_tcp(void);

struct http_answer {
	int status; /* 0: the connection ended without one */
	char *text; /* all of it */
	char *body;
};

int http_connect(void);
/* Writes what the daemon takes: it may close before all is said. */
void http_write(int fd, const char *bytes, size_t len);
/* Reads until the daemon closes. */
struct http_answer http_answer_read(int fd);
void http_answer_free(struct http_answer *a);
/* A connection, a request, the answer; `headers` end with \r\n each. */
struct http_answer http_ask(const char *request);
struct http_answer http_get(const char *path, const char *headers);
/* What /metrics says now; and one value of it. */
struct exposition http_scrape(void);
long double http_value(const char *series);
