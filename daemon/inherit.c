/*
 * inherit.c - see inherit.h.
 *
 * Its state is the process', as environment and descriptors are.
 */
#include "daemon/inherit.h"

#include "daemon/log.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define VARIABLE "PREFIXD_INHERIT"
#define MAX      8u

static struct {
	struct prefixd_listening v[MAX];
	uint32_t n;
	char *text; /* what was read, cut into pieces */
	const char *kept;
} inherited;

/* ---- reading --------------------------------------------------------------------------------- */

static bool descriptor_own(int fd)
{
	return fd > 2 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

/* "FD LOCK FOREIGN WHERE" */
static void listen_read(char *line)
{
	struct prefixd_listening l = { .lock_fd = -1 };
	char *end;

	l.fd = (int)strtol(line, &end, 10);
	if (*end != ' ' || inherited.n == MAX)
		return;
	l.lock_fd = (int)strtol(end + 1, &end, 10);
	if (*end != ' ')
		return;
	l.foreign = strtol(end + 1, &end, 10) != 0;
	if (*end != ' ' || !descriptor_own(l.fd))
		return;
	if (l.lock_fd >= 0 && !descriptor_own(l.lock_fd))
		l.lock_fd = -1;
	l.where = end + 1;
	inherited.v[inherited.n++] = l;
}

/* The first line says which version of this text it is, and for which process. */
static bool is_for_us(const char *line)
{
	char *end;

	return strncmp(line, "1 ", 2) == 0 && strtol(line + 2, &end, 10) == (long)getpid() &&
	       *end == '\0';
}

void prefixd_inherit_read(void)
{
	const char *text = getenv(VARIABLE);
	char *line, *next;

	if (!text)
		return;
	free(inherited.text);
	inherited.text = strdup(text);
	(void)unsetenv(VARIABLE); /* a literal; cannot fail */
	line = inherited.text;
	if (!line)
		return; /* as if nothing had been handed over: sockets are made anew */
	for (uint32_t i = 0; line; i++, line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (i == 0 && !is_for_us(line))
			return;
		if (strncmp(line, "listen ", 7) == 0)
			listen_read(line + 7);
		else if (strncmp(line, "keep ", 5) == 0)
			inherited.kept = line + 5;
	}
}

void prefixd_inherit_add(const char *where, int fd)
{
	if (fd < 0)
		return;
	if (inherited.n == MAX || !descriptor_own(fd)) {
		(void)close(fd); /* it was for us to serve, and cannot be */
		return;
	}
	inherited.v[inherited.n++] = (struct prefixd_listening){
		.fd = fd, .lock_fd = -1, .foreign = true, .where = where
	};
}

/* ---- handing out ----------------------------------------------------------------------------- */

/* Does it listen, and at that path, which is still a socket's? */
static bool listens(int fd, const char *where)
{
	struct sockaddr_un addr = { 0 };
	socklen_t len = sizeof(addr);
	struct stat st;
	int on = 0, flags;
	socklen_t on_len = sizeof(on);

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &on_len) < 0 || !on)
		return false;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return false;
	if (where[0] != '/' && where[0] != '.' && strchr(where, ':'))
		return getsockname(fd, (struct sockaddr *)(void *)&addr, &len) == 0 &&
		       (addr.sun_family == AF_INET || addr.sun_family == AF_INET6);
	if (getsockname(fd, (struct sockaddr *)(void *)&addr, &len) < 0 ||
	    addr.sun_family != AF_UNIX || strncmp(addr.sun_path, where, sizeof(addr.sun_path)) != 0)
		return false;
	return lstat(where, &st) == 0 && S_ISSOCK(st.st_mode);
}

static void entry_close(const struct prefixd_listening *l)
{
	(void)close(l->fd);
	if (l->lock_fd >= 0)
		(void)close(l->lock_fd);
}

bool prefixd_inherit_take(const char *where, struct prefixd_listening *ret)
{
	for (uint32_t i = 0; i < inherited.n; i++) {
		struct prefixd_listening l = inherited.v[i];

		if (strcmp(l.where, where) != 0)
			continue;
		inherited.v[i] = inherited.v[--inherited.n];
		if (!listens(l.fd, where)) {
			prefixd_warn("what was handed over for %s does not listen there; making a "
				     "new socket",
				     where);
			entry_close(&l);
			return false;
		}
		*ret = l;
		return true;
	}
	return false;
}

const char *prefixd_inherit_kept(void)
{
	return inherited.kept;
}

void prefixd_inherit_end(void)
{
	while (inherited.n > 0) {
		const struct prefixd_listening *l = &inherited.v[--inherited.n];

		prefixd_info("nothing is served at %s any more", l->where);
		/* Its file would refuse whoever connects, until the end of time. */
		if (!l->foreign && l->where[0] == '/' && listens(l->fd, l->where))
			(void)unlink(l->where);
		entry_close(l);
	}
	free(inherited.text);
	inherited.text = NULL;
	inherited.kept = NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void keep_open(const struct prefixd_listening *v, uint32_t n, int flag)
{
	for (uint32_t i = 0; i < n; i++) {
		(void)fcntl(v[i].fd, F_SETFD, flag); /* they are open; cannot fail */
		if (v[i].lock_fd >= 0)
			(void)fcntl(v[i].lock_fd, F_SETFD, flag);
	}
}

int prefixd_inherit_write(const struct prefixd_listening *v, uint32_t n, const char *kept)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f;
	int r;

	for (uint32_t i = 0; i < n; i++)
		if (strchr(v[i].where, '\n'))
			return -EINVAL;
	f = open_memstream(&text, &len);
	if (!f)
		return -ENOMEM;
	fprintf(f, "1 %ld", (long)getpid());
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "\nlisten %d %d %d %s", v[i].fd, v[i].lock_fd, v[i].foreign, v[i].where);
	if (kept)
		fprintf(f, "\nkeep %s", kept);
	r = fclose(f) == 0 ? 0 : -ENOMEM;
	if (r == 0 && setenv(VARIABLE, text, 1) < 0)
		r = -errno;
	free(text);
	if (r == 0)
		keep_open(v, n, 0);
	return r;
}

void prefixd_inherit_undo(const struct prefixd_listening *v, uint32_t n)
{
	(void)unsetenv(VARIABLE); /* a literal; cannot fail */
	keep_open(v, n, FD_CLOEXEC);
}
