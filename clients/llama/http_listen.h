/*
 * http_listen.h - the socket to serve on, by its address: loopback or unix, nothing that other
 * machines reach, since the API knows no passwords.
 */
#ifndef LLAMA_HTTP_LISTEN_H
#define LLAMA_HTTP_LISTEN_H

#include <stddef.h>

/*
 * Binds and listens.  *ret_fd is the caller's; `where` is the address it got.  0; negative errno,
 * `why` says what is wrong.
 */
int http_listen(const char *address, int *ret_fd, char *where, size_t where_len, char *why,
		size_t why_len);
/* unix:PATH -> PATH, also written unix://PATH; NULL for others. */
const char *http_listen_path(const char *address);

#endif
