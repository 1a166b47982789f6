/*
 * http_client.c - see http_client.h.
 */
#include "tests/e2e/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 20000 /* longer than any answer may take */

char http_path[128];
uint16_t http_port;

void http_start_unix(const char *blocks)
{
	char address[160];

	snprintf(http_path, sizeof(http_path), "%s/http.sock", d.dir);
	snprintf(address, sizeof(address), "unix://%s", http_path);
	START("--pool-blocks", blocks, "--http", address);
}

void http_start_tcp(void)
{
	char *log, *at;

	http_path[0] = '\0';
	START("--pool-blocks", "64", "--http", "127.0.0.1:0");
	log = e2e_daemon_log(&d);
	at = strstr(log, "/readyz at 127.0.0.1:");
	ck_assert_msg(at != NULL, "the log does not say the port: %s", log);
	http_port = (uint16_t)strtoul(at + strlen("/readyz at 127.0.0.1:"), NULL, 10);
	ck_assert_uint_gt(http_port, 0);
	free(log);
}

int http_connect(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_port = htons(http_port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd;

	if (!http_path[0]) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		ck_assert_int_eq(connect(fd, (struct sockaddr *)(void *)&in, sizeof(in)), 0);
		return fd;
	}
	memcpy(un.sun_path, http_path, sizeof(un.sun_path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)(void *)&un, sizeof(un)), 0);
	return fd;
}

void http_answer_free(struct http_answer *a)
{
	free(a->text);
	*a = (struct http_answer){ 0 };
}

/* Reads until the daemon closes. */
struct http_answer http_answer_read(int fd)
{
	struct http_answer a = { 0 };
	size_t len = 0, cap = 1 << 20;

	a.text = malloc(cap);
	ck_assert_ptr_nonnull(a.text);
	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ssize_t n;

		ck_assert_msg(poll(&p, 1, WAIT_MS) == 1, "no answer and no end");
		ck_assert_uint_lt(len + 1, cap);
		n = read(fd, a.text + len, cap - len - 1);
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	a.text[len] = '\0';
	if (strncmp(a.text, "HTTP/1.", 7) == 0)
		a.status = (int)strtol(a.text + 9, NULL, 10);
	a.body = strstr(a.text, "\r\n\r\n");
	a.body = a.body ? a.body + 4 : a.text + len;
	return a;
}

/* Writes what the daemon takes: it may close before all is said. */
void http_write(int fd, const char *bytes, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

		if (n <= 0)
			return;
		bytes += n;
		len -= (size_t)n;
	}
}

struct http_answer http_ask(const char *request)
{
	int fd = http_connect();
	struct http_answer a;

	http_write(fd, request, strlen(request));
	a = http_answer_read(fd);
	close(fd);
	return a;
}

struct http_answer http_get(const char *path, const char *headers)
{
	char request[512];

	snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, headers);
	return http_ask(request);
}

struct exposition http_scrape(void)
{
	struct http_answer a = http_get("/metrics", "");
	char *text;

	ck_assert_int_eq(a.status, 200);
	text = strdup(a.body);
	ck_assert_ptr_nonnull(text);
	http_answer_free(&a);
	return exposition_parse(text, false);
}

long double http_value(const char *series)
{
	struct exposition e = http_scrape();
	long double v = exposition_get(&e, series);

	exposition_free(&e);
	return v;
}
