/*
 * http.h - pages for monitors: GET over a unix socket or TCP on this machine.
 *
 * What it guarantees.  It listens on a unix socket or a loopback address, nowhere else.  GET is the
 * only method: nothing can be changed through it.  A connection serves one request and ends within
 * 5 seconds, whatever the peer does; 16 exist at a time and more wait in the kernel; a request has
 * at most 8 KiB of headers and 4 KiB of body (which is ignored).  No peer makes the loop wait: what
 * he does not read lies in his connection's buffer until its time is over.
 *
 * What it relies on.  libevent's evhttp reads requests and writes replies; here are its socket, its
 * limits and its methods.  One thread, the loop's.
 */
#pragma once

#include "radix/base.h"

#include <sys/types.h>

struct event_base;
struct prefixd_http; /* opaque */

#define PREFIXD_HTTP_CONNECTIONS 16
#define PREFIXD_HTTP_SECONDS     5
#define PREFIXD_HTTP_MAX_HEADERS 8192
#define PREFIXD_HTTP_MAX_BODY    4096

/* A page.  A status other than 200 has a body as well: a sentence. */
struct prefixd_http_reply {
	int status;
	const char *type; /* a literal */
	char *body;       /* freed with free() when it was sent; NULL: there was no memory */
	size_t len;
};

/* Fills *ret for a path; `accept` is the header's text or NULL.  False: there is no such page. */
typedef bool (*prefixd_http_page)(void *ctx, const char *path, const char *accept,
				  struct prefixd_http_reply *ret);

/* Return: 0 for "", unix://PATH or a loopback address with a port; -EINVAL with why not. */
radix_nodiscard int prefixd_http_address_check(const char *text, char *why, size_t why_len);
/* The PATH of unix://PATH; NULL: something else. */
const char *prefixd_http_unix_path(const char *address);

/*
 * Listens at `address`, which is kept by pointer; `mode` is a unix socket's.  Return: 0; negative
 * errno with a sentence in `why`.
 */
radix_nodiscard int prefixd_http_new(struct prefixd_http **ret_http, struct event_base *base,
				     const char *address, mode_t mode, prefixd_http_page page,
				     void *ctx, char *why, size_t why_len);
struct prefixd_http *prefixd_http_free(struct prefixd_http *http);
/* What another program in this process has to take over; `address` is what it was made with. */
struct prefixd_listening;
void prefixd_http_listening(const struct prefixd_http *http, const char *address,
			    struct prefixd_listening *ret);
/* Where it listens, with the port that the kernel chose for port 0. */
const char *prefixd_http_where(const struct prefixd_http *http);
