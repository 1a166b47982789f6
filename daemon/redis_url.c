/*
 * redis_url.c - where Redis is: unix:/path, tcp:host:port, host:port, [v6]:port.
 *
 * A name is resolved once, at the start, while nothing waits for the thread: getaddrinfo() blocks
 * for as long as a name server likes.  A Redis that moves to another address needs a restart; one
 * that is given by address or "localhost" asks no name server at all.
 */
#include "daemon/redis_internal.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>

struct place {
	const char *path; /* unix */
	char host[256];
	char port[8];
};

static int bad(char *why, size_t why_len, const char *url, const char *text)
{
	snprintf(why, why_len, "redis: \"%s\": %s", url, text);
	return -EINVAL;
}

static bool port_ok(const char *port)
{
	unsigned long n = 0;

	if (!*port || strlen(port) > 5 || port[strspn(port, "0123456789")])
		return false;
	for (; *port; port++)
		n = n * 10 + (unsigned long)(*port - '0');
	return n >= 1 && n <= 65535;
}

static int place_parse(const char *url, struct place *ret, char *why, size_t why_len)
{
	static const char form[] = "write unix:/path or tcp:host:port, such as tcp:127.0.0.1:6379";
	const char *host = url, *end, *port;
	size_t n;

	*ret = (struct place){ NULL };
	if (!strncmp(url, "unix:", 5)) {
		ret->path = url + 5;
		if (ret->path[0] != '/')
			return bad(why, why_len, url, "the path behind unix: begins with /");
		if (strlen(ret->path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return bad(why, why_len, url, "the path of a socket has at most 107 bytes");
		return 0;
	}
	if (!strncmp(host, "tcp:", 4))
		host += 4;
	if (strstr(url, "://"))
		return bad(why, why_len, url, form);
	if (host[0] == '[') {
		host++;
		end = strchr(host, ']');
		port = end && end[1] == ':' ? end + 2 : NULL;
	} else {
		end = strrchr(host, ':');
		port = end ? end + 1 : NULL;
		if (end && memchr(host, ':', (size_t)(end - host)))
			return bad(why, why_len, url, "write an IPv6 address as [::1]:6379");
	}
	n = port ? (size_t)(end - host) : 0;
	if (!port || n == 0 || n >= sizeof(ret->host))
		return bad(why, why_len, url, form);
	if (!port_ok(port))
		return bad(why, why_len, url, "a port is a number from 1 to 65535");
	memcpy(ret->host, host, n);
	snprintf(ret->port, sizeof(ret->port), "%s", port);
	if (ret->host[strcspn(ret->host, " \t\r\n/@")])
		return bad(why, why_len, url, form);
	return 0;
}

int prefixd_redis_url_check(const char *url, char *why, size_t why_len)
{
	struct place p;

	return place_parse(url, &p, why, why_len);
}

int prefixd_redis_resolve(struct prefixd_redis *r, char *why, size_t why_len)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL, *it;
	const char *url = r->config.url;
	struct place p;
	int ret = place_parse(url, &p, why, why_len);

	if (ret < 0)
		return ret;
	snprintf(r->place, sizeof(r->place), "%s", url);
	r->n_addresses = 0;
	if (p.path) {
		struct sockaddr_un *un = (struct sockaddr_un *)(void *)&r->addresses[0].sa;

		un->sun_family = AF_UNIX;
		snprintf(un->sun_path, sizeof(un->sun_path), "%s", p.path);
		r->addresses[0].len = sizeof(*un);
		r->n_addresses = 1;
		return 0;
	}
	hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
	ret = getaddrinfo(p.host, p.port, &hints, &found);
	if (ret == EAI_NONAME) {
		hints.ai_flags = AI_NUMERICSERV;
		ret = getaddrinfo(p.host, p.port, &hints, &found);
	}
	if (ret != 0) {
		snprintf(why, why_len, "redis: cannot resolve \"%s\": %s", p.host,
			 gai_strerror(ret));
		return -EADDRNOTAVAIL;
	}
	for (it = found; it && r->n_addresses < PREFIXD_REDIS_ADDRESSES; it = it->ai_next) {
		struct prefixd_redis_address *a = &r->addresses[r->n_addresses++];

		memcpy(&a->sa, it->ai_addr, it->ai_addrlen);
		a->len = it->ai_addrlen;
	}
	freeaddrinfo(found);
	return 0;
}
