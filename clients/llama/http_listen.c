/*
 * http_listen.c - see http_listen.h.
 */
#include "clients/llama/http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128

const char *http_listen_path(const char *address)
{
	if (strncmp(address, "unix://", 7) == 0)
		return address + 7;
	return strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;
}

/* ---- unix ------------------------------------------------------------------------------------ */

/* A socket file that nobody listens behind is what a killed worker left: it is taken away. */
static int clear_stale(const struct sockaddr_un *addr)
{
	struct stat st;
	int fd, r;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	r = connect(fd, (const struct sockaddr *)(const void *)addr, sizeof(*addr)) == 0 ? 0
											 : -errno;
	(void)close(fd);
	if (r != -ECONNREFUSED)
		return -EADDRINUSE;
	return unlink(addr->sun_path) == 0 || errno == ENOENT ? 0 : -errno;
}

static int bind_unix(const char *path, int *ret_fd, char *why, size_t why_len)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, r;
	mode_t mask;

	if (!*path || strlen(path) >= sizeof(addr.sun_path)) {
		snprintf(why, why_len, "--listen: a path has 1 to %zu bytes, `%s` has %zu",
			 sizeof(addr.sun_path) - 1, path, strlen(path));
		return -EINVAL;
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	r = clear_stale(&addr);
	fd = r < 0 ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (r == 0 && fd < 0)
		r = -errno;
	if (r == 0) {
		mask = umask(0177); /* for whoever runs the worker, nobody else */
		if (bind(fd, (const struct sockaddr *)(const void *)&addr, sizeof(addr)) < 0)
			r = -errno;
		(void)umask(mask);
	}
	if (r == 0 && listen(fd, BACKLOG) < 0)
		r = -errno;
	if (r < 0) {
		snprintf(why, why_len, "--listen: cannot serve on %s: %s", path, strerror(-r));
		if (fd >= 0)
			(void)close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* ---- loopback -------------------------------------------------------------------------------- */

static int port_parse(const char *text, uint16_t *ret)
{
	unsigned v = 0;

	if (!*text || strlen(text) > 5)
		return -EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return -EINVAL;
		v = v * 10 + (unsigned)(*text - '0');
	}
	if (v > UINT16_MAX)
		return -EINVAL;
	*ret = (uint16_t)v;
	return 0;
}

/* 0; -EINVAL: no address; -EPERM: one that other machines reach. */
static int loopback_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const char *colon = strrchr(text, ':');
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	char host[64];
	uint16_t port;
	size_t len;

	if (!colon || port_parse(colon + 1, &port) < 0)
		return -EINVAL;
	len = (size_t)(colon - text);
	if (len >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, len);
	host[len] = '\0';
	*ret = (struct sockaddr_storage){ 0 };
	if (strcmp(host, "localhost") == 0 || inet_pton(AF_INET, host, &in.sin_addr) == 1) {
		if (host[0] == 'l')
			in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (ntohl(in.sin_addr.s_addr) >> 24 != 127)
			return -EPERM;
		in.sin_port = htons(port);
		memcpy(ret, &in, sizeof(in));
		*ret_len = sizeof(in);
		return 0;
	}
	if (len < 2 || host[0] != '[' || host[len - 1] != ']')
		return -EINVAL;
	host[len - 1] = '\0';
	if (inet_pton(AF_INET6, host + 1, &in6.sin6_addr) != 1)
		return -EINVAL;
	if (!IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr))
		return -EPERM;
	in6.sin6_port = htons(port);
	memcpy(ret, &in6, sizeof(in6));
	*ret_len = sizeof(in6);
	return 0;
}

static int bind_tcp(const char *address, int *ret_fd, char *where, size_t where_len, char *why,
		    size_t why_len)
{
	struct sockaddr_storage addr;
	socklen_t len;
	int on = 1, fd, r = loopback_parse(address, &addr, &len);

	if (r < 0) {
		snprintf(why, why_len,
			 r == -EPERM ? "--listen: %s can be reached from other machines, and the "
				       "API knows no passwords; give 127.0.0.1:PORT, [::1]:PORT or "
				       "unix:PATH"
				     : "--listen: `%s` is not an address; give 127.0.0.1:PORT, "
				       "[::1]:PORT or unix:PATH",
			 address);
		return r;
	}
	fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* Accepted sockets inherit TCP_NODELAY: a token is not held back for the next one. */
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0 ||
	    bind(fd, (struct sockaddr *)(void *)&addr, len) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, (struct sockaddr *)(void *)&addr, &len) < 0) {
		r = -errno;
		snprintf(why, why_len, "--listen: cannot serve on %s: %s", address, strerror(-r));
		if (fd >= 0)
			(void)close(fd);
		return r;
	}
	/* The port is at the same place for both families. */
	snprintf(where, where_len, "%.*s:%u", (int)(strrchr(address, ':') - address), address,
		 (unsigned)ntohs(((const struct sockaddr_in *)(const void *)&addr)->sin_port));
	*ret_fd = fd;
	return 0;
}

int http_listen(const char *address, int *ret_fd, char *where, size_t where_len, char *why,
		size_t why_len)
{
	const char *path = http_listen_path(address);

	if (!path)
		return bind_tcp(address, ret_fd, where, where_len, why, why_len);
	snprintf(where, where_len, "unix:%s", path);
	return bind_unix(path, ret_fd, why, why_len);
}
